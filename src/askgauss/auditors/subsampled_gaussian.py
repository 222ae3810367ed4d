"""The whole transcript, not its sum: fit one step exactly, then compose it.

The auditor also knows when it planted each canary. In units of the clip norm a step shows N(1, s^2)
of a planted canary and N(0, s^2) of any other, so 1/s has an exact noncentral-t lower bound; the
subsampled Gaussian at that bound, composed over the steps, is a lower bound on epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, accounting
from askgauss.auditors.auditor import Auditor
from askgauss.exceptions import ScoresError, UnsupportedError
from askgauss.recording.transcript import Transcript
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling import Poisson, ReplaceOne, Scheme
from askgauss.scores import GroupMoments
from askgauss.stats.limits import clopper_pearson_lower, smallest_error
from askgauss.stats.rounding import FEWEST_SHOWN
from askgauss.stats.shift import ShiftTest, SlopeTest, least_noticed, within_canaries

__all__ = ["StepEvidence", "Stratum", "SubsampledGaussian", "step_evidence", "told_tensors"]

# Steps of a run at most, and those of them that nobody saw.
_MOST_STEPS = 10**8
_MOST_SKIPPED = 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Planted and other observations of one tensor, or of all."""

    tensor: str
    planted: GroupMoments
    other: GroupMoments

    @property
    def observed(self) -> int:
        """Number of observations, planted and other ones."""
        return self.planted.count + self.other.count

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
        within: The fit of planting within each canary, by its own level; None where the background
            is known. It weighs a canary that was planted often more than others, and what no bound
            rests on is not published.
        counts: The fit of each canary's sum against how often it was planted; likewise, unless the
            method was asked for it.
        background_known: Whether observations without a planting are noise alone.
        steps: Number of steps.
        sampling_rate: The planting rate, where the recorder's own coin set it.
        plantings: How often a canary was planted.
        opportunities: How often one could have been: coins that were tossed, at most.
        poisson: Whether sampling is Poisson.
        finite: Whether every observation was finite.
        poisson_declared: Whether that it is Poisson is the user's word alone.
        skipped: Steps that were released and not observed.
        schedule: Where the declared noise differs between steps: that of the first over that of
            others, and how many have it, as `accounting.schedule_levels` rounds them.
        schedule_scale: Root of the mean square of the declared noise, over that of the first step.
        weighted: With a schedule, the fit of planting by steps as they are declared: of all
            observations, then of each tensor's.
        scheme: How canaries are drawn, where it was declared as a scheme.
        replaced: Whether neighbours have another record in a record's place.
    """

    strata: tuple[Stratum, ...]
    within: SlopeTest | None = None
    counts: SlopeTest | None = None
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
    scheme: Scheme | None = None
    replaced: bool = False

    def __post_init__(self) -> None:
        # It may come from a file, and what is composed of it takes time and memory by these.
        _validate.integer(1, _MOST_STEPS, steps=self.steps)
        _validate.integer(0, _MOST_SKIPPED, skipped=self.skipped)
        if not self.background_known and (self.within is None or self.counts is None):
            raise _validate.fail("within and counts", None, "where the background is not known")

    def known_law(self) -> Scheme | None:
        """How one canary is drawn, where no rate has to be measured for it."""
        if self.scheme is None:
            rate = self.sampling_rate
            return None if rate is None else self._as_neighbours(Poisson(rate=rate))
        if self.sampling_rate is None and self.scheme.poisson_steps(self.steps) is not None:
            return None
        return self._as_neighbours(self.scheme.record_by_record())

    def law(self, rate: float) -> Scheme:
        """How one canary is drawn if it is sampled at this rate."""
        drawn = Poisson(rate=rate) if self.scheme is None else self.scheme.at_rate(rate)
        return self._as_neighbours(drawn)

    def _as_neighbours(self, drawn: Scheme) -> Scheme:
        return ReplaceOne(of=drawn) if self.replaced else drawn

    def likely_law(self) -> Scheme:
        """How it is drawn, the rate as measured where it has to be."""
        return self.known_law() or self.law(min(1.0, self.plantings / self.opportunities))

    def epsilon(self, signal_to_noise: float, law: Scheme, delta: float) -> float:
        """What the steps leak at least; the ratio is that of the first one."""
        if law.poisson_rate is not None and self.schedule and signal_to_noise != math.inf:
            return accounting.schedule_epsilon_lower(
                signal_to_noise=signal_to_noise * self._ratios(),
                sampling_rate=law.poisson_rate,
                delta=delta,
            )
        signal = signal_to_noise * self.weakest
        noise = 1.0 / signal if signal > 0.0 else math.inf
        return law.epsilon_lower(noise_multiplier=noise, steps=self.steps, delta=delta)

    def signal_to_noise(self, epsilon: float, law: Scheme, delta: float) -> float:
        """The ratio, of the first step, at which the steps leak more than ``epsilon``."""
        if law.poisson_rate is not None and self.schedule:
            return accounting.schedule_factor(
                epsilon=epsilon,
                signal_to_noise=self._ratios(),
                sampling_rate=law.poisson_rate,
                delta=delta,
            )
        return law.signal_to_noise(epsilon=epsilon, delta=delta, steps=self.steps) / self.weakest

    @property
    def weakest(self) -> float:
        """The smallest ratio that a step is declared to have, over that of the first.

        Beside Poisson sampling no law is at hand for steps that differ, and the largest noise in
        all of them leaks less.
        """
        return min((ratio for ratio, _ in self.schedule), default=1.0)

    def _ratios(self) -> NDArray[np.float64]:
        ratios, counts = zip(*self.schedule, strict=True)
        return np.repeat(np.array(ratios), np.array(counts))


# What is not finite is said to be so, and nothing is computed of it.
@np.errstate(over="ignore", invalid="ignore")
def step_evidence(transcript: Transcript, plantings: int, counts_only: bool) -> StepEvidence:
    """Moments of planted and other observations, by tensor, and the fits that a bound needs."""
    facts, sums, steps = transcript.facts, transcript.canaries, transcript.number_of_steps
    root = math.sqrt(steps)
    present = int(np.count_nonzero(transcript.member))
    scheme, known = facts.scheme, facts.background == "known"
    return StepEvidence(
        strata=_strata(transcript),
        # Given how often each canary was planted, its sum is a straight line in that number.
        counts=SlopeTest.fit(sums.planted / root, sums.total / root)
        if counts_only or not known
        else None,
        within=None
        if known
        else within_canaries(
            planted=sums.planted,
            planted_total=sums.planted_total,
            total=sums.total,
            square=sums.square,
            steps=steps,
        ),
        background_known=known,
        steps=steps,
        sampling_rate=facts.sampling_rate if facts.sampling == "own coin" else None,
        plantings=plantings,
        opportunities=present * ((scheme and scheme.poisson_steps(steps)) or steps),
        poisson=facts.poisson,
        finite=transcript.finite,
        poisson_declared=facts.poisson_declared,
        skipped=facts.skipped_steps,
        scheme=scheme,
        **_schedule(transcript),
    )


def _moments(count: int, total: float, square: float) -> GroupMoments:
    return GroupMoments(
        count=count, mean=total / count, sum_of_squares=max(square - total * total / count, 0.0)
    )


def _strata(transcript: Transcript) -> tuple[Stratum, ...]:
    """All observations, then each tensor's where there are several to be told."""
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

    def title(group: NDArray[np.intp]) -> str:
        first, others = names[group[0]], group.size - 1
        return f"{first} and {others} small {'one' if others == 1 else 'ones'}" if others else first

    told = told_tensors(transcript)
    return (stratum("all", slice(None)), *(stratum(title(group), group) for group in told))


def told_tensors(transcript: Transcript) -> list[NDArray[np.intp]]:
    """Tensors whose observations are told apart from all, small ones beside another.

    One with a handful of plantings could not beat the pooled bound at its share. One with a handful
    of present canaries, however often each was planted, would tell of single ones; so would a
    handful that is left, since anybody can subtract.
    """
    steps, size = transcript.number_of_steps, int(transcript.tensor.max(initial=0)) + 1
    canaries = np.bincount(transcript.tensor, minlength=size)
    present = np.bincount(transcript.tensor, transcript.member, size)
    planted = np.bincount(transcript.tensor, transcript.canaries.planted, size)
    other = steps * canaries - planted

    def many(group: NDArray[np.intp]) -> bool:
        return all(part[group].sum() >= FEWEST_SHOWN for part in (present, planted, other))

    groups = [np.array([index]) for index in np.flatnonzero(canaries)]
    told = [group for group in groups if many(group)]
    rest = np.array([group[0] for group in groups if not many(group)], dtype=np.intp)
    if told and rest.size and not many(rest):
        smallest = min(range(len(told)), key=lambda place: planted[told[place][0]])
        told[smallest] = np.append(told[smallest], rest)
    return told if len(told) > 1 else []


def _schedule(transcript: Transcript) -> dict[str, Any]:
    """What the evidence holds of a declared schedule; nothing where the steps are alike."""
    unit = transcript.schedule
    if (unit == 1.0).all():
        return {}
    scale = math.sqrt(float((unit**2).mean()))
    groups = transcript.steps.planted.shape[1]
    return {
        "schedule": accounting.schedule_levels(1.0 / unit),
        "schedule_scale": scale,
        "weighted": tuple(
            _weighted(transcript, columns)
            for columns in (np.arange(groups), *told_tensors(transcript))
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
        replaced: Bound the epsilon of replace-one neighbours: a record that is exchanged for one
            with the opposite gradient moves a step by two clip norms. Assumes that a gradient and
            its opposite are clipped and noised alike, or canaries that were planted with both
            signs.
    """

    assumption: ClassVar[Assumption] = Assumption.SUBSAMPLED_GAUSSIAN_STEPS
    evidence_type: ClassVar[type] = StepEvidence
    reads: ClassVar[str] = "transcript"
    scales: ClassVar[bool] = True

    counts_only: bool = False
    replaced: bool = False

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
        return replace(step_evidence(data, plantings, self.counts_only), replaced=self.replaced)

    def epsilon_lower(self, evidence: StepEvidence, *, delta: float, confidence: float) -> float:
        """The composed lower bound."""
        if not evidence.finite:
            return 0.0
        law, error = _law_lower(evidence, 1.0 - confidence)
        if law is None:
            return 0.0
        return evidence.epsilon(self._signal_lower(evidence, error), law, delta)

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
        independent; planting within a canary is, since its coin knows nothing of the level. Where
        canaries are planted in every step or in none, only their sums are left to compare.
        """
        if self.counts_only:
            return evidence.counts
        if evidence.background_known:
            return None
        within = evidence.within
        return within if within is not None and within.spread > 0.0 else evidence.counts

    def _fits(self, evidence: StepEvidence) -> tuple[Stratum | SlopeTest, ...]:
        """What bounds the ratio of single steps: all observations, then each tensor's."""
        return evidence.weighted or evidence.strata

    def concerns(self, evidence: StepEvidence, finding: Finding) -> bool:
        """The fit within canaries holds for any background: it makes nothing of scores."""
        slope = self._slope(evidence)
        if slope is not None and slope is evidence.within and finding.check in _OF_THE_SCORES:
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
        return evidence.epsilon(signal, evidence.likely_law(), delta)

    def p_value(self, evidence: StepEvidence, *, epsilon: float, delta: float) -> float:
        """The smallest error at which the bound exceeds ``epsilon``."""
        law = evidence.known_law()
        if law is None or epsilon == 0.0:
            return smallest_error(
                lambda error: (
                    error >= 1.0
                    or self.epsilon_lower(evidence, delta=delta, confidence=1.0 - error) > epsilon
                )
            )
        # With the rate known, the claim is one ratio, and every stratum tests it at its share.
        critical = evidence.signal_to_noise(epsilon, law, delta)
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
        true = self._ratio(evidence, true_epsilon, delta, evidence.likely_law(), evidence.skipped)
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
        law, steps = evidence.likely_law(), evidence.steps + evidence.skipped
        if evidence.schedule:
            return evidence.epsilon(signal, law, delta)
        return law.quick_epsilon(signal_to_noise=signal, steps=steps, delta=delta)

    def _claimed(
        self, evidence: StepEvidence, epsilon: float, delta: float, error: float
    ) -> tuple[ShiftTest | SlopeTest, float, float]:
        """The test of the steps, the signal that the claim allows, and the test's error.

        A rate that has to be measured is composed at its lower limit, and so contradicts the claim
        only at more signal.
        """
        law, share = _law_lower(evidence, error)
        claimed = math.inf if law is None else self._ratio(evidence, epsilon, delta, law)
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
        self, evidence: StepEvidence, epsilon: float, delta: float, law: Scheme, more: int = 0
    ) -> float:
        """The ratio at which a run of so many more steps has this epsilon, as the test reads it."""
        if evidence.schedule:
            # That of the first step; steps not observed are left out.
            return evidence.signal_to_noise(epsilon, law, delta) / self._unit(evidence)
        steps = evidence.steps + more
        return law.quick_signal_to_noise(epsilon=epsilon, delta=delta, steps=steps)

    def _unit(self, evidence: StepEvidence) -> float:
        """The noise that the test reads over that of the first step."""
        return 1.0 if self._slope(evidence) is None else evidence.schedule_scale

    def _left_in(self, test: ShiftTest | SlopeTest, claimed: float) -> float:
        """Variance, in clip norms, that is there beside the noise of the claim: other records."""
        if self.counts_only or not isinstance(test, SlopeTest) or math.isinf(claimed):
            return 0.0
        variance = test.residual / test.degrees_of_freedom
        return max(variance - claimed**-2, 0.0)

    def planned_evidence(
        self, *, present: int, absent: int, steps: int, sampling_rate: float
    ) -> StepEvidence:
        """Counts of such an audit, with a known background."""
        planted = max(round(present * steps * sampling_rate), 2)
        others = (present + absent) * steps - planted
        return StepEvidence(
            strata=(
                Stratum(
                    tensor="all",
                    planted=GroupMoments(count=planted, mean=1.0, sum_of_squares=float(planted)),
                    other=GroupMoments(count=others, mean=0.0, sum_of_squares=float(others)),
                ),
            ),
            # Asked only of sums by canary.
            counts=SlopeTest(count=present + absent, slope=1.0, spread=1.0, residual=1.0),
            background_known=True,
            steps=steps,
            sampling_rate=sampling_rate,
            plantings=planted,
            opportunities=present * steps,
            poisson=True,
            finite=True,
        )

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
                    summary="nan, infinite or larger than 1e140: such values were released.",
                    consequence=Consequence.INVALIDATES,
                    remedy="Find where they come from: nothing can be said of such a run.",
                )
            )
        if evidence.scheme is None and not evidence.poisson:
            found.append(
                Finding(
                    check="sampling",
                    status=Status.FAIL,
                    summary="nobody said how batches are drawn, so steps cannot be composed.",
                    consequence=Consequence.INVALIDATES,
                    remedy="Say it to the Recorder: sampling= with a scheme of askgauss.sampling, "
                    "or poisson=True if a sampler of your own gives every record a coin of its own "
                    "in every step; or audit the scores with GaussianShift().",
                )
            )
        if evidence.poisson_declared or (evidence.scheme is not None and not evidence.poisson):
            named = "Poisson sampling" if evidence.poisson_declared else str(evidence.scheme)
            found.append(
                Finding(
                    check="sampling",
                    status=Status.INFO,
                    summary=f"{named} was declared, not seen: the bound rests on it.",
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


def _law_lower(evidence: StepEvidence, error: float) -> tuple[Scheme | None, float]:
    """How a canary is drawn, a rate that has to be measured at its limit; and the error left.

    No law where the rate may be 0.
    """
    law = evidence.known_law()
    if law is not None:
        return law, error
    chances = evidence.opportunities
    rate = clopper_pearson_lower(min(evidence.plantings, chances), chances, _RATE_SHARE * error)
    return evidence.law(rate) if rate > 0.0 else None, (1.0 - _RATE_SHARE) * error
