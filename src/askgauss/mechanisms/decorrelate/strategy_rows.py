"""Releases of a strategy decorrelated: its rows, each with an independent draw of noise.

Applied to what was released, a strategy gives rows with independent noise
(`askgauss.mechanisms.strategy`): `RowReader`. From there two ways lead to steps that an auditor of
DP-SGD can read:

- records that sample, at least as many steps apart as the strategy has bands: the columns a record
  may enter do not meet, and the matched filter of each is a step of Poisson sampling (`rounds`, and
  `RoundFilter` for one row at a time);
- records that enter known steps for sure: a rotation spreads what they add evenly over all steps
  and leaves the noise what it was (`evened`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.banded import BandedStrategy
from askgauss.mechanisms.buffered import BufferedToeplitz
from askgauss.mechanisms.decorrelate.tree_pieces import (
    Piece,
    Reader,
    covered_leaves,
    released_nodes,
)
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import StrategyPlan, TreePlan
from askgauss.mechanisms.strategy import Strategy

__all__ = [
    "RoundFilter",
    "RowReader",
    "evened",
    "full_rounds",
    "heaviest_entry",
    "moved_by",
    "plan_of",
    "rounds",
    "strategy_of",
]

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
        """Go on after so many steps with what was remembered."""
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


def rounds(
    rows: Floats,
    strategy: Strategy,
    *,
    groups: NDArray[np.int64],
    cycle: int,
    norm: float,
    count: int,
) -> Floats:
    """Released steps filtered for columns that do not meet: one row a round, noise independent.

    Args:
        rows: What was released about each canary, one row a step.
        strategy: No more bands than ``cycle``.
        groups: As for `RoundFilter`.
        cycle: Number of groups.
        norm: As for `RoundFilter`.
        count: How many rounds.

    Returns:
        One row for every round that is over.
    """
    stream = RoundFilter(strategy, groups=groups, cycle=cycle, norm=norm, count=count)
    ended = [
        values for step, row in enumerate(strategy.apply(rows)) for values in stream.add(step, row)
    ]
    return np.array(ended).reshape(-1, rows.shape[1])


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
