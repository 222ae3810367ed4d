"""How a guessing rule or a threshold is chosen, and what the choice costs.

A rule chosen on the canaries it is tested with makes the bound too high. Each class here is one
valid way to choose:

=========  ======================================================================================
`Ranks`    the default: by ranks alone, without a random draw
`Fixed`    stated in advance: no cost
`Split`    chosen on some canaries, tested on the others: fewer canaries are left to test
=========  ======================================================================================

Every random draw is seeded with the seed, the purpose and the *ranks* of the scores, never with
their values: another unit, or any other increasing map of the scores, changes nothing. Neither does
the order in which canaries were given, but for ties.

Ties: equal scores are put in a random order first. The order in which canaries were given must not
break them, since inserted ones are often given first.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, ScoresError

__all__ = [
    "Fixed",
    "Ranks",
    "Selection",
    "Split",
    "digest",
    "fingerprint",
    "random_order",
    "stream",
]

# Thresholds that `Ranks` tries; how many canaries tell where a tenth would be fewer, and from how
# many on any do.
_RANKS = 5
_FEWEST_TELLING = 100
_FEWEST_TO_TELL = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The rule depends on the ranks of the scores alone, and nothing is drawn.

    *Guesses.* Below 500 canaries a stated share of all, between 0.36 and 0.5: canaries that only
    tell would be missed more than a better number gains. From there on, of the sorted canaries
    every so-many-th, a tenth of them and at least 100, tells its membership; those say how accurate
    every share of guesses would be (an average over channels, Gaussian ones and such of bounded log
    odds, by how well each explains them), the one that promises most is taken, and the others test
    it. Which ones tell depends on the scores alone, so that the others' coins stay as open as they
    were. `OrderStatistics`, which knows the distribution of sorted scores, guesses for three
    quarters of all canaries instead.

    *Thresholds.* Thresholds are scores at stated ranks: in the larger of the two groups the first,
    and four more up to a fifth of it; in the other one the first, and a twentieth of it. Each has
    an equal share of the error. The share of that group's
    distribution beyond such a score is Beta distributed whatever the scores are, and given the
    threshold the count of the other group is binomial, so that the p-value of both together is
    exact. Equal scores are put in a random order first, so that all are of different rank.
    """

    kind: Literal["ranks"] = field(default="ranks", repr=False)

    @staticmethod
    def stated(canaries: int) -> int | None:
        """The number of guesses that few canaries leave no choice of; None where it is chosen."""
        if canaries >= _FEWEST_TO_TELL:
            return None
        share = 0.5 * min(1.0, math.pow(100.0 / canaries, 0.2))
        return max(1, round(share * canaries))

    @staticmethod
    def telling(canaries: int) -> NDArray[np.bool_]:
        """Which of so many sorted canaries tell their membership: equally spaced ones."""
        size = max(round(0.1 * canaries), _FEWEST_TELLING)
        told = np.zeros(canaries, dtype=np.bool_)
        told[((np.arange(size) + 0.5) * canaries / size).astype(np.intp)] = True
        return told

    @staticmethod
    def thresholds(size: int) -> NDArray[np.int64]:
        """Ranks of the thresholds in the larger group, of this size."""
        return np.unique(np.geomspace(1.0, max(1.0, 0.2 * size), _RANKS).round().astype(np.int64))

    @staticmethod
    def other_thresholds(size: int) -> NDArray[np.int64]:
        """Ranks of the thresholds in the smaller group, of this size."""
        return np.unique([1, max(1, round(0.05 * size))])


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

    def part(self, canaries: int, entropy: int) -> NDArray[np.bool_]:
        """Which canaries the rule is chosen on; the others test it.

        Args:
            canaries: How many there are.
            entropy: The `fingerprint` of the scores. Canaries come sorted by their scores, so that
                one draw for all audits of a size would leave out the same ranks again and again.

        Raises:
            ScoresError: There are too few canaries to choose on some and test on others.
        """
        if canaries < 2:
            raise ScoresError(
                f"Expected at least 2 canaries of a kind for {self}, got {canaries}. Plant more, "
                "or state the rule in advance with Fixed()."
            )
        size = min(max(round(self.fraction * canaries), 1), canaries - 1)
        chosen = np.zeros(canaries, dtype=np.bool_)
        chosen[stream(self, "parts", entropy).permutation(canaries)[:size]] = True
        return chosen


Selection = Ranks | Fixed | Split


def digest(array: NDArray[Any]) -> int:
    """A number that tells one array from another, to seed draws with."""
    found = hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16)
    return int.from_bytes(found.digest())


def fingerprint(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_] | None = None,
    run: str | None = None,
) -> int:
    """A number that seeds draws: of the ranks, whatever the unit of the scores and their order.

    Args:
        scores: The scores.
        member: Who is present, where a draw may depend on it: with one draw for all audits of a
            size, an unlucky one would leave out the same ranks again and again. Guesses are tested
            against open coins, and must not depend on them.
        run: The identity of the run.
    """
    order = np.argsort(scores) if member is None else np.lexsort((member, scores))
    ranked = scores[order]
    found = hashlib.blake2b((ranked[1:] == ranked[:-1]).tobytes(), digest_size=16)
    if member is not None:
        found.update(member[order].tobytes())
    found.update((run or "").encode())
    return int.from_bytes(found.digest())


def stream(
    selection: Selection | None, purpose: str, entropy: int | None = None
) -> np.random.Generator:
    """The random generator of a selection for one purpose; no two purposes share one.

    Args:
        selection: Whose seed it has, if any.
        purpose: What it is for.
        entropy: The `fingerprint` of the scores.
    """
    seeds = [getattr(selection, "seed", 0), *purpose.encode()]
    return np.random.default_rng(seeds if entropy is None else [*seeds, entropy])


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
    shuffled = stream(selection, "ties", fingerprint(scores)).permutation(scores.size)
    return shuffled[np.argsort(scores[shuffled], kind="stable")]
