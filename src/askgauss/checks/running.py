"""All checks of a transcript or of scores, decided together."""

from __future__ import annotations

from collections.abc import Iterator

from askgauss import _validate
from askgauss.checks import (
    accountant,
    correlated_noise,
    correlation,
    federated_rounds,
    noise,
    noise_reuse,
    signal,
    step_invariants,
    trained_rows,
)
from askgauss.checks.context import Context, CorrelatedRun, noise_transcript
from askgauss.checks.gate import apply_gate, with_resumes
from askgauss.checks.noise_reuse import ComparedNoise
from askgauss.checks.registry import made
from askgauss.checks.score_shape import score_checks
from askgauss.claims import PrivacyClaim
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import Finding
from askgauss.scores import CanaryScores, check_audit_data

__all__ = ["NOISE_CHECKS", "correlated_checks", "diagnose", "transcript_checks"]

NOISE_CHECKS = (
    noise.steps_without_noise,
    *correlation.CORRELATION_CHECKS,
    noise.noise_by_tensor,
    noise.noise_by_coordinate,
    noise.values_without_noise,
    noise.planted_noise,
    signal.single_plantings,
    noise.noise_extremes,
    noise.noise_precision,
    noise.divisor_by_step,
    noise.noise_drift,
    noise.noise_and_batch_size,
    noise.noise_by_step,
    noise.noise_scale,
    noise.noise_shape,
)
"""Checks of the noise of steps; causes come before symptoms."""


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
        gate_error: Probability that any check of a correct implementation fails.

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
        findings += correlated_checks(data, claim)
        findings += score_checks(data.scores())
    else:
        findings += score_checks(data)
    resumed = () if isinstance(data, CanaryScores) else data.facts.resumed
    return apply_gate(with_resumes(findings, resumed), gate_error)


def transcript_checks(transcript: Transcript, claim: PrivacyClaim | None) -> Iterator[Finding]:
    """Every check of a run whose steps have independent noise."""
    run, facts, finite = Context(transcript, claim), transcript.facts, transcript.finite
    yield from made((signal.finite_gradients,), run)
    if facts.rows is not None:
        rows = trained_rows.TrainedRows(facts=facts.rows, context=run)
        yield from made(trained_rows.ROW_CHECKS, rows)
    yield from made((trained_rows.mixed_records, *correlated_noise.NOISE_ROW_CHECKS), run)
    if facts.reuse is not None:
        place = (
            noise_reuse.in_step(facts.tensors) if facts.noise_rows is None else noise_reuse.in_row
        )
        compared = ComparedNoise(reuse=facts.reuse, place=place)
        yield from made((noise_reuse.noise_reused, correlation.exactly_repeated), compared)
    if finite:
        yield from made((noise.watched_coordinates,), run)
        unhidden = Context(noise_transcript(transcript), claim)
        of_noise = tuple(made(NOISE_CHECKS, unhidden))
        if facts.reuse is None and not correlation.certainly_used_twice(of_noise):
            yield from made((noise_reuse.reused_where_seen,), unhidden)
        yield from of_noise
        yield from made(signal.SIGNAL_CHECKS, run)
    yield from made((noise_reuse.predictable_noise,), facts)
    yield from made(accountant.DECLARED_CHECKS, run)
    if facts.weights is not None:
        yield from made(step_invariants.WEIGHT_CHECKS, facts.weights)
    yield from made(step_invariants.STEP_CHECKS, run)
    yield from made(step_invariants.RECORDING_CHECKS, facts)
    yield from step_invariants.schedule_checks(facts.settings)
    if finite:
        yield from made(accountant.CLIP_COUNT_CHECKS, run)
    if facts.rounds is not None:
        yield from made(
            federated_rounds.ROUND_CHECKS,
            federated_rounds.FederatedRounds(facts=facts.rounds, context=run),
        )


def correlated_checks(
    transcript: LinearTranscript, claim: PrivacyClaim | None
) -> Iterator[Finding]:
    """Every check of a run with correlated noise."""
    run, rounds = CorrelatedRun(transcript, claim), transcript.facts.rounds
    yield from made(
        (signal.finite_gradients, correlated_noise.steps_of_plan, correlated_noise.sensitivity), run
    )
    if rounds is not None:
        yield from made(
            federated_rounds.ROUND_CHECKS,
            federated_rounds.FederatedRounds(facts=rounds, context=None),
        )
    yield from made((correlated_noise.participation,), run)
    if transcript.finite:
        yield from made(correlated_noise.CORRELATED_NOISE_CHECKS, run)
