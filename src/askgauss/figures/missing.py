"""When there is nothing to show, and why."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.results import AuditResult, Verdict

__all__ = ["Missing", "usable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """There is nothing to show, and why."""

    reason: str


def usable(result: AuditResult) -> bool:
    """Whether the bound may be used: no assumption of it failed a check."""
    failed = result.distribution_free is not None or not result.carries_bound
    return result.verdict is not Verdict.INVALID and not failed
