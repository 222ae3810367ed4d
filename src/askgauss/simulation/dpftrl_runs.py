"""Exact simulations of audited DP-FTRL runs, without a model or data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import DiracCanaries, Stream
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import NodeSums, drawn_nodes, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.transcript import LinearTranscript
from askgauss.simulation.dpsgd_runs import check_canaries, check_work
from askgauss.simulation.fault_kinds import NodeNoise
from askgauss.simulation.faults import TreeFault, find_tree_fault

__all__ = ["node_noise", "run_tree", "simulate_dpftrl"]


def simulate_dpftrl(
    *,
    steps: int,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int,
    release: Literal["nodes", "prefixes"] = "nodes",
    estimator: tree.Estimator = "plain",
    restart_every: int | None = None,
    completion: bool = False,
    participations: int = 1,
    min_separation: int = 1,
    fault: str | TreeFault | None = None,
) -> LinearTranscript:
    """A DP-FTRL run with canaries, leaf by leaf through the tree and the recorder.

    Every canary has a coordinate and random leaves of its own; there are no other records.

    Args:
        steps: Leaves of the tree, or of all trees together.
        noise_multiplier: Noise standard deviation of one node, in units of the clip norm.
        present: Number of present canaries.
        absent: Number of absent canaries.
        seed: Root of every random choice.
        release: What the audit sees: every complete node, or only the prefixes.
        estimator: How prefixes are put together from nodes.
        restart_every: Leaves of one tree.
        completion: Fill up a tree with empty leaves before it is left.
        participations: Leaves every canary enters, the most a record is accounted for.
        min_separation: Least distance between two of them.
        fault: How to break it, by name (`askgauss.simulation.TREE_FAULTS`) or as an object.

    Examples:
        >>> simulate_dpftrl(steps=16, noise_multiplier=2.0, present=10, absent=20, seed=0)
        LinearTranscript(steps=16, release='nodes', present=10, absent=20, background='known')
    """
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    check_canaries(present, absent)
    check_work(steps, present + absent, "canaries")
    plan = TreePlan(
        steps=steps,
        estimator=estimator,
        release=release,
        restart_every=restart_every,
        completion=completion,
        participations=participations,
        min_separation=min_separation,
    )
    canaries = DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=seed)
    noise = node_noise(canaries.root_seed, canaries.size)
    broken = find_tree_fault(fault)
    if broken is not None:
        noise = broken.broken(noise, tree.levels(plan.period))
    return run_tree(plan, canaries, noise, noise_multiplier=noise_multiplier)


def node_noise(seed: int, size: int) -> NodeNoise:
    """Independent standard normal noise for every node, each from a stream of its own."""

    def noise(number: int, level: int, index: int) -> NDArray[np.float64]:
        key = (Stream.NOISE, number, level, index)
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        return generator.standard_normal(size)

    return noise


def run_tree(
    plan: TreePlan,
    canaries: DiracCanaries,
    noise: NodeNoise,
    *,
    noise_multiplier: float,
    claimed: float | None = None,
) -> LinearTranscript:
    """Run the mechanism on canaries alone, with the noise that is handed in.

    Args:
        plan: The mechanism.
        canaries: Who is planted; their coordinates make up the whole vector.
        noise: Where the noise of each node comes from.
        noise_multiplier: What it is multiplied with.
        claimed: The noise multiplier the run claims, if another.
    """
    recorder = LinearRecorder(
        canaries, plan, noise_multiplier=noise_multiplier if claimed is None else claimed
    )
    # Prefixes and nodes of one step ask for the same noise.
    remembered = functools.lru_cache(tree.levels(plan.steps) + 1)(noise)
    sums = NodeSums(plan)
    clean, before = np.zeros(canaries.size), np.zeros(canaries.size)
    for step, prefix_noise in enumerate(_prefix_noise(plan, remembered)):
        leaf = np.zeros(canaries.size)
        leaf[recorder.sample()] = 1.0
        clean += leaf
        released = prefix = clean + noise_multiplier * prefix_noise
        if plan.release == "nodes":
            nodes = zip(sums.push(leaf), released_nodes(plan, step), strict=True)
            rows = [total + noise_multiplier * remembered(*node) for total, node in nodes]
            released = np.array(rows)
        recorder.observe(
            released,
            background=np.zeros_like(released),
            cosines=np.array([_direction(prefix), _direction(prefix - before)]),
        )
        before = prefix
    transcript = recorder.transcript()
    # No run of its own: the same seed gives the same transcript, to the byte.
    return transcript.with_facts(replace(transcript.facts, run=None))


def _direction(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosine of a vector with every coordinate."""
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm else vector


def _prefix_noise(plan: TreePlan, noise: NodeNoise) -> Iterator[NDArray[np.float64]]:
    """The noise of every prefix, in order."""
    if plan.estimator == "full":
        yield from _least_squares_noise(plan, noise)
        return
    nodes = drawn_nodes(plan)

    def draw(out: Any) -> Any:
        fresh = noise(*next(nodes))
        if out is None:
            return fresh.copy()
        out[:] = fresh
        return out

    stream = plan.stream(draw)
    for _ in range(plan.steps):
        yield stream.next()


def _least_squares_noise(plan: TreePlan, noise: NodeNoise) -> Iterator[NDArray[np.float64]]:
    """The same for least squares over all nodes, which need not be held at once.

    Estimates are made upwards, a node's own draw averaged with its children's, and then downwards,
    its surplus over them shared equally. Going down one path at a time, what lies beside the path
    is drawn again whenever it is needed.
    """

    def upward(number: int, level: int, index: int) -> NDArray[np.float64]:
        if level == 0:
            return noise(number, 0, index)
        own = tree.node_weight(level)
        below = upward(number, level - 1, 2 * index) + upward(number, level - 1, 2 * index + 1)
        return own * noise(number, level, index) + (1.0 - own) * below

    def leaves(
        number: int, level: int, index: int, estimate: NDArray[np.float64]
    ) -> Iterator[NDArray[np.float64]]:
        if level == 0:
            yield estimate
            return
        children = [upward(number, level - 1, 2 * index + side) for side in (0, 1)]
        surplus = 0.5 * (estimate - children[0] - children[1])
        for side in (0, 1):
            yield from leaves(number, level - 1, 2 * index + side, children[side] + surplus)

    prefix: Any = 0.0
    for number, first in enumerate(range(0, plan.steps, plan.period)):
        for level, index in tree.prefix_nodes(min(plan.period, plan.steps - first)):
            for estimate in leaves(number, level, index, upward(number, level, index)):
                prefix = prefix + estimate
                yield prefix
