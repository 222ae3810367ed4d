"""What others estimate from the same rounds: one-shot cosines, and one epsilon a round.

Andrew et al. 2024 (arXiv 2302.03098) take cosines of canaries with what was released, over the run
or the largest of any round. CANIFE (arXiv 2210.02912) estimates the epsilon of single rounds by
thresholds, takes the noise multiplier that has it, and composes. Both are estimates, not bounds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.auditors import MaxCosine
from askgauss.exceptions import NotDefinedError, UnsupportedError
from askgauss.federated.updates import Form
from askgauss.recording.facts import HonestFacts
from askgauss.sampling import Scheme
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats import gaussian
from askgauss.stats.rounding import on_grid, two_digits_up

__all__ = ["HonestWeights", "OpenRound", "PeerEstimates", "PeerRecord", "threshold_epsilon"]

# Values of all updates of a round that are read; of more, every so many.
_MOST_VALUES = 200_000_000
# Fewer values than these do not say how large the noise of a round is.
_FEWEST_VALUES = 100
# Norms of updates, in clip norms, by which clients are grouped.
_EDGES = (1.0, 2.0, 4.0, 16.0)
# Clients that are followed, by their places in a round and by their names.
_MOST_PLACES, _MOST_NAMES = 256, 4096
# What an update that the aggregator clipped in place may be off the clip norm.
_CLIPPED = 1e-5
# Noise below this, in clip norms, is rounding.
_SILENT = 1e-6

Array = NDArray[np.float64]
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRound:
    """A round under way.

    Attributes:
        clip_norm: The norm that its updates are clipped to.
        clients: Number of its clients, canaries among them.
        divisor: What turns its mean into the sum that the noise assumes.
        planted: Indices of the canaries in it.
        backgrounds: What honest clients add by each way to weigh them, at all coordinates read.
        factors: What each of them is multiplied by in it, clipping and weight together.
        updates: Their updates, which are the caller's own arrays.
        norms: The norms of these before the round was aggregated.
        reported: What a canary adds on average, were clients weighted as they report.
        participants: Names of the honest clients, where they have any.
    """

    clip_norm: float
    clients: int
    divisor: float
    planted: NDArray[np.int64]
    backgrounds: tuple[Array, ...]
    factors: tuple[Array, ...]
    updates: list[list[NDArray[Any]]]
    norms: list[float]
    reported: float
    participants: tuple[Hashable, ...] | None


class HonestWeights:
    """What honest clients add, group by group: one place in a round, one name, one range of norms.

    Their updates are clipped here too, and taken off. What is left along the updates of a group
    comes on top of what was taken off, and both together may be one clip norm. Whether clients are
    weighed as they report shows over many rounds: so every way is followed, and the one that fits
    best in the end is reported.
    """

    def __init__(self) -> None:
        self._sums: tuple[dict[Group, Array], ...] = ({}, {}, {})
        self._left = np.zeros(len(self._sums))
        self._rounds = 0

    def read(
        self,
        form: Form,
        now: OpenRound,
        released: list[NDArray[Any]],
        *,
        canaries: NDArray[np.int64],
    ) -> None:
        """Read what a round released.

        Args:
            form: The form of its updates.
            now: The round.
            released: The mean.
            canaries: Coordinates that canaries may add to, which are left out.
        """
        clip_norm = now.clip_norm
        lengths = np.asarray(now.norms)
        stride = max(1, math.ceil(form.dimension * lengths.size / _MOST_VALUES))
        free = ~form.marked(canaries, stride)
        if np.count_nonzero(free) < _FEWEST_VALUES or not lengths.size:
            return
        sent = (lengths > _SILENT * clip_norm) & np.isfinite(lengths)
        norms = np.array([form.norm(parts) for parts in now.updates])
        in_place = (lengths > clip_norm) & (np.abs(norms / clip_norm - 1.0) < _CLIPPED)
        if not ((norms == lengths) | in_place)[sent].all():
            # The aggregator wrote into the updates: what they were is not known any more.
            return
        total = form.thinned(released, stride) * (free * now.divisor / clip_norm)

        def unit(index: Any) -> Array:
            """An update of norm 1 where canaries are not."""
            return np.asarray(form.thinned(now.updates[index], stride) * (free / norms[index]))

        noises: list[float] = []
        read: list[tuple[Array, Array]] = []
        for way in range(len(self._sums)):
            factors = now.factors[min(way, len(now.factors) - 1)]
            adds = np.where(sent, factors * lengths / clip_norm, 0.0)
            same = next((old for old, other in read if np.array_equal(adds, other)), None)
            if same is None:
                left = total.copy()
                for index in np.flatnonzero(adds > 0.0):
                    left -= adds[index] * unit(index)
                same = left
            read.append((same, adds))
            noises.append(float(same @ same) / np.count_nonzero(free))
        if not np.isfinite(noises).all():
            return
        self._rounds += 1
        noise = max(min(noises), _SILENT**2)
        self._left += np.array(noises) / noise * np.count_nonzero(free)
        sizes = lengths / clip_norm
        for sums, (left, adds), own in zip(self._sums, read, noises, strict=True):
            for group, members in _groups(sizes, adds > 0.0, now.participants):
                if group[0] == "name" and group not in sums and len(sums) > _MOST_NAMES:
                    continue
                direction = sum((unit(index) for index in members), np.zeros(left.size))
                along, square = float(left @ direction), float(direction @ direction)
                scale = max(own, noise)
                sums.setdefault(group, np.zeros(5))[...] += (
                    square / scale,
                    along / scale,
                    float(adds[members].mean()) * square / scale,
                    (along / scale) ** 2,
                    1.0,
                )

    def saved(self) -> tuple[int, tuple[float, ...], tuple[tuple[Any, ...], ...]]:
        """Rounds, what every way leaves, and the sums of every group by each way."""
        return (
            self._rounds,
            tuple(map(float, self._left)),
            tuple(
                (way, kind, name, tuple(map(float, values)))
                for way, sums in enumerate(self._sums)
                for (kind, name), values in sums.items()
            ),
        )

    def restore(
        self,
        rounds: int,
        left: Sequence[float],
        groups: Sequence[tuple[int, str, str, tuple[float, ...]]],
    ) -> None:
        """Resume with what was `saved`."""
        self._rounds, self._left = rounds, np.array(left)
        self._sums = ({}, {}, {})
        for way, kind, name, values in groups:
            self._sums[way][kind, name] = np.array(values)

    def facts(self) -> HonestFacts | None:
        """The group that adds most, by its own error."""
        found = []
        for group, (weight, along, adds, square, rounds) in self._sums[
            int(np.argmin(self._left))
        ].items():
            if weight > 0.0:
                # From round to round it may vary by more than noise: clients drop out.
                varies = (square - along**2 / rounds) * rounds / max(rounds - 1.0, 1.0)
                error = math.sqrt(max(weight, varies)) / weight
                found.append(((adds + along) / weight, error, group))
        if not found:
            return None
        added, error, (kind, name) = max(found, key=lambda item: (item[0] - 1.0) / item[1])
        error = two_digits_up(error)
        return HonestFacts(
            rounds=self._rounds,
            groups=len(found),
            # A client's own name is nobody else's business.
            group="one client by its name" if kind == "name" else name,
            added=on_grid(added, error, 1.0),
            error=error,
        )


def _groups(
    sizes: Array, sent: NDArray[np.bool_], names: Sequence[Hashable] | None
) -> Iterator[tuple[Group, NDArray[np.int64]]]:
    """Groups of a round, and who is in them."""
    members = np.flatnonzero(sent)
    if members.size == 0:
        return
    yield ("clients", "all clients together"), members
    ranges = np.searchsorted(_EDGES, sizes)
    for number, edge in enumerate(_EDGES, start=1):
        within = members[ranges[members] == number]
        if within.size:
            yield ("clients", f"those with updates above {edge:g} clip norms"), within
    largest = members[np.argmax(sizes[members])]
    yield ("place", "the one with the largest update of a round"), np.array([largest])
    yield ("place", "the last one of a round"), members[-1:]
    for index in members:
        one = np.array([index])
        if index < _MOST_PLACES:
            yield ("place", f"the one at place {index + 1:,} of a round"), one
        if names is not None:
            yield ("name", repr(names[int(index)])), one


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEstimates:
    """Estimates of epsilon by other methods, of the same rounds.

    Attributes:
        final_cosine: One-shot, by cosines with the sum of all rounds (Andrew et al.).
        largest_cosine: One-shot, by the largest cosine with any round (Andrew et al.).
        by_round: By thresholds in every round, composed (CANIFE); None where the sampling scheme
            has no accountant.
    """

    final_cosine: float
    largest_cosine: float
    by_round: float | None


def threshold_epsilon(present: Array, absent: Array, delta: float) -> float:
    """The largest epsilon that a threshold between two samples shows, by their shares; 0 if none.

    Thresholds without an error on one side are passed over: their shares say nothing of its size.

    Examples:
        >>> round(threshold_epsilon(np.array([1.0, 2.0, 3.0, 0.0]), np.arange(4.0) - 2.0, 0.0), 4)
        1.0986
    """
    cuts = np.unique(np.concatenate([present, absent]))
    missed = np.searchsorted(np.sort(present), cuts, side="left") / present.size
    false = 1.0 - np.searchsorted(np.sort(absent), cuts, side="left") / absent.size
    best = 0.0
    for right, wrong in ((1.0 - delta - false, missed), (1.0 - delta - missed, false)):
        useful = (wrong > 0.0) & (right > 0.0)
        best = max(best, float(np.log(right[useful] / wrong[useful]).max(initial=0.0)))
    return best


class PeerRecord:
    """Reads what peers read, round by round; holds one array of a model's size."""

    def __init__(self, member: NDArray[np.bool_]) -> None:
        self._member = member
        self._largest = np.full(member.size, -1.0)
        self._inner = np.zeros(member.size)
        self._total: Array | None = None
        self._squares: list[float] = []

    def read(self, parts: Sequence[NDArray[Any]], along: Array, planted: NDArray[np.int64]) -> None:
        """Read a round.

        Args:
            parts: The arrays of the mean that was released.
            along: That mean along each canary, the way it points.
            planted: Indices of the canaries that took part.
        """
        flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
        self._total = flat if self._total is None else self._total + flat
        self._inner += along
        norm = float(np.linalg.norm(flat))
        if norm > 0.0:
            np.maximum(self._largest, along / norm, out=self._largest)
        inside, outside = along[planted], along[~self._member]
        if min(inside.size, outside.size) < 2:
            return
        delta = 1.0 / (inside.size + outside.size)
        epsilon = threshold_epsilon(inside, outside, delta)
        self._squares.append(gaussian.gdp_mu(epsilon, delta) ** 2 if epsilon > 0.0 else 0.0)

    def cosines(self) -> tuple[CanaryScores, CanaryScores]:
        """Cosines with the sum of all rounds, and the largest of any round.

        Raises:
            NotDefinedError: Nothing was released.
        """
        if self._total is None or not self._total.any():
            raise NotDefinedError("Nothing was released that a cosine could be taken with.")
        final = self._inner / float(np.linalg.norm(self._total))
        first, second = (
            CanaryScores(
                score=score,
                member=self._member,
                metadata=ScoreMetadata(background="unknown", membership="randomised"),
            )
            for score in (final, self._largest)
        )
        return first, second

    def estimates(self, scheme: Scheme, *, steps: int, delta: float) -> PeerEstimates:
        """All of them, at this delta."""
        assert self._total is not None
        final, largest = self.cosines()
        known = MaxCosine(dimension=max(2, self._total.size))
        fitted = MaxCosine()

        def estimate(method: MaxCosine, scores: CanaryScores) -> float:
            evidence = method.gather(scores, delta=delta, confidence=0.95)
            return float(method.epsilon_point(evidence, delta=delta))

        by_round: float | None = 0.0
        if mean := float(np.mean(self._squares)) if self._squares else 0.0:
            by_round = _composed(scheme, 1.0 / math.sqrt(mean), steps, delta)
        return PeerEstimates(
            final_cosine=estimate(known, final),
            largest_cosine=estimate(fitted, largest),
            by_round=by_round,
        )


def _composed(scheme: Scheme, noise: float, steps: int, delta: float) -> float | None:
    """What an accountant says of rounds with this noise; None where there is none for them."""
    try:
        return scheme.epsilon(noise_multiplier=noise, steps=steps, delta=delta)
    except UnsupportedError:
        return None
