"""Where data, an auditor and its checks meet and become a result."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVarTuple

import numpy as np
from scipy.special import binom, stdtr

from askgauss import __version__, _validate, policy
from askgauss.auditors import as_auditor
from askgauss.auditors.auditor import Auditor
from askgauss.auditors.gaussian_scores import GaussianShift
from askgauss.auditors.guessing import OneRun
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.auditors.thresholding import ClopperPearson
from askgauss.checks import diagnose
from askgauss.checks.accountant import NEIGHBOUR_CHECKS, Neighbours
from askgauss.checks.context import has_opposites
from askgauss.checks.gate import error_share, stopping
from askgauss.checks.registry import made
from askgauss.checks.scope import scope_of
from askgauss.claims import HOW_TO_CLAIM, PrivacyClaim
from askgauss.exceptions import InvalidArgumentError, ScoreDirectionError, ScoresError
from askgauss.figures.summary import summarise
from askgauss.policy import Reading, Terms
from askgauss.publish.disclosure import publishable, published, reveals_individuals
from askgauss.results import (
    MEMBERSHIP,
    NOISE_MODEL,
    Assumption,
    AuditResult,
    Consequence,
    Finding,
    Status,
    membership_gap,
)
from askgauss.scores import check_audit_data

if TYPE_CHECKING:
    from askgauss.monitor import Monitor
    from askgauss.recording.inputs import AuditInput
    from askgauss.recording.linear_transcript import LinearTranscript
    from askgauss.recording.transcript import Transcript

__all__ = ["AuditedRun", "audit", "audited", "with_findings"]

State = TypeVarTuple("State")

# Inserted canaries do not score this improbably far below held-out ones by chance.
_REVERSED = 1e-9
_ROUNDING = 1e-14
# Where nobody declared the noise: the test that needs no distribution of the scores, and the one
# whose bound is stated beside it.
_UNDECLARED = ClopperPearson()
_IF_GAUSSIAN = GaussianShift()
# What is asked where an assumption of the deciding method failed.
_FALLBACK = OneRun()
_STATE_IT = (
    'State how membership was decided: membership="randomised", "declared" or "fixed" '
    "(--membership on the command line). If the scores are sums of noisy gradients, declare the "
    "noise instead: "
    'noise="gaussian", or steps= and sampling_rate=.'
)


def audit(
    data: AuditInput,
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
    check_audit_data(data)
    _validate.instance(PrivacyClaim, HOW_TO_CLAIM, claim=claim)
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
    data: AuditInput,
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
    method = _method(data, claim, auditor)
    terms = _terms(method, claim, delta, confidence, gate_error, share)
    read = data if data.has_steps and method.reads == "transcript" else data.scores()
    _check_direction(read)
    evidence = method.gather(read, delta=terms.delta, confidence=terms.confidence)
    declared = auditor is not None or data.gaussian
    own = (
        *_membership(data, method),
        *(() if declared else (_undeclared(),)),
        *method.findings(evidence, delta=terms.delta, confidence=terms.confidence),
    )
    checks = _checks(data, terms, method) if diagnostics else ()
    gaussian = None
    if not declared and terms.delta > 0.0 and membership_gap(own) is None:
        gaussian = _gathered(_IF_GAUSSIAN, data, terms)
        if gaussian is not None and diagnostics and _doubtful(checks, gaussian.evidence, terms):
            gaussian = None
    stated = {item.check for item in own}
    others = [item for item in checks if item.check not in stated]
    # What is published is what the scope follows from, so that a file can be compared with it.
    findings = published((*own, *(_as_it_concerns(item, method, evidence) for item in others)))
    summary = publishable(summarise(data)).rounded() if diagnostics else None
    scope = () if summary is None else scope_of(findings, summary.run.passed)
    decision = policy.decide(
        Reading(auditor=method, evidence=evidence),
        terms,
        findings=findings,
        scope=scope,
        fallback=lambda: _gathered(_FALLBACK, data, terms) if data.scorable else None,
        gaussian=gaussian,
    )
    end = _watched_end(data, claim)
    note = None if end is None else stopping(*end)
    present = int(np.count_nonzero(read.member))
    return AuditResult(
        auditor=method,
        evidence=evidence,
        present=present,
        absent=read.member.size - present,
        delta=terms.delta,
        confidence=terms.confidence,
        claim=claim,
        gate_error=terms.gate_error,
        findings=findings if note is None else (*findings, note),
        scope=scope,
        summary=summary,
        version=__version__,
        membership=data.membership,
        run=data.run_id,
        commitment=data.committed,
        private=reveals_individuals(data, by_counts=getattr(evidence, "counts", None) is not None),
        **decision.stated(),
    )


def with_findings(result: AuditResult, more: Sequence[Finding]) -> AuditResult:
    """The result with more findings, and what then follows for its scope and its verdict."""
    findings = (*result.findings, *more)
    exercised = () if result.summary is None else result.summary.run.passed
    scope = scope_of(findings, exercised) if result.scope else ()
    joined = replace(result, findings=findings, scope=scope)
    return replace(joined, **policy.decide_again(joined).stated())


class AuditedRun(abc.ABC, Generic[*State]):
    """A run with a transcript, which can be audited at any time.

    Where a framework keeps what was read in a state that it hands from step to step, that state is
    the first argument of `transcript` and `result`; elsewhere there is none.

    Attributes:
        result_ends: Whether nothing else says that the run is over, so that asking for its result
            closes its monitor, unless the run is known to go on.
    """

    result_ends: ClassVar[bool] = False

    @abc.abstractmethod
    def transcript(self, *state: *State) -> Transcript | LinearTranscript:
        """What the steps so far released about the canaries."""

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return None

    def _transcript_for(
        self, claim: PrivacyClaim | None, *state: *State
    ) -> Transcript | LinearTranscript:
        """The transcript, with what is known only once the claim is."""
        return self.transcript(*state)

    def _goes_on(self, *state: *State) -> bool:
        """Whether more steps are known to follow."""
        return False

    def _own_claim(self) -> PrivacyClaim | None:
        """The claim the audit was made with, if it was."""
        return None

    def result(
        self,
        *state: *State,
        claim: PrivacyClaim | None = None,
        delta: float | None = None,
        auditor: Auditor[Any] | str | None = None,
        confidence: float = 0.95,
        gate_error: float = 0.001,
        diagnostics: bool = True,
    ) -> AuditResult:
        """Audit the steps so far; the arguments are those of `askgauss.audit`.

        Without claim and delta, the claim is the one the audit was made with.
        """
        if claim is None and delta is None:
            claim = self._own_claim()
        found = audit(
            self._transcript_for(claim, *state),
            claim=claim,
            delta=delta,
            auditor=auditor,
            confidence=confidence,
            gate_error=gate_error,
            diagnostics=diagnostics,
        )
        if self.monitor is None:
            return found
        from askgauss.figures.run_figures import with_course

        if self._goes_on(*state):
            return with_course(found, self.monitor.feed("running"))
        if self.result_ends:
            self.monitor.close()
        return with_course(found, self.monitor.feed("finished"))


def _method(
    data: AuditInput, claim: PrivacyClaim | None, auditor: Auditor[Any] | str | None
) -> Auditor[Any]:
    """The method that was asked for, or the default one for these data."""
    if auditor is not None:
        return as_auditor(auditor)
    if not data.gaussian:
        return _UNDECLARED
    replaced = claim is not None and claim.adjacency == "replace" and has_opposites(data)
    return (SubsampledGaussian if data.has_steps else GaussianShift)(replaced=replaced)


def _terms(
    method: Auditor[Any],
    claim: PrivacyClaim | None,
    delta: float | None,
    confidence: float,
    gate_error: float,
    share: float,
) -> Terms:
    if (claim is None) == (delta is None):
        raise InvalidArgumentError(
            "Expected exactly one of claim and delta, got "
            f"{'both' if claim is not None else 'neither'}. A claim brings its own delta; without "
            "one, say at which delta the bound is wanted."
        )
    level = claim.delta if claim is not None else delta
    assert level is not None
    method.check_delta(level)
    _validate.within(0.5, 1, confidence=confidence)
    _validate.within(0, 0.5, gate_error=gate_error)
    return Terms(
        claim=claim,
        delta=level,
        confidence=1.0 - (1.0 - confidence) * share,
        gate_error=gate_error * share,
    )


def _watched_end(data: AuditInput, claim: PrivacyClaim | None) -> tuple[int, int | None] | None:
    """Steps that a watched run took, and was to take before it or else by the claim."""
    if data.watched_end is None:
        return None
    taken, planned = data.watched_end
    return taken, planned or (None if claim is None else claim.steps)


def _checks(data: AuditInput, terms: Terms, method: Auditor[Any]) -> tuple[Finding, ...]:
    """Every check of the data, and of the claim's neighbouring datasets."""
    checks = diagnose(data, claim=terms.claim, gate_error=0.5 * terms.gate_error)
    if terms.claim is None:
        return checks
    replaced = getattr(method, "replaced", False)
    seen = Neighbours(data=data, claim=terms.claim, replaced=replaced)
    return (*checks, *made(NEIGHBOUR_CHECKS, seen))


def _membership(data: AuditInput, method: Auditor[Any]) -> tuple[Finding, ...]:
    """Whether the two groups differ by chance and training alone.

    Held-out canaries of noisy sums are pure noise by construction; of any other scores, groups that
    nobody randomised may differ without a leak.
    """
    if data.gaussian:
        return ()
    known = data.membership
    if known == "fixed":
        return (
            Finding(
                check=MEMBERSHIP,
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
                check=MEMBERSHIP,
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
                check=MEMBERSHIP,
                status=Status.INFO,
                summary="randomised (declared, not verified).",
            ),
        )
    return ()


def _undeclared() -> Finding:
    """The finding that the distribution of the noise was not declared."""
    return Finding(
        check=NOISE_MODEL,
        status=Status.INFO,
        summary="not declared, so that bound and verdict rest on a test that needs no distribution "
        "of the scores.",
    )


def _doubtful(checks: Sequence[Finding], evidence: Any, terms: Terms) -> bool:
    """Whether the scores contradict Gaussian noise, or are too few to support it.

    At the error of the bound, which is far sooner than they would invalidate one whose noise was
    declared.
    """
    tests = [
        item
        for item in checks
        if item.consequence is Consequence.INVALIDATES and _IF_GAUSSIAN.concerns(evidence, item)
    ]
    p_values = [item.p_value for item in tests if item.p_value is not None]
    if not p_values or any(item.status is Status.FAIL for item in tests):
        return True
    return min(p_values) < (1.0 - terms.confidence) / len(p_values)


def _gathered(method: Auditor[Any], data: AuditInput, terms: Terms) -> Reading | None:
    """What a method reads from the scores; None where they are too few to guess from."""
    try:
        evidence = method.gather(data.scores(), delta=terms.delta, confidence=terms.confidence)
    except ScoresError:
        return None
    return Reading(auditor=method, evidence=evidence)


def _as_it_concerns(finding: Finding, method: Auditor[Any], evidence: Any) -> Finding:
    """A failure that a test does not rest on is a warning, not a reason to discard it."""
    harmless = (
        finding.status is Status.FAIL
        and finding.consequence is Consequence.INVALIDATES
        and not method.concerns(evidence, finding)
    )
    return replace(finding, status=Status.WARN) if harmless else finding


def _check_direction(data: AuditInput) -> None:
    """Refuse scores that point the wrong way: every auditor would call the run harmless."""
    if not data.scorable:
        return  # what is wrong with such a run is a finding, or the auditor's to say
    scores = data.scores()
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
