"""Mahloujifar, Melis and Chaudhuri 2025: f-differential privacy in one run (arXiv 2410.22235)."""

from __future__ import annotations

from dataclasses import dataclass, field

from askgauss.auditors.families import (
    EpsilonDeltaFamily,
    Family,
    GaussianFamily,
    SubsampledFamily,
    check_family,
    sampling_findings,
)
from askgauss.auditors.guessing import GuessEvidence, GuessingAuditor
from askgauss.results import Assumption, Finding
from askgauss.scores import CanaryScores
from askgauss.stats import guess_counts, guess_tradeoff
from askgauss.stats.guess_counts import GuessCounts

__all__ = ["OneRunFDP"]

# How much likelier a rejection may be where the mechanism steers the number of guesses. Linear
# programs over all mechanisms of the family, 100 to 400 canaries, found up to 1.05
# (tests/calibration/steered.py).
_STEERED = 1.1


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

    def _bound(
        self, trial: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        if self._as_one_run(trial):
            return guess_counts.epsilon_from_counts(
                trial, delta=delta, confidence=1.0 - error, chosen=True
            )
        return self.family.bound(trial, evidence, delta, error / self._steered(trial))

    def _p_value(
        self, trial: GuessCounts, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> float:
        if self._as_one_run(trial):
            return guess_counts.p_value(trial, epsilon=epsilon, delta=delta, chosen=True)
        value = guess_tradeoff.p_value(self.family.curve(evidence, epsilon, delta), trial)
        return min(1.0, self._steered(trial) * value)

    def _rejects(
        self,
        trial: GuessCounts,
        evidence: GuessEvidence,
        epsilon: float,
        delta: float,
        error: float,
    ) -> bool:
        if self._as_one_run(trial):
            return self._p_value(trial, evidence, epsilon, delta) < error
        curve = self.family.curve(evidence, epsilon, delta)
        return guess_tradeoff.rejects(curve, trial, error=error / self._steered(trial))

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
