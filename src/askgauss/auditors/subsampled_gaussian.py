"""The whole transcript, not its sum: fit one step exactly, then compose it.

The auditor also knows when it planted each canary. In units of the clip norm a step shows N(1, s^2)
of a planted canary and N(0, s^2) of any other, so 1/s has an exact noncentral-t lower bound; the
subsampled Gaussian at that bound, composed over the steps, is a lower bound on epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss import accounting
from askgauss.auditors.base import Auditor
from askgauss.exceptions import ScoresError, UnsupportedError
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.scores import GroupMoments
from askgauss.stats.binomial import clopper_pearson_lower
from askgauss.stats.search import smallest_error
from askgauss.stats.shift import ShiftTest, SlopeTest, least_noticed
from askgauss.stats.within import within_canaries
from askgauss.transcript import Transcript

__all__ = ["StepEvidence", "SubsampledGaussian"]

# Shares of the error: the rate is measured far more sharply than the noise, so it needs little; a
# leak in one tensor is looked for with a fifth of what is left.
_RATE_SHARE = 0.2
_STRATA_SHARE = 0.2
# Checks of the law of the scores, which a fit within canaries makes nothing of.
_OF_THE_SCORES = (
    "normality of absent scores",
    "normality of present scores",
    "equal variance",
    "identical distribution",
)
_FEWEST_IN_TENSOR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Planted and other observations of one tensor, or of all."""

    tensor: str
    planted: GroupMoments
    other: GroupMoments

    def _test(self) -> ShiftTest:
        planted, other = self.planted, self.other
        return ShiftTest(
            present=(planted.count, planted.mean, planted.sum_of_squares),
            absent=(other.count, other.mean, other.sum_of_squares),
        )

    def lower(self, error: float) -> float:
        """Lower bound on the signal-to-noise ratio of one step."""
        return self._test().lower(error)

    def p_value(self, signal_to_noise: float) -> float:
        """The p-value of "the ratio is at most this"."""
        return self._test().p_value(signal_to_noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """Moments of single steps, and what is needed to compose them.

    Attributes:
        strata: Moments of all observations, then of each tensor's.
        within: The fit of planting within each canary, by its own level.
        counts: The fit of each canary's sum against how often it was planted.
        background_known: Whether observations without a planting are noise alone.
        steps: Number of steps.
        sampling_rate: The planting rate, where the recorder's own coin set it.
        plantings: How often a canary was planted.
        opportunities: How often one could have been.
        poisson: Whether sampling is Poisson.
        finite: Whether every observation was finite.
        poisson_declared: Whether that it is Poisson is the user's word alone.
        skipped: Steps that were released and not observed.
        schedule: Where the declared noise differs between steps: that of the first over that of
            others, and how many have it, as `accounting.schedule_levels` rounds them.
        schedule_scale: Root of the mean square of the declared noise, over that of the first step.
        weighted: With a schedule, the fit of planting by steps as they are declared: of all
            observations, then of each tensor's.
    """

    strata: tuple[Stratum, ...]
    within: SlopeTest
    counts: SlopeTest
    background_known: bool
    steps: int
    sampling_rate: float | None
    plantings: int
    opportunities: int
    poisson: bool
    finite: bool
    poisson_declared: bool = False
    skipped: int = 0
    schedule: tuple[tuple[float, int], ...] = ()
    schedule_scale: float = 1.0
    weighted: tuple[SlopeTest, ...] = ()

    def epsilon(self, signal_to_noise: float, sampling_rate: float, delta: float) -> float:
        """What the steps leak at least; the ratio is that of the first one."""
        if self.schedule and signal_to_noise != math.inf:
            return accounting.schedule_epsilon_lower(
                signal_to_noise=signal_to_noise * self._ratios(),
                sampling_rate=sampling_rate,
                delta=delta,
            )
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal_to_noise,
            sampling_rate=sampling_rate,
            steps=self.steps,
            delta=delta,
        )

    def signal_to_noise(self, epsilon: float, sampling_rate: float, delta: float) -> float:
        """The ratio, of the first step, at which the steps leak more than ``epsilon``."""
        if self.schedule:
            return accounting.schedule_factor(
                epsilon=epsilon,
                signal_to_noise=self._ratios(),
                sampling_rate=sampling_rate,
                delta=delta,
            )
        return accounting.dpsgd_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=self.steps
        )

    def _ratios(self) -> NDArray[np.float64]:
        ratios, counts = zip(*self.schedule, strict=True)
        return np.repeat(np.array(ratios), np.array(counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledGaussian(Auditor[StepEvidence]):
    """Per-step fit of the noise, composed over the run; reads a transcript.

    Assumes:
        Steps are independent subsampled Gaussian mechanisms: Poisson sampling at one rate, and
        Gaussian noise that is independent between steps and canaries, of one scale or of one that
        follows the declared schedule.

    Guarantee:
        ``epsilon_lower`` exceeds the epsilon of the mechanism with the *planted* sampling rate in
        at most 1 - confidence of audits. A rate set by the recorder's own coin says nothing of the
        sampler of the training; one that the training's sampler set is bounded from the counts.
        Steps that were not observed are left out of the composition.

    Args:
        counts_only: Use only each canary's sum and how often it was planted.
    """

    assumption: ClassVar[Assumption] = Assumption.SUBSAMPLED_GAUSSIAN_STEPS
    evidence_type: ClassVar[type] = StepEvidence
    reads: ClassVar[str] = "transcript"

    counts_only: bool = False

    def gather(self, data: Transcript, *, delta: float, confidence: float) -> StepEvidence:
        """Moments of planted and other observations, by tensor."""
        if not isinstance(data, Transcript):
            raise UnsupportedError(
                "SubsampledGaussian reads a transcript, got scores. Scores do not say when each "
                "canary was planted: pass the transcript, or use GaussianShift()."
            )
        plantings = int(data.canaries.planted.sum())
        if plantings < 2:
            raise ScoresError(
                f"Expected at least 2 plantings, got {plantings}: nothing to measure. Plant more "
                "canaries, or run more steps."
            )
        facts, root = data.facts, math.sqrt(data.number_of_steps)
        sums = data.canaries
        return StepEvidence(
            strata=_strata(data),
            # Given how often each canary was planted, its sum is a straight line in that number.
            counts=SlopeTest.fit(data.canaries.planted / root, data.canaries.total / root),
            within=within_canaries(
                planted=sums.planted,
                planted_total=sums.planted_total,
                total=sums.total,
                square=sums.square,
                steps=data.number_of_steps,
            ),
            background_known=facts.background == "known",
            steps=data.number_of_steps,
            sampling_rate=facts.sampling_rate if facts.sampling == "own coin" else None,
            plantings=plantings,
            opportunities=int(np.count_nonzero(data.member)) * data.number_of_steps,
            poisson=facts.poisson,
            finite=data.finite,
            poisson_declared=facts.poisson_declared,
            skipped=facts.skipped_steps,
            **_schedule(data),
        )

    def epsilon_lower(self, evidence: StepEvidence, *, delta: float, confidence: float) -> float:
        """The composed lower bound."""
        if not evidence.finite:
            return 0.0
        error = 1.0 - confidence
        rate = evidence.sampling_rate
        if rate is None:
            rate = clopper_pearson_lower(
                evidence.plantings, evidence.opportunities, _RATE_SHARE * error
            )
            error *= 1.0 - _RATE_SHARE
        if rate == 0.0:
            return 0.0
        return evidence.epsilon(self._signal_lower(evidence, error), rate, delta)

    def _signal_lower(self, evidence: StepEvidence, error: float) -> float:
        """The largest of the pooled bound and of every tensor's own, each at its share.

        The worst coordinate governs privacy, so a tensor with less noise may speak for the run.
        """
        slope = self._slope(evidence)
        if slope is not None:
            return slope.lower(error) * evidence.schedule_scale
        pooled, *tensors = self._fits(evidence)
        if not tensors:
            return pooled.lower(error)
        share = _STRATA_SHARE * error / len(tensors)
        return max(
            pooled.lower((1.0 - _STRATA_SHARE) * error),
            *(stratum.lower(share) for stratum in tensors),
        )

    def _slope(self, evidence: StepEvidence) -> SlopeTest | None:
        """The fit that stands in for single steps, where it was asked for or has to.

        With other records left in, observations of one canary share its level and are not
        independent; planting within a canary is, since its coin knows nothing of the level.
        """
        if self.counts_only:
            return evidence.counts
        return None if evidence.background_known else evidence.within

    def _fits(self, evidence: StepEvidence) -> tuple[Stratum | SlopeTest, ...]:
        """What bounds the ratio of single steps: all observations, then each tensor's."""
        return evidence.weighted or evidence.strata

    def concerns(self, evidence: StepEvidence, finding: Finding) -> bool:
        """The fit within canaries holds for any background: it makes nothing of scores."""
        if self._slope(evidence) is evidence.within and finding.check in _OF_THE_SCORES:
            return False
        return self.assumption.rests_on(finding.undermines)

    def epsilon_point(self, evidence: StepEvidence, *, delta: float) -> float | None:
        """The median-unbiased estimate from all tensors together."""
        if not evidence.finite:
            return None
        slope = self._slope(evidence)
        if slope is None:
            signal = self._fits(evidence)[0].lower(0.5)
        else:
            signal = slope.lower(0.5) * evidence.schedule_scale
        rate = evidence.sampling_rate
        rate = evidence.plantings / evidence.opportunities if rate is None else rate
        return evidence.epsilon(signal, rate, delta)

    def p_value(self, evidence: StepEvidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the bound exceeds ``epsilon``."""
        rate = evidence.sampling_rate
        if rate is None or epsilon == 0.0:
            return smallest_error(
                lambda error: (
                    error >= 1.0
                    or self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon
                )
            )
        # With the rate known, the claim is one ratio, and every stratum tests it at its share.
        critical = evidence.signal_to_noise(epsilon, rate, delta)
        slope = self._slope(evidence)
        if slope is not None:
            return slope.p_value(critical / evidence.schedule_scale)
        pooled, *tensors = fits = self._fits(evidence)
        if not tensors:
            return pooled.p_value(critical)
        shares = [1.0 - _STRATA_SHARE] + [_STRATA_SHARE / len(tensors)] * len(tensors)
        return min(
            1.0,
            *(
                stratum.p_value(critical) / share
                for stratum, share in zip(fits, shares, strict=True)
            ),
        )

    def power(
        self,
        evidence: StepEvidence,
        *,
        epsilon: float,
        true_epsilon: float,
        delta: float,
        error: float,
    ) -> float:
        """Power against a run whose steps have the noise of ``true_epsilon``, by the accountant.

        A leak is spread over all steps, and has to show in those observed.
        """
        test, claimed, share = self._claimed(evidence, epsilon, delta, error)
        if math.isinf(claimed):
            return 0.0
        true = self._ratio(evidence, true_epsilon, delta, _rate(evidence), evidence.skipped)
        # Other records that are left in stay, however little noise there is.
        seen = (true**-2 + self._left_in(test, claimed)) ** -0.5
        return test.power(shift=claimed, true_shift=seen, error=share)

    def smallest_leak(
        self, evidence: StepEvidence, *, epsilon: float, delta: float, error: float, power: float
    ) -> float:
        """The smallest true epsilon that is noticed with this power."""
        test, claimed, share = self._claimed(evidence, epsilon, delta, error)
        seen = least_noticed(test, shift=claimed, error=share, power=power)
        noise = 0.0 if math.isinf(seen) else seen**-2 - self._left_in(test, claimed)
        if noise <= 0.0:
            return math.inf
        signal = noise**-0.5 * self._unit(evidence)
        if evidence.schedule:
            return evidence.epsilon(signal, _rate(evidence), delta)
        return accounting.quick_epsilon(
            signal_to_noise=signal,
            sampling_rate=_rate(evidence),
            steps=evidence.steps + evidence.skipped,
            delta=delta,
        )

    def _claimed(
        self, evidence: StepEvidence, epsilon: float, delta: float, error: float
    ) -> tuple[ShiftTest | SlopeTest, float, float]:
        """The test of the steps, the signal that the claim allows, and the test's error.

        A rate that has to be measured is composed at its lower limit, and so contradicts the claim
        only at more signal.
        """
        rate, share = evidence.sampling_rate, error
        if rate is None:
            rate = clopper_pearson_lower(
                evidence.plantings, evidence.opportunities, _RATE_SHARE * error
            )
            share *= 1.0 - _RATE_SHARE
        claimed = self._ratio(evidence, epsilon, delta, rate)
        slope = self._slope(evidence)
        if slope is None and evidence.schedule:
            slope = evidence.weighted[0]
        if slope is not None:
            return slope, claimed, share
        pooled = evidence.strata[0]
        test = ShiftTest(
            present=(pooled.planted.count, 1.0, 1.0), absent=(pooled.other.count, 0.0, 1.0)
        )
        return test, claimed, share * (1.0 if len(evidence.strata) == 1 else 1.0 - _STRATA_SHARE)

    def _ratio(
        self, evidence: StepEvidence, epsilon: float, delta: float, rate: float, more: int = 0
    ) -> float:
        """The ratio at which a run of so many more steps has this epsilon, as the test reads it."""
        if evidence.schedule:
            # That of the first step; steps not observed are left out.
            return evidence.signal_to_noise(epsilon, rate, delta) / self._unit(evidence)
        return accounting.quick_signal_to_noise(
            epsilon=epsilon, delta=delta, sampling_rate=rate, steps=evidence.steps + more
        )

    def _unit(self, evidence: StepEvidence) -> float:
        """The noise that the test reads over that of the first step."""
        return 1.0 if self._slope(evidence) is None else evidence.schedule_scale

    def _left_in(self, test: ShiftTest | SlopeTest, claimed: float) -> float:
        """Variance, in clip norms, that is there beside the noise of the claim: other records."""
        if self.counts_only or not isinstance(test, SlopeTest) or math.isinf(claimed):
            return 0.0
        variance = test.residual / test.degrees_of_freedom
        return max(variance - claimed**-2, 0.0)

    def findings(
        self, evidence: StepEvidence, *, delta: float, confidence: float
    ) -> tuple[Finding, ...]:
        """What the bound cannot stand on."""
        found = []
        if not evidence.finite:
            found.append(
                Finding(
                    check="finite gradients",
                    status=Status.FAIL,
                    summary="nan or infinite values were released.",
                    consequence=Consequence.INVALIDATES,
                    remedy="Find where they come from: nothing can be said of such a run.",
                )
            )
        if not evidence.poisson:
            found.append(
                Finding(
                    check="sampling",
                    status=Status.FAIL,
                    summary="batches are not Poisson samples, so steps do not compose as assumed.",
                    consequence=Consequence.INVALIDATES,
                    remedy="Train with Poisson sampling, and say so to the Recorder if a sampler "
                    "of your own does it (poisson=True); or audit the scores with GaussianShift().",
                )
            )
        if evidence.poisson_declared:
            found.append(
                Finding(
                    check="sampling",
                    status=Status.INFO,
                    summary="Poisson sampling was declared, not seen: the bound rests on it.",
                    consequence=Consequence.INFORMS,
                )
            )
        if evidence.finite and evidence.strata[0].other.sum_of_squares == 0.0:
            found.append(
                Finding(
                    check="noise",
                    status=Status.FAIL,
                    summary="what was released about absent canaries does not vary: no noise.",
                    consequence=Consequence.BREACH,
                    measured=0.0,
                    remedy="Check that noise is added, and that the sum is read after it.",
                )
            )
        return tuple(found)


def _rate(evidence: StepEvidence) -> float:
    return evidence.sampling_rate or evidence.plantings / evidence.opportunities


def _moments(count: int, total: float, square: float) -> GroupMoments:
    return GroupMoments(
        count=count, mean=total / count, sum_of_squares=max(square - total * total / count, 0.0)
    )


def _strata(transcript: Transcript) -> tuple[Stratum, ...]:
    """All observations, then each tensor's where there are several with enough plantings."""
    sums, steps = transcript.canaries, transcript.number_of_steps
    names = transcript.facts.tensors or ("all",)

    def by_tensor(values: NDArray[Any]) -> NDArray[np.float64]:
        weights = values.astype(np.float64)
        return np.asarray(np.bincount(transcript.tensor, weights, len(names)), np.float64)

    planted = by_tensor(sums.planted)
    planted_total, planted_square = by_tensor(sums.planted_total), by_tensor(sums.planted_square)
    observed = steps * by_tensor(np.ones(transcript.member.size))
    total, square = by_tensor(sums.total), by_tensor(sums.square)

    def stratum(name: str, rows: NDArray[np.intp] | slice) -> Stratum:
        count = int(planted[rows].sum())
        return Stratum(
            tensor=name,
            planted=_moments(count, planted_total[rows].sum(), planted_square[rows].sum()),
            other=_moments(
                int(observed[rows].sum()) - count,
                (total[rows] - planted_total[rows]).sum(),
                (square[rows] - planted_square[rows]).sum(),
            ),
        )

    whole = stratum("all", slice(None))
    # A tensor with a handful of plantings could not beat the pooled bound at its share, and the
    # moments of a handful of canaries in a tensor that is named would be those of single ones.
    worth = np.flatnonzero(
        (planted >= 2) & (observed - planted >= 2) & (observed >= steps * _FEWEST_IN_TENSOR)
    )
    if worth.size < 2:
        return (whole,)
    return (whole, *(stratum(names[index], np.array([index])) for index in worth))


def _schedule(transcript: Transcript) -> dict[str, Any]:
    """What the evidence holds of a declared schedule; nothing where the steps are alike."""
    unit = transcript.schedule
    if (unit == 1.0).all():
        return {}
    scale = math.sqrt(float((unit**2).mean()))
    groups = transcript.steps.planted.shape[1]
    planted = transcript.steps.planted.sum(axis=0)
    observed = unit.size * np.bincount(transcript.tensor, minlength=groups)
    worth = np.flatnonzero((planted >= 2) & (observed - planted >= 2))
    tensors = [] if worth.size < 2 else [np.array([index]) for index in worth]
    return {
        "schedule": accounting.schedule_levels(1.0 / unit),
        "schedule_scale": scale,
        "weighted": tuple(
            _weighted(transcript, columns) for columns in (np.arange(groups), *tensors)
        ),
    }


def _weighted(transcript: Transcript, columns: NDArray[np.int64]) -> SlopeTest:
    """Least squares on planting, every step in units of its declared noise."""
    steps, unit = transcript.steps, transcript.schedule
    planted, planted_total, planted_square, total, square = (
        part[:, columns].sum(axis=1)
        for part in (
            steps.planted,
            steps.planted_total,
            steps.planted_square,
            steps.total,
            steps.square,
        )
    )
    count = unit.size * int(np.isin(transcript.tensor, columns).sum())
    values = float(((total + planted_total) / unit).sum())
    weights = float((planted / unit).sum())
    spread = float((planted / unit**2).sum()) - weights**2 / count
    product = float((planted_total / unit**2).sum()) - weights * values / count
    slope = product / spread if spread > 0.0 else 0.0
    residual = float(((square + planted_square) / unit**2).sum()) - values**2 / count
    return SlopeTest(
        count=max(count, 3),
        slope=slope,
        spread=max(spread, 0.0),
        residual=max(residual - slope * product, 0.0),
    )
