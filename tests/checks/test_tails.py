"""Tail probabilities against scipy's, brute force and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from askgauss.checks import tails
from askgauss.checks.correlation import most_similar, returning, squared_cosines_p_value
from askgauss.stats.limits import binomial_p_value


class TestSpread:
    spread = tails.Spread(40.0, 90.0)

    def test_interval_and_p_value_agree(self):
        for error in (0.1, 0.01):
            for end in self.spread.interval(error):
                assert self.spread.p_value(end) == pytest.approx(error, rel=1e-9)

    def test_p_value_is_the_chi_squares(self):
        assert self.spread.p_value(1.0) == pytest.approx(2 * stats.chi2(40).sf(90.0), rel=1e-9)
        assert self.spread.lower_p_value(2.0) == pytest.approx(stats.chi2(40).cdf(22.5), rel=1e-9)

    def test_holds_at_the_size_of_a_large_run(self):
        count = 2.5e9
        spread = tails.Spread(count, count * (1 + 4 * math.sqrt(2 / count)))
        assert spread.p_value(1.0) == pytest.approx(2 * stats.norm.sf(4.0), rel=1e-2)


@pytest.mark.parametrize("ratio", [0.2, 0.9, 1.0, 1.3, 6.0])
def test_ratios_are_scipys_f(ratio):
    law = stats.f(7, 19)
    assert tails.ratio_tail(ratio, 7, 19) == pytest.approx(law.sf(ratio), rel=1e-10)
    expected = min(1.0, 2 * min(law.cdf(ratio), law.sf(ratio)))
    assert tails.ratio_p_value(ratio, 7, 19) == pytest.approx(expected, rel=1e-10)


def test_a_tiny_tail_is_not_rounded_to_zero():
    assert 0.0 < tails.ratio_tail(3.0, 500, 500) < 1e-30


@pytest.mark.parametrize("ratio", [0.0, 5e-324, 1e308, np.inf])
def test_ratios_beyond_all_others_have_a_tail(ratio):
    assert tails.ratio_tail(ratio, 7, 19) == (1.0 if ratio < 1.0 else 0.0)
    assert tails.ratio_p_value(ratio, 7, 19) == pytest.approx(0.0, abs=1e-100)


def test_no_correlation_is_beyond_one():
    assert [tails.correlation_tail(sign * 1.5, 9) for sign in (1, -1)] == [0.0, 1.0]


def test_small_numbers_do_not_vanish_beside_a_large_one():
    assert tails.sums_of_others(np.array([2.0, 1e60, 3.0])).tolist() == [1e60, 5.0, 1e60]


def test_equal_variances_is_scipys_bartlett():
    generator = np.random.default_rng(0)
    groups = [generator.normal(0, scale, size) for scale, size in ((1, 12), (1.4, 30), (0.8, 25))]
    square = np.array([((group - group.mean()) ** 2).sum() for group in groups])
    freedom = np.array([group.size - 1.0 for group in groups])
    expected = stats.bartlett(*groups).pvalue
    assert tails.equal_variances_p_value(square, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("correlation", [-0.4, 0.0, 0.3, 0.9])
def test_correlation_tail_is_that_of_two_gaussian_samples(correlation):
    """The known-mean correlation of n pairs is the centred one of n + 1."""
    n = 12
    law = stats.beta(0.5 * (n - 1), 0.5 * (n - 1), loc=-1, scale=2)
    assert tails.correlation_tail(correlation, n) == pytest.approx(law.sf(correlation), rel=1e-9)
    assert tails.correlation_tail(1.0, n) == 0.0


@pytest.mark.parametrize(
    ("successes", "trials", "rate"), [(0, 30, 0.1), (9, 30, 0.1), (3, 30, 0.1)]
)
def test_binomial(successes, trials, rate):
    law = stats.binom(trials, rate)
    expected = min(1.0, 2 * min(law.cdf(successes), law.sf(successes - 1)))
    assert binomial_p_value(successes, trials, rate) == pytest.approx(expected, rel=1e-9)


def test_binomial_at_a_rate_of_one():
    assert binomial_p_value(5, 5, 1.0) == 1.0
    assert binomial_p_value(4, 5, 1.0) == 0.0


def test_overlap_is_counted_out():
    """All ways to place two records in six of nine steps and three of nine."""
    steps, first, second = 9, 6, 3
    base = set(range(first))
    overlaps = [len(base & set(chosen)) for chosen in itertools.combinations(range(steps), second)]
    for overlap in range(4):
        above = np.mean([value >= overlap for value in overlaps])
        below = np.mean([value <= overlap for value in overlaps])
        expected = min(1.0, 2 * min(above, below))
        found = tails.overlap_p_value(overlap, first, second, steps)
        assert found == pytest.approx(expected, rel=1e-9)


class TestMostAlike:
    def test_is_the_largest_of_all_correlations(self):
        rows = np.random.default_rng(1).standard_normal((300, 20))
        rows[17] = 0.0
        unit = np.delete(rows, 17, axis=0)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        gram = np.abs(unit @ unit.T) - 2 * np.eye(299)
        correlation, first, second, p_value = most_similar(rows)
        assert abs(correlation) == pytest.approx(gram.max(), rel=1e-5)
        cosine = rows[first] @ rows[second]
        cosine /= np.linalg.norm(rows[first]) * np.linalg.norm(rows[second])
        assert correlation == pytest.approx(cosine, rel=1e-5)
        pairs = 299 * 298 / 2
        expected = min(1.0, 2 * pairs * tails.correlation_tail(gram.max(), 20))
        assert p_value == pytest.approx(expected, rel=1e-3)

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_finds_a_repeat_in_a_long_run_that_starts_over(self, sign):
        """More rows than are compared with all others: every second one is."""
        rows = np.random.default_rng(2).standard_normal((3000, 40))
        rows = np.concatenate([rows, sign * rows])
        correlation, first, second, p_value = most_similar(rows)
        assert correlation == pytest.approx(sign, abs=1e-5)
        assert second - first == 3000
        assert p_value < 1e-12

    def test_needs_two_rows_that_are_not_zero(self):
        assert most_similar(np.zeros((4, 10))) is None
        assert most_similar(np.ones((1, 10))) is None


def test_shares_are_scipys_beta():
    below, above = tails.share_p_values(np.array([0.02, 0.2]), np.array([3.0, 8.0]), 60.0)
    for index, (share, freedom) in enumerate(((0.02, 3.0), (0.2, 8.0))):
        law = stats.beta(freedom / 2, (60.0 - freedom) / 2)
        assert below[index] == pytest.approx(law.cdf(share), rel=1e-10)
        assert above[index] == pytest.approx(law.sf(share), rel=1e-10)


def test_the_extreme_shares_are_those_of_all():
    generator = np.random.default_rng(5)
    count = generator.integers(1, 9, 5000).astype(float)
    square = generator.chisquare(count)
    lowest, below, above = tails.extreme_shares(square, count)
    every = tails.share_p_values(square / square.sum(), count, count.sum())
    assert lowest == int(np.argmin(every[0]))
    assert below == pytest.approx(every[0].min(), rel=1e-12)
    assert above == pytest.approx(every[1].min(), rel=1e-12)


@pytest.mark.parametrize("less", [True, False])
@pytest.mark.parametrize("scale", [1.5, None])
def test_the_oddest_variance_pays_for_all_groups(scale, less):
    """Each group by scipy: against the scale, or against all other groups together."""
    freedom = np.array([12.0, 30.0, 25.0, 8.0])
    square = 2.25 * freedom * np.array([1.1, 0.5, 1.0, 2.2])
    p_values = []
    for index, (each, of) in enumerate(zip(square, freedom, strict=True)):
        law, statistic = stats.chi2(of), each / 2.25
        if scale is None:
            others = np.delete(square, index).sum(), np.delete(freedom, index).sum()
            law, statistic = stats.f(of, others[1]), each / of / (others[0] / others[1])
        below, above = law.cdf(statistic), law.sf(statistic)
        p_values.append(below if less else 2.0 * min(below, above))
    worst, p_value = tails.oddest_variance(square, freedom, scale, less=less)
    assert worst == int(np.argmin(p_values))
    assert p_value == pytest.approx(min(1.0, 4.0 * min(p_values)), rel=1e-9)
    assert p_value < 1.0


def test_extremes_are_as_often_that_far_as_they_say():
    largest = np.random.default_rng(3).standard_normal((4000, 50)).max(axis=1)
    p_values = np.array([tails.extreme_p_value(t, t, 50) for t in stats.norm.sf(largest)])
    for level in (0.5, 0.1, 0.02):
        assert np.mean(p_values <= level) < level + 4 * math.sqrt(level / 4000)
    assert np.mean(p_values <= 0.1) > 0.07


def test_a_skewed_tail_is_scipys_pearson_law():
    for score, skewness in itertools.product((-1.0, 0.5, 4.0), (0.0, 0.02, 0.8)):
        expected = stats.pearson3(skewness).sf(score)
        assert tails.skewed_tail(score, skewness) == pytest.approx(expected, rel=1e-6)


class TestSquaredCosines:
    def test_is_the_mean_over_all_pairs(self):
        rows = np.random.default_rng(0).standard_normal((9, 14))
        cosines = [(a @ b) ** 2 / ((a @ a) * (b @ b)) for a, b in itertools.combinations(rows, 2)]
        ratio, _ = squared_cosines_p_value(rows)
        assert ratio == pytest.approx(14 * np.mean(cosines), rel=1e-10)
        assert squared_cosines_p_value(rows.T)[0] == pytest.approx(
            9
            * np.mean(
                [(a @ b) ** 2 / ((a @ a) * (b @ b)) for a, b in itertools.combinations(rows.T, 2)]
            ),
            rel=1e-10,
        )

    @pytest.mark.parametrize("shape", [(8, 30), (40, 12), (30, 60)])
    def test_is_at_most_nominal(self, shape):
        rng = np.random.default_rng(1)
        p_values = [squared_cosines_p_value(rng.standard_normal(shape))[1] for _ in range(3000)]
        for level in (0.2, 0.05, 0.01):
            assert np.mean(np.array(p_values) <= level) < level + 4 * math.sqrt(level / 3000)
        assert np.mean(np.array(p_values) <= 0.2) > 0.15

    def test_sees_what_no_pair_shows(self):
        rng = np.random.default_rng(2)
        rows = rng.standard_normal((200, 300)) + 0.2 * rng.standard_normal(300)
        assert most_similar(rows)[3] > 1e-4
        assert squared_cosines_p_value(rows)[1] < 1e-9


class TestReturning:
    def test_finds_the_distance(self):
        """Half of what is added up comes back seven steps later, as six deviations show."""
        fresh = np.random.default_rng(0).standard_normal(307)
        correlation, lag, p_value = returning(fresh[7:] + fresh[:-7])
        assert lag == 7
        assert correlation == pytest.approx(0.5, abs=0.3)
        assert p_value < 1e-3

    def test_agrees_with_every_pair_looked_at(self):
        """The oracle lists the pairs of each distance one by one."""
        series = np.random.default_rng(1).standard_normal(61)
        least = 1.0
        for lag in range(1, 31):
            sets = [], []
            for first in range(61 - lag):
                sets[first // lag % 2].append(first)
            for places in sets:
                assert len({*places, *(place + lag for place in places)}) == 2 * len(places)
                if len(places) >= 8:
                    one, other = series[places], series[np.array(places) + lag]
                    cosine = one @ other / np.sqrt((one @ one) * (other @ other))
                    freedom = len(places) - 1
                    t = cosine * np.sqrt(freedom / (1 - cosine**2))
                    least = min(least, 2 * stats.t.sf(abs(t), freedom))
        assert returning(series)[2] == pytest.approx(min(1.0, 60 * least), rel=1e-9)

    def test_is_at_most_nominal(self):
        """Fails with probability 1e-6 were the p-values uniform; they are an upper bound."""
        generator = np.random.default_rng(2)
        p_values = [returning(generator.standard_normal(40))[2] for _ in range(400)]
        for level in (0.1, 0.01):
            allowed = stats.binom.isf(1e-6, 400, level)
            assert np.count_nonzero(np.array(p_values) <= level) <= allowed

    def test_few_values_say_nothing(self):
        assert returning(np.ones(8)) is None
