"""Interrupts at chosen lines of the package: does an audit let go of a training whatever happens?

The complete sweep, by hand::

    python -m tests.integrations.interrupts

Each line that entering, a first step or leaving runs is interrupted, for each kind of run: where it
runs first, and in entering and leaving without files wherever it runs again.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn
from torch.utils.data import TensorDataset

import askgauss as ag
from askgauss.files import lock as locks
from askgauss.integrations import opacus
from askgauss.integrations.opacus import batch_stream, canary_audit, exact_steps, ledger
from askgauss.integrations.opacus.opacus_versions import AdaptiveGhostTensor
from askgauss.integrations.opacus.ranks import CanaryCoordinates
from askgauss.recording.recorder import Recorder
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, Run, make_run

PACKAGE = str(Path(ag.__file__).parent)
PHASES = ("enter", "step", "leave")
_TRACES: list[Any] = []


class Interrupt:
    """Raises KeyboardInterrupt as the n-th line of the package begins in one phase.

    Args:
        line: Which line, from 1.
        phase: Lines of other phases are not counted.
        again: Whether a line that runs again counts again.
    """

    def __init__(self, line: int, phase: str, *, again: bool) -> None:
        self.line, self.phase, self.again = line, phase, again
        self.now = ""
        self.count = 0
        self.struck = ""
        self._seen: set[tuple[str, int]] = set()
        # Python 3.11 may call it once more after it raised.
        self._traced = self._trace
        _TRACES.append(self._traced)

    def __enter__(self) -> Interrupt:
        sys.settrace(self._traced)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        place = frame.f_code.co_filename, frame.f_lineno
        known = not self.again and place in self._seen
        if event == "line" and self.now == self.phase and not known:
            self._seen.add(place)
            self.count += 1
            if self.count == self.line:
                self.struck = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._traced


def _audit_of(kind: str, run: Run, folder: Path, canaries: Any) -> opacus.CanaryAudit:
    if kind == "examples":
        return opacus.CanaryAudit(
            run.optimizer,
            canaries=canaries,
            model=run.model,
            observation=opacus.Observation(criterion=nn.CrossEntropyLoss()),
            data_loader=run.loader,
        )
    options: dict[str, Any] = {"data_loader": run.loader, "canaries": 40, "seed": 0}
    if kind == "files":
        options |= {
            "checkpoint": folder / "audit.npz",
            "observation": opacus.Observation(store=folder / "steps"),
            "monitor": ag.Monitor(folder=folder),
        }
    return opacus.CanaryAudit(run.optimizer, model=run.model, **options)


def run_of(kind: str) -> tuple[Run, Any]:
    """A run, and the examples it trains on where they are its canaries."""
    if kind != "examples":
        return make_run(mode="ghost" if kind == "ghost" else "hooks"), None
    canaries = ag.ExampleCanaries(
        torch.randn(12, FEATURES).numpy(), (torch.arange(12) % CLASSES).numpy(), seed=0
    )
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    return make_run(data=canaries.dataset(data)), canaries


def state_of(run: Run) -> dict[str, Any]:
    """What an audit could leave behind in a training."""
    inner, sampler = run.optimizer.original_optimizer, run.loader.batch_sampler
    return {
        "optimizer": {k: v for k, v in vars(run.optimizer).items() if callable(v)},
        "hooks": {
            name: dict(value) for name, value in vars(inner).items() if name.endswith("_hooks")
        },
        "inner": sorted(vars(inner)),
        "sampler": type(sampler),
        "model": {
            f"{number}.{name}": dict(value)
            for number, module in enumerate(run.model.modules())
            for name, value in vars(module).items()
            if name.endswith("_hooks") and isinstance(value, dict)
        },
        "model methods": sorted(vars(run.model)),
        "model hooks on": getattr(run.model, "hooks_enabled", None),
        "accountant": sorted(vars(run.engine.accountant)),
        "listener": getattr(run.loader.dataset, "on_batch", None),
        "attached": run.optimizer in canary_audit._attached,
        "ghost": DPTensorFastGradientClipping.backward,
        "ghost listeners": len(exact_steps._BACKWARD.listeners),
        "adaptive": getattr(AdaptiveGhostTensor, "_update_clip_and_noise", None),
        "adaptive listeners": len(ledger._UPDATES.listeners),
        "stream listeners": len(batch_stream._listeners),
        "stream patches": len(batch_stream._patches),
        "backward": torch.autograd.backward,
        "ghost optimizer": DPOptimizerFastGradientClipping.accumulate,
    }


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """What an audit that was left still does to a training."""
    calls: list[str] = []
    kept = {
        (owner, name): getattr(owner, name)
        for owner, name in (
            (CanaryCoordinates, "insert"),
            (CanaryCoordinates, "fill_rows"),
            (Recorder, "sample"),
            (Recorder, "observe"),
        )
    }

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*arguments, **options)

        return call

    for (owner, name), original in kept.items():
        setattr(owner, name, noted(name, original))
    try:
        yield calls
    finally:
        for (owner, name), original in kept.items():
            setattr(owner, name, original)


def interrupted(kind: str, run: Run, canaries: Any, phase: str, line: int) -> tuple[str, list[str]]:
    """Interrupt one line; where that was (empty if never), and what the audit left behind."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        audit = _audit_of(kind, run, Path(folder), canaries)
        before = state_of(run)
        again = phase != "step" and kind != "files"
        with Interrupt(line, phase, again=again) as interrupt:
            try:
                interrupt.now = "enter"
                with audit:
                    interrupt.now = "step"
                    features, target = next(iter(run.loader))
                    run.optimizer.zero_grad()
                    run.criterion(run.model(features), target).backward()
                    run.optimizer.step()
                    interrupt.now = "leave"
            except KeyboardInterrupt:
                pass
        after = state_of(run)
        left = [name for name in before if before[name] != after[name]]
        forget_backward(run.model)
        with counted() as calls:
            run.train()
        held = any(lock.stream is not None for lock in locks._held.values())
        return interrupt.struck, left + calls[:1] + ["files"] * held


def forget_backward(model: nn.Module) -> None:
    """What Opacus itself keeps of a backward pass that was cut short."""
    for parameter in model.parameters():
        parameter._forward_counter = 0
    for module in model.modules():
        if hasattr(module, "activations"):
            module.activations = []


def sweep(kind: str, phase: str, stride: int = 1) -> tuple[int, dict[str, list[str]]]:
    """Interrupt every ``stride``-th line of a phase; how many, and those that left something."""
    run, canaries = run_of(kind)
    count, failed = 0, {}
    line = 1
    while True:
        struck, left = interrupted(kind, run, canaries, phase, line)
        if not struck:
            return count, failed
        count += 1
        if left:
            failed[f"{struck} (line {line})"] = left
            # What was left behind is not to be found again.
            canary_audit._attached.clear()
            run, canaries = run_of(kind)
        line += stride


KINDS = ("rows", "ghost", "examples", "files")


def main() -> None:
    """The complete sweep."""
    warnings.simplefilter("ignore")
    total = bad = 0
    for kind in KINDS:
        for phase in PHASES:
            count, failed = sweep(kind, phase, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
            total, bad = total + count, bad + len(failed)
            print(f"{kind:9} {phase:6} {count:5} lines, {len(failed)} leave something", flush=True)
            for place, left in failed.items():
                print(f"    {place}: {', '.join(left)}", flush=True)
    print(f"{total - bad} of {total} interrupts leave nothing")


if __name__ == "__main__":
    main()
