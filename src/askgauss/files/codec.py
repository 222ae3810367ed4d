"""Frozen dataclasses to plain JSON values and back, by their type hints.

Everything askgauss writes as JSON goes through here, so that there is one rule for infinity (the
string ``"inf"``: strict JSON has no number for it), one for enumerations (their value) and one
error for text that is not what it says it is.

Text carries a digest over all it says, in one canonical spelling: whitespace and the order of keys
may change, nothing else. It tells damage; who can write a file can also write its digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from askgauss.exceptions import AskGaussError, FileFormatError

__all__ = [
    "SIGNED",
    "Facts",
    "digest",
    "dumps",
    "from_plain",
    "loads",
    "number",
    "parse",
    "read_field",
    "to_plain",
]

T = TypeVar("T")


class Facts:
    """Base of dataclasses whose numbers have a range that `from_plain` checks.

    Numbers are at least 0; a field made by `number` may have another range.
    """

    __slots__ = ()


def number(
    default: Any = 0, *, low: float = 0.0, high: float = math.inf, zero: bool = False
) -> Any:
    """A field of `Facts` with a range of its own, which may have 0 outside it."""
    return dataclasses.field(default=default, metadata={"range": (low, high, zero)})


# The range of a field that takes any number but nan.
SIGNED = -math.inf


# Whole numbers of files are counts and seeds; far longer ones only cost time and memory.
_DIGITS = 100
_AS_THEY_ARE = (int, str, bool, type(None))


def to_plain(value: Any) -> Any:
    """Nested dataclasses, tuples, enumerations and numpy scalars as JSON values.

    A class that is one of several of a family says so itself, by `to_plain` and `from_plain`.
    """
    # Nearly all values of long lists.
    if type(value) is float:
        return value if math.isfinite(value) else str(value)
    if type(value) in _AS_THEY_ARE:
        return value
    if hasattr(value, "to_plain") and not isinstance(value, type):
        return value.to_plain()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.init
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [to_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(hint: Any, value: Any, where: str = "value") -> Any:
    """The inverse of `to_plain` for a type hint; `FileFormatError` where the value does not fit.

    Unknown fields of a dataclass are ignored: a later version within the same schema may add some.
    """
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _from_union(typing.get_args(hint), value, where)
    if isinstance(hint, type) and "from_plain" in vars(hint):
        return hint.from_plain(value, where)  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _from_mapping(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            raise _mismatch(where, value, hint.__name__)
        return hint(value)
    if origin is tuple:
        item_hints = typing.get_args(hint)
        if not isinstance(value, list):
            raise _mismatch(where, value, "a list")
        if len(item_hints) == 2 and item_hints[1] is Ellipsis:
            item_hints = (item_hints[0],) * len(value)
        if len(value) != len(item_hints):
            raise _mismatch(where, value, f"a list of {len(item_hints)}")
        return tuple(
            from_plain(item_hint, item, f"{where}[{index}]")
            for index, (item_hint, item) in enumerate(zip(item_hints, value, strict=True))
        )
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(value, dict):
            raise _mismatch(where, value, "an object")
        item_hint = typing.get_args(hint)[1]
        return {key: from_plain(item_hint, item, f"{where}.{key}") for key, item in value.items()}
    if origin is typing.Literal:
        if value not in typing.get_args(hint):
            raise _mismatch(where, value, f"one of {typing.get_args(hint)}")
        return value
    return _from_scalar(hint, value, where)


def _from_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        if value in ("inf", "-inf", "nan"):
            return float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:
                raise _mismatch(where, value, "a number that a float can hold") from error
        raise _mismatch(where, value, "a number")
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        # Half of a pair of surrogates is no character: it could not be printed either.
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _mismatch(where, value, "text")
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if hint is type(None) and value is None:
        return None
    raise _mismatch(where, value, getattr(hint, "__name__", str(hint)))


def _from_union(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    # None first, so that an optional field accepts it without trying anything else.
    *others, last = sorted(hints, key=lambda item: item is not type(None))
    for hint in others:
        # No error is kept: its traceback would keep whoever reads, and the files that are held.
        with contextlib.suppress(FileFormatError):
            return from_plain(hint, value, where)
    return from_plain(last, value, where)


def _from_mapping(cls: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise _mismatch(where, value, "an object")
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.init and field.name in value:
            hint, given, name = hints[field.name], value[field.name], f"{where}.{field.name}"
            arguments[field.name] = (
                read_field(field, hint, given, name)
                if issubclass(cls, Facts)
                else from_plain(hint, given, name)
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError, ArithmeticError, AskGaussError) as error:
        raise FileFormatError(f"Cannot read {where} as {cls.__name__}: {error}") from error


def read_field(field: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    """The value of one field whose numbers have a range, as of `Facts`."""
    found = from_plain(hint, value, where)
    _check_range(found, field, where)
    return found


def _check_range(value: Any, field: dataclasses.Field[Any], where: str) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_range(item, field, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high, zero = field.metadata.get("range", (0.0, math.inf, False))
        if not (low <= value <= high or (zero and value == 0)):
            raise FileFormatError(
                f"Expected {where} {'0 or ' if zero else ''}in [{low:g}, {high:g}], got "
                f"{float(value):.6g}. The file was edited: write it again with askgauss."
            )


def _mismatch(where: str, value: Any, expected: str) -> FileFormatError:
    shown = repr(value)
    return FileFormatError(
        f"Expected {where} to be {expected}, got {shown[:80]}{'...' if len(shown) > 80 else ''}. "
        "The file was edited or is not what its name says: write it again with askgauss."
    )


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 over JSON content in its canonical spelling.

    Raises:
        ValueError: It holds a number that JSON has no spelling for.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def dumps(kind: str, schema: int, content: Mapping[str, Any], indent: int | None = 2) -> str:
    """JSON text that says what it is, which schema it follows, and a digest of all that."""
    whole = {"kind": kind, "schema": schema, **content}
    # As a reader will get it: keys that are no text are text by then.
    seen = json.loads(json.dumps(whole, allow_nan=False))
    return json.dumps({**whole, "digest": digest(seen)}, indent=indent, allow_nan=False)


def parse(text: str | bytes) -> Any:
    """Strict JSON: no key twice, nothing infinite, no endless integers.

    Raises:
        FileFormatError: It is anything else.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_short_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"Not JSON: {error}.") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return content


def _short_integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:80]} is beyond every float")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of strict JSON")


def loads(text: str | bytes, kind: str, schema: int) -> dict[str, Any]:
    """The content of JSON text of this kind and schema, as it was written.

    Args:
        text: What `dumps` made.
        kind: The kind it must be of.
        schema: The schema it must follow.

    Raises:
        FileFormatError: It is something else, or its content does not fit its digest.
    """
    try:
        content = parse(text)
    except FileFormatError as error:
        raise FileFormatError(f"{error} Expected a file of kind {kind!r}.") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(f"Expected a file of kind {kind!r}, got {str(found)[:80]!r}.")
    found = content.get("schema")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise FileFormatError(f"Expected schema to be a whole number >= 1, got {found!r}.")
    if found > schema:
        raise FileFormatError(
            f"Expected schema <= {schema}, got {found}: a newer askgauss wrote this file. "
            "Update askgauss to read it."
        )
    if found < schema:
        raise FileFormatError(
            f"Expected schema {schema}, got {found}: an earlier askgauss wrote this file. Write it "
            "again with this one."
        )
    if content.pop("digest", None) != digest(content):
        raise FileFormatError(
            "Its content does not fit its digest: the file was damaged or edited. Restore it, or "
            "write it again with askgauss."
        )
    return content
