import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.limits import binomial_weights
from askgauss.stats.score_law import (
    ScoreLaw,
    subsampled_shift,
    subsampled_shift_delta,
    subsampled_shift_epsilon,
)
from tests.stats.mixtures import beyond, close, components, normal_cdf


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(45):
        yield


def log_ratio(x, mixture):
    return mp.log(mp.fsum(w * mp.exp(m * x - m * m / 2) for w, m in mixture))


def bisect(increasing, low, high, rounds=110):
    low, high = mp.mpf(low), mp.mpf(high)
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if increasing(middle) < 0 else (low, middle)
    return low


def oracle_deltas(epsilon, mixture):
    """Present against absent, and absent against present."""
    far = mixture[-1][1] + 100 + mp.mpf(epsilon) / mixture[-1][1]
    cut = bisect(lambda x: log_ratio(x, mixture) - epsilon, -far, far)
    forth = beyond(cut, mixture) - mp.exp(epsilon) * normal_cdf(-cut)
    cut = bisect(lambda x: log_ratio(x, mixture) + epsilon, -far, far)
    back = normal_cdf(cut) - mp.exp(epsilon) * (1 - beyond(cut, mixture))
    return forth, max(back, mp.mpf(0))


def oracle_epsilon(delta, mixture, rounds=110):
    def shortfall(cut):
        absent = mp.exp(log_ratio(cut, mixture)) * normal_cdf(-cut)
        return delta - (beyond(cut, mixture) - absent)

    if shortfall(mp.mpf(0)) >= 0:
        return mp.mpf(0)
    cut = bisect(shortfall, 0, mixture[-1][1] + 60, rounds)
    return max(mp.mpf(0), log_ratio(cut, mixture))


def gdp_epsilon(delta, mu):
    return subsampled_shift_epsilon(delta, mu, steps=1, sampling_rate=1.0)


# --- delta, epsilon and the shift ----------------------------------------------------------------

SMALL = [
    (steps, rate, shift, delta)
    for steps, rate in ((1, 1e-4), (1, 0.5), (2, 0.01), (6, 0.3), (5, 0.999), (3, 1.0))
    for shift in (1e-9, 0.02, 0.4, 3.0, 60.0, 1e4)
    for delta in (0.2, 1e-5, 1e-30, 1e-300)
]


@pytest.mark.parametrize(("steps", "rate", "shift", "delta"), SMALL[::3])
def test_epsilon_against_the_full_sum(steps, rate, shift, delta):
    found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    mixture = components(shift, steps, rate)
    exact = oracle_epsilon(mp.mpf(delta), mixture)
    # Never above, but for the rounding of the number itself.
    assert found <= exact * (1 + mp.mpf(10) ** -14)
    if oracle_epsilon(mp.mpf(delta) * (1 + mp.mpf(10) ** -11), mixture) > 0:
        assert found == close(float(exact), rel=3e-11)


@pytest.mark.parametrize(
    ("steps", "rate", "shift", "epsilon"),
    [(1, 0.5, 2.0, 1.0), (2, 0.1, 0.5, 0.3), (3, 0.4, 3.0, 4.0), (1, 1.0, 1.0, 2.0)],
)
def test_delta_is_the_integral_of_the_excess(steps, rate, shift, epsilon):
    mixture = components(shift, steps, rate)

    def present(x):
        return mp.fsum(w * mp.npdf(x - m) for w, m in mixture)

    def excess(p, q):
        return max(mp.mpf(0), p - mp.exp(epsilon) * q)

    grid = [mp.mpf(k) / 2 for k in range(-20, 41)]
    with mp.workdps(20):
        forth = mp.quad(lambda x: excess(present(x), mp.npdf(x)), grid, maxdegree=3)
        back = mp.quad(lambda x: excess(mp.npdf(x), present(x)), grid, maxdegree=3)
    found = subsampled_shift_delta(epsilon, shift, steps=steps, sampling_rate=rate)
    # The kink at the cut costs the quadrature a few digits.
    assert found == close(float(max(forth, back)), rel=2e-3)
    forth, back = oracle_deltas(epsilon, mixture)
    assert found == close(float(max(forth, back)), rel=1e-11)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.98])
def test_present_against_absent_is_the_larger_direction(steps, rate):
    for shift in (0.05, 1.0, 6.0):
        mixture = components(shift, steps, rate)
        for epsilon in (0.0, 0.01, 0.5, 3.0, 10.0):
            forth, back = oracle_deltas(epsilon, mixture)
            assert forth >= back - mp.mpf(10) ** -30
            found = subsampled_shift_delta(epsilon, shift, steps=steps, sampling_rate=rate)
            assert found == close(float(forth), rel=1e-10)


@given(
    means=st.lists(st.floats(0.0, 8.0), min_size=1, max_size=6),
    epsilon=st.floats(0.0, 6.0),
    seed=st.integers(0, 2**16),
)
def test_the_larger_direction_for_any_mixture_of_shifts(means, epsilon, seed):
    means = np.array([*means, 1.0])
    weights = np.random.default_rng(seed).dirichlet(np.ones(means.size))
    cuts = np.linspace(-12, 20, 4001)[:, np.newaxis]
    upper = stats.norm.sf(cuts - means) @ weights
    lower = stats.norm.cdf(cuts - means) @ weights
    forth = (upper - np.exp(epsilon) * stats.norm.sf(cuts[:, 0])).max()
    back = (stats.norm.cdf(cuts[:, 0]) - np.exp(epsilon) * lower).max()
    # The grid misses the best cut by at most .004, which costs the larger one less than this.
    assert forth >= back - 2e-4


@pytest.mark.parametrize("delta", [1e-5, 1e-40])
def test_trimming_changes_nothing(delta):
    steps, rate, shift = 300, 0.02, 1.2
    counts, _ = binomial_weights(steps, rate, 46 - math.log(delta))
    assert counts.size < steps / 2
    with mp.workdps(28):
        exact = oracle_epsilon(mp.mpf(delta), components(shift, steps, rate), rounds=70)
    found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    assert found <= exact * (1 + mp.mpf(10) ** -14)
    assert found == close(float(exact), rel=1e-11)
    back = subsampled_shift_delta(float(exact), shift, steps=steps, sampling_rate=rate)
    assert back == close(delta, rel=1e-10)


def test_delta_far_beyond_the_first_window():
    forth, _ = oracle_deltas(200.0, components(1.2, 300, 0.02))
    found = subsampled_shift_delta(200.0, 1.2, steps=300, sampling_rate=0.02)
    assert found == close(float(forth), rel=1e-10)
    assert found < 1e-100


def test_known_ceilings_of_the_score():
    known = ((15.3718, 0.996), (8.2333, 1.991), (4.5116, 3.951), (2.5760, 7.692))
    for noise, epsilon in known:
        law = ScoreLaw(steps=2500, sampling_rate=4096 / 50000, noise_multiplier=noise)
        assert law.epsilon_at(1e-5) == pytest.approx(epsilon, abs=6e-4)
        assert law.delta_at(law.epsilon_at(1e-5)) == close(1e-5, rel=1e-11)
    # Sampled 2.5 times in a run that claims epsilon 8: the sum gives nearly all of it away.
    law = ScoreLaw(steps=2500, sampling_rate=0.001, noise_multiplier=0.40771)
    assert law.epsilon_at(1e-5) == pytest.approx(0.4667, abs=1e-4)


def test_without_sampling_it_is_gaussian_differential_privacy():
    for mu, epsilon in (
        (0.1, 0.3407),
        (0.5, 1.9931),
        (1, 4.3772),
        (3, 16.6755),
        (11, 106.570),
        (30, 577.012),
    ):
        for steps in (1, 1000):
            found = subsampled_shift_epsilon(1e-5, mu, steps=steps, sampling_rate=1.0)
            assert found == pytest.approx(epsilon, abs=6e-5 * max(1, epsilon / 10))
            assert found == close(gdp_epsilon(1e-5, mu), rel=1e-14)
    for epsilon in (0.1, 1.0, 20.0):
        exact = mp.ncdf(0.5 - epsilon) - mp.exp(epsilon) * mp.ncdf(-0.5 - epsilon)
        found = subsampled_shift_delta(epsilon, 1.0, steps=9, sampling_rate=1.0)
        assert found == close(float(exact), rel=1e-11)


def test_the_clipping_norm_is_only_a_unit():
    one = ScoreLaw(steps=30, sampling_rate=0.2, noise_multiplier=1.1)
    other = ScoreLaw(steps=30, sampling_rate=0.2, noise_multiplier=1.1, clip_norm=0.01)
    assert other.epsilon_at(1e-6) == one.epsilon_at(1e-6)
    assert float(other.cdf(0.01)) == close(float(one.cdf(1.0)), rel=1e-13)
    assert other.kolmogorov_distance() == close(one.kolmogorov_distance(), rel=1e-9)


def test_epsilon_over_the_whole_range():
    for steps in (1, 40, 2500, 10**6):
        for rate in (1e-6, 1e-3, 0.08, 0.5, 1 - 1e-9, 1.0):
            for delta in (0.7, 1e-3, 1e-5, 1e-50, 1e-300):
                last = 0.0
                for shift in (1e-9, 1e-4, 0.1, 1.0, 1.0001, 8.0, 200.0, 1e4):
                    epsilon = subsampled_shift_epsilon(
                        delta, shift, steps=steps, sampling_rate=rate
                    )
                    assert math.isfinite(epsilon)
                    assert epsilon >= last * (1 - 1e-13)
                    last = epsilon


@given(
    steps=st.integers(1, 5000),
    rate=st.floats(1e-6, 1.0),
    log_delta=st.floats(-690.0, -0.1),
    log_shift=st.floats(-20.0, 9.0),
    factor=st.floats(1.0, 3.0),
)
def test_epsilon_grows_with_shift_and_falls_with_delta(steps, rate, log_delta, log_shift, factor):
    delta, shift = math.exp(log_delta), math.exp(log_shift)
    epsilon = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
    assert 0.0 <= epsilon < math.inf
    more = subsampled_shift_epsilon(delta, shift * factor, steps=steps, sampling_rate=rate)
    assert more >= epsilon * (1 - 1e-13)
    less = subsampled_shift_epsilon(
        min(delta * factor, 0.99), shift, steps=steps, sampling_rate=rate
    )
    if delta * factor < 0.99:
        assert less <= epsilon * (1 + 1e-13)


@given(
    steps=st.integers(1, 5000),
    rate=st.floats(1e-3, 1.0),
    delta=st.floats(1e-12, 0.3),
    epsilon=st.floats(0.0, 50.0),
)
def test_the_shift_of_an_epsilon(steps, rate, delta, epsilon):
    shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
    if math.isinf(shift):
        sampled = -math.expm1(steps * math.log1p(-rate))
        assert sampled <= delta * (1 + 1e-11)
        return
    below, above = (
        subsampled_shift_epsilon(delta, shift * (1 + side), steps=steps, sampling_rate=rate)
        for side in (-1e-9, 1e-9)
    )
    assert below <= epsilon * (1 + 1e-11)
    assert above >= epsilon * (1 - 1e-11)


def test_the_shift_of_an_epsilon_at_the_ends():
    for delta, epsilon in ((1e-300, 5.0), (1e-300, 1e-6), (0.9, 0.0), (1e-5, 1e8), (1e-5, 0.0)):
        for steps, rate in ((1, 1.0), (2500, 0.08), (10, 0.3)):
            shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
            found = subsampled_shift_epsilon(
                delta, shift * (1 + 1e-10), steps=steps, sampling_rate=rate
            )
            assert found == pytest.approx(epsilon, rel=1e-8, abs=1e-8)
            assert found > 0.0
    # Total variation of two unit Gaussians: 2 Phi(mu / 2) - 1.
    shift = subsampled_shift(0.0, 0.1, steps=1, sampling_rate=1.0)
    assert 2 * stats.norm.cdf(shift / 2) - 1 == close(0.1, rel=1e-11)


def test_what_is_sampled_less_often_than_delta_leaks_nothing():
    for steps, rate, delta in ((1, 1e-5, 1e-5), (1, 0.3, 0.3), (10, 1e-7, 1e-6)):
        for shift in (1.0, 50.0, 1e4, math.inf):
            assert subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate) == 0.0
        assert subsampled_shift(3.0, delta, steps=steps, sampling_rate=rate) == math.inf
    for rate in np.random.default_rng(4).uniform(1e-6, 0.3, 100):
        assert subsampled_shift_epsilon(rate, 50.0, steps=1, sampling_rate=rate) == 0.0
        assert subsampled_shift(1.0, rate * (1 - 3e-12), steps=1, sampling_rate=rate) < 1e3
    assert subsampled_shift_epsilon(0.3, 50.0, steps=1, sampling_rate=0.300001) > 100.0


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.01, 0.0187663760519676])
def test_a_plateau_is_not_read_from_its_upper_end(rate):
    # Between two components delta is flat to less than an ulp, and an ulp decides a whole gap.
    for steps in (2, 3):
        exact = oracle_epsilon(mp.mpf(rate**steps), components(1.0, steps, rate))
        found = subsampled_shift_epsilon(rate**steps, 1.0, steps=steps, sampling_rate=rate)
        assert exact / 5 < found <= exact


def test_rounding_is_kept_on_the_safe_side():
    for steps, rate, shift in ((1, 1.0, 1.0), (4, 0.3, 0.7), (6, 0.9, 2.0)):
        for delta in (1e-3, 1e-5, 1e-9):
            exact = oracle_epsilon(mp.mpf(delta), components(shift, steps, rate))
            found = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
            assert exact - 1e-12 < found < exact


def test_without_noise_there_is_no_finite_epsilon():
    assert subsampled_shift_epsilon(1e-5, math.inf, steps=10, sampling_rate=0.1) == math.inf
    assert subsampled_shift_epsilon(1e-5, math.inf, steps=1, sampling_rate=1.0) == math.inf
    found = subsampled_shift_delta(1e6, math.inf, steps=10, sampling_rate=0.1)
    assert found == close(1 - 0.9**10, rel=1e-11)


def test_no_shift_no_leak():
    assert subsampled_shift_epsilon(1e-300, 0.0, steps=5, sampling_rate=0.5) == 0.0
    assert subsampled_shift_delta(0.0, 0.0, steps=5, sampling_rate=0.5) == 0.0


def test_delta_underflows_to_zero_and_never_to_nan():
    for shift in (1e-9, 1e-3, 1.0):
        assert subsampled_shift_delta(1e4, shift, steps=100, sampling_rate=0.01) == 0.0
    deltas = [
        subsampled_shift_delta(epsilon, 2.0, steps=100, sampling_rate=0.1)
        for epsilon in (0.0, 0.5, 5.0, 50.0, 120.0)
    ]
    assert all(a > b > 0.0 for a, b in itertools.pairwise(deltas))


def test_simulated_scores_leak_what_the_law_says():
    # Six standard errors: a right law fails with probability 2e-9.
    law = ScoreLaw(steps=5, sampling_rate=0.4, noise_multiplier=0.7)
    rng, size = np.random.default_rng(3), 400_000
    present = (rng.binomial(5, 0.4, size) + rng.normal(scale=0.7 * math.sqrt(5), size=size)) / (
        math.sqrt(5)
    )
    absent = rng.normal(scale=0.7, size=size)
    epsilon = 1.0
    best = max(
        (present > cut).mean() - math.exp(epsilon) * (absent > cut).mean()
        for cut in np.linspace(0.5, 3.0, 251)
    )
    error = math.sqrt((0.25 + math.exp(2 * epsilon) * 0.25) / size)
    assert best == pytest.approx(law.delta_at(epsilon), abs=6 * error)
    assert error < law.delta_at(epsilon) / 20


# --- beside the Gaussian pair and Gaussian differential privacy -----------------------------------


def test_the_gaussian_pair_over_reports_where_samples_are_few():
    def ratio(steps, rate, epsilon, delta=1e-5):
        shift = subsampled_shift(epsilon, delta, steps=steps, sampling_rate=rate)
        noise = math.sqrt(steps) * rate / shift
        law = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise)
        assert law.epsilon_at(delta) == close(epsilon, rel=1e-9)
        return law.gaussian_epsilon_at(delta) / epsilon

    assert 2.5 < ratio(1, 0.5, 32.0) < 2.9
    assert ratio(1, 0.5, 8.0) > 1.5
    for epsilon in (0.5, 2.0, 8.0, 32.0):
        assert ratio(20, 0.7, epsilon) < 1.11
        assert ratio(100, 0.1, epsilon) < 1.11
        assert ratio(200, 0.7, epsilon) < 1.015
        assert ratio(2500, 0.0819, epsilon) < 1.015
    assert ratio(2500, 1.0, 4.0) == close(1.0, rel=1e-11)


def test_gaussian_differential_privacy_never_exceeds_the_exact_value():
    # Where the canary is sampled at all with probability well above delta.
    checked = 0
    for steps in (1, 2, 7, 100, 2500, 10**5):
        for rate in (1e-6, 1e-4, 1e-3, 0.01, 0.0819, 0.3, 0.7, 0.999):
            for delta in (1e-3, 1e-5, 1e-10, 1e-30):
                if -math.expm1(steps * math.log1p(-rate)) < 3 * delta:
                    continue
                for shift in (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0):
                    exact = subsampled_shift_epsilon(delta, shift, steps=steps, sampling_rate=rate)
                    assert gdp_epsilon(delta, shift) <= exact * (1 + 1e-11) + 1e-13
                    checked += 1
    assert checked > 800


def test_gaussian_differential_privacy_exceeds_it_where_sampling_is_rarer_than_delta():
    exact = subsampled_shift_epsilon(1e-5, 1.0, steps=10, sampling_rate=1e-6)
    assert exact == 0.0
    assert gdp_epsilon(1e-5, 1.0) > 4.0


# --- arguments ------------------------------------------------------------------------------------


def test_arguments_outside_their_range_are_refused():
    options = {"steps": 10, "sampling_rate": 0.1}
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(InvalidArgumentError, match="delta"):
            subsampled_shift_epsilon(delta, 1.0, **options)
        with pytest.raises(InvalidArgumentError, match="delta"):
            subsampled_shift(1.0, delta, **options)
    for epsilon in (-1.0, math.inf, math.nan):
        with pytest.raises(InvalidArgumentError, match="epsilon"):
            subsampled_shift_delta(epsilon, 1.0, **options)
    for shift in (-1e-9, math.nan):
        with pytest.raises(InvalidArgumentError, match="shift"):
            subsampled_shift_epsilon(1e-5, shift, **options)
