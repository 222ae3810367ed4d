"""Which scheme drew the batches, where they show one that nobody declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from askgauss import _validate
from askgauss.exceptions import FileFormatError, InvalidArgumentError, UnsupportedError
from askgauss.files import codec
from askgauss.sampling.batch_testing import SchemeSums
from askgauss.sampling.epochs import BallsInBins, Shuffled
from askgauss.sampling.independent import (
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    TruncatedPoisson,
)
from askgauss.sampling.scheme import Integers, Scheme
from askgauss.stats.limits import clopper_pearson_lower

__all__ = ["Mismatch", "Recogniser", "assumed_poisson", "from_plain", "mismatch", "scheme_of"]

# A new scheme is entered here, and can then be declared, recorded and read from files.
_SCHEMES: dict[str, type[Scheme]] = {
    scheme.tag: scheme
    for scheme in (
        BallsInBins,
        CyclicPoisson,
        EveryStep,
        FixedSize,
        MinSeparation,
        Poisson,
        Shuffled,
        TruncatedPoisson,
    )
}


def from_plain(value: Any, where: str = "sampling") -> Scheme:
    """The scheme that `Scheme.to_plain` wrote.

    Args:
        value: JSON values.
        where: What to call it in an error.

    Raises:
        FileFormatError: It is not a scheme, or not one that this version knows.

    Examples:
        >>> from_plain({"scheme": "poisson", "rate": 0.05})
        Poisson(rate=0.05)
    """
    tag = value.get("scheme") if isinstance(value, dict) else None
    if not isinstance(tag, str) or tag not in _SCHEMES:
        raise FileFormatError(
            f"Expected {where} to name a sampling scheme ({', '.join(sorted(_SCHEMES))}), got "
            f"{str(tag if isinstance(value, dict) else value)[:80]!r}. A newer askgauss may have "
            "written it."
        )
    content = {name: item for name, item in value.items() if name != "scheme"}
    scheme: Scheme = codec.from_plain(_SCHEMES[tag], content, where)
    return scheme


def scheme_of(sampling: Scheme | None, sampling_rate: float | None) -> Scheme | None:
    """The scheme that ``sampling=`` and ``sampling_rate=`` declare together.

    Raises:
        InvalidArgumentError: They contradict each other, or the first is no scheme.
    """
    given: Any = sampling
    if not isinstance(given, (Scheme, type(None))):
        hint = "Make one of askgauss.sampling: Poisson(rate=0.05), Shuffled(batches=20), ..."
        raise _validate.fail("sampling", sampling, "to be a sampling scheme", hint)
    if sampling_rate is None:
        return sampling
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    poisson = Poisson(rate=float(sampling_rate))
    if sampling not in (None, poisson):
        raise InvalidArgumentError(
            f"Expected one of sampling and sampling_rate, got {sampling!r} and {sampling_rate!r}, "
            "which means Poisson sampling. Leave out sampling_rate."
        )
    return poisson


def assumed_poisson(scheme: Scheme | None) -> bool:
    """Whether batches are Poisson sampled as far as declared: no other scheme was."""
    return scheme is None or scheme.poisson_rate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Two schemes and the epsilon of each.

    Attributes:
        declared: The scheme that was accounted for.
        actual: The scheme that drew the batches.
        claimed: What an accountant claims for the first; where there is none, its lower bound.
        true_at_least: The lower bound of the second.
    """

    declared: Scheme
    actual: Scheme
    claimed: float
    true_at_least: float

    def __str__(self) -> str:
        return (
            f"{self.actual} accounted as {self.declared}: claimed {self.claimed:.2f}, true at "
            f"least {self.true_at_least:.2f}"
        )


def mismatch(
    declared: Scheme, actual: Scheme, noise_multiplier: float, steps: int, delta: float
) -> Mismatch:
    """What it costs to account for one scheme and draw batches by another.

    Args:
        declared: The scheme that was accounted for.
        actual: The scheme that drew the batches.
        noise_multiplier: Noise deviation over clipping norm.
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Examples:
        >>> from askgauss.sampling import CyclicPoisson, Poisson
        >>> found = mismatch(Poisson(rate=0.05), CyclicPoisson(rate=0.2, cycle=4), 1.0, 400, 1e-5)
        >>> round(found.claimed, 2), round(found.true_at_least, 2)
        (6.7, 14.53)
    """
    try:
        claimed = declared.epsilon(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    except UnsupportedError:
        claimed = declared.epsilon_lower(
            noise_multiplier=noise_multiplier, steps=steps, delta=delta
        )
    true = actual.epsilon_lower(noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    return Mismatch(declared=declared, actual=actual, claimed=claimed, true_at_least=true)


# Under Poisson sampling the steps between two draws of a record are a multiple of k with
# probability 1/k at most, a record that was drawn was drawn once with probability 1/2 at most, and
# a batch of 4 or more records has any one size with probability 1/5 at most. So many of them agree
# by chance less often than once in 1e15 runs.
_FEWEST_RETURNS = 64
_FEWEST_RECORDS = 64
_FEWEST_SIZES = 24
_LEAST_SIZE = 4
# Turns of a cycle that are waited for.
_TURNS = 4
# Indices that are kept until the scheme is known.
_MOST_KEPT = 1 << 22
# A scheme that fits is missed this often, and its rate is above its lower limit this rarely not.
_ERROR = 1e-3
# Tests that ask for the rate of a scheme, which is not known but estimated.
_BY_RATE = ("rate", "mean batch", "rate over time", "batch sizes", "largest batch")


class Recogniser:
    """Looks for a scheme in batches as they come: cyclic, shuffled, in bins, or of fixed size.

    Batches are kept until one scheme is left, which then has to explain all of them: its rule
    without exception, and its tests. Poisson sampling rules out every other scheme in a few steps,
    after which nothing is kept and nothing is done.

    Args:
        records: Number of records that batches are drawn from.

    Examples:
        >>> import numpy as np
        >>> scheme = CyclicPoisson(rate=0.5, cycle=4)
        >>> recogniser = Recogniser(400)
        >>> for batch in scheme.draw(np.random.default_rng(0), records=400, steps=40):
        ...     recogniser.add(batch)
        >>> recogniser.found.cycle, recogniser.found.groups
        (4, 'secret')
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._kept: list[Integers] = []
        self._numbers = 0
        self._last = np.zeros(0, dtype=np.int64)
        # The greatest common divisor of all steps between draws of a record, and their number.
        self._stride, self._returns = 0, 0
        # Steps after which every record had been drawn once; 0 before, or if some came back first.
        self._epoch = 0
        self._sums: SchemeSums | None = None
        self._looking = records >= _FEWEST_RECORDS

    def add(self, batch: Integers) -> None:
        """The record indices of the next step."""
        if self._sums is not None:
            self._sums.add(batch)
            if self._sums.broken is not None:
                self._sums = None
        elif self._looking:
            self._look(batch)

    def give_up(self) -> None:
        """Some batches were not seen: say nothing of the scheme."""
        self._looking, self._sums = False, None
        self._kept, self._last = [], self._last[:0]

    @property
    def found(self) -> Scheme | None:
        """The scheme that the batches show; None where they show none of those known here.

        Of cyclic Poisson sampling the rate is its lower confidence limit. Its groups count as known
        where they follow from the index of a record, and as secret otherwise.
        """
        sums = self._sums
        if sums is None:
            return None
        cyclic = sums.scheme.cyclic is not None and sums.scheme.cyclic.rate < 1.0
        tests = [test for test in sums.tests() if not cyclic or test.name not in _BY_RATE]
        if len(tests) * min(test.p_value for test in tests) < _ERROR:
            return None
        if not cyclic:
            return sums.scheme
        lower = clopper_pearson_lower(int(sums.drawn.sum()), int(sums.pools.sum()), _ERROR)
        return sums.scheme.at_rate(lower) if lower > 0.0 else None

    def _look(self, batch: Integers) -> None:
        step = len(self._kept)
        if step == 0:
            self._last = np.full(self._records, -1, dtype=np.int64)
        before = self._last[batch]
        gaps = step - before[before >= 0]
        self._last[batch] = step
        self._kept.append(batch)
        self._numbers += batch.size
        if gaps.size and not self._returns and not self._epoch and (self._last < 0).any():
            self._epoch = -1
        self._returns += gaps.size
        self._stride = int(np.gcd.reduce(gaps, initial=self._stride))
        if not self._epoch and not (self._last < 0).any():
            # With the last of the records in the same step as a first return, there is no epoch.
            self._epoch = -1 if self._returns or step == 0 else step + 1
        alive = self._epoch >= 0 or self._stride != 1 or self._of_one_size()
        if not alive or self._numbers > _MOST_KEPT or np.unique(batch).size < batch.size:
            self.give_up()
        elif (scheme := self._guess()) is not None:
            kept = self._kept
            self.give_up()
            self._sums = SchemeSums(scheme, records=self._records)
            for each in kept:
                self._sums.add(each)
            if self._sums.broken is not None:
                self._sums = None

    def _of_one_size(self) -> bool:
        size = self._kept[0].size
        inside = _LEAST_SIZE <= size <= self._records - _LEAST_SIZE
        return inside and self._kept[-1].size == size

    def _guess(self) -> Scheme | None:
        """The scheme that is left, once there is enough to decide."""
        steps = len(self._kept)
        if self._epoch >= 0:
            return self._guess_epochs() if 0 < 2 * self._epoch <= steps else None
        if self._stride > 1:
            enough = self._returns >= _FEWEST_RETURNS and steps >= _TURNS * self._stride
            return self._guess_cycle(self._stride) if enough else None
        size = self._kept[0].size
        epochs = 2 * -(-self._records // size)
        # Where epochs had begun before the first batch, two of them draw every record.
        left_out = bool((self._last < steps - epochs).any()) and steps >= epochs
        if steps >= _FEWEST_SIZES and left_out:
            return FixedSize(batch=size, records=self._records)
        return None

    def _guess_epochs(self) -> Scheme:
        places = self._epoch
        again = self._stride % places == 0
        if again and self._groups(places) == "known":
            return CyclicPoisson(rate=1.0, cycle=places)
        sizes = np.array([batch.size for batch in self._kept[: places - 1]])
        if sizes.max() - sizes.min() <= 1 and self._kept[places - 1].size <= sizes.max():
            return Shuffled(batches=places, reshuffled=not again)
        return BallsInBins(bins=places, redrawn=not again)

    def _guess_cycle(self, cycle: int) -> Scheme:
        drawn = chances = 0
        first = np.full(self._records, -1, dtype=np.int64)
        for step, batch in enumerate(self._kept):
            here = (first >= 0) & (first % cycle == step % cycle)
            drawn, chances = drawn + int(here[batch].sum()), chances + int(here.sum())
            first[batch] = np.where(first[batch] < 0, step, first[batch])
        rate = min(max(drawn, 1) / max(chances, 1), 1.0)
        return CyclicPoisson(rate=rate, cycle=cycle, groups=self._groups(cycle))

    def _groups(self, cycle: int) -> Literal["known", "secret"]:
        """Whether the group of a record follows from its index: in turn, or in blocks."""
        seen = np.flatnonzero(self._last >= 0)
        group = self._last[seen] % cycle
        blocks = np.count_nonzero(np.diff(group)) < cycle
        in_turn = all(np.unique(group[seen % cycle == rest]).size <= 1 for rest in range(cycle))
        return "known" if blocks or in_turn else "secret"
