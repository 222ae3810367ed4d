"""Mechanisms of the literature, right and wrong, each with the pair of inputs that shows it best.

Written from the descriptions in Dwork and Roth 2014 (noise, exponential mechanism, sparse vector),
Lyu, Su and Li 2017 (the six published sparse vector algorithms), Ding et al. 2018 (StatDP: noisy
maximum, histogram, sparse vector variants iSVT1-4), Bichsel et al. 2021 (DP-Sniper: one-time
RAPPOR, prefix sums, truncated geometric), Canonne et al. 2020 (discrete Gaussian), Papernot et al.
2017 (votes of teachers). Queries have sensitivity 1, and inputs are the answers to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from askgauss.claims import PrivacyClaim
from askgauss.stats import gaussian

EPSILON = 1.0


@dataclass(frozen=True)
class Case:
    """A mechanism, a pair of neighbours, and what is claimed of it."""

    name: str
    mechanism: Any
    data: Any
    neighbour: Any
    epsilon: float = EPSILON
    delta: float = 0.0

    @property
    def claim(self):
        return PrivacyClaim(epsilon=self.epsilon, delta=self.delta)


@dataclass(frozen=True)
class Mechanism:
    """A vectorised sampler: ``draw(generator, data, n)``."""

    draw: Any

    def sample(self, data, n, seed):
        return self.draw(np.random.default_rng(seed), np.asarray(data, float), n)


def laplace(scale):
    return Mechanism(lambda rng, x, n: x + rng.laplace(0, scale, (n, *x.shape)))


def gaussian_noise(sigma):
    return Mechanism(lambda rng, x, n: x + rng.normal(0, sigma, (n, *x.shape)))


def geometric(epsilon, low=-math.inf, high=math.inf):
    """Two-sided geometric noise, clamped to a range."""
    chance = -math.expm1(-epsilon)

    def draw(rng, x, n):
        noise = rng.geometric(chance, n) - rng.geometric(chance, n)
        return np.clip(x + noise, low, high)

    return Mechanism(draw)


def geometric_redrawn(epsilon, low, high):
    """Noise drawn again until the output is in range: the normaliser then depends on the data."""
    values = np.arange(low, high + 1)

    def draw(rng, x, n):
        weights = np.exp(-epsilon * np.abs(values - x))
        return rng.choice(values, n, p=weights / weights.sum())

    return Mechanism(draw)


def discrete_gaussian(sigma):
    values = np.arange(-40, 41)

    def draw(rng, x, n):
        weights = np.exp(-(values**2) / (2 * sigma**2))
        return x + rng.choice(values, n, p=weights / weights.sum())

    return Mechanism(draw)


def discrete_gaussian_delta(sigma, epsilon):
    values = np.arange(-60, 61)
    weights = np.exp(-(values**2) / (2 * sigma**2))
    weights /= weights.sum()
    shifted = np.exp(-((values - 1) ** 2) / (2 * sigma**2))
    shifted /= shifted.sum()
    return float(np.maximum(weights - np.exp(epsilon) * shifted, 0).sum())


def randomised_response(epsilon):
    keep = 1 / (1 + math.exp(-epsilon))
    return Mechanism(lambda rng, x, n: np.where(rng.random(n) < keep, x, 1 - x))


def exponential_mechanism(rate):
    """An index with probability in proportion to e^(rate times its utility)."""

    def draw(rng, x, n):
        weights = np.exp(rate * (x - x.max()))
        return rng.choice(x.size, n, p=weights / weights.sum())

    return Mechanism(draw)


def noisy_max(noise, scale, returns):
    def draw(rng, x, n):
        noisy = x + getattr(rng, noise)(scale=scale, size=(n, x.size))
        return noisy.argmax(axis=1) if returns == "index" else noisy.max(axis=1)

    return Mechanism(draw)


def sparse_vector(
    *, threshold_scale, query_scale, most, refresh=False, numbers=False, threshold=0.0
):
    """0 for below, 1 for above (or the noisy answer), nan after the end.

    Args:
        threshold_scale: Scale of the threshold's noise.
        query_scale: Scale of the queries' noise; 0 for none.
        most: Answers above after which it stops.
        refresh: Draw the threshold's noise anew after each answer above.
        numbers: Release the noisy answer itself where it is above.
        threshold: The threshold.
    """

    def draw(rng, x, n):
        rho = rng.laplace(0, threshold_scale, n)
        out = np.full((n, x.size), np.nan)
        left = np.full(n, most, float)
        for index, answer in enumerate(x):
            noisy = answer + (rng.laplace(0, query_scale, n) if query_scale else np.zeros(n))
            above, going = noisy >= threshold + rho, left > 0
            out[going, index] = np.where(above, noisy if numbers else 1.0, 0.0)[going]
            left -= above & going
            if refresh:
                rho = np.where(above, rng.laplace(0, threshold_scale, n), rho)
        return out

    return Mechanism(draw)


def prefix_sums(scale):
    return Mechanism(lambda rng, x, n: np.cumsum(x + rng.laplace(0, scale, (n, x.size)), axis=1))


def one_time_rappor(flip, hashes=2, bits=12):
    """Bits of a Bloom filter, each replaced by a fair coin with probability ``flip``."""

    def draw(rng, x, n):
        filled = np.zeros(bits)
        filled[[int(x * 7 + 5 * k) % bits for k in range(hashes)]] = 1
        coin = rng.random((n, bits)) < flip
        return np.where(coin, rng.random((n, bits)) < 0.5, filled).astype(int)

    return Mechanism(draw)


def rappor_epsilon(flip, hashes=2):
    return 2 * hashes * math.log((1 - flip / 2) / (flip / 2))


def synthetic_data(scale, records=5):
    """Records drawn from a histogram with noise, negative counts set to zero."""

    def draw(rng, x, n):
        noisy = np.maximum(x + scale * rng.laplace(0, 1, (n, x.size)), 1e-9)
        shares = np.cumsum(noisy / noisy.sum(axis=1, keepdims=True), axis=1)
        return (rng.random((n, records, 1)) > shares[:, None, :-1]).sum(axis=2)

    return Mechanism(draw)


def clipped_mean_of_own_range():
    """A sum of values clipped to their own largest, with noise for that."""

    def draw(rng, x, n):
        return x.sum() + rng.laplace(0, x.max() / EPSILON, n)

    return Mechanism(draw)


def svt_of_lyu(number, queries_above):
    """The algorithms of Lyu et al. for epsilon 1; the third is `NumericSparseVector`."""
    e = EPSILON
    c = queries_above
    return {
        1: sparse_vector(threshold_scale=2 / e, query_scale=4 * c / e, most=c),
        2: sparse_vector(threshold_scale=2 * c / e, query_scale=4 * c / e, most=c, refresh=True),
        4: sparse_vector(threshold_scale=4 / e, query_scale=4 / (3 * e), most=c),
        5: sparse_vector(threshold_scale=2 / e, query_scale=0, most=math.inf),
        6: sparse_vector(threshold_scale=2 / e, query_scale=2 / e, most=math.inf),
    }[number]


class NumericSparseVector:
    """Algorithm 3 of Lyu et al. with its likelihood: stops at the first answer above, with it."""

    def __init__(self, epsilon):
        self.scale = 2 / epsilon

    def sample(self, data, n, seed):
        noise = {"threshold_scale": self.scale, "query_scale": self.scale}
        return sparse_vector(**noise, most=1, numbers=True).sample(data, n, seed)

    def log_likelihood_ratio(self, outputs, data, neighbour):
        return self._log_likelihood(outputs, data) - self._log_likelihood(outputs, neighbour)

    def _log_likelihood(self, outputs, answers):
        """By summing over the threshold's noise, which a released number bounds from above."""
        grid = np.linspace(-40, 40, 4001)
        mass = np.exp(-np.abs(grid) / self.scale)
        ended = np.argmax(np.isnan(np.hstack((outputs, np.full((len(outputs), 1), np.nan)))), 1) - 1
        values = outputs[np.arange(len(outputs)), ended]
        likelihood = np.empty(len(outputs))
        for place, answer in enumerate(answers):
            here = (ended == place) & (values != 0.0)
            below = np.cumsum(mass)[np.searchsorted(grid, values[here], side="right") - 1]
            likelihood[here] = below * np.exp(-np.abs(values[here] - answer) / self.scale)
            x = (grid - answer) / self.scale
            mass = mass * np.where(x < 0, np.exp(x) / 2, 1 - np.exp(-np.abs(x)) / 2)
        likelihood[(ended == len(answers) - 1) & (values == 0.0)] = mass.sum()
        return np.log(likelihood)


FIVE = np.array([1.0] * 5 + [0.0] * 5)
TEN = np.zeros(10)
ALTERNATING = np.array([1.0, 0.0] * 5)

CORRECT = (
    Case("Laplace", laplace(1.0), 0.0, 1.0),
    Case("Laplace, epsilon 0.1", laplace(10.0), 0.0, 1.0, epsilon=0.1),
    Case("Laplace, epsilon 3", laplace(1 / 3), 0.0, 1.0, epsilon=3.0),
    Case(
        "Gaussian",
        gaussian_noise(1.5),
        0.0,
        1.0,
        delta=gaussian.gdp_delta(1.0, 1 / 1.5),
    ),
    Case(
        "discrete Gaussian",
        discrete_gaussian(2.0),
        0.0,
        1.0,
        epsilon=0.5,
        delta=discrete_gaussian_delta(2.0, 0.5),
    ),
    Case("geometric", geometric(1.0), 3.0, 4.0),
    Case("truncated geometric", geometric(1.0, 0, 5), 0.0, 1.0),
    Case("randomised response", randomised_response(1.0), 0.0, 1.0),
    Case("exponential mechanism", exponential_mechanism(0.5), [1.0, 1, 1], [2.0, 0, 0]),
    Case(
        "noisy maximum, Laplace", noisy_max("laplace", 2.0, "index"), [1.0] * 5, [2.0, 0, 0, 0, 0]
    ),
    Case(
        "noisy maximum, exponential",
        noisy_max("exponential", 2.0, "index"),
        [1.0] * 5,
        [2.0, 0, 0, 0, 0],
    ),
    Case("sparse vector, Lyu 1", svt_of_lyu(1, 1), FIVE, FIVE[::-1]),
    Case("sparse vector, Dwork and Roth", svt_of_lyu(2, 2), FIVE, FIVE[::-1]),
    Case("histogram", laplace(1.0), [2.0, 1, 0, 0], [1.0, 1, 0, 0]),
    Case("votes of teachers", noisy_max("laplace", 2.0, "index"), [3.0, 3, 1], [4.0, 2, 1]),
    Case("prefix sums", prefix_sums(1.0), [0.0] * 10, [1.0] + [0.0] * 9),
    Case("one-time RAPPOR", one_time_rappor(0.75), 0.0, 2.0, epsilon=rappor_epsilon(0.75)),
    Case("synthetic data", synthetic_data(1.0), [3.0, 0, 0], [3.0, 1, 0]),
)

BROKEN = (
    Case("Laplace, noise two thirds", laplace(2 / 3), 0.0, 1.0),
    Case("Gaussian noise claimed pure", gaussian_noise(0.5), 0.0, 1.0),
    Case("geometric, redrawn until in range", geometric_redrawn(1.0, 0, 8), 0.0, 1.0),
    Case(
        "discrete Gaussian, half the noise",
        discrete_gaussian(1.0),
        0.0,
        1.0,
        epsilon=0.5,
        delta=discrete_gaussian_delta(2.0, 0.5),
    ),
    Case("randomised response, epsilon 1.5", randomised_response(1.5), 0.0, 1.0),
    Case(
        "exponential mechanism without the half",
        exponential_mechanism(1.0),
        [1.0] * 10,
        [2.0] + [0.0] * 9,
    ),
    Case(
        "noisy maximum, Laplace, the value",
        noisy_max("laplace", 2.0, "value"),
        [0.0] * 5,
        [1.0] * 5,
    ),
    Case(
        "noisy maximum, exponential, the value",
        noisy_max("exponential", 2.0, "value"),
        [0.0] * 5,
        [1.0] * 5,
    ),
    Case(
        "noisy maximum, Laplace, half the noise",
        noisy_max("laplace", 1.0, "index"),
        [1.0] * 5,
        [2.0, 0, 0, 0, 0],
    ),
    Case(
        "noisy maximum, exponential, half the noise",
        noisy_max("exponential", 1.0, "index"),
        [1.0] * 5,
        [2.0, 0, 0, 0, 0],
    ),
    Case(
        "sparse vector, Lyu 3 (Roth; iSVT4)",
        NumericSparseVector(2.0),
        [-1.0] * 20 + [2.0],
        [0.0] * 20 + [1.0],
        epsilon=2.0,
    ),
    Case("sparse vector, Lyu 4 (Lee and Clifton; iSVT3)", svt_of_lyu(4, 5), FIVE, FIVE[::-1]),
    Case("sparse vector, Lyu 5 (Stoddard; iSVT1)", svt_of_lyu(5, 1), FIVE, FIVE[::-1]),
    Case("sparse vector, Lyu 6 (Chen; iSVT2)", svt_of_lyu(6, 1), FIVE, FIVE[::-1]),
    Case("histogram, two cells change", laplace(1.0), [2.0, 1, 0, 0], [1.0, 2, 0, 0]),
    Case("histogram, noise of scale epsilon", laplace(0.3), [2.0, 1], [1.0, 1], epsilon=0.3),
    Case(
        "votes of teachers, half the noise",
        noisy_max("laplace", 1.0, "index"),
        [3.0, 3, 1],
        [4.0, 2, 1],
    ),
    Case("prefix sums, half the noise", prefix_sums(0.5), [0.0] * 10, [1.0] + [0.0] * 9),
    Case(
        "one-time RAPPOR, one hash counted",
        one_time_rappor(0.75),
        0.0,
        2.0,
        epsilon=rappor_epsilon(0.75) / 2,
    ),
    Case("synthetic data without noise", synthetic_data(0.0), [3.0, 0, 0], [3.0, 1, 0]),
    Case("a sum clipped to its own range", clipped_mean_of_own_range(), [1.0, 1, 1], [1.0, 1, 8]),
)
