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
from askgauss.recording.injection import Layout

__all__ = ["CanaryCoordinates"]


class CanaryCoordinates:
    """Where the canaries lie in a list of tensors, laid out once for fast access.

    Reading takes one gather a tensor and stays on the device: nothing waits for it before the
    caller moves the result to the host.

    Args:
        tensors: The parameters, in the order of the canaries' flat vector.
        canaries: The canaries.
    """

    # Whether reading is a call that every rank has to make.
    collective = False

    def __init__(self, tensors: Sequence[Tensor], canaries: DiracCanaries | BlockCanaries) -> None:
        sizes = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
        self._layout = layout = Layout(sizes, canaries)
        self._devices = [tensor.device for tensor in tensors]
        self._read_places = self._on_devices(layout.read_places)
        self._insert_places = self._on_devices(layout.plant_places)
        self._insert_counts = [len(part) for _, part in self._insert_places]
        self._dtype = (
            torch.float64
            if any(tensor.dtype == torch.float64 for tensor in tensors)
            else torch.float32
        )
        self._on_host = all(device.type == "cpu" for device in self._devices)
        ends = np.cumsum([0, *(len(local) for _, local in layout.read_places)]).tolist()
        self._reads = [
            (index, local, slice(*pair))
            for (index, local), pair in zip(
                layout.read_places, itertools.pairwise(ends), strict=True
            )
        ]
        self._read_size = ends[-1]
        self._heights = torch.zeros(layout.plantable, dtype=self._dtype)

    def _on_devices(
        self, places: Sequence[tuple[int, NDArray[np.int64]]]
    ) -> list[tuple[int, Tensor]]:
        return [
            (index, torch.from_numpy(local).to(self._devices[index])) for index, local in places
        ]

    @property
    def dtype(self) -> torch.dtype:
        """The numbers of a reading."""
        return self._dtype

    @property
    def width(self) -> int:
        """Number of coordinates of one canary."""
        return self._layout.width

    @property
    def places(self) -> list[tuple[int, Tensor]]:
        """Index and positions of every tensor that is read, in the order of a reading."""
        return self._read_places

    def clipped_apart(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is left along each canary when every tensor clips its own part to its own norm.

        A tensor leaves its clip norm of the part in it; along the canary that counts with the
        root of the share of coordinates the part has.
        """
        owner = np.searchsorted(self._layout.edges, self._layout.owned, side="right") - 1
        counts = np.zeros((len(owner), norms.size))
        np.add.at(counts, (np.arange(len(owner))[:, None], owner.reshape(len(owner), -1)), 1.0)
        return np.asarray(np.sqrt(counts / self.width) @ norms)

    def parameter(self, index: int) -> int:
        """The parameter that a tensor of `places` is of."""
        return index

    def taken(self, number: int, tensor: Tensor) -> Tensor:
        """What a tensor like the one of the given place holds there."""
        return tensor.detach().take(self._read_places[number][1])

    def _held(self, tensors: Sequence[Tensor], index: int) -> Tensor | None:
        """A tensor to write to; None where another rank holds it."""
        return tensors[index].detach()

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """What the tensors hold at every canary's and every watched coordinate, one flat tensor."""
        values = self._read_on_host(tensors) if self._on_host else None
        if values is not None:
            return values
        first = self._devices[0]
        parts = [
            tensors[index].detach().take(places).to(first) for index, places in self._read_places
        ]
        return torch.cat(parts).to(self._dtype)

    def _read_on_host(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The same with numpy's gather, which takes a third of the time for few numbers.

        None where a tensor is of another number format.
        """
        read = torch.empty(self._read_size, dtype=self._dtype)
        values = read.numpy()
        for index, places, part in self._reads:
            tensor = tensors[index]
            if tensor.dtype is not self._dtype:
                return None
            tensor.detach().numpy().reshape(-1).take(places, out=values[part], mode="clip")
        return read

    def along(self, values: NDArray[Any]) -> NDArray[Any]:
        """What a flat reading, on the host, says about each canary."""
        return np.asarray(self._layout.along(values))

    def watched(self, values: NDArray[Any]) -> NDArray[Any]:
        """A flat reading, on the host, at the watched coordinates."""
        return np.asarray(self._layout.watched(values))

    def insert(
        self,
        tensors: Sequence[Tensor],
        included: NDArray[np.int64],
        clip_norm: float,
        only: int | None = None,
    ) -> None:
        """Add canaries, each of norm ``clip_norm``, to the tensors in place.

        Args:
            tensors: The tensors.
            included: Indices of the canaries.
            clip_norm: The norm of each.
            only: Index of the one tensor to change; None for all.
        """
        layout = self._layout
        ranks, height = layout.ranks[included], clip_norm / np.sqrt(self.width)
        # Those that are not included now get a zero: no sorting, and one copy to the device.
        heights = self._heights.numpy()
        heights[ranks] = height if layout.signs is None else height * layout.signs[included]
        parts = self._heights.to(self._devices[0]).split_with_sizes(self._insert_counts)
        for (index, places), part in zip(self._insert_places, parts, strict=True):
            tensor = None if only not in (None, index) else self._held(tensors, index)
            if tensor is not None:
                tensor.put_(places, part.to(tensor.device, tensor.dtype), accumulate=True)
        heights[ranks] = 0.0

    def fill_rows(self, rows: Sequence[Tensor], included: NDArray[np.int64], height: float) -> None:
        """Write each canary into a separate row: ``height`` at all its coordinates."""
        layout = self._layout
        owned = layout.owned[included].reshape(included.size, -1)
        values = np.full(owned.shape, height)
        if layout.signs is not None:
            values *= layout.signs[included]
        owner = np.searchsorted(layout.edges, owned, side="right") - 1
        for index in np.unique(owner).tolist():
            here = owner == index
            tensor = rows[index]
            size = tensor[0].numel()
            places = np.nonzero(here)[0] * size + owned[here] - layout.edges[index]
            heights = torch.from_numpy(values[here]).to(tensor.device, tensor.dtype)
            tensor.put_(torch.from_numpy(places).to(tensor.device), heights)
