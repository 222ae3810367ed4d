"""What a fault is, one part of a mechanism replaced, and the registers of all faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Verdict
from askgauss.simulation.dpsgd_parts import Mechanism

__all__ = [
    "FAULTS",
    "TREE_FAULTS",
    "Fault",
    "Invisible",
    "NodeNoise",
    "TreeFault",
    "find_fault",
    "find_tree_fault",
]

_Part = TypeVar("_Part")
_Kind = TypeVar("_Kind")

NodeNoise = Callable[[int, int, int], NDArray[np.float64]]
"""The standard normal noise of a node by its tree, level and index; the same at every call."""

_FAULTS: dict[str, Fault] = {}
_TREE_FAULTS: dict[str, TreeFault] = {}

FAULTS: Mapping[str, Fault] = MappingProxyType(_FAULTS)
"""Every fault of DP-SGD by its name."""
TREE_FAULTS: Mapping[str, TreeFault] = MappingProxyType(_TREE_FAULTS)
"""Every fault of a tree mechanism by its name."""


def _unchanged(noise: NodeNoise, levels: int) -> NodeNoise:
    return noise


@dataclass(frozen=True, slots=True)
class Fault:
    """One part of DP-SGD, replaced; as a decorator it registers what it decorates.

    Attributes:
        part: The field of `Mechanism` it replaces.
        name: Its name, in kebab-case.
        description: What goes wrong.
        broken: What that part is replaced by.
        finding: The check that names it.
        also: Other checks that name it as well, should one of them lead.
        verdict: What the audit of a run like the one in docs/faults.md says.
        canaries: The least a canary must go through to meet it: the sum, where the recorder
            samples (``"own coin"``), sampler and clipper too (``"data path"``), or these with a
            gradient that is ``"spread"`` over several tensors.
        several_tensors: Whether it needs two tensors of equal size, and a small one.
        clip_norm: Clip norm of a run that shows it.
        expected_batch: Records in a batch, on average, of a run that shows it; any if None.
    """

    part: str
    name: str
    description: str
    _: KW_ONLY
    broken: Any = None
    finding: str
    verdict: Verdict = Verdict.VIOLATION
    canaries: Literal["own coin", "data path", "spread"] = "own coin"
    several_tensors: bool = False
    clip_norm: float = 1.0
    expected_batch: float | None = None
    also: tuple[str, ...] = ()

    def __call__(self, broken: _Part) -> _Part:
        """Register the fault whose part is this."""
        _FAULTS[self.name] = replace(self, broken=broken)
        return broken

    def apply(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism with this part broken."""
        return replace(mechanism, **{self.part: self.broken})


@dataclass(frozen=True, slots=True)
class TreeFault:
    """Where the noise of a tree's nodes comes from, replaced; a decorator like `Fault`.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        broken: The noise of every node, from what it should be and the number of levels.
        finding: The check that names it.
        verdict: What the audit says.
        restarts: Whether it needs a tree that is restarted.
    """

    name: str
    description: str
    _: KW_ONLY
    broken: Callable[[NodeNoise, int], NodeNoise] = _unchanged
    finding: str
    verdict: Verdict = Verdict.VIOLATION
    restarts: bool = False

    def __call__(self, broken: _Part) -> _Part:
        """Register the fault whose noise is this."""
        _TREE_FAULTS[self.name] = replace(self, broken=cast(Any, broken))
        return broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Invisible:
    """Something the audit of one run cannot see, and what can.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        reason: Why one run does not show it.
        instead: The check that can.
    """

    name: str
    description: str
    reason: str
    instead: str


def find_fault(fault: str | Fault | None) -> Fault | None:
    """The fault of this name; faults and None are returned as they are.

    Raises:
        InvalidArgumentError: There is no fault of this name.

    Examples:
        >>> from askgauss.simulation import faults
        >>> find_fault("half-noise").finding
        'noise scale'
    """
    return fault if fault is None or isinstance(fault, Fault) else _named(FAULTS, fault)


def find_tree_fault(fault: str | TreeFault | None) -> TreeFault | None:
    """The same for faults of a tree mechanism."""
    return fault if fault is None or isinstance(fault, TreeFault) else _named(TREE_FAULTS, fault)


def _named(faults: Mapping[str, _Kind], name: str) -> _Kind:
    if name not in faults:
        raise InvalidArgumentError(
            f"Expected fault to be one of {', '.join(faults)}, got {name!r}."
        )
    return faults[name]
