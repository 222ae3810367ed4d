"""Examples as canaries in a torch run: who is in a batch, and what is released along each."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from askgauss import _validate
from askgauss.canaries import ExampleCanaries, ExampleDataset
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.opacus.opacus_versions import (
    DPLossFastGradientClipping,
    DPPerLayerOptimizer,
)

__all__ = ["ExampleProbe", "ProbeProgress"]

# Numbers held at once: gradients of a chunk of canaries, and directions for the gram matrix.
_CHUNK_NUMBERS = 1 << 24
_GRAM_NUMBERS = 1 << 25
_CHUNK = 256
_GRAM = "examples.gram"
_COMMON = "examples.common"
# A gradient of which less than this share is left has no direction of its own.
_NOTHING = 1e-4
# Gradients that all point the same way share their noise. Beyond this mean cosine, what they have
# most in common is taken out of the directions, until they are as far apart as this, or so often.
_ALIKE = 0.4
_APART = 0.25
_MOST_TAKEN_OUT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProgress:
    """How far a probe has come, apart from its arrays."""

    every: int
    seen: int
    repeats: int
    planted: int
    norms: float
    grams: int


class ExampleProbe:
    """Listens to the training set, and projects what is released on the canaries' gradients.

    Gradients are taken with `torch.func` on a copy of the model without any hooks and in evaluation
    mode, which shares its weights: training does not notice, and no random number is drawn. With
    dropout, directions are therefore those without it. Any direction that is fixed before the noise
    of a step is drawn gives a valid observation; a worse one only lowers the bound. Where gradients
    are much alike, as behind attention with two classes, what most of them share is taken out.

    Args:
        canaries: The examples.
        optimizer: The private optimizer.
        parameters: The parameters it trains, in order.
        model: The model, as `make_private` returned it.
        criterion: The loss, called with the model's output and the labels.
        data_loader: The training loader, over ``canaries.dataset(...)``.
        every: Observe one step in so many.
        kept: Canaries to compare the directions of; the first of them where there is no memory for
            all.
    """

    def __init__(
        self,
        canaries: ExampleCanaries,
        *,
        optimizer: Any,
        parameters: Sequence[nn.Parameter],
        model: nn.Module | None,
        criterion: Any,
        data_loader: Any,
        every: int,
        kept: NDArray[np.int64],
    ) -> None:
        _validate.integer(1, every=every)
        if isinstance(optimizer, DPPerLayerOptimizer):
            raise UnsupportedError(
                "Clipping layer by layer changes the direction of a gradient, and examples are "
                "observed along theirs. Use BlockCanaries."
            )
        if int(getattr(optimizer, "world_size", 1)) > 1:
            raise UnsupportedError(
                "Every rank draws batches of its own, and only this one is seen. Use DiracCanaries "
                "in distributed training, or audit examples on a single process."
            )
        self._canaries = canaries
        self._optimizer = optimizer
        self._dataset = _dataset_of(data_loader, canaries)
        self._every = int(every)
        self._names, self._trained = _named(model, parameters)
        self._loss = _loss_function(model, criterion, optimizer.loss_reduction)
        self._gradients: Callable[..., dict[str, Tensor]]
        like = parameters[0]
        self._inputs = _as_tensor(canaries.inputs, like)
        self._labels = _as_tensor(canaries.labels, like)
        self._wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        numbers = sum(parameter.numel() for parameter in parameters)
        self._chunk = min(_CHUNK, max(1, _CHUNK_NUMBERS // numbers))
        self._compared = kept[: max(2, _GRAM_NUMBERS // numbers)]
        self._batches: list[tuple[bool, NDArray[np.int64]]] = []
        self._seen = 0
        self._repeats = 0
        self._planted = 0
        self._norms = 0.0
        self._gram = np.zeros((self._compared.size, self._compared.size))
        self._grams = 0
        self._common = torch.zeros((0, numbers), dtype=self._wide, device=like.device)
        self._check()

    def _check(self) -> None:
        """Take one gradient now: better refused here than in the middle of a run.

        Layers that torch.func does not take, such as Opacus' recurrent ones, get one backward pass
        a canary.
        """
        one = self._trained, self._inputs[:1], self._labels[:1]
        try:
            try:
                vmap(grad(self._loss), in_dims=(None, 0, 0))(*one)
                self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                self._gradients = functools.partial(_one_by_one, self._loss)
                self._gradients(*one)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise UnsupportedError(
                "The canaries' own gradients cannot be taken. Check that model and "
                "criterion accept the canaries' inputs and labels, and that the model does nothing "
                f"random in evaluation mode; or use DiracCanaries. ({error})"
            ) from error

    def listen(self) -> None:
        """Begin to note who is in the batches."""
        self._batches.clear()
        self._dataset.on_batch = self._fetched

    def stop(self) -> None:
        """Listen no more."""
        self._dataset.on_batch = None

    def _fetched(self, canaries: NDArray[np.int64]) -> None:
        # The splitting sampler tells the optimizer of every part, the last one excepted, that more
        # of its batch follow; it does so just before the part is fetched.
        queue = self._optimizer._step_skip_queue
        self._batches.append((bool(queue and queue[-1]), canaries))

    def planted(self) -> NDArray[np.int64]:
        """The canaries in the step that is about to add its noise.

        Batches that were fetched before its own, and led to no step, are left out.

        Raises:
            RecordingError: The step's batch did not come from the canaries' dataset.
        """
        wanted = int(self._optimizer.accumulated_iterations)
        parts: list[NDArray[np.int64]] = []
        for more_follows, canaries in reversed(self._batches):
            wanted -= not more_follows
            if wanted < 0:
                break
            parts.append(canaries)
        self._batches.clear()
        if wanted > 0:
            raise RecordingError(
                "Expected the batch of every step to come from the loader over "
                "canaries.dataset(train_set), got a step without one. Train with that loader, "
                "inside the with block, and use each batch once."
            )
        fetched = np.concatenate(parts)
        planted = np.unique(fetched)
        self._repeats += fetched.size - planted.size
        return planted

    def due(self) -> bool:
        """Count a step, and say whether it is one to observe."""
        self._seen += 1
        return (self._seen - 1) % self._every == 0

    @property
    def skipped(self) -> int:
        """Steps counted so far that were none to observe."""
        return self._seen - -(-self._seen // self._every)

    def along(
        self, released: Sequence[Tensor], planted: NDArray[np.int64], clip_norm: float
    ) -> NDArray[np.float64]:
        """What the gradients that are about to be applied say along each canary's own."""
        observed = (self._seen - 1) // self._every + 1
        # Directions change slowly: the steps 1, 2, 4, 8, ... are enough to tell.
        if observed & (observed - 1) == 0:
            self._compare()
        flat = [item.detach().reshape(-1).to(self._wide) for item in released]
        common = torch.split(self._common, [item.numel() for item in flat], dim=1)
        pairs = zip(common, flat, strict=True)
        shared = torch.stack([part @ item for part, item in pairs]).sum(dim=0)
        values, norms, shares = [], [], []
        for rows in self._rows(np.arange(self._canaries.size)):
            squares = torch.stack([row.square().sum(dim=1) for row in rows]).double().sum(dim=0)
            products = torch.stack([row @ item for row, item in zip(rows, flat, strict=True)])
            parts = [row @ part.T for row, part in zip(rows, common, strict=True)]
            inside = torch.stack(parts).sum(dim=0)
            left = (squares - inside.double().square().sum(dim=1)).clamp(min=0.0)
            along = products.double().sum(dim=0) - (inside @ shared).double()
            norm, length = squares.sqrt(), left.sqrt()
            # Without a gradient there is no direction, and any that is fixed will do.
            none = length <= _NOTHING * norm
            values.append(torch.where(none, flat[0][0].double(), along / length))
            norms.append(norm)
            shares.append(torch.where(none, 0.0, length / norm))
        lengths, share = (torch.cat(item).cpu().numpy() for item in (norms, shares))
        self._planted += planted.size
        added = np.minimum(lengths[planted] / clip_norm, 1.0) * share[planted]
        self._norms += float(added.sum())
        return np.asarray(torch.cat(values).cpu().numpy(), dtype=np.float64)

    def _compare(self) -> None:
        directions = torch.cat([torch.cat(rows, dim=1) for rows in self._rows(self._compared)])
        self._common = directions[:0]
        directions = _unit(directions)
        cosines = _cosines(directions)
        wanted = _ALIKE
        while _mean_overlap(cosines) > wanted and len(self._common) < _MOST_TAKEN_OUT:
            wanted = _APART
            # The direction that most of what is left has in common, to be left out from here on.
            first = torch.linalg.eigh(directions @ directions.T)[1][:, -1]
            axis = first @ directions
            axis = axis - (axis @ self._common.T) @ self._common
            axis /= axis.norm()
            self._common = torch.cat([self._common, axis[None]])
            directions = _unit(directions - torch.outer(directions @ axis, axis))
            cosines = _cosines(directions)
        self._gram += cosines
        self._grams += 1

    def _rows(self, chosen: NDArray[np.int64]) -> Iterator[list[Tensor]]:
        """Gradients of some canaries, chunk by chunk: for each tensor, one flat row a canary."""
        device = next(iter(self._trained.values())).device
        for start in range(0, chosen.size, self._chunk):
            these = torch.from_numpy(chosen[start : start + self._chunk])
            inputs, labels = (item[these].to(device) for item in (self._inputs, self._labels))
            found = self._gradients(self._trained, inputs, labels)
            yield [found[name].detach().flatten(1).to(self._wide) for name in self._names]

    @property
    def contribution(self) -> float | None:
        """Mean norm of the planted canaries' clipped gradients, in clip norms."""
        return self._norms / self._planted if self._planted else None

    @property
    def gram(self) -> NDArray[np.float64]:
        """Mean absolute cosines of the compared canaries' gradients."""
        return self._gram / self._grams if self._grams else np.zeros((0, 0))

    def notes(self) -> list[str]:
        """What a reader of the report should know."""
        notes = []
        if self.contribution is not None and self.contribution < 0.995:
            notes.append(
                f"the canaries' clipped gradients are {self.contribution:.3g} clip norms long on "
                "average: a record may add 1, so the bound is lower than it could be."
            )
        if self._every > 1:
            notes.append(f"one in {self._every} of {self._seen:,} steps was observed.")
        if self._repeats:
            notes.append(f"a canary came twice or more in one step, {self._repeats:,} times.")
        return notes

    @property
    def progress(self) -> ProbeProgress:
        """Plain values to go on from."""
        return ProbeProgress(
            every=self._every,
            seen=self._seen,
            repeats=self._repeats,
            planted=self._planted,
            norms=self._norms,
            grams=self._grams,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to go on from."""
        return {_GRAM: self._gram.copy(), _COMMON: self._common.double().cpu().numpy()}

    def check(self, arrays: dict[str, Any], progress: ProbeProgress | None) -> None:
        """Refuse what `load` could not go on from.

        Raises:
            FileFormatError: Parts of it are missing.
            RecordingError: It is of a run that was observed otherwise.
        """
        gram = arrays.get(_GRAM)
        if progress is None or not isinstance(gram, np.ndarray) or gram.shape != self._gram.shape:
            raise FileFormatError(
                f"Expected a checkpoint of examples with {_GRAM} of shape {self._gram.shape}, got "
                f"{'another' if isinstance(gram, np.ndarray) else 'none'}."
            )
        common = arrays.get(_COMMON)
        if common is not None and np.shape(common)[1:] != tuple(self._common.shape[1:]):
            raise FileFormatError(f"Expected {_COMMON} over the model's parameters, got others.")
        if progress.every != self._every:
            raise RecordingError(
                f"Expected a checkpoint of this run, got one with every={progress.every} where "
                f"this run has {self._every}. Resume with the same settings."
            )

    def load(self, arrays: dict[str, Any], progress: ProbeProgress | None) -> None:
        """Go on from `arrays` and `progress`; raises what `check` does."""
        self.check(arrays, progress)
        assert progress is not None
        self._gram = np.array(arrays[_GRAM], dtype=np.float64)
        if (common := arrays.get(_COMMON)) is not None:
            self._common = torch.from_numpy(np.array(common)).to(self._common)
        self._seen, self._repeats = progress.seen, progress.repeats
        self._planted, self._norms = progress.planted, progress.norms
        self._grams = progress.grams
        self._batches.clear()


def _dataset_of(data_loader: Any, canaries: ExampleCanaries) -> ExampleDataset:
    if data_loader is None:
        raise InvalidArgumentError(
            "Expected data_loader with ExampleCanaries, got None. Pass the loader that "
            "make_private returned: the canaries are in its dataset."
        )
    dataset = getattr(data_loader, "dataset", None)
    if not isinstance(dataset, ExampleDataset):
        raise InvalidArgumentError(
            f"Expected data_loader over canaries.dataset(train_set), got one over "
            f"{type(dataset).__name__}. Make the DataLoader from it before make_private."
        )
    if dataset.canaries.fingerprint() != canaries.fingerprint():
        raise InvalidArgumentError(
            "Expected the canaries that data_loader's dataset was made with, got others."
        )
    if dataset.on_batch is not None:
        raise RecordingError(
            "Expected a dataset that no audit listens to, got one that has an audit. Leave the "
            "other audit's context first."
        )
    if int(data_loader.num_workers) > 0:
        raise UnsupportedError(
            f"Expected num_workers=0, got {data_loader.num_workers}: workers fetch batches ahead, "
            "and cannot tell which step they are for. Examples as canaries need a DataLoader that "
            "fetches in the training process."
        )
    return dataset


def _named(
    model: nn.Module | None, parameters: Sequence[nn.Parameter]
) -> tuple[list[str], dict[str, Tensor]]:
    """Names of the trained parameters inside the bare model, and their live values."""
    if model is None:
        raise InvalidArgumentError(
            "Expected model with ExampleCanaries, got None. Pass the model that make_private "
            "returned: the canaries' gradients are taken with it."
        )
    names = {id(parameter): name for name, parameter in _unwrapped(model).named_parameters()}
    if not all(id(parameter) in names for parameter in parameters):
        raise InvalidArgumentError(
            "Expected model to hold the optimizer's parameters, got another one. Pass the model "
            "that make_private returned."
        )
    order = [names[id(parameter)] for parameter in parameters]
    # Detached tensors share their storage with the weights: they follow the training.
    live = [parameter.detach() for parameter in parameters]
    return order, dict(zip(order, live, strict=True))


def _unwrapped(model: nn.Module) -> nn.Module:
    inner = getattr(model, "_module", model)
    return inner if isinstance(inner, nn.Module) else model


def _unit(rows: Tensor) -> Tensor:
    norms = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(norms == 0, 1.0, norms)


def _cosines(directions: Tensor) -> NDArray[np.float64]:
    cosines: NDArray[np.float64] = (directions @ directions.T).abs().double().cpu().numpy()
    np.fill_diagonal(cosines, 1.0)
    return cosines


def _mean_overlap(cosines: NDArray[np.float64]) -> float:
    pairs = cosines.shape[0] * (cosines.shape[0] - 1)
    return float((cosines.sum() - np.trace(cosines)) / max(pairs, 1))


def _one_by_one(
    loss: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor],
    trained: dict[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
) -> dict[str, Tensor]:
    """The gradients of single examples, by a backward pass each."""
    found = []
    for value, label in zip(inputs, labels, strict=True):
        leaves = {name: item.detach().requires_grad_() for name, item in trained.items()}
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                loss(leaves, value, label), list(leaves.values()), materialize_grads=True
            )
        found.append(gradients)
    stacked = [torch.stack(column) for column in zip(*found, strict=True)]
    return dict(zip(trained, stacked, strict=True))


def _loss_function(
    model: nn.Module | None, criterion: Any, reduction: str
) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """The loss of a single example, as a function of the trained parameters."""
    if not callable(criterion):
        raise _validate.fail(
            "criterion", criterion, "to be the loss of the training", "Needed for ExampleCanaries."
        )
    # Ghost clipping wraps the loss in one that works on whole batches.
    inner = criterion.criterion if isinstance(criterion, DPLossFastGradientClipping) else criterion
    assert model is not None
    bare = _without_hooks(_unwrapped(model), {})

    def loss(trained: dict[str, Tensor], value: Tensor, label: Tensor) -> Tensor:
        output = functional_call(bare, trained, (value.unsqueeze(0),))
        result: Tensor = inner(output, label.unsqueeze(0))
        return result.mean() if reduction == "mean" else result.sum()

    return loss


def _without_hooks(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """The same modules and parameters in new shells: no hooks, evaluation mode."""
    if id(module) in made:
        return made[id(module)]
    shell: nn.Module = module.__new__(type(module))
    made[id(module)] = shell
    shell.__dict__ = {name: _apart(value, made) for name, value in module.__dict__.items()}
    for name, value in module.__dict__.items():
        if name.startswith(("_forward_", "_backward_")) and isinstance(value, dict):
            shell.__dict__[name] = OrderedDict()
    shell.__dict__["training"] = False
    shell.__dict__["_parameters"] = dict(module._parameters)
    shell.__dict__["_buffers"] = dict(module._buffers)
    shell.__dict__["_modules"] = {
        name: None if child is None else _without_hooks(child, made)
        for name, child in module._modules.items()
    }
    return shell


def _apart(value: Any, made: dict[int, nn.Module]) -> Any:
    """An attribute of a module for its shell: nothing written there may reach the module.

    Recurrent layers keep their weights, or their cells, in lists of their own.
    """
    if isinstance(value, nn.Module):
        return _without_hooks(value, made)
    if type(value) in (list, tuple, set):
        return type(value)(_apart(item, made) for item in value)
    if type(value) in (dict, OrderedDict):
        return type(value)((name, _apart(item, made)) for name, item in value.items())
    return value


def _as_tensor(array: NDArray[Any], like: Tensor) -> Tensor:
    """Real numbers in the model's own precision; whole ones as torch's indices are."""
    tensor = torch.from_numpy(np.array(array))
    if array.dtype.kind == "f":
        return tensor.to(like.dtype)
    return tensor if array.dtype.kind == "b" else tensor.to(torch.int64)
