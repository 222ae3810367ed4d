"""Faults of DP-SGD that have happened, or nearly: each breaks one part of the mechanism.

The statistic is never touched: a fault replaces one field of `Mechanism`, and the run it gives is
recorded and audited like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import Stream, random_stream
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Verdict
from askgauss.simulation.dpsgd_parts import (
    Adding,
    Gradients,
    Run,
    gaussian,
    one_direction_each,
    poisson,
)
from askgauss.simulation.fault_kinds import Fault, Invisible, NodeNoise, TreeFault
from askgauss.simulation.hidden_faults import HIDDEN

__all__ = [
    "FAULTS",
    "INVISIBLE",
    "TREE_FAULTS",
    "Fault",
    "Invisible",
    "TreeFault",
    "find_fault",
    "find_tree_fault",
]

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class _Scaled:
    factor: float

    def __call__(self, run: Run) -> NDArray[np.float64]:
        return self.factor * gaussian(run)


def _fading(run: Run) -> NDArray[np.float64]:
    return gaussian(run) * (1.1 - 0.2 * run.step / run.steps)


def _restart_generator(run: Run) -> None:
    run.noise = random_stream(run.canaries.root_seed, Stream.NOISE)


def _same_noise(run: Run) -> NDArray[np.float64]:
    _restart_generator(run)
    return gaussian(run)


def _one_key(run: Run) -> NDArray[np.float64]:
    sizes = run.canaries.tensor_sizes
    drawn = {size: run.noise.standard_normal(size) for size in dict.fromkeys(sizes)}
    return run.noise_scale * np.concatenate([drawn[size] for size in sizes])


@dataclass(frozen=True, slots=True)
class _LastTensor:
    factor: float

    def __call__(self, run: Run) -> NDArray[np.float64]:
        noise = gaussian(run)
        noise[-run.canaries.tensor_sizes[-1] :] *= self.factor
        return noise


def _without_clip_norm(run: Run) -> NDArray[np.float64]:
    return run.noise_multiplier * run.noise.standard_normal(run.canaries.total_dimension)


def _uniform(run: Run) -> NDArray[np.float64]:
    reach = np.sqrt(3.0) * run.noise_scale
    return run.noise.uniform(-reach, reach, run.canaries.total_dimension)


def _laplace(run: Run) -> NDArray[np.float64]:
    scale = run.noise_scale / np.sqrt(2.0)
    return run.noise.laplace(0.0, scale, run.canaries.total_dimension)


def _brain_float(run: Run) -> NDArray[np.float64]:
    bits = gaussian(run).astype(np.float32).view(np.uint32)
    # Round to nearest, ties to even, at the sixteenth bit.
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _none_if_empty(run: Run) -> NDArray[np.float64]:
    return gaussian(run) * float(run.batch.size > 0)


def _overflowing(run: Run) -> NDArray[np.float64]:
    noise = gaussian(run)
    if run.step == run.steps // 2:
        noise[run.canaries.coordinates.ravel()[0]] = np.nan
    return noise


def _unclipped(run: Run, gradients: Gradients) -> Gradients:
    return gradients


def _each_tensor(run: Run, gradients: Gradients) -> Gradients:
    tensor, row = run.canaries.tensor_of(gradients.places), np.arange(len(gradients))[:, None]
    squares = np.zeros((len(gradients), len(run.canaries.tensor_sizes)))
    np.add.at(squares, (row, tensor), gradients.values**2)
    return gradients.scaled(np.minimum(1.0, run.clip_norm / np.sqrt(squares)[row, tensor]))


def _together(run: Run, gradients: Gradients, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """What clipping the mean of each group scales its records by."""
    # No two records share a coordinate, so that squares add up.
    norms = np.sqrt(np.bincount(group, gradients.norms**2)) / np.bincount(group)
    return np.minimum(1.0, run.clip_norm / norms)


def _batch_mean(run: Run, gradients: Gradients) -> Gradients:
    group = np.zeros(len(gradients), dtype=np.int64)
    return gradients.scaled(_together(run, gradients, group)[group, None])


def _microbatch_means(run: Run, gradients: Gradients) -> Gradients:
    group = np.arange(len(gradients)) // 4
    factor = _together(run, gradients, group) / np.bincount(group)
    return gradients.scaled(factor[group, None])


def _twice(run: Run, batch: NDArray[np.int64]) -> Gradients:
    return one_direction_each(run, np.repeat(batch, 2))


def _with_the_last_batch(run: Run, batch: NDArray[np.int64]) -> Gradients:
    return one_direction_each(run, np.concatenate([run.previous, batch]))


def _doubled(run: Run, steps: int) -> Iterator[NDArray[np.int64]]:
    return poisson(replace(run, sampling_rate=min(1.0, 2.0 * run.sampling_rate)), steps)


@dataclass(frozen=True, slots=True)
class _Epochs:
    """Passes over the records in batches of one size."""

    reshuffle: bool

    def __call__(self, run: Run, steps: int) -> Iterator[NDArray[np.int64]]:
        records, batches = run.sampler.permutation(run.records), round(1.0 / run.sampling_rate)
        for step in range(steps):
            if self.reshuffle and step % batches == 0:
                records = run.sampler.permutation(records)
            yield records[step % batches :: batches]


def _common_coins(run: Run, steps: int) -> Iterator[NDArray[np.int64]]:
    records = run.records
    for _ in range(steps):
        heads = run.sampler.random(-(-records.size // 4)) < run.sampling_rate
        yield records[np.repeat(heads, 4)[: records.size]]


def _never_empty(run: Run, steps: int) -> Iterator[NDArray[np.int64]]:
    return (batch for batch in poisson(run, steps) if batch.size)


def _a_quarter_more(steps: int) -> int:
    return steps + -(-steps // 4)


_V, _I, _C, _N = Verdict.VIOLATION, Verdict.INVALID, Verdict.CONSISTENT, Verdict.INCONCLUSIVE

_ALL = (
    Fault(
        name="no-noise",
        description="No noise is added.",
        part="noise",
        broken=_Scaled(0.0),
        finding="noise scale",
        also=("noise",),
        verdict=_V,
    ),
    Fault(
        name="half-noise",
        description="The noise has half its scale.",
        part="noise",
        broken=_Scaled(0.5),
        finding="noise scale",
        verdict=_V,
    ),
    Fault(
        name="noise-75",
        description="The noise has 75 % of its scale.",
        part="noise",
        broken=_Scaled(0.75),
        finding="noise scale",
        verdict=_V,
    ),
    Fault(
        name="noise-90",
        description="The noise has 90 % of its scale.",
        part="noise",
        broken=_Scaled(0.9),
        finding="noise scale",
        verdict=_V,
    ),
    Fault(
        name="noise-per-rank",
        description="Each of four ranks adds the whole noise.",
        part="reduction",
        broken=Adding(parts=4, noise=1.0),
        finding="noise scale",
        verdict=_C,
    ),
    Fault(
        name="noise-divided-by-ranks",
        description="Each of four ranks adds a quarter of the noise, where half is right.",
        part="reduction",
        broken=Adding(parts=4, noise=0.25),
        finding="noise scale",
        verdict=_V,
    ),
    Fault(
        name="noise-split-over-accumulation",
        description="Each of four accumulation steps adds a quarter of the noise.",
        part="accumulation",
        broken=Adding(parts=4, noise=0.25),
        finding="noise scale",
        verdict=_V,
    ),
    Fault(
        name="noise-at-every-accumulation-step",
        description="Each of four accumulation steps adds the whole noise.",
        part="accumulation",
        broken=Adding(parts=4, noise=1.0),
        finding="noise scale",
        verdict=_C,
    ),
    Fault(
        name="sigma-without-clip-norm",
        description="The noise is scaled by the noise multiplier, not by it times the clip norm.",
        part="noise",
        broken=_without_clip_norm,
        finding="noise scale",
        verdict=_V,
        clip_norm=2.0,
    ),
    Fault(
        name="fading-noise",
        description="The noise falls from 110 % to 90 % of its scale along the run.",
        part="noise",
        broken=_fading,
        finding="noise drift",
        verdict=_V,
    ),
    Fault(
        name="un-noised-tensor",
        description="One small tensor is left without noise.",
        part="noise",
        broken=_LastTensor(0.0),
        finding="noise by tensor",
        verdict=_V,
        several_tensors=True,
    ),
    Fault(
        name="half-noise-in-one-tensor",
        description="One small tensor gets half the noise.",
        part="noise",
        broken=_LastTensor(0.5),
        finding="noise by tensor",
        verdict=_V,
        several_tensors=True,
    ),
    Fault(
        name="same-noise-every-step",
        description="The generator is seeded anew in every step.",
        part="noise",
        broken=_same_noise,
        finding="repeated noise",
        verdict=_V,
    ),
    Fault(
        name="reseeded-on-resume",
        description="A checkpoint does not hold the generator: after it, the noise starts over.",
        part="resume",
        broken=_restart_generator,
        finding="repeated noise",
        verdict=_V,
    ),
    Fault(
        name="one-key-for-equal-tensors",
        description="Tensors of one size get the same noise, from one random key.",
        part="noise",
        broken=_one_key,
        finding="shared noise",
        verdict=_V,
        several_tensors=True,
    ),
    Fault(
        name="uniform-noise",
        description="The noise is uniform, of the right variance.",
        part="noise",
        broken=_uniform,
        finding="noise shape",
        verdict=_I,
    ),
    Fault(
        name="laplace-noise",
        description="The noise is Laplace noise, of the right variance.",
        part="noise",
        broken=_laplace,
        finding="noise shape",
        verdict=_I,
    ),
    Fault(
        name="bf16-noise",
        description="The noise is drawn in bfloat16.",
        part="noise",
        broken=_brain_float,
        finding="noise precision",
        verdict=_V,
    ),
    Fault(
        name="nan-in-a-step",
        description="One step releases a nan.",
        part="noise",
        broken=_overflowing,
        finding="finite gradients",
        verdict=_I,
    ),
    Fault(
        name="no-noise-on-empty-batches",
        description="A step whose batch is empty is released without noise.",
        part="noise",
        broken=_none_if_empty,
        finding="steps without noise",
        verdict=_V,
        canaries="data path",
        expected_batch=1.0,
    ),
    Fault(
        name="skipped-empty-batches",
        description="A step whose batch is empty is not taken: every step has somebody in it.",
        part="sampler",
        broken=_never_empty,
        finding="sampling rate",
        verdict=_V,
        canaries="data path",
        expected_batch=1.0,
    ),
    Fault(
        name="sampling-rate-doubled",
        description="The sampler takes twice the rate that is accounted for.",
        part="sampler",
        broken=_doubled,
        finding="sampling rate",
        verdict=_V,
        canaries="data path",
    ),
    Fault(
        name="shuffle-for-poisson",
        description="Shuffled epochs are accounted for as Poisson sampling.",
        part="sampler",
        broken=_Epochs(reshuffle=True),
        finding="sampling scheme",
        verdict=_I,
        canaries="data path",
    ),
    Fault(
        name="same-batches-every-epoch",
        description="The data are split into batches once, and gone through again and again.",
        part="sampler",
        broken=_Epochs(reshuffle=False),
        finding="sampling of pairs",
        also=("sampling scheme",),
        verdict=_I,
        canaries="data path",
    ),
    Fault(
        name="one-coin-for-four-records",
        description="Every record has the right rate, but four of them share a coin.",
        part="sampler",
        broken=_common_coins,
        finding="sampling scheme",
        verdict=_I,
        canaries="data path",
    ),
    Fault(
        name="clipping-off",
        description="Gradients are not clipped.",
        part="clip",
        broken=_unclipped,
        finding="contribution",
        verdict=_V,
        canaries="data path",
    ),
    Fault(
        name="per-layer-clipping",
        description="Each of four tensors is clipped to the whole clip norm.",
        part="clip",
        broken=_each_tensor,
        finding="contribution",
        verdict=_V,
        canaries="spread",
    ),
    Fault(
        name="clip-on-batch-mean",
        description="The mean of the batch is clipped, not every record.",
        part="clip",
        broken=_batch_mean,
        finding="contribution",
        verdict=_V,
        canaries="data path",
    ),
    Fault(
        name="per-microbatch-clipping",
        description="Means of four records are clipped, not every record.",
        part="clip",
        broken=_microbatch_means,
        finding="contribution",
        verdict=_N,
        canaries="data path",
    ),
    Fault(
        name="duplicated-example",
        description="Every record is in its batch twice, as when two ranks see the same data.",
        part="gradient",
        broken=_twice,
        finding="contribution",
        verdict=_V,
        canaries="data path",
    ),
    Fault(
        name="accumulating-grad-sample",
        description="Gradients of the step before are not cleared, and are added once more.",
        part="gradient",
        broken=_with_the_last_batch,
        finding="carry-over",
        verdict=_I,
        canaries="data path",
    ),
    Fault(
        name="more-steps-than-accounted",
        description="The run takes a quarter more steps than are accounted for.",
        part="length",
        broken=_a_quarter_more,
        finding="step count",
        verdict=_V,
    ),
)

FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in (*_ALL, *HIDDEN)})
"""Every fault by its name."""


def _half(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda *node: 0.5 * noise(*node)


def _one_level_short(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda *node: math.sqrt((levels - 1) / levels) * noise(*node)


def _first_tree_again(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: noise(0, level, index)


def _left_children(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: (1 - index % 2) * noise(tree, level, index)


def _by_index(noise: NodeNoise, levels: int) -> NodeNoise:
    return lambda tree, level, index: noise(tree, 0, index)


_ALL_OF_TREES = (
    TreeFault(
        name="tree-half-noise",
        description="The noise of every node has half its scale.",
        broken=_half,
        finding="noise scale",
        verdict=_V,
    ),
    TreeFault(
        name="tree-one-level-short",
        description="The noise is calibrated to one level fewer than the tree has.",
        broken=_one_level_short,
        finding="noise scale",
        verdict=_V,
    ),
    TreeFault(
        name="tree-left-children-only",
        description="Only nodes that prefixes are made of get noise, but all are released.",
        broken=_left_children,
        finding="nodes without noise",
        verdict=_V,
    ),
    TreeFault(
        name="tree-one-key-for-all-levels",
        description="Nodes of one index have the same noise in every level.",
        broken=_by_index,
        finding="repeated noise",
        verdict=_V,
    ),
    TreeFault(
        name="tree-restart-reuse",
        description="A restarted tree draws the noise of the first one again.",
        broken=_first_tree_again,
        finding="noise after restarts",
        verdict=_V,
        restarts=True,
    ),
)

TREE_FAULTS: Mapping[str, TreeFault] = MappingProxyType(
    {fault.name: fault for fault in _ALL_OF_TREES}
)
"""Every fault of a tree mechanism by its name."""

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


def find_fault(fault: str | Fault | None) -> Fault | None:
    """The fault of this name; faults and None are returned as they are.

    Raises:
        InvalidArgumentError: There is no fault of this name.

    Examples:
        >>> find_fault("half-noise").finding
        'noise scale'
    """
    return fault if fault is None or isinstance(fault, Fault) else _named(FAULTS, fault)


def find_tree_fault(fault: str | TreeFault | None) -> TreeFault | None:
    """The same for faults of a tree mechanism."""
    return fault if fault is None or isinstance(fault, TreeFault) else _named(TREE_FAULTS, fault)


def _named(faults: Mapping[str, _Kind], name: str) -> _Kind:
    if name not in faults:
        raise InvalidArgumentError(
            f"Expected fault to be one of {', '.join(faults)}, got {name!r}."
        )
    return faults[name]
