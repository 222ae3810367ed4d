"""How a check speaks: passed or failed by its p-value, or not run for want of data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from askgauss.diagnostics.causes import root_causes
from askgauss.results import Assumption, Consequence, Finding, Status

__all__ = ["SUSPICIOUS", "apply_gate", "fact", "judged", "not_run"]

# A p-value below this that the gate does not reject is worth a look, and no more than that.
SUSPICIOUS = 1e-3


def judged(
    check: str,
    p_value: float,
    summary: str,
    *,
    consequence: Consequence,
    measured: float | None = None,
    interval: tuple[float, float] | None = None,
    claimed: float | None = None,
    remedy: str = "",
    tolerable: bool = False,
    undermines: Assumption = Assumption.GAUSSIAN_SCORES,
    sees: str = "",
) -> Finding:
    """A check with a p-value; the gate decides later whether it failed.

    Args:
        check: Name of the check.
        p_value: Probability of something at least as far off in a correct run.
        summary: One sentence.
        consequence: What a failure would mean.
        measured: The measured value.
        interval: Its confidence interval.
        claimed: What it is compared with.
        remedy: What to do about a failure.
        tolerable: The difference is real or not, but too small to matter: it cannot fail.
        undermines: The least a bound must assume for a failure to make it too high.
        sees: The smallest fault it would have noticed, in words.
    """
    return Finding(
        check=check,
        status=Status.PASS,
        summary=summary,
        consequence=consequence,
        undermines=undermines,
        measured=measured,
        interval=interval,
        claimed=claimed,
        p_value=1.0 if tolerable else min(max(float(p_value), 0.0), 1.0),
        remedy=remedy,
        sees=sees,
    )


def fact(
    check: str,
    failed: bool,
    summary: str,
    *,
    consequence: Consequence,
    measured: float | None = None,
    claimed: float | None = None,
    remedy: str = "",
    undermines: Assumption = Assumption.DISTRIBUTION_FREE,
    sees: str = "",
) -> Finding:
    """A check that needs no statistics: it holds or it does not."""
    return Finding(
        check=check,
        status=_failed_status(consequence) if failed else Status.PASS,
        summary=summary,
        consequence=consequence,
        undermines=undermines,
        measured=measured,
        claimed=claimed,
        remedy=remedy if failed else "",
        sees=sees,
    )


def not_run(check: str, needs: str) -> Finding:
    """A check that could not be made; listed, so that it never passes silently."""
    return Finding(check=check, status=Status.NOT_RUN, summary=f"not run: needs {needs}.")


def _failed_status(consequence: Consequence) -> Status:
    serious = consequence in (Consequence.BREACH, Consequence.INVALIDATES)
    return Status.FAIL if serious else Status.WARN


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
            listed[index] = replace(item, status=_failed_status(item.consequence))
        elif item.p_value < SUSPICIOUS:
            listed[index] = replace(item, status=Status.INFO)
        else:
            listed[index] = replace(item, remedy="")
    causes = root_causes(listed)
    return tuple(
        replace(item, remedy=f"May follow from {causes[item.check]}: mend that first, audit again.")
        if item.check in causes
        else item
        for item in listed
    )
