"""Whether the outputs can be independent draws at all: two ways in which samplers go wrong."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from askgauss.mechanism_audit.output_scores import keys
from askgauss.mechanism_audit.outputs import SIDES, OutputTable

__all__ = ["same_coins"]


def same_coins(seen: list[list[OutputTable]], fresh: list[OutputTable], error: float) -> str:
    """What is wrong with the draws, in a sentence; empty where nothing is.

    Args:
        seen: Outputs of earlier batches, side by side.
        fresh: Outputs of this batch, side by side.
        error: Probability of a sentence were all draws independent, in all of twenty batches.
    """
    for side, outputs in enumerate(fresh):
        if seen[side] and _repeated(seen[side][0], outputs, error):
            return (
                f"two calls of sample gave the same outputs on {SIDES[side]}: they are no fresh "
                "draws. Let the mechanism draw anew in every call, or take a parameter seed."
            )
    if _coupled(fresh[0], fresh[1], error):
        return (
            "outputs of the two sides rise and fall together, so they were drawn with the same "
            "coins: a pair of them is not independent. Draw each side with a generator of its own, "
            "or take a parameter seed."
        )
    return ""


def _repeated(before: OutputTable, after: OutputTable, error: float) -> bool:
    """Whether a batch begins as an earlier one did, where chance would not have it so."""
    width = max(before.values.shape[1], after.values.shape[1])
    first, second = keys(before, width), keys(after, width)
    count = min(first.size, second.size)
    if not np.array_equal(first[:count], second[:count]):
        return False
    _, counts = np.unique(first, return_counts=True)
    # Chance that two outputs are equal, by the pairs that are, and never taken below what so few
    # pairs can tell.
    pairs = first.size * (first.size - 1) / 2.0
    equal = (float((counts * (counts - 1) / 2.0).sum()) + 3.0) / pairs
    return count * math.log(min(equal, 1.0)) < math.log(error) and equal < 0.9


def _coupled(data: OutputTable, neighbour: OutputTable, error: float) -> bool:
    """Whether the k-th output of one side goes with the k-th of the other, in any column.

    Each side's column is cut in two as evenly as it can be. How many outputs are above both cuts is
    hypergeometric if the sides are independent, exactly, also for rare and nearly constant outputs.
    """
    width = min(data.values.shape[1], neighbour.values.shape[1], 64)
    if len(data) < 30:
        return False
    return any(
        _chance_of_overlap(_upper(data.values[:, column]), _upper(neighbour.values[:, column]))
        < error / width
        for column in range(width)
    )


def _upper(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The outputs above the most even cut; nan is beyond all numbers."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts)[:-1]
    if not below.size:
        return np.zeros(values.size, dtype=np.bool_)
    return np.asarray(places > int(np.abs(below - 0.5 * values.size).argmin()))


def _chance_of_overlap(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Two-sided p-value of Fisher's exact test that two sets of outputs are independent."""
    count, first, second = ours.size, int(ours.sum()), int(theirs.sum())
    both = np.arange(max(0, first + second - count), min(first, second) + 1)
    logs = _log_binomial(first, both) + _log_binomial(count - first, second - both)
    chances = np.exp(logs - _log_binomial(count, np.array([second])))
    found = int((ours & theirs).sum()) - int(both[0])
    return min(1.0, 2.0 * float(min(chances[: found + 1].sum(), chances[found:].sum())))


def _log_binomial(count: int, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(count + 1) - gammaln(chosen + 1) - gammaln(count - chosen + 1))
