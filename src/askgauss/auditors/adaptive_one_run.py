"""Keinan, Shenfeld and Ligett 2025: one run, told each coin before the next guess (2503.07199).

Where several canaries share a coordinate, each hides the others. An auditor who is told the coins
it has passed can subtract them, and the next guess is as good as if that canary were alone.

At delta 0 their theorem is the binomial one of Steinke et al. Above 0 askgauss uses this. Let the
canaries be passed in any order that depends on the scores and the coins passed. Given the coins so
far, an (epsilon, delta) pair of laws is a pair of epsilon-close ones but for an event of
probability delta, in which the coin is revealed (Kairouz, Oh and Viswanath, arXiv 1311.0776). So
the correct guesses are at most W + F: W binomial with success probability e^epsilon / (1 +
e^epsilon) whatever the past, F the number of such events among all canaries, delta each on average.
How F depends on W is unknown, but for all k

    P[W + F >= correct] <= P[W >= correct - k] + canaries * delta / (k + 1).

The number of guesses is chosen on canaries passed before, so a mechanism may save its F for numbers
that they serve best: k is the same for all of them, the smallest whose second term is a quarter of
the error, and the first term has the rest.

Where no two canaries share a coordinate there is nothing to be told, and `OneRun`'s theorem holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincc, gammaincc, gammaln

from askgauss import _validate
from askgauss.auditors.auditor import ScoreEvidence
from askgauss.auditors.guessing import GuessEvidence, GuessingAuditor, fair_coins, tried
from askgauss.exceptions import InvalidArgumentError, ScoresError, UnsupportedError
from askgauss.results import Assumption
from askgauss.scores import CanaryScores
from askgauss.selection import Fixed, Ranks, Selection, Split, fingerprint, stream
from askgauss.stats import guess_counts
from askgauss.stats.guess_counts import GuessCounts
from askgauss.stats.limits import SMALLEST_ERROR, largest_rejected

__all__ = ["AdaptiveOneRun", "epsilon_from_counts", "p_value"]

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

_IMPLAUSIBLE = 1e-6
# Share of the error that is for revealed coins.
_REVEALED = 0.25


def p_value(counts: GuessCounts, *, epsilon: float, delta: float) -> float:
    """Bound on the probability of so many correct guesses by an auditor told the coins passed.

    Args:
        counts: The guesses; their number was settled before the first of them.
        epsilon: Claimed epsilon, 0 or above.
        delta: Claimed delta, in [0, 1).

    Returns:
        A p-value of the claim, at most 1.

    Guarantee:
        Valid for every mechanism that keeps the claim, whatever the dependence between canaries.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=200, correct=180)
        >>> round(p_value(counts, epsilon=1.5, delta=1e-5), 4)
        0.01
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    correct = counts.correct
    if correct == 0:
        return 1.0
    failure = 1.0 / (1.0 + math.exp(epsilon)) if epsilon < 700.0 else 0.0
    told = np.arange(correct)
    tail = betaincc(counts.mistakes + told + 1.0, correct - told, failure)
    if delta == 0.0:
        return float(tail[0])
    revealed = counts.canaries * delta / (told + 1.0)
    return float(min(1.0, np.min(np.maximum(tail / (1.0 - _REVEALED), revealed / _REVEALED))))


def epsilon_from_counts(counts: GuessCounts, *, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon of an auditor told the coins passed.

    Args:
        counts: The guesses; their number was settled before the first of them.
        delta: The delta at which epsilon is stated, in [0, 1).
        confidence: Probability that the bound holds, in (0, 1).

    Returns:
        The largest epsilon whose claim is rejected at error ``1 - confidence``; 0 if none is.

    Examples:
        >>> counts = GuessCounts(canaries=1000, guesses=200, correct=180)
        >>> round(epsilon_from_counts(counts, delta=1e-5, confidence=0.95), 3)
        1.77
    """
    _validate.probability(confidence=confidence)
    level = math.log(1.0 - confidence)
    return largest_rejected(
        lambda epsilon: (
            level - math.log(max(p_value(counts, epsilon=epsilon, delta=delta), SMALLEST_ERROR))
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOneRun(GuessingAuditor):
    """Guesses by posterior odds, told every coin once it is passed.

    Without ``groups`` the odds grow with the one score of a canary, and the audit is `OneRun`'s.
    With them the noise and the contribution of a canary are fitted, on the canaries that the number
    of guesses is chosen on too: the bound then depends on the values of the scores, not on their
    ranks alone, and stays valid whatever they are.

    Assumes:
        Every canary was made present by a fair coin of its own, independent of the groups. Nothing
        about the mechanism: where scores are not sums of contributions and Gaussian noise, guesses
        are worse, and the bound is lower.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits.

    Args:
        selection: Where the rule is learnt and tested: `Split`; `Ranks` is `Split` where canaries
            share a coordinate.
        two_sided: As for `GuessingAuditor`.
        groups: One label a canary, equal for those that share a coordinate and so a score; None if
            none do.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> from askgauss.scores import ScoreMetadata
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random(8000) < 0.5
        >>> coordinate = np.repeat(np.arange(1000), 8)
        >>> total = np.bincount(coordinate, member) + rng.normal(0, 1, 1000)
        >>> coins = ScoreMetadata(fair_coins=True)
        >>> scores = ag.CanaryScores(score=total[coordinate], member=member, metadata=coins)
        >>> auditor = AdaptiveOneRun(groups=coordinate)
        >>> 1.0 < ag.audit(scores, delta=1e-5, auditor=auditor).epsilon_lower < 4.38
        True
    """

    pure: ClassVar[bool] = True
    assumption: ClassVar[Assumption] = Assumption.DISTRIBUTION_FREE

    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        GuessingAuditor.__post_init__(self)
        if isinstance(self.selection, Fixed):
            raise UnsupportedError(
                "AdaptiveOneRun learns the noise on canaries it does not test, so its rule cannot "
                "be stated in advance. Use Ranks() or Split()."
            )
        if self.groups is not None:
            object.__setattr__(self, "groups", _labels(self.groups))

    @property
    def any_size(self) -> bool:
        """Not where groups were told, which are those of one set of canaries."""
        return self.groups is None

    @property
    def _rule(self) -> Selection:
        # Odds given the coins of others are learnt from values, so that ranks do not serve.
        return Split() if self._told and isinstance(self.selection, Ranks) else self.selection

    @property
    def _told(self) -> bool:
        """Whether being told a coin can help."""
        return self.groups is not None and len(set(self.groups)) < len(self.groups)

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> GuessEvidence:
        """Guess, and count."""
        if not self._told:
            return GuessingAuditor.gather(self, data, delta=delta, confidence=confidence)
        score, member, coins = fair_coins(data)
        assert self.groups is not None
        if len(self.groups) != len(data):
            raise InvalidArgumentError(
                f"Expected one of groups a canary, got {len(self.groups)} for {len(data)} canaries."
            )
        if coins.origin == "drawn":
            raise UnsupportedError(
                "Groups need canaries that fair coins made present, got groups of fixed sizes. "
                "Drawing fair ones would take the groups apart: leave groups out."
            )
        groups = _Groups.of(score, member, np.array(self.groups))
        selection, entropy = self._rule, fingerprint(score)
        assert isinstance(selection, Split)
        part = selection.part(groups.size.size, entropy)
        generator = stream(selection, "order", entropy)
        trial = self._trial_of(groups, part, 1.0 - confidence, generator)
        return GuessEvidence(trial=trial, coins=coins, **ScoreEvidence.facts(data))

    def _trial_of(
        self, groups: _Groups, part: Flags, error: float, generator: np.random.Generator
    ) -> GuessCounts:
        learnt, rest = groups.pick(np.flatnonzero(part)), np.flatnonzero(~part)
        tested = groups.pick(generator.permutation(rest))
        model = learnt.fit()
        confidence, right = learnt.guess(model, self.two_sided)
        order = np.lexsort((generator.random(confidence.size), confidence))
        ranked, canaries = right[order], tested.canaries
        right_ones = np.cumsum(ranked[::-1].astype(np.int64))[tried(ranked.size) - 1]
        fraction = self._best_share(right_ones, ranked.size, canaries, error)
        threshold = confidence[order][-max(1, round(fraction * ranked.size))]
        confidence, right = tested.guess(model, self.two_sided)
        guesses = max(1, round(fraction * canaries))
        # Fewer than expected, so that the canaries hardly ever run out before the guesses do.
        guesses = max(1, round(guesses - 2.0 * math.sqrt(guesses)))
        made = _in_order(confidence >= threshold, guesses)
        correct = int(np.count_nonzero(right[made]))
        return GuessCounts(canaries=canaries, guesses=guesses, correct=correct)

    def _bound(self, evidence: GuessEvidence, delta: float, error: float) -> float:
        trial, confidence = evidence.trial, 1.0 - error
        if self._told:
            return epsilon_from_counts(trial, delta=delta, confidence=confidence)
        return guess_counts.epsilon_from_counts(
            trial, delta=delta, confidence=confidence, chosen=self._chosen(trial)
        )

    def p_value(self, evidence: GuessEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "the run is (epsilon, delta)-private"."""
        trial = evidence.trial
        if self._told:
            return p_value(trial, epsilon=epsilon, delta=delta)
        chosen = self._chosen(trial)
        return guess_counts.p_value(trial, epsilon=epsilon, delta=delta, chosen=chosen)

    def power(
        self,
        evidence: GuessEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float | None:
        """Power of the rule as chosen; unknown where canaries share coordinates."""
        if self._told:
            return None
        return GuessingAuditor.power(
            self,
            evidence,
            epsilon=epsilon,
            true_epsilon=true_epsilon,
            delta=delta,
            error=error,
        )


def _labels(groups: Sequence[Any]) -> tuple[int, ...]:
    labels = np.asarray(groups)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"Expected groups to be one whole number a canary, got dtype {labels.dtype} and shape "
            f"{labels.shape}."
        )
    # A result names its auditor with all options, and labels that are coordinates would say where
    # the canaries are. Ranks say who shares one, and keep the order in which groups are split.
    return tuple(np.unique(labels, return_inverse=True)[1].tolist())


def _in_order(confident: Flags, guesses: int) -> Integers:
    """The first so many confident canaries, and where these run out, all of the last ones.

    Whether to guess is settled at each canary from what was passed before.
    """
    before = np.append(0, np.cumsum(confident))[:-1]
    left = np.arange(confident.size, 0, -1)
    wanted = np.flatnonzero(confident | (left <= guesses - before))
    return wanted[:guesses]


@dataclass(frozen=True, slots=True)
class _Model:
    """A score is base + slope * (number present) + noise."""

    base: float
    slope: float
    noise: float


@dataclass(frozen=True, slots=True)
class _Groups:
    """Canaries by coordinate: a row each, padded on the right."""

    score: Array
    member: Flags
    size: Integers

    @classmethod
    def of(cls, score: Array, member: Flags, labels: Integers) -> _Groups:
        _, label = np.unique(labels, return_inverse=True)
        size = np.bincount(label)
        order = np.argsort(label, kind="stable")
        row = label[order]
        column = np.arange(row.size) - np.repeat(np.cumsum(size) - size, size)
        padded = np.zeros((size.size, int(size.max())), dtype=np.bool_)
        padded[row, column] = member[order]
        excess = (2.0 * padded.sum(axis=1) - size) ** 2 / size
        if gammaincc(size.size / 2.0, excess.sum() / 2.0) < _IMPLAUSIBLE:
            raise ScoresError(
                "Expected canaries of one group to be present by coins of their own, got groups "
                "that are present or absent together. Group by coordinate, not by presence."
            )
        return cls(np.bincount(label, score) / size, padded, size)

    @property
    def canaries(self) -> int:
        return int(self.size.sum())

    def pick(self, rows: Integers) -> _Groups:
        return _Groups(self.score[rows], self.member[rows], self.size[rows])

    def fit(self) -> _Model:
        """Least squares; the slope is 0 where there is nothing to learn it from."""
        present = self.member.sum(axis=1)
        x, y = present - present.mean(), self.score - self.score.mean()
        spread = float(x @ x)
        slope = max(float(x @ y) / spread, 0.0) if spread else 0.0
        noise = math.sqrt(float(((y - slope * x) ** 2).mean()))
        base = float(self.score.mean() - slope * present.mean())
        return _Model(base, slope, max(noise, 1e-9 * (1.0 + abs(slope))))

    def guess(self, model: _Model, two_sided: bool) -> tuple[Array, Flags]:
        """How confident each guess is, and whether it is right, in the order canaries are passed.

        Canaries of one coordinate are passed in turn, each told before the next.
        """
        rows, width = self.member.shape
        confidence, right = np.zeros((rows, width)), np.zeros((rows, width), dtype=np.bool_)
        residual = (self.score - model.base) / model.noise
        step = model.slope / model.noise
        for column in range(width):
            odds = _odds(residual, self.size - column, step, width - column)
            present = odds > 0.0
            confidence[:, column] = np.abs(odds) if two_sided else odds
            right[:, column] = self.member[:, column] == (present if two_sided else True)
            residual = residual - step * self.member[:, column]
        real = np.arange(width) < self.size[:, None]
        return confidence[real], right[real]


def _odds(residual: Array, open_canaries: Integers, step: float, width: int) -> Array:
    """Log odds that one of the open canaries is present, given what their sum shows."""
    count = np.arange(width + 1.0)
    total = np.maximum(open_canaries, 1)[:, None].astype(np.float64)
    possible = count <= total
    ways = gammaln(total + 1.0) - gammaln(count + 1.0) - gammaln(np.maximum(total - count, 0) + 1.0)
    log_weight = np.where(possible, ways - 0.5 * (residual[:, None] - step * count) ** 2, -np.inf)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    tiny = np.finfo(np.float64).tiny
    present = np.maximum((weight * count).sum(axis=1), tiny)
    absent = np.maximum((weight * (total - count).clip(0.0)).sum(axis=1), tiny)
    return np.asarray(np.log(present) - np.log(absent))
