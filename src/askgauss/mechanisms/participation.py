"""How far a record moves a linear mechanism by the steps that it entered."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from askgauss import _validate
from askgauss.mechanisms.decorrelate.node_releases import covered_leaves, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategy import Strategy

__all__ = ["moved_by"]


def moved_by(plan: TreePlan | Strategy, steps: Sequence[int]) -> float:
    """The norm by which a record moves all nodes of a tree, or all rows of a strategy.

    Args:
        plan: The mechanism.
        steps: The steps it entered, adding one and the same update of norm 1 to each.

    Raises:
        InvalidArgumentError: A step is not one of the mechanism's.

    Examples:
        >>> [round(moved_by(TreePlan(steps=4), steps) ** 2) for steps in ([0], [0, 1])]
        [3, 10]
    """
    for step in steps:
        _validate.integer(0, step=step)
        _validate.within(0, plan.steps, closed="left", step=step)
    entered = np.sort(np.asarray(steps, dtype=np.int64))
    if not entered.size:
        return 0.0
    square = 0.0
    for step in range(int(entered[0]), plan.steps):
        if isinstance(plan, TreePlan):
            for node in released_nodes(plan, step):
                first, count = covered_leaves(plan, node)
                inside = np.searchsorted(entered, (first, first + count))
                square += float(inside[1] - inside[0]) ** 2
        else:
            first, row = plan.row(step)
            inside = entered[(entered >= first) & (entered <= step)] - first
            square += float(row[inside].sum()) ** 2
    return math.sqrt(square)
