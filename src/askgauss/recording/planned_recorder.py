"""What recorders of correlated noise share: a plan, its steps in order, and none by halves."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from numpy.typing import ArrayLike

from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.files.checkpoint import Checkpointed
from askgauss.mechanisms.decorrelate.tree_pieces import Reader

__all__ = ["PlannedRecorder"]

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
