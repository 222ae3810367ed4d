"""A run killed again and again ends in the transcript of a run that never was."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import askgauss as ag
from tests import forks

# Two kinds of death: between the noise and the step, and half-way through writing a checkpoint.
DEATHS = [(7, "mid"), (11, "save")]


def worker(folder, kill_at=-1, where="never"):
    script = Path(__file__).with_name("resume_worker.py")
    return forks.ran(script, str(folder), str(kill_at), where)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_killed_and_resumed_is_the_same_transcript(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for place in (whole, broken):
        place.mkdir()
    done = worker(whole)
    assert done.returncode == 0, done.stderr
    for death in DEATHS:
        done = worker(broken, *death)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (broken / "transcript.npz").exists()
    done = worker(broken)
    assert done.returncode == 0, done.stderr
    first, second = (ag.Transcript.load(place / "transcript.npz") for place in (whole, broken))
    for name, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[name], err_msg=name)
    assert first.facts == second.facts
    assert first.number_of_steps == first.facts.accounted_steps == 14
    assert first.canaries.planted.sum() > 50
