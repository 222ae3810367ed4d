"""Bets against a claim: the nearest private pair, and that no private mechanism loses to them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import betting


def divergence(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@pytest.mark.parametrize(
    ("a", "b", "epsilon", "delta"),
    [(0.9, 0.1, 1.0, 0.0), (0.02, 1e-4, 2.0, 0.0), (0.6, 0.5, 0.0, 0.01), (0.99, 0.2, 0.3, 0.05)],
)
def test_the_nearest_private_pair_is_that_of_a_dense_search(a, b, epsilon, delta):
    others = np.linspace(1e-7, min(1.0, (1 - delta) / math.exp(epsilon)) - 1e-9, 400_001)[1:]
    edges = math.exp(epsilon) * others + delta
    cost = (
        a * np.log(a / edges)
        + (1 - a) * np.log((1 - a) / (1 - edges))
        + b * np.log(b / others)
        + (1 - b) * np.log((1 - b) / (1 - others))
    )
    near_a, near_b = betting.nearest_private(a, b, epsilon, delta)
    assert near_b == pytest.approx(others[cost.argmin()], rel=1e-2, abs=2e-6)
    assert near_a == pytest.approx(math.exp(epsilon) * near_b + delta)
    found = divergence(a, float(near_a)) + divergence(b, float(near_b))
    assert found <= cost.min() + 1e-12
    assert betting.growth(a, b, epsilon, delta) == pytest.approx(found, rel=1e-9)


def test_a_private_pair_is_its_own_nearest_and_bets_nothing():
    near = betting.nearest_private([0.2, 0.5], [0.1, 0.4], 1.0, 0.0)
    assert np.array_equal(near, [[0.2, 0.5], [0.1, 0.4]])
    assert np.array_equal(betting.growth([0.2], [0.1], 1.0, 0.0), [0.0])


def test_no_private_pair_expects_to_lose_to_a_bet():
    """The mean of a bet's pay-off, over all corners of the null and many alternatives."""
    rng = np.random.default_rng(0)
    tried, largest = 0, 0.0
    while tried < 300:
        epsilon, delta = rng.uniform(0, 4), rng.choice([0.0, 1e-3, 0.05])
        a, b = rng.uniform(0.001, 0.999), 10 ** rng.uniform(-4, -0.01)
        if a <= math.exp(epsilon) * b + delta:
            continue
        tried += 1
        near_a, near_b = betting.nearest_private(a, b, epsilon, delta)
        other = np.append(np.linspace(0, 1, 501), near_b)
        for favoured in (np.minimum(1, math.exp(epsilon) * other + delta), other, 0 * other):
            favoured = np.minimum(favoured, np.minimum(1, math.exp(epsilon) * other + delta))
            mean = favoured * a / near_a + (1 - favoured) * (1 - a) / (1 - near_a)
            mean *= other * b / near_b + (1 - other) * (1 - b) / (1 - near_b)
            largest = max(largest, float(mean.max()))
    assert 1.0 - 1e-9 < largest < 1.0 + 1e-9  # reached at the nearest pair, and nowhere exceeded


def test_wealth_is_the_product_of_likelihood_ratios():
    hits, misses, sizes = [30, 41], [12, 9], [60, 80]
    known = ([20, 50], [6, 18], [40, 100])
    path = betting.log_wealth(hits, misses, sizes, *known, epsilon=[0.2, 5.0], delta=0.01)
    assert path.shape == (2, 2)
    total = 0.0
    for block in range(2):
        seen = known[2][block] + 1.0
        a = betting.wilson_limits(known[0][block] + 0.5, seen, betting._CAUTION)[0]
        b = betting.wilson_limits(known[1][block] + 0.5, seen, betting._CAUTION)[1]
        near_a, near_b = betting.nearest_private(a, b, 0.2, 0.01)
        for k, one, two in ((hits[block], a, near_a), (misses[block], b, near_b)):
            total += stats.binom.logpmf(k, sizes[block], one)
            total -= stats.binom.logpmf(k, sizes[block], two)
        assert path[0, block] == pytest.approx(total, rel=1e-9)
    assert np.array_equal(path[1], [0.0, 0.0])  # nothing is bet against what is not contradicted


def test_wealth_reaches_one_over_the_error_no_more_often_than_the_error():
    """On the boundary of the null, where bets win most often, at an error of a tenth."""
    rng = np.random.default_rng(1)
    epsilon, error, audits, won = 0.7, 0.1, 600, 0
    other = 0.15
    favoured = math.exp(epsilon) * other
    sizes = np.array([40] + [40] * 15)
    for _ in range(audits):
        hits, misses = rng.binomial(sizes, favoured), rng.binomial(sizes, other)
        before = [np.cumsum(item)[:-1] for item in (hits, misses, sizes)]
        path = betting.log_wealth(
            hits[1:], misses[1:], sizes[1:], *before, epsilon=[epsilon], delta=0.0
        )
        won += path.max() >= -math.log(error)
    assert 0 < won <= stats.binom.isf(1e-4, audits, error)


def test_the_ceiling_is_what_all_hits_and_no_other_contradict():
    limit = betting.ceiling(500, delta=0.0, error=0.01)
    wealth = -500 * math.log1p(-math.exp(-limit))  # against the pair (1, e^-epsilon)
    assert wealth == pytest.approx(-math.log(0.01))
    with pytest.raises(InvalidArgumentError, match="trials"):
        betting.ceiling(0, delta=0.0, error=0.01)


def test_the_chance_to_win_rises_with_the_leak_and_is_small_at_the_claim():
    chances = [
        betting.chance_to_win(
            0.5, 0.5 * math.exp(-leak), known=100, blocks=[500] * 8, epsilon=1.0, delta=0.0,
            error=0.01,
        )
        for leak in (1.0, 1.1, 1.25, 1.5)
    ]  # fmt: skip
    assert chances[0] <= 0.03
    assert chances == sorted(chances)
    assert chances[-1] > 0.99


def test_wilson_limits_solve_their_equation():
    low, high = betting.wilson_limits([0, 7, 20], 20, 1.5)
    for limit, share in zip([low[1], high[1]], [0.35, 0.35], strict=True):
        assert abs(share - limit) == pytest.approx(1.5 * math.sqrt(limit * (1 - limit) / 20))
    assert low[0] == 0.0
    assert high[2] == pytest.approx(1.0)
