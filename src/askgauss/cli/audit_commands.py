"""Commands that answer about a run: audit, compare, diagnose, report, replay."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askgauss._text import one_line, printable
from askgauss.cli.options import (
    ClipNorm,
    Confidence,
    Delta,
    Documents,
    Epsilon,
    GateError,
    Html,
    Json,
    Junit,
    Lenient,
    Markdown,
    Membership,
    NoiseMultiplier,
    SamplingRate,
    Source,
    Steps,
    Verbose,
    auditor_named,
    auditor_option,
    make_claim,
    read_input,
    standard_input,
    write_text,
)
from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import note, say, say_result
from askgauss.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from askgauss.files.run_folder import RunFolder
    from askgauss.results import AuditResult, Finding


def audit(
    source: Source,
    epsilon: Epsilon = None,
    delta: Delta = None,
    auditor: Annotated[
        str | None,
        auditor_option("Method, chosen before looking; by default the one that suits the data."),
    ] = None,
    membership: Membership = None,
    confidence: Confidence = 0.95,
    gate_error: GateError = 0.001,
    noise_multiplier: NoiseMultiplier = None,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    clip_norm: ClipNorm = None,
    lenient: Lenient = False,
    verbose: Verbose = False,
    html: Html = None,
    json: Json = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Audit scores, a transcript or a run against what it claims.

    Exits with 0 if consistent with the claim, 1 on a violation, 2 if there is no answer, 3 if the
    audit is inconclusive (with --lenient: 0) or invalid, or if there is no claim.
    """
    outputs = Documents(html=html, json=json, junit=junit, markdown=markdown)
    method = auditor_named(auditor)
    given = read_input(source, membership)
    claim = make_claim(
        epsilon,
        delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        clip_norm=clip_norm,
        found=given.claim,
    )
    from askgauss.auditing import audit as run_audit
    from askgauss.evidence.provenance import with_provenance

    result = run_audit(
        given.data,
        claim=claim,
        delta=delta if claim is None else None,
        auditor=method,
        confidence=confidence,
        gate_error=gate_error,
    )
    result = with_provenance(result, given.provenance())
    if not outputs.on_stdout:
        say_result(result, verbose=verbose)
    outputs.write(result)
    raise typer.Exit(ExitCode.of(result, lenient=lenient))


def compare(
    source: Source,
    epsilon: Epsilon = None,
    delta: Delta = None,
    auditor: Annotated[
        list[str] | None,
        auditor_option("A method to show; repeat for several, leave out for all that apply."),
    ] = None,
    membership: Membership = None,
    confidence: Confidence = 0.95,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Show what several methods say about the same data; it decides nothing."""
    Documents(json=json, markdown=markdown)  # at most one of them on standard output
    methods = [auditor_named(name) for name in auditor or ()]
    given = read_input(source, membership)
    claim = make_claim(epsilon, delta, found=given.claim)
    from askgauss.comparison import compare as run_comparison

    table = run_comparison(
        given.data,
        claim=claim,
        delta=delta if claim is None else None,
        auditors=[method for method in methods if method is not None] or None,
        confidence=confidence,
    )
    if "-" not in (json, markdown):
        say(printable(str(table)))
    if json is not None:
        write_text(json, table.to_json() + "\n", private=table.private)
    if markdown is not None:
        write_text(markdown, printable(table.to_markdown()), private=table.private)


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
    given = read_input(source)
    claim = make_claim(
        epsilon,
        delta,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        clip_norm=clip_norm,
        found=given.claim,
        required=False,
    )
    from askgauss.checks import diagnose as run_checks
    from askgauss.files import codec
    from askgauss.publish.disclosure import published, reveals_individuals
    from askgauss.report.words import describe
    from askgauss.results import PRIVATE_NOTE

    private = reveals_individuals(given.data)
    findings = published(run_checks(given.data, claim=claim, gate_error=gate_error))
    if json != "-":
        for finding in findings:
            if finding.status.value == "pass":
                say(printable(str(finding)))
        facts = getattr(given.data, "facts", None)
        exercised = () if facts is None else ("noise", *facts.exercised)
        say(printable(describe(findings, exercised=exercised)))
        if private:
            say(PRIVATE_NOTE)
    if json is not None:
        content = {"findings": codec.to_plain(findings), "private": private}
        text = codec.dumps("askgauss-findings", 1, content) + "\n"
        write_text(json, text, private=private)
    raise typer.Exit(_findings_code(findings))


def _findings_code(findings: tuple[Finding, ...]) -> int:
    failed = {item.consequence.value for item in findings if item.status.value == "fail"}
    if "breach" in failed:
        return ExitCode.VIOLATION
    return ExitCode.UNDECIDED if "invalidates" in failed else ExitCode.CONSISTENT


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RESULT|RUN", help="A result as JSON, or a folder of runs; - reads stdin."
        ),
    ],
    html: Html = None,
    json: Json = None,
    junit: Junit = None,
    markdown: Markdown = None,
) -> None:
    """Render a result that was saved: as text, or as the documents asked for.

    Of a run it also writes report.html into its folder, unless another document is asked for. Of a
    folder with several runs in it it does so for each.
    """
    outputs = Documents(html=html, json=json, junit=junit, markdown=markdown)
    if source != "-" and Path(source).is_dir():
        _report_folder(Path(source), outputs)
        return
    result = read_result(source)
    if not outputs.on_stdout:
        say_result(result)
    outputs.write(result)


def _report_folder(place: Path, outputs: Documents) -> None:
    from askgauss.exceptions import FileFormatError, InvalidArgumentError
    from askgauss.files.run_folder import RunFolder

    run = RunFolder(place)
    if run.result.is_file():
        _report_run(run, outputs)
        return
    runs = [RunFolder(path.parent) for path in sorted(place.rglob(run.result.name))]
    if not runs and run.description.is_file() and run.read().command == "demo":
        raise FileFormatError(
            f"Expected a result in {str(place)!r}, the run has none yet. Finish it with: "
            f"askgauss demo {place} --resume"
        )
    if not runs:
        raise FileFormatError(
            f"Expected a run with a result in {str(place)!r}, found none. Audit what it holds "
            "with: askgauss audit FILE --html report.html"
        )
    if outputs != Documents():
        raise InvalidArgumentError(
            f"Expected one run for these documents, got {len(runs)} in {str(place)!r}. Name one of "
            f"them, such as {str(runs[0].path)!r}."
        )
    for one in runs:
        say(one_line(one.path.relative_to(place)))
        _report_run(one, outputs)


def _report_run(run: RunFolder, outputs: Documents) -> None:
    result = read_result(str(run.result), regular=True)
    if not outputs.on_stdout:
        say_result(result)
    if outputs == Documents():
        with run:
            Documents(html=str(run.report)).write(result)
        note(f"wrote {run.report}")
    outputs.write(result)


def read_result(source: str, *, regular: bool = False) -> AuditResult:
    """The result behind a path, or on standard input.

    Args:
        source: The path, or a dash.
        regular: Whether no pipe is read, since none was named.

    Raises:
        FileFormatError: It is none.
    """
    from askgauss.exceptions import FileFormatError
    from askgauss.files import atomic
    from askgauss.results import AuditResult

    name = "the input stream" if source == "-" else repr(source)
    content = atomic.read_bytes(
        standard_input("a result") if source == "-" else source, regular=regular
    )
    if content.startswith(b"PK"):
        raise FileFormatError(
            f"Cannot read {name} as a result: it holds scores or a transcript, which have no "
            "verdict yet. Audit them with: askgauss audit FILE --html report.html"
        )
    try:
        return AuditResult.from_json(content)
    except FileFormatError as error:
        raise FileFormatError(
            f"Cannot read {name} as a result: {error} Write one with askgauss audit --json."
        ) from error


def replay(
    training: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="The training function, train(data, replay); a file.py will do for a module.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="The records, or a function that makes them; by default `data` of the module.",
        ),
    ] = None,
    leave_out: Annotated[
        int | None, typer.Option(metavar="INDEX", help="The record to leave out.")
    ] = None,
    replace: Annotated[
        int | None, typer.Option(metavar="INDEX", help="The record to replace instead.")
    ] = None,
    steps: Annotated[int, typer.Option(help="How many steps to take.")] = 5,
    adjacency: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the run claims: add-remove, replace-one or zero-out; by default the first, "
            "and the second where a record is replaced.",
        ),
    ] = None,
    plant: Annotated[
        bool, typer.Option(help="Put the record into the batch of every other step.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Where batches and noise come from.")] = 0,
    html: Html = None,
    json: Json = None,
) -> None:
    """Replay a training without one record, with the same random draws, and say what differed.

    Runs the function, on data that should be few: a thousand records and a few steps are enough.
    Exits with 0 if nothing differed but what may, 1 on a leak, 2 if there is no answer (a training
    that is not deterministic, too), 3 if something could not be checked.
    """
    outputs = Documents(json=json, html=html)
    function = _named(training, "MODULE:FUNCTION")
    module = training.rpartition(":")[0]
    records = _named(data if data is not None else f"{module}:data", "--data")
    if callable(records) and not hasattr(records, "__getitem__"):
        records = records()
    from askgauss.replay import replay as run_replay

    # What the training prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = run_replay(
            function,
            records,
            leave_out=leave_out,
            replace=replace,
            steps=steps,
            adjacency=adjacency,  # type: ignore[arg-type]
            plant=plant,
            seed=seed,
        )
    if not outputs.on_stdout:
        say_result(found)
    documents = {json: found.to_json() + "\n"} if json is not None else {}
    if html is not None:
        from askgauss.report.html import render_replay

        documents[html] = render_replay(found)
    for path, text in documents.items():
        # What differs between neighbouring data tells of the record.
        write_text(path, text, private=True)
    raise typer.Exit(ExitCode.of_replay(found))


def _named(name: str, argument: str) -> Any:
    """The object of a module that a ``module:name`` stands for."""
    module, colon, attribute = name.rpartition(":")
    if not colon or not module or not attribute:
        raise InvalidArgumentError(
            f"Expected {argument} to be like module:name or file.py:name, got {name!r}."
        )
    found: Any = _imported(module, argument)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidArgumentError(
                f"Expected {argument} to name something in {module}, which has no {attribute!r}. "
                "Name it as module:name; the records are --data."
            )
        found = getattr(found, part)
    return found


def _imported(module: str, argument: str) -> Any:
    """A module by its name, looked for in the current folder too, or by its file."""
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise InvalidArgumentError(
                f"Expected {argument} to name a file, there is no {module!r}. Check the path."
            )
        name = path.stem
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
            return sys.modules[name]
        sys.path.insert(0, str(path.parent.absolute()))
        specification = importlib.util.spec_from_file_location(name, path)
        assert specification is not None
        assert specification.loader is not None
        loaded = importlib.util.module_from_spec(specification)
        sys.modules[name] = loaded
        specification.loader.exec_module(loaded)
        return loaded
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module + ".").startswith(error.name + "."):
            raise InvalidArgumentError(
                f"Expected {argument} to name a module, there is no {error.name!r} here. Run from "
                "the folder it is in, or give its file: train.py:function."
            ) from error
        raise
