"""The noise by step and by tensor, its shape, shared noise, and the course of a watched run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss.figures import style
from askgauss.figures.style import AuditFigure, NothingToDrawError
from askgauss.figures.summary import (
    SHAPE_BINS,
    SHAPE_REACH,
    NoiseSummary,
    Summary,
    TensorSummary,
    tables_of,
)
from askgauss.monitor.feed import Feed
from askgauss.results import AuditResult, Finding, Status
from askgauss.stats.rounding import FEWEST_SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BoundByStep",
    "EvidenceByStep",
    "GramMatrix",
    "NoiseByStep",
    "NoiseByTensor",
    "NoiseShape",
    "RunCourse",
    "with_course",
]


Array = NDArray[np.float64]


def _needs_transcript(summary: Summary) -> NothingToDrawError:
    if summary.run.source == "transcript":
        return NothingToDrawError("needs finite values of canaries that were in no batch.")
    if summary.run.source == "correlated noise":
        return NothingToDrawError("not drawn for correlated noise, which no step has alone.")
    return NothingToDrawError("needs a transcript: scores do not tell one step from another.")


def _highest(measured: NDArray[np.float64], claimed: NDArray[np.float64] | float | None) -> float:
    values = np.append(measured, [] if claimed is None else claimed)
    return max(float(values.max(where=np.isfinite(values), initial=0.0)), 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseByStep(AuditFigure):
    """Scale of the noise by step, in clip norms, with pointwise 99 % intervals, and the claim."""

    title = "Noise by step"
    label = "Scale of the noise by step, measured and claimed."
    caption = "In clip norms, with pointwise 99 % intervals."

    table: NoiseSummary
    claimed: Array | None
    background: bool

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        noise = summary.noise
        if noise is None:
            raise _needs_transcript(summary)
        claimed: Array | None = noise.claimed
        if result.claim is not None and result.claim.noise_multiplier is not None:
            claimed = np.full(noise.step.size, result.claim.noise_multiplier)
        elif not np.isfinite(noise.claimed).all():
            given = summary.run.noise_multiplier
            claimed = None if given is None else np.full(noise.step.size, given)
        return cls(
            verdict=result.verdict,
            table=noise,
            claimed=claimed,
            background=summary.run.background == "unknown",
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        color, noise = self.accent, self.table
        ax.fill_between(noise.step, noise.low, noise.high, color=color, alpha=0.2, linewidth=0)
        name = "noise and background" if self.background else "measured"
        ax.plot(noise.step, noise.scale, color=color, linewidth=1.4, label=name)
        if self.claimed is not None:
            ax.plot(noise.step, self.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
        style.tidy(ax, x="step", y="noise, in clip norms")
        ax.set_ylim(bottom=0.0, top=1.25 * _highest(noise.high, self.claimed))
        style.legend(ax, loc="lower right")
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseByTensor(AuditFigure):
    """Scale of the noise of single tensors, in clip norms, with 99 % intervals, and the claim."""

    title = "Noise by tensor"
    label = "Scale of the noise by tensor, measured and claimed."

    table: TensorSummary
    claimed: float | None

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        tensors = summary.tensors
        if tensors is None:
            raise _needs_transcript(summary)
        claim = result.claim
        claimed = claim.noise_multiplier if claim is not None else None
        return cls(
            verdict=result.verdict,
            table=tensors,
            claimed=summary.run.noise_multiplier if claimed is None else claimed,
        )

    @property
    def caption(self) -> str:
        """What the figure shows."""
        shown, of = len(self.table.names), self.table.of
        rest = "" if of == shown else f" The {shown} of {of} furthest from the rest."
        return f"In clip norms, with 99 % intervals.{rest}"

    @property
    def size(self) -> tuple[float, float]:
        """As high as there are tensors."""
        return style.WIDTH, max(2.0, 0.8 + 0.22 * len(self.table.names))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        color, tensors = self.accent, self.table
        ax = style.axes(ax, height=1.0 + 0.24 * len(tensors.names))
        rows = -np.arange(len(tensors.names))
        ax.hlines(rows, tensors.low, tensors.high, color=color, linewidth=5, alpha=0.28)
        ax.plot(tensors.scale, rows, linestyle="none", marker="o", markersize=4, color=color)
        if self.claimed is not None:
            ax.axvline(self.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
            style.legend(ax, loc="lower left")
        style.tidy(ax, x="noise, in clip norms", grid="x")
        ax.set_xlim(0.0, 1.25 * _highest(tensors.high, self.claimed))
        ax.set_ylim(rows[-1] - 0.7, 0.7)
        # Names come from outside: a dollar sign in one is not the start of a formula.
        ax.set_yticks(rows, [style.label(name) for name in tensors.names], parse_math=False)
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseShape(AuditFigure):
    """How often the noise was how large, and how often Gaussian noise would be.

    Attributes:
        edges: Edges of the bins, in standard deviations.
        share: Share of the values in each bin; those beyond the ends are in the outermost.
        gaussian: The share that Gaussian noise has there.
        values: Number of values.
        outside: Number of values beyond the ends.
    """

    title = "Shape of the noise"
    label = "How often the noise was how large, next to Gaussian noise."

    edges: Array
    share: Array
    gaussian: Array
    values: int
    outside: int

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        table = summary.shape
        if table is None:
            if summary.run.source == "scores":
                raise _needs_transcript(summary)
            raise NothingToDrawError(
                "needs a thousand values without a canary, and a known background, to tell "
                "noise from other records."
            )
        edges = np.linspace(-SHAPE_REACH, SHAPE_REACH, SHAPE_BINS + 1)
        below = ndtr(np.concatenate([[-np.inf], edges[1:-1], [np.inf]]))
        total = float(table.counts.sum())
        return cls(
            verdict=result.verdict,
            edges=edges,
            share=table.counts / total,
            gaussian=np.diff(below),
            values=int(total),
            outside=table.outside,
        )

    @property
    def caption(self) -> str:
        """What the figure shows."""
        return (
            f"On a log axis, where tails show. {self.values:,} values, {self.outside:,} of them "
            "further out than this reaches."
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        color = self.accent
        floor = 0.5 / self.values
        share = np.where(self.share > 0.0, self.share, floor)
        ax.stairs(
            share, self.edges, baseline=floor, fill=True, color=color, alpha=0.28, label="noise"
        )
        expected = np.maximum(self.gaussian, floor)
        ax.stairs(
            expected, self.edges, baseline=None, color=style.CLAIM, linewidth=1.4, label="Gaussian"
        )
        ax.set_yscale("log")
        style.tidy(ax, x="noise, in its standard deviations", y="share of values")
        style.log_ticks(ax.yaxis, most=8)
        ax.set_ylim(floor, 3.0 * float(max(share.max(), expected.max())))
        style.legend(ax, loc="upper right")
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GramMatrix(AuditFigure):
    """Cosines between what the steps released about pairs of canaries.

    Attributes:
        cosines: The whole symmetric matrix.
        largest: The largest off the diagonal, by absolute value.
        chance: What the largest of so many would be by chance, about.
        steps: Number of steps behind each.
    """

    title = "Gram matrix"
    label = "Gram matrix of the canaries: off the diagonal only chance is expected."
    kind = "square"

    cosines: Array
    largest: float
    chance: float
    steps: int

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        table = summary.gram
        if table is None:
            raise _needs_transcript(summary)
        matrix = np.eye(table.size)
        upper = np.triu_indices(table.size, 1)
        matrix[upper] = table.cosines / 100.0
        matrix.T[upper] = matrix[upper]
        pairs = table.cosines.size
        return cls(
            verdict=result.verdict,
            cosines=matrix,
            largest=float(np.abs(table.cosines).max(initial=0.0)) / 100.0,
            chance=math.sqrt(2.0 * math.log(2.0 * pairs) / table.steps),
            steps=table.steps,
        )

    @property
    def caption(self) -> str:
        """What the figure shows."""
        return (
            "Cosines between what was released about pairs of canaries. "
            f"What chance gives is left blank: it may give {self.chance:.2f} over "
            f"{self.steps:,} steps. The largest here is {self.largest:.2f}."
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        from matplotlib.colors import to_rgb

        ax = style.axes(ax, 4.2, 4.0)
        size = len(self.cosines)
        # Strength as opacity, so that the picture is legible on any ground; full at three times
        # what chance gives, so that chance looks faint.
        off = self.cosines * (1.0 - np.eye(size))
        strength = np.clip(np.abs(off) / min(1.0, 3.0 * self.chance), 0.0, 1.0)
        picture = np.zeros((size, size, 4))
        picture[..., :3] = to_rgb(style.CLAIM)
        picture[..., 3] = strength
        picture[np.eye(size, dtype=bool)] = (*to_rgb(style.OTHER), 0.5)
        ax.imshow(picture, interpolation="none", extent=(0.5, size + 0.5, size + 0.5, 0.5))
        style.tidy(ax, x="canary", y="canary", grid="")
        return ax


def with_course(result: AuditResult, feed: Feed) -> AuditResult:
    """A result that also shows how its run went, in its report and its JSON.

    Integrations do this by themselves. The verdict stays: an alarm has an error rate of its own,
    and is a warning among the findings.

    Args:
        result: An audit of the run.
        feed: What its monitor says: ``monitor.feed("finished")``.
    """
    findings = result.findings
    if feed.alarm is not None:
        warning = Finding(
            check="monitor",
            status=Status.WARN,
            summary=f"alarmed while the run trained. {feed.alarm}",
            remedy="Look for what changed at this step; the report shows the course.",
        )
        findings = (*findings, warning)
    # Without the clock, so that the same run gives the same result.
    watched = replace(feed, written=0.0, elapsed=0.0)
    return replace(result, findings=findings, watched=watched)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunCourse(AuditFigure):
    """What a monitor saw of a run, by step.

    Attributes:
        feed: What the monitor said last.
        claimed: The claimed epsilon, if any.
    """

    feed: Feed
    claimed: float | None

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """The course that `with_course` put there."""
        feed = result.watched
        if feed is None:
            raise NothingToDrawError("needs a monitor: nobody watched the run.")
        if not feed.course.step:
            raise NothingToDrawError(
                f"a point of it has {FEWEST_SHOWN} plantings, and there were fewer."
            )
        claimed = feed.claim or result.claim
        return cls(
            verdict=result.verdict,
            feed=feed,
            claimed=None if claimed is None else claimed.epsilon,
        )

    def _mark_alarm(self, ax: Axes) -> None:
        if self.feed.alarm is not None:
            ax.axvline(
                self.feed.alarm.step,
                color=style.OTHER,
                linewidth=1.2,
                linestyle=(0, (4, 3)),
                label=f"alarm at step {self.feed.alarm.step:,}",
            )


class BoundByStep(RunCourse):
    """The bound on epsilon as it grew with the steps, next to the claim."""

    __slots__ = ()

    title = "Bound over the steps"
    label = "The bound on epsilon by step of the run, with the claim."
    caption = "Each value is a bound for the steps up to it; all of them hold simultaneously."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        if self.claimed is not None:
            ax.axhline(self.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
        course = self.feed.course
        if self.feed.spent is not None:
            ax.plot(
                [course.step[-1]],
                [self.feed.spent],
                marker="o",
                linestyle="none",
                color=style.CLAIM,
                markersize=5,
                label="spent by the accountant",
            )
        ax.step(
            course.step, course.bound, where="post", color=self.accent, linewidth=2.0, label="bound"
        )
        self._mark_alarm(ax)
        style.tidy(ax, x="step", y="epsilon")
        ax.set_ylim(bottom=0.0)
        style.legend(ax, loc="best")
        return ax


class EvidenceByStep(RunCourse):
    """Evidence against the claim over the steps, as a power of ten, and where it alarms."""

    __slots__ = ()

    title = "Evidence against the claim"
    label = "Evidence against the claim by step, and where it alarms."

    @property
    def caption(self) -> str:
        """What the figure shows."""
        return f"Of correct runs one in ten to the {self.feed.alarm_at:.3g} ever reaches the line."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        ax.axhline(self.feed.alarm_at, color=style.CLAIM, linewidth=1.4, label="an alarm")
        course = self.feed.course
        ax.plot(course.step, course.evidence, color=self.accent, linewidth=1.6, label="evidence")
        self._mark_alarm(ax)
        style.tidy(ax, x="step", y="evidence, powers of ten")
        style.legend(ax, loc="best")
        return ax
