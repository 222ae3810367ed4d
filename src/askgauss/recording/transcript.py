"""What a training run released about each canary, reduced to sums while it trained.

They are in units of the clip norm of the step: an included canary contributes 1, and the noise of a
step has the noise multiplier as its standard deviation, whatever the clip norm was. A `Transcript`
is of a run with independent noise in every step (DP-SGD); a `LinearTranscript` of one with
correlated noise (DP-FTRL), where a canary enters one step or a few and every later release depends
on it: its best score is a matched filter over all releases, exactly Gaussian with the noise of one
node, and moved by presence as far as the canary's *information* says.
"""

from __future__ import annotations

import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import IO, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, NotDefinedError, RecordingError
from askgauss.files import archive, atomic, codec, schema
from askgauss.files.codec import number
from askgauss.files.schema import Field
from askgauss.mechanisms.plans import Plan
from askgauss.recording.facts import RunFacts
from askgauss.scores import AuditData, CanaryScores, ScoreMetadata

__all__ = [
    "DUST",
    "SILENCE",
    "CanarySums",
    "LinearTranscript",
    "PieceSums",
    "RecordedRun",
    "StepSums",
    "Transcript",
    "check_linear_arrays",
    "check_transcript_arrays",
    "without_dust",
]

# Noise below this share of what is declared is none: what is left are rounding errors.
SILENCE = 1e-3
# Sums of squares below this are of numbers whose squares lose their digits, or are none.
DUST = _validate.SMALLEST**2
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14

Arrays = dict[str, NDArray[Any]]
Run = TypeVar("Run", bound="RecordedRun")


class RecordedRun(AuditData):
    """What transcripts of both kinds share: arrays by flat names, facts, and files."""

    __slots__ = ()

    kind: ClassVar[str]
    version: ClassVar[int]
    # Fields that are sums, each a dataclass of arrays; and those that are no arrays.
    sums: ClassVar[Mapping[str, type]]
    plain: ClassVar[tuple[str, ...]] = ("facts",)

    facts: RunFacts
    number_of_steps: Any

    def _freeze(self) -> None:
        for array in self.arrays().values():
            array.setflags(write=False)

    @property
    def _scored(self) -> NDArray[np.bool_]:
        """Membership of the canaries that have a score."""
        return self.member

    @property
    def finite(self) -> bool:
        """Whether every observation was a finite number, and its square one too."""
        raise NotImplementedError

    @property
    def auditable(self) -> bool:
        """Whether there are enough canaries of both kinds to compare their scores."""
        present = int(np.count_nonzero(self._scored))
        return min(present, self._scored.size - present) >= 2

    @property
    def scorable(self) -> bool:
        """Whether there are finite scores of at least two canaries of each group."""
        return self.finite and self.auditable

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

    def _described(self, **more: Any) -> str:
        present = int(np.count_nonzero(self.member))
        shown = {"steps": self.number_of_steps, **more, "present": present}
        shown |= {"absent": self.member.size - present, "background": self.facts.background}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def with_facts(self: Run, facts: RunFacts) -> Run:
        """The same transcript with other facts."""
        return replace(self, facts=facts)  # type: ignore[type-var]

    def arrays(self) -> Arrays:
        """Every array by a flat name, without those that were not recorded."""
        result: Arrays = {}
        for prefix in ("", *(f"{name}." for name in self.sums)):
            part: Any = getattr(self, prefix[:-1]) if prefix else self
            for item in fields(part):
                value = getattr(part, item.name)
                if isinstance(value, np.ndarray) and (value.size or item.name != "gram"):
                    result[prefix + item.name] = value
        return result

    @staticmethod
    def _stored(arrays: Arrays) -> Arrays:
        """The arrays of a file: less those that follow from others."""
        return arrays

    @classmethod
    def _checked(cls, arrays: Arrays, plain: Mapping[str, Any]) -> Arrays:
        """All arrays of the transcript in a file, or an error that says what is wrong with them."""
        raise NotImplementedError

    def save(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write an npz file (no pickles), whole or not at all, that only its owner may read.

        With the released weights and a known background it gives back the sums that the noise was
        to hide: keep it with the training data.
        """
        plain = {name: getattr(self, name) for name in self.plain}
        stored = self._stored(self.arrays())
        archive.write_arrays(target, self.kind, self.version, stored, codec.to_plain(plain))

    @classmethod
    def load(cls: type[Run], source: atomic.Source) -> Run:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = archive.read_arrays(source, cls.kind, cls.version)
        hints = typing.get_type_hints(cls)
        plain = {
            item.name: codec.read_field(item, hints[item.name], content.get(item.name), item.name)
            for item in fields(cls)  # type: ignore[arg-type]
            if item.name in cls.plain
        }
        parts: dict[str, dict[str, Any]] = {"": plain, **{name: {} for name in cls.sums}}
        for name, array in cls._checked(arrays, plain).items():
            part, _, field_name = name.rpartition(".")
            parts[part][field_name] = array
        try:
            sums = {name: kind(**parts[name]) for name, kind in cls.sums.items()}
            return cls(**sums, **parts[""])
        except RecordingError as error:
            raise FileFormatError(f"Expected a whole transcript: {error}") from error


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Transcript(RecordedRun):
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

    kind: ClassVar[str] = "askgauss-transcript"
    version: ClassVar[int] = 2
    sums: ClassVar[Mapping[str, type]] = {"canaries": CanarySums, "steps": StepSums}

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
        self._freeze()
        if self.number_of_steps < 1:
            raise RecordingError("Expected at least one observed step, got none.")

    def __repr__(self) -> str:
        return self._described()

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
        sums = self.canaries
        parts = (sums.total, sums.planted_total, sums.other_total, self.watch_values)
        return _finite(parts, (sums.square, sums.planted_square, sums.other_square))

    @property
    def has_steps(self) -> bool:
        """Every step was recorded."""
        return True

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

    @staticmethod
    def _stored(arrays: Arrays) -> Arrays:
        kept = dict(arrays)
        for name in _WHOLE:
            parts = kept[f"canaries.other_{name}"] + kept[f"canaries.planted_{name}"]
            if np.array_equal(kept[f"canaries.{name}"], parts):
                del kept[f"canaries.{name}"]
        for name in _OFTEN_ZERO:
            if not kept[name].any():
                del kept[name]
        return kept

    @classmethod
    def _checked(cls, arrays: Arrays, plain: Mapping[str, Any]) -> Arrays:
        check_transcript_arrays(arrays, tensors=len(plain["facts"].tensors))
        whole = dict(arrays)
        for name in _WHOLE:
            if f"canaries.{name}" not in whole:
                parts = whole[f"canaries.other_{name}"], whole[f"canaries.planted_{name}"]
                with np.errstate(invalid="ignore", over="ignore"):
                    whole[f"canaries.{name}"] = np.add(*parts)
        for name in _OFTEN_ZERO:
            whole.setdefault(name, np.zeros(whole["member"].shape, dtype=np.int64))
        return whole


def _finite(
    parts: tuple[NDArray[Any] | None, ...], squares: tuple[NDArray[Any] | None, ...]
) -> bool:
    """Whether all numbers are within limits, and those of squares within the limits squared."""
    return all(
        part is None or _validate.is_within(part, most)
        for group, most in ((parts, _validate.LARGEST), (squares, _validate.LARGEST**2))
        for part in group
    )


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


def _optional(
    low: float | None = None, high: float | None = None, *, finite: bool = False
) -> Field:
    """One number a canary that may be left out."""
    return Field(np.float64, ("canaries",), low=low, high=high, finite=finite, optional=True)


def _by_piece(high: float | None = None, *, finite: bool = False) -> Field:
    """One number a piece, not negative, that may be left out."""
    return Field(np.float64, ("pieces",), low=0.0, high=high, finite=finite, optional=True)


_PLACE = Field(np.int64, ("pieces",), low=0, high="planned", open=True)
_LINEAR_FIELDS = {
    "member": Field(np.bool_, ("canaries",)),
    "leaves": Field(np.int64, ("canaries", "participations"), low=0, high="planned", open=True),
    "score": Field(np.float64, ("canaries",)),
    "information": Field(np.float64, ("canaries",), low=0.0, high=_validate.LARGEST, finite=True),
    "pieces.tree": _PLACE,
    "pieces.level": Field(np.int64, ("pieces",), low=-1, high=64),
    "pieces.index": _PLACE,
    "pieces.total": Field(np.float64, ("pieces",)),
    "pieces.square": Field(np.float64, ("pieces",), low=0.0),
    "pieces.signal": _by_piece(_validate.LARGEST, finite=True),
    "pieces.gain": _by_piece(_validate.LARGEST**2, finite=True),
    "pieces.planted": Field(np.int64, ("pieces",), low=0, high="canaries", optional=True),
    "pieces.planted_square": _by_piece(),
    "noise_square": _optional(0.0),
    "leaf_square": _by_piece(),
    "leaf_gain": _by_piece(_validate.LARGEST**2, finite=True),
    "kept": Field(np.int64, ("kept",), low=0, high="canaries", open=True),
    "kept_values": Field(np.float64, ("pieces", "kept")),
    "cosine": _optional(-1.001, 1.001),
    "round_cosine": _optional(-1.001, 1.001),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceSums:
    """The pieces the release was taken apart into, one row each, summed over absent canaries.

    A piece is a node where nodes are released, and what a prefix says that those before it did not
    where prefixes are, with independent noise: for online estimators the node of its last binary
    digit; for the ``full`` one what a right child has over the left one, and every widest node.
    Each is scaled so that its noise is that of one node. (Prefixes of trees that are filled up are
    left whole: scaled alike, but not independent.)

    Attributes:
        tree: Which tree, counted from 0.
        level: Level of the node; the leaves are level 0, and a whole prefix is -1.
        index: Place of the node in its level of its tree; of a whole prefix, its step.
        total: Sum over the absent canaries.
        square: Sum of squares over the absent canaries.
        signal: The most that a record in one of its leaves adds; these four are None where a piece
            says nothing of single leaves.
        gain: Squared information of all pieces on the leaf that adds the most.
        planted: Number of present canaries in its leaves.
        planted_square: Sum of squares over those, less what each of them adds.
    """

    tree: NDArray[np.int64]
    level: NDArray[np.int64]
    index: NDArray[np.int64]
    total: NDArray[np.float64]
    square: NDArray[np.float64]
    signal: NDArray[np.float64] | None = None
    gain: NDArray[np.float64] | None = None
    planted: NDArray[np.int64] | None = None
    planted_square: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        _clear(self, ("total", "signal"), _validate.SMALLEST)
        _clear(self, ("square", "gain", "planted_square"), DUST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LinearTranscript(RecordedRun):
    """Everything an audit reads from a run with correlated noise.

    The arrays are made read-only, those given to it too. What is smaller than 1e-140 is zero here:
    its square is no number any more.

    Attributes:
        member: True where the canary was present.
        leaves: The steps a present canary enters, one row a canary.
        score: The matched filter of each canary: noise of one node, whatever its leaves.
        information: What presence adds to each score; 0 where the run stopped before its leaves.
        largest_information: The most it adds to that of any record of this mechanism.
        pieces: The noise of the release, piece by piece.
        kept: Indices of the absent canaries of which every piece was kept.
        kept_values: Those pieces, one row each.
        cosine: The largest cosine of each canary with a released prefix; None if not recorded.
        round_cosine: The largest cosine with the change from one prefix to the next.
        noise_square: Sum of squares over all pieces, one a canary, less what presence adds; None
            where pieces are not independent.
        leaf_square: Of each step of a strategy, the sum of squares of the noise that a record which
            enters there really meets, over ``leaf_freedom`` observations, however the rows' noise
            is correlated; None where the kept canaries are too few to say, and for trees.
        leaf_gain: With it, the squared norm of each step's column of the strategy.
        plan: The mechanism.
        number_of_steps: Steps observed.
        clip_norm: Norm of a canary's contribution.
        carried_shift: How much of what all nodes show of the record protected least a score shows.
        facts: What is known about the run.
    """

    kind: ClassVar[str] = "askgauss-linear-transcript"
    version: ClassVar[int] = 3
    sums: ClassVar[Mapping[str, type]] = {"pieces": PieceSums}
    plain: ClassVar[tuple[str, ...]] = (
        *("plan", "facts", "largest_information", "number_of_steps", "clip_norm"),
        "carried_shift",
    )

    member: NDArray[np.bool_]
    leaves: NDArray[np.int64]
    score: NDArray[np.float64]
    information: NDArray[np.float64]
    largest_information: float = number(low=_validate.SMALLEST, high=_validate.LARGEST)
    pieces: PieceSums
    kept: NDArray[np.int64]
    kept_values: NDArray[np.float64]
    cosine: NDArray[np.float64] | None = None
    round_cosine: NDArray[np.float64] | None = None
    noise_square: NDArray[np.float64] | None = None
    leaf_square: NDArray[np.float64] | None = None
    leaf_gain: NDArray[np.float64] | None = None
    plan: Plan
    number_of_steps: int = number(low=1)
    clip_norm: float = number(1.0, low=_validate.SMALLEST, high=_validate.LARGEST)
    carried_shift: float | None = number(None, low=_validate.SMALLEST, high=1.0)
    facts: RunFacts = field(default_factory=RunFacts)

    def __post_init__(self) -> None:
        _clear(self, ("score", "information", "kept_values"), _validate.SMALLEST)
        _clear(self, ("noise_square", "leaf_square", "leaf_gain"), DUST)
        self._freeze()
        if not self.information.any():
            raise RecordingError("Expected a step that some canary's leaf is in, got none.")

    def __repr__(self) -> str:
        return self._described(release=self.plan.release)

    @property
    def finite(self) -> bool:
        """Whether every observation was a finite number, and its square one too."""
        pieces = self.pieces
        squares = (pieces.square, pieces.planted_square, self.noise_square, self.leaf_square)
        return _finite((self.score, pieces.total, self.kept_values), squares)

    @property
    def _scored(self) -> NDArray[np.bool_]:
        return self.member[self.information > 0.0]

    @property
    def leaf_freedom(self) -> int:
        """Degrees of freedom of each `leaf_square`: kept canaries, less the other rows."""
        return self.kept.size - self.pieces.tree.size + 1

    def scores(self) -> CanaryScores:
        """The matched-filter scores, and how far presence moves each.

        Relative shifts are against the record that the mechanism protects least, so that a bound
        read from them speaks of that one.
        """
        entered = self.information > 0.0
        relative = np.minimum(self.information[entered] / self.largest_information, 1.0)
        return CanaryScores(
            score=self.score[entered],
            member=self.member[entered],
            ids=None if entered.all() else np.flatnonzero(entered),
            relative_shift=None if np.all(relative > 1.0 - 1e-12) else relative,
            metadata=ScoreMetadata(
                steps=self.number_of_steps,
                # A present canary is in its leaves for sure: nothing is sampled.
                sampling_rate=1.0,
                clip_norm=1.0,  # the unit that scores are in
                noise_multiplier=self.facts.noise_multiplier,
                background=self.facts.background,
                fair_coins=self.facts.fair_coins,
                carried_shift=self.carried_shift,
                run=self.facts.run,
            ),
        )

    def cosines(self, kind: Literal["cumulative", "round"] = "cumulative") -> CanaryScores:
        """Largest cosines with what was released, the score of arXiv 2302.03098.

        Args:
            kind: With the prefixes, or with the change of each round.

        Raises:
            NotDefinedError: The run did not record cosines.
        """
        _validate.one_of(("cumulative", "round"), kind=kind)
        cosine = self.cosine if kind == "cumulative" else self.round_cosine
        if cosine is None:
            raise NotDefinedError("This run recorded no cosines; scores() needs none.")
        entered = self.information > 0.0
        return CanaryScores(
            score=cosine[entered],
            member=self.member[entered],
            ids=None if entered.all() else np.flatnonzero(entered),
            # Neither Gaussian nor free of the others' gradients: what is left out stays unknown.
            metadata=ScoreMetadata(
                clip_norm=self.clip_norm,
                noise_multiplier=self.facts.noise_multiplier,
                background="unknown",
                fair_coins=self.facts.fair_coins,
                run=self.facts.run,
            ),
        )

    def measured_noise(self, where: NDArray[np.bool_] | None = None) -> tuple[float, int]:
        """The noise multiplier that the absent canaries show, in all pieces or in some.

        Args:
            where: Which pieces, for example ``pieces.level == 2``; all if not given.

        Returns:
            The root mean square, and the number of observations in it. Over independent pieces of a
            correct run with known background, the number times its squared ratio to the claim is
            chi-square with that many degrees of freedom.
        """
        squares = self.pieces.square if where is None else self.pieces.square[where]
        count = squares.size * int(np.count_nonzero(~self.member))
        if not count:
            raise _validate.fail("where", where, "to choose a piece some absent canary is in")
        return math.sqrt(float(squares.sum()) / count), count

    def restart_correlation(self) -> tuple[float, int]:
        """Correlation of a node's noise with that of the same node one tree earlier.

        Returns:
            The correlation over the kept canaries, and the number of pairs in it: 0 on average in a
            correct run, with a variance of one over that number; 1 where restarted trees draw the
            same noise again.

        Raises:
            NotDefinedError: The run has a single tree.
        """
        rows = zip(self.pieces.tree, self.pieces.level, self.pieces.index, strict=True)
        place = {
            (int(t), int(level), int(index)): row for row, (t, level, index) in enumerate(rows)
        }
        pairs = [
            (row, place[tree - 1, level, index])
            for (tree, level, index), row in place.items()
            if (tree - 1, level, index) in place
        ]
        if not pairs:
            raise NotDefinedError("A single tree has nothing to compare its noise with.")
        after, before = (self.kept_values[list(side)].ravel() for side in zip(*pairs, strict=True))
        norm = math.sqrt(float(after @ after)) * math.sqrt(float(before @ before))
        return (float(after @ before) / norm if norm else 0.0), after.size

    @classmethod
    def _checked(cls, arrays: Arrays, plain: Mapping[str, Any]) -> Arrays:
        plan, steps = plain["plan"], plain["number_of_steps"]
        if steps > plan.steps:
            raise FileFormatError(
                f"Expected number_of_steps up to {plan.steps:,}, the steps of the plan, got "
                f"{steps:,}."
            )
        check_linear_arrays(arrays, plan)
        return arrays


def check_linear_arrays(arrays: Arrays, plan: Plan) -> None:
    """Refuse arrays of a file or a checkpoint that are not those of a linear transcript."""
    sizes = schema.check(arrays, _LINEAR_FIELDS, {"planned": plan.steps})
    if ("leaf_square" in arrays) != ("leaf_gain" in arrays):
        raise FileFormatError("Expected leaf_square and leaf_gain, or neither of them.")
    if "leaf_square" in arrays and sizes["kept"] < sizes["pieces"]:
        raise FileFormatError("Expected leaf_square of more kept canaries than rows.")


def _clear(part: LinearTranscript | PieceSums, names: tuple[str, ...], least: float) -> None:
    """Take dust for zero."""
    for name in names:
        values = getattr(part, name)
        if values is not None:
            object.__setattr__(part, name, without_dust(values, least))


def without_dust(values: NDArray[Any], least: float) -> NDArray[Any]:
    """The same numbers, those smaller in size than ``least`` being zero; itself where none is."""
    if values.dtype != np.float64:
        return values
    flat = values.reshape(-1)
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    if not any(_is_dust(block, least).any() for block in blocks):
        return values
    return np.where(_is_dust(values, least), 0.0, values)


def _is_dust(values: NDArray[Any], least: float) -> NDArray[np.bool_]:
    size = np.abs(values)
    return np.asarray((size < least) & (size > 0.0))
