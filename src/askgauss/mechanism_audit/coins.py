"""Whether the outputs can be independent draws at all: two ways in which samplers go wrong."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from askgauss.mechanism_audit.outputs import SIDES, Outputs
from askgauss.mechanism_audit.scores import keys

__all__ = ["same_coins"]


def same_coins(seen: list[list[Outputs]], fresh: list[Outputs], error: float) -> str:
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


def _repeated(before: Outputs, after: Outputs, error: float) -> bool:
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


def _coupled(data: Outputs, neighbour: Outputs, error: float) -> bool:
    """Whether the k-th output of one side goes with the k-th of the other, in any column."""
    width = min(data.values.shape[1], neighbour.values.shape[1], 64)
    count = len(data)
    if count < 30:
        return False
    for column in range(width):
        ours, theirs = _ranks(data.values[:, column]), _ranks(neighbour.values[:, column])
        spread = math.sqrt(float((ours**2).sum() * (theirs**2).sum()))
        if spread == 0.0:
            continue
        # Under independence the rank correlation times the root of the number is nearly normal;
        # twice as far out as the error asks leaves room for where it is not.
        score = float((ours * theirs).sum()) / spread * math.sqrt(count - 1.0)
        if abs(score) > 2.0 * -float(ndtri(error / (2.0 * width))):
            return True
    return False


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred ranks; equal numbers share theirs, and nan is beyond all numbers."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * (counts - 1.0))[places]
    return np.asarray(ranks - ranks.mean())
