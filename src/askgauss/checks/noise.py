"""Checks of the scale of the noise, where and when, and of its shape.

What is pooled over a run hides a few values that have no noise: tensors, coordinates and steps are
also tested one by one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, digamma, ndtr, polygamma

from askgauss import accounting
from askgauss.checks.adjacency import has_opposites
from askgauss.checks.context import (
    INTERVAL_ERROR,
    KNOWN_BACKGROUND,
    NOTICED,
    TOLERANCE,
    Context,
    around,
)
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.lattice import chance_near_zero, chance_on_lattice
from askgauss.checks.registry import NOISE_FRESHNESS, NOISE_SCALE, check
from askgauss.checks.tails import (
    Spread,
    equal_variances_p_value,
    extreme_shares,
    ratio_p_value,
    ratio_tail,
    sums_of_others,
)
from askgauss.recording.transcript import SILENCE
from askgauss.results import Assumption, Consequence, Finding
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.stats import normality
from askgauss.stats.rounding import digits, significant

__all__ = [
    "divisor_by_step",
    "gaussian_shape",
    "no_single_values",
    "noise_and_batch_size",
    "noise_by_coordinate",
    "noise_by_step",
    "noise_by_tensor",
    "noise_drift",
    "noise_scale",
    "noise_shape",
    "steps_without_noise",
    "values_without_noise",
]

_FEWEST_STEPS = 10
_FEWEST_OBSERVATIONS = 20
_FEWEST_COLUMNS = 16
# Ratios of variances that ranks and accumulation steps give.
_ROUND = (2, 3, 4, 8, 16)
# Noise of other distributions has up to some twice the density of a Gaussian at zero.
_FAR_MORE = 3.0


@check(
    "steps without noise",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, noise by step, values without noise, noise drift",
)
def steps_without_noise(context: Context) -> Finding:
    """Whether every step was released with noise."""
    transcript = context.transcript
    silent = int(np.count_nonzero((context.squares == 0.0) & (context.others > 0)))
    missing = silent + context.facts.unnoised_steps
    if not missing and not context.known:
        return not_run(KNOWN_BACKGROUND)
    return fact(
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


@check("values without noise", part=NOISE_SCALE, explains="planted noise, noise shape, noise scale")
def values_without_noise(context: Context) -> Finding:
    """Whether single values have no noise: more of them lie next to zero than chance has it."""
    missing, steps = no_single_values(context), context.transcript.steps
    if missing:
        return not_run(missing)
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
    where = " where a canary is planted" if tests[-1] < tests[0] else ""
    found, of = (near_planted, plantings) if where else (near, values)
    return judged(
        p_value,
        f"{found:,} of {of:,} values{where} have next to no noise, where chance gives "
        f"{chance * of:,.1f}.",
        # A few more than expected may also mean that the noise is not Gaussian.
        consequence=Consequence.BREACH
        if found > _FAR_MORE * chance * of
        else Consequence.INVALIDATES,
        measured=float(found),
        claimed=significant(chance * of),
        remedy="Every value needs noise in every step: look for what leaves some of them out.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"{max(NOTICED * math.sqrt(chance / values), 3.0 / values):.2g} of all values "
        "without noise",
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


def no_single_values(context: Context) -> str | None:
    """What is missing to take single values for noise."""
    if not context.known:
        return KNOWN_BACKGROUND
    if not context.exact:
        return "canaries that are orthogonal by construction"
    return "noise" if context.noise.square == 0.0 else None


@check(
    "noise by tensor",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, noise by coordinate, values without noise, noise "
    "extremes, noise shape",
    reveals_individual=True,
)
def noise_by_tensor(context: Context) -> Finding:
    """Every tensor's noise against that of all others; a tensor left out shows as zero."""
    transcript = context.transcript
    watch = transcript.watch_tensor[: transcript.watch_values.shape[1]]
    groups = transcript.steps.square.shape[1]
    count = max(groups, len(context.facts.tensors), int(watch.max(initial=-1)) + 1)
    if count < 2:
        return not_run("more than one tensor")
    if not context.known:
        return not_run(KNOWN_BACKGROUND)
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
            claimed=_single(context.claimed_noise),
            remedy="Every trainable tensor must go through the mechanism; freeze or wrap this one.",
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
        f"{rounded.scale / others.rounded().scale:.3f} times the noise of the others.{unseen}",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=rounded.scale,
        interval=interval,
        claimed=_single(context.claimed_noise),
        remedy="One noise scale must serve all tensors: look at how this one's noise is drawn.",
        tolerable=abs(relative - 1.0) < TOLERANCE,
        sees=f"a tensor with {_smallest(float(freedom.min())):.1%} less noise than the others",
    )


def _single(claimed: NDArray[np.float64] | None) -> float | None:
    same = claimed is not None and (claimed == claimed[0]).all()
    return float(claimed[0]) if same and claimed is not None else None


@check(
    "noise by coordinate",
    part=NOISE_SCALE,
    explains="noise scale, duplicate scores, values without noise, noise extremes, noise shape, "
    "normality of absent scores, normality of present scores",
    reveals_individual=True,
)
def noise_by_coordinate(context: Context) -> Finding:
    """Every canary's noise against that of all: one without noise is a breach by itself."""
    missing, by_canary = no_single_values(context), context.by_canary
    if missing:
        return not_run(missing)
    if by_canary is None:
        return not_run("sums of every canary in units of the declared noise")
    use = by_canary[0] >= 1
    count, square = by_canary[0][use], by_canary[2][use]
    if count.size < 2:
        return not_run("two coordinates that were seen without a planting")
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
    if silent:
        summary = f"{silent:,} of {count.size:,} coordinates are released without noise."
    else:
        summary = (
            f"the least noise of {count.size:,} coordinates is about {relative:.2f} times the "
            "average."
        )
    consequence = Consequence.BREACH if broken else Consequence.LOOSENS
    if broken and not silent and not context.bell_shaped[1]:
        # Of noise that is not Gaussian, scales of coordinates say nothing.
        consequence = Consequence.INVALIDATES
    smallest = 1.3 * NOTICED / math.sqrt(2.0 * float(np.median(count)))
    return judged(
        p_value,
        summary,
        if_fine=", as the least of so many may be by chance.",
        if_wrong=implied.strip(),
        consequence=consequence,
        measured=relative,
        claimed=1.0,
        remedy="Every coordinate needs noise of one scale: look for a mask, a slice or a threshold "
        "that leaves some of them out.",
        tolerable=not silent and spread < TOLERANCE and min(tests[:2]) > SUSPICIOUS,
        sees=f"a coordinate with {min(smallest, 1.0):.0%} less noise than the others",
    )


def _excess_spread(scales: NDArray[np.float64], count: NDArray[np.float64]) -> float:
    """What is left of the variation of relative scales once chance has had its share."""
    chance = float((0.5 / count).mean())
    return math.sqrt(max(float(scales.var()) - chance, 0.0))


@check(
    "noise by step",
    part=NOISE_SCALE,
    explains="noise extremes, noise scale, noise sums across steps",
)
def noise_by_step(context: Context) -> Finding:
    """Whether the noise scale changes from step to step more than chance lets it."""
    missing = _cannot_follow(context)
    if missing:
        return not_run(missing)
    square, freedom = _relative_squares(context), context.others
    spread = _beyond_chance(context)[1]
    chance = math.sqrt(float((0.5 / freedom).mean()))
    p_value, tolerable = equal_variances_p_value(square, freedom), spread < TOLERANCE
    broken, implied = (False, "") if tolerable else _uneven(context, p_value)
    return judged(
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


def _cannot_follow(context: Context) -> str | None:
    """What is missing to follow the noise along the steps."""
    if context.transcript.number_of_steps < _FEWEST_STEPS:
        return f"{_FEWEST_STEPS} steps"
    if context.others.min() < _FEWEST_OBSERVATIONS:
        return f"{_FEWEST_OBSERVATIONS} observations without a planting in every step"
    if not context.known:
        return KNOWN_BACKGROUND
    claimed = context.claimed_noise
    if context.squares.min() == 0.0 or (claimed is not None and not claimed.all()):
        return "noise in every step"
    return None


def _relative_squares(context: Context) -> NDArray[np.float64]:
    """Sums of squares by step, in units of what is claimed for the step."""
    claimed = context.claimed_noise
    return context.squares if claimed is None else context.squares / claimed**2


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


@check(
    "noise drift",
    part=NOISE_SCALE,
    explains="noise by step, noise scale, noise sums across steps",
    after_resume=True,
)
def noise_drift(context: Context) -> Finding:
    """Whether the noise grows or fades along the run, on a logarithmic scale."""
    missing = _cannot_follow(context)
    if missing:
        return not_run(missing)
    change, error = _slope(context, np.linspace(-0.5, 0.5, context.others.size))
    low, high = around(change, error)
    p_value, tolerable = 2.0 * float(ndtr(-abs(change / error))), abs(change) < TOLERANCE
    broken, implied = (False, "") if tolerable else _uneven(context, p_value)
    return judged(
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


@check(
    "noise and batch size",
    part=NOISE_SCALE,
    explains="noise by step, noise scale, noise sums across steps",
)
def noise_and_batch_size(context: Context) -> Finding:
    """Whether the noise follows the size of the batch, which one record changes."""
    missing = _cannot_follow(context)
    if missing:
        return not_run(missing)
    sizes = context.transcript.steps.batch_size
    if sizes.size == 0 or not np.isfinite(sizes).all() or sizes.max() == sizes.min():
        return not_run("batches of different sizes, told by batch_size= or batch=")
    slope, error = _slope(context, sizes / sizes.mean())
    return judged(
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


@check("noise scale", part=NOISE_SCALE, decides=True)
def noise_scale(context: Context) -> Finding:
    """Whether there is as much noise as is claimed."""
    noise, claimed = context.noise, context.claimed_noise
    if claimed is None:
        return _least_noise(context)
    single = float(claimed[0]) if (claimed == claimed[0]).all() else None
    if noise.square == 0.0 or not claimed.all():
        return fact(
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
        return not_run(KNOWN_BACKGROUND)
    p_value, (low, high) = relative.p_value(1.0), relative.interval(INTERVAL_ERROR)
    suspicious = p_value < SUSPICIOUS
    broken, implied = context.breach() if suspicious and not too_much else (False, "")
    return judged(
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
    claim, rate = context.claim, context.claimed_rate
    if claim is None or rate is None:
        return not_run("a claimed noise_multiplier, or a claim and a sampling rate")
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
def noise_shape(context: Context) -> Finding:
    """Whether the noise of a step is Gaussian."""
    steps, columns = context.quiet[0].shape
    if steps < _FEWEST_STEPS or columns < _FEWEST_COLUMNS:
        return not_run(
            f"{_FEWEST_STEPS} steps of {_FEWEST_COLUMNS} coordinates that are never planted"
        )
    if not context.known:
        return not_run(KNOWN_BACKGROUND)
    # Tensors may have scales of their own; the shape is asked of each by its own scale.
    values = context.quiet_by_tensor
    if values is None:
        return not_run("noise in every step and tensor")
    return gaussian_shape(
        values,
        "step",
        applies="neither the accountant",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def gaussian_shape(
    rows: NDArray[np.float64], unit: str, *, applies: str, undermines: Assumption
) -> Finding:
    """Whether rows of noise, one a step or node, are Gaussian.

    Args:
        rows: The noise.
        unit: What a row is.
        applies: What does not apply where they are not, besides the bound.
        undermines: What a bound must assume for a failure to make it too high.
    """
    skewness, skewness_p, kurtosis, kurtosis_p = normality.average_shape(rows)
    return judged(
        min(1.0, 2.0 * min(skewness_p, kurtosis_p)),
        f"the noise of a {unit} has skewness {skewness:+.3f} and excess kurtosis {kurtosis:+.3f}.",
        if_fine=", as Gaussian noise may.",
        if_wrong="Gaussian noise has neither: it is drawn from another distribution.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy=f"The noise is not Gaussian, so {applies} nor this bound applies: look "
        "at the distribution it is drawn from.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=undermines,
    )
