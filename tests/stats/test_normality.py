"""Normality: statistics against scipy's, tails against the exact limiting law and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import ndtri

from askgauss.stats import normality


def at_most_nominal(p_values, levels=(0.05, 0.01, 0.001), family_error=1e-6):
    """Fails a valid test with probability at most ``family_error`` for each level."""
    for level in levels:
        allowed = stats.binom.isf(family_error, len(p_values), level)
        assert np.count_nonzero(np.asarray(p_values) <= level) <= allowed, level


@pytest.fixture(scope="module")
def eigenvalues():
    """Of the covariance of the empirical process with both parameters estimated (Stephens 1976)."""
    nodes, weights = np.polynomial.legendre.leggauss(500)
    s = 1.0 / (1.0 + np.exp(-18.0 * nodes))
    weights = 18.0 * weights
    z = ndtri(s)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    kernel = np.minimum.outer(s, s) - np.outer(s, s)
    kernel -= np.outer(density, density) + 0.5 * np.outer(z * density, z * density)
    root = np.sqrt(weights)
    return np.linalg.eigvalsh(root[:, None] * kernel * root)[::-1]


def exact_tail(statistic, eigenvalues):
    """P[the limiting law is above this], by Imhof's integral."""
    largest, rest = eigenvalues[:200], eigenvalues[200:].sum()

    def integrand(t):
        angle = 0.5 * np.arctan(largest * t).sum() - 0.5 * (statistic - rest) * t
        return math.sin(angle) / (t * math.exp(0.25 * np.log1p((largest * t) ** 2).sum()))

    return 0.5 + integrate.quad(integrand, 0.0, 2000.0, limit=4000, epsabs=1e-12)[0] / math.pi


class TestAndersonDarling:
    def test_statistic_is_that_of_the_textbook(self):
        values = np.random.default_rng(0).gumbel(size=137)
        standard = np.sort((values - values.mean()) / values.std(ddof=1))
        terms = [
            (2 * i + 1) * (stats.norm.logcdf(low) + stats.norm.logsf(high))
            for i, (low, high) in enumerate(zip(standard, standard[::-1], strict=True))
        ]
        expected = -137 - sum(terms) / 137
        size_correction = 1.0 + 0.75 / 137 + 2.25 / 137**2
        statistic, _ = normality.anderson_darling(values)
        assert statistic == pytest.approx(expected * size_correction, rel=1e-10)

    def test_p_value_in_the_body_is_the_limiting_laws(self, eigenvalues):
        for statistic in (0.25, 0.4, 0.5, 0.752, 1.035, 1.29):
            tail = exact_tail(statistic, eigenvalues)
            assert normality._p_value(statistic) == pytest.approx(tail, rel=0.02)

    def test_p_value_in_the_tail_is_never_below_the_limiting_laws(self, eigenvalues):
        for statistic in (1.3, 1.5, 1.8, 2.2, 2.6, 3.0):
            tail = exact_tail(statistic, eigenvalues)
            assert tail <= normality._p_value(statistic) < 2.0 * tail

    def test_rate_of_the_tail_is_that_of_the_largest_eigenvalue(self, eigenvalues):
        # Quadrature of the kinked kernel is good to a few parts in a thousand.
        assert pytest.approx(0.5 / eigenvalues[0], rel=3e-3) == normality._TAIL_RATE

    def test_p_value_falls(self):
        p_values = [normality._p_value(a) for a in np.linspace(0.21, 60.0, 4000)]
        assert np.all(np.diff(p_values) < 1e-3)  # the fitted pieces meet within their accuracy
        assert 0.0 < p_values[-1] < 1e-100

    @pytest.mark.parametrize(("size", "samples"), [(20, 20_000), (500, 3000)])
    def test_is_valid_at_small_sizes(self, size, samples):
        rows = np.random.default_rng(size).standard_normal((samples, size))
        at_most_nominal([normality.anderson_darling(row)[1] for row in rows])

    def test_sees_heavy_tails(self):
        assert normality.anderson_darling(np.random.default_rng(1).laplace(size=500))[1] < 1e-5


class TestOutlying:
    @pytest.mark.parametrize(("size", "samples"), [(20, 20_000), (500, 3000)])
    def test_is_valid_at_small_sizes(self, size, samples):
        rows = np.random.default_rng(size).standard_normal((samples, size))
        at_most_nominal([normality.outlying(row)[1] for row in rows])

    def test_is_the_binomial_law_of_every_rank(self):
        values = np.random.default_rng(2).standard_normal(40) * np.r_[np.full(3, 9.0), np.ones(37)]
        off = sorted(np.abs(values - values.mean()) / values.std(ddof=1), reverse=True)
        chances = [stats.binom.sf(k - 1, 40, 2 * stats.norm.sf(off[k - 1])) for k in (1, 2, 4)]
        furthest, p_value = normality.outlying(values)
        assert furthest == pytest.approx(off[0])
        assert p_value == pytest.approx(3 * min(chances))

    def test_outliers_do_not_hide_each_other(self):
        """Ten of 2,000 at four to five deviations: the furthest alone is nothing odd."""
        values = np.random.default_rng(3).standard_normal(2000)
        values[:10] = np.linspace(3.9, 4.6, 10)
        assert normality.outlying(values)[1] < 1e-9


class TestAverageShape:
    def test_is_scipys_of_single_rows(self):
        rows = np.random.default_rng(0).exponential(size=(7, 30))
        skewness, _, kurtosis, _ = normality.average_shape(rows)
        assert skewness == pytest.approx(stats.skew(rows, axis=1).mean(), rel=1e-12)
        expected = stats.kurtosis(rows, axis=1, bias=False).mean()
        assert kurtosis == pytest.approx(expected, rel=1e-12)

    def test_p_values_of_one_row_are_the_classical_tests(self):
        row = np.random.default_rng(2).standard_normal((1, 60))
        _, skewness_p, _, kurtosis_p = normality.average_shape(row)
        assert skewness_p == pytest.approx(stats.skewtest(row[0]).pvalue, rel=1e-9)
        # scipy tests the biased kurtosis; of one row the two are the same statistic.
        assert kurtosis_p == pytest.approx(stats.kurtosistest(row[0]).pvalue, rel=1e-9)

    def test_rows_may_have_scales_of_their_own(self):
        rows = np.random.default_rng(3).standard_normal((40, 25))
        scales = np.geomspace(1e-3, 1e3, 40)[:, None]
        np.testing.assert_allclose(
            normality.average_shape(rows * scales), normality.average_shape(rows), rtol=1e-9
        )

    @pytest.mark.parametrize("scale", [1e-150, 1e-90, 1e90, 1e150])
    def test_fourth_powers_of_far_scales_neither_vanish_nor_overflow(self, scale):
        rows = np.random.default_rng(4).exponential(size=(12, 25))
        np.testing.assert_allclose(
            normality.average_shape(rows * scale), normality.average_shape(rows), rtol=1e-9
        )

    @pytest.mark.parametrize(("rows", "size"), [(10, 16), (30, 40)])
    def test_is_valid_in_both_tails(self, rows, size):
        generator = np.random.default_rng(rows)
        found = [
            normality.average_shape(generator.standard_normal((rows, size))) for _ in range(6000)
        ]
        for values in (
            [item[1] for item in found],
            [item[3] for item in found],
            [item[3] for item in found if item[2] > 0.0],
        ):
            at_most_nominal(values)

    def test_a_plain_gaussian_score_of_the_kurtosis_would_not_be(self):
        """The test above can fail: what it guards against shows at the same size."""
        rows = np.random.default_rng(10).standard_normal((20_000, 10, 16))
        kurtosis = stats.kurtosis(rows, axis=2, bias=False).mean(axis=1)
        n = 16.0
        variance = 24 * n * (n - 1) ** 2 / ((n - 3) * (n - 2) * (n + 3) * (n + 5)) / 10
        naive = stats.norm.sf(kurtosis / math.sqrt(variance))
        with pytest.raises(AssertionError):
            at_most_nominal(naive)

    @pytest.mark.parametrize("draw", ["uniform", "laplace", "exponential"])
    def test_sees_other_shapes(self, draw):
        rows = getattr(np.random.default_rng(4), draw)(size=(50, 40))
        _, skewness_p, _, kurtosis_p = normality.average_shape(rows)
        assert min(skewness_p, kurtosis_p) < 1e-12


class TestPitEcdf:
    def test_band_holds_a_gaussian_sample_and_not_another(self):
        generator = np.random.default_rng(5)
        at, difference, width = normality.pit_ecdf(generator.normal(3.0, 2.0, 1000))
        assert at.shape == difference.shape == width.shape == (200,)
        assert np.all(np.abs(difference) < 1.5 * width)
        _, difference, width = normality.pit_ecdf(generator.uniform(size=1000))
        assert np.any(np.abs(difference) > width)
