"""Reading and writing files: whole or not at all, and never executing what they contain."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _plain
from askgauss.exceptions import FileFormatError

__all__ = ["Source", "atomic_write", "read_arrays", "read_bytes", "write_arrays", "write_text"]

Source = str | os.PathLike[str] | IO[bytes]

# A file may unpack to this much whatever its size; beyond it only to this many times its size.
_PLAIN_BYTES = 1 << 28
_EXPANSION = 50


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes its name only once it is whole and on disk."""
    target = Path(path)
    if target.exists() and not target.is_file():
        # A device or a pipe has no whole to wait for, and must not be replaced by a file.
        with target.open("wb") as stream:
            yield stream
        return
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """UTF-8 text, whole or not at all."""
    with atomic_write(path) as stream:
        stream.write(text.encode("utf-8"))


def read_bytes(source: Source) -> bytes:
    """All of a file or of an open binary stream."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).read_bytes()
    return source.read()


def write_arrays(
    target: str | os.PathLike[str] | IO[bytes],
    kind: str,
    schema: int,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
) -> None:
    """Arrays and JSON metadata as one npz file without pickles."""
    header = np.frombuffer(_plain.dumps(kind, schema, metadata, None).encode("utf-8"), np.uint8)
    if isinstance(target, (str, os.PathLike)):
        with atomic_write(target) as stream:
            _savez(stream, header, arrays)
    else:
        # A pipe cannot seek back to write the zip directory, so it is put together in memory.
        buffer = io.BytesIO()
        _savez(buffer, header, arrays)
        target.write(buffer.getvalue())


def _savez(stream: IO[bytes], header: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(stream, allow_pickle=False, askgauss=header, **arrays)


def read_arrays(
    source: Source, kind: str, schema: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and metadata of a file of this kind; `FileFormatError` if it is anything else."""
    name = str(source) if isinstance(source, (str, os.PathLike)) else "the input stream"
    stream = Path(source) if isinstance(source, (str, os.PathLike)) else io.BytesIO(source.read())
    try:
        with zipfile.ZipFile(stream) as archive:
            _refuse_bomb(archive, name)
        if isinstance(stream, io.BytesIO):
            stream.seek(0)
        with np.load(stream, allow_pickle=False) as content:
            if "askgauss" not in content.files:
                raise FileFormatError(
                    f"{name} is an npz file, but not one of askgauss: it has no header. "
                    "Read the arrays yourself and build the object from them."
                )
            metadata = _plain.loads(content["askgauss"].tobytes(), kind, schema)
            arrays = {key: content[key] for key in content.files if key != "askgauss"}
    except FileFormatError as error:
        raise FileFormatError(f"Cannot read {name}: {error}") from error
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        OSError,
        zlib.error,
    ) as error:
        # A damaged directory of the archive surfaces as any of these.
        raise FileFormatError(
            f"Cannot read {name}: it is truncated, corrupt or not an npz file ({error}). "
            f"Expected a file of kind {kind!r}."
        ) from error
    return arrays, metadata


def _refuse_bomb(archive: zipfile.ZipFile, name: str) -> None:
    packed = sum(member.compress_size for member in archive.infolist())
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(_PLAIN_BYTES, _EXPANSION * packed):
        raise FileFormatError(
            f"{packed} bytes of {name} unpack to {unpacked}, far more than canary data would. "
            "Refused as a likely decompression bomb."
        )
