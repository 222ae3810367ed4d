"""Checks of the claim: with the accountant, the model, neighbouring datasets, privacy unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from askgauss import accounting
from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE, Context, has_opposites
from askgauss.checks.registry import (
    ACCOUNTANT,
    ADJACENCY,
    NOISE_SCALE,
    PRIVACY_UNIT,
    STEPS,
    SUSPICIOUS,
    TRAINED_PARAMETERS,
    check,
    fact,
    judged,
    not_run,
)
from askgauss.checks.tails import Spread
from askgauss.claims import PrivacyClaim
from askgauss.recording.facts import ClipCountFacts, WeightFacts
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.results import Consequence, Finding, Status
from askgauss.sampling import Poisson, ReplaceOne
from askgauss.scores import CanaryScores
from askgauss.stats.rounding import digits, two_digits_up, widened

__all__ = ["CLIP_COUNT_CHECKS", "DECLARED_CHECKS", "NEIGHBOUR_CHECKS", "REPORTED", "Neighbours"]

# Before the epsilon that the accountant itself reports; `askgauss verify` reads it from there.
REPORTED = "; the accountant reports "

Data = CanaryScores | Transcript | LinearTranscript

# A claim this near to an epsilon that was read is that epsilon, rounded.
_ROUNDED = 0.005
# Fewer counts than these do not show how much noise they have.
_FEWEST_COUNTS = 8
_REPLACED = (
    "Replacing a record moves a sum by two clip norms: account for replace-one neighbours, or "
    'claim adjacency="add-remove", which is what the accountants of Opacus assume.'
)


def _declared(facts: RunFacts) -> bool:
    """Whether the run says what was accounted for, or which parameters it trains."""
    return bool(facts.accounted) or facts.outside is not None


def _least_accounted(facts: RunFacts, claim: PrivacyClaim) -> float:
    """What the steps that were accounted for spend at least: those of one rate, composed.

    Under the claim's adjacency: of noise and clip norm as accounted, whatever canaries were.
    """
    if any(noise <= 0.0 for noise, _, _ in facts.accounted):
        return math.inf
    by_rate: dict[float, list[tuple[float, int]]] = {}
    for noise, rate, steps in facts.accounted:
        by_rate.setdefault(float(rate), []).append((float(noise), int(steps)))
    return max(_spent(kinds, rate, claim) for rate, kinds in by_rate.items())


def _spent(kinds: list[tuple[float, int]], rate: float, claim: PrivacyClaim) -> float:
    """What steps of one rate spend at least, whose noise may differ."""
    steps, delta = sum(count for _, count in kinds), float(claim.delta)
    if not 0.0 < rate <= 1.0 or steps < 1:
        return 0.0
    if claim.adjacency == "replace":
        # All steps are taken to have the most noise.
        most = max(noise for noise, _ in kinds)
        scheme = ReplaceOne(of=Poisson(rate=rate))
        return scheme.epsilon_lower(noise_multiplier=most, steps=steps, delta=delta)
    if len(kinds) == 1:
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=1.0 / kinds[0][0], sampling_rate=rate, steps=steps, delta=delta
        )
    ratios = np.repeat([1.0 / noise for noise, _ in kinds], [count for _, count in kinds])
    return accounting.schedule_epsilon_lower(
        signal_to_noise=ratios, sampling_rate=rate, delta=delta
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
    # As it is published, so that whoever verifies the result can decide by the same number.
    own = None if own is None else digits(own, 4)
    most = (1.0 + TOLERANCE) * float(claim.epsilon)
    counted = sum(steps for _, _, steps in facts.accounted)
    says = "" if own is None else f"{REPORTED}{own:.4g}"
    if own is not None and claim.adjacency == "replace":
        says += " under add-remove adjacency"
    beyond = least > most
    return fact(
        beyond or (own is not None and own > most),
        f"the {counted:,} steps that were accounted for spend at least epsilon {least:.4g} at "
        f"delta {claim.delta:g}{says}; {claim.epsilon:g} is claimed ({claim.adjacency} adjacency).",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=least if own is None else max(least, own),
        claimed=float(claim.epsilon),
        remedy=_REPLACED
        if beyond and claim.adjacency == "replace"
        else "Claim what the accountant reports at this delta, after the last step."
        if beyond
        else "Claim what the accountant reports, or name the tighter accountant.",
    )


@check("steps after epsilon was read", part=STEPS)
def steps_after_epsilon_was_read(context: Context) -> Finding | None:
    """Whether training continued after the claimed epsilon was read."""
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
        remedy="Read epsilon after the last step, and claim that value.",
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
    # Nothing trains what is frozen: other code wrote to it.
    written = bool(moved) and not set(moved) & set(outside)
    said = "the private optimizer has every trainable parameter of the model."
    if written:
        said = f"{len(moved)} frozen parameters changed outside the private optimizer: {shown}."
    elif moved:
        said = f"{len(moved)} parameters trained without the private optimizer's noise: {shown}."
    elif outside:
        said = f"{len(outside)} trainable parameters are not in the private optimizer: {shown}."
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
    """Whether gradients as claimed and a count with this noise violate the claim together.

    The worse of a clipped and an unclipped record moves the count, relative to the size of the
    batch, by at least a half. Only counts that the clip norm reveals are counted.
    """
    rate, claimed = context.claimed_rate, context.claimed_noise
    if context.claim is None or rate is None or claimed is None or not claimed.all():
        return context.claim is None, ""
    steps = claimed.size
    shown = min(count.shown, steps)
    if shown == 0:
        return False, ""
    if deviation <= 0.0:
        return True, " It reveals single records."
    added = np.where(np.arange(steps) < shown, (2.0 * deviation) ** -2, 0.0)
    # The count joins the steps with the most noise, where it adds least.
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
            remedy="Add the stated noise to the count: it is a release too.",
        )
    ratio, p_value = spread.scale, spread.p_value(1.0)
    low, high = spread.interval(INTERVAL_ERROR)
    less = ratio < 1.0 and p_value < SUSPICIOUS
    return judged(
        # Counts are whole numbers: a sum of squares to all its digits would reveal them.
        two_digits_up(p_value),
        f"the count of unclipped records has {ratio:.3f} times its stated noise.",
        consequence=Consequence.LOOSENS,
        breach=_with_count(context, count, high * count.deviation) if less else (False, ""),
        measured=digits(ratio * count.deviation),
        interval=widened((low * count.deviation, high * count.deviation)),
        claimed=count.deviation,
        remedy="Check unclipped_num_std and where its noise is added: it is part of the budget.",
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
        f"{count.noise_multiplier:.4g}; {accounted:.4g} was accounted for."
    )
    broken, implied = _with_count(context, count, count.deviation) if forgotten else (False, "")
    return fact(
        forgotten,
        f"{said}{' The count was left out.' if forgotten else ''}{implied}",
        consequence=Consequence.BREACH if broken else Consequence.INFORMS,
        measured=count.noise_multiplier,
        claimed=accounted,
        remedy="Account for the noise multiplier of both, and claim its epsilon. (Opacus before "
        "1.6 gives its accountant that of the gradients alone: update it.)",
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
        remedy="Audit the claim that was committed to, or state why it differs.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What was audited and the neighbouring datasets that the claim is about.

    Attributes:
        data: What was audited.
        claim: What the run claims.
        replaced: Whether the bound is that of replace-one neighbours.
    """

    data: Data
    claim: PrivacyClaim
    replaced: bool

    @property
    def unit(self) -> str | None:
        """What a canary stands for: a record or a user; None where that is not known."""
        if isinstance(self.data, CanaryScores):
            return self.data.metadata.unit
        if self.data.facts.rounds is not None:
            return "user"
        return self.data.facts.unit if isinstance(self.data, Transcript) else None


@check("adjacency", part=ADJACENCY, decides=True)
def adjacency(seen: Neighbours) -> Finding | None:
    """Whether canaries measure the neighbouring datasets of the claim."""
    if seen.claim.adjacency == "replace":
        return _replaced(seen.data, seen.replaced)
    if isinstance(seen.data, CanaryScores):  # of scores, presence is all that is known
        return None
    scheme = seen.claim.scheme
    if seen.claim.adjacency == "add-remove" and scheme is not None and scheme.fixed_batch:
        return _stated(
            "with batches of fixed size, one record more or less changes which others are drawn; "
            "the bound is that of zero-out adjacency, where a record's gradient is left out.",
            Status.INFO,
        )
    return _stated(
        f"canaries are inserted or held out, as records are under {seen.claim.adjacency} adjacency."
    )


def _stated(summary: str, status: Status = Status.PASS) -> Finding:
    return Finding(check="", status=status, summary=summary)


def _replaced(data: Data, replaced: bool) -> Finding:
    if not replaced:
        if has_opposites(data):
            needs = "the default method, or auditor=SubsampledGaussian(replaced=True)"
        elif isinstance(data, CanaryScores):
            needs = (
                "the transcript; or auditor=GaussianShift(replaced=True), where the opposite "
                "gradient moves the score as far the other way"
            )
        else:
            needs = "gradient-space canaries, which have an opposite: leave ExampleCanaries out"
        return not_run(needs)
    if isinstance(data, Transcript):
        scheme = data.facts.drawn_by
        replaced_by = None if scheme is None else ReplaceOne(of=scheme.record_by_record())
        if replaced_by is not None and not replaced_by.shown:
            needs = "a scheme with replace-one accounting (Poisson, fixed size, every step)"
            return not_run(f"{needs}, not {scheme}")
    rounds = None if isinstance(data, CanaryScores) else data.facts.rounds
    why = (
        "canaries of either sign were measured"
        if rounds is not None and rounds.signed
        else "it assumes that a gradient and its opposite are clipped and noised alike"
    )
    return _stated(
        "the bound is that of a record replaced by its opposite, which moves the sum by two clip "
        f"norms; {why}."
    )


@check("privacy unit", part=PRIVACY_UNIT, decides=True)
def privacy_unit(seen: Neighbours) -> Finding | None:
    """Whether canaries are the unit that the claim protects."""
    measured = "canaries are users: the audit measures what one user adds over the whole run."
    if seen.claim.unit == "user" and seen.unit == "user":
        return _stated(measured)
    if seen.claim.unit == "user":
        return not_run(
            "canaries that are users: clients of federated rounds, or the sum of a user's examples "
            'clipped together, declared by unit="user"'
        )
    if isinstance(seen.data, CanaryScores) or seen.unit != "user":
        return None
    return _stated(
        f"{measured} The claim is about one example, of which a user may have many.", Status.INFO
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

NEIGHBOUR_CHECKS = (adjacency, privacy_unit)
"""Checks of the claim's adjacency and privacy unit."""
