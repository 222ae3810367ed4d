"""E-values against brute force, their means under the null, and how they add up over a run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from askgauss.stats import betting as e


def _mean_and_error(values):
    return values.mean(), values.std() / math.sqrt(values.size)


@pytest.mark.parametrize("ratio", [0.99, 0.8, 0.1])
def test_noise_is_the_likelihood_ratio(ratio):
    values = np.random.default_rng(0).normal(size=7)
    slow = stats.norm.logpdf(values, 0, ratio).sum() - stats.norm.logpdf(values).sum()
    assert e.noise_log_e(7, float(values @ values), ratio) == pytest.approx(slow, rel=1e-10)


@pytest.mark.parametrize(("noise", "background"), [(1.0, 0.0), (1.4, 0.0), (1.0, 2.0), (3.0, 1.0)])
def test_noise_of_at_least_the_claim_wins_nothing(noise, background):
    """Whatever else was left in only makes the sum of squares larger."""
    generator = np.random.default_rng(1)
    values = generator.normal(background, noise, (200_000, 6))
    found = np.exp(e.noise_log_e(6, (values**2).sum(axis=1), 0.85))
    mean, error = _mean_and_error(found)
    assert mean < 1.0 + 4.0 * error
    if noise == 1.0 and background == 0.0:
        assert mean > 1.0 - 4.0 * error


def test_noise_below_the_claim_is_found():
    values = np.random.default_rng(2).normal(0, 0.9, (1000, 400))
    assert np.exp(e.noise_log_e(400, (values**2).sum(axis=1), 0.9)).mean() > 10.0


@pytest.mark.parametrize(("count", "rate", "odds"), [(3, 0.2, 1.5), (0, 0.9, 4.0), (10, 0.01, 1.1)])
def test_rate_is_the_likelihood_ratio(count, rate, odds):
    other = odds * rate / (1.0 - rate + odds * rate)
    slow = stats.binom.logpmf(count, 10, other) - stats.binom.logpmf(count, 10, rate)
    assert e.rate_log_e(count, 10, rate, odds) == pytest.approx(slow, rel=1e-9)


def test_rate_is_exact_under_the_claim_and_wins_nothing_below():
    counts = np.arange(51)
    for rate, most in ((0.1, 1.0), (0.05, 0.99)):
        mean = stats.binom.pmf(counts, 50, rate) @ np.exp(e.rate_log_e(counts, 50, 0.1, 1.5))
        assert mean <= most + 1e-9


@pytest.mark.parametrize("below", [0.0, 1e-3, 0.05, 0.4, 1.0, 3.0, 30.0])
def test_signs_win_nothing_whatever_the_sizes(below):
    """An observation of any size, up or down alike, pushed down or not: by all sizes and slopes."""
    size = np.concatenate([np.linspace(0.0, 60.0, 6001), np.geomspace(1e-6, 1e3, 500)])[:, None]
    slope = np.array([1e-3, 0.025, 0.1, 0.5, 1.0, 4.0])
    logs = [e.sign_log_e(x, x * x, slope) for x in (size - below, -size - below)]
    mean = np.exp(np.logaddexp(*logs) - math.log(2.0))
    assert mean.max() <= 1.0 + 1e-12
    assert mean.max() > 0.4


@pytest.mark.parametrize("deviation", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(
    "means", [[0, 0, 0, 0], [-0.4, -0.4, -0.4, -0.4], [0, -6, 0, -1]], ids=["at", "below", "uneven"]
)
def test_contribution_of_at_most_one_wins_nothing_whatever_the_noise(deviation, means):
    generator = np.random.default_rng(3)
    values = generator.normal(means, deviation, (200_000, 4))
    values[:, 2:] *= 10.0  # and it may differ from one coordinate to the other
    for slope in (0.1, 0.5):
        found = np.exp(e.sign_log_e(values.sum(1), (values**2).sum(1), slope))
        mean, error = _mean_and_error(found)
        assert mean < 1.0 + 4.0 * error


def test_a_mean_above_is_found_as_fast_as_said():
    """Twenty planted canaries, each half a clip norm too high, in noise of 2.576."""
    lean = 0.5 / 2.576
    values = np.random.default_rng(4).normal(lean, 1.0, (20_000, 20))
    logs = e.sign_log_e(values.sum(1), (values**2).sum(1), lean / (1.0 + lean**2))
    assert logs.mean() == pytest.approx(10.0 * lean**2 / (1.0 + lean**2), rel=0.1)


def test_a_known_deviation_that_is_too_small_would_be_wrong():
    """What the contribution's e-value would be with the claim plugged in where noise is more."""
    planted = np.random.default_rng(5).normal(1.0, 3.0, (200_000, 4)).sum(axis=1)
    plugged = np.exp(0.5 * (planted - 4) - 0.125 * 4)  # c = 1.5, noise taken for 1
    assert plugged.mean() > 10.0


def test_wealth_is_the_sum_over_all_beginnings():
    logs = np.random.default_rng(6).normal(-0.1, 0.5, (9, 3))
    wealth = np.full(3, -np.inf)
    weight = np.log([0.5, 0.3, 0.2])
    for step, row in enumerate(logs, start=1):
        wealth = e.advance(wealth, weight, step, row)
        slow = sum(
            np.exp(logs[start - 1 : step].sum(axis=0)) / (start * (start + 1))
            for start in range(1, step + 1)
        )
        assert np.exp(wealth - weight) == pytest.approx(slow, rel=1e-9)
        joint = math.log(float(np.exp(weight) @ slow) + 1.0 / (step + 1))
        assert e.log_evidence(wealth, step) == pytest.approx(joint, rel=1e-9)


def test_evidence_neither_overflows_nor_vanishes():
    weight = np.log([0.5, 0.5])
    wealth = e.advance(np.full(2, -np.inf), weight, 1, np.array([5000.0, -5000.0]))
    assert e.log_evidence(wealth, 1) == pytest.approx(5000.0 + math.log(0.25))
    assert e.log_evidence(np.full(2, -np.inf), 1) == pytest.approx(-math.log(2.0))


def test_a_late_fault_costs_only_the_logarithm_of_its_beginning():
    """A product from the first step on would never come back from what it lost before."""
    wealth, weight = np.full(1, -np.inf), np.zeros(1)
    for step in range(1, 1004):
        wealth = e.advance(wealth, weight, step, np.array([-5.0 if step <= 1000 else 10.0]))
    assert e.log_evidence(wealth, 1003) > 30.0 - 2.0 * math.log(1002)


def test_crossing_is_as_rare_as_ville_says():
    """2,000 clean runs of 300 steps, judged after every step, at an error that can be counted."""
    generator = np.random.default_rng(7)
    ratios, weight = np.array([0.9, 0.7]), np.log([0.5, 0.5])
    crossed = np.zeros(2000, dtype=bool)
    wealth = np.full((2, 2000), -np.inf)
    for step in range(1, 301):
        square = generator.chisquare(10, 2000)
        logs = e.noise_log_e(10, square, ratios[:, None])
        wealth = e.advance(wealth, weight[:, None], step, logs)
        joint = np.logaddexp.reduce(wealth, axis=0)
        crossed |= np.logaddexp(joint, -math.log(step + 1)) >= math.log(10.0)
    assert 0 < crossed.sum() <= 200 + 3 * math.sqrt(180)
