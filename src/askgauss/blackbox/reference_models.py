"""Reference models: the same training on other random halves of the audited records.

Attacks such as LiRA and RMIA compare the audited model with models of which it is known what they
were trained on. Their training sets are drawn anew, never from the audited membership.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.blackbox.membership import Membership
from askgauss.exceptions import InvalidArgumentError, RecordingError
from askgauss.files import archive, atomic, codec

__all__ = ["References", "train_references"]

_PLAN = "references.json"
_PLAN_KIND = "askgauss-reference-plan"
_KIND = "askgauss-reference"
_SCHEMA = 1
Train = Callable[[NDArray[np.int64], int], ArrayLike]
Pool = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class References:
    """What reference models make of the audited records.

    Attributes:
        values: One row per model: its values of the audited records, and of any further ones that
            the training function returned.
        inside: True where the model was trained on the audited record.
    """

    values: NDArray[np.float64]
    inside: NDArray[np.bool_]

    @property
    def audited(self) -> NDArray[np.float64]:
        """The values of the audited records."""
        return self.values[:, : self.inside.shape[1]]

    @property
    def population(self) -> NDArray[np.float64]:
        """The values of what the training function returned beyond the audited records."""
        return self.values[:, self.inside.shape[1] :]


def train_references(
    train: Train,
    membership: Membership,
    *,
    records: int,
    count: int = 8,
    folder: str | os.PathLike[str] | None = None,
    pool: Pool = map,
    seed: int | None = None,
) -> References:
    """Train reference models by your own function.

    Args:
        train: Called with the indices to train on and a seed; returns one value per audited record,
            in the order of ``membership.ids``, and after them any further values, such as those of
            a population that no model is trained on.
        membership: The audited records. Who was included is never looked at.
        records: Number of records in the dataset.
        count: Number of reference models.
        folder: Where finished models' values are kept, so that a run that was stopped is resumed
            by the same call; nowhere if not given.
        pool: What calls the work: `map`, the ``map`` of a process pool, or ``ray_pool()`` of
            `askgauss.final` for a Ray cluster.
        seed: Seed of the training sets; taken from the operating system if not given.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        RecordingError: The folder is that of another membership or another number of models.
    """
    _validate.integer(2, count=count)
    _validate.count(records=records)
    background = np.setdiff1d(membership.train_indices(records=records), membership.ids)
    root = _root_seed(membership, records, count, folder, seed)
    drawn = np.random.default_rng(np.random.SeedSequence(root, spawn_key=(0,)))
    # Every record is inside half of the models, so that each has references of both kinds.
    order = drawn.random((count, len(membership))).argsort(axis=0)
    inside = order < count // 2
    seeds = np.random.SeedSequence(root, spawn_key=(1,)).generate_state(count)
    work = [
        _Work(
            indices=np.sort(np.concatenate([background, membership.ids[row]])),
            seed=int(seed),
            path=None if folder is None else str(Path(folder) / f"reference-{index}.npz"),
            audited=len(membership),
        )
        for index, (row, seed) in enumerate(zip(inside, seeds, strict=True))
    ]
    values = list(pool(functools.partial(_one, train), work))
    widths = {value.size for value in values}
    if len(widths) != 1:
        raise InvalidArgumentError(
            f"Expected train to return as many values each time, got {sorted(widths)}."
        )
    return References(values=np.stack(values), inside=inside)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Work:
    """One model to train."""

    indices: NDArray[np.int64]
    seed: int
    path: str | None
    audited: int


def _one(train: Train, work: _Work) -> NDArray[np.float64]:
    if work.path is not None and Path(work.path).exists():
        arrays, _ = archive.read_arrays(work.path, _KIND, _SCHEMA)
        return np.asarray(arrays["values"], dtype=np.float64)
    values = _validate.finite_vector("what train returned", train(work.indices, work.seed))
    if values.size < work.audited:
        raise InvalidArgumentError(
            f"Expected train to return a value for each of {work.audited} audited records, got "
            f"{values.size}."
        )
    if work.path is not None:
        archive.write_arrays(work.path, _KIND, _SCHEMA, {"values": values}, {})
    return values


def _root_seed(
    membership: Membership,
    records: int,
    count: int,
    folder: str | os.PathLike[str] | None,
    seed: int | None,
) -> int:
    """The seed of all training sets: that of the folder, where a run is resumed."""
    if seed is not None:
        _validate.integer(0, seed=seed)
    fresh = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
    if folder is None:
        return fresh
    path = Path(folder) / _PLAN
    ids = codec.digest({"ids": membership.ids.tolist(), "records": records, "count": count})
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"seed": fresh, "audited": ids}
        atomic.write_text(path, codec.dumps(_PLAN_KIND, _SCHEMA, content), private=True)
        return fresh
    found = codec.loads(atomic.read_bytes(path), _PLAN_KIND, _SCHEMA)
    if found.get("audited") != ids or seed not in (None, found.get("seed")):
        raise RecordingError(
            f"Expected {str(folder)!r} to hold references of these {len(membership):,} audited "
            f"records, {records:,} records and {count} models, got others. Name another folder."
        )
    return int(found["seed"])
