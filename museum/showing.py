"""What a show writes down: the audit of a run with a released package, and others of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import askgauss as ag
from askgauss.replay import ReplayReport
from askgauss.results import AuditResult, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of an exhibit.

    Attributes:
        verdict: The verdict.
        findings: Checks that failed.
        said: What the finding that failed first says.
        bound: The lower bound on epsilon; None where there is none.
        claimed: The epsilon that the library claims for the run.
        true: The epsilon the run really has, or at least has; None where nobody computed it.
        scores_only: What the paper's own audit of the scores says of the same run.
        peer: What jax_privacy's auditor says of the same scores.
    """

    verdict: str
    findings: tuple[str, ...]
    said: str = ""
    bound: float | None = None
    claimed: float | None = None
    true: float | None = None
    scores_only: str = ""
    peer: str = ""


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
    failed = [item for item in result.findings if item.status is Status.FAIL]
    claim = result.claim
    return Outcome(
        verdict=result.verdict.value if result.verdict is not None else "none",
        findings=tuple(item.check for item in failed),
        said=failed[0].summary if failed else "",
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
        said=f"{' and '.join(leaks[0].values)} on neighbouring data" if leaks else "",
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
