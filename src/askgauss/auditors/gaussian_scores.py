"""Auditors that model present and absent scores as a pair of Gaussians.

`GaussianShift` is ours and the default: one noise variance in both worlds, an exact one-sided test
of the shift, and the exact law of the score from shift to epsilon. `GaussianRectangle` and
`GaussianEllipsoid` are the confidence regions of "Let's Ask Gauss", section 4.3, with both
variances free and the least epsilon in the region found and verified.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import ndtr

from askgauss import _validate
from askgauss.auditors.auditor import Auditor, Evidence
from askgauss.auditors.mechanism_shift import epsilon_of_scores, shift_of_mechanism
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling.scheme import replaced_sum_epsilon
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats import gaussian, regions
from askgauss.stats.sampled_sum import StepWeights
from askgauss.stats.search import close_bracket, level_bracket, smallest_error
from askgauss.stats.shift import (
    SampledShiftTest,
    ShiftTest,
    SlopeTest,
    least_noticed,
    pooling_excess,
    sampling_variance,
)
from askgauss.stats.subsampled_shift import subsampled_shift, subsampled_shift_epsilon

__all__ = ["GaussianEllipsoid", "GaussianRectangle", "GaussianShift"]

# Without the sampling rate the plain Gaussian shift stands in for the exact law. It never exceeds
# it at deltas up to this one, on a grid over every rate, step count and shift that was tried.
_LARGEST_DELTA_WITHOUT_LAW = 1e-3
# From so many expected inclusions of all present canaries on, their mean is Gaussian enough: what
# is left of the skewness of their number adds at most a fifth to an error of .0005.
_ENOUGH_INCLUSIONS = 1000
# Variance that the pooled statistic may have beyond what the test takes it for: an error of .0005
# becomes .00053.
_MOST_EXCESS = 0.01
# The error of a region is one minus its confidence, which rounds.
_SMALLEST_REGION_ERROR = 1e-15
# Below so many in a group a bootstrap ellipsoid is too small, most of all far out, at the gate.
_ENOUGH_TO_RESAMPLE = 100
_MOST_RESAMPLES = 10**5
# What is so many standard errors away happens always or never.
_CERTAIN = 8.0
# Where the ratio of two measured variances is averaged over, in standard errors.
_RATIO_NODES, _RATIO_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_RATIO_WEIGHTS = _RATIO_WEIGHTS / _RATIO_WEIGHTS.sum()
# A Gaussian pair that reports more than this many times the exact law's epsilon is not usable.
_PAIR_TOLERANCE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvidence:
    """Moments of both groups, and what is known of how presence moves a score.

    Attributes:
        present: Moments of the present scores.
        absent: Moments of the absent scores.
        steps: Steps summed into a score, where known.
        sampling_rate: Poisson sampling rate of a present canary, where known.
        slope: The fit against the canaries' relative shifts, where those differ.
        carried_shift: Share of the mechanism's shift that scores carry, where stated.
        weighted: How much each sampled step counts in a score, where they count differently.
        tied: Whether absent scores are all one number that some present score does not exceed.
        replaced: Whether neighbours have a record's opposite in its place.
    """

    present: GroupMoments
    absent: GroupMoments
    steps: int | None = None
    sampling_rate: float | None = None
    slope: SlopeTest | None = None
    carried_shift: float | None = None
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
            steps=metadata.steps,
            sampling_rate=metadata.sampling_rate,
            slope=slope,
            carried_shift=metadata.carried_shift,
            weighted=metadata.weighted,
            tied=absent.sum_of_squares == 0.0 and bool(scores.present.min() <= scores.absent.max()),
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


def _constant_scores(evidence: PairEvidence) -> tuple[Finding, ...]:
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
        return _constant_scores(evidence) + _carried(evidence)

    @staticmethod
    def _check_delta(evidence: PairEvidence, delta: float) -> None:
        if not evidence.law_known and delta > _LARGEST_DELTA_WITHOUT_LAW:
            raise InvalidArgumentError(
                f"Expected delta <= {_LARGEST_DELTA_WITHOUT_LAW:g} where the sampling rate or the "
                f"number of steps is unknown, got {delta!r}. Give the scores steps= and "
                "sampling_rate= (1.0 if a present canary is in every step)."
            )


def _pair_exceeds_law(evidence: PairEvidence, delta: float) -> tuple[Finding, ...]:
    """Whether the Gaussian pair reports more than the exact law of the score at this shift."""
    weighted = evidence.weighted
    if weighted is None and (evidence.steps is None or evidence.sampling_rate in (None, 1.0)):
        return ()
    shift = evidence.test().lower(0.5)
    if shift == 0.0 or math.isinf(shift):
        return ()
    spread = math.sqrt(1.0 + evidence.kappa * shift**2)
    pair = gaussian.epsilon(delta, 0.0, 1.0, shift, spread)
    exact = evidence.epsilon_of_shift(shift, delta)
    if pair <= _PAIR_TOLERANCE * exact:
        return ()
    steps = evidence.steps if weighted is None else weighted.steps
    rate = (weighted or evidence).sampling_rate
    return (
        Finding(
            check="Gaussian pair",
            status=Status.FAIL,
            summary=(
                f"at {steps:,} steps and sampling rate {rate:g} a Gaussian pair reads epsilon "
                f"{pair:.3g} where the exact law has {exact:.3g}."
            ),
            consequence=Consequence.INVALIDATES,
            measured=pair,
            claimed=exact,
            remedy="Use GaussianShift(), which reads the exact law.",
        ),
    )


class _RegionAuditor(Auditor[Evidence]):
    """What the rectangle and the ellipsoid share: questions asked of the least epsilon."""

    __slots__ = ()
    assumption: ClassVar[Assumption] = Assumption.GAUSSIAN_SCORES
    scales: ClassVar[bool] = True

    @abc.abstractmethod
    def _pair(self, evidence: Evidence) -> PairEvidence:
        """The moments in the evidence."""

    @abc.abstractmethod
    def _expected(self, evidence: Evidence, shift: float, variance: float) -> Evidence:
        """The evidence of an audit of these counts with a shift and a variance of present scores.

        In units of the noise of the absent ones.
        """

    def epsilon_point(self, evidence: Evidence, *, delta: float) -> float:
        """Epsilon of the fitted pair; noisy, and too high on average where variances are free."""
        return self.epsilon_lower(evidence, delta=delta, confidence=0.0)

    def p_value(self, evidence: Evidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the least epsilon in the region exceeds ``epsilon``.

        At least 1e-15: closer to 1 a confidence cannot be told from it.
        """

        def rejects(error: float) -> bool:
            if not _SMALLEST_REGION_ERROR <= error < 1.0:
                return error >= 1.0
            return self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon

        return smallest_error(rejects)

    def power(
        self,
        evidence: Evidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power from the shifts at which audits would just reject, one for each ratio of variances.

        The bound depends on the shift and on the two variances as measured. Their logarithms are
        taken for Gaussian, and the average over their difference is by Gauss and Hermite.
        """
        pair = self._pair(evidence)
        true_shift = shift_of_mechanism(pair, true_epsilon, delta)
        if math.isinf(true_shift):
            return 0.0
        ratio = 1.0 + pair.kappa * true_shift**2
        of_absent, of_present = (0.5 / (group.count - 1) for group in (pair.absent, pair.present))
        of_ratio = of_absent + of_present
        gap_variance = 1.0 / pair.absent.count + ratio / pair.present.count
        power, guess = 0.0, true_shift
        for node, weight in zip(_RATIO_NODES, _RATIO_WEIGHTS, strict=True):
            log_ratio = math.sqrt(of_ratio) * float(node)
            variance = ratio * math.exp(2.0 * log_ratio)

            def margin(shift: float, variance: float = variance) -> float:
                expected = self._expected(evidence, shift, variance)
                return epsilon - self.epsilon_lower(expected, delta=delta, confidence=1.0 - error)

            critical = _critical_shift(
                margin, guess, true_shift + _CERTAIN * math.sqrt(gap_variance + true_shift**2)
            )
            if math.isinf(critical):
                continue
            guess = max(critical, 1e-3)
            # What the ratio says of the absent scores' own deviation, and what it leaves open.
            deviation = 1.0 - of_absent / of_ratio * log_ratio
            left = gap_variance + critical**2 * of_absent * of_present / of_ratio
            power += float(weight * ndtr((true_shift - critical * deviation) / math.sqrt(left)))
        return power

    def findings(
        self, evidence: Evidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Whether there is noise to measure against, and whether a Gaussian pair will do."""
        pair = self._pair(evidence)
        if pair.present.sum_of_squares == 0.0 < pair.absent.sum_of_squares:
            return (
                Finding(
                    check="noise",
                    status=Status.FAIL,
                    summary=(
                        f"all {pair.present.count:,} present scores are the same number, which no "
                        "Gaussian gives; there is no variance to fit."
                    ),
                    consequence=Consequence.INVALIDATES,
                    measured=0.0,
                    remedy="Check how scores are made; OneRun() needs no law of them.",
                ),
            )
        return _constant_scores(pair) + _pair_exceeds_law(pair, delta)


def _critical_shift(margin: Callable[[float], float], guess: float, far: float) -> float:
    """Where a falling margin stops being positive, looked for near a guess; infinite beyond far."""
    low = high = guess
    at_low = at_high = margin(guess)
    factor = 1.05
    while at_low <= 0.0 and low > 1e-6:
        high, at_high, low = low, at_low, low / factor
        at_low, factor = margin(low), factor**2
    while at_high > 0.0:
        if high > far:
            return math.inf
        low, at_low, high = high, at_high, high * factor
        at_high, factor = margin(high), factor**2
    return low if at_low <= 0.0 else close_bracket(margin, low, at_low, high, at_high, 1e-3)


def _without_spread(pair: PairEvidence) -> float | None:
    """The bound where a group does not vary, and so has no variance to fit; None where both do."""
    if pair.absent.sum_of_squares == 0.0:
        return 0.0 if pair.tied else math.inf
    return 0.0 if pair.present.sum_of_squares == 0.0 else None


def _expected_pair(pair: PairEvidence, shift: float, variance: float) -> PairEvidence:
    """Moments as they are on average, with unit noise."""
    present, absent = pair.present.count, pair.absent.count
    return PairEvidence(
        present=GroupMoments(
            count=present,
            mean=shift,
            sum_of_squares=(present - 1) * variance,
        ),
        absent=GroupMoments(count=absent, mean=0.0, sum_of_squares=absent - 1.0),
        steps=pair.steps,
        sampling_rate=pair.sampling_rate,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianRectangle(_RegionAuditor[PairEvidence]):
    """The least epsilon over Student-t and chi-square intervals; the paper's first region.

    Assumes:
        Scores are independent and Gaussian; one variance for both groups if ``pooled``.

    Guarantee:
        Valid at any number of canaries, and wide: four intervals share the error.

    Args:
        pooled: One standard deviation for both groups, as the paper's public code has it.
    """

    evidence_type: ClassVar[type] = PairEvidence

    pooled: bool = False

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> PairEvidence:
        """Moments of both groups."""
        return PairEvidence.of(data)

    def epsilon_lower(self, evidence: PairEvidence, *, delta: float, confidence: float) -> float:
        """The least epsilon in the rectangle."""
        present, absent = evidence.present, evidence.absent
        constant = _without_spread(evidence)
        if constant is not None:
            return constant
        if confidence == 0.0:
            box = regions.Rectangle(
                mean0=(absent.mean, absent.mean),
                sigma0=(absent.standard_deviation,) * 2,
                mean1=(present.mean, present.mean),
                sigma1=(present.standard_deviation,) * 2,
            )
        else:
            box = regions.rectangle(
                mean0=absent.mean,
                sd0=absent.standard_deviation,
                count0=absent.count,
                mean1=present.mean,
                sd1=present.standard_deviation,
                count1=present.count,
                confidence=confidence,
                pooled=self.pooled,
            )
        return regions.minimum_epsilon_over_rectangle(box, delta)

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> PairEvidence:
        """Counts of such an audit."""
        return PairEvidence.planned(
            present=present, absent=absent, steps=steps, sampling_rate=sampling_rate
        )

    def _pair(self, evidence: PairEvidence) -> PairEvidence:
        return evidence

    def _expected(self, evidence: PairEvidence, shift: float, variance: float) -> PairEvidence:
        return _expected_pair(evidence, shift, variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class EllipsoidEvidence:
    """The fitted parameters, their bootstrap covariance, and the moments of both groups."""

    pair: PairEvidence
    center: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEllipsoid(_RegionAuditor[EllipsoidEvidence]):
    """The least epsilon over a bootstrap ellipsoid; the paper's second region.

    Assumes:
        Scores are independent and Gaussian, and there are enough of them for the bootstrap; one
        variance for both groups if ``pooled``.

    Guarantee:
        Valid in the limit of many canaries only. With fewer than 100 in a group it is INVALID: with
        10 it was seen above the truth 20 times as often as stated, at an error of .001.

    Args:
        resamples: Number of bootstrap resamples of each group.
        seed: Seed of the resampling.
        pooled: One standard deviation for both groups, as the paper's public code has it.
    """

    evidence_type: ClassVar[type] = EllipsoidEvidence

    resamples: int = 2000
    seed: int = 0
    pooled: bool = False

    def __post_init__(self) -> None:
        _validate.count(10, maximum=_MOST_RESAMPLES, resamples=self.resamples)
        _validate.integer(0, seed=self.seed)

    def gather(self, data: CanaryScores, *, delta: float, confidence: float) -> EllipsoidEvidence:
        """Moments of both groups and the bootstrap covariance of the four parameters."""
        center, covariance = regions.bootstrap(
            data.absent,
            data.present,
            resamples=self.resamples,
            seed=self.seed,
            pooled=self.pooled,
        )
        return EllipsoidEvidence(
            pair=PairEvidence.of(data),
            center=tuple(center.tolist()),
            covariance=tuple(tuple(row) for row in covariance.tolist()),
        )

    def epsilon_lower(
        self, evidence: EllipsoidEvidence, *, delta: float, confidence: float
    ) -> float:
        """The least epsilon in the ellipsoid."""
        constant = _without_spread(evidence.pair)
        if constant is not None:
            return constant
        size = len(evidence.center)
        radius = 0.0 if confidence == 0.0 else regions.radius_squared(confidence, size)
        return regions.minimum_epsilon_over_ellipsoid(
            evidence.center, evidence.covariance, radius, delta
        )

    def findings(
        self, evidence: EllipsoidEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """Also whether there are enough canaries for the bootstrap."""
        # By its class: with slots, super() would look for the class that dataclass replaced.
        found = _RegionAuditor.findings(self, evidence, delta=delta, confidence=confidence)
        fewest = min(evidence.pair.present.count, evidence.pair.absent.count)
        if fewest >= _ENOUGH_TO_RESAMPLE:
            return found
        few = Finding(
            check="number of canaries",
            status=Status.FAIL,
            summary=(
                f"{fewest:,} canaries in a group are too few to resample: the bound is above the "
                "truth far more often than stated."
            ),
            consequence=Consequence.INVALIDATES,
            measured=float(fewest),
            claimed=float(_ENOUGH_TO_RESAMPLE),
            remedy="Use GaussianShift() or GaussianRectangle(), valid at any number.",
        )
        return (*found, few)

    def _pair(self, evidence: EllipsoidEvidence) -> PairEvidence:
        return evidence.pair

    def _expected(
        self, evidence: EllipsoidEvidence, shift: float, variance: float
    ) -> EllipsoidEvidence:
        pair = _expected_pair(evidence.pair, shift, variance)
        absent, present = pair.absent, pair.present
        if self.pooled:
            freedom = absent.count + present.count - 2
            both = (absent.sum_of_squares + present.sum_of_squares) / freedom
            center: tuple[float, ...] = (0.0, shift, math.sqrt(both))
            spreads: tuple[float, ...]
            spreads = (both / absent.count, both / present.count, both / (2 * freedom))
        else:
            center = (0.0, absent.standard_deviation, shift, present.standard_deviation)
            spreads = (
                absent.variance / absent.count,
                absent.variance / (2 * absent.count),
                present.variance / present.count,
                present.variance / (2 * present.count),
            )
        covariance = tuple(
            tuple(spread if row == column else 0.0 for column in range(len(spreads)))
            for row, spread in enumerate(spreads)
        )
        return EllipsoidEvidence(pair=pair, center=center, covariance=covariance)
