"""Members of npz files, byte by byte: every one is read and checked, and no size is believed.

numpy reads as much of a member as its array needs, and a zip library what the directory says. Here
the directory, the headers before the members and the headers of the arrays must agree to the byte,
members lie next to each other without gap or overlap, and memory is taken for what the file holds.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["Archive", "check_expansion", "write"]

# Unpacked, a file may take this much whatever its size; beyond it only so many times its size.
_PLAIN_BYTES = 1 << 28
_EXPANSION = 50
# Ours hold a few dozen members.
_MEMBERS = 10_000
_DIRECTORY = 1 << 22
_CHUNK = 1 << 18
_DIGESTERS = 2
_STORED, _DEFLATED = 0, 8
_UTF8 = 0x800
_NOWHERE = 0xFFFFFFFF

_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")

# As numpy writes it, and nothing else: what a program might make of another spelling is not asked.
_NPY = re.compile(
    rb"\{'descr': '(<[iuf][248]|\|[biu]1|<U[0-9]{1,6}|\|S[0-9]{1,6})', "
    rb"'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18},)?|[0-9]{1,18}(?:, [0-9]{1,18}){1,7})\), \} *\n"
)
_NPY_HEADER = 1 << 12


@dataclass(frozen=True, slots=True)
class _Member:
    """Where a member lies, and what the directory says of it."""

    offset: int
    flags: int
    method: int
    checksum: int
    packed: int
    size: int


def _described(array: NDArray[Any], sha256: str) -> dict[str, Any]:
    """What a header says of a member."""
    return {
        "dtype": array.dtype.newbyteorder("<").str,
        "shape": list(array.shape),
        "sha256": sha256,
    }


class Archive:
    """An npz file whose directory is sound; members are read one by one.

    Args:
        stream: A binary stream that can seek.

    Raises:
        FileFormatError: It is no such file, damaged, or made to unpack to far more than it is.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._members, start = _directory(stream)
        self._check_places(start)
        unpacked = sum(member.size for member in self._members.values())
        check_expansion(stream.seek(0, io.SEEK_END), unpacked)

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self._members)

    def size(self, name: str) -> int:
        """Bytes of an array with its header."""
        return self._members[name].size

    def read(self, name: str) -> NDArray[Any]:
        """One array; every byte of its member is read and held against the checksum of the zip.

        Raises:
            FileFormatError: It is damaged, or no plain array of numbers, flags or text.
        """
        bytes_ = _MemberBytes(self._stream, self._members[name], name)
        array = _read_array(bytes_, name)
        bytes_.finish(summed=True)
        return array

    def read_listed(self, listed: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Arrays of which a header says type, shape and SHA-256, which stands for the checksum.

        To digest takes as long as to read, so that one member is digested while others are read.

        Args:
            listed: What the header says of each, as `write` gives it.

        Raises:
            FileFormatError: One is damaged, or no plain array of numbers, flags or text.
        """
        arrays, digests = {}, {}
        with ThreadPoolExecutor(_DIGESTERS) as pool:
            for name in listed:
                bytes_ = _MemberBytes(self._stream, self._members[name], name)
                arrays[name] = _read_array(bytes_, name)
                bytes_.finish(summed=False)
                digests[name] = pool.submit(_sha256, bytes_.parts)
        for name, array in arrays.items():
            if listed[name] != _described(array, digests[name].result()):
                raise _damaged(name, "is not what the header says")
        return arrays

    def _check_places(self, start: int) -> None:
        """Members fill the file up to the directory, each after the one before."""
        end = 0
        for name, member in sorted(self._members.items(), key=lambda item: item[1].offset):
            if member.offset != end:
                raise _damaged(f"the place of {name}")
            end += _check_local(self._stream, name, member) + member.packed
        if end != start:
            raise _damaged("the place of the directory")


def _damaged(what: str, detail: str = "is damaged") -> FileFormatError:
    return FileFormatError(
        f"It is truncated, corrupt or not an npz file: {what} {detail}. Restore it, or write it "
        "again with askgauss."
    )


def _unpack(layout: struct.Struct, data: bytes, magic: bytes, what: str) -> tuple[Any, ...]:
    if len(data) < layout.size or not data.startswith(magic):
        raise _damaged(what)
    return layout.unpack_from(data)[1:]


def _directory(stream: IO[bytes]) -> tuple[dict[str, _Member], int]:
    """The members by the name of their array, and where the directory begins."""
    size = stream.seek(0, io.SEEK_END)
    tail_at = max(size - _END.size - _LOCATOR.size - _END64.size, 0)
    stream.seek(tail_at)
    tail = stream.read()
    disk, first, here, count, length, start, comment = _unpack(
        _END, tail[-_END.size :], b"PK\5\6", "its end"
    )
    end = size - _END.size
    if tail[:4] == b"PK\6\6" and tail[_END64.size :][:4] == b"PK\6\7":
        _, _, _, disk, first, here, count, length, start = _unpack(
            _END64, tail, b"PK\6\6", "its end"
        )
        _, place, disks = _unpack(_LOCATOR, tail[_END64.size :], b"PK\6\7", "its end")
        if place != tail_at or disks != 1:
            raise _damaged("its end")
        end = tail_at
    if disk or first or comment or here != count or start + length != end:
        raise _damaged("its end")
    if count > _MEMBERS or length > _DIRECTORY:
        raise _damaged("its directory", f"lists {count} members, far more than a file of ours has")
    stream.seek(start)
    members = dict(_entries(stream.read(length), count))
    if len(members) != count:
        raise _damaged("a member", "is there twice")
    return members, start


def _entries(data: bytes, count: int) -> Iterator[tuple[str, _Member]]:
    at = 0
    for _ in range(count):
        fields = _unpack(_ENTRY, data[at : at + _ENTRY.size], b"PK\1\2", "its directory")
        _, _, flags, method, _, _, checksum, packed, size = fields[:9]
        name_length, extra_length, comment, disk, _, _, offset = fields[9:]
        at += _ENTRY.size
        name = data[at : at + name_length]
        extra = data[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length
        size, packed, offset = _large(extra, [size, packed, offset])
        known = method in (_STORED, _DEFLATED) and not flags & ~_UTF8
        if at > len(data) or comment or disk or not known:
            raise _damaged("a part of it", "is encrypted or packed in a way numpy does not use")
        if method == _STORED and packed != size:
            raise _damaged("the size of a member")
        yield _array_name(name), _Member(offset, flags, method, checksum, packed, size)
    if at != len(data):
        raise _damaged("its directory")


def _array_name(raw: bytes) -> str:
    if not (raw.endswith(b".npy") and raw.isascii() and raw.decode("ascii").isprintable()):
        raise _damaged(f"its member {raw[:80]!r}", "is no array")
    return raw[: -len(b".npy")].decode("ascii")


def _large(extra: bytes, fields: list[int]) -> list[int]:
    """Sizes beyond four bytes, which stand in an extra field."""
    missing = [index for index, value in enumerate(fields) if value == _NOWHERE]
    if not extra:
        return fields
    # The header before a member always has room for both sizes; the directory for what is needed.
    wanted = struct.calcsize("<HH") + 8 * len(missing)
    if len(extra) != wanted or extra[:4] != struct.pack("<HH", 1, 8 * len(missing)):
        raise _damaged("an extra field")
    for index, value in zip(
        missing, struct.unpack_from(f"<{len(missing)}Q", extra, 4), strict=True
    ):
        fields[index] = value
    return fields


def _check_local(stream: IO[bytes], name: str, member: _Member) -> int:
    """Compare the header before a member with the directory; its length."""
    stream.seek(member.offset)
    head = stream.read(_LOCAL.size)
    _, flags, method, _, _, checksum, packed, size, name_length, extra_length = _unpack(
        _LOCAL, head, b"PK\3\4", f"the header of {name}"
    )
    rest = stream.read(name_length + extra_length)
    size, packed = _large(rest[name_length:], [size, packed])
    if (
        rest[:name_length] != f"{name}.npy".encode("ascii")
        or len(rest) != name_length + extra_length
        or (flags, method, checksum, packed, size)
        != (member.flags, member.method, member.checksum, member.packed, member.size)
    ):
        raise _damaged(f"the header of {name}")
    return len(head) + len(rest)


def _sha256(parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class _MemberBytes:
    """The bytes of one member in turn, unpacked and counted; `parts` are those handed out."""

    def __init__(self, stream: IO[bytes], member: _Member, name: str) -> None:
        # The header before it was compared with the directory, so that its length is known.
        stream.seek(member.offset + _LOCAL.size - 4)
        skipped = sum(struct.unpack("<2H", stream.read(4)))
        stream.seek(skipped, io.SEEK_CUR)
        self.left = member.size
        self._stream, self._member, self._name = stream, member, name
        self._packed = member.packed
        self._unpacker = zlib.decompressobj(-15) if member.method == _DEFLATED else None
        self.parts: list[memoryview] = []

    def take(self, count: int) -> bytes:
        """So many bytes."""
        if count > self.left:
            raise _damaged(self._name)
        found = bytearray(count)
        self.fill(memoryview(found))
        return bytes(found)

    def fill(self, target: memoryview) -> None:
        """Bytes for all of the target."""
        if len(target) > self.left:
            raise _damaged(self._name)
        for start in range(0, len(target), _CHUNK):
            part = target[start : start + _CHUNK]
            filled = self._stream_into(part) if self._unpacker is None else self._unpack_into(part)
            if filled != len(part):
                raise _damaged(self._name)
        self.parts.append(target)
        self.left -= len(target)

    def _stream_into(self, part: memoryview) -> int:
        readinto: Any = getattr(self._stream, "readinto", None)
        return int(readinto(part) or 0)

    def _unpack_into(self, part: memoryview) -> int:
        assert self._unpacker is not None
        filled = 0
        while filled < len(part) and not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail
            if not packed:
                packed = self._stream.read(min(self._packed, _CHUNK))
                self._packed -= len(packed)
            try:
                piece = self._unpacker.decompress(packed, len(part) - filled)
            except zlib.error as error:
                raise _damaged(self._name) from error
            if not piece and not packed:
                break
            part[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def finish(self, *, summed: bool) -> None:
        """Refuse a member that was not read to its end or, summed, does not fit its checksum."""
        if self._unpacker is not None and not self.left:
            # The end of the packed bytes may still be ahead; nothing but it.
            rest = self._unpacker.unconsumed_tail + self._stream.read(self._packed)
            try:
                more = self._unpacker.decompress(rest, 1)
            except zlib.error as error:
                raise _damaged(self._name) from error
            if more or not self._unpacker.eof or self._unpacker.unused_data:
                raise _damaged(self._name)
        if self.left:
            raise _damaged(self._name)
        if summed and self._checksum() != self._member.checksum:
            raise _damaged(self._name)

    def _checksum(self) -> int:
        found = 0
        for part in self.parts:
            found = zlib.crc32(part, found)
        return found


def check_expansion(size: int, unpacked: int) -> None:
    """Refuse a file of this size that asks for so much more memory."""
    if unpacked > max(_PLAIN_BYTES, _EXPANSION * size):
        raise FileFormatError(
            f"{size} bytes unpack to {unpacked}, far more than canary data would. Refused as a "
            "likely decompression bomb."
        )


def _read_array(source: _MemberBytes, name: str) -> NDArray[Any]:
    """The array of a member, which must fill it."""
    dtype, shape, transposed = _array_header(source, name)
    count = math.prod(shape)
    if count * dtype.itemsize != source.left:
        raise _damaged(
            name, f"says it holds {count} values of {dtype.itemsize} bytes, and has {source.left}"
        )
    array = np.empty(shape[::-1] if transposed else shape, dtype)
    if count and dtype.itemsize:
        flat: Any = array.reshape(-1).view(np.uint8)
        source.fill(memoryview(flat))
    if dtype == np.bool_ and count and array.view(np.uint8).max() > 1:
        raise _damaged(name, "holds a flag that is neither true nor false")
    return array.T if transposed else array


def _array_header(source: _MemberBytes, name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    version = source.take(8)
    if version[:6] != b"\x93NUMPY" or version[6:] not in (b"\1\0", b"\2\0"):
        raise _damaged(name, "is no array")
    width = 2 if version[6] == 1 else 4
    length = int.from_bytes(source.take(width), "little")
    match = _NPY.fullmatch(source.take(length)) if length <= _NPY_HEADER else None
    if match is None:
        raise _damaged(name, "is no array of numbers, flags or text, and nothing is unpickled")
    shape = tuple(int(part) for part in match[3].decode().replace(" ", "").split(",") if part)
    # What is empty may have other sides of any length; no array has these.
    if math.prod(side for side in shape if side) >= 1 << 60:
        raise _damaged(name)
    return np.dtype(match[1].decode()), shape, match[2] == b"True"


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


def write(
    stream: IO[bytes],
    arrays: Mapping[str, NDArray[Any]],
    name: str,
    header: Callable[[dict[str, dict[str, Any]]], bytes],
) -> None:
    """Write arrays, then a header by its name, made of what the arrays became.

    Args:
        stream: A binary stream that can seek.
        arrays: The arrays.
        name: Name of the header.
        header: Makes it of dtype, shape and SHA-256 of every member.
    """
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        members = {key: _write_member(archive, key, array) for key, array in arrays.items()}
        _write_member(archive, name, np.frombuffer(header(members), np.uint8))


def _write_member(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> dict[str, Any]:
    # Files of any machine are read on any other.
    array = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        digesting = _Digesting(member)
        np.lib.format.write_array(digesting, array, version=(1, 0), allow_pickle=False)
    return _described(array, digesting.digest.hexdigest())
