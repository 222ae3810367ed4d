import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.limits import (
    binomial_weights,
    clopper_pearson_lower,
    clopper_pearson_upper,
)

CASES = [
    (successes, trials, error)
    for successes, trials in [(0, 1), (0, 20), (3, 20), (19, 20), (5, 257), (252, 257), (40, 1000)]
    for error in (0.4, 0.05, 1e-3, 1e-12)
]


def at_most(successes, trials, probability):
    """P[Bin(trials, probability) <= successes], added up term by term."""
    with mpmath.workdps(40):
        p = mpmath.mpf(probability)
        terms = [
            mpmath.binomial(trials, k) * p**k * (1 - p) ** (trials - k)
            for k in range(successes + 1)
        ]
        return float(mpmath.fsum(terms))


@pytest.mark.parametrize(("successes", "trials", "error"), CASES)
def test_upper_limit_solves_its_equation(successes, trials, error):
    limit = clopper_pearson_upper(successes, trials, error)
    assert at_most(successes, trials, limit) == pytest.approx(
        error, rel=2e-4 if limit > 0.9999 else 1e-7
    )


@pytest.mark.parametrize(("successes", "trials", "error"), CASES)
def test_limits_mirror_each_other(successes, trials, error):
    upper = clopper_pearson_upper(successes, trials, error)
    assert clopper_pearson_lower(trials - successes, trials, error) == pytest.approx(
        1.0 - upper, rel=1e-9, abs=1e-15
    )


@pytest.mark.parametrize("trials", [1, 7, 500])
def test_edges(trials):
    assert clopper_pearson_upper(trials, trials, 0.05) == 1.0
    assert clopper_pearson_lower(0, trials, 0.05) == 0.0
    assert clopper_pearson_upper(0, trials, 0.05) == pytest.approx(1.0 - 0.05 ** (1 / trials))
    assert clopper_pearson_lower(trials, trials, 0.05) == pytest.approx(0.05 ** (1 / trials))


@pytest.mark.parametrize("truth", [0.001, 0.03, 0.2, 0.5, 0.77, 0.99])
def test_coverage_by_enumeration(truth):
    trials, error = 60, 0.1
    counts = np.arange(trials + 1)
    mass = binom.pmf(counts, trials, truth)
    upper = np.array([clopper_pearson_upper(int(count), trials, error) for count in counts])
    lower = np.array([clopper_pearson_lower(int(count), trials, error) for count in counts])
    assert mass[upper < truth].sum() <= error
    assert mass[lower > truth].sum() <= error


def test_agrees_with_jax_privacy():
    from jax_privacy import auditing

    counts = np.arange(101)
    theirs = auditing._clopper_pearson_upper(counts, 100, 0.025)
    ours = [clopper_pearson_upper(int(count), 100, 0.025) for count in counts]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 10, 0.05), "successes"),
        ((11, 10, 0.05), "successes"),
        ((1.0, 10, 0.05), "successes"),
        ((True, 10, 0.05), "successes"),
        ((0, 0, 0.05), "trials"),
        ((1, 10, 0.0), "error"),
        ((1, 10, 1.0), "error"),
        ((1, 10, math.nan), "error"),
    ],
)
def test_bad_arguments_of_the_limits(arguments, name):
    for limit in (clopper_pearson_upper, clopper_pearson_lower):
        with pytest.raises(InvalidArgumentError, match=rf"\b{name}\b"):
            limit(*arguments)


def test_binomial_weights():
    for steps, rate in ((1, 0.3), (2500, 0.08), (10**6, 0.5), (10**6, 1e-6), (50, 1 - 1e-9)):
        counts, logs = binomial_weights(steps, rate, 57.0)
        expected = binom.logpmf(counts, steps, rate)
        kept = expected > -60
        np.testing.assert_allclose(logs[kept], expected[kept], rtol=1e-8, atol=1e-9)
        left_out = binom.cdf(counts[0] - 1, steps, rate)
        left_out += binom.sf(counts[-1], steps, rate)
        assert left_out <= 2 * math.exp(-57.0)
