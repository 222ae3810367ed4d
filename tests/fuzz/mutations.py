"""Seeded damage to files: what disks, hands and enemies do to them.

Every mutation is a function of the content and a generator, so that an input that fails is made
again from its number alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from askgauss.files import codec

Mutation = Callable[[bytes, np.random.Generator], bytes]

# Numbers whose squares are none any more, or lose their digits, among those that are.
_EXTREMES = [5e-324, 1e-310, 1e-160, 1e-140, 1e140, 1e160, 1e300, -0.0]
# Sizes and counts that readers stumble over.
_NUMBERS = [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, -0.5, 1e-300, 1e300, 10**50, 10**18, 7 * 10**8),
    *_EXTREMES,
    *("", "x", "inf", "-inf", "nan", "VIOLATION", "CONSISTENT", "INVALID", "pass", "fail"),
    *([], {}, [[]], [0], [1.0, 2.0], {"a": 1}, "\ud800", "line\n::error::forged", "1" * 400),
]


def place(content: bytes, generator: np.random.Generator) -> int:
    return int(generator.integers(max(len(content), 1)))


def flip_bit(content: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(content)
    changed[place(content, generator)] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def change_bytes(content: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 5))):
        changed[place(content, generator)] = int(generator.integers(256))
    return bytes(changed)


def truncate(content: bytes, generator: np.random.Generator) -> bytes:
    return content[: place(content, generator)]


def cut_out(content: bytes, generator: np.random.Generator) -> bytes:
    start = place(content, generator)
    return content[:start] + content[start + int(generator.integers(1, 200)) :]


def repeat(content: bytes, generator: np.random.Generator) -> bytes:
    start = place(content, generator)
    end = start + int(generator.integers(1, 400))
    return content[:end] + content[start:]


def insert(content: bytes, generator: np.random.Generator) -> bytes:
    at = place(content, generator)
    return content[:at] + generator.bytes(int(generator.integers(1, 40))) + content[at:]


def append(content: bytes, generator: np.random.Generator) -> bytes:
    return content + generator.bytes(int(generator.integers(1, 200)))


def exchange(content: bytes, generator: np.random.Generator) -> bytes:
    one, other = sorted((place(content, generator), place(content, generator)))
    size = min(int(generator.integers(1, 64)), other - one)
    first, second = content[one : one + size], content[other : other + size]
    return content[:one] + second + content[one + size : other] + first + content[other + size :]


def write_number(content: bytes, generator: np.random.Generator) -> bytes:
    width = int(generator.choice([1, 2, 4, 8]))
    number = _NUMBERS[generator.integers(len(_NUMBERS))] & ((1 << 8 * width) - 1)
    at = place(content, generator)
    return content[:at] + number.to_bytes(width, "little") + content[at + width :]


def edit_structure(content: bytes, generator: np.random.Generator) -> bytes:
    """Damage within the headers and directory of an archive, or near the start of anything."""
    marks = [b"PK\3\4", b"PK\1\2", b"PK\5\6", b"\x93NUMPY", b"{'descr'", b'"schema"', b'"digest"']
    places = []
    for mark in marks:
        at = content.find(mark)
        while at >= 0:
            places.append(at)
            at = content.find(mark, at + 1)
    start = int(generator.choice(places)) if places else 0
    end = min(start + 130, len(content))
    part = ANYWHERE[generator.integers(len(ANYWHERE))](content[start:end], generator)
    return content[:start] + part + content[end:]


ANYWHERE: list[Mutation] = [
    *(flip_bit, change_bytes, truncate, cut_out, repeat, insert, append, exchange, write_number),
]
DAMAGE: list[Mutation] = [*ANYWHERE, edit_structure]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = []
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:50])
    return [path] + [more for key, item in items for more in _paths(item, (*path, key))]


def edit_value(plain: Any, generator: np.random.Generator) -> Any:
    """The same JSON values with one of them replaced, removed or scaled."""
    paths = [path for path in _paths(plain) if path]
    path = paths[generator.integers(len(paths))]
    parent = plain
    for key in path[:-1]:
        parent = parent[key]
    key, how = path[-1], generator.integers(4)
    if how == 0:
        del parent[key]
    elif how == 1 and isinstance(parent[key], (int, float)):
        scale = float(generator.choice([-1, 1e-9, 0.5, 2, 10, 1e6, 1e12]))
        parent[key] = type(parent[key])(parent[key] * scale)
    else:
        parent[key] = _VALUES[generator.integers(len(_VALUES))]
    return plain


def edit_json(content: bytes, generator: np.random.Generator) -> bytes:
    """Other values, the digest left as it was."""
    return json.dumps(edit_value(json.loads(content), generator)).encode()


def forge_json(content: bytes, generator: np.random.Generator) -> bytes:
    """Other values, and a digest that fits them: what no reader can know from the file alone."""
    plain = json.loads(content)
    plain.pop("digest", None)
    for _ in range(int(generator.integers(1, 3))):
        plain = edit_value(plain, generator)
    if isinstance(plain, dict):
        plain["digest"] = codec.digest(plain)
    return json.dumps(plain).encode()


def hostile_json(content: bytes, generator: np.random.Generator) -> bytes:
    """Text that parsers stumble over."""
    text = content.decode()
    first = text.index("{") + 1
    tail = text[first:]
    return [
        lambda: "{" + '"kind": "askgauss-result", ' + tail,
        lambda: "{" + '"present": ' + "9" * 400 + ", " + tail,
        lambda: "{" + '"present": ' + "9" * 5000 + ", " + tail,
        lambda: "[" * 100_000 + text,
        lambda: '{"a":' * 50_000 + text,
        lambda: "{" + '"delta": 1e999, ' + tail,
        lambda: "{" + '"delta": NaN, ' + tail,
        lambda: text + text,
    ][generator.integers(8)]().encode()


def forge_archive(content: bytes, generator: np.random.Generator) -> bytes:
    """An archive whose checksums and digests fit, with an array or the header changed."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    header = json.loads(arrays.pop("askgauss").tobytes())
    del header["members"], header["digest"]
    if generator.random() < 0.3:
        header = edit_value(header, generator)
    else:
        # Relations between two arrays may hold of both changed alike, and of neither by itself.
        for _ in range(1 if generator.random() < 0.6 else 2):
            name = list(arrays)[generator.integers(len(arrays))]
            arrays |= _changed(name, arrays[name], generator)
        if generator.random() < 0.1:
            del arrays[name]
    from askgauss.files import archive

    kind, schema = header.pop("kind", None), header.pop("schema", None)
    stream = io.BytesIO()
    archive.write_arrays(stream, kind, schema, arrays, header, private=header.pop("private", 0))
    if generator.random() < 0.1:
        # Packed by somebody else: the digests fit, and askgauss packs nothing.
        with np.load(io.BytesIO(stream.getvalue()), allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def forge_npz(content: bytes, generator: np.random.Generator) -> bytes:
    """A plain archive of another content or with another name for it, its checksums in order."""
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        arrays = {name: found[name] for name in found.files}
    name = list(arrays)[generator.integers(len(arrays))]
    arrays |= _changed(name, arrays[name], generator)
    if generator.random() < 0.2:
        names = ["steps", "noise", "sampling_rate", "", " SCORE ", "x/../y", "a\nb"]
        arrays[names[generator.integers(len(names))]] = arrays[name]
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def forge_lines(content: bytes, generator: np.random.Generator) -> bytes:
    """Text with a cell or a line of it exchanged for something odd."""
    odd = ["", "nan", "-inf", "1e999", "1e308", "x", '"', "2", "9" * 5000, "0x10", "\u0663", "1_0"]
    lines = content.decode().splitlines()
    at = int(generator.integers(len(lines)))
    cut = "\t" if "\t" in lines[at] else ","
    cells = lines[at].split(cut)
    cells[generator.integers(len(cells))] = odd[generator.integers(len(odd))]
    lines[at] = cut.join(cells * int(generator.choice([1, 1, 1, 2])))
    return "\n".join(lines).encode()


def forge_columns(content: bytes, generator: np.random.Generator) -> bytes:
    """A whole Parquet table with columns of another kind."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    name = table.column_names[generator.integers(table.num_columns)]
    rows = table.num_rows
    other: list[list[Any]] = [
        *([value] * rows for value in (None, "x", b"\xff", [1.0], {"a": 1}, 2, 1e300, "1", "yes")),
        [10**15 * item for item in range(rows)],
        [float("nan")] + [0.0] * (rows - 1),
    ]
    column = pyarrow.array(other[generator.integers(len(other))])
    forged = table.set_column(table.column_names.index(name), name, column)
    if generator.random() < 0.2:
        forged = forged.append_column(name, column)
    stream = io.BytesIO()
    parquet.write_table(forged, stream)
    return stream.getvalue()


@np.errstate(all="ignore")
def _changed(name: str, array: Any, generator: np.random.Generator) -> dict[str, Any]:
    how = generator.integers(8)
    changed = array.copy()
    if how in (0, 1, 2, 6, 7) and array.size and array.dtype.kind in "iuf":
        wild = [-1, 0, 1, 3, 1e9, 7e8, np.nan, np.inf, -np.inf, *_EXTREMES]
        if array.dtype.kind != "f":
            wild = [0, 1, 3, np.iinfo(array.dtype).max, np.iinfo(array.dtype).min]
            wild += [7 * 10**8, -1] if array.dtype == np.int64 else []
        value = wild[generator.integers(len(wild))]
        if how <= 2:
            changed.flat[generator.integers(array.size)] = value
        elif how == 6 and array.ndim:
            changed[generator.integers(len(array))] = value
        elif array.dtype.kind == "f" and generator.random() < 0.5:
            # Another unit: all relations within the array hold as before.
            changed *= generator.choice(_EXTREMES)
        else:
            changed[...] = value
    elif how == 3 and array.dtype.kind != "U":
        kinds = [np.float32, np.int32, np.float64, np.bool_]
        changed = array.astype(kinds[generator.integers(4)])
    elif how == 4:
        changed = array[: array.shape[0] // 2] if array.ndim else array
    elif array.size and array.dtype == np.bool_:
        at = generator.integers(array.size)
        changed.flat[at] = not changed.flat[at]
    else:
        changed = np.concatenate([array, array]) if array.ndim else array
    return {name: changed}
