"""Events: sets of outputs that one side favours, by scores that are fitted to other outputs.

A score is one number an output, higher where ``data`` is more likely than ``neighbour``. A bad one
costs power, never validity: what it picks out is tested on outputs that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from askgauss import _validate
from askgauss.exceptions import MissingExtraError
from askgauss.mechanism_audit.outputs import SIDES, OutputTable, keys
from askgauss.stats import betting

__all__ = [
    "Candidates",
    "Classifier",
    "Criterion",
    "OutputEvent",
    "OutputFeatures",
    "Score",
    "classifier_named",
    "fitted_scores",
    "leak",
    "separating_score",
    "suspicion",
]

Array = NDArray[np.float64]
Score = Callable[[OutputTable], Array]
Fitted = tuple[str, Score]

# Columns of an output that are looked at one by one, and values that are told apart exactly.
_COLUMNS = 64
# Dimensions in which nearest neighbours are near.
_FEW = 6
_VALUES = 6
# Numbers beyond this many interquartile ranges say no more than that they are far out.
_FAR = 8.0
_LARGEST = 1e300
_RIDGE = 100.0


class Classifier(Protocol):
    """What scikit-learn calls a classifier; fitted anew for every choice of an event."""

    def fit(self, features: Any, labels: Any) -> Any:
        """Learn to tell label 1 (data) from label 0 (neighbour)."""
        ...

    def predict_proba(self, features: Any) -> Any:
        """Probabilities of the two labels, one row each."""
        ...


def classifier_named(name: str) -> Classifier:
    """A classifier of scikit-learn by a short name: boosting or logistic.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    _validate.one_of(("boosting", "logistic"), classifier=name)
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError(
            f"The classifier {name!r} needs scikit-learn: install the extra sklearn, as in "
            "pip install 'askgauss[sklearn]'."
        ) from error
    made: Classifier = (
        HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=0)
        if name == "boosting"
        else LogisticRegression(max_iter=500)
    )
    return made


@dataclass(frozen=True, slots=True)
class OutputFeatures:
    """Plain numbers of an output: its own, and what simple questions about it give.

    The questions are those that published attacks on broken mechanisms ask: how long is it, what
    is its largest number and where, how often does each common value occur and where first, how
    far are neighbouring numbers apart.

    Attributes:
        width: Columns that are looked at.
        common: Values that occur often, told apart exactly.
        last_bits: Whether to ask for the last bit of every number that is not 0.
    """

    width: int
    common: tuple[float, ...]
    last_bits: bool = False

    @staticmethod
    def of(outputs: OutputTable, *, last_bits: bool = False) -> OutputFeatures:
        """The questions that suit these outputs."""
        values, counts = np.unique(outputs.values[np.isfinite(outputs.values)], return_counts=True)
        often = values[counts >= 0.02 * max(counts.sum(), 1)]
        order = np.argsort(-counts[np.isin(values, often)], kind="stable")[:_VALUES]
        width = min(outputs.values.shape[1], _COLUMNS)
        return OutputFeatures(width, tuple(sorted(often[order])), last_bits)

    def names_and_columns(self, outputs: OutputTable) -> Iterator[tuple[str, Array]]:
        """Name and numbers of each feature; nan where an output has no such number."""
        values = outputs.widened(self.width)
        missing = np.isnan(values)
        for index in range(self.width):
            yield (f"number {index}" if self.width > 1 else "the number"), values[:, index]
        for index in range(min(self.width, _FEW) if self.last_bits else 0):
            yield f"last bit of number {index}", _last_bits(values[:, index])
        yield "length", outputs.lengths.astype(np.float64)
        if self.width == 1:
            return
        end = self.width - np.argmin(missing[:, ::-1], axis=1)
        yield "place of the last number", np.where(missing.all(axis=1), 0, end).astype(np.float64)
        yield "last number", values[np.arange(len(values)), end - 1]
        whole = np.where(missing, -np.inf, values)
        largest = whole.max(axis=1)
        yield "largest number", largest
        yield "place of the largest", whole.argmax(axis=1).astype(np.float64)
        yield "smallest number", np.where(missing, np.inf, values).min(axis=1)
        finite = np.clip(np.where(missing, 0.0, values), -_LARGEST, _LARGEST)
        yield "sum", finite.sum(axis=1)
        yield "mean size", np.abs(finite / self.width).sum(axis=1)
        for value in self.common:
            hits = values == value
            yield f"count of {value:g}", hits.sum(axis=1).astype(np.float64)
            yield (
                f"place of the first {value:g}",
                np.where(hits.any(axis=1), hits.argmax(axis=1), self.width).astype(np.float64),
            )
            # How the value is spread over the places: early against late.
            yield f"places of {value:g}", hits @ (np.arange(self.width) - (self.width - 1) / 2.0)
        with np.errstate(invalid="ignore", over="ignore"):
            steps = np.diff(values, axis=1)
        for index in range(steps.shape[1]):
            yield f"number {index + 1} minus number {index}", steps[:, index]


def _last_bits(values: Array) -> Array:
    """The power of two of each number's last bit; nan for 0 and what is not finite."""
    fraction, exponent = np.frexp(np.where(np.isfinite(values), values, 0.0))
    whole = np.abs(fraction * 2.0**53).astype(np.int64)
    # The lowest bit of a whole number, as a power of two.
    lowest = np.log2(np.maximum(whole & -whole, 1).astype(np.float64))
    return np.where(whole == 0, np.nan, exponent - 53 + lowest)


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """One feature prepared for classifiers: scaled, and its histogram's log-ratio."""

    name: str
    middle: float
    spread: float
    edges: Array
    ratios: Array

    @staticmethod
    def fit(name: str, data: Array, neighbour: Array) -> _Column:
        pooled = np.concatenate((data, neighbour))
        real = pooled[np.isfinite(pooled)]
        low, middle, high = np.quantile(real, (0.25, 0.5, 0.75)) if real.size else (0.0, 0.0, 0.0)
        spread = high - low or (float(np.std(np.clip(real, -_LARGEST, _LARGEST) / 4.0)) * 4.0)
        edges = _edges(real)
        ratios = _log_ratios(_cells(data, edges), _cells(neighbour, edges), edges.size + 2)
        return _Column(name, float(middle), float(spread) or 1.0, edges, ratios)

    def scaled(self, column: Array) -> Array:
        """In interquartile ranges from the median, cut off far out."""
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.clip((column - self.middle) / self.spread, -_FAR, _FAR)
        return np.where(np.isnan(moved), 0.0, moved)

    def histogram(self, column: Array) -> Array:
        """Logarithm of how much more often data than its neighbour fell into the same cell."""
        return self.ratios[_cells(column, self.edges)]


def _edges(real: Array) -> Array:
    """Edges of cells: one for every value that is common, the others at quantiles."""
    values, counts = np.unique(real, return_counts=True)
    cells = int(np.clip(np.sqrt(real.size) / 2.0, 4, 40))
    common = counts > real.size / cells
    if values.size <= cells:
        common[:] = True
    alone = values[common]
    rest = real[~np.isin(real, alone)]
    cuts = np.quantile(rest, np.arange(1, cells) / cells) if rest.size > cells else rest[:0]
    return np.unique(np.concatenate((np.nextafter(alone, -np.inf), alone, cuts)))


def _cells(column: Array, edges: Array) -> NDArray[np.int64]:
    """The cell of each number; nan has a cell of its own, the last."""
    found = np.searchsorted(edges, column, side="left")
    return np.where(np.isnan(column), edges.size + 1, found)


def _log_ratios(data: NDArray[np.int64], neighbour: NDArray[np.int64], size: int) -> Array:
    ours, theirs = np.bincount(data, minlength=size), np.bincount(neighbour, minlength=size)
    return np.log((ours + 0.5) / (theirs + 0.5))


def fitted_scores(
    data: OutputTable,
    neighbour: OutputTable,
    *,
    given: Callable[[OutputTable], Array] | None = None,
    classifier: Classifier | None = None,
    last_bits: bool = False,
) -> list[Fitted]:
    """Every score that suits these outputs, fitted to them.

    Args:
        data: Outputs of one side; as many of each.
        neighbour: Outputs of the other.
        given: A log-likelihood ratio that the mechanism offers.
        classifier: One more classifier to learn from the features.
        last_bits: Whether the last bit of a number is a feature of it.

    Returns:
        Names and scores.
    """
    pooled = OutputTable.together((data, neighbour))
    features = OutputFeatures.of(pooled, last_bits=last_bits)
    ours = list(features.names_and_columns(data))
    theirs = dict(features.names_and_columns(neighbour))
    columns = [
        _Column.fit(name, column, theirs[name])
        for name, column in ours
        if np.unique(np.concatenate((column, theirs[name]))).size > 1
    ]
    scores: list[Fitted] = [] if given is None else [("the likelihood ratio given", given)]
    atoms = _atoms(data, neighbour, pooled)
    scores += atoms
    if not columns:
        return scores
    table = _Table(features, tuple(columns))
    for column in columns:
        scores.append((column.name, table.reading(column.name)))
        scores.append((f"histogram of {column.name}", table.histogram(column)))
    if len(columns) > 1:
        inputs = np.concatenate((table.inputs(data), table.inputs(neighbour)))
        labels = np.repeat((1.0, 0.0), (len(data), len(neighbour)))
        weights = _logistic(inputs, labels)
        scores.append(("logistic regression", lambda outputs: table.inputs(outputs) @ weights))
    # Points that coincide are neighbours of nobody in particular; single outputs tell them apart.
    if 1 < pooled.values.shape[1] <= _FEW and not atoms:
        scores.append(("nearest neighbours", _nearest(table, data, neighbour)))
    if classifier is not None:
        inputs = np.concatenate((table.inputs(data), table.inputs(neighbour)))
        classifier.fit(inputs, np.repeat((1, 0), (len(data), len(neighbour))))
        learned = classifier  # refitted for the next choice only after this score was used

        def probability(outputs: OutputTable) -> Array:
            return np.asarray(learned.predict_proba(table.inputs(outputs))[:, 1], np.float64)

        scores.append((type(classifier).__name__, probability))
    return scores


class _Table:
    """All features of outputs, as the scores need them."""

    def __init__(self, features: OutputFeatures, columns: tuple[_Column, ...]) -> None:
        self.features = features
        self.columns = columns
        self._outputs: OutputTable | None = None
        self._found: dict[str, Array] = {}

    def found(self, outputs: OutputTable) -> dict[str, Array]:
        """The features by name; kept, since every score asks for those of the same outputs."""
        if self._outputs is not outputs:
            nothing = np.full(len(outputs), np.nan)
            names = {column.name: nothing for column in self.columns}
            self._outputs = outputs
            self._found = names | dict(self.features.names_and_columns(outputs))
        return self._found

    def reading(self, name: str) -> Score:
        """A feature as it is; an output that does not have it comes last."""

        def score(outputs: OutputTable) -> Array:
            column = self.found(outputs)[name]
            return np.where(np.isnan(column), -np.inf, column)

        return score

    def histogram(self, column: _Column) -> Score:
        """Log-ratio of a feature's histogram."""
        return lambda outputs: column.histogram(self.found(outputs)[column.name])

    def inputs(self, outputs: OutputTable) -> Array:
        """What a classifier reads: every feature scaled, and by its histogram."""
        found, parts = self.found(outputs), []
        for column in self.columns:
            numbers = found[column.name]
            parts += [column.scaled(numbers), column.histogram(numbers)]
        return np.column_stack(parts)


def _atoms(data: OutputTable, neighbour: OutputTable, pooled: OutputTable) -> list[Fitted]:
    """Outputs as categories, where some occur again and again."""
    width = pooled.values.shape[1]
    known, places = np.unique(keys(pooled, width), return_inverse=True)
    if not 1 < known.size <= 0.9 * len(pooled):
        return []
    ratios = _log_ratios(places[: len(data)], places[len(data) :], known.size)

    def score(outputs: OutputTable) -> Array:
        wanted = keys(outputs, width)
        found = np.minimum(np.searchsorted(known, wanted), known.size - 1)
        return np.where(known[found] == wanted, ratios[found], 0.0)

    return [("single outputs", score)]


def _logistic(inputs: Array, labels: Array) -> Array:
    """Ridge logistic regression by Newton's method."""
    weights = np.zeros(inputs.shape[1])
    ridge = _RIDGE * np.eye(inputs.shape[1])
    for _ in range(8):
        chance = expit(inputs @ weights)
        slope = inputs.T @ (labels - chance) - _RIDGE * weights
        bend = (inputs * (chance * (1.0 - chance))[:, None]).T @ inputs + ridge
        step = np.linalg.solve(bend, slope)
        weights += step
        if np.abs(step).max() < 1e-4:
            break
    return weights


def _nearest(table: _Table, data: OutputTable, neighbour: OutputTable) -> Score:
    """Share of data among the nearest outputs, where an output is a point in few dimensions."""
    from scipy.spatial import cKDTree

    own = [column for column in table.columns if column.name.startswith("number ")]
    own = [column for column in own if "minus" not in column.name]

    def points(outputs: OutputTable) -> Array:
        found = table.found(outputs)
        return np.column_stack(
            [column.scaled(found[column.name]) for column in own] or [np.zeros(len(outputs))]
        )

    tree = cKDTree(np.concatenate((points(data), points(neighbour))))
    count = max(5, int(np.sqrt(len(data))))

    def score(outputs: OutputTable) -> Array:
        _, found = tree.query(points(outputs), k=min(count, tree.n))
        return np.asarray((np.atleast_2d(found) < len(data)).mean(axis=-1), np.float64)

    return score


# How good an event looks: of hits on the favoured side, hits on the other, and outputs of each.
Criterion = Callable[[Array, Array, int], Array]

# Outputs above a threshold are counted at ranks this far apart, finest in the tails.
_RANKS = 1.15
# An event is judged as if its frequencies were this many standard errors worse.
_DOUBT = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class OutputEvent:
    """A set of outputs that one side is thought to favour.

    Attributes:
        name: What it is, for a person.
        score: The score of an output.
        sign: 1 where the event is a high score, -1 where it is a low one.
        threshold: Outputs belong to it whose signed score is at least this.
        favoured: 0 where data is thought to favour it, 1 where its neighbour is.
        hits: How many outputs of the favoured and of the other side were in it, among those it
            was chosen on.
        trials: How many outputs of each side it was chosen on.
    """

    name: str
    score: Score
    sign: float
    threshold: float
    favoured: int
    hits: tuple[int, int]
    trials: int

    def contains(self, outputs: OutputTable) -> NDArray[np.bool_]:
        """Which outputs are in it."""
        return np.asarray(self.sign * self.score(outputs) >= self.threshold)

    def __str__(self) -> str:
        side = "high" if self.sign > 0 else "low"
        return f"{side} {self.name}, more often from {SIDES[self.favoured]}"


def suspicion(epsilon: float, delta: float) -> Criterion:
    """How fast bets on an event would contradict this claim; below 0 where they would not."""

    def judge(favoured: Array, other: Array, trials: int) -> Array:
        a, _ = betting.wilson_limits(favoured, trials, _DOUBT)
        _, b = betting.wilson_limits(other, trials, _DOUBT)
        a = np.clip(a, 1e-12, 1.0 - 1e-12)
        gap = a - np.exp(epsilon) * b - delta
        doubt = np.sqrt(a * (1.0 - a) + np.exp(2.0 * epsilon) * b * (1.0 - b))
        value: Array = np.minimum(gap / doubt, 0.0)
        broken = gap > 0.0
        value[broken] = betting.growth(a[broken], b[broken], epsilon, delta)
        return value

    return judge


def leak(delta: float, doubt: float = _DOUBT) -> Criterion:
    """The epsilon that an event shows, as far as it can be trusted."""

    def judge(favoured: Array, other: Array, trials: int) -> Array:
        a, _ = betting.wilson_limits(favoured, trials, doubt)
        _, b = betting.wilson_limits(other, trials, doubt)
        return np.asarray(np.log(np.maximum(a - delta, 1e-12) / b))

    return judge


class Candidates:
    """Events from every score, with how often each happened among outputs no score was fitted to.

    Half of the outputs fit the scores, the other half counts the events.
    """

    def __init__(
        self,
        data: OutputTable,
        neighbour: OutputTable,
        *,
        given: Score | None = None,
        classifier: Classifier | None = None,
        last_bits: bool = False,
    ) -> None:
        half = len(data) // 2
        fit, count = slice(0, half), slice(half, None)
        counted = (data.rows(count), neighbour.rows(count))
        self.trials = len(counted[0])
        scores = fitted_scores(
            data.rows(fit),
            neighbour.rows(fit),
            given=given,
            classifier=classifier,
            last_bits=last_bits,
        )
        # Score by score, so that each reads the features of one side and then of the other.
        read = [[score(outputs) for _, score in scores] for outputs in counted]
        self._events: list[tuple[str, Score, float]] = []
        cuts, ours, theirs, owners = [], [], [], []
        for (name, score), here, there in zip(scores, read[0], read[1], strict=True):
            for sign in (1.0, -1.0):
                cut, hits, misses = _counts(sign * here, sign * there)
                owners.append(np.full(cut.size, len(self._events)))
                self._events.append((name, score, sign))
                cuts.append(cut)
                ours.append(hits)
                theirs.append(misses)
        empty = np.zeros(0)
        self._cuts = np.concatenate(cuts or [empty])
        self._owners = np.concatenate(owners or [empty]).astype(np.int64)
        self._hits = (np.concatenate(ours or [empty]), np.concatenate(theirs or [empty]))

    def best(self, criterion: Criterion) -> OutputEvent | None:
        """The event that looks best; None where all outputs are alike."""
        if self._cuts.size == 0:
            return None
        found = []
        for favoured in (0, 1):
            values = criterion(self._hits[favoured], self._hits[1 - favoured], self.trials)
            place = int(np.argmax(values))
            found.append((values[place], favoured, place))
        _, favoured, place = max(found, key=lambda item: item[0])
        name, score, sign = self._events[self._owners[place]]
        hits = (int(self._hits[favoured][place]), int(self._hits[1 - favoured][place]))
        cut = float(self._cuts[place])
        return OutputEvent(name, score, sign, cut, favoured, hits, self.trials)


def _counts(ours: Array, theirs: Array) -> tuple[Array, Array, Array]:
    """Thresholds, and how many scores of each side reach them."""
    pooled = np.sort(np.concatenate((ours, theirs)))[::-1]
    # Whole ranks from both ends, ever further apart towards the middle.
    steps = int(np.log(pooled.size) / np.log(_RANKS)) + 1
    ranks = np.unique(np.minimum(_RANKS ** np.arange(steps), pooled.size).astype(np.int64)) - 1
    cuts = np.unique(pooled[np.concatenate((ranks, pooled.size - 1 - ranks))])[1:]
    first, second = np.sort(ours), np.sort(theirs)
    return (
        cuts,
        (ours.size - np.searchsorted(first, cuts, side="left")).astype(np.float64),
        (theirs.size - np.searchsorted(second, cuts, side="left")).astype(np.float64),
    )


def separating_score(data: OutputTable, neighbour: OutputTable) -> tuple[str, Score]:
    """The score, fitted to half of these outputs, that tells the other half apart best."""
    half = len(data) // 2
    fit, judge = slice(0, half), slice(half, None)
    judged = OutputTable.together((data.rows(judge), neighbour.rows(judge)))
    count = len(data) - half
    found = []
    for name, score in fitted_scores(data.rows(fit), neighbour.rows(fit)):
        _, places = np.unique(score(judged), return_inverse=True)
        counts = np.bincount(places)
        ranks = (np.cumsum(counts) - 0.5 * (counts - 1.0))[places]
        # The area under the curve, by the sum of ranks; turned round where it is below a half.
        area = (ranks[:count].mean() - 0.5 * (count + 1.0)) / count
        found.append((abs(area - 0.5), name, 1.0 if area >= 0.5 else -1.0, score))
    if not found:
        return "none", lambda outputs: np.zeros(len(outputs))
    _, name, sign, best = max(found, key=lambda item: item[0])
    return name, lambda outputs: sign * best(outputs)
