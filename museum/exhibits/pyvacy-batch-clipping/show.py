"""One step on a full batch, with and without a record that is far out."""

from __future__ import annotations

import numpy as np
import torch
from museum.outcomes import Outcome, main, of_mechanism
from pyvacy import optim
from pyvacy.analysis import moments_accountant

import askgauss as ag
from askgauss.mechanism_audit import from_function

RECORDS, CLIP, NOISE, DELTA = 100, 1.0, 2.0, 1e-5


def released(records: torch.Tensor) -> list[float]:
    """Weights after one step of the package's optimizer."""
    weights = torch.nn.Parameter(torch.zeros(3))
    optimizer = optim.DPSGD(
        l2_norm_clip=CLIP, noise_multiplier=NOISE, batch_size=RECORDS, params=[weights], lr=1.0
    )
    loss(records, weights).backward()
    optimizer.step()
    return weights.tolist()


def loss(records: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return ((records @ weights - 1.0) ** 2).mean()


def mended(records: torch.Tensor) -> list[float]:
    """The step as it was meant, on the mean over the batch."""
    # The gradient of each record's loss, at weights of zero.
    gradients = -2.0 * records
    scale = (CLIP / gradients.norm(dim=1)).clamp(max=1.0)
    total = (gradients * scale[:, None]).sum(dim=0)
    return (-(total + NOISE * CLIP * torch.randn(3)) / RECORDS).tolist()


def show(variant: str) -> Outcome:
    torch.manual_seed(0)
    usual = 0.1 * torch.randn(RECORDS - 1, 3)
    far_out = torch.tensor([[0.0, 0.0, -500.0]])
    step = released if variant == "broken" else mended

    def release(records: np.ndarray, rng: np.random.Generator) -> list[float]:
        torch.manual_seed(int(rng.integers(2**31)))
        return step(torch.from_numpy(records).float())

    epsilon = moments_accountant(RECORDS, RECORDS, NOISE, 1, DELTA)
    result = ag.audit_mechanism(
        from_function(release),
        torch.vstack((usual, far_out)).numpy(),
        usual.numpy(),
        claim=ag.PrivacyClaim(epsilon=float(epsilon), delta=DELTA),
        max_samples=1_000,
    )
    return of_mechanism(result)


main(show)
