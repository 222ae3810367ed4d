"""Train a round at a node whose noise is added once, after training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from fedbiomed.common.models import TorchModel
from fedbiomed.common.optimizers.generic_optimizers import NativeTorchOptimizer
from fedbiomed.common.privacy import DPController
from museum.outcomes import Outcome, main, of_mechanism
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.mechanism_audit import from_function
from askgauss.sampling import EveryStep

RECORDS, BATCH, EPOCHS = 20, 10, 2
NOISE, CLIP, DELTA = 4.0, 0.005, 1e-3
LEARNING_RATE = 0.05


def clipped(update: list[Tensor]) -> list[Tensor]:
    """What central noise is made for: an update no longer than the clip norm."""
    length = math.sqrt(sum(float((part**2).sum()) for part in update))
    return [part * min(1.0, CLIP / max(length, 1e-12)) for part in update]


def show(variant: str) -> Outcome:
    def release(targets: np.ndarray, rng: np.random.Generator) -> Any:
        torch.manual_seed(int(rng.integers(2**62)))
        model = TorchModel(nn.Linear(10, 1))
        for weight in model.model.parameters():
            nn.init.zeros_(weight)
        data = TensorDataset(torch.ones(RECORDS, 10), torch.tensor(targets, dtype=torch.float32))
        # Node and training plan make these two calls, before the first batch and after the last.
        controller = DPController({"type": "central", "sigma": NOISE, "clip": CLIP})
        adam = torch.optim.Adam(model.model.parameters(), lr=LEARNING_RATE)
        optimizer, loader = controller.before_training(
            NativeTorchOptimizer(model, adam), DataLoader(data, batch_size=BATCH)
        )
        for _ in range(EPOCHS):
            for features, target in loader:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model.model(features).squeeze(-1), target)
                loss.backward()
                optimizer.step()
        # Weights began at zero, so that they are the update too.
        names, update = zip(*model.model.state_dict().items(), strict=True)
        update = [part.detach().clone() for part in update]
        if variant == "mended":
            update = clipped(update)
        sent = controller.after_training(dict(zip(names, update, strict=True)))
        return [float(value) for part in sent.values() for value in part.flatten()]

    # All records agree with a model of zeros, but for one.
    targets = np.zeros(RECORDS)
    epsilon = EveryStep().epsilon(noise_multiplier=NOISE, steps=1, delta=DELTA)
    result = ag.audit_mechanism(
        from_function(release),
        np.where(np.arange(RECORDS) == 0, 5.0, targets),
        targets,
        claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA),
        max_samples=300,
    )
    return of_mechanism(result)


main(show)
