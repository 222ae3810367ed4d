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


@dataclass(frozen=True, slots=True)
class _Part:
    """A range of one tensor."""

    tensor: int
    start: int
    stop: int


class SampledNoise:
    """Looks at all noise that this process adds, whether any of it was used before.

    Args:
        optimizer: The private optimizer.
        parameters: Those that are audited, in order.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._sample = NoiseSample(sum(item.numel() for item in parameters))
        self._whole = _grouped(range(len(parameters)), parameters)
        self._offsets = torch.arange(-_SIDE, _SIDE + 1, device=local(parameters[0]).device)
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

    def _noise(self, group: Sequence[_Part]) -> torch.Tensor | None:
        released, clean = [], []
        for part in group:
            parameter = self._parameters[part.tensor]
            kept = self._clean.get(part.tensor)
            kept = clipped_sum(self._optimizer, parameter) if kept is None else kept
            if parameter.grad is None or kept is None or parameter.grad.dtype not in _FORMATS:
                return None
            released.append(local(parameter.grad).reshape(-1)[part.start : part.stop])
            clean.append(local(kept).reshape(-1)[part.start : part.stop])
        if len(group) == 1:
            return (released[0] - clean[0]).detach()
        return (torch.cat(released) - torch.cat(clean)).detach()

    def _keep(
        self, group: Sequence[_Part], noise: torch.Tensor, step: int, deviation: float
    ) -> None:
        if noise.numel() < WIDTH:
            return
        unit = deviation * (self._sample.scale or 1.0)
        off = noise.abs().sub_(CENTRE * unit).abs_()
        inner = off[_SIDE : noise.numel() - _SIDE]
        middle = torch.nonzero(inner <= self._sample.half * unit).squeeze(1) + _SIDE
        starts = np.cumsum([0, *(part.stop - part.start for part in group)])
        lead = [
            int(start) + _SIDE
            for start, part in zip(starts, group, strict=False)
            if part.start == 0 and part.stop >= WIDTH
        ]
        if lead:
            middle = torch.cat([torch.tensor(lead, device=middle.device), middle])
        windows = noise[middle[:, None] + self._offsets].double().abs_().cpu().numpy()
        at = middle.cpu().numpy()
        which = np.searchsorted(starts, at, side="right") - 1
        begin = np.array([part.start for part in group])
        self._sample.add(
            windows / deviation,
            step=step,
            tensor=np.array([part.tensor for part in group])[which],
            place=at - starts[which] + begin[which],
            lead=np.arange(at.size) < len(lead),
        )


def _grouped(
    indices: Iterable[int], parameters: Sequence[torch.nn.Parameter]
) -> list[tuple[_Part, ...]]:
    """Ranges of tensors, put together to about the same number of values."""
    groups: list[tuple[_Part, ...]] = []
    group: list[_Part] = []
    room = _TOGETHER
    for index in indices:
        size = local(parameters[index]).numel()
        for start in range(0, size, _TOGETHER):
            part = _Part(index, start, min(size, start + _TOGETHER))
            if group and room < part.stop - part.start:
                groups.append(tuple(group))
                group, room = [], _TOGETHER
            group.append(part)
            room -= part.stop - part.start
    return [*groups, tuple(group)] if group else groups
