"""Small Opacus runs the tests share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.seeds import unlikely

FEATURES, HIDDEN, CLASSES, RECORDS = 10, 16, 4, 128
PARAMETERS = FEATURES * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
SIZES = (FEATURES * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES)


@dataclass
class Run:
    model: nn.Module
    optimizer: Any
    criterion: Any
    loader: DataLoader
    engine: PrivacyEngine

    def train(self, epochs: int = 1, physical: int | None = None) -> None:
        for _ in range(epochs):
            if physical is None:
                self._epoch(self.loader)
                continue
            with BatchMemoryManager(
                data_loader=self.loader,
                max_physical_batch_size=physical,
                optimizer=self.optimizer,
            ) as loader:
                self._epoch(loader)

    def _epoch(self, loader: DataLoader) -> None:
        for features, target in loader:
            self.optimizer.zero_grad()
            self.criterion(self.model(features), target).backward()
            self.optimizer.step()

    def weights(self) -> torch.Tensor:
        return torch.cat([item.detach().reshape(-1) for item in self.model.parameters()])


def observer(audit: Any, kind: type[Any]) -> Any:
    """The observer of a kind that an audit has."""
    return next(item for item in audit._observers if isinstance(item, kind))


def make_run(
    *,
    mode: str = "hooks",
    noise_multiplier: float = 1.0,
    max_grad_norm: Any = 1.0,
    batch_size: int = 16,
    seed: int = 0,
    model: nn.Module | None = None,
    data: TensorDataset | None = None,
    learning_rate: float = 0.1,
    **options: Any,
) -> Run:
    """Everything from one torch seed, which also rules the run's noise and sampling."""
    torch.manual_seed(unlikely(seed))
    if data is None:
        data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    if model is None:
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    trainable = [item for item in model.parameters() if item.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        made = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(trainable, lr=learning_rate, momentum=0.5),
            data_loader=DataLoader(data, batch_size=batch_size),
            criterion=nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean")),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            grad_sample_mode=mode,
            **options,
        )
    criterion = (
        made[2]
        if len(made) == 4
        else nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
    )
    return Run(made[0], made[1], criterion, made[-1], engine)
