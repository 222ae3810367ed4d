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

import hashlib
import math
import os
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _files, _plain, _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries, fresh_seed
from askgauss.exceptions import (
    MissingExtraError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.monitor import Monitor
from askgauss.recorder import Recorder
from askgauss.transcript import Transcript

try:
    import torch
    from opacus.optimizers import DPPerLayerOptimizer
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.integrations import _opacus_run as run
from askgauss.integrations._audited import AuditedRun
from askgauss.integrations._canary_choice import choose_canaries
from askgauss.integrations._coordinates import CanaryCoordinates
from askgauss.integrations._examples import ExampleProbe, ProbeProgress

__all__ = ["CanaryAudit"]

_KIND = "askgauss-opacus-audit"
_SCHEMA = 1
# Rows that go through the clipper together: each is as large as the whole model.
_ROWS = 8
# A canary's row before clipping, in clip norms at each of its coordinates.
_FAR_ABOVE = 100.0
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
    clean: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The part of a checkpoint that is not the recorder's."""

    inject: str
    known: bool
    seed: int
    unnoised: int
    discarded: int
    ledger: run.LedgerState
    examples: ProbeProgress | None = None


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
    own gradients, with the background unknown. They need ``model``, ``criterion`` and
    ``data_loader``, one process, and a loader without workers::

        data = canaries.dataset(train_set)      # then DataLoader(data, ...) and make_private(...)
        audit = CanaryAudit(optimizer, canaries=canaries, model=model, criterion=loss,
                            data_loader=loader)

    Args:
        optimizer: The optimizer `PrivacyEngine.make_private` returned.
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
        model: The model, for the names of its parameters; examples need it for their gradients.
        criterion: The loss of the training, for examples.
        every: With examples, observe one step in so many: each costs a gradient a canary. The bound
            is on what the observed steps leak together.
        checkpoint: A file to go on from if it exists; `save` writes it, and so does leaving the
            context without an error.
        store: A file to keep every step in as well, for `StepStore`; not with several ranks.
        monitor: Watches every step, and may stop the run: ``Monitor(claim=claim)``. All ranks see
            the same sums, so that they alarm in the same step.

    Raises:
        InvalidArgumentError: An argument is wrong, or no sampling rate can be found.
        UnsupportedError: This kind of optimizer cannot be audited the way it was asked.
        RecordingError: The checkpoint belongs to another run.

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
        monitor: Monitor | None = None,
    ) -> None:
        _validate.one_of(("sum", "sample"), inject=inject)
        _validate.one_of(("auto", "known", "unknown"), background=background)
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
        self._parameters = run.audited_parameters(optimizer)
        found, accounted_rate = run.find_accountant(optimizer, accountant)
        self._ledger = run.Ledger(found)
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
        self._recorder = Recorder(
            self._canaries,
            sampling_rate=self._sampling.rate,
            clip_norm=float(optimizer.max_grad_norm),
            noise_multiplier=run.gradient_noise_multiplier(optimizer),
            store=store,
            monitor=monitor,
        )
        self._monitor = monitor
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
        self._planted: NDArray[np.int64] | None = None
        self._step: _Step | None = None
        self._unnoised = 0
        self._discarded = 0
        self._entered = False
        self._add_noise: Any = None
        self._previous: Any = None
        self._hook: Any = None
        if self._checkpoint is not None and self._checkpoint.exists():
            self.load(self._checkpoint)

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
        self._check_ranks()
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
        self._ledger.close()
        if self._monitor is not None:
            self._monitor.close(failed=kind is not None)
        if kind is None and self._checkpoint is not None:
            self.save(self._checkpoint)

    def _check_ranks(self) -> None:
        """All ranks must plant and watch alike, or the sums they share mean nothing."""
        if self._world == 1:
            return
        facts = f"{self._canaries.fingerprint()} {self._sampling.rate} {self._known} {self.steps}"
        value = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:7], "big")
        extremes = torch.tensor([value, -value], device=self._parameters[0].device)
        torch.distributed.all_reduce(extremes, op=torch.distributed.ReduceOp.MAX)
        if int(extremes[0]) != -int(extremes[1]):
            raise RecordingError(
                "Expected every rank to attach the same audit, got different ones. Give all ranks "
                "the same canaries, seed, sampling rate and checkpoint."
            )

    def _plant_then_add_noise(self) -> None:
        """Stands in for the optimizer's `add_noise` while attached."""
        if self._entered:
            self._before_noise()
        self._add_noise()

    def _before_noise(self) -> None:
        optimizer = self._optimizer
        sums = self._clipped_sums()
        self._ledger.open()
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
        clean = None
        if self._known:
            clean = self._coordinates.read(sums)
            if self._world > 1:
                torch.distributed.all_reduce(clean)
        if self._probe is None and self._rank == 0 and self._planted.size:
            if self._inject == "sum":
                self._coordinates.plant(sums, self._planted, clip_norm)
            else:
                self._send_through_clipping(self._planted, clip_norm)
        self._step = _Step(
            clip_norm=clip_norm,
            noise_multiplier=run.gradient_noise_multiplier(optimizer),
            scale=float(scale),
            clean=clean,
        )

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

    def _send_through_clipping(self, planted: NDArray[np.int64], clip_norm: float) -> None:
        """Let the optimizer clip and add the planted canaries as it does any gradient."""
        optimizer = self._optimizer
        parameters = list(optimizer.params)
        place = {id(parameter): index for index, parameter in enumerate(self._parameters)}
        saved = [parameter.grad_sample for parameter in parameters]
        try:
            for start in range(0, planted.size, _ROWS):
                chunk = planted[start : start + _ROWS]
                rows: dict[int, torch.Tensor] = {}
                for parameter, sample in zip(parameters, saved, strict=True):
                    like = sample[0] if isinstance(sample, list) else sample
                    parameter.grad_sample = like.new_zeros((chunk.size, *parameter.shape))
                    rows[place.get(id(parameter), -1)] = parameter.grad_sample
                ours = [rows[index] for index in range(len(self._parameters))]
                self._coordinates.fill_rows(ours, chunk, _FAR_ABOVE * clip_norm)
                optimizer.clip_and_accumulate()
        finally:
            for parameter, sample in zip(parameters, saved, strict=True):
                parameter.grad_sample = sample

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
        if step.clean is not None:
            # Infinite gradients leave nan here. They are recorded, and the audit says so.
            released -= step.clean.cpu()
        values = released.numpy()
        try:
            self._recorder.observe(
                coordinates.along(values),
                background=None if step.clean is None else 0.0,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
                watch=coordinates.watched(values),
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
            accounted_steps=None if entries is None else sum(entries.values()),
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
            poisson=self._sampling.poisson is True,
            skipped_steps=self._probe.skipped,
            contribution=self._probe.contribution,
            notes=(*facts.notes, *self._probe.notes()),
        )
        return replace(recorded, facts=facts, gram=self._probe.gram)

    def _notes(self, noise_differs: bool) -> list[str]:
        notes = run.accounting_notes(self._ledger, noise_differs)
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
        return state if self._probe is None else state | self._probe.arrays()

    def _progress(self) -> _Progress:
        return _Progress(
            inject=self._inject,
            known=self._known,
            seed=self._canaries.root_seed,
            unnoised=self._unnoised,
            discarded=self._discarded,
            ledger=self._ledger.state(),
            examples=None if self._probe is None else self._probe.progress,
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
        self._recorder.load_state_dict(arrays)
        if self._probe is not None:
            self._probe.load(arrays, progress.examples)
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
