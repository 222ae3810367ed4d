"""A replay's findings in the result of an audit of the same run."""

from __future__ import annotations

from dataclasses import replace

from askgauss.auditing import derived
from askgauss.replay.report import ReplayReport
from askgauss.results import AuditResult

__all__ = ["join"]


def join(result: AuditResult, report: ReplayReport) -> AuditResult:
    """An audit's result with the findings of a replay; a leak found there breaks the claim.

    Args:
        result: The audit of a run.
        report: The replay of its training. What is a leak is decided by the adjacency of the
            result's claim, where it has one.
    """
    if result.claim is not None:
        claimed = "replace-one" if result.claim.adjacency == "replace" else "add-remove"
        report = replace(report, adjacency=claimed)  # type: ignore[arg-type]
    joined = replace(result, findings=(*result.findings, *report.findings))
    return derived(joined, lambda: result.distribution_free_evidence)
