"""A run is a folder: what was asked for, how far it came, and what came of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from askgauss.claims import PrivacyClaim
from askgauss.cli.installed import versions
from askgauss.exceptions import FileFormatError
from askgauss.files import atomic, codec
from askgauss.files.lock import locked

__all__ = ["Run", "RunFolder"]

_KIND = "askgauss-cli-run"
_SCHEMA = 2
_LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What ``run.json`` says.

    Attributes:
        command: The command that made the run.
        claim: What the run claims.
        options: The options it was started with.
        seed: Root of every random choice.
        status: How far it came.
        done: Steps taken.
        steps: Steps to take.
        facts: What a reader should know: the model, the data, how well it learned.
        versions: What the run was started with.
    """

    command: str
    claim: PrivacyClaim
    options: dict[str, Any]
    seed: int
    steps: int
    status: Literal["started", "interrupted", "finished"] = "started"
    done: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=versions)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a run and the files in it."""

    path: Path

    @property
    def description(self) -> Path:
        """What was asked for, and how far it came."""
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        """Everything needed to go on."""
        return self.path / "checkpoint.npz"

    @property
    def transcript(self) -> Path:
        """What the run released about the canaries."""
        return self.path / "transcript.npz"

    @property
    def scores(self) -> Path:
        """The canary scores."""
        return self.path / "scores.npz"

    @property
    def result(self) -> Path:
        """The result of the audit."""
        return self.path / "result.json"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    @classmethod
    def at(cls, path: str) -> RunFolder | None:
        """The run at a path, if there is one."""
        folder = cls(Path(path))
        return folder if folder.description.is_file() else None

    def holds_something(self) -> bool:
        """Whether anything is in the folder but what a run stopped in its first seconds leaves."""
        return any(
            item.name != _LOCK and not (item.name.startswith(".") and item.suffix == ".part")
            for item in self.path.iterdir()
        )

    def read(self) -> Run:
        """What ``run.json`` says.

        Raises:
            FileFormatError: It is corrupt, foreign, or of a newer schema.
        """
        try:
            content = codec.loads(atomic.read_bytes(self.description, regular=True), _KIND, _SCHEMA)
            run: Run = codec.from_plain(Run, content, "run")
        except FileFormatError as error:
            raise FileFormatError(f"Cannot read {str(self.description)!r}: {error}") from error
        return run

    def write(self, run: Run) -> None:
        """Write ``run.json``, whole or not at all; it holds the seed, so for its owner only."""
        text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(run))
        atomic.write_text(self.description, text + "\n", private=True)

    def update(self, **changes: Any) -> Run:
        """Change what ``run.json`` says."""
        run = replace(self.read(), **changes)
        self.write(run)
        return run

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes out; the system lets go of the lock when this one dies.

        Raises:
            RunFolderBusyError: On entering, if another process holds it.
        """
        return locked(self.path / _LOCK)
