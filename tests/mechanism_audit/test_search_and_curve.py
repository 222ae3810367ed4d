"""The worst pair, and the whole curve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError
from askgauss.mechanism_audit import search_neighbours, tradeoff_curve
from askgauss.stats.tradeoff import TradeOff
from tests.mechanism_audit.exam import gaussian_noise, laplace

CLAIM = ag.PrivacyClaim(epsilon=1.0, delta=0.0)


def test_the_search_finds_the_pair_that_shows_the_leak():
    """Half the noise, visible only where the inputs are a whole record apart."""
    mechanism = laplace(0.5)
    weak = ag.audit_mechanism(mechanism, 0.0, 0.2, claim=CLAIM, max_samples=3000)
    assert weak.verdict is not ag.Verdict.VIOLATION
    found = search_neighbours(
        mechanism, [(0.0, gap) for gap in (0.1, 0.2, 1.0, 0.3, 0.05)], budget=6000
    )
    assert found.neighbour == 1.0
    assert found.place == 2
    assert found.samples <= 6000
    result = ag.audit_mechanism(mechanism, found.data, found.neighbour, claim=CLAIM)
    assert result.verdict is ag.Verdict.VIOLATION


def test_pairs_may_be_drawn():
    found = search_neighbours(
        laplace(1.0), lambda rng: (0.0, rng.uniform(0.1, 1.0)), budget=8000, pairs=8, seed=3
    )
    assert len(found.leaks) == 8
    assert found.neighbour > 0.6


def test_bad_searches_are_refused():
    with pytest.raises(InvalidArgumentError, match="pair"):
        search_neighbours(laplace(1.0), [])
    with pytest.raises(InvalidArgumentError, match="budget >= 480"):
        search_neighbours(laplace(1.0), [(0.0, 1.0), (0.0, 0.5)] * 2, budget=479)
    with pytest.raises(InvalidArgumentError, match="differ"):
        search_neighbours(laplace(1.0), [(0.0, 0.0)])


def test_the_bound_of_a_curve_lies_above_the_truth():
    truth = TradeOff.gaussian(1.0)
    broken = 0
    for seed in range(30):
        found = tradeoff_curve(
            gaussian_noise(1.0), 0.0, 1.0, samples=600, confidence=0.9, seed=seed
        )
        broken += found.contradicts(truth)
    assert broken <= stats.binom.isf(1e-4, 30, 0.1)


def test_the_estimate_follows_the_curve_and_contradicts_a_smaller_claim():
    found = tradeoff_curve(gaussian_noise(1.0), 0.0, 1.0, samples=30_000)
    assert np.all(np.diff(found.alpha) >= 0)
    assert np.all(np.diff(found.beta) <= 0)
    truth = TradeOff.gaussian(1.0).beta_at(np.clip(found.alpha, 0, 1))
    assert np.abs(found.beta - truth).max() < 0.05
    assert found.contradicts(TradeOff.gaussian(0.7))
    assert not found.contradicts(TradeOff.gaussian(1.1))


def test_a_mechanism_that_says_nothing_has_the_curve_of_a_coin():
    class Silent:
        def sample(self, data, n):
            return np.zeros(n)

    found = tradeoff_curve(Silent(), 0.0, 1.0, samples=300)
    assert found.score == "none"
    assert not found.contradicts(TradeOff.epsilon_delta(0.0, 0.0))
