"""The formats image sets come in: IDX, CIFAR binary, CIFAR pickles, sprites. Nothing executes."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError, MissingExtraError

__all__ = ["cifar_binary", "read_cifar_binary", "read_cifar_pickle", "read_idx", "read_sprite"]

Bytes = NDArray[np.uint8]

_CIFAR_ROW = 3073
# The sets this reads unpack to 47 MB at most; more is taken for a decompression bomb.
_LARGEST_IDX = 1 << 28
# What an official batch is made of. Anything else a pickle asks for is refused by name.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


def read_idx(path: Path) -> Bytes:
    """An IDX file of bytes, gzipped or not.

    Raises:
        FileFormatError: The file is not IDX, not of bytes, or not as long as it says.
    """
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(raw)) as packed:
                raw = packed.read(_LARGEST_IDX + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise FileFormatError(f"Cannot unpack {str(path)!r}: {error}.") from error
        if len(raw) > _LARGEST_IDX:
            raise FileFormatError(
                f"Expected {str(path)!r} to unpack to at most {_LARGEST_IDX} bytes, got more. "
                "Unpack it yourself if it is what you think."
            )
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise FileFormatError(f"Expected {str(path)!r} to be an IDX file of bytes.")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    start = 4 + 4 * raw[3]
    wanted = int(np.prod(shape, dtype=object))
    if len(raw) - start != wanted:
        raise FileFormatError(
            f"Expected {wanted} bytes of data in {str(path)!r}, got {len(raw) - start}: it is "
            "truncated. Fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


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
    """Images and labels of one batch of the official python version, executing nothing.

    Raises:
        FileFormatError: The pickle asks for anything but arrays, or is not such a batch.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    except FileFormatError:
        raise
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise FileFormatError(f"Expected {name} to be a CIFAR batch: {error}.") from error
    data = batch.get(b"data") if isinstance(batch, dict) else None
    labels = batch.get(b"labels") if isinstance(batch, dict) else None
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise FileFormatError(f"Expected {name} to hold data and labels.")
    if data.dtype != np.uint8 or data.shape != (len(labels), _CIFAR_ROW - 1):
        raise FileFormatError(
            f"Expected data of {name} to be uint8 ({len(labels)}, {_CIFAR_ROW - 1}), got "
            f"{data.dtype} {data.shape}."
        )
    if not all(type(label) is int for label in labels):
        raise FileFormatError(f"Expected labels of {name} to be whole numbers.")
    return _planes_to_images(data), _labels(np.array(labels), name)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles plain values and numpy arrays; every other name is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise FileFormatError(
                f"Refused a pickle that asks for {module}.{name}: a CIFAR batch needs arrays only."
            )
        if name == "_reconstruct":
            return _empty_array
        return getattr(np, name)


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """What numpy's own pickles start from: an array that their state then fills."""
    if kind is not np.ndarray or shape != (0,):
        raise FileFormatError("Refused a pickled array that does not start out empty.")
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


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
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise FileFormatError(f"Expected {name} to be a PNG picture: {error}.") from error
    return pixels.reshape(-1, size, size, 3)


def _planes_to_images(planes: Bytes) -> Bytes:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(labels: NDArray[Any], name: str) -> Bytes:
    if labels.size and not (labels.min() >= 0 and labels.max() <= 9):
        raise FileFormatError(f"Expected labels 0 to 9 in {name}, got others.")
    return labels.astype(np.uint8)
