"""Writing the state of a recorder to a file, and going on from it."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from askgauss import _files, _validate
from askgauss.exceptions import RecordingError

__all__ = [
    "OPACUS_KIND",
    "OPACUS_SCHEMA",
    "TRANSCRIPT",
    "Checkpointed",
    "Kept",
    "check_step",
    "enclosed",
]

# Of an Opacus audit; named here since whoever audits files reads it too, without torch.
OPACUS_KIND = "askgauss-opacus-audit"
OPACUS_SCHEMA = 2

# What a checkpoint of a finished run holds beside its state: the transcript, as a file of its own.
TRANSCRIPT = "transcript"


class _Saved(Protocol):
    def save(self, target: io.BytesIO) -> None: ...


def enclosed(transcript: _Saved) -> NDArray[np.uint8]:
    """A transcript as one array of a checkpoint, so that the checkpoint can be audited."""
    held = io.BytesIO()
    transcript.save(held)
    return np.frombuffer(held.getvalue(), dtype=np.uint8)


def check_step(step: int | None, own: int) -> None:
    """Refuse a step that the caller counts otherwise: model and audit are of two moments.

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


class Kept(ABC):
    """Something whose state is arrays, and plain values under ``"state"``."""

    _checkpoint_kind: ClassVar[str]
    _checkpoint_schema: ClassVar[int]

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, whole or not at all."""
        self._write(path, self.state_dict())

    def _write(self, path: str | os.PathLike[str], state: dict[str, Any]) -> None:
        plain = {"state": state.pop("state")}
        _files.write_arrays(path, self._checkpoint_kind, self._checkpoint_schema, state, plain)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint that `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
            RecordingError: As for `load_state_dict`.
        """
        kind, schema = self._checkpoint_kind, self._checkpoint_schema
        arrays, content = _files.read_arrays(path, kind, schema)
        arrays.pop(TRANSCRIPT, None)
        self.load_state_dict({**arrays, "state": content.get("state")})


class Checkpointed(Kept):
    """A recorder, whose checkpoint can also hold the transcript of a run that has ended."""

    @abstractmethod
    def transcript(self) -> Any:
        """What was released about each canary."""

    def save(self, path: str | os.PathLike[str], *, finished: bool = False) -> None:
        """Write a checkpoint, whole or not at all.

        Args:
            path: Where to.
            finished: Whether the run has ended: the checkpoint then holds its transcript too, and
                ``askgauss audit`` reads it. Others are refused, for they say nothing of the steps
                to come.

        Raises:
            RecordingError: There is nothing to audit in a run that is said to have ended.
        """
        state = self.state_dict()
        if finished:
            state[TRANSCRIPT] = enclosed(self.transcript())
        self._write(path, state)
