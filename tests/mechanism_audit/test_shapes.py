"""Outputs of every shape, from mechanisms that no search was ever tuned on.

A correct mechanism ends in VIOLATION or INVALID with probability .001 at most; seeds are fixed.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.mechanism_audit import audit_mechanism
from askgauss.results import Verdict

PURE = ag.PrivacyClaim(epsilon=1.0, delta=0.0)
ALARMS = (Verdict.VIOLATION, Verdict.INVALID)


class Release:
    """A mechanism of a function of the input, a number of outputs and a generator."""

    def __init__(self, function):
        self.function = function

    def sample(self, data, n, seed):
        return self.function(data, n, np.random.default_rng(seed))


def laplace(data, n, rng):
    return data + rng.laplace(0.0, 1.0, n)


def staircase(data, n, rng):
    """The optimal mechanism of epsilon 1: geometric steps, each uniform in two parts."""
    share, decay = 1.0 / (1.0 + math.exp(0.5)), math.exp(-1.0)
    steps, within = rng.geometric(1.0 - decay, n) - 1, rng.random(n)
    outer = rng.random(n) < (1.0 - share) * decay / (share + (1.0 - share) * decay)
    place = np.where(outer, share + (1.0 - share) * within, share * within)
    return data + rng.choice([-1, 1], n) * (steps + place)


def discrete_laplace(data, n, rng):
    ups, downs = rng.geometric(1.0 - math.exp(-1.0), (2, n))
    return [int(data + up - down) for up, down in zip(ups, downs, strict=True)]


def permute_and_flip(epsilon):
    def release(data, n, rng):
        quality = np.asarray(data)
        found = []
        for _ in range(n):
            for index in rng.permutation(quality.size):
                if rng.random() < math.exp(0.5 * epsilon * (quality[index] - quality.max())):
                    found.append(f"candidate {index}")
                    break
        return found

    return release


def responses(epsilon):
    """Randomised response among ten words."""
    keep = math.exp(epsilon) / (math.exp(epsilon) + 9.0)

    def release(data, n, rng):
        other = (data + rng.integers(1, 10, n)) % 10
        return [f"item {x}" for x in np.where(rng.random(n) < keep, data, other)]

    return release


def subsampled(rate):
    return lambda data, n, rng: (rng.random(n) < rate) * data + rng.laplace(0.0, 0.5, n)


def tiny_delta(data, n, rng):
    return data + rng.normal(0.0, 1.0 / ag.gaussian.gdp_mu(1.0, 1e-10), n)


CORRECT = {
    "staircase": (staircase, 0.0, 1.0, PURE),
    "discrete Laplace": (discrete_laplace, 0, 1, PURE),
    "clamped": (lambda *a: np.clip(discrete_laplace(*a), 0, 3), 0, 1, PURE),
    "permute and flip": (permute_and_flip(1.0), [3, 2, 0, 0], [2, 3, 0, 0], PURE),
    "ten words": (responses(1.0), 0, 1, PURE),
    "Gaussian": (tiny_delta, 0.0, 1.0, ag.PrivacyClaim(epsilon=1.0, delta=1e-10)),
    "subsampled": (
        subsampled(0.3),
        0.0,
        1.0,
        ag.PrivacyClaim(epsilon=math.log1p(0.3 * math.expm1(2.0)), delta=0.0),
    ),
    "a word of its own each": (
        lambda *a: [f"{x:.9f}" for x in laplace(*a)],
        0.0,
        1.0,
        PURE,
    ),
    "a name and a number": (
        lambda data, n, rng: [(f"{rng.integers(1 << 60)}", x) for x in laplace(data, n, rng)],
        0.0,
        1.0,
        PURE,
    ),
    "a number between rare words": (
        lambda data, n, rng: [
            (f"{rng.integers(50)}", x, f"{rng.integers(5000)}") for x in laplace(data, n, rng)
        ],
        0.0,
        1.0,
        PURE,
    ),
    "a number or nothing": (
        lambda *a: [None if x < 0.0 else x for x in laplace(*a)],
        0.0,
        1.0,
        PURE,
    ),
    "mappings": (
        lambda *a: [
            {"count": x, "of": "all"} if x > 0.0 else {"hidden": True} for x in laplace(*a)
        ],
        0.0,
        1.0,
        PURE,
    ),
    "lists of any length": (
        lambda *a: [[1.0] * max(0, x) for x in discrete_laplace(*a)],
        0,
        1,
        PURE,
    ),
}


@pytest.mark.parametrize("outputs", [30, 100])
@pytest.mark.parametrize("name", CORRECT)
def test_correct_mechanisms_of_every_shape_raise_no_alarm(name, outputs):
    function, data, neighbour, claim = CORRECT[name]
    for seed in range(3):
        result = audit_mechanism(
            Release(function), data, neighbour, claim=claim, max_samples=outputs, seed=seed
        )
        assert result.verdict not in ALARMS, str(result)


def seeded_by_its_data(data, n, rng):
    digest = hashlib.sha256(repr(data).encode()).digest()
    return [data + np.random.default_rng(list(digest)).laplace() for _ in range(n)]


def noisy_maximum(data, n, rng):
    votes = np.asarray(data) + rng.laplace(0.0, 2.0, (n, len(data)))
    return [{"winner": f"option {row.argmax()}", "votes": row.max()} for row in votes]


BROKEN = {
    "noise seeded by the data": (seeded_by_its_data, 0.0, 1.0, PURE),
    "noisy maximum that tells its votes": (noisy_maximum, [0.0] * 5, [1.0] * 5, PURE),
    "ten words at 1.5": (responses(1.5), 0, 1, PURE),
    "permute and flip at 2": (permute_and_flip(2.0), [3, 2, 0, 0], [2, 3, 0, 0], PURE),
    "subsampled twice as often": (subsampled(0.6), 0.0, 1.0, CORRECT["subsampled"][3]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_ones_are_seen(name):
    function, data, neighbour, claim = BROKEN[name]
    result = audit_mechanism(Release(function), data, neighbour, claim=claim)
    assert result.verdict is Verdict.VIOLATION, str(result)


def test_nothing_is_an_output_too():
    """Empty lists, all of them or those of one side only."""

    def sometimes(chance):
        return Release(lambda data, n, rng: [[1.0]] * n if data and chance else [[]] * n)

    kept = audit_mechanism(sometimes(False), 0, 1, claim=PURE, max_samples=200)
    assert kept.verdict is Verdict.INCONCLUSIVE
    assert "nothing was tested" in kept.reason
    assert audit_mechanism(sometimes(True), 0, 1, claim=PURE).verdict is Verdict.VIOLATION


def by_inverse_cdf(data, n, rng):
    u = rng.random(n) - 0.5
    return data - np.sign(u) * np.log1p(-2.0 * np.abs(u))


def test_the_last_bits_of_a_float_tell_the_inputs_apart_if_they_are_looked_at():
    pair = {"data": 0.0, "neighbour": 1.0, "claim": PURE, "max_samples": 1000}
    told = audit_mechanism(Release(by_inverse_cdf), **pair, last_bits=True)
    assert told.verdict is Verdict.VIOLATION
    # Which one wins differs by seed; only with the last bit are there two features to regress on.
    bets = [bet.event for bets in told.evidence.players for bet in bets]
    assert all("last bit" in event or "logistic regression" in event for event in bets)
    assert audit_mechanism(Release(by_inverse_cdf), **pair).verdict is not Verdict.VIOLATION
    # Rounded to a grid after the noise, the last bits say no more than the number.
    grid = Release(lambda *a: np.round(by_inverse_cdf(*a) * 1024.0) / 1024.0)
    assert audit_mechanism(grid, **pair, last_bits=True).verdict not in ALARMS


def test_last_bits_by_counting():
    from askgauss.mechanism_audit.events import _last_bits

    values = np.array([1.0, 3.0, 0.5, -6.0, 0.1, 0.0, np.nan, np.inf, 2.0**-1074])
    found = _last_bits(values)
    expected = [0.0, 0.0, -1.0, 1.0, -55.0, np.nan, np.nan, np.nan, -1074.0]
    assert found == pytest.approx(expected, nan_ok=True)
