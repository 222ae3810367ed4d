"""Families of trade-off curves that a mechanism may be assumed to have, and DP-SGD's own curves."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from askgauss import _validate, accounting
from askgauss.auditors.guessing import GuessEvidence
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.stats import gaussian, guess_tradeoff
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.guess_tradeoff import InverseBlowUp
from askgauss.stats.search import close_bracket
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "EpsilonDeltaFamily",
    "Family",
    "GaussianFamily",
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
    def bound(
        self, counts: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
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
        return guess_tradeoff.gaussian(gaussian.gdp_mu(epsilon, delta))

    def bound(
        self, counts: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        """Epsilon of the largest mu that is rejected."""
        return guess_tradeoff.epsilon_from_counts(counts, delta=delta, confidence=1.0 - error)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaFamily(CurveFamily):
    """Curves of (epsilon, delta) differential privacy: no assumption about the mechanism."""

    assumption: ClassVar[Assumption] = Assumption.DISTRIBUTION_FREE

    kind: Literal["epsilon-delta"] = field(default="epsilon-delta", repr=False)

    def curve(self, evidence: GuessEvidence, epsilon: float, delta: float) -> InverseBlowUp:
        """The lowest that (epsilon, delta) allows."""
        return guess_tradeoff.epsilon_delta(epsilon, delta)

    def bound(
        self, counts: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        """The largest epsilon that is rejected."""
        return guess_tradeoff.epsilon_delta_from_counts(counts, delta=delta, confidence=1.0 - error)


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

    def bound(
        self, counts: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        """Epsilon of the run with the most noise that is rejected."""
        run = self.run(evidence.steps, evidence.sampling_rate)

        def margin(curve: TradeOff) -> float:
            rejected = guess_tradeoff.rejects(curve.inverse_blow_up, counts, error=error)
            return 1.0 if rejected else -1.0

        mu = guess_tradeoff.strongest_rejected(
            guess_tradeoff.gaussian, counts, confidence=1.0 - error
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
