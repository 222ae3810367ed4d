"""Canary scores: the one type every score auditor reads."""

from __future__ import annotations

import abc
import csv
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, InvalidArgumentError, ScoresError
from askgauss.files import atomic, codec, schema
from askgauss.selection import fingerprint, stream
from askgauss.stats.sampled_sum import StepWeights

__all__ = ["AuditData", "CanaryScores", "GroupMoments", "ScoreMetadata", "check_audit_data"]

_KIND = "askgauss-scores"
_SCHEMA = 2
# Groups are summed in pieces of this many scores, so that ten million need no second copy.
_CHUNK = 1 << 20

Membership = Literal["randomised", "declared", "fixed"]
MEMBERSHIPS: tuple[Membership, ...] = ("randomised", "declared", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMetadata:
    """What is known about where the scores came from; every field may be missing.

    Attributes:
        steps: Number of steps summed into a score.
        sampling_rate: Poisson sampling rate of a present canary.
        clip_norm: Norm of a canary's contribution.
        noise_multiplier: The noise multiplier the run claims.
        background: Whether the clean sum of the other records was subtracted.
        fair_coins: Whether every canary was made present by a fair coin of its own.
        carried_shift: How much of the shift that the whole mechanism shows of the record it
            protects least a score can show, in (0, 1]. Power depends on it, no bound does.
        weighted: How much each sampled step counts in a score, where steps count differently;
            ``steps`` is then the number of equal ones that stands in for them, if any does.
        noise: "gaussian" where the mechanism is known to add Gaussian noise. Steps or a noise
            multiplier say so too; where nothing does, a default audit's verdict rests on a test
            that needs no law of the noise.
        unit: What one canary stands for, where stated: an example, or a user with all its examples.
        run: The identity of the run, drawn when it was begun; no part of what is compared.
        membership: How it was decided which canaries were present. "randomised": by chance, before
            training, on record. "declared": by chance, by your word. "fixed": by anything else, as
            where members and non-members are natural groups. None where nobody says; fair coins
            are "randomised". Scores whose noise is not declared show a leak only if membership was
            randomised.
    """

    steps: int | None = None
    sampling_rate: float | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    background: Literal["known", "unknown"] | None = None
    fair_coins: bool | None = None
    carried_shift: float | None = None
    weighted: StepWeights | None = None
    noise: Literal["gaussian"] | None = None
    unit: Literal["example", "user"] | None = None
    run: str | None = field(default=None, compare=False)
    membership: Membership | None = None

    @property
    def gaussian(self) -> bool:
        """Whether the noise of the scores is declared to be Gaussian."""
        return not (self.noise is None and self.steps is None and self.noise_multiplier is None)

    def __post_init__(self) -> None:
        if self.noise is not None:
            _validate.one_of(("gaussian",), noise=self.noise)
        if self.membership is not None:
            _validate.one_of(MEMBERSHIPS, membership=self.membership)
            if self.membership == "fixed" and self.fair_coins:
                raise InvalidArgumentError(
                    'Expected membership "randomised" where fair coins decided it, got "fixed". '
                    "Leave one of the two out."
                )
        elif self.fair_coins:
            object.__setattr__(self, "membership", "randomised")
        if self.unit is not None:
            _validate.one_of(("example", "user"), unit=self.unit)
        if self.steps is not None:
            _validate.count(steps=self.steps)
        if self.sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
        if self.clip_norm is not None:
            _validate.magnitude(clip_norm=self.clip_norm)
        if self.noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=self.noise_multiplier, zero=True)
        if self.background is not None:
            _validate.one_of(("known", "unknown"), background=self.background)
        if self.carried_shift is not None:
            _validate.within(_validate.SMALLEST, 1, closed="both", carried_shift=self.carried_shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMoments:
    """Size, mean and sum of squared deviations of one group of scores."""

    count: int
    mean: float
    sum_of_squares: float

    @property
    def variance(self) -> float:
        """The unbiased variance."""
        return self.sum_of_squares / (self.count - 1)

    @property
    def standard_deviation(self) -> float:
        """The square root of the unbiased variance."""
        return math.sqrt(self.variance)


class AuditData(abc.ABC):
    """What an audit reads: scores, or the transcript of a run. The defaults are a transcript's."""

    __slots__ = ()

    member: NDArray[np.bool_]

    @abc.abstractmethod
    def scores(self) -> CanaryScores:
        """One score a canary."""

    @property
    @abc.abstractmethod
    def scorable(self) -> bool:
        """Whether there are finite scores of at least two canaries of each group."""

    @property
    @abc.abstractmethod
    def run_id(self) -> str | None:
        """The identity of the run, where the data say."""

    @property
    def has_steps(self) -> bool:
        """Whether every step can be read by itself, not only the sum over the run."""
        return False

    @property
    def gaussian(self) -> bool:
        """Whether the noise is declared to be Gaussian."""
        return True

    @property
    def membership(self) -> Membership | None:
        """How it was decided which canaries were inserted, where that matters."""
        return None

    @property
    def committed(self) -> str | None:
        """The digest that was published before the run, where there was one."""
        return None

    @property
    def watched_end(self) -> tuple[int, int | None] | None:
        """Steps that a monitored run took, and was to take; None where nobody watched it."""
        return None


def check_audit_data(data: object) -> None:
    """Refuse whatever is not what an audit reads, and say how to make it."""
    if not isinstance(data, AuditData):
        raise InvalidArgumentError(
            "Expected data to be CanaryScores, a Transcript or a LinearTranscript, got "
            f"{type(data).__name__}. Make scores with CanaryScores.from_groups(present=..., "
            "absent=...), or read a file with load_audit_input()."
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CanaryScores(AuditData):
    """One score a canary, and whether that canary was present in the training run.

    A higher score must mean "more likely present". Arrays are kept read-only.

    Args:
        score: One finite number a canary.
        member: True where the canary was present.
        ids: Names of the canaries, unique; 0, 1, 2, ... if not given.
        relative_shift: How far presence moves each score, relative to the most it could move that
            of any record, in (0, 1]; 1 for all if not given. Canaries of a mechanism with
            correlated noise differ in it.
        metadata: What is known about the run.
        membership: How it was decided who was present ("randomised", "declared" or "fixed"; see
            `ScoreMetadata`); that of the metadata if not given.

    Raises:
        ScoresError: Fewer than two canaries in a group, nan or infinite scores, lengths that
            differ, or duplicate ids.

    Examples:
        >>> scores = CanaryScores.from_groups(present=[3.0, 2.5, 4.0], absent=[0.1, -0.3])
        >>> scores
        CanaryScores(present=3, absent=2)
    """

    score: NDArray[np.float64]
    member: NDArray[np.bool_]
    ids: NDArray[Any] | None = None
    relative_shift: NDArray[np.float64] | None = None
    metadata: ScoreMetadata = ScoreMetadata()
    membership: Membership | None = None
    _moments: tuple[GroupMoments, GroupMoments] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.membership is not None:
            stated = replace(self.metadata, membership=self.membership)
            object.__setattr__(self, "metadata", stated)
        object.__setattr__(self, "membership", self.metadata.membership)
        score = _validate.finite_vector("score", self.score)
        member = np.asarray(self.member)
        if member.dtype != np.bool_:
            if member.dtype.kind not in "iu" or not np.isin(member, (0, 1)).all():
                raise ScoresError(
                    f"Expected member to be booleans, got dtype {member.dtype}. "
                    "True marks a canary that was present."
                )
            member = member.astype(np.bool_)
        if member.shape != score.shape:
            raise ScoresError(
                f"Expected one member flag a score, got {score.shape[0]} scores and member of "
                f"shape {member.shape}. Join them by canary id first."
            )
        present = int(np.count_nonzero(member))
        for group, count in (("present", present), ("absent", score.size - present)):
            if count < 2:
                raise ScoresError(
                    f"Expected at least 2 {group} canaries, got {count}. "
                    "An audit compares two groups and needs the spread of each."
                )
        object.__setattr__(self, "score", _read_only(score, self.score))
        object.__setattr__(self, "member", _read_only(member, self.member))
        if self.ids is not None:
            object.__setattr__(self, "ids", _unique_ids(self.ids, score.size))
        if self.relative_shift is not None:
            shift = _validate.finite_vector("relative_shift", self.relative_shift)
            if shift.shape != score.shape or shift.min() <= 0.0 or shift.max() > 1.0:
                raise ScoresError(
                    f"Expected one relative_shift in (0, 1] a score, got {shift.size} from "
                    f"{shift.min():g} to {shift.max():g}."
                )
            object.__setattr__(self, "relative_shift", _read_only(shift, self.relative_shift))

    @classmethod
    def from_groups(
        cls,
        *,
        present: ArrayLike,
        absent: ArrayLike,
        steps: int | None = None,
        sampling_rate: float | None = None,
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        background: Literal["known", "unknown"] | None = None,
        fair_coins: bool | None = None,
        noise: Literal["gaussian"] | None = None,
        membership: Membership | None = None,
        unit: Literal["example", "user"] | None = None,
    ) -> CanaryScores:
        """Scores given as two arrays, one a group.

        Args:
            present: Scores of canaries that took part in training.
            absent: Scores of canaries that did not.
            steps: Number of steps summed into a score.
            sampling_rate: Poisson sampling rate of a present canary.
            clip_norm: Norm of a canary's contribution.
            noise_multiplier: The noise multiplier the run claims.
            background: Whether the other records' clean sum was subtracted.
            fair_coins: Whether every canary was made present by a fair coin of its own.
            noise: "gaussian" where the mechanism is known to add Gaussian noise.
            membership: How it was decided who was present; see `ScoreMetadata`.
            unit: What one canary stands for: an example, or a user with all its examples.
        """
        groups = (
            _validate.finite_vector("present", present),
            _validate.finite_vector("absent", absent),
        )
        score = np.concatenate(groups)
        member = np.zeros(score.size, dtype=np.bool_)
        member[: groups[0].size] = True
        score.setflags(write=False)
        member.setflags(write=False)
        return cls(
            score=score,
            member=member,
            metadata=ScoreMetadata(
                steps=steps,
                sampling_rate=sampling_rate,
                clip_norm=clip_norm,
                noise_multiplier=noise_multiplier,
                background=background,
                fair_coins=fair_coins,
                noise=noise,
                membership=membership,
                unit=unit,
            ),
        )

    def with_membership(self, membership: Membership) -> CanaryScores:
        """The same scores, with how it was decided who was present.

        Raises:
            ScoresError: The scores say otherwise.
        """
        known = self.metadata.membership
        if known not in (None, membership):
            raise ScoresError(
                f'Expected membership "{known}", as the scores say, got "{membership}". Leave it '
                "out, or correct what wrote the scores."
            )
        return replace(self, membership=membership)

    def with_fair_coins(self, probability: ArrayLike) -> CanaryScores:
        """The canaries left when each counts as if a fair coin had made it present.

        Where a canary is present with another probability than a half, one of its two outcomes says
        more about the coin than about the mechanism; and where that probability goes with what the
        record is like, the two groups differ though nothing leaks. Importance weights undo both:
        here a canary that is present with probability p is kept with probability
        ``min(1, (1 - p) / p)`` if it is, and ``min(1, p / (1 - p))`` if it is not. Given who was
        kept, coins are fair and independent, and both groups are records alike, so that every
        auditor is as valid as with fair coins. Chance is drawn from ranks and members: the
        same input keeps the same canaries.

        Args:
            probability: Probability with which each canary was made present, by a coin of its own:
                one number, or one a canary, in (0, 1). It must be known, not estimated from who is
                present.

        Returns:
            About ``2 min(p, 1 - p)`` of the canaries.

        Raises:
            InvalidArgumentError: A probability is outside its range, or there are not as many.
            ScoresError: Fewer than two canaries are left in a group.

        Examples:
            >>> scores = CanaryScores.from_groups(present=np.arange(100.0), absent=np.arange(900.0))
            >>> scores.with_fair_coins(0.1)
            CanaryScores(present=100, absent=107)
        """
        chance = np.asarray(probability, dtype=np.float64)
        if chance.shape not in ((), self.score.shape):
            raise _validate.fail(
                "probability", chance.shape, f"to be one number, or {len(self):,}, one a canary"
            )
        if not ((chance > 0.0) & (chance < 1.0)).all():
            hint = "Leave out canaries that were sure to be present or absent: they show nothing."
            raise _validate.fail("probability", probability, "in (0, 1)", hint)
        odds = chance / (1.0 - chance)
        entropy = fingerprint(self.score, self.member, self.metadata.run)
        drawn = stream(None, "known coins", entropy).random(len(self))
        kept = drawn < np.where(self.member, np.minimum(1.0, 1.0 / odds), np.minimum(1.0, odds))
        left = int(np.count_nonzero(self.member & kept))
        if min(left, int(np.count_nonzero(kept)) - left) < 2:
            raise ScoresError(
                f"Expected at least 2 canaries of each group to be left, got {left} present and "
                f"{int(np.count_nonzero(kept)) - left} absent of {len(self):,}. Probabilities near "
                "0 or 1 keep few: take more canaries, or fairer coins."
            )
        shift = self.relative_shift
        return CanaryScores(
            score=self.score[kept],
            member=self.member[kept],
            ids=np.flatnonzero(kept) if self.ids is None else self.ids[kept],
            relative_shift=None if shift is None else shift[kept],
            metadata=replace(self.metadata, fair_coins=True),
        )

    def scores(self) -> CanaryScores:
        """These scores."""
        return self

    @property
    def scorable(self) -> bool:
        """True: other scores cannot be made."""
        return True

    @property
    def run_id(self) -> str | None:
        """The identity of the run, where the scores say."""
        return self.metadata.run

    @property
    def gaussian(self) -> bool:
        """Whether the noise is declared to be Gaussian."""
        return self.metadata.gaussian

    @property
    def present(self) -> NDArray[np.float64]:
        """Scores of the present canaries."""
        return self.score[self.member]

    @property
    def absent(self) -> NDArray[np.float64]:
        """Scores of the absent canaries."""
        return self.score[~self.member]

    def __len__(self) -> int:
        return int(self.score.size)

    def __repr__(self) -> str:
        present = int(np.count_nonzero(self.member))
        return f"CanaryScores(present={present}, absent={len(self) - present})"

    def moments(self) -> tuple[GroupMoments, GroupMoments]:
        """Moments of the present and of the absent scores, computed once, without a copy."""
        if self._moments is None:
            object.__setattr__(self, "_moments", self._compute_moments())
        assert self._moments is not None
        return self._moments

    def check_unit(self) -> None:
        """Refuse a unit in which squares of scores overflow, or vanish and look like no noise.

        Raises:
            ScoresError: The scores should be rescaled.
        """
        largest = max(abs(float(self.score.min())), abs(float(self.score.max())))
        low, high = _validate.SMALLEST, _validate.LARGEST
        if largest > high or 0.0 < largest < low:
            raise ScoresError(
                f"Expected the largest score between {low:g} and {high:g} in size, got "
                f"{largest:g}. Rescale the scores: an audit does not depend on their unit."
            )

    def _compute_moments(self) -> tuple[GroupMoments, GroupMoments]:
        totals = np.zeros(2)
        counts = np.zeros(2, dtype=np.int64)
        for group, values in self._pieces():
            counts[group] += values.size
            totals[group] += values.sum()
        means = totals / counts
        squares, corrections = np.zeros(2), np.zeros(2)
        for group, values in self._pieces():
            deviations = values - means[group]
            squares[group] += np.dot(deviations, deviations)
            corrections[group] += deviations.sum()
        # The second term removes what rounding of the mean left behind.
        squares = np.maximum(squares - corrections**2 / counts, 0.0)
        means = means + corrections / counts
        present, absent = (
            GroupMoments(
                count=int(counts[group]),
                mean=float(means[group]),
                sum_of_squares=float(squares[group]),
            )
            for group in (1, 0)
        )
        return present, absent

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        for start in range(0, self.score.size, _CHUNK):
            score = self.score[start : start + _CHUNK]
            member = self.member[start : start + _CHUNK]
            yield 1, score[member]
            yield 0, score[~member]

    def save(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write an npz file (no pickles), whole or not at all, that only its owner may read.

        With known background, scores tell about the training data what the noise was to hide.
        """
        arrays: dict[str, NDArray[Any]] = {"score": self.score, "member": self.member}
        if self.ids is not None:
            arrays["ids"] = self.ids
        if self.relative_shift is not None:
            arrays["relative_shift"] = self.relative_shift
        metadata = {"metadata": codec.to_plain(self.metadata)}
        atomic.write_arrays(target, _KIND, _SCHEMA, arrays, metadata)

    @classmethod
    def load(cls, source: atomic.Source) -> CanaryScores:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = atomic.read_arrays(source, _KIND, _SCHEMA)
        schema.check_names(arrays, ("score", "member"), ("ids", "relative_shift"))
        shape = (arrays["score"].size,)
        numbers = {name: array for name, array in arrays.items() if name != "ids"}
        schema.check_arrays(
            numbers,
            {
                "score": schema.Field(np.float64, shape),
                "member": schema.Field(np.bool_, shape),
                "relative_shift": schema.Field(np.float64, shape),
            },
        )
        for array in arrays.values():
            array.setflags(write=False)
        try:
            return cls(
                score=arrays["score"],
                member=arrays["member"],
                ids=arrays.get("ids"),
                relative_shift=arrays.get("relative_shift"),
                metadata=codec.from_plain(ScoreMetadata, content.get("metadata", {}), "metadata"),
            )
        except ScoresError as error:
            raise FileFormatError(f"Expected scores that can be audited: {error}") from error

    @classmethod
    def from_auditbench(
        cls,
        folder: str | os.PathLike[str],
        *,
        epoch: int | None = None,
        steps: int | None = None,
        sampling_rate: float | None = None,
    ) -> CanaryScores:
        """Scores from a run folder of the paper's public code.

        Reads ``in_scores_ndis_*.csv``, ``out_scores_ndis_*.csv`` and ``hparams.json``. Those
        folders record neither the sampling rate nor the steps actually taken; give both to have
        the exact law of the score used.

        Args:
            folder: The run folder.
            epoch: Which checkpoint; the last one both groups have, if not given.
            steps: Steps actually taken.
            sampling_rate: Sampling rate actually used (there, one over the loader's length).
        """
        root = Path(folder)
        if not root.is_dir():
            raise FileFormatError(f"Expected folder to be a directory, got {str(root)!r}.")
        found = {
            side: {
                int(match[1]): path
                for path in root.iterdir()
                if (match := re.fullmatch(rf"{side}_scores_ndis_(\d+)\.csv", path.name))
            }
            for side in ("in", "out")
        }
        epochs = sorted(found["in"].keys() & found["out"].keys())
        if not epochs:
            raise FileFormatError(
                f"Expected in_scores_ndis_*.csv and out_scores_ndis_*.csv in {str(root)!r}, "
                "found no epoch that has both."
            )
        chosen = epochs[-1] if epoch is None else epoch
        if chosen not in epochs:
            raise InvalidArgumentError(f"Expected epoch to be one of {epochs}, got {epoch!r}.")
        hyperparameters = _read_hyperparameters(root / "hparams.json")
        return cls.from_groups(
            present=_read_column(found["in"][chosen]),
            absent=_read_column(found["out"][chosen]),
            steps=steps,
            sampling_rate=sampling_rate,
            clip_norm=hyperparameters.get("max_grad_norm"),
            noise_multiplier=hyperparameters.get("noise_multiplier"),
            background="unknown",
            noise="gaussian",  # sums of noisy gradients
        )


def _read_only(array: NDArray[Any], given: Any) -> NDArray[Any]:
    """A read-only array nobody else can write to; copied unless the caller gave such a one."""
    private = array is given and not array.flags.writeable and bool(array.flags.owndata)
    copy: NDArray[Any] = array if private else np.array(array)
    copy.setflags(write=False)
    return copy


def _unique_ids(ids: Any, count: int) -> NDArray[Any]:
    array = np.asarray(ids)
    if array.dtype.kind not in "iuUS":
        raise ScoresError(f"Expected ids to be whole numbers or strings, got dtype {array.dtype}.")
    if array.shape != (count,):
        raise ScoresError(f"Expected one id a score, got {count} scores and {array.shape} ids.")
    unique, counts = np.unique(array, return_counts=True)
    if unique.size != count:
        twice = unique[np.argmax(counts > 1)].item()
        raise ScoresError(
            f"Expected ids to be unique, got {twice!r} more than once. "
            "A canary counted twice makes the bound too high; drop the copies."
        )
    return _read_only(array, ids)


def _read_column(path: Path) -> NDArray[np.float64]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return np.array([float(cell) for row in csv.reader(stream) for cell in row])
    except (ValueError, csv.Error) as error:
        raise FileFormatError(f"Expected one number a line in {str(path)!r}: {error}.") from error


def _read_hyperparameters(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = codec.parse(atomic.read_bytes(path, regular=True))
    except FileFormatError as error:
        raise FileFormatError(f"Expected {str(path)!r} to be JSON: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"Expected {str(path)!r} to hold an object.")
    return content
