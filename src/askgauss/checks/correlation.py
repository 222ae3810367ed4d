"""Checks that noise is fresh: of its own in every step, and in every coordinate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, ndtri, stdtr

from askgauss.checks.context import NOTICED, Context, around
from askgauss.checks.correlation_tests import (
    most_similar,
    returning,
    same_noise,
    squared_cosines_p_value,
)
from askgauss.checks.findings import SUSPICIOUS, judged, not_run
from askgauss.checks.noise_reuse import (
    ComparedNoise,
    compared_by_content,
    found_again,
    repeated_exactly,
)
from askgauss.checks.registry import NOISE_FRESHNESS, check
from askgauss.checks.tails import correlation_tail, ratio_p_value, share_p_values
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats.rounding import COSINE_ERRORS, round_cosine, round_deviations

__all__ = [
    "CORRELATION_CHECKS",
    "FEWEST_TO_COMPARE",
    "LARGEST",
    "certainly_used_twice",
    "exactly_repeated",
    "repeated_noise",
    "serial_correlation",
    "shared_noise",
    "used_twice",
]

_FEWEST_STEPS = 10
_FEWEST_COLUMNS = 16
_FEWEST_PAIRS = 1000
_FEWEST_CANARIES = 20
# The p-value of noise that is used twice, whatever else was tested.
_CERTAIN = 1e-9
# So much of a step along all before it, and its noise is made of theirs.
_MADE_OF_EARLIER = 0.5
FEWEST_TO_COMPARE = 32
"""Coordinates at which two noises can be compared."""
LARGEST = ", as the largest of so many may by chance."
"""What to add to the largest of very many correlations, which is never near zero."""
# Squares are compared as normal quantiles, none of them further out than this; the scale they are
# held against is their own, which matters where there are fewer steps.
_FURTHEST = 6.0
_FEWEST_STEPS_TO_SCALE = 64


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
def repeated_noise(context: Context) -> Finding | None:
    """Whether the noise of one step comes back in another, near or far."""
    rows = context.quiet[0]
    if repeated_exactly(context.facts.reuse):
        return None
    if rows.shape[0] < 2 or rows.shape[1] < FEWEST_TO_COMPARE:
        return not_run(f"two steps of {FEWEST_TO_COMPARE} coordinates that are never planted")
    if not context.known:
        return not_run("a known background: steps share the other records")
    return used_twice(
        rows,
        "two steps",
        lambda first, second: f"noise of two steps, {first + 1} and {second + 1}, correlates",
        errors=1.0,
        remedy="Noise that is used twice cancels out of a difference: save and restore the "
        "generator's state with the checkpoint, and never seed it inside the loop.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


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


def used_twice(
    rows: NDArray[np.float64],
    two: str,
    correlates: Callable[[int, int], str],
    *,
    over: str = "",
    errors: float = COSINE_ERRORS,
    claimed: float | None = None,
    remedy: str,
    undermines: Assumption,
) -> Finding:
    """Whether any two of many noises are one.

    Args:
        rows: The noises.
        two: Two of them in words.
        correlates: The two most similar ones, by their places, as the subject of a sentence.
        over: What they are compared over, in words.
        errors: The standard errors that a published correlation is rounded to.
        claimed: What the correlation is compared with.
        remedy: What to do where they are one.
        undermines: What a bound must assume for a failure to make it too high.
    """
    found = most_similar(rows)
    if found is None:
        return not_run(f"noise in {two}")
    correlation, first, second, p_value = found
    rounded, said = round_cosine(correlation, rows.shape[1], errors=errors)
    return judged(
        p_value,
        f"the most alike {correlates(first, second)} by {said}{over}.",
        if_fine=LARGEST,
        consequence=same_noise(correlation),
        measured=rounded,
        claimed=claimed,
        remedy=remedy,
        undermines=undermines,
    )


@check(
    "shared noise",
    part=NOISE_FRESHNESS,
    explains="duplicate scores, noise by step, common noise, noise extremes, noise shape",
    reveals_individual=True,
    after_resume=True,
)
def shared_noise(context: Context) -> Finding:
    """Whether two coordinates get the same noise, or all of them a little of it."""
    values, tensor = context.quiet
    if values.shape[1] < 2 or values.shape[0] < _FEWEST_STEPS:
        return not_run(f"{_FEWEST_STEPS} steps of two coordinates that are never planted")
    if not context.known:
        return not_run("a known background: coordinates share the other records")
    columns = np.ascontiguousarray(values.T)
    found = most_similar(columns)
    if found is None:
        return not_run("noise in two coordinates")
    correlation, first, second, p_value = found
    names = [context.tensor_name(index) for index in sorted({*tensor[[first, second]].tolist()})]
    where = f"both in {names[0]}" if len(names) == 1 else f"in {' and '.join(names)}"
    # One pair of canaries: nearly orthogonal ones are not distinguished from orthogonal ones.
    rounded, said = round_cosine(correlation, values.shape[0])
    summary = f"the most alike two coordinates, {where}, correlate by {said}."
    fine, wrong = LARGEST, ""
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
        p_value,
        summary,
        if_fine=fine,
        if_wrong=wrong,
        consequence=consequence,
        measured=rounded,
        remedy="Every coordinate needs noise of its own: split the random key between tensors, or "
        "let them share one generator.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


@check("common noise", part=NOISE_FRESHNESS, reveals_individual=True)
def common_noise(context: Context) -> Finding:
    """Whether all coordinates of a step have something in common: an offset beside their noise."""
    if not context.exact:
        return not_run("a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run("noise")
    use, offsets = _offsets(context)
    if not use.any():
        return not_run("two coordinates without a planting in a step")
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
        f"sums over all coordinates vary {ratio:.3f} times as their noise explains, and the "
        f"furthest lies at about {round_deviations(abs(furthest)):.1f} deviations.",
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


@check("noise sums across steps", part=NOISE_FRESHNESS, after_resume=True)
def noise_sums_across_steps(context: Context) -> Finding | None:
    """Whether noise comes back later at other coordinates: streams of numbers that overlap.

    No coordinate shows it, but the sums over all of them do, and those of squares where signs
    change. Not needed where all noise was compared with itself by content.
    """
    if compared_by_content(context.facts.reuse):
        return None
    if not context.exact:
        return not_run("a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run("noise")
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
        f"sums over the coordinates of steps {lag} apart correlate by {correlation:+.3f}.",
        if_fine=LARGEST,
        consequence=same_noise(correlation),
        measured=correlation,
        claimed=0.0,
        remedy="Noise is used again at other coordinates: let the counter of the generator go on "
        "by at least as many numbers as a step draws.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"{min(1.0, NOTICED * math.sqrt(2.0 / offsets.size)):.0%} of a step's noise that "
        "comes back elsewhere",
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
    if pairs < _FEWEST_PAIRS:
        return not_run(f"{_FEWEST_PAIRS:,} pairs of neighbouring steps of absent canaries")
    if not context.known:
        return not_run("a known background: other records correlate from step to step")
    if context.noise.square == 0.0:
        return not_run("noise")
    if context.by_canary is None:
        return not_run("sums of every canary in units of the declared noise")
    square = float(context.by_canary[2][absent].sum())
    correlation = float(transcript.canaries.lag[absent].sum()) / square * steps / (steps - 1)
    return judged(
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


@check(
    "whole-run correlation",
    part=NOISE_FRESHNESS,
    explains="noise spectrum, equal variance",
    reveals_individual=True,
    after_resume=True,
)
def whole_run_correlation(context: Context) -> Finding:
    """Whether noise adds up over the run as independent noise does, and every step's is new.

    The sum over all steps varies as the steps do if, and only if, the correlations at all lags
    cancel; and every step is held against the sum of all before it, which makes a draw of the noise
    of its own out of each.
    """
    by_canary = context.by_canary
    if not context.exact:
        return not_run("a known background and canaries that are orthogonal by construction")
    if context.noise.square == 0.0:
        return not_run("noise")
    if by_canary is None:
        return not_run("sums of every canary in units of the declared noise")
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
    summary = f"the noise of the run's sum varies {ratio:.3f} times as its steps' explain."
    reused = False
    if len(tests) > 1 and tests[1] < min(SUSPICIOUS, tests[0]):
        along = furthest / math.sqrt(context.others[step - 1])
        reused = abs(along) > _MADE_OF_EARLIER
        summary = f"the noise of step {step} correlates by {along:+.2f} with the sum of all before."
    return judged(
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


@check("noise spectrum", part=NOISE_FRESHNESS)
def noise_spectrum(context: Context) -> Finding:
    """Whether noise has the same power at all frequencies: no correlation at any lag."""
    values = context.quiet_by_tensor
    if not context.exact:
        return not_run("a known background and canaries that are orthogonal by construction")
    if values is None or values.shape[0] < _FEWEST_STEPS or values.shape[1] < _FEWEST_COLUMNS:
        return not_run(
            f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates that are never planted"
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
