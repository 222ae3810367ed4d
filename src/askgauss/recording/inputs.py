"""What an audit reads, from a file, a folder or a stream, told apart by what it says it is.

Files of askgauss say what they are. Tables of scores that others wrote (CSV, JSON, Parquet, plain
npz) are read by `askgauss.recording.score_tables`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from askgauss.exceptions import FileFormatError
from askgauss.files.atomic import DOCUMENT_BYTES, Source, read_arrays, read_kind, read_stream
from askgauss.files.checkpoint import OPACUS_KIND, OPACUS_SCHEMA, TRANSCRIPT
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.recording.score_tables import looks_like, read_table
from askgauss.recording.transcript import Transcript
from askgauss.scores import CanaryScores

__all__ = [
    "AuditInput",
    "FolderChoice",
    "choose_in_folder",
    "load_audit_input",
]

AuditInput: TypeAlias = CanaryScores | Transcript | LinearTranscript

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
_CHECKPOINT = (
    "It is a checkpoint to go on from, taken while the run was recorded. Where the run has ended, "
    'write what it released: audit.transcript().save("transcript.npz"), or audit.save() after the '
    "with block; of a recorder of your own, recorder.save(path, finished=True)."
)
# A checkpoint that was written after the run holds its transcript, as a file of its own.
_HOLDS_TRANSCRIPT = {
    OPACUS_KIND: OPACUS_SCHEMA,
    "askgauss-recorder": 2,
    "askgauss-linear-recorder": 2,
    "askgauss-sampled-recorder": 1,
}
# Files of a run that hold something else.
_NEVER = ("run.json", "result.json", "checkpoint.npz", "config.json", "environment.json")
_TABLES = (".csv", ".tsv", ".parquet", ".json", ".npz")
# The header of a file of ours is a few kilobytes of JSON.
_HEADER = 1 << 22
_ZIP = b"PK\x03\x04"


def load_audit_input(source: Source) -> AuditInput:
    """Scores or a transcript, whichever the source holds.

    Args:
        source: A file of askgauss or a table of scores (CSV, JSON, Parquet, npz: see
            `askgauss.recording.score_tables`), an open binary stream of one (a pipe will do), or a
            folder: a run with ``transcript.npz`` or ``scores.npz`` in it, or one of the paper's
            public code.

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


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """What is audited of a folder.

    Attributes:
        path: The file, or the folder itself where its files belong together.
        others: Names of other files in it that could have been audited.
    """

    path: Path
    others: tuple[str, ...]


def choose_in_folder(folder: Path) -> FolderChoice:
    """What is audited of a folder: its transcript, else its scores, else the one file there is.

    Raises:
        FileFormatError: There is nothing, or several files that none goes before.
    """
    names = sorted(
        item.name
        for item in folder.iterdir()
        if item.suffix.lower() in _TABLES and item.is_file() and item.name not in _NEVER
    )
    for name in ("transcript.npz", "scores.npz"):
        if (folder / name).is_file():
            return FolderChoice(folder / name, tuple(item for item in names if item != name))
    if any(folder.glob("in_scores_ndis_*.csv")):
        return FolderChoice(folder, ())
    if len(names) == 1:
        return FolderChoice(folder / names[0], ())
    found = "nothing that holds scores" if not names else f"several: {', '.join(names[:8])}"
    raise FileFormatError(
        f"Expected transcript.npz or scores.npz in {str(folder)!r}, found {found}. Name a file, or "
        "the folder of a finished run."
    )


def _load_folder(folder: Path) -> AuditInput:
    chosen = choose_in_folder(folder).path
    if chosen == folder:
        return CanaryScores.from_auditbench(folder)
    return load_audit_input(chosen)


def _whole(stream: IO[bytes], name: str) -> io.BytesIO:
    """All of a stream that begins as one of our files does; of any other, only the beginning."""
    start = stream.read(len(_ZIP))
    while len(start) < len(_ZIP) and (more := stream.read(len(_ZIP) - len(start))):
        start += more
    if not start:
        raise FileFormatError(
            f"Cannot read {name}: it is empty. If a pipe feeds it, look at the command before."
        )
    if start.startswith(_ZIP):
        return io.BytesIO(start + read_stream(stream, name))
    if start.startswith(b"{"):
        return io.BytesIO(start + read_stream(stream, name, DOCUMENT_BYTES))
    return io.BytesIO(start)


def _load(source: Path | io.BytesIO, name: str) -> AuditInput:
    with contextlib.ExitStack() as stack:
        stream: IO[bytes] = (
            source if isinstance(source, io.BytesIO) else stack.enter_context(source.open("rb"))
        )
        kind = _kind(stream, name)
        if kind is None:
            stream.seek(0)
            form = looks_like(stream.read(64), name.strip("'\""))
            stream.seek(0)
            if form is None:
                raise FileFormatError(
                    f"Cannot read {name}: it is no npz file, nor CSV, JSON or Parquet. Expected "
                    "what Transcript.save() or CanaryScores.save() wrote, what askgauss simulate "
                    "writes, or a table with the columns score and member."
                )
            return read_table(stream, form, name)
        stream.seek(0)
        if kind in _HOLDS_TRANSCRIPT:
            return _held_transcript(stream, kind, name)
        if kind not in _READERS:
            raise FileFormatError(f"Cannot read {name} as scores or a transcript. {_advice(kind)}")
    return _READERS[kind].load(source)


def _held_transcript(stream: IO[bytes], kind: str, name: str) -> Transcript | LinearTranscript:
    """The transcript in a checkpoint that was written after the run."""
    arrays, _ = read_arrays(stream, kind, _HOLDS_TRANSCRIPT[kind])
    held = arrays.get(TRANSCRIPT)
    if held is None or held.dtype != np.uint8:
        raise FileFormatError(f"Cannot read {name} as scores or a transcript. {_CHECKPOINT}")
    reader = LinearTranscript if kind == "askgauss-linear-recorder" else Transcript
    return reader.load(io.BytesIO(held.tobytes()))


def _advice(kind: str) -> str:
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind.startswith("askgauss-"):
        return _CHECKPOINT
    return f"It says it is {kind[:80]!r}, which this askgauss does not know: update askgauss."


def _kind(stream: IO[bytes], name: str) -> str | None:
    """What a file of ours says it is; None of any other."""
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
    stream.seek(0)
    return None
