"""What a score leaks when its mean moves by Poisson sampling: exactly, in both directions.

In units of the noise an absent canary scores N(0, 1) and a present one the binomial mixture
``sum_k Bin(k; T, q) N(shift k / (q T), 1)``: how often it was sampled, and noise. Two facts make
the hockey-stick divergence of the two quick and safe to compute.

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
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtri_exp

from askgauss import _validate
from askgauss.stats.binomial import binomial_weights

__all__ = ["subsampled_shift", "subsampled_shift_delta", "subsampled_shift_epsilon"]

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
