"""Whether records are mixed before they are clipped: inputs, forward pass and loss."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from askgauss.integrations.attachment import CAUGHT
from askgauss.integrations.opacus.repeated_forward import ForwardCall, UnseenError, outputs_of
from askgauss.recording.facts import MixingFacts
from askgauss.recording.witness import BatchWeights

__all__ = ["Columns", "MixingWatch", "trusted"]

_Array = NDArray[np.float64]

# Every second record is replaced: with fewer there is little to see.
_FEWEST_RECORDS = 4
# Powers of two up to this one are all looked at, from there on every second.
_OFTEN = 4
# Inputs of as many steps are looked at whatever their number.
_FIRST = 12
# Collate functions from here put records together, and into nothing else.
_TRUSTED = ("torch.utils.data.", "transformers.data.", "transformers.trainer")
# Values of each row that are compared, the fewest that tell anything, and the rows looked at.
_COLUMNS = 1024
_FEWEST_COLUMNS = 6
_ROWS = 16
# Rows that have to be explained by two records, and their share of those that are not by one.
_MIXED = 3
_SHARE = 0.5
# What is left of a row that is explained, as a share of what varies in it.
_EXACT = 1e-5
# The least share of a row that the second record explains.
_MATERIAL = 1e-3
# Values of a row that have to come from the second record, and different ones among them.
_PASTED = 8
_DISTINCT = 4
# Lines through two values that are tried to find how a row was scaled.
_LINES = 24


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
        self._step = 1
        self._begin()

    def _begin(self) -> None:
        # Inputs cost little to look at.
        self.due = self._is_due or self._step <= _FIRST
        self._done: set[str] = set()
        self._samples: Columns | None = None
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

    # --- inputs -----------------------------------------------------------------------------------

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together by a function that may do more than that."""
        self._samples = None
        try:
            batch = _rows_of(samples)
        except CAUGHT:
            return
        if batch is not None:
            self._samples = Columns(batch)

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
        found = _inputs_mixed(columns, Columns(tensor))
        if found is None:
            self._unseen("inputs", "inputs that are rows of the loader's batch, or scaled ones")
        else:
            self._note("inputs", found)

    # --- forward pass -----------------------------------------------------------------------------

    def called(
        self,
        model: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        rows: int,
        records: int,
        yielded: Columns | None,
        given: Tensor | None,
    ) -> None:
        """The model is about to be called to train.

        Args:
            model: The model.
            arguments: What it is called with.
            options: What it is called with by name.
            rows: Its rows.
            records: Records that were drawn for the batch they come from.
            yielded: Values of the batch of the loader.
            given: What the model is called with of it.
        """
        self._call, self._rows, first = None, 0, True
        if not records and rows == self._before:
            records, first = rows, False  # the same records once more
        if rows != records or rows < _FEWEST_RECORDS or not getattr(model, "batch_first", True):
            if records >= _FEWEST_RECORDS:
                self._unseen("forward", "a row for each record in the model's input")
            return
        self._before = rows
        try:
            if first and "inputs" not in self._done:
                self._look_at_inputs(yielded, given)
            if not self._is_due:
                return
            self._rows = rows
            if "forward" not in self._done:
                # With wrap_model=False the model itself is called.
                inner = getattr(model, "_module", model)
                self._call = ForwardCall(inner, arguments, options, rows)
        except UnseenError as reason:
            self._unseen("forward", str(reason))
        except CAUGHT as error:
            self._unseen("forward", f"{type(error).__name__}: {error}")

    def returned(self, output: Any) -> None:
        """The model was called."""
        call, self._call = self._call, None
        rows, self._rows = self._rows, 0
        if not rows:
            return
        try:
            self._outputs += [
                (rows, item) for item in outputs_of(output, rows)[0] if item.requires_grad
            ]
            if call is not None:
                found = call.look(output)
                self._numbers += found.scalars
                if found.state:
                    self._values["state_first"] = self._values["state_first"] or self._step
                self._note("forward", found.mixed)
        except UnseenError as reason:
            self._unseen("forward", str(reason))
        except CAUGHT as error:
            self._unseen("forward", f"{type(error).__name__}: {error}")

    # --- loss -------------------------------------------------------------------------------------

    def backward(self, loss: Any) -> None:
        """A loss is about to be differentiated."""
        listed, self._outputs = self._outputs, []
        if isinstance(loss, (list, tuple)) and len(loss) == 1:
            loss = loss[0]
        if not listed or "loss" in self._done or not isinstance(loss, Tensor):
            return
        outputs = [item for rows, item in listed if rows == listed[-1][0]]
        try:
            if self._numbers and _depends_on(loss, self._numbers):
                self._values["loss_first"] = self._values["loss_first"] or self._step
            mixed, gradients = _loss_mixed(loss, outputs)
            self._note("loss", mixed)
            if len(outputs) == len(gradients) == 1:
                found = _class_weights(outputs[0], gradients[0])
                if found is not None and self._weights.add(*found):
                    self._values["weights_first"] = self._values["weights_first"] or self._step
        except UnseenError as reason:
            self._unseen("loss", str(reason))
        except CAUGHT as error:
            self._unseen("loss", f"{type(error).__name__}: {error}")

    def _note(self, kind: str, mixed: bool) -> None:
        values = self._values
        self._done.add(kind)
        values[kind] += 1
        if mixed:
            values[f"{kind}_first"] = values[f"{kind}_first"] or self._step

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


# --- inputs: is a row made of two records? --------------------------------------------------------


class Columns:
    """Some values of every row of a batch, the same ones of each.

    Args:
        tensor: The batch.
    """

    __slots__ = ("_values", "shape")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        rows = tensor.detach()
        # Colours are often scaled each by itself: those of one are enough.
        rows = (rows[:, 0] if rows.ndim > 3 else rows).reshape(len(rows), -1)
        apart = max(1, rows.shape[1] // _COLUMNS)
        self._values = rows[:, ::apart][:, :_COLUMNS].clone()

    def read(self) -> _Array:
        """The values."""
        return np.asarray(self._values.to("cpu", torch.float64).numpy())

    def same(self, other: Columns) -> bool:
        """Whether these are the very same values."""
        mine, theirs = self._values, other._values
        alike = self.shape == other.shape and mine.dtype == theirs.dtype
        return alike and mine.device == theirs.device and torch.equal(mine, theirs)

    @property
    def precision(self) -> float:
        """Relative spacing of the numbers."""
        kind = self._values.dtype
        return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def _inputs_mixed(yielded: Columns, given: Columns) -> bool | None:
    """Whether rows are made of two records each; None where they are made in a way not known.

    Args:
        yielded: The batch of the loader, one row a record.
        given: What the model was called with.
    """
    if given.same(yielded):
        return False
    if yielded.shape != given.shape or yielded.shape[0] < _MIXED:
        return None
    records, rows = yielded.read(), given.read()
    if not (np.isfinite(records).all() and np.isfinite(rows).all()):
        return None
    exact = max(_EXACT, 16.0 * given.precision)
    if exact > _MATERIAL or records.shape[1] < _FEWEST_COLUMNS:
        return None
    looked = np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))
    centred = records - records.mean(axis=1, keepdims=True)
    kinds = [_explained(rows[index], int(index), records, centred, exact) for index in looked]
    mixed, unknown = kinds.count(2), kinds.count(0)
    if mixed >= _MIXED and mixed >= _SHARE * (mixed + unknown):
        return True
    return None if mixed or unknown else False


def _explained(row: _Array, index: int, records: _Array, centred: _Array, exact: float) -> int:
    """By how many records a row is explained; 0 where by none or more than two."""
    rest = row - row.mean()
    varies = float(np.linalg.norm(rest))
    if varies <= exact * max(float(np.linalg.norm(row)), 1e-300):
        return 1  # constant: nothing of any record
    norms = np.linalg.norm(centred, axis=1)
    alike = np.abs(centred @ rest) / np.where(norms > 0.0, norms, np.inf) / varies
    best = int(alike.argmax())
    if _left(rest, centred[[best]])[0] <= exact * varies:
        return 1
    for first in dict.fromkeys((index, best)):
        if _is_sum_of_two(rest, first, centred, exact):
            return 2
        if _is_pasted(row, first, records):
            return 2
    return 0


def _left(rest: _Array, records: _Array) -> tuple[float, _Array]:
    """What is left of a row beside a combination of records, and their shares."""
    shares, *_ = np.linalg.lstsq(records.T, rest, rcond=None)
    return float(np.linalg.norm(rest - shares @ records)), np.asarray(shares, dtype=np.float64)


def _is_sum_of_two(rest: _Array, first: int, centred: _Array, exact: float) -> bool:
    own = centred[first]
    square = float(own @ own)
    if square <= 0.0:
        return False
    # What is left beside the first record lies along what the second has beside it.
    left = rest - (rest @ own) / square * own
    others = centred - np.outer(centred @ own / square, own)
    norms = np.linalg.norm(others, axis=1)
    usable = norms > 1e-3 * np.linalg.norm(centred, axis=1).clip(1e-300)
    usable[first] = False
    if not usable.any():
        return False
    alike = np.where(usable, np.abs(others @ left) / np.where(norms > 0.0, norms, np.inf), 0.0)
    second = int(alike.argmax())
    off, shares = _left(rest, centred[[first, second]])
    varies = float(np.linalg.norm(rest))
    if off > exact * varies or shares[0] * shares[1] <= 0.0:
        return False
    parts = np.abs(shares) * np.linalg.norm(centred[[first, second]], axis=1)
    material = abs(float(shares[1])) * float(norms[second])
    return bool(parts.min() > _MATERIAL * varies and material > max(_MATERIAL, 10 * exact) * varies)


def _is_pasted(row: _Array, first: int, records: _Array) -> bool:
    """Whether a row has some values of one record, and all others of one other."""
    scale = _line(records[first], row)
    if scale is None:
        return False
    ours = _equal(scale[0] * records[first] + scale[1], row)
    other = ~ours
    if min(ours.sum(), other.sum()) < _PASTED or np.unique(row[other]).size < _DISTINCT:
        return False
    theirs = _equal(scale[0] * records + scale[1], row)
    found = theirs[:, other].all(axis=1)
    # One whose own values are not those of the whole row.
    elsewhere = (ours & ~theirs).sum(axis=1)
    return bool((found & (elsewhere >= _PASTED)).any())


def _equal(scaled: _Array, row: _Array) -> NDArray[np.bool_]:
    spread = float(row.max() - row.min())
    return np.asarray(np.abs(scaled - row) <= _EXACT * spread)


def _line(record: _Array, row: _Array) -> tuple[float, float] | None:
    """How most values of a record were scaled and shifted: not at all, or by a line through two."""
    best, most = None, 0
    values = np.unique(record)
    places = [int(np.flatnonzero(record == value)[0]) for value in values[:: len(values) // 8 or 1]]
    tried: list[tuple[float, float]] = [(1.0, 0.0)]
    pairs = [(one, other) for one in places for other in places if record[one] < record[other]]
    for one, other in pairs[:_LINES]:
        slope = (row[other] - row[one]) / (record[other] - record[one])
        tried.append((float(slope), float(row[one] - slope * record[one])))
    for line in tried:
        if line[0] == 0.0:
            continue
        count = int(_equal(line[0] * record + line[1], row).sum())
        if count > most:
            best, most = line, count
    return best


def _rows_of(samples: Any) -> Tensor | None:
    """The widest tensor of each of the samples that are about to be put together, as one batch."""
    if not isinstance(samples, (list, tuple)) or not samples:
        return None
    widest = [_widest(sample) for sample in samples]
    if any(item is None or item.shape != widest[0].shape for item in widest):
        return None
    return torch.stack(widest)


def _widest(sample: Any) -> Any:
    values = sample.values() if isinstance(sample, dict) else sample
    if isinstance(sample, (Tensor, np.ndarray)):
        values = (sample,)
    elif not isinstance(sample, (dict, list, tuple)):
        return None
    tensors = [torch.as_tensor(item) for item in values if isinstance(item, (Tensor, np.ndarray))]
    return max(tensors, key=lambda item: item.numel(), default=None)


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
