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
import functools
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries, fresh_seed
from askgauss.claims import PrivacyClaim
from askgauss.commitment import Commitment, commit
from askgauss.diagnostics.shipped import moved_by_the_release
from askgauss.exceptions import (
    MissingExtraError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.monitor import Monitor, monitor_of
from askgauss.recorder import Recorder
from askgauss.results import Consequence, Status
from askgauss.sampling import Poisson, Scheme
from askgauss.transcript import Transcript

try:
    import torch

    from askgauss.integrations._opacus_versions import DPPerLayerOptimizer, untried
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.integrations import _opacus_run as run
from askgauss.integrations._canary_choice import choose_canaries
from askgauss.integrations._clip_witness import ClipWitness
from askgauss.integrations._coordinates import CanaryCoordinates
from askgauss.integrations._examples import ExampleProbe
from askgauss.integrations._ledger import Ledger, accounted_facts, accounting_notes
from askgauss.integrations._loader_watch import LoaderWatch
from askgauss.integrations._noise_watch import NoiseWatch
from askgauss.integrations._opacus_restarts import Progress, Restartable, read_progress
from askgauss.integrations._ranks import agree, meet, shared_nonce
from askgauss.integrations._restarts import check_weights, digest, only_copy
from askgauss.integrations._rows import send_through_clipping
from askgauss.integrations._shadow import Shadow
from askgauss.integrations._stand_in import StandIn

__all__ = ["CanaryAudit"]

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
    batches: int


class CanaryAudit(Restartable):
    """Plants canaries in an Opacus run and records what each step releases about them.

    Use it as a context manager around the training loop. It may be entered again after it was left,
    and goes on recording. Random choices come from streams of its own: with no canary present,
    training ends in the very same weights as without an audit.

    When their number is left to the audit, present canaries are few beside the records and the
    parameters: a twentieth of the former, a sixteenth of the latter and 1,000 at most, unless the
    planned steps need more for a verdict. Each acts like one more record, and a sixteenth of the
    parameters moves the weights no more than 8 % more noise would. Absent ones cost the training
    nothing and fill up to 5,000. These numbers are fixed; for auditors that guess membership give a
    number, which makes each present by a fair coin.

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
        present: How many present canaries, instead of ``canaries``; an inconclusive result says how
            many would do.
        absent: How many absent canaries, instead of ``canaries``.
        planned_steps: How many steps the run will take, so that the audit plants as many canaries
            as a verdict on them needs; a few hundred are taken for granted.
        inject: ``"sample"`` sends each canary through the optimizer's own clipping, as a gradient
            far above the clip norm. ``"sum"`` adds canaries to the clipped sum, which is cheapest
            and leaves clipping to the witness. ``"auto"`` is ``"sample"`` wherever the optimizer
            clips rows, and ``"sum"`` with ghost or adaptive clipping.
        seed: Root of the audit's random choices; drawn and recorded if not given.
        data_loader: The training loader, which knows the true sampling rate and whether sampling
            is Poisson. Recommended.
        accountant: The run's accountant or PrivacyEngine; found behind the optimizer's hook if not
            given.
        sampling_rate: The run's sampling rate, where neither loader nor accountant tells.
        sampling: How the loader draws its batches, a scheme of `askgauss.sampling`, where that is
            not Poisson sampling. Canaries are drawn by the same law, the loader's batches are held
            against it, and what was accounted is compared with it.
        background: Whether to subtract the other records' clean sum, which the auditor can see:
            ``"known"`` gives far tighter bounds and needs Poisson sampling; ``"auto"`` is known
            unless the loader says that sampling is not Poisson.
        model: The model, for the names of its parameters, and to notice those that could train
            outside the optimizer; examples need it for their gradients.
        criterion: The loss of the training, for examples.
        every: With examples, observe one step in so many: each costs a gradient a canary. The bound
            is on what the observed steps leak together.
        witness: Share of the steps, beside the first, that are looked at exactly: what each record
            adds after clipping, that the sum is theirs, that every trained tensor gets noise. For
            ghost clipping, gradients of two records a batch are computed again. 0 for none.
        claim: What the run claims, to commit to before the first step together with seed and coins:
            the digest is printed, and kept in transcript and result.
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
        present: int | None = None,
        absent: int | None = None,
        planned_steps: int | None = None,
        inject: Literal["auto", "sum", "sample"] = "auto",
        seed: int | None = None,
        data_loader: Any = None,
        accountant: Any = None,
        sampling_rate: float | None = None,
        sampling: Scheme | None = None,
        background: Literal["auto", "known", "unknown"] = "auto",
        model: torch.nn.Module | None = None,
        criterion: Any = None,
        every: int = 1,
        witness: float = 0.02,
        claim: PrivacyClaim | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        monitor: Monitor | bool | None = None,
    ) -> None:
        _validate.one_of(("auto", "sum", "sample"), inject=inject)
        _validate.one_of(("auto", "known", "unknown"), background=background)
        given: Any = claim
        if not isinstance(given, (PrivacyClaim, type(None))):
            hint = "Make it with PrivacyClaim(epsilon=..., delta=...)."
            raise _validate.fail("claim", claim, "to be a claim", hint)
        self._claim = claim
        self._commitment: Commitment | None = None
        optimizer = run.unwrapped(optimizer)
        run.check_optimizer(optimizer, inject)
        self._optimizer = optimizer
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._before_restart = read_progress(self._checkpoint)
        self._inject = self._widest() if inject == "auto" else str(inject)
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
        self._sampling = run.find_sampling(data_loader, sampling_rate, accounted_rate, sampling)
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
                rows=self._inject == "sample",
                spread=isinstance(optimizer, DPPerLayerOptimizer),
                seed=seed,
                draw_seed=self._draw_seed,
                present=present,
                absent=absent,
                sampling_rate=self._sampling.rate,
                noise_multiplier=run.gradient_noise_multiplier(optimizer),
                planned_steps=planned_steps,
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
        watched = None if isinstance(canaries, ExampleCanaries) else data_loader
        held = self._sampling.against(accounted_rate)
        self._loader = LoaderWatch(watched, held, self._world)
        self._shadow: Shadow | None = None
        if (places := self._places) is not None:
            self._shadow = Shadow(
                optimizer.original_optimizer, self._parameters, places, self._names
            )
        self._spacing = max(float(torch.finfo(item.dtype).eps) for item in self._parameters)
        named = run.parameter_names(optimizer, self._parameters, self._names, model)
        self._witness = ClipWitness(optimizer, named, witness, self._canaries.root_seed)
        self._weights = ""
        self._accumulated: set[int] = set()
        self._planted: NDArray[np.int64] | None = None
        self._step: _Step | None = None
        self._unnoised = 0
        self._discarded = 0
        self._entered = False
        self._add_noise: StandIn | None = None
        self._hook: Any = None
        if self._checkpoint is not None and self._checkpoint.exists():
            with only_copy(self._shared):
                self.load(self._checkpoint)

    def _widest(self) -> str:
        """How canaries go in: through the clipper, wherever rows can be sent through it.

        Adaptive clipping counts the rows that it clips, and would count canaries too.
        """
        if self._before_restart is not None:
            return self._before_restart.inject
        narrow = run.clips_without_rows(self._optimizer) or run.adapts_clipping(self._optimizer)
        return "sum" if narrow else "sample"

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

    def _records(self) -> float:
        """About how many records the run trains on."""
        lot = self._optimizer.expected_batch_size
        return math.inf if lot is None else float(lot) * self._world / self._sampling.rate

    def _draw_seed(self) -> int | None:
        """The seed of the checkpoint, or one that all ranks share; None for a fresh one."""
        if self._before_restart is not None:
            return self._before_restart.seed
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
        self._commit()
        self._ledger.listen()
        self._hook = optimizer.original_optimizer.register_step_pre_hook(self._observe)
        self._add_noise = StandIn(optimizer, "add_noise", self._plant_then_add_noise)
        _attached.add(optimizer)
        if self._shadow is not None:
            self._shadow.attach(lambda: self.steps)
        self._witness.attach(self.steps)
        self._loader.listen()
        if self._probe is not None:
            self._probe.listen()
        self._entered = True
        return self

    def _commit(self) -> None:
        """Fix seed, coins and claim, and say so, before the first step."""
        if self._commitment is not None or self.steps:
            return
        self._commitment = commit(
            seed=self._canaries.root_seed,
            member=self._canaries.member,
            claim=self._claim,
            nonce=shared_nonce(self._world, self._parameters[0].device),
        )
        if self._rank == 0:
            what = "seed and coins" if self._claim is None else "seed, coins and claim"
            sys.stderr.write(f"askgauss committed to {what}: sha256 {self._commitment.digest}\n")

    def _own_claim(self) -> PrivacyClaim | None:
        return self._claim

    @property
    def commitment(self) -> str | None:
        """The digest of seed, coins and claim, fixed before the first step."""
        return None if self._commitment is None else self._commitment.digest

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
        if self._shadow is not None:
            self._shadow.detach()
        self._witness.detach()
        self._loader.deafen()
        self._hook.remove()
        if self._add_noise is not None and self._add_noise.remove():
            self._add_noise = None
        self._ledger.deafen()
        self._ledger.close()
        with self._locked:
            if kind is None and self._checkpoint is not None:
                self.save(self._checkpoint)
        if self._monitor is not None:
            if kind is None:
                self._tell_of_weights()
            self._monitor.close(failed=kind is not None)

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """Declare that what changes the weights in here reads released weights and no data.

        Weights that change between two steps make the verdict INVALID, since whatever wrote them
        was not audited. Clamping them, or going back to earlier ones, is postprocessing::

            with audit.postprocessing():
                clamp(model)

        The result says how often that was declared.
        """
        if self._shadow is None:
            yield
            return
        with self._shadow.declared():
            yield

    def _plant_then_add_noise(self, add_noise: Callable[[], None]) -> None:
        """Stands in for the optimizer's `add_noise` while attached."""
        self._before_noise()
        add_noise()
        self._after_noise()

    def _after_noise(self) -> None:
        step, places = self._step, self._places
        assert step is not None
        # Over several ranks, the sum that is divided is not the one that is seen here.
        noisy = None
        if places is not None and self._world == 1:
            noisy = places.read([_gradient(item) for item in self._parameters])
        noise = step.noise_multiplier * step.clip_norm if self._rank == 0 else 0.0
        self._witness.after_noise(noisy, noise)

    def _before_noise(self) -> None:
        optimizer = self._optimizer
        sums = self._clipped_sums()
        self._witness.before_noise()
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
                rows = functools.partial(
                    send_through_clipping,
                    *(optimizer, self._parameters, self._coordinates, self._planted, clip_norm),
                )
                self._witness.aside(rows)
        self._step = _Step(
            clip_norm=clip_norm,
            noise_multiplier=run.gradient_noise_multiplier(optimizer),
            scale=float(scale),
            clean=clean,
            batches=int(optimizer.accumulated_iterations),
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

    def _observe(self, _: Any, arguments: Any, options: Any) -> None:
        """Runs as the wrapped torch optimizer begins its step."""
        self._record_step(arguments, options)
        self._tell_of_weights()

    def _tell_of_weights(self) -> None:
        """Tell the monitor how the weights moved in the steps that are over."""
        if self._monitor is None or self._shadow is None:
            return
        found = moved_by_the_release(self._shadow.moves)
        if found.status is Status.FAIL and found.consequence is Consequence.BREACH:
            self._monitor.breach("weights", found.summary)
        elif found.status is not Status.NOT_RUN:
            self._monitor.check_weights(0.0, 0.0)

    def _record_step(self, arguments: Any, options: Any) -> None:
        step, self._step = self._step, None
        places, gradient = self._places, None
        if step is not None and places is not None:
            gradient = places.read([_gradient(item) for item in self._parameters])
        if self._shadow is not None:
            self._shadow.begin(arguments, options, gradient)
        if step is None:
            self._unnoised += 1
            return
        if self._probe is not None:
            self._observe_examples(self._probe, step)
            self._witness.finish()
            return
        self._loader.step(step.batches)
        coordinates = self._coordinates
        # The only waits for the device in a step.
        assert gradient is not None
        released = gradient.cpu().double()
        self._witness.divided(released.numpy(), step.scale, self._spacing)
        self._witness.finish()
        values = released.numpy() * step.scale
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
            noisy = self._watch.coordinates.read(released).cpu().double()
            self._witness.divided(noisy.numpy(), step.scale, self._spacing)
            self._watch.add(noisy * step.scale - step.clean.cpu(), step.clip_norm)
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
        facts, differs = accounted_facts(
            recorded, self._ledger, tolerate=run.adapts_clipping(self._optimizer)
        )
        batches, accounted = self._loader.drawn, None
        if self._sampling.scheme is not None and facts.accounted_sampling_rate:
            # Opacus' accountants know no other scheme.
            accounted = Poisson(rate=facts.accounted_sampling_rate)
        facts = replace(
            facts,
            outside=self._outside.names,
            outside_moved=self._outside.moved(),
            watch_background="known" if self._watched_all else None,
            weights=None if self._shadow is None else self._shadow.facts,
            witness=self._witness.facts,
            commitment=self._commitment,
            unnoised_steps=self._unnoised,
            loader_poisson=self._sampling.poisson,
            tensors=self._names,
            batches=batches,
            accounted_scheme=accounted,
            records=self._loader.records,
            exercised=(*(() if batches is None else ("sampler",)), *_EXERCISED[self._inject]),
            precision=tuple(
                sorted({str(item.dtype).removeprefix("torch.") for item in self._parameters})
            ),
            notes=(*self._sampling.notes, *self._loader.notes(), *self._notes(differs)),
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

    def _arrays(self) -> dict[str, Any]:
        state = self._recorder.state_dict()
        if self._probe is not None:
            state |= self._probe.arrays()
        state |= self._loader.arrays()
        return state if self._watch is None else state | self._watch.arrays()

    def _progress(self) -> Progress:
        return Progress(
            inject=self._inject,
            known=self._known,
            seed=self._canaries.root_seed,
            unnoised=self._unnoised,
            discarded=self._discarded,
            ledger=self._ledger.state(),
            examples=None if self._probe is None else self._probe.progress,
            weights=digest(self._places, self._parameters),
            accumulated=tuple(sorted(self._accumulated)),
            moves=None if self._shadow is None else self._shadow.facts,
            witness=self._witness.facts,
            commitment=self._commitment,
        )

    def _go_on(self, arrays: dict[str, Any], progress: Progress) -> None:
        for name, theirs, mine in (
            ("inject", progress.inject, self._inject),
            ("known background", progress.known, self._known),
        ):
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Resume with the same settings."
                )
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
        self._loader.load(arrays, self.steps)
        self._weights, self._accumulated = progress.weights, set(progress.accumulated)
        self._planted = arrays["drawn"].copy() if "drawn" in arrays else None
        self._step = None
        self._unnoised, self._discarded = progress.unnoised, progress.discarded
        self._ledger.load(progress.ledger)
        if self._shadow is not None:
            self._shadow.load(progress.moves)
        self._witness.load(progress.witness)
        self._commitment = progress.commitment


def _check_for_examples(inject: str, background: str, seed: int | None) -> None:
    if inject != "auto":
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
