"""Text for a terminal, a pipe or a log: plain unless somebody is looking, and never in command."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import typer

from askgauss._text import one_line, printable

if TYPE_CHECKING:
    from askgauss.replay import ReplayReport
    from askgauss.results import AuditResult


PRIVATE = "private: as sensitive as the training data"
"""Said of files that undo the noise, wherever one of a real run is written."""

_quiet = False
_VERDICT_COLOURS = {
    "VIOLATION": typer.colors.RED,
    "CONSISTENT": typer.colors.GREEN,
    "INCONCLUSIVE": typer.colors.YELLOW,
    "INVALID": typer.colors.MAGENTA,
}
_STATUS_COLOURS = {
    "[fail]": typer.colors.RED,
    "[leak]": typer.colors.RED,
    "[warn]": typer.colors.YELLOW,
}


def colourful(*, error: bool = False) -> bool:
    """Whether output may carry colours: a terminal, and nobody asked for none."""
    stream = sys.stderr if error else sys.stdout
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def say(text: str = "", *, error: bool = False) -> None:
    """Print text, in letters the stream has; names in it went through `one_line`."""
    encoding = (sys.stderr if error else sys.stdout).encoding or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=error)


def be_quiet(quiet: bool) -> None:
    """Whether to leave out everything but errors."""
    global _quiet
    _quiet = quiet


def note(text: str, *, always: bool = False) -> None:
    """One line about what is going on, beside the output rather than in it.

    Where nobody can hear it, it is lost: the exit code still says how the command ended.

    Args:
        text: What to say.
        always: Whether to say it to somebody who wants quiet, too: an error.
    """
    if _quiet and not always:
        return
    with contextlib.suppress(OSError, ValueError):
        say(f"askgauss: {one_line(text)}", error=True)


def say_result(result: AuditResult | ReplayReport, *, verbose: bool = True) -> None:
    """The result as text, whole or in a few lines; on a terminal its verdict stands out."""
    if _quiet:
        return
    text = printable(str(result))
    if not verbose:
        from askgauss.report.words import brief

        text = printable(brief(cast("AuditResult", result)))
    if colourful():
        verdict = "" if result.verdict is None else result.verdict.value
        if verdict and text.startswith(verdict):
            shown = typer.style(verdict, fg=_VERDICT_COLOURS[verdict], bold=True)
            text = shown + text.removeprefix(verdict)
        for status, colour in _STATUS_COLOURS.items():
            text = text.replace(f"\n  {status}", f"\n  {typer.style(status, fg=colour)}")
    say(text)


def as_table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows under each other in columns; numbers to the right, the first column to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


class ProgressBar:
    """How far a loop is, on stderr: a bar with the time left on a terminal, else a line a quarter.

    Args:
        label: What is being done.
        total: Number of steps.
        done: Steps that were done before.
        unit: What a step is called.
    """

    def __init__(self, label: str, total: int, done: int = 0, unit: str = "steps") -> None:
        self._label, self._total, self._done, self._unit = label, total, done, unit
        self._first, self._start = done, time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty() and not _quiet:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn(f"{self._unit},"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("left"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, completed=self._done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """One more step is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif 4 * self._done // self._total > 4 * (self._done - 1) // self._total:
            pace = (time.monotonic() - self._start) / (self._done - self._first)
            left = pace * (self._total - self._done)
            note(f"{self._label}: {self._done} of {self._total} {self._unit}, {left:.0f} s left.")
