"""Clean Opacus runs of many kinds: how often an exact check, or the verdict, alarms. None may.

python -m benchmarks.clean_runs 300
"""

from __future__ import annotations

import collections
import io
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from askgauss.results import Status, Verdict

RECORDS, FEATURES, CLASSES, BATCH = 128, 10, 4, 16
EXACT = {
    "weights moved by the release",
    "weights between steps",
    "closure",
    "trained parameters without canaries",
    "record contributions",
    "sum of records",
    "ghost norms",
    "noise coverage",
    "divisor",
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "constant": lambda _: None,
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3),
}
MODES = ("hooks", "functorch", "ghost")
PARTS = (None, 5)
# A network, how hard it is clipped, and how its loss is put together.
SETTINGS = ((16, 1.0, "mean"), (8, 0.05, "sum"))


def one_run(
    kind: tuple[str, str, str, int | None, tuple[int, float, str]], seed: int, distributed: bool
) -> tuple[set[str], Verdict | None]:
    """Train once with the audit attached; the checks that failed, and the verdict."""
    optimizer_name, schedule, mode, physical, (hidden, clip_norm, reduction) = kind
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)
    )
    if distributed:
        from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

        model = DifferentiallyPrivateDistributedDataParallel(model)
    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=OPTIMIZERS[optimizer_name](model.parameters()),
        data_loader=DataLoader(data, batch_size=BATCH),
        criterion=nn.CrossEntropyLoss(reduction=reduction),
        noise_multiplier=1.0,
        max_grad_norm=clip_norm,
        loss_reduction=reduction,
        grad_sample_mode=mode,
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    criterion: Any = made[2] if len(made) == 4 else nn.CrossEntropyLoss(reduction=reduction)
    scheduler = SCHEDULES[schedule](optimizer)
    with CanaryAudit(optimizer, data_loader=loader, model=model, seed=seed, witness=0.25) as audit:
        for _ in range(3):
            for features, target in _batches(loader, optimizer, physical):
                optimizer.zero_grad()
                criterion(model(features), target).backward()
                optimizer.step()
            if scheduler is not None:
                scheduler.step()
    claim = ag.PrivacyClaim(epsilon=1.001 * engine.get_epsilon(1e-5), delta=1e-5)
    result = audit.result(claim=claim)
    failed = {item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)}
    return failed, result.verdict


def _batches(loader: Any, optimizer: Any, physical: int | None) -> Iterator[Any]:
    if physical is None:
        yield from loader
        return
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as parts:
        yield from parts


def main(runs: int) -> int:
    """Run so many, and print what alarmed; the number of false alarms."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kinds = list(itertools.product(OPTIMIZERS, SCHEDULES, MODES, PARTS, SETTINGS))
    sys.stderr = io.StringIO()  # the digests of so many runs are no news
    alarms: collections.Counter[str] = collections.Counter()
    verdicts: collections.Counter[str] = collections.Counter()
    one_process = ("file://" + tempfile.mkdtemp() + "/meeting", 0, 1)
    torch.distributed.init_process_group(
        "gloo", init_method=one_process[0], rank=one_process[1], world_size=one_process[2]
    )
    for seed in range(runs):
        kind = kinds[(seed * 37) % len(kinds)]
        failed, verdict = one_run(kind, seed, distributed=seed % 6 == 5)
        alarms.update(failed)
        verdicts[str(None if verdict is None else verdict.value)] += 1
        for name in failed & EXACT:
            print(f"run {seed} {kind}: {name}", flush=True)
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1} runs: {dict(verdicts)}, {dict(alarms)}", flush=True)
    torch.distributed.destroy_process_group()
    false = sum(count for name, count in alarms.items() if name in EXACT)
    print(
        f"{runs} clean runs of {min(runs, len(kinds))} kinds: {false} false alarms of exact checks"
    )
    print("verdicts:", dict(verdicts), "  warnings and failures of any check:", dict(alarms))
    return false


if __name__ == "__main__":
    raise SystemExit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)))
