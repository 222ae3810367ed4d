"""Releases of a tree mechanism: which nodes they are, and how to decorrelate them.

No release is kept. A prefix is combined with the few earlier ones that are still open into the one
piece of independent noise it adds, and what that says about the leaves it covers.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms import tree
from askgauss.mechanisms.plans import TreePlan

__all__ = [
    "Node",
    "NodeSums",
    "Piece",
    "Reader",
    "covered_leaves",
    "drawn_nodes",
    "reader",
    "released_nodes",
]

# Prefixes of trees that are filled up are filtered with a dense matrix, solved once.
_DENSE_STEPS = 1024

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


@dataclass(frozen=True, slots=True)
class Piece:
    """A linear combination of releases, and what it says about the leaves it covers.

    Attributes:
        node: The node it stands for.
        value: Its value along each canary.
        first: First leaf it covers.
        signal: What a record in each of the leaves from there on adds to it.
        spread: Standard deviation of its noise, in those of one node.
    """

    node: Node
    value: NDArray[np.float64]
    first: int
    signal: NDArray[np.float64]
    spread: float = 1.0


class Reader(abc.ABC):
    """Takes releases apart.

    With ``gram`` None the score is the sum of signal times value, and the squared information the
    sum of squared signals; otherwise ``gram`` holds the products of the leaves' filters.
    """

    gram: NDArray[np.float64] | None = None
    offline: bool = False

    def __init__(self) -> None:
        self._open: list[NDArray[np.float64]] = []

    @abc.abstractmethod
    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        """The pieces that a step adds."""

    def open_values(self) -> list[NDArray[np.float64]]:
        """What has to be remembered for the steps to come."""
        return self._open

    def remembered(self, step: int) -> int:
        """How many arrays that is after so many steps."""
        return 0

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        """Go on after so many steps with what was remembered."""
        self._open = open_values


class _TreeReader(Reader):
    def __init__(self, plan: TreePlan) -> None:
        super().__init__()
        self._plan = plan


def _open_nodes(plan: TreePlan, step: int) -> int:
    """How many nodes make up the leaves of the tree that the last of so many steps is in."""
    return ((step - 1) % plan.period + 1).bit_count()


class _NodeReader(_TreeReader):
    """Nodes need no taking apart: each has noise of its own."""

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        for node, row in zip(released_nodes(self._plan, step), released, strict=True):
            first, count = covered_leaves(self._plan, node)
            yield Piece(node, row, first, np.ones(count))


class _PrefixReader(_TreeReader):
    """Prefixes put together from past nodes: ``plain`` and ``honaker``.

    The prefix of ``n`` leaves is that of ``n - 2**level`` plus an estimate of the node of the last
    binary digit of ``n``. That estimate averages the draws of the node, its right child, the right
    child of that and so on with what its left children say; the left children were themselves last
    digits of earlier prefixes, which are known. Without them, what is left is a weighted sum of the
    draws down the right-hand side. Every node lies on one such side, so these sums are independent.

    Open are the ground the tree stands on and the prefixes that end where its open nodes do.
    """

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        here, position = divmod(step, self._plan.period)
        if position == 0:
            self._open[:] = self._open[-1:] or [np.zeros_like(released)]
        level = len(tree.completed_nodes(position)) - 1
        weights, signal, noise = _right_hand_side(level, self._plan.estimator == "honaker")
        value = released.copy()
        for weight, earlier in zip(weights, reversed(self._open), strict=False):
            if weight:
                value += weight * earlier
        value /= noise
        del self._open[len(self._open) - level :]
        self._open.append(released)
        node = (here, level, position >> level)
        yield Piece(node, value, covered_leaves(self._plan, node)[0], signal)

    def remembered(self, step: int) -> int:
        return 1 + _open_nodes(self._plan, step) if step else 0


@functools.cache
def _right_hand_side(
    level: int, averaged: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """How to read a node's right-hand side off the prefixes.

    Returns:
        The weights of the prefixes that end 1, 2, 4, ... leaves before the node does; what a record
        in each leaf of the node adds to the result, and the noise of the result, over each other.
    """
    own = np.array([tree.node_weight(low) if averaged else 1.0 for low in range(level + 1)])
    # How much of the right-hand node of each level gets through to the top.
    through = np.append(np.cumprod((1.0 - own)[:0:-1])[::-1], 1.0)
    draws = through * own
    noise = float(np.linalg.norm(draws))
    signal = np.empty(1 << level)
    for low, height in reversed(list(enumerate(np.cumsum(draws[::-1])[::-1]))):
        signal[-(1 << low) :] = height / noise
    weights = np.append(0.0, through[:-1]) - through
    for array in (weights, signal):
        array.setflags(write=False)
    return weights, signal, noise


class _LeastSquaresReader(_TreeReader):
    """Prefixes by least squares over all nodes: what right children have over left ones.

    With ``C`` the matrix of the nodes, least squares leaves noise of covariance ``inverse(C'C)`` in
    the leaves. ``C'C`` keeps apart the directions that are, for some node, one in its right half,
    minus one in its left half and zero elsewhere, and multiplies each with ``2**level - 1``; and
    likewise those that are one in a widest node, with ``2**(level + 1) - 1``. Along all of these
    the noise is independent, and together they make up every leaf.
    """

    offline = True

    def __init__(self, plan: TreePlan) -> None:
        super().__init__(plan)
        self._sums = NodeSums(plan)

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        leaf = released - self._open[0] if self._open else released
        self._open = [released]
        here, position = divmod(step, self._plan.period)
        sums = self._sums.push(leaf)
        for level, (right, both) in enumerate(itertools.pairwise(sums), 1):
            scale = math.sqrt(1.0 - 0.5**level)
            first, count = covered_leaves(self._plan, (here, level, position >> level))
            signal = np.repeat([-scale, scale], count // 2)
            node = (here, level - 1, position >> level - 1)
            yield Piece(node, scale * (2.0 * right - both), first, signal)
        level = len(sums) - 1
        widest = (level, position >> level)
        if widest in tree.prefix_nodes(min(self._plan.period, self._plan.steps - step + position)):
            scale = math.sqrt(2.0 - 0.5**level)
            first, count = covered_leaves(self._plan, (here, *widest))
            yield Piece((here, *widest), scale * sums[-1], first, np.full(count, scale))

    def open_values(self) -> list[NDArray[np.float64]]:
        return [*self._open, *self._sums.open]

    def remembered(self, step: int) -> int:
        return 1 + _open_nodes(self._plan, step) if step else 0

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        self._open = open_values[:1]
        self._sums.resume(step, open_values[1:])


class _DenseReader(_TreeReader):
    """Prefixes of trees that are filled up: the ground a tree stands on is never seen by itself.

    The filter of a leaf is then ``inverse(S) @ a``, with ``S`` the covariance of all prefixes and
    ``a`` one from the leaf on.
    """

    offline = True

    def __init__(self, plan: TreePlan) -> None:
        if plan.steps > _DENSE_STEPS:
            raise UnsupportedError(
                f"Prefixes of completed trees can be filtered up to {_DENSE_STEPS} steps, the plan "
                f"has {plan.steps}. Release nodes, or restart after a power of two leaves, which "
                "needs no completion."
            )
        super().__init__(plan)
        decoder = _decoder(plan)
        covariance = decoder @ decoder.T
        entered = np.tri(plan.steps)
        self._filters = np.linalg.solve(covariance, entered)
        self.gram = entered.T @ self._filters
        self._spreads = np.sqrt(np.diagonal(covariance))

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        node = (step // self._plan.period, -1, step)
        yield Piece(node, released, 0, self._filters[step], float(self._spreads[step]))


def _decoder(plan: TreePlan) -> NDArray[np.float64]:
    """The matrix that turns draws into the noise of prefixes, read off the mechanism itself."""
    width = sum(1 for _ in drawn_nodes(plan))
    numbers = itertools.count()

    def draw(out: Any) -> Any:
        row = np.zeros(width) if out is None else out
        row[:] = 0.0
        row[next(numbers)] = 1.0
        return row

    noise = tree.TreeNoise(
        draw,
        steps=plan.steps,
        estimator=plan.estimator,
        restart_every=plan.restart_every,
        completion=plan.completion,
    )
    return np.array([noise.next() for _ in range(plan.steps)])


def reader(plan: TreePlan) -> Reader:
    """The reader of what this plan releases."""
    if plan.release == "nodes":
        return _NodeReader(plan)
    if plan.estimator == "full":
        return _LeastSquaresReader(plan)
    return _DenseReader(plan) if plan.fills_up else _PrefixReader(plan)
