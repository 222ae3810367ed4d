"""What scores show of a mechanism: how far presence moves them, and the law they then have.

Power asks about a *mechanism* of some epsilon, a test about the *scores*. Where scores are sums of
sampled steps both are exact: the noise of a run with that epsilon comes from the accountant, and
the sum of its steps, a binomial mixture of Gaussians, carries less than the steps do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss import accounting
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.stats import gaussian
from askgauss.stats.binomial import binomial_weights
from askgauss.stats.sampled_sum import StepWeights
from askgauss.stats.shift import sampling_variance

__all__ = ["Carrier", "ScorePair", "epsilon_of_scores", "pair_of_mechanism", "shift_of_mechanism"]

Array = NDArray[np.float64]

# From so many inclusions and so many exclusions of one canary on, their number is Gaussian.
_MANY = 1000.0
# Left out of the sum over inclusions: exp(-30) = 1e-13.
_BUDGET = 30.0
# Where a law is tabulated, and how far out, in units of its own width.
_POINTS = 1024
_REACH = 9.0


class Carrier(Protocol):
    """Evidence that may know how much of the mechanism's shift its scores carry."""

    @property
    def steps(self) -> int | None:
        """Steps summed into a score."""

    @property
    def sampling_rate(self) -> float | None:
        """Sampling rate of a present canary."""

    @property
    def carried_shift(self) -> float | None:
        """The share that scores carry, where stated."""


def _weighted(evidence: Carrier) -> StepWeights | None:
    """How much each step counts in a score, where the evidence keeps that."""
    found = getattr(evidence, "weighted", None)
    return found if isinstance(found, StepWeights) else None


def _sampled(evidence: Carrier) -> tuple[int, float] | None:
    """Steps and rate, where scores are known to be sums of sampled steps."""
    if evidence.carried_shift is not None or evidence.steps is None:
        return None
    rate = evidence.sampling_rate
    return None if rate is None or rate == 1.0 else (evidence.steps, rate)


def _summed(evidence: Carrier) -> tuple[int, float, float] | None:
    """Steps of the mechanism, rate, and the number of equal steps a score amounts to."""
    weighted = _weighted(evidence)
    if weighted is not None:
        return weighted.steps, weighted.sampling_rate, weighted.effective_steps
    sampled = _sampled(evidence)
    return None if sampled is None else (*sampled, float(sampled[0]))


def shift_of_mechanism(
    evidence: Carrier, epsilon: float, delta: float, *, replaced: bool = False
) -> float:
    """Shift of the scores, in units of their noise, when the whole *mechanism* has this epsilon.

    For sums of sampled steps that is q sqrt(T) / sigma, with the noise multiplier sigma that the
    accountant has for this epsilon. Where neither that nor a stated share says otherwise, scores
    are taken to carry all of it. Of a replaced record the epsilon is that of twice the distance.
    """
    summed = _summed(evidence)
    if summed is None:
        share = 1.0 if evidence.carried_shift is None else evidence.carried_shift
        return share * gaussian.gdp_mu(epsilon, delta) / (2.0 if replaced else 1.0)
    steps, rate, effective = summed
    if replaced:
        law = ReplaceOne(of=Poisson(rate=rate))
        signal = law.quick_signal_to_noise(epsilon=epsilon, delta=delta, steps=steps)
        return rate * math.sqrt(effective) * signal
    signal = accounting.quick_signal_to_noise(
        epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps
    )
    return rate * math.sqrt(effective) * signal


def epsilon_of_scores(
    evidence: Carrier, shift: float, delta: float, *, replaced: bool = False
) -> float:
    """Epsilon of the mechanism whose scores show this shift: the inverse of the above."""
    summed = _summed(evidence)
    if summed is None:
        share = 1.0 if evidence.carried_shift is None else evidence.carried_shift
        return gaussian.gdp_epsilon(delta, (2.0 if replaced else 1.0) * shift / share)
    steps, rate, effective = summed
    if replaced:
        noise = rate * math.sqrt(effective) / shift if shift > 0.0 else math.inf
        law = ReplaceOne(of=Poisson(rate=rate))
        return law.epsilon_lower(noise_multiplier=noise, steps=steps, delta=delta)
    return accounting.dpsgd_epsilon_lower(
        signal_to_noise=shift / (rate * math.sqrt(effective)),
        sampling_rate=rate,
        steps=steps,
        delta=delta,
        grid=accounting.COARSE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """What an absent and a present canary score, in units of the noise.

    Absent ones score N(0, 1); present ones N(shift, 1), or the mixture over the number of steps
    that sampled them.

    Attributes:
        shift: Distance between the two means.
        steps: Steps summed into a score, where they were sampled.
        sampling_rate: How often, below 1.
    """

    shift: float
    steps: int | None = None
    sampling_rate: float | None = None

    def _components(self) -> tuple[Array, Array, float]:
        """Means and weights of the present law, and the width that its components share."""
        if self.steps is None or self.sampling_rate is None:
            return np.array([self.shift]), np.ones(1), 1.0
        expected = self.steps * self.sampling_rate
        if min(expected, self.steps - expected) >= _MANY:
            added = sampling_variance(self.steps, self.sampling_rate) * self.shift**2
            return np.array([self.shift]), np.ones(1), math.sqrt(1.0 + added)
        counts, logs = binomial_weights(self.steps, self.sampling_rate, _BUDGET)
        return counts * (self.shift / expected), np.exp(logs), 1.0

    def present_below(self, scores: Array) -> Array:
        """Probability that a present canary scores at most this."""
        means, weights, width = self._components()
        return np.asarray(ndtr((scores[..., np.newaxis] - means) / width) @ weights)

    def absent_above(self, share: Array) -> Array:
        """Probability that an absent canary is above the lowest share of the present ones."""
        scores, _, present = self._table()
        return np.asarray(ndtr(-np.interp(share, present, scores)))

    def added(self, count: int, generator: np.random.Generator) -> Array:
        """What being present adds to the scores of so many canaries, drawn."""
        means, weights, width = self._components()
        added = generator.choice(means, size=count, p=weights / weights.sum())
        if width > 1.0:
            added = added + math.sqrt(width**2 - 1.0) * generator.standard_normal(count)
        return np.asarray(added)

    def _table(self) -> tuple[Array, Array, Array]:
        """Scores that span both laws, and both distribution functions there."""
        means, _, width = self._components()
        around = np.concatenate(([0.0], means))[:, np.newaxis] + width * np.linspace(
            -_REACH, _REACH, 2 * _POINTS // (means.size + 1) + 65
        )
        scores = np.unique(around)
        if scores.size > 4 * _POINTS:
            scores = scores[:: scores.size // (4 * _POINTS) + 1]
        return scores, ndtr(scores), self.present_below(scores)

    def accuracy(self, share: Array, *, two_sided: bool) -> Array:
        """How often guesses for this share of the canaries are right, half of which are present.

        The highest scores are guessed present and, if two-sided, as many of the lowest absent.
        """
        scores, absent, present = self._table()
        both = 0.5 * (absent + present)
        each = np.clip(0.5 * share if two_sided else share, 1e-12, 1.0)
        above = np.interp(1.0 - each, both, scores)
        high = 0.5 * (1.0 - np.interp(above, scores, present)) / each
        if not two_sided:
            return np.clip(high, 0.0, 1.0)
        below = np.interp(each, both, scores)
        low = 0.5 * np.interp(below, scores, absent) / each
        return np.clip(0.5 * (high + low), 0.0, 1.0)


def pair_of_mechanism(evidence: Carrier, epsilon: float, delta: float) -> ScorePair:
    """What scores are when the whole mechanism has this epsilon."""
    shift = shift_of_mechanism(evidence, epsilon, delta)
    sampled = _sampled(evidence)
    if sampled is None or math.isinf(shift):
        return ScorePair(shift=min(shift, 1e6))
    return ScorePair(shift=shift, steps=sampled[0], sampling_rate=sampled[1])
