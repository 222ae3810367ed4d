"""How a guessing rule or a threshold is chosen, and what the choice costs.

A rule chosen on the canaries it is tested with makes the bound too high. Each class here is one
honest way to choose, with its price built in; there is none without a price:

================  ================================================================================
`Fixed`           stated in advance: no price
`Split`           chosen on some canaries, tested on the others: the price is fewer canaries
`MultiSplit`      many such splits at half the error each, the median bound (Meinshausen et al.,
                  arXiv 0811.2177)
`CrossFit`        chosen on one fold, tested on the others, at an equal share of the error each
`UnionBound`      a grid of rules fixed in advance, at an equal share of the error each
`DKW`             all thresholds at once, in a simultaneous band; for confusion matrices only
================  ================================================================================

Ties: equal scores are put in a random order first, by a generator seeded with the seed and the
scores. The order in which canaries were given must not break them, since present ones are often
given first.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, ScoresError

__all__ = [
    "DKW",
    "Combination",
    "CrossFit",
    "Fixed",
    "MultiSplit",
    "Selection",
    "Split",
    "UnionBound",
    "choosing_parts",
    "random_order",
    "stream",
]

# Of a rule: more take minutes, and each leaves the others less.
_MOST_TRIALS = 10**4


class Combination(enum.Enum):
    """How several trials become one answer."""

    BEST = "best"
    """Each at an equal share of the error; the best counts."""
    MEDIAN = "median"
    """Each at half the error; counts what at least half of them reach."""
    BAND = "band"
    """All at the whole error, because they hold together; the best counts."""

    def share(self, error: float, trials: int) -> float:
        """The error at which each of so many trials is read."""
        if self is Combination.BEST:
            return error / trials
        return error / 2.0 if self is Combination.MEDIAN else error

    def largest(self, values: Sequence[float]) -> float:
        """The combined bound, or the combined margin of a test."""
        ordered = sorted(values, reverse=True)
        return ordered[(len(ordered) - 1) // 2 if self is Combination.MEDIAN else 0]

    def p_value(self, values: Sequence[float]) -> float:
        """The combined p-value."""
        ordered = sorted(values)
        if self is Combination.MEDIAN:
            return min(1.0, 2.0 * ordered[(len(ordered) - 1) // 2])
        return min(1.0, ordered[0] * (len(ordered) if self is Combination.BEST else 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A rule stated before anybody looked at the scores; exactly one of the three.

    Args:
        threshold: Guess "present" for every score at or above it, and nothing else.
        guesses: Guess for this many canaries.
        fraction: Guess for this share of the canaries.

    Examples:
        >>> Fixed(guesses=100)
        Fixed(threshold=None, guesses=100, fraction=None)
    """

    threshold: float | None = None
    guesses: int | None = None
    fraction: float | None = None
    kind: Literal["fixed"] = field(default="fixed", repr=False)

    def __post_init__(self) -> None:
        given = {"threshold": self.threshold, "guesses": self.guesses, "fraction": self.fraction}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise InvalidArgumentError(
                "Expected exactly one of threshold, guesses and fraction, got "
                f"{' and '.join(named) or 'none'}. State one rule in advance."
            )
        if self.threshold is not None:
            _validate.finite(threshold=self.threshold)
        if self.guesses is not None:
            _validate.count(guesses=self.guesses)
        if self.fraction is not None:
            _validate.within(0, 1, closed="right", fraction=self.fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Choose on a random part of the canaries, test on the rest.

    Args:
        fraction: Share of the canaries to choose on.
        seed: Seed of the split.
    """

    fraction: float = 0.2
    seed: int = 0
    kind: Literal["split"] = field(default="split", repr=False)

    def __post_init__(self) -> None:
        _validate.probability(fraction=self.fraction)
        _validate.integer(0, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiSplit:
    """Many splits, each at half the error; the median bound.

    Less at the mercy of one split than `Split`, and a little lower on average.

    Args:
        splits: Number of splits.
        fraction: Share of the canaries to choose on in each.
        seed: Seed of the splits.
    """

    splits: int = 25
    fraction: float = 0.2
    seed: int = 0
    kind: Literal["multi-split"] = field(default="multi-split", repr=False)

    def __post_init__(self) -> None:
        _validate.count(2, maximum=_MOST_TRIALS, splits=self.splits)
        _validate.probability(fraction=self.fraction)
        _validate.integer(0, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionBound:
    """A grid of rules fixed in advance, each at an equal share of the error.

    Numbers of guesses depend on the number of canaries only. Thresholds are the scores of randomly
    drawn canaries that are then left out: given those, the others are as independent as before.

    Args:
        candidates: Number of rules.
        seed: Seed of the draw of canaries.
    """

    candidates: int = 16
    seed: int = 0
    kind: Literal["union-bound"] = field(default="union-bound", repr=False)

    def __post_init__(self) -> None:
        _validate.count(maximum=_MOST_TRIALS, candidates=self.candidates)
        _validate.integer(0, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossFit:
    """Choose on one fold, test on the others at an equal share of the error; the best fold counts.

    Args:
        folds: Number of folds.
        seed: Seed of the folds.
    """

    folds: int = 5
    seed: int = 0
    kind: Literal["cross-fit"] = field(default="cross-fit", repr=False)

    def __post_init__(self) -> None:
        _validate.count(2, maximum=_MOST_TRIALS, folds=self.folds)
        _validate.integer(0, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DKW:
    """Every threshold at once: error rates raised by the Dvoretzky-Kiefer-Wolfowitz band."""

    kind: Literal["dkw"] = field(default="dkw", repr=False)

    @staticmethod
    def width(error: float, trials: int) -> float:
        """What is added to an empirical rate; Massart's one-sided constant, half the error."""
        return math.sqrt(math.log(2.0 / error) / (2.0 * trials))


Selection = Fixed | Split | MultiSplit | UnionBound | CrossFit | DKW


def stream(
    selection: Selection | None, purpose: str, scores: NDArray[np.float64] | None = None
) -> np.random.Generator:
    """The random generator of a selection for one purpose; no two purposes share one.

    Where canaries are put in random order by their index, the scores belong to the seed. With one
    order for all audits, an unlucky one would favour the same canaries, often the present ones,
    again and again.
    """
    entropy = [getattr(selection, "seed", 0), *purpose.encode()]
    if scores is not None:
        digest = hashlib.blake2b(np.ascontiguousarray(scores).data, digest_size=16).digest()
        entropy.append(int.from_bytes(digest))
    return np.random.default_rng(entropy)


def random_order(
    scores: NDArray[np.float64], selection: Selection | None = None
) -> NDArray[np.intp]:
    """Indices that sort the scores upwards, with ties in random order.

    Examples:
        >>> random_order(np.array([3.0, 1.0, 2.0]))
        array([1, 2, 0])
    """
    order = np.argsort(scores)
    ranked = scores[order]
    if not (ranked[1:] == ranked[:-1]).any():
        return order
    shuffled = stream(selection, "ties", scores).permutation(scores.size)
    return shuffled[np.argsort(scores[shuffled], kind="stable")]


def choosing_parts(
    selection: Split | MultiSplit | CrossFit, canaries: int, scores: NDArray[np.float64]
) -> Iterator[NDArray[np.bool_]]:
    """For each trial, which canaries the rule is chosen on; the others test it.

    Canaries come sorted by their scores, so that one draw for all audits of a size would leave out
    the same ranks again and again: the sorted scores belong to the seed.

    Raises:
        ScoresError: There are too few canaries to choose on some and test on others.
    """
    needed = selection.folds if isinstance(selection, CrossFit) else 2
    if canaries < needed:
        raise ScoresError(
            f"Expected at least {needed} canaries of a kind for {selection}, got {canaries}. Plant "
            "more, or state the rule in advance with Fixed()."
        )
    generator = stream(selection, "parts", scores)
    if isinstance(selection, CrossFit):
        fold = generator.permutation(canaries) % selection.folds
        for index in range(selection.folds):
            yield fold == index
        return
    size = min(max(round(selection.fraction * canaries), 1), canaries - 1)
    for _ in range(selection.splits if isinstance(selection, MultiSplit) else 1):
        chosen = np.zeros(canaries, dtype=np.bool_)
        chosen[generator.permutation(canaries)[:size]] = True
        yield chosen
