"""The figures of the scores themselves: independence, distribution, convergence to a Gaussian."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askgauss.recording.transcript import Transcript
from askgauss.stats.score_law import ScoreLaw
from paper.csv_rows import Row
from paper.paper_figure import (
    COLOURS,
    Line,
    PaperFigure,
    Runs,
    TextRows,
    add_legend,
    subplots,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ConvergenceFigure", "GramFigure", "HistogramsFigure", "IndicesFigure"]


class GramFigure(PaperFigure):
    """How far canaries are from independent."""

    name = "gram"
    title = "Independence of the canaries"
    caption = (
        "Directions are single coordinates; right, what was released about 64 of them, step by "
        "step."
    )

    def rows(self, runs: Runs) -> list[Row]:
        """How far canaries are from independent: the directions, and the noise along them."""
        transcript = runs.snapshot(runs.sound).transcript
        matrix = _correlations(transcript)
        off = matrix[~np.eye(len(matrix), dtype=bool)]
        # One canary is one coordinate and no two share it: their Gram matrix is the identity.
        return [
            {
                "matrix": "directions",
                "mean": 0.0,
                "deviation": 0.0,
                "largest": 0.0,
                "expected": 0.0,
            },
            {
                "matrix": "released noise",
                "mean": float(off.mean()),
                "deviation": float(off.std()),
                "largest": float(np.abs(off).max()),
                "expected": 1.0 / math.sqrt(transcript.number_of_steps - 1),
            },
        ]

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Gram matrix of the directions next to the correlations of the released noise."""
        assert runs is not None
        transcript = runs.snapshot(runs.sound).transcript
        matrix = _correlations(transcript)[:64, :64]
        figure, (left, right) = subplots(2, width=4.8)
        for panel, values, title in (
            (left, np.eye(len(matrix)), "Gram matrix of the directions"),
            (right, matrix, "correlation of the released noise"),
        ):
            panel.grid(False)
            image = panel.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
            panel.set(xlabel="canary", ylabel="canary", title=title)
            figure.colorbar(image, ax=panel, shrink=0.8)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        noise = next(row for row in rows if row["matrix"] == "released noise")
        return [
            (
                "canaries are nearly orthogonal",
                "off-diagonal near 0",
                f"exactly orthogonal; released noise correlates by {float(noise['deviation']):.4f} "
                f"(expected of independence {float(noise['expected']):.4f})",
                "same"
                if float(noise["deviation"]) < 1.1 * float(noise["expected"])
                else "the released noise is not independent",
            )
        ]


def _correlations(transcript: Transcript) -> NDArray[np.float64]:
    """Correlations over the steps of the noise along the kept canaries."""
    noise = transcript.kept_values - transcript.kept_planted
    return np.asarray(np.corrcoef(noise.T), np.float64)


class HistogramsFigure(PaperFigure):
    """Scores of inserted and held-out canaries with their distribution."""

    name = "histograms"
    title = "Scores of present and absent canaries"
    caption = (
        "Filled: with the clean sum of the other records subtracted. Outlined: without, as in the"
        " paper."
    )

    def rows(self, runs: Runs) -> list[Row]:
        """The scores at the largest epsilon, background known and unknown."""
        snapshot = runs.snapshot(runs.sound)
        known, unknown = snapshot.transcript.scores(), snapshot.unknown_background_scores()
        return [
            {"present": bool(member), "known": float(score), "unknown": float(other)}
            for member, score, other in zip(known.member, known.score, unknown.score, strict=True)
        ]

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Histograms of both groups with the distribution they should have."""
        assert runs is not None
        law = _score_law(runs)
        figure, panels = subplots(2)
        for panel, present in zip(panels, (True, False), strict=True):
            known = np.array([row["known"] for row in rows if row["present"] is present])
            unknown = np.array([row["unknown"] for row in rows if row["present"] is present])
            bins: Any = np.histogram_bin_edges(known, "fd")
            panel.hist(known, bins, density=True, color="#9db8dd", label="background known")
            panel.hist(
                unknown, "fd", density=True, histtype="step", color="#8f5a00", label="unknown"
            )
            grid = np.linspace(bins[0], bins[-1], 400)
            spread = math.sqrt(law.absent_variance)
            density = law.pdf(grid) if present else (
                np.exp(-0.5 * (grid / spread) ** 2) / (spread * math.sqrt(2.0 * math.pi))
            )  # fmt: skip
            panel.plot(grid, density, color="#b3261e", label="analytic law")
            word = "present" if present else "absent"
            panel.set(xlabel="score", ylabel="density", title=f"{word} canaries")
            add_legend(panel)
        return figure


def _score_law(runs: Runs) -> ScoreLaw:
    """The distribution those scores should have, in units of the clip norm."""
    head = runs.sound
    return ScoreLaw(
        steps=runs.dpsgd_plan.steps,
        sampling_rate=head.sampling_rate,
        noise_multiplier=head.noise_multiplier,
    )


class IndicesFigure(PaperFigure):
    """Standardised scores by the index of their canary."""

    name = "indices"
    title = "Standardised score by index"
    caption = "No trend, no bands."

    def rows(self, runs: Runs) -> list[Row]:
        """Standardised scores by the index of their canary."""
        law, rows = _score_law(runs), []
        for index, row in enumerate(HistogramsFigure().rows(runs)):
            mean = law.mean if row["present"] else 0.0
            variance = law.variance if row["present"] else law.absent_variance
            rows.append(
                {
                    "index": index,
                    "present": row["present"],
                    "standardised": (row["known"] - mean) / math.sqrt(variance),
                }
            )
        return rows

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Density of standardised scores over the index of their canary."""
        figure, (panel,) = subplots()
        panel.grid(False)
        image = panel.hexbin(
            [row["index"] for row in rows],
            [row["standardised"] for row in rows],
            gridsize=40,
            cmap="Blues",
            mincnt=1,
        )
        for level in (-3, 0, 3):
            panel.axhline(level, color="#7c8894", linewidth=0.8, linestyle=":")
        panel.set(xlabel="index of the canary", ylabel="standardised score")
        figure.colorbar(image, ax=panel, label="canaries")
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        values = np.array([float(row["standardised"]) for row in rows])
        index = np.arange(len(values))
        trend = float(np.corrcoef(index, values)[0, 1])
        inside = float(np.mean(np.abs(values) <= 3.0))
        return [
            (
                "scores are identically distributed",
                "no trend, contained in [-3, 3]",
                f"correlation with the index {trend:.3f} (chance {1.0 / len(values) ** 0.5:.3f}); "
                f"{inside:.2%} within [-3, 3]",
                ("same" if abs(trend) * len(values) ** 0.5 < 3.0 else "there is a trend")
                + "; of Gaussian scores 99.73 % lie within [-3, 3]",
            )
        ]


class ConvergenceFigure(PaperFigure):
    """Distance of the score distribution from a Gaussian."""

    name = "convergence"
    title = "How fast the score becomes Gaussian"
    caption = "At q = 0.0819 and sigma = 2.6245."
    needs_runs = False
    _STEPS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 2500, 10_000)

    def rows(self, runs: Runs | None = None) -> list[Row]:
        """The distance: exact, the theorem's leading term, and after Edgeworth's correction.

        Examples:
            >>> rows = {row["steps"]: row for row in ConvergenceFigure().rows()}
            >>> abs(rows[2500]["exact"] / rows[2500]["leading term"] - 1) < 0.01
            True
        """
        rows: list[Row] = []
        for count in self._STEPS:
            law = ScoreLaw(steps=count, sampling_rate=0.0819, noise_multiplier=2.6245)
            spread = math.sqrt(law.variance)
            grid = law.mean + spread * np.linspace(-8.0, 8.0, 4001)
            exact = law.cdf(grid)
            rows.append(
                {
                    "steps": count,
                    "exact": law.kolmogorov_distance(),
                    "leading term": law.kolmogorov_leading_term(),
                    "Edgeworth error": float(np.abs(exact - law.edgeworth_cdf(grid)).max()),
                    "tail beyond 4": law.tail_deviation_exact(4.0),
                    "tail leading term": law.tail_deviation(4.0),
                }
            )
        return rows

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Distance of the score's law from a Gaussian against steps."""
        figure, (panel,) = subplots()
        steps = [row["steps"] for row in rows]
        names = {
            "exact": "exact Kolmogorov distance",
            "leading term": "leading term of the theorem",
            "Edgeworth error": "left after Edgeworth's correction",
            "tail beyond 4": "exact, beyond 4 deviations",
            "tail leading term": "leading term of the corollary, beyond 4",
        }
        for index, (name, label) in enumerate(names.items()):
            style = "--" if "leading" in name else "-"
            values = [row[name] for row in rows]
            panel.plot(steps, values, style, marker="o", markersize=3, color=COLOURS[index],
                       label=label)  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="steps", ylabel="distance from the Gaussian")
        add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        last = max(rows, key=lambda row: int(row["steps"]) if int(row["steps"]) <= 2500 else 0)
        ratio = float(last["exact"]) / float(last["leading term"])
        return [
            (
                f"Kolmogorov distance from the Gaussian at T = {last['steps']}",
                f"leading term {float(last['leading term']):.3g}",
                f"exact {float(last['exact']):.3g}, {ratio:.4f} of the leading term",
                "same" if abs(ratio - 1.0) < 0.05 else "the leading term is not enough yet",
            )
        ]
