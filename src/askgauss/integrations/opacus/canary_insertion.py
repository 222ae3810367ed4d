"""Gradient-space canaries in an Opacus step: inserted before or after clipping, read afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.checks.scope import AFTER_CLIPPING, BEFORE_CLIPPING
from askgauss.integrations.attachment import Attachment, PatchedMethod
from askgauss.integrations.opacus.opacus_versions import DPOptimizer, DPPerLayerOptimizer
from askgauss.integrations.opacus.private_step import CanaryMode, PrivateStep
from askgauss.integrations.opacus.ranks import CanaryCoordinates, ShardedCoordinates, divided_by
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript

__all__ = ["FrozenTensors", "GradientCanaries", "GradientState", "left_out"]

# Random stream, from the run's seed, of the values that replace those of frozen tensors.
_STREAM = 27
# One number a step over the canaries of all tensors, which cannot be separated afterwards.
_OVER_ALL = (
    *("least", "most", "planted_least", "planted_most"),
    *("silent", "planted_silent", "carried"),
)


class FrozenTensors:
    """Which tensors had no clipped sum, and in how many steps.

    A recorder wants a value for every canary in every step. Those of a frozen tensor get what a
    correct step would have released, so that nothing that looks at all values together is misled,
    and are left out of the transcript afterwards.

    Args:
        canaries: The canaries.
        names: Names of the tensors.
    """

    def __init__(self, canaries: DiracCanaries, names: Sequence[str]) -> None:
        self._canaries, self._names = canaries, tuple(names)
        self._seen: dict[int, tuple[int, int]] = {}

    @property
    def facts(self) -> tuple[tuple[str, int, int], ...]:
        """Name, first step and number of steps of every tensor that was frozen in some."""
        return tuple((self._names[index], *self._seen[index]) for index in sorted(self._seen))

    @property
    def tensors(self) -> Collection[int]:
        """Their indices."""
        return self._seen.keys()

    def load(self, facts: Sequence[tuple[str, int, int]]) -> None:
        """Resume from the facts of a checkpoint."""
        self._seen = {self._names.index(name): (first, steps) for name, first, steps in facts}

    def trained(self, included: NDArray[np.int64], missing: Collection[int]) -> NDArray[np.int64]:
        """Those of the included canaries whose tensor is trained in this step."""
        if not missing:
            return included
        return included[~np.isin(self._canaries.tensor[included], list(missing))]

    def fill(
        self,
        step: PrivateStep,
        number: int,
        observed: NDArray[np.float64],
        watched: NDArray[np.float64],
        included: NDArray[np.int64],
    ) -> None:
        """Note a step, and fill in for what its frozen tensors did not release.

        Args:
            step: The step.
            number: Its number among those that are recorded, from 1.
            observed: What was released along each canary; written to.
            watched: What was released at the watched coordinates; written to.
            included: The canaries that were drawn for the step.
        """
        missing, noise = list(step.missing), step.clip_norm * step.noise_multiplier
        for index in missing:
            first, steps = self._seen.get(index, (number, 0))
            self._seen[index] = (first, steps + 1)
        chance = np.random.default_rng((self._canaries.root_seed, _STREAM, number))
        whole = np.zeros(observed.size)
        whole[included] = step.clip_norm
        whole += chance.normal(0.0, noise, whole.size)
        here = np.isin(self._canaries.tensor, missing)
        observed[here] = whole[here]
        there = np.isin(self._canaries.watch_tensor, missing)
        watched[there] = chance.normal(0.0, noise, int(there.sum()))


def left_out(transcript: Transcript, tensors: Collection[int]) -> Transcript:
    """A transcript without the canaries and watched coordinates of some tensors."""
    if not tensors:
        return transcript
    gone = np.isin(transcript.tensor, list(tensors))
    stay = np.flatnonzero(~gone)
    kept = ~gone[transcript.kept]
    watched = ~np.isin(transcript.watch_tensor, list(tensors))
    tensor = transcript.tensor[stay]
    columns = int(tensor.max(initial=0)) + 1
    steps = transcript.steps
    by_tensor = np.isin(np.arange(columns), list(tensors))
    sums = {
        name: np.where(by_tensor, 0, getattr(steps, name)[:, :columns])
        for name in ("planted", "planted_total", "planted_square", "total", "square")
    }
    unknown = {name: np.full_like(getattr(steps, name), np.nan) for name in _OVER_ALL}
    return replace(
        transcript,
        member=transcript.member[stay],
        tensor=tensor,
        canaries=replace(
            transcript.canaries,
            **{
                item.name: values[stay]
                for item in fields(transcript.canaries)
                if (values := getattr(transcript.canaries, item.name)).size
            },
        ),
        steps=replace(steps, **sums, **unknown),
        kept=np.searchsorted(stay, transcript.kept[kept]),
        kept_values=transcript.kept_values[:, kept],
        kept_planted=transcript.kept_planted[:, kept],
        watch_values=transcript.watch_values[:, watched]
        if transcript.watch_values.size
        else transcript.watch_values,
        watch_tensor=transcript.watch_tensor[watched],
    )


# Numbers, and rows, that go through the clipper together: each row is as large as the model.
_NUMBERS = 1 << 24
_ROWS = 64
# A canary's row before clipping, in clip norms at each of its coordinates.
_FAR_ABOVE = 100.0
# Clipping that is known to read rows and clip norm, and to write nothing but the sum.
_KNOWN = (DPOptimizer.clip_and_accumulate, DPPerLayerOptimizer.clip_and_accumulate)
# Tensors up to this size are copied, to be put back if the clipping writes to them.
_COPIED = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientState:
    """What is kept of gradient-space canaries in a checkpoint, beside what the recorder keeps."""

    fell_back: bool = False
    frozen: tuple[tuple[str, int, int], ...] = ()


class GradientCanaries(CanaryMode):
    """Canaries at coordinates of the gradient.

    Args:
        run: The training.
        canaries: The canaries.
        before_clipping: Whether they go through the optimizer's own clipping, or are added to the
            clipped sum.
        known: Whether the clean sum of the other records is subtracted.
        stored: Whether every step is kept in a file: tensors cannot be frozen then.
    """

    key = "canaries"
    state_type = GradientState

    def __init__(
        self,
        run: TrainingRun,
        canaries: DiracCanaries | BlockCanaries,
        *,
        before_clipping: bool,
        known: bool,
        stored: bool,
    ) -> None:
        self._run, self._canaries, self._known = run, canaries, known
        self.inject = "sample" if before_clipping else "sum"
        self._coordinates = (
            ShardedCoordinates(run.parameters, run.shards, canaries)
            if run.shards
            else CanaryCoordinates(run.parameters, canaries)
        )
        self.places = self._coordinates
        self._frozen: FrozenTensors | None = None
        if isinstance(canaries, DiracCanaries) and not run.sharded and not stored:
            self._frozen = FrozenTensors(canaries, run.tensor_names)
        self.allows_frozen = self._frozen is not None
        # Whether the optimizer's clipping keeps more than its sum, so that no rows go through it.
        self._fell_back = False
        # What the sum over ranks was divided by, where parameters are shared out and it was seen.
        self._averaged: float | None = None

    @property
    def exercised(self) -> tuple[str, ...]:
        """Parts of the training that the canaries go through."""
        through = self.inject == "sample" and not self._fell_back
        return BEFORE_CLIPPING if through else AFTER_CLIPPING

    # --- one step ---------------------------------------------------------------------------------

    def draw(self, recorder: Recorder, pending: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Canaries of a step, sampled by the recorder; those that led to no record serve again."""
        return recorder.sample() if pending is None else pending

    def averaging(self, module: nn.Module) -> None:
        """Gradients of a module that ranks share out are about to be reduced."""
        self._averaged = self._averaged or divided_by(module)

    def insert(
        self,
        sums: Sequence[Tensor],
        included: NDArray[np.int64],
        missing: tuple[int, ...],
        clip_norm: float,
    ) -> None:
        """Add the canaries of a step to the clipped sums."""
        run = self._run
        if self._frozen is not None:
            included = self._frozen.trained(included, missing)
        if not included.size or (run.rank != 0 and not run.sharded):
            return
        if self.inject == "sample" and not self._fell_back:
            self._fell_back = not _send_through_clipping(
                run.optimizer, run.parameters, self._coordinates, included, clip_norm
            )
            if not self._fell_back:
                return
        height = clip_norm / ((self._averaged or run.world) if run.sharded else 1)
        self._coordinates.insert(sums, included, height)

    def insert_in(
        self, index: int, clipped: Tensor, included: NDArray[np.int64], clip_norm: float
    ) -> list[Tensor]:
        """Add the canaries of one parameter to its sum; what was there before, in order."""
        places = self._coordinates.places
        before = [
            self._coordinates.taken(number, clipped)
            for number, (tensor, _) in enumerate(places)
            if tensor == index
        ]
        if self._run.rank == 0 and included.size:
            sums = [
                clipped if number == index else item
                for number, item in enumerate(self._run.parameters)
            ]
            self._coordinates.insert(sums, included, clip_norm, only=index)
        return before

    def read(self, gradient: Tensor | None) -> NDArray[np.float64] | None:
        """What is applied at the coordinates: the one wait for the device in a step."""
        assert gradient is not None
        return np.asarray(gradient.cpu().double().numpy())

    def record(
        self,
        recorder: Recorder,
        step: PrivateStep,
        gradient: NDArray[np.float64] | None,
        included: NDArray[np.int64],
    ) -> None:
        """Record what a step released along every canary, and at the watched coordinates."""
        run = self._run
        assert gradient is not None
        values = gradient * step.scale
        if run.world > 1 and not run.sharded:
            # Only now: inside a backward pass the ranks' own calls come first.
            torch.distributed.all_reduce(step.clean)
        # Infinite gradients leave nan here. They are recorded, and the audit says so.
        noise = values - step.clean.cpu().numpy()
        observed = self._coordinates.along(noise if self._known else values)
        watched = self._coordinates.watched(noise)
        if step.missing:
            assert self._frozen is not None
            self._frozen.fill(step, recorder.steps + 1, observed, watched, included)
        recorder.observe(
            observed,
            background=0.0 if self._known else None,
            clip_norm=step.clip_norm,
            noise_multiplier=step.noise_multiplier,
            watch=watched,
        )

    # --- what is known ----------------------------------------------------------------------------

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """Tensors that were frozen."""
        frozen = () if self._frozen is None else self._frozen.facts
        return {"watch_background": "known", "frozen": frozen}

    def amended(self, transcript: Transcript) -> Transcript:
        """The transcript without the canaries of tensors that were frozen."""
        return left_out(transcript, () if self._frozen is None else self._frozen.tensors)

    def notes(self, recorded: Transcript) -> list[str]:
        """How canaries were clipped, where that is not the usual way."""
        notes, optimizer = [], self._run.optimizer
        if self._fell_back:
            notes.append(
                "the optimizer's own clipping keeps more than its sum, or draws random numbers: "
                "canaries were added to the clipped sum instead, so that training stays as it is."
            )
        if isinstance(optimizer, DPPerLayerOptimizer) and self.inject == "sample":
            norms = np.asarray(optimizer.max_grad_norms) / optimizer.max_grad_norm
            share = self._coordinates.clipped_apart(norms)[self._canaries.member].max(initial=0.0)
            notes.append(
                f"each layer clips its own part of a canary: at most {share:.3g} of the whole clip "
                "norm gets through."
            )
        return notes

    def state(self) -> GradientState:
        """What to resume from."""
        frozen = () if self._frozen is None else self._frozen.facts
        return GradientState(fell_back=self._fell_back, frozen=frozen)

    def load(self, state: GradientState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._fell_back = state.fell_back
        if self._frozen is not None:
            self._frozen.load(state.frozen)


# --- through the optimizer's own clipping ---------------------------------------------------------


def _send_through_clipping(
    optimizer: Any,
    audited: Sequence[torch.nn.Parameter],
    coordinates: CanaryCoordinates,
    included: NDArray[np.int64],
    clip_norm: float,
) -> bool:
    """Let the optimizer clip the included canaries as it clips any gradient, and add them.

    The clipper gets them separately from the records: the sum of the records is removed before and
    restored with the canaries' sum added, so that a clipper that assigns its sum loses nothing.

    Returns:
        Whether the canaries were added. A clipper that is not Opacus' own may keep more than the
        sum, such as counts of rows, or draw random numbers: then everything is as it was before,
        and no canary was added.
    """
    parameters = list(optimizer.params)
    place = {id(parameter): index for index, parameter in enumerate(audited)}
    rows_before = [parameter.grad_sample for parameter in parameters]
    sums = [parameter.summed_grad for parameter in parameters]
    kept = None if _is_known(optimizer) else _ClipperState(optimizer)
    added: list[torch.Tensor | None] = [None] * len(parameters)
    wrote = False

    def restore() -> None:
        nonlocal wrote
        for parameter, sample, total in zip(parameters, rows_before, sums, strict=True):
            parameter.grad_sample, parameter.summed_grad = sample, total
        wrote = (kept is not None and kept.put_back()) or wrote

    with Attachment() as attachment:
        attachment.undo(restore)
        together = min(max(_NUMBERS // sum(item.numel() for item in parameters), 1), _ROWS)
        for start in range(0, included.size, together):
            chunk = included[start : start + together]
            rows: dict[int, Any] = {}
            for parameter, sample in zip(parameters, rows_before, strict=True):
                like = sample[0] if isinstance(sample, list) else sample
                parameter.summed_grad = None
                parameter.grad_sample = like.new_zeros((chunk.size, *parameter.shape))
                rows[place.get(id(parameter), -1)] = parameter.grad_sample
            # Frozen parameters have no row, and no canary in them is included.
            ours: list[Any] = [rows.get(index) for index in range(len(audited))]
            coordinates.fill_rows(ours, chunk, _FAR_ABOVE * clip_norm)
            optimizer.clip_and_accumulate()
            added = [
                _plus(total, parameter.summed_grad)
                for total, parameter in zip(added, parameters, strict=True)
            ]
    if wrote:
        return False
    for parameter, total, more in zip(parameters, sums, added, strict=True):
        if total is None or more is None:
            parameter.summed_grad = _plus(total, more)
        else:
            total += more
    return True


def _plus(total: torch.Tensor | None, more: torch.Tensor | None) -> torch.Tensor | None:
    return more if total is None else total if more is None else total + more


def _is_known(optimizer: Any) -> bool:
    clip = optimizer.clip_and_accumulate
    while isinstance(owner := getattr(clip, "__self__", None), PatchedMethod):
        clip = owner.original
    known = getattr(clip, "__func__", None) in _KNOWN
    return known and type(optimizer).__module__.startswith("opacus.")


class _ClipperState:
    """What a clipper may write to beside the sum, to detect that it did and undo it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._values = optimizer, dict(vars(optimizer))
        self._copies = {name: _copied(value) for name, value in self._values.items()}
        self._generators = [torch.default_generator]
        if isinstance(optimizer.generator, torch.Generator):
            self._generators.append(optimizer.generator)
        self._states = [item.get_state() for item in self._generators]

    def put_back(self) -> bool:
        """Undo every change; whether there was any."""
        changed = False
        for generator, state in zip(self._generators, self._states, strict=True):
            if not torch.equal(generator.get_state(), state):
                generator.set_state(state)
                changed = True
        now = vars(self._optimizer)
        for name in now.keys() - self._values.keys():
            del now[name]
            changed = True
        for name, value in self._values.items():
            copy = self._copies[name]
            if name not in now or now[name] is not value:
                # Plain numbers may be made anew with the value they had.
                changed = changed or copy is not None or now.get(name) != value
                now[name] = value
            changed = _restored(value, copy) or changed
        return changed


def _copied(value: Any) -> Any:
    """A copy of what can be written to, of a large tensor the count of writes; None of the rest."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() <= _COPIED else value._version
    return value.copy() if isinstance(value, (list, dict, set, np.ndarray)) else None


def _restored(value: Any, copy: Any) -> bool:
    """Whether a value had been written to; it is as before now."""
    if isinstance(copy, torch.Tensor):
        changed = not torch.equal(value, copy)
        if changed:
            with torch.no_grad():
                value.copy_(copy)
    elif isinstance(value, torch.Tensor):
        changed = value._version != copy
    elif isinstance(copy, np.ndarray):
        changed = not np.array_equal(value, copy, equal_nan=copy.dtype.kind in "fc")
        if changed:
            value[...] = copy
    else:
        changed = copy is not None and not _same_items(value, copy)
        if changed:
            value.clear()
            value.extend(copy) if isinstance(value, list) else value.update(copy)
    return changed


def _same_items(value: Any, copy: Any) -> bool:
    if len(value) != len(copy):
        return False
    if isinstance(value, set):
        return bool(value == copy)
    if isinstance(value, dict):
        return all(name in copy and copy[name] is item for name, item in value.items())
    return all(one is other for one, other in zip(value, copy, strict=True))
