"""Where scores, an auditor and its checks meet and become a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import binom, stdtr

from askgauss import _validate
from askgauss._version import __version__
from askgauss.auditors import as_auditor
from askgauss.auditors.base import Auditor
from askgauss.auditors.clopper_pearson import ClopperPearson
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.auditors.one_run import OneRun
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.claims import PrivacyClaim, check_claim
from askgauss.diagnostics import diagnose
from askgauss.diagnostics.disclosure import publishable, published, tells_of_single
from askgauss.diagnostics.summary import summarise
from askgauss.exceptions import InvalidArgumentError, ScoreDirectionError, ScoresError
from askgauss.inputs import check_audit_input
from askgauss.linear_transcript import LinearTranscript
from askgauss.power import smallest_leak
from askgauss.results import (
    Assumption,
    AuditResult,
    Consequence,
    Finding,
    Part,
    Status,
    Verdict,
    number,
    whole_percent,
)
from askgauss.scope import exercised_in, scope_of, untested
from askgauss.scores import CanaryScores
from askgauss.transcript import Transcript

__all__ = ["audit", "derived"]

# Had the run a true epsilon this many times the claim, an audit should be likely to notice.
_ALTERNATIVE = 1.25
_ENOUGH_POWER = 0.8
# Present means this improbably far below absent ones do not happen by chance.
_REVERSED = 1e-9
_ROUNDING = 1e-14
# The test that needs no law of the scores.
_LAWLESS = ClopperPearson()
# Where the verdict depends on what nobody said.
_AMBIGUOUS = (
    "were the noise Gaussian, these scores would contradict the claim; without a law of them there "
    "is no evidence against it."
)
# What makes an audit of scores of unknown noise sharper.
_DECLARE = (
    'If the mechanism adds Gaussian noise, declare it (noise="gaussian", or steps= and '
    "sampling_rate= of the scores): the audit then sees far more."
)


def audit(
    data: CanaryScores | Transcript | LinearTranscript,
    *,
    claim: PrivacyClaim | None = None,
    delta: float | None = None,
    auditor: Auditor[Any] | str | None = None,
    confidence: float = 0.95,
    gate_error: float = 0.001,
    diagnostics: bool = True,
) -> AuditResult:
    """Audit canary scores, or a transcript, with one method chosen beforehand.

    Args:
        data: The scores of one training run, or its transcript.
        claim: What the run claims; without one there is a bound and no verdict.
        delta: Where to state the bound when there is no claim.
        auditor: The method, or its name such as ``"one-run"``; if not given, `SubsampledGaussian`
            for transcripts of DP-SGD and `GaussianShift` for scores and for transcripts of DP-FTRL,
            whose scores say it all.
            Without one, scores that do not say that their noise is Gaussian are judged by
            `ClopperPearson`, which needs no law of them; where they visibly are not, the bound is
            its too.
        confidence: The bound is above the truth in at most 1 - confidence of audits.
        gate_error: A correct run ends in VIOLATION or INVALID at most this often.
        diagnostics: Also test the assumptions the bound rests on.

    Returns:
        The bound, the verdict and the findings.

    Raises:
        ScoresError: The scores cannot be audited as they are.
        InvalidArgumentError: An argument is outside its range.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(3, 1, 400), absent=rng.normal(0, 1, 400))
        >>> ag.audit(scores, claim=ag.PrivacyClaim(epsilon=1.0, delta=1e-5)).verdict
        <Verdict.VIOLATION: 'VIOLATION'>
    """
    check_audit_input(data)
    check_claim(claim)
    if (claim is None) == (delta is None):
        raise InvalidArgumentError(
            "Expected exactly one of claim and delta, got "
            f"{'both' if claim is not None else 'neither'}. A claim brings its own delta; without "
            "one, say at which delta the bound is wanted."
        )
    level = claim.delta if claim is not None else delta
    assert level is not None
    method = as_auditor(auditor) if auditor is not None else _default(data, claim)
    method.check_delta(level)
    _validate.within(0.5, 1, confidence=confidence)
    _validate.within(0, 0.5, gate_error=gate_error)
    declared = auditor is not None or not isinstance(data, CanaryScores) or data.metadata.gaussian
    given = data
    if isinstance(data, LinearTranscript) or (
        isinstance(data, Transcript) and method.reads == "scores"
    ):
        data = data.scores()
    _check_direction(data)
    evidence = method.gather(data, delta=level, confidence=confidence)
    judged = None
    if not declared:
        assert isinstance(data, CanaryScores)
        evidence = replace(evidence, declared=False)
        judged = _gathered(_LAWLESS, data, level, confidence)
    findings = method.findings(evidence, delta=level, confidence=confidence)
    checks = diagnose(given, claim=claim, gate_error=0.5 * gate_error) if diagnostics else ()
    if diagnostics and judged is not None and _doubtful(checks, method, evidence, 1.0 - confidence):
        method, evidence, judged = _LAWLESS, judged, None
        findings = (
            *(item for item in findings if item.check == "noise model"),
            *method.findings(evidence, delta=level, confidence=confidence),
        )
    named = {item.check for item in findings}
    judge, heard = (method, evidence) if declared else (_LAWLESS, judged)
    findings += tuple(
        _as_it_concerns(item, judge, heard) for item in checks if item.check not in named
    )
    present = int(np.count_nonzero(data.member))
    # What is published is what the scope follows from, so that a file can be held to it.
    findings = published(findings)
    metadata = publishable(summarise(given)).to_metadata() if diagnostics else {}
    result = AuditResult(
        auditor=method,
        evidence=evidence,
        present=present,
        absent=data.member.size - present,
        delta=level,
        confidence=confidence,
        epsilon_lower=0.0,
        epsilon_point=None,
        ceiling=0.0,
        claim=claim,
        gate_error=gate_error,
        findings=findings,
        scope=scope_of(findings, exercised_in(metadata)) if diagnostics else (),
        metadata=metadata,
        version=__version__,
        law_declared=declared,
        judged_evidence=judged,
        run=_run(given),
        commitment=_commitment(given),
        private=tells_of_single(given, by_counts=getattr(evidence, "counts", None) is not None),
    )
    return derived(result, lambda: _free_evidence(given, level, confidence))


def derived(result: AuditResult, free_evidence: Callable[[], Any | None]) -> AuditResult:
    """A result with all that follows from its evidence, claim and findings, and nothing else.

    Args:
        result: A result of which those are believed.
        free_evidence: Evidence of the distribution-free method, asked for where the assumptions of
            the result's own failed; None where there is none.
    """
    method, evidence, claim = result.auditor, result.evidence, result.claim
    delta, confidence, gate_error = result.delta, result.confidence, result.gate_error
    bound = method.epsilon_lower(evidence, delta=delta, confidence=confidence)
    judge, heard, free_bound = method, evidence, None
    if not result.law_declared and method != _LAWLESS:
        judge, heard = _LAWLESS, result.judged_evidence
        if heard is not None:
            free_bound = judge.epsilon_lower(heard, delta=delta, confidence=confidence)
    shown = bound if free_bound is None else free_bound
    verdict, reason, power = _decide(
        judge, heard, claim, shown, confidence, gate_error, result.findings, result.scope
    )
    free = None
    if verdict is Verdict.INVALID and judge.assumption is not Assumption.DISTRIBUTION_FREE:
        assert claim is not None
        free = free_evidence()
        if free is not None:
            free_bound, contradicted = _distribution_free(free, claim, confidence, 0.5 * gate_error)
            if contradicted:
                verdict = Verdict.VIOLATION
                reason = f"by the distribution-free bound; and {reason}"
    if not result.law_declared and verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE):
        assert claim is not None
        if method.rejects(evidence, epsilon=claim.epsilon, delta=delta, error=0.5 * gate_error):
            verdict, reason = Verdict.INCONCLUSIVE, _AMBIGUOUS
        if verdict is Verdict.INCONCLUSIVE:
            reason = f"{reason} {_DECLARE}"
    result = replace(
        result,
        epsilon_lower=bound,
        epsilon_point=method.epsilon_point(evidence, delta=delta),
        ceiling=method.ceiling(evidence, delta=delta, confidence=confidence),
        distribution_free=free_bound,
        distribution_free_evidence=free,
        verdict=verdict,
        reason=reason,
        power=power,
    )
    return replace(result, smallest_leak=smallest_leak(result))


def _doubtful(checks: Sequence[Finding], method: Auditor[Any], evidence: Any, error: float) -> bool:
    """Whether scores speak against a law that nobody declared, or are too few to speak for it.

    At the error of the bound, which is far sooner than they would invalidate one whose law was
    declared.
    """
    tests = [
        item
        for item in checks
        if item.consequence is Consequence.INVALIDATES and method.concerns(evidence, item)
    ]
    told = [item.p_value for item in tests if item.p_value is not None]
    if not told or any(item.status is Status.FAIL for item in tests):
        return True
    return min(told) < error / len(told)


def _run(data: CanaryScores | Transcript | LinearTranscript) -> str | None:
    """The identity of the run that the data are of, where they say."""
    return data.metadata.run if isinstance(data, CanaryScores) else data.facts.run


def _commitment(data: CanaryScores | Transcript | LinearTranscript) -> str | None:
    """The digest that was published before the run, where there was one."""
    if not isinstance(data, Transcript) or data.facts.commitment is None:
        return None
    return data.facts.commitment.digest


def _free_evidence(
    data: CanaryScores | Transcript | LinearTranscript, delta: float, confidence: float
) -> Any | None:
    """What the method that needs no model of the scores reads from them; None if it cannot."""
    if isinstance(data, Transcript) and not (data.finite and data.auditable):
        return None
    if not isinstance(data, CanaryScores):
        data = data.scores()
    return _gathered(OneRun(), data, delta, confidence)


def _gathered(
    method: Auditor[Any], scores: CanaryScores, delta: float, confidence: float
) -> Any | None:
    """The evidence of a method; none of too few canaries to guess from."""
    try:
        return method.gather(scores, delta=delta, confidence=confidence)
    except ScoresError:
        return None


def _distribution_free(
    evidence: Any, claim: PrivacyClaim, confidence: float, error: float
) -> tuple[float, bool]:
    """The bound that needs no model of the scores, and whether it contradicts the claim."""
    method = OneRun()
    bound = method.epsilon_lower(evidence, delta=claim.delta, confidence=confidence)
    return bound, method.rejects(evidence, epsilon=claim.epsilon, delta=claim.delta, error=error)


def _too_weak(contribution: Finding) -> bool:
    """Whether canaries add less to the sum than a record may: as they should, or not."""
    measured, expected = contribution.measured, contribution.claimed
    if measured is None or expected is None:
        return False
    return expected < 0.99 or (contribution.status is Status.WARN and measured < expected)


def _fewer(step_count: Finding) -> bool:
    """Whether steps were accounted for that the audit did not see."""
    measured, accounted = step_count.measured, step_count.claimed
    return measured is not None and accounted is not None and measured < accounted


def _as_it_concerns(finding: Finding, method: Auditor[Any], evidence: Any) -> Finding:
    """A failure that a test does not rest on is a warning, not a reason to discard it."""
    harmless = (
        finding.status is Status.FAIL
        and finding.consequence is Consequence.INVALIDATES
        and not method.concerns(evidence, finding)
    )
    return replace(finding, status=Status.WARN) if harmless else finding


def _default(
    data: CanaryScores | Transcript | LinearTranscript, claim: PrivacyClaim | None
) -> Auditor[Any]:
    if not isinstance(data, Transcript):
        return GaussianShift()
    # What a replaced record moves is known from canaries of both signs alone.
    rounds = data.facts.rounds
    signed = rounds is not None and rounds.signed
    return SubsampledGaussian(
        replaced=signed and claim is not None and claim.adjacency == "replace"
    )


def _check_direction(data: CanaryScores | Transcript) -> None:
    """Refuse scores that point the wrong way: every auditor would call the run harmless."""
    if isinstance(data, Transcript) and not (data.finite and data.auditable):
        return  # what is wrong with such a run is a finding, or the auditor's to say
    scores = data.scores() if isinstance(data, Transcript) else data
    scores.check_unit()
    present, absent = scores.moments()
    gap = present.mean - absent.mean
    # Means of scores that are all the same differ by what was lost in summing them.
    rounding = _ROUNDING * max(abs(present.mean), abs(absent.mean))
    error = math.sqrt(present.variance / present.count + absent.variance / absent.count)
    # Student's tail, since a handful of scores may well be reversed by chance; where no score
    # varies, the chance that all of one number are on one side.
    freedom = min(present.count, absent.count) - 1
    if error > 0.0:
        chance = float(stdtr(freedom, gap / error))
    else:
        chance = 1.0 / float(binom(present.count + absent.count, present.count))
    if gap < -rounding and chance < _REVERSED:
        raise ScoreDirectionError(
            f"Expected present scores above absent ones, got means {present.mean:.6g} (present) "
            f"and {absent.mean:.6g} (absent). A higher score must mean 'more likely present': "
            "negate the scores, or swap the groups."
        )


def _decide(
    auditor: Auditor[Any],
    evidence: Any,
    claim: PrivacyClaim | None,
    bound: float,
    confidence: float,
    gate_error: float,
    findings: tuple[Finding, ...],
    scope: tuple[Part, ...],
) -> tuple[Verdict | None, str, float | None]:
    """The verdict, why, and the power behind it.

    The gate error is shared: half for the verdict's own test and half for the findings, where there
    are findings that test something.
    """
    if claim is None or auditor.assumption is Assumption.ESTIMATE:
        return None, "", None
    share = gate_error if all(item.p_value is None for item in findings) else gate_error / 2
    failed = [item for item in findings if item.status is Status.FAIL]
    breaches = [item for item in failed if item.consequence is Consequence.BREACH]
    broken = [item for item in failed if item.consequence is Consequence.INVALIDATES]
    if breaches:
        return Verdict.VIOLATION, f"{breaches[0].check}: {breaches[0].summary}", None
    if broken:
        return Verdict.INVALID, f"{broken[0].check}: {broken[0].summary}", None
    if evidence is None:
        reason = "there are too few canaries to test the claim without a law of their scores."
        return Verdict.INCONCLUSIVE, reason, None
    if auditor.rejects(evidence, epsilon=claim.epsilon, delta=claim.delta, error=share):
        gate = auditor.epsilon_lower(evidence, delta=claim.delta, confidence=1.0 - share)
        reason = (
            f"the run leaks at least epsilon {number(gate)} at confidence {1.0 - share:g}, more "
            f"than the {claim.epsilon:g} it claims."
        )
        return Verdict.VIOLATION, reason, None
    nothing = _no_violation(auditor, evidence, claim, bound, confidence, share)
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
            true_epsilon=_ALTERNATIVE * claim.epsilon,
            delta=claim.delta,
            error=share,
        )
    # Power is that of canaries that add a whole clip norm, the most a record may.
    weak = [item for item in findings if item.check == "contribution" and _too_weak(item)]
    unseen = untested(scope)
    if power is not None and power >= _ENOUGH_POWER and not weak and not unseen:
        return Verdict.CONSISTENT, f"{nothing}.", power
    if weak:
        reason = (
            f"{nothing}, but {weak[0].summary[:-1]}: what a record may add beyond that was not "
            "seen."
        )
        return Verdict.INCONCLUSIVE, reason, None
    missed = [item for item in findings if item.check == "step count" and _fewer(item)]
    if missed:
        taken, accounted = missed[0].measured, missed[0].claimed
        reason = f"{nothing}, but only {taken:,.0f} of {accounted:,.0f} steps were audited."
        return Verdict.INCONCLUSIVE, reason, power
    if unseen and power is not None and power >= _ENOUGH_POWER:
        names = " and ".join(part.name for part in unseen)
        reason = f"{nothing}, but no check spoke of {names} with power: {unseen[0].how_to_test}."
        return Verdict.INCONCLUSIVE, reason, power
    chance = "an unknown chance" if power is None else f"only a {whole_percent(power)} chance"
    reason = (
        f"{nothing}, but this audit had {chance} of noticing a true epsilon of "
        f"{_ALTERNATIVE * claim.epsilon:g}."
    )
    return Verdict.INCONCLUSIVE, reason, power


def _no_violation(
    auditor: Auditor[Any],
    evidence: Any,
    claim: PrivacyClaim,
    bound: float,
    confidence: float,
    share: float,
) -> str:
    """What to say of a claim that stands; also where the bound that is printed lies above it."""
    if bound <= claim.epsilon:
        return "no evidence against the claim"
    gate = auditor.epsilon_lower(evidence, delta=claim.delta, confidence=1.0 - share)
    return (
        f"the bound of {number(bound)} is above the claimed {claim.epsilon:g}, but only at "
        f"confidence {confidence:g}, which a correct run may reach by chance in 1 of "
        f"{1.0 / (1.0 - confidence):.0f} audits; at confidence {1.0 - share:g}, where the gate "
        f"decides, it is {number(gate)}"
    )
