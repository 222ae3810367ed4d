"""One private step of an Opacus run: canaries go in before its noise, the release is read after."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries
from askgauss.checks.registry import made
from askgauss.checks.step_invariants import loaded_state, moved_by_the_release
from askgauss.exceptions import PrivacyAlarm, RecordingError
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.guard import Guard
from askgauss.integrations.opacus import run_description as run
from askgauss.integrations.opacus.canary_rows import send_through_clipping
from askgauss.integrations.opacus.clip_checks import ClipWitness
from askgauss.integrations.opacus.clip_counting import ClipCountWatch
from askgauss.integrations.opacus.coordinate_access import CanaryCoordinates
from askgauss.integrations.opacus.example_canaries import ExampleProbe
from askgauss.integrations.opacus.frozen import FrozenTensors
from askgauss.integrations.opacus.ledger import Ledger
from askgauss.integrations.opacus.loader_watch import LoaderWatch
from askgauss.integrations.opacus.noise_by_parameter import NoiseByParameter
from askgauss.integrations.opacus.noise_sampling import SampledNoise
from askgauss.integrations.opacus.noise_watch import NoiseWatch
from askgauss.integrations.opacus.restarts import Restartable
from askgauss.integrations.opacus.settings_watch import SettingsWatch
from askgauss.integrations.opacus.shadow import Shadow
from askgauss.integrations.opacus.torch_seeds import probe_first_noise
from askgauss.integrations.patched_method import StandIn
from askgauss.integrations.same_run import check_weights
from askgauss.monitor import Monitor
from askgauss.recording.facts.run_facts import SeedProbe
from askgauss.recording.recorder import Recorder
from askgauss.results import Consequence, Status

__all__ = ["RecordedSteps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step between its noise and its observation."""

    clip_norm: float
    noise_multiplier: float
    divisor: float
    scale: float
    batch_size: float
    clean: torch.Tensor
    batches: int
    missing: tuple[int, ...] = ()


class RecordedSteps(Restartable):
    """Records the steps of a run as they happen.

    Its attributes are made by the audit that is a subclass; the ones below are all that a step
    touches.
    """

    _optimizer: Any
    _parameters: list[torch.nn.Parameter]
    _names: tuple[str, ...]
    _whole: tuple[str, ...]
    _world: int
    _sharded: bool
    _sampling: run.Sampling
    _inject: str
    _known: bool
    _canaries: DiracCanaries | BlockCanaries | ExampleCanaries
    _coordinates: CanaryCoordinates
    _recorder: Recorder
    _store: Any
    _monitor: Monitor | None
    _ledger: Ledger
    _loader: LoaderWatch
    _probe: ExampleProbe | None
    _watch: NoiseWatch | None
    _sampled: SampledNoise
    _shadow: Shadow | None
    _witness: ClipWitness
    _clip_count: ClipCountWatch
    _spacing: float
    _weights: str
    _accumulated: set[int]
    _planted: NDArray[np.int64] | None
    _seeds: SeedProbe | None
    _unprobed: bool
    _step: _Step | None
    _arrived: dict[int, list[torch.Tensor]]
    _unnoised: int
    _discarded: int
    _attachment: Attachment
    # Whether the training that the audit was attached for is over, where nobody says so.
    _ended: Callable[[], bool] | None = None
    _guard: Guard
    _settings: SettingsWatch
    _frozen: FrozenTensors | None
    # Whether the optimizer's own clipping keeps more than its sum, so that no rows go through it.
    _beside: bool

    @property
    def steps(self) -> int:
        """Number of steps recorded so far."""
        return self._recorder.steps

    def _make_recorder(self, rate: float) -> Recorder:
        scheme = self._sampling.scheme
        return Recorder(
            self._canaries,
            sampling=scheme,
            sampling_rate=rate if scheme is None else None,
            clip_norm=float(self._optimizer.max_grad_norm),
            noise_multiplier=run.gradient_noise_multiplier(self._optimizer),
            store=self._store,
            monitor=self._monitor,
        )

    def _plant_then_add_noise(self, add_noise: Callable[[], None]) -> None:
        """Stands in for the optimizer's `add_noise` while attached."""
        if self._ended is not None and self._ended():
            error = RecordingError("The training ended without a word.")
            self._attachment.__exit__(type(error), error, None)
            add_noise()
            return
        if not self._guard.reason:
            # A refusal to go on from a wrong checkpoint, before anything moved: it may escape.
            self._check_same_step()
            with self._guard:
                self._before_noise()
                self._sampled.before()
                self._clip_count.before_noise()
        add_noise()
        if not self._guard.reason:
            with self._guard:
                self._clip_count.after_noise()
                self._after_noise()

    def _after_noise(self) -> None:
        step, places = self._step, self._places
        assert step is not None
        noisy, alone = None, self._world == 1 or self._sharded
        if places is not None:
            noisy = places.read(self._gradients(step.missing))
            if not alone:
                # What is divided is the sum over all ranks, and they are reduced later.
                torch.distributed.all_reduce(noisy)
        noise = step.noise_multiplier * step.clip_norm if alone or self._rank == 0 else 0.0
        self._witness.after_noise(noisy, noise)
        if self._rank == 0:
            self._sampled.after(self.steps, self._deviation)
        if self._unprobed and self._rank == 0:
            # The first noise after every restart: another process has another generator.
            self._unprobed = False
            found = probe_first_noise(self._optimizer.params, self._optimizer, self._loader.records)
            if self._seeds is None or found.found:
                self._seeds = found

    def _noise_stand_in(self) -> StandIn | NoiseByParameter:
        """What is to stand where the optimizer adds its noise."""
        if run.noise_by_parameter(self._optimizer):
            return NoiseByParameter(
                self._optimizer, self._parameters, self._one_before_noise, self._one_after_noise
            )
        return StandIn(self._optimizer, "add_noise", self._plant_then_add_noise)

    def _one_before_noise(self, index: int) -> None:
        """One parameter's sum is whole, and about to get its noise."""
        if not self._guard.reason:
            if not self._arrived or index in self._arrived:
                self._check_same_step()
            with self._guard:
                self._arrive(index)

    def _arrive(self, index: int) -> None:
        if index in self._arrived:
            self._arrived = {}
        if not self._arrived:
            self._draw()
        assert self._planted is not None
        kept = run.clipped_sum(self._optimizer, self._parameters[index])
        assert kept is not None
        self._sampled.before([index])
        places = self._coordinates.places
        self._arrived[index] = [
            self._coordinates.taken(number, kept)
            for number, (tensor, _) in enumerate(places)
            if tensor == index
        ]
        clip_norm = float(self._optimizer.max_grad_norm)
        if self._rank == 0 and self._planted.size:
            sums = [
                kept if number == index else item for number, item in enumerate(self._parameters)
            ]
            self._coordinates.plant(sums, self._planted, clip_norm, only=index)
        if len(self._arrived) == len(self._parameters):
            parts = [part for number in sorted(self._arrived) for part in self._arrived[number]]
            self._arrived = {}
            self._begin(torch.cat(parts).to(self._coordinates.dtype))

    def _one_after_noise(self, index: int) -> None:
        """One parameter got its noise."""
        if self._rank == 0:
            self._sampled.after(self.steps, self._deviation, [index])

    @property
    def _deviation(self) -> float:
        """What is stated for the noise, of each value."""
        multiplier = run.gradient_noise_multiplier(self._optimizer)
        return multiplier * float(self._optimizer.max_grad_norm)

    def _draw(self) -> None:
        """A step gets its noise: who is planted in it?"""
        self._ledger.open()
        self._count_batches()
        if self._probe is not None:
            # The run's own sampler chose: with new noise comes the batch it was drawn for.
            self._discarded += self._planted is not None
            self._planted = self._probe.planted()
        elif self._planted is None:
            self._planted = self._recorder.sample()
        else:
            # Noise was drawn for these coins and no step followed. Nothing of it was recorded, so
            # the same coins stay as good as new ones.
            self._discarded += 1

    def _before_noise(self) -> None:
        optimizer = self._optimizer
        self._loader.trained.before_noise()
        sums, missing = self._clipped_sums()
        self._witness.before_noise()
        self._draw()
        assert self._planted is not None
        clip_norm = float(optimizer.max_grad_norm)
        # Also where it is not taken off the canaries: the noise is seen by itself all the same.
        clean = self._places.read(sums) if self._places is not None else torch.zeros(0)
        if self._sharded:
            # Sums that are shared out were averaged over the ranks on the way.
            clean *= self._world
        plants = self._probe is None and (self._rank == 0 or self._sharded)
        planted = self._planted
        if self._frozen is not None:
            planted = self._frozen.planted(planted, missing)
        if plants and planted.size and not self._sent_through(planted, clip_norm):
            height = clip_norm / (self._witness.averaged or self._world if self._sharded else 1)
            self._coordinates.plant(sums, planted, height)
        self._loader.trained.planted()
        self._begin(clean, missing)

    def _sent_through(self, planted: NDArray[np.int64], clip_norm: float) -> bool:
        """Whether canaries went through the optimizer's own clipping, where they are to."""
        if self._inject == "sum" or self._beside:
            return False
        rows = functools.partial(
            send_through_clipping,
            *(self._optimizer, self._parameters, self._coordinates, planted, clip_norm),
        )
        self._beside = not self._witness.aside(rows)
        return not self._beside

    def _begin(self, clean: torch.Tensor, missing: tuple[int, ...] = ()) -> None:
        """Planted, and about to get noise: what the step states of itself.

        Args:
            clean: This rank's sum at the places that are read, before anything was planted.
            missing: Indices of the parameters that are frozen in this step.
        """
        optimizer = self._optimizer
        mean, batches = optimizer.loss_reduction == "mean", run.accumulated(optimizer)
        divisor = float(optimizer.expected_batch_size * batches) if mean else 1.0
        scale = divisor * (self._world if mean or self._sharded else 1)
        self._step = _Step(
            clip_norm=float(optimizer.max_grad_norm),
            noise_multiplier=run.gradient_noise_multiplier(optimizer),
            # Sums that are shared out were divided by the ranks before their noise.
            divisor=divisor if self._sharded else scale,
            scale=scale,
            batch_size=float(optimizer.expected_batch_size) if mean else 0.0,
            clean=clean,
            batches=batches,
            missing=missing,
        )

    @property
    def _places(self) -> CanaryCoordinates | None:
        """The coordinates that are read in every step."""
        if self._probe is None:
            return self._coordinates
        return None if self._watch is None else self._watch.coordinates

    def _check_same_step(self) -> None:
        """After loading: whether model, accountant and audit are of one step."""
        self._ledger.check_total(self.steps, now=True)
        check_weights(self._weights, self._places, self._parameters, self.steps)
        self._weights = ""

    def _count_batches(self) -> None:
        """Canaries stand for a record of the step, which may be made of several batches."""
        count = run.accumulated(self._optimizer)
        self._accumulated.add(count)
        fresh = self.steps == 0 and self._planted is None and self._store is None
        if count > 1 and fresh and self._probe is None and self._sampling.by_batch:
            self._recorder = self._make_recorder(self._rate_of_a_step([count]))

    def _rate_of_a_step(self, accumulated: Iterable[int]) -> float:
        """How often a record is in a step that accumulates so many batches."""
        return min(1.0, self._sampling.rate * (max(accumulated) if self._sampling.by_batch else 1))

    def _clipped_sums(self) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """The sums, zero where there is none, and the parameters of which there is none."""
        sums: list[torch.Tensor] = []
        missing: list[int] = []
        for index, parameter in enumerate(self._parameters):
            value = run.clipped_sum(self._optimizer, parameter)
            # Opacus leaves what a parameter had when it was frozen: an old sum, not this step's.
            if value is None or not parameter.requires_grad:
                missing.append(index)
                value = torch.zeros_like(parameter)
            sums.append(value)
        if len(missing) == len(sums) or (missing and self._frozen is None):
            raise RecordingError(
                f"Expected a clipped sum for every parameter, parameter {self._whole[missing[0]]} "
                "has none. It was trainable when the audit was attached: freeze parameters "
                "before that."
            )
        return sums, tuple(missing)

    def _gradients(self, missing: tuple[int, ...]) -> list[torch.Tensor]:
        """The gradients as they are, zero for parameters that are frozen in this step."""
        return [
            torch.zeros_like(item) if index in missing else _gradient(item)
            for index, item in enumerate(self._parameters)
        ]

    def _observe(self, _: Any, arguments: Any, options: Any) -> None:
        """Runs as the wrapped torch optimizer begins its step."""
        if not self._guard.reason:
            with self._guard:
                self._record_step(arguments, options)
                self._tell_of_weights()

    def _tell_of_weights(self) -> None:
        """Tell the monitor how the weights moved in the steps that are over."""
        if self._monitor is None or self._shadow is None:
            return
        if self._shadow.all_alike:
            # In nearly every step; words would cost more than all else that is told.
            self._monitor.check_weights(0.0, 0.0)
            return
        found = list(made((moved_by_the_release, loaded_state), self._shadow.moves))
        failed = [item for item in found if item.status is Status.FAIL]
        breach = next((item for item in failed if item.consequence is Consequence.BREACH), None)
        if breach is not None:
            self._monitor.breach("weights", breach.summary)
        elif found[0].status is not Status.NOT_RUN:
            self._monitor.check_weights(0.0, 0.0)

    def _record_step(self, arguments: Any, options: Any) -> None:
        step, self._step = self._step, None
        places, gradient = self._places, None
        if step is not None and places is not None:
            gradient = places.read(self._gradients(step.missing))
        if self._shadow is not None:
            applied = gradient
            if step is not None and places is not None and step.missing:
                # An old gradient of a frozen parameter, where there is one, is applied again.
                applied = places.read(
                    [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
                )
            self._shadow.begin(arguments, options, applied, None if step is None else step.clean)
        if step is None:
            self._unnoised += 1
            return
        self._settings.step(
            self._witness.step,
            clip_norm=step.clip_norm,
            noise=step.noise_multiplier,
            batch_size=step.batch_size,
        )
        self._clip_count.stepped()
        self._loader.step(step.batches)
        if self._probe is not None:
            self._observe_examples(self._probe, step)
            self._witness.finish()
            return
        coordinates = self._coordinates
        # The only waits for the device in a step.
        assert gradient is not None
        released = gradient.cpu().double()
        # Where parameters are shared out, ranks are reduced before the noise, otherwise after it.
        stated = step.divisor if self._sharded else step.scale
        self._witness.divided(released.numpy(), stated, self._spacing)
        if self._witness.finish():
            self._loader.trained.tell(self._world, self._parameters[0].device)
        values = released.numpy() * step.scale
        if self._world > 1 and not self._sharded:
            # Only now: inside a backward pass the ranks' own calls come first.
            torch.distributed.all_reduce(step.clean)
        # Infinite gradients leave nan here. They are recorded, and the audit says so.
        noise = values - step.clean.cpu().numpy()
        observed = coordinates.along(noise if self._known else values)
        watched = coordinates.watched(noise)
        if step.missing:
            assert self._frozen is not None
            assert self._planted is not None
            self._frozen.fill(
                step.missing,
                self.steps + 1,
                observed,
                watched,
                self._planted,
                step.clip_norm,
                step.clip_norm * step.noise_multiplier,
            )
        try:
            self._recorder.observe(
                observed,
                background=0.0 if self._known else None,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
                watch=watched,
            )
        except PrivacyAlarm:
            # The step has been recorded, and whoever catches this may go on.
            self._planted = None
            raise
        self._planted = None

    def _observe_examples(self, probe: ExampleProbe, step: _Step) -> None:
        planted, self._planted = self._planted, None
        if not probe.due():
            return
        assert planted is not None
        released = [_gradient(item) for item in self._parameters]
        if self._watch is not None:
            noisy = self._watch.coordinates.read(released).cpu().double()
            self._witness.divided(noisy.numpy(), step.divisor, self._spacing)
            self._watch.add(noisy * step.scale - step.clean.cpu(), step.clip_norm)
        with np.errstate(invalid="ignore", over="ignore"):
            self._recorder.observe(
                probe.along(released, planted, step.clip_norm) * step.scale,
                planted=planted,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
            )


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise RecordingError(
            "Expected a noisy gradient for every audited parameter as the optimizer steps, one has "
            "none. Freeze parameters before attaching the audit."
        )
    return parameter.grad
