"""What auditors that count correct guesses share: fair coins, the guessing rule, the questions.

The canaries with the highest scores are guessed present and, if the audit is two-sided, as many
with the lowest scores absent; the auditor abstains on the rest. Which canaries are guessed depends
on the scores alone, and how many on nothing the guesses are tested with (`askgauss.selection`).
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, logit, ndtr

from askgauss import _validate
from askgauss.auditors.auditor import Auditor
from askgauss.auditors.mechanism_shift import ScorePair, pair_of_mechanism
from askgauss.auditors.revealed_accuracy import told_accuracies
from askgauss.auditors.trials import TrialEvidence, score_facts
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Finding, Status
from askgauss.scores import CanaryScores
from askgauss.selection import (
    DKW,
    Combination,
    DataSplit,
    Fixed,
    Ranks,
    Selection,
    UnionBound,
    fingerprint,
    random_order,
    stream,
)
from askgauss.stats.guess_counts import GuessCounts

__all__ = [
    "Coins",
    "GuessEvidence",
    "GuessingAuditor",
    "accuracies",
    "accuracy_lower",
    "fair_coins",
    "tried",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

# A draw of fair coins exceeds its group less often than this.
_OVERDRAWN = 1e-9
_TRIED = 64
_ONE_SIGMA = 0.16
# A fixed grid starts here: fewer guesses hardly reject anything.
_FEWEST = 16
_NODES = (np.arange(64) + 0.5) / 64
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Coins:
    """What is known about how canaries were made present.

    Attributes:
        origin: Recorded as fair; or a fair subset drawn from groups of given sizes.
        given: Number of canaries in the scores.
        used: Number of canaries used.
    """

    origin: Literal["fair", "drawn"]
    given: int
    used: int

    def findings(self) -> tuple[Finding, ...]:
        """What a reader should know."""
        if self.origin == "fair":
            return ()
        return (
            Finding(
                check="fair coins",
                status=Status.INFO,
                summary=(
                    f"not recorded, so {self.used:,} of {self.given:,} canaries were drawn from "
                    "the groups as fair coins would have; exact unless a score depends on who else "
                    "was present."
                ),
                remedy=(
                    "Let a fair coin decide about every canary, and set fair_coins=True in the "
                    "metadata of the scores."
                ),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessEvidence(TrialEvidence[GuessCounts]):
    """Counts of correct guesses, and how the canaries' membership was randomised."""

    trials: tuple[GuessCounts, ...]
    coins: Coins


def fair_coins(scores: CanaryScores) -> tuple[Array, Flags, Coins]:
    """Scores and members of canaries that fair coins made present, each its own.

    Coins that nobody recorded are not fair coins: groups given as two arrays have sizes somebody
    chose, however likely fair coins are to give such sizes. So many canaries are then drawn that
    fair coins surely find enough in each group: the number of present ones is binomial, and which
    ones is random. Their coins are fair, but say together how many of the canaries left out were
    present; a mechanism that lets one canary's score depend on the others' presence is measured
    against replacing a canary.
    """
    score, member = scores.score, scores.member
    total, present = member.size, int(np.count_nonzero(member))
    if scores.metadata.fair_coins:
        return score, member, Coins(origin="fair", given=total, used=total)
    smaller = min(present, total - present)
    # Hoeffding's inequality: m / 2 + sqrt(m log(2 / overdrawn) / 2) stays below the group's size.
    # Up to one group's size no draw can fail.
    margin = math.sqrt(math.log(2.0 / _OVERDRAWN) / 2.0)
    size = max(smaller, int((math.sqrt(margin**2 + 2.0 * smaller) - margin) ** 2))
    generator = stream(None, "fair coins", fingerprint(score, member, scores.metadata.run))
    drawn = min(max(int(generator.binomial(size, 0.5)), size - (total - present)), present)
    kept = np.concatenate(
        (
            generator.permutation(np.flatnonzero(member))[:drawn],
            generator.permutation(np.flatnonzero(~member))[: size - drawn],
        )
    )
    return score[kept], member[kept], Coins(origin="drawn", given=total, used=size)


def accuracy_lower(guesses: Array | Integers, correct: Array | Integers, error: float) -> Array:
    """Lower limit of the accuracy; counts need not be whole, some must be right."""
    return np.asarray(betaincinv(correct, guesses - correct + 1.0, error))


def tried(size: int) -> Integers:
    """Numbers of guesses to choose from: few, so that the choice follows no noise."""
    return np.unique(np.geomspace(1.0, size, _TRIED).round().astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessingAuditor(Auditor[GuessEvidence]):
    """Counts correct guesses of fair coins.

    Args:
        selection: How the number of guesses is chosen.
        two_sided: Guess the lowest scores absent too, as many as the highest present.
    """

    evidence_type: ClassVar[type] = GuessEvidence

    selection: Selection = field(default_factory=Ranks)
    two_sided: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.selection, DKW):
            raise UnsupportedError(
                f"{type(self).__name__} counts guesses, and DKW() is a band around error rates. "
                "Use Ranks(), Split(), CrossFit(), UnionBound() or Fixed(guesses=...)."
            )
        if not isinstance(self.selection, Selection):
            raise InvalidArgumentError(
                "Expected selection to be Ranks, Fixed, Split, MultiSplit, UnionBound or CrossFit, "
                f"got {self.selection!r}."
            )

    @property
    def _rule(self) -> Selection:
        """How this method, with its options, chooses the number of guesses."""
        return self.selection

    @property
    def _by_threshold(self) -> bool:
        return isinstance(self.selection, Fixed) and self.selection.threshold is not None

    def _chosen(self, trial: GuessCounts) -> bool:
        """Whether the number of guesses follows from the run, and was not stated before it."""
        if isinstance(self._rule, Ranks):
            return Ranks.stated(trial.canaries) is None
        return self._by_threshold or not isinstance(self._rule, Fixed | UnionBound)

    @abc.abstractmethod
    def _bound(
        self, trial: GuessCounts, evidence: GuessEvidence, delta: float, error: float
    ) -> float:
        """Lower bound on epsilon from one trial."""

    @abc.abstractmethod
    def _p_value(
        self, trial: GuessCounts, evidence: GuessEvidence, epsilon: float, delta: float
    ) -> float:
        """The p-value of one trial."""

    def _rejects(
        self,
        trial: GuessCounts,
        evidence: GuessEvidence,
        epsilon: float,
        delta: float,
        error: float,
    ) -> bool:
        """Whether one trial rejects; override where that is faster than the p-value."""
        return self._p_value(trial, evidence, epsilon, delta) < error

    def _promise(self, fraction: Array, guesses: Array, correct: Array, error: float) -> Array:
        """A quick stand-in for the bound, to choose the number of guesses by."""
        return np.asarray(logit(accuracy_lower(guesses, correct, error)))

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> GuessEvidence:
        """Guess, and count."""
        score, member, coins = fair_coins(data)
        trials, combination = self._trials(score, member, 1.0 - confidence)
        return GuessEvidence(
            trials=trials, combination=combination, coins=coins, **score_facts(data)
        )

    def _trials(
        self, score: Array, member: Flags, error: float
    ) -> tuple[tuple[GuessCounts, ...], Combination]:
        selection = self._rule
        if isinstance(selection, Fixed) and selection.threshold is not None:
            return (_threshold_trial(score, member, selection.threshold),), Combination.BEST
        order = random_order(score, selection)
        ordered = member[order]
        size = ordered.size
        if isinstance(selection, Fixed | UnionBound):
            counts = _stated(selection, size)
            return tuple(self._trial(ordered, count) for count in counts), Combination.BEST
        if isinstance(selection, Ranks):
            return (self._trial_by_ranks(ordered, error),), Combination.BEST
        assert isinstance(selection, DataSplit)
        level = selection.share(error)
        trials = []
        for chosen in selection.parts(size, fingerprint(score)):
            rest = ordered[~chosen]
            fraction = self._choose(ordered[chosen], rest.size, level)
            trials.append(self._trial(rest, max(1, round(fraction * rest.size))))
        return tuple(trials), selection.combination

    def _trial_by_ranks(self, ordered: Flags, error: float) -> GuessCounts:
        """The number of guesses from the canaries that tell, tested on the others.

        Which canaries tell depends on the mechanism's output, as abstentions do, and so like those
        they count among the canaries whose coins were open.
        """
        stated = Ranks.stated(ordered.size)
        if stated is not None:
            return self._trial(ordered, stated)
        told = Ranks.telling(ordered.size)
        rest = ordered[~told]
        counts = tried(rest.size)
        fraction = counts / rest.size
        right = told_accuracies(ordered[told], fraction, self.two_sided) * counts
        best = int(np.argmax(self._promise(fraction, counts.astype(np.float64), right, error)))
        return replace(self._trial(rest, int(counts[best])), canaries=ordered.size)

    def _sides(self, guesses: Integers) -> tuple[Integers, Integers]:
        """How many are guessed present, and how many absent."""
        absent = guesses // 2 if self.two_sided else np.zeros_like(guesses)
        return guesses - absent, absent

    def _trial(self, ordered: Flags, guesses: int) -> GuessCounts:
        (high,), (low,) = self._sides(np.array([guesses]))
        wrong_low = int(np.count_nonzero(ordered[:low]))
        correct = int(np.count_nonzero(ordered[ordered.size - high :])) + int(low) - wrong_low
        return GuessCounts(canaries=ordered.size, guesses=guesses, correct=correct)

    def _choose(self, ordered: Flags, canaries: int, error: float) -> float:
        """The share of guesses that promises the best bound from so many other canaries."""
        counts = tried(ordered.size)
        high, low = self._sides(counts)
        right_high = np.append(0, np.cumsum(ordered[::-1]))[high]
        right_low = np.append(0, np.cumsum(~ordered))[low]
        return self._best_share(right_high + right_low, ordered.size, canaries, error)

    def _best_share(self, correct: Integers, size: int, canaries: int, error: float) -> float:
        """The share of guesses that promises most, from the right ones at each number `tried`."""
        counts = tried(size)
        # The accuracy at one standard error, so that a few lucky guesses do not decide.
        lower = accuracy_lower(counts, np.maximum(correct, 1), _ONE_SIGMA)
        accuracy = np.where(correct > 0, lower, _ONE_SIGMA / (counts + 1.0))
        fraction = counts / size
        guesses = fraction * canaries
        promise = self._promise(fraction, guesses, accuracy * guesses, error)
        return float(fraction[np.argmax(promise)])

    def epsilon_lower(self, evidence: GuessEvidence, *, delta: float, confidence: float) -> float:
        """The lower bound on epsilon."""
        share = evidence.share(1.0 - confidence)
        return evidence.largest(lambda trial: self._bound(trial, evidence, delta, share))

    def p_value(self, evidence: GuessEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "the run is (epsilon, delta)-private"."""
        return evidence.p_value(lambda trial: self._p_value(trial, evidence, epsilon, delta))

    def rejects(
        self, evidence: GuessEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the trials contradict ``epsilon``; faster than searching the bound."""
        share = evidence.share(error)
        return bool(
            evidence.largest(lambda trial: self._rejects(trial, evidence, epsilon, delta, share))
        )

    def ceiling(self, evidence: GuessEvidence, *, delta: float, confidence: float) -> float:
        """The bound from this many canaries had every guess been right.

        Where the number of guesses is chosen, all canaries that can be guessed are.
        """
        share = evidence.share(1.0 - confidence)

        def most(trial: GuessCounts) -> float:
            guesses = self._tested(trial) if self._chosen(trial) else trial.guesses
            perfect = replace(trial, guesses=guesses, correct=guesses)
            return self._bound(perfect, evidence, delta, share)

        return evidence.largest(most)

    def power(
        self,
        evidence: GuessEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float | None:
        """Power of the rule as chosen, against scores of a Gaussian mechanism of ``true_epsilon``.

        From the exact law of the guesses; for the best of several trials, that of the single most
        powerful one.
        """
        pair = pair_of_mechanism(evidence, true_epsilon, delta)
        share = evidence.share(error)

        def chance(trial: GuessCounts) -> float:
            def rejected(correct: int) -> bool:
                counted = replace(trial, correct=correct)
                return self._rejects(counted, evidence, epsilon, delta, share)

            if not rejected(trial.guesses):
                return 0.0
            low, high = 0, trial.guesses  # not rejected, rejected
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if rejected(middle) else (middle, high)
            both = self.two_sided and not self._by_threshold
            accuracy = _accuracy(trial, self._tested(trial), pair, both)
            return float(np.mean(betainc(high, trial.guesses - high + 1.0, accuracy)))

        # What came out of a trial does not matter, so that trials of one size are asked once.
        typical = tuple(replace(trial, correct=0) for trial in evidence.trials)
        return replace(evidence, trials=typical).largest(chance)

    def _tested(self, trial: GuessCounts) -> int:
        """How many canaries the guesses were chosen from."""
        if not (isinstance(self._rule, Ranks) and self._chosen(trial)):
            return trial.canaries
        return trial.canaries - int(np.count_nonzero(Ranks.telling(trial.canaries)))

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """How many guesses were made and right, and where the coins came from."""
        trials = evidence.trials
        parts = "" if len(trials) == 1 else f" in the first of {len(trials)} trials"
        first = trials[0]
        found = [
            Finding(
                check="guesses",
                status=Status.INFO,
                summary=(
                    f"{first.correct:,} of {first.guesses:,} guesses right, from "
                    f"{first.canaries:,} canaries{parts}."
                ),
                measured=first.correct / first.guesses,
            )
        ]
        return (*found, *evidence.coins.findings())


def _threshold_trial(score: Array, member: Flags, threshold: float) -> GuessCounts:
    guessed = score >= threshold
    guesses = int(np.count_nonzero(guessed))
    if guesses == 0:
        raise _validate.fail(
            "threshold",
            threshold,
            f"<= {float(score.max()):.6g}, the highest score",
            "No canary reaches it, so there is nothing to guess.",
        )
    correct = int(np.count_nonzero(guessed & member))
    return GuessCounts(canaries=score.size, guesses=guesses, correct=correct)


def _stated(selection: Fixed | UnionBound, canaries: int) -> list[int]:
    """Numbers of guesses that depend on the number of canaries only."""
    if isinstance(selection, UnionBound):
        grid = np.geomspace(min(_FEWEST, canaries), canaries, selection.candidates)
        return [int(count) for count in np.unique(grid.round())]
    if selection.guesses is not None:
        if selection.guesses > canaries:
            raise _validate.fail(
                "guesses",
                selection.guesses,
                f"<= {canaries}, the number of canaries in use",
                "Guess for fewer, or plant more.",
            )
        return [selection.guesses]
    assert selection.fraction is not None
    return [max(1, round(selection.fraction * canaries))]


def accuracies(shift: float, fraction: Array, two_sided: bool) -> Array:
    """How often the most confident shares of guesses are right, of a Gaussian channel."""
    tail = 0.5 * fraction if two_sided else fraction
    low, high = np.full(tail.shape, -40.0), np.full(tail.shape, 40.0)
    for _ in range(_HALVINGS):
        cut = 0.5 * (low + high)
        above = 0.5 * (ndtr(0.5 * shift - cut) + ndtr(-0.5 * shift - cut)) > tail
        low, high = np.where(above, cut, low), np.where(above, high, cut)
    return np.asarray(np.clip(0.5 * ndtr(0.5 * shift - low) / tail, 0.5, 1.0))


def _accuracy(trial: GuessCounts, tested: int, pair: ScorePair, two_sided: bool) -> Array:
    """Accuracy of the guesses at equally likely positions of the best withheld score."""
    withheld = tested - trial.guesses
    kept = np.ones(1)
    if withheld:
        kept = np.asarray(betaincinv(trial.guesses + 1.0, float(withheld), _NODES))
    return pair.accuracy(kept, two_sided=two_sided)
