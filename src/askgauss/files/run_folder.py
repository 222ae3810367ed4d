"""A run is a folder: what was asked for, how far it came, and what came of it.

::

    run.json          what was asked for, with which versions, and how far it came
    checkpoints/      the last complete one
    results/          what came out
    runs/             the audit of each run trained here, for ``askgauss report``
    .lock             held while a process uses the folder; released however that ends

The demo, which is one small run, keeps its files in the folder itself: ``checkpoint.npz``,
``transcript.npz``, ``scores.npz``, ``result.json`` and ``report.html``.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from askgauss.exceptions import FileFormatError
from askgauss.files import atomic, codec, installed_versions
from askgauss.files.atomic import locked

__all__ = ["RunFolder", "RunRecord"]

_KIND, _CONTENT_KIND = "askgauss-run", "askgauss-run-content"
_SCHEMA = 2
_LOCK = ".lock"
# Calibrated noise is known to seven digits; beyond them it depends on the number of threads.
_SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of ``run.json``.

    Attributes:
        command: The command that made the run.
        config: What the run was asked to do, as plain values.
        status: How far it came.
        done: Steps taken.
        facts: What a reader should know: the model, the data, the accuracy.
        versions: What the run was started with.
    """

    command: str
    config: dict[str, Any]
    status: Literal["started", "interrupted", "finished"] = "started"
    done: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=installed_versions)


class RunFolder:
    """The folder of a run; enter it to be the only process that uses it.

    Args:
        path: The folder.
        config: What the run is asked to do. Entering then makes the folder, refuses one that was
            made for something else, and takes over the numbers of one that was made for this to
            the last digit. Without it, entering only takes the lock.
        command: The command that asks.

    Raises:
        FileFormatError: On entering, if the folder belongs to another run.
        RunFolderBusyError: On entering, if another process uses it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     with RunFolder(Path(place, "run"), {"seed": 1}) as folder:
        ...         folder.write_json("results/answer.json", {"epsilon": 2.0})
        ...     RunFolder(Path(place, "run")).read_json("results/answer.json")
        {'epsilon': 2.0}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        *,
        command: str = "reproduce",
    ) -> None:
        self.path = Path(path)
        self.config: Any = None if config is None else codec.to_plain(dict(config))
        self._command = command
        self._lock: AbstractContextManager[None] | None = None

    def __enter__(self) -> RunFolder:
        if self.config is not None:
            for part in ("checkpoints", "results"):
                (self.path / part).mkdir(parents=True, exist_ok=True)
        self._lock = locked(self.path / _LOCK)
        self._lock.__enter__()
        try:
            if self.config is not None:
                self.config = self._settled(self.config)
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *reason: Any) -> None:
        assert self._lock is not None
        self._lock.__exit__(None, None, None)

    @property
    def description(self) -> Path:
        """What was asked for, and how far it came."""
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of a demo."""
        return self.path / "checkpoint.npz"

    @property
    def transcript(self) -> Path:
        """What a demo released about its canaries."""
        return self.path / "transcript.npz"

    @property
    def scores(self) -> Path:
        """The canary scores of a demo."""
        return self.path / "scores.npz"

    @property
    def result(self) -> Path:
        """The result of the audit."""
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        """The report on that result."""
        return self.path / "report.html"

    def is_empty(self) -> bool:
        """Whether nothing is in the folder but what a run stopped in its first seconds leaves."""
        return all(
            item.name == _LOCK or (item.name.startswith(".") and item.suffix == ".part")
            for item in self.path.iterdir()
        )

    def read(self) -> RunRecord:
        """The content of ``run.json``.

        Raises:
            FileFormatError: It is corrupt, foreign, or of a newer schema.
        """
        try:
            content = codec.loads(atomic.read_bytes(self.description, regular=True), _KIND, _SCHEMA)
            run: RunRecord = codec.from_plain(RunRecord, content, "run")
        except FileFormatError as error:
            raise FileFormatError(f"Cannot read {str(self.description)!r}: {error}") from error
        return run

    def write(self, run: RunRecord) -> None:
        """Write ``run.json``, complete or not at all; it holds the seed, so for its owner only."""
        text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(run))
        atomic.write_text(self.description, text + "\n", private=True)

    def update(self, **changes: Any) -> RunRecord:
        """Change what ``run.json`` says."""
        run = replace(self.read(), **changes)
        self.write(run)
        return run

    def _settled(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What was asked for, as the folder was started with it."""
        if not self.description.exists():
            self.write(RunRecord(command=self._command, config=asked))
            return asked
        found = self.read().config
        other = [
            name for name in sorted({*asked, *found}) if not _same(found.get(name), asked.get(name))
        ]
        if other:
            raise FileFormatError(
                f"{str(self.path)!r} belongs to a run with another {', '.join(other)}. Use "
                "another folder, or delete this one."
            )
        return found

    def write_json(self, name: str, content: Any) -> None:
        """Plain values under a name in the folder, complete or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = codec.dumps(_CONTENT_KIND, _SCHEMA, {"content": codec.to_plain(content)})
        atomic.write_text(target, text)

    def read_json(self, name: str, hint: Any = Any) -> Any:
        """What `write_json` wrote; None if it did not.

        Args:
            name: The name it was written under.
            hint: The type that it is.

        Raises:
            FileFormatError: The file is damaged.
        """
        target = self.path / name
        if not target.exists():
            return None
        try:
            found = codec.loads(atomic.read_bytes(target, regular=True), _CONTENT_KIND, _SCHEMA)
            return codec.from_plain(hint, found["content"], name)
        except (FileFormatError, KeyError) as error:
            raise FileFormatError(f"{str(target)!r} is damaged: {error} Delete it.") from error

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Write a checkpoint of several files; it counts once all are there, and replaces older."""
        place = self.path / "checkpoints"
        part = place / f"part-{step}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part)
        target = place / f"step-{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        for old in place.iterdir():
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def last_checkpoint(self) -> tuple[int, Path] | None:
        """The step and folder of the last complete checkpoint."""
        # As `save_checkpoint` names them, and nothing that only begins so.
        found = sorted((self.path / "checkpoints").glob("step-" + 8 * "[0-9]"))
        return (int(found[-1].name.removeprefix("step-")), found[-1]) if found else None


def _same(found: Any, asked: Any) -> bool:
    """Whether two plain values ask for the same, up to digits that no calibration settles."""
    if isinstance(found, float) and isinstance(asked, float):
        return math.isclose(found, asked, rel_tol=_SAME, abs_tol=0.0)
    if isinstance(found, list) and isinstance(asked, list):
        return len(found) == len(asked) and all(map(_same, found, asked))
    if isinstance(found, dict) and isinstance(asked, dict):
        return found.keys() == asked.keys() and all(
            _same(found[name], asked[name]) for name in asked
        )
    return type(found) is type(asked) and bool(found == asked)
