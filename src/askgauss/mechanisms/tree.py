"""Binary-tree prefix sums with Gaussian noise, the mechanism of DP-FTRL (arXiv 2103.00039).

Node ``(level, index)`` covers the leaves ``index * 2**level`` up to ``(index + 1) * 2**level - 1``,
counted from 0, and is complete once the last of them has arrived. Every complete node carries one
Gaussian draw; a prefix of the stream is put together from nodes by one of three estimators:

- ``plain``: the nodes of the binary digits of its length, as first proposed;
- ``honaker``: each of those nodes averaged with what its descendants say, using the past only;
- ``full``: least squares over all nodes, future ones included, hence offline.

All three are functions of the same released nodes, so they cost the same privacy. Noise is counted
in units of the clip norm throughout. Neighbours differ in one record, whose contributions are there
or zero; nothing is sampled, so who else is in which batch stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import RecordingError, UnsupportedError
from askgauss.mechanisms.strategy import Draw, NoiseStream

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Node",
    "TreeNoise",
    "check_leaf",
    "check_participation",
    "completed_nodes",
    "levels",
    "node_sums",
    "node_weight",
    "prefix_nodes",
    "prefixes",
    "sensitivity",
    "trailing_zeros",
    "tree_length",
]

Estimator = Literal["plain", "honaker", "full"]
Node = tuple[int, int]

ESTIMATORS = ("plain", "honaker", "full")


def levels(steps: int) -> int:
    """The number of complete nodes above the first leaf, itself included.

    Args:
        steps: Leaves of the tree; need not be a power of two.

    Returns:
        ``floor(log2(steps)) + 1``.

    Examples:
        >>> levels(1), levels(127), levels(128)
        (1, 7, 8)
    """
    _validate.integer(1, steps=steps)
    return int(steps).bit_length()


def prefix_nodes(count: int) -> tuple[Node, ...]:
    """The nodes that add up to the first ``count`` leaves, widest first.

    Examples:
        >>> prefix_nodes(6)
        ((2, 0), (1, 2))
    """
    _validate.integer(0, count=count)
    bits = range(int(count).bit_length() - 1, -1, -1)
    return tuple((level, (count >> level) - 1) for level in bits if count >> level & 1)


def completed_nodes(leaf: int) -> tuple[Node, ...]:
    """The nodes that become complete when ``leaf`` arrives, the leaf first.

    Examples:
        >>> completed_nodes(3)
        ((0, 3), (1, 1), (2, 0))
    """
    _validate.integer(0, leaf=leaf)
    return tuple((level, leaf >> level) for level in range(trailing_zeros(leaf + 1) + 1))


def trailing_zeros(count: int) -> int:
    """How many binary digits at the end of ``count`` are zero."""
    return (count & -count).bit_length() - 1


def check_leaf(leaf: int, steps: int) -> None:
    """The leaf is one of the tree."""
    _validate.integer(0, leaf=leaf)
    if leaf >= steps:
        raise _validate.fail("leaf", leaf, f"in [0, {steps}), the leaves of the tree")


def tree_length(steps: int, restart_every: int | None, completion: bool) -> int:
    """The leaves of one tree."""
    _validate.integer(1, steps=steps)
    if restart_every is None:
        if completion:
            raise _validate.fail(
                "completion", completion, "to come with restart_every", "Trees end at restarts."
            )
        return int(steps)
    _validate.integer(1, restart_every=restart_every)
    return int(restart_every)


def node_sums(leaves: NDArray[Any]) -> list[NDArray[Any]]:
    """The exact sum of every complete node, level by level.

    Args:
        leaves: What each leaf adds, along the first axis; further axes are kept.

    Returns:
        One array a level; entry ``index`` of array ``level`` is node ``(level, index)``.

    Examples:
        >>> [level.tolist() for level in node_sums(np.array([1, 2, 3, 4, 5]))]
        [[1, 2, 3, 4, 5], [3, 7], [10]]
    """
    leaves = np.asarray(leaves)
    if leaves.ndim == 0 or not len(leaves):
        raise _validate.fail("leaves", leaves.shape, "to have at least one row, one a leaf")
    nodes = [leaves]
    while len(nodes[-1]) > 1:
        nodes.append(_pairs(nodes[-1]).sum(axis=1))
    return nodes


def prefixes(nodes: Sequence[NDArray[Any]], estimator: Estimator = "plain") -> NDArray[Any]:
    """Every prefix sum, estimated from the released nodes.

    Args:
        nodes: Node values in the layout of :func:`node_sums`; exact sums, noise, or both.
        estimator: ``plain``, ``honaker`` (past nodes only) or ``full`` (least squares, offline).

    Returns:
        An array whose row ``n`` estimates the sum of the first ``n + 1`` leaves. Exact sums give
        exact prefixes under each estimator.

    Examples:
        >>> prefixes(node_sums(np.array([1.0, 2.0, 3.0])), "honaker").tolist()
        [1.0, 3.0, 6.0]
    """
    _validate.one_of(ESTIMATORS, estimator=estimator)
    nodes = [np.asarray(level) for level in nodes]
    steps = len(nodes[0]) if nodes else 0
    if not steps or [len(level) for level in nodes] != [steps >> h for h in range(levels(steps))]:
        lengths = [len(level) for level in nodes]
        raise _validate.fail("nodes", lengths, "to hold steps >> level nodes a level, from 0 up")
    if estimator == "plain":
        return _add_up(nodes)
    upward = [nodes[0]]
    for level in range(1, len(nodes)):
        weight = node_weight(level)
        children = _pairs(upward[-1]).sum(axis=1)
        upward.append(weight * nodes[level] + (1.0 - weight) * children)
    if estimator == "honaker":
        return _add_up(upward)
    # Downward, the parent's surplus over its children is shared equally between them.
    estimate = upward[-1]
    for below in reversed(upward[:-1]):
        children = _pairs(below)
        shared = children + 0.5 * (estimate - children.sum(axis=1))[:, None]
        alone = below[2 * len(estimate) :]
        estimate = np.concatenate([shared.reshape(-1, *below.shape[1:]), alone])
    return np.cumsum(estimate, axis=0)


def _pairs(level: NDArray[Any]) -> NDArray[Any]:
    """Siblings side by side; a last node without a sibling has no complete parent."""
    return level[: len(level) // 2 * 2].reshape(-1, 2, *level.shape[1:])


def _add_up(nodes: Sequence[NDArray[Any]]) -> NDArray[Any]:
    result = np.array(nodes[0], dtype=np.result_type(*nodes))
    for count in range(1, len(result) + 1):
        level = trailing_zeros(count)
        result[count - 1] = nodes[level][(count >> level) - 1]
        if count > 1 << level:
            result[count - 1] += result[count - (1 << level) - 1]
    return result


def node_weight(level: int) -> float:
    """The weight of a node's own draw against its descendants', and the variance that results."""
    return 1.0 / (2.0 - 0.5**level)


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


class TreeNoise(NoiseStream):
    """The noise of one prefix after another, in memory logarithmic in the number of steps.

    Each step costs one draw (``plain``) or two on average (``honaker``).

    What is kept for each open node is the noise of the prefix that ends with it, not its own. A
    plain step is then one draw on top of the prefix before it; a Honaker merge averages two
    estimates of the same prefix, one through the parent's fresh draw and one through its children.
    There is nothing to subtract, so rounding does not build up over the run.

    Args:
        draw: Fresh noise of one node, see :data:`Draw` and :func:`numpy_draw`; already scaled to
            noise multiplier times clip norm.
        steps: Leaves in all, the number the privacy was accounted for.
        estimator: ``plain`` or ``honaker``; ``full`` needs the future, see :func:`prefixes`.
        restart_every: Start a new tree after so many leaves; finished trees stay in the noise.
        completion: Before a tree is left, fill it with empty leaves up to the next power of two
            and carry on from its root, which has less noise than a sum of several nodes. The nodes
            above the empty leaves are released too: account for them.

    Examples:
        >>> import numpy as np
        >>> from askgauss.mechanisms.strategy import numpy_draw
        >>> noise = TreeNoise(numpy_draw(np.random.default_rng(0), 2), steps=3)
        >>> first, second = noise.next(), noise.next()
        >>> first.shape, noise.step, noise.remaining
        ((2,), 2, 1)
    """

    _HELD = "stack"

    def __init__(
        self,
        draw: Draw,
        *,
        steps: int,
        estimator: Estimator = "plain",
        restart_every: int | None = None,
        completion: bool = False,
    ) -> None:
        self._period = tree_length(steps, restart_every, completion)
        _validate.one_of(ESTIMATORS, estimator=estimator)
        if estimator == "full":
            raise UnsupportedError(
                "The full estimator reads nodes of the future and cannot stream. Stream 'honaker', "
                "or keep the nodes and call prefixes(nodes, 'full') at the end."
            )
        plan = {
            "steps": int(steps),
            "estimator": str(estimator),
            "restart_every": None if restart_every is None else int(restart_every),
            "completion": bool(completion),
        }
        super().__init__(draw, steps=steps, plan=plan)

    def _advance(self) -> Any:
        count = self._step % self._period
        if self._step and not count:
            self._restart()
        self._push(count + 1)
        return self._held[-1]

    def _expected(self, step: int) -> int:
        finished = max(step - 1, 0) // self._period
        return (step - finished * self._period).bit_count() + (finished > 0)

    def _push(self, count: int) -> None:
        """Take in leaf number ``count`` of the present tree."""
        merges = trailing_zeros(count)
        if self._plan["estimator"] == "plain":
            self._drop(merges)
            self._held.append(self._above())
            return
        prefix = self._above()
        for level in range(1, merges + 1):
            self._drop(1)
            fresh = self._above(beside=prefix)
            fresh -= prefix
            fresh *= node_weight(level)
            fresh += prefix
            self._fresh.spare.append(prefix)
            prefix = fresh
        self._held.append(prefix)

    def _restart(self) -> None:
        """Keep the noise of the finished tree as the ground the next one stands on."""
        if self._plan["completion"] and self._period.bit_count() > 1:
            if self._plan["estimator"] == "plain":
                # The root is drawn at once: nothing else that the empty leaves complete is used.
                self._drop(self._period.bit_count())
                self._held.append(self._above())
            else:
                for count in range(self._period + 1, (1 << self._period.bit_length()) + 1):
                    self._push(count)
        ground = self._held.pop()
        self._drop(len(self._held))
        self._held.append(ground)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._fresh.spare.append(self._held.pop())

    def _above(self, beside: Any = None) -> Any:
        """A new draw on top of the prefix below it."""
        noise = self._fresh((*self._held, beside))
        if self._held:
            noise += self._held[-1]
        return noise
