"""A short part of the calibration of sampling schemes; all of it is in sampling_cells."""

from __future__ import annotations

import pytest

from askgauss.sampling import Poisson
from tests.calibration import sampling_cells, verdicts
from tests.calibration.sampling_cells import CELLS, RUNS, SamplingCell, count


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_bound_is_above_the_truth_at_most_nominally(cell):
    result = count(cell, audits=50, seed=2, composed=1)
    assert result.above <= result.allowed_among(len(CELLS)), result


def test_the_count_would_notice_a_bound_that_is_too_high(monkeypatch):
    """The test above can fail: a 60 % bound passed off as a 95 % one is found out."""
    honest = sampling_cells.lower_signal
    monkeypatch.setattr(
        sampling_cells, "lower_signal", lambda cell, rng, error: honest(cell, rng, 0.4)
    )
    result = count(SamplingCell(Poisson(rate=0.1), 0.7), audits=150, seed=2, composed=0)
    assert result.above > result.allowed_among(len(CELLS))


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_whole_audits_neither_alarm_nor_exceed_the_truth_too_often(run):
    """Six audits of each: nine cells together fail once in 10,000 at their nominal errors."""
    found = verdicts.tally(run, 6, seed=2)
    assert sum(found.verdicts.values()) == 6
    assert set(found.verdicts) <= {"CONSISTENT", "INCONCLUSIVE", "VIOLATION", "INVALID"}
    assert not found.too_loud(len(RUNS))
    assert not found.too_high(len(RUNS))
