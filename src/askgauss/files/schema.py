"""What every array of a file must be: its type, its shape, and the range of its numbers.

A kind of file declares its arrays in one table of `Field`. Sides of shapes and limits may be
names: the first array of the table with a named side says how long it is, all others follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["Field", "check", "check_names"]


@dataclass(frozen=True, slots=True)
class Field:
    """What one array must be.

    Attributes:
        dtype: Its type, exactly.
        shape: Its sides, each a number or a name.
        low: The smallest number allowed.
        high: The largest number allowed, itself excluded if ``open``; or the name of a side.
        open: Whether ``high`` itself is too large.
        finite: Whether nan and infinity are refused. What a run released is kept as it came; then
            the range holds for the numbers that are some.
        optional: Whether a file may lack it.
    """

    dtype: type[np.generic]
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | str | None = None
    open: bool = False
    finite: bool = False
    optional: bool = False

    def check(self, name: str, array: NDArray[Any], sizes: Mapping[str, int] | None = None) -> None:
        """Refuse an array that is anything else; ``sizes`` has the lengths of named sides."""
        known: Mapping[Any, Any] = {} if sizes is None else sizes
        shape = tuple(known.get(side, side) for side in self.shape)
        if array.dtype != self.dtype or array.shape != shape:
            raise FileFormatError(
                f"Expected {name} to have shape {shape} and dtype {np.dtype(self.dtype)}, got "
                f"shape {array.shape} and dtype {array.dtype}."
            )
        high = known[self.high] if isinstance(self.high, str) else self.high
        if not array.size or (self.low is None and high is None and not self.finite):
            return
        # Smallest and largest of what is a number; nan only if nothing is.
        least, most = np.fmin.reduce(array, axis=None), np.fmax.reduce(array, axis=None)
        beyond = (self.low is not None and least < self.low) or (
            high is not None and (most >= high if self.open else most > high)
        )
        if beyond:
            lower = "-inf" if self.low is None else f"{self.low:g}"
            upper = "inf" if high is None else f"{high:g}"
            raise FileFormatError(
                f"Expected {name} in [{lower}, {upper}{')' if self.open else ']'}, got {least} to "
                f"{most}."
            )
        if self.finite and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise FileFormatError(f"Expected {name} to be finite, got nan or infinity.")


def check(
    arrays: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Refuse arrays that are not what the table of their file says.

    Args:
        arrays: The arrays by name.
        fields: The table.
        sizes: Sides whose length is known beforehand.

    Returns:
        The length of every named side.

    Raises:
        FileFormatError: One is missing, unknown, or not what its field says.
    """
    check_names(arrays, fields)
    lengths = dict(sizes or {})
    for name, field in fields.items():
        if name not in arrays:
            continue
        if arrays[name].ndim == len(field.shape):
            for side, length in zip(field.shape, arrays[name].shape, strict=True):
                if isinstance(side, str):
                    lengths.setdefault(side, length)
        field.check(name, arrays[name], lengths)
    return lengths


def check_names(arrays: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
    """Refuse a file with an array missing, or with one nobody here knows."""
    missing = sorted(
        name for name, field in fields.items() if not field.optional and name not in arrays
    )
    if missing:
        raise FileFormatError(f"Expected the arrays {', '.join(missing)}, which are missing.")
    unknown = sorted(arrays.keys() - fields.keys())
    if unknown:
        raise FileFormatError(
            f"Expected no arrays but those of its schema, got {unknown[0][:80]!r}. A newer "
            "askgauss may know it."
        )
