"""Pairs of laws, present and absent, and what becomes of them in a run: from below.

A pair is a list of outcomes with their probability if the canary is present and if it is absent.
Three operations make the law of a whole run from one noisy number:

* `sampled`: it is there with some probability only;
* `composed`: several independent releases, one after the other;
* `anywhere`: it is in exactly one of several releases, nobody knows which.

Each multiplies outcomes out and merges them again into about as many groups as before, by their
likelihood ratio. Merging is post-processing, so the result leaks no more than the truth, whatever
the groups: every epsilon from here is a lower bound. It is also a tight one, since outcomes of a
group have nearly the same ratio. All sums are of positive numbers: nothing cancels. Floating point
ends at an epsilon of about 600; beyond, `ways_epsilon` is nearly exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from askgauss import _validate

__all__ = ["Pair", "ways_epsilon"]

Array = NDArray[np.float64]

# Groups kept after each operation; the loss is of second order in their width.
_GROUPS = 512
# Standard deviations of noise that are resolved; the rest is one group on either side.
_TAIL = 9.0
# Outcomes rarer than this, in either world, do not widen the grid.
_RARE = 1e-22
# No group is rarer than this in either world, so that no ratio is nought or infinite.
_RAREST = 1e-280
# And no log-ratio is larger than this.
_LARGEST = 1000.0
# The grid is even within so many deviations of the loss, and logarithmic beyond.
_EVEN = 3.0
# Where those are is seen from so many groups of each pair; groups are made of so many cells.
_COARSE = 40
_CELLS = 1 << 15
# Rounding errs in delta by less than this for each elementary pair, and this much at least.
_ROUNDING = 1e-15
_LEAST_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Outcomes in ascending order of their likelihood ratio.

    Attributes:
        present: Probability of each outcome if the canary is present.
        absent: Probability of each if it is absent.
        size: How many elementary pairs were put together; says how large rounding can be.
    """

    present: Array
    absent: Array
    size: int = 1

    LARGEST: ClassVar[float] = 35.0
    """Shifts beyond this are beyond floating point; epsilon grows with the shift, so cap it."""

    @classmethod
    def gaussian(cls, shift: float) -> Pair:
        """N(0, 1) against N(shift, 1).

        Examples:
            >>> round(Pair.gaussian(1.0).epsilon(1e-5), 2)
            4.38
        """
        _validate.within(0.0, cls.LARGEST, closed="both", shift=shift)
        edges = np.linspace(-_TAIL, shift + _TAIL, _GROUPS - 1)
        edges = np.concatenate(([-np.inf], edges, [np.inf]))
        return cls(*_guarded(_masses(edges - shift), _masses(edges)))

    @classmethod
    def highest(cls, shift: float, places: int) -> Pair:
        """The largest of ``places`` draws of N(0, 1), one of which is N(shift, 1) if present.

        Less than `anywhere` tells, and nearly as much where the shift is large; a closed form.
        """
        _validate.within(0.0, cls.LARGEST, closed="both", shift=shift)
        edges = np.concatenate(([-np.inf], np.linspace(-_TAIL, shift + _TAIL, 4096), [np.inf]))
        others = (places - 1) * log_ndtr(edges) if places > 1 else np.zeros(edges.size)
        with np.errstate(invalid="ignore"):
            masses = (_steps(others + log_ndtr(edges - each)) for each in (shift, 0.0))
        return cls(*_guarded(*masses), places)

    @classmethod
    def counted(cls, shift: float, weights: Array) -> Pair:
        """N(0, 1) against the mixture of N(k shift, 1) with ``weights[k]``.

        Examples:
            >>> round(Pair.counted(1.0, np.array([0.0, 1.0])).epsilon(1e-5), 3)
            4.377
        """
        _validate.within(0.0, cls.LARGEST, closed="both", shift=shift)
        counts = np.flatnonzero(weights)
        # Leaving out what is beyond floating point takes mass from the mixture.
        counts = counts[counts * shift <= cls.LARGEST]
        edges = np.linspace(-_TAIL, float(counts[-1:].sum()) * shift + _TAIL, 4096)
        edges = np.concatenate(([-np.inf], edges, [np.inf]))
        absent = _masses(edges)
        present = sum((weights[k] * _masses(edges - k * shift) for k in counts), 0.0 * absent)
        return cls(*_guarded(present, absent))

    @classmethod
    def certain(cls) -> Pair:
        """No difference at all: the neutral element."""
        return cls(np.ones(1), np.ones(1), 0)

    def sampled(self, rate: float) -> Pair:
        """The canary takes part with this probability."""
        _validate.within(0.0, 1.0, closed="both", rate=rate)
        return Pair((1.0 - rate) * self.absent + rate * self.present, self.absent, self.size)

    def then(self, other: Pair) -> Pair:
        """Both releases, independent of each other."""

        def both(first: Pair, second: Pair) -> tuple[Array, Array]:
            present = np.multiply.outer(first.present, second.present)
            return present, np.multiply.outer(first.absent, second.absent)

        return _merged(both, self, other)

    def either(self, other: Pair, share: float) -> Pair:
        """The canary is in this release with probability ``share``, else in the other one."""

        def one(first: Pair, second: Pair) -> tuple[Array, Array]:
            present = np.multiply.outer(first.present, share * second.absent)
            present += np.multiply.outer(first.absent, (1.0 - share) * second.present)
            return present, np.multiply.outer(first.absent, second.absent)

        return _merged(one, self, other)

    def composed(self, times: int) -> Pair:
        """So many independent releases."""
        _validate.integer(0, times=times)
        return _power(self, times, lambda first, second, _share: first.then(second))

    def anywhere(self, places: int) -> Pair:
        """So many releases, the canary in exactly one of them, each as likely."""
        _validate.integer(0, places=places)
        return _power(self, places, lambda first, second, share: first.either(second, share))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at which the pair leaves ``delta``, larger direction, from below.

        At every cut between outcomes, mass beyond it in one world is at most e^epsilon times that
        in the other, plus delta.
        """
        _validate.probability(delta=delta)
        delta = delta + max(_LEAST_ROUNDING, _ROUNDING * self.size)
        above = [np.cumsum(masses[::-1]) for masses in (self.present, self.absent)]
        below = [np.cumsum(masses) for masses in (self.absent, self.present)]
        epsilon = 0.0
        for likely, unlikely in (above, below):
            told = likely > delta
            bounds = np.log((likely[told] - delta) / unlikely[told])
            epsilon = max(epsilon, float(bounds.max(initial=0.0)))
        return epsilon


def ways_epsilon(distance: float, log_ways: float, delta: float) -> float:
    """Epsilon of a canary that adds one of many vectors to unit noise, for large ones: from below.

    The test asks whether the noise is far out along any of the vectors. If the canary is absent,
    that is at most as likely as the sum over all of them.

    Args:
        distance: Norm of every vector.
        log_ways: Logarithm of their number; each is as likely.
        delta: Delta, in (0, 1).
    """
    quantiles = np.linspace(-6.0, 6.0, 49)
    found = ndtr(quantiles)
    told = found > delta
    bounds = np.log(found[told] - delta) - log_ways - log_ndtr(quantiles[told] - distance)
    return float(bounds.max(initial=0.0))


def _masses(edges: Array) -> Array:
    """Standard normal mass between neighbouring edges, exact in both tails."""
    low, high = edges[:-1], edges[1:]
    low, high = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
    log_high = log_ndtr(high)
    return np.asarray(np.exp(log_high) * -np.expm1(log_ndtr(low) - log_high))


def _steps(log_distribution: Array) -> Array:
    """Masses between the points of a distribution function, exact in both tails."""
    low, high = log_distribution[:-1], log_distribution[1:]
    rise = np.exp(high) * -np.expm1(np.minimum(low - high, 0.0))
    return np.asarray(np.nan_to_num(rise, nan=0.0), np.float64)


def _power(pair: Pair, times: int, put: Callable[[Pair, Pair, float], Pair]) -> Pair:
    """Put a pair together with itself by repeated doubling."""
    result, count, power = Pair.certain(), 0, 1
    while times:
        if times & 1:
            result = pair if count == 0 else put(result, pair, count / (count + power))
            count += power
        times >>= 1
        if times:
            pair, power = put(pair, pair, 0.5), 2 * power
    return result


def _guarded(present: Array, absent: Array) -> tuple[Array, Array]:
    """Merge outermost groups that are too rare in a world to have a ratio."""
    rare = np.minimum(np.cumsum(present), np.cumsum(absent)) < _RAREST
    first = min(int(np.count_nonzero(rare)), present.size - 1)
    rare = np.minimum(np.cumsum(present[::-1]), np.cumsum(absent[::-1])) < _RAREST
    last = max(present.size - int(np.count_nonzero(rare)), first + 1)
    starts = np.concatenate(([0], np.arange(first + 1, last)))
    # Groups in the middle that hold nothing in one world hold next to nothing in the other.
    present, absent = np.add.reduceat(present, starts), np.add.reduceat(absent, starts)
    kept = (present > 0.0) & (absent > 0.0)
    return present[kept], absent[kept]


def _merged(joint: Callable[[Pair, Pair], tuple[Array, Array]], first: Pair, second: Pair) -> Pair:
    """Joint outcomes of two pairs, gathered into groups by their likelihood ratio."""
    low, width, group = _grid(*joint(_coarse(first), _coarse(second)))
    present, absent = (masses.ravel() for masses in joint(first, second))
    place = (_losses(present, absent) - low) * (1.0 / width)
    index = group[np.clip(place, 0.0, group.size - 1.0).astype(np.intp)]
    gathered = (
        np.asarray(np.bincount(index, masses, _GROUPS), np.float64) for masses in (present, absent)
    )
    return Pair(*_guarded(*gathered), first.size + second.size)


def _losses(present: Array, absent: Array) -> Array:
    """Log-likelihood ratio of each outcome.

    Products may underflow to nought over nought: such outcomes hold nothing and may go anywhere.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        losses = np.log(present / absent)
    np.nan_to_num(losses, copy=False, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    return np.asarray(losses)


def _coarse(pair: Pair) -> Pair:
    """The same pair in few groups, to see where its losses lie."""
    starts = np.unique(np.linspace(0, pair.present.size - 1, _COARSE).astype(np.intp))
    return Pair(np.add.reduceat(pair.present, starts), np.add.reduceat(pair.absent, starts))


def _grid(present: Array, absent: Array) -> tuple[float, float, NDArray[np.intp]]:
    """Even cells of loss, and which group each belongs to.

    Groups are narrow where the losses of either world are usual, and ever wider further out.

    Returns:
        The loss at which the cells begin, their width, and the group of each.
    """
    losses = _losses(present, absent).ravel()
    usual = (np.maximum(present, absent) > _RARE).ravel()
    losses, weights = losses[usual], (present + absent).ravel()[usual]
    center = float(np.average(losses, weights=weights))
    spread = math.sqrt(float(np.average((losses - center) ** 2, weights=weights)))
    low, high = float(losses.min()), float(losses.max())
    width = max((high - low) / _CELLS, 1e-300)
    cells = low + width * np.arange(_CELLS)
    place = np.arcsinh((cells - center) / max(_EVEN * spread, width))
    place = (place - place[0]) / max(place[-1] - place[0], 1e-300)
    return low, width, (place * (_GROUPS - 1)).astype(np.intp)
