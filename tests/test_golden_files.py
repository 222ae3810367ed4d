"""Files of the first schemas, as an earlier askgauss wrote them, are still read, with a note."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss.cli.run_folders import RunFolder as CommandFolder
from askgauss.exceptions import FileFormatError, UnprotectedFileWarning
from askgauss.mechanisms.plans import TreePlan
from askgauss.paper import sweep
from askgauss.paper.run_folder import RunFolder
from askgauss.recording.inputs import load_audit_input
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.step_store import StepStore

FIRST = Path(__file__).parent / "golden" / "first"
CANARIES = ag.DiracCanaries(present=10, absent=14, dimension=200, seed=3)
unprotected = pytest.warns(UnprotectedFileWarning, match="unprotected")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("scores.npz", "CanaryScores(present=30, absent=30)"),
        ("scores-full.npz", "CanaryScores(present=30, absent=30)"),
        ("transcript.npz", "Transcript(steps=8, present=10, absent=14, background='known')"),
        (
            "linear-transcript.npz",
            "LinearTranscript(steps=8, release='prefixes', present=10, absent=14, "
            "background='known')",
        ),
    ],
)
def test_scores_and_transcripts(name, shown, tmp_path):
    with unprotected:
        found = load_audit_input(FIRST / name)
    assert repr(found) == shown
    with np.load(FIRST / name) as content:
        key = "score" if "score" in content else "canaries.total"
        numbers = found.score if key == "score" else found.canaries.total
        np.testing.assert_array_equal(numbers, content[key])
    found.save(tmp_path / "again.npz")
    assert repr(load_audit_input(tmp_path / "again.npz")) == shown


@pytest.mark.parametrize("kind", [np.bool_, np.float32, np.str_])
def test_a_first_checkpoint_with_noise_of_another_type_is_refused(kind, tmp_path):
    """What came later is told from it, before the parts themselves are looked at."""
    shutil.copy(FIRST / "steps", tmp_path / "steps")
    recorder = ag.Recorder(
        CANARIES, sampling_rate=0.5, noise_multiplier=1.0, store=tmp_path / "steps"
    )
    with np.load(FIRST / "recorder.npz") as content:
        arrays = dict(content)
    arrays["rows.noise_multiplier"] = arrays["rows.noise_multiplier"].astype(kind)
    np.savez(tmp_path / "recorder.npz", **arrays)
    with unprotected, pytest.raises(FileFormatError, match=r"rows\.noise_multiplier"):
        recorder.load(tmp_path / "recorder.npz")


def test_a_run_goes_on_from_its_first_checkpoint_and_store(tmp_path):
    shutil.copy(FIRST / "steps", tmp_path / "steps")
    recorder = ag.Recorder(
        CANARIES, sampling_rate=0.5, noise_multiplier=1.0, store=tmp_path / "steps"
    )
    with unprotected:
        recorder.load(FIRST / "recorder.npz")
    assert recorder.steps == 6
    recorder.observe(np.zeros(24), background=0, watch=np.zeros(CANARIES.watch.size))
    assert recorder.transcript().number_of_steps == 7
    with unprotected:
        assert StepStore(tmp_path / "steps").number_of_steps == 7
    linear = LinearRecorder(CANARIES, TreePlan(steps=8, estimator="honaker", release="prefixes"))
    with unprotected:
        linear.load(FIRST / "linear-recorder.npz")
    assert linear.steps == 6


def test_run_folders_and_sweeps(tmp_path):
    with unprotected:
        assert CommandFolder(FIRST).read().command == "demo"
    shutil.copytree(FIRST / "run", tmp_path / "run")
    with unprotected, RunFolder(tmp_path / "run", {"seed": 1}) as folder:
        assert folder.read_json("results/accuracy.json") == {"head": {"10": 0.5}}
        folder.write_json("results/more.json", [1.0])
        assert folder.read_json("results/more.json") == [1.0]
    with unprotected:
        assert len(sweep.read_table(FIRST / "sweep" / "results" / "results.parquet")) == 2
    shutil.copytree(FIRST / "sweep", tmp_path / "sweep")
    grid = sweep.Grid(
        epsilons=(1.0,), seeds=2, auditors=("gaussian-shift",), steps=10, present=50, absent=50
    )
    with unprotected:
        table = sweep.run(grid, folder=tmp_path / "sweep")
    assert len(sweep.read_table(table)) == 2
