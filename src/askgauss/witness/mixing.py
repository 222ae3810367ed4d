"""Facts of whether the gradient of a row is that of one record alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from askgauss.exceptions import FileFormatError

__all__ = ["BatchWeights", "MixingFacts"]

# Weights of one class agree by as much, and follow a formula by as much.
_SAME = 1e-3
# Weights that are taken from the batch move by more than this from step to step.
_MOVED = 1e-2
# Steps whose weights have to follow the formula.
_STEPS = 2
# Steps that are remembered.
_KEPT = 64
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
        self._steps: list[tuple[dict[int, int], dict[int, float]]] = []

    def add(self, classes: Sequence[int], weights: Sequence[float]) -> bool:
        """The class and weight of every row of a step; whether they follow its counts by now."""
        counts: dict[int, int] = {}
        by_class: dict[int, float] = {}
        for name, weight in zip(classes, weights, strict=True):
            counts[name] = counts.get(name, 0) + 1
            if abs(weight - by_class.setdefault(name, weight)) > _SAME * abs(weight):
                return False  # records have weights of their own
        if len(set(counts.values())) < 2:
            return False  # equal counts have equal weights, wherever they come from
        self._steps.append((counts, by_class))
        del self._steps[:-_KEPT]
        return any(self._follow(number) for number in range(4 + len(_BASES)))

    def _follow(self, number: int) -> bool:
        following = [item for item in self._steps if _fits(*item, number)]
        return len(following) >= _STEPS and any(
            _moved(following[0][1], other) for _, other in following[1:]
        )


def _fits(counts: dict[int, int], weights: dict[int, float], number: int) -> bool:
    """Whether weights are proportional to one of the usual functions of the counts."""
    total = sum(counts.values())
    ratios: list[float] = []
    for name, weight in weights.items():
        count = counts[name]
        usual = (1.0 / count, count**-0.5, 1.0 - count / total, 1.0 / (count + 1.0))
        effective = (1.0 / (1.0 - base**count) for base in _BASES)
        ratios.append(weight / (*usual, *effective)[number])
    return max(ratios) - min(ratios) <= _SAME * max(map(abs, ratios))


def _moved(first: dict[int, float], second: dict[int, float]) -> bool:
    """Whether two classes that both steps have are weighted otherwise in one than in the other."""
    both = sorted(first.keys() & second.keys())
    ratios = [first[name] / second[name] for name in both]
    return bool(ratios) and max(ratios) - min(ratios) > _MOVED * max(map(abs, ratios))
