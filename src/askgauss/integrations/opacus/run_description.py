"""What an Opacus run says about itself: its sampler, its accountant, its noise."""

from __future__ import annotations

import contextlib
import inspect
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass
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
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
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
from askgauss.integrations.opacus.shards import local
from askgauss.sampling import Poisson, Scheme, scheme_of

__all__ = [
    "OutsideParameters",
    "Sampling",
    "accumulated",
    "adapts_clipping",
    "audited_parameters",
    "background_known",
    "check_optimizer",
    "clipped_sum",
    "clips_without_rows",
    "find_accountant",
    "find_sampling",
    "gradient_noise_multiplier",
    "noise_by_parameter",
    "parameter_names",
    "tensor_names",
    "unwrapped",
]

# Wrappers around an optimizer, and hooks around a hook, that are looked through.
_DEEPEST = 4
# Values of a parameter that are compared to see whether it moves.
_SAMPLED = 1024


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


def audited_parameters(optimizer: Any) -> list[nn.Parameter]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the run samples its records.

    Attributes:
        rate: Probability that a record is in a step.
        poisson: Whether every record has an independent coin; None where nobody knows.
        declared: Whether that is taken on trust: no loader was shown, or its sampler is of a class
            that is not known here and says that it has a rate.
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
    def by_coins(self) -> bool:
        """Whether what other records draw says nothing of a canary's draws."""
        if self.scheme is not None:
            return self.scheme.known_background
        return self.poisson is True or self.declared

    def against(self, accounted: float | None) -> Scheme | None:
        """The scheme to hold drawn batches against: the user's, or the accountant's at its rate.

        None where the loader is known to draw otherwise, which needs no test.
        """
        if self.scheme is not None:
            return self.scheme
        if self.poisson is False:
            return None
        return Poisson(rate=self.rate if accounted is None else accounted)


def find_sampling(
    data_loader: Any,
    sampling_rate: float | None,
    accounted: float | None,
    scheme: Scheme | None = None,
) -> Sampling:
    """The rate at which the run samples its records, from the best witness there is.

    Args:
        data_loader: The training loader, if shown; a Poisson sampler in it knows its rate.
        sampling_rate: The rate the user states.
        accounted: The rate the accountant uses.
        scheme: How batches are drawn, where the user says; then nothing else is asked.

    Raises:
        InvalidArgumentError: Nobody knows the rate, two witnesses contradict each other, or the
            loader is none.
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
    sampler = _sampler_of(data_loader)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    poisson = _draws_by_coins(sampler)
    own_rate = _rate_of(sampler)
    if poisson is not False and own_rate is not None:
        if sampling_rate is not None and not math.isclose(sampling_rate, own_rate, rel_tol=1e-9):
            raise InvalidArgumentError(
                f"Expected sampling_rate to be the loader's {own_rate:.6g}, got {sampling_rate!r}. "
                "Leave it out: the loader knows."
            )
        counted = accounted
        if poisson and accounted is None:
            counted = 1.0 / len(sampler)
        note = (
            f"the loader samples with {type(sampler).__name__}, which is not known here: that it "
            f"gives each record a coin of rate {own_rate:.6g} is taken on trust."
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
    note = (
        f"the loader samples with {type(sampler).__name__}, not with an independent coin for each "
        "record: accounting for Poisson sampling does not describe it."
        if poisson is False
        else f"the loader samples with {type(sampler).__name__}, which is not known here: whether "
        "each record has a coin of its own cannot be told."
    )
    return Sampling(
        rate=rate,
        poisson=poisson,
        by_batch=sampling_rate is None,
        notes=(note, *_differs(rate, accounted)),
    )


def _draws_by_coins(sampler: Any) -> bool | None:
    """Whether a sampler gives every record a coin of its own; None where it is not known."""
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


def _sampler_of(data_loader: Any) -> Any:
    for name in ("batch_sampler", "sampler"):
        sampler = getattr(data_loader, name, None)
        if sampler is not None:
            return sampler
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
    refused = sampling.poisson is False or (sampling.scheme is not None and not sampling.by_coins)
    if background == "known" and refused:
        raise UnsupportedError(
            "background='known' needs Poisson sampling: with shuffled or fixed batches the other "
            "records' batches give a record's own away. Use background='unknown', or make_private "
            "with poisson_sampling=True."
        )
    return background == "known" or (background == "auto" and sampling.by_coins)


def _differs(rate: float, accounted: float | None) -> tuple[str, ...]:
    if accounted is None or math.isclose(rate, accounted, rel_tol=1e-9):
        return ()
    return (f"records are sampled at rate {rate:.6g} but accounted at {accounted:.6g}.",)


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


class OutsideParameters:
    """Parameters of the model that the private optimizer does not have.

    Args:
        optimizer: The private optimizer.
        model: The model; None where it is not known.
    """

    def __init__(self, optimizer: Any, model: nn.Module | None) -> None:
        inside = {id(item) for group in optimizer.param_groups for item in group["params"]}
        self._outside = {
            name.removeprefix("_module."): item
            for name, item in (() if model is None else model.named_parameters())
            if id(item) not in inside
        }
        self._could_train = tuple(
            name for name, item in self._outside.items() if item.requires_grad
        )
        self._looked = model is not None
        self._before = {name: _sample(item) for name, item in self._outside.items()}

    @property
    def names(self) -> tuple[str, ...] | None:
        """Those that could train when the audit was made, or can now; None where nobody looked."""
        if not self._looked:
            return None
        able = (name for name, item in self._outside.items() if item.requires_grad)
        return tuple(dict.fromkeys((*self._could_train, *able)))

    @contextlib.contextmanager
    def declared(self) -> Iterator[None]:
        """What changes in here is postprocessing, by the user's word."""
        moved = self.moved()
        yield
        kept = {name: item for name, item in self._outside.items() if name not in moved}
        self._before |= {name: _sample(item) for name, item in kept.items()}

    def moved(self) -> tuple[str, ...]:
        """Those that are no longer what they were, frozen ones too: something trains them."""
        return tuple(
            name
            for name, item in self._outside.items()
            if not torch.equal(self._before[name], _sample(item))
        )


def _sample(parameter: nn.Parameter) -> torch.Tensor:
    """Some of the values of a parameter, to tell later whether it has moved."""
    flat = local(parameter).detach().reshape(-1)
    return flat[:: max(-(-flat.numel() // _SAMPLED), 1)].clone()


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


def parameter_names(
    optimizer: Any,
    audited: list[nn.Parameter],
    names: tuple[str, ...],
    model: nn.Module | None,
) -> dict[int, str]:
    """Names of all parameters of the optimizer, by their identity."""
    others = [item for group in optimizer.param_groups for item in group["params"]]
    known = {id(item) for item in audited}
    others = [item for item in others if id(item) not in known]
    found = dict(zip(map(id, others), tensor_names(optimizer, others, model), strict=True))
    return found | dict(zip(map(id, audited), names, strict=True))


def tensor_names(
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
