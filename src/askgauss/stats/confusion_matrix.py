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
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betainccinv, betaincinv, betaln, ndtri

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.search import largest_rejected, smallest_error

__all__ = [
    "ConfusionMatrix",
    "bayesian_epsilon",
    "bayesian_probability",
    "clopper_pearson_epsilon",
    "gaussian_dp_epsilon",
    "p_value",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionMatrix:
    """What a threshold said of the canaries, and what they were.

    Attributes:
        true_positive: Present canaries guessed present.
        true_negative: Absent canaries guessed absent.
        false_positive: Absent canaries guessed present.
        false_negative: Present canaries guessed absent.

    Raises:
        InvalidArgumentError: A count is no whole number, or a group has no canary.
    """

    true_positive: int
    true_negative: int
    false_positive: int
    false_negative: int

    def __post_init__(self) -> None:
        _validate.integer(
            0,
            true_positive=self.true_positive,
            true_negative=self.true_negative,
            false_positive=self.false_positive,
            false_negative=self.false_negative,
        )
        for group, count in (
            ("true_positive + false_negative", self.present),
            ("true_negative + false_positive", self.absent),
        ):
            if count == 0:
                raise _validate.fail(
                    group, count, ">= 1", "Both present and absent canaries are needed."
                )

    @property
    def present(self) -> int:
        """Number of present canaries."""
        return self.true_positive + self.false_negative

    @property
    def absent(self) -> int:
        """Number of absent canaries."""
        return self.true_negative + self.false_positive

    @property
    def telling(self) -> bool:
        """Whether neither group is wrong as a whole."""
        return self.true_positive > 0 and self.true_negative > 0

    def perfect(self) -> ConfusionMatrix:
        """The same canaries without a mistake."""
        return ConfusionMatrix(
            true_positive=self.present,
            true_negative=self.absent,
            false_positive=0,
            false_negative=0,
        )

    def rate_limits(self, *, confidence: float) -> tuple[float, float]:
        """Upper limits of the false positive and the false negative rate, that hold together.

        Each has half the error ``1 - confidence``.

        Examples:
            >>> matrix = ConfusionMatrix(
            ...     true_positive=500, true_negative=990, false_positive=10, false_negative=500)
            >>> [round(rate, 4) for rate in matrix.rate_limits(confidence=0.95)]
            [0.0183, 0.5315]
        """
        _validate.probability(confidence=confidence)
        return _limits(self, 1.0 - confidence)


def _limits(matrix: ConfusionMatrix, error: float) -> tuple[float, float]:
    def upper(mistakes: int, rest: int) -> float:
        return float(betainccinv(mistakes + 1, rest, error / 2.0)) if rest else 1.0

    positive = upper(matrix.false_positive, matrix.true_negative)
    return positive, upper(matrix.false_negative, matrix.true_positive)


def clopper_pearson_epsilon(matrix: ConfusionMatrix, *, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon from limits of the two error rates.

    Args:
        matrix: The confusion matrix of a threshold fixed in advance.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest epsilon the limits contradict; 0 if none.

    Assumes:
        Independent canaries; nothing about the mechanism.

    Examples:
        >>> matrix = ConfusionMatrix(
        ...     true_positive=900, true_negative=900, false_positive=100, false_negative=100)
        >>> round(clopper_pearson_epsilon(matrix, delta=1e-5, confidence=0.95), 4)
        1.9897
    """
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    rates = matrix.rate_limits(confidence=confidence)
    epsilon = 0.0
    for rate, other in (rates, rates[::-1]):
        if other < 1.0 - delta:
            epsilon = max(epsilon, math.log((1.0 - delta - other) / rate))
    return epsilon


def gaussian_dp_epsilon(matrix: ConfusionMatrix, *, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon, if the mechanism is Gaussian-DP.

    Args:
        matrix: The confusion matrix of a threshold fixed in advance.
        delta: The delta at which epsilon is stated, in (0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        Epsilon at ``delta`` of the largest mu the limits contradict. Guesses worse than chance give
        0, not the size of a negative mu.

    Assumes:
        Independent canaries and a Gaussian trade-off curve.

    Examples:
        >>> matrix = ConfusionMatrix(
        ...     true_positive=500, true_negative=990, false_positive=10, false_negative=500)
        >>> round(gaussian_dp_epsilon(matrix, delta=1e-5, confidence=0.95), 3)
        10.065
    """
    _validate.probability(delta=delta, hint="A Gaussian mechanism has no epsilon at delta 0.")
    positive, negative = matrix.rate_limits(confidence=confidence)
    mu = max(0.0, -float(ndtri(positive)) - float(ndtri(negative)))
    return gaussian.gdp_epsilon(delta, mu)


def p_value(curve: Callable[[float], float], matrix: ConfusionMatrix) -> float:
    """Smallest error at which the limits of the error rates contradict a trade-off curve.

    Args:
        curve: The claim, from a false positive rate to the least false negative rate, for instance
            ``TradeOff.epsilon_delta(8.0, 1e-5).beta_at``.
        matrix: The confusion matrix of a threshold fixed in advance.

    Returns:
        The p-value of the claim, between 1e-50 and 1. It agrees with the bounds: it is below an
        error exactly if the bound at that error exceeds the claim.

    Assumes:
        Independent canaries.

    Examples:
        >>> matrix = ConfusionMatrix(
        ...     true_positive=900, true_negative=900, false_positive=100, false_negative=100)
        >>> from askgauss.stats.tradeoff import TradeOff
        >>> round(p_value(TradeOff.epsilon_delta(1.9897, 1e-5).beta_at, matrix), 4)
        0.05
    """

    def contradicted(error: float) -> bool:
        positive, negative = _limits(matrix, error)
        return negative < curve(positive)

    return smallest_error(contradicted)


def bayesian_probability(matrix: ConfusionMatrix, *, epsilon: float, delta: float) -> float:
    """Posterior probability that the error rates are possible under (epsilon, delta)-DP.

    Args:
        matrix: The confusion matrix of a threshold fixed in advance.
        epsilon: Claimed epsilon, 0 or above.
        delta: Claimed delta, in [0, 1).

    Returns:
        The posterior distribution function of epsilon, under Jeffreys priors of the two rates. A
        Dirichlet prior (one half each) on the four cells gives the same. It is a credence, not a
        p-value.

    Examples:
        >>> matrix = ConfusionMatrix(
        ...     true_positive=900, true_negative=900, false_positive=100, false_negative=100)
        >>> round(bayesian_probability(matrix, epsilon=2.1095, delta=1e-5), 4)
        0.05
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    return _credence(matrix, float(epsilon), float(delta))


def bayesian_epsilon(matrix: ConfusionMatrix, *, delta: float, confidence: float) -> float:
    """Lower credible bound on epsilon.

    Args:
        matrix: The confusion matrix of a threshold fixed in advance.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Posterior probability that epsilon is larger, in (0, 1).

    Returns:
        The ``1 - confidence`` quantile of the posterior of epsilon. An upper quantile speaks of
        this threshold and these canaries, not of the mechanism's epsilon.

    Assumes:
        Independent canaries and Jeffreys priors. The bound is credible, which comes close to a
        confidence bound but is not one.

    Examples:
        >>> matrix = ConfusionMatrix(
        ...     true_positive=900, true_negative=900, false_positive=100, false_negative=100)
        >>> round(bayesian_epsilon(matrix, delta=1e-5, confidence=0.95), 4)
        2.1095
    """
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    _validate.probability(confidence=confidence)
    probability = 1.0 - confidence
    return largest_rejected(
        lambda epsilon: probability - _credence(matrix, epsilon, float(delta)), tolerance=1e-8
    )


@cache
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(32)
    return (nodes + 1.0) / 2.0, weights / 2.0


def _credence(matrix: ConfusionMatrix, epsilon: float, delta: float) -> float:
    negative = (matrix.false_negative + 0.5, matrix.true_positive + 0.5)
    positive = (matrix.false_positive + 0.5, matrix.true_negative + 0.5)
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
    log_density = 2.0 * (
        matrix.false_negative * np.log(sine) + matrix.true_positive * np.log(cosine)
    )
    weight = 2.0 * np.exp(log_density - betaln(*negative)) * (width * weights).ravel()
    rate = sine * sine
    inside = betainc(*positive, highest(rate)) - betainc(*positive, lowest(rate))
    return float(np.clip(weight @ inside, 0.0, 1.0))
