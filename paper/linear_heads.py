"""Linear heads on fixed features, with per-example gradients clipped in closed form.

For softmax regression the gradient of one example is the outer product of its residual r (softmax
less one-hot) and its features x, so its norm is ``|r| sqrt(|x|^2 + 1)``, the one for the bias. A
DP-SGD step therefore needs two matrix products, and heads that differ in noise, canaries or step
size share the features: one product for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askgauss import _validate
from askgauss.exceptions import UnsupportedError

__all__ = ["Heads", "HeadsShape"]

# Rows worked on at once: enough for the matrix product, little enough for memory.
_CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsShape:
    """Sizes of a stack of linear heads.

    Args:
        heads: How many.
        features: Length of a row of features.
        classes: Number of classes.

    Examples:
        >>> HeadsShape(heads=2, features=15552, classes=10).parameters
        155530
    """

    heads: int
    features: int
    classes: int

    def __post_init__(self) -> None:
        _validate.integer(1, heads=self.heads, features=self.features)
        _validate.integer(2, classes=self.classes)

    @property
    def tensors(self) -> tuple[int, int]:
        """Sizes of one head's tensors: weight and bias."""
        return self.classes * self.features, self.classes

    @property
    def parameters(self) -> int:
        """Parameters of one head."""
        return sum(self.tensors)


class Heads:
    """A stack of linear heads, one flat row of parameters each.

    Args:
        shape: Sizes.

    Attributes:
        flat: Parameters, one row a head: weight, then bias.
    """

    def __init__(self, shape: HeadsShape) -> None:
        self.shape = shape
        self.flat = torch.zeros(shape.heads, shape.parameters)

    def _logits(self, features: Tensor) -> Tensor:
        """(rows, heads, classes)."""
        weight, bias = torch.split(self.flat, list(self.shape.tensors), dim=1)
        stacked = weight.reshape(-1, self.shape.features)
        logits = torch.addmm(bias.flatten(), features, stacked.T)
        return logits.view(-1, self.shape.heads, self.shape.classes)

    @torch.no_grad()
    def accuracy(self, rows: NDArray[np.float16], labels: NDArray[np.int64]) -> list[float]:
        """Share of rows each head classifies correctly."""
        right = torch.zeros(self.shape.heads)
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            guess = self._logits(_floats(rows[part])).argmax(dim=2)
            right += (guess == torch.from_numpy(labels[part])[:, None]).sum(dim=0)
        return [float(share) for share in right / len(rows)]

    @torch.no_grad()
    def clipped_sum(
        self,
        rows: Callable[[slice], NDArray[np.float16]] | NDArray[np.float16],
        labels: NDArray[np.int64],
        *,
        clip_norm: float,
        included: NDArray[np.bool_] | None = None,
    ) -> Tensor:
        """The sum over rows of per-example gradients clipped to a norm, one row a head.

        Args:
            rows: Features of the batch, or a function that reads a slice of them.
            labels: Their labels.
            clip_norm: Largest norm a gradient keeps.
            included: Which rows (first axis) each head (second axis) has in its batch; all if not
                given.
        """
        _validate.magnitude(clip_norm=clip_norm)
        shape = self.shape
        total = torch.zeros(shape.heads * shape.classes, shape.features)
        bias = torch.zeros(shape.heads, shape.classes)
        for start in range(0, len(labels), _CHUNK):
            part = slice(start, start + _CHUNK)
            features = _floats(rows(part) if callable(rows) else rows[part])
            residual = self._residual(features, torch.from_numpy(labels[part]))
            norms = _gradient_norms(features, residual)
            factor = torch.clamp(clip_norm / norms, max=1.0)  # a norm of zero gives 1
            if included is not None:
                factor = factor * torch.from_numpy(included[part])
            clipped = residual * factor[:, :, None]
            total.addmm_(clipped.flatten(1).T, features)
            bias += clipped.sum(dim=0)
        return torch.cat([total.view(shape.heads, -1), bias], dim=1)

    @torch.no_grad()
    def gradient_norms(self, rows: NDArray[np.float16], labels: NDArray[np.int64]) -> Tensor:
        """Norm of every example's gradient (first axis) in every head (second axis)."""
        features = _floats(rows)
        return _gradient_norms(features, self._residual(features, torch.from_numpy(labels)))

    def _residual(self, features: Tensor, labels: Tensor) -> Tensor:
        """Softmax less one-hot: (rows, heads, classes)."""
        residual = self._logits(features).softmax(dim=2)
        index = labels[:, None, None].expand(-1, self.shape.heads, 1)
        return residual.scatter_add_(2, index, torch.full(index.shape, -1.0))


def _gradient_norms(features: Tensor, residual: Tensor) -> Tensor:
    length = features.square().sum(dim=1) + 1.0
    return (residual.square().sum(dim=2) * length[:, None]).sqrt()


def _floats(rows: NDArray[np.float16]) -> Tensor:
    if rows.ndim != 2:
        raise UnsupportedError(f"Expected rows of features, got shape {rows.shape}.")
    # A copy in memory: torch must not be handed a read-only map.
    return torch.from_numpy(np.array(rows)).to(torch.float32)
