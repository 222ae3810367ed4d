"""The noncentral t against mpmath, scipy where that is right, and its own symmetries."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import shift as noncentral_t


def log_cdf(t, df, noncentrality):
    return noncentral_t.log_t_survival(np.negative(t), df, np.negative(noncentrality))


def cdf(t, df, noncentrality):
    return np.exp(log_cdf(t, df, noncentrality))


def log_survival_by_mpmath(t: float, df: int, noncentrality: float) -> float:
    """Integrate density(chi) * Phi(noncentrality - t chi / sqrt(df)) with 30 digits."""
    with mp.workdps(30):
        slope, mean = mp.mpf(t) / mp.sqrt(df), mp.mpf(noncentrality)
        constant = -(mp.mpf(df) / 2 - 1) * mp.log(2) - mp.loggamma(mp.mpf(df) / 2)

        def normal(y):
            return mp.erfc(-y / mp.sqrt(2)) / 2

        def log_integrand(chi):
            log_density = constant + (df - 1) * mp.log(chi) - chi**2 / 2
            return log_density + mp.log(normal(mean - slope * chi))

        def rises(chi):
            y = mean - slope * chi
            return (df - 1) / chi - chi - slope * mp.npdf(y) / normal(y) > 0

        low, high = mp.mpf(10) ** -25, 2 * mp.sqrt(df) + abs(mean) + 40
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if rises(middle) else (low, middle)
        peak, height = low, log_integrand(low)

        def reach(sign):
            step = peak * mp.mpf(10) ** -6
            while peak + sign * step > 0 and log_integrand(peak + sign * step) > height - 60:
                step *= 1.5
            return step

        left, right = min(reach(-1), peak), reach(1)
        points = [peak - left * k / 5 for k in range(5, 0, -1)]
        points += [peak + right * k / 5 for k in range(6)]
        if slope:
            steps = [(mean + k) / slope for k in (-9, -5, -2, 0, 2, 5, 9)]
            points += [point for point in steps if points[0] < point < points[-1]]
        tiny = mp.mpf(10) ** -40
        total = mp.quad(
            lambda chi: mp.exp(log_integrand(max(chi, tiny)) - height),
            sorted(points),
            method="gauss-legendre",
            maxdegree=4,
        )
        return float(height + mp.log(total))


# t, degrees of freedom, noncentrality: bulk and both tails, the density narrower than the step and
# the step narrower than the density, very few and very many degrees of freedom.
CASES = [
    (0.0, 1, 0.0),
    (3.0, 1, 1.0),
    (-40.0, 1, 2.5),
    (1e5, 1, 1e5),
    (25.0, 2, 0.0),
    (1e6, 3, 0.0),
    (12.0, 5, 30.0),
    (2.0, 10, 2.5),
    (60.0, 10, 2.5),
    (0.0, 27, 9.0),
    (8.0, 98, 5.0),
    (5.0, 98, 25.0),
    (79.0, 4998, 75.0),
    (2e4, 4998, 1.9e4),
    (1.2e6, 1190, 1e6),
    (1e7, 50, 0.6e7),
    (1020.0, 10**6, 1000.0),
    (1.0e6, 1_270_041, 0.997e6),
    (5003.0, 10**7, 5000.0),
    (1e7, 51_170_359, 0.9995e7),
    (1e7, 6 * 10**8, 1.0003e7),
    (4.0, 6 * 10**8, 0.0),
]


@pytest.mark.parametrize(("t", "df", "noncentrality"), CASES)
def test_both_tails_agree_with_mpmath(t, df, noncentrality):
    for sign, function in ((1, noncentral_t.log_t_survival), (-1, log_cdf)):
        exact = log_survival_by_mpmath(sign * t, df, sign * noncentrality)
        # An absolute error of the logarithm is a relative error of the probability.
        assert function(t, df, noncentrality) == pytest.approx(exact, rel=1e-13, abs=1e-11)


@pytest.mark.parametrize(
    ("t", "df", "noncentrality"), [(200.0, 1000, 10.0), (500.0, 300_000, 20.0), (3e5, 9, -0.7)]
)
def test_logarithm_is_right_far_below_the_smallest_float(t, df, noncentrality):
    exact = log_survival_by_mpmath(t, df, noncentrality)
    assert exact < -100
    assert noncentral_t.log_t_survival(t, df, noncentrality) == pytest.approx(exact, rel=1e-13)


def test_agrees_with_scipy_where_scipy_holds():
    rng = np.random.default_rng(0)
    df = rng.integers(2, 3000, size=300)
    noncentrality = rng.uniform(0, 30, size=300)
    t = noncentrality + 2 * rng.normal(size=300)
    ours = noncentral_t.t_survival(t, df, noncentrality)
    assert ours == pytest.approx(stats.nct.sf(t, df, noncentrality), rel=1e-8, abs=1e-11)


def test_central_case_is_students():
    t = np.linspace(-30, 30, 61)[:, None]
    df = np.array([1, 2, 3, 10, 100, 10**5])
    assert cdf(t, df, 0.0) == pytest.approx(special.stdtr(df, t), rel=1e-11)


def test_many_degrees_of_freedom_leave_the_normal():
    t = np.linspace(-5, 5, 21)
    expected = special.log_ndtr(0.7 - t)
    assert noncentral_t.log_t_survival(t, 10**15, 0.7) == pytest.approx(expected, rel=1e-12)


def test_huge_noncentrality_leaves_chi():
    # The normal no longer matters: t' >= t is chi <= sqrt(df) * noncentrality / t.
    ratio = np.array([0.9, 1.0, 1.2])
    for df in (1, 7, 100):
        expected = special.gammainc(df / 2, df / 2 * ratio**2)
        ours = noncentral_t.t_survival(1e40, df, ratio * 1e40)
        assert ours == pytest.approx(expected, rel=1e-12)


numbers = st.floats(-1e7, 1e7)
freedoms = st.integers(1, 6 * 10**8)


@given(t=numbers, df=freedoms, noncentrality=numbers)
def test_tails_add_up_and_mirror(t, df, noncentrality):
    above = noncentral_t.t_survival(t, df, noncentrality)
    below = cdf(t, df, noncentrality)
    assert above + below == pytest.approx(1.0, abs=1e-11)
    assert noncentral_t.t_survival(-t, df, -noncentrality) == below


@given(t=numbers, df=freedoms, spread=st.floats(1e-3, 1e3))
def test_monotone_in_noncentrality(t, df, spread):
    noncentrality = t + spread * np.linspace(-20, 20, 41) * math.sqrt(1 + t * t / df)
    log = noncentral_t.log_t_survival(t, df, noncentrality)
    assert np.all(np.diff(log) >= -1e-12 * np.abs(log[1:]) - 1e-11)


def test_broadcasts_and_a_vector_is_its_scalars():
    t = np.array([1.0, 50.0, -3.0])[:, None, None]
    df = np.array([1, 20, 10**6])[:, None]
    noncentrality = np.array([0.0, 3.0, 45.0, 1e4])
    table = noncentral_t.log_t_survival(t, df, noncentrality)
    assert table.shape == (3, 3, 4)
    for (i, j, k), value in np.ndenumerate(table):
        alone = noncentral_t.log_t_survival(t[i, 0, 0], df[j, 0], noncentrality[k])
        assert np.ndim(alone) == 0
        assert alone == pytest.approx(value, rel=1e-14)
    assert noncentral_t.t_survival(1.0, 5, []).shape == (0,)


def test_infinite_t():
    assert noncentral_t.t_survival([np.inf, -np.inf], 5, 1.0).tolist() == [0.0, 1.0]
    assert cdf([np.inf, -np.inf], 5, 1.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("t", "df", "noncentrality", "name"),
    [
        (math.nan, 5, 0.0, "t"),
        (1.0, 0, 0.0, "df"),
        (1.0, 2.5, 0.0, "df"),
        (1.0, math.nan, 0.0, "df"),
        (1.0, [5, -1], 0.0, "df"),
        (1.0, 5, math.inf, "noncentrality"),
    ],
)
def test_refuses_what_it_cannot_compute(t, df, noncentrality, name):
    with pytest.raises(InvalidArgumentError, match=rf"\b{name}\b"):
        noncentral_t.t_survival(t, df, noncentrality)
