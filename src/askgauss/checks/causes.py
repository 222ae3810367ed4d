"""Which failed check explains which, and which of them leads a result.

One thing that is broken shows in several places. The finding that names it comes first; its remedy
is the one to follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from askgauss.checks.correlation import repeated_noise, serial_correlation, shared_noise
from askgauss.checks.noise import (
    noise_by_coordinate,
    noise_by_tensor,
    noise_shape,
    values_without_noise,
)
from askgauss.checks.noise_reuse import noise_reused
from askgauss.checks.noise_values import planted_noise
from askgauss.checks.registry import Check, registered
from askgauss.checks.signal import even_contribution
from askgauss.results import Consequence, Finding, Status

__all__ = ["leading", "named", "ordered", "resumed_at", "root_causes"]

_ORDER = (Status.FAIL, Status.WARN, Status.INFO, Status.PASS, Status.NOT_RUN)
# Coordinates correlate by so much where they all have one noise.
_SAME = 0.999
# Neighbouring steps correlate by as much where all of them have one noise.
_NEIGHBOURS = 0.9
# Steps that are named; of more, the last one.
_NAMED = 3


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
    repeated, shared, reused = repeated_noise.name, shared_noise.name, noise_reused.name
    if _one_noise_for_all(wrong):
        # Steps of few different numbers are alike by chance; coordinates of one noise are not.
        symptoms = follows[shared] | follows[repeated] | {repeated, noise_by_tensor.name}
        follows[repeated] = frozenset()
        if _measured(wrong, noise_reused) == 0.0:
            # No stretch of values was used again: equal ones are those that coordinates share.
            symptoms |= {reused}
            follows[reused] = frozenset()
        follows[shared] = symptoms - {shared}
    planted = wrong.get(planted_noise.name)
    if planted is not None and planted.measured is not None and planted.measured < 1.0:
        # A record that adds unevenly adds to what varies where it is; it takes nothing off.
        follows = {name: checks - {planted_noise.name} for name, checks in follows.items()}
        follows[planted_noise.name] = frozenset({even_contribution.name})
    coordinate = wrong.get(noise_by_coordinate.name)
    if coordinate is not None and coordinate.consequence is not Consequence.BREACH:
        # Coordinates of heavy-tailed noise differ by more than chance, and by no more than that.
        for item in (noise_by_coordinate, values_without_noise):
            follows[item.name] -= {noise_shape.name}
        follows[noise_shape.name] |= {noise_by_coordinate.name}
    return follows


def _one_noise_for_all(wrong: Mapping[str, Finding]) -> bool:
    """Whether coordinates have one noise, and steps or values are alike only for that.

    Where all steps have the same noise, coordinates are alike too, and neighbouring steps as well.
    """
    return (
        (repeated_noise.name in wrong or noise_reused.name in wrong)
        and _measured(wrong, shared_noise) >= _SAME
        and _measured(wrong, serial_correlation) < _NEIGHBOURS
    )


def _measured(wrong: Mapping[str, Finding], check: Check[Any]) -> float:
    found = wrong.get(check.name)
    return 0.0 if found is None or found.measured is None else abs(found.measured)


def leading(findings: Iterable[Finding]) -> Finding | None:
    """The failed finding that names what is wrong; None where none failed.

    A broken claim before a bound that cannot be used; what caused it before what follows from it;
    deterministic checks before statistical ones.
    """
    listed = list(findings)
    failed = [item for item in listed if item.status is Status.FAIL]
    breaches = [item for item in failed if item.consequence is Consequence.BREACH]
    by_check, causes = {item.check: item for item in listed}, root_causes(listed)
    roots = [by_check[causes.get(item.check, item.check)] for item in breaches or failed]
    return min(roots, key=lambda item: item.p_value is not None, default=None)


def named(findings: Iterable[Finding]) -> str:
    """What is wrong, by the finding that leads; and what breaks the claim, where that is another.

    Examples:
        >>> named([Finding(check="contribution", status=Status.FAIL, summary="too much.")])
        'contribution: too much.'
    """
    listed = list(findings)
    lead = leading(listed)
    if lead is None:
        return ""
    said = f"{lead.check}: {lead.summary}"
    if lead.status is Status.FAIL and lead.consequence is Consequence.BREACH:
        return said
    breaches = [
        item
        for item in listed
        if item.status is Status.FAIL and item.consequence is Consequence.BREACH
    ]
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


def resumed_at(resumed: tuple[int, ...]) -> str:
    """A sentence that asks about the checkpoints a run went on from; empty if there are none.

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
