"""Mistakes among the most confident guesses, exactly (Xiang et al. 2025, arXiv 2509.08704).

The hypothesis is a *channel*: each canary is an independent fair bit sent through the same pair of
laws (P, Q). The auditor releases its most confident guesses, and the number of mistakes among them
has an exact law: given how confident the best withheld guess was, the mistakes are binomial. With
every canary guessed this is the audit as bits transmission of arXiv 2501.17750.

The exactness is paid for with the independence. A mechanism that keeps the same trade-off curve but
couples the canaries can make the p-value wrong by any factor, so this is a model-based bound and
not one for arbitrary mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincc, betainccinv, betaincinv, betaln, expit, ndtr, xlog1py

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.search import SMALLEST_ERROR, largest_rejected

__all__ = [
    "Channel",
    "EpsilonDelta",
    "Gaussian",
    "epsilon_from_counts",
    "p_value",
    "strongest_rejected",
]

Array = NDArray[np.float64]

# Standard deviations beyond which a normal tail is below every positive float.
_REACH = 39.0

# A signal so far above the noise that more of it changes nothing.
_NO_NOISE = 1e4


class Channel(Protocol):
    """A pair of laws that one fair bit is sent through, as its best guesser sees it."""

    @property
    def kinks(self) -> tuple[float, ...]:
        """The kept fractions at which ``error_mass`` is not smooth."""
        ...

    def error_mass(self, kept: Array) -> Array:
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""
        ...

    def epsilon_at(self, delta: float) -> float:
        """Epsilon of the channel at ``delta``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """N(0, 1) against (1 - sampling_rate) N(0, 1) + sampling_rate N(mu, 1).

    Attributes:
        mu: Contribution of the canary in standard deviations of the noise, 0 or above.
        sampling_rate: Probability that a present canary takes part, in (0, 1]; 1 for always.
    """

    mu: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        _validate.non_negative(mu=self.mu)
        _validate.within(0.0, 1.0, closed="right", sampling_rate=self.sampling_rate)

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where the outcomes below both centres end; without sampling they never do."""
        if self.mu == 0.0 or self.sampling_rate == 1.0:
            return ()
        return (float(self._tails(np.array([self.mu / 2.0 + _REACH]))[0][0]),)

    def error_mass(self, kept: Array) -> Array:
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""
        mu = self.mu
        if mu == 0.0:
            return 0.5 * kept
        # A table brackets the depth to one cell; Newton on the logarithm of the mass ends there.
        table = np.linspace(0.0, mu / 2.0 + _REACH, 128)
        if self.sampling_rate < 1.0:
            further = np.linspace(0.0, max(mu - self._limit, 0.0) + _REACH, 128)
            table = np.concatenate((table, table[-1] + further[1:]))
        fall = -np.log(np.maximum(self._tails(table)[0], np.finfo(np.float64).tiny))
        target = -np.log(kept)
        cell = np.clip(np.searchsorted(fall, target), 1, table.size - 1)
        depth = np.interp(target, fall, table)
        for _ in range(3):
            mass, _, _, density = self._tails(depth)
            step = (np.log(mass) + target) * mass / np.maximum(density, 1e-300)
            depth = np.clip(depth + step, table[cell - 1], table[cell])
        mass, error_mass, error_rate, _ = self._tails(depth)
        # To first order in what is left, which matters where the mass hardly moves with the depth.
        return error_mass + error_rate * (kept - mass)

    @property
    def _limit(self) -> float:
        """The outcome above which none below is as convincing: ratio 1 / (1 - sampling_rate)."""
        return self.mu / 2.0 + math.log1p(1.0 / (1.0 - self.sampling_rate)) / self.mu

    def _tails(self, depth: Array) -> tuple[Array, Array, Array, Array]:
        """Mass and error mass of all outcomes at least as confident as the one ``depth`` deep.

        The likelihood ratio grows with the outcome and is 1 at mu / 2. The outcome ``depth`` below
        that is as confident as the one above with the inverse ratio. With sampling the ratio never
        falls below 1 - sampling_rate; deeper than that only outcomes above are left.

        Returns:
            Mass, error mass, error rate of the outcomes right there, and minus the mass's slope.
        """
        mu, rate, rest = self.mu, self.sampling_rate, 1.0 - self.sampling_rate
        exponent = -mu * depth
        log_rest, log_rate = (math.log(rest) if rest else -math.inf), math.log(rate)
        log_ratio = -np.logaddexp(log_rest, log_rate + exponent)
        room = 1.0 - rest * np.expm1(exponent)
        lower = mu / 2.0 - depth
        upper = mu / 2.0 + (np.log(room) + log_ratio) / mu
        slope = np.exp(exponent) * rest / room + np.exp(exponent + log_rate + log_ratio)
        if rest:
            beyond = depth - (mu / 2.0 + _REACH)
            alone = beyond >= 0.0
            lower = np.where(alone, -np.inf, lower)
            upper = np.where(alone, self._limit + beyond, upper)
            slope = np.where(alone, 1.0, slope)
            above = np.logaddexp(log_rest, log_rate + mu * (upper - mu / 2.0))
            log_ratio = np.where(alone, above, log_ratio)

        above_absent, above_present = ndtr(-upper), ndtr(mu - upper)
        below_absent, below_present = ndtr(lower), ndtr(lower - mu)
        mass = (1.0 + rest) * (above_absent + below_absent) + rate * (above_present + below_present)
        error_mass = above_absent + rest * below_absent + rate * below_present
        density = (1.0 + rest) * (slope * _bell(upper) + _bell(lower))
        density += rate * (slope * _bell(upper - mu) + _bell(lower - mu))
        return mass / 2.0, error_mass / 2.0, expit(-log_ratio), density / 2.0

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at ``delta`` of removing the canary, the direction that leaks more.

        Args:
            delta: Delta, in (0, 1).

        Returns:
            Epsilon, 0 or above.

        Examples:
            >>> round(Gaussian(mu=1.0).epsilon_at(1e-5), 4)
            4.3772
        """
        _validate.probability(delta=delta)
        rate = self.sampling_rate
        if delta >= rate:
            return 0.0
        always = gaussian.gdp_epsilon(delta / rate, self.mu)
        # log(1 + rate (e^always - 1)) without overflow.
        return always + math.log(rate + (1.0 - rate) * math.exp(-always))


def _bell(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDelta:
    """The worst pair under (epsilon, delta)-DP: told with ``delta``, else randomised response.

    Attributes:
        epsilon: Epsilon, 0 or above.
        delta: Delta, in [0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _validate.non_negative(epsilon=self.epsilon)
        _validate.within(0.0, 1.0, closed="left", delta=self.delta)

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where the outcomes that tell all end."""
        return (self.delta,)

    def error_mass(self, kept: Array) -> Array:
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""
        return np.maximum(kept - self.delta, 0.0) * float(expit(-self.epsilon))

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at another ``delta``, in [0, 1); infinity below the channel's own.

        Examples:
            >>> round(EpsilonDelta(epsilon=1.0, delta=0.01).epsilon_at(0.1), 4)
            0.8672
        """
        _validate.within(0.0, 1.0, closed="left", delta=delta)
        if delta < self.delta:
            return math.inf
        spent = (delta - self.delta) / (1.0 - self.delta)
        left = 1.0 - spent / expit(self.epsilon)
        return max(0.0, self.epsilon + math.log(left)) if left > 0.0 else 0.0


def p_value(channel: Channel, counts: GuessCounts) -> float:
    """Probability of so few mistakes among the most confident guesses.

    Args:
        channel: The hypothesis, for instance ``Gaussian(mu=1.0)``.
        counts: The most confident guesses; their number was fixed in advance.

    Returns:
        P[as few mistakes] under the channel; not below 1e-50 unless every canary was guessed.

    Assumes:
        The canaries go through independent copies of the channel. Coupled canaries make the
        p-value too small.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=100, correct=74)
        >>> round(p_value(Gaussian(mu=0.25), counts), 4)
        0.0112
    """
    canaries, guesses, mistakes = counts.canaries, counts.guesses, counts.mistakes
    if mistakes == guesses:
        return 1.0
    if guesses == canaries:
        everything = float(channel.error_mass(np.ones(1))[0])
        return float(betaincc(mistakes + 1, guesses - mistakes, everything))

    # The fraction of outcomes more confident than the best withheld one is Beta distributed, and
    # given that fraction the mistakes are binomial.
    first, second = guesses + 1, canaries - guesses
    nodes, weights = _legendre()

    def integral(ends: list[float]) -> float:
        inner = [kink for kink in channel.kinks if ends[0] < kink < ends[-1]]
        edges = np.sort(ends + inner)[:, None]
        width = np.diff(edges, axis=0)
        kept = (edges[:-1] + width * nodes).ravel()
        log_weight = guesses * np.log(kept) + xlog1py(second - 1, -kept)
        weight = np.exp(log_weight - betaln(first, second)) * (width * weights).ravel()
        error_rate = channel.error_mass(kept) / kept
        return float(weight @ betaincc(mistakes + 1, guesses - mistakes, error_rate))

    # What lies outside the ends counts in full, so that cutting it off never helps a rejection.
    tail = 1e-14
    low, high = betaincinv(first, second, tail), betainccinv(first, second, tail)
    answer = integral([low, high]) + 2.0 * tail
    if answer < 1e-6:
        tail = SMALLEST_ERROR
        lowest, highest = betaincinv(first, second, tail), betainccinv(first, second, tail)
        answer = integral([lowest, low, high, highest]) + 2.0 * tail
    return min(1.0, answer)


def strongest_rejected(
    family: Callable[[float], Channel], counts: GuessCounts, *, confidence: float
) -> float:
    """Lower confidence bound on the parameter of an ordered family of channels.

    Args:
        family: From a parameter, 0 or above, to a channel; a larger parameter must leak more.
        counts: The most confident guesses; their number was fixed in advance.
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest parameter that is rejected; 0 if none is, infinity if all are.

    Assumes:
        Independent canaries, and a channel of the family.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=100, correct=74)
        >>> family = lambda epsilon: EpsilonDelta(epsilon=epsilon, delta=0.0)
        >>> round(strongest_rejected(family, counts, confidence=0.95), 3)
        0.654
    """
    _validate.probability(confidence=confidence)
    error = 1.0 - confidence

    def margin(parameter: float) -> float:
        probability = p_value(family(parameter), counts)
        return math.log(error) - math.log(max(probability, SMALLEST_ERROR))

    return largest_rejected(margin)


def epsilon_from_counts(
    counts: GuessCounts, *, delta: float, confidence: float, sampling_rate: float | None = None
) -> float:
    """Lower confidence bound on epsilon, if each canary goes through its own Gaussian channel.

    Args:
        counts: The most confident guesses; their number was fixed in advance.
        delta: The delta at which epsilon is stated, in (0, 1).
        confidence: Probability that the bound holds, in (0, 1).
        sampling_rate: Probability that a present canary takes part; None for always.

    Returns:
        Epsilon at ``delta`` of the largest rejected mu; 0 if none is rejected.

    Assumes:
        Independent canaries in (subsampled) Gaussian noise of one scale.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=100, correct=74)
        >>> round(epsilon_from_counts(counts, delta=1e-5, confidence=0.95), 4)
        1.1926
    """
    _validate.probability(delta=delta, hint="A Gaussian mechanism has no epsilon at delta 0.")
    rate = 1.0 if sampling_rate is None else sampling_rate

    def family(mu: float) -> Gaussian:
        return Gaussian(mu=mu, sampling_rate=rate)

    if rate < 1.0 and p_value(family(_NO_NOISE), counts) <= 1.0 - confidence:
        raise _validate.fail(
            "sampling_rate",
            sampling_rate,
            f"large enough for only {counts.mistakes} mistakes in {counts.guesses} guesses",
            "Even without noise a canary that is never sampled cannot be told: the true rate is "
            "higher.",
        )
    return family(strongest_rejected(family, counts, confidence=confidence)).epsilon_at(delta)


@cache
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return (nodes + 1.0) / 2.0, weights / 2.0
