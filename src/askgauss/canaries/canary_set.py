"""What canaries of every kind share: their number, their membership, and their random streams."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError

__all__ = [
    "Canaries",
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
