"""Searches that turn a test into a bound: over its parameter, over its error, to a level."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["SMALLEST_ERROR", "close_bracket", "largest_rejected", "level_bracket", "smallest_error"]

# Below this the incomplete beta inverses lose digits, so no limit and no p-value goes there.
SMALLEST_ERROR = 1e-50
# Nothing is looked for beyond.
_FURTHEST = 1e140


def largest_rejected(
    margin: Callable[[float], float], *, start: float = 1.0, tolerance: float = 1e-9
) -> float:
    """The largest parameter that a test rejects, when it rejects all below that one.

    The bracket grows from ``start`` without a ceiling and then closes by Chandrupatla's method,
    which bisects wherever interpolation is not safe; a margin of +1 and -1 is therefore allowed.

    Args:
        margin: Positive at the parameters (0 and above) that are rejected.
        start: First parameter tried above 0.
        tolerance: Width of the final bracket, relative to ``1 + parameter``.

    Returns:
        The rejected end of the final bracket, so never more than the true largest; 0 if not even 0
        is rejected, infinity if everything is.

    Examples:
        >>> round(largest_rejected(lambda parameter: 2.0 - parameter), 6)
        2.0
    """
    low, high = 0.0, start
    at_low = _number(margin, low)
    if at_low <= 0.0:
        return 0.0
    while (at_high := _number(margin, high)) > 0.0:
        low, at_low = high, at_high
        high *= 2.0
        if math.isinf(high):
            return math.inf
    return close_bracket(margin, low, at_low, high, at_high, tolerance)


def close_bracket(
    margin: Callable[[float], float],
    low: float,
    at_low: float,
    high: float,
    at_high: float,
    tolerance: float = 1e-9,
) -> float:
    """The last step of :func:`largest_rejected`, for callers that have a bracket already."""
    # x1 is the newest point, x2 the other end of the bracket, x3 the point that x1 displaced.
    x1, f1, x2, f2 = low, at_low, high, at_high
    fraction = f1 / (f1 - f2) if math.isfinite(f1 - f2) else 0.5
    while True:
        rejected = x1 if f1 > 0.0 else x2
        smallest = tolerance * (1.0 + rejected) / abs(x2 - x1)
        if smallest >= 1.0:
            return rejected
        # Half the final width off either end, so that the last probe closes the bracket.
        fraction = min(max(fraction, 0.5 * smallest), 1.0 - 0.5 * smallest)
        x = x1 + fraction * (x2 - x1)
        f = _number(margin, x)
        if (f > 0.0) == (f1 > 0.0):
            x3, f3 = x1, f1
        else:
            x3, f3, x2, f2 = x2, f2, x1, f1
        x1, f1 = x, f
        xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
        if phi * phi < xi and (1.0 - phi) ** 2 < 1.0 - xi:
            fraction = f1 / (f2 - f1) * f3 / (f2 - f3)
            fraction += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
        else:
            fraction = 0.5


def _number(margin: Callable[[float], float], parameter: float) -> float:
    value = float(margin(parameter))
    if math.isnan(value):
        raise ArithmeticError(f"The test has no answer at parameter {parameter!r}.")
    return value


def smallest_error(rejects: Callable[[float], bool]) -> float:
    """The smallest error at which a test rejects: its p-value.

    Args:
        rejects: Whether the test rejects at an error in [1e-50, 1]; once it does it keeps doing so
            at larger errors.

    Returns:
        The p-value, rounded up by less than one part in 1e6; 1 if the test rejects at no error, and
        1e-50 where it would be smaller.

    Examples:
        >>> round(smallest_error(lambda error: error > 0.02), 6)
        0.02
    """
    deepest = -math.log(SMALLEST_ERROR)

    def margin(depth: float) -> float:
        return 1.0 if depth <= deepest and rejects(math.exp(-depth)) else -1.0

    return math.exp(-largest_rejected(margin, start=4.0, tolerance=1e-9))


def level_bracket(
    function: Callable[[float], float], level: float, start: float, tolerance: float = 1e-8
) -> tuple[float, float]:
    """Positive x and y, a few tolerances apart, with f(x) <= level < f(y), for an increasing f.

    Where f stays at the level as far as numbers have squares, y is infinite.
    """
    from scipy.optimize import brentq

    low, high, factor = start, start, 1.0 + 1e-4
    while function(low) > level:
        low, high, factor = low / factor, low, min(factor**4, 1e3)
    while function(high) <= level:
        if high > _FURTHEST:
            return high, math.inf
        low, high, factor = high, high * factor, min(factor**4, 1e3)
    fine = 0.1 * tolerance
    root = float(brentq(lambda x: function(x) - level, low, high, xtol=fine * low, rtol=fine))
    low = high = root
    while function(low) > level:
        low *= 1.0 - tolerance
    while function(high) <= level:
        high *= 1.0 + tolerance
    return low, high
