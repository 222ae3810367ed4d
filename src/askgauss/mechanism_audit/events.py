"""Events: sets of outputs that one side favours, chosen on outputs that are then done with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askgauss.mechanism_audit.output_scores import Classifier, Score, fitted_scores
from askgauss.mechanism_audit.outputs import SIDES, OutputTable
from askgauss.stats import betting

__all__ = ["Candidates", "Criterion", "OutputEvent", "leak", "separating_score", "suspicion"]

Array = NDArray[np.float64]
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
