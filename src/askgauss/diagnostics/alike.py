"""The most alike two of many noises: is any of them used twice?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from askgauss.diagnostics.tails import correlation_tail
from askgauss.results import Consequence

__all__ = ["most_alike", "same_noise"]

# Two noises that correlate this much are one noise, with something added.
_SAME_NOISE = 0.7
# Rows that are all compared with each other; of more, so many pairs are.
_COMPARED_ROWS = 4096
_FEWEST_COMPARED = 64


def same_noise(correlation: float) -> Consequence:
    """What it means that two noises correlate this much."""
    return Consequence.BREACH if abs(correlation) > _SAME_NOISE else Consequence.INVALIDATES


def most_alike(rows: NDArray[np.float64]) -> tuple[float, int, int, float] | None:
    """The most correlated pair of rows, its places, and the p-value among all pairs.

    Of very many rows, evenly spaced ones are compared with all: noise that starts over repeats in
    a great many of them.
    """
    norms = np.sqrt((rows**2).sum(axis=1))
    alive = np.flatnonzero(norms > 0.0)
    if alive.size < 2:
        return None
    unit = (rows[alive] / norms[alive, None]).astype(np.float32)
    compared = max(_COMPARED_ROWS**2 // max(alive.size, _COMPARED_ROWS), _FEWEST_COMPARED)
    chosen = np.arange(0, alive.size, -(-alive.size // compared))
    whole = chosen.size == alive.size
    best, place, block = 0.0, (0, 1), 1024
    for start in range(0, chosen.size, block):
        these = chosen[start : start + block]
        left = unit[these]
        # Among all rows, every pair need be looked at once only.
        for other in range(start if whole else 0, alive.size, block):
            gram = left @ unit[other : other + block].T
            itself = these - other
            inside = np.flatnonzero((itself >= 0) & (itself < gram.shape[1]))
            gram[inside, itself[inside]] = 0.0
            for flat in (int(np.argmax(gram)), int(np.argmin(gram))):
                row, column = divmod(flat, gram.shape[1])
                if abs(gram[row, column]) > abs(best):
                    best, place = float(gram[row, column]), (int(these[row]), other + column)
    pairs = chosen.size * (alive.size - (chosen.size + 1) / 2)
    best = min(max(best, -1.0), 1.0)  # single precision may overshoot
    first, second = sorted(int(alive[index]) for index in place)
    p_value = min(1.0, 2.0 * pairs * correlation_tail(abs(best), rows.shape[1]))
    return best, first, second, p_value
