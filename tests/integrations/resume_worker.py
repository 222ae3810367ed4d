"""A deterministic run that checkpoints every few steps and may kill itself."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import torch

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integrations.runs import SIZES, make_run

STEPS, EVERY, RATE = 14, 3, 0.25


def main(folder: Path, kill_at: int, where: str) -> None:
    """Train to the end, or to a SIGKILL in step ``kill_at``.

    ``where`` is "mid" (after the noise) or "save" (half-way through the checkpoint of that step).
    """
    warnings.simplefilter("ignore")
    run = make_run()
    data = run.loader.dataset.tensors
    canaries = ag.DiracCanaries(present=40, absent=60, tensors=SIZES, seed=1)
    audit = CanaryAudit(run.optimizer, canaries=canaries, sampling_rate=RATE)
    done, checkpoint = 0, folder / "run.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.engine.accountant.load_state_dict(state["accountant"])
        audit.load_state_dict(state["audit"])
        torch.set_rng_state(state["random"])
        done = state["step"]

    def die_if(here: str) -> None:
        if (step, here) == (kill_at, where):
            os.kill(os.getpid(), signal.SIGKILL)

    hook = run.optimizer.step_hook
    run.optimizer.attach_step_hook(lambda optimizer: (hook(optimizer), die_if("mid")))
    with audit:
        for step in range(done, STEPS):
            mask = torch.rand(len(data[0])) < RATE
            run.optimizer.zero_grad()
            run.criterion(run.model(data[0][mask]), data[1][mask]).backward()
            run.optimizer.step()
            if (step + 1) % EVERY == 0:
                state = {
                    "model": run.model.state_dict(),
                    "optimizer": run.optimizer.state_dict(),
                    "accountant": dict(run.engine.accountant.state_dict()),
                    "audit": audit.state_dict(),
                    "random": torch.get_rng_state(),
                    "step": step + 1,
                }
                torch.save(state, folder / "run.part")
                die_if("save")
                (folder / "run.part").replace(checkpoint)
    audit.transcript().save(folder / "transcript.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
