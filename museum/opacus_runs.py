"""Small Opacus runs as its users write them, with an audit attached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from museum.outcomes import Outcome, of_audit

try:
    from opacus.utils import fast_gradient_clipping_utils as ghost_clipping
except ImportError:  # before 1.5
    ghost_clipping = None

DELTA = 1e-5
# As many as the table's network has room for, so that a sound run ends with a clear word.
MANY = {"present": 350, "absent": 1500}
# In the first releases with ghost clipping users call both backward passes themselves.
_BY_HAND = not hasattr(ghost_clipping, "DPTensorFastGradientClipping")
Step = Callable[[Any, Callable[[], Any]], None]


def table() -> tuple[nn.Module, TensorDataset]:
    """A small network, and 2,000 records of 40 columns with two labels."""
    torch.manual_seed(0)
    features = torch.randn(2000, 40)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 2))
    return model, TensorDataset(features, (features[:, 0] > 0).long())


class OverSequences(nn.Module):
    """One linear layer for every position, then the mean of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.tanh(self.each(values)).mean(dim=1))


def sequences() -> tuple[nn.Module, TensorDataset]:
    """A network over sequences, and 1,000 of them, 20 long."""
    torch.manual_seed(0)
    features = torch.randn(1000, 20, 8)
    labels = (features[:, :, 0].mean(1) > 0).long()
    return OverSequences(), TensorDataset(features, labels)


def plain_step(optimizer: Any, gradients: Callable[[], Any]) -> None:
    """Gradients, then a step."""
    gradients()
    optimizer.step()


@dataclass(kw_only=True)
class Run:
    """A private run.

    Attributes:
        engine: Opacus' own, which knows epsilon.
        optimizer: The private optimizer.
        loader: The loader Opacus made.
        audit: The audit that was attached.
    """

    engine: PrivacyEngine
    optimizer: Any
    loader: Any
    audit: CanaryAudit

    def outcome(self, *, epsilon: float | None = None, true: float | None = None) -> Outcome:
        """Audit it against a claim: what Opacus says after the last step, if none is given."""
        said = float(self.engine.get_epsilon(DELTA)) if epsilon is None else epsilon
        result = self.audit.result(claim=ag.PrivacyClaim(epsilon=said, delta=DELTA))
        return of_audit(result, true=true, scores=self.audit.transcript().scores())


def train(
    content: tuple[nn.Module, TensorDataset],
    *,
    batch: int = 100,
    epochs: int = 5,
    noise: float = 1.0,
    clip: float = 1.0,
    target: float | None = None,
    accountant: str = "rdp",
    ghost: bool = False,
    poisson: bool = True,
    options: dict[str, Any] | None = None,
    step: Step = plain_step,
    memory: Callable[[Any, Any], AbstractContextManager[Iterable[Any]]] | None = None,
    after_epoch: Callable[[PrivacyEngine], Any] = lambda engine: None,
    **attached: Any,
) -> Run:
    """Train some epochs.

    Args:
        content: A model and its records.
        batch: Batch size.
        epochs: Epochs.
        noise: Noise multiplier.
        clip: Clip norm.
        target: The epsilon to find the noise for, instead of ``noise``.
        accountant: The accountant's name.
        ghost: Whether to clip without gradients by example.
        poisson: Whether batches are drawn by coins.
        options: More for ``make_private``.
        step: How a step is taken.
        memory: What splits batches that are too large.
        after_epoch: What is done after an epoch.
        **attached: More for the audit.
    """
    model, data = content
    engine, loss = PrivacyEngine(accountant=accountant), nn.CrossEntropyLoss()
    common: dict[str, Any] = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "data_loader": DataLoader(data, batch_size=batch, shuffle=not poisson),
        "max_grad_norm": clip,
        **({} if poisson else {"poisson_sampling": False}),
        **(options or {}),
    }
    if target is not None:
        made = engine.make_private_with_epsilon(
            **common, target_epsilon=target, target_delta=DELTA, epochs=epochs
        )
    elif ghost and _BY_HAND:
        made = engine.make_private(
            **common, noise_multiplier=noise, clipping="ghost", grad_sample_mode="ghost"
        )
    elif ghost:
        made = engine.make_private(
            **common, noise_multiplier=noise, criterion=loss, grad_sample_mode="ghost"
        )
        loss = made[2]
    else:
        made = engine.make_private(**common, noise_multiplier=noise)
    model, optimizer, loader = made[0], made[1], made[-1]
    audit = CanaryAudit(optimizer, data_loader=loader, model=model, **({"seed": 0} | attached))
    with audit:
        for _ in range(epochs):
            split = nullcontext(loader) if memory is None else memory(loader, optimizer)
            with split as batches:
                for features, labels in batches:

                    def gradients(features: Tensor = features, labels: Tensor = labels) -> Any:
                        optimizer.zero_grad()
                        if ghost and _BY_HAND:
                            by_record = nn.functional.cross_entropy(
                                model(features), labels, reduction="none"
                            )
                            return ghost_clipping.double_backward(model, optimizer, by_record)
                        value = loss(model(features), labels)
                        value.backward()
                        return value

                    step(optimizer, gradients)
            after_epoch(engine)
    return Run(engine=engine, optimizer=optimizer, loader=loader, audit=audit)
