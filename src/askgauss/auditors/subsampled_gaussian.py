"""The whole transcript, not its sum: fit one step exactly, then compose it.

The auditor also knows when it planted each canary. In units of the clip norm a step shows N(1, s^2)
of a planted canary and N(0, s^2) of any other, so 1/s has an exact noncentral-t lower bound; the
subsampled Gaussian at that bound, composed over the steps, is a lower bound on epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from askgauss.auditors.auditor import Auditor
from askgauss.auditors.step_evidence import StepEvidence, Stratum, step_evidence
from askgauss.exceptions import ScoresError, UnsupportedError
from askgauss.recording.transcript import Transcript
from askgauss.results import Assumption, Consequence, Finding, Status
from askgauss.sampling import Scheme
from askgauss.stats.binomial import clopper_pearson_lower
from askgauss.stats.search import smallest_error
from askgauss.stats.shift import ShiftTest, SlopeTest, least_noticed

__all__ = ["StepEvidence", "Stratum", "SubsampledGaussian"]

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
