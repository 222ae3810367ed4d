"""What an audit reads, from a file, a folder or a stream, told apart by what it says it is."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import IO, TypeAlias

from askgauss._files import Source, read_kind
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.linear_transcript import LinearTranscript
from askgauss.scores import CanaryScores
from askgauss.transcript import Transcript

__all__ = ["AuditInput", "check_audit_input", "load_audit_input"]

AuditInput: TypeAlias = CanaryScores | Transcript | LinearTranscript


def check_audit_input(data: object) -> None:
    """Refuse whatever is not what an audit reads, and say how to make it."""
    if not isinstance(data, AuditInput):
        raise InvalidArgumentError(
            "Expected data to be CanaryScores, a Transcript or a LinearTranscript, got "
            f"{type(data).__name__}. Make scores with CanaryScores.from_groups(present=..., "
            "absent=...), or read a file with load_audit_input()."
        )


_READERS: dict[str, type[CanaryScores] | type[Transcript] | type[LinearTranscript]] = {
    "askgauss-scores": CanaryScores,
    "askgauss-transcript": Transcript,
    "askgauss-linear-transcript": LinearTranscript,
}
# Files of ours that hold something else, and what to do with them.
_OTHERS = {
    "askgauss-result": "It is the result of an audit: render it with askgauss report.",
    "askgauss-steps": "It is a step store: audit the transcript that was taken with it.",
    "askgauss-cli-run": "It describes a run: name the folder it lies in.",
}
_CHECKPOINT = "It is a checkpoint of an unfinished run: finish the run first."
# The header of a file of ours is a few kilobytes of JSON.
_HEADER = 1 << 22
_ZIP = b"PK\x03\x04"


def load_audit_input(source: Source) -> AuditInput:
    """Scores or a transcript, whichever the source holds.

    Args:
        source: A file of askgauss, an open binary stream of one (a pipe will do), or a folder: a
            run with ``transcript.npz`` or ``scores.npz`` in it, or one of the paper's public code.

    Raises:
        FileFormatError: The source is corrupt, foreign, hostile, or of a newer schema.
        OSError: The source cannot be read.

    Examples:
        >>> import io
        >>> stream = io.BytesIO()
        >>> CanaryScores.from_groups(present=[2.0, 3.0], absent=[0.0, 1.0]).save(stream)
        >>> load_audit_input(io.BytesIO(stream.getvalue()))
        CanaryScores(present=2, absent=2)
    """
    if not isinstance(source, (str, os.PathLike)):
        return _load(_whole(source, "the input stream"), "the input stream")
    path = Path(source)
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return _load_folder(path)
    if stat.S_ISREG(mode):
        return _load(path, repr(str(path)))
    # A pipe that has a name: it cannot be read twice, nor from its end.
    with path.open("rb") as stream:
        return _load(_whole(stream, repr(str(path))), repr(str(path)))


def _load_folder(folder: Path) -> AuditInput:
    for name in ("transcript.npz", "scores.npz"):
        if (folder / name).exists():
            return load_audit_input(folder / name)
    if any(folder.glob("in_scores_ndis_*.csv")):
        return CanaryScores.from_auditbench(folder)
    raise FileFormatError(
        f"Expected transcript.npz or scores.npz in {str(folder)!r}, found neither. Name a file, or "
        "the folder of a finished run."
    )


def _whole(stream: IO[bytes], name: str) -> io.BytesIO:
    """All of a stream that begins as one of our files does; of any other, only the beginning."""
    start = stream.read(len(_ZIP))
    while len(start) < len(_ZIP) and (more := stream.read(len(_ZIP) - len(start))):
        start += more
    if not start:
        raise FileFormatError(
            f"Cannot read {name}: it is empty. If a pipe feeds it, look at the command before."
        )
    return io.BytesIO(start + stream.read() if start.startswith((_ZIP, b"{")) else start)


def _load(source: Path | io.BytesIO, name: str) -> AuditInput:
    if isinstance(source, io.BytesIO):
        kind = _kind(source, name)
        source.seek(0)
    else:
        with source.open("rb") as stream:
            kind = _kind(stream, name)
    if kind not in _READERS:
        raise FileFormatError(f"Cannot read {name} as scores or a transcript. {_advice(kind)}")
    return _READERS[kind].load(source)


def _advice(kind: str) -> str:
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind.startswith("askgauss-"):
        return _CHECKPOINT
    return f"It says it is {kind[:80]!r}, which this askgauss does not know: update askgauss."


def _kind(stream: IO[bytes], name: str) -> str:
    """What a file says it is."""
    start = stream.read(len(_ZIP))
    stream.seek(0)
    if start == _ZIP:
        return read_kind(stream, name)
    text = stream.read(_HEADER).decode("utf-8", "replace") if start.startswith(b"{") else ""
    try:
        # The first thing in it: after the header of a step store come the steps.
        content, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict) and "kind" in content:
        return str(content["kind"])
    raise FileFormatError(
        f"Cannot read {name}: it is no npz file. Expected what Transcript.save() or "
        "CanaryScores.save() wrote, or what askgauss simulate writes."
    )
