"""Whether the weights moved by what was released, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError

__all__ = ["WeightFacts", "WeightMove", "WeightWitness", "same_weights"]

# An optimizer that acts on each coordinate alone does the same arithmetic on a few of them; what
# may differ is the last bits, by the order in which a processor adds.
_ULPS = 4.0
_SHARE_OF_MOVE = 1e-4
_MOVE_ULPS = 16.0
# A gradient this near to a multiple of the one that was read has been scaled, and no more.
_SCALED = 1e-3
# The largest excess that is told.
_MOST = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """How the weights of a run moved, compared with what each step released.

    Attributes:
        optimizer: The class of the optimizer that moved them.
        unchecked: Why moves could not be compared; empty where they were.
        unseen: Whether the weights themselves were never seen.
        places: Coordinates compared in every step.
        steps: Steps compared.
        otherwise: Steps in which a weight moved otherwise than by the release.
        regraded: Of those, steps whose gradient was changed after it had been read.
        scaled: Of those, steps in which all of the gradient was multiplied by one number.
        factor: That number, in the first of them.
        first: The first step with another move, from 1; 0 if none.
        tensor: The tensor it was largest in.
        excess: That largest difference, in units of the move that the release explains.
        closures: Steps whose closure reached the optimizer that moves the weights.
        between: How often weights had changed since the step before.
        between_first: The step before which they first had; 0 if never.
        between_tensor: A tensor they had changed in.
        loaded: How often a state was loaded into the optimizer that neither the releases nor a
            checkpoint of this run explain.
        loaded_first: The step before which that first happened; 0 if never.
        loaded_excess: The most by which the weights' move in the step after differs from the one
            that the releases explain, in units of that.
        declared: How often a change between steps was declared to be postprocessing.
        declare: The call that does so.
        bare: Trained tensors in which no canary lies, since they began to train later.
        bare_moved: Those of them that moved.
        tensors: Tensors with coordinates that are compared.
        unmoved: Those in which none of them ever moved.
        unreached: Those in which none of them ever had a gradient of a record: the clipped sum
            before canaries and noise was zero there in every step.
    """

    optimizer: str = ""
    unchecked: str = ""
    unseen: bool = False
    places: int = 0
    steps: int = 0
    otherwise: int = 0
    regraded: int = 0
    scaled: int = 0
    factor: float = 1.0
    first: int = 0
    tensor: str = ""
    excess: float = 0.0
    closures: int = 0
    between: int = 0
    between_first: int = 0
    between_tensor: str = ""
    loaded: int = 0
    loaded_first: int = 0
    loaded_excess: float = 0.0
    declared: int = 0
    declare: str = "audit.postprocessing()"
    bare: tuple[str, ...] = ()
    bare_moved: tuple[str, ...] = ()
    tensors: int = 0
    unmoved: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        counts = ("places", "steps", "otherwise", "regraded", "scaled", "first", "closures")
        loads = ("loaded", "loaded_first", "loaded_excess")
        for name in (*counts, "between", "between_first", *loads, "declared", "tensors"):
            if getattr(self, name) < 0:
                raise FileFormatError(f"Expected facts.weights.{name} >= 0, got it below.")
        if self.otherwise > self.steps or self.regraded > self.otherwise:
            raise FileFormatError("Expected no more moves in facts.weights than there were steps.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMove:
    """One step at the compared coordinates.

    Attributes:
        before: Weights before the step.
        after: Weights after it.
        expected: Where the release should have moved them.
        read: The gradient as it was observed.
        applied: The gradient as it stood when the step was over.
    """

    before: NDArray[np.float64]
    after: NDArray[np.float64]
    expected: NDArray[np.float64]
    read: NDArray[np.float64]
    applied: NDArray[np.float64]


class WeightWitness:
    """Compares step by step, and remembers what the weights of a run did.

    Args:
        optimizer: The class of the optimizer.
        unchecked: Why its moves cannot be compared; empty where they can.
        precision: Spacing of the numbers around 1 at every coordinate.
        tensor: Index of the tensor of every coordinate.
        names: Names of the tensors.
    """

    def __init__(
        self,
        *,
        optimizer: str,
        unchecked: str,
        precision: NDArray[np.float64],
        tensor: NDArray[np.int64],
        names: Sequence[str],
    ) -> None:
        self._precision, self._tensor, self._names = precision, tensor, tuple(names)
        # Steps without a difference, which are in the facts when somebody asks for them.
        self._alike = 0
        self._facts = WeightFacts(
            optimizer=optimizer,
            unchecked=unchecked,
            places=int(precision.size),
            tensors=len(np.unique(tensor)),
        )
        # What an earlier part of the run left still; None where there was none.
        self._earlier: tuple[frozenset[str], frozenset[str]] | None = None

    @property
    def facts(self) -> WeightFacts:
        """What was seen so far."""
        if self._alike:
            self._facts = replace(self._facts, steps=self._facts.steps + self._alike)
            self._alike = 0
        return self._facts

    @property
    def all_alike(self) -> bool:
        """Whether every step so far moved as expected; cheaper than the facts."""
        facts = self._facts
        alike = facts.otherwise == 0 and facts.loaded == 0
        return alike and self.begun and not facts.unchecked

    @property
    def begun(self) -> bool:
        """Whether a step was followed."""
        return self._facts.steps + self._alike > 0

    @property
    def unchecked(self) -> str:
        """Why moves cannot be compared; empty where they can."""
        return self._facts.unchecked

    def load(self, facts: WeightFacts) -> None:
        """Go on from what another witness of the same run saw."""
        mine, self._alike = self._facts, 0
        self._facts = replace(
            facts,
            optimizer=mine.optimizer,
            unchecked=mine.unchecked,
            places=mine.places,
            tensors=mine.tensors,
        )
        if facts.steps:
            self._earlier = frozenset(facts.unmoved), frozenset(facts.unreached)

    def closure(self) -> None:
        """A closure reached the optimizer."""
        self._facts = replace(self._facts, closures=self._facts.closures + 1)

    def declare(self) -> None:
        """A change between steps was declared to be postprocessing."""
        self._facts = replace(self._facts, declared=self._facts.declared + 1)

    def bare(self, trained: tuple[str, ...], moved: tuple[str, ...]) -> None:
        """Tensors that train without canaries, and those that moved."""
        self._facts = replace(self._facts, bare=trained, bare_moved=moved)

    def still(self, moved: NDArray[np.bool_], reached: NDArray[np.bool_]) -> None:
        """Which coordinates ever moved, and which ever had a gradient of a record."""
        known = self._earlier
        unmoved, unreached = (self._without(item) for item in (moved, reached))
        self._facts = replace(
            self._facts,
            unmoved=tuple(name for name in unmoved if known is None or name in known[0]),
            unreached=tuple(name for name in unreached if known is None or name in known[1]),
        )

    def _without(self, seen: NDArray[np.bool_]) -> list[str]:
        """The tensors of which no coordinate is marked."""
        marked = set(np.unique(self._tensor[seen]).tolist())
        return [self._names[index] for index in np.unique(self._tensor) if int(index) not in marked]

    def between(self, before: NDArray[np.float64], now: NDArray[np.float64], step: int) -> None:
        """Compare weights after a step with those before the next."""
        self._facts = self.changed(before, now, step)

    def changed(
        self, before: NDArray[np.float64], now: NDArray[np.float64], step: int
    ) -> WeightFacts:
        """The facts if weights change from the one to the other before a step."""
        changed, facts = ~same_weights(before, now), self.facts
        if not changed.any():
            return facts
        place = int(np.argmax(changed))
        return replace(
            facts,
            between=facts.between + 1,
            between_first=facts.between_first or step,
            between_tensor=facts.between_tensor or self._names[int(self._tensor[place])],
        )

    def loaded(self, step: int) -> None:
        """Before a step, a state was loaded that nothing explains."""
        facts = self._facts
        self._facts = replace(
            facts, loaded=facts.loaded + 1, loaded_first=facts.loaded_first or step
        )

    def loaded_move(self, move: WeightMove) -> None:
        """The step after such a state, against where its release should have moved the weights."""
        facts, size = self._facts, _length(move.expected - move.before)
        off = _length(move.after - move.expected)
        excess = off / size if size > 0.0 else float(off > 0.0) * np.inf
        # Nothing finite is known of what overflowed.
        excess = min(float(np.nan_to_num(excess, nan=np.inf)), _MOST)
        self._facts = replace(
            facts, steps=facts.steps + 1, loaded_excess=max(facts.loaded_excess, excess)
        )

    def moved_alike(self) -> None:
        """A step ended exactly where its release should have moved the weights."""
        self._alike += 1

    def move(self, move: WeightMove, step: int) -> bool:
        """Compare a step with where its release should have moved the weights.

        Returns:
            Whether it did: to rounding, at every coordinate.
        """
        facts = self._facts
        off, allowed = _difference(move, self._precision)
        wrong = off > allowed
        if not wrong.any():
            self._facts = replace(facts, steps=facts.steps + 1)
            return True
        place = int(np.argmax(np.where(wrong, off, -1.0)))
        size = float(np.nanmedian(np.abs(move.expected - move.before)))
        regraded = not same_weights(move.read, move.applied).all()
        factor = _common_factor(move.read, move.applied) if regraded else None
        first = facts.otherwise == 0
        self._facts = replace(
            facts,
            steps=facts.steps + 1,
            otherwise=facts.otherwise + 1,
            regraded=facts.regraded + regraded,
            scaled=facts.scaled + (factor is not None),
            factor=factor if first and factor is not None else facts.factor,
            first=step if first else facts.first,
            tensor=self._names[int(self._tensor[place])] if first else facts.tensor,
            excess=float(off[place]) / size if first and size > 0.0 else facts.excess,
        )
        return False


def _length(values: NDArray[np.float64]) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(values))


def same_weights(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where two readings are the same; nan is the same as nan."""
    return np.asarray((one == other) | (np.isnan(one) & np.isnan(other)))


def _difference(
    move: WeightMove, precision: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far weights are from where they should be, and how far rounding may put them."""
    with np.errstate(all="ignore"):
        off = np.abs(move.after - move.expected)
        size = np.abs(move.before) + np.abs(move.after)
        share = np.maximum(_SHARE_OF_MOVE, _MOVE_ULPS * precision)
        allowed = _ULPS * precision * size + share * np.abs(move.expected - move.before)
    same = same_weights(move.after, move.expected)
    off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
    # What overflowed in one of the two only is no rounding.
    return off, np.where(np.isfinite(allowed), allowed, 0.0)


def _common_factor(read: NDArray[np.float64], applied: NDArray[np.float64]) -> float | None:
    """The one number that turns a gradient into another; None where there is none."""
    square = float(read @ read)
    if not (np.isfinite(square) and square > 0.0):
        return None
    factor = float(read @ applied) / square
    rest = np.linalg.norm(applied - factor * read)
    return factor if rest <= _SCALED * np.linalg.norm(applied) else None
