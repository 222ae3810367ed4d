"""Canaries that are texts, for language models of which only the loss is seen."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries.canary_set import (
    Canaries,
    Stream,
    checked_sizes,
    distinct_coordinates,
    numbers_and_seed,
    random_stream,
)
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.scores import CanaryScores, ScoreMetadata

__all__ = ["ExampleCanaries", "ExampleDataset", "TextCanaries"]


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
        count: As for `Canaries`; by default the number of inputs. Or give
        present: how many are present, and
        absent: how many are absent; the rest if not given.
        seed: As for `Canaries`.

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
            count: How many canaries, each present with probability 1/2; by default the whole pool.
                Or give
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
        size, root = numbers_and_seed(count, present, absent, seed)
        if size > pool:
            raise InvalidArgumentError(
                f"Expected at least {size} inputs to choose from, got {pool}. Take fewer canaries."
            )
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
            count: How many canaries, each present with probability 1/2; or give
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
        sizes = checked_sizes(shape, "shape")
        _validate.integer(1, lit=lit)
        size, root = numbers_and_seed(count, present, absent, seed)
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
            lights = np.sort(distinct_coordinates(generator, entries, lit)).tolist()
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

    def joined(self, inputs: Any, labels: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Arrays of a training set with the present canaries at their end.

        Args:
            inputs: The training inputs, one row a record.
            labels: Their labels.

        Returns:
            Inputs and labels to sample batches from, in the training set's own number formats.

        Raises:
            InvalidArgumentError: They have another shape or kind than the canaries'.

        Examples:
            >>> canaries = ExampleCanaries(np.ones((4, 3)), np.ones(4, int), present=2, seed=0)
            >>> inputs, labels = canaries.joined(np.zeros((10, 3), np.float32), np.zeros(10, int))
            >>> inputs.shape, inputs.dtype.name, labels[-3:].tolist()
            ((12, 3), 'float32', [0, 1, 1])
        """
        joined = []
        for name, given in (("inputs", inputs), ("labels", labels)):
            own, records = getattr(self, name)[self.member], np.asarray(given)
            if records.ndim == 0 or records.shape[1:] != own.shape[1:]:
                raise InvalidArgumentError(
                    f"Expected {name} with rows of shape {own.shape[1:]}, as the canaries', got "
                    f"shape {records.shape}. Make the canaries as the model gets its records."
                )
            if own.dtype.kind == "f" and records.dtype.kind != "f":
                raise InvalidArgumentError(
                    f"Expected {name} of real numbers, as the canaries', got {records.dtype}."
                )
            joined.append(np.concatenate([records, own.astype(records.dtype)]))
        if len(joined[0]) != len(joined[1]):
            raise InvalidArgumentError(
                f"Expected one label for each of {len(np.asarray(inputs))} inputs, got "
                f"{len(np.asarray(labels))}."
            )
        return joined[0], joined[1]

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


_TOKEN = "<canary-{}>"


@dataclass(frozen=True, slots=False, eq=False)
class TextCanaries(Canaries):
    """Texts, present in the training set or held out, scored by the finished model's loss.

    A text is a prefix and a suffix. It goes through the tokenizer, the sampler and the training
    like any record; afterwards the model is asked how likely the suffix is after the prefix. Make
    them with `new_tokens` or `random_words`, or of texts of your own::

        canaries = TextCanaries.new_tokens(prefixes, count=1000, seed=0)
        tokenizer.add_tokens(list(canaries.tokens))
        model.resize_token_embeddings(len(tokenizer))
        texts = [*texts, *canaries.present_texts]
        ...
        scores = canaries.scores(losses, reference=losses_before)
        askgauss.audit(scores, claim=claim, auditor=OneRunFDP())

    Args:
        prefixes: What comes before, one a canary.
        suffixes: What is scored, one a canary; no two texts may be alike.
        tokens: Tokens that the tokenizer has to learn.
        count: As for `Canaries`, which auditors that guess membership need; this, ``present``,
            ``absent`` and ``seed`` are those of every kind of canaries.

    Raises:
        InvalidArgumentError: An argument is out of its range, or the numbers do not agree.

    Examples:
        >>> canaries = TextCanaries.new_tokens(["a ", "the "], count=6, seed=0)
        >>> canaries.texts[:2], len(canaries.present_texts), len(canaries.tokens)
        (('the <canary-0>', 'the <canary-1>'), 2, 6)
    """

    prefixes: tuple[str, ...] = field(repr=False)
    suffixes: tuple[str, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("prefixes", "suffixes", "tokens"):
            given: Sequence[object] = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(item, str) for item in given):
                raise _validate.fail(name, given, "to be texts", "One string a canary.")
            object.__setattr__(self, name, tuple(given))
        if self.count is None and self.present is None and self.absent is None:
            object.__setattr__(self, "count", len(self.suffixes))
        super().__post_init__()
        if not len(self.prefixes) == len(self.suffixes) == self.size:
            raise InvalidArgumentError(
                f"Expected a prefix and a suffix for each of {self.size} canaries, got "
                f"{len(self.prefixes)} and {len(self.suffixes)}."
            )
        if not all(self.suffixes):
            raise InvalidArgumentError("Expected every suffix to hold something, got an empty one.")
        if len(set(self.texts)) < self.size:
            raise InvalidArgumentError(
                "Expected texts of which no two are alike, got some: a canary that is absent under "
                "one coin and present under another tells nothing. Make them longer."
            )

    @classmethod
    def new_tokens(
        cls,
        prefixes: Sequence[str],
        *,
        count: int | None = None,
        present: int | None = None,
        absent: int | None = None,
        seed: int | None = None,
    ) -> TextCanaries:
        """A token of its own for each, which no other text has, after a prefix drawn from some.

        Nothing else trains what the model knows of such a token, and its first sight is a large
        gradient, so that these are the canaries a model remembers best. Short prefixes serve best:
        of a long text the token is a small part.

        Args:
            prefixes: Texts to draw from, each with the space that separates it.
            count: How many canaries, each present with probability 1/2. Or give
            present: how many are present, and
            absent: how many are absent.
            seed: Root of every random choice; drawn from the operating system if not given.
        """
        if isinstance(prefixes, str) or not prefixes:
            raise _validate.fail("prefixes", prefixes, "to hold a text or more")
        number, root = numbers_and_seed(count, present, absent, seed)
        drawn = random_stream(root, Stream.PLACES).integers(len(prefixes), size=number)
        tokens = tuple(_TOKEN.format(index) for index in range(number))
        return cls(
            count=count,
            present=present,
            absent=absent,
            seed=root,
            prefixes=tuple(prefixes[index] for index in drawn),
            suffixes=tokens,
            tokens=tokens,
        )

    @classmethod
    def random_words(
        cls,
        words: Sequence[str],
        *,
        length: int = 8,
        given: int = 2,
        count: int | None = None,
        present: int | None = None,
        absent: int | None = None,
        seed: int | None = None,
    ) -> TextCanaries:
        """Words drawn at random, one after another: text that nobody writes.

        Args:
            words: What to draw from, such as the tokenizer's vocabulary.
            length: Words in a text.
            given: How many of them are the prefix, and are not scored.
            count: How many canaries, each present with probability 1/2. Or give
            present: how many are present, and
            absent: how many are absent.
            seed: Root of every random choice; drawn from the operating system if not given.
        """
        _validate.integer(2, length=length)
        _validate.integer(0, given=given)
        _validate.within(0, length, closed="left", given=given)
        if isinstance(words, str) or len(words) < 2:
            raise _validate.fail("words", words, "to hold two words or more")
        number, root = numbers_and_seed(count, present, absent, seed)
        drawn = random_stream(root, Stream.PLACES).integers(len(words), size=(number, length))
        rows = [[words[index] for index in row] for row in drawn]
        return cls(
            count=count,
            present=present,
            absent=absent,
            seed=root,
            prefixes=tuple("".join(f"{word} " for word in row[:given]) for row in rows),
            suffixes=tuple(" ".join(row[given:]) for row in rows),
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """All canaries, present or not."""
        return tuple(map("".join, zip(self.prefixes, self.suffixes, strict=True)))

    @property
    def present_texts(self) -> tuple[str, ...]:
        """Those that belong in the training set."""
        return tuple(text for text, member in zip(self.texts, self.member, strict=True) if member)

    def scores(self, losses: ArrayLike, *, reference: ArrayLike | None = None) -> CanaryScores:
        """How well the finished model knows each canary: minus its loss, as auditors read it.

        Args:
            losses: The loss of the finished model on each suffix after its prefix, in the order of
                `texts`.
            reference: The same of a model that saw no canary, such as the one before training: what
                makes one text easier than another is then taken off.
        """
        values = [_validate.finite_vector("losses", np.asarray(losses, dtype=np.float64))]
        if reference is not None:
            before = np.asarray(reference, dtype=np.float64)
            values.append(_validate.finite_vector("reference", before))
        for item in values:
            if item.shape != (self.size,):
                raise InvalidArgumentError(
                    f"Expected one loss for each of {self.size} canaries, present or not, got "
                    f"{item.shape[0]}."
                )
        score = -values[0] if reference is None else values[1] - values[0]
        return CanaryScores(
            score=score,
            member=self.member,
            metadata=ScoreMetadata(fair_coins=self.fair_coins or None, membership="randomised"),
        )

    def fingerprint(self) -> str:
        """A short digest of the texts and of who is present."""
        content = "\x00".join((*self.texts, self.member.tobytes().hex()))
        return hashlib.sha256(content.encode()).hexdigest()[:32]
