"""Writing the state of a recorder to a file, and going on from it."""

from __future__ import annotations

import contextlib
import functools
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import RecordingError
from askgauss.files import archive
from askgauss.files.atomic import Holds

__all__ = [
    "OPACUS_KIND",
    "OPACUS_SCHEMA",
    "TRANSCRIPT",
    "CheckpointFiles",
    "Checkpointed",
    "Kept",
    "enclosed",
]

# Of an Opacus audit; named here since whoever audits files reads it too, without torch.
OPACUS_KIND = "askgauss-opacus-audit"
OPACUS_SCHEMA = 3

# What a checkpoint of a finished run holds beside its state: the transcript, as a file of its own.
TRANSCRIPT = "transcript"


class _Saved(Protocol):
    def save(self, target: io.BytesIO) -> None: ...


def enclosed(transcript: _Saved) -> NDArray[np.uint8]:
    """A transcript as one array of a checkpoint, so that the checkpoint can be audited."""
    held = io.BytesIO()
    transcript.save(held)
    return np.frombuffer(held.getvalue(), dtype=np.uint8)


class CheckpointFiles:
    """The checkpoints of one run: held while it lives, and not written over those of a copy."""

    def __init__(self) -> None:
        self.holds = Holds()
        # What each file was when this run last read or wrote it.
        self._known: dict[str, str | None] = {}
        self._last: str | None = None

    @contextlib.contextmanager
    def read(self, path: str | os.PathLike[str], *, hold: bool = True) -> Iterator[None]:
        """Go on from a file in here; it is held from then on, unless that fails.

        Raises:
            RecordingError: A live run has it.
        """
        # A missing file is the reader's to complain about, and needs no lock beside it.
        if not hold or not Path(path).exists():
            yield
            self._known.pop(os.path.realpath(path), None)
            return
        with self._or_let_go(path, self.holds.take(path)):
            found = archive.header_digest(path)
            yield
        self._remember(path, found)

    @contextlib.contextmanager
    def write(
        self, path: str | os.PathLike[str], *, hold: bool = True, keep: bool = True
    ) -> Iterator[None]:
        """Write a file in here.

        Args:
            path: The file.
            hold: Whether to hold it, and to refuse what something else wrote.
            keep: Whether to go on holding it.

        Raises:
            RecordingError: A live run has it, or it is not as this run left it.
        """
        if not hold:
            yield
            self._known.pop(os.path.realpath(path), None)
            return
        fresh = self.holds.take(path)
        with self._or_let_go(path, fresh):
            self.check(path)
            yield
        self._remember(path, archive.header_digest(path))
        if fresh and not keep:
            self.holds.let_go(path)

    def check_last(self) -> None:
        """Hold the last file again, and refuse to go on where a copy of the run went further.

        Raises:
            RecordingError: A live run has it, or it is not as this run left it.
        """
        if self._last is not None and Path(self._last).exists():
            with self._or_let_go(self._last, self.holds.take(self._last)):
                self.check(self._last)

    def check(self, path: str | os.PathLike[str]) -> None:
        """Refuse a file that is not as this run left it; one that nobody can read may go.

        Raises:
            RecordingError: Something else wrote it since.
        """
        known = self._known.get(os.path.realpath(path))
        if known is not None and archive.header_digest(path) not in (None, known):
            raise RecordingError(
                f"Expected {str(path)!r} as this run left it, got a checkpoint that something else "
                "has written since: another copy of the run went on from it. Stop one of them; "
                "load the file to go on from there, or save elsewhere."
            )

    @contextlib.contextmanager
    def _or_let_go(self, path: str | os.PathLike[str], fresh: bool) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if fresh:
                self.holds.let_go(path)
            raise

    def _remember(self, path: str | os.PathLike[str], digest: str | None) -> None:
        self._last = os.path.realpath(path)
        self._known[self._last] = digest


class Kept(ABC):
    """Something whose state is arrays, and plain values under ``"state"``."""

    _checkpoint_kind: ClassVar[str]
    _checkpoint_schema: ClassVar[int]

    @functools.cached_property
    def _checkpoints(self) -> CheckpointFiles:
        return CheckpointFiles()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""

    def save(self, path: str | os.PathLike[str], *, hold: bool = True) -> None:
        """Write a checkpoint, whole or not at all.

        Args:
            path: Where to.
            hold: Whether to keep other processes from going on with the file, until this object is
                gone or calls `release`. False where the folder is locked already, or moved about.

        Raises:
            RecordingError: Another copy of the run has the file, or wrote it since.
        """
        self._write(path, self.state_dict(), hold=hold)

    def _write(self, path: str | os.PathLike[str], state: dict[str, Any], *, hold: bool) -> None:
        plain = {"state": state.pop("state")}
        kind, schema = self._checkpoint_kind, self._checkpoint_schema
        with self._checkpoints.write(path, hold=hold):
            archive.write_arrays(path, kind, schema, state, plain)

    def load(self, path: str | os.PathLike[str], *, hold: bool = True) -> None:
        """Go on from a checkpoint that `save` wrote.

        Args:
            path: Where from.
            hold: As for `save`. Of several processes of one ``torchrun``, which all load the file,
                the first one holds it.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
            RecordingError: As for `load_state_dict`; or another process goes on with the file.
        """
        kind, schema = self._checkpoint_kind, self._checkpoint_schema
        first = os.environ.get("RANK", "0") == "0"
        with self._checkpoints.read(path, hold=hold and first):
            arrays, content = archive.read_arrays(path, kind, schema)
            arrays.pop(TRANSCRIPT, None)
            self.load_state_dict({**arrays, "state": content.get("state")})

    def hold(self) -> None:
        """Keep other processes from the files of this run again, after `release`.

        Raises:
            RecordingError: One of them goes on with the run, or did meanwhile.
        """
        self._checkpoints.check_last()

    def release(self) -> None:
        """Let other processes go on with the files of this run; to write one holds it again."""
        self._checkpoints.holds.let_go()


class Checkpointed(Kept):
    """A recorder, whose checkpoint can also hold the transcript of a run that has ended."""

    # Steps after which it went on from a checkpoint, and nobody has said where the model was.
    _resumed: tuple[int, ...]

    def check_step(self, step: int | None, own: int) -> None:
        """Refuse a step that the caller counts otherwise: model and audit are of two moments.

        A caller whose count agrees after a restart has said that the model was there too.

        Args:
            step: Steps done so far as the caller counts them; None where nobody says.
            own: The same as the audit counts them.

        Raises:
            InvalidArgumentError: It is no count.
            RecordingError: The two differ.
        """
        if step is None:
            return
        _validate.integer(0, step=step)
        if step != own:
            raise RecordingError(
                f"Expected step={own}, as many as this audit has recorded, got {step}. Load the "
                "checkpoint of the same step of model and audit; or begin a new audit."
            )
        if self._resumed[-1:] == (own,):
            self._resumed = self._resumed[:-1]

    @abstractmethod
    def transcript(self) -> Any:
        """What was released about each canary."""

    def save(
        self, path: str | os.PathLike[str], *, finished: bool = False, hold: bool = True
    ) -> None:
        """Write a checkpoint, whole or not at all.

        Args:
            path: Where to.
            finished: Whether the run has ended: the checkpoint then holds its transcript too, and
                ``askgauss audit`` reads it. Others are refused, for they say nothing of the steps
                to come.
            hold: Whether to keep other processes from going on with the file, until this object is
                gone or calls `release`. False where the folder is locked already, or moved about.

        Raises:
            RecordingError: There is nothing to audit in a run that is said to have ended; or
                another copy of the run has the file, or wrote it since.
        """
        state = self.state_dict()
        if finished:
            state[TRANSCRIPT] = enclosed(self.transcript())
        self._write(path, state, hold=hold)
        if finished:
            self.release()
