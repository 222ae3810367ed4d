"""Checks of the scheme: as it was accounted for, and as batches were drawn."""

from __future__ import annotations

from collections.abc import Iterator

from askgauss._rounded import digits, widened
from askgauss.diagnostics.context import INTERVAL_ERROR, TOLERANCE, Context
from askgauss.diagnostics.outcomes import SUSPICIOUS, fact, judged, not_run
from askgauss.results import Assumption, Consequence, Finding
from askgauss.sampling import DrawnBatches, Poisson, mismatch
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper

__all__ = ["SAMPLER_CHECKS", "accounted_sampling", "drawn_checks"]

# Every test of drawn batches belongs to one check.
_TESTS = {
    "sampling rate": ("rate", "mean batch", "rate over time"),
    "sampling scheme": ("scheme", "counts"),
    "sampling of pairs": ("pairs", "order"),
    "sampling in time": ("lags", "places"),
    "batch sizes": ("batch sizes", "largest batch"),
}
SAMPLER_CHECKS = tuple(_TESTS)
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
    if used == accounted or (isinstance(used, Poisson) and isinstance(accounted, Poisson)):
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
        yield _rate(context, drawn) if name == "sampling rate" else _check(name, drawn)


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
    if isinstance(drawn.scheme, Poisson):
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
        undermines=Assumption.SUBSAMPLED_GAUSSIAN_STEPS,
    )
