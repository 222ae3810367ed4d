"""Tests of normality with estimated mean and variance, and the band for their picture."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

__all__ = ["anderson_darling", "average_shape", "pit_ecdf"]


def anderson_darling(values: ArrayLike) -> tuple[float, float]:
    """Anderson and Darling's statistic for normality, and its p-value.

    The mean and the variance are estimated; the p-value is that of D'Agostino and Stephens (1986),
    table 4.9, for the statistic corrected for the sample's size.

    Returns:
        The corrected statistic and the p-value.

    Example:
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


def _p_value(statistic: float) -> float:
    a = statistic
    if a < 0.2:
        return 1.0 - math.exp(-13.436 + 101.14 * a - 223.73 * a * a)
    if a < 0.34:
        return 1.0 - math.exp(-8.318 + 42.796 * a - 59.938 * a * a)
    if a < 0.6:
        return math.exp(0.9177 - 4.279 * a - 1.38 * a * a)
    if a < 10.0:
        return math.exp(1.2937 - 5.709 * a + 0.0186 * a * a)
    # The fitted quadratic turns back up far out; its slope there is kept instead.
    return math.exp(1.2937 - 57.09 + 1.86 - 5.337 * (a - 10.0))


def average_shape(rows: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Skewness and excess kurtosis averaged over rows, each row by its own mean and variance.

    Each row's Fisher g statistics have mean zero under normality at any row length, whatever the
    row's scale, so the average over many rows is a sharp test even of short rows.

    Returns:
        Mean skewness, its z score, mean excess kurtosis, its z score.
    """
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    second = (centred**2).mean(axis=1)
    third = (centred**3).mean(axis=1)
    fourth = (centred**4).mean(axis=1)
    skewness = third / second**1.5
    n = float(count)
    kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (fourth / second**2 - 3) + 6)
    # Exact variances of the two statistics under normality.
    skewness_variance = 6 * (n - 2) / ((n + 1) * (n + 3))
    kurtosis_variance = 24 * n * (n - 1) ** 2 / ((n - 3) * (n - 2) * (n + 3) * (n + 5))
    root = math.sqrt(rows.shape[0])
    mean_skewness, mean_kurtosis = float(skewness.mean()), float(kurtosis.mean())
    return (
        mean_skewness,
        mean_skewness * root / math.sqrt(skewness_variance),
        mean_kurtosis,
        mean_kurtosis * root / math.sqrt(kurtosis_variance),
    )


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
