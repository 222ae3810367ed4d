r"""Evidence that may be looked at at any time: bets whose wealth has mean at most 1 under the null.

**Events of a mechanism.** An event has probability ``favoured`` on one of two neighbouring inputs
and ``other`` on its neighbour. (epsilon, delta)-privacy says favoured <= e^epsilon other + delta. A
pair of fresh outputs, one of each input, is a bet on an alternative (a, b) that breaks this: the
likelihood ratio of the alternative to its *nearest private pair* (a0, b0), the one of least
divergence. Its mean is at most 1 under every private pair, not only under the nearest one (Turner
and Grünwald, arXiv 2203.09785): as a function of the truth the mean is the product of a line that
rises with ``favoured`` and one that falls with ``other``, so along the boundary it is a concave
parabola, whose top is where the divergence is least.

So the wealth of somebody who bets on outputs not yet seen, on any event and alternative chosen from
those seen before, reaches 1/error with probability at most ``error``, at any time and whatever the
mechanism (Ville's inequality). Nothing is corrected for, because nothing is looked at twice.

**Steps of a run.** A step's *e-value* is a number whose mean is at most 1 under the null
hypothesis, given the steps before. Products of them are e-processes: by Ville's inequality one
reaches 1/error with probability at most error, ever, whoever looks and however often. Here are the
e-values of a step, all as logarithms, and the way they are put together over the steps.

*Noise.* The null is noise of at least the claim. A sum of squares of m Gaussians in units of the
claim has the likelihood ratio r^-m exp(-(1/r^2 - 1) SS/2) of "r times the claim" to the claim. With
r < 1 it falls with SS, and more noise, or anything else that was left in, only makes SS larger.

*Signs.* The null is independent observations, each of which is as likely to be above 0 as as far
below it, or is pushed down from there. With x the observations and a slope s,
``exp(s sum(x) - s^2 sum(x^2) / 2)`` is an e-value: given the sizes, only the signs are open, and
cosh(a) <= exp(a^2 / 2); what is pushed down by m has at most the mean exp(-(a^2 - 1) / 2 - z^2 / 2)
cosh(a z) with a = 1 + m, which is never above 1. Neither a deviation nor a law is plugged in: noise
that is more than claimed, that differs from coordinate to coordinate or from step to step, or that
is not Gaussian, keeps it valid. Two nulls use it, the contribution of a planted canary, which is at
most 1 (x is what is released about it, less 1), and fresh noise (x is the product with the noise of
an earlier step, whose sizes may be scaled as one likes).

*Rate.* The null is a Poisson sampler with a rate of at most q. The ratio for odds f times those of
q rises with the count.

*When it began.* A product from the first step on is all but lost on a fault that begins later. Bets
that begin at step t with a share 1/(t (t + 1)) of the wealth, and the rest kept until then, are an
e-process as well, and its logarithm gives up 2 log t at most.

**Draws of a sampler**, each with a distribution given the past. Two tools, both valid whatever the
past decides about the next step:

* `SamplerBets`: how many of the records drawn in a step belong to a set fixed before the step. A
  gambler bets that the set is drawn more often, or less often, than it should be; under the null
  his wealth has mean 1 at most, so that 1 / wealth is a p-value, at any time (Ville).
* `uniform_draws` turn whole numbers with known laws into independent uniform ones, of which spread,
  mean and extremes have textbook laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtr, chdtrc, logsumexp, ndtr, ndtri

from askgauss import _validate
from askgauss.selection import digest, stream

__all__ = [
    "SamplerBets",
    "advance",
    "ceiling",
    "chance_to_win",
    "extreme_p_value",
    "growth",
    "log_evidence",
    "log_wealth",
    "look_share",
    "mean_p_value",
    "nearest_private",
    "noise_log_e",
    "rate_log_e",
    "sign_log_e",
    "spread_p_value",
    "trend_p_value",
    "two_sided",
    "uniform_draws",
    "wilson_limits",
]

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


_Floats = NDArray[np.float64]


def noise_log_e(freedom: Any, square: Any, ratio: Any) -> _Floats:
    """Log e-value of "the noise is ``ratio`` times the claim" against "at least the claim".

    Args:
        freedom: Degrees of freedom of the sum of squares.
        square: Sum of squares in units of the claimed variance.
        ratio: The alternative, in (0, 1); all arguments broadcast.

    Examples:
        >>> float(noise_log_e(2.0, 0.0, 0.5)) == 2.0 * math.log(2.0)
        True
    """
    r = np.asarray(ratio, dtype=np.float64)
    return np.asarray(freedom * -np.log(r) - 0.5 * np.asarray(square) * (1.0 / (r * r) - 1.0))


def sign_log_e(total: Any, square: Any, slope: Any) -> _Floats:
    """Log e-value of "observations lean towards the slope's side" against "no more than away".

    Args:
        total: Sum of the observations.
        square: Sum of their squares.
        slope: How much is bet; negative for the other side. Where observations have mean m and
            mean square v, m / v wins most. All arguments broadcast.

    Examples:
        >>> float(sign_log_e(10.0, 10.0, 1.0))
        5.0
    """
    s = np.asarray(slope, dtype=np.float64)
    return np.asarray(s * total - 0.5 * np.asarray(square) * s * s)


def rate_log_e(count: Any, opportunities: Any, rate: float, odds: Any) -> _Floats:
    """Log e-value of "``odds`` times those of the rate" against "at most the rate".

    Args:
        count: How many were sampled.
        opportunities: Of how many.
        rate: Claimed sampling rate, in (0, 1).
        odds: The alternative, above 1; all arguments broadcast.
    """
    f = np.asarray(odds, dtype=np.float64)
    return np.asarray(count * np.log(f) - np.asarray(opportunities) * np.log1p(rate * (f - 1.0)))


def advance(log_wealth: _Floats, log_weight: _Floats, step: int, log_e: _Floats) -> _Floats:
    """Wealth of each bet after a step: new money comes in, then all of it is at stake.

    Args:
        log_wealth: Log wealth of the bets before the step; minus infinity before the first.
        log_weight: Log of each bet's weight; the weights add up to 1.
        step: The step's number, from 1.
        log_e: The step's log e-value for each bet.
    """
    inflow = log_weight - math.log(step * (step + 1.0))
    return np.asarray(np.logaddexp(log_wealth, inflow) + log_e)


def log_evidence(log_wealth: _Floats, step: int, weight: float = 1.0) -> float:
    """Log of the e-process: the wealth of all bets, and the money still kept back.

    Args:
        log_wealth: Log wealth of each bet after ``step`` steps.
        step: Steps so far.
        weight: What the weights of these bets add up to.
    """
    kept = -math.log(step + 1.0)
    return float(np.logaddexp(np.logaddexp.reduce(log_wealth) - math.log(weight), kept))


def look_share(look: int) -> float:
    """Share of the error that look number 1, 2, 3, ... of endlessly many may spend.

    Examples:
        >>> sum(look_share(look) for look in range(1, 100_000)) < 1.0
        True
    """
    return 6.0 / (math.pi * look) ** 2


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
