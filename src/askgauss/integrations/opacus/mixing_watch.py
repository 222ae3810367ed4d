"""Whether records meet before they are clipped: looked at in a few steps of an Opacus run."""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

from torch import Tensor

from askgauss.integrations.guard import CAUGHT
from askgauss.integrations.opacus.mixed_inputs import Columns, input_look, rows_of
from askgauss.integrations.opacus.mixed_losses import class_weights, depends_on, loss_look
from askgauss.integrations.opacus.mixed_outputs import ForwardCall, UnseenError, outputs_of
from askgauss.recording.facts import BatchWeights, MixingFacts

__all__ = ["MixingWatch"]

# Every second record is replaced: with fewer there is little to see.
_FEWEST = 4
# Powers of two up to this one are all looked at, from there on every second.
_OFTEN = 4
# Inputs of as many steps are looked at whatever their number.
_FIRST = 12
# Collate functions from here put records together, and into nothing else.
_TRUSTED = ("torch.utils.data.", "transformers.data.", "transformers.trainer")


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
        """Go on from the facts of a checkpoint."""
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
        """Nobody listens any more."""
        self._begin()

    # --- inputs -----------------------------------------------------------------------------------

    def collated(self, samples: Any) -> None:
        """Samples are about to be put together by a function that may do more than that."""
        self._samples = None
        try:
            batch = rows_of(samples)
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
        found = input_look(columns, Columns(tensor))
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
        if rows != records or rows < _FEWEST or not getattr(model, "batch_first", True):
            if records >= _FEWEST:
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
            if self._numbers and depends_on(loss, self._numbers):
                self._values["loss_first"] = self._values["loss_first"] or self._step
            mixed, gradients = loss_look(loss, outputs)
            self._note("loss", mixed)
            if len(outputs) == len(gradients) == 1:
                found = class_weights(outputs[0], gradients[0])
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
