"""What the checks of a transcript share: the claim it is held against, and its noise."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from askgauss import accounting
from askgauss.claims import PrivacyClaim
from askgauss.diagnostics.tails import Spread
from askgauss.transcript import RunFacts, Transcript

__all__ = ["INTERVAL_ERROR", "TOLERANCE", "Context", "around"]

# A measured difference below this is real or not, but does not matter to anybody.
TOLERANCE = 0.005
# Intervals next to measured values have this error.
INTERVAL_ERROR = 0.01
# Noise below this share of what is claimed is none: what is left are rounding errors.
_SILENCE = 1e-3
# Fewer values than these may all be that small by chance; only exact zeros tell then.
_FEWEST_TO_HEAR = 5
# Columns of single values that are compared with each other, at most.
_COLUMNS = 2048


def around(value: float, error: float) -> tuple[float, float]:
    """The interval of a Gaussian estimate with this standard error."""
    half = float(ndtri(1.0 - 0.5 * INTERVAL_ERROR)) * error
    return value - half, value + half


@dataclass(frozen=True)
class Context:
    """A transcript, and what it is compared with."""

    transcript: Transcript
    claim: PrivacyClaim | None

    @property
    def facts(self) -> RunFacts:
        """What is known about the run."""
        return self.transcript.facts

    @property
    def known(self) -> bool:
        """Whether observations without a planting are noise and nothing else."""
        return self.facts.background == "known"

    @property
    def own_coin(self) -> bool:
        """Whether the recorder planted, so that the training's sampler was never met."""
        return self.facts.sampling == "own coin"

    @functools.cached_property
    def others(self) -> NDArray[np.float64]:
        """Observations without a planting, by step."""
        planted = self.transcript.steps.planted.sum(axis=1)
        return np.asarray(self.transcript.member.size - planted, dtype=np.float64)

    @functools.cached_property
    def squares(self) -> NDArray[np.float64]:
        """Their sums of squares, by step."""
        return self.audible(self.transcript.steps.square.sum(axis=1), self.others)

    def audible(
        self, squares: NDArray[np.float64], counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sums of so many squares, zero where they are rounding errors and no noise."""
        claimed = self.claimed_noise
        unit = 1.0 if claimed is None or not claimed.any() else float(claimed.max())
        silent = (squares < counts * np.square(_SILENCE * unit)) & (counts >= _FEWEST_TO_HEAR)
        return np.where(silent, 0.0, squares)

    @functools.cached_property
    def noise(self) -> Spread:
        """The noise of all steps together."""
        return Spread(float(self.others.sum()), float(self.squares.sum()))

    @functools.cached_property
    def claimed_noise(self) -> NDArray[np.float64] | None:
        """The noise multiplier claimed for each step."""
        steps = self.transcript.number_of_steps
        claimed = None if self.claim is None else self.claim.noise_multiplier
        if claimed is None:
            claimed = self.facts.noise_multiplier
        if claimed is not None:
            return np.full(steps, claimed)
        by_step = self.transcript.steps.noise_multiplier
        return by_step if np.isfinite(by_step).all() else None

    @property
    def claimed_rate(self) -> float | None:
        """The sampling rate that was accounted for."""
        claimed = None if self.claim is None else self.claim.sampling_rate
        accounted = self.facts.accounted_sampling_rate
        return claimed or accounted or self.facts.sampling_rate

    @property
    def claimed_steps(self) -> int | None:
        """The number of steps that was accounted for."""
        claimed = None if self.claim is None else self.claim.steps
        return claimed or self.facts.accounted_steps

    def breach(
        self,
        *,
        signal: float = 1.0,
        noise: float | None = None,
        rate: float | None = None,
        steps: int | None = None,
    ) -> tuple[bool, str]:
        """Whether steps with the noise that was measured, composed, break the claim.

        Args:
            signal: What a record adds to the sum of a step at least, in clip norms.
            noise: The noise multiplier at most; as measured over the whole run if not given, or as
                claimed where other records hide it.
            rate: How often at least; as accounted for if not given.
            steps: In how many steps; as accounted for if not given.

        Returns:
            Whether the claim is exceeded by more than the tolerance, and a sentence about it. Where
            there is no claim, or no rate to compose with, a part that is not as claimed is breach
            enough.
        """
        rate = rate or self.claimed_rate
        steps = steps or self.claimed_steps or self.transcript.number_of_steps
        if self.noise.square == 0.0 or signal <= 0.0:
            return False, ""
        if self.claim is None or rate is None:
            return True, ""
        if noise is None:
            noise = self.noise.interval(INTERVAL_ERROR)[1]
            if not self.known and self.claimed_noise is not None:
                noise = min(noise, float(self.claimed_noise.max()))
        implied = accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal / noise,
            sampling_rate=rate,
            steps=steps,
            delta=self.claim.delta,
        )
        if implied <= (1.0 + TOLERANCE) * self.claim.epsilon:
            return False, ""
        return True, f" It implies epsilon {implied:.3g} where {self.claim.epsilon:g} is claimed."

    def tensor_name(self, index: int) -> str:
        """A tensor in words: its name, or its number."""
        names = self.facts.tensors
        name = names[index] if index < len(names) else str(index)
        return name if name.startswith("tensor ") else f"tensor {name}"

    @functools.cached_property
    def quiet(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Single values that never include a planting, one row a step, and each column's tensor.

        These are kept absent canaries and watched coordinates. Where there are very many of the
        latter, the first few of every tensor are taken: those of equal tensors still match.
        """
        transcript = self.transcript
        absent = ~transcript.member[transcript.kept]
        watched = transcript.watch_tensor[: transcript.watch_values.shape[1]]
        chosen = np.arange(watched.size)
        if watched.size > _COLUMNS:
            _, first = np.unique(watched, return_index=True)
            within = chosen - np.repeat(first, np.diff([*first, watched.size]))
            chosen = chosen[within < max(1, _COLUMNS // first.size)]
        parts = (transcript.kept_values[:, absent], transcript.watch_values[:, chosen])
        tensors = (transcript.tensor[transcript.kept][absent], watched[chosen])
        values = np.concatenate(parts, axis=1)
        for axis in (0, 1):
            squares, count = (values**2).sum(axis=axis), np.array(values.shape[axis])
            silent = (self.audible(squares, count) == 0.0) & (squares > 0.0)
            values[(slice(None), silent) if axis == 0 else silent] = 0.0
        return values, np.concatenate(tensors)
