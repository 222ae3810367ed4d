"""What of tables and findings a result may carry: aggregates, with as few digits as are worth it.

Where the other records' sum is subtracted, a canary's score is its noise. Whoever has the released
weights and that score gets the private sum back, so a result that anybody may read holds nothing of
a single canary: no seed to find it by, no cell that few share, and of a measured scale or
correlation nothing finer than its own standard error. docs/threat-model.md has the argument,
tests/test_disclosure.py the attacks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss._rounded import is_handful
from askgauss.diagnostics.coarse import (
    coarse_chance,
    coarse_cosines,
    significant,
    to_its_error,
)
from askgauss.diagnostics.summary import (
    HEXAGONS,
    PIT_POINTS,
    GramSummary,
    NoiseSummary,
    ScoreSummary,
    Summary,
    TensorSummary,
)
from askgauss.linear_transcript import LinearTranscript
from askgauss.results import Finding
from askgauss.scores import CanaryScores
from askgauss.transcript import Transcript

__all__ = ["publishable", "published", "tells_of_single"]

Array = NDArray[np.float64]

# Bins of a histogram counted as one, from so many scores in the smaller group.
_MERGED = (1, 2000), (2, 300), (4, 0)
# Canaries that share a cell of a histogram, a step of the distribution, and a column of the picture
# by index.
_FEWEST_IN_CELL = 8
_FEWEST_IN_STEP = 8
_FEWEST_FOR_STEPS = 50
_FEWEST_IN_COLUMN = 100
# Canaries that a weighted sum amounts to, where those of one weight are subtracted: one number
# about ten leaves .95 of what the noise protects of each. Weights that differ by chance make some
# twenty of thirty.
_FEWEST_WEIGHED = 10.0
# Weights that are tried as the one to subtract, the commonest first.
_SUBTRACTED = 32


def tells_of_single(data: CanaryScores | Transcript | LinearTranscript) -> bool:
    """Whether exact sums in a result of these data are, or subtract to, those of a handful.

    Evidence holds the sums over present and over absent canaries, and over observations with and
    without a planting; where canaries or steps do not weigh the same, also sums with their weights.
    What is left of two of them belongs to whoever is in only one, or weighs otherwise.

    Args:
        data: What is audited. Where the background is not known, no sum is the noise alone.
    """
    if isinstance(data, LinearTranscript):
        data = data.scores()
    known = data.metadata if isinstance(data, CanaryScores) else data.facts
    if known.background != "known":
        return False
    member = data.member
    present = int(np.count_nonzero(member))
    groups = [present, member.size - present]
    weighed: list[tuple[NDArray[Any], NDArray[Any]]] = []
    if isinstance(data, CanaryScores):
        if data.relative_shift is not None:
            weighed.append((data.relative_shift[member], np.ones(present)))
    else:
        held = np.bincount(data.canaries.planted[member])
        times = np.arange(held.size)
        plantings = int(times @ held)
        groups += [plantings, present * data.number_of_steps - plantings]
        weighed = [
            (times, held),
            (data.schedule**-2.0, data.steps.planted.sum(axis=1)),
        ]
    return any(map(is_handful, groups)) or any(
        0.0 < _amounts_to(np.asarray(weight, float), count) < _FEWEST_WEIGHED
        for weight, count in weighed
    )


def _amounts_to(weights: Array, counts: Array) -> float:
    """Equal ones that a sum with such weights is like, once those of one weight are subtracted.

    Args:
        weights: By kind.
        counts: How many there are of each kind.

    Returns:
        The least over the weights that may be subtracted; 0 where all weigh the same.
    """
    # Only how they compare counts, and squares of these are numbers.
    relative = weights / max(float(weights.max()), np.finfo(np.float64).tiny)
    levels, kind = np.unique(np.round(relative, 12), return_inverse=True)
    held = np.bincount(kind, counts, levels.size)
    levels, held = levels[held > 0], held[held > 0]
    if levels.size < 2:
        return 0.0
    found = math.inf
    for level in levels[np.argsort(-held)[:_SUBTRACTED]]:
        left = np.abs(levels - level)
        found = min(found, float((held @ left) ** 2 / (held @ left**2)))
    return found


def published(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings as a result keeps them: how each ended stays, what it measured gets fewer digits.

    Checks put what is one canary's on a grid themselves, because their text tells it too. Here are
    the digits of all others, and the p-values, which are decided upon before.
    """
    return tuple(
        replace(
            item,
            measured=None if item.measured is None else significant(item.measured),
            interval=None
            if item.interval is None
            else (significant(item.interval[0]), significant(item.interval[1])),
            p_value=None if item.p_value is None else coarse_chance(item.check, item.p_value),
            visible=None if item.visible is None else significant(item.visible),
        )
        for item in findings
    )


def publishable(summary: Summary) -> Summary:
    """The tables as a result keeps them.

    Args:
        summary: Everything that `summarise` counted.

    Returns:
        Tables of the same layout, without the seed, and coarser where few canaries stand behind a
        number.
    """
    return replace(
        summary,
        scores=None if summary.scores is None else _scores(summary.scores),
        noise=None if summary.noise is None else _noise(summary.noise),
        tensors=None if summary.tensors is None else _tensors(summary.tensors),
        gram=None if summary.gram is None else _gram(summary.gram),
    )


def _scores(scores: ScoreSummary) -> ScoreSummary:
    present, absent = scores.present.count, scores.absent.count
    fewest = min(present, absent)
    width = next(width for width, least in _MERGED if fewest >= least)
    empty = np.zeros(0)
    steps = scores.present_pit.size > 0 and fewest >= _FEWEST_FOR_STEPS
    return replace(
        scores,
        present_counts=_histogram(scores.present_counts, width),
        absent_counts=_histogram(scores.absent_counts, width),
        present_pit=_steps(scores.present_pit, present) if steps else empty,
        absent_pit=_steps(scores.absent_pit, absent) if steps else empty,
        density=_density(scores.density, present + absent) if scores.density.size else empty,
    )


def _histogram(counts: Array, width: int) -> Array:
    """Bins of at least this width that enough scores share, evenly; where nobody is stays empty."""
    coarse = _MERGED[-1][0]
    there = np.flatnonzero(counts.reshape(-1, coarse).sum(axis=1))
    if not there.size:
        return counts
    first, last = coarse * int(there[0]), coarse * (int(there[-1]) + 1)
    edges, held = [first], 0.0
    for place in range(first, last, width):
        held += counts[place : place + width].sum()
        if held >= _FEWEST_IN_CELL:
            edges, held = [*edges, place + width], 0.0
    if edges[-1] != last:
        # What is left at the end joins the cell before it.
        edges = [*edges[: max(1, len(edges) - 1)], last]
    shared = np.zeros_like(counts)
    for low, high in itertools.pairwise(edges):
        shared[low:high] = counts[low:high].mean()
    return shared


def _shared(counts: Array, width: int) -> Array:
    """Counts of at least so many neighbouring rows, spread evenly over them; their sum stays."""
    groups = max(1, len(counts) // width)
    group = np.arange(len(counts)) * groups // len(counts)
    totals = np.zeros((group[-1] + 1, counts.shape[1]))
    np.add.at(totals, group, counts)
    return np.asarray((totals / np.bincount(group)[:, None])[group])


def _steps(distance: Array, count: int) -> Array:
    """The distribution at points that enough scores lie between, straight lines in between."""
    every = math.ceil(PIT_POINTS * _FEWEST_IN_STEP / count)
    points = np.arange(PIT_POINTS)
    kept = np.unique(np.append(points[every // 2 :: every], (0, PIT_POINTS - 1)))
    # The outermost points hold the tails, where a step has few scores: there it is as if Gaussian.
    values = np.where((kept == 0) | (kept == PIT_POINTS - 1), 0.0, distance[kept])
    return np.asarray(np.interp(points, kept, values)) if every > 1 else distance


def _density(density: Array, total: int) -> Array:
    """The picture by index in columns that enough canaries share."""
    columns, rows = HEXAGONS
    width = min(columns, math.ceil(columns * _FEWEST_IN_COLUMN / total))
    border = (columns + 1) * (rows + 1)
    whole = density[:border].reshape(columns + 1, rows + 1)
    half = density[border:].reshape(columns, rows)
    return np.concatenate([_shared(whole, width).reshape(-1), _shared(half, width).reshape(-1)])


def _noise(noise: NoiseSummary) -> NoiseSummary:
    factor = to_its_error(noise.scale, noise.low, noise.high)
    return replace(
        noise, scale=noise.scale * factor, low=noise.low * factor, high=noise.high * factor
    )


def _tensors(tensors: TensorSummary) -> TensorSummary:
    factor = to_its_error(tensors.scale, tensors.low, tensors.high)
    return replace(
        tensors,
        scale=tensors.scale * factor,
        low=tensors.low * factor,
        high=tensors.high * factor,
        overall=float(f"{tensors.overall:.3g}"),
    )


def _gram(gram: GramSummary) -> GramSummary:
    return replace(gram, cosines=coarse_cosines(gram.cosines, gram.steps))
