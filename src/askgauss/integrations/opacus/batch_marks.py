"""A few numbers of every row of a batch, by which its rows are recognised in another tensor."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Content", "Marks", "content_of"]

# Numbers that are read of each row.
_READ = 24
# Tensors of a batch that are looked at, and how deep they may be nested.
_TENSORS = 8
_DEPTH = 3
_FACTORS = np.random.default_rng(0).integers(1, 1 << 62, _READ, dtype=np.int64) | 1


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

    def hashes(self, like: Marks | None = None) -> NDArray[np.int64]:
        """One number a row, as if the rows had been converted to the number format of ``like``."""
        values = self.values if like is None else self.values.to(like.values.dtype)
        numbers = values.to(torch.float64).cpu().numpy() + 0.0
        with np.errstate(over="ignore"):
            bits: NDArray[np.int64] = numbers.view(np.int64)
            mixed = (bits ^ (bits >> 29)) * _FACTORS[: bits.shape[1]]
            return np.asarray((mixed ^ (mixed >> 31)).sum(axis=1))


class Content:
    """The widest tensor of a batch, whose marks are read if anybody asks.

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
