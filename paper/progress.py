"""How far a long run is, told on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Report", "stages"]

Report = Callable[[str, int, int], None]
"""Told the stage, how much of it is done, and of how much."""


@contextmanager
def stages(progress: bool = True) -> Iterator[Report]:
    """A bar a stage on a terminal, a line a tenth elsewhere."""
    if not progress:
        yield lambda stage, done, of: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        told: dict[str, int] = {}

        def tell(stage: str, done: int, of: int) -> None:
            tenth = 10 * done // max(of, 1)
            if told.get(stage) != tenth:
                told[stage] = tenth
                console.print(f"{time.strftime('%H:%M:%S')} {stage}: {done} of {of}")

        yield tell
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
    )
    from rich.progress import (
        TimeRemainingColumn as Remaining,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console) as bar:
        stages: dict[str, TaskID] = {}

        def report(stage: str, done: int, of: int) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=of)
            bar.update(stages[stage], completed=done)

        yield report
