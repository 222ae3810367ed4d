"""A confusion matrix to epsilon: Clopper-Pearson, Gaussian-DP and Bayesian.

A present canary guessed absent is a false negative, an absent one guessed present a false positive.
What privacy promises is a trade-off curve: the false negative rate is not below ``curve(false
positive rate)``. So the evidence is a pair of confident upper limits of the two rates that lies
under the curve, the p-value is the smallest error at which it still does, and the bound is the
largest parameter of a family of curves that is contradicted.

- (epsilon, delta) curves: Jagielski et al. 2020 (arXiv 2006.07709), Nasr et al. 2021 (2101.04535).
- Gaussian curves, or any other family such as the composed subsampled Gaussian: Nasr et al. 2023
  (arXiv 2302.07956). One point then pins the whole curve.
- The posterior of epsilon instead of limits: Zanella-Béguelin et al. 2023 (arXiv 2206.05199).

All of them take the canaries for independent trials, which canaries that share a run are only if
they do not disturb each other, and the threshold for fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betainccinv, betaincinv, betaln, ndtri

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.search import largest_rejected, smallest_error

__all__ = [
    "Curve",
    "bayesian_ceiling",
    "bayesian_epsilon",
    "bayesian_interval",
    "bayesian_probability",
    "clopper_pearson_ceiling",
    "clopper_pearson_epsilon",
    "gaussian_dp_ceiling",
    "gaussian_dp_epsilon",
    "gaussian_dp_mu",
    "p_value",
    "rate_limits",
    "strongest_contradicted",
]

Array = NDArray[np.float64]
# From a false positive rate to the least false negative rate, like ``TradeOff.beta_at``.
Curve = Callable[[float], float]


def rate_limits(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    confidence: float,
) -> tuple[float, float]:
    """Upper limits of the false positive and the false negative rate, that hold together.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        confidence: Probability that both limits hold, in (0, 1).

    Returns:
        Limit of the false positive rate, limit of the false negative rate; each has half the error.

    Examples:
        >>> matrix = dict(true_positive=500, true_negative=990)
        >>> matrix |= dict(false_positive=10, false_negative=500)
        >>> [round(rate, 4) for rate in rate_limits(**matrix, confidence=0.95)]
        [0.0183, 0.5315]
    """
    _check_counts(true_positive, true_negative, false_positive, false_negative)
    _validate.probability(confidence=confidence)
    counts = (true_positive, true_negative, false_positive, false_negative)
    return _limits(*counts, 1.0 - confidence)


def clopper_pearson_epsilon(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    delta: float,
    confidence: float,
) -> float:
    """Lower confidence bound on epsilon from limits of the two error rates.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest epsilon the limits contradict; 0 if none.

    Assumes:
        Independent canaries and a threshold fixed in advance; nothing about the mechanism.

    Examples:
        >>> matrix = dict(true_positive=900, true_negative=900)
        >>> matrix |= dict(false_positive=100, false_negative=100)
        >>> round(clopper_pearson_epsilon(**matrix, delta=1e-5, confidence=0.95), 4)
        1.9897
    """
    _check_delta(delta)
    rates = rate_limits(
        true_positive=true_positive,
        true_negative=true_negative,
        false_positive=false_positive,
        false_negative=false_negative,
        confidence=confidence,
    )
    epsilon = 0.0
    for rate, other in (rates, rates[::-1]):
        if other < 1.0 - delta:
            epsilon = max(epsilon, math.log((1.0 - delta - other) / rate))
    return epsilon


def clopper_pearson_ceiling(*, present: int, absent: int, delta: float, confidence: float) -> float:
    """The most :func:`clopper_pearson_epsilon` could report: no error at all.

    Args:
        present: Number of present canaries.
        absent: Number of absent canaries.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest possible bound.

    Examples:
        >>> round(clopper_pearson_ceiling(present=1000, absent=1000, delta=0.0, confidence=0.95), 2)
        5.6
    """
    return clopper_pearson_epsilon(
        true_positive=present,
        true_negative=absent,
        false_positive=0,
        false_negative=0,
        delta=delta,
        confidence=confidence,
    )


def gaussian_dp_mu(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    confidence: float,
) -> float:
    """Lower confidence bound on mu, if the mechanism is mu-Gaussian-DP.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest mu the limits contradict; 0 if none. Guesses worse than chance give 0, not the
        size of a negative mu.

    Assumes:
        Independent canaries, a threshold fixed in advance, a Gaussian trade-off curve.

    Examples:
        >>> matrix = dict(true_positive=500, true_negative=990)
        >>> matrix |= dict(false_positive=10, false_negative=500)
        >>> round(gaussian_dp_mu(**matrix, confidence=0.95), 5)
        2.01099
    """
    false_positive_rate, false_negative_rate = rate_limits(
        true_positive=true_positive,
        true_negative=true_negative,
        false_positive=false_positive,
        false_negative=false_negative,
        confidence=confidence,
    )
    return max(0.0, -float(ndtri(false_positive_rate)) - float(ndtri(false_negative_rate)))


def gaussian_dp_epsilon(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    delta: float,
    confidence: float,
) -> float:
    """Lower confidence bound on epsilon, if the mechanism is Gaussian-DP.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        delta: The delta at which epsilon is stated, in (0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        Epsilon at ``delta`` of :func:`gaussian_dp_mu`.

    Assumes:
        Independent canaries, a threshold fixed in advance, a Gaussian trade-off curve.

    Examples:
        >>> matrix = dict(true_positive=500, true_negative=990)
        >>> matrix |= dict(false_positive=10, false_negative=500)
        >>> round(gaussian_dp_epsilon(**matrix, delta=1e-5, confidence=0.95), 3)
        10.065
    """
    _validate.probability(delta=delta, hint="A Gaussian mechanism has no epsilon at delta 0.")
    mu = gaussian_dp_mu(
        true_positive=true_positive,
        true_negative=true_negative,
        false_positive=false_positive,
        false_negative=false_negative,
        confidence=confidence,
    )
    return gaussian.gdp_epsilon(delta, mu)


def gaussian_dp_ceiling(*, present: int, absent: int, delta: float, confidence: float) -> float:
    """The most :func:`gaussian_dp_epsilon` could report: no error at all.

    Args:
        present: Number of present canaries.
        absent: Number of absent canaries.
        delta: The delta at which epsilon is stated, in (0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest possible bound.

    Examples:
        >>> round(gaussian_dp_ceiling(present=100, absent=100, delta=1e-5, confidence=0.95), 2)
        21.12
    """
    return gaussian_dp_epsilon(
        true_positive=present,
        true_negative=absent,
        false_positive=0,
        false_negative=0,
        delta=delta,
        confidence=confidence,
    )


def p_value(
    curve: Curve,
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
) -> float:
    """Smallest error at which the limits of the error rates contradict a trade-off curve.

    Args:
        curve: The claim, for instance ``TradeOff.epsilon_delta(8.0, 1e-5).beta_at``.
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.

    Returns:
        The p-value of the claim, between 1e-50 and 1. It agrees with the bounds: it is below an
        error exactly if the bound at that error exceeds the claim.

    Assumes:
        Independent canaries and a threshold fixed in advance.

    Examples:
        >>> matrix = dict(true_positive=900, true_negative=900)
        >>> matrix |= dict(false_positive=100, false_negative=100)
        >>> from askgauss.stats.tradeoff import TradeOff
        >>> round(p_value(TradeOff.epsilon_delta(1.9897, 1e-5).beta_at, **matrix), 4)
        0.05
    """
    _check_counts(true_positive, true_negative, false_positive, false_negative)

    def contradicted(error: float) -> bool:
        limits = _limits(true_positive, true_negative, false_positive, false_negative, error)
        return limits[1] < curve(limits[0])

    return smallest_error(contradicted)


def strongest_contradicted(
    family: Callable[[float], Curve],
    *,
    false_positive_rate: float,
    false_negative_rate: float,
    tolerance: float = 1e-9,
) -> float:
    """The largest parameter of an ordered family of curves that a pair of error rates contradicts.

    Args:
        family: From a parameter, 0 or above, to a trade-off curve; a larger parameter must leak
            more. For a noise multiplier pass its inverse.
        false_positive_rate: Upper limit of the false positive rate, in (0, 1]; see
            :func:`rate_limits`.
        false_negative_rate: Upper limit of the false negative rate, in (0, 1].
        tolerance: Relative width to which the parameter is found.

    Returns:
        The parameter: a lower bound at the confidence of the limits. 0 if no curve is contradicted,
        infinity if all are.

    Assumes:
        The mechanism's curve is in the family.

    Examples:
        >>> rates = dict(false_positive_rate=0.01831, false_negative_rate=0.53144)
        >>> from askgauss.stats.tradeoff import TradeOff
        >>> family = lambda mu: TradeOff.gaussian(mu).beta_at
        >>> round(strongest_contradicted(family, **rates), 3)
        2.011
    """
    _validate.within(
        0.0,
        1.0,
        closed="right",
        false_positive_rate=false_positive_rate,
        false_negative_rate=false_negative_rate,
        hint="Pass upper limits, which are never 0.",
    )
    _validate.positive(tolerance=tolerance)
    return largest_rejected(
        lambda parameter: family(parameter)(false_positive_rate) - false_negative_rate,
        tolerance=tolerance,
    )


def bayesian_probability(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    epsilon: float,
    delta: float,
) -> float:
    """Posterior probability that the error rates are possible under (epsilon, delta)-DP.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        epsilon: Claimed epsilon, 0 or above.
        delta: Claimed delta, in [0, 1).

    Returns:
        The posterior distribution function of epsilon, under Jeffreys priors of the two rates. A
        Dirichlet prior (one half each) on the four cells gives the same. It is a credence, not a
        p-value.

    Examples:
        >>> matrix = dict(true_positive=900, true_negative=900)
        >>> matrix |= dict(false_positive=100, false_negative=100)
        >>> round(bayesian_probability(**matrix, epsilon=2.1095, delta=1e-5), 4)
        0.05
    """
    _check_counts(true_positive, true_negative, false_positive, false_negative)
    _validate.non_negative(epsilon=epsilon)
    _check_delta(delta)
    counts = (true_positive, true_negative, false_positive, false_negative)
    return _credence(*counts, float(epsilon), float(delta))


def bayesian_epsilon(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    delta: float,
    confidence: float,
) -> float:
    """Lower credible bound on epsilon.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Posterior probability that epsilon is larger, in (0, 1).

    Returns:
        The ``1 - confidence`` quantile of the posterior of epsilon.

    Assumes:
        Independent canaries, a threshold fixed in advance, Jeffreys priors. The bound is credible,
        which comes close to a confidence bound but is not one.

    Examples:
        >>> matrix = dict(true_positive=900, true_negative=900)
        >>> matrix |= dict(false_positive=100, false_negative=100)
        >>> round(bayesian_epsilon(**matrix, delta=1e-5, confidence=0.95), 4)
        2.1095
    """
    _check_counts(true_positive, true_negative, false_positive, false_negative)
    _check_delta(delta)
    _validate.probability(confidence=confidence)
    counts = (true_positive, true_negative, false_positive, false_negative)
    return _quantile(counts, float(delta), 1.0 - confidence)


def bayesian_interval(
    *,
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    delta: float,
    confidence: float,
) -> tuple[float, float]:
    """Equal-tailed credible interval of epsilon.

    Args:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Posterior probability of the interval, in (0, 1).

    Returns:
        The two quantiles of the posterior of epsilon, each with half of ``1 - confidence`` outside.
        The upper one speaks of this threshold and these canaries, not of the mechanism's epsilon.

    Examples:
        >>> matrix = dict(true_positive=487, true_negative=1, false_positive=512, false_negative=0)
        >>> low, high = bayesian_interval(**matrix, delta=1e-5, confidence=0.9)
        >>> round(low, 4), round(high, 4)
        (0.1439, 6.4156)
    """
    _check_counts(true_positive, true_negative, false_positive, false_negative)
    _check_delta(delta)
    _validate.probability(confidence=confidence)
    counts = (true_positive, true_negative, false_positive, false_negative)
    half = (1.0 - confidence) / 2.0
    return _quantile(counts, float(delta), half), _quantile(counts, float(delta), 1.0 - half)


def bayesian_ceiling(*, present: int, absent: int, delta: float, confidence: float) -> float:
    """The most :func:`bayesian_epsilon` could report: no error at all.

    Args:
        present: Number of present canaries.
        absent: Number of absent canaries.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Posterior probability that epsilon is larger, in (0, 1).

    Returns:
        The largest possible bound.

    Examples:
        >>> round(bayesian_ceiling(present=1000, absent=1000, delta=0.0, confidence=0.95), 2)
        7.21
    """
    return bayesian_epsilon(
        true_positive=present,
        true_negative=absent,
        false_positive=0,
        false_negative=0,
        delta=delta,
        confidence=confidence,
    )


def _check_delta(delta: float) -> None:
    _validate.within(0.0, 1.0, closed="left", delta=delta)


def _check_counts(
    true_positive: int, true_negative: int, false_positive: int, false_negative: int
) -> None:
    _validate.integer(
        0,
        true_positive=true_positive,
        true_negative=true_negative,
        false_positive=false_positive,
        false_negative=false_negative,
    )
    for world, count in (
        ("true_positive + false_negative", true_positive + false_negative),
        ("true_negative + false_positive", true_negative + false_positive),
    ):
        if count == 0:
            raise _validate.fail(
                world, count, ">= 1", "Both present and absent canaries are needed."
            )


def _limits(
    true_positive: int, true_negative: int, false_positive: int, false_negative: int, error: float
) -> tuple[float, float]:
    def upper(mistakes: int, rest: int) -> float:
        return float(betainccinv(mistakes + 1, rest, error / 2.0)) if rest else 1.0

    return upper(false_positive, true_negative), upper(false_negative, true_positive)


def _quantile(counts: tuple[int, int, int, int], delta: float, probability: float) -> float:
    return largest_rejected(
        lambda epsilon: probability - _credence(*counts, epsilon, delta), tolerance=1e-8
    )


@cache
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(32)
    return (nodes + 1.0) / 2.0, weights / 2.0


def _credence(
    true_positive: int,
    true_negative: int,
    false_positive: int,
    false_negative: int,
    epsilon: float,
    delta: float,
) -> float:
    negative = (false_negative + 0.5, true_positive + 0.5)
    positive = (false_positive + 0.5, true_negative + 0.5)
    # Where exp overflows, no rate is small enough to tell the difference.
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)

    # The region between a lower and an upper boundary, each two lines; both are their own inverse
    # and they are mirror images of each other.
    def lowest(rate: Array) -> Array:
        lines = np.maximum(1.0 - delta - grow * rate, shrink * (1.0 - delta - rate))
        return np.clip(lines, 0.0, 1.0)

    def highest(rate: Array) -> Array:
        return 1.0 - lowest(1.0 - rate)

    # Everything the integrand does suddenly, it does at one of these false negative rates.
    tail = 1e-17
    least, most = betaincinv(*negative, tail), betainccinv(*negative, tail)
    centre = np.array([tail, 0.5])
    sudden = np.concatenate((betaincinv(*positive, centre), betainccinv(*positive, centre)))
    corner = (1.0 - delta) / (1.0 + grow)
    sudden = np.concatenate(
        (lowest(sudden), highest(sudden), [delta, 1.0 - delta, corner, 1.0 - corner])
    )
    middle = betaincinv(*negative, 0.5)
    edges = np.unique(np.clip(np.concatenate((sudden, [least, middle, most])), least, most))

    # With the rate as a squared sine the Jeffreys density has no singularity at 0 and 1.
    nodes, weights = _legendre()
    edges = np.arcsin(np.sqrt(edges))[:, None]
    width = np.diff(edges, axis=0)
    angle = (edges[:-1] + width * nodes).ravel()
    sine, cosine = np.sin(angle), np.cos(angle)
    log_density = 2.0 * (false_negative * np.log(sine) + true_positive * np.log(cosine))
    weight = 2.0 * np.exp(log_density - betaln(*negative)) * (width * weights).ravel()
    rate = sine * sine
    inside = betainc(*positive, highest(rate)) - betainc(*positive, lowest(rate))
    return float(np.clip(weight @ inside, 0.0, 1.0))
