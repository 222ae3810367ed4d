"""Exact checks of some private steps of an Opacus run: records, sum, noise, divisor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.integrations.attachment import Attachment, PatchedMethod, SharedPatch
from askgauss.integrations.opacus.opacus_versions import (
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    DPTensorFastGradientClipping,
)
from askgauss.integrations.opacus.private_step import (
    AddedNoise,
    CanaryMode,
    Observer,
    PrivateStep,
)
from askgauss.integrations.opacus.ranks import gather, local
from askgauss.integrations.opacus.run_description import (
    TrainingRun,
    clipped_sum,
    noise_by_parameter,
)
from askgauss.recording.facts import StepFacts
from askgauss.recording.transcript import Transcript
from askgauss.recording.witness import StepWitness, over_ranks, resolve

__all__ = ["ExactStepChecks"]

# Rounding of a sum, in spacings of its numbers and norms of what was added.
_ULPS = 4.0
# Half spacings that norm by tensor, whole norm and clip factor are each rounded by, together.
_ROUNDINGS = 1.5
# A sum that multiples of the records explain to this share is made of them.
_EXPLAINED = 1e-3
# What Opacus adds to a norm before it divides by it.
_TINY = 1e-6
# A tensor that lacks noise in more than this share of its entries was left out.
_SILENT = 0.01
# Facts that are the same on every rank.
_OF_DIVISORS = ("divided", "least_divisor", "most_divisor", "divisor_step", "uneven")


class ExactStepChecks(Observer):
    """Checks a random sample of the steps exactly; the others are not touched.

    Nothing random is drawn from the run's generators, and nothing that the step uses is written.

    Args:
        run: The training.
        mode: How canaries take part.
        share: The share of steps to check, beside the first.
        seed: Root of the choice.
    """

    key = "exact_steps"
    state_type = StepFacts

    def __init__(self, run: TrainingRun, mode: CanaryMode, *, share: float, seed: int) -> None:
        self._run, self._optimizer, self._guard = run, run.optimizer, run.guard
        self._mode = mode
        self._names = run.names_of_all()
        self._seed = seed
        self._ghost = isinstance(run.optimizer, DPOptimizerFastGradientClipping)
        self._spacing = max(float(torch.finfo(item.dtype).eps) for item in run.parameters)
        unchecked = "records are clipped inside the backward pass"
        self._found = StepWitness(
            share=share,
            seed=seed,
            recomputed=self._ghost,
            unchecked=unchecked if noise_by_parameter(run.optimizer) else "",
        )
        self._ranks: list[StepFacts] = []
        self._forget()

    def state(self) -> StepFacts:
        """What was found so far, by all ranks."""
        own = self._found.facts
        if not self._ranks:
            return own
        divisors = {name: getattr(own, name) for name in _OF_DIVISORS}
        return replace(over_ranks(self._ranks), divisor_spacing=own.divisor_spacing, **divisors)

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """What was found so far, by all ranks."""
        return {"witness": self.state()}

    def load(self, state: StepFacts, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume from what all ranks had found."""
        if self._run.rank > 0:
            # The first rank tells the others what they had found.
            divisors = {name: getattr(state, name) for name in _OF_DIVISORS}
            state = replace(self._found.facts, **divisors)
        self._found.load(state)

    def attach(self, attachment: Attachment) -> None:
        """Begin to check."""
        self._forget()
        name = "accumulate" if self._ghost else "clip_and_accumulate"
        call = self._accumulate if self._ghost else self._clip
        if self._found.facts.share > 0.0 and not self._found.facts.unchecked:
            attachment.patch(PatchedMethod(self._optimizer, name, call))
            if self._ghost:
                attachment.undo(functools.partial(_BACKWARD.remove, self._optimizer))
                _BACKWARD.add(self._optimizer, self._ghost_backward)
        attachment.undo(self._forget)

    def _forget(self) -> None:
        # Whether this step is checked; None until somebody asks.
        self._due: bool | None = None
        self._seen = 0
        self._after: list[Tensor] = []
        self._noisy: Tensor | None = None
        # Whether what is clipped are canaries, and no part of the run's own step.
        self._aside = False

    @property
    def _step(self) -> int:
        return self._run.count.number

    def _is_due(self) -> bool:
        if self._guard.reason:
            return False
        if self._due is None:
            self._due = self._found.due(self._step)
        return self._due and not self._aside

    # --- records ----------------------------------------------------------------------------------

    def _clip(self, original: Callable[[], None]) -> None:
        if not self._is_due():
            original()
            return
        with self._guard:
            before = self._sums()
        original()
        if not self._guard.reason:
            with self._guard:
                self._look(before)

    def _accumulate(self, original: Callable[[], None]) -> None:
        if not self._is_due():
            original()
            return
        with self._guard:
            before = self._sums()
        original()
        if self._guard.reason:
            return
        with self._guard:
            if not self._run.sharded:
                added = [item.grad for item in self._optimizer.params]
                self._compare_sum(before, added, sum(float(item.norm()) for item in added))
            self._seen += 1
            self._keep()

    def _sums(self) -> list[Tensor | None]:
        return [
            None if (kept := clipped_sum(self._optimizer, item)) is None else local(kept).clone()
            for item in self._optimizer.params
        ]

    def _sum(self, parameter: nn.Parameter) -> Tensor:
        """The clipped sum, as far as this rank holds it."""
        kept = clipped_sum(self._optimizer, parameter)
        assert kept is not None
        return local(kept).detach()

    def _keep(self) -> None:
        self._after = [self._sum(item).clone() for item in self._optimizer.params]

    def _look(self, before: Sequence[Tensor | None]) -> None:
        """Compare what a batch added to the sum with its records, each clipped."""
        optimizer = self._optimizer
        rows = [item.detach() for item in optimizer.grad_samples]
        clip_norm = float(optimizer.max_grad_norm)
        coarse = self._coarser(rows)
        # The norms of coarse numbers themselves, and as the run computes and rounds them.
        parts = _norms([row.float() if coarse else row for row in rows]).double().cpu()
        added = parts
        for norms in (_norms(rows), parts) if coarse else (parts,):
            factors = self._factors(norms).double().cpu()
            expected = [
                torch.einsum("i,i...", factor.to(row.device, item.dtype), row.to(item.dtype))
                for factor, row, item in zip(factors, rows, optimizer.params, strict=True)
            ]
            added = factors * parts
            if self._compare_sum(before, expected, float(added.norm(dim=0).sum()), judge=False):
                break
        else:
            added = self._resolved(before, expected, rows, parts, added)
        sizes = (added.norm(dim=0) / clip_norm).numpy()
        where = added.abs().argmax(dim=0).tolist()
        names = [self._name(optimizer.params[index]) for index in where]
        norms = (parts.norm(dim=0) / clip_norm).numpy()
        self._found.contributions(sizes, norms, names, self._step)
        self._seen += 1
        self._keep()

    def _factors(self, norms: Tensor) -> Tensor:
        """What Opacus multiplies records' parts in tensors by, in the format of the norms."""
        optimizer = self._optimizer
        if isinstance(optimizer, DPPerLayerOptimizer):
            limits = torch.tensor(optimizer.max_grad_norms, dtype=norms.dtype, device=norms.device)
            return (limits[:, None] / (norms + _TINY)).clamp(max=1.0)
        # Laid out as in Opacus: coarse sums depend on their order.
        whole: Tensor = norms.T.contiguous().norm(2, dim=1)
        factors: Tensor = (float(optimizer.max_grad_norm) / (whole + _TINY)).clamp(max=1.0)
        return factors.expand_as(norms)

    def _coarser(self, rows: Sequence[Tensor]) -> bool:
        """Whether records' gradients are in a coarse format, as under autocast."""
        worst = max((row.dtype for row in rows), key=lambda kind: torch.finfo(kind).eps)
        spacing = float(torch.finfo(worst).eps)
        coarse = spacing > torch.finfo(torch.float32).eps
        if coarse:
            self._found.coarse(str(worst).removeprefix("torch."), _ROUNDINGS * spacing)
        return coarse

    def _compare_sum(
        self,
        before: Sequence[Tensor | None],
        expected: Sequence[Tensor],
        size: float,
        *,
        judge: bool = True,
    ) -> bool:
        """Whether a sum grew by what is expected, to rounding."""
        offs = []
        for item, old, more in zip(self._optimizer.params, before, expected, strict=True):
            now = self._sum(item)
            change = now if old is None else now - old
            offs.append(float((change - more.view_as(change)).double().norm()))
        off, allowed = _finite(np.linalg.norm(offs)), self._rounding(size)
        if off <= allowed or judge:
            self._note(off, allowed, offs)
        return off <= allowed

    def _rounding(self, size: float) -> float:
        spacing = max(torch.finfo(item.dtype).eps for item in self._optimizer.params)
        sums = [float(self._sum(item).norm()) for item in self._optimizer.params]
        return _ULPS * spacing * (size + float(np.linalg.norm(sums)))

    def _note(self, off: float, allowed: float, offs: Sequence[float]) -> None:
        name = self._name(self._optimizer.params[int(np.argmax(offs))])
        norm = float(self._optimizer.max_grad_norm)
        self._found.distance(off / norm, allowed / norm, name, self._step)

    def _resolved(
        self,
        before: Sequence[Tensor | None],
        expected: Sequence[Tensor],
        rows: Sequence[Tensor],
        parts: Tensor,
        clipped: Tensor,
    ) -> Tensor:
        """What each record added to each tensor of a sum that is not that of clipped records.

        Where something else is in the sum, that is not known: then records count as clipped.
        """
        params = self._optimizer.params
        changes = [
            (self._sum(item) if old is None else self._sum(item) - old).double()
            for item, old in zip(params, before, strict=True)
        ]
        flat = [_flat(row).double() for row in rows]
        by_layer = isinstance(self._optimizer, DPPerLayerOptimizer)
        groups = [[index] for index in range(len(params))] if by_layer else [[*range(len(params))]]
        added, rests = clipped.clone(), np.zeros(len(params))
        for group in groups:
            gram = sum((flat[index] @ flat[index].T).cpu().numpy() for index in group)
            products = sum(
                (flat[index] @ changes[index].reshape(-1)).cpu().numpy() for index in group
            )
            square = sum(float(changes[index].square().sum()) for index in group)
            if not (np.isfinite(square) and np.isfinite(gram).all()):
                rests[group] = np.inf
                continue
            found = resolve(np.asarray(gram), np.asarray(products), square)
            if found.rest > _EXPLAINED * square**0.5 or len(found.factors) < parts.shape[1]:
                rests[group] = [float((changes[i] - expected[i]).norm()) for i in group]
            else:
                added[group] = torch.from_numpy(found.factors).abs() * parts[group]
        off = _finite(np.linalg.norm(rests))
        allowed = self._rounding(float(parts.norm(dim=0).sum()))
        # Norms that were rounded otherwise than here give each record another factor.
        allowed += self._found.facts.coarseness * float(clipped.norm(dim=0).norm())
        self._note(off, allowed, rests.tolist())
        return added

    # --- ghost clipping: gradients of some records, computed again --------------------------------

    def _ghost_backward(self, backward: Callable[[Any], None], loss: Any) -> None:
        """Replaces the backward pass of ghost clipping while attached."""
        module, losses, run = loss.module, loss.loss_per_sample, self._run
        if run.sharded:
            # No rank has the gradient of a record.
            self._mode.averaging(module)
        if run.sharded or losses.ndim != 1 or not self._is_due():
            backward(loss)
            return
        trained = [item for item in module.trainable_parameters if item.requires_grad]
        chance = np.random.default_rng((self._seed, self._step, len(losses)))
        count = min(_GHOST_RECORDS, len(losses))
        chosen = sorted(chance.choice(len(losses), count, replace=False).tolist())
        norms: list[Tensor] = []
        clipped: list[tuple[Tensor, tuple[Tensor | None, ...]]] = []
        with self._guard:
            norms = [
                torch.stack([_norm(part) for part in _gradients(module, losses[index], trained)])
                for index in chosen
            ]

        def between(original: Callable[[], Tensor]) -> Tensor:
            # The first pass has measured the norms, and the second has not begun.
            factors = original()
            with self._guard:
                whole = (factors.detach().to(losses.device) * losses).sum()
                clipped.append((factors, _gradients(module, whole, trained)))
            return factors

        with Attachment() as attachment:
            attachment.patch(PatchedMethod(module, "get_clipping_coef", between))
            backward(loss)
        if clipped and not self._guard.reason:
            with self._guard:
                self._compare_ghost(trained, chosen, norms, *clipped[-1])

    def _compare_ghost(
        self,
        trained: list[nn.Parameter],
        chosen: list[int],
        norms: list[Tensor],
        factors: Tensor,
        expected: tuple[Tensor | None, ...],
    ) -> None:
        """Compare what ghost clipping measured and added with gradients computed again.

        Args:
            trained: The parameters.
            chosen: Records whose gradients were computed, each by a backward pass.
            norms: For each of them, the norms of its gradient by parameter.
            factors: What each record of the batch was multiplied by.
            expected: The sum of all records by parameter, each multiplied by its factor.
        """
        found, clip_norm = self._found, float(self._optimizer.max_grad_norm)
        sizes, names = [], []
        for index, parts in zip(chosen, norms, strict=True):
            whole = float(parts.norm())
            sizes.append(float(factors[index]) * whole / clip_norm)
            names.append(self._name(trained[int(parts.argmax())]))
            for item, norm in zip(trained, parts.tolist(), strict=True):
                measured = float(item._norm_sample[index])  # type: ignore[attr-defined]
                if whole > 0.0 and np.isfinite(whole):
                    found.norm((measured - norm) / whole, self._name(item), self._step)
        for kind in (torch.bfloat16, torch.float16):
            if any(_rounded_to(kind, item) for item in expected if item is not None):
                name = str(kind).removeprefix("torch.")
                found.coarse(name, _GHOST_ROUNDINGS * torch.finfo(kind).eps)
                break
        lengths = np.array([float(item.norm()) for item in norms]) / clip_norm
        found.contributions(np.array(sizes), lengths, names, self._step)
        pairs = [
            (item, item.grad, wanted)
            for item, wanted in zip(trained, expected, strict=True)
            if item.grad is not None and wanted is not None
        ]
        offs = [float((grad - wanted).double().norm()) for _, grad, wanted in pairs]
        size = [float(wanted.double().norm()) for _, _, wanted in pairs]
        spacing = max(torch.finfo(item.dtype).eps for item in trained)
        off = _finite(np.linalg.norm(offs)) / clip_norm
        allowed = _ULPS * spacing * (float(np.linalg.norm(size)) / clip_norm + len(factors))
        worst = pairs[int(np.argmax(offs))][0]
        found.distance(off, allowed, self._name(worst), self._step)

    # --- sum, noise and divisor -------------------------------------------------------------------

    def sum_ready(self) -> None:
        """The sum is complete: nothing may have changed it since the records were added."""
        if self._is_due():
            if not self._seen and not self._ghost:
                # Whatever replaced the clipping meanwhile left the records where they were.
                self._look([None] * len(self._optimizer.params))
            offs = [
                float((self._sum(item) - old).double().norm())
                for item, old in zip(self._optimizer.params, self._after, strict=False)
            ]
            if any(offs):
                self._note(_finite(np.linalg.norm(offs)), 0.0, offs)
            self._after = []
        self._aside = True

    def before_noise(self, tensors: Sequence[int] | None) -> None:
        """Canaries are in."""
        self._aside = False

    def after_noise(self, noise: AddedNoise) -> None:
        """The noise is in: every trained tensor must have some, and the divisor comes next."""
        self._noisy = noise.noisy
        if not self._is_due():
            return
        if noise.deviation > 0.0:
            silent = [self._name(item) for item in self._optimizer.params if self._silent(item)]
            self._found.coverage(silent, self._step)
        if self._seen:
            self._found.looked()

    def released(self, step: PrivateStep, gradient: NDArray[np.float64] | None) -> None:
        """The step is about to be applied: by what was the noisy sum divided?"""
        if self._noisy is not None and gradient is not None:
            noisy = self._noisy.cpu().double().numpy()
            self._found.divisor(noisy, gradient, step.divisor, self._spacing, self._step)
        self._forget()

    def exchange(self) -> None:
        """Each rank checks the records that it has itself."""
        self._ranks = gather(self._found.facts, self._run.world, self._run.device)

    def _silent(self, parameter: nn.Parameter) -> bool:
        """Whether a noisy sum is the sum before the noise, in all of a tensor or in part of it."""
        kept = clipped_sum(self._optimizer, parameter)
        if parameter.grad is None or kept is None:
            return False
        noisy, clean = local(parameter.grad).detach(), local(kept).detach()
        if noisy.data_ptr() == clean.data_ptr() or noisy.numel() != clean.numel():
            return False  # noise added in place leaves nothing to compare with
        same = int((noisy == clean.view_as(noisy)).sum())
        if same == noisy.numel():
            return same > 0
        # Coarse numbers swallow some of the noise.
        exact = torch.finfo(noisy.dtype).eps < 1e-6
        return exact and same >= 2 and same > _SILENT * noisy.numel()

    def _name(self, parameter: nn.Parameter) -> str:
        return self._names.get(id(parameter), f"a tensor {tuple(parameter.shape)}")


def _finite(value: Any) -> float:
    """A distance; infinite where it is none."""
    return float(value) if np.isfinite(value) else float("inf")


def _norms(rows: Sequence[Tensor]) -> Tensor:
    """Norms of each record's part in each tensor."""
    return torch.stack([_flat(row).norm(2, dim=-1).to(rows[0].device) for row in rows])


def _flat(rows: Tensor) -> Tensor:
    """One row a record, also where there is none."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


# Records of a batch whose gradients are computed again, each by a backward pass.
_GHOST_RECORDS = 2
# Spacings of a coarse format that norms of products may be off by, as a share of a record's norm.
_GHOST_ROUNDINGS = 3.0
# Values that do not all lie on the numbers of a coarse format by accident.
_ON_GRID = 16


def _gradients(module: Any, loss: Tensor, trained: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    """Gradients of a loss, while Opacus' own hooks are off and nothing is accumulated."""
    with Attachment() as attachment:
        if module.hooks_enabled:
            attachment.undo(module.enable_hooks)
        module.disable_hooks()
        return torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)


def _rounded_to(kind: torch.dtype, gradient: Tensor) -> bool:
    """Whether a gradient was computed in a coarser format than it is kept in."""
    if torch.finfo(gradient.dtype).eps >= torch.finfo(kind).eps:
        return False
    some = gradient.detach()[gradient != 0.0]
    return some.numel() >= _ON_GRID and bool((some.to(kind).to(some.dtype) == some).all())


def _norm(gradient: Tensor | None) -> Tensor:
    if gradient is None:
        return torch.zeros((), dtype=torch.float64)
    norm: Tensor = torch.linalg.vector_norm(gradient.detach().double())
    return norm.cpu()


def _observed_backward(backward: Callable[[Any], None], loss: Any) -> None:
    listener = _BACKWARD.listeners.get(loss.optimizer)
    if listener is None:
        backward(loss)
    else:
        listener(backward, loss)


_BACKWARD = SharedPatch(DPTensorFastGradientClipping, "backward", _observed_backward)
