"""Checks of the noise: its scale, where and when, its shape, and its single values.

What is pooled over a run hides a few values that have no noise: tensors, coordinates and steps are
also tested one by one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, digamma, ndtr, polygamma

from askgauss import accounting
from askgauss.checks.context import (
    INTERVAL_ERROR,
    NOTICED,
    TOLERANCE,
    Context,
    CorrelatedRun,
    NoisyRun,
    around,
    has_opposites,
    known,
    single_values,
)
from askgauss.checks.registry import (
    NOISE_FRESHNESS,
    NOISE_SCALE,
    SUSPICIOUS,
    Severity,
    check,
    fact,
    judged,
    not_run,
)
from askgauss.checks.tails import (
    Spread,
    chance_near_zero,
    chance_on_lattice,
    correlation_tail,
    equal_variances_p_value,
    extreme_p_value,
    extreme_shares,
    in_short_format,
    ratio_p_value,
    ratio_tail,
    sums_of_others,
)
from askgauss.recording.transcript import SILENCE
from askgauss.results import Assumption, Consequence, Finding
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.stats import normality
from askgauss.stats.rounding import digits, round_deviations, significant

__all__ = [
    "divisor_by_step",
    "noise_and_batch_size",
    "noise_by_coordinate",
    "noise_by_step",
    "noise_by_tensor",
    "noise_drift",
    "noise_extremes",
    "noise_precision",
    "noise_scale",
    "noise_shape",
    "planted_noise",
    "steps_without_noise",
    "values_without_noise",
    "watched_coordinates",
    "whole_clip_norm",
]

_FEWEST_STEPS = 10
_FEWEST_OBSERVATIONS = 20
_FEWEST_COLUMNS = 16
_FEWEST_VALUES = 1000
_FEWEST_PLANTINGS = 10
_FEWEST_TO_COMPARE = 100
# Ratios of variances that ranks and accumulation steps give.
_ROUND = (2, 3, 4, 8, 16)
# Noise of other distributions has up to some twice the density of a Gaussian at zero.
_FAR_MORE = 3.0
_SCHEDULE_REMEDY = (
    "If the noise follows a schedule, claim it as one. Otherwise find what changes it, such as a "
    "division by the size of the batch."
)


@check(
    "steps without noise",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, noise by step, values without noise, noise drift",
)
def steps_without_noise(context: Context) -> Finding:
    """Whether every step was released with noise."""
    silent = int(np.count_nonzero((context.squares == 0.0) & (context.others > 0)))
    missing = silent + context.facts.unnoised_steps
    if not missing and not context.known:
        return not_run(known(context))
    steps = context.transcript.number_of_steps + context.facts.unnoised_steps
    return fact(
        missing > 0,
        f"{missing:,} of {steps:,} steps were released without any noise."
        if missing
        else "every step was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(missing),
        claimed=0.0,
        remedy="Check that noise is added and that the audit reads the sum after it. An empty "
        "batch must still add noise and count as a step; every optimizer step must go through the "
        "mechanism.",
    )


@check(
    "values without noise",
    part=NOISE_SCALE,
    explains="planted noise, noise shape, noise scale",
    needs=single_values,
)
def values_without_noise(context: Context) -> Finding:
    """Whether single values have no noise: more of them lie next to zero than by chance."""
    steps = context.transcript.steps
    seen = np.isfinite(steps.silent)
    if not seen.any():
        return not_run("a noise_multiplier declared to the recorder")
    planted = steps.planted.sum(axis=1)[seen]
    near, values = int(steps.silent[seen].sum()), int(context.others[seen].sum())
    near_planted, plantings = int(steps.planted_silent[seen].sum()), int(planted.sum())
    reach = SILENCE * float(steps.noise_multiplier[0]) / context.even.scale
    chance = _near_zero(context, reach)
    tests = [_at_least(near, values, chance)]
    if plantings and context.facts.contribution is None:
        tests.append(_at_least(near_planted, plantings, chance))
    p_value = min(1.0, len(tests) * min(tests))
    where = " with an included canary" if tests[-1] < tests[0] else ""
    found, of = (near_planted, plantings) if where else (near, values)
    return judged(
        p_value,
        f"{found:,} of {of:,} values{where} have almost no noise; {chance * of:,.1f} are expected "
        "by chance.",
        # A few more than expected may also mean that the noise is not Gaussian.
        consequence=Consequence.BREACH
        if found > _FAR_MORE * chance * of
        else Consequence.INVALIDATES,
        measured=float(found),
        claimed=significant(chance * of),
        remedy="Find the code that leaves some values without noise: every value needs noise in "
        "every step.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"{100.0 * max(NOTICED * math.sqrt(chance / values), 3.0 / values):.2g} % of all "
        "values without noise",
    )


def _near_zero(context: Context, reach: float) -> float:
    """Probability that noise lies within ``reach`` deviations of zero, on its lattice if any."""
    lattice = context.lattice
    if lattice == 0.0:
        return chance_near_zero(context.absolute, reach)
    steps = context.transcript.steps
    spacing = lattice / (steps.clip_norm * context.schedule * context.even.scale)
    widths, number = np.unique(spacing, return_counts=True)
    chances = [chance_on_lattice(reach, width) for width in widths.tolist()]
    return float(np.average(chances, weights=number))


def _at_least(found: int, trials: int, chance: float) -> float:
    return float(bdtrc(found - 1, trials, chance)) if found else 1.0


@check(
    "noise by tensor",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, noise by coordinate, values without noise, noise "
    "extremes, noise shape",
    reveals_individual=True,
)
def noise_by_tensor(context: Context) -> Finding:
    """Every tensor's noise compared with that of all others; one left out has none."""
    transcript = context.transcript
    watch = transcript.watch_tensor[: transcript.watch_values.shape[1]]
    groups = transcript.steps.square.shape[1]
    count = max(groups, len(context.facts.tensors), int(watch.max(initial=-1)) + 1)
    if count < 2:
        return not_run("more than one tensor")
    if not context.known:
        return not_run(known(context))
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
        return not_run(f"{_FEWEST_OBSERVATIONS} observations in each of two tensors")
    unseen = f" {count - seen.size} tensors have too few observations." * (count > seen.size)
    square, freedom = square[seen], freedom[seen]
    silent = square == 0.0
    if silent.any() and not silent.all():
        first = context.tensor_name(int(seen[np.argmax(silent)]))
        more = int(np.count_nonzero(silent)) - 1
        return fact(
            True,
            f"{first} is released without noise{f', and {more} more' if more else ''}.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=context.claimed_scale,
            remedy="Pass every trainable tensor through the mechanism: freeze or wrap this one.",
        )
    if silent.all():
        return not_run("noise")
    rest_square, rest = sums_of_others(square), freedom.sum() - freedom
    ratio = (square / freedom) / (rest_square / rest)
    p_values = [
        ratio_p_value(float(r), float(a), float(b))
        for r, a, b in zip(ratio, freedom, rest, strict=True)
    ]
    worst = int(np.argmin(p_values))
    spread = Spread(float(freedom[worst]), float(square[worst]))
    others = Spread(float(rest[worst]), float(rest_square[worst]))
    # A tensor may hold a single canary.
    rounded = spread.rounded()
    interval = rounded.interval(INTERVAL_ERROR)
    p_value = min(1.0, len(p_values) * p_values[worst])
    broken, implied = False, ""
    if ratio[worst] < 1.0 and p_value < SUSPICIOUS:
        broken, _ = context.breach(noise=spread.interval(INTERVAL_ERROR)[1])
        _, implied = context.breach(noise=interval[1])
    relative = math.sqrt(float(ratio[worst]))
    return judged(
        p_value,
        f"{context.tensor_name(int(seen[worst]))} has "
        f"{rounded.scale / others.rounded().scale:.3f} times the noise of the other tensors."
        f"{unseen}",
        consequence=Consequence.LOOSENS,
        breach=(broken, implied),
        measured=rounded.scale,
        interval=interval,
        claimed=context.claimed_scale,
        remedy="Check how the noise of this tensor is drawn: all tensors must have one scale.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"a tensor with {_smallest(float(freedom.min())):.1%} less noise than the others",
    )


@check(
    "noise by coordinate",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, values without noise, noise extremes, noise shape, "
    "normality of absent scores, normality of present scores",
    reveals_individual=True,
    needs=single_values,
)
def noise_by_coordinate(context: Context) -> Finding:
    """Every canary's noise compared with that of all: one without noise violates the claim."""
    by_canary = context.by_canary
    if by_canary is None:
        return not_run("per-canary sums in units of the declared noise")
    use = by_canary[0] >= 1
    count, square = by_canary[0][use], by_canary[2][use]
    if count.size < 2:
        return not_run("two coordinates that were seen without an included canary")
    square = context.audible(square, count)
    silent = int(np.count_nonzero((square == 0.0) & (count >= 2)))
    whole = float(square.sum()), float(count.sum())
    lowest, *odds = extreme_shares(square, count)
    tests = [min(1.0, count.size * chance) for chance in odds]
    level = math.sqrt(whole[0] / whole[1])
    scales = np.sqrt(square / count) / level
    spread = _excess_spread(scales, count)
    if not silent and count.min() >= _FEWEST_OBSERVATIONS:
        tests.append(equal_variances_p_value(square, count))
    p_value = 0.0 if silent else min(1.0, len(tests) * min(tests))
    broken, implied = silent > 0, ""
    share = Spread(float(count[lowest]), float(square[lowest]))
    rounded = share.rounded()
    relative = rounded.scale / Spread(whole[1], whole[0]).rounded().scale
    if not silent and p_value < SUSPICIOUS:
        # Either one coordinate stands out, or they differ without any standing out.
        one, shown = (part.interval(INTERVAL_ERROR / count.size)[1] for part in (share, rounded))
        together = level * (1.0 - spread)
        broken, _ = context.breach(noise=min(one, together))
        _, implied = context.breach(noise=min(shown, together))
        if min(tests[:2]) > min(tests):
            implied = f"They differ by {spread:.1%} beyond chance.{implied}"
    summary = (
        f"{silent:,} of {count.size:,} coordinates are released without noise."
        if silent
        else f"the coordinate with the least noise, of {count.size:,}, has about {relative:.2f} "
        "times the average."
    )
    consequence = Consequence.LOOSENS
    if broken and not silent and not context.bell_shaped[1]:
        # Of noise that is not Gaussian, scales of coordinates say nothing.
        broken, consequence = False, Consequence.INVALIDATES
    smallest = 1.3 * NOTICED / math.sqrt(2.0 * float(np.median(count)))
    return judged(
        p_value,
        summary,
        consequence=consequence,
        breach=(broken, implied),
        measured=relative,
        claimed=1.0,
        remedy="Look for a mask, a slice or a threshold that leaves some coordinates out: every "
        "coordinate needs noise of one scale.",
        tolerable=not silent and spread < TOLERANCE and min(tests[:2]) > SUSPICIOUS,
        sees=f"a coordinate with {min(smallest, 1.0):.0%} less noise than the others",
    )


def _excess_spread(scales: NDArray[np.float64], count: NDArray[np.float64]) -> float:
    """The variation of relative scales beyond what chance explains."""
    chance = float((0.5 / count).mean())
    return math.sqrt(max(float(scales.var()) - chance, 0.0))


# --- along the steps -----------------------------------------------------------------------------


def _followable(context: Context) -> str:
    """What is missing to follow the noise along the steps."""
    if context.transcript.number_of_steps < _FEWEST_STEPS:
        return f"{_FEWEST_STEPS} steps"
    if context.others.min() < _FEWEST_OBSERVATIONS:
        return f"{_FEWEST_OBSERVATIONS} observations without an included canary in every step"
    if not context.known:
        return known(context)
    claimed = context.claimed_noise
    if context.squares.min() == 0.0 or (claimed is not None and not claimed.all()):
        return "noise in every step"
    return ""


@check(
    "noise by step",
    part=NOISE_SCALE,
    explains="noise extremes, noise scale, noise sums across steps",
    needs=(_followable,),
)
def noise_by_step(context: Context) -> Finding:
    """Whether the noise scale changes from step to step more than by chance."""
    square, freedom = _relative_squares(context), context.others
    spread = _beyond_chance(context)[1]
    chance = math.sqrt(float((0.5 / freedom).mean()))
    p_value, tolerable = equal_variances_p_value(square, freedom), spread < TOLERANCE
    consequence, breach = _uneven(context, 1.0 if tolerable else p_value)
    return judged(
        p_value,
        f"the measured noise varies by {math.hypot(spread, chance):.1%} from step to step; "
        f"{chance:.1%} is expected by chance.",
        consequence=consequence,
        breach=breach,
        measured=spread,
        claimed=0.0,
        remedy=_SCHEDULE_REMEDY,
        tolerable=tolerable,
        sees=f"a step with {1.3 * _smallest(float(freedom.min())):.1%} less noise than the others",
    )


def _relative_squares(context: Context) -> NDArray[np.float64]:
    """Sums of squares by step, in units of what is claimed for the step."""
    claimed = context.claimed_noise
    return context.squares if claimed is None else context.squares / claimed**2


def _beyond_chance(context: Context) -> tuple[NDArray[np.float64], float]:
    """Scales of the steps relative to what is claimed, and how much they vary beyond chance.

    They are shrunk towards their mean by what chance spreads them.
    """
    scale = np.sqrt(_relative_squares(context) / context.others)
    chance, mean = float((0.5 / context.others).mean()), float(scale.mean())
    found = float((scale.std() / mean) ** 2)
    spread = math.sqrt(max(found - chance, 0.0))
    return mean + (scale - mean) * (spread / math.sqrt(found) if found else 0.0), spread


def _uneven(context: Context, p_value: float) -> tuple[Consequence, tuple[bool, str]]:
    """What steps that differ mean, and whether with their measured noise they violate the claim.

    Asked only of steps that differ beyond chance. Noise that is uneven leaks more than noise of
    that mean square, so that a pooled bound would stay below the claim. Of noise that is not
    Gaussian, scales of steps say nothing.
    """
    rate, claimed = context.claimed_rate, context.claimed_noise
    if p_value >= SUSPICIOUS or context.claim is None or rate is None:
        return Consequence.LOOSENS, (False, "")
    scale = _beyond_chance(context)[0]
    broken, implied = context.exceeds(1.0 / (scale if claimed is None else scale * claimed), rate)
    if broken and not context.bell_shaped[0]:
        return Consequence.INVALIDATES, (False, implied)
    return Consequence.LOOSENS, (broken, implied)


@check(
    "noise drift",
    part=NOISE_SCALE,
    explains="noise by step, noise scale, noise sums across steps",
    needs=(_followable,),
    after_resume=True,
)
def noise_drift(context: Context) -> Finding:
    """Whether the noise grows or fades along the run, on a logarithmic scale."""
    change, error = _slope(context, np.linspace(-0.5, 0.5, context.others.size))
    low, high = around(change, error)
    p_value, tolerable = 2.0 * float(ndtr(-abs(change / error))), abs(change) < TOLERANCE
    consequence, breach = _uneven(context, 1.0 if tolerable else p_value)
    return judged(
        p_value,
        f"the noise scale changes by {math.expm1(change):+.1%} along the run.",
        consequence=consequence,
        breach=breach,
        measured=math.expm1(change),
        interval=(math.expm1(low), math.expm1(high)),
        claimed=0.0,
        remedy=_SCHEDULE_REMEDY,
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


@check(
    "noise and batch size",
    part=NOISE_SCALE,
    explains="noise by step, noise scale, noise sums across steps",
    needs=(_followable,),
)
def noise_and_batch_size(context: Context) -> Finding:
    """Whether the noise follows the size of the batch, which one record changes."""
    sizes = context.transcript.steps.batch_size
    if sizes.size == 0 or not np.isfinite(sizes).all() or sizes.max() == sizes.min():
        return not_run("batches of different sizes, declared by batch_size= or batch=")
    slope, error = _slope(context, sizes / sizes.mean())
    return judged(
        2.0 * float(ndtr(-abs(slope / error))),
        f"the noise of a batch 1% above the mean size is {slope:+.2f}% off the mean noise (± "
        f"{2 * error:.2g}%).",
        consequence=Consequence.INVALIDATES,
        measured=slope,
        interval=around(slope, error),
        claimed=0.0,
        remedy="Scale the noise by a constant, and divide the noisy sum by the expected batch "
        "size: one record more must not change the noise.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"noise that follows {NOTICED * error:.0%} of a batch's excess",
    )


@check(
    "divisor by step",
    part=NOISE_SCALE,
    explains="repeated noise, shared noise, common noise, serial correlation, whole-run "
    "correlation, noise spectrum, noise sums across steps, noise by coordinate, noise by "
    "tensor, noise drift, noise by step, noise and batch size, noise scale, noise shape, "
    "noise extremes, planted noise, even contribution, single plantings, carry-over",
)
def divisor_by_step(context: Context) -> Finding | None:
    """Whether steps multiply the clean sum by one number: the size of the batch is another."""
    noise, gain = context.even, context.facts.gain
    if gain is None:
        return None
    if not context.known or noise.square == 0.0 or gain.steps < _FEWEST_STEPS:
        return not_run(f"{_FEWEST_STEPS} steps with noise and a known background")
    freedom = gain.steps - 1.0
    ratio = (gain.along / noise.scale) ** 2
    spread = noise.scale * math.sqrt(max(ratio - 1.0, 0.0)) / gain.norm
    visible = noise.scale * math.sqrt(NOTICED * math.sqrt(2.0 / freedom)) / gain.norm
    return judged(
        ratio_tail(ratio, freedom, noise.freedom),
        f"the factor of the noisy sum varies by {spread:.1%} from step to step.",
        consequence=Consequence.INVALIDATES,
        measured=digits(spread),
        claimed=0.0,
        remedy="Divide by one constant, the expected batch size: the actual batch size reveals who "
        "is in it.",
        tolerable=spread < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a divisor that varies by {max(visible, TOLERANCE):.1%}",
    )


# --- of all steps together -----------------------------------------------------------------------


@check("noise scale", part=NOISE_SCALE, decides=True)
def noise_scale(run: NoisyRun) -> Finding:
    """Whether there is as much noise as is claimed."""
    relative, single = run.relative, run.claimed_scale
    if isinstance(run, Context) and run.claimed_noise is None:
        return _least_noise(run)
    if isinstance(run, CorrelatedRun) and (missing := run.unclaimed or run.apart):
        return not_run(missing)
    if relative is None or relative.square == 0.0:
        return fact(
            run.noise.square == 0.0,
            "there is no noise at all." if run.noise.square == 0.0 else "no noise is claimed.",
            consequence=Consequence.BREACH,
            measured=run.noise.scale,
            claimed=single,
            remedy="Check that noise is added, and that the audit reads the sum after it.",
        )
    ratio, unit = relative.scale, 1.0 if single is None else single
    too_much = ratio > 1.0
    if too_much and not run.known:
        return not_run(known(run))
    p_value, (low, high) = relative.p_value(1.0), relative.interval(INTERVAL_ERROR)
    less = p_value < SUSPICIOUS and not too_much
    smallest = _smallest(relative.freedom, run.noticed)
    broken, implied = run.breach_of_noise(high * unit) if less else (False, "")
    return judged(
        p_value,
        f"the noise is {ratio:.3f} times what is claimed.",
        consequence=Consequence.LOOSENS,
        breach=(broken, f"{implied}{_usual_cause(low, high)}"),
        measured=ratio * unit,
        interval=(low * unit, high * unit),
        claimed=unit,
        remedy="More noise than claimed costs accuracy without need. Check that it is not added "
        "twice, by every rank, or at every accumulation step."
        if too_much
        else "Less noise than claimed. Check that it is not divided by the number of ranks or "
        "split over accumulation steps, that it is scaled by the clip norm (and by the strategy's "
        "sensitivity, where noise is correlated), and that the generator draws standard normals.",
        tolerable=abs(ratio - 1.0) < TOLERANCE,
        sees=f"noise {smallest:.1%} below the claim",
        visible=smallest,
    )


def _smallest(freedom: float, noticed: float = NOTICED) -> float:
    """The relative difference of scales that is detected from this many observations."""
    return max(noticed / math.sqrt(2.0 * freedom), TOLERANCE)


def _least_noise(context: Context) -> Finding:
    """Without a claimed multiplier: whether there is as much noise as the claim needs."""
    claim, rate = context.claim, context.claimed_rate
    if claim is None or rate is None:
        return not_run("a claimed noise_multiplier, or a claim and a sampling rate")
    steps = context.claimed_steps or context.transcript.number_of_steps
    epsilon = (1.0 + TOLERANCE) * claim.epsilon
    if claim.adjacency == "replace" and has_opposites(context.transcript):
        scheme = ReplaceOne(of=Poisson(rate=rate))
        signal = scheme.signal_to_noise(epsilon=epsilon, delta=claim.delta, steps=steps)
    else:
        signal = accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=claim.delta, sampling_rate=rate, steps=steps
        )
    needed = 1.0 / signal
    noise = context.noise
    return judged(
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


@check(
    "noise shape",
    part=NOISE_FRESHNESS,
    explains="noise by step, noise extremes, single plantings, planted noise",
)
def noise_shape(run: NoisyRun) -> Finding:
    """Whether the noise of a step or node is Gaussian."""
    count, columns = run.rows.shape
    if count < _FEWEST_STEPS or columns < _FEWEST_COLUMNS:
        return not_run(
            f"{_FEWEST_STEPS} {run.unit}s of {_FEWEST_COLUMNS} coordinates without an included "
            "canary"
        )
    if run.dependent:
        return not_run(run.dependent)
    # Tensors may have scales of their own; the shape is tested in units of each scale.
    rows = run.scaled_rows
    if rows is None:
        return not_run(f"noise in every {run.unit} and tensor")
    skewness, skewness_p, kurtosis, kurtosis_p = normality.average_shape(rows)
    return judged(
        min(1.0, 2.0 * min(skewness_p, kurtosis_p)),
        f"the noise of a {run.unit} has skewness {skewness:+.3f} and excess kurtosis "
        f"{kurtosis:+.3f}; Gaussian noise has neither.",
        if_wrong="It is drawn from another distribution.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy="Draw Gaussian noise: neither the accounting nor this bound applies to noise of "
        "another distribution.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=run.undermines,
    )


# --- single values -------------------------------------------------------------------------------


def whole_clip_norm(context: Context) -> str:
    """Checks of what one inclusion adds need canaries of one clip norm."""
    whole = context.facts.contribution is None
    return "" if whole else "canaries that are included with the whole clip norm"


@check("planted noise", part=NOISE_SCALE, needs=(*single_values, whole_clip_norm))
def planted_noise(context: Context) -> Finding:
    """Whether noise is the same where a canary is included as where it is not."""
    count, _, square = _planted_residuals(context)
    if count < _FEWEST_PLANTINGS:
        return not_run(f"{_FEWEST_PLANTINGS} inclusions of canaries, got {count:.0f}")
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
        "values with an included canary have no noise."
        if none
        else f"values with an included canary have {relative:.3f} times the noise of all others.",
        consequence=Consequence.INVALIDATES,
        breach=(broken, implied),
        measured=relative,
        claimed=1.0,
        remedy="Look for noise that is drawn, scaled or masked by the gradients, and for records "
        "that are not clipped to one norm: noise must not depend on the signal.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"noise {NOTICED / math.sqrt(2.0 * count):.1%} off where a canary is included",
    )


def _planted_residuals(context: Context) -> tuple[float, float, float]:
    """Count, mean and squared deviations of inclusions, in units in which steps are alike."""
    steps, unit = context.transcript.steps, context.schedule
    planted = steps.planted.sum(axis=1).astype(np.float64)
    total = (steps.planted_total.sum(axis=1) - planted) / unit
    square = steps.planted_square.sum(axis=1) - 2.0 * steps.planted_total.sum(axis=1) + planted
    count, mean = float(planted.sum()), float(total.sum() / max(planted.sum(), 1.0))
    return count, mean, max(float((square / unit**2).sum()) - count * mean * mean, 0.0)


def _with_dropouts(context: Context) -> float:
    """By how much the variance of inclusions may grow where clients of federated rounds drop out.

    Over the survivors, one in r of whom is left, a client adds r clip norms or none, with noise
    that is r times the claim: a variance of r - 1 clip norms.
    """
    claimed = context.claimed_noise
    if context.facts.rounds is None or claimed is None or not (claimed > 0.0).all():
        return 1.0
    scale = context.even.scale
    return 1.0 + max(scale / float(claimed[0]) - 1.0, 0.0) / scale**2


@check("noise extremes", part=NOISE_SCALE, reveals_individual=True, needs=single_values)
def noise_extremes(context: Context) -> Finding:
    """Whether the extremes of all values are those of Gaussian noise: neither heavy nor cut off."""
    steps = context.transcript.steps
    seen = np.isfinite(steps.most)
    count = int(context.others[: seen.size][seen].sum())
    if count < _FEWEST_TO_COMPARE:
        return not_run(f"{_FEWEST_TO_COMPARE} observations without an included canary")
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
        f"of {count:,} values the smallest and the largest are about {-lowest:.1f} and "
        f"{highest:.1f} standard deviations.",
        if_wrong="Gaussian noise has no such extremes.",
        consequence=Consequence.INVALIDATES,
        measured=max(highest, lowest),
        remedy="Look for clipping or rejection after the noise, or for values that are not noise: "
        "neither the accountant nor this bound applies to noise with other tails.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees="noise cut off at 3 standard deviations, or a single value at 7",
    )


@check("noise precision", part=NOISE_SCALE, severity=Severity.THEORETICAL, needs=(known,))
def noise_precision(context: Context) -> Finding:
    """Whether noise takes only the values of a short number format."""
    values = context.absolute
    if values.size < _FEWEST_VALUES:
        return not_run(f"{_FEWEST_VALUES:,} values of coordinates without an included canary")
    claimed = context.claimed_noise
    first = 1.0 if claimed is None else float(claimed[0])
    units = (1.0, first, first * float(context.transcript.steps.clip_norm[0]))
    share, where = in_short_format(values, units)
    passed = "the noise has full float precision."
    if context.lattice and where is None:
        passed = (
            "the noise is discrete, on an even lattice with a spacing of "
            f"{context.spacing_in_deviations:.3g} standard deviations, not in a short number "
            "format."
        )
    # Numbers of single precision or better come this near in far fewer than one run in 1e100.
    return fact(
        where is not None,
        f"{share:.0%} of the noise values are {where}." if where else passed,
        consequence=Consequence.BREACH,
        measured=share,
        remedy="Draw and add noise in float32 or better: a coarse lattice reveals the sum beneath "
        "it.",
    )


@check("watched coordinates", part=NOISE_SCALE)
def watched_coordinates(context: Context) -> Finding | None:
    """Whether watched coordinates read zero while canaries do not: the reading may be at fault."""
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
        remedy="Copy the clean values before the noise is added, since noise added in place "
        "changes both; or check whether noise is added at the canaries only.",
    )
