"""Files are written whole or not at all, and documents are read up to a size."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from askgauss.exceptions import (
    AskGaussError,
    FileFormatError,
    RecordingError,
    UnprotectedFileWarning,
)

__all__ = [
    "DOCUMENT_BYTES",
    "Holds",
    "RunFolderBusyError",
    "Source",
    "atomic_write",
    "check_digest",
    "digest_path",
    "locked",
    "read_bytes",
    "read_stream",
    "try_lock",
    "write_digest",
    "write_text",
    "write_with_digest",
]

# Files that one owner holds at a time: a run may write a new checkpoint every hour for weeks.
_MOST_HELD = 8


class RunFolderBusyError(AskGaussError):
    """Another process is using the folder."""


def try_lock(stream: IO[bytes]) -> bool:
    """Lock an open file until it is closed; False if another process has, or it cannot be."""
    try:
        _lock(stream)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock on a file, at once or not at all; the file says which process does.

    The file stays afterwards: to remove it would let two processes lock two files of one name.

    Raises:
        RunFolderBusyError: Another process holds it.
        OSError: The file cannot be opened, or not be locked where it lies.
    """
    try:
        stream = _open_locked(path, 0o666)
    except RunFolderBusyError as error:
        hint = "Wait for it, stop it, or use another folder."
        raise RunFolderBusyError(f"{error} {hint}") from error
    with stream:
        yield


def _open_locked(path: str | os.PathLike[str], mode: int) -> IO[bytes]:
    """A lock file, locked until it is closed; ``mode`` is that of a new one."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
    stream = os.fdopen(os.open(path, flags, mode), "a+b")
    try:
        _lock(stream)
    except (BlockingIOError, PermissionError) as error:
        with stream:
            stream.seek(0)
            holder = stream.read(20).decode("ascii", "replace").strip()
        which = f" ({holder})" if holder else ""
        raise RunFolderBusyError(f"{str(path)!r} is held by another process{which}.") from error
    except OSError:
        stream.close()
        raise
    stream.truncate(0)
    stream.write(b"%d\n" % os.getpid())
    stream.flush()
    return stream


@dataclass(slots=True, eq=False)
class _Lock:
    """A file that this process goes on with; without a stream where nothing can be locked."""

    stream: IO[bytes] | None = None
    holders: weakref.WeakSet[Holds] = field(default_factory=weakref.WeakSet)


# By the real path of what is held. A process is one holder to others, however many it has itself.
_held: dict[str, _Lock] = {}


class Holds:
    """The files of one owner, which no other process may go on with.

    They are held until the owner lets go, or is gone, or its process is. Owners in one process
    share what they hold, so that a run can be gone on with where it was saved. Where nothing can be
    locked (a folder that is read only, a file system without locks) nothing is held.
    """

    def __init__(self) -> None:
        # The oldest first; True for those that the owner does not share.
        self._files: dict[str, bool] = {}
        weakref.finalize(self, _close_unheld)

    def take(self, path: str | os.PathLike[str], *, alone: bool = False) -> bool:
        """Hold a file; True if it was not held before.

        Args:
            path: The file; of a link, the file behind it.
            alone: Whether to keep out other owners in this process, too.

        Raises:
            RecordingError: A live run has it.
        """
        real = os.path.realpath(path)
        if (place := Path(real)).exists() and not place.is_file():
            # A device or a pipe is not gone on with.
            return False
        lock = _held.setdefault(real, _Lock())
        fresh = self not in lock.holders
        lock.holders.add(self)
        try:
            others = [owner for owner in lock.holders if owner is not self]
            if (fresh or alone) and any(owner._files.get(real) for owner in others):
                raise RunFolderBusyError("it is in this process.")
            if lock.stream is None:
                with contextlib.suppress(OSError):
                    lock.stream = _open_locked(f"{real}.lock", 0o600)
        except RunFolderBusyError as error:
            if fresh:
                lock.holders.discard(self)
            raise RecordingError(
                f"Expected {str(path)!r} to belong to no live run, got one that another run goes "
                f"on with: {error} Two copies of a run would overwrite each other: stop one, or "
                "give each files of its own."
            ) from error
        self._files[real] = alone or self._files.pop(real, False)
        shared = [name for name, apart in self._files.items() if not apart]
        for name in shared[:-_MOST_HELD]:
            self.let_go(name)
        return fresh

    def let_go(self, path: str | os.PathLike[str] | None = None) -> None:
        """Hold a file no longer, or none of them."""
        # Also one whose taking was interrupted, so that it is not among the files yet.
        mine = (name for name, lock in [*_held.items()] if self in lock.holders)
        for real in {*self._files, *mine} if path is None else [os.path.realpath(path)]:
            self._files.pop(real, None)
            if real in _held:
                _held[real].holders.discard(self)
        _close_unheld()


def _close_unheld() -> None:
    """Let other processes have the files whose owners are gone; their lock files stay."""
    for lock in [*_held.values()]:
        stream = lock.stream
        # Counting would count owners that are just being collected.
        if stream is not None and not any(True for _ in lock.holders):
            lock.stream = None
            stream.close()


def _forget_after_fork() -> None:
    """A child holds nothing: or a worker that outlives a killed run would keep its files.

    To close a stream here does not unlock it for the parent, which has it open as well.
    """
    for lock in _held.values():
        if lock.stream is not None:
            lock.stream.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


if sys.platform == "win32":
    import msvcrt

    def _lock(stream: IO[bytes]) -> None:
        # A byte far behind the content, which stays readable for others.
        stream.seek(1 << 30)
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        stream.seek(0)

else:
    import fcntl

    def _lock(stream: IO[bytes]) -> None:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


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
            try_lock(stream)
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
                    left = old and try_lock(stream)
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
