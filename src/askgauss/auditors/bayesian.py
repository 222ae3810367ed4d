"""Zanella-Béguelin et al. 2023: the posterior of epsilon, by counts (arXiv 2206.05199)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincc, betaincinv, lambertw

from askgauss.auditors.thresholding import ConfusionAuditor, ConfusionEvidence
from askgauss.exceptions import NotDefinedError, UnsupportedError
from askgauss.results import Assumption, Finding, Status
from askgauss.selection import DKW, Combination, Ranks
from askgauss.stats.confusion_matrix import (
    ConfusionMatrix,
    bayesian_epsilon,
    bayesian_probability,
)
from askgauss.stats.ranked_rates import RankedRates
from askgauss.stats.search import largest_rejected

__all__ = ["Bayesian"]

Integers = NDArray[np.int64]

_NODES = (np.arange(200) + 0.5) / 200
_NEGLIGIBLE = 1e-9
_ONE_SIGMA = 0.16


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
        is `askgauss.stats.confusion_matrix.bayesian_epsilon`. There are no p-values.

    Args:
        selection: As for `ConfusionAuditor`; not `DKW`, which has no posterior.

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

    def __post_init__(self) -> None:
        ConfusionAuditor.__post_init__(self)
        if isinstance(self.selection, DKW):
            raise UnsupportedError(
                "Bayesian has one posterior for each threshold and no band over all of them. Use "
                "Ranks(), Split(), CrossFit(), UnionBound() or Fixed(threshold=...)."
            )

    def epsilon_lower(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> float:
        """The lower credible bound on epsilon."""
        if evidence.combination is Combination.RANKS:
            return self._ranked_epsilon(evidence, delta, 1.0 - confidence)
        return self._quantile(evidence, delta, _level(evidence.share(1.0 - confidence)))

    def epsilon_point(self, evidence: ConfusionEvidence, *, delta: float) -> float:
        """The posterior median; of thresholds at stated ranks, that of the most telling one."""
        if evidence.combination is Combination.RANKS:
            bounds = [
                self._ranked_epsilon(replace(evidence, trials=(trial,)), delta, _ONE_SIGMA)
                for trial in evidence.trials
            ]
            best = evidence.trials[int(np.argmax(bounds))]
            return self._ranked_epsilon(replace(evidence, trials=(best,)), delta, 0.5)
        return self._quantile(evidence, delta, 0.5)

    def _quantile(self, evidence: ConfusionEvidence, delta: float, probability: float) -> float:
        return evidence.largest(lambda trial: _directed_epsilon(trial, delta, probability))

    def _rates(self, evidence: ConfusionEvidence) -> RankedRates | None:
        """The exact distribution of the stated rate, and the posterior of the other one."""
        trials = [trial for trial in evidence.trials if trial.telling]
        if not trials:
            return None
        larger = set(
            evidence.trials[: Ranks.thresholds(max(trials[0].present, trials[0].absent)).size]
        )
        by_absent = trials[0].absent >= trials[0].present
        positive, negative = [], []
        for trial in trials:
            stated = (trial in larger) is by_absent  # the false positives
            first, second = (0.0, 0.5) if stated else (0.5, 0.0)
            positive.append((trial.false_positive + 1.0 - first, trial.true_negative + first))
            negative.append((trial.false_negative + 1.0 - second, trial.true_positive + second))
        return RankedRates.of(positive, negative)

    def rejects(
        self, evidence: ConfusionEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the posterior leaves the claim less than this error."""
        if evidence.combination is not Combination.RANKS:
            return ConfusionAuditor.rejects(
                self, evidence, epsilon=epsilon, delta=delta, error=error
            )
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
        combination: Combination,
        false: Integers,
        epsilon: float,
        delta: float,
        error: float,
    ) -> Integers:
        rejects = self._test(combination, epsilon, delta, error)
        numbers, where = np.unique(false, return_inverse=True)
        most = [_most(rejects, trial, int(number)) for number in numbers]
        return np.asarray(most, dtype=np.int64)[where]

    def _test(
        self, combination: Combination, epsilon: float, delta: float, error: float
    ) -> Callable[[ConfusionMatrix], bool]:
        def rejects(trial: ConfusionMatrix) -> bool:
            return _credence(trial, epsilon, delta) < _level(error)

        return rejects


def _most(rejects: Callable[[ConfusionMatrix], bool], trial: ConfusionMatrix, false: int) -> int:
    """The most false negatives that are rejected, by bisection; -1 if not even none are."""

    def rejected(missed: int) -> bool:
        return rejects(
            ConfusionMatrix(
                true_positive=trial.present - missed,
                true_negative=trial.absent - false,
                false_positive=false,
                false_negative=missed,
            )
        )

    low, high = -1, trial.present + 1  # rejected, not rejected
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


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
    missed = betaincinv(trial.false_negative + 0.5, trial.true_positive + 0.5, _NODES)
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)
    caught = 1.0 - missed
    lowest = np.maximum(1.0 - delta - grow * caught, shrink * (1.0 - delta - caught))
    highest = 1.0 - np.clip(lowest, 0.0, 1.0)
    return float(np.mean(betaincc(trial.false_positive + 0.5, trial.true_negative + 0.5, highest)))
