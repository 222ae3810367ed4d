"""How a recorder keeps its steps: rows that grow, and canaries by their tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss.exceptions import FileFormatError, InvalidArgumentError

__all__ = ["MARKS", "Rows", "apart", "by_tensor", "halvings", "numbers", "saved_numbers"]

# Canaries worked on at once: their sums stay in the cache from one operation to the next, and dot
# products of so few are not handed to other threads.
_CHUNK = 1 << 13
# Numbers of a step that are kept in one row together, since every row costs time.
MARKS = (
    "least",
    "most",
    "planted_least",
    "planted_most",
    "silent",
    "planted_silent",
    "carried",
    "batch_size",
)


class Rows:
    """Rows that arrive one by one, in an array that doubles when it is full."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._array = rows
        self._count = len(rows)

    @classmethod
    def empty(cls, dtype: Any, *width: int) -> Rows:
        """No rows yet."""
        return cls(np.empty((0, *width), dtype=dtype))

    def append(self, row: Any) -> None:
        """Add one row."""
        if self._count == len(self._array):
            grown = np.empty((max(2 * self._count, 64), *self._array.shape[1:]), self._array.dtype)
            grown[: self._count] = self._array
            self._array = grown
        self._array[self._count] = row
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def last(self) -> Any:
        """The newest row."""
        return self._array[self._count - 1]

    def rows(self) -> NDArray[Any]:
        """A copy of all rows."""
        return self.view().copy()

    def view(self) -> NDArray[Any]:
        """The rows themselves, until the next one is added."""
        return self._array[: self._count]

    def columns(self, chosen: NDArray[np.bool_]) -> Rows:
        """The same rows with some of their columns."""
        return Rows(self._array[: self._count, chosen])


def apart(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rows with the numbers that are kept together each by itself."""
    others = {name: array for name, array in rows.items() if name != "marks"}
    return others | dict(zip(MARKS, np.ascontiguousarray(rows["marks"].T), strict=True))


def halvings(count: int) -> Iterator[int]:
    """A number, half of it, and so on down to one."""
    while count > 1:
        yield count
        count = -(-count // 2)
    yield count


def by_tensor(
    tensor: NDArray[np.int64],
) -> Iterator[tuple[slice, NDArray[np.int64] | slice, NDArray[np.int64], NDArray[np.int64]]]:
    """Chunks of canaries; for each its order by tensor, where groups start in it, and which."""
    for start in range(0, tensor.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        groups, counts = np.unique(tensor[part], return_counts=True)
        order = slice(None) if groups.size == 1 else np.argsort(tensor[part], kind="stable")
        yield part, order, np.cumsum(counts) - counts, groups


def numbers(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """What was read along each canary, one column each.

    Raises:
        InvalidArgumentError: It has another shape or type.
    """
    values = np.asarray(given)
    if values.dtype.kind not in "biuf" or values.shape != shape:
        raise InvalidArgumentError(
            f"Expected {name} to be numbers of shape {shape}, one column a canary, got shape "
            f"{values.shape} and dtype {values.dtype}. Read it with canaries.project()."
        )
    return values


def saved_numbers(state: dict[str, Any], name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A copy of one array of a checkpoint."""
    given = state.get(name)
    if not isinstance(given, np.ndarray) or given.dtype != np.float64 or given.shape != shape:
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        raise FileFormatError(
            f"Expected {name} of the checkpoint to be float64 {shape}, got {found[:80]}. "
            "Load an older checkpoint."
        )
    return given.copy()
