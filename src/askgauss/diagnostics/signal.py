"""Checks of what a record adds, how often it is sampled, and in how many steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, stdtr

from askgauss.diagnostics.context import INTERVAL_ERROR, TOLERANCE, Context, around
from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.diagnostics.tails import binomial_p_value, overlap_p_value
from askgauss.results import Assumption, Consequence, Finding
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from askgauss.transcript import Transcript

__all__ = ["signal_checks"]

_FEWEST_PLANTINGS = 10
_FEWEST_CANARIES = 20
_FEWEST_STEPS = 20
# Counts of inclusions are compared with their law where they are at least this large on average.
_FEWEST_INCLUSIONS = 5
# Cosines of either sign cancel in sums over many canaries (0.16 on average left 0.016 of the noise
# in common on mislabelled digits), but not where most canaries are copies of a few.
_MOST_OVERLAP = 0.5
_SAMPLER = "canaries that go through the training's own sampler"
_RATE_REMEDY = (
    "The accountant must be told the rate the sampler really uses: batch size over records, not "
    "one over the number of batches; and no step may be left out for being empty."
)
_SCHEME_REMEDY = (
    "Use a Poisson sampler (Opacus: poisson_sampling=True), or an accountant of the scheme that is "
    "really used."
)


def signal_checks(context: Context) -> Iterator[Finding]:
    """Every check of the signal."""
    if context.known and not context.facts.poisson:
        yield _background()
    yield _overlap(context)
    yield _contribution(context)
    yield _carry_over(context)
    yield _sampling_rate(context)
    yield _sampling_scheme(context)
    yield _sampling_of_pairs(context)
    yield _step_count(context)


def _background() -> Finding:
    """What other records add may be taken off only where it does not give a canary's coin away."""
    return fact(
        "known background",
        True,
        "the other records' sum was subtracted, and their batches say which ones a canary is in.",
        consequence=Consequence.INVALIDATES,
        remedy="Leave background out of observe(), or declare Recorder(poisson=True) if every "
        "record has a coin of its own.",
    )


def _overlap(context: Context) -> Finding:
    """Whether canaries that are gradients of examples are nearly orthogonal to each other."""
    name, cosines = "canary overlap", context.transcript.gram
    if cosines.shape[0] < 2:
        return fact(
            name,
            False,
            "canaries are orthogonal by construction.",
            consequence=Consequence.INVALIDATES,
            measured=0.0,
        )
    pairs = cosines.shape[0] * (cosines.shape[0] - 1)
    mean = float(cosines.sum() - np.trace(cosines)) / pairs
    return fact(
        name,
        mean > _MOST_OVERLAP,
        f"the gradients of two canaries have a cosine of {mean:.3f} on average.",
        consequence=Consequence.INVALIDATES,
        measured=mean,
        claimed=0.0,
        remedy="Canaries that look alike share their noise, so that it seems smaller than it is: "
        "take examples that differ, with random labels or inputs.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _contribution(context: Context) -> Finding:
    """What a planting adds on average, in clip norms: more than it should, and a record may too."""
    name, transcript = "contribution", context.transcript
    planted = int(transcript.canaries.planted.sum())
    if planted < _FEWEST_PLANTINGS:
        return not_run(name, f"{_FEWEST_PLANTINGS} plantings, got {planted}")
    estimate = _planted_mean(context) if context.known else _planted_contrast(transcript)
    if estimate is None:
        return not_run(name, "canaries that are planted in some steps and not in others")
    mean, error, freedom = estimate
    # Examples have gradients of their own, some below the clip norm.
    expected = context.facts.contribution or 1.0
    more = mean > expected
    broken, implied = context.breach(signal=(mean - 4 * error) / expected) if more else (False, "")
    return judged(
        name,
        _t_p_value(mean - expected, error, freedom),
        f"a planted canary adds {mean:.4f} clip norms to the sum.{implied}",
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
    )


def _t_p_value(difference: float, error: float, freedom: float) -> float:
    """Of "there is no difference", two-sided; without noise, rounding alone is let pass."""
    if error == 0.0:
        return 0.0 if abs(difference) > 1e-9 else 1.0
    return 2.0 * float(stdtr(freedom, -abs(difference) / error))


def _planted_mean(context: Context) -> tuple[float, float, float] | None:
    """Planted observations against all others, the standard error, and its freedom."""
    steps, planted = context.transcript.steps, int(context.transcript.steps.planted.sum())
    others = context.noise.freedom
    mean = float(steps.planted_total.sum()) / planted - float(steps.total.sum()) / others
    return mean, context.noise.scale * math.sqrt(1.0 / planted + 1.0 / others), others


def _planted_contrast(transcript: Transcript) -> tuple[float, float, float] | None:
    """Planted observations against the same canary's others, the standard error, its freedom.

    What the other records add to a coordinate lasts from step to step, but the coin that plants
    knows nothing of it: within a canary, the difference is the planting's alone.
    """
    sums, steps = transcript.canaries, transcript.number_of_steps
    use = (sums.planted >= 1) & (sums.planted <= steps - 2)
    if not use.any():
        return None
    planted = sums.planted[use].astype(np.float64)
    rest = steps - planted
    level = (sums.total[use] - sums.planted_total[use]) / rest
    squares = sums.square[use] - sums.planted_square[use] - rest * level**2
    freedom = float((rest - 1.0).sum())
    variance = max(float(squares.sum()), 0.0) / freedom
    count = float(planted.sum())
    mean = float((sums.planted_total[use] - planted * level).sum()) / count
    error = math.sqrt(variance * float((planted + planted**2 / rest).sum())) / count
    return mean, error, freedom


def _carry_over(context: Context) -> Finding:
    """Whether a present canary shows in steps that it was not sampled in."""
    name, transcript = "carry-over", context.transcript
    if not context.known:
        return not_run(name, "a known background: other records answer to earlier plantings")
    sums, member, steps = transcript.canaries, transcript.member, transcript.number_of_steps
    rest = steps - sums.planted
    use = rest >= 1
    present, absent = use & member, use & ~member
    if min(np.count_nonzero(present), np.count_nonzero(absent)) < _FEWEST_CANARIES:
        return not_run(name, f"{_FEWEST_CANARIES} present canaries that are not in every step")
    total = sums.total - sums.planted_total
    counts = float(rest[present].sum()), float(rest[absent].sum())
    mean = float(total[present].sum()) / counts[0] - float(total[absent].sum()) / counts[1]
    error = context.noise.scale * math.sqrt(1.0 / counts[0] + 1.0 / counts[1])
    return judged(
        name,
        _t_p_value(mean, error, context.noise.freedom),
        f"in steps it is not in, a present canary adds {mean:+.4f} clip norms to the sum.",
        consequence=Consequence.INVALIDATES,
        measured=mean,
        interval=around(mean, error),
        claimed=0.0,
        remedy="Gradients of earlier steps are still there: clear them (zero_grad) after every "
        "step, per-example gradients too; momentum must come after the noise.",
        tolerable=abs(mean) < 0.1 * TOLERANCE,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _sampling_rate(context: Context) -> Finding:
    name, transcript, claimed = "sampling rate", context.transcript, context.claimed_rate
    if context.own_coin:
        return _declared_rate(context)
    if claimed is None:
        return not_run(name, "a claimed sampling_rate to compare with")
    plantings = int(transcript.canaries.planted.sum())
    chances = int(np.count_nonzero(transcript.member)) * transcript.number_of_steps
    if chances == 0:
        return not_run(name, "present canaries")
    rate = plantings / chances
    interval = (
        clopper_pearson_lower(plantings, chances, 0.5 * INTERVAL_ERROR),
        clopper_pearson_upper(plantings, chances, 0.5 * INTERVAL_ERROR),
    )
    broken, implied = context.breach(rate=interval[0]) if rate > claimed else (False, "")
    return judged(
        name,
        binomial_p_value(plantings, chances, claimed),
        f"a record is in a batch with probability {rate:.5f}.{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=rate,
        interval=interval,
        claimed=claimed,
        remedy=_RATE_REMEDY,
        tolerable=abs(rate / claimed - 1.0) < TOLERANCE,
    )


def _declared_rate(context: Context) -> Finding:
    """Without a look at the sampler: whether the rate it declares is the one accounted for."""
    name, claimed, declared = "sampling rate", context.claimed_rate, context.facts.sampling_rate
    if claimed is None or declared is None or abs(declared / claimed - 1.0) < TOLERANCE:
        return not_run(name, _SAMPLER)
    broken = declared > claimed and context.breach(rate=declared)[0]
    return fact(
        name,
        True,
        f"records are sampled at rate {declared:.5f}, and {claimed:.5f} is accounted for.",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=declared,
        claimed=claimed,
        remedy=_RATE_REMEDY,
    )


def _declared_scheme(context: Context) -> Finding:
    """Without a look at the sampler: whether it is of the kind that the canaries stand for."""
    name, facts = "sampling scheme", context.facts
    if facts.loader_poisson is not False or context.claimed_rate == 1.0:
        return not_run(name, _SAMPLER)
    return fact(
        name,
        True,
        "the training's loader does not give every record a coin of its own: what the canaries "
        "show is a run with Poisson sampling, and this one's records were drawn otherwise.",
        consequence=Consequence.INVALIDATES,
        remedy="Use a Poisson sampler (Opacus: poisson_sampling=True); or ExampleCanaries, which "
        "go through the loader, with GaussianShift().",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _sampling_scheme(context: Context) -> Finding:
    """Whether inclusions are independent: counts by canary and by step as Poisson has them."""
    name, transcript = "sampling scheme", context.transcript
    if context.own_coin:
        return _declared_scheme(context)
    by_canary = transcript.canaries.planted[transcript.member]
    by_step = transcript.steps.planted.sum(axis=1)
    canaries, steps = by_canary.size, by_step.size
    rate = by_canary.sum() / max(steps * canaries, 1)
    enough = min(canaries, steps) >= _FEWEST_STEPS
    if not enough or not 0.0 < rate < 1.0:
        return not_run(
            name, f"{_FEWEST_CANARIES} canaries, sampled in some of {_FEWEST_STEPS} steps"
        )
    tests = [
        (along, *_dispersion(counts, trials, rate))
        for along, counts, trials in (("canary", by_canary, steps), ("step", by_step, canaries))
        if min(rate, 1.0 - rate) * trials >= _FEWEST_INCLUSIONS
    ]
    if not tests:
        return not_run(name, f"{_FEWEST_INCLUSIONS} inclusions of a canary, or in a step")
    along, ratio, p_value = min(tests, key=lambda test: test[2])
    p_value = min(1.0, len(tests) * p_value)
    looks = "shuffled or fixed batches" if ratio < 1.0 else "one coin for several records or steps"
    return judged(
        name,
        p_value,
        f"counts of inclusions by {along} vary {ratio:.2f} times as much as Poisson sampling gives"
        + (f"; that looks like {looks}." if p_value < 1e-3 else "."),
        consequence=Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy=_SCHEME_REMEDY,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _dispersion(counts: NDArray[np.int64], trials: int, rate: float) -> tuple[float, float]:
    """The variance of binomial counts over what it should be, and its two-sided p-value."""
    freedom = counts.size - 1
    deviations = counts - counts.mean()
    statistic = float((deviations**2).sum()) / (trials * rate * (1.0 - rate))
    p_value = 2.0 * float(min(chdtr(freedom, statistic), chdtrc(freedom, statistic)))
    return statistic / freedom, min(1.0, p_value)


def _sampling_of_pairs(context: Context) -> Finding:
    """Whether any two records are sampled together more or less often than chance has it."""
    name, transcript = "sampling of pairs", context.transcript
    if context.own_coin:
        return not_run(name, _SAMPLER)
    present = transcript.member[transcript.kept]
    planted = transcript.kept_planted[:, present].astype(np.float32)
    counts = planted.sum(axis=0).astype(np.int64)
    steps, canaries = planted.shape
    sometimes = (counts > 0) & (counts < steps)
    if steps < _FEWEST_STEPS or np.count_nonzero(sometimes) < 2:
        return not_run(name, f"two canaries that are in some of {_FEWEST_STEPS} steps")
    planted, counts = planted[:, sometimes], counts[sometimes]
    canaries = counts.size
    together = planted.T @ planted
    spread = np.sqrt(counts * (1.0 - counts / steps))
    unlikely = np.abs(together - np.outer(counts, counts) / steps) / np.outer(spread, spread)
    np.fill_diagonal(unlikely, 0.0)
    first, second = sorted(divmod(int(np.argmax(unlikely)), canaries))
    overlap = round(float(together[first, second]))
    expected = counts[first] * counts[second] / steps
    p_value = overlap_p_value(overlap, int(counts[first]), int(counts[second]), steps)
    return judged(
        name,
        min(1.0, 0.5 * canaries * (canaries - 1) * p_value),
        f"of all pairs, the oddest is together in {overlap} steps where {expected:.1f} are "
        "expected.",
        consequence=Consequence.INVALIDATES,
        measured=float(overlap),
        claimed=float(expected),
        remedy=f"Records must be sampled independently of each other. {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _step_count(context: Context) -> Finding:
    name, accounted = "step count", context.claimed_steps
    if accounted is None:
        return not_run(name, "the number of steps the accountant counted")
    skipped = context.facts.skipped_steps
    taken = context.transcript.number_of_steps + skipped
    more = taken > accounted
    broken, implied = context.breach(steps=taken) if more else (False, "")
    unseen = f", {skipped:,} of them not observed," if skipped else ""
    return fact(
        name,
        taken != accounted,
        f"{taken:,} steps were released{unseen} and {accounted:,} accounted for.{implied}",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=float(taken),
        claimed=float(accounted),
        remedy="Every noisy release must be counted: attach the accountant before the first step."
        if more
        else "The audit saw fewer steps than were accounted for: attach it to the whole run.",
    )
