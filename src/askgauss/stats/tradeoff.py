"""Trade-off curves: the false negatives a test must accept for its false positives.

A test that tells a present canary from an absent one has a false positive rate ``alpha`` and a
false negative rate ``beta``. The trade-off curve of a mechanism is the least ``beta`` at each
``alpha`` over all tests and all neighbours (Dong, Roth and Su, arXiv 1905.02383). Neighbours come
in both orders, so every curve here is convex and its own inverse. A lower curve leaks more. Which
side of the truth a curve lies on depends on where it came from:

========================  ====================================================================
`TradeOff.gaussian`       exact
`TradeOff.epsilon_delta`  the lowest curve such a guarantee allows: at or below the mechanism's
`TradeOff.from_profile`   likewise for many guarantees at once: at or below the mechanism's
`TradeOff.empirical`      at or above the mechanism's, with the stated confidence
========================  ====================================================================

So the epsilon of a guarantee's curve is an upper bound and that of an empirical curve a lower one;
and a guarantee's curve is the one to test, for what contradicts it contradicts the mechanism.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr, ndtri

from askgauss import _validate
from askgauss.stats import gaussian

__all__ = ["TradeOff"]

Array = NDArray[np.float64]

# e^epsilon of a steeper line is no longer a float; leaving it out only lowers the curve.
_STEEPEST = 700.0


class TradeOff(ABC):
    """A symmetric trade-off curve; made by one of its constructors.

    Examples:
        >>> curve = TradeOff.gaussian(1.0)
        >>> round(curve.beta_at(0.05), 4), round(curve.epsilon_at(1e-5), 3)
        (0.7405, 4.377)
    """

    __slots__ = ()

    @staticmethod
    def gaussian(mu: float) -> TradeOff:
        """The curve of two unit Gaussians ``mu`` apart.

        Args:
            mu: Distance in standard deviations, 0 or above.

        Returns:
            The exact curve.
        """
        _validate.non_negative(mu=mu)
        return _Gaussian(mu=float(mu))

    @staticmethod
    def epsilon_delta(epsilon: float, delta: float) -> TradeOff:
        """The lowest curve that (epsilon, delta)-differential privacy allows.

        Args:
            epsilon: Epsilon, 0 or above.
            delta: Delta, in [0, 1].

        Returns:
            The curve max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)).

        Examples:
            >>> TradeOff.epsilon_delta(math.log(3.0), 0.0).beta_at([0.0, 0.25, 1.0]).round(6)
            array([1.  , 0.25, 0.  ])
        """
        _validate.non_negative(epsilon=epsilon)
        _validate.within(0.0, 1.0, closed="both", delta=delta)
        return TradeOff.from_profile([epsilon], [delta])

    @staticmethod
    def from_profile(epsilon: ArrayLike, delta: ArrayLike) -> TradeOff:
        """The lowest curve that several (epsilon, delta) guarantees allow together.

        Args:
            epsilon: Epsilons, 0 or above, strictly increasing.
            delta: A delta in [0, 1] for each. If each is an upper bound, as a pessimistic
                accountant gives it, the curve lies at or below the mechanism's.

        Returns:
            The piecewise linear curve above all of their curves.

        Examples:
            >>> levels = np.linspace(0.0, 10.0, 2000)
            >>> curve = TradeOff.from_profile(levels, gaussian.gdp_delta(levels, 1.0))
            >>> round(curve.beta_at(0.05), 4)
            0.7405
        """
        levels, deltas = np.asarray(epsilon, np.float64), np.asarray(delta, np.float64)
        if levels.ndim != 1 or levels.shape != deltas.shape or levels.size == 0:
            shapes = (levels.shape, deltas.shape)
            raise _validate.fail("epsilon and delta", shapes, "to be vectors of one length >= 1")
        rising = np.all(np.diff(levels, prepend=-1.0) > 0.0)
        if not (rising and levels[0] >= 0.0 and levels[-1] < math.inf):
            raise _validate.fail("epsilon", epsilon, ">= 0, finite and strictly increasing")
        if not (deltas.min() >= 0.0 and deltas.max() <= 1.0):
            raise _validate.fail("delta", delta, "in [0, 1]")
        return _from_lines(levels, deltas)

    @staticmethod
    def empirical(present: ArrayLike, absent: ArrayLike, *, confidence: float) -> TradeOff:
        """A curve that lies above the mechanism's with the stated confidence, from scores.

        Every threshold "present if the score reaches it" is a test. Its two error rates are raised
        by the one-sided Dvoretzky-Kiefer-Wolfowitz bound (Massart's constant), half the error
        budget each, so the points hold for all thresholds at once and the best may be chosen
        freely. Mixtures of tests, and tests with the roles exchanged, fill the curve.

        Args:
            present: Scores of present canaries; higher means more likely present.
            absent: Scores of absent canaries.
            confidence: Probability that the whole curve holds.

        Returns:
            The curve; its `epsilon_at` is a lower bound on epsilon.

        Assumes:
            The scores of each group are independent and identically distributed.

        Guarantee:
            With probability at least ``confidence`` the curve is nowhere below the mechanism's.

        Examples:
            >>> absent = np.arange(1000)
            >>> curve = TradeOff.empirical(absent + 900, absent, confidence=0.95)
            >>> round(curve.epsilon_at(1e-5), 3)
            2.994
        """
        _validate.probability(confidence=confidence)
        ones = np.sort(_validate.finite_vector("present", present))
        zeros = np.sort(_validate.finite_vector("absent", absent))
        for name, scores in (("present", ones), ("absent", zeros)):
            if scores.size == 0:
                raise _validate.fail(f"the number of {name} scores", 0, ">= 1")
        # Massart's one-sided constant holds for errors up to 1/2, so always for half the budget.
        budget = math.log(2.0 / (1.0 - confidence)) / 2.0
        cuts, below = np.unique(ones, return_index=True)
        power = 1.0 - below / ones.size - math.sqrt(budget / ones.size)
        alpha = 1.0 - np.searchsorted(zeros, cuts, side="left") / zeros.size
        alpha = alpha + math.sqrt(budget / zeros.size)
        better = power > alpha  # than tossing a coin
        return _from_points(alpha[better], power[better])

    @overload
    def beta_at(self, alpha: float) -> float: ...
    @overload
    def beta_at(self, alpha: ArrayLike) -> Array: ...
    def beta_at(self, alpha: ArrayLike) -> float | Array:
        """Least false negative rate at a false positive rate.

        Args:
            alpha: False positive rates, in [0, 1].

        Returns:
            The curve there: a float for a float, an array for an array.
        """
        answer: float | Array = _map(self._beta, alpha=alpha)
        return answer

    @overload
    def inverse_blow_up(self, probability: float) -> float: ...
    @overload
    def inverse_blow_up(self, probability: ArrayLike) -> Array: ...
    def inverse_blow_up(self, probability: ArrayLike) -> float | Array:
        """Least probability in one world of an event that has ``probability`` in the other.

        The false positive rate that a true positive rate must cost; accurate where both are tiny.

        Args:
            probability: True positive rates, in [0, 1].

        Returns:
            The smallest false positive rates: a float for a float, an array for an array.
        """
        answer: float | Array = _map(self._inverse, probability=probability)
        return answer

    def delta_at(self, epsilon: float) -> float:
        """Smallest delta for which the curve allows (epsilon, delta).

        Args:
            epsilon: Epsilon, 0 or above.

        Returns:
            The largest value of 1 - beta - e^epsilon alpha on the curve.
        """
        _validate.non_negative(epsilon=epsilon)
        return self._delta(float(epsilon))

    def epsilon_at(self, delta: float) -> float:
        """Smallest epsilon, 0 or above, for which the curve allows (epsilon, delta).

        Args:
            delta: Delta, in [0, 1).

        Returns:
            Epsilon; infinity where the curve starts below 1 - delta.
        """
        _validate.within(0.0, 1.0, closed="left", delta=delta)
        return self._epsilon(float(delta))

    def advantage(self) -> float:
        """Largest true positive rate minus false positive rate of any test, `delta_at` 0."""
        return self._delta(0.0)

    @abstractmethod
    def points(self) -> tuple[Array, Array]:
        """Points (alpha, beta) to draw, alpha increasing from 0 to 1."""

    @abstractmethod
    def _beta(self, alpha: Array) -> Array: ...

    @abstractmethod
    def _inverse(self, probability: Array) -> Array: ...

    @abstractmethod
    def _delta(self, epsilon: float) -> float: ...

    @abstractmethod
    def _epsilon(self, delta: float) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gaussian(TradeOff):
    """Two unit Gaussians."""

    mu: float

    def points(self) -> tuple[Array, Array]:
        cuts = np.linspace(-8.0, self.mu + 8.0, 801)
        alpha, beta = ndtr(-cuts)[::-1], ndtr(cuts - self.mu)[::-1]
        return np.concatenate(([0.0], alpha, [1.0])), np.concatenate(([1.0], beta, [0.0]))

    def _beta(self, alpha: Array) -> Array:
        return np.asarray(ndtr(-ndtri(alpha) - self.mu))

    def _inverse(self, probability: Array) -> Array:
        return np.asarray(ndtr(ndtri(probability) - self.mu))

    def _delta(self, epsilon: float) -> float:
        return gaussian.gdp_delta(epsilon, self.mu)

    def _epsilon(self, delta: float) -> float:
        return gaussian.gdp_epsilon(delta, self.mu)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Polygon(TradeOff):
    """A convex polygon, by its vertices from alpha = 0 to the axis of symmetry alpha = beta.

    Attributes:
        alpha: False positive rates, strictly increasing.
        power: True positive rates, strictly increasing. They are kept instead of beta because both
            coordinates are then tiny where it matters most; the last is 1 - alpha.
    """

    alpha: Array
    power: Array

    def points(self) -> tuple[Array, Array]:
        alpha = np.concatenate((self.alpha, 1.0 - self.power[-2::-1], [1.0]))
        beta = np.concatenate((1.0 - self.power, self.alpha[-2::-1], [0.0]))
        return alpha, beta

    def _beta(self, alpha: Array) -> Array:
        near = 1.0 - np.interp(alpha, self.alpha, self.power)
        return np.where(
            alpha < self.alpha[-1], near, np.interp(1.0 - alpha, self.power, self.alpha)
        )

    def _inverse(self, probability: Array) -> Array:
        near = np.interp(probability, self.power, self.alpha)
        far = 1.0 - np.interp(1.0 - probability, self.alpha, self.power)
        return np.where(probability <= self.power[-1], near, far)

    def _delta(self, epsilon: float) -> float:
        with np.errstate(divide="ignore", over="ignore"):
            return float(np.max(self.power - np.exp(epsilon + np.log(self.alpha)), initial=0.0))

    def _epsilon(self, delta: float) -> float:
        leaking = self.power > delta
        with np.errstate(divide="ignore"):
            ratios = np.log(self.power[leaking] - delta) - np.log(self.alpha[leaking])
        return float(np.max(ratios, initial=0.0))


def _from_lines(epsilon: Array, delta: Array) -> _Polygon:
    """The polygon under all lines power = delta + e^epsilon alpha and their mirror images."""
    # A guarantee that an earlier one implies adds nothing, nor does a line too steep for a float.
    earlier = np.minimum.accumulate(np.concatenate(([math.inf], delta[:-1])))
    useful = (delta < earlier) & ((epsilon <= _STEEPEST) | (np.arange(epsilon.size) == 0))
    levels, deltas = epsilon[useful].tolist(), delta[useful].tolist()

    def crossing(flat: int, steep: int) -> float:
        drop = math.exp(-levels[flat]) * (deltas[flat] - deltas[steep])
        return float(drop / math.expm1(levels[steep] - levels[flat]))

    lines = _convex(len(levels), lambda flat, steep: -crossing(flat, steep))[::-1]
    alpha, power, last = [0.0], [deltas[lines[0]]], lines[0]
    for steep, flat in pairwise(lines):
        x = crossing(flat, steep)
        y = deltas[flat] + math.exp(levels[flat]) * x
        if x + y >= 1.0:
            break
        alpha.append(x)
        power.append(y)
        last = flat
    corner = (1.0 - deltas[last]) * float(expit(-levels[last]))
    return _half(np.array([*alpha, corner]), np.array([*power, 1.0 - corner]))


def _from_points(alpha: Array, power: Array) -> _Polygon:
    """The lowest curve that is above no mixture of these tests and their mirror images."""
    far = alpha + power > 1.0
    alpha, power = np.where(far, 1.0 - power, alpha), np.where(far, 1.0 - alpha, power)
    order = np.lexsort((-power, alpha))
    alpha, power = np.append(0.0, alpha[order]), np.append(0.0, power[order])
    rising = power > np.maximum.accumulate(np.append(-1.0, power[:-1]))
    alpha, power = alpha[rising], power[rising]
    xs, ys = alpha.tolist(), power.tolist()

    def slope(first: int, second: int) -> float:
        run = xs[second] - xs[first]
        return (ys[first] - ys[second]) / run if run > 0.0 else -math.inf

    kept = np.array(_convex(len(xs), slope))
    kept = kept[: 1 + int(np.argmax(power[kept] - alpha[kept]))]
    alpha, power = alpha[kept], power[kept]
    corner = (alpha[-1] + 1.0 - power[-1]) / 2.0
    return _half(np.append(alpha, corner), np.append(power, 1.0 - corner))


def _half(alpha: Array, power: Array) -> _Polygon:
    distinct = np.append((np.diff(alpha) > 0.0) & (np.diff(power) > 0.0), True)
    alpha, power = alpha[distinct], power[distinct]
    for vertices in (alpha, power):
        vertices.setflags(write=False)
    return _Polygon(alpha=alpha, power=power)


def _convex(count: int, slope: Callable[[int, int], float]) -> list[int]:
    """Indices of those of ``count`` points in order between which the slope only increases."""
    kept: list[int] = []
    for point in range(count):
        while len(kept) > 1 and slope(kept[-2], kept[-1]) >= slope(kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _map(function: Callable[[Array], Array], **argument: Any) -> Any:
    """The function at one or many probabilities: a float for a float, an array for an array."""
    ((name, value),) = argument.items()
    if isinstance(value, float | int):
        _validate.within(0.0, 1.0, closed="both", **argument)
        return float(function(np.asarray(value, dtype=np.float64)))
    array = np.asarray(value, dtype=np.float64)
    if array.size and not (array.min() >= 0.0 and array.max() <= 1.0):
        raise _validate.fail(name, value, "in [0, 1]")
    return function(array)
