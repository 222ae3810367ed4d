"""Steinke, Nasr and Jagielski 2023: privacy auditing with one training run (arXiv 2305.08846)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from askgauss.auditors.guessing import GuessEvidence, GuessingAuditor
from askgauss.results import Assumption
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts

__all__ = ["OneRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun(GuessingAuditor):
    """The number of correct guesses against the binomial that (epsilon, delta) allows.

    Assumes:
        Every canary was made present by a fair coin of its own. Nothing about the mechanism or the
        scores; canaries may disturb each other at will.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits, by
        Theorem 5.2 for a stated number of guesses and by `askgauss.stats.guess_counts` for one that
        was chosen. It stays far below it where errors are rare rather than impossible: about
        half of epsilon for Gaussian noise, however many canaries there are.

    Args:
        selection: As for `GuessingAuditor`.
        two_sided: As for `GuessingAuditor`.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 1.5 < ag.audit(scores, delta=1e-5, auditor=OneRun()).epsilon_lower < 4.38
        True
    """

    pure: ClassVar[bool] = True
    assumption: ClassVar[Assumption] = Assumption.DISTRIBUTION_FREE

    def _bound(
        self, trial: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        return guess_counts.epsilon_from_counts(
            trial, delta=delta, confidence=1.0 - error, chosen=self._chosen(trial)
        )

    def _p_value(
        self, trial: GuessCounts, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> float:
        return guess_counts.p_value(trial, epsilon=epsilon, delta=delta, chosen=self._chosen(trial))
