"""Whether rows that a model is called with are made of two records each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Columns", "input_look", "rows_of"]

_Array = NDArray[np.float64]

# Values of each row that are compared, the fewest that tell anything, and the rows looked at.
_COLUMNS = 1024
_FEWEST = 6
_ROWS = 16
# Rows that have to be explained by two records, and their share of those that are not by one.
_MIXED = 3
_SHARE = 0.5
# What is left of a row that is explained, as a share of what varies in it.
_EXACT = 1e-5
# The least share of a row that the second record explains.
_MATERIAL = 1e-3
# Values of a row that have to come from the second record, and different ones among them.
_PASTED = 8
_DISTINCT = 4
# Lines through two values that are tried to find how a row was scaled.
_LINES = 24


class Columns:
    """Some values of every row of a batch, the same ones of each.

    Args:
        tensor: The batch.
    """

    __slots__ = ("_values", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        rows = tensor.detach()
        # Colours are often scaled each by itself: those of one are enough.
        rows = (rows[:, 0] if rows.ndim > 3 else rows).reshape(len(rows), -1)
        apart = max(1, rows.shape[1] // _COLUMNS)
        self._values = rows[:, ::apart][:, :_COLUMNS].clone()

    def read(self) -> _Array:
        """The values."""
        return np.asarray(self._values.to("cpu", torch.float64).numpy())

    def same(self, other: Columns) -> bool:
        """Whether these are the very same values."""
        mine, theirs = self._values, other._values
        alike = self.shape == other.shape and mine.dtype == theirs.dtype
        return alike and mine.device == theirs.device and torch.equal(mine, theirs)

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers."""
        kind = self._values.dtype
        return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def input_look(yielded: Columns, given: Columns) -> bool | None:
    """Whether rows are made of two records each; None where they are made in a way not known.

    Args:
        yielded: The batch of the loader, one row a record.
        given: What the model was called with.
    """
    if given.same(yielded):
        return False
    if yielded.shape != given.shape or yielded.shape[0] < _MIXED:
        return None
    records, rows = yielded.read(), given.read()
    if not (np.isfinite(records).all() and np.isfinite(rows).all()):
        return None
    exact = max(_EXACT, 16.0 * given.precision)
    if exact > _MATERIAL or records.shape[1] < _FEWEST:
        return None
    looked = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    centred = records - records.mean(axis=1, keepdims=True)
    kinds = [_explained(rows[index], int(index), records, centred, exact) for index in looked]
    mixed, unknown = kinds.count(2), kinds.count(0)
    if mixed >= _MIXED and mixed >= _SHARE * (mixed + unknown):
        return True
    return None if mixed or unknown else False


def _explained(row: _Array, index: int, records: _Array, centred: _Array, exact: float) -> int:
    """By how many records a row is explained; 0 where by none or more than two."""
    rest = row - row.mean()
    varies = float(np.linalg.norm(rest))
    if varies <= exact * max(float(np.linalg.norm(row)), 1e-300):
        return 1  # constant: nothing of any record
    norms = np.linalg.norm(centred, axis=1)
    alike = np.abs(centred @ rest) / np.where(norms > 0.0, norms, np.inf) / varies
    best = int(alike.argmax())
    if _left(rest, centred[[best]])[0] <= exact * varies:
        return 1
    for first in dict.fromkeys((index, best)):
        if _is_sum_of_two(rest, first, centred, exact):
            return 2
        if _is_pasted(row, first, records):
            return 2
    return 0


def _left(rest: _Array, records: _Array) -> tuple[float, _Array]:
    """What is left of a row beside a combination of records, and their shares."""
    shares, *_ = np.linalg.lstsq(records.T, rest, rcond=None)
    return float(np.linalg.norm(rest - shares @ records)), np.asarray(shares, dtype=np.float64)


def _is_sum_of_two(rest: _Array, first: int, centred: _Array, exact: float) -> bool:
    own = centred[first]
    square = float(own @ own)
    if square <= 0.0:
        return False
    # What is left beside the first record lies along what the second has beside it.
    left = rest - (rest @ own) / square * own
    others = centred - np.outer(centred @ own / square, own)
    norms = np.linalg.norm(others, axis=1)
    usable = norms > 1e-3 * np.linalg.norm(centred, axis=1).clip(1e-300)
    usable[first] = False
    if not usable.any():
        return False
    alike = np.where(usable, np.abs(others @ left) / np.where(norms > 0.0, norms, np.inf), 0.0)
    second = int(alike.argmax())
    off, shares = _left(rest, centred[[first, second]])
    varies = float(np.linalg.norm(rest))
    if off > exact * varies or shares[0] * shares[1] <= 0.0:
        return False
    parts = np.abs(shares) * np.linalg.norm(centred[[first, second]], axis=1)
    material = abs(float(shares[1])) * float(norms[second])
    return bool(parts.min() > _MATERIAL * varies and material > max(_MATERIAL, 10 * exact) * varies)


def _is_pasted(row: _Array, first: int, records: _Array) -> bool:
    """Whether a row has some values of one record, and all others of one other."""
    scale = _line(records[first], row)
    if scale is None:
        return False
    ours = _equal(scale[0] * records[first] + scale[1], row)
    other = ~ours
    if min(ours.sum(), other.sum()) < _PASTED or np.unique(row[other]).size < _DISTINCT:
        return False
    theirs = _equal(scale[0] * records + scale[1], row)
    found = theirs[:, other].all(axis=1)
    # One whose own values are not those of the whole row.
    elsewhere = (ours & ~theirs).sum(axis=1)
    return bool((found & (elsewhere >= _PASTED)).any())


def _equal(scaled: _Array, row: _Array) -> NDArray[np.bool_]:
    spread = float(row.max() - row.min())
    return np.asarray(np.abs(scaled - row) <= _EXACT * spread)


def _line(record: _Array, row: _Array) -> tuple[float, float] | None:
    """How most values of a record were scaled and shifted: not at all, or by a line through two."""
    best, most = None, 0
    values = np.unique(record)
    places = [int(np.flatnonzero(record == value)[0]) for value in values[:: len(values) // 8 or 1]]
    tried: list[tuple[float, float]] = [(1.0, 0.0)]
    pairs = [(one, other) for one in places for other in places if record[one] < record[other]]
    for one, other in pairs[:_LINES]:
        slope = (row[other] - row[one]) / (record[other] - record[one])
        tried.append((float(slope), float(row[one] - slope * record[one])))
    for line in tried:
        if line[0] == 0.0:
            continue
        count = int(_equal(line[0] * record + line[1], row).sum())
        if count > most:
            best, most = line, count
    return best


def rows_of(samples: Any) -> Tensor | None:
    """The widest tensor of each of the samples that are about to be put together, as one batch."""
    if not isinstance(samples, (list, tuple)) or not samples:
        return None
    widest = [_widest(sample) for sample in samples]
    if any(item is None or item.shape != widest[0].shape for item in widest):
        return None
    return torch.stack(widest)


def _widest(sample: Any) -> Any:
    values = sample.values() if isinstance(sample, dict) else sample
    if isinstance(sample, (Tensor, np.ndarray)):
        values = (sample,)
    elif not isinstance(sample, (dict, list, tuple)):
        return None
    tensors = [torch.as_tensor(item) for item in values if isinstance(item, (Tensor, np.ndarray))]
    return max(tensors, key=lambda item: item.numel(), default=None)
