from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from askgauss.stats import shift as noncentral_t
from askgauss.stats.score_law import subsampled_shift
from askgauss.stats.shift import SampledShiftTest, ShiftTest, SlopeTest, sampling_variance


def make(present, absent, kappa=0.0):
    return ShiftTest(
        present=(
            len(present),
            float(present.mean()),
            float(((present - present.mean()) ** 2).sum()),
        ),
        absent=(len(absent), float(absent.mean()), float(((absent - absent.mean()) ** 2).sum())),
        kappa=kappa,
    )


def draw(generator, present, absent, shift, kappa=0.0):
    spread = math.sqrt(1 + kappa * shift**2)
    return make(generator.normal(shift, spread, present), generator.normal(0, 1, absent), kappa)


def test_without_shift_it_is_students_test():
    generator = np.random.default_rng(0)
    present, absent = generator.normal(0.3, 1, 40), generator.normal(0, 1, 60)
    expected = stats.ttest_ind(present, absent, alternative="greater").pvalue
    assert make(present, absent).p_value(0.0) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("shift", [0.1, 1.0, 3.0])
def test_p_value_is_the_noncentral_t_of_scipy(shift):
    generator = np.random.default_rng(1)
    test = draw(generator, 30, 50, 1.0)
    pooled = math.sqrt((test.present[2] + test.absent[2]) / 78)
    scale = math.sqrt(1 / 30 + 1 / 50)
    expected = stats.nct.sf(test.gap / (pooled * scale), 78, shift / scale)
    assert test.p_value(shift) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("kappa", [0.0, 0.004, 0.5, 5.0, 100.0])
@pytest.mark.parametrize(("present", "absent"), [(5, 5), (50, 50), (200, 5), (20, 2000)])
def test_lower_is_the_smallest_shift_that_fits(kappa, present, absent):
    """Against a dense scan of the same p-value."""
    generator = np.random.default_rng(2)
    for _ in range(20):
        test = draw(generator, present, absent, generator.uniform(0.5, 4), kappa)
        lower = test.lower(0.05)
        if lower == 0.0:
            assert test.gap <= 0 or test.p_value(0.0) >= 0.05
            continue
        below = test.p_values(np.linspace(0, lower * (1 - 1e-9), 4001))
        assert below.max() < 0.05
        assert test.p_values(np.array([lower * (1 + 1e-9)]))[0] >= 0.05 - 1e-12


@pytest.mark.parametrize("kappa", [0.0, 0.01, 20.0])
def test_bound_and_p_value_never_disagree(kappa):
    generator = np.random.default_rng(3)
    for _ in range(60):
        test = draw(generator, 20, 15, generator.uniform(0, 3), kappa)
        claim, error = generator.uniform(0.01, 3), 10.0 ** generator.uniform(-4, -0.5)
        lower = test.lower(error)
        if abs(lower - claim) > 1e-6:
            assert (test.p_value(claim) < error) == (lower > claim)


def test_p_value_rises_where_it_is_taken_to():
    """No scan is made with little added variance and no fewer absent scores than present ones.

    Past one half, which no error reaches, it may fall a little, but never back below.
    """
    generator = np.random.default_rng(4)
    for _ in range(300):
        present = int(generator.choice([2, 5, 50, 2500]))
        absent = present * int(generator.choice([1, 2, 100]))
        shift = 10.0 ** generator.uniform(-2, 1.5)
        test = draw(generator, present, absent, shift, generator.uniform(0, 1))
        assert not test._may_turn
        values = np.minimum(test.p_values(np.linspace(0, 3 * shift, 200)), 0.5)
        assert np.diff(values).min() >= -1e-12


def test_p_value_does_turn_where_a_scan_is_made():
    test = ShiftTest(present=(500, 60.0, 5e5), absent=(3, 0.0, 2.0), kappa=0.9)
    assert test._may_turn
    assert np.diff(test.p_values(np.linspace(0, 90, 300))).min() < 0


@pytest.mark.parametrize(
    ("present", "absent", "shift", "kappa"),
    [(2, 2, 1.0, 0.0), (5, 4, 2.0, 3.0), (50, 50, 0.3, 0.0045), (30, 400, 1.5, 40.0)],
)
def test_lower_is_above_the_truth_exactly_nominally(present, absent, shift, kappa):
    """Exact for Gaussian scores. A right implementation fails with probability below 1e-5."""
    generator = np.random.default_rng(5)
    audits = 1500
    above = 0
    for number in range(audits):
        test = draw(generator, present, absent, shift, kappa)
        # The bound is above the truth if and only if the truth is rejected, which is quicker.
        rejected = test.p_value(shift) < 0.05
        if number < 100:
            assert (test.lower(0.05) > shift) == rejected
        above += rejected
    assert above <= stats.binom.isf(1e-6, audits, 0.05)
    if kappa == 0.0:
        assert above >= stats.binom.ppf(1e-6, audits, 0.05)


def test_power_is_what_simulation_says():
    generator = np.random.default_rng(6)
    power = make(np.arange(50.0), np.arange(80.0)).power(shift=1.0, true_shift=1.5, error=0.05)
    found = sum(draw(generator, 50, 80, 1.5).p_value(1.0) < 0.05 for _ in range(1000))
    assert abs(found / 1000 - power) < 4.5 * math.sqrt(power * (1 - power) / 1000)


def test_power_at_no_difference_is_the_error():
    test = make(np.arange(50.0), np.arange(80.0), kappa=0.02)
    assert test.power(shift=1.0, true_shift=1.0, error=0.01) == pytest.approx(0.01, rel=1e-6)


def test_scores_without_spread():
    constant = ShiftTest(present=(5, 1.0, 0.0), absent=(5, 0.0, 0.0))
    assert constant.lower(0.05) == math.inf
    assert constant.p_value(100.0) == 0.0
    reversed_constant = ShiftTest(present=(5, 0.0, 0.0), absent=(5, 0.0, 0.0))
    assert reversed_constant.lower(0.05) == 0.0
    assert reversed_constant.p_value(0.5) == 1.0


def test_enormous_shift_is_not_capped():
    test = ShiftTest(present=(100, 1e8, 99.0), absent=(100, 0.0, 99.0))
    assert test.lower(0.05) == pytest.approx(1e8, rel=0.15)


def test_sampling_variance():
    assert sampling_variance(2500, 1.0) == 0.0
    assert sampling_variance(100, 0.1) == pytest.approx(0.09)


class TestSampled:
    """Few inclusions: the sum over their number."""

    @staticmethod
    def make(mean, *, present=4, absent=30, steps=3, rate=0.3):
        return SampledShiftTest(
            present=(present, mean), absent=(absent, 0.0, absent - 1.0), steps=steps,
            sampling_rate=rate,
        )  # fmt: skip

    @pytest.mark.parametrize("shift", [0.0, 0.4, 2.0])
    @pytest.mark.parametrize("mean", [-0.3, 0.5, 3.0])
    def test_p_value_is_the_binomial_mean_of_noncentral_t(self, mean, shift):
        """Against scipy, over every number of inclusions."""
        scale = math.sqrt(1 / 4 + 1 / 30)
        expected = sum(
            stats.binom.pmf(count, 12, 0.3)
            * stats.nct.sf(mean / scale, 29, shift * count / 3.6 / scale)
            for count in range(13)
        )
        assert self.make(mean).p_value(shift) == pytest.approx(expected, rel=1e-8)

    @pytest.mark.parametrize("error", [0.0005, 0.05, 0.5])
    def test_lower_is_where_the_p_value_reaches_the_error(self, error):
        for mean in (0.2, 1.0, 5.0, 400.0):
            test = self.make(mean)
            lower = test.lower(error)
            if lower == 0.0:
                assert test.p_value(0.0) >= error
            else:
                assert test.p_value(lower) < error
                assert test.p_value(lower * (1 + 1e-8)) >= error

    def test_the_p_value_rises_with_the_shift(self):
        values = [self.make(2.0).p_value(shift) for shift in np.linspace(0, 40, 200)]
        assert np.diff(values).min() >= -1e-12

    def test_it_is_nominal_where_the_gaussian_test_is_not(self):
        """At the gate's error, 10 present canaries of one step sampled at .1, epsilon 30.

        In 200,000 audits 100 rejections are due; a right implementation fails with probability
        below 1e-6. Taking the mean of so few inclusions for Gaussian rejects the truth four times
        as often.
        """
        generator = np.random.default_rng(8)
        present, absent, rate, audits, error = 10, 1000, 0.1, 200_000, 0.0005
        shift = subsampled_shift(30.0, 1e-5, steps=1, sampling_rate=rate)
        planted = generator.random((audits, present)) < rate
        scores = shift / rate * planted + generator.standard_normal((audits, present))
        mean, square = scores.mean(axis=1), scores.var(axis=1) * present
        gap = mean - generator.normal(0, 1 / math.sqrt(absent), audits)
        noise = generator.chisquare(absent - 1, audits)

        def rejected(statistic, log_tail):
            low, high = 0.0, 100.0  # the statistic that is exceeded with the error
            for _ in range(60):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if log_tail(middle) > math.log(error) else (low, middle)
            return np.count_nonzero(statistic >= high)

        scale = math.sqrt(1 / present + 1 / absent)
        exact = rejected(
            gap / np.sqrt(noise / (absent - 1)) / scale,
            lambda t: math.log(
                SampledShiftTest(
                    present=(present, t * scale), absent=(absent, 0.0, absent - 1.0), steps=1,
                    sampling_rate=rate,
                ).p_value(shift)
            ),
        )  # fmt: skip
        assert stats.binom.ppf(5e-7, audits, error) <= exact <= stats.binom.isf(5e-7, audits, error)

        ratio = 1 + sampling_variance(1, rate) * shift**2
        freedom, wide = present + absent - 2, math.sqrt(1 / absent + ratio / present)
        gaussian = rejected(
            gap / np.sqrt((noise + square / ratio) / freedom) / wide,
            lambda t: float(noncentral_t.log_t_survival(t, freedom, shift / wide)),
        )
        assert gaussian > 3 * audits * error

    def test_power_is_what_simulation_says(self):
        generator = np.random.default_rng(9)
        planted = generator.binomial(12, 0.3, 2000) / 3.6
        means = 3.0 * planted + generator.normal(0, math.sqrt(1 / 4 + 1 / 30), 2000)
        spreads = generator.chisquare(29, 2000)
        found = np.mean(
            [
                SampledShiftTest(
                    present=(4, mean), absent=(30, 0.0, spread), steps=3, sampling_rate=0.3
                ).p_value(1.0) < 0.05
                for mean, spread in zip(means, spreads, strict=True)
            ]
        )  # fmt: skip
        power = self.make(1.0).power(shift=1.0, true_shift=3.0, error=0.05)
        assert abs(found - power) < 4.5 * math.sqrt(power * (1 - power) / 2000)
        assert self.make(1.0).power(shift=1.0, true_shift=1.0, error=0.05) == pytest.approx(0.05)

    def test_an_error_below_what_was_left_out_is_never_reached(self):
        test = self.make(1e6)
        assert test.p_value(0.0) == pytest.approx(2 * math.exp(-30), rel=1e-6)
        assert test.lower(1e-13) == 0.0
        assert test.power(shift=0.1, true_shift=9.0, error=1e-13) == 0.0

    def test_canaries_that_are_probably_never_sampled_reject_nothing(self):
        for rate, says in ((0.05, False), (0.06, True)):  # .54 and .48 of never being sampled
            test = self.make(50.0, rate=rate)
            assert (test.lower(0.05) > 0.0) == says
            assert (test.p_value(0.1) < 1.0) == says
            assert (test.power(shift=0.1, true_shift=9.0, error=0.05) > 0.0) == says

    def test_scores_without_spread(self):
        options = {"steps": 3, "sampling_rate": 0.3}
        constant = SampledShiftTest(present=(5, 1.0), absent=(5, 0.0, 0.0), **options)
        assert (constant.lower(0.05), constant.p_value(100.0)) == (math.inf, 0.0)
        reversed_constant = SampledShiftTest(present=(5, 0.0), absent=(5, 0.0, 0.0), **options)
        assert (reversed_constant.lower(0.05), reversed_constant.p_value(0.5)) == (0.0, 1.0)


class TestSlope:
    def test_with_weights_of_zero_and_one_it_is_the_shift_test(self):
        generator = np.random.default_rng(7)
        present, absent = generator.normal(1, 1, 30), generator.normal(0, 1, 50)
        weights = np.concatenate([np.ones(30), np.zeros(50)])
        slope = SlopeTest.fit(weights, np.concatenate([present, absent]))
        shift = make(present, absent)
        assert slope.slope == pytest.approx(shift.gap, rel=1e-12)
        for error in (0.001, 0.05, 0.5):
            assert slope.lower(error) == pytest.approx(shift.lower(error), rel=1e-9)
        assert slope.p_value(0.7) == pytest.approx(shift.p_value(0.7), rel=1e-9)
        question = {"shift": 1.0, "true_shift": 1.5, "error": 0.05}
        assert slope.power(**question) == pytest.approx(shift.power(**question), rel=1e-9)

    def test_lower_is_above_the_truth_exactly_nominally(self):
        """Weights that differ. A right implementation fails with probability below 1e-5."""
        generator = np.random.default_rng(8)
        weights = np.where(generator.random(40) < 0.5, generator.uniform(0.3, 1, 40), 0.0)
        above = sum(
            SlopeTest.fit(weights, 1.3 * weights + generator.normal(5, 1, 40)).p_value(1.3) < 0.05
            for _ in range(1500)
        )
        assert stats.binom.ppf(1e-6, 1500, 0.05) <= above <= stats.binom.isf(1e-6, 1500, 0.05)

    def test_degenerate(self):
        flat = SlopeTest.fit(np.zeros(5), np.arange(5.0))
        assert flat.lower(0.05) == 0.0
        assert flat.p_value(1.0) == 1.0
        exact = SlopeTest.fit(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0]))
        assert exact.lower(0.05) == math.inf
        assert exact.p_value(3.0) == 0.0


@pytest.mark.parametrize("noise", [1e-9, 1e-12, 1e-15, 1e-40])
def test_a_gap_far_above_the_noise_has_a_bound(noise):
    """The search for it began with a bracket that rounding had closed, and never ended."""
    scores = np.random.default_rng(0).normal(0.0, noise, 52)
    test = SlopeTest.fit(
        np.r_[np.zeros(40), np.ones(12)], scores + np.r_[np.zeros(40), np.ones(12)]
    )
    # Nothing is left of noise that rounding swallows, but for that of the absent scores.
    assert 0.3 / noise < test.lower(0.05) < 3.0 / noise or noise < 1e-16
    assert test.lower(0.05) > 0.0
