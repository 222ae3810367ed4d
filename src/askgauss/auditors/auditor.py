"""What every auditor is, and what the scores of a mechanism look like, which its power depends on.

An auditor is a frozen set of options that turns data into evidence, and evidence into answers.
Power asks about a *mechanism* of some epsilon, a test about the *scores*. Where scores are sums of
sampled steps both are exact: the noise of a run with that epsilon comes from the accountant, and
the sum of its steps, a binomial mixture of Gaussians, carries less than the steps do.
"""

from __future__ import annotations

import abc
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss import _validate, accounting
from askgauss.exceptions import NotDefinedError
from askgauss.results import Assumption, Finding
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import gaussian
from askgauss.stats.limits import binomial_weights
from askgauss.stats.sampled_sum import StepWeights
from askgauss.stats.shift import sampling_variance
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "Auditor",
    "Evidence",
    "ScoreEvidence",
    "ScorePair",
    "epsilon_of_scores",
    "pair_of_mechanism",
    "shift_of_mechanism",
]

Array = NDArray[np.float64]
Evidence = TypeVar("Evidence")

# A curve of a larger epsilon has no float between it and the axes.
_STEEPEST = 700.0
# From so many inclusions and so many exclusions of one canary on, their number is Gaussian.
_MANY = 1000.0
# Left out of the sum over inclusions: exp(-30) = 1e-13.
_BUDGET = 30.0
# Where a law is tabulated, and how far out, in units of its own width.
_POINTS = 1024
_REACH = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Auditor(abc.ABC, Generic[Evidence]):
    """A method: a frozen set of options.

    `gather` reads the data once and keeps sufficient statistics, the evidence: a frozen dataclass
    of plain numbers. Every other method is a pure function of the evidence, so that a result read
    back from JSON answers the same questions as the one that was written.
    """

    assumption: ClassVar[Assumption]
    evidence_type: ClassVar[type]
    reads: ClassVar[str] = "scores"
    # Whether it has something to say at delta 0, where Gaussian noise keeps no claim at all.
    pure: ClassVar[bool] = False
    # Whether moments are all its evidence, so that they tell those of other numbers of canaries.
    scales: ClassVar[bool] = False
    # Whether the bound has its error exactly, so that at one minus it there is an upper bound.
    exact: ClassVar[bool] = False

    @classmethod
    def kebab_name(cls) -> str:
        """Name on the command line: the class name in kebab-case."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    @property
    def name(self) -> str:
        """Name on the command line: the class name in kebab-case."""
        return self.kebab_name()

    @property
    def adversary(self) -> str:
        """What the adversary sees whose success the bound is about."""
        return "every noisy gradient" if self.reads == "transcript" else "one score a canary"

    @property
    def any_size(self) -> bool:
        """Whether its options fit other canaries too, and so other numbers of them."""
        return True

    @abc.abstractmethod
    def gather(self, data: Any, *, delta: float, confidence: float) -> Evidence:
        """Sufficient statistics of the scores (or of the transcript)."""

    @abc.abstractmethod
    def epsilon_lower(self, evidence: Evidence, *, delta: float, confidence: float) -> float:
        """The lower bound on epsilon."""

    def check_delta(self, delta: float) -> None:
        """Refuse a delta that the method has nothing to say about.

        Raises:
            InvalidArgumentError: It is such a delta.
        """
        if self.pure:
            _validate.within(0.0, 1.0, closed="left", delta=delta)
            return
        hint = ""
        if delta == 0.0:
            from askgauss.auditors import pure_auditors  # the list of all stands above each

            *names, last = pure_auditors()
            hint = f"At delta 0 use {', '.join(names)} or {last}."
        _validate.probability(hint=hint, delta=delta)

    def epsilon_point(self, evidence: Evidence, *, delta: float) -> float | None:
        """An estimate of epsilon, where the method has one."""
        return None

    def p_value(self, evidence: Evidence, *, epsilon: float, delta: float) -> float:
        """Probability of evidence this strong were the run (epsilon, delta)-private."""
        raise NotDefinedError(f"{type(self).__name__} does not define p-values.")

    def rejects(self, evidence: Evidence, *, epsilon: float, delta: float, error: float) -> bool:
        """Whether the evidence contradicts ``epsilon`` at this error."""
        return self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon

    def tradeoff(self, evidence: Evidence, *, delta: float, confidence: float) -> TradeOff:
        """The trade-off curve that the bound stands for.

        Where noise is taken for Gaussian, the Gaussian one of that epsilon; else the lowest one
        that (epsilon, delta) allows.
        """
        epsilon = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
        if not self.assumption.gaussian_curve:
            return TradeOff.epsilon_delta(min(epsilon, _STEEPEST), delta)
        if math.isinf(epsilon):
            return TradeOff.epsilon_delta(0.0, 1.0)
        return TradeOff.gaussian(gaussian.gdp_mu(epsilon, delta))

    def ceiling(self, evidence: Evidence, *, delta: float, confidence: float) -> float:
        """The most the method could report from this many canaries."""
        return float("inf")

    def power(
        self, evidence: Evidence, *, epsilon: float, true_epsilon: float, delta: float, error: float
    ) -> float | None:
        """Probability that the p-value at ``epsilon`` is below ``error`` at a true epsilon."""
        return None

    def smallest_leak(
        self, evidence: Evidence, *, epsilon: float, delta: float, error: float, power: float
    ) -> float | None:
        """The smallest true epsilon that is noticed with this power, where that is quick to say.

        Infinite where none is.
        """
        return None

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> Evidence | None:
        """Evidence as `power` needs it before a run; None where only simulated audits tell it."""
        return None

    def findings(
        self, evidence: Evidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the evidence itself says about whether the method applies."""
        return ()

    def concerns(self, evidence: Evidence, finding: Finding) -> bool:
        """Whether a failure of this check could make the bound too high."""
        return self.assumption.rests_on(finding.undermines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEvidence:
    """What evidence keeps of where scores came from: how much of the mechanism they show.

    Attributes:
        steps: Steps summed into a score, where known.
        sampling_rate: Poisson sampling rate of an inserted canary, where known.
        carried_shift: Share of the mechanism's shift that scores carry, where stated.
    """

    steps: int | None = None
    sampling_rate: float | None = None
    carried_shift: float | None = None

    @staticmethod
    def facts(scores: CanaryScores) -> dict[str, Any]:
        """These fields, from the metadata of the scores."""
        known = scores.metadata
        return {
            "steps": known.steps,
            "sampling_rate": known.sampling_rate,
            "carried_shift": known.carried_shift,
        }


Carrier = ScoreEvidence | ScoreMetadata


def _sampled(evidence: Carrier) -> tuple[int, float] | None:
    """Steps and rate, where scores are known to be sums of sampled steps."""
    if evidence.carried_shift is not None or evidence.steps is None:
        return None
    rate = evidence.sampling_rate
    return None if rate is None or rate == 1.0 else (evidence.steps, rate)


def _summed(evidence: Carrier) -> tuple[int, float, float] | None:
    """Steps of the mechanism, rate, and the number of equal steps a score amounts to."""
    weighted: StepWeights | None = getattr(evidence, "weighted", None)
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
