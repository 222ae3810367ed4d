"""Schemes with a fixed or a largest batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, accounting
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.independent import Poisson
from askgauss.sampling.scheme import (
    Integers,
    Mask,
    Scheme,
    check_draw,
    check_noise,
    hypergeometric_limits,
)
from askgauss.stats.binomial import binomial_weights
from askgauss.stats.gaussian import gdp_epsilon

__all__ = ["EveryStep", "FixedSize", "TruncatedPoisson"]

_Limits = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSize(Scheme):
    """Every batch is a fresh subset of one size, drawn without replacement.

    Args:
        batch: Records in a batch.
        records: Records in all.

    Examples:
        >>> print(FixedSize(batch=64, records=1000))
        batches of 64 of 1,000 records, drawn afresh
    """

    tag: ClassVar[str] = "fixed-size"

    batch: int
    records: int

    def __post_init__(self) -> None:
        most, hint = _validate.MOST_RECORDS, "A batch holds none twice."
        _validate.count(maximum=most, batch=self.batch)
        _validate.count(self.batch, maximum=most, hint=hint, records=self.records)

    def __str__(self) -> str:
        return f"batches of {self.batch:,} of {self.records:,} records, drawn afresh"

    @property
    def rate(self) -> float:
        """The probability that a record is in a batch."""
        return self.batch / self.records

    @property
    def share(self) -> float:
        """The same."""
        return self.rate

    def record_by_record(self) -> Poisson:
        """A coin for each."""
        return Poisson(rate=self.rate)

    def most_coins(self, steps: int) -> int:
        """One in every step."""
        return steps

    def at_rate(self, rate: float) -> Poisson:
        """One record alone meets Poisson sampling."""
        return Poisson(rate=rate)

    def _law(self, signal: float, steps: int, delta: float) -> float:
        """One record alone meets independent coins: the law of Poisson sampling."""
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=self.rate, steps=steps, delta=delta
        )

    def signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """As `Scheme.signal_to_noise`, to seven digits."""
        return accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=self.rate, steps=steps
        )

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The claim under *replace-one* neighbours, by Renyi divergences, from above.

        Replacing a record moves a batch's sum by up to twice the clip norm.
        """
        check_noise(noise_multiplier, steps, delta)
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

    def size_breaks(self, sizes: Integers) -> NDArray[np.bool_]:
        """Any size but the one."""
        return np.asarray(sizes != self.batch)

    def size_limits(self, past: SchemeSums) -> _Limits | None:
        """Of a part of the records a batch shows as many as chance has it."""
        if past.records is None or past.seen == past.records:
            return None
        return hypergeometric_limits(past.drawn, *_whole(past, self.records, past.seen, self.batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedPoisson(Scheme):
    """Poisson sampling, but batches above a cap are cut down to it at random.

    Args:
        rate: Probability of each coin, in (0, 1].
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

    def effective_rate(self) -> float:
        """The probability that a record is in a batch: its coin, and a place if there are too many.

        Examples:
            >>> round(TruncatedPoisson(rate=0.05, cap=60, records=1000).effective_rate(), 5)
            0.04975
        """
        others, logs = binomial_weights(self.records - 1, self.rate, 46.0)
        places = np.minimum(1.0, self.cap / (others + 1.0))
        return self.rate * min(1.0, float(np.exp(logs) @ places))

    @property
    def share(self) -> float:
        """The effective rate."""
        return self.effective_rate()

    def record_by_record(self) -> Poisson:
        """A coin for each."""
        return Poisson(rate=self.effective_rate())

    def most_coins(self, steps: int) -> int:
        """One in every step."""
        return steps

    def at_rate(self, rate: float) -> Poisson:
        """One record alone meets Poisson sampling at the effective rate."""
        return Poisson(rate=rate)

    def _law(self, signal: float, steps: int, delta: float) -> float:
        """One record alone meets independent coins of the effective rate."""
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=self.effective_rate(), steps=steps, delta=delta
        )

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The accountant's claim under add-remove neighbours, from above."""
        check_noise(noise_multiplier, steps, delta)
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

    def size_breaks(self, sizes: Integers) -> NDArray[np.bool_]:
        """Sizes above the cap."""
        return np.asarray(sizes > self.cap)

    def size_limits(self, past: SchemeSums) -> _Limits | None:
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

    def draws_within(self, steps: int) -> tuple[int, int]:
        """All of them."""
        return steps, steps

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Nothing is left to chance."""
        return float(drawn == records * steps)

    def _law(self, signal: float, steps: int, delta: float) -> float:
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


def _check_records(scheme: FixedSize | TruncatedPoisson, records: int) -> None:
    if records != scheme.records:
        hint = "Say how many there are when you declare it."
        raise _validate.fail("records", records, f"= {scheme.records}, as in {scheme!r}", hint)


def _whole(past: SchemeSums, *numbers: int) -> tuple[Integers, ...]:
    return tuple(np.full(past.step, number) for number in numbers)
