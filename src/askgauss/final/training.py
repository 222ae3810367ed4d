"""Full-batch private training of many small models at once, to audit what a finished one tells.

After Annamalai and De Cristofaro (arXiv 2405.14106): an adversary who sees only the loss of the
final model on one record sees nearly all that the training leaks, if the model begins where the
other records' gradients vanish and the record's own does not. Many models are trained with the
record and many without, and their losses are the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError
from askgauss.final.weights import finite_numbers
from askgauss.scores import CanaryScores

__all__ = ["FullBatchTraining", "Records", "Training", "trained_scores", "worst_start"]

Floats = NDArray[np.float32]
# Models that are trained side by side: enough for one large product, few enough for the cache.
_TOGETHER = 25
# How far apart the target's two logits are at the start, so that its gradient stays as it is.
_MARGIN = 30.0

Records = tuple[ArrayLike, ArrayLike]
"""Features, one row a record, and labels from 0."""


class Training(Protocol):
    """A training of one's own whose models are asked for one record's loss."""

    @property
    def target(self) -> NDArray[Any]:
        """Features of the record."""
        ...

    @property
    def target_label(self) -> int:
        """Its label."""
        ...

    def sample(self, data: Records, n: int, seed: int | None = None) -> NDArray[np.float64]:
        """Minus the loss on the target of ``n`` models, each trained with noise of its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FullBatchTraining:
    """Trains softmax regression by noisy full-batch steps; releases minus the target's loss.

    A mechanism for `askgauss.audit_mechanism`: ``sample(records, n)`` trains n models. Gradients
    are clipped record by record and summed, so that the number of records leaks nothing.

    Attributes:
        start: The weights to begin with, one row a class; the last column is the bias.
        target: Features of the record whose loss is released.
        target_label: Its label.
        steps: Number of steps.
        noise_multiplier: Noise on the sum, in clip norms.
        clip_norm: Largest norm of a record's gradient.
        learning_rate: Step size, for the sum.

    Raises:
        InvalidArgumentError: An argument is outside its range, or sizes do not fit.
    """

    start: Floats
    target: Floats
    target_label: int
    steps: int
    noise_multiplier: float
    clip_norm: float = 1.0
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        _validate.integer(1, steps=self.steps)
        _validate.positive(
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
        )
        start = np.array(self.start, dtype=np.float32)
        target = np.array(finite_numbers("target", self.target), dtype=np.float32)
        if start.ndim != 2 or start.shape[1] != target.size + 1 or not np.isfinite(start).all():
            raise InvalidArgumentError(
                f"Expected start to be finite with {target.size + 1} columns, one a feature of the "
                f"target and the bias, got shape {start.shape}. Make it with worst_start()."
            )
        _validate.integer(0, target_label=self.target_label)
        _validate.within(0, len(start), closed="left", target_label=self.target_label)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "target", target)

    def sample(self, data: Records, n: int, seed: int | None = None) -> NDArray[np.float64]:
        """Minus the loss on the target of ``n`` models, each trained with noise of its own."""
        features, labels = _records(data, self.target.size, len(self.start))
        generators = np.random.default_rng(seed).spawn(math.ceil(n / _TOGETHER))
        parts = [
            self._losses(features, labels, min(_TOGETHER, n - _TOGETHER * index), generator)
            for index, generator in enumerate(generators)
        ]
        return -np.concatenate(parts)

    def _losses(
        self, features: Floats, labels: NDArray[np.int64], models: int, generator: Any
    ) -> NDArray[np.float64]:
        classes, width = self.start.shape
        weights = np.repeat(self.start[None], models, axis=0)
        lengths = np.linalg.norm(features, axis=1)
        scale = np.float32(self.noise_multiplier * self.clip_norm)
        rows = np.arange(len(features))
        for _ in range(self.steps):
            # Logits of every record under every model by one product.
            logits = features @ weights.reshape(models * classes, width).T
            errors = _softmax(logits.reshape(len(features), models, classes))
            errors[rows, :, labels] -= 1.0
            # The gradient of a record is errors times features, so its norm is a product too.
            norms = np.linalg.norm(errors, axis=2) * lengths[:, None]
            errors *= (self.clip_norm / np.maximum(norms, self.clip_norm))[:, :, None]
            sums = errors.reshape(len(features), -1).T @ features
            noise = generator.standard_normal((models, classes, width), dtype=np.float32)
            weights -= np.float32(self.learning_rate) * (
                sums.reshape(weights.shape) + scale * noise
            )
        target = np.append(self.target, np.float32(1.0))
        logits = (weights @ target).astype(np.float64)
        highest = logits.max(axis=1)
        total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        return np.asarray(total - logits[:, self.target_label])


def _softmax(logits: Floats) -> Floats:
    logits -= logits.max(axis=2, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=2, keepdims=True)
    return logits


def _records(data: Records, width: int, classes: int) -> tuple[Floats, NDArray[np.int64]]:
    """Features with a column for the bias, and labels."""
    given: Any = data
    if not (isinstance(given, Sequence) and len(given) == 2):
        raise _validate.fail("data", data, "to be features and labels")
    features, labels = np.asarray(given[0], dtype=np.float32), np.asarray(given[1])
    if features.ndim != 2 or features.shape[1] != width or not np.isfinite(features).all():
        raise InvalidArgumentError(
            f"Expected finite features with {width} columns, one row a record, got shape "
            f"{features.shape}. Flatten every record."
        )
    if labels.shape != (len(features),) or labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"Expected one whole number a record as label, got shape {labels.shape} and dtype "
            f"{labels.dtype}."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise InvalidArgumentError(
            f"Expected labels in [0, {classes}), got {labels.min()} to {labels.max()}."
        )
    bias = np.ones((len(features), 1), dtype=np.float32)
    return np.concatenate([features, bias], axis=1), labels.astype(np.int64)


def worst_start(
    data: Records,
    *,
    classes: int,
    target: ArrayLike,
    target_label: int,
    steps: int = 300,
    learning_rate: float = 2.0,
) -> Floats:
    """Weights to begin with: others have learnt their labels, and the target is far from its own.

    Trained without noise on records of one's own, which must not be those of the run: public ones,
    or ones that the claim does not cover. Then the target's logit is pushed below another's, along
    what the target has and the other records have not, if there is anything.

    Args:
        data: Features and labels to train on.
        classes: Number of classes.
        target: Features of the target.
        target_label: The label it will be trained with.
        steps: Steps of plain gradient descent.
        learning_rate: Their size.

    Returns:
        One row a class; the last column is the bias.
    """
    aim = np.append(finite_numbers("target", target), 1.0)
    _validate.integer(2, classes=classes)
    _validate.integer(0, target_label=target_label)
    _validate.within(0, classes, closed="left", target_label=target_label)
    _validate.integer(1, steps=steps)
    _validate.positive(learning_rate=learning_rate)
    features, labels = _records(data, aim.size - 1, classes)
    weights = np.zeros((classes, aim.size), dtype=np.float32)
    mean = np.float32(learning_rate / len(features))
    rows = np.arange(len(features))
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        errors = _softmax((features @ weights.T)[:, None, :])[:, 0, :]
        errors[rows, labels] -= 1.0
        velocity = np.float32(0.9) * velocity - mean * (errors.T @ features)
        weights += velocity
    # The part of the target that a combination of few strong directions of the data cannot make.
    _, sizes, directions = np.linalg.svd(features, full_matrices=False)
    strong = directions[sizes > 1e-3 * sizes[0]].astype(np.float64)
    alone = aim - strong.T @ (strong @ aim)
    if np.linalg.norm(alone) < 1e-3 * np.linalg.norm(aim):
        alone = aim
    logits = weights.astype(np.float64) @ aim
    other = int(np.argsort(logits)[-1])
    other = other if other != target_label else int(np.argsort(logits)[-2])
    push = alone / (alone @ aim)
    for index in range(classes):
        wanted = _MARGIN if index == other else -_MARGIN
        weights[index] += ((wanted - logits[index]) * push).astype(np.float32)
    return weights


def trained_scores(
    training: Training,
    data: Records,
    *,
    runs: int,
    seed: int = 0,
    pool: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
) -> CanaryScores:
    """Minus the target's loss of so many models trained with the target and as many without.

    Args:
        training: How they are trained.
        data: The other records: features and labels.
        runs: Models of each world.
        seed: Root of every random choice.
        pool: Like `map`: what runs the parts. `ray_pool` runs them on all cores, or on the machines
            of a Ray cluster.
    """
    _validate.integer(2, runs=runs)
    features, labels = (np.asarray(part) for part in data)
    joined = (
        np.concatenate([features, training.target[None].astype(features.dtype)]),
        np.append(labels, training.target_label),
    )
    sizes = [min(_TOGETHER, runs - begin) for begin in range(0, runs, _TOGETHER)]
    seeds = np.random.SeedSequence(seed).generate_state(2 * len(sizes), np.uint64).tolist()
    parts = [
        (training, world, size, part_seed)
        for (world, size), part_seed in zip(
            [(world, size) for world in (joined, (features, labels)) for size in sizes],
            seeds,
            strict=True,
        )
    ]
    found = list(pool(_sampled, parts))
    return CanaryScores.from_groups(
        present=np.concatenate(found[: len(sizes)]),
        absent=np.concatenate(found[len(sizes) :]),
        membership="randomised",  # models of either data set are trained anew
    )


def _sampled(part: tuple[Training, Records, int, int]) -> NDArray[np.float64]:
    training, data, size, seed = part
    return training.sample(data, size, seed)
