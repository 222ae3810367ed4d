"""What an audit reads, from a file, a folder or a stream, told apart by what it says it is.

Files of askgauss say what they are. Tables of scores that others wrote (CSV, JSON, Parquet, plain
npz) are read by `askgauss.recording.inputs`.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    MissingExtraError,
    ScoresError,
)
from askgauss.files import archive, atomic
from askgauss.files.archive import read_arrays, read_kind
from askgauss.files.atomic import DOCUMENT_BYTES, Source, read_stream
from askgauss.files.checkpoint import OPACUS_KIND, OPACUS_SCHEMA, TRANSCRIPT
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.scores import MEMBERSHIPS, CanaryScores

__all__ = [
    "AuditInput",
    "FolderChoice",
    "choose_in_folder",
    "load_audit_input",
    "looks_like",
    "read_table",
]

# Names that mean the same to their writers; the first is the one we would have chosen.
_SCORE = ("score", "scores", "value", "canary_score")
_MEMBER = ("member", "membership", "is_member", "in", "is_present", "in_training", "included")
_PRESENT = ("present", "in_scores", "members", "present_scores", "scores_in", "in_canary_scores")
_ABSENT = ("absent", "out_scores", "non_members", "absent_scores", "scores_out", "nonmembers",
           "out_canary_scores")  # fmt: skip
_SETTINGS = ("steps", "sampling_rate", "noise", "membership")
_RUN = ("run", "run_id", "run_name")
_PROBABILITY = ("probability", "inclusion_probability", "membership_probability")
_IDS = ("id", "ids", "canary", "canary_id", "record", "record_id")
_WORDS = {"1": True, "0": False, "true": True, "false": False, "yes": True, "no": False,
          "present": True, "absent": False, "in": True, "out": False}  # fmt: skip
_KNOWN = frozenset(
    (*_SCORE, *_MEMBER, *_PRESENT, *_ABSENT, *_SETTINGS, *_RUN, *_IDS, *_PROBABILITY)
)
_MOST_BYTES = 1 << 31
# A cell that is no plain number, as an object.
_CELL_BYTES = 64
_LONGEST_FIELD = 1000

Column = Sequence[Any] | NDArray[Any]


def looks_like(start: bytes, name: str) -> str | None:
    """What kind of table a file is, by its first bytes and its name; None if it is none we read."""
    suffix = name.rsplit(".", 1)[-1].lower() if "." in name else ""
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"PK\x03\x04"):
        return "npz"
    if start.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "csv" if suffix in ("csv", "tsv", "txt") else None


def read_table(stream: IO[bytes], form: str, name: str) -> CanaryScores:
    """Scores in a table.

    Args:
        stream: An open binary stream that can seek.
        form: What `looks_like` said.
        name: What to call the file in errors.

    Raises:
        FileFormatError: It has other columns, or values that are no scores; the message says which
            were found.
        MissingExtraError: Parquet without pyarrow.
    """
    stream.seek(0, io.SEEK_END)
    if stream.tell() > _MOST_BYTES:
        raise FileFormatError(f"Cannot read {name}: a table of more than 2 GB. Save the scores as "
                              "npz with CanaryScores.save().")  # fmt: skip
    stream.seek(0)
    readers = {"csv": _csv, "json": _json, "npz": _npz, "parquet": _parquet}
    try:
        columns = readers[form](stream)
        return _scores({key.strip().lower(): item for key, item in columns.items()})
    except (FileFormatError, InvalidArgumentError, ScoresError) as error:
        raise FileFormatError(f"Cannot read {name} as a table of scores: {error}") from error


def _csv(stream: IO[bytes]) -> dict[str, Column]:
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="strict", newline="")
    try:
        head = text.readline(_LONGEST_FIELD)
        delimiter = max(",;\t", key=head.count)
        names = [cell.strip() for cell in next(csv.reader([head], delimiter=delimiter), [])]
        if len({*names}) != len(names) or not all(names):
            raise FileFormatError(f"expected a heading with a name for each column, got {head!r}.")
        columns: dict[str, list[str]] = {name: [] for name in names}
        for number, row in enumerate(csv.reader(text, delimiter=delimiter), start=2):
            if not row:
                continue
            if len(row) != len(names):
                raise FileFormatError(
                    f"line {number} has {len(row)} cells where the heading has {len(names)}."
                )
            for name, cell in zip(names, row, strict=True):
                columns[name].append(cell)
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"it is no text in UTF-8 with columns: {error}.") from error
    finally:
        text.detach()
    return dict(columns)


def _json(stream: IO[bytes]) -> dict[str, Column]:
    try:
        text = atomic.read_stream(stream, "the table", atomic.DOCUMENT_BYTES)
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"it is no JSON: {str(error)[:200]}.") from error
    if isinstance(content, list):
        if not content or not all(isinstance(row, dict) for row in content):
            raise FileFormatError("expected a list of objects, one a canary.")
        names = set().union(*content)
        if any(row.keys() != names for row in content):
            raise FileFormatError("expected every object of the list to have the same keys.")
        return {str(name): [row[name] for row in content] for name in names}
    if not isinstance(content, dict):
        raise FileFormatError("expected an object with lists of scores, or a list of objects.")
    return {str(key): item for key, item in content.items()}


def _npz(stream: IO[bytes]) -> dict[str, Column]:
    return dict(archive.read_npz(stream))


def _parquet(stream: IO[bytes]) -> dict[str, Column]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError(
            "Parquet needs pyarrow: pip install 'askgauss[parquet]', or save CSV."
        ) from error
    try:
        file = parquet.ParquetFile(stream)
        kinds = {field.name: field.type for field in file.schema_arrow}
        if len(kinds) != len(file.schema_arrow):
            raise FileFormatError("expected every column to have a name of its own.")
        wanted = [name for name in kinds if name.strip().lower() in _KNOWN]
        # The footer says how many rows there are, before any of them takes memory.
        cell = sum(8 if _is_plain(kinds[name]) else _CELL_BYTES for name in wanted)
        rows = file.metadata.num_rows
        archive.check_expansion(stream.seek(0, io.SEEK_END), rows * cell)
        table = file.read(columns=wanted)
        # Columns of other names are there to be named, if those that are needed are not.
        columns: dict[str, Column] = dict.fromkeys(kinds, ())
        return columns | {name: _column(table.column(name), name) for name in wanted}
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise FileFormatError(f"it is no Parquet table: {str(error)[:200]}.") from error


def _is_plain(kind: Any) -> bool:
    """Whether a column of Parquet holds numbers or flags."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _column(column: Any, name: str) -> Column:
    """The cells of a column of Parquet, without empty ones at its end."""
    if not _is_plain(column.type):
        return list(column.to_pylist())
    filled = len(column) - column.null_count
    column = column.slice(0, filled)
    if column.null_count:
        raise FileFormatError(f"{name!r} holds an empty cell, which is no number.")
    return np.asarray(column.to_numpy())


def _scores(columns: Mapping[str, Any]) -> CanaryScores:
    columns = dict(columns)
    _check_one_run(columns)
    settings = {
        name: _setting(name, columns[name])
        for name in _SETTINGS
        if name in columns and (name != "membership" or _says_how(columns[name]))
    }
    if "membership" in settings:
        del columns["membership"]  # else it says who was present
    score, member = _one_of(columns, _SCORE), _one_of(columns, _MEMBER)
    present, absent = _one_of(columns, _PRESENT), _one_of(columns, _ABSENT)
    if score is not None and member is None and present is not None and absent is None:
        # "present" may also be the name of the column that says who was.
        member, present = present, None
    if score is not None and member is not None:
        values, coins = _numbers(columns[score], score), _coins(columns[member], member)
        if values.size != coins.size:
            raise FileFormatError(
                f"{score!r} has {values.size:,} values and {member!r} {coins.size:,}."
            )
        scores = CanaryScores.from_groups(present=values[coins], absent=values[~coins], **settings)
        chance = _one_of(columns, _PROBABILITY)
        if chance is None:
            return scores
        probability = _numbers(columns[chance], chance)
        if probability.size != values.size:
            raise FileFormatError(
                f"expected one {chance!r} a canary, got {probability.size:,} for {values.size:,}. "
                "Fill in the missing ones."
            )
        return scores.with_fair_coins(np.concatenate((probability[coins], probability[~coins])))
    if present is not None and absent is not None:
        return CanaryScores.from_groups(
            present=_numbers(columns[present], present),
            absent=_numbers(columns[absent], absent),
            **settings,
        )
    found = ", ".join(repr(str(name)[:40]) for name in list(columns)[:20]) or "none"
    raise FileFormatError(
        f"expected the columns {_SCORE[0]!r} and {_MEMBER[0]!r} (whether a canary was present), or "
        f"{_PRESENT[0]!r} and {_ABSENT[0]!r}, found {found}. Rename them."
    )


def _check_one_run(columns: Mapping[str, Any]) -> None:
    """Refuse scores of several runs, and canaries that occur twice."""
    run, ids = _one_of(columns, _RUN), _one_of(columns, _IDS)
    for name, most in ((run, 1), (ids, None)):
        if name is None or not isinstance(columns[name], (list, tuple, np.ndarray)):
            continue
        cells = [str(cell) for cell in columns[name]]
        if most is not None and len({*cells}) > most:
            raise FileFormatError(
                f"expected scores of one run, and {name!r} names {len({*cells})} runs. Write a "
                "file for each run, and audit each."
            )
        if most is None and len({*cells}) < len(cells):
            twice = next(cell for cell in cells if cells.count(cell) > 1)
            raise FileFormatError(
                f"expected one score a canary, and {name!r} holds {twice[:40]!r} more than once. "
                "Write a file for each run, and drop copies."
            )


def _says_how(column: Any) -> bool:
    """Whether a column named membership says how it was decided, and not who was present."""
    first = column
    if isinstance(column, (list, tuple, np.ndarray)) and np.ndim(column) == 1 and len(column):
        first = column[0]
    return str(first).strip().lower() in MEMBERSHIPS


def _one_of(columns: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _numbers(column: Any, name: str) -> NDArray[np.float64]:
    """A column of finite numbers; it may end in empty cells, where another one is longer."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "fiub" or column.ndim != 1:
            raise FileFormatError(f"{name!r} is no list of numbers.")
        values = column.astype(np.float64)
    else:
        if not isinstance(column, (list, tuple)):
            raise FileFormatError(f"{name!r} is no list of numbers.")
        size = len(column)
        while size and column[size - 1] in ("", None):
            size -= 1
        values = np.array([_number(cell, name) for cell in column[:size]])
    if values.size and not np.isfinite(values).all():
        raise FileFormatError(f"{name!r} holds nan or infinite values.")
    return np.asarray(values, dtype=np.float64)


def _number(cell: Any, name: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(f"{name!r} holds {str(cell)[:40]!r}, which is no number.") from error


def _coins(column: Any, name: str) -> NDArray[np.bool_]:
    if isinstance(column, np.ndarray):
        # Flags and numbers need no words.
        if column.dtype.kind in "biuf" and column.ndim == 1 and np.isin(column, (0, 1)).all():
            return column.astype(np.bool_)
        column = column.tolist()
    if not isinstance(column, (list, tuple)):
        raise FileFormatError(f"{name!r} is no list of yes and no.")
    coins = []
    for cell in column:
        word = str(int(cell)) if isinstance(cell, float) and cell in (0.0, 1.0) else str(cell)
        if word.strip().lower() not in _WORDS:
            raise FileFormatError(
                f"{name!r} holds {word[:40]!r}; expected 1 or true for a canary that was present "
                "and 0 or false for one that was not."
            )
        coins.append(_WORDS[word.strip().lower()])
    return np.array(coins, dtype=np.bool_)


def _setting(name: str, column: Any) -> Any:
    """A setting of the run: one value, or a column that repeats it."""
    cells = column
    if isinstance(column, np.ndarray):
        alike = column.ndim == 1 and column.size > 0 and bool((column == column[0]).all())
        cells = (column[:1] if alike else column[:2] if column.ndim else column).tolist()
    if isinstance(cells, (list, tuple)):
        if not cells or any(cell != cells[0] for cell in cells):
            raise FileFormatError(f"{name!r} differs from line to line; a run has one.")
        cells = cells[0]
    if name in ("noise", "membership"):
        return str(cells).strip().lower()
    value = _number(cells, name)
    if name == "steps" and (not math.isfinite(value) or value != int(value)):
        raise FileFormatError(f"{name!r} is {value:g}, which is no number of steps.")
    return int(value) if name == "steps" else value


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
    "askgauss-run": "It describes a run: name the folder it lies in.",
}
_CHECKPOINT = (
    "It is a checkpoint to go on from, taken while the run was recorded. Where the run has ended, "
    'write what it released: audit.transcript().save("transcript.npz"), or audit.save() after the '
    "with block; of a recorder of your own, recorder.save(path, finished=True)."
)
# A checkpoint that was written after the run holds its transcript, as a file of its own.
_HOLDS_TRANSCRIPT = {
    OPACUS_KIND: OPACUS_SCHEMA,
    "askgauss-recorder": 3,
    "askgauss-linear-recorder": 3,
    "askgauss-sampled-recorder": 2,
}
# Files of a run that hold something else.
_NEVER = ("run.json", "result.json", "checkpoint.npz")
_TABLES = (".csv", ".tsv", ".parquet", ".json", ".npz")
# The header of a file of ours is a few kilobytes of JSON.
_HEADER = 1 << 22
_ZIP = b"PK\x03\x04"


def load_audit_input(source: Source) -> AuditInput:
    """Scores or a transcript, whichever the source holds.

    Args:
        source: A file of askgauss or a table of scores (CSV, JSON, Parquet, npz: see
            `askgauss.recording.inputs`), an open binary stream of one (a pipe will do), or a
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
