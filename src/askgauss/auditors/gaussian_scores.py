"""`GaussianShift`, the default: inserted and held-out scores as Gaussians of one noise variance.

An exact one-sided test of the shift, and the exact distribution of the score from shift to epsilon.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from askgauss.auditors.auditor import (
    Auditor,
    ScoreEvidence,
    epsilon_of_scores,
    shift_of_mechanism,
)
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling.scheme import replaced_sum_epsilon
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats import gaussian
from askgauss.stats.limits import level_bracket
from askgauss.stats.sampled_sum import StepWeights
from askgauss.stats.score_law import subsampled_shift, subsampled_shift_epsilon
from askgauss.stats.shift import (
    SampledShiftTest,
    ShiftTest,
    SlopeTest,
    least_noticed,
    pooling_excess,
    sampling_variance,
)

__all__ = ["GaussianShift", "PairEvidence", "constant_scores"]

# Without the sampling rate the plain Gaussian shift stands in for the exact distribution. It never
# exceeds it at deltas up to this one, on a grid over every rate, step count and shift that was
# tried.
_LARGEST_DELTA_WITHOUT_LAW = 1e-3
# From so many expected inclusions of all present canaries on, their mean is Gaussian enough: what
# is left of the skewness of their number adds at most a fifth to an error of .0005.
_ENOUGH_INCLUSIONS = 1000
# Variance that the pooled statistic may have beyond what the test takes it for: an error of .0005
# becomes .00053.
_MOST_EXCESS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence(ScoreEvidence):
    """Moments of both groups, and what is known of how presence moves a score.

    Attributes:
        present: Moments of the present scores.
        absent: Moments of the absent scores.
        slope: The fit against the canaries' relative shifts, where those differ.
        weighted: How much each sampled step counts in a score, where they count differently.
        tied: Whether absent scores are all one number that some present score does not exceed.
        replaced: Whether neighbours have a record's opposite in its place.
    """

    present: GroupMoments
    absent: GroupMoments
    slope: SlopeTest | None = None
    weighted: StepWeights | None = None
    tied: bool = False
    replaced: bool = False

    @classmethod
    def of(cls, scores: CanaryScores) -> PairEvidence:
        """The evidence in these scores."""
        present, absent = scores.moments()
        metadata, relative = scores.metadata, scores.relative_shift
        slope = None
        if relative is not None:
            if metadata.sampling_rate not in (None, 1.0):
                raise UnsupportedError(
                    "Expected relative_shift only where a present canary is in every step it could "
                    f"be in, got sampling_rate={metadata.sampling_rate!r}."
                )
            slope = SlopeTest.fit(np.where(scores.member, relative, 0.0), scores.score)
        return cls(
            present=present,
            absent=absent,
            slope=slope,
            weighted=metadata.weighted,
            tied=absent.sum_of_squares == 0.0 and bool(scores.present.min() <= scores.absent.max()),
            **ScoreEvidence.facts(scores),
        )

    @classmethod
    def planned(
        cls, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> PairEvidence:
        """Evidence of so many canaries before a run, as far as power depends on it: counts."""
        return cls(
            present=GroupMoments(count=present, mean=1.0, sum_of_squares=float(present)),
            absent=GroupMoments(count=absent, mean=0.0, sum_of_squares=float(absent)),
            steps=steps,
            sampling_rate=sampling_rate,
        )

    @property
    def law_known(self) -> bool:
        """Whether the exact law of the score is known up to its shift."""
        if self.weighted is not None:
            return True
        return self.sampling_rate == 1.0 or None not in (self.steps, self.sampling_rate)

    @property
    def kappa(self) -> float:
        """Variance that Poisson sampling adds, in units of the squared shift."""
        if self.weighted is not None:
            return sampling_variance(self.weighted.effective_steps, self.weighted.sampling_rate)
        if self.steps is None or self.sampling_rate is None:
            return 0.0
        return sampling_variance(self.steps, self.sampling_rate)

    def test(self) -> ShiftTest | SampledShiftTest | SlopeTest:
        """The test of the shift; which one depends on nothing that was observed."""
        if self.slope is not None:
            return self.slope
        present, absent, steps, rate = self.present, self.absent, self.steps, self.sampling_rate
        if self.weighted is not None:
            # As few equal steps, which are at least as uneven.
            steps = max(1, math.floor(self.weighted.effective_steps))
            rate = self.weighted.sampling_rate
        pooled = True
        if steps is not None and rate is not None and rate < 1.0:
            included = present.count * steps * rate
            excess = pooling_excess(present.count, absent.count, steps=steps, sampling_rate=rate)
            pooled = included >= _ENOUGH_INCLUSIONS and excess <= _MOST_EXCESS
            left_out = present.count * steps - included
            if not pooled and min(included, left_out) < _ENOUGH_INCLUSIONS:
                return SampledShiftTest(
                    present=(present.count, present.mean),
                    absent=(absent.count, absent.mean, absent.sum_of_squares),
                    steps=steps,
                    sampling_rate=rate,
                )
        return ShiftTest(
            present=(present.count, present.mean, present.sum_of_squares),
            absent=(absent.count, absent.mean, absent.sum_of_squares),
            kappa=self.kappa,
            pooled=pooled,
        )

    def epsilon_of_shift(self, shift: float, delta: float) -> float:
        """Epsilon of the score pair at this shift: the exact law where it is known."""
        if math.isinf(shift):
            return math.inf
        if self.weighted is not None:
            return self.weighted.epsilon(shift, delta)
        if self.steps is not None and self.sampling_rate not in (None, 1.0):
            assert self.sampling_rate is not None
            if self.replaced:
                signal = shift / (self.sampling_rate * math.sqrt(self.steps))
                return replaced_sum_epsilon(signal, self.sampling_rate, self.steps, delta)
            return subsampled_shift_epsilon(
                delta, shift, steps=self.steps, sampling_rate=self.sampling_rate
            )
        return gaussian.gdp_epsilon(delta, (2.0 if self.replaced else 1.0) * shift)

    def shift_of_epsilon(self, epsilon: float, delta: float) -> float:
        """The shift at which the score pair has this epsilon."""
        if self.weighted is not None:
            return self.weighted.shift(epsilon, delta)
        if self.steps is not None and self.sampling_rate not in (None, 1.0):
            assert self.sampling_rate is not None
            if self.replaced:
                start = 0.5 * gaussian.gdp_mu(epsilon, delta)
                leak = functools.partial(self.epsilon_of_shift, delta=delta)
                return level_bracket(leak, epsilon, start)[1]
            return subsampled_shift(
                epsilon, delta, steps=self.steps, sampling_rate=self.sampling_rate
            )
        return gaussian.gdp_mu(epsilon, delta) / (2.0 if self.replaced else 1.0)


def _carried(evidence: PairEvidence) -> tuple[Finding, ...]:
    """That power takes a score for all there is to see, where nothing says how much it is."""
    whole = evidence.law_known and evidence.slope is None
    if whole or evidence.carried_shift is not None:
        return ()
    return (
        Finding(
            check="what scores carry",
            status=Status.INFO,
            summary=(
                "not stated, so power counts on scores that show all the mechanism leaks; where "
                "they show less, it is lower. The bound does not depend on it."
            ),
            remedy=(
                "Give the scores steps= and sampling_rate=, or carried_shift= in their metadata."
            ),
        ),
    )


def constant_scores(evidence: PairEvidence) -> tuple[Finding, ...]:
    """That held-out scores do not vary: a leak without bound, or scores of few values."""
    if evidence.absent.sum_of_squares > 0.0:
        return ()
    above = not evidence.tied
    return (
        Finding(
            check="noise",
            status=Status.FAIL,
            summary=(
                f"all {evidence.absent.count:,} absent scores are the same number"
                + (
                    ", and present ones lie above it: without noise the leak is unbounded."
                    if above
                    else ", and present ones do not all lie above it: no noise is measured, and "
                    "scores of few values are not Gaussian."
                )
            ),
            consequence=Consequence.BREACH if above else Consequence.INVALIDATES,
            measured=0.0,
            remedy=(
                "Check that noise is added, and that the scores are read after it."
                if above
                else "Check how scores are made; OneRun() needs no law of them."
            ),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianShift(Auditor[PairEvidence]):
    """Exact one-sided bound on the shift of Gaussian scores; reads scores only.

    Assumes:
        Scores are independent and Gaussian with one noise variance in both groups; with Poisson
        sampling at a known rate over known steps, present ones follow the exact law of the
        subsampled sum. Where the rate or the steps are unknown, that a present canary is sampled
        at all with a probability of at least three deltas. With ``replaced``, that a record's
        opposite moves its score as far the other way.

    Guarantee:
        ``epsilon_lower`` exceeds the epsilon of the score pair, and so that of the mechanism, in
        at most 1 - confidence of audits, at any number of canaries. With sampling and a thousand or
        more inclusions of all present canaries together, their mean is taken for Gaussian, and
        their variance for one of Gaussian scores where that adds no more than 1 % to the
        statistic's; at the gate's error the two may add a fifth to it.

    Args:
        replaced: Bound the epsilon of replace-one neighbours, whose scores are twice as far apart.
            Needs the steps and the sampling rate of the scores.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> rng = np.random.default_rng(0)
        >>> scores = ag.CanaryScores.from_groups(
        ...     present=rng.normal(1, 1, 500), absent=rng.normal(0, 1, 500))
        >>> round(ag.audit(scores, delta=1e-5, auditor=GaussianShift()).epsilon_lower, 2) < 4.38
        True
    """

    assumption: ClassVar[Assumption] = Assumption.GAUSSIAN_SCORES
    evidence_type: ClassVar[type] = PairEvidence
    scales: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    replaced: bool = False

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> PairEvidence:
        """Moments of both groups."""
        evidence = PairEvidence.of(data)
        if self.replaced and not evidence.law_known:
            raise UnsupportedError(
                "Expected scores whose steps and sampling_rate are known, got neither: without "
                "them no law of a replaced record is at hand. Give the scores steps= and "
                "sampling_rate= (1.0 if a present canary is in every step)."
            )
        return replace(evidence, replaced=self.replaced)

    def epsilon_lower(self, evidence: PairEvidence, *, delta: float, confidence: float) -> float:
        """The exact lower bound."""
        self._check_delta(evidence, delta)
        if evidence.tied:
            return 0.0
        return evidence.epsilon_of_shift(evidence.test().lower(1.0 - confidence), delta)

    def epsilon_point(self, evidence: PairEvidence, *, delta: float) -> float:
        """The median-unbiased estimate: as likely above the truth as below."""
        return self.epsilon_lower(evidence, delta=delta, confidence=0.5)

    def p_value(self, evidence: PairEvidence, *, epsilon: float, delta: float) -> float:
        """The p-value of "epsilon of the score pair is at most this"."""
        self._check_delta(evidence, delta)
        if evidence.tied:
            return 1.0
        return evidence.test().p_value(evidence.shift_of_epsilon(epsilon, delta))

    def rejects(
        self, evidence: PairEvidence, *, epsilon: float, delta: float, error: float
    ) -> bool:
        """Whether the p-value is below the error: the same as the bound, without searching it."""
        return self.p_value(evidence, epsilon=epsilon, delta=delta) < error

    def power(
        self,
        evidence: PairEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power against a mechanism whose true epsilon is ``true_epsilon``.

        How much of that a score carries follows from the steps and the sampling rate, or is stated
        (``carried_shift``); else it is taken for all of it, and a finding says so.
        """
        return evidence.test().power(
            shift=evidence.shift_of_epsilon(epsilon, delta),
            true_shift=shift_of_mechanism(
                evidence, true_epsilon, delta, replaced=evidence.replaced
            ),
            error=error,
        )

    def smallest_leak(
        self, evidence: PairEvidence, *, epsilon: float, delta: float, error: float, power: float
    ) -> float:
        """The smallest epsilon of a mechanism that is noticed with this power."""
        claimed = evidence.shift_of_epsilon(epsilon, delta)
        shift = least_noticed(evidence.test(), shift=claimed, error=error, power=power)
        if math.isinf(shift):
            return math.inf
        return epsilon_of_scores(evidence, shift, delta, replaced=evidence.replaced)

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> PairEvidence:
        """Counts of such an audit."""
        return PairEvidence.planned(
            present=present, absent=absent, steps=steps, sampling_rate=sampling_rate
        )

    def findings(
        self, evidence: PairEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Whether there is any noise to measure against, and what power takes for granted."""
        return constant_scores(evidence) + _carried(evidence)

    @staticmethod
    def _check_delta(evidence: PairEvidence, delta: float) -> None:
        if not evidence.law_known and delta > _LARGEST_DELTA_WITHOUT_LAW:
            raise InvalidArgumentError(
                f"Expected delta <= {_LARGEST_DELTA_WITHOUT_LAW:g} where the sampling rate or the "
                f"number of steps is unknown, got {delta!r}. Give the scores steps= and "
                "sampling_rate= (1.0 if a present canary is in every step)."
            )
