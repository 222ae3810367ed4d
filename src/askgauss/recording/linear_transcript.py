"""What a run with correlated noise released about each canary: DP-FTRL and its trees.

A canary enters one step (or a few), and from then on every release carries it. The best score is a
matched filter over all of them: exactly Gaussian, with the noise of one node, moved by presence as
far as the canary's *information* says. Everything is in units of the clip norm.
"""

from __future__ import annotations

import math
import os
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, NotDefinedError, RecordingError
from askgauss.files import atomic, codec
from askgauss.files.schema import Field, check_arrays, check_names
from askgauss.files.sums import (
    DUST,
    ROUNDING,
    check_agreement,
    check_magnitude,
    check_part,
    check_squares,
    without_dust,
)
from askgauss.mechanisms.plans import Plan, read_plan
from askgauss.recording.facts import ReuseFacts, RoundFacts
from askgauss.scores import AuditData, CanaryScores, ScoreMetadata

__all__ = ["LinearFacts", "LinearTranscript", "PieceSums"]

_KIND = "askgauss-linear-transcript"
_SCHEMA = 2


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
            says nothing of single leaves, and in early files.
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
            where pieces are not independent, and in early files.
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
        atomic.write_arrays(target, _KIND, _SCHEMA, self._arrays(), metadata)

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
        arrays, content = atomic.read_arrays(source, _KIND, _SCHEMA)
        own = {item.name: item for item in fields(cls)}
        for name in ("pieces", "plan", "facts", "largest_information"):
            del own[name]
        named = own | {f"pieces.{item.name}": item for item in fields(PieceSums)}
        # What has a default came later, or is not always there.
        optional = {name for name, item in named.items() if item.default is not MISSING}
        check_names(arrays, named.keys() - optional, optional)
        try:
            transcript = cls(
                pieces=PieceSums(
                    **{
                        name.removeprefix("pieces."): array
                        for name, array in arrays.items()
                        if name.startswith("pieces.")
                    }
                ),
                largest_information=codec.from_plain(
                    float, content.get("largest_information"), "largest_information"
                ),
                plan=read_plan(content.get("plan")),
                facts=codec.from_plain(LinearFacts, content.get("facts"), "facts"),
                **{name: array for name, array in arrays.items() if name in own},
            )
        except (TypeError, RecordingError) as error:
            raise FileFormatError(f"Expected a whole transcript: {error}") from error
        transcript.check()
        return transcript

    def check(self) -> None:
        """Refuse what no run is like, in what comes from a file; what is recorded always fits.

        Raises:
            FileFormatError: Arrays have other shapes, or numbers that contradict each other.
        """
        self.facts.check(self.plan)
        canaries, pieces = (self.member.size,), (self.pieces.tree.size,)
        participations = self.leaves.shape[-1] if self.leaves.ndim else 0
        steps, present = self.plan.steps, int(np.count_nonzero(self.member))
        number, place = Field(np.float64, canaries), Field(np.int64, pieces, 0, steps, open=True)
        cosine = Field(np.float64, canaries, low=-1.001, high=1.001)

        def strength(shape: tuple[int, ...], most: float) -> Field:
            return Field(np.float64, shape, low=0.0, high=most, finite=True)

        check_arrays(
            self._arrays(),
            {
                "member": Field(np.bool_, canaries),
                "leaves": Field(np.int64, (*canaries, participations), 0, steps, open=True),
                "score": number,
                "information": strength(canaries, _validate.LARGEST),
                "pieces.tree": place,
                "pieces.level": Field(np.int64, pieces, low=-1, high=64),
                "pieces.index": place,
                "pieces.total": Field(np.float64, pieces),
                "pieces.square": Field(np.float64, pieces, low=0.0),
                "pieces.signal": strength(pieces, _validate.LARGEST),
                "pieces.gain": strength(pieces, _validate.LARGEST**2),
                "pieces.planted": Field(np.int64, pieces, low=0, high=present),
                "pieces.planted_square": Field(np.float64, pieces, low=0.0),
                "noise_square": Field(np.float64, canaries, low=0.0),
                "leaf_square": Field(np.float64, pieces, low=0.0),
                "leaf_gain": strength(pieces, _validate.LARGEST**2),
                "kept": Field(np.int64, (self.kept.size,), 0, self.member.size, open=True),
                "kept_values": Field(np.float64, (*pieces, self.kept.size)),
                "cosine": cosine,
                "round_cosine": cosine,
            },
        )
        if np.any(np.diff(self.kept) <= 0) or self.member[self.kept].any():
            raise FileFormatError("Expected kept to name absent canaries once each, in order.")
        if (self.leaf_square is None) != (self.leaf_gain is None):
            raise FileFormatError("Expected leaf_square and leaf_gain, or neither of them.")
        if self.leaf_square is not None and self.leaf_freedom < 1:
            raise FileFormatError("Expected leaf_square of more kept canaries than rows.")
        # No record's score moves further than that of the one protected least.
        largest = float(self.information.max())
        if not largest <= self.largest_information * (1 + 1e-9) < math.inf:
            raise FileFormatError(
                f"Expected information in [0, {self.largest_information:g}], the largest one, got "
                f"{self.information.min():g} to {largest:g}."
            )
        check_magnitude("largest_information", self.largest_information)
        if self.finite:
            self._check_sums()

    def _check_sums(self) -> None:
        """Refuse sums of a finite run that its other sums contradict."""
        pieces, absent = self.pieces, ~self.member
        check_squares("pieces.square", pieces.total, pieces.square, int(np.count_nonzero(absent)))
        kept = np.square(self.kept_values)
        check_part("kept_values", kept.sum(axis=1), "pieces.square", pieces.square)
        if self.leaf_square is not None:
            # No record meets more noise than all rows have together.
            check_part("leaf_square", self.leaf_square, "kept_values", kept.sum())
        if pieces.signal is not None and pieces.gain is not None:
            check_part("pieces.signal", np.square(pieces.signal), "pieces.gain", pieces.gain)
        planted, planted_square = pieces.planted, pieces.planted_square
        if planted is not None and planted_square is not None:
            nothing = np.where(planted, np.inf, 0.0)
            check_part("pieces.planted_square", planted_square, "pieces.planted", nothing)
        if (noise := self.noise_square) is None:
            return
        check_part("kept_values", kept.sum(axis=0), "noise_square", noise[self.kept])
        square = float(noise[absent].sum())
        check_agreement("squares of absent canaries", float(pieces.square.sum()), square, square)
        if planted_square is not None:
            whole = noise[self.member].sum()
            check_part("pieces.planted_square", planted_square.sum(), "noise_square", whole)
        # A score is what presence adds and a weighted mean of its noise, the weights of norm one.
        off = np.square(self.score - self.information * self.member)
        slack = np.square(ROUNDING * self.information)
        check_part("score", off, "noise_square", np.where(self.information, noise + slack, 0.0))


def _clear(part: LinearTranscript | PieceSums, names: tuple[str, ...], least: float) -> None:
    """Take dust for zero."""
    for name in names:
        values = getattr(part, name)
        if values is not None:
            object.__setattr__(part, name, without_dust(values, least))
