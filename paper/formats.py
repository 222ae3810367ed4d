"""The file formats of the image sets: IDX, npz, CIFAR's binary version, sprites.

None of them executes anything, and no file takes more memory than such a set has.
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

__all__ = [
    "cifar_binary",
    "read_cifar_binary",
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
# What zipfile and numpy raise on a damaged or foreign file.
_NPZ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, KeyError, TypeError, OverflowError, MemoryError),
    *(SyntaxError, tokenize.TokenError),
)


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
    """An IDX file of bytes, gzipped or not; no more is unpacked than its header declares.

    Raises:
        FileFormatError: The file is not IDX, not of bytes, not as long as it says, or says it is
            far longer than any of these sets.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            return _read_idx(gzip.open(file) if packed else file, str(path))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileFormatError(f"Cannot unpack {str(path)!r}: {error}.") from error


def _read_idx(stream: IO[bytes] | gzip.GzipFile, name: str) -> Bytes:
    head = stream.read(4)
    axes = head[3] if len(head) == 4 else 0
    sizes = stream.read(4 * axes)
    if head[:3] != b"\x00\x00\x08" or not 1 <= axes <= 4 or len(sizes) < 4 * axes:
        raise FileFormatError(f"Expected {name!r} to be an IDX file of bytes.")
    shape = struct.unpack(f">{axes}I", sizes)
    wanted = math.prod(shape)
    if wanted > _MOST_VALUES:
        raise FileFormatError(
            f"Expected {name} to hold at most {_MOST_VALUES} values, it says {wanted}: it is not "
            "of this set."
        )
    raw = stream.read(wanted + 1)
    if len(raw) != wanted:
        found = "more" if len(raw) > wanted else f"{len(raw)}: it is truncated"
        raise FileFormatError(
            f"Expected {wanted} bytes of data in {name!r}, got {found}. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def read_npz(path: Path, parts: Sequence[str]) -> dict[str, Bytes]:
    """Arrays of small whole numbers from an npz file, as bytes.

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
    except _NPZ_ERRORS as error:
        raise FileFormatError(
            f"Expected {str(path)!r} to be an npz file with {', '.join(parts)}: {error}."
        ) from error


def _read_member(archive: zipfile.ZipFile, part: str) -> Bytes:
    name = f"{part}.npy"
    # Eight bytes a value at most; the archive never unpacks more than this number.
    if archive.getinfo(name).file_size > 8 * _MOST_VALUES:
        raise FileFormatError(f"Expected {part} to hold at most {_MOST_VALUES} values.")
    # The whole member, so that its checksum is verified.
    stream = io.BytesIO(archive.read(name))
    values: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    axes = (3, 4) if part.endswith("images") else (1,)
    if values.dtype.kind not in "iu" or values.ndim not in axes or not values.flags.c_contiguous:
        raise FileFormatError(f"Expected {part} to be whole numbers in {axes} axes, C order.")
    if stream.read(1):
        raise FileFormatError(f"{part} goes on after its end.")
    if values.size and (values.min() < 0 or values.max() > 255):
        raise FileFormatError(f"Expected {part} to be 0 to 255, got other numbers.")
    return values.astype(np.uint8).reshape(*values.shape, *[1] * (max(axes) - values.ndim))


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
    labels = rows[:, 0].copy()
    if labels.max() > 9:
        raise FileFormatError(f"Expected labels 0 to 9 in {name}, got others.")
    return np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels


def cifar_binary(images: Bytes, labels: Bytes) -> bytes:
    """One file of the official binary version: a label, then red, green and blue planes.

    Examples:
        >>> len(cifar_binary(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.uint8)))
        6146
    """
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).astype(np.uint8).tobytes()


def read_sprite(raw: bytes, name: str, *, size: int) -> Bytes:
    """Colour images stored one a row in a lossless picture: (n, size, size, 3).

    Raises:
        FileFormatError: It is not such a picture.
        MissingExtraError: Pillow is not installed.
    """
    try:
        from PIL import Image
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
    # UnidentifiedImageError is an OSError.
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise FileFormatError(f"Expected {name} to be a PNG picture: {error}.") from error
    return pixels.reshape(-1, size, size, 3)
