"""What the experiments train: heads side by side, and where their random numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from askgauss import _validate
from askgauss.canaries import Stream

__all__ = ["DpsgdHead", "DpsgdPlan", "Head", "HeadsPlan", "TreeRunPlan", "canary_seed", "generator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One run among the parallel ones.

    Args:
        name: Name of the run, and of its files.
        epsilon: The epsilon it claims.
        noise_multiplier: Noise in units of the clip norm; of one node for DP-FTRL.
        canaries: Number of canaries, each inserted with probability one half; 0 for none.
        learning_rate: Step size for a gradient sum in units of batch size times clip norm.
        published: Whether it is as the paper's public code has it.
        label: Heads with one label have the same canaries, inclusion and noise.
    """

    name: str
    epsilon: float
    noise_multiplier: float
    canaries: int
    learning_rate: float
    published: bool = False
    label: int = 0

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon, learning_rate=self.learning_rate)
        _validate.magnitude(noise_multiplier=self.noise_multiplier, zero=True)
        _validate.integer(0, canaries=self.canaries, label=self.label)

    @property
    def estimator(self) -> Literal["plain", "honaker"]:
        """How DP-FTRL puts prefixes together from nodes."""
        return "plain" if self.published else "honaker"


@dataclass(frozen=True, slots=True, kw_only=True)
class DpsgdHead(Head):
    """One DP-SGD run.

    Args:
        sampling_rate: Poisson sampling rate of records and canaries.
        momentum: Share of the last step that is taken again.
    """

    sampling_rate: float
    momentum: float = 0.9

    def __post_init__(self) -> None:
        Head.__post_init__(self)
        _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
        _validate.within(0, 1, closed="left", momentum=self.momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsPlan:
    """What to train.

    Args:
        heads: The runs.
        steps: Number of steps; leaves of the tree for DP-FTRL.
        clip_norm: Clip norm of every head.
        seed: Root of every random choice.
    """

    heads: tuple[Head, ...]
    steps: int
    clip_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.integer(1, steps=self.steps)
        _validate.magnitude(clip_norm=self.clip_norm)
        if len({head.name for head in self.heads}) != len(self.heads) or not self.heads:
            raise _validate.fail("heads", [h.name for h in self.heads], "to have different names")


@dataclass(frozen=True, slots=True, kw_only=True)
class DpsgdPlan(HeadsPlan):
    """What to train by DP-SGD.

    Args:
        snapshots: Steps after which transcripts and accuracies are written; the last is always.
        checkpoint_every: Steps between checkpoints.
    """

    heads: tuple[DpsgdHead, ...]
    snapshots: tuple[int, ...] = ()
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        HeadsPlan.__post_init__(self)
        _validate.integer(1, checkpoint_every=self.checkpoint_every)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRunPlan(HeadsPlan):
    """What to train by DP-FTRL.

    Args:
        batch_size: Records of a leaf.
    """

    batch_size: int

    def __post_init__(self) -> None:
        HeadsPlan.__post_init__(self)
        _validate.integer(1, batch_size=self.batch_size)


def generator(seed: int, *key: int) -> np.random.Generator:
    """An independent generator for every key: what a step draws does not depend on its past."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def canary_seed(seed: int, label: int) -> int:
    """The root of a head's canaries."""
    words = np.random.SeedSequence(seed, spawn_key=(Stream.PLACES, label)).generate_state(2)
    return int(words[0]) << 31 | int(words[1] >> 1)
