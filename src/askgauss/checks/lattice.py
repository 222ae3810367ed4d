"""Noise on lattices and in short number formats."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, ndtr

__all__ = ["chance_near_zero", "chance_on_lattice", "in_short_format", "lattice_step"]

# Fewer values than these may seem to lie on a lattice, or to crowd.
_FEWEST_ON_A_LATTICE = 200
_FEWEST_VALUES = 1000
# Lattices finer than this, in deviations, are as good as none; no noise lies further out; and what
# is left of the variance of noise that is rounded to a very wide one, at least.
_FINE = 0.2
_FURTHEST = 12.0
_NARROWEST = 0.01
# Probability below which so many values in one place are no accident.
_NO_CROWD = 1e-6
# Bits of precision of the formats that noise is sometimes drawn in, the leading one included.
_SHORT_FORMATS = (("bfloat16", 8), ("float16", 11))
_BLOCK = 1 << 18


def lattice_step(values: NDArray[np.float64]) -> float:
    """The step of an even lattice that all values lie on, 0 if there is none.

    Any numbers of finite precision lie on some lattice; one that fewer values could fill than
    there are is no accident.
    """
    if values.size < _FEWEST_ON_A_LATTICE:
        return 0.0
    # Around zero, not around their mean: what is always the same has a size, and no spread.
    largest = float(np.abs(values).max())
    scale = largest * float(np.sqrt(np.square(values / largest).mean()))
    if not 0.0 < scale < np.inf:
        return 0.0
    size = np.unique(np.round(np.abs(values) / scale, 7))
    gaps = np.diff(size, prepend=0.0)
    step = float(gaps[gaps > 0.0].min())
    if size[-1] > step * values.size:
        return 0.0
    # The largest value says the step more exactly than the smallest gap.
    step = float(size[-1]) / round(float(size[-1]) / step)
    off = np.abs(size / step - np.rint(size / step))
    return step * scale if float(off.max()) < 0.01 else 0.0


def chance_near_zero(values: NDArray[np.float64], reach: float) -> float:
    """Probability that smooth noise lies within ``reach`` deviations of zero.

    Args:
        values: Some of the noise, in which zero may be as crowded as other numbers.
        reach: How far, in deviations.
    """
    smooth = 2.0 * float(ndtr(reach)) - 1.0
    return max(smooth, _crowding(values, reach))


def _crowding(values: NDArray[np.float64], reach: float) -> float:
    """The share of values next to a number that is not zero, where smooth noise has no such crowd.

    Sums of integers whose background is known in fractions lie near a lattice, not on it: then
    zero is as crowded as its neighbours. 0 where noise is smooth.
    """
    if values.size < _FEWEST_VALUES:
        return 0.0
    deviation = values.std()
    size = np.abs(values)
    size.sort()
    size = size[slice(*np.searchsorted(size, [3.0 * reach * deviation, deviation]))] / deviation
    within = np.searchsorted(size, size + 2.0 * reach, side="right") - np.arange(size.size)
    most = int(within.max(initial=0))
    # Both signs of a number are one size here.
    expected = 4.0 * reach * values.size / math.sqrt(2.0 * math.pi)
    if size.size * float(gammainc(most, expected)) > _NO_CROWD:
        return 0.0
    return 0.5 * most / values.size


def chance_on_lattice(reach: float, spacing: float) -> float:
    """The same on a lattice of this spacing in deviations, at most.

    Noise is rounded to a lattice, which adds to its variance, or drawn on it. On a fine one that is
    the same.
    """
    places = math.floor(reach / spacing)
    narrower = math.sqrt(max(1.0 - spacing**2 / 12.0, _NARROWEST))
    rounded = 2.0 * float(ndtr((places + 0.5) * spacing / narrower)) - 1.0
    if spacing < _FINE:
        return rounded
    mass = np.exp(-0.5 * (spacing * np.arange(math.ceil(_FURTHEST / spacing) + 1)) ** 2)
    drawn = 2.0 * float(mass[: places + 1].sum()) - 1.0
    return max(rounded, drawn / (2.0 * float(mass.sum()) - 1.0))


def in_short_format(
    values: NDArray[np.float64], units: Iterable[float]
) -> tuple[float, str | None]:
    """The share of values that are numbers of a short format, itself or before it was scaled.

    So are whole numbers times a step, if they are small. But a short format gets finer towards
    zero: there too the last of its bits is set as often as not, and on an even lattice never.

    Args:
        values: The noise.
        units: What it may have been multiplied by after it was drawn.
    """
    median = float(np.median(np.abs(values), overwrite_input=True))
    largest = 0.0
    for unit in dict.fromkeys(unit for unit in units if unit > 0.0):
        for format_name, bits in _SHORT_FORMATS:
            near, odd = _nearness(values, unit, bits, median)
            if near > 0.9 and odd > 0.25:
                return near, f"the numbers of {format_name}"
            largest = max(largest, near if odd > 0.25 else 0.0)
    return largest, None


def _nearness(
    values: NDArray[np.float64], unit: float, bits: int, median: float
) -> tuple[float, float]:
    """The share of values next to a number of so many bits, and of odd ones among the small."""
    near = odd = small = 0.0
    # In blocks: long runs have more values than fit into memory several times.
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        place = np.abs(np.frexp(block / unit)[0]) * 2.0**bits
        whole = np.rint(place)
        # A sixteenth of all numbers lies this near to one of the format.
        near += np.count_nonzero(np.abs(place - whole) < 1 / 32)
        whole = whole[np.abs(block) <= median]
        odd, small = odd + float(np.sum(whole % 2.0)), small + whole.size
    return near / values.size, odd / small
