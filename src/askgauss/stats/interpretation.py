"""What a trade-off curve means to an attacker, and the area under the curve of measured scores.

All but the last read one curve (Dong, Roth and Su, arXiv 1905.02383). On a claimed curve they are
the most that any attacker can do; on a measured one, at least as much as this audit's could.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "AttackMeaning",
    "GaussianPrivacy",
    "area",
    "area_interval",
    "attack_meaning",
    "gaussian_privacy",
    "reconstruction_bound",
    "true_positive_rate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianPrivacy:
    """A privacy loss as the distance of two unit Gaussians, mu.

    Attributes:
        lower: Lower bound on mu, at the result's confidence.
        interval: Two-sided interval of mu at that confidence; None where the method is only
            one-sided.
        claimed: The mu whose curve has the claimed epsilon at the claimed delta.
        confidence: Confidence of both.
    """

    lower: float
    interval: tuple[float, float] | None
    claimed: float | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackMeaning:
    """What a curve lets an attacker do.

    Attributes:
        advantage: Largest true positive rate minus false positive rate.
        true_positives: True positive rates at the false positive rates asked for.
        reconstruction: Chance to name a record, of one who would guess it with the prior chance.
        area: Area under the curve of true against false positives.
    """

    advantage: float
    true_positives: tuple[float, ...]
    reconstruction: float
    area: float


def gaussian_privacy(
    *,
    epsilon_lower: float,
    epsilon_interval: tuple[float, float] | None,
    delta: float,
    claimed: tuple[float, float] | None,
    confidence: float,
) -> GaussianPrivacy:
    """The mu of the Gaussian curves that have these epsilons at these deltas.

    Args:
        epsilon_lower: Lower bound on epsilon.
        epsilon_interval: Two-sided interval of epsilon, if there is one.
        delta: The delta of both.
        claimed: Claimed epsilon and delta, if any.
        confidence: Confidence of the bound and of the interval.

    Examples:
        >>> found = gaussian_privacy(epsilon_lower=4.3772, epsilon_interval=None, delta=1e-5,
        ...                          claimed=(9.9973, 1e-5), confidence=0.95)
        >>> round(found.lower, 3), round(found.claimed, 3)
        (1.0, 2.0)
    """

    def mu(epsilon: float, level: float) -> float:
        return math.inf if math.isinf(epsilon) else float(gaussian.gdp_mu(epsilon, level))

    ends = None
    if epsilon_interval is not None:
        ends = (mu(epsilon_interval[0], delta), mu(epsilon_interval[1], delta))
    return GaussianPrivacy(
        lower=mu(epsilon_lower, delta),
        interval=ends,
        claimed=None if claimed is None else mu(*claimed),
        confidence=confidence,
    )


def true_positive_rate(curve: TradeOff, false_positive_rate: float) -> float:
    """The true positive rate that a curve allows at a false positive rate, in [0, 1].

    Examples:
        >>> round(true_positive_rate(TradeOff.gaussian(1.0), 0.001), 4)
        0.0183
    """
    _validate.within(0.0, 1.0, closed="both", false_positive_rate=false_positive_rate)
    return 1.0 - curve.beta_at(float(false_positive_rate))


def reconstruction_bound(curve: TradeOff, prior: float) -> float:
    """Most that the chance to reconstruct a record rises to, from a prior chance.

    To name the record is to be right in an event that without the release has the prior's
    probability, so the curve bounds it like any other event (Hayes et al., arXiv 2302.07225).

    Args:
        curve: A curve at or below the mechanism's.
        prior: Chance of success of the best guess without the release, in (0, 1].

    Examples:
        >>> round(reconstruction_bound(TradeOff.gaussian(1.0), 0.1), 4)
        0.3891
    """
    _validate.within(0.0, 1.0, closed="right", prior=prior)
    return 1.0 - curve.beta_at(float(prior))


def area(curve: TradeOff) -> float:
    """Area under the curve of true against false positive rates.

    Examples:
        >>> round(area(TradeOff.epsilon_delta(0.0, 0.0)), 6)
        0.5
    """
    alpha, beta = curve.points()
    return float(1.0 - np.trapezoid(beta, alpha))


def attack_meaning(
    curve: TradeOff, *, prior: float, false_positive_rates: tuple[float, ...] = (0.01, 0.001)
) -> AttackMeaning:
    """Everything that one curve says, at a stated prior."""
    return AttackMeaning(
        advantage=curve.advantage(),
        true_positives=tuple(true_positive_rate(curve, rate) for rate in false_positive_rates),
        reconstruction=reconstruction_bound(curve, prior),
        area=area(curve),
    )


def area_interval(
    present: ArrayLike, absent: ArrayLike, *, confidence: float
) -> tuple[float, float, float]:
    """Area under the curve of two groups of scores, with an interval that holds for any law.

    The area is the share of pairs in which the present score is higher, ties counting half: an
    average over matchings of the smaller group into the larger, each a mean of as many independent
    numbers in [0, 1]. So Hoeffding's bound by relative entropy holds with the smaller count
    (Hoeffding 1963, section 5).

    Args:
        present: Scores of present canaries.
        absent: Scores of absent canaries.
        confidence: Probability that the interval holds the true area.

    Returns:
        The area, its lower and its upper limit.

    Assumes:
        Independent scores, of one law in each group.

    Examples:
        >>> low, high = area_interval([1.0] * 50, [0.0] * 50, confidence=0.95)[1:]
        >>> round(low, 3), high
        (0.929, 1.0)
    """
    _validate.probability(confidence=confidence)
    ones = _validate.finite_vector("present", present)
    zeros = np.sort(_validate.finite_vector("absent", absent))
    for name, scores in (("present", ones), ("absent", zeros)):
        if scores.size == 0:
            raise _validate.fail(f"the number of {name} scores", 0, ">= 1")
    below = np.searchsorted(zeros, ones, side="left") + np.searchsorted(zeros, ones, side="right")
    measured = float(below.mean()) / (2.0 * zeros.size)
    budget = math.log(2.0 / (1.0 - confidence)) / min(ones.size, zeros.size)
    lower = _limit(measured, budget)
    return measured, lower, 1.0 - _limit(1.0 - measured, budget)


def _limit(measured: float, budget: float) -> float:
    """The smallest mean whose divergence from the measured one is within the budget."""
    low, high = 0.0, measured
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _divergence(measured, middle) > budget:
            low = middle
        else:
            high = middle
    return low


def _divergence(first: float, second: float) -> float:
    total = 0.0
    for one, two in ((first, second), (1.0 - first, 1.0 - second)):
        if one > 0.0:
            total += math.inf if two <= 0.0 else one * math.log(one / two)
    return total
