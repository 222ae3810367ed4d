"""Canaries that are places of the parameter vector: single coordinates, or blocks of them."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError

__all__ = [
    "BlockCanaries",
    "Canaries",
    "DiracCanaries",
    "PlacedCanaries",
    "Stream",
    "check_numbers",
    "checked_sizes",
    "distinct_coordinates",
    "fresh_seed",
    "numbers_and_seed",
    "random_stream",
]


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
    PROBES = 8


def random_stream(seed: int, stream: int) -> np.random.Generator:
    """The generator of one named stream; no two streams of one seed ever meet."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def fresh_seed() -> int:
    """A seed from the operating system, to be recorded with the run."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True, slots=False, kw_only=True)
class Canaries(abc.ABC):
    """What all canaries share: how many there are, and which of them are present.

    Args:
        count: Number of canaries, each present with probability 1/2, independently; or give
        present: how many are present, and
        absent: how many are absent.
        seed: Root of every random choice; drawn from the operating system if not given.

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """

    count: int | None = None
    present: int | None = None
    absent: int | None = None
    # Not in the repr: a reader of a log could derive the canaries from it.
    seed: int | None = field(default=None, repr=False)
    _seed: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        _, seed = numbers_and_seed(self.count, self.present, self.absent, self.seed)
        object.__setattr__(self, "_seed", seed)

    @property
    def size(self) -> int:
        """Number of canaries, present and absent."""
        return int(self.count or 0) + int(self.present or 0) + int(self.absent or 0)

    @property
    def root_seed(self) -> int:
        """The seed in use, given or drawn."""
        return self._seed

    @property
    def places(self) -> int | None:
        """How many canaries of this kind there is room for; None where there is no such limit."""
        return None

    @property
    def fair_coins(self) -> bool:
        """Whether every canary is present with probability 1/2, independently of the others."""
        return self.count is not None

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

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Sizes of the tensors the canaries are laid out over, where they are."""
        return ()

    @property
    def tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each canary is counted in: zero where it lies in no single one."""
        return np.zeros(self.size, dtype=np.int64)

    @property
    def watch(self) -> NDArray[np.int64]:
        """Coordinates that are never planted; none where canaries are no places."""
        return np.zeros(0, dtype=np.int64)

    @property
    def watch_tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each watched coordinate lies in."""
        return np.zeros(0, dtype=np.int64)

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A short digest of places and membership, to distinguish the canaries of two runs."""


def check_numbers(count: int | None, present: int | None, absent: int | None) -> int:
    """How many canaries numbers ask for, where they do."""
    groups = (present, absent)
    if None in groups if count is None else groups != (None, None):
        raise InvalidArgumentError(
            "Expected either count, or both present and absent, got "
            f"count={count}, present={present}, absent={absent}."
        )
    if count is not None:
        _validate.count(4, maximum=_validate.MOST_CANARIES, count=count)
    else:
        _validate.count(2, maximum=_validate.MOST_CANARIES, absent=absent)
        # None present is allowed: a trial run that inserts nothing and changes nothing.
        _validate.count(0, maximum=_validate.MOST_CANARIES, present=present)
    return int(count or 0) + int(present or 0) + int(absent or 0)


def numbers_and_seed(
    count: int | None, present: int | None, absent: int | None, seed: int | None
) -> tuple[int, int]:
    """How many canaries there are, and the seed that their content and membership grow from."""
    size = check_numbers(count, present, absent)
    if seed is not None:
        _validate.integer(0, seed=seed)
    return size, fresh_seed() if seed is None else int(seed)


def checked_sizes(given: Any, name: str = "tensors") -> tuple[int, ...]:
    """Sizes as given, each a whole number of at least one."""
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise _validate.fail(name, given, "to be a sequence of sizes")
    sizes = tuple(given)
    for size in sizes:
        _validate.count(maximum=_validate.MOST_PARAMETERS, **{name: size})
    return tuple(int(size) for size in sizes)


def distinct_coordinates(
    generator: np.random.Generator, dimension: int, count: int
) -> NDArray[np.int64]:
    """Distinct random coordinates in random order."""
    if 4 * count > dimension:
        return generator.permutation(dimension)[:count].astype(np.int64, copy=False)
    # Independent draws, less the repeats: no array of the whole dimension is needed.
    places = np.zeros(0, dtype=np.int64)
    while places.size < count:
        more = generator.integers(dimension, size=count + count // 4 + 8)
        places = np.concatenate([places, more])
        _, first = np.unique(places, return_index=True)
        places = places[np.sort(first)]
    return places[:count]


_WATCHED_PER_TENSOR = 8


@dataclass(frozen=True, slots=False, kw_only=True)
class PlacedCanaries(Canaries):
    """What canaries at random places of a parameter vector share; arguments as for `Canaries`.

    Args:
        dimension: Length of the parameter vector; or give
        tensors: the sizes of its tensors, in order.

    Raises:
        InvalidArgumentError: An argument is out of its range, or there is no room for the canaries.
    """

    dimension: int | None = None
    tensors: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.dimension is None) == (self.tensors is None):
            raise InvalidArgumentError(
                "Expected exactly one of dimension and tensors, got "
                f"{'both' if self.tensors is not None else 'neither'}."
            )
        if self.tensors is None:
            _validate.count(maximum=_validate.MOST_PARAMETERS, dimension=self.dimension)
        else:
            object.__setattr__(self, "tensors", checked_sizes(self.tensors))

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

    @property
    def places(self) -> int:
        """How many canaries there is room for: none shares a coordinate with another."""
        return self.total_dimension

    @property
    @abc.abstractmethod
    def coordinates(self) -> NDArray[np.int64]:
        """Where each canary lies: one coordinate a canary, or one row of them."""

    @property
    @abc.abstractmethod
    def tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each canary is counted in."""

    @functools.cached_property
    def watch(self) -> NDArray[np.int64]:
        """Coordinates that are never planted, eight in every tensor; diagnostics only.

        Tensors of one size are watched at the same positions, in the same order: a noise key used
        twice shows there. These are pairs of neighbours, and those at the same distance from the
        end: so does noise that is shifted by one or reversed. Where canaries leave fewer than eight
        positions free in all of them, those come first, then the ones free in most. A tensor with
        fewer than eight free coordinates is watched at all of them, which may be none.
        """
        generator = random_stream(self._seed, Stream.WATCH)
        taken = np.sort(self._planted_coordinates())
        ends = np.cumsum(self.tensor_sizes)
        bounds = np.searchsorted(taken, ends)[:-1]
        # Taken positions of every tensor, counted from its start.
        positions = [
            part - end + size
            for part, end, size in zip(
                np.split(taken, bounds), ends, self.tensor_sizes, strict=True
            )
        ]
        watched = [taken[:0]] * len(positions)
        for size in dict.fromkeys(self.tensor_sizes):
            alike = [index for index, other in enumerate(self.tensor_sizes) if other == size]
            free = _free_positions(generator, size, [positions[index] for index in alike])
            for index, places in zip(alike, free, strict=True):
                watched[index] = places + ends[index] - size
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
        """A short digest of places and membership, to distinguish the canaries of two runs."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        digest.update(f"{type(self).__name__} {self._seed} {self.tensor_sizes}".encode())
        digest.update(np.ascontiguousarray(self._planted_coordinates(), dtype="<i8").data)
        digest.update(np.packbits(self.member).data)
        return digest.hexdigest()[:32]

    def _checked_vector(self, vector: Any) -> Any:
        if np.shape(vector) != (self.total_dimension,):
            raise InvalidArgumentError(
                f"Expected vector to be flat with {self.total_dimension} entries, got shape "
                f"{tuple(np.shape(vector))}. Flatten the tensors, in order, into one."
            )
        return vector

    @abc.abstractmethod
    def _planted_coordinates(self) -> NDArray[np.int64]:
        """Every coordinate some canary owns."""


def _free_positions(
    generator: np.random.Generator, size: int, taken: list[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Positions to watch in tensors of one size, of which ``taken`` lists what is not free."""
    union = np.unique(np.concatenate(taken))
    # Neighbours, and those at the same distance from the end: noise that is shifted by one or
    # reversed is then watched again.
    couples = np.unique(np.minimum(union, size - 1 - union) // 2)
    couples, number = couples[couples < size // 4], _WATCHED_PER_TENSOR // 4
    if size // 4 - couples.size >= number:
        low = 2 * _outside(generator, size // 4, couples, number)
        places = np.concatenate([low, low + 1])
        return [np.sort(np.concatenate([places, size - 1 - places]))] * len(taken)
    if size - union.size >= _WATCHED_PER_TENSOR:
        return [_outside(generator, size, union, _WATCHED_PER_TENSOR)] * len(taken)
    free = np.ones((len(taken), size), dtype=np.bool_)
    for row, positions in zip(free, taken, strict=True):
        row[positions] = False
    order = np.argsort(-free.sum(axis=0), kind="stable")
    return [order[row[order]][:_WATCHED_PER_TENSOR] for row in free]


def _outside(
    generator: np.random.Generator, size: int, taken: NDArray[np.int64], number: int
) -> NDArray[np.int64]:
    """Some numbers below ``size`` that are not taken, in order."""
    ranks = generator.choice(size - taken.size, number, replace=False)
    # The k-th number that is not taken lies as far up as taken ones lie below it.
    gaps = taken - np.arange(taken.size)
    return np.asarray(np.sort(ranks + np.searchsorted(gaps, ranks, side="right")))


@dataclass(frozen=True, slots=False, kw_only=True)
class DiracCanaries(PlacedCanaries):
    """Canaries that are single coordinates, distinct and random over all parameters.

    The noise of different coordinates is independent, so the scores are, with no idealisation.

    Examples:
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
        places = distinct_coordinates(generator, self.total_dimension, self.size)
        places.setflags(write=False)
        return places

    @functools.cached_property
    def tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each canary lies in."""
        return self.tensor_of(self.coordinates)

    def project(self, vector: NDArray[Any]) -> NDArray[Any]:
        """What a flat vector says about each canary."""
        return np.asarray(self._checked_vector(vector)[self.coordinates])

    def plant(self, vector: NDArray[Any], planted: NDArray[np.int64], clip_norm: float) -> None:
        """Add the planted canaries to a flat vector, in place."""
        self._checked_vector(vector)[self.coordinates[planted]] += clip_norm

    def _planted_coordinates(self) -> NDArray[np.int64]:
        return self.coordinates


@dataclass(frozen=True, slots=False, kw_only=True)
class BlockCanaries(PlacedCanaries):
    """Canaries that are blocks of coordinates with random signs, spread over the tensors.

    A block reaches into several tensors, so that clipping each tensor by itself shows: it lets more
    of a spread direction through than of a single coordinate.

    Args:
        block: Number of coordinates of one canary, at least 2.

    Examples:
        >>> canaries = BlockCanaries(count=10, tensors=(50, 50), block=4, seed=0)
        >>> canaries.coordinates.shape
        (10, 4)
    """

    block: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count(2, block=self.block)
        if self.size * self.block > self.total_dimension:
            raise InvalidArgumentError(
                f"Expected at most {self.total_dimension // self.block} canaries of block "
                f"{self.block} in {self.total_dimension} coordinates, got {self.size}. Blocks do "
                "not overlap: take fewer or smaller ones."
            )

    @property
    def places(self) -> int:
        """How many blocks there is room for."""
        return self.total_dimension // self.block

    @functools.cached_property
    def coordinates(self) -> NDArray[np.int64]:
        """One row of coordinates a canary; rows do not overlap.

        A block spans as many tensors as it has coordinates, or all of them if there are fewer, as
        long as they have room.
        """
        generator = random_stream(self._seed, Stream.PLACES)
        sizes = self.tensor_sizes
        shares = _fair_shares(self.size * self.block, sizes)
        offsets = np.cumsum(sizes) - sizes
        piles = [
            offset + distinct_coordinates(generator, size, share)
            for offset, size, share in zip(offsets, sizes, shares, strict=True)
        ]
        # Every size-th card goes to the same canary: no two of them come from one even pile.
        places = np.ascontiguousarray(np.concatenate(piles).reshape(self.block, self.size).T)
        places.setflags(write=False)
        return places

    @functools.cached_property
    def signs(self) -> NDArray[np.float64]:
        """Sign of every coordinate of every canary."""
        generator = random_stream(self._seed, Stream.SIGNS)
        heads = generator.integers(0, 2, size=(self.size, self.block), dtype=np.int8)
        signs = np.where(heads == 1, 1.0, -1.0)
        signs.setflags(write=False)
        return signs

    @functools.cached_property
    def tensor(self) -> NDArray[np.int64]:
        """All zero: a block belongs to no single tensor."""
        return np.zeros(self.size, dtype=np.int64)

    def project(self, vector: NDArray[Any]) -> NDArray[Any]:
        """What a flat vector says about each canary: its component along the block."""
        values = np.asarray(self._checked_vector(vector)[self.coordinates], dtype=np.float64)
        return np.asarray((values * self.signs).sum(axis=1) / np.sqrt(self.block))

    def plant(self, vector: NDArray[Any], planted: NDArray[np.int64], clip_norm: float) -> None:
        """Add the planted canaries to a flat vector, in place."""
        height: Any = clip_norm / np.sqrt(self.block) * self.signs[planted]
        if hasattr(vector, "new_tensor"):  # a tensor takes its own kind of numbers only
            height = vector.new_tensor(height)
        self._checked_vector(vector)[self.coordinates[planted]] += height

    def _planted_coordinates(self) -> NDArray[np.int64]:
        return self.coordinates.ravel()


def _fair_shares(wanted: int, sizes: Sequence[int]) -> list[int]:
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
