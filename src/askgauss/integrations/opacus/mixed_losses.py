"""Whether a loss mixes the outputs of records, or weights them by what else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from askgauss.integrations.opacus.mixed_outputs import UnseenError

__all__ = ["class_weights", "depends_on", "loss_look"]

# Outputs of more numbers than this are not differentiated twice.
_LARGEST = 1 << 24
# Nodes of a graph that are walked through.
_NODES = 4096
# Derivatives by other records are exactly zero where a loss is a sum over records.
_CROSS = 1e-6
# A gradient has the form of a weighted cross-entropy up to this share.
_FORM = 1e-4
# Records whose label is likelier than this say little of their weight.
_CERTAIN = 0.99
_WEIGHED = 1 << 20


def loss_look(loss: Tensor, outputs: Sequence[Tensor]) -> tuple[bool, list[Tensor]]:
    """Whether the gradient of one record's outputs depends on those of others, and the gradients.

    Args:
        loss: What is about to be differentiated.
        outputs: Outputs of the model, each with a row for each record.

    Raises:
        UnseenError: It cannot be differentiated twice without being felt.
    """
    if loss.numel() != 1 or not loss.requires_grad:
        raise UnseenError("the loss is not a single number")
    if sum(item.numel() for item in outputs) > _LARGEST:
        raise UnseenError("the model's output is too large")
    if any(item._backward_hooks or item.retains_grad for item in (loss, *outputs)):
        raise UnseenError("the loss or the model's output has hooks")
    if any(isinstance(node, BackwardCFunction) for node in _between(loss, outputs)):
        raise UnseenError("the loss goes through functions or layers of its own")
    with torch.enable_grad():
        found = torch.autograd.grad(loss, outputs, create_graph=True, allow_unused=True)
        used = [(o, g) for o, g in zip(outputs, found, strict=True) if g is not None]
        if not used:
            raise UnseenError("the loss does not depend on the model's output")
        gradients = [gradient for _, gradient in used]
        if not all(bool(torch.isfinite(item).all()) for item in gradients):
            raise UnseenError("the gradient of the loss is not finite")
        along = [_along(item) * item for item in gradients if item.requires_grad]
        if not along:
            raise UnseenError("the gradient of the loss does not depend on the model's output")
        whole = torch.stack([item.sum() for item in along]).sum()
        second = torch.autograd.grad(
            whole, [output for output, _ in used], retain_graph=True, allow_unused=True
        )
    parts = [item.detach().flatten(1) if item.ndim > 1 else item.detach()[:, None]
             for item in second if item is not None]  # fmt: skip
    by_record = torch.stack([item.abs().amax(1).double() for item in parts]).amax(0)
    own, others = float(by_record[0::2].max()), float(by_record[1::2].max())
    if not np.isfinite(own + others) or own + others == 0.0:
        raise UnseenError("the loss has no second derivative")
    crossed = int((by_record[1::2] > _CROSS * max(own, others)).sum())
    return crossed >= 2, [item.detach() for item in gradients]


def _along(gradient: Tensor) -> Tensor:
    """A direction in the outputs of every second record, which draws no random numbers."""
    values = torch.arange(1, gradient.numel() + 1, device=gradient.device, dtype=torch.float64)
    direction = torch.cos(values).reshape(gradient.shape)
    direction[1::2] = 0.0
    return direction.to(gradient.dtype)


def _between(loss: Tensor, outputs: Sequence[Tensor]) -> list[Any]:
    """Nodes of the graph that lie between a loss and the outputs."""
    ends = {id(item.grad_fn) for item in outputs}
    after: dict[int, list[int]] = {}
    nodes: dict[int, Any] = {}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in nodes:
            continue
        if len(nodes) > _NODES:
            raise UnseenError("the graph of the loss is too large")
        nodes[id(node)] = node
        if id(node) in ends:
            continue
        for following, _ in node.next_functions:
            if following is not None:
                after.setdefault(id(following), []).append(id(node))
                waiting.append(following)
    reached, left = set(), [key for key in ends if key in nodes]
    while left:
        for key in after.get(left.pop(), ()):
            if key not in reached:
                reached.add(key)
                left.append(key)
    return [nodes[key] for key in reached - ends]


def depends_on(loss: Tensor, numbers: Sequence[Tensor]) -> bool:
    """Whether a loss is made of one of these numbers."""
    if any(item is loss for item in numbers):
        return True
    return bool(_between(loss, [item for item in numbers if item.grad_fn is not None]))


def class_weights(
    output: Tensor, gradient: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Label and weight of every record in a weighted cross-entropy; None where it is none."""
    output = output.detach()
    if output.dtype not in (torch.float32, torch.float64) or output.numel() > _WEIGHED:
        return None
    values: NDArray[np.float64] = output.to("cpu", torch.float64).numpy()
    slopes: NDArray[np.float64] = gradient.to("cpu", torch.float64).numpy()
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        # One logit: that of the second of two classes.
        values = np.stack([np.zeros(len(values)), values.reshape(-1)], axis=1)
        slopes = np.stack([-slopes.reshape(-1), slopes.reshape(-1)], axis=1)
    if values.ndim != 2 or values.shape[1] < 2:
        return None
    likely = np.exp(values - values.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    labels, rows = slopes.argmin(axis=1), np.arange(len(values))
    own, targets = likely[rows, labels], np.zeros_like(values)
    targets[rows, labels] = 1.0
    clear = own < _CERTAIN
    weights = -slopes[rows, labels] / np.where(clear, 1.0 - own, 1.0)
    form = weights[:, None] * (likely - targets)
    off = np.abs(form - slopes).max(axis=1)
    if not clear.any() or (weights <= 0.0).any() or (off[clear] > _FORM * weights[clear]).any():
        return None
    if np.setdiff1d(labels, labels[clear]).size:
        return None
    names, first = np.unique(labels[clear], return_index=True)
    of_class = weights[clear][first][np.searchsorted(names, labels)]
    return labels, np.where(clear, weights, of_class)
