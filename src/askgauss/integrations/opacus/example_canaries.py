"""Input-space canaries in an Opacus run: which are in a batch, what is released along each."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from askgauss import _validate
from askgauss.canaries import DiracCanaries, ExampleCanaries, ExampleDataset
from askgauss.checks.scope import INPUT_SPACE
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.attachment import Attachment
from askgauss.integrations.opacus.opacus_versions import (
    DPLossFastGradientClipping,
    DPPerLayerOptimizer,
)
from askgauss.integrations.opacus.private_step import CanaryMode, PrivateStep
from askgauss.integrations.opacus.ranks import CanaryCoordinates
from askgauss.integrations.opacus.run_description import TrainingRun
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import Transcript

__all__ = ["ExampleProbe", "ExampleState"]

# Numbers held at once: gradients of a chunk of canaries, and directions for the gram matrix.
_CHUNK_NUMBERS = 1 << 24
_GRAM_NUMBERS = 1 << 25
_CHUNK = 256
_GRAM = "examples.gram"
_COMMON = "examples.common"
_NOISE = "examples.noise"
# Coordinates at which the noise of a step is read by itself, and the fewest that are worth it.
_NOISE_PLACES = 256
_FEWEST_PLACES = 4
# A gradient of which less than this share is left has no direction of its own.
_NOTHING = 1e-4
# Gradients that all point the same way share their noise. Beyond this mean cosine, what they have
# most in common is taken out of the directions, until they are as far apart as this, or so often.
_ALIKE = 0.4
_APART = 0.25
_MOST_TAKEN_OUT = 12


@dataclass(slots=True, kw_only=True)
class ExampleState:
    """What a probe has counted, kept in a checkpoint beside its arrays.

    Attributes:
        every: One step in so many is observed.
        seen: Steps so far.
        repeats: How often a canary came again in one step.
        included: Canaries in the observed steps.
        norms: What they added, in clip norms.
        grams: How often directions were compared.
    """

    every: int
    seen: int = 0
    repeats: int = 0
    included: int = 0
    norms: float = 0.0
    grams: int = 0


class ExampleProbe(CanaryMode):
    """Follows the training set, and projects what is released on the canaries' gradients.

    Gradients are taken with `torch.func` on a copy of the model without any hooks and in evaluation
    mode, which shares its weights: training is not affected, and no random number is drawn. With
    dropout, directions are therefore those without it. Any direction that is fixed before the noise
    of a step is drawn gives a valid observation; a worse one only lowers the bound. Where gradients
    are much alike, as behind attention with two classes, what most of them share is removed.

    Along an example's gradient the other records are not known. At random coordinates they are,
    since Opacus shows the clipped sum before it adds the noise: there the noise is read by itself.

    Args:
        run: The training, whose loader is over ``canaries.dataset(...)``.
        canaries: The examples.
        criterion: The loss, called with the model's output and the labels.
        every: Observe one step in so many.
        kept: Canaries to compare the directions of; the first of them where there is no memory for
            all.
    """

    key = "examples"
    state_type = ExampleState
    inject = "examples"
    exercised = INPUT_SPACE
    drawn_by_recorder = False

    def __init__(
        self,
        run: TrainingRun,
        canaries: ExampleCanaries,
        *,
        criterion: Any,
        every: int,
        kept: NDArray[np.int64],
    ) -> None:
        _validate.integer(1, every=every)
        optimizer, parameters = run.optimizer, run.parameters
        if isinstance(optimizer, DPPerLayerOptimizer):
            raise UnsupportedError(
                "Clipping layer by layer changes the direction of a gradient, and examples are "
                "observed along theirs. Use BlockCanaries."
            )
        if run.world > 1:
            raise UnsupportedError(
                "Every rank draws batches of its own, and only this one is seen. Use DiracCanaries "
                "in distributed training, or audit examples on a single process."
            )
        self._run = run
        self._canaries = canaries
        self._dataset = _dataset_of(run.data_loader, canaries)
        self._counted = ExampleState(every=int(every))
        self._names, self._trained = _named(run.model, parameters)
        self._loss = _loss_function(run.model, criterion, optimizer.loss_reduction)
        self._gradients: Callable[..., dict[str, Tensor]]
        like = parameters[0]
        self._inputs = _as_tensor(canaries.inputs, like)
        self._labels = _as_tensor(canaries.labels, like)
        self._wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        numbers = sum(parameter.numel() for parameter in parameters)
        self._chunk = min(_CHUNK, max(1, _CHUNK_NUMBERS // numbers))
        self._compared = kept[: max(2, _GRAM_NUMBERS // numbers)]
        self._batches: list[tuple[bool, NDArray[np.int64]]] = []
        self._observing = False
        self._gram = np.zeros((self._compared.size, self._compared.size))
        self._common = torch.zeros((0, numbers), dtype=self._wide, device=like.device)
        self._noise: list[NDArray[np.float64]] = []
        self._noise_tensor = np.zeros(0, np.int64)
        self.places: CanaryCoordinates | None = None
        if numbers >= _FEWEST_PLACES:
            sizes = tuple(item.numel() for item in parameters)
            count = max(2, min(_NOISE_PLACES, numbers // 2))
            at = DiracCanaries(present=0, absent=count, tensors=sizes, seed=canaries.root_seed)
            self.places = CanaryCoordinates(parameters, at)
            self._noise_tensor = np.concatenate([at.tensor, at.watch_tensor])
        self._check()

    def _check(self) -> None:
        """Take one gradient now: better refused here than in the middle of a run.

        Layers that torch.func does not support, such as Opacus' recurrent ones, get one backward
        pass per canary.
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

    def attach(self, attachment: Attachment) -> None:
        """Begin to note which canaries are in the batches."""
        attachment.undo(self._stop)
        self._batches.clear()
        self._dataset.on_batch = self._fetched

    def _stop(self) -> None:
        self._dataset.on_batch = None

    def _fetched(self, canaries: NDArray[np.int64]) -> None:
        # The splitting sampler tells the optimizer of every part, the last one excepted, that more
        # of its batch follow; it does so just before the part is fetched.
        queue = self._run.optimizer._step_skip_queue
        self._batches.append((bool(queue and queue[-1]), canaries))

    def draw(self, recorder: Recorder, pending: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """The canaries that the run's own sampler put into the batch of a step.

        Batches that were fetched before its own, and led to no step, are left out.

        Raises:
            RecordingError: The step's batch did not come from the canaries' dataset.
        """
        wanted = int(self._run.optimizer.accumulated_iterations)
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
        included = np.unique(fetched)
        self._counted.repeats += fetched.size - included.size
        return included

    def read(self, gradient: Tensor | None) -> NDArray[np.float64] | None:
        """Count a step; what it applies at the coordinates, if it is one to observe."""
        counted = self._counted
        counted.seen += 1
        self._observing = (counted.seen - 1) % counted.every == 0
        if not self._observing or gradient is None:
            return None
        return np.asarray(gradient.cpu().double().numpy())

    def record(
        self,
        recorder: Recorder,
        step: PrivateStep,
        gradient: NDArray[np.float64] | None,
        included: NDArray[np.int64],
    ) -> None:
        """Record what a step released along every canary's gradient, if it is one to observe."""
        if not self._observing:
            return
        if gradient is not None and self.places is not None:
            noise = gradient * step.scale - step.clean.cpu().numpy()
            read = [self.places.along(noise), self.places.watched(noise)]
            self._noise.append(np.concatenate(read).astype(np.float64) / step.clip_norm)
        released = [item.grad for item in self._run.parameters if item.grad is not None]
        with np.errstate(invalid="ignore", over="ignore"):
            recorder.observe(
                self._along(released, included, step.clip_norm) * step.scale,
                planted=included,
                clip_norm=step.clip_norm,
                noise_multiplier=step.noise_multiplier,
            )

    def _along(
        self, released: Sequence[Tensor], included: NDArray[np.int64], clip_norm: float
    ) -> NDArray[np.float64]:
        """What the gradients that are about to be applied say along each canary's own."""
        observed = (self._counted.seen - 1) // self._counted.every + 1
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
        self._counted.included += included.size
        added = np.minimum(lengths[included] / clip_norm, 1.0) * share[included]
        self._counted.norms += float(added.sum())
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
        self._counted.grams += 1

    def _rows(self, chosen: NDArray[np.int64]) -> Iterator[list[Tensor]]:
        """Gradients of some canaries, chunk by chunk: for each tensor, one flat row a canary."""
        device = next(iter(self._trained.values())).device
        for start in range(0, chosen.size, self._chunk):
            these = torch.from_numpy(chosen[start : start + self._chunk])
            inputs, labels = (item[these].to(device) for item in (self._inputs, self._labels))
            found = self._gradients(self._trained, inputs, labels)
            yield [found[name].detach().flatten(1).to(self._wide) for name in self._names]

    @property
    def _contribution(self) -> float | None:
        """Mean norm of the included canaries' clipped gradients, in clip norms."""
        counted = self._counted
        return counted.norms / counted.included if counted.included else None

    def facts(self, recorded: Transcript) -> dict[str, Any]:
        """How the canaries were sampled and observed."""
        sampling, counted = self._run.sampling, self._counted
        return {
            "watch_background": None if self.places is None else "known",
            "poisson": sampling.poisson is True or sampling.declared,
            "poisson_declared": sampling.poisson is None and sampling.declared,
            "skipped_steps": counted.seen - -(-counted.seen // counted.every),
            "contribution": self._contribution,
        }

    def amended(self, transcript: Transcript) -> Transcript:
        """The transcript with the canaries' mean absolute cosines, and the noise by itself."""
        gram = self._gram / self._counted.grams if self._counted.grams else np.zeros((0, 0))
        transcript = replace(transcript, gram=gram)
        if self.places is None:
            return transcript
        return replace(
            transcript, watch_values=self._noise_rows, watch_tensor=self._noise_tensor.copy()
        )

    @property
    def _noise_rows(self) -> NDArray[np.float64]:
        return np.array(self._noise).reshape(-1, self._noise_tensor.size)

    def notes(self, recorded: Transcript) -> list[str]:
        """What a reader of the report should know."""
        notes, counted = [], self._counted
        if self._contribution is not None and self._contribution < 0.995:
            notes.append(
                f"the canaries' clipped gradients are {self._contribution:.3g} clip norms long on "
                "average: a record may add 1, so the bound is lower than it could be."
            )
        if counted.every > 1:
            notes.append(f"one in {counted.every} of {counted.seen:,} steps was observed.")
        if counted.repeats:
            notes.append(f"a canary came twice or more in one step, {counted.repeats:,} times.")
        return notes

    def state(self) -> ExampleState:
        """Plain values to resume from."""
        return replace(self._counted)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to resume from."""
        found = {_GRAM: self._gram.copy(), _COMMON: self._common.double().cpu().numpy()}
        return found if self.places is None else found | {_NOISE: self._noise_rows}

    def check(self, state: ExampleState, arrays: Mapping[str, Any]) -> None:
        """Refuse a checkpoint of a run that was observed differently."""
        gram = arrays.get(_GRAM)
        if not isinstance(gram, np.ndarray) or gram.shape != self._gram.shape:
            raise FileFormatError(
                f"Expected a checkpoint of examples with {_GRAM} of shape {self._gram.shape}, got "
                f"{'another' if isinstance(gram, np.ndarray) else 'none'}."
            )
        if state.every != self._counted.every:
            raise RecordingError(
                f"Expected a checkpoint of this run, got one with every={state.every} where "
                f"this run has {self._counted.every}. Resume with the same settings."
            )

    def load(self, state: ExampleState, arrays: Mapping[str, Any], steps: int) -> None:
        """Resume."""
        self._gram = np.array(arrays[_GRAM], dtype=np.float64)
        self._common = torch.from_numpy(np.array(arrays[_COMMON])).to(self._common)
        self._noise = list(np.array(arrays.get(_NOISE, ()), dtype=np.float64))
        self._counted = replace(state)
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
