"""The gate: all checks of a run, decided together, and the failure that leads.

One fault shows in several checks. The finding that names it comes first, and its remedy is the one
to follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace

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
from askgauss.checks.noise_reuse import ComparedNoise
from askgauss.checks.registry import (
    SUSPICIOUS,
    Undecided,
    failed_status,
    made,
    published_p_value,
    registered,
)
from askgauss.checks.score_shape import score_checks
from askgauss.claims import PrivacyClaim
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.transcript import Transcript
from askgauss.results import Consequence, Finding, Status
from askgauss.scores import CanaryScores, check_audit_data
from askgauss.stats.rounding import digits

__all__ = [
    "NOISE_CHECKS",
    "apply_gate",
    "correlated_checks",
    "diagnose",
    "error_share",
    "leading",
    "named",
    "ordered",
    "resumed_at",
    "root_causes",
    "stated_share",
    "stopping",
    "transcript_checks",
    "with_resumes",
    "worded",
]

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


_ORDER = (Status.FAIL, Status.WARN, Status.INFO, Status.PASS, Status.NOT_RUN)
# Coordinates correlate by this much where they all have one noise.
_SAME = 0.999
# Neighbouring steps correlate by as much where all of them have one noise.
_NEIGHBOURS = 0.9
# Steps that are named; of more, the last one.
_NAMED = 3
_STOPPING = "stopping"
# What all other ends together may add to the error of an audit at the planned one.
_ELSEWHERE = 0.01


def worded(finding: Finding, status: Status) -> Finding:
    """A finding that says what its status says."""
    if not isinstance(finding, Undecided):
        return finding
    said = "" if status in (Status.PASS, Status.INFO) else finding.if_wrong
    plain = {item.name: getattr(finding, item.name) for item in fields(Finding)}
    return Finding(**{**plain, "summary": f"{finding.summary} {said}".strip()})


def apply_gate(findings: Iterable[Finding], error: float) -> tuple[Finding, ...]:
    """Decide all judged findings together, by Holm's procedure at ``error``.

    Some finding of a correct implementation fails with probability at most ``error``, however many
    there are and however they depend on each other. One that may follow from another says so.
    """
    listed = list(findings)
    order = sorted(
        (index for index, item in enumerate(listed) if item.p_value is not None),
        key=lambda index: listed[index].p_value or 0.0,
    )
    rejecting = True
    for rank, index in enumerate(order):
        item = listed[index]
        assert item.p_value is not None
        rejecting = rejecting and item.p_value <= error / (len(order) - rank)
        if rejecting:
            status, remedy = failed_status(item.consequence), item.remedy
        elif item.p_value < SUSPICIOUS:
            status = Status.INFO
            often = 1.0 / max(published_p_value(item) or 0.0, 1e-9)
            remedy = (
                f"Expected in about 1 of {digits(often, 2):,.0f} correct runs; audit another run, "
                "and act if it recurs."
            )
        else:
            status, remedy = Status.PASS, ""
        listed[index] = replace(worded(item, status), status=status, remedy=remedy)
    causes = root_causes(listed)
    return tuple(
        replace(
            item,
            remedy=f"Probably caused by '{causes[item.check]}'. "
            "Fix that, then train and audit again.",
        )
        if item.check in causes
        else item
        for item in listed
    )


def with_resumes(findings: Iterable[Finding], resumed: tuple[int, ...]) -> tuple[Finding, ...]:
    """Findings before the gate, with a question after remedies where a resumed run may be why.

    Args:
        findings: The checks.
        resumed: The steps after which the run was resumed from a checkpoint.
    """
    question, checks = resumed_at(resumed), registered()
    return tuple(
        replace(item, remedy=f"{item.remedy} {question}")
        if question and item.remedy and item.check in checks and checks[item.check].after_resume
        else item
        for item in findings
    )


def resumed_at(resumed: tuple[int, ...]) -> str:
    """A sentence that asks about the checkpoints a run was resumed from; empty if there are none.

    Examples:
        >>> resumed_at((100,))
        'The run was resumed after step 100: were model and audit checkpoints of the same step?'
    """
    if not resumed:
        return ""
    steps = [f"{step:,}" for step in resumed]
    if len(steps) > _NAMED:
        places = f"{len(steps):,} times, the last time after step {steps[-1]}"
    elif len(steps) > 1:
        places = f"after steps {', '.join(steps[:-1])} and {steps[-1]}"
    else:
        places = f"after step {steps[0]}"
    return f"The run was resumed {places}: were model and audit checkpoints of the same step?"


# --- which failure explains which ----------------------------------------------------------------


def root_causes(findings: Iterable[Finding]) -> dict[str, str]:
    """Failed checks that another failed check may explain, and which: the first of a chain.

    Examples:
        >>> failed = [Finding(check=name, status=Status.FAIL, summary="")
        ...           for name in ("repeated noise", "shared noise", "duplicate scores")]
        >>> root_causes(failed)
        {'shared noise': 'repeated noise', 'duplicate scores': 'repeated noise'}
    """
    listed = {item.check: item for item in findings if item.status in (Status.FAIL, Status.WARN)}
    follows, wrong = _directed(listed), list(listed)
    causes: dict[str, str] = {}
    for check in wrong:
        cause = next((name for name in wrong if check in follows.get(name, ())), None)
        if cause is not None:
            causes[check] = cause
    for check, cause in causes.items():
        while cause in causes:
            cause = causes[cause]
        causes[check] = cause
    return causes


def _directed(wrong: Mapping[str, Finding]) -> dict[str, frozenset[str]]:
    """What each check explains, the other way round where the findings themselves say so."""
    follows = {item.name: frozenset(item.explains) for item in registered().values()}
    if _one_noise_for_all(wrong):
        # Steps of few different numbers are alike by chance; coordinates of one noise are not.
        symptoms = follows["shared noise"] | follows["repeated noise"]
        symptoms |= {"repeated noise", "noise by tensor"}
        follows["repeated noise"] = frozenset()
        if _measured(wrong, "noise reused at other coordinates") == 0.0:
            # No stretch of values was used again: equal ones are those that coordinates share.
            symptoms |= {"noise reused at other coordinates"}
            follows["noise reused at other coordinates"] = frozenset()
        follows["shared noise"] = symptoms - {"shared noise"}
    planted = wrong.get("planted noise")
    if planted is not None and planted.measured is not None and planted.measured < 1.0:
        # A record that adds unevenly adds variance where it is included; it takes nothing off.
        follows = {name: checks - {"planted noise"} for name, checks in follows.items()}
        follows["planted noise"] = frozenset({"even contribution"})
    coordinate = wrong.get("noise by coordinate")
    if coordinate is not None and coordinate.consequence is not Consequence.BREACH:
        # Coordinates of heavy-tailed noise differ by more than chance, and by no more than that.
        for name in ("noise by coordinate", "values without noise"):
            follows[name] -= {"noise shape"}
        follows["noise shape"] |= {"noise by coordinate"}
    return follows


def _one_noise_for_all(wrong: Mapping[str, Finding]) -> bool:
    """Whether coordinates have one noise, and steps or values are alike only for that.

    Where all steps have the same noise, coordinates are alike too, and neighbouring steps as well.
    """
    return (
        ("repeated noise" in wrong or "noise reused at other coordinates" in wrong)
        and _measured(wrong, "shared noise") >= _SAME
        and _measured(wrong, "serial correlation") < _NEIGHBOURS
    )


def _measured(wrong: Mapping[str, Finding], check: str) -> float:
    found = wrong.get(check)
    return 0.0 if found is None or found.measured is None else abs(found.measured)


def leading(findings: Iterable[Finding]) -> Finding | None:
    """The failed finding that names what is wrong; None where none failed.

    A violated claim before a bound that cannot be used; a cause before what follows from it;
    deterministic checks before statistical ones.
    """
    listed = list(findings)
    failed = [item for item in listed if item.status is Status.FAIL]
    by_check, causes = {item.check: item for item in listed}, root_causes(listed)
    roots = [by_check[causes.get(item.check, item.check)] for item in _breaches(failed) or failed]
    return min(roots, key=lambda item: item.p_value is not None, default=None)


def _breaches(findings: Iterable[Finding]) -> list[Finding]:
    return [
        item
        for item in findings
        if item.status is Status.FAIL and item.consequence is Consequence.BREACH
    ]


def named(findings: Iterable[Finding]) -> str:
    """What is wrong, by the finding that leads; and what violates the claim, if that is another.

    Examples:
        >>> named([Finding(check="contribution", status=Status.FAIL, summary="too much.")])
        'contribution: too much.'
    """
    listed = list(findings)
    lead = leading(listed)
    if lead is None:
        return ""
    said = f"{lead.check}: {lead.summary}"
    breaches = _breaches(listed)
    if lead in breaches:
        return said
    follow = root_causes(breaches)
    breach = next((item for item in breaches if item.check not in follow), None)
    return said if breach is None else f"{said} So {breach.check}: {breach.summary}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; of those the one that leads, then causes before what follows from them."""
    listed = list(findings)
    first, causes = leading(listed), root_causes(listed)
    return sorted(
        listed,
        key=lambda item: (_ORDER.index(item.status), item is not first, item.check in causes),
    )


# --- runs that were watched ----------------------------------------------------------------------


def error_share(taken: int, planned: int | None) -> float:
    """The share of its error that an audit after this many steps may spend.

    A watched run may be ended when it looks worst. Audits at all steps are valid together at the
    sum of their errors: at the planned end that of one audit, at any other step t a hundredth of
    6 / (pi^2 t k^2) of it, with k the number of binary digits of t, which adds up to a hundredth.

    Args:
        taken: Steps that were taken.
        planned: Steps that were planned before the run; None where nobody said.

    Examples:
        >>> error_share(100, 100), f"{error_share(50, 100):.1g}", error_share(50, None)
        (1.0, '3e-06', 1.0)
    """
    if planned is None or taken < 1 or taken == planned:
        return 1.0
    return _ELSEWHERE * 6.0 / (math.pi**2 * taken * taken.bit_length() ** 2)


def stated_share(findings: Iterable[Finding]) -> float:
    """The share of its error that a result was stated with, by its finding *stopping*."""
    found = next((item for item in findings if item.check == _STOPPING), None)
    if found is None or found.measured is None or found.claimed is None:
        return 1.0
    return error_share(int(found.measured), int(found.claimed))


def stopping(taken: int, planned: int | None) -> Finding | None:
    """What a result says about the end of a watched run; None where it is the planned one."""
    if planned is None:
        return Finding(
            check=_STOPPING,
            status=Status.INFO,
            summary="the run was monitored without a planned number of steps. Bound, checks and "
            "verdict are valid if what the monitor showed did not decide when the run ended.",
            remedy="State how many steps are planned: Monitor(claim=PrivacyClaim(..., steps=...)).",
        )
    if taken == planned:
        return None
    return Finding(
        check=_STOPPING,
        status=Status.INFO,
        summary=f"the run was monitored, and ended after {taken:,} steps where {planned:,} were "
        "planned. Bound, checks and verdict use an error small enough to be valid whenever the "
        "run was ended, whatever the monitor showed.",
        measured=float(taken),
        claimed=float(planned),
    )
