"""What a finished model tells: worst-case start, two snapshots, hidden state; one run beside them.

``make final`` prints the tables of docs/final-models.md, on Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import askgauss as ag
from askgauss import final
from askgauss.accounting import dpsgd_noise_multiplier
from askgauss.canaries import DiracCanaries
from benchmarks.conv_training import ConvTraining, worst_conv_start
from paper import data as image_sets

EPSILON, DELTA = 10.0, 1e-5
CLAIM = ag.PrivacyClaim(epsilon=EPSILON, delta=DELTA)
STEPS = 20
CLASSES = 10
# Neither overlaps with the other: the first ones are the run's, the next ones public.
PRIVATE, PUBLIC = 1000, 3000

Array = NDArray[Any]


def images() -> tuple[Array, Array]:
    loaded = image_sets.load("fashion-mnist")
    features = loaded.train_images.reshape(len(loaded.train_images), -1) / np.float32(255)
    return features, loaded.train_labels.astype(np.int64)


def rows(runs: int = 2000, pool: Any = map) -> Iterator[tuple[str, str]]:
    features, labels = images()
    yield from _worst_start(features, labels, runs, pool)
    yield from _one_run(features, labels)
    yield from _snapshots(features, labels)
    yield from _hidden_state()


def _full_batch_noise() -> float:
    return math.sqrt(STEPS) / float(ag.gaussian.gdp_mu(EPSILON, DELTA))


def _worst_start(features: Array, labels: Array, runs: int, pool: Any) -> Iterator[tuple[str, str]]:
    public = slice(PRIVATE, PRIVATE + PUBLIC)
    # The direction that varies least in public data, as long as an image.
    centred = features[public] - features[public].mean(axis=0)
    target = 10.0 * np.linalg.svd(centred, full_matrices=False)[2][-1]
    common = {
        "target": target,
        "target_label": 0,
        "steps": STEPS,
        "noise_multiplier": _full_batch_noise(),
        "learning_rate": 0.005,
    }

    def linear() -> final.Training:
        start = final.worst_start(
            (features[public], labels[public]), classes=CLASSES, target=target, target_label=0
        )
        return final.FullBatchTraining(start=start, **common)

    def convolutional() -> final.Training:
        start = worst_conv_start(features[public], labels[public], target, 0)
        return ConvTraining(start=start, **common)

    records = features[:PRIVATE], labels[:PRIVATE]
    for name, make, models in (
        ("softmax regression", linear, runs),
        ("convolutional network", convolutional, runs // 2),
    ):
        began = time.monotonic()
        scores = final.trained_scores(make(), records, runs=models, pool=pool)
        seconds = time.monotonic() - began
        title = f"worst-case start, {name}, {models:,} models a world"
        for auditor in (ag.GaussianDP(), ag.GaussianShift(), ag.ClopperPearson()):
            result = ag.audit(scores, claim=CLAIM, auditor=auditor)
            told = f"epsilon >= {result.epsilon_lower:.2f} of {EPSILON:g}"
            yield f"{title}, {auditor.name}", told
        yield title, f"{seconds:.0f} s by the clock"


class SoftmaxRun:
    """One run of noisy softmax regression with canaries, and what it leaves behind."""

    def __init__(
        self, canaries: DiracCanaries, noise: float, rate: float, width: int, known: bool
    ) -> None:
        self.canaries, self.noise, self.rate, self.known = canaries, noise, rate, known
        self.recorder = ag.Recorder(canaries, sampling_rate=rate, noise_multiplier=noise)
        self.weights = np.zeros((CLASSES, width + 1))
        self.before = self.weights.ravel().copy()
        self.velocity = np.zeros(self.weights.size)
        self.backgrounds: list[Array] = []
        self.snapshots: dict[int, Array] = {}

    def train(
        self,
        features: Array,
        labels: Array,
        learning_rates: Array,
        *,
        divisor: float = 1.0,
        momentum: float = 0.0,
        seed: int = 0,
        keep: Iterable[int] = (),
    ) -> None:
        """Noisy steps with the canaries in them; ``keep`` are the steps to keep snapshots of."""
        generator = np.random.default_rng(seed)
        inputs = np.concatenate([features, np.ones((len(features), 1), features.dtype)], axis=1)
        lengths = np.linalg.norm(inputs, axis=1)
        for step, rate in enumerate(learning_rates, 1):
            batch = np.flatnonzero(generator.random(len(inputs)) < self.rate)
            logits = inputs[batch] @ self.weights.T
            errors = np.exp(logits - logits.max(axis=1, keepdims=True))
            errors /= errors.sum(axis=1, keepdims=True)
            errors[np.arange(batch.size), labels[batch]] -= 1.0
            norms = np.linalg.norm(errors, axis=1) * lengths[batch]
            clean = ((errors / np.maximum(norms, 1.0)[:, None]).T @ inputs[batch]).ravel()
            background = self.canaries.project(clean)
            self.canaries.plant(clean, self.recorder.sample(), 1.0)
            released = clean + generator.normal(0.0, self.noise, clean.size)
            self.recorder.observe(
                self.canaries.project(released), background=background if self.known else None
            )
            self.backgrounds.append(background)
            self.velocity = momentum * self.velocity + released / divisor
            self.weights -= rate * self.velocity.reshape(self.weights.shape)
            if step in keep:
                self.snapshots[step] = self.weights.ravel().astype(np.float32)

    def weight_scores(
        self, linear: final.LinearFilter, after: Array | None = None
    ) -> ag.CanaryScores:
        """Scores of the first and the last weights alone, or of a sum of snapshots."""
        background = linear.weights @ np.array(self.backgrounds) if self.known else None
        return final.weight_scores(
            self.before,
            self.weights.ravel() if after is None else after,
            self.canaries,
            filter=linear,
            clip_norm=1.0,
            sampling_rate=self.rate,
            noise_multiplier=self.noise,
            background=background,
        )


def _one_run(features: Array, labels: Array) -> Iterator[tuple[str, str]]:
    """The same full-batch training once, with canaries in it instead of a target."""
    width = features.shape[1]
    began = time.process_time()
    canaries = DiracCanaries(present=500, absent=5000, dimension=CLASSES * (width + 1), seed=0)
    run = SoftmaxRun(canaries, _full_batch_noise(), 1.0, width, known=True)
    rates = np.full(STEPS, 0.005)
    run.train(features[:PRIVATE], labels[:PRIVATE], rates)
    result = ag.audit(run.recorder.transcript(), claim=CLAIM, diagnostics=False)
    weights = ag.audit(run.weight_scores(final.sgd_filter(rates)), claim=CLAIM)
    seconds = time.process_time() - began
    name = "one run of the same, 500 present and 5,000 absent canaries"
    yield f"{name}, every step", f"epsilon >= {result.epsilon_lower:.2f} of {EPSILON:g}"
    yield f"{name}, two snapshots", f"epsilon >= {weights.epsilon_lower:.2f} of {EPSILON:g}"
    yield name, f"{seconds:.1f} s of one core"


# Learning rates, momentum, and the steps after which a snapshot is kept.
SCHEDULES: dict[str, tuple[Callable[[int], Array], float, tuple[int, ...]]] = {
    "plain": (lambda steps: np.full(steps, 0.5), 0.0, (1000,)),
    "momentum 0.9": (lambda steps: np.full(steps, 0.05), 0.9, (1000,)),
    "a tenth from the middle on, momentum 0.9": (
        lambda steps: 0.05 * np.where(np.arange(steps) < steps // 2, 1.0, 0.1),
        0.9,
        (500, 1000),
    ),
    "cosine": (
        lambda steps: 0.25 * (1.0 + np.cos(np.pi * np.arange(steps) / steps)),
        0.0,
        # Closer together where the rate falls faster than it is large.
        (160, 306, 438, 556, 660, 750, 826, 889, 938, 972, 993, 1000),
    ),
}


def _snapshots(features: Array, labels: Array) -> Iterator[tuple[str, str]]:
    """DP-SGD on 6,000 records: snapshots against the summed scores of the same run."""
    records, steps, rate = 6000, 1000, 0.08
    noise = dpsgd_noise_multiplier(epsilon=8.0, delta=DELTA, sampling_rate=rate, steps=steps)
    width = features.shape[1]
    for name, (schedule, momentum, kept) in SCHEDULES.items():
        for known in (True, False):
            canaries = DiracCanaries(
                present=1000, absent=5000, dimension=CLASSES * (width + 1), seed=1
            )
            run = SoftmaxRun(canaries, noise, rate, width, known)
            rates = schedule(steps)
            divisor = rate * records
            run.train(
                features[:records],
                labels[:records],
                rates,
                divisor=divisor,
                momentum=momentum,
                seed=2,
                keep=kept,
            )
            filters = [
                final.sgd_filter(rates[:end], divisor=divisor, momentum=momentum) for end in kept
            ]
            summed = _shift_bound(run.recorder.transcript().scores())
            # The last one alone, and all of them.
            for chosen in {len(kept) - 1: None, 0: None}:
                linear, after = final.joined_snapshots(
                    filters[chosen:], [run.snapshots[end] for end in kept[chosen:]]
                )
                found = _shift_bound(run.weight_scores(linear, after))
                carried = linear.epsilon_at(delta=DELTA, noise_multiplier=noise, sampling_rate=rate)
                yield (
                    f"{1 + len(kept) - chosen} snapshots, {name}, background "
                    f"{'known' if known else 'unknown'}",
                    f"{found:.3f} of {carried:.3f} that they carry, summed scores {summed:.3f}: "
                    f"{found / summed:.3f}; {linear.effective_steps:.0f} of {steps:,} steps count",
                )


def _shift_bound(scores: ag.CanaryScores) -> float:
    return ag.audit(scores, delta=DELTA, auditor=ag.GaussianShift()).epsilon_lower


def _hidden_state() -> Iterator[tuple[str, str]]:
    """Gradient-sequence canaries: planted every k steps, seen in the last weights only."""
    steps, noise = 250, 8.0
    for every in (1, 5, 25):
        planted = final.every_so_often(steps, every=every)
        canaries = DiracCanaries(present=1000, absent=5000, dimension=20_000, seed=3)
        generator = np.random.default_rng(4)
        weights = np.zeros(20_000)
        linear = final.sgd_filter(np.full(steps, 0.1))
        for step in range(steps):
            released = generator.normal(0.0, noise, weights.size)
            if step in planted:
                canaries.plant(released, np.flatnonzero(canaries.member), 1.0)
            weights -= 0.1 * released
        scores = final.weight_scores(
            np.zeros_like(weights), weights, canaries, filter=linear, clip_norm=1.0
        )
        found = ag.audit(scores, delta=DELTA).epsilon_lower
        carried = linear.shift(noise_multiplier=noise, planted=planted)
        every_step = math.sqrt(planted.size) / noise
        told, spent = (
            float(ag.gaussian.epsilon(DELTA, 0.0, 1.0, mu, 1.0)) for mu in (carried, every_step)
        )
        yield (
            f"hidden state, a canary every {every} of {steps} steps",
            f"{found:.3f}; the last weights carry {told:.3f}, all steps together {spent:.3f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="models of each world")
    parser.add_argument("--ray", default="local", help="address of a Ray cluster to train on")
    given = parser.parse_args()
    for what, measured in rows(given.runs, final.ray_pool(given.ray)):
        print(f"{what:90} {measured}", flush=True)


if __name__ == "__main__":
    main()
