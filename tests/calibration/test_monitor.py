"""A small share of the monitor's calibration, and that it judges as the monitor does."""

from __future__ import annotations

import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.monitor import Monitor
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson
from tests.calibration.monitor_cells import CLEAN, cyclic, every_step, largest_evidence
from tests.monitor.runs import RATE, claimed


@pytest.mark.parametrize(
    ("sampling", "cell"),
    [
        (Poisson(rate=RATE), {}),
        (EveryStep(), {"drawn": every_step}),
        (CyclicPoisson(rate=0.32, cycle=4), {"drawn": cyclic}),
    ],
    ids=["Poisson", "every step", "cyclic"],
)
def test_many_runs_at_once_are_judged_as_the_monitor_judges_one(sampling, cell):
    monitor = Monitor(claim=claimed(), on_alarm=lambda alarm: None)
    canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
    monitor.attach(canaries, np.arange(200), sampling=sampling)
    peaks = largest_evidence(
        np.random.default_rng(0), 3, 120, present=100, absent=100, show=monitor.observe, **cell
    )
    # What is published of the evidence has two decimals.
    assert max(monitor.course().evidence) == pytest.approx(peaks[0] / math.log(10.0), abs=0.0051)
    assert monitor.steps == 120


@pytest.mark.parametrize("name", [name for name in CLEAN if "100 / 100" in name])
def test_clean_runs_alarm_at_most_as_often_as_stated(name):
    """Judged after each of 200 steps; at errors that 100 runs can count."""
    seed = list(CLEAN).index(name)
    peaks = largest_evidence(np.random.default_rng(seed), 100, 200, **CLEAN[name])
    for error in (0.1, 0.05):
        alarms = int(np.count_nonzero(peaks >= -math.log(error)))
        assert alarms <= 100 * error + 3.0 * math.sqrt(100 * error)
