"""The numbers behind every figure, from finished runs; drawing them is `figures`' business."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import accounting
from askgauss.auditing import audit
from askgauss.auditors import (
    Auditor,
    GaussianEllipsoid,
    GaussianRectangle,
    GaussianShift,
    MaxCosine,
    SubsampledGaussian,
    auditor_types,
)
from askgauss.paper import train_dpftrl, train_dpsgd, uncorrected
from askgauss.paper.csv_rows import Row
from askgauss.recording.transcript import CanarySums, Transcript
from askgauss.results import Assumption
from askgauss.scores import CanaryScores
from askgauss.simulation import simulate_dpsgd
from askgauss.stats import regions as region_methods
from askgauss.stats.score_law import ScoreLaw

__all__ = ["Runs", "bounds", "by_canaries", "by_steps", "convergence", "correlations"]
__all__ += ["headline", "regions", "score_indices", "score_values", "trees", "utility"]

PUBLISHED = "as published"
UNCORRECTED = "uncorrected"
SOUND = "sound"
ESTIMATE = "estimate"


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
    """

    dpsgd_folder: Any
    dpsgd_plan: train_dpsgd.Plan
    dpftrl_folder: Any
    dpftrl_plan: train_dpftrl.TreeRunPlan
    dpsgd_accuracy: dict[str, dict[str, float]]
    dpftrl_accuracy: dict[str, float]
    delta: float = 1e-5
    confidence: float = 0.95
    repeats: int = 10

    def audited(self, *, published: bool) -> Iterator[train_dpsgd.Head]:
        """The DP-SGD heads with canaries, sound ones or as published."""
        for head in self.dpsgd_plan.heads:
            if head.canaries and head.name.startswith("published") == published:
                yield head

    def snapshot(self, head: train_dpsgd.Head, step: int | None = None) -> train_dpsgd.Snapshot:
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


# --- DP-SGD ----------------------------------------------------------------------------------


def utility(runs: Runs) -> list[Row]:
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


def bounds(runs: Runs) -> list[Row]:
    """Every auditor's bound against the claimed epsilon, soundly and as published."""
    rows: list[Row] = []
    for head in runs.audited(published=False):
        snapshot = runs.snapshot(head)
        for name, auditor in _every_auditor().items():
            data = snapshot.transcript if auditor.reads == "transcript" else None
            value = runs.bound(data or snapshot.transcript.scores(), auditor)
            rows.append(_row(head, name, SOUND, value, assumption=auditor.assumption.value))
        unknown = snapshot.unknown_background_scores()
        rows.append(
            _row(
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
            rows.append(_row(head, name, kind, value))
        # What is left of the difference once the background is taken out.
        known = runs.bound(snapshot.transcript.scores(), GaussianEllipsoid(pooled=True))
        rows.append(_row(head, "pooled ellipsoid, background known", PUBLISHED, known))
    return rows


MODEL = "their model, simulated"
LEFT_IN = "trained, background left in"
TAKEN_OUT = "trained, background taken out"


def headline(runs: Runs) -> list[Row]:
    """The paper's three methods and ours on the same scores, at the largest epsilon.

    Of the paper's own model many draws are made, at its stated sampling rate: one run is one draw.
    """
    sound = _largest(runs.audited(published=False))
    head = _largest(runs.audited(published=True))
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
        _row(
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


def _row(head: Any, method: str, kind: str, value: float, **more: Any) -> Row:
    return {
        "epsilon": head.epsilon,
        "method": method,
        "kind": kind,
        "bound": value,
        "share": value / head.epsilon,
        **more,
    }


def by_canaries(runs: Runs, counts: Sequence[int]) -> list[Row]:
    """Bounds from subsets of the canaries, at the largest epsilon.

    Canaries are independent and their order is random, so the first so many are a smaller audit of
    the same run, and the next so many another one.
    """
    rows: list[Row] = []
    head = _largest(runs.audited(published=False))
    snapshot = runs.snapshot(head)
    transcript = snapshot.transcript
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
    rows += _averages(runs, head, SOUND, methods, counts)
    head = _largest(runs.audited(published=True))
    scores = runs.snapshot(head).unknown_background_scores()
    level = {"delta": runs.delta, "confidence": runs.confidence}
    published = {"pooled ellipsoid": _on_scores(runs, scores, GaussianEllipsoid(pooled=True))}
    rows += _averages(runs, head, PUBLISHED, published, counts)
    best: dict[str, Callable[[NDArray[np.int64]], float]] = {
        "f-DP, best threshold": lambda part: uncorrected.uncorrected_fdp(
            pick(scores, part), **level
        ),
        "one run, best threshold": lambda part: uncorrected.uncorrected_one_run(
            pick(scores, part), **level
        ),
    }
    return rows + _averages(runs, head, UNCORRECTED, best, counts)


def regions(runs: Runs, counts: Sequence[int]) -> list[Row]:
    """The paper's two regions and the exact shift, from subsets of the canaries."""
    head = _largest(runs.audited(published=False))
    scores = runs.snapshot(head).transcript.scores()
    auditors: dict[str, Auditor[Any]] = {
        "rectangle": GaussianRectangle(),
        "ellipsoid": GaussianEllipsoid(),
        "rectangle, pooled": GaussianRectangle(pooled=True),
        "ellipsoid, pooled": GaussianEllipsoid(pooled=True),
        "gaussian-shift": GaussianShift(),
    }
    methods = {name: _on_scores(runs, scores, auditor) for name, auditor in auditors.items()}
    rows = _averages(runs, head, SOUND, methods, counts)
    for row in rows:
        if row["method"] == "ellipsoid":
            part = pick(scores, np.arange(row["canaries"]))
            _, covariance = region_methods.bootstrap(part.absent, part.present)
            spread = np.sqrt(np.diagonal(covariance))
            correlation = covariance / np.outer(spread, spread) - np.eye(len(spread))
            row["correlation"] = float(np.abs(correlation).max())
    return rows


def _on_scores(
    runs: Runs, scores: CanaryScores, auditor: Auditor[Any]
) -> Callable[[NDArray[np.int64]], float]:
    return lambda part: runs.bound(pick(scores, part), auditor)


def _averages(
    runs: Runs,
    head: train_dpsgd.Head,
    kind: str,
    methods: dict[str, Callable[[NDArray[np.int64]], float]],
    counts: Sequence[int],
) -> list[Row]:
    rows = []
    for count in counts:
        repeats = min(runs.repeats, head.canaries // count)
        for name, method in methods.items():
            values = [
                method(np.arange(index * count, (index + 1) * count)) for index in range(repeats)
            ]
            rows.append(
                _row(
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


def _largest(heads: Iterator[train_dpsgd.Head]) -> train_dpsgd.Head:
    return max(heads, key=lambda head: head.epsilon)


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


def by_steps(runs: Runs) -> list[Row]:
    """Bounds as the run goes on, and of simulated runs calibrated to the same epsilon at each T."""
    rows: list[Row] = []
    head = _largest(runs.audited(published=False))
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
            value = runs.bound(data if auditor.reads == "transcript" else data.scores(), auditor)
            rows.append({**common, "method": auditor.name, "kind": SOUND, "bound": value})
        value = runs.bound(snapshot.unknown_background_scores(), GaussianEllipsoid(pooled=True))
        rows.append({**common, "method": "pooled ellipsoid", "kind": PUBLISHED, "bound": value})
        rows += _calibrated(runs, head, step, auditors)
    return rows


def _calibrated(
    runs: Runs, head: train_dpsgd.Head, step: int, auditors: Sequence[Auditor[Any]]
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


# --- the scores themselves -------------------------------------------------------------------


def correlations(runs: Runs) -> list[Row]:
    """How far canaries are from independent: the directions, and the noise along them."""
    head = _largest(runs.audited(published=False))
    transcript = runs.snapshot(head).transcript
    noise = transcript.kept_values - transcript.kept_planted
    matrix = np.asarray(np.corrcoef(noise.T), np.float64)
    size = len(matrix)
    off = matrix[~np.eye(size, dtype=bool)]
    steps = transcript.number_of_steps
    # One canary is one coordinate and no two share it: their Gram matrix is the identity.
    rows: list[Row] = [
        {"matrix": "directions", "mean": 0.0, "deviation": 0.0, "largest": 0.0, "expected": 0.0},
        {
            "matrix": "released noise",
            "mean": float(off.mean()),
            "deviation": float(off.std()),
            "largest": float(np.abs(off).max()),
            "expected": 1.0 / math.sqrt(steps - 1),
        },
    ]
    return rows


def correlation_matrix(runs: Runs, largest: int = 64) -> NDArray[np.float64]:
    """Correlations over the steps of what was released about some canaries, plantings taken out."""
    transcript = runs.snapshot(_largest(runs.audited(published=False))).transcript
    noise = transcript.kept_values - transcript.kept_planted
    return np.asarray(np.corrcoef(noise[:, :largest].T), np.float64)


def score_values(runs: Runs) -> list[Row]:
    """The scores at the largest epsilon, background known and unknown."""
    head = _largest(runs.audited(published=False))
    snapshot = runs.snapshot(head)
    known, unknown = snapshot.transcript.scores(), snapshot.unknown_background_scores()
    return [
        {"present": bool(member), "known": float(score), "unknown": float(other)}
        for member, score, other in zip(known.member, known.score, unknown.score, strict=True)
    ]


def score_law(runs: Runs) -> ScoreLaw:
    """The law those scores should have, in units of the clip norm."""
    head = _largest(runs.audited(published=False))
    return ScoreLaw(
        steps=runs.dpsgd_plan.steps,
        sampling_rate=head.sampling_rate,
        noise_multiplier=head.noise_multiplier,
    )


def score_indices(runs: Runs) -> list[Row]:
    """Standardised scores by the index of their canary."""
    law, rows = score_law(runs), []
    for index, row in enumerate(score_values(runs)):
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


# --- theory ----------------------------------------------------------------------------------


def convergence(
    steps: Sequence[int], *, sampling_rate: float = 0.0819, noise_multiplier: float = 2.6245
) -> list[Row]:
    """Distance of the score's law from a Gaussian: exact, the theorem's leading term, Edgeworth.

    Examples:
        >>> row, = convergence([2500])
        >>> abs(row["exact"] / row["leading term"] - 1) < 0.01
        True
    """
    rows: list[Row] = []
    for count in steps:
        law = ScoreLaw(steps=count, sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
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


# --- DP-FTRL ---------------------------------------------------------------------------------


def trees(runs: Runs) -> list[Row]:
    """Bounds on DP-FTRL against its claim, beside the max-cosine estimate."""
    rows: list[Row] = []
    for head in runs.dpftrl_plan.heads:
        if not head.canaries:
            continue
        if head.published:
            scores = train_dpftrl.load_published_scores(runs.dpftrl_folder, head.name)
            pooled = runs.bound(scores, GaussianEllipsoid(pooled=True))
            rows.append(_row(head, "ancestor sums, pooled ellipsoid", PUBLISHED, pooled))
            continue
        for release in train_dpftrl.RELEASES:
            transcript = train_dpftrl.load_transcript(runs.dpftrl_folder, head.name, release)
            value = runs.bound(transcript.scores(), GaussianShift())
            rows.append(_row(head, f"gaussian-shift, {release}", SOUND, value))
        estimate = audit(
            transcript.cosines(), delta=runs.delta, auditor=MaxCosine(), diagnostics=False
        ).epsilon_point
        rows.append(_row(head, "max cosine (Andrew et al.)", ESTIMATE, estimate or 0.0))
    return rows
