"""What a verdict takes, written once: thresholds, the decision on a claim, and what opens a gate.

`decide` is a pure function of evidence, claim and findings. Audits, files that are read back and
results that other findings are joined to all go through it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from askgauss._text import number, whole_percent
from askgauss.checks.gate import named
from askgauss.checks.signal import contribution, step_count
from askgauss.claims import PrivacyClaim
from askgauss.results import (
    MEMBERSHIP,
    Assumption,
    AuditResult,
    Consequence,
    Finding,
    OtherBound,
    Part,
    Status,
    Verdict,
    membership_gap,
)

if TYPE_CHECKING:
    from askgauss.auditors.auditor import Auditor

__all__ = [
    "ALTERNATIVE",
    "ENOUGH_POWER",
    "WANTED_POWER",
    "Decision",
    "Gate",
    "Reading",
    "Terms",
    "Weakness",
    "WeaknessKind",
    "decide",
    "decide_again",
    "failures",
    "gate",
    "share_of_test",
    "untested",
    "verdict_on",
    "weakness",
]

ALTERNATIVE = 1.25
"""Power is that against a true epsilon of this many times the claim."""
ENOUGH_POWER = 0.8
"""An audit with this power is strong enough for CONSISTENT."""
WANTED_POWER = 0.9
"""What advice plans for: canaries are drawn at random, so a little more than enough is asked."""
# Canaries that add less than this, in clip norms, are weaker than a record may be.
_WHOLE = 0.99
# Where the verdict depends on what nobody said.
_AMBIGUOUS = (
    "were the noise Gaussian, these scores would contradict the claim; without a distribution of "
    "them there is no evidence against it."
)


class WeaknessKind(enum.Enum):
    """Why an audit that found nothing against the claim does not support it."""

    CONTRIBUTION = "contribution"
    """Canaries added less to the sum than a record may."""
    STEPS = "steps"
    """Fewer steps were audited than accounted for."""
    PARTS = "parts"
    """No check had enough power to assess some part of the training."""
    POWER = "power"
    """A leak above the claim would probably not have been detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """Why an audit is INCONCLUSIVE.

    Attributes:
        kind: The first reason that applies.
        finding: The check that shows it, for contribution and steps.
        parts: The parts that were not tested.
    """

    kind: WeaknessKind
    finding: Finding | None = None
    parts: tuple[Part, ...] = ()


def verdict_on(
    *,
    breached: bool = False,
    invalid: bool = False,
    contradicted: bool = False,
    strong: bool = False,
) -> Verdict:
    """The verdict on a claim.

    Args:
        breached: A check found the mechanism itself broken.
        invalid: A check failed that the test of the claim rests on.
        contradicted: The test rejects the claim.
        strong: It would probably have done so at `ALTERNATIVE` times the claim.
    """
    if breached:
        return Verdict.VIOLATION
    if invalid:
        return Verdict.INVALID
    if contradicted:
        return Verdict.VIOLATION
    return Verdict.CONSISTENT if strong else Verdict.INCONCLUSIVE


def share_of_test(findings: Iterable[Finding], gate_error: float) -> float:
    """The part of the gate error that tests the claim: half, where checks share the rest."""
    return gate_error if all(item.p_value is None for item in findings) else 0.5 * gate_error


def failures(findings: Iterable[Finding], consequence: Consequence) -> list[Finding]:
    """Checks that failed with this consequence, in their order."""
    return [
        item for item in findings if item.status is Status.FAIL and item.consequence is consequence
    ]


def untested(scope: Iterable[Part]) -> tuple[Part, ...]:
    """Parts that canaries went through and no check assessed with enough power."""
    return tuple(part for part in scope if part.status == "not tested" and part.met)


def weakness(
    findings: Sequence[Finding], scope: Iterable[Part], power: float | None
) -> Weakness | None:
    """Why the audit does not support the claim; None where it does.

    Args:
        findings: The checks.
        scope: The parts of the training.
        power: Probability of a VIOLATION at `ALTERNATIVE` times the claim; None where unknown.
    """
    # Power is that of canaries that add a whole clip norm, the most a record may.
    small = next((item for item in findings if _small_contribution(item)), None)
    if small is not None:
        return Weakness(kind=WeaknessKind.CONTRIBUTION, finding=small)
    enough, parts = power is not None and power >= ENOUGH_POWER, untested(scope)
    if enough and not parts:
        return None
    missed = next((item for item in findings if _missed_steps(item)), None)
    if missed is not None:
        return Weakness(kind=WeaknessKind.STEPS, finding=missed)
    return Weakness(kind=WeaknessKind.PARTS if enough else WeaknessKind.POWER, parts=parts)


def _small_contribution(finding: Finding) -> bool:
    """Whether canaries add less to the sum than a record may: as they should, or not."""
    measured, expected = finding.measured, finding.claimed
    if finding.check != contribution.name or measured is None or expected is None:
        return False
    return expected < _WHOLE or (finding.status is Status.WARN and measured < expected)


def _missed_steps(finding: Finding) -> bool:
    """Whether steps were accounted for that the audit did not see."""
    measured, accounted = finding.measured, finding.claimed
    if finding.check != step_count.name or measured is None or accounted is None:
        return False
    return measured < accounted


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What an audit is held to.

    Attributes:
        claim: What was claimed; None for a bound without a verdict.
        delta: The delta the bound is stated at; the claim's, where there is one.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        gate_error: A correct run ends in VIOLATION or INVALID at most this often.
    """

    claim: PrivacyClaim | None
    delta: float
    confidence: float
    gate_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A method and the evidence it gathered."""

    auditor: Auditor[Any]
    evidence: Any

    def bound(self, terms: Terms) -> OtherBound:
        """Its bound on these terms."""
        lower = self.auditor.epsilon_lower(
            self.evidence, delta=terms.delta, confidence=terms.confidence
        )
        return OtherBound(auditor=self.auditor, evidence=self.evidence, epsilon_lower=lower)

    def rejects(self, claim: PrivacyClaim, error: float) -> bool:
        """Whether it contradicts the claim at this error."""
        return self.auditor.rejects(
            self.evidence, epsilon=claim.epsilon, delta=claim.delta, error=error
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What follows from evidence, terms and findings; fields of `AuditResult` of the same names."""

    epsilon_lower: float = 0.0
    epsilon_point: float | None = None
    ceiling: float = 0.0
    verdict: Verdict | None = None
    reason: str = ""
    power: float | None = None
    smallest_leak: float | None = None
    distribution_free: OtherBound | None = None
    if_gaussian: OtherBound | None = None

    def stated(self) -> dict[str, Any]:
        """Its fields by name, for the result."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def decide(
    reading: Reading,
    terms: Terms,
    *,
    findings: tuple[Finding, ...],
    scope: tuple[Part, ...],
    fallback: Callable[[], Reading | None],
    gaussian: Reading | None = None,
) -> Decision:
    """The bound, the verdict and why.

    Args:
        reading: The method that decides, and its evidence.
        terms: What the audit is held to.
        findings: The checks.
        scope: The parts of the training, as the checks assessed them.
        fallback: A method without assumptions about the scores, asked for where an assumption of
            the deciding one failed; None where it cannot read the data.
        gaussian: What a method for Gaussian noise gathered, where nobody declared the noise.
    """
    auditor, evidence, claim = reading.auditor, reading.evidence, terms.claim
    judged = claim is not None and auditor.assumption is not Assumption.ESTIMATE
    gap = membership_gap(findings)
    if gap is not None:
        # Groups that were not randomised are no evidence; to say that they were may make them one.
        (shown,) = [item for item in findings if item.check == MEMBERSHIP]
        ending = Verdict.INVALID if gap == "fixed" else Verdict.INCONCLUSIVE
        return Decision(
            verdict=ending if judged else None,
            reason=f"{shown.check}: {shown.summary}" if judged else "",
        )
    bound = reading.bound(terms).epsilon_lower
    verdict: Verdict | None = None
    reason, power = "", None
    if judged:
        verdict, reason, power = _judge(reading, terms, bound, findings, scope)
    share = 0.5 * terms.gate_error
    free = None
    if verdict is Verdict.INVALID and auditor.assumption is not Assumption.DISTRIBUTION_FREE:
        other = fallback()
        if other is not None:
            assert claim is not None
            free = other.bound(terms)
            if other.rejects(claim, share):
                verdict = Verdict.VIOLATION
                reason = f"by the distribution-free bound; and {reason}"
    if gaussian is not None and verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE):
        assert claim is not None
        if gaussian.rejects(claim, share):
            verdict, reason = Verdict.INCONCLUSIVE, _AMBIGUOUS
    return Decision(
        epsilon_lower=bound,
        epsilon_point=auditor.epsilon_point(evidence, delta=terms.delta),
        ceiling=auditor.ceiling(evidence, delta=terms.delta, confidence=terms.confidence),
        verdict=verdict,
        reason=reason,
        power=power,
        smallest_leak=_smallest_leak(reading, terms, verdict, power, findings),
        distribution_free=free,
        if_gaussian=None if gaussian is None else gaussian.bound(terms),
    )


def decide_again(result: AuditResult) -> Decision:
    """What follows from what a result keeps, and from nothing else it states."""
    free, gaussian = (
        None if other is None else Reading(auditor=other.auditor, evidence=other.evidence)
        for other in (result.distribution_free, result.if_gaussian)
    )
    return decide(
        Reading(auditor=result.auditor, evidence=result.evidence),
        Terms(
            claim=result.claim,
            delta=result.delta,
            confidence=result.confidence,
            gate_error=result.gate_error,
        ),
        findings=result.findings,
        scope=result.scope,
        fallback=lambda: free,
        gaussian=gaussian,
    )


def _judge(
    reading: Reading,
    terms: Terms,
    bound: float,
    findings: tuple[Finding, ...],
    scope: tuple[Part, ...],
) -> tuple[Verdict, str, float | None]:
    """The verdict, why, and the power behind it.

    The gate error is shared: half for the test of the claim and half for the findings, where there
    are findings that test something.
    """
    auditor, evidence, claim = reading.auditor, reading.evidence, terms.claim
    assert claim is not None
    share = share_of_test(findings, terms.gate_error)
    breaches = failures(findings, Consequence.BREACH)
    broken = failures(findings, Consequence.INVALIDATES)
    if breaches or broken:
        verdict = verdict_on(breached=bool(breaches), invalid=bool(broken))
        return verdict, named(findings), None
    if reading.rejects(claim, share):
        lower = auditor.epsilon_lower(evidence, delta=claim.delta, confidence=1.0 - share)
        reason = (
            f"the run leaks at least epsilon {number(lower)} at confidence {1.0 - share:g}, more "
            f"than the {claim.epsilon:g} it claims."
        )
        return verdict_on(contradicted=True), reason, None
    nothing = _no_violation(reading, claim, bound, terms.confidence, share)
    ceiling = auditor.ceiling(evidence, delta=claim.delta, confidence=1.0 - share)
    if ceiling <= claim.epsilon:
        reason = (
            f"{nothing}, but from these canaries this method could never report more than "
            f"{number(ceiling)}."
        )
        return Verdict.INCONCLUSIVE, reason, 0.0
    # At delta 0 there is no Gaussian mechanism to ask the question of.
    power = None
    if claim.delta > 0.0:
        power = auditor.power(
            evidence,
            epsilon=claim.epsilon,
            true_epsilon=ALTERNATIVE * claim.epsilon,
            delta=claim.delta,
            error=share,
        )
    weak = weakness(findings, scope, power)
    verdict = verdict_on(strong=weak is None)
    if weak is None:
        return verdict, f"{nothing}.", power
    reason = f"{nothing}, but {_why_weak(weak, claim, power)}."
    return verdict, reason, None if weak.kind is WeaknessKind.CONTRIBUTION else power


def _no_violation(
    reading: Reading, claim: PrivacyClaim, bound: float, confidence: float, share: float
) -> str:
    """What to say of a claim that stands; also where the bound that is printed lies above it."""
    if bound <= claim.epsilon:
        return "no evidence against the claim"
    lower = reading.auditor.epsilon_lower(
        reading.evidence, delta=claim.delta, confidence=1.0 - share
    )
    return (
        f"the bound of {number(bound)} is above the claimed {claim.epsilon:g}, but only at "
        f"confidence {confidence:g}, which a correct run may reach by chance in 1 of "
        f"{1.0 / (1.0 - confidence):.0f} audits; at confidence {1.0 - share:g}, where the gate "
        f"decides, it is {number(lower)}"
    )


def _why_weak(weak: Weakness, claim: PrivacyClaim, power: float | None) -> str:
    """Why an audit that found nothing does not support the claim."""
    if weak.kind is WeaknessKind.CONTRIBUTION:
        assert weak.finding is not None
        return f"{weak.finding.summary[:-1]}: what a record may add beyond that was not seen"
    if weak.kind is WeaknessKind.STEPS:
        assert weak.finding is not None
        taken, accounted = weak.finding.measured, weak.finding.claimed
        return f"only {taken:,.0f} of {accounted:,.0f} steps were audited"
    if weak.kind is WeaknessKind.PARTS:
        names = " and ".join(part.name for part in weak.parts)
        return f"not tested: {names} ({weak.parts[0].how_to_test})"
    chance = "an unknown chance" if power is None else f"only a {whole_percent(power)} chance"
    return f"this audit had {chance} of noticing a true epsilon of {ALTERNATIVE * claim.epsilon:g}"


def _smallest_leak(
    reading: Reading,
    terms: Terms,
    verdict: Verdict | None,
    power: float | None,
    findings: tuple[Finding, ...],
) -> float | None:
    """The smallest true epsilon that would have been a VIOLATION with `ENOUGH_POWER`.

    None where the audit ended in VIOLATION or INVALID, or where its power is unknown or slow to
    compute.
    """
    silent = verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)
    if terms.claim is None or not silent or power is None:
        return None
    found = reading.auditor.smallest_leak(
        reading.evidence,
        epsilon=terms.claim.epsilon,
        delta=terms.claim.delta,
        error=share_of_test(findings, terms.gate_error),
        power=ENOUGH_POWER,
    )
    return found if found is not None and math.isfinite(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a gate on the command line or in pytest does with a result.

    Attributes:
        passes: Whether it lets the run through.
        exit_code: What the command line exits with: 0 passed, 1 violation, 3 anything else.
        why: Why it does not pass, in one sentence; empty where the verdict says it all.
    """

    passes: bool
    exit_code: int
    why: str = ""


def gate(result: AuditResult, *, lenient: bool = False) -> Gate:
    """Whether a result opens the gate.

    Only CONSISTENT does. An audit that saw nothing because it could see nothing does not, unless
    it is asked to be lenient; one without a claim, without its checks, with a failed check or with
    an unbounded leak never does.

    Args:
        result: The audit.
        lenient: Whether INCONCLUSIVE passes too.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> draw = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=draw.normal(size=50), absent=draw.normal(size=50), noise="gaussian")
        >>> gate(ag.audit(scores, delta=1e-5)).exit_code
        3
    """
    if result.verdict is Verdict.VIOLATION:
        return Gate(passes=False, exit_code=1)
    if result.verdict is Verdict.INVALID:
        return Gate(passes=False, exit_code=3)
    failed = [item.check for item in result.findings if item.status is Status.FAIL]
    if failed:
        return _closed(f"checks failed: {', '.join(failed)}.")
    if math.isinf(result.epsilon_lower):
        return _closed("the bound is infinite: what was audited is not private at all.")
    if result.verdict is None:
        return _closed(
            "there is no claim to hold the run to: give --epsilon and --delta, or claim=."
            if result.claim is None
            else "this method gives an estimate, and no verdict: take another."
        )
    if not result.scope:
        return _closed("no check was run (diagnostics=False): only the bound was tested.")
    if result.verdict is Verdict.INCONCLUSIVE and not lenient:
        return Gate(passes=False, exit_code=3)
    return Gate(passes=True, exit_code=0)


def _closed(why: str) -> Gate:
    return Gate(passes=False, exit_code=3, why=f"the gate stays closed: {why}")
