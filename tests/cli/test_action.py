"""The GitHub action as what it runs: its script, in bash, with the inputs as variables."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import askgauss as ag

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "action"
PACK = {"result.json", "statement.json", "bom.json", "findings.sarif", "model-card.md"}

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the sources")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A consistent run, one that leaks, and a leaking one of few canaries."""
    folder = tmp_path_factory.mktemp("runs")
    for name, noise, canaries in (("good", 2.0, 200), ("leak", 0.6, 200), ("few", 0.6, 20)):
        ag.simulate_dpsgd(
            steps=60,
            sampling_rate=0.2,
            noise_multiplier=noise,
            present=canaries,
            absent=canaries,
            seed=0,
        ).save(folder / f"{name}.npz")
    (folder / "weights").write_bytes(b"new weights")
    (folder / "noise.npz").write_bytes(b"PK nothing that can be read")
    return folder


@pytest.fixture
def act(runs, tmp_path):
    """Runs the script in an empty folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "askgauss"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m askgauss "$@"\n')
    program.chmod(0o755)

    def run(**inputs):
        given = {"EPSILON": "8", "DELTA": "1e-5", "LENIENT": "false", "GATE_ERROR": "0.001"}
        given |= {"OUTPUT": "out", "SUBJECT": str(runs / "weights"), **inputs}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
        # As a composite action's shell is called.
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", SCRIPT],
            env={**os.environ, **given, **summary, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


def outcome(folder):
    return json.loads((folder / "evidence" / "statement.json").read_text())["predicate"]["result"]


def test_codes_are_those_of_the_command_line(act, runs, tmp_path):
    done = act(SOURCE=str(runs / "good.npz"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out" / "evidence").iterdir()} == PACK
    assert outcome(tmp_path / "out") == "PASSED"
    assert "Consistent" in (tmp_path / "summary.md").read_text()
    # What is left of that run is not taken for a result of a source that cannot be read.
    (runs / "weights").write_bytes(b"newer weights")
    done = act(SOURCE=str(runs / "noise.npz"))
    assert done.returncode == 2
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    done = act(SOURCE=str(runs / "leak.npz"))
    assert done.returncode == 1, done.stderr
    assert outcome(tmp_path / "out") == "FAILED"
    bound = json.loads((tmp_path / "out" / "evidence" / "statement.json").read_text())["subject"]
    digest = hashlib.sha256(b"newer weights").hexdigest()
    assert bound == [{"name": "weights", "digest": {"sha256": digest}}]


def test_a_violation_of_few_canaries_stays_one(act, runs, tmp_path):
    done = act(SOURCE=str(runs / "few.npz"))
    assert done.returncode == 1, done.stderr
    assert "may be published" in done.stderr
    assert not (tmp_path / "out" / "evidence").exists()


def test_evidence_that_cannot_be_written_is_no_success(act, runs):
    assert act(SOURCE=str(runs / "good.npz"), SUBJECT="none").returncode == 2


@pytest.mark.parametrize(
    "inputs",
    [
        {"SOURCE": "--help"},
        {"SOURCE": "--version"},
        {"SOURCE": "-"},
        {"SOURCE": ""},
        {"OUTPUT": ""},
        {"SOURCE": "missing.npz"},
        {"EPSILON": "8 --lenient"},
        {"DELTA": "1e-5\n--lenient"},
        {"EPSILON": "--help"},
        {"DELTA": "--help"},
        {"EPSILON": ""},
        {"GATE_ERROR": "--help"},
        {"LENIENT": "yes"},
        {"LENIENT": "--help"},
    ],
    ids=str,
)
def test_nothing_but_values_is_taken(act, runs, inputs, tmp_path):
    # The folder has one file that could be audited: nothing is not its name.
    (tmp_path / "run.npz").write_bytes((runs / "good.npz").read_bytes())
    done = act(**{"SOURCE": str(runs / "good.npz"), **inputs})
    assert done.returncode == 2, done.stdout
    assert not list(tmp_path.rglob("statement.json"))


def test_folders_and_subjects_may_have_odd_names(act, runs, tmp_path):
    (tmp_path / "--help").write_bytes(b"x")
    done = act(SOURCE=str(runs / "good.npz"), OUTPUT="-x y", SUBJECT="--help")
    assert done.returncode == 0, done.stderr
    assert outcome(tmp_path / "-x y") == "PASSED"


def test_action_yml_runs_this_script_with_every_input():
    text = (ROOT / "action.yml").read_text()
    inputs = re.findall(r"^  ([a-z-]+):$", text.partition("runs:")[0], re.MULTILINE)
    assert [name.replace("-", "_").upper() for name in inputs] == [
        "SOURCE", "EPSILON", "DELTA", "LENIENT", "GATE_ERROR", "OUTPUT", "SUBJECT",
    ]  # fmt: skip
    for name in inputs:
        assert f"{name.replace('-', '_').upper()}: ${{{{ inputs.{name} }}}}" in text
    # Inputs go in as variables, never into the text of a script.
    scripts = [line for line in text.splitlines() if re.match(r"\s*(- )?run:", line)]
    assert len(scripts) == 2
    assert not any("${{" in line for line in scripts)
    assert '"$GITHUB_ACTION_PATH/.ci/action"' in scripts[1]


def test_hooks_end_their_options():
    entries = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-hooks.yaml").read_text())
    assert entries == ["askgauss check-results --", "askgauss check-results --refuse-private --"]
