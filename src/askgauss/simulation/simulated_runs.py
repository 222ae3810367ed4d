"""Exact simulations of audited runs of DP-SGD and DP-FTRL, without a model or data."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, Stream
from askgauss.checks.scope import AFTER_CLIPPING, INPUT_SPACE
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import NodeSums, drawn_nodes, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import LinearTranscript, Transcript
from askgauss.scores import CanaryScores
from askgauss.simulation.faults import FAULTS, TREE_FAULTS, Fault, TreeFault
from askgauss.simulation.mechanism import DPSGDMechanism, NodeNoise, SimulatedRun, find_fault

__all__ = [
    "check_canaries",
    "check_work",
    "node_noise",
    "run_tree",
    "simulate_dpftrl",
    "simulate_dpsgd",
    "simulate_scores",
]


# Of one simulation: what fits into memory, and what is gone through in a minute or two.
_MOST_CANARIES = 10**7
_MOST_STEPS = 2 * 10**6
_MOST_NUMBERS = 10**9


def simulate_dpsgd(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int | None = None,
    fault: str | Fault | None = None,
    canaries: Literal["own coin", "data path", "spread"] | None = None,
) -> Transcript:
    """A DP-SGD run with canaries, step by step through the recorder.

    Each step plants every present canary with probability ``sampling_rate`` and adds Gaussian noise
    of standard deviation ``noise_multiplier`` to every coordinate; there are no other records.

    Args:
        steps: Number of steps.
        sampling_rate: Poisson sampling rate.
        noise_multiplier: Noise standard deviation, in units of the clip norm.
        present: Number of present canaries.
        absent: Number of absent canaries.
        seed: Root of every random choice; from the operating system if not given.
        fault: A part of the mechanism to break, by name (`askgauss.simulation.FAULTS`) or as an
            object. The arguments above are then what the run claims.
        canaries: What canaries go through: with ``"own coin"`` the recorder samples them and adds
            them to the clipped sum; on the ``"data path"`` they are records, sampled and clipped
            by the simulated training, and ``"spread"`` ones have gradients that reach into four
            tensors. If not given, the first that meets the fault.

    Raises:
        InvalidArgumentError: An argument is out of its range, or there is no such fault.

    Examples:
        >>> simulate_dpsgd(steps=5, sampling_rate=0.5, noise_multiplier=1.0,
        ...                present=10, absent=20, seed=0)
        Transcript(steps=5, present=10, absent=20, background='known')
        >>> run = simulate_dpsgd(steps=5, sampling_rate=0.5, noise_multiplier=1.0,
        ...                      present=10, absent=20, seed=0, fault="no-noise")
        >>> float(run.canaries.square[~run.member].max())
        0.0
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    check_work(steps, present + absent, "canaries")
    broken = find_fault(fault, FAULTS)
    path = canaries or ("own coin" if broken is None else broken.path)
    _validate.one_of(("own coin", "data path", "spread"), canaries=path)
    own_draws = path == "own coin"
    several = broken is not None and broken.several_tensors
    run = SimulatedRun.begin(
        _placed(present, absent, seed, several=several, spread=path == "spread"),
        steps=steps,
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        clip_norm=1.0 if broken is None else broken.clip_norm,
    )
    recorder = Recorder(
        run.canaries,
        sampling_rate=sampling_rate if own_draws else None,
        clip_norm=run.clip_norm,
        noise_multiplier=noise_multiplier,
    )
    mechanism = DPSGDMechanism() if broken is None else broken.apply(DPSGDMechanism())
    mechanism.record(run, recorder, own_draws=own_draws)
    recorded = recorder.transcript()
    facts = replace(
        recorded.facts,
        places=None,  # no model has a size here
        # The recorder cannot know how another sampler works; this run claims that it is Poisson.
        poisson=True,
        accounted_steps=min(recorded.number_of_steps, steps),
        accounted_sampling_rate=sampling_rate,
        exercised=AFTER_CLIPPING if own_draws else INPUT_SPACE,
        # No run of its own: the same seed gives the same transcript, to the byte.
        run=None,
    )
    return recorded.with_facts(facts)


def _placed(
    present: int, absent: int, seed: int | None, *, several: bool, spread: bool
) -> DiracCanaries | BlockCanaries:
    """Canaries with a little room around them, in one tensor or in as many as are needed."""
    count = present + absent
    if spread:
        quarter = count + 32
        return BlockCanaries(
            present=present, absent=absent, tensors=(quarter,) * 4, block=4, seed=seed
        )
    if several:
        half = count // 2 + 32
        return DiracCanaries(present=present, absent=absent, tensors=(half, half, 32), seed=seed)
    return DiracCanaries(present=present, absent=absent, dimension=count + 32, seed=seed)


def simulate_scores(
    *,
    steps: int,
    sampling_rate: float,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int | np.random.Generator,
) -> CanaryScores:
    """Only the scores of such a run, one draw per canary: the same distribution, far faster.

    Examples:
        >>> simulate_scores(steps=2500, sampling_rate=0.08, noise_multiplier=2.6,
        ...                 present=50, absent=70, seed=0)
        CanaryScores(present=50, absent=70)
    """
    _check(steps, sampling_rate, noise_multiplier, present, absent)
    if not isinstance(seed, np.random.Generator):
        _validate.integer(0, seed=seed)
    generator = np.random.default_rng(seed)
    planted = generator.binomial(steps, sampling_rate, size=present) / np.sqrt(steps)
    return CanaryScores.from_groups(
        present=planted + noise_multiplier * generator.standard_normal(present),
        absent=noise_multiplier * generator.standard_normal(absent),
        steps=steps,
        sampling_rate=sampling_rate,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        background="known",
    )


def _check(
    steps: int, sampling_rate: float, noise_multiplier: float, present: int, absent: int
) -> None:
    _validate.count(steps=steps)
    _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    check_canaries(present, absent)


def check_canaries(present: int, absent: int) -> None:
    """Refuse numbers of canaries that no simulation has memory for."""
    _validate.count(1, maximum=_MOST_CANARIES, present=present)
    _validate.count(2, maximum=_MOST_CANARIES, absent=absent)


def check_work(steps: int, numbers: int, name: str) -> None:
    """Refuse runs that would take hours to simulate."""
    hint = "Simulate a shorter or a smaller run; simulate_scores draws the scores alone."
    _validate.count(maximum=_MOST_STEPS, hint=hint, steps=steps)
    _validate.count(maximum=_MOST_NUMBERS, hint=hint, **{f"steps * {name}": steps * numbers})


def simulate_dpftrl(
    *,
    steps: int,
    noise_multiplier: float,
    present: int,
    absent: int,
    seed: int | None = None,
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
        seed: Root of every random choice; from the operating system if not given.
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
    broken = find_fault(fault, TREE_FAULTS)
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
