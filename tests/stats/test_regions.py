"""Confidence regions: their intervals, and a minimum that no point of the region undercuts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from askgauss.auditors import gaussian_regions as regions
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import gaussian

# The minimum is never above the least value of a search, and only this far below; further where a
# large delta makes all pairs along the front nearly equal.
SLACK, SLACK_AT_LARGE_DELTA = 1.1e-5, 1e-3
ROUNDING = 1e-12


def epsilon(delta, theta):
    return np.asarray(gaussian.epsilon(delta, *np.moveaxis(np.asarray(theta), -1, 0)))


def groups(seed):
    """Means, deviations and counts of two groups, and a delta, of every kind."""
    rng = np.random.default_rng(seed)
    counts = rng.choice([6, 20, 50, 500, 2500, 100_000], size=2)
    sd0 = 10 ** rng.uniform(-2, 2)
    sd1 = sd0 * math.exp(rng.normal() * rng.choice([0.01, 0.1, 1.0]))
    mean0 = sd0 * rng.normal()
    mean1 = mean0 + sd0 * rng.choice([-1.0, 1.0]) * 10 ** rng.uniform(-1, 1)
    delta = 10 ** rng.choice([-9.0, -5.0, -2.0, -0.3])
    return (mean0, sd0, mean1, sd1), counts, delta, rng


# What the search rests on: epsilon grows with the gap in units of the wider deviation, and with the
# ratio of the deviations.


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01, 0.3, 0.7])
def test_epsilon_grows_in_shift_and_in_ratio(delta):
    shift = np.concatenate([[0.0], np.geomspace(1e-3, 30, 60)])[:, None]
    log_ratio = np.concatenate([[0.0], np.geomspace(1e-4, 4, 60)])
    table = np.asarray(gaussian.epsilon(delta, 0.0, 1.0, shift, np.exp(-log_ratio)))
    for axis in (0, 1):
        assert np.all(np.diff(table, axis=axis) >= -ROUNDING * (1 + np.delete(table, 0, axis)))


# Rectangle


def box_of(theta, counts, **options):
    mean0, sd0, mean1, sd1 = theta
    return regions.rectangle(
        mean0=mean0,
        sd0=sd0,
        count0=int(counts[0]),
        mean1=mean1,
        sd1=sd1,
        count1=int(counts[1]),
        **options,
    )


def test_rectangle_has_the_textbook_intervals():
    box = box_of((1.0, 2.0, 5.0, 3.0), (12, 40), confidence=0.9)
    error = 0.1 / 4
    for mean, sd, count, mean_interval, sigma_interval in (
        (1.0, 2.0, 12, box.mean0, box.sigma0),
        (5.0, 3.0, 40, box.mean1, box.sigma1),
    ):
        student = stats.t.interval(1 - error, count - 1, loc=mean, scale=sd / math.sqrt(count))
        chi = stats.chi2.ppf([1 - error / 2, error / 2], count - 1)
        assert mean_interval == pytest.approx(student, rel=1e-12)
        assert sigma_interval == pytest.approx(sd * np.sqrt((count - 1) / chi), rel=1e-12)
    assert not box.pooled


def test_pooled_rectangle_has_three_intervals():
    box = box_of((1.0, 2.0, 5.0, 3.0), (12, 40), confidence=0.9, pooled=True)
    error, freedom = 0.1 / 3, 50
    sd = math.sqrt((11 * 4 + 39 * 9) / freedom)
    chi = stats.chi2.ppf([1 - error / 2, error / 2], freedom)
    assert box.pooled
    assert box.sigma0 == box.sigma1 == pytest.approx(sd * np.sqrt(freedom / chi), rel=1e-12)
    for mean, count, interval in ((1.0, 12, box.mean0), (5.0, 40, box.mean1)):
        student = stats.t.interval(1 - error, freedom, loc=mean, scale=sd / math.sqrt(count))
        assert interval == pytest.approx(student, rel=1e-12)


@pytest.mark.parametrize("pooled", [False, True])
def test_rectangle_covers_the_truth(pooled):
    # Nominal 95 %; independent intervals at the Bonferroni level give .951 (and a little more when
    # pooled). With 4,000 boxes either side of the band is five standard errors off.
    rng = np.random.default_rng(1)
    truth = (0.0, 1.0, 2.0, 1.0 if pooled else 1.5)
    trials, inside = 4000, 0
    for _ in range(trials):
        scores0, scores1 = rng.normal(0.0, truth[1], 9), rng.normal(2.0, truth[3], 14)
        sample = (scores0.mean(), scores0.std(ddof=1), scores1.mean(), scores1.std(ddof=1))
        box = box_of(sample, (9, 14), pooled=pooled)
        intervals = (box.mean0, box.sigma0, box.mean1, box.sigma1)
        inside += all(low <= x <= high for x, (low, high) in zip(truth, intervals, strict=True))
    assert 0.933 <= inside / trials <= 0.975


def corners(box):
    return np.array([box.mean0, box.sigma0, box.mean1, box.sigma1]).T


@pytest.mark.parametrize("seed", range(40))
def test_no_point_of_the_rectangle_is_below_its_minimum(seed):
    theta, counts, delta, rng = groups(seed)
    box = box_of(theta, counts)
    low, high = corners(box)
    # Stretched and clipped, so that faces, edges and corners are met as often as the inside.
    inside = low + (high - low) * np.clip(rng.uniform(-0.4, 1.4, size=(20_000, 4)), 0, 1)
    least = regions.minimum_epsilon_over_rectangle(box, delta)
    assert np.all(least <= epsilon(delta, inside) * (1 + ROUNDING))


@pytest.mark.parametrize("seed", range(40))
def test_minimum_over_the_rectangle_is_that_of_a_dense_grid(seed):
    theta, counts, delta, _ = groups(seed)
    box = box_of(theta, counts)
    gap = max(box.mean1[0] - box.mean0[1], box.mean0[0] - box.mean1[1], 0.0)
    # One axis for both deviations wherever they can be equal: the minimum is often on that line.
    ends = [end for interval in (box.sigma0, box.sigma1) for end in interval]
    axis = np.unique(np.concatenate([np.geomspace(min(ends), max(ends), 400), ends]))
    sigma0, sigma1 = (
        axis[(axis >= interval[0]) & (axis <= interval[1])] for interval in (box.sigma0, box.sigma1)
    )
    table = np.asarray(gaussian.epsilon(delta, 0.0, sigma0[:, None], gap, sigma1))
    least = regions.minimum_epsilon_over_rectangle(box, delta)
    assert least <= table.min() * (1 + ROUNDING)
    # The grid itself is this coarse where the minimum lies between its points.
    assert least >= table.min() * (1 - 1e-3)


def test_minimum_over_the_rectangle_at_large_delta_lies_between_the_ends():
    # At a large delta a wider partner can be harder to tell apart than an equal one.
    box = regions.Rectangle(
        mean0=(0.0, 0.0), sigma0=(1.0, 1.0), mean1=(5.0, 5.0), sigma1=(0.5, 40.0)
    )
    line = np.geomspace(0.5, 40.0, 20_001)
    along = np.asarray(gaussian.epsilon(0.5, 0.0, 1.0, 5.0, line))
    best = int(along.argmin())
    assert 1.01 < line[best] < 39.0
    least = regions.minimum_epsilon_over_rectangle(box, 0.5)
    assert along[best] * (1 - SLACK_AT_LARGE_DELTA) <= least <= along[best]


@pytest.mark.parametrize("seed", range(10))
def test_pooled_rectangle_has_one_deviation(seed):
    theta, counts, delta, rng = groups(seed)
    box = box_of(theta, counts, pooled=True)
    low, high = corners(box)
    inside = low + (high - low) * np.clip(rng.uniform(-0.4, 1.4, size=(20_000, 4)), 0, 1)
    inside[:, 3] = inside[:, 1]
    least = regions.minimum_epsilon_over_rectangle(box, delta)
    values = epsilon(delta, inside)
    assert np.all(least <= values * (1 + ROUNDING))
    assert least >= values.min() * (1 - 0.02) - 1e-12


def test_rectangle_with_two_equal_gaussians_has_epsilon_zero():
    box = box_of((0.0, 1.0, 0.05, 1.02), (100, 100))
    assert regions.minimum_epsilon_over_rectangle(box, 1e-30) == 0.0


def test_rectangle_without_noise_is_unbounded():
    assert regions.minimum_epsilon_over_rectangle(box_of((0.0, 0.0, 1.0, 0.0), (9, 9)), 0.1) == (
        math.inf
    )
    assert regions.minimum_epsilon_over_rectangle(box_of((0.0, 0.0, 0.0, 1.0), (9, 9)), 0.1) == (
        math.inf
    )
    assert regions.minimum_epsilon_over_rectangle(box_of((1.0, 0.0, 1.0, 0.0), (9, 9)), 0.1) == 0.0


# Ellipsoid


def shape_of(theta, counts, rng, correlation=0.9):
    """A covariance such as a bootstrap gives: two blocks, each with a correlation of its own."""
    covariance = np.zeros((4, 4))
    for block, count in zip((0, 2), counts, strict=True):
        sd_mean = theta[block + 1] / math.sqrt(count)
        sd_sd = sd_mean * rng.uniform(0.4, 2.0)
        cross = rng.uniform(-correlation, correlation) * sd_mean * sd_sd
        covariance[block : block + 2, block : block + 2] = [[sd_mean**2, cross], [cross, sd_sd**2]]
    return covariance


def points_of(center, covariance, radius_squared, rng, count=40_000):
    """Points of the ellipsoid with positive deviations, half of them on its surface."""
    values, vectors = np.linalg.eigh(covariance)
    ball = rng.normal(size=(count, len(center)))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    ball[: count // 2] *= rng.random((count // 2, 1)) ** (1 / len(center))
    points = (
        center + math.sqrt(radius_squared) * (ball * np.sqrt(np.maximum(values, 0))) @ vectors.T
    )
    sigmas = (1, 3) if len(center) == 4 else (2,)
    return points[np.all(points[:, sigmas] > 0, axis=1)]


@pytest.mark.parametrize("seed", range(60))
def test_no_point_of_the_ellipsoid_is_below_its_minimum(seed):
    theta, counts, delta, rng = groups(seed)
    covariance = shape_of(theta, counts, rng)
    if seed % 4 == 0:  # any shape at all, not only two blocks
        mix = rng.normal(size=(4, 4))
        covariance = covariance + 0.1 * covariance.max() * mix @ mix.T / 4
    radius_squared = regions.radius_squared(rng.choice([0.5, 0.95, 0.999]), 4)
    points = points_of(theta, covariance, radius_squared, rng)
    least = regions.minimum_epsilon_over_ellipsoid(theta, covariance, radius_squared, delta)
    assert np.all(least <= epsilon(delta, points) * (1 + ROUNDING))


def least_by_search(theta, covariance, radius_squared, delta):
    """Zoom into a grid over the ellipse of the deviations, with the least gap at each point."""
    theta = np.asarray(theta)
    to_gap = np.array([[-1.0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    (gap, *sigma), shape = to_gap @ theta, to_gap @ covariance @ to_gap.T
    root = np.linalg.cholesky(shape[1:, 1:])
    weights = np.linalg.solve(shape[1:, 1:], shape[1:, 0])
    rest = shape[0, 0] - shape[0, 1:] @ weights

    def values(u, v):
        inside = u**2 + v**2 <= 1
        offset = math.sqrt(radius_squared) * np.stack([u, v], axis=-1) @ root.T
        sigmas = np.array(sigma) + offset
        half = np.sqrt(rest * radius_squared * np.maximum(1 - u**2 - v**2, 0))
        least_gap = np.maximum(np.abs(gap + offset @ weights) - half, 0)
        result = np.full(u.shape, np.inf)
        held = inside & np.all(sigmas > 0, axis=-1)
        pair = np.moveaxis(sigmas[held], -1, 0)
        result[held] = gaussian.epsilon(delta, 0.0, pair[0], least_gap[held], pair[1])
        return result

    grid = np.linspace(-1, 1, 301)
    u, v = np.meshgrid(grid, grid)
    angle = np.linspace(0, 2 * np.pi, 2001)
    u, v = np.append(u, np.cos(angle) * (1 - 1e-14)), np.append(v, np.sin(angle) * (1 - 1e-14))
    # The crease, equal deviations, where a grid would only come close.
    across = np.array([1.0, -1.0]) @ root * math.sqrt(radius_squared)
    aim = -(sigma[0] - sigma[1]) / np.linalg.norm(across)
    if abs(aim) < 1:
        along = np.linspace(-1, 1, 20_001) * math.sqrt(1 - aim**2) * (1 - 1e-14)
        unit = across / np.linalg.norm(across)
        u = np.append(u, aim * unit[0] - along * unit[1])
        v = np.append(v, aim * unit[1] + along * unit[0])
    table = values(u, v)
    best, width = table.min(), 0.02
    for start in np.argsort(table)[:3]:
        center, size = (u[start], v[start]), width
        for _ in range(12):
            side = np.linspace(-size, size, 41)
            local_u, local_v = np.meshgrid(center[0] + side, center[1] + side)
            local = values(local_u, local_v)
            index = np.unravel_index(local.argmin(), local.shape)
            center, size = (local_u[index], local_v[index]), size / 5
            best = min(best, local.min())
    return best


@pytest.mark.parametrize("seed", range(30))
def test_minimum_over_the_ellipsoid_is_that_of_a_search(seed):
    theta, counts, delta, rng = groups(seed)
    counts = np.maximum(counts, 50)  # deviations well away from 0
    covariance = shape_of(theta, counts, rng)
    radius_squared = regions.radius_squared(0.95, 4)
    searched = least_by_search(theta, covariance, radius_squared, delta)
    least = regions.minimum_epsilon_over_ellipsoid(theta, covariance, radius_squared, delta)
    slack = SLACK if delta < 0.1 else SLACK_AT_LARGE_DELTA
    assert searched * (1 - slack) <= least <= searched * (1 + ROUNDING)


def test_order_shift_scale_and_sign_do_not_matter():
    theta, counts, delta, rng = groups(3)
    covariance = shape_of(theta, counts, rng)
    least = regions.minimum_epsilon_over_ellipsoid(theta, covariance, 9.0, delta)
    swap = np.eye(4)[[2, 3, 0, 1]]
    flip = np.diag([-1.0, 1.0, -1.0, 1.0])
    for change in (swap, flip, 1e3 * np.eye(4), 1e-3 * flip @ swap):
        changed = regions.minimum_epsilon_over_ellipsoid(
            change @ theta + np.array([7.0, 0, 7.0, 0]), change @ covariance @ change.T, 9.0, delta
        )
        assert changed == pytest.approx(least, rel=2 * SLACK)


def test_ellipsoid_of_no_size_is_its_center():
    theta = (0.2, 1.3, 2.0, 0.9)
    exact = gaussian.epsilon(1e-5, *theta)
    nothing = np.zeros((4, 4))
    assert regions.minimum_epsilon_over_ellipsoid(theta, nothing, 9.0, 1e-5) == pytest.approx(
        exact, rel=1e-9
    )
    shape = shape_of(theta, (50, 50), np.random.default_rng(0))
    assert regions.minimum_epsilon_over_ellipsoid(theta, shape, 0.0, 1e-5) == pytest.approx(
        exact, rel=1e-9
    )


def test_ellipsoid_with_two_equal_gaussians_has_epsilon_zero():
    shape = np.diag([0.01, 0.005, 0.01, 0.005])
    assert regions.minimum_epsilon_over_ellipsoid((0.0, 1.0, 0.1, 1.05), shape, 9.5, 1e-30) == 0.0
    assert regions.minimum_epsilon_over_ellipsoid((0.0, 1.0, 2.0, 1.05), shape, 9.5, 1e-5) > 1.0


def test_ellipsoid_without_noise_is_unbounded():
    nothing = np.zeros((4, 4))
    for theta, expected in (
        ((0.0, 0.0, 1.0, 0.0), math.inf),
        ((0.0, 0.0, 0.0, 1.0), math.inf),
        ((0.0, 2.0, 0.0, 0.0), math.inf),
        ((1.0, 0.0, 1.0, 0.0), 0.0),
    ):
        assert regions.minimum_epsilon_over_ellipsoid(theta, nothing, 9.5, 1e-5) == expected


@pytest.mark.parametrize("seed", range(20))
def test_ellipsoid_that_reaches_below_zero_is_cut(seed):
    rng = np.random.default_rng(seed)
    theta = np.array([0.0, rng.uniform(0.1, 1), rng.uniform(0.5, 8), rng.uniform(0.1, 1)])
    mix = rng.normal(size=(4, 4)) * rng.choice([0.1, 0.5])
    covariance = mix @ mix.T
    points = points_of(theta, covariance, 4.0, rng)
    least = regions.minimum_epsilon_over_ellipsoid(theta, covariance, 4.0, 1e-3)
    assert np.all(least <= epsilon(1e-3, points) * (1 + ROUNDING))


@pytest.mark.parametrize("seed", range(20))
def test_pooled_ellipsoid_has_one_deviation(seed):
    theta, counts, delta, rng = groups(seed)
    mix = np.diag(theta[1] / np.sqrt([counts[0], counts[1], 2 * counts.sum()]))
    mix = mix @ (np.eye(3) + rng.uniform(-0.3, 0.3, size=(3, 3)))
    center, covariance = np.array([theta[0], theta[2], theta[1]]), mix @ mix.T
    radius_squared = regions.radius_squared(0.95, 3)
    least = regions.minimum_epsilon_over_ellipsoid(center, covariance, radius_squared, delta)
    points = points_of(center, covariance, radius_squared, rng)
    assert np.all(least <= epsilon(delta, points[:, [0, 2, 1, 2]]) * (1 + ROUNDING))
    # The outline of its image in the plane of gap and deviation; inside it if a gap of 0 is.
    to_plane = np.array([[-1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    root = np.linalg.cholesky(to_plane @ covariance @ to_plane.T) * math.sqrt(radius_squared)
    angle = np.linspace(0, 2 * np.pi, 100_001)
    gap, sigma = (to_plane @ center)[:, None] + root @ [np.cos(angle), np.sin(angle)]
    assert sigma.min() > 0
    outline = np.asarray(gaussian.epsilon(delta, 0.0, sigma, gap, sigma))
    searched = outline.min() if gap.min() > 0 or gap.max() < 0 else 0.0
    assert least == pytest.approx(searched, rel=1e-6)


@pytest.mark.parametrize("parameters", [3, 4])
def test_radius_is_a_chi_square_quantile(parameters):
    assert regions.radius_squared(0.95, parameters) == pytest.approx(
        stats.chi2.ppf(0.95, parameters), rel=1e-12
    )


# Bootstrap


def every_resample(scores):
    """Mean and sum of squared deviations of each of the n^n equally likely resamples."""
    rows = np.array(list(itertools.product(scores, repeat=len(scores))))
    return rows.mean(axis=1), rows.var(axis=1) * len(scores)


SMALL0, SMALL1 = np.array([100.0, 101.5, 102.0, 107.0]), np.array([-3.0, 0.5, 1.0])


def test_bootstrap_covariance_is_that_of_all_resamples():
    estimate, covariance = regions.bootstrap(SMALL0, SMALL1, resamples=200_000, seed=5)
    expected = np.zeros((4, 4))
    for block, scores in ((0, SMALL0), (2, SMALL1)):
        means, squares = every_resample(scores)
        sds = np.sqrt(squares / (len(scores) - 1))
        expected[block : block + 2, block : block + 2] = np.cov(means, sds, ddof=0)
    truth = [SMALL0.mean(), SMALL0.std(ddof=1), SMALL1.mean(), SMALL1.std(ddof=1)]
    assert estimate == pytest.approx(truth, rel=1e-12)
    # A covariance of 200,000 draws has a standard error below .4 % of the product of deviations.
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.all(np.abs(covariance - expected) <= 0.02 * scale)
    assert np.all(covariance[:2, 2:] == 0)


def test_pooled_bootstrap_covariance_is_that_of_all_resamples():
    estimate, covariance = regions.bootstrap(SMALL0, SMALL1, resamples=200_000, seed=5, pooled=True)
    (means0, squares0), (means1, squares1) = every_resample(SMALL0), every_resample(SMALL1)
    first, second = (
        index.ravel() for index in np.indices((means0.size, means1.size)).reshape(2, -1)
    )
    pooled = np.sqrt((squares0[first] + squares1[second]) / 5)
    expected = np.cov(np.stack([means0[first], means1[second], pooled]), ddof=0)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.all(np.abs(covariance - expected) <= 0.02 * scale)
    total = SMALL0.var(ddof=1) * 3 + SMALL1.var(ddof=1) * 2
    assert estimate == pytest.approx([SMALL0.mean(), SMALL1.mean(), math.sqrt(total / 5)])


def test_bootstrap_is_seeded_and_the_same_in_any_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=300), rng.normal(1.0, 2.0, size=200)
    _, whole = regions.bootstrap(*scores, resamples=100, seed=1)
    monkeypatch.setattr(regions, "_CHUNK", 1000)
    _, parts = regions.bootstrap(*scores, resamples=100, seed=1)
    _, other = regions.bootstrap(*scores, resamples=100, seed=2)
    assert np.array_equal(whole, parts)
    assert not np.array_equal(whole, other)


def test_bootstrap_resamples_the_groups_apart():
    scores = np.random.default_rng(0).normal(size=50)
    _, covariance = regions.bootstrap(scores, scores, resamples=200)
    assert covariance[0, 0] != covariance[2, 2]


def test_bootstrap_does_not_mind_a_large_offset():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=400), rng.normal(1.0, 1.0, size=400)
    _, near = regions.bootstrap(*scores)
    _, far = regions.bootstrap(scores[0] + 1e8, scores[1] + 1e8)
    assert far == pytest.approx(near, rel=1e-5, abs=1e-9)


# What is refused


def test_bad_ellipsoids_are_refused():
    """As a damaged file could hold them."""
    for center, covariance, name in (
        ([0.0, 1.0], np.eye(2), "center"),
        ([0.0, -1.0, 0.0, 1.0], np.eye(4), "center"),
        ([0.0, 0.0, -1.0], np.eye(3), "center"),
        ([0.0, 1.0, 0.0, 1.0], np.eye(3), "covariance"),
        ([0.0, 1.0, 0.0, 1.0], np.diag([1.0, 1.0, 1.0, -1.0]), "covariance"),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            regions.minimum_epsilon_over_ellipsoid(center, covariance, 1.0, 1e-5)
