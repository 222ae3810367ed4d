"""Whether a model's forward pass mixes records: it is repeated with every second one replaced."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["ForwardCall", "ForwardLook", "UnseenError", "outputs_of", "unfelt"]

_Slot = tuple[str, str, str]

# Records of a batch whose outputs are compared with those they have without the others.
_ALONE = 32


# Draws that take as many random numbers as their arguments make them take.
_REJECTING = frozenset({"_standard_gamma", "_sample_dirichlet", "poisson", "binomial"})


class UnseenError(Exception):
    """Why something cannot be looked at."""


@dataclass(slots=True)
class ForwardLook:
    """What a repeated forward pass showed.

    Attributes:
        mixed: Whether an output depends on other records of the batch.
        state: Whether a statistic of the batch was written to the model, and later outputs depend
            on it.
        scalars: Single numbers, such as a loss, that are no sum over records.
    """

    mixed: bool = False
    state: bool = False
    scalars: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One forward pass of a copy.

    Attributes:
        rows: Outputs that have a row for each record.
        numbers: Outputs that are single numbers, also those that the model keeps.
        state: Tensors that the model keeps, by where.
        random: State of the generators after it.
    """

    rows: list[Tensor]
    numbers: dict[str, Tensor]
    state: dict[_Slot, Tensor]
    random: list[Any]


class _RandomOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which operations drew random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class ForwardCall:
    """A call of a model that is about to be made, so that it can be repeated.

    Args:
        module: The model.
        arguments: What it is called with.
        options: What it is called with by name.
        rows: Records that the call has a row for.
    """

    def __init__(
        self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], rows: int
    ) -> None:
        self._module, self._rows = module, rows
        self._leaves, self._form = tree_flatten((arguments, options), is_leaf=_is_packed)
        self._by_row = _by_row(self._leaves, rows)
        _check(module)
        self._versions = _versions(module)
        self._random = _random_states()

    def look(self, output: Any) -> ForwardLook:
        """Compare the call's output with those of copies of the model.

        Raises:
            UnseenError: The passes cannot be compared.
        """
        found = ForwardLook()
        own = _Pass(*outputs_of(output, self._rows), {}, [])
        own.numbers.update(_kept_numbers(self._module))
        numbers = {name: item for name, item in own.numbers.items() if item.requires_grad}
        if not own.rows and not numbers:
            raise UnseenError("the model's output has no row for each record")
        changed = _versions(self._module) != self._versions
        # Nearly all models: one pass, of some records without the others, is enough.
        if not (changed or numbers) and self._is_same_alone(own):
            return found
        plain, again, odd = self._run(), self._run(), self._run(odd=True)
        if _differ(plain, again, every=True):
            raise UnseenError("the model gives other outputs when its forward pass is repeated")
        if not _same_random(plain.random, odd.random):
            raise UnseenError("how many random numbers the model draws depends on its input")
        found.mixed = _differ(plain, odd)
        if found.mixed and self._rejects():
            raise UnseenError("how many random numbers the model draws depends on its input")
        found.state = changed and self._keeps_statistic(plain, odd)
        if numbers:
            both, even = self._run(odd=True, even=True), self._run(even=True)
            found.scalars = [
                item
                for name, item in numbers.items()
                if _interact(*(found.numbers.get(name) for found in (plain, odd, even, both)))
            ]
        return found

    def _is_same_alone(self, own: _Pass) -> bool:
        """Whether some records have the outputs that they have in the whole batch."""
        alone = self._run(index=torch.arange(0, self._rows, 2)[:_ALONE])
        some = [item[0 : 2 * _ALONE : 2] for item in own.rows]
        if [item.shape for item in some] != [item.shape for item in alone.rows]:
            return False
        return not any(
            _apart(one, other, by_row=True) for one, other in zip(some, alone.rows, strict=True)
        )

    def _run(
        self,
        state: dict[_Slot, Tensor] | None = None,
        *,
        odd: bool = False,
        even: bool = False,
        index: Tensor | None = None,
    ) -> _Pass:
        """A pass of all records, of some, or with every second one replaced by another."""
        chosen = torch.arange(self._rows) if index is None else index
        if odd:
            chosen[1::2] = 0
        if even:
            chosen[0::2] = 1
        leaves = [
            leaf[chosen.to(leaf.device)] if number in self._by_row else leaf
            for number, leaf in enumerate(self._leaves)
        ]
        arguments, options = tree_unflatten(leaves, self._form)
        copy, slots = _copied(self._module, state or {})
        with _as_before(self._random), torch.no_grad():
            output = copy(*arguments, **options)
            random_states = _random_states()
        rows, numbers = outputs_of(output, len(chosen))
        return _Pass(
            rows, numbers | _kept_numbers(copy), _state(copy, slots, self._rows), random_states
        )

    def _rejects(self) -> bool:
        """Whether a pass draws by rejection: other records then shift the random numbers."""
        with _RandomOperations() as seen:
            self._run()
        return not seen.names.isdisjoint(_REJECTING)

    def _keeps_statistic(self, plain: _Pass, odd: _Pass) -> bool:
        moved = {
            slot: value
            for slot, value in odd.state.items()
            if slot in plain.state and _apart(plain.state[slot], value)
        }
        if not moved:
            return False
        # It is a leak where what was kept comes back in an output.
        usual = self._run({slot: plain.state[slot] for slot in moved})
        return _differ(usual, self._run(moved), every=True)


def outputs_of(output: Any, rows: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The outputs that have a row for each record, and those that are single numbers."""
    found: list[Tensor] = []
    numbers: dict[str, Tensor] = {}
    for number, leaf in enumerate(tree_flatten(output)[0]):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.is_sparse:
            if leaf.ndim and leaf.shape[0] == rows:
                found.append(leaf)
            elif leaf.numel() == 1:
                numbers[f"output {number}"] = leaf
    return found, numbers


def _is_packed(value: Any) -> bool:
    return isinstance(value, PackedSequence)


def _by_row(leaves: Sequence[Any], rows: int) -> set[int]:
    """Which of the arguments have a row for each record."""
    found = set()
    tensors = [(number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for number, leaf in tensors:
        if leaf.is_nested or leaf.layout is not torch.strided:
            raise UnseenError("the model's input is no plain tensor")
        if leaf.ndim and leaf.shape[0] == rows:
            found.add(number)
    if any(_is_packed(leaf) for leaf in leaves) or not found:
        raise UnseenError("the model's input has no row for each record")
    if len(tensors) > 1 and any(rows in leaf.shape[1:] for _, leaf in tensors):
        raise UnseenError("which axis of the model's inputs the records lie along is not certain")
    return found


def _check(module: nn.Module) -> None:
    """Refuse models whose repeated pass could be felt outside of it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UnseenError("several processes train together")
    if torch.compiler.is_compiling() or nn.modules.module._global_forward_hooks:
        raise UnseenError("the model's modules have forward hooks")
    for item in module.modules():
        kept = vars(item)
        if "forward" in kept or type(item).__name__ == "OptimizedModule":
            raise UnseenError("the model's forward function was replaced")
        hooks = (*kept["_forward_hooks"].values(), *kept["_forward_pre_hooks"].values())
        if any(not _is_opacus(hook) for hook in hooks):
            raise UnseenError("the model's modules have forward hooks")
        if any(nn.parameter.is_lazy(value) for value in kept["_parameters"].values()):
            raise UnseenError("the model's parameters have no values yet")


def _is_opacus(hook: Any) -> bool:
    return type(getattr(hook, "__self__", None)).__module__.startswith("opacus.")


def _kept(module: nn.Module) -> Iterator[tuple[_Slot, Tensor]]:
    """Tensors that a module and those in it keep beside their parameters, by where."""
    for path, item in module.named_modules():
        for name, value in vars(item).items():
            if isinstance(value, Tensor):
                yield (path, "", name), value
        for name, value in item._buffers.items():
            if value is not None:
                yield (path, "_buffers", name), value


def _versions(module: nn.Module) -> dict[_Slot, tuple[int, int]]:
    return {
        slot: (id(value), 0 if value.is_inference() else value._version)
        for slot, value in _kept(module)
        if value.ndim
    }


def _kept_numbers(module: nn.Module) -> dict[str, Tensor]:
    return {
        ".".join(slot): value
        for slot, value in _kept(module)
        if not value.ndim and value.is_floating_point() and not slot[1]
    }


def _state(module: nn.Module, slots: set[_Slot], rows: int) -> dict[_Slot, Tensor]:
    """Statistics that were there before: no rows, and no numbers that are only kept to be seen."""
    return {
        slot: value.detach()
        for slot, value in _kept(module)
        if slot in slots and value.ndim and value.is_floating_point() and value.shape[0] != rows
    }


def _copied(module: nn.Module, state: dict[_Slot, Tensor]) -> tuple[nn.Module, set[_Slot]]:
    """A model of the same parameters, and tensors, lists and generators of its own."""
    copies: dict[int, nn.Module] = {}
    slots: set[_Slot] = set()
    for path, item in module.named_modules(remove_duplicate=False):
        if id(item) in copies:
            continue
        copy = copies[id(item)] = object.__new__(type(item))
        kept = {name: _own(value) for name, value in vars(item).items()}
        kept["_buffers"] = {name: _own(value) for name, value in item._buffers.items()}
        for values, kind in ((kept, ""), (kept["_buffers"], "_buffers")):
            for name, value in values.items():
                if isinstance(value, Tensor):
                    slot = path, kind, name
                    slots.add(slot)
                    if slot in state:
                        values[name] = state[slot].clone()
        copy.__dict__.update(kept)
    for copy in copies.values():
        inside = copy._modules
        copy.__dict__["_modules"] = {
            name: None if value is None else copies[id(value)] for name, value in inside.items()
        }
    return copies[id(module)], slots


def _own(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        own = torch.Generator(value.device)
        own.set_state(value.get_state())
        return own
    return value.copy() if isinstance(value, (list, dict, set)) else value


def _random_states() -> list[Any]:
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


def _same_random(first: list[Any], second: list[Any]) -> bool:
    return (
        torch.equal(first[0], second[0])
        and first[1] == second[1]
        and bool(np.array_equal(first[2][1], second[2][1]))
        and first[2][2] == second[2][2]
    )


@contextmanager
def _as_before(states: list[Any]) -> Iterator[None]:
    """Generators as they were before the call, and as they are now afterwards."""
    now, cached = _random_states(), torch.is_autocast_cache_enabled()
    try:
        # Weights that are cast here without a graph are not to be taken for those of the training.
        torch.set_autocast_cache_enabled(False)
        _set_random(states)
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        _set_random(now)


def unfelt() -> AbstractContextManager[None]:
    """Random numbers that are drawn in here are drawn again afterwards."""
    return _as_before(_random_states())


def _tolerance(value: Tensor) -> float:
    """How far apart, as a share, sums in another order may be."""
    kind = value.dtype
    if torch.is_autocast_enabled(value.device.type):
        kind = torch.get_autocast_dtype(value.device.type)
    return float(torch.finfo(kind).eps ** (2.0 / 3.0))


def _differ(first: _Pass, second: _Pass, *, every: bool = False) -> bool:
    """Whether outputs of the records that were not replaced differ."""
    if [item.shape for item in first.rows] != [item.shape for item in second.rows]:
        raise UnseenError("the shape of the model's output depends on its input")
    for one, other in zip(first.rows, second.rows, strict=True):
        if _apart(one if every else one[0::2], other if every else other[0::2], by_row=True):
            return True
    return False


def _apart(one: Tensor, other: Tensor, *, by_row: bool = False) -> bool:
    if one.shape != other.shape or not one.numel():
        return False
    one, other = one.detach(), other.detach()
    if torch.equal(one, other):
        return False
    allowed = _tolerance(one)
    one, other = one.double(), other.double()
    off, scale = (one - other).abs(), one.abs().max()
    if not bool(torch.isfinite(off.max() + scale)):
        raise UnseenError("the model's output is not finite")
    beyond = off > allowed * scale
    if by_row:
        # One row alone may be a tie that rounding decided.
        return int(beyond.flatten(1).any(1).sum()) >= 2 if one.ndim > 1 else int(beyond.sum()) >= 2
    return bool(beyond.any())


def _interact(
    plain: Tensor | None, odd: Tensor | None, even: Tensor | None, both: Tensor | None
) -> bool:
    """Whether replacing half of the records matters more, or less, where the others are replaced.

    It does not in a sum over records.
    """
    if plain is None or odd is None or even is None or both is None:
        raise UnseenError("the model does not always keep the same numbers")
    values = [float(item) for item in (plain, odd, even, both)]
    allowed = _tolerance(plain) * max(map(abs, values))
    return abs(values[0] + values[3] - values[1] - values[2]) > allowed
