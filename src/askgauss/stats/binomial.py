"""Binomial weights and exact binomial confidence limits."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc, betainccinv, betaincinv

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.search import SMALLEST_ERROR

__all__ = [
    "binomial_p_value",
    "binomial_weights",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
]

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


@overload
def clopper_pearson_upper(successes: int, trials: int, error: float) -> float: ...
@overload
def clopper_pearson_upper(
    successes: ArrayLike, trials: ArrayLike, error: ArrayLike
) -> NDArray[np.float64]: ...
def clopper_pearson_upper(successes: Any, trials: Any, error: Any) -> Any:
    """Upper confidence limit of a binomial probability (Clopper and Pearson, 1934).

    Args:
        successes: Number of successes; all arguments broadcast.
        trials: Number of independent trials.
        error: Probability that the limit is below the truth, in [1e-50, 1).

    Returns:
        The probability at which ``successes`` or fewer have probability ``error``; 1 when every
        trial succeeded. A float for scalars, an array otherwise.

    Examples:
        >>> round(clopper_pearson_upper(0, 59, 0.05), 4)
        0.0495
        >>> clopper_pearson_upper([10, 500], 1000, 0.025).round(4)
        array([0.0183, 0.5315])
    """
    successes, trials, error = _checked(successes, trials, error)
    # Where every trial succeeded the beta law degenerates; any parameters do, 1 replaces them.
    limit = betainccinv(successes + 1.0, np.maximum(trials - successes, 1), error)
    return _plain(np.where(successes == trials, 1.0, limit))


@overload
def clopper_pearson_lower(successes: int, trials: int, error: float) -> float: ...
@overload
def clopper_pearson_lower(
    successes: ArrayLike, trials: ArrayLike, error: ArrayLike
) -> NDArray[np.float64]: ...
def clopper_pearson_lower(successes: Any, trials: Any, error: Any) -> Any:
    """Lower confidence limit of a binomial probability (Clopper and Pearson, 1934).

    Args:
        successes: Number of successes; all arguments broadcast.
        trials: Number of independent trials.
        error: Probability that the limit is above the truth, in [1e-50, 1).

    Returns:
        The probability at which ``successes`` or more have probability ``error``; 0 when no trial
        succeeded. A float for scalars, an array otherwise.

    Examples:
        >>> round(clopper_pearson_lower(59, 59, 0.05), 4)
        0.9505
    """
    successes, trials, error = _checked(successes, trials, error)
    limit = betaincinv(np.maximum(successes, 1), trials - successes + 1.0, error)
    return _plain(np.where(successes == 0, 0.0, limit))


def _checked(successes: Any, trials: Any, error: Any) -> tuple[Any, Any, Any]:
    successes, trials = np.asarray(successes), np.asarray(trials)
    for name, counts, least in (("successes", successes, 0), ("trials", trials, 1)):
        if counts.dtype.kind not in "iu" or np.any(counts < least):
            raise _validate.fail(
                name, counts.tolist(), f"to be whole numbers >= {least}", "Pass plain counts."
            )
    if np.any(successes > trials):
        raise _validate.fail(
            "successes",
            successes.tolist(),
            f"<= trials = {trials.tolist()}",
            "The two counts may be exchanged.",
        )
    error = np.asarray(error, dtype=np.float64)
    if not np.all((error >= SMALLEST_ERROR) & (error < 1.0)):
        raise _validate.fail(
            "error", error.tolist(), f"in [{SMALLEST_ERROR:g}, 1)", "Pass 1 - confidence."
        )
    # Unsigned counts would wrap around below zero.
    return successes.astype(np.int64), trials.astype(np.int64), error


def _plain(values: NDArray[np.float64]) -> Any:
    return float(values) if values.ndim == 0 else values
