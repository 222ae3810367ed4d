"""Train a layer over sequences with ghost clipping."""

from __future__ import annotations

import torch
from museum.showing import Outcome, main, of_audit
from opacus import PrivacyEngine
from torch import nn

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit


class OverSequences(nn.Module):
    """One linear layer for every position, then the mean of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.each(values)).mean(dim=1))


def show(variant: str) -> Outcome:
    torch.manual_seed(0)
    features = torch.randn(1000, 20, 8)
    data = torch.utils.data.TensorDataset(features, (features[:, :, 0].mean(1) > 0).long())
    model = OverSequences()
    engine = PrivacyEngine()
    model, optimizer, loss, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=torch.utils.data.DataLoader(data, batch_size=50),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=0.01,
        grad_sample_mode="ghost",
    )
    with CanaryAudit(optimizer, data_loader=loader, model=model, seed=0) as audit:
        for _ in range(5):
            for batch, target in loader:
                optimizer.zero_grad()
                loss(model(batch), target).backward()
                optimizer.step()
    claim = ag.PrivacyClaim(epsilon=float(engine.get_epsilon(1e-5)), delta=1e-5)
    return of_audit(audit.result(claim=claim), scores=audit.transcript().scores())


main(show)
