"""Mechanisms that steer how many guesses are made, and save their delta for it.

`worst` is the most that any (epsilon, delta)-DP mechanism can do, by linear programming over the
joint distribution of the number of guesses and of right ones. `Steering` is a mechanism that tries:
randomised response, but where few guesses will be made, all of them are revealed as often as delta
allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array
from scipy.special import expit, ndtr

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily
from askgauss.auditors.guessing import Coins, GuessEvidence, GuessingAuditor
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats.guess_counts import GuessCounts
from tests.calibration.grid import CONFIDENCE

Slopes = Sequence[tuple[float, float]]

# Runs that say how many guesses will be made.
_PILOT = 300


def gaussian_slopes(mu: float, number: int = 16) -> Slopes:
    """Pairs of epsilon and delta that a Gaussian mechanism keeps, all at once."""
    return [
        (
            epsilon,
            float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)),
        )
        for epsilon in np.linspace(0.02, mu * mu / 2 + 4.5 * mu, number)
    ]


def fewest_right(guesses: int, rejects: Callable[[int, int], bool]) -> int | None:
    """The fewest right guesses that a test rejects at, of so many; None where not even all do."""
    if not rejects(guesses, guesses):
        return None
    low, high = 0, guesses
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rejects(guesses, middle) else (middle, high)
    return high


def worst(
    numbers: Sequence[int], rejects: Callable[[int, int], bool], canaries: int, slopes: Slopes
) -> float:
    """The largest probability of a rejection by a mechanism that picks the number of guesses.

    Args:
        numbers: Numbers of guesses it can choose from.
        rejects: Whether so many guesses, so many of them right, are rejected.
        canaries: All whose coin was tossed.
        slopes: Epsilons and deltas that it keeps.
    """
    limits = {number: fewest_right(number, rejects) for number in numbers}
    kept = [(number, limit) for number, limit in limits.items() if limit is not None]
    if not kept:
        return 0.0
    starts = np.cumsum([0, *(number + 1 for number, _ in kept)])
    right = np.concatenate([np.arange(number + 1) for number, _ in kept])
    guesses = np.repeat([number for number, _ in kept], np.diff(starts))
    reward = -np.concatenate([np.arange(number + 1) >= limit for number, limit in kept]).astype(
        float
    )
    some = np.flatnonzero(right > 0)
    size, each = right.size, some.size
    total = size + each * len(slopes)
    rows, columns, values = [], [], []
    for index, (epsilon, _) in enumerate(slopes):
        row = each * index + np.arange(each)
        rows += [row, row, row, np.full(each, each * len(slopes) + index)]
        columns += [some, some - 1, size + row, size + row]
        wrong = -math.exp(epsilon) * (guesses[some] - right[some] + 1.0)
        values += [right[some].astype(float), wrong, np.full(each, -1.0), np.ones(each)]
    constraints = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(each * len(slopes) + len(slopes), total),
    )
    bounds = [*np.zeros(each * len(slopes)), *(canaries * delta for _, delta in slopes)]
    found = linprog(
        np.append(reward, np.zeros(total - size)),
        A_ub=constraints.tocsr(),
        b_ub=bounds,
        A_eq=np.append(np.ones(size), np.zeros(total - size))[np.newaxis],
        b_eq=[1.0],
        method="highs",
    )
    assert found.status == 0, found.message
    return float(-found.fun)


@dataclass(frozen=True)
class Steering:
    """Randomised response that reveals whole runs of guesses where those are few.

    Attributes:
        canaries: How many.
        epsilon: Of the randomised response.
        delta: Probability with which each canary may be revealed.
        auditor: Whose guesses it knows.
    """

    canaries: int
    epsilon: float
    delta: float
    auditor: GuessingAuditor = ag.OneRun()  # noqa: RUF009

    def __str__(self) -> str:
        name = type(self.auditor).__name__
        return f"{name}, {self.canaries} canaries, epsilon {self.epsilon:g}, delta {self.delta:g}"

    def _draw(self, generator: np.random.Generator) -> CanaryScores:
        member = generator.random(self.canaries) < 0.5
        member[:4] = [True, True, False, False]
        honest = generator.random(self.canaries) < expit(self.epsilon)
        score = (member == honest) + 0.5 * generator.random(self.canaries)
        return CanaryScores(score=score, member=member, metadata=ScoreMetadata(fair_coins=True))

    def count(self, audits: int, seed: int) -> int:
        """In how many audits the claim, which is kept, is rejected."""
        generator = np.random.default_rng([seed, *str(self).encode()])

        def trial() -> GuessCounts:
            scores = self._draw(generator)
            return self.auditor.gather(scores, delta=self.delta, confidence=CONFIDENCE).trial

        # From the fewest guesses on that all right are rejected, as far as delta pays for them.
        pilot = np.sort([trial().guesses for _ in range(_PILOT)])
        useful = [int(n) for n in np.unique(pilot) if self._rejected(trial(), int(n), int(n))]
        most, chance = 0, 0.0
        for number in useful:
            within = pilot[(pilot >= useful[0]) & (pilot <= number)]
            most, chance = number, self.canaries * self.delta * _PILOT / within.sum()
            if chance <= 1.0:
                break
        found = 0
        for _ in range(audits):
            made = trial()
            steered = bool(useful) and useful[0] <= made.guesses <= most
            revealed = steered and generator.random() < chance
            right = made.guesses if revealed else made.correct
            found += self._rejected(made, made.guesses, right)
        return found

    def _rejected(self, made: GuessCounts, guesses: int, right: int) -> bool:
        trial = GuessCounts(canaries=made.canaries, guesses=guesses, correct=right)
        evidence = GuessEvidence(
            trial=trial,
            coins=Coins(origin="fair", given=self.canaries, used=self.canaries),
        )
        error = 1.0 - CONFIDENCE
        return self.auditor.rejects(evidence, epsilon=self.epsilon, delta=self.delta, error=error)


CELLS = tuple(
    Steering(canaries, epsilon, delta, auditor)
    for auditor in (ag.OneRun(), ag.OneRunFDP(family=EpsilonDeltaFamily()))
    for canaries in (100, 500, 1000)
    for epsilon in (0.1, 1.0, 3.0)
    for delta in (1e-5, 1e-4, 1e-3, 1e-2)
)
