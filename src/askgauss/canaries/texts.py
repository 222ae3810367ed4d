"""Canaries that are texts, for language models of which only the loss is seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from askgauss import _validate
from askgauss.canaries.canary_set import (
    Canaries,
    Stream,
    numbers_and_seed,
    random_stream,
)
from askgauss.exceptions import InvalidArgumentError
from askgauss.scores import CanaryScores, ScoreMetadata

__all__ = ["TextCanaries"]

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
        count: Number of canaries, each present with probability 1/2, independently, as auditors
            that guess membership need. Or give
        present: how many are present, and
        absent: how many are absent.
        seed: Root of every random choice; drawn from the operating system if not given.

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
