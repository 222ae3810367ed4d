"""Bets against a privacy claim: evidence that holds whenever one stops looking.

An event has probability ``favoured`` on one of two neighbouring inputs and ``other`` on its
neighbour. (epsilon, delta)-privacy says favoured <= e^epsilon other + delta. A pair of fresh
outputs, one of each input, is a bet on an alternative (a, b) that breaks this: the likelihood ratio
of the alternative to its *nearest private pair* (a0, b0), the one of least divergence. Its mean is
at most 1 under every private pair, not only under the nearest one (Turner and Grünwald,
arXiv 2203.09785): as a function of the truth the mean is the product of a line that rises with
``favoured`` and one that falls with ``other``, so along the boundary it is a concave parabola,
whose top is where the divergence is least.

So the wealth of somebody who bets on outputs not yet seen, on any event and alternative chosen from
those seen before, reaches 1/error with probability at most ``error``, at any time and whatever the
mechanism (Ville's inequality). Nothing is corrected for, because nothing is looked at twice.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate

__all__ = ["ceiling", "chance_to_win", "growth", "log_wealth", "nearest_private", "wilson_limits"]

Array = NDArray[np.float64]

# Halvings of the bracket: to the last bit, wherever it lies.
_HALVINGS = 60
# Alternatives are bet on as if this many standard errors less extreme: who chose the best of many
# events overrates it, and who overrates a bet loses by it.
_CAUTION = 0.7


def nearest_private(
    favoured: ArrayLike, other: ArrayLike, epsilon: ArrayLike, delta: float
) -> tuple[Array, Array]:
    """The private pair of probabilities nearest to a pair that is not.

    Args:
        favoured: Probabilities in (0, 1); broadcasts with the others.
        other: Probabilities in (0, 1).
        epsilon: Epsilons, 0 or above.
        delta: Delta, in [0, 1).

    Returns:
        The pair that minimises the sum of the two Bernoulli divergences; the pair itself where it
        is private.

    Examples:
        >>> near = nearest_private(0.9, 0.1, 1.0, 0.0)
        >>> [round(float(value), 4) for value in near]
        [0.8545, 0.3144]
    """
    a, b, level = np.broadcast_arrays(
        np.asarray(favoured, np.float64),
        np.asarray(other, np.float64),
        np.asarray(epsilon, np.float64),
    )
    broken = a > np.exp(level) * b + delta
    near_a, near_b = a.copy(), b.copy()
    a, b, ratio = a[broken], b[broken], np.exp(level[broken])
    low, high = b, (a - delta) / ratio
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        edge = ratio * middle + delta
        # The divergence falls while this is so.
        falling = ratio * (a - edge) * middle * (1.0 - middle) > (middle - b) * edge * (1.0 - edge)
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    near_b[broken] = 0.5 * (low + high)
    near_a[broken] = ratio * near_b[broken] + delta
    return near_a, near_b


def _log_ratio(hits: Any, trials: Any, claimed: Array, nearest: Array) -> Array:
    """Log-likelihood ratio of one probability to another."""
    return np.asarray(
        hits * np.log(claimed / nearest)
        + (trials - hits) * (np.log1p(-claimed) - np.log1p(-nearest))
    )


def growth(favoured: ArrayLike, other: ArrayLike, epsilon: float, delta: float) -> Array:
    """Expected logarithm of one bet's pay-off were the alternative true; 0 where it is private.

    Args:
        favoured: Probabilities in (0, 1).
        other: Probabilities in (0, 1).
        epsilon: The claim's epsilon, 0 or above.
        delta: The claim's delta, in [0, 1).

    Returns:
        The divergence from the nearest private pair.
    """
    a, b = np.asarray(favoured, np.float64), np.asarray(other, np.float64)
    near_a, near_b = nearest_private(a, b, epsilon, delta)
    return _log_ratio(a, 1.0, a, near_a) + _log_ratio(b, 1.0, b, near_b)


def wilson_limits(successes: ArrayLike, trials: ArrayLike, z: float) -> tuple[Array, Array]:
    """Wilson's lower and upper limit of a probability, ``z`` standard errors away.

    Approximate, and so only ever used to choose what to bet on.
    """
    k, n = np.asarray(successes, np.float64), np.asarray(trials, np.float64)
    centre = (k + 0.5 * z * z) / (n + z * z)
    reach = z * np.sqrt(np.maximum(k * (n - k) / n, 0.0) + 0.25 * z * z) / (n + z * z)
    return np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)


def log_wealth(
    favoured: ArrayLike,
    other: ArrayLike,
    trials: ArrayLike,
    known_favoured: ArrayLike,
    known_other: ArrayLike,
    known_trials: ArrayLike,
    *,
    epsilon: ArrayLike,
    delta: float,
) -> Array:
    """Logarithm of the wealth after each block of bets, for each epsilon tested.

    Args:
        favoured: Hits of the block's event among fresh outputs of the favoured input.
        other: Hits among as many fresh outputs of the other input.
        trials: Fresh outputs of each input in the block.
        known_favoured: Hits of the same event among outputs seen before the block.
        known_other: Likewise of the other input.
        known_trials: Outputs of each input seen before the block.
        epsilon: Epsilons to test, a vector.
        delta: The delta they go with, in [0, 1).

    Returns:
        One row an epsilon, one column a block.

    Guarantee:
        If the mechanism is (epsilon, delta)-private, the largest entry of its row reaches
        ln(1/error) with probability at most ``error``.
    """
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    levels = np.asarray(epsilon, np.float64)[:, None]
    known = (known_favoured, known_other, known_trials)
    return np.asarray(np.cumsum(_gains(favoured, other, trials, *known, levels, delta), axis=-1))


def _gains(
    favoured: ArrayLike,
    other: ArrayLike,
    trials: ArrayLike,
    known_favoured: ArrayLike,
    known_other: ArrayLike,
    known_trials: ArrayLike,
    epsilon: ArrayLike,
    delta: float,
) -> Array:
    """What each block adds to the logarithm of the wealth."""
    seen = np.asarray(known_trials) + 1.0
    a, _ = wilson_limits(np.asarray(known_favoured) + 0.5, seen, _CAUTION)
    _, b = wilson_limits(np.asarray(known_other) + 0.5, seen, _CAUTION)
    near_a, near_b = nearest_private(a, b, epsilon, delta)
    hits, misses, n = (np.asarray(item, np.float64) for item in (favoured, other, trials))
    return _log_ratio(hits, n, a, near_a) + _log_ratio(misses, n, b, near_b)


def ceiling(trials: int, *, delta: float, error: float) -> float:
    """The largest epsilon that this many bets could contradict: all hits here, none there.

    Examples:
        >>> round(ceiling(10_000, delta=0.0, error=0.001), 2)
        7.28
    """
    _validate.integer(1, trials=trials)
    return math.log((1.0 - delta) / -math.expm1(math.log(error) / trials))


def chance_to_win(
    favoured: float,
    other: float,
    *,
    known: int,
    blocks: ArrayLike,
    epsilon: float,
    delta: float,
    error: float,
    draws: int = 400,
) -> float:
    """Probability that bets on one event contradict the claim, at true probabilities.

    Args:
        favoured: True probability of the event on the favoured input.
        other: True probability on the other.
        known: Outputs of each input that were seen before the first bet.
        blocks: Fresh outputs of each input in every block of bets.
        epsilon: The claim's epsilon.
        delta: The claim's delta.
        error: The claim is contradicted when wealth reaches 1/error.
        draws: Simulated audits; the same ones in every call.

    Returns:
        The share of them that contradicted the claim.
    """
    rng = np.random.default_rng(0)
    sizes = np.concatenate(([known], np.asarray(blocks, np.int64)))
    hits = rng.binomial(sizes, favoured, (draws, sizes.size))
    misses = rng.binomial(sizes, other, (draws, sizes.size))
    hits_before, misses_before, before = (
        np.cumsum(item, axis=-1)[..., :-1] for item in (hits, misses, sizes)
    )
    fresh = (hits[:, 1:], misses[:, 1:], sizes[1:])
    gains = _gains(*fresh, hits_before, misses_before, before, epsilon, delta)
    most = np.cumsum(gains, axis=1).max(axis=1)
    return float(np.mean(most >= -math.log(error)))
