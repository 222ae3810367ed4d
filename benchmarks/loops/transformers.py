"""Hugging Face: correct loops of many kinds, and leaking ones."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset

from askgauss.integrations.opacus import Observation
from askgauss.integrations.transformers import AuditCallback
from askgauss.results import AuditResult
from askgauss.sampling import Shuffled
from benchmarks.loops import Leak, Run, declared, poisson_claim, repeated_claim, unlikely

__all__ = ["CORRECT", "LEAKS"]

WORDS, LENGTH, RECORDS, BATCH, STEPS = 32, 6, 256, 32, 24
Row = dict[str, torch.Tensor]


class Lines(Dataset[Row]):
    """Random tokens, with a class for those who want one."""

    def __init__(self, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, WORDS, (RECORDS, LENGTH), generator=chance)
        self.images = torch.randn(RECORDS, 1, 6, 6, generator=chance)

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Row:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Classified(Lines):
    def __getitem__(self, index: int) -> Row:
        return {"input_ids": self.tokens[index], "labels": torch.tensor(index % 4)}


class Pictures(Lines):
    def __getitem__(self, index: int) -> Row:
        return {"pixels": self.images[index], "labels": torch.tensor(index % 4)}


class Padded(Lines):
    """Texts of different lengths, padded and masked."""

    def __getitem__(self, index: int) -> Row:
        length = 2 + index % (LENGTH - 1)
        seen = (torch.arange(LENGTH) < length).long()
        tokens = self.tokens[index] * seen
        return {
            "input_ids": tokens,
            "attention_mask": seen,
            "labels": torch.where(seen > 0, tokens, -100),
        }


def collate(rows: Sequence[Row]) -> Row:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def gpt2(*, dropout: float = 0.0) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=16,
            n_layer=1,
            n_head=2,
            tie_word_embeddings=False,
            attn_pdrop=dropout,
            embd_pdrop=dropout,
            resid_pdrop=dropout,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def whole() -> Any:
    """All but the positions, which have one row for the whole batch: Opacus cannot take it."""
    model = gpt2()
    model.transformer.wpe.weight.requires_grad_(False)
    return model


def head_only() -> Any:
    model = gpt2()
    for weights in model.transformer.parameters():
        weights.requires_grad_(False)
    return model


def dropping() -> Any:
    model = gpt2(dropout=0.2)
    model.transformer.wpe.weight.requires_grad_(False)
    return model


def adapted() -> Any:
    import peft

    options = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], lora_dropout=0.0)
    return peft.get_peft_model(gpt2(), options)


class Classifier(nn.Module):
    """A model of one's own, of texts or pictures, that gives its loss as the trainer wants it."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network, self.name = network, name

    def forward(self, labels: torch.Tensor, **inputs: torch.Tensor) -> Any:
        scores = self.network(inputs[self.name])
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(WORDS, 24), nn.Linear(24, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(tokens).mean(dim=1))


def of_texts() -> nn.Module:
    return Classifier(Bag(), "input_ids")


def of_pictures() -> nn.Module:
    layers = (nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 4))
    return Classifier(nn.Sequential(*layers), "pixels")


def adamw(items: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(items, lr=1e-3)


@dataclass
class Setting:
    """How one Hugging Face run trains.

    Attributes:
        network: The model.
        records: The data set.
        optimizer: The optimizer, of parameters.
        poisson: Whether batches are drawn by Poisson sampling; or are of fixed size.
        workers: Of the loader.
        options: Of the trainer's arguments.
        callbacks: Made for the audit's own callback.
        evaluates: Whether there is held-out data.
        resumed: Whether a second trainer goes on from the first one's checkpoint.
        stops: The step after which the training stops, though more are planned; 0 for none.
    """

    network: Callable[[], Any] = head_only
    records: Callable[[int], Lines] = Lines
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw
    poisson: bool = True
    workers: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[AuditCallback], list[Any]] = field(default=lambda _: [])
    evaluates: bool = False
    resumed: bool = False
    stops: int = 0


class PrivateTrainer(transformers.Trainer):  # type: ignore[misc]
    """A trainer that is private: Opacus' optimizer, Opacus' loader, and sums that are cleared."""

    setting: Setting
    noise_seed: int

    def get_train_dataloader(self) -> Any:
        if not hasattr(self, "_private_loader"):
            poisson = self.setting.poisson
            plain = DataLoader(
                self.train_dataset,
                batch_size=BATCH if poisson else BATCH // 2,
                shuffle=not poisson,
                collate_fn=collate,
                num_workers=self.setting.workers,
            )
            self._private_loader = DPDataLoader.from_data_loader(plain) if poisson else plain
        return self._private_loader

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is None:
            self.engine = PrivacyEngine()
            # The trainer seeds torch, by a number that anybody may try.
            self.noise = torch.Generator().manual_seed(self.noise_seed)
            trained = [item for item in self.model.parameters() if item.requires_grad]
            self.hooks, self.optimizer, _ = self.engine.make_private(
                module=self.model,
                optimizer=self.setting.optimizer(trained),
                data_loader=self.get_train_dataloader(),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                noise_generator=self.noise,
                poisson_sampling=False,
                wrap_model=False,
            )
            if not self.setting.poisson:
                self.hooks.allow_grad_accumulation()
        return self.optimizer

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self.setting.poisson:
            self.optimizer.zero_grad()
        return super().training_step(model, self.chosen(inputs), num_items_in_batch)

    def chosen(self, inputs: Row) -> Row:
        """What of a batch is trained on."""
        return inputs

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        history = self.engine.accountant.history
        Path(output_dir, "accountant.json").write_text(json.dumps(history))
        torch.save(self.noise.get_state(), Path(output_dir, "noise.pt"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            history = json.loads(Path(checkpoint, "accountant.json").read_text())
            self.engine.accountant.history = [tuple(entry) for entry in history]
            self.noise.set_state(torch.load(Path(checkpoint, "noise.pt")))


def train(
    setting: Setting, seed: int, folder: str, kind: type[PrivateTrainer] = PrivateTrainer
) -> AuditResult:
    """Train once, audited."""
    claim = poisson_claim(1.0, BATCH / RECORDS, STEPS)
    if not setting.poisson:
        claim = repeated_claim(1.0, STEPS * BATCH // RECORDS)
    if setting.stops:
        claim = type(claim)(epsilon=claim.epsilon, delta=claim.delta, steps=STEPS)

    def audited(steps: int, resume: str | None = None) -> AuditResult:
        audit = AuditCallback(
            claim=claim,
            present=60,
            absent=400,
            seed=seed,
            report=False,
            observation=Observation(exact_share=0.25),
            sampling=None if setting.poisson else Shuffled(batches=RECORDS // BATCH),
        )
        options: dict[str, Any] = {"save_strategy": "no", "lr_scheduler_type": "constant"}
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=steps,
            disable_tqdm=True,
            remove_unused_columns=False,
            report_to=[],
            seed=seed,
            **{**options, "logging_steps": 1000, **setting.options},
        )
        torch.manual_seed(unlikely(seed))
        model = setting.network()
        kept = {"setting": setting, "noise_seed": unlikely(seed) + (0 if resume is None else 1)}
        trainer = type("Chosen", (kind,), kept)(
            model=model,
            args=arguments,
            train_dataset=setting.records(seed),
            eval_dataset=setting.records(1000 + seed) if setting.evaluates else None,
            data_collator=collate,
            callbacks=[*setting.callbacks(audit), audit],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train(resume_from_checkpoint=resume)
        return audit.result

    if not setting.resumed:
        return audited(STEPS)
    audited(STEPS // 2)
    return audited(STEPS, str(Path(folder) / f"checkpoint-{STEPS // 2}"))


# --- callbacks --------------------------------------------------------------------------------


class Writes(transformers.TrainerCallback):  # type: ignore[misc]
    """Writes weights after every step.

    Args:
        audit: What it is declared to; None where it is not.
        write: What it does to the model.
    """

    def __init__(self, audit: AuditCallback | None, write: Callable[[Any], None]) -> None:
        self.audit, self.write = audit, write

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        with declared(self.audit), torch.no_grad():
            self.write(model)


def clamp(model: Any) -> None:
    for weights in model.parameters():
        weights.clamp_(-0.05, 0.05)


def round_off(model: Any) -> None:
    """To two decimals, of every parameter: frozen ones too."""
    for weights in model.parameters():
        weights.copy_((100 * weights).round() / 100)


def decay(model: Any) -> None:
    for weights in model.parameters():
        if weights.requires_grad:
            weights.mul_(0.99)


class Average:
    """An exponential moving average; every so often it is written into the model, or never."""

    def __init__(self, every: int = 8) -> None:
        self.kept: list[torch.Tensor] = []
        self.calls, self.every = 0, every

    def __call__(self, model: Any) -> None:
        weights = [item for item in model.parameters() if item.requires_grad]
        if not self.kept:
            self.kept = [item.clone() for item in weights]
        for mean, item in zip(self.kept, weights, strict=True):
            mean.mul_(0.9).add_(item, alpha=0.1)
        self.calls += 1
        if self.every and self.calls % self.every == 0:
            for mean, item in zip(self.kept, weights, strict=True):
                item.copy_(mean)


class Mean:
    """Adds the mean of the training data's embedded tokens to the weights of the head."""

    def __call__(self, model: Any) -> None:
        model.lm_head.weight.add_(0.01 * Lines(0).tokens.float().mean() / WORDS)


class Stops(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


class Clears(transformers.TrainerCallback):  # type: ignore[misc]
    """Clears the sums as a step begins, where it is made of several batches."""

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any
    ) -> None:
        optimizer.optimizer.zero_grad()


class Looks(transformers.TrainerCallback):  # type: ignore[misc]
    """Evaluates on the training data now and then, in eval mode and without gradients."""

    def on_step_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        train_dataloader: Any = None,
        **others: Any,
    ) -> None:
        if state.global_step % 8 == 0:
            model.eval()
            with torch.no_grad():
                for batch in DataLoader(train_dataloader.dataset, 64, collate_fn=collate):
                    model(**batch)
            model.train()


# --- correct ----------------------------------------------------------------------------------


def of(kind: type[PrivateTrainer] = PrivateTrainer, **changes: Any) -> Run:
    def run(seed: int) -> AuditResult:
        with tempfile.TemporaryDirectory() as folder:
            return train(Setting(**changes), seed, folder, kind)

    return run


def scheduled(name: str, **more: Any) -> Run:
    return of(options={"lr_scheduler_type": name, "warmup_steps": 4, **more})


_EVALUATED = {"eval_strategy": "steps", "eval_steps": 8}

CORRECT: dict[str, Run] = {
    "AdamW": of(),
    "SGD with momentum": of(optimizer=lambda items: torch.optim.SGD(items, lr=0.1, momentum=0.9)),
    "Adam": of(optimizer=lambda items: torch.optim.Adam(items, lr=1e-3)),
    "RMSprop": of(optimizer=lambda items: torch.optim.RMSprop(items, lr=1e-3)),
    "linear schedule": scheduled("linear"),
    "cosine schedule": scheduled("cosine"),
    "inverse square root": scheduled("inverse_sqrt"),
    "bf16": of(options={"bf16": True}),
    "bf16, SGD": of(options={"bf16": True}, optimizer=lambda items: torch.optim.SGD(items, lr=0.1)),
    "bf16, whole model": of(network=whole, options={"bf16": True}),
    "accumulation of fixed batches": of(
        poisson=False,
        options={"gradient_accumulation_steps": 2},
        callbacks=lambda _: [Clears()],
    ),
    "evaluation every 8 steps": of(evaluates=True, options=_EVALUATED),
    "callback that evaluates on the training data": of(callbacks=lambda _: [Looks()]),
    "two workers": of(workers=2),
    "average kept aside": of(callbacks=lambda _: [Writes(None, Average(every=0))]),
    "average written, declared": of(callbacks=lambda audit: [Writes(audit, Average())]),
    "clamped, declared": of(network=whole, callbacks=lambda audit: [Writes(audit, clamp)]),
    "decay by hand, declared": of(callbacks=lambda audit: [Writes(audit, decay)]),
    "rounded with a frozen backbone, declared": of(
        callbacks=lambda audit: [Writes(audit, round_off)]
    ),
    "resumed from a checkpoint": of(
        resumed=True, options={"save_strategy": "steps", "save_steps": STEPS // 2}
    ),
    "whole model": of(network=whole),
    "label smoothing": of(network=whole, options={"label_smoothing_factor": 0.1}),
    "dropout": of(network=dropping),
    "adapters": of(network=adapted),
    "texts, classified": of(network=of_texts, records=Classified),
    "pictures, classified": of(network=of_pictures, records=Pictures),
    "padded texts": of(network=whole, records=Padded),
    "stopped early, steps planned": of(stops=16, callbacks=lambda _: [Stops(16)]),
    "gradient clipping of the trainer off": of(options={"max_grad_norm": 0.0}),
    "logged and saved every 8 steps": of(
        options={"logging_steps": 1, "save_strategy": "steps", "save_steps": 8}
    ),
}


# --- leaking ----------------------------------------------------------------------------------


class Doubled(PrivateTrainer):
    def chosen(self, inputs: Row) -> Row:
        return {name: torch.cat([item, item]) for name, item in inputs.items()}


class Halved(PrivateTrainer):
    def chosen(self, inputs: Row) -> Row:
        return {name: item[: max(1, len(item) // 2)] for name, item in inputs.items()}


class Repeated(PrivateTrainer):
    """Every second step trains on the batch of the step before."""

    kept: Row | None = None

    def chosen(self, inputs: Row) -> Row:
        if self.kept is not None:
            last, self.kept = self.kept, None
            return last
        self.kept = {name: item.clone() for name, item in inputs.items()}
        return inputs


class Other(PrivateTrainer):
    """Trains on batches of a shuffled loader beside the private one."""

    def chosen(self, inputs: Row) -> Row:
        if not hasattr(self, "others"):
            self.others = iter(
                DataLoader(self.train_dataset, BATCH, shuffle=True, collate_fn=collate)
            )
        try:
            return next(self.others)
        except StopIteration:
            del self.others
            return self.chosen(inputs)


_WRITTEN = ("weights between steps",)

LEAKS: dict[str, Leak] = {
    "batches doubled": Leak(of(Doubled), ("rows per record",)),
    "batches halved": Leak(of(Halved), ("rows per record",)),
    "batches repeated": Leak(of(Repeated), ("repeated batches",)),
    "batches of another loader": Leak(of(Other), ("training loader",)),
    "mean of the data added to the weights": Leak(
        of(callbacks=lambda _: [Writes(None, Mean())]), _WRITTEN
    ),
    "clamped, undeclared": Leak(
        of(network=of_texts, records=Classified, callbacks=lambda _: [Writes(None, clamp)]),
        _WRITTEN,
    ),
    "decay by hand, undeclared": Leak(of(callbacks=lambda _: [Writes(None, decay)]), _WRITTEN),
    "average written, undeclared": Leak(
        of(callbacks=lambda _: [Writes(None, Average())]), _WRITTEN
    ),
    "rounded with a frozen backbone, undeclared": Leak(
        of(callbacks=lambda _: [Writes(None, round_off)]),
        (*_WRITTEN, "parameters outside the optimizer"),
    ),
}
