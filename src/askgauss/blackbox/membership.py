"""Randomised membership: which audited records a training includes, drawn before it starts.

A black-box bound needs nothing of the scores' distribution, but it does need this: every audited
record is included independently with a known probability, and the draw precedes training. The
object that made the draw travels with the scores and joins them by record id::

    membership = Membership.randomised(audited=np.arange(50_000, 51_000))
    membership.save("membership.json")
    model = train(membership.training_set(dataset))
    scores = membership.scores(values)      # one value per audited record
    result = askgauss.audit(scores, claim=claim)
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import fresh_seed
from askgauss.exceptions import FileFormatError, InvalidArgumentError, ScoresError
from askgauss.files import atomic, codec
from askgauss.scores import CanaryScores, ScoreMetadata

__all__ = ["Membership"]

_KIND = "askgauss-membership"
_SCHEMA = 1
# Fewer audited records show nothing, whatever the model does.
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Membership:
    """Which of the audited records a training includes, and with what probability each was drawn.

    Make it with `Membership.randomised` before training, and save it: the digest may be published
    then, and the file opened later shows that nothing was exchanged.

    Attributes:
        ids: The audited records: indices into the dataset, or names. All different.
        member: True where the record is included in training.
        probability: The probability with which each record was included.
        nonce: Random text that keeps the digest from being guessed.
    """

    ids: NDArray[Any]
    member: NDArray[np.bool_] = field(repr=False)
    probability: NDArray[np.float64] = field(repr=False)
    nonce: str = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("ids", "member", "probability"):
            array = np.array(getattr(self, name))
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def randomised(
        cls, *, audited: ArrayLike, probability: ArrayLike = 0.5, seed: int | None = None
    ) -> Membership:
        """Draw which of these records a training includes, each independently.

        Args:
            audited: Ids of the audited records, natural ones or canaries: indices into the dataset,
                or names. Every record that is not audited is trained on as usual.
            probability: The probability of inclusion: one number, or one per record, in (0, 1).
                One half certifies most.
            seed: Seed of the draw; taken from the operating system if not given. Whoever can guess
                the seed knows the membership, so leave it out except in tests.

        Raises:
            InvalidArgumentError: Ids repeat or have the wrong type, or a probability is outside
                its range.

        Examples:
            >>> membership = Membership.randomised(audited=range(100), seed=3)
            >>> membership
            Membership(audited=100, included=47)
        """
        ids = _checked_ids(audited)
        chance = _checked_probability(probability, ids.size)
        if seed is not None:
            _validate.integer(0, seed=seed)
        generator = np.random.default_rng(fresh_seed() if seed is None else int(seed))
        member = generator.random(ids.size) < chance
        return cls(ids=ids, member=member, probability=chance, nonce=secrets.token_hex(16))

    @property
    def included(self) -> NDArray[Any]:
        """Ids of the audited records that training includes."""
        return self.ids[self.member]

    @property
    def held_out(self) -> NDArray[Any]:
        """Ids of the audited records that training must not see."""
        return self.ids[~self.member]

    @property
    def digest(self) -> str:
        """SHA-256 of the draw and a nonce: publish it before training, open the file afterwards."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.ids.size)

    def __repr__(self) -> str:
        return f"Membership(audited={len(self)}, included={int(self.member.sum())})"

    def train_indices(self, *, records: int) -> NDArray[np.int64]:
        """Indices of the records to train on: all of the dataset but the held-out ones.

        Args:
            records: Number of records in the dataset.

        Raises:
            InvalidArgumentError: Ids are names, or lie outside the dataset.
        """
        _validate.count(records=records)
        if self.ids.dtype.kind not in "iu":
            raise InvalidArgumentError(
                "Expected ids to be indices into the dataset, got names. Leave the records named "
                "in membership.held_out out of training."
            )
        if self.ids.max() >= records:
            raise InvalidArgumentError(
                f"Expected audited indices below {records:,}, the number of records, got "
                f"{int(self.ids.max()):,}. The membership was drawn for another dataset."
            )
        keep = np.ones(records, dtype=np.bool_)
        keep[self.held_out] = False
        return np.flatnonzero(keep)

    def training_set(self, data: Any) -> Any:
        """The dataset without its held-out records, of the same kind as what was given.

        Args:
            data: A Hugging Face ``Dataset``, a pandas ``DataFrame``, a numpy array, a mapping of
                arrays of one length, or anything with ``len`` and indexing, such as a torch
                dataset. Held-out records of the last kind are hidden, not copied.
        """
        if isinstance(data, Mapping):
            return {name: self.training_set(column) for name, column in data.items()}
        kept = self.train_indices(records=len(data))
        if isinstance(data, np.ndarray):
            return data[kept]
        if hasattr(data, "iloc"):
            return data.iloc[kept]
        if hasattr(data, "select") and hasattr(data, "column_names"):
            return data.select(kept)
        return _TrainingSet(data, kept)

    def scores(self, values: ArrayLike | Mapping[Any, float]) -> CanaryScores:
        """Join one value per audited record with its membership.

        Args:
            values: Higher means more likely a member: in the order of `ids`, or a mapping from id
                to value.

        Returns:
            Scores that say that membership was randomised. Where a probability is not one half,
            records are thinned so that inclusion is even (`CanaryScores.with_fair_coins`).

        Raises:
            ScoresError: Values are missing, scored twice, not finite, or of other records.
        """
        if isinstance(values, Mapping):
            values = self._joined(values)
        score = _validate.finite_vector("values", values)
        if score.size != len(self):
            raise ScoresError(
                f"Expected one value for each of {len(self):,} audited records, got "
                f"{score.size:,}. Score exactly the records in membership.ids, in that order."
            )
        even = bool((self.probability == 0.5).all())
        scores = CanaryScores(
            score=score,
            member=self.member,
            ids=self.ids,
            metadata=ScoreMetadata(
                membership="randomised", fair_coins=even or None, run=self.digest[:32]
            ),
        )
        return scores if even else scores.with_fair_coins(self.probability)

    def _joined(self, values: Mapping[Any, float]) -> NDArray[np.float64]:
        wanted = [item.item() for item in self.ids]
        missing = [name for name in wanted if name not in values]
        foreign = len(values) - (len(wanted) - len(missing))
        if missing or foreign:
            raise ScoresError(
                f"Expected values of the {len(wanted):,} audited records, got {len(missing):,} "
                f"missing (first: {missing[0] if missing else 'none'!r}) and {foreign:,} of other "
                "records. Join values and membership of the same audit."
            )
        return np.array([values[name] for name in wanted], dtype=np.float64)

    def _content(self) -> dict[str, Any]:
        return {
            "ids": self.ids.tolist(),
            "member": self.member.astype(np.int64).tolist(),
            "probability": self.probability.tolist(),
            "nonce": self.nonce,
        }

    def _text(self) -> str:
        return json.dumps(self._content(), sort_keys=True, separators=(",", ":"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file that only its owner may read: it says who was included."""
        atomic.write_text(path, codec.dumps(_KIND, _SCHEMA, self._content()), private=True)

    @classmethod
    def load(cls, source: atomic.Source) -> Membership:
        """Read what `save` wrote.

        Raises:
            FileFormatError: The file is damaged, or is something else.
        """
        content = codec.loads(atomic.read_bytes(source), _KIND, _SCHEMA)
        try:
            ids = _checked_ids(content["ids"])
            chance = _checked_probability(content["probability"], ids.size)
            member = np.asarray(content["member"])
            nonce = content["nonce"]
        except (KeyError, InvalidArgumentError) as error:
            raise FileFormatError(f"Expected a whole membership: {error}.") from error
        if member.shape != ids.shape or not np.isin(member, (0, 1)).all():
            raise FileFormatError("Expected a membership of 0 or 1 for each audited record.")
        if not isinstance(nonce, str):
            raise FileFormatError("Expected a membership with its nonce.")
        return cls(ids=ids, member=member.astype(np.bool_), probability=chance, nonce=nonce)


class _TrainingSet(Sequence[Any]):
    """A dataset less its held-out records."""

    def __init__(self, data: Any, kept: NDArray[np.int64]) -> None:
        self.data, self.kept = data, kept

    def __len__(self) -> int:
        return int(self.kept.size)

    def __getitem__(self, index: Any) -> Any:
        return self.data[int(self.kept[index])]


def _checked_ids(given: ArrayLike) -> NDArray[Any]:
    array = np.asarray(given if isinstance(given, np.ndarray) else list(given))  # type: ignore[arg-type]
    if array.dtype.kind not in "iuU" or array.ndim != 1:
        raise InvalidArgumentError(
            f"Expected audited ids to be whole numbers or names in one dimension, got dtype "
            f"{array.dtype} and shape {array.shape}."
        )
    if array.size < _FEWEST:
        raise InvalidArgumentError(
            f"Expected at least {_FEWEST} audited records, got {array.size}. A hundred certify "
            "little; a thousand are a good start."
        )
    unique, counts = np.unique(array, return_counts=True)
    if unique.size != array.size:
        raise InvalidArgumentError(
            f"Expected every audited record once, got {unique[np.argmax(counts > 1)]!r} more than "
            "once. A record counted twice makes the bound too high."
        )
    if array.dtype.kind in "iu" and array.min() < 0:
        raise InvalidArgumentError(f"Expected audited indices >= 0, got {array.min()}.")
    return array


def _checked_probability(given: ArrayLike, size: int) -> NDArray[np.float64]:
    chance = np.asarray(given, dtype=np.float64)
    if chance.shape not in ((), (size,)):
        raise _validate.fail(
            "probability", chance.shape, f"to be one number, or {size:,}, one per audited record"
        )
    if not ((chance > 0.0) & (chance < 1.0)).all():
        hint = "A record that is sure to be included, or sure to be held out, shows nothing."
        raise _validate.fail("probability", given, "in (0, 1)", hint)
    return np.broadcast_to(chance, (size,)).copy()
