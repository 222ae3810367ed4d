"""No mechanism gains by steering how many guesses are made: the most it can do, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import askgauss as ag
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts
from tests.calibration.steered import Steering, gaussian_slopes, worst

NUMBERS = [5, 6, 8, 10, 12, 15, 20, 30, 40, 60, 80, 120, 160, 320, 800]
FEW = [5, 8, 12, 20, 30, 45, 80]


def share(p_value, epsilon, delta, error, canaries=1000, numbers=NUMBERS):
    """The largest probability of a rejection over the error."""

    def rejects(guesses, right):
        counts = GuessCounts(canaries=canaries, guesses=guesses, correct=right)
        return p_value(counts, epsilon, delta) <= error

    return worst(numbers, rejects, canaries, [(epsilon, delta)]) / error


def chosen(counts, epsilon, delta):
    return guess_counts.p_value(counts, epsilon=epsilon, delta=delta, chosen=True)


@pytest.mark.parametrize(
    ("epsilon", "delta", "error"),
    [
        (0.05, 1e-4, 0.05),
        (0.1, 1e-3, 0.05),
        (1.0, 1e-3, 0.05),
        (1.0, 1e-5, 5e-4),
        (3.0, 1e-4, 5e-4),
    ],
)
def test_a_chosen_number_of_guesses_keeps_its_error(epsilon, delta, error):
    assert share(chosen, epsilon, delta, error) <= 1.0 + 1e-6


def test_the_theorem_of_a_fixed_number_does_not():
    """Up to 1.07 times the error by OneRun, 1.58 times in the epsilon-delta family."""

    def theorem(counts, epsilon, delta):
        return guess_counts.p_value(counts, epsilon=epsilon, delta=delta)

    def family(counts, epsilon, delta):
        return guess_counts.curve_p_value(
            guess_counts.epsilon_delta_blow_up(epsilon, delta), counts
        )

    assert share(theorem, 0.05, 1e-4, 0.05) > 1.05
    assert share(family, 0.1, 1e-3, 0.05) > 1.3
    # Of a fixed number each is right.
    for number in (20, 800):
        assert share(theorem, 0.05, 1e-4, 0.05, numbers=[number]) <= 1.0
        assert share(family, 0.1, 1e-3, 0.05, numbers=[number]) <= 1.0


@pytest.mark.parametrize("mu", [0.1, 0.3, 1.0])
def test_the_gaussian_family_leaves_room_for_it(mu):
    """At the error itself 0.3 standard deviations reach 1.05 times."""
    auditor, trial = ag.OneRunFDP(), GuessCounts(canaries=1000, guesses=100, correct=50)
    assert auditor._steered(trial) == 1.1

    def rejects(guesses, right):
        counts = GuessCounts(canaries=100, guesses=guesses, correct=right)
        return guess_counts.curve_rejects(
            guess_counts.gaussian_blow_up(mu), counts, error=0.05 / 1.1
        )

    assert worst(FEW, rejects, 100, gaussian_slopes(mu)) <= 0.05


def test_the_price_is_never_above_the_theorems():
    """So that a chosen number costs little: at most a factor 2 where delta decides."""
    for guesses, right in ((100, 74), (1000, 903), (257, 252)):
        for delta in (1e-6, 1e-5, 1e-4):
            counts = GuessCounts(canaries=5000, guesses=guesses, correct=right)
            level = {"delta": delta, "confidence": 0.95}
            fixed = guess_counts.epsilon_from_counts(counts, **level)
            free = guess_counts.epsilon_from_counts(counts, **level, chosen=True)
            assert free > 0.985 * fixed


def test_a_mechanism_that_tries():
    """Nominal at most, in a few audits of the cells of the calibration."""
    for epsilon, delta in ((0.1, 1e-3), (1.0, 1e-3)):
        found = Steering(500, epsilon, delta).count(300, seed=3)
        assert found <= binom.isf(1e-4, 300, 0.05)


def test_p_values_fall_with_right_guesses_and_rise_with_epsilon():

    def counts(right):
        return GuessCounts(canaries=2000, guesses=300, correct=right)

    for delta in (0.0, 1e-6, 1e-4, 1e-2):
        by_right = [chosen(counts(v), 1.0, delta) for v in range(180, 301, 5)]
        assert np.all(np.diff(by_right) <= 1e-12)
        by_epsilon = [chosen(counts(280), e, delta) for e in np.linspace(0, 4, 40)]
        assert np.all(np.diff(by_epsilon) >= -1e-12)
    # Far out neither tail nor mass can be told from 0, and their ratio is still the right one.
    far = chosen(GuessCounts(canaries=10**6, guesses=10**5, correct=10**5), 0.0, 1e-5)
    assert far == pytest.approx(2.0 * 10**6 * 1e-5 / 10**5, rel=1e-6)
