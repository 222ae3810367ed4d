"""Ghost clipping checked from outside: the gradients of some records, computed again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from askgauss.integrations.attachment import Attachment, Guard, PatchedMethod
from askgauss.integrations.opacus.opacus_versions import DPTensorFastGradientClipping
from askgauss.recording.witness import StepWitness

__all__ = ["GhostCheck", "listen", "unlisten"]

# Records of a batch whose gradients are computed again, each by a backward pass.
_RECORDS = 2
_ULPS = 4.0
# Spacings of a coarse format that norms of products may be off by, as a share of a record's norm.
_ROUNDINGS = 3.0
# Values that do not all lie on the numbers of a coarse format by accident.
_ON_GRID = 16

_listeners: weakref.WeakKeyDictionary[Any, Callable[[GhostCheck], bool]]
_listeners = weakref.WeakKeyDictionary()
# Releases before 1.5 have no ghost clipping.
_original: Any = getattr(DPTensorFastGradientClipping, "backward", None)


@dataclass(slots=True)
class GhostCheck:
    """One backward pass of ghost clipping that is checked."""

    module: Any = None
    found: StepWitness | None = None
    name: Callable[[nn.Parameter], str] = str
    guard: Guard = field(default_factory=lambda: Guard(active=False))
    clip_norm: float = 1.0
    step: int = 0
    seed: int = 0
    chosen: list[int] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    factors: Tensor | None = None
    expected: tuple[Tensor | None, ...] = ()


def listen(optimizer: Any, asked: Callable[[GhostCheck], bool]) -> None:
    """Call ``asked`` before every backward pass of an optimizer's ghost clipping."""
    _listeners[optimizer] = asked
    DPTensorFastGradientClipping.backward = _backward


def unlisten(optimizer: Any) -> None:
    """Stop; without any listener, Opacus is as it was."""
    _listeners.pop(optimizer, None)
    if not _listeners and getattr(DPTensorFastGradientClipping, "backward", None) is _backward:
        DPTensorFastGradientClipping.backward = _original


def _backward(loss: Any) -> None:
    """Replaces the backward pass of ghost clipping while there is a listener."""
    check, asked = GhostCheck(module=loss.module), _listeners.get(loss.optimizer)
    if asked is None or loss.loss_per_sample.ndim != 1 or not asked(check):
        _original(loss)
        return
    module, losses = loss.module, loss.loss_per_sample
    trained = [item for item in module.trainable_parameters if item.requires_grad]
    chance = np.random.default_rng((check.seed, check.step, len(losses)))
    count = min(_RECORDS, len(losses))
    check.chosen = sorted(chance.choice(len(losses), count, replace=False).tolist())
    with check.guard:
        check.norms = [
            torch.stack([_norm(part) for part in _gradients(module, losses[index], trained)])
            for index in check.chosen
        ]

    def between(original: Callable[[], Tensor]) -> Tensor:
        # The first pass has measured the norms, and the second has not begun.
        factors = original()
        with check.guard:
            whole = (factors.detach().to(losses.device) * losses).sum()
            check.expected, check.factors = _gradients(module, whole, trained), factors
        return factors

    with Attachment() as attachment:
        attachment.patch(PatchedMethod(module, "get_clipping_coef", between))
        _original(loss)
    if not check.guard.reason:
        with check.guard:
            _compare(check, trained)


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


def _compare(check: GhostCheck, trained: list[nn.Parameter]) -> None:
    found, factors = check.found, check.factors
    assert found is not None
    if factors is None:
        return
    sizes, names = [], []
    for index, norms in zip(check.chosen, check.norms, strict=True):
        whole = float(norms.norm())
        sizes.append(float(factors[index]) * whole / check.clip_norm)
        names.append(check.name(trained[int(norms.argmax())]))
        for item, norm in zip(trained, norms.tolist(), strict=True):
            measured = float(item._norm_sample[index])  # type: ignore[attr-defined]
            if whole > 0.0 and np.isfinite(whole):
                found.norm((measured - norm) / whole, check.name(item), check.step)
    for kind in (torch.bfloat16, torch.float16):
        if any(_rounded_to(kind, item) for item in check.expected if item is not None):
            name = str(kind).removeprefix("torch.")
            found.coarse(name, _ROUNDINGS * torch.finfo(kind).eps)
            break
    lengths = np.array([float(item.norm()) for item in check.norms]) / check.clip_norm
    found.contributions(np.array(sizes), lengths, names, check.step)
    pairs = [
        (item, item.grad, wanted)
        for item, wanted in zip(trained, check.expected, strict=True)
        if item.grad is not None and wanted is not None
    ]
    offs = [float((grad - wanted).double().norm()) for _, grad, wanted in pairs]
    size = [float(wanted.double().norm()) for _, _, wanted in pairs]
    spacing = max(torch.finfo(item.dtype).eps for item in trained)
    off = float(np.linalg.norm(offs)) / check.clip_norm
    allowed = _ULPS * spacing * (float(np.linalg.norm(size)) / check.clip_norm + len(factors))
    worst = pairs[int(np.argmax(offs))][0]
    found.distance(
        off if np.isfinite(off) else float("inf"), allowed, check.name(worst), check.step
    )
