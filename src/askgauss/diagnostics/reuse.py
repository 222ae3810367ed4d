"""Whether any noise of the run was used again, wherever the run uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from askgauss.diagnostics.outcomes import fact, not_run
from askgauss.results import Consequence, Finding
from askgauss.witness import ReuseFacts

__all__ = ["compared_by_content", "in_row", "in_step", "repeated_exactly", "reused_noise"]

_NAME = "noise reused at other coordinates"
_REPEATED = "repeated noise"
# Values used again of which three are kept, with all their neighbours, nearly always.
_SURELY = 16
_FEWEST = 64
_REMEDY = (
    "Draw new noise for every coordinate of every step: one generator that is never seeded again, "
    "or a key of its own for every tensor and step (split it; do not add step and layer)."
)


def compared_by_content(reuse: ReuseFacts | None) -> bool:
    """Whether all noise that passed by was compared with itself."""
    return reuse is not None and reuse.kept > 0 and not reuse.coarse


def repeated_exactly(reuse: ReuseFacts | None) -> bool:
    """Whether noise came back at the same coordinates, which then needs no other test."""
    return reuse is not None and reuse.in_runs and not reuse.elsewhere


def reused_noise(reuse: ReuseFacts, place: Callable[[Sequence[int]], str]) -> Finding:
    """The finding, of values that were sampled by their content.

    Args:
        reuse: What was found.
        place: Step, tensor and position in words.
    """
    if reuse.coarse:
        return not_run(_NAME, "noise of full float precision, in which no two values are equal")
    if not reuse.kept:
        return not_run(_NAME, "float32 or float64 noise that is added to the clipped sum")
    if repeated_exactly(reuse):
        return fact(
            _REPEATED,
            True,
            _found(reuse, place),
            consequence=Consequence.BREACH,
            measured=float(reuse.matches),
            claimed=0.0,
            remedy=_REMEDY,
        )
    smallest = max(_FEWEST, math.ceil(_SURELY * reuse.values / reuse.kept))
    return fact(
        _NAME,
        reuse.in_runs or reuse.by_value,
        _found(reuse, place),
        consequence=Consequence.BREACH,
        measured=float(reuse.matches),
        claimed=0.0,
        remedy=_REMEDY,
        sees=f"{smallest:,} of {reuse.values:,} noise values used again anywhere in "
        f"{_percent(reuse.share)} of the model",
    )


def _found(reuse: ReuseFacts, place: Callable[[Sequence[int]], str]) -> str:
    if reuse.in_runs:
        places = [place(item) for item in (reuse.first, reuse.again)]
        where = "at other coordinates" if reuse.elsewhere else "at the same coordinates"
        return (
            f"{reuse.matches:,} of {reuse.kept:,} sampled noise values occur again {where}, with "
            f"the same neighbours: noise of {places[0]} was used again in {places[1]}."
        )
    if reuse.by_value:
        chance = reuse.nearly / 15.0
        return (
            f"{reuse.equal:,} pairs of equal noise values, {chance:,.0f} expected: values are used "
            "again in another order, or read from a table."
        )
    return (
        f"no noise was used again: {reuse.kept:,} of {reuse.values:,} noise values, in "
        f"{_percent(reuse.share)} of the model, were compared with each other."
    )


def in_step(tensors: Sequence[str]) -> Callable[[Sequence[int]], str]:
    """Places of a run whose every step has noise of its own."""

    def place(found: Sequence[int]) -> str:
        step, tensor, _ = found
        name = tensors[tensor] if 0 <= tensor < len(tensors) else f"tensor {tensor}"
        return f"step {step + 1:,} in {name}"

    return place


def in_row(found: Sequence[int]) -> str:
    """Places of correlated noise that was taken apart."""
    return f"row {found[0]} of the strategy"


def _percent(share: float) -> str:
    """A share rounded down, so that a part is never called the whole."""
    return f"{math.floor(100.0 * share):d} %"
