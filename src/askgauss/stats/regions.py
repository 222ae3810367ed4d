"""Confidence regions for a pair of Gaussians, and the least epsilon within them.

The pair is N(mean0, sigma0^2), N(mean1, sigma1^2). Shift and scale leave its epsilon alone, so two
numbers decide: the gap of the means in units of the wider deviation, h, and x = log(wide / narrow).
Epsilon never falls when either grows:

* In h: delta is one less the integral of min(p, c q), c = exp(epsilon). Sliced into layers, that
  integral adds up lengths of overlap of intervals centred at the two means, and moving the centres
  apart never lengthens an overlap.
* In x: the order with the wider Gaussian P first decides (see `askgauss.stats.gaussian`). There the
  event p > c q is all but an interval that contains the mean of the narrow Q, since q > p at that
  point. Narrowing Q takes mass out of the event, and that only raises P - c Q.

So the least epsilon in a region lies on its front: the least h at each x. Along the front h falls
while x grows, and between two points of it epsilon is at least that of the later h with the earlier
x. Cells that this bound cannot rule out are divided until none is left: the minimum is verified, not
merely found. The regions are those of "Let's Ask Gauss", section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from askgauss import _validate
from askgauss.stats import gaussian

__all__ = [
    "Rectangle",
    "bootstrap",
    "minimum_epsilon_over_ellipsoid",
    "minimum_epsilon_over_rectangle",
    "radius_squared",
    "rectangle",
]

_Array: TypeAlias = NDArray[np.float64]
_Interval: TypeAlias = tuple[float, float]

_RELATIVE_TOLERANCE = 1e-9
_ABSOLUTE_TOLERANCE = 1e-12
# Cells of the first round lie ever denser towards the start of the front, where the minimum mostly
# is; later rounds divide what is left into about this many. After the last round the bound stands.
_GRADING = np.concatenate([[0.0], 0.7 ** np.arange(80.0, -1.0, -1.0)])
_CELLS = 512
_MOST_CELLS = 8192
# Resampled scores held at a time.
_CHUNK = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Pairs of Gaussians with each parameter in an interval of its own.

    Attributes:
        mean0: Interval of the mean of the first group.
        sigma0: Interval of its standard deviation.
        mean1: Interval of the mean of the second group.
        sigma1: Interval of its standard deviation.
        pooled: Whether the two deviations are one and the same.
    """

    mean0: _Interval
    sigma0: _Interval
    mean1: _Interval
    sigma1: _Interval
    pooled: bool = False


def rectangle(
    *,
    mean0: float,
    sd0: float,
    count0: int,
    mean1: float,
    sd1: float,
    count1: int,
    confidence: float = 0.95,
    pooled: bool = False,
) -> Rectangle:
    """Student's intervals for both means and chi-square intervals for the deviations.

    Args:
        mean0: Mean of the first group.
        sd0: Its standard deviation, with ``count0 - 1`` in the denominator.
        count0: Its number of scores, at least 2.
        mean1: Mean of the second group.
        sd1: Its standard deviation.
        count1: Its number of scores, at least 2.
        confidence: Probability that all parameters are inside at once, at least.
        pooled: One deviation for both groups, estimated from both.

    Returns:
        The rectangle; the error 1 - confidence is split evenly over its four intervals (three when
        pooled).

    Assumes:
        Independent Gaussian scores; when pooled, of one variance.

    Example:
        >>> box = rectangle(mean0=0.0, sd0=1.0, count0=2500, mean1=1.5, sd1=1.0, count1=2500)
        >>> [round(end, 4) for end in box.mean1], [round(end, 4) for end in box.sigma1]
        ([1.45, 1.55], [0.9658, 1.0364])
    """
    _validate.finite(mean0=mean0, mean1=mean1)
    _validate.non_negative(sd0=sd0, sd1=sd1)
    _validate.integer(2, count0=count0, count1=count1)
    _validate.probability(confidence=confidence)
    if pooled:
        freedom = count0 + count1 - 2
        sd = math.sqrt(((count0 - 1) * sd0**2 + (count1 - 1) * sd1**2) / freedom)
        error = (1.0 - confidence) / 3.0
        sigma = _sigma_interval(sd, freedom, error)
        return Rectangle(
            mean0=_mean_interval(mean0, sd, count0, freedom, error),
            sigma0=sigma,
            mean1=_mean_interval(mean1, sd, count1, freedom, error),
            sigma1=sigma,
            pooled=True,
        )
    error = (1.0 - confidence) / 4.0
    return Rectangle(
        mean0=_mean_interval(mean0, sd0, count0, count0 - 1, error),
        sigma0=_sigma_interval(sd0, count0 - 1, error),
        mean1=_mean_interval(mean1, sd1, count1, count1 - 1, error),
        sigma1=_sigma_interval(sd1, count1 - 1, error),
    )


def _mean_interval(mean: float, sd: float, count: int, freedom: int, error: float) -> _Interval:
    half = -float(special.stdtrit(freedom, 0.5 * error)) * sd / math.sqrt(count)
    return mean - half, mean + half


def _sigma_interval(sd: float, freedom: int, error: float) -> _Interval:
    half = 0.5 * freedom
    low = sd * math.sqrt(half / float(special.gammainccinv(half, 0.5 * error)))
    high = sd * math.sqrt(half / float(special.gammaincinv(half, 0.5 * error)))
    return low, high


def minimum_epsilon_over_rectangle(rectangle: Rectangle, delta: float) -> float:
    """The least epsilon of any pair of Gaussians in the rectangle.

    Args:
        rectangle: The region.
        delta: Level of the divergence, in (0, 1).

    Returns:
        The minimum, to a relative 1e-9. Infinity if a deviation can only be 0 and the pair differs.

    Example:
        >>> box = rectangle(mean0=0.0, sd0=1.0, count0=2500, mean1=1.5, sd1=1.0, count1=2500)
        >>> round(minimum_epsilon_over_rectangle(box, 1e-5), 4)
        6.1788
    """
    _validate.probability(delta=delta)
    gap = max(
        rectangle.mean1[0] - rectangle.mean0[1], rectangle.mean0[0] - rectangle.mean1[1], 0.0
    )
    # Raising both deviations in proportion lowers h at the same x, up to the smaller upper end;
    # a partner narrower than that has more x and no less h.
    narrow, wide = sorted((rectangle.sigma0, rectangle.sigma1), key=lambda interval: interval[1])
    least, first, last = narrow[1], max(wide[0], narrow[1]), wide[1]
    if rectangle.pooled:
        first = last = least
    if least == 0.0:
        return 0.0 if gap == 0.0 and last == 0.0 else math.inf
    return _least_on_front(
        lambda x: gap / (least * np.exp(x)), math.log(first / least), math.log(last / least), delta
    )


def _least_on_front(
    shift: Callable[[_Array], _Array], start: float, end: float, delta: float
) -> float:
    """The least epsilon on a front: ``shift`` gives h at x, and falls from ``start`` to ``end``."""

    def epsilon(h: _Array, x: _Array) -> _Array:
        result = np.full(h.shape, np.inf)
        held = np.isfinite(h)
        result[held] = gaussian.epsilon(delta, 0.0, 1.0, h[held], np.exp(-x[held]))
        return result

    edges = start + max(end - start, 0.0) * _GRADING
    left, right = edges[:-1], edges[1:]
    least = math.inf
    while True:
        here, there = shift(left), shift(right)
        found, bound = np.split(
            epsilon(np.concatenate([here, there]), np.concatenate([left, left])), 2
        )
        least = min(least, float(found.min()))
        # The very end of the front is no cell's left edge; its bound covers it.
        open_ = bound < least * (1.0 - _RELATIVE_TOLERANCE) - _ABSOLUTE_TOLERANCE
        count = int(np.count_nonzero(open_))
        if count == 0:
            return least
        if count > _MOST_CELLS or np.all(right[open_] <= np.nextafter(left[open_], np.inf)):
            return float(bound.min())
        parts = max(2, _CELLS // count)
        steps = np.linspace(left[open_], right[open_], parts + 1)
        left, right = steps[:-1].ravel(), steps[1:].ravel()
