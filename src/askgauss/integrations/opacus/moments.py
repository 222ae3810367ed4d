"""Every moment of an audited Opacus run that an observer can follow, with its arguments.

An observer overrides the moments it needs and leaves the others alone. The audit holds a list of
observers (`askgauss.integrations.opacus.observers`) and calls each moment on those that override
it, in the order of the list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from askgauss.claims import PrivacyClaim
from askgauss.integrations.attachment import Attachment
from askgauss.monitor import Monitor
from askgauss.recording.transcript import Transcript

__all__ = ["AddedNoise", "Observer", "PrivateStep", "StepCount", "overriding"]


@dataclass(slots=True)
class StepCount:
    """Steps so far.

    Attributes:
        made: Those with noise.
        recorded: Those of them that were recorded; with examples, some may be skipped.
    """

    made: int = 0
    recorded: int = 0

    @property
    def number(self) -> int:
        """The step that is being made, counted from 1."""
        return self.made + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """Noise that was just added.

    Attributes:
        deviation: Its standard deviation as stated; 0 where this process adds none.
        noisy: The noisy sum over all ranks at the coordinates that are read; None where no
            coordinates are read.
        tensors: Indices of the parameters it was added to; None for all of them.
    """

    deviation: float
    noisy: Tensor | None = None
    tensors: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateStep:
    """A step between its noise and its observation, as its optimizer states it.

    Attributes:
        number: The step, counted from 1.
        clip_norm: Its clip norm.
        noise_multiplier: The noise multiplier of its gradients.
        divisor: What the noisy sum is divided by after the noise was added.
        scale: What the released gradient is multiplied by to get the noisy sum over all ranks.
        batch_size: Expected size of a batch; 0 where the sum is not divided.
        clean: The clipped sum at the coordinates that are read, without canaries and noise.
        batches: Batches it is made of.
        missing: Indices of the parameters that are frozen in it.
    """

    number: int
    clip_norm: float
    noise_multiplier: float
    divisor: float
    scale: float
    batch_size: float
    clean: Tensor
    batches: int
    missing: tuple[int, ...] = ()


class Observer:
    """Follows a run; what it does not override does nothing.

    Attributes:
        key: Under which `state` is kept in a checkpoint; empty where there is none.
        state_type: The type of `state`, by which a checkpoint is read.
    """

    key: ClassVar[str] = ""
    state_type: ClassVar[Any] = None

    # --- begin and end ----------------------------------------------------------------------------

    def attach(self, attachment: Attachment) -> None:
        """The context is entered. Each change is registered with its undo before it is made."""

    def resuming(self, *, started: bool) -> None:
        """The run continues from a checkpoint.

        Args:
            started: Whether a step is about to get its noise, so that model and accountant must
                have been restored; otherwise the context is being entered.

        Raises:
            RecordingError: Model, accountant and audit are not of the same step.
        """

    def completed(self) -> None:
        """The context is left without an error."""

    # --- one step, in order -----------------------------------------------------------------------

    def sum_ready(self) -> None:
        """The clipped sum of a step is complete, and no canary is in it.

        From here to `before_noise`, what the optimizer clips are canaries.
        """

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """Noise is about to be added.

        Args:
            tensors: Indices of the parameters it is added to; None for all of them.
        """

    def after_noise(self, noise: AddedNoise) -> None:
        """Noise was added."""

    def stepping(
        self,
        step: PrivateStep | None,
        applied: Tensor | None,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        """The wrapped optimizer is about to move the weights.

        Args:
            step: The step; None where no noise was added for it.
            applied: The gradient at the coordinates that are read; None without noise.
            arguments: Those of the wrapped optimizer's step.
            options: Those of the wrapped optimizer's step, by name.
        """

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """A step with noise is released.

        Args:
            step: The step.
            gradient: What is applied, at the coordinates that are read; None where it is not read.
        """

    def exchange(self) -> None:
        """All ranks exchange what they found; called on all of them after the same steps."""

    def inform(self, monitor: Monitor) -> None:
        """A step is over, or the run is: tell the monitor of what concerns it."""

    # --- what is known ----------------------------------------------------------------------------

    def postprocessing(self) -> contextlib.AbstractContextManager[None]:
        """What changes in this context reads released values and no data, as the user declares."""
        return contextlib.nullcontext()

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """Fields of `RunFacts`.

        Args:
            recorded: The transcript as the recorder has it.
        """
        return {}

    def facts_for(self, claim: PrivacyClaim) -> dict[str, Any]:
        """Fields of `RunFacts` that depend on the claim."""
        return {}

    def notes(self, recorded: Transcript) -> list[str]:
        """What a reader of the report should know; ``recorded`` is as for `facts`."""
        return []

    def amended(self, transcript: Transcript) -> Transcript:
        """The transcript, with what this observer has to add to it or to remove from it."""
        return transcript

    # --- checkpoints ------------------------------------------------------------------------------

    def state(self) -> Any:
        """A plain value or frozen dataclass to resume from, of type `state_type`."""
        return None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        return {}

    def load(self, state: Any, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume.

        Args:
            state: What `state` returned.
            arrays: Those of all observers.
            steps: Steps that were recorded until then.
        """


def overriding(
    observers: Sequence[Observer], moment: Callable[..., Any]
) -> tuple[Callable[..., Any], ...]:
    """A moment's methods of the observers that override it; a step calls no others."""
    name = moment.__name__
    return tuple(
        getattr(item, name) for item in observers if getattr(type(item), name) is not moment
    )
