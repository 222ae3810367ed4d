"""The coordinates canaries own, in many tensors, read and written together."""

from __future__ import annotations

import itertools
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
        self._devices = [tensor.device for tensor in tensors]
        # One coordinate a canary, or one row of them.
        self._owned = canaries.coordinates
        self._signs = canaries.signs if isinstance(canaries, BlockCanaries) else None
        columns, self._read_places = self._lay_out(
            np.concatenate([self._owned.ravel(), canaries.watch])
        )
        self._columns = columns[: self._owned.size].reshape(self._owned.shape)
        self._watch_columns = columns[self._owned.size :]
        present = np.flatnonzero(canaries.member)
        ranks, self._plant_places = self._lay_out(self._owned[present].ravel())
        self._plant_counts = [len(part) for _, part in self._plant_places]
        # Where a present canary's coordinates come among all that may be planted.
        self._ranks = np.full(self._owned.shape, -1)
        self._ranks[present] = ranks.reshape(self._owned[present].shape)
        self._dtype = (
            torch.float64
            if any(tensor.dtype == torch.float64 for tensor in tensors)
            else torch.float32
        )
        self._heights = torch.zeros(ranks.size, dtype=self._dtype)

    def _lay_out(
        self, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[tuple[int, Tensor]]]:
        """Flat coordinates sorted by tensor: the rank of each, and the tensors' indices of them."""
        order = np.argsort(places)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(order.size)
        bounds = np.searchsorted(places[order], self._edges)
        parts = [
            (index, places[order[start:stop]] - self._edges[index])
            for index, (start, stop) in enumerate(itertools.pairwise(bounds))
            if stop > start
        ]
        return ranks, [
            (index, torch.from_numpy(local).to(self._devices[index])) for index, local in parts
        ]

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
        first = self._devices[0]
        parts = [tensors[index].take(places).to(first) for index, places in self._read_places]
        return torch.cat(parts).detach().to(self._dtype)

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
        ranks, height = self._ranks[planted], clip_norm / np.sqrt(self.width)
        # Those that are not planted now get a zero: no sorting, and one copy to the device.
        heights = self._heights.numpy()
        heights[ranks] = height if self._signs is None else height * self._signs[planted]
        parts = self._heights.to(self._devices[0]).split_with_sizes(self._plant_counts)
        for (index, places), part in zip(self._plant_places, parts, strict=True):
            tensor = tensors[index].detach()
            tensor.put_(places, part.to(tensor.device, tensor.dtype), accumulate=True)
        heights[ranks] = 0.0

    def fill_rows(self, rows: Sequence[Tensor], planted: NDArray[np.int64], height: float) -> None:
        """Write each planted canary into a row of its own: ``height`` at all its coordinates."""
        for row, canary in enumerate(planted):
            owned = np.atleast_1d(self._owned[canary])
            signs = np.ones(1) if self._signs is None else self._signs[canary]
            owner = np.searchsorted(self._edges, owned, side="right") - 1
            for index in np.unique(owner).tolist():
                here = owner == index
                places = torch.from_numpy(owned[here] - self._edges[index])
                values = torch.from_numpy(height * signs[here])
                tensor = rows[index][row]
                tensor.put_(places.to(tensor.device), values.to(tensor.device, tensor.dtype))
