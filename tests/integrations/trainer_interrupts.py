"""Interrupts at lines of the package inside trainers: is a later training still inserted into?

A sample, or with stride 1 the complete sweep::

    python -m tests.integrations.trainer_interrupts lightning 20
    python -m tests.integrations.trainer_interrupts transformers 20

Trainers attach and leave through the same audit as `tests.integrations.interrupts`, so that what is
asked here is only whether they let go: after the interrupt, a step with the same optimizer must
neither insert nor observe.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.integrations.interrupts import PHASES, Interrupt, counted, forget_backward


def phased(callback: Any, interrupt: Interrupt, enter: str, leave: str) -> None:
    """Tell the interrupt when the callback attaches and leaves."""
    for name, before, after in ((enter, "enter", "step"), (leave, "leave", "")):
        original = getattr(callback, name)

        def call(
            *arguments: Any,
            _original: Callable[..., Any] = original,
            _before: str = before,
            _after: str = after,
            **options: Any,
        ) -> Any:
            interrupt.now = _before
            try:
                return _original(*arguments, **options)
            finally:
                interrupt.now = _after

        setattr(callback, name, call)


def lightning(folder: str, interrupt: Interrupt) -> Callable[[], None]:
    """A Lightning training of two steps, interrupted; another step of its optimizer."""
    import lightning.pytorch as pl

    from askgauss.integrations.lightning import AuditCallback
    from tests.integrations.lightning_runs import QUIET, Private, loader

    model, data = Private(), loader()
    callback = AuditCallback(present=20, absent=40, seed=0, report=False, folder=folder)
    phased(callback, interrupt, "on_train_start", "on_train_end")
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=2, callbacks=[callback], default_root_dir=folder,
        logger=False, enable_checkpointing=False, **QUIET,
    )  # fmt: skip
    with interrupt, contextlib.suppress(KeyboardInterrupt, SystemExit):
        trainer.fit(model, data)

    def step() -> None:
        forget_backward(model)
        model.train()
        (features,) = next(iter(data))
        trainer.optimizers[0].zero_grad()
        model.loss(model(features)).backward()
        trainer.optimizers[0].step()

    return step


def transformers(folder: str, interrupt: Interrupt) -> Callable[[], None]:
    """The same of a Hugging Face trainer, which trains again without the callback."""
    from askgauss.integrations.transformers import AuditCallback
    from tests.integrations.transformers_runs import (
        Lines,
        PrivateTrainer,
        arguments,
        frozen_below,
        small_gpt2,
    )

    callback = AuditCallback(present=20, absent=40, seed=0, report=False)
    phased(callback, interrupt, "on_train_begin", "on_train_end")
    trainer = PrivateTrainer(
        model=frozen_below(small_gpt2()), args=arguments(folder, steps=2), train_dataset=Lines(64)
    )
    trainer.add_callback(callback)
    with interrupt, contextlib.suppress(KeyboardInterrupt):
        trainer.train()

    def step() -> None:
        forget_backward(trainer.model)
        trainer.remove_callback(callback)
        trainer.optimizer.zero_grad()
        trainer.train()

    return step


TRAINERS = {"lightning": lightning, "transformers": transformers}


def interrupted(trainer: str, phase: str, line: int) -> tuple[str, list[str]]:
    """Interrupt one line; where that was (empty if never), and what a later step still does."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        torch.manual_seed(0)
        interrupt = Interrupt(line, phase, again=False)
        step = TRAINERS[trainer](folder, interrupt)
        with counted() as calls:
            if interrupt.struck:
                step()
        return interrupt.struck, calls[:1]


def sweep(
    trainer: str, phase: str, stride: int, first: int = 1
) -> tuple[int, dict[str, list[str]]]:
    """Interrupt every ``stride``-th line of a phase; how many, and those that left something."""
    count, failed, line = 0, {}, 1
    while True:
        struck, left = interrupted(trainer, phase, line)
        if not struck:
            return count, failed
        count += 1
        if left:
            failed[f"{struck} (line {line})"] = left
        line += stride


def main() -> None:
    """Sweep one trainer."""
    warnings.simplefilter("ignore")
    trainer, stride = sys.argv[1], int(sys.argv[2])
    for phase in PHASES:
        count, failed = sweep(trainer, phase, stride)
        print(f"{trainer} {phase:6} {count:5} lines, {len(failed)} leave something {failed}")


if __name__ == "__main__":
    main()
