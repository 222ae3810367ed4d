"""Commands around evidence: attest, verify, and the check of files before they are committed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from askgauss._text import one_line
from askgauss.cli.audit_commands import read_result
from askgauss.cli.options import (
    Confidence,
    GateError,
    Lenient,
    auditor_named,
    auditor_option,
    read_input,
    write_text,
)
from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import as_table, note, say


def attest(
    source: Annotated[
        str, typer.Argument(metavar="RESULT|RUN", help="A result as JSON, or the folder of a run.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the documents go.")
    ] = Path("evidence"),
    subject: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A file the statement is about, such as the weights; repeat for several. By "
            "default the file that was audited.",
        ),
    ] = None,
    lenient: Lenient = False,
) -> None:
    """Write the evidence pack: in-toto statement, CycloneDX ML-BOM, SARIF, model-card block.

    The documents describe the result and bind it to files by their digests; nothing private is in
    them. Exits with 0 when they were written, whatever the verdict: the statement says it.
    """
    from askgauss.evidence.attestation import FILES, evidence_pack
    from askgauss.evidence.provenance import file_digest
    from askgauss.files.run_folder import RunFolder

    place = Path(source)
    inside = place.is_dir()
    result = read_result(str(RunFolder(place).result) if inside else source, regular=inside)
    subjects = {path.name: file_digest(path) for path in subject or ()}
    pack = evidence_pack(result, subjects=subjects or None, lenient=lenient)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in pack.items():
        write_text(str(output / name), text)
    say(as_table([(str(output / name), f" {FILES[name]}") for name in pack]))
    note("the documents are not signed: sign the statement with your release key.")


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


# Names that the hook sends every file of, whoever wrote it.
_NAMED = re.compile(r"(result|audit).*\.json", re.IGNORECASE)
_RESULT = "askgauss-result"
# Results of other kinds, which have evidence too.
_OTHERS = ("askgauss-mechanism-result", "askgauss-comparison")
_FIELDS = ("digest", "evidence")
# Documents that are private whatever they say: values with and without a record, and the seed.
_PRIVATE = ("askgauss-replay", "askgauss-run")
# What is left of our files when they are truncated or damaged: kinds and fields of headers, and
# names of arrays. Text that mentions them, such as this, is not meant.
_TRACES = re.compile(
    rb'askgauss-[a-z]|"fingerprint"|"private"\s*:\s*true|askgauss\.npy'
    rb"|(?:canaries|steps)\.[a-z_]+\.npy|(?:kept|watch)_[a-z]+\.npy"
)
# Names that arrays of others have too: they count only where nothing can be read.
_COMMON = re.compile(rb"(?:score|member|leaves)\.npy")
# Compressed files by their first bytes; what is inside is checked, up to so many layers.
_COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x5d\0\0": lzma.open,
}
_LAYERS = 4
_MOST_MEMBERS = 1000
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError),
    *(NotImplementedError, RuntimeError, ValueError),
)


def check_results(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to look at.")],
    refuse_private: Annotated[
        bool,
        typer.Option(
            "--refuse-private",
            help="Refuse transcripts, scores, checkpoints, reports of a replay, run.json of a demo "
            "and results of few canaries instead.",
        ),
    ] = False,
) -> None:
    """Check files before they are committed: results are whole, and nothing private is kept.

    Whole JSON of other tools is left alone. Exits with 2 if a file is refused.
    """
    refused = [_is_private(path) if refuse_private else _is_no_result(path) for path in files]
    if any(refused):
        raise typer.Exit(ExitCode.FAILURE)


def _is_private(path: Path) -> bool:
    """Whether a file of ours is as sensitive as the training data; says so."""
    with path.open("rb") as stream:
        kind = next(filter(None, map(_private_kind, _contents(stream, _LAYERS))), None)
    if kind is None:
        return False
    note(f"{path} is {kind}: as sensitive as the training data. Keep it elsewhere.", always=True)
    return True


def _is_no_result(path: Path) -> bool:
    """Whether a file is, was or is named like a result, and is none that can be read; says so."""
    from askgauss.exceptions import AskGaussError
    from askgauss.files import codec
    from askgauss.results import AuditResult

    with path.open("rb") as stream:
        content = _beginning(stream)
    try:
        if _is_result(codec.parse(content)):
            # The whole of it, which may go on where no document of ours does.
            AuditResult.load(path)
    except AskGaussError as error:
        if not (_NAMED.fullmatch(path.name) or _mentions_us(content)):
            return False
        note(f"{path}: {error}", always=True)
        return True
    return False


def _is_result(found: Any) -> bool:
    """By its kind, or by its fields where its kind may be damaged."""
    if not isinstance(found, dict):
        return False
    kind = found.get("kind")
    return kind == _RESULT or (kind not in _OTHERS and found.keys() >= {*_FIELDS})


def _mentions_us(content: bytes) -> bool:
    # Text in two bytes a letter is ours too, saved again by some editor.
    text = content.replace(b"\0", b"")
    return b"askgauss-" in text or all(f'"{name}"'.encode() in text for name in _FIELDS)


def _contents(stream: BinaryIO, layers: int) -> Iterator[BinaryIO]:
    """A file, and what is compressed or archived in it, each as far as it can be read."""
    stream.seek(0)
    start = stream.read(6)
    stream.seek(0)
    for magic, opened in _COMPRESSED.items():
        if start.startswith(magic) and layers:
            yield from _contents(_readable(opened(stream)), layers - 1)
            return
    yield stream
    if start.startswith(b"PK") and layers:
        for member in _members(stream):
            yield from _contents(member, layers - 1)


def _members(stream: BinaryIO) -> Iterator[BinaryIO]:
    """The files of a zip archive that could be ours; a model's weights have thousands of others."""
    try:
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist()[:_MOST_MEMBERS]:
                with archive.open(member) as inside:
                    start = inside.read(1 << 12)
                known = start.lstrip().startswith((b"PK", b"{", *_COMPRESSED))
                if known or _TRACES.search(start):
                    with archive.open(member) as inside:
                        yield _readable(inside)
    except _DAMAGE:
        pass  # damaged or encrypted: the archive itself has been looked at


def _readable(stream: Any) -> BinaryIO:
    """The beginning of a compressed stream, up to where it is damaged."""
    from askgauss.files import atomic

    found = bytearray()
    try:
        while len(found) < atomic.DOCUMENT_BYTES and (part := stream.read1(1 << 16)):
            found += part
    except _DAMAGE:
        pass
    return io.BytesIO(bytes(found))


def _private_kind(stream: BinaryIO) -> str | None:
    """What a file that must not be given away is; None if it is none of ours, or may be."""
    from askgauss.exceptions import AskGaussError
    from askgauss.files import archive, codec

    content = _beginning(stream)
    stream.seek(0)
    try:
        if content.startswith(b"PK"):
            kind = archive.read_kind(stream, "archive")
            # Without a header it may still be one of ours, whose header has lost its name.
            traced = kind is None and _TRACES.search(content)
            return "one of our files without its header" if traced else kind
        # JSON of other tools is not parsed.
        if not _mentions_us(content) and b"\0" not in content:
            return None
        return _private_document(codec.parse(content))
    except AskGaussError:
        return _damaged_kind(content)


def _private_document(found: Any) -> str | None:
    """The kind of a private document; it may stand in a list, or in another tool's document."""
    waiting = [found]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            kind = str(item.get("kind"))
            if kind in _PRIVATE or (
                item.get("private") is True and (item is found or "kind" in item)
            ):
                return kind
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return None


def _damaged_kind(content: bytes) -> str | None:
    """What is left of a file of ours that cannot be read, but whose numbers may be there."""
    text = content.replace(b"\0", b"")
    binary = b"\0" in content
    ours = _TRACES.search(text) or (binary and _COMMON.search(text))
    if ours and (binary or text.lstrip().startswith(b"{")):
        return "damaged, and was one of our files"
    return None


def _beginning(stream: BinaryIO) -> bytes:
    """As much of a file as any document of ours has; what never ends is no document."""
    from askgauss.files import atomic

    stream.seek(0)
    return stream.read(atomic.DOCUMENT_BYTES)
