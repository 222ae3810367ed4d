"""Writing the state of a recorder to a file, and going on from it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from askgauss import _files

__all__ = ["OPACUS_KIND", "OPACUS_SCHEMA", "Checkpointed"]

# Of an Opacus audit; named here since whoever audits files reads it too, without torch.
OPACUS_KIND = "askgauss-opacus-audit"
OPACUS_SCHEMA = 2


class Checkpointed(ABC):
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
        state = self.state_dict()
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
        self.load_state_dict({**arrays, "state": content.get("state")})
