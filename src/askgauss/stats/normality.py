"""Tests of normality with estimated mean and variance, and the band for their picture."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, log_ndtr, ndtr

__all__ = ["anderson_darling", "average_shape", "outlying", "pit_ecdf"]

# Up to here the published fit is good to 1 % (and slightly cautious at 1.3).
_FITTED = 1.3
_FITTED_TAIL = 0.0023
# One over twice the largest eigenvalue, .098436, of the statistic's limiting law.
_TAIL_RATE = 5.0794


def anderson_darling(values: ArrayLike) -> tuple[float, float]:
    """Anderson and Darling's statistic for normality, and its p-value.

    The mean and the variance are estimated; the p-value is that of D'Agostino and Stephens (1986),
    table 4.9, for the statistic corrected for the sample's size, and an upper bound beyond .002.

    Returns:
        The corrected statistic and the p-value.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> anderson_darling(rng.normal(size=500))[1] > 0.01
        True
        >>> anderson_darling(rng.exponential(size=500))[1] < 1e-6
        True
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = ordered.size
    standard = (ordered - ordered.mean()) / ordered.std(ddof=1)
    weights = 2.0 * np.arange(1, count + 1) - 1.0
    raw = -count - float(weights @ (log_ndtr(standard) + log_ndtr(-standard[::-1]))) / count
    statistic = raw * (1.0 + 0.75 / count + 2.25 / count**2)
    return statistic, _p_value(statistic)


def outlying(values: ArrayLike) -> tuple[float, float]:
    """Whether more of Gaussian values lie far from their mean than chance puts there.

    The furthest, the second furthest, the fourth and so on up to a tenth of them are each held
    against the binomial law of how many lie that far, so that a few outliers do not hide each
    other. Deviations in units of the values' own are never further off than Gaussian ones, which
    makes this cautious.

    Returns:
        How many deviations the furthest lies off, and the p-value.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> outlying(np.append(rng.normal(size=500), [4.0, 4.1, 4.2, 4.3]))[1] < 1e-4
        True
    """
    found = np.asarray(values, dtype=np.float64)
    off = np.sort(np.abs(found - found.mean()))[::-1] / found.std(ddof=1)
    ranks = 2 ** np.arange(max(int(math.log2(max(found.size / 10.0, 1.0))), 0) + 1)
    p_values = bdtrc(ranks - 1.0, found.size, 2.0 * ndtr(-off[ranks - 1]))
    return float(off[0]), min(1.0, ranks.size * float(p_values.min()))


def _p_value(statistic: float) -> float:
    a = statistic
    if a < 0.2:
        return 1.0 - math.exp(-13.436 + 101.14 * a - 223.73 * a * a)
    if a < 0.34:
        return 1.0 - math.exp(-8.318 + 42.796 * a - 59.938 * a * a)
    if a < 0.6:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a * a)
    if a < _FITTED:
        return math.exp(1.2937 - 5.709 * a + 0.0186 * a * a)
    # Further out the fit falls too fast: 0.77 of the truth at 3e-6. The tail of a weighted sum of
    # chi-squares thins no slower than that of its largest term, which is taken instead.
    return _FITTED_TAIL * math.exp(-_TAIL_RATE * (a - _FITTED))


def average_shape(rows: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Skewness and excess kurtosis averaged over rows, and how unlikely each is.

    Each row is taken by its own mean and variance, so that rows may differ in scale. Under
    normality the averages have mean zero at any row length; their laws are D'Agostino's (1970) and
    Anscombe and Glynn's (1983) approximations with the third or fourth moment of one row's
    statistic divided by the number of rows, since cumulants of independent rows add up. The plain
    Gaussian approximation would reject by kurtosis ten times too often at 1e-4.

    Args:
        rows: Samples of the same size, 8 or more in each.

    Returns:
        Mean skewness, its two-sided p-value, mean excess kurtosis, its two-sided p-value.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> _, _, kurtosis, p_value = average_shape(rng.uniform(size=(50, 40)))
        >>> kurtosis < -1, p_value < 1e-9
        (True, True)
    """
    centred = rows - rows.mean(axis=1, keepdims=True)
    # By a power of two, which rounds nothing: the fourth power of 1e80 is no number any more.
    centred = np.ldexp(centred, -np.frexp(np.abs(centred).max(axis=1, keepdims=True))[1])
    power = centred * centred
    second = power.mean(axis=1)
    third = np.einsum("ij,ij->i", power, centred) / rows.shape[1]
    fourth = np.einsum("ij,ij->i", power, power) / rows.shape[1]
    count, n = rows.shape[0], float(rows.shape[1])
    skewness = float((third / second**1.5).mean())
    kurtosis = float(
        ((n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (fourth / second**2 - 3) + 6)).mean()
    )
    return (
        skewness,
        2.0 * float(ndtr(-abs(_skewness_score(skewness, n, count)))),
        kurtosis,
        2.0 * float(ndtr(-abs(_kurtosis_score(kurtosis, n, count)))),
    )


def _skewness_score(skewness: float, n: float, count: int) -> float:
    """A standard normal score of the skewness averaged over ``count`` samples of ``n``."""
    variance = 6 * (n - 2) / ((n + 1) * (n + 3))
    fourth = 3 * (n * n + 27 * n - 70) * (n + 1) * (n + 3)
    excess = (fourth / ((n - 2) * (n + 5) * (n + 7) * (n + 9)) - 3) / count
    square = math.sqrt(2 * (2 + excess)) - 1
    scale = math.sqrt(2 / (square - 1))
    return math.asinh(skewness * math.sqrt(count / variance) / scale) / math.sqrt(
        0.5 * math.log(square)
    )


def _kurtosis_score(kurtosis: float, n: float, count: int) -> float:
    """A standard normal score of the excess kurtosis averaged over ``count`` samples of ``n``."""
    variance = 24 * n * (n - 1) ** 2 / ((n - 3) * (n - 2) * (n + 3) * (n + 5))
    third = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9))
    third *= math.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)) / count)
    freedom = 6 + 8 / third * (2 / third + math.sqrt(1 + 4 / third**2))
    below = 1 + kurtosis * math.sqrt(count / variance) * math.sqrt(2 / (freedom - 4))
    if below <= 0.0:
        return -math.inf
    root = math.cbrt((1 - 2 / freedom) / below)
    return (1 - 2 / (9 * freedom) - root) / math.sqrt(2 / (9 * freedom))


def pit_ecdf(
    values: ArrayLike, *, points: int = 200, confidence: float = 0.95, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """How far the values stray from a fitted Gaussian, with a simultaneous band.

    Values are carried to (0, 1) by the fitted Gaussian's distribution function; a Gaussian sample
    then is uniform. The band holds the whole difference between the empirical distribution and the
    diagonal with this confidence, the fit included: it comes from simulated Gaussian samples that
    are fitted the same way.

    Returns:
        Where (in (0, 1)), the difference there, and the half-width of the band there.
    """
    sample = np.asarray(values, dtype=np.float64)
    at = (np.arange(points) + 0.5) / points

    def difference(data: NDArray[np.float64]) -> NDArray[np.float64]:
        standard = ndtr((data - data.mean()) / data.std(ddof=1))
        return np.searchsorted(np.sort(standard), at, side="right") / data.size - at

    generator = np.random.default_rng(seed)
    # The band's shape does not depend on the size beyond a few thousand, only its scale does.
    size = min(sample.size, 4000)
    simulated = np.stack([difference(generator.standard_normal(size)) for _ in range(400)])
    width = simulated.std(axis=0)
    reach = np.quantile(np.abs(simulated / width).max(axis=1), confidence)
    return at, difference(sample), reach * width * math.sqrt(size / sample.size)
