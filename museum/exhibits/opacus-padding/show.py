"""Train a convolution whose padding is not square."""

from __future__ import annotations

import torch
from museum.opacus_runs import train
from museum.outcomes import Outcome, main
from torch import nn
from torch.utils.data import TensorDataset


def show(variant: str) -> Outcome:
    torch.manual_seed(0)
    pictures = torch.randn(1000, 1, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, kernel_size=3, padding=(0, 1)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 8 * 6, 2),
    )
    data = TensorDataset(pictures, (pictures.mean((1, 2, 3)) > 0).long())
    return train((model, data), batch=50).outcome()


main(show)
