"""Who is planted where, and who is present.

A canary is a direction of norm one in the space of the released sum. A *present* canary is
planted, in the steps that sample it, with the largest norm one record may have; an *absent* one is
a direction in which nothing is ever planted. Absent canaries therefore cost the training nothing,
and both kinds are drawn from the same places, so that only membership tells them apart.

Placed canaries are directions themselves. Example canaries are records: the model turns each into
a gradient, whose direction changes as it trains, and the run's own sampler and clipper plant it.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, UnsupportedError

__all__ = [
    "BlockCanaries",
    "Canaries",
    "DiracCanaries",
    "ExampleCanaries",
    "ExampleDataset",
    "PlacedCanaries",
    "Stream",
    "random_stream",
]

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
class Canaries(abc.ABC):
    """What all canaries share: how many there are, and which of them are present.

    Args:
        count: Number of canaries, each present by a fair coin of its own; or give
        present: how many are present, and
        absent: how many are absent.
        seed: Root of every random choice; drawn from the operating system if not given.

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """

    count: int | None = None
    present: int | None = None
    absent: int | None = None
    seed: int | None = None
    _seed: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        _check_numbers(self.count, self.present, self.absent)
        if self.seed is not None:
            _validate.integer(0, seed=self.seed)
        object.__setattr__(self, "_seed", fresh_seed() if self.seed is None else int(self.seed))

    @property
    def size(self) -> int:
        """Number of canaries, present and absent."""
        return _total(self.count, self.present, self.absent)

    @property
    def root_seed(self) -> int:
        """The seed in use, given or drawn."""
        return self._seed

    @property
    def fair_coins(self) -> bool:
        """Whether every canary was made present by a fair coin of its own."""
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
        """A short digest of who is planted where, to tell one run's canaries from another's."""


def _check_numbers(count: int | None, present: int | None, absent: int | None) -> None:
    groups = (present, absent)
    if None in groups if count is None else groups != (None, None):
        raise InvalidArgumentError(
            "Expected either count, or both present and absent, got "
            f"count={count}, present={present}, absent={absent}."
        )
    if count is not None:
        _validate.integer(4, count=count)
    else:
        _validate.integer(2, absent=absent)
        # None present is allowed: a rehearsal that plants nothing and changes nothing.
        _validate.integer(0, present=present)


def _total(count: int | None, present: int | None, absent: int | None) -> int:
    if count is not None:
        return int(count)
    assert present is not None
    assert absent is not None
    return int(present) + int(absent)


@dataclass(frozen=True, slots=False, kw_only=True)
class PlacedCanaries(Canaries):
    """What canaries at random places of a parameter vector share.

    Args:
        count: Number of canaries, each present by a fair coin of its own; or give
        present: how many are present, and
        absent: how many are absent.
        dimension: Length of the parameter vector; or give
        tensors: the sizes of its tensors, in order.
        seed: Root of every random choice; drawn from the operating system if not given.

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
            _validate.integer(1, dimension=self.dimension)
        else:
            object.__setattr__(self, "tensors", _checked_sizes(self.tensors))

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
    @abc.abstractmethod
    def tensor(self) -> NDArray[np.int64]:
        """Index of the tensor each canary is counted in."""

    @functools.cached_property
    def watch(self) -> NDArray[np.int64]:
        """Coordinates that are never planted, eight in every tensor; diagnostics only.

        Tensors of one size are watched at the same positions, in the same order: a noise key used
        twice shows there. Where canaries leave fewer than eight positions free in all of them,
        those come first, then the ones free in most. A tensor with fewer than eight free
        coordinates is watched at all of them, which may be none.
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
        """A short digest of who is planted where, to tell one run's canaries from another's."""
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


def _checked_sizes(given: Any, name: str = "tensors") -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise _validate.fail(name, given, "to be a sequence of sizes")
    sizes = tuple(given)
    for size in sizes:
        _validate.integer(1, **{name: size})
    return tuple(int(size) for size in sizes)


def _free_positions(
    generator: np.random.Generator, size: int, taken: list[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """Positions to watch in tensors of one size, of which ``taken`` lists what is not free."""
    union = np.unique(np.concatenate(taken))
    if size - union.size >= _WATCHED_PER_TENSOR:
        # The k-th position outside the union lies as far up as the union has entries below it.
        ranks = generator.choice(size - union.size, _WATCHED_PER_TENSOR, replace=False)
        gaps = union - np.arange(union.size)
        return [np.sort(ranks + np.searchsorted(gaps, ranks, side="right"))] * len(taken)
    free = np.ones((len(taken), size), dtype=np.bool_)
    for row, positions in zip(free, taken, strict=True):
        row[positions] = False
    order = np.argsort(-free.sum(axis=0), kind="stable")
    return [order[row[order]][:_WATCHED_PER_TENSOR] for row in free]


def _distinct_coordinates(
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
        places = _distinct_coordinates(generator, self.total_dimension, self.size)
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

        A block spans as many tensors as it has coordinates, or all of them if there are fewer, as
        long as they have room.
        """
        generator = random_stream(self._seed, Stream.PLACES)
        sizes = self.tensor_sizes
        shares = _fair_shares(self.size * self.block, sizes)
        offsets = np.cumsum(sizes) - sizes
        piles = [
            offset + _distinct_coordinates(generator, size, share)
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
        height = clip_norm / np.sqrt(self.block)
        self._checked_vector(vector)[self.coordinates[planted]] += height * self.signs[planted]

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


@dataclass(frozen=True, slots=False, eq=False)
class ExampleCanaries(Canaries):
    """Canaries that are records: an input and a label each, sent through the whole training.

    The present ones are added to the training set (`dataset`); the run's own sampler draws them,
    and its loss, per-example gradients and clipper treat them like any record. All of that is
    audited, which placed canaries leave out. The price is a looser bound: a gradient may be shorter
    than the clip norm, and what the other records add along it is not known.

    Args:
        inputs: One input a canary, as the model gets it: after every transform.
        labels: One label a canary.
        count: Number of canaries, which is that of the inputs, each present by a fair coin of its
            own; what happens if nothing is said. Or give
        present: how many are present, and
        absent: how many are absent; the rest if not given.
        seed: Root of every random choice; drawn from the operating system if not given.

    Raises:
        InvalidArgumentError: An argument is out of its range, or the numbers do not agree.

    Examples:
        >>> inputs, labels = np.eye(6, dtype=np.float32), np.arange(6) % 2
        >>> canaries = ExampleCanaries(inputs, labels, present=2, seed=0)
        >>> canaries.size, int(canaries.member.sum()), canaries.fair_coins
        (6, 2, False)
    """

    inputs: NDArray[Any] = field(repr=False)
    labels: NDArray[Any] = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "labels"):
            object.__setattr__(self, name, _frozen_examples(name, getattr(self, name)))
        given = len(self.inputs)
        if len(self.labels) != given:
            raise InvalidArgumentError(
                f"Expected one label for each of {given} inputs, got {len(self.labels)}."
            )
        if self.count is None and self.present is None and self.absent is None:
            object.__setattr__(self, "count", given)
        elif self.count is None and self.absent is None:
            _validate.integer(0, present=self.present)
            object.__setattr__(self, "absent", given - int(self.present or 0))
        super().__post_init__()
        if self.size != given:
            raise InvalidArgumentError(
                f"Expected as many inputs as canaries, {self.size}, got {given}. Leave count and "
                "absent out: the inputs say."
            )

    @classmethod
    def mislabelled(
        cls,
        inputs: NDArray[Any],
        labels: NDArray[Any],
        classes: int,
        *,
        count: int | None = None,
        present: int | None = None,
        absent: int | None = None,
        seed: int | None = None,
    ) -> ExampleCanaries:
        """Random records of a pool, each with a wrong label: their gradients stay long.

        Args:
            inputs: The pool. Records that are not in the training set serve best: a twin with the
                right label works against the canary.
            labels: Their true labels, in 0 to classes - 1.
            classes: Number of classes.
            count: How many canaries, each present by a fair coin; the whole pool if nothing is
                said. Or give
            present: how many are present, and
            absent: how many are absent.
            seed: Root of every random choice; drawn from the operating system if not given.

        Examples:
            >>> pool, truth = np.zeros((50, 3)), np.arange(50) % 5
            >>> ExampleCanaries.mislabelled(pool, truth, 5, present=4, absent=6, seed=0).size
            10
        """
        _validate.integer(2, classes=classes)
        inputs, truth = np.asarray(inputs), np.asarray(labels)
        pool = len(inputs) if inputs.ndim else 0
        if truth.shape != (pool,) or truth.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"Expected labels to hold one whole number for each of {pool} inputs, got shape "
                f"{truth.shape} and dtype {truth.dtype}."
            )
        if pool and not (truth.min() >= 0 and truth.max() < classes):
            raise InvalidArgumentError(
                f"Expected labels in [0, {classes}), got {truth.min()} to {truth.max()}."
            )
        if count is None and present is None and absent is None:
            count = pool
        _check_numbers(count, present, absent)
        size = _total(count, present, absent)
        if size > pool:
            raise InvalidArgumentError(
                f"Expected at least {size} inputs to choose from, got {pool}. Take fewer canaries."
            )
        root = _root(seed)
        generator = random_stream(root, Stream.PLACES)
        chosen = generator.permutation(pool)[:size]
        wrong = (truth[chosen] + generator.integers(1, classes, size=size)) % classes
        return cls(
            inputs[chosen],
            wrong.astype(truth.dtype),
            count=count,
            present=present,
            absent=absent,
            seed=root,
        )

    @classmethod
    def blank(
        cls,
        shape: Sequence[int],
        classes: int,
        *,
        count: int | None = None,
        present: int | None = None,
        absent: int | None = None,
        seed: int | None = None,
        lit: int = 1,
    ) -> ExampleCanaries:
        """Inputs that are zero but for a few random entries, with random labels; no data needed.

        No two are the same: twins would have one gradient, and each the other's noise.

        Args:
            shape: Shape of one input.
            classes: Number of classes.
            count: How many canaries, each present by a fair coin; or give
            present: how many are present, and
            absent: how many are absent.
            seed: Root of every random choice; drawn from the operating system if not given.
            lit: Entries of each input that are 1.

        Examples:
            >>> canaries = ExampleCanaries.blank((1, 8, 8), 10, count=20, seed=0)
            >>> canaries.inputs.shape, float(canaries.inputs.sum())
            ((20, 1, 8, 8), 20.0)
        """
        _validate.integer(2, classes=classes)
        sizes = _checked_sizes(shape, "shape")
        _validate.integer(1, lit=lit)
        _check_numbers(count, present, absent)
        size, root = _total(count, present, absent), _root(seed)
        entries = math.prod(sizes)
        different = math.comb(entries, lit) * classes
        # Twice as many, so that few draws repeat an earlier one.
        if 2 * size > different:
            raise InvalidArgumentError(
                f"Expected at most {different // 2} canaries, half of those that inputs with {lit} "
                f"of {entries} entries lit and {classes} classes tell apart, got {size}. Take "
                "fewer, or another lit."
            )
        generator = random_stream(root, Stream.PLACES)
        made: dict[tuple[int, ...], None] = {}
        while len(made) < size:
            lights = np.sort(_distinct_coordinates(generator, entries, lit)).tolist()
            made[(*lights, int(generator.integers(classes)))] = None
        inputs = np.zeros((size, entries), dtype=np.float32)
        for row, (*places, _) in zip(inputs, made, strict=True):
            row[places] = 1.0
        return cls(
            inputs.reshape(size, *sizes),
            np.array([label for *_, label in made]),
            count=count,
            present=present,
            absent=absent,
            seed=root,
        )

    def dataset(self, train_set: Any) -> ExampleDataset:
        """The training set with the present canaries at its end, for the run's data loader.

        Make the private loader from it, so that batch size, sampling rate and accountant all know
        of the larger set.

        Args:
            train_set: A map-style dataset of (input, label) pairs.

        Raises:
            InvalidArgumentError: Its inputs have another shape or kind than the canaries'.
            UnsupportedError: It does not hold pairs, or cannot be indexed.
        """
        return ExampleDataset(train_set, self)

    def fingerprint(self) -> str:
        """A short digest of the examples and of who is present."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{type(self).__name__} {self._seed}".encode())
        for array in (self.inputs, self.labels):
            digest.update(f" {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(np.packbits(self.member).tobytes())
        return digest.hexdigest()[:32]


def _root(seed: int | None) -> int:
    """The seed to use, so that examples and membership grow from the same one."""
    if seed is None:
        return fresh_seed()
    _validate.integer(0, seed=seed)
    return int(seed)


def _frozen_examples(name: str, given: Any) -> NDArray[Any]:
    array = np.array(given)
    if array.ndim < 1 or array.dtype.kind not in "biuf":
        raise InvalidArgumentError(
            f"Expected {name} to hold one array of numbers a canary, got shape {array.shape} and "
            f"dtype {array.dtype}."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidArgumentError(f"Expected {name} to be finite, got nan or infinity.")
    array.setflags(write=False)
    return array


class ExampleDataset:
    """A training set with the present canaries at its end; it tells who is in every batch.

    Any loader that indexes its dataset takes it, torch's among them. Canaries come out as the
    training set's own examples do: tensors for tensors, numbers for numbers.

    Args:
        train_set: A map-style dataset of (input, label) pairs.
        canaries: The canaries.

    Attributes:
        on_batch: Called with the indices of the canaries in every batch that is fetched, none
            included; None while nobody listens.

    Examples:
        >>> train_set = [(np.zeros(3), 0)] * 10
        >>> canaries = ExampleCanaries(np.ones((4, 3)), np.ones(4, int), present=2, seed=0)
        >>> data = canaries.dataset(train_set)
        >>> len(data), data[11]
        (12, (array([1., 1., 1.]), 1))
    """

    on_batch: Callable[[NDArray[np.int64]], None] | None

    def __init__(self, train_set: Any, canaries: ExampleCanaries) -> None:
        if not (hasattr(train_set, "__getitem__") and hasattr(train_set, "__len__")):
            raise UnsupportedError(
                f"Expected train_set to have a length and indices, got {type(train_set).__name__}. "
                "A stream of examples has no place for canaries: load it into a list or a tensor."
            )
        self.train_set = train_set
        self.canaries = canaries
        self.on_batch = None
        self._records = len(train_set)
        self._present = np.flatnonzero(canaries.member)
        self._process = os.getpid()
        example = train_set[0]
        if not (isinstance(example, (tuple, list)) and len(example) == 2):
            raise UnsupportedError(
                f"Expected train_set to hold (input, label) pairs, got {type(example).__name__}."
            )
        if tuple(np.shape(example[0])) != canaries.inputs.shape[1:]:
            raise InvalidArgumentError(
                f"Expected canaries of the shape of the training inputs, "
                f"{tuple(np.shape(example[0]))}, got {canaries.inputs.shape[1:]}."
            )
        self._examples = [
            (_alike("inputs", value, example[0]), _alike("labels", label, example[1]))
            for value, label in zip(
                canaries.inputs[self._present], canaries.labels[self._present], strict=True
            )
        ]

    def __len__(self) -> int:
        return self._records + len(self._examples)

    def __getitem__(self, index: int) -> Any:
        place = operator.index(index)
        place = place + len(self) if place < 0 else place
        if not 0 <= place < len(self):
            raise IndexError(f"Expected index in [0, {len(self)}), got {index}.")
        if place < self._records:
            return self.train_set[place]
        return self._examples[place - self._records]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """One batch, as loaders fetch it."""
        if self.on_batch is not None and os.getpid() != self._process:
            raise UnsupportedError(
                "A worker process fetched a batch while an audit listens: it cannot be told which "
                "step the batch belongs to. Use a DataLoader with num_workers=0."
            )
        places = np.asarray(indices, dtype=np.int64)
        examples = self._fetch(places)
        if self.on_batch is not None:
            self.on_batch(self._present[places[places >= self._records] - self._records])
        return examples

    def _fetch(self, places: NDArray[np.int64]) -> list[Any]:
        together = getattr(self.train_set, "__getitems__", None)
        ours = places >= self._records
        if together is None or ours.all():
            return [self[place] for place in places.tolist()]
        # The training set fetches its own together, as it would without canaries.
        records = iter(together(places[~ours].tolist()))
        return [
            self[place] if canary else next(records)
            for place, canary in zip(places.tolist(), ours.tolist(), strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process must not call back, but must know that somebody listens.
        listener = None if self.on_batch is None else _elsewhere
        return {**self.__dict__, "on_batch": listener}


def _elsewhere(_: NDArray[np.int64]) -> None:
    """Stands for a listener that stayed in the process that has it."""


def _alike(name: str, value: Any, like: Any) -> Any:
    """The value as what ``like`` is: a tensor of any framework with new_tensor, or a number."""
    kind = like.is_floating_point() if hasattr(like, "is_floating_point") else None
    if not isinstance(kind, bool):
        kind = np.asarray(like).dtype.kind == "f"
    if np.asarray(value).dtype.kind == "f" and not kind:
        raise InvalidArgumentError(
            f"Expected {name} of the canaries to be whole numbers like those of the training set, "
            f"got dtype {np.asarray(value).dtype}. Convert them as the training set is."
        )
    if hasattr(like, "new_tensor"):
        return like.new_tensor(np.asarray(value))
    if isinstance(like, (bool, int, float)):
        return type(like)(value)
    return np.asarray(value, dtype=np.asarray(like).dtype)[()]
