"""What a tree mechanism releases at each step: which nodes, and their exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.mechanisms import tree
from askgauss.mechanisms.plans import TreePlan

__all__ = ["Node", "NodeSums", "covered_leaves", "drawn_nodes", "released_nodes"]

Node = tuple[int, int, int]
"""Tree, level and index."""


def released_nodes(plan: TreePlan, step: int) -> list[Node]:
    """The nodes that become complete at a step, in order: tree, level and index.

    The empty leaves that fill up a tree arrive with the first leaf of the next one.

    Examples:
        >>> released_nodes(TreePlan(steps=8, restart_every=3, completion=True), 3)
        [(0, 0, 3), (0, 1, 1), (0, 2, 0), (1, 0, 0)]
    """
    here, leaf = divmod(step, plan.period)
    nodes = [(here, *node) for node in tree.completed_nodes(leaf)]
    for empty in reversed(_empty_leaves(plan, step)):
        nodes[:0] = [(here - 1, *node) for node in tree.completed_nodes(empty)]
    return nodes


def drawn_nodes(plan: TreePlan) -> Iterator[Node]:
    """The nodes that `askgauss.mechanisms.tree.TreeNoise` draws noise for, in order.

    Examples:
        >>> list(drawn_nodes(TreePlan(steps=4)))
        [(0, 0, 0), (0, 1, 0), (0, 0, 2), (0, 2, 0)]
    """
    for step in range(plan.steps):
        nodes = released_nodes(plan, step)
        if plan.estimator == "honaker":
            yield from nodes
            continue
        # A plain tree uses the widest node only: of the leaf, and of a tree that is filled up.
        if _empty_leaves(plan, step):
            yield (nodes[-1][0] - 1, (plan.period - 1).bit_length(), 0)
        yield nodes[-1]


def _empty_leaves(plan: TreePlan, step: int) -> range:
    """The leaves that fill up the tree before the one that begins at this step."""
    if not (plan.fills_up and step and step % plan.period == 0):
        return range(0)
    return range(plan.period, 1 << plan.period.bit_length())


def covered_leaves(plan: TreePlan, node: Node) -> tuple[int, int]:
    """The first leaf under a node, counted over all trees, and how many there are."""
    here, level, index = node
    first = here * plan.period + (index << level)
    end = min((here + 1) * plan.period, plan.steps)
    return min(first, end), max(min(first + (1 << level), end) - first, 0)


class NodeSums:
    """Sums of complete nodes as leaves come by, in memory logarithmic in their number.

    Args:
        plan: The mechanism.

    Examples:
        >>> sums = NodeSums(TreePlan(steps=4))
        >>> [[int(value) for value in sums.push(np.array(leaf))] for leaf in (1, 2, 3, 4)]
        [[1], [2, 3], [3], [4, 7, 10]]
    """

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._step = 0
        self.open: list[NDArray[Any]] = []

    def push(self, leaf: NDArray[Any]) -> list[NDArray[Any]]:
        """Take in the next leaf; the sums of `released_nodes` at its step, in their order."""
        complete = []
        for empty in _empty_leaves(self._plan, self._step):
            complete += self._take(empty, np.zeros_like(leaf))
        position = self._step % self._plan.period
        if position == 0:
            self.open.clear()
        complete += self._take(position, leaf)
        self._step += 1
        return complete

    def resume(self, step: int, open_sums: list[NDArray[Any]]) -> None:
        """Go on after so many leaves with the sums that were open then."""
        self._step, self.open = step, list(open_sums)

    def _take(self, position: int, value: NDArray[Any]) -> list[NDArray[Any]]:
        complete = [value]
        for _ in tree.completed_nodes(position)[1:]:
            complete.append(self.open.pop() + complete[-1])
        self.open.append(complete[-1])
        return complete
