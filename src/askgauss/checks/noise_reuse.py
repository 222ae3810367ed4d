"""Reuse of noise: whether any noise of the run occurs again, wherever the run uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss.checks.context import Context
from askgauss.checks.findings import fact, not_run
from askgauss.checks.registry import NOISE_FRESHNESS, check
from askgauss.recording.noise_sample import WIDTH, NoiseSample, ReuseFacts
from askgauss.results import Consequence, Finding

__all__ = [
    "ComparedNoise",
    "compared_by_content",
    "found_again",
    "in_row",
    "in_step",
    "noise_reused",
    "repeated_exactly",
    "reused_where_seen",
]

# Values used again of which three are kept, with all their neighbours, nearly always.
_SURELY = 16
_FEWEST = 64
# Steps that are compared where only some coordinates are seen; a few tenths of a second.
_MOST_STEPS = 4096
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNoise:
    """Noise values that were sampled by their content and compared with each other.

    Attributes:
        reuse: What was found.
        place: Step, tensor and position in words.
    """

    reuse: ReuseFacts
    place: Callable[[Sequence[int]], str]


@check(
    "noise reused at other coordinates",
    part=NOISE_FRESHNESS,
    decides=True,
    explains="noise of related nodes, noise after restarts, serial correlation, repeated noise, "
    "whole-run correlation, noise spectrum, shared noise, common noise, noise by "
    "coordinate, noise by tensor, noise extremes, noise scale, noise shape, noise by "
    "step, values without noise, even contribution, carry-over, duplicate scores",
    after_resume=True,
)
def noise_reused(compared: ComparedNoise) -> Finding | None:
    """Whether any noise was used again; at the same coordinates it is repeated noise."""
    reuse = compared.reuse
    if reuse.coarse:
        return not_run("noise of full float precision, in which no two values are equal")
    if not reuse.kept:
        return not_run("float32 or float64 noise that is added to the clipped sum")
    if repeated_exactly(reuse):
        return None
    smallest = max(_FEWEST, math.ceil(_SURELY * reuse.values / reuse.kept))
    return found_again(
        compared,
        sees=f"{smallest:,} of {reuse.values:,} noise values used again anywhere in "
        f"{_percent(reuse.share)} of the model; values read singly from a table of up to "
        f"{_rounded_down(reuse.table):,} entries",
    )


def found_again(
    compared: ComparedNoise, *, sees: str = "", visible: float | None = None
) -> Finding:
    """Whether noise values occur again, and where."""
    reuse = compared.reuse
    return fact(
        reuse.in_runs or reuse.by_value,
        _found(reuse, compared.place),
        consequence=Consequence.BREACH,
        measured=float(reuse.matches),
        claimed=0.0,
        remedy=_REMEDY,
        sees=sees,
        visible=visible,
    )


@noise_reused.variant
def reused_where_seen(context: Context) -> Finding | None:
    """The same where only watched coordinates and held-out canaries show the noise.

    Tensors of one size are watched at equal positions, so that noise of one that is used again in
    another, in whatever step, is the same row of numbers. Values that occur again at other places
    than these show where both places are seen.
    """
    if not context.exact:
        return None
    reuse, columns = _compared_where_seen(context)
    if repeated_exactly(reuse):
        return None
    share = min(1.0, columns / (context.facts.places or math.inf))
    # Equal values are no news on a grid, as of sums of whole numbers, or in a short format.
    short = any(name in _SHORT for name in context.facts.precision)
    reuse = replace(reuse, share=share, coarse=reuse.coarse or short or context.lattice > 0.0)
    compared = ComparedNoise(reuse=reuse, place=in_step(context.facts.tensors))
    if reuse.coarse or not reuse.kept:
        return noise_reused(compared)
    return found_again(
        compared,
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
