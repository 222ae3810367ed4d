"""What every array of a file must be: its type, its shape, and the range of its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["Field", "check_arrays", "check_names"]


@dataclass(frozen=True, slots=True)
class Field:
    """What one array must be.

    Attributes:
        dtype: Its type, exactly.
        shape: Its shape, exactly.
        low: The smallest number allowed.
        high: The largest number allowed, itself excluded if ``open``.
        open: Whether ``high`` itself is too large.
        finite: Whether nan and infinity are refused. What a run released is kept as it came; then
            the range holds for the numbers that are some.
    """

    dtype: type[np.generic]
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    open: bool = False
    finite: bool = False

    def check(self, name: str, array: NDArray[Any]) -> None:
        """Refuse an array that is anything else."""
        if array.dtype != self.dtype or array.shape != self.shape:
            raise FileFormatError(
                f"Expected {name} to have shape {self.shape} and dtype {np.dtype(self.dtype)}, got "
                f"shape {array.shape} and dtype {array.dtype}."
            )
        if not array.size or (self.low is None and self.high is None and not self.finite):
            return
        # Smallest and largest of what is a number; nan only if nothing is.
        least, most = np.fmin.reduce(array, axis=None), np.fmax.reduce(array, axis=None)
        beyond = (self.low is not None and least < self.low) or (
            self.high is not None and (most >= self.high if self.open else most > self.high)
        )
        if beyond:
            low = "-inf" if self.low is None else f"{self.low:g}"
            high = "inf" if self.high is None else f"{self.high:g}"
            raise FileFormatError(
                f"Expected {name} in [{low}, {high}{')' if self.open else ']'}, got {least} to "
                f"{most}."
            )
        if self.finite and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            raise FileFormatError(f"Expected {name} to be finite, got nan or infinity.")


def check_names(
    arrays: Mapping[str, Any], required: Collection[str], optional: Collection[str] = ()
) -> None:
    """Refuse a file with an array missing, or with one nobody here knows."""
    missing = sorted({*required} - arrays.keys())
    if missing:
        raise FileFormatError(f"Expected the arrays {', '.join(missing)}, which are missing.")
    unknown = sorted(arrays.keys() - {*required, *optional})
    if unknown:
        raise FileFormatError(
            f"Expected no arrays but those of its schema, got {unknown[0][:80]!r}. A newer "
            "askgauss may know it."
        )


def check_arrays(arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Field]) -> None:
    """Refuse arrays that are not what their fields say."""
    for name, array in arrays.items():
        fields[name].check(name, array)
