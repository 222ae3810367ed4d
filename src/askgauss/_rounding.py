"""Numbers of a run as a document says them that anybody may read: no finer than they need to be."""

from __future__ import annotations

import math

__all__ = [
    "FEW",
    "FEWEST_TOLD",
    "about",
    "digits",
    "down",
    "is_handful",
    "on_grid",
    "scale_on_grid",
    "two_digits_up",
    "widened",
]

# Canaries, and observations of either kind, whose moments may be told: those of a handful would be
# those of single canaries.
FEWEST_TOLD = 30

# Records that are too few to be told from none: one of them may be somebody.
FEW = 10


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
    return 0 < count < FEWEST_TOLD


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
