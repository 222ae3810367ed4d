"""The figures of the paper, drawn from tables; nothing is computed here but bins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askgauss.files import atomic
from askgauss.paper import paper_tables
from askgauss.paper.csv_rows import Row, csv_text
from askgauss.paper.paper_tables import ESTIMATE, PUBLISHED, SOUND, UNCORRECTED
from askgauss.stats.score_law import ScoreLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_bounds", "draw_canaries", "draw_convergence", "draw_gram", "draw_headline"]
__all__ += ["draw_histograms", "draw_indices", "draw_regions", "draw_steps", "draw_trees", "save"]

_COLOURS = (
    *("#2459a8", "#1b7348", "#b3261e", "#8f5a00", "#7a3fa8", "#0b7a86", "#7c8894"),
    *("#d2699e", "#c9a227", "#6fa8dc", "#33415c", "#8fbf7f", "#e08f62", "#a28bd4"),
)
_STYLE = {SOUND: "-", PUBLISHED: "--", UNCORRECTED: ":", ESTIMATE: "-.", "ceiling": "-"}


def _figure(columns: int = 1, width: float = 6.4) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure as New

    figure = New(figsize=(width * columns, 4.2), layout="constrained")
    panels = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        panel.grid(color="#dfe3e8", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, panels


def save(figure: Figure, rows: Sequence[Row], folder: Path, name: str) -> None:
    """A figure as PNG and SVG, and its numbers as CSV, each whole or not at all."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    # No date and no random ids: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "askgauss"}):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            with atomic.atomic_write(folder / f"{name}.{kind}") as stream:
                figure.savefig(stream, format=kind, dpi=150, metadata=metadata)
    atomic.write_with_digest(folder / f"{name}.csv", csv_text(rows).encode("utf-8"))


def _lines(panel: Axes, rows: Sequence[Row], x: str, methods: Sequence[str] | None = None) -> None:
    """One line a method, ordered by its last value, the highest first."""
    found = dict.fromkeys((row["method"], row["kind"]) for row in rows)
    ends = {}
    for key in found:
        if methods is None or key[0] in methods or key[1] != SOUND:
            own = [row for row in rows if (row["method"], row["kind"]) == key]
            ends[key] = own
    ordered = sorted(ends.items(), key=lambda item: -item[1][-1]["bound"])
    for index, ((method, kind), own) in enumerate(ordered):
        note = "" if kind in (SOUND, "ceiling") else f" ({kind})"
        panel.plot(
            [row[x] for row in own],
            [row["bound"] for row in own],
            linestyle=_STYLE[kind],
            marker="o",
            markersize=3.5,
            color=_COLOURS[index % len(_COLOURS)],
            label=method + note,
        )


def _ticks(panel: Axes, values: Sequence[int]) -> None:
    """Numbers in full at the values there are."""
    places = sorted(set(values))
    panel.set_xticks(places, [f"{place:,}" for place in places])
    panel.minorticks_off()


def _legend(panel: Axes) -> None:
    panel.legend(frameon=False, fontsize=8)


def draw_bounds(rows: Sequence[Row]) -> Figure:
    """Bounds against the claimed epsilon: beside the paper's, and every sound auditor."""
    figure, (left, right) = _figure(2)
    main = ("subsampled-gaussian", "gaussian-shift")
    _lines(left, rows, "epsilon", main)
    _lines(right, [row for row in rows if row["kind"] == SOUND], "epsilon")
    for panel, title in ((left, "ours and as published"), (right, "every auditor of askgauss")):
        _diagonal(panel, [row["epsilon"] for row in rows])
        panel.set(xlabel="claimed epsilon", ylabel="lower bound on epsilon", title=title)
        _legend(panel)
    return figure


def draw_headline(rows: Sequence[Row]) -> Figure:
    """The paper's methods and ours on the same scores, over draws of its model and a real run."""
    figure, (panel,) = _figure()
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sources = list(dict.fromkeys(row["source"] for row in rows))
    for index, source in enumerate(sources):
        own = [row for row in rows if row["source"] == source]
        places = [methods.index(row["method"]) + 0.22 * (index - 1) for row in own]
        middle = [row["bound"] for row in own]
        reach = [
            [row["bound"] - row["lowest"] for row in own],
            [row["highest"] - row["bound"] for row in own],
        ]
        note = f" ({own[0]['audits']} draws, lowest to highest)" if own[0]["audits"] > 1 else ""
        panel.errorbar(places, middle, reach, fmt="o", capsize=3, markersize=4,
                       color=_COLOURS[index], label=source + note)  # fmt: skip
    panel.axhline(rows[0]["epsilon"], color="#1b1f24", linewidth=1.0)
    names = [name.replace(", ", ",\n") for name in methods]
    panel.set_xticks(range(len(methods)), names, fontsize=8)
    panel.set(ylabel="lower bound on epsilon", ylim=(0, None))
    _legend(panel)
    return figure


def _diagonal(panel: Axes, values: Sequence[float]) -> None:
    ends = [min(values), max(values)]
    panel.plot(ends, ends, color="#1b1f24", linewidth=1.0, label="claimed")


def draw_canaries(rows: Sequence[Row]) -> Figure:
    """Bounds against the number of canaries."""
    figure, (panel,) = _figure()
    _lines(panel, rows, "canaries")
    panel.axhline(rows[0]["epsilon"], color="#1b1f24", linewidth=1.0)
    panel.set(xscale="log", xlabel="canaries", ylabel="lower bound on epsilon", ylim=(0, None))
    _ticks(panel, [row["canaries"] for row in rows])
    _legend(panel)
    return figure


draw_regions = draw_canaries


def draw_steps(rows: Sequence[Row]) -> Figure:
    """Bounds against steps: one run as it goes on, and runs calibrated to one epsilon."""
    figure, panels = _figure(2)
    names = ("the run, stopped", "simulated, calibrated")
    for panel, name in zip(panels, names, strict=True):
        own = [row for row in rows if row["run"] == name]
        claimed = sorted({(row["steps"], row["claimed"]) for row in own})
        panel.plot(*zip(*claimed, strict=True), color="#1b1f24", linewidth=1.0, label="claimed")
        _lines(panel, own, "steps")
        panel.set(xscale="log", xlabel="steps", ylabel="lower bound on epsilon", title=name)
        panel.set_ylim(bottom=0)
        _ticks(panel, [row["steps"] for row in rows])
        _legend(panel)
    return figure


def draw_gram(matrix: NDArray[np.float64], rows: Sequence[Row]) -> Figure:
    """Gram matrix of the directions beside the correlations of what was released about them."""
    figure, (left, right) = _figure(2, width=4.8)
    for panel, values, title in (
        (left, np.eye(len(matrix)), "Gram matrix of the directions"),
        (right, matrix, "correlation of the released noise"),
    ):
        panel.grid(False)
        image = panel.imshow(values, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        panel.set(xlabel="canary", ylabel="canary", title=title)
        figure.colorbar(image, ax=panel, shrink=0.8)
    return figure


def draw_histograms(rows: Sequence[Row], law: ScoreLaw) -> Figure:
    """Histograms of present and absent scores with the law they should have."""
    figure, panels = _figure(2)
    for panel, present in zip(panels, (True, False), strict=True):
        known = np.array([row["known"] for row in rows if row["present"] is present])
        unknown = np.array([row["unknown"] for row in rows if row["present"] is present])
        bins: Any = np.histogram_bin_edges(known, "fd")
        panel.hist(known, bins, density=True, color="#9db8dd", label="background known")
        panel.hist(unknown, "fd", density=True, histtype="step", color="#8f5a00", label="unknown")
        grid = np.linspace(bins[0], bins[-1], 400)
        spread = math.sqrt(law.absent_variance)
        density = law.pdf(grid) if present else (
            np.exp(-0.5 * (grid / spread) ** 2) / (spread * math.sqrt(2.0 * math.pi))
        )  # fmt: skip
        panel.plot(grid, density, color="#b3261e", label="analytic law")
        word = "present" if present else "absent"
        panel.set(xlabel="score", ylabel="density", title=f"{word} canaries")
        _legend(panel)
    return figure


def draw_indices(rows: Sequence[Row]) -> Figure:
    """Density of standardised scores over the index of their canary."""
    figure, (panel,) = _figure()
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


def draw_convergence(rows: Sequence[Row]) -> Figure:
    """Distance of the score's law from a Gaussian against steps."""
    figure, (panel,) = _figure()
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
        panel.plot(steps, values, style, marker="o", markersize=3, color=_COLOURS[index],
                   label=label)  # fmt: skip
    panel.set(xscale="log", yscale="log", xlabel="steps", ylabel="distance from the Gaussian")
    _legend(panel)
    return figure


def draw_trees(rows: Sequence[Row]) -> Figure:
    """Bounds on DP-FTRL against its claim."""
    figure, (panel,) = _figure()
    _lines(panel, rows, "epsilon")
    _diagonal(panel, [row["epsilon"] for row in rows])
    panel.set(xlabel="claimed epsilon", ylabel="lower bound, or estimate, of epsilon")
    _legend(panel)
    return figure


def figure_makers() -> dict[
    str, Callable[[paper_tables.Runs, Sequence[int]], tuple[Figure, list[Row]]]
]:
    """Every figure that needs runs, by name: from runs and canary counts to figure and rows."""

    def plain(
        table: Callable[[paper_tables.Runs], list[Row]], draw: Callable[[Sequence[Row]], Figure]
    ) -> Callable[[paper_tables.Runs, Sequence[int]], tuple[Figure, list[Row]]]:
        def make(runs: paper_tables.Runs, counts: Sequence[int]) -> tuple[Figure, list[Row]]:
            rows = table(runs)
            return draw(rows), rows

        return make

    def canaries(runs: paper_tables.Runs, counts: Sequence[int]) -> tuple[Figure, list[Row]]:
        rows = paper_tables.by_canaries(runs, counts)
        return draw_canaries(rows), rows

    def regions(runs: paper_tables.Runs, counts: Sequence[int]) -> tuple[Figure, list[Row]]:
        rows = paper_tables.regions(runs, counts)
        return draw_regions(rows), rows

    def gram(runs: paper_tables.Runs, counts: Sequence[int]) -> tuple[Figure, list[Row]]:
        rows = paper_tables.correlations(runs)
        return draw_gram(paper_tables.correlation_matrix(runs), rows), rows

    def histograms(runs: paper_tables.Runs, counts: Sequence[int]) -> tuple[Figure, list[Row]]:
        rows = paper_tables.score_values(runs)
        return draw_histograms(rows, paper_tables.score_law(runs)), rows

    return {
        "headline": plain(paper_tables.headline, draw_headline),
        "bounds": plain(paper_tables.bounds, draw_bounds),
        "canaries": canaries,
        "dpftrl": plain(paper_tables.trees, draw_trees),
        "steps": plain(paper_tables.by_steps, draw_steps),
        "gram": gram,
        "histograms": histograms,
        "indices": plain(paper_tables.score_indices, draw_indices),
        "regions": regions,
    }
