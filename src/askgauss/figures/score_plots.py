"""The scores: what they look like, how Gaussian they are, and whether they are all alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from askgauss.figures import numbers, style
from askgauss.figures.numbers import Convergence, PitCurves, ScoreCurves, ScoreDensity
from askgauss.results import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["convergence", "pit", "score_density", "scores"]


def scores(source: AuditResult | ScoreCurves, ax: Axes | None = None) -> Axes:
    """Histograms of present and absent scores, the fitted pair, and the law of the mechanism.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.score_curves)
    ax = style.axes(ax)
    groups = (
        ("absent", style.OTHER, shown.absent, shown.absent_fit, shown.absent_law),
        ("present", style.accent(source), shown.present, shown.present_fit, shown.present_law),
    )
    for name, color, density, fit, law in groups:
        ax.stairs(density, shown.edges, fill=True, color=color, alpha=0.28, label=name)
        if fit is not None:
            ax.plot(shown.x, fit, color=color, linewidth=1.8)
        if law is not None:
            ax.plot(shown.x, law, color=style.INK, linewidth=1.0, linestyle=(0, (3, 3)))
    style.tidy(ax, x="score", grid="")
    ax.set_yticks([])
    ax.set_ylim(bottom=0.0)
    style.legend(ax, loc="upper right")
    return ax


def pit(source: AuditResult | PitCurves, ax: Axes | None = None) -> Axes:
    """How far the scores stray from their fitted Gaussians, with simultaneous bands.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.pit_curves)
    ax = style.axes(ax)
    groups = (
        ("absent", style.OTHER, shown.absent, shown.absent_band),
        ("present", style.accent(source), shown.present, shown.present_band),
    )
    for name, color, difference, band in groups:
        ax.fill_between(shown.at, -band, band, color=color, alpha=0.16, linewidth=0)
        ax.plot(shown.at, difference, color=color, linewidth=1.6, label=name)
    ax.axhline(0.0, color=style.MUTED, linewidth=0.8)
    style.tidy(ax, x="probability under the fitted Gaussian", y="empirical minus fitted")
    ax.set_xlim(0, 1)
    style.legend(ax, loc="upper right")
    return ax


def score_density(source: AuditResult | ScoreDensity, ax: Axes | None = None) -> Axes:
    """Standardised scores by canary index: bands or trends mean that canaries are not all alike.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    shown = style.numbers(source, numbers.score_density)
    ax = style.axes(ax)
    corner = np.array([0.5, 0.5, 0.0, -0.5, -0.5, 0.0]), np.array([-1, 1, 2, 1, -1, -2]) / 6.0
    outline = np.stack([corner[0] * shown.width, corner[1] * shown.height], axis=1)
    filled = shown.count > 0
    centres = np.stack([shown.x, shown.y], axis=1)[filled]
    # One colour, more or less of it: legible on any ground. Twelve shades are enough to see.
    share = np.ceil(12.0 * np.sqrt(shown.count[filled] / shown.count.max())) / 12.0
    colors = np.tile(to_rgb(style.CLAIM), (share.size, 1))
    ax.add_collection(
        PolyCollection(
            list(centres[:, np.newaxis, :] + outline),
            facecolors=np.column_stack([colors, 0.08 + 0.92 * share]),
            edgecolors="none",
            linewidths=0.0,
            rasterized=True,
        )
    )
    style.tidy(ax, x="canary index", y="standardised score", grid="")
    style.few_ticks(ax)
    ax.set_xlim(0, float(shown.x.max()))
    ax.set_ylim(float(shown.y.min()), float(shown.y.max()))
    return ax


def convergence(source: AuditResult | Convergence, ax: Axes | None = None) -> Axes:
    """Distance of a present score's law from the Gaussian, by number of steps.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.convergence)
    ax = style.axes(ax)
    color = style.accent(source)
    ax.plot(shown.steps, shown.exact, color=color, linewidth=2.0, label="exact")
    if (shown.leading > 0.0).all():
        ax.plot(
            shown.steps,
            shown.leading,
            color=style.OTHER,
            linewidth=1.2,
            linestyle=(0, (4, 3)),
            label="leading term",
        )
    ax.plot([shown.here], [shown.exact[-1]], marker="o", color=color, markersize=6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    style.tidy(ax, x="number of steps", y="Kolmogorov distance")
    style.count_ticks(ax)
    style.plain_ticks(ax)
    style.legend(ax, loc="upper right")
    return ax
