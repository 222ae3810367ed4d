"""Processes that train together, started as torchrun would."""

from __future__ import annotations

from pathlib import Path

from tests import forks

__all__ = ["ran"]


def ran(worker: str, place: Path, ranks: int) -> Path:
    """Let so many ranks of a worker beside this file write to a folder."""
    program = Path(__file__).with_name(worker)
    own = [(program, (str(rank), str(ranks), str(place)), {}) for rank in range(ranks)]
    done = forks.ran_together(own)
    assert [rank.returncode for rank in done] == [0] * ranks, [rank.stderr for rank in done]
    return place
