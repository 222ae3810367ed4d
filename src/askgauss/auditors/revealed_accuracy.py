"""How often the most confident guesses are right, as a few canaries that told their coins say."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

__all__ = ["told_accuracies"]

Array = NDArray[np.float64]

# Channels that are weighed: two Gaussians so far apart, whose log odds go no further than a limit.
# Without one they are Gaussian; with one, like Laplace noise or randomised response.
_SHIFTS = np.geomspace(0.1, 8.0, 24)
_LIMITS = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, np.inf])
_POINTS = np.linspace(-1.0, 1.0, 401)
_REACH = 7.0
# Ranks that are told apart.
_CELLS = 256


def told_accuracies(told: NDArray[np.bool_], fraction: Array, two_sided: bool) -> Array:
    """The accuracy to expect of each share of guesses.

    Few canaries tell a channel better than the accuracy of every share: channels are averaged by
    how well each explains the coins.

    Args:
        told: Who is present, of some canaries sorted by score.
        fraction: Shares of canaries that are guessed.
        two_sided: Whether the lowest scores are guessed absent, as many as the highest present.
    """
    cells = min(told.size, _CELLS)
    place = np.arange(told.size) * cells // told.size
    present = np.bincount(place[told], minlength=cells)
    absent = np.bincount(place[~told], minlength=cells)
    log_present, log_absent = _logarithms(cells)
    likelihood = log_present @ present + log_absent @ absent
    weight = np.exp(likelihood - likelihood.max())
    weight /= weight.sum()
    tail = 0.5 * fraction if two_sided else fraction
    beyond, right = _channels()
    total = np.zeros(tail.shape)
    for share, of_limits, weights in zip(beyond, right, weight, strict=True):
        total += np.interp(tail, share, weights @ of_limits)
    return np.asarray(np.clip(total / tail, 0.0, 1.0))


def _odds() -> tuple[Array, Array]:
    """By shift, from the highest score down: canaries beyond; and by limit, odds of presence."""
    half = 0.5 * _SHIFTS[:, None]
    score = -_POINTS * (half + _REACH)
    beyond = 0.5 * (ndtr(half - score) + ndtr(-half - score))
    limit = _LIMITS[:, None]
    return beyond, np.clip((_SHIFTS[:, None] * score)[:, None, :], -limit, limit)


@functools.cache
def _channels() -> tuple[Array, Array]:
    """By shift the share of canaries beyond each score; and by limit, that of present ones."""
    beyond, odds = _odds()
    middle = expit(0.5 * (odds[:, :, 1:] + odds[:, :, :-1]))
    right = np.cumsum(middle * np.diff(beyond)[:, None, :], axis=-1)
    return beyond, np.pad(right, ((0, 0), (0, 0), (1, 0)))


@functools.lru_cache(maxsize=16)
def _logarithms(cells: int) -> tuple[Array, Array]:
    """Log probabilities of presence and absence at so many ranks, upwards, by shift and limit."""
    beyond, odds = _odds()
    rank = 1.0 - (np.arange(cells) + 0.5) / cells
    found = np.array(
        [[np.interp(rank, x, y) for y in limits] for x, limits in zip(beyond, odds, strict=True)]
    )
    return -np.logaddexp(0.0, -found), -np.logaddexp(0.0, found)
