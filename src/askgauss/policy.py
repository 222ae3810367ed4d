"""What a verdict takes, written once: thresholds, the order of verdicts, what makes an audit weak.

Audits, advice, reports, audits of mechanisms and files that are read back all ask here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from askgauss.checks.signal import contribution, step_count
from askgauss.results import Consequence, Finding, Part, Status, Verdict

__all__ = [
    "ALTERNATIVE",
    "ENOUGH_POWER",
    "MEMBERSHIP",
    "WANTED_POWER",
    "Weakness",
    "WeaknessKind",
    "failures",
    "membership_gap",
    "share_of_test",
    "untested",
    "verdict_of_gap",
    "verdict_on",
    "weakness",
]

ALTERNATIVE = 1.25
"""Power is that against a true epsilon of this many times the claim."""
ENOUGH_POWER = 0.8
"""An audit with this power is strong enough for CONSISTENT."""
WANTED_POWER = 0.9
"""What advice plans for: canaries are drawn at random, so a little more than enough is asked."""
# Canaries that add less than this, in clip norms, are weaker than a record may be.
_WHOLE = 0.99


class WeaknessKind(enum.Enum):
    """Why an audit that found nothing against the claim does not speak for it."""

    CONTRIBUTION = "contribution"
    """Canaries added less to the sum than a record may."""
    STEPS = "steps"
    """Fewer steps were audited than accounted for."""
    PARTS = "parts"
    """No check had enough power to assess some part of the training."""
    POWER = "power"
    """A leak above the claim would probably not have been detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakness:
    """Why an audit is INCONCLUSIVE.

    Attributes:
        kind: The first reason that applies.
        finding: The check that shows it, for contribution and steps.
        parts: The parts that were not tested.
    """

    kind: WeaknessKind
    finding: Finding | None = None
    parts: tuple[Part, ...] = ()


def verdict_on(
    *,
    breached: bool = False,
    invalid: bool = False,
    contradicted: bool = False,
    strong: bool = False,
) -> Verdict:
    """The verdict on a claim.

    Args:
        breached: A check found the mechanism itself broken.
        invalid: A check failed that the test of the claim rests on.
        contradicted: The test rejects the claim.
        strong: It would probably have done so at `ALTERNATIVE` times the claim.
    """
    if breached:
        return Verdict.VIOLATION
    if invalid:
        return Verdict.INVALID
    if contradicted:
        return Verdict.VIOLATION
    return Verdict.CONSISTENT if strong else Verdict.INCONCLUSIVE


MEMBERSHIP = "membership"
"""The check of how it was decided who was present."""


def membership_gap(findings: Iterable[Finding]) -> Literal["fixed", "unknown"] | None:
    """Whether a difference of the two groups need not come from training.

    Such scores carry no bound; `verdict_of_gap` says how they end.
    """
    for item in findings:
        if item.check == MEMBERSHIP and item.status is Status.FAIL:
            return "fixed"
        if item.check == MEMBERSHIP and item.status is Status.WARN:
            return "unknown"
    return None


def verdict_of_gap(gap: Literal["fixed", "unknown"]) -> Verdict:
    """The verdict on scores without a bound: groups that nobody randomised are no evidence.

    Where nobody said how membership was decided, saying so may make them one.
    """
    return Verdict.INVALID if gap == "fixed" else Verdict.INCONCLUSIVE


def share_of_test(findings: Iterable[Finding], gate_error: float) -> float:
    """The part of the gate error that tests the claim: half, where checks share the rest."""
    return gate_error if all(item.p_value is None for item in findings) else 0.5 * gate_error


def failures(findings: Iterable[Finding], consequence: Consequence) -> list[Finding]:
    """Checks that failed with this consequence, in their order."""
    return [
        item for item in findings if item.status is Status.FAIL and item.consequence is consequence
    ]


def untested(scope: Iterable[Part]) -> tuple[Part, ...]:
    """Parts that canaries went through and no check assessed with enough power."""
    return tuple(part for part in scope if part.status == "not tested" and part.met)


def weakness(
    findings: Sequence[Finding], scope: Iterable[Part], power: float | None
) -> Weakness | None:
    """Why the audit does not speak for the claim; None where it does.

    Args:
        findings: The checks.
        scope: The parts of the training.
        power: Probability of a VIOLATION at `ALTERNATIVE` times the claim; None where unknown.
    """
    # Power is that of canaries that add a whole clip norm, the most a record may.
    small = next((item for item in findings if _small_contribution(item)), None)
    if small is not None:
        return Weakness(kind=WeaknessKind.CONTRIBUTION, finding=small)
    enough, parts = power is not None and power >= ENOUGH_POWER, untested(scope)
    if enough and not parts:
        return None
    missed = next((item for item in findings if _missed_steps(item)), None)
    if missed is not None:
        return Weakness(kind=WeaknessKind.STEPS, finding=missed)
    return Weakness(kind=WeaknessKind.PARTS if enough else WeaknessKind.POWER, parts=parts)


def _small_contribution(finding: Finding) -> bool:
    """Whether canaries add less to the sum than a record may: as they should, or not."""
    measured, expected = finding.measured, finding.claimed
    if finding.check != contribution.name or measured is None or expected is None:
        return False
    return expected < _WHOLE or (finding.status is Status.WARN and measured < expected)


def _missed_steps(finding: Finding) -> bool:
    """Whether steps were accounted for that the audit did not see."""
    measured, accounted = finding.measured, finding.claimed
    if finding.check != step_count.name or measured is None or accounted is None:
        return False
    return measured < accounted
