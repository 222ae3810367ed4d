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
        return not self.in_runs and self.excess > _FAR and more > _STANDS_OUT * self.uneven

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("values", "kept", "share", "matches", "moved", "equal", "nearly", "uneven"):
            if not getattr(self, name) >= 0:
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
