"""The command that checks a result against its transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from askgauss.cli.program import ExitCode
from askgauss.cli.shared import read_input
from askgauss.cli.terminal import one_line, say

__all__ = ["verify"]


def verify(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="The result, as JSON.")],
    transcript: Annotated[
        str, typer.Argument(metavar="TRANSCRIPT", help="What it was computed from.")
    ],
    replay: Annotated[
        Path | None, typer.Option(help="The report of the replay that was joined to it, as JSON.")
    ] = None,
) -> None:
    """Compute a result again from its transcript, and check what was committed to before the run.

    Both files' checksums are checked as they are read. Exit codes: 0 if nothing fails, 3 if
    something does, 2 if a file cannot be read.
    """
    from askgauss import _files
    from askgauss.replay.report import ReplayReport
    from askgauss.results import AuditResult
    from askgauss.verification import verify as verified

    stated = AuditResult.load(result)
    report = None if replay is None else ReplayReport.from_json(_files.read_bytes(replay))
    answer = verified(stated, read_input(transcript).data, report)
    for part in answer.parts:
        say(one_line(f"{part.status:>11}  {part.name}: {part.summary}"))
    say(answer.conclusion)
    raise typer.Exit(ExitCode.CONSISTENT if answer.holds else ExitCode.UNDECIDED)
