"""Searches that turn a test into a bound or a p-value, and exact binomial limits and weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, betainccinv, betaincinv

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError

__all__ = [
    "SMALLEST_ERROR",
    "binomial_p_value",
    "binomial_weights",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "close_bracket",
    "largest_rejected",
    "level_bracket",
    "smallest_error",
]

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


# Leaves nothing out, and its square is a number.
_WHOLE_BUDGET = 1e100
_MOST_WEIGHTS = 10**7


def binomial_p_value(successes: int, trials: int, rate: float) -> float:
    """Of "successes have this probability", two-sided and exact."""
    if not 0 <= successes <= trials:
        return 0.0
    if rate >= 1.0:
        return float(successes == trials)
    below = float(bdtr(successes, trials, rate))
    above = float(bdtrc(successes - 1, trials, rate)) if successes else 1.0
    return min(1.0, 2.0 * min(below, above))


def binomial_weights(
    trials: int, rate: float, budget: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts and the logs of their probabilities, leaving out at most 2 exp(-budget).

    Bernstein's inequality says how far to go. The logs are summed outwards from the mode: their
    errors then grow with the distance from it, where differences of log-gammas would lose a digit
    for each digit of ``trials``.
    """
    if rate == 1.0:
        return np.array([float(trials)]), np.zeros(1)
    budget = min(budget, _WHOLE_BUDGET)
    reach = budget / 3.0 + math.sqrt(budget**2 / 9.0 + 2.0 * budget * trials * rate * (1.0 - rate))
    first = max(0, math.floor(trials * rate - reach))
    last = min(trials, math.ceil(trials * rate + reach))
    if last - first > _MOST_WEIGHTS:
        raise InvalidArgumentError(
            f"Expected a point nearer to the middle of {trials:,} trials: how rare this one is "
            f"takes a sum over {last - first:,} counts, and up to {_MOST_WEIGHTS:,} are taken."
        )
    counts = np.arange(first, last + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):  # a rate that underflows leaves the weight 0 to them
        growth = np.log((trials - counts[:-1]) * rate / ((counts[:-1] + 1.0) * (1.0 - rate)))
    mode = min(max(int((trials + 1) * rate) - first, 0), counts.size - 1)
    logs = np.zeros(counts.size)
    logs[mode + 1 :] = np.cumsum(growth[mode:])
    logs[:mode] = -np.cumsum(growth[:mode][::-1])[::-1]
    return counts, logs - math.log(np.exp(logs).sum())


def clopper_pearson_upper(successes: int, trials: int, error: float) -> float:
    """Upper confidence limit of a binomial probability (Clopper and Pearson, 1934).

    Args:
        successes: Number of successes.
        trials: Number of independent trials.
        error: Probability that the limit is below the truth, in [1e-50, 1).

    Returns:
        The probability at which ``successes`` or fewer have probability ``error``; 1 when every
        trial succeeded.

    Examples:
        >>> round(clopper_pearson_upper(0, 59, 0.05), 4)
        0.0495
    """
    _check(successes, trials, error)
    if successes == trials:
        return 1.0
    return float(betainccinv(successes + 1.0, trials - successes, error))


def clopper_pearson_lower(successes: int, trials: int, error: float) -> float:
    """Lower confidence limit of a binomial probability; arguments as of `clopper_pearson_upper`.

    Returns:
        The probability at which ``successes`` or more have probability ``error``; 0 when no trial
        succeeded.

    Examples:
        >>> round(clopper_pearson_lower(59, 59, 0.05), 4)
        0.9505
    """
    _check(successes, trials, error)
    return float(betaincinv(successes, trials - successes + 1.0, error)) if successes else 0.0


def _check(successes: int, trials: int, error: float) -> None:
    _validate.integer(1, trials=trials)
    _validate.integer(0, trials, successes=successes)
    _validate.within(SMALLEST_ERROR, 1.0, closed="left", hint="Pass 1 - confidence.", error=error)
