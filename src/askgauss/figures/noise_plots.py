"""The noise: its scale over the steps and by tensor, its shape, and whether canaries share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from askgauss.figures import numbers, style
from askgauss.figures.numbers import Gram, NoiseBySteps, NoiseByTensor, NoiseShape
from askgauss.results import AuditResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["gram", "noise_by_step", "noise_by_tensor", "noise_shape"]


def noise_by_step(source: AuditResult | NoiseBySteps, ax: Axes | None = None) -> Axes:
    """Scale of the noise over the steps, in clip norms, next to what was claimed.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.noise_by_step)
    ax = style.axes(ax)
    color = style.accent(source)
    ax.fill_between(shown.step, shown.low, shown.high, color=color, alpha=0.2, linewidth=0)
    name = "noise and background" if shown.background else "measured"
    ax.plot(shown.step, shown.scale, color=color, linewidth=1.4, label=name)
    if shown.claimed is not None:
        ax.plot(shown.step, shown.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
    style.tidy(ax, x="step", y="noise, in clip norms")
    ax.set_ylim(bottom=0.0, top=1.25 * _highest(shown.high, shown.claimed))
    style.legend(ax, loc="lower right")
    return ax


def _highest(measured: NDArray[np.float64], claimed: NDArray[np.float64] | float | None) -> float:
    values = np.append(measured, [] if claimed is None else claimed)
    return max(float(values.max(where=np.isfinite(values), initial=0.0)), 1e-9)


def noise_by_tensor(source: AuditResult | NoiseByTensor, ax: Axes | None = None) -> Axes:
    """Scale of the noise of single tensors, in clip norms, next to what was claimed.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.noise_by_tensor)
    ax = style.axes(ax, height=1.0 + 0.24 * len(shown.names))
    color = style.accent(source)
    rows = -np.arange(len(shown.names))
    ax.hlines(rows, shown.low, shown.high, color=color, linewidth=5, alpha=0.28)
    ax.plot(shown.scale, rows, linestyle="none", marker="o", markersize=4, color=color)
    if shown.claimed is not None:
        ax.axvline(shown.claimed, color=style.CLAIM, linewidth=1.4, label="claimed")
        style.legend(ax, loc="lower left")
    style.tidy(ax, x="noise, in clip norms", grid="x")
    ax.set_xlim(0.0, 1.25 * _highest(shown.high, shown.claimed))
    ax.set_ylim(rows[-1] - 0.7, 0.7)
    # Names come from outside: a dollar sign in one is not the start of a formula.
    ax.set_yticks(rows, [style.label(name) for name in shown.names], parse_math=False)
    return ax


def noise_shape(source: AuditResult | NoiseShape, ax: Axes | None = None) -> Axes:
    """How often the noise was how large, beside Gaussian noise; tails show on the log axis.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    shown = style.numbers(source, numbers.noise_shape)
    ax = style.axes(ax)
    color = style.accent(source)
    floor = 0.5 / shown.values
    share = np.where(shown.share > 0.0, shown.share, floor)
    ax.stairs(share, shown.edges, baseline=floor, fill=True, color=color, alpha=0.28, label="noise")
    expected = np.maximum(shown.gaussian, floor)
    ax.stairs(
        expected, shown.edges, baseline=None, color=style.CLAIM, linewidth=1.4, label="Gaussian"
    )
    ax.set_yscale("log")
    style.tidy(ax, x="noise, in its standard deviations", y="share of values")
    style.power_ticks(ax)
    ax.set_ylim(floor, 3.0 * float(max(share.max(), expected.max())))
    style.legend(ax, loc="upper right")
    return ax


def gram(source: AuditResult | Gram, ax: Axes | None = None) -> Axes:
    """Cosines between what was released about pairs of canaries; the diagonal is left out.

    Args:
        source: A result, or its numbers.
        ax: Where to draw.

    Returns:
        The axes.
    """
    from matplotlib.colors import to_rgb

    shown = style.numbers(source, numbers.gram)
    ax = style.axes(ax, 4.2, 4.0)
    size = len(shown.cosines)
    # Strength as opacity, so that the picture is legible on any ground; full at three times what
    # chance gives, so that chance looks faint.
    off = shown.cosines * (1.0 - np.eye(size))
    strength = np.clip(np.abs(off) / min(1.0, 3.0 * shown.chance), 0.0, 1.0)
    picture = np.zeros((size, size, 4))
    picture[..., :3] = to_rgb(style.CLAIM)
    picture[..., 3] = strength
    picture[np.eye(size, dtype=bool)] = (*to_rgb(style.OTHER), 0.5)
    ax.imshow(picture, interpolation="none", extent=(0.5, size + 0.5, size + 0.5, 0.5))
    style.tidy(ax, x="canary", y="canary", grid="")
    return ax
