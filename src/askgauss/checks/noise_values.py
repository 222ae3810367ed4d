"""Checks of the noise value by value: every coordinate's, where canaries are planted, the extremes.

What is pooled over a run hides a few values that have no noise, or far too much of something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, gammainc, ndtr, stdtr

from askgauss.checks.context import INTERVAL_ERROR, NOTICED, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.rounding_to_error import coarse_deviations, coarse_spread, significant
from askgauss.checks.tails import (
    Spread,
    correlation_tail,
    equal_variances_p_value,
    extreme_p_value,
    extreme_shares,
    ratio_p_value,
)
from askgauss.recording.transcript import SILENCE
from askgauss.results import Assumption, Consequence, Finding

__all__ = ["value_checks"]

_FEWEST_VALUES = 1000
_FEWEST_OBSERVATIONS = 20
_FEWEST_PLANTINGS = 10
_FEWEST_TO_COMPARE = 100
# Other laws of noise have up to some twice the density of a Gaussian at zero.
_FAR_MORE = 3.0
# Lattices finer than this, in deviations, are as good as none; no noise lies further out; and what
# is left of the variance of noise that is rounded to a very coarse one, at least.
_FINE = 0.2
_FURTHEST = 12.0
_NARROWEST = 0.01
# Probability below which so many values in one place are no accident.
_NO_CROWD = 1e-6
# Bits of precision of the formats that noise is sometimes drawn in, the leading one included.
_SHORT_FORMATS = (("bfloat16", 8), ("float16", 11))
_BLOCK = 1 << 18
_KNOWN = "a known background, to tell noise from other records"
_ORTHOGONAL = "canaries that are orthogonal by construction"


def value_checks(context: Context) -> Iterator[Finding]:
    """Every check of single values of the noise."""
    yield _by_coordinate(context)
    yield _silent(context)
    yield _planted(context)
    yield _single_plantings(context)
    yield _extremes(context)
    yield _precision(context)


def _missing(context: Context) -> str | None:
    """What is missing to take single values for noise."""
    if not context.known:
        return _KNOWN
    if not context.exact:
        return _ORTHOGONAL
    return "noise" if context.noise.square == 0.0 else None


def _by_coordinate(context: Context) -> Finding:
    """Every canary's noise against that of all: one without noise is a breach by itself."""
    name, missing, by_canary = "noise by coordinate", _missing(context), context.by_canary
    if missing:
        return not_run(name, missing)
    if by_canary is None:
        return not_run(name, "sums of every canary in units of the declared noise")
    use = by_canary[0] >= 1
    count, square = by_canary[0][use], by_canary[2][use]
    if count.size < 2:
        return not_run(name, "two coordinates that were seen without a planting")
    square = context.audible(square, count)
    silent = int(np.count_nonzero((square == 0.0) & (count >= 2)))
    whole = float(square.sum()), float(count.sum())
    lowest, *odds = extreme_shares(square, count)
    tests = [min(1.0, count.size * chance) for chance in odds]
    level = math.sqrt(whole[0] / whole[1])
    scales = np.sqrt(square / count) / level
    spread = _beyond_chance(scales, count)
    if not silent and count.min() >= _FEWEST_OBSERVATIONS:
        tests.append(equal_variances_p_value(square, count))
    p_value = 0.0 if silent else min(1.0, len(tests) * min(tests))
    broken, implied = silent > 0, ""
    share = Spread(float(count[lowest]), float(square[lowest]))
    # What is told of one coordinate is no finer than chance moves it.
    told = coarse_spread(share)
    relative = told.scale / coarse_spread(Spread(whole[1], whole[0])).scale
    if not silent and p_value < SUSPICIOUS:
        # Either one coordinate stands out, or they differ without any standing out.
        one, shown = (part.interval(INTERVAL_ERROR / count.size)[1] for part in (share, told))
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
        name,
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


def _beyond_chance(scales: NDArray[np.float64], count: NDArray[np.float64]) -> float:
    """What is left of the variation of relative scales once chance has had its share."""
    chance = float((0.5 / count).mean())
    return math.sqrt(max(float(scales.var()) - chance, 0.0))


def _silent(context: Context) -> Finding:
    """Whether single values have no noise: more of them lie next to zero than chance has it."""
    name, missing, steps = "values without noise", _missing(context), context.transcript.steps
    if missing:
        return not_run(name, missing)
    seen = np.isfinite(steps.silent)
    if not seen.any():
        return not_run(name, "a noise_multiplier declared to the recorder")
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
        name,
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
        smooth = 2.0 * float(ndtr(reach)) - 1.0
        return max(smooth, _crowding(context.absolute, reach))
    steps = context.transcript.steps
    spacing = lattice / (steps.clip_norm * context.schedule * context.even.scale)
    widths, number = np.unique(spacing, return_counts=True)
    chances = [_near_zero_on_lattice(reach, width) for width in widths.tolist()]
    return float(np.average(chances, weights=number))


def _crowding(values: NDArray[np.float64], reach: float) -> float:
    """The share of values next to a number that is not zero, where smooth noise has no such crowd.

    Sums of integers whose background is known in fractions lie near a lattice, not on it: then
    zero is as crowded as its neighbours. 0 where noise is smooth.
    """
    if values.size < _FEWEST_VALUES:
        return 0.0
    deviation = values.std()
    size = np.abs(values)
    size.sort()
    size = size[slice(*np.searchsorted(size, [3.0 * reach * deviation, deviation]))] / deviation
    within = np.searchsorted(size, size + 2.0 * reach, side="right") - np.arange(size.size)
    most = int(within.max(initial=0))
    # Both signs of a number are one size here.
    expected = 4.0 * reach * values.size / math.sqrt(2.0 * math.pi)
    if size.size * float(gammainc(most, expected)) > _NO_CROWD:
        return 0.0
    return 0.5 * most / values.size


def _near_zero_on_lattice(reach: float, spacing: float) -> float:
    """The same on a lattice of this spacing in deviations, by the law that gives it the most.

    Noise is rounded to a lattice, which adds to its variance, or drawn on it. On a fine one that is
    the same.
    """
    places = math.floor(reach / spacing)
    narrower = math.sqrt(max(1.0 - spacing**2 / 12.0, _NARROWEST))
    rounded = 2.0 * float(ndtr((places + 0.5) * spacing / narrower)) - 1.0
    if spacing < _FINE:
        return rounded
    mass = np.exp(-0.5 * (spacing * np.arange(math.ceil(_FURTHEST / spacing) + 1)) ** 2)
    drawn = 2.0 * float(mass[: places + 1].sum()) - 1.0
    return max(rounded, drawn / (2.0 * float(mass.sum()) - 1.0))


def _at_least(found: int, trials: int, chance: float) -> float:
    return float(bdtrc(found - 1, trials, chance)) if found else 1.0


def _planted_residuals(context: Context) -> tuple[float, float, float]:
    """Count, mean and squared deviations of planted observations, in units of alike steps."""
    steps, unit = context.transcript.steps, context.schedule
    planted = steps.planted.sum(axis=1).astype(np.float64)
    total = (steps.planted_total.sum(axis=1) - planted) / unit
    square = steps.planted_square.sum(axis=1) - 2.0 * steps.planted_total.sum(axis=1) + planted
    count, mean = float(planted.sum()), float(total.sum() / max(planted.sum(), 1.0))
    return count, mean, max(float((square / unit**2).sum()) - count * mean * mean, 0.0)


def _planted(context: Context) -> Finding:
    """Whether noise is the same where a canary is planted as where it is not."""
    name, missing = "planted noise", _missing(context)
    if missing:
        return not_run(name, missing)
    if context.facts.contribution is not None:
        return not_run(name, "canaries that are planted with the whole clip norm")
    count, _, square = _planted_residuals(context)
    if count < _FEWEST_PLANTINGS:
        return not_run(name, f"{_FEWEST_PLANTINGS} plantings, got {count:.0f}")
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
        name,
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


def _single_plantings(context: Context) -> Finding:
    """Whether any single planting adds more or less than noise around a clip norm explains."""
    name, missing, steps = "single plantings", _missing(context), context.transcript.steps
    if missing:
        return not_run(name, missing)
    if context.facts.contribution is not None:
        return not_run(name, "canaries that are planted with the whole clip norm")
    seen = np.isfinite(steps.planted_most)
    count = int(steps.planted.sum(axis=1)[: seen.size][seen].sum())
    if count == 0:
        return not_run(name, "plantings")
    most, least = float(steps.planted_most[seen].max()), float(steps.planted_least[seen].min())
    scale, freedom = context.even.scale, context.even.freedom
    half = context.spacing_in_deviations / 2.0
    above = max(most / scale - half, 0.0), max(-least / scale - half, 0.0)
    tails = [min(1.0, count * float(stdtr(freedom, -value))) for value in above]
    p_value = min(1.0, 2.0 * min(tails))
    upwards = tails[0] <= tails[1]
    unit = float(context.schedule.max())
    # One planting's own noise: told to half a deviation.
    deviations = coarse_deviations((most if upwards else least) / scale)
    # The step is not recorded with it: in units of the noisiest step it is at most this far.
    furthest = 1.0 + unit * scale * deviations
    return judged(
        name,
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


def _extremes(context: Context) -> Finding:
    """Whether the extremes of all values are those of Gaussian noise: neither heavy nor cut off."""
    name, missing, steps = "noise extremes", _missing(context), context.transcript.steps
    if missing:
        return not_run(name, missing)
    seen = np.isfinite(steps.most)
    count = int(context.others[: seen.size][seen].sum())
    if count < _FEWEST_TO_COMPARE:
        return not_run(name, f"{_FEWEST_TO_COMPARE} observations without a planting")
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
    # Each is one value's own noise: told to half a deviation.
    highest, lowest = (coarse_deviations(value / context.even.scale) for value in (most, least))
    return judged(
        name,
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


def _precision(context: Context) -> Finding:
    """Whether noise takes only the values of a short number format."""
    name = "noise precision"
    if not context.known:
        return not_run(name, _KNOWN)
    values = context.absolute
    if values.size < _FEWEST_VALUES:
        return not_run(name, f"{_FEWEST_VALUES:,} values of coordinates that are never planted")
    share, where = _on_short_format(context, values)
    passed = "the noise lies on no short number format."
    if context.lattice and where is None:
        passed = (
            f"the noise lies on an even lattice of {context.spacing_in_deviations:.3g} of its "
            "deviation, as discrete noise does, and on no short number format."
        )
    # Numbers of single precision or better come this near in far fewer than one run in 1e100.
    return fact(
        name,
        where is not None,
        f"{share:.0%} of the noise lies on {where}." if where else passed,
        consequence=Consequence.BREACH,
        measured=share,
        remedy="Draw and add noise in single precision at least: a coarse lattice gives away the "
        "sum beneath it.",
    )


def _on_short_format(context: Context, values: NDArray[np.float64]) -> tuple[float, str | None]:
    """The share of values that are numbers of a short format, itself or before it was scaled.

    So are whole numbers times a step, if they are small. But a short format gets finer towards
    zero: there too the last of its bits is set as often as not, and on an even lattice never.
    """
    claimed = context.claimed_noise
    first = 1.0 if claimed is None else float(claimed[0])
    units = (1.0, first, first * float(context.transcript.steps.clip_norm[0]))
    median = float(np.median(np.abs(values), overwrite_input=True))
    largest = 0.0
    for unit in dict.fromkeys(unit for unit in units if unit > 0.0):
        for format_name, bits in _SHORT_FORMATS:
            near, odd = _nearness(values, unit, bits, median)
            if near > 0.9 and odd > 0.25:
                return near, f"the numbers of {format_name}"
            largest = max(largest, near if odd > 0.25 else 0.0)
    return largest, None


def _nearness(
    values: NDArray[np.float64], unit: float, bits: int, median: float
) -> tuple[float, float]:
    """The share of values next to a number of so many bits, and of odd ones among the small."""
    near = odd = small = 0.0
    # In blocks: long runs have more values than fit into memory several times.
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        place = np.abs(np.frexp(block / unit)[0]) * 2.0**bits
        whole = np.rint(place)
        # A sixteenth of all numbers lies this near to one of the format.
        near += np.count_nonzero(np.abs(place - whole) < 1 / 32)
        whole = whole[np.abs(block) <= median]
        odd, small = odd + float(np.sum(whole % 2.0)), small + whole.size
    return near / values.size, odd / small
