"""Audit an Opacus run from inside it, around an unchanged training loop.

::

    from askgauss.integrations.opacus import CanaryAudit

    with CanaryAudit(optimizer, canaries=5000, seed=0) as audit:
        train(...)
    print(audit.result(claim=claim))

The optimizer's own step runs throughout. Canaries go in where Opacus calls its `add_noise`, after
clipping and before the noise; what the step released is read where the wrapped torch optimizer
begins its own step, after noise, scaling and the reduction over ranks. The accountant's hook is not
touched.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _files, _plain, _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries, fresh_seed
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import (
    MissingExtraError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.monitor import Monitor, monitor_of
from askgauss.recorder import Recorder
from askgauss.transcript import Transcript

try:
    import torch

    from askgauss.integrations._opacus_versions import DPPerLayerOptimizer, untried
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.integrations import _opacus_run as run
from askgauss.integrations._audited import AuditedRun
from askgauss.integrations._canary_choice import choose_canaries
from askgauss.integrations._coordinates import CanaryCoordinates
from askgauss.integrations._examples import ExampleProbe, ProbeProgress
from askgauss.integrations._ledger import Ledger, LedgerState, accounting_notes
from askgauss.integrations._noise_watch import NoiseWatch
from askgauss.integrations._ranks import agree, meet
from askgauss.integrations._restarts import check_weights, digest, only_copy
from askgauss.integrations._rows import send_through_clipping

__all__ = ["CanaryAudit"]

_KIND = "askgauss-opacus-audit"
_SCHEMA = 2
_EXERCISED = {
    "sum": ("noise", "reduction", "step count"),
    "sample": ("clipping", "sum", "noise", "reduction", "step count"),
    "examples": (
        "sampler",
        "per-sample gradient",
        "clipping",
        "sum",
        "noise",
        "reduction",
        "step count",
    ),
}
_attached: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step between its noise and its observation."""

    clip_norm: float
    noise_multiplier: float
    scale: float
    clean: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The part of a checkpoint that is not the recorder's."""

    inject: str
    known: bool
    seed: int
    unnoised: int
    discarded: int
    ledger: LedgerState
    examples: ProbeProgress | None = None
    weights: str = ""
    accumulated: tuple[int, ...] = ()


class CanaryAudit(AuditedRun):
    """Plants canaries in an Opacus run and records what each step releases about them.

    Use it as a context manager around the training loop. It may be entered again after it was left,
    and goes on recording. Random choices come from streams of its own: with no canary present,
    training ends in the very same weights as without an audit.

    When their number is left to the audit, present canaries are few beside the records and the
    parameters: a twentieth of the former, a sixteenth of the latter and 1,000 at most. Each acts
    like one more record, and all of them together move the weights no more than 8 % more noise
    would. Absent ones cost the training nothing and fill up to 5,000. These numbers are fixed; for
    auditors that guess membership give a number, which makes each present by a fair coin.

    The canaries are planted by coins of their own at the run's sampling rate: the run's sampler is
    not audited, and neither are the parts before the place they go in at. `ExampleCanaries` go
    through everything: they are records of the loader's own dataset, and are observed along their
    own gradients, with the background unknown; the noise is read by itself, at coordinates of the
    model, where Opacus shows the sum before it. They need ``model``, ``criterion`` and
    ``data_loader``, one process, and a loader without workers::

        data = canaries.dataset(train_set)      # then DataLoader(data, ...) and make_private(...)
        audit = CanaryAudit(optimizer, canaries=canaries, model=model, criterion=loss,
                            data_loader=loader)

    Args:
        optimizer: The optimizer `PrivacyEngine.make_private` returned, also inside a wrapper such
            as accelerate's.
        canaries: How many, half of them present by fair coins; or canaries made by you over the
            optimizer's parameters; or examples; or None to leave it to the audit.
        inject: ``"sum"`` adds canaries to the clipped sum. ``"sample"`` sends each through the
            optimizer's own clipping as a gradient far above the clip norm, so that clipping is
            audited too; 32 are present unless you say otherwise.
        seed: Root of the audit's random choices; drawn and recorded if not given.
        data_loader: The training loader, which knows the true sampling rate and whether sampling
            is Poisson. Recommended.
        accountant: The run's accountant or PrivacyEngine; found behind the optimizer's hook if not
            given.
        sampling_rate: The run's sampling rate, where neither loader nor accountant tells.
        background: Whether to subtract the other records' clean sum, which the auditor can see:
            ``"known"`` gives far tighter bounds and needs Poisson sampling; ``"auto"`` is known
            unless the loader says that sampling is not Poisson.
        model: The model, for the names of its parameters, and to notice those that could train
            outside the optimizer; examples need it for their gradients.
        criterion: The loss of the training, for examples.
        every: With examples, observe one step in so many: each costs a gradient a canary. The bound
            is on what the observed steps leak together.
        checkpoint: A file to go on from if it exists; `save` writes it, and so does leaving the
            context without an error.
        store: A file to keep every step in as well, for `StepStore`; not with several ranks.
        monitor: Watches every step, and may stop the run: ``Monitor(claim=claim)``, or True to hold
            the run to what its optimizer declares. All ranks see the same sums, so that they alarm
            in the same step.

    Raises:
        InvalidArgumentError: An argument is wrong, or no sampling rate can be found.
        UnsupportedError: This kind of optimizer cannot be audited the way it was asked.
        RecordingError: The checkpoint belongs to another run, or is in use by a live one.

    Examples:
        >>> import torch, opacus
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 20), torch.randn(64, 1))
        >>> model = torch.nn.Linear(20, 1)
        >>> engine = opacus.PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=torch.utils.data.DataLoader(data, batch_size=16),
        ...     noise_multiplier=1.0, max_grad_norm=1.0)
        >>> with CanaryAudit(optimizer, data_loader=loader, seed=0) as audit:
        ...     for features, target in loader:
        ...         optimizer.zero_grad()
        ...         torch.nn.functional.mse_loss(model(features), target).backward()
        ...         optimizer.step()
        >>> audit.transcript()
        Transcript(steps=4, present=5, absent=10, background='known')
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        canaries: int | DiracCanaries | BlockCanaries | ExampleCanaries | None = None,
        inject: Literal["sum", "sample"] = "sum",
        seed: int | None = None,
        data_loader: Any = None,
        accountant: Any = None,
        sampling_rate: float | None = None,
        background: Literal["auto", "known", "unknown"] = "auto",
        model: torch.nn.Module | None = None,
        criterion: Any = None,
        every: int = 1,
        checkpoint: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        monitor: Monitor | bool | None = None,
    ) -> None:
        _validate.one_of(("sum", "sample"), inject=inject)
        _validate.one_of(("auto", "known", "unknown"), background=background)
        optimizer = run.unwrapped(optimizer)
        run.check_optimizer(optimizer, inject)
        self._optimizer = optimizer
        self._inject: str = inject
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._rank = int(getattr(optimizer, "rank", 0))
        self._world = int(getattr(optimizer, "world_size", 1))
        if store is not None and self._world > 1:
            raise UnsupportedError(
                "A store keeps the steps of one process, and this run has several: leave store= "
                "out and read the transcript, which every rank has."
            )
        meet(self._rank, self._world)
        self._locked = contextlib.ExitStack()
        written = (checkpoint, store) if self._rank == 0 else ()
        self._shared = [Path(item) for item in written if item is not None]
        self._parameters = run.audited_parameters(optimizer)
        self._outside = run.OutsideParameters(optimizer, model)
        found, accounted_rate = run.find_accountant(optimizer, accountant)
        self._ledger = Ledger(found)
        self._sampling = run.find_sampling(data_loader, sampling_rate, accounted_rate)
        self._known = False
        if not isinstance(canaries, ExampleCanaries):
            self._known = run.background_known(background, self._sampling)
        self._names = run.tensor_names(optimizer, self._parameters, model)
        self._canaries: DiracCanaries | BlockCanaries | ExampleCanaries
        if isinstance(canaries, ExampleCanaries):
            _check_for_examples(inject, background, seed)
            self._inject = "examples"
            self._canaries = canaries
        else:
            if every != 1:
                raise _validate.fail("every", every, "to be 1", "Only examples may skip steps.")
            self._canaries = choose_canaries(
                canaries,
                sizes=tuple(parameter.numel() for parameter in self._parameters),
                records=self._records(),
                rows=inject == "sample",
                spread=isinstance(optimizer, DPPerLayerOptimizer),
                seed=seed,
                draw_seed=self._draw_seed,
            )
            self._coordinates = CanaryCoordinates(self._parameters, self._canaries)
        self._monitor = monitor_of(monitor)
        self._store = store
        with only_copy(self._shared):
            self._recorder = self._make_recorder(self._sampling.rate)
        self._probe: ExampleProbe | None = None
        if isinstance(self._canaries, ExampleCanaries):
            self._probe = ExampleProbe(
                self._canaries,
                optimizer=optimizer,
                parameters=self._parameters,
                model=model,
                criterion=criterion,
                data_loader=data_loader,
                every=every,
                kept=self._recorder.kept,
            )
        self._watch: NoiseWatch | None = None
        if self._probe is not None and NoiseWatch.fits(self._parameters):
            self._watch = NoiseWatch(self._parameters, self._canaries.root_seed)
        self._watched_all = self._watch is not None or self._probe is None
        self._weights = ""
        self._accumulated: set[int] = set()
        self._planted: NDArray[np.int64] | None = None
        self._step: _Step | None = None
        self._unnoised = 0
        self._discarded = 0
        self._entered = False
        self._add_noise: Any = None
        self._previous: Any = None
        self._hook: Any = None
        if self._checkpoint is not None and self._checkpoint.exists():
            with only_copy(self._shared):
                self.load(self._checkpoint)

    def _make_recorder(self, rate: float) -> Recorder:
        return Recorder(
            self._canaries,
            sampling_rate=rate,
            clip_norm=float(self._optimizer.max_grad_norm),
            noise_multiplier=run.gradient_noise_multiplier(self._optimizer),
            store=self._store,
            monitor=self._monitor,
        )

    def _records(self) -> float:
        """About how many records the run trains on."""
        lot = self._optimizer.expected_batch_size
        return math.inf if lot is None else float(lot) * self._world / self._sampling.rate

    def _draw_seed(self) -> int | None:
        """The seed of the checkpoint, or one that all ranks share; None for a fresh one."""
        if self._checkpoint is not None and self._checkpoint.exists():
            _, content = _files.read_arrays(self._checkpoint, _KIND, _SCHEMA)
            progress: _Progress = _plain.from_plain(_Progress, content.get("audit"), "audit")
            return progress.seed
        if self._world == 1:
            return None
        drawn = torch.tensor([fresh_seed()], device=self._parameters[0].device)
        torch.distributed.broadcast(drawn, src=0)
        return int(drawn.item())

    @property
    def canaries(self) -> DiracCanaries | BlockCanaries | ExampleCanaries:
        """Who is planted where."""
        return self._canaries

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return self._monitor

    @property
    def steps(self) -> int:
        """Number of steps recorded so far."""
        return self._recorder.steps

    def __repr__(self) -> str:
        return (
            f"CanaryAudit({self._canaries.size} canaries, inject={self._inject!r}, "
            f"steps={self.steps}, {'attached' if self._entered else 'not attached'})"
        )

    def __enter__(self) -> CanaryAudit:
        optimizer = self._optimizer
        if optimizer in _attached:
            raise RecordingError(
                "Expected an optimizer that no audit is attached to, got one that has an audit. "
                "Leave the other audit's context first."
            )
        if self._add_noise is not None:
            raise RecordingError(
                "Expected the optimizer as the audit left it, got one whose add_noise something "
                "else has wrapped since. Start a new audit and load this one's state_dict()."
            )
        meet(self._rank, self._world)
        facts = f"{self._canaries.fingerprint()} {self._sampling.rate} {self._known} {self.steps}"
        agree(facts, self._world, self._parameters[0].device)
        self._ledger.check_total(self.steps, now=False)
        self._locked.enter_context(only_copy(self._shared))
        self._ledger.listen()
        self._previous = vars(optimizer).get("add_noise")
        self._add_noise = optimizer.add_noise
        self._hook = optimizer.original_optimizer.register_step_pre_hook(self._observe)
        optimizer.add_noise = self._plant_then_add_noise
        _attached.add(optimizer)
        if self._probe is not None:
            self._probe.listen()
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        optimizer = self._optimizer
        self._entered = False
        self._step = None
        _attached.discard(optimizer)
        if self._probe is not None:
            self._probe.stop()
        self._hook.remove()
        # Whoever wrapped our wrapper meanwhile keeps it: it only passes calls on from here.
        if vars(optimizer).get("add_noise") == self._plant_then_add_noise:
            del optimizer.add_noise
            if self._previous is not None:
                optimizer.add_noise = self._previous
            self._add_noise = None
        self._ledger.deafen()
        self._ledger.close()
        if self._monitor is not None:
            self._monitor.close(failed=kind is not None)
        with self._locked:
            if kind is None and self._checkpoint is not None:
                self.save(self._checkpoint)

    def _plant_then_add_noise(self) -> None:
        """Stands in for the optimizer's `add_noise` while attached."""
        if self._entered:
            self._before_noise()
        self._add_noise()

    def _before_noise(self) -> None:
        optimizer = self._optimizer
        sums = self._clipped_sums()
        self._check_same_step()
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
        clip_norm = float(optimizer.max_grad_norm)
        scale = 1.0
        if optimizer.loss_reduction == "mean":
            scale = optimizer.expected_batch_size * optimizer.accumulated_iterations * self._world
        # Also where it is not taken off the canaries: the noise is seen by itself all the same.
        clean = self._places.read(sums) if self._places is not None else torch.zeros(0)
        if self._world > 1:
            torch.distributed.all_reduce(clean)
        if self._probe is None and self._rank == 0 and self._planted.size:
            if self._inject == "sum":
                self._coordinates.plant(sums, self._planted, clip_norm)
            else:
                send_through_clipping(
                    optimizer, self._parameters, self._coordinates, self._planted, clip_norm
                )
        self._step = _Step(
            clip_norm=clip_norm,
            noise_multiplier=run.gradient_noise_multiplier(optimizer),
            scale=float(scale),
            clean=clean,
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
        count = int(self._optimizer.accumulated_iterations)
        self._accumulated.add(count)
        fresh = self.steps == 0 and self._planted is None and self._store is None
        if count > 1 and fresh and self._probe is None and self._sampling.by_batch:
            self._recorder = self._make_recorder(self._rate_of_a_step([count]))

    def _rate_of_a_step(self, accumulated: Iterable[int]) -> float:
        """How often a record is in a step that accumulates so many batches."""
        return min(1.0, self._sampling.rate * (max(accumulated) if self._sampling.by_batch else 1))

    def _clipped_sums(self) -> list[torch.Tensor]:
        sums: list[torch.Tensor] = []
        for parameter, name in zip(self._parameters, self._names, strict=True):
            value = getattr(parameter, "summed_grad", None)
            # Opacus leaves what a parameter had when it was frozen: an old sum, not this step's.
            if value is None or not parameter.requires_grad:
                raise RecordingError(
                    f"Expected a clipped sum for every parameter, parameter {name} has none. It "
                    "was trainable when the audit was attached: freeze parameters before that."
                )
            sums.append(value)
        return sums

    def _observe(self, *_: Any) -> None:
        """Runs as the wrapped torch optimizer begins its step."""
        step, self._step = self._step, None
        if step is None:
            self._unnoised += 1
            return
        if self._probe is not None:
            self._observe_examples(self._probe, step)
            return
        coordinates = self._coordinates
        # The only waits for the device in a step.
        released = coordinates.read([_gradient(item) for item in self._parameters]).cpu().double()
        released *= step.scale
        values = released.numpy()
        # Infinite gradients leave nan here. They are recorded, and the audit says so.
        noise = values - step.clean.cpu().numpy()
        try:
            self._recorder.observe(
                coordinates.along(noise if self._known else values),
                background=0.0 if self._known else None,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
                watch=coordinates.watched(noise),
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
            noisy = self._watch.coordinates.read(released).cpu().double() * step.scale
            self._watch.add(noisy - step.clean.cpu(), step.clip_norm)
        with np.errstate(invalid="ignore", over="ignore"):
            self._recorder.observe(
                probe.along(released, planted, step.clip_norm) * step.scale,
                planted=planted,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
            )

    def transcript(self) -> Transcript:
        """The transcript of the steps recorded so far.

        Raises:
            RecordingError: No step was recorded.
        """
        if self.steps == 0:
            raise RecordingError(
                f"Expected at least one step with noise, got none ({self._unnoised} steps of the "
                "wrapped optimizer went by without). Train inside the with block, with the "
                "optimizer that make_private returned."
            )
        recorded = self._recorder.transcript()
        entries = self._ledger.entries()
        rates = {rate for _, rate in entries or ()}
        used = {float(noise) for noise in np.unique(recorded.steps.noise_multiplier)}
        counted = {noise for noise, _ in entries or ()}
        # The claim is what was accounted for, even where the optimizer says otherwise.
        differs = bool(counted) and counted != used and not run.adapts_clipping(self._optimizer)
        claimed = counted if differs else used
        facts = replace(
            recorded.facts,
            noise_multiplier=claimed.pop() if len(claimed) == 1 else None,
            accounted_steps=None if entries is None else self._ledger.total,
            accounted=() if entries is None else self._ledger.history(),
            epsilon_reads=self._ledger.reads,
            outside=self._outside.names,
            outside_moved=self._outside.moved(),
            watch_background="known" if self._watched_all else None,
            accounted_sampling_rate=rates.pop() if len(rates) == 1 else None,
            unnoised_steps=self._unnoised,
            loader_poisson=self._sampling.poisson,
            tensors=self._names,
            exercised=_EXERCISED[self._inject],
            precision=tuple(
                sorted({str(item.dtype).removeprefix("torch.") for item in self._parameters})
            ),
            notes=(*self._sampling.notes, *self._notes(differs)),
        )
        if self._probe is None:
            return recorded.with_facts(facts)
        facts = replace(
            facts,
            poisson=self._sampling.poisson is True or self._sampling.declared,
            poisson_declared=self._sampling.poisson is None and self._sampling.declared,
            skipped_steps=self._probe.skipped,
            contribution=self._probe.contribution,
            notes=(*facts.notes, *self._probe.notes()),
        )
        recorded = replace(recorded, facts=facts, gram=self._probe.gram)
        if self._watch is None or not self._watched_all:
            return recorded
        return replace(
            recorded, watch_values=self._watch.values, watch_tensor=self._watch.tensor.copy()
        )

    def _transcript_for(self, claim: PrivacyClaim | None) -> Transcript:
        """The transcript, with what the accountant itself says at the delta of the claim."""
        recorded = self.transcript()
        if claim is None:
            return recorded
        epsilon = self._ledger.epsilon(float(claim.delta))
        return recorded.with_facts(replace(recorded.facts, accounted_epsilon=epsilon))

    def _notes(self, noise_differs: bool) -> list[str]:
        notes = [*filter(None, [untried()]), *accounting_notes(self._ledger, noise_differs)]
        if len(self._accumulated) > 1 or (self._store is not None and max(self._accumulated) > 1):
            notes.append(
                f"steps accumulate {min(self._accumulated)} to {max(self._accumulated)} batches, "
                "and canaries are planted at the rate of one batch."
            )
        unaudited = run.unaudited_parameters(self._optimizer, self._parameters)
        if unaudited:
            notes.append(
                f"{unaudited} tensors began to train after the audit was made: no canary is there."
            )
        if self._discarded:
            notes.append(f"noise was added {self._discarded} times without a step after it.")
        if run.adapts_clipping(self._optimizer):
            notes.append(
                "adaptive clipping spends part of the budget on the clip norm, and adds more noise "
                "to the gradients than the accountant's multiplier says."
            )
        if isinstance(self._optimizer, DPPerLayerOptimizer) and self._inject == "sample":
            norms = np.asarray(self._optimizer.max_grad_norms) / self._optimizer.max_grad_norm
            share = self._coordinates.clipped_apart(norms)[self._canaries.member].max(initial=0.0)
            notes.append(
                f"each layer clips its own part of a canary: at most {share:.3g} of the whole clip "
                "norm gets through."
            )
        return notes

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart: tensors and plain values.

        Put it in the same file as the state of model and optimizer, so that the two never part.
        """
        state = self._arrays()
        plain = {"state": state.pop("state"), "audit": _plain.to_plain(self._progress())}
        return {**{name: torch.from_numpy(array) for name, array in state.items()}, **plain}

    def _arrays(self) -> dict[str, Any]:
        state = self._recorder.state_dict()
        if self._probe is not None:
            state |= self._probe.arrays()
        return state if self._watch is None else state | self._watch.arrays()

    def _progress(self) -> _Progress:
        return _Progress(
            inject=self._inject,
            known=self._known,
            seed=self._canaries.root_seed,
            unnoised=self._unnoised,
            discarded=self._discarded,
            ledger=self._ledger.state(),
            examples=None if self._probe is None else self._probe.progress,
            weights=digest(self._places, self._parameters),
            accumulated=tuple(sorted(self._accumulated)),
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            RecordingError: The state belongs to another run. The audit stays as it was.
            FileFormatError: The state is not one of an audit, or parts of it are missing.
        """
        progress: _Progress = _plain.from_plain(_Progress, state.get("audit"), "audit")
        for name, theirs, mine in (
            ("inject", progress.inject, self._inject),
            ("known background", progress.known, self._known),
        ):
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Resume with the same settings."
                )
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
            if name != "audit"
        }
        if self._probe is not None:
            self._probe.check(arrays, progress.examples)
        recorder = self._recorder
        if self._probe is None and self._store is None and len(progress.accumulated) == 1:
            recorder = self._make_recorder(self._rate_of_a_step(progress.accumulated))
        recorder.load_state_dict(arrays)
        self._recorder = recorder
        if self._probe is not None:
            self._probe.load(arrays, progress.examples)
        if self._watch is not None:
            self._watched_all = self._watch.load(arrays, self.steps)
        self._weights, self._accumulated = progress.weights, set(progress.accumulated)
        self._planted = arrays["drawn"].copy() if "drawn" in arrays else None
        self._step = None
        self._unnoised, self._discarded = progress.unnoised, progress.discarded
        self._ledger.load(progress.ledger)

    def save(self, path: str | os.PathLike[str] | None = None) -> None:
        """Write a checkpoint, whole or not at all; of several ranks, the first one writes.

        Args:
            path: Where; the audit's own ``checkpoint`` if not given.
        """
        target = self._checkpoint if path is None else Path(path)
        if target is None:
            raise _validate.fail("path", path, "to be a file", "Or give the audit checkpoint=.")
        if self._rank != 0:
            return
        arrays = self._arrays()
        plain = {"state": arrays.pop("state"), "audit": _plain.to_plain(self._progress())}
        _files.write_arrays(target, _KIND, _SCHEMA, arrays, plain)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint that `save` wrote.

        Raises:
            RecordingError: It belongs to another run.
            FileFormatError: It is no such checkpoint.
        """
        arrays, content = _files.read_arrays(path, _KIND, _SCHEMA)
        plain = {name: content.get(name) for name in ("state", "audit")}
        self.load_state_dict({**arrays, **plain})


def _check_for_examples(inject: str, background: str, seed: int | None) -> None:
    if inject != "sum":
        raise _validate.fail(
            "inject", inject, "to be left out", "Examples go through the whole training anyway."
        )
    if background == "known":
        raise UnsupportedError(
            "background='known' needs places where the other records' sum can be read: what they "
            "add along an example's gradient is not known. Use 'unknown', or DiracCanaries."
        )
    if seed is not None:
        raise _validate.fail("seed", seed, "to be None", "The canaries bring their own.")


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        raise RecordingError(
            "Expected a noisy gradient for every audited parameter as the optimizer steps, one has "
            "none. Freeze parameters before attaching the audit."
        )
    return parameter.grad
