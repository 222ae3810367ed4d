"""What a show writes down: the audit of a run with a released package, and others of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import askgauss as ag
from askgauss.mechanism_audit import MechanismResult
from askgauss.replay import ReplayReport
from askgauss.results import AuditResult, Status, Verdict
from askgauss.stats.limits import clopper_pearson_lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of an exhibit.

    Attributes:
        verdict: The verdict.
        findings: Checks that failed.
        warnings: Checks that warn, and leave the verdict alone.
        said: What each of them says, and each that warns, by its name.
        bound: The lower bound on epsilon; None where there is none.
        claimed: The epsilon that the library claims for the run.
        true: The epsilon the run really has, or at least has; None where nobody computed it.
        scores_only: What the paper's own audit of the scores says of the same run.
        peer: What jax_privacy's auditor says of the same scores.
    """

    verdict: str
    findings: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    said: dict[str, str] = field(default_factory=dict)
    bound: float | None = None
    claimed: float | None = None
    true: float | None = None
    scores_only: str = ""
    peer: str = ""


# A violation that the bound alone shows, where every part is as it was declared.
BOUND = "bound above the claim"


def of_audit(
    result: AuditResult,
    *,
    true: float | None = None,
    scores: ag.CanaryScores | None = None,
) -> Outcome:
    """The outcome of an audit.

    Args:
        result: The audit.
        true: The epsilon the run really has, where it can be computed.
        scores: Scores of the same run, for the audits that read nothing else.
    """
    named = {
        status: [item for item in result.findings if item.status is status]
        for status in (Status.FAIL, Status.WARN)
    }
    failed = {item.check: item.summary for item in named[Status.FAIL]}
    if result.verdict is Verdict.VIOLATION and not failed:
        failed = {BOUND: result.reason}
    claim = result.claim
    if sys.argv[1:2] == ["mended"]:
        # What scores alone tell is asked of the broken run.
        scores = None
    return Outcome(
        verdict=result.verdict.value if result.verdict is not None else "none",
        findings=tuple(failed),
        warnings=tuple(item.check for item in named[Status.WARN]),
        said=failed | {item.check: item.summary for item in named[Status.WARN]},
        bound=result.epsilon_lower,
        claimed=None if claim is None else claim.epsilon,
        true=true,
        scores_only="" if scores is None or claim is None else _paper(scores, claim),
        peer="" if scores is None or claim is None else _peer(scores, claim),
    )


def of_replay(report: ReplayReport) -> Outcome:
    """The outcome of a replay, whose leaks stand for findings."""
    leaks = report.leaks
    return Outcome(
        verdict=report.verdict.value,
        findings=tuple(item.name for item in leaks),
        said={item.name: f"{' and '.join(item.values)} on neighbouring data" for item in leaks},
    )


# What an audit of any mechanism can find: it names no part of it, but the event that tells.
LEAK, COINS = "leak on this pair", "coins"


def of_mechanism(result: MechanismResult, *, true: float | None = None) -> Outcome:
    """The outcome of a mechanism's audit: the event that tells its inputs apart, or its coins."""
    name = {Verdict.VIOLATION: LEAK, Verdict.INVALID: COINS}.get(result.verdict)
    event = f" Event: {result.event}." if result.event and name == LEAK else ""
    return Outcome(
        verdict=result.verdict.value if result.verdict is not None else "none",
        findings=() if name is None else (name,),
        said={} if name is None else {name: f"{result.reason}{event}"},
        bound=result.epsilon_lower,
        claimed=None if result.claim is None else result.claim.epsilon,
        true=true,
    )


CALIBRATION = "calibration"


def of_coverage(above: int, audits: int, promised: float) -> Outcome:
    """The outcome of many audits of nothing, by an auditor that promises to be wrong rarely.

    Args:
        above: Audits whose bound was above the truth.
        audits: All of them.
        promised: The largest share of them that may be.
    """
    least = clopper_pearson_lower(above, audits, 0.001)
    said = f"{above} of {audits} bounds on scores that carry nothing are above zero, at most "
    said += f"{promised:.0%} are promised."
    failed = least > promised
    return Outcome(
        verdict="INVALID" if failed else "CONSISTENT",
        findings=(CALIBRATION,) if failed else (),
        said={CALIBRATION: said},
        true=0.0,
    )


def _paper(scores: ag.CanaryScores, claim: ag.PrivacyClaim) -> str:
    """The paper's method: a confidence region of two Gaussians, and nothing but the scores."""
    bound = ag.audit(
        scores, delta=claim.delta, auditor=ag.GaussianEllipsoid(), diagnostics=False
    ).epsilon_lower
    return f"{bound:.3g}, {'above' if bound > claim.epsilon else 'below'} the claim"


def _peer(scores: ag.CanaryScores, claim: ag.PrivacyClaim) -> str:
    from jax_privacy import auditing

    peer = auditing.CanaryScoreAuditor(scores.present, scores.absent)
    bound = float(peer.epsilon_one_run(0.05, claim.delta))
    return f"{bound:.3g}, {'above' if bound > claim.epsilon else 'below'} the claim"


def main(show: Callable[[str], Outcome]) -> None:
    """Run one variant and write its outcome where the museum asked for it."""
    variant, target = sys.argv[1:]
    Path(target).write_text(json.dumps(asdict(show(variant))), encoding="utf-8")
