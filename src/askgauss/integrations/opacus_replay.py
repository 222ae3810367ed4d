"""Paired replay of training with torch: coupled batches and noise around an unchanged loop.

::

    import askgauss as ag
    from askgauss.integrations.opacus_replay import follow

    def train(data, replay):
        ...                                          # model, optimizer, loader, make_private
        follow(replay, model=model, optimizer=optimizer, data_loader=loader)
        for features, labels in loader:
            ...                                      # the loop as it is
            optimizer.step()
            replay.public("loss", loss.item())       # whatever else it lets out

    print(ag.replay(train, dataset, leave_out=17))

The loader keeps drawing its batches; what it drew on the data as given is what every world gets.
The noise starts anew in every step, and as the wrapped optimizer begins its step it gets the
gradient that the data as given released: weights and buffers must then be the same in all worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import (
    InvalidArgumentError,
    MissingExtraError,
    RecordingError,
    UnsupportedError,
)
from askgauss.replay import Replay
from askgauss.replay import replay_recording as coupled_randomness
from askgauss.replay.replay_recording import Release

try:
    import torch
    from opacus.optimizers import DPOptimizer
    from torch import nn
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.opacus_replay needs torch and Opacus: pip install "
        "'askgauss[opacus]'."
    ) from error

from askgauss.integrations.opacus import run_description as run

__all__ = ["follow", "training"]


def follow(
    replay: Replay,
    *,
    model: nn.Module,
    optimizer: Any,
    data_loader: Any = None,
    clip_norm: float | None = None,
) -> None:
    """Couple a training's batches and noise to its replay, and record what it lets out.

    Recorded in every step: the noisy sum, the weights and buffers, all options of the optimizer
    (learning rate, divisor, noise multiplier and clip norm among them) and the seeds of its noise;
    of the loader its sampling rate, its batch size and the number of its batches; of the model also
    how it starts and how it ends. Call it once in each world, on what was built there, before the
    first batch.

    Args:
        replay: What the training function got.
        model: The model that is trained.
        optimizer: Its optimizer: what Opacus' `make_private` returned, or any other of torch's.
        data_loader: The loader that batches come from. Without one, take batches from
            ``replay.batches``, or call ``replay.begin_step`` in every step.
        clip_norm: For optimizers that are not Opacus': the most that one record may move the
            gradient by as the optimizer gets it.

    Raises:
        UnsupportedError: The loader has workers or no batches of indices, or the optimizer is
            distributed.
        RecordingError: Model, optimizer or loader are those of another world.
        InvalidArgumentError: An argument is wrong.
    """
    optimizer = run.unwrapped(optimizer)
    replay.made_anew("the model", model)
    replay.made_anew("the optimizer", optimizer)
    if data_loader is not None:
        _couple_loader(replay, data_loader)
    # Without the loader nobody says where a step ends but the optimizer.
    _Follower(replay, model, optimizer, clip_norm)


def training(
    *,
    model: Callable[[], nn.Module],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    data_loader: Callable[[Any], Any],
    make_private: Callable[[nn.Module, torch.optim.Optimizer, Any], tuple[Any, ...]],
    step: Callable[..., object],
) -> Callable[[Any, Replay], None]:
    """A training function for `askgauss.replay`, from the pieces of an Opacus run.

    Args:
        model: Makes the model.
        optimizer: Makes its optimizer from its parameters.
        data_loader: Makes the loader from data.
        make_private: Calls `PrivacyEngine.make_private` on the three, and returns what it returns.
        step: Takes one batch: ``step(model, optimizer, batch)``, and in ghost mode the criterion
            that `make_private` returned as a fourth argument.
    """

    def train(data: Any, replay: Replay) -> None:
        module = model()
        made = make_private(module, optimizer(module.parameters()), data_loader(data))
        if len(made) not in (3, 4):
            raise InvalidArgumentError(
                "Expected make_private to return model, optimizer and loader, in ghost mode the "
                f"criterion before the loader, got {len(made)} values."
            )
        private, private_optimizer, *criterion, loader = made
        follow(replay, model=private, optimizer=private_optimizer, data_loader=loader)
        while not replay.finished():
            replay.look()
            for batch in loader:
                step(private, private_optimizer, batch, *criterion)

    return train


# --- batches -------------------------------------------------------------------------------------


def _couple_loader(replay: Replay, loader: Any) -> None:
    """Put the replay's batches, and a random stream for each record, into a loader."""
    sampler, records = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    if sampler is None or not (hasattr(records, "__getitem__") and hasattr(records, "__len__")):
        raise UnsupportedError(
            f"Expected a loader that draws batches of indices, got {type(loader).__name__} "
            f"with batch_sampler {sampler!r}. A stream cannot be built again without one record; "
            "use a dataset with a length and indexing, and a batch size."
        )
    if loader.num_workers:
        raise UnsupportedError(
            f"Expected a loader without workers, got num_workers={loader.num_workers}: workers "
            "have generators of their own, which replay cannot set. Build it with num_workers=0 "
            "for the replay."
        )
    if len(loader.dataset) != replay.world.size:
        raise RecordingError(
            f"Expected a loader of the {replay.world.size} records that train was called with, "
            f"got one of {len(loader.dataset)}. Build it from them in every world; data that are "
            "split or filtered inside the training should be so before, outside."
        )
    replay.made_anew("the data loader", loader)
    replay.made_anew("the data loader's dataset", loader.dataset)
    rate = getattr(loader, "sample_rate", getattr(sampler, "sample_rate", None))
    if rate is not None:
        replay.public("sampling rate", float(rate))
    replay.public("batches in an epoch", len(loader))
    replay.public("batch size of the loader", getattr(sampler, "batch_size", loader.batch_size))
    # A loader refuses new ones by its own __setattr__, because it may be under way; this is not.
    object.__setattr__(loader, "batch_sampler", _CoupledBatches(replay, sampler))
    object.__setattr__(loader, "dataset", _CoupledRecords(replay, loader.dataset))


class _Coupled:
    """Something of a loader that is coupled to the replay; of all else it is what it was."""

    def __init__(self, replay: Replay, inner: Any) -> None:
        self._replay, self._inner = replay, inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


class _CoupledBatches(_Coupled):
    """A batch sampler that draws as it did, and gives out the replay's batches."""

    def __iter__(self) -> Iterator[list[int]]:
        replay = self._replay
        replay.look()
        if replay.finished():
            return
        for own in self._inner:
            yield replay.draw(own).tolist()
            if replay.finished():
                return


class _CoupledRecords(_Coupled):
    """A dataset in which every record has a random stream, whatever is fetched before it."""

    def __getitem__(self, position: int) -> Any:
        replay = self._replay
        record = int(replay.world.ids(np.array([position]))[0])
        with coupled_randomness.preserved():
            coupled_randomness.reset_all(
                replay.seed, "record", record, len(replay.recording.batches)
            )
            return self._inner[position]

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[position] for position in positions]


# --- steps ---------------------------------------------------------------------------------------


class _Follower:
    """Stands where the noise is added, and where the wrapped optimizer begins and ends its step."""

    def __init__(
        self, replay: Replay, model: nn.Module, optimizer: Any, clip_norm: float | None
    ) -> None:
        self._replay, self._model, self._optimizer = replay, model, optimizer
        self._private = isinstance(optimizer, DPOptimizer)
        self._clean: list[NDArray[Any]] | None = None
        self._clipped_at = 0.0
        self._doubt = ""
        inner = optimizer
        if self._private:
            _check_private(optimizer, clip_norm)
            self._add_noise = optimizer.add_noise
            optimizer.add_noise = self._add_coupled_noise
            inner = optimizer.original_optimizer
            self._clip_norm = 0.0
        else:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InvalidArgumentError(
                    f"Expected optimizer to be one of torch's or Opacus', got "
                    f"{type(optimizer).__name__}."
                )
            _validate.positive(
                clip_norm=clip_norm, hint="Opacus' optimizers know theirs, others do not."
            )
            self._clip_norm = float(clip_norm or 0.0)
        inner.register_step_pre_hook(self._before_step)
        inner.register_step_post_hook(self._after_step)
        self._randomness = _ModelRandomness(replay, model)
        self._seeds()
        self._record_state()
        replay.at_end(self._record_state)

    def _parameters(self) -> list[nn.Parameter]:
        return [
            item
            for group in self._optimizer.param_groups
            for item in group["params"]
            if item.requires_grad
        ]

    def _add_coupled_noise(self) -> None:
        """Stands in for `add_noise`: the same noise in this step of every world."""
        optimizer, replay = self._optimizer, self._replay
        self._seeds()
        sums = [getattr(item, "summed_grad", None) for item in self._parameters()]
        self._clean = [_numbers(item) for item in sums if item is not None]
        self._doubt = self._randomness.doubt()
        # Adaptive clipping has another norm by the time the step begins.
        self._clipped_at = float(optimizer.max_grad_norm)
        counted = getattr(optimizer, "unclipped_num", None)
        seed = coupled_randomness.seed_of(replay.seed, "noise", replay.step)
        device = self._parameters()[0].device
        own = optimizer.generator
        with coupled_randomness.preserved():
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002  (for those who draw noise from it)
            optimizer.generator = torch.Generator(device).manual_seed(seed)
            try:
                self._add_noise()
            finally:
                optimizer.generator = own
        if counted is not None:
            self._exchange_count(float(counted))

    def _exchange_count(self, clean: float) -> None:
        """Adaptive clipping releases how many records it left unclipped, with noise."""
        optimizer, replay = self._optimizer, self._replay
        noisy = optimizer.unclipped_num
        given = np.array([float(noisy)])
        release = Release(
            total=[np.array([clean])],
            noise=[given - clean],
            clip_norm=1.0,
            coupled=("set in every step",),
            given=[given],
            rounding=float(torch.finfo(torch.float32).eps),
            doubt=self._doubt,
        )
        (value,) = replay.exchange(release, "count of unclipped records")
        optimizer.unclipped_num = torch.as_tensor(value[0], dtype=torch.float32)

    def _seeds(self) -> None:
        replay = self._replay
        replay.seed_used("seed of torch's generator", int(torch.initial_seed()))
        own = getattr(self._optimizer, "generator", None)
        if own is not None and hasattr(own, "initial_seed"):
            replay.seed_used("seed of the noise generator", int(own.initial_seed()))

    def _before_step(self, *_: Any) -> None:
        """Compare what is released, and go on with what the data as given released."""
        replay, optimizer = self._replay, self._optimizer
        self._options()
        parameters = [item for item in self._parameters() if item.grad is not None]
        gradients = [_numbers(item.grad) for item in parameters if item.grad is not None]
        rounding = max((torch.finfo(item.dtype).eps for item in parameters), default=0.0)
        clean, noise, doubt = gradients, None, ""
        coupled: tuple[str, ...] | None = ("set in every step",)
        if self._private:
            divisor = self._divisor()
            replay.public("divisor", divisor)
            noisy = [item.astype(np.float64) * divisor for item in gradients]
            if self._clean is None or len(self._clean) != len(noisy):
                replay.note(f"step {replay.step} moved weights without add_noise")
                clean = noisy
            else:
                clean, doubt = self._clean, self._doubt
            self._clean = None
            noise = [a - b.astype(np.float64) for a, b in zip(noisy, clean, strict=True)]
            clip_norm = self._clipped_at or float(optimizer.max_grad_norm)
        else:
            clip_norm, coupled = self._clip_norm, self._randomness.position()
        release = Release(
            total=clean,
            noise=noise,
            clip_norm=clip_norm,
            coupled=coupled,
            given=gradients,
            rounding=rounding,
            doubt=doubt,
        )
        for item, value in zip(parameters, replay.exchange(release), strict=True):
            if item.grad is not None:
                item.grad.copy_(torch.from_numpy(value))

    def _divisor(self) -> float:
        optimizer = self._optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        return float(optimizer.expected_batch_size * optimizer.accumulated_iterations)

    def _options(self) -> None:
        """All that the optimizer was told, by name; a list where its groups differ."""
        groups = self._optimizer.param_groups
        for name in groups[0]:
            if name == "params":
                continue
            values = [group.get(name) for group in groups]
            same = all(value == values[0] for value in values)
            shown = "learning rate" if name == "lr" else f"optimizer's {name}"
            self._replay.public(shown, values[0] if same else values)
        if self._private:
            self._replay.public("noise multiplier", float(self._optimizer.noise_multiplier))
            self._replay.public("clip norm", float(self._optimizer.max_grad_norm))

    def _after_step(self, *_: Any) -> None:
        self._record_state()
        self._replay.close_step()

    def _record_state(self) -> None:
        for name, value in self._model.state_dict().items():
            if isinstance(value, torch.Tensor):
                kind = name.removeprefix("_module.").removeprefix("module.")
                self._replay.state(f"model {kind}", value)


def _check_private(optimizer: Any, clip_norm: float | None) -> None:
    run.check_optimizer(optimizer, "sum")
    if clip_norm is not None:
        raise _validate.fail("clip_norm", clip_norm, "to be left out", "Opacus knows it.")
    if getattr(optimizer, "world_size", 1) > 1:
        raise UnsupportedError(
            "Replay follows one process, and this run has several. Replay it in one: steps and "
            "clipping are the same there."
        )


class _ModelRandomness:
    """Randomness inside the model: dropout is coupled, anything else is noticed."""

    def __init__(self, replay: Replay, model: nn.Module) -> None:
        self._replay = replay
        self._step = -1
        self._calls: dict[int, int] = {}
        self._dropped = False
        self._forwards = 0
        self._kept: Any = None
        self._start = torch.get_rng_state()
        model.register_forward_pre_hook(self._forward)
        for number, module in enumerate(model.modules()):
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.register_forward_pre_hook(self._before(number))
                module.register_forward_hook(self._after)

    def _forward(self, module: nn.Module, _: Any) -> None:
        self._new_step()
        # Evaluation in between is not a part of the step.
        self._forwards += module.training

    def _new_step(self) -> None:
        if self._step != self._replay.step:
            self._step = self._replay.step
            self._calls.clear()
            self._dropped, self._forwards = False, 0
            self._start = torch.get_rng_state()

    def _before(self, number: int) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, _: Any) -> None:
            self._new_step()
            self._kept = torch.get_rng_state()
            if module.training:
                self._dropped = True
                call = self._calls[number] = self._calls.get(number, 0) + 1
                torch.manual_seed(
                    coupled_randomness.seed_of(
                        self._replay.seed, "dropout", number, call, self._step
                    )
                )

        return hook

    def _after(self, *_: Any) -> None:
        # So that whatever else is drawn in the model is seen as such.
        torch.set_rng_state(self._kept)

    def doubt(self) -> str:
        """Why the sum of this step may differ by itself."""
        self._new_step()
        if not torch.equal(self._start, torch.get_rng_state()):
            return "the model or the loss draws random numbers that depend on the size of a batch"
        if self._dropped and self._forwards > 1:
            return "dropout falls otherwise where a step's batch is taken in several pieces"
        return ""

    def position(self) -> tuple[str, ...] | None:
        """Where torch's generator stands, if it was drawn from in this step."""
        self._new_step()
        now = torch.get_rng_state()
        if torch.equal(self._start, now):
            return None
        return (str(coupled_randomness.seed_of(now.numpy().tobytes())),)


def _numbers(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy as numpy has it, half precision widened."""
    values = tensor.detach().cpu()
    if values.dtype in (torch.bfloat16, torch.float16):
        values = values.float()
    return np.array(values.numpy())
