"""Guess counts to epsilon in one run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).

Each of ``canaries`` examples is included by its own fair coin, the run happens once, and the
auditor guesses the coins of some of them. If the mechanism is (epsilon, delta)-DP, the number of
correct guesses is hardly larger than binomial with success probability e^epsilon / (1 + e^epsilon);
their Theorem 5.2 says by how much. It holds for every mechanism, whatever the dependence between
canaries. At delta 0 it also holds for an auditor who is told each coin once it is guessed, before
the next guess (Keinan, Shenfeld and Ligett 2025, arXiv 2503.07199).

The theorem fixes the number of guesses. Where it is *chosen*, from the scores and from canaries
that tell their coins, a mechanism may spend its delta only in runs where the number is one that
little delta serves best. What follows holds then too. Turn round the coin of one canary that was
guessed right: the scores, the coins that were told, and so all guesses stay, and one guess less is
right. For the number of guesses r and of right ones j, with q(r, j) their joint distribution,
(epsilon, delta)-DP therefore gives

    sum over r, j of max(0, j q(r, j) - e^epsilon (r - j + 1) q(r, j - 1)) <= canaries * delta,

one delta a canary for all r and j together, since the events of one canary are disjoint. The
binomial has j w(j) = e^epsilon (r - j + 1) w(j - 1) exactly, so that a unit of the right side
spent at r raises the probability of at least v right guesses by no more than

    price(r, v) = P[W >= v] / (v P[W = v]).

A test that rejects only where P[W >= v] <= error - budget and canaries * delta * price <= budget,
with a budget fixed in advance, so has at most that error. For a fixed number of guesses the price
is below the theorem's by a factor of about 2 (1 + e^epsilon).

**Whole trade-off curves** (Mahloujifar, Melis and Chaudhuri 2025). The hypothesis is a whole
trade-off curve f instead of one (epsilon, delta) (arXiv 2410.22235). It enters through the *inverse
blow-up*: if an event has probability y in one world, the inverse blow-up of y is the least it can
have in the other, ``f(1 - y)`` for a symmetric curve f. A recursion over the possible numbers of
correct guesses then bounds how likely the observed number is. It holds for every mechanism whose
curve lies above f, whatever the dependence between canaries; which family of curves the mechanism
belongs to is the assumption.

A family is a function from a parameter, 0 or above, to an inverse blow-up, ordered so that a larger
parameter leaks more; for a noise multiplier pass its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincc, betainccinv, betaln, gammaln, ndtr, ndtri, xlog1py

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.limits import SMALLEST_ERROR, close_bracket, largest_rejected, smallest_error

__all__ = [
    "GuessCounts",
    "InverseBlowUp",
    "curve_p_value",
    "curve_rejects",
    "epsilon_delta_blow_up",
    "epsilon_from_counts",
    "gaussian_blow_up",
    "gaussian_from_counts",
    "p_value",
    "strongest_rejected",
]

# Where the number of guesses is chosen, delta's share of an error: at most a half of it, otherwise
# a fiftieth and what canaries of this price take.
_SHARE = 0.02
_PRICE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCounts:
    """How many canaries there were, how many were guessed, and how many guesses were right.

    Attributes:
        canaries: All canaries with randomised inclusion, abstentions included: delta is paid for
            each.
        guesses: How many of them were guessed.
        correct: How many guesses were right.

    Raises:
        InvalidArgumentError: The counts are not whole numbers, or contradict each other.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        _validate.integer(
            1, canaries=self.canaries, hint="Count every canary whose coin was tossed."
        )
        _validate.integer(
            1,
            guesses=self.guesses,
            hint="An audit without a guess says nothing; guess at least once.",
        )
        if self.guesses > self.canaries:
            raise _validate.fail(
                "guesses",
                self.guesses,
                f"<= canaries = {self.canaries}",
                "Count the canaries abstained on as canaries too.",
            )
        _validate.integer(0, correct=self.correct)
        if self.correct > self.guesses:
            raise _validate.fail(
                "correct",
                self.correct,
                f"<= guesses = {self.guesses}",
                "The two counts may be exchanged.",
            )

    @property
    def mistakes(self) -> int:
        """How many guesses were wrong."""
        return self.guesses - self.correct


def p_value(counts: GuessCounts, *, epsilon: float, delta: float, chosen: bool = False) -> float:
    """Bound on the probability of so many correct guesses under (epsilon, delta)-DP.

    Args:
        counts: The guesses.
        epsilon: Claimed epsilon, 0 or above.
        delta: Claimed delta, in [0, 1).
        chosen: Whether the number of guesses may depend on the scores, and on the membership of
            canaries that are not guessed; otherwise it was fixed in advance.

    Returns:
        A p-value of the claim, at most 1.

    Guarantee:
        Valid for every mechanism that keeps the claim, whatever the dependence between canaries.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(p_value(counts, epsilon=3.0, delta=1e-5), 4)
        0.0244
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    return (_chosen_p_value if chosen else _p_value)(counts, float(epsilon), float(delta))


def epsilon_from_counts(
    counts: GuessCounts, *, delta: float, confidence: float, chosen: bool = False
) -> float:
    """Lower confidence bound on epsilon from the number of correct guesses.

    Args:
        counts: The guesses.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).
        chosen: As for `p_value`.

    Returns:
        The largest epsilon whose claim is rejected at error ``1 - confidence``; 0 if none is.

    Guarantee:
        Valid for every mechanism, whatever the dependence between canaries.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(epsilon_from_counts(counts, delta=1e-5, confidence=0.95), 4)
        3.1309
    """
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    _validate.probability(confidence=confidence)
    error, guesses, correct = 1.0 - confidence, counts.guesses, counts.correct
    value = _chosen_p_value if chosen else _p_value
    if correct == 0:
        return 0.0
    # Without delta the bound is the Clopper-Pearson limit of the success probability. Delta only
    # lowers it, so this closes the search from above without a ceiling that somebody had to guess.
    failure = float(betainccinv(guesses - correct + 1, correct, error))
    cap = math.log((1.0 - failure) / failure)
    if cap <= 0.0 or delta == 0.0:
        return max(cap, 0.0)

    def margin(epsilon: float) -> float:
        probability = value(counts, epsilon, float(delta))
        return math.log(error) - math.log(max(probability, SMALLEST_ERROR))

    # The slope of the binomial tail at the cap says how far below it the answer is.
    high, at_high = cap, margin(cap)
    if at_high >= 0.0:
        return cap
    log_slope = correct * math.log1p(-failure) + (guesses - correct + 1) * math.log(failure)
    slope = math.exp(log_slope - betaln(correct, guesses - correct + 1)) / error
    step = -1.2 * at_high / slope
    while True:
        low = max(high - step, 0.0)
        at_low = margin(low)
        if at_low > 0.0:
            return close_bracket(margin, low, at_low, high, at_high)
        if low == 0.0:
            return 0.0
        high, at_high, step = low, at_low, 2.0 * step


def _p_value(counts: GuessCounts, epsilon: float, delta: float) -> float:
    canaries, guesses, correct = counts.canaries, counts.guesses, counts.correct
    odds = math.exp(-epsilon)
    success, failure = 1.0 / (1.0 + odds), odds / (1.0 + odds)
    # By way of the failures, whose probability keeps its digits when epsilon is large.
    tail = float(betaincc(guesses - correct + 1, correct, failure)) if correct else 1.0
    if delta == 0.0 or tail == 1.0:
        return tail

    # The delta term is the largest mean of the binomial masses over a window that ends just below
    # ``correct``. The masses have one peak, so the mean grows with the window until the next mass
    # is below it, and falls from there on: a window with such a next mass need not be extended.
    length = max(0, correct - 1 - int((guesses + 1) * success))
    length += 8 + int(2.0 * math.sqrt(guesses * success * failure))
    while True:
        length = min(length, correct)
        lengths = np.arange(1.0, length + 1.0)
        count = correct - lengths
        log_mass = math.lgamma(guesses + 1) - gammaln(count + 1.0) - gammaln(guesses - count + 1.0)
        mass = np.exp(log_mass + count * math.log(success) + (guesses - count) * math.log(failure))
        mean = mass.cumsum() / lengths
        if length == correct or mass[-1] <= mean[-2]:
            return min(1.0, tail + 2.0 * canaries * delta * float(mean.max()))
        length *= 2


def _chosen_p_value(counts: GuessCounts, epsilon: float, delta: float) -> float:
    guesses, correct = counts.guesses, counts.correct
    odds = math.exp(-epsilon)
    success, failure = 1.0 / (1.0 + odds), odds / (1.0 + odds)
    tail = float(betaincc(guesses - correct + 1, correct, failure)) if correct else 1.0
    if delta == 0.0:
        return tail
    if tail >= 0.5:  # twice as much is left for the tail at most
        return 1.0
    spent = counts.canaries * delta
    cost = spent * _tail_over_mass(guesses, correct, success, failure, tail) / correct
    # The smallest error whose budget, min(error / 2, share * error + price * spent), is at least
    # the cost, and that leaves the tail.
    least = min(2.0 * tail, (tail + _PRICE * spent) / (1.0 - _SHARE))
    return min(1.0, max(2.0 * cost, (cost - _PRICE * spent) / _SHARE, least))


def _tail_over_mass(
    guesses: int, correct: int, success: float, failure: float, tail: float
) -> float:
    """The probability of at least so many right guesses over that of exactly so many."""
    log_mass = float(
        math.lgamma(guesses + 1) - math.lgamma(correct + 1) - math.lgamma(guesses - correct + 1)
    )
    log_mass += correct * math.log(success) + float(xlog1py(guesses - correct, -success))
    if tail > SMALLEST_ERROR:
        return max(1.0, tail * math.exp(-log_mass))
    # Far out, each mass is less than this share of the one before.
    ratio = (guesses - correct) / (correct + 1.0) * success / failure
    return 1.0 / (1.0 - ratio)


# From a probability in one world to the least in the other, like ``TradeOff.inverse_blow_up``.
InverseBlowUp = Callable[[float], float]


def gaussian_blow_up(mu: float) -> InverseBlowUp:
    """Inverse blow-up of mu-Gaussian differential privacy.

    Args:
        mu: Distance of the two worlds in standard deviations, 0 or above.

    Returns:
        The function y to Phi(Phi^-1(y) - mu).

    Examples:
        >>> round(gaussian_blow_up(1.0)(0.5), 4)
        0.1587
    """
    return lambda probability: float(ndtr(ndtri(probability) - mu))


def epsilon_delta_blow_up(epsilon: float, delta: float) -> InverseBlowUp:
    """Inverse blow-up of (epsilon, delta)-differential privacy.

    Args:
        epsilon: Epsilon, 0 or above.
        delta: Delta, in [0, 1).

    Returns:
        From y to the largest of 0, (y - delta) e^-epsilon and 1 - delta - (1 - y) e^epsilon.

    Examples:
        >>> round(epsilon_delta_blow_up(1.0, 0.1)(0.5), 4)
        0.1472
    """
    # Where exp overflows, its line is below 0 at every float short of 1.
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)

    def inverse_blow_up(probability: float) -> float:
        steep = 1.0 - delta - (1.0 - probability) * grow
        return max(0.0, (probability - delta) * shrink, steep)

    return inverse_blow_up


def curve_rejects(inverse_blow_up: InverseBlowUp, counts: GuessCounts, *, error: float) -> bool:
    """Whether so many correct guesses have probability at most ``error`` under the curve.

    Args:
        inverse_blow_up: The hypothesis, for instance ``gaussian_blow_up(1.0)``.
        counts: The guesses; their number was fixed in advance.
        error: Error of the test, in (0, 1).

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> [curve_rejects(gaussian_blow_up(mu), counts, error=0.05) for mu in (1.0, 1.1)]
        [True, False]
    """
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


def curve_p_value(inverse_blow_up: InverseBlowUp, counts: GuessCounts) -> float:
    """The smallest error at which `curve_rejects` the curve, at least 1e-50.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(curve_p_value(gaussian_blow_up(1.0), counts), 4)
        0.0423
    """
    return smallest_error(lambda error: curve_rejects(inverse_blow_up, counts, error=error))


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
        >>> round(strongest_rejected(gaussian_blow_up, counts, confidence=0.95), 4)  # mu
        1.0152
    """
    error = 1.0 - confidence
    return largest_rejected(
        lambda parameter: 1.0 if curve_rejects(family(parameter), counts, error=error) else -1.0
    )


def gaussian_from_counts(counts: GuessCounts, *, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the largest rejected mu, if the mechanism is Gaussian-DP.

    Assumes:
        A Gaussian trade-off curve; the dependence between canaries is free.

    Examples:
        >>> counts = GuessCounts(canaries=5000, guesses=257, correct=252)
        >>> round(gaussian_from_counts(counts, delta=1e-5, confidence=0.95), 3)
        4.455
    """
    _validate.probability(delta=delta, hint="A Gaussian mechanism has no epsilon at delta 0.")
    mu = strongest_rejected(gaussian_blow_up, counts, confidence=confidence)
    return float(gaussian.gdp_epsilon(delta, mu))
