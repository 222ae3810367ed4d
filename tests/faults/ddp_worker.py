"""One rank of the distributed runs that test_opacus_faults.py looks at."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))
import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from tests.integrations.runs import CLASSES, FEATURES, HIDDEN, SIZES, make_run


class EveryRank(DistributedDPOptimizer):
    """All ranks add the whole noise, where the first alone should."""

    share = 1.0

    def add_noise(self) -> None:
        noise, self.noise_multiplier = self.noise_multiplier, self.share * self.noise_multiplier
        DPOptimizer.add_noise(self)
        self.noise_multiplier = noise


class Divided(EveryRank):
    """All ranks add the noise divided by their number, where its root is right."""

    share = 0.5


KINDS = {"correct": DistributedDPOptimizer, "every-rank": EveryRank, "divided": Divided}


def main(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=world
    )
    for name, kind in KINDS.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
        wrapped = DifferentiallyPrivateDistributedDataParallel(model)
        run = make_run(model=wrapped, batch_size=32, noise_multiplier=1.0)
        run.optimizer.__class__ = kind
        torch.manual_seed(1000 + rank)
        canaries = ag.DiracCanaries(present=60, absent=120, tensors=SIZES, seed=5)
        with CanaryAudit(run.optimizer, canaries=canaries, data_loader=run.loader) as audit:
            run.train(20)
        if rank == 0:
            audit.transcript().save(folder / f"{name}.npz")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
