"""DP-SGD taken apart, so that a fault may replace any part of it; and what a fault is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import BlockCanaries, DiracCanaries, Stream, random_stream
from askgauss.exceptions import InvalidArgumentError
from askgauss.recording.recorder import Recorder
from askgauss.results import Verdict

__all__ = [
    "FAULTS",
    "TREE_FAULTS",
    "Adding",
    "DPSGDMechanism",
    "Fault",
    "Gradients",
    "Invisible",
    "NodeNoise",
    "SimulatedRun",
    "TreeFault",
    "find_fault",
]


# The gradient of a canary before clipping, in clip norms: clipping has something to do.
_FAR_ABOVE = 100.0


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of single records: one row each, zero outside a few coordinates.

    Attributes:
        places: The coordinates, one row a record.
        values: The gradient there.
    """

    places: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def norms(self) -> NDArray[np.float64]:
        """Euclidean norm of every row."""
        return np.asarray(np.sqrt((self.values**2).sum(axis=1)))

    def scaled(self, factor: NDArray[np.float64]) -> Gradients:
        """Every row, or every value, times a factor of its own."""
        return replace(self, values=self.values * factor)

    def part(self, index: int, parts: int) -> Gradients:
        """Every ``parts``-th row, from ``index`` on."""
        return Gradients(self.places[index::parts], self.values[index::parts])


def _nobody() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """A run under way: its settings, its random streams, and where it is.

    Attributes:
        steps: Number of steps planned and accounted for.
        sampling_rate: Sampling rate accounted for.
        noise_multiplier: Noise multiplier accounted for.
        clip_norm: Clip norm accounted for.
        canaries: Who is planted where; the present ones are the records of the training set.
        noise: The generator of the noise.
        sampler: The generator of the training's own sampler.
        step: Steps released so far.
        batch: The records in the present step, as indices of canaries.
        previous: The records in the step before.
    """

    steps: int
    sampling_rate: float
    noise_multiplier: float
    clip_norm: float
    canaries: DiracCanaries | BlockCanaries
    noise: np.random.Generator
    sampler: np.random.Generator
    step: int = 0
    batch: NDArray[np.int64] = field(default_factory=_nobody)
    previous: NDArray[np.int64] = field(default_factory=_nobody)

    @classmethod
    def begin(
        cls,
        canaries: DiracCanaries | BlockCanaries,
        *,
        steps: int,
        sampling_rate: float,
        noise_multiplier: float,
        clip_norm: float,
    ) -> SimulatedRun:
        """A run before its first step."""
        seed = canaries.root_seed
        return cls(
            steps=steps,
            sampling_rate=sampling_rate,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
            canaries=canaries,
            noise=random_stream(seed, Stream.NOISE),
            sampler=random_stream(seed, Stream.SAMPLER),
        )

    @property
    def records(self) -> NDArray[np.int64]:
        """The training set."""
        return np.flatnonzero(self.canaries.member)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on the sum."""
        return self.noise_multiplier * self.clip_norm


def poisson(run: SimulatedRun, steps: int) -> Iterator[NDArray[np.int64]]:
    """Poisson sampling."""
    records = run.records
    for _ in range(steps):
        yield records[run.sampler.random(records.size) < run.sampling_rate]


def one_direction_each(run: SimulatedRun, batch: NDArray[np.int64]) -> Gradients:
    """The gradients of canaries: each along its own direction, far above the clip norm."""
    canaries = run.canaries
    places = canaries.coordinates.reshape(canaries.size, -1)[batch]
    height = _FAR_ABOVE * run.clip_norm / np.sqrt(places.shape[1])
    signs = canaries.signs[batch] if isinstance(canaries, BlockCanaries) else 1.0
    return Gradients(places, np.broadcast_to(height * signs, places.shape))


def per_record(run: SimulatedRun, gradients: Gradients) -> Gradients:
    """Every record's whole gradient, scaled down to the clip norm."""
    return gradients.scaled(np.minimum(1.0, run.clip_norm / gradients.norms)[:, None])


def gaussian(run: SimulatedRun) -> NDArray[np.float64]:
    """Independent Gaussian noise on every coordinate."""
    noise = run.noise.standard_normal(run.canaries.total_dimension)
    noise *= run.noise_scale
    return noise


@dataclass(frozen=True, slots=True)
class Adding:
    """How partial sums become one.

    Attributes:
        parts: Number of partial sums: accumulation steps, or ranks.
        noise: Noise every part gets, in units of the whole noise; None where it comes once, last.
    """

    parts: int = 1
    noise: float | None = None


def restore_everything(run: SimulatedRun) -> None:
    """Going on from a checkpoint that holds every state: nothing changes."""


def as_planned(steps: int) -> int:
    """As many steps as were accounted for."""
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DPSGDMechanism:
    """The parts of DP-SGD, each as it should be.

    Attributes:
        length: Steps taken, from the steps accounted for.
        sampler: Batches, from a run and its number of steps; canaries that the recorder samples
            never meet it.
        gradient: Gradients of the records of a batch; canaries planted in the sum never meet it.
        clip: Those gradients clipped; canaries planted in the sum never meet it either.
        accumulation: How accumulation steps are added up.
        reduction: How ranks are added up.
        noise: One draw of noise for all coordinates.
        resume: What happens half way, when the run is stopped and goes on from its checkpoint.
    """

    length: Callable[[int], int] = as_planned
    sampler: Callable[[SimulatedRun, int], Iterator[NDArray[np.int64]]] = poisson
    gradient: Callable[[SimulatedRun, NDArray[np.int64]], Gradients] = one_direction_each
    clip: Callable[[SimulatedRun, Gradients], Gradients] = per_record
    accumulation: Adding = Adding()
    reduction: Adding = Adding()
    noise: Callable[[SimulatedRun], NDArray[np.float64]] = gaussian
    resume: Callable[[SimulatedRun], None] = restore_everything

    def record(self, run: SimulatedRun, recorder: Recorder, *, own_draws: bool) -> None:
        """Run every step, and hand what it releases to the recorder.

        Args:
            run: The run.
            recorder: Who records it.
            own_draws: Whether the recorder samples canaries, which are added to the clipped sum;
                otherwise they are records like any other, and go through sampler and clipper.
        """
        steps, canaries = self.length(run.steps), run.canaries
        nothing = np.zeros(canaries.size)
        batches = (
            (recorder.sample() for _ in range(steps)) if own_draws else self.sampler(run, steps)
        )
        for batch in batches:
            if run.step == steps // 2:
                self.resume(run)
            run.batch, run.previous = batch, run.batch
            if own_draws:
                released = self._release(run, None)
                canaries.plant(released, batch, run.clip_norm)
            else:
                released = self._release(run, self.clip(run, self.gradient(run, batch)))
            recorder.observe(
                canaries.project(released),
                background=nothing,
                planted=None if own_draws else batch,
                watch=released[canaries.watch],
            )
            run.step += 1

    def _release(self, run: SimulatedRun, gradients: Gradients | None) -> NDArray[np.float64]:
        """The noisy sum of these gradients, or of none."""
        levels = (self.reduction, self.accumulation)
        last = all(level.noise is None for level in levels)
        total = self.noise(run) if last else np.zeros(run.canaries.total_dimension)
        if gradients is not None or not last:
            self._add(run, gradients, levels, total)
        return total

    def _add(
        self,
        run: SimulatedRun,
        gradients: Gradients | None,
        levels: Sequence[Adding],
        total: NDArray[np.float64],
    ) -> None:
        """Add the rows to a total: rank by rank, and in each accumulation step by step."""
        if not levels:
            if gradients is not None:
                # Places may repeat: a record that is in the batch twice counts twice.
                np.add.at(total, gradients.places.ravel(), gradients.values.ravel())
            return
        level, *inner = levels
        for index in range(level.parts):
            part = None if gradients is None else gradients.part(index, level.parts)
            self._add(run, part, inner, total)
            if level.noise is not None:
                total += level.noise * self.noise(run)


_Part = TypeVar("_Part")
_Kind = TypeVar("_Kind")

NodeNoise = Callable[[int, int, int], NDArray[np.float64]]
"""The standard normal noise of a node by its tree, level and index; the same at every call."""

_FAULTS: dict[str, Fault] = {}
_TREE_FAULTS: dict[str, TreeFault] = {}

FAULTS: Mapping[str, Fault] = MappingProxyType(_FAULTS)
"""Every fault of DP-SGD by its name."""
TREE_FAULTS: Mapping[str, TreeFault] = MappingProxyType(_TREE_FAULTS)
"""Every fault of a tree mechanism by its name."""


def _unchanged(noise: NodeNoise, levels: int) -> NodeNoise:
    return noise


@dataclass(frozen=True, slots=True)
class Fault:
    """One part of DP-SGD, replaced; as a decorator it registers what it decorates.

    Attributes:
        part: The field of `DPSGDMechanism` it replaces.
        name: Its name, in kebab-case.
        description: What goes wrong.
        broken: What that part is replaced by.
        finding: The check that names it.
        also: Other checks that name it as well, should one of them lead.
        verdict: What the audit of a run like the one in docs/faults.md says.
        canaries: The least a canary must go through to meet it: the sum, where the recorder
            samples (``"own coin"``), sampler and clipper too (``"data path"``), or these with a
            gradient that is ``"spread"`` over several tensors. If None, the least that meets the
            part.
        several_tensors: Whether it needs two tensors of equal size, and a small one.
        clip_norm: Clip norm of a run that shows it.
        expected_batch: Records in a batch, on average, of a run that shows it; any if None.
    """

    part: str
    name: str
    description: str
    _: KW_ONLY
    broken: Any = None
    finding: str
    verdict: Verdict = Verdict.VIOLATION
    canaries: Literal["own coin", "data path", "spread"] | None = None
    several_tensors: bool = False
    clip_norm: float = 1.0
    expected_batch: float | None = None
    also: tuple[str, ...] = ()

    def __call__(self, broken: _Part) -> _Part:
        """Register the fault whose part is this."""
        _FAULTS[self.name] = replace(self, broken=broken)
        return broken

    @property
    def path(self) -> Literal["own coin", "data path", "spread"]:
        """What canaries go through in a run that shows it."""
        before_the_sum = self.part in ("sampler", "gradient", "clip")
        return self.canaries or ("data path" if before_the_sum else "own coin")

    def apply(self, mechanism: DPSGDMechanism) -> DPSGDMechanism:
        """The mechanism with this part broken."""
        return replace(mechanism, **{self.part: self.broken})


@dataclass(frozen=True, slots=True)
class TreeFault:
    """Where the noise of a tree's nodes comes from, replaced; a decorator like `Fault`.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        broken: The noise of every node, from what it should be and the number of levels.
        finding: The check that names it.
        verdict: What the audit says.
        restarts: Whether it needs a tree that is restarted.
    """

    name: str
    description: str
    _: KW_ONLY
    broken: Callable[[NodeNoise, int], NodeNoise] = _unchanged
    finding: str
    verdict: Verdict = Verdict.VIOLATION
    restarts: bool = False

    def __call__(self, broken: _Part) -> _Part:
        """Register the fault whose noise is this."""
        _TREE_FAULTS[self.name] = replace(self, broken=cast(Any, broken))
        return broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Invisible:
    """Something the audit of one run cannot see, and what can.

    Attributes:
        name: Its name, in kebab-case.
        description: What goes wrong.
        reason: Why one run does not show it.
        instead: The check that can.
    """

    name: str
    description: str
    reason: str
    instead: str


def find_fault(fault: str | _Kind | None, faults: Mapping[str, _Kind]) -> _Kind | None:
    """The fault of this name; faults and None are returned as they are.

    Raises:
        InvalidArgumentError: There is no fault of this name.

    Examples:
        >>> from askgauss.simulation import FAULTS
        >>> find_fault("half-noise", FAULTS).finding
        'noise scale'
    """
    if not isinstance(fault, str):
        return fault
    if fault not in faults:
        raise InvalidArgumentError(
            f"Expected fault to be one of {', '.join(faults)}, got {fault!r}."
        )
    return faults[fault]
