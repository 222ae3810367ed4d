"""Exact checks of a private step, and of how the weights moved after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError

__all__ = [
    "Resolved",
    "StepFacts",
    "StepWitness",
    "WeightFacts",
    "WeightMove",
    "WeightWitness",
    "due",
    "over_ranks",
    "resolve",
    "same_weights",
]

# Where the stream of looked-at steps grows from a run's seed.
_STREAM = 21
# Directions of the records below this share of the largest are the same but for rounding.
_DEPENDENT = 1e-6
# One constant, to rounding; coarser number formats round more.
_CONSTANT = 1e-4
_CONSTANT_ULPS = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What was found in the steps that were looked at, and in what was looked at in all of them.

    Norms are in clip norms. Steps count from 1, and are 0 where there is none.

    Attributes:
        share: The share of steps that were to be looked at, beside the first.
        unchecked: Why records could not be looked at; empty where they were.
        recomputed: Whether the records' gradients were computed again, as for ghost clipping.
        steps: Steps looked at.
        records: Records whose contribution was computed.
        precision: Number format of the records' gradients, where it is coarser than float32;
            empty where it is not.
        coarseness: How far above the clip norm norms in that format may let a record, in clip
            norms.
        clipped: Those whose gradient was longer than the clip norm, so that clipping had to act.
        largest: The largest contribution of a record after clipping.
        largest_step: The step it was in.
        largest_tensor: The tensor that most of it was in.
        off: The largest distance of a sum from that of its records.
        off_allowed: How far rounding may have put that sum.
        off_step: The step it was in.
        off_tensor: The tensor that most of it was in.
        norm_off: The largest error of a norm that ghost clipping computed, as a share of the norm
            of the whole gradient; negative where it computed too little.
        norm_step: The step it was in.
        norm_tensor: The tensor it was in.
        divided: Steps whose divisor was measured.
        least_divisor: The smallest of them, in units of the stated one.
        most_divisor: The largest.
        divisor_step: The step in which it first was another one.
        uneven: Steps whose gradient was not divided by one number.
        divisor_spacing: How far apart rounding alone may put two divisors.
        covered: Steps in which the noise of every trained tensor was looked at.
        uncovered: Trained tensors, or parts of them, that got no noise.
        uncovered_step: The step in which that first was so.
    """

    share: float = 0.0
    unchecked: str = ""
    recomputed: bool = False
    steps: int = 0
    records: int = 0
    precision: str = ""
    coarseness: float = 0.0
    clipped: int = 0
    largest: float = 0.0
    largest_step: int = 0
    largest_tensor: str = ""
    off: float = 0.0
    off_allowed: float = 0.0
    off_step: int = 0
    off_tensor: str = ""
    norm_off: float = 0.0
    norm_step: int = 0
    norm_tensor: str = ""
    divided: int = 0
    least_divisor: float = 1.0
    most_divisor: float = 1.0
    divisor_step: int = 0
    uneven: int = 0
    divisor_spacing: float = _CONSTANT
    covered: int = 0
    uncovered: tuple[str, ...] = ()
    uncovered_step: int = 0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        names = (
            "steps",
            "records",
            "clipped",
            "largest",
            "off",
            "divided",
            "uneven",
            "covered",
            "share",
            "coarseness",
        )
        for name in names:
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.witness.{name} >= 0, got it below.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A sum told apart into what each record added.

    Attributes:
        factors: What each record's gradient was multiplied by; empty where that cannot be told.
        rest: Norm of what no multiples of the records' gradients explain.
    """

    factors: NDArray[np.float64]
    rest: float


def resolve(gram: NDArray[np.float64], products: NDArray[np.float64], square: float) -> Resolved:
    """Tell a sum apart into multiples of gradients, by least squares.

    Args:
        gram: Inner products of the records' gradients.
        products: Inner product of each with the sum.
        square: Squared norm of the sum.
    """
    values, vectors = np.linalg.eigh(0.5 * (gram + gram.T))
    kept = values > _DEPENDENT * max(float(values.max(initial=0.0)), 1e-300)
    along = vectors[:, kept].T @ products
    rest = max(square - float((along**2 / values[kept]).sum()), 0.0) ** 0.5
    norms = np.sqrt(np.diag(gram))
    moving = norms > _DEPENDENT * float(norms.max(initial=0.0))
    if int(kept.sum()) < int(moving.sum()):
        return Resolved(factors=np.zeros(0), rest=rest)
    factors = vectors[:, kept] @ (along / values[kept])
    return Resolved(factors=np.where(moving, factors, 0.0), rest=rest)


def due(seed: int, step: int, share: float) -> bool:
    """Whether a step, counted from 1, is one to look at: the first, and a random share."""
    if share <= 0.0:
        return False
    return step <= 1 or bool(np.random.default_rng((seed, _STREAM, step)).random() < share)


def over_ranks(ranks: Sequence[StepFacts]) -> StepFacts:
    """What the ranks of one run found together: each looks at the records that it has itself.

    Divisors are those of the first, since every rank divides the same sum.
    """
    if len(ranks) == 1:
        return ranks[0]
    told = [
        replace(
            facts,
            largest_tensor=f"{facts.largest_tensor} of rank {rank}",
            off_tensor=f"{facts.off_tensor} of rank {rank}",
            norm_tensor=f"{facts.norm_tensor} of rank {rank}",
            uncovered=tuple(f"{name} of rank {rank}" for name in facts.uncovered),
        )
        for rank, facts in enumerate(ranks)
    ]
    largest = max(told, key=lambda facts: facts.largest)
    coarse = max(told, key=lambda facts: facts.coarseness)
    off = max(told, key=lambda facts: facts.off - facts.off_allowed if facts.off_step else -1.0)
    norm = max(told, key=lambda facts: abs(facts.norm_off))
    bare = [facts.uncovered_step for facts in told if facts.uncovered_step]
    return replace(
        told[0],
        steps=min(facts.steps for facts in told),
        records=sum(facts.records for facts in told),
        precision=coarse.precision,
        coarseness=coarse.coarseness,
        clipped=sum(facts.clipped for facts in told),
        largest=largest.largest,
        largest_step=largest.largest_step,
        largest_tensor=largest.largest_tensor,
        off=off.off,
        off_allowed=off.off_allowed,
        off_step=off.off_step,
        off_tensor=off.off_tensor,
        norm_off=norm.norm_off,
        norm_step=norm.norm_step,
        norm_tensor=norm.norm_tensor,
        covered=max(facts.covered for facts in told),
        uncovered=tuple(name for facts in told for name in facts.uncovered),
        uncovered_step=min(bare, default=0),
    )


class StepWitness:
    """Keeps what was found, step by step.

    Args:
        share: The share of steps to look at; 0 for none.
        seed: Root of the choice.
        unchecked: Why records cannot be looked at; empty where they can.
        recomputed: Whether the records' gradients are computed again.
    """

    def __init__(
        self, *, share: float, seed: int, unchecked: str = "", recomputed: bool = False
    ) -> None:
        _validate.within(0, 1, closed="both", witness=share)
        self._seed = seed
        # Divisors that are no news, which are in the facts when somebody asks for them.
        self._even = 0
        self._facts = StepFacts(share=float(share), unchecked=unchecked, recomputed=recomputed)

    @property
    def facts(self) -> StepFacts:
        """What was found so far."""
        if self._even:
            self._facts = replace(self._facts, divided=self._facts.divided + self._even)
            self._even = 0
        return self._facts

    def load(self, facts: StepFacts | None) -> None:
        """Go on from what another witness of the same run found."""
        if facts is not None:
            mine, self._even = self._facts, 0
            self._facts = replace(
                facts, share=mine.share, unchecked=mine.unchecked, recomputed=mine.recomputed
            )

    def due(self, step: int) -> bool:
        """Whether to look at a step, counted from 1."""
        return not self._facts.unchecked and due(self._seed, step, self._facts.share)

    def looked(self) -> None:
        """A step was looked at."""
        self._facts = replace(self._facts, steps=self._facts.steps + 1)

    def contributions(
        self,
        sizes: NDArray[np.float64],
        norms: NDArray[np.float64],
        tensors: Sequence[str],
        step: int,
    ) -> None:
        """What records added to the sum.

        Args:
            sizes: Norms of what they added, in clip norms.
            norms: Norms of their gradients, in clip norms.
            tensors: The tensor that most of each was in.
            step: The step.
        """
        facts = self._facts
        facts = replace(
            facts,
            records=facts.records + int(sizes.size),
            clipped=facts.clipped + int(np.count_nonzero(norms > 1.0)),
        )
        if sizes.size and not float(sizes.max()) <= facts.largest:
            place = int(np.argmax(sizes))
            facts = replace(
                facts,
                largest=float(sizes[place]),
                largest_step=step,
                largest_tensor=tensors[place],
            )
        self._facts = facts

    def coarse(self, precision: str, coarseness: float) -> None:
        """Records' gradients are in a coarser number format than the weights."""
        if coarseness > self._facts.coarseness:
            self._facts = replace(self._facts, precision=precision, coarseness=coarseness)

    def distance(self, off: float, allowed: float, tensor: str, step: int) -> None:
        """How far a sum was from that of its records, and how far rounding may put it."""
        facts = self._facts
        if not off - allowed <= facts.off - facts.off_allowed or facts.off_step == 0:
            self._facts = replace(
                facts, off=off, off_allowed=allowed, off_tensor=tensor, off_step=step
            )

    def norm(self, off: float, tensor: str, step: int) -> None:
        """The error of a norm that ghost clipping computed."""
        if abs(off) > abs(self._facts.norm_off):
            self._facts = replace(self._facts, norm_off=off, norm_tensor=tensor, norm_step=step)

    def divisor(
        self,
        noisy: NDArray[np.float64],
        released: NDArray[np.float64],
        stated: float,
        precision: float,
        step: int,
    ) -> None:
        """Measure what a step divided the noisy sum by."""
        square, whole = float(released @ released), float(noisy @ noisy)
        if not (math.isfinite(square) and square > 0.0 and math.isfinite(whole)):
            return
        facts, spacing = self._facts, max(_CONSTANT, _CONSTANT_ULPS * precision)
        measured = float(noisy @ released) / square
        rest = noisy - measured * released
        uneven = float(rest @ rest) > spacing**2 * whole
        ratio = measured / stated
        another = uneven or abs(ratio - 1.0) > spacing
        if not another and facts.divided and facts.least_divisor <= ratio <= facts.most_divisor:
            self._even += 1
            return
        self._facts = replace(
            facts,
            divided=facts.divided + 1,
            uneven=facts.uneven + uneven,
            least_divisor=min(facts.least_divisor, ratio) if facts.divided else ratio,
            most_divisor=max(facts.most_divisor, ratio) if facts.divided else ratio,
            divisor_step=facts.divisor_step or (step if another else 0),
            divisor_spacing=spacing,
        )

    def coverage(self, uncovered: Sequence[str], step: int) -> None:
        """Trained tensors that got no noise in a step."""
        facts = self._facts
        more = tuple(name for name in uncovered if name not in facts.uncovered)
        self._facts = replace(
            facts,
            covered=facts.covered + 1,
            uncovered=(*facts.uncovered, *more),
            uncovered_step=facts.uncovered_step or (step if more else 0),
        )


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

    def between(self, before: NDArray[np.float64], now: NDArray[np.float64], step: int) -> bool:
        """Compare weights after a step with those before the next; whether they are the same."""
        changed = ~same_weights(before, now)
        if not changed.any():
            return True
        facts = self._facts
        place = int(np.argmax(changed))
        self._facts = replace(
            facts,
            between=facts.between + 1,
            between_first=facts.between_first or step,
            between_tensor=facts.between_tensor or self._names[int(self._tensor[place])],
        )
        return False

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
