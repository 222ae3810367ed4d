"""What a training run released about each canary, reduced to sums as it went by.

They are in units of the clip norm of the step: a planted canary contributes 1, and the noise of a
step has the noise multiplier as its standard deviation, whatever the clip norm was.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _files, _plain
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.scores import CanaryScores, ScoreMetadata

__all__ = ["SILENCE", "CanarySums", "RunFacts", "StepSums", "Transcript"]

# Noise below this share of what is declared is none: what is left are rounding errors.
SILENCE = 1e-3

_KIND = "askgauss-transcript"
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known about the run a transcript came from.

    Attributes:
        sampling_rate: Probability that a present canary is planted in a step.
        sampling: Who decided: the recorder's own Poisson coin, or the user's sampler.
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
        exercised: Parts of the training pipeline the canaries went through.
        precision: Names of the number formats met.
        records: Records the training draws its batches from, where that was said.
        seed: Root of the canaries' random choices.
        contribution: Mean norm of a canary's own clipped gradient over the observed steps, in clip
            norms; None where canaries are planted with the whole clip norm.
        notes: Anything a reader of the report should know.
    """

    sampling_rate: float | None = None
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
    seed: int | None = None
    contribution: float | None = None
    notes: tuple[str, ...] = ()


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


# Arrays that came later: a transcript has all of them or, if it is older, none.
_LATER = frozenset(
    prefix + item.name
    for prefix, part in (("canaries.", CanarySums), ("steps.", StepSums))
    for item in fields(part)
    if item.default_factory is not MISSING
)
# Fields of a step that have one number, and not one a tensor.
_BY_STEP = frozenset({"clip_norm", "noise_multiplier"}) | {
    name.removeprefix("steps.") for name in _LATER
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
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
        """Whether every observation was a finite number."""
        # A square may overflow where the value itself does not; then its variance is lost too.
        parts = (self.canaries.total, self.canaries.square, self.watch_values)
        return all(bool(np.isfinite(part).all()) for part in parts)

    @property
    def auditable(self) -> bool:
        """Whether there are enough canaries of both kinds to compare their scores."""
        present = int(np.count_nonzero(self.member))
        return min(present, self.member.size - present) >= 2

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
            ),
        )

    def with_facts(self, facts: RunFacts) -> Transcript:
        """The same transcript with other facts."""
        return replace(self, facts=facts)

    def save(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write an npz file (no pickles), whole or not at all."""
        metadata = {"facts": _plain.to_plain(self.facts)}
        _files.write_arrays(target, _KIND, _SCHEMA, self.arrays(), metadata)

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
    def load(cls, source: _files.Source) -> Transcript:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = _files.read_arrays(source, _KIND, _SCHEMA)
        facts = _plain.from_plain(RunFacts, content.get("facts", {}), "facts")
        return cls.from_arrays(arrays, facts)

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], facts: RunFacts) -> Transcript:
        """Put a transcript together from the arrays of `arrays`."""

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
        transcript._check_shapes()
        return transcript

    def _check_shapes(self) -> None:
        """What a file says fits together; arrays of the recorder always do."""
        canaries, steps = self.member.size, self.number_of_steps
        tensors = self.steps.planted.shape[-1] if self.steps.planted.ndim else 0
        shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("member", "tensor"), (canaries,)),
            **{f"canaries.{item.name}": (canaries,) for item in fields(CanarySums)},
            **{
                f"steps.{item.name}": (steps,) if item.name in _BY_STEP else (steps, tensors)
                for item in fields(StepSums)
            },
            "kept": (self.kept.size,),
            **dict.fromkeys(("kept_values", "kept_planted"), (steps, self.kept.size)),
            "watch_values": (steps, self.watch_tensor.size),
            "watch_tensor": (self.watch_tensor.size,),
            "gram": (min(len(self.gram), self.kept.size),) * 2,
        }
        kinds = {"member": "b", "kept_planted": "b"} | dict.fromkeys(
            (
                *("tensor", "kept", "watch_tensor"),
                *("canaries.planted", "canaries.last_planted", "steps.planted", "steps.gaps"),
            ),
            "i",
        )
        arrays = self.arrays()
        missing = sorted(_LATER - arrays.keys())
        if 0 < len(missing) < len(_LATER):
            raise FileFormatError(
                f"Expected {missing[0]} beside the other arrays of its time, got none."
            )
        for name, array in arrays.items():
            kind = kinds.get(name, "f")
            if array.shape != shapes[name] or array.dtype.kind != kind:
                raise FileFormatError(
                    f"Expected {name} to have shape {shapes[name]} and numbers of kind {kind!r}, "
                    f"got shape {array.shape} and dtype {array.dtype}."
                )
        for name, array, bound in (("tensor", self.tensor, tensors), ("kept", self.kept, canaries)):
            if array.size and not (array.min() >= 0 and array.max() < bound):
                raise FileFormatError(f"Expected {name} in [0, {bound}), got other numbers.")
