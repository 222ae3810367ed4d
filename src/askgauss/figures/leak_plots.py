"""How much leaks: epsilon on one axis, its trade-off curve, and what other sizes would show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from askgauss._text import one_line
from askgauss.figures import numbers, style
from askgauss.figures.numbers import EpsilonAxis, EpsilonCurve, TradeOffCurves
from askgauss.results import AuditResult, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["epsilon_axis", "epsilon_by_canaries", "epsilon_by_steps", "tradeoff"]

# A longer line would be wider than the axis it stands on.
_LONGEST_ANSWER = 54
# Rates below this are drawn on the edge of a logarithmic axis.
_SMALLEST_RATE = 1e-6


def epsilon_axis(source: AuditResult | EpsilonAxis, ax: Axes | None = None) -> Axes:
    """Claimed and measured epsilon on one axis, one row an auditor.

    A bar begins at the bound: epsilon is somewhere on it. A ring marks the estimate.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.epsilon_axis)
    rows = len(shown.bounds)
    ax = style.axes(ax, height=0.9 + 0.55 * rows)
    color = style.accent(source)
    values = [value for bound in shown.bounds for value in (bound.lower, bound.point)]
    finite = [value for value in (*values, shown.claimed) if value is not None]
    finite = [value for value in finite if math.isfinite(value)]
    right = 1.22 * max([*finite, 1e-9]) if any(finite) else 1.0
    for row, bound in enumerate(shown.bounds):
        main = row == 0
        tone = color if main else style.OTHER
        height = -row
        ax.annotate(
            _answer(bound),
            (0.0, height),
            xytext=(2, 8),
            textcoords="offset points",
            color=style.INK if main else style.MUTED,
            fontsize=10 if main else 9,
            va="bottom",
            zorder=5,
            bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5},
            parse_math=False,
        )
        ax.plot([0.0, right], [height, height], color=style.GRID, linewidth=1.0, zorder=1)
        if bound.lower is None:
            continue
        start = right if math.isinf(bound.lower) else bound.lower
        ax.plot(
            [start, right],
            [height, height],
            color=tone,
            alpha=0.28 if bound.usable else 0.1,
            linewidth=7 if main else 5,
            solid_capstyle="butt",
        )
        marker = ">" if math.isinf(bound.lower) else "|"
        ax.plot(
            [start],
            [height],
            marker=marker,
            markersize=11 if main else 8,
            markeredgewidth=2.6 if main else 1.8,
            color=tone,
            zorder=4,
            clip_on=False,
        )
        if bound.point is not None and math.isfinite(bound.point):
            ax.plot(
                [bound.point],
                [height],
                marker="o",
                markersize=6 if main else 5,
                markerfacecolor=style.PAPER,
                markeredgecolor=tone,
                zorder=4,
            )
    if shown.claimed is not None:
        ax.plot(
            [shown.claimed] * 2, [-rows + 0.62, 0.62], color=style.CLAIM, linewidth=1.6, zorder=3
        )
        ax.annotate(
            f"claimed {number(shown.claimed)}",
            (shown.claimed, 0.62),
            xytext=(0, 3),
            textcoords="offset points",
            color=style.CLAIM,
            fontsize=10,
            ha="center",
            va="bottom",
        )
    style.tidy(ax, x=f"epsilon at delta {shown.delta:g}", grid="x")
    ax.set_xlim(0.0, right)
    ax.set_ylim(-rows + 0.55, 0.95)
    ax.set_yticks([])
    return ax


def _answer(bound: numbers.Bound) -> str:
    name = one_line(bound.name, 40)
    if bound.lower is None:
        return one_line(f"{name}: {bound.reason}", _LONGEST_ANSWER)
    warning = "" if bound.usable else ", not valid"
    if math.isinf(bound.lower):
        return f"{name}: no finite epsilon fits{warning}"
    return f"{name}: at least {number(bound.lower)}{warning}"


def tradeoff(source: AuditResult | TradeOffCurves, ax: Axes | None = None) -> Axes:
    """False negatives against false positives: the claim, the bound, and the scores themselves.

    A lower curve leaks more. No attack can be below the curve of the mechanism.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.tradeoff_curves)
    ax = style.axes(ax, 4.4, 4.0)
    color = style.accent(source)
    inside = (shown.alpha > 0.0) & (shown.alpha < 1.0)
    floor = _SMALLEST_RATE
    if shown.claim is not None:
        # A little below the corner of the region that the claim forbids.
        corner = float(np.maximum(shown.alpha, shown.claim).min())
        floor = min(max(0.1 * corner, floor), 1e-3)
    ax.plot(shown.alpha[inside], 1.0 - shown.alpha[inside], color=style.GRID, linewidth=1.0)
    if shown.claim is not None:
        ax.fill_between(
            shown.alpha[inside],
            floor,
            np.maximum(shown.claim[inside], floor),
            color=style.CLAIM,
            alpha=0.22,
            linewidth=0,
            label="forbidden by the claim",
        )
    if shown.mechanism is not None:
        ax.plot(
            shown.alpha,
            shown.mechanism,
            color=style.CLAIM,
            linewidth=1.4,
            label="claimed mechanism",
        )
    if shown.measured is not None:
        ax.plot(shown.alpha, shown.measured, color=color, linewidth=2.0, label="measured bound")
    if shown.observed is not None:
        false, missed = shown.observed
        seen = (false >= floor) & (missed >= floor)
        ax.plot(
            false[seen],
            missed[seen],
            linestyle="none",
            marker="o",
            markersize=2.4,
            clip_on=False,
            color=style.OTHER,
            label="thresholds on the scores",
        )
    style.tidy(ax, x="false positive rate", y="false negative rate", grid="both")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(floor, 1.0)
    ax.set_ylim(floor, 1.0)
    ax.set_box_aspect(1)
    style.rate_ticks(ax)
    if ax.get_legend_handles_labels()[0]:
        style.legend(ax, loc="center")
    return ax


def epsilon_by_canaries(source: AuditResult | EpsilonCurve, ax: Axes | None = None) -> Axes:
    """The bound this method would report of the same run with more or fewer canaries.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.epsilon_by_canaries)
    return _epsilon_curve(shown, ax, style.accent(source), "canaries")


def epsilon_by_steps(source: AuditResult | EpsilonCurve, ax: Axes | None = None) -> Axes:
    """The bound this method would report after more or fewer steps of the same kind.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.epsilon_by_steps)
    return _epsilon_curve(shown, ax, style.accent(source), "steps")


def _epsilon_curve(shown: EpsilonCurve, ax: Axes | None, color: str, what: str) -> Axes:
    ax = style.axes(ax)
    if shown.claimed is not None:
        ax.axhline(shown.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
    ax.plot(
        shown.size,
        shown.point,
        color=style.OTHER,
        linewidth=1.2,
        linestyle=(0, (4, 3)),
        label="estimate",
    )
    ax.plot(shown.size, shown.lower, color=color, linewidth=2.0, label="bound")
    ax.plot([shown.here], [shown.bound], marker="o", color=color, linestyle="none", markersize=6)
    ax.set_xscale("log")
    style.tidy(ax, x=f"number of {what}", y="epsilon")
    style.count_ticks(ax)
    ax.set_ylim(bottom=0.0)
    style.legend(ax, loc="best")
    return ax
