"""How a check speaks: passed or failed by its p-value, or not run for want of data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from askgauss._rounding import digits
from askgauss.checks.causes import root_causes
from askgauss.checks.rounding_to_error import coarse_chance
from askgauss.results import Assumption, Consequence, Finding, Status

__all__ = ["SUSPICIOUS", "WHOLE_RUN", "apply_gate", "fact", "judged", "not_run", "worded"]

# A p-value below this that the gate does not reject is worth a look, and no more than that.
SUSPICIOUS = 1e-3
# What to do where steps were accounted for that the audit did not see.
WHOLE_RUN = "Attach the audit to the whole run, or claim the steps that it saw."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undecided(Finding):
    """A check before the gate has decided: what to say depends on how it ends."""

    if_fine: str = ""
    if_wrong: str = ""


def judged(
    check: str,
    p_value: float,
    summary: str,
    *,
    if_fine: str = "",
    if_wrong: str = "",
    consequence: Consequence,
    measured: float | None = None,
    interval: tuple[float, float] | None = None,
    claimed: float | None = None,
    remedy: str = "",
    tolerable: bool = False,
    undermines: Assumption = Assumption.GAUSSIAN_SCORES,
    sees: str = "",
    visible: float | None = None,
) -> Finding:
    """A check with a p-value; the gate decides later whether it failed.

    Args:
        check: Name of the check.
        p_value: Probability of something at least as far off in a correct run.
        summary: What was measured, in words that hold however the check ends.
        if_fine: What to add where it passes, such as that chance gives as much.
        if_wrong: What to add where it does not, such as what follows from it.
        consequence: What a failure would mean.
        measured: The measured value.
        interval: Its confidence interval.
        claimed: What it is compared with.
        remedy: What to do about a failure.
        tolerable: The difference is real or not, but too small to matter: it cannot fail.
        undermines: The least a bound must assume for a failure to make it too high.
        sees: The smallest fault it would have noticed, in words.
        visible: The size of that fault, as a share of what is claimed.
    """
    if tolerable and p_value < SUSPICIOUS:
        if_fine = ", which is too little to matter."
    return _Undecided(
        if_fine=if_fine,
        if_wrong=if_wrong,
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
        visible=visible,
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
    visible: float | None = None,
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
        visible=visible,
    )


def not_run(check: str, needs: str) -> Finding:
    """A check that could not be made; listed, so that it never passes silently."""
    return Finding(check=check, status=Status.NOT_RUN, summary=f"not run: needs {needs}.")


def _failed_status(consequence: Consequence) -> Status:
    serious = consequence in (Consequence.BREACH, Consequence.INVALIDATES)
    return Status.FAIL if serious else Status.WARN


def worded(finding: Finding, status: Status) -> Finding:
    """A finding that says what its status says."""
    if not isinstance(finding, _Undecided):
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
            status, remedy = _failed_status(item.consequence), item.remedy
        elif item.p_value < SUSPICIOUS:
            status = Status.INFO
            # No fault to look for: of many sound runs some show as much. As often as is published.
            often = 1.0 / max(coarse_chance(item.check, item.p_value), 1e-9)
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
