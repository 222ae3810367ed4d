"""Pairs of laws against closed forms, quadrature and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from askgauss import accounting
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.composition import Pair, ways_epsilon
from askgauss.stats.gaussian import gdp_epsilon
from askgauss.stats.score_law import subsampled_shift_epsilon


def epsilon_of(present, absent, delta):
    """Slow: bisect epsilon where the hockey stick of listed outcomes is delta, both directions."""
    found = 0.0
    for first, second in ((present, absent), (absent, present)):
        low, high = 0.0, 60.0
        for _ in range(30):
            middle = 0.5 * (low + high)
            rest = np.maximum(first - math.exp(middle) * second, 0.0).sum()
            low, high = (middle, high) if rest > delta else (low, middle)
        found = max(found, low)
    return found


@pytest.mark.parametrize("shift", [0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_one_gaussian_is_the_closed_form_from_below(shift, delta):
    exact = gdp_epsilon(delta, shift)
    bound = Pair.gaussian(shift).epsilon(delta)
    assert exact * 0.995 - 1e-3 <= bound <= exact


@pytest.mark.parametrize(("shift", "times"), [(0.05, 400), (0.5, 16), (1.0, 7)])
def test_composed_gaussians_are_one_of_the_joint_distance(shift, times):
    exact = gdp_epsilon(1e-5, shift * math.sqrt(times))
    assert 0.995 * exact <= Pair.gaussian(shift).composed(times).epsilon(1e-5) <= exact


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(2.576, 0.08192, 2500), (0.8, 0.01, 1000), (1.0, 0.3, 10)]
)
def test_sampled_steps_are_what_the_accountant_has(noise, rate, steps):
    run = {"sampling_rate": rate, "steps": steps, "delta": 1e-5}
    bound = Pair.gaussian(1 / noise).sampled(rate).composed(steps).epsilon(1e-5)
    assert bound <= accounting.dpsgd_epsilon(noise_multiplier=noise, **run)
    assert bound >= 0.99 * accounting.dpsgd_epsilon_lower(signal_to_noise=1 / noise, **run)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_two_places_against_quadrature(shift):
    """Outcomes are cells of the plane, so fine that nothing is lost."""
    edges = np.linspace(-8, 8 + shift, 901)
    here, nothing = (np.diff(stats.norm.cdf(edges - mean)) for mean in (shift, 0.0))
    absent = np.outer(nothing, nothing).ravel()
    present = 0.5 * (np.outer(here, nothing) + np.outer(nothing, here)).ravel()
    exact = epsilon_of(present, absent, 1e-5)
    assert 0.998 * exact <= Pair.gaussian(shift).anywhere(2).epsilon(1e-5) <= exact * (1 + 5e-4)


def test_both_directions_by_hand():
    present, absent = np.array([0.1, 0.3, 0.6]), np.array([0.5, 0.3, 0.2])
    for delta in (1e-6, 0.05, 0.3):
        assert Pair(present, absent).epsilon(delta) == pytest.approx(
            epsilon_of(present, absent, delta), abs=1e-6
        )
        assert Pair(absent[::-1], present[::-1]).epsilon(delta) == pytest.approx(
            epsilon_of(present, absent, delta), abs=1e-6
        )


def test_many_epochs_against_simulation():
    """Twelve places, fifty epochs: the privacy loss of 40,000 simulated runs."""
    rng, noise, places, epochs, delta = np.random.default_rng(5), 1.3, 12, 50, 1e-2
    losses = np.zeros(40_000)
    for _ in range(epochs):
        seen = rng.standard_normal((losses.size, places))
        seen[np.arange(losses.size), rng.integers(0, places, losses.size)] += 1 / noise
        losses += np.log(np.exp(seen / noise - 0.5 / noise**2).mean(axis=1))
    bound = Pair.gaussian(1 / noise).anywhere(places).composed(epochs).epsilon(delta)

    def excess(epsilon):
        return np.maximum(0, 1 - np.exp(epsilon - losses))

    # At the bound the simulated delta is not below the true one, and 1 % above it is not above.
    width = 4 / math.sqrt(losses.size)
    assert excess(bound).mean() + width * excess(bound).std() >= delta
    assert excess(1.01 * bound).mean() - width * excess(1.01 * bound).std() <= delta


@pytest.mark.parametrize(
    ("places", "noise", "least"),
    [(100, 0.5, 5.3965), (1000, 0.5, 3.1339), (10_000, 0.4, 4.0145), (12, 0.5, 7.5128)],
)
def test_the_highest_draw_is_a_lower_bound_in_closed_form(places, noise, least):
    highest = Pair.highest(1 / noise, places).epsilon(1e-5)
    assert highest >= least
    assert Pair.gaussian(1 / noise).anywhere(places).epsilon(1e-5) >= 0.999 * highest
    cuts = np.linspace(-4, 12, 20_001)
    absent = stats.norm.cdf(cuts) ** places
    present = stats.norm.cdf(cuts) ** (places - 1) * stats.norm.cdf(cuts - 1 / noise)
    exact = epsilon_of(np.diff(present), np.diff(absent), 1e-5)
    assert highest == pytest.approx(exact, rel=1e-4)


def test_a_union_over_the_ways_is_below_what_it_bounds():
    for shift, places in ((3.0, 12), (8.0, 100), (20.0, 5)):
        exact = Pair.highest(shift, places).epsilon(1e-5)
        assert 0.9 * exact <= ways_epsilon(shift, math.log(places), 1e-5) <= exact * (1 + 1e-6)


def test_counted_inclusions_are_the_exact_mixture():
    for shift, steps, rate in ((1.0, 20, 0.1), (2.0, 5, 0.5)):
        weights = stats.binom.pmf(np.arange(steps + 1), steps, rate)
        exact = subsampled_shift_epsilon(1e-5, shift, steps=steps, sampling_rate=rate)
        bound = Pair.counted(shift / (rate * steps), weights).epsilon(1e-5)
        assert 0.999 * exact <= bound <= exact * (1 + 1e-9)


def test_nothing_is_lost_or_made():
    run = Pair.gaussian(0.8).anywhere(13).composed(77)
    assert run.size == 13 * 77
    for masses in (run.present, run.absent):
        assert masses.sum() == pytest.approx(1, abs=1e-11)
        assert (masses > 0).all()
    ratios = run.present / run.absent
    assert (np.diff(ratios) >= 0).all()


def test_epsilon_grows_with_the_signal_and_falls_with_delta():
    signals = np.geomspace(0.2, 12.0, 24)
    values = [Pair.gaussian(signal).anywhere(20).composed(5).epsilon(1e-5) for signal in signals]
    assert (np.diff(values) > 0).all()
    run = Pair.gaussian(1.0).anywhere(20).composed(5)
    values = [run.epsilon(delta) for delta in np.geomspace(1e-15, 0.5, 20)]
    assert (np.diff(values) <= 0).all()


def test_what_cannot_be_told_has_epsilon_nought():
    assert Pair.certain().epsilon(1e-5) == 0.0
    assert Pair.gaussian(0.0).anywhere(3).epsilon(1e-5) == 0.0
    assert Pair.gaussian(1.0).sampled(0.0).epsilon(1e-5) == 0.0
    assert Pair.gaussian(1.0).sampled(1e-6).epsilon(1e-5) == 0.0


@pytest.mark.parametrize("shift", [-1.0, 36.0, math.nan])
def test_shifts_beyond_floating_point_are_refused(shift):
    with pytest.raises(InvalidArgumentError, match="shift"):
        Pair.gaussian(shift)
