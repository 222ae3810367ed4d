"""The parts of a training: which an audit tested, which it did not, and what none can see.

This is the only list of parts. Integrations say by the paths below what their canaries went
through, checks are assigned to parts in `_KINDS`, and every output reads `AuditResult.scope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

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
# A check tests its part with power if a fault of a third of what is claimed, in noise, contribution
# or rate, shows four times in five. An audit whose own test has power measures them to about 5 %,
# and the check, which shares its error with many others, then sees a fault of a quarter.
_WITH_POWER = 1.0 / 3.0
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
        of: Where this part occurs: in training on records, in federated rounds, or in both.
        needed: Whether the claimed epsilon is about this part itself, so that CONSISTENT is not
            given where it was not tested, whatever canaries went through.
    """

    name: str
    passed: str = ""
    deciding: tuple[str, ...]
    others: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    how_to_test: str
    of: Literal["records", "rounds", "both"] = "both"
    needed: bool = False


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
            "divisor by step",
            "noise precision",
            "noise extremes",
            "noise where planted",
            "planted noise",
            "watched coordinates",
            "nodes without noise",
            "rows without noise",
            "noise by row",
            "noise by entry",
            "noise by node",
            "noise by level",
            "noise coverage",
            "noise norm",
            "noise of the clipping count",
            "noise multiplier schedule",
        ),
        how_to_test="record with observe(..., background=the clean sum), or watch coordinates",
    ),
    _Kind(
        name="noise freshness",
        passed="noise",
        deciding=("noise reused at other coordinates", "repeated noise", "serial correlation"),
        others=(
            "predictable noise",
            "shared noise",
            "common noise",
            "noise sums across steps",
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
        name="sampler",
        passed="sampler",
        deciding=("sampling rate",),
        others=(
            "sampling scheme",
            "sampling of pairs",
            "sampling in time",
            "batch sizes",
            "single records",
            "sampling",
            "participation",
        ),
        how_to_test="give the audit the private loader, CanaryAudit(optimizer, "
        "data_loader=loader); in an own loop, observe(planted=...)",
    ),
    _Kind(
        name="per-sample gradient",
        passed="per-sample gradient",
        # Whether a record's gradient is its own. What an input-space canary adds on average does
        # not tell: a loss that mixes records shares the canary out over rows that add up to it.
        deciding=(),
        exact=("mixed records", "replay"),
        how_to_test="compare neighbouring datasets with replay(), and review that no layer or loss "
        "mixes records",
        of="records",
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
            "clip norm schedule",
            "update norms",
            "single clients",
            "honest updates",
            "nan update",
            "zero update",
            "clip norm direction",
        ),
        exact=("record contributions",),
        how_to_test="send canaries through the clipper: with gradients of single records (no "
        'ghost clipping) CanaryAudit(..., inject="sample"); wrap(..., clipped_grad=...) in JAX; in '
        'an own loop, canary rows among the gradients to be clipped, Recorder(inserted="before '
        'clipping")',
    ),
    _Kind(
        name="weighting",
        passed="weighting",
        deciding=("client weight",),
        how_to_test="audit an aggregator that can be copied, or let clients report different "
        "weights",
        of="rounds",
    ),
    _Kind(
        name="adjacency",
        deciding=("adjacency",),
        how_to_test="audit gradient-space canaries, or claim add-remove neighbours",
        needed=True,
    ),
    _Kind(
        name="privacy unit",
        deciding=("privacy unit",),
        how_to_test='insert whole users as canaries and declare it, Recorder(..., unit="user")',
        needed=True,
    ),
    _Kind(
        name="trained rows",
        passed="",
        deciding=("rows per record",),
        others=("training loader", "repeated batches", "unused batches"),
        how_to_test="give the audit the loader that make_private returned: data_loader=",
    ),
    _Kind(
        name="steps",
        deciding=("step count",),
        others=("steps after epsilon was read", "recording"),
        how_to_test="say how many steps were accounted for: PrivacyClaim(steps=...)",
    ),
    _Kind(
        name="accountant",
        deciding=("accounted epsilon",),
        others=("accounting of the clipping count", "sensitivity"),
        how_to_test="claim noise_multiplier=, sampling_rate= and steps=, or attach to the run",
    ),
    _Kind(
        name="weights",
        deciding=("weights moved by the release",),
        others=(
            "loaded optimizer state",
            "weights between steps",
            "closure",
            "learning rate schedule",
        ),
        how_to_test="use an optimizer that treats coordinates apart, such as SGD or Adam; "
        "elsewhere compare neighbouring datasets with replay(), and review what is done with the "
        "noisy gradient, such as a division by the size of the batch",
    ),
    _Kind(
        name="trained parameters",
        deciding=("parameters outside the optimizer",),
        others=(
            "trained parameters without canaries",
            "weights that never train",
            "frozen parameters",
        ),
        how_to_test="give the audit the model: CanaryAudit(optimizer, model=model)",
    ),
)


def scope_of(findings: Iterable[Finding], exercised: Sequence[str]) -> tuple[Part, ...]:
    """Every part of the training: tested and fine, tested and broken, or not tested.

    Args:
        findings: The checks, decided.
        exercised: Parts the canaries went through; none where only scores are left of the run.
    """
    by_check = {item.check: item for item in findings}
    elsewhere = "records" if set(THROUGH_AGGREGATOR) <= set(exercised) else "rounds"
    # What neither canaries nor facts could tell is no part of this run.
    met = [
        kind
        for kind in _KINDS
        if kind.of != elsewhere and (kind.passed or any(name in by_check for name in kind.deciding))
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
            how_to_test=_how_to_test(kind, weak, found, exercised),
            met=kind.needed or (went and bool(kind.deciding) and bool(kind.passed or weak)),
        )
    # What canaries say of a part that they did not go through is said elsewhere.
    faults = [item.sees for item in ran if item.sees and (went or item.check in kind.exact)]
    return Part(name=kind.name, status="fine", smallest="; ".join(faults[:_MOST_FAULTS]))


def _how_to_test(
    kind: _Kind, weak: Sequence[Finding], found: Sequence[Finding], exercised: Sequence[str]
) -> str:
    """The next step where a part was not tested, or by checks without power."""
    if kind.needed and found:
        return found[0].summary.removeprefix("not run: ").rstrip(".")
    if weak and weak[0].sees:
        return f"take more canaries or steps, since only {weak[0].sees} shows"
    if weak:
        remedy = weak[0].remedy
        return f"{remedy[:1].lower()}{remedy[1:].rstrip('.')}"
    return kind.how_to_test if exercised or not kind.passed else _ONLY_SCORES


def _with_power(finding: Finding) -> bool:
    """Whether a check that ran would have seen a fault that matters."""
    return finding.visible is None or finding.visible <= _WITH_POWER
