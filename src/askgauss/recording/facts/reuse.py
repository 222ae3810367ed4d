"""Facts of noise that is used again, at the same coordinates or at others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from askgauss.exceptions import FileFormatError

__all__ = ["ReuseFacts"]

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
class ReuseFacts:
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
    share: float = 0.0
    coarse: bool = False
    matches: int = 0
    moved: int = 0
    first: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    equal: int = 0
    nearly: int = 0
    uneven: float = 0.0
    lag: int = 0
    lag_equal: int = 0
    lag_nearly: int = 0
    lag_uneven: float = 0.0
    lag_chance: float = 1.0
    places_lag: int = 0
    places_equal: int = 0
    places_chance: float = 1.0

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
        return self.matches >= _MATCHES

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

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in self.__slots__:
            if name not in ("coarse", "first", "again") and not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.reuse.{name} >= 0, got it below.")
        if self.share > 1.0:
            raise FileFormatError(f"Expected facts.reuse.share <= 1, got {self.share}.")
        if self.moved > self.matches:
            raise FileFormatError(f"Expected facts.reuse.moved <= {self.matches}, got more.")
        for name in ("first", "again"):
            found = getattr(self, name)
            if len(found) != (3 if self.matches else 0) or min(found, default=0) < 0:
                raise FileFormatError(
                    f"Expected facts.reuse.{name} to be a step, tensor and place."
                )
