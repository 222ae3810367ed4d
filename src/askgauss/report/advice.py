"""What a result means for somebody who is no statistician, what to do next, and who should."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss import policy, power
from askgauss.checks.causes import leading
from askgauss.claims import PrivacyClaim
from askgauss.results import AuditResult, Consequence, Verdict, number

__all__ = ["Advice", "advice"]

# Methods that an audit takes where none is asked for.
_DEFAULTS = ("gaussian-shift", "subsampled-gaussian")

_MAINTAINER = "whoever maintains the training code"
_AUDITOR = "whoever runs the audit"
_OWNER = "whoever answers for the privacy claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What follows from a result.

    Attributes:
        meaning: What it means, without statistics.
        action: The next step, with a number where one helps.
        actor: Who should take it.
        present: How many present canaries would be enough, where that is the next step.
        absent: How many absent ones beside them.
    """

    meaning: str
    action: str
    actor: str
    present: int | None = None
    absent: int | None = None


def advice(result: AuditResult) -> Advice:
    """What a result means, the next step, and who should take it.

    Args:
        result: The audit.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> draw = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=draw.normal(size=50), absent=draw.normal(size=50), noise="gaussian")
        >>> advice(ag.audit(scores, delta=1e-5)).action
        'Audit it against a claim: --epsilon and --delta, or claim=PrivacyClaim(...).'
    """
    if result.verdict is Verdict.VIOLATION:
        return _violation(result)
    if result.verdict is Verdict.INVALID:
        return _invalid(result)
    if result.verdict is Verdict.INCONCLUSIVE:
        return _inconclusive(result)
    if result.verdict is Verdict.CONSISTENT:
        return _consistent(result)
    if policy.membership_gap(result.findings) is not None:
        return _ask_for_membership(result)
    if result.claim is None:
        return Advice(
            meaning="This is a measurement without a claim to hold it against: it can neither "
            "pass nor fail.",
            action="Audit it against a claim: --epsilon and --delta, or claim=PrivacyClaim(...).",
            actor=_AUDITOR,
        )
    return Advice(
        meaning="This method gives an estimate without a guarantee: nothing follows for the claim.",
        action="Audit with a method that gives a bound, such as the default one.",
        actor=_AUDITOR,
    )


def _violation(result: AuditResult) -> Advice:
    breached = policy.failures(result.findings, Consequence.BREACH)
    breach = leading(result.findings) if breached else None
    claimed = "" if result.claim is None else f" of epsilon {result.claim.epsilon:g}"
    if breach is not None:
        meaning = (
            f"The private training is broken: {breach.check}. The privacy claim{claimed} does not "
            "hold for this run."
        )
        step = breach.remedy
    else:
        meaning = (
            f"This run gives away more about single records than its privacy claim{claimed} allows."
        )
        step = (
            "Every part that was measured by itself looks as claimed: look at the accountant, the "
            "steps that were not recorded, and the claim itself."
        )
        if result.claim is not None and result.claim.adjacency == "replace":
            step = (
                "Replacing a record moves a sum by two clip norms: account for replace-one "
                "neighbours, which add-remove accountants do not."
            )
    action = f"Do not release the model under this claim. {step} Then train and audit again."
    return Advice(meaning=meaning, action=action, actor=f"{_MAINTAINER}, and {_OWNER}")


def _invalid(result: AuditResult) -> Advice:
    broken = leading(result.findings)
    name = "an assumption" if broken is None else f"the check of {broken.check}"
    return Advice(
        meaning="The audit could not measure what this run gives away, because "
        f"{name} failed. That is neither good nor bad news about the claim: it is untested.",
        action=f"{'' if broken is None else broken.remedy} Then audit again.".strip(),
        actor=f"{_MAINTAINER}, together with {_AUDITOR}",
    )


def _inconclusive(result: AuditResult) -> Advice:
    claim = result.claim
    assert claim is not None
    meaning = (
        "Nothing speaks against the claim, but this audit was too weak to have noticed a leak a "
        "quarter above it. Treat the claim as untested."
    )
    if policy.membership_gap(result.findings) is not None:
        return _ask_for_membership(result)
    weak = policy.weakness(result.findings, result.scope, result.power)
    if weak is not None and weak.kind is policy.WeaknessKind.PARTS:
        unseen = weak.parts
        names = " and ".join(part.name for part in unseen)
        return Advice(
            meaning=f"Nothing speaks against the claim, but no check could assess {names}. Treat "
            "the claim as untested.",
            action=f"{unseen[0].how_to_test[:1].upper()}{unseen[0].how_to_test[1:]}.",
            actor=_AUDITOR,
        )
    if weak is not None and weak.kind is policy.WeaknessKind.STEPS:
        assert weak.finding is not None
        missed = weak.finding
        return Advice(
            meaning=f"Nothing speaks against the claim, but only {missed.measured:,.0f} of "
            f"{missed.claimed:,.0f} steps were audited. Treat the claim as untested.",
            action="If training stopped early, claim the epsilon accounted for the steps that were "
            f"taken, PrivacyClaim(..., steps={missed.measured:.0f}), and say planned_steps= when "
            "attaching; if not, attach the audit to the whole run.",
            actor=_AUDITOR,
        )
    if weak is not None and weak.kind is policy.WeaknessKind.CONTRIBUTION:
        assert weak.finding is not None
        return Advice(
            meaning="Nothing speaks against the claim, but canaries added less to a step than a "
            "record may. Treat the claim as untested.",
            action=f"{weak.finding.remedy} Or plant canaries of a whole clip norm: "
            "CanaryAudit(optimizer, ...) without ExampleCanaries does.".strip(),
            actor=_AUDITOR,
        )
    return _more_canaries(result, claim, meaning)


def _ask_for_membership(result: AuditResult) -> Advice:
    (asked,) = [item for item in result.findings if item.check == policy.MEMBERSHIP]
    return Advice(
        meaning="Nothing follows for the run: it is not known whether the two groups of canaries "
        "were alike before training.",
        action=asked.remedy,
        actor=_AUDITOR,
    )


def _more_canaries(result: AuditResult, claim: PrivacyClaim, meaning: str) -> Advice:
    """How many canaries would be enough; where no number is, what would."""
    run = result.metadata.get("run", {})
    needed = power.needed_canaries(result, power=policy.WANTED_POWER)
    if needed is None:
        room, name = run.get("places"), result.auditor.name
        if name in _DEFAULTS and result.power is None:
            action = "Audit a claim at a delta above 0, against which power can be computed."
        elif result.power is None:
            action = f"{name} does not say what it would notice: audit with the default method."
        elif room is not None and name == "subsampled-gaussian":
            action = (
                f"This model has room for {room:,} canaries, one a parameter, and no number of "
                "them is enough for this claim. Use ExampleCanaries, which are records and take no "
                "room, or train with a smaller sampling rate, at which fewer canaries do."
            )
        elif not result.law_declared:
            action = (
                "Thresholds on scores certify little of a large epsilon. Audit from inside the "
                'training (CanaryAudit), or with auditor="one-run-fdp" where the mechanism is '
                "close to a Gaussian one."
            )
        elif name in _DEFAULTS:
            action = (
                f"No number of canaries is enough for {name} at this claim: audit the transcript "
                "rather than scores, over more of the steps."
            )
        else:
            action = (
                f"Not even {power.LARGEST_SIMULATED:,} present and as many absent canaries are "
                f"enough for {name} at this claim: audit with the default method, from the "
                "transcript where there is one."
            )
        return Advice(meaning=meaning, action=action, actor=_AUDITOR)
    present, absent = needed
    if (present, absent) == (result.present, result.absent):
        action = "Audit again with another seed: these numbers of canaries are enough on average."
        return Advice(meaning=meaning, action=action, actor=_AUDITOR)
    steps = run.get("steps")
    attached = ""
    if steps is not None and run.get("source") == "transcript":
        attached = f", or CanaryAudit(..., planned_steps={steps}) if it is to be this short"
    if run.get("fair_coins"):
        count = max(2 * present, 2 * absent)
        said = f"{count:,} canaries, each present by a fair coin (CanaryAudit(..., canaries={count}"
        said += "); DiracCanaries(count=...) is the same)"
    else:
        said = f"{present:,} present and {absent:,} absent canaries (CanaryAudit(..., "
        said += f"present={present}, absent={absent}); DiracCanaries takes the same)"
    return Advice(
        meaning=meaning,
        action=f"Train again with {said}{attached}: such an audit notices a true epsilon of "
        f"{number(policy.ALTERNATIVE * claim.epsilon)} nine times in ten.",
        actor=_AUDITOR,
        present=present,
        absent=absent,
    )


def _consistent(result: AuditResult) -> Advice:
    seen = ""
    if result.smallest_leak is not None:
        seen = f" that notices a leak of epsilon {number(result.smallest_leak)} four times in five"
    untested = [part for part in result.scope if part.status == "not tested"]
    meaning = f"An audit{seen} found nothing against the claim. That is no proof of privacy"
    if not untested:
        return Advice(
            meaning=f"{meaning}.",
            action="Keep the result with the model: askgauss attest puts it in a form that others "
            "can check.",
            actor=_OWNER,
        )
    names = ", ".join(part.name for part in untested)
    how = untested[0].how_to_test
    return Advice(
        meaning=f"{meaning}, and says nothing of what was not tested: {names}.",
        action=f"Decide whether that is enough. To test more: {how}.",
        actor=_OWNER,
    )
