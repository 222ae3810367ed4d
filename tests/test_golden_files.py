"""Files of the first schemas, as an earlier askgauss wrote them, are still read, with a note."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import FileFormatError, UnprotectedFileWarning
from askgauss.mechanisms.plans import TreePlan
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


def test_a_result_of_a_test_that_was_replaced_is_refused():
    """`OneRun` took a chosen number of guesses for a fixed one: its bound is another now."""
    with unprotected, pytest.raises(FileFormatError, match="Audit the run again"):
        ag.AuditResult.load(FIRST / "result-one-run.json")


@pytest.mark.parametrize(
    "path",
    sorted({*FIRST.glob("result-*.json")} - {FIRST / "result-one-run.json"}),
    ids=lambda path: path.stem,
)
def test_results(path):
    with unprotected:
        found = ag.AuditResult.load(path)
    stated = json.loads(path.read_text())
    assert found.epsilon_lower == float(stated["epsilon_lower"])
    assert (found.verdict.value if found.verdict else None) == stated["verdict"]


def test_an_unprotected_result_is_still_held_against_its_evidence():
    text = (FIRST / "result-scores.json").read_text()
    assert '"verdict": "VIOLATION"' in text
    for old, new in (
        ('"verdict": "VIOLATION"', '"verdict": "CONSISTENT"'),
        ('"epsilon_lower": ', '"epsilon_lower": 1'),
    ):
        with unprotected, pytest.raises(ag.exceptions.FileFormatError, match="evidence"):
            ag.AuditResult.from_json(text.replace(old, new))
