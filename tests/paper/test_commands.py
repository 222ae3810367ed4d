from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from askgauss.cli.paper_commands import register
from askgauss.cli.program import Program


@pytest.fixture
def app():
    program = typer.Typer(cls=Program)

    @program.callback()
    def main() -> None:
        """A program of its own around the commands."""

    register(program)
    return program


def test_list_and_fetch(app, tmp_path):
    runner = CliRunner()
    listed = runner.invoke(app, ["data", "list", "--data", str(tmp_path)])
    assert listed.exit_code == 0
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["digits", "yes"],
        ["fashion-mnist", "no"],
        ["cifar10", "no"],
    ]
    missing = runner.invoke(
        app, ["data", "fetch", "cifar10", "--source", "/nowhere", "--data", str(tmp_path)]
    )
    assert missing.exit_code == 2
    assert "There is no file or folder '/nowhere'" in missing.output


def test_a_figure_that_needs_no_run(app, tmp_path):
    arguments = ["reproduce", "convergence", "--scale", "smoke", "--folder", str(tmp_path / "r")]
    done = CliRunner().invoke(app, [*arguments, "--docs", str(tmp_path / "docs")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r" / "figures" / "convergence.svg").exists()
    assert "Kolmogorov" in (tmp_path / "docs" / "reproduction.md").read_text()


def test_data_that_was_not_fetched(app, tmp_path):
    arguments = ["reproduce", "bounds", "--folder", str(tmp_path / "r"), "--data", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "askgauss data fetch cifar10" in done.output


def test_a_sweep(app, tmp_path):
    arguments = ["sweep", "--folder", str(tmp_path / "s"), "--epsilon", "8", "--seeds", "2"]
    arguments += ["--steps", "10", "--present", "30", "--absent", "30"]
    done = CliRunner().invoke(app, [*arguments, "--auditor", "gaussian-shift"])
    assert done.exit_code == 0, done.output
    assert list((tmp_path / "s" / "results").glob("results.*"))


def test_the_commands_load_nothing_slow():
    code = "import sys, askgauss.cli.paper_commands; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False", done.stderr


_WITHOUT_EXTRAS = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "kymatio", "sklearn", "ray", "pyarrow", "PIL"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
from askgauss.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("reproduce", "headline", "--scale", "smoke"), 2, "askgauss[paper]"),
        (("sweep", "--ray", "local"), 2, "askgauss[ray]"),
        (("sweep", "--run", "smoke"), 2, "askgauss[paper]"),
        (("sweep",), 0, "above the truth"),
        (("data", "fetch", "digits"), 2, "askgauss[paper]"),
    ],
)
def test_without_the_extras(tmp_path, arguments, code, said):
    """With the base dependencies only: a sweep runs, and the rest say what to install."""
    options = ()
    if arguments[0] != "data":
        options = ("--folder", str(tmp_path / "out"))
    if arguments[0] == "sweep":
        options += ("--seeds", "1", "--epsilon", "2", "--steps", "10")
        options += ("--present", "30", "--absent", "30")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, *arguments, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "ASKGAUSS_DATA": str(tmp_path / "data")},
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "bug" not in done.stderr
