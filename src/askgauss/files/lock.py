"""A lock on a file that other processes respect; the system lets go of it when its holder dies."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from askgauss.exceptions import AskGaussError, RecordingError

__all__ = ["Holds", "RunFolderBusyError", "locked", "try_lock"]

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
