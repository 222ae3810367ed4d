"""Frozen dataclasses to plain JSON values and back, by their type hints.

Everything askgauss writes as JSON goes through here, so that there is one rule for infinity (the
string ``"inf"``: strict JSON has no number for it), one for enumerations (their value) and one
error for text that is not what it says it is.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from askgauss.exceptions import FileFormatError

__all__ = ["dumps", "from_plain", "loads", "to_plain"]

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Nested dataclasses, tuples, enumerations and numpy scalars as JSON values."""
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
            return float(value)
        raise _mismatch(where, value, "a number")
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if hint is type(None) and value is None:
        return None
    raise _mismatch(where, value, getattr(hint, "__name__", str(hint)))


def _from_union(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    error: FileFormatError | None = None
    # None first, so that an optional field accepts it without trying anything else.
    for hint in sorted(hints, key=lambda item: item is not type(None)):
        try:
            return from_plain(hint, value, where)
        except FileFormatError as reason:
            error = reason
    assert error is not None
    raise error


def _from_mapping(cls: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise _mismatch(where, value, "an object")
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.init and field.name in value:
            arguments[field.name] = from_plain(
                hints[field.name], value[field.name], f"{where}.{field.name}"
            )
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"Cannot read {where} as {cls.__name__}: {error}") from error


def _mismatch(where: str, value: Any, expected: str) -> FileFormatError:
    shown = repr(value)
    return FileFormatError(
        f"Expected {where} to be {expected}, got {shown[:80]}{'...' if len(shown) > 80 else ''}. "
        "The file was edited or is not what its name says: write it again with askgauss."
    )


def dumps(kind: str, schema: int, content: Mapping[str, Any], indent: int | None = 2) -> str:
    """JSON text that says what it is and which schema it follows."""
    return json.dumps({"kind": kind, "schema": schema, **content}, indent=indent, allow_nan=False)


def loads(text: str | bytes, kind: str, schema: int) -> dict[str, Any]:
    """The content of JSON text of this kind and of no newer schema."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"Not JSON: {error}. Expected a file of kind {kind!r}.") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        found = content.get("kind") if isinstance(content, dict) else type(content).__name__
        raise FileFormatError(f"Expected a file of kind {kind!r}, got {found!r}.")
    found = content.get("schema")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise FileFormatError(f"Expected schema to be a whole number >= 1, got {found!r}.")
    if found > schema:
        raise FileFormatError(
            f"Expected schema <= {schema}, got {found}: a newer askgauss wrote this file. "
            "Update askgauss to read it."
        )
    return content
