"""Linear heads on fixed features, with per-example gradients clipped in closed form.

For softmax regression the gradient of one example is the outer product of its residual r (softmax
less one-hot) and its features x, so its norm is ``|r| sqrt(|x|^2 + 1)``, the one for the bias. A
DP-SGD step therefore needs two matrix products, and heads that differ in noise, canaries or step
size share the features: one product for all of them.

With an affine normalisation in front, features are ``scale * x + shift`` channel by channel, and
two more terms enter: the gradient in the scale, which needs the product of x and the weights
channel by channel, and the one in the shift.
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
        channels: Channels of the features, each with a scale and a shift to learn; 0 for none.

    Examples:
        >>> HeadsShape(heads=2, features=15552, classes=10).parameters
        155530
    """

    heads: int
    features: int
    classes: int
    channels: int = 0

    def __post_init__(self) -> None:
        _validate.integer(1, heads=self.heads, features=self.features)
        _validate.integer(2, classes=self.classes)
        _validate.integer(0, channels=self.channels)
        if self.channels and self.features % self.channels:
            raise _validate.fail("channels", self.channels, f"to divide {self.features}")

    @property
    def tensors(self) -> tuple[int, ...]:
        """Sizes of one head's tensors: weight, bias, and scale and shift where there are any."""
        own = (self.classes * self.features, self.classes)
        return (*own, self.channels, self.channels) if self.channels else own

    @property
    def parameters(self) -> int:
        """Parameters of one head."""
        return sum(self.tensors)


class Heads:
    """A stack of linear heads, one flat row of parameters each.

    Args:
        shape: Sizes.

    Attributes:
        flat: Parameters, one row a head: weight, bias, then scale and shift where there are any.
    """

    def __init__(self, shape: HeadsShape) -> None:
        self.shape = shape
        self.flat = torch.zeros(shape.heads, shape.parameters)
        if shape.channels:
            self._parts(self.flat)[2].fill_(1.0)

    def _parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        weight, *rest = torch.split(flat, list(self.shape.tensors), dim=1)
        stacked = weight.view(-1, self.shape.classes, self.shape.features)
        return (stacked, *rest)

    @torch.no_grad()
    def accuracy(self, rows: NDArray[np.float16], labels: NDArray[np.int64]) -> list[float]:
        """Share of rows each head classifies correctly."""
        right = torch.zeros(self.shape.heads)
        weight, bias = self._effective_weight()
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            logits = torch.addmm(bias, _floats(rows[part]), weight.T)
            guess = logits.view(-1, self.shape.heads, self.shape.classes).argmax(dim=2)
            right += (guess == torch.from_numpy(labels[part])[:, None]).sum(dim=0)
        return [float(share) for share in right / len(rows)]

    def _by_feature(self, channels: Tensor) -> Tensor:
        """Channel values repeated for every feature of the channel."""
        return channels.repeat_interleave(self.shape.features // self.shape.channels, dim=1)

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
            rows: ScatterFeatures of the batch, or a function that reads a slice of them.
            labels: Their labels.
            clip_norm: Largest norm a gradient keeps.
            included: Which rows (first axis) each head (second axis) has in its batch; all if not
                given.
        """
        _validate.magnitude(clip_norm=clip_norm)
        shape = self.shape
        total = torch.zeros(shape.heads * shape.classes, shape.features)
        others = torch.zeros(shape.heads, shape.parameters - shape.classes * shape.features)
        weight = self._effective_weight()
        for start in range(0, len(labels), _CHUNK):
            part = slice(start, start + _CHUNK)
            features = _floats(rows(part) if callable(rows) else rows[part])
            residual = self._residual(features, weight, torch.from_numpy(labels[part]))
            norms, extras = self._norms(features, residual)
            factor = torch.clamp(clip_norm / norms, max=1.0)  # a norm of zero gives 1
            if included is not None:
                factor = factor * torch.from_numpy(included[part])
            clipped = residual * factor[:, :, None]
            total.addmm_(clipped.flatten(1).T, features)
            others[:, : shape.classes] += clipped.sum(dim=0)
            if extras is not None:
                others[:, shape.classes :] += torch.einsum("nh,nhc->hc", factor, extras)
        return self._assembled(total, others)

    @torch.no_grad()
    def gradient_norms(self, rows: NDArray[np.float16], labels: NDArray[np.int64]) -> Tensor:
        """Norm of every example's gradient (first axis) in every head (second axis)."""
        features = _floats(rows)
        residual = self._residual(features, self._effective_weight(), torch.from_numpy(labels))
        return self._norms(features, residual)[0]

    def _effective_weight(self) -> tuple[Tensor, Tensor]:
        """Weight and bias as the plain features see them, heads and classes in one axis."""
        weight, bias, *affine = self._parts(self.flat)
        if affine:
            scale, shift = (self._by_feature(part)[:, None, :] for part in affine)
            bias = bias + (weight * shift).sum(dim=2)
            weight = weight * scale
        return weight.flatten(0, 1), bias.flatten()

    def _residual(
        self, features: Tensor, effective: tuple[Tensor, Tensor], labels: Tensor
    ) -> Tensor:
        """Softmax less one-hot: (rows, heads, classes)."""
        weight, bias = effective
        logits = torch.addmm(bias, features, weight.T)
        residual = logits.view(-1, self.shape.heads, self.shape.classes).softmax(dim=2)
        index = labels[:, None, None].expand(-1, self.shape.heads, 1)
        return residual.scatter_add_(2, index, torch.full(index.shape, -1.0))

    def _norms(self, features: Tensor, residual: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradient norms, and the gradients in scale and shift where there are any."""
        squares = residual.square().sum(dim=2)
        if not self.shape.channels:
            length = features.square().sum(dim=1) + 1.0
            return (squares * length[:, None]).sqrt(), None
        weight, _, scale, shift = self._parts(self.flat)
        by_channel = features.view(len(features), self.shape.channels, -1)
        moments = by_channel.square().sum(dim=2), by_channel.sum(dim=2)
        width = by_channel.shape[2]
        # |scale x + shift|^2, channel by channel.
        length = (
            moments[0] @ (scale**2).T + 2.0 * moments[1] @ (scale * shift).T + 1.0
        ) + width * shift.square().sum(dim=1)
        extras = []
        for head in range(self.shape.heads):
            own = weight[head].view(self.shape.classes, self.shape.channels, -1)
            products = torch.bmm(by_channel.transpose(0, 1), own.permute(1, 2, 0))
            in_scale = torch.einsum("cnk,nk->nc", products, residual[:, head])
            in_shift = residual[:, head] @ own.sum(dim=2)
            extras.append(torch.cat([in_scale, in_shift], dim=1))
        stacked = torch.stack(extras, dim=1)
        return (squares * length + stacked.square().sum(dim=2)).sqrt(), stacked

    def _assembled(self, total: Tensor, others: Tensor) -> Tensor:
        """Sums in the layout of the parameters."""
        shape = self.shape
        weight = total.view(shape.heads, shape.classes, -1)
        if shape.channels:
            _, _, scale, shift = self._parts(self.flat)
            residuals = others[:, : shape.classes, None]
            weight = weight * self._by_feature(scale)[:, None, :]
            weight = weight + residuals * self._by_feature(shift)[:, None, :]
        return torch.cat([weight.flatten(1), others], dim=1)


def _floats(rows: NDArray[np.float16]) -> Tensor:
    if rows.ndim != 2:
        raise UnsupportedError(f"Expected rows of features, got shape {rows.shape}.")
    # A copy in memory: torch must not be handed a read-only map.
    return torch.from_numpy(np.array(rows)).to(torch.float32)
