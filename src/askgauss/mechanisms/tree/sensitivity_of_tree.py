"""The sensitivity of a tree over all ways to take part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import RecordingError
from askgauss.mechanisms.tree.shape import check_leaf, prefix_nodes, tree_length

__all__ = ["check_participation", "sensitivity"]


def sensitivity(
    steps: int,
    *,
    participations: int = 1,
    min_separation: int = 1,
    restart_every: int | None = None,
    completion: bool = False,
) -> float:
    """How far one record can move all node sums together, in units of the clip norm.

    Its square is the sum, over all complete nodes, of the squared number of times the record enters
    a node; the largest over every way to participate that the arguments allow is found exactly.

    Args:
        steps: Leaves in all; any number.
        participations: Most leaves one record enters, over all trees.
        min_separation: Least distance between two of them; 1 allows neighbouring leaves.
        restart_every: Leaves of one tree; None for a single tree.
        completion: Trees that are left are completed first, see `TreeNoise`.

    Returns:
        The l2 sensitivity; for one participation in one tree ``sqrt(levels(steps))``.

    Assumes:
        A record adds a vector of norm at most the clip norm to each leaf it enters, or nothing
        to any in the neighbouring data.

    Examples:
        >>> round(sensitivity(128) ** 2)
        8
        >>> round(sensitivity(10_000, participations=100, min_separation=100,
        ...                   restart_every=2_000, completion=True) ** 2)
        4129
    """
    period = tree_length(steps, restart_every, completion)
    _validate.integer(1, participations=participations, min_separation=min_separation)
    gap = min(int(min_separation), steps) - 1
    most = min(int(participations), -(-steps // (gap + 1)))
    join = partial(_join, gap=gap if most > 1 else 0, most=most)

    @cache
    def complete(level: int) -> _Segment:
        if level == 0:
            return _leaf_segment(gap if most > 1 else 0)
        return join(complete(level - 1), complete(level - 1)).under_one_node()

    @cache
    def completed(leaves: int, level: int) -> _Segment:
        """The first ``leaves`` under a node of this level, the others empty."""
        if leaves == 1 << level:
            return complete(level)
        half = 1 << level - 1
        if leaves <= half:
            return completed(leaves, level - 1).under_one_node()
        return join(complete(level - 1), completed(leaves - half, level - 1)).under_one_node()

    finished, last = divmod(steps - 1, period)
    top, *blocks = [level for level, _ in prefix_nodes(last + 1)]
    if finished:
        if completion:
            tree = completed(period, (period - 1).bit_length())
        else:
            tree = reduce(join, [complete(level) for level, _ in prefix_nodes(period)])
        whole = join(_repeated(tree, finished, join), complete(top))
    elif top:
        # What comes first needs no table of what stands before it, and this one is the largest.
        whole = join(complete(top - 1).at_start(), complete(top - 1)).under_one_node()
    else:
        whole = complete(0)
    for level in blocks:
        whole = join(whole, complete(level))
    return math.sqrt(max(int(value.max()) for value, _ in whole.fronts))


def _repeated(
    tree: _Segment, times: int, join: Callable[[_Segment, _Segment], _Segment]
) -> _Segment:
    """Equal trees one after another, at the start, by doubling."""
    whole, times = tree.at_start(), times - 1
    while times:
        if times & 1:
            whole = join(whole, tree)
        times >>= 1
        tree = join(tree, tree) if times else tree
    return whole


@dataclass(frozen=True, slots=True)
class _Segment:
    """What a run of leaves can contribute, whatever stands before and behind it.

    ``fronts[count - 1]`` holds, for that many participations, the sums of squared node counts worth
    knowing and, for each and for every ``lead``, the most leaves (capped) that can stay free behind
    the last participation when at least ``lead`` stay free before the first; -1 if none.
    """

    length: int
    fronts: tuple[tuple[NDArray[np.int64], NDArray[np.int32]], ...]

    def under_one_node(self) -> _Segment:
        """The same leaves with one node above them all."""
        fronts = (
            (value + count * count, trail) for count, (value, trail) in enumerate(self.fronts, 1)
        )
        return _Segment(self.length, tuple(fronts))

    def at_start(self) -> _Segment:
        """The same leaves with nothing before them, so that only ``lead`` 0 is of interest."""
        return _Segment(self.length, tuple((value, trail[:, :1]) for value, trail in self.fronts))

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All fronts as two arrays, indexed by count - 1; padding is impossible everywhere."""
        width = max(len(value) for value, _ in self.fronts)
        leads = self.fronts[0][1].shape[1]
        values = np.zeros((len(self.fronts), width), np.int64)
        trails = np.full((len(self.fronts), width, leads), -1, np.int32)
        for row, (value, trail) in enumerate(self.fronts):
            values[row, : len(value)] = value
            trails[row, : len(value)] = trail
        return values, trails


def _leaf_segment(gap: int) -> _Segment:
    trail = np.full((1, gap + 1), -1, np.int32)
    trail[0, 0] = 0
    return _Segment(1, ((np.ones(1, np.int64), trail),))


def _join(left: _Segment, right: _Segment, gap: int, most: int) -> _Segment:
    """Two runs side by side; ``gap`` leaves stay free between participations, ``most`` of them."""
    left_values, left_trails = left.padded()
    right_values, right_trails = right.padded()
    leads = left_trails.shape[2]
    ahead = np.maximum(np.arange(leads) - left.length, 0)
    # What the left leaves free behind it counts towards the gap; the extra column is "impossible".
    wanted = np.where(left_trails < 0, gap + 1, gap - left_trails)
    blocked = np.full((*right_trails.shape[:2], 1), -1, np.int32)
    offered = np.concatenate([right_trails, blocked], axis=2)
    fronts: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    for count in range(1, min(most, len(left.fronts) + len(right.fronts)) + 1):
        values, trails = [], []
        if count <= len(left.fronts):
            value, trail = left.fronts[count - 1]
            values.append(value)
            trails.append(np.where(trail < 0, -1, np.minimum(trail + right.length, gap)))
        if count <= len(right.fronts):
            value, trail = right.fronts[count - 1]
            values.append(value)
            trails.append(trail[:, ahead])
        here = np.arange(max(1, count - len(right.fronts)), min(len(left.fronts), count - 1) + 1)
        if here.size:
            there = count - here
            value = left_values[here - 1][:, :, None] + right_values[there - 1][:, None, :]
            trail = np.take_along_axis(
                offered[there - 1][:, None], wanted[here - 1][:, :, None], axis=3
            )
            values.append(value.ravel())
            trails.append(trail.reshape(-1, leads))
        front = _frontier(np.concatenate(values), np.concatenate(trails).astype(np.int32))
        if not len(front[0]):
            break
        fronts.append(front)
    return _Segment(left.length + right.length, tuple(fronts))


def _frontier(
    value: NDArray[np.int64], trail: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Without the entries that another beats in value and in free leaves alike."""
    possible = trail[:, 0] >= 0
    value, trail = value[possible], trail[possible]
    order = np.argsort(-value, kind="stable")
    value, best = value[order], np.maximum.accumulate(trail[order], axis=0)
    last = np.append(value[1:] != value[:-1], True)[: len(value)]
    value, best = value[last], best[last]
    gains = np.ones(len(value), bool)
    gains[1:] = (best[1:] > best[:-1]).any(axis=1)
    return value[gains], best[gains]


def check_participation(
    leaves: Sequence[int] | NDArray[np.integer[Any]],
    *,
    steps: int,
    participations: int = 1,
    min_separation: int = 1,
) -> None:
    """One record's leaves keep to what was accounted for.

    Args:
        leaves: The leaves the record entered, in any order; a leaf named twice counts twice.
        steps: Leaves in all.
        participations: Most leaves the record may enter.
        min_separation: Least distance between two of them.

    Raises:
        RecordingError: The record came too often or too soon again.
        InvalidArgumentError: A leaf is not in the tree.

    Examples:
        >>> check_participation([3, 103], steps=200, participations=2, min_separation=100)
    """
    _validate.integer(1, steps=steps, participations=participations, min_separation=min_separation)
    for leaf in leaves:
        check_leaf(leaf, steps)
    if len(leaves) > participations:
        raise RecordingError(
            f"A record entered {len(leaves)} leaves where {participations} were accounted for: "
            "the claimed epsilon does not cover it."
        )
    ordered = sorted(int(leaf) for leaf in leaves)
    nearest = min((after - before for before, after in pairwise(ordered)), default=min_separation)
    if nearest < min_separation:
        raise RecordingError(
            f"A record entered two leaves {nearest} apart where at least {min_separation} was "
            "accounted for: the claimed epsilon does not cover it."
        )
