"""Opacus: further leaking loops as people write them, and further correct ones."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.loops import Leak, Run
from benchmarks.loops.opacus import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    HIDDEN,
    RECORDS,
    Sampler,
    Training,
    images,
    loss_of,
    mixed,
    of,
    plain,
    replaced,
    rows,
    step,
)

__all__ = ["CORRECT", "LEAKS"]

# --- other records than were drawn ----------------------------------------------------------------


class Replay:
    """Keeps the hardest records met, and trains on them again.

    Args:
        instead: Whether they take the place of drawn ones, so that batches stay as large.
    """

    def __init__(self, instead: bool) -> None:
        self.instead = instead

    def __call__(self, run: Training) -> None:
        kept: list[Any] = vars(run).setdefault("replayed", [])
        for features, target in run.loader:
            given, labels = features, target
            if kept:
                first = 4 if self.instead else 0
                given = torch.cat([kept[-1][0], features[first:]])
                labels = torch.cat([kept[-1][1], target[first:]])
            step(run, given, labels)
            with torch.no_grad():
                hard = loss_of(run, features, target).argsort()[-4:]
            if len(hard) == 4:
                kept.append((features[hard], target[hard]))


def by_class(run: Training) -> None:
    """A step for the records of each class."""
    for features, target in run.loader:
        for label in range(CLASSES):
            step(run, features[target == label], target[target == label])


def without_outliers(run: Training) -> None:
    """Rows whose norm is large are left out of the batch."""
    for features, target in run.loader:
        near = features.norm(dim=1) < 3.5
        step(run, features[near], target[near])


def large_gradients_skipped(run: Training) -> None:
    """No step where the gradient of the batch is large."""
    for features, target in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.model(features), target).backward()
        total = sum(float(item.grad_sample.mean(0).norm()) ** 2 for item in run.optimizer.params)
        if total**0.5 < 0.35:
            run.optimizer.step()


def second_forward(run: Training) -> None:
    """The loss has a second term, of the same fixed private records in every step."""
    for features, target in run.loader:
        run.optimizer.zero_grad()
        loss = run.criterion(run.model(features), target)
        if len(target):
            size = len(target)
            loss = loss + run.criterion(run.model(run.features[:size]), run.labels[:size])
        loss.backward()
        run.optimizer.step()


class ByLoss(Sampler):
    """Draws hard records more often, at the same rate on average."""

    def __init__(self, run: Training) -> None:
        super().__init__(run.loader.batch_sampler, lambda batch: batch)
        self.run = run

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            with torch.no_grad():
                losses = loss_of(self.run, self.run.features, self.run.labels)
            rates = (self.sample_rate * losses**2 / (losses**2).mean()).clamp(max=1.0)
            yield torch.nonzero(torch.rand(RECORDS) < rates).flatten().tolist()


def draws_by_loss(run: Training) -> None:
    run.loader = DataLoader(
        run.data,
        batch_sampler=ByLoss(run),  # type: ignore[arg-type]
        collate_fn=run.loader.collate_fn,
    )


def leftover(run: Training) -> None:
    """Three batches to a step, and the leftover ones go into the next epoch's first."""
    count: Iterator[int] = vars(run).setdefault("count", itertools.count(1))
    for features, target in run.loader:
        run.optimizer.signal_skip_step(next(count) % 3 != 0)
        step(run, features, target)


# --- gradients that nobody clips ------------------------------------------------------------------


def second_gradient(run: Training) -> list[Tensor]:
    """The gradient of a term of the private data that no clipping has met."""
    model = run.model._module
    with torch.enable_grad():
        lost = functional.cross_entropy(
            torch.func.functional_call(model, dict(model.named_parameters()), (run.features,)),
            run.labels,
        )
        return list(torch.autograd.grad(lost, run.optimizer.params))


def adds_after_clipping(run: Training) -> None:
    def clip(self: Any) -> None:
        DPOptimizer.clip_and_accumulate(self)
        run.model.disable_hooks()
        for item, more in zip(self.params, second_gradient(run), strict=True):
            item.summed_grad = item.summed_grad + more
        run.model.enable_hooks()

    replaced(clip_and_accumulate=clip)(run)


def adds_after_noise(run: Training) -> None:
    def hook(optimizer: Any) -> None:
        run.model.disable_hooks()
        for item, more in zip(optimizer.params, second_gradient(run), strict=True):
            item.grad += more
        run.model.enable_hooks()

    run.optimizer.attach_step_hook(hook)


def scaled_by_private_norm(run: Training) -> None:
    """The released gradient gets the norm that the private one had."""

    def hook(optimizer: Any) -> None:
        private = torch.cat([item.summed_grad.flatten() for item in optimizer.params]).norm()
        released = torch.cat([item.grad.flatten() for item in optimizer.params]).norm()
        for item in optimizer.params:
            item.grad *= private / released

    run.optimizer.attach_step_hook(hook)


def momentum_before_noise(run: Training) -> None:
    kept: dict[int, Tensor] = {}

    def clip(self: Any) -> None:
        DPOptimizer.clip_and_accumulate(self)
        for place, item in enumerate(self.params):
            item.summed_grad = item.summed_grad + 0.9 * kept.get(place, 0.0)
            kept[place] = item.summed_grad.clone()

    replaced(clip_and_accumulate=clip)(run)


def biases_without_noise(self: Any) -> None:
    for item in self.params:
        deviation = self.noise_multiplier * self.max_grad_norm if item.dim() > 1 else 0.0
        noise = torch.normal(0.0, deviation, item.summed_grad.shape)
        item.grad = (item.summed_grad + noise).view_as(item)


def cached_noise(run: Training) -> None:
    """Noise is drawn at the start of an epoch, and the steps take turns with eight of them."""
    drawn = [
        [torch.randn_like(item) for item in run.optimizer.params] for _ in range(RECORDS // BATCH)
    ]
    count = itertools.count()

    def add_noise(self: Any) -> None:
        noise = drawn[next(count) % len(drawn)]
        for item, own in zip(self.params, noise, strict=True):
            item.grad = item.summed_grad + self.noise_multiplier * self.max_grad_norm * own

    replaced(add_noise=add_noise)(run)


def warm_up_without_noise(run: Training) -> None:
    """The first three steps have a noise multiplier of nearly zero."""
    for features, target in run.loader:
        count = vars(run).setdefault("counted", itertools.count())
        run.optimizer.noise_multiplier = 1e-3 if next(count) < 3 else 1.0
        step(run, features, target)


def plain_head(run: Training) -> None:
    """A second optimizer trains the last layer on its private gradient."""
    head = list(run.model.parameters())[-2:]
    other = torch.optim.SGD(head, lr=0.1)
    for features, target in run.loader:
        step(run, features, target)
        run.model.disable_hooks()
        other.zero_grad()
        run.criterion(run.model(features), target).backward()
        other.step()
        run.model.enable_hooks()
        run.optimizer.zero_grad()


class Headed(nn.Module):
    """A private body, and a head that the private optimizer does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(features).tanh())
        return scores


def body_only(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(parameters)[:2], lr=0.1)


def head_by_itself(run: Training) -> None:
    """The head has a plain optimizer, and the gradient that the backward pass left it."""
    head = run.model._module.head
    other = vars(run).setdefault("other", torch.optim.SGD(head.parameters(), lr=0.1))
    for features, target in run.loader:
        other.zero_grad()
        step(run, features, target)
        for item in head.parameters():
            if getattr(item, "grad_sample", None) is not None:
                item.grad = item.grad_sample.mean(0)
                item.grad_sample = None
        other.step()


class Tied(nn.Module):
    """The same weights embed and decode."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, FEATURES, bias=False)
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.last(self.embed(self.embed(features).tanh()).tanh())
        return scores


def averaged_by_loss(run: Training) -> None:
    """Weights of an epoch enter the average that is trained on only if the private loss fell."""
    plain(run)
    kept: dict[str, Any] = vars(run).setdefault("averaged", {"loss": float("inf"), "count": 0})
    with torch.no_grad():
        loss = float(loss_of(run, run.features, run.labels).mean())
        if loss >= kept["loss"]:
            return
        items = [item.clone() for item in run.model.parameters()]
        old = kept.get("items", items)
        kept["items"] = [0.5 * (one + other) for one, other in zip(old, items, strict=True)]
        kept["loss"] = loss
        for item, mean in zip(run.model.parameters(), kept["items"], strict=True):
            item.copy_(mean)


def toward_private_mean(run: Training) -> None:
    """Weight decay, toward the mean of the private records in place of zero."""
    for features, target in run.loader:
        step(run, features, target)
        with torch.no_grad():
            weight = next(run.model.parameters())
            weight += 0.001 * (run.features.mean(0) - weight)


# --- records that meet ----------------------------------------------------------------------------


def scaled_by_loss(run: Training, output: Tensor, target: Tensor) -> Tensor:
    lost: Tensor = run.criterion(output, target)
    return lost / lost.detach()


def centred_teacher(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """Soft labels of an averaged teacher, centred over the batch."""
    with torch.no_grad():
        seen = output.detach() + functional.one_hot(target, CLASSES)
        soft = (4.0 * (seen - seen.mean(0))).softmax(1)
    return -(soft * output.log_softmax(1)).sum(1).mean()


def hardest_weighted(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """Records weigh by their share of the loss of the batch."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses.detach().softmax(0) * losses).sum()


def quantile_cut(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """Losses above the batch's 80 % quantile are not counted."""
    losses = functional.cross_entropy(output, target, reduction="none")
    if not len(losses):
        return losses.sum()
    return (losses * (losses <= losses.detach().quantile(0.8))).mean()


def standardised(features: Tensor, _: Tensor) -> Tensor:
    if len(features) < 2:
        return features
    return (features - features.mean(0)) / features.std(0)


def with_neighbour(features: Tensor, _: Tensor) -> Tensor:
    """Each record is moved toward its nearest neighbour in the batch."""
    if len(features) < 2:
        return features
    apart = torch.cdist(features, features).fill_diagonal_(float("inf"))
    near = features[apart.argmin(1)]
    return features + torch.rand(len(features), 1) * (near - features)


class BatchAttention(nn.Module):
    """Records attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        seen = self.first(features)
        seen = seen + (seen @ seen.T / 4.0).softmax(1) @ seen if len(seen) else seen
        scores: Tensor = self.last(seen.tanh())
        return scores


class MemoryBank(nn.Module):
    """Records attend to those of the batches before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.bank = torch.zeros(1, HIDDEN)

    def forward(self, features: Tensor) -> Tensor:
        seen = self.first(features)
        found = (seen @ self.bank.T / 4.0).softmax(1) @ self.bank
        if self.training and len(seen):
            self.bank = torch.cat([seen.detach(), self.bank])[:64]
        scores: Tensor = self.last((seen + found).tanh())
        return scores


_MIXED = ("mixed records",)
_GRADIENT = "per-sample gradient"
_WRITTEN = ("weights between steps", "parameters outside the optimizer")
_MOVED = ("weights moved by the release", "weights between steps")
_OUTSIDE = (
    "parameters outside the optimizer",
    "trained parameters without canaries",
    "weights moved by the release",
    "weights between steps",
    "noise coverage",
)

LEAKS: dict[str, dict[str, Leak]] = {
    "Further loops that leak": {
        "hard records of earlier steps added": Leak(of(Replay(False)), ("rows per record",)),
        "hard records of earlier steps in the place of drawn ones": Leak(
            of(Replay(True)), ("rows per record", "training loader"), "trained rows"
        ),
        "a step for each class": Leak(of(by_class), ("rows per record", "repeated batches")),
        "rows of a large norm left out": Leak(of(without_outliers), ("rows per record",)),
        "no step where the private gradient is large": Leak(
            of(large_gradients_skipped), ("unused batches",)
        ),
        "a second term over fixed private records": Leak(
            of(second_forward), ("rows per record", "repeated batches", *_MIXED), _GRADIENT
        ),
        "records drawn by their loss": Leak(
            of(change=draws_by_loss, epochs=20),
            ("sampling scheme", "single records", "sampling of pairs", "sampling in time"),
        ),
        "three batches to a step, accounted as one": Leak(
            of(leftover), ("rows per record", "sampling rate", "accounted epsilon"), "sampler"
        ),
        "private gradient added after clipping": Leak(
            of(change=adds_after_clipping), ("sum of records",)
        ),
        "private gradient added after the noise": Leak(of(change=adds_after_noise), ("divisor",)),
        "released gradient scaled to the private norm": Leak(
            of(change=scaled_by_private_norm), ("divisor",)
        ),
        "momentum before the noise": Leak(
            of(change=momentum_before_noise), ("sum of records", "carry-over")
        ),
        "biases without noise": Leak(
            of(change=replaced(add_noise=biases_without_noise)),
            ("noise coverage", "noise by tensor"),
        ),
        "noise drawn once for eight steps": Leak(of(change=cached_noise), ("repeated noise",)),
        "first three steps nearly without noise": Leak(
            of(warm_up_without_noise),
            (
                "noise multiplier schedule",
                "accounted epsilon",
                "noise by step",
                "noise scale",
                "steps without noise",
            ),
        ),
        "a second, plain optimizer for the last layer": Leak(of(plain_head), _MOVED),
        "head that only a plain optimizer has": Leak(
            of(head_by_itself, network=Headed, optimizer=body_only), _OUTSIDE
        ),
        "average chosen by the private loss, trained on": Leak(of(averaged_by_loss), _WRITTEN),
        "decay toward the mean of the private data": Leak(of(toward_private_mean), _WRITTEN),
        "loss divided by its own value": Leak(mixed(loss=scaled_by_loss), _MIXED, _GRADIENT),
        "soft labels centred over the batch": Leak(mixed(loss=centred_teacher), _MIXED, _GRADIENT),
        "records weighed by their share of the batch's loss": Leak(
            mixed(loss=hardest_weighted), _MIXED, _GRADIENT
        ),
        "losses above a quantile cut off": Leak(mixed(loss=quantile_cut), _MIXED, _GRADIENT),
        "inputs standardised by the batch": Leak(mixed(standardised), _MIXED, _GRADIENT),
        "inputs moved toward a neighbour": Leak(mixed(with_neighbour), _MIXED, _GRADIENT),
        "attention over the batch": Leak(mixed(network=BatchAttention), _MIXED, _GRADIENT),
        "memory of earlier batches": Leak(mixed(network=MemoryBank), _MIXED, _GRADIENT),
    },
}


# --- correct --------------------------------------------------------------------------------------


def decay_in_the_loss(run: Training, output: Tensor, target: Tensor) -> Tensor:
    lost: Tensor = run.criterion(output, target)
    return lost + 0.01 * sum(item.square().sum() for item in run.model.parameters())


def teacher(run: Training) -> None:
    """Targets of an average of the released weights, record by record."""
    own = run.model._module
    kept = vars(run).setdefault("teacher", copy.deepcopy(own).requires_grad_(False))
    for item in kept.modules():
        item._forward_hooks.clear()
        item._backward_hooks.clear()
    for features, target in run.loader:
        run.optimizer.zero_grad()
        output = run.model(features)
        with torch.no_grad():
            soft = kept(features).softmax(1)
        lost = run.criterion(output, target) - (soft * output.log_softmax(1)).sum(1).mean()
        lost.backward()
        run.optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(kept.parameters(), own.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


def by_tensor(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    items = list(parameters)
    return torch.optim.SGD(
        [{"params": items[:2], "lr": 0.05}, {"params": items[2:], "lr": 0.2, "momentum": 0.9}]
    )


class Scaling(torch.optim.SGD):
    """Scales each released gradient by its own norm (LARS)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for item in group["params"]:
                if item.grad is not None:
                    item.grad.mul_(0.1 / (item.grad.norm() + 1e-6))
        return super().step(closure)


def frozen_body() -> nn.Module:
    model = Headed()
    model.body.requires_grad_(False)
    return model


def logged(run: Training) -> None:
    """Accuracy of the training and of other records after every step."""
    others = torch.randn(20, FEATURES)
    for features, target in run.loader:
        step(run, features, target)
        run.model.eval()
        with torch.no_grad():
            run.model(features).argmax(1)
            run.model(others)
        run.model.train()


def cut_short(run: Training) -> None:
    for features, target in itertools.islice(run.loader, 5):
        step(run, features, target)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = DPLSTM(2, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        seen, _ = self.inner(features.reshape(len(features), -1, 2))
        scores: Tensor = self.last(seen[:, -1])
        return scores


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, HIDDEN)
        self.one, self.two = nn.Linear(HIDDEN, CLASSES), nn.Linear(HIDDEN, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.body(features).tanh()
        return self.one(seen), self.two(seen)


def two_tasks(run: Training) -> None:
    for features, target in run.loader:
        run.optimizer.zero_grad()
        one, two = run.model(features)
        lost = run.criterion(one, target)
        lost = lost + functional.huber_loss(two[:, 0], features[:, 0], reduction="mean")
        lost.backward()
        run.optimizer.step()


def multi_label(run: Training, output: Tensor, target: Tensor) -> Tensor:
    wanted = functional.one_hot(target, CLASSES).float()
    return functional.binary_cross_entropy_with_logits(output, wanted)


def huber(run: Training, output: Tensor, target: Tensor) -> Tensor:
    return functional.huber_loss(output, functional.one_hot(target, CLASSES).float())


def in_parts(run: Training) -> None:
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer
    ) as loader:
        for features, target in loader:
            step(run, features, target)


def average_aside(run: Training) -> None:
    kept = vars(run).setdefault("average", AveragedModel(run.model._module))
    plain(run)
    kept.update_parameters(run.model._module)


def look_ahead(run: Training) -> None:
    """Every epoch goes back half way to where it began: declared."""
    before = [item.detach().clone() for item in run.model.parameters()]
    plain(run)
    assert run.audit is not None
    with run.audit.postprocessing(), torch.no_grad():
        for item, old in zip(run.model.parameters(), before, strict=True):
            item.lerp_(old, 0.5)


def saved_and_loaded(run: Training) -> None:
    plain(run)
    state = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict()))
    run.model.load_state_dict(state[0])
    run.optimizer.load_state_dict(state[1])


def quieter(run: Training) -> None:
    scheduler = vars(run).setdefault("noise", ExponentialNoise(run.optimizer, gamma=1.02))
    plain(run)
    scheduler.step()


class Views(nn.Module):
    """Averages what it says of a record and of its mirror image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.Tanh())
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        seen = torch.stack([features, features.flip(-1)], 1)
        scores: Tensor = self.last(self.inner[1:](seen.flatten(2)).mean(1))
        return scores


def strange_records() -> TensorDataset:
    """Some equal, some zero, some far off."""
    data = rows()
    data.tensors[0][:20] = data.tensors[0][20]
    data.tensors[0][30:40] = 0.0
    data.tensors[0][40] *= 1e4
    return data


def scaled_by_step(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """A loss that a schedule scales."""
    count = next(vars(run).setdefault("scale", itertools.count()))
    lost: Tensor = (1.0 + 0.1 * count) * run.criterion(output, target)
    return lost


def curriculum(run: Training, output: Tensor, target: Tensor) -> Tensor:
    """Each record weighs by its own loss: no other record enters."""
    losses = functional.cross_entropy(output, target, reduction="none")
    return (losses.detach().clamp(max=2.0) * losses).mean()


def two_learning_rates(run: Training) -> None:
    plain(run)
    run.optimizer.param_groups[0]["lr"] *= 0.9


_adam: Callable[[Any], torch.optim.Optimizer] = lambda items: torch.optim.AdamW(items, 0.01)  # noqa: E731

CORRECT: dict[str, Run] = {
    "decay in the loss (which Opacus leaves out)": mixed(loss=decay_in_the_loss),
    "teacher of averaged weights": of(teacher),
    "two groups of parameters": of(optimizer=by_tensor),
    "optimizer that scales by its gradient's norm": of(
        optimizer=lambda items: Scaling(items, lr=0.1)
    ),
    "frozen body": of(network=frozen_body),
    "logged after every step": of(logged),
    "epochs cut short": of(cut_short),
    "LSTM": of(network=Recurrent, epochs=2),
    "two heads, two losses": of(two_tasks, network=TwoHeads),
    "tied weights": of(network=Tied, exact_share=1.0),
    "binary losses": mixed(loss=multi_label),
    "Huber loss": mixed(loss=huber),
    "ghost in virtual steps, AdamW": of(in_parts, grad_sample_mode="ghost", optimizer=_adam),
    "average kept aside": of(average_aside),
    "half way back, declared": of(look_ahead),
    "saved and loaded": of(saved_and_loaded),
    "noise by a schedule": of(quieter),
    "views averaged in the model": mixed(network=Views, data=images),
    "equal, zero and distant records": of(data=strange_records),
    "loss scaled by a schedule": mixed(loss=scaled_by_step),
    "records weighed by their own loss": mixed(loss=curriculum),
    "learning rate by epoch, by hand": of(two_learning_rates, epochs=EPOCHS),
}
