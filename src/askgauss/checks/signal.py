"""Checks of what a record adds (its sensitivity in clip norms), and in how many steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from askgauss.checks.context import (
    NOTICED,
    TOLERANCE,
    Context,
    CorrelatedRun,
    around,
    known,
    noise,
    orthogonal,
    single_values,
    unit_sums,
)
from askgauss.checks.noise import whole_clip_norm
from askgauss.checks.registry import (
    CLIPPING,
    SENSITIVITY,
    STEPS,
    SUSPICIOUS,
    check,
    fact,
    judged,
    not_run,
)
from askgauss.checks.sampler import SAMPLER_CHECKS
from askgauss.checks.tails import ratio_p_value
from askgauss.recording.transcript import Transcript
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats.rounding import round_deviations
from askgauss.stats.shift import within_canaries

__all__ = [
    "SIGNAL_CHECKS",
    "contribution",
    "counted_steps",
    "even_contribution",
    "finite_gradients",
    "planting",
    "single_plantings",
    "step_count",
]

_FEWEST_PLANTINGS = 10
_FEWEST_CANARIES = 20
# Cosines of either sign cancel in sums over many canaries (0.16 on average left 0.016 of the noise
# in common on mislabelled digits), but not where most canaries are copies of a few.
_MOST_OVERLAP = 0.5
_WHOLE_RUN = "Attach the audit to the whole run, or claim the steps that it recorded."


@check("finite gradients", part=CLIPPING)
def finite_gradients(run: Context | CorrelatedRun) -> Finding:
    """Whether every released number was finite."""
    finite = run.transcript.finite
    return fact(
        not finite,
        "every released number was finite."
        if finite
        else "values were released that are nan, infinite or larger than 1e140.",
        consequence=Consequence.INVALIDATES,
        remedy="Find where they come from: an audit can say nothing about such a run.",
    )


@check("known background")
def known_background(context: Context) -> Finding | None:
    """Whether subtracting the other records' sum reveals which canaries are in a batch."""
    if not context.known or context.facts.known_background:
        return None
    return fact(
        True,
        "the other records' sum was subtracted, and their batches reveal which of them include a "
        "canary.",
        consequence=Consequence.INVALIDATES,
        remedy="Leave background out of observe(), or declare Recorder(poisson=True) if every "
        "record is sampled independently.",
    )


@check("canary overlap")
def canary_overlap(context: Context) -> Finding:
    """Whether canaries that are gradients of examples are nearly orthogonal to each other."""
    cosines = context.transcript.gram
    if cosines.shape[0] < 2:
        return fact(
            False,
            "canaries are orthogonal by construction.",
            consequence=Consequence.INVALIDATES,
            measured=0.0,
        )
    pairs = cosines.shape[0] * (cosines.shape[0] - 1)
    mean = float(cosines.sum() - np.trace(cosines)) / pairs
    return fact(
        mean > _MOST_OVERLAP,
        f"the gradients of two canaries have a cosine of {mean:.3f} on average.",
        consequence=Consequence.INVALIDATES,
        measured=mean,
        claimed=0.0,
        remedy="Choose examples that differ, with random labels or inputs: similar canaries share "
        "their noise, which then seems smaller than it is.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


@check("contribution", part=CLIPPING, decides=True, explains=SENSITIVITY)
def contribution(context: Context) -> Finding:
    """What an included canary adds on average, in clip norms: a record may add as much."""
    transcript = context.transcript
    planted = int(transcript.canaries.planted.sum())
    if planted < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} inclusions of canaries, got {planted}")
    estimate = planting(context)
    if estimate is None:
        return not_run("canaries that are included in some steps and not in others")
    mean, error, freedom = estimate
    # Gradients of examples may be below the clip norm.
    expected = context.facts.contribution or 1.0
    more, p_value = mean > expected, _t_p_value(mean - expected, error, freedom)
    broken, implied = False, ""
    if more and p_value < SUSPICIOUS:
        broken, implied = context.breach(signal=(mean - 4 * error) / expected)
    return judged(
        p_value,
        f"an included canary adds {mean:.4f} clip norms to the sum (± {2.0 * error:.2g}).",
        consequence=Consequence.LOOSENS,
        breach=(broken, implied),
        measured=mean,
        interval=around(mean, error),
        claimed=expected,
        remedy="Check that every record is clipped by itself, over all tensors together, and "
        "counted once: one record adds more than the clip norm."
        if more
        else "Canaries are scaled down, or clipped together with others as the mean of a "
        "microbatch. The bound is lower than it could be, and what a record adds elsewhere was not "
        "observed.",
        tolerable=abs(mean / expected - 1.0) < TOLERANCE,
        sees=f"a sensitivity {max(NOTICED * error / expected, TOLERANCE):.1%} above the clip norm",
        visible=NOTICED * error / expected,
    )


def planting(context: Context) -> tuple[float, float, float] | None:
    """What an inclusion adds on average, its standard error, and the freedom of that."""
    return _planted_mean(context) if context.known else _planted_contrast(context.transcript)


def _t_p_value(difference: float, error: float, freedom: float) -> float:
    """Of "there is no difference", two-sided; without noise, rounding alone is let pass."""
    if error == 0.0:
        return 0.0 if abs(difference) > 1e-9 else 1.0
    return 2.0 * float(stdtr(freedom, -abs(difference) / error))


def _planted_mean(context: Context) -> tuple[float, float, float] | None:
    """Observations with an included canary against all others, standard error and its freedom.

    Steps weigh by their declared noise.
    """
    steps, weight = context.transcript.steps, 1.0 / context.schedule**2
    planted = float((steps.planted.sum(axis=1) * weight).sum())
    others = float((context.others * weight).sum())
    mean = float((steps.planted_total.sum(axis=1) * weight).sum()) / planted
    mean -= float((steps.total.sum(axis=1) * weight).sum()) / others
    error = context.even.scale * math.sqrt(1.0 / planted + 1.0 / others)
    return mean, error, context.even.freedom


def _planted_contrast(transcript: Transcript) -> tuple[float, float, float] | None:
    """The same against the canary's own other observations.

    What the other records add to a coordinate lasts from step to step, but the inclusion is drawn
    independently of it: within a canary, the difference is due to the inclusion alone.
    """
    sums = transcript.canaries
    fit = within_canaries(
        planted=sums.planted,
        planted_total=sums.planted_total,
        total=sums.total,
        square=sums.square,
        steps=transcript.number_of_steps,
    )
    if fit.spread == 0.0 or fit.degrees_of_freedom < 1:
        return None
    error = fit.inflation * math.sqrt(fit.residual / fit.degrees_of_freedom / fit.spread)
    return fit.slope, error, float(fit.degrees_of_freedom)


@check(
    "even contribution",
    part=CLIPPING,
    explains="planted noise",
    reveals_individual=True,
    needs=(orthogonal, whole_clip_norm, noise),
)
def even_contribution(context: Context) -> Finding:
    """Whether inclusions add the same in all steps and for all canaries."""
    transcript = context.transcript
    scale, freedom = context.even.scale, context.even.freedom
    steps, sums = transcript.steps, transcript.canaries
    counts = steps.planted.sum(axis=1).astype(np.float64)
    weights = counts / context.schedule**2
    if np.count_nonzero(counts) < 2 or counts.sum() < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} inclusions of canaries in two steps")
    total = steps.planted_total.sum(axis=1) / context.schedule**2
    mean = float(total.sum() / weights.sum())
    left = total - mean * weights
    time = np.linspace(-0.5, 0.5, counts.size)
    time = time - float((weights * time).sum() / weights.sum())
    trend = float((time * left).sum()) / float((weights * time**2).sum())
    error = scale / math.sqrt(float((weights * time**2).sum()))
    tests = [
        _t_p_value(trend, error, freedom),
        _uneven(left, weights, scale, freedom),
        _oddest(left, weights, scale, freedom),
    ]
    if (context.schedule == 1.0).all():
        planted = sums.planted.astype(np.float64)
        apart = sums.planted_total - mean * planted
        tests.append(_uneven(apart, planted, scale, freedom))
        tests.append(_oddest(apart, planted, scale, freedom))
    p_value = min(1.0, len(tests) * min(tests))
    worst = int(np.argmin(tests))
    return judged(
        p_value,
        f"what an included canary adds changes by {trend:+.3f} clip norms along the run.",
        if_wrong=(
            "",
            "It differs between steps more than the noise explains.",
            "In one step it differs more than the noise explains.",
            "It differs between canaries more than the noise explains.",
            "One canary differs more than the noise explains.",
        )[worst],
        consequence=Consequence.INVALIDATES,
        measured=trend,
        interval=around(trend, error),
        claimed=0.0,
        remedy="Check that every record is clipped in every step, to the clip norm that the noise "
        "is scaled by: some records, or some steps, count for more than others.",
        tolerable=worst == 0 and abs(trend) < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a sensitivity that changes by {NOTICED * error:.2g} clip norms along the run",
    )


def _uneven(
    sums: NDArray[np.float64], weights: NDArray[np.float64], scale: float, freedom: float
) -> float:
    """Of "these sums differ by noise alone": they have these variances, and the total is fitted."""
    use = weights > 0.0
    degrees = float(np.count_nonzero(use)) - 1.0
    statistic = float((sums[use] ** 2 / weights[use]).sum()) / scale**2
    return ratio_p_value(statistic / degrees, degrees, freedom) if degrees >= 1 else 1.0


def _oddest(
    sums: NDArray[np.float64], weights: NDArray[np.float64], scale: float, freedom: float
) -> float:
    """The same, by the most extreme: a single one is lost in the sum of squares."""
    use = weights > 0.0
    farthest = float((np.abs(sums[use]) / np.sqrt(weights[use])).max())
    return min(1.0, float(np.count_nonzero(use)) * _t_p_value(farthest, scale, freedom))


@check(
    "single plantings",
    part=CLIPPING,
    explains="planted noise, even contribution",
    reveals_individual=True,
    needs=(*single_values, whole_clip_norm),
)
def single_plantings(context: Context) -> Finding:
    """Whether any single inclusion adds more or less than noise around a clip norm explains."""
    steps = context.transcript.steps
    seen = np.isfinite(steps.planted_most)
    count = int(steps.planted.sum(axis=1)[: seen.size][seen].sum())
    if count == 0:
        return not_run("inclusions of canaries")
    most, least = float(steps.planted_most[seen].max()), float(steps.planted_least[seen].min())
    scale, freedom = context.even.scale, context.even.freedom
    half = context.spacing_in_deviations / 2.0
    above = max(most / scale - half, 0.0), max(-least / scale - half, 0.0)
    tails = [min(1.0, count * float(stdtr(freedom, -value))) for value in above]
    p_value = min(1.0, 2.0 * min(tails))
    upwards = tails[0] <= tails[1]
    unit = float(context.schedule.max())
    # One inclusion's own noise: published to half a deviation.
    deviations = round_deviations((most if upwards else least) / scale)
    # The step is not recorded with it: in units of the noisiest step it is at most this far.
    furthest = 1.0 + unit * scale * deviations
    return judged(
        p_value,
        f"of {count:,} inclusions of a canary, the most extreme measures about {furthest:+.3g} "
        f"clip norms, {abs(deviations):.1f} standard deviations of the noise from one.",
        consequence=Consequence.BREACH if upwards else Consequence.INVALIDATES,
        measured=furthest,
        claimed=1.0,
        remedy="Look for a branch that does not clip (empty, padded or nan gradients, another "
        "device, another tensor): some records add more than the clip norm in some steps."
        if upwards
        else "Find what else is added with the canary: some inclusions add far less than the clip "
        "norm.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a single record that adds {1.0 + unit * scale * 6.5:.3g} clip norms in one step",
    )


@check(
    "carry-over",
    part=CLIPPING,
    explains="noise scale, equal variance, whole-run correlation, common noise, noise by "
    "coordinate, noise shape, noise extremes",
    needs=(known, unit_sums),
    after_resume=True,
)
def carry_over(context: Context) -> Finding:
    """Whether an inserted canary adds something in steps that it was not sampled in."""
    transcript = context.transcript
    assert context.by_canary is not None
    rest, total, _ = context.by_canary
    member, use = transcript.member, rest >= 1
    present, absent = use & member, use & ~member
    if min(np.count_nonzero(present), np.count_nonzero(absent)) < _FEWEST_CANARIES:
        return not_run(f"{_FEWEST_CANARIES} inserted canaries that are not in every step")
    counts = float(rest[present].sum()), float(rest[absent].sum())
    # Back to clip norms: the same in every step is more of the noise where that is less.
    unit = 1.0 / float((1.0 / context.schedule).mean())
    mean = float(total[present].sum()) / counts[0] - float(total[absent].sum()) / counts[1]
    mean *= unit
    error = unit * context.even.scale * math.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    return judged(
        _t_p_value(mean, error, context.even.freedom),
        f"in steps that do not include it, an inserted canary adds {mean:+.4f} clip norms.",
        consequence=Consequence.INVALIDATES,
        measured=mean,
        interval=around(mean, error),
        claimed=0.0,
        remedy="Clear gradients of earlier steps (zero_grad) after every step, per-example "
        "gradients too, and apply momentum after the noise.",
        tolerable=abs(mean) < 0.1 * TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


@check("step count", part=STEPS, decides=True, after_resume=True)
def step_count(context: Context) -> Finding:
    """Whether as many steps were released as were accounted for."""
    accounted = context.claimed_steps
    if accounted is None:
        return not_run("the number of steps the accountant counted")
    skipped = context.facts.skipped_steps
    return counted_steps(
        taken=context.transcript.number_of_steps + skipped,
        accounted=accounted,
        # A claim of the observed steps must not hide those that the accountant counted as well.
        counted=max(accounted, context.facts.accounted_steps or 0),
        breach=lambda most: context.breach(steps=most),
        unseen=f", {skipped:,} of them not observed," if skipped else "",
        remedy="Attach the accountant before the first step: every noisy release counts, also "
        "those before the run was reset to a checkpoint.",
    )


def counted_steps(
    *,
    taken: int,
    accounted: int,
    counted: int,
    breach: Callable[[int], tuple[bool, str]],
    remedy: str,
    unseen: str = "",
    note: str = "",
) -> Finding:
    """Whether as many steps were released as were accounted for.

    Args:
        taken: Steps that were released.
        accounted: Steps that the claim is about.
        counted: Steps that the accountant counted.
        breach: Whether this many steps violate the claim, and a sentence about it.
        remedy: What to do where there were more than accounted for.
        unseen: How many of them were not observed, in words.
        note: What else to say of the steps.
    """
    most = max(taken, counted)
    more = most > accounted
    broken, implied = breach(most) if more else (False, "")
    summary = f"{taken:,} steps were released{unseen} and {accounted:,} accounted for."
    if taken < counted:
        claimed = f", and {accounted:,} are claimed" if more else ""
        summary = f"{taken:,} steps were recorded{unseen} of {counted:,} that were accounted for"
        summary = f"{summary}{claimed}."
    return fact(
        most != accounted or taken < counted,
        f"{summary}{note}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=float(most if more else taken),
        claimed=float(accounted),
        remedy=remedy if more else _WHOLE_RUN,
        # In steps that were not observed no fault is detected.
        visible=1.0 if taken < counted else None,
    )


SIGNAL_CHECKS = (
    known_background,
    canary_overlap,
    contribution,
    even_contribution,
    carry_over,
    *SAMPLER_CHECKS,
    step_count,
)
"""Checks of what a record adds, how it is sampled, and in how many steps."""
