"""Correct runs, each with a transcript and a claim that it keeps exactly: no audit may alarm.

Every cell is a name, how to make its run from a seed, and its claim.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss import accounting
from askgauss.canaries import DiracCanaries
from askgauss.claims import PrivacyClaim
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript

DELTA = 1e-5

Background = Callable[[np.random.Generator, int, int, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Cell:
    """A correct run.

    Attributes:
        name: What is particular about it.
        noise: Noise multiplier of every step.
        present: Number of present canaries.
        absent: Number of absent canaries.
        sampling_rate: Sampling rate.
        clip_norms: Clip norm of every step.
        tensors: Sizes of the tensors; one if not given.
        own_sampler: Whether a Poisson sampler of the training plants, and not the recorder.
        background: What the other records add, from a generator, the canaries, the step and the
            number of steps; known and nothing if not given.
        lattice: Released sums are rounded to whole multiples of this.
        delta: Of the claim.
        claimed_noise: The noise of every step that is claimed, where less of it is added.
    """

    name: str
    noise: tuple[float, ...]
    present: int
    absent: int
    sampling_rate: float
    clip_norms: tuple[float, ...] | None = None
    tensors: tuple[int, ...] | None = None
    own_sampler: bool = False
    background: Background | None = None
    lattice: float | None = None
    delta: float = DELTA
    claimed_noise: tuple[float, ...] | None = None

    @functools.cached_property
    def claim(self) -> PrivacyClaim:
        """What the run keeps, and no more."""
        declared = self.claimed_noise or self.noise
        history = [(noise, self.sampling_rate, 1) for noise in declared]
        single = declared[0] if len(set(declared)) == 1 else None
        return PrivacyClaim(
            epsilon=accounting.history_epsilon(history, self.delta),
            delta=self.delta,
            noise_multiplier=single,
            sampling_rate=self.sampling_rate,
            steps=len(self.noise),
        )

    @property
    def truth(self) -> float:
        """What no bound should exceed."""
        return self.claim.epsilon

    @functools.cached_property
    def leaking(self) -> Cell | None:
        """The same with so much less noise that the true epsilon is 1.25 times the claim."""
        if len(set(self.noise)) > 1:
            return None
        steps = len(self.noise)
        less = accounting.dpsgd_noise_multiplier(
            epsilon=1.25 * self.claim.epsilon,
            delta=self.delta,
            sampling_rate=self.sampling_rate,
            steps=steps,
        )
        return replace(self, noise=(less,) * steps, claimed_noise=self.noise)

    def draw(self, generator: np.random.Generator) -> Transcript:
        """One run, by a generator."""
        return self.make(int(generator.integers(1 << 60)))

    def make(self, seed: int) -> Transcript:
        """One run."""
        declared = self.claimed_noise or self.noise
        where = (
            {"dimension": self.present + self.absent + 32}
            if self.tensors is None
            else {"tensors": self.tensors}
        )
        canaries = DiracCanaries(present=self.present, absent=self.absent, seed=seed, **where)
        recorder = Recorder(
            canaries,
            sampling_rate=None if self.own_sampler else self.sampling_rate,
            noise_multiplier=declared[0] if len(set(declared)) == 1 else None,
            poisson=self.own_sampler,
        )
        generator = np.random.default_rng([seed, 20])
        present = np.flatnonzero(canaries.member)
        norms = self.clip_norms or (1.0,) * len(self.noise)
        for step, (noise, norm) in enumerate(zip(self.noise, norms, strict=True)):
            if self.own_sampler:
                chosen = present[generator.random(present.size) < self.sampling_rate]
            else:
                chosen = recorder.sample()
            released = noise * norm * generator.standard_normal(canaries.size)
            watch = noise * norm * generator.standard_normal(canaries.watch.size)
            released[chosen] += norm
            if self.background is not None:
                released += self.background(generator, canaries.size, step, len(self.noise))
            if self.lattice is not None:
                released = self.lattice * np.rint(released / self.lattice)
            known = self.background is None
            recorder.observe(
                released,
                background=0.0 if known else None,
                planted=chosen if self.own_sampler else None,
                clip_norm=norm,
                noise_multiplier=declared[step],
                watch=watch if known and self.lattice is None else None,
            )
        return recorder.transcript()


def _fading(generator: np.random.Generator, size: int, step: int, steps: int) -> NDArray:
    return 3.0 * np.cos(np.arange(size)) * np.exp(-3.0 * step / steps)


def _sparse(generator: np.random.Generator, size: int, step: int, steps: int) -> NDArray:
    return np.where(np.arange(size) % 10 == 0, 8.0, 0.0) * generator.random(size)


def _bursts(generator: np.random.Generator, size: int, step: int, steps: int) -> NDArray:
    return (generator.random() < 0.03) * 30.0 * generator.standard_normal(size)


def _one_burst(generator: np.random.Generator, size: int, step: int, steps: int) -> NDArray:
    return np.full(size, 100.0 * (step == steps // 2) * generator.choice([-1.0, 1.0]))


def _lone_values(generator: np.random.Generator, size: int, step: int, steps: int) -> NDArray:
    return np.where(generator.random(size) < 0.002, 200.0 * generator.standard_normal(size), 0.0)


CELLS = (
    Cell("ordinary", (1.0,) * 60, 60, 140, 0.1),
    Cell("few canaries", (1.0,) * 60, 2, 20, 0.1),
    Cell("few steps", (1.0,) * 3, 60, 140, 0.3),
    Cell("one step", (1.0,), 60, 140, 0.5),
    Cell("several tensors", (1.5,) * 40, 60, 140, 0.2, tensors=(200, 200, 40)),
    Cell("sampler of the training", (1.0,) * 60, 60, 100, 0.1, own_sampler=True),
    Cell("noise in two parts", (5.0,) * 10 + (1.0,) * 40, 60, 140, 0.1),
    Cell("noise that falls", tuple(np.geomspace(8.0, 1.0, 24).tolist()), 40, 100, 0.2),
    Cell(
        "clip norm that falls",
        (1.0,) * 40,
        60,
        140,
        0.1,
        clip_norms=tuple(np.geomspace(4.0, 0.5, 40).tolist()),
    ),
    Cell("rounded sums", (1.0,) * 40, 60, 140, 0.2, lattice=0.1),
    Cell("whole numbers, as coarse as the noise", (1.0,) * 40, 60, 140, 0.2, lattice=1.0),
    Cell("two of each", (1.0,) * 60, 2, 2, 0.1),
    Cell("more present than absent", (1.0,) * 60, 140, 20, 0.1),
    Cell("in nearly every step", (4.0,) * 30, 60, 140, 0.9),
    Cell("in every step", (5.0,) * 30, 60, 140, 1.0),
    Cell("delta 1e-10", (1.0,) * 60, 60, 140, 0.1, delta=1e-10),
    Cell("delta 1e-2", (1.0,) * 60, 60, 140, 0.1, delta=1e-2),
    Cell("smooth background", (1.0,) * 60, 60, 100, 0.1, background=_fading),
    Cell("sparse background", (1.0,) * 60, 60, 100, 0.1, background=_sparse),
    Cell("bursty background", (1.0,) * 60, 60, 100, 0.1, background=_bursts),
    Cell("bursts, few plantings", (1.0,) * 60, 10, 30, 0.05, background=_bursts),
    Cell("one burst, few plantings", (1.0,) * 60, 10, 30, 0.05, background=_one_burst),
    Cell("lone values, few plantings", (1.0,) * 60, 10, 30, 0.05, background=_lone_values),
)
