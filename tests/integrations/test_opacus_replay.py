"""Replay of Opacus runs: unchanged loops in every mode pass, and each leak is named.

Nothing here is random beyond fixed seeds: a correct implementation never fails.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import opacus
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import askgauss as ag
from askgauss.exceptions import (
    InvalidArgumentError,
    NotDeterministicError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.opacus_replay import follow, training

ALL = ("add-remove", "replace-one", "zero-out")
CRITERION = nn.CrossEntropyLoss()
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def records(count=105):
    """Gradients far above the clip norm, so that raw sums show."""
    generator = torch.Generator().manual_seed(1)
    features = 3.0 * torch.randn(count, 8, generator=generator)
    return TensorDataset(features, torch.randint(0, 3, (count,), generator=generator))


def network(*between):
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), *between, nn.Linear(12, 3))


def private(data, *, model=None, optimizer="sgd", mode="hooks", batch_size=10, **options):
    """Model, optimizer, criterion and loader of a private run."""
    module = network() if model is None else model
    extra = {"criterion": CRITERION} if mode == "ghost" else {}
    made = opacus.PrivacyEngine().make_private(
        module=module,
        optimizer=OPTIMIZERS[optimizer](module.parameters()),
        data_loader=DataLoader(data, batch_size=batch_size),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        grad_sample_mode=mode,
        **extra,
        **options,
    )
    if mode == "ghost":
        return made
    return made[0], made[1], CRITERION, made[2]


def step(model, optimizer, criterion, batch):
    optimizer.zero_grad()
    loss = criterion(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def loop(*, epochs=2, schedule=False, virtual=False, **options):
    """An ordinary training loop."""

    def train(data, replay):
        model, optimizer, criterion, loader = private(data, **options)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if schedule else None
        for _ in range(epochs):
            if virtual:
                with BatchMemoryManager(
                    data_loader=loader, max_physical_batch_size=4, optimizer=optimizer
                ) as pieces:
                    for batch in pieces:
                        step(model, optimizer, criterion, batch)
                continue
            for batch in loader:
                step(model, optimizer, criterion, batch)
                if scheduler is not None:
                    scheduler.step()

    return train


CLEAN = [
    {"optimizer": name, "mode": mode, "schedule": name == "momentum", "virtual": virtual}
    for (name, mode), virtual in zip(
        itertools.product(OPTIMIZERS, ("hooks", "functorch", "ghost")),
        itertools.cycle((False, True, False, False, False)),
        strict=False,
    )
]


@pytest.mark.parametrize("options", CLEAN, ids=lambda item: "-".join(map(str, item.values())))
def test_a_correct_run_passes(options):
    report = ag.replay(loop(**options), records(), leave_out=17, steps=4)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)
    assert report.differences == ()
    assert report.present[0] == 1
    # The record is clipped, and rounding is far below a thousandth.
    assert report.moved == pytest.approx(1.0, abs=1e-3)
    assert not report.elsewhere
    assert report.compared["divisor"] == report.steps == 4


@pytest.mark.parametrize("options", [{"clipping": "per_layer"}, {"poisson_sampling": False}])
def test_other_correct_runs_pass(options):
    if options.get("clipping"):

        def train(data, replay):
            model = network()
            count = len(list(model.parameters()))
            loader = DataLoader(data, batch_size=10)
            model, optimizer, loader = opacus.PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
                data_loader=loader,
                noise_multiplier=1.0,
                max_grad_norm=[0.25] * count,
                clipping="per_layer",
            )
            follow(replay, model=model, optimizer=optimizer, data_loader=loader)
            for batch in loader:
                step(model, optimizer, CRITERION, batch)

    else:
        train = loop(**options)
    report = ag.replay(train, records(), leave_out=17, steps=3)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)


def test_the_divisor_of_opacus_follows_the_number_of_records():
    """100 records in batches of 10: the divisor is 10, and 9 where one is left out."""
    report = ag.replay(loop(), records(100), leave_out=17, steps=2)
    assert report.verdict is ag.Verdict.VIOLATION
    (found,) = report.differences
    assert (found.name, found.values) == ("divisor", ("10", "9"))
    assert found.leak_under == ("add-remove",)
    assert "the number of records" in str(report)
    for adjacency in ("replace-one", "zero-out"):
        report = ag.replay(loop(), records(100), leave_out=17, steps=2, adjacency=adjacency)
        assert report.verdict is ag.Verdict.CONSISTENT


def test_the_sampling_rate_of_opacus_follows_it_too():
    """101 records in batches of 10 are 11 batches an epoch, 100 are 10."""
    report = ag.replay(loop(), records(101), leave_out=17, steps=2)
    names = {item.name for item in report.leaks}
    assert {"sampling rate", "batches in an epoch", "divisor"} <= names
    assert all(item.leak_under == ("add-remove",) for item in report.leaks)


# --- leaks, each with a clean twin ---------------------------------------------------------------


class RunningMean(nn.Module):
    """A layer that keeps a mean of what passes, as batch normalisation does."""

    def __init__(self, momentum):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, values):
        if self.training and self.momentum and len(values):
            kept = (1 - self.momentum) * self.mean
            self.mean = kept + self.momentum * values.detach().mean(dim=0)
        return values


def buffers(broken):
    def train(data, replay):
        model = network(RunningMean(0.1 if broken else 0.0))
        loop(model=model)(data, replay)

    return train


def actual_batch_size(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            if broken:
                optimizer.expected_batch_size = max(len(batch[0]), 1)
            step(model, optimizer, criterion, batch)

    return train


def stop_by_batch(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            step(model, optimizer, criterion, batch)
            # One record has a feature above 10; so large is no weight.
            seen = batch[0] if broken else next(model.parameters())
            if seen.numel() and seen.abs().max() > 10.0:
                break

    return train


def logged_loss(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            loss = step(model, optimizer, criterion, batch)
            if broken:
                replay.public("loss", loss.item())
            else:
                replay.public("norm of the weights", float(next(model.parameters()).norm()))

    return train


def raw_sum(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        if broken:

            def clip_and_accumulate():
                for parameter in optimizer.params:
                    parameter.summed_grad = parameter.grad_sample.sum(dim=0)

            optimizer.clip_and_accumulate = clip_and_accumulate
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            step(model, optimizer, criterion, batch)

    return train


def seeded_noise(broken):
    def train(data, replay):
        seed = int(data.tensors[0].sum().item() * 1e3) if broken else 7
        generator = torch.Generator().manual_seed(abs(seed))
        loop(noise_generator=generator)(data, replay)

    return train


def noise_from_elsewhere(broken):
    """A noise of the loop's own, that no generator of torch gives."""

    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        seed = int(data.tensors[0].abs().sum().item() * 1e3) if broken else 7
        own = np.random.default_rng(seed)

        def add_noise():
            for parameter in optimizer.params:
                drawn = torch.tensor(own.normal(0.0, 0.5, parameter.shape), dtype=torch.float32)
                parameter.grad = parameter.summed_grad + drawn

        optimizer.add_noise = add_noise
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            step(model, optimizer, criterion, batch)

    return train


def scaled_by_data(broken):
    def train(data, replay):
        features, labels = data.tensors
        scale = features.abs().max() if broken else torch.tensor(12.0)
        replay.public("largest feature", scale)
        loop()(TensorDataset(features / scale, labels), replay)

    return train


def written_past(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            step(model, optimizer, criterion, batch)
            with torch.no_grad():
                shift = batch[0].mean() if broken else 1e-3
                next(model.parameters()).add_(1e-3 * shift)

    return train


def plateau(broken):
    def train(data, replay):
        model, optimizer, criterion, loader = private(data)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for batch in loader:
            loss = step(model, optimizer, criterion, batch)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1.0 + loss.item()) if broken else 0.9 * group["lr"]

    return train


LEAKS = {
    "running statistics": (buffers, "model 2.mean", "state", ALL),
    "batch-size divisor": (actual_batch_size, "divisor", "public", ("add-remove",)),
    "stop by the batch": (stop_by_batch, "number of steps", "control flow", ALL),
    "loss without noise": (logged_loss, "loss", "public", ALL),
    "raw sum": (raw_sum, "gradient", "release", ALL),
    "noise seeded from data": (seeded_noise, "seed of the noise generator", "seed", ALL),
    "noise of its own": (noise_from_elsewhere, "noise of gradient", "noise", ALL),
    "range of the data": (scaled_by_data, "largest feature", "public", ALL),
    "weights past the optimizer": (written_past, "model 0.weight", "state", ALL),
    "learning rate by loss": (plateau, "learning rate", "public", ALL),
}


@pytest.mark.parametrize("case", LEAKS)
def test_a_leak_is_named_and_its_clean_twin_is_not(case):
    make, name, kind, under = LEAKS[case]
    data = records()
    # The record with the largest feature is the one that ranges depend on.
    record = int(data.tensors[0].abs().max(dim=1).values.argmax())
    report = ag.replay(make(True), data, leave_out=record, steps=4)
    assert report.verdict is ag.Verdict.VIOLATION, str(report)
    found = {(item.name, item.kind): item for item in report.leaks}
    assert (name, kind) in found, str(report)
    assert found[name, kind].leak_under == under, str(report)
    report = ag.replay(make(False), data, leave_out=record, steps=4)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)


# --- randomness in model and data ----------------------------------------------------------------


class Augmented(Dataset):
    """Records that come with noise of torch's, numpy's or their own generator."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        features, label = self.data[index]
        return features + torch.randn(8) + float(np.random.normal()), label  # noqa: NPY002


def test_augmentation_is_coupled_by_record():
    report = ag.replay(
        lambda data, replay: loop()(Augmented(data), replay), records(), leave_out=17, steps=3
    )
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)


def test_dropout_is_coupled():
    def train(data, replay):
        loop(model=network(nn.Dropout(0.4)))(data, replay)

    report = ag.replay(train, records(), leave_out=17, steps=3)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)


def test_other_randomness_of_the_model_is_not_checked():
    class Noisy(nn.Module):
        def forward(self, values):
            return values + torch.randn_like(values)

    def train(data, replay):
        loop(model=network(Noisy()))(data, replay)

    report = ag.replay(train, records(), leave_out=17, steps=3)
    assert report.verdict is ag.Verdict.INCONCLUSIVE, str(report)
    assert "draws random numbers" in report.reason


# --- pieces, and optimizers that are not Opacus' -------------------------------------------------


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_run_from_its_pieces(mode):
    def make_private(module, optimizer, loader):
        extra = {"criterion": CRITERION} if mode == "ghost" else {}
        return opacus.PrivacyEngine().make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=0.5,
            grad_sample_mode=mode,
            **extra,
        )

    train = training(
        model=network,
        optimizer=OPTIMIZERS["adam"],
        data_loader=lambda data: DataLoader(data, batch_size=40),
        make_private=make_private,
        step=lambda model, optimizer, batch, criterion=CRITERION: step(
            model, optimizer, criterion, batch
        ),
    )
    # Three batches an epoch: five steps need two. A third of 107 and of 106 is 35 for Opacus.
    report = ag.replay(train, records(107), leave_out=17, steps=5)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)
    assert report.steps == 5


@pytest.mark.parametrize("broken", [False, True])
def test_an_optimizer_of_torch_with_a_step_of_its_own(broken):
    """Clipping and noise by hand; broken, batch normalisation mixes the records."""

    def train(data, replay):
        layer = nn.BatchNorm1d(8) if broken else nn.Identity()
        model = nn.Sequential(layer, nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size=15, shuffle=True)
        follow(replay, model=model, optimizer=optimizer, data_loader=loader, clip_norm=0.5)
        for features, labels in loader:
            losses = nn.functional.cross_entropy(model(features), labels, reduction="none")
            sums = [torch.zeros_like(item) for item in model.parameters()]
            for loss in losses:
                rows = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
                norm = torch.sqrt(sum(row.square().sum() for row in rows))
                for total, row in zip(sums, rows, strict=True):
                    total += row * min(1.0, 0.5 / float(norm))
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter.grad = total + 0.5 * torch.randn_like(total)
            optimizer.step()

    report = ag.replay(train, records(), leave_out=17, steps=3)
    if broken:
        names = {item.name for item in report.leaks}
        assert {"model 0.running_mean", "model 0.running_var"} <= names
    else:
        assert report.verdict is ag.Verdict.CONSISTENT, str(report)


# --- bad input -----------------------------------------------------------------------------------


def test_a_loader_that_is_not_rebuilt_is_refused():
    fixed = records()
    with pytest.raises(RecordingError, match="got one of 105"):
        ag.replay(lambda data, replay: loop()(fixed, replay), records(106), leave_out=17)
    with pytest.raises(RecordingError, match="created anew"):
        ag.replay(lambda data, replay: loop()(fixed, replay), records(), leave_out=17)
    kept = network()
    with pytest.raises(RecordingError, match="the model to be created anew"):
        ag.replay(lambda data, replay: _reused(kept, replay), records(), leave_out=17)


def _reused(model, replay):
    follow(replay, model=model, optimizer=OPTIMIZERS["sgd"](model.parameters()), clip_norm=1.0)


def test_workers_and_streams_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.zeros(8), 0)])

    def train(loader):
        def run(data, replay):
            model, optimizer, _, _ = private(data)
            follow(replay, model=model, optimizer=optimizer, data_loader=loader(data))

        return run

    with pytest.raises(UnsupportedError, match="num_workers=2"):
        ag.replay(
            train(lambda data: DataLoader(data, batch_size=5, num_workers=2)),
            records(),
            leave_out=1,
        )
    with pytest.raises(UnsupportedError, match="stream"):
        ag.replay(train(lambda data: DataLoader(Stream(), batch_size=5)), records(), leave_out=1)


def test_other_optimizers_are_refused_with_a_way_out():
    def train(make, **options):
        def run(data, replay):
            model = network()
            follow(replay, model=model, optimizer=make(model), **options)

        return run

    plain = train(lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidArgumentError, match="clip_norm"):
        ag.replay(plain, records(), leave_out=1)
    with pytest.raises(InvalidArgumentError, match="optimizer"):
        ag.replay(train(lambda model: None), records(), leave_out=1)


@pytest.mark.parametrize("by", ["the batch", "a constant"])
def test_adaptive_clipping_that_divides_its_count_by_the_batch_is_named(by):
    """Opacus adds noise to the count of unclipped records, and none to what it divides it by."""

    def adaptive(data, replay):
        model, optimizer, _, loader = private(
            data,
            clipping="adaptive",
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.2,
            max_clipbound=10.0,
            min_clipbound=0.01,
            unclipped_num_std=1.0,
        )
        if by == "a constant":
            update = optimizer.update_max_grad_norm

            def by_a_constant():
                optimizer.sample_size = 10
                update()

            optimizer.update_max_grad_norm = by_a_constant
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        while not replay.finished():
            replay.look()
            for features, labels in loader:
                optimizer.zero_grad()
                CRITERION(model(features), labels).backward()
                optimizer.step()

    report = ag.replay(adaptive, records(), leave_out=1)
    assert report.compared["count of unclipped records"] > 0
    assert report.moved <= 1.001
    if by == "a constant":
        assert report.verdict is ag.Verdict.CONSISTENT, str(report)
        return
    assert report.verdict is ag.Verdict.VIOLATION
    leak = next(item for item in report.leaks if item.name == "clip norm")
    assert "add-remove" in leak.leak_under
    assert "replace-one" not in leak.leak_under


def test_a_model_that_starts_differently_every_time_is_not_deterministic():
    def train(data, replay):
        model = network()
        with torch.no_grad():
            model[0].weight.add_(float(np.random.default_rng().normal()))
        loop(model=model)(data, replay)

    with pytest.raises(NotDeterministicError, match=r"model 0\.weight"):
        ag.replay(train, records(), leave_out=17)


def test_a_generator_seeded_from_entropy_is_no_leak():
    def train(data, replay):
        generator = torch.Generator()
        generator.seed()
        loop(noise_generator=generator)(data, replay)

    report = ag.replay(train, records(), leave_out=17, steps=2)
    assert report.verdict is ag.Verdict.CONSISTENT, str(report)
