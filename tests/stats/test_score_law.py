import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import score_law
from askgauss.stats.score_law import (
    ScoreLaw,
    mixture_cumulant,
    subsampled_shift,
    subsampled_shift_delta,
    subsampled_shift_epsilon,
)

PAPER = ScoreLaw(steps=2500, sampling_rate=0.0819, noise_multiplier=2.6245)


def close(expected, rel):
    """Relative closeness only: these numbers get tiny, and pytest would forgive 1e-12."""
    return pytest.approx(expected, rel=rel, abs=0.0)


# --- oracles: every count, many digits, no cleverness ---------------------------------------------


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(45):
        yield


def normal_cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


def components(shift, steps, rate):
    rate, shift = mp.mpf(rate), mp.mpf(shift)
    weights = [
        mp.binomial(steps, k) * rate**k * (1 - rate) ** (steps - k) for k in range(steps + 1)
    ]
    means = [shift * k / (rate * steps) for k in range(steps + 1)]
    return [(w, m) for w, m in zip(weights, means, strict=True) if w > 0]


def log_ratio(x, mixture):
    return mp.log(mp.fsum(w * mp.exp(m * x - m * m / 2) for w, m in mixture))


def beyond(x, mixture):
    return mp.fsum(w * normal_cdf(m - x) for w, m in mixture)


def bisect(increasing, low, high, rounds=110):
    low, high = mp.mpf(low), mp.mpf(high)
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return low


def oracle_deltas(epsilon, mixture):
    """Present against absent, and absent against present."""
    far = mixture[-1][1] + 100 + mp.mpf(epsilon) / mixture[-1][1]
    cut = bisect(lambda x: log_ratio(x, mixture) - epsilon, -far, far)
    forth = beyond(cut, mixture) - mp.exp(epsilon) * normal_cdf(-cut)
    cut = bisect(lambda x: log_ratio(x, mixture) + epsilon, -far, far)
    back = normal_cdf(cut) - mp.exp(epsilon) * (1 - beyond(cut, mixture))
    return forth, max(back, mp.mpf(0))


def oracle_epsilon(delta, mixture, rounds=110):
    def shortfall(cut):
        absent = mp.exp(log_ratio(cut, mixture)) * normal_cdf(-cut)
        return delta - (beyond(cut, mixture) - absent)

    if shortfall(mp.mpf(0)) >= 0:
        return mp.mpf(0)
    cut = bisect(shortfall, 0, mixture[-1][1] + 60, rounds)
    return max(mp.mpf(0), log_ratio(cut, mixture))


def gdp_epsilon(delta, mu):
    return subsampled_shift_epsilon(delta, mu, steps=1, sampling_rate=1.0)


# --- moments ------------------------------------------------------------------------------------


def test_moments_of_the_proposition():
    law = ScoreLaw(steps=400, sampling_rate=0.3, noise_multiplier=1.5, clip_norm=2.0)
    assert law.mean == close(20 * 0.3 * 2.0, rel=1e-15)
    assert law.absent_variance == close(9.0, rel=1e-15)
    assert law.variance == close(9.0 + 0.21 * 4.0, rel=1e-15)
    assert law.shift == close(20 * 0.3 / 1.5, rel=1e-15)


@pytest.mark.parametrize("rate", [1e-4, 0.0819, 0.5, 0.73, 1.0])
def test_cumulants_are_derivatives_of_the_log_generating_function(rate):
    law = ScoreLaw(steps=7, sampling_rate=rate, noise_multiplier=0.8, clip_norm=1.7)

    def generating(t):
        t = t * mp.mpf(1.7) / mp.sqrt(7)
        noise = 7 * (mp.mpf(0.8) * t) ** 2 / 2
        return noise + 7 * mp.log(1 - mp.mpf(rate) + mp.mpf(rate) * mp.exp(t))

    with mp.workdps(80):
        series = mp.taylor(generating, 0, 12)
    largest = 1.0
    for order in range(1, 13):
        expected = float(series[order] * mp.factorial(order))
        largest = max(largest, abs(expected))
        assert law.cumulant(order) == pytest.approx(expected, rel=1e-12, abs=1e-13 * largest)


def test_cumulants_of_high_order_stay_finite():
    # (order - 1)! alone would overflow; the cumulant of the normalised sum does not.
    value = PAPER.cumulant(200)
    assert math.isfinite(value)
    assert abs(value) < 1e30


def test_cumulants_of_unlike_mixtures():
    rng = np.random.default_rng(1)
    weights, noise = rng.uniform(0, 1, 5), rng.uniform(0.1, 2, 5)
    first, second = rng.normal(size=5), rng.normal(size=5)

    def generating(t):
        total = mp.mpf(0)
        for w, a, b, s in zip(weights, first, second, noise, strict=True):
            u = t / mp.sqrt(5)
            mixture = mp.mpf(w) * mp.exp(mp.mpf(a) * u) + (1 - mp.mpf(w)) * mp.exp(mp.mpf(b) * u)
            total += (mp.mpf(s) * u) ** 2 / 2 + mp.log(mixture)
        return total

    with mp.workdps(80):
        series = mp.taylor(generating, 0, 9)
    for order in range(1, 10):
        found = mixture_cumulant(
            order, weights=weights, first_means=first, second_means=second, noise_scales=noise
        )
        assert found == close(float(series[order] * mp.factorial(order)), rel=1e-11)


def test_closed_forms_of_centred_mixtures():
    weights = np.array([0.2, 0.6, 0.9])
    first = np.array([1.0, -2.0, 0.5])
    second = -weights * first / (1 - weights)
    noise = np.array([1.0, 0.5, 2.0])
    two = weights * first**2 + (1 - weights) * second**2
    three = weights * first**3 + (1 - weights) * second**3
    four = weights * first**4 + (1 - weights) * second**4 - 3 * two**2
    expected = [
        0.0,
        np.sum(noise**2 + two) / 3,
        np.sum(three) / 3**1.5,
        np.sum(four) / 9,
    ]
    for order, value in enumerate(expected, start=1):
        found = mixture_cumulant(
            order, weights=weights, first_means=first, second_means=second, noise_scales=noise
        )
        assert found == pytest.approx(value, rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8])
def test_like_mixtures_are_the_score_and_fall_at_the_rate_of_the_corollary(order):
    def cumulant(steps):
        return mixture_cumulant(
            order,
            weights=np.full(steps, 0.9),
            first_means=-0.1,
            second_means=0.9,
            noise_scales=1.3,
        )

    law = ScoreLaw(steps=50, sampling_rate=0.1, noise_multiplier=1.3)
    assert cumulant(50) == close(law.cumulant(order), rel=1e-12)
    expected = 1.0 if order == 2 else 4.0 ** (1 - order / 2)
    assert cumulant(200) / cumulant(50) == close(expected, rel=1e-12)


# --- the distribution -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "rate", "noise", "clip"),
    [(1, 0.5, 0.05, 1.0), (3, 0.2, 1.0, 2.0), (40, 0.7, 0.1, 1.0), (60, 0.05, 3.0, 0.5)],
)
def test_distribution_against_the_full_sum(steps, rate, noise, clip):
    law = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise, clip_norm=clip)
    width = mp.mpf(noise) * mp.mpf(clip)
    mixture = components(mp.sqrt(steps) * mp.mpf(rate) / mp.mpf(noise), steps, rate)
    points = law.mean + math.sqrt(law.variance) * np.array([-30, -9, -2, -0.3, 0, 1, 4, 11, 36.0])
    for x, cdf, sf, pdf, log_cdf, log_sf in zip(
        points,
        law.cdf(points),
        law.sf(points),
        law.pdf(points),
        law.log_cdf(points),
        law.log_sf(points),
        strict=True,
    ):
        z = mp.mpf(x) / width
        upper = beyond(z, mixture)
        lower = mp.fsum(w * normal_cdf(z - m) for w, m in mixture)
        density = mp.fsum(w * mp.npdf(z - m) for w, m in mixture) / width
        # A score is known to an ulp; far out that moves the probability by so much.
        slack = 1e-13 + 1e-15 * float(z - mixture[0][1]) ** 2 + 1e-15 * float(z) ** 2
        assert log_cdf == pytest.approx(float(mp.log(lower)), rel=1e-13, abs=slack)
        assert log_sf == pytest.approx(float(mp.log(upper)), rel=1e-13, abs=slack)
        assert cdf == pytest.approx(float(lower), rel=10 * slack, abs=1e-307)
        assert sf == pytest.approx(float(upper), rel=10 * slack, abs=1e-307)
        assert pdf == pytest.approx(float(density), rel=10 * slack, abs=1e-307)


def test_distribution_with_many_steps():
    law = ScoreLaw(steps=100_000, sampling_rate=0.3, noise_multiplier=0.7)
    x = law.mean + math.sqrt(law.variance) * np.linspace(-6, 6, 25)
    counts = np.arange(100_001)
    weights = stats.binom.pmf(counts, 100_000, 0.3)
    z = (x[:, np.newaxis] - counts / math.sqrt(100_000)) / 0.7
    np.testing.assert_allclose(law.cdf(x), stats.norm.cdf(z) @ weights, rtol=1e-10)
    np.testing.assert_allclose(law.sf(x), stats.norm.sf(z) @ weights, rtol=1e-10)
    np.testing.assert_allclose(law.pdf(x), stats.norm.pdf(z) @ weights / 0.7, rtol=1e-10)


def test_distribution_at_the_edges_of_its_domain():
    x = np.array([-np.inf, np.inf, np.nan])
    np.testing.assert_allclose(PAPER.cdf(x), [0.0, 1.0, np.nan], rtol=1e-14)
    np.testing.assert_allclose(PAPER.sf(x), [1.0, 0.0, np.nan], rtol=1e-14)
    np.testing.assert_allclose(PAPER.pdf(x), [0.0, 0.0, np.nan])
    np.testing.assert_allclose(PAPER.edgeworth_cdf(x), [0.0, 1.0, np.nan])
    assert PAPER.cdf([]).shape == (0,)
    assert PAPER.cdf(np.zeros((2, 3))).shape == (2, 3)
    assert float(PAPER.cdf(PAPER.mean)) == pytest.approx(0.5, abs=1e-4)


def test_simulated_scores_follow_the_law():
    # Dvoretzky-Kiefer-Wolfowitz: a right law fails with probability 1e-9.
    law = ScoreLaw(steps=8, sampling_rate=0.15, noise_multiplier=0.2, clip_norm=2.0)
    rng, size = np.random.default_rng(2), 200_000
    planted = rng.random((8, size)) < 0.15
    steps = planted * 2.0 + rng.normal(scale=0.4, size=(8, size))
    scores = np.sort(steps.sum(axis=0) / math.sqrt(8))
    empirical = np.arange(1, size + 1) / size
    assert np.abs(law.cdf(scores) - empirical).max() < math.sqrt(math.log(2e9) / (2 * size))
    # The Gaussian model is visibly another law here.
    assert np.abs(law.gaussian_cdf(scores) - empirical).max() > 0.01
    for probability in (0.01, 0.5, 0.99):
        quantile = np.quantile(scores, probability)
        assert float(law.cdf(quantile)) == pytest.approx(probability, abs=0.01)


def test_edgeworth_is_its_series_of_hermite_polynomials():
    law = ScoreLaw(steps=40, sampling_rate=0.1, noise_multiplier=0.8, clip_norm=3.0)
    z = np.linspace(-4, 4, 17)
    series = [0, 0, law.skewness / 6, law.excess_kurtosis / 24, 0, law.skewness**2 / 72]
    correction = stats.norm.pdf(z) * np.polynomial.hermite_e.hermeval(z, series)
    found = law.edgeworth_cdf(law.mean + math.sqrt(law.variance) * z)
    np.testing.assert_allclose(found, stats.norm.cdf(z) - correction, atol=1e-14)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_edgeworth_errs_by_three_halves_powers_of_the_steps(rate):
    def errors(steps):
        law = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=0.8)
        x = law.mean + math.sqrt(law.variance) * np.linspace(-5, 5, 201)
        exact = law.cdf(x)
        return (
            np.abs(law.edgeworth_cdf(x) - exact).max(),
            np.abs(law.gaussian_cdf(x) - exact).max(),
        )

    (coarse, model), (fine, _) = errors(100), errors(1600)
    assert coarse < model / 10
    assert fine < coarse / 16**1.4


# --- how far the Gaussian model is ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "rate", "noise"),
    [(1, 0.5, 0.3), (1, 0.01, 1.0), (10, 0.3, 0.02), (100, 0.2, 0.15), (2500, 0.0819, 2.6245)],
)
def test_deviations_against_a_dense_grid(steps, rate, noise):
    law = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise)
    counts = np.arange(steps + 1)
    weights = stats.binom.pmf(counts, steps, rate)
    kept = weights > 1e-25
    for x0, found in ((0.0, law.kolmogorov_distance()), (2.5, law.tail_deviation_exact(2.5))):
        best = 0.0
        t = np.linspace(x0, x0 + 9, 20_001)
        for side in (-1.0, 1.0):
            x = law.mean + side * t * math.sqrt(law.variance)
            exact = np.zeros(t.size)
            for count, weight in zip(counts[kept], weights[kept], strict=True):
                exact += weight * stats.norm.sf(side * (x - count / math.sqrt(steps)) / noise)
            best = max(best, np.abs(exact - stats.norm.sf(t)).max())
        # No smaller than any point of the grid, and hardly larger than the best of them.
        assert found >= best * (1 - 1e-10) - 1e-15
        assert found == close(best, rel=1e-4)


def test_distance_of_a_bare_coin():
    # Without noise the score is 0 or 1 and the worst point is just beside one of them.
    law = ScoreLaw(steps=1, sampling_rate=0.5, noise_multiplier=1e-9)
    assert law.kolmogorov_distance() == close(stats.norm.cdf(1) - 0.5, rel=1e-6)


def test_no_deviation_without_sampling():
    law = ScoreLaw(steps=100, sampling_rate=1.0, noise_multiplier=2.0)
    assert law.kolmogorov_distance() == 0.0
    assert law.kolmogorov_leading_term() == 0.0
    assert law.tail_deviation_exact(4.0) == 0.0


def test_leading_terms_are_the_limits():
    def law(steps):
        return ScoreLaw(steps=steps, sampling_rate=0.2, noise_multiplier=0.7)

    def ratio(steps):
        return law(steps).kolmogorov_distance() / law(steps).kolmogorov_leading_term()

    # The term of order 1/T vanishes at the mean, so the distance is better than promised.
    assert abs(ratio(10_000) - 1) < abs(ratio(100) - 1) / 90
    for steps, slack in ((10_000, 0.02), (1_000_000, 0.002)):
        exact, leading = law(steps).tail_deviation_exact(4.0), law(steps).tail_deviation(4.0)
        assert exact == close(leading, rel=slack)


def test_the_papers_table():
    assert abs(PAPER.skewness) / 6 == close(1.14e-5, rel=5e-3)
    # The last entry is printed as 4.08e-10, from phi(5) * 24 rounded up to 3.58e-5.
    for x0, leading, exact in (
        (3.0, 4.04e-7, 4.06e-7),
        (4.0, 2.29e-8, 2.30e-8),
        (5.0, 4.07e-10, 4.10e-10),
    ):
        assert PAPER.tail_deviation(x0) == close(leading, rel=2e-3)
        assert PAPER.tail_deviation_exact(x0) == close(exact, rel=2e-3)
    assert PAPER.kolmogorov_leading_term() == close(
        PAPER.skewness / (6 * math.sqrt(2 * math.pi)), rel=1e-14
    )


def test_tail_deviation_keeps_to_its_range():
    with pytest.raises(InvalidArgumentError, match=r"x0 >= sqrt\(3\).*tail_deviation_exact"):
        PAPER.tail_deviation(1.7)
    assert PAPER.tail_deviation(math.sqrt(3.0)) > 0.0


# --- what the score leaks -------------------------------------------------------------------------

SMALL = [
    (steps, rate, shift, delta)
    for steps, rate in ((1, 1e-4), (1, 0.5), (2, 0.01), (6, 0.3), (5, 0.999), (3, 1.0))
    for shift in (1e-9, 0.02, 0.4, 3.0, 60.0, 1e4)
    for delta in (0.2, 1e-5, 1e-30, 1e-300)
]


@pytest.mark.parametrize(("steps", "rate", "shift", "delta"), SMALL[::3])
def test_epsilon_against_the_full_sum(steps, rate, shift, delta):
    found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    mixture = components(shift, steps, rate)
    exact = oracle_epsilon(mp.mpf(delta), mixture)
    # Never above, but for the rounding of the number itself.
    assert found <= exact * (1 + mp.mpf(10) ** -14)
    if oracle_epsilon(mp.mpf(delta) * (1 + mp.mpf(10) ** -11), mixture) > 0:
        assert found == close(float(exact), rel=3e-11)


@pytest.mark.parametrize(
    ("steps", "rate", "shift", "epsilon"),
    [(1, 0.5, 2.0, 1.0), (2, 0.1, 0.5, 0.3), (3, 0.4, 3.0, 4.0), (1, 1.0, 1.0, 2.0)],
)
def test_delta_is_the_integral_of_the_excess(steps, rate, shift, epsilon):
    mixture = components(shift, steps, rate)

    def present(x):
        return mp.fsum(w * mp.npdf(x - m) for w, m in mixture)

    def excess(p, q):
        return max(mp.mpf(0), p - mp.exp(epsilon) * q)

    grid = [mp.mpf(k) / 2 for k in range(-20, 41)]
    with mp.workdps(20):
        forth = mp.quad(lambda x: excess(present(x), mp.npdf(x)), grid, maxdegree=3)
        back = mp.quad(lambda x: excess(mp.npdf(x), present(x)), grid, maxdegree=3)
    found = subsampled_shift_delta(epsilon, shift, steps=steps, sampling_rate=rate)
    # The kink at the cut costs the quadrature a few digits.
    assert found == close(float(max(forth, back)), rel=2e-3)
    forth, back = oracle_deltas(epsilon, mixture)
    assert found == close(float(max(forth, back)), rel=1e-11)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.98])
def test_present_against_absent_is_the_larger_direction(steps, rate):
    for shift in (0.05, 1.0, 6.0):
        mixture = components(shift, steps, rate)
        for epsilon in (0.0, 0.01, 0.5, 3.0, 10.0):
            forth, back = oracle_deltas(epsilon, mixture)
            assert forth >= back - mp.mpf(10) ** -30
            found = subsampled_shift_delta(epsilon, shift, steps=steps, sampling_rate=rate)
            assert found == close(float(forth), rel=1e-10)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    means=st.lists(st.floats(0.0, 8.0), min_size=1, max_size=6),
    epsilon=st.floats(0.0, 6.0),
    seed=st.integers(0, 2**16),
)
def test_the_larger_direction_for_any_mixture_of_shifts(means, epsilon, seed):
    means = np.array([*means, 1.0])
    weights = np.random.default_rng(seed).dirichlet(np.ones(means.size))
    cuts = np.linspace(-12, 20, 4001)[:, np.newaxis]
    upper = stats.norm.sf(cuts - means) @ weights
    lower = stats.norm.cdf(cuts - means) @ weights
    forth = (upper - np.exp(epsilon) * stats.norm.sf(cuts[:, 0])).max()
    back = (stats.norm.cdf(cuts[:, 0]) - np.exp(epsilon) * lower).max()
    # The grid misses the best cut by at most .004, which costs the larger one less than this.
    assert forth >= back - 2e-4


@pytest.mark.parametrize("delta", [1e-5, 1e-40])
def test_trimming_changes_nothing(delta):
    steps, rate, shift = 300, 0.02, 1.2
    counts, _ = score_law._binomial(steps, rate, 46 - math.log(delta))
    assert counts.size < steps / 2
    with mp.workdps(28):
        exact = oracle_epsilon(mp.mpf(delta), components(shift, steps, rate), rounds=70)
    found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    assert found <= exact * (1 + mp.mpf(10) ** -14)
    assert found == close(float(exact), rel=1e-11)
    back = subsampled_shift_delta(float(exact), shift, steps=steps, sampling_rate=rate)
    assert back == close(delta, rel=1e-10)


def test_delta_far_beyond_the_first_window():
    forth, _ = oracle_deltas(200.0, components(1.2, 300, 0.02))
    found = subsampled_shift_delta(200.0, 1.2, steps=300, sampling_rate=0.02)
    assert found == close(float(forth), rel=1e-10)
    assert found < 1e-100


def test_binomial_weights():
    for steps, rate in ((1, 0.3), (2500, 0.08), (10**6, 0.5), (10**6, 1e-6), (50, 1 - 1e-9)):
        counts, logs = score_law._binomial(steps, rate, 57.0)
        expected = stats.binom.logpmf(counts, steps, rate)
        kept = expected > -60
        np.testing.assert_allclose(logs[kept], expected[kept], rtol=1e-8, atol=1e-9)
        left_out = stats.binom.cdf(counts[0] - 1, steps, rate)
        left_out += stats.binom.sf(counts[-1], steps, rate)
        assert left_out <= 2 * math.exp(-57.0)


def test_known_ceilings_of_the_score():
    known = ((15.3718, 0.996), (8.2333, 1.991), (4.5116, 3.951), (2.5760, 7.692))
    for noise, epsilon in known:
        law = ScoreLaw(steps=2500, sampling_rate=4096 / 50000, noise_multiplier=noise)
        assert law.epsilon_at(1e-5) == pytest.approx(epsilon, abs=6e-4)
        assert law.delta_at(law.epsilon_at(1e-5)) == close(1e-5, rel=1e-11)
    # Sampled 2.5 times in a run that claims epsilon 8: the sum gives nearly all of it away.
    law = ScoreLaw(steps=2500, sampling_rate=0.001, noise_multiplier=0.40771)
    assert law.epsilon_at(1e-5) == pytest.approx(0.4667, abs=1e-4)


def test_without_sampling_it_is_gaussian_differential_privacy():
    for mu, epsilon in (
        (0.1, 0.3407),
        (0.5, 1.9931),
        (1, 4.3772),
        (3, 16.6755),
        (11, 106.570),
        (30, 577.012),
    ):
        for steps in (1, 1000):
            found = subsampled_shift_epsilon(1e-5, mu, steps=steps, sampling_rate=1.0)
            assert found == pytest.approx(epsilon, abs=6e-5 * max(1, epsilon / 10))
            assert found == close(gdp_epsilon(1e-5, mu), rel=1e-14)
    for epsilon in (0.1, 1.0, 20.0):
        exact = mp.ncdf(0.5 - epsilon) - mp.exp(epsilon) * mp.ncdf(-0.5 - epsilon)
        found = subsampled_shift_delta(epsilon, 1.0, steps=9, sampling_rate=1.0)
        assert found == close(float(exact), rel=1e-11)


def test_the_clipping_norm_is_only_a_unit():
    one = ScoreLaw(steps=30, sampling_rate=0.2, noise_multiplier=1.1)
    other = ScoreLaw(steps=30, sampling_rate=0.2, noise_multiplier=1.1, clip_norm=0.01)
    assert other.epsilon_at(1e-6) == one.epsilon_at(1e-6)
    assert float(other.cdf(0.01)) == close(float(one.cdf(1.0)), rel=1e-13)
    assert other.kolmogorov_distance() == close(one.kolmogorov_distance(), rel=1e-9)


def test_epsilon_over_the_whole_range():
    for steps in (1, 40, 2500, 10**6):
        for rate in (1e-6, 1e-3, 0.08, 0.5, 1 - 1e-9, 1.0):
            for delta in (0.7, 1e-3, 1e-5, 1e-50, 1e-300):
                last = 0.0
                for shift in (1e-9, 1e-4, 0.1, 1.0, 1.0001, 8.0, 200.0, 1e4):
                    epsilon = subsampled_shift_epsilon(
                        delta, shift, steps=steps, sampling_rate=rate
                    )
                    assert math.isfinite(epsilon)
                    assert epsilon >= last * (1 - 1e-13)
                    last = epsilon


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    steps=st.integers(1, 5000),
    rate=st.floats(1e-6, 1.0),
    log_delta=st.floats(-690.0, -0.1),
    log_shift=st.floats(-20.0, 9.0),
    factor=st.floats(1.0, 3.0),
)
def test_epsilon_grows_with_shift_and_falls_with_delta(steps, rate, log_delta, log_shift, factor):
    delta, shift = math.exp(log_delta), math.exp(log_shift)
    epsilon = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    assert 0.0 <= epsilon < math.inf
    more = subsampled_shift_epsilon(delta, shift * factor, steps=steps, sampling_rate=rate)
    assert more >= epsilon * (1 - 1e-13)
    less = subsampled_shift_epsilon(
        min(delta * factor, 0.99), shift, steps=steps, sampling_rate=rate
    )
    if delta * factor < 0.99:
        assert less <= epsilon * (1 + 1e-13)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    steps=st.integers(1, 5000),
    rate=st.floats(1e-3, 1.0),
    delta=st.floats(1e-12, 0.3),
    epsilon=st.floats(0.0, 50.0),
)
def test_the_shift_of_an_epsilon(steps, rate, delta, epsilon):
    shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
    if math.isinf(shift):
        sampled = -math.expm1(steps * math.log1p(-rate))
        assert sampled <= delta * (1 + 1e-11)
        return
    below, above = (
        subsampled_shift_epsilon(delta, shift * (1 + side), steps=steps, sampling_rate=rate)
        for side in (-1e-9, 1e-9)
    )
    assert below <= epsilon * (1 + 1e-11)
    assert above >= epsilon * (1 - 1e-11)


def test_the_shift_of_an_epsilon_at_the_ends():
    for delta, epsilon in ((1e-300, 5.0), (1e-300, 1e-6), (0.9, 0.0), (1e-5, 1e8), (1e-5, 0.0)):
        for steps, rate in ((1, 1.0), (2500, 0.08), (10, 0.3)):
            shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
            found = subsampled_shift_epsilon(
                delta, shift * (1 + 1e-10), steps=steps, sampling_rate=rate
            )
            assert found == pytest.approx(epsilon, rel=1e-8, abs=1e-8)
            assert found > 0.0
    # Total variation of two unit Gaussians: 2 Phi(mu / 2) - 1.
    shift = subsampled_shift(0.0, 0.1, steps=1, sampling_rate=1.0)
    assert 2 * stats.norm.cdf(shift / 2) - 1 == close(0.1, rel=1e-11)


def test_what_is_sampled_less_often_than_delta_leaks_nothing():
    for steps, rate, delta in ((1, 1e-5, 1e-5), (1, 0.3, 0.3), (10, 1e-7, 1e-6)):
        for shift in (1.0, 50.0, 1e4, math.inf):
            assert subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate) == 0.0
        assert subsampled_shift(3.0, delta, steps=steps, sampling_rate=rate) == math.inf
    for rate in np.random.default_rng(4).uniform(1e-6, 0.3, 100):
        assert subsampled_shift_epsilon(rate, 50.0, steps=1, sampling_rate=rate) == 0.0
        assert subsampled_shift(1.0, rate * (1 - 3e-12), steps=1, sampling_rate=rate) < 1e3
    assert subsampled_shift_epsilon(0.3, 50.0, steps=1, sampling_rate=0.300001) > 100.0


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.01, 0.0187663760519676])
def test_a_plateau_is_not_read_from_its_upper_end(rate):
    # Between two components delta is flat to less than an ulp, and an ulp decides a whole gap.
    for steps in (2, 3):
        exact = oracle_epsilon(mp.mpf(rate**steps), components(1.0, steps, rate))
        found = subsampled_shift_epsilon(rate**steps, 1.0, steps=steps, sampling_rate=rate)
        assert exact / 5 < found <= exact


def test_rounding_is_kept_on_the_safe_side():
    for steps, rate, shift in ((1, 1.0, 1.0), (4, 0.3, 0.7), (6, 0.9, 2.0)):
        for delta in (1e-3, 1e-5, 1e-9):
            exact = oracle_epsilon(mp.mpf(delta), components(shift, steps, rate))
            found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
            assert exact - 1e-12 < found < exact


def test_without_noise_there_is_no_finite_epsilon():
    assert subsampled_shift_epsilon(1e-5, math.inf, steps=10, sampling_rate=0.1) == math.inf
    assert subsampled_shift_epsilon(1e-5, math.inf, steps=1, sampling_rate=1.0) == math.inf
    found = subsampled_shift_delta(1e6, math.inf, steps=10, sampling_rate=0.1)
    assert found == close(1 - 0.9**10, rel=1e-11)


def test_no_shift_no_leak():
    assert subsampled_shift_epsilon(1e-300, 0.0, steps=5, sampling_rate=0.5) == 0.0
    assert subsampled_shift_delta(0.0, 0.0, steps=5, sampling_rate=0.5) == 0.0


def test_delta_underflows_to_zero_and_never_to_nan():
    for shift in (1e-9, 1e-3, 1.0):
        assert subsampled_shift_delta(1e4, shift, steps=100, sampling_rate=0.01) == 0.0
    deltas = [
        subsampled_shift_delta(epsilon, 2.0, steps=100, sampling_rate=0.1)
        for epsilon in (0.0, 0.5, 5.0, 50.0, 120.0)
    ]
    assert all(a > b > 0.0 for a, b in itertools.pairwise(deltas))


def test_simulated_scores_leak_what_the_law_says():
    # Six standard errors: a right law fails with probability 2e-9.
    law = ScoreLaw(steps=5, sampling_rate=0.4, noise_multiplier=0.7)
    rng, size = np.random.default_rng(3), 400_000
    present = (rng.binomial(5, 0.4, size) + rng.normal(scale=0.7 * math.sqrt(5), size=size)) / (
        math.sqrt(5)
    )
    absent = rng.normal(scale=0.7, size=size)
    epsilon = 1.0
    best = max(
        (present > cut).mean() - math.exp(epsilon) * (absent > cut).mean()
        for cut in np.linspace(0.5, 3.0, 251)
    )
    error = math.sqrt((0.25 + math.exp(2 * epsilon) * 0.25) / size)
    assert best == pytest.approx(law.delta_at(epsilon), abs=6 * error)
    assert error < law.delta_at(epsilon) / 20


# --- beside the Gaussian pair and Gaussian differential privacy -----------------------------------


def test_the_gaussian_pair_over_reports_where_samples_are_few():
    def ratio(steps, rate, epsilon, delta=1e-5):
        shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
        noise = math.sqrt(steps) * rate / shift
        law = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise)
        assert law.epsilon_at(delta) == close(epsilon, rel=1e-9)
        return law.gaussian_epsilon_at(delta) / epsilon

    assert 2.5 < ratio(1, 0.5, 32.0) < 2.9
    assert ratio(1, 0.5, 8.0) > 1.5
    for epsilon in (0.5, 2.0, 8.0, 32.0):
        assert ratio(20, 0.7, epsilon) < 1.11
        assert ratio(100, 0.1, epsilon) < 1.11
        assert ratio(200, 0.7, epsilon) < 1.015
        assert ratio(2500, 0.0819, epsilon) < 1.015
    assert ratio(2500, 1.0, 4.0) == close(1.0, rel=1e-11)


def test_gaussian_differential_privacy_never_exceeds_the_exact_value():
    # Where the canary is sampled at all with probability well above delta.
    checked = 0
    for steps in (1, 2, 7, 100, 2500, 10**5):
        for rate in (1e-6, 1e-4, 1e-3, 0.01, 0.0819, 0.3, 0.7, 0.999):
            for delta in (1e-3, 1e-5, 1e-10, 1e-30):
                if -math.expm1(steps * math.log1p(-rate)) < 3 * delta:
                    continue
                for shift in (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0):
                    exact = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
                    assert gdp_epsilon(delta, shift) <= exact * (1 + 1e-11) + 1e-13
                    checked += 1
    assert checked > 800


def test_gaussian_differential_privacy_exceeds_it_where_sampling_is_rarer_than_delta():
    exact = subsampled_shift_epsilon(1e-5, 1.0, steps=10, sampling_rate=1e-6)
    assert exact == 0.0
    assert gdp_epsilon(1e-5, 1.0) > 4.0


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.0001},
        {"sampling_rate": math.nan},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"clip_norm": -1.0},
    ],
)
def test_a_law_outside_its_range_is_refused(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        ScoreLaw(**{"steps": 10, "sampling_rate": 0.1, "noise_multiplier": 1.0, **options})


def test_arguments_outside_their_range_are_refused():
    options = {"steps": 10, "sampling_rate": 0.1}
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(InvalidArgumentError, match="delta"):
            subsampled_shift_epsilon(delta, 1.0, **options)
        with pytest.raises(InvalidArgumentError, match="delta"):
            subsampled_shift(1.0, delta, **options)
    for epsilon in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidArgumentError, match="epsilon"):
            subsampled_shift_delta(epsilon, 1.0, **options)
    for shift in (-1e-9, math.nan):
        with pytest.raises(InvalidArgumentError, match="shift"):
            subsampled_shift_epsilon(1e-5, shift, **options)
    with pytest.raises(InvalidArgumentError, match="order"):
        PAPER.cumulant(0)
    with pytest.raises(InvalidArgumentError, match="x0"):
        PAPER.tail_deviation_exact(-1.0)
    for name, value in (("weights", 1.5), ("first_means", math.inf), ("noise_scales", -1.0)):
        good = {"weights": 0.5, "first_means": 0.0, "second_means": 0.0, "noise_scales": 1.0}
        with pytest.raises(InvalidArgumentError, match=name):
            mixture_cumulant(2, **{**good, name: value})
