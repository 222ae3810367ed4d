"""The rows that each private step trains on, compared with the records drawn for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askgauss import _plain
from askgauss.integrations import _handed_batches as heard
from askgauss.integrations._batch_marks import Marks, marks_of
from askgauss.integrations._handed_batches import Pass
from askgauss.integrations._opacus_run import clips_without_rows, noise_by_parameter
from askgauss.integrations._opacus_versions import BatchSplittingSampler
from askgauss.integrations._ranks import told_by_all
from askgauss.integrations._stand_in import StandIn
from askgauss.witness import RowFacts
from askgauss.witness.rows import rows_over_ranks

__all__ = ["HandedBatch", "TrainedRows", "draws_for"]

# Batches that are remembered, used or not, by this and by other loaders.
_REMEMBERED = 256
# Batches that the rows of one step are looked for in, newest first.
_LOOKED_IN = 64
# A batch is recognised by this share of the rows that could be in both.
_RECOGNISED = 0.25
# Wrappers around a sampler that are looked through.
_DEEPEST = 6


@dataclass(eq=False, slots=True)
class HandedBatch:
    """A batch that a loader handed out.

    Attributes:
        source: The pass over the data that it is part of.
        place: Its number in that pass.
        indices: The records that were drawn for it; None where that was not seen.
        ours: Whether the audited loader drew it.
        marks: By what its rows are recognised.
        step: The step that used it; 0 if none did.
    """

    source: Pass
    place: int
    indices: NDArray[np.int64] | None
    ours: bool
    marks: Marks | None
    step: int = 0

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
    """Rows of one backward pass, and what the model was called with for it."""

    count: int
    marks: Marks | None = None
    untouched: bool = False


class TrainedRows:
    """Counts rows where the optimizer clips them, and finds out which batches they came from.

    Args:
        optimizer: The private optimizer.
        parameters: The parameters it trains.
        sampler: What draws the audited loader's batches; None where it is not known.
    """

    def __init__(
        self, optimizer: Any, parameters: Sequence[nn.Parameter], sampler: Any, unseen: str = ""
    ) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._sampler = sampler
        self._ghost = clips_without_rows(optimizer)
        if not unseen and noise_by_parameter(optimizer):
            unseen = "records are clipped inside the backward pass"
        self.facts = RowFacts(unseen=unseen)
        self._stand_in: StandIn | None = None
        self._models: dict[int, bool] = {}
        self._aside = False
        self._sizes: set[int] = set()
        # Of batches left out between two that were used: the fewest, the most, how often.
        self._gaps: tuple[int, int, int] = (0, 0, 0)
        self._ratio = 0
        self._was_handed = False
        self._ranks: list[RowFacts] = []
        self._forget()

    def _forget(self) -> None:
        self._batches: list[HandedBatch] = []
        self._calls: list[Marks] = []
        self._rows: list[_Rows] = []
        self._whole: list[_Rows] | None = None

    def load(self, facts: RowFacts | None) -> None:
        """Go on from the facts of a checkpoint."""
        if facts is not None:
            self.facts = facts
            self._was_handed = facts.undrawn < facts.steps

    def tell(self, world: int, device: torch.device) -> None:
        """Ranks draw and train on batches of their own, and tell each other what they found."""
        text = json.dumps(_plain.to_plain(self.facts))
        self._ranks = [
            _plain.from_plain(RowFacts, json.loads(item), "rows")
            for item in told_by_all(text, world, device)
        ]

    @property
    def over_ranks(self) -> RowFacts:
        """What was found so far, by all ranks as far as they told."""
        return rows_over_ranks([self.facts, *self._ranks])

    # --- what is heard ----------------------------------------------------------------------------

    def attach(self) -> None:
        """Begin to listen."""
        self._forget()
        if self.facts.unseen:
            return
        heard.listen(self)
        name = "accumulate" if self._ghost else "clip_and_accumulate"
        self._stand_in = StandIn(self._optimizer, name, self._clipped)

    def detach(self) -> None:
        """Listen no more."""
        heard.unlisten(self)
        if self._stand_in is not None:
            self._stand_in.remove()
            self._stand_in = None
        self._forget()

    def handed(self, source: Pass, indices: NDArray[np.int64] | None, batch: Any) -> None:
        """A loader handed out a batch."""
        ours = draws_for(source.sampler, self._sampler)
        self._was_handed = self._was_handed or ours
        made = HandedBatch(source, source.handed, indices, ours, marks_of(batch))
        self._batches.append(made)
        if len(self._batches) > 2 * _REMEMBERED:
            del self._batches[:_REMEMBERED]

    def called(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A model is called: its rows may be trained on."""
        if not (torch.is_grad_enabled() and model.training) or not self._is_ours(model):
            return
        marks = marks_of(arguments, options)
        if marks is not None:
            self._calls.append(marks)
            del self._calls[:-_REMEMBERED]

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
            while calls and calls[-1].rows != item.count:
                calls.pop()
            item.marks = calls.pop() if calls else None
        self._calls = []
        self._rows += rows

    def _counts(self) -> list[int]:
        # Opacus leaves what a parameter had when it was frozen: old rows, not this step's.
        trained = (item for item in self._parameters if item.requires_grad)
        if self._ghost:
            norms = (getattr(item, "_norm_sample", None) for item in trained)
            return next(([len(norm)] for norm in norms if norm is not None), [])
        for item in trained:
            sample = getattr(item, "grad_sample", None)
            if isinstance(sample, list):
                return [len(part) for part in sample]
            if sample is not None:
                return [len(sample)]
        return []

    def before_noise(self) -> None:
        """The sum of the step is whole: what is clipped from here on is no part of the run."""
        if self.facts.unseen:
            return
        if not self._rows:
            # Whoever replaced the clipping meanwhile left the rows where they were.
            self._count()
        self._whole, self._rows, self._aside = self._rows, [], True

    def planted(self) -> None:
        """Back to the run's own rows."""
        self._aside = False

    # --- which batches a step used ----------------------------------------------------------------

    def step(self) -> list[HandedBatch] | None:
        """A step is made: the batches it was made of, or None where that is not certain."""
        rows, self._whole = self._whole or [], None
        self.facts = facts = replace(self.facts, steps=self.facts.steps + 1)
        if facts.unseen:
            return None
        if not rows:
            self.facts = replace(facts, unseen=f"no rows were seen in step {facts.steps:,}")
            return None
        used, known = self._used(rows)
        if not used:
            self._without_draw(rows)
            return None
        others = [item for item in used if not item.ours]
        if others:
            undrawn = self.facts.undrawn + int(not self._was_handed)
            self._note("foreign", other=_name(others[0].source.sampler), undrawn=undrawn)
        ours = [item for item in used if item.ours]
        fresh = [item for item in ours if not item.step]
        if len(fresh) < len(ours):
            self._note("again")
        for item in sorted(fresh, key=lambda item: item.place):
            self._close_gap(item)
            item.step = facts.steps
        if not fresh:
            return None
        if any(item.indices is None for item in ours):
            self.facts = replace(self.facts, missed=self.facts.missed + 1)
            return None
        self._compare(rows, ours, known)
        return fresh if len(fresh) == len(used) else None

    def _used(self, rows: Sequence[_Rows]) -> tuple[list[HandedBatch], bool]:
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

    def _waiting(self) -> list[HandedBatch]:
        """Batches of the loader that are newer than the last one that was used."""
        waiting: list[HandedBatch] = []
        for item in reversed(self._batches):
            if item.ours and item.step:
                break
            if item.ours:
                waiting.append(item)
        return waiting[::-1]

    def _empty(self, count: int) -> list[HandedBatch]:
        waiting = [
            item for item in self._waiting() if item.records == 0 and item.indices is not None
        ]
        return waiting[:count]

    def _recognised(self, rows: _Rows) -> HandedBatch | None:
        """The batch that most rows are in: of those that no step used, that one did, of others."""
        marks = rows.marks
        if marks is None or marks.rows == 0:
            return None
        for item in self._waiting():
            if item.marks is not None and item.marks.same(marks):
                rows.untouched = True
                return item
        own = marks.hashes()
        if own.size > 1 and (own == own[0]).all():
            return None  # rows that are all alike are nobody's
        kinds: list[list[HandedBatch]] = [[], [], []]
        for item in self._batches[-_LOOKED_IN:]:
            if item.marks is not None and item.marks.rows and item.marks.width == marks.width:
                kinds[(1 if item.step else 0) if item.ours else 2].append(item)
        first: HandedBatch | None = None
        for kind in kinds:
            found, alike = _best(own, marks, kind)
            if alike == own.size:
                return found
            first = first or found
        # No batch has all of the rows: the first that has enough of them.
        return first

    def _without_draw(self, rows: Sequence[_Rows]) -> None:
        facts = self.facts
        if not self._was_handed:
            others = [item for item in self._batches if not item.ours]
            other = _name(others[-1].source.sampler) if others else ""
            self.facts = replace(facts, undrawn=facts.undrawn + 1, other=other or facts.other)
        else:
            self._note("again")

    def _close_gap(self, item: HandedBatch) -> None:
        """Batches of the same pass between this one and the last that was used were left out."""
        source, facts = item.source, self.facts
        before, source.last = source.last, max(source.last, item.place)
        if before < 0:
            return
        if item.place < before:
            # Used late, and counted as left out before.
            self.facts = replace(facts, unused=max(0, facts.unused - 1))
            return
        gap = item.place - before - 1
        least, most, number = self._gaps
        self._gaps = (min(least, gap) if number else gap, max(most, gap), number + 1)
        even = self._gaps[0] == self._gaps[1] and number > 1
        if even != facts.even:
            self.facts = facts = replace(facts, even=even)
        if not gap:
            return
        between = (
            other
            for other in self._batches
            if other.source is source and before < other.place < item.place
        )
        empty = sum(other.indices is not None and not other.records for other in between)
        self.facts = replace(
            facts,
            unused=facts.unused + gap,
            unused_empty=facts.unused_empty + empty,
            unused_first=facts.unused_first or facts.steps,
        )

    # --- rows against records ---------------------------------------------------------------------

    def _compare(self, rows: Sequence[_Rows], used: Sequence[HandedBatch], known: bool) -> None:
        facts = self.facts
        count, drawn = sum(item.count for item in rows), sum(item.rows for item in used)
        self.facts = facts = replace(
            facts, compared=facts.compared + 1, identified=facts.identified + int(known)
        )
        if count > drawn:
            first, extra = facts.more == 0, count - drawn
            ratio = count // drawn if drawn and count % drawn == 0 else 0
            self._sizes.add(drawn)
            self._ratio = ratio if first or ratio == self._ratio else 0
            self._note(
                "more",
                # Where all batches are of one size, as many rows may be those of others.
                multiple=self._ratio if len(self._sizes) > 1 else 0,
                extra_least=extra if first else min(facts.extra_least, extra),
                extra_most=max(facts.extra_most, extra),
                more_rows=facts.more_rows + count,
                more_drawn=facts.more_drawn + drawn,
                other=facts.other or self._other_source(rows),
            )
        elif count < drawn:
            self._note(
                "fewer",
                fewer_rows=facts.fewer_rows + count,
                fewer_drawn=facts.fewer_drawn + drawn,
            )
        elif known and self._has_doubles(rows, used):
            self._note("doubled")

    def _other_source(self, rows: Sequence[_Rows]) -> str:
        """What drew those of the rows that are another loader's."""
        others = [item for item in self._batches[-_LOOKED_IN:] if not item.ours and item.marks]
        for marks in (item.marks for item in rows if item.marks is not None):
            same = [item for item in others if item.marks and item.marks.width == marks.width]
            if found := _best(marks.hashes(), marks, same)[0]:
                return _name(found.source.sampler)
        return ""

    @staticmethod
    def _has_doubles(rows: Sequence[_Rows], used: Sequence[HandedBatch]) -> bool:
        """Whether all rows are those of the batches, and some of them more often than there."""
        if all(item.untouched for item in rows if item.count):
            return False
        trained = [item.marks for item in rows if item.marks is not None and item.count]
        yielded = [item.marks for item in used if item.marks is not None and item.records]
        if not trained or len({item.width for item in (*trained, *yielded)}) != 1:
            return False
        own = np.concatenate([item.hashes() for item in trained])
        theirs = np.concatenate([item.hashes(trained[0]) for item in yielded])
        distinct = np.unique(theirs)
        if distinct.size < theirs.size or not np.isin(own, distinct).all():
            return False
        return np.unique(own).size < own.size

    def _note(self, kind: str, **values: Any) -> None:
        """One more step with a fault of this kind."""
        facts = self.facts
        first = getattr(facts, f"{kind}_first") or facts.steps
        counted: dict[str, Any] = {kind: getattr(facts, kind) + 1, f"{kind}_first": first}
        self.facts = replace(facts, **counted, **values)


def _run_of(among: Sequence[HandedBatch], rows: int, passes: int) -> list[HandedBatch]:
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
    own: NDArray[np.int64], marks: Marks, among: Sequence[HandedBatch]
) -> tuple[HandedBatch | None, int]:
    """The batch that most of the rows are in, if enough of them are, and how many that is."""
    best, most = None, 0
    for item in among:
        assert item.marks is not None
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
