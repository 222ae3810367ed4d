"""Checkpoints of an Opacus audit: what they hold beside the recorder's state."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from askgauss.files import archive, codec
from askgauss.files.checkpoint import OPACUS_KIND, OPACUS_SCHEMA, TRANSCRIPT
from askgauss.recording.commitment import Commitment

__all__ = ["OpacusState", "read_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpacusState:
    """The part of a checkpoint that is not the recorder's.

    Attributes:
        inject: Where canaries go in.
        known: Whether the clean sum of the other records is subtracted.
        seed: Root of the canaries' random choices.
        unnoised: Steps of the wrapped optimizer without noise.
        discarded: How often noise was added and no step followed.
        accumulated: Numbers of batches that steps were made of.
        commitment: What was fixed before the first step.
        ended: Why the recording ended before the training did; empty where it did not.
        observers: The observers' states, by their keys.
    """

    inject: str
    known: bool
    seed: int
    unnoised: int
    discarded: int
    accumulated: tuple[int, ...]
    commitment: Commitment | None
    ended: str
    observers: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any]) -> OpacusState:
        """What a `CanaryAudit.state_dict` holds of it.

        Raises:
            FileFormatError: It is no such state, or parts of it are missing.
        """
        found: OpacusState = codec.from_plain(cls, state.get("audit"), "audit")
        return found


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `CanaryAudit.save` wrote, as `CanaryAudit.load_state_dict` takes it.

    Raises:
        FileFormatError: It is no such checkpoint.
    """
    arrays, content = archive.read_arrays(path, OPACUS_KIND, OPACUS_SCHEMA)
    arrays.pop(TRANSCRIPT, None)
    return {**arrays, **{name: content.get(name) for name in ("state", "audit")}}
