"""What an audit costs a GPT-2 of 124 million parameters that trains by LoRA: time and memory."""

from __future__ import annotations

import resource
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

RECORDS, BATCH, TOKENS, STEPS = 2048, 2, 32, 4


def rows() -> Iterator[tuple[str, str]]:
    """Blocks of steps with and without the audit take turns; memory is the highest of either."""
    warnings.simplefilter("ignore")
    model, optimizer, loader = _private_gpt2()
    from askgauss.integrations.opacus import CanaryAudit

    whole = sum(item.numel() * item.element_size() for item in model.parameters())
    trained = sum(item.numel() for item in model.parameters() if item.requires_grad)
    yield "parameters, and those that train", f"{_count(model) / 1e6:.1f} M, {trained:,}"
    batches = _batches(loader)
    for _ in range(2):
        _step(model, optimizer, next(batches))
    _forget_peak()
    for _ in range(3):
        _step(model, optimizer, next(batches))
    before = _peak()
    audit = CanaryAudit(optimizer, data_loader=loader, model=model, seed=0)
    with audit:
        # The first step is looked at exactly: the dearest in memory.
        for _ in range(3):
            _step(model, optimizer, next(batches))
    more = max(_peak() - before, 0)
    yield "highest memory, more than without", f"{more / whole:.2%} of the model"
    kept = [item for item in audit.state_dict().values() if isinstance(item, torch.Tensor)]
    held = sum(item.numel() * item.element_size() for item in kept)
    yield "what the audit itself holds", f"{held / whole:.2%} of the model ({held / 2**20:.1f} MiB)"
    plain, audited = [], []
    for _ in range(2):
        plain += [_timed(model, optimizer, next(batches)) for _ in range(STEPS)]
        with audit:
            # As it goes on, what it follows is set up once.
            _step(model, optimizer, next(batches))
            audited += [_timed(model, optimizer, next(batches)) for _ in range(STEPS)]
    ratio = statistics.median(audited) / statistics.median(plain)
    yield "time of a step", f"{statistics.median(plain):.2f} s of processor time"
    yield "median audited step over median plain one", f"{ratio - 1:+.1%}"
    sizes = audit.canaries.member.sum(), audit.canaries.size
    yield "canaries present, in all; steps recorded", f"{sizes[0]}, {sizes[1]}; {audit.steps}"


def _private_gpt2() -> tuple[Any, Any, Any]:
    from opacus import PrivacyEngine
    from peft import LoraConfig, get_peft_model
    from torch.utils.data import DataLoader, TensorDataset
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(use_cache=False))
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(base, lora)
    model.train()
    tokens = torch.randint(0, base.config.vocab_size, (RECORDS, TOKENS))
    trained = [item for item in model.parameters() if item.requires_grad]
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.AdamW(trained, lr=1e-3),
        data_loader=DataLoader(TensorDataset(tokens), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return made[0], made[1], made[2]


def _batches(loader: Any) -> Iterator[torch.Tensor]:
    """Batches of one size, so that steps compare."""
    while True:
        for (tokens,) in loader:
            if len(tokens) >= BATCH:
                yield tokens[:BATCH]


def _step(model: Any, optimizer: Any, tokens: torch.Tensor) -> None:
    optimizer.zero_grad()
    logits = model(input_ids=tokens).logits[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()


def _timed(model: Any, optimizer: Any, tokens: torch.Tensor) -> float:
    started = time.process_time()
    _step(model, optimizer, tokens)
    return time.process_time() - started


def _count(model: Any) -> int:
    return sum(item.numel() for item in model.parameters())


def _forget_peak() -> None:
    """Begin to measure the highest use of memory anew, where Linux allows it."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    for what, measured in rows():
        print(f"  {what:<60} {measured}", flush=True)
