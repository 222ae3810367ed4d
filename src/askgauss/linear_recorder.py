"""The recorder of tree mechanisms: matched-filter scores, computed as the releases go by.

No release is kept. A prefix is taken apart, with the few earlier ones that are still open, into the
one piece of independent noise it adds; each piece is then added to the scores of the canaries whose
leaves it covers. Memory is one number a canary and level of the tree.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

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

_KEPT = 32
# Prefixes of trees that are filled up are filtered with a dense matrix, solved once.
_DENSE_STEPS = 1024

Node = tuple[int, int, int]
"""Tree, level and index."""


# --- which nodes, and their sums -------------------------------------------------------------


def released_nodes(plan: TreePlan, step: int) -> list[Node]:
    """The nodes that become complete at a step, in order: tree, level and index.

    The empty leaves that fill up a tree arrive with the first leaf of the next one.

    Examples:
        >>> released_nodes(TreePlan(steps=8, restart_every=3, completion=True), 3)
        [(0, 0, 3), (0, 1, 1), (0, 2, 0), (1, 0, 0)]
    """
    here, leaf = divmod(step, plan.period)
    nodes = [(here, *node) for node in tree.completed_nodes(leaf)]
    for empty in reversed(_empty_leaves(plan, step)):
        nodes[:0] = [(here - 1, *node) for node in tree.completed_nodes(empty)]
    return nodes


def drawn_nodes(plan: TreePlan) -> Iterator[Node]:
    """The nodes that `askgauss.mechanisms.tree.TreeNoise` draws noise for, in order.

    Examples:
        >>> list(drawn_nodes(TreePlan(steps=4)))
        [(0, 0, 0), (0, 1, 0), (0, 0, 2), (0, 2, 0)]
    """
    for step in range(plan.steps):
        nodes = released_nodes(plan, step)
        if plan.estimator == "honaker":
            yield from nodes
            continue
        # A plain tree uses the widest node only: of the leaf, and of a tree that is filled up.
        if _empty_leaves(plan, step):
            yield (nodes[-1][0] - 1, (plan.period - 1).bit_length(), 0)
        yield nodes[-1]


def _empty_leaves(plan: TreePlan, step: int) -> range:
    """The leaves that fill up the tree before the one that begins at this step."""
    if not (plan.fills_up and step and step % plan.period == 0):
        return range(0)
    return range(plan.period, 1 << plan.period.bit_length())


class NodeSums:
    """Sums of complete nodes as leaves come by, in memory logarithmic in their number.

    Args:
        plan: The mechanism.

    Examples:
        >>> sums = NodeSums(TreePlan(steps=4))
        >>> [[int(value) for value in sums.push(np.array(leaf))] for leaf in (1, 2, 3, 4)]
        [[1], [2, 3], [3], [4, 7, 10]]
    """

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._step = 0
        self.open: list[NDArray[Any]] = []

    def push(self, leaf: NDArray[Any]) -> list[NDArray[Any]]:
        """Take in the next leaf; the sums of `released_nodes` at its step, in their order."""
        complete = []
        for empty in _empty_leaves(self._plan, self._step):
            complete += self._take(empty, np.zeros_like(leaf))
        position = self._step % self._plan.period
        if position == 0:
            self.open.clear()
        complete += self._take(position, leaf)
        self._step += 1
        return complete

    def resume(self, step: int, open_sums: list[NDArray[Any]]) -> None:
        """Go on after so many leaves with the sums that were open then."""
        self._step, self.open = step, list(open_sums)

    def _take(self, position: int, value: NDArray[Any]) -> list[NDArray[Any]]:
        complete = [value]
        for _ in tree.completed_nodes(position)[1:]:
            complete.append(self.open.pop() + complete[-1])
        self.open.append(complete[-1])
        return complete


# --- from releases to pieces of noise --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A linear combination of releases, and what it says about the leaves it covers.

    Attributes:
        node: The node it stands for.
        value: Its value along each canary.
        first: First leaf it covers.
        signal: What a record in each of the leaves from there on adds to it.
        spread: Standard deviation of its noise, in those of one node.
    """

    node: Node
    value: NDArray[np.float64]
    first: int
    signal: NDArray[np.float64]
    spread: float = 1.0


class _Reader(abc.ABC):
    """Takes releases apart.

    With ``gram`` None the score is the sum of signal times value, and the squared information the
    sum of squared signals; otherwise ``gram`` holds the products of the leaves' filters.
    """

    gram: NDArray[np.float64] | None = None
    offline: bool = False

    def __init__(self, plan: TreePlan) -> None:
        self._plan = plan
        self._open: list[NDArray[np.float64]] = []

    @abc.abstractmethod
    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[_Piece]:
        """The pieces that a step adds."""

    def open_values(self) -> list[NDArray[np.float64]]:
        """What has to be remembered for the steps to come."""
        return self._open

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        """Go on after so many steps with what was remembered."""
        self._open = open_values


def _covered(plan: TreePlan, node: Node) -> tuple[int, int]:
    """The first leaf under a node, counted over all trees, and how many there are."""
    here, level, index = node
    first = here * plan.period + (index << level)
    end = min((here + 1) * plan.period, plan.steps)
    return min(first, end), max(min(first + (1 << level), end) - first, 0)


class _NodeReader(_Reader):
    """Nodes need no taking apart: each has noise of its own."""

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[_Piece]:
        for node, row in zip(released_nodes(self._plan, step), released, strict=True):
            first, count = _covered(self._plan, node)
            yield _Piece(node, row, first, np.ones(count))


class _PrefixReader(_Reader):
    """Prefixes put together from past nodes: ``plain`` and ``honaker``.

    The prefix of ``n`` leaves is that of ``n - 2**level`` plus an estimate of the node of the last
    binary digit of ``n``. That estimate averages the draws of the node, its right child, the right
    child of that and so on with what its left children say; the left children were themselves last
    digits of earlier prefixes, which are known. Without them, what is left is a weighted sum of the
    draws down the right-hand side. Every node lies on one such side, so these sums are independent.

    Open are the ground the tree stands on and the prefixes that end where its open nodes do.
    """

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[_Piece]:
        here, position = divmod(step, self._plan.period)
        if position == 0:
            self._open[:] = self._open[-1:] or [np.zeros_like(released)]
        level = len(tree.completed_nodes(position)) - 1
        weights, signal, noise = _right_hand_side(level, self._plan.estimator == "honaker")
        value = released.copy()
        for weight, earlier in zip(weights, reversed(self._open), strict=False):
            if weight:
                value += weight * earlier
        value /= noise
        del self._open[len(self._open) - level :]
        self._open.append(released)
        node = (here, level, position >> level)
        yield _Piece(node, value, _covered(self._plan, node)[0], signal)


@functools.cache
def _right_hand_side(
    level: int, averaged: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """How to read a node's right-hand side off the prefixes.

    Returns:
        The weights of the prefixes that end 1, 2, 4, ... leaves before the node does; what a record
        in each leaf of the node adds to the result, and the noise of the result, over each other.
    """
    own = np.array([1.0 / (2.0 - 0.5**low) if averaged else 1.0 for low in range(level + 1)])
    # How much of the right-hand node of each level gets through to the top.
    through = np.append(np.cumprod((1.0 - own)[:0:-1])[::-1], 1.0)
    draws = through * own
    noise = float(np.linalg.norm(draws))
    signal = np.empty(1 << level)
    for low, height in reversed(list(enumerate(np.cumsum(draws[::-1])[::-1]))):
        signal[-(1 << low) :] = height / noise
    weights = np.append(0.0, through[:-1]) - through
    for array in (weights, signal):
        array.setflags(write=False)
    return weights, signal, noise


class _LeastSquaresReader(_Reader):
    """Prefixes by least squares over all nodes: node sums of their differences suffice.

    With ``C`` the matrix of the nodes and ``y`` their noisy sums, the leaves are estimated by ``x``
    with ``C'C x = C'y``: summing ``C x`` over the nodes of a leaf gives what summing ``y`` does.
    """

    offline = True

    def __init__(self, plan: TreePlan) -> None:
        super().__init__(plan)
        self._sums = NodeSums(plan)

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[_Piece]:
        leaf = released - self._open[0] if self._open else released
        self._open = [released]
        nodes = released_nodes(self._plan, step)
        for node, value in zip(nodes, self._sums.push(leaf), strict=True):
            first, count = _covered(self._plan, node)
            yield _Piece(node, value, first, np.ones(count), self._spread(node))

    def open_values(self) -> list[NDArray[np.float64]]:
        return [*self._open, *self._sums.open]

    def resume(self, step: int, open_values: list[NDArray[np.float64]]) -> None:
        self._open = open_values[:1]
        self._sums.resume(step, open_values[1:])

    def _spread(self, node: Node) -> float:
        here, level, index = node
        leaves = min(self._plan.period, self._plan.steps - here * self._plan.period)
        last = (index + 1 << level) - 1
        block = next(top for top, place in tree.prefix_nodes(leaves) if place == last >> top)
        # The first node of a level is a prefix, and by symmetry the others vary as it does.
        return math.sqrt(_least_squares_variance(block)[(1 << level) - 1])


@functools.cache
def _least_squares_variance(level: int) -> NDArray[np.float64]:
    return tree.prefix_variance(1 << level, "full")


class _DenseReader(_Reader):
    """Prefixes of trees that are filled up: the ground a tree stands on is never seen by itself.

    The filter of a leaf is then ``inverse(S) @ a``, with ``S`` the covariance of all prefixes and
    ``a`` one from the leaf on.
    """

    offline = True

    def __init__(self, plan: TreePlan) -> None:
        if plan.steps > _DENSE_STEPS:
            raise UnsupportedError(
                f"Prefixes of completed trees can be filtered up to {_DENSE_STEPS} steps, the plan "
                f"has {plan.steps}. Release nodes, or restart after a power of two leaves, which "
                "needs no completion."
            )
        super().__init__(plan)
        decoder = _decoder(plan)
        covariance = decoder @ decoder.T
        entered = np.tri(plan.steps)
        self._filters = np.linalg.solve(covariance, entered)
        self.gram = entered.T @ self._filters
        self._spreads = np.sqrt(np.diagonal(covariance))

    def read(self, step: int, released: NDArray[np.float64]) -> Iterator[_Piece]:
        node = (step // self._plan.period, -1, step)
        yield _Piece(node, released, 0, self._filters[step], float(self._spreads[step]))


def _decoder(plan: TreePlan) -> NDArray[np.float64]:
    """The matrix that turns draws into the noise of prefixes, read off the mechanism itself."""
    width = sum(1 for _ in drawn_nodes(plan))
    numbers = itertools.count()

    def draw(out: Any) -> Any:
        row = np.zeros(width) if out is None else out
        row[:] = 0.0
        row[next(numbers)] = 1.0
        return row

    noise = tree.TreeNoise(
        draw,
        steps=plan.steps,
        estimator=plan.estimator,
        restart_every=plan.restart_every,
        completion=plan.completion,
    )
    return np.array([noise.next() for _ in range(plan.steps)])


def _reader(plan: TreePlan) -> _Reader:
    if plan.release == "nodes":
        return _NodeReader(plan)
    if plan.estimator == "full":
        return _LeastSquaresReader(plan)
    return _DenseReader(plan) if plan.fills_up else _PrefixReader(plan)


# --- the recorder ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint."""

    fingerprint: str
    plan: TreePlan
    clip_norm: float
    step: int
    asked: bool
    background: Literal["known", "unknown"] | None
    open: int


class LinearRecorder:
    """Records a run of a tree mechanism step by step, whatever framework runs it.

    Every canary, present or absent, has leaves of its own, drawn at random. A step is: ask
    `sample` which canaries enter it, add them to the clean sum of the leaf, let the mechanism
    release, and hand what it released to `observe`.

    Args:
        canaries: Who is planted where.
        plan: The mechanism, and what the audit sees of it.
        clip_norm: Norm of one planted canary.
        noise_multiplier: The noise of one node the run claims, in clip norms.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        UnsupportedError: The plan's releases cannot be filtered.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> from askgauss.mechanisms.tree import TreeNoise, numpy_draw
        >>> canaries = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)
        >>> plan = TreePlan(steps=8, estimator="honaker", release="prefixes")
        >>> recorder = LinearRecorder(canaries, plan)
        >>> noise = TreeNoise(numpy_draw(np.random.default_rng(1), 100), steps=8,
        ...                   estimator="honaker")
        >>> clean = np.zeros(100)
        >>> for _ in range(8):
        ...     canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        ...     recorder.observe(canaries.project(clean + noise.next()), background=np.zeros(40))
        >>> recorder.transcript()
        LinearTranscript(steps=8, release='prefixes', present=20, absent=20, background='known')
    """

    def __init__(
        self,
        canaries: PlacedCanaries,
        plan: TreePlan,
        *,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
    ) -> None:
        if not isinstance(canaries, PlacedCanaries):
            raise _validate.fail(
                "canaries", canaries, "to be canaries", "Make them with DiracCanaries()."
            )
        _validate.positive(clip_norm=clip_norm)
        if noise_multiplier is not None:
            _validate.non_negative(noise_multiplier=noise_multiplier)
        self._canaries = canaries
        self._plan = plan
        self._clip_norm = float(clip_norm)
        self._noise_multiplier = None if noise_multiplier is None else float(noise_multiplier)
        self._reader = _reader(plan)
        self._leaves = _random_leaves(canaries, plan)
        # Entries into leaves, one a canary and participation, in the order of the leaves.
        order = np.argsort(self._leaves, axis=None, kind="stable")
        self._leaf = self._leaves.ravel()[order]
        self._owner = order // self._leaves.shape[1]
        self._starts = np.searchsorted(self._leaf, np.arange(plan.steps + 1))
        self._absent = np.flatnonzero(~canaries.member)
        kept = random_stream(canaries.root_seed, Stream.KEPT)
        self._kept = np.sort(kept.permutation(self._absent)[:_KEPT])
        self._step = 0
        self._asked = False
        self._background: Literal["known", "unknown"] | None = None
        # False while a step is being added: an interruption there leaves sums that mean nothing.
        self._whole = True
        self._sums = {name: np.zeros(canaries.size) for name in ("score", "gain")}
        self._sums["leaf_gain"] = np.zeros(plan.steps)
        self._pieces: list[tuple[int, int, int, float, float]] = []
        self._kept_values: list[NDArray[np.float64]] = []
        self._cosines: NDArray[np.float64] | None = None

    @property
    def steps(self) -> int:
        """Number of steps observed so far."""
        return self._step

    @property
    def plan(self) -> TreePlan:
        """The mechanism."""
        return self._plan

    def sample(self) -> NDArray[np.int64]:
        """Indices of the canaries to plant in this step: the present ones with a leaf here.

        Raises:
            RecordingError: All planned steps have been observed.
        """
        self._check_next()
        self._asked = True
        entered = self._owner[self._starts[self._step] : self._starts[self._step + 1]]
        return np.asarray(entered[self._canaries.member[entered]], dtype=np.int64)

    def observe(
        self,
        released: ArrayLike,
        *,
        background: ArrayLike | None = None,
        cosines: ArrayLike | None = None,
    ) -> None:
        """Record what one step released; of a step that raises, nothing is recorded.

        Args:
            released: Along each canary, the noisy prefix; or, where nodes are released, one row for
                each node of `released_nodes`.
            background: The same without noise and without any canary; None where unknown.
            cosines: Two rows: the cosine of each canary with the whole released prefix, and with
                its change in this step.

        Raises:
            InvalidArgumentError: An argument has the wrong shape or type.
            RecordingError: The step does not fit the ones before it, or the plan.
        """
        self._check_next()
        if not self._asked:
            raise RecordingError(
                "observe() came before sample(): ask which canaries enter this step first."
            )
        size = self._canaries.size
        shape: tuple[int, ...] = (size,)
        if self._plan.release == "nodes":
            shape = (len(released_nodes(self._plan, self._step)), size)
        known: Literal["known", "unknown"] = "unknown" if background is None else "known"
        if self._background not in (None, known):
            raise RecordingError(
                f"Expected the background to stay {self._background}, got it {known} in step "
                f"{self._step + 1}. Give it in every step or in none."
            )
        noisy = _numbers("released", released, shape)
        clean = 0.0 if background is None else _numbers("background", background, shape)
        angles = None if cosines is None else _numbers("cosines", cosines, (2, size))
        if self._step and (angles is None) != (self._cosines is None):
            raise RecordingError("Expected cosines in every step or in none.")
        # Infinite gradients make nan here. They are recorded, and the scores then refuse them.
        with np.errstate(all="ignore"):
            values = np.subtract(noisy, clean, dtype=np.float64)
            values /= self._clip_norm
            self._whole = False
            for piece in self._reader.read(self._step, values):
                self._add(piece)
            if angles is not None:
                if self._cosines is None:
                    self._cosines = np.array(angles, dtype=np.float64)
                np.maximum(self._cosines, angles, out=self._cosines)
        self._background, self._asked = known, False
        self._step += 1
        self._whole = True

    def _add(self, piece: _Piece) -> None:
        stop = piece.first + piece.signal.size
        entries = slice(self._starts[piece.first], self._starts[stop])
        signal = piece.signal[self._leaf[entries] - piece.first]
        weights = np.bincount(self._owner[entries], signal, self._canaries.size)
        self._sums["score"] += weights * piece.value
        if self._reader.gram is None:
            self._sums["gain"] += weights * weights
            self._sums["leaf_gain"][piece.first : stop] += piece.signal**2
        noise = piece.value[self._absent] / piece.spread
        self._pieces.append((*piece.node, float(noise.sum()), float(noise @ noise)))
        self._kept_values.append(piece.value[self._kept] / piece.spread)

    def _check_next(self) -> None:
        self._check_whole()
        if self._step >= self._plan.steps:
            raise RecordingError(
                f"The mechanism was planned and accounted for {self._plan.steps} steps, and all "
                "were observed. Plan for more steps before training."
            )

    def _check_whole(self) -> None:
        if not self._whole:
            raise RecordingError(
                f"Recording step {self._step + 1} was interrupted half way: its sums mean nothing. "
                "Load the last checkpoint into a new recorder."
            )

    def transcript(self) -> LinearTranscript:
        """The transcript of the steps observed so far.

        Of a run that stopped early, the mechanism is the tree up to there, and canaries whose
        leaves never came have no score.

        Raises:
            RecordingError: No canary has entered yet, or the releases mean nothing before all are
                there.
        """
        self._check_whole()
        if self._reader.offline and self._step < self._plan.steps:
            raise RecordingError(
                f"Expected all {self._plan.steps} steps, got {self._step}: the filter of these "
                "releases needs every one of them."
            )
        gain, leaf_gain = self._sums["gain"], self._sums["leaf_gain"]
        if (gram := self._reader.gram) is not None:
            gain = gram[self._leaves[:, :, None], self._leaves[:, None, :]].sum(axis=(1, 2))
            leaf_gain = np.diagonal(gram)
        information = np.sqrt(gain)
        entered = gain > 0.0
        score = np.divide(self._sums["score"], information, out=np.zeros_like(gain), where=entered)
        pieces = np.array(self._pieces, np.float64).reshape(-1, 5)
        nodes = pieces[:, :3].astype(np.int64)
        cosine, round_cosine = (None, None) if self._cosines is None else self._cosines.copy()
        return LinearTranscript(
            member=self._canaries.member,
            leaves=self._leaves.copy(),
            score=score,
            information=information,
            largest_information=self._largest_information(gain, leaf_gain),
            pieces=PieceSums(
                tree=nodes[:, 0].copy(),
                level=nodes[:, 1].copy(),
                index=nodes[:, 2].copy(),
                total=pieces[:, 3].copy(),
                square=pieces[:, 4].copy(),
            ),
            kept=self._kept.copy(),
            kept_values=np.array(self._kept_values).reshape(-1, self._kept.size),
            cosine=cosine,
            round_cosine=round_cosine,
            plan=self._plan,
            facts=LinearFacts(
                steps=self._step,
                clip_norm=self._clip_norm,
                noise_multiplier=self._noise_multiplier,
                background=self._background or "unknown",
                fair_coins=self._canaries.fair_coins,
                tensors=tuple(
                    f"tensor {index}" for index in range(len(self._canaries.tensor_sizes))
                ),
                seed=self._canaries.root_seed,
            ),
        )

    def _largest_information(
        self, gain: NDArray[np.float64], leaf_gain: NDArray[np.float64]
    ) -> float:
        """The most presence can move the score of any record; never more than that.

        For several participations and prefixes the worst way to participate is not known: the worst
        of the canaries' own stands in, so that the bound can only be too low.
        """
        if self._plan.participations == 1:
            return math.sqrt(leaf_gain.max())
        if self._plan.release == "nodes" and self._step:
            return tree.sensitivity(
                self._step,
                participations=self._plan.participations,
                min_separation=self._plan.min_separation,
                restart_every=self._plan.restart_every,
                completion=self._plan.completion,
            )
        return math.sqrt(gain.max())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: arrays, and plain values under ``"state"``."""
        self._check_whole()
        state: dict[str, Any] = {f"sums.{name}": item.copy() for name, item in self._sums.items()}
        state["pieces"] = np.array(self._pieces, np.float64).reshape(-1, 5)
        state["kept_values"] = np.array(self._kept_values).reshape(-1, self._kept.size)
        if self._cosines is not None:
            state["cosines"] = self._cosines.copy()
        open_values = self._reader.open_values()
        state |= {f"open.{index}": array.copy() for index, array in enumerate(open_values)}
        state["state"] = _plain.to_plain(
            _Progress(
                fingerprint=self._canaries.fingerprint(),
                plan=self._plan,
                clip_norm=self._clip_norm,
                step=self._step,
                asked=self._asked,
                background=self._background,
                open=len(open_values),
            )
        )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            FileFormatError: The state is not one of a recorder, or parts of it are missing.
            RecordingError: The state belongs to other canaries or another mechanism. The recorder
                stays as it was.
        """
        progress: _Progress = _plain.from_plain(_Progress, state.get("state"), "state")
        for name, mine in (
            ("fingerprint", self._canaries.fingerprint()),
            ("plan", self._plan),
            ("clip_norm", self._clip_norm),
        ):
            theirs = getattr(progress, name)
            if theirs != mine:
                raise RecordingError(
                    f"Expected a checkpoint of this run, got one whose {name} is {theirs!r} where "
                    f"this run has {mine!r}. Start with the same canaries, seed and settings."
                )
        if not 0 <= progress.step <= self._plan.steps:
            raise FileFormatError(f"Expected step up to {self._plan.steps}, got {progress.step}.")
        size = self._canaries.size
        sums = {name: _part(state, f"sums.{name}", old.shape) for name, old in self._sums.items()}
        open_values = [_part(state, f"open.{index}", (size,)) for index in range(progress.open)]
        pieces = _part(state, "pieces", (len(state.get("pieces", ())), 5))
        kept_values = _part(state, "kept_values", (len(pieces), self._kept.size))
        cosines = _part(state, "cosines", (2, size)) if "cosines" in state else None
        self._sums, self._cosines, self._kept_values = sums, cosines, list(kept_values)
        self._pieces = [(int(a), int(b), int(c), d, e) for a, b, c, d, e in pieces.tolist()]
        self._reader.resume(progress.step, open_values)
        self._step, self._asked = progress.step, progress.asked
        self._background = progress.background
        self._whole = True


def _random_leaves(canaries: PlacedCanaries, plan: TreePlan) -> NDArray[np.int64]:
    """The leaves of every canary, uniform over all ways to enter as often as accounted for."""
    generator = random_stream(canaries.root_seed, Stream.PLANTING)
    gap = min(plan.min_separation, plan.steps) - 1
    count = min(plan.participations, -(-plan.steps // (gap + 1)))
    # Take the leaves that must stay free out, choose among the rest, and put them back.
    slots = plan.steps - (count - 1) * gap
    if count == 1:
        return generator.integers(slots, size=(canaries.size, 1))
    chosen = [np.sort(generator.choice(slots, count, replace=False)) for _ in range(canaries.size)]
    return np.array(chosen, dtype=np.int64) + gap * np.arange(count)


def _numbers(name: str, given: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    values = np.asarray(given)
    if values.dtype.kind not in "biuf" or values.shape != shape:
        raise InvalidArgumentError(
            f"Expected {name} to be numbers of shape {shape}, one column a canary, got shape "
            f"{values.shape} and dtype {values.dtype}. Read it with canaries.project()."
        )
    return values


def _part(state: dict[str, Any], name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A copy of one array of a checkpoint."""
    given = state.get(name)
    if not isinstance(given, np.ndarray) or given.dtype != np.float64 or given.shape != shape:
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
        raise FileFormatError(
            f"Expected {name} of the checkpoint to be float64 {shape}, got {found[:80]}. "
            "Load an older checkpoint."
        )
    return given.copy()
