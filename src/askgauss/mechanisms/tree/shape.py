"""The shape of the tree: which nodes there are, and which of them make a prefix."""

from __future__ import annotations

from typing import Literal

from askgauss import _validate

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "Node",
    "ancestors",
    "check_leaf",
    "completed_nodes",
    "levels",
    "prefix_nodes",
    "trailing_zeros",
    "tree_length",
]

Estimator = Literal["plain", "honaker", "full"]
Node = tuple[int, int]

ESTIMATORS = ("plain", "honaker", "full")


def levels(steps: int) -> int:
    """The number of complete nodes above the first leaf, itself included.

    Args:
        steps: Leaves of the tree; need not be a power of two.

    Returns:
        ``floor(log2(steps)) + 1``.

    Examples:
        >>> levels(1), levels(127), levels(128)
        (1, 7, 8)
    """
    _validate.integer(1, steps=steps)
    return int(steps).bit_length()


def prefix_nodes(count: int) -> tuple[Node, ...]:
    """The nodes that add up to the first ``count`` leaves, widest first.

    Examples:
        >>> prefix_nodes(6)
        ((2, 0), (1, 2))
    """
    _validate.integer(0, count=count)
    bits = range(int(count).bit_length() - 1, -1, -1)
    return tuple((level, (count >> level) - 1) for level in bits if count >> level & 1)


def ancestors(leaf: int, steps: int) -> tuple[Node, ...]:
    """The complete nodes that hold ``leaf`` in a tree of ``steps`` leaves, the leaf first.

    Examples:
        >>> ancestors(2, steps=6)
        ((0, 2), (1, 1), (2, 0))
        >>> ancestors(5, steps=6)
        ((0, 5), (1, 2))
    """
    _validate.integer(1, steps=steps)
    check_leaf(leaf, steps)
    path = ((level, leaf >> level) for level in range(levels(steps)))
    return tuple((level, index) for level, index in path if (index + 1) << level <= steps)


def completed_nodes(leaf: int) -> tuple[Node, ...]:
    """The nodes that become complete when ``leaf`` arrives, the leaf first.

    Examples:
        >>> completed_nodes(3)
        ((0, 3), (1, 1), (2, 0))
    """
    _validate.integer(0, leaf=leaf)
    return tuple((level, leaf >> level) for level in range(trailing_zeros(leaf + 1) + 1))


def trailing_zeros(count: int) -> int:
    """How many binary digits at the end of ``count`` are zero."""
    return (count & -count).bit_length() - 1


def check_leaf(leaf: int, steps: int) -> None:
    """The leaf is one of the tree."""
    _validate.integer(0, leaf=leaf)
    if leaf >= steps:
        raise _validate.fail("leaf", leaf, f"in [0, {steps}), the leaves of the tree")


def tree_length(steps: int, restart_every: int | None, completion: bool) -> int:
    """The leaves of one tree."""
    _validate.integer(1, steps=steps)
    if restart_every is None:
        if completion:
            raise _validate.fail(
                "completion", completion, "to come with restart_every", "Trees end at restarts."
            )
        return int(steps)
    _validate.integer(1, restart_every=restart_every)
    return int(restart_every)
