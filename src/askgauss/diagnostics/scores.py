"""Checks that need only the scores: are they what a Gaussian bound takes them for?"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.diagnostics.tails import ratio_p_value, ratio_tail
from askgauss.results import Assumption, Consequence, Finding
from askgauss.scores import CanaryScores
from askgauss.stats import normality
from askgauss.stats.score_law import ScoreLaw
from askgauss.stats.shift import ShiftTest, sampling_variance

__all__ = ["score_checks"]

_FEWEST_FOR_SHAPE = 20
_FEWEST_FOR_SPREAD = 5
_BLOCKS = 20
# Skewness or kurtosis of the exact law counts as visible from so many standard errors on.
_VISIBLE = 0.2
# Variance that sampling may add, relative to the noise: beyond the first, a ratio of variances is
# no longer distributed as one of Gaussian samples; beyond the second, the fit of the law decides.
_MOST_ADDED = 0.1
_MOST_ADDED_TO_SHAPE = 0.5
# The exact law is slow; so many scores are enough to tell its shape.
_THROUGH_THE_LAW = 5000
# What the Anderson-Darling statistic of Gaussian samples exceeds in one of twenty (Stephens 1974).
_USUAL = 0.75
_MORE_STEPS = "more sampled steps, or a transcript, to tell noise from sampling"


@dataclass(frozen=True, slots=True)
class _Residuals:
    """What is left of the scores once what is known of their means is taken out.

    Attributes:
        all: One for each canary, in order.
        member: True where the canary was present.
        freedom: Degrees of freedom of the two.
        law: Steps, sampling rate and shift of the present ones where these are still a mixture.
        explained: Whether present residuals are the noise and nothing else.
    """

    all: NDArray[np.float64]
    member: NDArray[np.bool_]
    freedom: tuple[float, float]
    law: tuple[int, float, float] | None
    explained: bool

    @property
    def added(self) -> float:
        """Variance that sampling adds to present scores, relative to the noise."""
        if self.law is None:
            return 0.0
        steps, rate, shift = self.law
        return sampling_variance(steps, rate) * shift**2

    @property
    def groups(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Those of present and of absent canaries."""
        return self.all[self.member], self.all[~self.member]

    @property
    def variances(self) -> tuple[float, float]:
        """Their variances."""
        present, absent = self.groups
        return float(present @ present) / self.freedom[0], float(absent @ absent) / self.freedom[1]


def score_checks(
    scores: CanaryScores, planted: NDArray[np.int64] | None = None
) -> Iterator[Finding]:
    """Every check that scores alone allow.

    Args:
        scores: The scores.
        planted: In how many steps each canary was planted, where a transcript tells: the noise of
            present scores is then seen by itself.
    """
    residuals = _residuals(scores, planted)
    yield _duplicates(scores)
    yield _normality("absent", residuals)
    yield _normality("present", residuals)
    yield _equal_variance(residuals)
    yield _drift(residuals)
    yield _placebo(scores)


def _residuals(scores: CanaryScores, planted: NDArray[np.int64] | None) -> _Residuals:
    moments, metadata = scores.moments(), scores.metadata
    left = np.where(scores.member, scores.score - moments[0].mean, scores.score - moments[1].mean)
    freedom = moments[0].count - 1.0, moments[1].count - 1.0
    steps, rate = metadata.steps, metadata.sampling_rate
    signal = planted if planted is not None else scores.relative_shift
    law, explained = None, signal is not None or rate == 1.0
    if signal is not None:
        expected = signal[scores.member].astype(np.float64)
        expected -= expected.mean()
        square = float(expected @ expected)
        if square > 0.0 and freedom[0] >= 3.0:
            found = left[scores.member]
            left[scores.member] = found - expected * float(expected @ found) / square
            freedom = freedom[0] - 1.0, freedom[1]
    elif not explained and steps is not None and rate is not None:
        law = steps, rate, _fitted_shift(scores, steps, rate)
    return _Residuals(left, scores.member, freedom, law, explained)


def _fitted_shift(scores: CanaryScores, steps: int, rate: float) -> float:
    present, absent = scores.moments()
    test = ShiftTest(
        present=(present.count, present.mean, present.sum_of_squares),
        absent=(absent.count, absent.mean, absent.sum_of_squares),
        kappa=sampling_variance(steps, rate),
    )
    return test.lower(0.5)


def _normality(group: str, residuals: _Residuals) -> Finding:
    name = f"normality of {group} scores"
    values = residuals.groups[0 if group == "present" else 1]
    if values.size < _FEWEST_FOR_SHAPE:
        return not_run(name, f"{_FEWEST_FOR_SHAPE} {group} canaries, got {values.size}")
    if float(np.ptp(values)) == 0.0:
        return not_run(name, "scores that vary")
    sampled = group == "present" and not residuals.explained
    if sampled and residuals.law is not None:
        if not residuals.added < _MOST_ADDED_TO_SHAPE:
            return not_run(name, _MORE_STEPS)
        values = _through_the_law(values, residuals.law)
        if not np.isfinite(values).all():
            return not_run(name, "noise in the scores")
    statistic, p_value = normality.anderson_darling(values)
    # Where nobody says how canaries were sampled, present scores may be any mixture.
    unknown = sampled and residuals.law is None
    return judged(
        name,
        p_value,
        "their Anderson-Darling distance from "
        f"{'their law' if sampled and residuals.law is not None else 'a Gaussian'} is "
        f"{statistic:.2f}, where chance rarely gives more than {_USUAL}.",
        consequence=Consequence.LOOSENS if unknown else Consequence.INVALIDATES,
        measured=statistic,
        remedy="Give the scores steps= and sampling_rate= if they are known: sampling makes "
        "present scores a mixture."
        if unknown
        else "Look at the scores: outliers, several populations, heavy tails. Read the "
        "distribution-free bound until this is understood.",
    )


def _through_the_law(
    values: NDArray[np.float64], law: tuple[int, float, float]
) -> NDArray[np.float64]:
    """Centred scores of a mixture, carried to what they would be in a Gaussian."""
    steps, rate, shift = law
    if not 0.0 < shift < math.inf:
        return values
    height = rate * math.sqrt(steps)
    exact = ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=height / shift)
    visible = max(
        abs(exact.skewness) * math.sqrt(values.size / 6.0),
        abs(exact.excess_kurtosis) * math.sqrt(values.size / 24.0),
    )
    if visible < _VISIBLE:
        return values
    values = values[:: -(-values.size // _THROUGH_THE_LAW)]
    placed = exact.mean + values / values.std(ddof=1) * math.sqrt(exact.variance)
    below = exact.cdf(placed)
    # Beyond the middle the other tail is the more exact one.
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(below < 0.5, ndtri(below), -ndtri(exact.sf(placed))))


def _equal_variance(residuals: _Residuals) -> Finding:
    name, (present, absent) = "equal variance", residuals.variances
    if absent == 0.0 or min(residuals.freedom) < _FEWEST_FOR_SPREAD - 1:
        return not_run(name, f"{_FEWEST_FOR_SPREAD} canaries of each kind, and scores that vary")
    if not residuals.added < _MOST_ADDED:
        return not_run(name, _MORE_STEPS)
    ratio = present / absent / (1.0 + residuals.added)
    above = ratio > 1.0
    # Sampling at an unknown rate adds variance to present scores, and no harm.
    unknown = not residuals.explained and residuals.law is None
    return judged(
        name,
        ratio_p_value(ratio, *residuals.freedom),
        f"present scores vary {ratio:.3f} times as much as the noise of absent ones explains.",
        consequence=Consequence.INVALIDATES if above and not unknown else Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Check that every present canary is planted with the same norm and sampled at the "
        "same rate; give the scores steps= and sampling_rate= if they are known.",
    )


def _drift(residuals: _Residuals) -> Finding:
    """Whether the mean residual changes along the canary index: drift, or bands."""
    name, (present, absent) = "identical distribution", residuals.variances
    size = residuals.all.size
    if size < 10 * _BLOCKS:
        return not_run(name, f"{10 * _BLOCKS} canaries, got {size}")
    if min(present, absent) == 0.0:
        return not_run(name, "scores that vary")
    standard = residuals.all / np.sqrt(np.where(residuals.member, present, absent))
    edges = np.linspace(0, size, _BLOCKS + 1).astype(np.int64)
    sums, counts = np.add.reduceat(standard, edges[:-1]), np.diff(edges)
    between = float((sums**2 / counts).sum())
    within = float((standard**2).sum()) - between
    freedom = _BLOCKS - 1, size - _BLOCKS - 1
    ratio = (between / freedom[0]) / (within / freedom[1])
    return judged(
        name,
        ratio_tail(ratio, *freedom),
        f"the mean score varies along the canary index by {ratio:.2f} times what chance gives.",
        consequence=Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Draw canary coordinates at random over all tensors, and subtract the background.",
    )


def _duplicates(scores: CanaryScores) -> Finding:
    """Scores that are exactly equal: one canary counted twice, or noise used twice."""
    size = len(scores)
    repeated = size - np.unique(scores.score).size
    return fact(
        "duplicate scores",
        repeated > 3 + size // 100 + _chance_repeats(scores),
        f"{repeated:,} of {size:,} scores repeat another one exactly.",
        consequence=Consequence.INVALIDATES,
        measured=float(repeated),
        claimed=0.0,
        remedy="A canary counted twice, or one noise for several coordinates, makes the bound too "
        "high: make canaries distinct and look at how noise is drawn.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _chance_repeats(scores: CanaryScores) -> float:
    """Many times the repeats that scores of single precision have by chance.

    Those of double precision have none; any number of canaries that fits in memory is too few.
    """
    values = scores.score
    spread = float(values.std())
    if spread == 0.0 or (values != values.astype(np.float32)).any():
        return 0.0
    spacing = float(np.spacing(np.float32(np.abs(values).max())))
    return float(values.size) ** 2 * spacing / spread


def _placebo(scores: CanaryScores) -> Finding:
    """An audit with membership shuffled must find nothing."""
    # Seeded by the scores themselves: a fixed shuffle may happen to resemble the membership.
    digest = hashlib.sha256(scores.score.tobytes()).digest()
    generator = np.random.default_rng(int.from_bytes(digest, "little"))
    shuffled = generator.permutation(scores.member)
    count, other = int(shuffled.sum()), int(shuffled.size - shuffled.sum())
    values = scores.score
    spread = float(values.var(ddof=1))
    if spread == 0.0:
        return not_run("placebo", "scores that vary")
    gap = float(values[shuffled].mean() - values[~shuffled].mean())
    # Given the scores, a shuffled difference of means has exactly this variance.
    error = math.sqrt(spread * (1.0 / count + 1.0 / other))
    return judged(
        "placebo",
        2.0 * float(ndtr(-abs(gap) / error)),
        f"with membership shuffled the groups differ by {gap / error:+.2f} standard errors.",
        consequence=Consequence.INVALIDATES,
        measured=gap / error,
        claimed=0.0,
        remedy="Something other than membership separates the groups: look at how canaries were "
        "ordered and scored.",
        undermines=Assumption.DISTRIBUTION_FREE,
    )
