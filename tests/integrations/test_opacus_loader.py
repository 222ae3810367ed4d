"""The batches that a loader really draws are held against what was accounted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset, WeightedRandomSampler

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus.row_watch import LoaderWatch
from askgauss.results import Status, Verdict
from askgauss.sampling import CyclicPoisson
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, make_run, observer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SAMPLER_CHECKS = {
    "sampling rate",
    "sampling scheme",
    "sampling of pairs",
    "sampling in time",
    "batch sizes",
    "single records",
}


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def failed(result):
    return {item.check for item in result.findings if item.status is Status.FAIL}


def claim_of(run, factor=1.001):
    return ag.PrivacyClaim(epsilon=factor * run.engine.get_epsilon(1e-5), delta=1e-5)


class CyclicSampler(Sampler):
    """Four groups of records in turn, each by coins of four times the rate that it states."""

    def __init__(self, records, sample_rate, cycle=4):
        self.records, self.sample_rate, self.cycle, self.step = records, sample_rate, cycle, 0

    def __iter__(self):
        for _ in range(len(self)):
            group = np.arange(self.records)[self.step % self.cycle :: self.cycle]
            self.step += 1
            chosen = torch.rand(group.size) < self.cycle * self.sample_rate
            yield group[chosen.numpy()].tolist()

    def __len__(self):
        return round(1 / self.sample_rate)


def with_sampler(run, sampler):
    run.loader = DataLoader(run.loader.dataset, batch_sampler=sampler)
    return run


def audited(run, epochs, **options):
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, seed=0, model=run.model, **options
    ) as audit:
        run.train(epochs)
    return audit


@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_is_read_from_the_loader(physical, workers):
    torch.manual_seed(0)
    run = make_run()
    sampler = run.loader.batch_sampler
    own = type(sampler)
    run.loader = DataLoader(
        run.loader.dataset,
        batch_sampler=sampler,
        collate_fn=run.loader.collate_fn,
        num_workers=workers,
    )
    drawn = []
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        watch = observer(audit, LoaderWatch)
        add = watch._add
        watch._add = lambda batch: (drawn.append(len(batch)), add(batch))
        run.train(3, physical)
    assert type(sampler) is own
    facts = audit.transcript().facts
    assert facts.batches.steps == len(drawn) == 24
    assert facts.batches.records == RECORDS
    assert facts.batches.drawn == sum(drawn)
    assert "sampler" in facts.exercised
    result = audit.result(claim=claim_of(run))
    assert not failed(result) & SAMPLER_CHECKS
    assert next(part for part in result.scope if part.name == "sampler").status == "fine"


@pytest.mark.parametrize("cycle", [4, 1])
def test_a_cyclic_sampler_accounted_as_poisson_breaks_the_claim_undeclared(cycle):
    """At 96 steps records come back every fourth step only: chance never gives that."""
    run = with_sampler(make_run(), CyclicSampler(RECORDS, 1 / 8, cycle))
    result = audited(run, 12).result(claim=claim_of(run))
    if cycle == 1:
        assert not failed(result) & {*SAMPLER_CHECKS, "accounted sampling"}
        assert result.verdict is not Verdict.VIOLATION
        return
    assert {"sampling in time", "accounted sampling"} <= failed(result)
    assert result.verdict is Verdict.VIOLATION
    found = finding(result, "accounted sampling")
    assert "consistent with cyclic Poisson sampling" in found.summary
    assert "every 4th step" in found.summary
    true = CyclicPoisson(rate=0.5, cycle=4).epsilon_lower(
        noise_multiplier=run.optimizer.noise_multiplier, steps=96, delta=1e-5
    )
    assert claim_of(run).epsilon < found.measured <= true


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loader_that_shuffles_is_named_with_the_epsilon_it_has(shuffle):
    """In their own order the batches of every epoch are the same, and a record's is known."""
    run = make_run()
    run.loader = DataLoader(run.loader.dataset, batch_size=16, shuffle=shuffle)
    result = audited(run, 6).result(claim=claim_of(run))
    found = finding(result, "accounted sampling")
    if shuffle:
        assert found.status is Status.WARN
        assert 0.0 < found.measured < claim_of(run).epsilon
        assert "consistent with shuffled epochs of 8 batches" in found.summary
        assert result.verdict is Verdict.INVALID
    else:
        assert "rate 1 in every 8th step" in found.summary
        assert found.measured > claim_of(run).epsilon
        assert result.verdict is Verdict.VIOLATION


@pytest.mark.parametrize("cycle", [4, 1])
def test_a_declared_scheme_gets_the_epsilon_it_really_has(cycle):
    """Cycle 1 is Poisson sampling itself: the clean twin."""
    run = with_sampler(make_run(), CyclicSampler(RECORDS, 1 / 8, cycle))
    scheme = CyclicPoisson(rate=cycle / 8, cycle=cycle)
    result = audited(run, 6, sampling=scheme).result(claim=claim_of(run))
    assert not failed(result) & SAMPLER_CHECKS
    found = finding(result, "accounted sampling")
    if cycle == 1:
        assert found.status is not Status.FAIL
        assert result.verdict is not Verdict.VIOLATION
        return
    assert found.status is Status.FAIL
    assert result.verdict is Verdict.VIOLATION
    assert found.measured > 1.1 * run.engine.get_epsilon(1e-5)
    assert "4 groups" in found.summary or "cyclic" in found.summary.lower()


def test_a_sampler_that_states_another_rate_is_named():
    run = make_run()
    sampler = CyclicSampler(RECORDS, 1 / 8, 1)
    draws = CyclicSampler.__iter__

    class Twice(CyclicSampler):
        def __iter__(self):
            rate, self.sample_rate, self.cycle = self.sample_rate, self.sample_rate, 2
            for batch in draws(self):
                others = np.flatnonzero(torch.rand(self.records).numpy() < rate)
                yield sorted({*batch, *others.tolist()})

    sampler.__class__ = Twice
    result = audited(with_sampler(run, sampler), 6).result(claim=claim_of(run))
    found = finding(result, "sampling rate")
    assert "sampling rate" in failed(result)
    assert found.measured > 1.5 / 8
    assert result.verdict is Verdict.VIOLATION


def test_a_weighted_sampler_is_named():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(RECORDS, FEATURES), torch.arange(RECORDS) % CLASSES)
    run = make_run(data=data)
    weights = torch.ones(RECORDS)
    weights[:16] = 8.0
    run.loader = DataLoader(data, batch_size=16, sampler=WeightedRandomSampler(weights, RECORDS))
    result = audited(run, 3).result(claim=claim_of(run))
    assert result.verdict is Verdict.INVALID
    assert "sampling scheme" in failed(result)

    class Weighted(CyclicSampler):
        """The same by coins, in a class that states the rate that was accounted."""

        def __iter__(self):
            rates = self.sample_rate * (weights / weights.mean()).numpy()
            for _ in range(len(self)):
                yield np.flatnonzero(torch.rand(self.records).numpy() < rates).tolist()

    run = with_sampler(make_run(data=data), Weighted(RECORDS, 1 / 8, 1))
    result = audited(run, 6).result(claim=claim_of(run))
    assert failed(result) & SAMPLER_CHECKS
    assert result.verdict is not Verdict.CONSISTENT


def test_what_cannot_be_followed_is_not_judged_and_stops_nothing():
    run = make_run()
    features, target = next(iter(run.loader))
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train()
        for _ in range(2):
            run.optimizer.zero_grad()
            run.criterion(run.model(features), target).backward()
            run.optimizer.step()
    facts = audit.transcript().facts
    assert facts.batches is None
    assert facts.rows.again == 2
    assert any("did not train on the records drawn for it" in note for note in facts.notes)
    assert "sampler" not in facts.exercised
    with CanaryAudit(run.optimizer, sampling_rate=0.125, seed=0) as audit:
        run.train()
    assert audit.transcript().facts.batches is None


def test_passes_without_steps_are_left_out():
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        for _ in range(3):
            run.train()
            for _ in run.loader:
                pass
    assert audit.transcript().facts.batches.steps == 24


def test_a_resumed_run_goes_on_with_its_batches(tmp_path):
    run = make_run()
    audited(run, 2, checkpoint=tmp_path / "audit.npz")
    again = CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=tmp_path / "audit.npz")
    with again:
        run.train(2)
    assert again.transcript().facts.batches.steps == 32
