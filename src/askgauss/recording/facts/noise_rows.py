"""Facts of single rows of correlated noise, which the filters of whole rounds do not show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError
from askgauss.recording.facts.noise_sample import NoiseSample
from askgauss.recording.facts.reuse import ReuseFacts

__all__ = ["NoiseRowFacts", "RowNoise"]

# Noise below this share of the unit is none: what is left are rounding errors.
_SILENCE = 1e-5
_FEWEST = 10
# Windows of a row at first, and of all rows: recorders of correlated noise hold little else.
_A_ROW = 256
_KEPT = 1 << 13
_NUMBERS = "row_noise.numbers"


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
        limit = absent.size * (_SILENCE * self._unit) ** 2 if absent.size >= _FEWEST else 0.0
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
        facts.check()
        self._sample.load(arrays)
        self._facts = facts
