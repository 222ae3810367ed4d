"""Checks that need only the scores: whether they are what a Gaussian bound assumes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, chdtri, ndtri

from askgauss.checks.registry import NOISE_FRESHNESS, check, fact, judged, made, not_run
from askgauss.checks.tails import ratio_p_value, ratio_tail
from askgauss.results import Assumption, Consequence, Finding
from askgauss.scores import CanaryScores
from askgauss.stats import normality
from askgauss.stats.limits import binomial_weights
from askgauss.stats.rounding import round_deviations, round_p_value
from askgauss.stats.score_law import ScoreLaw
from askgauss.stats.shift import sampling_variance

__all__ = ["score_checks"]

_FEWEST_FOR_SHAPE = 20
_FEWEST_FOR_SPREAD = 5
# This many equal scores that lie on no grid are no accident.
_FEWEST_ALIKE = 3
_BLOCKS = 20
# Skewness or kurtosis of the exact distribution matters from this many standard errors on.
_VISIBLE = 0.2
# Where it does not matter, it makes extreme scores at most this many times as likely.
_SAMPLED_TAIL = 2.0
# The shift lies outside its interval with this probability, which is added to the p-values.
_OUTSIDE = 1e-9
# Shifts in that interval that are tried, and scores that each is compared with.
_TRIED = 24
_COMPARED = 128
# The largest density of a Gaussian in units of its width, and some more.
_DENSEST = 0.42
_LOOK = (
    "Look at the scores for outliers, several populations or heavy tails. Use the "
    "distribution-free bound until this is understood."
)
_DISTINCT = (
    "Make canaries distinct and check how noise is drawn: a canary counted twice, or one noise for "
    "several coordinates, makes the bound too high."
)
_CLAMPED = (
    "Find the canaries without noise; where results are clamped, do not declare Gaussian noise."
)
_INDEPENDENT = Assumption.INDEPENDENT_CANARIES
_MORE_STEPS = "more sampled steps, or a transcript, to separate noise from sampling"


@dataclass(frozen=True, slots=True)
class _Sampling:
    """How sampling distributes the scores of inserted canaries, given an interval of the shift."""

    steps: int
    rate: float
    shifts: tuple[float, float]

    def added(self, shift: float) -> float:
        """Variance that sampling adds to the scores of inserted canaries, relative to the noise."""
        return sampling_variance(self.steps, self.rate) * shift**2

    def visible(self, count: int) -> bool:
        """Whether this many scores could show that they are not Gaussian, at any of the shifts."""
        shift = self.shifts[1]
        if shift == 0.0:
            return False
        if math.isinf(shift):
            return True
        # Skewness and kurtosis grow with the shift.
        height = self.rate * math.sqrt(self.steps)
        law = ScoreLaw(steps=self.steps, sampling_rate=self.rate, noise_multiplier=height / shift)
        return (
            max(
                abs(law.skewness) * math.sqrt(count / 6.0),
                abs(law.excess_kurtosis) * math.sqrt(count / 24.0),
            )
            >= _VISIBLE
        )


@dataclass(frozen=True, slots=True)
class ScoreResiduals:
    """Scores less what is known of their means.

    Attributes:
        scores: The scores.
        alone: Whether scores are all that is known; a transcript's extremes are tested by step.
        all: One for each canary, in order.
        member: True where the canary was inserted.
        freedom: Degrees of freedom of the two groups.
        sampling: The distribution of inserted canaries' scores where it is still a mixture.
        explained: Whether inserted canaries' residuals are noise only.
    """

    scores: CanaryScores
    alone: bool
    all: NDArray[np.float64]
    member: NDArray[np.bool_]
    freedom: tuple[float, float]
    sampling: _Sampling | None
    explained: bool

    @property
    def groups(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Those of inserted and of held-out canaries."""
        return self.all[self.member], self.all[~self.member]

    @property
    def variances(self) -> tuple[float, float]:
        """Their variances."""
        present, absent = self.groups
        return float(present @ present) / self.freedom[0], float(absent @ absent) / self.freedom[1]

    @property
    def mixed(self) -> bool:
        """Whether sampling may change the shape of the inserted canaries' scores."""
        count = int(np.count_nonzero(self.member))
        return self.sampling is not None and self.sampling.visible(count)


def score_checks(
    scores: CanaryScores, planted: NDArray[np.int64] | None = None
) -> Iterator[Finding]:
    """Every check that scores alone allow.

    Args:
        scores: The scores.
        planted: In how many steps each canary was included, where a transcript says so: it
            separates the noise from sampling.
    """
    yield from made(_SCORE_CHECKS, _residuals(scores, planted))


def _residuals(scores: CanaryScores, planted: NDArray[np.int64] | None) -> ScoreResiduals:
    moments, metadata = scores.moments(), scores.metadata
    left = np.where(scores.member, scores.score - moments[0].mean, scores.score - moments[1].mean)
    freedom = moments[0].count - 1.0, moments[1].count - 1.0
    steps, rate = metadata.steps, metadata.sampling_rate
    signal = planted if planted is not None else scores.relative_shift
    sampling, explained = None, signal is not None or rate == 1.0
    if signal is not None:
        expected = signal[scores.member].astype(np.float64)
        expected -= expected.mean()
        square = float(expected @ expected)
        if square > 0.0 and freedom[0] >= 3.0:
            found = left[scores.member]
            left[scores.member] = found - expected * float(expected @ found) / square
            freedom = freedom[0] - 1.0, freedom[1]
    elif not explained and steps is not None and rate is not None:
        sampling = _Sampling(steps, rate, _plausible_shifts(scores, steps, rate))
    alone = planted is None and scores.relative_shift is None
    return ScoreResiduals(scores, alone, left, scores.member, freedom, sampling, explained)


def _plausible_shifts(scores: CanaryScores, steps: int, rate: float) -> tuple[float, float]:
    """An interval of the shift, from the means and the noise of held-out canaries' scores alone.

    Three estimates each have a third of the error: the noise, how often inserted canaries were
    included, and, given both, the difference of the means, which is then Gaussian.
    """
    present, absent = scores.moments()
    if absent.sum_of_squares == 0.0:
        return 0.0, math.inf
    error = _OUTSIDE / 3.0
    freedom, opportunities = absent.count - 1.0, present.count * steps
    noise = [
        math.sqrt(absent.sum_of_squares / chdtri(freedom, tail))
        for tail in (0.5 * error, 1.0 - 0.5 * error)
    ]
    reach = -float(ndtri(0.5 * error)) * math.sqrt(1.0 / present.count + 1.0 / absent.count)
    gap = present.mean - absent.mean
    low, high = (min(gap / scale for scale in noise), max(gap / scale for scale in noise))
    expected = opportunities * rate
    # Quantiles of "at most this many", so that the truth is inside with the two tails left out.
    fewest = float(np.floor(bdtrik(0.5 * error, opportunities, rate)))
    most = float(np.ceil(bdtrik(1.0 - 0.5 * error, opportunities, rate)))
    least = max(low - reach, 0.0) * expected / max(most, 1.0)
    greatest = max(high + reach, 0.0)
    return least, greatest * expected / fewest if fewest > 0.0 else math.inf


@check(
    "normality of absent scores",
    explains="normality of present scores, equal variance",
    reveals_individual=True,
)
def normality_of_absent_scores(residuals: ScoreResiduals) -> Finding:
    """Whether the scores of held-out canaries are Gaussian."""
    return _normality("absent", residuals)


@check("normality of present scores", reveals_individual=True)
def normality_of_present_scores(residuals: ScoreResiduals) -> Finding:
    """Whether those of inserted canaries are, or the mixture that sampling makes of them."""
    if residuals.mixed:
        return _sampled(residuals.scores, residuals.sampling)
    return _normality("present", residuals)


def _normality(group: str, residuals: ScoreResiduals) -> Finding:
    """Whether scores have the shape and, where only they are known, the extremes of a Gaussian."""
    values = residuals.groups[0 if group == "present" else 1]
    if values.size < _FEWEST_FOR_SHAPE:
        kind = "inserted" if group == "present" else "held-out"
        return not_run(f"{_FEWEST_FOR_SHAPE} {kind} canaries, got {values.size}")
    if float(np.ptp(values)) == 0.0:
        return not_run("scores that vary")
    values = normality.off_the_grid(values)
    statistic, p_value = normality.anderson_darling(values)
    # Where it is not known how canaries were sampled, their scores may be any mixture.
    sampled = group == "present" and not residuals.explained
    unknown = sampled and residuals.sampling is None
    summary = (
        f"their Anderson-Darling statistic is {statistic:.2f}, which Gaussian scores exceed in "
        f"{_share(p_value)} of runs"
    )
    lone = ""
    if residuals.alone and not unknown:
        furthest, chance = normality.outlying(values)
        chance = min(1.0, chance * (_SAMPLED_TAIL if sampled else 1.0))
        # One canary's own score: published to half a deviation, and so is its chance.
        extreme = round_deviations(furthest)
        summary += f"; the most extreme lies about {extreme:.1f} standard deviations off"
        if chance < p_value:
            often = _share(round_p_value(chance, of_one=True))
            lone = f"Gaussian scores have one that extreme in at most {often} of runs."
        p_value = min(1.0, 2.0 * min(p_value, chance))
    return judged(
        p_value + (_OUTSIDE if sampled and not unknown else 0.0),
        f"{summary}.",
        if_wrong=lone,
        consequence=Consequence.LOOSENS if unknown else Consequence.INVALIDATES,
        measured=statistic,
        remedy="Give the scores steps= and sampling_rate= if they are known: sampling makes the "
        "scores of inserted canaries a mixture."
        if unknown
        else _LOOK,
    )


def _share(probability: float) -> str:
    """A probability as a share of runs."""
    return f"{probability:.1%}" if probability >= 0.001 else f"{probability:.1g}"


def _sampled(scores: CanaryScores, sampling: _Sampling | None) -> Finding:
    """Whether inserted canaries' scores are held-out ones plus sampled contributions of any size.

    Their distribution function is then that of the held-out scores, mixed over the binomial number
    of contributions. Both are known up to a band (Dvoretzky, Kiefer, Wolfowitz; Massart's
    constant), so at the true shift they are that close; the closest of many shifts is closer still,
    but for what lies between two of those tried. The noise may have any distribution.
    """
    assert sampling is not None
    low, high = sampling.shifts
    present, absent = np.sort(scores.present), np.sort(scores.absent)
    if present.size < _FEWEST_FOR_SHAPE or math.isinf(high):
        return not_run(_MORE_STEPS)
    counts, logs = binomial_weights(sampling.steps, sampling.rate, -math.log(_OUTSIDE))
    noise = math.sqrt(scores.moments()[1].variance)
    jumps = noise / (sampling.steps * sampling.rate)
    at = present[np.linspace(0, present.size - 1, min(present.size, _COMPARED)).astype(np.int64)]
    below = np.searchsorted(present, at, side="right") / present.size
    shifts = np.linspace(low, high, _TRIED)
    distance = min(
        float(np.abs(_mixed(absent, at, counts * (shift * jumps), np.exp(logs)) - below).max())
        for shift in shifts
    )
    between = 0.5 * (shifts[1] - shifts[0]) * _DENSEST
    bands = 1.0 / math.sqrt(present.size) + 1.0 / math.sqrt(absent.size)
    beyond = max(distance - between - 2.0 * _OUTSIDE, 0.0)
    p_value = 4.0 * math.exp(-2.0 * (beyond / bands) ** 2) + _OUTSIDE
    return judged(
        p_value,
        f"their distribution is {distance:.3f} away from that of sampled contributions plus the "
        "noise of held-out canaries, at the size of contribution that fits best.",
        consequence=Consequence.INVALIDATES,
        measured=distance,
        claimed=0.0,
        remedy=_LOOK,
    )


def _mixed(
    absent: NDArray[np.float64],
    at: NDArray[np.float64],
    means: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Distribution function of held-out scores (sorted) moved by random amounts."""
    below = np.searchsorted(absent, at[:, np.newaxis] - means, side="right")
    return np.asarray(below @ weights) / absent.size


@check("equal variance")
def equal_variance(residuals: ScoreResiduals) -> Finding:
    """Whether the scores of inserted canaries vary as the noise of held-out ones explains."""
    present, absent = residuals.variances
    if absent == 0.0 or min(residuals.freedom) < _FEWEST_FOR_SPREAD - 1:
        return not_run(f"{_FEWEST_FOR_SPREAD} canaries of each kind, and scores that vary")
    if residuals.mixed:
        return not_run(_MORE_STEPS)
    sampling, ratio, p_value = residuals.sampling, present / absent, 0.0
    if sampling is None:
        p_value = ratio_p_value(ratio, *residuals.freedom)
    else:
        # What sampling adds is known only as well as the shift: the least suspicious value counts.
        least, most = (ratio / (1.0 + sampling.added(shift)) for shift in sampling.shifts[::-1])
        ratio = least if least > 1.0 else min(most, 1.0)
        p_value = ratio_p_value(ratio, *residuals.freedom) + _OUTSIDE
    above = ratio > 1.0
    # Sampling at an unknown rate adds variance to the scores of inserted canaries.
    unknown = not residuals.explained and sampling is None
    return judged(
        p_value,
        f"the variance of inserted canaries' scores is {ratio:.3f} times what the noise of "
        "held-out ones explains.",
        consequence=Consequence.INVALIDATES if above and not unknown else Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Check that every inserted canary has the same norm and sampling rate; give the "
        "scores steps= and sampling_rate= if they are known.",
    )


@check("identical distribution")
def identical_distribution(residuals: ScoreResiduals) -> Finding:
    """Whether the mean residual changes along the canary index: drift, or bands."""
    present, absent = residuals.variances
    size = residuals.all.size
    if size < 10 * _BLOCKS:
        return not_run(f"{10 * _BLOCKS} canaries, got {size}")
    if min(present, absent) == 0.0:
        return not_run("scores that vary")
    standard = residuals.all / np.sqrt(np.where(residuals.member, present, absent))
    edges = np.linspace(0, size, _BLOCKS + 1).astype(np.int64)
    sums, counts = np.add.reduceat(standard, edges[:-1]), np.diff(edges)
    between = float((sums**2 / counts).sum())
    within = float((standard**2).sum()) - between
    freedom = _BLOCKS - 1, size - _BLOCKS - 1
    ratio = (between / freedom[0]) / (within / freedom[1])
    return judged(
        ratio_tail(ratio, *freedom),
        f"the variance of the mean score along the canary index is {ratio:.2f} times what is "
        "expected by chance.",
        consequence=Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Draw canary coordinates at random over all tensors, and subtract the background.",
    )


@check("duplicate scores", part=NOISE_FRESHNESS)
def duplicate_scores(residuals: ScoreResiduals) -> Finding:
    """Scores that are exactly equal: one canary counted twice, or noise used twice.

    Rounded and discrete scores repeat by chance; only what their grid does not explain counts.
    """
    scores = residuals.scores
    groups = scores.present, scores.absent
    number = [np.unique(values, return_counts=True)[1] for values in groups]
    repeated = sum(int((counts - 1).sum()) for counts in number)
    # One value of many canaries is not a canary that was counted twice.
    atoms = [counts[counts >= _FEWEST_ALIKE] for counts in number]
    held = sum(int(counts.sum()) for counts in atoms)
    often = max(int(counts.max(initial=0)) for counts in atoms)
    lone = repeated - sum(int((counts - 1).sum()) for counts in atoms)
    summary = f"{repeated:,} of {len(scores):,} scores repeat another one exactly"
    tolerated = 3 + len(scores) // 100
    failed, said, remedy, undermines = True, f"{summary}.", _DISTINCT, _INDEPENDENT
    if lone <= tolerated and held == 0:
        failed = False
    else:
        found = [normality.tie_excess(values) for values in groups]
        excesses = [item for item in found if item is not None]
        if not excesses:
            return not_run(f"scores on a finer grid: {summary}, as those of few values do")
        excess, p_value = min(excesses, key=lambda item: item[1])
        if p_value > 0.0:
            return judged(
                min(1.0, len(excesses) * p_value),
                f"{summary}; the grid they lie on explains all but {max(excess, 0.0):,.0f} pairs.",
                consequence=Consequence.INVALIDATES,
                measured=float(repeated),
                claimed=0.0,
                remedy=remedy,
                tolerable=excess <= tolerated,
                undermines=undermines,
            )
        if lone <= tolerated:
            # Continuous noise has no such values; clamped results have them, too.
            said = f"{held:,} scores share their value with others, one value {often:,} times."
            remedy, undermines = _CLAMPED, Assumption.GAUSSIAN_SCORES
    return fact(
        failed,
        said,
        consequence=Consequence.INVALIDATES,
        measured=float(repeated),
        claimed=0.0,
        remedy=remedy,
        undermines=undermines,
    )


_SCORE_CHECKS = (
    duplicate_scores,
    normality_of_absent_scores,
    normality_of_present_scores,
    equal_variance,
    identical_distribution,
)
