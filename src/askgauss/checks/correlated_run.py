"""A run with correlated noise, and what it is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from askgauss.checks.context import INTERVAL_ERROR, TOLERANCE
from askgauss.checks.tails import Spread
from askgauss.claims import PrivacyClaim
from askgauss.recording.linear_transcript import LinearTranscript
from askgauss.stats import gaussian

__all__ = ["LinearRun"]


@dataclass(frozen=True)
class LinearRun:
    """A transcript, and what it is held against."""

    transcript: LinearTranscript
    claim: PrivacyClaim | None

    @property
    def known(self) -> bool:
        """Whether what absent canaries show is noise and nothing else."""
        return self.transcript.facts.background == "known"

    @property
    def claimed(self) -> float | None:
        """The claimed noise of one node, in clip norms."""
        claimed = self.claim.noise_multiplier if self.claim is not None else None
        return claimed or self.transcript.facts.noise_multiplier or None

    @property
    def absent(self) -> int:
        """Observations of one node."""
        return int(np.count_nonzero(~self.transcript.member))

    @property
    def noise(self) -> Spread:
        """The noise of all nodes together."""
        scale, count = self.transcript.measured_noise()
        return Spread(float(count), count * scale**2)

    def elsewhere(self) -> float:
        """The noise of a node at most, taken over all of them."""
        most = self.noise.interval(INTERVAL_ERROR)[1]
        return max(most, self.claimed or 0.0)

    def breach(self, shift: float) -> tuple[bool, str]:
        """Whether a record that moves its score so far breaks the claim, and a sentence on it."""
        if self.claim is None:
            return False, ""
        if self.claim.adjacency == "replace":
            shift *= 2.0
        epsilon = float(gaussian.gdp_epsilon(self.claim.delta, shift))
        if not epsilon > (1.0 + TOLERANCE) * float(self.claim.epsilon):
            return False, ""
        return True, f" It implies epsilon {epsilon:.3g} where {self.claim.epsilon:g} is claimed."

    def breach_of_piece(self, piece: int, scale: float) -> tuple[bool, str]:
        """The same of a piece whose noise is at most ``scale``, all others having their noise."""
        pieces, largest = self.transcript.pieces, self.transcript.largest_information
        signal, gain = 1.0, largest**2
        if pieces.signal is not None and pieces.gain is not None:
            signal, gain = float(pieces.signal[piece]), float(pieces.gain[piece])
        if scale <= 0.0:
            return self.breach(math.inf if signal > 0.0 else 0.0)
        # A hypotenuse, since squares of such ratios may be beyond all numbers.
        rest = math.sqrt(max(gain - signal**2, 0.0)) / self.elsewhere()
        return self.breach(math.hypot(rest, signal / scale))
