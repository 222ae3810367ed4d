"""The scores: their densities, how Gaussian they are, and whether canaries are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from askgauss.figures import style
from askgauss.figures import summary as tables
from askgauss.figures.style import AuditFigure, NothingToDrawError
from askgauss.figures.summary import RunSummary, Summary, tables_of
from askgauss.results import AuditResult
from askgauss.scores import GroupMoments
from askgauss.stats import normality
from askgauss.stats.score_law import ScoreLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Convergence", "GaussianDistance", "ScoreDensity", "ScoreHistogram"]

Array = NDArray[np.float64]

_POINTS = 161
_LAW_POINTS = 12
# Bins of the histogram drawn as one, from so many scores in the smaller group.
_MERGED = (1, 2000), (2, 300), (4, 0)
_FEWEST_FOR_BAND = 50
# A Gaussian sample stays within its band everywhere with this probability.
_BAND = 0.95


def _no_scores(summary: Summary) -> NothingToDrawError:
    if summary.run.source != "scores":
        return NothingToDrawError("needs finite scores of at least two canaries of each kind.")
    return NothingToDrawError(
        "the audit kept no summary of its scores (diagnostics=False, or old)."
    )


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


def _band(count: int) -> Array:
    # The band depends on the number of values alone, and beyond a few thousand only in its scale.
    size = min(count, 4000)
    stand_in = np.linspace(-1.0, 1.0, size)
    _, _, band = normality.pit_ecdf(stand_in, points=tables.PIT_POINTS, confidence=_BAND, seed=0)
    return np.asarray(band * math.sqrt(size / count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreHistogram(AuditFigure):
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

    title = "Scores of inserted and held-out canaries"
    label = "Histograms of the scores of inserted and held-out canaries with fits."

    edges: Array
    present: Array
    absent: Array
    x: Array
    present_fit: Array | None
    absent_fit: Array | None
    present_law: Array | None
    absent_law: Array | None
    outside: int

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        scores = summary.scores
        if scores is None:
            raise _no_scores(summary)
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
        return cls(
            verdict=result.verdict,
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

    @property
    def caption(self) -> str:
        """What the figure shows."""
        law = "; dashes the distribution under the mechanism as described."
        outside = f" {self.outside:,} scores lie outside, in the last bins."
        return (
            "Lines are the fitted Gaussians"
            + (law if self.present_law is not None else ".")
            + (outside if self.outside else "")
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        groups = (
            ("absent", style.OTHER, self.absent, self.absent_fit, self.absent_law),
            ("present", self.accent, self.present, self.present_fit, self.present_law),
        )
        for name, color, density, fit, law in groups:
            ax.stairs(density, self.edges, fill=True, color=color, alpha=0.28, label=name)
            if fit is not None:
                ax.plot(self.x, fit, color=color, linewidth=1.8)
            if law is not None:
                ax.plot(self.x, law, color=style.INK, linewidth=1.0, linestyle=(0, (3, 3)))
        style.tidy(ax, x="score", grid="")
        ax.set_yticks([])
        ax.set_ylim(bottom=0.0)
        style.legend(ax, loc="upper right")
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GaussianDistance(AuditFigure):
    """How far the scores stray from their fitted Gaussians, with simultaneous bands.

    Attributes:
        at: Probabilities.
        present: Empirical minus fitted distribution of the present scores.
        absent: That of the absent scores.
        present_band: Half-width of the band around zero.
        absent_band: That of the absent scores.
    """

    title = "Distance from the fitted Gaussian"
    label = "Empirical minus fitted distribution of the scores, with a band."
    caption = "Gaussian scores stay inside their band everywhere, in 95 % of runs."

    at: Array
    present: Array
    absent: Array
    present_band: Array
    absent_band: Array

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        scores = summary.scores
        if scores is None:
            raise _no_scores(summary)
        if min(scores.present.count, scores.absent.count) < _FEWEST_FOR_BAND:
            raise NothingToDrawError(f"needs {_FEWEST_FOR_BAND} canaries of each kind.")
        if scores.present_pit.size == 0:
            raise NothingToDrawError("needs scores that vary.")
        at = (np.arange(tables.PIT_POINTS) + 0.5) / tables.PIT_POINTS
        return cls(
            verdict=result.verdict,
            at=at,
            present=scores.present_pit,
            absent=scores.absent_pit,
            present_band=_band(scores.present.count),
            absent_band=_band(scores.absent.count),
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        groups = (
            ("absent", style.OTHER, self.absent, self.absent_band),
            ("present", self.accent, self.present, self.present_band),
        )
        for name, color, difference, band in groups:
            ax.fill_between(self.at, -band, band, color=color, alpha=0.16, linewidth=0)
            ax.plot(self.at, difference, color=color, linewidth=1.6, label=name)
        ax.axhline(0.0, color=style.MUTED, linewidth=0.8)
        style.tidy(ax, x="probability under the fitted Gaussian", y="empirical minus fitted")
        ax.set_xlim(0, 1)
        style.legend(ax, loc="upper right")
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreDensity(AuditFigure):
    """Standardised scores by canary index, counted in hexagons.

    Attributes:
        x: Canary index at the centres.
        y: Standardised score at the centres.
        count: Number of canaries.
        width: Width of a hexagon, in canaries.
        height: Distance between rows of centres.
    """

    title = "Standardised score by canary"
    label = "Density of standardised scores by canary index."
    caption = "Bands or trends would mean that canaries are not all alike."

    x: Array
    y: Array
    count: Array
    width: float
    height: float

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        summary = tables_of(result)
        scores = summary.scores
        if scores is None:
            raise _no_scores(summary)
        if scores.density.size == 0:
            raise NothingToDrawError("needs scores that vary.")
        x, y = tables.hexagon_centres()
        total = scores.present.count + scores.absent.count
        columns, rows = tables.HEXAGONS
        return cls(
            verdict=result.verdict,
            x=x * total,
            y=y,
            count=scores.density,
            width=total / columns,
            height=float(y.max() - y.min()) / rows,
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import to_rgb

        ax = style.axes(ax)
        corner = np.array([0.5, 0.5, 0.0, -0.5, -0.5, 0.0]), np.array([-1, 1, 2, 1, -1, -2]) / 6.0
        outline = np.stack([corner[0] * self.width, corner[1] * self.height], axis=1)
        filled = self.count > 0
        centres = np.stack([self.x, self.y], axis=1)[filled]
        # One colour, more or less of it: legible on any ground. Twelve shades are enough to see.
        share = np.ceil(12.0 * np.sqrt(self.count[filled] / self.count.max())) / 12.0
        colors = np.tile(to_rgb(style.CLAIM), (share.size, 1))
        ax.add_collection(
            PolyCollection(
                list(centres[:, np.newaxis, :] + outline),
                facecolors=np.column_stack([colors, 0.08 + 0.92 * share]),
                edgecolors="none",
                linewidths=0.0,
                rasterized=True,
            )
        )
        style.tidy(ax, x="canary index", y="standardised score", grid="")
        style.few_ticks(ax)
        ax.set_xlim(0, float(self.x.max()))
        ax.set_ylim(float(self.y.min()), float(self.y.max()))
        return ax


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Convergence(AuditFigure):
    """Distance of the score's law from the Gaussian, by number of steps.

    Attributes:
        steps: Numbers of steps.
        exact: Kolmogorov distance.
        leading: Its leading term.
        here: The number of steps of this run.
    """

    title = "Convergence to the Gaussian"
    label = "Kolmogorov distance from the Gaussian by number of steps."
    caption = "Distance between the distribution of an inserted canary's score and a Gaussian."

    steps: Array
    exact: Array
    leading: Array
    here: int

    @classmethod
    def from_result(cls, result: AuditResult) -> Self:
        """Compute the numbers."""
        law = _law(result, tables_of(result).run)
        if law is None:
            raise NothingToDrawError("needs the sampling rate, the number of steps and the noise.")
        if law.sampling_rate == 1.0:
            raise NothingToDrawError("a canary is in every step, so its score is exactly Gaussian.")
        grid = np.unique(np.rint(np.geomspace(1, law.steps, _LAW_POINTS)).astype(int)).tolist()
        laws = [replace(law, steps=steps) for steps in grid]
        return cls(
            verdict=result.verdict,
            steps=np.array(grid, dtype=np.float64),
            exact=np.array([item.kolmogorov_distance() for item in laws]),
            leading=np.array([item.kolmogorov_leading_term() for item in laws]),
            here=law.steps,
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it."""
        ax = style.axes(ax)
        color = self.accent
        ax.plot(self.steps, self.exact, color=color, linewidth=2.0, label="exact")
        if (self.leading > 0.0).all():
            ax.plot(
                self.steps,
                self.leading,
                color=style.OTHER,
                linewidth=1.2,
                linestyle=(0, (4, 3)),
                label="leading term",
            )
        ax.plot([self.here], [self.exact[-1]], marker="o", color=color, markersize=6)
        ax.set_xscale("log")
        ax.set_yscale("log")
        style.tidy(ax, x="number of steps", y="Kolmogorov distance")
        style.count_ticks(ax)
        style.log_ticks(ax.yaxis, 1.0, 2.0, 5.0)
        style.legend(ax, loc="upper right")
        return ax
