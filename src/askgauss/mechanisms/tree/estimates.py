"""Node sums, and prefixes estimated from nodes, all at once; the noise that is left in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.noise_streams import Draw
from askgauss.mechanisms.tree.shape import (
    ESTIMATORS,
    Estimator,
    completed_nodes,
    levels,
    prefix_nodes,
    trailing_zeros,
    tree_length,
)

__all__ = ["node_noise", "node_sums", "node_weight", "prefix_variance", "prefixes"]


def node_noise(draw: Draw, *, steps: int) -> Iterator[tuple[int, int, Any]]:
    """Fresh noise for every complete node, in the order the nodes are completed.

    This is the transcript of a mechanism that releases its nodes, and the order in which
    `TreeNoise` draws for the ``honaker`` estimator.

    Examples:
        >>> from askgauss.mechanisms.noise_streams import numpy_draw
        >>> draw = numpy_draw(np.random.default_rng(0), ())
        >>> [(level, index) for level, index, noise in node_noise(draw, steps=4)]
        [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (2, 0)]
    """
    _validate.integer(1, steps=steps)
    for leaf in range(steps):
        for level, index in completed_nodes(leaf):
            yield level, index, draw(None)


def node_sums(leaves: NDArray[Any]) -> list[NDArray[Any]]:
    """The exact sum of every complete node, level by level.

    Args:
        leaves: What each leaf adds, along the first axis; further axes are kept.

    Returns:
        One array a level; entry ``index`` of array ``level`` is node ``(level, index)``.

    Examples:
        >>> [level.tolist() for level in node_sums(np.array([1, 2, 3, 4, 5]))]
        [[1, 2, 3, 4, 5], [3, 7], [10]]
    """
    leaves = np.asarray(leaves)
    if leaves.ndim == 0 or not len(leaves):
        raise _validate.fail("leaves", leaves.shape, "to have at least one row, one a leaf")
    nodes = [leaves]
    while len(nodes[-1]) > 1:
        nodes.append(_pairs(nodes[-1]).sum(axis=1))
    return nodes


def prefixes(nodes: Sequence[NDArray[Any]], estimator: Estimator = "plain") -> NDArray[Any]:
    """Every prefix sum, estimated from the released nodes.

    Args:
        nodes: Node values in the layout of :func:`node_sums`; exact sums, noise, or both.
        estimator: ``plain``, ``honaker`` (past nodes only) or ``full`` (least squares, offline).

    Returns:
        An array whose row ``n`` estimates the sum of the first ``n + 1`` leaves. Exact sums give
        exact prefixes under each estimator.

    Examples:
        >>> prefixes(node_sums(np.array([1.0, 2.0, 3.0])), "honaker").tolist()
        [1.0, 3.0, 6.0]
    """
    _validate.one_of(ESTIMATORS, estimator=estimator)
    nodes = [np.asarray(level) for level in nodes]
    steps = len(nodes[0]) if nodes else 0
    if not steps or [len(level) for level in nodes] != [steps >> h for h in range(levels(steps))]:
        lengths = [len(level) for level in nodes]
        raise _validate.fail("nodes", lengths, "to hold steps >> level nodes a level, from 0 up")
    if estimator == "plain":
        return _add_up(nodes)
    upward = [nodes[0]]
    for level in range(1, len(nodes)):
        weight = node_weight(level)
        children = _pairs(upward[-1]).sum(axis=1)
        upward.append(weight * nodes[level] + (1.0 - weight) * children)
    if estimator == "honaker":
        return _add_up(upward)
    # Downward, the parent's surplus over its children is shared equally between them.
    estimate = upward[-1]
    for below in reversed(upward[:-1]):
        children = _pairs(below)
        shared = children + 0.5 * (estimate - children.sum(axis=1))[:, None]
        alone = below[2 * len(estimate) :]
        estimate = np.concatenate([shared.reshape(-1, *below.shape[1:]), alone])
    return np.cumsum(estimate, axis=0)


def _pairs(level: NDArray[Any]) -> NDArray[Any]:
    """Siblings side by side; a last node without a sibling has no complete parent."""
    return level[: len(level) // 2 * 2].reshape(-1, 2, *level.shape[1:])


def _add_up(nodes: Sequence[NDArray[Any]]) -> NDArray[Any]:
    result = np.array(nodes[0], dtype=np.result_type(*nodes))
    for count in range(1, len(result) + 1):
        level = trailing_zeros(count)
        result[count - 1] = nodes[level][(count >> level) - 1]
        if count > 1 << level:
            result[count - 1] += result[count - (1 << level) - 1]
    return result


def node_weight(level: int) -> float:
    """The weight of a node's own draw against its descendants', and the variance that results."""
    return 1.0 / (2.0 - 0.5**level)


def prefix_variance(
    steps: int,
    estimator: Estimator = "plain",
    *,
    restart_every: int | None = None,
    completion: bool = False,
) -> NDArray[np.float64]:
    """The noise variance of every prefix, in units of the variance of one node.

    Args:
        steps: Leaves in all.
        estimator: ``plain``, ``honaker`` or ``full``.
        restart_every: Leaves of one tree; a new tree starts after each, on top of the noise so far.
        completion: Fill a tree with empty leaves before it is left, see `TreeNoise`.

    Returns:
        An array of length ``steps``; entry ``n`` belongs to the first ``n + 1`` leaves.

    Examples:
        >>> prefix_variance(4, "honaker").round(4).tolist()
        [1.0, 0.6667, 1.6667, 0.5714]
    """
    _validate.one_of(ESTIMATORS, estimator=estimator)
    period = tree_length(steps, restart_every, completion)
    if estimator == "full" and completion:
        raise UnsupportedError("Tree completion is defined for the plain and honaker estimators.")
    within = _tree_variance(period, estimator)
    last = within[-1]
    if completion and estimator == "plain":
        last = 1.0
    elif completion:
        last = node_weight((period - 1).bit_length())
    trees = np.arange(-(-steps // period))
    if estimator == "full":
        # The last tree may be shorter, and its nodes are then fewer than those of the others.
        rest = steps - period * trees[-1]
        whole = (within + last * trees[:-1, None]).ravel()
        return np.append(whole, last * trees[-1] + _tree_variance(int(rest), estimator))
    return np.asarray((within + last * trees[:, None]).ravel()[:steps])


def _tree_variance(steps: int, estimator: Estimator) -> NDArray[np.float64]:
    count = np.arange(1, steps + 1)
    if estimator == "plain":
        return np.bitwise_count(count).astype(np.float64)
    if estimator == "honaker":
        weights = np.array([node_weight(level) for level in range(levels(steps))])
        return np.asarray((count[:, None] >> np.arange(len(weights)) & 1) @ weights)
    blocks, before = [], 0.0
    for level, _ in prefix_nodes(steps):
        blocks.append(before + _least_squares_variance(level))
        before = float(blocks[-1][-1])
    return np.concatenate(blocks)


def _least_squares_variance(level: int) -> NDArray[np.float64]:
    """Prefix variances of least squares in one complete tree, by doubling.

    With ``M`` the Gram matrix of the nodes, a parent adds the all-ones matrix to two copies of its
    children's ``M``. One rank-one update a level then carries along, for each prefix ``a``, its
    variance ``a' M^-1 a`` and its covariance ``a' M^-1 1`` with the whole.
    """
    variance = np.ones(1)
    covariance = np.ones(1)
    for _ in range(level):
        whole = covariance[-1]
        variance = np.append(variance, whole + variance)
        covariance = np.append(covariance, whole + covariance)
        scale = 1.0 + 2.0 * whole
        variance -= covariance**2 / scale
        covariance /= scale
    return variance
