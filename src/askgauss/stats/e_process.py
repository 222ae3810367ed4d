r"""E-processes of a private run: evidence that may be looked at after every step.

A step's *e-value* is a number whose mean is at most 1 under the null hypothesis, given the steps
before. Products of them are e-processes: by Ville's inequality one reaches 1/error with probability
at most error, ever, whoever looks and however often. Here are the e-values of a step, all as
logarithms, and the way they are put together over the steps.

*Noise.* The null is noise of at least the claim. A sum of squares of m Gaussians in units of the
claim has the likelihood ratio r^-m exp(-(1/r^2 - 1) SS/2) of "r times the claim" to the claim. With
r < 1 it falls with SS, and more noise, or anything else that was left in, only makes SS larger.

*Signs.* The null is independent observations, each of which is as likely to be above 0 as as far
below it, or is pushed down from there. With x the observations and a slope s,
``exp(s sum(x) - s^2 sum(x^2) / 2)`` is an e-value: given the sizes, only the signs are open, and
cosh(a) <= exp(a^2 / 2); what is pushed down by m has at most the mean exp(-(a^2 - 1) / 2 - z^2 / 2)
cosh(a z) with a = 1 + m, which is never above 1. Neither a deviation nor a law is plugged in: noise
that is more than claimed, that differs from coordinate to coordinate or from step to step, or that
is not Gaussian, keeps it valid. Two nulls use it, the contribution of a planted canary, which is at
most 1 (x is what is released about it, less 1), and fresh noise (x is the product with the noise of
an earlier step, whose sizes may be scaled as one likes).

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

__all__ = [
    "advance",
    "log_evidence",
    "look_share",
    "noise_log_e",
    "rate_log_e",
    "sign_log_e",
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


def sign_log_e(total: Any, square: Any, slope: Any) -> _Floats:
    """Log e-value of "observations lean towards the slope's side" against "no more than away".

    Args:
        total: Sum of the observations.
        square: Sum of their squares.
        slope: How much is bet; negative for the other side. Where observations have mean m and
            mean square v, m / v wins most. All arguments broadcast.

    Examples:
        >>> float(sign_log_e(10.0, 10.0, 1.0))
        5.0
    """
    s = np.asarray(slope, dtype=np.float64)
    return np.asarray(s * total - 0.5 * np.asarray(square) * s * s)


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
