r"""E-processes of a private run: evidence that may be looked at after every step.

A step's *e-value* is a number whose mean is at most 1 under the null hypothesis, given the steps
before. Products of them are e-processes: by Ville's inequality one reaches 1/error with probability
at most error, ever, whoever looks and however often. Here are the e-values of a step, all as
logarithms, and the way they are put together over the steps.

*Noise.* The null is noise of at least the claim. A sum of squares of m Gaussians in units of the
claim has the likelihood ratio r^-m exp(-(1/r^2 - 1) SS/2) of "r times the claim" to the claim. With
r < 1 it falls with SS, and more noise, or anything else that was left in, only makes SS larger.

*Standardised pull.* The null is n Gaussians of one unknown deviation, whose mean along a unit
vector v is at most 0. With y the observations, tau = <y, v> / |y| and u chi-distributed with n
degrees of freedom, ``exp(-d^2/2) E[exp(d tau u)]`` is the likelihood ratio of "the mean is d
deviations" to 0, the deviation integrated out by its Haar prior: its mean is exactly 1 whatever the
deviation. By Jensen's inequality ``exp(d tau E[u] - d^2/2)`` is not above it, so it is an e-value
too, and costs no integral. No bound on the noise from other steps is plugged in: each tensor of
each step brings its own deviation. Two nulls use it, the contribution of a planted canary (v is
even over the planted ones, each of which adds at most 1) and fresh noise (v is the noise of an
earlier step).

Contributions below 1 that differ from canary to canary keep it valid. For a given length of the
rest the e-value rises with <y, v>, so means below 0 only lower it; with mean 0 it is symmetric, and
exp(a) + exp(-a) falls as the rest becomes longer.

*Rate.* The null is a Poisson sampler with a rate of at most q. The ratio for odds f times those of
q rises with the count.

*When it began.* A product from the first step on is all but lost on a fault that begins later. Bets
that begin at step t with a share 1/(t (t + 1)) of the wealth, and the rest kept until then, are an
e-process as well, and its logarithm gives up 2 log t at most.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

__all__ = [
    "advance",
    "chi_mean",
    "log_evidence",
    "look_share",
    "noise_log_e",
    "pull_log_e",
    "rate_log_e",
    "standardised_pull",
]

_Floats = NDArray[np.float64]


def noise_log_e(freedom: Any, square: Any, ratio: Any) -> _Floats:
    """Log e-value of "the noise is ``ratio`` times the claim" against "at least the claim".

    Args:
        freedom: Degrees of freedom of the sum of squares.
        square: Sum of squares in units of the claimed variance.
        ratio: The alternative, in (0, 1); all arguments broadcast.

    Examples:
        >>> float(noise_log_e(2.0, 0.0, 0.5)) == 2.0 * math.log(2.0)
        True
    """
    r = np.asarray(ratio, dtype=np.float64)
    return np.asarray(freedom * -np.log(r) - 0.5 * np.asarray(square) * (1.0 / (r * r) - 1.0))


def chi_mean(freedom: Any) -> _Floats:
    """Mean of the chi distribution: of the length of so many standard Gaussians.

    Examples:
        >>> round(float(chi_mean(1)), 6)  # sqrt(2 / pi)
        0.797885
    """
    half = 0.5 * np.asarray(freedom, dtype=np.float64)
    return np.asarray(math.sqrt(2.0) * np.exp(gammaln(half + 0.5) - gammaln(half)))


def standardised_pull(along: float, square: float, mean: float) -> float:
    """How far observations lie along a direction, in units of their own deviation.

    Args:
        along: Sum of the observations, each times the direction there; the direction need not have
            length 1, and `pull_log_e` is told its squared length.
        square: Sum of squares of all observations.
        mean: `chi_mean` of their number.

    Returns:
        ``along / deviation``; 0 where there is nothing at all.

    Examples:
        >>> standardised_pull(1.0, 4.0, 2.0)
        1.0
    """
    return along * mean / math.sqrt(square) if square > 0.0 else 0.0


def pull_log_e(pull: Any, length: Any, shift: Any) -> _Floats:
    """Log e-value of "the mean is ``shift`` deviations along the direction" against "at most 0".

    Args:
        pull: The sum of `standardised_pull` over tensors, each with a deviation of its own.
        length: Squared length of the direction, over all of them.
        shift: The alternative; negative for the other side. All arguments broadcast.
    """
    d = np.asarray(shift, dtype=np.float64)
    return np.asarray(d * pull - 0.5 * np.asarray(length) * d * d)


def rate_log_e(count: Any, opportunities: Any, rate: float, odds: Any) -> _Floats:
    """Log e-value of "``odds`` times those of the rate" against "at most the rate".

    Args:
        count: How many were sampled.
        opportunities: Of how many.
        rate: Claimed sampling rate, in (0, 1).
        odds: The alternative, above 1; all arguments broadcast.
    """
    f = np.asarray(odds, dtype=np.float64)
    return np.asarray(count * np.log(f) - np.asarray(opportunities) * np.log1p(rate * (f - 1.0)))


def advance(log_wealth: _Floats, log_weight: _Floats, step: int, log_e: _Floats) -> _Floats:
    """Wealth of each bet after a step: new money comes in, then all of it is at stake.

    Args:
        log_wealth: Log wealth of the bets before the step; minus infinity before the first.
        log_weight: Log of each bet's weight; the weights add up to 1.
        step: The step's number, from 1.
        log_e: The step's log e-value for each bet.
    """
    inflow = log_weight - math.log(step * (step + 1.0))
    return np.asarray(np.logaddexp(log_wealth, inflow) + log_e)


def log_evidence(log_wealth: _Floats, step: int, weight: float = 1.0) -> float:
    """Log of the e-process: the wealth of all bets, and the money still kept back.

    Args:
        log_wealth: Log wealth of each bet after ``step`` steps.
        step: Steps so far.
        weight: What the weights of these bets add up to.
    """
    kept = -math.log(step + 1.0)
    return float(np.logaddexp(np.logaddexp.reduce(log_wealth) - math.log(weight), kept))


def look_share(look: int) -> float:
    """Share of the error that look number 1, 2, 3, ... of endlessly many may spend.

    Examples:
        >>> sum(look_share(look) for look in range(1, 100_000)) < 1.0
        True
    """
    return 6.0 / (math.pi * look) ** 2
