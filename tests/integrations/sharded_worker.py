"""One rank of the sharded runs that test_opacus_sharded.py looks at."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import askgauss as ag
from askgauss.exceptions import AskGaussError
from askgauss.integrations.opacus import CanaryAudit

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integrations.runs import CLASSES, FEATURES, Run, make_run

HIDDEN = 81


def plain_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def sharded_run(rank: int, **options: Any) -> Run:
    model = FSDP2Wrapper(plain_model())
    run = make_run(model=model, mode="ghost_fsdp", batch_size=32, **options)
    torch.manual_seed(1000 + rank)
    return run


def whole(run: Run) -> np.ndarray:
    parts = [item.detach().full_tensor().reshape(-1) for item in run.model.parameters()]
    return torch.cat(parts).numpy()


def without_noise(run: Run) -> None:
    """The fault: one rank forgets the noise of what it holds."""
    scaled_noise(run, 0.0)


def scaled_noise(run: Run, factor: float) -> None:
    """The fault: another noise than is stated."""
    own = run.optimizer.add_noise

    def add_noise() -> None:
        stated = run.optimizer.noise_multiplier
        run.optimizer.noise_multiplier = factor * stated
        own()
        run.optimizer.noise_multiplier = stated

    run.optimizer.add_noise = add_noise


def by_parameter_run(rank: int, **options: Any) -> Run:
    """Noise and clipping of one parameter after the other, as releases before 1.5.3 have it.

    The hooks of this release come before the gradients of records, and are called by hand.
    """
    run = make_run(
        model=DifferentiallyPrivateDistributedDataParallel(plain_model()),
        batch_size=32,
        clipping="per_layer",
        max_grad_norm=[0.5] * 4,
        **options,
    )
    by_layer = run.optimizer
    optimizer = DistributedPerLayerOptimizer(
        by_layer.original_optimizer,
        noise_multiplier=by_layer.noise_multiplier,
        max_grad_norm=[0.5] * 4,
        expected_batch_size=by_layer.expected_batch_size,
    )
    optimizer.attach_step_hook(by_layer.step_hook)
    for item in optimizer.params:
        item.ddp_hooks.pop().remove()
    torch.manual_seed(1000 + rank)
    return replace(run, optimizer=optimizer)


def train_by_parameter(run: Run, epochs: int) -> None:
    for _ in range(epochs):
        for features, target in run.loader:
            run.optimizer.zero_grad()
            run.criterion(run.model(features), target).backward()
            for item in reversed(run.optimizer.params):
                item.grad = run.optimizer._ddp_per_layer_hook(item, 0.5, item.grad)
            for item in run.optimizer.params:
                torch.distributed.all_reduce(item.grad)
            run.optimizer.step()


def main(rank: int, world: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=(folder / "meeting").as_uri(), rank=rank, world_size=world
    )
    facts: dict[str, Any] = {}

    def audited(name: str, epochs: int, fault: Any = None, **options: Any) -> Run:
        run = sharded_run(rank, **options)
        if fault is not None:
            fault(run)
        with CanaryAudit(
            run.optimizer, present=100, absent=400, seed=5, data_loader=run.loader, model=run.model
        ) as audit:
            run.train(epochs)
        audit.transcript().save(folder / f"{name}-{rank}.npz")
        return run

    audited("exact", 3, noise_multiplier=0.0)
    if world == 2:
        two_ranks(rank, folder, facts, audited)
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))
    torch.distributed.destroy_process_group()


def two_ranks(rank: int, folder: Path, facts: dict[str, Any], audited: Any) -> None:
    audited("exact-sum", 3, noise_multiplier=0.0, loss_reduction="sum")
    audited("sound", 30, noise_multiplier=2.0)
    audited("half", 10, lambda run: scaled_noise(run, 0.5))
    audited("twice", 10, lambda run: scaled_noise(run, 2.0**0.5))
    audited("silent", 10, without_noise if rank == 1 else None)

    def summed(run: Run) -> None:
        for part in run.model.modules():
            if hasattr(part, "set_gradient_divide_factor"):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)

    audited("summed", 10, summed)

    for name, noise, epochs in (("by-parameter-exact", 0.0, 3), ("by-parameter", 1.0, 15)):
        run = by_parameter_run(rank, noise_multiplier=noise)
        with CanaryAudit(
            run.optimizer, present=100, absent=400, seed=5, data_loader=run.loader
        ) as audit:
            train_by_parameter(run, epochs)
        audit.transcript().save(folder / f"{name}-{rank}.npz")
    facts["rows"] = refused(
        lambda: CanaryAudit(run.optimizer, data_loader=run.loader, inject="sample")
    )

    weights = []
    for attach in (False, True):
        run = sharded_run(rank)
        if attach:
            canaries = {"present": 0, "absent": 120}
            sizes = CanaryAudit(run.optimizer, data_loader=run.loader).canaries.tensor_sizes
            made = ag.DiracCanaries(**canaries, tensors=sizes, seed=5)
            with CanaryAudit(run.optimizer, canaries=made, data_loader=run.loader):
                run.train(2)
        else:
            run.train(2)
        weights.append(whole(run))
    facts["untouched"] = bool(np.array_equal(*weights))

    run = sharded_run(rank)
    path = folder / "audit.npz"
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path) as audit:
        run.train()
        with_second = CanaryAudit(run.optimizer, data_loader=run.loader, seed=1)
        facts["second"] = refused(with_second.__enter__)
    torch.distributed.barrier()
    resumed = CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=path)
    with resumed:
        run.train()
    facts["resumed"] = [audit.steps, resumed.steps]
    facts["weights"] = float(np.abs(whole(run)).sum())
    facts["mesh"] = refused(lambda: on_a_mesh_of_two_dimensions())


def on_a_mesh_of_two_dimensions() -> None:
    """Groups of shards that are copies of each other."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "parts"))
    model = plain_model()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    run = make_run(model=model, mode="ghost_fsdp", batch_size=32)
    CanaryAudit(run.optimizer, data_loader=run.loader)


def refused(call: Any) -> str:
    try:
        call()
    except AskGaussError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
