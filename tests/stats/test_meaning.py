"""The measured area, and a bound as mu, against plain counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError, NotDefinedError
from askgauss.stats.attack_metrics import AttackMeaning, area_interval
from askgauss.stats.tradeoff import TradeOff


def test_a_gaussian_curve_means_what_two_gaussians_do():
    found = AttackMeaning.of(TradeOff.gaussian(1.3), prior=0.05)
    assert found.advantage == pytest.approx(2 * stats.norm.cdf(0.65) - 1)
    cut = stats.norm.isf(0.01)
    assert found.true_positives[0] == pytest.approx(stats.norm.sf(cut - 1.3))
    assert found.reconstruction == pytest.approx(stats.norm.sf(stats.norm.isf(0.05) - 1.3))
    assert found.area == pytest.approx(stats.norm.cdf(1.3 / math.sqrt(2)), abs=1e-4)


def test_randomised_response_reconstructs_as_often_as_its_bound_allows():
    """One bit told truly with probability e/(1+e): the bound is met."""
    curve = TradeOff.epsilon_delta(1.0, 0.0)
    found = AttackMeaning.of(curve, prior=1 / (1 + math.e))
    assert found.reconstruction == pytest.approx(math.e / (1 + math.e))


def test_the_measured_area_counts_pairs():
    rng = np.random.default_rng(0)
    ones, zeros = rng.integers(0, 6, 40) + 1.0, rng.integers(0, 6, 70) + 0.0
    pairs = np.mean((ones[:, None] > zeros[None, :]) + 0.5 * (ones[:, None] == zeros[None, :]))
    found, low, high = area_interval(ones, zeros, confidence=0.9)
    assert found == pytest.approx(pairs)
    budget = math.log(2 / 0.1) / 40
    for limit in (low, high):
        entropy = found * math.log(found / limit) + (1 - found) * math.log(
            (1 - found) / (1 - limit)
        )
        assert entropy == pytest.approx(budget, rel=1e-6)


def test_the_interval_of_the_area_holds():
    rng = np.random.default_rng(1)
    truth, missed = stats.norm.cdf(1 / math.sqrt(2)), 0
    for _ in range(400):
        _, low, high = area_interval(rng.normal(1, 1, 25), rng.normal(0, 1, 60), confidence=0.8)
        missed += not low <= truth <= high
    assert missed <= stats.binom.isf(1e-4, 400, 0.2)
    with pytest.raises(InvalidArgumentError, match="present"):
        area_interval([], [1.0], confidence=0.9)


def scores(shift, seed):
    rng = np.random.default_rng(seed)
    return ag.CanaryScores.from_groups(
        present=rng.normal(shift, 1, 300), absent=rng.normal(0, 1, 300)
    )


def test_a_result_says_mu_with_an_interval():
    claim = ag.PrivacyClaim(epsilon=9.9973, delta=1e-5)
    outside, below = 0, 0
    for seed in range(60):
        result = ag.audit(
            scores(1.0, seed), claim=claim, auditor=ag.GaussianShift(), diagnostics=False
        )
        found = result.gdp()
        assert found.claimed == pytest.approx(2.0, abs=1e-4)
        assert found.interval[0] < found.lower < found.interval[1]
        outside += not found.interval[0] <= 1.0 <= found.interval[1]
        below += found.interval[1] < 1.0
    assert outside <= stats.binom.isf(1e-4, 60, 0.05)
    assert below <= stats.binom.isf(1e-4, 60, 0.025)


def test_a_method_without_a_gaussian_curve_says_so():
    result = ag.audit(scores(1.0, 0), delta=1e-5, auditor=ag.OneRun(), diagnostics=False)
    with pytest.raises(NotDefinedError, match="OneRun"):
        result.gdp()
