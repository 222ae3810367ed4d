"""Whether records are mixed before they are clipped: inputs, forward pass and loss."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from askgauss.integrations.attachment import CAUGHT
from askgauss.integrations.opacus.batch_stream import Columns, Content, inputs_mixed, rows_of
from askgauss.integrations.opacus.repeated_loss import (
    LossTrace,
    UnseenError,
    as_before,
    random_states,
)
from askgauss.recording.facts import BatchWeights, MixingFacts

__all__ = ["MixingWatch", "trusted"]

_Array = NDArray[np.float64]

# Every second record is replaced: with fewer there is little to see.
_FEWEST_RECORDS = 4
# Powers of two up to this one are all looked at, from there on every second.
_OFTEN = 4
# Inputs of as many steps are looked at whatever their number.
_FIRST = 12
# Collate functions from here put records together, and into nothing else.
_TRUSTED = ("torch.utils.data.", "transformers.data.", "transformers.trainer")
# Outputs of more numbers than this are not differentiated twice.
_LARGEST = 1 << 24
# Nodes of a graph that are walked through.
_NODES = 4096
# Derivatives by other records are exactly zero where a loss is a sum over records.
_CROSS = 1e-6
# A gradient has the form of a weighted cross-entropy up to this share.
_FORM = 1e-4
# Records whose label is likelier than this say little of their weight.
_CERTAIN = 0.99
_WEIGHED = 1 << 20


class MixingWatch:
    """Looks at inputs, forward pass and loss of steps 1, 2, 4, 8, 16, 64, 256 and so on."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = asdict(MixingFacts())
        self._weights = BatchWeights()
        self._trace: LossTrace | None = None
        self._step = 1
        self._begin()

    def _begin(self) -> None:
        self._end_trace()
        # Inputs cost little to look at.
        self.due = self._is_due or self._step <= _FIRST
        self._done: set[str] = set()
        self._samples: Columns | None = None
        self._columns: Columns | None = None
        self._call: ForwardCall | None = None
        self._rows = self._before = 0
        self._outputs: list[tuple[int, Tensor]] = []
        self._numbers: list[Tensor] = []

    @property
    def facts(self) -> MixingFacts:
        """What was found so far."""
        return MixingFacts(**self._values)

    def load(self, facts: MixingFacts | None, steps: int) -> None:
        """Resume from the facts of a checkpoint."""
        if facts is not None:
            self._values = asdict(facts)
        self._step = steps + 1
        self._begin()

    def step(self) -> None:
        """A step is made."""
        self._step += 1
        # Nothing of a batch or a graph is kept beyond its step.
        if self.due or self._is_due or self._step <= _FIRST:
            self._begin()

    @property
    def _is_due(self) -> bool:
        """Whether this is one of the powers of two that are looked at."""
        power = self._step.bit_length() - 1
        return self._step == 1 << power and (power <= _OFTEN or power % 2 == 0)

    def forget(self) -> None:
        """The audit is left."""
        self._begin()

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.end()

    # --- inputs -----------------------------------------------------------------------------------

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together by a function that may do more than that."""
        self._samples = None
        with suppress(*CAUGHT):
            batch = rows_of(samples)
            self._samples = None if batch is None else Columns(batch)

    def yielded(self, collate: Any, tensor: Tensor | None) -> Columns | None:
        """Some values of each record of a batch, as they were before anything was done to it."""
        samples, self._samples = self._samples, None
        if not trusted(collate):
            return samples
        return None if tensor is None or not len(tensor) else Columns(tensor)

    def _look_at_inputs(self, columns: Columns | None, tensor: Tensor | None) -> None:
        if columns is None or tensor is None:
            self._unseen("inputs", "what the records were before they were put together")
            return
        found = inputs_mixed(columns, Columns(tensor))
        if found is None:
            self._unseen("inputs", "inputs that are rows of the loader's batch, or scaled ones")
        else:
            self._note("inputs", found)

    def _look_at_second_inputs(self, tensor: Tensor | None) -> None:
        """The model is called again before the step: with the same records, or with others?"""
        columns = self._columns
        if columns is None or tensor is None:
            return
        found = inputs_mixed(columns, Columns(tensor))
        if found:
            self._note("inputs", mixed=True)
        elif found is None:
            # Gradients of all calls are added up row by row.
            self._values["inputs_unseen"] = "the rows of a second call of the model in one step"

    # --- forward pass -----------------------------------------------------------------------------

    def called(
        self,
        model: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        given: Content,
        records: int,
        yielded: Columns | None,
    ) -> None:
        """The model is about to be called to train.

        Args:
            model: The model.
            arguments: What it is called with.
            options: What it is called with by name.
            given: The widest tensor of that.
            records: Records that were drawn for the batch that its rows come from.
            yielded: Values of the batch of the loader.
        """
        rows = given.rows
        self._call, self._rows, first = None, 0, True
        if not records and rows == self._before:
            records, first = rows, False  # the same records once more
        if rows != records or rows < _FEWEST_RECORDS or not getattr(model, "batch_first", True):
            if records >= _FEWEST_RECORDS:
                self._unseen("forward", "a row for each record in the model's input")
            return
        self._before = rows
        with self._looking_at("forward"):
            if not first:
                self._look_at_second_inputs(given.tensor)
            elif "inputs" not in self._done:
                self._look_at_inputs(yielded, given.tensor)
                self._columns = yielded
            if not self._is_due:
                return
            self._rows = rows
            if "forward" not in self._done:
                # With wrap_model=False the model itself is called.
                inner = getattr(model, "_module", model)
                self._call = ForwardCall(inner, arguments, options, rows)

    def returned(self, output: Any) -> None:
        """The model was called."""
        call, self._call = self._call, None
        rows, self._rows = self._rows, 0
        if not rows:
            return
        with self._looking_at("forward"):
            outputs = [item for item in outputs_of(output, rows)[0] if item.requires_grad]
            self._outputs += [(rows, item) for item in outputs]
            if call is not None:
                mixed, state, scalars = call.look(output)
                self._numbers += scalars
                if state:
                    self._first("state_first")
                self._note("forward", mixed)
            if outputs and "loss" not in self._done:
                self._trace = self._trace or LossTrace.begin()
                if self._trace is not None:
                    self._trace.follow(outputs)

    # --- loss -------------------------------------------------------------------------------------

    def backward(self, loss: Any) -> None:
        """A loss is about to be differentiated."""
        listed, self._outputs = self._outputs, []
        if isinstance(loss, (list, tuple)) and len(loss) == 1:
            loss = loss[0]
        if not listed or "loss" in self._done or not isinstance(loss, Tensor):
            return
        outputs = [item for rows, item in listed if rows == listed[-1][0]]
        with self._looking_at("loss"):
            if self._numbers and _depends_on(loss, self._numbers):
                self._first("loss_first")
            mixed, gradients = self._look_at_loss(loss, outputs)
            self._note("loss", mixed)
            if len(outputs) == len(gradients) == 1:
                found = _class_weights(outputs[0], gradients[0])
                if found is not None and self._weights.add(*found):
                    self._first("weights_first")

    def _look_at_loss(
        self, loss: Tensor, outputs: Sequence[Tensor]
    ) -> tuple[bool, Sequence[Tensor]]:
        """Whether a loss mixes records, by its second derivative and by repeating it.

        Raises:
            UnseenError: Neither says so, and one that could have cannot be looked at.
        """
        reason: UnseenError | None = None
        mixed, gradients = False, list[Tensor]()
        try:
            mixed, gradients = _loss_mixed(loss, outputs)
        except UnseenError as error:
            reason = error
        repeated = None if mixed or self._trace is None else self._trace.look(loss)
        if repeated is None and reason is not None:
            raise reason
        return mixed or bool(repeated), gradients

    @contextmanager
    def _looking_at(self, kind: str) -> Iterator[None]:
        """What goes wrong in here never stops a training: it is why nothing was seen."""
        try:
            yield
        except UnseenError as reason:
            self._unseen(kind, str(reason))
        except CAUGHT as error:
            self._unseen(kind, f"{type(error).__name__}: {error}")

    def _first(self, name: str) -> None:
        """Note the first step in which something was found."""
        self._values[name] = self._values[name] or self._step

    def _note(self, kind: str, mixed: bool) -> None:
        self._done.add(kind)
        self._values[kind] += 1
        if mixed:
            self._first(f"{kind}_first")

    def _unseen(self, kind: str, why: str) -> None:
        if kind not in self._done:
            self._values[f"{kind}_unseen"] = why[:200]


def trusted(collate: Any) -> bool:
    """Whether a collate function is known to make a row of each record and nothing else."""
    for _ in range(4):
        inner = getattr(collate, "wrapped_collator_fn", None)
        if isinstance(collate, functools.partial):
            inner = collate.keywords.get("collate_fn", collate.func)
        if inner is None:
            break
        collate = inner
    place = getattr(collate, "__module__", None) or type(collate).__module__
    return str(place).startswith(_TRUSTED)


# --- loss: does a record's gradient depend on the others? -----------------------------------------


def _loss_mixed(loss: Tensor, outputs: Sequence[Tensor]) -> tuple[bool, list[Tensor]]:
    """Whether the gradient of one record's outputs depends on those of others, and the gradients.

    Args:
        loss: What is about to be differentiated.
        outputs: Outputs of the model, each with a row for each record.

    Raises:
        UnseenError: It cannot be differentiated twice without being felt.
    """
    if loss.numel() != 1 or not loss.requires_grad:
        raise UnseenError("the loss is not a single number")
    if sum(item.numel() for item in outputs) > _LARGEST:
        raise UnseenError("the model's output is too large")
    if any(item._backward_hooks or item.retains_grad for item in (loss, *outputs)):
        raise UnseenError("the loss or the model's output has hooks")
    if any(isinstance(node, BackwardCFunction) for node in _between(loss, outputs)):
        raise UnseenError("the loss goes through functions or layers of its own")
    with torch.enable_grad():
        found = torch.autograd.grad(loss, outputs, create_graph=True, allow_unused=True)
        used = [(o, g) for o, g in zip(outputs, found, strict=True) if g is not None]
        if not used:
            raise UnseenError("the loss does not depend on the model's output")
        gradients = [gradient for _, gradient in used]
        if not all(bool(torch.isfinite(item).all()) for item in gradients):
            raise UnseenError("the gradient of the loss is not finite")
        along = [_along(item) * item for item in gradients if item.requires_grad]
        if not along:
            raise UnseenError("the gradient of the loss does not depend on the model's output")
        whole = torch.stack([item.sum() for item in along]).sum()
        second = torch.autograd.grad(
            whole, [output for output, _ in used], retain_graph=True, allow_unused=True
        )
    parts = [item.detach().flatten(1) if item.ndim > 1 else item.detach()[:, None]
             for item in second if item is not None]  # fmt: skip
    by_record = torch.stack([item.abs().amax(1).double() for item in parts]).amax(0)
    own, others = float(by_record[0::2].max()), float(by_record[1::2].max())
    if not np.isfinite(own + others) or own + others == 0.0:
        raise UnseenError("the loss has no second derivative")
    crossed = int((by_record[1::2] > _CROSS * max(own, others)).sum())
    return crossed >= 2, [item.detach() for item in gradients]


def _along(gradient: Tensor) -> Tensor:
    """A direction in the outputs of every second record, which draws no random numbers."""
    values = torch.arange(1, gradient.numel() + 1, device=gradient.device, dtype=torch.float64)
    direction = torch.cos(values).reshape(gradient.shape)
    direction[1::2] = 0.0
    return direction.to(gradient.dtype)


def _between(loss: Tensor, outputs: Sequence[Tensor]) -> list[Any]:
    """Nodes of the graph that lie between a loss and the outputs."""
    ends = {id(item.grad_fn) for item in outputs}
    after: dict[int, list[int]] = {}
    nodes: dict[int, Any] = {}
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in nodes:
            continue
        if len(nodes) > _NODES:
            raise UnseenError("the graph of the loss is too large")
        nodes[id(node)] = node
        if id(node) in ends:
            continue
        for following, _ in node.next_functions:
            if following is not None:
                after.setdefault(id(following), []).append(id(node))
                waiting.append(following)
    reached, left = set(), [key for key in ends if key in nodes]
    while left:
        for key in after.get(left.pop(), ()):
            if key not in reached:
                reached.add(key)
                left.append(key)
    return [nodes[key] for key in reached - ends]


def _depends_on(loss: Tensor, numbers: Sequence[Tensor]) -> bool:
    """Whether a loss is made of one of these numbers."""
    if any(item is loss for item in numbers):
        return True
    return bool(_between(loss, [item for item in numbers if item.grad_fn is not None]))


def _class_weights(
    output: Tensor, gradient: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Label and weight of every record in a weighted cross-entropy; None where it is none."""
    output = output.detach()
    if output.dtype not in (torch.float32, torch.float64) or output.numel() > _WEIGHED:
        return None
    values: NDArray[np.float64] = output.to("cpu", torch.float64).numpy()
    slopes: NDArray[np.float64] = gradient.to("cpu", torch.float64).numpy()
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        # One logit: that of the second of two classes.
        values = np.stack([np.zeros(len(values)), values.reshape(-1)], axis=1)
        slopes = np.stack([-slopes.reshape(-1), slopes.reshape(-1)], axis=1)
    if values.ndim != 2 or values.shape[1] < 2:
        return None
    likely = np.exp(values - values.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    labels, rows = slopes.argmin(axis=1), np.arange(len(values))
    own, targets = likely[rows, labels], np.zeros_like(values)
    targets[rows, labels] = 1.0
    clear = own < _CERTAIN
    weights = -slopes[rows, labels] / np.where(clear, 1.0 - own, 1.0)
    form = weights[:, None] * (likely - targets)
    off = np.abs(form - slopes).max(axis=1)
    if not clear.any() or (weights <= 0.0).any() or (off[clear] > _FORM * weights[clear]).any():
        return None
    if np.setdiff1d(labels, labels[clear]).size:
        return None
    names, first = np.unique(labels[clear], return_index=True)
    of_class = weights[clear][first][np.searchsorted(names, labels)]
    return labels, np.where(clear, weights, of_class)


_Slot = tuple[str, str, str]

# Records of a batch whose outputs are compared with those they have without the others.
_ALONE = 32


# Draws that take as many random numbers as their arguments make them take.
_REJECTING = frozenset({"_standard_gamma", "_sample_dirichlet", "poisson", "binomial"})


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
        self._random = random_states()

    def look(self, output: Any) -> tuple[bool, bool, list[Tensor]]:
        """Compare the call's output with those of copies of the model.

        Returns:
            Whether an output depends on other records of the batch; whether a statistic of the
            batch was written to the model and later outputs depend on it; single numbers, such as
            a loss, that are no sum over records.

        Raises:
            UnseenError: The passes cannot be compared.
        """
        own = _Pass(*outputs_of(output, self._rows), {}, [])
        own.numbers.update(_kept_numbers(self._module))
        numbers = {name: item for name, item in own.numbers.items() if item.requires_grad}
        if not own.rows and not numbers:
            raise UnseenError("the model's output has no row for each record")
        changed = _versions(self._module) != self._versions
        # Nearly all models: one pass, of some records without the others, is enough.
        if not (changed or numbers) and self._is_same_alone(own):
            return False, False, []
        plain, again, odd = self._run(), self._run(), self._run(odd=True)
        if _differ(plain, again, every=True):
            raise UnseenError("the model gives other outputs when its forward pass is repeated")
        if not _same_random(plain.random, odd.random):
            raise UnseenError("how many random numbers the model draws depends on its input")
        mixed = _differ(plain, odd)
        if mixed and self._rejects():
            raise UnseenError("how many random numbers the model draws depends on its input")
        state = changed and self._keeps_statistic(plain, odd)
        if not numbers:
            return mixed, state, []
        both, even = self._run(odd=True, even=True), self._run(even=True)
        scalars = [
            item
            for name, item in numbers.items()
            if _interact(*(found.numbers.get(name) for found in (plain, odd, even, both)))
        ]
        return mixed, state, scalars

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
        with as_before(self._random), torch.no_grad():
            output = copy(*arguments, **options)
            after = random_states()
        rows, numbers = outputs_of(output, len(chosen))
        return _Pass(rows, numbers | _kept_numbers(copy), _state(copy, slots, self._rows), after)

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


def _same_random(first: list[Any], second: list[Any]) -> bool:
    return (
        torch.equal(first[0], second[0])
        and first[1] == second[1]
        and bool(np.array_equal(first[2][1], second[2][1]))
        and first[2][2] == second[2][2]
    )


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
