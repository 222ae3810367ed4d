"""The batches that a training loader really draws, held against the scheme that was accounted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from askgauss.exceptions import AskGaussError, FileFormatError
from askgauss.integrations.opacus.handed_batches import Pass, as_indices, is_drawing
from askgauss.integrations.opacus.opacus_versions import BatchSplittingSampler
from askgauss.integrations.opacus.row_watch import TrainedRows
from askgauss.sampling import DrawnBatches, Scheme, assumed_poisson
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.recognising import Recogniser

__all__ = ["LoaderWatch"]

_PREFIX = "loader."
_MISSED = _PREFIX + "missed"


class LoaderWatch:
    """Follows the batches of a loader: what is drawn, handed out and trained on in every step.

    While it listens, the sampler is of a class made from its own, whose iteration passes every
    batch on: loaders that are not torch's are heard by that. Parts of a batch that is split for
    memory come from one draw, and are put together again.

    Args:
        data_loader: The training loader; None where none was shown.
        scheme: How batches should be drawn; None where nobody said.
        world: Number of processes; each draws batches of its own, and only this one's are seen.
        optimizer: The private optimizer.
        parameters: The parameters it trains.
        model: The model, where it was shown.
        rows_only: Whether draws are not to be compared with the scheme.
    """

    def __init__(
        self,
        data_loader: Any,
        scheme: Scheme | None,
        world: int,
        *,
        optimizer: Any,
        parameters: Sequence[nn.Parameter],
        model: nn.Module | None = None,
        rows_only: bool = False,
    ) -> None:
        self._sampler = sampler_of(data_loader)
        self._records = _records(data_loader)
        self._class: type | None = None
        self._sums: SchemeSums | None = None
        self._recogniser: Recogniser | None = None
        self._steps = 0
        self._lost = unseen = ""
        # Steps on batches of an iteration that had begun before anybody listened.
        self._missed = 0
        self._by_coins = scheme is not None and assumed_poisson(scheme)
        if self._sampler is None or self._records is None:
            self._lost = unseen = "the loader was not shown, or does not say what it draws from"
        elif world > 1:
            self._lost = "each of several processes draws batches of its own"
        elif rows_only:
            self._lost = "the canaries show how they are drawn"
        else:
            if scheme is not None:
                self._sums = SchemeSums(scheme, records=self._records)
            if assumed_poisson(scheme):
                self._recogniser = Recogniser(self._records)
        self.trained = TrainedRows(optimizer, parameters, self._sampler, unseen, model)

    @property
    def records(self) -> int | None:
        """Records that batches are drawn from, where that is known."""
        return self._records

    @property
    def drawn(self) -> DrawnBatches | None:
        """What the batches say of the scheme; None where some of them were not seen."""
        if self._unjudged or self._sums is None or self._sums.step == 0:
            return None
        return DrawnBatches.of(self._sums)

    @property
    def found(self) -> Scheme | None:
        """The scheme that the batches show, where it is another than Poisson sampling."""
        return None if self._unjudged or self._recogniser is None else self._recogniser.found

    def notes(self) -> list[str]:
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
        left_out = not self._lost and not self.trained.clean
        return "some were drawn and not trained on" if left_out else self._lost

    def listen(self) -> None:
        """Begin to follow what is drawn."""
        self.trained.attach()
        if self.trained.unseen:
            return
        own = type(self._sampler)
        watch = self

        def iterate(sampler: Any) -> Iterator[Any]:
            source = Pass(sampler, None)
            for batch in own.__iter__(sampler):
                if not is_drawing():
                    watch.trained.handed(source, as_indices(batch), None)
                    source.handed += 1
                yield batch

        self._class = own
        try:
            self._sampler.__class__ = type(own.__name__, (own,), {"__iter__": iterate})
        except TypeError:
            # Loaders of torch are heard all the same.
            self._class = None

    def deafen(self) -> None:
        """Follow no more; the sampler is of its own class again."""
        self.trained.detach()
        if self._class is not None:
            self._sampler.__class__ = self._class
            self._class = None

    def step(self, batches: int) -> None:
        """A step is made of so many batches.

        Never stops a training: a batch that is missing, or of something else than indices, ends
        the watch with the reason.
        """
        used = self.trained.step()
        if self._lost:
            return
        self._steps += 1
        if batches != 1:
            self._lost = f"a step is made of {batches} batches"
        elif not self.trained.clean:
            self._lost = f"step {self._steps} did not train on the records drawn for it, once each"
        elif used is None and self._by_coins and not self.trained.unseen:
            # Batches of coins say as much without those before them.
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to go on from."""
        if self._lost or self._sums is None:
            return {}
        kept = {_PREFIX + name: array for name, array in self._sums.arrays().items()}
        return kept | ({_MISSED: np.array([self._missed])} if self._missed else {})

    def load(self, arrays: dict[str, Any], steps: int) -> None:
        """Go on from `arrays`, after so many steps.

        Raises:
            FileFormatError: They are not what `arrays` gave.
        """
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


def sampler_of(data_loader: Any) -> Any:
    """What draws the batches of a loader, behind what splits them for memory."""
    sampler = getattr(data_loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def _records(data_loader: Any) -> int | None:
    try:
        count = len(data_loader.dataset)
    except (AttributeError, TypeError):
        return None
    return count if count > 0 else None
