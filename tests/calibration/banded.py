"""Correct runs of correlated noise with sampling (BandMF), recorded step by step."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

import askgauss as ag
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.recording.transcript import Transcript
from askgauss.sampling import CyclicPoisson

DELTA = 1e-5


@dataclass(frozen=True)
class BandedRun:
    """A banded strategy under cyclic Poisson sampling.

    Attributes:
        coefficients: Of the Toeplitz strategy.
        rate: Rate within a group.
        steps: Steps.
        noise_multiplier: Of a round.
        present: Present canaries.
        absent: Absent canaries.
        release: What is released: rows, steps or prefixes.
    """

    coefficients: tuple[float, ...] = (1.0, 0.6, 0.3)
    rate: float = 0.3
    steps: int = 40
    noise_multiplier: float = 1.5
    present: int = 60
    absent: int = 60
    release: str = "steps"

    @property
    def _scheme(self) -> CyclicPoisson:
        return CyclicPoisson(rate=self.rate, cycle=4)

    @functools.cached_property
    def truth(self) -> float:
        """The epsilon of the whole run."""
        return self._scheme.epsilon(
            noise_multiplier=self.noise_multiplier, steps=self.steps, delta=DELTA
        )

    @property
    def claim(self) -> ag.PrivacyClaim:
        """What it has."""
        return ag.PrivacyClaim(epsilon=self.truth, delta=DELTA)

    @property
    def leaking(self) -> None:
        """Power is counted elsewhere."""
        return None

    def __str__(self) -> str:
        return (
            f"BandMF of {len(self.coefficients)} bands, {self._scheme}, {self.steps} steps, "
            f"{self.present} / {self.absent}, releases {self.release}"
        )

    def draw(self, generator: np.random.Generator) -> Transcript:
        """One run."""
        size = self.present + self.absent
        canaries = ag.DiracCanaries(
            present=self.present,
            absent=self.absent,
            dimension=size,
            seed=int(generator.integers(1 << 60)),
        )
        strategy = BandedStrategy.toeplitz(np.array(self.coefficients), self.steps)
        norm = float(np.linalg.norm(self.coefficients))
        recorder = ag.LinearRecorder.sampled(
            canaries,
            strategy,
            sampling=self._scheme,
            noise_multiplier=self.noise_multiplier * norm,
            clip_norm=1.0,
            release=self.release,
        )
        whole = strategy.apply(np.eye(self.steps))
        draws = self.noise_multiplier * norm * generator.standard_normal((self.steps, size))
        sums = np.linalg.solve(whole, draws)
        for step in range(self.steps):
            sums[step, recorder.sample()] += 1.0
            seen = {
                "steps": sums[step],
                "prefixes": sums[: step + 1].sum(axis=0),
                "rows": whole[step] @ sums,
            }[self.release]
            recorder.observe(seen, background=np.zeros(size))
        return recorder.transcript()


RUNS = (BandedRun(), BandedRun(release="rows"), BandedRun(coefficients=(1.0, 0.5), present=20))
