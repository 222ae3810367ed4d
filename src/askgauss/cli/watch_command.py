"""The command that follows a run while it trains, in a terminal, a pipe or a browser."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askgauss._text import one_line
from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import note, say

if TYPE_CHECKING:
    from askgauss.cli.watch_view import WatchView


# Seconds; a longer sleep is no watching.
_LONGEST_PAUSE = 86_400
_COLOURS = {"plain": "", "good": "green", "bad": "bold red", "muted": "bright_black"}


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder the run's monitor was given.")
    ],
    serve: Annotated[
        bool, typer.Option("--serve", help="Show it as a page on this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any that is free.")] = 8765,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and leave.")] = False,
) -> None:
    """Follow a run while it trains: epsilon spent, the bound so far, evidence, alarms.

    Ends with the run, or with Ctrl-C. Exit codes: 1 after an alarm, 0 without.
    """
    from askgauss import _validate
    from askgauss.cli.watch_view import Follower

    _validate.within(0, _LONGEST_PAUSE, closed="right", interval=interval)
    follower = Follower(run)
    if serve:
        from askgauss.cli.watch_view import serve_forever

        _validate.within(0, 65535, closed="both", port=port)
        view = follower.look()
        if view.feed is None and view.over:
            say(one_line(view.line))
            return
        serve_forever(follower, port, lambda address: note(f"open {address} (Ctrl-C to end)"))
        return
    with _screen() if sys.stdout.isatty() and not once else _log() as show:
        while True:
            view = follower.look()
            show(view)
            if once or view.over:
                break
            time.sleep(interval)
    alarmed = view.feed is not None and view.feed.alarm is not None
    raise typer.Exit(ExitCode.VIOLATION if alarmed else ExitCode.CONSISTENT)


@contextlib.contextmanager
def _log() -> Iterator[Callable[[WatchView], None]]:
    """A plain line whenever something changed; for a pipe, a log, or a single look."""
    shown: object = None

    def show(view: WatchView) -> None:
        nonlocal shown
        # The age in a note grows all the time; that alone is no news.
        news = (view.headline, view.lines, len(view.notes))
        if news != shown:
            say(one_line(view.line))
            sys.stdout.flush()
            shown = news

    yield show


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[WatchView], None]]:
    """A picture that is drawn again, at the width the terminal has."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        yield lambda view: live.update(picture(view, console.width), refresh=True)


def picture(view: WatchView, width: int) -> Any:
    """The view for a terminal of this width; values wrap, names stay whole."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from askgauss.cli.watch_view import spark

    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, style="bright_black")
    table.add_column(overflow="fold")
    for name, value in view.lines:
        table.add_row(one_line(name), Text(one_line(value)))
    if view.feed is not None and _draws():
        room = max(width - 16, 1)
        for name, values in (("noise", view.feed.course.noise), ("bound", view.feed.course.bound)):
            drawn = spark(values, room)
            if drawn:
                table.add_row(f"{name} ~", Text(drawn))
    for name, value, tone in view.parts:
        table.add_row(one_line(name), Text(one_line(value), style=_COLOURS[tone]))
    headline = Text(one_line(view.headline), style=_COLOURS[view.tone])
    notes = [Text(one_line(text), style="yellow") for text in view.notes]
    return Group(headline, table, *notes)


def _draws() -> bool:
    """Whether the terminal has letters for bars."""
    try:
        "▁█".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
