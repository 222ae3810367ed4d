"""Auditors that model present and absent scores as a pair of Gaussians.

`GaussianShift` is ours and the default: one noise variance in both worlds, an exact one-sided test
of the shift, and the exact law of the score from shift to epsilon. `GaussianRectangle` and
`GaussianEllipsoid` are the confidence regions of "Let's Ask Gauss", section 4.3, with both
variances free and the least epsilon in the region found and verified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from scipy.special import ndtr

from askgauss import _validate
from askgauss.auditors.base import Auditor
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats import gaussian, score_law
from askgauss.stats.shift import ShiftTest, sampling_variance

__all__ = ["GaussianShift"]

# Without the sampling rate the plain Gaussian shift stands in for the exact law. It never exceeds
# it at deltas up to this one, on a grid over every rate, step count and shift that was tried.
_LARGEST_DELTA_WITHOUT_LAW = 1e-3
# A Gaussian pair that reports more than this many times the exact law's epsilon is not usable.
_PAIR_TOLERANCE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Moments of both groups, and the sampling that made the present ones, where known."""

    present: GroupMoments
    absent: GroupMoments
    steps: int | None = None
    sampling_rate: float | None = None

    @classmethod
    def of(cls, scores: CanaryScores) -> PairEvidence:
        """The evidence in these scores."""
        present, absent = scores.moments()
        metadata = scores.metadata
        return cls(
            present=present,
            absent=absent,
            steps=metadata.steps,
            sampling_rate=metadata.sampling_rate,
        )

    @property
    def law_known(self) -> bool:
        """Whether the exact law of the score is known up to its shift."""
        return self.sampling_rate == 1.0 or None not in (self.steps, self.sampling_rate)

    @property
    def kappa(self) -> float:
        """Variance that Poisson sampling adds, in units of the squared shift."""
        if self.steps is None or self.sampling_rate is None:
            return 0.0
        return sampling_variance(self.steps, self.sampling_rate)

    def test(self) -> ShiftTest:
        """The exact test of the shift."""
        present, absent = self.present, self.absent
        return ShiftTest(
            present=(present.count, present.mean, present.sum_of_squares),
            absent=(absent.count, absent.mean, absent.sum_of_squares),
            kappa=self.kappa,
        )

    def epsilon_of_shift(self, shift: float, delta: float) -> float:
        """Epsilon of the score pair at this shift: the exact law where it is known."""
        if math.isinf(shift):
            return math.inf
        if self.steps is not None and self.sampling_rate not in (None, 1.0):
            assert self.sampling_rate is not None
            return score_law.subsampled_shift_epsilon(
                delta, shift, steps=self.steps, sampling_rate=self.sampling_rate
            )
        return gaussian.gdp_epsilon(delta, shift)

    def shift_of_epsilon(self, epsilon: float, delta: float) -> float:
        """The shift at which the score pair has this epsilon."""
        if self.steps is not None and self.sampling_rate not in (None, 1.0):
            assert self.sampling_rate is not None
            return score_law.subsampled_shift(
                epsilon, delta, steps=self.steps, sampling_rate=self.sampling_rate
            )
        return gaussian.gdp_mu(epsilon, delta)

    def shift_of_mechanism(self, epsilon: float, delta: float) -> float:
        """Shift of the score when the whole *mechanism* has this epsilon (central limit).

        The sum of the steps carries less than the steps do; the less noise, the less of it.
        """
        mu = gaussian.gdp_mu(epsilon, delta)
        if self.steps is None or self.sampling_rate in (None, 1.0):
            return mu
        assert self.sampling_rate is not None
        scale = self.sampling_rate**2 * self.steps
        return math.sqrt(scale * math.log1p(mu**2 / scale))


def _constant_scores(evidence: PairEvidence) -> tuple[Finding, ...]:
    if evidence.absent.sum_of_squares > 0.0:
        return ()
    above = evidence.present.mean > evidence.absent.mean
    return (
        Finding(
            check="noise",
            status=Status.FAIL,
            summary=(
                f"all {evidence.absent.count:,} absent scores are the same number"
                + (
                    ", and present ones lie above it: without noise the leak is unbounded."
                    if above
                    else ", so nothing can be measured against them."
                )
            ),
            consequence=Consequence.BREACH if above else Consequence.INVALIDATES,
            measured=0.0,
            remedy="Check that noise is added, and that the scores are read after it.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianShift(Auditor[PairEvidence]):
    """Exact one-sided bound on the shift of Gaussian scores; reads scores only.

    Assumes:
        Scores are independent and Gaussian with one noise variance in both groups; with Poisson
        sampling at a known rate over known steps, present ones follow the exact law of the
        subsampled sum.

    Guarantee:
        ``epsilon_lower`` exceeds the epsilon of the score pair, and so that of the mechanism, in
        at most 1 - confidence of audits, at any number of canaries.

    Example:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 500), absent=rng.normal(0, 1, 500))
        >>> round(ag.audit(scores, delta=1e-5, auditor=GaussianShift()).epsilon_lower, 2) < 4.38
        True
    """

    assumption: ClassVar[Assumption] = Assumption.GAUSSIAN_SCORES
    evidence_type: ClassVar[type] = PairEvidence

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> PairEvidence:
        """Moments of both groups."""
        return PairEvidence.of(data)

    def epsilon_lower(self, evidence: PairEvidence, *, delta: float, confidence: float) -> float:
        """The exact lower bound."""
        self._check_delta(evidence, delta)
        return evidence.epsilon_of_shift(evidence.test().lower(1.0 - confidence), delta)

    def epsilon_point(self, evidence: PairEvidence, *, delta: float) -> float:
        """The median-unbiased estimate: as likely above the truth as below."""
        return self.epsilon_lower(evidence, delta=delta, confidence=0.5)

    def p_value(self, evidence: PairEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "epsilon of the score pair is at most this"."""
        self._check_delta(evidence, delta)
        return evidence.test().p_value(evidence.shift_of_epsilon(epsilon, delta))

    def power(
        self,
        evidence: PairEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power against a mechanism whose true epsilon is ``true_epsilon``."""
        return evidence.test().power(
            shift=evidence.shift_of_epsilon(epsilon, delta),
            true_shift=evidence.shift_of_mechanism(true_epsilon, delta),
            error=error,
        )

    def findings(
        self, evidence: PairEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Whether there is any noise to measure against."""
        return _constant_scores(evidence)

    @staticmethod
    def _check_delta(evidence: PairEvidence, delta: float) -> None:
        if not evidence.law_known and delta > _LARGEST_DELTA_WITHOUT_LAW:
            raise InvalidArgumentError(
                f"Expected delta <= {_LARGEST_DELTA_WITHOUT_LAW:g} where the sampling rate or the "
                f"number of steps is unknown, got {delta!r}. Give the scores steps= and "
                "sampling_rate= (1.0 if a present canary is in every step)."
            )
