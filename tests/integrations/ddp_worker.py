"""One rank of the distributed runs that test_opacus_ddp.py looks at."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from torch import nn

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import CanaryAudit

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integrations.runs import CLASSES, FEATURES, HIDDEN, SIZES, Run, make_run


class EveryRankAddsNoise:
    """The fault: the same noise multiplier on each rank instead of on the first alone."""

    def __init__(self, optimizer: DPOptimizer) -> None:
        optimizer.add_noise = lambda: DPOptimizer.add_noise(optimizer)


def sum_without_clipping(optimizer: DPOptimizer) -> None:
    """The fault: raw gradients in the sum of this rank."""

    def add_all() -> None:
        for item in optimizer.params:
            total = optimizer._get_flat_grad_sample(item).sum(dim=0)
            item.summed_grad = total if item.summed_grad is None else item.summed_grad + total

    optimizer.clip_and_accumulate = add_all


def sum_over_ranks(optimizer: DPOptimizer) -> None:
    """The fault: the mean over ranks is forgotten."""

    def reduce() -> None:
        for item in optimizer.params:
            torch.distributed.all_reduce(item.grad)

    optimizer.reduce_gradients = reduce


def distributed_run(rank: int, **options: object) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    wrapped = DifferentiallyPrivateDistributedDataParallel(model)
    # A quarter of 64 records a rank: an empty batch, which would be skipped, has odds of 1e-8.
    run = make_run(model=wrapped, batch_size=32, **options)
    torch.manual_seed(1000 + rank)
    return run


def canaries(present: int = 60) -> ag.DiracCanaries:
    return ag.DiracCanaries(present=present, absent=120, tensors=SIZES, seed=5)


def main(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=world
    )
    facts: dict[str, object] = {}

    def audited(name: str, epochs: int, inject: str = "sum", fault: bool = False, **options):
        run = distributed_run(rank, **options)
        if fault:
            EveryRankAddsNoise(run.optimizer)
        audit = CanaryAudit(
            run.optimizer, canaries=canaries(), data_loader=run.loader, inject=inject
        )
        with audit:
            run.train(epochs)
        audit.transcript().save(folder / f"{name}-{rank}.npz")

    audited("exact", 3, noise_multiplier=0.0)
    audited("exact-rows", 3, inject="sample", noise_multiplier=0.0)
    audited("exact-sum", 3, noise_multiplier=0.0, loss_reduction="sum")
    audited("exact-ghost", 3, noise_multiplier=0.0, mode="ghost")
    audited("noisy", 25, noise_multiplier=2.0)
    audited("every-rank", 25, noise_multiplier=2.0, fault=True)

    for name, fault, ranks in (
        ("unclipped", sum_without_clipping, (1,)),
        ("summed", sum_over_ranks, (0, 1)),
    ):
        run = distributed_run(rank, max_grad_norm=0.05)
        if rank in ranks:
            fault(run.optimizer)
        with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, inject="sum") as audit:
            run.train(2)
        audit.transcript().save(folder / f"{name}-{rank}.npz")

    weights = []
    for attach in (False, True):
        run = distributed_run(rank)
        if attach:
            with CanaryAudit(run.optimizer, canaries=canaries(present=0), data_loader=run.loader):
                run.train(2)
        else:
            run.train(2)
        weights.append(run.weights())
    facts["untouched"] = bool(torch.equal(*weights))

    run = distributed_run(rank)
    facts["seed"] = CanaryAudit(run.optimizer, data_loader=run.loader).canaries.root_seed
    try:
        CanaryAudit(run.optimizer, data_loader=run.loader, seed=rank).__enter__()
    except RecordingError as error:
        facts["refused"] = str(error)
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, seed=0, checkpoint=folder / "audit.npz"
    ) as audit:
        run.train()
    torch.distributed.barrier()
    resumed = CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=folder / "audit.npz")
    with resumed:
        run.train()
    facts["resumed"] = [audit.steps, resumed.steps]
    facts["weights"] = float(np.abs(run.weights().numpy()).sum())
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
