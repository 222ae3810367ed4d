"""The course of a run that was watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from askgauss.figures import numbers, style
from askgauss.figures.numbers import RunCourse
from askgauss.results import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bound_by_step", "evidence_by_step"]


def bound_by_step(source: AuditResult | RunCourse, ax: Axes | None = None) -> Axes:
    """The bound on epsilon as it grew with the steps, next to the claim.

    Args:
        source: A result whose run was watched, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.course)
    ax = style.axes(ax)
    if shown.claimed is not None:
        ax.axhline(shown.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
    if shown.spent is not None:
        ax.plot(
            [shown.step[-1]],
            [shown.spent],
            marker="o",
            linestyle="none",
            color=style.CLAIM,
            markersize=5,
            label="spent by the accountant",
        )
    ax.step(
        shown.step,
        shown.bound,
        where="post",
        color=style.accent(source),
        linewidth=2.0,
        label="bound",
    )
    _mark_alarm(shown, ax)
    style.tidy(ax, x="step", y="epsilon")
    ax.set_ylim(bottom=0.0)
    style.legend(ax, loc="best")
    return ax


def evidence_by_step(source: AuditResult | RunCourse, ax: Axes | None = None) -> Axes:
    """Evidence against the claim over the steps, as a power of ten, and where it alarms.

    Args:
        source: A result whose run was watched, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.course)
    ax = style.axes(ax)
    ax.axhline(shown.alarm_at, color=style.CLAIM, linewidth=1.4, label="an alarm")
    ax.plot(shown.step, shown.evidence, color=style.accent(source), linewidth=1.6, label="evidence")
    _mark_alarm(shown, ax)
    style.tidy(ax, x="step", y="evidence, powers of ten")
    style.legend(ax, loc="best")
    return ax


def _mark_alarm(shown: RunCourse, ax: Axes) -> None:
    if shown.alarm_step is not None:
        ax.axvline(
            shown.alarm_step,
            color=style.OTHER,
            linewidth=1.2,
            linestyle=(0, (4, 3)),
            label=f"alarm at step {shown.alarm_step:,}",
        )
