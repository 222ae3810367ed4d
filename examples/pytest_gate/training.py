"""A private training loop in numpy: logistic regression by DP-SGD, with room for an audit.

Stands for your own training code. The audit needs three lines in the step: whom to plant, plant
them, and what was released.
"""

from __future__ import annotations

import numpy as np

import askgauss as ag

RECORDS, FEATURES = 1000, 2000
STEPS, SAMPLING_RATE, CLIP_NORM = 300, 0.1, 1.0
NOISE_MULTIPLIER = 1.3
"""With these settings an accountant claims epsilon 7.86 at delta 1e-5."""


def clipped_sum(weights, features, labels):
    """Sum of the records' gradients, each clipped to the clip norm."""
    error = 1.0 / (1.0 + np.exp(-features @ weights)) - labels
    norms = np.abs(error) * np.linalg.norm(features, axis=1)
    return features.T @ (error * np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-12)))


def train(noise_multiplier: float = NOISE_MULTIPLIER, seed: int = 0) -> ag.Transcript:
    """Train with canaries in the run, and return what it released about them."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(RECORDS, FEATURES)) / np.sqrt(FEATURES)
    labels = (features[:, 0] > 0).astype(float)
    weights = np.zeros(FEATURES)

    canaries = ag.DiracCanaries(present=100, absent=900, dimension=FEATURES, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=SAMPLING_RATE, clip_norm=CLIP_NORM)
    for _ in range(STEPS):
        batch = generator.random(RECORDS) < SAMPLING_RATE
        total = clipped_sum(weights, features[batch], labels[batch])
        background = canaries.project(total)
        canaries.plant(total, recorder.sample(), clip_norm=CLIP_NORM)
        total += generator.normal(0.0, noise_multiplier * CLIP_NORM, FEATURES)
        recorder.observe(canaries.project(total), background=background)
        weights -= total / (SAMPLING_RATE * RECORDS)
    return recorder.transcript()
