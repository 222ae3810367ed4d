"""The page that puts the paper's claims next to what was measured here."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

from askgauss.exceptions import FileFormatError
from askgauss.files import atomic, installed_versions
from paper.figures_bounds import (
    BoundsFigure,
    CanariesFigure,
    HeadlineFigure,
    RegionsFigure,
    StepsFigure,
)
from paper.figures_dpftrl import TreesFigure, UtilityTable
from paper.figures_scores import (
    ConvergenceFigure,
    GramFigure,
    HistogramsFigure,
    IndicesFigure,
)
from paper.paper_figure import Line, PaperFigure, PaperTable

__all__ = ["TABLES", "write"]

TABLES: tuple[PaperTable, ...] = (
    UtilityTable(),
    HeadlineFigure(),
    BoundsFigure(),
    CanariesFigure(),
    TreesFigure(),
    StepsFigure(),
    GramFigure(),
    HistogramsFigure(),
    IndicesFigure(),
    RegionsFigure(),
    ConvergenceFigure(),
)
"""Everything on the page, in its order."""


def write(folder: Path, *, scale: str, model: str, minutes: Sequence[float]) -> Path:
    """Write ``reproduction.md`` from the tables in a folder, leaving out what it does not have.

    Args:
        folder: Where `reproduce.run` put its figures.
        scale: The scale it ran at.
        model: What DP-SGD trained.
        minutes: How long it took, by start.
    """
    lines: list[Line] = []
    for table in TABLES:
        path = folder / "figures" / f"{table.name}.csv"
        if path.exists():
            atomic.check_digest(path, "figure's table", "Delete it, and it is made again.")
            try:
                with path.open(newline="", encoding="utf-8") as stream:
                    rows = [{**row, "model": model} for row in csv.DictReader(stream)]
                lines += table.compare(rows)
            except (ValueError, LookupError, TypeError, ArithmeticError, csv.Error) as error:
                raise FileFormatError(
                    f"{str(path)!r} is damaged: {error}. Delete it, and it is made again."
                ) from error
    here = installed_versions()
    parts = [
        "# The paper, reproduced",
        "",
        f"Written by `python -m paper reproduce all --scale {scale}`, model {model}, in "
        f"{sum(minutes):.0f} minutes{_starts(minutes)} on {os.cpu_count()} cores, Python "
        f"{here['python']}, torch {here.get('torch', 'not installed')}.",
        "",
    ]
    if scale != "full":
        parts += ["**A rehearsal: these numbers are not the paper's setting.**", ""]
    parts += [
        'Claims are those of the figures and the text of "Let\'s Ask Gauss"; its figures come '
        "without numbers, so theirs are given as the text states them.",
        "",
        *_STEP_SIZES.get((scale, model), ()),
        "| claim | theirs | ours | same, or why not |",
        "|---|---|---|---|",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
    ]
    for figure in TABLES:
        name = figure.name
        if isinstance(figure, PaperFigure) and (folder / "figures" / f"{name}.svg").exists():
            parts += [f"## {figure.title}", "", f"![{figure.title}](figures/{name}.svg)", ""]
            parts += [f"{figure.caption} Numbers: [{name}.csv](figures/{name}.csv).", ""]
    path = folder / "reproduction.md"
    atomic.write_text(path, "\n".join(parts))
    return path


def _starts(minutes: Sequence[float]) -> str:
    return "" if len(minutes) == 1 else f", over {len(minutes)} starts,"


_STEP_SIZES = {
    ("full", "scatter-linear"): (
        "Step sizes were chosen beforehand from short runs on 12,000 of the training images "
        "(38,912 for DP-FTRL), judged on 3,000 others of them and never on test images. That "
        "choice is not part of the claimed epsilons.",
        "",
    )
}
