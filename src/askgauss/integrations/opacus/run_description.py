"""What an Opacus run says about itself: its sampler, its accountant, its noise."""

from __future__ import annotations

import inspect
import math
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from askgauss import _validate
from askgauss.exceptions import (
    AskGaussWarning,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.attachment import Guard
from askgauss.integrations.opacus.opacus_versions import (
    AdaClipDPOptimizer,
    BatchSplittingSampler,
    DistributedPerLayerOptimizer,
    DistributedUniformWithReplacementSampler,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
    IAccountant,
    UniformWithReplacementSampler,
    adaclip_gradient_noise,
    history_of,
)
from askgauss.integrations.opacus.ranks import Shard, is_sharded, shards_of
from askgauss.sampling import Poisson, Scheme, scheme_of

__all__ = [
    "Sampling",
    "StepCount",
    "TrainingRun",
    "accumulated",
    "adapts_clipping",
    "background_known",
    "check_folder",
    "check_optimizer",
    "clipped_sum",
    "clips_without_rows",
    "counted_steps",
    "find_accountant",
    "gradient_noise_multiplier",
    "gradients",
    "is_inner_step",
    "noise_by_parameter",
    "not_of_one_step",
    "unwrapped",
]

# Where torch calls the hooks of a step.
_TORCH_OPTIMIZER = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
# Wrappers around an optimizer, and hooks around a hook, that are looked through.
_DEEPEST = 4


@dataclass(slots=True)
class StepCount:
    """Steps so far.

    Attributes:
        made: Those with noise.
        recorded: Those of them that were recorded; with examples, some may be skipped.
    """

    made: int = 0
    recorded: int = 0

    @property
    def number(self) -> int:
        """The step that is being made, counted from 1."""
        return self.made + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training with Opacus, as far as it is known before its first audited step.

    Attributes:
        optimizer: The private optimizer.
        parameters: The parameters that train with per-example gradients, in order.
        parameter_names: Their names.
        shards: What the ranks hold of them, where they are shared out.
        tensor_names: Names of the tensors that canaries lie in: the parameters, or the shards.
        model: The model, where it was given.
        data_loader: The training loader, where it was given.
        accountant: The accountant, where there is one.
        accounted_rate: The sampling rate that the accountant uses, where it is known.
        sampling: How records are sampled.
        rank: The rank of this process.
        world: Number of ranks.
        guard: Keeps what goes wrong in the audit from stopping the training.
        count: Steps so far.
    """

    optimizer: Any
    parameters: list[nn.Parameter]
    parameter_names: tuple[str, ...]
    shards: tuple[Shard, ...]
    tensor_names: tuple[str, ...]
    model: nn.Module | None
    data_loader: Any
    accountant: Any
    accounted_rate: float | None
    sampling: Sampling
    rank: int
    world: int
    guard: Guard
    count: StepCount = field(default_factory=StepCount)

    @classmethod
    def of(
        cls,
        optimizer: Any,
        *,
        data_loader: Any,
        model: nn.Module | None,
        accountant: Any,
        sampling_rate: float | None,
        sampling: Scheme | None,
    ) -> TrainingRun:
        """What an optimizer, its loader and its accountant say.

        Raises:
            InvalidArgumentError: They are not those of one run, or no sampling rate can be found.
            UnsupportedError: Its parameters are shared out in a way that is not supported.
        """
        parameters = _audited_parameters(optimizer)
        _check_model(model, parameters)
        accountant, accounted_rate = find_accountant(optimizer, accountant)
        found = _find_sampling(data_loader, sampling_rate, accounted_rate, sampling)
        _warn_of_loader(found)
        names = _tensor_names(optimizer, parameters, model)
        shards = tuple(shards_of(parameters, names) if is_sharded(parameters) else ())
        by_rank = tuple(f"{names[item.parameter]} on rank {item.rank}" for item in shards)
        world = int(getattr(optimizer, "world_size", 1))
        return cls(
            optimizer=optimizer,
            parameters=parameters,
            parameter_names=names,
            shards=shards,
            tensor_names=by_rank if is_sharded(parameters) else names,
            model=model,
            data_loader=data_loader,
            accountant=accountant,
            accounted_rate=accounted_rate,
            sampling=found,
            rank=int(getattr(optimizer, "rank", 0)),
            world=world,
            guard=Guard(active=world == 1),
        )

    @property
    def sharded(self) -> bool:
        """Whether ranks share the parameters out."""
        return is_sharded(self.parameters)

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return self.parameters[0].device

    @property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Number of values in each of the tensors that canaries lie in."""
        return tuple(item.size for item in self.shards) or tuple(
            item.numel() for item in self.parameters
        )

    @property
    def records(self) -> int | None:
        """Records that the loader draws batches from, where that is known."""
        try:
            count = len(self.data_loader.dataset)
        except (AttributeError, TypeError):
            return None
        return count if count > 0 else None

    @property
    def expected_records(self) -> float:
        """About how many records the run trains on, by its batch size and sampling rate."""
        lot = self.optimizer.expected_batch_size
        return math.inf if lot is None else float(lot) * self.world / self.sampling.rate

    @property
    def sampler(self) -> Any:
        """What draws the loader's batches; None where that is not known."""
        return _behind_splitting(getattr(self.data_loader, "batch_sampler", None))

    def names_of_all(self) -> dict[int, str]:
        """Names of all parameters of the optimizer, by their identity."""
        known = {id(item) for item in self.parameters}
        others = [
            item
            for group in self.optimizer.param_groups
            for item in group["params"]
            if id(item) not in known
        ]
        found = _tensor_names(self.optimizer, others, self.model)
        return dict(zip(map(id, others), found, strict=True)) | dict(
            zip(map(id, self.parameters), self.parameter_names, strict=True)
        )


def is_inner_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a hook runs in a step that another step of the same optimizer calls.

    A subclass whose step calls that of its base class has hooks run at both, where an optimizer of
    the base class was made before.
    """
    steps = 0
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _TORCH_OPTIMIZER:
            steps += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps > 1


def unwrapped(optimizer: Any) -> Any:
    """The Opacus optimizer inside the wrappers of other libraries, such as accelerate's."""
    inner = optimizer
    for _ in range(_DEEPEST):
        if isinstance(inner, DPOptimizer):
            return inner
        inner = getattr(inner, "optimizer", None)
    return optimizer


def check_optimizer(optimizer: Any, inject: str) -> None:
    """Refuse, with the way out, what cannot be audited like this."""
    if not isinstance(optimizer, DPOptimizer):
        raise InvalidArgumentError(
            f"Expected optimizer to be an Opacus DPOptimizer, got {type(optimizer).__name__}. Pass "
            "the optimizer that PrivacyEngine().make_private(...) returns, not the one it wraps."
        )
    if inject == "sample" and noise_by_parameter(optimizer):
        raise UnsupportedError(
            f"{type(optimizer).__name__} clips and adds noise inside the backward pass, where no "
            "rows can be sent through. Use inject='sum'."
        )
    if inject == "sample" and clips_without_rows(optimizer):
        raise UnsupportedError(
            "Ghost clipping never forms per-example gradients, so inject='sample' has nothing to "
            "plant. Use ExampleCanaries, which go through the loss, or inject='sum'."
        )


def noise_by_parameter(optimizer: Any) -> bool:
    """Whether the optimizer adds noise to one parameter after the other, as gradients come."""
    return isinstance(optimizer, DistributedPerLayerOptimizer)


def accumulated(optimizer: Any) -> int:
    """How many batches the step that is about to get its noise is made of."""
    return 1 if noise_by_parameter(optimizer) else int(optimizer.accumulated_iterations)


def clips_without_rows(optimizer: Any) -> bool:
    """Whether the optimizer never forms per-example gradients."""
    return isinstance(optimizer, DPOptimizerFastGradientClipping)


def _audited_parameters(optimizer: Any) -> list[nn.Parameter]:
    """The parameters that train with per-example gradients; frozen ones are left out."""
    parameters = [item for item in optimizer.params if hasattr(item, "grad_sample")]
    if not parameters:
        raise InvalidArgumentError(
            "Expected the optimizer to have trainable parameters of a model that make_private "
            "returned, found none."
        )
    return parameters


def clipped_sum(optimizer: Any, parameter: nn.Parameter) -> torch.Tensor | None:
    """The sum of clipped gradients of a parameter, wherever this optimizer keeps it."""
    if isinstance(optimizer, FSDPOptimizerFastGradientClipping):
        kept: torch.Tensor | None = optimizer.grad_state[parameter]["summed_grad"]
        return kept
    return getattr(parameter, "summed_grad", None)


def gradients(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """The gradients of parameters, zero where there is none."""
    return [torch.zeros_like(item) if item.grad is None else item.grad for item in parameters]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the run samples its records.

    Attributes:
        rate: Probability that a record is in a step.
        poisson: Whether every record is included independently; None where it is not known.
        declared: Whether that is not verified: no loader was given, or its sampler is of a class
            that is not known here and states a rate.
        by_batch: Whether the rate is that of a batch, of which a step may accumulate several.
        scheme: How batches are drawn, where the user says.
        notes: What a reader of the report should know about it.
    """

    rate: float
    poisson: bool | None
    declared: bool = False
    by_batch: bool = True
    scheme: Scheme | None = None
    notes: tuple[str, ...] = ()

    @property
    def independent(self) -> bool:
        """Whether the inclusion of other records says nothing of a canary's inclusion."""
        if self.scheme is not None:
            return self.scheme.known_background
        return self.poisson is True or self.declared

    def against(self, accounted: float | None) -> Scheme | None:
        """The scheme to test drawn batches against: the user's, or the accountant's at its rate.

        None where the loader is known to draw otherwise, which needs no test.
        """
        if self.scheme is not None:
            return self.scheme
        if self.poisson is False:
            return None
        return Poisson(rate=self.rate if accounted is None else accounted)


def _find_sampling(
    data_loader: Any,
    sampling_rate: float | None,
    accounted: float | None,
    scheme: Scheme | None = None,
) -> Sampling:
    """The rate at which the run samples its records, from the best source there is.

    That is the scheme the user states, the loader's sampler, the rate the user states, and the rate
    the accountant uses, in this order.
    """
    if sampling_rate is not None:
        _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    scheme = scheme_of(scheme, sampling_rate if scheme is not None else None)
    if scheme is not None:
        poisson = True if scheme.poisson_rate is not None else None
        return Sampling(rate=scheme.share, poisson=poisson, by_batch=False, scheme=scheme)
    if data_loader is None:
        rate = sampling_rate if sampling_rate is not None else accounted
        if rate is None:
            raise InvalidArgumentError(
                "Expected a sampling rate for the canaries, found none: the optimizer has no "
                "accountant attached. Give data_loader= (the one make_private returned), "
                "accountant=, or sampling_rate=."
            )
        note = "Poisson sampling is assumed: the training loader was not shown to the audit."
        return Sampling(
            rate=rate,
            poisson=None,
            declared=True,
            by_batch=sampling_rate is None,
            notes=(note, *_differs(rate, accounted)),
        )
    sampler = _given_sampler(data_loader)
    poisson = _is_poisson(sampler)
    own_rate = _rate_of(sampler)
    if poisson is not False and own_rate is not None:
        if sampling_rate is not None and not math.isclose(sampling_rate, own_rate, rel_tol=1e-9):
            raise InvalidArgumentError(
                f"Expected sampling_rate to be the loader's {own_rate:.6g}, got {sampling_rate!r}. "
                "Leave it out: the loader knows."
            )
        counted = 1.0 / len(sampler) if poisson and accounted is None else accounted
        note = (
            f"the loader samples with {type(sampler).__name__}, which is not known here: Poisson "
            f"sampling at rate {own_rate:.6g} is declared, not verified."
        )
        return Sampling(
            rate=own_rate,
            poisson=poisson,
            declared=poisson is None,
            notes=(*(() if poisson else (note,)), *_differs(own_rate, counted)),
        )
    rate = accounted if sampling_rate is None else sampling_rate
    if rate is None:
        rate = _rate_by_length(data_loader)
    why = (
        "which is not Poisson sampling: accounting for Poisson sampling does not describe it."
        if poisson is False
        else "which is not known here: whether that is Poisson sampling cannot be told."
    )
    note = f"the loader samples with {type(sampler).__name__}, {why}"
    return Sampling(
        rate=rate,
        poisson=poisson,
        by_batch=sampling_rate is None,
        notes=(note, *_differs(rate, accounted)),
    )


def _is_poisson(sampler: Any) -> bool | None:
    """Whether a sampler includes every record independently; None where it is not known."""
    if isinstance(
        sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
    ):
        return True
    # What torch has fills its batches up to a size.
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    fills_up = (
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
        DistributedSampler,
        BatchSampler,
    )
    return False if type(inner) in fills_up or type(sampler) is BatchSampler else None


def _rate_of(sampler: Any) -> float | None:
    """The rate a sampler says it has."""
    rate = getattr(sampler, "sample_rate", None)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.0 < rate <= 1.0:
        return None
    return float(rate)


def _behind_splitting(sampler: Any) -> Any:
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def _given_sampler(data_loader: Any) -> Any:
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(data_loader, name, None)
        if sampler is not None:
            return _behind_splitting(sampler)
    raise InvalidArgumentError(
        f"Expected data_loader to be a loader with a sampler, got {type(data_loader).__name__}. "
        "Give the DataLoader that make_private returned, or leave it out and give sampling_rate=."
    )


def _rate_by_length(data_loader: Any) -> float:
    try:
        return 1.0 / len(data_loader)
    except (TypeError, ZeroDivisionError) as error:
        raise InvalidArgumentError(
            f"Expected a data_loader that knows its number of batches, got one without ({error}). "
            "Give sampling_rate=, or the accountant= that knows it."
        ) from error


def background_known(background: str, sampling: Sampling) -> bool:
    """Whether the clean sum of the other records may, and shall, be subtracted."""
    refused = sampling.poisson is False or (
        sampling.scheme is not None and not sampling.independent
    )
    if background == "known" and refused:
        raise UnsupportedError(
            "background='known' needs Poisson sampling: with shuffled or fixed batches the other "
            "records' batches give a record's own away. Use background='unknown', or make_private "
            "with poisson_sampling=True."
        )
    return background == "known" or (background == "auto" and sampling.independent)


def _differs(rate: float, accounted: float | None) -> tuple[str, ...]:
    if accounted is None or math.isclose(rate, accounted, rel_tol=1e-9):
        return ()
    return (f"records are sampled at rate {rate:.6g} but accounted at {accounted:.6g}.",)


def counted_steps(accountant: Any) -> int | None:
    """Steps that an accountant has counted in all; None without an accountant."""
    return None if accountant is None else sum(steps for _, _, steps in history_of(accountant))


def not_of_one_step(run: TrainingRun, wanted: str, found: str) -> RecordingError:
    """The refusal to resume with a model or an accountant of another step than the audit's."""
    return RecordingError(
        f"Expected {wanted}, after {run.count.recorded:,} observed steps, got {found}. Model, "
        "accountant and audit are not of the same step: resume from checkpoints written together "
        "(put audit.state_dict() into the model's file), or start a new audit without this one."
    )


def find_accountant(optimizer: Any, given: Any) -> tuple[Any, float | None]:
    """The run's accountant and the rate it uses, given or found behind the optimizer's hook.

    Raises:
        InvalidArgumentError: ``given`` is neither an accountant nor a PrivacyEngine.
    """
    accountant = getattr(given, "accountant", given)
    if given is not None and not isinstance(accountant, IAccountant):
        raise InvalidArgumentError(
            f"Expected accountant to be an Opacus accountant or a PrivacyEngine, got "
            f"{type(given).__name__}."
        )
    hooked, rate = _behind(optimizer.step_hook, depth=_DEEPEST)
    if accountant is None:
        return hooked, rate
    if accountant is not hooked:
        history = history_of(accountant)
        rate = history[-1][1] if history else None
    return accountant, rate


def _behind(hook: Any, depth: int) -> tuple[Any, float | None]:
    """The accountant a hook closes over, also behind hooks that call another one."""
    if depth == 0 or not inspect.isfunction(hook):
        return None, None
    cells = zip(hook.__code__.co_freevars, hook.__closure__ or (), strict=True)
    # A cell may still be empty: a hook can close over the audit that is being made.
    nonlocals = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    accountant, rate = nonlocals.get("self"), nonlocals.get("sample_rate")
    if isinstance(accountant, IAccountant):
        return accountant, None if rate is None else float(rate)
    for value in nonlocals.values():
        found = _behind(value, depth - 1)
        if found[0] is not None:
            return found
    return None, None


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def adapts_clipping(optimizer: Any) -> bool:
    """Whether the optimizer spends part of its budget on choosing the clip norm."""
    return isinstance(optimizer, AdaClipDPOptimizer) or hasattr(
        optimizer, "_adjusted_noise_multiplier"
    )


def gradient_noise_multiplier(optimizer: Any) -> float:
    """The noise multiplier the optimizer means to use on the gradients in its next step.

    Adaptive clipping adds more noise to the gradients than the accountant's multiplier says.
    """
    if isinstance(optimizer, AdaClipDPOptimizer):
        return adaclip_gradient_noise(optimizer)
    return float(getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier))


def _tensor_names(
    optimizer: Any, parameters: list[nn.Parameter], model: nn.Module | None
) -> tuple[str, ...]:
    """Names like ``0:fc.weight(64, 784)``; without a model, or a name, the index and the shape."""
    names: dict[int, str] = {}
    for group in optimizer.param_groups:
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False):
            names[id(parameter)] = name
    if model is not None:
        names |= {id(parameter): name for name, parameter in model.named_parameters()}
    return tuple(
        f"{index}:{names.get(id(parameter), '').removeprefix('_module.')}{tuple(parameter.shape)}"
        for index, parameter in enumerate(parameters)
    )


def _check_model(model: nn.Module | None, parameters: Sequence[nn.Parameter]) -> None:
    """Refuse a model that has none of the parameters that the optimizer trains."""
    if model is None:
        return
    own = {id(item) for item in model.parameters()}
    if any(id(item) in own for item in parameters):
        return
    raise InvalidArgumentError(
        f"Expected model= to be the model that the optimizer trains, got a {type(model).__name__} "
        f"with none of its {len(parameters):,} parameters. Pass the model that make_private "
        "returned with this optimizer."
    )


def check_folder(name: str, path: str | os.PathLike[str] | None) -> None:
    """Refuse a file that cannot be written, before the training instead of after it."""
    if path is None or (Path(path).exists() and not Path(path).is_file()):
        return
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise InvalidArgumentError(
            f"Expected {name}= to be a file in a folder that can be written to, got "
            f"{str(path)!r} ({error.strerror}). Create the folder, or choose another."
        ) from error


def _warn_of_loader(sampling: Sampling) -> None:
    """Warn of a loader that does not draw as the accountant assumes."""
    if sampling.poisson is not False or sampling.rate == 1.0:
        return
    warnings.warn(
        "The loader given as data_loader= does not use Poisson sampling, which the accountant "
        "assumes: it may be the one that was passed to make_private. Train on, and pass here, the "
        "loader that make_private returned (poisson_sampling=True); for another sampling scheme "
        "give sampling=.",
        AskGaussWarning,
        stacklevel=3,
    )
