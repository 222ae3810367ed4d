"""Noise that nodes of a tree have in common: with parents, neighbours, or all that came before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from askgauss.checks.pairwise_similarity import returning
from askgauss.checks.tails import correlation_tail, ratio_p_value
from askgauss.recording.linear_transcript import PieceSums

__all__ = ["Tie", "ties_between_nodes"]


@dataclass(frozen=True, slots=True)
class Tie:
    """What some nodes have in common.

    Attributes:
        between: Which nodes, in words.
        correlation: How much their noises correlate.
        p_value: Of "not at all", two-sided.
    """

    between: str
    correlation: float
    p_value: float


def ties_between_nodes(pieces: PieceSums, rows: NDArray[np.float64]) -> list[Tie]:
    """Every kind of tie that these nodes may have.

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
        found.append(Tie(f"sums over all coordinates, {lag} nodes apart,", correlation, p_value))
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


def _pooled(between: str, rows: NDArray[np.float64], pairs: NDArray[np.int64]) -> Tie:
    """The correlation over all pairs of a kind; each product has mean zero."""
    one, other = rows[pairs[:, 0]].ravel(), rows[pairs[:, 1]].ravel()
    norm = math.sqrt(float(one @ one)) * math.sqrt(float(other @ other))
    correlation = float(one @ other) / norm if norm else 0.0
    # A Gaussian tail: above that of correlations of few pairs.
    return Tie(between, correlation, 2.0 * float(ndtr(-abs(correlation) * math.sqrt(one.size))))


def _of_the_sum(between: str, rows: NDArray[np.float64]) -> Tie:
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
    return Tie(between, correlation, ratio_p_value(ratio, *freedom) if rest > 0.0 else 0.0)


def _with_those_before(rows: NDArray[np.float64]) -> Tie:
    """The node that says most about the sum of all that were released before it."""
    before = np.cumsum(rows, axis=0)[:-1]
    after = rows[1:]
    norms = np.sqrt((before**2).sum(axis=1)) * np.sqrt((after**2).sum(axis=1))
    products = np.einsum("ij,ij->i", before, after)
    correlations = np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0.0)
    worst = int(np.argmax(np.abs(correlations)))
    correlation = min(max(float(correlations[worst]), -1.0), 1.0)
    p_value = 2.0 * correlations.size * correlation_tail(abs(correlation), rows.shape[1])
    return Tie("a node and the sum of all before it", correlation, min(1.0, p_value))
