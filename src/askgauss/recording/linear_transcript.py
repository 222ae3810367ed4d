"""What a run with correlated noise released about each canary: DP-FTRL and its trees.

A canary enters one step (or a few), and from then on every release carries it. The best score is a
matched filter over all of them: exactly Gaussian, with the noise of one node, moved by presence as
far as the canary's *information* says. Everything is in units of the clip norm.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields, replace
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, NotDefinedError, RecordingError
from askgauss.files import archive, atomic, codec, schema
from askgauss.files.schema import Field, check_magnitude
from askgauss.mechanisms.plans import Plan, read_plan
from askgauss.recording.facts import ReuseFacts, RoundFacts
from askgauss.scores import AuditData, CanaryScores, ScoreMetadata

__all__ = ["DUST", "LinearFacts", "LinearTranscript", "PieceSums", "without_dust"]

# Sums of squares below this are of numbers whose squares lose their digits, or are none.
DUST = _validate.SMALLEST**2

_KIND = "askgauss-linear-transcript"
_SCHEMA = 2
# Numbers that are looked at together: beyond, memory for what is in between is asked for anew.
_BLOCK = 1 << 14


def _each(low: float | None = None, high: float | None = None, *, finite: bool = False) -> Field:
    """One number a canary that may be left out."""
    return Field(np.float64, ("canaries",), low=low, high=high, finite=finite, optional=True)


def _by_piece(high: float | None = None, *, finite: bool = False) -> Field:
    """One number a piece, not negative, that may be left out."""
    return Field(np.float64, ("pieces",), low=0.0, high=high, finite=finite, optional=True)


_PLACE = Field(np.int64, ("pieces",), low=0, high="planned", open=True)
_FIELDS = {
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
    "noise_square": _each(0.0),
    "leaf_square": _by_piece(),
    "leaf_gain": _by_piece(_validate.LARGEST**2, finite=True),
    "kept": Field(np.int64, ("kept",), low=0, high="canaries", open=True),
    "kept_values": Field(np.float64, ("pieces", "kept")),
    "cosine": _each(-1.001, 1.001),
    "round_cosine": _each(-1.001, 1.001),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFacts:
    """What is known about the run.

    Attributes:
        steps: Steps taken.
        clip_norm: Norm of a canary's contribution.
        noise_multiplier: The noise of one node the run claims, in clip norms.
        background: Whether the other records' clean sum was subtracted.
        fair_coins: Whether every canary was made present by a fair coin of its own.
        tensors: Names of the tensors.
        exercised: Parts of the training pipeline the canaries went through.
        precision: Names of the number formats met.
        seed: Root of the canaries' random choices.
        notes: Anything a reader of the report should know.
        carried_shift: How much of what all nodes show of the record protected least a score shows.
        run: The identity of the run, as in `askgauss.recording.facts.run_facts.RunFacts`.
        rounds: What was seen of the clients of federated rounds; None where there are none.
        reuse: Whether any noise was used again; None where nodes or rows cannot be told apart.
        resumed: Steps after which the run went on from a checkpoint, as in `RunFacts`.
    """

    steps: int
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    background: Literal["known", "unknown"] = "known"
    fair_coins: bool = False
    tensors: tuple[str, ...] = ()
    exercised: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    seed: int | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    carried_shift: float | None = None
    run: str | None = field(default=None, compare=False)
    rounds: RoundFacts | None = None
    reuse: ReuseFacts | None = None
    resumed: tuple[int, ...] = field(default=(), compare=False)

    def check(self, plan: Plan) -> None:
        """Refuse what no run is like, in facts that come from a file.

        Raises:
            FileFormatError: A number is out of its range.
        """
        if not (1 <= self.steps <= plan.steps <= _validate.MOST):
            raise FileFormatError(
                f"Expected facts.steps in [1, {plan.steps}], the steps of the plan, got "
                f"{self.steps}."
            )
        check_magnitude("facts.clip_norm", self.clip_norm)
        check_magnitude("facts.noise_multiplier", self.noise_multiplier, zero=True)
        if self.seed is not None and not self.seed >= 0:
            raise FileFormatError(f"Expected facts.seed >= 0, got {self.seed}.")
        if self.carried_shift is not None and not _validate.SMALLEST <= self.carried_shift <= 1.0:
            raise FileFormatError(
                f"Expected facts.carried_shift in [{_validate.SMALLEST:g}, 1], got "
                f"{self.carried_shift}."
            )
        if any(step < 0 for step in self.resumed):
            raise FileFormatError(f"Expected facts.resumed >= 0, got {min(self.resumed)}.")
        for part in (self.rounds, self.reuse):
            if part is not None:
                part.check()


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearTranscript(AuditData):
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
            hangs together; None where the kept canaries are too few to say, and for trees.
        leaf_gain: With it, the squared norm of each step's column of the strategy.
        plan: The mechanism.
        facts: What is known about the run.
    """

    member: NDArray[np.bool_]
    leaves: NDArray[np.int64]
    score: NDArray[np.float64]
    information: NDArray[np.float64]
    largest_information: float
    pieces: PieceSums
    kept: NDArray[np.int64]
    kept_values: NDArray[np.float64]
    cosine: NDArray[np.float64] | None = None
    round_cosine: NDArray[np.float64] | None = None
    noise_square: NDArray[np.float64] | None = None
    leaf_square: NDArray[np.float64] | None = None
    leaf_gain: NDArray[np.float64] | None = None
    plan: Plan
    facts: LinearFacts

    def __post_init__(self) -> None:
        _clear(self, ("score", "information", "kept_values"), _validate.SMALLEST)
        _clear(self, ("noise_square", "leaf_square", "leaf_gain"), DUST)
        for array in self._arrays().values():
            array.setflags(write=False)
        if not self.information.any():
            raise RecordingError("Expected a step that some canary's leaf is in, got none.")

    @property
    def number_of_steps(self) -> int:
        """Number of steps observed."""
        return self.facts.steps

    @property
    def finite(self) -> bool:
        """Whether every observation was a finite number, and its square one too."""
        pieces, largest = self.pieces, _validate.LARGEST
        parts = (self.score, pieces.total, self.kept_values)
        squares = (pieces.square, pieces.planted_square, self.noise_square, self.leaf_square)
        return all(_validate.is_within(part) for part in parts) and all(
            _validate.is_within(part, largest**2) for part in squares if part is not None
        )

    @property
    def auditable(self) -> bool:
        """Whether there are enough canaries of both kinds to compare their scores."""
        entered = self.member[self.information > 0.0]
        present = int(np.count_nonzero(entered))
        return min(present, entered.size - present) >= 2

    @property
    def scorable(self) -> bool:
        """Whether there are finite scores of at least two canaries of each group."""
        return self.finite and self.auditable

    @property
    def run_id(self) -> str | None:
        """The identity of the run."""
        return self.facts.run

    @property
    def leaf_freedom(self) -> int:
        """Degrees of freedom of each `leaf_square`: kept canaries, less the other rows."""
        return self.kept.size - self.pieces.tree.size + 1

    def __repr__(self) -> str:
        present = int(np.count_nonzero(self.member))
        return (
            f"LinearTranscript(steps={self.number_of_steps}, release={self.plan.release!r}, "
            f"present={present}, absent={self.member.size - present}, "
            f"background={self.facts.background!r})"
        )

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
                carried_shift=self.facts.carried_shift,
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
                clip_norm=self.facts.clip_norm,
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

    def with_facts(self, facts: LinearFacts) -> LinearTranscript:
        """The same transcript with other facts."""
        return replace(self, facts=facts)

    def save(self, target: str | os.PathLike[str] | IO[bytes]) -> None:
        """Write an npz file (no pickles), whole or not at all, that only its owner may read."""
        metadata = {
            "plan": codec.to_plain(self.plan),
            "facts": codec.to_plain(self.facts),
            "largest_information": codec.to_plain(self.largest_information),
        }
        archive.write_arrays(target, _KIND, _SCHEMA, self._arrays(), metadata)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        result: dict[str, NDArray[Any]] = {}
        for prefix, part in (("", self), ("pieces.", self.pieces)):
            for item in fields(part):
                value = getattr(part, item.name)
                if isinstance(value, np.ndarray):
                    result[prefix + item.name] = value
        return result

    @classmethod
    def load(cls, source: atomic.Source) -> LinearTranscript:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is corrupt, foreign, or of a newer schema.
        """
        arrays, content = archive.read_arrays(source, _KIND, _SCHEMA)
        plan = read_plan(content.get("plan"))
        facts: LinearFacts = codec.from_plain(LinearFacts, content.get("facts"), "facts")
        facts.check(plan)
        largest = codec.from_plain(float, content.get("largest_information"), "largest_information")
        check_magnitude("largest_information", largest)
        _check_arrays(arrays, plan)
        parts: dict[str, dict[str, Any]] = {"": {}, "pieces": {}}
        for name, array in arrays.items():
            part, _, field_name = name.rpartition(".")
            parts[part][field_name] = array
        try:
            return cls(
                pieces=PieceSums(**parts["pieces"]),
                largest_information=largest,
                plan=plan,
                facts=facts,
                **parts[""],
            )
        except RecordingError as error:
            raise FileFormatError(f"Expected a whole transcript: {error}") from error

    def check(self) -> None:
        """Refuse what no file of a transcript may hold; what a correct run records always may.

        Raises:
            FileFormatError: An array has another shape or type, or a number is out of its range.
        """
        _check_arrays(self._arrays(), self.plan)


def _check_arrays(arrays: dict[str, NDArray[Any]], plan: Plan) -> None:
    sizes = schema.check(arrays, _FIELDS, {"planned": plan.steps})
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
