"""How a check ends: passed or failed by its p-value or by a fact, or not run for want of data.

Findings get their names from the registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.results import Assumption, Consequence, Finding, Status

__all__ = ["SUSPICIOUS", "Undecided", "fact", "failed_status", "judged", "not_run"]

# A p-value below this that the gate does not reject is worth a look, and no more than that.
SUSPICIOUS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided(Finding):
    """A check before the gate has decided: what to say depends on how it ends.

    Attributes:
        if_fine: What to add to the summary where it passes.
        if_wrong: What to add where it does not.
    """

    if_fine: str = ""
    if_wrong: str = ""


def judged(
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
        sees: The smallest fault it would have detected with probability .8, in words.
        visible: The size of that fault, as a share of what is claimed.
    """
    if tolerable and p_value < SUSPICIOUS:
        if_fine = ", which is too little to matter."
    return Undecided(
        if_fine=if_fine,
        if_wrong=if_wrong,
        check="",
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
        check="",
        status=failed_status(consequence) if failed else Status.PASS,
        summary=summary,
        consequence=consequence,
        undermines=undermines,
        measured=measured,
        claimed=claimed,
        remedy=remedy if failed else "",
        sees=sees,
        visible=visible,
    )


def not_run(needs: str) -> Finding:
    """A check that could not be made; listed, so that it never passes silently."""
    return Finding(check="", status=Status.NOT_RUN, summary=f"not run: needs {needs}.")


def failed_status(consequence: Consequence) -> Status:
    """How a check with this consequence ends where it fails."""
    serious = consequence in (Consequence.BREACH, Consequence.INVALIDATES)
    return Status.FAIL if serious else Status.WARN
