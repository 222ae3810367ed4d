"""Tests of normality with estimated moments, and of more equal values than a grid explains.

**Equal values.** Rounded and discrete values repeat, and those of single precision do too. On a
grid that is fine beside their spread, two values are equal about as often as they are any small
number of grid points apart on one given side. So the pairs at distances 1, 2, ... say how many
pairs at distance 0 to expect, whatever the law of the values; a value that is counted twice adds to
those at distance 0 alone.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, betainc, gammaincc, log_ndtr, ndtr

__all__ = [
    "anderson_darling",
    "average_shape",
    "off_the_grid",
    "outlying",
    "pit_ecdf",
    "tie_excess",
]

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


Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# Distances that stand in for distance 0.
_DISTANCES = 4
# How much rarer pairs there may be for other reasons: on floating-point grids, whose spacing
# doubles here and there; and on even ones, in units of the grid over the standard deviation, for
# laws that fall as steeply as an exponential one.
_UNEVEN = 0.05
_STEEP = 2.5
# Fewer grid points than these in a standard deviation are too few to compare neighbours.
_FEWEST_IN_DEVIATION = 16.0
# Rounding of doubles, and the finest grid that stands out of it, in units of the largest value.
_ROUNDING = 1e-11
_FINEST = 1e-9
# Doubles have 52 bits after the leading one; whoever uses so many rounds to no grid.
_ALL_BITS = 48


def tie_excess(values: Array) -> tuple[float, float] | None:
    """How many more pairs are equal than the grid of the values explains, and the p-value.

    On a grid of more than one kind, the kind that explains more. Where the values lie on no grid,
    no pair should be equal.

    Returns:
        The excess and the p-value; None where the grid is too coarse to tell.

    Examples:
        >>> generator = np.random.default_rng(0)
        >>> rounded = generator.normal(size=2000).round(4)
        >>> tie_excess(rounded)[1] > 0.001
        True
        >>> tie_excess(np.append(rounded, rounded[:200]))[1] < 1e-9
        True
        >>> tie_excess(generator.integers(0, 5, 100).astype(float)) is None
        True
    """
    even, floating = _even(values), _floating(values)
    if even is None and floating is None:
        distinct = np.unique(values).size
        return float(values.size - distinct), float(distinct == values.size)
    found = []
    if even is not None:
        found.append(_excess_on(even, _STEEP / max(float(even.std()), 1.0)))
    if floating is not None:
        found.append(_excess_on(floating, _UNEVEN))
    told = [item for item in found if item is not None]
    return max(told, key=lambda item: item[1]) if len(told) == len(found) else None


def off_the_grid(values: Array) -> Array:
    """Values of an even grid, moved at random within their cells; others as they are.

    Tests of a continuous law see the steps of a grid long before they matter. Up to cells of one
    and a half standard deviations the moved values are as Gaussian as the law that was rounded, but
    for a kurtosis of some hundredths; coarser grids are left for what they are. The same values are
    always moved the same way.
    """
    if values.size - np.unique(values).size <= values.size // 100:
        return values
    indices = _even(values)
    deviation = 0.0 if indices is None else float(indices.std())
    if indices is None or deviation < 1.0 / 1.5:
        return values
    step = float(values.std()) / deviation
    digest = hashlib.blake2b(np.ascontiguousarray(indices).data, digest_size=16).digest()
    generator = np.random.default_rng(int.from_bytes(digest))
    return values + step * (generator.random(values.size) - 0.5)


def _even(values: Array) -> Integers | None:
    """Places on an evenly spaced grid, from the greatest common divisor of the gaps."""
    distinct = np.unique(values)
    gaps = np.unique(np.diff(distinct))
    if gaps.size == 0:
        return np.zeros(values.size, dtype=np.int64)
    scale = float(np.abs(distinct).max())
    step = float(gaps[0])
    # The few smallest gaps have the divisor of all; the check below makes sure.
    for gap in gaps[1:64].tolist():
        rest = gap
        while rest > _ROUNDING * scale:
            step, rest = rest, abs(step - round(step / rest) * rest)
    if step < _FINEST * scale:
        return None
    span = float(distinct[-1] - distinct[0])
    step = span / round(span / step)
    places = (values - distinct[0]) / step
    indices: Array = np.rint(places)
    if float(np.abs(places - indices).max()) * step > _ROUNDING * scale:
        return None
    return indices.astype(np.int64)


def _floating(values: Array) -> Integers | None:
    """Places among the floating-point numbers of as few bits as the values have."""
    bits = np.abs(values).view(np.int64)
    used = int(np.bitwise_or.reduce(bits & ((1 << 52) - 1)))
    spare = (used & -used).bit_length() - 1  # trailing zeros that all values share
    if used == 0 or 52 - spare >= _ALL_BITS:
        return None
    ranks = bits >> spare
    return np.where(values < 0.0, -ranks, ranks)


def _excess_on(indices: Integers, uneven: float) -> tuple[float, float] | None:
    """The excess of equal pairs over neighbouring ones, and its p-value.

    For a smooth law the difference of pairs at distance 0 and half the average of those nearby is a
    sum over pairs without a common part, so its variance is that of as many independent pairs. Its
    tail is taken for the larger of the binomial one, right where ties are few, and of a gamma law
    with at least its skewness: Poisson's where they are few, and that of as many chi-squares as
    there are grid points in use where they are many.
    """
    places, counts = np.unique(indices, return_counts=True)
    size, number = float(indices.size), counts.astype(np.float64)
    equal = float((number * (number - 1.0)).sum()) / 2.0
    near = 0.0
    for distance in range(1, _DISTANCES + 1):
        at = np.minimum(np.searchsorted(places, places + distance), places.size - 1)
        near += float((number * number[at] * (places[at] == places + distance)).sum())
    expected = near / (2.0 * _DISTANCES)
    in_use = size * size / (2.0 * expected) if expected > 0.0 else math.inf
    if min(float(indices.std()), in_use) < _FEWEST_IN_DEVIATION:
        return None
    expected *= 1.0 + uneven
    excess = equal - expected
    if excess <= 0.0:
        return excess, 1.0
    share = 1.0 / (2.0 * _DISTANCES + 1.0)
    few = float(betainc(equal, near + 1.0, (1.0 + uneven) * share))  # a binomial tail
    mean = max(expected, share)
    variance = mean * (1.0 + 0.5 / _DISTANCES)
    skewness = 1.0 / math.sqrt(mean) + 4.0 * math.sqrt(mean) / size
    shape = 4.0 / skewness**2
    many = float(gammaincc(shape, shape + math.sqrt(shape / variance) * excess))
    return excess, max(few, many)
