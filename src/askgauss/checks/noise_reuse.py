"""Whether any noise of the run was used again, wherever the run uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from askgauss.checks.context import Context
from askgauss.checks.findings import fact, not_run
from askgauss.recording.facts import ReuseFacts
from askgauss.recording.facts.noise_sample import WIDTH, NoiseSample
from askgauss.results import Consequence, Finding

__all__ = [
    "compared_by_content",
    "in_row",
    "in_step",
    "repeated_exactly",
    "reused_noise",
    "reused_where_seen",
]

_NAME = "noise reused at other coordinates"
_REPEATED = "repeated noise"
# Values used again of which three are kept, with all their neighbours, nearly always.
_SURELY = 16
_FEWEST = 64
# Steps that are compared where only some coordinates are seen; a few tenths of a second.
_MOST_STEPS = 4096
# Noise that is used twice at the same coordinates, or twice in a step, has checks of its own,
# which fail at such a p-value whatever else was tested.
_CERTAIN = 1e-9
_OTHER_REUSE = (_REPEATED, "shared noise")
_SHORT = ("bfloat16", "float16")
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
        f"{_percent(reuse.share)} of the model; values read singly from a table of up to "
        f"{_rounded_down(reuse.table):,} entries",
    )


def reused_where_seen(context: Context, others: Iterable[Finding]) -> Finding | None:
    """The finding, where only watched coordinates and held-out canaries show the noise.

    Tensors of one size are watched at equal positions, so that noise of one that is used again in
    another, in whatever step, is the same row of numbers. Values that occur again at other places
    than these show where both places are seen.

    Args:
        context: The run.
        others: The other checks of its noise, before the gate.
    """
    if not context.exact or any(
        item.check in _OTHER_REUSE and item.p_value is not None and item.p_value < _CERTAIN
        for item in others
    ):
        return None
    reuse, columns = _compared_where_seen(context)
    if repeated_exactly(reuse):
        return None
    share = min(1.0, columns / (context.facts.places or math.inf))
    # Equal values are no news on a grid, as of sums of whole numbers, or in a short format.
    short = any(name in _SHORT for name in context.facts.precision)
    reuse = replace(reuse, share=share, coarse=reuse.coarse or short or context.lattice > 0.0)
    if reuse.coarse or not reuse.kept:
        return reused_noise(reuse, in_step(context.facts.tensors))
    return fact(
        _NAME,
        reuse.in_runs or reuse.by_value,
        _found(reuse, in_step(context.facts.tensors)),
        consequence=Consequence.BREACH,
        measured=float(reuse.matches),
        claimed=0.0,
        remedy=_REMEDY,
        sees=f"noise used again among the {columns:,} observed coordinates"
        f"{_of_first(context.transcript.number_of_steps)}, {_percent(share)} of the model",
        visible=1.0 - share,
    )


def _compared_where_seen(context: Context) -> tuple[ReuseFacts, int]:
    """Noise of coordinates that are never planted, compared with itself, and their number."""
    values, tensor = context.quiet
    values = values[:_MOST_STEPS, np.argsort(tensor, kind="stable")]
    sizes = np.bincount(tensor, minlength=1)
    sample = NoiseSample(sizes.tolist())
    rows, tensors = _watched_rows(context)
    for step, row in enumerate(values):
        sample.add_row(row, step)
        if tensors.size:
            # One place a tensor: where its columns begin.
            place = np.cumsum([0, *sizes])[tensors]
            sample.add(rows[step], step=step, place=place, leads=tensors.size)
    return sample.facts(), values.shape[1]


def _of_first(steps: int) -> str:
    return f" in the first {_MOST_STEPS:,} steps" if steps > _MOST_STEPS else ""


def _watched_rows(context: Context) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sizes of the first eight watched values of every tensor, as windows, and their tensors."""
    transcript = context.transcript
    values = np.abs(transcript.watch_values[:_MOST_STEPS])
    values /= context.schedule[: len(values), None]
    watched = transcript.watch_tensor[: values.shape[1]]
    tensors, first, count = np.unique(watched, return_index=True, return_counts=True)
    whole = count >= WIDTH - 1
    # The middle of a window is its first value once more.
    order = np.insert(np.arange(WIDTH - 1), WIDTH // 2, 0)
    return values[:, first[whole][:, None] + order], tensors[whole]


def _found(reuse: ReuseFacts, place: Callable[[Sequence[int]], str]) -> str:
    if reuse.in_runs:
        places = [place(item) for item in (reuse.first, reuse.again)]
        where = "at other coordinates" if reuse.elsewhere else "at the same coordinates"
        return (
            f"{reuse.matches:,} of {reuse.kept:,} sampled noise values occur again {where}, with "
            f"the same neighbours: noise of {places[0]} was used again in {places[1]}."
        )
    if reuse.by_value and reuse.by_place:
        return (
            f"noise of one coordinate was used again at another {_steps(reuse.places_lag)} later, "
            f"{reuse.places_equal:,} times: values are used again in another order."
        )
    if reuse.by_value and reuse.by_lag:
        steps = f"that are {_steps(reuse.lag)} apart" if reuse.lag else "of the same step"
        return (
            f"{reuse.lag_equal:,} pairs of equal noise values {steps}, "
            f"{reuse.lag_nearly / 15.0:,.1f} expected: values are used again in another order."
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


def _steps(number: int) -> str:
    return f"{number:,} step{'s' * (number != 1)}"


def _rounded_down(number: int) -> int:
    """To one digit."""
    unit = int(10 ** (len(str(number)) - 1))
    return number // unit * unit


def _percent(share: float) -> str:
    """A share rounded down, so that a part is never called the whole."""
    return f"{math.floor(100.0 * share):d} %" if share >= 0.01 else "less than 1 %"
