"""Where scores, an auditor and its checks meet and become a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import binom, stdtr

from askgauss import _validate, policy
from askgauss._version import __version__
from askgauss.auditors import as_auditor
from askgauss.auditors.auditor import Auditor
from askgauss.auditors.clopper_pearson import ClopperPearson
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.auditors.one_run import OneRun
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.checks import diagnose
from askgauss.checks.adjacency import NEIGHBOUR_CHECKS, Neighbours, has_opposites
from askgauss.checks.causes import named
from askgauss.checks.registry import made
from askgauss.checks.scope import exercised_in, scope_of
from askgauss.checks.stopping import error_share, stopping
from askgauss.claims import PrivacyClaim, check_claim
from askgauss.exceptions import InvalidArgumentError, ScoreDirectionError, ScoresError
from askgauss.figures.summary import summarise
from askgauss.power import smallest_leak
from askgauss.publish.disclosure import publishable, published, reveals_individuals
from askgauss.recording.inputs import check_audit_input
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
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
from askgauss.scores import CanaryScores

__all__ = ["audit", "audited", "derived"]

# Present means this improbably far below absent ones do not happen by chance.
_REVERSED = 1e-9
_ROUNDING = 1e-14
# The test that needs no law of the scores.
_LAWLESS = ClopperPearson()
# The bound that Gaussian noise would mean, where nobody declared it.
_IF_GAUSSIAN = GaussianShift()
# Where the verdict depends on what nobody said.
_AMBIGUOUS = (
    "were the noise Gaussian, these scores would contradict the claim; without a distribution of "
    "them there is no evidence against it."
)
_STATE_IT = (
    'State how membership was decided: membership="randomised", "declared" or "fixed" '
    "(--membership on the command line). If the scores are sums of noisy gradients, declare the "
    "noise instead: "
    'noise="gaussian", or steps= and sampling_rate=.'
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

    Where a monitor watched the run, and it ended at another step than planned, ``confidence`` and
    ``gate_error`` hold whenever it was ended, whatever the monitor showed: the result is stated at
    a higher confidence, and its finding *stopping* says so.

    Args:
        data: The scores of one training run, or its transcript.
        claim: What the run claims; without one there is a bound and no verdict.
        delta: Where to state the bound when there is no claim.
        auditor: The method, or its name such as ``"one-run"``; if not given, `SubsampledGaussian`
            for transcripts of DP-SGD and `GaussianShift` for scores and for transcripts of DP-FTRL,
            whose scores say it all.
            Without one, scores that do not say that their noise is Gaussian are audited with
            `ClopperPearson`, which needs no distribution of them; what Gaussian noise would mean
            is shown beside it.
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
        ...     present=rng.normal(3, 1, 400), absent=rng.normal(0, 1, 400),
        ...     membership="randomised")
        >>> ag.audit(scores, claim=ag.PrivacyClaim(epsilon=1.0, delta=1e-5)).verdict
        <Verdict.VIOLATION: 'VIOLATION'>
    """
    check_audit_input(data)
    check_claim(claim)
    end = _watched_end(data, claim)
    return audited(
        data,
        claim=claim,
        delta=delta,
        auditor=auditor,
        confidence=confidence,
        gate_error=gate_error,
        diagnostics=diagnostics,
        share=1.0 if end is None else error_share(*end),
    )


def audited(
    data: CanaryScores | Transcript | LinearTranscript,
    *,
    claim: PrivacyClaim | None,
    delta: float | None,
    auditor: Auditor[Any] | str | None,
    confidence: float,
    gate_error: float,
    diagnostics: bool = True,
    share: float = 1.0,
) -> AuditResult:
    """What `audit` returns, stated with a share of the errors; by default with all of them."""
    if (claim is None) == (delta is None):
        raise InvalidArgumentError(
            "Expected exactly one of claim and delta, got "
            f"{'both' if claim is not None else 'neither'}. A claim brings its own delta; without "
            "one, say at which delta the bound is wanted."
        )
    level = claim.delta if claim is not None else delta
    assert level is not None
    declared = auditor is not None or not isinstance(data, CanaryScores) or data.metadata.gaussian
    method: Auditor[Any] = _LAWLESS if not declared else _default(data, claim)
    if auditor is not None:
        method = as_auditor(auditor)
    method.check_delta(level)
    _validate.within(0.5, 1, confidence=confidence)
    _validate.within(0, 0.5, gate_error=gate_error)
    confidence, gate_error = 1.0 - (1.0 - confidence) * share, gate_error * share
    given = data
    if isinstance(data, LinearTranscript) or (
        isinstance(data, Transcript) and method.reads == "scores"
    ):
        data = data.scores()
    _check_direction(data)
    evidence = method.gather(data, delta=level, confidence=confidence)
    findings = (
        *_membership(given, method),
        *(() if declared else (_undeclared(),)),
        *method.findings(evidence, delta=level, confidence=confidence),
    )
    checks = diagnose(given, claim=claim, gate_error=0.5 * gate_error) if diagnostics else ()
    if diagnostics and claim is not None:
        replaced = getattr(method, "replaced", False)
        checks += (*made(NEIGHBOUR_CHECKS, Neighbours(data=given, claim=claim, replaced=replaced)),)
    gaussian = None
    if not declared and level > 0.0 and policy.membership_gap(findings) != "fixed":
        assert isinstance(data, CanaryScores)
        gaussian = _gathered(_IF_GAUSSIAN, data, level, confidence)
        if diagnostics and _doubtful(checks, gaussian, 1.0 - confidence):
            gaussian = None
    named = {item.check for item in findings}
    findings += tuple(
        _as_it_concerns(item, method, evidence) for item in checks if item.check not in named
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
        gaussian_evidence=gaussian,
        membership=given.metadata.membership if isinstance(given, CanaryScores) else None,
        run=_run(given),
        commitment=_commitment(given),
        private=reveals_individuals(given, by_counts=getattr(evidence, "counts", None) is not None),
    )
    result = derived(result, lambda: _free_evidence(given, level, confidence))
    end = _watched_end(given, claim)
    note = None if end is None else stopping(*end)
    return result if note is None else replace(result, findings=(*result.findings, note))


def _watched_end(
    data: CanaryScores | Transcript | LinearTranscript, claim: PrivacyClaim | None
) -> tuple[int, int | None] | None:
    """Steps that a watched run took, and was to take before it or else by the claim."""
    if not isinstance(data, Transcript) or not data.facts.watched:
        return None
    claimed = None if claim is None else claim.steps
    return data.number_of_steps * data.facts.turns, data.facts.planned_steps or claimed


def derived(result: AuditResult, free_evidence: Callable[[], Any | None]) -> AuditResult:
    """A result with all that follows from its evidence, claim and findings, and nothing else.

    Args:
        result: A result of which those are believed.
        free_evidence: Evidence of the distribution-free method, asked for where the assumptions of
            the result's own failed; None where there is none.
    """
    if result.scope:
        found = scope_of(result.findings, exercised_in(result.metadata))
        result = replace(result, scope=found)
    method, evidence, claim = result.auditor, result.evidence, result.claim
    delta, confidence, gate_error = result.delta, result.confidence, result.gate_error
    gap = policy.membership_gap(result.findings)
    if gap is not None:
        return _without_bound(result, policy.verdict_of_gap(gap))
    bound = method.epsilon_lower(evidence, delta=delta, confidence=confidence)
    verdict, reason, power = _decide(
        method, evidence, claim, bound, confidence, gate_error, result.findings, result.scope
    )
    free, free_bound = None, None
    if verdict is Verdict.INVALID and method.assumption is not Assumption.DISTRIBUTION_FREE:
        assert claim is not None
        free = free_evidence()
        if free is not None:
            free_bound, contradicted = _distribution_free(free, claim, confidence, 0.5 * gate_error)
            if contradicted:
                verdict = Verdict.VIOLATION
                reason = f"by the distribution-free bound; and {reason}"
    gaussian, if_gaussian = result.gaussian_evidence, None
    if gaussian is not None:
        if_gaussian = _IF_GAUSSIAN.epsilon_lower(gaussian, delta=delta, confidence=confidence)
        if verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE):
            assert claim is not None
            share = 0.5 * gate_error
            if _IF_GAUSSIAN.rejects(gaussian, epsilon=claim.epsilon, delta=delta, error=share):
                verdict, reason = Verdict.INCONCLUSIVE, _AMBIGUOUS
    result = replace(
        result,
        epsilon_lower=bound,
        epsilon_point=method.epsilon_point(evidence, delta=delta),
        ceiling=method.ceiling(evidence, delta=delta, confidence=confidence),
        distribution_free=free_bound,
        distribution_free_evidence=free,
        if_gaussian=if_gaussian,
        verdict=verdict,
        reason=reason,
        power=power,
    )
    return replace(result, smallest_leak=smallest_leak(result))


def _without_bound(result: AuditResult, verdict: Verdict) -> AuditResult:
    """A result of scores that show nothing of training, whatever they are."""
    judged = result.claim is not None and result.assumption is not Assumption.ESTIMATE
    (broken,) = [item for item in result.findings if item.check == policy.MEMBERSHIP]
    return replace(
        result,
        epsilon_lower=0.0,
        epsilon_point=None,
        ceiling=0.0,
        distribution_free=None,
        distribution_free_evidence=None,
        if_gaussian=None,
        verdict=verdict if judged else None,
        reason=f"{broken.check}: {broken.summary}" if judged else "",
        power=None,
        smallest_leak=None,
    )


def _membership(
    data: CanaryScores | Transcript | LinearTranscript, method: Auditor[Any]
) -> tuple[Finding, ...]:
    """Whether the two groups differ by chance and training alone.

    Held-out canaries of noisy sums are pure noise by construction; of any other scores, groups that
    nobody randomised may differ without a leak.
    """
    if not isinstance(data, CanaryScores) or data.metadata.gaussian:
        return ()
    known = data.metadata.membership
    if known == "fixed":
        return (
            Finding(
                check=policy.MEMBERSHIP,
                status=Status.FAIL,
                summary="members and non-members were not assigned at random: their scores may "
                "differ without any leak, so that there is no bound.",
                consequence=Consequence.INVALIDATES,
                remedy="Draw at random which records are trained on, before training, and score "
                'those: membership="randomised".',
            ),
        )
    assumed = Assumption.GAUSSIAN_SCORES, Assumption.ESTIMATE
    if known is None and method.assumption not in assumed:
        return (
            Finding(
                check=policy.MEMBERSHIP,
                status=Status.WARN,
                summary="nobody stated how it was decided which canaries were present, and "
                "without random membership a difference between the two groups need not come from "
                "training, so that there is no bound.",
                remedy=_STATE_IT,
            ),
        )
    if known == "declared":
        return (
            Finding(
                check=policy.MEMBERSHIP,
                status=Status.INFO,
                summary="randomised (declared, not verified).",
            ),
        )
    return ()


def _undeclared() -> Finding:
    """That nobody said what the noise is."""
    return Finding(
        check="noise model",
        status=Status.INFO,
        summary="not declared, so that bound and verdict rest on a test that needs no distribution "
        "of the scores.",
    )


def _doubtful(checks: Sequence[Finding], evidence: Any, error: float) -> bool:
    """Whether scores speak against Gaussian noise, or are too few to speak for it.

    At the error of the bound, which is far sooner than they would invalidate one whose noise was
    declared.
    """
    tests = [
        item
        for item in checks
        if item.consequence is Consequence.INVALIDATES and _IF_GAUSSIAN.concerns(evidence, item)
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
    replaced = claim is not None and claim.adjacency == "replace" and has_opposites(data)
    if isinstance(data, Transcript):
        return SubsampledGaussian(replaced=replaced)
    return GaussianShift(replaced=replaced)


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
    share = policy.share_of_test(findings, gate_error)
    breaches = policy.failures(findings, Consequence.BREACH)
    broken = policy.failures(findings, Consequence.INVALIDATES)
    if breaches or broken:
        verdict = policy.verdict_on(breached=bool(breaches), invalid=bool(broken))
        return verdict, named(findings), None
    if auditor.rejects(evidence, epsilon=claim.epsilon, delta=claim.delta, error=share):
        verdict = policy.verdict_on(contradicted=True)
        gate = auditor.epsilon_lower(evidence, delta=claim.delta, confidence=1.0 - share)
        reason = (
            f"the run leaks at least epsilon {number(gate)} at confidence {1.0 - share:g}, more "
            f"than the {claim.epsilon:g} it claims."
        )
        return verdict, reason, None
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
            true_epsilon=policy.ALTERNATIVE * claim.epsilon,
            delta=claim.delta,
            error=share,
        )
    weak = policy.weakness(findings, scope, power)
    verdict = policy.verdict_on(strong=weak is None)
    if weak is None:
        return verdict, f"{nothing}.", power
    reason = f"{nothing}, but {_weakness_in_words(weak, claim, power)}."
    return verdict, reason, None if weak.kind is policy.WeaknessKind.CONTRIBUTION else power


def _weakness_in_words(weak: policy.Weakness, claim: PrivacyClaim, power: float | None) -> str:
    """Why an audit that found nothing does not speak for the claim."""
    if weak.kind is policy.WeaknessKind.CONTRIBUTION:
        assert weak.finding is not None
        return f"{weak.finding.summary[:-1]}: what a record may add beyond that was not seen"
    if weak.kind is policy.WeaknessKind.STEPS:
        assert weak.finding is not None
        taken, accounted = weak.finding.measured, weak.finding.claimed
        return f"only {taken:,.0f} of {accounted:,.0f} steps were audited"
    if weak.kind is policy.WeaknessKind.PARTS:
        names = " and ".join(part.name for part in weak.parts)
        return f"not tested: {names} ({weak.parts[0].how_to_test})"
    chance = "an unknown chance" if power is None else f"only a {whole_percent(power)} chance"
    return (
        f"this audit had {chance} of noticing a true epsilon of "
        f"{policy.ALTERNATIVE * claim.epsilon:g}"
    )


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
