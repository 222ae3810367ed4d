import itertools
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad

from askgauss.exceptions import AskGaussError, InvalidArgumentError
from askgauss.stats import gaussian

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gaussian_pairs.json").read_text())
# epsilon of N(mu, 1) against N(0, 1) at delta = 1e-5.
GDP_TABLE = {
    0.1: 0.3407,
    0.25: 0.9263,
    0.5: 1.9931,
    1.0: 4.3772,
    1.5: 7.0514,
    2.0: 9.9973,
    3.0: 16.6755,
    5.0: 33.1037,
    10.0: 91.8173,
    11.0: 106.570,
    20.0: 284.392,
    30.0: 577.012,
}
DIGITS = 150


def mass(mu, sigma, low, high):
    """Mass of a Gaussian between two points, taken from the tail in which it keeps its digits."""
    low, high = (low - mu) / sigma, (high - mu) / sigma
    if low > 0:
        low, high = -high, -low
    return mpmath.ncdf(high) - mpmath.ncdf(low)


def one_direction(epsilon, mu1, sigma1, mu2, sigma2):
    """P(S) - e^epsilon Q(S) and its complement, S where the density ratio exceeds e^epsilon."""
    with mpmath.workdps(DIGITS):
        epsilon, mu1, sigma1, mu2, sigma2 = map(mpmath.mpf, (epsilon, mu1, sigma1, mu2, sigma2))
        square = (sigma2**-2 - sigma1**-2) / 2
        linear = mu1 / sigma1**2 - mu2 / sigma2**2
        constant = (mu2**2 / sigma2**2 - mu1**2 / sigma1**2) / 2
        constant += mpmath.log(sigma2 / sigma1) - epsilon
        discriminant = linear**2 - 4 * square * constant
        ends = [-mpmath.inf, mpmath.inf]
        if square != 0 and discriminant > 0:
            root = mpmath.sqrt(discriminant)
            ends[1:1] = sorted((-linear + s * root) / (2 * square) for s in (-1, 1))
        elif square == 0 and linear != 0:
            ends[1:1] = [-constant / linear]
        # The log ratio minus epsilon changes its sign at each inner end.
        positive = square > 0 or (square == 0 and linear < 0)
        inside, outside = mpmath.mpf(0), mpmath.mpf(0)
        for low, high in itertools.pairwise(ends):
            here = mass(mu1, sigma1, low, high)
            if positive:
                there = mpmath.exp(epsilon) * mass(mu2, sigma2, low, high)
                inside, outside = inside + here - there, outside + there
            else:
                outside += here
            positive = not positive
        return inside, outside


def oracle(epsilon, mu1, sigma1, mu2, sigma2):
    """log(delta), from the definition, with many digits."""
    forth = one_direction(epsilon, mu1, sigma1, mu2, sigma2)
    back = one_direction(epsilon, mu2, sigma2, mu1, sigma1)
    value, complement = max(forth, back)
    with mpmath.workdps(DIGITS):
        if value <= 0:
            return -mpmath.inf
        return mpmath.log(value) if value < 0.5 else mpmath.log1p(-complement)


def assert_inverse(epsilon, delta, *pair, tolerance=1e-12):
    """The true inverse lies within the tolerance of epsilon; no root search needed."""
    width = tolerance * max(epsilon, 1e-3)
    target = mpmath.log(mpmath.mpf(delta))
    assert oracle(epsilon + width, *pair) <= target
    if epsilon > 0.0:
        assert oracle(max(epsilon - width, 0.0), *pair) >= target


def columns(*names):
    return [np.array([-np.inf if row[n] is None else row[n] for row in GOLDEN]) for n in names]


def random_pairs(seed, count):
    """Gaps from 0 to 10^4 deviations, ratios from 1 to 10^3, and the awkward ones in between."""
    rng = np.random.default_rng(seed)
    sign = rng.choice([-1.0, 1.0], count)
    log_ratio = np.choose(
        rng.integers(0, 6, count),
        [
            np.zeros(count),
            sign * 1e-12,
            sign * 10 ** rng.uniform(-14, -6, count),
            sign * 10 ** rng.uniform(-6, 0, count),
            rng.normal(0, 1, count),
            rng.uniform(-7, 7, count),
        ],
    )
    gap = np.choose(
        rng.integers(0, 5, count),
        [
            np.zeros(count),
            10 ** rng.uniform(-14, -3, count),
            10 ** rng.uniform(-3, 1, count),
            10 ** rng.uniform(0, 2, count),
            10 ** rng.uniform(2, 4, count),
        ],
    )
    sigma1 = 10 ** rng.uniform(-3, 3, count)
    mu1 = rng.choice([0.0, 3.75, -120.0], count)
    return mu1, sigma1, mu1 + gap * sigma1, sigma1 * np.exp(log_ratio)


class TestGolden:
    names = ("mu1", "sigma1", "mu2", "sigma2")

    def test_epsilon(self):
        delta, expected = columns("delta", "epsilon")
        got = gaussian.epsilon(delta, *columns(*self.names))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=0.0)

    def test_log_delta(self):
        epsilon, expected = columns("probe_epsilon", "probe_log_delta")
        got = gaussian.log_delta(epsilon, *columns(*self.names))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=0.0)

    @pytest.mark.parametrize("row", GOLDEN[::7])
    def test_single_numbers(self, row):
        pair = [row[name] for name in self.names]
        assert gaussian.epsilon(row["delta"], *pair) == pytest.approx(row["epsilon"], rel=1e-12)
        if row["probe_log_delta"] is not None:
            got = gaussian.log_delta(row["probe_epsilon"], *pair)
            assert got == pytest.approx(row["probe_log_delta"], rel=1e-12)


class TestAgainstManyDigits:
    def test_log_delta(self):
        rng = np.random.default_rng(1)
        pairs = random_pairs(2, 300)
        gap = abs(pairs[0] - pairs[2]) / np.minimum(pairs[1], pairs[3])
        # Half the levels anywhere up to 10^6, half where delta is neither 0 nor 1.
        near = abs(rng.normal(0.5 * gap**2, gap + 1.0))
        epsilon = np.where(rng.random(300) < 0.5, 10 ** rng.uniform(-6, 6, 300), near)
        epsilon[::10] = 0.0
        got = gaussian.log_delta(epsilon, *pairs)
        for value, level, gap_i, *pair in zip(got, epsilon, gap, *pairs, strict=True):
            expected = oracle(level, *pair)
            if expected == -mpmath.inf:
                assert value == -np.inf
                continue
            # A gap known to 16 digits leaves an uncertainty of gap * 1e-16 in the boundary.
            bound = 1e-12 * abs(expected) + 1e-15 * gap_i
            assert abs(value - expected) <= bound, (level, *pair)

    def test_epsilon(self):
        rng = np.random.default_rng(3)
        pairs = random_pairs(4, 300)
        delta = np.choose(
            rng.integers(0, 4, 300),
            [
                10 ** rng.uniform(-300, -12, 300),
                10 ** rng.uniform(-12, -0.5, 300),
                rng.random(300),
                1.0 - 10 ** rng.uniform(-12, -1, 300),
            ],
        )
        got = gaussian.epsilon(delta, *pairs)
        assert np.count_nonzero(got) > 200
        for value, level, *pair in zip(got, delta, *pairs, strict=True):
            assert_inverse(value, level, *pair)

    @pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-15, 1e-5, 0.5, 1.0 - 1e-9])
    @pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-6, 1.0, 1e3, 1e6])
    @pytest.mark.parametrize("ratio", [1.0, 1.0 + 1e-12, 1.0 - 1e-12, 1.5, 1e-3, 1e9])
    def test_corners(self, delta, gap, ratio):
        epsilon = gaussian.epsilon(delta, 0.0, 1.0, gap, ratio)
        assert_inverse(epsilon, delta, 0.0, 1.0, gap, ratio)

    def test_close_to_one_keeps_its_digits(self):
        # 1 - delta is the mass of a wide Gaussian over a narrow interval, 12 digits below 1.
        for pair in [(0.0, 1e12, 0.0, 1.0), (3e12, 1e12, 0.0, 1.0), (0.0, 1.0, 40.0, 1.0)]:
            expected = float(oracle(2.0, *pair))
            assert -1e-11 < expected < 0.0
            assert gaussian.log_delta(2.0, *pair) == pytest.approx(expected, rel=1e-12)


class TestOtherSources:
    @pytest.mark.parametrize(("mu", "expected"), GDP_TABLE.items())
    def test_gaussian_mechanism(self, mu, expected):
        digits = 3 if expected > 100.0 else 4
        assert round(gaussian.epsilon(1e-5, 0.0, 1.0, mu, 1.0), digits) == expected
        assert round(gaussian.gdp_epsilon(1e-5, mu), digits) == expected

    @pytest.mark.parametrize("dimension", [1_000, 10_000, 1_000_000])
    def test_one_shot_estimate(self, dimension):
        # Andrew et al. (arXiv:2302.03098): cosines of canaries with a released model.
        scale = dimension**-0.5
        assert round(gaussian.epsilon(1e-2, 0.0, scale, scale, scale), 6) == 2.317789

    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
    @pytest.mark.parametrize("pair", [(0.0, 1.0, 1.0, 1.3), (2.0, 0.5, -1.0, 4.0), (0, 1, 0, 2)])
    def test_lemma(self, epsilon, pair):
        """Lemma 1 of the paper has the narrow Gaussian first; swapped, it is the larger one."""
        mu1, sigma1, mu2, sigma2 = pair
        tau = sigma1**2 / sigma2**2
        b = -sigma1 * (mu1 - mu2) / sigma2**2
        c = epsilon + 0.5 * math.log(tau) - (mu1 - mu2) ** 2 / (2 * sigma2**2)
        discriminant = b * b - 2 * (1 - tau) * c
        lemma = 0.0
        if discriminant > 0:
            ends = [(-b + s * math.sqrt(discriminant)) / (1 - tau) for s in (-1, 1)]
            m = -(mu1 - mu2) / sigma1
            normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
            inner = np.diff(normal(ends)) - math.exp(epsilon) * np.diff(
                normal((np.array(ends) - m) * math.sqrt(tau))
            )
            lemma = float(inner[0])
        assert lemma == pytest.approx(float(one_direction(epsilon, *pair)[0]), abs=1e-13)
        if (epsilon, pair) == (0.5, (0.0, 1.0, 1.0, 1.3)):
            assert round(lemma, 10) == 0.1373035365
        assert gaussian.delta(epsilon, *pair) >= lemma - 1e-15

    @pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
    @pytest.mark.parametrize("pair", [(0.0, 1.0, 1.0, 1.3), (1.0, 2.0, 1.0, 1.0), (0.0, 1, 2.0, 1)])
    def test_quadrature(self, epsilon, pair):
        def density(x, mu, sigma):
            return math.exp(-0.5 * ((x - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))

        def excess(x, mu1, sigma1, mu2, sigma2):
            return max(density(x, mu1, sigma1) - math.exp(epsilon) * density(x, mu2, sigma2), 0.0)

        directions = [pair, (*pair[2:], *pair[:2])]
        expected = [quad(excess, -30, 30, args=d, limit=500, epsabs=1e-11)[0] for d in directions]
        assert gaussian.delta(epsilon, *pair) == pytest.approx(max(expected), abs=1e-8)


class TestDirection:
    def test_wider_first_is_larger(self):
        rng = np.random.default_rng(5)
        for _ in range(300):
            ratio = 1.0 + 10 ** rng.uniform(-4, 1.5)
            gap = rng.choice([0.0, 10 ** rng.uniform(-3, 1.5)])
            # Up to where the narrow-first direction ends.
            end = math.log(ratio) + gap**2 / (2 * (ratio**2 - 1))
            epsilon = end * rng.choice([rng.random(), 1.0 - 10 ** rng.uniform(-8, 0)])
            wide, _ = one_direction(epsilon, gap, ratio, 0.0, 1.0)
            narrow, _ = one_direction(epsilon, 0.0, 1.0, gap, ratio)
            assert wide >= narrow - mpmath.mpf(10) ** -60, (epsilon, gap, ratio)


GAPS = st.one_of(st.just(0.0), st.floats(1e-12, 1e3), st.floats(0.01, 10.0))
RATIOS = st.one_of(st.just(1.0), st.floats(1e-3, 1e3), st.floats(1.0 - 1e-9, 1.0 + 1e-9))
LEVELS = st.one_of(st.just(0.0), st.floats(0.0, 1e6), st.floats(0.0, 10.0))
DELTAS = st.one_of(st.floats(1e-300, 1e-3), st.floats(1e-9, 0.999))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)


class TestProperties:
    @given(LEVELS, LEVELS, GAPS, RATIOS)
    def test_falls_with_epsilon(self, first, second, gap, ratio):
        low, high = sorted([first, second])
        before, after = gaussian.log_delta([low, high], 0.0, 1.0, gap, ratio)
        assert after <= before or after == pytest.approx(before, rel=1e-12)

    @given(DELTAS, GAPS, RATIOS)
    def test_there_and_back(self, delta, gap, ratio):
        epsilon = gaussian.epsilon(delta, 0.0, 1.0, gap, ratio)
        again = gaussian.log_delta(epsilon, 0.0, 1.0, gap, ratio)
        if epsilon == 0.0:
            assert again <= math.log(delta) + 1e-12
        else:
            assert again == pytest.approx(math.log(delta), rel=1e-10, abs=1e-10)

    @given(DELTAS, LEVELS, GAPS, RATIOS)
    def test_order_does_not_matter(self, delta, level, gap, ratio):
        assert gaussian.epsilon(delta, 0.0, 1.0, gap, ratio) == gaussian.epsilon(
            delta, gap, ratio, 0.0, 1.0
        )
        assert gaussian.delta(level, 0.0, 1.0, gap, ratio) == gaussian.delta(
            level, gap, ratio, 0.0, 1.0
        )

    @given(
        DELTAS,
        st.integers(-1000, 1000),
        st.integers(1, 1000),
        st.integers(1, 1000),
        st.integers(-(2**20), 2**20),
        st.integers(-40, 40),
    )
    def test_shift_and_scale(self, delta, gap, sigma1, sigma2, shift, power):
        # Integers and powers of two, so that nothing is rounded.
        scale = 2.0**power
        moved = (shift * scale, sigma1 * scale, (gap + shift) * scale, sigma2 * scale)
        assert gaussian.epsilon(delta, 0.0, sigma1, gap, sigma2) == gaussian.epsilon(delta, *moved)

    @given(st.floats(min_value=0.0), FINITE, POSITIVE, FINITE, POSITIVE)
    def test_log_delta_of_anything(self, level, mu1, sigma1, mu2, sigma2):
        assert gaussian.log_delta(level, mu1, sigma1, mu2, sigma2) <= 0.0
        assert 0.0 <= gaussian.delta(level, mu1, sigma1, mu2, sigma2) <= 1.0

    @given(st.floats(0.0, 1.0, exclude_max=True), FINITE, POSITIVE, FINITE, POSITIVE)
    def test_epsilon_of_anything(self, delta, mu1, sigma1, mu2, sigma2):
        assert gaussian.epsilon(delta, mu1, sigma1, mu2, sigma2) >= 0.0

    @given(st.floats(min_value=0.0), st.floats(0.0, 1.0, exclude_max=True))
    def test_mu_of_anything(self, epsilon, delta):
        assert gaussian.gdp_mu(epsilon, delta) >= 0.0

    def test_a_great_many(self):
        # Every magnitude a float has, in arrays, where the branches meet within one call.
        rng = np.random.default_rng(6)
        count = 50_000

        def magnitudes(low, high):
            return np.maximum(10.0 ** rng.uniform(low, high, count), math.ulp(0.0))

        for low, high in [(-323, 308), (-20, 20), (-3, 3)]:
            sigma1, other = magnitudes(low, high), magnitudes(low, high)
            sigma2 = np.where(rng.random(count) < 0.5, sigma1, other)
            sigma2[::5] = np.nextafter(sigma1[::5], np.inf)
            mu1, mu2 = (magnitudes(low, high) * rng.choice([-1, 0, 1], count) for _ in range(2))
            level = magnitudes(-323, 308) * rng.choice([0.0, 1.0], count)
            delta = np.where(rng.random(count) < 0.5, magnitudes(-323, 0), rng.random(count))
            delta[::7] = 1.0 - magnitudes(-16, 0)[::7]
            delta = np.clip(delta, 0.0, 1.0 - 2.0**-53)
            assert np.all(gaussian.log_delta(level, mu1, sigma1, mu2, sigma2) <= 0.0)
            assert np.all(gaussian.epsilon(delta, mu1, sigma1, mu2, sigma2) >= 0.0)
            assert np.all(gaussian.gdp_mu(level, delta) >= 0.0)


class TestLimits:
    def test_identical(self):
        assert gaussian.delta(0.0, 2.0, 3.0, 2.0, 3.0) == 0.0
        assert gaussian.log_delta(0.0, 2.0, 3.0, 2.0, 3.0) == -math.inf
        assert gaussian.epsilon(1e-300, 2.0, 3.0, 2.0, 3.0) == 0.0
        assert gaussian.epsilon(0.0, 2.0, 3.0, 2.0, 3.0) == 0.0

    @pytest.mark.parametrize("pair", [(0.0, 1.0, 1e-9, 1.0), (0.0, 1.0, 0.0, 1.0 + 1e-15)])
    def test_pure_differential_privacy(self, pair):
        assert gaussian.epsilon(0.0, *pair) == math.inf
        assert gaussian.delta(math.inf, *pair) == 0.0
        assert gaussian.log_delta(math.inf, *pair) == -math.inf

    def test_no_ceiling(self):
        # epsilon grows like half the square of the gap, until floats end.
        for gap in (1e3, 1e6, 1e100, 1e150):
            got = gaussian.epsilon(1e-5, 0.0, 1.0, gap, 1.0)
            assert got == pytest.approx(0.5 * gap**2 + 4.2649 * gap, rel=1e-5)  # Phi(-4.2649)
        assert gaussian.epsilon(1e-5, 0.0, 1.0, 1e200, 1.0) == math.inf
        assert gaussian.epsilon(1e-5, -1e308, 1e-308, 1e308, 1.0) == math.inf
        assert gaussian.delta(1e6, -1e308, 1e-308, 1e308, 1.0) == 1.0

    def test_total_variation_is_zero_epsilon(self):
        variation = gaussian.delta(0.0, 0.0, 1.0, 1.0, 2.0)
        assert gaussian.epsilon(math.nextafter(variation, 1.0), 0.0, 1.0, 1.0, 2.0) <= 1e-12
        assert gaussian.epsilon(variation * (1 + 1e-12), 0.0, 1.0, 1.0, 2.0) == 0.0
        assert gaussian.epsilon(variation * (1 - 1e-9), 0.0, 1.0, 1.0, 2.0) > 0.0

    def test_gaps_at_the_end_of_the_floats(self):
        rng = np.random.default_rng(10)
        gap = np.maximum(10.0 ** rng.uniform(-323, -290, 20_000), math.ulp(0.0))
        delta = np.maximum(10.0 ** rng.uniform(-323, -290, 20_000), math.ulp(0.0))
        epsilon = gaussian.epsilon(delta, 0.0, 1.0, gap, 1.0)
        # At most the boundary itself, 39 deviations out where delta is the smallest float.
        assert np.all((epsilon >= 0.0) & (epsilon <= 39.0 * gap))

    def test_solver_reports_failure(self):
        never = np.array([np.nan])
        with pytest.raises(AskGaussError, match="converge"):
            gaussian._solve(
                lambda u: (never, never, never), np.array([0.1]), -never, never, np.array([0.0])
            )


class TestGaussianDifferentialPrivacy:
    MU = (0.0, 1e-6, 0.1, 1.0, 7.0, 100.0, 1e4)

    @pytest.mark.parametrize("mu", MU)
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0, 1000.0])
    def test_delta(self, epsilon, mu):
        got = gaussian.gdp_delta(epsilon, mu)
        assert got == gaussian.delta(epsilon, mu, 1.0, 0.0, 1.0)
        if mu == 0.0:
            assert got == 0.0
            return
        with mpmath.workdps(DIGITS):
            e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
            expected = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        assert got == pytest.approx(float(expected), rel=1e-11)

    @pytest.mark.parametrize("mu", MU)
    @pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.3, 0.99])
    def test_epsilon(self, delta, mu):
        assert gaussian.gdp_epsilon(delta, mu) == gaussian.epsilon(delta, 0.0, 1.0, mu, 1.0)

    @pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-3, 0.5, 8.0, 100.0, 1e6])
    @pytest.mark.parametrize("delta", [1e-100, 1e-30, 1e-9, 1e-5, 0.01, 0.5, 0.999, 1.0 - 1e-12])
    def test_mu(self, epsilon, delta):
        mu = gaussian.gdp_mu(epsilon, delta)
        target = mpmath.log(mpmath.mpf(delta))
        with mpmath.workdps(DIGITS):
            low, high = mpmath.mpf(mu) * (1 - 1e-12), mpmath.mpf(mu) * (1 + 1e-12)
            assert oracle(epsilon, 0.0, 1.0, low, 1.0) < target < oracle(epsilon, 0, 1, high, 1)

    def test_mu_at_the_ends(self):
        assert gaussian.gdp_mu(0.0, 0.0) == gaussian.gdp_mu(3.0, 0.0) == 0.0
        assert gaussian.gdp_mu(math.inf, 1e-5) == math.inf
        assert gaussian.gdp_epsilon(1e-5, math.inf) == math.inf
        assert gaussian.gdp_delta(100.0, math.inf) == 1.0
        # The total variation of two unit Gaussians, mu apart.
        assert gaussian.gdp_mu(0.0, math.erf(0.5 / math.sqrt(2.0))) == pytest.approx(1.0, rel=1e-14)

    @given(st.floats(1e-3, 1e5), st.floats(1e-30, 0.5))
    def test_claim_to_mu_and_back(self, epsilon, delta):
        mu = gaussian.gdp_mu(epsilon, delta)
        assume(mu > 0.0)
        assert gaussian.gdp_epsilon(delta, mu) == pytest.approx(epsilon, rel=1e-9)


class TestShapes:
    def test_single_numbers_give_floats(self):
        for value in (1, 1.0, np.float64(1.0), np.float32(1.0), np.array(1.0)):
            for got in (
                gaussian.delta(value, 0, 1, value, 2),
                gaussian.log_delta(value, 0, 1, value, 2),
                gaussian.epsilon(1e-5, 0, 1, value, 2),
                gaussian.gdp_delta(value, value),
                gaussian.gdp_epsilon(1e-5, value),
                gaussian.gdp_mu(value, 1e-5),
            ):
                assert type(got) is float

    def test_broadcast(self):
        delta = np.array([1e-5, 1e-3])[:, None, None]
        gap = [[0.0], [1.0], [2.0]]
        sigma = np.array([1.0, 1.5, 2.0, 4.0])
        got = gaussian.epsilon(delta, 0.0, 1, gap, sigma)
        assert got.shape == (2, 3, 4)
        assert got.dtype == np.float64
        for i, j, k in np.ndindex(got.shape):
            single = gaussian.epsilon(float(delta[i, 0, 0]), 0.0, 1.0, gap[j][0], float(sigma[k]))
            assert got[i, j, k] == pytest.approx(single, rel=1e-14)

    def test_empty(self):
        assert gaussian.delta(np.empty((0, 3)), 0.0, 1.0, np.ones(3), 1.0).shape == (0, 3)
        assert gaussian.epsilon([], 0.0, 1.0, 1.0, 1.0).shape == (0,)

    def test_blocks(self):
        # An answer must not depend on its neighbours in a long array.
        pairs = random_pairs(7, 10_000)
        delta = 10 ** np.random.default_rng(8).uniform(-300, -0.01, 10_000)
        whole = gaussian.epsilon(delta, *pairs)
        some = np.random.default_rng(9).permutation(10_000)[:3_000]
        part = gaussian.epsilon(delta[some], *(values[some] for values in pairs))
        np.testing.assert_allclose(part, whole[some], rtol=1e-13, atol=1e-14)
        for i in some[:200]:
            single = gaussian.epsilon(float(delta[i]), *(float(values[i]) for values in pairs))
            assert single == pytest.approx(whole[i], rel=1e-13, abs=1e-14)

    def test_arguments_are_not_changed(self):
        values = [np.array([0.1, 0.2]) for _ in range(5)]
        gaussian.epsilon(*values)
        assert all(np.array_equal(value, [0.1, 0.2]) for value in values)


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("epsilon", -1e-9, ">= 0"),
            ("epsilon", math.nan, ">= 0"),
            ("mu1", math.inf, "to be finite"),
            ("mu2", math.nan, "to be finite"),
            ("sigma1", 0.0, "> 0 and finite"),
            ("sigma2", -1.0, "> 0 and finite"),
            ("sigma2", math.inf, "> 0 and finite"),
            ("sigma1", "1.0", "> 0 and finite"),
            ("sigma1", None, "> 0 and finite"),
            ("sigma1", True, "> 0 and finite"),
            ("sigma1", 1.0 + 0.0j, "> 0 and finite"),
            ("sigma1", [[1.0], [1.0, 2.0]], "> 0 and finite"),
        ],
    )
    @pytest.mark.parametrize("function", [gaussian.delta, gaussian.log_delta])
    def test_message(self, function, name, value, expected):
        arguments = {"epsilon": 1.0, "mu1": 0.0, "sigma1": 1.0, "mu2": 1.0, "sigma2": 2.0}
        with pytest.raises(InvalidArgumentError) as caught:
            function(**{**arguments, name: value})
        assert str(caught.value) == f"Expected {name} {expected}, got {value!r}."

    @pytest.mark.parametrize("delta", [1.0, -1e-300, 1.5, math.nan])
    def test_delta(self, delta):
        message = rf"Expected delta in \[0, 1\), got {delta}\."
        with pytest.raises(InvalidArgumentError, match=message):
            gaussian.epsilon(delta, 0.0, 1.0, 1.0, 1.0)
        with pytest.raises(InvalidArgumentError, match=message):
            gaussian.gdp_epsilon(delta, 1.0)
        with pytest.raises(InvalidArgumentError, match=message):
            gaussian.gdp_mu(1.0, delta)

    def test_mu(self):
        with pytest.raises(InvalidArgumentError, match=r"\bmu >= 0, got -1\.0"):
            gaussian.gdp_delta(1.0, -1.0)
        with pytest.raises(InvalidArgumentError, match=r"\bmu >= 0, got nan"):
            gaussian.gdp_epsilon(1e-5, math.nan)

    def test_place_in_an_array(self):
        with pytest.raises(InvalidArgumentError, match=r"sigma2\[1, 0\] > 0 .* got 0\.0"):
            gaussian.delta(1.0, 0.0, 1.0, 1.0, [[1.0, 2.0], [0.0, -1.0]])

    def test_shapes(self):
        with pytest.raises(InvalidArgumentError, match=r"delta \(2,\), .* \(3,\)"):
            gaussian.epsilon([0.1, 0.2], 0.0, 1.0, [1.0, 2.0, 3.0], 1.0)
