"""What a training run released about each canary, reduced to sums as it went by.

They are in units of the clip norm of the step: a planted canary contributes 1, and the noise of a
step has the noise multiplier as its standard deviation, whatever the clip norm was.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.files import archive, atomic, codec, schema
from askgauss.files.schema import Field
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.scores import AuditData, CanaryScores, ScoreMetadata

__all__ = ["SILENCE", "CanarySums", "StepSums", "Transcript", "check_transcript_arrays"]

# Noise below this share of what is declared is none: what is left are rounding errors.
SILENCE = 1e-3

_KIND = "askgauss-transcript"
_SCHEMA = 2


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
    other_total: NDArray[np.float64]
    other_square: NDArray[np.float64]
    last_planted: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSums:
    """Sums over the canaries, one row a step and one column a tensor.

    There are columns up to the last tensor that holds a canary; block canaries have one in all. The
    fields from `least` on have one number a step, nan where they were not recorded; those
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
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    planted_least: NDArray[np.float64]
    planted_most: NDArray[np.float64]
    silent: NDArray[np.float64]
    planted_silent: NDArray[np.float64]
    carried: NDArray[np.float64]
    gaps: NDArray[np.int64]
    batch_size: NDArray[np.float64]


# Sums over all steps, which are those with and those without a planting where both have one unit.
_WHOLE = ("total", "square")
# All 0 where there is one tensor, and where the recorder's own coin planted.
_OFTEN_ZERO = ("tensor", "canaries.last_planted")


def _each(dtype: type[np.generic], **limits: Any) -> Field:
    """One entry a canary."""
    return Field(dtype, ("canaries",), **limits)


def _rows(dtype: type[np.generic], **limits: Any) -> Field:
    """One row a step, one column a tensor."""
    return Field(dtype, ("steps", "columns"), **limits)


def _numbers(dtype: type[np.generic], **limits: Any) -> Field:
    """One number a step."""
    return Field(dtype, ("steps",), **limits)


# Sums of squares are not negative; they may be infinite or nan, and the transcript says so.
_FIELDS = {
    "member": _each(np.bool_),
    "steps.clip_norm": _numbers(
        np.float64, low=_validate.SMALLEST, high=_validate.LARGEST, finite=True
    ),
    "steps.planted": _rows(np.int64, low=0, high="canaries"),
    "tensor": _each(np.int64, low=0, high="columns", open=True, optional=True),
    "canaries.planted": _each(np.int64, low=0, high="steps"),
    "canaries.total": _each(np.float64, optional=True),
    "canaries.square": _each(np.float64, low=0.0, optional=True),
    "canaries.planted_total": _each(np.float64),
    "canaries.planted_square": _each(np.float64, low=0.0),
    "canaries.lag": _each(np.float64),
    "canaries.other_total": _each(np.float64),
    "canaries.other_square": _each(np.float64, low=0.0),
    "canaries.last_planted": _each(np.int64, low=0, high="steps", optional=True),
    "steps.noise_multiplier": _numbers(np.float64, low=0.0),
    "steps.planted_total": _rows(np.float64),
    "steps.planted_square": _rows(np.float64, low=0.0),
    "steps.total": _rows(np.float64),
    "steps.square": _rows(np.float64, low=0.0),
    "steps.least": _numbers(np.float64, high=0.0),
    "steps.most": _numbers(np.float64, low=0.0),
    "steps.planted_least": _numbers(np.float64),
    "steps.planted_most": _numbers(np.float64),
    "steps.silent": _numbers(np.float64, low=0.0, high="canaries"),
    "steps.planted_silent": _numbers(np.float64, low=0.0, high="canaries"),
    "steps.carried": _numbers(np.float64),
    "steps.gaps": _numbers(np.int64, low=0),
    "steps.batch_size": _numbers(np.float64, low=0.0),
    "kept": Field(np.int64, ("kept",), low=0, high="canaries", open=True),
    "kept_values": Field(np.float64, ("steps", "kept")),
    "kept_planted": Field(np.bool_, ("steps", "kept")),
    "watch_tensor": Field(np.int64, ("watched",), low=0, high="tensors", open=True),
    "watch_values": Field(np.float64, ("steps", "watched")),
    "gram": Field(np.float64, ("gram", "gram"), low=0.0, high=1.001, optional=True),
}


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
        archive.write_arrays(target, _KIND, _SCHEMA, _without_derived(self.arrays()), metadata)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Every array by a flat name, without a ``gram`` that was not recorded."""
        result: dict[str, NDArray[Any]] = {}
        for prefix, part in (("", self), ("canaries.", self.canaries), ("steps.", self.steps)):
            for item in fields(part):
                value = getattr(part, item.name)
                if isinstance(value, np.ndarray) and (value.size or item.name != "gram"):
                    result[prefix + item.name] = value
        return result

    @classmethod
    def load(cls, source: atomic.Source) -> Transcript:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = archive.read_arrays(source, _KIND, _SCHEMA)
        facts: RunFacts = codec.from_plain(RunFacts, content.get("facts", {}), "facts")
        facts.check()
        check_transcript_arrays(arrays, tensors=len(facts.tensors))
        whole = _with_derived(arrays)

        def part(kind: type, prefix: str) -> dict[str, Any]:
            names = [item.name for item in fields(kind) if prefix + item.name in whole]
            return {name: whole[prefix + name] for name in names}

        try:
            return cls(
                canaries=CanarySums(**part(CanarySums, "canaries.")),
                steps=StepSums(**part(StepSums, "steps.")),
                facts=facts,
                **part(cls, ""),
            )
        except RecordingError as error:
            raise FileFormatError(f"Expected a whole transcript: {error}") from error


def check_transcript_arrays(arrays: dict[str, NDArray[Any]], *, tensors: int) -> None:
    """Refuse arrays of a file or a checkpoint that are not those of a transcript.

    Args:
        arrays: The arrays by their flat names.
        tensors: Number of tensors that the facts of the run name.

    Raises:
        FileFormatError: One is missing, of another shape or type, or out of its range.
    """
    planted = arrays.get("steps.planted")
    columns = 0 if planted is None or planted.ndim == 0 else planted.shape[-1]
    if planted is not None and columns < 1:
        raise FileFormatError("Expected steps.planted to have a column for a tensor, got none.")
    sizes = schema.check(arrays, _FIELDS, {"tensors": max(columns, tensors)})
    if sizes.get("gram", 0) > sizes["kept"]:
        raise FileFormatError(f"Expected gram of at most {sizes['kept']} kept canaries, got more.")


def _without_derived(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays less those that follow from others to the last bit, a third of a large file."""
    kept = dict(arrays)
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
        if f"canaries.{name}" not in whole:
            with np.errstate(invalid="ignore", over="ignore"):
                whole[f"canaries.{name}"] = (
                    whole[f"canaries.other_{name}"] + whole[f"canaries.planted_{name}"]
                )
    for name in _OFTEN_ZERO:
        if name not in whole:
            whole[name] = np.zeros(whole["member"].shape, dtype=np.int64)
    return whole
