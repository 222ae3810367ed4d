"""Tensors that are frozen while an audit watches them: the others are still recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import DiracCanaries
from askgauss.integrations.opacus.moments import PrivateStep
from askgauss.recording.transcript import Transcript

__all__ = ["FrozenTensors", "left_out"]

# Random stream, from the run's seed, of the values that replace those of frozen tensors.
_STREAM = 27
# One number a step over the canaries of all tensors, which cannot be separated afterwards.
_OVER_ALL = (
    *("least", "most", "planted_least", "planted_most"),
    *("silent", "planted_silent", "carried"),
)


class FrozenTensors:
    """Which tensors had no clipped sum, and in how many steps.

    A recorder wants a value for every canary in every step. Those of a frozen tensor get what a
    correct step would have released, so that nothing that looks at all values together is misled,
    and are left out of the transcript afterwards.

    Args:
        canaries: The canaries.
        names: Names of the tensors.
    """

    def __init__(self, canaries: DiracCanaries, names: Sequence[str]) -> None:
        self._canaries, self._names = canaries, tuple(names)
        self._seen: dict[int, tuple[int, int]] = {}

    @property
    def facts(self) -> tuple[tuple[str, int, int], ...]:
        """Name, first step and number of steps of every tensor that was frozen in some."""
        return tuple((self._names[index], *self._seen[index]) for index in sorted(self._seen))

    @property
    def tensors(self) -> Collection[int]:
        """Their indices."""
        return self._seen.keys()

    def load(self, facts: Sequence[tuple[str, int, int]]) -> None:
        """Resume from the facts of a checkpoint."""
        self._seen = {self._names.index(name): (first, steps) for name, first, steps in facts}

    def trained(self, included: NDArray[np.int64], missing: Collection[int]) -> NDArray[np.int64]:
        """Those of the included canaries whose tensor is trained in this step."""
        if not missing:
            return included
        return included[~np.isin(self._canaries.tensor[included], list(missing))]

    def fill(
        self,
        step: PrivateStep,
        number: int,
        observed: NDArray[np.float64],
        watched: NDArray[np.float64],
        included: NDArray[np.int64],
    ) -> None:
        """Note a step, and fill in for what its frozen tensors did not release.

        Args:
            step: The step.
            number: Its number among those that are recorded, from 1.
            observed: What was released along each canary; written to.
            watched: What was released at the watched coordinates; written to.
            included: The canaries that were drawn for the step.
        """
        missing, noise = list(step.missing), step.clip_norm * step.noise_multiplier
        for index in missing:
            first, steps = self._seen.get(index, (number, 0))
            self._seen[index] = (first, steps + 1)
        chance = np.random.default_rng((self._canaries.root_seed, _STREAM, number))
        whole = np.zeros(observed.size)
        whole[included] = step.clip_norm
        whole += chance.normal(0.0, noise, whole.size)
        here = np.isin(self._canaries.tensor, missing)
        observed[here] = whole[here]
        there = np.isin(self._canaries.watch_tensor, missing)
        watched[there] = chance.normal(0.0, noise, int(there.sum()))


def left_out(transcript: Transcript, tensors: Collection[int]) -> Transcript:
    """A transcript without the canaries and watched coordinates of some tensors."""
    if not tensors:
        return transcript
    gone = np.isin(transcript.tensor, list(tensors))
    stay = np.flatnonzero(~gone)
    kept = ~gone[transcript.kept]
    watched = ~np.isin(transcript.watch_tensor, list(tensors))
    tensor = transcript.tensor[stay]
    columns = int(tensor.max(initial=0)) + 1
    steps = transcript.steps
    by_tensor = np.isin(np.arange(columns), list(tensors))
    sums = {
        name: np.where(by_tensor, 0, getattr(steps, name)[:, :columns])
        for name in ("planted", "planted_total", "planted_square", "total", "square")
    }
    unknown = {name: np.full_like(getattr(steps, name), np.nan) for name in _OVER_ALL}
    return replace(
        transcript,
        member=transcript.member[stay],
        tensor=tensor,
        canaries=replace(
            transcript.canaries,
            **{
                item.name: values[stay]
                for item in fields(transcript.canaries)
                if (values := getattr(transcript.canaries, item.name)).size
            },
        ),
        steps=replace(steps, **sums, **unknown),
        kept=np.searchsorted(stay, transcript.kept[kept]),
        kept_values=transcript.kept_values[:, kept],
        kept_planted=transcript.kept_planted[:, kept],
        watch_values=transcript.watch_values[:, watched]
        if transcript.watch_values.size
        else transcript.watch_values,
        watch_tensor=transcript.watch_tensor[watched],
    )
