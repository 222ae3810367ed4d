"""How much leaks: epsilon on one axis, its trade-off curve, and what other sizes would show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from askgauss import accounting
from askgauss.auditors.step_evidence import StepEvidence
from askgauss.exceptions import InvalidArgumentError, NotDefinedError
from askgauss.figures.missing import Missing, usable
from askgauss.figures.resized import resized
from askgauss.figures.summary import Summary
from askgauss.results import AuditResult
from askgauss.stats import gaussian
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "Bound",
    "Comparable",
    "EpsilonAxis",
    "EpsilonCurve",
    "Meaning",
    "TradeOffCurves",
    "epsilon_axis",
    "epsilon_by_canaries",
    "epsilon_by_steps",
    "tradeoff_curves",
]

Array = NDArray[np.float64]

# Auditors whose evidence says what a run of another size would have shown.
_OF_SCORES = "gaussian-shift", "gaussian-rectangle"
_OF_STEPS = "subsampled-gaussian"
_FALSE_POSITIVES = 0.01
_CANARY_FACTORS = 2.0 ** np.arange(-4, 5)
_STEP_FACTORS = 2.0 ** np.arange(-5, 3)
# Levels of the measured trade-off curve, and how finely its top is looked for.
_LEVELS = 40
_RESOLUTION = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One auditor's answer; the reason where it has none.

    Attributes:
        name: The method.
        lower: The bound; None where it has none.
        point: Its estimate.
        reason: Why there is no bound, or why it must not be used.
        usable: False where an assumption of the method failed a check.
    """

    name: str
    lower: float | None
    point: float | None = None
    reason: str = ""
    usable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonAxis:
    """Claimed and measured epsilon; the first bound is the one that decided."""

    claimed: float | None
    delta: float
    confidence: float
    bounds: tuple[Bound, ...]


class Comparable(Protocol):
    """A table of several auditors' bounds on the same scores."""

    @property
    def rows(self) -> Sequence[Any]:
        """One row an auditor."""


def epsilon_axis(result: AuditResult, comparison: Comparable | None = None) -> EpsilonAxis:
    """Claimed epsilon, the bound of the result, and those of a comparison.

    Args:
        result: The audit.
        comparison: Other auditors' bounds on the same scores, to be shown beside it.
    """
    bounds = [
        Bound(
            name=result.auditor.name,
            lower=result.epsilon_lower,
            point=result.epsilon_point,
            usable=usable(result),
        )
    ]
    if result.distribution_free is not None:
        bounds.append(Bound(name="without assumptions", lower=result.distribution_free))
    for row in () if comparison is None else comparison.rows:
        if row.label == result.auditor.name:
            continue
        bounds.append(
            Bound(
                name=row.label,
                lower=row.bound,
                point=row.estimate,
                reason=row.reason,
                usable=not row.reason.startswith("INVALID"),
            )
        )
    return EpsilonAxis(
        claimed=None if result.claim is None else result.claim.epsilon,
        delta=result.delta,
        confidence=result.confidence,
        bounds=tuple(bounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an attacker can do: claimed at most, measured at least; None where it is not known.

    Attributes:
        advantage: Largest true positive rate minus false positive rate, claimed and measured.
        true_positives: True positive rate at 1 % false positives.
        belief: Belief in presence that an even prior can rise to, but for events of probability
            delta.
        from_mechanism: Whether the claimed numbers are those of the described mechanism, rather
            than of the worst one the claimed epsilon and delta allow.
        from_gaussian: Whether they are those of a Gaussian mechanism, as the measured ones are.
    """

    advantage: tuple[float | None, float | None]
    true_positives: tuple[float | None, float | None]
    belief: tuple[float | None, float | None]
    from_mechanism: bool
    from_gaussian: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TradeOffCurves:
    """False negatives against false positives, and what they mean.

    Attributes:
        alpha: False positive rates.
        claim: The lowest curve the claimed epsilon and delta allow.
        mechanism: The curve of the claimed mechanism, where it is described.
        measured: The curve through the bounds at many deltas.
        observed: Error rates of thresholds on the scores: false positives, false negatives.
        meaning: What an attacker can do at such curves.
        missing: Why there is no measured curve; empty where there is one.
    """

    alpha: Array
    claim: Array | None
    mechanism: Array | None
    measured: Array | None
    observed: tuple[Array, Array] | None
    meaning: Meaning
    missing: str


def tradeoff_curves(result: AuditResult) -> TradeOffCurves:
    """The trade-off curve that was claimed, the one at the bound, and what they mean.

    A bound of a method that does not model the scores says nothing of the curve away from its own
    delta; then there is no measured curve.
    """
    # Fine at both ends, for logarithmic axes.
    small = np.geomspace(1e-7, 0.05, 60)
    alpha = np.concatenate([[0.0], small, np.linspace(0.06, 0.94, 60), 1.0 - small[::-1], [1.0]])
    claim = result.claim
    claimed = None if claim is None else TradeOff.epsilon_delta(claim.epsilon, claim.delta)
    mechanism, missing = _mechanism_curve(result), _no_profile(result)
    bound_at = _bound_at(result)
    profile = None if missing else _profile(result, bound_at)
    measured = None if profile is None else TradeOff.from_profile(*zip(*profile, strict=True))
    bound = result.epsilon_lower if usable(result) else result.distribution_free
    scores = Summary.from_metadata(result.metadata).scores
    observed = None
    if scores is not None:
        above = np.cumsum(scores.absent_counts[::-1])[::-1] / scores.absent.count
        below = np.cumsum(scores.present_counts) / scores.present.count
        observed = above[1:], below[:-1]

    def drawn(curve: TradeOff | None) -> Array | None:
        return None if curve is None else curve.beta_at(alpha)

    # Compared with a Gaussian curve, a claim is read as one too: the larger epsilon leaks more
    # everywhere then.
    gaussian_claim = None
    if mechanism is None and claim is not None and measured is not None and claim.delta > 0.0:
        gaussian_claim = TradeOff.gaussian(gaussian.gdp_mu(claim.epsilon, claim.delta))
    tightest = mechanism or gaussian_claim or claimed
    return TradeOffCurves(
        alpha=alpha,
        claim=drawn(claimed),
        mechanism=drawn(mechanism),
        measured=drawn(measured),
        observed=observed,
        meaning=Meaning(
            advantage=(
                None if tightest is None else tightest.advantage(),
                None if profile is None else profile[0][1],
            ),
            true_positives=(
                None if tightest is None else 1.0 - tightest.beta_at(_FALSE_POSITIVES),
                None if profile is None else _least_true_positives(profile, bound_at),
            ),
            belief=(
                None if claim is None else float(expit(claim.epsilon)),
                None if bound is None else float(expit(bound)),
            ),
            from_mechanism=mechanism is not None,
            from_gaussian=gaussian_claim is not None,
        ),
        missing=missing,
    )


def _mechanism_curve(result: AuditResult) -> TradeOff | None:
    """The curve of the mechanism that was claimed, where the claim describes it."""
    claim = result.claim
    if claim is None or not claim.noise_multiplier:
        return None
    if claim.sampling_rate is None or claim.steps is None or claim.adjacency == "replace":
        return None
    return accounting.dpsgd_tradeoff(
        noise_multiplier=claim.noise_multiplier,
        sampling_rate=claim.sampling_rate,
        steps=claim.steps,
    )


def _no_profile(result: AuditResult) -> str:
    """Why the bound says nothing of other deltas; empty where it does."""
    if not usable(result):
        return "An assumption of the bound failed, so there is no measured curve."
    if not result.assumption.gaussian_curve:
        return "This method bounds epsilon at one delta: there is no measured curve."
    if math.isinf(result.epsilon_lower):
        return "No finite epsilon fits, so there is no measured curve."
    if result.epsilon_lower == 0.0:
        return "The bound is 0, so there is no measured curve."
    if not _answers_everywhere(result):
        return "A measured curve needs the sampling rate and the number of steps of the scores."
    return ""


def _bound_at(result: AuditResult) -> Callable[[float], float]:
    """The bound at any delta.

    Of a composed bound the ratio of signal to noise behind it is found once: to ask the auditor
    would fit every tensor again for every delta.
    """
    evidence, epsilon = result.evidence, result.epsilon_lower
    rate = (
        None if getattr(evidence, "replaced", False) else getattr(evidence, "sampling_rate", None)
    )
    if result.auditor.name != _OF_STEPS or rate is None or not 0.0 < epsilon < math.inf:
        return lambda delta: result.epsilon_at(delta=delta)
    run = {"sampling_rate": rate, "steps": evidence.steps}
    # The ratio is given to seven digits and rounded up; give up more than that.
    signal = (1.0 - 1e-6) * accounting.dpsgd_signal_to_noise(
        epsilon=epsilon, delta=result.delta, **run
    )
    return lambda delta: accounting.dpsgd_epsilon_lower(signal_to_noise=signal, delta=delta, **run)


def _profile(result: AuditResult, bound_at: Callable[[float], float]) -> list[tuple[float, float]]:
    """Bounds on epsilon at many deltas, as pairs of rising epsilon and falling delta.

    Where the scores are modelled, one event makes all of them true together. The first epsilon is
    0, and its delta the least advantage.
    """
    low, high = result.delta, 1.0
    while high - low > _RESOLUTION * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bound_at(middle) > 0.0 else (low, middle)
    pairs = [(0.0, low)]
    # Most levels where a picture shows them, and a few for the steep end.
    middle = min(1e-3, 0.1 * low)
    visible = ndtr(np.linspace(ndtri(low), ndtri(middle), _LEVELS))
    steep = np.geomspace(middle, 0.01 * min(result.delta, middle), 5)[1:]
    for delta in np.concatenate([visible, steep]).tolist():
        epsilon = bound_at(delta)
        if pairs[-1][0] < epsilon < math.inf:
            pairs.append((epsilon, delta))
    return pairs


def _answers_everywhere(result: AuditResult) -> bool:
    """Whether the method vouches for its bound at every delta."""
    try:
        result.epsilon_at(delta=0.5)
    except (InvalidArgumentError, NotDefinedError):
        return False
    return True


def _least_true_positives(
    profile: list[tuple[float, float]], bound_at: Callable[[float], float]
) -> float:
    """The true positive rate at 1 % false positives, from below.

    It is the least of ``delta + e^epsilon alpha`` over the whole profile (and of the same with the
    roles exchanged). Between two pairs it is at least what the smaller epsilon gives with the
    smaller delta; the interval where that is least is halved until it is known well enough.
    """
    alpha = _FALSE_POSITIVES

    def rate(epsilon: float, delta: float) -> float:
        growth = math.exp(min(epsilon, 700.0))
        return min(delta + growth * alpha, 1.0 - (1.0 - delta - alpha) / growth)

    pairs = [*profile, (math.inf, 0.0)]
    while True:
        floors = [rate(left[0], right[1]) for left, right in pairwise(pairs)]
        best = min(rate(*pair) for pair in profile)
        place = int(np.argmin(floors))
        left, right = pairs[place], pairs[place + 1]
        if floors[place] >= 0.97 * best or len(pairs) > 3 * _LEVELS or right[1] == 0.0:
            return max(floors[place], alpha)
        delta = float(ndtr(0.5 * (ndtri(left[1]) + ndtri(right[1]))))
        epsilon = min(max(bound_at(delta), left[0]), right[0])
        pairs.insert(place + 1, (epsilon, delta))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpsilonCurve:
    """The bound this method would report of the same run at other sizes.

    Attributes:
        size: Number of canaries, or of steps.
        lower: The bound there.
        point: The estimate of epsilon there.
        here: The size of this audit.
        bound: Its bound.
        claimed: The claimed epsilon.
    """

    size: Array
    lower: Array
    point: Array
    here: float
    bound: float
    claimed: float | None


def epsilon_by_canaries(result: AuditResult) -> EpsilonCurve | Missing:
    """The bound with more or fewer canaries, all else as measured."""
    if missing := _no_law(result):
        return missing
    total = result.present + result.absent
    factors = _CANARY_FACTORS[_CANARY_FACTORS * min(result.present, result.absent) >= 2.0]
    evidence = _pooled(result.evidence)
    found = [(factor * total, resized(evidence, factor)) for factor in factors]
    return _epsilon_curve(result, found, float(total))


def epsilon_by_steps(result: AuditResult) -> EpsilonCurve | Missing:
    """The bound after more or fewer steps, all else as measured."""
    name, evidence = result.auditor.name, _pooled(result.evidence)
    if missing := _no_law(result):
        return missing
    if evidence.steps is None or getattr(evidence, "slope", None) is not None:
        return Missing(reason="needs the number of steps, each with the same noise.")
    run = Summary.from_metadata(result.metadata).run
    if name != _OF_STEPS and (run.source != "transcript" and evidence.sampling_rate == 1.0):
        # Correlated noise looks the same in the scores, and grows otherwise.
        return Missing(reason="needs a transcript, or scores of sampled canaries.")
    here: int = evidence.steps
    found = []
    for steps in np.unique(np.rint(_STEP_FACTORS * here)).astype(int).tolist():
        if steps < 1:
            continue
        if name == _OF_STEPS:
            if evidence.plantings * steps < 2 * here:
                continue
            found.append((steps, replace(resized(evidence, steps / here), steps=steps)))
        else:
            # In units of the noise of a score, the shift grows with the root of the steps.
            gap = evidence.present.mean - evidence.absent.mean
            mean = evidence.absent.mean + gap * math.sqrt(steps / here)
            present = replace(evidence.present, mean=mean)
            found.append((steps, replace(evidence, steps=steps, present=present)))
    return _epsilon_curve(result, found, float(here))


def _no_law(result: AuditResult) -> Missing | None:
    name, point = result.auditor.name, result.epsilon_point
    if name not in (*_OF_SCORES, _OF_STEPS):
        return Missing(reason=f"{name} has no law to say what other sizes would show.")
    if not usable(result):
        return Missing(reason="an assumption of the bound failed.")
    if point is not None and result.epsilon_lower > point:
        return Missing(reason="the bound is that of one tensor, above the estimate from all.")
    return None


def _pooled(evidence: Any) -> Any:
    """Evidence of all tensors together.

    Scaled by itself, what a small tensor shows by chance would become certain, and the largest of
    many tensors' bounds would be drawn.
    """
    if not isinstance(evidence, StepEvidence):
        return evidence
    return replace(evidence, strata=evidence.strata[:1], weighted=evidence.weighted[:1])


def _epsilon_curve(
    result: AuditResult, found: Sequence[tuple[float, Any]], here: float
) -> EpsilonCurve | Missing:
    rows = []
    for size, evidence in found:
        lower = result.auditor.epsilon_lower(
            evidence, delta=result.delta, confidence=result.confidence
        )
        point = result.auditor.epsilon_point(evidence, delta=result.delta)
        if point is not None and math.isfinite(lower) and math.isfinite(point):
            rows.append((float(size), lower, point))
    if len(rows) < 2:
        return Missing(reason="needs a finite bound.")
    size, lower, point = np.array(rows).T
    return EpsilonCurve(
        size=size,
        lower=lower,
        point=point,
        here=here,
        bound=result.epsilon_lower,
        claimed=None if result.claim is None else result.claim.epsilon,
    )
