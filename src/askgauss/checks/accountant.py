"""Facts at hand, compared: the claim with the accountant, the optimizer with the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from askgauss import accounting
from askgauss.checks.context import TOLERANCE
from askgauss.checks.findings import fact, not_run
from askgauss.claims import PrivacyClaim
from askgauss.recording.facts import WeightFacts
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.results import Consequence, Finding
from askgauss.sampling import Poisson, ReplaceOne

__all__ = ["committed_claim", "declared_checks"]

# A claim this near to an epsilon that was read is that epsilon, rounded.
_ROUNDED = 0.005
_REPLACED = (
    "Replacing a record moves a sum by two clip norms: account for replace-one neighbours, or "
    'claim adjacency="add-remove", which is what Opacus\' accountants count.'
)


def declared_checks(facts: RunFacts, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every comparison of what the run says of itself, where it says anything; no statistics."""
    if not facts.accounted and facts.outside is None:
        return
    yield _accounted_epsilon(facts, claim)
    yield _epsilon_read_early(facts, claim)
    yield _parameters_outside(facts)


def committed_claim(facts: RunFacts, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Whether the claim is the one that was committed to before the run."""
    commitment = facts.commitment
    if commitment is None or commitment.claim is None or claim is None:
        return
    same = commitment.claim == claim
    yield fact(
        "committed claim",
        not same,
        f"the claim is {'' if same else 'not '}the one that was committed to before the run.",
        consequence=Consequence.INFORMS,
        remedy="Audit the claim that was committed to, or say why it is another one.",
    )


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


def _accounted_epsilon(facts: RunFacts, claim: PrivacyClaim | None) -> Finding:
    """Whether the claim is what the accounted steps come to."""
    name = "accounted epsilon"
    if claim is None or not facts.accounted:
        return not_run(name, "a claim, and what the run's accountant has counted")
    least, own = _least_accounted(facts, claim), facts.accounted_epsilon
    most = (1.0 + TOLERANCE) * float(claim.epsilon)
    counted = sum(steps for _, _, steps in facts.accounted)
    says = "" if own is None else f"; the accountant itself says {own:.4g}"
    if own is not None and claim.adjacency == "replace":
        says += " of add-remove neighbours"
    beyond = least > most
    return fact(
        name,
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


def _epsilon_read_early(facts: RunFacts, claim: PrivacyClaim | None) -> Finding:
    """Whether training went on after the epsilon that is claimed was read."""
    name = "steps after epsilon was read"
    total = facts.accounted_steps
    if claim is None or total is None or not facts.epsilon_reads or not facts.accounted:
        return not_run(name, "a claim, and an epsilon that was read while the audit was attached")
    read = [
        (steps, epsilon)
        for delta, epsilon, steps in facts.epsilon_reads
        if math.isclose(delta, claim.delta, rel_tol=1e-6)
        and abs(epsilon - claim.epsilon) <= _ROUNDED * claim.epsilon
    ]
    if not read:
        return not_run(name, "a claimed epsilon that was read while the audit was attached")
    steps, epsilon = max(read)
    beyond = _least_accounted(facts, claim) > (1.0 + TOLERANCE) * float(claim.epsilon)
    return fact(
        name,
        steps < total,
        f"epsilon {epsilon:.4g} was read after {steps:,} of {total:,} steps.",
        consequence=Consequence.BREACH if beyond else Consequence.INFORMS,
        measured=float(steps),
        claimed=float(total),
        remedy="Read epsilon after the last step, and claim that.",
    )


def _parameters_outside(facts: RunFacts) -> Finding:
    """Whether parameters could train that the private optimizer lacks, and whether any do."""
    name, outside, moved = "parameters outside the optimizer", facts.outside, facts.outside_moved
    if outside is None:
        return not_run(name, "the model, to compare its parameters with the optimizer's")
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
        name,
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
