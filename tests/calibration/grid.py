"""How often a bound lies above the truth: the cells of the grid, and counting in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from askgauss.auditors.auditor import Auditor
from askgauss.auditors.gaussian_scores import PairEvidence
from askgauss.results import Consequence, Status
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats.score_law import subsampled_shift

DELTA = 1e-5
CONFIDENCE = 0.95
FAMILY_ERROR = 1e-4
# Of all cells of a section together, in the counts that are published. A cell that is this unlikely
# by itself is counted again from fresh seeds, and its second count is the one that is judged.
PAGE_ERROR = 0.01
# All audits test the truth; in this many a cell the bound itself is searched too, and compared.
LOOKED_AT = 100

GROUPS = ((50, 50), (500, 500), (2500, 250_000))
EPSILONS = (1.0, 8.0)
# Sampling rates and steps; at a rate of 1, any number of steps is one.
SAMPLING = (
    (0.001, 2500),
    *((0.082, steps) for steps in (1, 50, 2500)),
    (0.5, 10),
    *((0.9, steps) for steps in (1, 10)),
    (1.0, 1),
)


@dataclass(frozen=True)
class Cell:
    """One setting whose score pair has exactly this epsilon, by its exact law."""

    present: int
    absent: int
    epsilon: float
    sampling_rate: float
    steps: int

    @property
    def noise_multiplier(self) -> float:
        shift = subsampled_shift(
            self.epsilon, DELTA, steps=self.steps, sampling_rate=self.sampling_rate
        )
        return float(np.sqrt(self.steps) * self.sampling_rate / shift)

    def __str__(self) -> str:
        return (
            f"{self.present}/{self.absent} epsilon={self.epsilon:g} "
            f"q={self.sampling_rate:g} T={self.steps}"
        )


@dataclass(frozen=True)
class Count:
    """What happened in a cell."""

    cell: Cell
    audits: int
    above: int
    invalid: float
    mean_bound: float

    @property
    def allowed(self) -> int:
        """The most that chance allows, were the bound exactly nominal."""
        return self.allowed_among(1)

    def allowed_among(self, cells: int) -> int:
        return int(stats.binom.isf(FAMILY_ERROR / cells, self.audits, 1 - CONFIDENCE))


def suspicious(found: int, trials: int, error: float) -> bool:
    """Whether so many are unlikely in one cell, were the rate exactly nominal."""
    return bool(stats.binom.sf(found - 1, trials, error) < PAGE_ERROR)


def beyond(found: int, trials: int, error: float, among: int) -> bool:
    """Whether so many are unlikely in some of so many cells."""
    return bool(stats.binom.sf(found - 1, trials, error) < PAGE_ERROR / among)


def full_grid() -> list[Cell]:
    return [
        Cell(present, absent, epsilon, rate, steps)
        for (present, absent), epsilon, (rate, steps) in itertools.product(
            GROUPS, EPSILONS, SAMPLING
        )
    ]


def evidence_of(
    cell: Cell, audits: int, generator: np.random.Generator, law_known: bool = True
) -> Iterator[PairEvidence]:
    """Sufficient statistics of simulated audits.

    Absent scores are exactly Gaussian, so their mean and sum of squares are drawn directly; present
    scores are drawn one by one.
    """
    sigma = cell.noise_multiplier
    for _ in range(audits):
        planted = generator.binomial(cell.steps, cell.sampling_rate, cell.present)
        scores = planted / np.sqrt(cell.steps) + sigma * generator.standard_normal(cell.present)
        mean = scores.mean()
        yield PairEvidence(
            present=GroupMoments(
                count=cell.present,
                mean=float(mean),
                sum_of_squares=float(((scores - mean) ** 2).sum()),
            ),
            absent=GroupMoments(
                count=cell.absent,
                mean=float(generator.normal(0, sigma / np.sqrt(cell.absent))),
                sum_of_squares=float(sigma**2 * generator.chisquare(cell.absent - 1)),
            ),
            steps=cell.steps if law_known else None,
            sampling_rate=cell.sampling_rate if law_known else None,
        )


def scores_of(cell: Cell, generator: np.random.Generator) -> CanaryScores:
    """Scores of one simulated audit."""
    sigma = cell.noise_multiplier
    planted = generator.binomial(cell.steps, cell.sampling_rate, cell.present)
    return CanaryScores.from_groups(
        present=planted / np.sqrt(cell.steps) + sigma * generator.standard_normal(cell.present),
        absent=sigma * generator.standard_normal(cell.absent),
        steps=cell.steps,
        sampling_rate=cell.sampling_rate,
    )


def count(auditor: Auditor, cell: Cell, audits: int, seed: int, *, law_known: bool = True) -> Count:
    """Audit a cell many times and count bounds above the truth that were not called INVALID."""
    generator = np.random.default_rng([seed, *(ord(letter) for letter in str(cell))])
    above = invalid = 0
    total = 0.0
    if auditor.evidence_type is PairEvidence:
        gathered = evidence_of(cell, audits, generator, law_known)
    else:
        gathered = (
            auditor.gather(scores_of(cell, generator), delta=DELTA, confidence=CONFIDENCE)
            for _ in range(audits)
        )
    # The truth is only known to the accuracy of the law that was inverted for it.
    truth = cell.epsilon * (1 + 1e-9)
    for index, evidence in enumerate(gathered):
        exceeds = auditor.rejects(evidence, epsilon=truth, delta=DELTA, error=1 - CONFIDENCE)
        looked_at = index < LOOKED_AT
        if looked_at:
            bound = auditor.epsilon_lower(evidence, delta=DELTA, confidence=CONFIDENCE)
            total += bound
            if (bound > truth) != exceeds and abs(bound / truth - 1) > 1e-7:
                raise AssertionError(f"bound {bound} and test disagree about {truth} in {cell}")
        if exceeds or looked_at:
            refused = any(
                item.status is Status.FAIL and item.consequence is Consequence.INVALIDATES
                for item in auditor.findings(evidence, delta=DELTA, confidence=CONFIDENCE)
            )
            invalid += refused and looked_at
            above += exceeds and not refused
    looked = min(LOOKED_AT, audits)
    return Count(cell, audits, above, invalid / looked, total / looked)
