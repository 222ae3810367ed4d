"""The Laplace channel: a pair of distributions whose epsilon is known at every delta."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """Two Laplace laws of scale 1, ``shift`` apart; the pure epsilon of the pair is ``shift``.

    Attributes:
        shift: Distance of the two laws in units of their scale, 0 or above.
    """

    shift: float

    @property
    def kinks(self) -> tuple[float, ...]:
        """Where the outcomes between the two centres begin to be kept."""
        return ((1.0 + math.exp(-self.shift)) / 2.0,)

    def error_mass(self, kept):
        """Probability of being among the ``kept`` most confident outcomes and guessed wrong."""
        # Outcomes outside the two centres are all equally convincing, and the most convincing.
        outside = kept * expit(-self.shift)
        half = min(self.shift, 1000.0) / 2.0  # e^1000 overflows, and e^-1000 is 0 already
        inside = 0.5 * np.exp(-half - np.arcsinh((1.0 - kept) * math.exp(half)))
        return np.where(kept <= self.kinks[0], outside, inside)

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at ``delta``, in [0, 1)."""
        return max(0.0, self.shift + 2.0 * math.log1p(-delta))
