"""Whether the first noise of an Opacus run comes from a common seed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.checks.predictable_noise import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.integrations.opacus.moments import AddedNoise, Observer
from askgauss.integrations.opacus.ranks import local
from askgauss.integrations.opacus.run_description import TrainingRun, clipped_sum
from askgauss.recording.facts import SeedProbe
from askgauss.recording.transcript import Transcript

__all__ = ["FirstNoise", "probe_first_noise"]

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
