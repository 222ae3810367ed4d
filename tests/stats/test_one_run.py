import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from askgauss.exceptions import InvalidArgumentError
from askgauss.stats.guess_counts import GuessCounts, epsilon_from_counts, p_value
from askgauss.stats.limits import clopper_pearson_lower

CHECKS = [
    (1000, 100, 74, 0.6517),
    (10_000, 1000, 903, 2.0464),
    (100_000, 10_000, 9949, 4.8577),
    (100_000, 1500, 1429, 2.6688),
    (5000, 257, 252, 3.1309),
]


def slow_p_value(canaries, guesses, correct, epsilon, delta):
    """The theorem read aloud: every tail a sum of masses, every window tried."""
    mass = binom.pmf(np.arange(guesses + 1), guesses, expit(epsilon))

    def tail(count):
        return math.fsum(mass[max(count, 0) :])

    extra = max(
        ((tail(correct - i) - tail(correct)) / i for i in range(1, canaries + 1)), default=0.0
    )
    return min(1.0, tail(correct) + 2.0 * canaries * delta * max(extra, 0.0))


@pytest.mark.parametrize(("canaries", "guesses", "correct", "epsilon"), CHECKS)
def test_known_bounds(canaries, guesses, correct, epsilon):
    counts = GuessCounts(canaries=canaries, guesses=guesses, correct=correct)
    bound = epsilon_from_counts(counts, delta=1e-5, confidence=0.95)
    assert bound == pytest.approx(epsilon, abs=6e-5)


@pytest.mark.parametrize(
    ("guesses", "epsilon"), [(10, 1.05), (100, 3.49), (1000, 5.81), (5000, 7.42), (10_000, 8.11)]
)
def test_known_bounds_without_a_mistake_and_without_delta(guesses, epsilon):
    perfect = GuessCounts(canaries=guesses, guesses=guesses, correct=guesses)
    top = epsilon_from_counts(perfect, delta=0.0, confidence=0.95)
    assert top == pytest.approx(epsilon, abs=6e-3)
    assert top == pytest.approx(-math.log(0.05 ** (-1.0 / guesses) - 1.0), rel=1e-9)


def test_p_value_against_the_theorem():
    rng = np.random.default_rng(20)
    for _ in range(300):
        guesses = int(rng.integers(1, 60))
        correct = int(rng.integers(0, guesses + 1))
        canaries = guesses + int(rng.integers(0, 100))
        epsilon, delta = float(rng.exponential(2.0)), float(10.0 ** -rng.uniform(0.1, 8.0))
        expected = slow_p_value(canaries, guesses, correct, epsilon, delta)
        counts = GuessCounts(canaries=canaries, guesses=guesses, correct=correct)
        found = p_value(counts, epsilon=epsilon, delta=delta)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("guesses", "correct", "epsilon"), [(900, 900, 0.0), (900, 800, 0.1), (900, 10, 3.0)]
)
def test_p_value_far_from_the_expected_count(guesses, correct, epsilon):
    counts = GuessCounts(canaries=1000, guesses=guesses, correct=correct)
    expected = slow_p_value(1000, guesses, correct, epsilon, 1e-3)
    assert p_value(counts, epsilon=epsilon, delta=1e-3) == pytest.approx(expected, rel=1e-9)


def test_p_value_is_valid_for_a_mechanism_that_uses_all_it_may():
    # Randomised response on every bit, except that with probability delta all bits are told.
    canaries, epsilon = 25, 1.0
    counts = np.arange(canaries + 1)
    for delta in (0.0, 1e-3, 0.02, 0.1):
        mass = (1.0 - delta) * binom.pmf(counts, canaries, expit(epsilon))
        mass[-1] += delta
        every = [GuessCounts(canaries=canaries, guesses=canaries, correct=int(v)) for v in counts]
        values = np.array([p_value(one, epsilon=epsilon, delta=delta) for one in every])
        for value in np.unique(values):
            assert mass[values <= value].sum() <= value + 1e-12


@pytest.mark.parametrize(("canaries", "guesses", "correct", "_"), CHECKS)
def test_bound_is_where_the_p_value_meets_the_error(canaries, guesses, correct, _):
    counts = GuessCounts(canaries=canaries, guesses=guesses, correct=correct)
    bound = epsilon_from_counts(counts, delta=1e-5, confidence=0.99)
    assert p_value(counts, epsilon=bound, delta=1e-5) <= 0.01
    assert p_value(counts, epsilon=bound + 1e-7, delta=1e-5) > 0.01


def test_without_delta_it_is_clopper_pearson():
    for correct in range(0, 51, 5):
        counts = GuessCounts(canaries=80, guesses=50, correct=correct)
        bound = epsilon_from_counts(counts, delta=0.0, confidence=0.9)
        lower = clopper_pearson_lower(correct, 50, 0.1)
        expected = max(0.0, math.log(lower / (1.0 - lower))) if lower else 0.0
        assert bound == pytest.approx(expected, abs=1e-12)


def test_bound_moves_the_right_way():
    def bound(canaries=400, correct=80, delta=1e-4, confidence=0.95):
        counts = GuessCounts(canaries=canaries, guesses=100, correct=correct)
        return epsilon_from_counts(counts, delta=delta, confidence=confidence)

    assert np.all(np.diff([bound(correct=v) for v in range(101)]) >= 0.0)
    assert np.all(np.diff([bound(canaries=m) for m in (100, 200, 1000, 3000)]) < 0.0)
    assert np.all(np.diff([bound(delta=d) for d in (0.0, 1e-300, 1e-15, 1e-5, 1e-3)]) <= 0.0)
    assert np.all(np.diff([bound(confidence=c) for c in (0.6, 0.9, 0.99, 0.9999)]) < 0.0)
    assert bound(correct=50) == 0.0
    assert bound(canaries=10_000, delta=0.01) == 0.0


def test_huge_epsilon_is_no_problem():
    counts = GuessCounts(canaries=50, guesses=20, correct=20)
    assert p_value(counts, epsilon=1e4, delta=1e-5) == 1.0
    assert p_value(counts, epsilon=30.0, delta=0.0) == pytest.approx(1.0)
    nothing = GuessCounts(canaries=50, guesses=20, correct=0)
    assert p_value(nothing, epsilon=1.0, delta=0.5) == 1.0


@pytest.mark.parametrize(("tp", "fp"), [(74, 26), (252, 5), (480, 320)])
def test_agrees_with_jax_privacy(tp, fp):
    from jax_privacy import auditing

    present = np.repeat([1.0, 0.0], [tp, 500 - tp])
    absent = np.repeat([1.0, 0.0], [fp, 500 - fp])
    theirs = auditing.CanaryScoreAuditor(present, absent).epsilon_one_run(
        significance=0.05, delta=1e-5, threshold_strategy=auditing.Explicit(0.5)
    )
    counts = GuessCounts(canaries=1000, guesses=tp + fp, correct=tp)
    ours = epsilon_from_counts(counts, delta=1e-5, confidence=0.95)
    assert ours == pytest.approx(theirs, abs=1e-5)


GOOD = GuessCounts(canaries=100, guesses=50, correct=40)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 1, 0), "Expected canaries "),
        ((10, 0, 0), "Expected guesses .* got 0. An audit without a guess"),
        ((10, 11, 0), "Expected guesses <= canaries = 10, got 11. Count the"),
        ((10, 5, 6), "Expected correct <= guesses = 5, got 6"),
        ((10, 5, -1), "Expected correct "),
        ((10, 5, 2.0), "Expected correct "),
        ((10.5, 5, 2), "Expected canaries "),
    ],
)
def test_impossible_counts(counts, message):
    canaries, guesses, correct = counts
    with pytest.raises(InvalidArgumentError, match=message):
        GuessCounts(canaries=canaries, guesses=guesses, correct=correct)


def test_bad_levels():
    for delta in (1.0, -1e-9, math.nan):
        with pytest.raises(InvalidArgumentError, match="Expected delta "):
            p_value(GOOD, epsilon=1.0, delta=delta)
        with pytest.raises(InvalidArgumentError, match="Expected delta "):
            epsilon_from_counts(GOOD, delta=delta, confidence=0.95)
    with pytest.raises(InvalidArgumentError, match="Expected epsilon "):
        p_value(GOOD, epsilon=-1.0, delta=1e-5)
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(InvalidArgumentError, match="Expected confidence "):
            epsilon_from_counts(GOOD, delta=1e-5, confidence=confidence)
