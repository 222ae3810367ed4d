"""A replay's findings in the result of an audit of the same run."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from askgauss._text import one_line
from askgauss.auditing import with_findings
from askgauss.replay.replay_report import ADJACENCIES, Adjacency, Difference, ReplayReport
from askgauss.results import AuditResult, Finding, Verdict

__all__ = ["join", "joined_findings", "with_claim"]


def join(result: AuditResult, report: ReplayReport) -> AuditResult:
    """An audit's result with the findings of a replay; a leak found there breaks the claim.

    A result is made to be published, and what a run does with and without one record is not: what
    is joined is the name of what differed, its kind, and the adjacencies it is a leak under.

    Args:
        result: The audit of a run.
        report: The replay of its training. What is a leak is decided by the adjacency of the
            result's claim, where it has one.
    """
    return with_findings(result, joined_findings(report, result))


def joined_findings(report: ReplayReport, result: AuditResult) -> tuple[Finding, ...]:
    """What a result says of a replay: no value, no size, no step and no record."""
    claimed = with_claim(report, result)
    # A finding for each difference, and one more where none of them is a leak.
    return tuple(
        replace(
            finding,
            summary=_nothing_leaks(claimed) if item is None else _differs(item),
            measured=None,
        )
        for finding, item in zip_longest(claimed.findings, claimed.differences)
    )


def _differs(item: Difference) -> str:
    clean = [name for name in ADJACENCIES if name not in item.leak_under]
    beyond = f", not under {' and '.join(clean)}" if clean else ""
    return one_line(
        f"{item.name} ({item.kind}) differs between neighbouring data; leak under "
        f"{', '.join(item.leak_under)}{beyond}."
    )


def _nothing_leaks(report: ReplayReport) -> str:
    if report.verdict is Verdict.INCONCLUSIVE:
        return "nothing is known to leak, but not everything could be checked: its report says why."
    return (
        "with the same coins nothing but the noisy sum depends on the record that was tried under "
        f"{report.adjacency}, and that by no more than it may."
    )


def with_claim(report: ReplayReport, result: AuditResult) -> ReplayReport:
    """A report as the adjacency of a result's claim has it, where there is one."""
    if result.claim is None:
        return report
    claimed: Adjacency = "replace-one" if result.claim.adjacency == "replace" else "add-remove"
    return replace(report, adjacency=claimed)
