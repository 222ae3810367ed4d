"""The recorder: reads what each step released and reduces it to a transcript as it goes by."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _files, _plain, _validate
from askgauss.canaries import PlacedCanaries, Stream, random_stream
from askgauss.exceptions import InvalidArgumentError, RecordingError
from askgauss.transcript import CanarySums, RunFacts, StepSums, Transcript

__all__ = ["Recorder"]

_KIND = "askgauss-recorder"
_SCHEMA = 1
_KEPT = 256


class _Rows:
    """Rows that arrive one by one, in an array that doubles when it is full."""

    def __init__(self, width: int | None, dtype: Any, rows: NDArray[Any] | None = None) -> None:
        shape = (64,) if width is None else (64, width)
        self._array = np.empty(shape, dtype=dtype) if rows is None else np.array(rows, dtype=dtype)
        self._count = 0 if rows is None else len(rows)

    def append(self, row: Any) -> None:
        if self._count == len(self._array):
            grown = np.empty((max(2 * self._count, 64), *self._array.shape[1:]), self._array.dtype)
            grown[: self._count] = self._array
            self._array = grown
        self._array[self._count] = row
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def rows(self) -> NDArray[Any]:
        return self._array[: self._count].copy()


class Recorder:
    """Records a run step by step, whatever framework runs it.

    A step is: ask `sample` which canaries to plant, add them to the clean sum, let the mechanism add
    its noise, then hand what it released to `observe`. A sampler of your own may choose instead; say
    then who was planted.

    Memory is a few numbers a canary and a few rows a step.

    Args:
        canaries: Who is planted where.
        sampling_rate: Probability that a present canary is planted in a step. Needed unless your own
            sampler plants, in which case it stays None.
        clip_norm: Norm of one planted canary; `observe` may give another for its step.
        noise_multiplier: The noise multiplier the run claims, for the findings.

    Example:
        >>> import numpy as np, askgauss as ag
        >>> canaries = ag.DiracCanaries(present=20, absent=20, dimension=1000, seed=0)
        >>> recorder = ag.Recorder(canaries, sampling_rate=0.5, clip_norm=1.0)
        >>> noise = np.random.default_rng(1)
        >>> for _ in range(10):
        ...     clean = np.zeros(1000)
        ...     background = canaries.project(clean)
        ...     canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        ...     released = clean + noise.normal(0, 2.0, 1000)
        ...     recorder.observe(canaries.project(released), background=background)
        >>> recorder.transcript()
        Transcript(steps=10, present=20, absent=20, background='known')
    """

    def __init__(
        self,
        canaries: PlacedCanaries,
        *,
        sampling_rate: float | None = None,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
    ) -> None:
        if sampling_rate is not None:
            _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
        _validate.positive(clip_norm=clip_norm)
        self._canaries = canaries
        self._sampling_rate = sampling_rate
        self._clip_norm = float(clip_norm)
        self._noise_multiplier = noise_multiplier
        self._coin = random_stream(canaries.root_seed, Stream.PLANTING)
        self._present = np.flatnonzero(canaries.member)
        self._drawn: NDArray[np.int64] | None = None
        self._own_coin: bool | None = None
        self._background: Literal["known", "unknown"] | None = None
        self._tensors = int(canaries.tensor.max(initial=0)) + 1
        size, kept = canaries.size, random_stream(canaries.root_seed, Stream.KEPT)
        self._kept = np.sort(kept.permutation(size)[: min(_KEPT, size)])
        self._sums = {
            "planted": np.zeros(size, dtype=np.int64),
            **{
                name: np.zeros(size)
                for name in ("total", "square", "planted_total", "planted_square", "lag")
            },
        }
        self._previous = np.zeros(size)
        self._rows = {
            "clip_norm": _Rows(None, np.float64),
            "noise_multiplier": _Rows(None, np.float64),
            "planted": _Rows(self._tensors, np.int64),
            **{
                name: _Rows(self._tensors, np.float64)
                for name in ("planted_total", "planted_square", "total", "square")
            },
            "kept_values": _Rows(self._kept.size, np.float64),
            "kept_planted": _Rows(self._kept.size, np.bool_),
            "watch_values": _Rows(0, np.float64),
        }
        self._watched: int | None = None

    @property
    def steps(self) -> int:
        """Number of steps observed so far."""
        return len(self._rows["clip_norm"])

    def sample(self) -> NDArray[np.int64]:
        """Indices of the canaries to plant in this step, by an independent coin for each.

        Raises:
            RecordingError: The last sample has not been observed yet.
        """
        if self._sampling_rate is None:
            raise RecordingError(
                "Expected sampling_rate to be given to the Recorder before sample(); or let your "
                "own sampler choose and pass planted= to observe()."
            )
        if self._drawn is not None:
            raise RecordingError("sample() was called twice for one step: observe() it first.")
        coins = self._coin.random(self._present.size)
        self._drawn = self._present[coins < self._sampling_rate]
        return self._drawn

    def observe(
        self,
        noisy_sum: ArrayLike,
        *,
        background: ArrayLike | None = None,
        planted: ArrayLike | None = None,
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        watch: ArrayLike | None = None,
    ) -> None:
        """Record what one step released.

        Args:
            noisy_sum: The released sum along each canary (`canaries.project`).
            background: The clean sum there, before anything was planted; None where unknown. Only
                valid with Poisson sampling of the other records.
            planted: Indices of the planted canaries, where your own sampler chose them.
            clip_norm: Norm of one planted canary in this step, if not the recorder's.
            noise_multiplier: Noise multiplier claimed for this step, if not the recorder's.
            watch: The released sum, less its clean value where that is known, at
                ``canaries.watch``.

        Raises:
            RecordingError: The step does not fit the ones before it. Nothing is recorded then.
        """
        values = self._vector("noisy_sum", noisy_sum)
        norm = self._clip_norm if clip_norm is None else float(clip_norm)
        _validate.positive(clip_norm=norm)
        known: Literal["known", "unknown"] = "unknown" if background is None else "known"
        if self._background not in (None, known):
            raise RecordingError(
                f"Expected the background to stay {self._background}, got it {known} in step "
                f"{self.steps + 1}. Give it in every step or in none."
            )
        if background is not None:
            values = values - self._vector("background", background)
        indices = self._planted_indices(planted)
        watched = self._watch_row(watch)
        values = values / norm
        self._background = known
        self._own_coin = planted is None
        self._drawn = None
        claimed = self._noise_multiplier if noise_multiplier is None else noise_multiplier
        self._rows["clip_norm"].append(norm)
        self._rows["noise_multiplier"].append(np.nan if claimed is None else claimed)
        self._add(values, indices, watched / norm)

    def _add(
        self,
        values: NDArray[np.float64],
        planted: NDArray[np.int64],
        watched: NDArray[np.float64],
    ) -> None:
        sums, rows = self._sums, self._rows
        tensor, squares = self._canaries.tensor, values * values
        chosen, chosen_squares = values[planted], squares[planted]
        sums["total"] += values
        sums["square"] += squares
        sums["planted"][planted] += 1
        sums["planted_total"][planted] += chosen
        sums["planted_square"][planted] += chosen_squares
        residual = values.copy()
        residual[planted] -= 1.0
        sums["lag"] += residual * self._previous
        self._previous = residual

        def by_tensor(indices: NDArray[np.int64], weights: NDArray[Any] | None) -> NDArray[Any]:
            return np.bincount(tensor[indices], weights=weights, minlength=self._tensors)

        everyone = slice(None)
        planted_total = by_tensor(planted, chosen)
        planted_square = by_tensor(planted, chosen_squares)
        rows["planted"].append(by_tensor(planted, None))
        rows["planted_total"].append(planted_total)
        rows["planted_square"].append(planted_square)
        rows["total"].append(by_tensor(everyone, values) - planted_total)  # type: ignore[arg-type]
        rows["square"].append(by_tensor(everyone, squares) - planted_square)  # type: ignore[arg-type]
        flags = np.zeros(values.size, dtype=np.bool_)
        flags[planted] = True
        rows["kept_values"].append(values[self._kept])
        rows["kept_planted"].append(flags[self._kept])
        rows["watch_values"].append(watched)

    def _vector(self, name: str, given: ArrayLike) -> NDArray[np.float64]:
        values = np.asarray(given, dtype=np.float64)
        if values.shape != (self._canaries.size,):
            raise InvalidArgumentError(
                f"Expected {name} to hold one number for each of {self._canaries.size} canaries, "
                f"got shape {values.shape}. Read it with canaries.project()."
            )
        return values

    def _planted_indices(self, planted: ArrayLike | None) -> NDArray[np.int64]:
        if self._own_coin not in (None, planted is None):
            raise RecordingError(
                "Expected every step to be sampled the same way: by sample(), or by planted=."
            )
        if planted is None:
            if self._drawn is None:
                raise RecordingError(
                    "observe() came before sample(): ask which canaries to plant first, or say "
                    "with planted= which ones your own sampler chose."
                )
            return self._drawn
        if self._drawn is not None:
            raise RecordingError("Expected planted=None after sample(), got a choice of your own.")
        indices = np.asarray(planted)
        if indices.size == 0:
            return np.zeros(0, dtype=np.int64)
        if indices.dtype.kind not in "iu" or indices.ndim != 1:
            raise InvalidArgumentError(
                f"Expected planted to be indices of canaries, got dtype {indices.dtype} and shape "
                f"{indices.shape}."
            )
        indices = indices.astype(np.int64)
        if indices.min() < 0 or indices.max() >= self._canaries.size:
            raise InvalidArgumentError(
                f"Expected planted in [0, {self._canaries.size}), got {indices.min()} to "
                f"{indices.max()}."
            )
        if np.unique(indices).size != indices.size:
            raise InvalidArgumentError("Expected planted to name each canary once, got repeats.")
        if not self._canaries.member[indices].all():
            absent = int(indices[~self._canaries.member[indices]][0])
            raise InvalidArgumentError(
                f"Expected planted to name present canaries only, got {absent}, which is absent."
            )
        return indices

    def _watch_row(self, watch: ArrayLike | None) -> NDArray[np.float64]:
        row = np.zeros(0) if watch is None else np.asarray(watch, dtype=np.float64)
        if row.ndim != 1 or row.size not in (0, self._canaries.watch.size):
            raise InvalidArgumentError(
                f"Expected watch to hold {self._canaries.watch.size} numbers, got shape "
                f"{row.shape}. Read the released sum at canaries.watch."
            )
        if self._watched is None:
            self._watched = row.size
            self._rows["watch_values"] = _Rows(row.size, np.float64)
        if row.size != self._watched:
            raise RecordingError("Expected watch in every step or in none.")
        return row

    def transcript(self) -> Transcript:
        """The transcript of the steps observed so far."""
        rows = {name: item.rows() for name, item in self._rows.items()}
        own_coin = self._own_coin is not False
        return Transcript(
            member=self._canaries.member,
            tensor=np.array(self._canaries.tensor),
            canaries=CanarySums(**{name: array.copy() for name, array in self._sums.items()}),
            steps=StepSums(**{name: rows.pop(name) for name in _STEP_FIELDS}),
            kept=self._kept.copy(),
            watch_tensor=np.array(self._canaries.watch_tensor)
            if self._watched
            else np.zeros(0, dtype=np.int64),
            facts=RunFacts(
                sampling_rate=self._sampling_rate,
                sampling="own coin" if own_coin else "user's sampler",
                poisson=own_coin,
                background=self._background or "unknown",
                fair_coins=self._canaries.fair_coins,
                noise_multiplier=self._noise_multiplier,
                tensors=tuple(f"tensor {index}" for index in range(self._tensors)),
                seed=self._canaries.root_seed,
            ),
            **rows,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart: arrays, and plain values under ``"state"``."""
        arrays: dict[str, Any] = {f"sums.{name}": item.copy() for name, item in self._sums.items()}
        arrays |= {f"rows.{name}": item.rows() for name, item in self._rows.items()}
        arrays["previous"] = self._previous.copy()
        if self._drawn is not None:
            arrays["drawn"] = self._drawn.copy()
        arrays["state"] = {
            "fingerprint": self._canaries.fingerprint(),
            "sampling_rate": self._sampling_rate,
            "clip_norm": self._clip_norm,
            "own_coin": self._own_coin,
            "background": self._background,
            "watched": self._watched,
            "coin": _integers_as_text(self._coin.bit_generator.state),
        }
        return arrays

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            RecordingError: The state belongs to other canaries, another rate or another clip norm.
        """
        plain = state["state"]
        for name, mine in (
            ("fingerprint", self._canaries.fingerprint()),
            ("sampling_rate", self._sampling_rate),
            ("clip_norm", self._clip_norm),
        ):
            if plain[name] != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {plain[name]!r} "
                    f"where this run has {mine!r}. Start the recorder with the same canaries, "
                    "seed and settings."
                )
        self._sums = {name: np.array(state[f"sums.{name}"]) for name in self._sums}
        self._rows = {
            name: _Rows(None, state[f"rows.{name}"].dtype, state[f"rows.{name}"])
            for name in self._rows
        }
        self._previous = np.array(state["previous"])
        self._drawn = np.array(state["drawn"]) if "drawn" in state else None
        self._own_coin = plain["own_coin"]
        self._background = plain["background"]
        self._watched = plain["watched"]
        self._coin.bit_generator.state = _text_as_integers(plain["coin"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, whole or not at all."""
        state = self.state_dict()
        plain = state.pop("state")
        _files.write_arrays(path, _KIND, _SCHEMA, state, {"state": _plain.to_plain(plain)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint that `save` wrote."""
        arrays, content = _files.read_arrays(path, _KIND, _SCHEMA)
        self.load_state_dict({**arrays, "state": content["state"]})


_STEP_FIELDS = tuple(item.name for item in fields(StepSums))


def _integers_as_text(state: Any) -> Any:
    """A generator's state with its 128-bit integers as text, which every JSON reader keeps whole."""
    if isinstance(state, dict):
        return {key: _integers_as_text(value) for key, value in state.items()}
    return f"int:{state}" if isinstance(state, int) else state


def _text_as_integers(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _text_as_integers(value) for key, value in state.items()}
    is_integer = isinstance(state, str) and state.startswith("int:")
    return int(state[4:]) if is_integer else state
