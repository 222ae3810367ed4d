"""Correlated noise undone: releases of a matrix mechanism as steps with noise of their own.

A strategy ``C`` is a lower-triangular matrix; the mechanism releases ``x + inverse(C) @ z`` with
independent ``z``. Applied to the releases it gives ``C @ x + z``: independent noise again, and a
record that enters step ``s`` adds column ``s`` of the strategy. From there two ways lead to steps
that an auditor of DP-SGD can read:

- records that sample, at least as many steps apart as the strategy has bands: the columns a record
  may enter do not meet, and the matched filter of each is a step of Poisson sampling (`rounds`);
- records that enter known steps for sure: a rotation spreads what they add evenly over all steps
  and leaves the noise what it was (`evened`).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.buffered import BufferedToeplitz
from askgauss.mechanisms.matrix import MatrixMechanism

__all__ = ["Strategy", "evened", "full_rounds", "heaviest_entry", "rounds", "strategy_of"]

# Records with this share of the largest norm are protected as little as any.
_FULL = 1.0 - 1e-6
_COLUMNS_AT_ONCE = 256

Floats = NDArray[np.float64]


class Strategy(abc.ABC):
    """A lower-triangular matrix that can be applied to rows, one a step.

    Attributes:
        bands: Number of diagonals that are not zero.
    """

    bands: int

    @abc.abstractmethod
    def apply(self, rows: Floats) -> Floats:
        """The strategy times the first rows, as many as there are."""

    def norms(self, steps: int) -> Floats:
        """Norms of the columns of so many steps."""
        norms = []
        for start in range(0, steps, _COLUMNS_AT_ONCE):
            chosen = np.arange(start, min(start + _COLUMNS_AT_ONCE, steps))
            units = np.zeros((steps, chosen.size))
            units[chosen, np.arange(chosen.size)] = 1.0
            norms.append(np.linalg.norm(self.apply(units), axis=0))
        return np.concatenate(norms)


@dataclass(frozen=True)
class _Banded(Strategy):
    """Row ``t`` of ``columns`` is column ``t`` of the strategy from its diagonal downwards."""

    columns: Floats

    @property
    def bands(self) -> int:  # type: ignore[override]
        return int(self.columns.shape[1])

    def apply(self, rows: Floats) -> Floats:
        steps = len(rows)
        total = np.zeros_like(rows)
        for band in range(min(self.bands, steps)):
            total[band:] += self.columns[: steps - band, band, None] * rows[: steps - band]
        return total

    def norms(self, steps: int) -> Floats:
        columns = self.columns[:steps].copy()
        for band in range(1, self.bands):
            columns[max(steps - band, 0) :, band] = 0.0
        return np.asarray(np.linalg.norm(columns, axis=1))


@dataclass(frozen=True)
class _Dense(Strategy):
    """The whole matrix."""

    matrix: Floats

    @property
    def bands(self) -> int:  # type: ignore[override]
        rows, columns = np.nonzero(self.matrix)
        return int((rows - columns).max()) + 1

    def apply(self, rows: Floats) -> Floats:
        steps = len(rows)
        return np.asarray(self.matrix[:steps, :steps] @ rows)


@dataclass(frozen=True)
class _Buffered(Strategy):
    """A few fading sums of what came before."""

    decay: Floats
    scale: Floats
    steps: int

    @property
    def bands(self) -> int:  # type: ignore[override]
        return self.steps

    def apply(self, rows: Floats) -> Floats:
        total = rows.copy()
        buffers = np.zeros((self.decay.size, *rows.shape[1:]))
        for row, out in zip(rows, total, strict=True):
            out += np.tensordot(self.scale, buffers, 1)
            buffers *= self.decay[:, None]
            buffers += row
        return total


def strategy_of(given: Any, steps: int) -> Strategy:
    """A strategy as people write them down.

    Args:
        given: The first column of a Toeplitz matrix; or columns of shape (steps, bands) from the
            diagonal downwards; or a whole lower-triangular matrix of shape (steps, steps); or a
            `MatrixMechanism` or a `BufferedToeplitz`, jax-privacy's too.
        steps: Number of steps.

    Raises:
        InvalidArgumentError: It is none of these, or has zeros on its diagonal.
        UnsupportedError: The mechanism's releases depend on the future.
    """
    if isinstance(given, Strategy):
        return given
    if isinstance(given, BufferedToeplitz):
        return _Buffered(given.decay, given.scale, steps)
    if hasattr(given, "buf_decay") and hasattr(given, "output_scale"):
        decay, scale = (
            np.asarray(part, np.float64) for part in (given.buf_decay, given.output_scale)
        )
        return _Buffered(decay.reshape(-1), scale.reshape(-1), steps)
    if isinstance(given, MatrixMechanism):
        if given.decoder is not None:
            raise UnsupportedError(
                "A mechanism with a decoder releases sums of its draws, not steps: audit it with "
                "MatrixMechanism.matched_filter()."
            )
        given = given.strategy
    return _from_array(given, steps)


def _from_array(given: ArrayLike, steps: int) -> Strategy:
    array = np.asarray(given)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2) or not array.size:
        raise _validate.fail(
            "strategy", type(given).__name__, "to be coefficients, columns or a matrix of numbers"
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise _validate.fail("strategy", "nan or infinity", "to be finite")
    if array.ndim == 1:
        array = np.broadcast_to(array[:steps], (steps, min(array.size, steps)))
    if len(array) < steps:
        raise _validate.fail(
            "strategy", array.shape, f"to have a row for each of {steps} steps", "Plan for more."
        )
    square = array.shape[0] == array.shape[1] and array.shape[0] > 1
    if square and np.triu(array, 1).any():
        raise UnsupportedError(
            "Expected a lower-triangular strategy: a step may depend on the past only."
        )
    diagonal = np.diagonal(array) if square else array[:, 0]
    if not (np.abs(diagonal) > np.finfo(np.float64).tiny).all():
        raise _validate.fail("strategy", "a zero on the diagonal", "to be invertible")
    return _Dense(array) if square else _Banded(array[:steps])


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


def rounds(
    rows: Floats,
    strategy: Strategy,
    *,
    groups: NDArray[np.int64],
    cycle: int,
    norm: float,
    count: int,
) -> Floats:
    """Releases filtered for columns that do not meet: one row a round, noise independent.

    Args:
        rows: What was released about each canary, one row a step.
        strategy: No more bands than ``cycle``.
        groups: The group of each canary: it may enter step ``group``, ``group + cycle``, ...
        cycle: Number of groups.
        norm: The largest norm of a column: a record that enters one of those adds 1.
        count: How many rounds.

    Returns:
        One row a round. The noise of each entry is that of one draw, over ``norm``.
    """
    if strategy.bands > cycle:
        raise UnsupportedError(
            f"Expected records at least {strategy.bands} steps apart, as many as the strategy has "
            f"bands, got {cycle}. What sampling adds to privacy is not known then: no accountant "
            "has it."
        )
    white = strategy.apply(rows)
    steps = len(rows)
    filtered = np.zeros((count, rows.shape[1]))
    for group in np.unique(groups):
        here = np.flatnonzero(groups == group)
        starts = group + cycle * np.arange(count)
        column = np.zeros((steps, 1))
        column[starts] = 1.0
        # Columns of one group do not meet, so that all of them are found in one product.
        weights = strategy.apply(column)[:, 0]
        products = weights[:, None] * white[:, here]
        edges = np.append(starts, min(starts[-1] + cycle, steps))
        filtered[:, here] = np.add.reduceat(products[: edges[-1]], starts, axis=0)
    return filtered / norm**2


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
