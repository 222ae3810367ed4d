"""Train on handwritten digits with DP-FTRL, one pass in 64 steps, and audit the run from inside.

Then once more with the noise of somebody who counted a tree of 64 leaves as 3 levels, where each
record is in 7 nodes.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from sklearn.datasets import load_digits

import askgauss as ag
from askgauss.integrations.torch_ftrl import DPFTRL
from askgauss.mechanisms import tree
from askgauss.mechanisms.plans import TreePlan

STEPS = 64
CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)


def train(noise_multiplier: float) -> tuple[DPFTRL, float]:
    features, target = load_digits(return_X_y=True)
    features = torch.tensor(features / 16.0, dtype=torch.float32)
    target = torch.tensor(target)
    torch.manual_seed(0)
    model = GradSampleModule(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    )
    order = torch.randperm(len(features)).numpy()
    training, held_out = order[:1437], order[1437:]
    parameters = sum(item.numel() for item in model.parameters())
    optimizer = DPFTRL(
        model,
        learning_rate=0.2,
        momentum=0.9,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        steps=STEPS,
        expected_batch_size=len(training) / STEPS,
        canaries=ag.DiracCanaries(present=1000, absent=3000, dimension=parameters),
        release="nodes",
    )
    for records in np.array_split(training, STEPS):
        loss = torch.nn.functional.cross_entropy(model(features[records]), target[records])
        loss.backward()
        optimizer.step(records=records)
    hits = model(features[held_out]).argmax(dim=1) == target[held_out]
    return optimizer, float(hits.double().mean())


def main() -> None:
    warnings.filterwarnings("ignore", message="Full backward hook")
    right = TreePlan(steps=STEPS).noise_multiplier(epsilon=CLAIM.epsilon, delta=CLAIM.delta)
    wrong = right * math.sqrt(3 / tree.levels(STEPS))
    for noise_multiplier, levels in ((right, tree.levels(STEPS)), (wrong, 3)):
        optimizer, accuracy = train(noise_multiplier)
        print(f"Noise for {levels} levels, {noise_multiplier:.3f} clip norms a node:")
        print(f"  accuracy    {accuracy:.1%}")
        print(optimizer.result(claim=CLAIM))
        print()


if __name__ == "__main__":
    main()
