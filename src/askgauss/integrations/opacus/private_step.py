"""One private step of an Opacus run, and the moments of it that an observer can follow.

An observer overrides the moments it needs and leaves the others alone. The audit calls each moment
on the observers that override it, in the order of its list.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.claims import PrivacyClaim
from askgauss.exceptions import PrivacyAlarm, RecordingError
from askgauss.integrations.attachment import Attachment, PatchedMethod
from askgauss.integrations.opacus import run_description as described
from askgauss.integrations.opacus.ranks import CanaryCoordinates
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.monitor import Monitor
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript

__all__ = [
    "AddedNoise",
    "CanaryMode",
    "Observer",
    "PrivateStep",
    "PrivateSteps",
]


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


class CanaryMode(Observer):
    """How canaries take part in a step: in the gradients, or as examples of the dataset.

    Attributes:
        inject: Its name, kept in checkpoints.
        places: The coordinates that are read in every step; None where none are.
        allows_frozen: Whether parameters may be frozen while the audit is attached.
        drawn_by_recorder: Whether the recorder samples the canaries of a step, and not the run's
            own sampler.
    """

    inject: str
    places: CanaryCoordinates | None
    allows_frozen = False
    drawn_by_recorder = True

    @property
    def exercised(self) -> tuple[str, ...]:
        """Parts of the training that the canaries go through."""
        raise NotImplementedError

    def check(self, state: Any, arrays: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of a run that was observed differently, before anything is loaded."""

    def draw(self, recorder: Recorder, pending: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """The canaries of a step that is about to get its noise.

        Args:
            recorder: The recorder.
            pending: Those of a step before that got noise and was not made; None if there is none.
        """
        raise NotImplementedError

    def averaging(self, module: nn.Module) -> None:
        """Gradients of a module that ranks share out are about to be reduced."""

    def insert(
        self,
        sums: Sequence[Tensor],
        included: NDArray[np.int64],
        missing: tuple[int, ...],
        clip_norm: float,
    ) -> None:
        """Add the canaries of a step to the clipped sums."""

    def insert_in(
        self, index: int, clipped: Tensor, included: NDArray[np.int64], clip_norm: float
    ) -> list[Tensor]:
        """Add the canaries of one parameter to its sum; what was there before, in order."""
        raise NotImplementedError

    def read(self, gradient: Tensor | None) -> NDArray[np.float64] | None:
        """What is applied at the coordinates, on the host; None where this step is not read."""
        raise NotImplementedError

    def record(
        self,
        recorder: Recorder,
        step: PrivateStep,
        gradient: NDArray[np.float64] | None,
        included: NDArray[np.int64],
    ) -> None:
        """Record a step, after `read`."""
        raise NotImplementedError


class PrivateSteps:
    """Records the private steps of a run as they happen, and calls the observers' moments.

    Args:
        run: The training.
        mode: How canaries take part.
        observers: Who follows the steps.
        new_recorder: Makes a recorder at a sampling rate.
        rate_may_change: Whether the recorder may be made anew before the first step, at the rate
            of a step that is made of several batches.
        exchanges: Whether ranks exchange what they found after a step, by its number.
        monitor: Watches every step.

    Attributes:
        recorder: What records them.
        accumulated: Numbers of batches that steps were made of.
        included: Canaries of a step that has not been recorded yet.
        unnoised: Steps of the wrapped optimizer without noise.
        discarded: How often noise was added and no step followed.
    """

    def __init__(
        self,
        run: TrainingRun,
        mode: CanaryMode,
        observers: Sequence[Observer],
        *,
        new_recorder: Callable[[float], Recorder],
        recorder: Recorder,
        rate_may_change: bool,
        exchanges: Callable[[int], bool],
        monitor: Monitor | None,
    ) -> None:
        self._run, self._mode, self._count = run, mode, run.count
        self._new_recorder, self.recorder = new_recorder, recorder
        self._rate_may_change = rate_may_change and mode.drawn_by_recorder
        self._exchanges, self._monitor = exchanges, monitor
        self.accumulated: set[int] = set()
        self.included: NDArray[np.int64] | None = None
        self.unnoised = self.discarded = 0
        self._step: PrivateStep | None = None
        # Clean sums of parameters that get their noise one after the other.
        self._arrived: dict[int, list[Tensor]] = {}
        self._observers = observers
        self._following: dict[Any, list[Callable[..., None]]] = {}

    def _at(self, moment: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a moment of the observers that override it."""
        if moment not in self._following:
            name = moment.__name__
            self._following[moment] = [
                getattr(item, name)
                for item in self._observers
                if getattr(type(item), name) is not moment
            ]
        for call in self._following[moment]:
            call(*arguments, **options)

    def forget(self) -> None:
        """Drop a step that got its noise and was not made."""
        self._step = None

    def resume(
        self,
        accumulated: Iterable[int],
        included: NDArray[np.int64] | None,
        arrays: dict[str, Any],
    ) -> None:
        """Continue from a checkpoint; nothing changes where it is of another run."""
        accumulated, recorder = set(accumulated), self.recorder
        if self._rate_may_change and len(accumulated) == 1:
            recorder = self._new_recorder(self._rate_of_a_step(accumulated))
        kept = arrays.get("state")
        if isinstance(kept, dict):
            # Each step states its own, which a schedule or adaptive clipping may have moved since.
            settings = kept.get("settings") or {}
            moved = {**settings, "clip_norm": recorder.clip_norm}
            arrays = arrays | {"state": {**kept, "settings": moved}}
        recorder.load_state_dict(arrays)
        self.recorder, self.accumulated, self.included = recorder, accumulated, included
        self._count.recorded = recorder.steps
        self._step = None

    # --- before and after the noise ---------------------------------------------------------------

    def add_noise(self, add_noise: Callable[[], None]) -> None:
        """Replaces the optimizer's `add_noise` while attached."""
        guard = self._run.guard
        if not guard.reason:
            # A refusal to resume from a wrong checkpoint comes before anything moved: it escapes.
            self._at(Observer.resuming, started=True)
            with guard:
                self._insert()
        add_noise()
        if not guard.reason:
            with guard:
                self._look_at_noise()

    def _insert(self) -> None:
        run, mode = self._run, self._mode
        sums, missing = self._clipped_sums()
        self._at(Observer.sum_ready)
        included = self._draw()
        # Also where it is not subtracted: the noise by itself is read all the same.
        clean = torch.zeros(0) if mode.places is None else mode.places.read(sums)
        if run.sharded:
            # Sums that are shared out were averaged over the ranks on the way.
            clean *= run.world
        mode.insert(sums, included, missing, float(run.optimizer.max_grad_norm))
        self._begin(clean, missing)
        self._at(Observer.before_noise, None)

    def _draw(self) -> NDArray[np.int64]:
        self._count_batches()
        self.discarded += self.included is not None
        self.included = self._mode.draw(self.recorder, self.included)
        return self.included

    def _begin(self, clean: Tensor, missing: tuple[int, ...] = ()) -> None:
        """Canaries are in, and noise comes next: what the step states of itself."""
        optimizer, run = self._run.optimizer, self._run
        mean, batches = optimizer.loss_reduction == "mean", described.accumulated(optimizer)
        divisor = float(optimizer.expected_batch_size * batches) if mean else 1.0
        scale = divisor * (run.world if mean or run.sharded else 1)
        self._step = PrivateStep(
            number=self._count.number,
            clip_norm=float(optimizer.max_grad_norm),
            noise_multiplier=described.gradient_noise_multiplier(optimizer),
            # Sums that are shared out were divided by the ranks before their noise.
            divisor=divisor if run.sharded else scale,
            scale=scale,
            batch_size=float(optimizer.expected_batch_size) if mean else 0.0,
            clean=clean,
            batches=batches,
            missing=missing,
        )

    def _look_at_noise(self) -> None:
        step, places, run = self._step, self._mode.places, self._run
        assert step is not None
        noisy, alone = None, run.world == 1 or run.sharded
        if places is not None:
            noisy = places.read(self._gradients(step.missing))
            if not alone:
                # What is divided is the sum over all ranks, and they are reduced later.
                torch.distributed.all_reduce(noisy)
        adds = alone or run.rank == 0
        deviation = step.noise_multiplier * step.clip_norm if adds else 0.0
        self._at(Observer.after_noise, AddedNoise(deviation=deviation, noisy=noisy))

    # --- noise inside the backward pass, one parameter after the other ----------------------------

    def by_parameter(self) -> list[PatchedMethod]:
        """What replaces the methods of an optimizer that adds noise as each sum is ready.

        One rank adds noise; the others only divide.
        """
        index = {id(item): number for number, item in enumerate(self._run.parameters)}
        noisy: set[int] = set()

        def add_noise(original: Callable[..., None], parameter: nn.Parameter) -> None:
            number = index.get(id(parameter))
            self._one_ready(number)
            noisy.add(id(parameter))
            original(parameter)
            self._one_noisy(number)

        def divide(original: Callable[..., None], parameter: nn.Parameter) -> None:
            if id(parameter) in noisy:
                noisy.discard(id(parameter))
            else:
                self._one_ready(index.get(id(parameter)))
            original(parameter)

        optimizer = self._run.optimizer
        return [
            PatchedMethod(optimizer, "_add_noise_parameter", add_noise),
            PatchedMethod(optimizer, "_scale_grad_parameter", divide),
        ]

    def _one_ready(self, index: int | None) -> None:
        """One parameter's sum is complete, and about to get its noise."""
        guard = self._run.guard
        if index is not None and not guard.reason:
            if not self._arrived or index in self._arrived:
                self._at(Observer.resuming, started=True)
            with guard:
                self._insert_one(index)

    def _insert_one(self, index: int) -> None:
        run, mode = self._run, self._mode
        if index in self._arrived:
            self._arrived = {}
        if not self._arrived:
            self._at(Observer.sum_ready)
            self._draw()
        assert self.included is not None
        clipped = described.clipped_sum(run.optimizer, run.parameters[index])
        assert clipped is not None
        clip_norm = float(run.optimizer.max_grad_norm)
        self._arrived[index] = mode.insert_in(index, clipped, self.included, clip_norm)
        self._at(Observer.before_noise, (index,))
        if len(self._arrived) == len(run.parameters):
            assert mode.places is not None
            parts = [part for number in sorted(self._arrived) for part in self._arrived[number]]
            self._arrived = {}
            self._begin(torch.cat(parts).to(mode.places.dtype))

    def _one_noisy(self, index: int | None) -> None:
        """One parameter got its noise."""
        if index is None:
            return
        optimizer = self._run.optimizer
        multiplier = described.gradient_noise_multiplier(optimizer)
        deviation = multiplier * float(optimizer.max_grad_norm)
        self._at(Observer.after_noise, AddedNoise(deviation=deviation, tensors=(index,)))

    # --- as the weights move ----------------------------------------------------------------------

    def observe(self, optimizer: Any, arguments: Any, options: Any) -> None:
        """Runs as the wrapped torch optimizer begins its step."""
        guard = self._run.guard
        if not guard.reason and not described.is_inner_step(optimizer):
            with guard:
                self._record(arguments, options)
                self.inform()

    def inform(self) -> None:
        """Let observers tell the monitor what they found."""
        if self._monitor is not None:
            self._at(Observer.inform, self._monitor)

    def _record(self, arguments: Any, options: Any) -> None:
        step, self._step = self._step, None
        mode, gradient, applied = self._mode, None, None
        if step is not None and mode.places is not None:
            gradient = applied = mode.places.read(self._gradients(step.missing))
            if step.missing:
                # An old gradient of a frozen parameter, where there is one, is applied again.
                applied = mode.places.read(described.gradients(self._run.parameters))
        self._at(Observer.stepping, step, applied, arguments, options)
        if step is None:
            self.unnoised += 1
            return
        read = mode.read(gradient)
        self._at(Observer.released, step, read)
        if self._run.world > 1 and self._exchanges(step.number):
            self._at(Observer.exchange)
        self._count.made += 1
        assert self.included is not None
        try:
            mode.record(self.recorder, step, read, self.included)
        except PrivacyAlarm:
            # The step has been recorded, and whoever catches this may continue.
            self._recorded()
            raise
        self._recorded()

    def _recorded(self) -> None:
        self.included, self._count.recorded = None, self.recorder.steps

    def _clipped_sums(self) -> tuple[list[Tensor], tuple[int, ...]]:
        """The sums, zero where there is none, and the parameters of which there is none."""
        sums: list[Tensor] = []
        missing: list[int] = []
        for index, parameter in enumerate(self._run.parameters):
            value = described.clipped_sum(self._run.optimizer, parameter)
            # Opacus leaves what a parameter had when it was frozen: an old sum, not this step's.
            if value is None or not parameter.requires_grad:
                missing.append(index)
                value = torch.zeros_like(parameter)
            sums.append(value)
        if len(missing) == len(sums) or (missing and not self._mode.allows_frozen):
            raise RecordingError(
                "Expected a clipped sum for every parameter, parameter "
                f"{self._run.parameter_names[missing[0]]} "
                "has none. It was trainable when the audit was attached: freeze parameters "
                "before that."
            )
        return sums, tuple(missing)

    def _gradients(self, missing: tuple[int, ...]) -> list[Tensor]:
        """The gradients as they are, zero for parameters that are frozen in this step."""
        return [
            torch.zeros_like(item) if index in missing else _gradient(item)
            for index, item in enumerate(self._run.parameters)
        ]

    def _count_batches(self) -> None:
        """A canary represents a record of the step, which may be made of several batches."""
        count = described.accumulated(self._run.optimizer)
        self.accumulated.add(count)
        fresh = self._count.recorded == 0 and self.included is None and self._rate_may_change
        if count > 1 and fresh and self._run.sampling.by_batch:
            self.recorder = self._new_recorder(self._rate_of_a_step([count]))

    def _rate_of_a_step(self, accumulated: Iterable[int]) -> float:
        """How often a record is in a step that accumulates so many batches."""
        sampling = self._run.sampling
        return min(1.0, sampling.rate * (max(accumulated) if sampling.by_batch else 1))


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RecordingError(
            "Expected a noisy gradient for every audited parameter as the optimizer steps, one has "
            "none. Freeze parameters before attaching the audit."
        )
    return parameter.grad
