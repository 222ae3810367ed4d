"""Replay an Opacus run without one record: as Opacus comes, mended, and with its loss logged.

All three account for the same epsilon, and an audit of their noise would pass all three.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus_replay import follow
from askgauss.replay import Replay

RECORDS, BATCH = 1000, 100
accounted: set[float] = set()


def training(*, mended: bool, logged: bool) -> Callable[[TensorDataset, Replay], None]:
    """A training function: builds everything from the data it gets, and trains as usual."""

    def train(data: TensorDataset, replay: Replay) -> None:
        model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))
        engine = PrivacyEngine(accountant="rdp")
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(data, batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        if mended:
            # Opacus divides by the number of records times the rate; this is a constant.
            optimizer.expected_batch_size = BATCH
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            if logged:
                replay.public("loss", loss.item())
        replay.public("accounted epsilon", engine.get_epsilon(1e-5))
        accounted.add(engine.get_epsilon(1e-5))

    return train


def main() -> None:
    warnings.simplefilter("ignore")  # of Opacus and torch, about this small set-up
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(RECORDS, 20, generator=generator)
    data = TensorDataset(features, (features[:, 0] > 0).long())
    runs = {
        "As Opacus comes": training(mended=False, logged=False),
        "With a constant divisor": training(mended=True, logged=False),
        "With the loss of each batch in a log": training(mended=True, logged=True),
    }
    for name, train in runs.items():
        print(f"{name}:")
        print(ag.replay(train, data, leave_out=17))
        print()
    claims = ", ".join(f"{epsilon:.2f}" for epsilon in accounted)
    print(f"All of them account for epsilon {claims} at delta 1e-5 after these steps.")


if __name__ == "__main__":
    main()
