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

**Thresholds at stated ranks.** Let the threshold be the k-th highest of ``absent`` scores, and
everything above it be guessed present. The false positive rate of that threshold, the probability
that another absent canary scores higher, has the distribution Beta(k, absent + 1 - k) where ties
are broken at random. Given the threshold, the number of false negatives is binomial. A trade-off
curve promises a false negative rate of at least ``curve(false positive rate)``, so with independent
variables U ~ Beta(k, absent + 1 - k) and V ~ Beta(missed + 1, present - missed)

    P[so few false negatives] <= E[P[Bin(present, curve(U)) <= missed]] = P[V > curve(U)],

a p-value of both rates together. Limits of each rate at half the error, as for a threshold stated
as a number, would cost about a third of the distance between the estimate and the bound. With the
j-th lowest of the ``present`` scores as threshold the same holds with the roles exchanged, and in
terms of counts it is the same formula: one count, k - 1 or j - 1, is stated, the other one seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betainccinv, betaincinv, betaln, expit, logit

from askgauss import _validate
from askgauss.stats.limits import SMALLEST_ERROR, close_bracket, largest_rejected, smallest_error

__all__ = [
    "ConfusionMatrix",
    "Curve",
    "RankedRates",
    "bayesian_epsilon",
    "bayesian_probability",
    "beta_nodes",
    "p_value",
    "strongest_contradicted",
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


Curve = Callable[[Array], Array]

# Values of the one variable at first, and of the table of the other one's tail.
_RATE_NODES = 96
_TABLE = 1024
_NEGLIGIBLE = 14.0
_LEAST = 1e-300


@dataclass(frozen=True, slots=True)
class RankedRates:
    """The two Beta variables of one or several thresholds.

    A p-value is a sum over values of the one variable of the other one's tail, which is tabulated
    once in log odds: incomplete beta functions take fifty times as long.

    Attributes:
        positive: Parameters of the false positive rate's variable, one row a threshold.
        negative: Parameters of the false negative rate's.
        start: Log odds at which the table of the false negative rate's tail begins.
        step: Width of its cells.
        log_tail: The logarithms of the tail.
    """

    positive: Array
    negative: Array
    start: Array
    step: Array
    log_tail: Array

    @classmethod
    def of(
        cls, positive: Sequence[tuple[float, float]], negative: Sequence[tuple[float, float]]
    ) -> RankedRates:
        """From the parameters of both variables, a threshold each; all of them positive."""
        second = np.array(negative, dtype=np.float64)
        low, high = _range(second)
        step = (high - low) / (_TABLE - 1)
        tail = np.exp(_log_density(second, low + step * np.arange(_TABLE)))
        above = np.cumsum(tail[:, ::-1], axis=1)[:, ::-1] - 0.5 * (tail + tail[:, -1:])
        return cls(
            positive=np.array(positive, dtype=np.float64),
            negative=second,
            start=low,
            step=step,
            log_tail=np.log(np.maximum(above / above[:, :1], SMALLEST_ERROR)),
        )

    def pick(self, rows: NDArray[np.bool_]) -> RankedRates:
        """Some of the thresholds."""
        return RankedRates(
            self.positive[rows],
            self.negative[rows],
            self.start[rows],
            self.step[rows],
            self.log_tail[rows],
        )

    def p_values(self, curve: Curve) -> Array:
        """Probability of so few mistakes at each threshold, were the curve kept."""
        low, high = _range(self.positive)
        # Once everywhere, and then only where the sum is not negligible.
        odds, logs = self._logs(curve, low, high, _RATE_NODES)
        worth = logs > logs.max(axis=1, keepdims=True) - _NEGLIGIBLE
        width = (high - low)[:, 0] / (_RATE_NODES - 1)
        first = odds[:, 0] + width * (worth.argmax(axis=1) - 1)
        last = odds[:, -1] - width * (worth[:, ::-1].argmax(axis=1) - 1)
        odds, logs = self._logs(curve, first[:, None], last[:, None], 2 * _RATE_NODES)
        total = np.exp(logs).sum(axis=1) * (odds[:, 1] - odds[:, 0])
        return np.asarray(np.clip(total, SMALLEST_ERROR, 1.0))

    def _logs(self, curve: Curve, low: Array, high: Array, nodes: int) -> tuple[Array, Array]:
        """Log odds of false positive rates, and the logarithm of what each adds."""
        odds = low + (high - low) / (nodes - 1) * np.arange(nodes)
        least = np.minimum(np.maximum(curve(expit(odds)), _LEAST), 1.0 - 1e-16)
        place = (logit(least) - self.start) / self.step
        place = np.minimum(np.maximum(place, 0.0), _TABLE - 1.001)
        cell = place.astype(np.intp)
        at = cell + _TABLE * np.arange(len(cell))[:, np.newaxis]
        tail = self.log_tail.ravel()
        left = tail[at]
        return odds, _log_density(self.positive, odds) + left + (place - cell) * (
            tail[at + 1] - left
        )

    def limits(self, error: float) -> tuple[Array, Array]:
        """Upper limits of the two rates of each threshold, each exceeded with this probability."""
        positive = betainccinv(self.positive[:, 0], self.positive[:, 1], error)
        negative = betainccinv(self.negative[:, 0], self.negative[:, 1], error)
        return np.asarray(positive), np.asarray(negative)


def beta_nodes(parameters: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    """Values of Beta variables and their probabilities, one row each, to sum over."""
    rows = np.array(parameters, dtype=np.float64)
    low, high = _range(rows)
    odds = low + (high - low) / (_RATE_NODES - 1) * np.arange(_RATE_NODES)
    weights = np.exp(_log_density(rows, odds))
    return np.asarray(expit(odds)), np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _range(parameters: Array) -> tuple[Array, Array]:
    """Log odds between which all of a Beta variable is that matters."""
    a, b = parameters[:, :1], parameters[:, 1:]
    spread = np.sqrt(1.0 / a + 1.0 / b)
    middle = np.log(a / b)
    # Further up than down, since high rates decide where the p-value is small.
    return middle - 9.0 * spread - 14.0 / a, middle + 16.0 * spread + 14.0 / b


def _log_density(parameters: Array, odds: Array) -> Array:
    """Log density of the log odds of a Beta variable."""
    a, b = parameters[:, :1], parameters[:, 1:]
    rest = -np.log1p(np.exp(-np.abs(odds)))
    return np.asarray(
        (a + b) * rest + a * np.minimum(odds, 0.0) - b * np.maximum(odds, 0.0) - betaln(a, b)
    )


def strongest_contradicted(
    rates: RankedRates,
    family: Callable[[float], Curve],
    parameter: Callable[[Array, Array], Array],
    error: float,
    tolerance: float = 1e-6,
) -> float:
    """The largest parameter of a family of curves that some threshold contradicts.

    Args:
        rates: The thresholds.
        family: From a parameter to its curve; a larger one leaks more.
        parameter: The parameter of the curve through two rates.
        error: The error at which each threshold is read.
        tolerance: Relative width to which the parameter is found.

    Returns:
        The parameter; below 0 where not even that of no leak is contradicted.
    """
    # Both rates are below limits of half the error each but for that error; and above limits of its
    # square root with the probability of that error.
    lowest = parameter(*rates.limits(0.5 * error))
    highest = parameter(*rates.limits(error**0.5))
    best = float(lowest.max())
    if float(highest.max()) <= max(best, 0.0):
        return best
    rates = rates.pick(highest > max(best, 0.0))
    level = math.log(error)

    def depth(value: float) -> float:
        return level - math.log(rates.p_values(family(value)).min())

    left, right = max(best, 0.0), float(highest.max())
    at_left, at_right = depth(left), depth(right)
    if at_left <= 0.0:
        return best
    while at_right > 0.0:  # by rounding
        left, at_left, right = right, at_right, right + 1e-3 * (1.0 + right)
        at_right = depth(right)
    return close_bracket(depth, left, at_left, right, at_right, tolerance)
