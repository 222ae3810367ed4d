"""Probes: rounds of a copy of the aggregator, with updates that must not upset it.

What probes find is published, and a copy of an aggregator has the generator of its real rounds:
left alone, the first of these would have the noise of the probes. So generators of a copy are
seeded anew where they can be found, alike for every probe; published is a difference of two probes,
in which their noise cancels, on a grid as wide as what is left of it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries.canary_set import Stream, random_stream
from askgauss.federated.updates import Form
from askgauss.recording.facts import ProbeFacts, ProbeReading
from askgauss.stats.rounding import on_grid, scale_on_grid, two_digits_up

__all__ = ["PROBED_SIZES", "Probe"]

_CLIENTS, _FEWEST_CLIENTS = 256, 64
# Values that all updates of a probe may have together; beyond, clients share one array.
_MOST_VALUES = 20_000_000
_HEAVY = 1e6
_SMALL, _LARGE = 1e-3, 100.0
# Norms at which clipping is tried, in clip norms. Canaries of a run have them too.
PROBED_SIZES = (1.01, 1.5, 3.0, 10.0, 100.0, 1000.0)
# A norm whose square is none in half precision, whatever the clip norm.
_OVERFLOWS = 1000.0
_HALF = np.dtype(np.float16)
# Ways to send an update: its norm, whether it is spread, and its numbers if not the run's own.
_WAYS: tuple[tuple[float, bool, np.dtype[Any] | None], ...] = tuple(
    (size, spread, dtype)
    for size, dtype in (
        *((size, None) for size in PROBED_SIZES),
        (math.inf, None),
        (math.inf, _HALF),
    )
    for spread in (True, False)
)
# Where the noise of two probes does not cancel, each way to send is tried alone.
_SHARP = 0.02
# Noise below this, in clip norms, is rounding.
_SILENT = 1e-6
# Coordinates without which noise cannot be measured from one release.
_FEWEST_VALUES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """An update that some clients of a probe send."""

    size: float
    way: str
    update: Any
    # What it is a multiple of, as one vector.
    direction: NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Probe:
    """What copies of an aggregator do with odd updates; the aggregator is left as it is.

    Args:
        aggregate: What is copied.
        form: The form of its updates.
        call: Calls a copy with updates and weights; returns the mean.
        clip_norm: Reads the clip norm of a copy.
        divisor: What turns a mean into the sum that the noise assumes.
        constant: That number, where it does not depend on the round.
        weighted: Whether clients report weights.
        adaptive: Whether the clip norm may change.
        seed: Root of the audit's random choices, and of the generators of the copies.
    """

    aggregate: Any
    form: Form
    call: Callable[[Any, list[Any], list[float] | None], Any]
    clip_norm: Callable[[Any], float]
    divisor: Callable[[NDArray[np.float64] | None, int], float]
    constant: float | None
    weighted: bool
    adaptive: bool
    seed: int
    _clients: int = field(init=False)
    _norm: float = field(init=False)
    _stream: np.random.Generator = field(init=False)
    _copy_seed: int = field(init=False)

    def facts(self) -> ProbeFacts:
        """Probe copies of the aggregator, where it can be copied."""
        try:
            copied = copy.deepcopy(self.aggregate)
        except (TypeError, ValueError, RuntimeError, AttributeError, copy.Error) as error:
            return ProbeFacts(
                unchecked=f"an aggregator that can be copied ({type(error).__name__})"
            )
        if copied is self.aggregate:
            # Copies of a function share what it remembers.
            return ProbeFacts(
                unchecked="an aggregator that can be copied: an object with __call__, or a method "
                "of one, and no plain function"
            )
        state = np.random.get_state()  # noqa: NPY002  (frameworks draw their noise from it)
        try:
            with np.errstate(all="ignore"):
                return self._probed()
        finally:
            np.random.set_state(state)  # noqa: NPY002

    def _probed(self) -> ProbeFacts:
        room = max(_FEWEST_CLIENTS, min(_CLIENTS, _MOST_VALUES // self.form.dimension))
        self._clients = room if self.constant is None else max(2, round(self.constant))
        self._norm = self.clip_norm(self.aggregate)
        self._stream = random_stream(self.seed, Stream.PROBES)
        self._copy_seed = int(self._stream.integers(2**32))
        plain, _ = self._release(self._many(self._clients, _SMALL))
        if isinstance(plain, str):
            return ProbeFacts(
                unchecked=f"an aggregator that takes {self._clients:,} small updates ({plain})"
            )
        found = ProbeFacts(clients=self._clients, with_nan=self._odd(math.nan), zero=self._odd(0.0))
        if plain.size > _FEWEST_VALUES and np.isfinite(plain).all():
            if self.weighted:
                found = self._heavy(found, plain)
            found = self._counted(self._clipped(found, plain), plain)
        if plain.size >= _FEWEST_VALUES and plain.std() > _SILENT:
            found = self._spread(found, plain)
        return self._direction(found) if self.adaptive else found

    def _many(self, clients: int, size: float) -> list[Any]:
        """Clients whose updates all have this norm, in clip norms."""
        value = size * self._norm / math.sqrt(self.form.dimension)
        if clients * self.form.dimension > _MOST_VALUES:
            return [self.form.filled(value)] * clients
        return [self.form.filled(value) for _ in range(clients)]

    def _copy(self) -> Any:
        """A copy whose generators are seeded anew, alike for every probe."""
        copies: dict[int, Any] = {}
        copied = copy.deepcopy(self.aggregate, copies)
        for item in list(copies.values()):
            _reseed(item, self._copy_seed)
        np.random.seed(self._copy_seed)  # noqa: NPY002
        return copied

    def _release(
        self, updates: list[Any], weights: list[float] | None = None
    ) -> tuple[NDArray[np.float64] | str, Any]:
        """The released sum of a fresh copy, flat, or the name of what was raised; and the copy."""
        copied = self._copy()
        if weights is None and self.weighted:
            weights = [1.0] * len(updates)
        try:
            mean = self.call(copied, updates, weights)
        except Exception as error:  # noqa: BLE001  (whatever it raises is what is asked for)
            return type(error).__name__, copied
        if mean is None:
            return "nothing released", copied
        flat = np.concatenate([np.ravel(part) for part in self.form.parts(mean, "the mean")])
        stated = None if weights is None else np.asarray(weights, dtype=np.float64)
        return flat.astype(np.float64) * self.divisor(stated, len(updates)) / self._norm, copied

    def _odd(self, value: float) -> str:
        odd = self.form.filled(value, at=0)
        released, _ = self._release([odd, *self._many(self._clients - 1, _SMALL)])
        if isinstance(released, str):
            return released
        return "finite" if np.isfinite(released).all() else "nan"

    def _heavy(self, found: ProbeFacts, plain: NDArray[np.float64]) -> ProbeFacts:
        heavy = self.form.filled(_LARGE * self._norm, at=0)
        weights = [_HEAVY] + [1.0] * (self._clients - 1)
        released, _ = self._release([heavy, *self._many(self._clients - 1, _SMALL)], weights)
        if isinstance(released, str):
            return replace(found, heavy_refused=released)
        read = _read_at(np.zeros(1, dtype=np.int64), released, plain)
        return found if read is None else replace(found, heavy=_reading(*read))

    def _counted(self, found: ProbeFacts, plain: NDArray[np.float64]) -> ProbeFacts:
        """What the client adds that counts most, each at a coordinate of its own."""
        many = min(self._clients, self.form.dimension - _FEWEST_VALUES)
        places = self._stream.choice(self.form.dimension, many, replace=False)
        far = [self.form.filled(_LARGE * self._norm, at=int(place)) for place in places]
        released, _ = self._release([*far, *self._many(self._clients - many, _SMALL)])
        read = None if isinstance(released, str) else _read_at(places, released, plain)
        return found if read is None else replace(found, counted=_reading(*read))

    def _clipped(self, found: ProbeFacts, plain: NDArray[np.float64]) -> ProbeFacts:
        """The most that an update adds which is to be clipped."""
        readings: list[tuple[ProbeReading, _Sent]] = []
        # As many ways at once as there are clients and as memory has room for.
        room = max(1, min(self._clients, _MOST_VALUES // (4 * self.form.dimension)))
        for start in range(0, len(_WAYS), room):
            together = [
                sent
                for way in _WAYS[start : start + room]
                if (sent := self._made(*way)) is not None
            ]
            read = self._sent(together, plain) if together else []
            if read is not None and all(item.error <= _SHARP for item in read):
                readings += zip(read, together, strict=True)
                continue
            # One by one where one of them spoils the others, or where noise does not cancel.
            for sent in together:
                alone = self._sent([sent], plain)
                if alone is None:
                    found = replace(found, overflowed=found.overflowed or self._after(sent))
                else:
                    readings.append((alone[0], sent))
        if not readings:
            return found
        # By the noise of the same release: one that is scaled up as a whole is no fault.
        most, sent = max(
            readings,
            key=lambda item: (
                (item[0].added - 3.0 * item[0].error)
                / (item[0].noise if item[0].noise > _SILENT else 1.0)
            ),
        )
        return replace(
            found,
            clipped=most,
            clipped_size=sent.size,
            clipped_way=sent.way,
            clipped_tried=len(readings),
        )

    def _made(self, size: float, spread: bool, dtype: np.dtype[Any] | None) -> _Sent | None:
        """An update of this norm, in clip norms; None where its numbers are too coarse for it."""
        form = self.form
        length = size * self._norm
        if math.isinf(size):
            length = max(_OVERFLOWS, PROBED_SIZES[-1] * self._norm)
        if spread:
            flat = length * form.evenly() * self._stream.choice((-1.0, 1.0), form.dimension)
        else:
            flat = np.zeros(form.dimension)
            flat[self._stream.integers(form.dimension)] = length
        update = form.shaped(flat, dtype)
        flat = form.thinned(form.parts(update, "a probe"), 1)
        length = float(np.linalg.norm(flat))
        if not length > self._norm:
            return None
        way = "spread over all arrays" if spread else "at one coordinate"
        return _Sent(
            size=length / self._norm,
            way=way if dtype is None else f"{way}, in half precision",
            update=update,
            direction=flat / length,
        )

    def _sent(self, sent: Sequence[_Sent], plain: NDArray[np.float64]) -> list[ProbeReading] | None:
        """What a client adds along its update, of each kind; None where that cannot be read."""
        senders = [sent[index % len(sent)] for index in range(self._clients)]
        released, _ = self._release([item.update for item in senders])
        if isinstance(released, str) or not np.isfinite(released).all():
            return None
        numbers = np.bincount(np.arange(self._clients) % len(sent), minlength=len(sent))
        fit = _fitted([item.direction for item in sent], released, plain)
        if fit is None:
            return None
        along, errors, noise = fit
        return [
            _reading(float(value) / count, float(error) / count, noise, released.size)
            for value, error, count in zip(along, errors, numbers, strict=True)
        ]

    def _after(self, sent: _Sent) -> str:
        """The way to send after which a release is not finite; empty where it was refused."""
        released, _ = self._release([sent.update] * self._clients)
        return "" if isinstance(released, str) else f"{sent.size:,.3g} clip norms {sent.way}"

    def _spread(self, found: ProbeFacts, few: NDArray[np.float64]) -> ProbeFacts:
        many, _ = self._release(self._many(4 * self._clients, _SMALL))
        if isinstance(many, str) or not np.isfinite(many).all():
            return found
        ratio = float(many.std() / few.std())
        error = two_digits_up(ratio / math.sqrt(few.size))
        return replace(found, spread=on_grid(ratio, error, 1.0), spread_error=error)

    def _direction(self, found: ProbeFacts) -> ProbeFacts:
        norms = []
        for size in (_LARGE, _SMALL):
            released, copied = self._release(self._many(self._clients, size))
            if isinstance(released, str):
                return found
            norms.append(float(self.clip_norm(copied)) / self._norm)
        return replace(found, norm_if_above=norms[0], norm_if_below=norms[1])


def _reseed(item: Any, seed: int) -> None:
    """Seed a generator among the copied objects anew: not as in the run."""
    if isinstance(item, np.random.Generator):
        item = item.bit_generator
    if isinstance(item, np.random.BitGenerator):
        item.state = type(item)(seed).state
    elif isinstance(item, np.random.RandomState | random.Random):
        item.seed(seed)
    elif callable(getattr(item, "manual_seed", None)):
        item.manual_seed(seed)


def _fitted(
    directions: Sequence[NDArray[np.float64]],
    released: NDArray[np.float64],
    plain: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    """How far a release lies along directions, the errors of that, and the noise that it has.

    What the plain probe has of the same noise is taken off, whatever its scale: all of it where
    both had the same seed; where they had not, nothing to speak of.
    """
    own = np.column_stack([*directions, np.ones(plain.size)])
    common = plain - plain.mean()
    columns = np.column_stack([own, common]) if common.std() > _SILENT else own
    scale = np.linalg.norm(columns, axis=0)
    inverse = np.linalg.pinv((columns / scale).T @ (columns / scale))
    fit = inverse @ ((columns / scale).T @ released)
    left = released - (columns / scale) @ fit
    freedom = plain.size - columns.shape[1]
    if freedom < 1:
        return None
    deviation = math.sqrt(float(left @ left) / freedom)
    number = len(directions)
    along = (fit / scale)[:number]
    errors = deviation * np.sqrt(np.diag(inverse)[:number]) / scale[:number]
    noise = released - own @ (fit / scale)[: number + 1]
    return along, errors, float(noise.std())


def _read_at(
    places: NDArray[np.int64], released: NDArray[np.float64], plain: NDArray[np.float64]
) -> tuple[float, float, float, int] | None:
    """The most at these coordinates, its error, the noise next to them, and of how many values."""
    others = np.ones(plain.size, dtype=np.bool_)
    others[places] = False
    if not np.isfinite(released).all():
        return None
    common = plain - plain[others].mean()
    square, share = float(common[others] @ common[others]), 0.0
    if square > _SILENT**2 * common.size:
        share = float(common[others] @ released[others]) / square
    left = released - share * common
    return (
        float((left[places] - np.median(left[others])).max()),
        float(left[others].std(ddof=1)),
        float(released[others].std()),
        int(np.count_nonzero(others)),
    )


def _reading(added: float, error: float, noise: float, values: int) -> ProbeReading:
    """A reading, rounded for publication."""
    error = two_digits_up(max(error, _SILENT))
    return ProbeReading(
        added=on_grid(added, error, 1.0),
        error=error,
        noise=scale_on_grid(noise, values) if noise > _SILENT else 0.0,
        values=values,
    )
