"""Checks of the scheme: as it was accounted for, and as batches were drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import bdtrc

from askgauss._rounding import digits, widened
from askgauss.checks.context import INTERVAL_ERROR, NOTICED, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.results import Assumption, Consequence, Finding
from askgauss.sampling import DrawnBatches, mismatch
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper

__all__ = ["SAMPLER_CHECKS", "accounted_sampling", "drawn_checks", "smallest_rate"]

# Every test of drawn batches belongs to one check.
_TESTS = {
    "sampling rate": ("rate", "mean batch", "rate over time"),
    "sampling scheme": ("scheme", "counts"),
    "sampling of pairs": ("pairs", "order"),
    "sampling in time": ("lags", "places"),
    "batch sizes": ("batch sizes", "largest batch"),
    "single records": ("most drawn", "least drawn", "inseparable records"),
}
SAMPLER_CHECKS = tuple(_TESTS)
# How the tests of single records share their error: a pair that comes together has the least power.
_SHARES = {"most drawn": 0.2, "least drawn": 0.1, "inseparable records": 0.7}
# The p-value of one record that the gate rejects: a fifth of the error of one of thirty checks.
_NOTICED_BY_ONE = 5e-6
_CERTAIN = 1e-7
_REMEDY = (
    "Draw batches by the scheme that was declared, or declare the one that draws them, and account "
    "for it."
)


def accounted_sampling(context: Context) -> Iterator[Finding]:
    """Whether batches are drawn by the scheme that was accounted for, where one was named."""
    claimed = None if context.claim is None else context.claim.sampling
    facts = context.facts
    if any((facts.scheme, facts.accounted_scheme, facts.found_scheme, claimed)):
        yield _accounted_sampling(context)


def _accounted_sampling(context: Context) -> Finding:
    """A fact, no statistics."""
    name, claim = "accounted sampling", context.claim
    found_scheme, accounted = context.facts.found_scheme, context.claimed_scheme
    used = found_scheme or context.facts.drawn_by
    if used is None or accounted is None:
        return not_run(name, "a scheme, declared to the Recorder and in the claim (sampling=)")
    if used == accounted or None not in (used.poisson_rate, accounted.poisson_rate):
        # How often a record is drawn is the check of the sampling rate.
        return fact(
            name,
            False,
            f"{used} is in use, and accounted for.",
            consequence=Consequence.INFORMS,
        )
    said, beyond, true = "", False, None
    noise = context.noise_level
    if claim is not None and noise > 0.0 and claim.delta > 0.0:
        steps = context.claimed_steps or context.transcript.number_of_steps
        found = mismatch(accounted, used, noise, steps, claim.delta)
        true = found.true_at_least
        beyond = true > (1.0 + TOLERANCE) * claim.epsilon
        said = (
            f"; at noise multiplier {noise:.3g} over {steps:,} steps that gives epsilon at least "
            f"{true:.3g}, and what was accounted for {found.claimed:.3g}"
        )
    return fact(
        name,
        True,
        f"batches {'show' if found_scheme else 'are drawn by'} {used}, and {accounted} was "
        f"accounted for{said}.",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=true,
        claimed=None if claim is None else float(claim.epsilon),
        remedy="Account for the scheme that draws the batches, or draw them by the other.",
    )


def drawn_checks(context: Context, drawn: DrawnBatches) -> Iterator[Finding]:
    """Every check of batches that were held against a scheme, step by step."""
    for name in _TESTS:
        if name == "sampling rate":
            yield _rate(context, drawn)
        elif name == "single records":
            yield _single(context, drawn)
        else:
            yield _check(name, drawn)


def _single(context: Context, drawn: DrawnBatches) -> Finding:
    """Whether one record is drawn more or less often than all others, or always with another."""
    name = "single records"
    tests = drawn.named(*_TESTS[name])
    if not tests:
        return not_run(
            name, f"batches that may hold any record, which {drawn.scheme} does not give"
        )
    worst = min(tests, key=lambda test: test.p_value / _SHARES[test.name])
    often = drawn.named("most drawn")
    if often and often[0].p_value < _CERTAIN:
        # Records that are in every batch also come together: that is the lesser fault.
        worst = often[0]
    p_value = min(1.0, worst.p_value / _SHARES[worst.name])
    consequence, implied = Consequence.INVALIDATES, ""
    if worst.name == "most drawn" and p_value < SUSPICIOUS and drawn.most is not None:
        # Of all records the most often drawn: the interval is to hold for each of them.
        low = clopper_pearson_lower(drawn.most, drawn.steps, INTERVAL_ERROR / drawn.records)
        if low > drawn.scheme.share:
            broken, implied = context.breach(rate=low)
            consequence = Consequence.BREACH if broken else Consequence.INVALIDATES
    share = drawn.scheme.share
    least = int(_rare_count(drawn.steps, share, _NOTICED_BY_ONE / drawn.records))
    sees = ""
    if least <= drawn.steps:
        sees = (
            f"any record in {least:,} of {drawn.steps:,} batches, where {drawn.steps * share:.3g} "
            "are expected"
        )
    return judged(
        name,
        p_value,
        f"{worst.summary[0].lower()}{worst.summary[1:]}",
        if_wrong=implied.strip(),
        consequence=consequence,
        remedy="Draw every record with the same probability, independently of all others: no "
        "record may be in every batch, and no two may come as one.",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
        sees=sees,
    )


def _rare_count(steps: int, rate: float, chance: float) -> int:
    """The smallest count of one record that has at most this probability; above it if none has."""
    counts = np.arange(1, steps + 1)
    rare = bdtrc(counts - 1, steps, rate) <= chance
    return int(counts[rare][0]) if rare.any() else steps + 1


def _check(name: str, drawn: DrawnBatches) -> Finding:
    tests = drawn.named(*_TESTS[name])
    if not tests:
        return not_run(name, f"batches whose number of records {drawn.scheme} leaves to chance")
    worst = min(tests, key=lambda test: test.p_value)
    return judged(
        name,
        min(1.0, len(tests) * worst.p_value),
        f"{worst.summary[0].lower()}{worst.summary[1:]}",
        consequence=Consequence.INVALIDATES,
        remedy=_REMEDY,
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )


def smallest_rate(rate: float, chances: float) -> float:
    """The relative difference of rates that is noticed from so many coins."""
    return max(NOTICED * math.sqrt((1.0 - rate) / (rate * chances)), TOLERANCE)


def _rate(context: Context, drawn: DrawnBatches) -> Finding:
    """How often a record is drawn; where the scheme leaves no chance, whether it kept its rule."""
    name, share = "sampling rate", drawn.scheme.share
    tests = drawn.named(*_TESTS[name]) or drawn.named("scheme")
    worst = min(tests, key=lambda test: test.p_value)
    p_value = min(1.0, len(tests) * worst.p_value)
    rate = drawn.drawn / drawn.chances
    interval = (
        clopper_pearson_lower(drawn.drawn, drawn.chances, 0.5 * INTERVAL_ERROR),
        clopper_pearson_upper(drawn.drawn, drawn.chances, 0.5 * INTERVAL_ERROR),
    )
    consequence, implied = Consequence.INVALIDATES, ""
    visible = smallest_rate(share, drawn.chances)
    if drawn.scheme.poisson_rate is not None:
        consequence = Consequence.LOOSENS
        if rate > share and p_value < SUSPICIOUS:
            broken, implied = context.breach(rate=interval[0])
            consequence = Consequence.BREACH if broken else Consequence.LOOSENS
    return judged(
        name,
        p_value,
        f"a record is in a batch with probability {rate:.3g}, where {drawn.scheme} has "
        f"{share:.5f}.",
        if_wrong=implied.strip(),
        consequence=consequence,
        # The exact rate is a count of inclusions, and says how many records there are.
        measured=digits(rate),
        interval=widened(interval),
        claimed=share,
        remedy=_REMEDY,
        tolerable=abs(rate / share - 1.0) < TOLERANCE and worst.name != "scheme",
        sees=f"a sampling rate {digits(visible, 1):.1%} above the claim" if visible < 1.0 else "",
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )
