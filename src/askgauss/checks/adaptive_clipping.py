"""Checks of adaptive clipping: the count that moves the clip norm is released as well."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from askgauss._rounding import digits, two_digits_up, widened
from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.tails import Spread
from askgauss.recording.facts import ClipCountFacts
from askgauss.results import Consequence, Finding

__all__ = ["clip_count_checks"]

_FEWEST = 8


def clip_count_checks(context: Context, count: ClipCountFacts) -> Iterator[Finding]:
    """Whether the count has its noise, and whether it was accounted for."""
    yield _noise(context, count)
    yield _accounting(context, count)


def _implied(context: Context, count: ClipCountFacts, deviation: float) -> tuple[bool, str]:
    """Whether gradients as claimed and a count with this noise break the claim together.

    The worse of a clipped and an unclipped record moves the count, held against the size of the
    batch, by at least a half. Only counts that the clip norm tells are counted.
    """
    rate, claimed = context.claimed_rate, context.claimed_noise
    if context.claim is None or rate is None or claimed is None or not claimed.all():
        return context.claim is None, ""
    steps = claimed.size
    shown = min(count.shown, steps)
    if shown == 0:
        return False, ""
    if deviation <= 0.0:
        return True, " A record can be read off it."
    added = np.where(np.arange(steps) < shown, (2.0 * deviation) ** -2, 0.0)
    # The count joins the steps with the most noise, where it tells least.
    quiet = np.sort(claimed)[::-1]
    return context.exceeds(np.sqrt(quiet**-2 + added), rate)


def _noise(context: Context, count: ClipCountFacts) -> Finding:
    name = "noise of the clipping count"
    if count.read < _FEWEST:
        return not_run(name, f"{_FEWEST} steps in which the noisy count can be read")
    spread = Spread(float(count.read), count.square)
    if count.square == 0.0:
        broken, implied = _implied(context, count, 0.0)
        return fact(
            name,
            True,
            f"the count of unclipped records moves the clip norm without any noise.{implied}",
            consequence=Consequence.BREACH if broken else Consequence.INFORMS,
            measured=0.0,
            claimed=count.deviation,
            remedy="The count is a release of its own: add the noise that is stated for it.",
        )
    ratio, p_value = spread.scale, spread.p_value(1.0)
    low, high = spread.interval(INTERVAL_ERROR)
    less = ratio < 1.0 and p_value < SUSPICIOUS
    broken, implied = _implied(context, count, high * count.deviation) if less else (False, "")
    return judged(
        name,
        # Counts are whole numbers: a sum of squares to all its digits would tell them.
        two_digits_up(p_value),
        f"the count of unclipped records gets {ratio:.3f} times the noise that is stated for it.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=digits(ratio * count.deviation),
        interval=widened((low * count.deviation, high * count.deviation)),
        claimed=count.deviation,
        remedy="Its noise is part of the budget: check unclipped_num_std and where it is added.",
    )


def _accounting(context: Context, count: ClipCountFacts) -> Finding:
    name = "accounting of the clipping count"
    claimed = None if context.claim is None else context.claim.noise_multiplier
    told = max((noise for noise, _, _ in context.facts.accounted), default=claimed)
    if told is None or count.noise_multiplier <= 0.0:
        return not_run(name, "an accountant, and noise on gradients and count")
    forgotten = told > count.noise_multiplier * (1.0 + TOLERANCE)
    said = (
        f"gradients and the count of unclipped records together have noise multiplier "
        f"{count.noise_multiplier:.4g}, and {told:.4g} was accounted for."
    )
    broken, implied = _implied(context, count, count.deviation) if forgotten else (False, "")
    return fact(
        name,
        forgotten,
        f"{said}{' The count was left out.' if forgotten else ''}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.INFORMS,
        measured=count.noise_multiplier,
        claimed=told,
        remedy="Account for the noise multiplier of both, and claim its epsilon. (Opacus before "
        "1.6 tells its accountant that of the gradients alone: update it.)",
    )
