"""What several commands share: the claim, the auditor, the data, and where documents go."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from askgauss.cli.program import explain_os_error
from askgauss.cli.terminal import note
from askgauss.exceptions import AskGaussError, InvalidArgumentError, RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from askgauss.auditors.auditor import Auditor
    from askgauss.claims import PrivacyClaim
    from askgauss.evidence.provenance import Provenance
    from askgauss.files.run_folder import RunRecord
    from askgauss.recording.inputs import AuditInput
    from askgauss.results import AuditResult


Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE|RUN", help="Scores, a transcript, or the folder of a run; - reads stdin."
    ),
]
Epsilon = Annotated[float | None, typer.Option(help="Claimed epsilon.")]
Delta = Annotated[
    float | None, typer.Option(help="Claimed delta; without --epsilon, where to state the bound.")
]
Membership = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="How it was decided which canaries were present: randomised, declared or fixed.",
    ),
]
NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Claimed noise multiplier, for the findings.")
]
SamplingRate = Annotated[
    float | None, typer.Option(help="Claimed Poisson sampling rate, for the findings.")
]
Steps = Annotated[int | None, typer.Option(help="Claimed number of steps, for the findings.")]
ClipNorm = Annotated[float | None, typer.Option(help="Claimed clip norm, for the findings.")]
Confidence = Annotated[float, typer.Option(help="Confidence of the bound.")]
GateError = Annotated[
    float, typer.Option(help="How often a correct run may end as violation or invalid.")
]
Lenient = Annotated[
    bool,
    typer.Option(
        "--lenient/--strict",
        help="Whether an inconclusive audit lets the run through.",
        show_default="strict",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print the whole result: scope, notes, source and findings."
    ),
]
Seed = Annotated[int, typer.Option(help="Root of every random choice.")]
# Of a run that is simulated, planned or trained, not claimed.
RunSteps = Annotated[int, typer.Option(help="Number of steps.")]
RunRate = Annotated[float, typer.Option(help="Poisson sampling rate.")]
RunNoise = Annotated[float, typer.Option(help="Noise, in clip norms.")]
Present = Annotated[int, typer.Option(help="Number of present canaries.")]
Absent = Annotated[int, typer.Option(help="Number of absent canaries.")]


def make_claim(
    epsilon: float | None,
    delta: float | None,
    *,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    clip_norm: float | None = None,
    found: PrivacyClaim | None = None,
    required: bool = True,
) -> PrivacyClaim | None:
    """The claim to audit: what the options say, on top of what the run itself says.

    Returns:
        None where only a delta was given: there is a bound then and no verdict. Also where nothing
        was given and a claim is not required.

    Raises:
        InvalidArgumentError: There is no claim, or half of one.
    """
    from askgauss.claims import PrivacyClaim

    details = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "clip_norm": clip_norm,
    }
    given = {name: value for name, value in details.items() if value is not None}
    if epsilon is not None and delta is not None:
        base = found or PrivacyClaim(epsilon=epsilon, delta=delta)
        return replace(base, epsilon=epsilon, delta=delta, **given)  # type: ignore[arg-type]
    if epsilon is None and delta is None and found is not None:
        return replace(found, **given)  # type: ignore[arg-type]
    if epsilon is None and not given and (delta is not None or not required):
        return None
    missing = "--delta is" if epsilon is not None else "--epsilon is"
    if epsilon is None and delta is None:
        missing = "--epsilon and --delta are"
    told = f" for {_option(next(iter(given)))} to be a part of" if given else ""
    raise InvalidArgumentError(
        f"Expected a claim{told}, {missing} missing. Give --epsilon and --delta for a verdict, or "
        "--delta alone for a bound."
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def nearest(name: str, names: Iterable[str]) -> str:
    """The choices in words, the nearest to a wrong one first."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"one of {', '.join(known)}, got {name!r}.{hint}"


def auditor_named(name: str | None) -> Auditor[Any] | None:
    """The auditor of a kebab-case name, or of a class as module:Class, with its default options.

    Raises:
        InvalidArgumentError: There is none of this name.
    """
    from askgauss.auditors import auditor_types, imported_auditor

    if name is None:
        return None
    if ":" in name:
        sys.path.insert(0, "")  # a module in the working folder, as python -m has it
        try:
            return imported_auditor(name)
        finally:
            sys.path.remove("")
    types = auditor_types()
    if name not in types:
        raise InvalidArgumentError(f"Expected --auditor to be {nearest(name, types)}")
    return types[name]()


def complete_auditor(incomplete: str) -> list[str]:
    """Names of auditors for shell completion."""
    from askgauss.auditors import auditor_types

    return [name for name in sorted(auditor_types()) if name.startswith(incomplete)]


def auditor_option(help: str) -> Any:
    """An option that names an auditor."""
    return typer.Option(metavar="NAME|MODULE:CLASS", help=help, autocompletion=complete_auditor)


def standard_input(what: str) -> BinaryIO:
    """Standard input, unless it is a terminal that nobody would know to type into.

    Raises:
        InvalidArgumentError: It is, or it is closed.
    """
    if sys.stdin is None:
        raise InvalidArgumentError(
            f"Expected data on standard input, which is closed. Pipe {what} in, or name it."
        )
    stream = sys.stdin.buffer
    if stream.isatty():
        raise InvalidArgumentError(
            f"Expected data on standard input, got a terminal. Pipe {what} in, or name it."
        )
    return stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a source holds.

    Attributes:
        data: The data.
        claim: The claim it brings, if it is a run.
        file: Name of the file it was read from.
        sha256: Digest of that file.
    """

    data: AuditInput
    claim: PrivacyClaim | None
    file: str
    sha256: str

    def provenance(self) -> Provenance:
        """Where a result of this comes from."""
        from askgauss.evidence.provenance import provenance

        command = ("askgauss", *sys.argv[1:])
        return provenance(file=self.file, sha256=self.sha256, command=command)


def read_input(source: str, membership: str | None = None) -> Input:
    """The data behind a source, and the claim it brings if it is a run.

    Args:
        source: A file, a folder, or "-".
        membership: How it was decided which canaries were present, where the source does not say.

    Raises:
        InvalidArgumentError: The membership is none of those there are, or the source records it.
        FileFormatError: The source is not what an audit reads.
        RecordingError: The run is not finished.
    """
    found = _read_source(source)
    return found if membership is None else replace(found, data=_stated(found.data, membership))


def _stated(data: AuditInput, membership: str) -> AuditInput:
    """The scores with how membership was decided; a transcript records it."""
    from askgauss.scores import MEMBERSHIPS, CanaryScores

    if membership not in MEMBERSHIPS:
        raise InvalidArgumentError(
            f"Expected --membership to be one of {', '.join(MEMBERSHIPS)}, got {membership!r}. Who "
            "was present stands beside each score: join a file of members to the scores by id."
        )
    if not isinstance(data, CanaryScores):
        raise InvalidArgumentError(
            "Expected --membership with scores only: a transcript records who was present and why."
        )
    return data.with_membership(cast(Any, membership))


def _read_source(source: str) -> Input:
    from askgauss.evidence.provenance import DigestingStream
    from askgauss.recording.inputs import choose_in_folder, load_audit_input

    if source == "-":
        stream: Any = DigestingStream(standard_input("a file of scores or a transcript"))
        data = load_audit_input(stream)
        return Input(data=data, claim=None, file="standard input", sha256=stream.sha256)
    path = Path(source)
    run = _demo_at(path)
    if run is not None:
        if run.status != "finished":
            raise RecordingError(
                f"Expected a finished run, {source!r} came to step {run.done} of "
                f"{run.config['options']['steps']}. Go on with: askgauss demo {source} --resume"
            )
        path /= "transcript.npz"
        note(f"reading {path}, the run of askgauss demo, with its own claim.")
        return _read_file(path, claim_of(run))
    if path.is_dir():
        chosen = choose_in_folder(path)
        others = f" Also there: {', '.join(chosen.others[:8])}." if chosen.others else ""
        note(f"reading {chosen.path}.{others}")
        path = chosen.path
    return _read_file(path, None)


def _demo_at(path: Path) -> RunRecord | None:
    """The demo that was run in a folder, if one was."""
    from askgauss.files.run_folder import RunFolder

    folder = RunFolder(path)
    run = folder.read() if folder.description.is_file() else None
    return run if run is not None and run.command == "demo" else None


def claim_of(run: RunRecord) -> PrivacyClaim:
    """The claim that a demo wrote into its folder."""
    from askgauss.claims import PrivacyClaim
    from askgauss.files import codec

    claim: PrivacyClaim = codec.from_plain(PrivacyClaim, run.config.get("claim"), "claim")
    return claim


def _read_file(path: Path, claim: PrivacyClaim | None) -> Input:
    from askgauss.evidence.provenance import file_digest
    from askgauss.recording.inputs import load_audit_input

    data = load_audit_input(path)
    # A folder, or a pipe that has a name, cannot be read once more.
    digest = file_digest(path) if path.is_file() else ""
    return Input(data=data, claim=claim, file=path.name, sha256=digest)


STANDARD = "-"

Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH|-", help="Write the result as JSON.")
]
Junit = Annotated[
    str | None, typer.Option("--junit", metavar="PATH|-", help="Write JUnit XML for CI.")
]
Html = Annotated[
    str | None, typer.Option("--html", metavar="PATH|-", help="Write the report as one HTML file.")
]
Markdown = Annotated[
    str | None, typer.Option("--markdown", metavar="PATH|-", help="Write a Markdown summary.")
]


class OutputError(AskGaussError):
    """A document could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents asked for, each by its path; ``-`` is standard output."""

    json: str | None = None
    junit: str | None = None
    html: str | None = None
    markdown: str | None = None

    def __post_init__(self) -> None:
        names: dict[str, list[str]] = {}
        for name, path in self._asked():
            place = path if path == STANDARD else str(Path(path).absolute())
            names.setdefault(place, []).append(f"--{name}")
        for place, sharing in names.items():
            if len(sharing) > 1:
                where = "on standard output" if place == STANDARD else f"in {place!r}"
                raise InvalidArgumentError(
                    f"Expected one document {where}, got {' and '.join(sharing)}. Give all but one "
                    "another path."
                )

    def _asked(self) -> list[tuple[str, str]]:
        paths = [(item.name, getattr(self, item.name)) for item in fields(self)]
        return [(name, path) for name, path in paths if path is not None]

    @property
    def on_stdout(self) -> bool:
        """Whether standard output belongs to a document, and not to text for a person."""
        return any(path == STANDARD for _, path in self._asked())

    def write(self, result: AuditResult) -> None:
        """Write every document asked for."""
        # All are made before any is written: if one cannot be, none is.
        documents = [(path, render(result, name)) for name, path in self._asked()]
        for path, text in documents:
            write_text(path, text, private=result.private)


def render(result: AuditResult, form: str) -> str:
    """A result as text of one of the forms that `Documents` names."""
    if form == "json":
        return result.to_json() + "\n"
    from askgauss import report

    renderers = {"junit": report.junit, "markdown": report.markdown, "html": report.render}
    return renderers[form](result)


def write_text(path: str, text: str, *, private: bool = False) -> None:
    """Write text to a file, whole or not at all, or to standard output."""
    write_document(path, lambda stream: stream.write(text.encode("utf-8")), private=private)


def write_document(
    path: str, write: Callable[[IO[bytes]], object], *, private: bool = False
) -> None:
    """Let ``write`` fill a file, whole or not at all, or standard output.

    Args:
        path: The file, or ``-``.
        write: Writes the document to a stream.
        private: Whether only its owner may read the file.

    Raises:
        OutputError: The file cannot be written.
    """
    if path == STANDARD:
        # Put together first: a document that cannot be made leaves nothing behind here either.
        buffer = io.BytesIO()
        write(buffer)
        sys.stdout.flush()
        left = buffer.getbuffer()
        while left:
            # An unbuffered stream may take only a part, and says how much.
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
        return
    from askgauss.files import atomic

    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            # A device or a pipe is written to, never replaced; a folder fails here as it should.
            with target.open("wb") as stream:
                write(stream)
        else:
            with atomic.atomic_write(target, private=private) as stream:
                write(stream)
    except OSError as error:
        raise OutputError(f"Cannot write {path!r}: {explain_os_error(error)}") from error
