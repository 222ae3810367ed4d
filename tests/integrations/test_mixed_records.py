"""Records that meet before they are clipped: in the inputs, the forward pass, the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit, batch_stream
from askgauss.results import Status, Verdict
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DRAW = torch.Generator().manual_seed(3)
ROWS = TensorDataset(
    torch.randn(RECORDS, FEATURES, generator=DRAW),
    torch.randint(0, CLASSES, (RECORDS,), generator=DRAW),
)
IMAGES = TensorDataset(
    torch.rand(RECORDS, 1, 8, 8, generator=DRAW), torch.arange(RECORDS) % CLASSES
)


def images():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))


def audited(*, inputs=None, loss=None, model=None, data=ROWS, collate=None, epochs=2, **options):
    """A run whose inputs or loss are made in another way."""
    run = make_run(data=data, model=None if model is None else model(), **options)
    if collate is not None:
        run.loader.collate_fn.wrapped_collator_fn = lambda records: list(
            collate(*default_collate(records))
        )
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, present=20, absent=40) as audit:
        for _ in range(epochs):
            for features, target in run.loader:
                given = features if inputs is None else inputs(features, target)[0]
                run.optimizer.zero_grad()
                output = run.model(given)
                lost = run.criterion(output, target) if loss is None else loss(run, output, target)
                lost.backward()
                run.optimizer.step()
    return run, audit


def facts_of(**options):
    return audited(**options)[1].transcript().facts.mixing


def mixup(features, target):
    share = float(torch.rand(())) * 0.8 + 0.1
    return share * features + (1.0 - share) * features[torch.randperm(len(features))], target


def mixup_in_place(features, target):
    other = features[torch.randperm(len(features))]
    return features.mul_(0.7).add_(other, alpha=0.3), target


def cutmix(features, target):
    pasted = features.clone()
    pasted[:, :, 2:7, 1:6] = features[torch.randperm(len(features))][:, :, 2:7, 1:6]
    return 2.0 * pasted - 0.5, target


def batch_weights(run, output, target):
    counts = torch.bincount(target, minlength=CLASSES).clamp(min=1)
    if hasattr(run.criterion, "criterion"):
        run.criterion.criterion.weight = 1.0 / counts
        return run.criterion(output, target)
    return functional.cross_entropy(output, target, weight=1.0 / counts)


def centred(run, output, target):
    return run.criterion(output - output.mean(0), target)


def contrastive(run, output, target):
    similar = functional.normalize(output, dim=1)
    own = torch.arange(len(target))
    return functional.cross_entropy(similar @ similar.T, own) if len(target) else output.sum()


def by_its_value(run, output, target):
    lost = functional.cross_entropy(output, target)
    return lost / lost.detach()


def by_share(run, output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses.detach().softmax(0) * losses).sum()


def below_quantile(run, output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    if not len(losses):
        return losses.sum()
    with torch.no_grad():
        most = losses.quantile(0.6)
    return (losses * (losses <= most)).mean()


class Normalised(nn.Module):
    """Batch normalisation that Opacus does not see."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, features):
        hidden = self.first(features)
        if len(hidden) > 1:
            hidden = functional.batch_norm(hidden, None, None, training=True)
        return self.last(hidden.tanh())


class Centred(nn.Module):
    """Takes off a running mean of the batches before."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.centre = torch.zeros(8)

    def forward(self, features):
        hidden, centre = self.first(features), self.centre
        if len(hidden):
            self.centre = 0.9 * centre + 0.1 * hidden.detach().mean(0)
        return self.last((hidden - centre).tanh())


class Experts(nn.Module):
    """Keeps a loss that balances its experts over the batch."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(FEATURES, 3)
        self.experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(3))

    def forward(self, features):
        gates = self.gate(features).softmax(1)
        share = functional.one_hot(gates.argmax(1), 3).float()
        self.balance = (share.mean(0) * gates.mean(0)).sum()
        return sum(gates[:, [n]] * expert(features) for n, expert in enumerate(self.experts))


def balanced(run, output, target):
    return run.criterion(output, target) + 0.1 * run.model._module.balance


MIXED = {
    "mixup": ({"inputs": mixup}, "inputs"),
    "mixup in place": ({"inputs": mixup_in_place}, "inputs"),
    "mixup by collate": ({"collate": mixup}, "inputs"),
    "cutmix": ({"inputs": cutmix, "data": IMAGES, "model": images}, "inputs"),
    "class weights": ({"loss": batch_weights}, "weights"),
    "centred loss": ({"loss": centred}, "loss"),
    "balance loss": ({"model": Experts, "loss": balanced}, "loss"),
    "batch norm": ({"model": Normalised}, "forward"),
    "running mean": ({"model": Centred}, "state"),
}


@pytest.mark.parametrize("loss", [by_its_value, by_share, below_quantile])
def test_what_a_loss_takes_from_detached_outputs_is_found(loss):
    """A second derivative does not show it; the loss is repeated with other outputs."""
    facts = facts_of(loss=loss, epochs=1)
    assert facts.loss_first
    assert facts.forward_first == facts.inputs_first == facts.weights_first == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", MIXED)
def test_records_that_meet_before_clipping_are_found(name, mode):
    options, where = MIXED[name]
    facts = facts_of(mode=mode, **options)
    found = {kind for kind in ("forward", "inputs", "loss", "weights", "state")
             if getattr(facts, f"{kind}_first")}  # fmt: skip
    assert found == {where}


def test_a_contrastive_loss_is_found():
    facts = facts_of(loss=contrastive)
    assert facts.loss_first
    assert facts.forward_first == facts.inputs_first == 0


def test_mixed_records_lead_and_break_the_part():
    run, audit = audited(model=Normalised)
    claim = ag.PrivacyClaim(epsilon=1.001 * run.engine.get_epsilon(1e-5), delta=1e-5)
    result = audit.result(claim=claim)
    assert result.verdict in (Verdict.INVALID, Verdict.VIOLATION)
    found = next(item for item in result.findings if item.check == "mixed records")
    assert found.status is Status.FAIL
    assert "forward pass" in found.summary
    assert "GroupNorm" in found.remedy
    assert {part.name: part.status for part in result.scope}["per-sample gradient"] == "broken"
    assert result.summary.run.source == "transcript"


def smoothed(run, output, target):
    return functional.cross_entropy(output, target, label_smoothing=0.1)


def weighted(run, output, target):
    weight = torch.tensor([1.0, 2.0, 3.0, 0.5])
    return functional.cross_entropy(output, target, weight=weight, reduction="sum") / 16


def scheduled(run, output, target):
    run.count = getattr(run, "count", 0) + 1
    weight = 1.0 / (1.0 + torch.arange(float(CLASSES)) * run.count / 20)
    return functional.cross_entropy(output, target, weight=weight, reduction="sum") / 16


class Drawing(nn.Module):
    """Draws random numbers, more of them for some records than for others."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen, self.calls = dropping(), [], torch.zeros(1)

    def forward(self, features):
        self.calls += 1
        self.seen.append(len(features))
        self.last = features.detach()
        return self.inner(features * torch._standard_gamma(features.abs() + 1.0))


def dropping():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.4), nn.Linear(8, CLASSES))


def noisy(features, target):
    return features + 0.1 * torch.randn_like(features), target


def flipped(features, target):
    return features.flip(-1), target


def erased(features, target):
    features = features.clone()
    features[:, :, 2:6, 2:6] = 0.0
    return features, target


def own_weights(run, output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses.detach().clamp(max=2.0) * losses).mean()


def hinge(run, output, target):
    """Without a second derivative."""
    own = output.gather(1, target[:, None])
    return (1.0 + output - own).clamp(min=0.0).sum(1).mean()


def scaled(features, target):
    return (features - 0.3) / 0.2, target


LOOKED = {"forward", "inputs", "loss"}
CORRECT = {
    "plain": ({}, LOOKED),
    "dropout": ({"model": dropping}, LOOKED),
    "scaled": ({"inputs": scaled, "data": IMAGES, "model": images}, LOOKED),
    "scaled by collate": ({"collate": scaled, "data": IMAGES, "model": images}, LOOKED),
    "noisy": ({"inputs": noisy}, LOOKED - {"inputs"}),
    "flipped": ({"inputs": flipped, "data": IMAGES, "model": images}, LOOKED - {"inputs"}),
    "erased": ({"inputs": erased, "data": IMAGES, "model": images}, LOOKED - {"inputs"}),
    "fixed weights": ({"loss": weighted}, LOOKED),
    "scheduled weights": ({"loss": scheduled}, LOOKED),
    "label smoothing": ({"loss": smoothed}, LOOKED),
    "weights of a record's own loss": ({"loss": own_weights}, LOOKED),
    "hinge": ({"loss": hinge}, LOOKED),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_runs_mix_nothing(name):
    options, looked = CORRECT[name]
    facts = facts_of(**options)
    assert not facts.mixed
    assert {kind for kind in LOOKED if getattr(facts, kind)} == looked


def test_draws_by_rejection_are_not_taken_for_mixing():
    for seed in range(3):
        assert not facts_of(model=Drawing, seed=seed).mixed


def test_what_was_not_looked_at_is_said():
    run, audit = audited(inputs=noisy)
    claim = ag.PrivacyClaim(epsilon=1.001 * run.engine.get_epsilon(1e-5), delta=1e-5)
    result = audit.result(claim=claim)
    found = next(item for item in result.findings if item.check == "mixed records")
    assert found.status is Status.NOT_RUN
    assert "the forward pass and the loss mixed no records" in found.summary
    assert {part.name: part.status for part in result.scope}["per-sample gradient"] == "not tested"


def read_as_number(run, output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses.mean() / float(losses.detach().mean())


def written_in_place(run, output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    weights = torch.ones(len(losses))
    weights.mul_(losses.detach())
    return (weights / weights.sum() * losses).sum()


@pytest.mark.parametrize(
    ("loss", "why"), [(read_as_number, "a number is read"), (written_in_place, "in place")]
)
def test_a_loss_that_cannot_be_repeated_is_not_taken_for_clean(loss, why):
    facts = facts_of(loss=loss, epochs=1)
    assert facts.loss == 0
    assert why in facts.loss_unseen


def test_other_records_in_a_second_call_are_not_taken_for_the_same():
    """Opacus adds up the gradients of both calls row by row."""

    def second(run, output, target):
        lost = run.criterion(output, target)
        return lost + run.criterion(run.model(ROWS.tensors[0][: len(target)]), target)

    run, audit = audited(loss=second, epochs=1)
    facts = audit.transcript().facts
    assert "second call" in facts.mixing.inputs_unseen
    claim = ag.PrivacyClaim(epsilon=1.001 * run.engine.get_epsilon(1e-5), delta=1e-5)
    scope = {part.name: part.status for part in audit.result(claim=claim).scope}
    assert scope["per-sample gradient"] == "not tested"


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("model", [dropping, Centred, Drawing, Experts])
def test_a_look_changes_nothing_in_the_training(mode, model, monkeypatch):
    def trained():
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        run, _ = audited(model=model, mode=mode, loss=balanced if model is Experts else None)
        kept = [item.detach() for part in run.model.modules()
                for item in vars(part).values() if isinstance(item, torch.Tensor)]  # fmt: skip
        return run.weights(), torch.get_rng_state(), *kept

    looked = trained()
    monkeypatch.setattr("askgauss.integrations.opacus.mixed_records._FIRST", 0)
    monkeypatch.setattr("askgauss.integrations.opacus.mixed_records.MixingWatch._is_due", False)
    plain = trained()
    assert len(looked) == len(plain)
    assert all(torch.equal(one, other) for one, other in zip(looked, plain, strict=True))


def test_torch_is_as_it_was_afterwards():
    backward, fetch = torch.autograd.backward, batch_stream._MapDatasetFetcher.fetch
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, present=20, absent=40):
        assert torch.autograd.backward is not backward
        run.train()
    assert not torch.overrides._get_current_function_mode_stack()
    assert torch.autograd.backward is backward
    assert batch_stream._MapDatasetFetcher.fetch is fetch
