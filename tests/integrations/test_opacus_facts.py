"""What an Opacus run says of itself is compared, and what hides the noise is looked behind."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import askgauss as ag
from askgauss.canaries import ExampleCanaries
from askgauss.exceptions import InvalidArgumentError
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.integrations.opacus.ledger import Ledger
from askgauss.results import Status
from tests.faults.twins import Noise75, NoNoise
from tests.integrations.runs import FEATURES, make_run, observer
from tests.seeds import unlikely

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def failed(result):
    return {item.check for item in result.findings if item.status is Status.FAIL}


def trained(epochs=2, **options):
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, **options) as audit:
        run.train(epochs)
    return run, audit


def test_the_claim_is_held_against_the_accountant():
    run, audit = trained()
    epsilon = run.engine.get_epsilon(1e-5)
    right = audit.result(claim=ag.PrivacyClaim(epsilon=epsilon, delta=1e-5))
    assert finding(right, "accounted epsilon").status is Status.PASS
    assert finding(right, "accounted epsilon").measured == pytest.approx(epsilon, rel=1e-3)
    low = audit.result(claim=ag.PrivacyClaim(epsilon=0.77 * epsilon, delta=1e-5))
    assert low.verdict is ag.Verdict.VIOLATION
    assert f"the accountant reports {epsilon:.4g}" in finding(low, "accounted epsilon").summary
    # A saved transcript knows the history, and needs no accountant.
    saved = ag.audit(audit.transcript(), claim=ag.PrivacyClaim(epsilon=0.77 * epsilon, delta=1e-5))
    assert "accounted epsilon" in failed(saved)


def test_a_loose_accountant_is_no_breach():
    run, audit = trained()
    observer(audit, Ledger).epsilon = lambda delta, claimed: 1.2 * run.engine.get_epsilon(delta)
    claim = ag.PrivacyClaim(epsilon=run.engine.get_epsilon(1e-5), delta=1e-5)
    found = finding(audit.result(claim=claim), "accounted epsilon")
    assert found.status is Status.WARN
    assert "name the tighter accountant" in found.remedy


def test_steps_after_epsilon_was_read_are_noticed():
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train()
        early = run.engine.get_epsilon(1e-5)
        run.train()
        late = run.engine.get_epsilon(1e-5)
    assert "get_epsilon" not in vars(run.engine.accountant)
    result = audit.result(claim=ag.PrivacyClaim(epsilon=early, delta=1e-5))
    found = finding(result, "steps after epsilon was read")
    assert found.status is Status.FAIL
    assert "after 8 of 16 steps" in found.summary
    result = audit.result(claim=ag.PrivacyClaim(epsilon=late, delta=1e-5))
    assert finding(result, "steps after epsilon was read").status is Status.PASS


@pytest.mark.parametrize(("accounted", "status"), [(2, Status.NOT_RUN), (1, Status.FAIL)])
def test_accumulated_poisson_batches_are_accounted_for_together(accounted, status):
    """Two batches a step: accounting at twice the rate is right, at the rate of one is not."""
    run = make_run()
    run.model.allow_grad_accumulation()
    accountant = run.engine.accountant
    run.optimizer.attach_step_hook(
        lambda optimizer: accountant.step(noise_multiplier=1.0, sample_rate=accounted / 8)
    )
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, accountant=accountant, canaries=80, seed=0
    ) as audit:
        for _ in range(20):
            batches = iter(run.loader)
            for _ in range(4):
                run.optimizer.zero_grad()
                for features, target in (next(batches), next(batches)):
                    run.criterion(run.model(features), target).backward()
                run.optimizer.step()
        state = audit.state_dict()
    facts = audit.transcript().facts
    assert facts.sampling_rate == pytest.approx(0.25)
    claim = ag.PrivacyClaim(epsilon=accountant.get_epsilon(1e-5), delta=1e-5)
    assert finding(audit.result(claim=claim), "sampling rate").status is status
    resumed = CanaryAudit(
        run.optimizer, data_loader=run.loader, accountant=accountant, canaries=80, seed=0
    )
    resumed.load_state_dict(state)
    assert resumed.transcript().facts.sampling_rate == pytest.approx(0.25)


@pytest.mark.parametrize("moves", [False, True])
def test_parameters_outside_the_optimizer_are_named(moves):
    run = make_run()
    model = nn.ModuleDict({"inside": run.model, "head": nn.Linear(4, 4)})
    other = torch.optim.SGD(model["head"].parameters(), lr=0.1)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=model) as audit:
        run.train(2)
        if moves:
            model["head"](torch.ones(1, 4)).sum().backward()
            other.step()
    claim = ag.PrivacyClaim(epsilon=50.0, delta=1e-5)
    result = audit.result(claim=claim)
    found = finding(result, "parameters outside the optimizer")
    assert "head.weight" in found.summary
    assert found.status is (Status.FAIL if moves else Status.WARN)
    assert (result.verdict is ag.Verdict.VIOLATION) == moves
    plain = trained()[1].result(claim=claim)
    assert finding(plain, "parameters outside the optimizer").status is Status.NOT_RUN


class Coins(Sampler):
    """A Poisson sampler of somebody else's."""

    def __init__(self, records, sample_rate=None):
        self.records, self.rate = records, 1 / 8
        if sample_rate is not None:
            self.sample_rate = sample_rate

    def __len__(self):
        return 8

    def __iter__(self):
        for _ in range(8):
            yield (torch.rand(self.records) < self.rate).nonzero().flatten().tolist()


@pytest.mark.parametrize("rate", [1 / 8, None])
def test_a_sampler_of_another_class_is_not_called_wrong(rate):
    run = make_run()
    data = run.loader.dataset
    run.loader = loader = DataLoader(data, batch_sampler=Coins(len(data), rate))
    with CanaryAudit(run.optimizer, data_loader=loader, canaries=80, seed=0) as audit:
        run.train(4)
    transcript = audit.transcript()
    assert transcript.facts.loader_poisson is None
    assert transcript.facts.sampling_rate == 1 / 8
    assert any("Coins, which is not known here" in note for note in transcript.facts.notes)
    # Without a word of a rate nothing is taken on trust; the noise is seen all the same.
    assert transcript.facts.background == ("known" if rate else "unknown")
    result = ag.audit(transcript, claim=ag.PrivacyClaim(epsilon=50.0, delta=1e-5))
    assert failed(result) == set()
    assert finding(result, "sampling scheme").status is Status.PASS
    assert finding(result, "noise scale").status is Status.PASS


class Wrapper:
    """What accelerate puts around an optimizer."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_the_optimizer_is_found_inside_wrappers():
    run = make_run()
    with CanaryAudit(Wrapper(Wrapper(run.optimizer)), data_loader=run.loader, seed=0) as audit:
        run.train()
    assert audit.steps == 8
    with pytest.raises(InvalidArgumentError, match="Wrapper"):
        CanaryAudit(Wrapper(run.optimizer.original_optimizer), data_loader=run.loader)


def test_a_model_too_small_for_canaries_is_refused_at_once():
    data = TensorDataset(torch.randn(40, 2), torch.arange(40) % 2)
    run = make_run(model=nn.Linear(2, 1), data=data, batch_size=8)
    with pytest.raises(InvalidArgumentError, match=r"at least 8 places .* got 3 .*DiracCanaries"):
        CanaryAudit(run.optimizer, data_loader=run.loader)


def test_blocks_are_planted_in_any_precision():
    canaries = ag.BlockCanaries(present=2, absent=2, dimension=50, block=4, seed=0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        vector = torch.zeros(50, dtype=dtype)
        canaries.plant(vector, np.flatnonzero(canaries.member), clip_norm=2.0)
        assert vector.float().norm() == pytest.approx(2.0 * 2**0.5, rel=1e-2)


def test_noise_added_in_place_is_noticed():
    canaries = ag.DiracCanaries(present=30, absent=60, dimension=400, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=0.2, noise_multiplier=1.0)
    noise = np.random.default_rng(0)
    for _ in range(30):
        total = np.zeros(400)
        canaries.plant(total, recorder.sample(), clip_norm=1.0)
        clean = total  # no copy: what follows changes it too
        total += noise.normal(size=400)
        watch = total[canaries.watch] - clean[canaries.watch]
        recorder.observe(canaries.project(total), background=0.0, watch=watch)
    result = ag.audit(recorder.transcript(), claim=ag.PrivacyClaim(epsilon=50.0, delta=1e-5))
    assert "watched coordinates" in failed(result)
    assert "in place" in finding(result, "watched coordinates").remedy


# --- examples --------------------------------------------------------------------------------


VOCABULARY, LENGTH = 60, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        return self.out(self.attention(hidden, hidden, hidden)[0].mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.cells = DPLSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens):
        return self.out(self.cells(self.embedding(tokens))[0][:, -1])


def token_run(make, present=40, seed=0, optimizer=None, epochs=8):
    generator = np.random.default_rng(seed)
    canaries = ExampleCanaries(
        generator.integers(VOCABULARY, size=(120, LENGTH)),
        generator.integers(2, size=120),
        present=present,
        seed=seed,
    )
    tokens = torch.tensor(generator.integers(VOCABULARY, size=(300, LENGTH)))
    torch.manual_seed(unlikely(seed))
    run = make_run(
        model=make(),
        data=canaries.dataset(TensorDataset(tokens, tokens[:, 0] % 2)),
        batch_size=34,
        seed=seed,
    )
    if optimizer is not None:
        run.optimizer.__class__ = optimizer
    audit = CanaryAudit(
        run.optimizer,
        canaries=canaries,
        model=run.model,
        observation=Observation(criterion=run.criterion),
        data_loader=run.loader,
    )
    with audit:
        run.train(epochs)
    return run, audit


@pytest.mark.parametrize("make", [Attention, Recurrent])
def test_examples_of_tokens_do_not_alarm(make):
    """Gradients behind attention with two classes point one way; what they share is taken out."""
    run, audit = token_run(make)
    claim = ag.PrivacyClaim(epsilon=run.engine.get_epsilon(1e-5), delta=1e-5)
    result = audit.result(claim=claim, auditor=ag.SubsampledGaussian())
    alarms = failed(result) - {f"normality of {kind} scores" for kind in ("absent", "present")}
    assert alarms == set()
    assert finding(result, "canary overlap").measured < 0.5
    assert finding(result, "steps without noise").status is Status.PASS
    assert finding(result, "noise scale").status is Status.PASS
    assert audit.transcript().watch_values.shape[1] >= 256


@pytest.mark.parametrize("make", [Attention, Recurrent])
def test_examples_leave_layers_of_all_kinds_as_they_were(make):
    weights = []
    for attach in (True, False):
        torch.manual_seed(3)
        model, data = (
            make(),
            TensorDataset(torch.randint(VOCABULARY, (64, LENGTH)), torch.ones(64, dtype=int)),
        )
        canaries = ExampleCanaries(
            np.random.default_rng(0).integers(VOCABULARY, size=(8, LENGTH)),
            np.zeros(8, dtype=int), present=0, seed=0,
        )  # fmt: skip
        run = make_run(model=model, data=canaries.dataset(data), batch_size=16)
        torch.manual_seed(7)
        if attach:
            with CanaryAudit(
                run.optimizer, canaries=canaries, model=run.model,
                observation=Observation(criterion=run.criterion),
                data_loader=run.loader,
            ):  # fmt: skip
                run.train(2)
        else:
            run.train(2)
        weights.append(run.weights())
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("optimizer", "check"), [(NoNoise, "steps without noise"), (Noise75, "noise scale")]
)
def test_noise_that_is_missing_shows_with_examples(optimizer, check):
    run, audit = token_run(Attention, optimizer=optimizer)
    claim = ag.PrivacyClaim(epsilon=run.engine.get_epsilon(1e-5), delta=1e-5)
    result = audit.result(claim=claim)
    assert result.verdict is ag.Verdict.VIOLATION
    assert check in failed(result)


def test_noise_watched_with_examples_is_the_noise(tmp_path):
    """What was released less the sum before it, and the same after a restart."""
    run, audit = token_run(Attention, epochs=2)
    recorded = audit.transcript()
    count = recorded.watch_values.size
    # Off by five standard errors once in two million seeds.
    assert recorded.watch_values.std() == pytest.approx(1.0, abs=5 / (2 * count) ** 0.5)
    assert recorded.facts.watch_background == "known"
    audit.save(tmp_path / "audit.npz")
    again = CanaryAudit(
        run.optimizer,
        canaries=copy.copy(audit.canaries),
        model=run.model,
        observation=Observation(criterion=run.criterion),
        data_loader=run.loader,
        checkpoint=tmp_path / "audit.npz",
    )
    np.testing.assert_array_equal(again.transcript().watch_values, recorded.watch_values)


def test_without_a_look_at_the_noise_nothing_is_said_of_it():
    run = make_run(data=TensorDataset(torch.randn(128, FEATURES), torch.arange(128) % 4))
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, seed=0, observation=Observation(background="unknown")
    ) as audit:
        run.train(3)
    transcript = audit.transcript()
    claim = ag.PrivacyClaim(epsilon=50.0, delta=1e-5)
    assert finding(ag.audit(transcript, claim=claim), "steps without noise").status is Status.PASS
    from dataclasses import replace

    blind = transcript.with_facts(replace(transcript.facts, watch_background=None))
    result = ag.audit(blind, claim=claim)
    assert finding(result, "steps without noise").status is Status.NOT_RUN


def test_an_accountant_is_asked_for_no_more_than_the_claim_needs(monkeypatch):
    """An exact epsilon in the hundreds took a minute: far above the claim a rough one will do."""
    asked = []
    exact = PRVAccountant.get_epsilon

    def noted(self, delta, *, eps_error=0.01, **options):
        asked.append(eps_error)
        return exact(self, delta, eps_error=eps_error, **options)

    monkeypatch.setattr(PRVAccountant, "get_epsilon", noted)
    accountant = PRVAccountant()
    accountant.history = [(1.0, 0.125, 300)]
    ledger = Ledger(SimpleNamespace(accountant=accountant))
    true = accountant.get_epsilon(1e-5)
    assert ledger.epsilon(1e-5, claimed=2.0) == pytest.approx(true, abs=0.2)
    assert ledger.epsilon(1e-5, claimed=true) == true
    assert asked == [0.01, 0.1, pytest.approx(0.05 * true), 0.01]
    # What was read with the audit attached is known.
    with Attachment() as attachment:
        ledger.attach(attachment)
        accountant.get_epsilon(delta=1e-6)
    del asked[:]
    assert ledger.epsilon(1e-6, claimed=true) == pytest.approx(exact(accountant, 1e-6))
    assert asked == []
