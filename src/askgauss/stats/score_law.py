"""The law of a canary's score under Model 1, beside the Gaussian that models it.

At every step a present canary is sampled with probability q and adds C; the mechanism adds noise
N(0, (sigma C)^2) either way. The score is the sum over the steps divided by the root of their
number, so an absent canary scores N(0, (sigma C)^2) exactly, and a present one a binomial mixture
of Gaussians of that width. What that pair leaks is in `askgauss.stats.subsampled_shift`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp, ndtr

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import gaussian
from askgauss.stats.binomial import binomial_weights
from askgauss.stats.subsampled_shift import subsampled_shift_delta, subsampled_shift_epsilon

__all__ = ["ScoreLaw", "mixture_cumulant"]

_Floats = NDArray[np.float64]
_LogKernel = Callable[[_Floats], _Floats]

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# Mass left out of a binomial sum, relative to the probability wanted: exp(-46) = 1e-20.
_SLACK = 46.0
# Elements held at once when a sum over counts is taken at many points.
_BLOCK = 1_000_000
# Beyond this many deviations no density is left in a float, and its square still is one.
_NOWHERE = 1e3
_ANYWHERE = 1e150
# Cumulants beyond are numbers too large for anybody, found in a time that grows with the square.
_HIGHEST_ORDER = 1000
# Sums over the counts of longer runs take minutes, and the closed form is then right to 7 digits.
_MOST_SUMMED = 10**7


def _two_point_cumulant(order: int, weight: ArrayLike, gap: ArrayLike) -> _Floats:
    """Cumulants of order >= 2 of a variable that is ``gap`` with probability ``weight``, else 0.

    The cumulants of a coin are derivatives of the logistic function, whose coefficients in weight
    and 1 - weight are Eulerian numbers with alternating signs. Their recursion has no negative
    term; ``weight`` and ``gap`` ride along in it, so it overflows only if the cumulant does.
    """
    weight, gap = np.broadcast_arrays(np.asarray(weight, float), np.asarray(gap, float))
    rest = 1.0 - weight
    terms = (weight * rest * gap * gap)[np.newaxis]
    for level in range(2, order):
        rank = np.arange(level).reshape(-1, *(1,) * weight.ndim)
        edge = np.zeros((1, *weight.shape))
        kept = np.concatenate([terms, edge])
        moved = np.concatenate([edge, terms])
        terms = gap * ((rank + 1) * rest * kept + (level - rank) * weight * moved)
    return np.asarray(terms[::2].sum(axis=0) - terms[1::2].sum(axis=0))


def mixture_cumulant(
    order: int,
    *,
    weights: ArrayLike,
    first_means: ArrayLike,
    second_means: ArrayLike,
    noise_scales: ArrayLike,
) -> float:
    """Cumulant of a normalised sum of independent two-component Gaussian mixtures.

    Summand i is N(first_means[i], noise_scales[i]^2) with probability weights[i] and
    N(second_means[i], noise_scales[i]^2) otherwise; the sum of n is divided by the root of n. The
    summands need not be alike. From order 3 on the cumulants fall like n^(1 - order/2).

    Args:
        order: Which cumulant, 1 (the mean) or more.
        weights: Probabilities of the first component, in [0, 1].
        first_means: Means of the first component.
        second_means: Means of the second component.
        noise_scales: Standard deviations of both components, >= 0. The four broadcast.

    Returns:
        The cumulant of the normalised sum.

    Examples:
        >>> q, n = 0.25, 100
        >>> round(mixture_cumulant(3, weights=np.full(n, 1 - q), first_means=-q,
        ...                        second_means=1 - q, noise_scales=2.0), 10)
        0.009375
    """
    _validate.count(maximum=_HIGHEST_ORDER, order=order)
    weight, first, second, noise = np.broadcast_arrays(
        *(
            np.atleast_1d(np.asarray(values, float))
            for values in (weights, first_means, second_means, noise_scales)
        )
    )
    for name, values in (("first_means", first), ("second_means", second)):
        if not np.all(np.isfinite(values)):
            raise _validate.fail(name, values, "to be finite numbers")
    if not np.all((weight >= 0.0) & (weight <= 1.0)):
        raise _validate.fail("weights", weights, "in [0, 1]")
    if not np.all((noise >= 0.0) & (noise < math.inf)):
        raise _validate.fail("noise_scales", noise_scales, ">= 0 and finite")
    root = math.sqrt(weight.size)
    with np.errstate(over="ignore", invalid="ignore"):
        if order == 1:
            return _in_unit(float(np.sum(weight * first + (1.0 - weight) * second)) / root, order)
        cumulants = _two_point_cumulant(order, weight, (first - second) / root)
        if order == 2:
            cumulants = cumulants + (noise / root) ** 2
        return _in_unit(float(cumulants.sum()), order)


def _in_unit(cumulant: float, order: int) -> float:
    """A cumulant, unless it is too large to be told in the unit of the scores."""
    if not math.isfinite(cumulant):
        raise InvalidArgumentError(
            f"Expected a cumulant of order {order} that a float can hold, got more. Take a larger "
            "unit for clip norm and means."
        )
    return cumulant


def _points(x: ArrayLike) -> _Floats:
    """Points as an array of floats; nan stays nan."""
    points = np.asarray(x)
    if points.dtype.kind not in "biuf":
        raise _validate.fail("x", x, "to be real numbers")
    return points.astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLaw:
    """The law of a present canary's score under Model 1, beside the Gaussian that models it.

    Args:
        steps: Number of training steps, T.
        sampling_rate: Probability q that a step samples the canary, in (0, 1].
        noise_multiplier: Noise in units of the clipping norm: a step adds N(0, (sigma C)^2).
        clip_norm: Clipping norm C, which is what a sampled canary adds.

    Assumes:
        Poisson sampling, Gaussian noise, nothing else in the canary's direction.

    Examples:
        >>> law = ScoreLaw(steps=2500, sampling_rate=0.0819, noise_multiplier=2.6245)
        >>> round(law.mean, 4), round(law.variance, 4)
        (4.095, 6.9632)
        >>> f"{law.tail_deviation(4.0):.2e}"
        '2.29e-08'
        >>> round(law.epsilon_at(delta=1e-5), 3)
        7.516
    """

    steps: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _validate.count(steps=self.steps)
        _validate.within(0.0, 1.0, closed="right", sampling_rate=self.sampling_rate)
        _validate.magnitude(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        product: dict[str, Any] = {"noise_multiplier * clip_norm": self._noise}
        _validate.magnitude(**product)

    # Moments.

    @property
    def mean(self) -> float:
        """Mean of a present canary's score; an absent one's is 0."""
        return math.sqrt(self.steps) * self.sampling_rate * self.clip_norm

    @property
    def absent_variance(self) -> float:
        """Variance of an absent canary's score: the noise alone."""
        return self._noise**2

    @property
    def variance(self) -> float:
        """Variance of a present canary's score: the noise, and the coin that samples it."""
        coin = self.sampling_rate * (1.0 - self.sampling_rate)
        return self.absent_variance + coin * self.clip_norm**2

    @property
    def shift(self) -> float:
        """Distance between the two means in units of the noise."""
        return math.sqrt(self.steps) * self.sampling_rate / self.noise_multiplier

    @property
    def skewness(self) -> float:
        """Third standardised cumulant of a present canary's score."""
        return self._standardised(3)

    @property
    def excess_kurtosis(self) -> float:
        """Fourth standardised cumulant of a present canary's score."""
        return self._standardised(4)

    def _standardised(self, order: int) -> float:
        # In units of the deviation from the start: powers of small numbers would be zeros.
        gap = self._spacing / self._deviation
        return self.steps * float(_two_point_cumulant(order, self.sampling_rate, gap))

    def cumulant(self, order: int) -> float:
        """Cumulant of a present canary's score, of any order from 1."""
        _validate.count(maximum=_HIGHEST_ORDER, order=order)
        if order == 1:
            return self.mean
        if order == 2:
            return self.variance
        with np.errstate(over="ignore", invalid="ignore"):
            cumulant = _two_point_cumulant(order, self.sampling_rate, self._spacing)
        return _in_unit(self.steps * float(cumulant), order)

    @property
    def _noise(self) -> float:
        return self.noise_multiplier * self.clip_norm

    @property
    def _spacing(self) -> float:
        return self.clip_norm / math.sqrt(self.steps)

    @property
    def _deviation(self) -> float:
        return math.sqrt(self.variance)

    # The distribution, exact and approximate.

    def cdf(self, x: ArrayLike) -> _Floats:
        """Exact probability that a present canary scores at most x, accurate in both tails."""
        return np.exp(self.log_cdf(x))

    def sf(self, x: ArrayLike) -> _Floats:
        """Exact probability that a present canary scores above x, accurate in both tails."""
        return np.exp(self.log_sf(x))

    def pdf(self, x: ArrayLike) -> _Floats:
        """Exact density of a present canary's score."""
        return np.exp(self._log_sum(x, 1.0, _log_density)) / self._noise

    def log_cdf(self, x: ArrayLike) -> _Floats:
        """Log of :meth:`cdf`."""
        return np.minimum(self._log_sum(x, -1.0, log_ndtr), 0.0)

    def log_sf(self, x: ArrayLike) -> _Floats:
        """Log of :meth:`sf`."""
        return np.minimum(self._log_sum(x, 1.0, log_ndtr), 0.0)

    def gaussian_cdf(self, x: ArrayLike) -> _Floats:
        """The Gaussian model of :meth:`cdf`, of the same mean and variance."""
        return np.asarray(ndtr(self._standardise(x)))

    def edgeworth_cdf(self, x: ArrayLike) -> _Floats:
        """The Gaussian model corrected for skewness and kurtosis: Edgeworth's series to 1/steps."""
        z = np.clip(self._standardise(x), -40.0, 40.0)  # beyond, nothing is left to correct
        square = z * z
        series = self.skewness / 6.0 * (square - 1.0)
        series = series + self.excess_kurtosis / 24.0 * z * (square - 3.0)
        series = series + self.skewness**2 / 72.0 * z * (square * (square - 10.0) + 15.0)
        return np.asarray(ndtr(z)) - np.exp(_log_density(z)) * series

    def _standardise(self, x: ArrayLike) -> _Floats:
        return np.asarray((_points(x) - self.mean) / self._deviation)

    def _log_sum(self, x: ArrayLike, side: float, log_kernel: _LogKernel) -> _Floats:
        """Log of the sum over counts of probability times kernel, to full relative accuracy."""
        points = _points(x)
        flat = side * points.ravel() / self._noise
        budget = 2.0 * _SLACK
        logs = self._windowed(flat, side, log_kernel, budget)
        # Where little was found, what the window left out may matter: widen it by what was found.
        again = np.flatnonzero((_SLACK - logs > budget) & np.isfinite(logs))
        if again.size:
            budget = _SLACK - float(logs[again].min())
            logs[again] = self._windowed(flat[again], side, log_kernel, budget)
        return logs.reshape(points.shape)

    def _windowed(self, x: _Floats, side: float, log_kernel: _LogKernel, budget: float) -> _Floats:
        """The sum of :meth:`_log_sum`, short or over by a few exp(-budget), in noise widths."""
        counts, logs = binomial_weights(self.steps, self.sampling_rate, budget)
        centres = side * counts * (self._spacing / self._noise)
        if side < 0.0:
            centres, logs = centres[::-1], logs[::-1]
        # Components further than this below x have nothing there, further above everything.
        reach = math.sqrt(2.0 * budget)
        first = np.minimum(np.searchsorted(centres, x - reach), centres.size - 1)
        last = np.maximum(np.searchsorted(centres, x + reach), first + 1)
        whole = float(log_kernel(np.array(math.inf)))
        beyond = np.append(np.logaddexp.accumulate(logs[::-1])[::-1], -math.inf) + whole
        result = np.empty(x.size)
        offsets = np.arange(int((last - first).max(initial=0)))
        rows = max(1, _BLOCK // max(1, offsets.size))
        for low in range(0, x.size, rows):
            part = slice(low, low + rows)
            index = first[part, np.newaxis] + offsets
            inside = index < last[part, np.newaxis]
            index = np.where(inside, index, 0)
            terms = logs[index] + log_kernel(centres[index] - x[part, np.newaxis])
            terms = np.where(inside, terms, -math.inf)
            with np.errstate(invalid="ignore"):  # nan in, nan out
                result[part] = np.logaddexp(logsumexp(terms, axis=1), beyond[last[part]])
        return result

    # How far the Gaussian model is from the law.

    def kolmogorov_distance(self) -> float:
        """Largest distance between :meth:`cdf` and :meth:`gaussian_cdf`, found numerically."""
        return self._largest_deviation(0.0)

    def kolmogorov_leading_term(self) -> float:
        """Closed form of :meth:`kolmogorov_distance` up to terms of order 1/steps."""
        return abs(self.skewness) / (6.0 * math.sqrt(2.0 * math.pi))

    def tail_deviation(self, x0: float) -> float:
        """Closed form of :meth:`tail_deviation_exact` up to terms of order 1/steps.

        Args:
            x0: Where the tails begin, in standard deviations; at least the root of 3, from where
                the leading term falls.

        Returns:
            The leading term of the largest distance between the distribution functions.
        """
        _validate.finite(x0=x0)
        if x0 < math.sqrt(3.0):
            raise _validate.fail(
                "x0",
                x0,
                ">= sqrt(3)",
                "The closed form holds in the tails; tail_deviation_exact takes any x0 >= 0.",
            )
        x0 = min(float(x0), _NOWHERE)
        density = math.exp(float(_log_density(x0)))
        return abs(self.skewness) / 6.0 * density * (x0 * x0 - 1.0)

    def tail_deviation_exact(self, x0: float) -> float:
        """Largest distance between the distribution functions x0 or more deviations out.

        Args:
            x0: Where the tails begin, in standard deviations, >= 0.

        Returns:
            The largest distance between :meth:`cdf` and :meth:`gaussian_cdf` there, found
            numerically, to about 1e-15 of the mass of the tail.
        """
        _validate.non_negative(x0=x0)
        return self._largest_deviation(float(x0))

    def _largest_deviation(self, x0: float) -> float:
        if self.sampling_rate == 1.0:
            return 0.0
        hint = "Take kolmogorov_leading_term or tail_deviation, which have a closed form."
        _validate.count(maximum=_MOST_SUMMED, hint=hint, steps=self.steps)
        return max(self._largest_on(side, x0) for side in (-1.0, 1.0))

    def _largest_on(self, side: float, x0: float) -> float:
        """Largest deviation on one side: a grid finer than the noise, then its peaks refined."""

        def tails(t: _Floats) -> tuple[_Floats, _Floats]:
            exact = np.exp(self._log_sum(self.mean + side * t * self._deviation, side, log_ndtr))
            return exact, np.asarray(ndtr(-t))

        def deviation(t: _Floats) -> _Floats:
            exact, model = tails(t)
            return np.abs(exact - model)

        best, start = 0.0, x0
        while True:
            end = start + 4.0
            best = max(best, _peak(deviation, self._grid(side, start, end), best))
            # Both tails fall, so further out the deviation is below the larger of them.
            if max(float(tail[0]) for tail in tails(np.array([end]))) <= best:
                return best
            start = end

    def _grid(self, side: float, start: float, end: float) -> _Floats:
        """Points in standard deviations, so dense that no feature of the law falls between."""
        noise, spacing = self._noise / self._deviation, self._spacing / self._deviation
        if spacing <= 2.0 * noise:
            return np.linspace(start, end, math.ceil(8.0 * (end - start) / noise) + 1)
        # The components stand apart: all that happens, happens around them.
        mean = self.steps * self.sampling_rate
        edges = sorted(mean + side * (t / spacing) for t in (start - 9 * noise, end + 9 * noise))
        counts = np.arange(
            max(0, math.ceil(edges[0])), min(self.steps, math.floor(edges[1])) + 1, dtype=float
        )
        around = side * (counts - mean)[:, np.newaxis] * spacing + np.linspace(-9, 9, 145) * noise
        inside = around[(around > start) & (around < end)]
        return np.unique(np.concatenate([inside, [start, end]]))

    # What the score leaks.

    def delta_at(self, epsilon: float) -> float:
        """Exact delta of the score at ``epsilon``, the larger of both directions."""
        return subsampled_shift_delta(
            epsilon, self.shift, steps=self.steps, sampling_rate=self.sampling_rate
        )

    def epsilon_at(self, delta: float) -> float:
        """Exact epsilon of the score at ``delta``: what a perfect audit of it could report."""
        return subsampled_shift_epsilon(
            delta, self.shift, steps=self.steps, sampling_rate=self.sampling_rate
        )

    def gaussian_epsilon_at(self, delta: float) -> float:
        """Epsilon of the Gaussian model at ``delta``; above :meth:`epsilon_at` for few samples."""
        _validate.probability(delta=delta)
        return float(gaussian.epsilon(delta, 0.0, self._noise, self.mean, self._deviation))


def _log_density(x: _Floats | float) -> _Floats:
    return np.asarray(-0.5 * np.square(np.clip(x, -_ANYWHERE, _ANYWHERE)) - _LOG_ROOT_TWO_PI)


def _peak(function: Callable[[_Floats], _Floats], grid: _Floats, floor: float) -> float:
    """Largest value of a function on the span of a grid that resolves it."""
    values = function(grid)
    best = max(float(values.max()), floor)
    padded = np.concatenate([[-math.inf], values, [-math.inf]])
    # Between points of such a grid a peak rises little, and less as the points close in on it:
    # whatever comes within that of the best stays in the race.
    rise = 0.05
    peaks = (values >= padded[:-2]) & (values >= padded[2:]) & (values >= (1.0 - rise) * best)
    centres = grid[peaks]
    widths = np.maximum(np.diff(grid, prepend=grid[0]), np.diff(grid, append=grid[-1]))[peaks]
    for _ in range(14):
        points = centres[:, np.newaxis] + widths[:, np.newaxis] * np.linspace(-1.0, 1.0, 9)
        points = np.clip(points, grid[0], grid[-1])
        values = function(points)
        tops = values.max(axis=1, initial=0.0)
        best = max(best, float(tops.max(initial=0.0)))
        rise /= 16.0
        kept = tops >= (1.0 - rise) * best
        centres = points[kept, values[kept].argmax(axis=1)]
        widths = widths[kept] / 4.0
    return best
