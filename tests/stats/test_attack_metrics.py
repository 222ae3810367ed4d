"""Figures of an attack: against brute force, and how often their intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.attack_metrics import attack_metrics


def test_against_brute_force_with_ties():
    rng = np.random.default_rng(1)
    ones, zeros = rng.integers(0, 8, 60) + 1.0, rng.integers(0, 8, 45) * 1.0
    found = attack_metrics(ones, zeros)
    pairs = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    assert found.auc.value == pytest.approx(pairs.mean())
    gap = max((ones >= t).mean() - (zeros >= t).mean() for t in np.arange(-1, 12))
    assert found.advantage.value == pytest.approx(gap)
    for rate in (0.05, 0.1, 0.3, 0.9):
        best = max((ones > t).mean() for t in [*zeros, *ones] if (zeros > t).mean() <= rate)
        # The threshold is one of the non-members: never more true positives than the best one.
        at = found.tpr_at(rate)
        assert at.value <= best + 1e-12
        allowed = int(rate * zeros.size)
        assert at.value == pytest.approx((ones > np.sort(zeros)[::-1][allowed]).mean())


def test_too_few_non_members_for_a_rate_is_said():
    found = attack_metrics(np.arange(50.0), np.arange(50.0))
    assert found.tpr_at(0.01) is None
    assert found.tpr_at(0.02) is not None


def test_separated_groups():
    found = attack_metrics(np.arange(10.0, 60.0), np.arange(-50.0, 0.0))
    assert found.auc.value == 1.0
    assert 0.9 < found.auc.lower < 1.0
    assert found.advantage.value == 1.0


def test_intervals_hold():
    """400 draws at 95 %: a correct interval misses more than 38 with probability 1e-4."""
    rng = np.random.default_rng(2)
    truth = norm.cdf(1.0 / np.sqrt(2.0))
    gap = 2.0 * norm.cdf(0.5) - 1.0
    missed = np.zeros(3)
    for _ in range(400):
        found = attack_metrics(rng.normal(1, 1, 150), rng.normal(0, 1, 200))
        at = found.tpr_at(0.1)
        threshold_rate = norm.sf(norm.isf(0.1) - 1.0)
        missed += [
            not found.auc.lower <= truth <= found.auc.upper,
            not found.advantage.lower <= gap <= found.advantage.upper,
            # Given its threshold the interval is exact; the threshold itself varies too.
            not at.lower - 0.12 <= threshold_rate <= at.upper + 0.12,
        ]
    assert missed.max() <= binom.isf(1e-4, 400, 0.05)


@pytest.mark.parametrize("fpr", [0.0, 1.0, float("nan")])
def test_bad_rates(fpr):
    with pytest.raises(InvalidArgumentError):
        attack_metrics([0.0, 1.0], [0.0, 1.0]).tpr_at(fpr)
