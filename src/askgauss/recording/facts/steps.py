"""Exact invariants of a private step: what each record adds, their sum, the divisor, the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError

__all__ = ["Resolved", "StepFacts", "StepWitness", "due", "over_ranks", "resolve"]

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
