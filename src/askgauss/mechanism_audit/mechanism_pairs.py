"""Other questions of a mechanism: the pair on which it leaks most, and a pair's trade-off curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.mechanism_audit.events import Candidates, leak, separating_score
from askgauss.mechanism_audit.outputs import Mechanism, OutputTable, Sampler, check_pair
from askgauss.scores import CanaryScores
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "MeasuredCurve",
    "NeighbourSearch",
    "mechanism_scores",
    "search_neighbours",
    "tradeoff_curve",
]

# Fewer outputs of a pair rank it by chance alone.
_LEAST = 60
# The best of many events is overrated, the more so the fewer outputs: rank by what surely remains.
_DOUBT = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourSearch:
    """The pair that looked worst; its outputs of the search are not part of any audit.

    Attributes:
        data: One input of the pair.
        neighbour: The other.
        place: Which candidate it was.
        leaks: What each candidate showed when it was last looked at: cautious estimates of
            epsilon, to rank pairs by and for nothing else.
        samples: Outputs of each side that were drawn in all.
    """

    data: Any
    neighbour: Any
    place: int
    leaks: tuple[float, ...]
    samples: int


def search_neighbours(
    mechanism: Mechanism,
    candidates: Iterable[tuple[Any, Any]] | Callable[[np.random.Generator], tuple[Any, Any]],
    *,
    budget: int = 20_000,
    delta: float = 0.0,
    pairs: int = 32,
    adjacent: Callable[[Any, Any], bool] | None = None,
    seed: int = 0,
) -> NeighbourSearch:
    """Search pairs of neighbours for the one on which a mechanism leaks most.

    Successive halving: every candidate gets as many outputs, the better half is kept and gets as
    many again, until one is left. What is chosen must be audited on outputs of its own, as
    `audit_mechanism` does; the choice then costs nothing.

    Args:
        mechanism: What is audited.
        candidates: Pairs within the bounds that matter, or a function that draws one.
        budget: Most outputs of each side, over all candidates.
        delta: The delta at which leaks are compared.
        pairs: How many pairs to draw where candidates are drawn.
        adjacent: Says whether two inputs are neighbours; refused where it says no.
        seed: Where pairs and seeds of the mechanism come from.

    Returns:
        The pair that looked worst.

    Examples:
        >>> import numpy as np
        >>> from askgauss.mechanism_audit import from_function
        >>> noisy = from_function(lambda data, rng: sum(data) + rng.laplace())
        >>> found = search_neighbours(
        ...     noisy, [([0], [0, 0.1]), ([0], [0, 1])], budget=600)
        >>> found.neighbour
        [0, 1]
    """
    _validate.integer(1, budget=budget, pairs=pairs)
    _validate.within(0.0, 1.0, closed="left", delta=delta)
    root = np.random.default_rng(seed)
    given = [candidates(root) for _ in range(pairs)] if callable(candidates) else list(candidates)
    if not given:
        raise InvalidArgumentError("Expected at least one pair of neighbours, got none.")
    for data, neighbour in given:
        check_pair(data, neighbour, adjacent)
    rounds = max(1, math.ceil(math.log2(len(given))))
    if budget < _LEAST * len(given) * rounds:
        raise _validate.fail(
            "budget",
            budget,
            f">= {_LEAST * len(given) * rounds}, {_LEAST} outputs a pair in each round",
            "Pass more, or fewer candidates.",
        )
    samplers = [Sampler(mechanism, stream) for stream in root.spawn(len(given))]
    seen: list[list[OutputTable] | None] = [None] * len(given)
    leaks = [0.0] * len(given)
    left, spent = list(range(len(given))), 0
    for _ in range(rounds):
        size = budget // (rounds * len(left))
        for place in left:
            fresh = [
                samplers[place].draw(item, side, size) for side, item in enumerate(given[place])
            ]
            before = seen[place]
            both = (
                fresh
                if before is None
                else [OutputTable.together(pair) for pair in zip(before, fresh, strict=True)]
            )
            seen[place] = both
            leaks[place] = _shown(both, delta)
        spent += size * len(left)
        left = sorted(left, key=lambda place: -leaks[place])[: max(1, (len(left) + 1) // 2)]
    data, neighbour = given[left[0]]
    return NeighbourSearch(
        data=data, neighbour=neighbour, place=left[0], leaks=tuple(leaks), samples=spent
    )


def _shown(outputs: list[OutputTable], delta: float) -> float:
    """A cautious estimate of what a pair leaks, by the event that shows most of it."""
    judge = leak(delta, _DOUBT)
    event = Candidates(*outputs).best(judge)
    if event is None:
        return 0.0
    favoured, other = (np.array([float(hits)]) for hits in event.hits)
    return max(0.0, float(judge(favoured, other, event.trials)[0]))


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredCurve:
    """Errors of telling one input of a pair from the other by one score.

    Attributes:
        score: The score, chosen on outputs of its own.
        alpha: Estimated false positive rates: neighbour taken for data.
        beta: Estimated false negative rates: data taken for neighbour.
        bound: A curve that the mechanism's lies nowhere above, with the stated confidence.
        confidence: Probability that the whole of ``bound`` holds.
        samples: Outputs of each side that were drawn in all.
    """

    score: str
    alpha: Array
    beta: Array
    bound: TradeOff
    confidence: float
    samples: int

    def contradicts(self, claimed: TradeOff) -> bool:
        """Whether the bound lies below a claimed curve somewhere, at any slope."""
        alpha, beta = self.bound.points()
        return bool(np.any(beta < claimed.beta_at(alpha)))


def tradeoff_curve(
    mechanism: Mechanism,
    data: Any,
    neighbour: Any,
    *,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> MeasuredCurve:
    """Estimate the trade-off curve of a mechanism on one pair, with a bound that holds everywhere.

    A third of the outputs fits scores, a third chooses the one that tells the sides apart best,
    and the rest measures its errors at every threshold at once (Dvoretzky-Kiefer-Wolfowitz).

    Args:
        mechanism: What is looked at.
        data: One input of it.
        neighbour: Its neighbour.
        samples: Outputs of each side.
        confidence: Probability that the whole bound holds.
        seed: Where the seeds of a mechanism that takes them come from.

    Returns:
        The estimate and the bound.
    """
    _validate.within(0.5, 1, confidence=confidence)
    name, ours, theirs = _scored(mechanism, data, neighbour, samples, seed)
    # Only the order of scores matters, and infinite ones have a place in it.
    present, absent = _ranked(ours, theirs)
    cuts = np.arange(max(present.max(), absent.max()) + 2)
    alpha = 1.0 - np.searchsorted(np.sort(absent), cuts) / absent.size
    beta = np.searchsorted(np.sort(present), cuts) / present.size
    return MeasuredCurve(
        score=name,
        alpha=alpha[::-1],
        beta=beta[::-1],
        bound=TradeOff.empirical(present, absent, confidence=confidence),
        confidence=confidence,
        samples=samples,
    )


def mechanism_scores(
    mechanism: Mechanism, data: Any, neighbour: Any, *, samples: int = 10_000, seed: int = 0
) -> CanaryScores:
    """Outputs of a mechanism as scores, so that every auditor, and `compare`, can read them.

    Outputs on ``data`` are the present ones, those on ``neighbour`` the absent ones. A third of
    them fits scores, a third chooses the one that tells the sides apart best, and the rest is
    scored by it. Infinite scores are replaced by ranks, all of them.

    Args:
        mechanism: What is looked at.
        data: One input of it.
        neighbour: Its neighbour.
        samples: Outputs of each side.
        seed: Where the seeds of a mechanism that takes them come from.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> class Laplace:
        ...     def sample(self, data, n, seed):
        ...         return data + np.random.default_rng(seed).laplace(0.0, 1.0, n)
        >>> scores = mechanism_scores(Laplace(), 0.0, 1.0, samples=3000)
        >>> table = ag.compare(scores, delta=1e-5, auditors=[ag.ClopperPearson(), ag.OneRun()])
        >>> [row.bound < 1.0 for row in table.rows]
        [True, True]
    """
    _, ours, theirs = _scored(mechanism, data, neighbour, samples, seed)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        ours, theirs = _ranked(ours, theirs)
    # Outputs of either input are drawn anew: what differs is the input.
    return CanaryScores.from_groups(present=ours, absent=theirs, membership="randomised")


def _scored(
    mechanism: Mechanism, data: Any, neighbour: Any, samples: int, seed: int
) -> tuple[str, Array, Array]:
    """The best score, chosen on two thirds of the outputs, and its values on the rest."""
    _validate.integer(90, samples=samples)
    check_pair(data, neighbour)
    sampler = Sampler(mechanism, np.random.default_rng(seed))
    chosen = 2 * samples // 3
    known = [sampler.draw(item, side, chosen) for side, item in enumerate((data, neighbour))]
    name, score = separating_score(*known)
    fresh = [
        sampler.draw(item, side, samples - chosen) for side, item in enumerate((data, neighbour))
    ]
    ours, theirs = (score(outputs) for outputs in fresh)
    return name, ours, theirs


def _ranked(ours: Array, theirs: Array) -> tuple[Array, Array]:
    _, places = np.unique(np.concatenate((ours, theirs)), return_inverse=True)
    first, second = np.split(places.astype(np.float64), [ours.size])
    return first, second
