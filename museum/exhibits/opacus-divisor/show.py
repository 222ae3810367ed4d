"""Replay a few steps with and without one record."""

from __future__ import annotations

import torch
from museum.outcomes import Outcome, main, of_replay
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus_replay import follow
from askgauss.replay import Replay

RECORDS, BATCH = 100, 10


def show(variant: str) -> Outcome:
    def train(data: TensorDataset, replay: Replay) -> None:
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 2))
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(data, batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        if variant == "mended":
            optimizer.expected_batch_size = BATCH
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()

    features = torch.randn(RECORDS, 12, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(features, (features[:, 0] > 0).long())
    return of_replay(ag.replay(train, data, leave_out=17, steps=3))


main(show)
