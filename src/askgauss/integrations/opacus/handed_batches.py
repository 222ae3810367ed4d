"""What loaders hand out and what private models are called with, while somebody listens.

Both are heard where the class is, not at one loader or model: a loader may be wrapped, split for
memory or made anew for every epoch, and a hook on a model would be saved and copied with it.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from askgauss.integrations.opacus.opacus_versions import AbstractGradSampleModule

__all__ = ["Listener", "Pass", "as_indices", "is_drawing", "listen", "unlisten"]


@dataclass(eq=False, slots=True)
class Pass:
    """One pass of an iterator over its sampler; an iterator with workers that stay makes several.

    Attributes:
        sampler: What draws the indices.
        indices: Drawn and not handed out yet: workers fetch ahead.
        handed: Batches handed out so far.
        ordered: Whether batches are handed out in the order in which they were drawn.
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
    handed: int = 0
    last: int = -1
    ended: bool = False
    pending: dict[int, int] = field(default_factory=dict)


class Listener(Protocol):
    """Whoever wants to hear of batches and calls."""

    def handed(self, source: Pass, indices: NDArray[np.int64] | None, batch: Any) -> None:
        """A loader handed out a batch; of those drawn before anybody listened, indices are None."""

    def called(self, model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The model that trains, or one that computes per-sample gradients, is called."""

    def returned(self, model: Any, output: Any) -> None:
        """It was called."""

    def backward(self, losses: Any) -> None:
        """A loss is about to be differentiated."""

    def collates(self, collate: Any) -> bool:
        """Whether the samples that this function puts together are to be told."""

    def collated(self, samples: Any) -> None:
        """These are about to be put together to a batch, in this process."""


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
    """Begin to tell a listener.

    Args:
        listener: Who listens.
        model: The model that trains, which may be called as it is, as with ``wrap_model=False``.
    """
    _listeners.append(listener)
    _iterators._next_index, _iterators.__next__ = _listened_index, _listened_next
    AbstractGradSampleModule.__call__ = _listened_call
    # What the method of a tensor calls as well.
    torch.autograd.backward, _fetchers.fetch = _listened_backward, _listened_fetch
    if model is not None and not isinstance(model, AbstractGradSampleModule):
        _models[model] = None
        _hear(type(model))


def _hear(kind: Any) -> None:
    """Listen to the calls of a class."""
    if kind in _classes:
        return
    call = kind.__call__

    def listened(model: Any, *arguments: Any, **options: Any) -> Any:
        if model not in _models or _models[model] is True:
            return call(model, *arguments, **options)
        # Whether it calls Opacus' module, and that is heard, is known after its first call.
        known, before = _models[model] is False, _calls
        if known:
            _tell(model, arguments, options)
        found = call(model, *arguments, **options)
        _models[model] = _calls != before
        if known:
            _told(model, found)
        elif _calls == before:
            _tell(model, arguments, options)
        return found

    _classes[kind] = vars(kind).get("__call__")
    kind.__call__ = listened


def unlisten(listener: Listener) -> None:
    """Tell it no more; with nobody left, torch and Opacus are as they were."""
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
    """Whether a loader of torch is drawing right now, which will hand the batch out itself."""
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
        # What workers were told to fetch before anybody listened is handed out first.
        found.indices.extend([None] * _fetched_ahead(iterator))
        _passes[iterator] = found
    return found


def _fetched_ahead(iterator: Any) -> int:
    return int(getattr(iterator, "_send_idx", 0) - getattr(iterator, "_rcvd_idx", 0))


def _listened_index(iterator: Any) -> Any:
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


def _listened_next(iterator: Any) -> Any:
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
        listener.handed(source, indices, batch)
    source.handed += 1
    return batch


def _listened_call(model: Any, *arguments: Any, **options: Any) -> Any:
    global _calls
    _calls += 1
    _tell(model, arguments, options)
    output = _call(model, *arguments, **options)
    _told(model, output)
    return output


def _tell(model: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    for listener in tuple(_listeners):
        listener.called(model, arguments, options)


def _told(model: Any, output: Any) -> None:
    for listener in tuple(_listeners):
        listener.returned(model, output)


@functools.wraps(_backward)
def _listened_backward(tensors: Any, *arguments: Any, **options: Any) -> Any:
    for listener in tuple(_listeners):
        listener.backward(tensors)
    return _backward(tensors, *arguments, **options)


def _listened_fetch(fetcher: Any, index: Any) -> Any:
    collate = fetcher.collate_fn
    # Whoever hears it is in another process than workers are.
    alone = torch.utils.data.get_worker_info() is None
    asking = [item for item in _listeners if alone and item.collates(collate)]
    if not asking:
        return _fetch(fetcher, index)

    def heard(samples: Any) -> Any:
        for listener in asking:
            listener.collated(samples)
        return collate(samples)

    fetcher.collate_fn = heard
    try:
        return _fetch(fetcher, index)
    finally:
        fetcher.collate_fn = collate
