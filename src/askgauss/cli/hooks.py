"""What a pre-commit hook asks of files that are about to be kept for good."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from askgauss.cli.program import ExitCode
from askgauss.cli.terminal import note

__all__ = ["check_results"]

# Names that the hook sends every file of, whoever wrote it.
_NAMED = re.compile(r"(result|audit).*\.json", re.IGNORECASE)
_RESULT = "askgauss-result"
# Results of other kinds, which have evidence too.
_OTHERS = ("askgauss-mechanism-result", "askgauss-comparison")
_FIELDS = ("digest", "evidence")
# Documents that are private whatever they say: values with and without a record, and the seed.
_PRIVATE = ("askgauss-replay", "askgauss-cli-run")
# What is left of our files when they are cut, or when what says their kind is damaged: kinds and
# fields of headers, and names of arrays. Text that speaks of them, such as this, is not meant.
_TRACES = re.compile(
    rb'askgauss-[a-z]|"fingerprint"|"private"\s*:\s*true|askgauss\.npy'
    rb"|(?:canaries|steps)\.[a-z_]+\.npy|(?:kept|watch)_[a-z]+\.npy"
)
# Names that arrays of others have too: they tell only where nothing can be read.
_COMMON = re.compile(rb"(?:score|member|leaves)\.npy")
# Packed files by their first bytes: what is inside is looked at, and what is inside that, so often.
_PACKED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
    b"\x5d\0\0": lzma.open,
}
_DEEPEST = 4
_MOST_MEMBERS = 1000


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
    refused = [path for path in files if _refused(path, refuse_private)]
    if refused:
        raise typer.Exit(ExitCode.FAILURE)


def _refused(path: Path, private: bool) -> bool:
    if not private:
        return _no_whole_result(path)
    kind = _private_kind(path)
    if kind is not None:
        note(f"{path} is {kind}: as sensitive as the training data. Keep it elsewhere.",
             always=True)  # fmt: skip
    return kind is not None


def _no_whole_result(path: Path) -> bool:
    """Whether a file is, was or is named like a result, and is none that can be read."""
    from askgauss.exceptions import AskGaussError
    from askgauss.files import codec
    from askgauss.results import AuditResult

    with path.open("rb") as stream:
        content = _beginning(stream)
    try:
        found = codec.parse(content)
        if _is_result(found):
            # The whole of it, which may go on where no document of ours does.
            AuditResult.load(path)
    except AskGaussError as error:
        if not (_NAMED.fullmatch(path.name) or _speaks_of_a_result(content)):
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


def _speaks_of_a_result(content: bytes) -> bool:
    # Text in two bytes a letter is ours too, saved again by some editor.
    text = content.replace(b"\0", b"")
    return b"askgauss-" in text or all(f'"{name}"'.encode() in text for name in _FIELDS)


def _private_kind(path: Path) -> str | None:
    """What a file that must not be given away is; None if it is none of ours, or may be."""
    with path.open("rb") as stream:
        return _kind_inside(stream, str(path), _DEEPEST)


def _kind_inside(stream: BinaryIO, name: str, deepest: int) -> str | None:
    """What a file, or a file packed into it, is that must not be given away."""
    start = stream.read(6)
    stream.seek(0)
    if start.startswith(b"PK"):
        return _kind_of_archive(stream, name) or _kind_of_members(stream, name, deepest)
    for magic, unpack in _PACKED.items():
        if start.startswith(magic) and deepest:
            return _kind_inside(_unpacked(unpack(stream)), name, deepest - 1)
    return _kind_of_document(_beginning(stream))


def _unpacked(stream: Any) -> BinaryIO:
    """The beginning of what is packed, as far as it can be unpacked."""
    from askgauss.files import atomic

    found = bytearray()
    try:
        while len(found) < atomic.DOCUMENT_BYTES and (part := stream.read1(1 << 16)):
            found += part
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        pass  # damaged: what came before may be ours
    return io.BytesIO(bytes(found))


def _kind_of_members(stream: BinaryIO, name: str, deepest: int) -> str | None:
    """What of the files in a zip archive must not be given away."""
    if not deepest:
        return None
    stream.seek(0)
    try:
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist()[:_MOST_MEMBERS]:
                with archive.open(member) as inside:
                    start = inside.read(1 << 12)
                # Weights of a model have thousands of members that are none of these.
                if not (
                    start.lstrip().startswith((b"PK", b"{", *_PACKED)) or _TRACES.search(start)
                ):
                    continue
                with archive.open(member) as inside:
                    found = _unpacked(inside)
                if (kind := _kind_inside(found, name, deepest - 1)) is not None:
                    return kind
    except (
        *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
        *(NotImplementedError, RuntimeError, ValueError, OSError, EOFError),
    ):
        pass  # damaged or encrypted: `_kind_of_archive` has looked at what can be read
    return None


def _kind_of_archive(stream: BinaryIO, name: str) -> str | None:
    """What kind of our files of arrays an archive is."""
    from askgauss.exceptions import AskGaussError
    from askgauss.files import archive

    try:
        kind = archive.read_kind(stream, name)
    except AskGaussError:
        return _damaged(_beginning(stream))
    # Without a header it may still be one of ours, whose header has lost its name.
    traced = kind is None and _TRACES.search(_beginning(stream))
    return "one of our files without its header" if traced else kind


def _kind_of_document(content: bytes) -> str | None:
    """What kind of our private documents text is."""
    from askgauss.exceptions import AskGaussError
    from askgauss.files import codec

    # JSON of other tools is not parsed.
    if not _speaks_of_a_result(content) and b"\0" not in content:
        return None
    try:
        found = codec.parse(content)
    except AskGaussError:
        return _damaged(content)
    # Documents may stand in a list, or in another tool's.
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


def _damaged(content: bytes) -> str | None:
    """What is left of a file of ours that nobody can read, but whose numbers may be there."""
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
