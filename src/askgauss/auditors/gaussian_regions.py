"""`GaussianRectangle` and `GaussianEllipsoid`: the least epsilon over a confidence region.

The regions are those of "Let's Ask Gauss", section 4.3, with both variances free.

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
bound, which a search alone could not give.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import ndtr

from askgauss import _validate
from askgauss.auditors.auditor import Auditor, Evidence, shift_of_mechanism
from askgauss.auditors.gaussian_scores import PairEvidence, constant_scores
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats import gaussian
from askgauss.stats.limits import close_bracket, smallest_error

__all__ = [
    "GaussianEllipsoid",
    "GaussianRectangle",
    "Rectangle",
    "bootstrap",
    "minimum_epsilon_over_ellipsoid",
    "minimum_epsilon_over_rectangle",
    "radius_squared",
    "rectangle",
]

Array: TypeAlias = NDArray[np.float64]
_Interval: TypeAlias = tuple[float, float]

# The error of a region is one minus its confidence, which rounds.
_SMALLEST_REGION_ERROR = 1e-15
# Below so many in a group a bootstrap ellipsoid is too small, most of all far out, at the gate.
_ENOUGH_TO_RESAMPLE = 100
_MOST_RESAMPLES = 10**5
# What is so many standard errors away happens always or never.
_CERTAIN = 8.0
# Where the ratio of two measured variances is averaged over, in standard errors.
_RATIO_NODES, _RATIO_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_RATIO_WEIGHTS = _RATIO_WEIGHTS / _RATIO_WEIGHTS.sum()
# A Gaussian pair that reports more than this many times the exact distribution's epsilon is not
# usable.
_PAIR_TOLERANCE = 1.01
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
        mean1: The same of the second group.
        sd1: Likewise.
        count1: Likewise.
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
    shift: Callable[[Array], Array], start: float, end: float, delta: float
) -> float:
    """The least epsilon on a front: ``shift`` gives h at x, and falls from ``start`` to ``end``."""

    def epsilon(h: Array, x: Array) -> Array:
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
) -> tuple[Array, Array]:
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
    groups = [np.asarray(scores, dtype=np.float64) for scores in (scores0, scores1)]
    streams = np.random.default_rng(seed).spawn(2)
    (mean0, square0), (mean1, square1) = (_group_moments(group) for group in groups)
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


def _group_moments(scores: Array) -> tuple[float, float]:
    """Mean and sum of squared deviations."""
    mean = float(scores.mean())
    return mean, float(np.square(scores - mean).sum())


def _resample(scores: Array, resamples: int, stream: np.random.Generator) -> tuple[Array, Array]:
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
    point, shape = _checked_ellipsoid(center, covariance)
    return min(
        _least_on_side(side @ point, side @ shape @ side.T, radius_squared, delta)
        for side in _SIDES[point.size]
    )


def _checked_ellipsoid(center: ArrayLike, covariance: ArrayLike) -> tuple[Array, Array]:
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


def _least_on_side(point: Array, shape: Array, radius_squared: float, delta: float) -> float:
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

    def shift(x: Array) -> Array:
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
    top: Array,
    bottom: Array,
    top_variance: Array,
    covariance: Array,
    bottom_variance: Array,
    radius_squared: Array | float,
) -> Array:
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
    result: Array = np.where(positive, np.maximum(np.nan_to_num(ratio), 0.0), np.inf)
    return result


def _pair_exceeds_law(evidence: PairEvidence, delta: float) -> tuple[Finding, ...]:
    """Whether the Gaussian pair reports more than the exact law of the score at this shift."""
    weighted = evidence.weighted
    if weighted is None and (evidence.steps is None or evidence.sampling_rate in (None, 1.0)):
        return ()
    shift = evidence.test().lower(0.5)
    if shift == 0.0 or math.isinf(shift):
        return ()
    spread = math.sqrt(1.0 + evidence.kappa * shift**2)
    pair = gaussian.epsilon(delta, 0.0, 1.0, shift, spread)
    exact = evidence.epsilon_of_shift(shift, delta)
    if pair <= _PAIR_TOLERANCE * exact:
        return ()
    steps = evidence.steps if weighted is None else weighted.steps
    rate = (weighted or evidence).sampling_rate
    return (
        Finding(
            check="Gaussian pair",
            status=Status.FAIL,
            summary=(
                f"at {steps:,} steps and sampling rate {rate:g} a Gaussian pair reads epsilon "
                f"{pair:.3g} where the exact law has {exact:.3g}."
            ),
            consequence=Consequence.INVALIDATES,
            measured=pair,
            claimed=exact,
            remedy="Use GaussianShift(), which reads the exact law.",
        ),
    )


class _RegionAuditor(Auditor[Evidence]):
    """What the rectangle and the ellipsoid share: questions asked of the least epsilon."""

    __slots__ = ()
    assumption: ClassVar[Assumption] = Assumption.GAUSSIAN_SCORES
    scales: ClassVar[bool] = True

    @abc.abstractmethod
    def _pair(self, evidence: Evidence) -> PairEvidence:
        """The moments in the evidence."""

    @abc.abstractmethod
    def _expected(self, evidence: Evidence, shift: float, variance: float) -> Evidence:
        """The evidence of an audit of these counts with a shift and a variance of present scores.

        In units of the noise of the absent ones.
        """

    def epsilon_point(self, evidence: Evidence, *, delta: float) -> float:
        """Epsilon of the fitted pair; noisy, and too high on average where variances are free."""
        return self.epsilon_lower(evidence, delta=delta, confidence=0.0)

    def p_value(self, evidence: Evidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the least epsilon in the region exceeds ``epsilon``.

        At least 1e-15: closer to 1 a confidence cannot be told from it.
        """

        def rejects(error: float) -> bool:
            if not _SMALLEST_REGION_ERROR <= error < 1.0:
                return error >= 1.0
            return self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon

        return smallest_error(rejects)

    def power(
        self,
        evidence: Evidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power from the shifts at which audits would just reject, one for each ratio of variances.

        The bound depends on the shift and on the two variances as measured. Their logarithms are
        taken for Gaussian, and the average over their difference is by Gauss and Hermite.
        """
        pair = self._pair(evidence)
        true_shift = shift_of_mechanism(pair, true_epsilon, delta)
        if math.isinf(true_shift):
            return 0.0
        ratio = 1.0 + pair.kappa * true_shift**2
        of_absent, of_present = (0.5 / (group.count - 1) for group in (pair.absent, pair.present))
        of_ratio = of_absent + of_present
        gap_variance = 1.0 / pair.absent.count + ratio / pair.present.count
        power, guess = 0.0, true_shift
        for node, weight in zip(_RATIO_NODES, _RATIO_WEIGHTS, strict=True):
            log_ratio = math.sqrt(of_ratio) * float(node)
            variance = ratio * math.exp(2.0 * log_ratio)

            def margin(shift: float, variance: float = variance) -> float:
                expected = self._expected(evidence, shift, variance)
                return epsilon - self.epsilon_lower(expected, delta=delta, confidence=1.0 - error)

            critical = _critical_shift(
                margin, guess, true_shift + _CERTAIN * math.sqrt(gap_variance + true_shift**2)
            )
            if math.isinf(critical):
                continue
            guess = max(critical, 1e-3)
            # What the ratio says of the absent scores' own deviation, and what it leaves open.
            deviation = 1.0 - of_absent / of_ratio * log_ratio
            left = gap_variance + critical**2 * of_absent * of_present / of_ratio
            power += float(weight * ndtr((true_shift - critical * deviation) / math.sqrt(left)))
        return power

    def findings(
        self, evidence: Evidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Whether there is noise to measure against, and whether a Gaussian pair will do."""
        pair = self._pair(evidence)
        if pair.present.sum_of_squares == 0.0 < pair.absent.sum_of_squares:
            return (
                Finding(
                    check="noise",
                    status=Status.FAIL,
                    summary=(
                        f"all {pair.present.count:,} present scores are the same number, which no "
                        "Gaussian gives; there is no variance to fit."
                    ),
                    consequence=Consequence.INVALIDATES,
                    measured=0.0,
                    remedy="Check how scores are made; OneRun() needs no law of them.",
                ),
            )
        return constant_scores(pair) + _pair_exceeds_law(pair, delta)


def _critical_shift(margin: Callable[[float], float], guess: float, far: float) -> float:
    """Where a falling margin stops being positive, looked for near a guess; infinite beyond far."""
    low = high = guess
    at_low = at_high = margin(guess)
    factor = 1.05
    while at_low <= 0.0 and low > 1e-6:
        high, at_high, low = low, at_low, low / factor
        at_low, factor = margin(low), factor**2
    while at_high > 0.0:
        if high > far:
            return math.inf
        low, at_low, high = high, at_high, high * factor
        at_high, factor = margin(high), factor**2
    return low if at_low <= 0.0 else close_bracket(margin, low, at_low, high, at_high, 1e-3)


def _without_spread(pair: PairEvidence) -> float | None:
    """The bound where a group does not vary, and so has no variance to fit; None where both do."""
    if pair.absent.sum_of_squares == 0.0:
        return 0.0 if pair.tied else math.inf
    return 0.0 if pair.present.sum_of_squares == 0.0 else None


def _expected_pair(pair: PairEvidence, shift: float, variance: float) -> PairEvidence:
    """Moments as they are on average, with unit noise."""
    present, absent = pair.present.count, pair.absent.count
    return PairEvidence(
        present=GroupMoments(
            count=present,
            mean=shift,
            sum_of_squares=(present - 1) * variance,
        ),
        absent=GroupMoments(count=absent, mean=0.0, sum_of_squares=absent - 1.0),
        steps=pair.steps,
        sampling_rate=pair.sampling_rate,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRectangle(_RegionAuditor[PairEvidence]):
    """The least epsilon over Student-t and chi-square intervals; the paper's first region.

    Assumes:
        Scores are independent and Gaussian; one variance for both groups if ``pooled``.

    Guarantee:
        Valid at any number of canaries, and wide: four intervals share the error.

    Args:
        pooled: One standard deviation for both groups, as the paper's public code has it.
    """

    evidence_type: ClassVar[type] = PairEvidence

    pooled: bool = False

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> PairEvidence:
        """Moments of both groups."""
        return PairEvidence.of(data)

    def epsilon_lower(self, evidence: PairEvidence, *, delta: float, confidence: float) -> float:
        """The least epsilon in the rectangle."""
        present, absent = evidence.present, evidence.absent
        constant = _without_spread(evidence)
        if constant is not None:
            return constant
        if confidence == 0.0:
            box = Rectangle(
                mean0=(absent.mean, absent.mean),
                sigma0=(absent.standard_deviation,) * 2,
                mean1=(present.mean, present.mean),
                sigma1=(present.standard_deviation,) * 2,
            )
        else:
            box = rectangle(
                mean0=absent.mean,
                sd0=absent.standard_deviation,
                count0=absent.count,
                mean1=present.mean,
                sd1=present.standard_deviation,
                count1=present.count,
                confidence=confidence,
                pooled=self.pooled,
            )
        return minimum_epsilon_over_rectangle(box, delta)

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> PairEvidence:
        """Counts of such an audit."""
        return PairEvidence.planned(
            present=present, absent=absent, steps=steps, sampling_rate=sampling_rate
        )

    def _pair(self, evidence: PairEvidence) -> PairEvidence:
        return evidence

    def _expected(self, evidence: PairEvidence, shift: float, variance: float) -> PairEvidence:
        return _expected_pair(evidence, shift, variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class EllipsoidEvidence:
    """The fitted parameters, their bootstrap covariance, and the moments of both groups."""

    pair: PairEvidence
    center: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEllipsoid(_RegionAuditor[EllipsoidEvidence]):
    """The least epsilon over a bootstrap ellipsoid; the paper's second region.

    Assumes:
        Scores are independent and Gaussian, and there are enough of them for the bootstrap; one
        variance for both groups if ``pooled``.

    Guarantee:
        Valid in the limit of many canaries only. With fewer than 100 in a group it is INVALID: with
        10 it was seen above the truth 20 times as often as stated, at an error of .001.

    Args:
        resamples: Number of bootstrap resamples of each group.
        seed: Seed of the resampling.
        pooled: One standard deviation for both groups, as the paper's public code has it.
    """

    evidence_type: ClassVar[type] = EllipsoidEvidence

    resamples: int = 2000
    seed: int = 0
    pooled: bool = False

    def __post_init__(self) -> None:
        _validate.count(10, maximum=_MOST_RESAMPLES, resamples=self.resamples)
        _validate.integer(0, seed=self.seed)

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> EllipsoidEvidence:
        """Moments of both groups and the bootstrap covariance of the four parameters."""
        center, covariance = bootstrap(
            data.absent,
            data.present,
            resamples=self.resamples,
            seed=self.seed,
            pooled=self.pooled,
        )
        return EllipsoidEvidence(
            pair=PairEvidence.of(data),
            center=tuple(center.tolist()),
            covariance=tuple(tuple(row) for row in covariance.tolist()),
        )

    def epsilon_lower(
        self, evidence: EllipsoidEvidence, *, delta: float, confidence: float
    ) -> float:
        """The least epsilon in the ellipsoid."""
        constant = _without_spread(evidence.pair)
        if constant is not None:
            return constant
        size = len(evidence.center)
        radius = 0.0 if confidence == 0.0 else radius_squared(confidence, size)
        return minimum_epsilon_over_ellipsoid(evidence.center, evidence.covariance, radius, delta)

    def findings(
        self, evidence: EllipsoidEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Also whether there are enough canaries for the bootstrap."""
        # By its class: with slots, super() would look for the class that dataclass replaced.
        found = _RegionAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        fewest = min(evidence.pair.present.count, evidence.pair.absent.count)
        if fewest >= _ENOUGH_TO_RESAMPLE:
            return found
        few = Finding(
            check="number of canaries",
            status=Status.FAIL,
            summary=(
                f"{fewest:,} canaries in a group are too few to resample: the bound is above the "
                "truth far more often than stated."
            ),
            consequence=Consequence.INVALIDATES,
            measured=float(fewest),
            claimed=float(_ENOUGH_TO_RESAMPLE),
            remedy="Use GaussianShift() or GaussianRectangle(), valid at any number.",
        )
        return (*found, few)

    def _pair(self, evidence: EllipsoidEvidence) -> PairEvidence:
        return evidence.pair

    def _expected(
        self, evidence: EllipsoidEvidence, shift: float, variance: float
    ) -> EllipsoidEvidence:
        pair = _expected_pair(evidence.pair, shift, variance)
        absent, present = pair.absent, pair.present
        if self.pooled:
            freedom = absent.count + present.count - 2
            both = (absent.sum_of_squares + present.sum_of_squares) / freedom
            center: tuple[float, ...] = (0.0, shift, math.sqrt(both))
            spreads: tuple[float, ...]
            spreads = (both / absent.count, both / present.count, both / (2 * freedom))
        else:
            center = (0.0, absent.standard_deviation, shift, present.standard_deviation)
            spreads = (
                absent.variance / absent.count,
                absent.variance / (2 * absent.count),
                present.variance / present.count,
                present.variance / (2 * present.count),
            )
        covariance = tuple(
            tuple(spread if row == column else 0.0 for column in range(len(spreads)))
            for row, spread in enumerate(spreads)
        )
        return EllipsoidEvidence(pair=pair, center=center, covariance=covariance)
