"""Train with closures, as Lightning's automatic optimisation does."""

from __future__ import annotations

import torch
from museum.showing import Outcome, main, of_audit
from opacus import PrivacyEngine

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit


def show(variant: str) -> Outcome:
    torch.manual_seed(0)
    features = torch.randn(2000, 40)
    data = torch.utils.data.TensorDataset(features, (features[:, 0] > 0).long())
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=torch.utils.data.DataLoader(data, batch_size=100),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    loss = torch.nn.CrossEntropyLoss()
    with CanaryAudit(optimizer, data_loader=loader, model=model, seed=0) as audit:
        for _ in range(5):
            for batch, target in loader:

                def closure(batch=batch, target=target):
                    optimizer.zero_grad()
                    value = loss(model(batch), target)
                    value.backward()
                    return value

                optimizer.step(closure)
    claim = ag.PrivacyClaim(epsilon=float(engine.get_epsilon(1e-5)), delta=1e-5)
    result = audit.result(claim=claim)
    true = float("inf") if variant == "broken" else None
    return of_audit(result, true=true, scores=audit.transcript().scores())


main(show)
