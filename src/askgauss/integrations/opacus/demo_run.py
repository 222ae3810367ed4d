"""The demo's network trained by Opacus, the audit attached around an unchanged step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import opacus
import torch
from numpy.typing import NDArray

from askgauss.exceptions import FileFormatError
from askgauss.files import codec, schema
from askgauss.integrations.opacus import CanaryAudit
from askgauss.recording.transcript import Transcript

if TYPE_CHECKING:
    from askgauss.cli.demo_training import DemoPlan, Digits

__all__ = ["OpacusTrainer"]


class OpacusTrainer:
    """DP-SGD by Opacus on a network with one hidden layer.

    Opacus draws batches and noise from torch's own generator, whose state is part of a checkpoint.
    """

    def __init__(self, plan: DemoPlan, digits: Digits) -> None:
        self._digits = digits
        torch.manual_seed(plan.seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(64, plan.hidden), torch.nn.Tanh(), torch.nn.Linear(plan.hidden, 10)
        )
        data = torch.utils.data.TensorDataset(
            torch.tensor(digits.images, dtype=torch.float32), torch.tensor(digits.labels)
        )
        # Opacus samples at one over the number of batches.
        batches = round(1.0 / plan.sampling_rate)
        loader = torch.utils.data.DataLoader(data, batch_size=-(-len(data) // batches))
        with warnings.catch_warnings():
            # The noise is for a demo, and says so: it need not come from a secure generator.
            warnings.simplefilter("ignore")
            self._engine = opacus.PrivacyEngine()
            self._model, self._optimizer, self._loader = self._engine.make_private(
                module=network,
                optimizer=torch.optim.SGD(network.parameters(), lr=plan.learning_rate),
                data_loader=loader,
                noise_multiplier=plan.noise_multiplier,
                max_grad_norm=plan.clip_norm,
            )
        if plan.noise_factor != 1.0:
            _weaken(self._optimizer, plan.noise_factor)
        self._audit = CanaryAudit(
            self._optimizer,
            data_loader=self._loader,
            model=self._model,
            seed=plan.seed,
            planned_steps=plan.steps,
        )
        self._batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    @property
    def done(self) -> int:
        """Steps taken so far."""
        return self._audit.steps

    def step(self) -> None:
        """Take one step, as any training loop with Opacus does."""
        with self._audit, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Drawn where the audit listens, so that the sampler is tested too.
            images, labels = next(self._batches)
            self._optimizer.zero_grad()
            loss: Any = torch.nn.functional.cross_entropy(self._model(images), labels)
            loss.backward()
            self._optimizer.step()

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and plain values to go on from."""
        recorded = self._audit.state_dict()
        values = {
            "state": recorded.pop("state"),
            "audit": recorded.pop("audit"),
            "history": [list(entry) for entry in self._engine.accountant.history],
        }
        arrays = {f"audit.{name}": tensor.numpy() for name, tensor in recorded.items()}
        for name, tensor in self._model.state_dict().items():
            arrays[f"model.{name}"] = tensor.numpy()
        arrays["generator"] = torch.get_rng_state().numpy()
        return arrays, values

    def restore(self, arrays: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        audit = {
            name.removeprefix("audit."): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("audit.")
        }
        own = {name: array for name, array in arrays.items() if not name.startswith("audit.")}
        weights = {f"model.{name}": item for name, item in self._model.state_dict().items()}
        fields = {
            name: schema.Field(np.float32, tuple(item.shape)) for name, item in weights.items()
        }
        fields["generator"] = schema.Field(np.uint8, tuple(torch.get_rng_state().shape))
        schema.check(own, fields)
        history = codec.from_plain(
            tuple[tuple[float, float, int], ...], values.get("history"), "history"
        )
        self._audit.load_state_dict(
            {**audit, "state": values.get("state"), "audit": values.get("audit")}
        )
        for name, item in weights.items():
            item.copy_(torch.from_numpy(own[name]))
        self._engine.accountant.history = list(history)
        try:
            torch.set_rng_state(torch.from_numpy(own["generator"]))
        except RuntimeError as error:
            raise FileFormatError(f"Its random state cannot be restored: {error}.") from error

    def transcript(self) -> Transcript:
        """What the run released about the canaries."""
        return self._audit.transcript()

    def accuracy(self) -> float:
        """Share of test images the model names rightly."""
        with torch.no_grad():
            images = torch.tensor(self._digits.test_images, dtype=torch.float32)
            named = self._model(images).argmax(dim=1).numpy()
        return float((named == self._digits.test_labels).mean())


def _weaken(optimizer: Any, factor: float) -> None:
    """Add less noise than the accountant counts: a fault to be found."""
    add_noise = optimizer.add_noise

    def weaker() -> None:
        claimed = optimizer.noise_multiplier
        optimizer.noise_multiplier = factor * claimed
        try:
            add_noise()
        finally:
            optimizer.noise_multiplier = claimed

    optimizer.add_noise = weaker
