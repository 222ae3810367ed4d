"""Checks that need only the scores: are they what a Gaussian bound takes them for?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr

from askgauss.diagnostics.outcomes import fact, judged, not_run
from askgauss.results import Assumption, Consequence, Finding
from askgauss.scores import CanaryScores
from askgauss.stats import normality
from askgauss.stats.shift import ShiftTest, sampling_variance

__all__ = ["score_checks"]

_FEWEST_FOR_SHAPE = 20
_BLOCKS = 20
_PLACEBO_SEED = 20_25


def score_checks(scores: CanaryScores) -> Iterator[Finding]:
    """Every check that scores alone allow."""
    present, absent = scores.present, scores.absent
    yield _normality("absent", absent)
    yield _normality("present", present, _added_skewness(scores))
    yield _equal_variance(scores)
    yield _drift(scores)
    yield _duplicates(scores)
    yield _placebo(scores)


def _added_skewness(scores: CanaryScores) -> float:
    """Skewness that sampling puts into present scores, by their exact law."""
    law = _law(scores)
    if law is None:
        return 0.0
    steps, rate, shift = law
    ratio = 1.0 + sampling_variance(steps, rate) * shift**2
    step_shift = shift / (rate * math.sqrt(steps))
    third = rate * (1.0 - rate) * (1.0 - 2.0 * rate) * step_shift**3
    return float(third / (ratio**1.5 * math.sqrt(steps)))


def _law(scores: CanaryScores) -> tuple[int, float, float] | None:
    """Steps, rate and fitted shift of a subsampled score, where they are known."""
    steps, rate = scores.metadata.steps, scores.metadata.sampling_rate
    if steps is None or rate in (None, 1.0):
        return None
    assert rate is not None
    return steps, rate, _test(scores).lower(0.5)


def _test(scores: CanaryScores, kappa: float | None = None) -> ShiftTest:
    present, absent = scores.moments()
    steps, rate = scores.metadata.steps, scores.metadata.sampling_rate
    if kappa is None:
        known = steps is not None and rate is not None
        kappa = sampling_variance(steps, rate) if known else 0.0  # type: ignore[arg-type]
    return ShiftTest(
        present=(present.count, present.mean, present.sum_of_squares),
        absent=(absent.count, absent.mean, absent.sum_of_squares),
        kappa=kappa,
    )


def _normality(group: str, values: NDArray[np.float64], skewness: float = 0.0) -> Finding:
    name = f"normality of {group} scores"
    if values.size < _FEWEST_FOR_SHAPE:
        return not_run(name, f"{_FEWEST_FOR_SHAPE} {group} canaries, got {values.size}")
    if float(np.ptp(values)) == 0.0:
        return not_run(name, "scores that vary")
    if abs(skewness) > 0.05:
        # Few sampled steps: the law is a mixture by construction, and the bound reads it exactly.
        return not_run(name, f"more sampled steps; the exact law has skewness {skewness:.2f}")
    statistic, p_value = normality.anderson_darling(values)
    return judged(
        name,
        p_value,
        f"Anderson-Darling statistic {statistic:.2f}.",
        consequence=Consequence.INVALIDATES,
        measured=statistic,
        remedy="Look at the scores: outliers, several populations, heavy tails. Read the "
        "distribution-free bound until this is understood.",
    )


def _equal_variance(scores: CanaryScores) -> Finding:
    present, absent = scores.moments()
    if scores.relative_shift is not None:
        return not_run("equal variance", "canaries with one common shift")
    if absent.sum_of_squares == 0.0 or min(present.count, absent.count) < 5:
        return not_run("equal variance", "5 canaries of each kind, and scores that vary")
    test = _test(scores)
    expected = 1.0 + test.kappa * test.lower(0.5) ** 2
    ratio = present.variance / absent.variance / expected
    freedom = present.count - 1, absent.count - 1
    tail = _f_tail(ratio, *freedom)
    above = ratio > 1.0
    return judged(
        "equal variance",
        2.0 * min(tail, 1.0 - tail),
        f"present scores vary {ratio:.3f} times as much as the noise of absent ones explains.",
        consequence=Consequence.INVALIDATES if above else Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Check that every present canary is planted with the same norm and sampled at the "
        "same rate; give the scores steps= and sampling_rate= if they are known.",
    )


def _f_tail(ratio: float, numerator: int, denominator: int) -> float:
    """P[F >= ratio]."""
    x = numerator * ratio / (numerator * ratio + denominator)
    return 1.0 - float(betainc(0.5 * numerator, 0.5 * denominator, x))


def _drift(scores: CanaryScores) -> Finding:
    """Whether the mean residual changes along the canary index: drift, or bands."""
    if len(scores) < 10 * _BLOCKS or scores.relative_shift is not None:
        return not_run("identical distribution", f"{10 * _BLOCKS} canaries of one common shift")
    present, absent = scores.moments()
    if absent.sum_of_squares == 0.0 or present.sum_of_squares == 0.0:
        return not_run("identical distribution", "scores that vary")
    residual = np.where(
        scores.member,
        (scores.score - present.mean) / present.standard_deviation,
        (scores.score - absent.mean) / absent.standard_deviation,
    )
    edges = np.linspace(0, residual.size, _BLOCKS + 1).astype(np.int64)
    sums, counts = np.add.reduceat(residual, edges[:-1]), np.diff(edges)
    between = float((sums**2 / counts).sum())
    within = float((residual**2).sum()) - between
    freedom = _BLOCKS - 1, residual.size - _BLOCKS - 1
    ratio = (between / freedom[0]) / (within / freedom[1])
    return judged(
        "identical distribution",
        _f_tail(ratio, *freedom),
        f"the mean score varies along the canary index by {ratio:.2f} times what chance gives.",
        consequence=Consequence.LOOSENS,
        measured=ratio,
        claimed=1.0,
        remedy="Draw canary coordinates at random over all tensors, and subtract the background.",
    )


def _duplicates(scores: CanaryScores) -> Finding:
    """Scores that are exactly equal: one canary counted twice, or noise used twice."""
    unique = np.unique(scores.score).size
    repeated = len(scores) - unique
    # Continuous noise in double precision repeats a value in far fewer than one run in a million;
    # scores that came through single precision repeat a few, so many are asked for.
    suspicious = repeated > 3 + len(scores) // 100
    return fact(
        "duplicate scores",
        suspicious,
        f"{repeated:,} of {len(scores):,} scores repeat another one exactly.",
        consequence=Consequence.INVALIDATES,
        measured=float(repeated),
        claimed=0.0,
        remedy="A canary counted twice, or one noise for several coordinates, makes the bound too "
        "high: make canaries distinct and look at how noise is drawn.",
        undermines=Assumption.INDEPENDENT_CANARIES,
    )


def _placebo(scores: CanaryScores) -> Finding:
    """An audit with membership shuffled must find nothing."""
    generator = np.random.default_rng(_PLACEBO_SEED)
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
