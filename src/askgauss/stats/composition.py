"""Runs composed from below: on a grid of losses by Fourier transform, or outcome by outcome.

**On a grid.** What is merged can be computed from what was there, so that it leaks no more; sums
over a run are then powers in Fourier space. `askgauss.accounting` says what the numbers are good
for.

**Pairs of distributions.** A pair is a list of outcomes with their probability if the canary is
present and if it is absent. Three operations make the law of a whole run from one noisy number:

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

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, log_ndtr, ndtr

from askgauss import _validate

__all__ = [
    "LARGEST_FFT",
    "OUTSIDE",
    "WIDEST",
    "Pair",
    "convolve",
    "gather",
    "hockey_stick_epsilon",
    "loss_deviation",
    "loss_range",
    "merged_replaced_step",
    "merged_step",
    "replaced_deviation",
    "replaced_range",
    "rounding_error",
    "self_convolve",
    "threshold_epsilon",
    "ways_epsilon",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# No grid gets coarser than this while it fits: in wider cells averages of e^loss say too little.
WIDEST = 0.1
# Mass that may fall outside the window of the Fourier transform.
OUTSIDE = 1e-15
# The longest grid of a run; and points of a step's on either side of no loss before it thins out.
LARGEST_FFT, _DENSE = 1 << 21, 1000
# Standard deviations of noise that are resolved; the rest is one cell on either side.
_TAIL = 9.0
# Counts of steps that are tried one by one.
_MOST_COUNTS = 100_000


def rounding_error(steps: int) -> float:
    """Bound on the rounding error in delta of a distribution raised to a power by Fourier.

    In extended precision the sum of all errors came to 3e-16 a step or less.
    """
    return 1e-15 * (steps + 1000)


def _log_odds_loss(log_odds: Array, sampling_rate: float) -> Array:
    """log(1 - q + q e^x): the privacy loss of a step in which the Gaussians alone have loss x."""
    q = sampling_rate
    with np.errstate(divide="ignore"):
        far = np.logaddexp(np.log1p(-q), math.log(q) + log_odds)
    return np.where(log_odds < 1.0, np.log1p(q * np.expm1(np.minimum(log_odds, 1.0))), far)


def _loss_log_odds(loss: Array, sampling_rate: float) -> Array:
    """The inverse of `_log_odds_loss`."""
    q = sampling_rate
    far = loss - math.log(q) + np.log1p((q - 1.0) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss < 1.0, np.log1p(np.expm1(np.minimum(loss, 1.0)) / q), far)


def loss_range(signal: float, sampling_rate: float) -> Array:
    """Smallest and largest privacy loss of a step, but for the outermost noise."""
    ends = signal * np.array([-_TAIL - signal / 2.0, _TAIL + signal / 2.0])
    return _log_odds_loss(ends, sampling_rate)


def loss_deviation(signal: float, sampling_rate: float) -> float:
    """Standard deviation of the privacy loss of a step under "present"."""
    noise = np.linspace(-_TAIL, _TAIL, 1201)
    weight = np.exp(-0.5 * noise * noise)
    weights = np.concatenate(((1.0 - sampling_rate) * weight, sampling_rate * weight))
    shifts = np.concatenate((noise - signal / 2.0, noise + signal / 2.0))
    losses = _log_odds_loss(signal * shifts, sampling_rate)
    mean = np.average(losses, weights=weights)
    return math.sqrt(np.average((losses - mean) ** 2, weights=weights))


def _log_mass(edges: Array) -> Array:
    """Log of the standard normal mass between neighbouring edges, exact in both tails."""
    low, high = edges[:-1], edges[1:]
    low, high = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
    log_high = log_ndtr(high)
    return np.asarray(log_high + np.log(-np.expm1(log_ndtr(low) - log_high)))


def merged_step(
    signal: float, sampling_rate: float, interval: float, dense: int = _DENSE
) -> tuple[float, Integers, Array]:
    """Merge the outcomes of a step into groups with likelihood ratios on a grid.

    Cells of outcomes between grid points are gathered upwards, the last one in part, until their
    joint ratio is exactly the next grid point. Any such merging is post-processing, so the merged
    step leaks no more than the true one; and as it keeps each group's ratio there is no drift,
    only the little that the spread within a group would have told.

    Args:
        signal: Contribution of a record over the noise deviation.
        sampling_rate: Probability that it joins a batch.
        interval: Spacing of the grid.
        dense: Points on either side of no loss before the grid thins out: fewer are quicker.

    Returns:
        The lowest log likelihood ratio; how many intervals above it each group is; and the
        probability of each group if the canary is present.
    """
    q = sampling_rate

    def losses(edges: Array) -> tuple[Array, Array]:
        absent, planted = _log_mass(edges), _log_mass(edges - signal)
        mass = (1.0 - q) * np.exp(absent) + q * np.exp(planted)
        return _log_odds_loss(planted - absent, q), mass

    def edge(loss: Array) -> Array:
        return np.asarray(_loss_log_odds(loss, q) / signal + signal / 2.0)

    low, high = loss_range(signal, q).tolist()
    return _merged(losses, edge, low, high, interval, dense)


def _merged(
    losses: Callable[[Array], tuple[Array, Array]],
    edge: Callable[[Array], Array],
    low: float,
    high: float,
    interval: float,
    dense: int = _DENSE,
) -> tuple[float, Integers, Array]:
    """Merge a step whose loss grows with its outcome.

    Args:
        losses: Log likelihood ratio of each cell between neighbouring edges, and its probability if
            the canary is present.
        edge: The outcome at which a single outcome has this loss.
        low: The smallest loss, but for the outermost noise.
        high: The largest.
        interval: Spacing of the grid of losses.
        dense: Points on either side of no loss before it thins out.
    """
    # The lowest cell is a group of its own. With much signal it holds nearly every outcome in
    # which the record was not sampled, and the grid starts at exactly its ratio.
    first = edge(np.array([low + 0.5 * interval]))
    origin = float(losses(np.concatenate(([-np.inf], first)))[0][0])
    index = _grid(origin, high, interval, dense)
    index = index[(index == 0) | (origin + interval * index > low + 0.75 * interval)]
    targets = origin + interval * index
    edges = np.concatenate(([-np.inf], first, edge(targets[1:]), [np.inf]))
    cell_loss, cell_mass = (values.tolist() for values in losses(edges))
    groups, masses, rest = gather(targets.tolist(), cell_loss, cell_mass)
    masses[-1] += rest  # what is left over at the very top counts as the group below it
    return origin, index[groups], np.array(masses)


def replaced_loss(outcome: Array, signal: float, sampling_rate: float) -> Array:
    """Privacy loss of a step whose sampled record is exchanged for its opposite; grows with it."""
    outcome, half = np.asarray(outcome), 0.5 * signal**2
    return _log_odds_loss(signal * outcome - half, sampling_rate) - _log_odds_loss(
        -signal * outcome - half, sampling_rate
    )


def replaced_range(signal: float, sampling_rate: float) -> tuple[float, float]:
    """Smallest and largest such loss, but for the outermost noise."""
    low, high = replaced_loss(np.array([-_TAIL, signal + _TAIL]), signal, sampling_rate)
    return float(low), float(high)


def replaced_deviation(signal: float, sampling_rate: float) -> float:
    """Standard deviation of that loss."""
    noise = np.linspace(-_TAIL, _TAIL, 1201)
    weight = np.exp(-0.5 * noise * noise)
    weights = np.concatenate(((1.0 - sampling_rate) * weight, sampling_rate * weight))
    losses = replaced_loss(np.concatenate((noise, noise + signal)), signal, sampling_rate)
    mean = np.average(losses, weights=weights)
    return math.sqrt(np.average((losses - mean) ** 2, weights=weights))


def merged_replaced_step(
    signal: float, sampling_rate: float, interval: float
) -> tuple[float, Integers, Array]:
    """`merged_step` where the neighbour has a record's opposite in its place.

    A step shows ``(1 - q) N(0, 1) + q N(signal, 1)`` of the one and ``(1 - q) N(0, 1) +
    q N(-signal, 1)`` of the other; their ratio grows with the outcome.
    """
    q = sampling_rate

    def losses(edges: Array) -> tuple[Array, Array]:
        out, planted, opposite = (_log_mass(edges - mean) for mean in (0.0, signal, -signal))
        mass = (1.0 - q) * np.exp(out) + q * np.exp(planted)
        return _log_odds_loss(planted - out, q) - _log_odds_loss(opposite - out, q), mass

    def edge(loss: Array) -> Array:
        reach = signal + 4.0 * _TAIL
        low, high = np.full(loss.shape, -reach), np.full(loss.shape, reach)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = replaced_loss(middle, signal, q) < loss
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(0.5 * (low + high))

    return _merged(losses, edge, *replaced_range(signal, q), interval)


def _grid(origin: float, high: float, interval: float, dense: int) -> Integers:
    """Grid points to use: dense around no loss, then ever sparser, up to a spacing of WIDEST."""
    count = max(1, math.ceil((high - origin) / interval))
    center = min(max(0, round(-origin / interval)), count)
    # A spacing beyond the whole grid is never reached, and need not fit into an integer.
    sparsest = max(1, int(min(WIDEST / interval, count + 1)))

    def outwards(limit: int) -> Integers:
        growth = np.exp(np.arange(1, math.ceil(dense * math.log(sparsest)) + 1) / dense)
        between = (dense * growth).astype(np.int64)
        outer = np.arange(dense * sparsest, limit, sparsest)
        points = np.concatenate((np.arange(dense + 1), between, outer))
        return np.append(np.unique(points[points < limit]), limit)

    return np.concatenate((center - outwards(center)[::-1], center + outwards(count - center)[1:]))


def gather(
    targets: list[float], losses: list[float], masses: list[float]
) -> tuple[list[int], list[float], float]:
    """Gather cells, in order of their loss, into groups with exactly the target losses.

    Cell 0 has the first target for its loss and is the first group; cell i > 0 lies between
    targets i - 1 and i; one more cell lies above all targets.

    Returns:
        The targets reached, the mass "present" of each group, and what is left above the last.
    """
    groups, sums = [0], [masses[0]]
    cell, rest = 1, masses[1]
    mass = weight = 0.0  # gathered so far, and what the target's loss would make of it
    for target in range(1, len(targets)):
        weight *= math.exp(targets[target] - targets[target - 1])
        while True:
            missing = weight - mass
            surplus = -rest * math.expm1(targets[target] - losses[cell])
            if surplus > missing:
                break
            mass += rest
            weight += rest * math.exp(targets[target] - losses[cell])
            cell += 1
            if cell == len(masses):
                return groups, sums, mass
            rest = masses[cell]
        if mass > 0.0:
            part = rest * missing / surplus
            groups.append(target)
            sums.append(mass + part)
            rest -= part
            mass = weight = 0.0
    return groups, sums, mass + rest + sum(masses[cell + 1 :])


def self_convolve(
    index: Integers, mass: Array, steps: int, longest: int = LARGEST_FFT
) -> tuple[int, Array] | None:
    """Distribution of the sum of ``steps`` draws of an integer; see `convolve`."""
    return convolve([(index, mass, steps)], longest)


def convolve(
    parts: list[tuple[Integers, Array, int]], longest: int = LARGEST_FFT
) -> tuple[int, Array] | None:
    """Distribution of the sum of integers, so many draws of each kind.

    Args:
        parts: Of each kind its values, their probabilities and the number of draws.
        longest: Entries there may be.

    Returns:
        The integer of the first entry, and the probabilities from there on; None if they would be
        too many.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    steps = sum(count for _, _, count in parts)
    centred, origin, drift = [], 0, 0.0
    for index, mass, count in parts:
        kept = mass > 1e-18 / steps  # leaving some out lowers the bound, by far less than rounding
        index, mass = index[kept], mass[kept]
        center = round(float(index @ mass))
        centred.append((index - center, mass, count))
        origin += count * center
        drift += count * float((index - center) @ mass)
    mirrored = [(-offsets, mass, count) for offsets, mass, count in centred]
    low = math.floor(drift - _reach(mirrored))
    high = math.ceil(drift + _reach(centred))
    if high - low >= longest:
        return None
    size = next_fast_len(high - low + 1, real=True)
    # Around the mean, the phases that the power multiplies are small where anything is left.
    spectrum: Any = 1.0
    for offsets, mass, count in centred:
        spectrum = spectrum * (
            rfft(np.bincount(offsets % size, weights=mass, minlength=size)) ** count
        )
    return origin + low, np.roll(irfft(spectrum, size), -low)


def _reach(parts: list[tuple[Integers, Array, int]]) -> float:
    """How far the sum may rise above its mean with probability OUTSIDE, by Chernoff's bound."""
    centred = [(offsets - float(offsets @ mass), mass, count) for offsets, mass, count in parts]
    variance = sum(count * float(offsets**2 @ mass) for offsets, mass, count in centred)
    if variance == 0.0:
        return 0.0
    orders = 16.0 * 2.0 ** (-0.5 * np.arange(20)) / math.sqrt(variance)
    log_moments, furthest = np.zeros(orders.size), 0.0
    for offsets, mass, count in centred:
        top = float(offsets.max())
        moments = np.exp(np.outer(orders, offsets - top)) @ mass
        log_moments += count * (orders * top + np.log(moments))
        furthest += count * top
    return min(float(((log_moments - math.log(OUTSIDE)) / orders).min()), furthest)


def hockey_stick_epsilon(
    origin: float, interval: float, mass: Array, delta: float, steps: int
) -> float:
    """Smallest epsilon at which losses ``origin + interval * i`` leave delta, from below."""
    delta = delta + rounding_error(steps)
    skipped = max(0, math.ceil(-origin / interval))  # negative losses
    origin, mass = origin + interval * skipped, mass[skipped:]
    decay = np.exp(-interval * np.arange(mass.size))

    def above(start: int) -> tuple[float, float]:
        """Mass from an entry on, "present" and, times e^loss there, "absent"."""
        tail = mass[start:]
        return float(tail.sum()), float(tail @ decay[: tail.size])

    def excess(start: int) -> float:
        present, absent = above(start)
        return delta - (present - absent)

    start = bisect.bisect_left(range(mass.size), 0.0, key=excess)
    present, absent = above(start)
    if present <= delta:
        return 0.0
    return max(0.0, origin + interval * start + math.log((present - delta) / absent))


def _likely_counts(steps: int, rate: float) -> Integers:
    """All counts of so many steps, or of very many those that come near; any of them will do."""
    if steps <= _MOST_COUNTS:
        return np.arange(1, steps + 1)
    reach = 10.0 * math.sqrt(steps)
    first = max(1, math.floor(steps * rate - reach))
    last = min(steps, math.ceil(steps * rate + reach))
    return np.unique(np.linspace(first, last, min(last - first + 1, _MOST_COUNTS)).astype(np.int64))


def threshold_epsilon(signal: float, sampling_rate: float, steps: int, delta: float) -> float:
    """A cruder bound for very large signals: only count the steps that stand out of the noise.

    "Stands out" is one bit of a step, so the count, a binomial, again leaks no more than the run.
    """
    epsilon = 0.0
    for cut in (signal - 2.0, signal / 2.0):  # a strong statement, and one that hardly ever fails
        log_absent = float(log_ndtr(-cut))
        present = (1.0 - sampling_rate) * math.exp(log_absent)
        present += sampling_rate * float(ndtr(signal - cut))
        yes = math.log(present) - log_absent
        no = math.log1p(-present) - float(log_ndtr(cut))
        counts = _likely_counts(steps, present)
        reached = betainc(counts, steps - counts + 1.0, present)
        likely = reached > delta
        bounds = counts * yes + (steps - counts) * no
        bounds = bounds[likely] + np.log1p(-delta / reached[likely])
        epsilon = max(epsilon, float(np.max(bounds, initial=0.0)))
    return epsilon


# Groups kept after each operation; the loss is of second order in their width.
_GROUPS = 512
# Standard deviations of noise that are resolved; the rest is one group on either side.
_TAIL = 9.0
# Outcomes rarer than this, in either world, do not widen the grid.
_RARE = 1e-22
# No group is rarer than this in either world, so that no ratio is nought or infinite.
_RAREST = 1e-280
# And no log-ratio is larger than this.
_LARGEST_LOSS = 1000.0
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

        return _gathered(both, self, other)

    def either(self, other: Pair, share: float) -> Pair:
        """The canary is in this release with probability ``share``, else in the other one."""

        def one(first: Pair, second: Pair) -> tuple[Array, Array]:
            present = np.multiply.outer(first.present, share * second.absent)
            present += np.multiply.outer(first.absent, (1.0 - share) * second.present)
            return present, np.multiply.outer(first.absent, second.absent)

        return _gathered(one, self, other)

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


def _gathered(
    joint: Callable[[Pair, Pair], tuple[Array, Array]], first: Pair, second: Pair
) -> Pair:
    """Joint outcomes of two pairs, gathered into groups by their likelihood ratio."""
    low, width, group = _loss_cells(*joint(_coarse(first), _coarse(second)))
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
    np.nan_to_num(losses, copy=False, nan=0.0, posinf=_LARGEST_LOSS, neginf=-_LARGEST_LOSS)
    return np.asarray(losses)


def _coarse(pair: Pair) -> Pair:
    """The same pair in few groups, to see where its losses lie."""
    starts = np.unique(np.linspace(0, pair.present.size - 1, _COARSE).astype(np.intp))
    return Pair(np.add.reduceat(pair.present, starts), np.add.reduceat(pair.absent, starts))


def _loss_cells(present: Array, absent: Array) -> tuple[float, float, NDArray[np.intp]]:
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
