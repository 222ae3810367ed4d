"""A run whose model and audit are saved one after the other, and that may die in between."""

from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from pathlib import Path

import torch

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import CanaryAudit

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integrations.runs import SIZES, make_run

STEPS, EVERY, RATE, REFUSED = 12, 3, 0.25, 7


def main(folder: Path, order: str, kill_at: int) -> None:
    """Train to the end, or to a SIGKILL between the two saves after step ``kill_at``."""
    warnings.simplefilter("ignore")
    run = make_run()
    data = run.loader.dataset.tensors
    model, recorded = folder / "model.pt", folder / "audit.npz"
    done = 0
    if model.exists():
        state = torch.load(model, weights_only=True)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.engine.accountant.load_state_dict(state["accountant"])
        torch.set_rng_state(state["random"])
        done = state["step"]
    canaries = ag.DiracCanaries(present=40, absent=60, tensors=SIZES, seed=1)
    audit = CanaryAudit(
        run.optimizer, canaries=canaries, sampling_rate=RATE, checkpoint=recorded, model=run.model
    )

    def save_model(step: int) -> None:
        state = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "accountant": dict(run.engine.accountant.state_dict()),
            "random": torch.get_rng_state(),
            "step": step,
        }
        torch.save(state, folder / "model.part")
        (folder / "model.part").replace(model)

    with audit:
        for step in range(done, STEPS):
            mask = torch.rand(len(data[0])) < RATE
            run.optimizer.zero_grad()
            run.criterion(run.model(data[0][mask]), data[1][mask]).backward()
            run.optimizer.step()
            if (step + 1) % EVERY:
                continue
            first, second = functools.partial(save_model, step + 1), audit.save
            if order == "audit first":
                first, second = second, first
            first()
            if step + 1 == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            second()
    audit.transcript().save(folder / "transcript.npz")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except RecordingError as error:
        print(error)
        sys.exit(REFUSED)
