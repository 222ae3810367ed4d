"""The most alike two of many noises: is any of them used twice?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from askgauss.checks.tails import correlation_tail, skewed_tail
from askgauss.results import Consequence

__all__ = ["most_alike", "returning", "same_noise", "squared_cosines_p_value"]

# Two noises that correlate this much are one noise, with something added.
_SAME_NOISE = 0.7
# Rows that are all compared with each other; of more, so many pairs are.
_COMPARED_ROWS = 4096
_FEWEST_COMPARED = 64
# Rows whose squared cosines are added up, at most.
_ADDED_UP = 512
# Distances at which a series is compared with itself, and the fewest pairs that tell.
_LAGS = 512
_FEWEST_PAIRS = 8


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


def squared_cosines_p_value(rows: NDArray[np.float64]) -> tuple[float, float]:
    """The mean squared cosine of all pairs of rows over what chance gives, and its p-value.

    Where every row has a little in common with all others no pair stands out, but their sum does.
    Cosines of independent directions in d dimensions are independent pair by pair, with squares of
    mean 1/d and variance 2 (d - 1) / (d^2 (d + 2)); three of them around a triangle are not, which
    gives the sum its skewness, 4/d for many rows.
    """
    norms = np.sqrt((rows**2).sum(axis=1))
    alive = rows[norms > 0.0] / norms[norms > 0.0, None]
    alive = alive[:: -(-len(alive) // _ADDED_UP)] if len(alive) else alive
    count, dimension = len(alive), rows.shape[1]
    if count < 2 or dimension < 2:
        return 1.0, 1.0
    gram = alive @ alive.T if count <= dimension else alive.T @ alive
    pairs = 0.5 * count * (count - 1.0)
    total = 0.5 * (float((gram**2).sum()) - count)
    d = float(dimension)
    variance = 2.0 * (d - 1.0) / (d * d * (d + 2.0))
    fourth, sixth = 3.0 / (d * (d + 2.0)), 15.0 / (d * (d + 2.0) * (d + 4.0))
    single = sixth - 3.0 * fourth / d + 2.0 / d**3
    triangle = 4.0 * (d - 1.0) / (d**3 * (d + 2.0) ** 2)
    third = pairs * single + 2.0 * pairs * (count - 2.0) * triangle
    deviation = math.sqrt(pairs * variance)
    score = (total - pairs / d) / deviation
    return total * d / pairs, skewed_tail(score, third / deviation**3)


def returning(series: NDArray[np.float64]) -> tuple[float, int, float] | None:
    """How much a series correlates with itself at the worst distance, which, and the p-value.

    Sums over all coordinates say where noise is used again even if it comes back in other places.
    At every distance the pairs fall into two sets in which no value occurs twice. In each of them
    the correlation of independent Gaussian values of mean zero has its exact law.

    Returns:
        Correlation, distance and p-value among all distances; None where there are too few values.
    """
    count, worst = series.size, (0.0, 1, 1.0)
    lags = min(count - _FEWEST_PAIRS, count // 2, _LAGS)
    if lags < 1:
        return None
    for lag in range(1, lags + 1):
        first = np.arange(count - lag)
        odd = first // lag % 2 == 1
        for chosen in (first[~odd], first[odd]):
            one, other = series[chosen], series[chosen + lag]
            norm = math.sqrt(float(one @ one) * float(other @ other))
            if chosen.size < _FEWEST_PAIRS or norm == 0.0:
                continue
            correlation = min(max(float(one @ other) / norm, -1.0), 1.0)
            p_value = 2.0 * correlation_tail(abs(correlation), chosen.size)
            if p_value < worst[2]:
                worst = correlation, lag, p_value
    return worst[0], worst[1], min(1.0, 2.0 * lags * worst[2])
