"""Arrays and a JSON header in one npz file: no pickles, and a SHA-256 over every byte of content.

Plain numpy reads these files without askgauss. What npz lacks is a check that covers it: its
checksums stop at single members, and readers skip them. So a header, JSON in the member
``askgauss``, names the type, shape and SHA-256 of every other member, and ends with a digest of
itself. Memory is taken for what a file holds, whatever its directory says.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError
from askgauss.files import atomic, codec

__all__ = [
    "check_expansion",
    "header_digest",
    "read_arrays",
    "read_kind",
    "read_npz",
    "write_arrays",
]

# Unpacked, a file may take this much whatever its size; beyond it only so many times its size.
_PLAIN_BYTES = 1 << 28
_EXPANSION = 50
# Ours hold a few dozen members, and a header of a few kilobytes.
_MEMBERS = 10_000
_HEADER = "askgauss"
_HEADER_BYTES = 1 << 22
_NPY_HEADER = 1 << 12
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_DIGESTERS = 2
# Of a zip: the record that ends it, and the header before a member.
_END_BYTES, _LOCAL_BYTES = 22, 30
# What zipfile, zlib and numpy raise of damaged bytes; errors of the disk are none of these.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, TypeError, OverflowError, LookupError, SyntaxError, TokenError, MemoryError),
)


def write_arrays(
    target: str | os.PathLike[str] | IO[bytes],
    kind: str,
    schema: int,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
    *,
    private: bool = True,
) -> None:
    """Write arrays and JSON metadata, whole or not at all.

    Args:
        target: A file, or an open binary stream.
        kind: What the file is.
        schema: The schema of that kind it follows.
        arrays: The arrays by name.
        metadata: Plain values beside them.
        private: Whether it must stay with those who may see the training data. The header says so,
            and a file can then be read by its owner only.
    """
    if isinstance(target, (str, os.PathLike)):
        with atomic.atomic_write(target, private=private) as stream:
            _write(stream, kind, schema, arrays, {**metadata, "private": private})
    else:
        # A pipe cannot seek back to write the zip directory, so it is put together in memory.
        buffer = io.BytesIO()
        _write(buffer, kind, schema, arrays, {**metadata, "private": private})
        target.write(buffer.getbuffer())


def _write(
    stream: IO[bytes],
    kind: str,
    schema: int,
    arrays: Mapping[str, NDArray[Any]],
    content: dict[str, Any],
) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        members = {name: _write_member(archive, name, array) for name, array in arrays.items()}
        header = codec.dumps(kind, schema, {**content, "members": members}, None)
        _write_member(archive, _HEADER, np.frombuffer(header.encode("utf-8"), np.uint8))


class _Digesting(io.RawIOBase):
    """Hands bytes on and digests them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._stream.write(data)


def _write_member(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> dict[str, Any]:
    # Files of any machine are read on any other.
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        digesting = _Digesting(member)
        np.lib.format.write_array(digesting, array, version=(1, 0), allow_pickle=False)
    return _described(array, digesting.digest.hexdigest())


def _described(array: NDArray[Any], sha256: str) -> dict[str, Any]:
    """What a header says of a member."""
    return {
        "dtype": array.dtype.newbyteorder("<").str,
        "shape": list(array.shape),
        "sha256": sha256,
    }


def read_arrays(
    source: atomic.Source, kind: str, schema: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and metadata of a file of this kind, as they were written.

    Raises:
        FileFormatError: It is anything else, or damaged anywhere.
    """
    with _opened(source) as stream, _explained(source):
        members = _members(stream)
        content = codec.loads(_header(stream, members), kind, schema)
        listed = content.pop("members", None)
        if not isinstance(listed, dict) or listed.keys() != members.keys() - {_HEADER}:
            raise FileFormatError("It holds other arrays than its header lists: it was damaged.")
        raw, digests = {}, {}
        # To digest takes as long as to read: one member is digested while others are read.
        with ThreadPoolExecutor(_DIGESTERS) as pool:
            for name in listed:
                raw[name] = _stored_bytes(stream, members[name], name)
                digests[name] = pool.submit(hashlib.sha256, raw[name].data)
        return {
            name: _listed(raw[name], digests[name].result().hexdigest(), said, name)
            for name, said in listed.items()
        }, content


def _listed(raw: NDArray[np.uint8], sha256: str, said: Any, name: str) -> NDArray[Any]:
    """An array of which the header says type, shape and SHA-256; damaged bytes are not parsed."""
    if isinstance(said, dict) and said.get("sha256") == sha256:
        array = _array(raw, name)
        if said == _described(array, sha256):
            return array
    raise _damaged(name, "is not what the header says")


def read_npz(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file that anybody wrote, held to the checksums of the zip.

    Raises:
        FileFormatError: It is damaged, or holds anything but numbers, flags and text.
    """
    members = _members(stream)
    found = {}
    with _refused("it"), zipfile.ZipFile(stream) as archive:
        for name, info in members.items():
            with _refused(name):
                raw = np.frombuffer(bytearray(archive.read(info)), np.uint8)
            found[name] = _array(raw, name)
    return found


def read_kind(stream: IO[bytes], name: str) -> str | None:
    """What kind of file an open npz file says it is, before its arrays are read.

    Returns:
        The kind; None where it has no header, and so is not one of ours.

    Raises:
        FileFormatError: It is damaged.
    """
    with _explained(name):
        members = _members(stream)
        if _HEADER not in members:
            return None
        content = codec.parse(_header(stream, members))
        return str(content.get("kind") if isinstance(content, dict) else None)


def header_digest(path: str | os.PathLike[str]) -> str | None:
    """What tells a file of arrays from any other, without reading them; None of what is none."""
    try:
        with Path(path).open("rb") as stream:
            return hashlib.sha256(_header(stream, _members(stream))).hexdigest()
    except (OSError, FileFormatError):
        return None


def check_expansion(size: int, unpacked: int) -> None:
    """Refuse a file of this size that asks for so much more memory."""
    if unpacked > max(_PLAIN_BYTES, _EXPANSION * size):
        raise FileFormatError(
            f"{size} bytes unpack to {unpacked}, far more than canary data would. Refused as a "
            "likely decompression bomb."
        )


def _members(stream: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """The directory of an npz file, by the names of its arrays."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(size - _END_BYTES, 0))
    ended = stream.read(4) == b"PK\5\6"
    with _refused("its directory"), zipfile.ZipFile(stream) as archive:
        found, comment = archive.infolist(), archive.comment
    # Nothing before, behind or beside the members: those would be bytes that nothing checks.
    if not ended or comment or (found and min(info.header_offset for info in found)):
        raise _damaged("its end")
    if len(found) > _MEMBERS:
        raise _damaged("its directory", f"lists {len(found)} members, more than a file of ours has")
    for info in found:
        _check_member(info, size)
    members = {info.filename.removesuffix(".npy"): info for info in found}
    if len(members) != len(found):
        raise _damaged("a member", "is there twice")
    check_expansion(size, sum(info.file_size for info in found))
    return members


def _check_member(info: zipfile.ZipInfo, size: int) -> None:
    name = info.filename
    if not (name.endswith(".npy") and name.isascii() and name.isprintable()):
        raise _damaged(f"its member {name[:80]!r}", "is no array")
    packed = info.compress_type == zipfile.ZIP_DEFLATED
    if info.comment:
        # A damaged length makes one of the entries behind it, and a file without a header.
        raise _damaged(f"its member {name[:80]!r}", "has a comment")
    if info.flag_bits & 1 or not (packed or info.compress_type == zipfile.ZIP_STORED):
        raise _damaged("a part of it", "is encrypted or packed in a way numpy does not use")
    if info.header_offset + info.compress_size > size or not (
        packed or info.compress_size == info.file_size
    ):
        raise _damaged("the size of a member")


def _header(stream: IO[bytes], members: dict[str, zipfile.ZipInfo]) -> bytes:
    if _HEADER not in members:
        raise FileFormatError(
            "It is an npz file, but not one of askgauss: it has no header. Make CanaryScores of "
            "the arrays in Python and save() them."
        )
    if members[_HEADER].file_size > _HEADER_BYTES:
        raise FileFormatError("Its header is too large to be one of ours.")
    raw = _stored_bytes(stream, members[_HEADER], _HEADER)
    if zlib.crc32(raw.data) != members[_HEADER].CRC:
        raise _damaged(_HEADER)
    array = _array(raw, _HEADER)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise FileFormatError("Its header is no text.")
    return array.tobytes()


def _stored_bytes(stream: IO[bytes], info: zipfile.ZipInfo, name: str) -> NDArray[np.uint8]:
    """The bytes of a member that is not packed; its SHA-256 is checked, and not its checksum."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise _damaged("a part of it", "is packed, which askgauss does not")
    stream.seek(info.header_offset + _LOCAL_BYTES - 4)
    lengths = stream.read(4)
    raw = np.empty(info.file_size, np.uint8)
    if len(lengths) == 4:
        stream.seek(sum(struct.unpack("<2H", lengths)), io.SEEK_CUR)
        readinto: Any = getattr(stream, "readinto", None)
        if readinto(raw.data) == raw.size:
            return raw
    raise _damaged(name)


def _array(raw: NDArray[np.uint8], name: str) -> NDArray[Any]:
    """The array of a member's bytes, in their place; it must fill them."""
    head = io.BytesIO(raw[:_NPY_HEADER].tobytes())
    with _refused(name, "is no array of numbers, flags or text, and nothing is unpickled"):
        shape, transposed, dtype = _NPY_HEADERS[np.lib.format.read_magic(head)](head)
        if dtype.kind not in "biufUS" or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(dtype)
    values = raw[head.tell() :]
    if math.prod(shape) * dtype.itemsize != values.size:
        raise _damaged(
            name,
            f"says it holds {math.prod(shape)} values of {dtype.itemsize} bytes, and has "
            f"{values.size}",
        )
    with _refused(name):
        array = values.view(dtype).reshape(shape[::-1] if transposed else shape)
    if dtype == np.bool_ and array.size and values.max() > 1:
        raise _damaged(name, "holds a flag that is neither true nor false")
    return array.T if transposed else array


def _damaged(what: str, detail: str = "is damaged") -> FileFormatError:
    return FileFormatError(
        f"It is truncated, corrupt or not an npz file: {what} {detail}. Restore it, or write it "
        "again with askgauss."
    )


@contextlib.contextmanager
def _refused(what: str, detail: str = "is damaged") -> Iterator[None]:
    """Say of what a library cannot read that it is damaged."""
    try:
        yield
    except FileFormatError:
        raise
    except _DAMAGE as error:
        raise _damaged(what, detail) from error


@contextlib.contextmanager
def _opened(source: atomic.Source) -> Iterator[IO[bytes]]:
    if isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb") as stream:
            yield stream
    else:
        yield io.BytesIO(atomic.read_stream(source, "the input stream"))


@contextlib.contextmanager
def _explained(source: atomic.Source) -> Iterator[None]:
    """Errors that name the file."""
    name = "the input stream"
    if isinstance(source, (str, os.PathLike)):
        name = str(source)
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"Cannot read {name}: {error}") from error
    except MemoryError as error:
        raise FileFormatError(f"Cannot read {name}: it needs more memory than there is.") from error
