"""Checks that read the transcript: every part of the mechanism, next to what was claimed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, chdtri, ndtr, ndtri, stdtr

from askgauss import accounting
from askgauss.claims import PrivacyClaim
from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats import normality
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from askgauss.transcript import Transcript

__all__ = ["transcript_checks"]

# A measured difference below this is real or not, but does not matter to anybody.
_TOLERANCE = 0.005
# Intervals next to measured values are at this confidence.
_INTERVAL_ERROR = 0.01
_FEWEST_STEPS_FOR_SHAPE = 10
_FEWEST_COLUMNS_FOR_SHAPE = 16
_SAME_NOISE = 0.7
# Bits of precision of the formats that noise is sometimes drawn in, the leading one included.
_SHORT_FORMATS = (("bfloat16", 8), ("float16", 11))


@dataclass(frozen=True, slots=True)
class _Noise:
    """What the observations without a planting say of the noise, by tensor and in all."""

    freedom: float
    square: float

    @property
    def scale(self) -> float:
        return math.sqrt(self.square / self.freedom)

    def interval(self, error: float) -> tuple[float, float]:
        low = math.sqrt(self.square / chdtri(self.freedom, 0.5 * error))
        return low, math.sqrt(self.square / chdtri(self.freedom, 1.0 - 0.5 * error))

    def p_value(self, claimed: float) -> float:
        """Two-sided: as far from the claimed scale, either way."""
        statistic = self.square / claimed**2
        return 2.0 * float(min(chdtr(self.freedom, statistic), chdtrc(self.freedom, statistic)))


def transcript_checks(transcript: Transcript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check that a transcript allows."""
    yield fact(
        "finite gradients",
        not transcript.finite,
        "every released number was finite."
        if transcript.finite
        else "nan or infinite values were released.",
        consequence=Consequence.INVALIDATES,
        remedy="Find where they come from: nothing can be said of such a run.",
    )
    if not transcript.finite:
        return
    noise = _pooled_noise(transcript)
    yield from _missing_noise(transcript, noise)
    yield _noise_scale(transcript, claim, noise)
    yield _noise_by_tensor(transcript, claim, noise)
    yield _noise_by_step(transcript)
    yield _noise_shape(transcript)
    yield _lattice(transcript)
    yield _serial_correlation(transcript)
    yield _repeated_steps(transcript)
    yield _shared_noise(transcript)
    yield _contribution(transcript, claim, noise)
    yield _sampling_rate(transcript, claim)
    yield _sampling_scheme(transcript)
    yield _step_count(transcript, claim)


def _claimed_noise(transcript: Transcript, claim: PrivacyClaim | None) -> float | None:
    if claim is not None and claim.noise_multiplier is not None:
        return claim.noise_multiplier
    return transcript.facts.noise_multiplier


def _pooled_noise(transcript: Transcript) -> _Noise:
    steps, total = transcript.steps, transcript.member.size
    counts = transcript.number_of_steps * total - int(steps.planted.sum())
    mean = float(steps.total.sum()) / counts
    return _Noise(counts - 1.0, max(float(steps.square.sum()) - counts * mean**2, 0.0))


def _implied_breach(
    transcript: Transcript, claim: PrivacyClaim | None, signal_to_noise: float
) -> tuple[bool, str]:
    """Whether a step of this signal-to-noise ratio, composed as claimed, breaks the claim."""
    if claim is None:
        return False, ""
    rate = claim.sampling_rate or transcript.facts.sampling_rate
    steps = claim.steps or transcript.facts.accounted_steps or transcript.number_of_steps
    if rate is None:
        return False, ""
    implied = accounting.dpsgd_epsilon_lower(
        signal_to_noise=signal_to_noise, sampling_rate=rate, steps=steps, delta=claim.delta
    )
    broken = implied > (1.0 + _TOLERANCE) * claim.epsilon
    return broken, f" It implies epsilon {implied:.3g} where {claim.epsilon:g} is claimed."


def _missing_noise(transcript: Transcript, noise: _Noise) -> Iterator[Finding]:
    counts = np.array(transcript.member.size) - transcript.steps.planted.sum(axis=1)
    silent = int(np.count_nonzero((transcript.steps.square.sum(axis=1) == 0.0) & (counts > 0)))
    missing = silent + transcript.facts.unnoised_steps
    yield fact(
        "steps without noise",
        missing > 0,
        f"{missing:,} of {transcript.number_of_steps:,} steps were released without any noise."
        if missing
        else "every step was released with noise.",
        consequence=Consequence.BREACH,
        measured=float(missing),
        claimed=0.0,
        remedy="An empty batch must still add noise and count as a step; every optimizer step must "
        "go through the mechanism.",
    )


def _noise_scale(transcript: Transcript, claim: PrivacyClaim | None, noise: _Noise) -> Finding:
    claimed = _claimed_noise(transcript, claim)
    if claimed is None:
        return not_run("noise scale", "a claimed noise_multiplier to compare with")
    if noise.square == 0.0 or claimed == 0.0:
        return fact(
            "noise scale",
            noise.square == 0.0,
            "there is no noise at all." if noise.square == 0.0 else "no noise is claimed.",
            consequence=Consequence.BREACH,
            measured=noise.scale,
            claimed=claimed,
            remedy="Check that noise is added, and that the sum is read after it.",
        )
    ratio = noise.scale / claimed
    low, high = noise.interval(_INTERVAL_ERROR)
    too_much = ratio > 1.0
    varying = np.unique(transcript.steps.noise_multiplier).size > 1
    if varying:
        return not_run("noise scale", "one claimed noise multiplier for the whole run")
    if too_much and transcript.facts.background == "unknown":
        return not_run("noise scale", "a known background, to tell noise from other records")
    broken, implied = (False, "") if too_much else _implied_breach(transcript, claim, 1.0 / high)
    return judged(
        "noise scale",
        noise.p_value(claimed),
        f"the noise is {ratio:.3f} times what is claimed.{implied}{_hint(ratio)}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=noise.scale,
        interval=(low, high),
        claimed=claimed,
        remedy="More noise than claimed costs accuracy for nothing: is it added twice, by every "
        "rank, or at every accumulation step?"
        if too_much
        else "Less noise than claimed: is it divided by the ranks or split over accumulation "
        "steps, is the clip norm missing from it, or the generator wrong?",
        tolerable=abs(ratio - 1.0) < _TOLERANCE,
    )


def _hint(ratio: float) -> str:
    """What a round ratio of variances usually comes from."""
    for count in (2, 3, 4, 8):
        if abs(ratio**2 / count - 1.0) < 0.02:
            return f" The variance is {count} times the claim, as of {count} independent draws."
        if abs(ratio**2 * count - 1.0) < 0.02:
            return f" The variance is 1/{count} of the claim."
    return ""


def _noise_by_tensor(transcript: Transcript, claim: PrivacyClaim | None, noise: _Noise) -> Finding:
    """Every tensor's noise against that of all others; a tensor left out shows as zero."""
    name, groups = "noise by tensor", transcript.steps.square.shape[1]
    watch = transcript.watch_tensor
    names = transcript.facts.tensors
    count = max(groups, len(names), int(watch.max(initial=-1)) + 1)
    if count < 2:
        return not_run(name, "more than one tensor")
    square, freedom = np.zeros(count), np.zeros(count)
    in_tensor = np.bincount(transcript.tensor, minlength=groups)
    if not (in_tensor[1:] == 0).all():
        square[:groups] = transcript.steps.square.sum(axis=0)
        freedom[:groups] = transcript.number_of_steps * in_tensor - transcript.steps.planted.sum(
            axis=0
        )
    if transcript.watch_values.size:
        watched = (transcript.watch_values**2).sum(axis=0)
        square += np.bincount(watch, weights=watched, minlength=count)
        freedom += transcript.number_of_steps * np.bincount(watch, minlength=count)
    seen = freedom >= 20
    if np.count_nonzero(seen) < 2:
        return not_run(name, "20 observations in each of two tensors")
    silent = seen & (square == 0.0)
    if silent.any() and not silent.all():
        index = int(np.argmax(silent))
        return fact(
            name,
            True,
            f"tensor {_tensor_name(names, index)} is released without noise.",
            consequence=Consequence.BREACH,
            measured=0.0,
            claimed=_claimed_noise(transcript, claim),
            remedy="Every trainable tensor must go through the mechanism; freeze or wrap this one.",
        )
    rest = square[seen].sum() - square[seen], freedom[seen].sum() - freedom[seen]
    ratio = (square[seen] / freedom[seen]) / (rest[0] / rest[1])
    # The log of a ratio of variances is nearly Gaussian at these sizes, in both tails.
    spread = np.sqrt(2.0 / freedom[seen] + 2.0 / rest[1])
    z = np.log(ratio) / spread
    worst = int(np.argmax(np.abs(z)))
    index = int(np.flatnonzero(seen)[worst])
    scale = math.sqrt(square[index] / freedom[index])
    low, high = _Noise(float(freedom[index]), float(square[index])).interval(_INTERVAL_ERROR)
    less = ratio[worst] < 1.0
    broken = less and _implied_breach(transcript, claim, 1.0 / high)[0]
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background, to tell noise from other records")
    return judged(
        name,
        min(1.0, z.size * 2.0 * float(ndtr(-abs(z[worst])))),
        f"tensor {_tensor_name(names, index)} has {math.sqrt(ratio[worst]):.3f} times the noise "
        "of the others.",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=scale,
        interval=(low, high),
        claimed=_claimed_noise(transcript, claim),
        remedy="One noise scale must serve all tensors: look at how this one's noise is drawn.",
        tolerable=abs(math.sqrt(ratio[worst]) - 1.0) < _TOLERANCE,
    )


def _tensor_name(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else str(index)


def _noise_by_step(transcript: Transcript) -> Finding:
    """Whether the noise scale changes from step to step more than chance lets it."""
    name = "noise by step"
    planted = transcript.steps.planted.sum(axis=1)
    freedom = transcript.member.size - planted.astype(np.float64)
    if transcript.number_of_steps < 10 or freedom.min() < 20:
        return not_run(name, "10 steps of at least 20 observations")
    variance = transcript.steps.square.sum(axis=1) / freedom
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background, to tell noise from other records")
    if variance.min() == 0.0:
        return not_run(name, "noise in every step")
    z = (np.log(variance) - np.log(variance).mean()) / np.sqrt(2.0 / freedom)
    statistic = float((z**2).sum())
    spread = float(np.sqrt(variance).std() / np.sqrt(variance).mean())
    return judged(
        name,
        float(chdtrc(transcript.number_of_steps - 1, statistic / _log_inflation(freedom))),
        f"the noise scale varies by {spread:.1%} between steps.",
        consequence=Consequence.LOOSENS,
        measured=spread,
        remedy="If the noise follows a schedule, claim it as one; otherwise find what changes it.",
        tolerable=spread < _TOLERANCE,
    )


def _log_inflation(freedom: NDArray[np.float64]) -> float:
    """How much the log of a chi-square mean varies beyond 2/df, at the smallest df."""
    smallest = float(freedom.min())
    return 1.0 + 1.0 / smallest + 2.0 / (3.0 * smallest**2)


def _residuals(transcript: Transcript) -> NDArray[np.float64]:
    """Kept values of canaries without a planting in any step: pure noise, one row a step."""
    return transcript.kept_values[:, ~transcript.member[transcript.kept]]


def _noise_shape(transcript: Transcript) -> Finding:
    name, rows = "noise shape", _residuals(transcript)
    if rows.shape[0] < _FEWEST_STEPS_FOR_SHAPE or rows.shape[1] < _FEWEST_COLUMNS_FOR_SHAPE:
        return not_run(
            name,
            f"{_FEWEST_STEPS_FOR_SHAPE} steps of {_FEWEST_COLUMNS_FOR_SHAPE} kept absent canaries",
        )
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background, to tell noise from other records")
    # Tensors may have scales of their own; the shape is asked of each by its own scale.
    tensor = transcript.tensor[transcript.kept][~transcript.member[transcript.kept]]
    scale = np.sqrt((rows**2).mean(axis=0))
    scale = np.sqrt(np.bincount(tensor, scale**2) / np.maximum(np.bincount(tensor), 1))[tensor]
    if not (scale > 0.0).all() or not (np.ptp(rows, axis=1) > 0.0).all():
        return not_run(name, "noise in every step and tensor")
    skewness, skewness_z, kurtosis, kurtosis_z = normality.average_shape(rows / scale)
    z = max(abs(skewness_z), abs(kurtosis_z))
    return judged(
        name,
        2.0 * 2.0 * float(ndtr(-z)),
        f"the noise of a step has skewness {skewness:+.3f} and excess kurtosis {kurtosis:+.3f}.",
        consequence=Consequence.INVALIDATES,
        measured=kurtosis,
        claimed=0.0,
        remedy="The noise is not Gaussian, so neither the accountant nor this bound applies: look "
        "at the distribution it is drawn from.",
        tolerable=max(abs(skewness), abs(kurtosis)) < 0.02,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _lattice(transcript: Transcript) -> Finding:
    """Whether noise takes only the values of a short number format."""
    name = "noise precision"
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background, to see the noise itself")
    values = (_residuals(transcript) * transcript.steps.clip_norm[:, None]).ravel()
    values = values[values != 0.0]
    if values.size < 1000:
        return not_run(name, "1,000 kept values of absent canaries")
    mantissa = np.abs(np.frexp(values)[0])
    for format_name, bits in _SHORT_FORMATS:
        spacing = 2.0**-bits
        # Distance to the nearest number of the format, in units of its spacing: up to one half.
        distance = np.abs(mantissa / spacing - np.rint(mantissa / spacing))
        near = int(np.count_nonzero(distance < 1 / 32))
        expected = values.size / 16
        z = (near - expected) / math.sqrt(expected * 15 / 16)
        if near > 0.9 * values.size:
            return judged(
                name,
                float(ndtr(-z)),
                f"{near / values.size:.0%} of the noise lies on the numbers of {format_name}.",
                consequence=Consequence.BREACH,
                measured=near / values.size,
                claimed=1 / 16,
                remedy="Draw and add noise in single precision at least: a coarse lattice gives "
                "away the sum beneath it.",
            )
    return judged(
        name,
        1.0,
        "the noise lies on no short number format.",
        consequence=Consequence.BREACH,
    )


def _serial_correlation(transcript: Transcript) -> Finding:
    name = "serial correlation"
    absent = ~transcript.member
    steps = transcript.number_of_steps
    pairs = int(np.count_nonzero(absent)) * (steps - 1)
    if pairs < 100 or steps < 2:
        return not_run(name, "100 pairs of neighbouring steps of absent canaries")
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background: other records correlate from step to step")
    square = float(transcript.canaries.square[absent].sum())
    if square == 0.0:
        return not_run(name, "noise")
    correlation = float(transcript.canaries.lag[absent].sum()) / square * steps / (steps - 1)
    z = correlation * math.sqrt(pairs)
    return judged(
        name,
        2.0 * float(ndtr(-abs(z))),
        f"neighbouring steps' noise correlates by {correlation:+.4f}.",
        consequence=Consequence.BREACH if correlation > 0.5 else Consequence.INVALIDATES,
        measured=correlation,
        interval=_around(correlation, 1.0 / math.sqrt(pairs)),
        claimed=0.0,
        remedy="Noise must be fresh in every step: look for a generator that is seeded anew, or a "
        "buffer that is used again.",
        tolerable=abs(correlation) < 0.002,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _around(value: float, error: float) -> tuple[float, float]:
    half = float(ndtri(1.0 - 0.5 * _INTERVAL_ERROR)) * error
    return value - half, value + half


def _repeated_steps(transcript: Transcript) -> Finding:
    """Whether the noise of one step comes back in another, near or far."""
    name, rows = "repeated noise", _residuals(transcript)
    steps, columns = rows.shape
    if steps < 2 or columns < 32:
        return not_run(name, "32 kept absent canaries and two steps")
    norms = np.sqrt((rows**2).sum(axis=1))
    alive = norms > 0.0
    unit = (rows[alive] / norms[alive, None]).astype(np.float32)
    if len(unit) < 2:
        return not_run(name, "noise in two steps")
    largest, first, second, pairs = _largest_correlation(unit)
    p_value = min(1.0, pairs * _correlation_tail(largest, columns))
    index = np.flatnonzero(alive)
    return judged(
        name,
        p_value,
        f"the most alike noise of two steps, {index[first] + 1} and {index[second] + 1}, "
        f"correlates by {largest:.3f}.",
        consequence=Consequence.BREACH if largest > _SAME_NOISE else Consequence.INVALIDATES,
        measured=largest,
        claimed=0.0,
        remedy="Noise that is used twice cancels out of a difference: save and restore the "
        "generator's state with the checkpoint, and never seed it inside the loop.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _largest_correlation(unit: NDArray[np.float32]) -> tuple[float, int, int, float]:
    """The most correlated pair of rows, in blocks of a bounded size."""
    best, place, count, block = -1.0, (0, 1), len(unit), 2048
    for start in range(0, count, block):
        left = unit[start : start + block]
        for other in range(start, count, block):
            gram = left @ unit[other : other + block].T
            if other == start:
                np.fill_diagonal(gram, -1.0)
            flat = int(np.argmax(gram))
            row, column = divmod(flat, gram.shape[1])
            if gram[row, column] > best:
                best, place = float(gram[row, column]), (start + row, other + column)
    first, second = sorted(place)
    return best, first, second, 0.5 * count * (count - 1)


def _correlation_tail(correlation: float, count: int) -> float:
    """P[the correlation of two independent Gaussian samples is at least this]."""
    if correlation >= 1.0:
        return 0.0
    t = correlation * math.sqrt((count - 1) / (1.0 - correlation**2))
    return float(stdtr(count - 1, -t))


def _shared_noise(transcript: Transcript) -> Finding:
    """Whether two coordinates get the same noise: one key for several tensors."""
    name = "shared noise"
    columns = [_residuals(transcript)]
    if transcript.watch_values.size:
        columns.append(transcript.watch_values)
    values = np.concatenate(columns, axis=1).T
    if values.shape[0] < 2 or values.shape[1] < 10:
        return not_run(name, "10 steps of two coordinates that are never planted")
    if transcript.facts.background == "unknown":
        return not_run(name, "a known background: coordinates share the other records")
    norms = np.sqrt((values**2).sum(axis=1))
    alive = norms > 0.0
    unit = (values[alive] / norms[alive, None]).astype(np.float32)
    if len(unit) < 2:
        return not_run(name, "noise in two coordinates")
    largest, first, second, pairs = _largest_correlation(unit)
    places = np.concatenate(
        [transcript.tensor[transcript.kept][~transcript.member[transcript.kept]]]
        + ([transcript.watch_tensor] if transcript.watch_values.size else [])
    )[alive]
    names = transcript.facts.tensors
    return judged(
        name,
        min(1.0, pairs * _correlation_tail(largest, values.shape[1])),
        f"the most alike two coordinates, in tensors {_tensor_name(names, int(places[first]))} and "
        f"{_tensor_name(names, int(places[second]))}, correlate by {largest:.3f}.",
        consequence=Consequence.BREACH if largest > _SAME_NOISE else Consequence.INVALIDATES,
        measured=largest,
        claimed=0.0,
        remedy="Every tensor needs noise of its own: split the random key, or share one generator.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _contribution(transcript: Transcript, claim: PrivacyClaim | None, noise: _Noise) -> Finding:
    """The mean a planting adds, in units of the clip norm: more than 1 and clipping is broken."""
    name, steps = "contribution", transcript.steps
    planted = int(steps.planted.sum())
    if planted < 10:
        return not_run(name, f"10 plantings, got {planted}")
    others = transcript.number_of_steps * transcript.member.size - planted
    mean = float(steps.planted_total.sum()) / planted - float(steps.total.sum()) / others
    error = noise.scale * math.sqrt(1.0 / planted + 1.0 / others)
    broken = False
    if mean > 1.0 and noise.scale > 0.0:
        lower = mean - 4.0 * error
        broken = _implied_breach(transcript, claim, lower / noise.scale)[0] or claim is None
    if error == 0.0:
        p_value = 0.0 if abs(mean - 1.0) > 1e-9 else 1.0
    else:
        p_value = 2.0 * float(ndtr(-abs(mean - 1.0) / error))
    return judged(
        name,
        p_value,
        f"a planted canary adds {mean:.4f} clip norms to the sum.",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=mean,
        interval=_around(mean, error),
        claimed=1.0,
        remedy="More than 1: one record counts for more than the clip norm; look at clipping, at "
        "examples counted twice and at gradients kept from earlier steps."
        if mean > 1.0
        else "Less than 1: canaries are clipped or averaged away; the bound is lower than it "
        "could be.",
        tolerable=abs(mean - 1.0) < _TOLERANCE,
    )


def _sampling_rate(transcript: Transcript, claim: PrivacyClaim | None) -> Finding:
    name, facts = "sampling rate", transcript.facts
    if facts.sampling == "own coin":
        return not_run(name, "canaries that go through the training's own sampler")
    claimed = claim.sampling_rate if claim is not None else None
    claimed = claimed or facts.accounted_sampling_rate or facts.sampling_rate
    if claimed is None:
        return not_run(name, "a claimed sampling_rate to compare with")
    plantings = int(transcript.canaries.planted.sum())
    chances = int(np.count_nonzero(transcript.member)) * transcript.number_of_steps
    rate = plantings / chances
    interval = (
        clopper_pearson_lower(plantings, chances, 0.5 * _INTERVAL_ERROR),
        clopper_pearson_upper(plantings, chances, 0.5 * _INTERVAL_ERROR),
    )
    z = (plantings - chances * claimed) / math.sqrt(chances * claimed * (1.0 - claimed))
    more = rate > claimed
    return judged(
        name,
        2.0 * float(ndtr(-abs(z))),
        f"a canary is in a batch with probability {rate:.5f}.",
        consequence=Consequence.BREACH if more else Consequence.LOOSENS,
        measured=rate,
        interval=interval,
        claimed=claimed,
        remedy="The accountant must be told the rate the sampler really uses: batch size over "
        "records, not one over the number of batches.",
        tolerable=abs(rate / claimed - 1.0) < _TOLERANCE,
    )


def _sampling_scheme(transcript: Transcript) -> Finding:
    """Whether inclusions are independent: counts by canary and by step as Poisson has them."""
    name, facts = "sampling scheme", transcript.facts
    if facts.sampling == "own coin":
        return not_run(name, "canaries that go through the training's own sampler")
    counts = transcript.canaries.planted[transcript.member].astype(np.float64)
    by_step = transcript.steps.planted.sum(axis=1).astype(np.float64)
    steps, canaries = by_step.size, counts.size
    rate = counts.sum() / (steps * canaries)
    if canaries < 10 or steps < 10 or not 0.0 < rate < 1.0 or counts.mean() < 5:
        return not_run(name, "10 canaries and 10 steps with 5 plantings a canary")
    between = float(((counts - counts.mean()) ** 2).sum()) / (steps * rate * (1.0 - rate))
    along = float(((by_step - by_step.mean()) ** 2).sum()) / (canaries * rate * (1.0 - rate))
    tails = [
        2.0 * min(chdtr(freedom, value), chdtrc(freedom, value))
        for freedom, value in ((canaries - 1, between), (steps - 1, along))
    ]
    ratios = between / (canaries - 1), along / (steps - 1)
    scheme = "shuffled or fixed batches" if min(ratios) < 0.8 else "a common coin for many records"
    return judged(
        name,
        min(1.0, 2.0 * min(tails)),
        f"inclusion counts vary {ratios[0]:.2f} (by canary) and {ratios[1]:.2f} (by step) times as "
        "much as Poisson sampling gives"
        + (f"; that looks like {scheme}." if max(tails) < 1e-3 or min(tails) < 1e-3 else "."),
        consequence=Consequence.INVALIDATES,
        measured=min(ratios, key=lambda value: -abs(math.log(max(value, 1e-9)))),
        claimed=1.0,
        remedy="Use a Poisson sampler (Opacus: poisson_sampling=True), or an accountant of the "
        "scheme that is really used.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _step_count(transcript: Transcript, claim: PrivacyClaim | None) -> Finding:
    name = "step count"
    accounted = claim.steps if claim is not None and claim.steps else None
    accounted = accounted or transcript.facts.accounted_steps
    if accounted is None:
        return not_run(name, "the number of steps the accountant counted")
    taken = transcript.number_of_steps
    more = taken > accounted
    return fact(
        name,
        taken != accounted,
        f"{taken:,} steps were released and {accounted:,} accounted for.",
        consequence=Consequence.BREACH if more else Consequence.LOOSENS,
        measured=float(taken),
        claimed=float(accounted),
        remedy="Every noisy release must be counted: attach the accountant before the first step."
        if more
        else "The audit saw fewer steps than were accounted for: attach it to the whole run.",
    )
