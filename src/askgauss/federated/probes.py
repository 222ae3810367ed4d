"""Rounds that never happen: a copy of the aggregator, and updates that must not upset it.

What probes say is published, and a copy of an aggregator has the generator of its real rounds: left
to it, the first of these would have the noise of the probes. So every probe gets the same coins,
and none of the run's where they can be found; what is told is a difference of two probes, in which
their noise cancels, on a grid as wide as what is left of it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss._rounded import on_grid, two_digits_up
from askgauss.canaries.base import Stream, random_stream
from askgauss.federated.updates import Form
from askgauss.witness import ProbeFacts

__all__ = ["probed"]

_CLIENTS, _FEWEST_CLIENTS = 256, 64
# Values that all updates of a probe may have together; beyond, clients share one array.
_MOST_VALUES = 20_000_000
_HEAVY = 1e6
_SMALL, _LARGE = 1e-3, 100.0
# Noise below this, in clip norms, is rounding.
_SILENT = 1e-6
# Coordinates without which noise cannot be measured from one release.
_FEWEST_VALUES = 100


def probed(
    aggregate: Any,
    form: Form,
    *,
    call: Callable[[Any, list[Any], list[float] | None], Any],
    clip_norm: Callable[[Any], float],
    divisor: Callable[[NDArray[np.float64] | None, int], float],
    constant: float | None,
    weighted: bool,
    adaptive: bool,
    seed: int,
) -> ProbeFacts:
    """What copies of an aggregator do with odd updates; itself is left as it is.

    Args:
        aggregate: What is copied.
        form: The form of its updates.
        call: Calls a copy with updates and weights; returns the mean.
        clip_norm: Reads the clip norm of a copy.
        divisor: What turns a mean into the sum that the noise assumes.
        constant: That number, where it does not depend on the round.
        weighted: Whether clients report weights.
        adaptive: Whether the clip norm may change.
        seed: Root of the audit's random choices: of it grow the coins of the copies.
    """
    try:
        copied = copy.deepcopy(aggregate)
    except (TypeError, ValueError, RuntimeError, AttributeError, copy.Error) as error:
        return ProbeFacts(unchecked=f"an aggregator that can be copied ({type(error).__name__})")
    if copied is aggregate:
        # Copies of a function share what it remembers.
        return ProbeFacts(
            unchecked="an aggregator that can be copied: an object with __call__, or a method of "
            "one, and no plain function"
        )
    state = np.random.get_state()  # noqa: NPY002  (frameworks draw their noise from it)
    try:
        with np.errstate(all="ignore"):
            probe = _Probe(aggregate, form, call, clip_norm, divisor, constant, weighted, seed)
            return probe.facts(adaptive)
    finally:
        np.random.set_state(state)  # noqa: NPY002


class _Probe:
    def __init__(
        self,
        aggregate: Any,
        form: Form,
        call: Callable[[Any, list[Any], list[float] | None], Any],
        clip_norm: Callable[[Any], float],
        divisor: Callable[[NDArray[np.float64] | None, int], float],
        constant: float | None,
        weighted: bool,
        seed: int,
    ) -> None:
        self._aggregate, self._form, self._call = aggregate, form, call
        self._clip_norm, self._divisor, self._weighted = clip_norm, divisor, weighted
        room = max(_FEWEST_CLIENTS, min(_CLIENTS, _MOST_VALUES // form.dimension))
        self._clients = room if constant is None else max(2, round(constant))
        self._norm = clip_norm(aggregate)
        self._coins = int(random_stream(seed, Stream.PROBES).integers(2**32))

    def _many(self, clients: int, size: float) -> list[Any]:
        """Clients whose updates all have this norm, in clip norms."""
        value = size * self._norm / math.sqrt(self._form.dimension)
        if clients * self._form.dimension > _MOST_VALUES:
            return [self._form.filled(value)] * clients
        return [self._form.filled(value) for _ in range(clients)]

    def _copy(self) -> Any:
        """A copy with coins of its own, the same for every probe."""
        copies: dict[int, Any] = {}
        copied = copy.deepcopy(self._aggregate, copies)
        for item in list(copies.values()):
            _seed(item, self._coins)
        np.random.seed(self._coins)  # noqa: NPY002
        return copied

    def _release(
        self, updates: list[Any], weights: list[float] | None = None
    ) -> tuple[NDArray[np.float64] | str, Any]:
        """The released sum of a fresh copy, flat, or the name of what was raised; and the copy."""
        copied = self._copy()
        if weights is None and self._weighted:
            weights = [1.0] * len(updates)
        try:
            mean = self._call(copied, updates, weights)
        except Exception as error:  # noqa: BLE001  (whatever it raises is what is asked for)
            return type(error).__name__, copied
        if mean is None:
            return "nothing released", copied
        flat = np.concatenate([np.ravel(part) for part in self._form.parts(mean, "the mean")])
        told = None if weights is None else np.asarray(weights, dtype=np.float64)
        return flat.astype(np.float64) * self._divisor(told, len(updates)) / self._norm, copied

    def facts(self, adaptive: bool) -> ProbeFacts:
        plain, _ = self._release(self._many(self._clients, _SMALL))
        if isinstance(plain, str):
            return ProbeFacts(
                unchecked=f"an aggregator that takes {self._clients:,} small updates ({plain})"
            )
        found = ProbeFacts(clients=self._clients, with_nan=self._odd(math.nan), zero=self._odd(0.0))
        if self._weighted:
            found = self._heavy(found, plain)
        if plain.size >= _FEWEST_VALUES and plain.std() > _SILENT:
            found = self._spread(found, plain)
        return self._direction(found) if adaptive else found

    def _odd(self, value: float) -> str:
        odd = self._form.filled(value, at=0)
        released, _ = self._release([odd, *self._many(self._clients - 1, _SMALL)])
        if isinstance(released, str):
            return released
        return "finite" if np.isfinite(released).all() else "nan"

    def _heavy(self, found: ProbeFacts, plain: NDArray[np.float64]) -> ProbeFacts:
        heavy = self._form.filled(_LARGE * self._norm, at=0)
        weights = [_HEAVY] + [1.0] * (self._clients - 1)
        released, _ = self._release([heavy, *self._many(self._clients - 1, _SMALL)], weights)
        if isinstance(released, str):
            return replace(found, heavy_refused=released)
        if released.size <= _FEWEST_VALUES or not np.isfinite([released, plain]).all():
            return found
        left = _without_common_noise(released, plain)
        rest = left[1:]
        error = two_digits_up(max(float(rest.std(ddof=1)), _SILENT))
        heavy = on_grid(float(left[0] - np.median(rest)), error, 1.0)
        return replace(found, heavy=heavy, heavy_error=error)

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
            norms.append(float(self._clip_norm(copied)) / self._norm)
        return replace(found, norm_if_above=norms[0], norm_if_below=norms[1])


def _seed(item: Any, coins: int) -> None:
    """Give a generator among the copied objects other coins than those of the run."""
    if isinstance(item, np.random.Generator):
        item = item.bit_generator
    if isinstance(item, np.random.BitGenerator):
        item.state = type(item)(coins).state
    elif isinstance(item, np.random.RandomState | random.Random):
        item.seed(coins)
    elif callable(getattr(item, "manual_seed", None)):
        item.manual_seed(coins)


def _without_common_noise(
    released: NDArray[np.float64], plain: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A probe without what the plain one has of the same noise, whatever its scale.

    All of it where both had the same coins; where they had not, nothing to speak of.
    """
    # The first entry is where the probes differ by more than their noise.
    common, noise = plain - plain[1:].mean(), released[1:] - released[1:].mean()
    square = float(common[1:] @ common[1:])
    if square <= _SILENT**2 * common.size:
        return released
    return np.asarray(released - float(common[1:] @ noise) / square * common)
