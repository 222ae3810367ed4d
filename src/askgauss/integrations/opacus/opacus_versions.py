"""The one place that knows how releases of Opacus differ in what they offer.

A class that a release does not have yet is stood in for by `MissingClass`, of which nothing is an
instance, so that callers ask ``isinstance`` of every release alike.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import opacus
from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)

__all__ = [
    "AbstractGradSampleModule",
    "AdaClipDPOptimizer",
    "AdaptiveGhostEngine",
    "AdaptiveGhostTensor",
    "BatchSplittingSampler",
    "DPLossFastGradientClipping",
    "DPOptimizer",
    "DPOptimizerFastGradientClipping",
    "DPPerLayerOptimizer",
    "DPTensorFastGradientClipping",
    "DTensor",
    "DistributedPerLayerOptimizer",
    "DistributedUniformWithReplacementSampler",
    "FSDPOptimizerFastGradientClipping",
    "IAccountant",
    "MissingClass",
    "UniformWithReplacementSampler",
    "adaclip_gradient_noise",
    "history_of",
    "untried",
]

# Releases that `make opacus-versions` attaches to, and those of the museum; of others a note is
# kept.
_TRIED = (
    *("1.4.0", "1.4.1", "1.5", "1.5.4", "1.6.0"),
    *("1.0.1", "1.1.3", "1.3.0", "1.5.2", "1.5.3"),
)


class MissingClass:
    """Stands in for a class that this release does not have."""


def _found(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name, MissingClass)
    except ModuleNotFoundError:
        return MissingClass


# Of torch: parameters that ranks share out, which came with 2.5.
DTensor = _found("torch.distributed.tensor", "DTensor")
AbstractGradSampleModule = _found("opacus.grad_sample.gsm_base", "AbstractGradSampleModule")
if AbstractGradSampleModule is MissingClass:
    AbstractGradSampleModule = _found("opacus.grad_sample", "GradSampleModule")
AdaClipDPOptimizer = _found("opacus.optimizers", "AdaClipDPOptimizer")
DPOptimizerFastGradientClipping = _found("opacus.optimizers", "DPOptimizerFastGradientClipping")
FSDPOptimizerFastGradientClipping = _found("opacus.optimizers", "FSDPOptimizerFastGradientClipping")
DistributedPerLayerOptimizer = _found(
    "opacus.optimizers.ddp_perlayeroptimizer", "DistributedPerLayerOptimizer"
)
AdaptiveGhostEngine = _found(
    "opacus.utils.adaptive_clipping.adaptive_clipping_utils", "PrivacyEngineAdaptiveClipping"
)
AdaptiveGhostTensor = _found(
    "opacus.utils.adaptive_clipping.adaptive_clipping_utils",
    "DPTensorFastGradientAdaptiveClipping",
)
DPLossFastGradientClipping = _found(
    "opacus.utils.fast_gradient_clipping_utils", "DPLossFastGradientClipping"
)
DPTensorFastGradientClipping = _found(
    "opacus.utils.fast_gradient_clipping_utils", "DPTensorFastGradientClipping"
)


def history_of(accountant: Any) -> list[tuple[float, float, int]]:
    """What an accountant has counted: noise multiplier, sampling rate, steps of every kind.

    Before 1.1 there was no history: the Renyi accountant kept the same rows as its steps, the
    Gaussian one a single kind of step.
    """
    if hasattr(accountant, "history"):
        rows = accountant.history
    elif isinstance(accountant.steps, list):
        rows = accountant.steps
    else:
        rows = [(accountant.noise_multiplier, accountant.sample_rate, accountant.steps)]
    return [(float(noise), float(rate), int(steps)) for noise, rate, steps in rows if steps]


def adaclip_gradient_noise(optimizer: Any) -> float:
    """The noise multiplier that adaptive clipping has for the gradients alone.

    The count of unclipped records takes its share of the budget, so that the gradients get more
    noise than both have together. Before 1.6 that share was taken when the optimizer was made, and
    the accountant is told the multiplier of the gradients.
    """
    stated = float(optimizer.noise_multiplier)
    if _release() < (1, 6) or stated <= 0.0:
        return stated
    return float((stated**-2 - (2.0 * optimizer.unclipped_num_std) ** -2) ** -0.5)


def _release() -> tuple[int, ...]:
    return tuple(int(part) for part in opacus.__version__.split(".")[:2] if part.isdigit())


def untried() -> str:
    """A note where this release of Opacus is not one the audit was tried with, else empty."""
    if opacus.__version__ in _TRIED:
        return ""
    return (
        f"Opacus {opacus.__version__} is a release this audit was never tried with: compare its "
        "findings with those of a run whose noise you halved."
    )
