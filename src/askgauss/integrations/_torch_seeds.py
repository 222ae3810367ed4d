"""From a seed to the first noise of an Opacus run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from askgauss.transcript import SeedProbe

__all__ = ["probe_first_noise"]

# Numbers compared, and the largest tensor that is drawn whole. Of a larger one torch draws the
# beginning first, whatever follows.
_COMPARED = 64
_WHOLE = 4096
# What a torch.Generator starts from that nobody has seeded.
_UNSEEDED = 67280421310721
# A larger seed of the process was drawn, not chosen.
_CHOSEN = 2**32


def probe_first_noise(parameters: Sequence[torch.nn.Parameter]) -> SeedProbe:
    """Try the likely seeds on the noise that was just added.

    Args:
        parameters: The parameters in the order their noise is drawn, with the clean sum and the
            noisy one.
    """
    first: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if sum(item.numel() for item in first) < FEWEST:
            first.append(parameter)
    noise = [
        (item.grad - item.summed_grad).flatten()[:_COMPARED]  # type: ignore[attr-defined]
        for item in first
    ]
    own = [_UNSEEDED, *(seed for seed in [torch.initial_seed()] if seed < _CHOSEN)]
    values = torch.cat([part.detach().double().cpu() for part in noise]).numpy()
    return try_seeds(values, _candidates(first, likely_seeds(own)))


def _candidates(
    first: Sequence[torch.nn.Parameter], seeds: NDArray[np.int64]
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
            )[:_COMPARED]
            for item in first
        ]
        return torch.cat(parts).double().cpu().numpy()

    yield "torch.manual_seed: as Opacus draws it", seeds, np.array([drawn(int(s)) for s in seeds])
    if len(first) == 1:
        yield from numpy_candidates(np.arange(min(first[0].numel(), _COMPARED)), seeds)
