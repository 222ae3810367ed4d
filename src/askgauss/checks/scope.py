"""What an audit tested, part by part of the training, and what no audit of one run can test.

Integrations declare by the paths below what their canaries went through, the registry says which
check tests which part, and every output reads `AuditResult.scope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from askgauss.checks.registry import PARTS, Check, TrainingPart, registered
from askgauss.results import Finding, Part, Status

__all__ = [
    "AFTER_CLIPPING",
    "BEFORE_CLIPPING",
    "INPUT_SPACE",
    "OUTSIDE",
    "THROUGH_AGGREGATOR",
    "scope_of",
]

# What canaries go through, by where they are inserted.
AFTER_CLIPPING = ("noise",)
BEFORE_CLIPPING = ("clipping", "noise")
INPUT_SPACE = ("sampler", "per-sample gradient", "clipping", "noise")
THROUGH_AGGREGATOR = ("clipping", "weighting", "noise")

# What no audit of one run can see, whatever its canaries go through.
OUTSIDE = (
    "settings and metadata computed from private data",
    "logged losses and metrics",
    "tuning and early stopping",
    "buffers such as batch-norm statistics",
    "random seeds that can be guessed",
    "floating-point attacks",
    "hyper-parameter search",
)

_RAN = (Status.PASS, Status.INFO, Status.WARN, Status.FAIL)
_ONLY_SCORES = "audit the transcript, not the scores alone"
# A check has power if it detects a fault of a third of what is claimed, in noise, sensitivity or
# rate, with probability .8. An audit whose own test has power measures them to about 5 %, and the
# check, which shares its error with many others, then detects a fault of a quarter.
_WITH_POWER = 1.0 / 3.0
# A part in words has room for the smallest faults of this many of its checks.
_MOST_FAULTS = 2


def scope_of(findings: Iterable[Finding], exercised: Sequence[str]) -> tuple[Part, ...]:
    """Every part of the training: tested and fine, tested and broken, or not tested.

    Args:
        findings: The checks, decided.
        exercised: Parts the canaries went through; none where only scores are left of the run.
    """
    by_check = {item.check: item for item in findings}
    elsewhere = "records" if set(THROUGH_AGGREGATOR) <= set(exercised) else "rounds"
    by_part: dict[TrainingPart, list[Check[Any]]] = {part: [] for part in PARTS}
    for item in registered().values():
        if item.part is not None:
            by_part[item.part].append(item)
    # What neither canaries nor facts could show is no part of this run.
    return tuple(
        _tested(part, checks, by_check, exercised)
        for part, checks in by_part.items()
        if part.of != elsewhere
        and (part.passed or any(item.decides and item.name in by_check for item in checks))
    )


def _tested(
    part: TrainingPart,
    checks: Sequence[Check[Any]],
    by_check: Mapping[str, Finding],
    exercised: Sequence[str],
) -> Part:
    """What the findings say of a part: exact checks first, then deciding ones, then the others."""
    ranked = sorted(checks, key=lambda item: (not item.exact, not item.decides))
    exact = {item.name for item in checks if item.exact}
    decides = {item.name for item in checks if item.decides}
    found = [by_check[item.name] for item in ranked if item.name in by_check]
    ran = [item for item in found if item.status in _RAN]
    if any(item.status is Status.FAIL for item in ran):
        return Part(name=part.name, status="broken")
    went = not part.passed or part.passed in exercised
    looked = any(item.check in exact for item in ran)
    deciding = [item for item in ran if item.check in decides]
    if not looked and (not went or not any(_with_power(item) for item in deciding)):
        weak = [item for item in deciding if went and not _with_power(item)]
        return Part(
            name=part.name,
            status="not tested",
            how_to_test=_how_to_test(part, weak, found, exercised),
            met=part.needed or (went and bool(decides) and bool(part.passed or weak)),
        )
    # What canaries say of a part that they did not go through is said elsewhere.
    faults = [item.sees for item in ran if item.sees and (went or item.check in exact)]
    return Part(name=part.name, status="fine", smallest=", or ".join(faults[:_MOST_FAULTS]))


def _how_to_test(
    part: TrainingPart, weak: Sequence[Finding], found: Sequence[Finding], exercised: Sequence[str]
) -> str:
    """The next step where a part was not tested, or by checks without power."""
    if part.needed and found:
        return found[0].summary.removeprefix("not run: ").rstrip(".")
    if weak and weak[0].sees:
        return f"use more canaries or steps: this audit detects only {weak[0].sees}"
    if weak:
        remedy = weak[0].remedy
        return f"{remedy[:1].lower()}{remedy[1:].rstrip('.')}"
    return part.how_to_test if exercised or not part.passed else _ONLY_SCORES


def _with_power(finding: Finding) -> bool:
    """Whether a check that ran detects a fault that matters."""
    return finding.visible is None or finding.visible <= _WITH_POWER
