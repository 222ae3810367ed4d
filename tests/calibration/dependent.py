"""A mechanism that couples its canaries: bounds that need no independence hold for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily
from askgauss.auditors.guessing import GuessingAuditor
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import gaussian
from tests.calibration.grid import CONFIDENCE


@dataclass(frozen=True)
class Coupled:
    """Answers for all canaries at once by randomised response, or says nothing.

    Its trade-off curve lies above that of a Gaussian mechanism of 1 standard deviation.

    Attributes:
        auditor: The method.
        delta: At this delta.
        canaries: How many.
        chance: Probability of an answer.
        response: Epsilon of the answer.
    """

    auditor: GuessingAuditor
    delta: float
    canaries: int = 1000
    chance: float = 0.06
    response: float = 2.46

    def __str__(self) -> str:
        return f"`{self.auditor}`, {self.canaries} canaries, delta {self.delta:g}"

    @property
    def truth(self) -> float:
        """The most that may be reported: its epsilon, or that of the family's member."""
        if self.auditor.assumption.gaussian_curve:
            return float(gaussian.gdp_epsilon(self.delta, 1.0))
        top = math.exp(self.response)
        return math.log(max(1.0, top - self.delta / self.chance * (1.0 + top)))

    def scores(self, generator: np.random.Generator, answers: bool = True) -> CanaryScores:
        """Scores of one run."""
        member = generator.random(self.canaries) < 0.5
        accuracy = 1.0 / (1.0 + math.exp(-self.response)) if answers else 0.5
        score = (member == (generator.random(self.canaries) < accuracy)).astype(np.float64)
        score += 0.01 * generator.random(self.canaries)
        return CanaryScores(score=score, member=member, metadata=ScoreMetadata(fair_coins=True))

    def count(self, audits: int, seed: int) -> int:
        """In how many audits the truth is rejected."""
        generator = np.random.default_rng([seed, *str(self).encode()])
        found = 0
        for _ in range(audits):
            scores = self.scores(generator, bool(generator.random() < self.chance))
            evidence = self.auditor.gather(scores, delta=self.delta, confidence=CONFIDENCE)
            found += self.auditor.rejects(
                evidence, epsilon=self.truth, delta=self.delta, error=1.0 - CONFIDENCE
            )
        return found


CELLS = tuple(
    Coupled(auditor, delta, canaries)
    for canaries in (300, 1000)
    for auditor, delta in (
        (ag.OneRun(), 1e-5),
        (ag.OneRun(), 0.04),
        (ag.OneRunFDP(), 1e-5),
        (ag.OneRunFDP(family=EpsilonDeltaFamily()), 0.04),
        (ag.AdaptiveOneRun(), 0.04),
    )
)
