"""A few audits of every kind of correct run; thousands are ``make calibration``'s."""

from __future__ import annotations

import pytest
from scipy import stats

from askgauss.auditors import SubsampledGaussian
from askgauss.checks import diagnose
from askgauss.results import Consequence, Status
from tests.calibration import transcript_cells

AUDITS, GATE = 9, 0.02


@pytest.mark.parametrize("cell", transcript_cells.CELLS, ids=lambda cell: cell.name)
def test_correct_runs_do_not_alarm(cell):
    """At a gate of one in fifty; over seeds, fails with probability at most 1e-5."""
    method, claim, alarms = SubsampledGaussian(), cell.claim, 0
    for seed in range(AUDITS):
        run = cell.make(seed)
        evidence = method.gather(run, delta=claim.delta, confidence=0.95)
        wrong = [
            item.check
            for item in diagnose(run, claim=claim, gate_error=GATE / 2)
            if item.status is Status.FAIL
            and (item.consequence is Consequence.BREACH or method.concerns(evidence, item))
        ]
        alarms += bool(wrong) or method.rejects(
            evidence, epsilon=claim.epsilon, delta=claim.delta, error=GATE / 2
        )
    assert alarms <= stats.binom.isf(1e-5, AUDITS, GATE)
