"""Trade-off curves against closed forms, brute force, and their own promises."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askgauss.exceptions import InvalidArgumentError, ScoresError
from askgauss.stats import gaussian
from askgauss.stats.tradeoff import TradeOff

ALPHA = np.concatenate(([0.0], np.geomspace(1e-12, 0.1, 40), np.linspace(0.11, 1.0, 90)))


def lines(alpha, epsilons, deltas):
    """The curve of some guarantees by definition: the highest of all their lines."""
    best = np.zeros_like(alpha)
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        best = np.maximum(best, 1 - delta - math.exp(epsilon) * alpha)
        best = np.maximum(best, math.exp(-epsilon) * (1 - delta - alpha))
    return best


def curves():
    levels = np.linspace(0.0, 12.0, 500)
    rng = np.random.default_rng(3)
    return {
        "gaussian": TradeOff.gaussian(1.3),
        "pure": TradeOff.epsilon_delta(2.0, 0.0),
        "approximate": TradeOff.epsilon_delta(1.0, 0.05),
        "profile": TradeOff.from_profile(levels, gaussian.gdp_delta(levels, 1.3)),
        "empirical": TradeOff.empirical(
            rng.normal(2.0, 1.0, 3000), rng.normal(size=4000), confidence=0.9
        ),
        "chance": TradeOff.gaussian(0.0),
        "nothing": TradeOff.empirical([0.0, 1.0], [0.0, 1.0], confidence=0.9),
    }


@pytest.mark.parametrize("name", curves())
def test_every_curve_is_a_symmetric_trade_off_curve(name):
    curve = curves()[name]
    beta = curve.beta_at(ALPHA)
    assert np.all((beta >= 0.0) & (beta <= 1.0 - ALPHA + 1e-15))
    assert np.all(np.diff(beta) <= 1e-15)
    slopes = np.diff(beta) / np.diff(ALPHA)
    assert np.all(np.diff(slopes) >= -1e-4 * np.abs(slopes[1:]) - 1e-4)
    # Its own inverse, where it is strictly decreasing.
    inside = (beta > 1e-9) & (beta < curve.beta_at(0.0))
    np.testing.assert_allclose(curve.beta_at(beta[inside]), ALPHA[inside], rtol=1e-6, atol=1e-12)
    # The inverse blow-up is the least false positive rate at which the true positive rate is met.
    power = np.linspace(0.0, 1.0, 101)
    least = curve.inverse_blow_up(power)
    assert np.all(1.0 - curve.beta_at(least) >= power - 1e-12)
    sooner = np.maximum(least - 1e-6, 0.0)
    assert np.all((1.0 - curve.beta_at(sooner) <= power) | (least == 0.0))
    alpha, drawn = curve.points()
    assert alpha[0] == 0.0
    assert alpha[-1] == 1.0
    assert drawn[-1] == 0.0
    assert np.all(np.diff(alpha) >= 0.0)
    np.testing.assert_allclose(curve.beta_at(alpha), drawn, atol=1e-12)


@pytest.mark.parametrize("name", curves())
def test_conversions_agree_with_the_curve(name):
    curve = curves()[name]
    alpha = np.concatenate(([0.0], np.geomspace(1e-12, 1.0, 200_001)))
    beta = curve.beta_at(alpha)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        brute = max(0.0, np.max(1.0 - beta - math.exp(epsilon) * alpha))
        assert brute - 1e-12 <= curve.delta_at(epsilon) < brute + 2e-5  # the grid misses corners
    assert curve.advantage() == curve.delta_at(0.0)
    for delta in (1e-5, 1e-2, 0.2):
        epsilon = curve.epsilon_at(delta)
        assert epsilon >= 0.0
        if 0.0 < epsilon < math.inf:
            assert curve.delta_at(epsilon) == pytest.approx(delta, rel=1e-9)
            assert curve.delta_at(epsilon * (1 - 1e-6)) > delta * (1 - 1e-9)
        elif epsilon == 0.0:
            assert curve.delta_at(0.0) <= delta
        else:
            assert 1.0 - curve.beta_at(0.0) > delta


def test_gaussian_closed_form():
    curve = TradeOff.gaussian(1.5876)
    for alpha in (1e-12, 1e-3, 0.3, 0.999):
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(alpha))
        exact = mpmath.ncdf(quantile - mpmath.mpf("1.5876"))
        assert curve.beta_at(alpha) == pytest.approx(float(exact), rel=1e-9)
        assert curve.inverse_blow_up(alpha) == pytest.approx(
            float(mpmath.ncdf(-quantile - mpmath.mpf("1.5876"))), rel=1e-9
        )
    assert curve.epsilon_at(1e-5) == pytest.approx(7.548, abs=1e-3)
    assert curve.advantage() == pytest.approx(float(2 * mpmath.ncdf(1.5876 / 2) - 1))


def test_epsilon_delta_is_piecewise_linear():
    for epsilon, delta in [(0.0, 0.0), (0.0, 0.3), (1.0, 0.0), (3.0, 0.01), (20.0, 1e-5)]:
        curve = TradeOff.epsilon_delta(epsilon, delta)
        np.testing.assert_allclose(
            curve.beta_at(ALPHA), lines(ALPHA, [epsilon], [delta]), atol=1e-14
        )
        # For power up to the corner the inverse blow-up is max(0, y - delta) e^-epsilon.
        for power in (delta / 2, delta + 1e-9 * (1 - delta), (1 + delta) / 2 * 0.9):
            least = max(0.0, power - delta) * math.exp(-epsilon)
            assert curve.inverse_blow_up(power) == pytest.approx(least, rel=1e-6, abs=1e-300)
        if delta:
            assert curve.epsilon_at(delta) == pytest.approx(epsilon, abs=1e-12)
        assert curve.delta_at(epsilon) == pytest.approx(delta, abs=1e-15)


def test_guarantees_beyond_the_floats():
    curve = TradeOff.epsilon_delta(1000.0, 1e-5)  # e^1000 is not a float
    assert curve.beta_at(0.0) == 0.0
    assert curve.epsilon_at(1e-5) == math.inf
    steep = TradeOff.epsilon_delta(600.0, 1e-5)
    assert steep.epsilon_at(1e-5) == pytest.approx(600.0)
    both = TradeOff.from_profile([1.0, 1000.0], [0.2, 0.1])
    assert both.inverse_blow_up(0.15) == 0.0  # leaving the steep line out only lowers the curve
    assert TradeOff.epsilon_delta(1.0, 1.0).beta_at(0.0) == 0.0


def test_profile_of_a_gaussian_lies_just_below_it():
    levels = np.linspace(0.0, 30.0, 3000)
    exact = TradeOff.gaussian(2.0)
    curve = TradeOff.from_profile(levels, gaussian.gdp_delta(levels, 2.0))
    gap = exact.beta_at(ALPHA) - curve.beta_at(ALPHA)
    assert np.all(gap >= -1e-13)
    assert np.max(gap) < 1e-5
    power = np.geomspace(1e-9, 0.5, 30)
    np.testing.assert_allclose(
        curve.inverse_blow_up(power), exact.inverse_blow_up(power), rtol=1e-4
    )
    for delta in (1e-10, 1e-5, 0.1):
        assert curve.epsilon_at(delta) == pytest.approx(exact.epsilon_at(delta), rel=1e-4)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 1.0)),
        min_size=1,
        max_size=8,
        unique_by=lambda pair: round(pair[0], 3),
    )
)
def test_any_list_of_guarantees(pairs):
    """Also where they are not convex, where some imply others, and where lines cross late."""
    epsilons, deltas = (np.array(values) for values in zip(*sorted(pairs), strict=True))
    curve = TradeOff.from_profile(epsilons, deltas)
    np.testing.assert_allclose(
        curve.beta_at(ALPHA), lines(ALPHA, epsilons, deltas), rtol=1e-9, atol=1e-12
    )


# ------------------------------------------------------------------------------ from the scores


def brute_delta(present, absent, confidence, epsilon):
    """Largest certified delta over all thresholds, both directions, by definition."""
    budget = math.log(2 / (1 - confidence)) / 2
    best = 0.0
    for cut in np.concatenate((present, absent)):
        positives = np.mean(absent >= cut) + math.sqrt(budget / absent.size)
        misses = np.mean(present < cut) + math.sqrt(budget / present.size)
        best = max(best, 1 - misses - math.exp(epsilon) * positives)
        best = max(best, 1 - positives - math.exp(epsilon) * misses)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_empirical_curve_is_the_best_threshold(seed):
    rng = np.random.default_rng(seed)
    present = rng.normal(1.5, 1.0, 150).round(seed % 3 + 1)  # with ties
    absent = rng.normal(0.0, 1.2, 220).round(seed % 3 + 1)
    curve = TradeOff.empirical(present, absent, confidence=0.8)
    for epsilon in (0.0, 0.2, 0.7, 1.5):
        assert curve.delta_at(epsilon) == pytest.approx(
            brute_delta(present, absent, 0.8, epsilon), abs=1e-12
        )


def test_empirical_curve_of_perfect_scores_is_limited_by_the_numbers():
    curve = TradeOff.empirical(np.full(1000, 9.0), np.zeros(500), confidence=0.95)
    step = math.sqrt(math.log(40.0) / 2)
    high, low = step / math.sqrt(500), step / math.sqrt(1000)
    best = max(math.log((1 - low) / high), math.log((1 - high) / low))
    assert curve.epsilon_at(0.0) == pytest.approx(best)


def test_scores_the_wrong_way_round_certify_nothing():
    rng = np.random.default_rng(5)
    curve = TradeOff.empirical(rng.normal(-3.0, 1.0, 500), rng.normal(size=500), confidence=0.95)
    assert curve.epsilon_at(1e-5) == 0.0
    np.testing.assert_allclose(curve.beta_at(ALPHA), 1.0 - ALPHA)


def misses(confidence, audits, size, mu, seed, copies=1):
    """How many empirical curves dip below the true one anywhere."""
    rng = np.random.default_rng(seed)
    truth = TradeOff.gaussian(mu)
    count = 0
    for _ in range(audits):
        curve = TradeOff.empirical(
            np.repeat(rng.normal(mu, 1.0, size), copies),
            np.repeat(rng.normal(size=size), copies),
            confidence=confidence,
        )
        # A convex curve can only be below another convex one where the former has a vertex.
        alpha, beta = curve.points()
        count += bool(np.any(beta < truth.beta_at(alpha) - 1e-12))
    return count


def test_empirical_curve_covers_the_truth():
    # 600 audits at .8: a correct band fails 156 or more times with probability below 3e-4.
    assert misses(0.8, 600, 300, 1.0, seed=11) < 156
    # The check has teeth: with every score counted nine times the band is a third as wide.
    assert misses(0.8, 100, 300, 1.0, seed=12, copies=9) > 30


def test_empirical_curve_closes_in():
    rng = np.random.default_rng(6)
    curve = TradeOff.empirical(
        rng.normal(1.0, 1.0, 100_000), rng.normal(size=100_000), confidence=0.95
    )
    gap = curve.beta_at(ALPHA) - TradeOff.gaussian(1.0).beta_at(ALPHA)
    assert np.all(gap >= 0.0)
    assert np.max(gap[ALPHA > 0.02]) < 0.03


# -------------------------------------------------------------------------------------- details


def test_scalars_give_floats_and_arrays_keep_their_shape():
    for curve in (TradeOff.gaussian(1.0), TradeOff.epsilon_delta(1.0, 0.1)):
        for method in (curve.beta_at, curve.inverse_blow_up):
            assert type(method(0.3)) is float
            assert method(np.full((2, 3), 0.3)).shape == (2, 3)
            assert method([0.3])[0] == method(0.3)
        assert type(curve.delta_at(1.0)) is float
        assert type(curve.epsilon_at(1e-3)) is float


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: TradeOff.gaussian(-1.0), "mu"),
        (lambda: TradeOff.epsilon_delta(-0.1, 0.0), "epsilon"),
        (lambda: TradeOff.epsilon_delta(1.0, 1.5), "delta"),
        (lambda: TradeOff.from_profile([1.0, 1.0], [0.1, 0.1]), "epsilon"),
        (lambda: TradeOff.from_profile([0.0, math.nan], [0.1, 0.1]), "epsilon"),
        (lambda: TradeOff.from_profile([0.0, 1.0], [0.1, math.nan]), "delta"),
        (lambda: TradeOff.from_profile([], []), "epsilon and delta"),
        (lambda: TradeOff.empirical([1.0], [0.0], confidence=1.0), "confidence"),
        (lambda: TradeOff.empirical([], [0.0], confidence=0.9), "present"),
        (lambda: TradeOff.gaussian(1.0).beta_at(1.1), "alpha"),
        (lambda: TradeOff.gaussian(1.0).beta_at([0.1, math.nan]), "alpha"),
        (lambda: TradeOff.gaussian(1.0).inverse_blow_up(-0.1), "probability"),
        (lambda: TradeOff.gaussian(1.0).delta_at(-1.0), "epsilon"),
        (lambda: TradeOff.gaussian(1.0).epsilon_at(1.0), "delta"),
    ],
)
def test_arguments_are_checked(call, name):
    with pytest.raises(InvalidArgumentError, match=name):
        call()


def test_broken_scores_are_refused():
    with pytest.raises(ScoresError):
        TradeOff.empirical([math.nan, 1.0], [0.0], confidence=0.9)


def test_curves_cannot_be_changed():
    curve = TradeOff.epsilon_delta(1.0, 0.1)
    with pytest.raises(ValueError, match="read-only"):
        curve.alpha[0] = 1.0
    with pytest.raises(AttributeError):
        curve.alpha = None
