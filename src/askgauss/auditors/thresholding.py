"""Auditors that read a confusion matrix: how a threshold is chosen, and three ways to a bound.

- `ClopperPearson`: exact limits of both error rates (Jagielski et al. 2006.07709, Nasr et al.
  2101.04535).
- `GaussianDP`: one confident point pins a Gaussian trade-off curve (Nasr et al. 2302.07956).
- `Bayesian`: the posterior of epsilon (Zanella-Béguelin et al. 2206.05199).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, betaincc, betainccinv, betaincinv, lambertw, ndtr, ndtri

from askgauss import _validate
from askgauss.auditors.auditor import Auditor, ScoreEvidence, ScorePair, pair_of_mechanism
from askgauss.auditors.one_run_fdp import SampledRun, sampling_findings
from askgauss.exceptions import (
    InvalidArgumentError,
    NotDefinedError,
    ScoresError,
    UnsupportedError,
)
from askgauss.results import Assumption, Finding, Status
from askgauss.scores import CanaryScores
from askgauss.selection import Fixed, Ranks, Selection, fingerprint, random_order
from askgauss.stats import error_rates, gaussian
from askgauss.stats.error_rates import (
    ConfusionMatrix,
    Curve,
    RankedRates,
    bayesian_epsilon,
    bayesian_probability,
    beta_nodes,
    strongest_contradicted,
)
from askgauss.stats.limits import largest_rejected
from askgauss.stats.tradeoff import TradeOff

__all__ = ["Bayesian", "ClopperPearson", "ConfusionAuditor", "ConfusionEvidence", "GaussianDP"]

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
# Equally likely false negative rates that a posterior is averaged over, and what of it is nothing.
_POSTERIOR_NODES = (np.arange(200) + 0.5) / 200
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionEvidence(ScoreEvidence):
    """Confusion matrices: of one threshold, or of each at a stated rank."""

    trials: tuple[ConfusionMatrix, ...]

    @property
    def ranked(self) -> bool:
        """Whether thresholds are scores at stated ranks, of which there are always several."""
        return len(self.trials) > 1

    def share(self, error: float) -> float:
        """The error at which each threshold is read; the best counts."""
        return error / len(self.trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionAuditor(Auditor[ConfusionEvidence]):
    """Counts on which side of a threshold inserted and held-out canaries fall.

    Args:
        selection: How the threshold is chosen.
    """

    evidence_type: ClassVar[type] = ConfusionEvidence

    selection: Selection = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        selection = self.selection
        if not isinstance(selection, Selection):
            raise InvalidArgumentError(
                f"Expected selection to be Ranks, Fixed or Split, got {selection!r}."
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
        trials = self._trials(data, delta, 1.0 - confidence)
        return ConfusionEvidence(trials=trials, **ScoreEvidence.facts(data))

    def _trials(
        self, data: CanaryScores, delta: float, error: float
    ) -> tuple[ConfusionMatrix, ...]:
        selection = self.selection
        if isinstance(selection, Fixed):
            assert selection.threshold is not None
            return (_matrix(data.score, data.member, selection.threshold),)
        order = random_order(data.score, selection)
        score, member = data.score[order], data.member[order]
        if isinstance(selection, Ranks):
            return _at_ranks(member)
        # Of either group its share, so that a part is never left without one of them.
        entropy = fingerprint(data.score, data.member)
        chosen = np.zeros(score.size, dtype=np.bool_)
        for index, group in enumerate((member, ~member)):
            chosen[group] = selection.part(int(np.count_nonzero(group)), entropy + index)
        rest = ~chosen
        size = int(np.count_nonzero(rest))
        cut = self._choose(score[chosen], member[chosen], size, delta, error)
        return (_matrix(score[rest], member[rest], cut),)

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

    def _limits(self, evidence: ConfusionEvidence, error: float) -> tuple[float, float]:
        """Upper limits of the false positive and the false negative rate, that hold together."""
        return evidence.trials[0].rate_limits(confidence=1.0 - error)

    def p_value(self, evidence: ConfusionEvidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the error rates contradict the claim."""
        curve = self._curve(epsilon, delta).beta_at
        if not evidence.ranked:
            return error_rates.p_value(curve, evidence.trials[0])
        rates = self._rates(evidence.trials)
        values = [1.0] if rates is None else rates.p_values(curve).tolist()
        return min(1.0, len(evidence.trials) * min(values))

    def rejects(
        self, evidence: ConfusionEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the trials contradict ``epsilon``; faster than searching the bound."""
        if evidence.ranked:
            return self.p_value(evidence, epsilon=epsilon, delta=delta) < error
        positive, negative = self._limits(evidence, error)
        return negative < self._curve(epsilon, delta).beta_at(positive)

    def ceiling(self, evidence: ConfusionEvidence, *, delta: float, confidence: float) -> float:
        """The bound had every canary fallen on its side of the threshold."""
        perfect = evidence.trials[0].perfect()
        if evidence.ranked:
            # At the first rank all others are outdone; as many shares of the error stay.
            return self._ranked_bound((perfect,), delta, evidence.share(1.0 - confidence))
        return self.epsilon_lower(
            replace(evidence, trials=(perfect,)), delta=delta, confidence=confidence
        )

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

        From the exact distributions of both mistakes.
        """
        pair = pair_of_mechanism(evidence, true_epsilon, delta)
        if evidence.ranked:
            curve = self._curve(epsilon, delta).beta_at
            return _ranked_power(evidence.trials, pair, curve, evidence.share(error))
        trial = evidence.trials[0]
        rate = (trial.false_positive + 0.5) / (trial.absent + 1.0)
        false = np.clip(np.ceil(bdtrik(_NODES, trial.absent, rate)), 0, trial.absent)
        most = self._most_missed(trial, false.astype(np.int64), epsilon, delta, error)
        missed = float(pair.present_below(-ndtri(rate)))
        found = bdtr(np.clip(most, 0, trial.present - 1), trial.present, missed)
        found = np.where(most < 0, 0.0, np.where(most >= trial.present, 1.0, found))
        return float(found.mean())

    def _ranked_bound(self, trials: Sequence[ConfusionMatrix], delta: float, share: float) -> float:
        """The largest epsilon whose curve thresholds at stated ranks contradict at this error."""
        rates = self._rates(trials)
        if rates is None:
            return 0.0
        found = strongest_contradicted(
            rates,
            lambda epsilon: _epsilon_delta(epsilon, delta),
            lambda positive, negative: _epsilon_of_rates(positive, negative, delta),
            share,
        )
        return max(0.0, found)

    def _rates(self, trials: Sequence[ConfusionMatrix]) -> RankedRates | None:
        """Both rates of the thresholds at stated ranks; None where none says anything."""
        told = [trial for trial in trials if trial.telling]
        if not told:
            return None
        return RankedRates.of(
            [(trial.false_positive + 1.0, trial.true_negative) for trial in told],
            [(trial.false_negative + 1.0, trial.true_positive) for trial in told],
        )

    def _most_missed(
        self,
        trial: ConfusionMatrix,
        false: Integers,
        epsilon: float,
        delta: float,
        error: float,
    ) -> Integers:
        """The most false negatives that contradict the claim, beside so many false positives.

        Below 0 where not even none do.
        """
        present, absent = trial.present, trial.absent
        some = np.maximum(absent - false, 1)
        positive = np.where(false < absent, betainccinv(false + 1.0, some, 0.5 * error), 1.0)
        least = np.clip(self._curve(epsilon, delta).beta_at(positive), 0.0, 1.0)
        # The limit after m of them is below the curve just where at most m are that improbable.
        low, high = np.full(false.size, -1), np.full(false.size, present)
        while (high - low > 1).any():
            middle = np.minimum((low + high) // 2, present - 1).clip(0)
            contradicts = bdtr(middle, present, least) < 0.5 * error
            low, high = np.where(contradicts, middle, low), np.where(contradicts, high, middle)
        return np.asarray(low, dtype=np.int64)

    def findings(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """The confusion matrix."""
        first, count = evidence.trials[0], len(evidence.trials)
        parts = "" if count == 1 else f" at the first of {count} thresholds"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClopperPearson(ConfusionAuditor):
    """The epsilon that confident limits of both error rates contradict.

    Assumes:
        The scores of different canaries are independent, as those of separate runs are; nothing
        about the mechanism or the law of the scores.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits. It
        can never be more than about the logarithm of the number of canaries.

    Args:
        selection: As for `ConfusionAuditor`.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 1.0 < ag.audit(scores, delta=1e-5, auditor=ClopperPearson()).epsilon_lower < 4.38
        True
    """

    pure: ClassVar[bool] = True
    assumption: ClassVar[Assumption] = Assumption.INDEPENDENT_CANARIES

    def epsilon_lower(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> float:
        """The lower bound on epsilon."""
        error = 1.0 - confidence
        if evidence.ranked:
            return self._ranked_bound(evidence.trials, delta, evidence.share(error))
        rates = np.array([self._limits(evidence, error)])
        return max(0.0, float(self._promise(rates[:, 0], rates[:, 1], delta)[0]))

    def ceiling(self, evidence: ConfusionEvidence, *, delta: float, confidence: float) -> float:
        """The bound had every canary fallen on its side of the threshold."""
        if not evidence.ranked:
            return ConfusionAuditor.ceiling(self, evidence, delta=delta, confidence=confidence)
        # Without a mistake both rates are above a with probability (1 - a)^canaries, and the curve
        # of log((1 - delta) / a) is then not contradicted.
        share = evidence.share(1.0 - confidence)
        canaries = evidence.trials[0].present + evidence.trials[0].absent
        rate = -math.expm1(math.log(share) / canaries)
        return max(0.0, math.log((1.0 - delta) / rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianDP(ConfusionAuditor):
    """The strongest Gaussian trade-off curve that confident limits of both error rates contradict.

    Assumes:
        The scores of different canaries are independent, and the run's trade-off curve is that of a
        Gaussian mechanism; with ``sampling_rate`` and ``steps`` that of DP-SGD with those.

    Guarantee:
        ``epsilon_lower`` exceeds the mechanism's epsilon in at most 1 - confidence of audits, if
        its curve is of that kind. Guesses worse than chance give 0.

    Args:
        selection: As for `ConfusionAuditor`.
        sampling_rate: Sampling rate of the run; None to take it for one Gaussian mechanism.
        steps: Number of steps of the run; given together with ``sampling_rate``.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 2.5 < ag.audit(scores, delta=1e-5, auditor=GaussianDP()).epsilon_lower < 4.38
        True
    """

    sampling_rate: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        ConfusionAuditor.__post_init__(self)
        if (self.sampling_rate is None) != (self.steps is None):
            raise InvalidArgumentError(
                f"Expected sampling_rate and steps together, got {self.sampling_rate!r} and "
                f"{self.steps!r}. Give both, or neither for one Gaussian mechanism."
            )
        if self.sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=self.sampling_rate)
            _validate.integer(1, steps=self.steps)

    @property
    def assumption(self) -> Assumption:  # type: ignore[override]
        """What the curve takes for granted."""
        if self.steps is None:
            return Assumption.INDEPENDENT_FAMILY
        return Assumption.INDEPENDENT_SAMPLED_FAMILY

    @property
    def _run(self) -> SampledRun | None:
        if self.sampling_rate is None or self.steps is None:
            return None
        return SampledRun(sampling_rate=self.sampling_rate, steps=self.steps)

    def epsilon_lower(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> float:
        """The lower bound on epsilon."""
        _validate.probability(delta=delta, hint="A Gaussian mechanism has no epsilon at delta 0.")
        error = 1.0 - confidence
        if evidence.ranked:
            return self._ranked_bound(evidence.trials, delta, evidence.share(error))
        positive, negative = self._limits(evidence, error)
        distance = self._promise(np.array([positive]), np.array([negative]), delta)
        mu = max(0.0, float(distance[0]))
        return self._epsilon(mu, lambda curve: curve.beta_at(positive) - negative, delta)

    def _ranked_bound(self, trials: Sequence[ConfusionMatrix], delta: float, share: float) -> float:
        rates = self._rates(trials)
        if rates is None:
            return 0.0
        mu = strongest_contradicted(
            rates,
            lambda mu: lambda rate: np.asarray(ndtr(-ndtri(rate) - mu)),
            lambda positive, negative: self._promise(positive, negative, delta),
            share,
        )
        return self._epsilon(
            max(mu, 0.0), lambda curve: share - float(rates.p_values(curve.beta_at).min()), delta
        )

    def _epsilon(self, mu: float, margin: Callable[[TradeOff], float], delta: float) -> float:
        """Epsilon of the strongest curve that is contradicted, looked for near a Gaussian one."""
        run = self._run
        if run is None or mu == 0.0:
            return gaussian.gdp_epsilon(delta, mu)
        return run.epsilon(run.strongest(margin, mu), delta)

    def findings(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """The confusion matrix, and whether the sampling allows it."""
        found = ConfusionAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        if self.sampling_rate is None:
            return found
        bound = self.epsilon_lower(evidence, delta=delta, confidence=confidence)
        return found + sampling_findings(bound, self.sampling_rate)

    def _promise(self, positive: Array, negative: Array, delta: float) -> Array:
        return np.asarray(-ndtri(positive) - ndtri(negative))

    def _curve(self, epsilon: float, delta: float) -> TradeOff:
        run = self._run
        if run is None:
            return TradeOff.gaussian(gaussian.gdp_mu(epsilon, delta))
        return run.curve(run.signal(epsilon, delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bayesian(ConfusionAuditor):
    """A lower quantile of the posterior of epsilon, with Jeffreys priors of both error rates.

    Assumes:
        The scores of different canaries are independent; nothing about the mechanism.

    Guarantee:
        Close to a confidence bound, not exactly one. As published, the posterior is of the larger
        of two log ratios, and where both are equal its 5 % quantile is above the truth in 20 % of
        audits; guesses worse than chance count as a leak, so that none at all has a bound above 0.
        The auditor therefore reads the quantile at which the larger of two is right often enough,
        and counts worse guesses as no leak; enumerated for randomised response, that was above the
        truth in at most 1.4 times the stated share of audits, down to .0005. The bound as published
        is `askgauss.stats.error_rates.bayesian_epsilon`. There are no p-values.

    Args:
        selection: As for `ConfusionAuditor`.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500),
        ...     membership="randomised")
        >>> 1.0 < ag.audit(scores, delta=1e-5, auditor=Bayesian()).epsilon_lower < 4.38
        True
    """

    pure: ClassVar[bool] = True
    assumption: ClassVar[Assumption] = Assumption.INDEPENDENT_CANARIES

    def epsilon_lower(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> float:
        """The lower credible bound on epsilon."""
        error = 1.0 - confidence
        if evidence.ranked:
            return self._ranked_bound(evidence.trials, delta, evidence.share(error))
        return _directed_epsilon(evidence.trials[0], delta, _level(error))

    def epsilon_point(self, evidence: ConfusionEvidence, *, delta: float) -> float:
        """The posterior median; of thresholds at stated ranks, that of the most telling one."""
        if not evidence.ranked:
            return _directed_epsilon(evidence.trials[0], delta, 0.5)
        bounds = [self._ranked_bound((one,), delta, _ONE_SIGMA) for one in evidence.trials]
        return self._ranked_bound((evidence.trials[int(np.argmax(bounds))],), delta, 0.5)

    def _rates(self, trials: Sequence[ConfusionMatrix]) -> RankedRates | None:
        """The exact distribution of the stated rate, and the posterior of the other one."""
        told = [trial for trial in trials if trial.telling]
        if not told:
            return None
        present, absent = told[0].present, told[0].absent
        larger = set(trials[: Ranks.thresholds(max(present, absent)).size])
        positive, negative = [], []
        for trial in told:
            stated = (trial in larger) is (absent >= present)  # the false positives
            first, second = (0.0, 0.5) if stated else (0.5, 0.0)
            positive.append((trial.false_positive + 1.0 - first, trial.true_negative + first))
            negative.append((trial.false_negative + 1.0 - second, trial.true_positive + second))
        return RankedRates.of(positive, negative)

    def rejects(
        self, evidence: ConfusionEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the posterior leaves the claim less than this error."""
        if not evidence.ranked:
            return _credence(evidence.trials[0], epsilon, delta) < _level(error)
        return ConfusionAuditor.p_value(self, evidence, epsilon=epsilon, delta=delta) < error

    def p_value(self, evidence: ConfusionEvidence, *, epsilon: float, delta: float) -> float:
        """There are none."""
        raise NotDefinedError(
            "Bayesian does not define p-values: a posterior is not one. Use ClopperPearson()."
        )

    def findings(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """The confusion matrix, and what a credible bound is worth."""
        return (
            *ConfusionAuditor.findings(self, evidence, delta=delta, confidence=confidence),
            Finding(
                check="credible bound",
                status=Status.INFO,
                summary=(
                    "a quantile of a posterior, above the truth about as often as stated; that it "
                    "is no more often is not proved."
                ),
                remedy="ClopperPearson() has a proof.",
            ),
        )

    def _most_missed(
        self,
        trial: ConfusionMatrix,
        false: Integers,
        epsilon: float,
        delta: float,
        error: float,
    ) -> Integers:
        level = _level(error)

        def most(number: int) -> int:
            low, high = -1, trial.present + 1  # rejected, not rejected
            while high - low > 1:
                middle = (low + high) // 2
                (counted,) = _from_counts([middle], [number], trial.present, trial.absent)
                rejected = _credence(counted, epsilon, delta) < level
                low, high = (middle, high) if rejected else (low, middle)
            return low

        numbers, where = np.unique(false, return_inverse=True)
        return np.array([most(int(number)) for number in numbers], dtype=np.int64)[where]


def _level(error: float) -> float:
    """The credible level that is wrong with probability ``error``.

    The two log ratios have posterior distribution functions that are uniform at the truth, and
    nearly independent. Their product, that of the larger one, is below x with probability
    x (1 - log x).
    """
    return math.exp(1.0 + float(lambertw(-error / math.e, -1).real))


def _directed_epsilon(trial: ConfusionMatrix, delta: float, probability: float) -> float:
    """The quantile of the posterior of epsilon, 0 for guesses worse than chance."""
    if _worse(trial, 0.0, delta) < _NEGLIGIBLE:
        return bayesian_epsilon(trial, delta=delta, confidence=1.0 - probability)
    return largest_rejected(
        lambda epsilon: probability - _credence(trial, epsilon, delta), tolerance=1e-8
    )


def _credence(trial: ConfusionMatrix, epsilon: float, delta: float) -> float:
    """Posterior probability that the guesses are no better than epsilon allows."""
    within = bayesian_probability(trial, epsilon=epsilon, delta=delta)
    return within + _worse(trial, epsilon, delta)


def _worse(trial: ConfusionMatrix, epsilon: float, delta: float) -> float:
    """Posterior probability that the guesses are worse than epsilon allows, turned round."""
    missed = betaincinv(trial.false_negative + 0.5, trial.true_positive + 0.5, _POSTERIOR_NODES)
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)
    caught = 1.0 - missed
    lowest = np.maximum(1.0 - delta - grow * caught, shrink * (1.0 - delta - caught))
    highest = 1.0 - np.clip(lowest, 0.0, 1.0)
    return float(np.mean(betaincc(trial.false_positive + 0.5, trial.true_negative + 0.5, highest)))


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


def _matrix(score: Array, member: Flags, threshold: float) -> ConfusionMatrix:
    """The matrix of a threshold: inserted if the score reaches it."""
    present, absent = _groups(member, "to test a threshold on")
    above = score >= threshold
    missed, false = (int(np.count_nonzero(wrong)) for wrong in (member & ~above, above & ~member))
    return _from_counts([missed], [false], present, absent)[0]


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
