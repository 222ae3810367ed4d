"""The scores: their densities, how Gaussian they are, and whether canaries are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss.figures import summary as tables
from askgauss.figures.missing import Missing
from askgauss.figures.summary import RunSummary, Summary
from askgauss.results import AuditResult
from askgauss.scores import GroupMoments
from askgauss.stats import normality
from askgauss.stats.score_law import ScoreLaw

__all__ = [
    "Convergence",
    "PitCurves",
    "ScoreCurves",
    "ScoreDensity",
    "convergence",
    "pit_curves",
    "score_curves",
    "score_density",
]

Array = NDArray[np.float64]

_POINTS = 161
_LAW_POINTS = 12
# Bins of the histogram drawn as one, from so many scores in the smaller group.
_MERGED = (1, 2000), (2, 300), (4, 0)
_FEWEST_FOR_BAND = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreCurves:
    """Histograms of the scores, and the densities they are read as.

    Attributes:
        edges: Edges of the bins.
        present: Density of the present scores.
        absent: Density of the absent scores.
        x: Where the curves are given.
        present_fit: The fitted Gaussian of the present scores; None where they do not vary.
        absent_fit: That of the absent scores.
        present_law: Their law if the mechanism is as it says; None where it does not say.
        absent_law: That of the absent scores.
        outside: Number of scores beyond the ends, counted in the outermost bins.
    """

    edges: Array
    present: Array
    absent: Array
    x: Array
    present_fit: Array | None
    absent_fit: Array | None
    present_law: Array | None
    absent_law: Array | None
    outside: int


def score_curves(result: AuditResult) -> ScoreCurves | Missing:
    """The scores of both groups with the fitted pair and the law of the claimed mechanism."""
    summary = Summary.from_metadata(result.metadata)
    scores = summary.scores
    if scores is None:
        return _no_scores(summary)
    # Few scores are drawn in wide bins.
    merged = next(
        width
        for width, fewest in _MERGED
        if min(scores.present.count, scores.absent.count) >= fewest
    )
    edges = np.linspace(scores.low, scores.high, tables.BINS // merged + 1)
    counts = [
        item.reshape(-1, merged).sum(axis=1)
        for item in (scores.present_counts, scores.absent_counts)
    ]
    x = np.linspace(scores.low, scores.high, _POINTS)
    width = edges[1] - edges[0]
    law = _law(result, summary.run)
    return ScoreCurves(
        edges=edges,
        present=counts[0] / (scores.present.count * width),
        absent=counts[1] / (scores.absent.count * width),
        x=x,
        present_fit=_fit(scores.present, x),
        absent_fit=_fit(scores.absent, x),
        present_law=None if law is None else law.pdf(x),
        absent_law=None
        if law is None
        else _normal_density(x, 0.0, law.noise_multiplier * law.clip_norm),
        outside=scores.outside,
    )


def _no_scores(summary: Summary) -> Missing:
    if summary.run.source != "scores":
        return Missing(reason="needs finite scores of at least two canaries of each kind.")
    return Missing(reason="the audit kept no summary of its scores (diagnostics=False, or old).")


def _fit(moments: GroupMoments, x: Array) -> Array | None:
    if moments.sum_of_squares == 0.0:
        return None
    return _normal_density(x, moments.mean, moments.standard_deviation)


def _normal_density(x: Array, mean: float, deviation: float) -> Array:
    scaled = (x - mean) / deviation
    return np.asarray(np.exp(-0.5 * scaled**2) / (deviation * math.sqrt(2.0 * math.pi)))


def _law(result: AuditResult, run: RunSummary) -> ScoreLaw | None:
    """The law of the score if the mechanism is as claimed, or else as the run says it is."""
    claim = result.claim
    noise = claim.noise_multiplier if claim is not None else None
    noise = run.noise_multiplier if noise is None else noise
    rate = run.sampling_rate if run.sampling_rate is not None else run.accounted_sampling_rate
    if run.steps is None or rate is None or not noise or run.poisson is False:
        return None
    if run.source != "transcript" and rate == 1.0:
        return None  # scores of correlated noise look the same, and have another law
    return ScoreLaw(
        steps=run.steps,
        sampling_rate=rate,
        noise_multiplier=noise,
        clip_norm=1.0 if run.clip_norm is None else run.clip_norm,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PitCurves:
    """How far the scores stray from their fitted Gaussians, with simultaneous bands.

    Attributes:
        at: Probabilities.
        present: Empirical minus fitted distribution of the present scores.
        absent: That of the absent scores.
        present_band: Half-width of the band around zero.
        absent_band: That of the absent scores.
        confidence: A Gaussian sample stays within its band everywhere with this probability.
    """

    at: Array
    present: Array
    absent: Array
    present_band: Array
    absent_band: Array
    confidence: float


def pit_curves(result: AuditResult, confidence: float = 0.95) -> PitCurves | Missing:
    """The difference between the scores' distribution and the fitted Gaussian's."""
    summary = Summary.from_metadata(result.metadata)
    scores = summary.scores
    if scores is None:
        return _no_scores(summary)
    if min(scores.present.count, scores.absent.count) < _FEWEST_FOR_BAND:
        return Missing(reason=f"needs {_FEWEST_FOR_BAND} canaries of each kind.")
    if scores.present_pit.size == 0:
        return Missing(reason="needs scores that vary.")
    at = (np.arange(tables.PIT_POINTS) + 0.5) / tables.PIT_POINTS
    return PitCurves(
        at=at,
        present=scores.present_pit,
        absent=scores.absent_pit,
        present_band=_band(scores.present.count, confidence),
        absent_band=_band(scores.absent.count, confidence),
        confidence=confidence,
    )


def _band(count: int, confidence: float) -> Array:
    # The band depends on the number of values alone, and beyond a few thousand only in its scale.
    size = min(count, 4000)
    stand_in = np.linspace(-1.0, 1.0, size)
    _, _, band = normality.pit_ecdf(
        stand_in, points=tables.PIT_POINTS, confidence=confidence, seed=0
    )
    return np.asarray(band * math.sqrt(size / count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreDensity:
    """Standardised scores by canary index, counted in hexagons.

    Attributes:
        x: Canary index at the centres.
        y: Standardised score at the centres.
        count: Number of canaries.
        width: Width of a hexagon, in canaries.
        height: Distance between rows of centres.
    """

    x: Array
    y: Array
    count: Array
    width: float
    height: float


def score_density(result: AuditResult) -> ScoreDensity | Missing:
    """Standardised scores by canary index: flat where canaries are identically distributed."""
    summary = Summary.from_metadata(result.metadata)
    scores = summary.scores
    if scores is None:
        return _no_scores(summary)
    if scores.density.size == 0:
        return Missing(reason="needs scores that vary.")
    x, y = tables.hexagon_centres()
    total = scores.present.count + scores.absent.count
    columns, rows = tables.HEXAGONS
    return ScoreDensity(
        x=x * total,
        y=y,
        count=scores.density,
        width=total / columns,
        height=float(y.max() - y.min()) / rows,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Convergence:
    """Distance of the score's law from the Gaussian, by number of steps.

    Attributes:
        steps: Numbers of steps.
        exact: Kolmogorov distance.
        leading: Its leading term.
        here: The number of steps of this run.
    """

    steps: Array
    exact: Array
    leading: Array
    here: int


def convergence(result: AuditResult) -> Convergence | Missing:
    """How fast the law of a present score comes near the Gaussian it is read as."""
    law = _law(result, Summary.from_metadata(result.metadata).run)
    if law is None:
        return Missing(reason="needs the sampling rate, the number of steps and the noise.")
    if law.sampling_rate == 1.0:
        return Missing(reason="a canary is in every step, so its score is exactly Gaussian.")
    grid = np.unique(np.rint(np.geomspace(1, law.steps, _LAW_POINTS)).astype(int)).tolist()
    laws = [replace(law, steps=steps) for steps in grid]
    return Convergence(
        steps=np.array(grid, dtype=np.float64),
        exact=np.array([item.kolmogorov_distance() for item in laws]),
        leading=np.array([item.kolmogorov_leading_term() for item in laws]),
        here=law.steps,
    )
