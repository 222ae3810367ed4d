"""A share of ``make kills``: what was killed ends as if it never was, or says that it cannot."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kills import engine
from tests.kills.runs import RUNS, Restarted

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@pytest.mark.parametrize("name", RUNS)
def test_killed_runs_end_as_if_they_never_were(name):
    outcome = engine.kill_again_and_again(name, kills=2, seed=1)
    assert not outcome.failures
    assert outcome.kills == 2


def test_what_the_engine_calls_a_failure(tmp_path, monkeypatch):
    """It must be able to fail: a run that counts a step twice when it is started again."""

    def run(folder: Path) -> None:
        place = folder / "steps"
        for step in range(5):
            before = place.read_text() if place.exists() else ""
            place.write_text(f"{before}{step} ")

    forgetful = Restarted(run, lambda folder: (folder / "steps").read_text())
    monkeypatch.setitem(engine.RUNS, "forgetful", forgetful)
    outcome = engine.kill_again_and_again("forgetful", kills=6, seed=0)
    assert outcome.kills == 6
    assert "another answer" in outcome.lives
    assert outcome.failures
    monkeypatch.setitem(engine.RUNS, "forgetful", replace(forgetful, run=lambda folder: 1 / 0))
    assert "does not run" in engine.kill_again_and_again("forgetful", 1, 0).failures[0]
    code, _ = engine.start(forgetful, tmp_path, kill_at=2)
    assert code == -signal.SIGKILL
