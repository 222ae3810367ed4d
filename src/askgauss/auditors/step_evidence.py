"""What a transcript says of single steps, and what it takes to compose them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate, accounting
from askgauss._rounding import FEWEST_TOLD
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Poisson, ReplaceOne, Scheme
from askgauss.scores import GroupMoments
from askgauss.stats.shift import ShiftTest, SlopeTest
from askgauss.stats.within_canary import within_canaries

__all__ = ["StepEvidence", "Stratum", "step_evidence", "told_tensors"]

# Steps of a run at most, and those of them that nobody saw.
_MOST_STEPS = 10**8
_MOST_SKIPPED = 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Planted and other observations of one tensor, or of all."""

    tensor: str
    planted: GroupMoments
    other: GroupMoments

    @property
    def observed(self) -> int:
        """Number of observations, planted and other ones."""
        return self.planted.count + self.other.count

    def _test(self) -> ShiftTest:
        planted, other = self.planted, self.other
        return ShiftTest(
            present=(planted.count, planted.mean, planted.sum_of_squares),
            absent=(other.count, other.mean, other.sum_of_squares),
        )

    def lower(self, error: float) -> float:
        """Lower bound on the signal-to-noise ratio of one step."""
        return self._test().lower(error)

    def p_value(self, signal_to_noise: float) -> float:
        """The p-value of "the ratio is at most this"."""
        return self._test().p_value(signal_to_noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """Moments of single steps, and what is needed to compose them.

    Attributes:
        strata: Moments of all observations, then of each tensor's.
        within: The fit of planting within each canary, by its own level; None where the background
            is known. It weighs a canary that was planted often more than others, and what no bound
            rests on is not published.
        counts: The fit of each canary's sum against how often it was planted; likewise, unless the
            method was asked for it.
        background_known: Whether observations without a planting are noise alone.
        steps: Number of steps.
        sampling_rate: The planting rate, where the recorder's own coin set it.
        plantings: How often a canary was planted.
        opportunities: How often one could have been: coins that were tossed, at most.
        poisson: Whether sampling is Poisson.
        finite: Whether every observation was finite.
        poisson_declared: Whether that it is Poisson is the user's word alone.
        skipped: Steps that were released and not observed.
        schedule: Where the declared noise differs between steps: that of the first over that of
            others, and how many have it, as `accounting.schedule_levels` rounds them.
        schedule_scale: Root of the mean square of the declared noise, over that of the first step.
        weighted: With a schedule, the fit of planting by steps as they are declared: of all
            observations, then of each tensor's.
        scheme: How canaries are drawn, where it was declared as a scheme.
        replaced: Whether neighbours have another record in a record's place.
    """

    strata: tuple[Stratum, ...]
    within: SlopeTest | None = None
    counts: SlopeTest | None = None
    background_known: bool
    steps: int
    sampling_rate: float | None
    plantings: int
    opportunities: int
    poisson: bool
    finite: bool
    poisson_declared: bool = False
    skipped: int = 0
    schedule: tuple[tuple[float, int], ...] = ()
    schedule_scale: float = 1.0
    weighted: tuple[SlopeTest, ...] = ()
    scheme: Scheme | None = None
    replaced: bool = False

    def __post_init__(self) -> None:
        # It may come from a file, and what is composed of it takes time and memory by these.
        _validate.integer(1, _MOST_STEPS, steps=self.steps)
        _validate.integer(0, _MOST_SKIPPED, skipped=self.skipped)
        if not self.background_known and (self.within is None or self.counts is None):
            raise _validate.fail("within and counts", None, "where the background is not known")

    def known_law(self) -> Scheme | None:
        """How one canary is drawn, where no rate has to be measured for it."""
        if self.scheme is None:
            rate = self.sampling_rate
            return None if rate is None else self._as_neighbours(Poisson(rate=rate))
        if self.sampling_rate is None and self.scheme.poisson_steps(self.steps) is not None:
            return None
        return self._as_neighbours(self.scheme.record_by_record())

    def law(self, rate: float) -> Scheme:
        """How one canary is drawn if it is sampled at this rate."""
        drawn = Poisson(rate=rate) if self.scheme is None else self.scheme.at_rate(rate)
        return self._as_neighbours(drawn)

    def _as_neighbours(self, drawn: Scheme) -> Scheme:
        return ReplaceOne(of=drawn) if self.replaced else drawn

    def likely_law(self) -> Scheme:
        """How it is drawn, the rate as measured where it has to be."""
        return self.known_law() or self.law(min(1.0, self.plantings / self.opportunities))

    def epsilon(self, signal_to_noise: float, law: Scheme, delta: float) -> float:
        """What the steps leak at least; the ratio is that of the first one."""
        if law.poisson_rate is not None and self.schedule and signal_to_noise != math.inf:
            return accounting.schedule_epsilon_lower(
                signal_to_noise=signal_to_noise * self._ratios(),
                sampling_rate=law.poisson_rate,
                delta=delta,
            )
        signal = signal_to_noise * self.weakest
        noise = 1.0 / signal if signal > 0.0 else math.inf
        return law.epsilon_lower(noise_multiplier=noise, steps=self.steps, delta=delta)

    def signal_to_noise(self, epsilon: float, law: Scheme, delta: float) -> float:
        """The ratio, of the first step, at which the steps leak more than ``epsilon``."""
        if law.poisson_rate is not None and self.schedule:
            return accounting.schedule_factor(
                epsilon=epsilon,
                signal_to_noise=self._ratios(),
                sampling_rate=law.poisson_rate,
                delta=delta,
            )
        return law.signal_to_noise(epsilon=epsilon, delta=delta, steps=self.steps) / self.weakest

    @property
    def weakest(self) -> float:
        """The smallest ratio that a step is declared to have, over that of the first.

        Beside Poisson sampling no law is at hand for steps that differ, and the largest noise in
        all of them leaks less.
        """
        return min((ratio for ratio, _ in self.schedule), default=1.0)

    def _ratios(self) -> NDArray[np.float64]:
        ratios, counts = zip(*self.schedule, strict=True)
        return np.repeat(np.array(ratios), np.array(counts))


# What is not finite is said to be so, and nothing is computed of it.
@np.errstate(over="ignore", invalid="ignore")
def step_evidence(transcript: Transcript, plantings: int, counts_only: bool) -> StepEvidence:
    """Moments of planted and other observations, by tensor, and the fits that a bound needs."""
    facts, sums, steps = transcript.facts, transcript.canaries, transcript.number_of_steps
    root = math.sqrt(steps)
    present = int(np.count_nonzero(transcript.member))
    scheme, known = facts.scheme, facts.background == "known"
    return StepEvidence(
        strata=_strata(transcript),
        # Given how often each canary was planted, its sum is a straight line in that number.
        counts=SlopeTest.fit(sums.planted / root, sums.total / root)
        if counts_only or not known
        else None,
        within=None
        if known
        else within_canaries(
            planted=sums.planted,
            planted_total=sums.planted_total,
            total=sums.total,
            square=sums.square,
            steps=steps,
        ),
        background_known=known,
        steps=steps,
        sampling_rate=facts.sampling_rate if facts.sampling == "own coin" else None,
        plantings=plantings,
        opportunities=present * ((scheme and scheme.poisson_steps(steps)) or steps),
        poisson=facts.poisson,
        finite=transcript.finite,
        poisson_declared=facts.poisson_declared,
        skipped=facts.skipped_steps,
        scheme=scheme,
        **_schedule(transcript),
    )


def _moments(count: int, total: float, square: float) -> GroupMoments:
    return GroupMoments(
        count=count, mean=total / count, sum_of_squares=max(square - total * total / count, 0.0)
    )


def _strata(transcript: Transcript) -> tuple[Stratum, ...]:
    """All observations, then each tensor's where there are several to be told."""
    sums, steps = transcript.canaries, transcript.number_of_steps
    names = transcript.facts.tensors or ("all",)

    def by_tensor(values: NDArray[Any]) -> NDArray[np.float64]:
        weights = values.astype(np.float64)
        return np.asarray(np.bincount(transcript.tensor, weights, len(names)), np.float64)

    planted = by_tensor(sums.planted)
    planted_total, planted_square = by_tensor(sums.planted_total), by_tensor(sums.planted_square)
    observed = steps * by_tensor(np.ones(transcript.member.size))
    total, square = by_tensor(sums.total), by_tensor(sums.square)

    def stratum(name: str, rows: NDArray[np.intp] | slice) -> Stratum:
        count = int(planted[rows].sum())
        return Stratum(
            tensor=name,
            planted=_moments(count, planted_total[rows].sum(), planted_square[rows].sum()),
            other=_moments(
                int(observed[rows].sum()) - count,
                (total[rows] - planted_total[rows]).sum(),
                (square[rows] - planted_square[rows]).sum(),
            ),
        )

    def title(group: NDArray[np.intp]) -> str:
        first, others = names[group[0]], group.size - 1
        return f"{first} and {others} small {'one' if others == 1 else 'ones'}" if others else first

    told = told_tensors(transcript)
    return (stratum("all", slice(None)), *(stratum(title(group), group) for group in told))


def told_tensors(transcript: Transcript) -> list[NDArray[np.intp]]:
    """Tensors whose observations are told apart from all, small ones beside another.

    One with a handful of plantings could not beat the pooled bound at its share. One with a handful
    of present canaries, however often each was planted, would tell of single ones; so would a
    handful that is left, since anybody can subtract.
    """
    steps, size = transcript.number_of_steps, int(transcript.tensor.max(initial=0)) + 1
    canaries = np.bincount(transcript.tensor, minlength=size)
    present = np.bincount(transcript.tensor, transcript.member, size)
    planted = np.bincount(transcript.tensor, transcript.canaries.planted, size)
    other = steps * canaries - planted

    def many(group: NDArray[np.intp]) -> bool:
        return all(part[group].sum() >= FEWEST_TOLD for part in (present, planted, other))

    groups = [np.array([index]) for index in np.flatnonzero(canaries)]
    told = [group for group in groups if many(group)]
    rest = np.array([group[0] for group in groups if not many(group)], dtype=np.intp)
    if told and rest.size and not many(rest):
        smallest = min(range(len(told)), key=lambda place: planted[told[place][0]])
        told[smallest] = np.append(told[smallest], rest)
    return told if len(told) > 1 else []


def _schedule(transcript: Transcript) -> dict[str, Any]:
    """What the evidence holds of a declared schedule; nothing where the steps are alike."""
    unit = transcript.schedule
    if (unit == 1.0).all():
        return {}
    scale = math.sqrt(float((unit**2).mean()))
    groups = transcript.steps.planted.shape[1]
    return {
        "schedule": accounting.schedule_levels(1.0 / unit),
        "schedule_scale": scale,
        "weighted": tuple(
            _weighted(transcript, columns)
            for columns in (np.arange(groups), *told_tensors(transcript))
        ),
    }


def _weighted(transcript: Transcript, columns: NDArray[np.int64]) -> SlopeTest:
    """Least squares on planting, every step in units of its declared noise."""
    steps, unit = transcript.steps, transcript.schedule
    planted, planted_total, planted_square, total, square = (
        part[:, columns].sum(axis=1)
        for part in (
            steps.planted,
            steps.planted_total,
            steps.planted_square,
            steps.total,
            steps.square,
        )
    )
    count = unit.size * int(np.isin(transcript.tensor, columns).sum())
    values = float(((total + planted_total) / unit).sum())
    weights = float((planted / unit).sum())
    spread = float((planted / unit**2).sum()) - weights**2 / count
    product = float((planted_total / unit**2).sum()) - weights * values / count
    slope = product / spread if spread > 0.0 else 0.0
    residual = float(((square + planted_square) / unit**2).sum()) - values**2 / count
    return SlopeTest(
        count=max(count, 3),
        slope=slope,
        spread=max(spread, 0.0),
        residual=max(residual - slope * product, 0.0),
    )
