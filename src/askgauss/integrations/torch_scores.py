"""Losses of single records of a torch model, Hugging Face models included, in one pass."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, Subset

from askgauss.exceptions import AskGaussWarning, InvalidArgumentError

__all__ = ["record_losses"]

# Labels that Hugging Face models leave out of a loss.
_IGNORED = -100


def record_losses(
    model: nn.Module,
    dataset: Any,
    ids: NDArray[Any],
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    batch_size: int = 256,
    progress: bool = False,
) -> NDArray[np.float64]:
    """The loss of every record, on the device the model is on, in evaluation mode.

    Args:
        model: The finished model.
        dataset: Records by index: pairs of input and label, or mappings with ``labels`` (texts
            without labels are scored on their own ``input_ids``).
        ids: Indices of the records.
        loss: A function of outputs and targets with one loss per record; cross-entropy otherwise.
        batch_size: Records per forward pass.
        progress: Show progress on a terminal.
    """
    place = next((item.device for item in model.parameters()), torch.device("cpu"))
    loader = DataLoader(Subset(dataset, ids.tolist()), batch_size=batch_size)
    found = []
    with _evaluating(model), torch.inference_mode():
        for batch in _shown(loader, progress):
            outputs, targets = _called(model, _moved(batch, place))
            values = _cross_entropy(outputs, targets) if loss is None else loss(outputs, targets)
            if values.ndim != 1 or len(values) != len(targets):
                raise InvalidArgumentError(
                    f"Expected loss to return one number for each of {len(targets)} records, got "
                    f'shape {tuple(values.shape)}. Use reduction="none".'
                )
            found.append(values.double().cpu().numpy())
    return np.concatenate(found)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and back as it was."""
    training = [module for module in model.modules() if module.training]
    if training:
        warnings.warn(
            "The model was in training mode: it is scored in evaluation mode, without dropout, and "
            "put back afterwards.",
            AskGaussWarning,
            stacklevel=5,
        )
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _called(model: nn.Module, batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        inputs = dict(batch)
        # Without labels a Hugging Face model does not compute its own loss a second time.
        targets = inputs.pop("labels", None)
        targets = inputs.get("input_ids") if targets is None else targets
        if targets is None:
            raise InvalidArgumentError("Expected records with labels or input_ids, got neither.")
        outputs = model(**inputs)
        mask = inputs.get("attention_mask")
        if mask is not None and targets.shape == mask.shape:
            targets = targets.masked_fill(mask == 0, _IGNORED)
        return getattr(outputs, "logits", outputs), targets
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise InvalidArgumentError(
            "Expected records to be pairs of input and label, or mappings with labels."
        )
    inputs, targets = batch
    outputs = model(inputs)
    return getattr(outputs, "logits", outputs), targets


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    if outputs.ndim == 3:
        # A causal model: token t is predicted from those before it.
        outputs, targets = outputs[:, :-1], targets[:, 1:]
        counted = (targets != _IGNORED).sum(dim=1).clamp(min=1)
        losses = nn.functional.cross_entropy(
            outputs.transpose(1, 2).double(), targets, reduction="none", ignore_index=_IGNORED
        )
        return losses.sum(dim=1) / counted
    if outputs.ndim != 2 or targets.ndim != 1:
        raise InvalidArgumentError(
            f"Expected outputs of shape (records, classes) and one label per record, got "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}. Pass loss= for another task."
        )
    return nn.functional.cross_entropy(outputs.double(), targets.long(), reduction="none")


def _moved(batch: Any, place: torch.device) -> Any:
    if isinstance(batch, Mapping):
        return {name: value.to(place) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [value.to(place) for value in batch]
    return batch


def _shown(loader: Any, progress: bool) -> Any:
    if not (progress and sys.stderr.isatty()):
        return loader
    from rich.console import Console
    from rich.progress import track

    return track(loader, description="scoring records", console=Console(stderr=True))
