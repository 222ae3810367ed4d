"""Runs as people really set them up: in each, a planted canary is worth one, and steps are counted.

Without noise nothing else is left once the background is subtracted, whatever the model is made of:
what a canary shows is how often its coin came up.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, features):
        return self.head(self.second(torch.tanh(self.first(features))))


class LowRank(nn.Module):
    """A frozen model with a trained update of low rank."""

    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.base.requires_grad_(False)
        self.head.requires_grad_(False)
        self.down, self.up = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, 16, bias=False)

    def forward(self, features):
        return self.head(torch.tanh(self.base(features) + self.up(self.down(features))))


class Mixed(nn.Module):
    """Half of it in single, half in double precision."""

    def __init__(self):
        super().__init__()
        self.single, self.double_head = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES).double()

    def forward(self, features):
        return self.double_head(torch.tanh(self.single(features)).double())


def worth_one(audit, steps):
    transcript = audit.transcript()
    assert transcript.number_of_steps == steps == transcript.facts.accounted_steps
    assert transcript.canaries.planted.sum() > 10
    np.testing.assert_allclose(transcript.canaries.total, transcript.canaries.planted, atol=1e-3)
    assert transcript.facts.notes == ()


@pytest.mark.parametrize("inject", ["sum", "sample"])
@pytest.mark.parametrize("make", [Tied, LowRank, Mixed])
@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_models_of_all_kinds(make, mode, inject):
    run = make_run(mode=mode, model=make(), noise_multiplier=0.0)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, inject=inject) as audit:
        run.train(epochs=2)
    worth_one(audit, 16)
    trained = {id(item): item.numel() for item in run.model.parameters() if item.requires_grad}
    assert audit.canaries.total_dimension == sum(trained.values())


@pytest.mark.parametrize("clear", [{"set_to_none": True}, {"set_to_none": False}])
def test_groups_of_parameters_schedules_and_hooks_of_the_users_own(clear):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    engine = PrivacyEngine()
    groups = [{"params": model[2].parameters(), "lr": 0.1}, {"params": model[0].parameters()}]
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.Adam(groups, lr=0.01),
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=0.0,
        max_grad_norm=1.0,
    )
    called = []
    wrapped = optimizer.original_optimizer
    wrapped.register_step_pre_hook(lambda *_: called.append("before"))
    rates = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    with CanaryAudit(optimizer, data_loader=loader, seed=0) as audit:
        wrapped.register_step_post_hook(lambda *_: called.append("after"))
        for _ in range(2):
            for features, target in loader:
                optimizer.zero_grad(**clear)
                nn.functional.cross_entropy(private(features), target).backward()
                optimizer.step()
            rates.step()
    worth_one(audit, 16)
    assert called == ["before", "after"] * 16
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.0025]


def test_noise_made_for_an_epsilon():
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES)
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        target_epsilon=8.0,
        target_delta=1e-3,
        epochs=5,
        max_grad_norm=1.0,
    )
    with CanaryAudit(optimizer, data_loader=loader, seed=0) as audit:
        for features, target in (batch for _ in range(5) for batch in loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(features), target).backward()
            optimizer.step()
    facts = audit.transcript().facts
    assert facts.accounted_steps == audit.steps == 40
    assert facts.noise_multiplier == optimizer.noise_multiplier
    result = audit.result(claim=ag.PrivacyClaim(epsilon=engine.get_epsilon(1e-3), delta=1e-3))
    assert result.verdict not in (ag.Verdict.VIOLATION, ag.Verdict.INVALID)


def test_an_error_in_the_loop_and_a_second_start():
    """The step that did not happen is not recorded; the one after it is, with coins of its own."""
    run = make_run(noise_multiplier=0.0)
    audit = CanaryAudit(run.optimizer, canaries=120, data_loader=run.loader, seed=0)

    def interrupted():
        with audit:
            for count, (features, target) in enumerate(run.loader):
                run.optimizer.zero_grad()
                run.criterion(run.model(features), target).backward()
                if count == 3:
                    raise KeyError("no such image")
                run.optimizer.step()

    with pytest.raises(KeyError, match="no such image"):
        interrupted()
    assert "add_noise" not in vars(run.optimizer)
    assert audit.steps == 3
    run.optimizer.zero_grad()
    with audit:
        run.train()
    worth_one(audit, 11)
