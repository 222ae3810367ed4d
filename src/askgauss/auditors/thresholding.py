"""What auditors that read a confusion matrix share: the threshold, its price, the questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, betainccinv, ndtri

from askgauss.auditors.auditor import Auditor
from askgauss.auditors.mechanism_shift import ScorePair, pair_of_mechanism
from askgauss.auditors.trials import TrialEvidence, score_facts
from askgauss.exceptions import InvalidArgumentError, ScoresError, UnsupportedError
from askgauss.results import Finding, Status
from askgauss.scores import CanaryScores
from askgauss.selection import (
    DKW,
    Combination,
    Fixed,
    Ranks,
    Selection,
    UnionBound,
    fingerprint,
    random_order,
    stream,
)
from askgauss.stats import confusion_matrix
from askgauss.stats.confusion_matrix import ConfusionMatrix
from askgauss.stats.ranked_rates import Curve, RankedRates, beta_nodes, strongest_contradicted
from askgauss.stats.search import smallest_error
from askgauss.stats.tradeoff import TradeOff

__all__ = ["ConfusionAuditor", "ConfusionEvidence"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

# Thresholds tried where one is chosen, from either end; few, so that the choice follows no noise.
_TRIED = 64
_ONE_SIGMA = 0.16
# Equally likely numbers of false positives that power is averaged over.
_NODES = (np.arange(48) + 0.5) / 48
# Audits drawn for the power of thresholds at stated ranks.
_DRAWN = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionEvidence(TrialEvidence[ConfusionMatrix]):
    """Confusion matrices of one or several thresholds."""

    trials: tuple[ConfusionMatrix, ...]

    def limits(self, error: float) -> list[tuple[float, float]]:
        """Upper limits of the two error rates of each trial, at its share of the error."""
        share = self.share(error)
        return [limits(trial, self.combination, share) for trial in self.trials]


def limits(trial: ConfusionMatrix, combination: Combination, error: float) -> tuple[float, float]:
    """Upper limits of the false positive and the false negative rate, that hold together."""
    if combination is not Combination.BAND:
        return trial.rate_limits(confidence=1.0 - error)
    positive = trial.false_positive / trial.absent + DKW.width(error, trial.absent)
    negative = trial.false_negative / trial.present + DKW.width(error, trial.present)
    return min(positive, 1.0), min(negative, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionAuditor(Auditor[ConfusionEvidence]):
    """Counts on which side of a threshold present and absent canaries fall.

    Args:
        selection: How the threshold is chosen.
    """

    evidence_type: ClassVar[type] = ConfusionEvidence

    selection: Selection = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        selection = self.selection
        if not isinstance(selection, Selection):
            raise InvalidArgumentError(
                "Expected selection to be Ranks, Fixed, Split, MultiSplit, UnionBound, CrossFit or "
                f"DKW, got {selection!r}."
            )
        if isinstance(selection, Fixed) and selection.threshold is None:
            raise UnsupportedError(
                f"{type(self).__name__} needs a threshold: a number of guesses leaves it to the "
                "scores it is tested with. Use Fixed(threshold=...), or Ranks()."
            )

    def _promise(self, positive: Array, negative: Array, delta: float) -> Array:
        """A stand-in for the bound from limits of the two rates, to choose a threshold by."""
        return _epsilon_of_rates(positive, negative, delta)

    def _curve(self, epsilon: float, delta: float) -> TradeOff:
        """The trade-off curve that the claim of this epsilon stands for."""
        return TradeOff.epsilon_delta(epsilon, delta)

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> ConfusionEvidence:
        """Choose the threshold, and count."""
        trials, combination = self._trials(data, delta, 1.0 - confidence)
        return ConfusionEvidence(trials=trials, combination=combination, **score_facts(data))

    def _trials(
        self, data: CanaryScores, delta: float, error: float
    ) -> tuple[tuple[ConfusionMatrix, ...], Combination]:
        selection = self.selection
        if isinstance(selection, Ranks):
            ordered = data.member[random_order(data.score, selection)]
            return _at_ranks(ordered), Combination.RANKS
        if isinstance(selection, Fixed):
            assert selection.threshold is not None
            threshold = np.array([selection.threshold])
            return _matrices(data.score, data.member, threshold), Combination.BEST
        if isinstance(selection, UnionBound):
            left_out = _drawn(selection, data)
            thresholds = np.unique(data.score[left_out])
            score, member = data.score[~left_out], data.member[~left_out]
            return _matrices(score, member, thresholds), Combination.BEST
        if isinstance(selection, DKW):
            return _hull(data), Combination.BAND
        order = random_order(data.score, selection)
        score, member = data.score[order], data.member[order]
        level = selection.share(error)
        trials: list[ConfusionMatrix] = []
        # Of either group its share, so that a part is never left without one of them.
        entropy = fingerprint(data.score, data.member)
        sides = [
            selection.parts(int(np.count_nonzero(group)), entropy + index)
            for index, group in enumerate((member, ~member))
        ]
        for of_present, of_absent in zip(*sides, strict=True):
            chosen = np.zeros(score.size, dtype=np.bool_)
            chosen[member], chosen[~member] = of_present, of_absent
            rest = ~chosen
            size = int(np.count_nonzero(rest))
            cut = self._choose(score[chosen], member[chosen], size, delta, level)
            trials += _matrices(score[rest], member[rest], np.array([cut]))
        return tuple(trials), selection.combination

    def _choose(
        self, score: Array, member: Flags, canaries: int, delta: float, error: float
    ) -> float:
        """The threshold among sorted scores that promises the best bound from other canaries."""
        size = score.size
        present, absent = _groups(member, "to choose a threshold on")
        ends = np.geomspace(1.0, size, _TRIED).round().astype(np.int64)
        cut = np.concatenate((size - ends, ends - 1))
        # Everything from the cut on is guessed present, all scores equal to it included.
        cut = np.unique(np.searchsorted(score, score[cut], side="left"))
        missed = np.append(0, np.cumsum(member))[cut]
        false = absent - (cut - missed)
        positive = _expected_limit(false, absent, canaries * absent / size, error)
        negative = _expected_limit(missed, present, canaries * present / size, error)
        promise = self._promise(positive, negative, delta)
        return float(score[cut[np.argmax(promise)]])

    def p_value(self, evidence: ConfusionEvidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the limits of the error rates contradict the claim."""
        curve = self._curve(epsilon, delta).beta_at
        if evidence.combination is Combination.RANKS:
            rates = self._rates(evidence)
            values = [1.0] if rates is None else rates.p_values(curve).tolist()
            return min(1.0, len(evidence.trials) * min(values))
        if evidence.combination is Combination.BAND:
            return smallest_error(
                lambda error: any(
                    negative < curve(positive) for positive, negative in evidence.limits(error)
                )
            )
        return evidence.p_value(lambda trial: confusion_matrix.p_value(curve, trial))

    def rejects(
        self, evidence: ConfusionEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the trials contradict ``epsilon``; faster than searching the bound."""
        if evidence.combination is Combination.RANKS:
            return self.p_value(evidence, epsilon=epsilon, delta=delta) < error
        test = self._test(evidence.combination, epsilon, delta, evidence.share(error))
        return bool(evidence.largest(test))

    def ceiling(self, evidence: ConfusionEvidence, *, delta: float, confidence: float) -> float:
        """The bound had every canary fallen on its side of the threshold."""
        trials = evidence.trials
        if evidence.combination is Combination.RANKS:
            # At the first rank all others are outdone; as many shares of the error stay.
            confidence = 1.0 - (1.0 - confidence) / len(trials)
            trials = trials[:1]
        perfect = replace(evidence, trials=tuple(trial.perfect() for trial in trials))
        return self.epsilon_lower(perfect, delta=delta, confidence=confidence)

    def power(
        self,
        evidence: ConfusionEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power at the threshold as chosen, against scores of a Gaussian mechanism.

        From the exact laws of both mistakes; for the best of several trials, that of the single
        most powerful one.
        """
        pair = pair_of_mechanism(evidence, true_epsilon, delta)
        share = evidence.share(error)
        if evidence.combination is Combination.RANKS:
            curve = self._curve(epsilon, delta).beta_at
            return _ranked_power(evidence.trials, pair, curve, share)

        def chance(trial: ConfusionMatrix) -> float:
            rate = (trial.false_positive + 0.5) / (trial.absent + 1.0)
            false = np.clip(np.ceil(bdtrik(_NODES, trial.absent, rate)), 0, trial.absent)
            most = self._most_missed(
                trial, evidence.combination, false.astype(np.int64), epsilon, delta, share
            )
            missed = float(pair.present_below(-ndtri(rate)))
            found = bdtr(np.clip(most, 0, trial.present - 1), trial.present, missed)
            found = np.where(most < 0, 0.0, np.where(most >= trial.present, 1.0, found))
            return float(found.mean())

        return evidence.largest(chance)

    def _ranked_epsilon(self, evidence: ConfusionEvidence, delta: float, error: float) -> float:
        """The (epsilon, delta) curve that thresholds at stated ranks contradict."""
        rates = self._rates(evidence)
        if rates is None:
            return 0.0
        found = strongest_contradicted(
            rates,
            lambda epsilon: _epsilon_delta(epsilon, delta),
            lambda positive, negative: _epsilon_of_rates(positive, negative, delta),
            evidence.share(error),
        )
        return max(0.0, found)

    def _rates(self, evidence: ConfusionEvidence) -> RankedRates | None:
        """Both rates of the thresholds at stated ranks; None where none says anything."""
        trials = [trial for trial in evidence.trials if trial.telling]
        if not trials:
            return None
        return RankedRates.of(
            [(trial.false_positive + 1.0, trial.true_negative) for trial in trials],
            [(trial.false_negative + 1.0, trial.true_positive) for trial in trials],
        )

    def _most_missed(
        self,
        trial: ConfusionMatrix,
        combination: Combination,
        false: Integers,
        epsilon: float,
        delta: float,
        error: float,
    ) -> Integers:
        """The most false negatives that contradict the claim, beside so many false positives.

        Below 0 where not even none do.
        """
        present, absent = trial.present, trial.absent
        curve = self._curve(epsilon, delta).beta_at
        if combination is Combination.BAND:
            positive = false / absent + DKW.width(error, absent)
            room = curve(np.minimum(positive, 1.0)) - DKW.width(error, present)
            return np.asarray(np.ceil(room * present) - 1.0, dtype=np.int64)
        some = np.maximum(absent - false, 1)
        positive = np.where(false < absent, betainccinv(false + 1.0, some, 0.5 * error), 1.0)
        least = np.clip(curve(positive), 0.0, 1.0)
        # The limit after m of them is below the curve just where at most m are that improbable.
        counts = np.arange(present)
        low, high = np.full(false.size, -1), np.full(false.size, present)
        while (high - low > 1).any():
            middle = np.minimum((low + high) // 2, present - 1).clip(0)
            contradicts = bdtr(counts[middle], present, least) < 0.5 * error
            low, high = np.where(contradicts, middle, low), np.where(contradicts, high, middle)
        return np.asarray(low, dtype=np.int64)

    def _test(
        self, combination: Combination, epsilon: float, delta: float, error: float
    ) -> Callable[[ConfusionMatrix], bool]:
        """Whether a confusion matrix contradicts the claim at this error."""
        curve = self._curve(epsilon, delta).beta_at

        def rejects(trial: ConfusionMatrix) -> bool:
            positive, negative = limits(trial, combination, error)
            return negative < curve(positive)

        return rejects

    def findings(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """The confusion matrix."""
        trials = evidence.trials
        parts = "" if len(trials) == 1 else f" at the first of {len(trials)} thresholds"
        first = trials[0]
        return (
            Finding(
                check="confusion",
                status=Status.INFO,
                summary=(
                    f"{first.false_positive:,} of {first.absent:,} absent canaries read as present "
                    f"and {first.false_negative:,} of {first.present:,} present ones as "
                    f"absent{parts}."
                ),
            ),
        )


def _epsilon_of_rates(positive: Array, negative: Array, delta: float) -> Array:
    """The epsilon that limits of the two error rates contradict, below 0 where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(np.maximum(1.0 - delta - negative, 0.0) / positive)
        second = np.log(np.maximum(1.0 - delta - positive, 0.0) / negative)
    return np.asarray(np.maximum(first, second))


def _epsilon_delta(epsilon: float, delta: float) -> Curve:
    """The trade-off curve of (epsilon, delta), on arrays."""
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)

    def curve(rate: Array) -> Array:
        return np.maximum(1.0 - delta - grow * rate, shrink * (1.0 - delta - rate))

    return curve


def _expected_limit(mistakes: Integers, trials: int, more: float, error: float) -> Array:
    """The upper limit of an error rate to expect from more trials, after so many mistakes.

    The rate itself is taken at one standard error, so that a few lucky canaries do not decide.
    """
    rate = np.where(
        mistakes < trials,
        betainccinv(mistakes + 1.0, np.maximum(trials - mistakes, 1), _ONE_SIGMA),
        1.0 - 1e-9,
    )
    return np.asarray(betainccinv(rate * more + 1.0, (1.0 - rate) * more, error / 2.0))


def _groups(member: Flags, purpose: str) -> tuple[int, int]:
    present = int(np.count_nonzero(member))
    absent = member.size - present
    if not (present and absent):
        raise ScoresError(
            f"Expected present and absent canaries {purpose}, got {present} present and {absent} "
            "absent after splitting. Plant more canaries, or use Fixed(threshold=...)."
        )
    return present, absent


def _matrices(score: Array, member: Flags, thresholds: Array) -> tuple[ConfusionMatrix, ...]:
    """The matrix of each threshold: present if the score reaches it."""
    _groups(member, "to test a threshold on")
    ones, zeros = np.sort(score[member]), np.sort(score[~member])
    missed = np.searchsorted(ones, thresholds, side="left")
    cleared = np.searchsorted(zeros, thresholds, side="left")
    return _from_counts(missed, zeros.size - cleared, ones.size, zeros.size)


def _from_counts(
    missed: Iterable[int], false: Iterable[int], present: int, absent: int
) -> tuple[ConfusionMatrix, ...]:
    return tuple(
        ConfusionMatrix(
            true_positive=present - int(misses),
            true_negative=absent - int(falses),
            false_positive=int(falses),
            false_negative=int(misses),
        )
        for misses, falses in zip(missed, false, strict=True)
    )


def _at_ranks(ordered: Flags) -> tuple[ConfusionMatrix, ...]:
    """The matrix of each threshold at a stated rank, those in the larger group first.

    Canaries come sorted by score. Its own canary is on the right side of a threshold.
    """
    ones, zeros = np.flatnonzero(ordered), np.flatnonzero(~ordered)
    by_absent = zeros.size >= ones.size
    larger, smaller = (zeros.size, ones.size) if by_absent else (ones.size, zeros.size)
    sides = [Ranks.thresholds(larger), Ranks.other_thresholds(smaller)]
    high, low = sides if by_absent else sides[::-1]
    missed = np.searchsorted(ones, zeros[zeros.size - high])
    cleared = np.searchsorted(zeros, ones[low - 1])
    upper = _from_counts(missed, high - 1, ones.size, zeros.size)
    lower = _from_counts(low - 1, zeros.size - cleared, ones.size, zeros.size)
    return (*upper, *lower) if by_absent else (*lower, *upper)


def _ranked_power(
    trials: tuple[ConfusionMatrix, ...], pair: ScorePair, curve: Curve, error: float
) -> float:
    """Chance that a threshold at a stated rank contradicts the curve.

    Thresholds of the one group lie where its highest scores are, those of the other where its
    lowest are. What the two ends show is neither independent nor the same: half way between.
    """
    present, absent = trials[0].present, trials[0].absent
    by_absent, split = absent >= present, Ranks.thresholds(max(present, absent)).size
    first = _power_of_side(trials[:split], by_absent, pair, curve, error)
    if first == 1.0 or not trials[split:]:
        return first
    second = _power_of_side(trials[split:], not by_absent, pair, curve, error)
    return 0.5 * (max(first, second) + 1.0 - (1.0 - first) * (1.0 - second))


def _power_of_side(
    trials: tuple[ConfusionMatrix, ...],
    by_absent: bool,
    pair: ScorePair,
    curve: Curve,
    error: float,
) -> float:
    """The same of the thresholds in one group, in drawn audits, always the same draws.

    True rates at the ranks in that group, and the other group's counts beyond them.
    """
    present, absent = trials[0].present, trials[0].absent
    stated = [t.false_positive if by_absent else t.false_negative for t in trials]
    fixed, other = (absent, present) if by_absent else (present, absent)
    most = _most_mistakes(stated, fixed, other, curve, error)
    generator = np.random.default_rng(0)
    steps = np.diff([0, *(count + 1 for count in stated), fixed + 1])
    sums = np.cumsum(generator.standard_gamma(steps, size=(_DRAWN, steps.size)), axis=1)
    rates = np.clip(sums[:, :-1] / sums[:, -1:], 1e-300, 1.0 - 1e-16)
    beyond = pair.present_below(-ndtri(rates)) if by_absent else pair.absent_above(rates)
    noticed, left = np.zeros(_DRAWN, dtype=np.bool_), np.full(_DRAWN, other)
    before = np.ones(_DRAWN)
    for index, limit in enumerate(most):
        if limit < 0:
            continue
        chance = np.clip(beyond[:, index] / np.maximum(before, 1e-300), 0.0, 1.0)
        left, before = generator.binomial(left, chance), beyond[:, index]
        noticed |= left <= limit
    return float(noticed.mean())


def _most_mistakes(
    stated: list[int], fixed: int, other: int, curve: Curve, error: float
) -> Integers:
    """The most mistakes in the other group that contradict the curve, beside so many stated ones.

    Below 0 where not even none do. Curves are their own inverse, so that roles do not matter.
    """
    rates, weights = beta_nodes([(count + 1.0, float(fixed - count)) for count in stated])
    least = np.clip(curve(rates), 0.0, 1.0)
    low, high = np.full(len(stated), -1), np.full(len(stated), other)
    while (high - low > 1).any():
        middle = np.clip((low + high) // 2, 0, other - 1)
        contradicts = (weights * bdtr(middle[:, np.newaxis], other, least)).sum(axis=1) < error
        low, high = np.where(contradicts, middle, low), np.where(contradicts, high, middle)
    return low


def _drawn(selection: UnionBound, data: CanaryScores) -> Flags:
    """The canaries whose scores become thresholds."""
    canaries = len(data)
    if selection.candidates > canaries - 2:
        raise ScoresError(
            f"Expected more canaries than {selection.candidates} candidates and two to test on, "
            f"got {canaries}. Take fewer candidates, or plant more canaries."
        )
    left_out = np.zeros(canaries, dtype=np.bool_)
    generator = stream(selection, "candidates", fingerprint(data.score, data.member))
    left_out[generator.permutation(canaries)[: selection.candidates]] = True
    return left_out


def _hull(data: CanaryScores) -> tuple[ConfusionMatrix, ...]:
    """The matrices at the corners of the convex hull of all thresholds.

    A trade-off curve is convex, so no other threshold contradicts one that these do not.
    """
    ones, zeros = np.sort(data.present), np.sort(data.absent)
    cuts = np.unique(ones)  # between two of them only absent canaries change sides
    missed = np.searchsorted(ones, cuts, side="left")
    false = zeros.size - np.searchsorted(zeros, cuts, side="left")
    corners: list[tuple[int, int]] = []
    for point in zip(false[::-1].tolist(), missed[::-1].tolist(), strict=True):
        while len(corners) > 1 and _right_turn(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return _from_counts(
        (misses for _, misses in corners),
        (falses for falses, _ in corners),
        ones.size,
        zeros.size,
    )


def _right_turn(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Whether the middle point lies on or above the line between the others."""
    rise = (middle[1] - first[1]) * (last[0] - first[0])
    return rise >= (last[1] - first[1]) * (middle[0] - first[0])
