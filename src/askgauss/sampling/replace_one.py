"""Replace-one neighbours: a record that sends one update, against one that sends its opposite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import log_ndtr, logsumexp

from askgauss import accounting
from askgauss.sampling.scheme import Integers, Scheme
from askgauss.stats.limits import binomial_weights

__all__ = ["ReplaceOne", "replaced_sum_epsilon"]

# Counts are left out whose probabilities add up to 2 exp(-this) at most.
_DEPTH = 46.0
# More signal than this is read from the sum of all steps alone.
_LOUDEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceOne(Scheme):
    """What one record shows under a scheme where its neighbour has another one in its place.

    The update of norm 1 turns into its opposite, so that a step which draws the record moves by
    two: twice as far as where it is left out. Under Poisson sampling the run is the composition of
    such steps; under other schemes the bound is that of leaving the record out, which is a
    replacement by an update of zeros, and lower than it could be.

    Args:
        of: How the record is drawn.

    Examples:
        >>> from askgauss.sampling import EveryStep
        >>> replaced = ReplaceOne(of=EveryStep())
        >>> twice = EveryStep().epsilon_lower(noise_multiplier=2, steps=4, delta=1e-5)
        >>> replaced.epsilon_lower(noise_multiplier=4, steps=4, delta=1e-5) == twice
        True
    """

    tag: ClassVar[str] = "replace-one"

    of: Scheme

    def __str__(self) -> str:
        return f"{self.of}, records replaced"

    @property
    def share(self) -> float:
        """That of the scheme."""
        return self.of.share

    @property
    def shown(self) -> bool:
        """Whether the bound is that of a replaced record, not the lower one of leaving it out."""
        return self.of.every_step or self.of.poisson_rate is not None

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return self._composed(signal, steps, delta, quick=False)

    def _quick_epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return self._composed(signal, steps, delta, quick=True)

    def _composed(self, signal: float, steps: int, delta: float, *, quick: bool) -> float:
        rate, replaced = self.of.poisson_rate, 0.0
        if rate is None or rate == 1.0:
            return self.of._epsilon_at((2.0 if self.shown else 1.0) * signal, steps, delta)
        if 0.0 < signal < _LOUDEST:
            replaced = accounting.replaced_epsilon_lower(
                signal_to_noise=signal, sampling_rate=rate, steps=steps, delta=delta, quick=quick
            )
        # Beyond one grid, the sum of all steps still shows a replaced record; or one left out.
        if replaced == 0.0:
            replaced = replaced_sum_epsilon(signal, rate, steps, delta)
        return replaced if quick else max(replaced, self.of._epsilon_at(signal, steps, delta))

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """As the scheme does."""
        return self.of.draw(rng, records, steps)


def replaced_sum_epsilon(signal: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon of the sum of all steps, of a Poisson sampled record against its opposite.

    Given ``k`` draws the sum has mean ``k`` or ``-k``. Its likelihood ratio grows with the sum, so
    that the best test is one threshold.
    """
    if signal == math.inf:
        return math.inf if -math.expm1(steps * math.log1p(-rate)) > delta else 0.0
    counts, logs = binomial_weights(steps, rate, _DEPTH)
    means = counts * signal / math.sqrt(steps)
    # What was left out could all be on the wrong side.
    lost = 2.0 * math.exp(-_DEPTH)

    def at(threshold: float) -> tuple[float, float]:
        """The loss at a threshold, and the delta that the test shows there."""
        here = logsumexp(logs - 0.5 * (threshold - means) ** 2)
        opposite = logsumexp(logs - 0.5 * (threshold + means) ** 2)
        loss = float(here - opposite)
        power = float(np.exp(logsumexp(logs + log_ndtr(means - threshold))))
        false = float(np.exp(logsumexp(logs + log_ndtr(-means - threshold)))) + lost
        return loss, power - math.exp(min(loss, 700.0)) * false

    low, high = 0.0, float(means.max()) + 40.0
    if at(low)[1] < delta:
        return 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle)[1] >= delta else (low, middle)
    return max(at(low)[0], 0.0)
