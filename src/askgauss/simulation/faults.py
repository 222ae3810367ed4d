"""Faults of private training that have happened, or nearly: each replaces one part of a mechanism.

The statistic is never touched: a fault replaces one field of `DPSGDMechanism`, or the noise of a
tree's nodes, and the run it gives is recorded and audited like any other. A new fault is one
decorated function here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import Stream, random_stream
from askgauss.results import Verdict
from askgauss.simulation.mechanism import (
    FAULTS,
    TREE_FAULTS,
    Adding,
    Fault,
    Gradients,
    Invisible,
    NodeNoise,
    SimulatedRun,
    TreeFault,
    gaussian,
    one_direction_each,
    per_record,
    poisson,
)

__all__ = ["FAULTS", "INVISIBLE", "TREE_FAULTS", "Fault", "Invisible", "TreeFault"]


# ------------------------------------------------------------------ plain in the sums of a run


@dataclass(frozen=True, slots=True)
class _Scaled:
    factor: float

    def __call__(self, run: SimulatedRun) -> NDArray[np.float64]:
        return self.factor * gaussian(run)


Fault("noise", "no-noise", "No noise is added.", finding="noise scale", also=("noise",))(
    _Scaled(0.0)
)
Fault("noise", "half-noise", "The noise has half its scale.", finding="noise scale")(_Scaled(0.5))
Fault("noise", "noise-75", "The noise has 75 % of its scale.", finding="noise scale")(_Scaled(0.75))
Fault("noise", "noise-90", "The noise has 90 % of its scale.", finding="noise scale")(_Scaled(0.9))
Fault(
    "reduction",
    "noise-per-rank",
    "Each of four ranks adds the whole noise.",
    finding="noise scale",
    verdict=Verdict.CONSISTENT,
)(Adding(parts=4, noise=1.0))
Fault(
    "reduction",
    "noise-divided-by-ranks",
    "Each of four ranks adds a quarter of the noise, where half is right.",
    finding="noise scale",
)(Adding(parts=4, noise=0.25))
Fault(
    "accumulation",
    "noise-split-over-accumulation",
    "Each of four accumulation steps adds a quarter of the noise.",
    finding="noise scale",
)(Adding(parts=4, noise=0.25))
Fault(
    "accumulation",
    "noise-at-every-accumulation-step",
    "Each of four accumulation steps adds the whole noise.",
    finding="noise scale",
    verdict=Verdict.CONSISTENT,
)(Adding(parts=4, noise=1.0))


@Fault(
    "noise",
    "sigma-without-clip-norm",
    "The noise is scaled by the noise multiplier, not by it times the clip norm.",
    finding="noise scale",
    clip_norm=2.0,
)
def _without_clip_norm(run: SimulatedRun) -> NDArray[np.float64]:
    return run.noise_multiplier * run.noise.standard_normal(run.canaries.total_dimension)


@Fault(
    "noise",
    "fading-noise",
    "The noise falls from 110 % to 90 % of its scale along the run.",
    finding="noise drift",
)
def _fading(run: SimulatedRun) -> NDArray[np.float64]:
    return gaussian(run) * (1.1 - 0.2 * run.step / run.steps)


@dataclass(frozen=True, slots=True)
class _LastTensor:
    factor: float

    def __call__(self, run: SimulatedRun) -> NDArray[np.float64]:
        noise = gaussian(run)
        noise[-run.canaries.tensor_sizes[-1] :] *= self.factor
        return noise


Fault(
    "noise",
    "un-noised-tensor",
    "One small tensor is left without noise.",
    finding="noise by tensor",
    several_tensors=True,
)(_LastTensor(0.0))
Fault(
    "noise",
    "half-noise-in-one-tensor",
    "One small tensor gets half the noise.",
    finding="noise by tensor",
    several_tensors=True,
)(_LastTensor(0.5))


@Fault(
    "noise",
    "same-noise-every-step",
    "The generator is seeded anew in every step.",
    finding="repeated noise",
)
def _same_noise(run: SimulatedRun) -> NDArray[np.float64]:
    _restart_generator(run)
    return gaussian(run)


@Fault(
    "resume",
    "reseeded-on-resume",
    "A checkpoint does not hold the generator: after it, the noise starts over.",
    finding="repeated noise",
)
def _restart_generator(run: SimulatedRun) -> None:
    run.noise = random_stream(run.canaries.root_seed, Stream.NOISE)


@Fault(
    "noise",
    "one-key-for-equal-tensors",
    "Tensors of one size get the same noise, from one random key.",
    finding="shared noise",
    several_tensors=True,
)
def _one_key(run: SimulatedRun) -> NDArray[np.float64]:
    sizes = run.canaries.tensor_sizes
    drawn = {size: run.noise.standard_normal(size) for size in dict.fromkeys(sizes)}
    return run.noise_scale * np.concatenate([drawn[size] for size in sizes])


@Fault(
    "noise",
    "uniform-noise",
    "The noise is uniform, of the right variance.",
    finding="noise shape",
    verdict=Verdict.INVALID,
)
def _uniform(run: SimulatedRun) -> NDArray[np.float64]:
    reach = np.sqrt(3.0) * run.noise_scale
    return run.noise.uniform(-reach, reach, run.canaries.total_dimension)


@Fault(
    "noise",
    "laplace-noise",
    "The noise is Laplace noise, of the right variance.",
    finding="noise shape",
    verdict=Verdict.INVALID,
)
def _laplace(run: SimulatedRun) -> NDArray[np.float64]:
    scale = run.noise_scale / np.sqrt(2.0)
    return run.noise.laplace(0.0, scale, run.canaries.total_dimension)


@Fault("noise", "bf16-noise", "The noise is drawn in bfloat16.", finding="noise precision")
def _brain_float(run: SimulatedRun) -> NDArray[np.float64]:
    bits = gaussian(run).astype(np.float32).view(np.uint32)
    # Round to nearest, ties to even, at the sixteenth bit.
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


@Fault(
    "noise",
    "nan-in-a-step",
    "One step releases a nan.",
    finding="finite gradients",
    verdict=Verdict.INVALID,
)
def _overflowing(run: SimulatedRun) -> NDArray[np.float64]:
    noise = gaussian(run)
    if run.step == run.steps // 2:
        noise[run.canaries.coordinates.ravel()[0]] = np.nan
    return noise


@Fault(
    "noise",
    "no-noise-on-empty-batches",
    "A step whose batch is empty is released without noise.",
    finding="steps without noise",
    canaries="data path",
    expected_batch=1.0,
)
def _none_if_empty(run: SimulatedRun) -> NDArray[np.float64]:
    return gaussian(run) * float(run.batch.size > 0)


@Fault(
    "sampler",
    "skipped-empty-batches",
    "A step whose batch is empty is not taken: every step has somebody in it.",
    finding="sampling rate",
    expected_batch=1.0,
)
def _never_empty(run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
    return (batch for batch in poisson(run, steps) if batch.size)


@Fault(
    "sampler",
    "sampling-rate-doubled",
    "The sampler takes twice the rate that is accounted for.",
    finding="sampling rate",
)
def _doubled(run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
    return poisson(replace(run, sampling_rate=min(1.0, 2.0 * run.sampling_rate)), steps)


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Passes over the records in batches of one size."""

    reshuffle: bool

    def __call__(self, run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
        records, batches = run.sampler.permutation(run.records), round(1.0 / run.sampling_rate)
        for step in range(steps):
            if self.reshuffle and step % batches == 0:
                records = run.sampler.permutation(records)
            yield records[step % batches :: batches]


Fault(
    "sampler",
    "shuffle-for-poisson",
    "Shuffled epochs are accounted for as Poisson sampling.",
    finding="sampling scheme",
    verdict=Verdict.INVALID,
)(_Epochs(reshuffle=True))
Fault(
    "sampler",
    "same-batches-every-epoch",
    "The data are split into batches once, and gone through again and again.",
    finding="sampling of pairs",
    also=("sampling scheme",),
    verdict=Verdict.INVALID,
)(_Epochs(reshuffle=False))


@Fault(
    "sampler",
    "one-coin-for-four-records",
    "Every record has the right rate, but four of them share a coin.",
    finding="sampling scheme",
    verdict=Verdict.INVALID,
)
def _shared_draws(run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
    records = run.records
    for _ in range(steps):
        heads = run.sampler.random(-(-records.size // 4)) < run.sampling_rate
        yield records[np.repeat(heads, 4)[: records.size]]


@Fault("clip", "clipping-off", "Gradients are not clipped.", finding="contribution")
def _unclipped(run: SimulatedRun, gradients: Gradients) -> Gradients:
    return gradients


@Fault(
    "clip",
    "per-layer-clipping",
    "Each of four tensors is clipped to the whole clip norm.",
    finding="contribution",
    canaries="spread",
)
def _each_tensor(run: SimulatedRun, gradients: Gradients) -> Gradients:
    tensor, row = run.canaries.tensor_of(gradients.places), np.arange(len(gradients))[:, None]
    squares = np.zeros((len(gradients), len(run.canaries.tensor_sizes)))
    np.add.at(squares, (row, tensor), gradients.values**2)
    return gradients.scaled(np.minimum(1.0, run.clip_norm / np.sqrt(squares)[row, tensor]))


def _together(
    run: SimulatedRun, gradients: Gradients, group: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What clipping the mean of each group scales its records by."""
    # No two records share a coordinate, so that squares add up.
    norms = np.sqrt(np.bincount(group, gradients.norms**2)) / np.bincount(group)
    return np.minimum(1.0, run.clip_norm / norms)


@Fault(
    "clip",
    "clip-on-batch-mean",
    "The mean of the batch is clipped, not every record.",
    finding="contribution",
)
def _batch_mean(run: SimulatedRun, gradients: Gradients) -> Gradients:
    group = np.zeros(len(gradients), dtype=np.int64)
    return gradients.scaled(_together(run, gradients, group)[group, None])


@Fault(
    "clip",
    "per-microbatch-clipping",
    "Means of four records are clipped, not every record.",
    finding="contribution",
    verdict=Verdict.INCONCLUSIVE,
)
def _microbatch_means(run: SimulatedRun, gradients: Gradients) -> Gradients:
    group = np.arange(len(gradients)) // 4
    factor = _together(run, gradients, group) / np.bincount(group)
    return gradients.scaled(factor[group, None])


@Fault(
    "gradient",
    "duplicated-example",
    "Every record is in its batch twice, as when two ranks see the same data.",
    finding="contribution",
)
def _twice(run: SimulatedRun, batch: NDArray[np.int64]) -> Gradients:
    return one_direction_each(run, np.repeat(batch, 2))


@Fault(
    "gradient",
    "accumulating-grad-sample",
    "Gradients of the step before are not cleared, and are added once more.",
    finding="carry-over",
    verdict=Verdict.INVALID,
)
def _with_the_last_batch(run: SimulatedRun, batch: NDArray[np.int64]) -> Gradients:
    return one_direction_each(run, np.concatenate([run.previous, batch]))


@Fault(
    "length",
    "more-steps-than-accounted",
    "The run takes a quarter more steps than are accounted for.",
    finding="step count",
)
def _a_quarter_more(steps: int) -> int:
    return steps + -(-steps // 4)


# ------------------------------------------------------- hidden in the sums of a run
# A few values, a few steps, or all a very little: the noise keeps its scale and its shape, the rate
# and the mean contribution are as accounted for.

_GROUPS = 4


@dataclass(frozen=True, slots=True)
class _Without:
    """No noise on every so many coordinates; the places may move by one with every step."""

    every: int
    moving: bool

    def __call__(self, run: SimulatedRun) -> NDArray[np.float64]:
        noise = gaussian(run)
        places = run.canaries.coordinates.reshape(run.canaries.size, -1)
        noise[places[(run.step if self.moving else 0) % self.every :: self.every]] = 0.0
        return noise


Fault(
    "noise",
    "coordinates-without-noise",
    "One coordinate of 250 never gets noise.",
    finding="noise by coordinate",
)(_Without(every=250, moving=False))
Fault(
    "noise",
    "values-without-noise",
    "One value of 150 gets no noise, another one in every step.",
    finding="values without noise",
)(_Without(every=150, moving=True))


@dataclass(frozen=True, slots=True)
class _WherePlanted:
    factor: float

    def __call__(self, run: SimulatedRun) -> NDArray[np.float64]:
        noise = gaussian(run)
        places = run.canaries.coordinates.reshape(run.canaries.size, -1)
        noise[places[run.batch]] *= self.factor
        return noise


Fault(
    "noise",
    "no-noise-where-planted",
    "Where there is a signal there is no noise.",
    finding="planted noise",
    also=("values without noise",),
)(_WherePlanted(0.0))
Fault(
    "noise",
    "less-noise-where-planted",
    "Where there is a signal the noise has 80 % of its scale.",
    finding="planted noise",
)(_WherePlanted(0.8))


@Fault(
    "noise",
    "noise-cut-off",
    "The noise is clipped at three standard deviations.",
    finding="noise extremes",
    also=("noise shape",),
    verdict=Verdict.INVALID,
)
def _cut_off(run: SimulatedRun) -> NDArray[np.float64]:
    return np.clip(gaussian(run), -3.0 * run.noise_scale, 3.0 * run.noise_scale)


@Fault(
    "noise",
    "noise-by-turns",
    "Every other step has 85 % of the noise, the others more.",
    finding="noise by step",
)
def _alternating(run: SimulatedRun) -> NDArray[np.float64]:
    return gaussian(run) * (0.85, math.sqrt(2.0 - 0.85**2))[run.step % 2]


@Fault(
    "noise",
    "noise-by-parity",
    "Every other coordinate has 85 % of the noise, the others more.",
    finding="noise by coordinate",
)
def _odd_coordinates(run: SimulatedRun) -> NDArray[np.float64]:
    noise = gaussian(run)
    noise[::2] *= 0.85
    noise[1::2] *= math.sqrt(2.0 - 0.85**2)
    return noise


@Fault(
    "noise",
    "noise-paid-back",
    "The last noise is minus the sum of all before, at the right scale.",
    finding="whole-run correlation",
)
def _paid_back(run: SimulatedRun) -> NDArray[np.float64]:
    if run.step < run.steps - 1:
        return gaussian(run)
    again = random_stream(run.canaries.root_seed, Stream.NOISE)
    size, before = run.canaries.total_dimension, max(run.steps - 1, 1)
    total = sum((again.standard_normal(size) for _ in range(before)), np.zeros(size))
    return -run.noise_scale / math.sqrt(before) * total


@Fault(
    "noise",
    "noise-pushed-back",
    "Every step takes off a fiftieth of the noise of 39 steps before.",
    finding="noise spectrum",
    also=("serial correlation", "whole-run correlation"),
    verdict=Verdict.INVALID,
)
def _pushed_back(run: SimulatedRun) -> NDArray[np.float64]:
    """Every step takes off a little of the last forty but one."""

    def fresh(step: int) -> NDArray[np.float64]:
        size = run.canaries.total_dimension
        return np.random.default_rng([run.canaries.root_seed, step]).standard_normal(size)

    earlier = range(max(run.step - 40, 0), max(run.step - 1, 0))
    share = 0.02
    noise = fresh(run.step) - share * sum((fresh(step) for step in earlier), np.zeros(1))
    return np.asarray(run.noise_scale / math.sqrt(1.0 + len(earlier) * share**2) * noise)


@Fault(
    "noise",
    "noise-with-an-offset",
    "A fiftieth of the noise's variance is one number for all coordinates.",
    finding="common noise",
    also=("shared noise",),
    verdict=Verdict.INVALID,
)
def _with_an_offset(run: SimulatedRun) -> NDArray[np.float64]:
    common = 0.15
    own = math.sqrt(1.0 - common**2) * gaussian(run)
    return own + common * run.noise_scale * float(run.noise.standard_normal())


@Fault(
    "noise",
    "noise-in-few-directions",
    "A tenth of the noise's variance lies in three directions.",
    finding="shared noise",
)
def _few_directions(run: SimulatedRun) -> NDArray[np.float64]:
    """A tenth of the variance lies in three directions that all coordinates share."""
    size = run.canaries.total_dimension
    directions = np.random.default_rng([run.canaries.root_seed, size]).choice(
        [-1.0, 1.0], (3, size)
    )
    common = run.noise.standard_normal(3) @ directions / math.sqrt(3.0)
    return np.asarray(math.sqrt(0.9) * gaussian(run) + math.sqrt(0.1) * run.noise_scale * common)


@Fault(
    "clip",
    "rarely-unclipped",
    "One planting of 200 adds ten clip norms.",
    finding="single plantings",
    also=("contribution",),
)
def _rarely_unclipped(run: SimulatedRun, gradients: Gradients) -> Gradients:
    factor = np.where((run.batch + run.step) % 200 == 0, 10.0, 1.0)
    return per_record(run, gradients).scaled(factor[:, None])


@Fault(
    "clip",
    "contribution-grows",
    "A record adds half a clip norm at first and one and a half at the end.",
    finding="even contribution",
    verdict=Verdict.INVALID,
)
def _ever_more(run: SimulatedRun, gradients: Gradients) -> Gradients:
    return per_record(run, gradients).scaled(np.array(0.5 + (run.step + 0.5) / run.steps))


@Fault(
    "sampler",
    "cyclic-for-poisson",
    "Records are drawn in every fourth step only, at four times the rate.",
    finding="sampling in time",
    verdict=Verdict.INVALID,
)
def _cyclic(run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
    records = run.records
    group = run.sampler.integers(0, _GROUPS, records.size)
    rate = min(_GROUPS * run.sampling_rate, 1.0)
    for step in range(steps):
        yield records[(group == step % _GROUPS) & (run.sampler.random(records.size) < rate)]


# -------------------------------------------------------------------------------- of trees


@TreeFault("tree-half-noise", "The noise of every node has half its scale.", finding="noise scale")
def _half(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda *node: 0.5 * noise(*node)


@TreeFault(
    "tree-one-level-short",
    "The noise is calibrated to one level fewer than the tree has.",
    finding="noise scale",
)
def _one_level_short(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda *node: math.sqrt((levels - 1) / levels) * noise(*node)


@TreeFault(
    "tree-left-children-only",
    "Only nodes that prefixes are made of get noise, but all are released.",
    finding="nodes without noise",
)
def _left_children(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: (1 - index % 2) * noise(tree, level, index)


@TreeFault(
    "tree-one-key-for-all-levels",
    "Nodes of one index have the same noise in every level.",
    finding="repeated noise",
)
def _by_index(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: noise(tree, 0, index)


@TreeFault(
    "tree-restart-reuse",
    "A restarted tree draws the noise of the first one again.",
    finding="noise after restarts",
    restarts=True,
)
def _first_tree_again(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: noise(0, level, index)


INVISIBLE = (
    Invisible(
        name="private-normaliser",
        description="The sum is divided by the size of the batch, or of the data set.",
        reason="It scales what is released about every canary alike, and a run has one data set.",
        instead="In Opacus the audit's `divisor` and a replay on neighbouring data show it; "
        "elsewhere read the code: divide by a constant.",
    ),
    Invisible(
        name="known-seed",
        description="Somebody knows the seed of the noise.",
        reason="The numbers are what they should be; they are no secret.",
        instead="Seeds that everybody would try are tried (`predictable noise`). For others read "
        "the code: seed from the operating system, and publish no seed.",
    ),
    Invisible(
        name="weak-generator",
        description="The noise can be predicted from earlier noise.",
        reason="Weak generators pass every statistical test that fits in a run.",
        instead="Read the code: use a cryptographically secure generator (Opacus: secure_mode).",
    ),
    Invisible(
        name="floating-point-attack",
        description="The last bits of the noise give the sum away.",
        reason="It takes the exact set of values a sampler can reach, not a sample of them.",
        instead="Use a sampler built for it: discrete Gaussian, or sums of several draws.",
    ),
    Invisible(
        name="batch-norm-buffers",
        description="Running means and variances of the batches are published without noise.",
        reason="They are released beside the gradients, where no canary is.",
        instead="Validate the model: no layer may mix records (Opacus: ModuleValidator).",
    ),
    Invisible(
        name="tuning-on-private-data",
        description="Settings were chosen by runs that nobody accounted for.",
        reason="They happened in other runs.",
        instead="Count them: report the number of runs, and account for the choice.",
    ),
)
"""What the audit of one run cannot see."""
