"""Small private runs of a Hugging Face trainer: random weights, random tokens, no hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.seeds import unlikely

WORDS, LENGTH, RECORDS, BATCH = 64, 8, 512, 32


def small_gpt2(words: int = WORDS, width: int = 32, layers: int = 1) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    configuration = GPT2Config(
        vocab_size=words,
        n_positions=32,
        n_embd=width,
        n_layer=layers,
        n_head=2,
        tie_word_embeddings=False,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(configuration)


def frozen_below(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Only the last layer trains: a backbone that is frozen, and a head."""
    for parameter in model.transformer.parameters():
        parameter.requires_grad_(False)
    return model


class Lines(Dataset):
    """Random tokens."""

    def __init__(self, records: int = RECORDS) -> None:
        chance = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, WORDS, (records, LENGTH), generator=chance)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class PrivateTrainer(Trainer):
    """A trainer that is private: Opacus' optimizer, Opacus' loader, and sums that are cleared."""

    noise = 1.0
    learning_rate = 1e-3

    def get_train_dataloader(self) -> DataLoader:
        if not hasattr(self, "_private_loader"):
            plain = DataLoader(self.train_dataset, batch_size=BATCH, collate_fn=collate)
            self._private_loader = DPDataLoader.from_data_loader(plain)
        return self._private_loader

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is None:
            self.engine = PrivacyEngine()
            # The trainer seeds torch, by a number that anybody may try.
            self.noise_generator = torch.Generator().manual_seed(unlikely(0))
            trained = [item for item in self.model.parameters() if item.requires_grad]
            self.hooks, self.optimizer, _ = self.engine.make_private(
                module=self.model,
                optimizer=torch.optim.AdamW(trained, lr=self.learning_rate),
                data_loader=self.get_train_dataloader(),
                noise_multiplier=self.noise,
                max_grad_norm=1.0,
                noise_generator=self.noise_generator,
                poisson_sampling=False,
                wrap_model=False,
            )
        return self.optimizer

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        # The trainer clears the model's gradients; clipped sums are the optimizer's to clear.
        self.optimizer.zero_grad()
        return super().training_step(model, inputs, num_items_in_batch)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        history = self.engine.accountant.history
        Path(output_dir, "accountant.json").write_text(json.dumps(history))
        torch.save(self.noise_generator.get_state(), Path(output_dir, "noise.pt"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            history = json.loads(Path(checkpoint, "accountant.json").read_text())
            self.engine.accountant.history = [tuple(entry) for entry in history]
            self.noise_generator.set_state(torch.load(Path(checkpoint, "noise.pt")))


def arguments(folder: Any, steps: int, **options: Any) -> TrainingArguments:
    options.setdefault("report_to", [])
    options.setdefault("save_strategy", "no")
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=steps,
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_steps=1000,
        seed=0,
        **options,
    )
