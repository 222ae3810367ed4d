"""What is known about a run beside what it released, as frozen dataclasses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError
from askgauss.files.schema import check_magnitude
from askgauss.recording.commitment import Commitment
from askgauss.recording.noise_sample import NoiseSample, ReuseFacts
from askgauss.recording.witness import StepFacts, WeightFacts
from askgauss.sampling import DrawnBatches, Poisson, Scheme

__all__ = [
    "BatchWeights",
    "ClipCountFacts",
    "GainFacts",
    "HonestFacts",
    "MixingFacts",
    "NoiseRowFacts",
    "ParticipationFacts",
    "ProbeFacts",
    "ProbeReading",
    "RoundFacts",
    "RowFacts",
    "RowNoise",
    "RunFacts",
    "SeedProbe",
    "SettingCourse",
    "SettingFacts",
    "noise_of_both",
    "rows_over_ranks",
]


def noise_of_both(noise_multiplier: float, deviation: float) -> float:
    """The noise multiplier of gradients and count in one; a record moves the latter by a half."""
    if noise_multiplier <= 0.0 or deviation <= 0.0:
        return 0.0
    return float((noise_multiplier**-2 + (2.0 * deviation) ** -2) ** -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCountFacts:
    """What was seen of the noisy count that moves the clip norm.

    Attributes:
        releases: How often a noisy count was used.
        shown: How often it moved the clip norm within its limits, so that the norm tells it.
        read: How often its noise could be read.
        square: Sum of squares of that noise, in units of its stated deviation.
        deviation: The largest deviation stated for it, in records.
        noise_multiplier: The largest noise multiplier that gradients and count have together, as
            stated.
    """

    releases: int = 0
    shown: int = 0
    read: int = 0
    square: float = 0.0
    deviation: float = 0.0
    noise_multiplier: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("releases", "shown", "read", "square", "deviation", "noise_multiplier"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.clip_count.{name} >= 0, got it below.")
        if max(self.shown, self.read) > self.releases:
            raise FileFormatError(
                f"Expected facts.clip_count.releases >= {max(self.shown, self.read)}, got "
                f"{self.releases}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GainFacts:
    """What a step made of the clean sum, seen along that sum itself.

    Noise is as large in this direction as in any other. A noisy sum that is divided by another
    number in every step has a part of the clean sum there as well.

    Attributes:
        steps: Steps with a clean sum.
        gain: What the clean sum was multiplied by, on average.
        along: Root mean square of what was released along the clean sum less that, in clip norms.
        norm: Root mean square of the norm of the clean sum, in clip norms.
    """

    steps: int = 0
    gain: float = 1.0
    along: float = 0.0
    norm: float = 0.0

    @classmethod
    def of(cls, along: NDArray[np.float64], norm: NDArray[np.float64]) -> GainFacts | None:
        """The facts of a run; None where fewer than two steps had a clean sum.

        Args:
            along: What each step released beyond the clean sum, along it, in clip norms.
            norm: Norm of the clean sum of each step, in clip norms.
        """
        use = np.isfinite(along) & np.isfinite(norm) & (norm > 0.0)
        along, norm = along[use], norm[use]
        if norm.size < 2:
            return None
        more = float(along @ norm) / float(norm @ norm)
        left = along - more * norm
        return cls(
            steps=norm.size,
            gain=1.0 + more,
            along=math.sqrt(float(left @ left) / (norm.size - 1)),
            norm=math.sqrt(float(norm @ norm) / norm.size),
        )

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("steps", "along", "norm"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.gain.{name} >= 0, got it below.")
        if not all(map(math.isfinite, (self.gain, self.along, self.norm))):
            raise FileFormatError("Expected facts.gain to be finite.")


# Weights of one class agree by as much, and follow a formula by as much.
_SAME = 1e-3
# Weights that are taken from the batch move by more than this from step to step.
_MOVED = 1e-2
# Bases of the "effective number" of records of a class.
_BASES = (0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingFacts:
    """Where records of a batch met before they were clipped.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        forward: Steps whose forward pass was repeated with other records replaced.
        inputs: Steps whose inputs were compared with the batch of the loader.
        loss: Steps whose loss was differentiated twice.
        forward_first: The first step in which an output depended on other records.
        state_first: The first step in which the forward pass wrote a statistic of the batch to the
            model, which later outputs depend on.
        inputs_first: The first step in which a row of the input was made of two records.
        loss_first: The first step in which the gradient of one output depended on other outputs.
        weights_first: The first step in which class weights followed the counts in the batch.
        forward_unseen: Why the forward pass of a step was not looked at; empty where all were.
        inputs_unseen: Why the inputs were not.
        loss_unseen: Why the loss was not.
    """

    forward: int = 0
    inputs: int = 0
    loss: int = 0
    forward_first: int = 0
    state_first: int = 0
    inputs_first: int = 0
    loss_first: int = 0
    weights_first: int = 0
    forward_unseen: str = ""
    inputs_unseen: str = ""
    loss_unseen: str = ""

    @property
    def mixed(self) -> bool:
        """Whether records met anywhere."""
        return any(getattr(self, item.name) for item in fields(self) if item.name.endswith("first"))

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 0:
                raise FileFormatError(f"Expected facts.mixing.{item.name} >= 0, got {value}.")


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


# Noise below this share of the unit is none: what is left are rounding errors.
_SILENCE = 1e-5
_FEWEST = 10
# Windows of a row at first, and of all rows: recorders of correlated noise hold little else.
_A_ROW = 256
_KEPT = 1 << 13
_NUMBERS = "row_noise.numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRowFacts:
    """The noise of single rows of a strategy, over the absent canaries.

    Attributes:
        rows: Rows that were seen.
        absent: Values of each.
        silent: Rows without noise.
        first_silent: The first of them.
        square: Sum of squares of all rows.
        least: The row with the least noise.
        least_square: Its sum of squares.
        most: The row with the most noise.
        most_square: Its sum of squares.
    """

    rows: int = 0
    absent: int = 0
    silent: int = 0
    first_silent: int = 0
    square: float = 0.0
    least: int = 0
    least_square: float = 0.0
    most: int = 0
    most_square: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in self.__slots__:
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.noise_rows.{name} >= 0, got it below.")
        if max(self.silent, self.first_silent, self.least, self.most) > self.rows:
            raise FileFormatError(
                f"Expected places in facts.noise_rows below {self.rows}, got others."
            )
        if not self.least_square <= self.most_square <= self.square * (1.0 + 1e-9):
            raise FileFormatError("Expected facts.noise_rows to be sums of squares, got others.")


class RowNoise:
    """Rows of noise along the canaries, as they come.

    Args:
        coordinates: Where in the model each canary's value is.
        member: Which canaries are present, and may have been planted.
        unit: What is stated for the noise of a value; 1 where nothing is.
    """

    def __init__(
        self,
        coordinates: NDArray[np.int64],
        member: NDArray[np.bool_],
        unit: float | None,
    ) -> None:
        places = coordinates.reshape(member.size, -1)
        # Neighbours in the model, so that noise that is shifted keeps its neighbours.
        self._order = np.argsort(places[:, 0], kind="stable")
        self._absent = np.flatnonzero(~member)
        self._unit = unit or 1.0
        self._sample = NoiseSample([member.size], _A_ROW, _KEPT)
        self._facts = NoiseRowFacts(absent=self._absent.size)

    def add(self, row: NDArray[np.float64]) -> None:
        """One more row, one value a canary."""
        facts, number = self._facts, self._facts.rows
        self._sample.add_row(row[self._order] / self._unit, number)
        absent = row[self._absent]
        square = float(absent @ absent)
        if not np.isfinite(square):
            return
        facts = replace(facts, rows=number + 1, square=facts.square + square)
        limit = absent.size * (_SILENCE * self._unit) ** 2 if absent.size >= _FEWEST else 0.0
        if absent.size and square <= limit:
            first = facts.first_silent if facts.silent else number
            facts = replace(facts, silent=facts.silent + 1, first_silent=first)
        if number == 0 or square < facts.least_square:
            facts = replace(facts, least=number, least_square=square)
        if square > facts.most_square:
            facts = replace(facts, most=number, most_square=square)
        self._facts = facts

    @property
    def facts(self) -> NoiseRowFacts:
        """What the rows have of noise."""
        return self._facts

    @property
    def reuse(self) -> ReuseFacts | None:
        """Whether any noise was used again; None where no row was seen."""
        found = self._sample.facts()
        return found if found.values else None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        numbers = [float(getattr(self._facts, name)) for name in NoiseRowFacts.__slots__]
        return {_NUMBERS: np.array(numbers), **self._sample.arrays()}

    def load(self, arrays: dict[str, Any]) -> None:
        """Resume from `arrays`; without them, from nothing.

        Raises:
            FileFormatError: They are no such arrays.
        """
        numbers = arrays.get(_NUMBERS)
        if numbers is None:
            return
        names = NoiseRowFacts.__slots__
        if getattr(numbers, "shape", None) != (len(names),):
            raise FileFormatError(f"Expected {_NUMBERS} of {len(names)} numbers, got others.")
        values = dict(zip(names, numbers.tolist(), strict=True))
        whole = {name: int(value) for name, value in values.items() if "square" not in name}
        facts = NoiseRowFacts(**{**values, **whole})
        facts.check()
        self._sample.load(arrays)
        self._facts = facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What one client adds to the released sum of a probe.

    Attributes:
        added: In clip norms, on a grid as wide as its error.
        error: Standard error of that, by the noise next to it.
        noise: Noise multiplier of the same release: a sum that is scaled up with its noise, such
            as one over fewer survivors, is no fault.
        values: Entries from which that noise was measured.
    """

    added: float
    error: float = 0.0
    noise: float = 0.0
    values: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """What a copy of the aggregator did with updates that no correct client may upset it with.

    Numbers are None where the probe could not be made; an outcome is ``"finite"``, ``"nan"``, or
    the name of what was raised.

    Attributes:
        unchecked: Why nothing was probed; empty where it was.
        clients: Clients of one probe.
        with_nan: What came of an update with one nan.
        zero: What came of an update of zeros.
        heavy: What a client adds that reports a million times what others do.
        heavy_refused: Name of what was raised instead; empty where nothing was.
        clipped: What a client adds whose update is above the clip norm: the most of all that were
            tried.
        clipped_size: The norm of that update, in clip norms.
        clipped_way: How it was made, in words.
        clipped_tried: Number of updates that were tried.
        overflowed: How the update was made that the release is not finite after; empty where it
            always is.
        counted: What the client adds that counts most, where all send as much.
        spread: Noise of a round of four times as many clients over that of a round, on the sum.
        spread_error: Standard error of that ratio.
        norm_if_above: The next clip norm over this one, every update being far above it.
        norm_if_below: The same, every update being far below.
    """

    unchecked: str = ""
    clients: int = 0
    with_nan: str = ""
    zero: str = ""
    heavy: ProbeReading | None = None
    heavy_refused: str = ""
    clipped: ProbeReading | None = None
    clipped_size: float = 0.0
    clipped_way: str = ""
    clipped_tried: int = 0
    overflowed: str = ""
    counted: ProbeReading | None = None
    spread: float | None = None
    spread_error: float = 0.0
    norm_if_above: float | None = None
    norm_if_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipationFacts:
    """How often clients took part, where rounds say who did.

    Attributes:
        clients: Clients that were named.
        most: Most rounds that one of them entered.
        closest: Least distance between two rounds of one of them; 0 where none entered twice.
        limit: Most rounds that were accounted for; None where nothing limits them.
        separation: Least distance that was accounted for.
        moved: How far the client that moves the mechanism most moves its nodes or rows, in clip
            norms, of those beyond the limits; 0 where none is.
    """

    clients: int = 0
    most: int = 0
    closest: int = 0
    limit: int | None = None
    separation: int = 1
    moved: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("clients", "most", "closest", "limit", "separation", "moved"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise FileFormatError(
                    f"Expected facts.rounds.participation.{name} >= 0, got it below."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestFacts:
    """What honest clients add to the sums, along their own updates.

    Attributes:
        rounds: Rounds in which it was read.
        groups: Groups of clients that were told apart.
        group: The group that adds most, in words.
        added: What a client of this group adds, in clip norms, on a grid as wide as its error.
        error: Standard error of that.
    """

    rounds: int = 0
    groups: int = 0
    group: str = ""
    added: float = 0.0
    error: float = 0.0

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("rounds", "groups", "error"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.rounds.honest.{name} >= 0, got it below.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What was seen of the clients of all rounds, beside what was released.

    Attributes:
        fewest: Honest clients of the smallest round.
        most: Honest clients of the largest round.
        heaviest: The largest weight that an honest client reported, over the mean weight of its
            round; canaries report the largest one of their round.
        reported: What canaries would add on average, were clients weighted as they report.
        adaptive: Whether the clip norm may change from round to round.
        next_norms: The clip norm after each round over the one before it; empty where it is fixed.
        unreleased: Rounds that released nothing.
        probes: What odd updates did.
        participation: How often clients took part; None where rounds do not say who did.
        signed: Whether canaries sent updates of either sign, as many as chance has it.
        honest: What honest clients add; None where it was not read.
    """

    fewest: int = 0
    most: int = 0
    heaviest: float = 1.0
    reported: float = 1.0
    adaptive: bool = False
    next_norms: tuple[float, ...] = ()
    unreleased: int = 0
    probes: ProbeFacts = ProbeFacts()
    participation: ParticipationFacts | None = None
    signed: bool = False
    honest: HonestFacts | None = None

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("fewest", "most", "heaviest", "reported", "unreleased"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.rounds.{name} >= 0, got it below.")
        if not all(ratio > 0.0 for ratio in self.next_norms):
            raise FileFormatError("Expected facts.rounds.next_norms > 0, got others.")
        if self.participation is not None:
            self.participation.check()
        if self.honest is not None:
            self.honest.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Rows of per-sample gradients in every step, compared with the records drawn for it.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        unseen: Why rows and draws could not be compared; empty where they were.
        steps: Private steps.
        compared: Those whose rows and draws were both seen.
        identified: Those whose input was also recognised as the batch that the loader yielded.
        more: Steps with more rows than records drawn.
        more_first: The first of them.
        multiple: Rows of each record, where every such step has the same whole multiple of its
            records and their number varies; 0 otherwise.
        extra_least: The fewest rows that such a step had beyond its records.
        extra_most: The most.
        more_rows: Rows of these steps together.
        more_drawn: Records drawn for them.
        fewer: Steps with fewer rows than records drawn.
        fewer_first: The first of them.
        fewer_rows: Rows of these steps together.
        fewer_drawn: Records drawn for them.
        doubled: Steps with as many rows as records, of which some records had several.
        doubled_first: The first of them.
        unused: Batches that no step used although a later one of the same pass was used, or the
            model was called with them as with those that were used.
        unused_empty: Those of them that held no record.
        unused_first: The step before which the first of them was left out.
        skipped: Batches of whole passes that the model was called with and no step used, where
            every other pass was used whole: a schedule does that, and depends on no record.
        even: Whether equally many were left out before every step, which depends on no record.
        undrawn: Steps while the loader had not been drawn from since the audit was attached.
        other: What the batches of other loaders were drawn by, where one was used.
        foreign: Steps whose rows are those of another loader's batch.
        foreign_first: The first of them.
        again: Steps without a draw of their own, after the loader had been drawn from.
        again_first: The first of them.
        missed: Steps on batches that were drawn before the audit was attached.
    """

    unseen: str = ""
    steps: int = 0
    compared: int = 0
    identified: int = 0
    more: int = 0
    more_first: int = 0
    multiple: int = 0
    extra_least: int = 0
    extra_most: int = 0
    more_rows: int = 0
    more_drawn: int = 0
    fewer: int = 0
    fewer_first: int = 0
    fewer_rows: int = 0
    fewer_drawn: int = 0
    doubled: int = 0
    doubled_first: int = 0
    unused: int = 0
    unused_empty: int = 0
    unused_first: int = 0
    skipped: int = 0
    even: bool = False
    undrawn: int = 0
    other: str = ""
    foreign: int = 0
    foreign_first: int = 0
    again: int = 0
    again_first: int = 0
    missed: int = 0

    @property
    def never_drawn(self) -> bool:
        """Whether the loader was not drawn from in any of several steps."""
        return 1 < self.undrawn == self.steps

    @property
    def dropped(self) -> int:
        """Batches left out in a way that may depend on the records."""
        return 0 if self.even else self.unused

    @property
    def clean(self) -> bool:
        """Whether every step that was seen trained on the records drawn for it, once each."""
        faults = (self.more, self.fewer, self.doubled, self.dropped, self.foreign, self.again)
        return not self.unseen and not any(faults) and not self.never_drawn

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int) and value < 0:
                raise FileFormatError(f"Expected facts.rows.{item.name} >= 0, got {value}.")
        counted = ("compared", "identified", "more", "fewer", "undrawn", "foreign", "again")
        for name in counted:
            if getattr(self, name) > self.steps:
                raise FileFormatError(
                    f"Expected facts.rows.{name} <= {self.steps} steps, got {getattr(self, name)}."
                )


def rows_over_ranks(ranks: Sequence[RowFacts]) -> RowFacts:
    """What several ranks found: the first fault of each kind, and the most steps of any rank."""
    merged = ranks[0]
    for other in ranks[1:]:
        for name in ("more", "fewer", "doubled", "unused", "skipped", "foreign", "again"):
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


_OF_MORE = ("multiple", "extra_least", "extra_most")


# Turns that no pattern foretells, from which on a setting does not follow the step number alone,
# and their share of all changes: a value that follows the batch turns at two changes of three.
_TURNS = 6
_SHARE = 0.25
# Values nearer than this are the same, but for rounding.
_SAME_SETTING = 1e-9
# Patterns that are remembered.
_PATTERNS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts:
    """How one setting moved over the steps of a run.

    Attributes:
        name: The setting.
        steps: Steps in which it was read.
        changes: Steps in which it was another one than in the step before.
        turns: Changes that went up where the one before went down, or the reverse, and that the
            pattern of earlier changes did not foretell.
        first: The step of the first change; 0 if there is none.
        scheduler: Class of the scheduler that sets it, where one was found.
        declared: Changes that were declared to depend on released values alone, or that a
            scheduler of torch made that depends on the step number alone.
        adapted: Whether the optimizer adapts it, from a noisy count that is tested by itself.
    """

    name: str
    steps: int = 0
    changes: int = 0
    turns: int = 0
    first: int = 0
    scheduler: str = ""
    declared: int = 0
    adapted: bool = False

    @property
    def erratic(self) -> bool:
        """Whether it moved up and down as no schedule does."""
        return not self.adapted and self.turns >= _TURNS and self.turns > _SHARE * self.changes

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file."""
        for name in ("steps", "changes", "turns", "first", "declared"):
            if not getattr(self, name) >= 0:
                raise FileFormatError(f"Expected facts.settings.{name} >= 0, got it below.")


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


# More than any run has; what is computed of so many takes seconds.
_MOST = {
    "skipped_steps": 10**7,
    "unnoised_steps": 10**9,
    "accounted_steps": 10**9,
    "places": 1 << 62,
    "planned_steps": 1 << 62,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProbe:
    """What came of trying likely seeds on the first released noise.

    Attributes:
        tried: Number of seeds; 0 where there was too little noise to compare.
        ways: Ways to draw noise from a seed that were tried.
        found: The seed and the way that give this noise; empty if none does.
        seeded: Whether noise comes from a generator of the process that was given a seed, which may
            lie many draws before the noise.
    """

    tried: int
    ways: tuple[str, ...] = ()
    found: str = field(default="", repr=False)
    seeded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known about the run a transcript came from.

    Attributes:
        sampling_rate: Probability that a present canary is planted in a step.
        scheme: How records are drawn, where it was declared as a scheme.
        sampling: Who decided: the recorder's own coin, or the user's sampler.
        poisson: Whether the canaries' inclusions are independent between steps and records.
        poisson_declared: Whether that is the user's word, and not what the audit did or saw.
        loader_poisson: Whether the training's own loader samples by Poisson; None where it was
            not seen.
        background: Whether the other records' clean sum was subtracted.
        fair_coins: Whether every canary was made present by a fair coin of its own.
        noise_multiplier: The noise multiplier the run says it used.
        skipped_steps: Noisy steps that went by and were not observed, as was asked.
        accounted_steps: Steps the run's accountant counted.
        accounted_sampling_rate: Sampling rate the run's accountant used.
        accounted_scheme: How records are drawn by what the run's accountant assumes.
        found_scheme: How they are drawn by what the batches show, where that is another scheme
            than the one that was declared.
        accounted: All that the run's accountant has counted, before the audit too: noise
            multiplier, sampling rate and number of each kind of steps.
        accounted_epsilon: The epsilon that accountant itself says, at the delta of the claim.
        epsilon_reads: Delta, epsilon and steps accounted for, whenever epsilon was read.
        outside: Parameters of the model that could train and that the optimizer does not have;
            None where nobody looked.
        outside_moved: Those of them that changed while the audit watched.
        watch_background: Whether watched coordinates are noise alone; None: as the background is.
        unnoised_steps: Optimizer steps taken without the mechanism adding noise.
        tensors: Names of the tensors, in the order of the tensor indices.
        exercised: Parts of the training the canaries went through, by the names in
            `askgauss.checks.scope`.
        precision: Names of the number formats met.
        records: Records the training draws its batches from, where that was said.
        batches: The training's batches, held against the scheme.
        plantings: The canaries of the user's sampler, held against it.
        places: How many canaries of this kind the model has room for, where that is known.
        seed: Root of the canaries' random choices.
        contribution: Mean norm of a canary's own clipped gradient over the observed steps, in clip
            norms; None where canaries are planted with the whole clip norm.
        seed_probe: Whether the first noise is one that a likely seed gives; None where not tried.
        weights: How the weights moved, compared with what was released; None where nobody looked.
        witness: What was found in steps that were looked at exactly; None where nobody looked.
        rounds: What was seen of the clients of federated rounds; None where there are none.
        rows: Rows that the steps trained on, compared with the records drawn for them; None where
            nobody looked.
        mixing: Whether records met before they were clipped; None where nobody looked.
        clip_count: What was seen of the count by which the clip norm was adapted; None where it
            was not.
        unit: What one canary stands for: an example, or a user whose examples are clipped together.
        reuse: Whether any noise was used again; None where not all of it was seen.
        noise_rows: What was seen of the noise of single rows of a strategy; None where there are
            none.
        settings: How clip norm, noise multiplier, learning rate and expected batch size moved from
            step to step; empty where nobody looked.
        gain: What steps made of the clean sum, where it and what was released were seen whole; None
            where they were not.
        frozen: Name, first step and number of steps of tensors that were frozen while the audit
            watched them; their canaries were left out.
        ended: Why the recording ended before the training did; empty where it did not.
        watched: Whether a monitor showed the run while it trained, which may have ended it.
        planned_steps: Steps that a run that was watched was to take, as said before it; None where
            nobody said.
        turns: Steps of the training that a recorded step stands for: records take turns in them.
        notes: Anything a reader of the report should know.
        run: The identity of the run, drawn when it was begun: checkpoints, step store, scores and
            result of one run share it. No part of what is compared.
        commitment: What was fixed before the first step, and what opens it; None if nothing was.
        resumed: Steps of the training after which it went on from a checkpoint, where nobody said
            by ``step=`` that the model was at the same one. No part of what is compared: a run that
            is resumed rightly is the run that was never stopped.
    """

    sampling_rate: float | None = None
    scheme: Scheme | None = None
    sampling: Literal["own coin", "user's sampler"] = "own coin"
    poisson: bool = True
    poisson_declared: bool = False
    loader_poisson: bool | None = None
    background: Literal["known", "unknown"] = "known"
    fair_coins: bool = False
    noise_multiplier: float | None = None
    skipped_steps: int = 0
    accounted_steps: int | None = None
    accounted_sampling_rate: float | None = None
    accounted_scheme: Scheme | None = None
    found_scheme: Scheme | None = None
    accounted: tuple[tuple[float, float, int], ...] = ()
    accounted_epsilon: float | None = None
    epsilon_reads: tuple[tuple[float, float, int], ...] = ()
    outside: tuple[str, ...] | None = None
    outside_moved: tuple[str, ...] = ()
    watch_background: Literal["known", "unknown"] | None = None
    unnoised_steps: int = 0
    tensors: tuple[str, ...] = ()
    exercised: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    records: int | None = None
    batches: DrawnBatches | None = None
    plantings: DrawnBatches | None = None
    places: int | None = None
    seed: int | None = field(default=None, repr=False)
    contribution: float | None = None
    seed_probe: SeedProbe | None = None
    weights: WeightFacts | None = None
    witness: StepFacts | None = None
    rounds: RoundFacts | None = None
    clip_count: ClipCountFacts | None = None
    rows: RowFacts | None = None
    mixing: MixingFacts | None = None
    unit: Literal["example", "user"] = "example"
    reuse: ReuseFacts | None = None
    noise_rows: NoiseRowFacts | None = None
    settings: tuple[SettingFacts, ...] = ()
    gain: GainFacts | None = None
    frozen: tuple[tuple[str, int, int], ...] = ()
    ended: str = ""
    watched: bool = False
    planned_steps: int | None = None
    turns: int = 1
    notes: tuple[str, ...] = ()
    run: str | None = field(default=None, compare=False)
    commitment: Commitment | None = field(default=None, compare=False)
    resumed: tuple[int, ...] = field(default=(), compare=False)

    @property
    def drawn_by(self) -> Scheme | None:
        """How canaries are drawn; None where nobody said."""
        if self.scheme is None and self.poisson and self.sampling_rate:
            return Poisson(rate=self.sampling_rate)
        return self.scheme

    @property
    def known_background(self) -> bool:
        """Whether what other records drew says nothing of a canary's draws."""
        return self.poisson if self.scheme is None else self.scheme.known_background

    @property
    def own_law(self) -> Scheme | None:
        """How the recorder's own coin draws each canary by itself; None where it drew none."""
        if self.sampling != "own coin":
            return None
        if self.scheme is not None:
            return self.scheme.record_by_record()
        return Poisson(rate=self.sampling_rate) if self.sampling_rate else None

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file.

        Raises:
            FileFormatError: A number is out of its range, or what is said of the sampling
                contradicts itself.
        """
        for name in ("sampling_rate", "accounted_sampling_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0.0 <= rate <= 1.0:
                raise FileFormatError(f"Expected facts.{name} in [0, 1], got {rate}.")
        counts = ("skipped_steps", "accounted_steps", "unnoised_steps", "places", "seed")
        for name in ("noise_multiplier", "contribution"):
            check_magnitude(f"facts.{name}", getattr(self, name), zero=True)
        for name in counts:
            number = getattr(self, name)
            if number is not None and not number >= 0:
                raise FileFormatError(f"Expected facts.{name} >= 0, got {number}.")
        if any(step < 0 for step in self.resumed):
            raise FileFormatError(f"Expected facts.resumed >= 0, got {min(self.resumed)}.")
        for name, most in _MOST.items():
            number = getattr(self, name)
            if number is not None and number > most:
                raise FileFormatError(f"Expected facts.{name} <= {most:,}, got {number:.6g}.")
        if self.planned_steps is not None and self.planned_steps < 1:
            raise FileFormatError(f"Expected facts.planned_steps >= 1, got {self.planned_steps}.")
        if not 1 <= self.turns < 1 << 62:
            raise FileFormatError(f"Expected facts.turns >= 1, got {self.turns}.")
        for part in (
            *(self.weights, self.witness, self.rounds, self.clip_count),
            *(self.rows, self.mixing, self.reuse, self.noise_rows, self.gain, *self.settings),
        ):
            if part is not None:
                part.check()
        if self.commitment is not None:
            self.commitment.opened()
        for name in ("batches", "plantings"):
            drawn = getattr(self, name)
            if drawn is not None:
                drawn.check(f"facts.{name}")
        self._check_sampling()

    def _check_sampling(self) -> None:
        """The sampling is stated in several places, which the recorder fills from one scheme."""
        scheme, rate = self.scheme, self.sampling_rate
        for name in ("batches", "plantings"):
            drawn = getattr(self, name)
            if drawn is None or drawn.scheme == scheme:
                continue
            # Where only a rate was said, batches are held against the accountant's.
            if scheme is not None or drawn.scheme.poisson_rate is None:
                raise _contradiction(f"facts.{name}.scheme", drawn.scheme, scheme or "a rate alone")
        if scheme is None:
            return
        if rate is not None and not math.isclose(rate, scheme.share, rel_tol=1e-6):
            raise _contradiction("facts.sampling_rate", rate, f"{scheme}: {scheme.share:g}")
        if self.sampling == "own coin" and self.poisson != (scheme.poisson_rate is not None):
            raise _contradiction("facts.poisson", self.poisson, scheme)


def _contradiction(name: str, stated: object, declared: object) -> FileFormatError:
    return FileFormatError(
        f"Expected {name} to be that of the sampling it declares ({declared}), got {stated}: it "
        "was damaged or edited. Load the file that the run wrote."
    )
