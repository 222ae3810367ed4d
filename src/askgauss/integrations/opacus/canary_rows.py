"""Canaries sent through the optimizer's own clipping, a few rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.coordinate_access import CanaryCoordinates
from askgauss.integrations.opacus.opacus_versions import DPOptimizer, DPPerLayerOptimizer
from askgauss.integrations.patched_method import StandIn

__all__ = ["send_through_clipping"]

# Numbers, and rows, that go through the clipper together: each row is as large as the model.
_NUMBERS = 1 << 24
_ROWS = 64
# A canary's row before clipping, in clip norms at each of its coordinates.
_FAR_ABOVE = 100.0
# Clipping that is known to read rows and clip norm, and to write nothing but the sum.
_KNOWN = (DPOptimizer.clip_and_accumulate, DPPerLayerOptimizer.clip_and_accumulate)
# Tensors up to this size are copied, to be put back if the clipping writes to them.
_COPIED = 1 << 16


def send_through_clipping(
    optimizer: Any,
    audited: Sequence[torch.nn.Parameter],
    coordinates: CanaryCoordinates,
    planted: NDArray[np.int64],
    clip_norm: float,
) -> bool:
    """Let the optimizer clip the planted canaries as it does any gradient, and add them.

    The clipper meets them apart from the records: the sum of the records is taken away before and
    put back with the canaries' sum added, so that a clipper that assigns its sum loses nothing.

    Returns:
        Whether the canaries were added. A clipper of another class than those of Opacus may keep
        more than the sum, such as counts of the rows it met, or draw random numbers: then
        everything is as it was before, and no canary was added.
    """
    parameters = list(optimizer.params)
    place = {id(parameter): index for index, parameter in enumerate(audited)}
    rows_before = [parameter.grad_sample for parameter in parameters]
    sums = [parameter.summed_grad for parameter in parameters]
    kept = None if _is_known(optimizer) else _Kept(optimizer)
    added: list[torch.Tensor | None] = [None] * len(parameters)
    wrote = False

    def restore() -> None:
        nonlocal wrote
        for parameter, sample, total in zip(parameters, rows_before, sums, strict=True):
            parameter.grad_sample, parameter.summed_grad = sample, total
        wrote = (kept is not None and kept.put_back()) or wrote

    with Attachment() as attachment:
        attachment.undo(restore)
        together = min(max(_NUMBERS // sum(item.numel() for item in parameters), 1), _ROWS)
        for start in range(0, planted.size, together):
            chunk = planted[start : start + together]
            rows: dict[int, Any] = {}
            for parameter, sample in zip(parameters, rows_before, strict=True):
                like = sample[0] if isinstance(sample, list) else sample
                parameter.summed_grad = None
                parameter.grad_sample = like.new_zeros((chunk.size, *parameter.shape))
                rows[place.get(id(parameter), -1)] = parameter.grad_sample
            # Frozen ones have no row, and no canary in them is planted.
            ours: list[Any] = [rows.get(index) for index in range(len(audited))]
            coordinates.fill_rows(ours, chunk, _FAR_ABOVE * clip_norm)
            optimizer.clip_and_accumulate()
            added = [
                _plus(total, parameter.summed_grad)
                for total, parameter in zip(added, parameters, strict=True)
            ]
    if wrote:
        return False
    for parameter, total, more in zip(parameters, sums, added, strict=True):
        if total is None or more is None:
            parameter.summed_grad = _plus(total, more)
        else:
            total += more
    return True


def _plus(total: torch.Tensor | None, more: torch.Tensor | None) -> torch.Tensor | None:
    return more if total is None else total if more is None else total + more


def _is_known(optimizer: Any) -> bool:
    clip = optimizer.clip_and_accumulate
    while isinstance(owner := getattr(clip, "__self__", None), StandIn):
        clip = owner.original
    known = getattr(clip, "__func__", None) in _KNOWN
    return known and type(optimizer).__module__.startswith("opacus.")


class _Kept:
    """What a clipper may write to beside the sum, to notice that it did and undo it."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._before = {name: (value, _copied(value)) for name, value in vars(optimizer).items()}
        self._generators = [torch.default_generator]
        if isinstance(optimizer.generator, torch.Generator):
            self._generators.append(optimizer.generator)
        self._states = [item.get_state() for item in self._generators]

    def put_back(self) -> bool:
        """Undo every change; whether there was any."""
        changed = False
        for generator, state in zip(self._generators, self._states, strict=True):
            if not torch.equal(generator.get_state(), state):
                generator.set_state(state)
                changed = True
        now = vars(self._optimizer)
        for name in now.keys() - self._before.keys():
            del now[name]
            changed = True
        for name, (value, copy) in self._before.items():
            if name not in now or now[name] is not value:
                # Plain numbers may be made anew with the value they had.
                changed = changed or not (isinstance(copy, _Plain) and now.get(name) == value)
                now[name] = value
            changed = _restored(value, copy) or changed
        return changed


class _Plain:
    """A value that cannot be written to."""


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() <= _COPIED else value._version
    if isinstance(value, (list, dict, set)):
        return value.copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    return _Plain()


def _restored(value: Any, copy: Any) -> bool:
    """Whether a value had been written to; it is as before now."""
    if isinstance(copy, torch.Tensor):
        if torch.equal(value, copy):
            return False
        with torch.no_grad():
            value.copy_(copy)
        return True
    if isinstance(value, torch.Tensor):
        return bool(value._version != copy)
    if isinstance(copy, np.ndarray):
        if np.array_equal(value, copy, equal_nan=copy.dtype.kind in "fc"):
            return False
        value[...] = copy
        return True
    if isinstance(copy, (list, dict, set)):
        if _same_items(value, copy):
            return False
        value.clear()
        value.extend(copy) if isinstance(value, list) else value.update(copy)
        return True
    return False


def _same_items(value: Any, copy: Any) -> bool:
    if len(value) != len(copy):
        return False
    if isinstance(value, set):
        return bool(value == copy)
    if isinstance(value, dict):
        return all(name in copy and copy[name] is item for name, item in value.items())
    return all(one is other for one, other in zip(value, copy, strict=True))
