"""A lock on a file that other processes respect; the system lets go of it when its holder dies."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from askgauss.exceptions import AskGaussError

__all__ = ["RunFolderBusyError", "locked", "try_lock"]


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
    with Path(path).open("a+b") as stream:
        try:
            _lock(stream)
        except (BlockingIOError, PermissionError) as error:
            stream.seek(0)
            holder = stream.read(20).decode("ascii", "replace").strip()
            which = f" ({holder})" if holder else ""
            raise RunFolderBusyError(
                f"{str(path)!r} is held by another process{which}. Wait for it, stop it, or use "
                "another folder."
            ) from error
        stream.truncate(0)
        stream.write(b"%d\n" % os.getpid())
        stream.flush()
        yield


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
