"""Checks that noise is fresh in every step and coordinate, and the tests of noise against noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, ndtr, ndtri, stdtr

from askgauss.checks.context import (
    NOTICED,
    Context,
    NoisyRun,
    around,
    known,
    noise,
    orthogonal,
    unit_sums,
)
from askgauss.checks.noise_reuse import (
    ComparedNoise,
    compared_by_content,
    found_again,
    repeated_exactly,
)
from askgauss.checks.registry import NOISE_FRESHNESS, SUSPICIOUS, check, judged, not_run
from askgauss.checks.tails import correlation_tail, ratio_p_value, share_p_values, skewed_tail
from askgauss.recording.transcript import PieceSums
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats.rounding import round_cosine, round_deviations

__all__ = [
    "CORRELATION_CHECKS",
    "FEWEST_TO_COMPARE",
    "NodeCorrelation",
    "certainly_used_twice",
    "exactly_repeated",
    "most_similar",
    "node_correlations",
    "repeated_noise",
    "returning",
    "same_noise",
    "shared_noise",
    "squared_cosines_p_value",
]

_FEWEST_STEPS = 10
_FEWEST_COLUMNS = 16
_FEWEST_STEP_PAIRS = 1000
_FEWEST_CANARIES = 20
# The p-value of noise that is used twice, whatever else was tested.
_CERTAIN = 1e-9
# So much of a step along all before it, and its noise is made of theirs.
_MADE_OF_EARLIER = 0.5
FEWEST_TO_COMPARE = 32
"""Coordinates at which two noises can be compared."""
# Squares are compared as normal quantiles, none of them further out than this; the scale they are
# compared with is their own, which matters where there are fewer steps.
_FURTHEST = 6.0
_FEWEST_STEPS_TO_SCALE = 64
# Two noises that correlate this much are one noise, with something added.
_SAME_NOISE = 0.7
# Rows that are all compared with each other; of more, so many pairs are.
_COMPARED_ROWS = 4096
_FEWEST_COMPARED = 64
# Rows whose squared cosines are added up, at most.
_ADDED_UP = 512
# Distances at which a series is compared with itself, and the fewest pairs that say anything.
_LAGS = 512
_FEWEST_PAIRS = 8


@check(
    "repeated noise",
    part=NOISE_FRESHNESS,
    decides=True,
    explains="serial correlation, whole-run correlation, noise spectrum, shared noise, common "
    "noise, noise sums across steps, noise by coordinate, noise extremes, noise scale, "
    "noise shape, values without noise, even contribution, carry-over",
    reveals_individual=True,
    after_resume=True,
)
def repeated_noise(run: NoisyRun) -> Finding | None:
    """Whether the noise of one step or node comes back in another, near or far."""
    rows = run.rows
    if repeated_exactly(run.facts.reuse):
        return None
    if rows.shape[0] < 2 or rows.shape[1] < FEWEST_TO_COMPARE:
        return not_run(
            f"two {run.unit}s of {FEWEST_TO_COMPARE} coordinates without an included canary"
        )
    if run.dependent:
        return not_run(run.dependent)
    found = most_similar(rows)
    if found is None:
        return not_run(f"noise in two {run.unit}s")
    correlation, first, second, p_value = found
    rounded, said = round_cosine(correlation, rows.shape[1], errors=1.0)
    return judged(
        p_value,
        f"the most similar noise of two {run.unit}s ({run.place(first)} and {run.place(second)}) "
        f"correlates by {said}.",
        consequence=same_noise(correlation),
        measured=rounded,
        claimed=_no_correlation(run),
        remedy=f"Draw fresh noise for every {run.unit}: save and restore the generator's state "
        "with the checkpoint, and never seed it inside the loop. Noise that is used twice cancels "
        "out of a difference.",
        undermines=run.undermines,
    )


def _no_correlation(run: NoisyRun) -> float | None:
    """What the largest correlation is compared with; of steps it is one of very many."""
    return None if isinstance(run, Context) else 0.0


@repeated_noise.variant
def exactly_repeated(compared: ComparedNoise) -> Finding | None:
    """The same where all noise was compared by content: then it needs no statistics."""
    reuse = compared.reuse
    if reuse.coarse or not reuse.kept or not repeated_exactly(reuse):
        return None
    return found_again(compared)


def certainly_used_twice(findings: Iterable[Finding]) -> bool:
    """Whether noise is used twice at the same coordinates, or in one step, beyond any gate."""
    names = repeated_noise.name, shared_noise.name
    return any(
        item.check in names and item.p_value is not None and item.p_value < _CERTAIN
        for item in findings
    )


@check(
    "shared noise",
    part=NOISE_FRESHNESS,
    explains="duplicate scores, noise by step, common noise, noise extremes, noise shape",
    reveals_individual=True,
    after_resume=True,
)
def shared_noise(run: NoisyRun) -> Finding:
    """Whether two coordinates get the same noise, or all of them a little of it."""
    rows = run.rows
    if rows.shape[1] < 2 or rows.shape[0] < _FEWEST_STEPS:
        return not_run(f"{_FEWEST_STEPS} {run.unit}s of two coordinates without an included canary")
    if run.dependent:
        return not_run(run.dependent)
    columns = np.ascontiguousarray(rows.T)
    found = most_similar(columns)
    if found is None:
        return not_run("noise in two coordinates")
    correlation, first, second, p_value = found
    # One pair of canaries: nearly orthogonal ones are not distinguished from orthogonal ones.
    rounded, said = round_cosine(correlation, rows.shape[0])
    summary = (
        f"the noise of the two most similar coordinates{run.coordinates(first, second)} "
        f"correlates by {said}."
    )
    wrong, consequence = "", same_noise(correlation)
    if run.exact:
        ratio, among_all = squared_cosines_p_value(columns)
        if among_all < SUSPICIOUS:
            # Steps that differ in scale make squares alike: that is no noise in common.
            even = columns / np.sqrt((columns**2).mean(axis=0) + np.finfo(float).tiny)
            ratio, among_all = max(
                (ratio, among_all), squared_cosines_p_value(even), key=lambda item: item[1]
            )
        if among_all < min(p_value, SUSPICIOUS):
            summary = (
                f"squared correlations of coordinates are {ratio:.2f} times what is expected by "
                "chance."
            )
            wrong, consequence = "They have part of their noise in common.", Consequence.INVALIDATES
        p_value = min(1.0, 2.0 * min(p_value, among_all))
    return judged(
        p_value,
        summary,
        if_wrong=wrong,
        consequence=consequence,
        measured=rounded,
        claimed=_no_correlation(run),
        remedy="Draw independent noise for every coordinate: split the random key between tensors, "
        "or let them share one generator.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


@check("common noise", part=NOISE_FRESHNESS, reveals_individual=True, needs=(orthogonal, noise))
def common_noise(context: Context) -> Finding:
    """Whether all coordinates of a step share an offset beside their noise."""
    use, offsets = _offsets(context)
    if not use.any():
        return not_run("two coordinates without an included canary in a step")
    furthest = float(offsets[np.argmax(np.abs(offsets))])
    # The offsets are a part of the squares that they are compared with.
    freedom, taken = context.even.freedom, float(offsets.size)
    share = np.array([float(offsets @ offsets) / freedom]), np.array([taken])
    tests = [
        2.0 * taken * correlation_tail(abs(furthest) / math.sqrt(freedom), freedom),
        2.0 * float(min(part[0] for part in share_p_values(*share, freedom))),
    ]
    ratio = float((offsets**2).mean())
    return judged(
        min(1.0, 2.0 * min(tests)),
        f"the variance of sums over all coordinates is {ratio:.3f} times what their noise "
        f"explains; the most extreme lies at about {round_deviations(abs(furthest)):.1f} standard "
        "deviations.",
        consequence=Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy="Draw independent noise for every coordinate, and check that the background that "
        "was subtracted is the right one.",
        undermines=Assumption.INDEPENDENT_CANARIES,
        sees=f"{NOTICED * math.sqrt(2.0 / taken) / float(context.others[use].mean()):.2g} of the "
        "noise variance in common",
    )


def _offsets(context: Context) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Steps with two coordinates to add up, and the sums over all of them: standard normal."""
    use = context.others >= 2
    unit = context.schedule[use] * np.sqrt(context.others[use]) * context.even.scale
    return use, np.asarray(context.transcript.steps.total.sum(axis=1)[use] / unit)


@check("noise sums across steps", part=NOISE_FRESHNESS, after_resume=True)
def noise_sums_across_steps(context: Context) -> Finding | None:
    """Whether noise comes back later at other coordinates, as where random streams overlap.

    No coordinate shows it, but the sums over all of them do, and those of squares where signs
    change. Not needed where all noise was compared with itself by content.
    """
    if compared_by_content(context.facts.reuse):
        return None
    if missing := orthogonal(context) or noise(context):
        return not_run(missing)
    use, offsets = _offsets(context)
    series = [offsets]
    if offsets.size >= _FEWEST_STEPS_TO_SCALE:
        squares = (context.squares / context.schedule**2)[use] / context.even.scale**2
        sizes = ndtri(chdtr(context.others[use], squares))
        series.append(np.clip(sizes, -_FURTHEST, _FURTHEST))
    found = [item for item in map(returning, series) if item is not None]
    if not found:
        return not_run(f"{_FEWEST_STEPS} steps")
    correlation, lag, p_value = min(found, key=lambda item: item[2])
    return judged(
        min(1.0, len(found) * p_value),
        f"of all lags, sums over the coordinates correlate most at {lag} steps: "
        f"{correlation:+.3f}.",
        consequence=same_noise(correlation),
        measured=correlation,
        claimed=0.0,
        remedy="Advance the generator's counter by at least as many numbers as a step draws: noise "
        "is used again at other coordinates.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"{min(1.0, NOTICED * math.sqrt(2.0 / offsets.size)):.0%} of a step's noise reused "
        "elsewhere",
    )


@check(
    "serial correlation",
    part=NOISE_FRESHNESS,
    decides=True,
    explains="whole-run correlation, noise spectrum, noise sums across steps",
    after_resume=True,
)
def serial_correlation(context: Context) -> Finding:
    """Whether the noise of a step correlates with that of the next."""
    transcript = context.transcript
    absent, steps = ~transcript.member, transcript.number_of_steps
    pairs = int(np.count_nonzero(absent)) * (steps - 1)
    if pairs < _FEWEST_STEP_PAIRS:
        return not_run(f"{_FEWEST_STEP_PAIRS:,} pairs of neighbouring steps of held-out canaries")
    if missing := known(context) or noise(context) or unit_sums(context):
        return not_run(missing)
    assert context.by_canary is not None
    square = float(context.by_canary[2][absent].sum())
    correlation = float(transcript.canaries.lag[absent].sum()) / square * steps / (steps - 1)
    return judged(
        min(1.0, 2.0 * correlation_tail(abs(correlation), pairs)),
        f"the noise of neighbouring steps correlates by {correlation:+.4f}.",
        consequence=Consequence.BREACH if correlation > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="Look for a generator that is seeded again, or a buffer that is reused: noise must "
        "be fresh in every step.",
        tolerable=abs(correlation) < 0.002,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a correlation of {max(NOTICED / math.sqrt(pairs), 0.002):.2g} between neighbouring "
        "steps",
        visible=NOTICED / math.sqrt(pairs),
    )


@check(
    "whole-run correlation",
    part=NOISE_FRESHNESS,
    explains="noise spectrum, equal variance",
    reveals_individual=True,
    needs=(orthogonal, noise, unit_sums),
    after_resume=True,
)
def whole_run_correlation(context: Context) -> Finding:
    """Whether noise adds up over the run as independent noise does, and every step's is new.

    The sum over all steps varies as the steps do if, and only if, the correlations at all lags
    cancel; and every step is compared with the sum of all before it, which gives one independent
    statistic for each.
    """
    by_canary = context.by_canary
    assert by_canary is not None
    use = by_canary[0] >= 2
    count, total, square = (part[use] for part in by_canary)
    if count.size < _FEWEST_CANARIES:
        return not_run(f"{_FEWEST_CANARIES} canaries")
    freedom = float(count.size)
    share = float((total**2 / count).sum()) / float(square.sum())
    sums = np.array([share]), np.array([freedom])
    tests = [2.0 * float(min(part[0] for part in share_p_values(*sums, float(count.sum()))))]
    ratio = share * float(count.sum()) / freedom
    carried = context.transcript.steps.carried
    steps = np.flatnonzero(np.isfinite(carried))
    scale, step, furthest = context.even.scale, 0, 0.0
    if steps.size:
        draws = carried[steps] / scale
        furthest = float(draws[np.argmax(np.abs(draws))])
        step = int(steps[np.argmax(np.abs(draws))]) + 1
        degrees = context.even.freedom
        tests += [
            2.0 * steps.size * float(stdtr(degrees, -abs(furthest))),
            2.0 * float(stdtr(degrees, -abs(float(draws.sum())) / math.sqrt(steps.size))),
            ratio_p_value(float((draws**2).mean()), steps.size, degrees),
        ]
    p_value = min(1.0, len(tests) * min(tests))
    summary = (
        f"the variance of the run's summed noise is {ratio:.3f} times that of independent steps."
    )
    reused = False
    if len(tests) > 1 and tests[1] < min(SUSPICIOUS, tests[0]):
        along = furthest / math.sqrt(context.others[step - 1])
        reused = abs(along) > _MADE_OF_EARLIER
        summary = (
            f"the noise of step {step} correlates by {along:+.2f} with the sum of all before it."
        )
    return judged(
        p_value,
        summary,
        consequence=Consequence.BREACH if reused else Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy="Look for noise that is subtracted again, drawn to cancel, or correlated by design "
        "(DP-FTRL), which needs another accountant: here noise must be fresh in every step.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"summed noise whose variance is {NOTICED * math.sqrt(2.0 / freedom):.1%} off",
    )


@check("noise spectrum", part=NOISE_FRESHNESS, needs=(orthogonal,))
def noise_spectrum(context: Context) -> Finding:
    """Whether noise has the same power at all frequencies: no correlation at any lag."""
    values = context.scaled_rows
    if values is None or values.shape[0] < _FEWEST_STEPS or values.shape[1] < _FEWEST_COLUMNS:
        return not_run(
            f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates without an included canary"
        )
    from scipy.fft import dct

    # An orthogonal transform: of independent Gaussian noise it is the same again.
    power = (dct(values, axis=0, norm="ortho") ** 2).sum(axis=1)
    columns, whole = float(values.shape[1]), float(power.sum())
    steps = power.size
    every = share_p_values(power / whole, np.full(steps, columns), columns * steps)
    lone = 2.0 * steps * float(min(part.min() for part in every))
    edges = np.unique(np.minimum(2 ** np.arange(1, steps.bit_length() + 1), steps) // 2)
    widths = np.diff([*edges, steps])
    bands = np.add.reduceat(power, edges)
    banded = share_p_values(bands / whole, columns * widths, columns * steps)
    in_band = 2.0 * edges.size * float(min(part.min() for part in banded))
    ratio = bands / widths / (whole / steps)
    worst = int(np.argmin(np.minimum(*banded)))
    peak = int(np.argmax(np.abs(np.log(np.maximum(power, 1e-300 * whole) * steps / whole))))
    summary = (
        f"the noise power in the band of {_periods(int(edges[worst]), int(widths[worst]), steps)} "
        f"is {ratio[worst]:.3f} times the average."
    )
    if lone < in_band:
        summary = (
            f"the noise power at the period of {2.0 * steps / max(peak, 1):.3g} steps is "
            f"{power[peak] * steps / whole:.2f} times the average."
        )
    return judged(
        min(1.0, 2.0 * min(lone, in_band)),
        summary,
        consequence=Consequence.INVALIDATES,
        measured=float(ratio[worst]),
        claimed=1.0,
        remedy="Look for noise that comes back, is subtracted again, or is filtered: noise must be "
        "fresh in every step.",
        tolerable=float(np.abs(ratio - 1.0).max()) < 0.01 and lone > SUSPICIOUS,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _periods(first: int, width: int, steps: int) -> str:
    """A band of frequencies by its periods, in steps."""
    short = 2.0 * steps / (first + width)
    return (
        f"periods of {short:.3g} steps or more"
        if first == 0
        else (f"periods of {short:.3g} to {2.0 * steps / first:.3g} steps")
    )


CORRELATION_CHECKS = (
    repeated_noise,
    shared_noise,
    common_noise,
    noise_sums_across_steps,
    serial_correlation,
    whole_run_correlation,
    noise_spectrum,
)
"""Checks of noise against other noise; those that name a cause come first."""


# --- tests of noise against noise -----------------------------------------------------------------


def same_noise(correlation: float) -> Consequence:
    """What it means that two noises correlate this much."""
    return Consequence.BREACH if abs(correlation) > _SAME_NOISE else Consequence.INVALIDATES


def most_similar(rows: NDArray[np.float64]) -> tuple[float, int, int, float] | None:
    """The most correlated pair of rows, its places, and the p-value among all pairs.

    Of very many rows, evenly spaced ones are compared with all: noise that starts over repeats in
    a great many of them.
    """
    norms = np.sqrt((rows**2).sum(axis=1))
    alive = np.flatnonzero(norms > 0.0)
    if alive.size < 2:
        return None
    unit = (rows[alive] / norms[alive, None]).astype(np.float32)
    compared = max(_COMPARED_ROWS**2 // max(alive.size, _COMPARED_ROWS), _FEWEST_COMPARED)
    chosen = np.arange(0, alive.size, -(-alive.size // compared))
    whole = chosen.size == alive.size
    best, place, block = 0.0, (0, 1), 1024
    for start in range(0, chosen.size, block):
        these = chosen[start : start + block]
        left = unit[these]
        # Among all rows, every pair need be looked at once only.
        for other in range(start if whole else 0, alive.size, block):
            gram = left @ unit[other : other + block].T
            itself = these - other
            inside = np.flatnonzero((itself >= 0) & (itself < gram.shape[1]))
            gram[inside, itself[inside]] = 0.0
            for flat in (int(np.argmax(gram)), int(np.argmin(gram))):
                row, column = divmod(flat, gram.shape[1])
                if abs(gram[row, column]) > abs(best):
                    best, place = float(gram[row, column]), (int(these[row]), other + column)
    pairs = chosen.size * (alive.size - (chosen.size + 1) / 2)
    best = min(max(best, -1.0), 1.0)  # single precision may overshoot
    first, second = sorted(int(alive[index]) for index in place)
    p_value = min(1.0, 2.0 * pairs * correlation_tail(abs(best), rows.shape[1]))
    return best, first, second, p_value


def squared_cosines_p_value(rows: NDArray[np.float64]) -> tuple[float, float]:
    """The mean squared cosine of all pairs of rows over what chance gives, and its p-value.

    Where every row has a little in common with all others no pair stands out, but their sum does.
    Cosines of independent directions in d dimensions are independent pair by pair, with squares of
    mean 1/d and variance 2 (d - 1) / (d^2 (d + 2)); three of them around a triangle are not, which
    gives the sum its skewness, 4/d for many rows.
    """
    norms = np.sqrt((rows**2).sum(axis=1))
    alive = rows[norms > 0.0] / norms[norms > 0.0, None]
    alive = alive[:: -(-len(alive) // _ADDED_UP)] if len(alive) else alive
    count, dimension = len(alive), rows.shape[1]
    if count < 2 or dimension < 2:
        return 1.0, 1.0
    gram = alive @ alive.T if count <= dimension else alive.T @ alive
    pairs = 0.5 * count * (count - 1.0)
    total = 0.5 * (float((gram**2).sum()) - count)
    d = float(dimension)
    variance = 2.0 * (d - 1.0) / (d * d * (d + 2.0))
    fourth, sixth = 3.0 / (d * (d + 2.0)), 15.0 / (d * (d + 2.0) * (d + 4.0))
    single = sixth - 3.0 * fourth / d + 2.0 / d**3
    triangle = 4.0 * (d - 1.0) / (d**3 * (d + 2.0) ** 2)
    third = pairs * single + 2.0 * pairs * (count - 2.0) * triangle
    deviation = math.sqrt(pairs * variance)
    score = (total - pairs / d) / deviation
    return total * d / pairs, skewed_tail(score, third / deviation**3)


def returning(series: NDArray[np.float64]) -> tuple[float, int, float] | None:
    """How much a series correlates with itself at the worst distance, which, and the p-value.

    Sums over all coordinates show where noise is used again even if it comes back in other places.
    At every distance the pairs fall into two sets in which no value occurs twice. In each of them
    the correlation of independent Gaussian values of mean zero has its exact distribution.

    Returns:
        Correlation, distance and p-value among all distances; None where there are too few values.
    """
    count, worst = series.size, (0.0, 1, 1.0)
    lags = min(count - _FEWEST_PAIRS, count // 2, _LAGS)
    if lags < 1:
        return None
    for lag in range(1, lags + 1):
        first = np.arange(count - lag)
        odd = first // lag % 2 == 1
        for chosen in (first[~odd], first[odd]):
            one, other = series[chosen], series[chosen + lag]
            norm = math.sqrt(float(one @ one) * float(other @ other))
            if chosen.size < _FEWEST_PAIRS or norm == 0.0:
                continue
            correlation = min(max(float(one @ other) / norm, -1.0), 1.0)
            p_value = 2.0 * correlation_tail(abs(correlation), chosen.size)
            if p_value < worst[2]:
                worst = correlation, lag, p_value
    return worst[0], worst[1], min(1.0, 2.0 * lags * worst[2])


@dataclass(frozen=True, slots=True)
class NodeCorrelation:
    """How much the noises of some nodes correlate.

    Attributes:
        between: Which nodes, in words.
        correlation: How much their noises correlate.
        p_value: Of "not at all", two-sided.
    """

    between: str
    correlation: float
    p_value: float


def node_correlations(pieces: PieceSums, rows: NDArray[np.float64]) -> list[NodeCorrelation]:
    """Every kind of correlation that the noises of related nodes may have.

    Args:
        pieces: The nodes.
        rows: Their noise, one row a node and one column a coordinate.
    """
    found = [_pooled(between, rows, pairs) for between, pairs in _pairs(pieces) if len(pairs)]
    levels = [("all nodes together", np.ones(len(rows), dtype=np.bool_))]
    levels.append(("all leaves together", pieces.level == 0))
    for between, chosen in levels:
        if np.count_nonzero(chosen) >= 2 and rows[chosen].any():
            found.append(_of_the_sum(between, rows[chosen]))
    if len(rows) >= 2:
        found.append(_with_those_before(rows))
    # Noise that comes back at other coordinates shows in the sums over all of them.
    if (again := returning(pieces.total)) is not None:
        correlation, lag, p_value = again
        found.append(
            NodeCorrelation(f"sums over all coordinates, {lag} nodes apart,", correlation, p_value)
        )
    return found


def _pairs(pieces: PieceSums) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Rows of nodes that are related, by how they are."""
    nodes = zip(pieces.tree.tolist(), pieces.level.tolist(), pieces.index.tolist(), strict=True)
    place = {node: row for row, node in enumerate(nodes)}
    parents = [
        (row, place[number, level + 1, index >> 1])
        for (number, level, index), row in place.items()
        if (number, level + 1, index >> 1) in place
    ]
    siblings = [
        (row, place[number, level, index ^ 1])
        for (number, level, index), row in place.items()
        if index % 2 == 0 and (number, level, index ^ 1) in place
    ]
    order = sorted(place)
    neighbours = [
        (place[one], place[other])
        for one, other in itertools.pairwise(order)
        if one[:2] == other[:2] and (one[2] ^ other[2]) != 1
    ]
    for between, pairs in (
        ("nodes and their parents", parents),
        ("siblings", siblings),
        ("neighbours in a level", neighbours),
    ):
        yield between, np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _pooled(between: str, rows: NDArray[np.float64], pairs: NDArray[np.int64]) -> NodeCorrelation:
    """The correlation over all pairs of a kind; each product has mean zero."""
    one, other = rows[pairs[:, 0]].ravel(), rows[pairs[:, 1]].ravel()
    norm = math.sqrt(float(one @ one)) * math.sqrt(float(other @ other))
    correlation = float(one @ other) / norm if norm else 0.0
    # A Gaussian tail: above that of correlations of few pairs.
    return NodeCorrelation(
        between, correlation, 2.0 * float(ndtr(-abs(correlation) * math.sqrt(one.size)))
    )


def _of_the_sum(between: str, rows: NDArray[np.float64]) -> NodeCorrelation:
    """The variance of sums over the nodes against that of single ones, as a correlation.

    The sum and what is left of the nodes without their mean are independent, and so the ratio of
    their variances is distributed as F exactly.
    """
    nodes, columns = rows.shape
    total = rows.sum(axis=0)
    of_sum = float(total @ total) / nodes
    rest = float((rows**2).sum()) - of_sum
    freedom = columns, (nodes - 1) * columns
    ratio = (of_sum / freedom[0]) / (rest / freedom[1]) if rest > 0.0 else math.inf
    # With equal correlations among the nodes the sum varies 1 + (n - 1) correlation times as much.
    mean_square = (of_sum + rest) / (nodes * columns)
    correlation = (of_sum / columns / mean_square - 1.0) / (nodes - 1)
    return NodeCorrelation(
        between, correlation, ratio_p_value(ratio, *freedom) if rest > 0.0 else 0.0
    )


def _with_those_before(rows: NDArray[np.float64]) -> NodeCorrelation:
    """The node that says most about the sum of all that were released before it."""
    before = np.cumsum(rows, axis=0)[:-1]
    after = rows[1:]
    norms = np.sqrt((before**2).sum(axis=1)) * np.sqrt((after**2).sum(axis=1))
    products = np.einsum("ij,ij->i", before, after)
    correlations = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0.0)
    worst = int(np.argmax(np.abs(correlations)))
    correlation = min(max(float(correlations[worst]), -1.0), 1.0)
    p_value = 2.0 * correlations.size * correlation_tail(abs(correlation), rows.shape[1])
    return NodeCorrelation("a node and the sum of all before it", correlation, min(1.0, p_value))
