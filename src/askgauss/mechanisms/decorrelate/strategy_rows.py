"""Releases of a lower-triangular strategy mixed back into its rows, each with noise of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss.mechanisms.decorrelate.pieces import Piece, Reader
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.mechanisms.strategy import Strategy

__all__ = ["RowReader", "plan_of"]


def plan_of(strategy: Strategy, release: Literal["rows", "steps", "prefixes"]) -> StrategyPlan:
    """A strategy and what is seen of it, as a plan."""
    kind: Any = strategy.kind
    return StrategyPlan(
        steps=strategy.steps,
        kind=kind,
        digest=strategy.digest(),
        remembers=strategy.remembers,
        release=release,
        participations=strategy.participations,
        min_separation=strategy.min_separation,
    )


class RowReader(Reader):
    """A piece is a row: what it mixes of the steps, and one draw of noise.

    Open are the last prefix, where prefixes are released, and what the strategy remembers.
    """

    def __init__(self, plan: StrategyPlan, strategy: Strategy) -> None:
        super().__init__()
        strategy.row(0)
        self._strategy, self._release = strategy, plan.release
        self._prefix: list[NDArray[np.float64]] = []

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[Piece]:
        """The row that a step completes."""
        value = released
        if self._release == "prefixes":
            value = released - self._prefix[0] if self._prefix else released
            self._prefix = [released]
        if self._release != "rows":
            value = self._strategy.mix(step, value, self._open)
        yield Piece((0, 0, step), value, *self._strategy.row(step))

    def open_values(self) -> list[NDArray[np.float64]]:
        """What has to be remembered for the steps to come."""
        return [*self._prefix, *self._open]

    def remembered(self, step: int) -> int:
        """How many arrays that is after so many steps."""
        if self._release == "rows":
            return 0
        return self._strategy.held(step) + (self._release == "prefixes" and step > 0)

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        """Go on after so many steps with what was remembered."""
        before = int(self._release == "prefixes")
        self._prefix, self._open = open_values[:before], open_values[before:]
