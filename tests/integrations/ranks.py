"""Processes that train together, started as torchrun would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ran"]


def ran(worker: str, place: Path, ranks: int) -> Path:
    """Let so many ranks of a worker beside this file write to a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = str(Path(__file__).with_name(worker))
    started = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(ranks), str(place)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        errors = [rank.communicate(timeout=900)[1] for rank in started]
    finally:
        for rank in started:
            rank.kill()
    assert [rank.returncode for rank in started] == [0] * ranks, errors
    return place
