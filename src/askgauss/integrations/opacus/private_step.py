"""One private step of an Opacus run: canaries go in before its noise, the release is read after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.exceptions import PrivacyAlarm, RecordingError
from askgauss.integrations.attachment import PatchedMethod
from askgauss.integrations.opacus import run_description as described
from askgauss.integrations.opacus.coordinate_access import CanaryCoordinates
from askgauss.integrations.opacus.moments import (
    AddedNoise,
    Observer,
    PrivateStep,
    StepCount,
    overriding,
)
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.monitor import Monitor
from askgauss.recording.recorder import Recorder

__all__ = ["CanaryMode", "NoiseByParameter", "PrivateSteps"]


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
        count: Steps so far.
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
        count: StepCount,
        *,
        new_recorder: Callable[[float], Recorder],
        recorder: Recorder,
        rate_may_change: bool,
        exchanges: Callable[[int], bool],
        monitor: Monitor | None,
    ) -> None:
        self._run, self._mode, self._count = run, mode, count
        self._new_recorder, self.recorder = new_recorder, recorder
        self._rate_may_change = rate_may_change and mode.drawn_by_recorder
        self._exchanges, self._monitor = exchanges, monitor
        self.accumulated: set[int] = set()
        self.included: NDArray[np.int64] | None = None
        self.unnoised = self.discarded = 0
        self._step: PrivateStep | None = None
        # Clean sums of parameters that get their noise one after the other.
        self._arrived: dict[int, list[Tensor]] = {}
        following = functools.partial(overriding, observers)
        self._resuming = following(Observer.resuming)
        self._sum_ready = following(Observer.sum_ready)
        self._before_noise = following(Observer.before_noise)
        self._after_noise = following(Observer.after_noise)
        self._stepping = following(Observer.stepping)
        self._released = following(Observer.released)
        self._exchange = following(Observer.exchange)
        self._inform = following(Observer.inform)

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
            arrays = arrays | {"state": kept | {"clip_norm": recorder.clip_norm}}
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
            self._check_resumed()
            with guard:
                self._insert()
        add_noise()
        if not guard.reason:
            with guard:
                self._look_at_noise()

    def _check_resumed(self) -> None:
        for call in self._resuming:
            call(started=True)

    def _insert(self) -> None:
        run, mode = self._run, self._mode
        sums, missing = self._clipped_sums()
        for call in self._sum_ready:
            call()
        included = self._draw()
        # Also where it is not subtracted: the noise by itself is read all the same.
        clean = torch.zeros(0) if mode.places is None else mode.places.read(sums)
        if run.sharded:
            # Sums that are shared out were averaged over the ranks on the way.
            clean *= run.world
        mode.insert(sums, included, missing, float(run.optimizer.max_grad_norm))
        self._begin(clean, missing)
        for call in self._before_noise:
            call(None)

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
        noise = AddedNoise(deviation=deviation, noisy=noisy)
        for call in self._after_noise:
            call(noise)

    # --- noise inside the backward pass, one parameter after the other ----------------------------

    def one_ready(self, index: int) -> None:
        """One parameter's sum is complete, and about to get its noise."""
        guard = self._run.guard
        if not guard.reason:
            if not self._arrived or index in self._arrived:
                self._check_resumed()
            with guard:
                self._insert_one(index)

    def _insert_one(self, index: int) -> None:
        run, mode = self._run, self._mode
        if index in self._arrived:
            self._arrived = {}
        if not self._arrived:
            for call in self._sum_ready:
                call()
            self._draw()
        assert self.included is not None
        clipped = described.clipped_sum(run.optimizer, run.parameters[index])
        assert clipped is not None
        clip_norm = float(run.optimizer.max_grad_norm)
        self._arrived[index] = mode.insert_in(index, clipped, self.included, clip_norm)
        for call in self._before_noise:
            call((index,))
        if len(self._arrived) == len(run.parameters):
            assert mode.places is not None
            parts = [part for number in sorted(self._arrived) for part in self._arrived[number]]
            self._arrived = {}
            self._begin(torch.cat(parts).to(mode.places.dtype))

    def one_noisy(self, index: int) -> None:
        """One parameter got its noise."""
        optimizer = self._run.optimizer
        multiplier = described.gradient_noise_multiplier(optimizer)
        deviation = multiplier * float(optimizer.max_grad_norm)
        noise = AddedNoise(deviation=deviation, tensors=(index,))
        for call in self._after_noise:
            call(noise)

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
            for call in self._inform:
                call(self._monitor)

    def _record(self, arguments: Any, options: Any) -> None:
        step, self._step = self._step, None
        mode, gradient, applied = self._mode, None, None
        if step is not None and mode.places is not None:
            gradient = applied = mode.places.read(self._gradients(step.missing))
            if step.missing:
                # An old gradient of a frozen parameter, where there is one, is applied again.
                applied = mode.places.read(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
                )
        for call in self._stepping:
            call(step, applied, arguments, options)
        if step is None:
            self.unnoised += 1
            return
        read = mode.read(gradient)
        for call in self._released:
            call(step, read)
        if self._run.world > 1 and self._exchanges(step.number):
            for call in self._exchange:
                call()
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

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return self._run.parameters

    def _clipped_sums(self) -> tuple[list[Tensor], tuple[int, ...]]:
        """The sums, zero where there is none, and the parameters of which there is none."""
        sums: list[Tensor] = []
        missing: list[int] = []
        for index, parameter in enumerate(self._parameters):
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
            for index, item in enumerate(self._parameters)
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


class NoiseByParameter:
    """Replaces the methods of an optimizer that adds noise to each parameter when its sum is ready.

    One rank adds noise; the others only divide.

    Args:
        run: The training.
        steps: Told of every parameter before and after its noise.
    """

    def __init__(self, run: TrainingRun, steps: PrivateSteps) -> None:
        self._index = {id(item): index for index, item in enumerate(run.parameters)}
        self._steps = steps
        self._noisy: set[int] = set()
        self._methods = [
            PatchedMethod(run.optimizer, "_add_noise_parameter", self._add_noise),
            PatchedMethod(run.optimizer, "_scale_grad_parameter", self._scale),
        ]

    def put(self) -> None:
        """Replace the methods."""
        for item in self._methods:
            item.put()

    def remove(self) -> bool:
        """Restore the methods; whether nothing had wrapped them since."""
        removed = [item.remove() for item in self._methods]
        return all(removed)

    def _add_noise(self, original: Callable[..., None], parameter: nn.Parameter) -> None:
        self._ready(parameter)
        self._noisy.add(id(parameter))
        original(parameter)
        index = self._index.get(id(parameter))
        if index is not None:
            self._steps.one_noisy(index)

    def _scale(self, original: Callable[..., None], parameter: nn.Parameter) -> None:
        if id(parameter) in self._noisy:
            self._noisy.discard(id(parameter))
        else:
            self._ready(parameter)
        original(parameter)

    def _ready(self, parameter: nn.Parameter) -> None:
        index = self._index.get(id(parameter))
        if index is not None:
            self._steps.one_ready(index)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise RecordingError(
            "Expected a noisy gradient for every audited parameter as the optimizer steps, one has "
            "none. Freeze parameters before attaching the audit."
        )
    return parameter.grad
