"""Train with Opacus, the parameters shared out over processes, audited.

Run it with ``torchrun --nproc_per_node 2 examples/fsdp_audit.py``. Every rank makes the same audit;
canaries are planted by the rank that holds a coordinate, and all end with the same transcript.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from opacus import PrivacyEngine
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit

DELTA = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--broken", action="store_true", help="rank 1 forgets its noise")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 20), torch.randint(0, 4, (512,)))
    model = FSDP2Wrapper(nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 4)))
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=64),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost_fsdp",
    )
    torch.seed()
    if arguments.broken and rank == 1:
        own = optimizer.add_noise

        def add_noise() -> None:
            optimizer.noise_multiplier, stated = 0.0, optimizer.noise_multiplier
            own()
            optimizer.noise_multiplier = stated

        optimizer.add_noise = add_noise

    with CanaryAudit(optimizer, data_loader=loader, model=model, present=250) as audit:
        for _ in range(arguments.epochs):
            for features, target in loader:
                optimizer.zero_grad()
                criterion(model(features), target).backward()
                optimizer.step()
    claim = ag.PrivacyClaim(epsilon=engine.get_epsilon(DELTA), delta=DELTA)
    result = audit.result(claim=claim)
    if rank == 0:
        print(result)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
