"""What a training run released about each canary, reduced to sums as it went by.

They are in units of the clip norm of the step: a planted canary contributes 1, and the noise of a
step has the noise multiplier as its standard deviation, whatever the clip norm was.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.files import atomic, codec
from askgauss.files.schema import Field, check_arrays, check_names
from askgauss.files.sums import check_agreement, check_part, check_squares, check_within
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.sampling import assumed_poisson
from askgauss.sampling.inclusion import broken_counts, broken_rule
from askgauss.scores import AuditData, CanaryScores, ScoreMetadata

__all__ = ["SILENCE", "CanarySums", "StepSums", "Transcript"]

# Noise below this share of what is declared is none: what is left are rounding errors.
SILENCE = 1e-3

_KIND = "askgauss-transcript"
_SCHEMA = 2
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14


def _unrecorded() -> NDArray[np.float64]:
    """A field that came later: empty in transcripts that were recorded before it."""
    return np.zeros(0)


def _uncounted() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySums:
    """Sums over the steps, one entry a canary.

    Where a noise multiplier is declared by step, `lag`, `other_total` and `other_square` are in
    units of it, relative to that of the first step: under a schedule too, all steps weigh the same.

    Attributes:
        planted: Number of steps it was planted in.
        total: Sum of what was released about it.
        square: Sum of squares.
        planted_total: Sum over the steps it was planted in.
        planted_square: Sum of squares over those.
        lag: Sum of products of neighbouring steps, the planted signal taken out.
        other_total: Sum over the steps it was not planted in.
        other_square: Sum of squares over those.
        last_planted: The last step it was planted in, from 1; 0 if none. All 0 where the recorder's
            own coin planted.
    """

    planted: NDArray[np.int64]
    total: NDArray[np.float64]
    square: NDArray[np.float64]
    planted_total: NDArray[np.float64]
    planted_square: NDArray[np.float64]
    lag: NDArray[np.float64]
    other_total: NDArray[np.float64] = field(default_factory=_unrecorded)
    other_square: NDArray[np.float64] = field(default_factory=_unrecorded)
    last_planted: NDArray[np.int64] = field(default_factory=_uncounted)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over the canaries, one row a step and one column a tensor.

    There are columns up to the last tensor that holds a canary; block canaries have one in all. The
    fields from `least` on have one number a step, nan or empty where they were not recorded; those
    of single observations are in units as `CanarySums.other_total` is.

    Attributes:
        clip_norm: The clip norm of the step.
        noise_multiplier: The noise multiplier claimed for the step; nan where none was given.
        planted: Number of canaries planted.
        planted_total: Sum over the planted ones.
        planted_square: Sum of squares over the planted ones.
        total: Sum over the others, present or absent.
        square: Sum of squares over the others.
        least: The smallest observation without a planting, or 0.
        most: The largest one, or 0.
        planted_least: The smallest observation with a planting, less the planting.
        planted_most: The largest one.
        silent: Observations without a planting that are below `SILENCE` of the declared noise.
        planted_silent: The same of those with one, less the planting.
        carried: The others along the sum of all before them, over its norm: a draw of the noise.
        gaps: How often a canary came back after so many steps; row 0 is the next step. All 0 where
            the recorder's own coin planted.
        batch_size: Records in the batch of the step.
    """

    clip_norm: NDArray[np.float64]
    noise_multiplier: NDArray[np.float64]
    planted: NDArray[np.int64]
    planted_total: NDArray[np.float64]
    planted_square: NDArray[np.float64]
    total: NDArray[np.float64]
    square: NDArray[np.float64]
    least: NDArray[np.float64] = field(default_factory=_unrecorded)
    most: NDArray[np.float64] = field(default_factory=_unrecorded)
    planted_least: NDArray[np.float64] = field(default_factory=_unrecorded)
    planted_most: NDArray[np.float64] = field(default_factory=_unrecorded)
    silent: NDArray[np.float64] = field(default_factory=_unrecorded)
    planted_silent: NDArray[np.float64] = field(default_factory=_unrecorded)
    carried: NDArray[np.float64] = field(default_factory=_unrecorded)
    gaps: NDArray[np.int64] = field(default_factory=_uncounted)
    batch_size: NDArray[np.float64] = field(default_factory=_unrecorded)


# Sums over all steps, which are those with and those without a planting where both have one unit.
_WHOLE = ("total", "square")
# All 0 where there is one tensor, and where the recorder's own coin planted.
_OFTEN_ZERO = frozenset({"tensor", "canaries.last_planted"})
# Arrays that came later: a transcript has all of them or, if it is older, none.
_LATER = frozenset(
    prefix + item.name
    for prefix, part in (("canaries.", CanarySums), ("steps.", StepSums))
    for item in fields(part)
    if item.default_factory is not MISSING
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript(AuditData):
    """Everything an audit reads from a DP-SGD run; memory grows with canaries plus steps.

    The arrays are made read-only, those given to it too.

    Attributes:
        member: True where the canary was present.
        tensor: Index of the tensor each canary is counted in.
        canaries: Sums over the steps.
        steps: Sums over the canaries.
        kept: Indices of the canaries every step of which was kept.
        kept_values: Those values, one row a step.
        kept_planted: Where those values include a planting.
        watch_values: Values of coordinates that are never planted, one row a step.
        watch_tensor: Index of the tensor each of them lies in.
        facts: What is known about the run.
        gram: How far the directions of the first of the kept canaries are from orthogonal, where
            they are gradients: the mean absolute cosine of every two. Empty where they are
            orthogonal by construction.
    """

    member: NDArray[np.bool_]
    tensor: NDArray[np.int64]
    canaries: CanarySums
    steps: StepSums
    kept: NDArray[np.int64]
    kept_values: NDArray[np.float64]
    kept_planted: NDArray[np.bool_]
    watch_values: NDArray[np.float64]
    watch_tensor: NDArray[np.int64]
    facts: RunFacts = field(default_factory=RunFacts)
    gram: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        for part in (self, self.canaries, self.steps):
            for item in fields(part):
                value = getattr(part, item.name)
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)
        if self.number_of_steps < 1:
            raise RecordingError("Expected at least one observed step, got none.")

    @property
    def number_of_steps(self) -> int:
        """Number of steps observed."""
        return int(self.steps.clip_norm.size)

    @property
    def schedule(self) -> NDArray[np.float64]:
        """The declared noise of every step relative to that of the first; ones where there is none.

        A step that is declared to have no noise counts like one of which nothing is declared.
        """
        declared = self.steps.noise_multiplier
        if not (np.isfinite(declared).all() and (declared > 0.0).all()):
            return np.ones(declared.size)
        return np.asarray(declared / declared[0])

    @property
    def finite(self) -> bool:
        """Whether every observation was a finite number, and its square one too."""
        sums, largest = self.canaries, _validate.LARGEST
        parts = (sums.total, sums.planted_total, sums.other_total, self.watch_values)
        squares = (sums.square, sums.planted_square, sums.other_square)
        return all(_validate.is_within(part) for part in parts) and all(
            _validate.is_within(part, largest**2) for part in squares
        )

    @property
    def auditable(self) -> bool:
        """Whether there are enough canaries of both kinds to compare their scores."""
        present = int(np.count_nonzero(self.member))
        return min(present, self.member.size - present) >= 2

    @property
    def scorable(self) -> bool:
        """Whether there are finite scores of at least two canaries of each group."""
        return self.finite and self.auditable

    @property
    def has_steps(self) -> bool:
        """Every step was recorded."""
        return True

    @property
    def run_id(self) -> str | None:
        """The identity of the run."""
        return self.facts.run

    @property
    def committed(self) -> str | None:
        """The digest that was published before the run, where there was one."""
        return None if self.facts.commitment is None else self.facts.commitment.digest

    @property
    def watched_end(self) -> tuple[int, int | None] | None:
        """Steps that a monitored run took, and was to take; None where nobody watched it."""
        if not self.facts.watched:
            return None
        return self.number_of_steps * self.facts.turns, self.facts.planned_steps

    def __repr__(self) -> str:
        present = int(np.count_nonzero(self.member))
        return (
            f"Transcript(steps={self.number_of_steps}, present={present}, "
            f"absent={self.member.size - present}, background={self.facts.background!r})"
        )

    def scores(self) -> CanaryScores:
        """The canary scores: sums over the steps, divided by the root of their number.

        Only these reach auditors that guess: when each canary was planted stays behind, since it
        gives membership away.
        """
        facts = self.facts
        return CanaryScores(
            score=self.canaries.total / np.sqrt(self.number_of_steps),
            member=self.member,
            metadata=ScoreMetadata(
                steps=self.number_of_steps,
                sampling_rate=facts.sampling_rate if facts.poisson else None,
                clip_norm=1.0,  # the unit that scores are in
                noise_multiplier=facts.noise_multiplier,
                background=facts.background,
                fair_coins=facts.fair_coins,
                run=facts.run,
            ),
        )

    def with_facts(self, facts: RunFacts) -> Transcript:
        """The same transcript with other facts."""
        return replace(self, facts=facts)

    def save(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write an npz file (no pickles), whole or not at all, that only its owner may read.

        With the released weights and a known background it gives back the sums that the noise was
        to hide: keep it with the training data.
        """
        metadata = {"facts": codec.to_plain(self.facts)}
        atomic.write_arrays(target, _KIND, _SCHEMA, _without_derived(self.arrays()), metadata)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by a flat name, without those that were not recorded."""
        result: dict[str, NDArray[Any]] = {}
        for prefix, part in (("", self), ("canaries.", self.canaries), ("steps.", self.steps)):
            for item in fields(part):
                value = getattr(part, item.name)
                optional = item.default_factory is not MISSING
                if isinstance(value, np.ndarray) and not (optional and value.size == 0):
                    result[prefix + item.name] = value
        return result

    @classmethod
    def load(cls, source: atomic.Source) -> Transcript:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = atomic.read_arrays(source, _KIND, _SCHEMA)
        facts = codec.from_plain(RunFacts, content.get("facts", {}), "facts")
        whole = _with_derived(arrays)
        transcript = cls.from_arrays(whole, facts, derived=whole.keys() - arrays.keys())
        tested = assumed_poisson(facts.scheme) or facts.plantings is not None
        if facts.own_law is None and not tested and transcript.canaries.planted.any():
            raise FileFormatError(
                f"Expected facts.plantings beside a sampler that draws by {facts.scheme}, got "
                "none: it was damaged or edited. Load the file that the run wrote."
            )
        return transcript

    @classmethod
    def from_arrays(
        cls,
        arrays: dict[str, NDArray[Any]],
        facts: RunFacts,
        *,
        derived: Collection[str] = (),
    ) -> Transcript:
        """Put a transcript together from the arrays of `arrays`.

        Args:
            arrays: The arrays.
            facts: What is known about the run.
            derived: Those that follow from others and need no check of their own.
        """
        optional = {"gram", *_LATER}
        check_names(arrays, [name for name in _array_names() if name not in optional], optional)

        def part(kind: type, prefix: str) -> dict[str, Any]:
            names = [item.name for item in fields(kind) if prefix + item.name in arrays]
            return {name: arrays[prefix + name] for name in names}

        try:
            transcript = cls(
                canaries=CanarySums(**part(CanarySums, "canaries.")),
                steps=StepSums(**part(StepSums, "steps.")),
                facts=facts,
                **part(cls, ""),
            )
        except (TypeError, RecordingError) as error:
            raise FileFormatError(f"Expected a whole transcript: {error}") from error
        transcript._check(derived)
        return transcript

    def _check_schedule(self) -> None:
        """Refuse declared noise that the recorder would not have taken."""
        declared = self.steps.noise_multiplier
        some = declared[declared > 0.0]
        relative = self.schedule
        for values in (some, relative):
            if values.size and not (
                values.min() >= _validate.SMALLEST and values.max() <= _validate.LARGEST
            ):
                raise FileFormatError(
                    f"Expected steps.noise_multiplier 0 or in [{_validate.SMALLEST:g}, "
                    f"{_validate.LARGEST:g}], by itself and by the first, got {some.min():g} to "
                    f"{some.max():g}."
                )

    def _check_sums(self, derived: Collection[str]) -> None:
        """Refuse sums of a finite run that are not finite, or that its other sums contradict.

        Args:
            derived: Arrays that follow from others, and are what these allow.
        """
        sums, steps = self.canaries, self.steps
        largest = _validate.LARGEST
        for name, values, most in (
            ("kept_values", self.kept_values, largest),
            ("canaries.lag", sums.lag, largest**2),
            *(
                (f"steps.{name}", getattr(steps, name), largest)
                for name in ("planted_total", "total")
            ),
            *(
                (f"steps.{name}", getattr(steps, name), largest**2)
                for name in ("planted_square", "square")
            ),
        ):
            check_within(name, values, most)
        for name in ("least", "most", "planted_least", "planted_most", "carried"):
            values = getattr(steps, name)
            if not _validate.is_within(values[~np.isnan(values)]):
                raise FileFormatError(f"Expected steps.{name} within {largest:g}, got others.")
        for low, high in (("least", "most"), ("planted_least", "planted_most")):
            if np.any(getattr(steps, low) > getattr(steps, high)):
                raise FileFormatError(f"Expected steps.{low} <= steps.{high}, got more.")
        length, count = self.number_of_steps, self.member.size
        everywhere = (
            ("canaries.planted_square", sums.planted_total, sums.planted_square, sums.planted),
            ("canaries.other_square", sums.other_total, sums.other_square, sums.planted, length),
            ("canaries.square", sums.total, sums.square, length),
            ("steps.square", steps.total, steps.square, count),
            ("steps.planted_square", steps.planted_total, steps.planted_square, steps.planted),
        )
        for item in everywhere:
            if item[0] not in derived and item[1].size:
                check_squares(*item)
        for name in ("least", "most"):
            values = getattr(steps, name)
            check_part(f"steps.{name}", values**2, "canaries.other_square", sums.other_square.sum())
        square = float(sums.square.sum())
        planted = float(sums.planted_square.sum())
        check_agreement(
            "squares", float((steps.square + steps.planted_square).sum()), square, square
        )
        check_agreement("planted squares", float(steps.planted_square.sum()), planted, planted)
        # Totals cancel: what is lost of them is relative to the sizes of what was summed.
        size = float(np.sqrt(square) * np.sqrt(length * count))
        total = float((steps.total + steps.planted_total).sum())
        check_agreement("totals", total, float(sums.total.sum()), size)
        check_agreement(
            "planted totals",
            float(steps.planted_total.sum()),
            float(sums.planted_total.sum()),
            size,
        )

    def _check(self, derived: Collection[str]) -> None:
        """What a file says fits together; arrays of the recorder always do."""
        self.facts.check()
        sizes = {
            "canaries": self.member.size,
            "steps": self.number_of_steps,
            "columns": self.steps.planted.shape[-1] if self.steps.planted.ndim else 0,
            "kept": self.kept.size,
            "watched": self.watch_tensor.size,
            "gram": min(len(self.gram) if self.gram.ndim else 0, self.kept.size),
            "tensors": len(self.facts.tensors),
        }
        if sizes["columns"] < 1:
            raise FileFormatError("Expected steps.planted to have a column for a tensor, got none.")
        arrays = self.arrays()
        missing = sorted(_LATER - arrays.keys())
        if 0 < len(missing) < len(_LATER):
            raise FileFormatError(
                f"Expected {missing[0]} beside the other arrays of its time, got none."
            )
        given = {name: array for name, array in arrays.items() if name not in derived}
        check_arrays(given, _fields_of(**sizes))
        if np.any(np.diff(self.kept) <= 0):
            raise FileFormatError("Expected kept to name each canary once, in order.")
        if np.any(np.isfinite(self.steps.silent) != np.isfinite(self.steps.planted_silent)):
            raise FileFormatError("Expected silent and planted_silent of the same steps.")
        planted = self.canaries.planted
        by_tensor = np.zeros(sizes["columns"])
        # In blocks: what is as large as the transcript itself takes longer to have than to count.
        for start in range(0, planted.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            if np.any(planted[block].astype(np.bool_) & ~self.member[block]):
                raise FileFormatError("Expected absent canaries never to be planted.")
            if by_tensor.size == 1:
                by_tensor += planted[block].sum()
            else:
                by_tensor += np.bincount(self.tensor[block], planted[block], by_tensor.size)
        if not (
            np.array_equal(by_tensor, self.steps.planted.sum(axis=0))
            and np.array_equal(planted[self.kept], self.kept_planted.sum(axis=0))
        ):
            raise FileFormatError(
                "Expected as many plantings over the steps as over the canaries, got other numbers."
            )
        self._check_plantings()
        self._check_schedule()
        if self.finite:
            self._check_sums(derived)

    def _check_plantings(self) -> None:
        """What was planted can come from the sampling that the facts state.

        The recorder's own coin draws by that and nothing else. A sampler of the training may be
        broken, which is for the audit to say; but what was held against its scheme are these
        plantings.
        """
        planted, steps, facts = self.canaries.planted, self.number_of_steps, self.facts
        total, present = int(planted.sum()), int(np.count_nonzero(self.member))
        drawn, law = facts.plantings, facts.own_law
        if drawn is not None and (drawn.steps, drawn.records, drawn.drawn) != (
            steps,
            present,
            total,
        ):
            raise FileFormatError(
                f"Expected facts.plantings to be the {total:,} of {present:,} "
                f"present canaries in {steps:,} steps, got {drawn.drawn:,} of {drawn.records:,} in "
                f"{drawn.steps:,}: it was damaged or edited. Load the file that the run wrote."
            )
        if law is None:
            return
        shown = self.kept_planted[:, self.member[self.kept]]
        if broken := broken_counts(law, planted, steps, self.member) or broken_rule(law, shown):
            raise FileFormatError(
                f"Expected plantings by {law}, as the facts declare, got {broken}: it was damaged "
                "or edited. Load the file that the run wrote."
            )


def _without_derived(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays less those that follow from others to the last bit, a third of a large file."""
    kept = dict(arrays)
    if _LATER - kept.keys():
        return kept
    for name in _WHOLE:
        parts = kept[f"canaries.other_{name}"] + kept[f"canaries.planted_{name}"]
        if np.array_equal(kept[f"canaries.{name}"], parts):
            del kept[f"canaries.{name}"]
    for name in _OFTEN_ZERO:
        if not kept[name].any():
            del kept[name]
    return kept


def _with_derived(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays of a file with those that `_without_derived` left out of it."""
    whole = dict(arrays)
    for name in _WHOLE:
        other = whole.get(f"canaries.other_{name}")
        planted = whole.get(f"canaries.planted_{name}")
        if f"canaries.{name}" in whole or other is None or planted is None:
            continue
        # Arrays of other kinds are left to be refused by name.
        if other.dtype == planted.dtype == np.float64 and other.shape == planted.shape:
            with np.errstate(invalid="ignore", over="ignore"):
                whole[f"canaries.{name}"] = other + planted
    if "canaries.other_total" in whole and "canaries.planted" in whole:
        for name in _OFTEN_ZERO - whole.keys():
            whole[name] = np.zeros(whole["canaries.planted"].shape, dtype=np.int64)
    return whole


def _array_names() -> list[str]:
    """Names of the arrays of a file."""
    own = [
        item.name for item in fields(Transcript) if item.name not in ("canaries", "steps", "facts")
    ]
    return [
        *own,
        *(f"canaries.{item.name}" for item in fields(CanarySums)),
        *(f"steps.{item.name}" for item in fields(StepSums)),
    ]


def _fields_of(
    *, canaries: int, steps: int, columns: int, kept: int, watched: int, gram: int, tensors: int
) -> dict[str, Field]:
    """What every array of a transcript of these sizes must be."""
    each, rows = (canaries,), (steps, columns)
    # Sums of squares are not negative; they may be infinite or nan, and the transcript says so.
    square = Field(np.float64, each, low=0.0)
    step_square = Field(np.float64, rows, low=0.0)
    number, count = (
        Field(np.float64, (steps,)),
        Field(np.float64, (steps,), low=0.0, high=float(canaries)),
    )
    return {
        "member": Field(np.bool_, each),
        "tensor": Field(np.int64, each, low=0, high=columns, open=True),
        "canaries.planted": Field(np.int64, each, low=0, high=steps),
        "canaries.total": Field(np.float64, each),
        "canaries.square": square,
        "canaries.planted_total": Field(np.float64, each),
        "canaries.planted_square": square,
        "canaries.lag": Field(np.float64, each),
        "canaries.other_total": Field(np.float64, each),
        "canaries.other_square": square,
        "canaries.last_planted": Field(np.int64, each, low=0, high=steps),
        "steps.clip_norm": Field(
            np.float64, (steps,), low=_validate.SMALLEST, high=_validate.LARGEST, finite=True
        ),
        "steps.noise_multiplier": Field(np.float64, (steps,), low=0.0),
        "steps.planted": Field(np.int64, rows, low=0, high=canaries),
        "steps.planted_total": Field(np.float64, rows),
        "steps.planted_square": step_square,
        "steps.total": Field(np.float64, rows),
        "steps.square": step_square,
        "steps.least": Field(np.float64, (steps,), high=0.0),
        "steps.most": Field(np.float64, (steps,), low=0.0),
        "steps.planted_least": number,
        "steps.planted_most": number,
        "steps.silent": count,
        "steps.planted_silent": count,
        "steps.carried": number,
        "steps.gaps": Field(np.int64, (steps,), low=0),
        "steps.batch_size": Field(np.float64, (steps,), low=0.0),
        "kept": Field(np.int64, (kept,), low=0, high=canaries, open=True),
        "kept_values": Field(np.float64, (steps, kept)),
        "kept_planted": Field(np.bool_, (steps, kept)),
        "watch_values": Field(np.float64, (steps, watched)),
        "watch_tensor": Field(np.int64, (watched,), low=0, high=max(columns, tensors), open=True),
        "gram": Field(np.float64, (gram, gram), low=0.0, high=1.001),
    }
