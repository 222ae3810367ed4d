"""Binary-tree prefix sums with Gaussian noise, the mechanism of DP-FTRL (arXiv 2103.00039).

Node ``(level, index)`` covers the leaves ``index * 2**level`` up to ``(index + 1) * 2**level - 1``,
counted from 0, and is complete once the last of them has arrived. Every complete node carries one
Gaussian draw; a prefix of the stream is put together from nodes by one of three estimators:

- ``plain``: the nodes of the binary digits of its length, as first proposed;
- ``honaker``: each of those nodes averaged with what its descendants say, using the past only;
- ``full``: least squares over all nodes, future ones included, hence offline.

All three are functions of the same released nodes, so they cost the same privacy. Noise is counted
in units of the clip norm throughout. Neighbours differ in one record, whose contributions are there
or zero; nothing is sampled, so who else is in which batch stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, RecordingError, UnsupportedError
from askgauss.stats import gaussian

__all__ = [
    "CheckedDraw",
    "Draw",
    "Estimator",
    "TreeNoise",
    "ancestors",
    "check_participation",
    "completed_nodes",
    "epsilon",
    "levels",
    "node_noise",
    "node_sums",
    "noise_multiplier",
    "numpy_draw",
    "prefix_nodes",
    "prefix_variance",
    "prefixes",
    "sensitivity",
]

Estimator = Literal["plain", "honaker", "full"]
Node = tuple[int, int]

Draw = Callable[[Any], Any]
"""Fresh noise of one node: ``draw(out)`` fills and returns ``out``, or a new array if None."""

_ESTIMATORS = ("plain", "honaker", "full")
_SCHEMA = 1


# --- the shape of the tree -------------------------------------------------------------------


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
    _leaf(leaf, steps)
    path = ((level, leaf >> level) for level in range(levels(steps)))
    return tuple((level, index) for level, index in path if (index + 1) << level <= steps)


def completed_nodes(leaf: int) -> tuple[Node, ...]:
    """The nodes that become complete when ``leaf`` arrives, the leaf first.

    Examples:
        >>> completed_nodes(3)
        ((0, 3), (1, 1), (2, 0))
    """
    _validate.integer(0, leaf=leaf)
    return tuple((level, leaf >> level) for level in range(_trailing_zeros(leaf + 1) + 1))


def _trailing_zeros(count: int) -> int:
    return (count & -count).bit_length() - 1


def _leaf(leaf: int, steps: int) -> None:
    _validate.integer(0, leaf=leaf)
    if leaf >= steps:
        raise _validate.fail("leaf", leaf, f"in [0, {steps}), the leaves of the tree")


# --- node values and prefix estimates, all at once -------------------------------------------


def node_noise(draw: Draw, *, steps: int) -> Iterator[tuple[int, int, Any]]:
    """Fresh noise for every complete node, in the order the nodes are completed.

    This is the transcript of a mechanism that releases its nodes, and the order in which
    :class:`TreeNoise` draws for the ``honaker`` estimator.

    Examples:
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
    _validate.one_of(_ESTIMATORS, estimator=estimator)
    nodes = [np.asarray(level) for level in nodes]
    steps = len(nodes[0]) if nodes else 0
    if not steps or [len(level) for level in nodes] != [steps >> h for h in range(levels(steps))]:
        lengths = [len(level) for level in nodes]
        raise _validate.fail("nodes", lengths, "to hold steps >> level nodes a level, from 0 up")
    if estimator == "plain":
        return _add_up(nodes)
    upward = [nodes[0]]
    for level in range(1, len(nodes)):
        weight = _node_weight(level)
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
        level = _trailing_zeros(count)
        result[count - 1] = nodes[level][(count >> level) - 1]
        if count > 1 << level:
            result[count - 1] += result[count - (1 << level) - 1]
    return result


def _node_weight(level: int) -> float:
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
        completion: Fill a tree with empty leaves before it is left, see :class:`TreeNoise`.

    Returns:
        An array of length ``steps``; entry ``n`` belongs to the first ``n + 1`` leaves.

    Examples:
        >>> prefix_variance(4, "honaker").round(4).tolist()
        [1.0, 0.6667, 1.6667, 0.5714]
    """
    _validate.one_of(_ESTIMATORS, estimator=estimator)
    period = _period(steps, restart_every, completion)
    if estimator == "full" and completion:
        raise UnsupportedError("Tree completion is defined for the plain and honaker estimators.")
    within = _tree_variance(period, estimator)
    last = within[-1]
    if completion and estimator == "plain":
        last = 1.0
    elif completion:
        last = _node_weight((period - 1).bit_length())
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
        weights = np.array([_node_weight(level) for level in range(levels(steps))])
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


# --- streaming -------------------------------------------------------------------------------


def numpy_draw(
    generator: np.random.Generator,
    shape: int | tuple[int, ...],
    *,
    scale: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> Draw:
    """Gaussian draws from a numpy generator, written into the buffer that is handed in.

    Args:
        generator: Where the randomness comes from.
        shape: Shape of one draw.
        scale: Standard deviation of a node: noise multiplier times clip norm.
        dtype: float32 or float64.

    Returns:
        The ``draw`` that :class:`TreeNoise` asks for. With torch, write it as
        ``lambda out: (torch.empty(shape) if out is None else out).normal_(0, scale)``.

    Examples:
        >>> draw = numpy_draw(np.random.default_rng(0), 3, scale=2.0)
        >>> noise = draw(None)
        >>> draw(noise) is noise
        True
    """
    _validate.positive(scale=scale, hint="A tree without noise is not private.")
    kind: Any = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise _validate.fail("dtype", kind, "to be float32 or float64")
    size = shape if isinstance(shape, tuple) else (shape,)

    def draw(out: Any) -> Any:
        target = np.empty(size, kind) if out is None else out
        noise = generator.standard_normal(size, dtype=kind, out=target)
        if scale != 1.0:
            noise *= scale
        return noise

    return draw


class CheckedDraw:
    """A ``draw`` that gets its buffers back and is held to its word.

    A buffer handed out twice, noise of another shape (which would broadcast) or a first draw that
    is zero or nan would make the noise smaller than accounted for, and nothing later would show it.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.reset(None)

    def reset(self, shape: tuple[int, ...] | None) -> None:
        """Forget the buffers; later draws must have this shape."""
        self.spare: list[Any] = []
        self._shape = shape
        self._tried = False

    def __call__(self, held: Sequence[Any]) -> Any:
        """Fresh noise in an array that is none of those ``held``."""
        noise = self._draw(self.spare.pop() if self.spare else None)
        if any(noise is other for other in (*held, *self.spare)):
            raise RecordingError(
                "draw returned an array that is still in use, so two draws would share their "
                "noise. Return the array handed in, or a new one."
            )
        shape = tuple(noise.shape)
        if self._shape not in (None, shape):
            raise RecordingError(f"Expected draws of shape {self._shape}, got {shape}.")
        if not self._tried:
            if 0 not in shape and not (noise != 0).any():
                raise RecordingError(
                    "The first draw is all zeros: without noise nothing is private. Check the "
                    "scale of draw."
                )
            if not (noise == noise).all():
                raise RecordingError("The first draw has nan. Check the scale of draw.")
        self._shape, self._tried = shape, True
        return noise


class TreeNoise:
    """The noise of one prefix after another, in memory logarithmic in the number of steps.

    The arrays may come from any library that adds in place: nothing but ``+=``, ``-=`` and ``*``
    touches them. Each step costs one draw (``plain``) or two on average (``honaker``).

    What is kept for each open node is the noise of the prefix that ends with it, not its own. A
    plain step is then one draw on top of the prefix before it; a Honaker merge averages two
    estimates of the same prefix, one through the parent's fresh draw and one through its children.
    There is nothing to subtract, so rounding does not build up over the run.

    Args:
        draw: Fresh noise of one node, see :data:`Draw` and :func:`numpy_draw`; already scaled to
            noise multiplier times clip norm.
        steps: Leaves in all, the number the privacy was accounted for.
        estimator: ``plain`` or ``honaker``; ``full`` needs the future, see :func:`prefixes`.
        restart_every: Start a new tree after so many leaves; finished trees stay in the noise.
        completion: Before a tree is left, fill it with empty leaves up to the next power of two
            and carry on from its root, which has less noise than a sum of several nodes. The nodes
            above the empty leaves are released too: account for them.

    Examples:
        >>> noise = TreeNoise(numpy_draw(np.random.default_rng(0), 2), steps=3)
        >>> first, second = noise.next(), noise.next()
        >>> first.shape, noise.step, noise.remaining
        ((2,), 2, 1)
    """

    def __init__(
        self,
        draw: Draw,
        *,
        steps: int,
        estimator: Estimator = "plain",
        restart_every: int | None = None,
        completion: bool = False,
    ) -> None:
        self._period = _period(steps, restart_every, completion)
        _validate.one_of(_ESTIMATORS, estimator=estimator)
        if estimator == "full":
            raise UnsupportedError(
                "The full estimator reads nodes of the future and cannot stream. Stream 'honaker', "
                "or keep the nodes (node_noise) and call prefixes(nodes, 'full') at the end."
            )
        self._fresh = CheckedDraw(draw)
        self._plan: dict[str, Any] = {
            "steps": int(steps),
            "estimator": str(estimator),
            "restart_every": None if restart_every is None else int(restart_every),
            "completion": bool(completion),
        }
        self._step = 0
        self._stack: list[Any] = []
        self._intact = True

    @property
    def step(self) -> int:
        """Leaves seen so far."""
        return self._step

    @property
    def remaining(self) -> int:
        """Leaves still to come."""
        return int(self._plan["steps"]) - self._step

    @property
    def buffers(self) -> int:
        """Arrays held at present, those waiting to be used again included."""
        return len(self._stack) + len(self._fresh.spare)

    def next(self, leaf: int | None = None) -> Any:
        """The noise of the prefix that ends with the next leaf.

        Args:
            leaf: The leaf the caller believes it is at, counted from 0; checked when given.

        Returns:
            A new array, the caller's to keep or change.

        Raises:
            RecordingError: More leaves than planned, a leaf skipped or repeated, a draw that failed
                or returned unusable noise.
        """
        if not self._intact:
            raise RecordingError(
                "An earlier draw failed half way, so the noise of this tree is no longer known. "
                "Load the last state into a new TreeNoise."
            )
        if self.remaining <= 0:
            raise RecordingError(
                f"The tree was planned and accounted for {self._step} steps, and all were used. "
                "Plan for more steps before training."
            )
        if leaf is not None and leaf != self._step:
            raise RecordingError(
                f"Expected leaf {self._step} next, got {leaf!r}. Every step is one leaf, in order; "
                "give an empty batch a leaf of its own."
            )
        self._intact = False
        count = self._step % self._period
        if self._step and not count:
            self._restart()
        self._push(count + 1)
        self._step += 1
        self._intact = True
        # A product and not a copy(): the one spelling that numpy and torch share.
        return self._stack[-1] * 1

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain values and a list of arrays.

        The state of the generator behind ``draw`` is the caller's to save: a resumed run that draws
        the same noise again is not private.
        """
        if not self._intact:
            raise RecordingError("An earlier draw failed half way: there is no state to save.")
        stack = [noise * 1 for noise in self._stack]
        return {"schema": _SCHEMA, **self._plan, "step": self._step, "stack": stack}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, with the same plan.

        Raises:
            FileFormatError: The state is incomplete or of a newer schema.
            RecordingError: The state belongs to a tree with another plan, or does not fit its step.
        """
        missing = {"schema", "step", "stack", *self._plan} - set(state)
        if missing:
            raise FileFormatError(f"The tree's state lacks {', '.join(sorted(missing))}.")
        if state["schema"] != _SCHEMA:
            raise FileFormatError(
                f"The tree's state has schema {state['schema']!r}; this version reads {_SCHEMA}. "
                "Update askgauss."
            )
        for name, planned in self._plan.items():
            if state[name] != planned:
                raise RecordingError(
                    f"The state was saved with {name}={state[name]!r}, this tree has {planned!r}. "
                    "Noise of one plan cannot continue another."
                )
        step, stack = state["step"], list(state["stack"])
        _validate.integer(0, step=step)
        finished = max(step - 1, 0) // self._period
        expected = (step - finished * self._period).bit_count() + (finished > 0)
        shapes = {tuple(noise.shape) for noise in stack}
        if len(stack) != expected or step > self._plan["steps"] or len(shapes) > 1:
            raise RecordingError(
                f"Expected {expected} arrays of one shape for step {step} of "
                f"{self._plan['steps']}, got {len(stack)} of shapes {sorted(shapes)}."
            )
        self._stack = [noise * 1 for noise in stack]
        self._fresh.reset(shapes.pop() if shapes else None)
        self._step = int(step)
        self._intact = True

    def _push(self, count: int) -> None:
        """Take in leaf number ``count`` of the present tree."""
        merges = _trailing_zeros(count)
        if self._plan["estimator"] == "plain":
            self._drop(merges)
            self._stack.append(self._above())
            return
        prefix = self._above()
        for level in range(1, merges + 1):
            self._drop(1)
            fresh = self._above(beside=prefix)
            fresh -= prefix
            fresh *= _node_weight(level)
            fresh += prefix
            self._fresh.spare.append(prefix)
            prefix = fresh
        self._stack.append(prefix)

    def _restart(self) -> None:
        """Keep the noise of the finished tree as the ground the next one stands on."""
        if self._plan["completion"] and self._period.bit_count() > 1:
            if self._plan["estimator"] == "plain":
                # The root is drawn at once: nothing else that the empty leaves complete is used.
                self._drop(self._period.bit_count())
                self._stack.append(self._above())
            else:
                for count in range(self._period + 1, (1 << self._period.bit_length()) + 1):
                    self._push(count)
        ground = self._stack.pop()
        self._drop(len(self._stack))
        self._stack.append(ground)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._fresh.spare.append(self._stack.pop())

    def _above(self, beside: Any = None) -> Any:
        """A new draw on top of the prefix below it."""
        noise = self._fresh((*self._stack, beside))
        if self._stack:
            noise += self._stack[-1]
        return noise


# --- privacy ---------------------------------------------------------------------------------


def sensitivity(
    steps: int,
    *,
    participations: int = 1,
    min_separation: int = 1,
    restart_every: int | None = None,
    completion: bool = False,
) -> float:
    """How far one record can move all node sums together, in units of the clip norm.

    Its square is the sum, over all complete nodes, of the squared number of times the record enters
    a node; the largest over every way to participate that the arguments allow is found exactly.

    Args:
        steps: Leaves in all; any number.
        participations: Most leaves one record enters, over all trees.
        min_separation: Least distance between two of them; 1 allows neighbouring leaves.
        restart_every: Leaves of one tree; None for a single tree.
        completion: Trees that are left are completed first, see :class:`TreeNoise`.

    Returns:
        The l2 sensitivity; for one participation in one tree ``sqrt(levels(steps))``.

    Assumes:
        A record adds a vector of norm at most the clip norm to each leaf it enters, or nothing
        to any in the neighbouring data.

    Examples:
        >>> round(sensitivity(128) ** 2)
        8
        >>> round(sensitivity(10_000, participations=100, min_separation=100,
        ...                   restart_every=2_000, completion=True) ** 2)
        4129
    """
    period = _period(steps, restart_every, completion)
    _validate.integer(1, participations=participations, min_separation=min_separation)
    gap = min(int(min_separation), steps) - 1
    most = min(int(participations), -(-steps // (gap + 1)))
    join = partial(_join, gap=gap if most > 1 else 0, most=most)

    @cache
    def complete(level: int) -> _Segment:
        if level == 0:
            return _leaf_segment(gap if most > 1 else 0)
        return join(complete(level - 1), complete(level - 1)).under_one_node()

    @cache
    def completed(leaves: int, level: int) -> _Segment:
        """The first ``leaves`` under a node of this level, the others empty."""
        if leaves == 1 << level:
            return complete(level)
        half = 1 << level - 1
        if leaves <= half:
            return completed(leaves, level - 1).under_one_node()
        return join(complete(level - 1), completed(leaves - half, level - 1)).under_one_node()

    finished, last = divmod(steps - 1, period)
    top, *blocks = [level for level, _ in prefix_nodes(last + 1)]
    if finished:
        if completion:
            tree = completed(period, (period - 1).bit_length())
        else:
            tree = reduce(join, [complete(level) for level, _ in prefix_nodes(period)])
        whole = join(_repeated(tree, finished, join), complete(top))
    elif top:
        # What comes first needs no table of what stands before it, and this one is the largest.
        whole = join(complete(top - 1).at_start(), complete(top - 1)).under_one_node()
    else:
        whole = complete(0)
    for level in blocks:
        whole = join(whole, complete(level))
    return math.sqrt(max(int(value.max()) for value, _ in whole.fronts))


def _repeated(
    tree: _Segment, times: int, join: Callable[[_Segment, _Segment], _Segment]
) -> _Segment:
    """Equal trees one after another, at the start, by doubling."""
    whole, times = tree.at_start(), times - 1
    while times:
        if times & 1:
            whole = join(whole, tree)
        times >>= 1
        tree = join(tree, tree) if times else tree
    return whole


@dataclass(frozen=True, slots=True)
class _Segment:
    """What a run of leaves can contribute, whatever stands before and behind it.

    ``fronts[count - 1]`` holds, for that many participations, the sums of squared node counts worth
    knowing and, for each and for every ``lead``, the most leaves (capped) that can stay free behind
    the last participation when at least ``lead`` stay free before the first; -1 if none.
    """

    length: int
    fronts: tuple[tuple[NDArray[np.int64], NDArray[np.int32]], ...]

    def under_one_node(self) -> _Segment:
        """The same leaves with one node above them all."""
        fronts = (
            (value + count * count, trail) for count, (value, trail) in enumerate(self.fronts, 1)
        )
        return _Segment(self.length, tuple(fronts))

    def at_start(self) -> _Segment:
        """The same leaves with nothing before them, so that only ``lead`` 0 is of interest."""
        return _Segment(self.length, tuple((value, trail[:, :1]) for value, trail in self.fronts))

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All fronts as two arrays, indexed by count - 1; padding is impossible everywhere."""
        width = max(len(value) for value, _ in self.fronts)
        leads = self.fronts[0][1].shape[1]
        values = np.zeros((len(self.fronts), width), np.int64)
        trails = np.full((len(self.fronts), width, leads), -1, np.int32)
        for row, (value, trail) in enumerate(self.fronts):
            values[row, : len(value)] = value
            trails[row, : len(value)] = trail
        return values, trails


def _leaf_segment(gap: int) -> _Segment:
    trail = np.full((1, gap + 1), -1, np.int32)
    trail[0, 0] = 0
    return _Segment(1, ((np.ones(1, np.int64), trail),))


def _join(left: _Segment, right: _Segment, gap: int, most: int) -> _Segment:
    """Two runs side by side; ``gap`` leaves stay free between participations, ``most`` of them."""
    left_values, left_trails = left.padded()
    right_values, right_trails = right.padded()
    leads = left_trails.shape[2]
    ahead = np.maximum(np.arange(leads) - left.length, 0)
    # What the left leaves free behind it counts towards the gap; the extra column is "impossible".
    wanted = np.where(left_trails < 0, gap + 1, gap - left_trails)
    blocked = np.full((*right_trails.shape[:2], 1), -1, np.int32)
    offered = np.concatenate([right_trails, blocked], axis=2)
    fronts: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    for count in range(1, min(most, len(left.fronts) + len(right.fronts)) + 1):
        values, trails = [], []
        if count <= len(left.fronts):
            value, trail = left.fronts[count - 1]
            values.append(value)
            trails.append(np.where(trail < 0, -1, np.minimum(trail + right.length, gap)))
        if count <= len(right.fronts):
            value, trail = right.fronts[count - 1]
            values.append(value)
            trails.append(trail[:, ahead])
        here = np.arange(max(1, count - len(right.fronts)), min(len(left.fronts), count - 1) + 1)
        if here.size:
            there = count - here
            value = left_values[here - 1][:, :, None] + right_values[there - 1][:, None, :]
            trail = np.take_along_axis(
                offered[there - 1][:, None], wanted[here - 1][:, :, None], axis=3
            )
            values.append(value.ravel())
            trails.append(trail.reshape(-1, leads))
        front = _frontier(np.concatenate(values), np.concatenate(trails).astype(np.int32))
        if not len(front[0]):
            break
        fronts.append(front)
    return _Segment(left.length + right.length, tuple(fronts))


def _frontier(
    value: NDArray[np.int64], trail: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Without the entries that another beats in value and in free leaves alike."""
    possible = trail[:, 0] >= 0
    value, trail = value[possible], trail[possible]
    order = np.argsort(-value, kind="stable")
    value, best = value[order], np.maximum.accumulate(trail[order], axis=0)
    last = np.append(value[1:] != value[:-1], True)[: len(value)]
    value, best = value[last], best[last]
    gains = np.ones(len(value), bool)
    gains[1:] = (best[1:] > best[:-1]).any(axis=1)
    return value[gains], best[gains]


def _period(steps: int, restart_every: int | None, completion: bool) -> int:
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


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    participations: int = 1,
    min_separation: int = 1,
    restart_every: int | None = None,
    completion: bool = False,
) -> float:
    """The noise of one node, in units of the clip norm, that makes the tree (epsilon, delta)-DP.

    All nodes together are one Gaussian mechanism with the sensitivity of :func:`sensitivity`, so
    the calibration is that of the analytic Gaussian mechanism, exact in both directions.

    Args:
        epsilon: Target, above 0.
        delta: Target, in (0, 1).
        steps: See :func:`sensitivity`, as the arguments below.
        participations: Most leaves one record enters.
        min_separation: Least distance between two of them.
        restart_every: Leaves of one tree.
        completion: Trees that are left are completed first.

    Returns:
        The standard deviation of a node's noise divided by the clip norm.

    Examples:
        >>> sigma = noise_multiplier(epsilon=8.0, delta=1e-5, steps=128)
        >>> from askgauss.mechanisms import tree
        >>> round(tree.epsilon(noise_multiplier=sigma, delta=1e-5, steps=128), 6)
        8.0
    """
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    distance = sensitivity(
        steps,
        participations=participations,
        min_separation=min_separation,
        restart_every=restart_every,
        completion=completion,
    )
    return distance / gaussian.gdp_mu(epsilon, delta)


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    steps: int,
    participations: int = 1,
    min_separation: int = 1,
    restart_every: int | None = None,
    completion: bool = False,
) -> float:
    """The epsilon of the tree at ``delta``, the inverse of :func:`noise_multiplier`.

    Args:
        noise_multiplier: Standard deviation of a node's noise divided by the clip norm.
        delta: In (0, 1).
        steps: See :func:`sensitivity`, as the arguments below.
        participations: Most leaves one record enters.
        min_separation: Least distance between two of them.
        restart_every: Leaves of one tree.
        completion: Trees that are left are completed first.

    Returns:
        The smallest epsilon for which the released nodes are (epsilon, delta)-DP.

    Examples:
        >>> round(epsilon(noise_multiplier=46.3, delta=1e-5, steps=10_000, participations=100,
        ...               min_separation=100, restart_every=2_000, completion=True), 2)
        6.43
    """
    _validate.positive(
        noise_multiplier=noise_multiplier, hint="Without noise the tree is not private."
    )
    _validate.probability(delta=delta)
    distance = sensitivity(
        steps,
        participations=participations,
        min_separation=min_separation,
        restart_every=restart_every,
        completion=completion,
    )
    return gaussian.gdp_epsilon(delta=delta, mu=distance / noise_multiplier)


def check_participation(
    leaves: Sequence[int] | NDArray[np.integer[Any]],
    *,
    steps: int,
    participations: int = 1,
    min_separation: int = 1,
) -> None:
    """One record's leaves keep to what was accounted for.

    Args:
        leaves: The leaves the record entered, in any order; a leaf named twice counts twice.
        steps: Leaves in all.
        participations: Most leaves the record may enter.
        min_separation: Least distance between two of them.

    Raises:
        RecordingError: The record came too often or too soon again.
        InvalidArgumentError: A leaf is not in the tree.

    Examples:
        >>> check_participation([3, 103], steps=200, participations=2, min_separation=100)
    """
    _validate.integer(1, steps=steps, participations=participations, min_separation=min_separation)
    for leaf in leaves:
        _leaf(leaf, steps)
    if len(leaves) > participations:
        raise RecordingError(
            f"A record entered {len(leaves)} leaves where {participations} were accounted for: "
            "the claimed epsilon does not cover it."
        )
    ordered = sorted(int(leaf) for leaf in leaves)
    nearest = min((after - before for before, after in pairwise(ordered)), default=min_separation)
    if nearest < min_separation:
        raise RecordingError(
            f"A record entered two leaves {nearest} apart where at least {min_separation} was "
            "accounted for: the claimed epsilon does not cover it."
        )
