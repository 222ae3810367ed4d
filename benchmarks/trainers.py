"""Steps of a Lightning and a Hugging Face trainer, with the audit's callback and without."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import torch
import transformers
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from askgauss.integrations import lightning
from askgauss.integrations import transformers as hugging_face
from askgauss.integrations.opacus import Observation

STEPS, ROUNDS, BATCH = 20, 2, 128
PRIVATE: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "poisson_sampling": False,
}
AUDIT: dict[str, Any] = {"canaries": 5000, "seed": 0, "report": False}


class Module(pl.LightningModule):
    """A perceptron of 95,410 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The usual loss."""
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """Opacus' optimizer."""
        self.trainer.fit_loop.setup_data()
        hooked, optimizer, _ = PrivacyEngine().make_private(
            module=self.network,
            optimizer=torch.optim.SGD(self.network.parameters(), lr=0.01),
            data_loader=self.trainer.train_dataloader,
            **PRIVATE,
        )
        self.hooked = {"network": hooked}
        return optimizer


class LightningClock(pl.Callback):
    """Seconds of the processor that every step takes: others may use the machine too."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins."""
        self._began = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """A step ends."""
        self.seconds.append(time.process_time() - self._began)


def lightning_steps(callbacks: list[Any], folder: str) -> list[float]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * BATCH, 784), torch.arange(STEPS * BATCH) % 10)
    clock = LightningClock()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[clock, *callbacks],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DPDataLoader.from_data_loader(DataLoader(data, batch_size=BATCH)))
    return clock.seconds


class Lines(Dataset):
    """Random tokens."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 512, (STEPS * 32, 16))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class HuggingFaceClock(transformers.TrainerCallback):
    """Seconds of the processor that every step takes: others may use the machine too."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **others: Any) -> None:
        """A step begins."""
        self._began = time.process_time()

    def on_step_end(self, *_: Any, **others: Any) -> None:
        """A step ends."""
        self.seconds.append(time.process_time() - self._began)


class PrivateTrainer(transformers.Trainer):
    """Opacus' optimizer, Opacus' loader, and sums that are cleared."""

    def get_train_dataloader(self) -> DataLoader:
        """Poisson batches."""
        plain = DataLoader(self.train_dataset, batch_size=32)
        return DPDataLoader.from_data_loader(plain)

    def create_optimizer(self, model: Any = None) -> Any:
        """Made once."""
        if self.optimizer is None:
            trained = [item for item in self.model.parameters() if item.requires_grad]
            self.hooks, self.optimizer, _ = PrivacyEngine().make_private(
                module=self.model,
                optimizer=torch.optim.SGD(trained, lr=0.01),
                data_loader=self.get_train_dataloader(),
                wrap_model=False,
                **PRIVATE,
            )
        return self.optimizer

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """The trainer's own, after the sums are cleared."""
        self.optimizer.zero_grad()
        return super().training_step(*arguments, **options)


def hugging_face_steps(callbacks: list[Any], folder: str) -> list[float]:
    torch.manual_seed(0)
    configuration = transformers.GPT2Config(
        vocab_size=512, n_positions=16, n_embd=128, n_layer=2, n_head=2, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(configuration)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".mlp." in name)
    clock = HuggingFaceClock()
    arguments = transformers.TrainingArguments(
        folder,
        use_cpu=True,
        max_steps=STEPS,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        logging_steps=10_000,
        remove_unused_columns=False,
    )
    trainer = PrivateTrainer(model, arguments, train_dataset=Lines(), callbacks=[clock, *callbacks])
    trainer.train()
    return clock.seconds


def rows() -> Iterator[tuple[str, str]]:
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    yield from _compared(
        "Lightning, perceptron of 95 k, batch 128", lightning_steps, lightning.AuditCallback
    )
    yield from _compared(
        "Hugging Face, GPT-2 of 2 layers, its MLPs trained, batch 32",
        hugging_face_steps,
        hugging_face.AuditCallback,
    )


def _compared(
    name: str, train: Callable[[list[Any], str], list[float]], callback: Callable[..., Any]
) -> Iterator[tuple[str, str]]:
    plain, audited = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            # The first steps of a training warm up.
            plain += train([], folder)[2:]
            audited += train(
                [callback(inject="sum", observation=Observation(exact_share=0.0), **AUDIT)], folder
            )[2:]
    base = statistics.median(plain)
    yield f"{name}, plain", f"{1e3 * base:.1f} ms a step"
    yield f"{name}, callback, 5,000 canaries", f"{statistics.median(audited) / base:.3f} x plain"


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what:80} {measured}", flush=True)
