"""The coordinates canaries own, in many tensors, read and written together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askgauss.canaries import BlockCanaries, DiracCanaries

__all__ = ["CanaryCoordinates"]


class CanaryCoordinates:
    """Where the canaries lie in a list of tensors, laid out once for fast access.

    Reading takes one gather a tensor and stays on the device: nothing waits for it before the
    caller moves the result to the host.

    Args:
        tensors: The parameters, in the order of the canaries' flat vector.
        canaries: Who is planted where.
    """

    def __init__(self, tensors: Sequence[Tensor], canaries: DiracCanaries | BlockCanaries) -> None:
        sizes = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
        blocks = canaries.coordinates.reshape(canaries.size, -1)
        places = np.concatenate([blocks.ravel(), canaries.watch])
        owner = np.searchsorted(np.cumsum(sizes), places, side="right")
        local = places - (np.cumsum(sizes) - sizes)[owner]
        order = np.argsort(owner, kind="stable")
        column = np.empty_like(order)
        column[order] = np.arange(order.size)
        self._columns = column[: blocks.size].reshape(blocks.shape)
        self._watch_columns = column[blocks.size :]
        self._owner = owner[: blocks.size].reshape(blocks.shape)
        self._local = local[: blocks.size].reshape(blocks.shape)
        self._signs = canaries.signs if isinstance(canaries, BlockCanaries) else None
        self._parts = [
            (index, torch.from_numpy(local[owner == index]).to(tensors[index].device))
            for index in np.unique(owner).tolist()
        ]
        self._device = tensors[0].device
        self._dtype = (
            torch.float64
            if any(tensor.dtype == torch.float64 for tensor in tensors)
            else torch.float32
        )

    @property
    def width(self) -> int:
        """Number of coordinates of one canary."""
        return int(self._local.shape[1])

    def clipped_apart(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is left along each canary when every tensor clips its own part to its own norm.

        A tensor leaves its clip norm of the part in it; along the canary that counts with the
        root of the share of coordinates the part has.
        """
        counts = np.zeros((len(self._owner), norms.size))
        np.add.at(counts, (np.arange(len(self._owner))[:, None], self._owner), 1.0)
        return np.asarray(np.sqrt(counts / self.width) @ norms)

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """What the tensors hold at every canary's and every watched coordinate, one flat tensor."""
        with torch.no_grad():
            return torch.cat(
                [
                    tensors[index].take(places).to(self._device, self._dtype)
                    for index, places in self._parts
                ]
            )

    def along(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a flat reading, on the host, says about each canary."""
        if self._signs is None:
            return np.asarray(values[self._columns[:, 0]])
        return np.asarray((values[self._columns] * self._signs).sum(axis=1) / np.sqrt(self.width))

    def watched(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A flat reading, on the host, at the watched coordinates."""
        return np.asarray(values[self._watch_columns])

    def plant(
        self, tensors: Sequence[Tensor], planted: NDArray[np.int64], clip_norm: float
    ) -> None:
        """Add the planted canaries, each of norm ``clip_norm``, to the tensors in place."""
        height = clip_norm / np.sqrt(self.width)
        with torch.no_grad():
            for index, _, places, signs in self._by_tensor(planted):
                tensor = tensors[index]
                values = (signs * height).to(tensor.device, tensor.dtype)
                tensor.put_(places.to(tensor.device), values, accumulate=True)

    def fill_rows(self, rows: Sequence[Tensor], planted: NDArray[np.int64], height: float) -> None:
        """Write each planted canary into a row of its own: ``height`` at all its coordinates."""
        with torch.no_grad():
            for index, row, places, signs in self._by_tensor(planted):
                tensor = rows[index]
                flat = row * (tensor.numel() // len(tensor)) + places
                tensor.put_(
                    flat.to(tensor.device), (signs * height).to(tensor.device, tensor.dtype)
                )

    def _by_tensor(
        self, planted: NDArray[np.int64]
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Tensor index, and for its coordinates: position in ``planted``, place, sign."""
        if planted.size == 0:
            return
        owner = self._owner[planted].ravel()
        order = np.argsort(owner, kind="stable")
        owner = owner[order]
        row = torch.from_numpy(order // self.width).to(self._device)
        places = torch.from_numpy(self._local[planted].ravel()[order]).to(self._device)
        if self._signs is None:
            signs = torch.ones(order.size, dtype=torch.float64, device=self._device)
        else:
            signs = torch.from_numpy(self._signs[planted].ravel()[order]).to(self._device)
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], owner.size], strict=True):
            part = slice(int(start), int(stop))
            yield int(owner[start]), row[part], places[part], signs[part]
