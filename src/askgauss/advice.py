"""What a result means for somebody who is no statistician, what to do next, and who should."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss import power
from askgauss.claims import PrivacyClaim
from askgauss.diagnostics.causes import leading
from askgauss.results import AuditResult, Consequence, Finding, Status, Verdict, number

__all__ = ["Advice", "advice"]

# Canaries are drawn by coins: asked for a little more than enough, enough is what comes out.
_WANTED = 0.9
_ALTERNATIVE = 1.25
# Canaries that add less than this, in clip norms, are not what a record may be at worst.
_WHOLE = 0.99

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
    breached = any(
        item.status is Status.FAIL and item.consequence is Consequence.BREACH
        for item in result.findings
    )
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
    enough = result.power is not None and result.power >= power.ENOUGH
    unseen = [part for part in result.scope if part.status == "not tested" and part.met]
    if enough and unseen:
        names = " and ".join(part.name for part in unseen)
        return Advice(
            meaning=f"Nothing speaks against the claim, but no check could assess {names}. Treat "
            "the claim as untested.",
            action=f"{unseen[0].how_to_test[:1].upper()}{unseen[0].how_to_test[1:]}.",
            actor=_AUDITOR,
        )
    missed = next((item for item in result.findings if _fewer_steps(item)), None)
    if missed is not None:
        return Advice(
            meaning=f"Nothing speaks against the claim, but only {missed.measured:,.0f} of "
            f"{missed.claimed:,.0f} steps were audited. Treat the claim as untested.",
            action="If training stopped early, claim the epsilon accounted for the steps that were "
            f"taken, PrivacyClaim(..., steps={missed.measured:.0f}), and say planned_steps= when "
            "attaching; if not, attach the audit to the whole run.",
            actor=_AUDITOR,
        )
    if not result.law_declared:
        return Advice(
            meaning=meaning,
            action='If the mechanism adds Gaussian noise, declare it: noise="gaussian", or steps= '
            "and sampling_rate= of the scores.",
            actor=_AUDITOR,
        )
    weak = next((item for item in result.findings if _too_weak(item)), None)
    if result.power is None and weak is not None:
        return Advice(
            meaning="Nothing speaks against the claim, but canaries added less to a step than a "
            "record may. Treat the claim as untested.",
            action=f"{weak.remedy} Or plant canaries of a whole clip norm: "
            "CanaryAudit(optimizer, ...) without ExampleCanaries does.".strip(),
            actor=_AUDITOR,
        )
    return _more_canaries(result, claim, meaning)


def _fewer_steps(finding: Finding) -> bool:
    """Whether steps were accounted for that the audit did not see."""
    measured, accounted = finding.measured, finding.claimed
    if finding.check != "step count" or measured is None or accounted is None:
        return False
    return measured < accounted


def _too_weak(finding: Finding) -> bool:
    return finding.check == "contribution" and (finding.measured or 1.0) < _WHOLE


def _more_canaries(result: AuditResult, claim: PrivacyClaim, meaning: str) -> Advice:
    """How many canaries would be enough; where no number is, what would."""
    run = result.metadata.get("run", {})
    needed = power.needed_canaries(result, power=_WANTED)
    if needed is None:
        room, name = run.get("places"), result.auditor.name
        if result.power is None:
            action = f"{name} does not say what it would notice: audit with the default method."
        elif room is not None and name == "subsampled-gaussian":
            action = (
                f"This model has room for {room:,} canaries, one a parameter, and no number of "
                "them is enough for this claim. Use ExampleCanaries, which are records and take no "
                "room, or train with a smaller sampling rate, at which fewer canaries do."
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
        f"{number(_ALTERNATIVE * claim.epsilon)} nine times in ten.",
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
