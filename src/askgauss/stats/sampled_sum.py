r"""What a weighted sum of sampled steps leaks, at any epsilon.

In units of its noise, an absent canary scores X ~ N(0, 1) and a present one
``S = X + sum_t h_t B_t``, with B_t ~ Bernoulli(q) independent and known weights h_t.

*Tails by a shifted contour.* A Fourier transform on a grid has a floor: probabilities below 1e-16
vanish in it, and every epsilon above about 24 came out infinite. With K the cumulant generating
function of S,

    P(S > c) = exp(K(s) - sc) / pi * int_0^inf Re[exp(K(s+iu) - K(s) - iuc) / (s+iu)] du

for any s > 0. At the saddle point, K'(s) = c, the integrand does not cancel, so the error is
relative and not absolute. The trapezoidal rule is spectrally exact there.

*Epsilon without a search for it.* The hockey-stick divergence of an event A is at most delta where
``epsilon >= log((P(A) - delta) / Q(A))``, so epsilon is the largest of these over events. With
weights >= 0 the likelihood ratio increases with the score and the best events are half-lines. Where
some weights are negative, half-lines give a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from askgauss import _validate

__all__ = ["StepWeights", "sampled_sum_epsilon"]

_Floats = NDArray[np.float64]

# exp(-36) = 2e-16 of the integral is left out at either end.
_DIGITS = 36.0
# Weights are joined into so many of their means at most; that moves epsilon by 1e-5 of itself.
_MOST_WEIGHTS = 64
# How closely a shift is looked for.
_TOLERANCE = 1e-6
# Cuts that are tried before the best of them is refined.
_CUTS = 48
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


class _SampledSum:
    """The distribution of S; weights as they are, or their negatives for its lower tail."""

    def __init__(self, weights: _Floats, counts: _Floats, rate: float) -> None:
        self._weights, self._counts, self._rate = weights, counts, rate
        self.mean = rate * float(counts @ weights)
        self.deviation = math.sqrt(1.0 + rate * (1.0 - rate) * float(counts @ weights**2))

    def _logs(self, s: float) -> tuple[_Floats, _Floats]:
        """Cumulants of one inclusion at s, and its probability under the tilt."""
        included = math.log(self._rate) + s * self._weights
        left_out = math.log1p(-self._rate) if self._rate < 1.0 else -math.inf
        logs = np.logaddexp(included, left_out)
        return logs, np.exp(included - logs)

    def _saddle(self, cut: float) -> float:
        """Where the tilted mean is the cut, or just right of 0 for cuts below the mean."""
        least = 0.3 / self.deviation
        low, high = 0.0, max(cut - self.mean, least)
        # K' grows at least as fast as s, so the root is at most cut - K'(0) away.
        for _ in range(200):
            middle = 0.5 * (low + high)
            _, inside = self._logs(middle)
            above = middle + float(self._counts @ (self._weights * inside)) > cut
            low, high = (low, middle) if above else (middle, high)
            if high - low <= 1e-3 * high:
                break
        return max(high, least)

    def log_above(self, cut: float) -> float:
        """Logarithm of P(S > cut)."""
        s = self._saddle(cut)
        logs, inside = self._logs(s)
        cumulant = float(self._counts @ logs) + 0.5 * s * s
        curvature = 1.0 + float(self._counts @ (self._weights**2 * inside * (1.0 - inside)))
        step = 2.0 * math.pi * min(s / _DIGITS, 1.0 / math.sqrt(2.0 * _DIGITS * curvature))
        u = step * np.arange(math.ceil(math.sqrt(2.0 * _DIGITS) / step) + 1)
        exponent = np.zeros(u.size, dtype=np.complex128)
        for weight, count, chance in zip(self._weights, self._counts, inside, strict=True):
            exponent += count * np.log1p(chance * np.expm1(1j * u * weight))
        # What the tilt adds to the noise: (s + iu)^2 / 2 - s^2 / 2.
        exponent += -0.5 * u * u + 1j * u * (s - cut)
        terms = (np.exp(exponent) / (s + 1j * u)).real
        terms[0] *= 0.5
        total = float(terms.sum()) * step / math.pi
        return cumulant - s * cut + math.log(total) if total > 0.0 else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWeights:
    """How much each step counts in a score, where canaries are sampled in every one of them.

    Attributes:
        weights: Different weights, in any unit.
        counts: How many steps have each.
        sampling_rate: Probability that a canary is in a step.
    """

    weights: tuple[float, ...]
    counts: tuple[int, ...]
    sampling_rate: float

    def __post_init__(self) -> None:
        if not self.weights or len(self.weights) != len(self.counts):
            raise _validate.fail("weights", self.weights, "to have one count each")
        _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
        for weight, count in zip(self.weights, self.counts, strict=True):
            _validate.finite(weights=weight)
            _validate.count(counts=count)
        if not self._sum > 0.0:
            raise _validate.fail("weights", self.weights, "to add up to more than 0")

    @classmethod
    def of(cls, weights: _Floats, sampling_rate: float) -> StepWeights:
        """The weights of single steps, neighbours joined where there are very many."""
        values, counts = _joined(weights)
        whole = tuple(int(count) for count in counts)
        return cls(weights=tuple(values.tolist()), counts=whole, sampling_rate=sampling_rate)

    @property
    def _arrays(self) -> tuple[_Floats, _Floats]:
        return np.array(self.weights), np.array(self.counts, dtype=np.float64)

    @property
    def _sum(self) -> float:
        weights, counts = self._arrays
        return float(counts @ weights)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(self.counts)

    @property
    def effective_steps(self) -> float:
        """Number of equal steps whose sum has this mean and variance."""
        weights, counts = self._arrays
        return self._sum**2 / float(counts @ weights**2)

    def epsilon(self, shift: float, delta: float) -> float:
        """Epsilon of the score pair whose means are this far apart, in units of the noise."""
        if shift <= 0.0 or math.isinf(shift):
            return max(0.0, shift)
        weights, counts = self._arrays
        heights = weights * (shift / (self.sampling_rate * self._sum))
        return _epsilon(heights, counts, self.sampling_rate, delta)

    def shift(self, epsilon: float, delta: float) -> float:
        """The shift at which the score pair has this epsilon; it grows with epsilon."""
        return _shift(self, epsilon, delta)


@lru_cache(maxsize=64)
def _shift(weights: StepWeights, epsilon: float, delta: float) -> float:
    from scipy.optimize import brentq

    high = 1.0
    while weights.epsilon(high, delta) < epsilon:
        high *= 2.0
    return float(
        brentq(lambda shift: weights.epsilon(shift, delta) - epsilon, 0.0, high, rtol=_TOLERANCE)
    )


def _joined(weights: _Floats) -> tuple[_Floats, _Floats]:
    """Different weights and how often each occurs; means of neighbours where there are many."""
    values, counts = np.unique(weights[weights != 0.0], return_counts=True)
    if values.size <= _MOST_WEIGHTS:
        return values, counts.astype(np.float64)
    place = np.floor((values - values[0]) / (values[-1] - values[0]) * (_MOST_WEIGHTS - 1))
    total = np.bincount(place.astype(np.int64), counts).astype(np.float64)
    sums = np.bincount(place.astype(np.int64), counts * values)
    return sums[total > 0.0] / total[total > 0.0], total[total > 0.0]


def sampled_sum_epsilon(weights: _Floats, rate: float, delta: float) -> float:
    """Epsilon at ``delta`` of N(0, 1) and the same plus a sampled sum, the larger direction.

    Args:
        weights: What each step adds when the canary is in it, in units of the noise of the sum.
        rate: Probability that the canary is in a step.
        delta: Where epsilon is stated, above 0.
    """
    return _epsilon(*_joined(weights), rate, delta)


def _epsilon(values: _Floats, counts: _Floats, rate: float, delta: float) -> float:
    above, below = (_SampledSum(sign * values, counts, rate) for sign in (1.0, -1.0))
    # Cuts that matter have more than delta beyond them under the favoured distribution.
    reach = 1.0 - float(ndtri(min(0.1 * delta, 0.1)))

    def present_first(cut: float) -> float:
        return _log_less(above.log_above(cut), delta) - float(log_ndtr(-cut))

    def absent_first(cut: float) -> float:
        return _log_less(float(log_ndtr(cut)), delta) - below.log_above(-cut)

    most = float((counts * np.maximum(values, 0.0)).sum()) + reach
    found = max(0.0, _largest(present_first, -2.0, most))
    # With weights >= 0 this direction is the larger one (stats/score_law.py).
    return found if values.min() >= 0.0 else max(found, _largest(absent_first, -reach, reach))


def _log_less(log_probability: float, delta: float) -> float:
    """Logarithm of a probability less delta; -inf where nothing is left."""
    gap = math.log(delta) - log_probability
    return log_probability + math.log(-math.expm1(gap)) if gap < 0.0 else -math.inf


def _largest(found: Callable[[float], float], low: float, high: float) -> float:
    """The largest value of a function with one peak: a grid, then golden sections at its top."""
    cuts = np.linspace(low, high, _CUTS)
    values = [found(float(cut)) for cut in cuts]
    top = int(np.argmax(values))
    best = values[top]
    left, right = float(cuts[max(top - 1, 0)]), float(cuts[min(top + 1, _CUTS - 1)])
    inner = [right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)]
    pair = [found(inner[0]), found(inner[1])]
    for _ in range(24):
        best = max(best, *pair)
        if pair[0] >= pair[1]:
            right, inner[1], pair[1] = inner[1], inner[0], pair[0]
            inner[0] = right - _GOLDEN * (right - left)
            pair[0] = found(inner[0])
        else:
            left, inner[0], pair[0] = inner[0], inner[1], pair[1]
            inner[1] = left + _GOLDEN * (right - left)
            pair[1] = found(inner[1])
    return best
