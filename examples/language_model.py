"""A small language model fine-tuned with LoRA and Opacus, audited from inside and by its loss.

Run with ``python examples/language_model.py [EPSILON]``; it takes about a minute on one core. The
model and its tokenizer are made here: nothing is fetched.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import askgauss as ag
from askgauss.canaries import TextCanaries
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.transformers import text_losses

WORDS = [f"word{index}" for index in range(60)]
RECORDS, CANARIES, LENGTH, BATCHES, EPOCHS = 500, 1000, 6, 2, 10
DELTA, SEED = 1e-5, 0


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(["<pad>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>")


def make_model(vocabulary: int) -> GPT2LMHeadModel:
    configuration = GPT2Config(
        vocab_size=vocabulary,
        n_positions=16,
        n_embd=32,
        n_layer=2,
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


def main(epsilon: float) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(SEED)
    chance = np.random.default_rng(SEED)
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)

    tokenizer = make_tokenizer()
    canaries = TextCanaries.new_tokens([f"{word} " for word in WORDS], count=CANARIES, seed=SEED)
    tokenizer.add_tokens(list(canaries.tokens))
    texts = [" ".join(chance.choice(WORDS, LENGTH)) for _ in range(RECORDS)]
    texts += canaries.present_texts

    def collate(rows):
        batch = tokenizer(rows, padding=True, return_tensors="pt")
        hidden = batch["attention_mask"] == 0
        return {**batch, "labels": batch["input_ids"].masked_fill(hidden, -100)}

    # New tokens need an output of their own: the last layer trains whole, the others by adapters.
    adapters = LoraConfig(r=4, target_modules=["c_attn", "c_fc"], modules_to_save=["lm_head"])
    model = get_peft_model(make_model(len(tokenizer)), adapters)
    loader = DPDataLoader.from_data_loader(
        DataLoader(texts, batch_size=len(texts) // BATCHES, collate_fn=collate)
    )
    noise = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=DELTA,
        sample_rate=loader.sample_rate,
        steps=EPOCHS * len(loader),
        accountant="prv",
    )
    _, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=30.0),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=0.1,
        poisson_sampling=False,
        wrap_model=False,
    )

    before = text_losses(model, tokenizer, canaries)
    with CanaryAudit(
        optimizer,
        data_loader=loader,
        model=model,
        claim=claim,
        present=5000,
        absent=10_000,
        inject="sum",
        seed=0,
    ) as audit:
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()
    inside = audit.result()
    print(f"from inside (white-box), {inside.verdict.value}:")
    print(f"  epsilon >= {inside.epsilon_lower:.3f} of the {epsilon:g} claimed")

    scores = canaries.scores(text_losses(model, tokenizer, canaries), reference=before)
    apart = scores.score[scores.member].mean() - scores.score[~scores.member].mean()
    print(f"by the finished model's loss on {CANARIES:,} texts (black-box):")
    print(f"  a text that was trained on costs {apart:.2f} nats less on average")
    for auditor in (ag.OneRun(), ag.OneRunFDP(), ag.GaussianShift()):
        result = ag.audit(scores, claim=claim, auditor=auditor)
        print(f"  epsilon >= {result.epsilon_lower:.3f} by {result.auditor.name}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0)
