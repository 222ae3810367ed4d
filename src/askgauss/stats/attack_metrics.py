"""Figures of a membership-inference attack, each with an interval.

They describe this attack on these records. A bound on epsilon is about every attack; these are not,
and a weak attack says nothing of a strong one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtri

from askgauss import _validate
from askgauss.stats import gaussian
from askgauss.stats.limits import clopper_pearson_lower, clopper_pearson_upper
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "AttackMeaning",
    "AttackMetrics",
    "Estimate",
    "GaussianPrivacy",
    "area_interval",
    "attack_metrics",
    "gaussian_privacy",
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
    """What a trade-off curve lets an attacker do (Dong, Roth and Su, arXiv 1905.02383).

    On a claimed curve it is the most that any attacker can do; on a measured one, at least as much
    as this audit's could.

    Attributes:
        advantage: Largest true positive rate minus false positive rate.
        true_positives: True positive rates at the false positive rates asked for.
        reconstruction: Chance to name a record, of one who would guess it with the prior chance. To
            name the record is to be right in an event that without the release has the prior's
            probability, so the curve bounds it like any other event (Hayes et al., 2302.07225).
        area: Area under the curve of true against false positives.
    """

    advantage: float
    true_positives: tuple[float, ...]
    reconstruction: float
    area: float

    @classmethod
    def of(
        cls, curve: TradeOff, *, prior: float, false_positive_rates: Sequence[float] = (0.01, 0.001)
    ) -> AttackMeaning:
        """Everything that one curve says, at a stated prior.

        Examples:
            >>> found = AttackMeaning.of(TradeOff.gaussian(1.0), prior=0.1)
            >>> round(found.reconstruction, 4), round(found.true_positives[1], 4)
            (0.3891, 0.0183)
        """
        _validate.within(0.0, 1.0, closed="right", prior=prior)
        alpha, beta = curve.points()
        return cls(
            advantage=curve.advantage(),
            true_positives=tuple(1.0 - curve.beta_at(float(rate)) for rate in false_positive_rates),
            reconstruction=1.0 - curve.beta_at(float(prior)),
            area=float(1.0 - np.trapezoid(beta, alpha)),
        )


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


# Points of a ROC curve that are kept.
_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured figure and its confidence interval."""

    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.lower:.3g}, {self.upper:.3g}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackMetrics:
    """What an attack that thresholds the scores achieves on the audited records.

    Attributes:
        auc: Area under the ROC curve, with DeLong's interval.
        advantage: Largest true-positive minus false-positive rate over all thresholds. The interval
            holds for all thresholds at once (Dvoretzky-Kiefer-Wolfowitz), so it is wide.
        members: Number of members.
        non_members: Number of non-members.
        confidence: Confidence of every interval.
        roc: False- and true-positive rates of the ROC curve, from (0, 0) to (1, 1).
    """

    auc: Estimate
    advantage: Estimate
    members: int
    non_members: int
    confidence: float
    roc: tuple[tuple[float, float], ...] = field(repr=False)
    _true_positives: tuple[int, ...] = field(repr=False)

    def tpr_at(self, fpr: float) -> Estimate | None:
        """The true-positive rate at the largest threshold with at most this false-positive rate.

        The threshold is set on the non-members alone. Given it, true positives are binomial, so
        the interval is Clopper and Pearson's. None where there are fewer than ``1 / fpr``
        non-members, of whom not even one may be above the threshold.

        Args:
            fpr: False-positive rate, in (0, 1).
        """
        _validate.probability(fpr=fpr)
        allowed = math.floor(fpr * self.non_members)
        if allowed < 1:
            return None
        found = self._true_positives[allowed]
        half = 0.5 * (1.0 - self.confidence)
        return Estimate(
            value=found / self.members,
            lower=clopper_pearson_lower(found, self.members, half),
            upper=clopper_pearson_upper(found, self.members, half),
        )


def attack_metrics(
    present: ArrayLike, absent: ArrayLike, *, confidence: float = 0.95
) -> AttackMetrics:
    """Figures of the attack that calls records with a high score members.

    Args:
        present: Scores of members; higher means more likely a member.
        absent: Scores of non-members.
        confidence: Confidence of each interval.

    Assumes:
        Scores are independent, those of each group from one distribution.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> found = attack_metrics(rng.normal(1, 1, 2000), rng.normal(0, 1, 2000))
        >>> found.auc.lower < 0.760 < found.auc.upper
        True
    """
    _validate.probability(confidence=confidence)
    ones = np.sort(_validate.finite_vector("present", present))
    zeros = np.sort(_validate.finite_vector("absent", absent))
    for name, scores in (("present", ones), ("absent", zeros)):
        if scores.size < 2:
            raise _validate.fail(f"the number of {name} scores", scores.size, ">= 2")
    # Members above the k-th largest non-member, for every k: those ties with it do not count.
    above = ones.size - np.searchsorted(ones, zeros[::-1], side="right")
    gap, at = _largest_gap(ones, zeros)
    reach = sum(
        math.sqrt(math.log(4.0 / (1.0 - confidence)) / (2.0 * size))
        for size in (ones.size, zeros.size)
    )
    return AttackMetrics(
        auc=_auc(ones, zeros, confidence),
        advantage=Estimate(value=gap, lower=max(0.0, gap - reach), upper=min(1.0, gap + reach)),
        members=ones.size,
        non_members=zeros.size,
        confidence=confidence,
        roc=at,
        # With k false positives allowed, the threshold is the (k + 1)-th largest non-member.
        _true_positives=(*(int(count) for count in above), ones.size),
    )


def _auc(ones: NDArray[np.float64], zeros: NDArray[np.float64], confidence: float) -> Estimate:
    """DeLong's interval, on the logit scale, which keeps it inside (0, 1)."""
    value, low, high = area_interval(ones, zeros, confidence=confidence)
    placed_ones = _placements(ones, zeros)
    placed_zeros = 1.0 - _placements(zeros, ones)
    variance = placed_ones.var(ddof=1) / ones.size + placed_zeros.var(ddof=1) / zeros.size
    if not (0.0 < value < 1.0 and variance > 0.0):
        # Groups that do not overlap have no variance to estimate: the distribution-free interval.
        return Estimate(value=value, lower=low, upper=high)
    reach = float(ndtri(0.5 + 0.5 * confidence)) * math.sqrt(variance) / (value * (1.0 - value))
    centre = float(logit(value))
    low, high = (float(expit(centre + side * reach)) for side in (-1.0, 1.0))
    return Estimate(value=value, lower=low, upper=high)


def _placements(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the others below each value, ties counting half."""
    below = np.searchsorted(others, values, side="left")
    below = below + np.searchsorted(others, values, side="right")
    return np.asarray(below / (2.0 * others.size))


def _largest_gap(
    ones: NDArray[np.float64], zeros: NDArray[np.float64]
) -> tuple[float, tuple[tuple[float, float], ...]]:
    thresholds = np.unique(np.concatenate([ones, zeros]))[::-1]
    true = 1.0 - np.searchsorted(ones, thresholds, side="left") / ones.size
    false = 1.0 - np.searchsorted(zeros, thresholds, side="left") / zeros.size
    kept = np.unique(np.linspace(0, thresholds.size - 1, _POINTS).astype(np.int64))
    curve = ((0.0, 0.0), *zip(false[kept].tolist(), true[kept].tolist(), strict=True), (1.0, 1.0))
    return max(0.0, float((true - false).max())), curve
