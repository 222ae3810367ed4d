"""What the checks of a transcript share: the claim it is held against, and its noise."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from askgauss import accounting
from askgauss.checks.adjacency import has_opposites
from askgauss.checks.findings import SUSPICIOUS
from askgauss.checks.tails import Spread
from askgauss.claims import PrivacyClaim
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.recording.transcript import SILENCE, Transcript
from askgauss.sampling import Poisson, ReplaceOne, Scheme, assumed_poisson
from askgauss.stats import normality

__all__ = ["INTERVAL_ERROR", "NOTICED", "TOLERANCE", "Context", "around"]

# A measured difference below this is real or not, but does not matter to anybody.
TOLERANCE = 0.005
# Intervals next to measured values have this error.
INTERVAL_ERROR = 0.01
# Standard errors that a fault must measure to be noticed with probability .8: one of some thirty
# checks that share half of the default gate error rejects from 4.3 on.
NOTICED = 5.2
# Fewer values than these may all be that small by chance; only exact zeros tell then.
_FEWEST_TO_HEAR = 5
# Fewer values than these may seem to lie on a lattice.
_FEWEST_ON_A_LATTICE = 200
_FEWEST_FOR_SHAPE = 8
# Columns of single values that are compared with each other, at most.
_COLUMNS = 2048
# Steps that are composed to say what they leak.
_MOST_STEPS = 10_000_000


def around(value: float, error: float) -> tuple[float, float]:
    """The interval of a Gaussian estimate with this standard error."""
    half = float(ndtri(1.0 - 0.5 * INTERVAL_ERROR)) * error
    return value - half, value + half


def _may_be_gaussian(rows: NDArray[np.float64]) -> bool:
    """Whether rows of single values, each by its own scale, are not far from a Gaussian."""
    rows = rows[np.ptp(rows, axis=1) > 0.0] if rows.shape[1] >= _FEWEST_FOR_SHAPE else rows[:0]
    if len(rows) == 0:
        return True
    _, skewness_p, _, kurtosis_p = normality.average_shape(rows)
    return min(skewness_p, kurtosis_p) >= SUSPICIOUS


@dataclass(frozen=True)
class Context:
    """A transcript, and what it is compared with."""

    transcript: Transcript
    claim: PrivacyClaim | None

    @property
    def facts(self) -> RunFacts:
        """What is known about the run."""
        return self.transcript.facts

    @property
    def known(self) -> bool:
        """Whether observations without a planting are noise and nothing else."""
        return self.facts.background == "known"

    @property
    def exact(self) -> bool:
        """Whether they are also noise of directions that share nothing with those planted."""
        return self.known and self.transcript.gram.size == 0

    @property
    def own_coin(self) -> bool:
        """Whether the recorder planted, so that the training's sampler was never met."""
        return self.facts.sampling == "own coin"

    @functools.cached_property
    def others(self) -> NDArray[np.float64]:
        """Observations without a planting, by step."""
        planted = self.transcript.steps.planted.sum(axis=1)
        return np.asarray(self.transcript.member.size - planted, dtype=np.float64)

    @functools.cached_property
    def squares(self) -> NDArray[np.float64]:
        """Their sums of squares, by step."""
        unit = self.schedule**2
        return unit * self.audible(self.transcript.steps.square.sum(axis=1) / unit, self.others)

    @functools.cached_property
    def schedule(self) -> NDArray[np.float64]:
        """The declared noise of every step, relative to that of the first."""
        return self.transcript.schedule

    @functools.cached_property
    def even(self) -> Spread:
        """The noise of all steps together, in units in which they are declared to be alike."""
        return Spread(self.noise.freedom, float((self.squares / self.schedule**2).sum()))

    @functools.cached_property
    def by_canary(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """Count, sum and sum of squares of each canary's observations without a planting.

        In units in which steps are alike; None where they were not recorded in those.
        """
        sums, steps = self.transcript.canaries, self.transcript.number_of_steps
        total, square = sums.other_total, sums.other_square
        if total.size == 0 and (self.schedule == 1.0).all():
            total, square = sums.total - sums.planted_total, sums.square - sums.planted_square
        if total.size == 0 or not np.isfinite(total).all():
            return None
        return np.asarray(steps - sums.planted, dtype=np.float64), total, np.maximum(square, 0.0)

    def audible(
        self, squares: NDArray[np.float64], counts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sums of so many squares, zero where they are rounding errors and no noise.

        They are in units in which steps are declared to be alike.
        """
        claimed = self.claimed_noise
        unit = 1.0
        if claimed is not None and claimed.any():
            unit = float((claimed / self.schedule).max())
        silent = (squares < counts * np.square(SILENCE * unit)) & (counts >= _FEWEST_TO_HEAR)
        return np.where(silent, 0.0, squares)

    @functools.cached_property
    def noise(self) -> Spread:
        """The noise of all steps together."""
        return Spread(float(self.others.sum()), float(self.squares.sum()))

    @functools.cached_property
    def claimed_noise(self) -> NDArray[np.float64] | None:
        """The noise multiplier claimed for each step."""
        steps = self.transcript.number_of_steps
        claimed = None if self.claim is None else self.claim.noise_multiplier
        by_step = self.transcript.steps.noise_multiplier
        declared = bool(np.isfinite(by_step).all())
        if claimed is None and declared and np.ptp(by_step) > 0.0:
            return by_step
        own = self.facts.noise_multiplier
        if claimed is None:
            claimed = own
        elif own is not None and self.facts.clip_count is not None:
            # The claim is of gradients and count together, of which each has more noise.
            claimed = max(claimed, own)
        if claimed is None:
            return by_step if declared else None
        return np.full(steps, float(claimed))

    @property
    def claimed_rate(self) -> float | None:
        """The sampling rate that was accounted for."""
        scheme, facts = self.claimed_scheme, self.facts
        return (scheme and scheme.share) or facts.accounted_sampling_rate or facts.sampling_rate

    @property
    def claimed_scheme(self) -> Scheme | None:
        """How records are drawn by what was accounted for."""
        claimed = None if self.claim is None else self.claim.scheme
        if claimed is None and self.facts.accounted_scheme is not None:
            return self.facts.accounted_scheme
        if claimed is None and self.facts.accounted_sampling_rate:
            return Poisson(rate=self.facts.accounted_sampling_rate)
        return claimed

    @property
    def claimed_steps(self) -> int | None:
        """The number of steps that was accounted for."""
        claimed = None if self.claim is None else self.claim.steps
        return claimed or self.facts.accounted_steps

    def breach(
        self,
        *,
        signal: float = 1.0,
        noise: float | None = None,
        rate: float | None = None,
        steps: int | None = None,
    ) -> tuple[bool, str]:
        """Whether steps with the noise that was measured, composed, break the claim.

        Args:
            signal: What a record adds to the sum of a step at least, in clip norms.
            noise: The noise multiplier at most, of the first step where they follow a schedule; as
                measured over the whole run if not given, or as claimed where other records hide it.
            rate: How often at least; as accounted for if not given.
            steps: In how many steps; as accounted for if not given.

        Returns:
            Whether the claim is exceeded by more than the tolerance, and a sentence about it. Where
            there is no claim, or no rate to compose with, a part that is not as claimed is breach
            enough.
        """
        rate = rate or self.claimed_rate
        taken = self.transcript.number_of_steps
        steps = steps or self.claimed_steps or taken
        if self.noise.square == 0.0 or signal <= 0.0:
            return False, ""
        if self.claim is None or rate is None:
            return True, ""
        # What the steps have relative to each other is as declared; beyond them, as on average.
        level = self.noise_level if noise is None else noise
        # So many steps at most, whatever a file says: what fewer of them leak is a lower bound.
        by_step = np.resize(self.schedule, min(steps, _MOST_STEPS))
        return self.exceeds(signal / (level * by_step), rate)

    @property
    def noise_level(self) -> float:
        """The noise multiplier at most, of the first step where they follow a schedule.

        As measured over the whole run, or as claimed where other records hide it.
        """
        level = self.even.interval(INTERVAL_ERROR)[1]
        if self.known or self.claimed_noise is None:
            return level
        return min(level, float((self.claimed_noise / self.schedule).max()))

    def exceeds(self, signal_to_noise: NDArray[np.float64], rate: float) -> tuple[bool, str]:
        """Whether steps with these ratios, composed, break the claim, and a sentence about it."""
        assert self.claim is not None
        drawn_by = self.facts.scheme
        if self.claim.adjacency == "replace" and has_opposites(self.transcript):
            drawn = Poisson(rate=rate) if drawn_by is None else drawn_by.record_by_record()
            drawn_by = ReplaceOne(of=drawn)
        if drawn_by is None or drawn_by.poisson_rate is not None:
            implied = accounting.schedule_epsilon_lower(
                signal_to_noise=signal_to_noise, sampling_rate=rate, delta=self.claim.delta
            )
        else:
            # Every step is taken to show as little as the quietest of them.
            implied = drawn_by.epsilon_lower(
                noise_multiplier=1.0 / float(signal_to_noise.min()),
                steps=signal_to_noise.size,
                delta=self.claim.delta,
            )
        if implied <= (1.0 + TOLERANCE) * self.claim.epsilon:
            return False, ""
        return True, f" It implies epsilon {implied:.3g} where {self.claim.epsilon:g} is claimed."

    def epsilon_by_sensitivity(self, sensitivity: float) -> tuple[float, float] | None:
        """The epsilon of the claimed steps, for records of one clip norm and of so many.

        None where noise, rate or claim are not known, or batches are not drawn by Poisson sampling.
        """
        rate, noise = self.claimed_rate, self.claimed_noise
        if self.claim is None or rate is None or noise is None or not (noise > 0.0).all():
            return None
        if not assumed_poisson(self.facts.scheme) or noise.size > _MOST_STEPS:
            return None
        one, more = (
            accounting.schedule_epsilon_lower(
                signal_to_noise=size / noise, sampling_rate=rate, delta=self.claim.delta
            )
            for size in (1.0, sensitivity)
        )
        return one, more

    def tensor_name(self, index: int) -> str:
        """A tensor in words: its name, or its number."""
        names = self.facts.tensors
        name = names[index] if index < len(names) else str(index)
        return name if name.startswith("tensor ") else f"tensor {name}"

    @functools.cached_property
    def quiet(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Single values that never include a planting, one row a step, and each column's tensor.

        They are in units in which steps are declared to be alike.

        These are kept absent canaries and watched coordinates. Where there are very many of the
        latter, the first few of every tensor are taken: those of equal tensors still match.
        """
        transcript = self.transcript
        absent = ~transcript.member[transcript.kept]
        watched = transcript.watch_tensor[: transcript.watch_values.shape[1]]
        chosen = np.arange(watched.size)
        if watched.size > _COLUMNS:
            _, first = np.unique(watched, return_index=True)
            within = chosen - np.repeat(first, np.diff([*first, watched.size]))
            chosen = chosen[within < max(1, _COLUMNS // first.size)]
        parts = (transcript.kept_values[:, absent], transcript.watch_values[:, chosen])
        tensors = (transcript.tensor[transcript.kept][absent], watched[chosen])
        values = np.concatenate(parts, axis=1)
        if (self.schedule != 1.0).any():
            values /= self.schedule[:, None]
        for axis in (0, 1):
            squares, count = (values**2).sum(axis=axis), np.array(values.shape[axis])
            silent = (self.audible(squares, count) == 0.0) & (squares > 0.0)
            values[(slice(None), silent) if axis == 0 else silent] = 0.0
        return values, np.concatenate(tensors)

    @functools.cached_property
    def quiet_by_tensor(self) -> NDArray[np.float64] | None:
        """The same values, each tensor's by its own scale; None where one has no noise."""
        values, tensor = self.quiet
        count = np.maximum(np.bincount(tensor), 1)
        scale = np.sqrt(np.bincount(tensor, (values**2).mean(axis=0)) / count)[tensor]
        if not (scale > 0.0).all() or not (np.ptp(values, axis=1) > 0.0).all():
            return None
        return np.asarray(values / scale)

    @functools.cached_property
    def bell_shaped(self) -> tuple[bool, bool]:
        """Whether the noise of a step, and of a coordinate, may be Gaussian for all that is seen.

        If it is not, scales vary more than chance lets them without any of them being smaller.
        """
        values = self.quiet[0]
        return _may_be_gaussian(values), _may_be_gaussian(values.T)

    @functools.cached_property
    def absolute(self) -> NDArray[np.float64]:
        """Such values as they were released, without those that are zero."""
        unit = self.schedule * self.transcript.steps.clip_norm
        values = (self.quiet[0] * unit[:, None]).ravel()
        return np.asarray(values[values != 0.0])

    @functools.cached_property
    def lattice(self) -> float:
        """The step of an even lattice that all of them lie on, 0 if there is none.

        Any numbers of finite precision lie on some lattice; one that fewer values could fill than
        there are is no accident.
        """
        values = self.absolute
        if values.size < _FEWEST_ON_A_LATTICE:
            return 0.0
        # Around zero, not around their mean: what is always the same has a size, and no spread.
        largest = float(np.abs(values).max())
        scale = largest * float(np.sqrt(np.square(values / largest).mean()))
        if not 0.0 < scale < np.inf:
            return 0.0
        size = np.unique(np.round(np.abs(values) / scale, 7))
        gaps = np.diff(size, prepend=0.0)
        step = float(gaps[gaps > 0.0].min())
        if size[-1] > step * values.size:
            return 0.0
        # The largest value says the step more exactly than the smallest gap.
        step = float(size[-1]) / round(float(size[-1]) / step)
        off = np.abs(size / step - np.rint(size / step))
        return step * scale if float(off.max()) < 0.01 else 0.0

    @property
    def spacing_in_deviations(self) -> float:
        """Spacing of that lattice in standard deviations of the noise, where it is the widest."""
        if self.lattice == 0.0:
            return 0.0
        unit = self.transcript.steps.clip_norm * self.schedule
        return self.lattice / (float(unit.min()) * self.even.scale)
