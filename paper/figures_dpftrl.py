"""The figure of DP-FTRL bounds, and the accuracies of all trained models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from askgauss.auditing import audit
from askgauss.auditors import GaussianEllipsoid, GaussianShift, MaxCosine
from paper import train_dpftrl
from paper.csv_rows import Row
from paper.paper_figure import (
    ESTIMATE,
    PUBLISHED,
    SOUND,
    Line,
    PaperFigure,
    PaperTable,
    Runs,
    TextRows,
    add_diagonal,
    add_legend,
    add_lines,
    bound_row,
    bounds_by_epsilon,
    series_text,
    subplots,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TreesFigure", "UtilityTable"]


class TreesFigure(PaperFigure):
    """Bounds on DP-FTRL against its claim, and the max-cosine estimate."""

    name = "dpftrl"
    title = "DP-FTRL against the max-cosine estimate"
    caption = "The estimate of Andrew et al. has no confidence attached and may lie on either side."

    def rows(self, runs: Runs) -> list[Row]:
        """Bounds on DP-FTRL against its claim, beside the max-cosine estimate."""
        rows: list[Row] = []
        for head in runs.dpftrl_plan.heads:
            if not head.canaries:
                continue
            if head.published:
                scores = train_dpftrl.load_published_scores(runs.dpftrl_folder, head.name)
                pooled = runs.bound(scores, GaussianEllipsoid(pooled=True))
                rows.append(bound_row(head, "ancestor sums, pooled ellipsoid", PUBLISHED, pooled))
                continue
            for release in train_dpftrl.RELEASES:
                transcript = train_dpftrl.load_transcript(runs.dpftrl_folder, head.name, release)
                value = runs.bound(transcript.scores(), GaussianShift())
                rows.append(bound_row(head, f"gaussian-shift, {release}", SOUND, value))
            estimate = audit(
                transcript.cosines(), delta=runs.delta, auditor=MaxCosine(), diagnostics=False
            ).epsilon_point
            rows.append(bound_row(head, "max cosine (Andrew et al.)", ESTIMATE, estimate or 0.0))
        return rows

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Bounds on DP-FTRL against its claim."""
        figure, (panel,) = subplots()
        add_lines(panel, rows, "epsilon")
        add_diagonal(panel, [row["epsilon"] for row in rows])
        panel.set(xlabel="claimed epsilon", ylabel="lower bound, or estimate, of epsilon")
        add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        nodes = bounds_by_epsilon(rows, "gaussian-shift, nodes")
        prefixes = bounds_by_epsilon(rows, "gaussian-shift, prefixes")
        published = bounds_by_epsilon(rows, "ancestor sums, pooled ellipsoid")
        cosine = bounds_by_epsilon(rows, "max cosine (Andrew et al.)")
        above = all(published[epsilon] > cosine[epsilon] for epsilon in published)
        return [
            (
                "DP-FTRL against the max-cosine estimate",
                "above it at every epsilon",
                f"as published {series_text(published)}; max cosine {series_text(cosine)}",
                "same" if above else "not at every epsilon",
            ),
            (
                "DP-FTRL scores are exactly N(LC, L sigma^2)",
                "by construction",
                f"every node released: {series_text(nodes)}; prefixes only: "
                f"{series_text(prefixes)}",
                "true if every node has noise; the public code draws it for every other one, and "
                "its scores are then a mixture",
            ),
        ]


class UtilityTable(PaperTable):
    """Test accuracy of every head after the last step."""

    name = "utility"

    def rows(self, runs: Runs) -> list[Row]:
        """Test accuracy of every head after the last step."""
        rows: list[Row] = []
        for head in runs.dpsgd_plan.heads:
            accuracy = runs.dpsgd_accuracy[head.name][str(runs.dpsgd_plan.steps)]
            rows.append(
                {
                    "mechanism": "DP-SGD",
                    "run": head.name,
                    "epsilon": head.epsilon,
                    "canaries": head.canaries,
                    "accuracy": accuracy,
                }
            )
        for tree_head in runs.dpftrl_plan.heads:
            rows.append(
                {
                    "mechanism": "DP-FTRL",
                    "run": tree_head.name,
                    "epsilon": tree_head.epsilon,
                    "canaries": tree_head.canaries,
                    "accuracy": runs.dpftrl_accuracy[tree_head.name],
                }
            )
        return rows

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        lines = []
        for mechanism in dict.fromkeys(row["mechanism"] for row in rows):
            found = {
                row["run"]: float(row["accuracy"]) for row in rows if row["mechanism"] == mechanism
            }
            epsilon = max(row["epsilon"] for row in rows if row["mechanism"] == mechanism)
            plain, planted = found[f"clean-{epsilon}"], found[f"sound-{epsilon}"]
            drops = [
                found[name] - found[name.replace("clean", "sound")]
                for name in found
                if name.startswith("clean")
            ]
            sgd = mechanism == "DP-SGD"
            lines.append(
                (
                    f"{mechanism}: accuracy at epsilon {epsilon}, and what the canaries cost",
                    "about 70 % (WideResNet-16-4), about 1 point" if sgd else "not reported",
                    f"{plain:.1%} without, {planted:.1%} with canaries; largest drop of all "
                    f"epsilons {100 * max(drops):.1f} points",
                    f"another model: {rows[0]['model']}"
                    if sgd and rows[0]["model"] != "wrn16-4"
                    else "to compare with theirs"
                    if sgd
                    else "ours only; one pass over the data",
                )
            )
        return lines
