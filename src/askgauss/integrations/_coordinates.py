"""The coordinates canaries own, in many tensors, read and written together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        self._edges = np.concatenate([[0], np.cumsum(sizes)])
        # One coordinate a canary, or one row of them.
        self._owned = canaries.coordinates
        self._signs = canaries.signs if isinstance(canaries, BlockCanaries) else None
        places = np.concatenate([self._owned.ravel(), canaries.watch])
        order = np.argsort(places)
        column = np.empty_like(order)
        column[order] = np.arange(order.size)
        self._columns = column[: self._owned.size].reshape(self._owned.shape)
        self._watch_columns = column[self._owned.size :]
        counts, local = self._by_tensor(places[order])
        parts = torch.from_numpy(local).split_with_sizes(counts)
        self._parts = [
            (index, part.to(tensors[index].device)) for index, part in enumerate(parts) if len(part)
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
        return 1 if self._signs is None else int(self._signs.shape[1])

    def clipped_apart(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is left along each canary when every tensor clips its own part to its own norm.

        A tensor leaves its clip norm of the part in it; along the canary that counts with the
        root of the share of coordinates the part has.
        """
        owner = np.searchsorted(self._edges, self._owned, side="right") - 1
        counts = np.zeros((len(owner), norms.size))
        np.add.at(counts, (np.arange(len(owner))[:, None], owner.reshape(len(owner), -1)), 1.0)
        return np.asarray(np.sqrt(counts / self.width) @ norms)

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """What the tensors hold at every canary's and every watched coordinate, one flat tensor."""
        return torch.cat(
            [
                tensors[index].detach().take(places).to(self._device, self._dtype)
                for index, places in self._parts
            ]
        )

    def along(self, values: NDArray[Any]) -> NDArray[Any]:
        """What a flat reading, on the host, says about each canary."""
        if self._signs is None:
            return np.asarray(values[self._columns])
        return np.asarray((values[self._columns] * self._signs).sum(axis=1) / np.sqrt(self.width))

    def watched(self, values: NDArray[Any]) -> NDArray[Any]:
        """A flat reading, on the host, at the watched coordinates."""
        return np.asarray(values[self._watch_columns])

    def plant(
        self, tensors: Sequence[Tensor], planted: NDArray[np.int64], clip_norm: float
    ) -> None:
        """Add the planted canaries, each of norm ``clip_norm``, to the tensors in place."""
        counts, _, places, heights = self._spread(planted, clip_norm / np.sqrt(self.width))
        for tensor, count, where, what in zip(tensors, counts, places, heights, strict=True):
            if count:
                value = what.to(tensor.device, tensor.dtype)
                tensor.detach().put_(where.to(tensor.device), value, accumulate=True)

    def fill_rows(self, rows: Sequence[Tensor], planted: NDArray[np.int64], height: float) -> None:
        """Write each planted canary into a row of its own: ``height`` at all its coordinates."""
        counts, order, places, heights = self._spread(planted, height)
        which = torch.from_numpy(order // self.width).to(self._device).split_with_sizes(counts)
        for tensor, row, where, what in zip(rows, which, places, heights, strict=True):
            flat = (row * (tensor.numel() // len(tensor)) + where).to(tensor.device)
            tensor.put_(flat, what.to(tensor.device, tensor.dtype))

    def _spread(
        self, planted: NDArray[np.int64], height: float
    ) -> tuple[list[int], NDArray[np.int64], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The coordinates of the planted canaries, tensor by tensor.

        Returns:
            How many each tensor has, the order that sorts them, their places in the tensors, and
            ``height`` with their signs. The last two go to the device in one copy each.
        """
        owned = self._owned[planted].ravel()
        order = np.argsort(owned)
        counts, local = self._by_tensor(owned[order])
        places = torch.from_numpy(local).to(self._device)
        if self._signs is None:
            heights = torch.full((order.size,), height, dtype=self._dtype, device=self._device)
        else:
            signed = torch.from_numpy(height * self._signs[planted].ravel()[order])
            heights = signed.to(self._device, self._dtype)
        return counts, order, places.split_with_sizes(counts), heights.split_with_sizes(counts)

    def _by_tensor(self, ascending: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
        """How many of these flat coordinates each tensor has, and where in it they are."""
        bounds = np.searchsorted(ascending, self._edges)
        counts = bounds[1:] - bounds[:-1]
        return counts.tolist(), ascending - np.repeat(self._edges[:-1], counts)
