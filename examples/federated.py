"""Audit plain federated averaging: the server's mean is wrapped, and nothing else changes."""

from __future__ import annotations

import numpy as np

import askgauss as ag
from askgauss.federated import AuditedAggregator
from askgauss.sampling import EveryStep

CLIENTS, FEATURES, ROUNDS = 60, 1500, 100
CLIP_NORM, NOISE_MULTIPLIER, DELTA = 0.5, 2.0, 1e-5


class PrivateMean:
    """The mean of clipped updates, with noise for clients of equal weight."""

    def __init__(self, weigh_by_examples: bool) -> None:
        self.weigh_by_examples = weigh_by_examples
        self.noise = np.random.default_rng(1)

    def __call__(self, updates: list[np.ndarray], examples: list[int]) -> np.ndarray:
        """The noised mean of a round."""
        weights = np.array(examples if self.weigh_by_examples else np.ones(len(updates)))
        mean = np.zeros(FEATURES)
        for weight, update in zip(weights / weights.sum(), updates, strict=True):
            finite = np.nan_to_num(update, posinf=0.0, neginf=0.0)
            mean += weight * finite * CLIP_NORM / max(CLIP_NORM, np.linalg.norm(finite))
        return mean + self.noise.normal(0, NOISE_MULTIPLIER * CLIP_NORM / len(updates), FEATURES)


def train(aggregate: AuditedAggregator) -> None:
    """Federated averaging of a logistic regression; every client takes one local step a round."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES)
    sizes = rng.integers(5, 80, CLIENTS)
    data = [rng.normal(size=(size, FEATURES)) / np.sqrt(FEATURES) for size in sizes]
    labels = [np.sign(features @ truth) for features in data]
    model = np.zeros(FEATURES)
    for _ in range(ROUNDS):
        updates = [
            2.0 * (target / (1 + np.exp(target * (features @ model)))) @ features / len(target)
            for features, target in zip(data, labels, strict=True)
        ]
        model += aggregate(updates, sizes.tolist())


def main() -> None:
    sampling = EveryStep()
    epsilon = sampling.epsilon(noise_multiplier=NOISE_MULTIPLIER, steps=ROUNDS, delta=DELTA)
    claim = ag.PrivacyClaim(
        epsilon=epsilon,
        delta=DELTA,
        noise_multiplier=NOISE_MULTIPLIER,
        steps=ROUNDS,
        sampling=sampling,
        unit="user",
    )
    for weigh_by_examples in (False, True):
        aggregate = AuditedAggregator(
            PrivateMean(weigh_by_examples),
            dimension=FEATURES,
            present=50,
            absent=950,
            clip_norm=CLIP_NORM,
            noise_multiplier=NOISE_MULTIPLIER,
            sampling=sampling,
        )
        train(aggregate)
        weighing = "the examples they report" if weigh_by_examples else "the same"
        print(f"Clients weigh {weighing}:\n")
        print(aggregate.result(claim=claim), "\n")


if __name__ == "__main__":
    main()
