"""Releases of a strategy decorrelated: its rows, each with an independent draw of noise.

Applied to what was released, a strategy gives rows with independent noise
(`askgauss.mechanisms.strategy`): `RowReader`. From there two ways lead to steps that an auditor of
DP-SGD can read:

- records that sample, at least as many steps apart as the strategy has bands: the columns a record
  may enter do not overlap, and the matched filter of each is a step of Poisson sampling
  (`RoundFilter`);
- records that enter known steps for sure: a rotation spreads what they add evenly over all steps
  and leaves the noise what it was (`evened`).
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms import tree
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import StrategyPlan, TreePlan
from askgauss.mechanisms.strategies import BandedStrategy, BufferedToeplitz
from askgauss.mechanisms.strategy import Strategy

__all__ = [
    "Node",
    "NodeSums",
    "Piece",
    "Reader",
    "RoundFilter",
    "RowReader",
    "covered_leaves",
    "drawn_nodes",
    "evened",
    "full_rounds",
    "heaviest_entry",
    "moved_by",
    "plan_of",
    "reader",
    "released_nodes",
    "strategy_of",
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
        """Resume after so many leaves with the sums that were open then."""
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
        """Resume after so many steps with what was remembered."""
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

    noise = plan.stream(draw)
    return np.array([noise.next() for _ in range(plan.steps)])


def reader(plan: TreePlan) -> Reader:
    """The reader of what this plan releases."""
    if plan.release == "nodes":
        return _NodeReader(plan)
    if plan.estimator == "full":
        return _LeastSquaresReader(plan)
    return _DenseReader(plan) if plan.fills_up else _PrefixReader(plan)


# Records with this share of the largest norm are protected as little as any.
_FULL = 1.0 - 1e-6
_COLUMNS_AT_ONCE = 256

Floats = NDArray[np.float64]


def strategy_of(given: Any, steps: int) -> Strategy:
    """A strategy as people write them down.

    Args:
        given: The first column of a Toeplitz matrix; or columns of shape (steps, bands) from the
            diagonal downwards; or a whole lower-triangular matrix of shape (steps, steps); or a
            strategy of `askgauss.mechanisms`, or jax-privacy's buffered Toeplitz one.
        steps: Number of steps; of a longer one, the first.

    Raises:
        InvalidArgumentError: It is none of these, or has zeros on its diagonal.
        UnsupportedError: The mechanism's releases depend on the future.
    """
    if hasattr(given, "buf_decay") and hasattr(given, "output_scale"):
        decay, scale = (
            np.asarray(part, np.float64).reshape(-1)
            for part in (given.buf_decay, given.output_scale)
        )
        if min(*decay, *scale) < 0.0 or max(*decay, scale.sum()) > 1.0:
            # None whose sensitivity has a closed form, but a strategy all the same.
            tail = decay ** np.arange(steps - 1)[:, None] @ scale
            return BandedStrategy.toeplitz(np.append(1.0, tail), steps)
        return BufferedToeplitz(decay=decay, scale=scale, steps=steps)
    if isinstance(given, BufferedToeplitz):
        return replace(given, steps=steps)
    if isinstance(given, BandedStrategy):
        given = given if given.steps == steps else given.columns
    if isinstance(given, MatrixMechanism):
        if given.decoder is not None:
            raise UnsupportedError(
                "A mechanism with a decoder releases sums of its draws, not steps: audit it with "
                "MatrixMechanism.matched_filter()."
            )
        given = given.strategy
    return given if isinstance(given, Strategy) else _from_array(given, steps)


def _from_array(given: ArrayLike, steps: int) -> Strategy:
    array = np.asarray(given)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2) or not array.size:
        raise _validate.fail(
            "strategy", type(given).__name__, "to be coefficients, columns or a matrix of numbers"
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise _validate.fail("strategy", "nan or infinity", "to be finite")
    square = array.ndim == 2 and array.shape[0] == array.shape[1] > 1
    if array.ndim == 2 and len(array) < steps:
        raise _validate.fail(
            "strategy", array.shape, f"to have a row for each of {steps} steps", "Plan for more."
        )
    if square and np.triu(array, 1).any():
        raise UnsupportedError(
            "Expected a lower-triangular strategy: a step may depend on the past only."
        )
    diagonal = array[:1] if array.ndim == 1 else np.diagonal(array) if square else array[:, 0]
    if not (np.abs(diagonal) > np.finfo(np.float64).tiny).all():
        raise _validate.fail("strategy", "a zero on the diagonal", "to be invertible")
    if array.ndim == 1:
        return BandedStrategy.toeplitz(array[:steps], steps)
    if square:
        return MatrixMechanism(strategy=array[:steps, :steps])
    return BandedStrategy(columns=array[:steps, :steps].copy())


def plan_of(strategy: Strategy, release: Literal["rows", "steps", "prefixes"]) -> StrategyPlan:
    """A strategy and what is seen of it, as a plan."""
    kind: Any = strategy.kind
    return StrategyPlan(
        steps=strategy.steps,
        kind=kind,
        digest=strategy.digest(),
        remembers=strategy.remembers,
        release=release,
        participations=strategy.participations,
        min_separation=strategy.min_separation,
    )


class RowReader(Reader):
    """A piece is a row: what it mixes of the steps, and one draw of noise.

    Open are the last prefix, where prefixes are released, and what the strategy remembers.
    """

    def __init__(self, plan: StrategyPlan, strategy: Strategy) -> None:
        super().__init__()
        strategy.row(0)
        self._strategy, self._release = strategy, plan.release
        self._prefix: list[NDArray[np.float64]] = []

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        """The row that a step completes."""
        value = released
        if self._release == "prefixes":
            value = released - self._prefix[0] if self._prefix else released
            self._prefix = [released]
        if self._release != "rows":
            value = self._strategy.mix(step, value, self._open)
        yield Piece((0, 0, step), value, *self._strategy.row(step))

    def open_values(self) -> list[NDArray[np.float64]]:
        """What has to be remembered for the steps to come."""
        return [*self._prefix, *self._open]

    def remembered(self, step: int) -> int:
        """How many arrays that is after so many steps."""
        if self._release == "rows":
            return 0
        return self._strategy.held(step) + (self._release == "prefixes" and step > 0)

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        """Resume after so many steps with what was remembered."""
        before = int(self._release == "prefixes")
        self._prefix, self._open = open_values[:before], open_values[before:]


def moved_by(plan: TreePlan | Strategy, steps: Sequence[int]) -> float:
    """The norm by which a record moves all nodes of a tree, or all rows of a strategy.

    Args:
        plan: The mechanism.
        steps: The steps it entered, adding one and the same update of norm 1 to each.

    Raises:
        InvalidArgumentError: A step is not one of the mechanism's.

    Examples:
        >>> [round(moved_by(TreePlan(steps=4), steps) ** 2) for steps in ([0], [0, 1])]
        [3, 10]
    """
    for step in steps:
        _validate.integer(0, step=step)
        _validate.within(0, plan.steps, closed="left", step=step)
    entered = np.sort(np.asarray(steps, dtype=np.int64))
    if not entered.size:
        return 0.0
    square = 0.0
    for step in range(int(entered[0]), plan.steps):
        if isinstance(plan, TreePlan):
            for node in released_nodes(plan, step):
                first, count = covered_leaves(plan, node)
                inside = np.searchsorted(entered, (first, first + count))
                square += float(inside[1] - inside[0]) ** 2
        else:
            first, row = plan.row(step)
            inside = entered[(entered >= first) & (entered <= step)] - first
            square += float(row[inside].sum()) ** 2
    return math.sqrt(square)


def heaviest_entry(strategy: Strategy, *, steps: int, cycle: int) -> tuple[int, float]:
    """Which first step, and every ``cycle`` steps from there, moves the releases the most.

    Args:
        strategy: The strategy.
        steps: Number of steps.
        cycle: Distance between two steps of one record; at least ``steps`` for a single one.

    Returns:
        The first step, and how far a record of norm one moves the noisy rows.

    Examples:
        >>> heaviest_entry(strategy_of([1.0, 0.5], 6), steps=6, cycle=3)
        (0, 1.5811388300841898)
    """
    if cycle >= steps:
        norms = strategy.norms(steps)
        return int(np.argmax(norms)), float(norms.max())
    best = (0, 0.0)
    for start in range(0, cycle, _COLUMNS_AT_ONCE):
        firsts = range(start, min(start + _COLUMNS_AT_ONCE, cycle))
        entered = np.zeros((steps, len(firsts)))
        for column, first in enumerate(firsts):
            entered[first::cycle, column] = 1.0
        norms = np.linalg.norm(strategy.apply(entered), axis=0)
        # The first of equals, whatever rounding makes of the others.
        column = int(np.argmax(norms >= norms.max() * _FULL))
        if norms[column] > best[1] / _FULL:
            best = start + column, float(norms[column])
    return best


def full_rounds(strategy: Strategy, *, steps: int, cycle: int) -> int:
    """How many rounds there are in which every record of every group is protected the least.

    The last columns of a Toeplitz strategy are cut off: a record that enters there shows less.

    Examples:
        >>> full_rounds(strategy_of([1.0, 0.5], 12), steps=12, cycle=3)
        3
    """
    norms = strategy.norms(steps)
    whole = norms >= _FULL * norms.max()
    short = np.flatnonzero(~whole)
    return int((steps if short.size == 0 else short[0]) // cycle)


class RoundFilter:
    """Rows of a strategy filtered for columns that do not meet, as the rows go by.

    Records take turns in groups. Those of one group may enter one step in so many, and what such a
    step adds has faded before the next: one value a canary and round says all there is about it.

    Args:
        strategy: No more bands than ``cycle``.
        groups: The group of each canary: it may enter step ``group``, ``group + cycle``, ...
        cycle: Number of groups.
        norm: The largest norm of a column: a record that enters one of those adds 1.
        count: How many rounds.

    Attributes:
        sums: What is open of the rounds that are not over: two rows, by turns.

    Raises:
        UnsupportedError: Columns of one record would meet.
    """

    def __init__(
        self, strategy: Strategy, *, groups: NDArray[np.int64], cycle: int, norm: float, count: int
    ) -> None:
        if strategy.bands > cycle:
            raise UnsupportedError(
                f"Expected records at least {strategy.bands} steps apart, as many as the strategy "
                f"has bands, got {cycle}. What sampling adds to privacy is not known then: no "
                "accountant has it."
            )
        self._strategy, self._groups, self._cycle = strategy, groups, cycle
        self._scale, self._count = 1.0 / norm**2, count
        self.sums = np.zeros((2, groups.size))

    def over(self, steps: int) -> int:
        """How many rounds are over after so many steps."""
        if steps >= self._strategy.steps:
            return self._count
        # Columns with all their bands in it.
        return max(0, min(self._count, (steps - self._strategy.bands + 1) // self._cycle))

    def add(self, step: int, row: Floats) -> list[Floats]:
        """Take the row of a step in; the values of the rounds that end with it.

        The noise of each value is that of one draw, over ``norm``.
        """
        turn, phase = divmod(step, self._cycle)
        started = self._groups <= phase
        first, weights = self._strategy.row(step)
        # The step that each canary may have entered last, where it still shows.
        entry = step - phase + self._groups - np.where(started, 0, self._cycle) - first
        weight = np.where(entry >= 0, weights[np.maximum(entry, 0)], 0.0)
        addend = self._scale * weight * row
        now = turn % 2
        self.sums[now] += np.where(started, addend, 0.0)
        self.sums[1 - now] += np.where(started, 0.0, addend)
        ended = []
        for done in range(self.over(step), self.over(step + 1)):
            ended.append(self.sums[done % 2].copy())
            self.sums[done % 2] = 0.0
        return ended

    def rounds(self, released: Floats) -> Floats:
        """All steps that were released, filtered by a fresh filter: one row a round that is over.

        Args:
            released: What was released about each canary, one row a step.
        """
        rows = enumerate(self._strategy.apply(released))
        ended = [values for step, row in rows for values in self.add(step, row)]
        return np.array(ended).reshape(-1, released.shape[1])


def evened(
    rows: Floats, strategy: Strategy, *, entered: Sequence[int] | NDArray[np.int64]
) -> Floats:
    """Releases rotated so that a record in the steps ``entered`` adds the same to every row.

    Args:
        rows: What was released about each canary, one row a step.
        strategy: The strategy.
        entered: The steps every canary enters.

    Returns:
        As many rows, with the noise of one draw each; a record adds one to each of them times the
        norm of what it adds in all, over the root of their number.
    """
    white = strategy.apply(rows)
    steps = len(rows)
    indicator = np.zeros((steps, 1))
    indicator[np.asarray(entered)] = 1.0
    signal = strategy.apply(indicator)[:, 0]
    mirror = signal / np.linalg.norm(signal) - 1.0 / np.sqrt(steps)
    length = float(np.linalg.norm(mirror))
    if length < 1e-9:
        return white
    mirror /= length
    return np.asarray(white - 2.0 * np.outer(mirror, mirror @ white))
