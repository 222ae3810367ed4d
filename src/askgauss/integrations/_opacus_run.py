"""What an Opacus run says about itself: its sampler, its accountant, its noise."""

from __future__ import annotations

import inspect
import math
import types
from dataclasses import dataclass
from typing import Any

from opacus.accountants import IAccountant
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
)
from opacus.optimizers.ddp_perlayeroptimizer import DistributedPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch import nn

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, UnsupportedError

__all__ = [
    "Ledger",
    "LedgerState",
    "Sampling",
    "accounting_notes",
    "adapts_clipping",
    "audited_parameters",
    "background_known",
    "check_optimizer",
    "find_accountant",
    "find_sampling",
    "gradient_noise_multiplier",
    "tensor_names",
    "unaudited_parameters",
]


def check_optimizer(optimizer: Any, inject: str) -> None:
    """Refuse, with the way out, what cannot be audited like this."""
    if not isinstance(optimizer, DPOptimizer):
        raise InvalidArgumentError(
            f"Expected optimizer to be an Opacus DPOptimizer, got {type(optimizer).__name__}. Pass "
            "the optimizer that PrivacyEngine().make_private(...) returns, not the one it wraps."
        )
    if isinstance(optimizer, (FSDPOptimizerFastGradientClipping, DistributedPerLayerOptimizer)):
        raise UnsupportedError(
            f"{type(optimizer).__name__} keeps its sums where this audit cannot plant. Use plain "
            "distributed training, or record the run with askgauss.Recorder."
        )
    if inject == "sample" and isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise UnsupportedError(
            "Ghost clipping never forms per-example gradients, so inject='sample' has nothing to "
            "plant. Use ExampleCanaries, which go through the loss, or inject='sum'."
        )


def audited_parameters(optimizer: Any) -> list[nn.Parameter]:
    """The parameters that train with per-example gradients; frozen ones are left out."""
    parameters = [item for item in optimizer.params if hasattr(item, "grad_sample")]
    if not parameters:
        raise InvalidArgumentError(
            "Expected the optimizer to have trainable parameters of a model that make_private "
            "returned, found none."
        )
    return parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the run samples its records.

    Attributes:
        rate: Probability that a record is in a step.
        poisson: Whether every record has an independent coin; None where no loader was shown.
        notes: What a reader of the report should know about it.
    """

    rate: float
    poisson: bool | None
    notes: tuple[str, ...] = ()


def find_sampling(
    data_loader: Any, sampling_rate: float | None, accounted: float | None
) -> Sampling:
    """The rate at which the run samples its records, from the best witness there is.

    Args:
        data_loader: The training loader, if shown; a Poisson sampler in it knows its rate.
        sampling_rate: The rate the user states.
        accounted: The rate the accountant uses.

    Raises:
        InvalidArgumentError: Nobody knows the rate, two witnesses contradict each other, or the
            loader is none.
    """
    if sampling_rate is not None:
        _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    if data_loader is None:
        rate = sampling_rate if sampling_rate is not None else accounted
        if rate is None:
            raise InvalidArgumentError(
                "Expected a sampling rate for the canaries, found none: the optimizer has no "
                "accountant attached. Give data_loader= (the one make_private returned), "
                "accountant=, or sampling_rate=."
            )
        note = "Poisson sampling is assumed: the training loader was not shown to the audit."
        return Sampling(rate=rate, poisson=None, notes=(note, *_differs(rate, accounted)))
    sampler = _sampler_of(data_loader)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if isinstance(
        sampler, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)
    ):
        rate = float(sampler.sample_rate)
        if sampling_rate is not None and not math.isclose(sampling_rate, rate, rel_tol=1e-9):
            raise InvalidArgumentError(
                f"Expected sampling_rate to be the loader's {rate:.6g}, got {sampling_rate!r}. "
                "Leave it out: the loader knows."
            )
        counted = 1.0 / len(sampler) if accounted is None else accounted
        return Sampling(rate=rate, poisson=True, notes=_differs(rate, counted))
    rate = accounted if sampling_rate is None else sampling_rate
    if rate is None:
        rate = _rate_by_length(data_loader)
    note = (
        f"the loader samples with {type(sampler).__name__}, not with an independent coin for each "
        "record: accounting for Poisson sampling does not describe it."
    )
    return Sampling(rate=rate, poisson=False, notes=(note, *_differs(rate, accounted)))


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
    if background == "known" and sampling.poisson is False:
        raise UnsupportedError(
            "background='known' needs Poisson sampling: with shuffled or fixed batches the other "
            "records' batches give a record's own away. Use background='unknown', or make_private "
            "with poisson_sampling=True."
        )
    return background == "known" or (background == "auto" and sampling.poisson is not False)


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
    hooked, rate = _behind(optimizer.step_hook, depth=4)
    if accountant is None:
        return hooked, rate
    if accountant is not hooked:
        rate = float(accountant.history[-1][1]) if accountant.history else None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """What a ledger has counted: noise multiplier, sampling rate, steps."""

    entries: tuple[tuple[float, float, int], ...]
    broken: bool


class Ledger:
    """What an accountant added to its history while the audit was attached.

    Args:
        accountant: An Opacus accountant, or None where there is none.
    """

    def __init__(self, accountant: Any) -> None:
        self._accountant = accountant
        self._start: list[tuple[float, float, int]] | None = None
        self._closed: dict[tuple[float, float], int] = {}
        self._broken = False

    def open(self) -> None:
        """Count from here, unless counting already."""
        # Only now, at the first step: a resumed run may restore its accountant after attaching.
        if self._start is None and self._accountant is not None:
            self._start = list(self._accountant.history)

    def close(self) -> None:
        """Stop counting, and keep what was counted."""
        self._closed = self._counted()
        self._start = None

    def entries(self) -> dict[tuple[float, float], int] | None:
        """Steps by noise multiplier and sampling rate; None without a trustworthy accountant."""
        counted = self._counted()
        return None if self._accountant is None or self._broken else counted

    def _counted(self) -> dict[tuple[float, float], int]:
        counted = dict(self._closed)
        if self._start is None:
            return counted
        history = list(self._accountant.history)
        before = dict(enumerate(self._start))
        for index, (noise, rate, steps) in enumerate(history):
            old_noise, old_rate, old_steps = before.pop(index, (noise, rate, 0))
            if (old_noise, old_rate) != (noise, rate) or steps < old_steps:
                self._broken = True
            if steps > old_steps:
                key = (float(noise), float(rate))
                counted[key] = counted.get(key, 0) + int(steps - old_steps)
        self._broken = self._broken or bool(before)
        return counted

    @property
    def broken(self) -> bool:
        """Whether the history was replaced while it was being counted."""
        return self._broken

    def state(self) -> LedgerState:
        """What has been counted, to go on from."""
        entries = tuple((*key, steps) for key, steps in self._counted().items())
        return LedgerState(entries=entries, broken=self._broken)

    def load(self, state: LedgerState) -> None:
        """Go on from what `state` returned."""
        self._closed = {(noise, rate): steps for noise, rate, steps in state.entries}
        self._broken = state.broken
        self._start = None


def accounting_notes(ledger: Ledger, noise_differs: bool) -> list[str]:
    """What a reader should know about how the run was accounted for."""
    notes = []
    entries = ledger.entries()
    if noise_differs:
        notes.append("the accountant was told another noise multiplier than the optimizer.")
    if ledger.broken:
        notes.append("the accountant's history was replaced during the run.")
    if entries and len(entries) > 1:
        noises, rates = zip(*entries, strict=True)
        notes.append(
            f"the accountant counted {len(entries)} kinds of steps: noise multipliers "
            f"{min(noises):.6g} to {max(noises):.6g}, rates {min(rates):.6g} to {max(rates):.6g}."
        )
    return notes


def unaudited_parameters(optimizer: Any, audited: list[nn.Parameter]) -> int:
    """How many parameters train that did not when the audit was made."""
    known = {id(item) for item in audited}
    return sum(id(item) not in known for item in optimizer.params)


def adapts_clipping(optimizer: Any) -> bool:
    """Whether the optimizer spends part of its budget on choosing the clip norm."""
    return isinstance(optimizer, AdaClipDPOptimizer) or hasattr(
        optimizer, "_adjusted_noise_multiplier"
    )


def gradient_noise_multiplier(optimizer: Any) -> float:
    """The noise multiplier the optimizer means to use on the gradients in its next step.

    Adaptive clipping adds more noise to the gradients than the accountant's multiplier says.
    """
    claimed = float(getattr(optimizer, "_adjusted_noise_multiplier", optimizer.noise_multiplier))
    if isinstance(optimizer, AdaClipDPOptimizer) and claimed > 0.0:
        return float((claimed**-2 - (2.0 * optimizer.unclipped_num_std) ** -2) ** -0.5)
    return claimed


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
