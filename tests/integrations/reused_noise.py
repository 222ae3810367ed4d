"""Noise that is used again, as an Opacus optimizer may do it by mistake."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FAULTS", "reuse_noise"]

Draw = Callable[[int, int, torch.Tensor], torch.Tensor]
ROOT = 2_971_215_073


def _seeded(seed: int, like: torch.Tensor) -> torch.Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


def _step_plus_layer() -> Draw:
    return lambda step, layer, like: _seeded(ROOT + step + layer, like)


def _one_key() -> Draw:
    return lambda step, layer, like: _seeded(ROOT + 1000 * step, like)


def _of_last_step(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Draw]:
    def make() -> Draw:
        kept: dict[int, torch.Tensor] = {}

        def draw(step: int, layer: int, like: torch.Tensor) -> torch.Tensor:
            last = kept.get(layer)
            # Every second noise is fresh.
            fresh = step % 2 == 0 or last is None
            kept[layer] = torch.randn_like(like) if fresh else change(last)
            return kept[layer]

        return draw

    return make


def _table(contiguous: bool) -> Callable[[], Draw]:
    # Slices of the smallest run must meet somewhere: here some twenty pairs of them do.
    size = 2**16 if contiguous else 2**20

    def make() -> Draw:
        table = torch.randn(size)

        def draw(step: int, layer: int, like: torch.Tensor) -> torch.Tensor:
            count = like.numel()
            if not contiguous:
                return table[torch.randint(0, size, (count,))].view_as(like)
            start = int(torch.randint(0, size - count, ()))
            return table[start : start + count].view_as(like)

        return draw

    return make


def _overlapping_counters() -> Draw:
    stream = torch.randn(2**18 + 2**16, generator=torch.Generator().manual_seed(ROOT))
    sizes: dict[int, int] = {}

    def draw(step: int, layer: int, like: torch.Tensor) -> torch.Tensor:
        sizes[layer] = like.numel()
        # The counter goes on by less than the step has drawn.
        start = 50 * step + sum(size for index, size in sizes.items() if index < layer)
        return stream[start : start + like.numel()].view_as(like)

    return draw


FAULTS: dict[str, Callable[[], Draw]] = {
    "seed = root + step + layer": _step_plus_layer,
    "one key for all tensors": _one_key,
    "reversed and negated": _of_last_step(lambda last: -last.flatten().flip(0).view_as(last)),
    "rolled by one": _of_last_step(lambda last: last.flatten().roll(1).view_as(last)),
    "overlapping counters": _overlapping_counters,
    "slices of a table": _table(contiguous=True),
}
"""Ways to use noise again that show in the smallest models."""

LARGE_FAULTS: dict[str, Callable[[], Draw]] = {
    "values of a table": _table(contiguous=False),
    "shuffled": _of_last_step(
        lambda last: last.flatten()[torch.randperm(last.numel())].view_as(last)
    ),
}
"""Ways that need some hundred thousand values."""


def reuse_noise(optimizer: Any, draw: Draw, *, in_place: bool = False) -> None:
    """Make the optimizer add noise that was used before."""
    steps = iter(range(10**9))

    def add_noise(self: Any) -> None:
        step = next(steps)
        deviation = self.noise_multiplier * self.max_grad_norm
        for layer, parameter in enumerate(self.params):
            noise = deviation * draw(step, layer, parameter.summed_grad)
            if in_place:
                parameter.summed_grad += noise
                parameter.grad = parameter.summed_grad.view_as(parameter)
            else:
                parameter.grad = (parameter.summed_grad + noise).view_as(parameter)
            parameter.summed_grad._processed = True

    optimizer.add_noise = types.MethodType(add_noise, optimizer)
