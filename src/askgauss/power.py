"""Power of audits, before a run and after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from askgauss import _validate, accounting, policy
from askgauss._text import number
from askgauss.auditors import as_auditor
from askgauss.auditors.auditor import Auditor, pair_of_mechanism
from askgauss.auditors.subsampled_gaussian import SubsampledGaussian
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.results import AuditResult
from askgauss.scores import CanaryScores, GroupMoments, ScoreMetadata
from askgauss.simulation.simulated_runs import simulate_scores
from askgauss.stats.limits import close_bracket
from askgauss.stats.rounding import FEWEST_SHOWN
from askgauss.stats.shift import SlopeTest

__all__ = [
    "LARGEST_NEEDED",
    "LARGEST_SIMULATED",
    "AuditPlan",
    "needed_canaries",
    "resized",
    "solve",
]

# Audits simulated for the power of a method that has no formula for it.
_AUDITS = 200
# Audits whose own power is averaged.
_PRINTED = 24
# What no run will ever have. Beyond it more of the same does not help, and the answer is an error.
_MOST = _validate.MOST
_MOST_STEPS = 10**7
_MOST_SIMULATED = 10**6
_LARGEST_RATIO = 1e4
_SMALLEST_EPSILON = 1e-6
# Canaries of a kind that are thought of as a next step; as many as simulated audits have.
LARGEST_NEEDED = 10**7
LARGEST_SIMULATED = 20_000
# Simulated audits of one size, of which the weakest counts.
_GATHERED = 4
# Chances closer to 0 or 1 are taken for this, which has a probit.
_NEVER = 1e-12
# Fields that hold the observations canaries are compared with.
_HELD_OUT = ("absent", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """An audit before it is run: how large, and what it would detect.

    Attributes:
        epsilon: The claim.
        delta: Its delta.
        present: Number of present canaries.
        absent: Number of absent canaries.
        steps: Number of steps.
        sampling_rate: Sampling rate.
        alternative: The true epsilon to be detected.
        confidence: Confidence of the test of the claim.
        power: Probability that it is detected.
        auditor: The method.
    """

    epsilon: float
    delta: float
    present: int
    absent: int
    steps: int
    sampling_rate: float
    alternative: float
    confidence: float
    power: float
    auditor: Auditor[Any]

    def __str__(self) -> str:
        private = ""
        if min(self.present, self.absent) < FEWEST_SHOWN:
            private = (
                f" With fewer than {FEWEST_SHOWN} of a kind its result must not be published: "
                "plant as many where it is to be."
            )
        return (
            f"With {self.present:,} inserted and {self.absent:,} held-out canaries over "
            f"{self.steps:,} steps at sampling rate {self.sampling_rate:.4g}, {self.auditor.name} "
            f"would contradict a claim of epsilon {self.epsilon:g} at delta {self.delta:g} with "
            f"probability {self.power:.0%} (confidence {self.confidence:g}) if the true epsilon "
            f"were {number(self.alternative)}.{private}"
        )


def solve(
    *,
    epsilon: float,
    delta: float,
    present: int | None,
    absent: int | None,
    steps: int | None,
    sampling_rate: float,
    alternative: float | None,
    confidence: float | None = None,
    power: float | None = policy.ENOUGH_POWER,
    auditor: Auditor[Any] | str | None = None,
    gate_error: float = 0.001,
) -> AuditPlan:
    """The one number that is left open, such that the others hold.

    Args:
        epsilon: Claimed epsilon.
        delta: Claimed delta.
        present: Number of present canaries; None to find the fewest.
        absent: Number of absent canaries; None to find the fewest.
        steps: Number of steps; None to find the fewest.
        sampling_rate: Sampling rate.
        alternative: A true epsilon above the claim; None to find the smallest that is detected.
        confidence: Confidence of the test; if not given, that at which the verdict of
            `askgauss.audit` tests: half of its gate error is for the checks.
        power: Probability that the alternative contradicts the claim; None to compute it.
        auditor: The method; `SubsampledGaussian`, which reads a transcript, if not given.
        gate_error: The gate error of the audit that is planned, where no confidence is given.

    Returns:
        The plan, complete: an audit of that size prints this power. Power is the method's own for
        those that model the scores, and for the others what simulated audits, always the same ones,
        would print on average.

    Raises:
        InvalidArgumentError: Not exactly one is left open, or one is out of its range.
        UnsupportedError: No such number exists, however large.

    Examples:
        >>> plan = solve(epsilon=8.0, delta=1e-5, present=None, absent=1000, steps=2500,
        ...              sampling_rate=0.08, alternative=10.0)
        >>> plan.present < 20
        True
    """
    asked: dict[str, Any] = {
        "present": present,
        "absent": absent,
        "steps": steps,
        "alternative": alternative,
        "power": power,
    }
    unknown = [name for name, value in asked.items() if value is None]
    if len(unknown) != 1:
        raise InvalidArgumentError(
            f"Expected exactly one of {', '.join(asked)} to be None, the one to solve for, got "
            f"{', '.join(unknown) or 'none'}."
        )
    smallest, largest = _SMALLEST_EPSILON, _validate.LARGEST_EPSILON
    hint = "Smaller ones are not told from none by any audit."
    _validate.within(smallest, largest, closed="both", hint=hint, epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    _validate.within(0, 0.5, gate_error=gate_error)
    if confidence is None:
        confidence = 1.0 - gate_error / 2.0
    _validate.within(0.5, 1, confidence=confidence)
    for name, least in (("present", 2), ("absent", 2), ("steps", 1)):
        if asked[name] is not None:
            _validate.count(least, **{name: asked[name]})
    if power is not None:
        _validate.within(1.0 - confidence, 1, power=power)
    if alternative is not None:
        _validate.finite(alternative=alternative)
        if not epsilon < alternative:
            raise _validate.fail("alternative", alternative, f"above the claim of {epsilon:g}")
        _validate.within(0, _LARGEST_RATIO * epsilon, closed="right", alternative=alternative)
    draft = AuditPlan(
        epsilon=float(epsilon),
        delta=float(delta),
        present=present or 0,
        absent=absent or 0,
        steps=steps or 0,
        sampling_rate=float(sampling_rate),
        alternative=float(alternative or 0.0),
        confidence=float(confidence),
        power=float(power or 0.0),
        auditor=SubsampledGaussian() if auditor is None else as_auditor(auditor),
    )
    name = unknown[0]
    if name == "power":
        return replace(draft, power=_power(draft))
    if name == "alternative":
        solved: float = _least_leak(
            lambda value: _power(replace(draft, alternative=value)), draft.epsilon, draft.power
        )
    else:
        solved = _fewest(draft, name)
    changed: dict[str, Any] = {name: solved}
    complete = replace(draft, **changed)
    return replace(complete, power=_power(complete))


def needed_canaries(
    result: AuditResult, *, power: float = policy.ENOUGH_POWER
) -> tuple[int, int] | None:
    """The fewest canaries with which an audit like this one detects 1.25 times the claim.

    The smaller group grows first, then both alike, within the room that the model has. For methods
    that model the scores the evidence at hand is scaled; for the others it is gathered anew from a
    few simulated audits of that size, always the same ones.

    Args:
        result: An audit with a claim.
        power: Probability of detecting it.

    Returns:
        Numbers of present and of absent canaries; those of the audit where they are enough. None
        where no number of them is, or where the power of the method is unknown.
    """
    claim = result.claim
    if claim is None or result.power is None or min(result.present, result.absent) < 1:
        return None
    run = None if result.summary is None else result.summary.run
    like = _Like(
        auditor=result.auditor,
        evidence=result.evidence,
        present=result.present,
        absent=result.absent,
        epsilon=claim.epsilon,
        delta=claim.delta,
        error=policy.share_of_test(result.findings, result.gate_error),
        confidence=result.confidence,
        room=None if run is None else run.places,
        fair_coins=None if run is None else run.fair_coins,
    )
    try:
        return _needed(like, power)
    except TypeError:  # evidence of another package that cannot be hashed
        return _needed.__wrapped__(like, power)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Like:
    """An audit, and what audits of other sizes would be like."""

    auditor: Auditor[Any]
    evidence: Any
    present: int
    absent: int
    epsilon: float
    delta: float
    error: float
    confidence: float
    room: int | None
    fair_coins: bool | None

    @property
    def scaled(self) -> bool:
        """Whether the evidence at hand can be scaled to another size."""
        return self.auditor.scales

    def numbers(self, least: int) -> tuple[int, int]:
        """Numbers of canaries of which the smaller is at least this, and that there is room for."""
        present, absent = max(self.present, least), max(self.absent, least)
        return present, absent if self.room is None else max(min(absent, self.room - present), 2)

    def chance(self, least: int, audits: int) -> float:
        """Power against 1.25 times the claim; the least of so many simulated audits."""
        present, absent = self.numbers(least)
        if self.scaled:
            factors = present / self.present, absent / self.absent
            return self._power(resized(self.evidence, *factors))
        gathered = self._simulated(present, absent, audits)
        return min(self._power(evidence) for evidence in gathered)

    def _power(self, evidence: Any) -> float:
        auditor, epsilon, delta = self.auditor, self.epsilon, self.delta
        if auditor.ceiling(evidence, delta=delta, confidence=1.0 - self.error) <= epsilon:
            return 0.0
        found = auditor.power(
            evidence,
            epsilon=epsilon,
            true_epsilon=policy.ALTERNATIVE * epsilon,
            delta=delta,
            error=self.error,
        )
        return 0.0 if found is None else float(found)

    def _simulated(self, present: int, absent: int, audits: int) -> Iterator[Any]:
        """What audits of so many canaries gather, alternately from correct and from leaking runs.

        Methods choose where to cut from the scores, and so detect more in one run than in the next.
        """
        carrier = ScoreMetadata(
            steps=getattr(self.evidence, "steps", None),
            sampling_rate=getattr(self.evidence, "sampling_rate", None),
            carried_shift=getattr(self.evidence, "carried_shift", None),
            noise="gaussian",
            fair_coins=self.fair_coins,
        )
        member = np.arange(present + absent) < present
        for index, generator in enumerate(np.random.default_rng(0).spawn(audits)):
            true = self.epsilon * (policy.ALTERNATIVE if index % 2 else 1.0)
            pair = pair_of_mechanism(carrier, true, self.delta)
            score = generator.standard_normal(member.size)
            score[member] += pair.added(present, generator)
            order = generator.permutation(member.size)
            data = CanaryScores(score=score[order], member=member[order], metadata=carrier)
            yield self.auditor.gather(data, delta=self.delta, confidence=self.confidence)


def resized(value: Any, factor: float, others: float | None = None) -> Any:
    """The evidence of so many times the observations, with the same means and variances.

    Args:
        value: The evidence.
        factor: How many times the observations of present canaries.
        others: How many times those they are compared with; as many if not given.
    """
    others = factor if others is None else others
    if isinstance(value, GroupMoments):
        count = max(round(value.count * factor), 2)
        return replace(value, count=count, sum_of_squares=value.variance * (count - 1))
    if isinstance(value, SlopeTest):
        count = max(round(value.count * others), 3)
        return replace(
            value,
            count=count,
            spread=value.spread * factor,
            residual=value.residual * (count - 2) / max(value.count - 2, 1),
        )
    if isinstance(value, tuple):
        return tuple(resized(item, factor, others) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            here = others if field.name in _HELD_OUT else factor
            changes[field.name] = resized(getattr(value, field.name), here, others)
        for name in ("plantings", "opportunities"):
            if name in changes:
                changes[name] = max(round(changes[name] * factor), 1)
        return replace(value, **changes)
    return value


@functools.lru_cache(maxsize=64)
def _needed(like: _Like, power: float) -> tuple[int, int] | None:
    """The fewest canaries, to a twentieth, or to one where they are few."""
    if not like.auditor.any_size or (not like.scaled and like.auditor.reads != "scores"):
        return None
    low = min(like.present, like.absent)
    most = LARGEST_NEEDED if like.scaled else LARGEST_SIMULATED
    if like.room is not None:
        most = min(most, like.room // 2)
    if low > most or like.chance(most, 1) < power:
        return None
    if like.chance(low, _GATHERED) >= power:
        return like.numbers(low)
    # From below: the larger an audit, the longer it takes to simulate.
    high = min(2 * low, most)
    while high < most and like.chance(high, _GATHERED) < power:
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        if like.chance(middle, _GATHERED) >= power:
            high = middle
        else:
            low = middle
    return like.numbers(high)


def _power(plan: AuditPlan) -> float:
    """Probability that the alternative contradicts the claim."""
    evidence = _expected_evidence(plan)
    error = 1.0 - plan.confidence
    if evidence is not None:
        found = plan.auditor.power(
            evidence,
            epsilon=plan.epsilon,
            true_epsilon=plan.alternative,
            delta=plan.delta,
            error=error,
        )
        if found is not None:
            return float(found)
    if plan.auditor.reads != "scores":
        raise UnsupportedError(f"The power of {plan.auditor.name} is not known.")
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=plan.alternative,
        delta=plan.delta,
        sampling_rate=plan.sampling_rate,
        steps=plan.steps,
    )
    detected = 0
    printed: list[float] = []
    for generator in np.random.default_rng(0).spawn(_AUDITS):
        scores = simulate_scores(
            steps=plan.steps,
            sampling_rate=plan.sampling_rate,
            noise_multiplier=noise,
            present=plan.present,
            absent=plan.absent,
            seed=generator,
        )
        gathered = plan.auditor.gather(scores, delta=plan.delta, confidence=0.95)
        # What such audits would print is known better than how many of them detect it.
        own = plan.auditor.power(
            gathered,
            epsilon=plan.epsilon,
            true_epsilon=plan.alternative,
            delta=plan.delta,
            error=error,
        )
        if own is not None:
            printed.append(own)
            if len(printed) == _PRINTED:
                return float(np.mean(printed))
            continue
        detected += plan.auditor.rejects(
            gathered, epsilon=plan.epsilon, delta=plan.delta, error=error
        )
    return detected / _AUDITS


def _expected_evidence(plan: AuditPlan) -> Any:
    return plan.auditor.planned_evidence(
        present=plan.present,
        absent=plan.absent,
        steps=plan.steps,
        sampling_rate=plan.sampling_rate,
    )


def _least_leak(chance: Callable[[float], float], claim: float, power: float) -> float:
    """The smallest epsilon above the claim that is detected with this power, to a thousandth."""

    def margin(ratio: float) -> float:
        # In probits power is nearly a straight line, so few steps find where it is enough.
        found = min(max(chance(claim * ratio), _NEVER), 1.0 - _NEVER)
        return float(ndtri(found) - ndtri(power)) + _NEVER

    # In units of the claim, and from the detected end, so that what is returned is detected.
    low, high = 1.0, policy.ALTERNATIVE
    at_low = margin(low)
    if at_low > 0.0:
        return claim
    while (at_high := margin(high)) <= 0.0:
        if high > _LARGEST_RATIO:
            raise UnsupportedError(
                f"Expected some epsilon to be noticed with power {power:g}, found none: the method "
                "has a ceiling, or there are too few canaries. Take more."
            )
        low, at_low, high = high, at_high, 2.0 * high
    return claim * close_bracket(margin, high, at_high, low, at_low, 5e-4)


def _fewest(draft: AuditPlan, name: str) -> int:
    """The smallest whole number that gives the power, where more of it gives more."""
    simulated = _expected_evidence(replace(draft, present=2, absent=2, steps=1)) is None
    most = _MOST_SIMULATED if simulated else (_MOST_STEPS if name == "steps" else _MOST)

    def enough(count: int) -> bool:
        changed: dict[str, Any] = {name: count}
        return _power(replace(draft, **changed)) >= draft.power

    low, high = 1 if name != "steps" else 0, 2 if name != "steps" else 1
    while not enough(high):
        if high >= most:
            raise UnsupportedError(
                f"Expected some number of {name} to give power {draft.power:g}, found none up to "
                f"{high:,}: raise one of the others, or the alternative."
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
