"""Schemes with a fixed or a largest batch size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, accounting
from askgauss.sampling.independent import PoissonAlone
from askgauss.sampling.scheme import Integers, Limits, Mask, check_draw, hypergeometric_limits
from askgauss.stats.limits import binomial_weights

if TYPE_CHECKING:
    from askgauss.sampling.batch_testing import SchemeSums

__all__ = ["FixedSize", "TruncatedPoisson"]


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

    def effective_rate(self) -> float:
        """The probability that a record is in a batch: it joins, and is not cut off.

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
