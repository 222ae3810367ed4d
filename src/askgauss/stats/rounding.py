"""Disclosure control by rounding: published numbers are no finer than they need to be.

A result is published, and a single canary's number is its noise: with the released weights it gives
a private sum back. So whatever is the extreme of many, and hence that of one of them, is rounded to
its own standard error. A p-value of one value is that value, and is rounded as coarsely.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COSINE_ERRORS",
    "FEW",
    "FEWEST_SHOWN",
    "about",
    "digits",
    "down",
    "is_handful",
    "on_grid",
    "round_cosine",
    "round_cosines",
    "round_deviations",
    "round_p_value",
    "rounding_factor",
    "scale_on_grid",
    "significant",
    "two_digits_up",
    "widened",
]

# Canaries, and observations of either kind, whose moments may be published: those of a handful
# would be those of single canaries.
FEWEST_SHOWN = 30

# Records that are too few to be distinguished from none: one of them may be somebody.
FEW = 10

COSINE_ERRORS = 6.0
"""Standard errors that a cosine between two canaries is rounded to.

Cosines between independent canaries have a deviation of one over the root of the steps; below three
of them none is distinguished from zero: thousands of faint ones together show directions.
"""

# Half the width of a 99 % interval, in standard errors.
_HALF_WIDTH = 2.5758
# Single values are published in steps of so many deviations of the noise.
_DEVIATIONS = 0.5
# Noises this similar are one noise, which is published however few numbers it has.
_CERTAIN = 95.0
# Steps that are wider are published by their ends.
_NARROW = 0.1
# Down to here a power of ten is some half a deviation of the value it comes from; beyond, far less,
# and only every doubling of the exponent is published.
_LEAST_POWER = 6


def about(count: int) -> str:
    """A count of records, in words: a power of two, or that there were few.

    Examples:
        >>> about(0), about(9), about(10), about(288), about(1_000_000)
        ('none or few', 'none or few', 'about 8', 'about 256', 'about 1,048,576')
    """
    return "none or few" if count < FEW else f"about {2 ** round(math.log2(count)):,}"


def digits(value: float, significant: int = 3) -> float:
    """A number with so many significant digits.

    Examples:
        >>> digits(0.10266666666666667), digits(1234.5), digits(float("inf"))
        (0.103, 1230.0, inf)
    """
    return float(f"{value:.{significant}g}")


def widened(interval: tuple[float, float], significant: int = 3) -> tuple[float, float]:
    """An interval with ends of so many digits, around the one that is given.

    Examples:
        >>> widened((0.09815, 0.10772))
        (0.0981, 0.108)
    """
    # The higher end of the numbers below zero.
    return -_up(-interval[0], significant), _up(interval[1], significant)


def down(value: float, significant: int = 3) -> float:
    """A lower bound with so many digits, and not above what it is.

    Examples:
        >>> down(1.2389), down(1.2)
        (1.23, 1.2)
    """
    return -_up(-value, significant)


def _up(value: float, significant: int) -> float:
    rounded = digits(value, significant)
    if rounded >= value or not math.isfinite(value):
        return rounded
    return digits(rounded + _last_place(rounded, significant), significant)


def _last_place(value: float, significant: int) -> float:
    """What the last of so many digits of a number counts."""
    return 10.0 ** (math.floor(math.log10(abs(value) or 1.0)) - significant + 1)


def two_digits_up(error: float) -> float:
    """A standard error or a p-value with two digits, and not smaller than it is.

    Examples:
        >>> two_digits_up(0.01414), two_digits_up(1e-6)
        (0.015, 1e-06)
    """
    return _up(error, 2)


def on_grid(value: float, width: float, origin: float = 0.0) -> float:
    """The point nearest to a value of a grid so wide that goes through the origin.

    Examples:
        >>> on_grid(2.9, 2.0, origin=1.0)
        3.0
    """
    if not (math.isfinite(value) and 0.0 < width < math.inf):
        return value
    return origin + round((value - origin) / width) * width


def is_handful(count: float) -> bool:
    """Whether moments of so many would be those of single canaries; of none there are no moments.

    Examples:
        >>> [is_handful(count) for count in (0, 1, 29, 30)]
        [False, True, True, False]
    """
    return 0 < count < FEWEST_SHOWN


def scale_on_grid(scale: float, values: float) -> float:
    """A scale of noise on a grid as wide as its own standard error.

    Args:
        scale: The scale.
        values: How many values it was measured from.

    Examples:
        >>> f"{scale_on_grid(0.0037831, 1.0):.3g}", f"{scale_on_grid(0.498, 1e4):.4g}"
        ('0.00349', '0.4966')
    """
    if not (0.0 < scale < math.inf and 0.0 < values < math.inf):
        return scale
    return math.exp(on_grid(math.log(scale), 1.0 / math.sqrt(2.0 * values)))


def significant(value: float) -> float:
    """A number as texts show it; whole numbers, which are counts, as they are.

    Examples:
        >>> significant(1.5004321), significant(123456.0), significant(math.inf)
        (1.5, 123456.0, inf)
    """
    if not math.isfinite(value) or float(value).is_integer():
        return float(value)
    return digits(value, 4)


def round_p_value(p_value: float, *, of_one: bool = False) -> float:
    """A p-value as it is published, never below what it was.

    Args:
        p_value: The p-value.
        of_one: Whether it may be that of one canary, one step or one pair: then a power of ten.

    Examples:
        >>> round_p_value(0.04321), round_p_value(0.04321, of_one=True)
        (0.044, 0.1)
        >>> round_p_value(1e-9, of_one=True), round_p_value(1e-20, of_one=True)
        (1e-06, 1e-12)
    """
    if p_value <= 0.0 or p_value >= 1.0:
        return p_value
    if not of_one:
        return min(1.0, two_digits_up(p_value))
    power = 0
    while float(f"1e-{_next_power(power)}") >= p_value:
        power = _next_power(power)
    return float(f"1e-{power}")


def _next_power(power: int) -> int:
    return power + 1 if power < _LEAST_POWER else 2 * power


def round_deviations(value: float) -> float:
    """A single value, in deviations of the noise: to the nearest half of one."""
    return _DEVIATIONS * round(value / _DEVIATIONS) if math.isfinite(value) else value


def rounding_factor(
    scale: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> NDArray[np.float64]:
    """By what to multiply scales to round them to their standard errors."""
    factor = np.ones_like(scale)
    known = (scale > 0.0) & (low > 0.0) & (high > low)
    error = np.log(high[known] / low[known]) / (2.0 * _HALF_WIDTH)
    level = np.log(scale[known])
    factor[known] = np.exp(np.rint(level / error) * error - level)
    return factor


def round_cosines(
    percent: NDArray[np.float64], count: float, errors: float = COSINE_ERRORS
) -> NDArray[np.float64]:
    """Cosines of so many numbers, in percent, on a grid of so many of their standard errors."""
    step = max(1.0, 100.0 * errors / math.sqrt(count))
    cosines = np.clip(np.rint(percent / step) * step, -100.0, 100.0)
    # Where a step is wider than any cosine, those close to one still show.
    # Without the sign of a zero, which would show on which side of it a cosine lies.
    return np.where(np.abs(percent) >= _CERTAIN, np.rint(percent), cosines) + 0.0


def round_cosine(cosine: float, count: float, errors: float = COSINE_ERRORS) -> tuple[float, str]:
    """One cosine on that grid, and in words: between which two of its points it lies.

    Examples:
        >>> round_cosine(0.2, 36), round_cosine(-0.6, 36), round_cosine(0.99, 36)
        ((0.0, 'less than 0.5'), (-0.725, '-0.50 to -0.95'), (0.99, '+0.99'))
    """
    rounded = float(round_cosines(np.array([100.0 * cosine]), count, errors)[0]) / 100.0
    step, most = max(0.01, errors / math.sqrt(count)), _CERTAIN / 100.0
    if not rounded:
        return 0.0, f"less than {min(most, 0.5 * step):.2g}"
    if abs(cosine) >= most or step < _NARROW:
        return rounded, f"{rounded:+.2f}"
    # The middle of what it may be: a wide step's own point may be more than any such cosine.
    steps = round(abs(cosine) / step)
    low, high = (math.copysign(min((steps + half) * step, most), cosine) for half in (-0.5, 0.5))
    return 0.5 * (low + high), f"{low:+.2f} to {high:+.2f}"
