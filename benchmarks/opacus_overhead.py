"""An Opacus run with the audit attached against the same run without it, step by step in turn."""

from __future__ import annotations

import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from askgauss.integrations.opacus import CanaryAudit, Observation

CANARIES = 5000
MANY_CANARIES = 200_000


class Block(nn.Module):
    """Two convolutions before a sum with their input."""

    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(16, width),
            nn.ReLU(),
            nn.Conv2d(width, wider, 3, stride, 1, bias=False),
            nn.GroupNorm(16, wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, 1, 1, bias=False),
        )
        same = width == wider and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(width, wider, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images to images."""
        return self.body(images) + self.skip(images)


def wide_resnet() -> nn.Module:
    """Sixteen layers, four times the width, 2.7 million parameters."""
    widths, layers, width = (64, 128, 256), [nn.Conv2d(3, 16, 3, 1, 1, bias=False)], 16
    for index, wider in enumerate(widths):
        layers += [Block(width, wider, 1 if index == 0 else 2), Block(wider, wider, 1)]
        width = wider
    head = [nn.GroupNorm(16, width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(width, 10))


def perceptron() -> nn.Module:
    """95,410 parameters."""
    return nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 10))


class Training:
    """A private run on one batch of random numbers, a step at a time."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], batch: int, mode: str) -> None:
        torch.manual_seed(0)
        self.features, self.target = torch.randn(batch, *shape), torch.arange(batch) % 10
        data = TensorDataset(self.features.repeat(12, *[1] * len(shape)), self.target.repeat(12))
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data_loader=DataLoader(data, batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion: Any = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step(self) -> None:
        """Forward, backward, noise, update."""
        self.optimizer.zero_grad()
        self.criterion(self.model(self.features), self.target).backward()
        self.optimizer.step()


def rows() -> Iterator[tuple[str, str]]:
    warnings.simplefilter("ignore", UserWarning)
    resnet = Training(wide_resnet(), (3, 32, 32), 32, "hooks")
    yield from _compared("WideResNet-16-4, batch 32", resnet, target=1.10, rounds=7, block=1)
    network = Training(perceptron(), (784,), 256, "hooks")
    yield from _compared("perceptron of 95 k, batch 256", network, 1.25, rounds=25, block=2)
    ghost = Training(perceptron(), (784,), 256, "ghost")
    yield from _compared("perceptron of 95 k, ghost", ghost, 1.25, rounds=40, block=8)
    yield f"memory of {MANY_CANARIES:,} canaries", f"{_bytes_a_canary(resnet):.0f} bytes each"


def _compared(
    name: str, training: Training, target: float, rounds: int, block: int
) -> Iterator[tuple[str, str]]:
    """The audit as it is without options, its cheapest form, and what a look at a step costs."""
    common: dict[str, Any] = {"data_loader": training.loader, "seed": 0}
    default, blinded = CanaryAudit(training.optimizer, **common), Observation(exact_share=0.0)
    narrow = CanaryAudit(
        training.optimizer, canaries=CANARIES, inject="sum", observation=blinded, **common
    )
    blind = CanaryAudit(training.optimizer, observation=blinded, **common)
    looking = CanaryAudit(training.optimizer, observation=Observation(exact_share=1.0), **common)
    audits = [default, narrow, blind, looking]
    plain, ratios = _in_turn(training, audits, rounds=rounds, block=block)
    share = default.transcript().facts.witness.share
    look = (ratios[3] - ratios[2]) * share
    yield f"{name}, plain", f"{1e3 * plain:.1f} ms a step"
    present = int(default.canaries.member.sum())
    what = f"{name}, default, {present:,} present of {default.canaries.size:,}"
    # The median step is one that nobody looks at: those that are looked at come on top.
    yield what, f"{ratios[2] + look:.3f} x plain (target <= {target:.2f})"
    yield f"{name}, witness, {share:.0%} of the steps", f"{look:.2%} of a step (target <= 1 %)"
    what = f'{name}, inject="sum" without witness, {CANARIES:,} canaries'
    yield what, f"{ratios[1]:.3f} x plain"


def _in_turn(
    training: Training, audits: list[CanaryAudit], rounds: int, block: int
) -> tuple[float, list[float]]:
    """Median seconds of a plain step, and the ratio of each audit's steps to that."""
    plain: list[float] = []
    attached: list[list[float]] = [[] for _ in audits]
    training.step()
    for _ in range(rounds):
        plain.append(_seconds(training.step, block))
        for audit, times in zip(audits, attached, strict=True):
            with audit:
                times.append(_seconds(training.step, block))
    ratios = [
        statistics.median(time / base for time, base in zip(times, plain, strict=True))
        for times in attached
    ]
    return statistics.median(plain), ratios


def _seconds(step: Callable[[], None], block: int) -> float:
    start = time.perf_counter()
    for _ in range(block):
        step()
    return (time.perf_counter() - start) / block


def _bytes_a_canary(training: Training) -> float:
    """What an audit of many canaries holds on the host, with the index on the device."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        audit = CanaryAudit(
            training.optimizer, canaries=MANY_CANARIES, data_loader=training.loader, seed=0
        )
        with audit:
            training.step()
        traced = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return traced / MANY_CANARIES + 8.0


if __name__ == "__main__":
    for what, measured in rows():
        print(f"{what:70} {measured}", flush=True)
