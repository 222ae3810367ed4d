"""The gate: all checks of a run decided together, the failure that leads, and how runs were ended.

One fault shows in several checks. The finding that names it comes first, and its remedy is the one
to follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from askgauss.checks.registry import (
    SUSPICIOUS,
    Undecided,
    failed_status,
    published_p_value,
    registered,
)
from askgauss.results import Consequence, Finding, Status
from askgauss.stats.rounding import digits

__all__ = [
    "apply_gate",
    "error_share",
    "leading",
    "named",
    "ordered",
    "resumed_at",
    "root_causes",
    "stated_share",
    "stopping",
    "with_resumes",
    "worded",
]

_ORDER = (Status.FAIL, Status.WARN, Status.INFO, Status.PASS, Status.NOT_RUN)
# Coordinates correlate by this much where they all have one noise.
_SAME = 0.999
# Neighbouring steps correlate by as much where all of them have one noise.
_NEIGHBOURS = 0.9
# Steps that are named; of more, the last one.
_NAMED = 3
_STOPPING = "stopping"
# What all other ends together may add to the error of an audit at the planned one.
_ELSEWHERE = 0.01


def worded(finding: Finding, status: Status) -> Finding:
    """A finding that says what its status says."""
    if not isinstance(finding, Undecided):
        return finding
    said = "" if status in (Status.PASS, Status.INFO) else finding.if_wrong
    plain = {item.name: getattr(finding, item.name) for item in fields(Finding)}
    return Finding(**{**plain, "summary": f"{finding.summary} {said}".strip()})


def apply_gate(findings: Iterable[Finding], error: float) -> tuple[Finding, ...]:
    """Decide all judged findings together, by Holm's procedure at ``error``.

    Some finding of a correct implementation fails with probability at most ``error``, however many
    there are and however they depend on each other. One that may follow from another says so.
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
            often = 1.0 / max(published_p_value(item) or 0.0, 1e-9)
            remedy = (
                f"Expected in about 1 of {digits(often, 2):,.0f} correct runs; audit another run, "
                "and act if it recurs."
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


def resumed_at(resumed: tuple[int, ...]) -> str:
    """A sentence that asks about the checkpoints a run was resumed from; empty if there are none.

    Examples:
        >>> resumed_at((100,))
        'The run was resumed after step 100: were model and audit checkpoints of the same step?'
    """
    if not resumed:
        return ""
    steps = [f"{step:,}" for step in resumed]
    if len(steps) > _NAMED:
        places = f"{len(steps):,} times, the last time after step {steps[-1]}"
    elif len(steps) > 1:
        places = f"after steps {', '.join(steps[:-1])} and {steps[-1]}"
    else:
        places = f"after step {steps[0]}"
    return f"The run was resumed {places}: were model and audit checkpoints of the same step?"


# --- which failure explains which ----------------------------------------------------------------


def root_causes(findings: Iterable[Finding]) -> dict[str, str]:
    """Failed checks that another failed check may explain, and which: the first of a chain.

    Examples:
        >>> failed = [Finding(check=name, status=Status.FAIL, summary="")
        ...           for name in ("repeated noise", "shared noise", "duplicate scores")]
        >>> root_causes(failed)
        {'shared noise': 'repeated noise', 'duplicate scores': 'repeated noise'}
    """
    listed = {item.check: item for item in findings if item.status in (Status.FAIL, Status.WARN)}
    follows, wrong = _directed(listed), list(listed)
    causes: dict[str, str] = {}
    for check in wrong:
        cause = next((name for name in wrong if check in follows.get(name, ())), None)
        if cause is not None:
            causes[check] = cause
    for check, cause in causes.items():
        while cause in causes:
            cause = causes[cause]
        causes[check] = cause
    return causes


def _directed(wrong: Mapping[str, Finding]) -> dict[str, frozenset[str]]:
    """What each check explains, the other way round where the findings themselves say so."""
    follows = {item.name: frozenset(item.explains) for item in registered().values()}
    if _one_noise_for_all(wrong):
        # Steps of few different numbers are alike by chance; coordinates of one noise are not.
        symptoms = follows["shared noise"] | follows["repeated noise"]
        symptoms |= {"repeated noise", "noise by tensor"}
        follows["repeated noise"] = frozenset()
        if _measured(wrong, "noise reused at other coordinates") == 0.0:
            # No stretch of values was used again: equal ones are those that coordinates share.
            symptoms |= {"noise reused at other coordinates"}
            follows["noise reused at other coordinates"] = frozenset()
        follows["shared noise"] = symptoms - {"shared noise"}
    planted = wrong.get("planted noise")
    if planted is not None and planted.measured is not None and planted.measured < 1.0:
        # A record that adds unevenly adds variance where it is included; it takes nothing off.
        follows = {name: checks - {"planted noise"} for name, checks in follows.items()}
        follows["planted noise"] = frozenset({"even contribution"})
    coordinate = wrong.get("noise by coordinate")
    if coordinate is not None and coordinate.consequence is not Consequence.BREACH:
        # Coordinates of heavy-tailed noise differ by more than chance, and by no more than that.
        for name in ("noise by coordinate", "values without noise"):
            follows[name] -= {"noise shape"}
        follows["noise shape"] |= {"noise by coordinate"}
    return follows


def _one_noise_for_all(wrong: Mapping[str, Finding]) -> bool:
    """Whether coordinates have one noise, and steps or values are alike only for that.

    Where all steps have the same noise, coordinates are alike too, and neighbouring steps as well.
    """
    return (
        ("repeated noise" in wrong or "noise reused at other coordinates" in wrong)
        and _measured(wrong, "shared noise") >= _SAME
        and _measured(wrong, "serial correlation") < _NEIGHBOURS
    )


def _measured(wrong: Mapping[str, Finding], check: str) -> float:
    found = wrong.get(check)
    return 0.0 if found is None or found.measured is None else abs(found.measured)


def leading(findings: Iterable[Finding]) -> Finding | None:
    """The failed finding that names what is wrong; None where none failed.

    A violated claim before a bound that cannot be used; a cause before what follows from it;
    deterministic checks before statistical ones.
    """
    listed = list(findings)
    failed = [item for item in listed if item.status is Status.FAIL]
    by_check, causes = {item.check: item for item in listed}, root_causes(listed)
    roots = [by_check[causes.get(item.check, item.check)] for item in _breaches(failed) or failed]
    return min(roots, key=lambda item: item.p_value is not None, default=None)


def _breaches(findings: Iterable[Finding]) -> list[Finding]:
    return [
        item
        for item in findings
        if item.status is Status.FAIL and item.consequence is Consequence.BREACH
    ]


def named(findings: Iterable[Finding]) -> str:
    """What is wrong, by the finding that leads; and what violates the claim, if that is another.

    Examples:
        >>> named([Finding(check="contribution", status=Status.FAIL, summary="too much.")])
        'contribution: too much.'
    """
    listed = list(findings)
    lead = leading(listed)
    if lead is None:
        return ""
    said = f"{lead.check}: {lead.summary}"
    breaches = _breaches(listed)
    if lead in breaches:
        return said
    follow = root_causes(breaches)
    breach = next((item for item in breaches if item.check not in follow), None)
    return said if breach is None else f"{said} So {breach.check}: {breach.summary}"


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first; of those the one that leads, then causes before what follows from them."""
    listed = list(findings)
    first, causes = leading(listed), root_causes(listed)
    return sorted(
        listed,
        key=lambda item: (_ORDER.index(item.status), item is not first, item.check in causes),
    )


# --- runs that were watched ----------------------------------------------------------------------


def error_share(taken: int, planned: int | None) -> float:
    """The share of its error that an audit after this many steps may spend.

    A watched run may be ended when it looks worst. Audits at all steps are valid together at the
    sum of their errors: at the planned end that of one audit, at any other step t a hundredth of
    6 / (pi^2 t k^2) of it, with k the number of binary digits of t, which adds up to a hundredth.

    Args:
        taken: Steps that were taken.
        planned: Steps that were planned before the run; None where nobody said.

    Examples:
        >>> error_share(100, 100), f"{error_share(50, 100):.1g}", error_share(50, None)
        (1.0, '3e-06', 1.0)
    """
    if planned is None or taken < 1 or taken == planned:
        return 1.0
    return _ELSEWHERE * 6.0 / (math.pi**2 * taken * taken.bit_length() ** 2)


def stated_share(findings: Iterable[Finding]) -> float:
    """The share of its error that a result was stated with, by its finding *stopping*."""
    found = next((item for item in findings if item.check == _STOPPING), None)
    if found is None or found.measured is None or found.claimed is None:
        return 1.0
    return error_share(int(found.measured), int(found.claimed))


def stopping(taken: int, planned: int | None) -> Finding | None:
    """What a result says about the end of a watched run; None where it is the planned one."""
    if planned is None:
        return Finding(
            check=_STOPPING,
            status=Status.INFO,
            summary="the run was monitored without a planned number of steps. Bound, checks and "
            "verdict are valid if what the monitor showed did not decide when the run ended.",
            remedy="State how many steps are planned: Monitor(claim=PrivacyClaim(..., steps=...)).",
        )
    if taken == planned:
        return None
    return Finding(
        check=_STOPPING,
        status=Status.INFO,
        summary=f"the run was monitored, and ended after {taken:,} steps where {planned:,} were "
        "planned. Bound, checks and verdict use an error small enough to be valid whenever the "
        "run was ended, whatever the monitor showed.",
        measured=float(taken),
        claimed=float(planned),
    )
