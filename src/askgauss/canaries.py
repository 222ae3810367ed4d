"""Who is planted where, and who is present.

A canary is a direction of norm one in the space of the released sum. A *present* canary is planted,
in the steps that sample it, with the largest norm one record may have; an *absent* one is a direction
in which nothing is ever planted. Absent canaries therefore cost the training nothing, and both kinds
are drawn from the same places, so that only membership tells them apart.
"""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError

__all__ = ["BlockCanaries", "DiracCanaries", "PlacedCanaries", "Stream", "random_stream"]

_WATCHED_PER_TENSOR = 8


class Stream:
    """Names of the independent random streams that grow from one seed."""

    PLACES = 0
    MEMBERSHIP = 1
    PLANTING = 2
    KEPT = 3
    SIGNS = 4
    WATCH = 5
    NOISE = 6
    SAMPLER = 7


def random_stream(seed: int, stream: int) -> np.random.Generator:
    """The generator of one named stream; no two streams of one seed ever meet."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def fresh_seed() -> int:
    """A seed from the operating system, to be recorded with the run."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, slots=False, kw_only=True)
class PlacedCanaries(abc.ABC):
    """What canaries at random places of a parameter vector share.

    Args:
        count: Number of canaries, each present by a fair coin of its own; or give
        present: how many are present, and
        absent: how many are absent.
        dimension: Length of the parameter vector; or give
        tensors: the sizes of its tensors, in order.
        seed: Root of every random choice; drawn from the operating system if not given.
    """

    count: int | None = None
    present: int | None = None
    absent: int | None = None
    dimension: int | None = None
    tensors: Sequence[int] | None = None
    seed: int | None = None
    _seed: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if (self.count is None) == (self.present is None or self.absent is None) or (
            self.count is not None and (self.present, self.absent) != (None, None)
        ):
            raise InvalidArgumentError(
                "Expected either count, or both present and absent, got "
                f"count={self.count}, present={self.present}, absent={self.absent}."
            )
        if self.count is not None:
            _validate.integer(4, count=self.count)
        else:
            _validate.integer(2, absent=self.absent)
            # None present is allowed: a rehearsal that plants nothing and changes nothing.
            _validate.integer(0, present=self.present)
        if (self.dimension is None) == (self.tensors is None):
            raise InvalidArgumentError(
                "Expected exactly one of dimension and tensors, got "
                f"{'both' if self.tensors is not None else 'neither'}."
            )
        if self.tensors is not None:
            for size in self.tensors:
                _validate.integer(1, tensors=size)
        else:
            _validate.integer(1, dimension=self.dimension)
        if self.seed is not None:
            _validate.integer(0, seed=self.seed)
        object.__setattr__(self, "_seed", fresh_seed() if self.seed is None else int(self.seed))

    @property
    def size(self) -> int:
        """Number of canaries, present and absent."""
        if self.count is not None:
            return int(self.count)
        assert self.present is not None
        assert self.absent is not None
        return int(self.present) + int(self.absent)

    @property
    def root_seed(self) -> int:
        """The seed in use, given or drawn."""
        return self._seed

    @property
    def fair_coins(self) -> bool:
        """Whether every canary was made present by a fair coin of its own."""
        return self.count is not None

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Sizes of the tensors that make up the parameter vector."""
        if self.tensors is not None:
            return tuple(int(size) for size in self.tensors)
        assert self.dimension is not None
        return (int(self.dimension),)

    @property
    def total_dimension(self) -> int:
        """Length of the parameter vector."""
        return sum(self.tensor_sizes)

    @functools.cached_property
    def member(self) -> NDArray[np.bool_]:
        """True where the canary is present; from a stream nothing else reads."""
        generator = random_stream(self._seed, Stream.MEMBERSHIP)
        if self.fair_coins:
            member = generator.random(self.size) < 0.5
        else:
            member = np.zeros(self.size, dtype=np.bool_)
            member[generator.permutation(self.size)[: self.present]] = True
        member.setflags(write=False)
        return member

    @functools.cached_property
    def watch(self) -> NDArray[np.int64]:
        """Coordinates that are never planted, at least eight in every tensor; diagnostics only.

        Tensors of one size are watched at the same positions: a noise key used twice shows there.
        """
        generator = random_stream(self._seed, Stream.WATCH)
        positions: dict[int, NDArray[np.int64]] = {}
        taken = np.unique(self._planted_coordinates())
        watched, offset = [], 0
        for size in self.tensor_sizes:
            if size not in positions:
                wanted = min(size, 4 * _WATCHED_PER_TENSOR)
                positions[size] = np.sort(generator.choice(size, wanted, replace=False))
            places = positions[size] + offset
            free = places[~_contains(taken, places)]
            # A small tensor may be planted everywhere; then all of it that is left is watched.
            watched.append(free[: max(_WATCHED_PER_TENSOR, 1)])
            offset += size
        result = np.concatenate(watched)
        result.setflags(write=False)
        return result

    @functools.cached_property
    def watch_tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each watched coordinate lies in."""
        return self.tensor_of(self.watch)

    def tensor_of(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the tensor each coordinate lies in."""
        edges = np.cumsum(self.tensor_sizes)
        return np.asarray(np.searchsorted(edges, coordinates, side="right"), dtype=np.int64)

    def fingerprint(self) -> str:
        """A short digest of who is planted where, to tell one run's canaries from another's."""
        digest = hashlib.sha256()
        digest.update(type(self).__name__.encode())
        digest.update(np.ascontiguousarray(self._planted_coordinates()).tobytes())
        digest.update(np.packbits(self.member).tobytes())
        return digest.hexdigest()[:32]

    @abc.abstractmethod
    def _planted_coordinates(self) -> NDArray[np.int64]:
        """Every coordinate some canary owns."""


def _contains(sorted_values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    if sorted_values.size == 0:
        return np.zeros(wanted.shape, dtype=np.bool_)
    places = np.minimum(np.searchsorted(sorted_values, wanted), sorted_values.size - 1)
    return np.asarray(sorted_values[places] == wanted)


def _distinct_coordinates(generator: np.random.Generator, dimension: int, count: int) -> Any:
    """Distinct random coordinates in random order, without an array of the whole dimension."""
    if count > dimension:
        raise InvalidArgumentError(
            f"Expected at most {dimension} coordinates for the canaries, got {count}. "
            "Every canary needs coordinates of its own: take fewer canaries."
        )
    return generator.choice(dimension, count, replace=False, shuffle=True).astype(np.int64)


@dataclass(frozen=True, slots=False, kw_only=True)
class DiracCanaries(PlacedCanaries):
    """Canaries that are single coordinates, distinct and random over all parameters.

    The noise of different coordinates is independent, so the scores are, with no idealisation.

    Example:
        >>> canaries = DiracCanaries(present=3, absent=5, dimension=100, seed=0)
        >>> canaries.coordinates.shape, int(canaries.member.sum())
        ((8,), 3)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > self.total_dimension:
            raise InvalidArgumentError(
                f"Expected at most {self.total_dimension} canaries, one a coordinate, got "
                f"{self.size}. Take fewer canaries."
            )

    @functools.cached_property
    def coordinates(self) -> NDArray[np.int64]:
        """One coordinate a canary."""
        generator = random_stream(self._seed, Stream.PLACES)
        places: NDArray[np.int64] = _distinct_coordinates(
            generator, self.total_dimension, self.size
        )
        places.setflags(write=False)
        return places

    @functools.cached_property
    def tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each canary lies in."""
        return self.tensor_of(self.coordinates)

    def project(self, vector: NDArray[Any]) -> NDArray[Any]:
        """What a flat vector says about each canary."""
        return np.asarray(vector[self.coordinates])

    def plant(self, vector: NDArray[Any], planted: NDArray[np.int64], clip_norm: float) -> None:
        """Add the planted canaries to a flat vector, in place."""
        vector[self.coordinates[planted]] += clip_norm

    def _planted_coordinates(self) -> NDArray[np.int64]:
        return self.coordinates


@dataclass(frozen=True, slots=False, kw_only=True)
class BlockCanaries(PlacedCanaries):
    """Canaries that are blocks of coordinates with random signs, spread over the tensors.

    A block reaches into several tensors, so that clipping each tensor by itself shows: it lets more
    of a spread direction through than of a single coordinate.

    Args:
        block: Number of coordinates of one canary, at least 2.

    Example:
        >>> canaries = BlockCanaries(count=10, tensors=(50, 50), block=4, seed=0)
        >>> canaries.coordinates.shape
        (10, 4)
    """

    block: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer(2, block=self.block)
        if self.size * self.block > self.total_dimension:
            raise InvalidArgumentError(
                f"Expected at most {self.total_dimension // self.block} canaries of block "
                f"{self.block} in {self.total_dimension} coordinates, got {self.size}. Blocks do "
                "not overlap: take fewer or smaller ones."
            )

    @functools.cached_property
    def coordinates(self) -> NDArray[np.int64]:
        """One row of coordinates a canary; rows do not overlap.

        Position j of every block prefers tensor j modulo the number of tensors, so that a block
        spans as many tensors as it has coordinates, as long as they have room.
        """
        generator = random_stream(self._seed, Stream.PLACES)
        offsets = np.concatenate([[0], np.cumsum(self.tensor_sizes)])
        # Every tensor's coordinates in random order, then dealt out like cards, one a tensor.
        piles = [
            offset + generator.permutation(size)
            for offset, size in zip(offsets, self.tensor_sizes, strict=False)
        ]
        wanted = self.size * self.block
        takes = _fair_shares(wanted, [pile.size for pile in piles])
        dealt = np.concatenate([pile[:take] for pile, take in zip(piles, takes, strict=True)])
        places = dealt.reshape(self.block, self.size).T.astype(np.int64)
        places = np.ascontiguousarray(places)
        places.setflags(write=False)
        return places

    @functools.cached_property
    def signs(self) -> NDArray[np.float64]:
        """Sign of every coordinate of every canary."""
        generator = random_stream(self._seed, Stream.SIGNS)
        signs = 2.0 * generator.integers(0, 2, size=(self.size, self.block)) - 1.0
        signs.setflags(write=False)
        return signs

    @functools.cached_property
    def tensor(self) -> NDArray[np.int64]:
        """All zero: a block belongs to no single tensor."""
        return np.zeros(self.size, dtype=np.int64)

    def project(self, vector: NDArray[Any]) -> NDArray[Any]:
        """What a flat vector says about each canary: its component along the block."""
        values = np.asarray(vector[self.coordinates], dtype=np.float64)
        return np.asarray((values * self.signs).sum(axis=1) / np.sqrt(self.block))

    def plant(self, vector: NDArray[Any], planted: NDArray[np.int64], clip_norm: float) -> None:
        """Add the planted canaries to a flat vector, in place."""
        height = clip_norm / np.sqrt(self.block)
        vector[self.coordinates[planted]] += height * self.signs[planted]

    def _planted_coordinates(self) -> NDArray[np.int64]:
        return self.coordinates.ravel()


def _fair_shares(wanted: int, sizes: list[int]) -> list[int]:
    """How many coordinates to take from each tensor: as even as their sizes allow."""
    shares = [0] * len(sizes)
    left, open_tensors = wanted, [index for index, size in enumerate(sizes) if size]
    while left:
        share = max(left // len(open_tensors), 1)
        still_open = []
        for index in open_tensors:
            take = min(share, sizes[index] - shares[index], left)
            shares[index] += take
            left -= take
            if shares[index] < sizes[index]:
                still_open.append(index)
        open_tensors = still_open
    return shares
