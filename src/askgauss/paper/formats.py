"""The formats image sets come in: IDX, npz, CIFAR batches, sprites.

Nothing in them executes, and no file takes more memory than such a set has.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError, MissingExtraError
from askgauss.paper import cifar_pickle

__all__ = [
    "cifar_binary",
    "read_cifar_binary",
    "read_cifar_pickle",
    "read_file",
    "read_idx",
    "read_npz",
    "read_sprite",
    "read_stream",
]

Bytes = NDArray[np.uint8]

_CIFAR_ROW = 3073
# Far more than any file of these sets, and far less than a machine has.
_MOST_BYTES = 1 << 26
_MOST_VALUES = 1 << 28
_CHUNK = 1 << 22


def read_file(path: Path) -> bytes:
    """All of a file of a batch or of pictures.

    Raises:
        FileFormatError: It is far larger than any of them.
    """
    return read_stream(path.open("rb"), str(path))


def read_stream(stream: IO[bytes], name: str) -> bytes:
    """All of an open file, which is closed; of one that is too large, no more than the limit."""
    with stream:
        raw = stream.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise FileFormatError(
            f"Expected {name!r} to have at most {_MOST_BYTES >> 20} MB, got more: it is not a file "
            "of this set."
        )
    return raw


def read_idx(path: Path) -> Bytes:
    """An IDX file of bytes, gzipped or not; no more is unpacked than its head says it holds.

    Raises:
        FileFormatError: The file is not IDX, not of bytes, not as long as it says, or says it is
            far longer than any of these sets.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            if not packed:
                return _read_idx(file, str(path))
            with gzip.open(file) as unpacked:
                return _read_idx(unpacked, str(path))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileFormatError(f"Cannot unpack {str(path)!r}: {error}.") from error


def _read_idx(stream: IO[bytes] | gzip.GzipFile, name: str) -> Bytes:
    head = stream.read(4)
    axes = head[3] if len(head) == 4 else 0
    sizes = stream.read(4 * axes)
    if head[:3] != b"\x00\x00\x08" or not 1 <= axes <= 4 or len(sizes) < 4 * axes:
        raise FileFormatError(f"Expected {name!r} to be an IDX file of bytes.")
    shape = struct.unpack(f">{axes}I", sizes)
    wanted = _count(shape, name)
    raw = stream.read(wanted + 1)
    if len(raw) != wanted:
        found = "more" if len(raw) > wanted else f"{len(raw)}: it is truncated"
        raise FileFormatError(
            f"Expected {wanted} bytes of data in {name!r}, got {found}. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _count(shape: tuple[int, ...], name: str) -> int:
    """Number of values of an array a file speaks of, before any room is made for it."""
    count = math.prod(shape)
    if count > _MOST_VALUES:
        raise FileFormatError(
            f"Expected {name} to hold at most {_MOST_VALUES} values, it says {count}: it is not of "
            "this set."
        )
    return count


def read_npz(path: Path, parts: Sequence[str]) -> dict[str, Bytes]:
    """Arrays of small whole numbers from an npz file, as bytes.

    Numbers are read a piece at a time and kept as bytes, so that a file of wide integers takes no
    more room than its content.

    Raises:
        FileFormatError: It is not an npz file with these arrays, or they are far too large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {part: _read_member(archive, part) for part in parts}
    except FileFormatError as error:
        raise FileFormatError(f"Cannot read {str(path)!r}: {error}") from error
    except PermissionError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        ValueError,
        KeyError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise FileFormatError(
            f"Expected {str(path)!r} to be an npz file with {', '.join(parts)}: {error}."
        ) from error


def _read_member(archive: zipfile.ZipFile, part: str) -> Bytes:
    info = archive.getinfo(f"{part}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileFormatError(f"{part} is packed in a way that npz files are not.")
    axes = (3, 4) if part.endswith("images") else (1,)
    with archive.open(info) as stream:
        shape, fortran, dtype = _npy_head(stream)
        if dtype.kind not in "iu" or len(shape) not in axes or fortran:
            raise FileFormatError(f"Expected {part} to be whole numbers in {axes} axes, C order.")
        values = np.empty(_count(shape, part), np.uint8)
        for start in range(0, values.size, _CHUNK):
            piece = values[start : start + _CHUNK]
            raw = stream.read(piece.size * dtype.itemsize)
            if len(raw) != piece.size * dtype.itemsize:
                raise FileFormatError(f"{part} is truncated.")
            numbers = np.frombuffer(raw, dtype)
            if numbers.min() < 0 or numbers.max() > 255:
                raise FileFormatError(f"Expected {part} to be 0 to 255, got other numbers.")
            piece[:] = numbers
        if stream.read(1):
            raise FileFormatError(f"{part} goes on after its end.")
    return values.reshape(*shape, *[1] * (max(axes) - len(shape)))


def _npy_head(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise FileFormatError(f"There is no version {version} of arrays that is read here.")
    try:
        head: tuple[tuple[int, ...], bool, np.dtype[Any]] = readers[version](stream)
    except (SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        # The head is a Python literal, and numpy lets whatever its parser says through.
        raise FileFormatError(f"The head of an array cannot be read: {error}.") from error
    return head


def read_cifar_binary(raw: bytes, name: str) -> tuple[Bytes, Bytes]:
    """Images (n, 32, 32, 3) and labels of one file of the official binary version.

    Raises:
        FileFormatError: The length is no multiple of a row, or a label is above 9.
    """
    if not raw or len(raw) % _CIFAR_ROW:
        raise FileFormatError(
            f"Expected {name} to hold rows of {_CIFAR_ROW} bytes, got {len(raw)} bytes."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_ROW)
    return _planes_to_images(rows[:, 1:]), _labels(rows[:, 0], name)


def cifar_binary(images: Bytes, labels: Bytes) -> bytes:
    """One file of the official binary version: a label, then red, green and blue planes.

    Examples:
        >>> len(cifar_binary(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.uint8)))
        6146
    """
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).astype(np.uint8).tobytes()


def read_cifar_pickle(raw: bytes, name: str) -> tuple[Bytes, Bytes]:
    """Images and labels of one batch of the official python version, which is never unpickled.

    Raises:
        FileFormatError: The pickle asks for anything but arrays, or is not such a batch.
    """
    batch = cifar_pickle.read_batch(raw, name, row=_CIFAR_ROW - 1)
    planes = np.frombuffer(batch.pixels, np.uint8).reshape(len(batch.labels), _CIFAR_ROW - 1)
    return _planes_to_images(planes), _labels(np.array(batch.labels, dtype=np.int64), name)


def read_sprite(raw: bytes, name: str, *, size: int) -> Bytes:
    """Colour images stored one a row in a lossless picture: (n, size, size, 3).

    Raises:
        FileFormatError: It is not such a picture.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError(
            "Reading pictures needs Pillow: install askgauss[paper]."
        ) from error
    try:
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as picture:
            # The size is known before anything is decoded.
            if picture.mode != "RGB" or picture.size[0] != size * size or picture.size[1] > 100_000:
                raise FileFormatError(
                    f"Expected {name} to be RGB and {size * size} wide, got {picture.mode} "
                    f"{picture.size}."
                )
            pixels = np.asarray(picture)
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:
        raise FileFormatError(f"Expected {name} to be a PNG picture: {error}.") from error
    return pixels.reshape(-1, size, size, 3)


def _planes_to_images(planes: Bytes) -> Bytes:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(labels: NDArray[Any], name: str) -> Bytes:
    if labels.size and not (labels.min() >= 0 and labels.max() <= 9):
        raise FileFormatError(f"Expected labels 0 to 9 in {name}, got others.")
    return labels.astype(np.uint8)
