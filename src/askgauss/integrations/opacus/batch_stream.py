"""Batches that loaders yield, calls of private models, and the rows of both.

Batches and calls are followed at the class, not at one loader or model: a loader may be wrapped,
split for memory or made anew for every epoch, and a hook on a model would be saved and copied with
it. Rows are recognised in another tensor by a few numbers of each.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from askgauss.integrations.attachment import SharedPatch
from askgauss.integrations.opacus.opacus_versions import (
    AbstractGradSampleModule,
    BatchSplittingSampler,
)

if TYPE_CHECKING:
    from askgauss.integrations.opacus.row_watch import TrainedRows

__all__ = [
    "LOOKED_IN",
    "TO_TRAIN",
    "Columns",
    "Content",
    "LoadedBatch",
    "Pass",
    "as_indices",
    "best",
    "content_of",
    "draws_for",
    "inputs_mixed",
    "is_drawing",
    "listen",
    "next_of",
    "rows_of",
    "run_of",
    "same",
    "sampler_name",
    "unlisten",
]

# Numbers that are read of each row.
_READ = 24
# Tensors of a batch that are looked at, and how deep they may be nested.
_TENSORS = 8
_DEPTH = 3
# Batches that the rows of one step are looked for in, newest first.
LOOKED_IN = 64
# A batch is recognised by this share of the rows that could be in both.
_RECOGNISED = 0.25
# Where the model is called to train on the batch; other places are known by their frames.
TO_TRAIN = 0
# Wrappers around a sampler that are looked through.
_DEEPEST = 6
_FACTORS = np.random.default_rng(0).integers(1, 1 << 62, _READ, dtype=np.int64) | 1
# Values of each row that are compared, the fewest that tell anything, and the rows looked at.
_COLUMNS = 1024
_FEWEST_COLUMNS = 6
_ROWS = 16
# Rows that have to be explained by two records, and their share of those that are not by one.
_MIXED = 3
_SHARE = 0.5
# What is left of a row that is explained, as a share of what varies in it.
_EXACT = 1e-5
# The least share of a row that the second record explains.
_MATERIAL = 1e-3
# Values of a row that have to come from the second record, and different ones among them.
_PASTED = 8
_DISTINCT = 4
# Lines through two values that are tried to find how a row was scaled.
_LINES = 24
_Array = NDArray[np.float64]


@dataclass(eq=False, slots=True)
class Pass:
    """One pass of an iterator over its sampler; an iterator with workers that stay makes several.

    Attributes:
        sampler: What draws the indices.
        indices: Drawn and not yielded yet: workers fetch ahead.
        yielded: Batches yielded so far.
        ordered: Whether batches are yielded in the order in which they were drawn.
        collate: What makes a batch of records.
        last: Place of the last batch that a step used; -1 if none was.
        ended: Whether it came to its end, instead of being left before.
        pending: Batches since the last that was used, by where the model was called with them.
    """

    sampler: Any
    drawing: Any = field(repr=False)
    ordered: bool = True
    collate: Any = None
    indices: deque[NDArray[np.int64] | None] = field(default_factory=deque)
    yielded: int = 0
    last: int = -1
    ended: bool = False
    pending: dict[int, int] = field(default_factory=dict)


_listeners: list[TrainedRows] = []
_passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
_drawing = 0
# Calls of Opacus' modules so far.
_calls = 0
# Models that train, and whether they call Opacus' module; None where that is not known yet.
_models: weakref.WeakKeyDictionary[nn.Module, bool | None] = weakref.WeakKeyDictionary()
# What is replaced while there is a listener, in torch and Opacus and in classes of models.
_patches: dict[Any, SharedPatch] = {}


def listen(listener: TrainedRows, model: nn.Module | None = None) -> None:
    """Begin to call a listener.

    Args:
        listener: The listener.
        model: The model that trains, which may be called as it is, as with ``wrap_model=False``.
    """
    wanted: list[tuple[Any, str, Any]] = [
        (_BaseDataLoaderIter, "_next_index", _observed_index),
        (_BaseDataLoaderIter, "__next__", _observed_next),
        (AbstractGradSampleModule, "__call__", _observed_call),
        # What the method of a tensor calls as well.
        (torch.autograd, "backward", _observed_backward),
        (_MapDatasetFetcher, "fetch", _observed_fetch),
    ]
    if model is not None and not isinstance(model, AbstractGradSampleModule):
        _models[model] = None
        wanted.append((type(model), "__call__", _observed_model))
    _listeners.append(listener)
    for owner, name, call in wanted:
        if (owner, name) not in _patches:
            _patches[owner, name] = SharedPatch(owner, name, call)
        _patches[owner, name].add(listener)


def _observed_model(call: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    """A model of the user's own class, which may call Opacus' module, or not."""
    if model not in _models or _models[model] is True:
        return call(model, *arguments, **options)
    # Whether it calls Opacus' module, which is followed, is known after its first call.
    known, before = _models[model] is False, _calls
    if known:
        _notify_call(model, arguments, options)
    found = call(model, *arguments, **options)
    _models[model] = _calls != before
    if known:
        _notify_return(model, found)
    elif _calls == before:
        _notify_call(model, arguments, options)
    return found


def unlisten(listener: TrainedRows) -> None:
    """Stop; without any listener, torch and Opacus are as they were."""
    for patch in _patches.values():
        patch.remove(listener)
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        _patches.clear()
        _models.clear()
        _passes.clear()


def is_drawing() -> bool:
    """Whether a loader of torch is drawing right now, which will yield the batch itself."""
    return _drawing > 0


def _pass_of(iterator: Any) -> Pass:
    found, drawing = _passes.get(iterator), iterator._sampler_iter
    if found is None or found.drawing is not drawing:
        found = Pass(
            iterator._index_sampler,
            drawing,
            ordered=bool(getattr(iterator, "_in_order", True)),
            collate=getattr(iterator, "_collate_fn", None),
        )
        # What workers were told to fetch before the first listener is yielded first.
        found.indices.extend([None] * _fetched_ahead(iterator))
        _passes[iterator] = found
    return found


def _fetched_ahead(iterator: Any) -> int:
    return int(getattr(iterator, "_send_idx", 0) - getattr(iterator, "_rcvd_idx", 0))


def _observed_index(next_index: Any, iterator: Any) -> Any:
    global _drawing
    _drawing += 1
    try:
        index = next_index(iterator)
    finally:
        _drawing -= 1
    source = _pass_of(iterator)
    source.indices.append(as_indices(index) if source.ordered else None)
    return index


def as_indices(index: Any) -> NDArray[np.int64] | None:
    """What a sampler drew, as record indices; None where it is something else."""
    try:
        found = np.asarray(index)
    except (TypeError, ValueError):
        return None
    if found.size == 0 and found.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    return found if found.ndim == 1 and found.dtype.kind in "iu" else None


def _observed_next(following: Any, iterator: Any) -> Any:
    # Known before anything more is drawn, of an iterator that is older than the listener.
    _pass_of(iterator)
    try:
        batch = following(iterator)
    except StopIteration:
        _pass_of(iterator).ended = True
        raise
    source = _pass_of(iterator)
    indices = source.indices.popleft() if source.indices else None
    for listener in tuple(_listeners):
        listener.loaded(source, indices, batch)
    source.yielded += 1
    return batch


def _observed_call(call: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    global _calls
    _calls += 1
    _notify_call(model, arguments, options)
    output = call(model, *arguments, **options)
    _notify_return(model, output)
    return output


def _notify_call(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    for listener in tuple(_listeners):
        listener.called(model, arguments, options)


def _notify_return(model: Any, output: Any) -> None:
    for listener in tuple(_listeners):
        listener.returned(model, output)


def _observed_backward(backward: Any, tensors: Any, *arguments: Any, **options: Any) -> Any:
    for listener in tuple(_listeners):
        listener.backward(tensors)
    return backward(tensors, *arguments, **options)


def _observed_fetch(fetch: Any, fetcher: Any, index: Any) -> Any:
    collate = fetcher.collate_fn
    # Listeners are in another process than workers.
    alone = torch.utils.data.get_worker_info() is None
    asking = [item for item in _listeners if alone and item.collates(collate)]
    if not asking:
        return fetch(fetcher, index)

    def observed(samples: Any) -> Any:
        for listener in asking:
            listener.collated(samples)
        return collate(samples)

    fetcher.collate_fn = observed
    try:
        return fetch(fetcher, index)
    finally:
        fetcher.collate_fn = collate


# --- rows -----------------------------------------------------------------------------------------


class Content:
    """The widest tensor of a batch, recognised by numbers at fixed places of every row.

    The numbers are read when they are needed, and stay on the tensor's own device.

    Args:
        tensor: The tensor.
        width: Numbers that each of its rows has in all, however it is shaped.
    """

    __slots__ = ("_held", "_marks", "_tensor", "_version", "rows", "width")

    def __init__(self, tensor: Tensor, width: int) -> None:
        self._held: Tensor | None = tensor
        self._tensor = weakref.ref(tensor)
        # How often it was written to, where torch counts.
        self._version = 0 if tensor.is_inference() else tensor._version
        self._marks: Tensor | None = None
        self.rows, self.width = tensor.shape[0], width

    @property
    def tensor(self) -> Tensor | None:
        """The tensor; None where it is gone."""
        return self._tensor()

    def read(self) -> Tensor | None:
        """The numbers, one row a record; None where the tensor is gone."""
        if self._marks is None:
            tensor = self._tensor()
            if tensor is not None:
                self._marks, self._held = _read(tensor.detach(), self.width), None
        return self._marks

    def release(self) -> None:
        """Keep the tensor alive no longer."""
        self._held = None

    def is_of(self, other: Content) -> bool:
        """Whether it is the very same tensor."""
        tensor = self._tensor()
        return tensor is not None and tensor is other._tensor()

    def was_written(self, other: Content) -> bool:
        """Whether the same tensor was written to before it became the other."""
        return self._version != other._version

    def same(self, other: Content) -> bool:
        """Whether these are the very same rows, in the same order."""
        if (self.rows, self.width) != (other.rows, other.width):
            return False
        mine, theirs = self.read(), other.read()
        if mine is None or theirs is None or mine.dtype != theirs.dtype:
            return False
        return mine.device == theirs.device and torch.equal(mine, theirs)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """How many different numbers are read of each row; empty where the tensor is gone."""
        values = self.read()
        if values is None:
            return np.zeros(0, dtype=np.int64)
        ordered = np.sort(values.to(torch.float64).cpu().numpy(), axis=1)
        return np.asarray(1 + np.count_nonzero(np.diff(ordered, axis=1), axis=1))

    def hashes(self, like: Content | None = None) -> NDArray[np.int64]:
        """One number a row, as if the rows had been converted to the number format of ``like``.

        Empty where the tensor is gone.
        """
        values, wanted = self.read(), None if like is None else like.read()
        if values is None:
            return np.zeros(0, dtype=np.int64)
        values = values if wanted is None else values.to(wanted.dtype)
        numbers = values.to(torch.float64).cpu().numpy() + 0.0
        with np.errstate(over="ignore"):
            bits: NDArray[np.int64] = numbers.view(np.int64)
            mixed = (bits ^ (bits >> 29)) * _FACTORS[: bits.shape[1]]
            return np.asarray((mixed ^ (mixed >> 31)).sum(axis=1))


def content_of(*content: Any) -> Content | None:
    """What a loader yields or a model is called with; None where it has no rows to recognise."""
    widest: Tensor | None = None
    width = 0
    for tensor in _tensors(content, _DEPTH):
        own = tensor.numel() // (tensor.shape[0] or 1)
        if own > width:
            widest, width = tensor, own
    # Labels alone say nothing of who they belong to.
    return None if widest is None or width < 2 else Content(widest, width)


def _read(tensor: Tensor, width: int) -> Tensor:
    """Numbers at the same places of every row, however the row is shaped or lies in memory."""
    # Not at the same place of every colour of an image.
    pieces, apart = (3, 5 * width // 13) if width > 2 * _READ else (1, 0)
    size = min(width, _READ) // pieces
    rows = len(tensor)
    if tensor.is_contiguous():
        # In as few calls as can be: they cost more than the numbers.
        picked = tensor.as_strided((rows, pieces, size), (width, apart, 1), tensor.storage_offset())
        return picked.clone(memory_format=torch.contiguous_format).view(rows, pieces * size)
    places = np.add.outer(apart * np.arange(pieces), np.arange(size)).reshape(-1)
    index: tuple[Any, ...] = np.unravel_index(places, tensor.shape[1:])
    # Picked without a copy of the whole row.
    picks: tuple[Any, ...] = (slice(None), *map(torch.from_numpy, index))
    return tensor[picks]


def _tensors(content: Any, depth: int) -> list[Tensor]:
    if isinstance(content, Tensor):
        return [content] if content.shape and not content.is_complex() else []
    if not depth or not isinstance(content, (tuple, list, dict, Mapping)):
        return []
    inside = content if isinstance(content, (tuple, list)) else list(content.values())
    return [found for value in inside[:_TENSORS] for found in _tensors(value, depth - 1)]


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
    def records(self) -> int:
        """How many records were drawn for it."""
        return 0 if self.indices is None else int(self.indices.size)

    @property
    def rows(self) -> int:
        """How many rows they make; Opacus may put one of random numbers where there is none."""
        filled = getattr(self.source.collate, "rand_on_empty", False)
        return self.records or int(bool(filled))


def same(content: Content, among: Sequence[LoadedBatch], place: int) -> LoadedBatch | None:
    """The batch of these very rows: rather one that was not seen at this place."""
    seen = None
    for item in among[-LOOKED_IN:]:
        if item.content is not None and item.content.same(content):
            if place not in item.places:
                return item
            seen = item
    return seen


def next_of(among: Sequence[LoadedBatch], rows: int) -> LoadedBatch | None:
    """The next batch of a pass that the model is to be called with, if it has so many rows."""
    for item in among:
        if item.source is among[-1].source and TO_TRAIN not in item.places and item.rows == rows:
            return item
    return None


def run_of(among: Sequence[LoadedBatch], rows: int, passes: int) -> list[LoadedBatch]:
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


def best(rows: Content, among: Sequence[LoadedBatch]) -> tuple[LoadedBatch | None, int]:
    """The batch that most of the rows are in, if enough of them are, and how many that is."""
    own, found, most = rows.hashes(), None, 0
    for item in among:
        if item.content is None or item.content.width != rows.width:
            continue
        theirs = item.content.hashes(rows)
        if theirs.size and np.array_equal(own, theirs):
            return item, own.size
        alike = int(np.count_nonzero(np.isin(own, theirs)))
        if alike > most and alike >= _RECOGNISED * min(own.size, theirs.size):
            found, most = item, alike
    return found, most


def sampler_name(sampler: Any) -> str:
    """The class of a sampler, or of the one inside it."""
    inner = getattr(sampler, "sampler", None)
    return type(sampler if inner is None else inner).__name__


# --- inputs: is a row made of two records? --------------------------------------------------------


class Columns:
    """Some values of every row of a batch, the same ones of each.

    Args:
        tensor: The batch.
    """

    __slots__ = ("_values", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        rows = tensor.detach()
        # Colours are often scaled each by itself: those of one are enough.
        rows = (rows[:, 0] if rows.ndim > 3 else rows).reshape(len(rows), -1)
        apart = max(1, rows.shape[1] // _COLUMNS)
        self._values = rows[:, ::apart][:, :_COLUMNS].clone()

    def read(self) -> _Array:
        """The values."""
        return np.asarray(self._values.to("cpu", torch.float64).numpy())

    def same(self, other: Columns) -> bool:
        """Whether these are the very same values."""
        mine, theirs = self._values, other._values
        alike = self.shape == other.shape and mine.dtype == theirs.dtype
        return alike and mine.device == theirs.device and torch.equal(mine, theirs)

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers."""
        kind = self._values.dtype
        return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def inputs_mixed(yielded: Columns, given: Columns) -> bool | None:
    """Whether rows are made of two records each; None where they are made in a way not known.

    Args:
        yielded: The batch of the loader, one row a record.
        given: What the model was called with.
    """
    if given.same(yielded):
        return False
    if yielded.shape != given.shape or yielded.shape[0] < _MIXED:
        return None
    records, rows = yielded.read(), given.read()
    if not (np.isfinite(records).all() and np.isfinite(rows).all()):
        return None
    exact = max(_EXACT, 16.0 * given.precision)
    if exact > _MATERIAL or records.shape[1] < _FEWEST_COLUMNS:
        return None
    looked = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    centred = records - records.mean(axis=1, keepdims=True)
    kinds = [_explained(rows[index], int(index), records, centred, exact) for index in looked]
    mixed, unknown = kinds.count(2), kinds.count(0)
    if mixed >= _MIXED and mixed >= _SHARE * (mixed + unknown):
        return True
    return None if mixed or unknown else False


def _explained(row: _Array, index: int, records: _Array, centred: _Array, exact: float) -> int:
    """By how many records a row is explained; 0 where by none or more than two."""
    rest = row - row.mean()
    varies = float(np.linalg.norm(rest))
    if varies <= exact * max(float(np.linalg.norm(row)), 1e-300):
        return 1  # constant: nothing of any record
    norms = np.linalg.norm(centred, axis=1)
    alike = np.abs(centred @ rest) / np.where(norms > 0.0, norms, np.inf) / varies
    best = int(alike.argmax())
    if _left(rest, centred[[best]])[0] <= exact * varies:
        return 1
    for first in dict.fromkeys((index, best)):
        if _is_sum_of_two(rest, first, centred, exact):
            return 2
        if _is_pasted(row, first, records):
            return 2
    return 0


def _left(rest: _Array, records: _Array) -> tuple[float, _Array]:
    """What is left of a row beside a combination of records, and their shares."""
    shares, *_ = np.linalg.lstsq(records.T, rest, rcond=None)
    return float(np.linalg.norm(rest - shares @ records)), np.asarray(shares, dtype=np.float64)


def _is_sum_of_two(rest: _Array, first: int, centred: _Array, exact: float) -> bool:
    own = centred[first]
    square = float(own @ own)
    if square <= 0.0:
        return False
    # What is left beside the first record lies along what the second has beside it.
    left = rest - (rest @ own) / square * own
    others = centred - np.outer(centred @ own / square, own)
    norms = np.linalg.norm(others, axis=1)
    usable = norms > 1e-3 * np.linalg.norm(centred, axis=1).clip(1e-300)
    usable[first] = False
    if not usable.any():
        return False
    alike = np.where(usable, np.abs(others @ left) / np.where(norms > 0.0, norms, np.inf), 0.0)
    second = int(alike.argmax())
    off, shares = _left(rest, centred[[first, second]])
    varies = float(np.linalg.norm(rest))
    if off > exact * varies or shares[0] * shares[1] <= 0.0:
        return False
    parts = np.abs(shares) * np.linalg.norm(centred[[first, second]], axis=1)
    material = abs(float(shares[1])) * float(norms[second])
    return bool(parts.min() > _MATERIAL * varies and material > max(_MATERIAL, 10 * exact) * varies)


def _is_pasted(row: _Array, first: int, records: _Array) -> bool:
    """Whether a row has some values of one record, and all others of one other."""
    scale = _line(records[first], row)
    if scale is None:
        return False
    ours = _equal(scale[0] * records[first] + scale[1], row)
    other = ~ours
    if min(ours.sum(), other.sum()) < _PASTED or np.unique(row[other]).size < _DISTINCT:
        return False
    theirs = _equal(scale[0] * records + scale[1], row)
    found = theirs[:, other].all(axis=1)
    # One whose own values are not those of the whole row.
    elsewhere = (ours & ~theirs).sum(axis=1)
    return bool((found & (elsewhere >= _PASTED)).any())


def _equal(scaled: _Array, row: _Array) -> NDArray[np.bool_]:
    spread = float(row.max() - row.min())
    return np.asarray(np.abs(scaled - row) <= _EXACT * spread)


def _line(record: _Array, row: _Array) -> tuple[float, float] | None:
    """How most values of a record were scaled and shifted: not at all, or by a line through two."""
    best, most = None, 0
    values = np.unique(record)
    places = [int(np.flatnonzero(record == value)[0]) for value in values[:: len(values) // 8 or 1]]
    tried: list[tuple[float, float]] = [(1.0, 0.0)]
    pairs = [(one, other) for one in places for other in places if record[one] < record[other]]
    for one, other in pairs[:_LINES]:
        slope = (row[other] - row[one]) / (record[other] - record[one])
        tried.append((float(slope), float(row[one] - slope * record[one])))
    for line in tried:
        if line[0] == 0.0:
            continue
        count = int(_equal(line[0] * record + line[1], row).sum())
        if count > most:
            best, most = line, count
    return best


def rows_of(samples: Any) -> Tensor | None:
    """The widest tensor of each of the samples that are about to be put together, as one batch."""
    if not isinstance(samples, (list, tuple)) or not samples:
        return None
    widest = [_widest(sample) for sample in samples]
    if any(item is None or item.shape != widest[0].shape for item in widest):
        return None
    return torch.stack(widest)


def _widest(sample: Any) -> Any:
    values = sample.values() if isinstance(sample, dict) else sample
    if isinstance(sample, (Tensor, np.ndarray)):
        values = (sample,)
    elif not isinstance(sample, (dict, list, tuple)):
        return None
    tensors = [torch.as_tensor(item) for item in values if isinstance(item, (Tensor, np.ndarray))]
    return max(tensors, key=lambda item: item.numel(), default=None)
