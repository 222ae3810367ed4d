"""Checks of arguments, all in one place.

Each check takes the argument by name, so that the message can say which one is wrong:
``_validate.probability(delta=delta)`` raises ``Expected delta in (0, 1), got 1.5.``
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import InvalidArgumentError, ScoresError

__all__ = [
    "LARGEST",
    "LARGEST_EPSILON",
    "MOST",
    "MOST_CANARIES",
    "MOST_PARAMETERS",
    "MOST_RECORDS",
    "SMALLEST",
    "count",
    "fail",
    "finite",
    "finite_vector",
    "instance",
    "integer",
    "is_within",
    "magnitude",
    "non_negative",
    "one_of",
    "positive",
    "probability",
    "within",
]

# Beyond these, squares would not be numbers any more, or zeros: no unit of a run leads there.
LARGEST = 1e140
SMALLEST = 1e-140
# What no run will ever have, of steps, canaries, parameters and records: a slip of the pen.
MOST = 10**9
MOST_CANARIES = 10**8
MOST_PARAMETERS = 10**15
MOST_RECORDS = 10**12
# A larger one allows whatever a float can tell apart: no audit could speak about it.
LARGEST_EPSILON = 1e9
# Longer ones are told by how long they are.
_LONGEST_SHOWN = 200
_UNIT = "Its square has to be a number: take another unit."


def fail(name: str, value: object, expected: str, hint: str = "") -> InvalidArgumentError:
    """The error for an argument outside its range; the caller raises it."""
    return InvalidArgumentError(f"Expected {name} {expected}, got {_shown(value)}.{_tail(hint)}")


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 3 * _LONGEST_SHOWN:
        # Python refuses to write out the largest of them.
        return f"a number of some {math.ceil(value.bit_length() * math.log10(2.0))} digits"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _tail(hint: str) -> str:
    return f" {hint}" if hint else ""


def _number(name: str, value: Any, expected: str, hint: str) -> float:
    if isinstance(value, (str, bytes, bool, np.bool_)) or value is None:
        raise fail(name, value, expected, hint)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise fail(name, value, expected, hint) from error


def finite(hint: str = "", **arguments: Any) -> None:
    """Every argument is a finite number."""
    for name, value in arguments.items():
        if not math.isfinite(_number(name, value, "to be a finite number", hint)):
            raise fail(name, value, "to be a finite number", hint)


def positive(hint: str = "", **arguments: Any) -> None:
    """Every argument is a finite number above zero."""
    for name, value in arguments.items():
        if not 0.0 < _number(name, value, "> 0", hint) < math.inf:
            raise fail(name, value, "> 0 and finite", hint)


def non_negative(hint: str = "", **arguments: Any) -> None:
    """Every argument is a finite number, zero or above."""
    for name, value in arguments.items():
        if not 0.0 <= _number(name, value, ">= 0", hint) < math.inf:
            raise fail(name, value, ">= 0 and finite", hint)


def magnitude(
    *,
    zero: bool = False,
    smallest: float = SMALLEST,
    largest: float = LARGEST,
    hint: str = _UNIT,
    **arguments: Any,
) -> None:
    """Every argument is a number above zero whose square is one too; where asked, or zero."""
    for name, value in arguments.items():
        (non_negative if zero else positive)(**{name: value})
        if value != 0.0 and not smallest <= float(value) <= largest:
            expected = f"{'0 or ' if zero else ''}in [{smallest:g}, {largest:g}]"
            raise fail(name, value, expected, hint)


def probability(hint: str = "", **arguments: Any) -> None:
    """Every argument lies strictly between 0 and 1."""
    within(0.0, 1.0, hint=hint, **arguments)


def within(
    low: float, high: float, *, closed: str = "neither", hint: str = "", **arguments: Any
) -> None:
    """Every argument is between ``low`` and ``high``; ``closed``: left, right, both or neither."""
    left, right = closed in ("left", "both"), closed in ("right", "both")
    expected = f"in {'[' if left else '('}{low:g}, {high:g}{']' if right else ')'}"
    for name, value in arguments.items():
        number = _number(name, value, expected, hint)
        above = number >= low if left else number > low
        below = number <= high if right else number < high
        if not (above and below):
            raise fail(name, value, expected, hint)


def integer(
    minimum: int | None = None, maximum: int | None = None, *, hint: str = "", **arguments: Any
) -> None:
    """Every argument is a whole number, at least ``minimum`` and at most ``maximum``."""
    expected = "to be a whole number" if minimum is None else f"to be a whole number >= {minimum}"
    expected += "" if maximum is None else f" and <= {maximum}"
    for name, value in arguments.items():
        if isinstance(value, (bool, np.bool_)):
            raise fail(name, value, expected, hint)
        try:
            number = operator.index(value)
        except TypeError as error:
            raise fail(name, value, expected, hint) from error
        if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
            raise fail(name, value, expected, hint)


def count(minimum: int = 1, *, maximum: int = MOST, hint: str = "", **arguments: Any) -> None:
    """Every argument is a whole number from ``minimum`` to what a run may have."""
    # What is too small, or no whole number, is not told of an end that nobody meets.
    integer(minimum, hint=hint, **arguments)
    integer(minimum, maximum, hint=hint, **arguments)


def one_of(choices: tuple[str, ...], hint: str = "", **arguments: Any) -> None:
    """Every argument is one of the named choices."""
    for name, value in arguments.items():
        if not isinstance(value, str) or value not in choices:
            raise fail(name, value, f"to be one of {', '.join(choices)}", hint)


def instance(kind: type, hint: str = "", **arguments: Any) -> None:
    """Every argument is None, or an object of this class."""
    for name, value in arguments.items():
        if value is not None and not isinstance(value, kind):
            raise fail(name, value, f"to be a {kind.__name__}", hint)


def is_within(values: NDArray[np.float64], largest: float = LARGEST) -> bool:
    """Whether all of an array are numbers, and none larger in size than that."""
    # Nearly always the sum of squares says so in one pass; with a nan in them it is none.
    with np.errstate(over="ignore", invalid="ignore"):
        if values.flags.contiguous and np.vdot(values, values) <= min(largest, 1e150) ** 2:
            return True
    return not values.size or bool(values.min() >= -largest and values.max() <= largest)


def finite_vector(name: str, values: Any) -> NDArray[np.float64]:
    """A one-dimensional float64 array without nan or infinity, copied only if it has to be."""
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise ScoresError(
            f"Expected {name} to be real numbers, got dtype {array.dtype}. "
            "Pass a plain numeric array."
        )
    if array.ndim != 1:
        raise ScoresError(
            f"Expected {name} to be one-dimensional, got shape {array.shape}. "
            "Pass one number a canary."
        )
    array = array.astype(np.float64, copy=False)
    # The minimum and maximum propagate nan, so two passes without a temporary are enough.
    if array.size and not (math.isfinite(array.min()) and math.isfinite(array.max())):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        first = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ScoresError(
            f"Expected {name} to be finite, got {bad} nan or infinite of {array.size} "
            f"(first at index {first}). A canary that scored nan is a failed run, not missing "
            "data: find out why before auditing."
        )
    return array
