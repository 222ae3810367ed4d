"""Commands that read what a run left behind: audit, compare, diagnose, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askgauss.cli.outputs import Html, Json, Junit, Markdown, Outputs, write_text
from askgauss.cli.program import ExitCode
from askgauss.cli.shared import (
    ClipNorm,
    Confidence,
    Delta,
    Epsilon,
    GateError,
    NoiseMultiplier,
    SamplingRate,
    Source,
    Steps,
    auditor_named,
    complete_auditor,
    make_claim,
    read_input,
)
from askgauss.cli.terminal import note, printable, say, say_result

if TYPE_CHECKING:
    from askgauss.results import AuditResult, Finding

__all__ = ["audit", "compare", "diagnose", "report"]


def audit(
    source: Source,
    epsilon: Epsilon = None,
    delta: Delta = None,
    auditor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method, chosen before looking; by default the one that suits the data.",
            autocompletion=complete_auditor,
        ),
    ] = None,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
    noise_multiplier: NoiseMultiplier = None,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    clip_norm: ClipNorm = None,
    html: Html = None,
    json: Json = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Audit scores, a transcript or a run against what it claims.

    Exits with 0 if consistent with the claim (or if there is none), 1 on a violation, 2 if there
    is no answer, 3 if the audit is inconclusive or invalid.
    """
    outputs = Outputs(html=html, json=json, junit=junit, markdown=markdown)
    method = auditor_named(auditor)
    data, found = read_input(source)
    claim = make_claim(
        epsilon,
        delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        clip_norm=clip_norm,
        found=found,
    )
    from askgauss.auditing import audit as run_audit

    result = run_audit(
        data,
        claim=claim,
        delta=delta if claim is None else None,
        auditor=method,
        confidence=confidence,
        gate_error=gate_error,
    )
    if not outputs.on_stdout:
        say_result(result)
    outputs.write(result)
    raise typer.Exit(ExitCode.of(result))


def compare(
    source: Source,
    epsilon: Epsilon = None,
    delta: Delta = None,
    auditor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A method to show; repeat for several, leave out for all that apply.",
            autocompletion=complete_auditor,
        ),
    ] = None,
    confidence: Confidence = 0.95,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Show what several methods say about the same data; it decides nothing."""
    Outputs(json=json, markdown=markdown)  # at most one of them on standard output
    methods = [auditor_named(name) for name in auditor or ()]
    data, found = read_input(source)
    claim = make_claim(epsilon, delta, found=found)
    from askgauss.comparison import compare as run_comparison

    table = run_comparison(
        data,
        claim=claim,
        delta=delta if claim is None else None,
        auditors=[method for method in methods if method is not None] or None,
        confidence=confidence,
    )
    if "-" not in (json, markdown):
        say(printable(str(table)))
    if json is not None:
        write_text(json, table.to_json() + "\n")
    if markdown is not None:
        write_text(markdown, printable(table.to_markdown()))


def diagnose(
    source: Source,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    clip_norm: ClipNorm = None,
    gate_error: GateError = 0.001,
    json: Json = None,
) -> None:
    """Measure every part of the mechanism that can be measured, next to what was claimed.

    Exits with 1 if the mechanism is broken, 3 if an audit would be invalid, 0 otherwise.
    """
    data, found = read_input(source)
    wanted = epsilon is not None or delta is not None or found is not None
    claim = (
        make_claim(
            epsilon,
            delta,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            clip_norm=clip_norm,
            found=found,
        )
        if wanted
        else None
    )
    from askgauss import _plain
    from askgauss.diagnostics import diagnose as run_checks

    findings = run_checks(data, claim=claim, gate_error=gate_error)
    if json != "-":
        for finding in findings:
            say(_finding_text(finding))
    if json is not None:
        content = {"findings": _plain.to_plain(findings)}
        write_text(json, _plain.dumps("askgauss-findings", 1, content) + "\n")
    raise typer.Exit(_findings_code(findings))


def _finding_text(finding: Finding) -> str:
    remedy = f"\n    {finding.remedy}" if finding.remedy else ""
    return printable(f"{finding}{remedy}")


def _findings_code(findings: tuple[Finding, ...]) -> int:
    failed = {item.consequence.value for item in findings if item.status.value == "fail"}
    if "breach" in failed:
        return ExitCode.VIOLATION
    return ExitCode.UNDECIDED if "invalidates" in failed else ExitCode.CONSISTENT


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RESULT|RUN", help="A result as JSON, or the folder of a run; - reads stdin."
        ),
    ],
    html: Html = None,
    json: Json = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Render a result that was saved: as text, or as the documents asked for.

    Of a run it also writes report.html into its folder, unless another document is asked for.
    """
    from askgauss.cli.runs import RunFolder

    outputs = Outputs(html=html, json=json, junit=junit, markdown=markdown)
    folder = None if source == "-" else RunFolder.at(source)
    result = _read_result(source if folder is None else str(folder.result))
    if not outputs.on_stdout:
        say_result(result)
    if folder is not None and outputs == Outputs():
        with folder.lock():
            Outputs(html=str(folder.report)).write(result)
        note(f"wrote {folder.report}")
    outputs.write(result)


def _read_result(source: str) -> AuditResult:
    from askgauss.exceptions import FileFormatError
    from askgauss.results import AuditResult

    name = "the input stream" if source == "-" else repr(source)
    content: Any
    if source == "-":
        content = sys.stdin.buffer.read()
    else:
        content = Path(source).read_bytes()
    try:
        return AuditResult.from_json(content)
    except FileFormatError as error:
        raise FileFormatError(
            f"Cannot read {name} as a result: {error} Write one with askgauss audit --json."
        ) from error
