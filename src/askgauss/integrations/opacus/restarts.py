"""Checkpoints of an Opacus audit: what they hold, and how a run goes on from them."""

from __future__ import annotations

import abc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from askgauss import _validate
from askgauss.audited_run import AuditedRun
from askgauss.files import archive, codec
from askgauss.files.checkpoint import (
    OPACUS_KIND,
    OPACUS_SCHEMA,
    TRANSCRIPT,
    CheckpointFiles,
    enclosed,
)
from askgauss.integrations.opacus.example_canaries import ProbeProgress
from askgauss.integrations.opacus.ledger import LedgerState
from askgauss.recording.commitment import Commitment
from askgauss.recording.facts import (
    ClipCountFacts,
    MixingFacts,
    RowFacts,
    SettingFacts,
    StepFacts,
    WeightFacts,
)
from askgauss.recording.facts.run_facts import SeedProbe

__all__ = ["Progress", "Restartable", "read_progress", "read_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The part of a checkpoint that is not the recorder's."""

    inject: str
    known: bool
    seed: int
    unnoised: int
    discarded: int
    ledger: LedgerState
    examples: ProbeProgress | None = None
    weights: str = ""
    accumulated: tuple[int, ...] = ()
    moves: WeightFacts | None = None
    state: str = ""
    witness: StepFacts | None = None
    commitment: Commitment | None = None
    clip_count: ClipCountFacts | None = None
    rows: RowFacts | None = None
    mixing: MixingFacts | None = None
    seeds: SeedProbe | None = None
    settings: tuple[SettingFacts, ...] = ()
    frozen: tuple[tuple[str, int, int], ...] = ()
    beside: bool = False
    ended: str = ""


def read_progress(checkpoint: Path | None) -> Progress | None:
    """What a checkpoint says, if there is one to go on from."""
    if checkpoint is None or not checkpoint.exists():
        return None
    _, content = archive.read_arrays(checkpoint, OPACUS_KIND, OPACUS_SCHEMA)
    progress: Progress = codec.from_plain(Progress, content.get("audit"), "audit")
    return progress


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `Restartable.save` wrote, as `Restartable.load_state_dict` takes it.

    Raises:
        FileFormatError: It is no such checkpoint.
    """
    arrays, content = archive.read_arrays(path, OPACUS_KIND, OPACUS_SCHEMA)
    arrays.pop(TRANSCRIPT, None)
    return {**arrays, **{name: content.get(name) for name in ("state", "audit")}}


class Restartable(AuditedRun[()]):
    """An audit that can be written down and gone on with."""

    _checkpoint: Path | None
    _checkpoints: CheckpointFiles
    _rank: int
    _entered: bool

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """Number of steps recorded so far."""

    @abc.abstractmethod
    def _arrays(self) -> dict[str, Any]:
        """Arrays to go on from, and the recorder's plain values under ``"state"``."""

    @abc.abstractmethod
    def _progress(self) -> Progress:
        """Everything else."""

    @abc.abstractmethod
    def _go_on(self, arrays: dict[str, Any], progress: Progress) -> None:
        """Go on from both; the audit stays as it was where they are of another run."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart: tensors and plain values.

        Put it in the same file as the state of model and optimizer, so that the two never part.
        """
        state = self._arrays()
        plain = {"state": state.pop("state"), "audit": codec.to_plain(self._progress())}
        return {**{name: torch.from_numpy(array) for name, array in state.items()}, **plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            RecordingError: The state belongs to another run. The audit stays as it was.
            FileFormatError: The state is not one of an audit, or parts of it are missing.
        """
        progress: Progress = codec.from_plain(Progress, state.get("audit"), "audit")
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
            if name != "audit"
        }
        self._go_on(arrays, progress)

    def save(self, path: str | os.PathLike[str] | None = None, *, hold: bool = True) -> None:
        """Write a checkpoint, whole or not at all; of several ranks, the first one writes.

        Args:
            path: Where; the audit's own ``checkpoint`` if not given.
            hold: Whether to keep other processes from going on with the file until the context is
                left. False where the folder is locked already, or moved about.

        Raises:
            RecordingError: Another copy of the run has the file, or wrote it since.
        """
        target = self._checkpoint if path is None else Path(path)
        if target is None:
            raise _validate.fail("path", path, "to be a file", "Or give the audit checkpoint=.")
        # Where parameters are shared out, the ranks read the weights together.
        progress = self._progress()
        if self._rank != 0:
            return
        arrays = self._arrays()
        plain = {"state": arrays.pop("state"), "audit": codec.to_plain(progress)}
        if self.steps and not self._entered:
            # After the run the file can be audited as well: askgauss audit reads this part alone.
            arrays[TRANSCRIPT] = enclosed(self.transcript())
        with self._checkpoints.write(target, hold=hold, keep=self._entered):
            archive.write_arrays(target, OPACUS_KIND, OPACUS_SCHEMA, arrays, plain)

    def load(self, path: str | os.PathLike[str], *, hold: bool = True) -> None:
        """Go on from a checkpoint that `save` wrote.

        Args:
            path: Where from.
            hold: As for `save`; of several ranks, the first one holds it.

        Raises:
            RecordingError: It belongs to another run, or a live one goes on with it.
            FileFormatError: It is no such checkpoint.
        """
        with self._checkpoints.read(path, hold=hold and self._rank == 0):
            self.load_state_dict(read_state(path))
