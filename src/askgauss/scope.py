"""Which parts of the training an audit tested: what its verdict may speak of, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from askgauss.results import Finding, Part, Status

__all__ = ["exercised_in", "scope_of", "untested"]

_RAN = (Status.PASS, Status.INFO, Status.WARN, Status.FAIL)
_ONLY_SCORES = "audit the transcript, not the scores alone"
# A check tests its part with power if a fault of a third of what is claimed, in noise, contribution
# or rate, shows four times in five. An audit whose own test has power measures them to about 5 %,
# and the check, which shares its error with many others, then sees a fault of a quarter.
_WITH_POWER = 1.0 / 3.0
# Where a run was recorded step by step.
_RECORDED = ("transcript", "correlated noise")
# A part in words has room for the smallest faults of so many of its checks.
_MOST_FAULTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A part of the training, and the checks that speak of it.

    Attributes:
        name: What it is called.
        passed: The word for it among the parts canaries went through; empty where canaries do not
            go through it, and other facts tell.
        deciding: Checks of which one must have run, with power, for the part to count as tested.
        others: More checks of the part: a failure of theirs breaks it too.
        exact: Checks of the run's own records, which test the part whether or not canaries went
            through it.
        how_to_test: The next step where it was not tested.
    """

    name: str
    passed: str
    deciding: tuple[str, ...]
    others: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    how_to_test: str


_KINDS = (
    _Kind(
        name="noise scale",
        passed="noise",
        deciding=("noise scale",),
        others=(
            "noise",
            "steps without noise",
            "values without noise",
            "noise by tensor",
            "noise by coordinate",
            "noise by step",
            "noise drift",
            "noise and batch size",
            "noise precision",
            "noise extremes",
            "noise where planted",
            "planted noise",
            "watched coordinates",
            "nodes without noise",
            "noise by entry",
            "noise by node",
            "noise by level",
            "noise coverage",
            "noise norm",
            "noise of the clipping count",
        ),
        how_to_test="record with observe(..., background=the clean sum), or watch coordinates",
    ),
    _Kind(
        name="noise freshness",
        passed="noise",
        deciding=("repeated noise", "serial correlation"),
        others=(
            "predictable noise",
            "shared noise",
            "common noise",
            "noise elsewhere again",
            "noise shape",
            "noise spectrum",
            "whole-run correlation",
            "noise of related nodes",
            "noise after restarts",
            "duplicate scores",
        ),
        how_to_test="record with observe(..., background=the clean sum), or watch coordinates",
    ),
    _Kind(
        name="clipping",
        passed="clipping",
        deciding=("contribution",),
        others=(
            "even contribution",
            "single plantings",
            "carry-over",
            "finite gradients",
            "sum of records",
            "ghost norms",
            "divisor",
            "client weight",
            "update norms",
            "single clients",
            "honest updates",
            "nan update",
            "zero update",
            "clip norm direction",
        ),
        exact=("record contributions",),
        how_to_test="send canaries through the clipper: with gradients of single records (no "
        'ghost clipping) CanaryAudit(..., inject="sample"), or wrap(..., clipped_grad=...) in JAX',
    ),
    _Kind(
        name="sampler",
        passed="sampler",
        deciding=("sampling rate",),
        others=(
            "sampling scheme",
            "sampling of pairs",
            "sampling in time",
            "batch sizes",
            "sampling",
            "participation",
        ),
        how_to_test="send canaries through the loader: ExampleCanaries, or observe(planted=...)",
    ),
    _Kind(
        name="steps",
        passed="",
        deciding=("step count",),
        others=("steps after epsilon was read",),
        how_to_test="say how many steps were accounted for: PrivacyClaim(steps=...)",
    ),
    _Kind(
        name="accountant",
        passed="",
        deciding=("accounted epsilon",),
        others=("accounting of the clipping count", "sensitivity"),
        how_to_test="claim noise_multiplier=, sampling_rate= and steps=, or attach to the run",
    ),
    _Kind(
        name="weights",
        passed="",
        deciding=("weights moved by the release",),
        others=("loaded optimizer state", "weights between steps", "closure"),
        how_to_test="use an optimizer that treats coordinates apart, such as SGD or Adam",
    ),
    _Kind(
        name="trained parameters",
        passed="",
        deciding=("parameters outside the optimizer",),
        others=("trained parameters without canaries", "weights that never train"),
        how_to_test="give the audit the model: CanaryAudit(optimizer, model=model)",
    ),
)


def exercised_in(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Parts of the training the canaries went through, by the facts of a result; scores say none.

    Args:
        metadata: Facts about the run, as a result keeps them.
    """
    run = metadata.get("run")
    if not isinstance(run, Mapping) or run.get("source") not in _RECORDED:
        return ()
    listed = run.get("exercised")
    # Whatever else they met: what was recorded came after the noise.
    return ("noise", *(map(str, listed) if isinstance(listed, (list, tuple)) else ()))


def scope_of(findings: Iterable[Finding], exercised: Sequence[str]) -> tuple[Part, ...]:
    """Every part of the training: tested and fine, tested and broken, or not tested.

    Args:
        findings: The checks, decided.
        exercised: Parts the canaries went through; none where only scores are left of the run.
    """
    by_check = {item.check: item for item in findings}
    # What neither canaries nor facts could tell is no part of this run.
    met = [
        kind for kind in _KINDS if kind.passed or any(name in by_check for name in kind.deciding)
    ]
    return tuple(_part(kind, by_check, exercised) for kind in met)


def _part(kind: _Kind, by_check: dict[str, Finding], exercised: Sequence[str]) -> Part:
    names = (*kind.exact, *kind.deciding, *kind.others)
    found = [by_check[name] for name in names if name in by_check]
    ran = [item for item in found if item.status in _RAN]
    if any(item.status is Status.FAIL for item in ran):
        return Part(name=kind.name, status="broken")
    went = not kind.passed or kind.passed in exercised
    looked = any(item.check in kind.exact for item in ran)
    deciding = [item for item in ran if item.check in kind.deciding]
    if not looked and (not went or not any(_with_power(item) for item in deciding)):
        weak = [item for item in deciding if went and not _with_power(item)]
        return Part(
            name=kind.name,
            status="not tested",
            how_to_test=_how_to_test(kind, weak, exercised),
            met=went and bool(kind.passed or weak),
        )
    # What canaries say of a part that they did not go through is said elsewhere.
    faults = [item.sees for item in ran if item.sees and (went or item.check in kind.exact)]
    return Part(name=kind.name, status="fine", smallest="; ".join(faults[:_MOST_FAULTS]))


def _how_to_test(kind: _Kind, weak: Sequence[Finding], exercised: Sequence[str]) -> str:
    """The next step where a part was not tested, or by checks without power."""
    if weak and weak[0].sees:
        return f"take more canaries or steps, since only {weak[0].sees} shows"
    if weak:
        remedy = weak[0].remedy
        return f"{remedy[:1].lower()}{remedy[1:].rstrip('.')}"
    return kind.how_to_test if exercised or not kind.passed else _ONLY_SCORES


def _with_power(finding: Finding) -> bool:
    """Whether a check that ran would have seen a fault that matters."""
    return finding.visible is None or finding.visible <= _WITH_POWER


def untested(scope: Iterable[Part]) -> tuple[Part, ...]:
    """Parts that the run has and no check spoke of with power: no green is earned."""
    return tuple(part for part in scope if part.status == "not tested" and part.met)
