"""Tests of drawn batches against a declared scheme: exact, in one pass.

Every step is tested given the steps before it. Which records a step may draw, and which it must, is
the scheme's rule: one exception refutes the scheme. Among those it may draw, all are exchangeable:
so how many of those drawn belong to a set that the past fixed (seen so many steps ago, drawn often
so far, in the first half of the data, at the same place of the epoch before) has a known
distribution, and so has how many were drawn at all where records join independently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, bdtrc

from askgauss import _validate
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.files import schema
from askgauss.files.codec import Facts, number
from askgauss.files.schema import Field
from askgauss.sampling.scheme import Integers, Mask, Scheme
from askgauss.stats.betting import (
    SamplerBets,
    extreme_p_value,
    mean_p_value,
    spread_p_value,
    trend_p_value,
    uniform_draws,
)
from askgauss.stats.rounding import FEW, about, digits

__all__ = ["DrawnBatches", "SchemeSums", "SchemeTest"]

# No more records than this are followed one by one; a random part of a larger set says enough.
_MOST_SEEN = 1 << 16
# Gaps up to the first number are classes of their own; then come 17-32, 33-64, ...
_SINGLE_GAPS = 16
_GAP_CLASSES = 32
_BETS = {"lags": _GAP_CLASSES, "counts": 1, "order": 1, "pairs": 1, "places": 1, "rate": 1}
# Smallest and largest batch are reported where they are improbable: they depend on one record.
_ODD = 1e-3
_STATE = ("count", "first", "last")
# Every step has a random number: records with the same sum of them were drawn in the same steps.
_TRACE, _WORD = 20_240_229, (1 << 64) - 1
_STEPS = ("sizes", "drawn", "pools", "probabilities")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeTest(Facts):
    """One test of drawn batches against a declared scheme.

    Attributes:
        name: What was tested.
        p_value: Probability of something at least as far off under the scheme.
        summary: One sentence, measured against expected.
    """

    name: str
    p_value: float = number(1.0, high=1.0)
    summary: str = ""


class SchemeSums:
    """What is kept of drawn batches to test a scheme: a few numbers a record and a step.

    Args:
        scheme: The declared scheme.
        records: Number of records in all, if known.
        seen: How many of them are shown, where batches come as inclusions of a part of the records.

    Attributes:
        step: Steps so far.
        seen: Records that are followed.
        count: How often each was drawn.
        first: Step in which each was first drawn; -1 if never.
        last: Step in which each was last drawn; -1 if never.
        trace: A random number for each step that drew it, summed: equal for records that were
            drawn in the same steps.
    """

    def __init__(self, scheme: Scheme, *, records: int | None, seen: int | None = None) -> None:
        if seen is None and records is None:
            hint = "Indices alone do not say how many records were never drawn."
            raise _validate.fail("records", records, "to be a whole number >= 1", hint)
        if records is not None:
            _validate.integer(1, records=records)
        if seen is not None:
            _validate.integer(1, seen=seen)
        if records is not None and seen is not None and seen > records:
            raise _validate.fail("records", records, f">= the {seen} columns", "Count them all.")
        self.scheme, self.records = scheme, records
        self._place = _followed(int(records)) if seen is None else None  # type: ignore[arg-type]
        self.seen = int(seen) if seen is not None else min(int(records or 0), _MOST_SEEN)
        self.step = 0
        self.count = np.zeros(self.seen, dtype=np.int64)
        self.first = np.full(self.seen, -1, dtype=np.int64)
        self.last = np.full(self.seen, -1, dtype=np.int64)
        self.trace = np.zeros(self.seen, dtype=np.uint64)
        self._rows: dict[str, list[float]] = {name: [] for name in _STEPS}
        self._bets = {name: SamplerBets(sets) for name, sets in _BETS.items()}
        self._strays = self._missing = self._twice = 0
        self._broken: int | None = None

    @property
    def broken(self) -> int | None:
        """The first step that drew what the scheme never draws, or left out what it always does."""
        return self._broken

    @property
    def sizes(self) -> Integers:
        """Batch size of each step; -1 where only a part of the records is shown."""
        return np.array(self._rows["sizes"], dtype=np.int64)

    @property
    def drawn(self) -> Integers:
        """How many records of its pool each step drew."""
        return np.array(self._rows["drawn"], dtype=np.int64)

    @property
    def pools(self) -> Integers:
        """How many followed records each step could draw."""
        return np.array(self._rows["pools"], dtype=np.int64)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Their inclusion probability, nan where they do not join independently."""
        return np.array(self._rows["probabilities"], dtype=np.float64)

    def indices(self, batch: ArrayLike) -> Integers:
        """The record indices of a batch, or an error that says what is wrong with them."""
        if self._place is None or self.records is None:
            raise InvalidArgumentError(
                "Expected inclusions, as before, got record indices. Use add_inclusions()."
            )
        return self.checked(batch, self.records)

    @staticmethod
    def checked(batch: ArrayLike, records: int) -> Integers:
        """The indices of a batch of so many records, or an error that says what is wrong."""
        indices = np.asarray(batch)
        if indices.size == 0:
            indices = np.zeros(0, dtype=np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            hint = "Pass the indices that the sampler drew."
            shape = f"{indices.dtype} of shape {indices.shape}"
            raise _validate.fail("batch", shape, "to be a list of whole numbers", hint)
        if indices.size and (indices.min() < 0 or indices.max() >= records):
            outside = int(indices.min() if indices.min() < 0 else indices.max())
            hint = "Leave out padding, and count all records."
            raise _validate.fail("batch", outside, f"in [0, {records - 1}]", hint)
        return indices.astype(np.int64)

    def add(self, batch: ArrayLike) -> None:
        """The record indices of the next step."""
        indices = self.indices(batch)
        assert self._place is not None
        distinct = np.unique(indices)
        self._twice += indices.size - distinct.size
        self._note(indices.size > distinct.size)
        included = np.zeros(self.seen + 1, dtype=np.bool_)
        included[self._place[distinct]] = True
        self._advance(included[:-1], int(indices.size))

    def add_inclusions(self, included: ArrayLike) -> None:
        """Which of the records that are shown the next step drew."""
        mask = np.asarray(included)
        if mask.dtype != np.bool_ or mask.shape != (self.seen,):
            shape = f"{mask.dtype} of shape {mask.shape}"
            hint = "Pass one truth value a record."
            raise _validate.fail("included", shape, f"to be bool of shape ({self.seen},)", hint)
        whole = self.records == self.seen
        self._advance(mask, int(np.count_nonzero(mask)) if whole else -1)

    def _note(self, broken: bool) -> None:
        if broken and self._broken is None:
            self._broken = self.step

    def _advance(self, included: Mask, size: int) -> None:
        pool = self.scheme.pool(self)
        strays = int(np.count_nonzero(included & ~self.scheme.allowed(self)))
        required = self.scheme.required(self)
        missing = 0 if required is None else int(np.count_nonzero(required & ~included))
        self._note(strays + missing > 0)
        self._strays += strays
        self._missing += missing
        drawn = included & pool
        probability = self.scheme.inclusion_probability(self)
        self._bet(pool, drawn, probability)
        self._rows["sizes"].append(float(size))
        self._rows["drawn"].append(float(np.count_nonzero(drawn)))
        self._rows["pools"].append(float(np.count_nonzero(pool)))
        self._rows["probabilities"].append(np.nan if probability is None else probability)
        self.count += included
        self.trace[included] += _number_of(self.step)
        self.last[included] = self.step
        self.first[included & (self.first < 0)] = self.step
        self.step += 1

    def _bet(self, pool: Mask, drawn: Mask, probability: float | None) -> None:
        """Bet on sets that the steps before this one fixed."""
        size, number = float(np.count_nonzero(pool)), float(np.count_nonzero(drawn))
        if probability is not None and 0.0 < probability < 1.0:
            self._bets["rate"].add_coins(number, size, probability)
        if number == 0.0 or number == size:
            return
        known = pool & (self.last >= 0)
        gaps = _gap_class(self.step - self.last[known])
        met = np.bincount(gaps[drawn[known]], minlength=_GAP_CLASSES).astype(np.float64)
        inside = np.bincount(gaps, minlength=_GAP_CLASSES).astype(np.float64)
        self._bets["lags"].add_draw(met, inside, size, number)
        half = np.zeros(self.seen, dtype=np.bool_)
        half[: self.seen // 2] = True
        sets = {"counts": self.count > self.count[pool].mean(), "order": half}
        if self.scheme.period is not None:
            sets["places"] = self.last == self.step - self.scheme.period
        for name, members in sets.items():
            self._bets[name].add_draw(
                np.array([np.count_nonzero(drawn & members)], dtype=np.float64),
                np.array([np.count_nonzero(pool & members)], dtype=np.float64),
                size,
                number,
            )
        # Given which odd records were drawn, all even ones are alike: also those next to them.
        even, odd = pool[:-1:2], drawn[1::2]
        self._bets["pairs"].add_draw(
            np.array([np.count_nonzero(drawn[:-1:2] & odd)], dtype=np.float64),
            np.array([np.count_nonzero(even & odd)], dtype=np.float64),
            float(np.count_nonzero(even)),
            float(np.count_nonzero(drawn[:-1:2])),
        )

    # ---------------------------------------------------------------------------------- tests

    def tests(self) -> tuple[SchemeTest, ...]:
        """All tests that the batches so far allow."""
        if self.step == 0:
            raise InvalidArgumentError("Expected at least 1 step, got 0. Add batches first.")
        return (
            self._rule(),
            *self._size_tests(),
            *(
                self._bet_test(name, subject)
                for name, subject in (
                    ("lags", "records drawn so many steps ago"),
                    ("counts", "records drawn more often than most so far"),
                    ("order", "records of the first half of the data"),
                    ("pairs", "records next to one that was drawn"),
                    ("places", "records at their place of the epoch before"),
                )
                if self._bets[name].expected.sum() > 0.0
            ),
            *self._single_tests(),
        )

    def _rule(self) -> SchemeTest:
        sizes = self.sizes
        odd = self.scheme.size_breaks(sizes) if (sizes >= 0).all() else np.zeros(0, dtype=np.bool_)
        breaches = {
            "records drawn twice in one batch": self._twice,
            "records drawn where the scheme draws none of them": self._strays,
            "records left out where the scheme draws them for certain": self._missing,
            "batches of a size it never gives": int(np.count_nonzero(odd)),
        }
        steps = [step for step in (self._broken, *np.flatnonzero(odd)[:1]) if step is not None]
        said = ", ".join(f"{_some(number)} {what}" for what, number in breaches.items() if number)
        summary = (
            f"{said}, first in step {int(min(steps)) + 1}: not {self.scheme}."
            if said
            else f"{self.step} batches keep the rules of {self.scheme}."
        )
        return SchemeTest(name="scheme", p_value=0.0 if said else 1.0, summary=summary)

    def _size_tests(self) -> list[SchemeTest]:
        tests = []
        rate = self._bets["rate"]
        if rate.expected[0] > 0.0:
            summary = f"{_times_expected(rate.met[0], rate.expected[0])}."
            tests.append(SchemeTest(name="rate", p_value=rate.p_value(), summary=summary))
        limits = self.scheme.size_limits(self)
        if limits is None:
            return tests
        below, upto = limits
        random = upto - below < 1.0
        if not random.any():
            return tests
        drawn = self.drawn[random]
        uniform = uniform_draws(drawn, below[random], upto[random])
        said = f"batches show {digits(drawn.mean()):,g} records on average"
        ends = f", from {digits(drawn.min()):,g} to {digits(drawn.max()):,g}"
        for name, p_value, what in (
            ("mean batch", mean_p_value(uniform), "on average"),
            ("batch sizes", spread_p_value(uniform), "in how much they vary"),
            ("largest batch", extreme_p_value(uniform), "in the largest"),
            ("rate over time", trend_p_value(uniform), "between the halves of the run"),
        ):
            shown = said + ends if p_value < _ODD else said
            tests.append(
                SchemeTest(name=name, p_value=p_value, summary=f"{shown}; compared {what}.")
            )
        return tests

    def _single_tests(self) -> list[SchemeTest]:
        """The records that stand out, where every step may draw any record.

        Given how many a step draws, each record is one of them with the same probability, whatever
        happened before: a count is a sum of independent indicators, whose tails are no heavier than
        those of a binomial with their mean (Hoeffding 1956). The extreme of all records has at most
        the sum of their tails.
        """
        if self.seen < 2 or (self.pools != self.seen).any():
            return []
        share = self.drawn / self.seen
        most, least, expected = int(self.count.max()), int(self.count.min()), float(share.sum())
        rate = min(expected / self.step, 1.0)
        above = below = 1.0
        if most >= expected + 1.0:
            above = min(1.0, self.seen * float(bdtrc(most - 1, self.step, rate)))
        if least <= expected - 1.0:
            below = min(1.0, self.seen * float(bdtr(least, self.step, rate)))
        return [
            SchemeTest(
                name="most drawn",
                p_value=above,
                summary=_extreme("most", most, expected, above),
            ),
            SchemeTest(
                name="least drawn",
                p_value=below,
                summary=_extreme("least", least, expected, below),
            ),
            self._together(),
        ]

    def _together(self) -> SchemeTest:
        """Whether two records were always drawn in the same steps."""
        order = np.argsort(self.trace)
        same = self.trace[order][1:] == self.trace[order][:-1]
        alike = self.count[order][1:][same]
        p_value = 1.0
        if alike.size:
            records, drawn = float(self.seen), self.drawn.astype(np.float64)
            both = drawn * (drawn - 1.0) / (records * (records - 1.0))
            none = (records - drawn) * (records - drawn - 1.0) / (records * (records - 1.0))
            # The same in every step, and together in so many of them.
            together = both + none
            with np.errstate(divide="ignore"):
                log_chance = float(np.log(together).sum()) + np.log(0.5 * records * (records - 1.0))
            of_all = float((both / np.maximum(together, 1e-300)).sum())
            often = int(alike.max())
            tail = 1.0
            if often >= of_all + 1.0:
                tail = float(bdtrc(often - 1, self.step, min(of_all / self.step, 1.0)))
            p_value = min(1.0, float(np.exp(min(log_chance, 700.0))) * tail)
        return SchemeTest(
            name="inseparable records",
            p_value=p_value,
            summary="two records or more were always drawn together."
            if p_value < _ODD
            else "no two records were drawn together more often than chance has it.",
        )

    def _bet_test(self, name: str, subject: str) -> SchemeTest:
        bets = self._bets[name]
        strongest = bets.strongest()
        if name == "lags":
            subject = f"records drawn {_gap_name(strongest)} ago"
        met, expected = bets.met[strongest], bets.expected[strongest]
        return SchemeTest(
            name=name,
            p_value=bets.p_value(),
            summary=f"{subject}: {_times_expected(met, expected)}.",
        )

    # ---------------------------------------------------------------------------- checkpoints

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything kept, as arrays; `from_arrays` goes on from there."""
        head = [-1 if self.records is None else self.records, self._place is None, self.step]
        head += [self._strays, self._missing, self._twice]
        head += [-1 if self._broken is None else self._broken]
        content: dict[str, NDArray[Any]] = {"head": np.array(head, dtype=np.int64)}
        # Copies: a state that is kept must stay as it was while the run goes on.
        content |= {name: getattr(self, name).copy() for name in (*_STATE, "trace", *_STEPS)}
        for name, bets in self._bets.items():
            content[f"bets_{name}"] = np.column_stack((bets.log_wealth, bets.met, bets.expected))
        return content

    @staticmethod
    def records_in(content: dict[str, NDArray[Any]]) -> int | None:
        """Of how many records the sums of a file are.

        Raises:
            FileFormatError: They do not say.
        """
        schema.check_names(content, _FIELDS)
        _FIELDS["head"].check("head", content["head"])
        records = int(content["head"][0])
        return None if records < 0 else records

    @classmethod
    def from_arrays(
        cls, scheme: Scheme, content: dict[str, NDArray[Any]], *, records: int | None
    ) -> SchemeSums:
        """Resume from what `arrays` gave, with the same scheme.

        Args:
            scheme: The declared scheme.
            content: What `arrays` gave.
            records: Number of records in all, if known: a file that states another is refused.

        Raises:
            FileFormatError: It is not what `arrays` gave.
        """
        try:
            said = cls.records_in(content)
            if said != records:
                raise FileFormatError(f"They are of {said} records, and the run has {records}.")
            _, part, step, strays, missing, twice, broken = content["head"].tolist()
            sums = cls(scheme, records=records, seen=content["count"].size if part else None)
            schema.check(content, _FIELDS, {"seen": sums.seen, "steps": step})
        except (FileFormatError, InvalidArgumentError) as error:
            raise FileFormatError(
                f"Cannot read the sums of drawn batches: {error} Write them again with askgauss."
            ) from error
        for name in (*_STATE, "trace"):
            getattr(sums, name)[:] = content[name]
        for name in _STEPS:
            sums._rows[name] = content[name].astype(np.float64).tolist()
        for name, bets in sums._bets.items():
            table = content[f"bets_{name}"]
            bets.log_wealth[:] = table[:, :-2]
            bets.met[:], bets.expected[:] = table[:, -2], table[:, -1]
        sums.step, sums._strays, sums._missing, sums._twice = step, strays, missing, twice
        sums._broken = None if broken < 0 else broken
        return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatches(Facts):
    """The tests of a run's batches against a scheme, as they are written down.

    Attributes:
        scheme: The scheme they were compared with.
        steps: Number of batches.
        records: Records that they may hold, or those of them that were followed.
        drawn: How often such a record was in a batch.
        most: How often the most frequent record was in one; None where not counted.
        tests: Every test; each p-value is below any level with at most that probability if the
            scheme drew them.
    """

    scheme: Scheme
    steps: int
    records: int
    drawn: int
    tests: tuple[SchemeTest, ...]
    most: int | None = None

    @classmethod
    def of(cls, sums: SchemeSums) -> DrawnBatches:
        """The tests of the batches so far."""
        return cls(
            scheme=sums.scheme,
            steps=sums.step,
            records=sums.seen,
            drawn=int(sums.count.sum()),
            tests=sums.tests(),
            most=int(sums.count.max()),
        )

    @property
    def chances(self) -> int:
        """How often a record could have been in a batch."""
        return self.steps * self.records

    def named(self, *names: str) -> tuple[SchemeTest, ...]:
        """The tests of these names."""
        return tuple(test for test in self.tests if test.name in names)


_NUMBER = Field(np.int64, ("steps",), low=0, high=2**53)
_FIELDS = {
    # Records, whether they are a part, steps, and four counts.
    "head": Field(np.int64, (7,), low=-1, high=2**53),
    "count": Field(np.int64, ("seen",), low=0, high="steps"),
    "first": Field(np.int64, ("seen",), low=-1, high="steps", open=True),
    "last": Field(np.int64, ("seen",), low=-1, high="steps", open=True),
    "trace": Field(np.uint64, ("seen",)),
    "sizes": Field(np.int64, ("steps",), low=-1, high=2**53),
    "drawn": _NUMBER,
    "pools": _NUMBER,
    "probabilities": Field(np.float64, ("steps",), low=0.0, high=1.0),
    **{
        f"bets_{name}": Field(np.float64, (sets, SamplerBets(sets).log_wealth.shape[1] + 2))
        for name, sets in _BETS.items()
    },
}


def _some(number: int) -> str:
    """A number of violations, rounded: an exact small one may reveal an individual."""
    return "a few" if number < FEW else about(number)


def _times_expected(met: float, expected: float) -> str:
    # Counts of inclusions would say how many records there are.
    if expected == 0.0:
        return "inclusions where none is expected" if met else "no inclusions, as is expected"
    return f"{met / expected:.3g} times the inclusions that are expected"


def _extreme(which: str, count: int, expected: float, p_value: float) -> str:
    """How often the extreme record was drawn; reported where that is improbable."""
    if p_value >= _ODD or expected <= 0.0:
        return f"the record drawn {which} often does not stand out."
    return (
        f"the record drawn {which} often was drawn {digits(count / expected, 2):g} times as often "
        "as is expected."
    )


def _number_of(step: int) -> np.uint64:
    """A random number of a step: the output of SplitMix64."""
    mixed = (_TRACE + step * 0x9E3779B97F4A7C15) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return np.uint64(mixed ^ (mixed >> 31))


def _gap_class(gaps: Integers) -> Integers:
    """The class of each number of steps since a record was last drawn."""
    coarse = np.ceil(np.log2(np.maximum(gaps, 1) / _SINGLE_GAPS)).astype(np.int64)
    classes = np.where(gaps <= _SINGLE_GAPS, gaps - 1, _SINGLE_GAPS - 1 + coarse)
    return np.minimum(classes, _GAP_CLASSES - 1)


def _gap_name(gap_class: int) -> str:
    if gap_class < _SINGLE_GAPS:
        return f"{gap_class + 1} {'steps' if gap_class else 'step'}"
    high = _SINGLE_GAPS * 2 ** (gap_class - _SINGLE_GAPS + 1)
    return f"{high // 2 + 1} to {high} steps"


def _followed(records: int) -> NDArray[np.intp]:
    """Where each record is kept; one past the end for those that are not."""
    if records <= _MOST_SEEN:
        return np.arange(records)
    # Whole pairs of neighbours, so that they can still be compared.
    pairs = np.sort(np.random.default_rng(0).permutation(records // 2)[: _MOST_SEEN // 2])
    place = np.full(records, _MOST_SEEN)
    place[2 * pairs] = np.arange(0, _MOST_SEEN, 2)
    place[2 * pairs + 1] = np.arange(1, _MOST_SEEN, 2)
    return place
