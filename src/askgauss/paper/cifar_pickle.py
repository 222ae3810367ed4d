"""CIFAR's python batches without unpickling: opcodes are walked, never run.

A pickle is a program. This reads the few opcodes an official batch is written with, keeps what they
would have called as a description, and looks the images up in it. No name is imported, nothing is
called, and numpy never sees the pickle: it gets bytes whose number was counted.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from askgauss.exceptions import FileFormatError

__all__ = ["Batch", "read_batch"]

# What an official batch, or one that numpy wrote again, names. Anything else is refused by name.
_RECONSTRUCT = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
_NDARRAY, _DTYPE = ("numpy", "ndarray"), ("numpy", "dtype")
_ALLOWED = {*_RECONSTRUCT, _NDARRAY, _DTYPE}

_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    "BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE",
    "SHORT_BINUNICODE", "SHORT_BINBYTES", "BINBYTES",
}  # fmt: skip
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_READ = {
    *_CONSTANTS, *_VALUES, *_TUPLES, "PROTO", "FRAME", "STOP", "MARK", "EMPTY_LIST", "EMPTY_DICT",
    "TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE",
    "BUILD", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch holds: rows of pixels one after another, and a label a row."""

    pixels: bytes
    labels: list[int]


class _Mark:
    """Where a list, a tuple or the items of a dictionary begin."""


@dataclass(slots=True, eq=False)
class _Name:
    """A name that the pickle asked for, and did not get."""

    path: tuple[str, str]


@dataclass(slots=True, eq=False)
class _Call:
    """A call that the pickle asked for, and that nobody made."""

    name: _Name
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(slots=True, eq=False)
class _Items:
    """A dictionary as its keys and values, in order: nothing of the file is hashed."""

    content: list[Any]


def read_batch(raw: bytes, name: str, *, row: int) -> Batch:
    """The pixels and labels of a pickled batch.

    Args:
        raw: The pickle.
        name: What messages call it.
        row: Bytes of an image.

    Raises:
        FileFormatError: It asks for anything but an array of bytes, or is not such a batch.
    """
    try:
        items = _walk(raw)
        labels = _plain_labels(_item(items, "labels"))
        pixels = _pixels(_item(items, "data"), rows=len(labels), row=row)
    except FileFormatError as error:
        raise FileFormatError(f"Expected {name} to be a CIFAR batch. {error}") from error
    except (ValueError, IndexError, OverflowError) as error:
        # The disassembler's words for a truncated or foreign file, and an empty stack of ours.
        raise FileFormatError(f"Expected {name} to be a CIFAR batch: {error}.") from error
    return Batch(pixels, labels)


def _walk(raw: bytes) -> Any:
    """What the opcodes describe; a stack and a memo as a pickle has them, and nothing else."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        items: list[Any] = []
        while not isinstance(top := stack.pop(), _Mark):
            items.append(top)
        return items[::-1]

    for code, argument in _opcodes(raw):
        if code in ("PROTO", "FRAME"):
            continue
        if code == "STOP":
            if len(stack) != 1:
                raise FileFormatError("The pickle ends with more than one value.")
            return stack.pop()
        if code in _VALUES:
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == "MARK":
            stack.append(_Mark())
        elif code == "EMPTY_LIST":
            stack.append([])
        elif code == "EMPTY_DICT":
            stack.append(_Items([]))
        elif code in _TUPLES:
            size = _TUPLES[code]
            if len(stack) < size:
                raise FileFormatError("The pickle takes more than it put there.")
            items = stack[len(stack) - size :]
            del stack[len(stack) - size :]
            stack.append(tuple(items))
        elif code == "TUPLE":
            stack.append(tuple(since_mark()))
        elif code in ("APPEND", "APPENDS"):
            items = [stack.pop()] if code == "APPEND" else since_mark()
            _expect(list, stack[-1]).extend(items)
        elif code in ("SETITEM", "SETITEMS"):
            items = [stack.pop(), stack.pop()][::-1] if code == "SETITEM" else since_mark()
            _expect(_Items, stack[-1]).content.extend(items)
        elif code == "GLOBAL":
            stack.append(_allowed(*argument))
        elif code == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_allowed(_expect(str, module), _expect(str, attribute)))
        elif code == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(_Call(_expect(_Name, called), _expect(tuple, arguments)))
        elif code == "BUILD":
            state = stack.pop()
            _expect(_Call, stack[-1]).state = state
        elif code in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        else:  # BINGET, LONG_BINGET
            if argument not in memo:
                raise FileFormatError("The pickle fetches what it never kept.")
            stack.append(memo[argument])
    raise FileFormatError("The pickle has no end.")


def _opcodes(raw: bytes) -> Iterator[tuple[str, Any]]:
    """Opcodes and their arguments; one that a batch does not need is refused unread."""
    stream = io.BytesIO(raw)
    while code := stream.read(1):
        opcode = _OPCODES.get(code.decode("latin-1"))
        if opcode is None or opcode.name not in _READ:
            name = repr(code) if opcode is None else opcode.name
            raise FileFormatError(f"Refused the pickle opcode {name}: a batch needs no such thing.")
        if opcode.name == "GLOBAL":  # two lines, as they are: the reader would undo escapes
            names = tuple(stream.readline().rstrip(b"\n").decode("latin-1") for _ in range(2))
            yield opcode.name, names
        else:
            yield opcode.name, None if opcode.arg is None else opcode.arg.reader(stream)


def _allowed(module: str, attribute: str) -> _Name:
    if (module, attribute) not in _ALLOWED:
        raise FileFormatError(
            f"Refused a pickle that asks for {module[:80]}.{attribute[:80]}: a batch needs arrays "
            "only."
        )
    return _Name((module, attribute))


def _expect(kind: type[Any], value: Any) -> Any:
    # By type alone: values of a file are never compared or shown, they may be nested without end.
    if type(value) is not kind:
        raise FileFormatError(f"The pickle has a {type(value).__name__} where none belongs.")
    return value


def _item(items: Any, wanted: str) -> Any:
    """The last value under a key: of Python 2 the key is a string, of Python 3 bytes."""
    content = _expect(_Items, items).content
    found = [
        value
        for key, value in zip(content[::2], content[1::2], strict=True)
        if isinstance(key, (str, bytes)) and key in (wanted, wanted.encode())
    ]
    if not found:
        raise FileFormatError(f"There is no {wanted!r} in it.")
    return found[-1]


def _plain_labels(value: Any) -> list[int]:
    labels: list[int] = _expect(list, value)
    if not all(type(label) is int for label in labels):
        raise FileFormatError("Its labels are not whole numbers.")
    return labels


def _pixels(value: Any, *, rows: int, row: int) -> bytes:
    """The bytes of an array of shape (rows, row) of uint8 in C order."""
    array = _called(value, _RECONSTRUCT)
    _, shape, dtype, fortran, content = _fields(array.state, 5)
    kind = _called(dtype, {_DTYPE}).arguments[:1]
    if not kind or type(kind[0]) not in (str, bytes) or kind[0] not in ("u1", b"u1"):
        raise FileFormatError("Its data are not bytes (uint8).")
    if type(fortran) not in (bool, int) or fortran:
        raise FileFormatError("Its data are not in C order.")
    if not all(type(size) is int for size in _fields(shape, 2)) or shape != (rows, row):
        raise FileFormatError(f"Its data are not of shape ({rows}, {row}), a row a label.")
    # A string of Python 2 comes from the disassembler as Latin-1, which keeps every byte.
    if type(content) is str:
        content = content.encode("latin-1")
    if len(_expect(bytes, content)) != rows * row:
        raise FileFormatError(f"Its data have {len(content)} bytes, not {rows} times {row}.")
    return bytes(content)


def _called(value: Any, names: set[tuple[str, str]]) -> _Call:
    call: _Call = _expect(_Call, value)
    if call.name.path not in names:
        raise FileFormatError("Its data are not an array.")
    return call


def _fields(value: Any, count: int) -> tuple[Any, ...]:
    content: tuple[Any, ...] = _expect(tuple, value)
    if len(content) != count:
        raise FileFormatError("Its data are not an array of two axes.")
    return content
