"""A few numbers of every row of a batch, by which its rows are recognised in another tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Marks", "marks_of"]

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


def marks_of(*content: Any) -> Marks | None:
    """Marks of whatever a loader yields or a model is called with; None where it has no rows."""
    widest: Tensor | None = None
    width = 0
    for tensor in _tensors(content, _DEPTH):
        own = tensor.numel() // (len(tensor) or 1)
        if own > width:
            widest, width = tensor, own
    if widest is None or width < 2:
        # Labels alone say nothing of who they belong to.
        return None
    with torch.no_grad():
        return Marks(_read(widest.detach(), width), width)


def _read(tensor: Tensor, width: int) -> Tensor:
    """Numbers at the same places of every row, however the row is shaped or lies in memory."""
    pieces = _pieces(width)
    if tensor.is_contiguous():
        flat = tensor.view(len(tensor), width)
        return torch.cat([flat[:, begin:end] for begin, end in pieces], dim=1)
    places = np.concatenate([np.arange(begin, end) for begin, end in pieces])
    index: tuple[Any, ...] = np.unravel_index(places, tensor.shape[1:])
    # Picked without a copy of the whole row.
    rows: tuple[Any, ...] = (slice(None), *map(torch.from_numpy, index))
    return tensor[rows]


def _pieces(width: int) -> list[tuple[int, int]]:
    """Where a row is read: at its beginning and behind, a few neighbours each, which lie close."""
    if width <= _READ:
        return [(0, width)]
    size = _READ // 3
    begins = (0, (width - size) // 2, (2 * width) // 3)
    if begins[1] < size or begins[2] < begins[1] + size or width < begins[2] + size:
        return [(0, _READ)]
    return [(begin, begin + size) for begin in begins]


def _tensors(content: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        if content.dim() > 0 and not content.is_complex():
            yield content
    elif depth and isinstance(content, Mapping):
        for value in list(content.values())[:_TENSORS]:
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(content, (list, tuple)):
        for value in content[:_TENSORS]:
            yield from _tensors(value, depth - 1)
