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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries, fresh_seed
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import (
    MissingExtraError,
    RecordingError,
    UnsupportedError,
)
from askgauss.files.checkpoint import CheckpointFiles
from askgauss.monitor import Monitor, monitor_of
from askgauss.recording.commitment import Commitment, commit
from askgauss.sampling import Scheme

try:
    import torch

    from askgauss.integrations.opacus.opacus_versions import DPPerLayerOptimizer
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.integrations.attachment import Attachment, Leaving
from askgauss.integrations.canary_choice import choose_canaries
from askgauss.integrations.guard import Guard
from askgauss.integrations.opacus import run_description as run
from askgauss.integrations.opacus.attach_checks import (
    check_folder,
    check_model,
    warn_of_few_canaries,
    warn_of_loader,
)
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
from askgauss.integrations.opacus.opacus_transcript import RecordedRun
from askgauss.integrations.opacus.ranks import agree, meet, shared_nonce
from askgauss.integrations.opacus.restarts import read_progress
from askgauss.integrations.opacus.settings_watch import SettingsWatch
from askgauss.integrations.opacus.shadow import Shadow
from askgauss.integrations.opacus.shards import ShardedCoordinates, is_sharded, shards_of
from askgauss.integrations.patched_method import StandIn

__all__ = ["CanaryAudit"]

_attached: weakref.WeakSet[Any] = weakref.WeakSet()


class CanaryAudit(RecordedRun):
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
            as a verdict on them needs; a few hundred are taken for granted. For a monitor it is the
            planned end, where no claim says so.
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
        InvalidArgumentError: An argument is wrong, the model is another than the optimizer's, a
            file cannot be written, or no sampling rate can be found.
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
        if self._rank == 0:
            check_folder("checkpoint", checkpoint)
            check_folder("store", store)
        meet(self._rank, self._world)
        self._checkpoints = CheckpointFiles()
        self._parameters = run.audited_parameters(optimizer)
        check_model(model, self._parameters)
        self._outside = run.OutsideParameters(optimizer, model)
        found, accounted_rate = run.find_accountant(optimizer, accountant)
        self._ledger = Ledger(found)
        self._sampling = run.find_sampling(data_loader, sampling_rate, accounted_rate, sampling)
        warn_of_loader(self._sampling)
        self._known = False
        if not isinstance(canaries, ExampleCanaries):
            self._known = run.background_known(background, self._sampling)
        self._whole = self._names = run.tensor_names(optimizer, self._parameters, model)
        self._sharded = is_sharded(self._parameters)
        sizes = tuple(parameter.numel() for parameter in self._parameters)
        shards = shards_of(self._parameters, self._names) if self._sharded else []
        if shards:
            # What a rank holds of a tensor is a tensor of its own, by name.
            self._names = tuple(
                f"{self._whole[item.parameter]} on rank {item.rank}" for item in shards
            )
            sizes = tuple(item.size for item in shards)
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
                sizes=sizes,
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
            if canaries is not None or present is not None:
                warn_of_few_canaries(
                    int(self._canaries.member.sum()),
                    sampling_rate=self._sampling.rate,
                    noise_multiplier=run.gradient_noise_multiplier(optimizer),
                    planned_steps=planned_steps,
                )
            self._coordinates = (
                ShardedCoordinates(self._parameters, shards, self._canaries)
                if shards
                else CanaryCoordinates(self._parameters, self._canaries)
            )
        self._monitor = monitor_of(monitor)
        self._planned_end = (claim and claim.steps) or planned_steps
        self._store = store
        if self._checkpoint is not None and self._rank == 0:
            self._checkpoints.holds.take(self._checkpoint)
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
        self._loader = LoaderWatch(
            data_loader,
            self._sampling.against(accounted_rate),
            self._world,
            optimizer=optimizer,
            parameters=self._parameters,
            model=model,
            rows_only=self._probe is not None,
        )
        self._guard = Guard(active=self._world == 1)
        self._shadow: Shadow | None = None
        if (places := self._places) is not None:
            self._shadow = Shadow(
                optimizer.original_optimizer, self._parameters, places, self._names, self._guard
            )
        self._spacing = max(float(torch.finfo(item.dtype).eps) for item in self._parameters)
        named = run.parameter_names(optimizer, self._parameters, self._whole, model)
        self._settings = SettingsWatch(optimizer)
        self._frozen: FrozenTensors | None = None
        if isinstance(self._canaries, DiracCanaries) and not self._sharded and store is None:
            self._frozen = FrozenTensors(self._canaries, self._names)
        self._beside = False
        self._witness = ClipWitness(
            optimizer, named, witness, self._canaries.root_seed, self._world, self._guard
        )
        self._clip_count = ClipCountWatch(optimizer, self._world)
        self._sampled = SampledNoise(optimizer, self._parameters)
        self._weights = ""
        self._accumulated = set()
        self._planted = None
        self._step = None
        self._arrived = {}
        self._unnoised = 0
        self._discarded = 0
        self._seeds, self._unprobed = None, True
        self._entered = False
        self._attachment = Attachment()
        self._add_noise: StandIn | NoiseByParameter | None = None
        if self._checkpoint is not None and self._checkpoint.exists():
            self.load(self._checkpoint)
        # A file of a live run was refused. Entering holds these, for only leaving gives them back.
        self._let_go_of_files()

    def _widest(self) -> str:
        """How canaries go in: through the clipper, wherever rows can be sent through it.

        Adaptive clipping counts the rows that it clips, and would count canaries too.
        """
        if self._before_restart is not None:
            return self._before_restart.inject
        optimizer = self._optimizer
        narrow = (
            run.clips_without_rows(optimizer)
            or run.adapts_clipping(optimizer)
            or run.noise_by_parameter(optimizer)
        )
        return "sum" if narrow else "sample"

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

    def __repr__(self) -> str:
        return (
            f"CanaryAudit({self._canaries.size} canaries, inject={self._inject!r}, "
            f"steps={self.steps}, {'attached' if self._entered else 'not attached'})"
        )

    def __enter__(self) -> CanaryAudit:
        optimizer = self._optimizer
        if self._monitor is not None:
            self._monitor.plan(self._planned_end)
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
        try:
            self._attach(self._attachment)
            return self
        except BaseException:
            self._attachment.__exit__(*sys.exc_info())
            raise

    def _attach(self, attachment: Attachment) -> None:
        """Begin to plant and to watch; each part registers first what ends it."""
        optimizer = self._optimizer
        attachment.undo(self._let_go_of_files)
        self._hold_files()
        self._commit()
        attachment.undo(self._ledger.close)
        attachment.undo(self._ledger.deafen)
        self._ledger.listen()
        attachment.hook(optimizer.original_optimizer.register_step_pre_hook, self._observe)
        attachment.undo(self._stop_planting)
        self._add_noise = self._noise_stand_in()
        self._add_noise.put()
        attachment.undo(functools.partial(_attached.discard, optimizer))
        _attached.add(optimizer)
        if self._shadow is not None:
            self._shadow.attach(attachment, lambda: self.steps, elsewhere=self._ledger.went_on)
        attachment.undo(self._loader.deafen)
        self._loader.listen()
        self._witness.attach(attachment, self.steps)
        attachment.undo(self._clip_count.detach)
        self._clip_count.attach()
        if self._probe is not None:
            attachment.undo(self._probe.stop)
            self._probe.listen()
        attachment.undo(functools.partial(setattr, self, "_step", None))
        attachment.undo(functools.partial(setattr, self, "_entered", False))
        attachment.push(self._close_monitor)
        attachment.push(self._finish)
        self._entered = True

    def _stop_planting(self) -> None:
        if self._add_noise is not None and self._add_noise.remove():
            self._add_noise = None

    def _hold_files(self) -> None:
        """Keep even other audits of this process out, and notice what went on meanwhile."""
        if self._rank != 0:
            return
        if self._checkpoint is not None:
            self._checkpoints.holds.take(self._checkpoint, alone=True)
            self._checkpoints.check(self._checkpoint)
        self._checkpoints.check_last()
        self._recorder.hold()

    def _let_go_of_files(self) -> None:
        """Whoever comes next may go on from here; entered again, this audit notices."""
        self._checkpoints.holds.let_go()
        self._recorder.release()

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

    __exit__ = Leaving()

    def _finish(self, kind: type[BaseException] | None, *_: Any) -> None:
        """The block ended: look once more, and write the checkpoint."""
        self._entered = False
        if kind is not None:
            return
        if self._shadow is not None:
            self._shadow.finish()
        if self._checkpoint is not None:
            self.save(self._checkpoint)
        self._tell_of_weights()

    def _close_monitor(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._monitor is not None:
            self._monitor.close(failed=kind is not None)

    @contextlib.contextmanager
    def postprocessing(self) -> Iterator[None]:
        """Declare that what changes the weights in here reads released weights and no data.

        Weights that change between two steps make the verdict INVALID, since whatever wrote them
        was not audited. Clamping them, or going back to earlier ones, is postprocessing::

            with audit.postprocessing():
                clamp(model)

        So is a learning rate, clip norm or noise multiplier that is computed from released values,
        such as the norm of the noisy gradient: set it in here.

        The result says how often that was declared.
        """
        followed = contextlib.nullcontext() if self._shadow is None else self._shadow.declared()
        with self._settings.declared(), self._outside.declared(), followed:
            yield


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
