import math

import numpy as np
import pytest
from scipy.special import betainc, betaincinv, ndtr, ndtri
from scipy.stats import binom

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import error_rates
from askgauss.stats.error_rates import ConfusionMatrix
from askgauss.stats.gaussian import gdp_epsilon, gdp_mu
from askgauss.stats.limits import clopper_pearson_upper
from askgauss.stats.tradeoff import TradeOff
from tests.auditors.matrices import clopper_pearson_epsilon, gaussian_dp_epsilon


def matrix(true_positive, true_negative, false_positive, false_negative):
    return ConfusionMatrix(
        true_positive=true_positive,
        true_negative=true_negative,
        false_positive=false_positive,
        false_negative=false_negative,
    )


BALANCED = matrix(900, 900, 100, 100)
PEER = matrix(487, 1, 512, 0)
MATRICES = [
    BALANCED,
    PEER,
    matrix(500, 990, 10, 500),
    matrix(10, 10, 0, 0),
    matrix(1000, 1000, 0, 0),
    matrix(5, 100_000, 3, 2),
    matrix(100_000, 5, 3, 2),
    matrix(0, 10, 5, 10),
    matrix(3, 0, 7, 0),
    matrix(50, 50, 50, 50),
    matrix(100, 100, 900, 900),
]
LEVEL = {"delta": 1e-5, "confidence": 0.95}


def slow_credence(counts, epsilon, delta, points=20_000):
    """Mean over quantiles of the false negative rate of the mass the region leaves to the other."""
    rate = betaincinv(
        counts.false_negative + 0.5,
        counts.true_positive + 0.5,
        (np.arange(points) + 0.5) / points,
    )
    grow, shrink = math.exp(epsilon), math.exp(-epsilon)
    low = np.maximum.reduce([0.0 * rate, 1 - delta - grow * rate, shrink * (1 - delta - rate)])
    high = np.minimum.reduce(
        [0.0 * rate + 1.0, 1 + (delta - rate) * shrink, delta + (1 - rate) * grow]
    )
    law = (counts.false_positive + 0.5, counts.true_negative + 0.5)
    return float(np.mean(betainc(*law, high) - betainc(*law, low)))


def test_known_values():
    assert clopper_pearson_epsilon(BALANCED, **LEVEL) == pytest.approx(1.9897, abs=6e-5)
    assert error_rates.bayesian_epsilon(BALANCED, **LEVEL) == pytest.approx(2.1095, abs=6e-5)
    low, high = (
        error_rates.bayesian_epsilon(PEER, delta=1e-5, confidence=level) for level in (0.95, 0.05)
    )
    assert (low, high) == pytest.approx((0.1439, 6.4156), abs=6e-5)
    assert clopper_pearson_epsilon(PEER, delta=1e-5, confidence=0.9) == 0.0
    epsilon = gaussian_dp_epsilon(matrix(500, 990, 10, 500), **LEVEL)
    assert gdp_mu(epsilon, 1e-5) == pytest.approx(2.01099, abs=6e-6)


def test_rate_limits_are_clopper_pearson_at_half_the_error_each():
    counts = matrix(37, 81, 19, 3)
    limits = counts.rate_limits(confidence=0.9)
    assert limits == pytest.approx(
        (clopper_pearson_upper(19, 100, 0.05), clopper_pearson_upper(3, 40, 0.05)), rel=1e-12
    )
    assert matrix(0, 0, 4, 5).rate_limits(confidence=0.9) == (1.0, 1.0)


@pytest.mark.parametrize("counts", MATRICES)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
def test_clopper_pearson_is_the_last_epsilon_contradicted(counts, delta):
    rates = counts.rate_limits(confidence=0.95)
    bound = clopper_pearson_epsilon(counts, delta=delta, confidence=0.95)
    grid = np.linspace(0.0, 15.0, 150_001)
    curve = np.maximum(
        1.0 - delta - np.exp(grid) * rates[0], np.exp(-grid) * (1.0 - delta - rates[0])
    )
    contradicted = grid[rates[1] < curve]
    assert bound == pytest.approx(contradicted.max(initial=0.0), abs=1.1e-4)


def test_guesses_worse_than_chance_give_nothing():
    reversed_guesses = matrix(100, 100, 900, 900)
    assert gaussian_dp_epsilon(reversed_guesses, **LEVEL) == 0.0
    assert clopper_pearson_epsilon(reversed_guesses, **LEVEL) == 0.0
    # The region of the posterior is symmetric: a reversed test is as good as its mirror image.
    assert error_rates.bayesian_epsilon(reversed_guesses, **LEVEL) == pytest.approx(
        error_rates.bayesian_epsilon(BALANCED, **LEVEL), abs=1e-7
    )


@pytest.mark.parametrize("counts", MATRICES)
def test_gaussian_bound_is_the_last_mu_contradicted(counts):
    rates = counts.rate_limits(confidence=0.95)
    mu = gdp_mu(gaussian_dp_epsilon(counts, **LEVEL), 1e-5)
    grid = np.linspace(0.0, 10.0, 100_001)
    contradicted = grid[rates[1] < ndtr(-ndtri(rates[0]) - grid)]
    assert mu == pytest.approx(contradicted.max(initial=0.0), abs=1.1e-4)


@pytest.mark.parametrize("counts", MATRICES)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 5.0])
def test_p_value_and_bounds_never_disagree(counts, epsilon):
    delta = 1e-5
    claims = {
        TradeOff.epsilon_delta(epsilon, delta): clopper_pearson_epsilon,
        TradeOff.gaussian(gdp_mu(epsilon, delta)): gaussian_dp_epsilon,
    }
    for claim, bound in claims.items():
        value = error_rates.p_value(claim.beta_at, counts)
        assert 0.0 < value <= 1.0
        if 1e-12 < value < 0.99:
            beyond = bound(counts, delta=delta, confidence=1.0 - value * 1.001)
            assert beyond > epsilon * (1.0 - 1e-9)
        if value > 1e-12:
            short = bound(counts, delta=delta, confidence=1.0 - value * 0.999)
            assert short <= epsilon * (1.0 + 1e-9) + 1e-9


def test_p_value_is_valid_for_independent_canaries():
    # Randomised response keeps its own claim; every matrix that 12 and 12 canaries can give.
    size, epsilon = 12, 1.0
    right = 1.0 / (1.0 + math.exp(-epsilon))
    mass = binom.pmf(np.arange(size + 1), size, right)
    curve = TradeOff.epsilon_delta(epsilon, 0.0).beta_at
    values = np.array(
        [
            [
                error_rates.p_value(curve, matrix(tp, tn, size - tn, size - tp))
                for tn in range(size + 1)
            ]
            for tp in range(size + 1)
        ]
    )
    joint = np.multiply.outer(mass, mass)
    for error in (0.001, 0.01, 0.05, 0.2, 0.5):
        assert joint[values <= error].sum() <= error
    assert joint[values <= 0.2].sum() > 0.005


@pytest.mark.parametrize("counts", MATRICES)
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_credence_against_quantile_sums(counts, delta):
    for epsilon in (0.0, 0.3, 3.0):
        found = error_rates.bayesian_probability(counts, epsilon=epsilon, delta=delta)
        assert found == pytest.approx(slow_credence(counts, epsilon, delta), abs=5e-5)


@pytest.mark.parametrize(("counts", "epsilon"), [(PEER, 0.1439), (PEER, 6.4), (BALANCED, 2.1)])
def test_credence_against_many_quantiles(counts, epsilon):
    found = error_rates.bayesian_probability(counts, epsilon=epsilon, delta=1e-5)
    assert found == pytest.approx(slow_credence(counts, epsilon, 1e-5, 200_000), abs=2e-6)


def test_credence_against_simulation():
    rng = np.random.default_rng(24)
    counts, delta, draws = matrix(12, 25, 4, 3), 0.01, 200_000
    miss = rng.beta(3.5, 12.5, draws)
    false_alarm = rng.beta(4.5, 25.5, draws)
    # The same from one Dirichlet on the four cells.
    cells = rng.dirichlet([3.5, 12.5, 4.5, 25.5], draws)
    dirichlet = cells[:, 0] / (cells[:, 0] + cells[:, 1]), cells[:, 2] / (cells[:, 2] + cells[:, 3])
    for x, y in ((miss, false_alarm), dirichlet):
        ratios = [
            np.log(np.maximum(1e-300, 1 - delta - a) / b)
            for a, b in ((x, y), (y, x), (1 - x, 1 - y), (1 - y, 1 - x))
        ]
        epsilon = np.maximum.reduce([*ratios, np.zeros(draws)])
        for level in (0.5, 1.5, 2.5):
            found = error_rates.bayesian_probability(counts, epsilon=level, delta=delta)
            # 4.5 standard deviations, 6 comparisons: fails a correct value once in 20,000 seeds.
            assert np.mean(epsilon <= level) == pytest.approx(
                found, abs=4.5 * 0.5 / math.sqrt(draws)
            )


@pytest.mark.parametrize("counts", MATRICES)
def test_bayesian_bounds_are_quantiles(counts):
    low, high = (
        error_rates.bayesian_epsilon(counts, delta=1e-5, confidence=level) for level in (0.95, 0.05)
    )
    assert 0.0 <= low < high < math.inf
    for epsilon, probability in ((low, 0.05), (high, 0.95)):
        found = error_rates.bayesian_probability(counts, epsilon=epsilon, delta=1e-5)
        if epsilon > 0.0:
            assert found == pytest.approx(probability, abs=1e-6)
        else:
            assert found >= probability


def test_known_bounds_without_a_mistake():
    perfect = matrix(1000, 1000, 0, 0)
    limit = 1.0 - 0.025 ** (1.0 / 1000)
    top = clopper_pearson_epsilon(perfect, **LEVEL)
    assert top == pytest.approx(math.log((1.0 - 1e-5 - limit) / limit))
    assert top == pytest.approx(5.6, abs=0.01)
    top = gaussian_dp_epsilon(perfect, **LEVEL)
    assert top == pytest.approx(gdp_epsilon(1e-5, -2.0 * ndtri(limit)))
    top = error_rates.bayesian_epsilon(perfect, **LEVEL)
    assert slow_credence(perfect, top, 1e-5) == pytest.approx(0.05, abs=5e-5)


@pytest.mark.parametrize(
    "bound",
    [
        clopper_pearson_epsilon,
        gaussian_dp_epsilon,
        error_rates.bayesian_epsilon,
    ],
)
def test_no_matrix_beats_one_without_a_mistake(bound):
    every = [bound(matrix(6 - fn, 9 - fp, fp, fn), **LEVEL) for fn in range(7) for fp in range(10)]
    assert matrix(4, 7, 2, 2).perfect() == matrix(6, 9, 0, 0)
    assert max(every) <= every[0] + 1e-7


def test_large_epsilon_is_no_problem():
    assert error_rates.bayesian_probability(BALANCED, epsilon=1e4, delta=0.0) == pytest.approx(1.0)
    many = matrix(10**7, 10**7, 0, 0)
    assert gaussian_dp_epsilon(many, **LEVEL) > 80.0


@pytest.mark.parametrize("counts", [BALANCED, matrix(480, 30, 470, 20), matrix(60, 495, 5, 440)])
def test_agrees_with_jax_privacy(counts):
    from jax_privacy import auditing

    strong = [BALANCED, matrix(60, 495, 5, 440)]
    present = np.repeat([1.0, 0.0], [counts.true_positive, counts.false_negative])
    absent = np.repeat([1.0, 0.0], [counts.false_positive, counts.true_negative])
    auditor = auditing.CanaryScoreAuditor(present, absent)
    theirs = auditor.epsilon_clopper_pearson(
        significance=0.05, delta=1e-5, one_sided=False, threshold_strategy=auditing.Explicit(0.5)
    )
    assert clopper_pearson_epsilon(counts, **LEVEL) == pytest.approx(theirs, abs=1e-9)
    # Theirs divides the error by the number of thresholds: three for two distinct scores.
    theirs = auditor.epsilon_from_gdp(significance=0.05, delta=1e-5)
    ours = gaussian_dp_epsilon(counts, delta=1e-5, confidence=1.0 - 0.05 / 3.0)
    # Theirs may report the size of a negative mu where the limits contradict nothing.
    assert ours == (pytest.approx(theirs, abs=1e-5) if counts in strong else 0.0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"true_positive": -1}, "true_positive "),
        ({"true_negative": 1.0}, "true_negative "),
        ({"false_positive": True}, "false_positive "),
        ({"false_negative": "3"}, "false_negative "),
        ({"true_positive": 0, "false_negative": 0}, "true_positive . false_negative >= 1"),
        ({"true_negative": 0, "false_positive": 0}, "true_negative . false_positive >= 1"),
    ],
)
def test_bad_counts(change, name):
    counts = dict.fromkeys(
        ("true_positive", "true_negative", "false_positive", "false_negative"), 100
    )
    with pytest.raises(InvalidArgumentError, match=f"Expected {name}"):
        ConfusionMatrix(**(counts | change))


def test_bad_levels():
    for delta in (-1e-9, 1.0, math.nan):
        with pytest.raises(InvalidArgumentError, match="Expected delta "):
            error_rates.bayesian_epsilon(BALANCED, delta=delta, confidence=0.95)
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(InvalidArgumentError, match="Expected confidence "):
            error_rates.bayesian_epsilon(BALANCED, delta=1e-5, confidence=confidence)
    with pytest.raises(InvalidArgumentError, match=r"Expected delta .* no epsilon at delta 0"):
        gaussian_dp_epsilon(BALANCED, delta=0.0, confidence=0.95)
    with pytest.raises(InvalidArgumentError, match="Expected epsilon "):
        error_rates.bayesian_probability(BALANCED, epsilon=-1.0, delta=1e-5)
