"""All checks of a transcript or of scores, decided together."""

from __future__ import annotations

from askgauss import _validate
from askgauss.checks.correlated_noise import linear_checks
from askgauss.checks.findings import apply_gate
from askgauss.checks.resumed_runs import with_resumes
from askgauss.checks.score_shape import score_checks
from askgauss.checks.transcript_checks import transcript_checks
from askgauss.claims import PrivacyClaim
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.results import Finding
from askgauss.scores import CanaryScores, check_audit_data

__all__ = ["diagnose"]


def diagnose(
    data: CanaryScores | Transcript | LinearTranscript,
    *,
    claim: PrivacyClaim | None = None,
    gate_error: float = 0.0005,
) -> tuple[Finding, ...]:
    """Test what a bound rests on, and every part of the mechanism that can be measured.

    Args:
        data: The scores of a run, or its transcript.
        claim: What the run claims, to compare measurements with.
        gate_error: Probability that a correct run has any check fail.

    Returns:
        One finding a check; those that could not be made say what they need.

    Examples:
        >>> import askgauss as ag
        >>> run = ag.simulate_dpsgd(steps=50, sampling_rate=0.2, noise_multiplier=2.0,
        ...                         present=100, absent=100, seed=0)
        >>> any(finding.status.value == "fail" for finding in diagnose(run))
        False
    """
    check_audit_data(data)
    _validate.within(0, 0.5, gate_error=gate_error)
    findings: list[Finding] = []
    if isinstance(data, Transcript):
        findings += transcript_checks(
            data, None if claim is None else claim.in_rounds(data.facts.turns)
        )
        if data.finite and data.auditable:
            findings += score_checks(data.scores(), data.canaries.planted)
    elif isinstance(data, LinearTranscript):
        findings += linear_checks(data, claim)
        findings += score_checks(data.scores())
    else:
        findings += score_checks(data)
    resumed = () if isinstance(data, CanaryScores) else data.facts.resumed
    return apply_gate(with_resumes(findings, resumed), gate_error)
