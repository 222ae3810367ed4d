"""Exact limits of both error rates (Jagielski et al. 2006.07709, Nasr et al. 2101.04535)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from askgauss.auditors.thresholding import ConfusionAuditor, ConfusionEvidence
from askgauss.results import Assumption
from askgauss.selection import Combination

__all__ = ["ClopperPearson"]


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
        if evidence.combination is Combination.RANKS:
            return self._ranked_epsilon(evidence, delta, 1.0 - confidence)
        rates = np.array(evidence.limits(1.0 - confidence))
        bounds = self._promise(rates[:, 0], rates[:, 1], delta)
        return max(0.0, evidence.combination.largest(bounds.tolist()))

    def ceiling(self, evidence: ConfusionEvidence, *, delta: float, confidence: float) -> float:
        """The bound had every canary fallen on its side of the threshold."""
        if evidence.combination is not Combination.RANKS:
            return ConfusionAuditor.ceiling(self, evidence, delta=delta, confidence=confidence)
        # Without a mistake both rates are above a with probability (1 - a)^canaries, and the curve
        # of log((1 - delta) / a) is then not contradicted.
        share = evidence.share(1.0 - confidence)
        canaries = evidence.trials[0].present + evidence.trials[0].absent
        rate = -math.expm1(math.log(share) / canaries)
        return max(0.0, math.log((1.0 - delta) / rate))
