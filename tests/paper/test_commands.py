"""The commands around the paper: data sets, reproduction, sweeps; with and without the extras."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from paper.__main__ import app


def run(*arguments):
    return CliRunner().invoke(app, [str(item) for item in arguments])


def test_list_and_fetch(tmp_path):
    listed = run("data", "list", "--data", tmp_path)
    assert listed.exit_code == 0
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["digits", "yes"],
        ["fashion-mnist", "no"],
        ["cifar10", "no"],
    ]
    missing = run("data", "fetch", "cifar10", "--source", "/nowhere", "--data", tmp_path)
    assert missing.exit_code == 2
    assert "There is no file or folder '/nowhere'" in missing.output


def test_a_figure_that_needs_no_run(tmp_path):
    places = ("--folder", tmp_path / "r", "--docs", tmp_path / "docs")
    done = run("reproduce", "convergence", "--scale", "smoke", *places)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r" / "figures" / "convergence.svg").exists()
    assert "Kolmogorov" in (tmp_path / "docs" / "reproduction.md").read_text()


def test_data_that_was_not_fetched(tmp_path):
    done = run("reproduce", "bounds", "--folder", tmp_path / "r", "--data", tmp_path)
    assert done.exit_code == 2
    assert "python -m paper data fetch cifar10" in done.output


_SIZES = ("--seeds", "1", "--epsilon", "2", "--steps", "10", "--present", "30", "--absent", "30")
_WITHOUT_EXTRAS = """
import contextlib, io, json, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "kymatio", "sklearn", "ray", "pyarrow", "PIL"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
from paper.__main__ import main
found = []
for arguments in json.loads(sys.argv[1]):
    output, errors = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as leaving:
            found.append((leaving.code, errors.getvalue()))
print(json.dumps(found))
"""


def test_without_the_extras(tmp_path):
    """With the base dependencies only: a sweep runs, and the rest say what to install."""
    cases = {
        ("reproduce", "headline", "--scale", "smoke"): (2, "askgauss[paper]"),
        ("sweep", "--ray", "local", *_SIZES): (2, "askgauss[ray]"),
        ("sweep", "--run", "smoke", *_SIZES): (2, "askgauss[paper]"),
        ("sweep", *_SIZES): (0, "above the truth"),
        ("data", "fetch", "digits"): (2, "askgauss[paper]"),
    }
    calls = [
        [*call, *(() if call[0] == "data" else ("--folder", str(tmp_path / str(number))))]
        for number, call in enumerate(cases)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, json.dumps(calls)],
        capture_output=True,
        text=True,
        env={**os.environ, "ASKGAUSS_DATA": str(tmp_path / "data")},
    )
    assert done.returncode == 0, done.stderr
    for call, (code, said), (found, errors) in zip(
        cases, cases.values(), json.loads(done.stdout), strict=True
    ):
        assert found == code, (call, errors)
        assert said in errors, call
        assert "bug" not in errors, call


@pytest.mark.parametrize("name", ["reproduce", "sweep", "data"])
def test_the_commands_say_what_they_do(name):
    assert run(name, "--help").exit_code == 0


def test_numbers_beyond_reason_are_refused(tmp_path):
    refused = run("sweep", "--seeds", 10**18, "--folder", tmp_path / "s")
    assert refused.exit_code == 2
    assert "seeds" in refused.output
    assert run("reproduce", "no-such-figure", "--folder", tmp_path / "r").exit_code == 2
