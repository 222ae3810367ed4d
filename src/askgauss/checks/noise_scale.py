"""Checks of the noise: its scale, where and when, and its shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, ndtr, polygamma

from askgauss import accounting
from askgauss._rounding import digits
from askgauss.checks.adjacency import has_opposites
from askgauss.checks.context import INTERVAL_ERROR, NOTICED, TOLERANCE, Context, around
from askgauss.checks.correlation import correlation_checks
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.noise_values import value_checks
from askgauss.checks.rounding_to_error import coarse_spread
from askgauss.checks.tails import (
    Spread,
    equal_variances_p_value,
    ratio_p_value,
    ratio_tail,
    sums_of_others,
)
from askgauss.recording.facts import GainFacts
from askgauss.results import Assumption, Consequence, Finding
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.stats import normality

__all__ = ["noise_checks"]

_FEWEST_STEPS = 10
_FEWEST_OBSERVATIONS = 20
_FEWEST_COLUMNS = 16
# Ratios of variances that ranks and accumulation steps give.
_ROUND = (2, 3, 4, 8, 16)
_KNOWN = "a known background, to tell noise from other records"


def noise_checks(context: Context) -> Iterator[Finding]:
    """Every check of the noise; those that name a cause come before those that show a symptom."""
    yield _missing(context)
    yield from correlation_checks(context)
    yield _by_tensor(context)
    yield from value_checks(context)
    if context.facts.gain is not None:
        yield _divisor_by_step(context, context.facts.gain)
    yield _drift(context)
    yield _by_batch(context)
    yield _by_step(context)
    yield _scale(context)
    yield _shape(context)


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
    p_value, (low, high) = relative.p_value(1.0), relative.interval(INTERVAL_ERROR)
    suspicious = p_value < SUSPICIOUS
    broken, implied = context.breach() if suspicious and not too_much else (False, "")
    return judged(
        name,
        p_value,
        f"the noise is {ratio:.3f} times what is claimed.",
        if_wrong=f"{implied}{_usual_cause(low, high)}".strip(),
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
        sees=f"noise {_smallest(relative.freedom):.1%} below the claim",
        visible=_smallest(relative.freedom),
    )


def _smallest(freedom: float) -> float:
    """The relative difference of scales that is noticed from so many observations."""
    return max(NOTICED / math.sqrt(2.0 * freedom), TOLERANCE)


def _least_noise(context: Context) -> Finding:
    """Without a claimed multiplier: whether there is as much noise as the claim needs."""
    name, claim, rate = "noise scale", context.claim, context.claimed_rate
    if claim is None or rate is None:
        return not_run(name, "a claimed noise_multiplier, or a claim and a sampling rate")
    steps = context.claimed_steps or context.transcript.number_of_steps
    epsilon = (1.0 + TOLERANCE) * claim.epsilon
    if claim.adjacency == "replace" and has_opposites(context.transcript):
        law = ReplaceOne(of=Poisson(rate=rate))
        signal = law.signal_to_noise(epsilon=epsilon, delta=claim.delta, steps=steps)
    else:
        signal = accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=claim.delta, sampling_rate=rate, steps=steps
        )
    needed = 1.0 / signal
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
        sees=f"noise {_smallest(noise.freedom):.1%} below what the claim needs",
        visible=_smallest(noise.freedom),
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
    square, freedom, unit = np.zeros(count), np.zeros(count), context.schedule[:, None]
    if (transcript.tensor > 0).any():
        in_tensor = np.bincount(transcript.tensor, minlength=groups)
        square[:groups] = (transcript.steps.square / unit**2).sum(axis=0)
        freedom[:groups] = steps * in_tensor - transcript.steps.planted.sum(axis=0)
    watched = ((transcript.watch_values / unit) ** 2).sum(axis=0)
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
    rest_square, rest = sums_of_others(square), freedom.sum() - freedom
    ratio = (square / freedom) / (rest_square / rest)
    p_values = [
        ratio_p_value(float(r), float(a), float(b))
        for r, a, b in zip(ratio, freedom, rest, strict=True)
    ]
    worst = int(np.argmin(p_values))
    spread = Spread(float(freedom[worst]), float(square[worst]))
    others = Spread(float(rest[worst]), float(rest_square[worst]))
    # A tensor may hold a single canary: what is told of it is no finer than chance moves it.
    told = coarse_spread(spread)
    interval = told.interval(INTERVAL_ERROR)
    p_value = min(1.0, len(p_values) * p_values[worst])
    broken, implied = False, ""
    if ratio[worst] < 1.0 and p_value < SUSPICIOUS:
        broken, _ = context.breach(noise=spread.interval(INTERVAL_ERROR)[1])
        _, implied = context.breach(noise=interval[1])
    relative = math.sqrt(float(ratio[worst]))
    return judged(
        name,
        p_value,
        f"{context.tensor_name(int(seen[worst]))} has "
        f"{told.scale / coarse_spread(others).scale:.3f} times the noise of the others.{unseen}",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=told.scale,
        interval=interval,
        claimed=_single(context.claimed_noise),
        remedy="One noise scale must serve all tensors: look at how this one's noise is drawn.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"a tensor with {_smallest(float(freedom.min())):.1%} less noise than the others",
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
    spread = _beyond_chance(context)[1]
    chance = math.sqrt(float((0.5 / freedom).mean()))
    p_value, tolerable = equal_variances_p_value(square, freedom), spread < TOLERANCE
    broken, implied = (False, "") if tolerable else _uneven(context, p_value)
    return judged(
        name,
        p_value,
        f"the measured noise varies by {math.hypot(spread, chance):.1%} from step to step, where "
        f"{chance:.1%} is expected of chance.",
        if_wrong=implied.strip(),
        consequence=_if_uneven(context, broken),
        measured=spread,
        claimed=0.0,
        remedy="If the noise follows a schedule, claim it as one; otherwise find what changes it, "
        "such as a division by the size of the batch.",
        tolerable=tolerable,
        sees=f"a step with {1.3 * _smallest(float(freedom.min())):.1%} less noise than the others",
    )


def _beyond_chance(context: Context) -> tuple[NDArray[np.float64], float]:
    """Scales of the steps relative to what is claimed, and how much they vary beyond chance.

    They are drawn together by what chance spreads them.
    """
    scale = np.sqrt(_relative_squares(context) / context.others)
    chance, mean = float((0.5 / context.others).mean()), float(scale.mean())
    found = float((scale.std() / mean) ** 2)
    spread = math.sqrt(max(found - chance, 0.0))
    return mean + (scale - mean) * (spread / math.sqrt(found) if found else 0.0), spread


def _uneven(context: Context, p_value: float) -> tuple[bool, str]:
    """Whether steps with the noise that each was measured to have, composed, break the claim.

    Asked only of steps that differ beyond chance. Noise that is uneven leaks more than noise of
    that mean square, so that a pooled bound would stay below the claim.
    """
    rate, claimed = context.claimed_rate, context.claimed_noise
    if p_value >= SUSPICIOUS or context.claim is None or rate is None:
        return False, ""
    scale = _beyond_chance(context)[0]
    return context.exceeds(1.0 / (scale if claimed is None else scale * claimed), rate)


def _if_uneven(context: Context, broken: bool) -> Consequence:
    """What steps that differ mean; of noise that is not Gaussian their scales say nothing."""
    if not broken:
        return Consequence.LOOSENS
    return Consequence.BREACH if context.bell_shaped[0] else Consequence.INVALIDATES


def _drift(context: Context) -> Finding:
    """Whether the noise grows or fades along the run, on a logarithmic scale."""
    name, missing = "noise drift", _cannot_follow(context)
    if missing:
        return not_run(name, missing)
    change, error = _slope(context, np.linspace(-0.5, 0.5, context.others.size))
    low, high = around(change, error)
    p_value, tolerable = 2.0 * float(ndtr(-abs(change / error))), abs(change) < TOLERANCE
    broken, implied = (False, "") if tolerable else _uneven(context, p_value)
    return judged(
        name,
        p_value,
        f"the noise scale changes by {math.expm1(change):+.1%} along the run.",
        if_fine=", as it may by chance.",
        if_wrong=implied.strip(),
        consequence=_if_uneven(context, broken),
        measured=math.expm1(change),
        interval=(math.expm1(low), math.expm1(high)),
        claimed=0.0,
        remedy="If the noise follows a schedule, claim it as one; otherwise find what changes it, "
        "such as a division by the size of the batch.",
        tolerable=tolerable,
        sees=f"noise that changes by {max(NOTICED * error, TOLERANCE):.1%} along the run",
    )


def _slope(context: Context, along: NDArray[np.float64]) -> tuple[float, float]:
    """How the logarithm of the noise scale changes along something, and the standard error."""
    square, half = _relative_squares(context), 0.5 * context.others
    # Logarithms of chi-squares, less their exact means.
    logs = np.log(square / context.others) - (digamma(half) - np.log(half))
    weight = 1.0 / polygamma(1, half)
    along = along - float((weight * along).sum() / weight.sum())
    information = float((weight * along**2).sum())
    # Half: of the scale, not of the variance.
    slope = 0.5 * float((weight * along * logs).sum()) / information
    return slope, 0.5 / math.sqrt(information)


def _divisor_by_step(context: Context, gain: GainFacts) -> Finding:
    """Whether steps multiply the clean sum by one number: the size of the batch is another."""
    name, noise = "divisor by step", context.even
    if not context.known or noise.square == 0.0 or gain.steps < _FEWEST_STEPS:
        return not_run(name, f"{_FEWEST_STEPS} steps with noise and a known background")
    freedom = gain.steps - 1.0
    ratio = (gain.along / noise.scale) ** 2
    spread = noise.scale * math.sqrt(max(ratio - 1.0, 0.0)) / gain.norm
    visible = noise.scale * math.sqrt(NOTICED * math.sqrt(2.0 / freedom)) / gain.norm
    return judged(
        name,
        ratio_tail(ratio, freedom, noise.freedom),
        f"the noisy sum is multiplied by a number that varies by {spread:.1%} from step to step.",
        if_fine=", as it may by chance." if spread else "",
        consequence=Consequence.INVALIDATES,
        measured=digits(spread),
        claimed=0.0,
        remedy="Divide by one constant, the expected batch size: the size of the batch tells who "
        "is in it.",
        tolerable=spread < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a divisor that varies by {max(visible, TOLERANCE):.1%}",
    )


def _by_batch(context: Context) -> Finding:
    """Whether the noise follows the size of the batch, which one record changes."""
    name, missing = "noise and batch size", _cannot_follow(context)
    if missing:
        return not_run(name, missing)
    sizes = context.transcript.steps.batch_size
    if sizes.size == 0 or not np.isfinite(sizes).all() or sizes.max() == sizes.min():
        return not_run(name, "batches of different sizes, told by batch_size= or batch=")
    slope, error = _slope(context, sizes / sizes.mean())
    return judged(
        name,
        2.0 * float(ndtr(-abs(slope / error))),
        f"a batch 1% above the mean has {slope:+.2f}% more noise, give or take {2 * error:.2g}%.",
        consequence=Consequence.INVALIDATES,
        measured=slope,
        interval=around(slope, error),
        claimed=0.0,
        remedy="One record more must not change the noise: scale it by a constant, and divide the "
        "noisy sum by the expected size of a batch.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"noise that follows {NOTICED * error:.0%} of a batch's excess",
    )


def _shape(context: Context) -> Finding:
    name = "noise shape"
    steps, columns = context.quiet[0].shape
    if steps < _FEWEST_STEPS or columns < _FEWEST_COLUMNS:
        return not_run(
            name, f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates that are never planted"
        )
    if not context.known:
        return not_run(name, _KNOWN)
    # Tensors may have scales of their own; the shape is asked of each by its own scale.
    values = context.quiet_by_tensor
    if values is None:
        return not_run(name, "noise in every step and tensor")
    skewness, skewness_p, kurtosis, kurtosis_p = normality.average_shape(values)
    return judged(
        name,
        min(1.0, 2.0 * min(skewness_p, kurtosis_p)),
        f"the noise of a step has skewness {skewness:+.3f} and excess kurtosis {kurtosis:+.3f}.",
        if_fine=", as Gaussian noise may.",
        if_wrong="Gaussian noise has neither: it is drawn from another distribution.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy="The noise is not Gaussian, so neither the accountant nor this bound applies: look "
        "at the distribution it is drawn from.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )
