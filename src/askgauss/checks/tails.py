"""Distributions the checks share: tail probabilities, exact where known, and noise on lattices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import (
    betainc,
    betaincc,
    chdtr,
    chdtrc,
    chdtri,
    gammainc,
    gammaincc,
    gammaln,
    ndtr,
    stdtr,
)

from askgauss.stats.rounding import rounding_factor

__all__ = [
    "Spread",
    "chance_near_zero",
    "chance_on_lattice",
    "correlation_tail",
    "equal_variances_p_value",
    "extreme_p_value",
    "extreme_shares",
    "in_short_format",
    "lattice_step",
    "oddest_variance",
    "overlap_p_value",
    "ratio_p_value",
    "ratio_tail",
    "share_p_values",
    "skewed_tail",
    "sums_of_others",
]

# The interval whose width gives the standard error that a scale is rounded to.
_ROUNDED_WITHIN = 0.01
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


@dataclass(frozen=True, slots=True)
class Spread:
    """Sum of squares of independent Gaussian observations of mean zero."""

    freedom: float
    square: float

    @property
    def scale(self) -> float:
        """Their standard deviation."""
        return math.sqrt(self.square / self.freedom)

    def interval(self, error: float) -> tuple[float, float]:
        """A two-sided interval of the standard deviation."""
        low = math.sqrt(self.square / chdtri(self.freedom, 0.5 * error))
        return low, math.sqrt(self.square / chdtri(self.freedom, 1.0 - 0.5 * error))

    def p_value(self, scale: float) -> float:
        """Of "this is the standard deviation", two-sided."""
        statistic = self.square / scale**2
        return 2.0 * float(min(chdtr(self.freedom, statistic), chdtrc(self.freedom, statistic)))

    def rounded(self) -> Spread:
        """The same observations, with a scale that is rounded to its own standard error.

        A group may be a single canary: what is published of it is no finer than chance moves it.
        """
        if not self.square > 0.0:
            return self
        low, high = self.interval(_ROUNDED_WITHIN)
        factor = rounding_factor(np.array([self.scale]), np.array([low]), np.array([high]))
        return Spread(self.freedom, self.square * float(factor[0]) ** 2)

    def lower_p_value(self, scale: float) -> float:
        """Of "the standard deviation is at least this"."""
        return float(chdtr(self.freedom, self.square / scale**2))


def sums_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each number the sum of all but it, in which small ones do not vanish beside it."""
    before, after = np.cumsum(values), np.cumsum(values[::-1])[::-1]
    return np.asarray(np.append(0.0, before[:-1]) + np.append(after[1:], 0.0))


def _share(ratio: float, numerator: float, denominator: float) -> float:
    """What the numerator has of both sums of squares; all of it where the ratio is infinite."""
    return 0.0 if ratio == 0.0 else 1.0 / (1.0 + denominator / (numerator * ratio))


def ratio_tail(ratio: float, numerator: float, denominator: float) -> float:
    """P[F >= ratio] for a ratio of two variances with these degrees of freedom."""
    x = _share(ratio, numerator, denominator)
    return float(betaincc(0.5 * numerator, 0.5 * denominator, x))


def ratio_p_value(ratio: float, numerator: float, denominator: float) -> float:
    """Of "the two variances are equal", two-sided."""
    x = _share(ratio, numerator, denominator)
    below = float(betainc(0.5 * numerator, 0.5 * denominator, x))
    return min(1.0, 2.0 * min(below, ratio_tail(ratio, numerator, denominator)))


def share_p_values(
    share: NDArray[np.float64], freedom: NDArray[np.float64], whole: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of shares of a sum of squares of Gaussian observations: P[at most this], P[at least this].

    Exact, and sharper than a ratio to the rest where the rest is small.

    Args:
        share: Part of the whole sum of squares.
        freedom: Degrees of freedom of that part, below ``whole``.
        whole: Degrees of freedom of all of it.
    """
    first, second, x = 0.5 * freedom, 0.5 * (whole - freedom), np.clip(share, 0.0, 1.0)
    return np.asarray(betainc(first, second, x)), np.asarray(betaincc(first, second, x))


def extreme_shares(
    square: NDArray[np.float64], count: NDArray[np.float64]
) -> tuple[int, float, float]:
    """The least likely parts of a sum of squares, of parts of whole numbers of observations.

    Of parts of one count the smallest is the least likely to be so small, and the largest to be so
    large: a tail is computed for these alone, which of millions takes a fiftieth of the time.

    Returns:
        Which part is least likely to be so small; how likely that one is, and the least likely to
        be so large.
    """
    kind = count.astype(np.int64)
    least, most = np.full(kind.max() + 1, np.inf), np.full(kind.max() + 1, -np.inf)
    np.minimum.at(least, kind, square)
    np.maximum.at(most, kind, square)
    kinds = np.flatnonzero(least < np.inf)
    ends = np.concatenate((least[kinds], most[kinds]))
    whole = float(square.sum()), float(count.sum())
    below, above = share_p_values(ends / whole[0], np.tile(kinds, 2).astype(np.float64), whole[1])
    odd = kinds[np.argmin(below[: kinds.size])]
    lowest = int(np.argmax((kind == odd) & (square == least[odd])))
    return lowest, float(below.min()), float(above.min())


def extreme_p_value(above: float, at_least: float, count: int) -> float:
    """Of the largest of ``count`` independent draws, two-sided.

    Args:
        above: Probability that one draw reaches it.
        at_least: The same, or a little less where draws lie on a lattice.
        count: Number of draws.
    """
    below = math.exp(count * math.log1p(-min(at_least, 1.0 - 1e-16)))
    return min(1.0, 2.0 * min(count * above, below))


def skewed_tail(score: float, skewness: float) -> float:
    """P[X >= score] for a standardised sum of this skewness, by a shifted gamma distribution."""
    if skewness < 1e-6:
        return float(ndtr(-score))
    shape = 4.0 / skewness**2
    return float(gammaincc(shape, max(shape + score * math.sqrt(shape), 0.0)))


def equal_variances_p_value(square: NDArray[np.float64], freedom: NDArray[np.float64]) -> float:
    """Bartlett's test that groups of Gaussian observations have one variance."""
    groups, whole = square.size, float(freedom.sum())
    statistic = whole * math.log(float(square.sum()) / whole)
    statistic -= float((freedom * np.log(square / freedom)).sum())
    correction = 1.0 + (float((1.0 / freedom).sum()) - 1.0 / whole) / (3.0 * (groups - 1))
    return float(chdtrc(groups - 1, max(statistic, 0.0) / correction))


def oddest_variance(
    square: NDArray[np.float64], freedom: NDArray[np.float64], scale: float | None, *, less: bool
) -> tuple[int, float]:
    """Which of many groups has the least likely variance, and how unlikely that is among them.

    Exact for each group, and an upper bound for the least of all, whatever their dependence.

    Args:
        square: Sums of squares of Gaussian observations of mean zero, one a group.
        freedom: How many there are in each.
        scale: Their standard deviation; None to compare each group with all others together.
        less: Ask for too little only, as where something else may add to the variance.
    """
    if scale is not None:
        statistic = square / scale**2
        below, above = chdtr(freedom, statistic), chdtrc(freedom, statistic)
    else:
        rest_square, rest = sums_of_others(square), freedom.sum() - freedom
        share = square / np.maximum(square + rest_square, np.finfo(np.float64).tiny)
        below = betainc(0.5 * freedom, 0.5 * rest, share)
        above = betaincc(0.5 * freedom, 0.5 * rest, share)
    p_values = below if less else 2.0 * np.minimum(below, above)
    worst = int(np.argmin(p_values))
    return worst, min(1.0, square.size * float(p_values[worst]))


def correlation_tail(correlation: float, count: float) -> float:
    """P[the correlation of two independent Gaussian samples of mean zero is at least this]."""
    if abs(correlation) >= 1.0:
        return 0.0 if correlation > 0.0 else 1.0
    t = correlation * math.sqrt((count - 1.0) / (1.0 - correlation**2))
    return float(stdtr(count - 1.0, -t))


def overlap_p_value(overlap: int, first: int, second: int, steps: int) -> float:
    """Of "two records are sampled independently", given in how many of the steps each was.

    Two-sided and exact: the number of steps they share is then hypergeometric.
    """
    shared = np.arange(max(0, first + second - steps), min(first, second) + 1)
    logs = (
        _log_choose(first, shared)
        + _log_choose(steps - first, second - shared)
        - _log_choose(steps, np.array(second))
    )
    mass = np.exp(logs)
    tails = mass[shared >= overlap].sum(), mass[shared <= overlap].sum()
    return min(1.0, 2.0 * float(min(tails)))


def _log_choose(total: int, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(total + 1.0) - gammaln(chosen + 1.0) - gammaln(total - chosen + 1.0))


# --- noise on lattices and in short number formats -----------------------------------------------


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
                return near, f"{format_name} numbers"
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
