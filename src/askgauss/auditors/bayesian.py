"""Zanella-Béguelin et al. 2023: the posterior of epsilon, by counts (arXiv 2206.05199)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss.auditors.clopper_pearson import epsilon_of_rates
from askgauss.auditors.confusion import ConfusionAuditor, ConfusionEvidence, ConfusionMatrix
from askgauss.exceptions import NotDefinedError, UnsupportedError
from askgauss.results import Assumption
from askgauss.selection import DKW
from askgauss.stats import confusion
from askgauss.stats.confusion import bayesian_epsilon as epsilon_from_counts
from askgauss.stats.tradeoff import TradeOff

__all__ = ["Bayesian", "epsilon_from_counts"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bayesian(ConfusionAuditor):
    """A lower quantile of the posterior of epsilon, with Jeffreys priors of both error rates.

    Assumes:
        The scores of different canaries are independent; nothing about the mechanism.

    Guarantee:
        A credible bound, not a confidence bound: close to one with many canaries, and somewhat too
        high where mistakes are very few. There are no p-values.

    Args:
        selection: How the threshold is chosen; not `DKW`, which has no posterior.

    Example:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 2500), absent=rng.normal(0, 1, 2500))
        >>> 1.0 < ag.audit(scores, delta=1e-5, auditor=Bayesian()).epsilon_lower < 4.38
        True
    """

    assumption: ClassVar[Assumption] = Assumption.INDEPENDENT_CANARIES

    def __post_init__(self) -> None:
        ConfusionAuditor.__post_init__(self)
        if isinstance(self.selection, DKW):
            raise UnsupportedError(
                "Bayesian has one posterior for each threshold and no band over all of them. Use "
                "Split(), CrossFit(), UnionBound() or Fixed(threshold=...)."
            )

    def epsilon_lower(
        self, evidence: ConfusionEvidence, *, delta: float, confidence: float
    ) -> float:
        """The lower credible bound on epsilon."""
        share = evidence.combination.share(1.0 - confidence, len(evidence.trials))
        return self._quantile(evidence, delta, share)

    def epsilon_point(self, evidence: ConfusionEvidence, *, delta: float) -> float:
        """The posterior median."""
        return self._quantile(evidence, delta, 0.5)

    def _quantile(self, evidence: ConfusionEvidence, delta: float, probability: float) -> float:
        bounds = {
            trial: epsilon_from_counts(**trial.counts, delta=delta, confidence=1.0 - probability)
            for trial in dict.fromkeys(evidence.trials)
        }
        return evidence.combination.largest([bounds[trial] for trial in evidence.trials])

    def p_value(self, evidence: ConfusionEvidence, *, epsilon: float, delta: float) -> float:
        """There are none."""
        raise NotDefinedError(
            "Bayesian does not define p-values: a posterior is not one. Use ClopperPearson()."
        )

    def _promise(self, positive: Array, negative: Array, delta: float) -> Array:
        return epsilon_of_rates(positive, negative, delta)

    def _curve(self, evidence: ConfusionEvidence, epsilon: float, delta: float) -> TradeOff:
        return TradeOff.epsilon_delta(epsilon, delta)

    def _test(
        self, evidence: ConfusionEvidence, epsilon: float, delta: float, error: float
    ) -> Callable[[ConfusionMatrix], bool]:
        def rejects(trial: ConfusionMatrix) -> bool:
            credence = confusion.bayesian_probability(**trial.counts, epsilon=epsilon, delta=delta)
            return credence < error

        return rejects
