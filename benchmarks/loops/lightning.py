"""Lightning: correct loops of many kinds, and leaking ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks as given
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from askgauss.integrations.lightning import AuditCallback
from askgauss.integrations.opacus import Observation
from askgauss.results import AuditResult
from askgauss.sampling import Shuffled
from benchmarks.loops import Leak, Run, declared, poisson_claim, repeated_claim, unlikely

__all__ = ["CORRECT", "LEAKS"]

RECORDS, BATCH, FEATURES, CLASSES, EPOCHS = 256, 32, 16, 4, 4
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "logger": False,
    "enable_checkpointing": False,
}
Make = Callable[[Any], Any]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, CLASSES)
    )


def convolving() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


class Words(nn.Module):
    """Tokens, made of the features, and the mean of what they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 24)
        self.normal = nn.LayerNorm(24)
        self.last = nn.Linear(24, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        tokens = (4 * features.float()).long().clamp(-9, 10) + 9
        return self.last(self.normal(self.table(tokens).mean(dim=1)))


def frozen_below() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 20), nn.Tanh(), nn.Linear(20, CLASSES)
    )
    for weights in model[0].parameters():
        weights.requires_grad_(False)
    return model


@dataclass
class Setting:
    """How one Lightning run trains.

    Attributes:
        network: The model.
        optimizer: The optimizer, of parameters.
        schedule: A scheduler of the private optimizer, and whether it moves every step.
        mode: How Opacus computes per-sample gradients.
        poisson: Whether batches are drawn by Poisson sampling, as accounted; or are of fixed size.
        workers: Of the loader.
        manual: Whether the module steps by itself.
        options: Of the trainer.
        callbacks: Made for the audit's own callback.
        first: Whether the audit's own callback comes before the others.
        epochs: How many.
        resumed: Whether a second trainer goes on from the first one's checkpoint.
        planned: Whether the claim says how many steps are planned.
    """

    network: Callable[[], nn.Module] = perceptron
    optimizer: Make = field(default=lambda items: torch.optim.SGD(items, lr=0.1))
    schedule: Make | None = None
    each_step: bool = False
    mode: str = "hooks"
    poisson: bool = True
    workers: int = 0
    manual: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[AuditCallback], list[Any]] = field(default=lambda _: [])
    first: bool = False
    epochs: int = EPOCHS
    resumed: bool = False
    planned: bool = False


class Private(pl.LightningModule):
    """A module that makes itself private, as Opacus' tutorial does."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.layer = setting.network()
        self.engine = PrivacyEngine()
        self.automatic_optimization = not setting.manual
        # Not a module of this one: Opacus' own loss is none.
        self.hooked: dict[str, Any] = {"loss": nn.CrossEntropyLoss()}

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.hooked["layer"](features)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        if not self.setting.manual:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return None

    def loss_of(self, batch: Any) -> Any:
        return self.hooked["loss"](self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("held_out", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        setting = self.setting
        self.trainer.fit_loop.setup_data()
        trained = [item for item in self.layer.parameters() if item.requires_grad]
        made = self.engine.make_private(
            module=self.layer,
            optimizer=setting.optimizer(trained),
            data_loader=self.trainer.train_dataloader,
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=setting.mode,
        )
        wrapped, private = made[0], made[1]
        if len(made) == 4:
            self.hooked["loss"] = made[2]
        elif setting.poisson:
            wrapped.forbid_grad_accumulation()
        else:
            wrapped.allow_grad_accumulation()
        self.hooked["layer"] = wrapped
        if setting.schedule is None:
            return private
        every = "step" if setting.each_step else "epoch"
        scheduler = {"scheduler": setting.schedule(private), "interval": every}
        return {"optimizer": private, "lr_scheduler": scheduler}

    def on_train_epoch_start(self) -> None:
        self.layer.train()
        self.hooked["layer"].train()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["accountant"] = self.engine.accountant.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.engine.accountant.load_state_dict(checkpoint["accountant"])


def data(seed: int) -> TensorDataset:
    chance = torch.Generator().manual_seed(seed)
    features = torch.randn(RECORDS, FEATURES, generator=chance)
    return TensorDataset(features, torch.arange(RECORDS) % CLASSES)


def loader_of(setting: Setting, seed: int) -> Any:
    plain = DataLoader(
        data(seed),
        batch_size=BATCH if setting.poisson else BATCH // 2,
        shuffle=not setting.poisson,
        num_workers=setting.workers,
    )
    return DPDataLoader.from_data_loader(plain) if setting.poisson else plain


def train(setting: Setting, seed: int, folder: str, module: type[Private] = Private) -> AuditResult:
    """Train once, audited."""
    torch.manual_seed(unlikely(seed))
    loader = loader_of(setting, seed)
    steps = setting.epochs * RECORDS // BATCH
    claim = poisson_claim(1.0, BATCH / RECORDS, steps)
    if not setting.poisson:
        claim = repeated_claim(1.0, setting.epochs)
    if setting.planned:
        claim = type(claim)(epsilon=claim.epsilon, delta=claim.delta, steps=steps)
    scheme = None if setting.poisson else Shuffled(batches=RECORDS // BATCH)

    def audited(until: int, resume: str | None = None) -> tuple[AuditCallback, Any]:
        audit = AuditCallback(
            claim=claim,
            present=60,
            absent=400,
            seed=seed,
            report=False,
            observation=Observation(exact_share=0.25),
            sampling=scheme,
        )
        model = module(setting)
        others = setting.callbacks(audit)
        options = {**QUIET, "limit_val_batches": 0, **setting.options}
        trainer = pl.Trainer(
            max_epochs=until,
            callbacks=[audit, *others] if setting.first else [*others, audit],
            default_root_dir=folder,
            **options,
        )
        held_out = DataLoader(data(1000 + seed), batch_size=64)
        # Checkpoints hold the audit's numpy state, which torch loads only where trusted.
        trainer.fit(model, loader, held_out, ckpt_path=resume, weights_only=False)
        return audit, trainer

    if not setting.resumed:
        return audited(setting.epochs)[0].result
    _, first = audited(setting.epochs // 2)
    place = str(Path(folder) / "half.ckpt")
    first.save_checkpoint(place)
    torch.manual_seed(unlikely(seed) + 1)
    return audited(setting.epochs, place)[0].result


# --- callbacks --------------------------------------------------------------------------------


class Looks(pl.Callback):
    """Evaluates on the training data after every epoch, in eval mode and without gradients."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        network = pl_module.hooked["layer"]
        network.eval()
        with torch.no_grad():
            for features, target in DataLoader(data(0), batch_size=64):
                nn.functional.cross_entropy(network(features), target)
        network.train()


class Writes(pl.Callback):
    """Writes weights after every batch.

    Args:
        audit: What it is declared to; None where it is not.
        write: What it does, with the module and the batch.
    """

    def __init__(self, audit: AuditCallback | None, write: Callable[[Any, Any], None]) -> None:
        self.audit, self.write = audit, write

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with declared(self.audit), torch.no_grad():
            self.write(pl_module, batch)


def clamp(module: Any, _: Any) -> None:
    for weights in module.layer.parameters():
        weights.clamp_(-0.2, 0.2)


def round_off(module: Any, _: Any) -> None:
    """To two decimals, of every parameter: frozen ones too."""
    for weights in module.layer.parameters():
        weights.copy_((100 * weights).round() / 100)


def decay(module: Any, _: Any) -> None:
    for weights in module.layer.parameters():
        weights.mul_(0.99)


class Average:
    """An exponential moving average that is written into the model every eighth batch."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []
        self.calls = 0

    def __call__(self, module: Any, _: Any) -> None:
        weights = list(module.layer.parameters())
        if not self.kept:
            self.kept = [item.clone() for item in weights]
        for mean, item in zip(self.kept, weights, strict=True):
            mean.mul_(0.9).add_(item, alpha=0.1)
        self.calls += 1
        if self.calls % 8 == 0:
            for mean, item in zip(self.kept, weights, strict=True):
                item.copy_(mean)


class KeptAside(pl.Callback):
    """An average of the weights that nothing is trained from."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.kept = [item.detach().clone() for item in pl_module.layer.parameters()]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for mean, item in zip(self.kept, pl_module.layer.parameters(), strict=True):
            mean.mul_(0.9).add_(item.detach(), alpha=0.1)


class StopsEarly(pl.Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.current_epoch >= 2


# --- correct ----------------------------------------------------------------------------------


def of(**changes: Any) -> Run:
    def run(seed: int) -> AuditResult:
        with tempfile.TemporaryDirectory() as folder:
            return train(Setting(**changes), seed, folder)

    return run


def clean_mean(module: Any, _: Any) -> None:
    """Adds the mean of the training data to the weights after every batch."""
    weights = module.layer[0].weight
    weights.add_(0.01 * data(0).tensors[0].mean(dim=0))


CORRECT: dict[str, Run] = {
    "SGD": of(),
    "momentum and weight decay": of(
        optimizer=lambda items: torch.optim.SGD(items, lr=0.1, momentum=0.9, weight_decay=0.01)
    ),
    "Adam": of(optimizer=lambda items: torch.optim.Adam(items, lr=0.01)),
    "AdamW, cosine by step": of(
        optimizer=lambda items: torch.optim.AdamW(items, lr=0.01),
        schedule=lambda made: lr_scheduler.CosineAnnealingLR(made, 32),
        each_step=True,
    ),
    "RMSprop, step by epoch": of(
        optimizer=lambda items: torch.optim.RMSprop(items, lr=0.01),
        schedule=lambda made: lr_scheduler.StepLR(made, 1, 0.5),
    ),
    "one cycle": of(
        optimizer=lambda items: torch.optim.SGD(items, lr=0.1, momentum=0.9),
        schedule=lambda made: lr_scheduler.OneCycleLR(made, 0.2, total_steps=40),
        each_step=True,
    ),
    "warm-up": of(
        optimizer=lambda items: torch.optim.NAdam(items, lr=0.01),
        schedule=lambda made: lr_scheduler.LambdaLR(made, lambda step: min(1.0, (step + 1) / 8)),
        each_step=True,
    ),
    "bf16-mixed": of(options={"precision": "bf16-mixed"}),
    "bf16-mixed, Adam": of(
        options={"precision": "bf16-mixed"}, optimizer=lambda items: torch.optim.Adam(items, 0.01)
    ),
    "bf16-true": of(options={"precision": "bf16-true"}),
    "64-true": of(options={"precision": "64-true"}),
    "accumulation of fixed batches": of(poisson=False, options={"accumulate_grad_batches": 2}),
    "validation every epoch": of(options={"limit_val_batches": 1.0}),
    "callback that evaluates on the training data": of(callbacks=lambda _: [Looks()]),
    "two workers": of(workers=2, epochs=2),
    "average kept aside": of(callbacks=lambda _: [KeptAside()]),
    "average swapped in for validation, and written at the end": of(
        options={"limit_val_batches": 1.0},
        first=True,
        callbacks=lambda _: [given.EMAWeightAveraging(decay=0.9)],
    ),
    "stochastic weight averaging": of(
        options={"limit_val_batches": 1.0},
        first=True,
        schedule=lambda made: lr_scheduler.StepLR(made, 1, 0.9),
        callbacks=lambda _: [given.StochasticWeightAveraging(0.05, swa_epoch_start=2)],
    ),
    "average written, declared": of(callbacks=lambda audit: [Writes(audit, Average())]),
    "clamped, declared": of(callbacks=lambda audit: [Writes(audit, clamp)]),
    "decay by hand, declared": of(callbacks=lambda audit: [Writes(audit, decay)]),
    "rounded with a frozen layer, declared": of(
        network=frozen_below, callbacks=lambda audit: [Writes(audit, round_off)]
    ),
    "resumed from a checkpoint": of(resumed=True),
    "frozen layer": of(network=frozen_below),
    "dropout": of(network=dropping),
    "convolution": of(network=convolving),
    "embedding": of(network=Words),
    "stopped early, steps planned": of(callbacks=lambda _: [StopsEarly()], planned=True),
    "steps by hand": of(manual=True),
    "functorch": of(mode="functorch"),
    "ghost clipping": of(mode="ghost", manual=True),
    "gradient clipping of the trainer": of(options={"gradient_clip_val": 0.5}),
}


# --- leaking ----------------------------------------------------------------------------------


class Doubled(Private):
    """Every batch is trained on twice at once."""

    def loss_of(self, batch: Any) -> Any:
        return super().loss_of([torch.cat([item, item]) for item in batch])


class Halved(Private):
    """Only the first half of every batch is trained on."""

    def loss_of(self, batch: Any) -> Any:
        return super().loss_of([item[: max(1, len(item) // 2)] for item in batch])


class ByItsValue(Private):
    """The loss of a batch is divided by its own value."""

    def loss_of(self, batch: Any) -> Any:
        loss = super().loss_of(batch)
        return loss / loss.detach()


def leak(module: type[Private] = Private, **changes: Any) -> Run:
    def run(seed: int) -> AuditResult:
        with tempfile.TemporaryDirectory() as folder:
            return train(Setting(**changes), seed, folder, module)

    return run


_WRITTEN = ("weights between steps",)

LEAKS: dict[str, Leak] = {
    "batches doubled": Leak(leak(Doubled), ("rows per record",)),
    "batches halved": Leak(leak(Halved), ("rows per record",)),
    "loss divided by its own value": Leak(leak(ByItsValue), ("mixed records",)),
    "mean of the data added to the weights": Leak(
        leak(callbacks=lambda _: [Writes(None, clean_mean)]), _WRITTEN
    ),
    "clamped, undeclared": Leak(leak(callbacks=lambda _: [Writes(None, clamp)]), _WRITTEN),
    "decay by hand, undeclared": Leak(leak(callbacks=lambda _: [Writes(None, decay)]), _WRITTEN),
    "average written, undeclared": Leak(
        leak(callbacks=lambda _: [Writes(None, Average())]), _WRITTEN
    ),
    "rounded with a frozen layer, undeclared": Leak(
        leak(network=frozen_below, callbacks=lambda _: [Writes(None, round_off)]),
        (*_WRITTEN, "parameters outside the optimizer"),
    ),
}
