"""A second copy of a run: goes on from a checkpoint for an epoch, if it is let."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import CanaryAudit

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integrations.runs import make_run


def main(folder: Path, kind: str, name: str) -> int:
    """How many steps there are in the end."""
    warnings.simplefilter("ignore")
    run, path = make_run(), folder / name
    state = torch.load(folder / "model.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.engine.accountant.load_state_dict(state["accountant"])
    own = path if kind == "checkpoint" else None
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=own)
    if kind == "load":
        audit.load(path)
    with audit:
        run.train()
    audit.save(path)
    return audit.steps


if __name__ == "__main__":
    try:
        print(main(Path(sys.argv[1]), *sys.argv[2:]))
    except RecordingError as error:
        print(error)
