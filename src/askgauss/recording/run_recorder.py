"""What all recorders share: settings of a run, the order of its steps, and checkpoints."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from askgauss import _validate
from askgauss.canaries import Canaries
from askgauss.exceptions import FileFormatError, InvalidArgumentError, RecordingError
from askgauss.files import codec
from askgauss.files.checkpoint import Checkpointed
from askgauss.recording.facts import RunFacts

__all__ = [
    "Background",
    "Progress",
    "Rows",
    "RunRecorder",
    "by_tensor",
    "halvings",
    "numbers",
    "saved_array",
    "saved_canaries",
]

Background = Literal["known", "unknown"]

# Canaries worked on at once: their sums stay in the cache from one operation to the next, and dot
# products of so few are not handed to other threads.
_CHUNK = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(codec.Facts):
    """The plain values of a checkpoint of any recorder.

    Attributes:
        settings: What has to be the same in the run that resumes, as JSON values.
        run: The identity of the run.
        step: Steps observed.
        background: Whether the background is known; None before the first step.
        resumed: Steps after which the run was resumed from a checkpoint.
        asked: Whether `sample` was called for the step to come.
        own_draws: Whether the recorder draws the canaries; None before the first step.
        watched: Number of watched coordinates; None before the first step.
        generator: State of the generator that draws canaries.
        stored: Whether there is a step store.
        stored_check: The check of its last step.
        monitor: State of the monitor.
        recorder: Plain values of the recorder that another one stands in front of.
    """

    settings: dict[str, Any]
    run: str
    step: int
    background: Background | None = None
    resumed: tuple[int, ...] = ()
    asked: bool = False
    own_draws: bool | None = None
    watched: int | None = None
    generator: dict[str, Any] = field(default_factory=dict)
    stored: bool = False
    stored_check: str | None = None
    monitor: dict[str, Any] | None = None
    recorder: dict[str, Any] = field(default_factory=dict)


class RunRecorder(Checkpointed):
    """A recorder: `sample` says who is included, `observe` takes what was released.

    Args:
        canaries: The canaries.
        clip_norm: Norm of one included canary.
        noise_multiplier: The noise multiplier the run claims.

    Raises:
        InvalidArgumentError: An argument is out of its range.
    """

    _canary_kind: ClassVar[Any] = Canaries

    def __init__(self, canaries: Any, *, clip_norm: float, noise_multiplier: float | None) -> None:
        super().__init__()
        if not isinstance(canaries, self._canary_kind):
            raise _validate.fail(
                "canaries", canaries, "to be canaries", "Make them with DiracCanaries()."
            )
        _validate.magnitude(clip_norm=clip_norm)
        if noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
        self._clip_norm = float(clip_norm)
        self._noise_multiplier = None if noise_multiplier is None else float(noise_multiplier)
        self._background: Background | None = None
        # False while a step is being added: an interruption there leaves incomplete sums.
        self._whole = True
        self._run = secrets.token_hex(16)
        self._resumed: tuple[int, ...] = ()

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps observed so far."""

    @property
    def run(self) -> str:
        """The identity of the run, drawn when it is begun and kept through checkpoints."""
        return self._run

    @property
    def clip_norm(self) -> float:
        """Norm of one included canary, where `observe` is not given another."""
        return self._clip_norm

    def _check_whole(self) -> None:
        if not self._whole:
            raise RecordingError(
                "Recording a step was interrupted, so that the sums are incomplete. Load the last "
                "checkpoint into a new recorder."
            )

    def _check_background(self, background: object) -> Background:
        """Whether the background of a step is known, as in those before it."""
        known: Background = "unknown" if background is None else "known"
        if self._background not in (None, known):
            raise RecordingError(
                f"Expected the background to stay {self._background}, got it {known} in step "
                f"{self.steps + 1}. Give it in every step or in none."
            )
        return known

    def _common_facts(self, canaries: Canaries) -> RunFacts:
        """What every recorder knows of its run."""
        return RunFacts(
            background=self._background or "unknown",
            fair_coins=canaries.fair_coins,
            noise_multiplier=self._noise_multiplier,
            tensors=tuple(f"tensor {index}" for index in range(len(canaries.tensor_sizes))),
            seed=canaries.root_seed,
            run=self._run,
            resumed=self._resumed,
        )

    # ---------------------------------------------------------------------------- checkpoints

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What has to be the same in the run that resumes."""

    def _progress(self, **more: Any) -> dict[str, Any]:
        """The plain values of a checkpoint."""
        progress = Progress(
            settings=self._settings(),
            run=self._run,
            step=self.steps,
            background=self._background,
            resumed=self._resumed,
            **more,
        )
        plain: dict[str, Any] = codec.to_plain(progress)
        return plain

    def _read_progress(self, state: dict[str, Any]) -> Progress:
        """The plain values of a checkpoint of this run; any other is refused."""
        progress: Progress = codec.from_plain(Progress, state.get("state"), "state")
        for name, mine in codec.to_plain(self._settings()).items():
            theirs = progress.settings.get(name)
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Start with the same canaries, seed and settings."
                )
        if progress.step and progress.background is None:
            raise FileFormatError("Expected the checkpoint to say whether background was known.")
        return progress

    def _resume(self, progress: Progress) -> None:
        """Continue from these values; arrays have been checked before."""
        self._run, self._background = progress.run, progress.background
        self._resumed = (*progress.resumed, progress.step)
        self._whole = True


class Rows:
    """Rows that arrive one by one, in an array that doubles when it is full."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self._array = rows
        self._count = len(rows)

    @classmethod
    def empty(cls, dtype: Any, *width: int) -> Rows:
        """No rows yet."""
        return cls(np.empty((0, *width), dtype=dtype))

    def append(self, row: Any) -> None:
        """Add one row."""
        if self._count == len(self._array):
            grown = np.empty((max(2 * self._count, 64), *self._array.shape[1:]), self._array.dtype)
            grown[: self._count] = self._array
            self._array = grown
        self._array[self._count] = row
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def last(self) -> Any:
        """The newest row."""
        return self._array[self._count - 1]

    def rows(self) -> NDArray[Any]:
        """A copy of all rows."""
        return self.view().copy()

    def view(self) -> NDArray[Any]:
        """The rows themselves, until the next one is added."""
        return self._array[: self._count]

    def columns(self, chosen: NDArray[np.bool_]) -> Rows:
        """The same rows with some of their columns."""
        return Rows(self._array[: self._count, chosen])


def halvings(count: int) -> Iterator[int]:
    """A number, half of it, and so on down to one."""
    while count > 1:
        yield count
        count = -(-count // 2)
    yield count


def by_tensor(
    tensor: NDArray[np.int64],
) -> Iterator[tuple[slice, NDArray[np.int64] | slice, NDArray[np.int64], NDArray[np.int64]]]:
    """Chunks of canaries; for each its order by tensor, where groups start in it, and which."""
    for start in range(0, tensor.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        groups, counts = np.unique(tensor[part], return_counts=True)
        order = slice(None) if groups.size == 1 else np.argsort(tensor[part], kind="stable")
        yield part, order, np.cumsum(counts) - counts, groups


def numbers(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """What was read along each canary, one column each.

    Raises:
        InvalidArgumentError: It has another shape or type.
    """
    values = np.asarray(given)
    if values.dtype.kind not in "biuf" or values.shape != shape:
        raise InvalidArgumentError(
            f"Expected {name} to be numbers of shape {shape}, one column a canary, got shape "
            f"{values.shape} and dtype {values.dtype}. Read it with canaries.project()."
        )
    return values


def saved_array(
    state: dict[str, Any], name: str, dtype: DTypeLike, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """A copy of one array of a checkpoint; None in ``shape`` is a side of any length.

    Raises:
        FileFormatError: It is missing, or of another type or shape.
    """
    given = state.get(name)
    if (
        isinstance(given, np.ndarray)
        and given.dtype == dtype
        and given.ndim == len(shape)
        and all(side in (None, found) for side, found in zip(shape, given.shape, strict=True))
    ):
        return given.copy()
    found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
    raise FileFormatError(
        f"Expected {name} of the checkpoint to be {np.dtype(dtype)} {shape}, got {found[:80]}. "
        "Load an older checkpoint."
    )


def saved_canaries(state: dict[str, Any], name: str, canaries: Canaries) -> NDArray[np.int64]:
    """Indices of present canaries in a checkpoint, each once.

    Raises:
        FileFormatError: They are something else.
    """
    found = saved_array(state, name, np.int64, (None,))
    if not np.isin(found, np.flatnonzero(canaries.member)).all() or np.any(np.diff(found) <= 0):
        raise FileFormatError(
            f"Expected {name} of the checkpoint to name present canaries, each once and in order. "
            "Load an older checkpoint."
        )
    return found
