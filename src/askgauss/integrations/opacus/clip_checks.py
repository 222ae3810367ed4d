"""Looks at some private steps of an Opacus run as they happen: records, sum, noise, divisor."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askgauss.files import codec
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.guard import Guard
from askgauss.integrations.opacus.ghost_checks import GhostLook, listen, unlisten
from askgauss.integrations.opacus.opacus_versions import (
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from askgauss.integrations.opacus.ranks import told_by_all
from askgauss.integrations.opacus.run_description import clipped_sum, noise_by_parameter
from askgauss.integrations.opacus.shards import divided_by, is_sharded, local
from askgauss.integrations.patched_method import StandIn
from askgauss.recording.facts import StepFacts, StepWitness
from askgauss.recording.facts.steps import over_ranks, resolve

__all__ = ["ClipWitness"]

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


class ClipWitness:
    """Looks at a random sample of the steps; the others pass by untouched.

    Nothing random is drawn from the run's generators, and nothing that the step uses is written.

    Args:
        optimizer: The private optimizer.
        names: Names of parameters, by their identity.
        share: The share of steps to look at, beside the first.
        seed: Root of the choice.
        world: Number of ranks, which tell each other what they found in every step they look at.
        guard: Keeps what goes wrong here from stopping the training.
    """

    def __init__(
        self,
        optimizer: Any,
        names: dict[int, str],
        share: float,
        seed: int,
        world: int = 1,
        guard: Guard | None = None,
    ) -> None:
        self.guard = Guard(active=False) if guard is None else guard
        self._optimizer = optimizer
        self._names = names
        self._seed = seed
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._sharded = is_sharded(optimizer.params)
        # What the sum over ranks was divided by, where parameters are shared out and it was seen.
        self.averaged: float | None = None
        unchecked = "records are clipped inside the backward pass"
        self._witness = StepWitness(
            share=share,
            seed=seed,
            recomputed=self._ghost,
            unchecked=unchecked if noise_by_parameter(optimizer) else "",
        )
        self._world = world
        self._ranks: list[StepFacts] = []
        self._count = 0
        self._aside = False
        self._due: bool | None = None
        self._seen = 0
        self._after: list[Tensor] = []
        self._noisy: Tensor | None = None

    @property
    def facts(self) -> StepFacts:
        """What was found so far, by all ranks."""
        own = self._witness.facts
        if not self._ranks:
            return own
        divisors = {
            name: getattr(own, name)
            for name in ("divided", "least_divisor", "most_divisor", "divisor_step", "uneven")
        }
        return replace(over_ranks(self._ranks), divisor_spacing=own.divisor_spacing, **divisors)

    def load(self, facts: StepFacts | None, rank: int = 0) -> None:
        """Go on from the facts of a checkpoint, which are those of all ranks."""
        if facts is not None and rank > 0:
            # The first one tells the others what they had found.
            facts = replace(
                self._witness.facts,
                divided=facts.divided,
                least_divisor=facts.least_divisor,
                most_divisor=facts.most_divisor,
                divisor_step=facts.divisor_step,
                uneven=facts.uneven,
            )
        self._witness.load(facts)

    def attach(self, attachment: Attachment, steps: int) -> None:
        """Begin to look, after so many steps."""
        self._count = max(steps, self._count)
        self._forget()
        name = "accumulate" if self._ghost else "clip_and_accumulate"
        call = self._accumulate if self._ghost else self._clip
        if self.facts.share > 0.0 and not self.facts.unchecked:
            attachment.stand_in(StandIn(self._optimizer, name, call))
            if self._ghost:
                attachment.undo(functools.partial(unlisten, self._optimizer))
                listen(self._optimizer, self._before_backward)
        attachment.undo(self._forget)

    def _forget(self) -> None:
        self._due, self._seen, self._after, self._noisy = None, 0, [], None
        self._aside = False

    @property
    def step(self) -> int:
        """The step that is being made, from 1."""
        return self._count + 1

    def _is_due(self) -> bool:
        if self.guard.reason:
            return False
        if self._due is None:
            self._due = self._witness.due(self.step)
        return self._due and not self._aside

    # --- records ----------------------------------------------------------------------------------

    def _clip(self, original: Callable[[], None]) -> None:
        if not self._is_due():
            original()
            return
        with self.guard:
            before = self._sums()
        original()
        if not self.guard.reason:
            with self.guard:
                self._look(before)

    def _accumulate(self, original: Callable[[], None]) -> None:
        if not self._is_due():
            original()
            return
        with self.guard:
            before = self._sums()
        original()
        if self.guard.reason:
            return
        with self.guard:
            if not self._sharded:
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

    def aside(self, call: Callable[[], bool]) -> bool:
        """Do something that is no part of the run's own step."""
        self._aside = True
        try:
            return call()
        finally:
            self._aside = False

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
            added = self._told_apart(before, expected, rows, parts, added)
        sizes = (added.norm(dim=0) / clip_norm).numpy()
        where = added.abs().argmax(dim=0).tolist()
        names = [self._name(optimizer.params[index]) for index in where]
        norms = (parts.norm(dim=0) / clip_norm).numpy()
        self._witness.contributions(sizes, norms, names, self.step)
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
            self._witness.coarse(str(worst).removeprefix("torch."), _ROUNDINGS * spacing)
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
        self._witness.distance(off / norm, allowed / norm, name, self.step)

    def _told_apart(
        self,
        before: Sequence[Tensor | None],
        expected: Sequence[Tensor],
        rows: Sequence[Tensor],
        parts: Tensor,
        clipped: Tensor,
    ) -> Tensor:
        """What each record added to each tensor of a sum that is not that of clipped records.

        Where something else is in the sum, nobody can tell: then records count as clipped.
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
        allowed += self._witness.facts.coarseness * float(clipped.norm(dim=0).norm())
        self._note(off, allowed, rests.tolist())
        return added

    def _before_backward(self, look: GhostLook) -> bool:
        """Ghost clipping is about to run: whether to look, and where to put what was found."""
        if self._sharded:
            # No rank has the gradient of a record.
            self.averaged = self.averaged or divided_by(look.module)
            return False
        if not self._is_due():
            return False
        look.step, look.seed, look.guard = self.step, self._seed, self.guard
        look.witness, look.name = self._witness, self._name
        look.clip_norm = float(self._optimizer.max_grad_norm)
        return True

    # --- sum, noise and divisor -------------------------------------------------------------------

    def before_noise(self) -> None:
        """The sum is whole: nothing may have changed it since the records were added."""
        if not self._is_due():
            return
        if not self._seen and not self._ghost:
            # Whoever replaced the clipping meanwhile left the records where they were.
            self._look([None] * len(self._optimizer.params))
        offs = [
            float((self._sum(item) - old).double().norm())
            for item, old in zip(self._optimizer.params, self._after, strict=False)
        ]
        if any(offs):
            self._note(_finite(np.linalg.norm(offs)), 0.0, offs)
        self._after = []

    def after_noise(self, noisy: Tensor | None, noise: float) -> None:
        """The noise is in: every trained tensor must have some, and the divisor comes next.

        Args:
            noisy: The noisy sum where the divisor shall be measured; None for nowhere.
            noise: The noise's standard deviation, as stated; 0 where this process adds none.
        """
        self._noisy = noisy
        if not self._is_due():
            return
        if noise > 0.0:
            silent = [self._name(item) for item in self._optimizer.params if self._silent(item)]
            self._witness.coverage(silent, self.step)
        if self._seen:
            self._witness.looked()

    def divided(self, released: NDArray[np.float64], stated: float, precision: float) -> None:
        """The step is about to be applied: by what was the noisy sum divided?"""
        noisy, self._noisy = self._noisy, None
        if noisy is not None:
            values = noisy.cpu().double().numpy()
            self._witness.divisor(values, released, stated, precision, self.step)

    def finish(self) -> bool:
        """The step is over; whether it is one after which ranks tell each other what they found."""
        told = self._world > 1 and self._is_due()
        self._count += 1
        self._forget()
        if told:
            text = json.dumps(codec.to_plain(self._witness.facts))
            device = self._optimizer.params[0].device
            heard = told_by_all(text, self._world, device)
            self._ranks = [
                codec.from_plain(StepFacts, json.loads(item), "witness") for item in heard
            ]
        return told

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
