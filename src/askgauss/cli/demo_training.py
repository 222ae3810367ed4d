"""What the demo trains: a small network on digits by DP-SGD, in plain numpy."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import DiracCanaries, Stream, random_stream
from askgauss.checks.scope import AFTER_CLIPPING
from askgauss.files import schema
from askgauss.integrations.canary_choice import default_numbers
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript

# Streams of the demo itself, apart from those of the canaries.
_DATA, _WEIGHTS = 100, 101
_TEST = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What to train and how.

    Attributes:
        steps: Number of steps.
        sampling_rate: Poisson sampling rate.
        noise_multiplier: The noise multiplier claimed.
        noise_factor: How much of that noise is really added.
        clip_norm: Largest norm of one example's gradient.
        learning_rate: Step size.
        hidden: Width of the hidden layer.
        seed: Root of every random choice.
    """

    steps: int
    sampling_rate: float
    noise_multiplier: float
    noise_factor: float
    clip_norm: float
    learning_rate: float
    hidden: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Digits:
    """Images of digits, 64 numbers in [0, 1] each, and which digit each one is."""

    name: str
    images: NDArray[np.float64]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float64]
    test_labels: NDArray[np.int64]


def load_digits(seed: int) -> Digits:
    """The digits that come with scikit-learn, or made-up ones of the same size without it."""
    if importlib.util.find_spec("sklearn") is not None:
        from sklearn import datasets

        bundle = datasets.load_digits()
        name, images, labels = "scikit-learn's digits", bundle.data / 16.0, bundle.target
    else:
        name = "made-up digits"
        generator = random_stream(seed, _DATA)
        labels = generator.integers(0, 10, size=1797)
        shapes = generator.random((10, 64))
        blurred = shapes[labels] + generator.normal(0.0, 0.35, (labels.size, 64))
        images = np.clip(blurred, 0.0, 1.0)
    order = random_stream(seed, _DATA).permutation(labels.size)
    images, labels = np.asarray(images)[order], np.asarray(labels, dtype=np.int64)[order]
    return Digits(
        name=name,
        images=images[_TEST:],
        labels=labels[_TEST:],
        test_images=images[:_TEST],
        test_labels=labels[:_TEST],
    )


class Trainer(Protocol):
    """A training run that can be stopped after any step."""

    @property
    def done(self) -> int:
        """Steps taken so far."""

    def step(self) -> None:
        """Take one step."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values to go on from."""

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Go on from what `state` returned."""

    def transcript(self) -> Transcript:
        """What the run released about the canaries."""

    def accuracy(self) -> float:
        """Share of test images the model names rightly."""


class NumpyTrainer:
    """DP-SGD on a network with one hidden layer, its example gradients written out by hand.

    Every step draws from a stream of its own, so that a run that was stopped goes on as if it had
    not been.
    """

    def __init__(self, plan: DemoPlan, digits: Digits) -> None:
        self._plan, self._digits = plan, digits
        self._shapes = ((64, plan.hidden), (plan.hidden,), (plan.hidden, 10), (10,))
        sizes = tuple(int(np.prod(shape)) for shape in self._shapes)
        self._ends = np.cumsum(sizes)
        present, absent = default_numbers(
            sum(sizes),
            digits.labels.size,
            sampling_rate=plan.sampling_rate,
            noise_multiplier=plan.noise_multiplier,
            planned_steps=plan.steps,
        )
        self._canaries = DiracCanaries(
            present=present, absent=absent, tensors=sizes, seed=plan.seed
        )
        self._recorder = Recorder(
            self._canaries,
            sampling_rate=plan.sampling_rate,
            clip_norm=plan.clip_norm,
            noise_multiplier=plan.noise_multiplier,
        )
        start = random_stream(plan.seed, _WEIGHTS)
        self._weights = np.concatenate(
            [
                (start.standard_normal(shape) / np.sqrt(shape[0])).ravel()
                if len(shape) == 2
                else np.zeros(shape)
                for shape in self._shapes
            ]
        )

    @property
    def done(self) -> int:
        """Steps taken so far."""
        return self._recorder.steps

    def step(self) -> None:
        """Take one step: sample, clip, plant, add noise, record, move."""
        plan, canaries = self._plan, self._canaries
        seed = np.random.SeedSequence(plan.seed, spawn_key=(Stream.NOISE, self.done))
        sampler, noise = np.random.default_rng(seed).spawn(2)
        chosen = sampler.random(self._digits.labels.size) < plan.sampling_rate
        total = self._clipped_sum(self._digits.images[chosen], self._digits.labels[chosen])
        background, watched = canaries.project(total), total[canaries.watch]
        # State and recorder are one checkpoint, and so of one step.
        planted = self._recorder.sample(step=self.done)
        canaries.plant(total, planted, clip_norm=plan.clip_norm)
        scale = plan.noise_factor * plan.noise_multiplier * plan.clip_norm
        total += noise.normal(0.0, scale, total.size)
        self._recorder.observe(
            canaries.project(total), background=background, watch=total[canaries.watch] - watched
        )
        expected = plan.sampling_rate * self._digits.labels.size
        self._weights = self._weights - plan.learning_rate / expected * total

    def _parts(self, vector: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        pieces = np.split(vector, self._ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _forward(
        self, images: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        first, first_bias, second, second_bias = self._parts(self._weights)
        hidden = np.tanh(images @ first + first_bias)
        logits = hidden @ second + second_bias
        logits -= logits.max(axis=1, keepdims=True)
        odds = np.exp(logits)
        return hidden, odds / odds.sum(axis=1, keepdims=True)

    def _clipped_sum(
        self, images: NDArray[np.float64], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Sum of the examples' gradients, each clipped.

        The gradient of a layer is an outer product for each example, so that its norm is a product
        of two norms, and no example's gradient needs to be written down.
        """
        hidden, surprise = self._forward(images)
        surprise[np.arange(labels.size), labels] -= 1.0
        back = (surprise @ self._parts(self._weights)[2].T) * (1.0 - hidden**2)
        # One more for the bias, whose input is always 1.
        squares = (back**2).sum(axis=1) * (1.0 + (images**2).sum(axis=1)) + (surprise**2).sum(
            axis=1
        ) * (1.0 + (hidden**2).sum(axis=1))
        norms = np.maximum(np.sqrt(squares), self._plan.clip_norm)
        factor = (self._plan.clip_norm / norms)[:, None]
        back, surprise = back * factor, surprise * factor
        parts = (images.T @ back, back.sum(axis=0), hidden.T @ surprise, surprise.sum(axis=0))
        return np.concatenate([piece.ravel() for piece in parts])

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values to go on from."""
        arrays = self._recorder.state_dict()
        values = {"recorder": arrays.pop("state")}
        return {**arrays, "weights": self._weights}, values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        own = {name: array for name, array in arrays.items() if name == "weights"}
        schema.check(own, {"weights": schema.Field(np.float64, self._weights.shape)})
        rest = {name: array for name, array in arrays.items() if name not in own}
        self._recorder.load_state_dict({**rest, "state": values.get("recorder")})
        self._weights = own["weights"]

    def transcript(self) -> Transcript:
        """What the run released about the canaries."""
        recorded = self._recorder.transcript()
        facts = replace(
            recorded.facts,
            tensors=("hidden.weight", "hidden.bias", "output.weight", "output.bias"),
            exercised=AFTER_CLIPPING,
            precision=("float64",),
        )
        return recorded.with_facts(facts)

    def accuracy(self) -> float:
        """Share of test images the model names rightly."""
        _, odds = self._forward(self._digits.test_images)
        return float((odds.argmax(axis=1) == self._digits.test_labels).mean())
