"""A small share of the calibration of snapshots and of mechanisms read as scores."""

from __future__ import annotations

import pytest
from scipy.stats import binom

import askgauss as ag
from askgauss.mechanism_audit import mechanism_scores
from tests.calibration.final_cells import DELTA, SNAPSHOTS, above
from tests.mechanism_audit.exam import BROKEN, CORRECT


@pytest.mark.parametrize("cell", SNAPSHOTS, ids=lambda cell: cell.name)
def test_bounds_of_snapshots_are_above_the_truth_as_rarely_as_stated(cell):
    """More than allowed with probability 1e-4."""
    audits = 20
    wrong, share = above(cell, audits, seed=1)
    assert wrong <= binom.isf(1e-4, audits, 0.05)
    assert share > (0.0 if "few" in cell.name else 0.4)


def named(cases, name):
    return next(case for case in cases if case.name == name)


@pytest.mark.parametrize("name", ["Laplace", "randomised response", "sparse vector, Lyu 1"])
def test_a_mechanism_read_as_scores_is_not_overstated(name):
    case = named(CORRECT, name)
    wrong = 0
    for seed in range(15):
        scores = mechanism_scores(case.mechanism, case.data, case.neighbour, samples=300, seed=seed)
        bound = ag.audit(
            scores, delta=case.claim.delta, auditor=ag.ClopperPearson(), diagnostics=False
        ).epsilon_lower
        wrong += bound > case.epsilon
    assert wrong <= binom.isf(1e-4, 15, 0.05)


def test_all_auditors_compare_on_a_broken_mechanism():
    case = named(BROKEN, "Laplace, noise two thirds")
    scores = mechanism_scores(case.mechanism, case.data, case.neighbour, samples=20_000)
    table = ag.compare(scores, delta=DELTA, auditors=[ag.ClopperPearson(), ag.OneRun()])
    assert all(row.bound > 0.9 * case.epsilon for row in table.rows)
    assert max(row.bound for row in table.rows) > case.epsilon
