"""Checks of the sampler: how often a record is drawn, with whom, and when it comes back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, ndtr

from askgauss._rounding import about, digits
from askgauss.checks.batch_tests import (
    SAMPLER_CHECKS,
    accounted_sampling,
    drawn_checks,
    smallest_rate,
)
from askgauss.checks.context import INTERVAL_ERROR, NOTICED, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.tails import binomial_p_value, overlap_p_value
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling import assumed_poisson
from askgauss.sampling.inclusion import NEVER
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper

__all__ = ["sampler_checks"]

_FEWEST_CANARIES = 20
_FEWEST_STEPS = 20
# Counts of inclusions are compared with their law where they are at least this large on average.
_FEWEST_INCLUSIONS = 5
# By how much the odds of plantings by our own coin are raised before the gate hears of them.
_PAID = 100.0
_SAMPLER = "canaries that go through the training's own sampler"
_RATE_REMEDY = (
    "The accountant must be told the rate the sampler really uses: batch size over records, not "
    "one over the number of batches; and no step may be left out for being empty."
)
_SCHEME_REMEDY = (
    "Use a Poisson sampler (Opacus: poisson_sampling=True), or an accountant of the scheme that is "
    "really used."
)


def sampler_checks(context: Context) -> Iterator[Finding]:
    """Every check of the sampler."""
    yield from accounted_sampling(context)
    odd = _odd_plantings(context)
    for item in _sampler_checks(context):
        known = item.status is Status.FAIL or (item.p_value is not None and item.p_value < NEVER)
        yield odd if odd is not None and item.check == odd.check and not known else item


def _odd_plantings(context: Context) -> Finding | None:
    """Where the recorder's own coin planted and its numbers are odd: what they say.

    A coin of ours is as it was declared, so this is about the file. Told only where odd, which
    other checks' share of the gate does not know of: it pays by a share a hundredth of theirs.
    """
    law, transcript = context.facts.own_law, context.transcript
    planted, steps = transcript.canaries.planted[transcript.member], transcript.number_of_steps
    if law is None or planted.size == 0:
        return None
    drawn = int(planted.sum())
    p_value = law.count_p_value(drawn, records=planted.size, steps=steps)
    if p_value >= SUSPICIOUS / _PAID:
        return None
    return judged(
        "sampling rate",
        _PAID * p_value,
        f"canaries were planted at rate {drawn / (planted.size * steps):.5f}, where {law} is "
        "declared for them.",
        if_wrong="The recorder draws by what is declared: the transcript was damaged or edited.",
        consequence=Consequence.INVALIDATES,
        measured=drawn / (planted.size * steps),
        claimed=law.share,
        remedy="Audit the transcript that the run wrote.",
    )


def _sampler_checks(context: Context) -> Iterator[Finding]:
    facts = context.facts
    drawn = facts.batches or facts.plantings
    if drawn is not None:
        yield from drawn_checks(context, drawn)
        return
    if not assumed_poisson(facts.scheme):
        broken = _rule_broken(context)
        for name in SAMPLER_CHECKS:
            if name == "sampling scheme" and broken is not None:
                yield broken
            else:
                yield not_run(name, "the training's batches: observe(..., batch=)")
        return
    yield _sampling_rate(context)
    yield _sampling_scheme(context)
    yield _sampling_of_pairs(context)
    yield _sampling_in_time(context)
    yield _batch_sizes(context)


def _rule_broken(context: Context) -> Finding | None:
    """Without a step by step look at batches: canaries that the scheme cannot have drawn."""
    transcript, scheme = context.transcript, context.facts.scheme
    planted = transcript.canaries.planted[transcript.member]
    if scheme is None or planted.size == 0:
        return None
    fewest, most = scheme.draws_within(transcript.number_of_steps)
    if fewest <= planted.min() and planted.max() <= most:
        return None
    return fact(
        "sampling scheme",
        True,
        f"a canary was in more or fewer of the steps than {scheme} allows ({fewest} to {most}).",
        consequence=Consequence.INVALIDATES,
        remedy="Declare the scheme that draws the batches, and account for it.",
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
    p_value = binomial_p_value(plantings, chances, claimed)
    above = rate > claimed and p_value < SUSPICIOUS
    broken, implied = context.breach(rate=interval[0]) if above else (False, "")
    return judged(
        name,
        p_value,
        f"a record is in a batch with probability {rate:.5f}, where {claimed:.5f} is claimed.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=rate,
        interval=interval,
        claimed=claimed,
        remedy=_RATE_REMEDY,
        tolerable=abs(rate / claimed - 1.0) < TOLERANCE,
        sees=f"a sampling rate {smallest_rate(claimed, chances):.1%} above the claim",
        visible=smallest_rate(claimed, chances),
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
        f"counts of inclusions by {along} vary {ratio:.2f} times as much as Poisson sampling "
        "gives.",
        if_fine=", as they may by chance.",
        if_wrong=f"; that looks like {looks}.",
        consequence=Consequence.INVALIDATES,
        measured=ratio,
        claimed=1.0,
        remedy=_SCHEME_REMEDY,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _dispersion(counts: NDArray[Any], trials: int, rate: float) -> tuple[float, float]:
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
        if_fine=", as the oddest of so many may be by chance.",
        consequence=Consequence.INVALIDATES,
        measured=float(overlap),
        claimed=float(expected),
        remedy=f"Records must be sampled independently of each other. {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def _sampling_in_time(context: Context) -> Finding:
    """Whether a record that was drawn comes back as if nothing had been drawn before.

    However long ago a record was drawn last, its next coin has the same rate. At every gap the
    canaries that were so far from their last step are counted, and those that came back; cyclic
    or shuffled batches have gaps at which nobody does.
    """
    name, transcript = "sampling in time", context.transcript
    if context.own_coin:
        return not_run(name, _SAMPLER)
    sums, gaps, steps = transcript.canaries, transcript.steps.gaps, transcript.number_of_steps
    drawn = sums.planted > 0
    returns = int(gaps.sum())
    if sums.last_planted.size == 0 or returns != int((sums.planted[drawn] - 1).sum()):
        return not_run(name, "steps that were all recorded by a version that counts returns")
    rate = float(sums.planted.sum()) / (np.count_nonzero(transcript.member) * steps or 1)
    if not 0.0 < rate < 1.0 or returns < 2 * _FEWEST_INCLUSIONS:
        return not_run(name, f"{2 * _FEWEST_INCLUSIONS} returns of a canary to a batch")
    waited = np.bincount(steps - sums.last_planted[drawn], minlength=steps + 1)[1:]
    # So many were that far from their last step, and got a coin there.
    coins = np.cumsum((gaps + waited[:steps])[::-1])[::-1].astype(np.float64)
    # Long gaps are rare: those are taken together until chance has something to say of them.
    group = np.floor(np.cumsum(coins) * min(rate, 1.0 - rate) / _FEWEST_INCLUSIONS).astype(np.int64)
    group = np.unique(np.concatenate([[0], group[:-1]]), return_inverse=True)[1]
    returned: NDArray[np.float64] = np.bincount(group, gaps).astype(np.float64)
    coins = np.bincount(group, coins).astype(np.float64)
    first = np.flatnonzero(np.diff(group, prepend=-1)) + 1
    use = coins > 0
    returned, coins, first = returned[use], coins[use], first[use]
    p_values = [
        binomial_p_value(int(found), int(of), rate)
        for found, of in zip(returned, coins, strict=True)
    ]
    worst = int(np.argmin(p_values))
    statistic = float(((returned - rate * coins) ** 2 / (coins * rate * (1.0 - rate))).sum())
    tests = [coins.size * p_values[worst], _chi_square_tail(statistic, coins, rate)]
    return judged(
        name,
        min(1.0, 2.0 * min(tests)),
        f"{int(returned[worst]):,} of {int(coins[worst]):,} coins at {int(first[worst])} steps "
        f"from a record's last one drew it again, where {rate * coins[worst]:,.1f} are expected.",
        if_fine=", as the oddest of so many may be by chance.",
        consequence=Consequence.INVALIDATES,
        measured=float(returned[worst]),
        claimed=rate * float(coins[worst]),
        remedy=f"A record's coin must not know of its earlier ones. {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"a rate {NOTICED * math.sqrt((1.0 - rate) / (rate * float(coins[0]))):.0%} off in "
        f"the step{'s' if len(first) > 1 and first[1] > 2 else ''} after a record was drawn",
    )


def _chi_square_tail(statistic: float, trials: NDArray[np.float64], rate: float) -> float:
    """P[at least this] of a sum of squared standard scores of binomial counts.

    By a gamma law of the exact first two moments: with few expected, the squares vary more than
    those of Gaussian scores.
    """
    freedom = float(trials.size)
    excess = (1.0 - 6.0 * rate * (1.0 - rate)) / (rate * (1.0 - rate)) / trials
    variance = float((2.0 + excess).sum())
    scale = variance / (2.0 * freedom)
    return float(chdtrc(freedom / scale, statistic / scale))


def _batch_sizes(context: Context) -> Finding:
    """Whether batches are as large, and as uneven, as a coin for every record makes them."""
    name, sizes, records = "batch sizes", context.transcript.steps.batch_size, context.facts.records
    sizes = sizes[np.isfinite(sizes)]
    claimed = context.claimed_rate
    if sizes.size == 0 or records is None:
        return not_run(name, "batch_size= in observe() and records= of the Recorder")
    if claimed is None or not 0.0 < claimed < 1.0:
        return not_run(name, "a claimed sampling_rate below 1 to compare with")
    drawn, chances = int(sizes.sum()), records * sizes.size
    if sizes.max() > records:
        return fact(
            name,
            True,
            f"a batch has {digits(sizes.max() / records):g} times the records that there are.",
            consequence=Consequence.INVALIDATES,
            measured=digits(sizes.max() / records),
            claimed=1.0,
            remedy="A record may be in a batch once: look for padding or repeats; and check "
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
    broken, implied = False, ""
    if too_many:
        low = clopper_pearson_lower(drawn, chances, 0.5 * INTERVAL_ERROR)
        broken, implied = context.breach(rate=low)
    costly = Consequence.BREACH if broken else Consequence.LOOSENS
    return judged(
        name,
        p_value,
        f"batches have {digits(sizes.mean()):,g} of {about(records)} records on average, where "
        f"{digits(claimed * records):,g} are expected, and vary {ratio:.2f} times as much as "
        "Poisson sampling makes them.",
        if_fine=", as they may by chance.",
        if_wrong=implied.strip(),
        consequence=costly if by_rate == min(tests) else Consequence.INVALIDATES,
        measured=digits(rate),
        claimed=claimed,
        remedy=f"{_RATE_REMEDY} {_SCHEME_REMEDY}",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=f"batches {smallest_rate(claimed, chances):.1%} larger than accounted for",
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
