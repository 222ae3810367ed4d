"""Files are written whole or not at all, and documents are read up to a size."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from askgauss.exceptions import FileFormatError, UnprotectedFileWarning
from askgauss.files import lock

__all__ = [
    "DOCUMENT_BYTES",
    "Source",
    "atomic_write",
    "check_digest",
    "digest_path",
    "read_bytes",
    "read_stream",
    "write_digest",
    "write_text",
    "write_with_digest",
]

Source = str | os.PathLike[str] | IO[bytes]

# A result has some hundred kilobytes of JSON; no document of ours has more than this.
DOCUMENT_BYTES = 1 << 26
# A transcript of ten million canaries has half a GB; a stream that never ends is none.
_STREAM_BYTES = 1 << 33

# A save that has not been touched for so long, and whose writer is gone, is left over.
_STALE_SECONDS = 60.0


@contextlib.contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, private: bool = False, sync: bool = True
) -> Iterator[IO[bytes]]:
    """A binary file that takes its name only once it is whole and on disk.

    Of a link, the file behind it is written; links in a circle are an OSError. What killed saves of
    the same file left is removed.

    Args:
        path: The file.
        private: Whether only its owner may read it, whatever the umask says.
        sync: Whether to wait for the disk; without it a crash of the machine may lose the content.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        # Links that lead in a circle have no file behind them, and are not ours to replace.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    if target.exists() and not target.is_file():
        # A device or a pipe has no whole to wait for, and must not be replaced by a file.
        with target.open("wb") as stream:
            yield stream
        return
    _remove_leftovers(target)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    mode = 0o600 if private else 0o666
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(part, flags, mode)
    except OSError as error:
        # The name that the caller knows: that of a part says nothing to anybody.
        error.filename = os.fspath(path)
        raise
    try:
        with os.fdopen(descriptor, "wb") as stream:
            lock.try_lock(stream)
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_leftovers(target: Path) -> None:
    """Remove parts of this file whose writers died; those still being written are locked."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")
    # Whatever hinders it, tidying up is not what the caller asked for.
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if not pattern.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                old = time.time() - entry.stat().st_mtime > _STALE_SECONDS
                with Path(entry).open("r+b") as stream:
                    left = old and lock.try_lock(stream)
                if left:
                    Path(entry).unlink()


def write_text(
    path: str | os.PathLike[str], text: str, *, private: bool = False, sync: bool = True
) -> None:
    """UTF-8 text, whole or not at all; see `atomic_write`."""
    with atomic_write(path, private=private, sync=sync) as stream:
        stream.write(text.encode("utf-8"))


def digest_path(path: Path) -> Path:
    """Where the SHA-256 of a file without room for one of its own stands."""
    return path.with_name(f"{path.name}.sha256")


def write_with_digest(path: Path, content: bytes) -> None:
    """A file, whole or not at all, and its SHA-256 beside it, which ``sha256sum --check`` reads."""
    # Removed first: a file without a digest is unprotected, one with another's is damaged.
    digest_path(path).unlink(missing_ok=True)
    with atomic_write(path) as stream:
        stream.write(content)
    write_text(digest_path(path), _digest_line(path, hashlib.sha256(content).hexdigest()))


def write_digest(path: Path, source: Path) -> None:
    """The SHA-256 of what is about to take this name, read from where it lies until then."""
    write_text(digest_path(path), _digest_line(path, _sha256(source)))


def check_digest(path: Path, kind: str, remedy: str) -> None:
    """Refuse a file that does not fit the SHA-256 beside it; warn where there is none.

    Args:
        path: The file.
        kind: What a warning calls it.
        remedy: What to do if it is damaged.

    Raises:
        FileFormatError: It was damaged.
    """
    beside = digest_path(path)
    if not beside.exists():
        warnings.warn(
            f"A file of kind {kind!r} is unprotected: there is no {beside.name} beside it, so that "
            "damage to it may go unnoticed. Make it again to protect it.",
            UnprotectedFileWarning,
            stacklevel=2,
        )
    elif read_bytes(beside, regular=True) != _digest_line(path, _sha256(path)).encode("utf-8"):
        raise FileFormatError(
            f"{str(path)!r} is damaged: its SHA-256 is not the one in {beside.name!r}. {remedy}"
        )


def _digest_line(path: Path, digest: str) -> str:
    return f"{digest}  {path.name}\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_bytes(source: Source, *, regular: bool = False) -> bytes:
    """All of a document: a file, or an open binary stream.

    Args:
        source: Where it is. A pipe or a device that is named on purpose is read like a stream.
        regular: Whether it must be a file like any other. What is looked for in a folder must be:
            a pipe there would be waited for, and nobody asked for it.

    Raises:
        FileFormatError: It is larger than any document, or no regular file.
        OSError: It cannot be read.
    """
    if not isinstance(source, (str, os.PathLike)):
        return read_stream(source, "the input stream", DOCUMENT_BYTES)
    path = Path(source)
    status = path.stat()
    if regular and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise FileFormatError(
            f"Expected {str(path)!r} to be a regular file, got a pipe or a device. Remove it."
        )
    if stat.S_ISREG(status.st_mode) and status.st_size > DOCUMENT_BYTES:
        raise _too_large(repr(str(path)), DOCUMENT_BYTES)
    with path.open("rb") as stream:
        return read_stream(stream, repr(str(path)), DOCUMENT_BYTES)


def read_stream(stream: IO[bytes], name: str, most: int = _STREAM_BYTES) -> bytes:
    """All of a stream that has an end.

    Raises:
        FileFormatError: It has more bytes than that.
    """
    parts, left = [], most + 1
    # A pipe that is not buffered gives what it has, and not all that was asked for.
    while left > 0 and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    if left <= 0:
        raise _too_large(name, most)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(name: str, most: int) -> FileFormatError:
    return FileFormatError(
        f"Cannot read {name}: expected {most >> 20} MB at most, got more. No file of this kind is "
        "so large: name the one that was written."
    )
