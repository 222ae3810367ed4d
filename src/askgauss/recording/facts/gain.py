"""Facts of the number that the noisy sum of a step was multiplied by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["GainFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainFacts:
    """What a step made of the clean sum, seen along that sum itself.

    Noise is as large in this direction as in any other. A noisy sum that is divided by another
    number in every step has a part of the clean sum there as well.

    Attributes:
        steps: Steps with a clean sum.
        gain: What the clean sum was multiplied by, on average.
        along: Root mean square of what was released along the clean sum less that, in clip norms.
        norm: Root mean square of the norm of the clean sum, in clip norms.
    """

    steps: int = 0
    gain: float = 1.0
    along: float = 0.0
    norm: float = 0.0

    @classmethod
    def of(cls, along: NDArray[np.float64], norm: NDArray[np.float64]) -> GainFacts | None:
        """The facts of a run; None where fewer than two steps had a clean sum.

        Args:
            along: What each step released beyond the clean sum, along it, in clip norms.
            norm: Norm of the clean sum of each step, in clip norms.
        """
        use = np.isfinite(along) & np.isfinite(norm) & (norm > 0.0)
        along, norm = along[use], norm[use]
        if norm.size < 2:
            return None
        more = float(along @ norm) / float(norm @ norm)
        left = along - more * norm
        return cls(
            steps=norm.size,
            gain=1.0 + more,
            along=math.sqrt(float(left @ left) / (norm.size - 1)),
            norm=math.sqrt(float(norm @ norm) / norm.size),
        )

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("steps", "along", "norm"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.gain.{name} >= 0, got it below.")
        if not all(map(math.isfinite, (self.gain, self.along, self.norm))):
            raise FileFormatError("Expected facts.gain to be finite.")
