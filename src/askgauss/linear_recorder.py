"""The recorder of tree mechanisms: matched-filter scores, computed as the releases go by.

No matrix is formed and no release is kept: a prefix is taken apart, with the few earlier ones that
are still open, into the one piece of independent noise it adds, and each piece is added to the
scores of the canaries whose leaves it covers. Memory is one number a canary and level.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _plain, _validate
from askgauss.canaries import PlacedCanaries, Stream, random_stream
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.linear_transcript import LinearFacts, LinearTranscript, PieceSums, TreePlan
from askgauss.mechanisms import tree

__all__ = ["LinearRecorder", "NodeSums", "drawn_nodes", "released_nodes"]

_KEPT = 64
# Prefixes of completed trees are filtered with a dense matrix, solved once.
_DENSE_STEPS = 2048

Node = tuple[int, int, int]
"""Tree, level and index."""


def released_nodes(plan: TreePlan, step: int) -> Iterator[Node]:
    """The nodes that become complete at a step, in order: tree, level and index.

    With completion, the first step of a tree is where the empty leaves of the one before it go.

    Example:
        >>> list(released_nodes(TreePlan(steps=8, restart_every=3, completion=True), 3))
        [(0, 0, 3), (0, 1, 1), (0, 2, 0), (1, 0, 0)]
    """
    here, leaf = divmod(step, plan.period)
    if here and not leaf and plan.fills_up:
        for empty in range(plan.period, 1 << plan.period.bit_length()):
            yield from ((here - 1, *node) for node in tree.completed_nodes(empty))
    yield from ((here, *node) for node in tree.completed_nodes(leaf))


def drawn_nodes(plan: TreePlan) -> Iterator[Node]:
    """The nodes that `askgauss.mechanisms.tree.TreeNoise` draws noise for, in order.

    Example:
        >>> list(drawn_nodes(TreePlan(steps=4)))
        [(0, 0, 0), (0, 1, 0), (0, 0, 2), (0, 2, 0)]
    """
    for step in range(plan.steps):
        nodes = list(released_nodes(plan, step))
        if plan.estimator == "honaker":
            yield from nodes
            continue
        if nodes[0][0] != nodes[-1][0]:  # the root of the tree that was filled up
            yield max((node for node in nodes if node[0] != nodes[-1][0]), key=lambda node: node[1])
        yield nodes[-1]


class NodeSums:
    """Sums of complete nodes, as leaves come by; memory logarithmic in their number.

    Args:
        plan: The mechanism.

    Example:
        >>> sums = NodeSums(TreePlan(steps=4))
        >>> [[int(value) for value in sums.push(leaf)] for leaf in (1, 2, 3, 4)]
        [[1], [2, 3], [3], [4, 7, 10]]
    """

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._step = 0
        self._open: list[Any] = []

    def push(self, leaf: Any) -> list[Any]:
        """Take in the next leaf; the sums of the nodes of `released_nodes`, in their order."""
        complete: list[Any] = []
        for _, level, _ in released_nodes(self._plan, self._step):
            if level:
                right, left = self._open.pop(), self._open.pop()
                self._open.append(left + right)
            else:
                # All level-0 nodes but the last are the empty leaves of the tree before.
                self._open.append(leaf * 0)
            complete.append(self._open[-1])
        return self._with_leaf(complete, leaf)

    def _with_leaf(self, complete: list[Any], leaf: Any) -> list[Any]:
        raise NotImplementedError
