"""The batches that a training loader draws, tested against the scheme that was accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import AskGaussError, FileFormatError
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.batch_stream import Pass, as_indices, is_drawing
from askgauss.integrations.opacus.moments import Observer, PrivateStep
from askgauss.integrations.opacus.row_watch import TrainedRows
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.recording.facts import MixingFacts, RowFacts
from askgauss.recording.transcript import Transcript
from askgauss.sampling import DrawnBatches, assumed_poisson
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.registry import Recogniser

__all__ = ["LoaderState", "LoaderWatch"]

_PREFIX = "loader."
_MISSED = _PREFIX + "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """What is kept of a loader in a checkpoint, beside the sums of its batches."""

    rows: RowFacts
    mixing: MixingFacts | None = None


class LoaderWatch(Observer):
    """Follows the batches of a loader: what is drawn, yielded and trained on in every step.

    While attached, the sampler is of a class made from its own, whose iteration passes every batch
    on: that also covers loaders that are not torch's. Parts of a batch that is split for memory
    come from one draw, and are put together again.

    Args:
        run: The training.
        rows_only: Whether draws are not to be compared with the scheme.
    """

    key = "loader"
    state_type = LoaderState

    def __init__(self, run: TrainingRun, *, rows_only: bool = False) -> None:
        scheme = run.sampling.against(run.accounted_rate)
        self._sampler, self._records = run.sampler, run.records
        self._class: type | None = None
        self._sums: SchemeSums | None = None
        self._recogniser: Recogniser | None = None
        self._steps = 0
        self._lost = unseen = ""
        # Steps on batches of an iteration that had begun before the audit was attached.
        self._missed = 0
        self._poisson = scheme is not None and assumed_poisson(scheme)
        if self._sampler is None or self._records is None:
            self._lost = unseen = "the loader was not shown, or does not say what it draws from"
        elif run.world > 1:
            self._lost = "each of several processes draws batches of its own"
        elif rows_only:
            self._lost = "the canaries show how they are drawn"
        else:
            if scheme is not None:
                self._sums = SchemeSums(scheme, records=self._records)
            if assumed_poisson(scheme):
                self._recogniser = Recogniser(self._records)
        self._trained = TrainedRows(run, unseen)

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What the batches say of the scheme and of the rows that were trained on."""
        judged, drawn, found = not self._unjudged, None, None
        if judged and self._sums is not None and self._sums.step > 0:
            drawn = DrawnBatches.of(self._sums)
        if judged and self._recogniser is not None:
            found = self._recogniser.found
        return {
            "batches": drawn,
            "found_scheme": found,
            "records": self._records,
            "rows": self._trained.over_ranks,
            "mixing": self._trained.mixing_facts,
        }

    def notes(self, recorded: Transcript) -> list[str]:
        """Why batches that were seen are not judged, if so."""
        seen = self._sums is not None and self._sums.step > 0
        if why := self._unjudged:
            return [f"the loader's batches are not judged: {why}."] if seen else []
        if self._missed:
            return [
                f"the batches of {self._missed:,} steps are not judged: the loader had begun to "
                "draw before the audit was attached."
            ]
        return []

    @property
    def _unjudged(self) -> str:
        """Why what was drawn is not compared with the scheme; empty where it is."""
        left_out = not self._lost and not self._trained.clean
        return "some were drawn and not trained on" if left_out else self._lost

    def attach(self, attachment: Attachment) -> None:
        """Begin to follow what is drawn."""
        attachment.undo(self._restore)
        self._trained.attach(attachment)
        if self._trained.unseen:
            return
        own, trained = type(self._sampler), self._trained

        def iterate(sampler: Any) -> Iterator[Any]:
            source = Pass(sampler, None)
            for batch in own.__iter__(sampler):
                if not is_drawing():
                    trained.loaded(source, as_indices(batch), None)
                    source.yielded += 1
                yield batch

        self._class = own
        try:
            self._sampler.__class__ = type(own.__name__, (own,), {"__iter__": iterate})
        except TypeError:
            # Loaders of torch are followed all the same.
            self._class = None

    def _restore(self) -> None:
        """The sampler is of its own class again."""
        if self._class is not None:
            self._sampler.__class__ = self._class
            self._class = None

    def sum_ready(self) -> None:
        """The sum of a step is complete."""
        self._trained.sum_ready()

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """Canaries are in."""
        self._trained.before_noise()

    def exchange(self) -> None:
        """Ranks exchange what they found of their rows."""
        self._trained.exchange()

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step was made.

        Never stops a training: a batch that is missing, or of something else than indices, ends
        the comparison with the reason.
        """
        used = self._trained.step()
        if self._lost:
            return
        self._steps += 1
        if step.batches != 1:
            self._lost = f"a step is made of {step.batches} batches"
        elif not self._trained.clean:
            self._lost = f"step {self._steps} did not train on the records drawn for it, once each"
        elif used is None and self._poisson and not self._trained.unseen:
            # Batches of Poisson sampling say as much without those before them.
            self._missed += 1
        elif used is None:
            self._lost = f"what step {self._steps} was drawn from was not seen"
        else:
            drawn = [item.indices for item in used if item.indices is not None]
            self._add(np.concatenate(drawn))

    def _add(self, batch: NDArray[np.int64]) -> None:
        assert self._records is not None
        try:
            if self._sums is None:
                indices = SchemeSums.checked(batch, self._records)
            else:
                indices = self._sums.indices(batch)
                self._sums.add(indices)
        except AskGaussError as error:
            self._lost = str(error).rstrip(".")
            return
        if self._recogniser is not None:
            self._recogniser.add(indices)

    def state(self) -> LoaderState:
        """What was found of the rows."""
        return LoaderState(rows=self._trained.over_ranks, mixing=self._trained.mixing_facts)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Sums of the batches so far."""
        if self._lost or self._sums is None:
            return {}
        kept = {_PREFIX + name: array for name, array in self._sums.arrays().items()}
        return kept | ({_MISSED: np.array([self._missed])} if self._missed else {})

    def load(self, state: LoaderState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume.

        Raises:
            FileFormatError: The arrays are not what `arrays` gave.
        """
        self._trained.load(state.rows, state.mixing)
        found = {
            name.removeprefix(_PREFIX): value
            for name, value in arrays.items()
            if name.startswith(_PREFIX) and name != _MISSED
        }
        if self._recogniser is not None and steps:
            # What it had kept before the checkpoint is not in there.
            self._recogniser.give_up()
        self._steps = steps
        missed = np.asarray(arrays.get(_MISSED, 0))
        if missed.size != 1 or missed.dtype.kind not in "iu" or int(missed.item()) < 0:
            raise FileFormatError(f"Expected {_MISSED} to be a count, got {missed!r}.")
        if self._sums is None or (not found and steps == 0):
            return
        if not found:
            self._lost = self._lost or "those before the checkpoint were not kept"
            return
        if SchemeSums.records_in(found) != self._records:
            self._lost = "those before the checkpoint are of other records"
            return
        sums = SchemeSums.from_arrays(self._sums.scheme, found, records=self._records)
        if sums.step + int(missed.item()) != steps:
            self._lost = "those before the checkpoint are of other steps"
            return
        self._sums, self._missed = sums, int(missed.item())
