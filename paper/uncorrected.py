"""The guessing baselines as the paper's public code ran them. NOT VALID BOUNDS.

Both take the best over all thresholds, chosen on the very scores they test, at the full error for
each: nothing is paid for the choice, so these numbers exceed the truth more often than they say.
They are here to reproduce published figures, and are exported nowhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from askgauss.scores import CanaryScores
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts

__all__ = ["uncorrected_fdp", "uncorrected_one_run"]


def uncorrected_one_run(scores: CanaryScores, *, delta: float, confidence: float) -> float:
    """Steinke, Nasr and Jagielski's bound at its best threshold, nothing paid for choosing it."""
    return max(
        guess_counts.epsilon_from_counts(counts, delta=delta, confidence=confidence)
        for counts in _hull(scores)
    )


def uncorrected_fdp(scores: CanaryScores, *, delta: float, confidence: float) -> float:
    """Mahloujifar, Melis and Chaudhuri's bound at its best threshold, nothing paid for choosing."""
    return max(
        guess_counts.gaussian_from_counts(counts, delta=delta, confidence=confidence)
        for counts in _hull(scores)
    )


def _hull(scores: CanaryScores) -> list[GuessCounts]:
    """The guesses at the thresholds on the concave hull of the ROC curve."""
    order = np.argsort(-scores.score, kind="stable")
    correct: NDArray[np.int64] = np.cumsum(scores.member[order])
    points = np.stack([np.arange(1, len(scores) + 1) - correct, correct], axis=1).tolist()
    hull: list[list[int]] = [[0, 0]]
    for point in points:
        while len(hull) > 1 and _left_turn(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return [
        GuessCounts(canaries=len(scores), guesses=wrong + right, correct=right)
        for wrong, right in hull[1:]
    ]


def _left_turn(first: list[int], second: list[int], third: list[int]) -> bool:
    across = (second[0] - first[0]) * (third[1] - first[1])
    return across >= (second[1] - first[1]) * (third[0] - first[0])
