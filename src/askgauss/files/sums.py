"""Sums that observations of one run can have: their range, and what follows of one from another.

Digests say that a file is as it was written, not that a run wrote it. Numbers that no observations
add up to are refused before anything is computed from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError

__all__ = [
    "DUST",
    "ROUNDING",
    "check_agreement",
    "check_magnitude",
    "check_part",
    "check_squares",
    "check_within",
    "without_dust",
]

# Sums of squares below this are of numbers whose squares lose their digits, or are none.
DUST = _validate.SMALLEST**2
# Sums of the same numbers in another order differ by far less.
ROUNDING = 1e-6
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14
_ONE_BY_ONE = 1 << 20


def without_dust(values: NDArray[Any], least: float) -> NDArray[Any]:
    """The same numbers, those smaller in size than ``least`` being zero; itself where none is."""
    if values.dtype != np.float64:
        return values
    flat = values.reshape(-1)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    if not any(_is_dust(block, least).any() for block in blocks):
        return values
    return np.where(_is_dust(values, least), 0.0, values)


def _is_dust(values: NDArray[Any], least: float) -> NDArray[np.bool_]:
    size = np.abs(values)
    return np.asarray((size < least) & (size > 0.0))


def check_magnitude(name: str, value: float | None, *, zero: bool = False) -> None:
    """Refuse a number of a file that no argument may have; None is nothing said."""
    if value is None or (zero and value == 0.0):
        return
    if not _validate.SMALLEST <= value <= _validate.LARGEST:
        raise FileFormatError(
            f"Expected {name} {'0 or ' if zero else ''}in [{_validate.SMALLEST:g}, "
            f"{_validate.LARGEST:g}], got {value:.6g}."
        )


def check_within(name: str, values: NDArray[np.float64], most: float) -> None:
    """Refuse numbers that a run which released finite ones cannot have."""
    if not _validate.is_within(values, most):
        raise FileFormatError(
            f"Expected {name} of a run that released finite numbers to be some within {most:g}, "
            "got others."
        )


def check_agreement(name: str, found: float, expected: float, size: float) -> None:
    """Refuse a sum over the steps that is not the one over the canaries, but for rounding."""
    if not abs(found - expected) <= ROUNDING * size + DUST:
        raise FileFormatError(
            f"Expected {name} over the steps to be {expected:.6g}, as over the canaries, got "
            f"{found:.6g}."
        )


def check_part(name: str, part: Any, of: str, whole: Any) -> None:
    """Refuse squares that are more than those they are a part of."""
    if np.any(part > (1.0 + ROUNDING) * whole + DUST):
        raise FileFormatError(f"Expected {name} to be no more than {of} allows, got more.")


def check_squares(
    name: str, total: NDArray[Any], square: NDArray[Any], count: Any, of: int | None = None
) -> None:
    """Refuse sums of squares that are smaller than the sums themselves allow.

    Args:
        name: What the sums are called.
        total: Sums.
        square: Sums of squares.
        count: How many numbers each is the sum of; or, of so many, how many it leaves out.
        of: How many there are.
    """
    total, square = total.ravel(), square.ravel()
    if total.size > _ONE_BY_ONE:
        # All together, in a fraction of the time: one canary among so many moves nothing.
        counts = np.broadcast_to(np.ravel(count), total.size)
        counted = sum(
            float(np.dot(square[start : start + _BLOCK], counts[start : start + _BLOCK]))
            for start in range(0, total.size, _BLOCK)
        )
        most = counted if of is None else of * float(square.sum()) - counted
        few = bool(float(np.dot(total, total)) > (1.0 + ROUNDING) * most + total.size * DUST)
    else:
        summed = np.ravel(count) if of is None else of - np.ravel(count)
        few = bool(np.any(total**2 > summed * ((1.0 + ROUNDING) * square + DUST)))
    if few:
        raise FileFormatError(
            f"Expected {name} to be at least the square of its sum over their number, got less."
        )
