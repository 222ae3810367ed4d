"""What every figure of the paper has: numbers from finished runs, a drawing, a comparison.

Adding a figure is one class with its name, its title, its caption and these three methods, and its
place in `paper.page.TABLES`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from askgauss.auditing import audit
from askgauss.auditors import Auditor
from askgauss.files import atomic
from askgauss.recording.transcript import Transcript
from askgauss.scores import CanaryScores
from paper import train_dpsgd
from paper.csv_rows import Row, csv_text
from paper.heads_plan import DpsgdHead, DpsgdPlan, TreeRunPlan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "PaperFigure", "PaperTable", "Runs", "TextRows", "add_diagonal", "add_legend"]
__all__ += [
    "add_lines",
    "bound_row",
    "bounds_by_epsilon",
    "range_text",
    "save_rows",
    "series_text",
    "set_ticks",
    "subplots",
]

TextRows = list[dict[str, str]]
"""Rows as read from CSV."""
Line = tuple[str, str, str, str]
"""The claim, theirs, ours, and whether they agree or why not."""

PUBLISHED = "as published"
UNCORRECTED = "uncorrected"
SOUND = "sound"
ESTIMATE = "estimate"

COLOURS = (
    *("#2459a8", "#1b7348", "#b3261e", "#8f5a00", "#7a3fa8", "#0b7a86", "#7c8894"),
    *("#d2699e", "#c9a227", "#6fa8dc", "#33415c", "#8fbf7f", "#e08f62", "#a28bd4"),
)
_STYLE = {SOUND: "-", PUBLISHED: "--", UNCORRECTED: ":", ESTIMATE: "-.", "ceiling": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Finished runs: where they are, and what they were.

    Attributes:
        dpsgd_folder: Folder of the DP-SGD run.
        dpsgd_plan: What it was.
        dpftrl_folder: Folder of the DP-FTRL run.
        dpftrl_plan: What it was.
        dpsgd_accuracy: Test accuracy by head and step.
        dpftrl_accuracy: Test accuracy by head.
        delta: Delta of every claim.
        confidence: Confidence of every bound.
        repeats: How many subsets or simulated runs an average is over.
        counts: Numbers of canaries in the figures over them.
    """

    dpsgd_folder: Path
    dpsgd_plan: DpsgdPlan
    dpftrl_folder: Path
    dpftrl_plan: TreeRunPlan
    dpsgd_accuracy: dict[str, dict[str, float]]
    dpftrl_accuracy: dict[str, float]
    delta: float = 1e-5
    confidence: float = 0.95
    repeats: int = 10
    counts: tuple[int, ...] = ()

    def audited(self, *, published: bool) -> Iterator[DpsgdHead]:
        """The DP-SGD heads with canaries, sound ones or as published."""
        for head in self.dpsgd_plan.heads:
            if head.canaries and head.published == published:
                yield head

    def snapshot(self, head: DpsgdHead, step: int | None = None) -> train_dpsgd.Snapshot:
        """What a head had released after a step; after the last if none is named."""
        return train_dpsgd.load_snapshot(
            self.dpsgd_folder, head.name, self.dpsgd_plan.steps if step is None else step
        )

    def bound(self, data: CanaryScores | Transcript, auditor: Auditor[Any]) -> float:
        """The bound of one auditor, without its diagnostics."""
        return audit(
            data,
            delta=self.delta,
            auditor=auditor,
            confidence=self.confidence,
            diagnostics=False,
        ).epsilon_lower

    @property
    def sound(self) -> DpsgdHead:
        """The correctly accounted DP-SGD head of the largest epsilon."""
        return max(self.audited(published=False), key=lambda head: head.epsilon)

    @property
    def published(self) -> DpsgdHead:
        """The DP-SGD head as published, of the largest epsilon."""
        return max(self.audited(published=True), key=lambda head: head.epsilon)


class PaperTable(abc.ABC):
    """Numbers of the paper, and what they say about its claims."""

    name: ClassVar[str]

    @abc.abstractmethod
    def rows(self, runs: Runs) -> list[Row]:
        """The numbers, from finished runs."""

    def compare(self, rows: TextRows) -> list[Line]:
        """Claims of the paper next to these numbers, as the page shows them."""
        return []


class PaperFigure(PaperTable):
    """The same with a drawing.

    Attributes:
        name: Name of the figure and of its files.
        title: Its heading on the page.
        caption: The sentence under it.
        needs_runs: Whether its numbers come from runs that are trained first.
    """

    title: ClassVar[str]
    caption: ClassVar[str]
    needs_runs: ClassVar[bool] = True

    @abc.abstractmethod
    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """The figure; nothing is computed here but bins."""

    def save(self, runs: Any, folder: Path) -> None:
        """Write the figure as PNG and SVG and its numbers as CSV, each complete or not at all."""
        import matplotlib

        rows = self.rows(runs)
        figure = self.draw(rows, runs)
        folder.mkdir(parents=True, exist_ok=True)
        # No date and no random ids: the same numbers give the same file.
        with matplotlib.rc_context({"svg.hashsalt": "askgauss"}):
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                with atomic.atomic_write(folder / f"{self.name}.{kind}") as stream:
                    figure.savefig(stream, format=kind, dpi=150, metadata=metadata)
        save_rows(rows, folder, self.name)


def save_rows(rows: Sequence[Row], folder: Path, name: str) -> None:
    """Write numbers as CSV, and their digest beside it."""
    atomic.write_with_digest(folder / f"{name}.csv", csv_text(rows).encode("utf-8"))


def subplots(columns: int = 1, width: float = 6.4) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, in the style of all figures."""
    from matplotlib.figure import Figure as New

    figure = New(figsize=(width * columns, 4.2), layout="constrained")
    panels = [figure.add_subplot(1, columns, index + 1) for index in range(columns)]
    for panel in panels:
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        panel.grid(color="#dfe3e8", linewidth=0.8)
        panel.set_axisbelow(True)
    return figure, panels


def add_lines(
    panel: Axes, rows: Sequence[Row], x: str, methods: Sequence[str] | None = None
) -> None:
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
            color=COLOURS[index % len(COLOURS)],
            label=method + note,
        )


def set_ticks(panel: Axes, values: Sequence[int]) -> None:
    """Numbers in full at the values there are."""
    places = sorted(set(values))
    panel.set_xticks(places, [f"{place:,}" for place in places])
    panel.minorticks_off()


def add_legend(panel: Axes) -> None:
    """A small legend without a frame."""
    panel.legend(frameon=False, fontsize=8)


def add_diagonal(panel: Axes, values: Sequence[float]) -> None:
    """The line on which a bound equals the claim."""
    ends = [min(values), max(values)]
    panel.plot(ends, ends, color="#1b1f24", linewidth=1.0, label="claimed")


def bound_row(head: Any, method: str, kind: str, value: float, **more: Any) -> Row:
    """One bound as a row, with its share of the claimed epsilon."""
    return {
        "epsilon": head.epsilon,
        "method": method,
        "kind": kind,
        "bound": value,
        "share": value / head.epsilon,
        **more,
    }


def range_text(values: list[float], form: str = "{:.0%}") -> str:
    """The smallest and the largest value, or the one there is."""
    low, high = (form.format(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def series_text(values: dict[float, float]) -> str:
    """Bounds next to their epsilons."""
    return ", ".join(f"{bound:.2f} of {epsilon:g}" for epsilon, bound in values.items())


def bounds_by_epsilon(rows: TextRows, method: str) -> dict[float, float]:
    """Bound by epsilon of one method."""
    return {float(row["epsilon"]): float(row["bound"]) for row in rows if row["method"] == method}
