"""The law of a canary's score under Model 1, beside the Gaussian that models it.

At every step a present canary is sampled with probability q and adds C; the mechanism adds noise
N(0, (sigma C)^2) either way. The score is the sum over the steps divided by the root of their
number, so an absent canary scores N(0, (sigma C)^2) exactly, and a present one a binomial mixture
of Gaussians of that width.

**What the score leaks.** In units of the noise an absent canary scores N(0, 1) and a present one
the binomial mixture ``sum_k Bin(k; T, q) N(shift k / (q T), 1)``: how often it was sampled, and
noise. Two facts make the hockey-stick divergence of the two quick and safe to compute.

*One cut.* The log-likelihood ratio L of the mixture to N(0, 1) increases with the score, so the
best test is a cut at c with L(c) = epsilon. With w_k the weights, m_k the means and M the Mills
ratio, the divergence is ``sum_k w_k phi(c - m_k) (M(c - m_k) - M(c))``. No term is negative, so
nothing cancels.

*One direction.* At every epsilon >= 0 the present law against the absent one is the larger
direction, for any mixture of unit Gaussians with means >= 0. To see it, write the trade-off curve
as ``f(Phi(z)) = Phi(-z - m(z))``. Since ``phi(Phi^-1(u))`` is concave in u, Jensen's inequality
gives m' <= 0. So ``f(f(u)) >= u`` wherever ``f(u) >= u``, which says that f is at most its inverse
there. The other direction is the largest ``1 - u - e^epsilon f(u)``. Where ``f(u) <= u``, f is at
most its inverse at f(u), which thus serves this direction at least as well; where ``f(u) > u``,
swapping the two errors gains ``(e^epsilon - 1)(f(u) - u)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, log_ndtr, logsumexp, ndtr, ndtri_exp

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import gaussian
from askgauss.stats.limits import binomial_weights

__all__ = [
    "ScoreLaw",
    "subsampled_shift",
    "subsampled_shift_delta",
    "subsampled_shift_epsilon",
]

_Floats = NDArray[np.float64]

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# Mass left out of a binomial sum, relative to the probability wanted: exp(-46) = 1e-20.
_SLACK = 46.0
# Rounding errs in delta by far less than this, relatively; giving it up keeps the errors on the
# safe side. Where components stand apart, on a plateau of delta, an ulp could be worth a whole gap.
_ROUNDING = 1e-12
# Inclusions that move the score by so many noise widths are met by no noise at all.
_NO_NOISE = 1e100
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(4)


def _mills(x: _Floats | float) -> _Floats:
    """Upper tail of N(0, 1) over its density."""
    return math.sqrt(math.pi / 2.0) * np.asarray(erfcx(x / math.sqrt(2.0)))


class _Cut(NamedTuple):
    """The pair, cut at a score."""

    slope: float
    log_density: float
    log_delta: float


class _SampledPair:
    """N(0, 1) against a binomial mixture of N(shift k / (q T), 1), in units of the noise.

    Counts outside the window are left out, which takes mass from the mixture and so can only lower
    its divergence from N(0, 1), by at most 2 exp(-budget); what renormalising gives back is far
    below rounding.
    """

    __slots__ = ("_counts", "_logs", "_scale", "_weights")

    def __init__(self, steps: int, rate: float, budget: float) -> None:
        self._counts, self._logs = binomial_weights(steps, rate, budget)
        self._weights = np.exp(self._logs)
        self._scale = rate * steps

    def means(self, shift: float) -> _Floats:
        """Means of the components, ascending."""
        return self._counts * (shift / self._scale)

    def ratio_at(self, means: _Floats, cut: float) -> tuple[float, float, float]:
        """At a score: the log-likelihood ratio, its slope, and the log-density of the mixture."""
        logs = self._logs - 0.5 * (cut - means) ** 2
        top = float(logs.max())
        tilted = np.exp(logs - top)
        total = float(tilted.sum())
        log_ratio = math.log(total) + top + 0.5 * cut * cut
        if abs(log_ratio) < 0.5:
            # The ratio is 1 plus little, and expm1 and log1p keep the little. The cap only meets
            # weights that have underflowed, and lowers the ratio.
            powers = np.minimum(means * (cut - 0.5 * means), 700.0)
            excess = float(self._weights @ np.expm1(powers))
            log_ratio = math.log1p(excess) if excess > -0.5 else log_ratio
        return log_ratio, float(tilted @ means) / total, math.log(total) + top - _LOG_ROOT_TWO_PI

    def cut_at(self, means: _Floats, cut: float) -> _Cut:
        """The divergence of the mixture from N(0, 1), cut at a score >= 0."""
        _, slope, log_density = self.ratio_at(means, cut)
        # Below -9.5 a component is beyond the cut but for 1e-20; stopping there avoids overflow.
        x = np.maximum(cut - means, -9.5)
        drop = _mills(x) - _mills(cut)
        near = int(np.searchsorted(means, 0.1))
        if near:
            # Mills ratios this close cancel: integrate the derivative 1 - t M(t) between them.
            half = 0.5 * means[:near, np.newaxis]
            t = cut - half * (1.0 + _NODES)
            drop[:near] = half[:, 0] * ((1.0 - t * _mills(t)) @ _NODE_WEIGHTS)
        logs = self._logs - 0.5 * x * x
        top = logs.max()
        total = float(np.exp(logs - top) @ drop)
        return _Cut(slope, log_density, _log(total) + top - _LOG_ROOT_TWO_PI)

    def cut_for(self, means: _Floats, epsilon: float) -> float:
        """The score at which the log-likelihood ratio is ``epsilon`` >= 0."""
        # The ratio is at least the mean of its exponents (Jensen) and at least each of its terms;
        # where one of these is epsilon, the root lies below. The ratio is convex, so from there
        # Newton's method comes down to the root without passing it.
        mean = float(self._weights @ means)
        cut = (epsilon + 0.5 * float(self._weights @ means**2)) / mean
        some = slice(int(means[0] == 0.0), None)
        bounds = (epsilon - self._logs[some]) / means[some] + 0.5 * means[some]
        cut = min(cut, float(bounds.min()))
        while True:
            log_ratio, slope, _ = self.ratio_at(means, cut)
            if log_ratio <= epsilon:
                return cut
            step = (log_ratio - epsilon) / slope
            cut -= step
            if step <= 1e-15 * cut:
                return cut


def _log(x: float) -> float:
    """Natural logarithm, minus infinity for what has underflowed."""
    return math.log(x) if x > 0.0 else -math.inf


def _probit(log_probability: float) -> float:
    return float(ndtri_exp(min(log_probability, 0.0)))


def _newton_step(target: float, log_delta: float, log_slope: float) -> float:
    """How far to go until the normal quantile of delta, nearly linear, reaches the target.

    Only the sign is meant where the slope has vanished: then the step is infinite.
    """
    quantile = _probit(log_delta)
    exponent = -0.5 * quantile * quantile - _LOG_ROOT_TWO_PI - log_slope
    if not abs(exponent) < 600.0:
        return math.copysign(math.inf, target - quantile)
    return (target - quantile) * math.exp(exponent)


def _solve(newton: Callable[[float], float], x: float, high: float, floor: float) -> float:
    """The root in (0, high) that Newton steps of the right sign lead to, from x > 0."""
    low, moved = 0.0, math.inf
    while True:
        step = newton(x)
        low, high = (x, high) if step > 0.0 else (low, x)
        tolerance = 1e-13 * (floor + x)
        if abs(step) <= tolerance:
            return x + step
        # Where a step leaves the bracket or is not half the last one, bisect, or double.
        if not (low < x + step < high and abs(step) <= 0.5 * moved):
            step = min(0.5 * (low + high), 2.0 * x) - x
            if abs(step) <= tolerance:
                return x + step
        moved = abs(step)
        x += step


def _check(steps: int, sampling_rate: float, shift: float = 0.0) -> None:
    _validate.within(0.0, math.inf, closed="both", shift=shift)
    _validate.count(steps=steps)
    _validate.within(0.0, 1.0, closed="right", sampling_rate=sampling_rate)


def _largest_shift(steps: int, sampling_rate: float) -> float:
    return _NO_NOISE * min(1.0, steps * sampling_rate)


def _log_sampled(steps: int, sampling_rate: float) -> float:
    """Log of the probability that the canary is sampled at all."""
    if sampling_rate == 1.0:
        return 0.0
    return _log(-math.expm1(steps * math.log1p(-sampling_rate)))


def subsampled_shift_epsilon(
    delta: float, shift: float, *, steps: int, sampling_rate: float
) -> float:
    """Exact epsilon of a score whose mean moves by ``shift`` noise widths, by Poisson sampling.

    The pair is N(0, 1) against the mixture over k ~ Bin(steps, sampling_rate) of
    N(shift k / (sampling_rate steps), 1). Its epsilon grows with ``shift``. At sampling_rate 1 it
    is Gaussian differential privacy with mu = shift.

    Args:
        delta: In (0, 1).
        shift: Distance between the two means in units of the noise, >= 0; infinite without noise.
        steps: Number of training steps.
        sampling_rate: Probability that a step samples the canary, in (0, 1].

    Returns:
        The smallest epsilon >= 0 at which the pair is (epsilon, delta)-indistinguishable, in both
        directions. There is no ceiling.

    Guarantee:
        Not above the exact value: counts of vanishing probability are left out, which lowers the
        divergence, and delta is taken as 1e-12 of itself larger, to cover rounding.

    Examples:
        >>> round(subsampled_shift_epsilon(1e-5, 1.0, steps=2500, sampling_rate=0.08), 4)
        4.4226
        >>> round(subsampled_shift_epsilon(1e-5, 1.0, steps=1, sampling_rate=1.0), 4)
        4.3772
    """
    _validate.probability(delta=delta)
    _check(steps, sampling_rate, shift)
    if shift == 0.0:
        return 0.0
    goal = math.log(delta) + _ROUNDING
    if shift > _largest_shift(steps, sampling_rate):
        return 0.0 if _log_sampled(steps, sampling_rate) <= goal else math.inf
    target = _probit(goal)
    pair = _SampledPair(steps, sampling_rate, _SLACK - goal)
    means = pair.means(shift)
    # The ratio is at most 1 at a score of 0: what delta allows below there needs no epsilon.
    if pair.cut_at(means, 0.0).log_delta <= goal:
        return 0.0

    def newton(cut: float) -> float:
        point = pair.cut_at(means, cut)
        # The divergence falls with the cut at the rate slope * density * Mills ratio.
        log_slope = _log(point.slope * float(_mills(cut))) + point.log_density
        return -_newton_step(target, point.log_delta, log_slope)

    # Beyond its last mean the mixture's tail is below that of N(0, 1).
    high = float(means[-1]) + abs(target)
    spread = math.sqrt(1.0 + (1.0 - sampling_rate) / (sampling_rate * steps) * shift * shift)
    start = min(0.5 * shift + spread * abs(target), 0.5 * high)
    cut = _solve(newton, start, high, 1.0)
    return max(0.0, float(pair.ratio_at(means, cut)[0]))


def subsampled_shift_delta(
    epsilon: float, shift: float, *, steps: int, sampling_rate: float
) -> float:
    """Exact delta at ``epsilon`` of the pair of :func:`subsampled_shift_epsilon`.

    Returns:
        The hockey-stick divergence, the larger of both directions.

    Examples:
        >>> f"{subsampled_shift_delta(4.4226, 1.0, steps=2500, sampling_rate=0.08):.3g}"
        '1e-05'
    """
    _validate.non_negative(epsilon=epsilon)
    _check(steps, sampling_rate, shift)
    if shift == 0.0:
        return 0.0
    if shift > _largest_shift(steps, sampling_rate):
        return math.exp(_log_sampled(steps, sampling_rate) - _ROUNDING)
    # How many counts matter depends on the answer. Leaving some out only lowers it, so a window
    # chosen by a first, possibly low, answer is wide enough for the second.
    budget = 2.0 * _SLACK
    log_delta = _log_delta(_SampledPair(steps, sampling_rate, budget), epsilon, shift)
    if _SLACK - log_delta > budget:
        pair = _SampledPair(steps, sampling_rate, _SLACK - max(log_delta, -800.0))
        log_delta = _log_delta(pair, epsilon, shift)
    return math.exp(log_delta - _ROUNDING)


def _out_of_reach(means: _Floats, epsilon: float) -> bool:
    """Whether the best cut is so far beyond the last mean that no float holds what is left.

    With m the last mean the ratio is at most ``m c - m^2 / 2`` at a cut c beyond m and at most
    ``c^2 / 2`` before, so above ``m (m / 2 + 50)`` the cut is 50 noise widths past m.
    """
    furthest = float(means[-1])
    return epsilon > furthest * (0.5 * furthest + 50.0)


def _log_delta(pair: _SampledPair, epsilon: float, shift: float) -> float:
    means = pair.means(shift)
    if _out_of_reach(means, epsilon):
        return -math.inf
    return pair.cut_at(means, pair.cut_for(means, epsilon)).log_delta


def subsampled_shift(epsilon: float, delta: float, *, steps: int, sampling_rate: float) -> float:
    """The shift at which :func:`subsampled_shift_epsilon` reaches ``epsilon``.

    Returns:
        The largest shift whose exact epsilon is at most ``epsilon``; infinity if the canary is
        sampled at all with probability at most ``delta``, for then no shift can be told.

    Examples:
        >>> round(subsampled_shift(8.0, 1e-5, steps=2500, sampling_rate=0.08), 4)
        1.6413
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.probability(delta=delta)
    _check(steps, sampling_rate)
    return _shift(float(epsilon), float(delta), int(steps), float(sampling_rate))


# One claim is asked about again and again: by a gate, by power, by every audit of a sweep.
@lru_cache(maxsize=1024)
def _shift(epsilon: float, delta: float, steps: int, sampling_rate: float) -> float:
    goal = math.log(delta) + _ROUNDING
    if _log_sampled(steps, sampling_rate) <= goal:
        return math.inf
    target = _probit(goal)
    pair = _SampledPair(steps, sampling_rate, _SLACK - goal)

    def newton(shift: float) -> float:
        means = pair.means(shift)
        if _out_of_reach(means, epsilon):
            return math.inf
        cut = pair.cut_for(means, epsilon)
        point = pair.cut_at(means, cut)
        # At the best cut delta moves with the shift as the mass beyond the cut does.
        log_slope = _log(point.slope / shift) + point.log_density
        return _newton_step(target, point.log_delta, log_slope)

    # Right for a Gaussian far from its mean, and near enough elsewhere.
    start = max(delta, target + math.sqrt(target * target + 2.0 * epsilon))
    largest = _largest_shift(steps, sampling_rate)
    if newton(largest) > 0.0:
        return math.inf
    return float(_solve(newton, min(start, 0.5 * largest), largest, 0.0))


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
