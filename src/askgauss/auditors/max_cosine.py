"""Andrew et al. 2024: one-shot estimation from cosines of random directions (arXiv 2302.03098)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr, ndtri

from askgauss import _validate
from askgauss.auditors.auditor import Auditor
from askgauss.exceptions import NotDefinedError, ScoresError
from askgauss.results import Assumption, Finding, Status
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats import gaussian

__all__ = ["CosineEvidence", "MaxCosine"]

Array = NDArray[np.float64]

# From here on a cosine with a random direction is Gaussian for every purpose.
_GAUSSIAN_DIMENSION = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineEvidence:
    """Moments of the cosines of both groups."""

    present: GroupMoments
    absent: GroupMoments


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxCosine(Auditor[CosineEvidence]):
    """An estimate of epsilon from cosines between canary directions and what was released.

    With ``dimension``, scores are cosines with the final iterate, and an absent canary's law is
    known: that of a random direction in so many dimensions, Gaussian with variance 1/d where d is
    large. Without, scores are maxima over all iterates, whose law is fitted to the absent ones.

    Assumes:
        Present scores are Gaussian (maxima are not quite), directions nearly orthogonal, and far
        fewer canaries than the dimension times the squared noise multiplier.

    Guarantee:
        None: the estimate is ``epsilon_point``, the bound is 0, and there is never a verdict.

    Args:
        dimension: Dimension of the directions, at least 2, for cosines with the final iterate; None
            for maxima.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(0.01, 0.01, 500), absent=rng.normal(0, 0.01, 500))
        >>> result = ag.audit(scores, delta=1e-5, auditor=MaxCosine(dimension=10_000))
        >>> result.epsilon_lower, 3.5 < result.epsilon_point < 5.5
        (0.0, True)
    """

    assumption: ClassVar[Assumption] = Assumption.ESTIMATE
    evidence_type: ClassVar[type] = CosineEvidence

    dimension: int | None = None

    def __post_init__(self) -> None:
        if self.dimension is not None:
            _validate.integer(2, dimension=self.dimension)

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> CosineEvidence:
        """Moments of both groups."""
        largest = float(np.abs(data.score).max())
        if self.dimension is not None and largest > 1.0 + 1e-9:
            raise ScoresError(
                f"Expected scores in [-1, 1], since they are cosines, got one of size {largest:g}. "
                "Divide the inner products by both norms, or leave dimension out."
            )
        present, absent = data.moments()
        if present.sum_of_squares == 0.0 or absent.sum_of_squares == 0.0:
            raise ScoresError(
                "Expected scores that vary within each group, got a constant group. There is no "
                "law to fit: check that the scores are cosines of different canaries."
            )
        return CosineEvidence(present=present, absent=absent)

    def epsilon_lower(self, evidence: CosineEvidence, *, delta: float, confidence: float) -> float:
        """0: an estimate bounds nothing."""
        return 0.0

    def epsilon_point(self, evidence: CosineEvidence, *, delta: float) -> float:
        """Epsilon of the fitted pair of laws."""
        present, absent = evidence.present, evidence.absent
        mean, deviation = present.mean, present.standard_deviation
        if self.dimension is None:
            null = absent.mean, absent.standard_deviation
        elif self.dimension >= _GAUSSIAN_DIMENSION:
            null = 0.0, 1.0 / math.sqrt(self.dimension)
        else:
            return cosine_epsilon(mean, deviation, dimension=self.dimension, delta=delta)
        return gaussian.epsilon(delta, *null, mean, deviation)

    def p_value(self, evidence: CosineEvidence, *, epsilon: float, delta: float) -> float:
        """There are none."""
        raise NotDefinedError("MaxCosine is an estimate and does not define p-values.")

    def findings(
        self, evidence: CosineEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """That this is no bound."""
        estimate = self.epsilon_point(evidence, delta=delta)
        return (
            Finding(
                check="estimate",
                status=Status.INFO,
                summary=f"epsilon is estimated at {estimate:.4g}; an estimate is not a bound.",
                measured=estimate,
                remedy="Use GaussianShift() for a bound.",
            ),
        )


def cosine_epsilon(mean: float, deviation: float, *, dimension: int, delta: float) -> float:
    """Epsilon of a threshold between random cosines and Gaussian ones.

    Args:
        mean: Mean of the Gaussian cosines.
        deviation: Their standard deviation, above 0.
        dimension: Dimension of the random directions, at least 2.
        delta: Delta, in (0, 1).

    Returns:
        The largest epsilon that any threshold shows; infinite if the Gaussian exceeds the largest
        possible cosine with more than delta.

    Examples:
        >>> sigma = 200 ** -0.5
        >>> round(cosine_epsilon(sigma, sigma, dimension=200, delta=1e-2), 3)
        2.375
    """
    _validate.positive(deviation=deviation)
    _validate.integer(2, dimension=dimension)
    _validate.probability(delta=delta)
    if ndtr((mean - 1.0) / deviation) > delta or ndtr((-1.0 - mean) / deviation) > delta:
        return math.inf

    def shown(threshold: Array) -> Array:
        upper, lower = _cosine_tails(threshold, dimension)
        above, below = ndtr((mean - threshold) / deviation), ndtr((threshold - mean) / deviation)
        best = np.full(threshold.shape, -np.inf)
        for power, cost in ((above, upper), (below, lower), (upper, above), (lower, below)):
            useful = (power > delta) & (cost > 0.0)
            best[useful] = np.maximum(best[useful], np.log((power[useful] - delta) / cost[useful]))
        return best

    # Beyond these neither side has more than delta; each round narrows the best cell.
    reach = max(8.0 * deviation, 40.0 / math.sqrt(dimension))
    depth = deviation * float(-ndtri(delta))
    low = max(-1.0, min(mean - depth, -reach))
    high = min(1.0, max(mean + depth, reach))
    epsilon = 0.0
    for _ in range(5):
        grid = np.linspace(low, high, 2001)
        values = shown(grid)
        best = int(np.argmax(values))
        epsilon = max(epsilon, float(values[best]))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
    return epsilon


def _cosine_tails(threshold: Array, dimension: int) -> tuple[Array, Array]:
    """Probability that a random cosine is at least, and at most, the threshold."""
    # (1 + cosine) / 2 has a symmetric beta law.
    half = (dimension - 1.0) / 2.0
    upper = betainc(half, half, np.clip((1.0 - threshold) / 2.0, 0.0, 1.0))
    lower = betainc(half, half, np.clip((1.0 + threshold) / 2.0, 0.0, 1.0))
    return np.asarray(upper), np.asarray(lower)
