"""Whether a loss mixes records: it is repeated with the outputs of every second one replaced.

Unlike a second derivative, that also shows what a loss takes from detached outputs of others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["LossTrace", "UnseenError", "as_before", "random_states"]

# Operations between a model's output and its loss that are kept.
_MOST = 2048
# Differences that are more than rounding, as a share of the largest gradient.
_MATERIAL = 1e-3
# Turn a tensor into a number, which the loss may be made of without being seen to be.
_READS = frozenset(
    {"item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__iter__", "__contains__"}
    | {f"__{name}__" for name in ("float", "int", "bool", "index", "array", "complex")}
)
_HARMLESS = frozenset({"requires_grad_", "retain_grad", "__index__", "__int__", "__invert__"})


class UnseenError(Exception):
    """Why something cannot be looked at."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for a tensor that depends on the model's output."""

    number: int


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation, and the settings that it was made under."""

    function: Any
    arguments: Any
    options: Any
    results: tuple[int, ...]
    graph: bool
    short: torch.dtype | None

    @property
    def uses(self) -> list[int]:
        leaves = tree_flatten((self.arguments, self.options))[0]
        return [leaf.number for leaf in leaves if isinstance(leaf, _Slot)]


class LossTrace(TorchFunctionMode):
    """Keeps the operations on a model's outputs until its loss is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def _clear(self) -> None:
        self._open, self._doubt = True, ""
        self._outputs: dict[int, Tensor] = {}
        self._slots: dict[int, int] = {}
        self._kept: list[Tensor] = []  # alive, so that no other tensor gets their identities
        self._operations: list[_Operation] = []
        self._read: int | None = None

    @staticmethod
    def begin() -> LossTrace | None:
        """Begin; None where other modes are active, which have to end in their own order."""
        if _modes():
            return None
        trace = LossTrace()
        _push_mode(trace)  # type: ignore[no-untyped-call]
        return trace

    def end(self) -> None:
        """Keep nothing more."""
        self._clear()
        self._open = False
        stack = _modes()
        if self in stack:
            above = [_pop_mode() for _ in stack[stack.index(self) :]]  # type: ignore[no-untyped-call]
            for mode in reversed(above[:-1]):
                _push_mode(mode)  # type: ignore[no-untyped-call]

    def follow(self, outputs: Sequence[Tensor]) -> None:
        """These are outputs of the model, which is called anew after every loss."""
        if not self._open:
            self._clear()
        for item in outputs:
            self._outputs[self._slot(item)] = item

    def _slot(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        self._slots[id(tensor)] = len(self._kept) - 1
        return len(self._kept) - 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make an operation, and keep it if it is about what the model gave."""
        result = func(*args, **(kwargs or {}))
        if self._open and not self._doubt:
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, function: Any, arguments: Any, options: Any, result: Any) -> None:
        leaves = tree_flatten((arguments, options))[0]
        if not any(isinstance(leaf, Tensor) and id(leaf) in self._slots for leaf in leaves):
            return
        name = str(getattr(function, "__name__", ""))
        if name in _READS:
            self._read = len(self._operations) if self._read is None else self._read
            return
        if _writes(name, options):
            self._doubt = "the loss writes to tensors in place"
            return
        made = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
        if not made:
            return
        if len(self._operations) >= _MOST:
            self._doubt = "the loss has too many operations"
            return
        device = made[0].device.type
        short = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        placed, named = tree_map(self._placed, (arguments, options))
        results = tuple(self._slot(leaf) for leaf in made)
        self._operations.append(
            _Operation(function, placed, named, results, torch.is_grad_enabled(), short)
        )

    def _placed(self, leaf: Any) -> Any:
        known = isinstance(leaf, Tensor) and id(leaf) in self._slots
        return _Slot(self._slots[id(leaf)]) if known else leaf

    def look(self, loss: Tensor) -> bool | None:
        """Whether the gradient of a record's output depends on other records' outputs.

        Returns:
            None where the loss was not followed from the outputs.

        Raises:
            UnseenError: It cannot be repeated.
        """
        self._open = False
        end = self._slots.get(id(loss))
        if self._doubt:
            raise UnseenError(self._doubt)
        path, needed = self._path(end)
        outputs = {slot: item for slot, item in self._outputs.items() if slot in needed}
        if end is None or not path or not outputs:
            return None
        if self._read is not None and any(
            self._operations.index(item) >= self._read for item in path
        ):
            raise UnseenError("a number is read from the batch's outputs before the loss is made")
        with as_before(random_states()):
            plain, gradients = self._repeat(path, end, outputs, replaced=False)
            if not torch.allclose(plain, loss.detach(), rtol=1e-4, atol=1e-12):
                raise UnseenError("the loss is another when it is repeated")
            _, others = self._repeat(path, end, outputs, replaced=True)
        return any(_apart(one, other) for one, other in zip(gradients, others, strict=True))

    def _path(self, end: int | None) -> tuple[list[_Operation], set[int]]:
        """The operations that the loss is made by, in their order, and the tensors they need."""
        needed = set() if end is None else {end}
        path = []
        for item in reversed(self._operations):
            if needed.intersection(item.results):
                path.append(item)
                needed.update(item.uses)
        return path[::-1], needed

    def _repeat(
        self, path: list[_Operation], end: int, outputs: dict[int, Tensor], *, replaced: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradients by the outputs, with those of every second record replaced."""
        values: dict[int, Any] = {}
        for slot, output in outputs.items():
            own = output.detach().clone()
            if replaced:
                own[1::2] = own[0].clone()
            values[slot] = own.requires_grad_()
        leaves = list(values.values())
        for item in path:
            given = tree_map(
                lambda leaf: values[leaf.number] if isinstance(leaf, _Slot) else leaf,
                (item.arguments, item.options),
            )
            with ExitStack() as settings:
                settings.enter_context(torch.set_grad_enabled(item.graph))
                device = leaves[0].device.type
                settings.enter_context(
                    torch.autocast(device, dtype=item.short, enabled=item.short is not None)
                )
                result = item.function(*given[0], **given[1])
            made = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
            values.update(zip(item.results, made, strict=True))
        found = torch.autograd.grad(values[end], leaves, allow_unused=True)
        gradients = [
            torch.zeros_like(leaf) if slope is None else slope
            for leaf, slope in zip(leaves, found, strict=True)
        ]
        return values[end].detach(), gradients


def _modes() -> list[Any]:
    """The modes that are active, the innermost last."""
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _writes(name: str, options: dict[str, Any]) -> bool:
    """Whether an operation changes a tensor that was there before."""
    if name in _HARMLESS:
        return False
    if options.get("out") is not None or options.get("inplace"):
        return True
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name.endswith("__"))
    return name.endswith("_")


def _apart(one: Tensor, other: Tensor) -> bool:
    """Whether gradients of the records that were not replaced differ by more than rounding."""
    first, second = one[0::2].double(), other[0::2].double()
    scale = float(torch.maximum(first.abs().max(), second.abs().max()))
    allowed = max(_MATERIAL, 32.0 * torch.finfo(one.dtype).eps)
    return float((first - second).abs().max()) > allowed * scale


def random_states() -> list[Any]:
    """States of the generators that everybody shares."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_devices = torch.cuda.get_rng_state_all() if used else []
    numpy = np.random.get_state()  # noqa: NPY002  (the one that everybody shares)
    return [torch.get_rng_state(), random.getstate(), numpy, on_devices]


def _set_random(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])


@contextmanager
def as_before(states: list[Any]) -> Iterator[None]:
    """Generators as they were before the call, and as they are now afterwards."""
    now, cached = random_states(), torch.is_autocast_cache_enabled()
    try:
        # Weights that are cast here without a graph are not to be taken for those of the training.
        torch.set_autocast_cache_enabled(False)
        _set_random(states)
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        _set_random(now)
