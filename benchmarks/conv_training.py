"""A small convolutional network trained by noisy full-batch steps, to audit its loss on one record.

One convolution with rectified outputs and one dense layer, in numpy: the windows of an image are
the same in every step, so that they are cut out once, and gradients record by record are products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

SIDE, WINDOW, STRIDE, CHANNELS, CLASSES = 28, 6, 4, 8, 10
PLACES = ((SIDE - WINDOW) // STRIDE + 1) ** 2
# Weights and biases of the convolution, then of the dense layer.
SHAPES = (
    (WINDOW * WINDOW + 1, CHANNELS),
    (PLACES * CHANNELS + 1, CLASSES),
)
# The target's own logit lies so far below another's that its gradient stays as it is.
MARGIN = 30.0


def windows(features: NDArray[Any]) -> Floats:
    """All windows of every image, one row each, with a column for the bias."""
    images = np.asarray(features, np.float32).reshape(-1, SIDE, SIDE)
    cut = np.lib.stride_tricks.sliding_window_view(images, (WINDOW, WINDOW), axis=(1, 2))
    cut = cut[:, ::STRIDE, ::STRIDE].reshape(len(images), PLACES, WINDOW * WINDOW)
    return np.concatenate([cut, np.ones((len(images), PLACES, 1), np.float32)], axis=2)


def forward(cut: Floats, weights: list[Floats]) -> tuple[Floats, Floats]:
    """Hidden values with a column for the bias, and logits."""
    hidden = np.maximum(cut.reshape(-1, cut.shape[2]) @ weights[0], 0.0).reshape(len(cut), -1)
    hidden = np.concatenate([hidden, np.ones((len(cut), 1), np.float32)], axis=1)
    return hidden, hidden @ weights[1]


def clipped_sum(
    cut: Floats, labels: NDArray[np.int64], weights: list[Floats], clip_norm: float | None
) -> list[Floats]:
    """The sum over records of their gradients, each clipped to the norm if one is given."""
    hidden, logits = forward(cut, weights)
    errors = np.exp(logits - logits.max(axis=1, keepdims=True))
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(len(labels)), labels] -= 1.0
    back = (errors @ weights[1][:-1].T) * (hidden[:, :-1] > 0.0)
    back = back.reshape(len(cut), PLACES, CHANNELS)
    each = np.matmul(cut.transpose(0, 2, 1), back)
    if clip_norm is not None:
        squares = (errors**2).sum(axis=1) * (hidden**2).sum(axis=1) + (each**2).sum(axis=(1, 2))
        factors = (clip_norm / np.maximum(np.sqrt(squares), clip_norm)).astype(np.float32)
        errors, each = errors * factors[:, None], each * factors[:, None, None]
    return [each.sum(axis=0), hidden.T @ errors]


def worst_conv_start(
    features: NDArray[Any], labels: NDArray[np.int64], target: NDArray[Any], target_label: int
) -> list[Floats]:
    """Others have learnt their labels, and the target is far from its own.

    The last channel is kept for the target: what the others have there is taken off by its bias, so
    that it answers to the target alone.
    """
    generator = np.random.default_rng(0)
    weights = [
        (generator.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32) for shape in SHAPES
    ]
    cut, aim = windows(features), windows(target)
    own = aim[0, np.argmax((aim[0, :, :-1] ** 2).sum(axis=1)), :-1]
    answers = (cut[:, :, :-1] @ own).max(axis=(0, 1))
    weights[0][:-1, -1] = own
    # Its bias: halfway between the most that others show and what the target does.
    weights[0][-1, -1] = -0.5 * (answers + own @ own)
    moments = [[np.zeros_like(item) for item in weights] for _ in range(2)]
    for step in range(1, 301):
        batch = generator.integers(0, len(cut), 500)
        sums = clipped_sum(cut[batch], labels[batch], weights, None)
        sums[0][:, -1] = 0.0
        for index, gradient in enumerate(sums):
            mean = gradient / 500.0
            first, second = moments[0][index], moments[1][index]
            first += 0.1 * (mean - first)
            second += 0.01 * (mean * mean - second)
            size = np.sqrt(second / (1.0 - 0.99**step)) + 1e-8
            weights[index] -= (0.01 * first / (1.0 - 0.9**step) / size).astype(np.float32)
    hidden, logits = forward(aim, weights)
    dead = np.zeros(hidden.shape[1], bool)
    dead[CHANNELS - 1 : -1 : CHANNELS] = True
    reach = hidden[0] * dead
    reach = reach if reach @ reach > 0.0 else hidden[0]
    other = int(np.argsort(logits[0])[-1])
    other = other if other != target_label else int(np.argsort(logits[0])[-2])
    for index in range(CLASSES):
        wanted = MARGIN if index == other else -MARGIN
        push = (wanted - logits[0, index]) / float(reach @ reach)
        weights[1][:, index] += np.float32(push) * reach
    return weights


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvTraining:
    """Trains the network by noisy full-batch steps; releases minus the target's loss."""

    start: list[Floats]
    target: NDArray[Any]
    target_label: int
    steps: int
    noise_multiplier: float
    clip_norm: float = 1.0
    learning_rate: float = 0.005

    def sample(self, data: Any, n: int, seed: int | None = None) -> NDArray[np.float64]:
        """Minus the target's loss of so many models."""
        cut, labels = windows(data[0]), np.asarray(data[1], np.int64)
        aim = windows(self.target)
        generator = np.random.default_rng(seed)
        return -np.array([self._loss(cut, labels, aim, generator) for _ in range(n)])

    def _loss(self, cut: Floats, labels: Any, aim: Floats, generator: Any) -> float:
        weights = [item.copy() for item in self.start]
        scale = np.float32(self.noise_multiplier * self.clip_norm)
        for _ in range(self.steps):
            for item, total in zip(
                weights, clipped_sum(cut, labels, weights, self.clip_norm), strict=True
            ):
                noise = scale * generator.standard_normal(item.shape, dtype=np.float32)
                item -= np.float32(self.learning_rate) * (total + noise)
        _, logits = forward(aim, weights)
        values = logits[0].astype(np.float64)
        high = values.max()
        return float(high + np.log(np.exp(values - high).sum()) - values[self.target_label])
