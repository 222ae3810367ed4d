"""The mechanism's outputs: asked for, checked, laid out as numbers, and tested for independence."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, MechanismError

__all__ = ["Mechanism", "OutputTable", "Sampler", "dependent_draws", "from_function"]

Array = NDArray[np.float64]

SIDES = ("data", "neighbour")
# A word is a number of its own: one of so many that its letters give, and no whole one, so that it
# is no number that is released beside it. It must not depend on when the word came first: then it
# would tell the sides apart, which are drawn one after the other. Two words with one number make
# one event of two, which costs power at most.
_WORDS = 1_000_003
_THIRD = 1.0 / 3.0
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@runtime_checkable
class Mechanism(Protocol):
    """Anything that can be run on a data set as often as asked.

    Two more things are used where they are offered: a parameter ``seed`` of ``sample`` gets a
    fresh whole number in every call, and a method ``log_likelihood_ratio(outputs, data,
    neighbour)`` becomes one more score to choose events by (it may be wrong: what is chosen by it
    is tested on fresh outputs).
    """

    def sample(self, data: Any, n: int) -> Any:
        """``n`` independent outputs, along the first axis or as a list."""
        ...


@dataclass(frozen=True, slots=True)
class _OneByOne:
    release: Callable[..., Any]

    def sample(self, data: Any, n: int, seed: int | None = None) -> list[Any]:
        """As many releases, each with a generator of its own where the function takes one."""
        with_generator = len(inspect.signature(self.release).parameters) > 1
        outputs = []
        for index, generator in enumerate(np.random.default_rng(seed).spawn(n)):
            try:
                output = self.release(data, generator) if with_generator else self.release(data)
            except Exception as error:
                raise MechanismError(f"release {index} raised {_shown(error)}") from error
            outputs.append(output)
        return outputs


def from_function(release: Callable[..., Any]) -> Mechanism:
    """A mechanism from a function that releases one output.

    Args:
        release: Called as ``release(data)``, or as ``release(data, generator)`` if it takes two
            arguments; the generator is a fresh `numpy.random.Generator` every time.

    Examples:
        >>> noisy = from_function(lambda data, rng: sum(data) + rng.laplace())
        >>> len(noisy.sample([1, 2], 3))
        3
    """
    if not callable(release):
        raise _validate.fail("release", release, "to be a function of the data")
    return _OneByOne(release)


@dataclass(frozen=True, slots=True, eq=False)
class OutputTable:
    """Outputs as a matrix, one row each.

    Attributes:
        values: The numbers of each output, one after the other; nan beyond the end of short ones.
        lengths: How many numbers each output has.
    """

    values: Array
    lengths: NDArray[np.int64]

    @staticmethod
    def together(parts: Sequence[OutputTable]) -> OutputTable:
        """All rows, in order."""
        width = max(part.values.shape[1] for part in parts)
        return OutputTable(
            np.concatenate([part.widened(width) for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def widened(self, width: int) -> Array:
        """The values in this many columns; what lies beyond them is left out."""
        missing = width - self.values.shape[1]
        if missing <= 0:
            return self.values[:, :width]
        return np.pad(self.values, ((0, 0), (0, missing)), constant_values=np.nan)

    def rows(self, chosen: slice) -> OutputTable:
        """Some of the outputs."""
        return OutputTable(self.values[chosen], self.lengths[chosen])

    def __len__(self) -> int:
        return int(self.lengths.size)


@dataclass(slots=True)
class Sampler:
    """Draws from a mechanism, each call with a seed of its own where the mechanism takes one."""

    mechanism: Mechanism
    seeds: np.random.Generator
    drawn: list[int] = field(default_factory=lambda: [0, 0])
    dimensions: int | None = None
    seedable: bool = False

    def __post_init__(self) -> None:
        sample = getattr(self.mechanism, "sample", None)
        if not callable(sample):
            raise _validate.fail(
                "mechanism",
                self.mechanism,
                "with a method sample(data, n)",
                "Wrap a function that releases one output with from_function.",
            )
        try:
            self.seedable = "seed" in inspect.signature(sample).parameters
        except (TypeError, ValueError):
            self.seedable = False  # a compiled function that does not say

    def draw(self, data: Any, side: int, count: int) -> OutputTable:
        """``count`` fresh outputs of one side."""
        first = self.drawn[side]
        where = f"on {SIDES[side]}, samples {first} to {first + count - 1}"
        extra = {"seed": int(self.seeds.integers(2**63))} if self.seedable else {}
        try:
            answer = self.mechanism.sample(data, count, **extra)
        except Exception as error:
            raise MechanismError(
                f"The mechanism raised {_shown(error)} ({where}). A release that fails is a "
                "release too: catch it in the mechanism and return a value that stands for it, "
                "or fix it."
            ) from error
        try:
            got = len(answer)
        except TypeError:
            raise MechanismError(
                f"Expected sample(data, n) to return {count} outputs along the first axis, got "
                f"{_short(answer)} ({where})."
            ) from None
        if got != count:
            raise MechanismError(
                f"Expected sample(data, n) to return {count} outputs, got {got} ({where}). "
                "Outputs left out by the mechanism's result would hide a leak: return every one."
            )
        self.drawn[side] += count
        return self._laid_out(answer, where)

    def _laid_out(self, answer: Any, where: str) -> OutputTable:
        try:
            array = np.asarray(answer)
            # Of a word and a number numpy makes two words: take such rows one by one.
            ragged = array.dtype.kind in "OUS" and not isinstance(answer, np.ndarray)
            ragged = ragged or array.dtype == object
        except ValueError:  # rows of several lengths
            ragged = True
        if not ragged:
            self._check_dimensions(array.ndim - 1, where)
            width = array.size // len(array)
            lengths = np.full(len(array), width, np.int64)
            if width == 0:  # nothing was released, which is a release too
                return OutputTable(np.full((len(array), 1), np.nan), lengths)
            return OutputTable(self._numbers(array.reshape(-1, width), where), lengths)
        rows = [_row(item) for item in answer]
        for row in rows:
            if row.dtype == object and row.ndim == 1 and any(np.ndim(item) for item in row):
                raise MechanismError(
                    f"Expected outputs that are numbers, words or arrays, got {_short(row)} "
                    f"({where}). Flatten each output into one vector."
                )
        self._check_dimensions(max(row.ndim for row in rows), where)
        if len({row.ndim for row in rows}) > 1:
            raise MechanismError(
                f"Expected outputs of one number of dimensions, got "
                f"{sorted({row.ndim for row in rows})} ({where}). Flatten each output into one "
                "vector; its length may vary."
            )
        lengths = np.array([row.size for row in rows], np.int64)
        values = np.full((len(rows), max(int(lengths.max()), 1)), np.nan)
        for index, row in enumerate(rows):
            values[index, : row.size] = self._numbers(row.reshape(1, -1), where)
        return OutputTable(values, lengths)

    def _check_dimensions(self, dimensions: int, where: str) -> None:
        # A list of numbers and a list of vectors of one number are one thing.
        dimensions = max(dimensions, 1)
        if self.dimensions is None:
            self.dimensions = dimensions
        if dimensions != self.dimensions:
            raise MechanismError(
                f"Expected outputs of {self.dimensions} dimensions as before, got {dimensions} "
                f"({where}). Flatten each output into one vector; its length may vary."
            )

    def _numbers(self, array: NDArray[Any], where: str) -> Array:
        """Real numbers as they are; words and other things by a number for each."""
        if array.dtype.kind in "biuf":
            return array.astype(np.float64)
        if array.dtype.kind in "USO":
            flat = [
                float(item) if isinstance(item, (int, float, np.number)) else _number_of(item)
                for item in array.ravel().tolist()
            ]
            return np.array(flat, np.float64).reshape(array.shape)
        raise MechanismError(
            f"Expected outputs of real numbers or words, got dtype {array.dtype} ({where}). "
            "Return the real and imaginary parts, or the fields, as separate numbers."
        )


def _row(output: Any) -> NDArray[Any]:
    """One output as a row: of a mapping its keys and values, in the order of the keys."""
    if isinstance(output, Mapping):
        pairs = sorted(output.items(), key=lambda pair: repr(pair[0]))
        output = [part for pair in pairs for part in pair]
    if isinstance(output, (tuple, list)) and any(
        item is None or isinstance(item, (str, bytes, Mapping)) for item in output
    ):
        row = np.empty(len(output), dtype=object)
        row[:] = output
        return row
    return np.atleast_1d(np.asarray(output))


@lru_cache(maxsize=1 << 16)
def _hashed(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) % _WORDS + _THIRD


def _number_of(word: object) -> float:
    """The number that stands for a word, or for anything else that is no number."""
    return _hashed(repr(word))


def check_pair(
    data: Any, neighbour: Any, adjacent: Callable[[Any, Any], bool] | None = None
) -> None:
    """Refuse a pair that is one data set twice, or not adjacent by the caller's own word."""
    if data is neighbour or _equal(data, neighbour):
        raise InvalidArgumentError(
            "Expected neighbour to differ from data, got two equal ones. Between equal inputs "
            "every mechanism is private: pass the pair that one record tells apart."
        )
    if adjacent is not None and not adjacent(data, neighbour):
        raise InvalidArgumentError(
            "Expected data and neighbour to be neighbours, but adjacent(data, neighbour) says "
            "they are not. A claim promises nothing about such a pair."
        )


def _equal(data: Any, neighbour: Any) -> bool:
    try:
        same = data == neighbour
        if isinstance(same, (bool, np.bool_)):
            return bool(same)
        return np.shape(data) == np.shape(neighbour) and bool(np.all(same))
    except (TypeError, ValueError):
        return False  # things that cannot be compared are taken for different


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(str(error))}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def keys(outputs: OutputTable, width: int) -> NDArray[np.uint64]:
    """One key an output, equal where the outputs are the same to the bit (any nan is nan).

    Every number is scrambled with its place (the finaliser of splitmix64) and the row summed. Two
    outputs that shared a key would be one category, which hides and never invents a leak.
    """
    values = outputs.widened(width)
    lengths = outputs.lengths.astype(np.float64)[:, None]
    whole = np.ascontiguousarray(np.hstack((np.where(np.isnan(values), np.nan, values), lengths)))
    bits = whole.view(np.uint64) + _GOLDEN * np.arange(1, width + 2, dtype=np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((bits ^ (bits >> np.uint64(31))).sum(axis=1, dtype=np.uint64))


def dependent_draws(seen: list[list[OutputTable]], fresh: list[OutputTable], error: float) -> str:
    """What is wrong with the draws, in a sentence; empty where nothing is.

    Args:
        seen: Outputs of earlier batches, side by side.
        fresh: Outputs of this batch, side by side.
        error: Probability of a sentence were all draws independent, in all of twenty batches.
    """
    for side, outputs in enumerate(fresh):
        if seen[side] and _repeated(seen[side][0], outputs, error):
            return (
                f"two calls of sample gave the same outputs on {SIDES[side]}: they are "
                "not independent. Draw anew in every call, or take a parameter seed."
            )
    if _coupled(fresh[0], fresh[1], error):
        return (
            "outputs of the two sides correlate: they were drawn with the same randomness and are "
            "not independent. Draw each side with a separate generator, or take a parameter seed."
        )
    return ""


def _repeated(before: OutputTable, after: OutputTable, error: float) -> bool:
    """Whether a batch begins as an earlier one did, where chance would not have it so."""
    width = max(before.values.shape[1], after.values.shape[1])
    first, second = keys(before, width), keys(after, width)
    count = min(first.size, second.size)
    if not np.array_equal(first[:count], second[:count]):
        return False
    _, counts = np.unique(first, return_counts=True)
    # Chance that two outputs are equal, by the pairs that are, and never taken below what so few
    # pairs can tell.
    pairs = first.size * (first.size - 1) / 2.0
    equal = (float((counts * (counts - 1) / 2.0).sum()) + 3.0) / pairs
    return count * math.log(min(equal, 1.0)) < math.log(error) and equal < 0.9


def _coupled(data: OutputTable, neighbour: OutputTable, error: float) -> bool:
    """Whether the k-th output of one side goes with the k-th of the other, in any column.

    Each side's column is cut in two as evenly as it can be. How many outputs are above both cuts is
    hypergeometric if the sides are independent, exactly, also for rare and nearly constant outputs.
    """
    width = min(data.values.shape[1], neighbour.values.shape[1], 64)
    if len(data) < 30:
        return False
    return any(
        _chance_of_overlap(_upper(data.values[:, column]), _upper(neighbour.values[:, column]))
        < error / width
        for column in range(width)
    )


def _upper(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The outputs above the most even cut; nan is beyond all numbers."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts)[:-1]
    if not below.size:
        return np.zeros(values.size, dtype=np.bool_)
    return np.asarray(places > int(np.abs(below - 0.5 * values.size).argmin()))


def _chance_of_overlap(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Two-sided p-value of Fisher's exact test that two sets of outputs are independent."""
    count, first, second = ours.size, int(ours.sum()), int(theirs.sum())
    both = np.arange(max(0, first + second - count), min(first, second) + 1)
    logs = _log_binomial(first, both) + _log_binomial(count - first, second - both)
    chances = np.exp(logs - _log_binomial(count, np.array([second])))
    found = int((ours & theirs).sum()) - int(both[0])
    return min(1.0, 2.0 * float(min(chances[: found + 1].sum(), chances[found:].sum())))


def _log_binomial(count: int, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(gammaln(count + 1) - gammaln(chosen + 1) - gammaln(count - chosen + 1))
