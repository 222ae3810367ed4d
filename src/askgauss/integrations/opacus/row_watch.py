"""The batches that a loader draws, and the rows that each private step trains on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askgauss.exceptions import AskGaussError
from askgauss.integrations.attachment import Attachment, PatchedMethod
from askgauss.integrations.opacus.batch_stream import (
    LOOKED_IN,
    TO_TRAIN,
    Content,
    LoadedBatch,
    Pass,
    as_indices,
    best,
    content_of,
    draws_for,
    is_drawing,
    listen,
    next_of,
    run_of,
    same,
    sampler_name,
    unlisten,
)
from askgauss.integrations.opacus.mixed_records import MixingWatch, trusted
from askgauss.integrations.opacus.private_step import Observer, PrivateStep
from askgauss.integrations.opacus.ranks import gather
from askgauss.integrations.opacus.run_description import (
    TrainingRun,
    clips_without_rows,
    noise_by_parameter,
)
from askgauss.recording.facts import MixingFacts, RowFacts
from askgauss.recording.facts.rows import rows_over_ranks
from askgauss.recording.transcript import Transcript
from askgauss.sampling import DrawnBatches, assumed_poisson
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.recognising import Recogniser

__all__ = ["LoaderWatch", "RowState", "TrainedRows"]

# Batches that are remembered, used or not, by this and by other loaders.
_REMEMBERED = 256
# Batches whose tensors are kept alive until it is known whether their marks are needed.
_HELD = 4
# Other places that are distinguished, and the frames of each that are read.
_PLACES = 64
_FRAMES = 64
# A pass of fewer batches that is left out whole is no epoch that a schedule skips.
_SHORTEST_PASS = 4
# Rows of earlier batches that are remembered, and different numbers that each has at least.
_EARLIER = 1 << 16
_DISTINCT = 6
# Before the names of the arrays of `LoaderWatch`.
_PREFIX = "loader."
_NOT_SHOWN = "the loader was not shown, or does not say what it draws from"


@dataclass(slots=True)
class _Rows:
    """Rows of one backward pass, and what the model was called with for it.

    Attributes:
        count: How many there are.
        content: By what they are recognised.
        batch: The batch that they are, untouched.
    """

    count: int
    content: Content | None = None
    batch: LoadedBatch | None = None


@dataclass(slots=True)
class _LeftOut:
    """Batches that the model was called with at one place, and that no step used.

    Attributes:
        count: How many, before the first and behind the last used batch of a pass.
        longest: The most in a row.
        first: The step before which the first was left out.
        skipped: Those of passes of which no batch was used, beside ``count``.
    """

    count: int = 0
    longest: int = 0
    first: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """What is kept of the rows in a checkpoint."""

    rows: RowFacts
    mixing: MixingFacts | None = None


class TrainedRows(Observer):
    """Follows the batches of a loader, and counts rows where the optimizer clips them.

    Batches are drawn, yielded, given to the model and trained on. While attached, the sampler is of
    a class made from its own, whose iteration passes every batch on: that also covers loaders that
    are not torch's. Parts of a batch that is split for memory are put together again.

    Args:
        run: The training.

    Attributes:
        used: The batches that the last step was made of; None where that is not certain.
    """

    key = "rows"
    state_type = RowState

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._optimizer = run, run.optimizer
        self._parameters, self._sampler = run.parameters, run.sampler
        self._sampler_class: type | None = None
        self._ghost = clips_without_rows(run.optimizer)
        unseen = ""
        if run.sampler is None or run.records is None:
            unseen = _NOT_SHOWN
        elif noise_by_parameter(run.optimizer):
            unseen = "records are clipped inside the backward pass"
        self.used: list[LoadedBatch] | None = None
        # The facts so far, as plain values: they change in every step.
        self._values: dict[str, Any] = asdict(RowFacts(unseen=unseen))
        self._faulty = False
        self._models: dict[int, bool] = {}
        self._mixing = MixingWatch()
        self._aside = False
        self._sizes: set[int] = set()
        # Of batches left out between two that were used: the fewest, the most, how often.
        self._gaps: tuple[int, int, int] = (0, 0, 0)
        self._left_out: dict[int, _LeftOut] = {}
        # Places where the model was called with batches that were used then.
        self._training_places = {TO_TRAIN}
        self._most_passes = 1
        self._newest: Pass | None = None
        # Hashes of rows that were drawn for earlier steps, where those were compared by content.
        self._earlier: dict[int, None] = {}
        self._ratio = 0
        self._has_loaded = False
        self._ranks: list[RowFacts] = []
        self._forget()

    def _forget(self) -> None:
        self._batches: list[LoadedBatch] = []
        self._last: list[LoadedBatch] = []
        self._calls: list[_Rows] = []
        self._rows: list[_Rows] = []
        self._whole: list[_Rows] | None = None

    def state(self) -> RowState:
        """What was found by all ranks, as far as they told."""
        mixing = None if self.unseen else self._mixing.facts
        return RowState(rows=rows_over_ranks([self._found, *self._ranks]), mixing=mixing)

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What was found by all ranks, and whether records met before they were clipped."""
        state = self.state()
        return {"rows": state.rows, "mixing": state.mixing}

    def load(self, state: RowState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        found = state.rows
        self._mixing.load(state.mixing, found.steps)
        self._values, self._faulty = asdict(found), not found.clean
        self._has_loaded = found.undrawn < found.steps
        self._gaps = (0, 1, 2) if found.dropped else (0, 0, 0)

    @property
    def unseen(self) -> str:
        """Why nothing can be compared; empty where it can."""
        return str(self._values["unseen"])

    @property
    def clean(self) -> bool:
        """Whether nothing was found so far."""
        return not (self._faulty or self.unseen) or self._found.clean

    @property
    def _found(self) -> RowFacts:
        """What this process found so far."""
        found = RowFacts(**self._values)
        left_out = self._all_left_out()
        # Whole passes are skipped by a schedule, unless batches are left out of other passes too.
        if not left_out.count and (not left_out.skipped or not found.dropped):
            return replace(found, skipped=found.skipped + left_out.skipped)
        return replace(
            found,
            skipped=0,
            unused=found.unused + left_out.count + left_out.skipped + found.skipped,
            unused_first=min(found.unused_first or left_out.first, left_out.first),
            even=found.even and left_out.longest <= self._gaps[0],
        )

    def exchange(self) -> None:
        """Ranks draw and train on batches of their own, and tell each other what they found."""
        self._ranks = gather(self._found, self._run.world, self._run.device)

    # --- batches and calls ------------------------------------------------------------------------

    def attach(self, attachment: Attachment) -> None:
        """Begin to follow."""
        attachment.undo(self._stop)
        self._forget()
        if self.unseen:
            return
        listen(self, self._run.model)
        name = "accumulate" if self._ghost else "clip_and_accumulate"
        attachment.patch(PatchedMethod(self._optimizer, name, self._clipped))
        own = type(self._sampler)

        def iterate(sampler: Any) -> Iterator[Any]:
            source = Pass(sampler, None)
            for batch in own.__iter__(sampler):
                if not is_drawing():
                    self.loaded(source, as_indices(batch), None)
                    source.yielded += 1
                yield batch

        self._sampler_class = own
        try:
            self._sampler.__class__ = type(own.__name__, (own,), {"__iter__": iterate})
        except TypeError:
            # Loaders of torch are followed all the same.
            self._sampler_class = None

    def _stop(self) -> None:
        if self._sampler_class is not None:
            self._sampler.__class__ = self._sampler_class
            self._sampler_class = None
        unlisten(self)
        self._end_pass(interrupted=True)
        self._forget()
        self._mixing.forget()

    def loaded(self, source: Pass, indices: NDArray[np.int64] | None, batch: Any) -> None:
        """A loader yielded a batch."""
        ours = draws_for(source.sampler, self._sampler)
        self._has_loaded = self._has_loaded or ours
        batches = self._batches
        content = content_of(batch)
        batches.append(LoadedBatch(source, source.yielded, indices, ours, content))
        if ours and self._mixing.due:
            tensor = None if content is None else content.tensor
            batches[-1].columns = self._mixing.yielded(source.collate, tensor)
        oldest = batches[-1 - _HELD] if len(batches) > _HELD else None
        if oldest is not None and not oldest.step and (held := oldest.content) is not None:
            held.read()
        if len(batches) > 2 * _REMEMBERED:
            del batches[:_REMEMBERED]

    def called(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A model is called: its rows may be trained on, or decide whether the batch is."""
        if not self._batches:
            return  # nothing was yielded that they could be of
        trains = model.training and torch.is_grad_enabled()
        waiting = self._waiting()
        if not (trains or waiting) or not self._is_ours(model):
            return
        content = content_of(arguments, options)
        if content is None:
            return
        place = TO_TRAIN if trains else _place()
        batch = self._very(content) or same(content, waiting, place)
        if trains:
            if batch is None:
                content.read()
            self._calls.append(_Rows(content.rows, None if batch else content, batch))
            del self._calls[:-_REMEMBERED]
            # Changed on the way to the model: the next batch of that many records.
            batch = batch or next_of(waiting, content.rows)
            if self._mixing.due:
                records = batch.records if batch is not None and batch.ours else 0
                columns = None if batch is None else batch.columns
                self._mixing.called(model, arguments, options, content, records, columns)
        if batch is not None and batch.ours and not batch.step and place not in batch.places:
            self._wait_for_step(batch, place)

    def returned(self, model: Any, output: Any) -> None:
        """A model was called: do its outputs, and its loss, depend on one record each?"""
        if self._mixing.due and model.training and torch.is_grad_enabled() and self._is_ours(model):
            self._mixing.returned(output)

    def backward(self, losses: Any) -> None:
        """A loss is about to be differentiated."""
        if self._mixing.due:
            self._mixing.backward(losses)

    def collates(self, collate: Any) -> bool:
        """Whether samples are put together in a way that is not known."""
        return self._mixing.due and not trusted(collate)

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together."""
        self._mixing.collated(samples)

    def _very(self, content: Content) -> LoadedBatch | None:
        """The batch whose own tensor the model is called with."""
        for item in reversed(self._batches[-2 * _HELD :]):
            if item.content is not None and item.content.is_of(content):
                return None if item.content.was_written(content) else item
        return None

    def _wait_for_step(self, batch: LoadedBatch, place: int) -> None:
        """The model is called with a batch that no step used so far."""
        if batch.source is not self._newest:
            self._end_pass()
            self._newest = batch.source
        pending = batch.source.pending
        if place in pending or len(pending) < _PLACES:
            pending[place] = pending.get(place, 0) + 1
            batch.places.append(place)

    def _end_pass(self, *, interrupted: bool = False) -> None:
        """Batches at the end of a pass that no step used are left out."""
        if self._newest is not None:
            for place, count in self._trailing(interrupted=interrupted).items():
                self._leave_out(place, count, whole=self._is_whole(place))
            self._newest.pending.clear()

    def _is_whole(self, place: int) -> bool:
        """Whether every batch of the newest pass was seen at a place, and none was used."""
        source = self._newest
        if source is None or not source.ended or source.last >= 0:
            return False
        return source.pending.get(place) == source.yielded >= _SHORTEST_PASS

    def _trailing(self, *, interrupted: bool) -> dict[int, int]:
        """Batches behind the last that was used, beyond those whose step may just not have come.

        That is one where the pass or the run was left before its end, and those of an accumulation.
        """
        source = self._newest
        if source is None or not source.pending:
            return {}
        # Rows of the last step may still lie there; before the first, they wait for it.
        unfinished = len(self._rows) or (0 if self._values["steps"] else len(self._counts()))
        waits = max(int(interrupted or not source.ended), self._most_passes - 1, unfinished)
        return {place: count - waits for place, count in source.pending.items() if count > waits}

    def _leave_out(self, place: int, count: int, *, whole: bool = False) -> None:
        if place not in self._left_out and len(self._left_out) >= _PLACES:
            return
        found = self._left_out.setdefault(place, _LeftOut(first=self._values["steps"] + 1))
        self._faulty = True
        if whole:
            found.skipped += count
            return
        found.count += count
        found.longest = max(found.longest, count)

    def _all_left_out(self) -> _LeftOut:
        """Of the places where batches that were trained on were seen, that with the most."""
        trailing, now = self._trailing(interrupted=True), self._values["steps"] + 1
        most = _LeftOut()
        for place in self._training_places.intersection((*self._left_out, *trailing)):
            past, more = self._left_out.get(place, _LeftOut(first=now)), trailing.get(place, 0)
            skipped = past.skipped
            if self._is_whole(place):
                skipped, more = skipped + more, 0
            found = _LeftOut(past.count + more, max(past.longest, more), past.first, skipped)
            most = max(most, found, key=lambda item: (item.count + item.skipped, item.count))
        return most

    def _is_ours(self, model: nn.Module) -> bool:
        if id(model) not in self._models:
            own = {id(item) for item in model.parameters()}
            self._models = {id(model): all(id(item) in own for item in self._parameters)}
        return self._models[id(model)]

    def _clipped(self, original: Callable[[], None]) -> None:
        if not self._aside:
            self._count()
        original()

    def _count(self) -> None:
        """The rows that are about to be clipped, with the newest calls that had as many."""
        rows = [_Rows(count) for count in self._counts()]
        calls = self._calls
        for item in reversed(rows):
            while calls and calls[-1].count != item.count:
                calls.pop()
            if calls:
                call = calls.pop()
                item.content, item.batch = call.content, call.batch
        self._calls = []
        self._rows += rows

    def _counts(self) -> list[int]:
        name = "_norm_sample" if self._ghost else "grad_sample"
        for item in self._parameters:
            # Opacus leaves what a parameter had when it was frozen: old rows, not this step's.
            sample = item.__dict__.get(name) if item.requires_grad else None
            if isinstance(sample, list):
                return [part.shape[0] for part in sample]
            if sample is not None:
                return [sample.shape[0]]
        return []

    def sum_ready(self) -> None:
        """The sum of the step is complete: what is clipped from here on are canaries."""
        if self.unseen:
            return
        if not self._rows:
            # Whatever replaced the clipping meanwhile left the rows where they were.
            self._count()
        self._whole, self._rows, self._aside = self._rows, [], True

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """Back to the run's own rows."""
        self._aside = False

    # --- which batches a step used ----------------------------------------------------------------

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step is made."""
        self.used = self._batches_of_step()

    def _batches_of_step(self) -> list[LoadedBatch] | None:
        rows, self._whole = self._whole or [], None
        if self._mixing.due:
            for item in self._batches:
                item.columns = None
        self._mixing.step()
        values = self._values
        values["steps"] += 1
        if values["unseen"]:
            return None
        if not rows:
            values["unseen"] = f"no rows were seen in step {values['steps']:,}"
            return None
        if (usual := self._usual(rows)) is not None:
            return [usual]
        self._most_passes = max(self._most_passes, len(rows))
        used, known = self._used(rows) if self._batches else ([], False)
        if not used:
            self._without_draw()
            return None
        others = [item for item in used if not item.ours]
        if others:
            values["other"] = sampler_name(others[0].source.sampler)
            values["undrawn"] += int(not self._has_loaded)
            self._note("foreign")
        ours = [item for item in used if item.ours]
        fresh = [item for item in ours if not item.step]
        if len(fresh) < len(ours):
            self._note("again")
        self._settle(fresh)
        self._keep_last(used)
        if not fresh:
            return None
        if any(item.indices is None for item in ours):
            values["missed"] += 1
            return None
        self._compare(rows, ours, known)
        return fresh if len(fresh) == len(used) else None

    def _usual(self, rows: Sequence[_Rows]) -> LoadedBatch | None:
        """The batch of a step on the very next one of a pass, whole and untouched.

        Nearly all steps of nearly all runs are, and nothing else has to be looked at for them.
        """
        item = rows[0].batch
        if len(rows) > 1 or item is None or item.step or not item.ours or item.indices is None:
            return None
        source, values = item.source, self._values
        if item.place != source.last + 1 or rows[0].count != item.rows:
            return None
        if item.places != [TO_TRAIN] or source.pending != {TO_TRAIN: 1}:
            return None
        source.pending.clear()
        if source.last >= 0:
            self._count_gap(0)
        source.last, item.step = item.place, values["steps"]
        values["compared"] += 1
        values["identified"] += 1
        self._keep_last([item])
        return item

    def _keep_last(self, used: list[LoadedBatch]) -> None:
        """What the last step used stays recognisable, should a copy of it be trained on next."""
        for item in self._last:
            if item.content is not None and item not in used:
                item.content.release()
        self._last = used

    def _settle(self, fresh: list[LoadedBatch]) -> None:
        """Batches are used: whatever the model was called with before them never will be."""
        for item in fresh:
            self._training_places.update(item.places[: _PLACES - len(self._training_places)])
            for place in item.places:
                item.source.pending[place] = item.source.pending.get(place, 1) - 1
        for item in sorted(fresh, key=lambda item: item.place):
            pending = item.source.pending
            if item.source.last < 0:
                for place, count in pending.items():
                    if count > 0:
                        self._leave_out(place, count)
            # Those behind the first that was used are counted by their places in the pass.
            pending.clear()
            self._close_gap(item)
            item.step = self._values["steps"]

    def _used(self, rows: Sequence[_Rows]) -> tuple[list[LoadedBatch], bool]:
        """The batches that rows came from: recognised, or else by their numbers."""
        found = [self._recognised(item) for item in rows if item.count]
        if found and all(item is not None for item in found):
            used = list(dict.fromkeys(item for item in found if item is not None))
            return [*self._empty(sum(not item.count for item in rows)), *used], True
        total, passes = sum(item.count for item in rows), len(rows)
        waiting = self._waiting()
        newest = [item for item in waiting if item.source is waiting[-1].source]
        for among in (newest, waiting):
            if fits := run_of(among, total, passes):
                return fits, False
        return newest[: max(1, passes)], False

    def _waiting(self) -> list[LoadedBatch]:
        """Batches of the loader that are newer than the last one that was used."""
        waiting: list[LoadedBatch] = []
        for item in reversed(self._batches):
            if item.ours and item.step:
                break
            if item.ours:
                waiting.append(item)
        return waiting[::-1]

    def _empty(self, count: int) -> list[LoadedBatch]:
        waiting = [
            item for item in self._waiting() if item.records == 0 and item.indices is not None
        ]
        return waiting[:count]

    def _recognised(self, rows: _Rows) -> LoadedBatch | None:
        """The batch that most rows are in: of those that no step used, that one did, of others."""
        if rows.batch is not None:
            return rows.batch
        content = rows.content
        if content is None or content.rows == 0:
            return None
        own = content.hashes()
        if own.size > 1 and (own == own[0]).all():
            return None  # rows that are all alike are nobody's
        kinds: list[list[LoadedBatch]] = [[], [], []]
        for item in self._batches[-LOOKED_IN:]:
            if item.content is not None and item.content.rows:
                kinds[(1 if item.step else 0) if item.ours else 2].append(item)
        first: LoadedBatch | None = None
        for kind in kinds:
            found, alike = best(content, kind)
            if alike == content.rows:
                return found
            first = first or found
        # No batch has all of the rows: the first that has enough of them.
        return first

    def _without_draw(self) -> None:
        if self._has_loaded:
            self._note("again")
            return
        others = [item for item in self._batches if not item.ours]
        if others:
            self._values["other"] = sampler_name(others[-1].source.sampler)
        self._values["undrawn"] += 1
        self._faulty = True

    def _close_gap(self, item: LoadedBatch) -> None:
        """Batches of the same pass between this one and the last that was used were left out."""
        source, values = item.source, self._values
        before, source.last = source.last, max(source.last, item.place)
        if before < 0:
            return
        if item.place < before:
            # Used late, and counted as left out before.
            values["unused"] = max(0, values["unused"] - 1)
            return
        gap = item.place - before - 1
        self._count_gap(gap)
        if not gap:
            return
        between = (
            other
            for other in self._batches
            if other.source is source and before < other.place < item.place
        )
        empty = sum(other.indices is not None and not other.records for other in between)
        values["unused"] += gap
        values["unused_empty"] += empty
        values["unused_first"] = values["unused_first"] or values["steps"]
        self._faulty = True

    def _count_gap(self, gap: int) -> None:
        least, most, number = self._gaps
        self._gaps = (min(least, gap) if number else gap, max(most, gap), number + 1)
        self._values["even"] = self._gaps[0] == self._gaps[1] and number > 1

    # --- rows against records ---------------------------------------------------------------------

    def _compare(self, rows: Sequence[_Rows], used: Sequence[LoadedBatch], known: bool) -> None:
        values = self._values
        count, drawn = sum(item.count for item in rows), sum(item.rows for item in used)
        values["compared"] += 1
        values["identified"] += int(known)
        if count > drawn:
            first, extra = values["more"] == 0, count - drawn
            ratio = count // drawn if drawn and count % drawn == 0 else 0
            self._sizes.add(drawn)
            self._ratio = ratio if first or ratio == self._ratio else 0
            # Where all batches are of one size, as many rows may be those of others.
            values["multiple"] = self._ratio if len(self._sizes) > 1 else 0
            values["extra_least"] = extra if first else min(values["extra_least"], extra)
            values["extra_most"] = max(values["extra_most"], extra)
            values["more_rows"] += count
            values["more_drawn"] += drawn
            values["other"] = values["other"] or self._other_source(rows)
            self._note("more")
        elif count < drawn:
            values["fewer_rows"] += count
            values["fewer_drawn"] += drawn
            self._note("fewer")
        elif known and self._has_doubles(rows, used):
            self._note("doubled")
        elif known and self._has_strays(rows, used):
            self._note("strays")

    def _other_source(self, rows: Sequence[_Rows]) -> str:
        """What drew those of the rows that are another loader's."""
        others = [item for item in self._batches[-LOOKED_IN:] if not item.ours]
        for content in (item.content for item in rows if item.content is not None):
            if found := best(content, others)[0]:
                return sampler_name(found.source.sampler)
        return ""

    @staticmethod
    def _has_doubles(rows: Sequence[_Rows], used: Sequence[LoadedBatch]) -> bool:
        """Whether all rows are those of the batches, and some of them more often than there."""
        if all(item.batch is not None for item in rows if item.count):
            return False
        contents = [
            item.content or (item.batch and item.batch.content) for item in rows if item.count
        ]
        trained = [item for item in contents if item and item.read() is not None]
        yielded = [
            item.content
            for item in used
            if item.records and item.content is not None and item.content.read() is not None
        ]
        if not (trained and yielded) or len({item.width for item in (*trained, *yielded)}) != 1:
            return False
        own = np.concatenate([item.hashes() for item in trained])
        theirs = np.concatenate([item.hashes(trained[0]) for item in yielded])
        distinct = np.unique(theirs)
        if distinct.size < theirs.size or not np.isin(own, distinct).all():
            return False
        return np.unique(own).size < own.size

    def _has_strays(self, rows: Sequence[_Rows], used: Sequence[LoadedBatch]) -> bool:
        """Whether a row is one that was drawn for an earlier step, and not for this one."""
        changed = [item.content for item in rows if item.count and item.content is not None]
        yielded = [item.content for item in used if item.records and item.content is not None]
        if not changed or not yielded:
            return False
        theirs = np.concatenate([item.hashes(changed[0]) for item in yielded])
        earlier = self._earlier
        found = any(
            int(number) in earlier
            for item in changed
            for number in np.setdiff1d(item.hashes()[item.distinct >= _DISTINCT], theirs)
        )
        earlier.update(dict.fromkeys(theirs.tolist()))
        while len(earlier) > _EARLIER:
            del earlier[next(iter(earlier))]
        return found

    def _note(self, kind: str) -> None:
        """One more step with a fault of this kind."""
        values = self._values
        values[kind] += 1
        values[f"{kind}_first"] = values[f"{kind}_first"] or values["steps"]
        self._faulty = True


def _place() -> int:
    """Where the model is called: the same number for the same line, reached in the same way.

    An evaluation has lines of its own; a loop that looks at batches before it chooses has not.
    """
    frame: FrameType | None = sys._getframe(3)
    at: list[tuple[int, int]] = []
    while frame is not None and len(at) < _FRAMES:
        at.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(at)) or 1


class LoaderWatch(Observer):
    """Tests the batches that a loader draws against the scheme that was accounted for.

    Args:
        run: The training.
        rows: What finds the batches of every step.
        rows_only: Whether draws are not to be compared with the scheme.
    """

    key = "loader"
    state_type = int

    def __init__(self, run: TrainingRun, rows: TrainedRows, *, rows_only: bool = False) -> None:
        scheme = run.sampling.against(run.accounted_rate)
        self._rows, self._records = rows, run.records
        self._sums: SchemeSums | None = None
        self._recogniser: Recogniser | None = None
        self._steps = 0
        self._lost = ""
        # Steps on batches of an iteration that had begun before the audit was attached.
        self._missed = 0
        self._poisson = scheme is not None and assumed_poisson(scheme)
        if run.sampler is None or self._records is None:
            self._lost = _NOT_SHOWN
        elif run.world > 1:
            self._lost = "each of several processes draws batches of its own"
        elif rows_only:
            self._lost = "the canaries show how they are drawn"
        else:
            if scheme is not None:
                self._sums = SchemeSums(scheme, records=self._records)
            if assumed_poisson(scheme):
                self._recogniser = Recogniser(self._records)

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What the batches say of the scheme."""
        judged, drawn, found = not self._unjudged, None, None
        if judged and self._sums is not None and self._sums.step > 0:
            drawn = DrawnBatches.of(self._sums)
        if judged and self._recogniser is not None:
            found = self._recogniser.found
        return {"batches": drawn, "found_scheme": found, "records": self._records}

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
        left_out = not self._lost and not self._rows.clean
        return "some were drawn and not trained on" if left_out else self._lost

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step was made.

        Never stops a training: a batch that is missing, or of something else than indices, ends
        the comparison with the reason.
        """
        used = self._rows.used
        if self._lost:
            return
        self._steps += 1
        if step.batches != 1:
            self._lost = f"a step is made of {step.batches} batches"
        elif not self._rows.clean:
            self._lost = f"step {self._steps} did not train on the records drawn for it, once each"
        elif used is None and self._poisson and not self._rows.unseen:
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

    def state(self) -> int:
        """Steps whose batches are not in the sums."""
        return self._missed

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Sums of the batches so far."""
        if self._lost or self._sums is None:
            return {}
        return {_PREFIX + name: array for name, array in self._sums.arrays().items()}

    def load(self, state: int, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume.

        Raises:
            FileFormatError: The arrays are not what `arrays` gave.
        """
        found = {
            name.removeprefix(_PREFIX): value
            for name, value in arrays.items()
            if name.startswith(_PREFIX)
        }
        if self._recogniser is not None and steps:
            # What it had kept before the checkpoint is not in there.
            self._recogniser.give_up()
        self._steps = steps
        if self._sums is None or (not found and steps == 0):
            return
        if not found:
            self._lost = self._lost or "those before the checkpoint were not kept"
            return
        if SchemeSums.records_in(found) != self._records:
            self._lost = "those before the checkpoint are of other records"
            return
        sums = SchemeSums.from_arrays(self._sums.scheme, found, records=self._records)
        if sums.step + state != steps:
            self._lost = "those before the checkpoint are of other steps"
            return
        self._sums, self._missed = sums, state
