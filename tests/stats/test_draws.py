"""Bets are fair, and uniform draws uniform."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from askgauss.stats.betting import (
    SamplerBets,
    extreme_p_value,
    mean_p_value,
    spread_p_value,
    trend_p_value,
    uniform_draws,
)


@pytest.mark.parametrize(
    ("pool", "inside", "drawn"), [(10, 4, 3), (100, 50, 20), (50, 49, 2), (7, 1, 6), (1000, 5, 60)]
)
def test_wealth_has_mean_one_at_most(pool, inside, drawn):
    """Summed over every outcome of one step."""
    mean = 0.0
    for met in range(min(inside, drawn) + 1):
        bets = SamplerBets(1)
        bets.add_draw(np.array([met]), np.array([inside]), pool, drawn)
        mean += stats.hypergeom.pmf(met, pool, inside, drawn) * np.exp(bets.log_wealth)
    assert (mean <= 1 + 1e-12).all()
    assert mean.max() > 0.9


def test_coins_are_a_fair_game():
    mean = 0.0
    for met in range(21):
        bets = SamplerBets(1)
        bets.add_coins(met, 20, 0.3)
        mean += stats.binom.pmf(met, 20, 0.3) * np.exp(bets.log_wealth)
    assert mean == pytest.approx(1, abs=1e-12)


def test_a_set_that_is_avoided_or_preferred_is_found():
    avoided, preferred = SamplerBets(2), SamplerBets(2)
    for _ in range(200):
        avoided.add_draw(np.array([0, 3]), np.array([50, 50]), 1000, 60)
        preferred.add_draw(np.array([3, 6]), np.array([50, 50]), 1000, 60)
    assert avoided.p_value() < 1e-50
    assert avoided.strongest() == 0
    assert preferred.p_value() < 1e-50
    assert preferred.strongest() == 1
    assert avoided.met[0] == 0
    assert avoided.expected[0] == pytest.approx(600)


def test_bets_rarely_win_by_chance():
    rng, low = np.random.default_rng(1), 0
    for _ in range(200):
        bets = SamplerBets(3)
        for _ in range(50):
            inside = rng.integers(1, 60, 3)
            bets.add_draw(rng.hypergeometric(inside, 100 - inside, 20), inside, 100, 20)
        low += bets.p_value() < 0.05
    assert low <= stats.binom.isf(1e-4, 200, 0.05)


@pytest.mark.parametrize(
    "test", [spread_p_value, mean_p_value, trend_p_value, extreme_p_value], ids=lambda f: f.__name__
)
def test_p_values_of_discrete_numbers_are_uniform(test):
    rng, p_values = np.random.default_rng(2), []
    for _ in range(500):
        values = rng.binomial(8, 0.2, 60)
        below, upto = (stats.binom.cdf(values - offset, 8, 0.2) for offset in (1, 0))
        p_values.append(test(uniform_draws(values, below, upto)))
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_numbers_that_do_not_vary_are_found():
    values = np.full(60, 50)
    below, upto = (stats.binom.cdf(values - offset, 1000, 0.05) for offset in (1, 0))
    assert spread_p_value(uniform_draws(values, below, upto)) < 1e-20


def test_the_same_numbers_get_the_same_answer():
    values, below, upto = np.array([1, 2]), np.array([0.1, 0.5]), np.array([0.3, 0.8])
    assert (uniform_draws(values, below, upto) == uniform_draws(values, below, upto)).all()
