"""The search for the pair of neighbours on which a mechanism leaks most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.mechanism_audit.events import Candidates, leak
from askgauss.mechanism_audit.outputs import Mechanism, OutputTable, Sampler, check_pair

__all__ = ["NeighbourSearch", "search_neighbours"]

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
