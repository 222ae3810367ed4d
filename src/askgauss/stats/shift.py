"""Exact one-sided inference on the standardised shift between two groups of Gaussian scores.

Absent scores are N(m, v); present ones N(m + g, v (1 + kappa psi^2)) with psi = g / sqrt(v), the
shift. ``kappa`` is the variance Poisson sampling adds, (1 - q) / (q T); 0 where there is none. For
a given psi the ratio of the two variances is known, so the usual two-sample t statistic, weighted
by it, is exactly noncentral t: inverting that test is exact at every sample size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, ndtri_exp

from askgauss.stats import noncentral_t
from askgauss.stats.search import close_bracket

__all__ = ["ShiftTest", "SlopeTest", "lower_noncentrality", "sampling_variance"]

# With kappa > 0 the p-value need not increase with the shift, so its first crossing is looked for
# on a grid.
_SCAN = 192
_STEADY = 1.0
_TOLERANCE = 1e-10


def sampling_variance(steps: int, sampling_rate: float) -> float:
    """Variance that Poisson sampling adds to a present score, in units of its squared shift."""
    return (1.0 - sampling_rate) / (sampling_rate * steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftTest:
    """The test of one shift against larger ones, as a function of the shift.

    Attributes:
        present: Number of present scores, their mean and sum of squared deviations.
        absent: The same for absent scores.
        kappa: Variance that sampling adds, in units of the squared shift.
    """

    present: tuple[int, float, float]
    absent: tuple[int, float, float]
    kappa: float = 0.0

    @property
    def gap(self) -> float:
        """Difference of the means."""
        return self.present[1] - self.absent[1]

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom of the pooled variance."""
        return self.present[0] + self.absent[0] - 2

    @property
    def degenerate(self) -> bool:
        """True where the absent scores do not vary at all: no noise, so no finite shift fits."""
        return self.absent[2] == 0.0

    def statistic(self, shift: Any) -> tuple[Any, Any]:
        """The t statistic under each shift and its noncentrality there."""
        ratio = 1.0 + self.kappa * shift**2
        spread = np.sqrt(1.0 / self.absent[0] + ratio / self.present[0])
        pooled = (self.absent[2] + self.present[2] / ratio) / self.degrees_of_freedom
        return self.gap / (np.sqrt(pooled) * spread), shift / spread

    def p_values(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """P[t' >= t] under each shift."""
        return np.asarray(np.exp(self._log_p_values(shift)))

    def _log_p_values(self, shift: Any) -> Any:
        statistic, noncentrality = self.statistic(shift)
        return noncentral_t.log_survival(statistic, self.degrees_of_freedom, noncentrality)

    def lower(self, error: float) -> float:
        """The smallest shift >= 0 that is not rejected at this error: a lower bound on the truth.

        Returns:
            0 where even no shift fits, infinity where no finite shift does.
        """
        if self.gap <= 0.0:
            return 0.0
        if self.degenerate:
            return math.inf
        if not self._may_turn:
            return _first_not_rejected(self._log_p_values, error, self._guess(error))
        grid = np.linspace(0.0, self._bracket(max(error, 0.5)), _SCAN)
        first = int(np.argmax(self.p_values(grid) >= error))
        if first == 0:
            return 0.0
        low, high = float(grid[first - 1]), float(grid[first])
        return _first_not_rejected(self._log_p_values, error, (low, high))

    def _guess(self, error: float) -> tuple[float, float]:
        """Where the bound should be, by the normal approximation, give or take a little."""
        statistic, _ = self.statistic(0.0)
        scale = math.sqrt(1.0 / self.absent[0] + 1.0 / self.present[0])
        middle = _normal_guess(float(statistic), self.degrees_of_freedom, error)
        return scale * max(middle - 0.02, 0.0), scale * max(middle + 0.02, 0.02)

    def p_value(self, shift: float) -> float:
        """The p-value of "the shift is at most this": the largest over all such shifts."""
        if self.degenerate:
            return 0.0 if self.gap > 0.0 else 1.0
        if math.isinf(shift):
            return 1.0
        points = np.linspace(0.0, shift, _SCAN) if self._may_turn else np.array([shift])
        return float(self.p_values(points).max())

    @property
    def _may_turn(self) -> bool:
        """Whether the p-value may fall somewhere instead of rising with the shift throughout.

        It rises where sampling adds nothing, and rose in every case tried with little added
        variance and no fewer absent scores than present ones.
        """
        steady = self.kappa <= _STEADY and self.absent[0] >= self.present[0]
        return self.kappa > 0.0 and not steady

    def _bracket(self, error: float) -> float:
        """A shift that is certainly not rejected; p tends to at least one half."""
        statistic, _ = self.statistic(np.float64(0.0))
        high = max(float(statistic), 1.0) * math.sqrt(1.0 / self.absent[0] + 1.0 / self.present[0])
        high *= 1.0 + 1.0 / self.degrees_of_freedom
        while math.isfinite(high) and math.exp(self._log_p_values(high)) < error:
            high *= 2.0
        return high

    def power(self, *, shift: float, true_shift: float, error: float) -> float:
        """Probability that "the shift is at most ``shift``" is rejected at a true shift.

        Uses the counts only, not the observed scores; exact for kappa = 0, and to first order in
        the difference of the two variance ratios otherwise.
        """
        ratio, true_ratio = (1.0 + self.kappa * value**2 for value in (shift, true_shift))
        spread, true_spread = (
            math.sqrt(1.0 / self.absent[0] + value / self.present[0])
            for value in (ratio, true_ratio)
        )
        freedom = self.degrees_of_freedom
        critical = _critical(error, freedom, shift / spread)
        # Under the true shift the statistic is wider by the ratio of the two spreads.
        scaled = critical * spread / true_spread
        return float(noncentral_t.survival(scaled, freedom, true_shift / true_spread))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeTest:
    """The same inference where each score has a known weight: score = m + slope * weight + noise.

    With weight 1 for present scores and 0 for absent ones this is `ShiftTest` without added
    variance. The slope's t statistic is exactly noncentral t whatever the weights.

    Attributes:
        count: Number of scores.
        slope: Least-squares slope.
        spread: Sum of squared deviations of the weights.
        residual: Sum of squared residuals.
    """

    count: int
    slope: float
    spread: float
    residual: float

    @classmethod
    def fit(cls, weights: NDArray[np.float64], scores: NDArray[np.float64]) -> SlopeTest:
        """Least squares of the scores on their weights."""
        centred = weights - weights.mean()
        spread = float(centred @ centred)
        slope = float(centred @ scores) / spread if spread else 0.0
        residuals = scores - scores.mean() - slope * centred
        return cls(
            count=scores.size, slope=slope, spread=spread, residual=float(residuals @ residuals)
        )

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom of the residual variance."""
        return self.count - 2

    @property
    def _statistic(self) -> float:
        return self.slope * math.sqrt(self.spread * self.degrees_of_freedom / self.residual)

    def lower(self, error: float) -> float:
        """Lower bound on the slope in units of the noise."""
        if self.slope <= 0.0 or self.spread == 0.0:
            return 0.0
        if self.residual == 0.0:
            return math.inf
        noncentrality = lower_noncentrality(self._statistic, self.degrees_of_freedom, error)
        return noncentrality / math.sqrt(self.spread)

    def p_value(self, shift: float) -> float:
        """The p-value of "the slope is at most this many units of the noise"."""
        if self.spread == 0.0 or math.isinf(shift):
            return 1.0
        if self.residual == 0.0:
            return 0.0 if self.slope > 0.0 else 1.0
        noncentrality = shift * math.sqrt(self.spread)
        return float(noncentral_t.survival(self._statistic, self.degrees_of_freedom, noncentrality))

    def power(self, *, shift: float, true_shift: float, error: float) -> float:
        """Probability that "the slope is at most ``shift``" is rejected at a true shift."""
        root, freedom = math.sqrt(self.spread), self.degrees_of_freedom
        critical = _critical(error, freedom, shift * root)
        return float(noncentral_t.survival(critical, freedom, true_shift * root))


def lower_noncentrality(statistic: float, freedom: int, error: float) -> float:
    """The smallest noncentrality >= 0 under which t reaches ``statistic`` with this probability.

    Examples:
        >>> round(lower_noncentrality(5.0, 1000, 0.05), 3)
        3.344
    """

    def log_p(noncentrality: float) -> Any:
        return noncentral_t.log_survival(statistic, freedom, noncentrality)

    middle = _normal_guess(statistic, freedom, error)
    guess = max(middle - 0.02, 0.0), max(middle + 0.02, 0.02)
    return _first_not_rejected(log_p, error, guess)


def _normal_guess(statistic: float, freedom: int, error: float) -> float:
    return statistic + float(ndtri(error)) * math.sqrt(1.0 + 0.5 * statistic**2 / freedom)


def _first_not_rejected(
    log_p: Callable[[float], Any], error: float, guess: tuple[float, float]
) -> float:
    """Where a rising p-value first reaches ``error``, from below; 0 if it is there from the start.

    The guess need not hold the crossing: its ends move outwards, twice as far each time.
    """
    quantile = float(ndtri(error))

    def margin(value: float) -> float:
        # In probits the p-value is nearly a straight line, so few steps find its crossing.
        return quantile - float(ndtri_exp(log_p(value)))

    low, high = guess
    width = high - low
    while (at_low := margin(low)) <= 0.0:
        if low == 0.0:
            return 0.0
        low, high, width = max(low - width, 0.0), low, 2.0 * width
    while (at_high := margin(high)) > 0.0:
        low, at_low, high, width = high, at_high, high + width, 2.0 * width
    return close_bracket(margin, low, at_low, high, at_high, _TOLERANCE)


def _critical(error: float, freedom: int, noncentrality: float) -> float:
    """The value a noncentral t exceeds with probability ``error``."""
    quantile = float(ndtri(error))

    def margin(value: float) -> float:
        log_tail = noncentral_t.log_survival(value, freedom, noncentrality)
        return float(ndtri_exp(log_tail)) - quantile

    width = math.sqrt(1.0 + 0.5 * noncentrality**2 / freedom)
    low = noncentrality - quantile * width
    high = low + 0.05 * width
    while (at_low := margin(low)) <= 0.0:
        low, high = low - width, low
    while (at_high := margin(high)) > 0.0:
        low, at_low, high = high, at_high, high + width
    return close_bracket(margin, low, at_low, high, at_high, 1e-6)
