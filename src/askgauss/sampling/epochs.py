"""Schemes in which every record comes up once an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.sampling.scheme import (
    Integers,
    Limits,
    Mask,
    Scheme,
    check_draw,
    hypergeometric_limits,
)
from askgauss.stats.composition import Pair, ways_epsilon
from askgauss.stats.limits import binomial_p_value

if TYPE_CHECKING:
    from askgauss.sampling.batch_testing import SchemeSums

__all__ = ["BallsInBins", "Shuffled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled(Scheme):
    """The records in random order, cut into batches of one size: what most loaders do.

    Args:
        batches: Batches in an epoch.
        reshuffled: Whether every epoch has a new order; otherwise the first one's is repeated, and
            one step of a record reveals its others.

    Examples:
        >>> print(Shuffled(batches=20))
        shuffled epochs of 20 batches
        >>> shuffled = Shuffled(batches=100)
        >>> round(shuffled.epsilon_lower(noise_multiplier=0.5, steps=100, delta=1e-5), 3)
        5.397
    """

    tag: ClassVar[str] = "shuffled"

    batches: int
    reshuffled: bool = True

    def __post_init__(self) -> None:
        _validate.count(batches=self.batches)

    def __str__(self) -> str:
        order = "" if self.reshuffled else " in one order"
        return f"shuffled epochs of {self.batches:,} batches{order}"

    @property
    def share(self) -> float:
        """Once an epoch."""
        return 1.0 / self.batches

    def record_by_record(self) -> BallsInBins:
        """Each at a random place, independently."""
        return BallsInBins(bins=self.batches, redrawn=self.reshuffled)

    @property
    def period(self) -> int | None:
        """An epoch."""
        return self.batches

    def draws_within(self, steps: int) -> tuple[int, int]:
        """Once an epoch."""
        return steps // self.batches, -(-steps // self.batches)

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return _once_an_epoch(self.batches, self.reshuffled, signal, steps, delta)

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """No accountant is known that bounds shuffled batches from above."""
        raise UnsupportedError(
            f"No accountant bounds {self} from above: what is known are lower bounds. Treat every "
            f"epoch as one step that every record takes part in (EveryStep with {steps} / "
            f"{self.batches} steps, rounded up), which claims nothing for the shuffling."
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        order = rng.permutation(records)
        for step in range(steps):
            place = step % self.batches
            if place == 0 and step and self.reshuffled:
                order = rng.permutation(records)
            yield np.sort(np.array_split(order, self.batches)[place])

    def pool(self, past: SchemeSums) -> Mask:
        """Records that this epoch has not had; in a repeated epoch, those at this place."""
        return _waiting(past, self.batches, self.reshuffled)

    def required(self, past: SchemeSums) -> Mask | None:
        """All of them, where the order is a repeated one."""
        repeated = not self.reshuffled and past.step >= self.batches
        return self.pool(past) if repeated else None

    def size_breaks(self, sizes: Integers) -> Mask:
        """Within an epoch only the last batch may be smaller, and every epoch is like the first."""
        broken = np.zeros(sizes.size, dtype=np.bool_)
        epoch = sizes[: self.batches]
        full = epoch[: self.batches - 1] if epoch.size == self.batches else epoch
        if full.size:
            broken[: full.size] = full < full.max() - 1
            broken[full.size : epoch.size] = epoch[full.size :] > full.max()
        broken[self.batches :] = sizes[self.batches :] != sizes[: -self.batches]
        return broken

    def size_limits(self, past: SchemeSums) -> Limits | None:
        """Of a part of the records a batch shows as many as chance has it."""
        sizes = past.sizes
        if past.records is None or past.seen == past.records or (sizes < 0).any():
            return None
        steps = np.arange(past.step)
        gone = np.cumsum(sizes) - sizes
        left = past.records - (gone - gone[steps - steps % self.batches])
        if not self.reshuffled:
            left[self.batches :] = sizes[self.batches :]
        left = np.maximum(left, np.maximum(past.pools, sizes))
        return hypergeometric_limits(past.drawn, left, past.pools, sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BallsInBins(Scheme):
    """Every record picks one of an epoch's batches, independently and each as likely.

    Args:
        bins: Batches in an epoch.
        redrawn: Whether records pick anew in every epoch; otherwise they keep their batch, as in
            jax_privacy's ``BallsInBinsSampling``.

    Examples:
        >>> print(BallsInBins(bins=20))
        balls in 20 bins
    """

    tag: ClassVar[str] = "balls-in-bins"
    independent: ClassVar[bool] = True

    bins: int
    redrawn: bool = True

    def __post_init__(self) -> None:
        _validate.count(bins=self.bins)

    def __str__(self) -> str:
        return f"balls in {self.bins:,} bins{'' if self.redrawn else ', thrown once'}"

    @property
    def share(self) -> float:
        """Once an epoch."""
        return 1.0 / self.bins

    @property
    def period(self) -> int | None:
        """An epoch."""
        return self.bins

    def draws_within(self, steps: int) -> tuple[int, int]:
        """Once an epoch."""
        return steps // self.bins, -(-steps // self.bins)

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Once in every whole epoch, and binomial in one that is not."""
        epochs, more = divmod(steps, self.bins)
        return binomial_p_value(drawn - epochs * records, records, more / self.bins)

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return _once_an_epoch(self.bins, self.redrawn, signal, steps, delta)

    def coarse_epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The larger of that of the sum and a closed form for little noise."""
        summed = Scheme.coarse_epsilon_lower(
            self, noise_multiplier=noise_multiplier, steps=steps, delta=delta
        )
        epochs = steps // self.bins
        return max(
            summed, _over_all_ways(self.bins, self.redrawn, 1.0 / noise_multiplier, epochs, delta)
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        place = rng.integers(0, self.bins, records)
        for step in range(steps):
            if step and step % self.bins == 0 and self.redrawn:
                place = rng.integers(0, self.bins, records)
            yield np.flatnonzero(place == step % self.bins)

    def pool(self, past: SchemeSums) -> Mask:
        """Records that this epoch has not had; in a repeated epoch, those of this bin."""
        return _waiting(past, self.bins, self.redrawn)

    def required(self, past: SchemeSums) -> Mask | None:
        """All that are left for the last bin; and all, where bins are kept."""
        return self.pool(past) if self.inclusion_probability(past) == 1.0 else None

    def inclusion_probability(self, past: SchemeSums) -> float:
        """One of the bins that are left."""
        if not self.redrawn and past.step >= self.bins:
            return 1.0
        return 1.0 / (self.bins - past.step % self.bins)


def _waiting(past: SchemeSums, places: int, redrawn: bool) -> Mask:
    if not redrawn and past.step >= places:
        return np.asarray(past.last == past.step - places)
    return np.asarray(past.last < past.step - past.step % places)


def _over_all_ways(places: int, redrawn: bool, signal: float, epochs: int, delta: float) -> float:
    """Epsilon of whole epochs by a closed form, good where there is little noise."""
    if not epochs:
        return 0.0
    ways = (epochs if redrawn else 1) * math.log(places)
    return ways_epsilon(math.sqrt(epochs) * signal, ways, delta)


@lru_cache(maxsize=256)
def _once_an_epoch(places: int, redrawn: bool, signal: float, steps: int, delta: float) -> float:
    """Epsilon of a canary at one of so many places, anew in every epoch or once and for all."""
    epochs, more = divmod(steps, places)
    if signal == math.inf:
        return math.inf if delta < (1.0 if epochs else more / places) else 0.0
    # With many epochs and little noise the pair outgrows floating point: there, a closed form. It
    # leaves out a last epoch that is not whole.
    epsilon = _over_all_ways(places, redrawn, signal, epochs, delta)
    signal = min(signal, Pair.LARGEST)
    if redrawn:
        epoch = Pair.gaussian(signal)
        run = epoch.anywhere(places).composed(epochs) if epochs else Pair.certain()
        if more:
            run = run.then(epoch.anywhere(more).sampled(more / places))
    else:
        once, again = (
            Pair.gaussian(min(signal * math.sqrt(times), Pair.LARGEST))
            for times in (epochs, epochs + 1)
        )
        run = once.anywhere(places - more)
        if more:
            run = again.anywhere(more).either(run, more / places)
    if steps <= places:
        # Exact to more digits, and as good as all of it where the noise is little.
        alone = Pair.highest(signal, steps).sampled(steps / places)
        epsilon = max(epsilon, alone.epsilon(delta))
    return max(epsilon, run.epsilon(delta))
