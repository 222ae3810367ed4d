"""Exact checks of a private step, and of how the weights moved after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.recording.facts import DIVISOR_SPACING, RowFacts, SettingFacts, StepFacts, WeightFacts

__all__ = [
    "BatchWeights",
    "SettingCourse",
    "StepWitness",
    "WeightMove",
    "WeightWitness",
    "due",
    "over_ranks",
    "resolve",
    "rows_over_ranks",
]

# Weights of one class agree by as much, and follow a formula by as much.
_SAME = 1e-3
# Weights that are taken from the batch move by more than this from step to step.
_MOVED = 1e-2
# Bases of the "effective number" of records of a class.
_BASES = (0.9, 0.99, 0.999, 0.9999)
# Values nearer than this are the same, but for rounding.
_SAME_SETTING = 1e-9
# Patterns that are remembered.
_PATTERNS = 4096
_OF_MORE = ("multiple", "extra_least", "extra_most")
# Coarser number formats round a divisor by so many of their spacings.
_SPACING_ULPS = 32.0
# Where the stream of looked-at steps grows from a run's seed.
_STREAM = 21
# Directions of the records below this share of the largest are the same but for rounding.
_DEPENDENT = 1e-6


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
        facts, spacing = self._facts, max(DIVISOR_SPACING, _SPACING_ULPS * precision)
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


class SettingCourse:
    """Follows one number from step to step.

    Args:
        name: The setting.
        adapted: Whether the optimizer adapts it.
    """

    def __init__(self, name: str, *, adapted: bool = False) -> None:
        self._facts = SettingFacts(name=name, adapted=adapted)
        # Steps that are no news, which are in the facts when somebody asks for them.
        self._alike = 0
        self._value: float | None = None
        self._length = 0
        self._rising: bool | None = None
        self._last: tuple[tuple[float, int], ...] = ()
        self._patterns: dict[tuple[tuple[float, int], ...], tuple[float, int]] = {}

    @property
    def facts(self) -> SettingFacts:
        """What was seen so far."""
        return replace(self._facts, steps=self._facts.steps + self._alike)

    def load(self, facts: SettingFacts) -> None:
        """Go on from the facts of a checkpoint."""
        self._facts, self._alike = replace(facts, adapted=self._facts.adapted), 0
        self._value, self._rising, self._last = None, None, ()

    def set_by(self, scheduler: str) -> None:
        """A scheduler of this class sets it."""
        if scheduler != self._facts.scheduler:
            self._facts = replace(self._facts, scheduler=scheduler)

    def moves(self, value: float) -> bool:
        """Whether a value is another one than in the last step."""
        last = self._value
        return last is not None and not math.isclose(
            value, last, rel_tol=_SAME_SETTING, abs_tol=0.0
        )

    def stay(self, steps: int) -> None:
        """So many steps have the value of the last."""
        self._length += steps
        self._alike += steps

    def note(self, value: float, step: int, *, declared: bool = False) -> None:
        """A step has this value.

        Args:
            value: The value.
            step: The step, counted from 1.
            declared: Whether a change is known not to depend on the data.
        """
        facts = self._facts
        if not self.moves(value):
            self._value = value if self._value is None else self._value
            self.stay(1)
            return
        assert self._value is not None
        if declared:
            self._facts = replace(facts, steps=facts.steps + 1, declared=facts.declared + 1)
            self._rising, self._last = None, ()
        else:
            self._facts = replace(
                facts,
                steps=facts.steps + 1,
                changes=facts.changes + 1,
                turns=facts.turns + self._turned(value > self._value),
                first=facts.first or step,
            )
        self._value, self._length = value, 1

    def _turned(self, rising: bool) -> bool:
        """Whether a change turns without having been foretold."""
        assert self._value is not None
        # What was held, and for how long, is foretold by the two before it.
        held = (float(f"{self._value:.9g}"), self._length)
        foretold = self._patterns.get(self._last) == held
        if len(self._last) == 2 and (len(self._patterns) < _PATTERNS or foretold):
            self._patterns[self._last] = held
        self._last = (*self._last, held)[-2:]
        turned = self._rising is not None and rising != self._rising
        self._rising = rising
        return turned and not foretold


def rows_over_ranks(ranks: Sequence[RowFacts]) -> RowFacts:
    """What several ranks found: the first fault of each kind, and the most steps of any rank."""
    merged = ranks[0]
    for other in ranks[1:]:
        for name in ("more", "fewer", "doubled", "strays", "unused", "skipped", "foreign", "again"):
            if getattr(other, name) > getattr(merged, name):
                of_kind = {
                    item.name: getattr(other, item.name)
                    for item in fields(RowFacts)
                    if item.name.startswith(name) or (name == "more" and item.name in _OF_MORE)
                }
                merged = replace(merged, **of_kind)
        merged = replace(
            merged,
            unseen=merged.unseen or other.unseen,
            even=merged.even and other.even,
            other=merged.other or other.other,
            compared=min(merged.compared, other.compared),
            identified=min(merged.identified, other.identified),
            undrawn=max(merged.undrawn, other.undrawn),
            missed=max(merged.missed, other.missed),
        )
    return merged
