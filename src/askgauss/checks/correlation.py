"""Checks that noise is fresh: of its own in every step, and in every coordinate."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, ndtri, stdtr

from askgauss.checks.context import NOTICED, Context, around
from askgauss.checks.findings import SUSPICIOUS, judged, not_run
from askgauss.checks.noise_reuse import compared_by_content, repeated_exactly
from askgauss.checks.pairwise_similarity import (
    most_alike,
    returning,
    same_noise,
    squared_cosines_p_value,
)
from askgauss.checks.rounding_to_error import coarse_cosine, coarse_deviations
from askgauss.checks.tails import (
    correlation_tail,
    ratio_p_value,
    share_p_values,
)
from askgauss.results import Assumption, Consequence, Finding

__all__ = ["correlation_checks"]

_FEWEST_STEPS = 10
_FEWEST_COLUMNS = 16
_FEWEST_COLUMNS_TO_COMPARE = 32
_FEWEST_PAIRS = 1000
_FEWEST_CANARIES = 20
# So much of a step along all before it, and its noise is made of theirs.
_MADE_OF_EARLIER = 0.5
# What to add to the largest of very many correlations, which is never near zero.
_LARGEST = ", as the largest of so many may by chance."
# Squares are compared as normal quantiles, none of them further out than this; the scale they are
# held against is their own, which matters where there are fewer steps.
_FURTHEST = 6.0
_FEWEST_STEPS_TO_SCALE = 64


def correlation_checks(context: Context) -> Iterator[Finding]:
    """Every check of noise against other noise; those that name a cause come first."""
    if not repeated_exactly(context.facts.reuse):
        yield _repeated(context)
    yield _shared(context)
    yield _common(context)
    if not compared_by_content(context.facts.reuse):
        yield _returning(context)
    yield _serial(context)
    yield _whole_run(context)
    yield _spectrum(context)


def _serial(context: Context) -> Finding:
    name, transcript = "serial correlation", context.transcript
    absent, steps = ~transcript.member, transcript.number_of_steps
    pairs = int(np.count_nonzero(absent)) * (steps - 1)
    if pairs < _FEWEST_PAIRS:
        return not_run(name, f"{_FEWEST_PAIRS:,} pairs of neighbouring steps of absent canaries")
    if not context.known:
        return not_run(name, "a known background: other records correlate from step to step")
    if context.noise.square == 0.0:
        return not_run(name, "noise")
    if context.by_canary is None:
        return not_run(name, "sums of every canary in units of the declared noise")
    square = float(context.by_canary[2][absent].sum())
    correlation = float(transcript.canaries.lag[absent].sum()) / square * steps / (steps - 1)
    return judged(
        name,
        min(1.0, 2.0 * correlation_tail(abs(correlation), pairs)),
        f"neighbouring steps' noise correlates by {correlation:+.4f}.",
        if_fine=", as it may by chance.",
        consequence=Consequence.BREACH if correlation > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="Noise must be fresh in every step: look for a generator that is seeded anew, or a "
        "buffer that is used again.",
        tolerable=abs(correlation) < 0.002,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a correlation of {max(NOTICED / math.sqrt(pairs), 0.002):.2g} of neighbouring steps",
        visible=NOTICED / math.sqrt(pairs),
    )


def _whole_run(context: Context) -> Finding:
    """Whether noise adds up over the run as independent noise does, and every step's is new.

    The sum over all steps varies as the steps do if, and only if, the correlations at all lags
    cancel; and every step is held against the sum of all before it, which makes a draw of the noise
    of its own out of each.
    """
    name, by_canary = "whole-run correlation", context.by_canary
    if not context.exact:
        return not_run(name, "a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run(name, "noise")
    if by_canary is None:
        return not_run(name, "sums of every canary in units of the declared noise")
    use = by_canary[0] >= 2
    count, total, square = (part[use] for part in by_canary)
    if count.size < _FEWEST_CANARIES:
        return not_run(name, f"{_FEWEST_CANARIES} canaries")
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
    summary = f"the noise of the run's sum varies {ratio:.3f} times as its steps' explain."
    reused = False
    if len(tests) > 1 and tests[1] < min(SUSPICIOUS, tests[0]):
        along = furthest / math.sqrt(context.others[step - 1])
        reused = abs(along) > _MADE_OF_EARLIER
        summary = f"the noise of step {step} correlates by {along:+.2f} with the sum of all before."
    return judged(
        name,
        p_value,
        summary,
        consequence=Consequence.BREACH if reused else Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy="Noise must be fresh in every step: look for noise that is subtracted again, drawn "
        "to cancel, or correlated by design (DP-FTRL), which another accountant must cover.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a variance of the run's sum {NOTICED * math.sqrt(2.0 / freedom):.1%} off",
    )


def _spectrum(context: Context) -> Finding:
    """Whether noise has the same power at all frequencies: no correlation at any lag."""
    name, values = "noise spectrum", context.quiet_by_tensor
    if not context.exact:
        return not_run(name, "a known background and canaries that are orthogonal by construction")
    if values is None or values.shape[0] < _FEWEST_STEPS or values.shape[1] < _FEWEST_COLUMNS:
        return not_run(
            name, f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates that are never planted"
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
        f"power in the band of {_periods(int(edges[worst]), int(widths[worst]), steps)} is "
        f"{ratio[worst]:.3f} times the average."
    )
    if lone < in_band:
        summary = (
            f"power at the period of {2.0 * steps / max(peak, 1):.3g} steps is "
            f"{power[peak] * steps / whole:.2f} times the average."
        )
    return judged(
        name,
        min(1.0, 2.0 * min(lone, in_band)),
        summary,
        consequence=Consequence.INVALIDATES,
        measured=float(ratio[worst]),
        claimed=1.0,
        remedy="Noise must be fresh in every step: look for noise that comes back, that is "
        "subtracted again, or that is filtered.",
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


def _repeated(context: Context) -> Finding:
    """Whether the noise of one step comes back in another, near or far."""
    name, rows = "repeated noise", context.quiet[0]
    if rows.shape[0] < 2 or rows.shape[1] < _FEWEST_COLUMNS_TO_COMPARE:
        return not_run(
            name, f"two steps of {_FEWEST_COLUMNS_TO_COMPARE} coordinates that are never planted"
        )
    if not context.known:
        return not_run(name, "a known background: steps share the other records")
    found = most_alike(rows)
    if found is None:
        return not_run(name, "noise in two steps")
    correlation, first, second, p_value = found
    told, said = coarse_cosine(correlation, rows.shape[1], errors=1.0)
    return judged(
        name,
        p_value,
        f"the most alike noise of two steps, {first + 1} and {second + 1}, correlates by {said}.",
        if_fine=_LARGEST,
        consequence=same_noise(correlation),
        measured=told,
        remedy="Noise that is used twice cancels out of a difference: save and restore the "
        "generator's state with the checkpoint, and never seed it inside the loop.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _shared(context: Context) -> Finding:
    """Whether two coordinates get the same noise, or all of them a little of it."""
    name, (values, tensor) = "shared noise", context.quiet
    if values.shape[1] < 2 or values.shape[0] < _FEWEST_STEPS:
        return not_run(name, f"{_FEWEST_STEPS} steps of two coordinates that are never planted")
    if not context.known:
        return not_run(name, "a known background: coordinates share the other records")
    columns = np.ascontiguousarray(values.T)
    found = most_alike(columns)
    if found is None:
        return not_run(name, "noise in two coordinates")
    correlation, first, second, p_value = found
    names = [context.tensor_name(index) for index in sorted({*tensor[[first, second]].tolist()})]
    where = f"both in {names[0]}" if len(names) == 1 else f"in {' and '.join(names)}"
    # One pair of canaries: nearly orthogonal ones are not told from orthogonal ones.
    told, said = coarse_cosine(correlation, values.shape[0])
    summary = f"the most alike two coordinates, {where}, correlate by {said}."
    fine, wrong = _LARGEST, ""
    consequence = same_noise(correlation)
    if context.exact:
        ratio, among_all = squared_cosines_p_value(columns)
        if among_all < SUSPICIOUS:
            # Steps that differ in scale make squares alike: that is no noise in common.
            even = columns / np.sqrt((columns**2).mean(axis=0) + np.finfo(float).tiny)
            ratio, among_all = max(
                (ratio, among_all), squared_cosines_p_value(even), key=lambda item: item[1]
            )
        if among_all < min(p_value, SUSPICIOUS):
            summary = (
                f"squared correlations of coordinates are {ratio:.2f} times what is expected of "
                "chance."
            )
            fine, wrong = "", "They have a part of their noise in common."
            consequence = Consequence.INVALIDATES
        p_value = min(1.0, 2.0 * min(p_value, among_all))
    return judged(
        name,
        p_value,
        summary,
        if_fine=fine,
        if_wrong=wrong,
        consequence=consequence,
        measured=told,
        remedy="Every coordinate needs noise of its own: split the random key between tensors, or "
        "let them share one generator.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _common(context: Context) -> Finding:
    """Whether all coordinates of a step have something in common: an offset beside their noise."""
    name = "common noise"
    if not context.exact:
        return not_run(name, "a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run(name, "noise")
    use, offsets = _offsets(context)
    if not use.any():
        return not_run(name, "two coordinates without a planting in a step")
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
        name,
        min(1.0, 2.0 * min(tests)),
        f"sums over all coordinates vary {ratio:.3f} times as their noise explains, and the "
        f"furthest lies at about {coarse_deviations(abs(furthest)):.1f} deviations.",
        consequence=Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy="Every coordinate needs noise of its own, and nothing beside it: is the background "
        "that was subtracted the right one?",
        undermines=Assumption.INDEPENDENT_CANARIES,
        sees=f"{NOTICED * math.sqrt(2.0 / taken) / float(context.others[use].mean()):.2g} of the "
        "noise's variance in common",
    )


def _offsets(context: Context) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Steps with two coordinates to add up, and the sums over all of them: standard normal."""
    use = context.others >= 2
    unit = context.schedule[use] * np.sqrt(context.others[use]) * context.even.scale
    return use, np.asarray(context.transcript.steps.total.sum(axis=1)[use] / unit)


def _returning(context: Context) -> Finding:
    """Whether noise comes back later at other coordinates: streams of numbers that overlap.

    No coordinate tells, but the sums over all of them do, and those of squares where signs change.
    """
    name = "noise sums across steps"
    if not context.exact:
        return not_run(name, "a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run(name, "noise")
    use, offsets = _offsets(context)
    series = [offsets]
    if offsets.size >= _FEWEST_STEPS_TO_SCALE:
        squares = (context.squares / context.schedule**2)[use] / context.even.scale**2
        sizes = ndtri(chdtr(context.others[use], squares))
        series.append(np.clip(sizes, -_FURTHEST, _FURTHEST))
    found = [item for item in map(returning, series) if item is not None]
    if not found:
        return not_run(name, f"{_FEWEST_STEPS} steps")
    correlation, lag, p_value = min(found, key=lambda item: item[2])
    return judged(
        name,
        min(1.0, len(found) * p_value),
        f"sums over the coordinates of steps {lag} apart correlate by {correlation:+.3f}.",
        if_fine=_LARGEST,
        consequence=same_noise(correlation),
        measured=correlation,
        claimed=0.0,
        remedy="Noise is used again at other coordinates: let the counter of the generator go on "
        "by at least as many numbers as a step draws.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"{min(1.0, NOTICED * math.sqrt(2.0 / offsets.size)):.0%} of a step's noise that "
        "comes back elsewhere",
    )
