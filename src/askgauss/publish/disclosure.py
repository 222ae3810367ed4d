"""Disclosure control: a result carries aggregates, with as few digits as are worth it.

Where the other records' sum is subtracted, a canary's score is its noise. An adversary with the
released weights and that score gets the private sum back, so a result that anybody may read holds
nothing of a single canary: no seed to find it by, no cell that few share, and of a measured scale
or correlation nothing finer than its own standard error. docs/threat-model.md has the argument,
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

from askgauss.auditors.subsampled_gaussian import told_tensors
from askgauss.checks.registry import published_p_value
from askgauss.figures.summary import (
    BINS,
    HEXAGONS,
    PIT_POINTS,
    GramSummary,
    NoiseSummary,
    ScoreSummary,
    Summary,
    TensorSummary,
    score_reach,
)
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import Finding
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats.rounding import (
    is_handful,
    round_cosines,
    rounding_factor,
    scale_on_grid,
    significant,
)

__all__ = ["publishable", "published", "reveals_individuals"]

Array = NDArray[np.float64]

# Bins of a histogram counted as one, from so many scores in the smaller group.
_MERGED = (1, 2000), (2, 300), (4, 0)
# Canaries that share a cell of a histogram, a step of the distribution, and a column of the picture
# by index.
_FEWEST_IN_CELL = 8
# Of few scores those of the most planted canaries stand by themselves at the end.
_FEWEST_IN_CELL_OF_FEW = 15
_MANY_SCORES = 100
_FEWEST_IN_STEP = 8
_FEWEST_FOR_STEPS = 50
_FEWEST_IN_COLUMN = 100
# How much of one canary's noise published sums may explain, as a share of its variance: .95 of its
# deviation is left to whoever knows the seed.
_MOST_LEVERAGE = 1.0 - 0.95**2
# Sums that differ by less than rounding are one.
_ROUNDING = 1e-12
_TINY = np.finfo(np.float64).tiny


def reveals_individuals(
    data: CanaryScores | Transcript | LinearTranscript, *, by_counts: bool = False
) -> bool:
    """Whether exact sums in a result of these data are those of a handful, or reveal one canary.

    Evidence holds the sums over present and over absent canaries, and over observations with and
    without a planting; where canaries or steps do not weigh the same, also sums with their weights.
    Whoever knows the seed regresses the noise of one canary on all of these: what they explain is
    its leverage, and the largest one counts.

    Args:
        data: What is audited. Where the background is not known, no sum is the noise alone.
        by_counts: Whether the result also holds sums weighted by how often each was planted.
    """
    if isinstance(data, LinearTranscript):
        data = data.scores()
    known = data.metadata if isinstance(data, CanaryScores) else data.facts
    if known.background != "known":
        return False
    member = data.member
    present = int(np.count_nonzero(member))
    groups = [present, member.size - present]
    if isinstance(data, CanaryScores):
        leverage = _of_scores(data)
    else:
        plantings = int(data.canaries.planted[member].sum())
        groups += [plantings, present * data.number_of_steps - plantings]
        leverage = max(_of_canaries(data, by_counts), _of_steps(data))
    return any(map(is_handful, groups)) or leverage > _MOST_LEVERAGE


def _of_scores(scores: CanaryScores) -> float:
    """The largest leverage of a score on the sums over its group, plain and by weight."""
    weight = scores.relative_shift
    if weight is None or not scores.member.any():
        return 0.0
    levels, count = np.unique(weight[scores.member], return_counts=True)
    rows = np.stack([np.ones(levels.size), levels / max(np.abs(levels).max(), _TINY)], axis=1)
    return float(_leverage(rows[:, None, :], count).max())


def _of_canaries(transcript: Transcript, by_counts: bool) -> float:
    """The largest leverage of a canary's noise on the sums over canaries.

    A canary has two noises that sums distinguish: over the steps it was planted in, and over all
    others. Canaries of one tensor and group that were planted as often are of one kind.
    """
    steps = transcript.number_of_steps
    tensor = np.zeros(transcript.member.size, dtype=np.int64)
    for index, group in enumerate(told_tensors(transcript), start=1):
        tensor[np.isin(transcript.tensor, group)] = index
    keys = np.stack([tensor, transcript.member, transcript.canaries.planted], axis=1)
    kinds, count = np.unique(keys, axis=0, return_counts=True)
    tensors = int(tensor.max(initial=0)) + 1
    planted = kinds[:, 2].astype(np.float64)
    place, present = np.arange(len(kinds)), int(np.count_nonzero(transcript.member))
    # The last sum has a noise of its own, which is nobody's: a kind at the end.
    rows = np.zeros((len(kinds) + 1, 2, 2 * tensors + 2))
    rows[place, 0, kinds[:, 0]] = 1.0  # plantings, by tensor
    rows[place, 1, tensors + kinds[:, 0]] = 1.0  # all other observations, by tensor
    rows[place, :, -2] = kinds[:, 1, None]  # scores of present canaries
    own = 0.0 if by_counts else _noise_in_variance(transcript, present)
    if math.isfinite(own):
        mean = planted @ (count * kinds[:, 1]) / max(present, 1)
        rows[place, :, -1] = (kinds[:, 1] * (planted - mean))[:, None]
        rows[-1, 0, -1] = own
    rows[:-1] *= np.sqrt(np.stack([planted, steps - planted], axis=1).clip(0.0))[:, :, None]
    return float(_leverage(rows, np.append(count, 1))[:-1].max())


def _noise_in_variance(transcript: Transcript, present: int) -> float:
    """How much squares of noise blur what the variance of present scores reveals of single ones.

    How often each was planted moves its score, so that the variance weighs the noise of those that
    were planted often. It is published as coarsely as its error, and counted here as if exactly.

    Returns:
        The deviation of the blur in units of the noise, where canaries weigh as many plantings as
        they have more than the mean; infinity where nothing is measured.
    """
    sums, steps = transcript.canaries, transcript.number_of_steps
    plantings = max(int(sums.planted.sum()), 1)
    others = max(sums.total.size * steps - plantings, 1)
    planted_total = float(sums.planted_total.sum())
    other_total = float(sums.total.sum()) - planted_total
    other_square = float(sums.square.sum() - sums.planted_square.sum())
    signal = planted_total / plantings - other_total / others
    mean = other_total / others
    variance = other_square / others - mean * mean  # a power of a large number would raise
    if not (signal > 0.0 and variance >= 0.0):
        return math.inf
    return math.sqrt(0.5 * present * variance) * steps / signal


def _of_steps(transcript: Transcript) -> float:
    """The most that plantings of one canary may explain of sums in which steps weigh differently.

    Who was planted when is not kept by canary: no canary has more than the steps that reveal most.
    """
    unit, held = transcript.schedule, transcript.steps.planted.sum(axis=1)
    most = int(transcript.canaries.planted.max(initial=0))
    if (unit == 1.0).all() or not most:
        return 0.0
    unit, held = unit[held > 0], held[held > 0]
    # Plantings as they are, and by the inverse square of the noise; in units of the noise.
    rows = np.stack([unit / unit.max(), unit.min() / unit], axis=1)
    return float(np.sort(_leverage(rows[:, None, :], held))[-most:].sum())


def _leverage(rows: Array, count: NDArray[Any]) -> Array:
    """How much of the noise of one of each kind the sums explain, in the direction they do most.

    Args:
        rows: By kind, by noise of that kind with deviation one: what it counts in every sum.
        count: How many there are of each kind.
    """
    flat = (rows * np.sqrt(count)[:, None, None]).reshape(-1, rows.shape[-1])
    size, basis = np.linalg.eigh(flat.T @ flat)
    known = size > _ROUNDING * size.max()
    found = rows @ (basis[:, known] / np.sqrt(size[known]))
    return np.asarray(np.linalg.eigvalsh(found @ found.transpose(0, 2, 1))[:, -1])


def published(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings as a result keeps them: how each ended stays, what it measured gets fewer digits.

    Checks round what is one canary's themselves, because their summary says it too. Here are the
    digits of all others, and the p-values, which the gate has read before.
    """
    return tuple(
        replace(
            item,
            measured=None if item.measured is None else significant(item.measured),
            interval=None
            if item.interval is None
            else (significant(item.interval[0]), significant(item.interval[1])),
            p_value=published_p_value(item),
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
        present=_moments(scores.present),
        absent=_moments(scores.absent),
        present_counts=_histogram(scores.present_counts, width, *_bins(scores, scores.present)),
        absent_counts=_histogram(scores.absent_counts, width, *_bins(scores, scores.absent)),
        present_pit=_steps(scores.present_pit, present) if steps else empty,
        absent_pit=_steps(scores.absent_pit, absent) if steps else empty,
        density=_density(scores.density, present + absent)
        if scores.density.size and present + absent >= 2 * _FEWEST_IN_COLUMN
        else empty,
    )


def _moments(moments: GroupMoments) -> GroupMoments:
    """A mean, and a variance no finer than its error.

    Present scores vary by how often each canary was planted, so that their exact variance would be
    one more sum in which the most planted canary weighs most.
    """
    deviation = scale_on_grid(moments.standard_deviation, moments.count - 1.0)
    return replace(moments, sum_of_squares=deviation**2 * (moments.count - 1))


def _bins(scores: ScoreSummary, moments: GroupMoments) -> tuple[int, int]:
    """Between which bins a group is drawn: as far as its moments say that it reaches."""
    widest = _MERGED[-1][0]
    blocks = np.array(score_reach(moments)) - scores.low
    blocks *= BINS / widest / (scores.high - scores.low)
    first, last = math.floor(blocks[0]), math.ceil(blocks[1])
    last = min(max(last, 1), BINS // widest)
    return widest * min(max(first, 0), last - 1), widest * last


def _histogram(counts: Array, width: int, first: int, last: int) -> Array:
    """Bins of at least this width that enough scores share, evenly; what is outside at the ends."""
    counts = counts.copy()
    for inside, outside in ((first, slice(0, first)), (last - 1, slice(last, None))):
        counts[inside] += counts[outside].sum()
        counts[outside] = 0.0
    edges, held = [first], 0.0
    few = counts.sum() < _MANY_SCORES
    shared_by = _FEWEST_IN_CELL_OF_FEW if few else _FEWEST_IN_CELL
    for place in range(first, last, width):
        held += counts[place : place + width].sum()
        if held >= shared_by:
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
    factor = rounding_factor(noise.scale, noise.low, noise.high)
    return replace(
        noise, scale=noise.scale * factor, low=noise.low * factor, high=noise.high * factor
    )


def _tensors(tensors: TensorSummary) -> TensorSummary:
    factor = rounding_factor(tensors.scale, tensors.low, tensors.high)
    return replace(
        tensors,
        scale=tensors.scale * factor,
        low=tensors.low * factor,
        high=tensors.high * factor,
        overall=float(f"{tensors.overall:.3g}"),
    )


def _gram(gram: GramSummary) -> GramSummary:
    return replace(gram, cosines=round_cosines(gram.cosines, gram.steps))
