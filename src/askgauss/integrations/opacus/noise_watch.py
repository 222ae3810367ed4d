"""The noise of an Opacus run: whether any is used again, or comes from a common seed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.checks.noise_reuse import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.integrations.opacus.private_step import AddedNoise, Observer
from askgauss.integrations.opacus.ranks import local
from askgauss.integrations.opacus.run_description import TrainingRun, clipped_sum
from askgauss.recording.facts import SeedProbe
from askgauss.recording.noise_sample import CENTRE, WIDTH, NoiseSample
from askgauss.recording.transcript import Transcript

__all__ = ["FirstNoise", "SampledNoise", "probe_first_noise"]

# Values that are looked at together: few enough to stay in the processor's cache.
_TOGETHER = 1 << 18
_CALIBRATED = 4096
# Noise in shorter formats has equal values by chance.
_FORMATS = (torch.float32, torch.float64)
_SIDE = WIDTH // 2
_OFFSETS = np.arange(-_SIDE, _SIDE + 1)


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of one tensor, and whether it is all of it."""

    tensor: int
    start: int
    stop: int
    whole: bool

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranges that follow each other in the model and are looked at together.

    Attributes:
        parts: The ranges.
        place: Where the first of them begins in the noise of a step.
        sizes: Values of each.
        size: Values of all.
        leads: Middles of the windows that lead a tensor.
    """

    parts: tuple[_Range, ...]
    place: int
    sizes: list[int]
    size: int
    leads: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _NoiseBuffer:
    """Where the noise of a group is put, and what is computed of it.

    Attributes:
        group: The group.
        noise: All of it.
        parts: The same by range.
        sizes: The same for numpy; None where it is on another device.
        near: Which values are kept.
        below: Which are not too large.
    """

    group: _Group
    noise: torch.Tensor
    parts: list[torch.Tensor]
    sizes: NDArray[Any] | None
    near: NDArray[np.bool_]
    below: NDArray[np.bool_]


class SampledNoise(Observer):
    """Samples all noise that this process adds, to find any that was used before.

    Args:
        run: The training.
    """

    def __init__(self, run: TrainingRun) -> None:
        parameters = run.parameters
        self._optimizer, self._parameters, self._count = run.optimizer, parameters, run.count
        self._samples = run.rank == 0
        self._sample = NoiseSample([item.numel() for item in parameters])
        self._whole = _grouped(range(len(parameters)), parameters)
        self._noise_values, self._near = torch.zeros(0), np.zeros((2, 0), np.bool_)
        self._buffers: dict[int, _NoiseBuffer] = {}
        # Copies of the sums, where noise is added to the sums themselves.
        self._in_place = False
        self._clean: dict[int, torch.Tensor] = {}

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What was found; None where no noise was sampled."""
        facts = self._sample.facts()
        return {"reuse": facts if facts.values else None}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        return self._sample.arrays()

    def load(self, state: None, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._sample.load(dict(arrays))

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """Copy sums that get their noise in place."""
        if not self._in_place:
            return
        for index in range(len(self._parameters)) if tensors is None else tensors:
            kept = clipped_sum(self._optimizer, self._parameters[index])
            if kept is not None:
                self._clean[index] = local(kept).detach().clone()

    def after_noise(self, noise: AddedNoise) -> None:
        """Sample the noise."""
        if not self._samples:
            return
        step, deviation, indices = self._count.recorded, noise.deviation, noise.tensors
        if not 0.0 < deviation < float("inf"):
            return
        groups = self._whole
        if indices is not None or not all(item.requires_grad for item in self._parameters):
            given = range(len(self._parameters)) if indices is None else indices
            # Opacus leaves what a parameter had when it was frozen: an old sum, and no noise.
            noisy = [index for index in given if self._parameters[index].requires_grad]
            groups = _grouped(noisy, self._parameters)
        values, moved = 0, False
        for group in groups:
            buffer = self._noise(group)
            if buffer is None:
                continue
            if self._sample.scale is None:
                first = buffer.noise[:_CALIBRATED].double().cpu().numpy()
                self._sample.calibrate(np.abs(first) / deviation)
            values += group.size
            if self._sample.scale is not None:
                moved = True
                self._keep(buffer, step, deviation)
        self._sample.saw(values if moved else 0)
        # A sum that is what was released had its noise added in place: copy it from now on.
        self._in_place = self._in_place or (values > 0 and not moved)
        self._clean = {}

    def _noise(self, group: _Group) -> _NoiseBuffer | None:
        pairs = []
        for part in group.parts:
            parameter = self._parameters[part.tensor]
            grad, kept = parameter.grad, self._clean.get(part.tensor)
            kept = clipped_sum(self._optimizer, parameter) if kept is None else kept
            if grad is None or kept is None or grad.dtype not in _FORMATS:
                return None
            one, other = local(grad), local(kept)
            if not part.whole or one.shape != other.shape:
                one, other = (item.reshape(-1)[part.start : part.stop] for item in (one, other))
            pairs.append((one, other))
        buffer = self._buffer_for(group, pairs[0][0])
        with torch.no_grad():
            for (one, other), here in zip(pairs, buffer.parts, strict=True):
                torch.sub(one, other, out=here if here.shape == one.shape else here.view(-1))
        return buffer

    def _buffer_for(self, group: _Group, like: torch.Tensor) -> _NoiseBuffer:
        """Room that is used again in every step: new memory costs more than what is done in it."""
        noise = self._noise_values
        same = noise.is_cpu if like.is_cpu else noise.device == like.device
        if not same or noise.dtype is not like.dtype or noise.numel() < group.size:
            size = max(group.size, noise.numel())
            noise = self._noise_values = torch.empty(size, dtype=like.dtype, device=like.device)
            self._near = np.empty((2, size), np.bool_)
            self._buffers = {}
        buffer = self._buffers.get(group.place)
        if buffer is None or buffer.group is not group:
            noise = noise[: group.size]
            shapes = [self._shape(part) for part in group.parts]
            buffer = self._buffers[group.place] = _NoiseBuffer(
                group,
                noise,
                [
                    item.view(shape)
                    for item, shape in zip(noise.split_with_sizes(group.sizes), shapes, strict=True)
                ],
                noise.numpy() if noise.is_cpu else None,
                self._near[0, : group.size],
                self._near[1, : group.size],
            )
        return buffer

    def _shape(self, part: _Range) -> torch.Size:
        whole = local(self._parameters[part.tensor]).shape
        return whole if part.whole else torch.Size([part.size])

    def _keep(self, buffer: _NoiseBuffer, step: int, deviation: float) -> None:
        group = buffer.group
        if group.size < WIDTH:
            return
        unit = deviation * (self._sample.scale or 1.0)
        low, high = ((CENTRE + sign * self._sample.half) * unit for sign in (-1.0, 1.0))
        windows, middle = (
            _on_device(buffer, low, high) if buffer.sizes is None else _on_host(buffer, low, high)
        )
        place, leads = middle + group.place, group.leads.size
        self._sample.add(windows, step=step, place=place, leads=leads, unit=deviation)


def _on_host(
    buffer: _NoiseBuffer, low: float, high: float
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Windows and their middles, with numpy: torch takes several times as long to find them."""
    sizes, near = buffer.sizes, buffer.near
    assert sizes is not None
    np.abs(sizes, out=sizes)
    np.greater_equal(sizes, low, out=near)
    near &= np.less_equal(sizes, high, out=buffer.below)
    near[:_SIDE] = near[-_SIDE:] = False
    middle = np.concatenate([buffer.group.leads, np.flatnonzero(near)])
    return sizes[middle[:, None] + _OFFSETS], middle


def _on_device(
    buffer: _NoiseBuffer, low: float, high: float
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The same where the noise is: only the windows are copied."""
    sizes = buffer.noise.abs_()
    inner = sizes[_SIDE:-_SIDE]
    found = torch.nonzero((inner >= low) & (inner <= high)).squeeze(1) + _SIDE
    middle = torch.cat([torch.from_numpy(buffer.group.leads).to(found.device), found])
    offsets = torch.from_numpy(_OFFSETS).to(found.device)
    return sizes[middle[:, None] + offsets].cpu().numpy(), middle.cpu().numpy()


def _grouped(indices: Iterable[int], parameters: Sequence[torch.nn.Parameter]) -> list[_Group]:
    """Ranges of tensors, put together to about the same number of values."""
    begin = np.cumsum([0, *(item.numel() for item in parameters)]).tolist()
    groups: list[list[_Range]] = []
    last: tuple[Any, ...] = ()
    left = 0
    for index in indices:
        tensor = local(parameters[index])
        for start in range(0, tensor.numel(), _TOGETHER):
            stop = min(tensor.numel(), start + _TOGETHER)
            part = _Range(index, start, stop, stop - start == tensor.numel())
            if last != (begin[index] + start, tensor.device, tensor.dtype) or left < part.size:
                groups.append([])
                left = _TOGETHER
            groups[-1].append(part)
            left -= part.size
            last = (begin[index] + part.stop, tensor.device, tensor.dtype)
    return [_group(parts, begin) for parts in groups]


def _group(parts: Sequence[_Range], begin: Sequence[int]) -> _Group:
    sizes = [part.size for part in parts]
    starts = np.cumsum([0, *sizes])
    leads = [
        start + _SIDE
        for start, part in zip(starts.tolist(), parts, strict=False)
        if part.start == 0 and part.stop >= WIDTH
    ]
    return _Group(
        tuple(parts),
        begin[parts[0].tensor] + parts[0].start,
        sizes,
        int(starts[-1]),
        np.array(leads, dtype=np.int64),
    )


# Numbers compared, and the largest tensor that is drawn whole. Of a larger one torch draws the
# beginning first, whatever follows.
_COMPARED = 64
_WHOLE = 4096
# What a torch.Generator starts from that nobody has seeded.
_UNSEEDED = 67280421310721
# Records of a loader whose draws are repeated for every seed.
_MOST_RECORDS = 1 << 15
# A seed of the process with more digits than a date was drawn, not chosen by hand.
_CHOSEN = 10**8


class FirstNoise(Observer):
    """Tries common seeds on the first noise of a process.

    Args:
        run: The training.
    """

    key = "first_noise"
    state_type = SeedProbe | None

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._found: SeedProbe | None = None
        self._probed = run.rank != 0

    def after_noise(self, noise: AddedNoise) -> None:
        """The first noise after every restart: another process has another generator."""
        if self._probed or noise.tensors is not None:
            return
        self._probed = True
        optimizer = self._run.optimizer
        found = probe_first_noise(optimizer.params, optimizer, self._run.records)
        if self._found is None or found.found:
            self._found = found

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """Whether a seed was found."""
        return {"seed_probe": self._found}

    def state(self) -> SeedProbe | None:
        """What to resume from."""
        return self._found

    def load(self, state: SeedProbe | None, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._found, self._probed = state, self._run.rank != 0


def probe_first_noise(
    parameters: Sequence[torch.nn.Parameter],
    optimizer: Any = None,
    records: int | None = None,
) -> SeedProbe:
    """Try the likely seeds on the noise that was just added.

    Args:
        parameters: The parameters in the order their noise is drawn, with the clean sum and the
            noisy one. Of those that ranks share out, the first rank holds what is drawn first.
        optimizer: The private optimizer, where it may keep the sums itself.
        records: Records the loader draws from, where that is known.
    """
    first: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if sum(item.numel() for item in first) < FEWEST:
            first.append(parameter)
    noise = [
        (local(item.grad) - local(clipped_sum(optimizer, item))).flatten()[:_COMPARED]
        for item in first
    ]
    chosen = [seed for seed in [torch.initial_seed()] if seed < _CHOSEN]
    own = [_UNSEEDED, *chosen]
    values = torch.cat([part.detach().double().cpu() for part in noise]).numpy()
    held = [len(part) for part in noise]
    found = try_seeds(values, _candidates(first, held, likely_seeds(own), records))
    return replace(found, seeded=bool(chosen) and getattr(optimizer, "generator", None) is None)


def _candidates(
    first: Sequence[torch.nn.Parameter],
    held: Sequence[int],
    seeds: NDArray[np.int64],
    records: int | None,
) -> Iterator[Candidates]:
    generator = torch.Generator(device=first[0].device)

    def drawn(
        seed: int, before: Callable[[], None] = lambda: None, again: int | None = None
    ) -> NDArray[np.float64]:
        generator.manual_seed(seed)
        before()
        parts = []
        for number, (item, count) in enumerate(zip(first, held, strict=True)):
            if again is not None:
                generator.manual_seed(seed + again * number)
            size = item.numel() if item.numel() <= _WHOLE else _COMPARED
            noise = torch.normal(0.0, 1.0, (size,), generator=generator, device=item.device)
            parts.append(noise[:count])
        return torch.cat(parts).double().cpu().numpy()

    def loaded() -> None:
        # A loader draws a seed for its workers, and Opacus' sampler one number a record.
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        torch.rand(records or 0, generator=generator)

    ways: list[tuple[str, Callable[[int], NDArray[np.float64]]]] = [("as Opacus draws it", drawn)]
    if len(first) > 1:
        ways += [
            ("called again for every tensor", functools.partial(drawn, again=0)),
            ("plus the number of the tensor", functools.partial(drawn, again=1)),
        ]
    if records is not None and records <= _MOST_RECORDS and first[0].device.type == "cpu":
        ways.append(("before the loader draws", functools.partial(drawn, before=loaded)))
    for way, draw in ways:
        yield f"torch.manual_seed: {way}", seeds, np.array([draw(int(seed)) for seed in seeds])
    if len(first) == 1:
        yield from numpy_candidates(np.arange(held[0]), seeds)
