"""Exact tests of draws that come one step after the other, each with a law given the past.

Two tools, both valid whatever the past decides about the next step:

* `SamplerBets`: how many of the records drawn in a step belong to a set fixed before the step. A
  gambler bets that the set is drawn more often, or less often, than it should be; under the null
  his wealth has mean 1 at most, so that 1 / wealth is a p-value, at any time (Ville).
* `uniform_draws` turn whole numbers with known laws into independent uniform ones, of which spread,
  mean and extremes have textbook laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, logsumexp, ndtr, ndtri

from askgauss.selection import digest, stream

__all__ = [
    "SamplerBets",
    "extreme_p_value",
    "mean_p_value",
    "spread_p_value",
    "trend_p_value",
    "two_sided",
    "uniform_draws",
]

Array = NDArray[np.float64]

# Odds of being drawn, in units of what they should be, that are bet on.
_LOG_ODDS = np.array([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
_LOG_FACTORS = np.concatenate((-_LOG_ODDS[::-1], _LOG_ODDS))
_FACTORS = np.exp(_LOG_FACTORS)


@dataclass(slots=True)
class SamplerBets:
    """Wealth of bets on several sets, each on several factors.

    Attributes:
        log_wealth: One row a set, one column a factor.
        met: How many records of each set were drawn.
        expected: How many should have been.
    """

    sets: int
    log_wealth: Array = field(init=False)
    met: Array = field(init=False)
    expected: Array = field(init=False)

    def __post_init__(self) -> None:
        self.log_wealth = np.zeros((self.sets, _FACTORS.size))
        self.met, self.expected = np.zeros(self.sets), np.zeros(self.sets)

    def add_draw(self, met: Array, inside: Array, pool: float, drawn: float) -> None:
        """A step drew ``drawn`` of ``pool`` records, any as likely as any other.

        The number met is hypergeometric. The moments of that law are at most those of either
        binomial law with its mean (Hoeffding), which have closed forms.

        Args:
            met: How many of those drawn belong to each set.
            inside: How many of the pool do.
            pool: Records that could be drawn.
            drawn: Records that were.
        """
        if pool == 0.0 or drawn == 0.0:
            return
        gains = np.subtract(_FACTORS, 1.0)
        share, rate = inside[:, np.newaxis] / pool, drawn / pool
        cost = np.minimum(
            drawn * np.log1p(share * gains), inside[:, np.newaxis] * np.log1p(rate * gains)
        )
        self._add(met, inside * rate, cost)

    def add_coins(self, met: float, tossed: float, rate: float) -> None:
        """Each of ``tossed`` records joined by an independent coin; for a single set."""
        cost = tossed * np.log1p(rate * (_FACTORS - 1.0))
        self._add(np.array([met]), np.array([tossed * rate]), cost[np.newaxis])

    def _add(self, met: Array, expected: Array, cost: Array) -> None:
        self.log_wealth += met[:, np.newaxis] * _LOG_FACTORS - cost
        self.met += met
        self.expected += expected

    def p_value(self) -> float:
        """Of all bets together: their average is a fair game too."""
        log_mean = float(logsumexp(self.log_wealth)) - math.log(self.log_wealth.size)
        return math.exp(-max(log_mean, 0.0))

    def strongest(self) -> int:
        """The set that most was won on."""
        return int(np.argmax(logsumexp(self.log_wealth, axis=1)))


def uniform_draws(values: NDArray[np.int64], below: Array, upto: Array) -> Array:
    """Uniform numbers from whole ones with P[less] = ``below`` and P[at most] = ``upto``.

    Where a law is coarse, chance fills in. Its seed comes from the numbers themselves, so that the
    same run always gets the same answer and no run gets one that was chosen for it.
    """
    chance = stream(None, "uniform draws", digest(values.astype(np.float64))).random(values.size)
    return np.clip(below + chance * (upto - below), 1e-300, 1.0 - 1e-16)


def two_sided(lower: float, upper: float) -> float:
    """The p-value of the more surprising side."""
    return min(1.0, 2.0 * min(lower, upper))


def spread_p_value(uniform: Array) -> float:
    """Whether they vary more, or less, than they should: squared normal quantiles."""
    squares = float((ndtri(uniform) ** 2).sum())
    return two_sided(float(chdtr(uniform.size, squares)), float(chdtrc(uniform.size, squares)))


def mean_p_value(uniform: Array) -> float:
    """Whether they are higher, or lower, than they should be."""
    total = float(ndtri(uniform).sum()) / math.sqrt(uniform.size)
    return two_sided(float(ndtr(total)), float(ndtr(-total)))


def trend_p_value(uniform: Array) -> float:
    """Whether they are higher in one half than in the other."""
    signs = np.where(np.arange(uniform.size) < uniform.size // 2, 1.0, -1.0)
    total = float(signs @ ndtri(uniform)) / math.sqrt(uniform.size)
    return two_sided(float(ndtr(total)), float(ndtr(-total)))


def extreme_p_value(uniform: Array) -> float:
    """Whether the largest is larger, or smaller, than it should be."""
    log_below = uniform.size * math.log(float(uniform.max()))
    return two_sided(math.exp(log_below), -math.expm1(log_below))
