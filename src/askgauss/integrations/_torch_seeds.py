"""From a seed to the first noise of an Opacus run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.diagnostics.predictable import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.integrations._opacus_run import clipped_sum
from askgauss.integrations._shards import local
from askgauss.run_facts import SeedProbe

__all__ = ["probe_first_noise"]

# Numbers compared, and the largest tensor that is drawn whole. Of a larger one torch draws the
# beginning first, whatever follows.
_COMPARED = 64
_WHOLE = 4096
# What a torch.Generator starts from that nobody has seeded.
_UNSEEDED = 67280421310721
# A larger seed of the process was drawn, not chosen.
_CHOSEN = 2**32


def probe_first_noise(parameters: Sequence[torch.nn.Parameter], optimizer: Any = None) -> SeedProbe:
    """Try the likely seeds on the noise that was just added.

    Args:
        parameters: The parameters in the order their noise is drawn, with the clean sum and the
            noisy one. Of those that ranks share out, the first rank holds what is drawn first.
        optimizer: The private optimizer, where it may keep the sums itself.
    """
    first: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if sum(item.numel() for item in first) < FEWEST:
            first.append(parameter)
    noise = [
        (local(item.grad) - local(clipped_sum(optimizer, item))).flatten()[:_COMPARED]
        for item in first
    ]
    own = [_UNSEEDED, *(seed for seed in [torch.initial_seed()] if seed < _CHOSEN)]
    values = torch.cat([part.detach().double().cpu() for part in noise]).numpy()
    held = [len(part) for part in noise]
    return try_seeds(values, _candidates(first, held, likely_seeds(own)))


def _candidates(
    first: Sequence[torch.nn.Parameter], held: Sequence[int], seeds: NDArray[np.int64]
) -> Iterator[Candidates]:
    generator = torch.Generator(device=first[0].device)

    def drawn(seed: int) -> NDArray[np.float64]:
        generator.manual_seed(seed)
        parts = [
            torch.normal(
                0.0,
                1.0,
                (item.numel() if item.numel() <= _WHOLE else _COMPARED,),
                generator=generator,
                device=item.device,
            )[:count]
            for item, count in zip(first, held, strict=True)
        ]
        return torch.cat(parts).double().cpu().numpy()

    yield "torch.manual_seed: as Opacus draws it", seeds, np.array([drawn(int(s)) for s in seeds])
    if len(first) == 1:
        yield from numpy_candidates(np.arange(held[0]), seeds)
