"""The course of a run that a monitor watched: bound and evidence by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from askgauss._rounding import FEWEST_TOLD
from askgauss.figures import style
from askgauss.figures.style import AuditFigure, NothingToDrawError
from askgauss.monitor.feed import Feed
from askgauss.results import AuditResult, Finding, Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BoundByStep", "EvidenceByStep", "RunCourse", "with_course"]


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
        step: Steps, thinned out.
        bound: Lower bound on epsilon that held there; nan before there was one.
        claimed: The claimed epsilon, if any.
        spent: Epsilon by the accountant at the end of the watched steps, where known.
        evidence: Decimal logarithm of the joint evidence.
        alarm_at: The evidence of an alarm.
        alarm_step: Where the alarm came; None where none did.
        alarm: The alarm in words; empty where none came.
        untested: Parts that were not watched, and why.
    """

    step: tuple[int, ...]
    bound: tuple[float, ...]
    claimed: float | None
    spent: float | None
    evidence: tuple[float, ...]
    alarm_at: float
    alarm_step: int | None
    alarm: str
    untested: dict[str, str]

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """The course that `with_course` put there."""
        feed = result.watched
        if feed is None:
            raise NothingToDrawError("needs a monitor: nobody watched the run.")
        if not feed.course.step:
            raise NothingToDrawError(
                f"a point of it has {FEWEST_TOLD} plantings, and there were fewer."
            )
        claimed = feed.claim or result.claim
        return cls(
            verdict=result.verdict,
            step=feed.course.step,
            bound=feed.course.bound,
            claimed=None if claimed is None else claimed.epsilon,
            spent=feed.spent,
            evidence=feed.course.evidence,
            alarm_at=feed.alarm_at,
            alarm_step=None if feed.alarm is None else feed.alarm.step,
            alarm="" if feed.alarm is None else str(feed.alarm),
            untested=feed.untested,
        )

    def _mark_alarm(self, ax: Axes) -> None:
        if self.alarm_step is not None:
            ax.axvline(
                self.alarm_step,
                color=style.OTHER,
                linewidth=1.2,
                linestyle=(0, (4, 3)),
                label=f"alarm at step {self.alarm_step:,}",
            )


class BoundByStep(RunCourse):
    """The bound on epsilon as it grew with the steps, next to the claim."""

    __slots__ = ()

    title = "Bound over the steps"
    label = "The bound on epsilon by step of the run, with the claim."
    caption = "Each value speaks of the steps up to it, and all of them hold together."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        if self.claimed is not None:
            ax.axhline(self.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
        if self.spent is not None:
            ax.plot(
                [self.step[-1]],
                [self.spent],
                marker="o",
                linestyle="none",
                color=style.CLAIM,
                markersize=5,
                label="spent by the accountant",
            )
        ax.step(
            self.step,
            self.bound,
            where="post",
            color=self.accent,
            linewidth=2.0,
            label="bound",
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
        return f"Of correct runs one in ten to the {self.alarm_at:.3g} ever reaches the line."

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        ax.axhline(self.alarm_at, color=style.CLAIM, linewidth=1.4, label="an alarm")
        ax.plot(self.step, self.evidence, color=self.accent, linewidth=1.6, label="evidence")
        self._mark_alarm(ax)
        style.tidy(ax, x="step", y="evidence, powers of ten")
        style.legend(ax, loc="best")
        return ax
