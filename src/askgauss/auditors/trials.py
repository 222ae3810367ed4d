"""What auditors that test a chosen rule share: trials of it, and how their answers combine."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from askgauss.scores import CanaryScores
from askgauss.selection import Combination

__all__ = ["Trial", "TrialEvidence", "score_facts"]

Trial = TypeVar("Trial", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvidence(Generic[Trial]):
    """Counts of one or several trials of a rule, and how they combine.

    Attributes:
        trials: The counts of each.
        combination: How their answers become one.
        steps: Steps summed into a score, where known.
        sampling_rate: Poisson sampling rate of a present canary, where known.
        carried_shift: Share of the mechanism's shift that scores carry, where stated.
    """

    trials: tuple[Trial, ...]
    combination: Combination
    steps: int | None = None
    sampling_rate: float | None = None
    carried_shift: float | None = None

    def share(self, error: float) -> float:
        """The error at which each trial is read."""
        return self.combination.share(error, len(self.trials))

    def answers(self, answer: Callable[[Trial], float]) -> list[float]:
        """The answer of each trial; equal trials, which splits often give, are asked once."""
        known = {trial: answer(trial) for trial in dict.fromkeys(self.trials)}
        return [known[trial] for trial in self.trials]

    def largest(self, answer: Callable[[Trial], float]) -> float:
        """The combined answer: a bound, or the margin of a test."""
        return self.combination.largest(self.answers(answer))

    def p_value(self, answer: Callable[[Trial], float]) -> float:
        """The combined p-value."""
        return self.combination.p_value(self.answers(answer))


def score_facts(scores: CanaryScores) -> dict[str, Any]:
    """What evidence keeps of where scores came from: how much of the mechanism they show."""
    facts = scores.metadata
    return {
        "steps": facts.steps,
        "sampling_rate": facts.sampling_rate,
        "carried_shift": facts.carried_shift,
    }
