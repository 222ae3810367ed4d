"""What all recorders share: the order of steps, their rows, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss.exceptions import FileFormatError, InvalidArgumentError, RecordingError
from askgauss.files.checkpoint import Checkpointed
from askgauss.mechanisms.decorrelate import Reader
from askgauss.sampling import Scheme

__all__ = [
    "MARKS",
    "PlannedRecorder",
    "Progress",
    "Rows",
    "apart",
    "by_tensor",
    "halvings",
    "numbers",
    "part_of",
    "saved_numbers",
]

# Canaries worked on at once: their sums stay in the cache from one operation to the next, and dot
# products of so few are not handed to other threads.
_CHUNK = 1 << 13
# Numbers of a step that are kept in one row together, since every row costs time.
MARKS = (
    "least",
    "most",
    "planted_least",
    "planted_most",
    "silent",
    "planted_silent",
    "carried",
    "batch_size",
)


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


def apart(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rows with the numbers that are kept together each by itself."""
    others = {name: array for name, array in rows.items() if name != "marks"}
    return others | dict(zip(MARKS, np.ascontiguousarray(rows["marks"].T), strict=True))


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


def saved_numbers(state: dict[str, Any], name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A copy of one array of a checkpoint."""
    given = state.get(name)
    if not isinstance(given, np.ndarray) or given.dtype != np.float64 or given.shape != shape:
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        raise FileFormatError(
            f"Expected {name} of the checkpoint to be float64 {shape}, got {found[:80]}. "
            "Load an older checkpoint."
        )
    return given.copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The plain values of a checkpoint."""

    fingerprint: str
    sampling_rate: float | None
    clip_norm: float
    own_coin: bool | None
    background: Literal["known", "unknown"] | None
    watched: int | None
    coin: dict[str, Any]
    stored: bool = False
    run: str | None = None
    stored_check: str | None = None
    monitor: dict[str, Any] | None = None
    scheme: Scheme | None = None
    resumed: tuple[int, ...] = ()


def part_of(
    state: dict[str, Any], name: str, like: NDArray[Any], length: int | None = None
) -> NDArray[Any]:
    """A copy of one array of a checkpoint, of the type and width of another."""
    given = state.get(name)
    if not (
        isinstance(given, np.ndarray)
        and given.dtype == like.dtype
        and given.ndim == like.ndim
        and given.shape[1:] == like.shape[1:]
        and len(given) == (len(given) if length is None else length)
    ):
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        wanted = (len(like) if length is None else length, *like.shape[1:])
        raise FileFormatError(
            f"Expected {name} of the checkpoint to be {like.dtype} {wanted}, got {found[:80]}. "
            "Load an older checkpoint."
        )
    return given.copy()


Background = Literal["known", "unknown"]


class _Planned(Protocol):
    @property
    def steps(self) -> int: ...


class _Saved(Protocol):
    """How far a checkpoint says that a run had come."""

    @property
    def step(self) -> int: ...

    @property
    def asked(self) -> bool: ...

    @property
    def background(self) -> Background | None: ...

    @property
    def open(self) -> int: ...

    @property
    def resumed(self) -> tuple[int, ...]: ...


class PlannedRecorder(Checkpointed):
    """The order of a run: asked who enters, then told what was released, as often as planned."""

    _plan: _Planned
    _reader: Reader

    def __init__(self) -> None:
        super().__init__()
        self._step = 0
        self._asked = False
        self._background: Background | None = None
        # The steps after which the run went on from a checkpoint.
        self._resumed: tuple[int, ...] = ()
        # False while a step is being added: an interruption there leaves sums that mean nothing.
        self._whole = True

    @property
    def steps(self) -> int:
        """Number of steps observed so far."""
        return self._step

    def _check_next(self, step: int | None) -> None:
        self._check_whole()
        self.check_step(step, self._step)
        if self._step >= self._plan.steps:
            raise RecordingError(
                f"The mechanism was planned and accounted for {self._plan.steps} steps, and all "
                "were observed. Plan for more steps before training."
            )

    def _check_whole(self) -> None:
        if not self._whole:
            raise RecordingError(
                f"Recording step {self._step + 1} was interrupted half way: its sums mean nothing. "
                "Load the last checkpoint into a new recorder."
            )

    def _check_observed(self, background: ArrayLike | None, step: int | None) -> Background:
        """Refuse a step that does not fit those before it; whether its background is known."""
        self._check_next(step)
        if not self._asked:
            raise RecordingError(
                "observe() came before sample(): ask which canaries enter this step first."
            )
        known: Background = "unknown" if background is None else "known"
        if self._background not in (None, known):
            raise RecordingError(
                f"Expected the background to stay {self._background}, got it {known} in step "
                f"{self._step + 1}. Give it in every step or in none."
            )
        return known

    def _observed(self, known: Background) -> None:
        """The step has been added, all of it."""
        self._background, self._asked = known, False
        self._step += 1
        self._whole = True

    def _check_progress(self, progress: _Saved, **mine: Any) -> None:
        """Refuse a checkpoint of another run, or of no run at all.

        Args:
            progress: What it says.
            mine: What it has to say of this run.
        """
        for name, own in mine.items():
            theirs = getattr(progress, name)
            if theirs != own:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {own!r}. Start with the same canaries, seed and settings."
                )
        if not 0 <= progress.step <= self._plan.steps:
            raise FileFormatError(f"Expected step up to {self._plan.steps}, got {progress.step}.")
        if progress.open != (remembered := self._reader.remembered(progress.step)):
            raise FileFormatError(
                f"Expected {remembered} open values after step {progress.step}, got "
                f"{progress.open}. Load an older checkpoint."
            )

    def _go_on(self, progress: _Saved) -> None:
        self._step, self._asked = progress.step, progress.asked
        self._background = progress.background
        self._resumed = (*progress.resumed, progress.step)
        self._whole = True
