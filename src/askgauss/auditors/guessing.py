"""Auditors that count correct guesses: randomised membership, the guessing rule, and `OneRun`.

The canaries with the highest scores are guessed inserted and, if the audit is two-sided, as many
with the lowest scores held out; the auditor abstains on the rest. Which canaries are guessed
depends on the scores alone, and how many on nothing the guesses are tested with
(`askgauss.selection`).

`OneRun` is the test of Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846).
"""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, expit, logit, ndtr

from askgauss import _validate
from askgauss.auditors.auditor import Auditor, ScoreEvidence, ScorePair, pair_of_mechanism
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Assumption, Finding, Status
from askgauss.scores import CanaryScores
from askgauss.selection import Fixed, Ranks, Selection, fingerprint, random_order, stream
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts

__all__ = [
    "Coins",
    "GuessEvidence",
    "GuessingAuditor",
    "OneRun",
    "accuracies",
    "accuracy_lower",
    "fair_coins",
    "told_accuracies",
    "tried",
]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

# A draw of fair coins exceeds its group less often than this.
_OVERDRAWN = 1e-9
_TRIED = 64
_ONE_SIGMA = 0.16
_NODES = (np.arange(64) + 0.5) / 64
_HALVINGS = 40
# Channels that are weighed: two Gaussians so far apart, whose log odds go no further than a limit.
# Without one they are Gaussian; with one, like Laplace noise or randomised response.
_SHIFTS = np.geomspace(0.1, 8.0, 24)
_LIMITS = np.array([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, np.inf])
_POINTS = np.linspace(-1.0, 1.0, 401)
_REACH = 7.0
# Ranks that are told apart.
_CELLS = 256


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
class GuessEvidence(ScoreEvidence):
    """The count of correct guesses, and how the canaries' membership was randomised."""

    trial: GuessCounts
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
    """Counts correct guesses of randomised membership.

    Args:
        selection: How the number of guesses is chosen.
        two_sided: Guess the lowest scores held out too, as many as the highest inserted.
    """

    evidence_type: ClassVar[type] = GuessEvidence

    selection: Selection = field(default_factory=Ranks)
    two_sided: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.selection, Selection):
            raise InvalidArgumentError(
                f"Expected selection to be Ranks, Fixed or Split, got {self.selection!r}."
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
        return self._by_threshold or not isinstance(self._rule, Fixed)

    @abc.abstractmethod
    def _bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        """Lower bound on epsilon from so many correct guesses."""

    def rejects(
        self, evidence: GuessEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the guesses contradict ``epsilon``: faster by the p-value than by the bound."""
        return self.p_value(evidence, epsilon=epsilon, delta=delta) < error

    def _promise(self, fraction: Array, guesses: Array, correct: Array, error: float) -> Array:
        """A quick stand-in for the bound, to choose the number of guesses by."""
        return np.asarray(logit(accuracy_lower(guesses, correct, error)))

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> GuessEvidence:
        """Guess, and count."""
        score, member, coins = fair_coins(data)
        trial = self._guessed(score, member, 1.0 - confidence)
        return GuessEvidence(trial=trial, coins=coins, **ScoreEvidence.facts(data))

    def _guessed(self, score: Array, member: Flags, error: float) -> GuessCounts:
        selection = self._rule
        if isinstance(selection, Fixed) and selection.threshold is not None:
            return _threshold_trial(score, member, selection.threshold)
        ordered = member[random_order(score, selection)]
        if isinstance(selection, Fixed):
            return self._trial(ordered, _stated(selection, ordered.size))
        if isinstance(selection, Ranks):
            return self._trial_by_ranks(ordered, error)
        chosen = selection.part(ordered.size, fingerprint(score))
        rest = ordered[~chosen]
        fraction = self._choose(ordered[chosen], rest.size, error)
        return self._trial(rest, max(1, round(fraction * rest.size)))

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
        return self._bound(evidence, delta, 1.0 - confidence)

    def ceiling(self, evidence: GuessEvidence, *, delta: float, confidence: float) -> float:
        """The bound from this many canaries had every guess been right.

        Where the number of guesses is chosen, all canaries that can be guessed are.
        """
        trial = evidence.trial
        guesses = self._tested(trial) if self._chosen(trial) else trial.guesses
        perfect = replace(trial, guesses=guesses, correct=guesses)
        return self._bound(replace(evidence, trial=perfect), delta, 1.0 - confidence)

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

        From the exact distribution of the number of correct guesses.
        """
        trial = evidence.trial
        pair = pair_of_mechanism(evidence, true_epsilon, delta)

        def rejected(correct: int) -> bool:
            counted = replace(evidence, trial=replace(trial, correct=correct))
            return self.rejects(counted, epsilon=epsilon, delta=delta, error=error)

        if not rejected(trial.guesses):
            return 0.0
        low, high = 0, trial.guesses  # not rejected, rejected
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rejected(middle) else (middle, high)
        both = self.two_sided and not self._by_threshold
        accuracy = _accuracy(trial, self._tested(trial), pair, both)
        return float(np.mean(betainc(high, trial.guesses - high + 1.0, accuracy)))

    def _tested(self, trial: GuessCounts) -> int:
        """How many canaries the guesses were chosen from."""
        if not (isinstance(self._rule, Ranks) and self._chosen(trial)):
            return trial.canaries
        return trial.canaries - int(np.count_nonzero(Ranks.telling(trial.canaries)))

    def findings(
        self, evidence: GuessEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """How many guesses were made and right, and where the randomised membership came from."""
        trial = evidence.trial
        counted = Finding(
            check="guesses",
            status=Status.INFO,
            summary=(
                f"{trial.correct:,} of {trial.guesses:,} guesses right, from "
                f"{trial.canaries:,} canaries."
            ),
            measured=trial.correct / trial.guesses,
        )
        return (counted, *evidence.coins.findings())


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun(GuessingAuditor):
    """The number of correct guesses against the binomial that (epsilon, delta) allows.

    Assumes:
        Every canary was made present by a fair coin of its own. Nothing about the mechanism or the
        scores; canaries may disturb each other at will.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits, by
        Theorem 5.2 for a stated number of guesses and by `askgauss.stats.guess_counts` for one that
        was chosen. It stays far below it where errors are rare rather than impossible: about
        half of epsilon for Gaussian noise, however many canaries there are.

    Args:
        selection: As for `GuessingAuditor`.
        two_sided: As for `GuessingAuditor`.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 1.5 < ag.audit(scores, delta=1e-5, auditor=OneRun()).epsilon_lower < 4.38
        True
    """

    pure: ClassVar[bool] = True
    assumption: ClassVar[Assumption] = Assumption.DISTRIBUTION_FREE

    def _bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        chosen = self._chosen(evidence.trial)
        return guess_counts.epsilon_from_counts(
            evidence.trial, delta=delta, confidence=1.0 - error, chosen=chosen
        )

    def p_value(self, evidence: GuessEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "the run is (epsilon, delta)-private"."""
        chosen = self._chosen(evidence.trial)
        return guess_counts.p_value(evidence.trial, epsilon=epsilon, delta=delta, chosen=chosen)


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


def _stated(selection: Fixed, canaries: int) -> int:
    """The stated number of guesses."""
    if selection.guesses is None:
        assert selection.fraction is not None
        return max(1, round(selection.fraction * canaries))
    if selection.guesses > canaries:
        raise _validate.fail(
            "guesses",
            selection.guesses,
            f"<= {canaries}, the number of canaries in use",
            "Guess for fewer, or plant more.",
        )
    return selection.guesses


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


def told_accuracies(told: NDArray[np.bool_], fraction: Array, two_sided: bool) -> Array:
    """The accuracy to expect of each share of guesses.

    Few canaries tell a channel better than the accuracy of every share: channels are averaged by
    how well each explains the coins.

    Args:
        told: Who is present, of some canaries sorted by score.
        fraction: Shares of canaries that are guessed.
        two_sided: Whether the lowest scores are guessed absent, as many as the highest present.
    """
    cells = min(told.size, _CELLS)
    place = np.arange(told.size) * cells // told.size
    present = np.bincount(place[told], minlength=cells)
    absent = np.bincount(place[~told], minlength=cells)
    log_present, log_absent = _logarithms(cells)
    likelihood = log_present @ present + log_absent @ absent
    weight = np.exp(likelihood - likelihood.max())
    weight /= weight.sum()
    tail = 0.5 * fraction if two_sided else fraction
    beyond, right = _channels()
    total = np.zeros(tail.shape)
    for share, of_limits, weights in zip(beyond, right, weight, strict=True):
        total += np.interp(tail, share, weights @ of_limits)
    return np.asarray(np.clip(total / tail, 0.0, 1.0))


def _odds() -> tuple[Array, Array]:
    """By shift, from the highest score down: canaries beyond; and by limit, odds of presence."""
    half = 0.5 * _SHIFTS[:, None]
    score = -_POINTS * (half + _REACH)
    beyond = 0.5 * (ndtr(half - score) + ndtr(-half - score))
    limit = _LIMITS[:, None]
    return beyond, np.clip((_SHIFTS[:, None] * score)[:, None, :], -limit, limit)


@functools.cache
def _channels() -> tuple[Array, Array]:
    """By shift the share of canaries beyond each score; and by limit, that of present ones."""
    beyond, odds = _odds()
    middle = expit(0.5 * (odds[:, :, 1:] + odds[:, :, :-1]))
    right = np.cumsum(middle * np.diff(beyond)[:, None, :], axis=-1)
    return beyond, np.pad(right, ((0, 0), (0, 0), (1, 0)))


@functools.lru_cache(maxsize=16)
def _logarithms(cells: int) -> tuple[Array, Array]:
    """Log probabilities of presence and absence at so many ranks, upwards, by shift and limit."""
    beyond, odds = _odds()
    rank = 1.0 - (np.arange(cells) + 0.5) / cells
    found = np.array(
        [[np.interp(rank, x, y) for y in limits] for x, limits in zip(beyond, odds, strict=True)]
    )
    return -np.logaddexp(0.0, -found), -np.logaddexp(0.0, found)
