"""Numbers on grids as coarse as their own errors: what of one canary, or of one pair, may be told.

A result is published, and a single canary's number is its noise: with the released weights it gives
a private sum back. So whatever is the extreme of many, and hence that of one of them, is told no
finer than chance moves it. A p-value of one value is that value, and is told as coarsely.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from askgauss._rounding import digits, two_digits_up
from askgauss.checks.tails import Spread

__all__ = [
    "coarse_chance",
    "coarse_cosine",
    "coarse_cosines",
    "coarse_deviations",
    "coarse_spread",
    "significant",
    "to_its_error",
]

# Checks whose p-value may be that of one canary, one step or one pair.
_OF_ONE = frozenset(
    {
        "common noise",
        "even contribution",
        "honest updates",
        "noise by coordinate",
        "noise by entry",
        "noise by level",
        "noise by node",
        "noise by tensor",
        "noise extremes",
        "normality of absent scores",
        "normality of present scores",
        "repeated noise",
        "shared noise",
        "single plantings",
        "single records",
        "whole-run correlation",
    }
)
# Half the width of a 99 % interval, in standard errors.
_HALF_WIDTH = 2.5758
_INTERVAL_ERROR = 0.01
# Single values are told in steps of so many deviations of the noise.
_DEVIATIONS = 0.5
# Cosines between independent canaries have a deviation of one over the root of the steps; below
# three of them none is told from zero, because thousands of faint ones together tell directions.
_COSINE_STEP = 6.0
# Noises this much alike are one noise, which is told however few numbers it has.
_CERTAIN = 95.0
# Steps that are wider are told by their ends.
_NARROW = 0.1
# Down to here a power of ten is some half a deviation of the value it comes from; beyond, far less,
# and only every doubling of the exponent is told.
_LEAST_POWER = 6


def significant(value: float) -> float:
    """A number as texts show it; whole numbers, which are counts, as they are.

    Examples:
        >>> significant(1.5004321), significant(123456.0), significant(math.inf)
        (1.5, 123456.0, inf)
    """
    if not math.isfinite(value) or float(value).is_integer():
        return float(value)
    return digits(value, 4)


def coarse_chance(check: str, p_value: float) -> float:
    """The p-value of a check as it is published, never below what it was.

    Examples:
        >>> coarse_chance("noise scale", 0.04321), coarse_chance("noise extremes", 0.04321)
        (0.044, 0.1)
        >>> coarse_chance("noise extremes", 1e-9), coarse_chance("noise extremes", 1e-20)
        (1e-06, 1e-12)
    """
    if p_value <= 0.0 or p_value >= 1.0:
        return p_value
    if check not in _OF_ONE:
        return min(1.0, two_digits_up(p_value))
    power = 0
    while float(f"1e-{_next_power(power)}") >= p_value:
        power = _next_power(power)
    return float(f"1e-{power}")


def _next_power(power: int) -> int:
    return power + 1 if power < _LEAST_POWER else 2 * power


def coarse_deviations(value: float) -> float:
    """A single value, in deviations of the noise: to the nearest half of one."""
    return _DEVIATIONS * round(value / _DEVIATIONS) if math.isfinite(value) else value


def to_its_error(
    scale: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """By what to multiply scales so that they stand on a grid as fine as their standard errors."""
    factor = np.ones_like(scale)
    known = (scale > 0.0) & (low > 0.0) & (high > low)
    error = np.log(high[known] / low[known]) / (2.0 * _HALF_WIDTH)
    level = np.log(scale[known])
    factor[known] = np.exp(np.rint(level / error) * error - level)
    return factor


def coarse_spread(spread: Spread) -> Spread:
    """The same observations, with a scale on the grid of its own standard error."""
    if not spread.square > 0.0:
        return spread
    low, high = spread.interval(_INTERVAL_ERROR)
    factor = to_its_error(np.array([spread.scale]), np.array([low]), np.array([high]))
    return Spread(spread.freedom, spread.square * float(factor[0]) ** 2)


def coarse_cosines(
    percent: NDArray[np.float64], count: float, errors: float = _COSINE_STEP
) -> NDArray[np.float64]:
    """Cosines of so many numbers, in percent, on a grid of so many of their standard errors."""
    step = max(1.0, 100.0 * errors / math.sqrt(count))
    cosines = np.clip(np.rint(percent / step) * step, -100.0, 100.0)
    # Where a step is wider than any cosine, those close to one still show.
    # Without the sign of a zero, which would tell on which side of it a cosine lies.
    return np.where(np.abs(percent) >= _CERTAIN, np.rint(percent), cosines) + 0.0


def coarse_cosine(cosine: float, count: float, errors: float = _COSINE_STEP) -> tuple[float, str]:
    """One cosine on that grid, and in words: between which two of its points it lies.

    Examples:
        >>> coarse_cosine(0.2, 36), coarse_cosine(-0.6, 36), coarse_cosine(0.99, 36)
        ((0.0, 'less than 0.5'), (-0.725, '-0.50 to -0.95'), (0.99, '+0.99'))
    """
    coarse = float(coarse_cosines(np.array([100.0 * cosine]), count, errors)[0]) / 100.0
    step, most = max(0.01, errors / math.sqrt(count)), _CERTAIN / 100.0
    if not coarse:
        return 0.0, f"less than {min(most, 0.5 * step):.2g}"
    if abs(cosine) >= most or step < _NARROW:
        return coarse, f"{coarse:+.2f}"
    # The middle of what it may be: a wide step's own point may be more than any such cosine.
    steps = round(abs(cosine) / step)
    low, high = (math.copysign(min((steps + half) * step, most), cosine) for half in (-0.5, 0.5))
    return 0.5 * (low + high), f"{low:+.2f} to {high:+.2f}"
