"""The figures of DP-SGD bounds: against the claimed epsilon, canaries, regions and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askgauss import accounting
from askgauss.auditors import (
    Auditor,
    GaussianEllipsoid,
    GaussianRectangle,
    GaussianShift,
    MaxCosine,
    SubsampledGaussian,
    auditor_types,
)
from askgauss.auditors import gaussian_regions as region_methods
from askgauss.recording.transcript import CanarySums, Transcript
from askgauss.results import Assumption
from askgauss.scores import CanaryScores
from askgauss.simulation import simulate_dpsgd
from askgauss.stats.score_law import ScoreLaw
from paper import uncorrected
from paper.csv_rows import Row
from paper.heads_plan import DpsgdHead
from paper.paper_figure import (
    COLOURS,
    PUBLISHED,
    SOUND,
    UNCORRECTED,
    Line,
    PaperFigure,
    Runs,
    TextRows,
    add_diagonal,
    add_legend,
    add_lines,
    bound_row,
    bounds_by_epsilon,
    range_text,
    series_text,
    set_ticks,
    subplots,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BoundsFigure", "CanariesFigure", "HeadlineFigure", "RegionsFigure", "StepsFigure"]

MODEL = "their model, simulated"
LEFT_IN = "trained, background left in"
TAKEN_OUT = "trained, background taken out"
# Shares of the claimed epsilon that the text states: the range, and 84 % of it at epsilon 8.
_THEIR_SHARES = (0.63, 0.84)
_POINTS = 0.05

_HEADLINE = {
    "pooled ellipsoid": 6.7,
    "f-DP, best threshold": 4.7,
    "one run, best threshold": 3.3,
}


class HeadlineFigure(PaperFigure):
    """The paper's methods and ours on the same scores."""

    name = "headline"
    title = "The headline: one epsilon, the same scores"
    caption = (
        "The paper's ellipsoid and its two baselines as its public code runs them (best "
        "threshold, nothing paid for choosing it: no valid bounds), and ours. One run is one "
        "draw: the bars show how far draws lie apart."
    )

    def rows(self, runs: Runs) -> list[Row]:
        """The paper's three methods and ours on the same scores, at the largest epsilon.

        Of the paper's own model many draws are made, at its stated sampling rate: one run is one
        draw.
        """
        sound, head = runs.sound, runs.published
        snapshot = runs.snapshot(head)
        found: dict[tuple[str, str, str], list[float]] = {}

        def add(source: str, scores: CanaryScores, transcript: Transcript | None) -> None:
            for method, kind, value in _as_published(runs, scores):
                found.setdefault((source, method, kind), []).append(value)
            ours = found.setdefault((source, "gaussian-shift", SOUND), [])
            ours.append(runs.bound(scores, GaussianShift()))
            if transcript is not None:
                ours = found.setdefault((source, "subsampled-gaussian", SOUND), [])
                ours.append(runs.bound(transcript, SubsampledGaussian()))

        for draw in range(3 * runs.repeats):
            simulated = simulate_dpsgd(
                steps=runs.dpsgd_plan.steps,
                sampling_rate=sound.sampling_rate,
                noise_multiplier=head.noise_multiplier,
                present=head.canaries // 2,
                absent=head.canaries - head.canaries // 2,
                seed=runs.dpsgd_plan.seed + draw,
            )
            add(MODEL, simulated.scores(), simulated)
        add(LEFT_IN, snapshot.unknown_background_scores(), None)
        add(TAKEN_OUT, snapshot.transcript.scores(), snapshot.transcript)
        return [
            bound_row(
                head,
                method,
                kind,
                float(np.mean(values)),
                source=source,
                audits=len(values),
                lowest=min(values),
                highest=max(values),
            )
            for (source, method, kind), values in found.items()
        ]

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """One error bar a method and source: draws of the model, and a real run."""
        figure, (panel,) = subplots()
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
                           color=COLOURS[index], label=source + note)  # fmt: skip
        panel.axhline(rows[0]["epsilon"], color="#1b1f24", linewidth=1.0)
        names = [name.replace(", ", ",\n") for name in methods]
        panel.set_xticks(range(len(methods)), names, fontsize=8)
        panel.set(ylabel="lower bound on epsilon", ylim=(0, None))
        add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """Their three numbers, against draws of their model and against one real run."""

        def series(source: str, methods: Sequence[str]) -> str:
            own = {row["method"]: row for row in rows if row["source"] == source}
            shown = []
            for method in methods:
                if method in own:
                    row = own[method]
                    low, high = float(row["lowest"]), float(row["highest"])
                    reach = "" if low == high else f" ({low:.1f} to {high:.1f})"
                    shown.append(f"{float(row['bound']):.2f}{reach}")
            return ", ".join(shown)

        simulated = {row["method"]: row for row in rows if row["source"] == MODEL}
        inside = all(
            float(simulated[method]["lowest"]) - 0.05
            <= theirs
            <= float(simulated[method]["highest"])
            for method, theirs in _HEADLINE.items()
        )
        by_source = "; ".join(
            f"{source} {series(source, tuple(_HEADLINE))}" for source in (MODEL, TAKEN_OUT, LEFT_IN)
        )
        epsilon = f"{float(rows[0]['epsilon']):g}"
        ours = ("gaussian-shift", "subsampled-gaussian")
        shares = {
            row["source"]: float(row["share"])
            for row in rows
            if row["method"] == "pooled ellipsoid"
        }
        theirs = _THEIR_SHARES[1]
        agree = [name for name, share in shares.items() if abs(share - theirs) <= _POINTS]
        return [
            (
                f"ellipsoid, f-DP and one run at epsilon {epsilon}",
                ", ".join(f"{value:g}" for value in _HEADLINE.values()),
                by_source,
                ("same: theirs are draws of their model" if inside else "not draws of their model")
                + "; along single coordinates of a linear classifier other records leave a trace "
                "the model leaves out, and it widens both groups",
            ),
            (
                f"share of epsilon {epsilon} that the ellipsoid recovers",
                f"{theirs:.0%}",
                "; ".join(f"{name} {share:.0%}" for name, share in shares.items()),
                f"within 5 points: {', '.join(agree) or 'none of them'}",
            ),
            (
                f"exact shift and whole transcript at epsilon {epsilon}, same scores",
                "not in the paper",
                f"{MODEL} {series(MODEL, ours)}; {TAKEN_OUT} {series(TAKEN_OUT, ours)}",
                "ours only",
            ),
        ]


def _every_auditor() -> dict[str, Auditor[Any]]:
    """Every auditor that bounds something, with its default options."""
    made = {name: kind() for name, kind in auditor_types().items() if kind is not MaxCosine}
    return {name: item for name, item in made.items() if item.assumption != Assumption.ESTIMATE}


def _as_published(runs: Runs, scores: CanaryScores) -> Iterator[tuple[str, str, float]]:
    """What the paper's public code reports from these scores."""
    level = {"delta": runs.delta, "confidence": runs.confidence}
    ellipsoid = GaussianEllipsoid(pooled=True)
    yield "pooled ellipsoid", PUBLISHED, runs.bound(scores, ellipsoid)
    yield "f-DP, best threshold", UNCORRECTED, uncorrected.uncorrected_fdp(scores, **level)
    yield "one run, best threshold", UNCORRECTED, uncorrected.uncorrected_one_run(scores, **level)


class BoundsFigure(PaperFigure):
    """Every auditor's bound against the claimed epsilon."""

    name = "bounds"
    title = "Bounds against the claimed epsilon (DP-SGD)"
    caption = (
        "Left: ours, beside what the paper's public code reports from the runs as published "
        "(their sampling rate, 1/12 at full scale, background unknown, pooled variance; dotted "
        "baselines take the best threshold and are no valid bounds). Right: every auditor of "
        "askgauss, from sound runs."
    )

    def rows(self, runs: Runs) -> list[Row]:
        """Every auditor's bound against the claimed epsilon, soundly and as published."""
        rows: list[Row] = []
        for head in runs.audited(published=False):
            snapshot = runs.snapshot(head)
            for name, auditor in _every_auditor().items():
                data = snapshot.transcript if auditor.reads == "transcript" else None
                value = runs.bound(data or snapshot.transcript.scores(), auditor)
                rows.append(
                    bound_row(head, name, SOUND, value, assumption=auditor.assumption.value)
                )
            unknown = snapshot.unknown_background_scores()
            rows.append(
                bound_row(
                    head,
                    "gaussian-shift, background unknown",
                    SOUND,
                    runs.bound(unknown, GaussianShift()),
                    assumption=GaussianShift.assumption.value,
                )
            )
        for head in runs.audited(published=True):
            snapshot = runs.snapshot(head)
            for name, kind, value in _as_published(runs, snapshot.unknown_background_scores()):
                rows.append(bound_row(head, name, kind, value))
            # What is left of the difference once the background is taken out.
            known = runs.bound(snapshot.transcript.scores(), GaussianEllipsoid(pooled=True))
            rows.append(bound_row(head, "pooled ellipsoid, background known", PUBLISHED, known))
        return rows

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Bounds against the claimed epsilon: beside the paper's, and every sound auditor."""
        figure, (left, right) = subplots(2)
        main = ("subsampled-gaussian", "gaussian-shift")
        add_lines(left, rows, "epsilon", main)
        add_lines(right, [row for row in rows if row["kind"] == SOUND], "epsilon")
        for panel, title in ((left, "ours and as published"), (right, "every auditor of askgauss")):
            add_diagonal(panel, [row["epsilon"] for row in rows])
            panel.set(xlabel="claimed epsilon", ylabel="lower bound on epsilon", title=title)
            add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        published = bounds_by_epsilon(rows, "pooled ellipsoid")
        known = bounds_by_epsilon(rows, "pooled ellipsoid, background known")
        steps, shift = (
            bounds_by_epsilon(rows, "subsampled-gaussian"),
            bounds_by_epsilon(rows, "gaussian-shift"),
        )
        unknown = bounds_by_epsilon(rows, "gaussian-shift, background unknown")
        sound = bounds_by_epsilon(rows, "one-run-fdp")
        shares = [bound / epsilon for epsilon, bound in published.items()]
        without = [bound / epsilon for epsilon, bound in known.items()]
        lines = [
            (
                "share of the claimed epsilon the ellipsoid recovers, over all epsilons",
                "63 % to 84 %, the latter at 8",
                f"{range_text(shares)} ({series_text(published)}); with the background taken out "
                f"{range_text(without)}",
                _why_share(published, known),
            )
        ]
        for name in ("f-DP, best threshold", "one run, best threshold"):
            other = bounds_by_epsilon(rows, name)
            gains = [published[e] / other[e] for e in published if other[e] > 0.0]
            nothing = sum(other[e] == 0.0 for e in published)
            found = f"{range_text(gains, '{:.2f}')} times" if gains else "no bound to compare with"
            found += (
                f" ({nothing} of {len(published)} epsilons: the baseline is 0)" if nothing else ""
            )
            agree = bool(gains) and min(gains) >= 1.0 and max(gains) <= 2.5
            lines.append(
                (
                    f"how much tighter than {name}",
                    "1 to 2 times",
                    found,
                    ("same" if agree else "not the same at every epsilon")
                    + "; this baseline pays nothing for choosing its threshold, and is no "
                    "valid bound",
                )
            )
        if sound:
            gains = [steps[e] / sound[e] for e in steps if sound.get(e, 0.0) > 0.0]
            lines.append(
                (
                    "whole transcript over a valid f-DP audit in one run",
                    "not reported",
                    f"{range_text(gains, '{:.2f}')} times"
                    if gains
                    else "the f-DP audit bounds nothing",
                    "ours only",
                )
            )
        lines += [
            (
                "bound from the scores, exact shift",
                "not in the paper",
                f"{series_text(shift)} (background known); {series_text(unknown)} (unknown)",
                "ours only" + _excess(shift),
            ),
            (
                "bound from the whole transcript",
                "not in the paper",
                series_text(steps),
                "ours only" + _excess(steps),
            ),
        ]
        return lines


def _excess(found: dict[float, float]) -> str:
    above = [f"{epsilon:g}" for epsilon, value in found.items() if value > epsilon]
    if not above:
        return ""
    return (
        f"; a bound at confidence .95 may be above in one audit of twenty, as at {', '.join(above)}"
    )


def _why_share(published: dict[float, float], known: dict[float, float]) -> str:
    """Say only what the figures beside it bear out: the range, and the share they give at 8."""
    low, high = _THEIR_SHARES

    def alike(found: dict[float, float]) -> bool:
        shares = {epsilon: bound / epsilon for epsilon, bound in found.items()}
        last = shares[max(shares)]
        inside = min(shares.values()) >= low - _POINTS and max(shares.values()) <= high + _POINTS
        return inside and abs(last - high) <= _POINTS

    if alike(published):
        return "same, within 5 points"
    largest = max(published)
    found = (
        f"not the same: {published[largest] / largest:.0%} against {high:.0%} at epsilon "
        f"{largest:g}"
    )
    if published[largest] < known[largest]:
        found += (
            f", where the background left in widens both groups ({known[largest] / largest:.0%} "
            "with it taken out)"
        )
    return found


class CanariesFigure(PaperFigure):
    """Bounds against the number of canaries."""

    name = "canaries"
    title = "Bounds against the number of canaries"
    caption = "Averages over disjoint subsets of the canaries of one run."

    def rows(self, runs: Runs) -> list[Row]:
        """Bounds from subsets of the canaries, at the largest epsilon.

        Canaries are independent and their order is random, so the first so many are a smaller
        audit of the same run, and the next so many another one.
        """
        head = runs.sound
        transcript = runs.snapshot(head).transcript
        methods: dict[str, Callable[[NDArray[np.int64]], float]] = {
            "subsampled-gaussian": lambda part: runs.bound(
                subset(transcript, part), SubsampledGaussian()
            ),
            **{
                name: _on_scores(runs, transcript.scores(), auditor)
                for name, auditor in _every_auditor().items()
                if name in ("gaussian-shift", "one-run", "one-run-fdp")
            },
        }
        rows = _averages(runs, head, SOUND, methods)
        head = runs.published
        scores = runs.snapshot(head).unknown_background_scores()
        level = {"delta": runs.delta, "confidence": runs.confidence}
        published = {"pooled ellipsoid": _on_scores(runs, scores, GaussianEllipsoid(pooled=True))}
        rows += _averages(runs, head, PUBLISHED, published)
        best: dict[str, Callable[[NDArray[np.int64]], float]] = {
            "f-DP, best threshold": lambda part: uncorrected.uncorrected_fdp(
                pick(scores, part), **level
            ),
            "one run, best threshold": lambda part: uncorrected.uncorrected_one_run(
                pick(scores, part), **level
            ),
        }
        return rows + _averages(runs, head, UNCORRECTED, best)

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Bounds against the number of canaries."""
        figure, (panel,) = subplots()
        add_lines(panel, rows, "canaries")
        panel.axhline(rows[0]["epsilon"], color="#1b1f24", linewidth=1.0)
        panel.set(xscale="log", xlabel="canaries", ylabel="lower bound on epsilon", ylim=(0, None))
        set_ticks(panel, [row["canaries"] for row in rows])
        add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""

        def bound(method: str, count: int) -> float:
            own = [r for r in rows if r["method"] == method and int(r["canaries"]) == count]
            return float(own[0]["bound"]) if own else float("nan")

        counts = sorted({int(row["canaries"]) for row in rows})
        few, many = counts[0], counts[-1]
        near = max(count for count in counts if count <= 2500)
        best = max(bound("f-DP, best threshold", near), bound("one run, best threshold", near))
        ellipsoid, steps = bound("pooled ellipsoid", few), bound("subsampled-gaussian", few)
        lines = [
            (
                f"{few} canaries do what baselines need {near} for",
                "ellipsoid at 100 above baselines at nearly 2500",
                f"ellipsoid {ellipsoid:.2f}, exact shift {bound('gaussian-shift', few):.2f}, whole "
                f"transcript {steps:.2f}; best baseline at {near} {best:.2f}",
                "same" if ellipsoid >= best else _beaten(steps >= best),
            )
        ]
        if {1000, many} <= set(counts) and many > 1000:
            growth = bound("pooled ellipsoid", many) / bound("pooled ellipsoid", 1000) - 1.0
            lines.append(
                (
                    "stable from 1000 canaries on",
                    "yes",
                    f"the ellipsoid grows by {growth:.0%} from 1000 to {many}",
                    "same" if growth < 0.1 else "still growing",
                )
            )
        return lines


def _beaten(by_transcript: bool) -> str:
    return "not for the ellipsoid" + ("; for the whole transcript" if by_transcript else "")


class RegionsFigure(CanariesFigure):
    """The two confidence regions of the paper and the exact shift."""

    name = "regions"
    title = "Rectangle, ellipsoid and exact shift"
    caption = "Averages over disjoint subsets of the canaries of one run."

    def rows(self, runs: Runs) -> list[Row]:
        """The paper's two regions and the exact shift, from subsets of the canaries."""
        head = runs.sound
        scores = runs.snapshot(head).transcript.scores()
        auditors: dict[str, Auditor[Any]] = {
            "rectangle": GaussianRectangle(),
            "ellipsoid": GaussianEllipsoid(),
            "rectangle, pooled": GaussianRectangle(pooled=True),
            "ellipsoid, pooled": GaussianEllipsoid(pooled=True),
            "gaussian-shift": GaussianShift(),
        }
        methods = {name: _on_scores(runs, scores, auditor) for name, auditor in auditors.items()}
        rows = _averages(runs, head, SOUND, methods)
        for row in rows:
            if row["method"] == "ellipsoid":
                part = pick(scores, np.arange(row["canaries"]))
                _, covariance = region_methods.bootstrap(part.absent, part.present)
                spread = np.sqrt(np.diagonal(covariance))
                correlation = covariance / np.outer(spread, spread) - np.eye(len(spread))
                row["correlation"] = float(np.abs(correlation).max())
        return rows

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""

        def bound(method: str, count: str) -> float:
            own = [r for r in rows if r["method"] == method and r["canaries"] == count]
            return float(own[0]["bound"])

        counts = sorted({row["canaries"] for row in rows}, key=int)
        above = [
            c for c in counts if bound("ellipsoid, pooled", c) >= bound("rectangle, pooled", c)
        ]
        shown = "; ".join(
            f"m = {c}: {bound('rectangle, pooled', c):.2f}, {bound('ellipsoid, pooled', c):.2f}, "
            f"{bound('gaussian-shift', c):.2f}"
            for c in counts
        )
        verdict = "same" if above == counts else f"at {len(above)} of {len(counts)} sizes"
        correlation = next(float(r["correlation"]) for r in reversed(rows) if r["correlation"])
        return [
            (
                "the ellipsoid is above the rectangle at every size",
                "yes, by cross-correlation of means and variances",
                f"rectangle, ellipsoid, exact shift: {shown}",
                f"{verdict}; but the reason is another: in the bootstrap of all canaries no mean "
                f"and deviation correlate by more than {correlation:.2f}, so the ellipsoid only "
                "leaves out corners of the box"
                if correlation < 0.1
                else f"{verdict}; means and deviations correlate by up to {correlation:.2f}",
            )
        ]


def _on_scores(
    runs: Runs, scores: CanaryScores, auditor: Auditor[Any]
) -> Callable[[NDArray[np.int64]], float]:
    return lambda part: runs.bound(pick(scores, part), auditor)


def _averages(
    runs: Runs,
    head: DpsgdHead,
    kind: str,
    methods: dict[str, Callable[[NDArray[np.int64]], float]],
) -> list[Row]:
    rows = []
    for count in runs.counts:
        repeats = min(runs.repeats, head.canaries // count)
        for name, method in methods.items():
            values = [
                method(np.arange(index * count, (index + 1) * count)) for index in range(repeats)
            ]
            rows.append(
                bound_row(
                    head,
                    name,
                    kind,
                    float(np.mean(values)),
                    canaries=count,
                    audits=repeats,
                    lowest=min(values),
                    highest=max(values),
                )
            )
    return rows


def pick(scores: CanaryScores, part: NDArray[np.int64]) -> CanaryScores:
    """The scores of some canaries."""
    return CanaryScores(
        score=scores.score[part], member=scores.member[part], metadata=scores.metadata
    )


def subset(transcript: Transcript, part: NDArray[np.int64]) -> Transcript:
    """The transcript of some canaries, for bounds; sums a step and what was kept are left out."""
    steps = transcript.number_of_steps
    sums = {item.name: getattr(transcript.canaries, item.name)[part] for item in fields(CanarySums)}
    return replace(
        transcript,
        member=transcript.member[part],
        tensor=transcript.tensor[part],
        canaries=CanarySums(**sums),
        kept=np.zeros(0, np.int64),
        kept_values=np.zeros((steps, 0)),
        kept_planted=np.zeros((steps, 0), np.bool_),
    )


class StepsFigure(PaperFigure):
    """Bounds against steps: one run as it goes on, and runs calibrated to one epsilon."""

    name = "steps"
    title = "Bounds against the number of steps"
    caption = (
        "Left: the run itself, read after so many steps. Right: simulated runs, each calibrated "
        "to the same epsilon."
    )

    def rows(self, runs: Runs) -> list[Row]:
        """Bounds as the run goes on, and of simulated runs calibrated to its epsilon at each T."""
        rows: list[Row] = []
        head = runs.sound
        auditors: tuple[Auditor[Any], ...] = (SubsampledGaussian(), GaussianShift())
        for step in (*runs.dpsgd_plan.snapshots, runs.dpsgd_plan.steps):
            snapshot = runs.snapshot(head, step)
            claimed = accounting.dpsgd_epsilon(
                noise_multiplier=head.noise_multiplier,
                sampling_rate=head.sampling_rate,
                steps=step,
                delta=runs.delta,
            )
            common: Row = {"steps": step, "run": "the run, stopped", "claimed": claimed}
            for auditor in auditors:
                data = snapshot.transcript
                value = runs.bound(
                    data if auditor.reads == "transcript" else data.scores(), auditor
                )
                rows.append({**common, "method": auditor.name, "kind": SOUND, "bound": value})
            value = runs.bound(snapshot.unknown_background_scores(), GaussianEllipsoid(pooled=True))
            rows.append({**common, "method": "pooled ellipsoid", "kind": PUBLISHED, "bound": value})
            rows += _calibrated(runs, head, step, auditors)
        return rows

    def draw(self, rows: Sequence[Row], runs: Runs | None) -> Figure:
        """Bounds against steps: one run as it goes on, and runs calibrated to one epsilon."""
        figure, panels = subplots(2)
        names = ("the run, stopped", "simulated, calibrated")
        for panel, name in zip(panels, names, strict=True):
            own = [row for row in rows if row["run"] == name]
            claimed = sorted({(row["steps"], row["claimed"]) for row in own})
            panel.plot(*zip(*claimed, strict=True), color="#1b1f24", linewidth=1.0, label="claimed")
            add_lines(panel, own, "steps")
            panel.set(xscale="log", xlabel="steps", ylabel="lower bound on epsilon", title=name)
            panel.set_ylim(bottom=0)
            set_ticks(panel, [row["steps"] for row in rows])
            add_legend(panel)
        return figure

    def compare(self, rows: TextRows) -> list[Line]:
        """The claims next to these numbers."""
        calibrated = [row for row in rows if row["run"] == "simulated, calibrated"]
        ellipsoid = [float(r["bound"]) for r in calibrated if r["method"] == "pooled ellipsoid"]
        steps = [float(r["bound"]) for r in calibrated if r["method"] == "subsampled-gaussian"]
        ceiling = [float(r["bound"]) for r in calibrated if r["kind"] == "ceiling"]
        return [
            (
                "bound at few steps, calibrated to one epsilon",
                "robust from T = 50",
                f"ellipsoid {range_text(ellipsoid, '{:.2f}')}, transcript "
                f"{range_text(steps, '{:.2f}')}, where the summed score carries "
                f"{range_text(ceiling, '{:.2f}')}",
                ("same" if min(ellipsoid) >= 0.9 * max(ellipsoid) else "it varies by over a tenth")
                + "; fewer steps mean less noise a step, and the sum then carries less than "
                "the steps",
            )
        ]


def _calibrated(
    runs: Runs, head: DpsgdHead, step: int, auditors: Sequence[Auditor[Any]]
) -> list[Row]:
    noise = accounting.dpsgd_noise_multiplier(
        epsilon=head.epsilon, delta=runs.delta, sampling_rate=head.sampling_rate, steps=step
    )
    transcript = simulate_dpsgd(
        steps=step,
        sampling_rate=head.sampling_rate,
        noise_multiplier=noise,
        present=head.canaries // 2,
        absent=head.canaries - head.canaries // 2,
        seed=runs.dpsgd_plan.seed + step,
    )
    common: Row = {"steps": step, "run": "simulated, calibrated", "claimed": head.epsilon}
    law = ScoreLaw(steps=step, sampling_rate=head.sampling_rate, noise_multiplier=noise)
    rows = [
        {
            **common,
            "method": "all the summed score carries",
            "kind": "ceiling",
            "bound": law.epsilon_at(delta=runs.delta),
        }
    ]
    pooled = GaussianEllipsoid(pooled=True)
    for auditor in (*auditors, pooled):
        data = transcript if auditor.reads == "transcript" else transcript.scores()
        name, kind = (auditor.name, SOUND)
        if auditor is pooled:
            name, kind = ("pooled ellipsoid", PUBLISHED)
        rows.append({**common, "method": name, "kind": kind, "bound": runs.bound(data, auditor)})
    return rows
