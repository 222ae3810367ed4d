"""Checks of single values of the noise: at canaries, the extremes, the number format."""

from __future__ import annotations

import math

import numpy as np

from askgauss.checks.context import INTERVAL_ERROR, KNOWN_BACKGROUND, NOTICED, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.lattice import in_short_format
from askgauss.checks.noise import no_single_values
from askgauss.checks.registry import NOISE_SCALE, check
from askgauss.checks.tails import Spread, correlation_tail, extreme_p_value, ratio_p_value
from askgauss.recording.transcript import SILENCE
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats.rounding import round_deviations

__all__ = ["noise_extremes", "noise_precision", "planted_noise", "watched_coordinates"]

_FEWEST_VALUES = 1000
_FEWEST_PLANTINGS = 10
_FEWEST_TO_COMPARE = 100


@check("planted noise", part=NOISE_SCALE)
def planted_noise(context: Context) -> Finding:
    """Whether noise is the same where a canary is planted as where it is not."""
    missing = no_single_values(context)
    if missing:
        return not_run(missing)
    if context.facts.contribution is not None:
        return not_run("canaries that are planted with the whole clip norm")
    count, _, square = _planted_residuals(context)
    if count < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} plantings, got {count:.0f}")
    freedom = count - 1.0
    others = context.even
    ratio = (square / freedom) / (others.square / others.freedom)
    none = ratio < SILENCE**2
    compared = max(1.0, ratio / _with_dropouts(context)) if ratio > 1.0 else ratio
    p_value = 0.0 if none else ratio_p_value(compared, freedom, others.freedom)
    relative, broken, implied = math.sqrt(ratio), none, ""
    if not none and ratio < 1.0 and p_value < SUSPICIOUS:
        high = Spread(freedom, square).interval(INTERVAL_ERROR)[1]
        broken, implied = context.breach(noise=high)
        broken = broken and context.bell_shaped[0]
    return judged(
        p_value,
        "there is no noise where a canary is planted."
        if none
        else f"where a canary is planted, noise is {relative:.3f} times that elsewhere.",
        if_fine=", as it may be by chance.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.INVALIDATES,
        measured=relative,
        claimed=1.0,
        remedy="Noise must not know of the signal: look for noise that is drawn, scaled or masked "
        "by the gradients, and for records that are not clipped to one norm.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"noise {NOTICED / math.sqrt(2.0 * count):.1%} off where a canary is planted",
    )


def _planted_residuals(context: Context) -> tuple[float, float, float]:
    """Count, mean and squared deviations of planted observations, in units of alike steps."""
    steps, unit = context.transcript.steps, context.schedule
    planted = steps.planted.sum(axis=1).astype(np.float64)
    total = (steps.planted_total.sum(axis=1) - planted) / unit
    square = steps.planted_square.sum(axis=1) - 2.0 * steps.planted_total.sum(axis=1) + planted
    count, mean = float(planted.sum()), float(total.sum() / max(planted.sum(), 1.0))
    return count, mean, max(float((square / unit**2).sum()) - count * mean * mean, 0.0)


def _with_dropouts(context: Context) -> float:
    """By how much the variance of plantings may grow where clients of federated rounds drop out.

    Over the survivors, one in r of whom is left, a client adds r clip norms or none, with noise
    that is r times the claim: a variance of r - 1 clip norms.
    """
    claimed = context.claimed_noise
    if context.facts.rounds is None or claimed is None or not (claimed > 0.0).all():
        return 1.0
    scale = context.even.scale
    return 1.0 + max(scale / float(claimed[0]) - 1.0, 0.0) / scale**2


@check("noise extremes", part=NOISE_SCALE, reveals_individual=True)
def noise_extremes(context: Context) -> Finding:
    """Whether the extremes of all values are those of Gaussian noise: neither heavy nor cut off."""
    missing, steps = no_single_values(context), context.transcript.steps
    if missing:
        return not_run(missing)
    seen = np.isfinite(steps.most)
    count = int(context.others[: seen.size][seen].sum())
    if count < _FEWEST_TO_COMPARE:
        return not_run(f"{_FEWEST_TO_COMPARE} observations without a planting")
    most, least = float(steps.most[seen].max()), -float(steps.least[seen].min())
    norm = math.sqrt(context.even.square)
    half = 0.5 * context.spacing_in_deviations * context.even.scale
    p_values = [
        extreme_p_value(
            correlation_tail((value - half) / norm, context.even.freedom),
            correlation_tail((value + half) / norm, context.even.freedom),
            count,
        )
        for value in (most, least)
    ]
    # Each is one value's own noise: published to half a deviation.
    highest, lowest = (round_deviations(value / context.even.scale) for value in (most, least))
    return judged(
        min(1.0, 2.0 * min(p_values)),
        f"of {count:,} values the least and the most are about {-lowest:.1f} and {highest:.1f} "
        "deviations.",
        if_fine=", as those of Gaussian noise are.",
        if_wrong="Gaussian noise has no such extremes.",
        consequence=Consequence.INVALIDATES,
        measured=max(highest, lowest),
        remedy="The noise is not Gaussian in its tails, so neither the accountant nor this bound "
        "applies: look for clipping or rejection after the noise, or for values that are not "
        "noise.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees="noise cut off at 3 deviations, or a single value at 7",
    )


@check("noise precision", part=NOISE_SCALE)
def noise_precision(context: Context) -> Finding:
    """Whether noise takes only the values of a short number format."""
    if not context.known:
        return not_run(KNOWN_BACKGROUND)
    values = context.absolute
    if values.size < _FEWEST_VALUES:
        return not_run(f"{_FEWEST_VALUES:,} values of coordinates that are never planted")
    claimed = context.claimed_noise
    first = 1.0 if claimed is None else float(claimed[0])
    units = (1.0, first, first * float(context.transcript.steps.clip_norm[0]))
    share, where = in_short_format(values, units)
    passed = "the noise lies on no short number format."
    if context.lattice and where is None:
        passed = (
            f"the noise lies on an even lattice of {context.spacing_in_deviations:.3g} of its "
            "deviation, as discrete noise does, and on no short number format."
        )
    # Numbers of single precision or better come this near in far fewer than one run in 1e100.
    return fact(
        where is not None,
        f"{share:.0%} of the noise lies on {where}." if where else passed,
        consequence=Consequence.BREACH,
        measured=share,
        remedy="Draw and add noise in single precision at least: a coarse lattice gives away the "
        "sum beneath it.",
    )


@check("watched coordinates", part=NOISE_SCALE)
def watched_coordinates(context: Context) -> Finding | None:
    """Whether watched coordinates read zero while canaries do not: the reading is at fault, too."""
    transcript = context.transcript
    values, absent = transcript.watch_values, ~transcript.member
    silent = values.size > 0 and not values.any()
    noisy = absent.any() and bool((transcript.canaries.square[absent] > 0.0).all())
    if not (silent and noisy and transcript.facts.background == "known"):
        return None
    return fact(
        True,
        f"all {values.shape[1]:,} watched coordinates read exactly zero in every step, and "
        "canaries do not.",
        consequence=Consequence.INVALIDATES,
        measured=0.0,
        remedy="Copy the clean values before the noise is added: noise added in place changes "
        "both. Or noise is added at the canaries only.",
    )
