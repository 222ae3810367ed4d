"""Schemes with a fixed or a largest batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, rel_entr

from askgauss import _validate, accounting
from askgauss.sampling.scheme import (
    Integers,
    Limits,
    Mask,
    Scheme,
    check_draw,
    hypergeometric_limits,
)
from askgauss.stats.composition import Pair
from askgauss.stats.gaussian import gdp_epsilon
from askgauss.stats.limits import binomial_p_value, binomial_weights

if TYPE_CHECKING:
    from askgauss.sampling.batch_testing import SchemeSums

__all__ = [
    "CyclicPoisson",
    "EveryStep",
    "FixedSize",
    "MinSeparation",
    "Poisson",
    "PoissonAlone",
    "TruncatedPoisson",
]

# Numbers of inclusions of one record that are kept apart, for a bound and for a coarse one.
_COUNTS, _COARSE_COUNTS = 4096, 12


class PoissonAlone(Scheme):
    """A scheme under which one record, seen alone, is Poisson sampled at the rate `share`."""

    def record_by_record(self) -> Poisson:
        """Poisson sampling."""
        return Poisson(rate=self.share)

    def poisson_steps(self, steps: int) -> int:
        """All of them."""
        return steps

    def at_rate(self, rate: float) -> Poisson:
        """One record alone is Poisson sampled."""
        return Poisson(rate=rate)

    def signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """As `Scheme.signal_to_noise`, to seven digits."""
        return accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=self.share, steps=steps
        )

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=self.share, steps=steps, delta=delta
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson(PoissonAlone):
    """Every record joins every batch independently, with one probability.

    Args:
        rate: That probability, in (0, 1].

    Examples:
        >>> print(Poisson(rate=0.05))
        Poisson sampling at rate 0.05
        >>> round(Poisson(rate=0.05).epsilon_lower(noise_multiplier=1, steps=400, delta=1e-5), 2)
        6.7
    """

    tag: ClassVar[str] = "poisson"
    independent: ClassVar[bool] = True

    rate: float

    def __post_init__(self) -> None:
        _validate.within(0.0, 1.0, closed="right", rate=self.rate)

    def __str__(self) -> str:
        return f"Poisson sampling at rate {self.rate:g}"

    @property
    def share(self) -> float:
        """The rate."""
        return self.rate

    @property
    def poisson_rate(self) -> float:
        """The rate."""
        return self.rate

    @property
    def every_step(self) -> bool:
        """At rate 1."""
        return self.rate == 1.0

    @property
    def cyclic(self) -> CyclicPoisson:
        """One group, whose turn it always is."""
        return CyclicPoisson(rate=self.rate, cycle=1)

    def draws_within(self, steps: int) -> tuple[int, int]:
        """Any number of them; all at rate 1."""
        return (steps if self.rate == 1.0 else 0), steps

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Binomial, exactly."""
        return binomial_p_value(drawn, records * steps, self.rate)

    def quick_epsilon(self, *, signal_to_noise: float, steps: int, delta: float) -> float:
        """`epsilon_lower` on a coarse grid."""
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal_to_noise,
            sampling_rate=self.rate,
            steps=steps,
            delta=delta,
            grid=accounting.COARSE,
        )

    def quick_signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """`signal_to_noise` on a coarse grid."""
        return accounting.quick_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=self.rate, steps=steps
        )

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The accountant's claim under add-remove neighbours, from above."""
        return accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier, sampling_rate=self.rate, steps=steps, delta=delta
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        for _ in range(steps):
            yield np.flatnonzero(rng.random(records) < self.rate)

    def inclusion_probability(self, past: SchemeSums) -> float:
        """The same for every record in every step."""
        return self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryStep(Scheme):
    """Every record in every step: no sampling, no amplification.

    Examples:
        >>> print(EveryStep())
        every record in every step
        >>> round(EveryStep().epsilon_lower(noise_multiplier=2, steps=4, delta=1e-5), 4)
        4.3772
    """

    tag: ClassVar[str] = "every-step"
    independent: ClassVar[bool] = True

    def __str__(self) -> str:
        return "every record in every step"

    @property
    def share(self) -> float:
        """All of them."""
        return 1.0

    @property
    def every_step(self) -> bool:
        """Always."""
        return True

    def draws_within(self, steps: int) -> tuple[int, int]:
        """All of them."""
        return steps, steps

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Nothing is random."""
        return float(drawn == records * steps)

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return math.inf if signal == math.inf else gdp_epsilon(delta, math.sqrt(steps) * signal)

    def signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """As `Scheme.signal_to_noise`, to seven digits."""
        return accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=1.0, steps=steps
        )

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The Gaussian mechanism, exactly, under add-remove neighbours."""
        return accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier, sampling_rate=1.0, steps=steps, delta=delta
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        for _ in range(steps):
            yield np.arange(records)

    def required(self, past: SchemeSums) -> Mask:
        """All of them."""
        return self.pool(past)


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclicPoisson(Scheme):
    """Records are in one of several groups; steps take turns, Poisson sampling from one group.

    Args:
        rate: Probability that a record of the group joins, in (0, 1].
        cycle: Number of groups.
        groups: Whether the adversary knows the canary's group (by index, say), as accountants
            assume, or each is as likely and it stays secret. Knowing can add log(cycle) to epsilon.

    Examples:
        >>> print(CyclicPoisson(rate=0.2, cycle=4))
        cyclic Poisson sampling at rate 0.2 in every 4th step
    """

    tag: ClassVar[str] = "cyclic-poisson"
    independent: ClassVar[bool] = True

    rate: float
    cycle: int
    groups: Literal["known", "secret"] = "known"

    def __post_init__(self) -> None:
        _validate.within(0.0, 1.0, closed="right", rate=self.rate)
        _validate.count(cycle=self.cycle)
        _validate.one_of(("known", "secret"), groups=self.groups)

    def __str__(self) -> str:
        secret = ", groups secret" if self.groups == "secret" else ""
        return (
            f"cyclic Poisson sampling at rate {self.rate:g} in every {_ordinal(self.cycle)} step"
            f"{secret}"
        )

    @property
    def share(self) -> float:
        """The rate, in one step of the cycle."""
        return self.rate / self.cycle

    @property
    def cyclic(self) -> CyclicPoisson:
        """Itself."""
        return self

    def poisson_steps(self, steps: int) -> int:
        """Those of a record's group; the first group has the most."""
        return -(-steps // self.cycle)

    def at_rate(self, rate: float) -> CyclicPoisson:
        """The same at another rate."""
        return replace(self, rate=rate)

    def draws_within(self, steps: int) -> tuple[int, int]:
        """At most those of the first group."""
        return (steps // self.cycle if self.rate == 1.0 else 0), self.poisson_steps(steps)

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Binomial, exactly: `draw` makes the first groups the larger ones."""
        size, larger = divmod(records, self.cycle)
        turns, more = divmod(steps, self.cycle)
        trials = records * turns + more * size + min(larger, more)
        return binomial_p_value(drawn, trials, self.rate)

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        if self.groups == "known":
            # The first group has the most steps, and a claim must hold for its records too.
            return accounting.dpsgd_epsilon_lower(
                signal_to_noise=signal,
                sampling_rate=self.rate,
                steps=self.poisson_steps(steps),
                delta=delta,
            )
        return _secret_cycle(self.rate, self.cycle, signal, steps, delta)

    def coarse_epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """As `epsilon_lower`, on a small grid, where the group is known."""
        if self.groups != "known":
            return Scheme.coarse_epsilon_lower(
                self, noise_multiplier=noise_multiplier, steps=steps, delta=delta
            )
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=1.0 / noise_multiplier,
            sampling_rate=self.rate,
            steps=self.poisson_steps(steps),
            delta=delta,
            grid=accounting.SMALL,
        )

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The claim of an accountant that knows of the groups: Poisson over one group's steps."""
        return accounting.dpsgd_epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=self.rate,
            steps=self.poisson_steps(steps),
            delta=delta,
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step; groups of nearly equal size, at random."""
        check_draw(records, steps)
        groups = np.array_split(rng.permutation(records), self.cycle)
        for step in range(steps):
            group = groups[step % self.cycle]
            yield np.sort(group[rng.random(group.size) < self.rate])

    @property
    def known_background(self) -> bool:
        """Not where the group is to stay secret: the other records' groups may give it away."""
        return self.groups == "known"

    @property
    def period(self) -> int | None:
        """One turn of all groups."""
        return self.cycle if self.cycle > 1 else None

    def pool(self, past: SchemeSums) -> Mask:
        """Records whose group is known by now, and has its turn."""
        turn = past.step % self.cycle
        return np.asarray((past.first >= 0) & (past.first % self.cycle == turn))

    def allowed(self, past: SchemeSums) -> Mask:
        """Those, and records whose group nothing has shown."""
        return (past.first < 0) | self.pool(past)

    def inclusion_probability(self, past: SchemeSums) -> float:
        """The same for every record of the group."""
        return self.rate


@lru_cache(maxsize=256)
def _secret_cycle(rate: float, cycle: int, signal: float, steps: int, delta: float) -> float:
    turns, more = divmod(steps, cycle)
    if signal == math.inf:
        never = (more * (1 - rate) ** (turns + 1) + (cycle - more) * (1 - rate) ** turns) / cycle
        return math.inf if delta < 1.0 - never else 0.0
    step = Pair.gaussian(min(signal, Pair.LARGEST)).sampled(rate)
    run = step.composed(turns).anywhere(cycle - more)
    if more:
        run = step.composed(turns + 1).anywhere(more).either(run, more / cycle)
    if turns == 0:
        return run.epsilon(delta)
    # An adversary who knows the group can only be log(cycle) ahead: the test that rejects if any
    # group's test does has at least the power, and at most ``cycle`` times the false positives.
    known = accounting.dpsgd_epsilon_lower(
        signal_to_noise=signal, sampling_rate=rate, steps=turns, delta=delta
    )
    return max(run.epsilon(delta), known - math.log(cycle))


@dataclass(frozen=True, slots=True, kw_only=True)
class MinSeparation(Scheme):
    """Poisson sampling among the records that no recent batch held.

    Args:
        separation: A record drawn in a step is not drawn in the ``separation - 1`` steps after it.
        rate: Probability that any other record joins, in (0, 1].
        warm_start: Whether the first steps are drawn as if others had gone before, so that batches
            are of one size from the start.

    Examples:
        >>> print(MinSeparation(separation=4, rate=0.1))
        Poisson sampling at rate 0.1 with a separation of at least 4 steps
    """

    tag: ClassVar[str] = "min-separation"
    independent: ClassVar[bool] = True

    separation: int
    rate: float
    warm_start: bool = True

    def __post_init__(self) -> None:
        _validate.count(separation=self.separation)
        _validate.within(0.0, 1.0, closed="right", rate=self.rate)

    def __str__(self) -> str:
        return (
            f"Poisson sampling at rate {self.rate:g} with a separation of at least "
            f"{self.separation} steps"
        )

    @property
    def share(self) -> float:
        """In the long run: a record that joins waits for the steps after it."""
        return self.rate / (1.0 + (self.separation - 1) * self.rate)

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        """By the sum of what was seen of the canary, which holds less information than all of it.

        The whole likelihood ratio has no product form; what is given up is little where the noise
        is large, as for Poisson sampling.
        """
        return _separated(self, signal, steps, delta)

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        blocked = np.zeros(records, dtype=np.int64)  # steps for which each has to wait
        if self.warm_start:
            share = self.share
            waits = rng.random(records)
            held = waits < (self.separation - 1) * share
            blocked[held] = (waits[held] / share).astype(np.int64) + 1
        for _ in range(steps):
            drawn = (blocked == 0) & (rng.random(records) < self.rate)
            blocked = np.maximum(blocked - 1, 0)
            blocked[drawn] = self.separation - 1
            yield np.flatnonzero(drawn)

    def draws_within(self, steps: int) -> tuple[int, int]:
        """No more than the separation leaves room for."""
        return 0, -(-steps // self.separation)

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """By Hoeffding's bound: counts of records are independent and of one mean, and bounded."""
        most = self.draws_within(steps)[1]
        mean = min(self._mean_count(steps) / most, 1.0)
        found = drawn / (records * most)
        if not 0.0 <= found <= 1.0:
            return 0.0
        divergence = float(rel_entr(found, mean) + rel_entr(1.0 - found, 1.0 - mean))
        return min(1.0, 2.0 * math.exp(-records * max(divergence, 0.0)))

    def _mean_count(self, steps: int) -> float:
        """Inclusions of one record to expect."""
        if self.warm_start:
            return steps * self.share
        joins = np.zeros(steps)
        ready = 1.0
        for step in range(steps):
            joins[step] = self.rate * ready
            ready -= joins[step]
            if step + 1 >= self.separation:
                ready += joins[step + 1 - self.separation]
        return float(joins.sum())

    def pool(self, past: SchemeSums) -> Mask:
        """Records that have waited long enough."""
        return (past.last < 0) | (past.step - past.last >= self.separation)

    def inclusion_probability(self, past: SchemeSums) -> float:
        """Of a record that has waited; at first some wait for draws before the first step."""
        if self.warm_start and past.step < self.separation:
            return self.share / (1.0 - past.step * self.share)
        return self.rate

    def counts(self, steps: int) -> NDArray[np.float64]:
        """Probabilities of the number of inclusions of one record.

        Between two of them lie the steps it waits for and a geometric number of others, so that the
        k-th one is over in time with a negative binomial probability.
        """
        most = -(-steps // self.separation)
        # A wait beyond the last step is no longer for this.
        waits = np.arange(min(self.separation, steps + 1)) if self.warm_start else np.zeros(1)
        chance = np.full(waits.size, self.share)
        chance[0] = self.share / self.rate if self.warm_start else 1.0
        chance[-1] = 1.0 - chance[:-1].sum()
        inclusion = np.arange(1.0, most + 1.0)
        spare = steps - waits[:, None] - inclusion - (inclusion - 1.0) * (self.separation - 1.0)
        in_time = np.where(
            spare >= 0.0, betainc(inclusion, np.maximum(spare, 0.0) + 1.0, self.rate), 0.0
        )
        at_least = np.concatenate(([1.0], chance @ in_time, [0.0]))
        return np.asarray(np.maximum(-np.diff(at_least), 0.0))

    def coarse_epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """As `epsilon_lower`, with fewer different numbers of inclusions."""
        return _separated(self, 1.0 / noise_multiplier, steps, delta, _COARSE_COUNTS)


@lru_cache(maxsize=256)
def _separated(
    scheme: MinSeparation, signal: float, steps: int, delta: float, levels: int = _COUNTS
) -> float:
    weights = scheme.counts(steps)
    if signal == math.inf:
        return math.inf if delta < 1.0 - float(weights[0]) else 0.0
    # Epsilon grows with the signal, so what is beyond floating point may be cut off.
    most = max(int(np.flatnonzero(weights > 1e-15).max()), 1)
    shift = min(signal / math.sqrt(steps), Pair.LARGEST / most)
    return Pair.counted(shift, _fewer(weights, levels)).epsilon(delta)


def _fewer(weights: NDArray[np.float64], levels: int) -> NDArray[np.float64]:
    """At most about so many different counts: each is taken for the next lower one that is left.

    Fewer inclusions show less of a record, so that a lower bound stays one.
    """
    if np.count_nonzero(weights) <= levels:
        return weights
    likely = np.flatnonzero(weights > 1e-5 * weights.max())
    width = -(-int(likely[-1] - likely[0] + 1) // levels)
    starts = np.append(0, np.arange(max(likely[0], 1), likely[-1] + 1, width))
    kept = np.zeros_like(weights)
    kept[starts] = np.add.reduceat(weights, starts)
    return kept


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize(PoissonAlone):
    """Every batch is a fresh subset of one size, drawn without replacement.

    Args:
        batch: Records in a batch.
        records: Records in all.

    Examples:
        >>> print(FixedSize(batch=64, records=1000))
        batches of 64 of 1,000 records, drawn afresh
    """

    tag: ClassVar[str] = "fixed-size"
    fixed_batch: ClassVar[bool] = True

    batch: int
    records: int

    def __post_init__(self) -> None:
        most, hint = _validate.MOST_RECORDS, "A batch holds none twice."
        _validate.count(maximum=most, batch=self.batch)
        _validate.count(self.batch, maximum=most, hint=hint, records=self.records)

    def __str__(self) -> str:
        return f"batches of {self.batch:,} of {self.records:,} records, drawn afresh"

    @property
    def share(self) -> float:
        """The probability that a record is in a batch."""
        return self.batch / self.records

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The claim under *replace-one* neighbours, by Renyi divergences, from above.

        Replacing a record moves a batch's sum by up to twice the clip norm.
        """
        return accounting.fixed_size_epsilon(
            noise_multiplier=noise_multiplier,
            batch=self.batch,
            records=self.records,
            steps=steps,
            delta=delta,
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        _check_records(self, records)
        for _ in range(steps):
            yield np.sort(rng.choice(records, self.batch, replace=False, shuffle=False))

    def size_breaks(self, sizes: Integers) -> Mask:
        """Any size but the one."""
        return np.asarray(sizes != self.batch)

    def size_limits(self, past: SchemeSums) -> Limits | None:
        """Of a part of the records a batch shows as many as chance has it."""
        if past.records is None or past.seen == past.records:
            return None
        return hypergeometric_limits(past.drawn, self.records, past.seen, self.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(PoissonAlone):
    """Poisson sampling, but batches above a cap are cut down to it at random.

    Args:
        rate: Probability that a record joins before the cut, in (0, 1].
        cap: Largest batch.
        records: Records in all.

    Examples:
        >>> print(TruncatedPoisson(rate=0.05, cap=60, records=1000))
        Poisson sampling at rate 0.05 of 1,000 records, at most 60
    """

    tag: ClassVar[str] = "truncated-poisson"

    rate: float
    cap: int
    records: int

    def __post_init__(self) -> None:
        _validate.within(0.0, 1.0, closed="right", rate=self.rate)
        _validate.count(maximum=_validate.MOST_RECORDS, cap=self.cap, records=self.records)

    def __str__(self) -> str:
        return (
            f"Poisson sampling at rate {self.rate:g} of {self.records:,} records, "
            f"at most {self.cap:,}"
        )

    @property
    def share(self) -> float:
        """The probability that a record is in a batch: it joins, and is not cut off.

        Examples:
            >>> round(TruncatedPoisson(rate=0.05, cap=60, records=1000).share, 5)
            0.04975
        """
        others, logs = binomial_weights(self.records - 1, self.rate, 46.0)
        places = np.minimum(1.0, self.cap / (others + 1.0))
        return self.rate * min(1.0, float(np.exp(logs) @ places))

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The accountant's claim under add-remove neighbours, from above."""
        return accounting.truncated_epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=self.rate,
            cap=self.cap,
            records=self.records,
            steps=steps,
            delta=delta,
        )

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step."""
        check_draw(records, steps)
        _check_records(self, records)
        for _ in range(steps):
            size = min(int(rng.binomial(records, self.rate)), self.cap)
            yield np.sort(rng.choice(records, size, replace=False, shuffle=False))

    def size_breaks(self, sizes: Integers) -> Mask:
        """Sizes above the cap."""
        return np.asarray(sizes > self.cap)

    def size_limits(self, past: SchemeSums) -> Limits | None:
        """A mixture over the size of the whole batch of what a part of the records shows."""
        masses = _truncated_sizes(self.rate, self.cap, self.records, past.seen)
        upto = np.minimum(np.concatenate(([0.0], np.cumsum(masses))), 1.0)
        drawn = np.minimum(past.drawn, masses.size - 1)
        return upto[drawn], upto[drawn + 1]


@lru_cache(maxsize=16)
def _truncated_sizes(rate: float, cap: int, records: int, seen: int) -> NDArray[np.float64]:
    """Probabilities of how many of the followed records a batch holds."""
    from scipy.stats import hypergeom

    whole, logs = binomial_weights(records, rate, 46.0)
    sizes = np.minimum(whole, cap).astype(np.int64)
    weights = np.asarray(np.bincount(sizes, np.exp(logs)), np.float64)
    if seen == records:
        return weights
    shown = np.arange(min(seen, weights.size - 1) + 1)
    return sum(  # type: ignore[no-any-return]
        weights[size] * hypergeom.pmf(shown, records, seen, size)
        for size in np.flatnonzero(weights)
    )


def _check_records(scheme: FixedSize | TruncatedPoisson, records: int) -> None:
    if records != scheme.records:
        hint = "Say how many there are when you declare it."
        raise _validate.fail("records", records, f"= {scheme.records}, as in {scheme!r}", hint)
