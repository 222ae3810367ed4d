"""Mistakes among the most confident guesses, exactly (Xiang et al. 2025, arXiv 2509.08704).

The hypothesis is a *channel*: each canary is an independent fair bit sent through the same pair of
distributions (P, Q). The auditor releases its most confident guesses, and the number of mistakes
among them has an exact distribution: given how confident the best withheld guess was, the mistakes
are binomial. With every canary guessed this is the audit as bits transmission of arXiv 2501.17750.

The exactness is paid for with the independence. A mechanism that keeps the same trade-off curve but
couples the canaries can make the p-value wrong by any factor, so this is a model-based bound and
not one for arbitrary mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincc, betainccinv, betaincinv, betaln, expit, ndtr, ndtri, xlog1py

from askgauss import _validate
from askgauss.auditors.guessing import (
    GuessEvidence,
    GuessingAuditor,
    accuracies,
    accuracy_lower,
    tried,
)
from askgauss.auditors.one_run_fdp import (
    EpsilonDeltaFamily,
    GaussianFamily,
    check_family,
    sampling_findings,
)
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Finding
from askgauss.selection import Fixed, Ranks, Selection, Split
from askgauss.stats import gaussian
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.limits import SMALLEST_ERROR, largest_rejected

__all__ = [
    "EpsilonDeltaChannel",
    "GaussianChannel",
    "OrderStatistics",
    "mistakes_p_value",
    "strongest_rejected",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# Standard deviations beyond which a normal tail is below every positive float.
_REACH = 39.0
# A shift at which the noise no longer matters.
_NOISELESS = 1e3
# Share of the canaries guessed in the Gaussian family: within a few percent of the best one from
# 100 canaries to millions and from epsilon 1 to 12.
_GUESSED = 0.75
# The accuracy of guesses that seem to say nothing.
_LEAST = 0.52


class Channel(Protocol):
    """A pair of distributions that one fair bit is sent through, as its best guesser sees it."""

    @property
    def kinks(self) -> tuple[float, ...]:
        """The kept fractions at which ``error_mass`` is not smooth."""

    def error_mass(self, kept: Array) -> Array:
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianChannel:
    """N(0, 1) against (1 - sampling_rate) N(0, 1) + sampling_rate N(mu, 1).

    Attributes:
        mu: Contribution of the canary in standard deviations of the noise, 0 or above.
        sampling_rate: Probability that a present canary takes part, in (0, 1]; 1 for always.
    """

    mu: float
    sampling_rate: float = 1.0

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
            >>> round(GaussianChannel(mu=1.0).epsilon_at(1e-5), 4)
            4.3772
        """
        rate = self.sampling_rate
        if delta >= rate:
            return 0.0
        always = gaussian.gdp_epsilon(delta / rate, self.mu)
        # log(1 + rate (e^always - 1)) without overflow.
        return always + math.log(rate + (1.0 - rate) * math.exp(-always))


def _bell(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaChannel:
    """The worst pair under (epsilon, delta)-DP: told with ``delta``, else randomised response.

    Attributes:
        epsilon: Epsilon, 0 or above.
        delta: Delta, in [0, 1).
    """

    epsilon: float
    delta: float

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where the outcomes that tell all end."""
        return (self.delta,)

    def error_mass(self, kept: Array) -> Array:
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""
        return np.maximum(kept - self.delta, 0.0) * float(expit(-self.epsilon))


def mistakes_p_value(channel: Channel, counts: GuessCounts) -> float:
    """Probability of so few mistakes among the most confident guesses.

    Args:
        channel: The hypothesis, for instance ``GaussianChannel(mu=1.0)``.
        counts: The most confident guesses; their number was fixed in advance.

    Returns:
        P[as few mistakes] under the channel; not below 1e-50 unless every canary was guessed.

    Assumes:
        The canaries go through independent copies of the channel. Coupled canaries make the
        p-value too small.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=100, correct=74)
        >>> round(mistakes_p_value(GaussianChannel(mu=0.25), counts), 4)
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
        >>> family = lambda epsilon: EpsilonDeltaChannel(epsilon=epsilon, delta=0.0)
        >>> round(strongest_rejected(family, counts, confidence=0.95), 3)
        0.654
    """
    error = 1.0 - confidence

    def margin(parameter: float) -> float:
        probability = mistakes_p_value(family(parameter), counts)
        return math.log(error) - math.log(max(probability, SMALLEST_ERROR))

    return largest_rejected(margin)


@cache
def _legendre() -> tuple[Array, Array]:
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return (nodes + 1.0) / 2.0, weights / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderStatistics(GuessingAuditor):
    """The number of mistakes among the most confident guesses, against its exact law.

    Assumes:
        Each canary was made present by a fair coin of its own, and is seen through an independent
        copy of one channel of the family. The independence is essential: a mechanism of the same
        trade-off curve that couples the canaries is called a violation again and again.

    Guarantee:
        ``epsilon_lower`` exceeds the channel's epsilon in at most 1 - confidence of audits. Guesses
        that are not the most confident ones can only be worse, so the rule needs no model.

    Args:
        selection: As for `GuessingAuditor`; not by a threshold.
        two_sided: As for `GuessingAuditor`.
        family: `GaussianFamily` or `EpsilonDeltaFamily`.
        sampling_rate: Probability that a present canary is in a single-step score at all; None for
            always, and for scores summed over many steps.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 3.5 < ag.audit(scores, delta=1e-5, auditor=OrderStatistics()).epsilon_lower < 4.38
        True
    """

    family: GaussianFamily | EpsilonDeltaFamily = field(default_factory=GaussianFamily)
    sampling_rate: float | None = None

    def __post_init__(self) -> None:
        GuessingAuditor.__post_init__(self)
        check_family(self.family)
        if not isinstance(self.family, GaussianFamily | EpsilonDeltaFamily):
            raise UnsupportedError(
                "OrderStatistics has no channel for a whole sampled run. Use GaussianFamily(), "
                "with sampling_rate= for the scores of a single step."
            )
        if self.sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
            if not isinstance(self.family, GaussianFamily):
                raise InvalidArgumentError(
                    f"Expected no sampling_rate with {self.family}, got {self.sampling_rate!r}. It "
                    "belongs to the Gaussian channel."
                )
        if self._by_threshold:
            raise UnsupportedError(
                "OrderStatistics knows the law of a fixed number of most confident guesses, not of "
                "those beyond a threshold. Use Ranks(), or Fixed(guesses=...)."
            )

    @property
    def assumption(self) -> Assumption:  # type: ignore[override]
        """Independent canaries, and what the family takes for granted."""
        if isinstance(self.family, EpsilonDeltaFamily):
            return Assumption.INDEPENDENT_CANARIES
        return Assumption.INDEPENDENT_FAMILY

    @property
    def _rule(self) -> Selection:
        if not isinstance(self.selection, Ranks):
            return self.selection
        # The distribution of the most confident guesses is that of all canaries or of a random
        # part of them, not of a part that was chosen by rank.
        whole = isinstance(self.family, GaussianFamily) and self._rate == 1.0
        return Fixed(fraction=_GUESSED) if whole else Split()

    @property
    def _rate(self) -> float:
        return 1.0 if self.sampling_rate is None else self.sampling_rate

    def _channel(self, mu: float) -> GaussianChannel:
        return GaussianChannel(mu=mu, sampling_rate=self._rate)

    def _bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        trial = evidence.trial
        if isinstance(self.family, EpsilonDeltaFamily):
            return strongest_rejected(
                lambda epsilon: EpsilonDeltaChannel(epsilon=epsilon, delta=delta),
                trial,
                confidence=1.0 - error,
            )
        if self._rate < 1.0 and mistakes_p_value(self._channel(_NOISELESS), trial) < error:
            # Better guesses than canaries sampled so rarely allow without any noise.
            return math.inf if delta < self._rate else 0.0
        mu = strongest_rejected(self._channel, trial, confidence=1.0 - error)
        return self._channel(mu).epsilon_at(delta)

    def p_value(self, evidence: GuessEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "the run is (epsilon, delta)-private"."""
        trial, rate = evidence.trial, self._rate
        if isinstance(self.family, EpsilonDeltaFamily):
            return mistakes_p_value(EpsilonDeltaChannel(epsilon=epsilon, delta=delta), trial)
        if delta >= rate:
            return 1.0  # no noise is too small for such a delta
        # The epsilon without sampling, log(1 + (e^epsilon - 1) / rate), without overflow.
        always = epsilon + math.log((1.0 - (1.0 - rate) * math.exp(-epsilon)) / rate)
        return mistakes_p_value(self._channel(gaussian.gdp_mu(always, delta / rate)), trial)

    def _promise(self, fraction: Array, guesses: Array, correct: Array, error: float) -> Array:
        if isinstance(self.family, EpsilonDeltaFamily):
            return GuessingAuditor._promise(self, fraction, guesses, correct, error)
        # The shift at which so confident guesses are so accurate.
        accuracy = accuracy_lower(guesses, correct, error)
        reach = fraction if self.two_sided else np.minimum(2.0 * fraction, 1.0)
        return np.asarray(ndtri(reach * accuracy) - ndtri(reach * (1.0 - accuracy)))

    def _best_share(self, correct: Integers, size: int, canaries: int, error: float) -> float:
        if isinstance(self.family, EpsilonDeltaFamily) or self._rate < 1.0:
            return GuessingAuditor._best_share(self, correct, size, canaries, error)
        # Of a Gaussian channel one shift says how accurate every share of guesses is. Taken from
        # half of the scores on either side, it depends on luck less than the shares themselves.
        counts = tried(size)
        halves = -1 if self.two_sided else int(np.argmin(np.abs(counts - 0.5 * size)))
        accuracy = min(max(correct[halves] / counts[halves], _LEAST), 1.0 - 0.5 / counts[halves])
        fraction = counts / size
        expected = accuracies(2.0 * float(ndtri(accuracy)), fraction, self.two_sided)
        guesses = fraction * canaries
        promise = self._promise(fraction, guesses, expected * guesses, error)
        return float(fraction[np.argmax(promise)])

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the counts were, and which family the bound rests on."""
        found = GuessingAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        bound = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
        found += sampling_findings(bound, self._rate)
        return found + self.family.findings()
