"""Execute the notebooks and keep them with their output: ``python -m notebooks [NAME ...]``.

A notebook is written as a script, ``NAME.py``: cells begin with ``# %%``, text cells with
``# %% [markdown]``. The executed ``NAME.ipynb`` stands beside it, and a page of the documentation
is made of both in ``docs/notebooks``.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "notebooks"
NAMES = (
    "audit_opacus",
    "audit_huggingface",
    "audit_jax",
    "finished_classifier",
    "compare_auditors",
    "training_to_gate",
)


def cells(script: str) -> list[nbformat.NotebookNode]:
    """The cells of a script, without its docstring."""
    found = []
    for part in re.split(r"^# %%", script, flags=re.M)[1:]:
        first, _, body = part.partition("\n")
        if first.strip() == "[markdown]":
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines())
            found.append(nbformat.v4.new_markdown_cell(text.strip()))
        else:
            found.append(nbformat.v4.new_code_cell(body.strip()))
    return found


def execute(name: str) -> None:
    """Run one notebook, keep it, and write its page."""
    notebook = nbformat.v4.new_notebook(cells=cells((HERE / f"{name}.py").read_text("utf-8")))
    # Ids and times would change in every run, and say nothing.
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"
    client = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(HERE)}})
    client.record_timing = False
    client.execute()
    nbformat.write(notebook, HERE / f"{name}.ipynb")
    body, extras = MarkdownExporter().from_notebook_node(
        notebook, {"output_files_dir": f"{name}_files"}
    )
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / f"{name}.md").write_text(body, encoding="utf-8")
    for path, content in extras["outputs"].items():
        (PAGES / path).parent.mkdir(exist_ok=True)
        (PAGES / path).write_bytes(content)


def main(names: list[str]) -> None:
    """Execute the named notebooks, or all."""
    for name in names or NAMES:
        started = time.perf_counter()
        execute(name)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
