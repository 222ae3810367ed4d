"""One process at a time, and the next one as soon as the first is gone, however it went."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from askgauss.files.atomic import RunFolderBusyError, locked

HOLD = (
    "import sys\nfrom askgauss.files.atomic import locked\n"
    "with locked(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()"
)


def test_a_held_lock_names_its_holder_and_dies_with_it(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        busy = pytest.raises(RunFolderBusyError, match=rf"\b{holder.pid}\b")
        with busy, locked(path):
            pytest.fail("two processes hold one lock")
        holder.kill()
    with locked(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_an_error_inside_is_not_taken_for_a_busy_lock(tmp_path):
    with pytest.raises(BlockingIOError, match="of the work"), locked(tmp_path / "lock"):
        raise BlockingIOError("of the work")


def test_a_folder_that_is_not_there_is_not_busy(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing" / "lock"):
        pass
