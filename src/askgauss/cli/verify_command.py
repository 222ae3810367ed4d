"""The command that checks a result against its transcript."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from askgauss.cli.options import Confidence, GateError, auditor_named, auditor_option, read_input
from askgauss.cli.program import ExitCode
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
    commitment: Annotated[
        str | None,
        typer.Option(metavar="SHA256", help="The digest that was published before the run."),
    ] = None,
    auditor: Annotated[
        str | None,
        auditor_option("The method you ask for; by default the one that suits the data."),
    ] = None,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
) -> None:
    """Audit the transcript again, by your standard, and compare the result with that audit.

    All checks are run, whatever the result says. A result with fewer checks, of another method or
    of another standard than you ask for fails. What was committed to before the run is opened.
    Exit codes: 0 if nothing fails, 3 if something does, 2 if a file cannot be read.
    """
    from askgauss.evidence.verification import Standard
    from askgauss.evidence.verification import verify as verified
    from askgauss.files import atomic
    from askgauss.replay.replay_report import ReplayReport
    from askgauss.results import AuditResult

    standard = Standard(
        auditor=auditor_named(auditor), confidence=confidence, gate_error=gate_error
    )
    stated = AuditResult.load(result)
    report = None if replay is None else ReplayReport.from_json(atomic.read_bytes(replay))
    given = read_input(transcript)
    answer = verified(
        stated,
        given.data,
        report,
        standard=standard,
        commitment=commitment,
        sha256=given.sha256 or None,
    )
    for part in answer.parts:
        say(one_line(str(part)))
    say(answer.conclusion)
    raise typer.Exit(ExitCode.CONSISTENT if answer.holds else ExitCode.UNDECIDED)
