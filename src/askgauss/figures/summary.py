"""What a report needs of the data and a result does not keep, in a few small tables.

The tables have the same size for ten canaries and for ten million. Files keep their numbers as
lines of text with five digits, and so does memory, so that a result read back draws the same
pictures.
"""

from __future__ import annotations

import math
import platform
import typing
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr

from askgauss.checks.gate import resumed_at
from askgauss.exceptions import FileFormatError
from askgauss.files import codec
from askgauss.recording.facts import RunFacts
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.results import AuditResult
from askgauss.scores import CanaryScores, GroupMoments
from askgauss.stats.rounding import scale_on_grid

__all__ = [
    "GramSummary",
    "NoiseSummary",
    "RunSummary",
    "ScoreSummary",
    "ShapeSummary",
    "Summary",
    "TensorSummary",
    "hexagon_centres",
    "summarise",
    "tables_of",
]

Array = NDArray[np.float64]

# How many numbers a table has, whatever the size of the run.
BINS = 64
PIT_POINTS = 200
HEXAGONS = 30, 10
STEPS = 200
TENSORS = 24
GRAM = 64
SHAPE_BINS = 48
SHAPE_REACH = 6.0
_NOTES = 20
_TEXT = 300

# Scores are drawn this many standard deviations out, standardised ones this far.
_REACH = 5.0
_HEXAGON_REACH = 4.5
_DENSITY_BLOCK = 1 << 14
_GRAM_STEPS = 2048
_FEWEST_STEPS = 10
_FEWEST_OBSERVATIONS = 20
# Values of the noise whose shape is counted.
_SHAPE_ROWS, _SHAPE_COLUMNS = 2048, 512
_FEWEST_SHAPED = 1000
# Pointwise intervals of the noise scale.
_INTERVAL_ERROR = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known of the run: its facts, without what grows with it.

    Attributes:
        source: Whether a transcript was audited, one of correlated noise, or scores alone.
        steps: Steps recorded, or summed into a score.
        sampling_rate: Probability that an inserted canary is included in a batch.
        sampling: Who decided that.
        scheme: How records are drawn, in words, where that is not plain Poisson sampling.
        poisson: Whether inclusions are independent.
        clip_norm: Norm of a contribution, in the units of the scores.
        noise_multiplier: The noise multiplier the run says it used.
        background: Whether the other records' clean sum was subtracted.
        fair_coins: Whether every canary was inserted independently with probability one half.
        accounted_steps: Steps the run's accountant counted.
        accounted_sampling_rate: Sampling rate the run's accountant used.
        unnoised_steps: Optimizer steps taken without noise.
        tensors: Number of tensors.
        places: How many canaries the model has room for, where that is known.
        exercised: Parts of the training pipeline the canaries went through.
        precision: Number formats met.
        notes: Anything a reader should know.
    """

    source: Literal["transcript", "correlated noise", "scores"] = "scores"
    steps: int | None = None
    sampling_rate: float | None = None
    sampling: str = ""
    scheme: str = ""
    poisson: bool | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    background: str | None = None
    fair_coins: bool | None = None
    accounted_steps: int | None = None
    accounted_sampling_rate: float | None = None
    unnoised_steps: int = 0
    tensors: int = 0
    places: int | None = None
    exercised: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> tuple[str, ...]:
        """Parts of the training that canaries went through; none where only scores are left."""
        # Whatever else they met: what was recorded came after the noise.
        return () if self.source == "scores" else ("noise", *self.exercised)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSummary:
    """Scores of both groups, counted.

    Attributes:
        low: Lower end of the histograms.
        high: Upper end.
        present: Moments of the present scores.
        absent: Moments of the absent scores.
        present_counts: Histogram of the present scores; those outside are in the outermost bins.
        absent_counts: Histogram of the absent scores.
        outside: How many lay outside.
        present_pit: Empirical minus fitted Gaussian distribution of the present scores, at evenly
            spaced probabilities; empty where the scores do not vary.
        absent_pit: The same of the absent scores.
        density: Standardised scores by canary index, counted in hexagons; empty likewise.
    """

    low: float
    high: float
    present: GroupMoments
    absent: GroupMoments
    present_counts: Array
    absent_counts: Array
    outside: int
    present_pit: Array
    absent_pit: Array
    density: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NoiseSummary:
    """Scale of the noise over the steps, in clip norms, with pointwise intervals.

    Attributes:
        step: First step of each group of neighbouring steps, from 1.
        scale: Root of the mean square of what was released where nothing was planted.
        low: Lower end of its interval.
        high: Upper end.
        claimed: The claimed noise multiplier there; nan where there is none.
    """

    step: Array
    scale: Array
    low: Array
    high: Array
    claimed: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorSummary:
    """Scale of the noise by tensor, with intervals: those furthest from the rest.

    Attributes:
        names: Names of the tensors.
        scale: Scale of their noise, in clip norms.
        low: Lower end of its interval.
        high: Upper end.
        of: How many tensors there are in all.
        overall: The scale over all of them.
    """

    names: tuple[str, ...]
    scale: Array
    low: Array
    high: Array
    of: int
    overall: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GramSummary:
    """Cosines between what the steps released about pairs of canaries, their plantings taken out.

    Attributes:
        size: Number of canaries, evenly spread over those that were kept.
        steps: Number of steps they were computed from.
        cosines: In hundredths, the upper triangle row by row, without the diagonal.
    """

    size: int
    steps: int
    cosines: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeSummary:
    """Values of the noise in standard deviations of their tensor, counted.

    Attributes:
        counts: How many lie in each bin, from minus to plus `SHAPE_REACH`; those further out are
            counted in the outermost bins.
        outside: How many those are.
    """

    counts: Array
    outside: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Summary:
    """Everything a report reads from the data."""

    run: RunSummary
    scores: ScoreSummary | None = None
    noise: NoiseSummary | None = None
    tensors: TensorSummary | None = None
    gram: GramSummary | None = None
    shape: ShapeSummary | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Summary) and self.to_metadata() == other.to_metadata()

    __hash__ = None  # type: ignore[assignment]

    def rounded(self) -> Summary:
        """Every table with numbers of five digits, as files have them."""
        changes: dict[str, Any] = {}
        for name in _TABLES:
            if (part := getattr(self, name)) is None:
                continue
            arrays = {
                field.name: _numbers(_line(value), name)
                for field in fields(part)
                if isinstance(value := getattr(part, field.name), np.ndarray)
            }
            changes[name] = replace(part, **arrays)
        return replace(self, **changes)

    def to_metadata(self) -> dict[str, Any]:
        """As the file of a result keeps it."""
        return {
            "run": codec.to_plain(self.run),
            "figures": {
                name: _to_plain(part)
                for name in _TABLES
                if (part := getattr(self, name)) is not None
            },
            "environment": dict(self.environment),
        }

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> Summary:
        """Read what `to_metadata` made; what is not there is left out.

        Raises:
            FileFormatError: A table is not what it should be.
        """
        figures = codec.from_plain(dict[str, Any], metadata.get("figures", {}), "figures")
        environment = codec.from_plain(
            dict[str, str], metadata.get("environment", {}), "environment"
        )
        summary = cls(
            run=codec.from_plain(RunSummary, metadata.get("run", {}), "run"),
            environment=tuple(environment.items()),
            **{name: _from_plain(kind, figures.get(name)) for name, kind in _TABLES.items()},
        )
        summary._check()
        return summary

    def _check(self) -> None:
        """That the tables are such as `summarise` makes: a file may say anything."""
        if (scores := self.scores) is not None:
            hexagons = hexagon_centres()[0].size
            _expect(scores.present_counts, BINS)
            _expect(scores.absent_counts, BINS)
            _expect(scores.present_pit, 0, PIT_POINTS)
            _expect(scores.absent_pit, scores.present_pit.size)
            _expect(scores.density, 0, hexagons)
            if not (math.isfinite(scores.high - scores.low) and scores.low < scores.high):
                raise FileFormatError(
                    "Expected the histogram of the scores to have a finite width."
                )
            for group in (scores.present, scores.absent):
                if group.count < 2 or not 0.0 <= group.sum_of_squares < math.inf:
                    raise FileFormatError("Expected moments of at least 2 scores in each group.")
        if (noise := self.noise) is not None:
            _expect(noise.step, *range(1, STEPS + 1))
            for part in (noise.scale, noise.low, noise.high):
                _expect(part, noise.step.size)
            _expect(noise.claimed, noise.step.size, finite=False)
        if (tensors := self.tensors) is not None:
            _expect(tensors.scale, *range(1, TENSORS + 1))
            for part in (tensors.low, tensors.high, np.zeros(len(tensors.names))):
                _expect(part, tensors.scale.size)
        if (gram := self.gram) is not None:
            if not (2 <= gram.size <= GRAM and gram.steps >= 1):
                raise FileFormatError(f"Expected a Gram matrix of 2 to {GRAM} canaries.")
            _expect(gram.cosines, gram.size * (gram.size - 1) // 2)
        if (shape := self.shape) is not None:
            _expect(shape.counts, SHAPE_BINS)
            if shape.counts.min() < 0.0 or shape.counts.max() == 0.0:
                raise FileFormatError("Expected numbers of values in the shape of the noise.")


_TABLES: dict[str, type[Any]] = {
    "scores": ScoreSummary,
    "noise": NoiseSummary,
    "tensors": TensorSummary,
    "gram": GramSummary,
    "shape": ShapeSummary,
}


def _expect(table: Array, *sizes: int, finite: bool = True) -> None:
    if table.size not in sizes or (finite and not np.isfinite(table).all()):
        wanted = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise FileFormatError(
            f"Expected a table of {wanted} finite numbers for the report, got {table.size} "
            "numbers or some that are not finite. The file was edited: audit again."
        )


def tables_of(result: AuditResult) -> Summary:
    """The tables of a result; empty ones where the audit ran without its checks."""
    return Summary(run=RunSummary()) if result.summary is None else result.summary


def summarise(data: CanaryScores | Transcript | LinearTranscript) -> Summary:
    """The small tables that the pictures of a report are drawn from.

    Args:
        data: What was audited.

    Returns:
        Tables whose size does not depend on the number of canaries, steps or tensors.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> scores = CanaryScores.from_groups(present=rng.normal(3, 1, 900), absent=rng.normal(
        ...     0, 1, 800))
        >>> summary = summarise(scores)
        >>> int(summary.scores.present_counts.sum()), int(summary.scores.absent_counts.sum())
        (900, 800)
    """
    environment = (
        ("python", platform.python_version()),
        ("numpy", np.__version__),
        ("scipy", scipy.__version__),
        ("platform", f"{platform.system()} {platform.machine()}"),
    )
    scores = _scores(data.scores()) if data.scorable else None
    shown = None if isinstance(data, CanaryScores) or not data.finite else data
    steps = shown if isinstance(shown, Transcript) else None
    return Summary(
        run=_run(data),
        scores=scores,
        noise=None if steps is None else _noise(steps),
        tensors=None if steps is None else _tensors(steps),
        gram=None if steps is None else _gram(steps),
        shape=None if shown is None else _shape(shown),
        environment=environment,
    )


def _run(data: CanaryScores | Transcript | LinearTranscript) -> RunSummary:
    """What the facts or metadata say, by the same names; long texts and lists are cut."""
    facts: Any = data.metadata if isinstance(data, CanaryScores) else data.facts
    known = {
        field.name: getattr(facts, field.name)
        for field in fields(RunSummary)
        if hasattr(facts, field.name)
    }
    if isinstance(data, CanaryScores):
        return RunSummary(**known)
    known |= {
        "source": "correlated noise" if isinstance(data, LinearTranscript) else "transcript",
        "steps": data.number_of_steps,
        "clip_norm": 1.0,  # scores of a transcript are in units of it
        "scheme": _short(str(known.get("scheme") or "")),
        "tensors": len(facts.tensors),
        "exercised": tuple(map(_short, facts.exercised[:_NOTES])),
        "precision": tuple(map(_short, facts.precision[:_NOTES])),
        "notes": _notes(facts),
    }
    return RunSummary(**known)


def _notes(facts: RunFacts) -> tuple[str, ...]:
    listed = tuple(map(_short, facts.notes[:_NOTES]))
    # Where an accountant counted the model's steps, the step count has compared them.
    counted = facts.accounted_steps is not None
    question = "" if counted else resumed_at(facts.resumed)
    return (*listed, question) if question else listed


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."


# --- scores --------------------------------------------------------------------------------------


def _scores(scores: CanaryScores) -> ScoreSummary | None:
    present, absent = scores.moments()
    lowest, highest = float(scores.score.min()), float(scores.score.max())
    spreads = present.standard_deviation, absent.standard_deviation
    if not all(math.isfinite(value) for value in (*spreads, highest - lowest)):
        return None  # nothing can be drawn to such a scale
    ends = [end for moments in (present, absent) for end in score_reach(moments)]
    low, high = min(ends), max(ends)
    # To half deviations, no finer than their error.
    if grid := 0.5 * max(_coarse_deviation(present), _coarse_deviation(absent)):
        low, high = math.floor(low / grid) * grid, math.ceil(high / grid) * grid
    # Scores that differ in their last bits alone leave no room for bins between them.
    if not (np.diff(np.linspace(low, high, BINS + 1)) > 0.0).all():
        half = max(abs(low), 1.0) / 2.0
        low, high = low - half, low + half
    groups = scores.present, scores.absent
    inside = [np.clip(values, low, high) for values in groups]
    counts = [np.histogram(values, bins=BINS, range=(low, high))[0] for values in inside]
    vary = min(spreads) > 0.0
    empty = np.zeros(0)
    pits = [
        _pit((values - moments.mean) / moments.standard_deviation) if vary else empty
        for values, moments in zip(groups, (present, absent), strict=True)
    ]
    return ScoreSummary(
        low=low,
        high=high,
        present=present,
        absent=absent,
        present_counts=counts[0].astype(np.float64),
        absent_counts=counts[1].astype(np.float64),
        outside=int(np.count_nonzero((scores.score < low) | (scores.score > high))),
        present_pit=pits[0],
        absent_pit=pits[1],
        density=_density(scores, present, absent) if vary else empty,
    )


def score_reach(moments: GroupMoments) -> tuple[float, float]:
    """Between what scores of so many canaries lie, by their moments alone.

    The highest score is often that of the canary that was planted most: where it lies is not to be
    read from where a figure ends.
    """
    deviations = min(_REACH, 1.0 + math.sqrt(2.0 * math.log(moments.count)))
    reach = deviations * _coarse_deviation(moments)
    return moments.mean - reach, moments.mean + reach


def _coarse_deviation(moments: GroupMoments) -> float:
    return scale_on_grid(moments.standard_deviation, moments.count - 1.0)


def _pit(standard: Array) -> Array:
    """Empirical minus uniform distribution of the Gaussian probabilities, by counting."""
    # Point j lies at (j + 1/2) / points, so the values up to it are those in the cells up to j.
    cell = np.ceil(ndtr(standard) * PIT_POINTS - 0.5).astype(np.int64)
    below = np.cumsum(np.bincount(cell, minlength=PIT_POINTS + 1))[:PIT_POINTS]
    return np.asarray(below / standard.size - (np.arange(PIT_POINTS) + 0.5) / PIT_POINTS)


def _density(scores: CanaryScores, present: GroupMoments, absent: GroupMoments) -> Array:
    """Standardised scores against the canary index, each counted in its nearest hexagon."""
    columns, rows = HEXAGONS
    mean = np.array([absent.mean, present.mean])
    deviation = np.array([absent.standard_deviation, present.standard_deviation])
    counts = np.zeros(hexagon_centres()[0].size)
    # In blocks, whose many intermediate arrays stay in the processor's cache.
    for start in range(0, len(scores), _DENSITY_BLOCK):
        score = scores.score[start : start + _DENSITY_BLOCK]
        member = scores.member[start : start + _DENSITY_BLOCK].astype(np.intp)
        standard = (score - mean[member]) / deviation[member]
        standard = np.clip(standard, -_HEXAGON_REACH, _HEXAGON_REACH)
        x = (np.arange(start, start + score.size) + 0.5) * (columns / len(scores))
        y = (standard + _HEXAGON_REACH) * (rows / (2.0 * _HEXAGON_REACH))
        counts += np.bincount(_hexagon(x, y), minlength=counts.size)
    return counts


def _hexagon(x: NDArray[Any], y: Array) -> NDArray[np.int64]:
    """Index of the nearest centre of `hexagon_centres`, in units of columns and rows."""
    columns, rows = HEXAGONS
    # The centres form two rectangular lattices, one half a cell off the other; rows are the root
    # of 3 times as far apart as columns.
    whole = np.rint(x), np.rint(y)
    half = np.minimum(np.floor(x), columns - 1), np.minimum(np.floor(y), rows - 1)
    first = (x - whole[0]) ** 2 + 3.0 * (y - whole[1]) ** 2
    second = (x - half[0] - 0.5) ** 2 + 3.0 * (y - half[1] - 0.5) ** 2
    index = np.where(
        first <= second,
        whole[0] * (rows + 1) + whole[1],
        (columns + 1) * (rows + 1) + half[0] * rows + half[1],
    )
    return np.asarray(index, dtype=np.int64)


def hexagon_centres() -> tuple[Array, Array]:
    """Centres of the hexagons of `ScoreSummary.density`: share of the index, standardised score."""
    columns, rows = HEXAGONS
    whole = np.mgrid[0 : columns + 1, 0 : rows + 1].reshape(2, -1).astype(np.float64)
    half = np.mgrid[0:columns, 0:rows].reshape(2, -1) + 0.5
    x, y = np.concatenate([whole, half], axis=1)
    return x / columns, (2.0 * y / rows - 1.0) * _HEXAGON_REACH


# --- noise ---------------------------------------------------------------------------------------


def _scale(square: Array, freedom: Array) -> tuple[Array, Array, Array]:
    """Scale of noise of mean zero, and the ends of its interval."""
    ends = (chdtri(freedom, side) for side in (0.5 * _INTERVAL_ERROR, 1.0 - 0.5 * _INTERVAL_ERROR))
    low, high = (np.sqrt(square / end) for end in ends)
    return np.sqrt(square / freedom), low, high


def _noise(transcript: Transcript) -> NoiseSummary | None:
    steps, count = transcript.steps, transcript.number_of_steps
    starts = np.unique(np.linspace(0, count, min(STEPS, count), endpoint=False).astype(np.int64))
    square = np.add.reduceat(steps.square.sum(axis=1), starts)
    others = transcript.member.size - steps.planted.sum(axis=1)
    freedom = np.add.reduceat(others.astype(np.float64), starts)
    widths = np.diff(starts, append=count)
    claimed = np.add.reduceat(steps.noise_multiplier, starts) / widths
    seen = freedom > 0.0
    if not seen.any():
        return None
    scale, low, high = _scale(square[seen], freedom[seen])
    return NoiseSummary(
        step=(starts[seen] + 1).astype(np.float64),
        scale=scale,
        low=low,
        high=high,
        claimed=claimed[seen],
    )


def _tensors(transcript: Transcript) -> TensorSummary | None:
    steps, names = transcript.steps, transcript.facts.tensors
    columns, watch = steps.square.shape[1], transcript.watch_tensor
    count = max(columns, len(names), int(watch.max(initial=-1)) + 1)
    square, freedom = np.zeros(count), np.zeros(count)
    in_tensor = np.bincount(transcript.tensor, minlength=columns)
    if in_tensor[1:].any() or count == 1:  # canaries of blocks are all counted in the first
        square[:columns] = steps.square.sum(axis=0)
        observed = transcript.number_of_steps * in_tensor - steps.planted.sum(axis=0)
        freedom[:columns] = observed
    if transcript.watch_values.size:
        square += np.bincount(watch, (transcript.watch_values**2).sum(axis=0), minlength=count)
        freedom += transcript.number_of_steps * np.bincount(watch, minlength=count)
    seen = np.flatnonzero(freedom >= _FEWEST_OBSERVATIONS)
    if seen.size == 0:
        return None
    square, freedom = square[seen], freedom[seen]
    overall = math.sqrt(square.sum() / freedom.sum())
    scale, low, high = _scale(square, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.abs(np.log(scale / overall)) * np.sqrt(freedom)
    furthest = np.argsort(-np.nan_to_num(distance, nan=0.0, posinf=np.inf), kind="stable")
    shown = np.sort(furthest[:TENSORS])
    return TensorSummary(
        names=tuple(
            _short(names[index]) if index < len(names) else f"tensor {index}"
            for index in seen[shown].tolist()
        ),
        scale=scale[shown],
        low=low[shown],
        high=high[shown],
        of=int(seen.size),
        overall=overall,
    )


def _gram(transcript: Transcript) -> GramSummary | None:
    steps, kept = transcript.kept_values.shape
    if steps < _FEWEST_STEPS or kept < 2:
        return None
    rows = _spread(steps, _GRAM_STEPS)
    columns = _spread(kept, GRAM)
    values = transcript.kept_values[rows][:, columns]
    values = values - transcript.kept_planted[rows][:, columns]
    norms = np.sqrt((values**2).sum(axis=0))
    if not np.isfinite(norms).all():
        return None
    unit = values / np.where(norms > 0.0, norms, 1.0)
    cosines = np.rint(100.0 * (unit.T @ unit))
    return GramSummary(
        size=columns.size, steps=rows.size, cosines=cosines[np.triu_indices(columns.size, 1)]
    )


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """So many indices at most, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _shape(transcript: Transcript | LinearTranscript) -> ShapeSummary | None:
    """How often the noise was how large; None where it cannot be separated from other records."""
    if transcript.facts.background != "known":
        return None
    if isinstance(transcript, LinearTranscript):
        # Of correlated noise only pieces that are independent have one scale.
        values = transcript.kept_values if transcript.plan.independent else np.zeros((0, 0))
        rows = _spread(len(values), _SHAPE_ROWS) if len(values) else np.zeros(0, dtype=np.int64)
        return _counted([_standard(row) for row in values[rows]])
    rows = _spread(transcript.number_of_steps, _SHAPE_ROWS)
    absent = np.flatnonzero(~transcript.member[transcript.kept])
    watched = _spread(transcript.watch_values.shape[1], _SHAPE_COLUMNS)
    columns = np.concatenate(
        [transcript.kept_values[rows][:, absent], transcript.watch_values[rows][:, watched]], axis=1
    )
    columns /= transcript.schedule[rows][:, None]
    tensor = np.concatenate(
        [transcript.tensor[transcript.kept][absent], transcript.watch_tensor[watched]]
    )
    return _counted([_standard(columns[:, tensor == item]) for item in np.unique(tensor)])


def _standard(values: Array) -> Array:
    scale = float(np.sqrt((values**2).mean())) if values.size else 0.0
    return np.asarray(values.ravel() / scale) if 0.0 < scale < np.inf else np.zeros(0)


def _counted(parts: list[Array]) -> ShapeSummary | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    if values.size < _FEWEST_SHAPED:
        return None
    reach = SHAPE_REACH
    counts, _ = np.histogram(np.clip(values, -reach, reach), SHAPE_BINS, (-reach, reach))
    return ShapeSummary(
        counts=counts.astype(np.float64), outside=int(np.count_nonzero(np.abs(values) > reach))
    )


# --- plain ---------------------------------------------------------------------------------------


def _to_plain(part: Any) -> dict[str, Any]:
    """A table whose arrays are lines of numbers: one line each, however the JSON is laid out."""
    plain = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, np.ndarray):
            plain[field.name] = _line(value)
        else:
            plain[field.name] = codec.to_plain(value)
    return plain


def _line(values: Array) -> str:
    return " ".join(f"{item:.5g}" for item in values.tolist())


def _from_plain(kind: type[Any], value: Any) -> Any:
    if value is None:
        return None
    content = codec.from_plain(dict[str, Any], value, kind.__name__)
    hints = typing.get_type_hints(kind)
    arguments = {}
    for field in fields(kind):
        where = f"{kind.__name__}.{field.name}"
        if field.name not in content:
            raise FileFormatError(f"Expected {where} in the metadata of a result.")
        hint, item = hints[field.name], content[field.name]
        if _is_array(hint):
            arguments[field.name] = _numbers(codec.from_plain(str, item, where), where)
        else:
            arguments[field.name] = codec.from_plain(hint, item, where)
    return kind(**arguments)


def _is_array(hint: Any) -> bool:
    # Compared, not taken apart: later numpys have another kind of alias for it.
    return bool(hint == Array)


def _numbers(text: str, where: str) -> Array:
    try:
        return np.array([float(item) for item in text.split()], dtype=np.float64)
    except ValueError as error:
        raise FileFormatError(f"Expected {where} to be numbers: {error}.") from error
