"""Facts of whether the gradient of a row is that of one record alone."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["BatchWeights", "MixingFacts"]

# Weights of one class agree by as much, and follow a formula by as much.
_SAME = 1e-3
# Weights that are taken from the batch move by more than this from step to step.
_MOVED = 1e-2
# Bases of the "effective number" of records of a class.
_BASES = (0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingFacts:
    """Where records of a batch met before they were clipped.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        forward: Steps whose forward pass was repeated with other records replaced.
        inputs: Steps whose inputs were compared with the batch of the loader.
        loss: Steps whose loss was differentiated twice.
        forward_first: The first step in which an output depended on other records.
        state_first: The first step in which the forward pass wrote a statistic of the batch to the
            model, which later outputs depend on.
        inputs_first: The first step in which a row of the input was made of two records.
        loss_first: The first step in which the gradient of one output depended on other outputs.
        weights_first: The first step in which class weights followed the counts in the batch.
        forward_unseen: Why the forward pass of a step was not looked at; empty where all were.
        inputs_unseen: Why the inputs were not.
        loss_unseen: Why the loss was not.
    """

    forward: int = 0
    inputs: int = 0
    loss: int = 0
    forward_first: int = 0
    state_first: int = 0
    inputs_first: int = 0
    loss_first: int = 0
    weights_first: int = 0
    forward_unseen: str = ""
    inputs_unseen: str = ""
    loss_unseen: str = ""

    @property
    def mixed(self) -> bool:
        """Whether records met anywhere."""
        return any(getattr(self, item.name) for item in fields(self) if item.name.endswith("first"))

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 0:
                raise FileFormatError(f"Expected facts.mixing.{item.name} >= 0, got {value}.")


class BatchWeights:
    """Whether the weights of classes in a loss are computed from the classes in the batch.

    Weights that are fixed, or follow a schedule, agree with the counts of a random batch by
    accident at most once.
    """

    def __init__(self) -> None:
        # Of each formula, the weights of the first step that follows it.
        self._first: dict[int, dict[int, float]] = {}

    def add(self, classes: NDArray[np.int64], weights: NDArray[np.float64]) -> bool:
        """The class and weight of every row of a step; whether they follow its counts by now."""
        names, first, counts = np.unique(classes, return_index=True, return_counts=True)
        by_class = weights[first]
        apart = np.abs(weights - by_class[np.searchsorted(names, classes)])
        if (apart > _SAME * np.abs(weights)).any():
            return False  # records have weights of their own
        if np.unique(counts).size < 2:
            return False  # equal counts have equal weights, wherever they come from
        found, now = False, dict(zip(names.tolist(), by_class.tolist(), strict=True))
        for number, formula in enumerate(_formulas(counts)):
            ratios = by_class / formula
            if np.ptp(ratios) <= _SAME * np.abs(ratios).max():
                found = found or _moved(self._first.setdefault(number, now), now)
        return found


def _formulas(counts: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """Usual weights of classes with so many records in the batch."""
    usual = [1.0 / counts, counts**-0.5, 1.0 - counts / counts.sum(), 1.0 / (counts + 1.0)]
    return [*usual, *(1.0 / (1.0 - base**counts) for base in _BASES)]


def _moved(first: dict[int, float], second: dict[int, float]) -> bool:
    """Whether two classes that both steps have are weighted otherwise in one than in the other."""
    ratios = [first[name] / second[name] for name in first.keys() & second.keys()]
    return bool(ratios) and max(ratios) - min(ratios) > _MOVED * max(map(abs, ratios))
