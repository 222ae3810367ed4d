"""Are there more equal values than the grid they lie on makes equal by chance?

Rounded and discrete values repeat, and those of single precision do too. On a grid that is fine
beside their spread, two values are equal about as often as they are any small number of grid points
apart on one given side. So the pairs at distances 1, 2, ... say how many pairs at distance 0 to
expect, whatever the law of the values; a value that is counted twice adds to those at distance 0
alone.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaincc

__all__ = ["off_the_grid", "tie_excess"]

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
