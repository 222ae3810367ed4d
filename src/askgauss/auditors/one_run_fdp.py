"""Families of trade-off curves, DP-SGD's own among them, and f-differential privacy in one run.

`OneRunFDP` is the audit of Mahloujifar, Melis and Chaudhuri 2025 (arXiv 2410.22235).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from askgauss import _validate, accounting
from askgauss.auditors.guessing import GuessEvidence, GuessingAuditor
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.scores import CanaryScores
from askgauss.stats import gaussian, guess_counts
from askgauss.stats.guess_counts import GuessCounts, InverseBlowUp
from askgauss.stats.limits import close_bracket
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "EpsilonDeltaFamily",
    "Family",
    "GaussianFamily",
    "OneRunFDP",
    "SampledRun",
    "SubsampledFamily",
    "check_family",
    "sampling_findings",
]

# The curves of the subsampled family take a good part of a second each, so the search for the
# strongest rejected one ends early, on its safe side.
_SUBSAMPLED_TOLERANCE = 1e-4
# A signal so strong that noise no longer matters, only how rarely a canary is sampled.
_NOISELESS = 30.0
# How much likelier a rejection may be where the mechanism steers the number of guesses. Linear
# programs over all mechanisms of the family, 100 to 400 canaries, found up to 1.05
# (tests/calibration/steered.py).
_STEERED = 1.1


class CurveFamily(abc.ABC):
    """Trade-off curves, one an epsilon, that numbers of correct guesses are tested against."""

    __slots__ = ()
    assumption: ClassVar[Assumption]
    # How findings call the curves; empty where they assume nothing.
    named: ClassVar[str] = ""

    @abc.abstractmethod
    def curve(self, evidence: GuessEvidence, epsilon: float, delta: float) -> InverseBlowUp:
        """The inverse blow-up of the member of the family with this epsilon."""

    @abc.abstractmethod
    def bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        """Epsilon of the strongest member that is rejected."""

    def findings(self) -> tuple[Finding, ...]:
        """That the bound is one for mechanisms of this family."""
        if not self.named:
            return ()
        return (
            Finding(
                check="family",
                status=Status.INFO,
                summary=(
                    f"the bound takes the trade-off curve for a {self.named} one; other mechanisms "
                    "with the same guesses can leak less."
                ),
                remedy="EpsilonDeltaFamily() assumes nothing about the mechanism.",
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFamily(CurveFamily):
    """Curves of mu-Gaussian differential privacy: the whole run acts like one Gaussian."""

    assumption: ClassVar[Assumption] = Assumption.MECHANISM_FAMILY
    named: ClassVar[str] = "Gaussian"

    kind: Literal["gaussian"] = field(default="gaussian", repr=False)

    def curve(self, evidence: GuessEvidence, epsilon: float, delta: float) -> InverseBlowUp:
        """That of the mu with this epsilon."""
        return guess_counts.gaussian_blow_up(gaussian.gdp_mu(epsilon, delta))

    def bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        """Epsilon of the largest mu that is rejected."""
        return guess_counts.gaussian_from_counts(
            evidence.trial, delta=delta, confidence=1.0 - error
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaFamily(CurveFamily):
    """Curves of (epsilon, delta) differential privacy: no assumption about the mechanism."""

    assumption: ClassVar[Assumption] = Assumption.DISTRIBUTION_FREE

    kind: Literal["epsilon-delta"] = field(default="epsilon-delta", repr=False)

    def curve(self, evidence: GuessEvidence, epsilon: float, delta: float) -> InverseBlowUp:
        """The lowest that (epsilon, delta) allows."""
        return guess_counts.epsilon_delta_blow_up(epsilon, delta)

    def bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        """The largest epsilon that is rejected."""
        return guess_counts.strongest_rejected(
            lambda epsilon: guess_counts.epsilon_delta_blow_up(epsilon, delta),
            evidence.trial,
            confidence=1.0 - error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledFamily(CurveFamily):
    """Curves of DP-SGD at a known sampling rate and number of steps, by noise multiplier.

    Args:
        sampling_rate: Probability that a record joins a batch; the scores' own if not given.
        steps: Number of steps; the scores' own if not given.
    """

    assumption: ClassVar[Assumption] = Assumption.SAMPLED_FAMILY
    named: ClassVar[str] = "DP-SGD"

    sampling_rate: float | None = None
    steps: int | None = None
    kind: Literal["subsampled"] = field(default="subsampled", repr=False)

    def __post_init__(self) -> None:
        if self.sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
        if self.steps is not None:
            _validate.integer(1, steps=self.steps)

    def run(self, steps: int | None, sampling_rate: float | None) -> SampledRun:
        """The run this family describes, with what the scores know where nothing was given.

        Raises:
            UnsupportedError: Neither the family nor the scores know the rate and the steps.
        """
        rate = sampling_rate if self.sampling_rate is None else self.sampling_rate
        count = steps if self.steps is None else self.steps
        if rate is None or count is None:
            missing = [
                name for name, value in (("sampling_rate", rate), ("steps", count)) if value is None
            ]
            raise UnsupportedError(
                f"The subsampled family needs {' and '.join(missing)}, which neither it nor the "
                "scores know. Give the scores steps= and sampling_rate=, or the family."
            )
        return SampledRun(sampling_rate=rate, steps=count)

    def curve(self, evidence: GuessEvidence, epsilon: float, delta: float) -> InverseBlowUp:
        """That of the run with the noise of this epsilon."""
        run = self.run(evidence.steps, evidence.sampling_rate)
        return run.curve(run.signal(epsilon, delta)).inverse_blow_up

    def bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        """Epsilon of the run with the most noise that is rejected."""
        run = self.run(evidence.steps, evidence.sampling_rate)

        def margin(curve: TradeOff) -> float:
            rejected = guess_counts.curve_rejects(
                curve.inverse_blow_up, evidence.trial, error=error
            )
            return 1.0 if rejected else -1.0

        mu = guess_counts.strongest_rejected(
            guess_counts.gaussian_blow_up, evidence.trial, confidence=1.0 - error
        )
        return run.epsilon(run.strongest(margin, mu), delta) if mu > 0.0 else 0.0


Family = GaussianFamily | SubsampledFamily | EpsilonDeltaFamily


def check_family(family: object) -> None:
    """Refuse anything but one of the families."""
    if not isinstance(family, Family):
        raise InvalidArgumentError(
            "Expected family to be GaussianFamily, SubsampledFamily or EpsilonDeltaFamily, got "
            f"{family!r}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """DP-SGD with everything known but the noise; its parameter is contribution over noise."""

    sampling_rate: float
    steps: int

    def curve(self, signal: float) -> TradeOff:
        """The trade-off curve, at or below that of the run."""
        if signal == 0.0:
            return TradeOff.gaussian(0.0)
        return accounting.dpsgd_tradeoff(
            noise_multiplier=1.0 / signal, sampling_rate=self.sampling_rate, steps=self.steps
        )

    def epsilon(self, signal: float, delta: float) -> float:
        """Epsilon of the run, from below."""
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            delta=delta,
        )

    def signal(self, epsilon: float, delta: float) -> float:
        """The signal at which the run has this epsilon."""
        if epsilon == 0.0:
            return 0.0
        return accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=self.sampling_rate, steps=self.steps
        )

    def signal_like(self, mu: float) -> float:
        """The signal at which the run resembles mu-Gaussian privacy, by the central limit."""
        return math.sqrt(math.log1p((mu / self.sampling_rate) ** 2 / self.steps))

    def strongest(self, margin: Callable[[TradeOff], float], mu: float) -> float:
        """The largest signal whose curve has a positive margin, looked for near a Gaussian one.

        Infinite if canaries sampled so rarely cannot show so much at any noise.
        """

        def at(signal: float) -> float:
            return margin(self.curve(signal))

        low = high = max(self.signal_like(mu), 1e-3)
        at_low = at_high = at(low)
        factor = 1.02
        while at_low <= 0.0:
            high, at_high = low, at_low
            low /= factor
            factor = factor * factor
            if low < 1e-3:  # a noise multiplier above 1000: not worth telling from no leak
                return 0.0
            at_low = at(low)
        while at_high > 0.0:
            if high > _NOISELESS:
                return math.inf
            low, at_low = high, at_high
            high *= factor
            factor = factor * factor
            at_high = at(high)
        return close_bracket(at, low, at_low, high, at_high, _SUBSAMPLED_TOLERANCE)


def sampling_findings(bound: float, sampling_rate: float) -> tuple[Finding, ...]:
    """That no noise explains an infinite bound, so that the sampling rate must be another."""
    if not math.isinf(bound):
        return ()
    return (
        Finding(
            check="sampling rate",
            status=Status.FAIL,
            summary=(
                f"canaries sampled at rate {sampling_rate:g} cannot be told so well, even without "
                "noise."
            ),
            consequence=Consequence.INVALIDATES,
            claimed=sampling_rate,
            remedy="Give the sampling rate and the number of steps that the scores come from.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRunFDP(GuessingAuditor):
    """The number of correct guesses against whole trade-off curves instead of one (epsilon, delta).

    Assumes:
        Every canary was made present by a fair coin of its own, and the mechanism's trade-off curve
        is in the family. Canaries may disturb each other at will. `EpsilonDeltaFamily` holds every
        mechanism, so it assumes nothing more.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits if the
        family has its curve (Theorem 3.1 and Algorithm 3, which fix the number of guesses; with
        `EpsilonDeltaFamily` a chosen number is tested as by `OneRun`, and in the other families
        at an error that leaves room for all a mechanism was found to gain by steering it). A
        mechanism outside the family, such as
        randomised response under the Gaussian one, can have far less than is reported.

    Args:
        selection: As for `GuessingAuditor`.
        two_sided: As for `GuessingAuditor`.
        family: The curves the mechanism may have.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 2.0 < ag.audit(scores, delta=1e-5, auditor=OneRunFDP()).epsilon_lower < 4.38
        True
    """

    family: Family = field(default_factory=GaussianFamily)

    def __post_init__(self) -> None:
        GuessingAuditor.__post_init__(self)
        check_family(self.family)

    @property
    def assumption(self) -> Assumption:  # type: ignore[override]
        """What the family takes for granted."""
        return self.family.assumption

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> GuessEvidence:
        """Guess, and count."""
        if isinstance(self.family, SubsampledFamily):
            self.family.run(data.metadata.steps, data.metadata.sampling_rate)
        return GuessingAuditor.gather(self, data, delta=delta, confidence=confidence)

    def _bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        trial = evidence.trial
        if self._as_one_run(trial):
            return guess_counts.epsilon_from_counts(
                trial, delta=delta, confidence=1.0 - error, chosen=True
            )
        return self.family.bound(evidence, delta, error / self._steered(trial))

    def p_value(self, evidence: GuessEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "the run is (epsilon, delta)-private"."""
        trial = evidence.trial
        if self._as_one_run(trial):
            return guess_counts.p_value(trial, epsilon=epsilon, delta=delta, chosen=True)
        value = guess_counts.curve_p_value(self.family.curve(evidence, epsilon, delta), trial)
        return min(1.0, self._steered(trial) * value)

    def rejects(
        self, evidence: GuessEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the guesses contradict ``epsilon``: one pass of the recursion."""
        trial = evidence.trial
        if self._as_one_run(trial):
            return self.p_value(evidence, epsilon=epsilon, delta=delta) < error
        curve = self.family.curve(evidence, epsilon, delta)
        return guess_counts.curve_rejects(curve, trial, error=error / self._steered(trial))

    def _as_one_run(self, trial: GuessCounts) -> bool:
        """Whether `OneRun`'s test stands in, which allows for a chosen number of guesses."""
        return self._chosen(trial) and isinstance(self.family, EpsilonDeltaFamily)

    def _steered(self, trial: GuessCounts) -> float:
        """What an error is divided by, since the mechanism may steer the number of guesses."""
        return _STEERED if self._chosen(trial) else 1.0

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the counts were, and which family the bound rests on."""
        found = GuessingAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        if isinstance(self.family, SubsampledFamily):
            bound = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
            rate = self.family.run(evidence.steps, evidence.sampling_rate).sampling_rate
            found += sampling_findings(bound, rate)
        return found + self.family.findings()
