"""Real Opacus runs with one thing wrong, and the same runs with nothing wrong.

Optimizers are subclasses of Opacus' own; a run is given one by changing the class of the optimizer
that `make_private` returned, so that everything else stays as Opacus made it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from askgauss.results import AuditResult, Status
from tests.seeds import unlikely

DELTA = 1e-5
WIDTH, RECORDS, BATCH, EPOCHS = 16, 160, 20, 12
# Two weights of one size and two biases of one size.
SIZES = (WIDTH * WIDTH, WIDTH, WIDTH * WIDTH, WIDTH)


def found(result: AuditResult) -> set[str]:
    return {item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)}


class Noisy(DPOptimizer):
    """Opacus' `add_noise` with the draw taken out, to be replaced."""

    def draw(self, parameter: Tensor) -> Tensor:
        std = self.noise_multiplier * self.max_grad_norm
        return self.normal(parameter.summed_grad) * std

    def normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator)

    def add_noise(self) -> None:
        for parameter in self.params:
            _check_processed_flag(parameter.summed_grad)
            parameter.grad = (parameter.summed_grad + self.draw(parameter)).view_as(parameter)
            _mark_as_processed(parameter.summed_grad)


class NoNoise(Noisy):
    def draw(self, parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter.summed_grad)


class HalfNoise(Noisy):
    factor = 0.5

    def draw(self, parameter: Tensor) -> Tensor:
        return self.factor * super().draw(parameter)


class Noise75(HalfNoise):
    factor = 0.75


class Noise90(HalfNoise):
    factor = 0.9


class SameNoise(Noisy):
    def add_noise(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        super().add_noise()


class OneKey(Noisy):
    """A key for each step, used for every tensor alike."""

    key = 0

    def add_noise(self) -> None:
        self.key += 1
        super().add_noise()

    def normal(self, like: Tensor) -> Tensor:
        self.generator = torch.Generator().manual_seed(self.key)
        return super().normal(like)


class UnnoisedTensor(Noisy):
    def draw(self, parameter: Tensor) -> Tensor:
        last = parameter is self.params[-1]
        return super().draw(parameter) * (0.0 if last else 1.0)


class WithoutClipNorm(Noisy):
    def draw(self, parameter: Tensor) -> Tensor:
        return self.normal(parameter.summed_grad) * self.noise_multiplier


class Uniform(Noisy):
    def normal(self, like: Tensor) -> Tensor:
        return (2.0 * torch.rand(like.shape) - 1.0) * 3.0**0.5


class Laplace(Noisy):
    def normal(self, like: Tensor) -> Tensor:
        return torch.distributions.Laplace(0.0, 0.5**0.5).sample(like.shape)


class BrainFloat(Noisy):
    def draw(self, parameter: Tensor) -> Tensor:
        return super().draw(parameter).to(torch.bfloat16).to(torch.float32)


class Fading(Noisy):
    taken = 0

    def add_noise(self) -> None:
        self.taken += 1
        super().add_noise()

    def draw(self, parameter: Tensor) -> Tensor:
        return super().draw(parameter) * (1.2 - 0.4 * self.taken / 96)


class EveryPhysicalBatch(Noisy):
    """Noise for every physical batch that was accumulated: all of it, or a share."""

    parts = 0
    split = False

    def clip_and_accumulate(self) -> None:
        self.parts += 1
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        super().add_noise()
        self.parts = 0

    def draw(self, parameter: Tensor) -> Tensor:
        noise = sum(super(EveryPhysicalBatch, self).draw(parameter) for _ in range(self.parts))
        return noise / self.parts if self.split else noise


class SplitOverPhysicalBatches(EveryPhysicalBatch):
    split = True


class Overflowing(Noisy):
    def draw(self, parameter: Tensor) -> Tensor:
        noise = super().draw(parameter)
        noise.view(-1)[0] = float("inf")
        return noise


class Clipper(Noisy):
    """Opacus' clipping with the factors taken out, to be replaced."""

    def factors(self, norms: Tensor) -> Tensor:
        """One factor a record and parameter, from the norms by record and parameter."""
        whole = norms.norm(2, dim=1, keepdim=True)
        return (self.max_grad_norm / (whole + 1e-6)).clamp(max=1.0).expand_as(norms)

    def clip_and_accumulate(self) -> None:
        norms = [sample.reshape(len(sample), -1).norm(2, dim=1) for sample in self.grad_samples]
        factors = self.factors(torch.stack(norms, dim=1))
        for index, parameter in enumerate(self.params):
            _check_processed_flag(parameter.grad_sample)
            sample = self._get_flat_grad_sample(parameter)
            summed = torch.einsum("i,i...", factors[:, index], sample)
            if parameter.summed_grad is None:
                parameter.summed_grad = summed
            else:
                parameter.summed_grad += summed
            _mark_as_processed(parameter.grad_sample)


class ClippingOff(Clipper):
    def factors(self, norms: Tensor) -> Tensor:
        return torch.ones_like(norms)


class PerLayer(Clipper):
    def factors(self, norms: Tensor) -> Tensor:
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)


class CountedTwice(Clipper):
    def factors(self, norms: Tensor) -> Tensor:
        return 2.0 * super().factors(norms)


class Microbatches(Clipper):
    """Means of four records are clipped. Canaries share no coordinate, so that squares add up."""

    def factors(self, norms: Tensor) -> Tensor:
        whole = norms.norm(2, dim=1)
        factors = []
        for group in whole.split(4):
            mean = group.norm(2) / len(group)
            factors.append((self.max_grad_norm / (mean + 1e-6)).clamp(max=1.0) / len(group))
        counts = [len(group) for group in whole.split(4)]
        each = torch.repeat_interleave(torch.stack(factors), torch.tensor(counts))
        return each[:, None].expand_as(norms)


class BatchMean(Clipper):
    def factors(self, norms: Tensor) -> Tensor:
        mean = norms.norm(2) / max(len(norms), 1)
        return (self.max_grad_norm / (mean + 1e-6)).clamp(max=1.0).expand_as(norms)


def made_private(
    model: nn.Module, data: TensorDataset, seed: int, kind: type[DPOptimizer], **options: Any
) -> tuple[nn.Module, Any, DataLoader, PrivacyEngine]:
    torch.manual_seed(unlikely(seed))
    engine = PrivacyEngine(accountant="rdp")
    settings = {"max_grad_norm": 1.0, **options}
    batch_size, shuffle = settings.pop("batch_size", BATCH), settings.pop("shuffle", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            data_loader=DataLoader(data, batch_size=batch_size, shuffle=shuffle),
            noise_multiplier=1.0,
            **settings,
        )
    optimizer.__class__ = kind
    return model, optimizer, loader, engine


def audited(
    kind: type[DPOptimizer] = Noisy,
    *,
    inject: str = "sum",
    spread: bool = False,
    seed: int = 0,
    physical: int | None = None,
    each_step: Callable[[int, Any, CanaryAudit], None] = lambda step, optimizer, audit: None,
    **options: Any,
) -> AuditResult:
    """Train a small network with `CanaryAudit` attached, and audit it against its accountant."""
    torch.manual_seed(unlikely(seed))
    data = TensorDataset(torch.randn(RECORDS, WIDTH), torch.randn(RECORDS, WIDTH))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model, optimizer, loader, engine = made_private(model, data, seed, kind, **options)
    if spread:
        canaries: Any = ag.BlockCanaries(present=60, absent=60, tensors=SIZES, block=4, seed=seed)
    else:
        canaries = ag.DiracCanaries(present=100, absent=300, tensors=SIZES, seed=seed)
    audit = CanaryAudit(
        optimizer, canaries=canaries, inject=inject, data_loader=loader, accountant=engine
    )
    step = 0
    with audit:
        for _ in range(EPOCHS):
            with physical_batches(loader, optimizer, physical) as batches:
                for features, target in batches:
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(features), target).backward()
                    optimizer.step()
                    step += 1
                    each_step(step, optimizer, audit)
    return audit.result(claim=claim_of(engine))


def physical_batches(loader: DataLoader, optimizer: Any, size: int | None) -> Any:
    if size is None:
        return contextlib.nullcontext(loader)
    return BatchMemoryManager(data_loader=loader, max_physical_batch_size=size, optimizer=optimizer)


def claim_of(engine: PrivacyEngine) -> ag.PrivacyClaim:
    return ag.PrivacyClaim(epsilon=engine.get_epsilon(DELTA), delta=DELTA)


class Forgetful(Clipper):
    """Does not clear per-example gradients: those of the step before are added once more."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        samples = [item.grad_sample for item in self.params]
        super().zero_grad(set_to_none)
        self.left_over = None if None in samples else [item.detach() for item in samples]

    def clip_and_accumulate(self) -> None:
        left_over = getattr(self, "left_over", None)
        fresh = [self._get_flat_grad_sample(item).detach().clone() for item in self.params]
        if left_over is not None:
            for item, old in zip(self.params, left_over, strict=True):
                item.grad_sample = torch.cat([item.grad_sample, old])
        super().clip_and_accumulate()
        for item, new in zip(self.params, fresh, strict=True):
            item.grad_sample = new


def recorded(
    kind: type[DPOptimizer] = Noisy,
    *,
    seed: int = 0,
    sampler: Callable[[DataLoader], Any] | None = None,
    skip_empty: bool = False,
    present: int = 200,
    batch_size: int = 20,
    steps: int = 120,
    **options: Any,
) -> AuditResult:
    """Train on records that are canaries, through Opacus' loader, clipping and noise.

    Record i has a feature of its own, so that its gradient is one coordinate, far above the clip
    norm; the recorder is told by the training's own batches who was planted.
    """
    canaries = ag.DiracCanaries(present=present, absent=200, dimension=present + 232, seed=seed)
    members = np.flatnonzero(canaries.member)
    features = torch.zeros(present, canaries.total_dimension)
    features[torch.arange(present), torch.from_numpy(canaries.coordinates[members])] = 100.0
    data = TensorDataset(features, torch.from_numpy(members))
    model: nn.Module = nn.Linear(canaries.total_dimension, 1, bias=False)
    model, optimizer, loader, engine = made_private(
        model, data, seed, kind, loss_reduction="sum", batch_size=batch_size, **options
    )
    recorder = ag.Recorder(canaries, noise_multiplier=1.0)
    batches: Any = loader if sampler is None else sampler(loader)
    batch: Tensor = torch.zeros(0)

    def observe(*_: Any) -> None:
        released = optimizer.params[0].grad.reshape(-1).double().numpy()
        recorder.observe(
            canaries.project(released),
            background=np.zeros(canaries.size),
            planted=batch.numpy(),
            watch=released[canaries.watch],
        )

    optimizer.original_optimizer.register_step_pre_hook(observe)
    taken = 0
    while taken < steps:
        for inputs, drawn in batches:
            batch = drawn
            taken += 1
            if skip_empty and len(inputs) == 0:
                continue
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
    transcript = recorder.transcript()
    facts = replace(
        transcript.facts,
        poisson=True,
        accounted_sampling_rate=1.0 / len(loader),
        accounted_steps=sum(steps for _, _, steps in engine.accountant.history),
    )
    return ag.audit(transcript.with_facts(facts), claim=claim_of(engine))
