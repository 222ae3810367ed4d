"""Faults that sums over a whole run do not show: a few values, a few steps, or all a very little.

The noise keeps its scale and its shape, the rate and the mean contribution are as accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import Stream, random_stream
from askgauss.results import Verdict
from askgauss.simulation.dpsgd_parts import Gradients, Run, gaussian, per_record
from askgauss.simulation.fault_kinds import Fault

__all__ = ["HIDDEN"]

_GROUPS = 4


@dataclass(frozen=True, slots=True)
class _Without:
    """No noise on every so many coordinates; the places may move by one with every step."""

    every: int
    moving: bool

    def __call__(self, run: Run) -> NDArray[np.float64]:
        noise = gaussian(run)
        places = run.canaries.coordinates.reshape(run.canaries.size, -1)
        noise[places[(run.step if self.moving else 0) % self.every :: self.every]] = 0.0
        return noise


@dataclass(frozen=True, slots=True)
class _WherePlanted:
    factor: float

    def __call__(self, run: Run) -> NDArray[np.float64]:
        noise = gaussian(run)
        places = run.canaries.coordinates.reshape(run.canaries.size, -1)
        noise[places[run.batch]] *= self.factor
        return noise


def _cut_off(run: Run) -> NDArray[np.float64]:
    return np.clip(gaussian(run), -3.0 * run.noise_scale, 3.0 * run.noise_scale)


def _alternating(run: Run) -> NDArray[np.float64]:
    return gaussian(run) * (0.85, math.sqrt(2.0 - 0.85**2))[run.step % 2]


def _odd_coordinates(run: Run) -> NDArray[np.float64]:
    noise = gaussian(run)
    noise[::2] *= 0.85
    noise[1::2] *= math.sqrt(2.0 - 0.85**2)
    return noise


def _paid_back(run: Run) -> NDArray[np.float64]:
    if run.step < run.steps - 1:
        return gaussian(run)
    again = random_stream(run.canaries.root_seed, Stream.NOISE)
    size, before = run.canaries.total_dimension, max(run.steps - 1, 1)
    total = sum((again.standard_normal(size) for _ in range(before)), np.zeros(size))
    return -run.noise_scale / math.sqrt(before) * total


def _pushed_back(run: Run) -> NDArray[np.float64]:
    """Every step takes off a little of the last forty but one."""

    def fresh(step: int) -> NDArray[np.float64]:
        size = run.canaries.total_dimension
        return np.random.default_rng([run.canaries.root_seed, step]).standard_normal(size)

    earlier = range(max(run.step - 40, 0), max(run.step - 1, 0))
    share = 0.02
    noise = fresh(run.step) - share * sum((fresh(step) for step in earlier), np.zeros(1))
    return np.asarray(run.noise_scale / math.sqrt(1.0 + len(earlier) * share**2) * noise)


def _with_an_offset(run: Run) -> NDArray[np.float64]:
    common = 0.15
    own = math.sqrt(1.0 - common**2) * gaussian(run)
    return own + common * run.noise_scale * float(run.noise.standard_normal())


def _few_directions(run: Run) -> NDArray[np.float64]:
    """A tenth of the variance lies in three directions that all coordinates share."""
    size = run.canaries.total_dimension
    directions = np.random.default_rng([run.canaries.root_seed, size]).choice(
        [-1.0, 1.0], (3, size)
    )
    common = run.noise.standard_normal(3) @ directions / math.sqrt(3.0)
    return np.asarray(math.sqrt(0.9) * gaussian(run) + math.sqrt(0.1) * run.noise_scale * common)


def _rarely_unclipped(run: Run, gradients: Gradients) -> Gradients:
    factor = np.where((run.batch + run.step) % 200 == 0, 10.0, 1.0)
    return per_record(run, gradients).scaled(factor[:, None])


def _ever_more(run: Run, gradients: Gradients) -> Gradients:
    return per_record(run, gradients).scaled(np.array(0.5 + (run.step + 0.5) / run.steps))


def _cyclic(run: Run, steps: int) -> Iterator[NDArray[np.int64]]:
    records = run.records
    group = run.sampler.integers(0, _GROUPS, records.size)
    rate = min(_GROUPS * run.sampling_rate, 1.0)
    for step in range(steps):
        yield records[(group == step % _GROUPS) & (run.sampler.random(records.size) < rate)]


_V, _I = Verdict.VIOLATION, Verdict.INVALID

HIDDEN = (
    Fault(
        name="coordinates-without-noise",
        description="One coordinate of 250 never gets noise.",
        part="noise",
        broken=_Without(every=250, moving=False),
        finding="noise by coordinate",
        verdict=_V,
    ),
    Fault(
        name="values-without-noise",
        description="One value of 150 gets no noise, another one in every step.",
        part="noise",
        broken=_Without(every=150, moving=True),
        finding="values without noise",
        verdict=_V,
    ),
    Fault(
        name="no-noise-where-planted",
        description="Where there is a signal there is no noise.",
        part="noise",
        broken=_WherePlanted(0.0),
        finding="planted noise",
        also=("values without noise",),
        verdict=_V,
    ),
    Fault(
        name="less-noise-where-planted",
        description="Where there is a signal the noise has 80 % of its scale.",
        part="noise",
        broken=_WherePlanted(0.8),
        finding="planted noise",
        verdict=_V,
    ),
    Fault(
        name="noise-cut-off",
        description="The noise is clipped at three standard deviations.",
        part="noise",
        broken=_cut_off,
        finding="noise extremes",
        also=("noise shape",),
        verdict=_I,
    ),
    Fault(
        name="noise-by-turns",
        description="Every other step has 85 % of the noise, the others more.",
        part="noise",
        broken=_alternating,
        finding="noise by step",
        verdict=_V,
    ),
    Fault(
        name="noise-by-parity",
        description="Every other coordinate has 85 % of the noise, the others more.",
        part="noise",
        broken=_odd_coordinates,
        finding="noise by coordinate",
        verdict=_V,
    ),
    Fault(
        name="noise-paid-back",
        description="The last noise is minus the sum of all before, at the right scale.",
        part="noise",
        broken=_paid_back,
        finding="whole-run correlation",
        verdict=_V,
    ),
    Fault(
        name="noise-pushed-back",
        description="Every step takes off a fiftieth of the noise of 39 steps before.",
        part="noise",
        broken=_pushed_back,
        finding="noise spectrum",
        also=("serial correlation", "whole-run correlation"),
        verdict=_I,
    ),
    Fault(
        name="noise-with-an-offset",
        description="A fiftieth of the noise's variance is one number for all coordinates.",
        part="noise",
        broken=_with_an_offset,
        finding="common noise",
        also=("shared noise",),
        verdict=_I,
    ),
    Fault(
        name="noise-in-few-directions",
        description="A tenth of the noise's variance lies in three directions.",
        part="noise",
        broken=_few_directions,
        finding="shared noise",
        verdict=_V,
    ),
    Fault(
        name="rarely-unclipped",
        description="One planting of 200 adds ten clip norms.",
        part="clip",
        broken=_rarely_unclipped,
        finding="single plantings",
        also=("contribution",),
        verdict=_V,
        canaries="data path",
    ),
    Fault(
        name="contribution-grows",
        description="A record adds half a clip norm at first and one and a half at the end.",
        part="clip",
        broken=_ever_more,
        finding="even contribution",
        verdict=_I,
        canaries="data path",
    ),
    Fault(
        name="cyclic-for-poisson",
        description="Records are drawn in every fourth step only, at four times the rate.",
        part="sampler",
        broken=_cyclic,
        finding="sampling in time",
        verdict=_I,
        canaries="data path",
    ),
)
