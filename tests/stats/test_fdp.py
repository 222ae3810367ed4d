import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.limits import largest_rejected
from askgauss.stats.tradeoff import TradeOff

PEER = GuessCounts(canaries=5000, guesses=257, correct=252)


def epsilon_delta_from_counts(counts, *, delta, confidence):
    return guess_counts.strongest_rejected(
        lambda epsilon: guess_counts.epsilon_delta_blow_up(epsilon, delta),
        counts,
        confidence=confidence,
    )


def slow_rejects(inverse_blow_up, counts, error):
    """The published recursion to its end, without stopping early."""
    canaries, guesses, correct = counts.canaries, counts.guesses, counts.correct
    r, h = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        h_new = max(h, inverse_blow_up(min(r, 1.0)))
        r, h = r + i / (guesses - i) * (h_new - h), h_new
    return r + h > guesses / canaries


def largest_tail(lines, counts):
    """Largest P[at least ``correct``] that the theorem's inequalities allow, as a linear program.

    ``lines`` are (slope, intercept) pairs whose minimum is the blow-up. Unknown are the
    probabilities of 0, 1, ..., guesses correct guesses.
    """
    canaries, guesses, correct = counts.canaries, counts.guesses, counts.correct
    matrix, limits = [], []
    for first in range(1, guesses + 1):
        numbers = np.arange(first, guesses + 1)
        right, wrong = np.zeros(guesses + 1), np.zeros(guesses + 1)
        right[first:] = numbers / canaries
        wrong[first - 1 : guesses] = (guesses - numbers + 1) / canaries
        for slope, intercept in lines:
            matrix.append(right - slope * wrong)
            limits.append(intercept)
    answer = linprog(
        -(np.arange(guesses + 1) >= correct).astype(float),
        A_ub=np.array(matrix),
        b_ub=limits,
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
        bounds=(0.0, None),
        method="highs",
    )
    assert answer.status == 0
    return -answer.fun


def epsilon_delta_lines(epsilon, delta):
    return [
        (math.exp(epsilon), delta),
        (math.exp(-epsilon), 1.0 - math.exp(-epsilon) * (1.0 - delta)),
        (0.0, 1.0),
    ]


def gaussian_tangents(mu):
    z = np.linspace(-9.0, 9.0, 400)
    slope = np.exp(-mu * z - mu * mu / 2.0)
    return list(zip(slope, ndtr(z + mu) - slope * ndtr(z), strict=True))


def subsampled_gaussian(noise_multiplier, sampling_rate, steps):
    """Inverse blow-up and epsilon of composed Poisson-subsampled Gaussian steps."""
    from dp_accounting.pld import privacy_loss_distribution

    composed = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise_multiplier,
        sampling_prob=sampling_rate,
        value_discretization_interval=1e-3,
    ).self_compose(steps)
    directions = []
    for pmf in (composed._pmf_remove, composed._pmf_add):
        mass = pmf._probs[::-1]
        loss = (pmf._lower_loss + np.arange(mass.size)[::-1]) * pmf._discretization
        power = pmf._infinity_mass + np.cumsum(mass)
        cost = np.cumsum(mass * np.exp(-loss))
        directions.append((np.append([0.0, pmf._infinity_mass], power), np.append([0.0] * 2, cost)))

    def inverse_blow_up(probability):
        return min(float(np.interp(probability, power, cost)) for power, cost in directions)

    return inverse_blow_up, composed.get_epsilon_for_delta(1e-5)


def test_known_bounds():
    assert guess_counts.gaussian_from_counts(PEER, delta=1e-5, confidence=0.95) == pytest.approx(
        4.455, abs=6e-4
    )
    tutorial = GuessCounts(canaries=100, guesses=80, correct=70)
    bound = guess_counts.gaussian_from_counts(tutorial, delta=1e-6, confidence=0.95)
    assert bound == pytest.approx(3.2956, abs=6e-5)
    # PrivacyGuard's tutorial prints 3.2906 here, from a grid of noise multipliers 0.01 apart.
    assert 0.0 < bound - 3.2906 < 0.01


def test_a_subsampled_gaussian_family_can_be_plugged_in():
    curve, epsilon = subsampled_gaussian(2.6245, 1.0 / 12.0, 2500)
    assert epsilon == pytest.approx(7.9698, abs=6e-5)
    known = {0.001: 1.0392e-6, 0.01: 3.488e-5, 0.1: 1.717e-3, 0.5: 0.050857, 0.9: 0.36207}
    assert [curve(power) for power in known] == pytest.approx(list(known.values()), rel=2e-4)

    def margin(parameter):
        if parameter == 0.0:
            return 1.0
        curve, _ = subsampled_gaussian(1.0 / parameter, 1.0 / 12.0, 2500)
        return 1.0 if guess_counts.curve_rejects(curve, PEER, error=0.05) else -1.0

    inverse_noise = largest_rejected(margin, tolerance=1e-4)
    assert 1.0 / inverse_noise == pytest.approx(4.178, abs=3e-3)
    assert subsampled_gaussian(1.0 / inverse_noise, 1.0 / 12.0, 2500)[1] == pytest.approx(
        4.471, abs=3e-3
    )


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "epsilon", "delta"),
    [
        (20, 10, 9, 0.5, 1e-2),
        (20, 10, 10, 1.0, 0.0),
        (50, 30, 25, 1.0, 1e-3),
        (30, 30, 22, 0.3, 1e-3),
        (12, 12, 12, 2.0, 0.05),
        (40, 20, 15, 0.2, 1e-3),
        (40, 20, 12, 0.0, 1e-2),
        (40, 20, 5, 0.0, 1e-2),
    ],
)
def test_p_value_solves_the_linear_program(canaries, guesses, correct, epsilon, delta):
    counts = GuessCounts(canaries=canaries, guesses=guesses, correct=correct)
    exact = largest_tail(epsilon_delta_lines(epsilon, delta), counts)
    assert guess_counts.curve_p_value(
        guess_counts.epsilon_delta_blow_up(epsilon, delta), counts
    ) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "mu"),
    [(20, 10, 9, 0.3), (50, 20, 19, 1.0), (30, 30, 22, 0.1), (40, 20, 15, 0.2)],
)
def test_gaussian_p_value_solves_the_program_of_its_tangents(canaries, guesses, correct, mu):
    counts = GuessCounts(canaries=canaries, guesses=guesses, correct=correct)
    relaxed = largest_tail(gaussian_tangents(mu), counts)
    found = guess_counts.curve_p_value(guess_counts.gaussian_blow_up(mu), counts)
    # Finitely many tangents lie above the curve and allow a little more.
    assert relaxed * (1.0 - 1e-3) <= found <= relaxed * (1.0 + 1e-5)


def test_rejects_like_the_plain_recursion():
    rng = np.random.default_rng(21)
    answers = []
    for _ in range(400):
        guesses = int(rng.integers(1, 80))
        counts = GuessCounts(
            canaries=guesses + int(rng.integers(0, 200)),
            guesses=guesses,
            correct=int(rng.integers(guesses // 2, guesses + 1)),
        )
        error = float(10.0 ** -rng.uniform(0.5, 3.0))
        curve = guess_counts.gaussian_blow_up(float(rng.exponential(0.7)))
        answers.append(guess_counts.curve_rejects(curve, counts, error=error))
        assert answers[-1] == slow_rejects(curve, counts, error)
    assert 40 < sum(answers) < 360


@pytest.mark.parametrize(
    "curve", [guess_counts.gaussian_blow_up(0.4), guess_counts.epsilon_delta_blow_up(0.8, 1e-3)]
)
@pytest.mark.parametrize(("guesses", "correct"), [(60, 50), (60, 60), (300, 190), (100, 3)])
def test_rejection_is_monotone_in_error_and_in_the_count(curve, guesses, correct):
    def rejects(error, correct=correct):
        counts = GuessCounts(canaries=300, guesses=guesses, correct=correct)
        return guess_counts.curve_rejects(curve, counts, error=error)

    answers = [rejects(error) for error in np.exp(np.linspace(-50.0, -1e-9, 300))]
    assert np.all(np.diff(np.array(answers, dtype=int)) >= 0)
    answers = [rejects(0.05, count) for count in range(guesses + 1)]
    assert np.all(np.diff(np.array(answers, dtype=int)) >= 0)


@pytest.mark.parametrize(("guesses", "correct"), [(257, 252), (100, 74), (2500, 1700), (9, 9)])
def test_bound_and_p_value_agree(guesses, correct):
    counts = GuessCounts(canaries=5000, guesses=guesses, correct=correct)
    mu = guess_counts.strongest_rejected(guess_counts.gaussian_blow_up, counts, confidence=0.99)
    if mu == 0.0:
        assert guess_counts.curve_p_value(guess_counts.gaussian_blow_up(0.0), counts) > 0.01
        return
    assert guess_counts.curve_p_value(guess_counts.gaussian_blow_up(mu), counts) <= 0.01 * (
        1.0 + 1e-6
    )
    assert guess_counts.curve_p_value(guess_counts.gaussian_blow_up(mu + 1e-6), counts) > 0.01


def test_epsilon_delta_family():
    level = {"delta": 1e-5, "confidence": 0.95}
    bound = epsilon_delta_from_counts(PEER, **level)
    assert guess_counts.curve_rejects(
        guess_counts.epsilon_delta_blow_up(bound, 1e-5), PEER, error=0.05
    )
    assert not guess_counts.curve_rejects(
        guess_counts.epsilon_delta_blow_up(bound + 1e-6, 1e-5), PEER, error=0.05
    )
    # The same hypothesis as the binomial audit, by another route; neither contains the other.
    assert bound == pytest.approx(guess_counts.epsilon_from_counts(PEER, **level), rel=0.02)
    pure = epsilon_delta_from_counts(
        GuessCounts(canaries=50, guesses=50, correct=45), delta=0.0, confidence=0.9
    )
    assert 0.0 < pure < math.log(45.0 / 5.0)


def test_p_value_is_valid_for_independent_mechanisms():
    canaries = 60
    counts = np.arange(canaries + 1)
    for curve, accuracy in (
        (guess_counts.gaussian_blow_up(1.0), ndtr(0.5)),
        (guess_counts.gaussian_blow_up(0.3), ndtr(0.15)),
        (guess_counts.epsilon_delta_blow_up(1.0, 0.0), expit(1.0)),
    ):
        mass = binom.pmf(counts, canaries, accuracy)
        values = np.array(
            [
                guess_counts.curve_p_value(
                    curve, GuessCounts(canaries=canaries, guesses=canaries, correct=int(v))
                )
                for v in counts
            ]
        )
        for value in np.unique(values):
            assert mass[values <= value].sum() <= value + 1e-12


def test_p_value_is_valid_for_a_mechanism_that_couples_the_canaries():
    # With probability 0.06 every bit passes randomised response, else nothing is released: 1-GDP.
    probability = 0.06 * binom.sf(904, 1000, expit(2.46))
    assert probability == pytest.approx(0.058, abs=1e-3)
    counts = GuessCounts(canaries=1000, guesses=1000, correct=905)
    value = guess_counts.curve_p_value(guess_counts.gaussian_blow_up(1.0), counts)
    assert probability < value < 2.0 * probability


def test_abstentions_count_as_canaries():
    level = {"delta": 1e-5, "confidence": 0.95}
    bounds = [
        guess_counts.gaussian_from_counts(
            GuessCounts(canaries=canaries, guesses=257, correct=252), **level
        )
        for canaries in (257, 1000, 5000, 100_000)
    ]
    assert np.all(np.diff(bounds) < -0.5)


def test_curves_are_those_of_the_trade_off():
    for ours, theirs in (
        (guess_counts.gaussian_blow_up(0.7), TradeOff.gaussian(0.7)),
        (guess_counts.epsilon_delta_blow_up(1.2, 0.01), TradeOff.epsilon_delta(1.2, 0.01)),
        (guess_counts.epsilon_delta_blow_up(0.0, 0.0), TradeOff.epsilon_delta(0.0, 0.0)),
    ):
        for probability in (1e-9, 0.005, 0.1, 0.5, 0.9, 0.999):
            expected = theirs.inverse_blow_up(probability)
            assert ours(probability) == pytest.approx(expected, rel=1e-9, abs=1e-16)
    assert guess_counts.epsilon_delta_blow_up(1e4, 1e-3)(1.0) == pytest.approx(0.999)
    assert guess_counts.gaussian_blow_up(0.7)(0.0) == 0.0
    assert guess_counts.gaussian_blow_up(0.7)(1.0) == 1.0


def test_ends_of_the_range():
    nothing = GuessCounts(canaries=10, guesses=10, correct=0)
    assert guess_counts.curve_p_value(guess_counts.gaussian_blow_up(0.0), nothing) == 1.0
    assert (
        guess_counts.strongest_rejected(guess_counts.gaussian_blow_up, nothing, confidence=0.95)
        == 0.0
    )
    assert guess_counts.gaussian_from_counts(nothing, delta=1e-5, confidence=0.95) == 0.0
    every = GuessCounts(canaries=3000, guesses=3000, correct=3000)
    assert guess_counts.curve_p_value(guess_counts.gaussian_blow_up(0.0), every) == pytest.approx(
        1e-50, rel=1e-5
    )
    assert (
        0.0
        < guess_counts.strongest_rejected(guess_counts.gaussian_blow_up, every, confidence=0.95)
        < math.inf
    )
    # A family that never leaks enough is rejected throughout.
    parameter = guess_counts.strongest_rejected(
        lambda _: guess_counts.gaussian_blow_up(0.1), PEER, confidence=0.95
    )
    assert parameter == math.inf


@pytest.mark.parametrize(("tp", "fp"), [(74, 26), (252, 5), (95, 0)])
def test_agrees_with_jax_privacy(tp, fp):
    from jax_privacy import auditing

    present = np.repeat([1.0, 0.0], [tp, 500 - tp])
    absent = np.repeat([1.0, 0.0], [fp, 500 - fp])
    theirs = auditing.CanaryScoreAuditor(present, absent).epsilon_one_run_fdp(
        significance=0.05, delta=1e-5, threshold_strategy=auditing.Explicit(0.5)
    )
    counts = GuessCounts(canaries=1000, guesses=tp + fp, correct=tp)
    ours = guess_counts.gaussian_from_counts(counts, delta=1e-5, confidence=0.95)
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_bad_levels_and_curves():
    with pytest.raises(InvalidArgumentError, match=r"Expected delta .* no epsilon at delta 0"):
        guess_counts.gaussian_from_counts(PEER, delta=0.0, confidence=0.95)
    with pytest.raises(InvalidArgumentError, match="Expected inverse_blow_up "):
        guess_counts.curve_p_value(lambda probability: math.nan, PEER)


def test_gaussian_curve_is_the_likelihood_ratio_test():
    # Reject above a cut: y = P[N(mu, 1) > cut] costs P[N(0, 1) > cut].
    cuts = np.linspace(-3.0, 5.0, 9)
    curve = guess_counts.gaussian_blow_up(1.3)
    for cut in cuts:
        assert curve(float(ndtr(1.3 - cut))) == pytest.approx(float(ndtr(-cut)), rel=1e-9)
    assert ndtri(curve(0.5)) == pytest.approx(-1.3)
