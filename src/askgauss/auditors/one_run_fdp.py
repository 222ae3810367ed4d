"""Mahloujifar, Melis and Chaudhuri 2025: f-differential privacy in one run (arXiv 2410.22235)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from askgauss import _validate, accounting
from askgauss.auditors.guessing import GuessEvidence, GuessingAuditor, GuessTrial
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.scores import CanaryScores
from askgauss.stats import gaussian, guess_counts, guess_tradeoff
from askgauss.stats.guess_tradeoff import epsilon_from_counts
from askgauss.stats.search import close_bracket
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "EpsilonDeltaFamily",
    "Family",
    "GaussianFamily",
    "OneRunFDP",
    "SubsampledFamily",
    "epsilon_from_counts",
]

# The curves of the subsampled family take a good part of a second each, so the search for the
# strongest rejected one ends early, on its safe side.
_SUBSAMPLED_TOLERANCE = 1e-4
# How much likelier a rejection may be where the mechanism steers the number of guesses. Linear
# programs over all mechanisms of the family, 100 to 400 canaries, found up to 1.05
# (tests/calibration/steered.py).
_STEERED = 1.1
# A signal so strong that noise no longer matters, only how rarely a canary is sampled.
_NOISELESS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianFamily:
    """Curves of mu-Gaussian differential privacy: the whole run acts like one Gaussian."""

    kind: Literal["gaussian"] = field(default="gaussian", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonDeltaFamily:
    """Curves of (epsilon, delta) differential privacy: no assumption about the mechanism."""

    kind: Literal["epsilon-delta"] = field(default="epsilon-delta", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledFamily:
    """Curves of DP-SGD at a known sampling rate and number of steps, by noise multiplier.

    Args:
        sampling_rate: Probability that a record joins a batch; the scores' own if not given.
        steps: Number of steps; the scores' own if not given.
    """

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


Family = GaussianFamily | SubsampledFamily | EpsilonDeltaFamily


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
        selection: How the number of guesses is chosen.
        two_sided: Guess the lowest scores absent too, as many as the highest present.
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
        if isinstance(self.family, EpsilonDeltaFamily):
            return Assumption.DISTRIBUTION_FREE
        if isinstance(self.family, GaussianFamily):
            return Assumption.MECHANISM_FAMILY
        return Assumption.SAMPLED_FAMILY

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> GuessEvidence:
        """Guess, and count."""
        if isinstance(self.family, SubsampledFamily):
            self.family.run(data.metadata.steps, data.metadata.sampling_rate)
        return GuessingAuditor.gather(self, data, delta=delta, confidence=confidence)

    def _bound(
        self, trial: GuessTrial, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        error /= self._steered(trial)
        confidence = 1.0 - error
        family = self.family
        if isinstance(family, EpsilonDeltaFamily):
            if not self._chosen(trial):
                return guess_tradeoff.epsilon_delta_from_counts(
                    **trial.counts, delta=delta, confidence=confidence
                )
            return guess_counts.epsilon_from_counts(
                **trial.counts, delta=delta, confidence=confidence, chosen=True
            )
        if isinstance(family, GaussianFamily):
            return epsilon_from_counts(**trial.counts, delta=delta, confidence=confidence)
        run = family.run(evidence.steps, evidence.sampling_rate)

        def margin(curve: TradeOff) -> float:
            rejected = guess_tradeoff.rejects(curve.inverse_blow_up, **trial.counts, error=error)
            return 1.0 if rejected else -1.0

        mu = guess_tradeoff.mu_from_counts(**trial.counts, confidence=confidence)
        return run.epsilon(run.strongest(margin, mu), delta) if mu > 0.0 else 0.0

    def _curve(
        self, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> guess_tradeoff.InverseBlowUp:
        """The inverse blow-up of the member of the family with this epsilon."""
        family = self.family
        if isinstance(family, EpsilonDeltaFamily):
            return guess_tradeoff.epsilon_delta(epsilon, delta)
        if isinstance(family, GaussianFamily):
            return guess_tradeoff.gaussian(gaussian.gdp_mu(epsilon, delta))
        run = family.run(evidence.steps, evidence.sampling_rate)
        return run.curve(run.signal(epsilon, delta)).inverse_blow_up

    def _p_value(
        self, trial: GuessTrial, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> float:
        if self._chosen(trial) and self._epsilon_delta:
            return guess_counts.p_value(**trial.counts, epsilon=epsilon, delta=delta, chosen=True)
        value = guess_tradeoff.p_value(self._curve(evidence, epsilon, delta), **trial.counts)
        return min(1.0, self._steered(trial) * value)

    def _rejects(
        self, trial: GuessTrial, evidence: GuessEvidence, epsilon: float, delta: float, error: float
    ) -> bool:
        if self._chosen(trial) and self._epsilon_delta:
            return self._p_value(trial, evidence, epsilon, delta) < error
        curve = self._curve(evidence, epsilon, delta)
        return guess_tradeoff.rejects(curve, **trial.counts, error=error / self._steered(trial))

    def _steered(self, trial: GuessTrial) -> float:
        """What an error is divided by, since the mechanism may steer the number of guesses."""
        return _STEERED if self._chosen(trial) and not self._epsilon_delta else 1.0

    @property
    def _epsilon_delta(self) -> bool:
        return isinstance(self.family, EpsilonDeltaFamily)

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the counts were, and which family the bound rests on."""
        found = GuessingAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        if isinstance(self.family, SubsampledFamily):
            bound = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
            rate = self.family.run(evidence.steps, evidence.sampling_rate).sampling_rate
            found += sampling_findings(bound, rate)
        return found + family_findings(self.family)


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


def check_family(family: object) -> None:
    """Refuse anything but one of the families."""
    if not isinstance(family, Family):
        raise InvalidArgumentError(
            "Expected family to be GaussianFamily, SubsampledFamily or EpsilonDeltaFamily, got "
            f"{family!r}."
        )


def family_findings(family: Family) -> tuple[Finding, ...]:
    """That the bound is one for mechanisms of this family."""
    if isinstance(family, EpsilonDeltaFamily):
        return ()
    name = "Gaussian" if isinstance(family, GaussianFamily) else "DP-SGD"
    return (
        Finding(
            check="family",
            status=Status.INFO,
            summary=(
                f"the bound takes the trade-off curve for a {name} one; other mechanisms with the "
                "same guesses can leak less."
            ),
            remedy="EpsilonDeltaFamily() assumes nothing about the mechanism.",
        ),
    )
