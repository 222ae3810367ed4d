"""A replay's findings in the result of an audit of the same run."""

from __future__ import annotations

from dataclasses import replace

from askgauss.auditing import derived
from askgauss.diagnostics.disclosure import published
from askgauss.replay.report import Adjacency, ReplayReport
from askgauss.results import AuditResult

__all__ = ["join", "with_claim"]


def join(result: AuditResult, report: ReplayReport) -> AuditResult:
    """An audit's result with the findings of a replay; a leak found there breaks the claim.

    Args:
        result: The audit of a run.
        report: The replay of its training. What is a leak is decided by the adjacency of the
            result's claim, where it has one.
    """
    told = published(with_claim(report, result).findings)
    joined = replace(result, findings=(*result.findings, *told))
    return derived(joined, lambda: result.distribution_free_evidence)


def with_claim(report: ReplayReport, result: AuditResult) -> ReplayReport:
    """A report as the adjacency of a result's claim has it, where there is one."""
    if result.claim is None:
        return report
    claimed: Adjacency = "replace-one" if result.claim.adjacency == "replace" else "add-remove"
    return replace(report, adjacency=claimed)
