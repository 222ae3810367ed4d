"""Checks of the sampler: how often a record is drawn, with whom, and when it comes back.

Where batches were recorded, the tests of `askgauss.sampling` compare them with the scheme that was
declared; elsewhere canaries that went through the training's own sampler show how it draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, chdtr, chdtrc, ndtr

from askgauss.checks.context import INTERVAL_ERROR, NOTICED, TOLERANCE, Context
from askgauss.checks.registry import SAMPLER, SUSPICIOUS, check, fact, judged, not_run
from askgauss.checks.tails import overlap_p_value
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling import DrawnBatches, assumed_poisson, mismatch
from askgauss.sampling.inclusion import NEVER
from askgauss.stats.limits import (
    binomial_p_value,
    clopper_pearson_lower,
    clopper_pearson_upper,
)
from askgauss.stats.rounding import about, digits, widened

__all__ = ["SAMPLER_CHECKS"]

_FEWEST_CANARIES = 20
_FEWEST_STEPS = 20
# Counts of inclusions are compared with their distribution where they are at least this large on
# average.
_FEWEST_INCLUSIONS = 5
# By how much the p-value of inclusions that the recorder drew is raised before the gate reads it.
_PAID = 100.0
# How the tests of single records share their error: a pair that comes together has the least power.
_SHARES = {"most drawn": 0.2, "least drawn": 0.1, "inseparable records": 0.7}
# The p-value of one record that the gate rejects: a fifth of the error of one of thirty checks.
_NOTICED_BY_ONE = 5e-6
_CERTAIN = 1e-7
_SAMPLER = "canaries that the training's own sampler draws"
_BATCH_REMEDY = (
    "Draw batches by the scheme that was declared, or declare the one that draws them, and account "
    "for it."
)
_RATE_REMEDY = (
    "Give the accountant the rate that the sampler uses: batch size over records, not one over the "
    "number of batches; and leave out no step because its batch is empty."
)
_SCHEME_REMEDY = (
    "Use a Poisson sampler (Opacus: poisson_sampling=True), or an accountant for the scheme that "
    "is used."
)


@check("accounted sampling")
def accounted_sampling(context: Context) -> Finding | None:
    """Whether batches are drawn by the scheme that was accounted for, where one was named."""
    claim, facts = context.claim, context.facts
    claimed = None if claim is None else claim.sampling
    if not any((facts.scheme, facts.accounted_scheme, facts.found_scheme, claimed)):
        return None
    found_scheme, accounted = facts.found_scheme, context.claimed_scheme
    used = found_scheme or facts.drawn_by
    if used is None or accounted is None:
        return not_run("a scheme, declared to the Recorder and in the claim (sampling=)")
    if used == accounted or None not in (used.poisson_rate, accounted.poisson_rate):
        # How often a record is drawn is the check of the sampling rate.
        return fact(False, f"{used} is used and accounted for.", consequence=Consequence.INFORMS)
    said, beyond, true = "", False, None
    noise = context.noise_level
    if claim is not None and noise > 0.0 and claim.delta > 0.0:
        steps = context.claimed_steps or context.transcript.number_of_steps
        found = mismatch(accounted, used, noise, steps, claim.delta)
        true = found.true_at_least
        beyond = true > (1.0 + TOLERANCE) * claim.epsilon
        said = (
            f"; at noise multiplier {noise:.3g} over {steps:,} steps it spends epsilon at least "
            f"{true:.3g}, and the accounted scheme {found.claimed:.3g}"
        )
    return fact(
        True,
        f"batches are {'consistent with' if found_scheme else 'drawn by'} {used}, and {accounted} "
        f"was accounted for{said}.",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=true,
        claimed=None if claim is None else float(claim.epsilon),
        remedy="Account for the scheme that draws the batches, or draw them by the other.",
    )


@check("sampling rate", part=SAMPLER, decides=True, explains="batch sizes")
def sampling_rate(context: Context) -> Finding | None:
    """How often a record is drawn."""
    found = _by_source(context, lambda drawn: _drawn_rate(context, drawn), _canary_rate)
    p_value = None if found is None else found.p_value
    failed = found is not None and found.status is Status.FAIL
    certain = failed or (p_value is not None and p_value < NEVER)
    return found if certain else _odd_inclusions(context) or found


def _by_source(
    context: Context,
    of_batches: Callable[[DrawnBatches], Finding],
    of_canaries: Callable[[Context], Finding | None],
) -> Finding | None:
    """The finding from recorded batches where there are any, else from canaries."""
    facts = context.facts
    drawn = facts.batches or facts.plantings
    if drawn is not None:
        return of_batches(drawn)
    if not assumed_poisson(facts.scheme):
        return not_run("the training's batches: observe(..., batch=)")
    return of_canaries(context)


def _odd_inclusions(context: Context) -> Finding | None:
    """Inclusions that the recorder cannot have drawn; None where they are as declared.

    The recorder draws as declared, so this is about the file. It is a finding only where it is
    improbable, which the multiplicity of the gate does not count: so it has a share of the error
    a hundredth of that of other checks.
    """
    scheme, transcript = context.facts.own_law, context.transcript
    planted, steps = transcript.canaries.planted[transcript.member], transcript.number_of_steps
    if scheme is None or planted.size == 0:
        return None
    drawn = int(planted.sum())
    p_value = scheme.count_p_value(drawn, records=planted.size, steps=steps)
    if p_value >= SUSPICIOUS / _PAID:
        return None
    return judged(
        _PAID * p_value,
        f"canaries were included at rate {drawn / (planted.size * steps):.5f}; {scheme} is "
        "declared for them.",
        if_wrong="The recorder draws as declared: the transcript was damaged or edited.",
        consequence=Consequence.INVALIDATES,
        measured=drawn / (planted.size * steps),
        claimed=scheme.share,
        remedy="Audit the transcript that the run wrote.",
    )


def _drawn_rate(context: Context, drawn: DrawnBatches) -> Finding:
    """How often a record is drawn; of a deterministic scheme, whether it kept its rule."""
    share = drawn.scheme.share
    tests = drawn.named("rate", "mean batch", "rate over time") or drawn.named("scheme")
    worst = min(tests, key=lambda test: test.p_value)
    p_value = min(1.0, len(tests) * worst.p_value)
    rate = drawn.drawn / drawn.chances
    interval = (
        clopper_pearson_lower(drawn.drawn, drawn.chances, 0.5 * INTERVAL_ERROR),
        clopper_pearson_upper(drawn.drawn, drawn.chances, 0.5 * INTERVAL_ERROR),
    )
    visible = _smallest_rate(share, drawn.chances)
    poisson = drawn.scheme.poisson_rate is not None
    more = poisson and rate > share and p_value < SUSPICIOUS
    return judged(
        p_value,
        f"a record is in a batch with probability {rate:.3g}; by {drawn.scheme} it is {share:.5f}.",
        consequence=Consequence.LOOSENS if poisson else Consequence.INVALIDATES,
        breach=context.breach(rate=interval[0]) if more else (False, ""),
        # The exact rate is a count of inclusions, and reveals how many records there are.
        measured=digits(rate),
        interval=widened(interval),
        claimed=share,
        remedy=_BATCH_REMEDY,
        tolerable=abs(rate / share - 1.0) < TOLERANCE and worst.name != "scheme",
        sees=f"a sampling rate {digits(visible, 1):.1%} above the claim" if visible < 1.0 else "",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _smallest_rate(rate: float, chances: float) -> float:
    """The relative difference of rates that is detected from this many draws."""
    return max(NOTICED * math.sqrt((1.0 - rate) / (rate * chances)), TOLERANCE)


def _canary_rate(context: Context) -> Finding:
    transcript, claimed = context.transcript, context.claimed_rate
    if context.sampled_by_recorder:
        return _declared_rate(context)
    if claimed is None:
        return not_run("a claimed sampling_rate to compare with")
    plantings = int(transcript.canaries.planted.sum())
    chances = int(np.count_nonzero(transcript.member)) * transcript.number_of_steps
    if chances == 0:
        return not_run("inserted canaries")
    rate = plantings / chances
    interval = (
        clopper_pearson_lower(plantings, chances, 0.5 * INTERVAL_ERROR),
        clopper_pearson_upper(plantings, chances, 0.5 * INTERVAL_ERROR),
    )
    p_value = binomial_p_value(plantings, chances, claimed)
    above = rate > claimed and p_value < SUSPICIOUS
    return judged(
        p_value,
        f"a record is in a batch with probability {rate:.5f}; {claimed:.5f} is claimed.",
        consequence=Consequence.LOOSENS,
        breach=context.breach(rate=interval[0]) if above else (False, ""),
        measured=rate,
        interval=interval,
        claimed=claimed,
        remedy=_RATE_REMEDY,
        tolerable=abs(rate / claimed - 1.0) < TOLERANCE,
        sees=f"a sampling rate {_smallest_rate(claimed, chances):.1%} above the claim",
        visible=_smallest_rate(claimed, chances),
    )


def _declared_rate(context: Context) -> Finding:
    """Where the sampler is not observed: whether its declared rate is the one accounted for."""
    claimed, declared = context.claimed_rate, context.facts.sampling_rate
    if claimed is None or declared is None or abs(declared / claimed - 1.0) < TOLERANCE:
        return not_run(_SAMPLER)
    broken = declared > claimed and context.breach(rate=declared)[0]
    return fact(
        True,
        f"records are sampled at rate {declared:.5f}, and {claimed:.5f} is accounted for.",
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=declared,
        claimed=claimed,
        remedy=_RATE_REMEDY,
    )


@check("sampling scheme", part=SAMPLER, explains="sampling of pairs, sampling in time")
def sampling_scheme(context: Context) -> Finding | None:
    """Whether records are drawn independently of each other, as often in every step."""
    found = _by_source(
        context, lambda drawn: _worst_test(drawn, "scheme", "counts"), _canary_scheme
    )
    unseen = not (context.facts.batches or context.facts.plantings)
    return (_rule_broken(context) if unseen else None) or found


def _worst_test(drawn: DrawnBatches, *names: str) -> Finding:
    """The least likely of these tests of recorded batches."""
    tests = drawn.named(*names)
    if not tests:
        return not_run(f"batches whose number of records is random, unlike {drawn.scheme}")
    worst = min(tests, key=lambda test: test.p_value)
    return judged(
        min(1.0, len(tests) * worst.p_value),
        f"{worst.summary[0].lower()}{worst.summary[1:]}",
        consequence=Consequence.INVALIDATES,
        remedy=_BATCH_REMEDY,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _rule_broken(context: Context) -> Finding | None:
    """Where batches are not recorded by step: canaries that the scheme cannot have drawn."""
    transcript, scheme = context.transcript, context.facts.scheme
    planted = transcript.canaries.planted[transcript.member]
    if scheme is None or assumed_poisson(scheme) or planted.size == 0:
        return None
    fewest, most = scheme.draws_within(transcript.number_of_steps)
    if fewest <= planted.min() and planted.max() <= most:
        return None
    return fact(
        True,
        f"a canary was in more or fewer of the steps than {scheme} allows ({fewest} to {most}).",
        consequence=Consequence.INVALIDATES,
        remedy="Declare the scheme that draws the batches, and account for it.",
    )


def _canary_scheme(context: Context) -> Finding:
    """Whether inclusions are independent: counts by canary and by step vary as Poisson's do."""
    transcript = context.transcript
    if context.sampled_by_recorder:
        return _declared_scheme(context)
    by_canary = transcript.canaries.planted[transcript.member]
    by_step = transcript.steps.planted.sum(axis=1)
    canaries, steps = by_canary.size, by_step.size
    rate = by_canary.sum() / max(steps * canaries, 1)
    enough = min(canaries, steps) >= _FEWEST_STEPS
    if not enough or not 0.0 < rate < 1.0:
        return not_run(f"{_FEWEST_CANARIES} canaries, sampled in some of {_FEWEST_STEPS} steps")
    tests = [
        (along, *_dispersion(counts, trials, rate))
        for along, counts, trials in (("canary", by_canary, steps), ("step", by_step, canaries))
        if min(rate, 1.0 - rate) * trials >= _FEWEST_INCLUSIONS
    ]
    if not tests:
        return not_run(f"{_FEWEST_INCLUSIONS} inclusions of a canary, or in a step")
    along, ratio, p_value = min(tests, key=lambda test: test[2])
    p_value = min(1.0, len(tests) * p_value)
    looks = "shuffled or fixed batches" if ratio < 1.0 else "records or steps drawn together"
    return judged(
        p_value,
        f"the variance of inclusions by {along} is {ratio:.2f} times that of Poisson sampling.",
        if_wrong=f"This looks like {looks}.",
        consequence=Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy=_SCHEME_REMEDY,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _declared_scheme(context: Context) -> Finding:
    """Where the sampler is not observed: whether it is of the kind that the canaries assume."""
    facts = context.facts
    if facts.loader_poisson is not False or context.claimed_rate == 1.0:
        return not_run(_SAMPLER)
    return fact(
        True,
        "the loader does not use Poisson sampling: the canaries were sampled by Poisson sampling, "
        "and the records of this run were not.",
        consequence=Consequence.INVALIDATES,
        remedy="Use a Poisson sampler (Opacus: poisson_sampling=True); or ExampleCanaries, which "
        "go through the loader, with GaussianShift().",
        undermines=Assumption.GAUSSIAN_SCORES,
    )


def _dispersion(counts: NDArray[Any], trials: int, rate: float) -> tuple[float, float]:
    """The variance of binomial counts over what it should be, and its two-sided p-value."""
    freedom = counts.size - 1
    deviations = counts - counts.mean()
    statistic = float((deviations**2).sum()) / (trials * rate * (1.0 - rate))
    p_value = 2.0 * float(min(chdtr(freedom, statistic), chdtrc(freedom, statistic)))
    return statistic / freedom, min(1.0, p_value)


@check("sampling of pairs", part=SAMPLER)
def sampling_of_pairs(context: Context) -> Finding | None:
    """Whether any two records are drawn together more or less often than by chance."""
    return _by_source(context, lambda drawn: _worst_test(drawn, "pairs", "order"), _canary_pairs)


def _canary_pairs(context: Context) -> Finding:
    transcript = context.transcript
    if context.sampled_by_recorder:
        return not_run(_SAMPLER)
    present = transcript.member[transcript.kept]
    planted = transcript.kept_planted[:, present].astype(np.float32)
    counts = planted.sum(axis=0).astype(np.int64)
    steps, canaries = planted.shape
    sometimes = (counts > 0) & (counts < steps)
    if steps < _FEWEST_STEPS or np.count_nonzero(sometimes) < 2:
        return not_run(f"two canaries that are in some of {_FEWEST_STEPS} steps")
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
        min(1.0, 0.5 * canaries * (canaries - 1) * p_value),
        f"of all pairs of canaries, the most unlikely shares {overlap} steps; {expected:.1f} are "
        "expected.",
        consequence=Consequence.INVALIDATES,
        measured=float(overlap),
        claimed=float(expected),
        remedy=f"Sample records independently of each other. {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


@check("sampling in time", part=SAMPLER, explains="sampling of pairs")
def sampling_in_time(context: Context) -> Finding | None:
    """Whether a draw is independent of when a record was drawn before."""
    return _by_source(context, lambda drawn: _worst_test(drawn, "lags", "places"), _canary_times)


def _canary_times(context: Context) -> Finding:
    """The same by canaries.

    However long ago a record was drawn last, its next draw has the same rate. At every gap the
    canaries that were that far from their last step are counted, and those that were drawn again;
    cyclic or shuffled batches have gaps at which none is.
    """
    transcript = context.transcript
    if context.sampled_by_recorder:
        return not_run(_SAMPLER)
    sums, gaps, steps = transcript.canaries, transcript.steps.gaps, transcript.number_of_steps
    drawn = sums.planted > 0
    returns = int(gaps.sum())
    if sums.last_planted.size == 0 or returns != int((sums.planted[drawn] - 1).sum()):
        return not_run("a record of when canaries were drawn again, in every step")
    rate = float(sums.planted.sum()) / (np.count_nonzero(transcript.member) * steps or 1)
    if not 0.0 < rate < 1.0 or returns < 2 * _FEWEST_INCLUSIONS:
        return not_run(f"{2 * _FEWEST_INCLUSIONS} canaries that were drawn again")
    waited = np.bincount(steps - sums.last_planted[drawn], minlength=steps + 1)[1:]
    # How many were that far from their last step, and might be drawn there.
    chances = np.cumsum((gaps + waited[:steps])[::-1])[::-1].astype(np.float64)
    # Long gaps are rare: they are pooled until enough are expected.
    group = np.floor(np.cumsum(chances) * min(rate, 1.0 - rate) / _FEWEST_INCLUSIONS).astype(
        np.int64
    )
    group = np.unique(np.concatenate([[0], group[:-1]]), return_inverse=True)[1]
    returned: NDArray[np.float64] = np.bincount(group, gaps).astype(np.float64)
    chances = np.bincount(group, chances).astype(np.float64)
    first = np.flatnonzero(np.diff(group, prepend=-1)) + 1
    use = chances > 0
    returned, chances, first = returned[use], chances[use], first[use]
    p_values = [
        binomial_p_value(int(found), int(of), rate)
        for found, of in zip(returned, chances, strict=True)
    ]
    worst = int(np.argmin(p_values))
    statistic = float(((returned - rate * chances) ** 2 / (chances * rate * (1.0 - rate))).sum())
    off = NOTICED * math.sqrt((1.0 - rate) / (rate * float(chances[0])))
    tests = [chances.size * p_values[worst], _chi_square_tail(statistic, chances, rate)]
    return judged(
        min(1.0, 2.0 * min(tests)),
        f"{int(returned[worst]):,} of {int(chances[worst]):,} canaries were drawn again "
        f"{int(first[worst])} steps after their last step; {rate * chances[worst]:,.1f} expected.",
        consequence=Consequence.INVALIDATES,
        measured=float(returned[worst]),
        claimed=rate * float(chances[worst]),
        remedy=f"Draw every batch independently of earlier ones. {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a sampling rate {off:.0%} off in the "
        f"step{'s' if len(first) > 1 and first[1] > 2 else ''} after a record was drawn",
    )


def _chi_square_tail(statistic: float, trials: NDArray[np.float64], rate: float) -> float:
    """P[at least this] of a sum of squared standard scores of binomial counts.

    By a gamma distribution with the exact first two moments: with few expected, the squares vary
    more than those of Gaussian scores.
    """
    freedom = float(trials.size)
    excess = (1.0 - 6.0 * rate * (1.0 - rate)) / (rate * (1.0 - rate)) / trials
    variance = float((2.0 + excess).sum())
    scale = variance / (2.0 * freedom)
    return float(chdtrc(freedom / scale, statistic / scale))


@check("batch sizes", part=SAMPLER)
def batch_sizes(context: Context) -> Finding | None:
    """Whether batch sizes have the mean and the variance of the scheme."""
    return _by_source(
        context, lambda drawn: _worst_test(drawn, "batch sizes", "largest batch"), _poisson_sizes
    )


def _poisson_sizes(context: Context) -> Finding:
    """Whether batch sizes have the mean and the variance of Poisson sampling."""
    sizes, records = context.transcript.steps.batch_size, context.facts.records
    sizes = sizes[np.isfinite(sizes)]
    claimed = context.claimed_rate
    if sizes.size == 0 or records is None:
        return not_run("batch_size= in observe() and records= of the Recorder")
    if claimed is None or not 0.0 < claimed < 1.0:
        return not_run("a claimed sampling_rate below 1 to compare with")
    drawn, chances = int(sizes.sum()), records * sizes.size
    if sizes.max() > records:
        return fact(
            True,
            f"a batch has {digits(sizes.max() / records):g} times the records that there are.",
            consequence=Consequence.INVALIDATES,
            measured=digits(sizes.max() / records),
            claimed=1.0,
            remedy="Look for padding or repeats, since a record may be in a batch once; and check "
            "records= of the Recorder.",
        )
    rate = drawn / chances
    by_rate = (
        1.0 if abs(rate / claimed - 1.0) < TOLERANCE else binomial_p_value(drawn, chances, claimed)
    )
    tests = [by_rate]
    ratio = 1.0
    if sizes.size >= 2 and records * min(claimed, 1.0 - claimed) >= _FEWEST_INCLUSIONS:
        ratio, uneven = _dispersion(sizes, records, min(max(rate, 1e-12), 1.0 - 1e-12))
        tests += [uneven, _neighbours(sizes)]
    p_value = min(1.0, len(tests) * min(tests))
    too_many = by_rate == min(tests) and rate > claimed and p_value < SUSPICIOUS
    low = clopper_pearson_lower(drawn, chances, 0.5 * INTERVAL_ERROR)
    return judged(
        p_value,
        f"batches have {digits(sizes.mean()):,g} of {about(records)} records on average; "
        f"{digits(claimed * records):,g} are expected. Their variance is {ratio:.2f} times that of "
        "Poisson sampling.",
        consequence=Consequence.LOOSENS if by_rate == min(tests) else Consequence.INVALIDATES,
        breach=context.breach(rate=low) if too_many else (False, ""),
        measured=digits(rate),
        claimed=claimed,
        remedy=f"{_RATE_REMEDY} {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"batches {_smallest_rate(claimed, chances):.1%} larger than accounted for",
    )


def _neighbours(sizes: NDArray[np.float64]) -> float:
    """Of "sizes of neighbouring batches are independent", two-sided."""
    left = sizes - sizes.mean()
    if sizes.size < _FEWEST_STEPS or not left.any():
        return 1.0
    count = float(sizes.size)
    correlation = float(left[1:] @ left[:-1]) / float(left @ left)
    # Exact mean and nearly the variance of a serial correlation about an estimated mean.
    score = (correlation + 1.0 / count) * math.sqrt(count)
    return 2.0 * float(ndtr(-abs(score)))


@check(
    "single records",
    part=SAMPLER,
    # Given how many records a step drew: a wrong rate of all does not show there.
    explains="sampling rate, batch sizes, sampling scheme, sampling of pairs, sampling in time",
    reveals_individual=True,
)
def single_records(context: Context) -> Finding | None:
    """Whether one record is drawn more or less often than all others, or always with another."""
    return _by_source(context, lambda drawn: _drawn_records(context, drawn), lambda _: None)


def _drawn_records(context: Context, drawn: DrawnBatches) -> Finding:
    tests = drawn.named(*_SHARES)
    if not tests:
        return not_run(f"a scheme whose batches may hold any record, unlike {drawn.scheme}")
    worst = min(tests, key=lambda test: test.p_value / _SHARES[test.name])
    often = drawn.named("most drawn")
    if often and often[0].p_value < _CERTAIN:
        # Records that are in every batch also come together, which is the lesser fault.
        worst = often[0]
    p_value = min(1.0, worst.p_value / _SHARES[worst.name])
    breach = False, ""
    if worst.name == "most drawn" and p_value < SUSPICIOUS and drawn.most is not None:
        # Of all records the most often drawn: the interval is valid for each of them.
        low = clopper_pearson_lower(drawn.most, drawn.steps, INTERVAL_ERROR / drawn.records)
        if low > drawn.scheme.share:
            breach = context.breach(rate=low)
    share = drawn.scheme.share
    least = int(_rare_count(drawn.steps, share, _NOTICED_BY_ONE / drawn.records))
    sees = ""
    if least <= drawn.steps:
        sees = (
            f"any record in {least:,} of {drawn.steps:,} batches, where {drawn.steps * share:.3g} "
            "are expected"
        )
    return judged(
        p_value,
        f"{worst.summary[0].lower()}{worst.summary[1:]}",
        consequence=Consequence.INVALIDATES,
        breach=breach,
        remedy="Draw every record with the same probability, independently of all others: no "
        "record may be in every batch, and no two may always come together.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=sees,
    )


def _rare_count(steps: int, rate: float, chance: float) -> int:
    """The smallest count of one record that has at most this probability; above it if none has."""
    counts = np.arange(1, steps + 1)
    rare = bdtrc(counts - 1, steps, rate) <= chance
    return int(counts[rare][0]) if rare.any() else steps + 1


SAMPLER_CHECKS = (
    accounted_sampling,
    sampling_rate,
    sampling_scheme,
    sampling_of_pairs,
    sampling_in_time,
    batch_sizes,
    single_records,
)
"""Checks of how records are drawn."""
