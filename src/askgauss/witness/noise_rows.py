"""Facts of single rows of correlated noise, which the filters of whole rounds do not show."""

from __future__ import annotations

from dataclasses import dataclass

from askgauss.exceptions import FileFormatError

__all__ = ["NoiseRowFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRowFacts:
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

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.noise_rows.{name} >= 0, got it below.")
        if max(self.silent, self.first_silent, self.least, self.most) > self.rows:
            raise FileFormatError(
                f"Expected places in facts.noise_rows below {self.rows}, got others."
            )
        if not self.least_square <= self.most_square <= self.square * (1.0 + 1e-9):
            raise FileFormatError("Expected facts.noise_rows to be sums of squares, got others.")
