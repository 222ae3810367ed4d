"""What others estimate from the same rounds: one-shot cosines, and one epsilon a round.

Andrew et al. 2024 (arXiv 2302.03098) take cosines of canaries with what was released, over the run
or the largest of any round. CANIFE (arXiv 2210.02912) estimates the epsilon of single rounds by
thresholds, takes the noise multiplier that has it, and composes. Both are estimates, not bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.auditors import MaxCosine
from askgauss.exceptions import NotDefinedError, UnsupportedError
from askgauss.sampling import Scheme
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import gaussian

__all__ = ["PeerEstimates", "PeerRecord", "threshold_epsilon"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEstimates:
    """Estimates of epsilon by other methods, of the same rounds.

    Attributes:
        final_cosine: One-shot, by cosines with the sum of all rounds (Andrew et al.).
        largest_cosine: One-shot, by the largest cosine with any round (Andrew et al.).
        by_round: By thresholds in every round, composed (CANIFE); None where the sampling scheme
            has no accountant.
    """

    final_cosine: float
    largest_cosine: float
    by_round: float | None


def threshold_epsilon(present: Array, absent: Array, delta: float) -> float:
    """The largest epsilon that a threshold between two samples shows, by their shares; 0 if none.

    Thresholds without an error on one side are passed over: their shares say nothing of its size.

    Examples:
        >>> round(threshold_epsilon(np.array([1.0, 2.0, 3.0, 0.0]), np.arange(4.0) - 2.0, 0.0), 4)
        1.0986
    """
    cuts = np.unique(np.concatenate([present, absent]))
    missed = np.searchsorted(np.sort(present), cuts, side="left") / present.size
    false = 1.0 - np.searchsorted(np.sort(absent), cuts, side="left") / absent.size
    best = 0.0
    for right, wrong in ((1.0 - delta - false, missed), (1.0 - delta - missed, false)):
        useful = (wrong > 0.0) & (right > 0.0)
        best = max(best, float(np.log(right[useful] / wrong[useful]).max(initial=0.0)))
    return best


class PeerRecord:
    """Reads what peers read, round by round; holds one array of a model's size."""

    def __init__(self, member: NDArray[np.bool_]) -> None:
        self._member = member
        self._largest = np.full(member.size, -1.0)
        self._inner = np.zeros(member.size)
        self._total: Array | None = None
        self._squares: list[float] = []

    def read(self, parts: Sequence[NDArray[Any]], along: Array, planted: NDArray[np.int64]) -> None:
        """Read a round.

        Args:
            parts: The arrays of the mean that was released.
            along: That mean along each canary, the way it points.
            planted: Indices of the canaries that took part.
        """
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
        self._total = flat if self._total is None else self._total + flat
        self._inner += along
        norm = float(np.linalg.norm(flat))
        if norm > 0.0:
            np.maximum(self._largest, along / norm, out=self._largest)
        inside, outside = along[planted], along[~self._member]
        if min(inside.size, outside.size) < 2:
            return
        delta = 1.0 / (inside.size + outside.size)
        epsilon = threshold_epsilon(inside, outside, delta)
        self._squares.append(gaussian.gdp_mu(epsilon, delta) ** 2 if epsilon > 0.0 else 0.0)

    def cosines(self) -> tuple[CanaryScores, CanaryScores]:
        """Cosines with the sum of all rounds, and the largest of any round.

        Raises:
            NotDefinedError: Nothing was released.
        """
        if self._total is None or not self._total.any():
            raise NotDefinedError("Nothing was released that a cosine could be taken with.")
        final = self._inner / float(np.linalg.norm(self._total))
        first, second = (
            CanaryScores(
                score=score,
                member=self._member,
                metadata=ScoreMetadata(background="unknown", membership="randomised"),
            )
            for score in (final, self._largest)
        )
        return first, second

    def estimates(self, scheme: Scheme, *, steps: int, delta: float) -> PeerEstimates:
        """All of them, at this delta."""
        assert self._total is not None
        final, largest = self.cosines()
        known = MaxCosine(dimension=max(2, self._total.size))
        fitted = MaxCosine()

        def estimate(method: MaxCosine, scores: CanaryScores) -> float:
            evidence = method.gather(scores, delta=delta, confidence=0.95)
            return float(method.epsilon_point(evidence, delta=delta))

        by_round: float | None = 0.0
        if mean := float(np.mean(self._squares)) if self._squares else 0.0:
            by_round = _composed(scheme, 1.0 / math.sqrt(mean), steps, delta)
        return PeerEstimates(
            final_cosine=estimate(known, final),
            largest_cosine=estimate(fitted, largest),
            by_round=by_round,
        )


def _composed(scheme: Scheme, noise: float, steps: int, delta: float) -> float | None:
    """What an accountant says of rounds with this noise; None where there is none for them."""
    try:
        return scheme.epsilon(noise_multiplier=noise, steps=steps, delta=delta)
    except UnsupportedError:
        return None
