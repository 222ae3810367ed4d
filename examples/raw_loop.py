"""Audit a DP-SGD loop written in plain numpy, with no privacy library: the Recorder is enough."""

from __future__ import annotations

import numpy as np

import askgauss as ag
from askgauss.accounting import dpsgd_epsilon

RECORDS, FEATURES, STEPS = 2000, 1500, 400
SAMPLING_RATE, NOISE_MULTIPLIER, CLIP_NORM, DELTA = 0.25, 3.1, 1.0, 1e-5


def main() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(RECORDS, FEATURES)) / np.sqrt(FEATURES)
    target = np.sign(features @ rng.normal(size=FEATURES))
    weights = np.zeros(FEATURES)

    canaries = ag.DiracCanaries(present=90, absent=1000, dimension=FEATURES)
    recorder = ag.Recorder(
        canaries,
        sampling_rate=SAMPLING_RATE,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
    )
    for _ in range(STEPS):
        chosen = rng.random(RECORDS) < SAMPLING_RATE
        margins = target[chosen] * (features[chosen] @ weights)
        gradients = (-target[chosen] / (1 + np.exp(margins)))[:, None] * features[chosen]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped_sum = (gradients * np.minimum(1, CLIP_NORM / norms)).sum(axis=0)

        background = canaries.project(clipped_sum)
        canaries.plant(clipped_sum, recorder.sample(), CLIP_NORM)
        noisy_sum = clipped_sum + rng.normal(0, NOISE_MULTIPLIER * CLIP_NORM, FEATURES)
        recorder.observe(canaries.project(noisy_sum), background=background)

        weights -= 2.0 * noisy_sum / (SAMPLING_RATE * RECORDS)

    accuracy = np.mean(np.sign(features @ weights) == target)
    claim = ag.PrivacyClaim(
        epsilon=dpsgd_epsilon(
            noise_multiplier=NOISE_MULTIPLIER,
            sampling_rate=SAMPLING_RATE,
            steps=STEPS,
            delta=DELTA,
        ),
        delta=DELTA,
    )
    print(f"{STEPS} steps in numpy, accuracy {accuracy:.0%}:")
    print(ag.audit(recorder.transcript(), claim=claim))


if __name__ == "__main__":
    main()
