"""Checks of what a record adds, and in how many steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from askgauss.checks.context import NOTICED, TOLERANCE, Context, CorrelatedRun, around
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.noise import no_single_values
from askgauss.checks.registry import CLIPPING, SENSITIVITY, STEPS, check
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
# What to do where steps were accounted for that the audit did not see.
_WHOLE_RUN = "Attach the audit to the whole run, or claim the steps that it saw."


@check("finite gradients", part=CLIPPING)
def finite_gradients(run: Context | CorrelatedRun) -> Finding:
    """Whether every released number was finite."""
    finite = run.transcript.finite
    return fact(
        not finite,
        "every released number was finite."
        if finite
        else "nan, infinite or larger than 1e140: such values were released.",
        consequence=Consequence.INVALIDATES,
        remedy="Find where they come from: nothing can be said of such a run.",
    )


@check("known background")
def known_background(context: Context) -> Finding | None:
    """Whether batches without the other records' sum give away which canaries are in them."""
    if not context.known or context.facts.known_background:
        return None
    return fact(
        True,
        "the other records' sum was subtracted, and their batches say which ones a canary is in.",
        consequence=Consequence.INVALIDATES,
        remedy="Leave background out of observe(), or declare Recorder(poisson=True) if every "
        "record has a coin of its own.",
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
        remedy="Canaries that look alike share their noise, so that it seems smaller than it is: "
        "take examples that differ, with random labels or inputs.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


@check("contribution", part=CLIPPING, decides=True, explains=SENSITIVITY)
def contribution(context: Context) -> Finding:
    """What a planting adds on average, in clip norms: more than it should, and a record may too."""
    transcript = context.transcript
    planted = int(transcript.canaries.planted.sum())
    if planted < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} plantings, got {planted}")
    estimate = planting(context)
    if estimate is None:
        return not_run("canaries that are planted in some steps and not in others")
    mean, error, freedom = estimate
    # Examples have gradients of their own, some below the clip norm.
    expected = context.facts.contribution or 1.0
    more, p_value = mean > expected, _t_p_value(mean - expected, error, freedom)
    broken, implied = False, ""
    if more and p_value < SUSPICIOUS:
        broken, implied = context.breach(signal=(mean - 4 * error) / expected)
    return judged(
        p_value,
        f"a planted canary adds {mean:.4f} clip norms to the sum, give or take {2.0 * error:.2g}.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=mean,
        interval=around(mean, error),
        claimed=expected,
        remedy="One record counts for more than it should. Is every record clipped by itself, over "
        "all tensors together, and counted once?"
        if more
        else "Canaries are scaled down, or clipped together with others as the mean of a "
        "microbatch. The bound is lower than it could be, and what a record adds elsewhere was not "
        "seen.",
        tolerable=abs(mean / expected - 1.0) < TOLERANCE,
        sees=f"a contribution {max(NOTICED * error / expected, TOLERANCE):.1%} above the clip norm",
        visible=NOTICED * error / expected,
    )


def planting(context: Context) -> tuple[float, float, float] | None:
    """What a planting adds on average, its standard error, and the freedom of that."""
    return _planted_mean(context) if context.known else _planted_contrast(context.transcript)


def _t_p_value(difference: float, error: float, freedom: float) -> float:
    """Of "there is no difference", two-sided; without noise, rounding alone is let pass."""
    if error == 0.0:
        return 0.0 if abs(difference) > 1e-9 else 1.0
    return 2.0 * float(stdtr(freedom, -abs(difference) / error))


def _planted_mean(context: Context) -> tuple[float, float, float] | None:
    """Planted observations against all others, the standard error, and its freedom.

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
    """Planted observations against the same canary's others, the standard error, its freedom.

    What the other records add to a coordinate lasts from step to step, but the coin that plants
    knows nothing of it: within a canary, the difference is the planting's alone.
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


@check("even contribution", part=CLIPPING, explains="planted noise", reveals_individual=True)
def even_contribution(context: Context) -> Finding:
    """Whether plantings add the same in all steps and for all canaries."""
    transcript = context.transcript
    if not context.exact:
        return not_run("a known background and canaries that are orthogonal by construction")
    if context.facts.contribution is not None:
        return not_run("canaries that are planted with the whole clip norm")
    if context.noise.square == 0.0:
        return not_run("noise")
    scale, freedom = context.even.scale, context.even.freedom
    steps, sums = transcript.steps, transcript.canaries
    counts = steps.planted.sum(axis=1).astype(np.float64)
    weights = counts / context.schedule**2
    if np.count_nonzero(counts) < 2 or counts.sum() < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} plantings in two steps")
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
        f"what a planting adds changes by {trend:+.3f} clip norms along the run.",
        if_fine=", as it may by chance, and differs no more between steps and canaries.",
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
        remedy="Some records count for more than others, or at some times: is every record clipped "
        "in every step, to the clip norm that the noise is scaled by?",
        tolerable=worst == 0 and abs(trend) < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a contribution that changes by {NOTICED * error:.2g} clip norms along the run",
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
    """The same, by the one that is farthest off: a lone odd one is lost in the sum of squares."""
    use = weights > 0.0
    farthest = float((np.abs(sums[use]) / np.sqrt(weights[use])).max())
    return min(1.0, float(np.count_nonzero(use)) * _t_p_value(farthest, scale, freedom))


@check(
    "single plantings",
    part=CLIPPING,
    explains="planted noise, even contribution",
    reveals_individual=True,
)
def single_plantings(context: Context) -> Finding:
    """Whether any single planting adds more or less than noise around a clip norm explains."""
    missing, steps = no_single_values(context), context.transcript.steps
    if missing:
        return not_run(missing)
    if context.facts.contribution is not None:
        return not_run("canaries that are planted with the whole clip norm")
    seen = np.isfinite(steps.planted_most)
    count = int(steps.planted.sum(axis=1)[: seen.size][seen].sum())
    if count == 0:
        return not_run("plantings")
    most, least = float(steps.planted_most[seen].max()), float(steps.planted_least[seen].min())
    scale, freedom = context.even.scale, context.even.freedom
    half = context.spacing_in_deviations / 2.0
    above = max(most / scale - half, 0.0), max(-least / scale - half, 0.0)
    tails = [min(1.0, count * float(stdtr(freedom, -value))) for value in above]
    p_value = min(1.0, 2.0 * min(tails))
    upwards = tails[0] <= tails[1]
    unit = float(context.schedule.max())
    # One planting's own noise: published to half a deviation.
    deviations = round_deviations((most if upwards else least) / scale)
    # The step is not recorded with it: in units of the noisiest step it is at most this far.
    furthest = 1.0 + unit * scale * deviations
    return judged(
        p_value,
        f"of {count:,} plantings the one furthest off reads about {furthest:+.3g} clip norms, "
        f"{abs(deviations):.1f} deviations of the noise from one.",
        if_fine=", as the furthest of so many may by chance.",
        consequence=Consequence.BREACH if upwards else Consequence.INVALIDATES,
        measured=furthest,
        claimed=1.0,
        remedy="Some records add more than the clip norm in some steps: look for a branch that "
        "does not clip (empty, padded or nan gradients, another device, another tensor)."
        if upwards
        else "Some plantings add far less than the clip norm, or something else besides.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a single planting of {1.0 + unit * scale * 6.5:.3g} clip norms",
    )


@check(
    "carry-over",
    part=CLIPPING,
    explains="noise scale, equal variance, whole-run correlation, common noise, noise by "
    "coordinate, noise shape, noise extremes",
    after_resume=True,
)
def carry_over(context: Context) -> Finding:
    """Whether a present canary shows in steps that it was not sampled in."""
    transcript = context.transcript
    if not context.known:
        return not_run("a known background: other records answer to earlier plantings")
    if context.by_canary is None:
        return not_run("sums of every canary in units of the declared noise")
    rest, total, _ = context.by_canary
    member, use = transcript.member, rest >= 1
    present, absent = use & member, use & ~member
    if min(np.count_nonzero(present), np.count_nonzero(absent)) < _FEWEST_CANARIES:
        return not_run(f"{_FEWEST_CANARIES} present canaries that are not in every step")
    counts = float(rest[present].sum()), float(rest[absent].sum())
    # Back to clip norms: the same in every step is more of the noise where that is less.
    unit = 1.0 / float((1.0 / context.schedule).mean())
    mean = float(total[present].sum()) / counts[0] - float(total[absent].sum()) / counts[1]
    mean *= unit
    error = unit * context.even.scale * math.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    return judged(
        _t_p_value(mean, error, context.even.freedom),
        f"in steps it is not in, a present canary adds {mean:+.4f} clip norms to the sum.",
        if_fine=", as it may by chance.",
        consequence=Consequence.INVALIDATES,
        measured=mean,
        interval=around(mean, error),
        claimed=0.0,
        remedy="Gradients of earlier steps are still there: clear them (zero_grad) after every "
        "step, per-example gradients too; momentum must come after the noise.",
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
        # A claim of the steps that were seen must not hide those that the accountant saw as well.
        counted=max(accounted, context.facts.accounted_steps or 0),
        breach=lambda most: context.breach(steps=most),
        unseen=f", {skipped:,} of them not observed," if skipped else "",
        remedy="Every noisy release must be counted, those before going back to a checkpoint too: "
        "attach the accountant before the first step.",
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
        breach: Whether so many steps break the claim, and a sentence about it.
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
        summary = f"{taken:,} steps were seen{unseen} of {counted:,} that were accounted for"
        summary = f"{summary}{claimed}."
    return fact(
        most != accounted or taken < counted,
        f"{summary}{note}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=float(most if more else taken),
        claimed=float(accounted),
        remedy=remedy if more else _WHOLE_RUN,
        # Of steps that were not seen no fault shows.
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
