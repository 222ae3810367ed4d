"""A small language model fine-tuned with Hugging Face, LoRA and Opacus, and audited in two ways.

From inside by a callback, and from outside by the finished model's loss on texts that were trained
on or not. Run with ``python examples/language_model.py [EPSILON]``; it takes about a minute on one
core. The model and its tokenizer are made here: nothing is fetched.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader

import askgauss as ag
from askgauss.canaries import TextCanaries
from askgauss.integrations.transformers import AuditCallback, text_losses

WORDS = [f"word{index}" for index in range(60)]
RECORDS, CANARIES, LENGTH, RATE, STEPS = 500, 1000, 6, 0.5, 20
DELTA, SEED = 1e-5, 0


class PrivateTrainer(transformers.Trainer):
    """A trainer with Opacus' loader and Opacus' optimizer."""

    noise_multiplier: float

    def get_train_dataloader(self):
        """Poisson batches."""
        batch = math.ceil(RATE * len(self.train_dataset))  # Opacus takes 1 in so many batches
        plain = DataLoader(self.train_dataset, batch_size=batch, collate_fn=self.data_collator)
        return DPDataLoader.from_data_loader(plain)

    def create_optimizer(self, model=None):
        """Clipping and noise for what trains, and the model left as it is."""
        if self.optimizer is None:
            self.engine = PrivacyEngine()
            trained = [item for item in self.model.parameters() if item.requires_grad]
            self.hooks, self.optimizer, _ = self.engine.make_private(
                module=self.model,
                optimizer=torch.optim.SGD(trained, lr=self.args.learning_rate),
                data_loader=self.get_train_dataloader(),
                noise_multiplier=self.noise_multiplier,
                max_grad_norm=0.1,
                # The trainer seeds torch, by a number that anybody may try.
                noise_generator=torch.Generator().manual_seed(secrets.randbits(32)),
                poisson_sampling=False,  # the loader is Opacus' already
                wrap_model=False,
            )
        return self.optimizer

    def training_step(self, *arguments, **options):
        """The trainer clears gradients; clipped sums are the optimizer's to clear."""
        self.optimizer.zero_grad()
        return super().training_step(*arguments, **options)

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        history = json.dumps(self.engine.accountant.history)
        Path(output_dir, "accountant.json").write_text(history)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            history = json.loads(Path(checkpoint, "accountant.json").read_text())
            self.engine.accountant.history = [tuple(entry) for entry in history]


def make_tokenizer():
    words = {word: index for index, word in enumerate(["<pad>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>"
    )


def make_model(vocabulary: int):
    configuration = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=2,
        tie_word_embeddings=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    # New tokens need an output of their own: the last layer trains whole, the others by adapters.
    adapters = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], modules_to_save=["lm_head"])
    return get_peft_model(transformers.GPT2LMHeadModel(configuration), adapters)


def main(epsilon: float) -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(SEED)
    chance = np.random.default_rng(SEED)
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)

    tokenizer = make_tokenizer()
    canaries = TextCanaries.new_tokens([f"{word} " for word in WORDS], count=CANARIES, seed=SEED)
    tokenizer.add_tokens(list(canaries.tokens))
    texts = [" ".join(chance.choice(WORDS, LENGTH)) for _ in range(RECORDS)]

    def collate(rows):
        batch = tokenizer(rows, padding=True, return_tensors="pt")
        hidden = batch["attention_mask"] == 0
        return {**batch, "labels": batch["input_ids"].masked_fill(hidden, -100)}

    model = make_model(len(tokenizer))
    before = text_losses(model, tokenizer, canaries)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=STEPS,
            learning_rate=30.0,
            lr_scheduler_type="constant",
            use_cpu=True,
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            logging_steps=10_000,
            disable_tqdm=True,
            seed=SEED,
        )
        trainer = PrivateTrainer(
            model,
            arguments,
            train_dataset=[*texts, *canaries.present_texts],
            data_collator=collate,
        )
        trainer.noise_multiplier = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=RATE,
            steps=STEPS,
            accountant="prv",
        )
        audit = AuditCallback(claim=claim, present=5000, absent=10_000, inject="sum", report=False)
        trainer.add_callback(audit)
        trainer.train()

    print("\nFrom inside, by the callback:")
    print(audit.result)

    scores = canaries.scores(text_losses(model, tokenizer, canaries), reference=before)
    apart = scores.score[scores.member].mean() - scores.score[~scores.member].mean()
    print(f"\nBy the finished model's loss on {CANARIES:,} texts:")
    print(f"  a text that was trained on costs {apart:.2f} nats less on average")
    for auditor in (ag.OneRun(), ag.OneRunFDP(), ag.GaussianShift()):
        result = ag.audit(scores, claim=claim, auditor=auditor)
        print(f"  epsilon >= {result.epsilon_lower:.3f} by {result.auditor.name}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
