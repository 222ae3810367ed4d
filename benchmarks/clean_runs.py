"""Clean runs of many kinds: how often an exact check, or the verdict, alarms. None may.

python -m benchmarks.clean_runs 300 --output docs/clean-runs.md
python -m benchmarks.clean_runs --trainer keras 60 --leaks 20 --output docs/clean-runs.md

The first writes the page: Opacus, then every trainer in a process of its own. The second writes
the section of one trainer: correct loops, and leaking ones that have to be found and named.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib
import io
import itertools
import logging
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit, Observation, ranks
from askgauss.results import Status, Verdict
from benchmarks.loops import Leak, Run, outcome

RECORDS, FEATURES, CLASSES, BATCH = 128, 10, 4, 16
EXACT = {
    "mixed records",
    "rows per record",
    "training loader",
    "repeated batches",
    "unused batches",
    "weights moved by the release",
    "weights between steps",
    "closure",
    "trained parameters without canaries",
    "record contributions",
    "sum of records",
    "ghost norms",
    "noise coverage",
    "divisor",
    "clip norm schedule",
    "noise multiplier schedule",
    "learning rate schedule",
    "recording",
    "parameters outside the optimizer",
    "divisor by step",
}
TRAINERS = {
    "jax": "JAX",
    "keras": "Keras",
    "lightning": "Lightning",
    "transformers": "Hugging Face",
}
_FOUND = (Verdict.VIOLATION.value, Verdict.INVALID.value)
_UNLIKELY = 0x7F4A7C15
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
# One run in six is of two processes.
RANKS = 2
# A network, how hard it is clipped, and how its loss is put together.
SETTINGS = ((16, 1.0, "mean"), (8, 0.05, "sum"))


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way to train."""

    optimizer: str
    schedule: str
    mode: str
    physical: int | None
    setting: tuple[int, float, str]
    distributed: bool

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """The rows of the table that a run of this kind counts in."""
        return (
            ("optimizer", self.optimizer),
            ("schedule", self.schedule),
            ("per-example gradients", self.mode),
            ("batches", "whole" if self.physical is None else "in virtual steps"),
            ("clip norm", f"{self.setting[1]:g}, losses by their {self.setting[2]}"),
            ("processes", "2, DDP over gloo" if self.distributed else "1"),
        )


def kinds(runs: int) -> list[Kind]:
    """What each of so many runs is: every kind once, then every kind again in another order."""
    every = list(itertools.product(OPTIMIZERS, SCHEDULES, MODES, PARTS, SETTINGS))
    chance = random.Random(0)
    rounds = [chance.sample(every, len(every)) for _ in range(-(-runs // len(every)))]
    mixed = itertools.islice(itertools.chain.from_iterable(rounds), runs)
    return [Kind(*item, distributed=seed % 6 == 5) for seed, item in enumerate(mixed)]


def one_run(kind: Kind, seed: int, rank: int = 0) -> tuple[set[str], Verdict | None]:
    """Train once with the audit attached; the checks that failed, and the verdict."""
    hidden, clip_norm, reduction = kind.setting
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    model: nn.Module = nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)
    )
    if kind.distributed:
        from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

        model = DifferentiallyPrivateDistributedDataParallel(model)
    engine = PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=OPTIMIZERS[kind.optimizer](model.parameters()),
        data_loader=DataLoader(data, batch_size=BATCH * (RANKS if kind.distributed else 1)),
        criterion=nn.CrossEntropyLoss(reduction=reduction),
        noise_multiplier=1.0,
        max_grad_norm=clip_norm,
        loss_reduction=reduction,
        grad_sample_mode=kind.mode,
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    criterion: Any = made[2] if len(made) == 4 else nn.CrossEntropyLoss(reduction=reduction)
    scheduler = SCHEDULES[kind.schedule](optimizer)
    # None of the seeds that are tried on the noise: one that is guessed is a fault.
    torch.manual_seed(_UNLIKELY + 1000 * seed + rank)
    audit = CanaryAudit(
        optimizer,
        data_loader=loader,
        model=model,
        seed=seed,
        observation=Observation(exact_share=0.25),
    )
    # The digests of so many runs are no news.
    with contextlib.redirect_stderr(io.StringIO()), audit:
        for _ in range(3):
            for features, target in _batches(loader, optimizer, kind.physical):
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


def distributed_runs(runs: int, rank: int, meeting: str) -> Iterator[tuple[int, Any]]:
    """One rank of every run of several processes."""
    ranks.PATIENCE = 3600.0
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    for seed, kind in enumerate(kinds(runs)):
        if kind.distributed:
            yield seed, one_run(kind, seed, rank)
    torch.distributed.destroy_process_group()


def all_runs(runs: int) -> Iterator[tuple[int, tuple[set[str], Verdict | None]]]:
    """The seed of every run, and what came of it."""
    for seed, kind in enumerate(kinds(runs)):
        if not kind.distributed:
            yield seed, one_run(kind, seed)
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        command = [sys.executable, "-m", "benchmarks.clean_runs", str(runs), "--join", meeting]
        with subprocess.Popen(command, env=dict(os.environ)) as other:
            try:
                yield from distributed_runs(runs, 0, meeting)
            finally:
                if other.wait(timeout=600):
                    raise SystemExit("The second process failed.")


# --- trainers ---------------------------------------------------------------------------------


def trainer_section(trainer: str, runs: int, leaks: int) -> tuple[str, int]:
    """Count correct and leaking loops of a trainer; its section, and what was wrong."""
    loops = importlib.import_module(f"benchmarks.loops.{trainer}")
    correct: dict[str, Run] = loops.CORRECT
    rows, wrong = [], 0
    chance: collections.Counter[str] = collections.Counter()
    verdicts: collections.Counter[str] = collections.Counter()
    for place, (name, run) in enumerate(correct.items()):
        # As many of each as there are, the first kinds once more where that does not come out even.
        seeds = range(runs // len(correct) + int(place < runs % len(correct)))
        found = [outcome(run(seed)) for seed in seeds]
        flagged = [item for item in found if set(item.failed) & EXACT]
        called = [item for item in found if item.verdict in _FOUND]
        wrong += len({*map(id, flagged), *map(id, called)})
        verdicts.update(item.verdict for item in found)
        chance.update(check for item in found for check in item.failed if check not in EXACT)
        warned = sorted({check for item in found for check in item.warned})
        for item in (*flagged, *called):
            print(f"{trainer} {name}: {item}", flush=True)
        print(f"{trainer} {name}: {len(found)} runs", flush=True)
        rows.append(
            f"| {name} | {len(found)} | {len(flagged)} | {len(called)} | {', '.join(warned)} |"
        )
    told = ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items()))
    by_chance = ", ".join(f"{count} {name}" for name, count in sorted(chance.items()))
    lines = [
        f"## {TRAINERS[trainer]}",
        "",
        f"{sum(verdicts.values())} correct runs of {len(correct)} kinds: {told}. Failures of "
        f"checks by chance: {by_chance or 'none'}.",
        "",
        "| correct loop | runs | failed an exact check | VIOLATION or INVALID | warned |",
        "|---|---|---|---|---|",
        *rows,
    ]
    if leaks:
        lines += [
            "",
            "| leak | runs | VIOLATION or INVALID | named first | by |",
            "|---|---|---|---|---|",
        ]
        for name, leak in loops.LEAKS.items():
            row, missed = leak_row(name, leak, leaks)
            lines.append(row)
            wrong += missed
            print(row, flush=True)
    return "\n".join(lines) + "\n", wrong


def leak_row(name: str, leak: Leak, runs: int) -> tuple[str, int]:
    """How often a leak is found and rightly named; and whether that is too rarely."""
    found = [outcome(leak.run(seed)) for seed in range(runs)]
    called = sum(item.verdict in _FOUND for item in found)
    named = sum(item.verdict in _FOUND and item.lead in leak.checks for item in found)
    leads = collections.Counter(item.lead or "nothing" for item in found)
    by = ", ".join(f"{check} {count}" for check, count in leads.most_common())
    return f"| {name} | {runs} | {called} | {named} | {by} |", int(20 * named < 19 * runs)


def with_section(page: str, section: str) -> str:
    """The page with one section new, where it was or at the end."""
    parts = ("\n" + page).split("\n## ")
    title = section.split("\n", 1)[0].removeprefix("## ")
    own = section.removeprefix("## ").rstrip("\n") + "\n"
    at = next((i for i, part in enumerate(parts) if part.split("\n", 1)[0] == title), None)
    if at is None:
        parts.append(own)
    else:
        parts[at] = own
    parts = [part.rstrip("\n") + "\n" for part in parts]
    return "\n## ".join(parts).removeprefix("\n")


def in_processes(given: argparse.Namespace) -> int:
    """Every trainer in a process of its own: Keras takes its backend once a process."""
    wrong = 0
    for trainer in TRAINERS:
        command = [sys.executable, "-m", "benchmarks.clean_runs", str(given.each)]
        command += ["--trainer", trainer, "--leaks", str(given.leaks)]
        command += ["--output", str(given.output)] if given.output else []
        wrong += subprocess.run(command, check=False).returncode
    return wrong


def main() -> int:
    """Run so many, and say what alarmed; the number of false alarms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="?", default=300)
    parser.add_argument("--output", type=Path, help="also write a page")
    parser.add_argument("--join", help="be the second process of the runs that have two")
    parser.add_argument("--trainer", choices=TRAINERS, help="only the loops of this trainer")
    parser.add_argument("--leaks", type=int, default=20, help="runs of every leak of a trainer")
    parser.add_argument("--each", type=int, default=60, help="correct runs of every trainer")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.trainer:
        logging.disable(logging.WARNING)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            # JAX compiles what it has compiled before once.
            os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
            os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
            section, wrong = trainer_section(given.trainer, given.runs, given.leaks)
        print(section)
        if given.output is not None:
            before = given.output.read_text(encoding="utf-8")
            given.output.write_text(with_section(before, section), encoding="utf-8")
        return wrong
    if given.join:
        for _ in distributed_runs(given.runs, 1, given.join):
            pass
        return 0
    every = kinds(given.runs)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    alarms: collections.Counter[tuple[str, str]] = collections.Counter()
    checks: collections.Counter[str] = collections.Counter()
    verdicts: collections.Counter[str] = collections.Counter()
    for done, (seed, (failed, verdict)) in enumerate(all_runs(given.runs), start=1):
        kind = every[seed]
        counts.update(kind.rows)
        checks.update(failed)
        verdicts["none" if verdict is None else verdict.value] += 1
        if failed & EXACT:
            alarms.update(kind.rows)
        for name in failed & EXACT:
            print(f"run {seed} {kind}: {name}", flush=True)
        if done % 25 == 0:
            print(f"{done} runs: {dict(verdicts)}, {dict(checks)}", flush=True)
    page = _page(given.runs, counts, alarms, checks, verdicts)
    print(page)
    if given.output is not None:
        given.output.write_text(page, encoding="utf-8")
    return sum(count for name, count in checks.items() if name in EXACT) + in_processes(given)


def _page(
    runs: int,
    counts: collections.Counter[tuple[str, str]],
    alarms: collections.Counter[tuple[str, str]],
    checks: collections.Counter[str],
    verdicts: collections.Counter[str],
) -> str:
    false = sum(count for name, count in checks.items() if name in EXACT)
    different = len(set(kinds(runs)))
    told = ", ".join(f"{count} {name}" for name, count in sorted(verdicts.items()))
    others = [f"{count} {name}" for name, count in sorted(checks.items()) if name not in EXACT]
    lines = [
        "# Clean runs",
        "",
        "Correct runs of Opacus, JAX, Keras, Lightning and Hugging Face, audited with a quarter of",
        "the steps looked at, and loops of the trainers that leak. The exact checks involve no",
        "chance, so that none of them may ever alarm on a correct run:",
        f"{', '.join(sorted(EXACT))}.",
        "Written by `make clean-runs`.",
        "",
        "## Opacus",
        "",
        "Runs of 24 steps each.",
        "",
        f"- {runs} runs of {different} kinds: **{false}** false alarms of exact checks.",
        f"- Verdicts: {told}.",
        "- Warnings and failures of checks by chance, or of what is not built to pass: "
        f"{', '.join(others) or 'none'}.",
        "",
        "| what | setting | runs | with an alarm of an exact check |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {what} | {which} | {counts[what, which]} | {alarms[what, which]} |"
        for what, which in sorted(counts)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(bool(main()))
