"""Checks of the noise: its scale, where and when; its shape; whether it is fresh."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, ndtr, polygamma

from askgauss import accounting
from askgauss.diagnostics.alike import most_alike, same_noise
from askgauss.diagnostics.context import INTERVAL_ERROR, TOLERANCE, Context, around
from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.diagnostics.tails import (
    Spread,
    correlation_tail,
    equal_variances_p_value,
    ratio_p_value,
)
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats import normality

__all__ = ["noise_checks"]

_FEWEST_STEPS = 10
_FEWEST_OBSERVATIONS = 20
_FEWEST_COLUMNS = 16
_FEWEST_COLUMNS_TO_COMPARE = 32
_FEWEST_PAIRS = 1000
_FEWEST_VALUES = 1000
# Bits of precision of the formats that noise is sometimes drawn in, the leading one included.
_SHORT_FORMATS = (("bfloat16", 8), ("float16", 11))
# Ratios of variances that ranks and accumulation steps give.
_ROUND = (2, 3, 4, 8, 16)
_KNOWN = "a known background, to tell noise from other records"


def noise_checks(context: Context) -> Iterator[Finding]:
    """Every check of the noise; those that name a cause come before those that show a symptom."""
    yield _missing(context)
    yield _repeated(context)
    yield _shared(context)
    yield _by_tensor(context)
    yield _drift(context)
    yield _by_step(context)
    yield _scale(context)
    yield _shape(context)
    yield _precision(context)
    yield _serial_correlation(context)


def _missing(context: Context) -> Finding:
    transcript = context.transcript
    silent = int(np.count_nonzero((context.squares == 0.0) & (context.others > 0)))
    missing = silent + context.facts.unnoised_steps
    if not missing and not context.known:
        return not_run("steps without noise", _KNOWN)
    return fact(
        "steps without noise",
        missing > 0,
        f"{missing:,} of {transcript.number_of_steps + context.facts.unnoised_steps:,} steps were "
        "released without any noise."
        if missing
        else "every step was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(missing),
        claimed=0.0,
        remedy="Check that noise is added, and that the sum is read after it. An empty batch must "
        "still add noise and count as a step; every optimizer step must go through the mechanism.",
    )


def _scale(context: Context) -> Finding:
    name, noise, claimed = "noise scale", context.noise, context.claimed_noise
    if claimed is None:
        return _least_noise(context)
    single = float(claimed[0]) if (claimed == claimed[0]).all() else None
    if noise.square == 0.0 or not claimed.all():
        return fact(
            name,
            noise.square == 0.0,
            "there is no noise at all." if noise.square == 0.0 else "no noise is claimed.",
            consequence=Consequence.BREACH,
            measured=noise.scale,
            claimed=single,
            remedy="Check that noise is added, and that the sum is read after it.",
        )
    # In units of the claim, which may change from step to step.
    relative = Spread(noise.freedom, float((context.squares / claimed**2).sum()))
    ratio, unit = relative.scale, 1.0 if single is None else single
    too_much = ratio > 1.0
    if too_much and not context.known:
        return not_run(name, _KNOWN)
    broken, implied = (False, "") if too_much or single is None else context.breach()
    low, high = relative.interval(INTERVAL_ERROR)
    return judged(
        name,
        relative.p_value(1.0),
        f"the noise is {ratio:.3f} times what is claimed.{implied}{_usual_cause(low, high)}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=ratio * unit,
        interval=(low * unit, high * unit),
        claimed=unit,
        remedy="More noise than claimed costs accuracy for nothing: is it added twice, by every "
        "rank, or at every accumulation step?"
        if too_much
        else "Less noise than claimed: is it divided by the ranks or split over accumulation "
        "steps, is the clip norm missing from it, or the generator wrong?",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
    )


def _least_noise(context: Context) -> Finding:
    """Without a claimed multiplier: whether there is as much noise as the claim needs."""
    name, claim, rate = "noise scale", context.claim, context.claimed_rate
    if claim is None or rate is None:
        return not_run(name, "a claimed noise_multiplier, or a claim and a sampling rate")
    steps = context.claimed_steps or context.transcript.number_of_steps
    needed = 1.0 / accounting.dpsgd_signal_to_noise(
        epsilon=(1.0 + TOLERANCE) * claim.epsilon,
        delta=claim.delta,
        sampling_rate=rate,
        steps=steps,
    )
    noise = context.noise
    return judged(
        name,
        noise.lower_p_value(needed),
        f"the noise multiplier is {noise.scale:.4g}; the claim needs {needed:.4g} at sampling rate "
        f"{rate:.4g} over {steps:,} steps.",
        consequence=Consequence.BREACH,
        measured=noise.scale,
        interval=noise.interval(INTERVAL_ERROR) if noise.square else (0.0, 0.0),
        claimed=needed,
        remedy="Less noise than the claim needs: check how the noise multiplier was chosen, and "
        "that it is the one in use.",
    )


def _usual_cause(low: float, high: float) -> str:
    """What a round ratio of variances, within this interval of scales, usually comes from."""
    many = [count for count in _ROUND if low**2 <= count <= high**2]
    few = [count for count in _ROUND if low**2 <= 1.0 / count <= high**2]
    if len(many) == 1:
        return f" The variance is {many[0]} times the claim, as of {many[0]} independent draws."
    return f" The variance is 1/{few[0]} of the claim." if len(few) == 1 else ""


def _by_tensor(context: Context) -> Finding:
    """Every tensor's noise against that of all others; a tensor left out shows as zero."""
    name, transcript = "noise by tensor", context.transcript
    watch = transcript.watch_tensor[: transcript.watch_values.shape[1]]
    groups = transcript.steps.square.shape[1]
    count = max(groups, len(context.facts.tensors), int(watch.max(initial=-1)) + 1)
    if count < 2:
        return not_run(name, "more than one tensor")
    if not context.known:
        return not_run(name, _KNOWN)
    steps = transcript.number_of_steps
    square, freedom = np.zeros(count), np.zeros(count)
    if (transcript.tensor > 0).any():
        in_tensor = np.bincount(transcript.tensor, minlength=groups)
        square[:groups] = transcript.steps.square.sum(axis=0)
        freedom[:groups] = steps * in_tensor - transcript.steps.planted.sum(axis=0)
    watched = (transcript.watch_values**2).sum(axis=0)
    square += np.bincount(watch, weights=watched, minlength=count)
    freedom += steps * np.bincount(watch, minlength=count)
    square = context.audible(square, freedom)
    seen = np.flatnonzero(freedom >= _FEWEST_OBSERVATIONS)
    if seen.size < 2:
        return not_run(name, f"{_FEWEST_OBSERVATIONS} observations in each of two tensors")
    unseen = f" {count - seen.size} tensors have too few observations." * (count > seen.size)
    square, freedom = square[seen], freedom[seen]
    silent = square == 0.0
    if silent.any() and not silent.all():
        first = context.tensor_name(int(seen[np.argmax(silent)]))
        more = int(np.count_nonzero(silent)) - 1
        return fact(
            name,
            True,
            f"{first} is released without noise{f', and {more} more' if more else ''}.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=_single(context.claimed_noise),
            remedy="Every trainable tensor must go through the mechanism; freeze or wrap this one.",
        )
    if silent.all():
        return not_run(name, "noise")
    rest_square, rest = square.sum() - square, freedom.sum() - freedom
    ratio = (square / freedom) / (rest_square / rest)
    p_values = [
        ratio_p_value(float(r), float(a), float(b))
        for r, a, b in zip(ratio, freedom, rest, strict=True)
    ]
    worst = int(np.argmin(p_values))
    spread = Spread(float(freedom[worst]), float(square[worst]))
    interval = spread.interval(INTERVAL_ERROR)
    less = ratio[worst] < 1.0
    broken, implied = context.breach(noise=interval[1]) if less else (False, "")
    relative = math.sqrt(float(ratio[worst]))
    return judged(
        name,
        min(1.0, len(p_values) * p_values[worst]),
        f"{context.tensor_name(int(seen[worst]))} has {relative:.3f} times the noise of the "
        f"others.{implied}{unseen}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=spread.scale,
        interval=interval,
        claimed=_single(context.claimed_noise),
        remedy="One noise scale must serve all tensors: look at how this one's noise is drawn.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
    )


def _single(claimed: NDArray[np.float64] | None) -> float | None:
    same = claimed is not None and (claimed == claimed[0]).all()
    return float(claimed[0]) if same and claimed is not None else None


def _relative_squares(context: Context) -> NDArray[np.float64]:
    """Sums of squares by step, in units of what is claimed for the step."""
    claimed = context.claimed_noise
    return context.squares if claimed is None else context.squares / claimed**2


def _cannot_follow(context: Context) -> str | None:
    """What is missing to follow the noise along the steps."""
    if context.transcript.number_of_steps < _FEWEST_STEPS:
        return f"{_FEWEST_STEPS} steps"
    if context.others.min() < _FEWEST_OBSERVATIONS:
        return f"{_FEWEST_OBSERVATIONS} observations without a planting in every step"
    if not context.known:
        return _KNOWN
    claimed = context.claimed_noise
    if context.squares.min() == 0.0 or (claimed is not None and not claimed.all()):
        return "noise in every step"
    return None


def _by_step(context: Context) -> Finding:
    """Whether the noise scale changes from step to step more than chance lets it."""
    name, missing = "noise by step", _cannot_follow(context)
    if missing:
        return not_run(name, missing)
    square, freedom = _relative_squares(context), context.others
    scale = np.sqrt(square / freedom)
    # What is left of the variation once chance has had its share.
    chance = float((0.5 / freedom).mean())
    spread = math.sqrt(max(float((scale.std() / scale.mean()) ** 2) - chance, 0.0))
    return judged(
        name,
        equal_variances_p_value(square, freedom),
        f"the noise scale varies by {spread:.1%} between steps, beyond chance.",
        consequence=Consequence.LOOSENS,
        measured=spread,
        claimed=0.0,
        remedy="If the noise follows a schedule, claim it as one; otherwise find what changes it.",
        tolerable=spread < TOLERANCE,
    )


def _drift(context: Context) -> Finding:
    """Whether the noise grows or fades along the run, on a logarithmic scale."""
    name, missing = "noise drift", _cannot_follow(context)
    if missing:
        return not_run(name, missing)
    square, half = _relative_squares(context), 0.5 * context.others
    # Logarithms of chi-squares, less their exact means.
    logs = np.log(square / context.others) - (digamma(half) - np.log(half))
    variance = polygamma(1, half)
    weight = 1.0 / variance
    time = np.linspace(-0.5, 0.5, logs.size)
    time = time - float((weight * time).sum() / weight.sum())
    information = float((weight * time**2).sum())
    slope = float((weight * time * logs).sum()) / information
    # Half: of the scale, not of the variance.
    change, error = 0.5 * slope, 0.5 / math.sqrt(information)
    low, high = around(change, error)
    return judged(
        name,
        2.0 * float(ndtr(-abs(change / error))),
        f"the noise scale changes by {math.expm1(change):+.1%} along the run.",
        consequence=Consequence.LOOSENS,
        measured=math.expm1(change),
        interval=(math.expm1(low), math.expm1(high)),
        claimed=0.0,
        remedy="If the noise follows a schedule, claim it as one; otherwise find what changes it.",
        tolerable=abs(change) < TOLERANCE,
    )


def _shape(context: Context) -> Finding:
    name = "noise shape"
    values, tensor = context.quiet
    if values.shape[0] < _FEWEST_STEPS or values.shape[1] < _FEWEST_COLUMNS:
        return not_run(
            name, f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates that are never planted"
        )
    if not context.known:
        return not_run(name, _KNOWN)
    # Tensors may have scales of their own; the shape is asked of each by its own scale.
    count = np.bincount(tensor)
    scale = np.sqrt(np.bincount(tensor, (values**2).mean(axis=0)) / np.maximum(count, 1))[tensor]
    if not (scale > 0.0).all() or not (np.ptp(values, axis=1) > 0.0).all():
        return not_run(name, "noise in every step and tensor")
    skewness, skewness_p, kurtosis, kurtosis_p = normality.average_shape(values / scale)
    return judged(
        name,
        min(1.0, 2.0 * min(skewness_p, kurtosis_p)),
        f"the noise of a step has skewness {skewness:+.3f} and excess kurtosis {kurtosis:+.3f}.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy="The noise is not Gaussian, so neither the accountant nor this bound applies: look "
        "at the distribution it is drawn from.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _precision(context: Context) -> Finding:
    """Whether noise takes only the values of a short number format."""
    name = "noise precision"
    if not context.known:
        return not_run(name, _KNOWN)
    values = (context.quiet[0] * context.transcript.steps.clip_norm[:, None]).ravel()
    values = values[values != 0.0]
    if values.size < _FEWEST_VALUES:
        return not_run(name, f"{_FEWEST_VALUES:,} values of coordinates that are never planted")
    share, where = _on_short_format(context, values)
    # Numbers of single precision or better come this near in far fewer than one run in 1e100.
    return fact(
        name,
        where is not None,
        f"{share:.0%} of the noise lies on {where}."
        if where
        else "the noise lies on no short number format.",
        consequence=Consequence.BREACH,
        measured=share,
        remedy="Draw and add noise in single precision at least: a coarse lattice gives away the "
        "sum beneath it.",
    )


def _on_short_format(context: Context, values: NDArray[np.float64]) -> tuple[float, str | None]:
    """The share of values that are numbers of a short format, itself or before it was scaled."""
    largest, claimed = 0.0, _single(context.claimed_noise)
    for unit in (1.0, claimed or 1.0, (claimed or 1.0) * context.transcript.steps.clip_norm[0]):
        mantissa = np.abs(np.frexp(values / unit)[0])
        for format_name, bits in _SHORT_FORMATS:
            place = mantissa * 2.0**bits
            # A sixteenth of all numbers lies this near to one of the format.
            near = float(np.mean(np.abs(place - np.rint(place)) < 1 / 32))
            largest = max(largest, near)
            if near > 0.9:
                return near, f"the numbers of {format_name}"
    return largest, None


def _serial_correlation(context: Context) -> Finding:
    name, transcript = "serial correlation", context.transcript
    absent, steps = ~transcript.member, transcript.number_of_steps
    pairs = int(np.count_nonzero(absent)) * (steps - 1)
    if pairs < _FEWEST_PAIRS:
        return not_run(name, f"{_FEWEST_PAIRS:,} pairs of neighbouring steps of absent canaries")
    if not context.known:
        return not_run(name, "a known background: other records correlate from step to step")
    if context.noise.square == 0.0:
        return not_run(name, "noise")
    square = float(transcript.canaries.square[absent].sum())
    correlation = float(transcript.canaries.lag[absent].sum()) / square * steps / (steps - 1)
    return judged(
        name,
        min(1.0, 2.0 * correlation_tail(abs(correlation), pairs)),
        f"neighbouring steps' noise correlates by {correlation:+.4f}.",
        consequence=Consequence.BREACH if correlation > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="Noise must be fresh in every step: look for a generator that is seeded anew, or a "
        "buffer that is used again.",
        tolerable=abs(correlation) < 0.002,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
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
    return judged(
        name,
        p_value,
        f"the most alike noise of two steps, {first + 1} and {second + 1}, correlates by "
        f"{correlation:+.3f}{_by_chance(p_value)}.",
        consequence=same_noise(correlation),
        measured=correlation,
        remedy="Noise that is used twice cancels out of a difference: save and restore the "
        "generator's state with the checkpoint, and never seed it inside the loop.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _shared(context: Context) -> Finding:
    """Whether two coordinates get the same noise: one key for several tensors."""
    name, (values, tensor) = "shared noise", context.quiet
    if values.shape[1] < 2 or values.shape[0] < _FEWEST_STEPS:
        return not_run(name, f"{_FEWEST_STEPS} steps of two coordinates that are never planted")
    if not context.known:
        return not_run(name, "a known background: coordinates share the other records")
    found = most_alike(np.ascontiguousarray(values.T))
    if found is None:
        return not_run(name, "noise in two coordinates")
    correlation, first, second, p_value = found
    names = [context.tensor_name(index) for index in sorted({*tensor[[first, second]].tolist()})]
    where = f"both in {names[0]}" if len(names) == 1 else f"in {' and '.join(names)}"
    return judged(
        name,
        p_value,
        f"the most alike two coordinates, {where}, correlate by {correlation:+.3f}"
        f"{_by_chance(p_value)}.",
        consequence=same_noise(correlation),
        measured=correlation,
        remedy="Every coordinate needs noise of its own: split the random key between tensors, or "
        "let them share one generator.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _by_chance(p_value: float) -> str:
    """What to add to the largest of very many correlations, which is never near zero."""
    return ", as the largest of so many may by chance" if p_value > 0.01 else ""
