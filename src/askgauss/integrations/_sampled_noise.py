"""All noise of an Opacus step, sampled by content: what is released less the clipped sum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.integrations._opacus_run import clipped_sum
from askgauss.integrations._shards import local
from askgauss.witness import ReuseFacts
from askgauss.witness.noise_sample import CENTRE, WIDTH, NoiseSample

__all__ = ["SampledNoise"]

# Values that are looked at together: few enough to stay in the processor's cache.
_TOGETHER = 1 << 18
_CALIBRATED = 4096
# Noise in shorter formats has equal values by chance.
_FORMATS = (torch.float32, torch.float64)
_SIDE = WIDTH // 2
_OFFSETS = np.arange(-_SIDE, _SIDE + 1)


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of one tensor."""

    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranges that follow each other in the model and are looked at together.

    Attributes:
        parts: The ranges.
        place: Where the first of them begins in the noise of a step.
        size: Values of all.
        leads: Middles of the windows that lead a tensor.
    """

    parts: tuple[_Part, ...]
    place: int
    size: int
    leads: NDArray[np.int64]


class SampledNoise:
    """Looks at all noise that this process adds, whether any of it was used before.

    Args:
        optimizer: The private optimizer.
        parameters: Those that are audited, in order.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._sample = NoiseSample([item.numel() for item in parameters])
        self._whole = _grouped(range(len(parameters)), parameters)
        # The noise of a group, and what is computed of it: memory that is new costs more than both.
        self._room = torch.zeros(0)
        self._off, self._near = np.zeros(0), np.zeros(0, np.bool_)
        # Copies of the sums, where noise is added to the sums themselves.
        self._in_place = False
        self._clean: dict[int, torch.Tensor] = {}

    @property
    def facts(self) -> ReuseFacts | None:
        """What was found; None where no noise was looked at."""
        facts = self._sample.facts()
        return facts if facts.values else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        return self._sample.arrays()

    def load(self, arrays: dict[str, Any]) -> None:
        """Resume from `arrays`."""
        self._sample.load(arrays)

    def before(self, indices: Iterable[int] | None = None) -> None:
        """Noise is about to be added to these sums, or to all."""
        if not self._in_place:
            return
        for index in range(len(self._parameters)) if indices is None else indices:
            kept = clipped_sum(self._optimizer, self._parameters[index])
            if kept is not None:
                self._clean[index] = local(kept).detach().clone()

    def after(self, step: int, deviation: float, indices: Sequence[int] | None = None) -> None:
        """Noise was added.

        Args:
            step: Number of the step.
            deviation: What is stated for the noise.
            indices: The parameters it was added to; all, if not given.
        """
        if not 0.0 < deviation < float("inf"):
            return
        given = range(len(self._parameters)) if indices is None else indices
        # Opacus leaves what a parameter had when it was frozen: an old sum, and no noise.
        noisy = [index for index in given if self._parameters[index].requires_grad]
        whole = len(noisy) == len(self._parameters)
        groups = self._whole if whole else _grouped(noisy, self._parameters)
        values, moved = 0, False
        for group in groups:
            noise = self._noise(group)
            if noise is None:
                continue
            if self._sample.scale is None:
                first = noise[:_CALIBRATED].double().cpu().numpy()
                self._sample.calibrate(np.abs(first) / deviation)
            values += noise.numel()
            if self._sample.scale is not None:
                moved = True
                self._keep(group, noise, step, deviation)
        self._sample.saw(values if moved else 0)
        # A sum that is what was released had its noise added in place: copy it from now on.
        self._in_place = self._in_place or (values > 0 and not moved)
        self._clean = {}

    def _noise(self, group: _Group) -> torch.Tensor | None:
        released, clean = [], []
        for part in group.parts:
            parameter = self._parameters[part.tensor]
            kept = self._clean.get(part.tensor)
            kept = clipped_sum(self._optimizer, parameter) if kept is None else kept
            if parameter.grad is None or kept is None or parameter.grad.dtype not in _FORMATS:
                return None
            released.append(local(parameter.grad))
            clean.append(local(kept))
        noise, at = self._room_for(group, released[0]), 0
        with torch.no_grad():
            for part, *both in zip(group.parts, released, clean, strict=True):
                one, other = (item.reshape(-1) for item in both)
                if part.size < one.numel():
                    one, other = one[part.start : part.stop], other[part.start : part.stop]
                torch.sub(one, other, out=noise[at : at + part.size])
                at += part.size
        return noise

    def _room_for(self, group: _Group, like: torch.Tensor) -> torch.Tensor:
        room = self._room
        if room.numel() < group.size or room.dtype != like.dtype or room.device != like.device:
            room = self._room = torch.empty(group.size, dtype=like.dtype, device=like.device)
            on_host = room.device.type == "cpu"
            self._off = np.empty_like(room.numpy()) if on_host else np.zeros(0)
            self._near = np.empty(self._off.shape, np.bool_)
        return room[: group.size]

    def _keep(self, group: _Group, noise: torch.Tensor, step: int, deviation: float) -> None:
        if group.size < WIDTH:
            return
        unit = deviation * (self._sample.scale or 1.0)
        look = self._on_host if noise.device.type == "cpu" else self._on_device
        windows, middle = look(group, noise, CENTRE * unit, self._sample.half * unit)
        place, leads = middle + group.place, group.leads.size
        self._sample.add(windows, step=step, place=place, leads=leads, unit=deviation)

    def _on_host(
        self, group: _Group, noise: torch.Tensor, centre: float, half: float
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Windows and their middles, with numpy: torch takes several times as long to find them."""
        sizes, off, near = noise.numpy(), self._off[: group.size], self._near[: group.size]
        np.abs(sizes, out=sizes)
        np.abs(np.subtract(sizes, centre, out=off), out=off)
        np.less_equal(off, half, out=near)
        near[:_SIDE] = near[-_SIDE:] = False
        middle = np.concatenate([group.leads, np.flatnonzero(near)])
        return sizes[middle[:, None] + _OFFSETS], middle

    def _on_device(
        self, group: _Group, noise: torch.Tensor, centre: float, half: float
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The same where the noise is: only the windows are copied."""
        sizes = noise.abs_()
        off = sizes[_SIDE:-_SIDE].sub(centre).abs_()
        found = torch.nonzero(off <= half).squeeze(1) + _SIDE
        middle = torch.cat([torch.from_numpy(group.leads).to(found.device), found])
        offsets = torch.from_numpy(_OFFSETS).to(found.device)
        return sizes[middle[:, None] + offsets].cpu().numpy(), middle.cpu().numpy()


def _grouped(indices: Iterable[int], parameters: Sequence[torch.nn.Parameter]) -> list[_Group]:
    """Ranges of tensors, put together to about the same number of values."""
    begin = np.cumsum([0, *(item.numel() for item in parameters)]).tolist()
    groups: list[list[_Part]] = []
    last: tuple[Any, ...] = ()
    room = 0
    for index in indices:
        tensor = local(parameters[index])
        for start in range(0, tensor.numel(), _TOGETHER):
            part = _Part(index, start, min(tensor.numel(), start + _TOGETHER))
            if last != (begin[index] + start, tensor.device, tensor.dtype) or room < part.size:
                groups.append([])
                room = _TOGETHER
            groups[-1].append(part)
            room -= part.size
            last = (begin[index] + part.stop, tensor.device, tensor.dtype)
    return [_group(parts, begin) for parts in groups]


def _group(parts: Sequence[_Part], begin: Sequence[int]) -> _Group:
    starts = np.cumsum([0, *(part.size for part in parts)])
    leads = [
        start + _SIDE
        for start, part in zip(starts.tolist(), parts, strict=False)
        if part.start == 0 and part.stop >= WIDTH
    ]
    return _Group(
        tuple(parts),
        begin[parts[0].tensor] + parts[0].start,
        int(starts[-1]),
        np.array(leads, dtype=np.int64),
    )
