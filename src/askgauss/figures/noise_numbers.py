"""The noise: its scale by step and by tensor, its shape, and whether canaries share any."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss.figures.missing import Missing
from askgauss.figures.shape_table import REACH, SHAPE_BINS
from askgauss.figures.summary import Summary
from askgauss.results import AuditResult

__all__ = [
    "Gram",
    "NoiseBySteps",
    "NoiseByTensor",
    "NoiseShape",
    "gram",
    "noise_by_step",
    "noise_by_tensor",
    "noise_shape",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseBySteps:
    """Scale of the noise over the run, with pointwise 99 % intervals and the claimed scale."""

    step: Array
    scale: Array
    low: Array
    high: Array
    claimed: Array | None
    background: bool


def noise_by_step(result: AuditResult) -> NoiseBySteps | Missing:
    """Scale of the noise over the steps."""
    summary = Summary.from_metadata(result.metadata)
    noise = summary.noise
    if noise is None:
        return _needs_transcript(summary)
    claimed: Array | None = noise.claimed
    if result.claim is not None and result.claim.noise_multiplier is not None:
        claimed = np.full(noise.step.size, result.claim.noise_multiplier)
    elif not np.isfinite(noise.claimed).all():
        given = summary.run.noise_multiplier
        claimed = None if given is None else np.full(noise.step.size, given)
    return NoiseBySteps(
        step=noise.step,
        scale=noise.scale,
        low=noise.low,
        high=noise.high,
        claimed=claimed,
        background=summary.run.background == "unknown",
    )


def _needs_transcript(summary: Summary) -> Missing:
    if summary.run.source == "transcript":
        return Missing(reason="needs finite values of canaries that were not planted.")
    if summary.run.source == "correlated noise":
        return Missing(reason="not drawn for correlated noise, which no step has alone.")
    return Missing(reason="needs a transcript: scores do not tell one step from another.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseByTensor:
    """Scale of the noise of single tensors, with 99 % intervals."""

    names: tuple[str, ...]
    scale: Array
    low: Array
    high: Array
    of: int
    overall: float
    claimed: float | None


def noise_by_tensor(result: AuditResult) -> NoiseByTensor | Missing:
    """Scale of the noise by tensor."""
    summary = Summary.from_metadata(result.metadata)
    tensors = summary.tensors
    if tensors is None:
        return _needs_transcript(summary)
    claim = result.claim
    claimed = claim.noise_multiplier if claim is not None else None
    return NoiseByTensor(
        names=tensors.names,
        scale=tensors.scale,
        low=tensors.low,
        high=tensors.high,
        of=tensors.of,
        overall=tensors.overall,
        claimed=summary.run.noise_multiplier if claimed is None else claimed,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseShape:
    """How often the noise was how large, and how often Gaussian noise would be.

    Attributes:
        edges: Edges of the bins, in standard deviations.
        share: Share of the values in each bin; those beyond the ends are in the outermost.
        gaussian: The share that Gaussian noise has there.
        values: Number of values.
        outside: Number of values beyond the ends.
    """

    edges: Array
    share: Array
    gaussian: Array
    values: int
    outside: int


def noise_shape(result: AuditResult) -> NoiseShape | Missing:
    """The noise in its own standard deviations, beside a Gaussian."""
    summary = Summary.from_metadata(result.metadata)
    table = summary.shape
    if table is None:
        if summary.run.source == "scores":
            return _needs_transcript(summary)
        return Missing(
            reason="needs a thousand values without a planting, and a known background, to tell "
            "noise from other records."
        )
    edges = np.linspace(-REACH, REACH, SHAPE_BINS + 1)
    below = ndtr(np.concatenate([[-np.inf], edges[1:-1], [np.inf]]))
    total = float(table.counts.sum())
    return NoiseShape(
        edges=edges,
        share=table.counts / total,
        gaussian=np.diff(below),
        values=int(total),
        outside=table.outside,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gram:
    """Cosines between what the steps released about pairs of canaries.

    Attributes:
        cosines: The whole symmetric matrix.
        largest: The largest off the diagonal, by absolute value.
        chance: What the largest of so many would be by chance, about.
        steps: Number of steps behind each.
    """

    cosines: Array
    largest: float
    chance: float
    steps: int


def gram(result: AuditResult) -> Gram | Missing:
    """Cosines between canaries: off the diagonal, independent ones have only chance."""
    summary = Summary.from_metadata(result.metadata)
    table = summary.gram
    if table is None:
        return _needs_transcript(summary)
    matrix = np.eye(table.size)
    upper = np.triu_indices(table.size, 1)
    matrix[upper] = table.cosines / 100.0
    matrix.T[upper] = matrix[upper]
    pairs = table.cosines.size
    return Gram(
        cosines=matrix,
        largest=float(np.abs(table.cosines).max(initial=0.0)) / 100.0,
        chance=math.sqrt(2.0 * math.log(2.0 * pairs) / table.steps),
        steps=table.steps,
    )
