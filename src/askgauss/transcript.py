"""What a training run released about each canary, reduced to sums as it went by.

They are in units of the clip norm of the step: a planted canary contributes 1, and the noise of a
step has the noise multiplier as its standard deviation, whatever the clip norm was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _files, _plain, _validate
from askgauss._schema import Field, check_arrays, check_names
from askgauss._sums import (
    check_agreement,
    check_magnitude,
    check_part,
    check_squares,
    check_within,
)
from askgauss.commitment import Commitment
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.sampling import DrawnBatches, Poisson, Scheme
from askgauss.sampling.counting import broken_counts, broken_rule
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.witness import ClipCountFacts, RoundFacts, StepFacts, WeightFacts

__all__ = ["SILENCE", "CanarySums", "RunFacts", "SeedProbe", "StepSums", "Transcript"]

# Noise below this share of what is declared is none: what is left are rounding errors.
SILENCE = 1e-3

_KIND = "askgauss-transcript"
_SCHEMA = 2
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14
# More than any run has; what is computed of so many takes seconds.
_MOST = {
    "skipped_steps": 10**7,
    "unnoised_steps": 10**9,
    "accounted_steps": 10**9,
    "places": 1 << 62,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProbe:
    """What came of trying likely seeds on the first released noise.

    Attributes:
        tried: Number of seeds; 0 where there was too little noise to compare.
        ways: Ways to draw noise from a seed that were tried.
        found: The seed and the way that give this noise; empty if none does.
    """

    tried: int
    ways: tuple[str, ...] = ()
    found: str = field(default="", repr=False)


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
        exercised: Parts of the training pipeline the canaries went through.
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
        clip_count: What was seen of the count by which the clip norm was adapted; None where it
            was not.
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
        if not 1 <= self.turns < 1 << 62:
            raise FileFormatError(f"Expected facts.turns >= 1, got {self.turns}.")
        for part in (self.weights, self.witness, self.rounds, self.clip_count):
            if part is not None:
                part.check()
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
            if scheme is not None or not isinstance(drawn.scheme, Poisson):
                raise _contradiction(f"facts.{name}.scheme", drawn.scheme, scheme or "a rate alone")
        if scheme is None:
            return
        if rate is not None and not math.isclose(rate, scheme.share, rel_tol=1e-6):
            raise _contradiction("facts.sampling_rate", rate, f"{scheme}: {scheme.share:g}")
        if self.sampling == "own coin" and self.poisson != isinstance(scheme, Poisson):
            raise _contradiction("facts.poisson", self.poisson, scheme)


def _contradiction(name: str, stated: object, declared: object) -> FileFormatError:
    return FileFormatError(
        f"Expected {name} to be that of the sampling it declares ({declared}), got {stated}: it "
        "was damaged or edited. Load the file that the run wrote."
    )


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
# Arrays that came later: a transcript has all of them or, if it is older, none.
_LATER = frozenset(
    prefix + item.name
    for prefix, part in (("canaries.", CanarySums), ("steps.", StepSums))
    for item in fields(part)
    if item.default_factory is not MISSING
)


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
        metadata = {"facts": _plain.to_plain(self.facts)}
        _files.write_arrays(target, _KIND, _SCHEMA, _without_derived(self.arrays()), metadata)

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
        whole = _with_derived(arrays)
        transcript = cls.from_arrays(whole, facts, derived=whole.keys() - arrays.keys())
        tested = isinstance(facts.scheme, (Poisson, type(None))) or facts.plantings is not None
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
    if not kept["canaries.last_planted"].any():
        del kept["canaries.last_planted"]
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
        never = np.zeros(whole["canaries.planted"].shape, dtype=np.int64)
        whole.setdefault("canaries.last_planted", never)
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
