import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.special import expit, ndtr
from scipy.stats import beta, binom

from askgauss.auditors.guessing import Coins, GuessEvidence
from askgauss.auditors.order_statistics import (
    EpsilonDeltaChannel as EpsilonDelta,
)
from askgauss.auditors.order_statistics import (
    GaussianChannel as Gaussian,
)
from askgauss.auditors.order_statistics import (
    OrderStatistics,
    strongest_rejected,
)
from askgauss.auditors.order_statistics import (
    mistakes_p_value as p_value,
)
from askgauss.stats import gaussian
from askgauss.stats.guess_counts import GuessCounts
from tests.laplace import Laplace


def counted(canaries, guesses, mistakes):
    return GuessCounts(canaries=canaries, guesses=guesses, correct=guesses - mistakes)


def epsilon_from_counts(counts, *, delta, confidence, sampling_rate=None):
    coins = Coins(origin="fair", given=counts.canaries, used=counts.canaries)
    evidence = GuessEvidence(trial=counts, coins=coins)
    auditor = OrderStatistics(sampling_rate=sampling_rate)
    return auditor.epsilon_lower(evidence, delta=delta, confidence=confidence)


CHANNELS = [
    Gaussian(mu=0.3),
    Gaussian(mu=1.0),
    Gaussian(mu=4.0),
    Gaussian(mu=0.5, sampling_rate=0.99),
    Gaussian(mu=1.0, sampling_rate=0.5),
    Gaussian(mu=3.0, sampling_rate=0.1),
    Gaussian(mu=8.0, sampling_rate=0.3),
    Laplace(shift=0.4),
    Laplace(shift=3.0),
    EpsilonDelta(epsilon=1.0, delta=0.0),
    EpsilonDelta(epsilon=0.5, delta=0.1),
]
KEPT = np.array([1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])


def cells(channel, count=400_000):
    """The channel as a table: P, Q and log Q/P in small cells."""
    if isinstance(channel, EpsilonDelta):
        told, right = channel.delta, (1.0 - channel.delta) * expit(channel.epsilon)
        q = np.array([told, right, 1.0 - told - right, 0.0])
        return q[::-1], q, np.array([math.inf, channel.epsilon, -channel.epsilon, -math.inf])
    if isinstance(channel, Laplace):
        edges = np.linspace(-30.0, 30.0 + channel.shift, count + 1)
        middle = (edges[1:] + edges[:-1]) / 2.0

        def cdf(x):
            return np.where(
                x < 0.0, np.exp(np.minimum(x, 0.0)) / 2.0, 1.0 - np.exp(-np.abs(x)) / 2.0
            )

        p, q = np.diff(cdf(edges)), np.diff(cdf(edges - channel.shift))
        return p, q, np.abs(middle) - np.abs(middle - channel.shift)
    mu, rate = channel.mu, channel.sampling_rate
    edges = np.linspace(-14.0, 14.0 + mu, count + 1)
    middle = (edges[1:] + edges[:-1]) / 2.0

    def normal(edges):  # from the nearer tail, so that no digits are lost
        below, above = np.diff(ndtr(edges)), -np.diff(ndtr(-edges))
        return np.where(edges[1:] < 0.0, below, above)

    p = normal(edges)
    q = (1.0 - rate) * p + rate * normal(edges - mu)
    with np.errstate(divide="ignore"):
        ratio = np.logaddexp(np.log(1.0 - rate), math.log(rate) + mu * middle - mu * mu / 2.0)
    return p, q, ratio


def table_error_mass(channel, kept):
    p, q, ratio = cells(channel)
    order = np.argsort(-np.abs(ratio), kind="stable")
    mass, error = ((p + q) / 2.0)[order], (np.minimum(p, q) / 2.0)[order]
    if isinstance(channel, EpsilonDelta):  # the two certain atoms, then the two equal ones
        mass, error = mass.reshape(2, 2).sum(axis=1), error.reshape(2, 2).sum(axis=1)
    return np.interp(kept, np.append(0.0, np.cumsum(mass)), np.append(0.0, np.cumsum(error)))


def send(channel, bits, rng):
    """Log-likelihood ratios that the channel gives for an array of bits."""
    if isinstance(channel, EpsilonDelta):
        truth = 2.0 * bits - 1.0
        flipped = rng.random(bits.shape) > expit(channel.epsilon)
        noisy = channel.epsilon * np.where(flipped, -truth, truth)
        return np.where(rng.random(bits.shape) < channel.delta, truth * np.inf, noisy)
    if isinstance(channel, Laplace):
        outcome = bits * channel.shift + rng.laplace(size=bits.shape)
        return np.abs(outcome) - np.abs(outcome - channel.shift)
    mu, rate = channel.mu, channel.sampling_rate
    outcome = bits * (rng.random(bits.shape) < rate) * mu + rng.standard_normal(bits.shape)
    return np.log1p(rate * np.expm1(mu * outcome - mu * mu / 2.0))


def simulated_mistakes(channel, canaries, guesses, audits, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (audits, canaries))
    ratio = send(channel, bits, rng)
    # Ties, which atoms produce, are broken by a coin; without rounding the last digits would break
    # them, and those of a float depend on the bit.
    coin = rng.random(ratio.shape)
    order = np.lexsort((coin, -np.abs(ratio).round(9)), axis=1)[:, :guesses]
    wrong = (np.take_along_axis(ratio, order, 1) > 0.0) != np.take_along_axis(bits, order, 1)
    return wrong.sum(axis=1)


@pytest.mark.parametrize(
    ("canaries", "guesses", "mistakes", "sampling_rate", "epsilon"),
    [
        (1000, 100, 26, None, 1.1926),
        (1000, 1000, 401, None, 1.4140),
        (10_000, 2500, 364, None, 4.1371),
        (10_000, 1000, 242, 0.5, 3.1102),
    ],
)
def test_known_bounds(canaries, guesses, mistakes, sampling_rate, epsilon):
    bound = epsilon_from_counts(
        counted(canaries, guesses, mistakes),
        delta=1e-5,
        confidence=0.95,
        sampling_rate=sampling_rate,
    )
    assert bound == pytest.approx(epsilon, abs=6e-5)


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
def test_error_mass_against_a_table(channel):
    expected = table_error_mass(channel, KEPT)
    np.testing.assert_allclose(channel.error_mass(KEPT), expected, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
def test_error_mass_is_increasing_and_convex(channel):
    # The more is kept the worse the guesses that are added: the error rate only grows.
    kept = np.linspace(1e-4, 1.0, 2000)
    slope = np.diff(channel.error_mass(kept)) / np.diff(kept)
    assert slope.min() >= -1e-12
    assert slope.max() <= 0.5 + 1e-9
    assert np.all(np.diff(slope) >= -1e-9)


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 0.4, 7.0, 60.0])
@pytest.mark.parametrize("sampling_rate", [1.0, 0.999999, 0.2, 1e-4])
def test_error_mass_stays_sane_far_out(mu, sampling_rate):
    kept = np.array([1e-30, 1e-12, 0.5, 1.0 - 1e-12, 1.0])
    mass = Gaussian(mu=mu, sampling_rate=sampling_rate).error_mass(kept)
    assert np.all((mass >= 0.0) & (mass <= kept / 2.0 * (1.0 + 1e-9)))
    half_distance = sampling_rate * (2.0 * ndtr(mu / 2.0) - 1.0) / 2.0  # of the whole pair
    assert mass[-1] == pytest.approx(0.5 - half_distance, abs=1e-12)


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
def test_p_value_against_quadrature(channel):
    canaries, guesses = 400, 60
    law = beta(guesses + 1, canaries - guesses)  # of the kept fraction
    low, high = law.ppf(1e-15), law.isf(1e-15)
    inner = [*law.ppf([0.01, 0.5, 0.99]), *channel.kinks]
    edges = np.unique(np.clip([low, *inner, high], low, high))
    panels = [np.linspace(*ends, 4001) for ends in pairwise(edges)]
    rates = [channel.error_mass(kept) / kept for kept in panels]
    for mistakes in (0, 3, 12, 25, 59, 60):
        slow = sum(
            simpson(law.pdf(kept) * binom.cdf(mistakes, guesses, rate), x=kept)
            for kept, rate in zip(panels, rates, strict=True)
        )
        fast = p_value(channel, counted(canaries, guesses, mistakes))
        assert fast == pytest.approx(slow, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
@pytest.mark.parametrize(("canaries", "guesses"), [(40, 10), (30, 29), (25, 25)])
def test_p_value_against_simulation(channel, canaries, guesses):
    audits = 8000
    seen = simulated_mistakes(channel, canaries, guesses, audits, seed=22)
    for mistakes in range(0, guesses + 1, 2):
        share = np.mean(seen <= mistakes)
        expected = p_value(channel, counted(canaries, guesses, mistakes))
        # 4.5 standard deviations, about 400 comparisons: fails a correct law once in 300 seeds.
        spread = 4.5 * math.sqrt(expected * (1.0 - expected) / audits) + 4.5 / audits
        assert share == pytest.approx(expected, abs=spread)


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_every_bit_guessed_is_a_binomial(mu):
    for mistakes in (0, 50, 90, 199, 200):
        expected = binom.cdf(mistakes, 200, ndtr(-mu / 2.0))
        found = p_value(Gaussian(mu=mu), counted(200, 200, mistakes))
        assert found == pytest.approx(expected, rel=1e-9)


def test_tiny_p_values_are_kept_and_not_rounded_down():
    channel = Gaussian(mu=0.2)
    law = beta(401, 2600)
    kept = np.linspace(0.04, 0.3, 20_001)
    rate = channel.error_mass(kept) / kept
    for mistakes, deep in ((90, 1e-12), (60, 1e-25)):
        slow = np.trapezoid(law.pdf(kept) * binom.cdf(mistakes, 400, rate), kept)
        assert slow < deep
        assert p_value(channel, counted(3000, 400, mistakes)) == pytest.approx(slow, rel=1e-6)
    assert p_value(channel, counted(3000, 400, 0)) >= 1e-50


def test_independence_is_needed():
    # With probability 0.06 every bit passes randomised response, else nothing is released.
    leak, share, canaries, mistakes = 2.46, 0.06, 1000, 95
    levels = np.linspace(0.0, 3.0, 3001)
    profile = share * np.maximum(0.0, expit(leak) - np.exp(levels) * expit(-leak))
    assert np.all(profile <= gaussian.gdp_delta(levels, 1.0))  # so the mechanism is 1-GDP

    truth = share * binom.cdf(mistakes, canaries, expit(-leak))
    assert truth == pytest.approx(0.058, abs=1e-3)
    counts = counted(canaries, canaries, mistakes)
    claimed = p_value(Gaussian(mu=1.0), counts)
    assert claimed == pytest.approx(4e-59, rel=0.1)
    # An audit that ran into that one case in seventeen would report almost three times the truth.
    bound = epsilon_from_counts(counts, delta=1e-5, confidence=0.95)
    assert bound == pytest.approx(12.8, abs=0.05)
    assert bound > 2.9 * Gaussian(mu=1.0).epsilon_at(1e-5)


@pytest.mark.parametrize(
    "family",
    [
        lambda mu: Gaussian(mu=mu),
        lambda mu: Gaussian(mu=mu, sampling_rate=0.4),
        lambda shift: Laplace(shift=shift),
        lambda epsilon: EpsilonDelta(epsilon=epsilon, delta=1e-3),
    ],
)
@pytest.mark.parametrize(("guesses", "mistakes"), [(50, 10), (500, 200), (1, 0)])
def test_bound_is_where_the_p_value_meets_the_error(family, guesses, mistakes):
    counts = counted(500, guesses, mistakes)
    parameter = strongest_rejected(family, counts, confidence=0.9)
    if parameter == 0.0:
        assert p_value(family(0.0), counts) >= 0.1
        return
    assert p_value(family(parameter), counts) <= 0.1
    assert p_value(family(parameter + 1e-6), counts) > 0.1
    values = [p_value(family(level), counts) for level in np.linspace(0.0, 3.0, 40)]
    assert np.all(np.diff(values) >= -1e-12)


def test_bound_covers_under_its_model():
    channel = Gaussian(mu=1.0)
    seen, times = np.unique(simulated_mistakes(channel, 300, 60, 4000, seed=23), return_counts=True)
    bounds = np.array(
        [
            strongest_rejected(lambda mu: Gaussian(mu=mu), counted(300, 60, int(u)), confidence=0.9)
            for u in seen
        ]
    )
    over = times[bounds > channel.mu].sum() / 4000
    # The count is discrete, so less than the error; 4.5 standard deviations above it.
    assert over <= 0.1 + 4.5 * math.sqrt(0.09 / 4000)
    assert over > 0.01


@pytest.mark.parametrize("channel", CHANNELS, ids=str)
@pytest.mark.parametrize("delta", [0.02, 0.12, 0.5])
def test_epsilon_is_that_of_the_pair(channel, delta):
    if isinstance(channel, EpsilonDelta):
        return  # a claim, whose epsilon is stated
    p, q, _ = cells(channel)

    def divergence(epsilon):
        return np.maximum(0.0, q - math.exp(epsilon) * p).sum()

    epsilon = channel.epsilon_at(delta)
    assert divergence(epsilon) <= delta + 1e-8
    if epsilon > 0.0:
        assert divergence(epsilon - 1e-4) > delta - 1e-8
        assert divergence(epsilon) == pytest.approx(delta, abs=1e-6)


def test_epsilon_of_the_gaussian():
    assert Gaussian(mu=30.0).epsilon_at(1e-5) == pytest.approx(577.012, abs=6e-4)
    assert Gaussian(mu=60.0, sampling_rate=0.5).epsilon_at(1e-5) == pytest.approx(
        gaussian.gdp_epsilon(2e-5, 60.0) + math.log(0.5)
    )
    assert Gaussian(mu=1.0, sampling_rate=1e-6).epsilon_at(1e-5) == 0.0
    assert Laplace(shift=2.0).epsilon_at(0.0) == 2.0
    assert Laplace(shift=5000.0).error_mass(np.array([0.3, 1.0])).max() < 1e-200


def test_too_few_mistakes_for_the_sampling_rate_contradict_the_rate():
    """At rate one half even a noiseless channel errs in a quarter of all guesses."""
    found = epsilon_from_counts(
        counted(1000, 900, 0), delta=1e-5, confidence=0.95, sampling_rate=0.5
    )
    assert found == math.inf
