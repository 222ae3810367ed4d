"""Batches that loaders yield, calls of private models, and the rows of both.

Batches and calls are followed at the class, not at one loader or model: a loader may be wrapped,
split for memory or made anew for every epoch, and a hook on a model would be saved and copied with
it. Rows are recognised in another tensor by a few numbers of each.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from askgauss.integrations.opacus.opacus_versions import AbstractGradSampleModule

__all__ = [
    "Content",
    "Listener",
    "Marks",
    "Pass",
    "as_indices",
    "content_of",
    "is_drawing",
    "listen",
    "unlisten",
]

# Numbers that are read of each row.
_READ = 24
# Tensors of a batch that are looked at, and how deep they may be nested.
_TENSORS = 8
_DEPTH = 3
_FACTORS = np.random.default_rng(0).integers(1, 1 << 62, _READ, dtype=np.int64) | 1


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


class Listener(Protocol):
    """Is called for every batch and every call."""

    def loaded(self, source: Pass, indices: NDArray[np.int64] | None, batch: Any) -> None:
        """A loader yielded a batch; ``indices`` is None if it was drawn before `listen`."""

    def called(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The model that trains, or one that computes per-sample gradients, is called."""

    def returned(self, model: Any, output: Any) -> None:
        """It was called."""

    def backward(self, losses: Any) -> None:
        """A loss is about to be differentiated."""

    def collates(self, collate: Any) -> bool:
        """Whether to call `collated` with the samples that this function puts together."""

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together to a batch, in this process."""


_listeners: list[Listener] = []
_passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
_drawing = 0
# Calls of Opacus' modules so far.
_calls = 0
_iterators: Any = _BaseDataLoaderIter
_next_index: Any = _iterators._next_index
_next: Any = _iterators.__next__
_call: Any = AbstractGradSampleModule.__call__
_backward: Any = torch.autograd.backward
_fetchers: Any = _MapDatasetFetcher
_fetch: Any = _fetchers.fetch
# Models that train, whether they call Opacus' module (None: not known yet), and what their classes
# had of their own.
_models: weakref.WeakKeyDictionary[nn.Module, bool | None] = weakref.WeakKeyDictionary()
_classes: dict[Any, Any] = {}


def listen(listener: Listener, model: nn.Module | None = None) -> None:
    """Begin to call a listener.

    Args:
        listener: The listener.
        model: The model that trains, which may be called as it is, as with ``wrap_model=False``.
    """
    _listeners.append(listener)
    _iterators._next_index, _iterators.__next__ = _observed_index, _observed_next
    AbstractGradSampleModule.__call__ = _observed_call
    # What the method of a tensor calls as well.
    torch.autograd.backward, _fetchers.fetch = _observed_backward, _observed_fetch
    if model is not None and not isinstance(model, AbstractGradSampleModule):
        _models[model] = None
        _observe_class(type(model))


def _observe_class(kind: Any) -> None:
    """Follow the calls of a class."""
    if kind in _classes:
        return
    call = kind.__call__

    def observed(model: Any, *arguments: Any, **options: Any) -> Any:
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

    _classes[kind] = vars(kind).get("__call__")
    kind.__call__ = observed


def unlisten(listener: Listener) -> None:
    """Stop; without any listener, torch and Opacus are as they were."""
    if listener in _listeners:
        _listeners.remove(listener)
    if not _listeners:
        _iterators._next_index, _iterators.__next__ = _next_index, _next
        AbstractGradSampleModule.__call__ = _call
        torch.autograd.backward, _fetchers.fetch = _backward, _fetch
        for kind, own in list(_classes.items()):
            if own is not None:
                kind.__call__ = own
            elif "__call__" in vars(kind):
                del kind.__call__
            del _classes[kind]
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


def _observed_index(iterator: Any) -> Any:
    global _drawing
    _drawing += 1
    try:
        index = _next_index(iterator)
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


def _observed_next(iterator: Any) -> Any:
    # Known before anything more is drawn, of an iterator that is older than the listener.
    _pass_of(iterator)
    try:
        batch = _next(iterator)
    except StopIteration:
        _pass_of(iterator).ended = True
        raise
    source = _pass_of(iterator)
    indices = source.indices.popleft() if source.indices else None
    for listener in tuple(_listeners):
        listener.loaded(source, indices, batch)
    source.yielded += 1
    return batch


def _observed_call(model: Any, *arguments: Any, **options: Any) -> Any:
    global _calls
    _calls += 1
    _notify_call(model, arguments, options)
    output = _call(model, *arguments, **options)
    _notify_return(model, output)
    return output


def _notify_call(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    for listener in tuple(_listeners):
        listener.called(model, arguments, options)


def _notify_return(model: Any, output: Any) -> None:
    for listener in tuple(_listeners):
        listener.returned(model, output)


@functools.wraps(_backward)
def _observed_backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
    for listener in tuple(_listeners):
        listener.backward(tensors)
    return _backward(tensors, *arguments, **options)


def _observed_fetch(fetcher: Any, index: Any) -> Any:
    collate = fetcher.collate_fn
    # Listeners are in another process than workers.
    alone = torch.utils.data.get_worker_info() is None
    asking = [item for item in _listeners if alone and item.collates(collate)]
    if not asking:
        return _fetch(fetcher, index)

    def observed(samples: Any) -> Any:
        for listener in asking:
            listener.collated(samples)
        return collate(samples)

    fetcher.collate_fn = observed
    try:
        return _fetch(fetcher, index)
    finally:
        fetcher.collate_fn = collate


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """Numbers at fixed places of every row of the widest tensor of a batch.

    Attributes:
        values: One row a record; still on the tensor's own device.
        width: Numbers that each row has in all, however it is shaped.
    """

    values: Tensor
    width: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.values)

    def same(self, other: Marks) -> bool:
        """Whether these are the marks of the very same rows, in the same order."""
        mine, theirs = self.values, other.values
        alike = mine.shape == theirs.shape and mine.dtype == theirs.dtype
        return alike and mine.device == theirs.device and torch.equal(mine, theirs)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """How many different numbers are read of each row."""
        values = np.sort(self.values.to(torch.float64).cpu().numpy(), axis=1)
        return np.asarray(1 + np.count_nonzero(np.diff(values, axis=1), axis=1))

    def hashes(self, like: Marks | None = None) -> NDArray[np.int64]:
        """One number a row, as if the rows had been converted to the number format of ``like``."""
        values = self.values if like is None else self.values.to(like.values.dtype)
        numbers = values.to(torch.float64).cpu().numpy() + 0.0
        with np.errstate(over="ignore"):
            bits: NDArray[np.int64] = numbers.view(np.int64)
            mixed = (bits ^ (bits >> 29)) * _FACTORS[: bits.shape[1]]
            return np.asarray((mixed ^ (mixed >> 31)).sum(axis=1))


class Content:
    """The widest tensor of a batch, whose marks are read when they are needed.

    Args:
        tensor: The tensor.
        width: Numbers of each of its rows.
    """

    __slots__ = ("_held", "_marks", "_tensor", "_version", "rows", "width")

    def __init__(self, tensor: Tensor, width: int) -> None:
        self._held: Tensor | None = tensor
        self._tensor = weakref.ref(tensor)
        self._version = _version(tensor)
        self._marks: Marks | None = None
        self.rows, self.width = tensor.shape[0], width

    @property
    def tensor(self) -> Tensor | None:
        """The tensor; None where it is gone."""
        return self._tensor()

    @property
    def marks(self) -> Marks | None:
        """Its marks; None where the tensor is gone."""
        if self._marks is None:
            tensor = self._tensor()
            if tensor is not None:
                self._marks = Marks(_read(tensor.detach(), self.width), self.width)
                self._held = None
        return self._marks

    def is_of(self, other: Content) -> bool:
        """Whether it is the very same tensor."""
        tensor = self._tensor()
        return tensor is not None and tensor is other._tensor()

    def was_written(self, other: Content) -> bool:
        """Whether the same tensor was written to before it became the other."""
        return self._version != other._version

    def release(self) -> None:
        """Keep the tensor alive no longer."""
        self._held = None


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


def _version(tensor: Tensor) -> int:
    """How often it was written to, where torch counts."""
    return 0 if tensor.is_inference() else tensor._version


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
