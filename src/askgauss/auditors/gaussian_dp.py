"""Nasr et al. 2023: one confident point pins a Gaussian trade-off curve (arXiv 2302.07956)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from askgauss import _validate
from askgauss.auditors.families import SampledRun, sampling_findings
from askgauss.auditors.thresholding import ConfusionAuditor, ConfusionEvidence
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Assumption, Finding
from askgauss.selection import Combination
from askgauss.stats import gaussian
from askgauss.stats.ranked_rates import strongest_contradicted
from askgauss.stats.tradeoff import TradeOff

__all__ = ["GaussianDP"]

Array = NDArray[np.float64]


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
        if evidence.combination is Combination.RANKS:
            return self._ranked_bound(evidence, delta, 1.0 - confidence)
        points = evidence.limits(1.0 - confidence)
        rates = np.array(points)
        distances = self._promise(rates[:, 0], rates[:, 1], delta)
        mu = max(0.0, evidence.combination.largest(distances.tolist()))
        run = self._run
        if run is None or mu == 0.0:
            return gaussian.gdp_epsilon(delta, mu)

        def margin(curve: TradeOff) -> float:
            margins = [curve.beta_at(positive) - negative for positive, negative in points]
            return evidence.combination.largest(margins)

        return run.epsilon(run.strongest(margin, mu), delta)

    def _ranked_bound(self, evidence: ConfusionEvidence, delta: float, error: float) -> float:
        """The strongest curve that thresholds at stated ranks contradict."""
        rates = self._rates(evidence)
        if rates is None:
            return 0.0
        share = evidence.share(error)
        mu = strongest_contradicted(
            rates,
            lambda mu: lambda rate: np.asarray(ndtr(-ndtri(rate) - mu)),
            lambda positive, negative: self._promise(positive, negative, delta),
            share,
        )
        run = self._run
        if run is None or mu <= 0.0:
            return gaussian.gdp_epsilon(delta, max(mu, 0.0))

        def margin(curve: TradeOff) -> float:
            return share - float(rates.p_values(curve.beta_at).min())

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
