"""Two error rates at a threshold whose rank in one of the groups was stated in advance.

Let the threshold be the k-th highest of ``absent`` scores, and everything above it be guessed
present. The false positive rate of that threshold, the probability that another absent canary
scores higher, has the distribution Beta(k, absent + 1 - k) where ties are broken at random. Given
the threshold, the number of false negatives is binomial. A trade-off curve promises a false
negative rate of at least ``curve(false positive rate)``, so with independent variables
U ~ Beta(k, absent + 1 - k) and V ~ Beta(missed + 1, present - missed)

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

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaln, expit, logit

from askgauss.stats.search import SMALLEST_ERROR, close_bracket

__all__ = ["Curve", "RankedRates", "beta_nodes", "strongest_contradicted"]

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

# Values of the one variable at first, and of the table of the other one's tail.
_NODES = 96
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
        odds, logs = self._logs(curve, low, high, _NODES)
        worth = logs > logs.max(axis=1, keepdims=True) - _NEGLIGIBLE
        width = (high - low)[:, 0] / (_NODES - 1)
        first = odds[:, 0] + width * (worth.argmax(axis=1) - 1)
        last = odds[:, -1] - width * (worth[:, ::-1].argmax(axis=1) - 1)
        odds, logs = self._logs(curve, first[:, None], last[:, None], 2 * _NODES)
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
    odds = low + (high - low) / (_NODES - 1) * np.arange(_NODES)
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
