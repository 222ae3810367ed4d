"""Training loops in plain numpy: one that is private, and each way to break it."""

from __future__ import annotations

import numpy as np

CLIP_NORM = 0.5
WIDTH = 4


def records(count=60, seed=0):
    """Features and labels; the record that is asked about stands out."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, WIDTH))
    features[17] *= 5.0
    return features, rng.integers(0, 2, count)


def clipped_sum(features, labels, weights):
    """Gradients of a logistic regression, each clipped, summed."""
    rows = per_record(features, labels, weights)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows * np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-12))).sum(axis=0)


def per_record(features, labels, weights):
    """One gradient a record."""
    return features * (1.0 / (1.0 + np.exp(-features @ weights)) - labels)[:, None]


def training(
    *,
    divisor="constant",
    stop="never",
    bounds="constant",
    logged="nothing",
    clip=True,
    noise="replay",
    buffer="none",
    start="zeros",
    given_apart=True,
    rate=0.2,
):
    """A training function with the faults that were asked for."""

    def train(data, replay):
        features, labels = data
        weights = np.zeros(WIDTH)
        if start == "means":
            weights = weights + labels.mean()
        if bounds == "data":
            low, high = features.min(), features.max()
            replay.public("range of the features", (low, high))
            features = (features - low) / (high - low)
        own = None
        if noise == "data":
            own = replay.couple(np.random.default_rng(int(abs(features.sum()) * 1e6)))
        elif noise == "own":
            own = replay.couple(np.random.default_rng(3))
        elif noise == "fresh":
            own = replay.couple(np.random.default_rng())
        running = np.zeros(WIDTH)
        for batch in replay.batches(rate=rate):
            here, answers = features[batch], labels[batch]
            if clip:
                total = clipped_sum(here, answers, weights)
            else:
                total = per_record(here, answers, weights).sum(axis=0)
            if noise == "scaled":
                drawn = replay.generator().normal(0.0, np.abs(features).max(), WIDTH)
            else:
                drawn = (own or replay.generator()).normal(0.0, CLIP_NORM, WIDTH)
            if given_apart:
                noisy = replay.release(total, noise=drawn, clip_norm=CLIP_NORM)
            else:
                noisy = replay.release(total + drawn, clip_norm=CLIP_NORM)
            size = rate * 60 if divisor == "constant" else len(batch)
            replay.public("divisor", size)
            weights = weights - 0.5 * noisy / max(size, 1)
            if buffer == "batch":
                running = 0.9 * running + 0.1 * here.mean(axis=0)
            elif buffer == "released":
                running = 0.9 * running + 0.1 * noisy
            replay.state("running mean", running)
            replay.state("weights", weights)
            loss = float(np.square(per_record(here, answers, weights)).sum())
            if logged == "loss":
                replay.public("loss", loss)
            elif logged == "norm of the release":
                replay.public("norm of the release", float(np.linalg.norm(noisy)))
            if stop == "loss" and loss > 30.0:
                break
            if stop == "released" and np.linalg.norm(noisy) > 1e6:
                break
            if stop == "error" and np.abs(here).max(initial=0.0) > 8.0:
                raise FloatingPointError("a feature is too large")

    return train
