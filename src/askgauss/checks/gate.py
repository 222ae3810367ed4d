"""The gate: all checks of a run, decided together at one false-alarm rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

from askgauss.checks.causes import resumed_at, root_causes
from askgauss.checks.findings import SUSPICIOUS, Undecided, failed_status
from askgauss.checks.registry import published_p_value, registered
from askgauss.results import Finding, Status
from askgauss.stats.rounding import digits

__all__ = ["apply_gate", "with_resumes", "worded"]


def worded(finding: Finding, status: Status) -> Finding:
    """A finding that says what its status says."""
    if not isinstance(finding, Undecided):
        return finding
    said = {Status.PASS: finding.if_fine, Status.INFO: ""}.get(status, finding.if_wrong)
    summary = finding.summary
    if said:
        # A clause goes into the sentence, a sentence behind it.
        summary = f"{summary[:-1]}{said}" if said.startswith((",", ";")) else f"{summary} {said}"
    plain = {item.name: getattr(finding, item.name) for item in fields(Finding)}
    return Finding(**{**plain, "summary": summary})


def apply_gate(findings: Iterable[Finding], error: float) -> tuple[Finding, ...]:
    """Decide all judged findings together, by Holm's procedure at ``error``.

    A correct run has some finding fail with probability at most ``error``, however many there are
    and however they depend on each other. One that may follow from another says so, instead of
    sending its reader after a fault that is not there.
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
            # No fault to look for: of many sound runs some show as much. As often as is published.
            often = 1.0 / max(published_p_value(item) or 0.0, 1e-9)
            remedy = (
                f"One sound run in {digits(often, 2):,.0f} shows as much: take it seriously "
                "if the next run does too."
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
