"""Cross-checks of the claim with the accountant, and of the optimizer with the model."""

from __future__ import annotations

import math

import numpy as np

from askgauss import accounting
from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE, Context
from askgauss.checks.findings import SUSPICIOUS, fact, judged, not_run
from askgauss.checks.registry import ACCOUNTANT, NOISE_SCALE, STEPS, TRAINED_PARAMETERS, check
from askgauss.checks.tails import Spread
from askgauss.claims import PrivacyClaim
from askgauss.recording.facts import ClipCountFacts, RunFacts, WeightFacts
from askgauss.results import Consequence, Finding
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.stats.rounding import digits, two_digits_up, widened

__all__ = ["CLIP_COUNT_CHECKS", "DECLARED_CHECKS"]

# A claim this near to an epsilon that was read is that epsilon, rounded.
_ROUNDED = 0.005
# Fewer counts than these do not show how much noise they have.
_FEWEST_COUNTS = 8
_REPLACED = (
    "Replacing a record moves a sum by two clip norms: account for replace-one neighbours, or "
    'claim adjacency="add-remove", which is what Opacus\' accountants count.'
)


def _declared(facts: RunFacts) -> bool:
    """Whether the run says what was accounted for, or which parameters it trains."""
    return bool(facts.accounted) or facts.outside is not None


def _least_accounted(facts: RunFacts, claim: PrivacyClaim) -> float:
    """What the steps that were accounted for leak at least: those of one rate, composed.

    Under the claim's adjacency: of noise and clip norm as accounted, whatever canaries were.
    """
    delta = float(claim.delta)
    if any(noise <= 0.0 for noise, _, _ in facts.accounted):
        return max(_leak(*kind, delta) for kind in facts.accounted)
    by_rate: dict[float, list[tuple[float, int]]] = {}
    for noise, rate, steps in facts.accounted:
        by_rate.setdefault(rate, []).append((noise, steps))
    if claim.adjacency == "replace":
        return max(_leak_replaced(kinds, rate, delta) for rate, kinds in by_rate.items())
    return max(_leak_together(kinds, rate, delta) for rate, kinds in by_rate.items())


def _leak_together(kinds: list[tuple[float, int]], rate: float, delta: float) -> float:
    """What steps of one rate leak, whose noise differs."""
    if len(kinds) == 1:
        return _leak(kinds[0][0], rate, kinds[0][1], delta)
    noise, steps = zip(*kinds, strict=True)
    if not 0.0 < rate <= 1.0 or sum(steps) < 1:
        return 0.0
    ratios = np.repeat(1.0 / np.asarray(noise, dtype=np.float64), steps)
    return accounting.schedule_epsilon_lower(
        signal_to_noise=ratios, sampling_rate=rate, delta=delta
    )


def _leak_replaced(kinds: list[tuple[float, int]], rate: float, delta: float) -> float:
    """The same of replace-one neighbours; all steps are taken to have the most noise."""
    steps = sum(count for _, count in kinds)
    if not 0.0 < rate <= 1.0 or steps < 1:
        return 0.0
    return ReplaceOne(of=Poisson(rate=float(rate))).epsilon_lower(
        noise_multiplier=max(float(noise) for noise, _ in kinds), steps=int(steps), delta=delta
    )


def _leak(noise: float, rate: float, steps: int, delta: float) -> float:
    if noise <= 0.0:
        return math.inf
    if not 0.0 < rate <= 1.0 or steps < 1:
        return 0.0
    return accounting.dpsgd_epsilon_lower(
        signal_to_noise=1.0 / float(noise), sampling_rate=float(rate), steps=int(steps), delta=delta
    )


@check("accounted epsilon", part=ACCOUNTANT, decides=True)
def accounted_epsilon(context: Context) -> Finding | None:
    """Whether the claim is what the accounted steps come to."""
    facts, claim = context.facts, context.claim
    if not _declared(facts):
        return None
    if claim is None or not facts.accounted:
        return not_run("a claim, and what the run's accountant has counted")
    least, own = _least_accounted(facts, claim), facts.accounted_epsilon
    most = (1.0 + TOLERANCE) * float(claim.epsilon)
    counted = sum(steps for _, _, steps in facts.accounted)
    says = "" if own is None else f"; the accountant itself says {own:.4g}"
    if own is not None and claim.adjacency == "replace":
        says += " of add-remove neighbours"
    beyond = least > most
    return fact(
        beyond or (own is not None and own > most),
        f"the {counted:,} steps that were accounted for leak at least epsilon {least:.4g} at delta "
        f"{claim.delta:g}{says}; {claim.epsilon:g} is claimed of {claim.adjacency} neighbours.",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=least if own is None else max(least, own),
        claimed=float(claim.epsilon),
        remedy=_REPLACED
        if beyond and claim.adjacency == "replace"
        else "Claim what the accountant says at this delta, after the last step."
        if beyond
        else "An accountant may be loose: claim what it says, or say which one is tighter.",
    )


@check("steps after epsilon was read", part=STEPS)
def steps_after_epsilon_was_read(context: Context) -> Finding | None:
    """Whether training went on after the epsilon that is claimed was read."""
    facts, claim = context.facts, context.claim
    if not _declared(facts):
        return None
    total = facts.accounted_steps
    if claim is None or total is None or not facts.epsilon_reads or not facts.accounted:
        return not_run("a claim, and an epsilon that was read while the audit was attached")
    read = [
        (steps, epsilon)
        for delta, epsilon, steps in facts.epsilon_reads
        if math.isclose(delta, claim.delta, rel_tol=1e-6)
        and abs(epsilon - claim.epsilon) <= _ROUNDED * claim.epsilon
    ]
    if not read:
        return not_run("a claimed epsilon that was read while the audit was attached")
    steps, epsilon = max(read)
    beyond = _least_accounted(facts, claim) > (1.0 + TOLERANCE) * float(claim.epsilon)
    return fact(
        steps < total,
        f"epsilon {epsilon:.4g} was read after {steps:,} of {total:,} steps.",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=float(steps),
        claimed=float(total),
        remedy="Read epsilon after the last step, and claim that.",
    )


@check("parameters outside the optimizer", part=TRAINED_PARAMETERS, decides=True)
def parameters_outside_the_optimizer(context: Context) -> Finding | None:
    """Whether parameters could train that the private optimizer lacks, and whether any do."""
    facts = context.facts
    if not _declared(facts):
        return None
    outside, moved = facts.outside, facts.outside_moved
    if outside is None:
        return not_run("the model, to compare its parameters with the optimizer's")
    shown = ", ".join((moved or outside)[:3]) + (", ..." if len(moved or outside) > 3 else "")
    # Nothing trains what is frozen: somebody wrote to it.
    written = bool(moved) and not set(moved) & set(outside)
    if written:
        said = f"{len(moved)} frozen parameters changed, outside the private optimizer: {shown}."
    elif moved:
        said = (
            f"{len(moved)} trained without the private optimizer, and without its noise: {shown}."
        )
    elif outside:
        said = f"{len(outside)} require gradients, and the private optimizer lacks them: {shown}."
    else:
        said = "the private optimizer has every parameter of the model that could train."
    return fact(
        bool(outside or moved),
        said,
        consequence=Consequence.INVALIDATES
        if written
        else (Consequence.BREACH if moved else Consequence.INFORMS),
        measured=float(len(moved or outside)),
        claimed=0.0,
        remedy="Find the code that writes frozen weights. If it reads released weights and no data "
        f"(rounding, clamping), put it inside `with {(facts.weights or WeightFacts()).declare}:`."
        if written
        else "Give every trainable parameter to the optimizer that is made private, or freeze it "
        "(requires_grad_(False)).",
    )


def _with_count(context: Context, count: ClipCountFacts, deviation: float) -> tuple[bool, str]:
    """Whether gradients as claimed and a count with this noise break the claim together.

    The worse of a clipped and an unclipped record moves the count, relative to the size of the
    batch, by at least a half. Only counts that the clip norm shows are counted.
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
    # The count joins the steps with the most noise, where it shows least.
    quiet = np.sort(claimed)[::-1]
    return context.exceeds(np.sqrt(quiet**-2 + added), rate)


@check("noise of the clipping count", part=NOISE_SCALE)
def noise_of_the_clipping_count(context: Context) -> Finding | None:
    """Whether the count of unclipped records has its noise."""
    count = context.facts.clip_count
    if count is None:
        return None
    if count.read < _FEWEST_COUNTS:
        return not_run(f"{_FEWEST_COUNTS} steps in which the noisy count can be read")
    spread = Spread(float(count.read), count.square)
    if count.square == 0.0:
        broken, implied = _with_count(context, count, 0.0)
        return fact(
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
    broken, implied = _with_count(context, count, high * count.deviation) if less else (False, "")
    return judged(
        # Counts are whole numbers: a sum of squares to all its digits would show them.
        two_digits_up(p_value),
        f"the count of unclipped records gets {ratio:.3f} times the noise that is stated for it.",
        if_wrong=implied.strip(),
        consequence=Consequence.BREACH if broken else Consequence.LOOSENS,
        measured=digits(ratio * count.deviation),
        interval=widened((low * count.deviation, high * count.deviation)),
        claimed=count.deviation,
        remedy="Its noise is part of the budget: check unclipped_num_std and where it is added.",
    )


@check("accounting of the clipping count", part=ACCOUNTANT)
def accounting_of_the_clipping_count(context: Context) -> Finding | None:
    """Whether the count of unclipped records was accounted for."""
    count = context.facts.clip_count
    if count is None:
        return None
    claimed = None if context.claim is None else context.claim.noise_multiplier
    accounted = max((noise for noise, _, _ in context.facts.accounted), default=claimed)
    if accounted is None or count.noise_multiplier <= 0.0:
        return not_run("an accountant, and noise on gradients and count")
    forgotten = accounted > count.noise_multiplier * (1.0 + TOLERANCE)
    said = (
        f"gradients and the count of unclipped records together have noise multiplier "
        f"{count.noise_multiplier:.4g}, and {accounted:.4g} was accounted for."
    )
    broken, implied = _with_count(context, count, count.deviation) if forgotten else (False, "")
    return fact(
        forgotten,
        f"{said}{' The count was left out.' if forgotten else ''}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.INFORMS,
        measured=count.noise_multiplier,
        claimed=accounted,
        remedy="Account for the noise multiplier of both, and claim its epsilon. (Opacus before "
        "1.6 tells its accountant that of the gradients alone: update it.)",
    )


@check("committed claim")
def committed_claim(context: Context) -> Finding | None:
    """Whether the claim is the one that was committed to before the run."""
    commitment, claim = context.facts.commitment, context.claim
    if commitment is None or commitment.claim is None or claim is None:
        return None
    same = commitment.claim == claim
    return fact(
        not same,
        f"the claim is {'' if same else 'not '}the one that was committed to before the run.",
        consequence=Consequence.INFORMS,
        remedy="Audit the claim that was committed to, or say why it is another one.",
    )


DECLARED_CHECKS = (
    accounted_epsilon,
    steps_after_epsilon_was_read,
    parameters_outside_the_optimizer,
    committed_claim,
)
"""Comparisons of what the run says of itself; no statistics."""

CLIP_COUNT_CHECKS = (noise_of_the_clipping_count, accounting_of_the_clipping_count)
"""Checks of adaptive clipping: the count that moves the clip norm is released as well."""
