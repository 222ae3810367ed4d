"""Neighbouring data: the same records with one left out, or with another in its place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError

__all__ = ["GIVEN", "LEFT_OUT", "REPLACED", "Neighbour", "RecordView", "World", "worlds_of"]

Neighbour = Literal["left out", "replaced"]
GIVEN = "as given"
LEFT_OUT: Neighbour = "left out"
REPLACED: Neighbour = "replaced"


class RecordView:
    """Some records of a map-style dataset, in the order of ``indices``; all else is its own."""

    def __init__(
        self, data: Any, indices: NDArray[np.int64], changed: Mapping[int, Any] | None = None
    ) -> None:
        self._data, self._indices, self._changed = data, indices, dict(changed or {})

    def __len__(self) -> int:
        return int(self._indices.size)

    def __getitem__(self, position: int) -> Any:
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        position %= len(self)
        if position in self._changed:
            return self._changed[position]
        return self._data[int(self._indices[position])]

    def __getattr__(self, name: str) -> Any:
        # Special names would reach past the view, and copies ask before there is any data.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)


@dataclass(frozen=True, slots=True)
class World:
    """One of the neighbouring datasets.

    Attributes:
        name: How it differs from the data as given.
        make: Makes what the training function gets, anew for every run.
        size: Its number of records.
        record: The record in question, by its index in the data as given.
        source: The record that stands in its place, where one of the data does.
    """

    name: str
    make: Callable[[], Any] = field(repr=False)
    size: int
    record: int
    source: int | None = None

    def positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in this dataset of records of the given one, without the one left out."""
        if self.name != LEFT_OUT:
            return ids
        kept: NDArray[np.int64] = ids[ids != self.record]
        return np.where(kept > self.record, kept - 1, kept)

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices in the given dataset of records of this one."""
        if self.name != LEFT_OUT:
            return positions
        return np.where(positions >= self.record, positions + 1, positions)


def worlds_of(
    data: Any, *, leave_out: int | None, replace: int | None, replacement: Any
) -> list[World]:
    """The data as given, and its neighbours.

    Args:
        data: Records: an array, columns of equal length in a tuple or a mapping, a list, a table
            with ``iloc``, or anything with a length and indexing.
        leave_out: The record to leave out. A third dataset then has another record in its place.
        replace: The record to replace, instead.
        replacement: What stands in its place; another record of the data if None.
    """
    size = length(data)
    if (leave_out is None) == (replace is None):
        raise InvalidArgumentError(
            f"Expected exactly one of leave_out and replace, got leave_out={leave_out!r} and "
            f"replace={replace!r}. Name one record by its index."
        )
    record = leave_out if leave_out is not None else replace
    name = "leave_out" if leave_out is not None else "replace"
    assert record is not None
    _validate.integer(hint="It is the index of a record.", **{name: record})
    if not 0 <= record < size:
        raise _validate.fail(name, record, f"in [0, {size})", "It is the index of a record.")
    if size < 3:
        raise InvalidArgumentError(
            f"Expected data of at least 3 records, got {size}. Leaving one out of so few leaves "
            "nothing to compare."
        )
    everyone = np.arange(size)
    worlds = [World(GIVEN, partial(take, data, everyone), size, record)]
    if leave_out is not None:
        kept = np.delete(everyone, record)
        worlds.append(World(LEFT_OUT, partial(take, data, kept), size - 1, record))
    if replacement is not None:
        put(data, record, replacement)  # so that one that does not fit is refused at the door
        worlds.append(World(REPLACED, partial(put, data, record, replacement), size, record))
    else:
        # Neighbours in the order of the data are often alike: half of it away, less so.
        source = (record + size // 2) % size
        changed = everyone.copy()
        changed[record] = source
        worlds.append(World(REPLACED, partial(take, data, changed), size, record, source))
    return worlds


def _columns(data: Any) -> bool:
    """Whether a tuple or a mapping holds columns, and not records."""
    values = list(data.values()) if isinstance(data, Mapping) else data
    return (
        isinstance(data, (tuple, Mapping))
        and len(values) > 0
        and all(hasattr(item, "shape") and len(item.shape) for item in values)
    )


def length(data: Any) -> int:
    """The number of records."""
    if _columns(data):
        values = list(data.values()) if isinstance(data, Mapping) else data
        sizes = {len(item) for item in values}
        if len(sizes) > 1:
            raise InvalidArgumentError(
                f"Expected the columns of data to be equally long, got lengths {sorted(sizes)}."
            )
        return sizes.pop()
    if isinstance(data, Mapping) or not hasattr(data, "__len__"):
        raise _unknown(data)
    if not hasattr(data, "__getitem__") or isinstance(data, (str, bytes)):
        raise _unknown(data)
    return len(data)


def _unknown(data: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Expected data with records that one can be left out of, got {type(data).__name__}. Pass "
        "an array, a tuple or a mapping of arrays of equal length, a list, a table, or a dataset "
        "with a length and indexing; an endless stream has no record to leave out."
    )


def take(data: Any, indices: NDArray[np.int64]) -> Any:
    """The records at these indices, copied, in a container of the same kind."""
    if _columns(data):
        if isinstance(data, Mapping):
            return {name: take(item, indices) for name, item in data.items()}
        items = [take(item, indices) for item in data]
        return type(data)(*items) if hasattr(data, "_fields") else tuple(items)
    if hasattr(data, "iloc"):
        return data.iloc[indices]
    if hasattr(data, "shape"):
        return data[indices]
    if _tensors(data):
        return type(data)(*(item[indices] for item in data.tensors))
    if isinstance(data, (list, tuple)):
        return type(data)(data[index] for index in indices)
    return RecordView(data, indices)


def _tensors(data: Any) -> bool:
    """Whether this is torch's TensorDataset; one derived from it may need other arguments."""
    return type(data).__name__ == "TensorDataset" and hasattr(data, "tensors")


def put(data: Any, record: int, replacement: Any) -> Any:
    """The data with another record at this index, in a container of the same kind."""
    everyone = np.arange(length(data))
    if _columns(data) or _tensors(data):
        items = data.tensors if _tensors(data) else data
        if isinstance(items, Mapping):
            names = sorted(items)
            if not isinstance(replacement, Mapping) or sorted(replacement) != names:
                raise _validate.fail("replacement", replacement, f"to be a mapping of {names}")
            return {name: put(item, record, replacement[name]) for name, item in items.items()}
        if not isinstance(replacement, Sequence) or len(replacement) != len(items):
            raise _validate.fail(
                "replacement", replacement, f"to be a tuple of {len(items)}, one a column"
            )
        changed = [put(a, record, b) for a, b in zip(items, replacement, strict=True)]
        whole = type(data) if _tensors(data) or hasattr(data, "_fields") else None
        return whole(*changed) if whole is not None else tuple(changed)
    if hasattr(data, "iloc"):
        raise InvalidArgumentError(
            "Expected replacement to be left out where data is a table: another of its records "
            "stands in. Pass columns as a mapping of arrays to choose the record yourself."
        )
    if hasattr(data, "shape"):
        copied = take(data, everyone)
        try:
            copied[record] = replacement
        except (TypeError, ValueError, RuntimeError) as error:
            raise _validate.fail("replacement", replacement, "to fit where it is put") from error
        return copied
    if isinstance(data, (list, tuple)):
        copied = list(copy.copy(data))
        copied[record] = replacement
        return type(data)(copied)
    return RecordView(data, everyone, {record: replacement})
