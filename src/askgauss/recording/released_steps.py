"""From the steps a mechanism releases to those an auditor reads, and who is included in which.

A run is a sampling scheme times a strategy. With the identity as its strategy every step has
independent noise, and is recorded as it was released. Where noise is correlated, or records take
turns, released steps are combined so that the noise is independent again and every present canary
is included in each recorded step with one probability.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import Canaries, Stream, random_stream
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.mechanisms import decorrelate
from askgauss.mechanisms.strategy import Strategy
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson, Scheme

__all__ = ["InRounds", "ReleasedSteps", "released_steps"]

Floats = NDArray[np.float64]
Drawn = Iterator[NDArray[np.int64]]


class ReleasedSteps:
    """How released steps and recorded ones belong together; here every step is recorded as it is.

    Args:
        canaries: The canaries.
        sampling: How the canaries of a recorded step are drawn.

    Attributes:
        note: What a reader of the report should know about it; empty if nothing.
        turns: Released steps that a recorded one stands for, where records take turns in them.
        strategy: How noise is correlated between steps; None where it is not.
    """

    note: str = ""
    turns: int = 1
    strategy: Strategy | None = None

    def __init__(self, canaries: Canaries, sampling: Scheme) -> None:
        self.sampling = sampling
        self._size = canaries.size

    def recorded(self, steps: int) -> int:
        """How many steps are recorded of so many released ones."""
        return steps

    def accounted(self, steps: int) -> int:
        """How many of them the mechanism of so many released steps has, by its accounting."""
        return self.recorded(steps)

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        """Which canaries are included in each released step, one row a step.

        Args:
            drawn: The canaries that are drawn for each recorded step.
            steps: Number of released steps.
        """
        mask = np.zeros((steps, self._size), dtype=np.bool_)
        for row, chosen in zip(mask, drawn, strict=False):
            row[chosen] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        """What released rows, one column a canary, say in each recorded step."""
        return rows

    def watched(self, rows: Floats) -> Floats:
        """The same of columns that no canary is in."""
        return self.along(rows)

    def noise(self, steps: int) -> float:
        """The noise of a recorded step over the mechanism's own noise multiplier."""
        return 1.0


class InRounds(ReleasedSteps):
    """Records take turns: one recorded step a round, in which every group had its turn.

    Args:
        canaries: The canaries.
        strategy: No more bands than there are groups.
        scheme: How records are drawn.

    Attributes:
        cycle: Number of groups.
        count: Rounds in which every record is protected the least, the only ones to be recorded.
        groups: The group of each canary.
        norm: The largest norm of a column of the strategy.

    Raises:
        InvalidArgumentError: There is no whole round.
        UnsupportedError: Columns of one record overlap, or the groups are secret.
    """

    def __init__(self, canaries: Canaries, strategy: Strategy, scheme: CyclicPoisson) -> None:
        super().__init__(canaries, Poisson(rate=scheme.rate))
        if scheme.groups == "secret":
            raise UnsupportedError(
                f"Expected groups that are known, as accountants assume, got {scheme!r}."
            )
        if strategy.bands > scheme.cycle:
            raise UnsupportedError(
                f"Expected records to come back after {strategy.bands} steps at the earliest, as "
                f"many as the strategy has bands, got sampling={scheme!r}. What sampling adds to "
                "privacy is not known otherwise: take a longer cycle, or fewer bands."
            )
        steps = strategy.steps
        self.strategy = self._strategy = strategy
        self.cycle = self.turns = scheme.cycle
        self.norm = float(strategy.norms(steps).max())
        self.count = decorrelate.full_rounds(strategy, steps=steps, cycle=scheme.cycle)
        if self.count < 1:
            raise InvalidArgumentError(
                f"Expected steps to hold a whole round of {scheme.cycle} steps and the strategy's "
                f"{strategy.bands} bands after it, got {steps}. Plan for more steps."
            )
        generator = random_stream(canaries.root_seed, Stream.SAMPLER)
        self.groups = generator.integers(scheme.cycle, size=canaries.size)
        self._own = self.filter(self.groups)
        self.note = (
            f"records take turns in {scheme.cycle} groups: a step here is a round of as many "
            "steps of the training, filtered for what a record in one of them adds."
        )

    def filter(self, groups: NDArray[np.int64]) -> decorrelate.RoundFilter:
        """A filter for columns whose records may enter the steps of these groups."""
        return decorrelate.RoundFilter(
            self._strategy, groups=groups, cycle=self.cycle, norm=self.norm, count=self.count
        )

    def recorded(self, steps: int) -> int:
        """Rounds that are over after so many steps."""
        return self._own.over(steps)

    def accounted(self, steps: int) -> int:
        """Rounds that were begun: all of them were accounted for."""
        return -(-steps // self.cycle)

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        """Every canary of a round enters the step of its group."""
        mask = np.zeros((steps, self.groups.size), dtype=np.bool_)
        for turn in range(self.count):
            chosen = next(drawn)
            mask[self.groups[chosen] + turn * self.cycle, chosen] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        """One row a round."""
        return self.filter(self.groups).rounds(rows)

    def watched(self, rows: Floats) -> Floats:
        """One row a round, of columns that are assigned to groups one after another."""
        return self.filter(np.arange(rows.shape[1]) % self.cycle).rounds(rows)


class _Evened(ReleasedSteps):
    """Records enter known steps for sure: what they add is spread evenly over all steps."""

    def __init__(self, canaries: Canaries, strategy: Strategy, cycle: int, steps: int) -> None:
        super().__init__(canaries, EveryStep())
        self.strategy = self._strategy = strategy
        self._cycle = cycle
        self._first, self._norm = decorrelate.heaviest_entry(strategy, steps=steps, cycle=cycle)
        self.note = (
            f"every canary enters step {self._first + 1:,}"
            + (f" and every {cycle:,} from there" if cycle < steps else "")
            + ", as the record that is protected least; what it adds was spread evenly over all "
            "steps, whose noise is that of the strategy's rows."
        )

    def recorded(self, steps: int) -> int:
        return steps if steps > self._first else 0

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        mask = np.zeros((steps, self._size), dtype=np.bool_)
        mask[self._first :: self._cycle, next(drawn)] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        entered = np.arange(self._first, len(rows), self._cycle)
        turned = decorrelate.evened(rows, self._strategy, entered=entered)
        return turned / self._height(len(rows))

    def _height(self, steps: int) -> float:
        """What a record of norm one adds to every recorded step."""
        entered = np.zeros((steps, 1))
        entered[self._first :: self._cycle] = 1.0
        return float(np.linalg.norm(self._strategy.apply(entered)) / np.sqrt(steps))

    def noise(self, steps: int) -> float:
        return self._norm / self._height(steps)


def released_steps(
    canaries: Canaries, scheme: Scheme, strategy: object | None, steps: int
) -> ReleasedSteps:
    """How to record a run of this scheme and this strategy.

    Raises:
        UnsupportedError: It is not known what such a run leaks.
    """
    if strategy is None:
        return ReleasedSteps(canaries, scheme)
    mixed = decorrelate.strategy_of(strategy, steps)
    if scheme.every_step:
        return _Evened(canaries, mixed, 1, steps)
    if (cyclic := scheme.cyclic) is not None:
        if cyclic.rate == 1.0 and cyclic.groups == "known" and mixed.bands > 1:
            return _Evened(canaries, mixed, cyclic.cycle, steps)
        return InRounds(canaries, mixed, cyclic)
    raise UnsupportedError(
        f"Correlated noise can be audited with CyclicPoisson and EveryStep sampling, got {scheme}."
    )
