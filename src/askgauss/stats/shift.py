"""One-sided inference on the standardised shift between two groups of Gaussian scores.

Absent scores are N(m, v); present ones N(m + g, v (1 + kappa psi^2)) with psi = g / sqrt(v), the
shift. ``kappa`` is the variance Poisson sampling adds, (1 - q) / (q T); 0 where there is none. For
a given psi the ratio of the two variances is known, so the usual two-sample t statistic, weighted
by it, is exactly noncentral t: inverting that test is exact at every sample size (`ShiftTest`).
Where sampling leaves single scores too far from Gaussian (`pooling_excess`), their variance is not
independent of their mean and is left out: absent scores alone tell the noise.

Under Poisson sampling present scores are not quite Gaussian, and where few inclusions are expected
in all of them together, their mean is not either: its right tail is heavier. `SampledShiftTest`
sums over the number of inclusions instead, and is exact at every number of canaries and steps.

**Noncentral t.** T' = (Z + noncentrality) / (chi / sqrt(df)) with Z standard normal and chi
independent of it, so

    P[T' >= t] = integral over chi of density(chi) * Phi(noncentrality - t * chi / sqrt(df)).

The integrand is log-concave: one window around its peak holds everything, however deep in the tail.
Three things keep the digits that other ways lose. The window comes in closed form from a bound on
the integrand; it is cut in two where Phi stops being 1, since Phi may be a step far sharper than
the density; and the density is written around its own peak, where nothing large cancels.
Against mpmath the relative error stays below 1e-11 for df up to 6e8 and noncentrality up to 1e7,
in either tail, down to probabilities of exp(-1e3); far below, the logarithm keeps 13 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import logsumexp, ndtri, ndtri_exp

from askgauss import _validate
from askgauss.stats.limits import binomial_weights, close_bracket

__all__ = [
    "SampledShiftTest",
    "ShiftTest",
    "SlopeTest",
    "least_noticed",
    "log_t_survival",
    "lower_noncentrality",
    "pooling_excess",
    "sampling_variance",
    "t_survival",
    "within_canaries",
]

# With kappa > 0 the p-value need not increase with the shift, so its first crossing is looked for
# on a grid.
_SCAN = 192
_STEADY = 1.0
_TOLERANCE = 1e-10
# Shifts over which the pooled variance must be fit to use.
_SHIFTS = np.linspace(0.0, 12.0, 97)
# Left out of the sum over inclusions, and added to the p-value: 2 exp(-30) = 2e-13.
_BUDGET = 30.0
_LEFT_OUT = 2.0 * math.exp(-_BUDGET)
# Chances closer to 0 or 1 are taken for this, which has a probit.
_NEVER = 1e-12
# A shift that is not noticed at so many times the claimed one never is.
_LARGEST_RATIO = 1e4


def sampling_variance(steps: float, sampling_rate: float) -> float:
    """Variance that Poisson sampling adds to a present score, in units of its squared shift."""
    return (1.0 - sampling_rate) / (sampling_rate * steps)


def pooling_excess(present: int, absent: int, *, steps: int, sampling_rate: float) -> float:
    """How much more the pooled t statistic varies under sampling than `ShiftTest` has it.

    Scores of a sampled sum have a third and a fourth cumulant. To first order the statistic moves
    with the mean of the present scores minus the shift times the pooled deviation, so its variance
    gains shift^2 k4 / (4 r^2) n1 / N^2 - shift k3 / (r N), in units of the noise, N scores in all.
    Neither vanishes beside the rest with more canaries. Below a rate of one half k3 > 0 and the
    sum is negative, so that the test is cautious; towards a rate of one it is not.

    Args:
        present: Number of present scores.
        absent: Number of absent scores.
        steps: Steps summed into a score.
        sampling_rate: Poisson sampling rate.

    Returns:
        The largest relative gain over all shifts up to 12, where epsilon is above 100; 0 or above.

    Examples:
        >>> pooling_excess(1112, 1112, steps=1, sampling_rate=0.9) > 0.5
        True
        >>> pooling_excess(1112, 1112, steps=2500, sampling_rate=0.9) < 1e-3
        True
    """
    q, size = sampling_rate, present + absent - 2
    shift = _SHIFTS
    jump = shift / (q * steps)
    coin = steps * q * (1.0 - q)
    ratio = 1.0 + coin * jump**2
    third = coin * (1.0 - 2.0 * q) * jump**3
    fourth = coin * (1.0 - 6.0 * q * (1.0 - q)) * jump**4
    usual = 1.0 / absent + ratio / present + 0.5 * shift**2 / size
    gain = 0.25 * shift**2 * fourth / ratio**2 * present / size**2 - shift * third / (ratio * size)
    return max(0.0, float((gain / usual).max()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftTest:
    """The test of one shift against larger ones, as a function of the shift.

    Attributes:
        present: Number of present scores, their mean and sum of squared deviations.
        absent: The same for absent scores.
        kappa: Variance that sampling adds, in units of the squared shift.
        pooled: Whether present scores speak of the variance too. Only where they are Gaussian:
            their variance is then independent of their mean.
    """

    present: tuple[int, float, float]
    absent: tuple[int, float, float]
    kappa: float = 0.0
    pooled: bool = True

    @property
    def gap(self) -> float:
        """Difference of the means."""
        return self.present[1] - self.absent[1]

    @property
    def degrees_of_freedom(self) -> int:
        """Degrees of freedom of the variance."""
        return self.absent[0] - 1 + (self.present[0] - 1 if self.pooled else 0)

    @property
    def degenerate(self) -> bool:
        """True where the absent scores do not vary at all: no noise, so no finite shift fits."""
        return self.absent[2] == 0.0

    def statistic(self, shift: Any) -> tuple[Any, Any]:
        """The t statistic under each shift and its noncentrality there."""
        ratio = 1.0 + self.kappa * shift**2
        spread = self._spread(ratio)
        squares = self.absent[2] + (self.present[2] / ratio if self.pooled else 0.0)
        variance = squares / self.degrees_of_freedom
        return self.gap / (np.sqrt(variance) * spread), shift / spread

    def _spread(self, ratio: Any) -> Any:
        """Standard error of the gap in units of the noise, at this ratio of the variances."""
        return np.sqrt(1.0 / self.absent[0] + ratio / self.present[0])

    def p_values(self, shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """P[t' >= t] under each shift."""
        return np.asarray(np.exp(self._log_p_values(shift)))

    def _log_p_values(self, shift: Any) -> Any:
        statistic, noncentrality = self.statistic(shift)
        return log_t_survival(statistic, self.degrees_of_freedom, noncentrality)

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
        middle = 0.0
        for _ in range(3):  # the statistic depends on the shift, a little
            statistic = float(self.statistic(middle)[0])
            scale = self._spread(1.0 + self.kappa * middle**2)
            middle = scale * max(_normal_guess(statistic, self.degrees_of_freedom, error), 0.0)
        return max(middle - 0.02 * scale, 0.0), middle + 0.02 * scale

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
        if math.isinf(shift):
            return 0.0
        ratio, true_ratio = (1.0 + self.kappa * value**2 for value in (shift, true_shift))
        spread, true_spread = (float(self._spread(value)) for value in (ratio, true_ratio))
        freedom = self.degrees_of_freedom
        critical = _critical(error, shift / spread, freedom)
        # Under the true shift the statistic is wider by the ratio of the two spreads.
        scaled = critical * spread / true_spread
        return float(t_survival(scaled, freedom, true_shift / true_spread))

    def noticed_guess(self, *, shift: float, error: float, power: float) -> float:
        """About the true shift at which `power` is so much, by the normal approximation."""
        spread = float(self._spread(1.0 + self.kappa * shift**2))
        critical = _critical(error, shift / spread, self.degrees_of_freedom)
        width = math.sqrt(1.0 + 0.5 * critical**2 / self.degrees_of_freedom)
        guess = shift
        for _ in range(3):  # the spread depends on the shift, a little
            wide = float(self._spread(1.0 + self.kappa * guess**2))
            guess = critical * spread + float(ndtri(power)) * width * wide
        return guess


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledShiftTest:
    """The test of one shift against larger ones where inclusions are few, summed over their number.

    Given K inclusions of all present canaries together, the difference of the means is Gaussian
    about shift K / E[K]. Against the spread of the absent scores alone, which sampling leaves as it
    is, t is then noncentral t, and its tail under a shift is the binomial mean of those tails. It
    rises with the shift, so there is one crossing.

    Where a canary is more likely than not never sampled the test rejects nothing.

    Attributes:
        present: Number of present scores and their mean.
        absent: Number of absent scores, their mean and sum of squared deviations.
        steps: Steps summed into a score.
        sampling_rate: Poisson sampling rate, below 1.
    """

    present: tuple[int, float]
    absent: tuple[int, float, float]
    steps: int
    sampling_rate: float

    @property
    def _gap(self) -> float:
        return self.present[1] - self.absent[1]

    @property
    def _degenerate(self) -> bool:
        return self.absent[2] == 0.0

    @property
    def _opportunities(self) -> int:
        return self.present[0] * self.steps

    @property
    def _hopeless(self) -> bool:
        return self._opportunities * math.log1p(-self.sampling_rate) >= -math.log(2.0)

    @property
    def _spread(self) -> float:
        return math.sqrt(1.0 / self.absent[0] + 1.0 / self.present[0])

    @property
    def _statistic(self) -> float:
        return self._gap / (math.sqrt(self.absent[2] / (self.absent[0] - 1)) * self._spread)

    def _log_p_values(self, shift: Any) -> Any:
        return _log_tail(
            self._statistic,
            self.absent[0] - 1,
            shift / self._spread,
            self._opportunities,
            self.sampling_rate,
        )

    def lower(self, error: float) -> float:
        """The smallest shift >= 0 that is not rejected at this error of at most one half."""
        if self._gap <= 0.0 or self._hopeless:
            return 0.0
        if self._degenerate:
            return math.inf
        guess = self._statistic * self._spread
        return _first_not_rejected(self._log_p_values, error, (0.5 * guess, guess))

    def p_value(self, shift: float) -> float:
        """The p-value of "the shift is at most this"; at least 2e-13."""
        if self._hopeless or math.isinf(shift):
            return 1.0
        if self._degenerate:
            return 0.0 if self._gap > 0.0 else 1.0
        return math.exp(float(self._log_p_values(shift)))

    def power(self, *, shift: float, true_shift: float, error: float) -> float:
        """Probability that "the shift is at most ``shift``" is rejected at a true shift."""
        if self._hopeless or math.isinf(shift) or error <= _LEFT_OUT:
            return 0.0
        freedom, sampling = self.absent[0] - 1, (self._opportunities, self.sampling_rate)
        critical = _critical(error, shift / self._spread, freedom, *sampling)
        return math.exp(float(_log_tail(critical, freedom, true_shift / self._spread, *sampling)))


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
        inflation: How many times as much the slope varies as residuals that are alike give it.
    """

    count: int
    slope: float
    spread: float
    residual: float
    inflation: float = 1.0

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
        root = math.sqrt(self.spread * self.degrees_of_freedom / self.residual)
        return self.slope * root / self.inflation

    def lower(self, error: float) -> float:
        """Lower bound on the slope in units of the noise."""
        if self.slope <= 0.0 or self.spread == 0.0:
            return 0.0
        if self.residual == 0.0:
            return math.inf
        noncentrality = lower_noncentrality(self._statistic, self.degrees_of_freedom, error)
        return noncentrality * self.inflation / math.sqrt(self.spread)

    def p_value(self, shift: float) -> float:
        """The p-value of "the slope is at most this many units of the noise"."""
        if self.spread == 0.0 or math.isinf(shift):
            return 1.0
        if self.residual == 0.0:
            return 0.0 if self.slope > 0.0 else 1.0
        noncentrality = shift * math.sqrt(self.spread) / self.inflation
        return float(t_survival(self._statistic, self.degrees_of_freedom, noncentrality))

    def power(self, *, shift: float, true_shift: float, error: float) -> float:
        """Probability that "the slope is at most ``shift``" is rejected at a true shift."""
        root, freedom = math.sqrt(self.spread) / self.inflation, self.degrees_of_freedom
        critical = _critical(error, shift * root, freedom)
        return float(t_survival(critical, freedom, true_shift * root))


def least_noticed(
    test: ShiftTest | SampledShiftTest | SlopeTest, *, shift: float, error: float, power: float
) -> float:
    """The smallest true shift at which "at most ``shift``" is rejected with this power.

    Returns:
        That shift to a few parts in 10 000; infinite where no shift is enough.
    """
    if not 0.0 < shift < math.inf:
        return math.inf

    def margin(ratio: float) -> float:
        # In probits power is nearly a straight line, so few steps find where it is enough.
        found = test.power(shift=shift, true_shift=ratio * shift, error=error)
        chance = min(max(found, _NEVER), 1.0 - _NEVER)
        return float(ndtri(chance) - ndtri(power)) + _NEVER

    # At the shift itself, the test rejects as often as its error.
    low, at_low = 1.0, float(ndtri(error) - ndtri(power))
    if at_low > 0.0:
        return shift
    high = 1.25
    if isinstance(test, ShiftTest):
        high = max(test.noticed_guess(shift=shift, error=error, power=power) / shift, 1.0) + 2e-4
    while (at_high := margin(high)) <= 0.0:
        if high > _LARGEST_RATIO:
            return math.inf
        low, at_low, high = high, at_high, max(1.1 * high, 2.0 * high - 1.0)
    # From the noticed end, so that what is returned is noticed.
    return shift * close_bracket(margin, high, at_high, low, at_low, 5e-5)


def lower_noncentrality(statistic: float, freedom: int, error: float) -> float:
    """The smallest noncentrality >= 0 under which t reaches ``statistic`` with this probability.

    Examples:
        >>> round(lower_noncentrality(5.0, 1000, 0.05), 3)
        3.344
    """

    def log_p(noncentrality: float) -> Any:
        return log_t_survival(statistic, freedom, noncentrality)

    middle = _normal_guess(statistic, freedom, error)
    guess = max(middle - 0.02, 0.0), max(middle + 0.02, 0.02)
    return _first_not_rejected(log_p, error, guess)


def _normal_guess(statistic: float, freedom: int, error: float) -> float:
    return statistic + float(ndtri(error)) * math.sqrt(1.0 + 0.5 * statistic**2 / freedom)


def _first_not_rejected(
    log_p: Callable[[Any], Any], error: float, guess: tuple[float, float]
) -> float:
    """Where a rising p-value first reaches ``error``, from below; 0 if it is there from the start.

    The guess need not hold the crossing.
    """
    quantile = float(ndtri(error))
    # In probits the p-value is nearly a straight line, so few steps find its crossing.
    return _last_positive(lambda x: quantile - ndtri_exp(log_p(x)), guess, floor=0.0)


def _log_tail(
    statistic: float, freedom: int, noncentrality: Any, opportunities: int = 1, rate: float = 1.0
) -> Any:
    """Logarithm of P[t' >= statistic], where a share K / E[K] of the noncentrality is met.

    K is the number of inclusions among so many opportunities; at rate 1 it is always the same. What
    is left out of the sum over K is added, so that the tail is never too light.
    """
    if rate == 1.0:
        return log_t_survival(statistic, freedom, noncentrality)
    counts, logs = binomial_weights(opportunities, rate, _BUDGET)
    met = np.multiply.outer(noncentrality, counts / (rate * opportunities))
    tails = logsumexp(logs + log_t_survival(statistic, freedom, met), axis=-1)
    return np.minimum(np.logaddexp(tails, math.log(_LEFT_OUT)), 0.0)


# Power is asked for at many true shifts, by every audit of a kind, and always of this one value.
@lru_cache(maxsize=256)
def _critical(
    error: float, noncentrality: float, freedom: int, opportunities: int = 1, rate: float = 1.0
) -> float:
    """The value that the t of :func:`_log_tail` exceeds with probability ``error``."""
    quantile = float(ndtri(error))

    def margin(values: NDArray[np.float64]) -> NDArray[np.float64]:
        tails = [
            _log_tail(float(value), freedom, noncentrality, opportunities, rate) for value in values
        ]
        return np.asarray(ndtri_exp(tails)) - quantile

    sampling = (1.0 - rate) / (rate * opportunities)
    width = math.sqrt(1.0 + noncentrality**2 * (0.5 / freedom + sampling))
    low = noncentrality - quantile * width
    return _last_positive(margin, (low, low + 0.05 * width), tolerance=1e-8)


def _last_positive(
    margin: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    guess: tuple[float, float],
    *,
    floor: float = -math.inf,
    tolerance: float = _TOLERANCE,
) -> float:
    """The last point before a falling function of arrays stops being positive; else ``floor``.

    The guess is a bracket that moves outwards, twice as far each time, until it holds the crossing.
    A parabola through three of its points then nearly always lands on it.
    """
    low, high = guess
    # Of a large number a narrow guess may have no width left, and would never move.
    width = max(high - low, tolerance * (1.0 + abs(high)))
    while True:
        points = np.array([low, 0.5 * (low + high), high])
        values = margin(points)
        if values[0] <= 0.0:
            if low <= floor:
                return floor
            low, high, width = max(low - width, floor), low, 2.0 * width
        elif values[2] > 0.0:
            low, high, width = high, high + width, 2.0 * width
        else:
            break
    root = _inverse_parabola(points, values)
    beside = root + 0.49 * tolerance * (1.0 + abs(root)) * np.array([-1.0, 1.0])
    if low <= beside[0] and beside[1] <= high:
        points, values = np.append(points, beside), np.append(values, margin(beside))
    order = np.argsort(points)
    points, values = points[order], values[order]
    after = int(np.argmax(values <= 0.0))  # never the first one
    return close_bracket(
        lambda x: float(margin(np.array([x]))[0]),
        float(points[after - 1]),
        float(values[after - 1]),
        float(points[after]),
        float(values[after]),
        tolerance,
    )


def _inverse_parabola(points: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    """Where the parabola through three points, taken as a function of their values, is at 0."""
    a, b, c = (float(value) for value in values)
    if not math.isfinite(a - c) or a == b or b == c:
        return math.nan
    weights = (
        b * c / ((a - b) * (a - c)),
        a * c / ((b - a) * (b - c)),
        a * b / ((c - a) * (c - b)),
    )
    return float(points @ weights)


Array: TypeAlias = NDArray[np.float64]

# Outside the window the integrand has fallen by exp(-_DROP); Phi(_STEP) is 1 but for 1e-18.
_DROP = 46.0
_STEP = 8.8
_T_NODES, _T_WEIGHTS = np.polynomial.legendre.leggauss(48)
_LARGEST = 1e100
_SERIES_BELOW = 0.0025
_ARTANH = (1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3)
_STIRLING_FROM = 16.0
_STIRLING = (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_HALF_LOG_PI = 0.5 * math.log(math.pi)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def t_survival(t: ArrayLike, df: ArrayLike, noncentrality: ArrayLike) -> Array:
    """Probability that a noncentral t variable is at least ``t``.

    Args:
        t: Where the tail starts; may be infinite.
        df: Degrees of freedom, whole numbers from 1.
        noncentrality: Mean of the normal in the numerator, of either sign.

    Returns:
        The probabilities, in the shape the arguments broadcast to.

    Examples:
        >>> float(t_survival(2.0, 10, 0.0).round(10))
        0.0366940174
        >>> t_survival(1e6, 1e4, [0.99e6, 1e6, 1.01e6]).round(6)
        array([0.078995, 0.501881, 0.921697])
    """
    return np.exp(log_t_survival(t, df, noncentrality))


def log_t_survival(t: ArrayLike, df: ArrayLike, noncentrality: ArrayLike) -> Array:
    """Logarithm of :func:`t_survival`, finite where the probability itself underflows.

    Examples:
        >>> float(log_t_survival(200.0, 1000, 10.0).round(6))
        -1573.063002
    """
    t, df, noncentrality = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (t, df, noncentrality))
    )
    _check_t(t, df, noncentrality)
    finite = np.isfinite(t)
    result = np.where(t > 0.0, -np.inf, 0.0)
    result[finite] = _log_integral(t[finite], df[finite], noncentrality[finite])
    return result[()]


def _check_t(t: Array, df: Array, noncentrality: Array) -> None:
    if not np.all(np.isinf(t) | (np.abs(t) <= _LARGEST)):
        raise _validate.fail("t", t, f"to be infinite or within {_LARGEST:g} of zero")
    # At fractional df the density has a root-like edge at zero, which the rule does not resolve.
    if not np.all((df >= 1.0) & (df <= _LARGEST) & (df == np.floor(df))):
        raise _validate.fail("df", df, "to be whole numbers >= 1")
    if not np.all(np.abs(noncentrality) <= _LARGEST):
        raise _validate.fail("noncentrality", noncentrality, f"within {_LARGEST:g} of zero")


def _log_integral(t: Array, df: Array, noncentrality: Array) -> Array:
    low, cut, high = _window(t, df, noncentrality)
    result = np.full(t.shape, -np.inf)
    for start, end in ((low, cut), (cut, high)):
        held = end > start
        if held.any():
            part = _log_panel(start[held], end[held], t[held], df[held], noncentrality[held])
            result[held] = np.logaddexp(result[held], part)
    capped: Array = np.minimum(result, 0.0)
    return capped


def _log_panel(start: Array, end: Array, t: Array, df: Array, noncentrality: Array) -> Array:
    """Logarithm of the integral over chi from ``start`` to ``end``, by Gauss-Legendre."""
    scale = np.sqrt(df)
    half = 0.5 * (end - start)
    t, df, noncentrality = t[:, None], df[:, None], noncentrality[:, None]
    # chi = sqrt(df) * ratio = sqrt(df) * (1 + u): each has the digits where the other lacks them.
    spread = (half / scale)[:, None] * _T_NODES
    ratio = (0.5 * (start + end) / scale)[:, None] + spread
    u = (0.5 * ((start - scale) + (end - scale)) / scale)[:, None] + spread
    y = np.where(ratio < 0.5, t * ratio - noncentrality, t * u + (t - noncentrality))
    log = _log_density(ratio, u, df) + special.log_ndtr(-y)
    peak = log.max(axis=1)
    total: Array = peak + np.log(half * (np.exp(log - peak[:, None]) @ _T_WEIGHTS))
    return total


def _window(t: Array, df: Array, noncentrality: Array) -> tuple[Array, Array, Array]:
    """Range of chi that matters: its start, the point where Phi becomes or ceases to be 1, its end.

    The integrand lies below an envelope: Phi(-y) <= exp(-y^2 / 2) where y > 0, and <= 1 elsewhere.
    The envelope peaks at the positive root of a quadratic. Left of it its logarithm falls at least
    as fast as a parabola; right of it x - log(1 + x) >= x^2 / (2 (1 + x)) says how fast.
    """
    slope = t / np.sqrt(df)
    power = df - 1.0
    # y at the peak of the density; where it is positive, the envelope peaks elsewhere
    depth = slope * np.sqrt(power) - noncentrality
    tail = depth > 0.0
    steep = np.where(tail, slope, 0.0)
    widen = 1.0 + steep * steep
    centre = 0.5 * steep / widen * noncentrality
    root = np.hypot(centre, np.sqrt(power / widen))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Two forms of one root, so that neither sign of the centre cancels; power may be 0.
        peak = np.where(centre < 0.0, power / (widen * (root - centre)), root + centre)
        pull = np.fmax(np.where(centre < 0.0, widen * (root - centre), power / peak), 0.0)
        left = np.sqrt(2.0 * _DROP / (widen + np.fmax(pull / peak, 0.0)))
        reach = _DROP / pull
        right = np.fmin(np.sqrt(2.0 * _DROP / widen), reach + np.sqrt(reach * (reach + 2.0 * peak)))
        right = np.sqrt(2.0 * _DROP / (widen + pull / (peak + right)))
        low, high = peak - left, peak + right
        # Where the window passes the step (y = 0), the density alone falls from there on.
        both = (1.0 + 1.0 / widen) * np.abs(noncentrality) + 2.0 * np.abs(steep) * root
        less = 2.0 * depth * (np.abs(depth + 2.0 * noncentrality) / (widen * both))
        height = np.where(centre > 0.0, less, 0.5 * both)  # y at the peak of the envelope
        step = noncentrality / slope
        fall = np.abs(power / step - step)
        curve = 1.0 + np.where(slope > 0.0, power / (step * step), 0.0)
        beyond = 2.0 * _DROP / (fall + np.sqrt(fall * fall + 2.0 * _DROP * curve))
        low = np.where(tail & (slope > 0.0) & (height < slope * left), step - beyond, low)
        high = np.where(tail & (slope < 0.0) & (height < -slope * right), step + beyond, high)
        end = (noncentrality + math.sqrt(2.0 * _DROP)) / slope
        cut = (noncentrality - _STEP) / slope
    low = np.where(~tail & (slope < 0.0), np.maximum(low, end), low)
    high = np.where(~tail & (slope > 0.0), np.minimum(high, end), high)
    low = np.maximum(low, 0.0)
    return low, np.where(slope == 0.0, low, np.clip(cut, low, high)), high


def _log_density(ratio: Array, u: Array, df: Array) -> Array:
    """Logarithm of the density of chi at sqrt(df) * ratio, where ratio = 1 + u."""
    log = np.log(ratio)
    # log(1 + u) - u - u^2 / 2 with log(1 + u) = 2 artanh(r), less the terms that cancel
    r = u / (2.0 + u)
    square = r * r
    series = square * r * _polynomial(square, _ARTANH)
    near = 2.0 * (series - square * (2.0 - r) / (1.0 - r) ** 2)
    far = log - u * (1.0 + 0.5 * u)
    exponent = df * np.where(square < _SERIES_BELOW, near, far) - log
    density: Array = exponent - (_stirling_remainder(0.5 * df) + _HALF_LOG_PI)
    return density


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """The polynomial with these coefficients, highest first."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


def _stirling_remainder(x: Array) -> Array:
    """What Stirling's formula leaves out of log Gamma(x)."""
    inverse = 1.0 / x
    series = inverse * _polynomial(inverse * inverse, _STIRLING)
    if x.min() >= _STIRLING_FROM:
        return series
    small = np.minimum(x, _STIRLING_FROM)
    direct = special.gammaln(small) - (small - 0.5) * np.log(small) + small - _HALF_LOG_TWO_PI
    return np.where(x < _STIRLING_FROM, direct, series)


def within_canaries(
    *,
    planted: NDArray[np.int64],
    planted_total: NDArray[np.float64],
    total: NDArray[np.float64],
    square: NDArray[np.float64],
    steps: int,
) -> SlopeTest:
    """Least squares of all observations on planting, with a level of its own for each canary.

    What the other records add may be anything, in bursts and in a few coordinates only. The coins
    that plant know nothing of it, so that given what a canary would have shown without planting,
    its planted steps are a random choice of so many: the slope is unbiased, and it varies as that
    choice has it, by each canary's own variance and not by that of all. Where bursts are rare that
    variance is met late or never, and what the canaries themselves show tells more. The larger of
    the two, relative to the pooled one, is the fit's ``inflation``; noise alone has 1.

    Args:
        planted: In how many steps each canary was planted.
        planted_total: Sum of its observations in those.
        total: Sum of all of its observations.
        square: Sum of their squares.
        steps: Number of steps.
    """
    counts = planted.astype(np.float64)
    spreads = counts * (1.0 - counts / steps)
    products = planted_total - counts * total / steps
    spread, product = float(spreads.sum()), float(products.sum())
    slope = product / spread if spread else 0.0
    squares = np.maximum(square - total**2 / steps, 0.0)
    left = np.maximum(squares - 2.0 * slope * products + slope * slope * spreads, 0.0)
    residual = max(float(squares.sum()) - slope * product, 0.0)
    # The levels cost one degree of freedom each.
    count = max(counts.size * (steps - 1) + 1, 3)
    pooled = spread * residual / (count - 2)
    chosen = float((spreads * left).sum()) / max(steps - 1, 1)
    shown = float(((products - slope * spreads) ** 2).sum())
    inflation = math.sqrt(max(chosen, shown) / pooled) if pooled > 0.0 else 1.0
    return SlopeTest(
        count=count,
        slope=slope,
        spread=spread,
        residual=residual,
        inflation=max(inflation, 1.0),
    )
