"""Noise that is used again anywhere: all noise of a run, sampled by its content.

A value of a certain size is kept wherever it occurs, with the four values on either side of it. If
noise is used again, at other coordinates, in another tensor or step, reversed or negated, the same
values are kept again, with the same neighbours. Independent noise has nine values in common with
other noise about once in 2^62 pairs. As the run grows the interval of sizes is halved, so that
memory stays bounded and what was kept before stays comparable with what is kept later.

Noise whose values alone come back, in another order or from a table, has more pairs of equal values
than pairs of nearly equal ones: among all pairs, or among those that are so many steps apart. Or
the same two places have equal values again and again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, pdtrc

from askgauss.exceptions import FileFormatError
from askgauss.files.codec import Facts, number

__all__ = ["CENTRE", "WIDTH", "NoiseRowFacts", "NoiseSample", "ReuseFacts", "RowNoise"]

# By chance, windows match less than once in 1,000 runs of 10^9 values; three of them never do.
_MATCHES = 3
# Of noise that is used again at the same coordinates, hardly any is found at others.
_ELSEWHERE = 0.05
# Deviations of the number of equal pairs from its mean.
_FAR = 7.0
# The share of equal pairs among those that are nearly equal at least.
_SHARE = 1.0 / 16.0
# Deviations of the number of equal pairs by chance that a table is nearly always found by.
_FOUND = 14.0
# Chance of equal pairs that are so many steps apart.
_NEVER = 1e-11
# On a grid numbers of pairs differ at other distances as well.
_STANDS_OUT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseFacts(Facts):
    """What came of comparing all noise of a run with itself, by a sample of its values.

    Attributes:
        values: Noise values that the sample was taken from.
        kept: Values that were kept.
        share: The share of a step's noise that was looked at.
        coarse: Whether the noise lies on so coarse a grid that equal values say nothing.
        matches: Values that occur again with the same eight neighbours.
        moved: Those of them that occur again at another coordinate.
        first: Step, tensor and position of the first of them; empty if there is none.
        again: Where it occurs again.
        equal: Pairs of equal values.
        nearly: Pairs of nearly equal values: 15 times as many where values are independent.
        uneven: How far the number of pairs at any other distance is from their mean.
        lag: Steps between values, of the pairs that most more of are equal than by chance.
        lag_equal: Pairs of equal values that are so many steps apart.
        lag_nearly: Pairs of nearly equal ones.
        lag_uneven: As `uneven`, of those.
        lag_chance: The chance of so many equal ones at any number of steps.
        places_lag: Steps between values, of the two places that have equal values most often.
        places_equal: How often they do.
        places_chance: The chance that any two places do.
    """

    values: int = 0
    kept: int = 0
    share: float = number(0.0, high=1.0)
    coarse: bool = False
    matches: int = 0
    moved: int = 0
    first: tuple[()] | tuple[int, int, int] = ()
    again: tuple[()] | tuple[int, int, int] = ()
    equal: int = 0
    nearly: int = 0
    uneven: float = 0.0
    lag: int = 0
    lag_equal: int = 0
    lag_nearly: int = 0
    lag_uneven: float = 0.0
    lag_chance: float = number(1.0, high=1.0)
    places_lag: int = 0
    places_equal: int = 0
    places_chance: float = number(1.0, high=1.0)

    @property
    def excess(self) -> float:
        """Deviations by which there are more equal pairs than independent values have."""
        pairs = self.equal + self.nearly
        if pairs == 0:
            return 0.0
        spread = math.sqrt(pairs * _SHARE * (1.0 - _SHARE) + 1.0)
        return (self.equal - _SHARE * pairs) / spread

    @property
    def in_runs(self) -> bool:
        """Whether windows of noise were used again."""
        return self.matches >= _MATCHES and bool(self.first and self.again)

    @property
    def elsewhere(self) -> bool:
        """Whether they were used again at other coordinates."""
        return self.moved > _ELSEWHERE * self.matches

    @property
    def by_value(self) -> bool:
        """Whether values were used again in another order."""
        more = self.equal - _SHARE / (1.0 - _SHARE) * self.nearly
        among_all = self.excess > _FAR and more > _STANDS_OUT * self.uneven
        return not self.in_runs and (among_all or self.by_lag or self.by_place)

    @property
    def by_lag(self) -> bool:
        """Whether values of one step were used again so many steps later."""
        more = self.lag_equal - _SHARE / (1.0 - _SHARE) * self.lag_nearly
        return self.lag_chance < _NEVER and more > _STANDS_OUT * self.lag_uneven

    @property
    def by_place(self) -> bool:
        """Whether noise of one place was used at another so many steps later, several times."""
        return self.places_equal >= _MATCHES and self.places_chance < _NEVER

    @property
    def table(self) -> int:
        """Entries of the largest table that values could be read from singly and be found.

        A pair of values is the same entry once in as many pairs as there are entries. So many equal
        pairs must stand out from those that are equal by chance.
        """
        by_chance = _SHARE / (1.0 - _SHARE) * self.nearly
        pairs = self.values * self.kept / 2.0
        return int(pairs / (_FOUND * math.sqrt(by_chance + 1.0)))


# Neighbours on either side, and values of a window.
_SIDE = 4
WIDTH = 2 * _SIDE + 1
# Sizes that are kept, in deviations of the noise: this one, and so much more or less at first.
CENTRE = 0.7
_WIDEST = 0.5
_WIDEST_LEAD = 8.0
# Windows that are kept of either kind: around a value of that size, and first of a tensor.
_MOST = 1 << 16
# Windows that are taken at once: few enough that their memory is used again, not asked for anew.
_AT_ONCE = 1 << 12
# Sizes are compared in steps of this. Adding noise to a sum of float32 moves it by far less.
_STEP = 2.0**-11
# Windows of less spread, or with a value of no size, say nothing of where they come from.
_SPREAD = 2.0**-6
_NOTHING = 2.0**-20
# Values are equal to this. Pairs are counted by their distance, in steps of it: where values
# are independent there are as many of every distance.
_EQUAL = 2.0**-18
_DISTANCES = 16
# Pairs that are told apart by the steps between them.
_MOST_PAIRS = 1 << 19
# Moves values off the grid that generators of float32 have, at the sizes that are kept.
_DITHER = 2.0**-20.5
# Values by which it is told whether the noise lies on a coarse grid, and the fewest.
_FIRST = 4096
_FEWEST = 64
_REPEATED = 0.05
_SMALLEST_GAP = 0.1
_FEW_COPIES = 4
# Chance that two values meet in a step; of Gaussian noise it is 1e-3 at the sizes looked at. Eight
# of them then meet in one of 2e9 pairs of windows with probability 5e-5.
_CROWDED = 0.02
_CROWD = 4.0 * _STEP
_MEDIAN = 0.6744897501960817
_GROUP = 2 * WIDTH
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)
_NAMES = ("windows", "step", "place", "lead")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Windows of nine sizes each, their steps and places, and which of them lead a tensor."""

    windows: NDArray[np.float32]
    step: NDArray[np.int64]
    place: NDArray[np.int64]
    lead: NDArray[np.bool_]

    def only(self, chosen: NDArray[Any]) -> _Kept:
        return _Kept(**{name: getattr(self, name)[chosen] for name in _NAMES})

    @property
    def value(self) -> NDArray[np.float64]:
        return self.windows[:, _SIDE].astype(np.float64)


_EMPTY = _Kept(
    windows=np.zeros((0, WIDTH), np.float32),
    step=np.zeros(0, np.int64),
    place=np.zeros(0, np.int64),
    lead=np.zeros(0, np.bool_),
)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Windows of one step as they came: to take those of many steps at once costs far less."""

    windows: NDArray[np.floating[Any]]
    step: int
    unit: float
    place: NDArray[np.int64]
    leads: int


class NoiseSample:
    """What is kept of all noise of a run.

    Args:
        sizes: Values of the noise of a step, of each tensor.
        expected: Windows that a step may give at first; more of them narrow the interval.
        most: Windows that are kept of either kind.

    Attributes:
        half: Half the width of the interval of sizes that are kept.
        scale: Deviation of the noise over what is stated for it, to a power of two; None before
            noise was seen.
    """

    def __init__(self, sizes: Sequence[int], expected: int = 1024, most: int = _MOST) -> None:
        self._starts = np.cumsum([0, *sizes])
        self._size, self._most = max(int(self._starts[-1]), 1), most
        share = min(1.0, expected / self._size)
        self.half = _WIDEST * 2.0 ** math.floor(math.log2(share))
        self.scale: float | None = None
        self._values = 0
        self._seen = 0
        self._lead_half = _WIDEST_LEAD
        self._first = np.zeros(0)
        self._parts = [_EMPTY]
        self._waiting: list[_Waiting] = []
        self._number_waiting = 0

    def calibrate(self, sizes: NDArray[np.floating[Any]]) -> None:
        """Measure the scale of the noise once, by sizes in units of what is stated."""
        found = sizes[np.isfinite(sizes) & (sizes > 0.0)]
        if self.scale is None and found.size >= min(_FEWEST, self._size):
            self.scale = 2.0 ** round(math.log2(float(np.median(found)) / _MEDIAN))

    def saw(self, values: int) -> None:
        """Count the values of a step that were looked at."""
        self._values += values
        self._seen = max(self._seen, values)

    def add(
        self,
        windows: NDArray[np.floating[Any]],
        *,
        step: int,
        place: NDArray[np.int64],
        leads: int,
        unit: float = 1.0,
    ) -> None:
        """Keep windows of nine sizes each.

        Args:
            windows: One row a window.
            step: The step of all.
            place: Position of each one's middle value in the noise of the step.
            leads: So many of the first are kept because they lead a tensor, whatever they hold.
            unit: What is stated for the noise.
        """
        if self.scale is None:
            self.calibrate(windows[:, np.arange(WIDTH) != _SIDE].ravel() / unit)
        self._waiting.append(_Waiting(windows, step, unit, place, leads))
        self._number_waiting += len(windows)
        if self._number_waiting > _AT_ONCE:
            self._prune()

    def add_row(self, values: NDArray[np.float64], step: int) -> None:
        """Look at one row of noise, in units of what is stated for it."""
        sizes = np.abs(values)
        if sizes.size < WIDTH:
            return
        self.calibrate(sizes)
        if self.scale is None:
            return
        self.saw(sizes.size)
        off = np.abs(sizes[_SIDE:-_SIDE] / self.scale - CENTRE)
        middle = np.flatnonzero(off <= self.half) + _SIDE
        place = np.concatenate([[_SIDE], middle])
        windows = sizes[place[:, None] + np.arange(-_SIDE, _SIDE + 1)]
        self.add(windows, step=step, place=place, leads=1)

    def _remember(self, new: _Kept) -> None:
        """Keep some values of windows that do not overlap, each window once."""
        apart = np.abs(new.place % _GROUP - (_GROUP - 1) / 2.0) <= WIDTH / 2.0
        new = new.only(apart & _telling(new.windows))
        new = new.only(np.unique(_keys(new.windows), return_index=True)[1])
        block = new.step * (1 << 40) + new.place // _GROUP
        chosen = np.unique(block, return_index=True)[1]
        room = (_FIRST - self._first.size) // (WIDTH - 1) + 1
        found = np.delete(new.windows[chosen[:room]], _SIDE, axis=1).ravel()
        self._first = np.concatenate([self._first, found])

    def _take(self) -> None:
        """Put the windows that wait to those that are kept."""
        waiting, self._waiting, self._number_waiting = self._waiting, [], 0
        if self.scale is None or not waiting:
            return
        counts = [len(item.place) for item in waiting]
        units = np.repeat([item.unit * self.scale for item in waiting], counts)
        sizes = np.concatenate([item.windows for item in waiting])
        with np.errstate(over="ignore"):
            sizes = (sizes / units[:, None].astype(sizes.dtype)).astype(np.float32)
        new = _Kept(
            windows=sizes,
            step=np.repeat([item.step for item in waiting], counts),
            place=np.concatenate([item.place for item in waiting]),
            lead=np.concatenate([np.arange(len(item.place)) < item.leads for item in waiting]),
        )
        if self._first.size < _FIRST:
            self._remember(new)
        self._parts.append(new)

    def _prune(self) -> None:
        """Let go of some windows where there are too many, by their middle values alone."""
        self._take()
        leads = sum(np.count_nonzero(part.lead) for part in self._parts)
        others = sum(part.lead.size for part in self._parts) - leads
        if max(leads, others) <= self._most:
            return
        lead = np.concatenate([part.lead for part in self._parts])
        off = np.abs(np.concatenate([part.value for part in self._parts]) - CENTRE)
        self.half = self._narrowed(off[~lead], self.half)
        self._lead_half = self._narrowed(off[lead], self._lead_half)
        chosen = off <= np.where(lead, self._lead_half, self.half)
        ends = np.cumsum([part.lead.size for part in self._parts])[:-1]
        self._parts = [
            part.only(here) for part, here in zip(self._parts, np.split(chosen, ends), strict=True)
        ]

    def _joined(self) -> _Kept:
        self._prune()
        parts = self._parts
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES}
        self._parts = [_Kept(**joined)]
        return self._parts[0]

    def _narrowed(self, off: NDArray[np.float64], half: float) -> float:
        """Half the width of the interval in which there are not too many."""
        number = off.size
        while number > self._most:
            half /= 2.0
            number = int(np.count_nonzero(off <= half))
        return half

    # ------------------------------------------------------------------------------ the result

    def facts(self, *, within: float | None = None) -> ReuseFacts:
        """What was found so far.

        Args:
            within: Half the width of the sizes of which all were kept; as they were asked for, if
                not given.
        """
        kept = self._joined()
        kept = kept.only(_telling(kept.windows))
        coarse = _on_a_grid(self._first)
        facts = ReuseFacts(
            values=self._values,
            kept=len(kept.step),
            share=min(1.0, self._seen / self._size),
            coarse=coarse,
        )
        if coarse or not len(kept.step):
            return facts
        half = self.half if within is None else within
        others = kept.only(~kept.lead)
        equal, nearly, uneven = _coincidences(others.value, half)
        facts = replace(facts, equal=equal, nearly=nearly, uneven=uneven)
        return _with_matches(_with_lag(facts, others, half), kept, self._starts)

    # ------------------------------------------------------------------------------- restarts

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        kept = self._joined()
        numbers = [self.half, self._lead_half, self.scale or 0.0, self._values, self._seen]
        return {
            "reuse.numbers": np.array(numbers, dtype=np.float64),
            "reuse.first": self._first,
            **{f"reuse.{name}": getattr(kept, name) for name in _NAMES},
        }

    def load(self, arrays: dict[str, Any]) -> None:
        """Resume from `arrays`; without them, from nothing.

        Raises:
            FileFormatError: They are no such arrays.
        """
        numbers = arrays.get("reuse.numbers")
        if numbers is None:
            return
        found = {name: arrays.get(f"reuse.{name}") for name in _NAMES}
        like = {name: getattr(_EMPTY, name).dtype for name in _NAMES}
        length = len(found["step"]) if isinstance(found["step"], np.ndarray) else -1
        first = arrays.get("reuse.first")
        if (
            getattr(numbers, "shape", None) != (5,)
            or not isinstance(first, np.ndarray)
            or first.dtype != np.float64
            or any(
                not isinstance(item, np.ndarray)
                or item.dtype != like[name]
                or item.shape != (length, *getattr(_EMPTY, name).shape[1:])
                for name, item in found.items()
            )
        ):
            raise FileFormatError(
                "Expected the noise sample of a checkpoint to be whole, got parts of another. Load "
                "an older checkpoint."
            )
        self.half, self._lead_half, scale = (float(item) for item in numbers[:3])
        self.scale = scale or None
        self._values, self._seen = (int(item) for item in numbers[3:])
        self._first = first.copy()
        self._parts = [_Kept(**{name: np.array(item) for name, item in found.items()})]
        self._waiting, self._number_waiting = [], 0


def _telling(windows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Windows that say where they come from."""
    # One row a place in the window: numpy is several times slower along many short rows.
    sizes = np.ascontiguousarray(windows.T)
    least = sizes.min(axis=0)
    with np.errstate(invalid="ignore"):
        spread = sizes.max(axis=0) - least
    return np.asarray(np.isfinite(spread) & (spread > _SPREAD) & (least > _NOTHING))


def _keys(windows: NDArray[np.float32]) -> NDArray[np.uint64]:
    """A hash of every window that is the same for the reversed window."""
    sizes = np.ascontiguousarray(windows.T, dtype=np.float64)
    features = sizes[_SIDE::-1] + sizes[_SIDE:]
    key = np.zeros(len(windows), np.uint64)
    for row in np.minimum(features / _STEP, 2.0**40).astype(np.uint64):
        key = (key ^ row) * _ODD
        key ^= key >> _SHIFT
        key *= _MIX
        key ^= key >> _SHIFT
    return key


def _with_matches(facts: ReuseFacts, kept: _Kept, starts: NDArray[np.int64]) -> ReuseFacts:
    """Add the windows that occur more than once, and where the first of them does."""
    keys = _keys(kept.windows)
    order = np.lexsort((kept.place, kept.step, keys))
    kept, keys = kept.only(order), keys[order]
    same = keys[1:] == keys[:-1]
    # A window that leads a tensor may be kept for its values as well.
    alike = kept.place[1:] == kept.place[:-1]
    itself = alike & (kept.step[1:] == kept.step[:-1])
    pairs = np.flatnonzero(same & ~itself)
    if not pairs.size:
        return facts
    at = int(pairs[np.lexsort((kept.step[pairs], kept.step[pairs + 1]))[0]])
    tensor = np.searchsorted(starts, kept.place[at : at + 2], side="right") - 1
    first, again = (
        (int(kept.step[row]), int(item), int(kept.place[row] - starts[item]))
        for row, item in zip((at, at + 1), tensor, strict=True)
    )
    return replace(
        facts,
        matches=int(pairs.size),
        moved=int(pairs.size - alike[pairs].sum()),
        first=first,
        again=again,
    )


def _coincidences(values: NDArray[np.float64], half: float) -> tuple[int, int, float]:
    """Pairs of equal values, those of nearly equal ones, and how far the latter are from even."""
    reach = _DISTANCES * _EQUAL
    if half <= reach:
        return 0, 0, 0.0
    dither = np.random.default_rng(0).normal(0.0, _DITHER, values.size)
    # The ends of the interval are joined, so that every value has pairs of every distance.
    moved = np.sort((values + dither)[np.abs(values - CENTRE) <= half] % (2.0 * half))
    around = np.concatenate([moved, moved[moved < reach] + 2.0 * half])
    edges = [
        int(np.searchsorted(around, moved + number * _EQUAL, side="right").sum())
        for number in range(1, _DISTANCES + 1)
    ]
    equal, nearly = edges[0] - moved.size * (moved.size + 1) // 2, np.diff(edges)
    return equal, int(nearly.sum()), float(np.abs(nearly - nearly.mean()).max())


def _with_lag(facts: ReuseFacts, kept: _Kept, half: float) -> ReuseFacts:
    """Add the number of steps between which most more values are equal than nearly equal.

    Noise that is taken from the step before in another order has few equal pairs among all pairs of
    values, and many among those of neighbouring steps; in a fixed order, the same two places have
    equal values again and again.
    """
    pairs = facts.equal + facts.nearly
    if half <= _DISTANCES * _EQUAL or not pairs:
        return facts
    # Of so many values that pairs are not too many: their number goes with the interval.
    half *= min(1.0, _MOST_PAIRS / pairs)
    kept = kept.only(np.abs(kept.value - CENTRE) <= half)
    moved = kept.value + np.random.default_rng(0).normal(0.0, _DITHER, kept.lead.size)
    order = np.argsort(moved)
    moved, kept = moved[order], kept.only(order)
    first, second, bins = [], [], []
    for ahead in range(1, moved.size):
        gaps = ((moved[ahead:] - moved[:-ahead]) / _EQUAL).astype(np.int64)
        near = np.flatnonzero(gaps < _DISTANCES)
        if not near.size:
            break
        first.append(near)
        second.append(near + ahead)
        bins.append(gaps[near])
    if not bins:
        return facts
    one, other, distance = (np.concatenate(item) for item in (first, second, bins))
    lags = kept.step[other] - kept.step[one]
    facts = _with_pair_of_places(facts, kept, one[distance == 0], other[distance == 0])
    different, lag = np.unique(np.abs(lags), return_inverse=True)
    counts = np.zeros((different.size, _DISTANCES), np.int64)
    np.add.at(counts, (lag, distance), 1)
    equal, others = counts[:, 0], counts[:, 1:]
    chances = _at_least(equal, counts.sum(axis=1))
    most = int(np.argmin(chances))
    return replace(
        facts,
        lag=int(different[most]),
        lag_equal=int(equal[most]),
        lag_nearly=int(others[most].sum()),
        lag_uneven=float(np.abs(others[most] - others[most].mean()).max()),
        lag_chance=min(1.0, float(chances[most]) * different.size),
    )


def _at_least(equal: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.float64]:
    """Chance of as many equal pairs, where every distance is as likely."""
    return np.where(equal > 0, bdtrc(np.maximum(equal - 1, 0), of, 1.0 / _DISTANCES), 1.0)


def _with_pair_of_places(
    facts: ReuseFacts, kept: _Kept, one: NDArray[np.int64], other: NDArray[np.int64]
) -> ReuseFacts:
    """Add how often the same two places have equal values as many steps apart, if ever."""
    _, place = np.unique(kept.place, return_inverse=True)
    places, steps = int(place.max()) + 1, int(np.ptp(kept.step)) + 1
    later = kept.step[other] > kept.step[one]
    one, other = np.where(later, one, other), np.where(later, other, one)
    lag = kept.step[other] - kept.step[one]
    apart = (lag > 0) & (place[one] != place[other])
    which = ((lag * places + place[one]) * places + place[other])[apart]
    if not which.size:
        return facts
    found, counts = np.unique(which, return_counts=True)
    most = int(np.argmax(counts))
    # Steps that are near each other have up to twice as many pairs as on average.
    cells = float(places) ** 2 * steps
    chance = cells * float(pdtrc(counts[most] - 1, 2.0 * one.size / cells))
    return replace(
        facts,
        places_lag=int(found[most] // places**2),
        places_equal=int(counts[most]),
        places_chance=min(1.0, chance),
    )


def _on_a_grid(values: NDArray[np.float64]) -> bool:
    """Whether many values are equal because they lie on a grid; those of a small table do not."""
    ordered = np.sort(values[(values > 0.25) & (values < 1.0)])
    if ordered.size < _FEWEST:
        # The steps of the grid may be wider than the noise.
        sizes = 1 + int(np.count_nonzero(np.diff(np.sort(values)) > _NOTHING))
        return values.size >= WIDTH and _FEW_COPIES * sizes <= values.size
    gaps = np.diff(ordered)
    apart = gaps[gaps > _NOTHING]
    if apart.size >= (1.0 - _REPEATED) * gaps.size and not _crowded(ordered):
        return False
    # A grid that something small was added to has no equal values, and crowds at its points.
    apart = np.diff(ordered[np.append(True, gaps > _CROWD)]) if _crowded(ordered) else apart
    return apart.size < 2 or bool(apart.min() > _SMALLEST_GAP * apart.mean())


def _crowded(ordered: NDArray[np.float64]) -> bool:
    """Whether values meet in steps so often that whole windows of them may meet by chance."""
    _, counts = np.unique(np.floor(ordered / _STEP), return_counts=True)
    return bool((counts.astype(np.float64) ** 2).sum() > _CROWDED * ordered.size**2)


# Noise below this share of the unit is none: what is left are rounding errors.
_SILENCE = 1e-5
_FEWEST_ABSENT = 10
# Windows of a row at first, and of all rows: recorders of correlated noise hold little else.
_A_ROW = 256
_KEPT = 1 << 13
_NUMBERS = "row_noise.numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRowFacts(Facts):
    """The noise of single rows of a strategy, over the absent canaries.

    Attributes:
        rows: Rows that were seen.
        absent: Values of each.
        silent: Rows without noise.
        first_silent: The first of them.
        square: Sum of squares of all rows.
        least: The row with the least noise.
        least_square: Its sum of squares.
        most: The row with the most noise.
        most_square: Its sum of squares.
    """

    rows: int = 0
    absent: int = 0
    silent: int = 0
    first_silent: int = 0
    square: float = 0.0
    least: int = 0
    least_square: float = 0.0
    most: int = 0
    most_square: float = 0.0


class RowNoise:
    """Rows of noise along the canaries, as they come.

    Args:
        coordinates: Where in the model each canary's value is.
        member: Which canaries are present, and may have been planted.
        unit: What is stated for the noise of a value; 1 where nothing is.
    """

    def __init__(
        self,
        coordinates: NDArray[np.int64],
        member: NDArray[np.bool_],
        unit: float | None,
    ) -> None:
        places = coordinates.reshape(member.size, -1)
        # Neighbours in the model, so that noise that is shifted keeps its neighbours.
        self._order = np.argsort(places[:, 0], kind="stable")
        self._absent = np.flatnonzero(~member)
        self._unit = unit or 1.0
        self._sample = NoiseSample([member.size], _A_ROW, _KEPT)
        self._facts = NoiseRowFacts(absent=self._absent.size)

    def add(self, row: NDArray[np.float64]) -> None:
        """One more row, one value a canary."""
        facts, number = self._facts, self._facts.rows
        self._sample.add_row(row[self._order] / self._unit, number)
        absent = row[self._absent]
        square = float(absent @ absent)
        if not np.isfinite(square):
            return
        facts = replace(facts, rows=number + 1, square=facts.square + square)
        limit = absent.size * (_SILENCE * self._unit) ** 2 if absent.size >= _FEWEST_ABSENT else 0.0
        if absent.size and square <= limit:
            first = facts.first_silent if facts.silent else number
            facts = replace(facts, silent=facts.silent + 1, first_silent=first)
        if number == 0 or square < facts.least_square:
            facts = replace(facts, least=number, least_square=square)
        if square > facts.most_square:
            facts = replace(facts, most=number, most_square=square)
        self._facts = facts

    @property
    def facts(self) -> NoiseRowFacts:
        """What the rows have of noise."""
        return self._facts

    @property
    def reuse(self) -> ReuseFacts | None:
        """Whether any noise was used again; None where no row was seen."""
        found = self._sample.facts()
        return found if found.values else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        numbers = [float(getattr(self._facts, name)) for name in NoiseRowFacts.__slots__]
        return {_NUMBERS: np.array(numbers), **self._sample.arrays()}

    def load(self, arrays: dict[str, Any]) -> None:
        """Resume from `arrays`; without them, from nothing.

        Raises:
            FileFormatError: They are no such arrays.
        """
        numbers = arrays.get(_NUMBERS)
        if numbers is None:
            return
        names = NoiseRowFacts.__slots__
        if getattr(numbers, "shape", None) != (len(names),):
            raise FileFormatError(f"Expected {_NUMBERS} of {len(names)} numbers, got others.")
        values = dict(zip(names, numbers.tolist(), strict=True))
        whole = {name: int(value) for name, value in values.items() if "square" not in name}
        facts = NoiseRowFacts(**{**values, **whole})
        self._sample.load(arrays)
        self._facts = facts
