"""How often the bounds of the other auditors lie above the truth, on scores of known epsilon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit

import askgauss as ag
from askgauss.auditors import EpsilonDeltaFamily
from askgauss.auditors.auditor import Auditor
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import gaussian
from tests.calibration.grid import CONFIDENCE, DELTA, FAMILY_ERROR, PAGE_ERROR, beyond, suspicious
from tests.laplace import Laplace


@dataclass(frozen=True)
class Law:
    """A pair of laws: what a present and what an absent canary scores, and the pair's epsilon."""

    name: str
    parameter: float

    def __str__(self) -> str:
        return f"{self.name} {self.parameter:g}"

    @property
    def gaussian(self) -> bool:
        """Whether the pair is in the Gaussian family."""
        return self.name in ("gaussian", "null")

    @property
    def epsilon(self) -> float:
        if self.gaussian:
            return gaussian.gdp_epsilon(DELTA, self.parameter)
        if self.name == "laplace":
            return Laplace(shift=self.parameter).epsilon_at(DELTA)
        # Randomised response: 1 - delta (1 + e^epsilon) / e^epsilon of e^epsilon is left.
        left = 1.0 - DELTA / expit(self.parameter)
        return max(0.0, self.parameter + math.log(left)) if left > 0.0 else 0.0

    def scores(self, canaries: int, generator: np.random.Generator, coins: str) -> CanaryScores:
        """Scores of one run; present ones first, as groups are often given."""
        present = canaries // 2
        if coins == "fair":
            present = int(generator.binomial(canaries, 0.5))
        member = np.arange(canaries) < present
        if self.gaussian:
            score = generator.standard_normal(canaries) + self.parameter * member
        elif self.name == "laplace":
            score = generator.laplace(size=canaries) + self.parameter * member
        else:  # every score is one of two numbers
            honest = generator.random(canaries) < expit(self.parameter)
            score = np.where(member == honest, 1.0, 0.0)
        metadata = ScoreMetadata(fair_coins={"fair": True, "fixed": False}[coins])
        return CanaryScores(score=score, member=member, metadata=metadata)


LAWS = (
    Law("null", 0.0),
    Law("gaussian", 0.5),
    Law("gaussian", 1.5),
    Law("laplace", 1.0),
    Law("randomised response", 0.0),
    Law("randomised response", 1.0),
    Law("randomised response", 3.0),
)

FREE: tuple[Auditor[Any], ...] = (
    ag.OneRun(),
    ag.OneRun(two_sided=False),
    ag.OneRun(selection=ag.Fixed(fraction=1.0)),
    ag.OneRunFDP(family=EpsilonDeltaFamily()),
    ag.AdaptiveOneRun(),
    ag.OrderStatistics(family=EpsilonDeltaFamily()),
    ag.ClopperPearson(),
    ag.ClopperPearson(selection=ag.Fixed(threshold=0.5)),
    ag.Bayesian(),
    ag.Bayesian(selection=ag.Fixed(threshold=0.5)),
)
# Valid only where the trade-off curve is Gaussian.
GAUSSIAN: tuple[Auditor[Any], ...] = (
    ag.OneRunFDP(),
    ag.OrderStatistics(),
    ag.OrderStatistics(selection=ag.Fixed(fraction=1.0)),
    ag.GaussianDP(),
    ag.GaussianDP(selection=ag.Fixed(threshold=0.5)),
)


@dataclass(frozen=True)
class PeerCell:
    """One auditor on scores of one law."""

    auditor: Auditor[Any]
    law: Law
    canaries: int
    coins: str = "fair"

    def __str__(self) -> str:
        return f"{self.auditor}, {self.law}, {self.canaries} canaries, {self.coins} coins"


@dataclass(frozen=True)
class PeerCount:
    """What happened in a cell."""

    cell: PeerCell
    audits: int
    above: int
    mean_bound: float

    @property
    def suspicious(self) -> bool:
        """Whether this cell by itself is unlikely, were its rate exactly nominal."""
        return suspicious(self.above, self.audits, 1.0 - CONFIDENCE)

    def beyond(self, among: int) -> bool:
        """Whether it is unlikely as one of so many cells."""
        return beyond(self.above, self.audits, 1.0 - CONFIDENCE, among)


def cells(canaries: Iterable[int]) -> list[PeerCell]:
    """Every auditor on every law it is meant for."""
    found = []
    for law, size in itertools.product(LAWS, canaries):
        auditors = FREE + (GAUSSIAN if law.gaussian else ())
        found += [PeerCell(auditor, law, size) for auditor in auditors]
    return found


def allowed(audits: int, among: int) -> int:
    """The most that chance allows in some cell, were every bound exactly nominal."""
    return int(stats.binom.isf(FAMILY_ERROR / among, audits, 1.0 - CONFIDENCE))


def count(cell: PeerCell, audits: int, seed: int, bounds: int = 10) -> PeerCount:
    """Audit many times, and count bounds above the truth.

    The truth is tested in every audit; the bound itself is searched in the first few.
    """
    generator = np.random.default_rng([seed, *str(cell).encode()])
    auditor, truth = cell.auditor, cell.law.epsilon
    above, found = 0, []
    for index in range(audits):
        scores = cell.law.scores(cell.canaries, generator, cell.coins)
        evidence = auditor.gather(scores, delta=DELTA, confidence=CONFIDENCE)
        rejected = auditor.rejects(evidence, epsilon=truth, delta=DELTA, error=1.0 - CONFIDENCE)
        above += rejected
        if index < bounds:
            bound = auditor.epsilon_lower(evidence, delta=DELTA, confidence=CONFIDENCE)
            assert (bound > truth) == rejected or abs(bound - truth) < 1e-6, (cell, bound, truth)
            found.append(bound)
    return PeerCount(cell, audits, above, float(np.mean(found)) if found else math.nan)


def section(counts: list[PeerCount], again: Mapping[int, PeerCount] | None = None) -> Iterable[str]:
    """The counts as Markdown: one line an auditor, one column a law and number of canaries."""
    again = {} if again is None else again
    audits = counts[0].audits
    judged = [again.get(place, item) for place, item in enumerate(counts)]
    over = [item for item in judged if item.beyond(len(counts))]
    worst = max(judged, key=lambda item: item.above)
    total = sum(item.above for item in counts)
    yield "## The other auditors"
    yield ""
    yield "Gaussian, Laplace, randomised-response and null scores, whose epsilon is known exactly;"
    yield "auditors of a Gaussian family only where the curve is Gaussian. Share of audits with the"
    yield "bound above the truth, and in brackets the mean bound of some."
    yield ""
    yield f"- {len(counts)} cells, {audits:,} audits each; above the truth in {total:,} of "
    yield f"  {audits * len(counts):,} ({total / (audits * len(counts)):.2%}; nominal "
    yield f"  {1 - CONFIDENCE:.0%}). Worst cell: {worst.above} of {worst.audits} ({worst.cell})."
    yield f"- Cells beyond what chance allows at a family-wise error of {PAGE_ERROR:g}:"
    yield f"  **{len(over)}**."
    for place, second in again.items():
        first = counts[place]
        yield f"- Unlikely by itself, counted again from fresh seeds: {first.cell}: {first.above},"
        yield f"  then {second.above} of {second.audits:,}."
    yield ""
    for size in sorted({item.cell.canaries for item in counts}):
        yield f"### {size:,} canaries"
        yield ""
        yield "| auditor | " + " | ".join(f"{law} ({law.epsilon:.3g})" for law in LAWS) + " |"
        yield "|---|" + "---|" * len(LAWS)
        by_cell = {
            (item.cell.auditor, item.cell.law): item
            for item in counts
            if item.cell.canaries == size
        }
        for auditor in FREE + GAUSSIAN:
            shown = [by_cell.get((auditor, law)) for law in LAWS]
            texts = [
                "" if item is None else f"{item.above / item.audits:.1%} ({item.mean_bound:.2f})"
                for item in shown
            ]
            yield f"| `{auditor}` | " + " | ".join(texts) + " |"
        yield ""
