"""Tests of noise against other noise: the most similar of many, and nodes of a tree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss.checks.tails import correlation_tail, ratio_p_value, skewed_tail
from askgauss.recording.transcript import PieceSums
from askgauss.results import Consequence

__all__ = [
    "NodeCorrelation",
    "most_similar",
    "node_correlations",
    "returning",
    "same_noise",
    "squared_cosines_p_value",
]

# Two noises that correlate this much are one noise, with something added.
_SAME_NOISE = 0.7
# Rows that are all compared with each other; of more, so many pairs are.
_COMPARED_ROWS = 4096
_FEWEST_COMPARED = 64
# Rows whose squared cosines are added up, at most.
_ADDED_UP = 512
# Distances at which a series is compared with itself, and the fewest pairs that say anything.
_LAGS = 512
_FEWEST_PAIRS = 8


def same_noise(correlation: float) -> Consequence:
    """What it means that two noises correlate this much."""
    return Consequence.BREACH if abs(correlation) > _SAME_NOISE else Consequence.INVALIDATES


def most_similar(rows: NDArray[np.float64]) -> tuple[float, int, int, float] | None:
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

    Sums over all coordinates show where noise is used again even if it comes back in other places.
    At every distance the pairs fall into two sets in which no value occurs twice. In each of them
    the correlation of independent Gaussian values of mean zero has its exact distribution.

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


@dataclass(frozen=True, slots=True)
class NodeCorrelation:
    """How much the noises of some nodes correlate.

    Attributes:
        between: Which nodes, in words.
        correlation: How much their noises correlate.
        p_value: Of "not at all", two-sided.
    """

    between: str
    correlation: float
    p_value: float


def node_correlations(pieces: PieceSums, rows: NDArray[np.float64]) -> list[NodeCorrelation]:
    """Every kind of correlation that the noises of related nodes may have.

    Args:
        pieces: The nodes.
        rows: Their noise, one row a node and one column a coordinate.
    """
    found = [_pooled(between, rows, pairs) for between, pairs in _pairs(pieces) if len(pairs)]
    levels = [("all nodes together", np.ones(len(rows), dtype=np.bool_))]
    levels.append(("all leaves together", pieces.level == 0))
    for between, chosen in levels:
        if np.count_nonzero(chosen) >= 2 and rows[chosen].any():
            found.append(_of_the_sum(between, rows[chosen]))
    if len(rows) >= 2:
        found.append(_with_those_before(rows))
    # Noise that comes back at other coordinates shows in the sums over all of them.
    if (again := returning(pieces.total)) is not None:
        correlation, lag, p_value = again
        found.append(
            NodeCorrelation(f"sums over all coordinates, {lag} nodes apart,", correlation, p_value)
        )
    return found


def _pairs(pieces: PieceSums) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Rows of nodes that are related, by how they are."""
    nodes = zip(pieces.tree.tolist(), pieces.level.tolist(), pieces.index.tolist(), strict=True)
    place = {node: row for row, node in enumerate(nodes)}
    parents = [
        (row, place[number, level + 1, index >> 1])
        for (number, level, index), row in place.items()
        if (number, level + 1, index >> 1) in place
    ]
    siblings = [
        (row, place[number, level, index ^ 1])
        for (number, level, index), row in place.items()
        if index % 2 == 0 and (number, level, index ^ 1) in place
    ]
    order = sorted(place)
    neighbours = [
        (place[one], place[other])
        for one, other in itertools.pairwise(order)
        if one[:2] == other[:2] and (one[2] ^ other[2]) != 1
    ]
    for between, pairs in (
        ("nodes and their parents", parents),
        ("siblings", siblings),
        ("neighbours in a level", neighbours),
    ):
        yield between, np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _pooled(between: str, rows: NDArray[np.float64], pairs: NDArray[np.int64]) -> NodeCorrelation:
    """The correlation over all pairs of a kind; each product has mean zero."""
    one, other = rows[pairs[:, 0]].ravel(), rows[pairs[:, 1]].ravel()
    norm = math.sqrt(float(one @ one)) * math.sqrt(float(other @ other))
    correlation = float(one @ other) / norm if norm else 0.0
    # A Gaussian tail: above that of correlations of few pairs.
    return NodeCorrelation(
        between, correlation, 2.0 * float(ndtr(-abs(correlation) * math.sqrt(one.size)))
    )


def _of_the_sum(between: str, rows: NDArray[np.float64]) -> NodeCorrelation:
    """The variance of sums over the nodes against that of single ones, as a correlation.

    The sum and what is left of the nodes without their mean are independent, and so the ratio of
    their variances is distributed as F exactly.
    """
    nodes, columns = rows.shape
    total = rows.sum(axis=0)
    of_sum = float(total @ total) / nodes
    rest = float((rows**2).sum()) - of_sum
    freedom = columns, (nodes - 1) * columns
    ratio = (of_sum / freedom[0]) / (rest / freedom[1]) if rest > 0.0 else math.inf
    # With equal correlations among the nodes the sum varies 1 + (n - 1) correlation times as much.
    mean_square = (of_sum + rest) / (nodes * columns)
    correlation = (of_sum / columns / mean_square - 1.0) / (nodes - 1)
    return NodeCorrelation(
        between, correlation, ratio_p_value(ratio, *freedom) if rest > 0.0 else 0.0
    )


def _with_those_before(rows: NDArray[np.float64]) -> NodeCorrelation:
    """The node that says most about the sum of all that were released before it."""
    before = np.cumsum(rows, axis=0)[:-1]
    after = rows[1:]
    norms = np.sqrt((before**2).sum(axis=1)) * np.sqrt((after**2).sum(axis=1))
    products = np.einsum("ij,ij->i", before, after)
    correlations = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0.0)
    worst = int(np.argmax(np.abs(correlations)))
    correlation = min(max(float(correlations[worst]), -1.0), 1.0)
    p_value = 2.0 * correlations.size * correlation_tail(abs(correlation), rows.shape[1])
    return NodeCorrelation("a node and the sum of all before it", correlation, min(1.0, p_value))
