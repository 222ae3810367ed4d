"""What every release of Opacus is tried with: sound runs, and the same with half of their noise.

``python -m tests.integrations.opacus_trials`` prints one line of JSON a trial for the release that
is imported; names of trials choose some of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import opacus
import torch
from opacus import schedulers
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss import accounting
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus import opacus_versions as versions
from askgauss.results import Status

FEATURES, HIDDEN, CLASSES, RECORDS, BATCH = 20, 100, 4, 512, 64
WIDE = 500
SIGMA, DELTA, EPOCHS = 1.0, 1e-5, 16
LEAST = 0.9
PRESENT = 250
KINDS = 32


@dataclass(frozen=True)
class Trial:
    """One way to train.

    Attributes:
        name: In words.
        mode: How Opacus computes gradients of records.
        clipping: How it clips.
        physical: Largest batch in memory, where logical batches are split.
        schedule: What changes from epoch to epoch: "noise", "clip", or nothing.
        resumed: Whether the run stops half way and goes on from a checkpoint.
    """

    name: str
    mode: str = "hooks"
    clipping: str = "flat"
    physical: int | None = None
    schedule: str = ""
    resumed: bool = False

    @property
    def offered(self) -> bool:
        """Whether this release of Opacus has it."""
        if self.clipping == "adaptive" and self.mode == "ghost":
            return versions.AdaptiveGhostEngine is not versions.MissingClass
        if self.clipping == "adaptive":
            return versions.AdaClipDPOptimizer is not versions.MissingClass
        if self.mode == "ghost":
            # The first release left both passes of the loss to the loop.
            return versions.DPLossFastGradientClipping is not versions.MissingClass
        return True


TRIALS = (
    Trial("per-sample gradients"),
    Trial("virtual steps", physical=20),
    Trial("stopped and resumed", resumed=True),
    Trial("ghost clipping", mode="ghost"),
    Trial("ghost clipping, virtual steps", mode="ghost", physical=20),
    Trial("clipping by layer", clipping="per_layer"),
    Trial("noise schedule", schedule="noise"),
    Trial("clip schedule", schedule="clip"),
    Trial("adaptive clipping", clipping="adaptive"),
    Trial("adaptive ghost clipping", clipping="adaptive", mode="ghost"),
)


@dataclass(frozen=True)
class Outcome:
    """How one run was judged."""

    verdict: str
    share: float
    failed: tuple[str, ...]


@dataclass
class Training:
    """A model made private, and its loop."""

    model: nn.Module
    optimizer: Any
    criterion: Any
    loader: DataLoader
    engine: Any
    scheduled: tuple[Any, ...] = ()

    def train(self, epochs: int, physical: int | None = None) -> None:
        for _ in range(epochs):
            with self._batches(physical) as loader:
                for features, target in loader:
                    self.optimizer.zero_grad()
                    self.criterion(self.model(features), target).backward()
                    self.optimizer.step()
            for scheduler in self.scheduled:
                scheduler.step()

    def _batches(self, physical: int | None) -> Any:
        if physical is None:
            return contextlib.nullcontext(self.loader)
        return BatchMemoryManager(
            data_loader=self.loader, max_physical_batch_size=physical, optimizer=self.optimizer
        )


def make(trial: Trial, seed: int = 0) -> Training:
    """The run of a trial, everything from one seed."""
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    by_layer = trial.clipping == "per_layer"
    hidden = WIDE if by_layer else HIDDEN
    model = nn.Sequential(nn.Linear(FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))
    options: dict[str, Any] = {"max_grad_norm": 1.0}
    if by_layer:
        sizes = [item.numel() for item in model.parameters()]
        norms = [math.sqrt(size / sum(sizes)) for size in sizes]
        options = {"max_grad_norm": norms, "clipping": "per_layer"}
    adaptive = {
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
    }
    if trial.mode == "ghost":
        options |= adaptive if trial.clipping == "adaptive" else {}
        options |= {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}
    kind = opacus.PrivacyEngine
    if trial.clipping == "adaptive" and trial.mode == "ghost":
        kind = versions.AdaptiveGhostEngine
    # The plain accountant, which every release has.
    engine = kind(accountant="rdp")
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=BATCH),
        noise_multiplier=SIGMA,
        **options,
    )
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    model, optimizer, loader = made[0], made[1], made[-1]
    if trial.clipping == "adaptive" and trial.mode != "ghost":
        # By hand: early releases do not hand these options on.
        optimizer = versions.AdaClipDPOptimizer(
            optimizer.original_optimizer,
            noise_multiplier=SIGMA,
            expected_batch_size=optimizer.expected_batch_size,
            max_grad_norm=1.0,
            unclipped_num_std=BATCH / 20,
            **adaptive,
        )
        hook = engine.accountant.get_optimizer_hook_fn(sample_rate=BATCH / RECORDS)
        optimizer.attach_step_hook(hook)
    scheduled: tuple[Any, ...] = ()
    if trial.schedule == "noise":
        scheduled = (schedulers.ExponentialNoise(optimizer, gamma=1.05),)
    if trial.schedule == "clip":
        scheduled = (schedulers.ExponentialGradClip(optimizer, gamma=0.95),)
    return Training(model, optimizer, criterion, loader, engine, scheduled)


def halve_noise(optimizer: Any) -> None:
    """The fault: half of the noise that everybody believes in."""
    own = optimizer.add_noise
    names = ("noise_multiplier", "_adjusted_noise_multiplier")

    def add_noise() -> None:
        kept = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
        for name, value in kept.items():
            setattr(optimizer, name, value / 2.0)
        try:
            own()
        finally:
            for name, value in kept.items():
                setattr(optimizer, name, value)

    optimizer.add_noise = add_noise


def audited(trial: Trial, *, half: bool) -> ag.AuditResult:
    """Train, audited, and hold the run to what its accountant counted."""
    run = make(trial)
    if half:
        halve_noise(run.optimizer)
    options: dict[str, Any] = {"data_loader": run.loader, "model": run.model}
    absent = 500 if trial.clipping == "per_layer" else 1500
    many = {"present": PRESENT, "absent": absent, "seed": 3}
    if trial.resumed:
        with tempfile.TemporaryDirectory() as folder:
            audit = _resumed(run, Path(folder), half, options, many)
    else:
        with CanaryAudit(run.optimizer, **options, **many) as audit:
            run.train(EPOCHS, trial.physical)
    epsilon = accounting.history_epsilon(merged(audit.transcript().facts.accounted), DELTA)
    return audit.result(claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA))


def merged(history: Any) -> list[tuple[float, float, int]]:
    """Many kinds of steps made few, each with at most a thousandth less noise: quick to compose."""
    if len(history) <= KINDS:
        return list(history)
    kinds: dict[tuple[float, float], int] = {}
    for noise, rate, steps in history:
        key = (math.floor(1000.0 * noise) / 1000.0, rate)
        kinds[key] = kinds.get(key, 0) + steps
    return [(*kind, steps) for kind, steps in kinds.items()]


def _resumed(run: Training, folder: Path, half: bool, options: Any, many: Any) -> CanaryAudit:
    """Half of the run, then everything made anew, and the other half."""
    with CanaryAudit(run.optimizer, **options, **many) as audit:
        run.train(EPOCHS // 2)
    audit.save(folder / "audit.npz")
    again = make(Trial("again"), seed=1)
    if half:
        halve_noise(again.optimizer)
    again.model.load_state_dict(run.model.state_dict())
    again.optimizer.load_state_dict(run.optimizer.state_dict())
    again.engine.accountant.load_state_dict(run.engine.accountant.state_dict())
    audit = CanaryAudit(
        again.optimizer,
        data_loader=again.loader,
        model=again.model,
        present=many["present"],
        absent=many["absent"],
        checkpoint=folder / "audit.npz",
    )
    with audit:
        again.train(EPOCHS - EPOCHS // 2)
    assert audit.steps == EPOCHS * RECORDS // BATCH
    return audit


def outcome(trial: Trial, *, half: bool) -> Outcome:
    result = audited(trial, half=half)
    failed = tuple(item.check for item in result.findings if item.status is Status.FAIL)
    share = result.epsilon_lower / result.claim.epsilon
    return Outcome(result.verdict.name, share, failed)


def main() -> None:
    """Every trial of this release, a line each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for row in rows(sys.argv[1:]):
        print(json.dumps(row), flush=True)


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    """All trials, or those that are named."""
    for trial in TRIALS:
        if names and trial.name not in names:
            continue
        if not trial.offered:
            yield {"trial": trial.name, "offered": False}
            continue
        found = {kind: asdict(outcome(trial, half=kind == "half")) for kind in ("sound", "half")}
        yield {"trial": trial.name, "offered": True, "opacus": opacus.__version__, **found}


if __name__ == "__main__":
    sys.exit(main())
