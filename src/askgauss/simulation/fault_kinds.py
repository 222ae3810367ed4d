"""What a fault is: one part of a mechanism, replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss.results import Verdict
from askgauss.simulation.dpsgd_parts import Mechanism

__all__ = ["Fault", "Invisible", "NodeNoise", "TreeFault"]

NodeNoise = Callable[[int, int, int], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One broken part of the mechanism.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        part: The field of `Mechanism` it replaces.
        broken: What that is replaced by.
        finding: The check that names it.
        also: Other checks that name it as well, should one of them lead.
        verdict: What the audit of a run like the one in docs/faults.md says.
        canaries: The least a canary must go through to meet it: the sum (``"own coin"``), sampler
            and clipper too (``"data path"``), or these with a gradient that is ``"spread"`` over
            several tensors.
        several_tensors: Whether it needs two tensors of equal size, and a small one.
        clip_norm: Clip norm of a run that shows it.
        expected_batch: Records in a batch, on average, of a run that shows it; any if None.
    """

    name: str
    description: str
    part: str
    broken: Any
    finding: str
    verdict: Verdict
    canaries: Literal["own coin", "data path", "spread"] = "own coin"
    several_tensors: bool = False
    clip_norm: float = 1.0
    expected_batch: float | None = None
    also: tuple[str, ...] = ()

    def apply(self, mechanism: Mechanism) -> Mechanism:
        """The mechanism with this part broken."""
        return replace(mechanism, **{self.part: self.broken})


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFault:
    """One broken part of a tree mechanism: where the noise of its nodes comes from.

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
    broken: Callable[[NodeNoise, int], NodeNoise]
    finding: str
    verdict: Verdict
    restarts: bool = False


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
