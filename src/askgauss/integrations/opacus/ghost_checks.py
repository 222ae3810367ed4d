"""Ghost clipping looked at from outside: gradients of some records, computed again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.guard import Guard
from askgauss.integrations.opacus.opacus_versions import DPTensorFastGradientClipping
from askgauss.integrations.patched_method import StandIn
from askgauss.recording.facts import StepWitness

__all__ = ["GhostLook", "listen", "unlisten"]

# Records of a batch whose gradients are computed again, each by a backward pass.
_RECORDS = 2
_ULPS = 4.0
# Spacings of a coarse format that norms of products may be off by, as a share of a record's norm.
_ROUNDINGS = 3.0
# Values that do not all lie on the numbers of a coarse format by accident.
_ON_GRID = 16

_listeners: weakref.WeakKeyDictionary[Any, Callable[[GhostLook], bool]]
_listeners = weakref.WeakKeyDictionary()
# Releases before 1.5 have no ghost clipping.
_original: Any = getattr(DPTensorFastGradientClipping, "backward", None)


@dataclass(slots=True)
class GhostLook:
    """One backward pass of ghost clipping that is looked at."""

    module: Any = None
    witness: StepWitness | None = None
    name: Callable[[nn.Parameter], str] = str
    guard: Guard = field(default_factory=lambda: Guard(active=False))
    clip_norm: float = 1.0
    step: int = 0
    seed: int = 0
    chosen: list[int] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    factors: Tensor | None = None
    expected: tuple[Tensor | None, ...] = ()


def listen(optimizer: Any, asked: Callable[[GhostLook], bool]) -> None:
    """Ask ``asked`` before every backward pass of an optimizer's ghost clipping."""
    _listeners[optimizer] = asked
    DPTensorFastGradientClipping.backward = _backward


def unlisten(optimizer: Any) -> None:
    """Ask no more; with nobody left to ask, Opacus is as it was."""
    _listeners.pop(optimizer, None)
    if not _listeners and getattr(DPTensorFastGradientClipping, "backward", None) is _backward:
        DPTensorFastGradientClipping.backward = _original


def _backward(loss: Any) -> None:
    """Stands in for the backward pass of ghost clipping while somebody listens."""
    look, asked = GhostLook(module=loss.module), _listeners.get(loss.optimizer)
    if asked is None or loss.loss_per_sample.ndim != 1 or not asked(look):
        _original(loss)
        return
    module, losses = loss.module, loss.loss_per_sample
    trained = [item for item in module.trainable_parameters if item.requires_grad]
    chance = np.random.default_rng((look.seed, look.step, len(losses)))
    count = min(_RECORDS, len(losses))
    look.chosen = sorted(chance.choice(len(losses), count, replace=False).tolist())
    with look.guard:
        look.norms = [
            torch.stack([_norm(part) for part in _gradients(module, losses[index], trained)])
            for index in look.chosen
        ]

    def between(original: Callable[[], Tensor]) -> Tensor:
        # The first pass has measured the norms, and the second has not begun.
        factors = original()
        with look.guard:
            whole = (factors.detach().to(losses.device) * losses).sum()
            look.expected, look.factors = _gradients(module, whole, trained), factors
        return factors

    with Attachment() as attachment:
        attachment.stand_in(StandIn(module, "get_clipping_coef", between))
        _original(loss)
    if not look.guard.reason:
        with look.guard:
            _compare(look, trained)


def _gradients(module: Any, loss: Tensor, trained: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    """Gradients of a loss, while Opacus' own hooks sleep and nothing is accumulated."""
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


def _compare(look: GhostLook, trained: list[nn.Parameter]) -> None:
    witness, factors = look.witness, look.factors
    assert witness is not None
    if factors is None:
        return
    sizes, names = [], []
    for index, norms in zip(look.chosen, look.norms, strict=True):
        whole = float(norms.norm())
        sizes.append(float(factors[index]) * whole / look.clip_norm)
        names.append(look.name(trained[int(norms.argmax())]))
        for item, norm in zip(trained, norms.tolist(), strict=True):
            measured = float(item._norm_sample[index])  # type: ignore[attr-defined]
            if whole > 0.0 and np.isfinite(whole):
                witness.norm((measured - norm) / whole, look.name(item), look.step)
    for kind in (torch.bfloat16, torch.float16):
        if any(_rounded_to(kind, item) for item in look.expected if item is not None):
            name = str(kind).removeprefix("torch.")
            witness.coarse(name, _ROUNDINGS * torch.finfo(kind).eps)
            break
    lengths = np.array([float(item.norm()) for item in look.norms]) / look.clip_norm
    witness.contributions(np.array(sizes), lengths, names, look.step)
    pairs = [
        (item, item.grad, wanted)
        for item, wanted in zip(trained, look.expected, strict=True)
        if item.grad is not None and wanted is not None
    ]
    offs = [float((found - wanted).double().norm()) for _, found, wanted in pairs]
    size = [float(wanted.double().norm()) for _, _, wanted in pairs]
    spacing = max(torch.finfo(item.dtype).eps for item in trained)
    off = float(np.linalg.norm(offs)) / look.clip_norm
    allowed = _ULPS * spacing * (float(np.linalg.norm(size)) / look.clip_norm + len(factors))
    worst = pairs[int(np.argmax(offs))][0]
    witness.distance(
        off if np.isfinite(off) else float("inf"), allowed, look.name(worst), look.step
    )
