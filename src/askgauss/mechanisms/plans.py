"""What a mechanism with correlated noise was planned and accounted for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from askgauss import _validate
from askgauss.mechanisms import tree
from askgauss.mechanisms.strategy import Draw, GaussianMechanism

__all__ = ["Plan", "StrategyPlan", "TreePlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePlan(GaussianMechanism):
    """A tree mechanism as it was planned and accounted for.

    All nodes together are one Gaussian mechanism, whose noise is that of one node in clip norms.

    Attributes:
        steps: Leaves in all.
        estimator: How prefixes are put together from nodes, see `askgauss.mechanisms.tree`.
        release: What the audit sees: every complete node, or only the prefixes.
        restart_every: Leaves of one tree; None for a single tree.
        completion: Trees that are left are first filled with empty leaves.
        participations: Most leaves one record enters.
        min_separation: Least distance between two of them.

    Examples:
        >>> plan = TreePlan(steps=10_000, participations=100, min_separation=100,
        ...                 restart_every=2_000, completion=True)
        >>> round(plan.epsilon(noise_multiplier=46.3, delta=1e-5), 2)
        6.43
    """

    steps: int
    estimator: Literal["plain", "honaker", "full"] = "plain"
    release: Literal["nodes", "prefixes"] = "nodes"
    restart_every: int | None = None
    completion: bool = False
    participations: int = 1
    min_separation: int = 1

    def __post_init__(self) -> None:
        _validate.count(
            steps=self.steps,
            participations=self.participations,
            min_separation=self.min_separation,
        )
        _validate.one_of(("plain", "honaker", "full"), estimator=self.estimator)
        _validate.one_of(("nodes", "prefixes"), release=self.release)
        if self.restart_every is not None:
            _validate.count(restart_every=self.restart_every)
        elif self.completion:
            raise _validate.fail(
                "completion", True, "to come with restart_every", "Trees end at restarts."
            )
        if self.completion and self.estimator == "full":
            raise _validate.fail(
                "completion", True, "to come with the plain or the honaker estimator"
            )

    @property
    def period(self) -> int:
        """Leaves of one tree."""
        return self.steps if self.restart_every is None else self.restart_every

    @property
    def fills_up(self) -> bool:
        """Whether empty leaves are ever added: trees are completed, left, and need to be."""
        return self.completion and self.period < self.steps and self.period.bit_count() > 1

    @property
    def independent(self) -> bool:
        """Whether releases can be decorrelated into pieces of independent noise."""
        return self.release == "nodes" or not self.fills_up

    def sensitivity(self) -> float:
        """How far one record can move all node sums together, in units of the clip norm."""
        return tree.sensitivity(
            self.steps,
            participations=self.participations,
            min_separation=self.min_separation,
            restart_every=self.restart_every,
            completion=self.completion,
        )

    def stream(self, draw: Draw) -> tree.TreeNoise:
        """The noise of one prefix after another, see `askgauss.mechanisms.tree.TreeNoise`."""
        return tree.TreeNoise(
            draw,
            steps=self.steps,
            estimator=self.estimator,
            restart_every=self.restart_every,
            completion=self.completion,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPlan:
    """A lower-triangular strategy as it was planned, and what the audit sees of it.

    Attributes:
        steps: Steps in all.
        kind: How the strategy is held: ``dense``, ``banded`` or ``buffered``.
        digest: A short name of its numbers.
        remembers: Arrays that are held from one step to the next.
        release: What the audit sees: noisy rows of the strategy, the noisy steps decoded from them,
            or the prefix sums of those.
        participations: Most steps one record enters.
        min_separation: Least distance between two of them.
    """

    steps: int
    kind: Literal["dense", "banded", "buffered"]
    digest: str
    remembers: int
    release: Literal["rows", "steps", "prefixes"] = "steps"
    participations: int = 1
    min_separation: int = 1

    def __post_init__(self) -> None:
        _validate.count(
            steps=self.steps,
            participations=self.participations,
            min_separation=self.min_separation,
        )
        _validate.count(0, remembers=self.remembers)
        _validate.one_of(("dense", "banded", "buffered"), kind=self.kind)
        _validate.one_of(("rows", "steps", "prefixes"), release=self.release)

    @property
    def independent(self) -> bool:
        """Rows of the strategy each have noise of their own."""
        return True


# In this order: what lacks the fields of a strategy is read as a tree.
Plan = StrategyPlan | TreePlan
