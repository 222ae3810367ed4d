"""Runs that leak, each by a fault of its own, over every kind of data that ``audit`` takes.

The simulators are plain arrays, written apart from `askgauss.simulation` and without a look at the
checks: a run draws its noise and its coins, a fault changes what was released, and a recorder reads
it. Every run claims what the same run without the fault keeps exactly, so the faultless ones are
correct runs as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import askgauss as ag
from askgauss import accounting
from askgauss.mechanisms.decorrelate import NodeSums, released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.scores import CanaryScores

DELTA = 1e-5

Array = NDArray[np.float64]
_PLAN = TreePlan(steps=64)


@dataclass
class Steps:
    """What a run of DP-SGD is about to release at its canaries: a row a step, a column a canary.

    Attributes:
        generator: For the fault's own coins.
        noise: The noise, in clip norms.
        planted: Who is planted.
        sigma: The noise multiplier that is claimed.
        contribution: What a planted canary adds.
    """

    generator: np.random.Generator
    noise: Array
    planted: NDArray[np.bool_]
    sigma: float
    contribution: Array

    @property
    def released(self) -> Array:
        return self.noise + np.where(self.planted, self.contribution, 0.0)

    @property
    def shape(self) -> tuple[int, int]:
        steps, size = self.noise.shape
        return steps, size


@dataclass(frozen=True)
class StepRun:
    """DP-SGD on canaries alone, read by a `Recorder`.

    Attributes:
        steps: Steps.
        present: Present canaries.
        absent: Absent canaries.
        sampling_rate: Sampling rate.
        sigma: Noise multiplier.
        own_sampler: Whether the training's sampler plants, and is declared to be Poisson.
        background: Standard deviation of what the other records add, which nobody takes off;
            None: it is known.
        records: Records in the training, where the sizes of its batches are recorded.
        fault: Changes what is released; None for a correct run.
        sampler: Draws the coins of the present canaries in all steps instead of Poisson coins.
        batches: Sizes of the batches instead of binomial ones.
    """

    steps: int = 400
    present: int = 500
    absent: int = 2000
    sampling_rate: float = 0.05
    sigma: float = 1.0
    own_sampler: bool = False
    background: float | None = None
    records: int | None = None
    fault: Callable[[Steps], Array] | None = None
    sampler: Callable[[np.random.Generator, int, int, float], NDArray[np.bool_]] | None = None
    batches: Callable[[np.random.Generator, int, float], int] | None = None

    @functools.cached_property
    def claim(self) -> ag.PrivacyClaim:
        run: dict[str, Any] = {
            "noise_multiplier": self.sigma,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
        }
        epsilon = accounting.dpsgd_epsilon(**run, delta=DELTA)
        return ag.PrivacyClaim(epsilon=epsilon, delta=DELTA, **run)

    @property
    def truth(self) -> float:
        return self.claim.epsilon

    @property
    def leaking(self) -> None:
        """Power is compared elsewhere."""

    def _canaries(self, seed: int) -> Any:
        return ag.DiracCanaries(
            present=self.present,
            absent=self.absent,
            dimension=self.present + self.absent + 64,
            seed=seed,
        )

    def draw(self, generator: np.random.Generator) -> Any:
        """One run."""
        canaries = self._canaries(int(generator.integers(1 << 60)))
        recorder = ag.Recorder(
            canaries,
            sampling_rate=None if self.own_sampler else self.sampling_rate,
            noise_multiplier=self.sigma,
            poisson=self.own_sampler,
            records=self.records,
        )
        size, places = canaries.size, np.flatnonzero(canaries.member)
        planted = np.zeros((self.steps, size), dtype=np.bool_)
        if self.sampler is not None:
            drawn = self.sampler(generator, self.steps, places.size, self.sampling_rate)
        else:
            drawn = generator.random((self.steps, places.size)) < self.sampling_rate
        if self.own_sampler:
            planted[:, places] = drawn
        else:
            # The recorder's coins do not depend on what it sees: a copy tells them beforehand.
            copy = ag.Recorder(canaries, sampling_rate=self.sampling_rate)
            for row in planted:
                row[copy.sample()] = True
                copy.observe(np.zeros(size))
        run = Steps(
            generator=generator,
            noise=self.sigma * generator.standard_normal((self.steps, size)),
            planted=planted,
            sigma=self.sigma,
            contribution=self._contribution(generator, size),
        )
        released = run.released if self.fault is None else self.fault(run)
        released = self._disturbed(generator, released)
        for step, row in enumerate(released):
            if not self.own_sampler:
                recorder.sample()
            recorder.observe(
                row,
                background=0.0 if self.background is None else None,
                planted=np.flatnonzero(planted[step]) if self.own_sampler else None,
                batch_size=self._batch(generator),
            )
        return self._transcript(recorder, run)

    def _contribution(self, generator: np.random.Generator, size: int) -> Array:
        return np.ones(size)

    def _disturbed(self, generator: np.random.Generator, released: Array) -> Array:
        if self.background is None:
            return released
        return released + self.background * generator.standard_normal(released.shape)

    def _batch(self, generator: np.random.Generator) -> int | None:
        if self.records is None:
            return None
        if self.batches is not None:
            return self.batches(generator, self.records, self.sampling_rate)
        return int(generator.binomial(self.records, self.sampling_rate))

    def _transcript(self, recorder: ag.Recorder, run: Steps) -> Any:
        return recorder.transcript()


@dataclass(frozen=True)
class ExampleRun(StepRun):
    """Records as canaries: their own clipped gradients, along directions that are not orthogonal.

    The training's sampler plants, what the other records add is not known along the canaries, and
    the noise is seen by itself at a few coordinates, as the Opacus integration sees it.

    Attributes:
        dimension: Parameters of the model.
        watched: Coordinates at which the noise is seen by itself.
    """

    steps: int = 300
    present: int = 60
    absent: int = 60
    sampling_rate: float = 0.1
    own_sampler: bool = True
    background: float | None = 0.3
    dimension: int = 2000
    watched: int = 64

    def _canaries(self, seed: int) -> Any:
        size = self.present + self.absent
        return ag.ExampleCanaries(
            np.eye(size, dtype=np.float32), np.arange(size) % 2, present=self.present, seed=seed
        )

    def _contribution(self, generator: np.random.Generator, size: int) -> Array:
        return generator.uniform(0.7, 1.0, size)

    def draw(self, generator: np.random.Generator) -> Any:
        """One run: the fault sees the noise at every parameter, not only at the canaries."""
        canaries = self._canaries(int(generator.integers(1 << 60)))
        recorder = ag.Recorder(canaries, noise_multiplier=self.sigma, poisson=True)
        size, places = canaries.size, np.flatnonzero(canaries.member)
        planted = np.zeros((self.steps, size), dtype=np.bool_)
        planted[:, places] = generator.random((self.steps, places.size)) < self.sampling_rate
        directions = generator.standard_normal((size, self.dimension))
        directions += 0.3 * generator.standard_normal(self.dimension)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        run = Steps(
            generator=generator,
            noise=self.sigma * generator.standard_normal((self.steps, self.dimension)),
            planted=planted,
            sigma=self.sigma,
            contribution=self._contribution(generator, size),
        )
        noise = run.noise if self.fault is None else self.fault(run)
        added = np.where(planted, run.contribution, 0.0) @ directions
        released = self._disturbed(generator, added + noise) @ directions.T
        for row, who in zip(released, planted, strict=True):
            recorder.observe(row, planted=np.flatnonzero(who))
        transcript = recorder.transcript()
        facts = replace(
            transcript.facts,
            watch_background="known",
            exercised=("sampler", "gradient", "clipping", "sum", "noise", "reduction"),
            contribution=float(run.contribution.mean()),
            tensors=("weights",),
        )
        return replace(
            transcript,
            watch_values=noise[:, : self.watched].copy(),
            watch_tensor=np.zeros(self.watched, dtype=np.int64),
            facts=facts,
        )


@dataclass(frozen=True)
class TreeRun:
    """A tree mechanism on canaries alone, read by a `LinearRecorder`.

    Attributes:
        plan: The mechanism.
        present: Present canaries.
        absent: Absent canaries.
        epsilon: What it claims.
        fault: The noise of a node from a function that gives the right one; None for a correct run.
        contribution: What a canary adds to a leaf.
        delta: At this delta.
        leak: The true epsilon over the claim.
    """

    plan: TreePlan = _PLAN
    present: int = 200
    absent: int = 600
    epsilon: float = 4.0
    fault: Callable[[Callable[..., Array], int, int, int], Array] | None = None
    contribution: Callable[[int], float] | None = None
    delta: float = DELTA
    leak: float = 1.0

    @functools.cached_property
    def sigma(self) -> float:
        """The noise of a node that is claimed."""
        return self._sigma(self.epsilon)

    def _sigma(self, epsilon: float) -> float:
        return _node_noise(epsilon, self.delta, self.plan.steps, self.plan.restart_every)

    @property
    def claim(self) -> ag.PrivacyClaim:
        return ag.PrivacyClaim(epsilon=self.epsilon, delta=self.delta, noise_multiplier=self.sigma)

    @property
    def truth(self) -> float:
        return self.epsilon

    @property
    def leaking(self) -> TreeRun:
        return replace(self, leak=1.25)

    def draw(self, generator: np.random.Generator) -> Any:
        """One run."""
        size = self.present + self.absent
        canaries = ag.DiracCanaries(
            present=self.present,
            absent=self.absent,
            dimension=size,
            seed=int(generator.integers(1 << 60)),
        )
        recorder = ag.LinearRecorder(canaries, self.plan, noise_multiplier=self.sigma)
        root = int(generator.integers(1 << 60))

        sigma = self._sigma(self.leak * self.epsilon)

        @functools.cache
        def right(*node: int) -> Array:
            return sigma * np.random.default_rng([root, *node]).standard_normal(size)

        def noise(*node: int) -> Array:
            return right(*node) if self.fault is None else self.fault(right, *node)

        sums, clean = NodeSums(self.plan), np.zeros(size)
        for step in range(self.plan.steps):
            leaf = np.zeros(size)
            leaf[recorder.sample()] = 1.0 if self.contribution is None else self.contribution(step)
            clean += leaf
            if self.plan.release == "nodes":
                nodes = zip(sums.push(leaf), released_nodes(self.plan, step), strict=True)
                released = np.array([total + noise(*node) for total, node in nodes])
            else:
                here, count = divmod(step, self.plan.period)
                released = clean + self._before(noise, here)
                released += _prefix(noise, here, count + 1)
            recorder.observe(released, background=np.zeros_like(released))
        return recorder.transcript()

    def _before(self, noise: Callable[..., Array], here: int) -> Array:
        """The noise of the trees that are left: of their last prefixes."""
        total = np.zeros(self.present + self.absent)
        for number in range(here):
            total += _prefix(noise, number, self.plan.period)
        return total


@functools.cache
def _node_noise(epsilon: float, delta: float, steps: int, restart_every: int | None) -> float:
    return TreePlan(steps=steps, restart_every=restart_every).noise_multiplier(
        epsilon=epsilon, delta=delta
    )


def _prefix(noise: Callable[..., Array], number: int, leaves: int) -> Array:
    """The noise of the first so many leaves of a plain tree: one node for each bit."""
    first, total = 0, 0.0
    for level in reversed(range(leaves.bit_length())):
        if leaves >> level & 1:
            total = total + noise(number, level, first >> level)
            first += 1 << level
    return np.asarray(total)


@dataclass(frozen=True)
class ScoreRun:
    """Scores of DP-SGD, made from counts and noise.

    Attributes:
        steps: Steps.
        present: Present canaries.
        absent: Absent canaries.
        sampling_rate: Sampling rate.
        epsilon: What it claims.
        told: Whether the noise multiplier is said as well.
        fault: Changes the inclusions of the present canaries and the noise of all, present first.
    """

    steps: int = 1000
    present: int = 2000
    absent: int = 2000
    sampling_rate: float = 0.05
    epsilon: float = 4.0
    told: bool = True
    fault: Callable[[np.random.Generator, Array, Array], tuple[Array, Array]] | None = None

    @functools.cached_property
    def sigma(self) -> float:
        return 1.0 / accounting.dpsgd_signal_to_noise(
            epsilon=self.epsilon,
            delta=DELTA,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
        )

    @property
    def claim(self) -> ag.PrivacyClaim:
        return ag.PrivacyClaim(
            epsilon=self.epsilon,
            delta=DELTA,
            noise_multiplier=self.sigma if self.told else None,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
        )

    def draw(self, generator: np.random.Generator) -> CanaryScores:
        """One run."""
        counts = generator.binomial(self.steps, self.sampling_rate, self.present).astype(float)
        noise = self.sigma * generator.standard_normal(self.present + self.absent)
        if self.fault is not None:
            counts, noise = self.fault(generator, counts, noise)
        present = counts / math.sqrt(self.steps) + noise[: self.present]
        return CanaryScores.from_groups(
            present=present,
            absent=noise[self.present :],
            steps=self.steps,
            sampling_rate=self.sampling_rate,
            clip_norm=1.0,
            noise_multiplier=self.sigma if self.told else None,
        )


# Faults of the noise of DP-SGD.


def _noise(change: Callable[[Steps], Array]) -> Callable[[Steps], Array]:
    """A fault that changes the noise alone."""

    def fault(run: Steps) -> Array:
        run.noise = change(run)
        return run.released

    return fault


def _some_coordinates_never_noised(run: Steps) -> Array:
    size = run.noise.shape[1]
    bare = run.generator.choice(size, max(1, round(0.004 * size)), replace=False)
    run.noise[:, bare] = 0.0
    return run.noise


def _shuffled(run: Steps) -> Array:
    return np.array([run.generator.permutation(run.noise[0]) for _ in run.noise])


def _flipped(run: Steps) -> Array:
    for step in range(13, run.noise.shape[0]):
        signs = run.generator.choice([-1.0, 1.0], run.noise.shape[1])
        run.noise[step] = signs * run.noise[step - 13]
    return run.noise


def _none_where_planted(run: Steps) -> Array:
    return np.where(run.planted, 0.0, run.noise)


def _less_where_planted(run: Steps) -> Array:
    return np.where(run.planted, 0.7, 1.0) * run.noise


def _last_takes_all_back(run: Steps) -> Array:
    run.noise[-1] = -run.noise[:-1].sum(axis=0) / math.sqrt(len(run.noise) - 1)
    return run.noise


def _pairs_that_cancel(run: Steps) -> Array:
    """Every noise is taken back a hundred steps later."""
    for start in range(0, len(run.noise) - 100, 200):
        run.noise[start + 100 : start + 200] = -run.noise[start : start + 100]
    return run.noise


def _faintly_negative_over_many_lags(run: Steps) -> Array:
    weights = np.full(40, -0.012)
    weights[0] = 0.0
    fresh, noise = run.noise, run.noise.copy()
    for step in range(1, len(noise)):
        past = noise[max(0, step - 40) : step][::-1]
        noise[step] += weights[: len(past)] @ past
    return noise * (fresh.std() / noise.std())


def _alternating(run: Steps) -> Array:
    """Anti-correlated from step to step, with the right variance."""
    noise = run.noise
    for step in range(1, len(noise)):
        noise[step] = -0.3 * noise[step - 1] + math.sqrt(1.0 - 0.09) * noise[step]
    return noise


def _pool_of_vectors(run: Steps) -> Array:
    return run.noise[run.generator.integers(0, 64, len(run.noise))]


def _period(run: Steps) -> Array:
    return run.noise[np.arange(len(run.noise)) % 97]


def _overlapping_counters(run: Steps) -> Array:
    """A counter-based generator whose steps are half as far apart as they are long."""
    steps, size = run.shape
    stride = size // 2
    stream = run.sigma * run.generator.standard_normal(stride * steps + size)
    return np.array([stream[step * stride :][:size] for step in range(steps)])


def _shared_by_two(run: Steps) -> Array:
    size = run.noise.shape[1]
    places = run.generator.permutation(size)
    half = size // 2
    run.noise[:, places[half : 2 * half]] = run.noise[:, places[:half]]
    return run.noise


def _low_rank(run: Steps) -> Array:
    steps, size = run.shape
    mixing = run.generator.standard_normal((50, size))
    mixing /= np.linalg.norm(mixing, axis=0)
    return run.sigma * run.generator.standard_normal((steps, 50)) @ mixing


def _opposite_where_opposite(run: Steps) -> Array:
    """Mirrored: the second half of the coordinates has the first half's noise, negated."""
    half = run.noise.shape[1] // 2
    run.noise[:, half : 2 * half] = -run.noise[:, :half]
    return run.noise


def _centred(run: Steps) -> Array:
    return run.noise - run.noise.mean(axis=1, keepdims=True)


def _clamped(run: Steps) -> Array:
    return np.clip(run.noise, -2.0 * run.sigma, 2.0 * run.sigma)


def _student(run: Steps) -> Array:
    return run.sigma * run.generator.standard_t(4, run.shape) / math.sqrt(2.0)


def _twelve_uniforms(run: Steps) -> Array:
    total = np.full(run.shape, -6.0)
    for _ in range(12):
        total += run.generator.random(run.shape)
    return run.sigma * total


def _one_sided(run: Steps) -> Array:
    """Absolute values, brought back to the right mean and variance."""
    return (np.abs(run.noise) - run.sigma * math.sqrt(2.0 / math.pi)) / math.sqrt(1 - 2 / math.pi)


def _rare_failures(run: Steps) -> Array:
    """One value in a thousand gets no noise, wherever it is."""
    return np.where(run.generator.random(run.shape) < 0.001, 0.0, run.noise)


def _steps_without(run: Steps) -> Array:
    run.noise[run.generator.choice(len(run.noise), 4, replace=False)] = 0.0
    return run.noise


def _every_second_step(run: Steps) -> Array:
    """All of the variance in the even steps."""
    run.noise[0::2] *= math.sqrt(2.0)
    run.noise[1::2] = 0.0
    return run.noise


def _weak_at_the_end(run: Steps) -> Array:
    run.noise[-20:] *= 0.5
    return run.noise


def _uneven_coordinates(run: Steps) -> Array:
    """Half of the coordinates get half the noise, the others enough more to make up for it."""
    weak = run.generator.random(run.noise.shape[1]) < 0.5
    return run.noise * np.where(weak, 0.5, math.sqrt(1.75))


def _a_little_short(run: Steps) -> Array:
    return 0.93 * run.noise


def _coarse_noise(run: Steps) -> Array:
    """The noise lies on a lattice that the canaries are not on."""
    return 0.3 * np.rint(run.noise / 0.3)


def _mixture(run: Steps) -> Array:
    """Right variance: one value in twenty is four times as noisy, the others make up for it."""
    wide = run.generator.random(run.shape) < 0.05
    return run.noise * np.where(wide, 4.0, math.sqrt((1 - 0.05 * 16) / 0.95))


# Faults of what a canary adds.


def _rarely_unclipped(run: Steps) -> Array:
    often = run.generator.random(run.shape) < 0.001
    return run.noise + np.where(run.planted, np.where(often, 10.0, 1.0), 0.0)


def _one_record_three_times(run: Steps) -> Array:
    run.contribution[np.flatnonzero(run.planted.any(axis=0))[3]] = 3.0
    return run.released


def _a_few_unclipped(run: Steps) -> Array:
    run.contribution = np.where(run.generator.random(run.noise.shape[1]) < 0.05, 3.0, 1.0)
    return run.released


def _carried_over(run: Steps) -> Array:
    """Half of what was added comes again in the next step: momentum before the noise."""
    released = run.released
    released[1:] += 0.5 * run.planted[:-1]
    return released


def _comes_back_much_later(run: Steps) -> Array:
    released = run.released
    released[50:] += run.planted[:-50]
    return released


def _never_leaves(run: Steps) -> Array:
    """Once drawn, a record stays in every batch."""
    return run.noise + np.maximum.accumulate(run.planted, axis=0)


def _larger_at_the_end(run: Steps) -> Array:
    """The clip norm is not applied any more in the last tenth of the steps."""
    late = np.arange(len(run.noise)) >= 0.9 * len(run.noise)
    return run.noise + run.planted * np.where(late, 3.0, 1.0)[:, None]


# Samplers that are not Poisson, though declared so.


def _cyclic(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    own = np.arange(steps)[:, None] % 4 == generator.integers(0, 4, size)
    return np.asarray(own & (generator.random((steps, size)) < 4 * rate))


def _one_size(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    drawn = np.zeros((steps, size), dtype=np.bool_)
    for row in drawn:
        row[generator.choice(size, round(rate * size), replace=False)] = True
    return drawn


def _favourites(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    rates = np.where(generator.random(size) < 0.2, 3.0, 0.5) * rate
    return np.asarray(generator.random((steps, size)) < rates)


def _runs_of_four(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    starts = generator.random((-(-steps // 4), size)) < rate
    return np.repeat(starts, 4, axis=0)[:steps]


def _double_rate(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    return np.asarray(generator.random((steps, size)) < 1.5 * rate)


def _same_again(
    generator: np.random.Generator, steps: int, size: int, rate: float
) -> NDArray[np.bool_]:
    """The generator of the coins is seeded anew after every twenty steps."""
    coins = generator.random((20, size)) < rate
    return np.asarray(coins[np.arange(steps) % 20])


# Faults of trees.


def _weak_leaf(right: Callable[..., Array], *node: int) -> Array:
    return right(*node) * (0.01 if node == (0, 0, 37) else 1.0)


def _weak_level(right: Callable[..., Array], *node: int) -> Array:
    return right(*node) * (0.7 if node[1] == 0 else 1.1)


def _spine(right: Callable[..., Array], number: int, level: int, index: int) -> Array:
    """The first node of every level has the noise of the first leaf."""
    return right(number, 0 if index == 0 else level, index)


def _children_decide(right: Callable[..., Array], number: int, level: int, index: int) -> Array:
    """A node's noise is made from that of its children, with the right variance."""
    if level == 0:
        return right(number, 0, index)
    left, other = (_children_decide(right, number, level - 1, 2 * index + side) for side in (0, 1))
    return (left + other) / math.sqrt(2.0)


def _second_half_again(right: Callable[..., Array], number: int, level: int, index: int) -> Array:
    half = 32 >> level
    return right(number, level, index % half if half else index)


def _bare_coordinate(right: Callable[..., Array], *node: int) -> Array:
    noise = right(*node).copy()
    if node[1] == 0:
        noise[::50] = 0.0
    return noise


def _clamped_nodes(right: Callable[..., Array], *node: int) -> Array:
    noise = right(*node)
    limit = 1.8 * noise.std()
    return np.clip(noise, -limit, limit)


@functools.cache
def _released_before(steps: int) -> dict[Any, Any]:
    plan = TreePlan(steps=steps)
    order = [node for step in range(steps) for node in released_nodes(plan, step)]
    return dict(zip(order[1:], order, strict=False))


def _overlapping_nodes(right: Callable[..., Array], *node: int) -> Array:
    """The first half of a node's numbers is the second half of those of the node before it."""
    before = _released_before(512).get(node, (1, 0, 0))
    half = right(*node).size // 2
    return np.concatenate([right(*before)[:half], right(*node)[:half]])


def _half_of_the_trees(right: Callable[..., Array], number: int, level: int, index: int) -> Array:
    return right(number, level, index) * (0.6 if number == 1 else 1.0)


def _double_at_the_end(step: int) -> float:
    return 2.0 if step >= 56 else 1.0


# Faults of scores.


def _less_noise(generator: np.random.Generator, counts: Array, noise: Array) -> tuple[Array, Array]:
    return counts, 0.7 * noise


def _twice_as_often(
    generator: np.random.Generator, counts: Array, noise: Array
) -> tuple[Array, Array]:
    return counts + generator.permutation(counts), noise


def _outliers(generator: np.random.Generator, counts: Array, noise: Array) -> tuple[Array, Array]:
    return counts * np.where(generator.random(counts.size) < 0.01, 6.0, 1.0), noise


def _bare_scores(
    generator: np.random.Generator, counts: Array, noise: Array
) -> tuple[Array, Array]:
    return counts, np.where(generator.random(noise.size) < 0.01, 0.0, noise)


def _two_kinds(generator: np.random.Generator, counts: Array, noise: Array) -> tuple[Array, Array]:
    """Half of the canaries get a third of the noise."""
    return counts, noise * np.where(generator.random(noise.size) < 0.5, 0.33, 1.37)


def _twins(generator: np.random.Generator, counts: Array, noise: Array) -> tuple[Array, Array]:
    """Any two canaries have one noise; where one is present and one is not, nothing shows it."""
    half = noise.size // 2
    return counts, generator.permutation(np.concatenate([noise[:half], noise[:half]]))


@dataclass(frozen=True)
class Leak:
    """A run that leaks more than it claims."""

    name: str
    run: Any


_STEPS = StepRun()
_SAMPLED = StepRun(own_sampler=True, present=400, absent=400)
_EXAMPLES = ExampleRun()
_TREE = TreeRun()
_SCORES = ScoreRun()


def _fixed_batch(generator: np.random.Generator, records: int, rate: float) -> int:
    return round(records * rate)


def _larger_batch(generator: np.random.Generator, records: int, rate: float) -> int:
    return int(generator.binomial(records, 1.3 * rate))


_NOISE = {
    "some coordinates are never noised": _some_coordinates_never_noised,
    "no noise where a canary is planted": _none_where_planted,
    "less noise where a canary is planted": _less_where_planted,
    "the last noise takes back all others": _last_takes_all_back,
    "every noise is taken back 100 steps later": _pairs_that_cancel,
    "faintly negative over 40 lags": _faintly_negative_over_many_lags,
    "anti-correlated steps": _alternating,
    "a pool of 64 noise vectors": _pool_of_vectors,
    "one noise vector, shuffled in every step": _shuffled,
    "noise of 13 steps before, with new signs": _flipped,
    "noise with a period of 97": _period,
    "overlapping counters": _overlapping_counters,
    "two coordinates share their noise": _shared_by_two,
    "noise of rank 50": _low_rank,
    "mirrored coordinates": _opposite_where_opposite,
    "noise without its mean": _centred,
    "noise clamped at two deviations": _clamped,
    "Student noise": _student,
    "twelve uniforms": _twelve_uniforms,
    "one-sided noise": _one_sided,
    "one value in a thousand without noise": _rare_failures,
    "four steps without noise": _steps_without,
    "all variance in every second step": _every_second_step,
    "half noise in the last steps": _weak_at_the_end,
    "uneven coordinates, right on average": _uneven_coordinates,
    "noise times .93": _a_little_short,
    "noise on a lattice of its own": _coarse_noise,
    "a mixture of two noises": _mixture,
}
_ADDED = {
    "one planting in a thousand unclipped": _rarely_unclipped,
    "a few records unclipped": _a_few_unclipped,
    "one record of all counts three times": _one_record_three_times,
    "half of it again in the next step": _carried_over,
    "all of it again 50 steps later": _comes_back_much_later,
    "a record never leaves": _never_leaves,
    "clipping ends before the run does": _larger_at_the_end,
}
_SAMPLERS = {
    "cyclic for Poisson": _cyclic,
    "batches of one size": _one_size,
    "favourite records": _favourites,
    "runs of four steps": _runs_of_four,
    "half as often again": _double_rate,
    "the same coins every 20 steps": _same_again,
}
_EXAMPLE_NOISE: dict[str, Callable[[Steps], Array]] = {
    "no noise": lambda run: 0.0 * run.noise,
    "noise times .01": lambda run: 0.01 * run.noise,
    "noise times .5": lambda run: 0.5 * run.noise,
    "noise times .85": lambda run: 0.85 * run.noise,
    "the last noise takes back all others": _last_takes_all_back,
    "steps without noise": _steps_without,
}
_TREE_NOISE = {
    "one leaf with a hundredth of its noise": _weak_leaf,
    "leaves with .7 of their noise": _weak_level,
    "the first node of every level shares its noise": _spine,
    "parents made from their children": _children_decide,
    "the second half has the first half's noise": _second_half_again,
    "bare coordinates at the leaves": _bare_coordinate,
    "clamped nodes": _clamped_nodes,
}
_SCORE_FAULTS = {
    "noise times .7": _less_noise,
    "twice as often": _twice_as_often,
    "one in a hundred unclipped": _outliers,
    "one in a hundred without noise": _bare_scores,
    "half with a third of the noise": _two_kinds,
    "two canaries share their noise": _twins,
}

LEAKS: tuple[Leak, ...] = (
    *(
        Leak(f"transcript: {name}", replace(_STEPS, fault=_noise(fault)))
        for name, fault in _NOISE.items()
    ),
    *(Leak(f"transcript: {name}", replace(_STEPS, fault=fault)) for name, fault in _ADDED.items()),
    *(
        Leak(f"sampler: {name}", replace(_SAMPLED, sampler=sampler))
        for name, sampler in _SAMPLERS.items()
    ),
    Leak("batches: all of one size", replace(_STEPS, records=20000, batches=_fixed_batch)),
    Leak(
        "batches: larger than the rate says", replace(_STEPS, records=20000, batches=_larger_batch)
    ),
    *(
        Leak(
            f"unknown background: {name}",
            replace(_STEPS, background=0.2, fault=_noise(_EXAMPLE_NOISE[name])),
        )
        for name in ("no noise", "noise times .5")
    ),
    *(
        Leak(f"examples: {name}", replace(_EXAMPLES, fault=fault))
        for name, fault in _EXAMPLE_NOISE.items()
    ),
    *(Leak(f"tree: {name}", replace(_TREE, fault=fault)) for name, fault in _TREE_NOISE.items()),
    Leak(
        "tree: twice the clip norm in the last leaves",
        replace(_TREE, present=800, absent=400, contribution=_double_at_the_end),
    ),
    Leak(
        "tree: overlapping counters",
        TreeRun(plan=TreePlan(steps=512), present=100, absent=700, fault=_overlapping_nodes),
    ),
    Leak(
        "tree: a tree that restarts draws the first one's noise again",
        replace(
            _TREE,
            plan=TreePlan(steps=64, restart_every=16),
            fault=lambda right, number, level, index: right(0, level, index),
        ),
    ),
    Leak(
        "tree: one of four trees with .6 of its noise",
        replace(_TREE, plan=TreePlan(steps=64, restart_every=16), fault=_half_of_the_trees),
    ),
    Leak(
        "prefixes: the second half has the first half's noise",
        replace(_TREE, plan=TreePlan(steps=64, release="prefixes"), fault=_second_half_again),
    ),
    Leak(
        "prefixes: leaves with .7 of their noise",
        replace(_TREE, plan=TreePlan(steps=64, release="prefixes"), fault=_weak_level),
    ),
    *(
        Leak(f"scores: {name}", replace(_SCORES, fault=fault))
        for name, fault in _SCORE_FAULTS.items()
    ),
)
