"""Guess counts to a trade-off curve in one run (Mahloujifar, Melis and Chaudhuri 2025).

The hypothesis is a whole trade-off curve f instead of one (epsilon, delta) (arXiv 2410.22235). It
enters through the *inverse blow-up*: if an event has probability y in one world, the inverse
blow-up of y is the least it can have in the other, ``f(1 - y)`` for a symmetric curve f. A
recursion over the possible numbers of correct guesses then bounds how likely the observed number
is. It holds for every mechanism whose curve lies above f, whatever the dependence between canaries;
which family of curves the mechanism belongs to is the assumption.

A family is a function from a parameter, 0 or above, to an inverse blow-up, ordered so that a larger
parameter leaks more; for a noise multiplier pass its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import ndtr, ndtri

from askgauss import _validate
from askgauss.stats import gaussian as gaussian_pair
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.search import largest_rejected, smallest_error

__all__ = [
    "InverseBlowUp",
    "epsilon_delta",
    "epsilon_delta_from_counts",
    "epsilon_from_counts",
    "gaussian",
    "p_value",
    "rejects",
    "strongest_rejected",
]

# From a probability in one world to the least in the other, like ``TradeOff.inverse_blow_up``.
InverseBlowUp = Callable[[float], float]


def gaussian(mu: float) -> InverseBlowUp:
    """Inverse blow-up of mu-Gaussian differential privacy.

    Args:
        mu: Distance of the two worlds in standard deviations, 0 or above.

    Returns:
        The function y to Phi(Phi^-1(y) - mu).

    Examples:
        >>> round(gaussian(1.0)(0.5), 4)
        0.1587
    """
    _validate.non_negative(mu=mu)
    return lambda probability: float(ndtr(ndtri(probability) - mu))


def epsilon_delta(epsilon: float, delta: float) -> InverseBlowUp:
    """Inverse blow-up of (epsilon, delta)-differential privacy.

    Args:
        epsilon: Epsilon, 0 or above.
        delta: Delta, in [0, 1).

    Returns:
        From y to the largest of 0, (y - delta) e^-epsilon and 1 - delta - (1 - y) e^epsilon.

    Examples:
        >>> round(epsilon_delta(1.0, 0.1)(0.5), 4)
        0.1472
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    # Where exp overflows, its line is below 0 at every float short of 1.
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)

    def inverse_blow_up(probability: float) -> float:
        steep = 1.0 - delta - (1.0 - probability) * grow
        return max(0.0, (probability - delta) * shrink, steep)

    return inverse_blow_up


def rejects(inverse_blow_up: InverseBlowUp, counts: GuessCounts, *, error: float) -> bool:
    """Whether so many correct guesses have probability at most ``error`` under the curve.

    Args:
        inverse_blow_up: The hypothesis, for instance ``gaussian(1.0)``.
        counts: The guesses; their number was fixed in advance.
        error: Error of the test, in (0, 1).

    Returns:
        True if the hypothesis is rejected.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> [rejects(gaussian(mu), counts, error=0.05) for mu in (1.0, 1.1)]
        [True, False]
    """
    _validate.probability(error=error)
    return _rejects(inverse_blow_up, counts, float(error))


def p_value(inverse_blow_up: InverseBlowUp, counts: GuessCounts) -> float:
    """Bound on the probability of so many correct guesses under the curve.

    Args:
        inverse_blow_up: The hypothesis, for instance ``gaussian(1.0)``.
        counts: The guesses; their number was fixed in advance.

    Returns:
        The smallest error at which :func:`rejects` says so, at least 1e-50.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(p_value(gaussian(1.0), counts), 4)
        0.0423
    """
    return smallest_error(lambda error: _rejects(inverse_blow_up, counts, error))


def strongest_rejected(
    family: Callable[[float], InverseBlowUp], counts: GuessCounts, *, confidence: float
) -> float:
    """Lower confidence bound on the parameter of an ordered family of curves.

    Args:
        family: From a parameter, 0 or above, to an inverse blow-up; larger must leak more.
        counts: The guesses; their number was fixed in advance.
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest parameter that is rejected; 0 if none is, infinity if all are.

    Assumes:
        The mechanism is a member of the family, or leaks more than one that is rejected.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(strongest_rejected(gaussian, counts, confidence=0.95), 4)  # mu
        1.0152
    """
    _validate.probability(confidence=confidence)
    error = 1.0 - confidence
    return largest_rejected(
        lambda parameter: 1.0 if _rejects(family(parameter), counts, error) else -1.0
    )


def epsilon_from_counts(counts: GuessCounts, *, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon, if the mechanism is Gaussian-DP.

    Args:
        counts: The guesses; their number was fixed in advance.
        delta: The delta at which epsilon is stated, in (0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        Epsilon at ``delta`` of the largest rejected mu; 0 if none is rejected.

    Assumes:
        A Gaussian trade-off curve; the dependence between canaries is free.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(epsilon_from_counts(counts, delta=1e-5, confidence=0.95), 3)
        4.455
    """
    _validate.probability(
        delta=delta,
        hint="A Gaussian mechanism has no epsilon at delta 0; use epsilon_delta_from_counts.",
    )
    mu = strongest_rejected(gaussian, counts, confidence=confidence)
    return float(gaussian_pair.gdp_epsilon(delta, mu))


def epsilon_delta_from_counts(counts: GuessCounts, *, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon without any family: the curve of (epsilon, delta)-DP.

    Args:
        counts: The guesses; their number was fixed in advance.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest epsilon whose claim is rejected; 0 if none is.

    Guarantee:
        Valid for every mechanism, whatever the dependence between canaries.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(epsilon_delta_from_counts(counts, delta=1e-5, confidence=0.95), 3)
        3.149
    """
    return strongest_rejected(
        lambda epsilon: epsilon_delta(epsilon, delta), counts, confidence=confidence
    )


def _rejects(inverse_blow_up: InverseBlowUp, counts: GuessCounts, error: float) -> bool:
    canaries, guesses, correct = counts.canaries, counts.guesses, counts.correct
    # Suppose at least ``correct`` guesses are right with probability ``error``, and let p_i be the
    # probability of exactly i. The curve then forces the sums of i p_i / canaries (right) and of
    # (guesses - i) p_i / canaries (wrong), over i and above, upwards as i goes down; but together
    # they cannot exceed guesses / canaries.
    right = error * correct / canaries
    wrong = error * (guesses - correct) / canaries
    limit = guesses / canaries
    for i in range(correct - 1, -1, -1):
        forced = inverse_blow_up(right)
        if not forced > wrong:
            if math.isnan(forced):
                raise _validate.fail(
                    "inverse_blow_up", forced, f"to be a number at {right!r}", "Check the curve."
                )
            return False  # nothing moves any more
        right = min(1.0, right + i / (guesses - i) * (forced - wrong))
        wrong = forced
        if right + wrong > limit:  # both only grow
            return True
    return False
