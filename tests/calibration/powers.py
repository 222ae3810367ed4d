"""The power that audits print, beside the power there is.

A correct run prints the chance that its claim would be contradicted if the true epsilon were 1.25
times the claim. The same cell with such a leak is drawn again and again, and the test that the
power speaks of is asked whether it rejects.

Methods that take nothing for granted cannot tell 1.25 times the claim of a Gaussian mechanism from
the claim, however many canaries there are. Their cells leak more, and the audits of the leaking
runs are asked for their own power: the rule that they chose follows what they saw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

import askgauss as ag
from askgauss.auditing import audit
from askgauss.auditors.auditor import Auditor
from askgauss.mechanisms.plans import TreePlan
from askgauss.results import AuditResult
from tests.calibration import leak_zoo, transcript_cells
from tests.calibration.verdicts import (
    ALTERNATIVE,
    FAMILY_ERROR,
    GATE,
    Case,
    PlainScores,
    SampledScores,
)

# Printed power may be off by this much, beside what chance allows the simulation.
TOLERANCE = 0.05


@dataclass(frozen=True)
class PowerCell:
    """A correct run, an auditor, and how much the same run leaks.

    Attributes:
        name: What it is called.
        case: The correct run.
        auditor: The method; None for the default.
        times: True epsilon of the leaking run over the claim.
        share: Of the audits and leaks that are counted elsewhere, where each is slow.
    """

    name: str
    case: Case
    auditor: Auditor[Any] | None = None
    times: float = ALTERNATIVE
    share: float = 1.0

    @property
    def leaking(self) -> Case:
        if self.times != ALTERNATIVE:
            assert isinstance(self.case, PlainScores | SampledScores)
            return replace(self.case, leak=self.times)
        assert self.case.leaking is not None
        return self.case.leaking


@dataclass(frozen=True)
class PowerCount:
    """What was printed and what was found.

    Attributes:
        cell: The cell.
        audits: Number of audits that printed their power.
        printed: Its mean.
        spread: Its standard deviation from audit to audit.
        leaks: Number of leaking runs.
        found: How many of them were contradicted.
    """

    cell: PowerCell
    audits: int
    printed: float
    spread: float
    leaks: int
    found: int

    @property
    def distance(self) -> float:
        """Found minus printed."""
        return self.found / self.leaks - self.printed

    @property
    def error(self) -> float:
        """Standard error of the distance."""
        chance = min(max(self.printed, 0.5 / self.leaks), 1.0 - 0.5 / self.leaks)
        return math.sqrt(chance * (1.0 - chance) / self.leaks + self.spread**2 / self.audits)

    def is_right(self, among: int = 1) -> bool:
        """Whether the two are within the tolerance, and what chance allows beside it."""
        allowed = float(stats.norm.isf(FAMILY_ERROR / (2 * among))) * self.error
        return abs(self.distance) <= TOLERANCE + allowed


def count(cell: PowerCell, audits: int, leaks: int, seed: int = 0) -> PowerCount:
    """Audit correct runs and leaking ones."""
    generator = np.random.default_rng([seed, *cell.name.encode(), *repr(cell.auditor).encode()])
    case, leaking = cell.case, cell.leaking
    audits, leaks = math.ceil(cell.share * audits), math.ceil(cell.share * leaks)
    printed: list[float] = []
    for _ in range(audits if cell.times == ALTERNATIVE else 0):
        result = audit(
            case.draw(generator), claim=case.claim, auditor=cell.auditor, gate_error=GATE
        )
        if result.power is not None:  # an alarm prints none
            printed.append(result.power)
    found = 0
    for _ in range(leaks):
        result = audit(
            leaking.draw(generator),
            claim=case.claim,
            auditor=cell.auditor,
            gate_error=GATE,
            diagnostics=False,
        )
        method, evidence = _judge(result)
        claim = {"epsilon": case.claim.epsilon, "delta": case.claim.delta, "error": 0.5 * GATE}
        found += method.rejects(evidence, **claim)
        if cell.times != ALTERNATIVE and len(printed) < audits:
            true = cell.times * case.claim.epsilon
            printed.append(method.power(evidence, true_epsilon=true, **claim))
    return PowerCount(
        cell, len(printed), float(np.mean(printed)), float(np.std(printed)), leaks, found
    )


def _judge(result: AuditResult) -> tuple[Auditor[Any], Any]:
    """Whose test the verdict rests on, and what it read."""
    return result.auditor, result.evidence


_LONG = {"steps": 2500, "sampling_rate": 0.08192}

CELLS: tuple[PowerCell, ...] = (
    *(
        PowerCell(f"scores, {case}", case, ag.GaussianShift())
        for case in (
            SampledScores(10000, 10000, 100, 0.1, 4.0),
            SampledScores(10000, 10000, 10, 0.1, 1.0),
            SampledScores(2500, 2500, **_LONG, epsilon=1.0),
            SampledScores(150, 300, **_LONG, epsilon=8.0),
            SampledScores(500, 500, 3, 0.9, 4.0),
            SampledScores(3000, 3000, 20, 0.5, 2.0),
            SampledScores(100, 100, 3, 1.0, 8.0),
        )
    ),
    *(
        PowerCell(f"scores, {case}", case, auditor, share=share)
        for auditor, case, share in (
            (ag.GaussianShift(), SampledScores(100000, 100000, 10, 0.1, 1.0), 0.3),
            (ag.GaussianRectangle(), SampledScores(2000, 2000, **_LONG, epsilon=8.0), 0.5),
            (
                ag.GaussianEllipsoid(resamples=400),
                SampledScores(900, 900, **_LONG, epsilon=8.0),
                0.3,
            ),
            (ag.OrderStatistics(), SampledScores(1200, 1200, **_LONG, epsilon=4.0), 0.5),
            (ag.GaussianDP(), SampledScores(3000, 3000, **_LONG, epsilon=4.0), 1.0),
            (ag.GaussianDP(), SampledScores(500, 500, **_LONG, epsilon=8.0), 1.0),
            (
                ag.GaussianDP(selection=ag.Fixed(threshold=1.0)),
                PlainScores("gaussian", 800, 800, 4.0),
                1.0,
            ),
            (ag.ClopperPearson(), PlainScores("gaussian", 20000, 20000, 1.0, delta=0.05), 0.5),
            (ag.Bayesian(), PlainScores("gaussian", 8000, 8000, 1.0, delta=0.05), 0.1),
            (ag.ClopperPearson(), PlainScores("gaussian", 20000, 20000, 0.5, delta=0.1), 0.5),
        )
    ),
    *(
        PowerCell(f"scores, {case}", case, auditor, times=times, share=share)
        for auditor, case, times, share in (
            (ag.OneRun(), PlainScores("gaussian", 1000, 1000, 1.0), 3.0, 1.0),
            (ag.AdaptiveOneRun(), PlainScores("gaussian", 1000, 1000, 1.0), 3.0, 1.0),
            (ag.ClopperPearson(), PlainScores("gaussian", 3000, 3000, 1.0), 3.0, 1.0),
            (None, PlainScores("gaussian", 3000, 3000, 1.0), 3.5, 1.0),
            (ag.Bayesian(), PlainScores("gaussian", 1000, 1000, 1.0), 4.0, 0.1),
            (ag.OneRunFDP(), PlainScores("gaussian", 1000, 1000, 1.0), 3.0, 0.5),
            (ag.OneRunFDP(), SampledScores(3000, 3000, **_LONG, epsilon=4.0), 2.0, 0.2),
        )
    ),
    *(
        PowerCell(f"transcript, {case.name}", case)
        for case in (
            transcript_cells.CELLS[0],
            transcript_cells.Cell("100 / 400, 100 steps", (1.0,) * 100, 100, 400, 0.1),
            transcript_cells.Cell("three steps", (1.0,) * 3, 300, 600, 0.3),
            transcript_cells.Cell("in every step", (5.0,) * 30, 60, 140, 1.0),
            transcript_cells.Cell(
                "sampler of the training", (1.0,) * 60, 100, 100, 0.2, own_sampler=True
            ),
            transcript_cells.Cell("delta 1e-10", (1.0,) * 60, 80, 140, 0.1, delta=1e-10),
        )
    ),
    PowerCell("tree, 64 leaves", leak_zoo.TreeRun(present=300, absent=500)),
    PowerCell(
        "tree, prefixes",
        leak_zoo.TreeRun(plan=TreePlan(steps=40, release="prefixes"), present=300, absent=300),
    ),
)


def section(counts: list[PowerCount]) -> Iterable[str]:
    """Power printed and found as Markdown."""
    wrong = [item for item in counts if not item.is_right(len(counts))]
    points = round(100 * TOLERANCE)
    farthest = max(counts, key=lambda item: abs(item.distance))
    yield "## Power printed, and power found"
    yield ""
    yield "The chance that audits of correct runs print of contradicting the claim if the true"
    yield f"epsilon were {ALTERNATIVE} times it, at a gate error of {GATE:g}, beside the share of"
    yield "such runs whose own test did. (Checks of the noise or of the contribution see many of"
    yield "these runs besides.) Methods that assume nothing never see so small a leak of a Gaussian"
    yield "mechanism: their runs leak more, and power is what audits of those runs state."
    yield ""
    yield f"- {len(counts)} cells. Off by more than {points} points beyond what chance allows at a"
    yield f"  family-wise error of {FAMILY_ERROR:g}: **{len(wrong)}**. Farthest apart:"
    yield f"  {abs(farthest.distance):.1%}, with a standard error of {farthest.error:.1%}."
    yield ""
    yield "| cell | auditor | leak | printed | of | found | of | found less printed | z |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for item in counts:
        cell = item.cell
        auditor = "default" if cell.auditor is None else f"`{cell.auditor}`"
        yield (
            f"| {cell.name} | {auditor} | {cell.times:g} | {item.printed:.1%} | {item.audits} | "
            f"{item.found / item.leaks:.1%} | {item.leaks:,} | {100 * item.distance:+.1f} | "
            f"{item.distance / item.error:+.1f} |"
        )
    yield ""
