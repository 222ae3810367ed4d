import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.score_law import ScoreLaw
from tests.stats.mixtures import beyond, close, components, normal_cdf

PAPER = ScoreLaw(steps=2500, sampling_rate=0.0819, noise_multiplier=2.6245)


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(45):
        yield


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


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8])
def test_cumulants_fall_at_the_rate_of_the_corollary(order):
    few, many = (
        ScoreLaw(steps=steps, sampling_rate=0.1, noise_multiplier=1.3) for steps in (50, 200)
    )
    expected = 1.0 if order == 2 else 4.0 ** (1 - order / 2)
    assert many.cumulant(order) / few.cumulant(order) == close(expected, rel=1e-12)


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
    with pytest.raises(InvalidArgumentError, match=r"x0 .*tail_deviation_exact"):
        PAPER.tail_deviation(1.7)
    assert PAPER.tail_deviation(math.sqrt(3.0)) > 0.0


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
    with pytest.raises(InvalidArgumentError, match="order"):
        PAPER.cumulant(0)
    with pytest.raises(InvalidArgumentError, match="x0"):
        PAPER.tail_deviation_exact(-1.0)
