"""Updates of clients as aggregators have them: an array, or a list of arrays, a client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss.canaries import DiracCanaries
from askgauss.exceptions import InvalidArgumentError
from askgauss.recording.injection import Layout

__all__ = ["Form", "checked_weights"]

Update = Any
"""An array, or a list or tuple of arrays."""


class Form:
    """The form that all updates of a run have, learnt from the first.

    Args:
        update: An update.
        canaries: Who is planted where in it, flattened.

    Raises:
        InvalidArgumentError: It is no update, or not one of the canaries' dimension.
    """

    def __init__(self, update: Update, canaries: DiracCanaries) -> None:
        self.nested = isinstance(update, (list, tuple))
        parts = self._parts(update, "the first update")
        self._shapes = [part.shape for part in parts]
        self._types = [part.dtype for part in parts]
        sizes = [part.size for part in parts]
        self.dimension = sum(sizes)
        if self.dimension != canaries.total_dimension:
            raise InvalidArgumentError(
                f"Expected updates of dimension={canaries.total_dimension:,} entries, got one of "
                f"{self.dimension:,}. Give AuditedAggregator the size of the whole update."
            )
        self._edges = np.cumsum(sizes)
        self._layout = Layout(np.array(sizes, dtype=np.int64), canaries)

    def _parts(self, update: Update, name: str) -> list[NDArray[Any]]:
        if update is None:
            raise InvalidArgumentError(
                f"Expected {name} to be an array, or a list of them, got None: the client dropped "
                "out. Leave it out of the round, with its weight."
            )
        given = update if self.nested else [update]
        if self.nested and not isinstance(update, (list, tuple)):
            raise InvalidArgumentError(
                f"Expected {name} to be a list of {len(self._shapes)} arrays like the first one, "
                f"got {type(update).__name__}."
            )
        parts = [np.asarray(part) for part in given]
        if not parts or any(part.dtype.kind not in "iuf" for part in parts):
            kinds = ", ".join(sorted({str(part.dtype) for part in parts})) or "nothing"
            raise InvalidArgumentError(
                f"Expected {name} to hold numbers, got {kinds}. Pass arrays of integers or floats."
            )
        return parts

    def parts(self, update: Update, name: str) -> list[NDArray[Any]]:
        """The arrays of an update; checked, and not copied."""
        parts = self._parts(update, name)
        shapes = [part.shape for part in parts]
        if shapes != self._shapes:
            raise InvalidArgumentError(
                f"Expected {name} to have shapes {_short(self._shapes)} like the first one, got "
                f"{_short(shapes)}. Leave out clients of other models."
            )
        return parts

    def norm(self, parts: list[NDArray[Any]]) -> float:
        """The norm over all arrays together."""
        flat = (np.ravel(part) for part in parts)
        with np.errstate(all="ignore"):
            total = sum(float(np.dot(part, part)) for part in flat)
        if math.isfinite(total) and total > 0.0:
            return math.sqrt(total)
        # A square that overflowed or vanished, in the precision of the update.
        return float(np.linalg.norm([np.linalg.norm(part.astype(np.float64)) for part in parts]))

    def read(self, parts: list[NDArray[Any]]) -> NDArray[np.float64]:
        """What an update has at the coordinates of canaries and at those that are watched."""
        values = [np.ravel(parts[index])[places] for index, places in self._layout.read_places]
        return np.concatenate(values).astype(np.float64)

    def along(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What was read, canary by canary."""
        return np.asarray(self._layout.along(values))

    def watched(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """What was read at the watched coordinates."""
        return np.asarray(self._layout.watched(values))

    def thinned(self, parts: list[NDArray[Any]], stride: int) -> NDArray[np.float64]:
        """Every so many entries of an update, as one vector."""
        return np.concatenate([np.ravel(part)[::stride] for part in parts]).astype(np.float64)

    def marked(self, places: NDArray[np.int64], stride: int) -> NDArray[np.bool_]:
        """Which entries of what `thinned` gives are at these places."""
        marks = np.zeros(self.dimension, dtype=np.bool_)
        marks[places] = True
        return np.concatenate([part[::stride] for part in np.split(marks, self._edges[:-1])])

    def filled(self, value: float, *, at: int | None = None) -> Update:
        """A fresh update: one value everywhere, or at one coordinate and zero elsewhere."""
        flat = np.full(self.dimension, value if at is None else 0.0)
        if at is not None:
            flat[at] = value
        return self.shaped(flat)

    def evenly(self) -> NDArray[np.float64]:
        """A vector of norm 1 of which every array has the same share."""
        sizes = np.diff(self._edges, prepend=0)
        each = 1.0 / np.sqrt(np.maximum(sizes, 1) * np.count_nonzero(sizes))
        return np.repeat(each, sizes)

    def shaped(self, flat: NDArray[np.float64], dtype: np.dtype[Any] | None = None) -> Update:
        """A fresh update of these values, as far as its numbers reach.

        Args:
            flat: All values, one array after the other.
            dtype: What clients send; as the first update if not given.
        """
        types = self._types if dtype is None else [dtype] * len(self._types)
        split = np.split(flat, self._edges[:-1])
        parts = [
            _held(part, kind).reshape(shape)
            for part, kind, shape in zip(split, types, self._shapes, strict=True)
        ]
        return parts if self.nested else parts[0]


def _held(part: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    # The largest whole number may be above its own float.
    low, high = np.nextafter([float(limits.min), float(limits.max)], 0.0)
    return np.clip(part, min(low, 0.0), high).astype(dtype)


def _short(shapes: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(str(shape) for shape in shapes[:4])
    return shown + (", ..." if len(shapes) > 4 else "")


def checked_weights(weights: ArrayLike | None, clients: int) -> NDArray[np.float64] | None:
    """Weights as clients reported them: one each, finite, none below zero.

    Raises:
        InvalidArgumentError: They are not.
    """
    if weights is None:
        return None
    values = np.asarray(weights)
    if values.dtype.kind not in "iuf" or values.shape != (clients,):
        raise InvalidArgumentError(
            f"Expected weights to hold one number for each of {clients:,} updates, got shape "
            f"{values.shape} and dtype {values.dtype}. A client that drops out takes its weight "
            "with it."
        )
    values = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0.0)))
    if wrong.size:
        raise InvalidArgumentError(
            f"Expected weights >= 0 and finite, got {values[wrong[0]]:g} of client "
            f"{int(wrong[0]):,}. Refuse what no client can have: a number of examples is not "
            "negative."
        )
    return values
