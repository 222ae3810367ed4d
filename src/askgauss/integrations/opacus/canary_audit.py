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
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from askgauss import _validate
from askgauss.auditing import AuditedRun
from askgauss.canaries import BlockCanaries, DiracCanaries, ExampleCanaries, fresh_seed
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import MissingExtraError, RecordingError, UnsupportedError
from askgauss.files import archive, codec
from askgauss.files.checkpoint import (
    OPACUS_KIND,
    OPACUS_SCHEMA,
    TRANSCRIPT,
    CheckpointFiles,
    enclosed,
)
from askgauss.monitor import Monitor, monitor_of
from askgauss.recording.commitment import Commitment, commit
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript
from askgauss.recording.witness import due
from askgauss.sampling import Scheme

try:
    import torch

    from askgauss.integrations.opacus.opacus_versions import DPPerLayerOptimizer, untried
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus needs torch and Opacus: pip install 'askgauss[opacus]'."
    ) from error

from askgauss.integrations.attachment import Attachment, Leaving, PatchedMethod
from askgauss.integrations.canary_choice import choose_canaries, warn_of_few_canaries
from askgauss.integrations.opacus import run_description as described
from askgauss.integrations.opacus.canary_insertion import GradientCanaries
from askgauss.integrations.opacus.exact_steps import ExactStepChecks
from askgauss.integrations.opacus.example_canaries import ExampleProbe
from askgauss.integrations.opacus.ledger import ClipCountWatch, Ledger, SettingsWatch
from askgauss.integrations.opacus.noise_watch import FirstNoise, SampledNoise
from askgauss.integrations.opacus.private_step import CanaryMode, Observer, PrivateSteps
from askgauss.integrations.opacus.ranks import agree, meet, shared_nonce
from askgauss.integrations.opacus.row_watch import LoaderWatch, TrainedRows
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.integrations.opacus.shadow import OutsideParameters, ResumedWeights, Shadow

__all__ = ["CanaryAudit", "Observation", "OpacusState", "read_state"]

_attached: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """How an audit observes the steps of a run.

    Attributes:
        background: Whether to subtract the other records' clean sum, which the auditor can see:
            ``"known"`` gives far tighter bounds and needs Poisson sampling; ``"auto"`` is known
            unless the loader is known to draw otherwise.
        exact_share: Share of the steps, beside the first, that are checked exactly: what each
            record adds after clipping, that the sum is theirs, that every trained tensor gets
            noise. For ghost clipping, gradients of two records per batch are computed again. 0 for
            none.
        criterion: The loss of the training, for examples.
        every: With examples, observe one step in so many: each costs a gradient per canary. The
            bound is on what the observed steps leak together.
        store: A file to keep every step in as well, for `StepStore`; not with several ranks.
    """

    background: Literal["auto", "known", "unknown"] = "auto"
    exact_share: float = 0.02
    criterion: Any = None
    every: int = 1
    store: str | os.PathLike[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpacusState:
    """The part of an audit's checkpoint that is not the recorder's.

    Attributes:
        inject: Where canaries go in.
        known: Whether the clean sum of the other records is subtracted.
        seed: Root of the canaries' random choices.
        unnoised: Steps of the wrapped optimizer without noise.
        discarded: How often noise was added and no step followed.
        accumulated: Numbers of batches that steps were made of.
        commitment: What was fixed before the first step.
        ended: Why the recording ended before the training did; empty where it did not.
        observers: The observers' states, by their keys.
    """

    inject: str
    known: bool
    seed: int
    unnoised: int
    discarded: int
    accumulated: tuple[int, ...]
    commitment: Commitment | None
    ended: str
    observers: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any]) -> OpacusState:
        """What a `CanaryAudit.state_dict` holds of it.

        Raises:
            FileFormatError: It is no such state, or parts of it are missing.
        """
        found: OpacusState = codec.from_plain(cls, state.get("audit"), "audit")
        return found


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `CanaryAudit.save` wrote, as `CanaryAudit.load_state_dict` takes it.

    Raises:
        FileFormatError: It is no such checkpoint.
    """
    arrays, content = archive.read_arrays(path, OPACUS_KIND, OPACUS_SCHEMA)
    arrays.pop(TRANSCRIPT, None)
    return {**arrays, **{name: content.get(name) for name in ("state", "audit")}}


class CanaryAudit(AuditedRun[()]):
    """Inserts canaries in an Opacus run and records what each step releases about them.

    Use it as a context manager around the training loop. It may be entered again after it was left,
    and continues recording. Random choices come from streams of its own: with no canary inserted,
    training ends in the very same weights as without an audit.

    When their number is left to the audit, inserted canaries are few compared with the records and
    the parameters: a twentieth of the former, a sixteenth of the latter and 1,000 at most, unless
    the planned steps need more for a verdict. Each acts like one more record, and a sixteenth of
    the parameters moves the weights no more than 8 % more noise would. Held-out canaries cost the
    training nothing and fill up to 5,000. These numbers are fixed; for auditors that guess
    membership give a number, which makes the membership of each random.

    The audit samples the canaries itself, at the run's sampling rate: the run's sampler is not
    audited, and neither are the parts before the place they are inserted at. `ExampleCanaries` go
    through everything: they are records of the loader's own dataset, and are observed along their
    own gradients, with the background unknown; the noise is read by itself, at coordinates of the
    model, where Opacus shows the sum before it. They need ``model``, ``data_loader`` and the loss
    of the training, one process, and a loader without workers::

        data = canaries.dataset(train_set)      # then DataLoader(data, ...) and make_private(...)
        audit = CanaryAudit(optimizer, loader, canaries=canaries, model=model,
                            observation=Observation(criterion=loss))

    Args:
        optimizer: The optimizer `PrivacyEngine.make_private` returned, also inside a wrapper such
            as accelerate's.
        data_loader: The training loader, which knows the true sampling rate and whether sampling
            is Poisson. Recommended.
        claim: What the run claims, to commit to before the first step together with seed and
            membership: the digest is printed, and kept in transcript and result.
        canaries: How many, each inserted with probability one half; or canaries made by you over
            the optimizer's parameters; or examples; or None to leave it to the audit.
        present: How many inserted canaries, instead of ``canaries``; an inconclusive result says
            how many are needed.
        absent: How many held-out canaries, instead of ``canaries``.
        planned_steps: How many steps the run will take, so that the audit inserts as many canaries
            as a verdict on them needs; a few hundred are assumed otherwise. For a monitor it is the
            planned end, where no claim says so.
        inject: ``"sample"`` sends each canary through the optimizer's own clipping, as a gradient
            far above the clip norm. ``"sum"`` adds canaries to the clipped sum, which is cheapest
            and leaves clipping to the exact step checks. ``"auto"`` is ``"sample"`` wherever the
            optimizer clips rows, and ``"sum"`` with ghost or adaptive clipping.
        seed: Root of the audit's random choices; drawn and recorded if not given.
        model: The model, for the names of its parameters, and to detect those that could train
            outside the optimizer; examples need it for their gradients.
        accountant: The run's accountant or PrivacyEngine; found behind the optimizer's hook if not
            given.
        sampling_rate: The run's sampling rate, where neither loader nor accountant has it.
        sampling: How the loader draws its batches, a scheme of `askgauss.sampling`, where that is
            not Poisson sampling. Canaries are drawn by the same distribution, the loader's batches
            are tested against it, and what was accounted is compared with it.
        observation: How steps are observed: the background, exact step checks, examples, a store.
        checkpoint: A file to resume from if it exists; `save` writes it, and so does leaving the
            context without an error.
        monitor: Watches every step, and may stop the run: ``Monitor(claim=claim)``, or True to
            compare the run with what its optimizer declares. All ranks see the same sums, so that
            they alarm in the same step.

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
        data_loader: Any = None,
        claim: PrivacyClaim | None = None,
        *,
        canaries: int | DiracCanaries | BlockCanaries | ExampleCanaries | None = None,
        present: int | None = None,
        absent: int | None = None,
        planned_steps: int | None = None,
        inject: Literal["auto", "sum", "sample"] = "auto",
        seed: int | None = None,
        model: torch.nn.Module | None = None,
        accountant: Any = None,
        sampling_rate: float | None = None,
        sampling: Scheme | None = None,
        observation: Observation | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        monitor: Monitor | bool | None = None,
    ) -> None:
        observation = observation or Observation()
        store, self._stored = observation.store, observation.store is not None
        optimizer = described.unwrapped(optimizer)
        described.check_optimizer(optimizer, inject)
        rank, world = int(getattr(optimizer, "rank", 0)), int(getattr(optimizer, "world_size", 1))
        _check_arguments(canaries, claim, inject, seed, observation, world)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        kept: OpacusState | None = None
        if self._checkpoint is not None and self._checkpoint.exists():
            kept = OpacusState.of(read_state(self._checkpoint))
        if rank == 0:
            described.check_folder("checkpoint", checkpoint)
            described.check_folder("store", store)
        meet(rank, world)
        self._run = run = TrainingRun.of(
            optimizer,
            data_loader=data_loader,
            model=model,
            accountant=accountant,
            sampling_rate=sampling_rate,
            sampling=sampling,
        )
        self._claim = claim
        self._commitment: Commitment | None = None
        self._planned_end = (claim and claim.steps) or planned_steps
        self._monitor = monitor_of(monitor)
        self._checkpoints = CheckpointFiles()
        through = _goes_through_clipping(optimizer) if inject == "auto" else inject == "sample"
        if inject == "auto" and kept is not None:
            through = kept.inject == "sample"
        multiplier = described.gradient_noise_multiplier(optimizer)
        self._known = False
        self._canaries: DiracCanaries | BlockCanaries | ExampleCanaries
        if isinstance(canaries, ExampleCanaries):
            self._canaries = canaries
        else:
            self._known = described.background_known(observation.background, run.sampling)
            self._canaries = choose_canaries(
                canaries,
                sizes=run.tensor_sizes,
                records=run.expected_records,
                rows=through,
                spread=isinstance(optimizer, DPPerLayerOptimizer),
                seed=seed,
                draw_seed=functools.partial(_root_seed, run, kept),
                present=present,
                absent=absent,
                sampling_rate=run.sampling.rate,
                noise_multiplier=multiplier,
                planned_steps=planned_steps,
            )
            if planned_steps is not None and (canaries is not None or present is not None):
                inserted = int(self._canaries.member.sum())
                warn_of_few_canaries(inserted, run.sampling.rate, multiplier, planned_steps)
        if self._checkpoint is not None and rank == 0:
            self._checkpoints.holds.take(self._checkpoint)
        new_recorder = functools.partial(
            _new_recorder, run, self._canaries, store=store, monitor=self._monitor
        )
        recorder = new_recorder(run.sampling.rate)
        self._mode: CanaryMode = (
            ExampleProbe(
                run,
                self._canaries,
                criterion=observation.criterion,
                every=observation.every,
                kept=recorder.kept,
            )
            if isinstance(self._canaries, ExampleCanaries)
            else GradientCanaries(
                run,
                self._canaries,
                before_clipping=through,
                known=self._known,
                stored=self._stored,
            )
        )
        seed, share = self._canaries.root_seed, observation.exact_share
        self._observers = make_observers(
            run, self._mode, exact_share=share, seed=seed, declare=self._declare
        )
        exact = 0.0 if described.noise_by_parameter(optimizer) else share
        self._steps = PrivateSteps(
            run,
            self._mode,
            self._observers,
            new_recorder=new_recorder,
            recorder=recorder,
            rate_may_change=not self._stored,
            exchanges=lambda number: due(seed, number, exact),
            monitor=self._monitor,
        )
        # Whether the training is over that the audit was attached for, where nothing else says so.
        self._ended: Callable[[], bool] | None = None
        self._entered = False
        self._attachment = Attachment()
        self._noise: list[PatchedMethod] = []
        if kept is not None:
            assert self._checkpoint is not None
            self.load(self._checkpoint)
        # A file of a live run was refused. Entering holds these, for only leaving releases them.
        self._release_files()

    # How the user of this audit declares postprocessing, for what is advised.
    _declare = "audit.postprocessing()"

    @property
    def canaries(self) -> DiracCanaries | BlockCanaries | ExampleCanaries:
        """The canaries."""
        return self._canaries

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return self._monitor

    @property
    def steps(self) -> int:
        """Number of steps recorded so far."""
        return self._steps.recorder.steps

    @property
    def commitment(self) -> str | None:
        """The digest of seed, membership and claim, fixed before the first step."""
        return None if self._commitment is None else self._commitment.digest

    def __repr__(self) -> str:
        return (
            f"CanaryAudit({self._canaries.size} canaries, inject={self._mode.inject!r}, "
            f"steps={self.steps}, {'attached' if self._entered else 'not attached'})"
        )

    # --- entering and leaving ---------------------------------------------------------------------

    def __enter__(self) -> CanaryAudit:
        run = self._run
        if self._monitor is not None:
            self._monitor.plan(self._planned_end)
        if run.optimizer in _attached:
            raise RecordingError(
                "Expected an optimizer that no audit is attached to, got one that has an audit. "
                "Leave the other audit's context first."
            )
        if self._noise:
            raise RecordingError(
                "Expected the optimizer as the audit left it, got one whose add_noise something "
                "else has wrapped since. Start a new audit and load this one's state_dict()."
            )
        meet(run.rank, run.world)
        facts = f"{self._canaries.fingerprint()} {run.sampling.rate} {self._known} {self.steps}"
        agree(facts, run.world, run.device)
        for observer in self._observers:
            observer.resuming(started=False)
        try:
            self._attach(self._attachment)
            return self
        except BaseException:
            self._attachment.__exit__(*sys.exc_info())
            raise

    def _attach(self, attachment: Attachment) -> None:
        """Begin to insert and to observe; each part registers first what ends it."""
        optimizer = self._run.optimizer
        attachment.undo(self._release_files)
        self._hold_files()
        self._commit()
        count = self._run.count
        count.made = max(count.recorded, count.made)
        attachment.hook(optimizer.original_optimizer.register_step_pre_hook, self._steps.observe)
        attachment.undo(self._stop_inserting)
        self._noise = (
            self._steps.by_parameter()
            if described.noise_by_parameter(optimizer)
            else [PatchedMethod(optimizer, "add_noise", self._add_noise)]
        )
        for method in self._noise:
            method.put()
        attachment.undo(functools.partial(_attached.discard, optimizer))
        _attached.add(optimizer)
        for observer in self._observers:
            observer.attach(attachment)
        attachment.undo(self._steps.forget)
        attachment.undo(functools.partial(setattr, self, "_entered", False))
        attachment.push(self._close_monitor)
        attachment.push(self._complete)
        self._entered = True

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """Replaces the optimizer's `add_noise` while attached."""
        if self._ended is not None and self._ended():
            error = RecordingError("The training ended without a word.")
            self._attachment.__exit__(type(error), error, None)
            add_noise()
        else:
            self._steps.add_noise(add_noise)

    def _stop_inserting(self) -> None:
        # All are removed. One that something else has wrapped since stays, and passes on.
        self._noise = [method for method in self._noise if not method.remove()]

    def _hold_files(self) -> None:
        """Keep other audits from the files, and detect what was written to them meanwhile."""
        if self._run.rank != 0:
            return
        if self._checkpoint is not None:
            self._checkpoints.holds.take(self._checkpoint, alone=True)
            self._checkpoints.check(self._checkpoint)
        self._checkpoints.check_last()
        self._steps.recorder.hold()

    def _release_files(self) -> None:
        """Let another audit continue from the files; entered again, this one detects it."""
        self._checkpoints.holds.let_go()
        self._steps.recorder.release()

    def _commit(self) -> None:
        """Fix seed, membership and claim, and print their digest, before the first step."""
        if self._commitment is not None or self.steps:
            return
        self._commitment = commit(
            seed=self._canaries.root_seed,
            member=self._canaries.member,
            claim=self._claim,
            nonce=shared_nonce(self._run.world, self._run.device),
        )
        if self._run.rank == 0:
            what = "seed and membership" if self._claim is None else "seed, membership and claim"
            sys.stderr.write(f"askgauss committed to {what}: sha256 {self._commitment.digest}\n")

    __exit__ = Leaving()

    def _complete(self, kind: type[BaseException] | None, *_: Any) -> None:
        """The block ended: compare once more, and write the checkpoint."""
        self._entered = False
        if kind is not None:
            return
        for observer in self._observers:
            observer.completed()
        if self._checkpoint is not None:
            self.save(self._checkpoint)
        self._steps.inform()

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
        with contextlib.ExitStack() as declared:
            for observer in self._observers:
                declared.enter_context(observer.postprocessing())
            yield

    # --- transcript -------------------------------------------------------------------------------

    def transcript(self) -> Transcript:
        """The transcript of the steps recorded so far.

        Raises:
            RecordingError: No step was recorded.
        """
        run, steps = self._run, self._steps
        if self.steps == 0:
            raise RecordingError(
                f"Expected at least one step with noise, got none ({steps.unnoised} steps of the "
                "wrapped optimizer went by without). Train inside the with block, with the "
                f"optimizer that make_private returned. {run.guard.reason}".rstrip()
            )
        recorded = steps.recorder.transcript()
        observed: dict[str, Any] = {}
        notes = [*run.sampling.notes, *filter(None, [untried()])]
        for observer in self._observers:
            observed |= observer.facts(recorded)
            if observer is not self._mode:
                notes += observer.notes(recorded)
        transcript = recorded.with_facts(
            replace(
                recorded.facts,
                **observed,
                commitment=self._commitment,
                unnoised_steps=steps.unnoised,
                loader_poisson=run.sampling.poisson,
                tensors=run.tensor_names,
                ended=run.guard.reason,
                exercised=(
                    *(() if observed["batches"] is None else ("sampler",)),
                    *self._mode.exercised,
                ),
                precision=tuple(
                    sorted({str(item.dtype).removeprefix("torch.") for item in run.parameters})
                ),
                notes=(*notes, *self._notes(), *self._mode.notes(recorded)),
            )
        )
        for observer in self._observers:
            transcript = observer.amended(transcript)
        return transcript

    def _transcript_for(self, claim: PrivacyClaim | None) -> Transcript:
        """The transcript, with what depends on the claim."""
        recorded = self.transcript()
        if claim is None:
            return recorded
        observed: dict[str, Any] = {}
        for observer in self._observers:
            observed |= observer.facts_for(claim)
        return recorded.with_facts(replace(recorded.facts, **observed))

    def _own_claim(self) -> PrivacyClaim | None:
        return self._claim

    def _notes(self) -> list[str]:
        notes, steps = [], self._steps
        batches = steps.accumulated
        if len(batches) > 1 or (self._stored and max(batches) > 1):
            notes.append(
                f"steps accumulate {min(batches)} to {max(batches)} batches, "
                "and canaries are planted at the rate of one batch."
            )
        if steps.discarded:
            notes.append(f"noise was added {steps.discarded} times without a step after it.")
        if described.adapts_clipping(self._run.optimizer):
            notes.append(
                "adaptive clipping spends part of the budget on the clip norm, and adds more noise "
                "to the gradients than the accountant's multiplier says."
            )
        return notes

    # --- checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume after a restart: tensors and plain values.

        Put it in the same file as the state of model and optimizer, so that the two never part.
        """
        arrays, plain = self._saved()
        return {**{name: torch.from_numpy(array) for name, array in arrays.items()}, **plain}

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and plain values of a checkpoint; with sharded parameters a collective call."""
        arrays = self._steps.recorder.state_dict()
        for observer in self._observers:
            arrays |= observer.arrays()
        return arrays, {"state": arrays.pop("state"), "audit": codec.to_plain(self._state())}

    def _state(self) -> OpacusState:
        return OpacusState(
            inject=self._mode.inject,
            known=self._known,
            seed=self._canaries.root_seed,
            unnoised=self._steps.unnoised,
            discarded=self._steps.discarded,
            accumulated=tuple(sorted(self._steps.accumulated)),
            commitment=self._commitment,
            ended=self._run.guard.reason,
            observers={item.key: item.state() for item in self._observers if item.key},
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken.

        Raises:
            RecordingError: The state belongs to another run. The audit stays as it was.
            FileFormatError: The state is not one of an audit, or parts of it are missing.
        """
        kept = OpacusState.of(state)
        arrays = {
            name: value.numpy() if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
            if name != "audit"
        }
        for name, theirs, mine in (
            ("inject", kept.inject, self._mode.inject),
            ("known background", kept.known, self._known),
        ):
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Resume with the same settings."
                )
        states = {
            item.key: codec.from_plain(item.state_type, kept.observers.get(item.key), item.key)
            for item in self._observers
            if item.key
        }
        self._mode.check(states[self._mode.key], arrays)
        included = arrays["drawn"].copy() if "drawn" in arrays else None
        self._steps.resume(kept.accumulated, included, arrays)
        self._steps.unnoised, self._steps.discarded = kept.unnoised, kept.discarded
        for observer in self._observers:
            observer.load(states.get(observer.key), arrays, self.steps)
        self._commitment, self._run.guard.reason = kept.commitment, kept.ended

    def save(self, path: str | os.PathLike[str] | None = None, *, hold: bool = True) -> None:
        """Write a checkpoint, whole or not at all; of several ranks, the first one writes.

        Args:
            path: Where; the audit's own ``checkpoint`` if not given.
            hold: Whether to keep other processes from resuming from the file until the context is
                left. False where the folder is locked already, or moved about.

        Raises:
            RecordingError: Another copy of the run has the file, or wrote it since.
        """
        target = self._checkpoint if path is None else Path(path)
        if target is None:
            raise _validate.fail("path", path, "to be a file", "Or give the audit checkpoint=.")
        arrays, plain = self._saved()
        if self._run.rank != 0:
            return
        if self.steps and not self._entered:
            # After the run the file can be audited as well: askgauss audit reads this part alone.
            arrays[TRANSCRIPT] = enclosed(self.transcript())
        with self._checkpoints.write(target, hold=hold, keep=self._entered):
            archive.write_arrays(target, OPACUS_KIND, OPACUS_SCHEMA, arrays, plain)

    def load(self, path: str | os.PathLike[str], *, hold: bool = True) -> None:
        """Resume from a checkpoint that `save` wrote.

        Args:
            path: Where from.
            hold: As for `save`; of several ranks, the first one holds it.

        Raises:
            RecordingError: It belongs to another run, or a live one continues with it.
            FileFormatError: It is no such checkpoint.
        """
        with self._checkpoints.read(path, hold=hold and self._run.rank == 0):
            self.load_state_dict(read_state(path))


def make_observers(
    run: TrainingRun, mode: CanaryMode, *, exact_share: float, seed: int, declare: str
) -> tuple[Observer, ...]:
    """All observers of a run, in the order in which they are called and their notes are given.

    To add one: a subclass of `Observer`, and a line here.

    Args:
        run: The training.
        mode: How canaries take part; the last of the observers.
        exact_share: The share of steps to check exactly.
        seed: Root of the random choices.
        declare: How the user declares postprocessing, for what is advised.
    """
    places, rows = mode.places, TrainedRows(run)
    return (
        Ledger(run),
        ResumedWeights(run, places),
        *(() if places is None else (Shadow(run, places, declare),)),
        OutsideParameters(run),
        SettingsWatch(run),
        rows,
        LoaderWatch(run, rows, rows_only=not mode.drawn_by_recorder),
        ExactStepChecks(run, mode, share=exact_share, seed=seed),
        ClipCountWatch(run),
        SampledNoise(run),
        FirstNoise(run),
        mode,
    )


def _goes_through_clipping(optimizer: Any) -> bool:
    """Whether rows can be sent through an optimizer's clipping.

    Adaptive clipping counts the rows that it clips, and would count canaries too.
    """
    return not (
        described.clips_without_rows(optimizer)
        or described.adapts_clipping(optimizer)
        or described.noise_by_parameter(optimizer)
    )


def _root_seed(run: TrainingRun, kept: OpacusState | None) -> int | None:
    """The seed of the checkpoint, or one that all ranks share; None for a fresh one."""
    if kept is not None:
        return kept.seed
    if run.world == 1:
        return None
    drawn = torch.tensor([fresh_seed()], device=run.device)
    torch.distributed.broadcast(drawn, src=0)
    return int(drawn.item())


def _new_recorder(
    run: TrainingRun,
    canaries: DiracCanaries | BlockCanaries | ExampleCanaries,
    rate: float,
    *,
    store: str | os.PathLike[str] | None,
    monitor: Monitor | None,
) -> Recorder:
    scheme = run.sampling.scheme
    return Recorder(
        canaries,
        sampling=scheme,
        sampling_rate=rate if scheme is None else None,
        clip_norm=float(run.optimizer.max_grad_norm),
        noise_multiplier=described.gradient_noise_multiplier(run.optimizer),
        store=store,
        monitor=monitor,
    )


def _check_arguments(
    canaries: Any,
    claim: Any,
    inject: str,
    seed: int | None,
    observation: Observation,
    world: int,
) -> None:
    """Refuse arguments that do not go together, whatever the run is like."""
    background, every = observation.background, observation.every
    _validate.one_of(("auto", "sum", "sample"), inject=inject)
    _validate.one_of(("auto", "known", "unknown"), background=background)
    if not isinstance(claim, (PrivacyClaim, type(None))):
        hint = "Make it with PrivacyClaim(epsilon=..., delta=...)."
        raise _validate.fail("claim", claim, "to be a claim", hint)
    if observation.store is not None and world > 1:
        raise UnsupportedError(
            "A store keeps the steps of one process, and this run has several: leave store= out "
            "and read the transcript, which every rank has."
        )
    if not isinstance(canaries, ExampleCanaries):
        if every != 1:
            raise _validate.fail("every", every, "to be 1", "Only examples may skip steps.")
        return
    if inject != "auto":
        hint = "Examples go through the whole training anyway."
        raise _validate.fail("inject", inject, "to be left out", hint)
    if background == "known":
        raise UnsupportedError(
            "background='known' needs places where the other records' sum can be read: what they "
            "add along an example's gradient is not known. Use 'unknown', or DiracCanaries."
        )
    if seed is not None:
        raise _validate.fail("seed", seed, "to be None", "The canaries bring their own.")
