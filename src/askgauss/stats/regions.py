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
x. Cells that this bound cannot rule out are divided further, and what is returned is the proved
bound, which a search alone could not give. The regions are those of "Let's Ask Gauss", section 4.3.
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

# How far below the least value found the proved bound may stay, in relative terms.
_TOLERANCE = 1e-5
# Cells of the first round lie ever denser towards the start of the front, where the minimum mostly
# is. Later rounds divide what is left into about _CELLS; with more than _MOST_CELLS unsettled, the
# front is flat and the bound as it stands will do.
_GRADING = np.concatenate([[0.0], 0.7 ** np.arange(80.0, -1.0, -1.0)])
_CELLS = 512
_MOST_CELLS = 4096
# Resampled scores held at a time.
_CHUNK = 1 << 17
# From the parameters of an ellipsoid, by their number, to (gap, narrow, wide): either deviation may
# be the wider one, unless there is only one.
_SIDES = {
    3: (np.array([[-1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),),
    4: (
        np.array([[-1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]),
        np.array([[-1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]),
    ),
}


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

    Examples:
        >>> box = rectangle(mean0=0.0, sd0=1.0, count0=2500, mean1=1.5, sd1=1.0, count1=2500)
        >>> [round(end, 4) for end in box.mean1], [round(end, 4) for end in box.sigma1]
        ([1.45, 1.55], [0.9658, 1.0365])
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
        The minimum or slightly less: never more, and at most a relative 1e-5 less (1e-3 at deltas
        above 0.1, where the front can be flat). 0 if the region holds two equal Gaussians; infinity
        if in all its pairs one is a single point and the other is not the same one.

    Examples:
        >>> box = rectangle(mean0=0.0, sd0=1.0, count0=2500, mean1=1.5, sd1=1.0, count1=2500)
        >>> round(minimum_epsilon_over_rectangle(box, 1e-5), 4)
        6.2237
    """
    _validate.probability(delta=delta)
    gap = max(rectangle.mean1[0] - rectangle.mean0[1], rectangle.mean0[0] - rectangle.mean1[1], 0.0)
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

    edges = start + (end - start) * _GRADING
    left, right = edges[:-1], edges[1:]
    least = proved = math.inf
    while True:
        twice = np.concatenate([left, left])
        values, bounds = np.split(epsilon(shift(np.concatenate([left, right])), twice), 2)
        least = min(least, float(values.min()))
        unsettled = bounds < least * (1.0 - _TOLERANCE)
        unsettled &= np.nextafter(left, np.inf) < right
        count = int(np.count_nonzero(unsettled))
        last = count == 0 or count > _MOST_CELLS
        proved = min(proved, float(bounds[~unsettled | last].min(initial=math.inf)))
        if last:
            return min(least, proved)
        parts = max(2, _CELLS // count)
        points = np.linspace(left[unsettled], right[unsettled], parts + 1)
        left, right = points[:-1].ravel(), points[1:].ravel()


def bootstrap(
    scores0: ArrayLike,
    scores1: ArrayLike,
    *,
    resamples: int = 2000,
    seed: int = 0,
    pooled: bool = False,
) -> tuple[_Array, _Array]:
    """Estimate of the pair's parameters and its bootstrap covariance.

    Args:
        scores0: Scores of the first group.
        scores1: Scores of the second group.
        resamples: Number of times each group is drawn anew, with replacement.
        seed: Root of the random streams, one for each group.
        pooled: One deviation for both groups, estimated from both.

    Returns:
        The estimate (mean0, sd0, mean1, sd1) and its covariance, without terms between the groups:
        they are resampled apart. When pooled, (mean0, mean1, sd) and its covariance.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> estimate, covariance = bootstrap(rng.normal(0, 1, 400), rng.normal(2, 1, 400))
        >>> estimate.shape, bool(abs(covariance[0, 0] * 400 - 1) < 0.2)
        ((4,), True)
    """
    groups = []
    for name, scores in (("scores0", scores0), ("scores1", scores1)):
        groups.append(_validate.finite_vector(name, scores))
        if groups[-1].size < 2:
            raise _validate.fail(name, scores, "to hold at least 2 scores")
    _validate.integer(2, resamples=resamples)
    _validate.integer(0, seed=seed)
    streams = np.random.default_rng(seed).spawn(2)
    (mean0, square0), (mean1, square1) = (_moments(group) for group in groups)
    (means0, squares0), (means1, squares1) = map(_resample, groups, (resamples,) * 2, streams)
    freedom0, freedom1 = (group.size - 1 for group in groups)
    if pooled:
        freedom = freedom0 + freedom1
        estimate = np.array([mean0, mean1, math.sqrt((square0 + square1) / freedom)])
        draws = np.stack([means0, means1, np.sqrt((squares0 + squares1) / freedom)])
        return estimate, np.cov(draws)
    estimate = np.array(
        [mean0, math.sqrt(square0 / freedom0), mean1, math.sqrt(square1 / freedom1)]
    )
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = np.cov(means0, np.sqrt(squares0 / freedom0))
    covariance[2:, 2:] = np.cov(means1, np.sqrt(squares1 / freedom1))
    return estimate, covariance


def _moments(scores: _Array) -> tuple[float, float]:
    """Mean and sum of squared deviations."""
    mean = float(scores.mean())
    return mean, float(np.square(scores - mean).sum())


def _resample(scores: _Array, resamples: int, stream: np.random.Generator) -> tuple[_Array, _Array]:
    """Moments of each resample, a bounded number of scores at a time."""
    count, mean = scores.size, scores.mean()
    # Around their mean, so that the one-pass formula below has nothing to cancel.
    centred = scores - mean
    sums, squares = np.empty(resamples), np.empty(resamples)
    rows = max(1, _CHUNK // count)
    for start in range(0, resamples, rows):
        part = slice(start, min(start + rows, resamples))
        drawn = centred.take(stream.integers(count, size=(part.stop - part.start, count)))
        sums[part] = drawn.sum(axis=1)
        squares[part] = np.einsum("ij,ij->i", drawn, drawn)
    return mean + sums / count, np.maximum(squares - sums**2 / count, 0.0)


def radius_squared(confidence: float, parameters: int) -> float:
    """Squared radius of the ellipsoid that holds a Gaussian estimate with this probability.

    Examples:
        >>> round(radius_squared(0.95, 4), 4)
        9.4877
    """
    _validate.probability(confidence=confidence)
    _validate.integer(1, parameters=parameters)
    return 2.0 * float(special.gammainccinv(0.5 * parameters, 1.0 - confidence))


def minimum_epsilon_over_ellipsoid(
    center: ArrayLike, covariance: ArrayLike, radius_squared: float, delta: float
) -> float:
    """The least epsilon of any pair of Gaussians in an ellipsoid.

    Args:
        center: (mean0, sigma0, mean1, sigma1), or (mean0, mean1, sigma) where the two deviations
            are one; deviations at least 0.
        covariance: Shape of the ellipsoid: positive semi-definite, and may be singular.
        radius_squared: How far it reaches, in units of the covariance.
        delta: Level of the divergence, in (0, 1).

    Returns:
        The minimum or slightly less, as in :func:`minimum_epsilon_over_rectangle`. An ellipsoid
        that reaches deviations of 0 and below is cut there, since no Gaussian lies beyond; should
        the cut take away the least gap in units of the wider deviation, a lower bound is returned.

    Examples:
        >>> center = [0.0, 1.0, 1.5, 1.0]
        >>> covariance = np.diag([4e-4, 2e-4, 4e-4, 2e-4])
        >>> round(minimum_epsilon_over_ellipsoid(center, covariance, 9.4877, 1e-5), 4)
        6.5097
    """
    _validate.probability(delta=delta)
    _validate.non_negative(radius_squared=radius_squared)
    point, shape = _checked(center, covariance)
    return min(
        _least_on_side(side @ point, side @ shape @ side.T, radius_squared, delta)
        for side in _SIDES[point.size]
    )


def _checked(center: ArrayLike, covariance: ArrayLike) -> tuple[_Array, _Array]:
    point = np.asarray(center, dtype=np.float64)
    shape = np.asarray(covariance, dtype=np.float64)
    if point.shape not in ((3,), (4,)) or not np.isfinite(point).all():
        raise _validate.fail("center", center, "to be three or four finite numbers")
    if np.any(point[_SIDES[point.size][0][1:].any(axis=0)] < 0.0):
        raise _validate.fail("center", center, "to hold deviations >= 0")
    if shape.shape != (point.size, point.size) or not np.isfinite(shape).all():
        raise _validate.fail(
            "covariance", covariance, f"to be {point.size} by {point.size}, finite"
        )
    slack = 1e-9 * float(np.abs(shape).max())
    if np.abs(shape - shape.T).max() > slack or np.linalg.eigvalsh(shape)[0] < -slack:
        raise _validate.fail("covariance", covariance, "to be positive semi-definite")
    return point, shape


def _least_on_side(point: _Array, shape: _Array, radius_squared: float, delta: float) -> float:
    """The least epsilon where the second of (gap, narrow, wide) is at most the third."""

    def least_ratio(top: int, bottom: int) -> float:
        pick = np.ix_([top, bottom], [top, bottom])
        (top_top, top_bottom), (_, bottom_bottom) = shape[pick]
        return float(
            _least_ratio(
                point[top], point[bottom], top_top, top_bottom, bottom_bottom, radius_squared
            )
        )

    gap, narrow, wide = 0, 1, 2
    if point[wide] == 0.0 == radius_squared * shape[wide, wide]:
        # The wider deviation can only be 0: two point masses.
        apart = point[gap] ** 2 > radius_squared * shape[gap, gap]
        return math.inf if apart or point[narrow] > 0.0 else 0.0
    first = least_ratio(wide, narrow)
    if least_ratio(narrow, wide) > 1.0 or math.isinf(first):
        return math.inf
    start = math.log(max(first, 1.0))
    least = least_ratio(gap, wide)

    # Where the least h of the whole ellipsoid is attained, the front ends.
    normal = np.array([1.0, 0.0, -math.copysign(least, point[gap])])
    variance = float(normal @ shape @ normal)
    touch = point - (shape @ normal) * (normal @ point / variance if variance > 0.0 else 0.0)
    if min(touch[narrow], touch[wide]) <= 0.0:
        # Beyond the cut at 0. The bound that takes both least values from anywhere is still valid.
        return _least_on_front(lambda x: np.full_like(x, least), start, start, delta)
    end = max(start, math.log(touch[wide] / touch[narrow]))

    def shift(x: _Array) -> _Array:
        # The slice of the ellipsoid in which narrow - k * wide is 0: again an ellipsoid.
        k = np.exp(-x)
        off = point[narrow] - k * point[wide]
        across = [shape[row, narrow] - k * shape[row, wide] for row in (gap, narrow, wide)]
        spread = across[narrow] - k * across[wide]
        share = np.divide(1.0, spread, out=np.zeros_like(x), where=spread > 0.0)
        return _least_ratio(
            point[gap] - across[gap] * off * share,
            point[wide] - across[wide] * off * share,
            shape[gap, gap] - across[gap] ** 2 * share,
            shape[gap, wide] - across[gap] * across[wide] * share,
            shape[wide, wide] - across[wide] ** 2 * share,
            radius_squared - off**2 * share,
        )

    return _least_on_front(shift, start, end, delta)


def _least_ratio(
    top: _Array,
    bottom: _Array,
    top_variance: _Array,
    covariance: _Array,
    bottom_variance: _Array,
    radius_squared: _Array | float,
) -> _Array:
    """The least |top| / bottom over an ellipse, where bottom > 0; infinity if it never is.

    That is the lower tangent from the origin, a root of a quadratic, or 0 if the ellipse meets the
    line top = 0 at a positive bottom.
    """
    covariance = np.where(top < 0.0, -covariance, covariance)
    top = np.abs(top)
    top_variance, bottom_variance, radius_squared = (
        np.maximum(value, 0.0) for value in (top_variance, bottom_variance, radius_squared)
    )
    determinant = np.maximum(top_variance * bottom_variance - covariance**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = radius_squared * top_variance - top**2
        highest = np.where(
            top_variance > 0.0,
            bottom * top_variance
            - covariance * top
            + np.sqrt(np.maximum(level, 0.0) * determinant),
            bottom + np.sqrt(radius_squared * bottom_variance),
        )
        a = bottom**2 - radius_squared * bottom_variance
        b = top * bottom - radius_squared * covariance
        c = -level
        form = top_variance * bottom**2 - 2.0 * covariance * top * bottom + bottom_variance * top**2
        root = np.sqrt(np.maximum(radius_squared * (form - radius_squared * determinant), 0.0))
        tangent = np.where(b >= 0.0, c / (b + root), (b - root) / a)
    ratio = np.where((level >= 0.0) & (highest > 0.0), 0.0, tangent)
    positive = bottom + np.sqrt(radius_squared * bottom_variance) > 0.0
    result: _Array = np.where(positive, np.maximum(np.nan_to_num(ratio), 0.0), np.inf)
    return result
