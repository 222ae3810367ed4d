"""Audit an Opacus run on handwritten digits, then the same run with half the noise it claims."""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit

DELTA = 1e-5


def train(model: nn.Module, optimizer: DPOptimizer, loader: DataLoader) -> None:
    """An ordinary training loop: it knows nothing of the audit."""
    for _ in range(75):
        for features, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), target).backward()
            optimizer.step()


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # of Opacus and torch, about this small set-up
    features, target = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(features / 16, dtype=torch.float32), torch.tensor(target))
    for fault in (1.0, 0.5):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(data, batch_size=450),
            noise_multiplier=2.7,
            max_grad_norm=1.0,
        )
        if fault != 1.0:
            break_noise(optimizer, fault)

        with CanaryAudit(optimizer, loader, model=model) as audit:
            train(model, optimizer, loader)

        claim = ag.PrivacyClaim(epsilon=engine.get_epsilon(DELTA), delta=DELTA)
        correct = (model(data.tensors[0]).argmax(dim=1) == data.tensors[1]).float().mean()
        print(f"Noise {fault:g} times what the accountant was told, accuracy {correct:.0%}:")
        print(audit.result(claim=claim))
        print()


def break_noise(optimizer: DPOptimizer, fault: float) -> None:
    """The bug: noise is added with another multiplier than the one accounted for."""
    add_noise = optimizer.add_noise

    def weaker_noise() -> None:
        accounted = optimizer.noise_multiplier
        optimizer.noise_multiplier = fault * accounted
        add_noise()
        optimizer.noise_multiplier = accounted

    optimizer.add_noise = weaker_noise


if __name__ == "__main__":
    main()
