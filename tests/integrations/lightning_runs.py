"""Lightning modules the tests share, private as Opacus' own tutorial makes one."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, RECORDS, BATCH = 32, 1024, 64
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
}


def loader(batch: int = BATCH, poisson: bool = True) -> DataLoader:
    chance = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(RECORDS, FEATURES, generator=chance))
    plain = DataLoader(data, batch_size=batch)
    return DPDataLoader.from_data_loader(plain) if poisson else plain


class Private(BoringModel):
    """Lightning's own smallest module, wide enough for canaries, behind an Opacus optimizer."""

    def __init__(self, noise: float = 1.0, weaker: float = 1.0, poisson: bool = True) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(FEATURES, 128), nn.Tanh(), nn.Linear(128, 2))
        self.engine = PrivacyEngine()
        self.noise, self.weaker, self.poisson = noise, weaker, poisson

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        # Of an empty batch the mean would be nan.
        return self.loss(self(batch[0]))

    def loss(self, preds: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return 20.0 * (preds - 1.0).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.01)
        self.trainer.fit_loop.setup_data()
        wrapped, private, _ = self.engine.make_private(
            module=self.layer,
            optimizer=optimizer,
            data_loader=self.trainer.train_dataloader,
            noise_multiplier=self.noise,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        # Opacus' loader is the trainer's already; accumulation suits only loaders that fill up.
        (wrapped.forbid_grad_accumulation if self.poisson else wrapped.allow_grad_accumulation)()
        self.hooked = {"layer": wrapped}
        if self.weaker != 1.0:
            weaken(private, self.weaker)
        return private

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["accountant"] = self.engine.accountant.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.engine.accountant.load_state_dict(checkpoint["accountant"])


def weaken(optimizer: Any, factor: float) -> None:
    """Less noise than is accounted for."""
    add_noise = optimizer.add_noise

    def weaker() -> None:
        optimizer.noise_multiplier *= factor
        try:
            add_noise()
        finally:
            optimizer.noise_multiplier /= factor

    optimizer.add_noise = weaker


class TwoNetworks(pl.LightningModule):
    """A generator that sees records only through a private critic: two optimizers, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1))
        self.generator = nn.Linear(4, FEATURES)
        self.engine = PrivacyEngine()

    def configure_optimizers(self) -> Any:
        self.trainer.fit_loop.setup_data()
        critic, private, _ = self.engine.make_private(
            module=self.critic,
            optimizer=torch.optim.SGD(self.critic.parameters(), lr=0.01),
            data_loader=self.trainer.train_dataloader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )
        self.hooked = {"critic": critic}
        return [torch.optim.SGD(self.generator.parameters(), lr=0.01), private]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        plain, private = self.optimizers()
        self.hooked["critic"].disable_hooks()
        plain.zero_grad()
        self.manual_backward(-self.critic(self.generator(torch.randn(8, 4))).mean())
        plain.step()
        self.hooked["critic"].enable_hooks()
        private.zero_grad()
        self.manual_backward(self.critic(batch[0]).square().mean())
        private.step()
