"""The rows that each private step trains on, compared with the records drawn for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askgauss.files import codec
from askgauss.integrations.attachment import Attachment, PatchedMethod
from askgauss.integrations.opacus.batch_stream import (
    Content,
    Marks,
    Pass,
    content_of,
    listen,
    unlisten,
)
from askgauss.integrations.opacus.mixed_records import Columns, MixingWatch, trusted
from askgauss.integrations.opacus.opacus_versions import BatchSplittingSampler
from askgauss.integrations.opacus.ranks import gather_text
from askgauss.integrations.opacus.run_description import (
    TrainingRun,
    clips_without_rows,
    noise_by_parameter,
)
from askgauss.recording.facts import MixingFacts, RowFacts
from askgauss.recording.witness import rows_over_ranks

__all__ = ["LoadedBatch", "TrainedRows", "draws_for"]

# Batches that are remembered, used or not, by this and by other loaders.
_REMEMBERED = 256
# Batches whose tensors are kept alive until it is known whether their marks are needed.
_HELD = 4
# Batches that the rows of one step are looked for in, newest first.
_LOOKED_IN = 64
# A batch is recognised by this share of the rows that could be in both.
_RECOGNISED = 0.25
# Where the model is called to train on the batch; other places are known by their frames.
_TO_TRAIN = 0
# Other places that are distinguished, and the frames of each that are read.
_PLACES = 64
_FRAMES = 64
# A pass of fewer batches that is left out whole is no epoch that a schedule skips.
_SHORTEST_PASS = 4
# Wrappers around a sampler that are looked through.
_DEEPEST = 6


@dataclass(eq=False, slots=True)
class LoadedBatch:
    """A batch that a loader yielded.

    Attributes:
        source: The pass over the data that it is part of.
        place: Its number in that pass.
        indices: The records that were drawn for it; None where that was not seen.
        ours: Whether the audited loader drew it.
        content: By what its rows are recognised.
        step: The step that used it; 0 if none did.
        places: Where the model was called with it.
        columns: Some values of each record, as they were before anything was done to the batch.
    """

    source: Pass
    place: int
    indices: NDArray[np.int64] | None
    ours: bool
    content: Content | None
    step: int = 0
    places: list[int] = field(default_factory=list)
    columns: Columns | None = None

    @property
    def marks(self) -> Marks | None:
        """Marks of its rows; None where it has none or they are gone."""
        return None if self.content is None else self.content.marks

    @property
    def records(self) -> int:
        """How many records were drawn for it."""
        return 0 if self.indices is None else int(self.indices.size)

    @property
    def rows(self) -> int:
        """How many rows they make; Opacus may put one of random numbers where there is none."""
        filled = getattr(self.source.collate, "rand_on_empty", False)
        return self.records or int(bool(filled))


@dataclass(slots=True)
class _Rows:
    """Rows of one backward pass, and what the model was called with for it.

    Attributes:
        count: How many there are.
        marks: By what they are recognised.
        batch: The batch that they are, untouched.
    """

    count: int
    marks: Marks | None = None
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


class TrainedRows:
    """Counts rows where the optimizer clips them, and finds the batches they came from.

    Args:
        run: The training.
        unseen: Why nothing can be compared; empty where it can.
    """

    def __init__(self, run: TrainingRun, unseen: str = "") -> None:
        self._run, self._optimizer = run, run.optimizer
        self._parameters, self._sampler = run.parameters, run.sampler
        self._ghost = clips_without_rows(run.optimizer)
        if not unseen and noise_by_parameter(run.optimizer):
            unseen = "records are clipped inside the backward pass"
        # The facts so far, as plain values: they change in every step.
        self._values: dict[str, Any] = asdict(RowFacts(unseen=unseen))
        self._faulty = False
        self._models: dict[int, bool] = {}
        self.mixing = MixingWatch()
        self._aside = False
        self._sizes: set[int] = set()
        # Of batches left out between two that were used: the fewest, the most, how often.
        self._gaps: tuple[int, int, int] = (0, 0, 0)
        self._left_out: dict[int, _LeftOut] = {}
        # Places where the model was called with batches that were used then.
        self._training_places = {_TO_TRAIN}
        self._most_passes = 1
        self._newest: Pass | None = None
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

    def load(self, facts: RowFacts, mixing: MixingFacts | None) -> None:
        """Resume from the facts of a checkpoint."""
        self.mixing.load(mixing, facts.steps)
        self._values, self._faulty = asdict(facts), not facts.clean
        self._has_loaded = facts.undrawn < facts.steps
        self._gaps = (0, 1, 2) if facts.dropped else (0, 0, 0)

    @property
    def mixing_facts(self) -> MixingFacts | None:
        """Whether records met before they were clipped; None where nobody looked."""
        return None if self.unseen else self.mixing.facts

    @property
    def unseen(self) -> str:
        """Why nothing can be compared; empty where it can."""
        return str(self._values["unseen"])

    @property
    def clean(self) -> bool:
        """Whether nothing was found so far."""
        return not (self._faulty or self.unseen) or self.facts.clean

    @property
    def facts(self) -> RowFacts:
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
        text = json.dumps(codec.to_plain(self.facts))
        self._ranks = [
            codec.from_plain(RowFacts, json.loads(item), "rows")
            for item in gather_text(text, self._run.world, self._run.device)
        ]

    @property
    def over_ranks(self) -> RowFacts:
        """What was found so far, by all ranks as far as they told."""
        return rows_over_ranks([self.facts, *self._ranks])

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

    def _stop(self) -> None:
        unlisten(self)
        self._end_pass(interrupted=True)
        self._forget()
        self.mixing.forget()

    def loaded(self, source: Pass, indices: NDArray[np.int64] | None, batch: Any) -> None:
        """A loader yielded a batch."""
        ours = draws_for(source.sampler, self._sampler)
        self._has_loaded = self._has_loaded or ours
        batches = self._batches
        content = content_of(batch)
        batches.append(LoadedBatch(source, source.yielded, indices, ours, content))
        if ours and self.mixing.due:
            tensor = None if content is None else content.tensor
            batches[-1].columns = self.mixing.yielded(source.collate, tensor)
        if len(batches) > _HELD and not batches[-1 - _HELD].step:
            _ = batches[-1 - _HELD].marks
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
        place = _TO_TRAIN if trains else _place()
        batch = self._very(content) or _same(content, waiting, place)
        if trains:
            known = batch is not None
            self._calls.append(_Rows(content.rows, None if known else content.marks, batch))
            del self._calls[:-_REMEMBERED]
            # Changed on the way to the model: the next batch of that many records.
            batch = batch or _next_of(waiting, content.rows)
            if self.mixing.due:
                records = batch.records if batch is not None and batch.ours else 0
                columns, given = None if batch is None else batch.columns, content.tensor
                self.mixing.called(model, arguments, options, content.rows, records, columns, given)
        if batch is not None and batch.ours and not batch.step and place not in batch.places:
            self._wait_for_step(batch, place)

    def returned(self, model: Any, output: Any) -> None:
        """A model was called: do its outputs, and its loss, depend on one record each?"""
        if self.mixing.due and model.training and torch.is_grad_enabled() and self._is_ours(model):
            self.mixing.returned(output)

    def backward(self, losses: Any) -> None:
        """A loss is about to be differentiated."""
        if self.mixing.due:
            self.mixing.backward(losses)

    def collates(self, collate: Any) -> bool:
        """Whether samples are put together in a way that is not known."""
        return self.mixing.due and not trusted(collate)

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together."""
        self.mixing.collated(samples)

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
                item.marks, item.batch = call.marks, call.batch
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

    def before_noise(self) -> None:
        """Back to the run's own rows."""
        self._aside = False

    # --- which batches a step used ----------------------------------------------------------------

    def step(self) -> list[LoadedBatch] | None:
        """A step is made: the batches it was made of, or None where that is not certain."""
        rows, self._whole = self._whole or [], None
        if self.mixing.due:
            for item in self._batches:
                item.columns = None
        self.mixing.step()
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
            values["other"] = _name(others[0].source.sampler)
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
        if item.places != [_TO_TRAIN] or source.pending != {_TO_TRAIN: 1}:
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
            if fits := _run_of(among, total, passes):
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
        marks = rows.marks
        if marks is None or marks.rows == 0:
            return None
        own = marks.hashes()
        if own.size > 1 and (own == own[0]).all():
            return None  # rows that are all alike are nobody's
        kinds: list[list[LoadedBatch]] = [[], [], []]
        for item in self._batches[-_LOOKED_IN:]:
            content = item.content
            if content is not None and content.rows and content.width == marks.width:
                kinds[(1 if item.step else 0) if item.ours else 2].append(item)
        first: LoadedBatch | None = None
        for kind in kinds:
            found, alike = _best(own, marks, kind)
            if alike == own.size:
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
            self._values["other"] = _name(others[-1].source.sampler)
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

    def _other_source(self, rows: Sequence[_Rows]) -> str:
        """What drew those of the rows that are another loader's."""
        others = [item for item in self._batches[-_LOOKED_IN:] if not item.ours and item.content]
        for marks in (item.marks for item in rows if item.marks is not None):
            same = [item for item in others if item.content and item.content.width == marks.width]
            if found := _best(marks.hashes(), marks, same)[0]:
                return _name(found.source.sampler)
        return ""

    @staticmethod
    def _has_doubles(rows: Sequence[_Rows], used: Sequence[LoadedBatch]) -> bool:
        """Whether all rows are those of the batches, and some of them more often than there."""
        if all(item.batch is not None for item in rows if item.count):
            return False
        marks = [item.marks or (item.batch and item.batch.marks) for item in rows if item.count]
        trained = [item for item in marks if item]
        yielded = [item.marks for item in used if item.marks is not None and item.records]
        if not trained or len({item.width for item in (*trained, *yielded)}) != 1:
            return False
        own = np.concatenate([item.hashes() for item in trained])
        theirs = np.concatenate([item.hashes(trained[0]) for item in yielded])
        distinct = np.unique(theirs)
        if distinct.size < theirs.size or not np.isin(own, distinct).all():
            return False
        return np.unique(own).size < own.size

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


def _same(content: Content, among: Sequence[LoadedBatch], place: int) -> LoadedBatch | None:
    """The batch of these very rows: rather one that was not seen at this place."""
    seen = None
    for item in among[-_LOOKED_IN:]:
        theirs = item.content
        if theirs is None or (theirs.rows, theirs.width) != (content.rows, content.width):
            continue
        marks, own = theirs.marks, content.marks
        if marks is not None and own is not None and marks.same(own):
            if place not in item.places:
                return item
            seen = item
    return seen


def _next_of(among: Sequence[LoadedBatch], rows: int) -> LoadedBatch | None:
    """The next batch of a pass that the model is to be called with, if it has so many rows."""
    for item in among:
        if item.source is among[-1].source and _TO_TRAIN not in item.places and item.rows == rows:
            return item
    return None


def _run_of(among: Sequence[LoadedBatch], rows: int, passes: int) -> list[LoadedBatch]:
    """The first batches in a row that have so many records together, each in a pass of its own."""
    for start in range(len(among)):
        total = 0
        for stop in range(start, min(start + passes, len(among))):
            total += among[stop].rows
            if total == rows and among[stop].indices is not None:
                return list(among[start : stop + 1])
            if total > rows:
                break
    return []


def draws_for(sampler: Any, wanted: Any) -> bool:
    """Whether a sampler is the wanted one, or passes on what that one draws."""
    for _ in range(_DEEPEST):
        if sampler is None or sampler is wanted:
            return sampler is not None
        inside = isinstance(sampler, BatchSplittingSampler)
        sampler = getattr(sampler, "sampler" if inside else "batch_sampler", None)
    return False


def _best(
    own: NDArray[np.int64], marks: Marks, among: Sequence[LoadedBatch]
) -> tuple[LoadedBatch | None, int]:
    """The batch that most of the rows are in, if enough of them are, and how many that is."""
    best, most = None, 0
    for item in among:
        if item.marks is None:
            continue
        theirs = item.marks.hashes(marks)
        if np.array_equal(own, theirs):
            return item, own.size
        alike = int(np.count_nonzero(np.isin(own, theirs)))
        if alike > most and alike >= _RECOGNISED * min(own.size, theirs.size):
            best, most = item, alike
    return best, most


def _name(sampler: Any) -> str:
    inner = getattr(sampler, "sampler", None)
    return type(sampler if inner is None else inner).__name__
