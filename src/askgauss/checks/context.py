"""What the checks of a run share: its transcript, the claim it is compared with, and its noise.

Checks that ask the same of the steps of DP-SGD and of the nodes or rows of correlated noise read
what `Context` and `CorrelatedRun` have in common.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from askgauss import accounting
from askgauss.canaries import DiracCanaries
from askgauss.checks.registry import SUSPICIOUS
from askgauss.checks.tails import Spread, lattice_step
from askgauss.claims import PrivacyClaim
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.recording.facts import RunFacts
from askgauss.recording.recorder import Recorder
from askgauss.recording.transcript import SILENCE, LinearTranscript, Transcript
from askgauss.results import Assumption
from askgauss.sampling import Poisson, ReplaceOne, Scheme, assumed_poisson
from askgauss.scores import CanaryScores
from askgauss.stats import gaussian, normality

__all__ = [
    "INTERVAL_ERROR",
    "NOTICED",
    "TOLERANCE",
    "Context",
    "CorrelatedRun",
    "NoisyRun",
    "around",
    "has_opposites",
    "known",
    "noise",
    "noise_transcript",
    "orthogonal",
    "single_values",
    "unit_sums",
]

# A measured difference below this is real or not, but does not matter to anybody.
TOLERANCE = 0.005
# Intervals next to measured values have this error.
INTERVAL_ERROR = 0.01
# Standard errors that a fault must measure to be detected with probability .8: one of some thirty
# checks that share half of the default gate error rejects from 4.3 on; of correlated noise there
# are fewer checks.
NOTICED = 5.2
_NOTICED_OF_NODES = 4.06 + 0.84
# Fewer values than these may all be that small by chance; only exact zeros tell then.
_FEWEST_TO_HEAR = 5
_FEWEST_FOR_SHAPE = 8
_FEWEST_NODES = 10
# Columns of single values that are compared with each other, at most.
_COLUMNS = 2048
# Steps that are composed to say what they leak.
_MOST_STEPS = 10_000_000


def around(value: float, error: float) -> tuple[float, float]:
    """The interval of a Gaussian estimate with this standard error."""
    half = float(ndtri(1.0 - 0.5 * INTERVAL_ERROR)) * error
    return value - half, value + half


def has_opposites(data: CanaryScores | Transcript | LinearTranscript) -> bool:
    """Whether a canary's record can be exchanged for one with the opposite gradient.

    A gradient-space canary adds a vector that the audit chose. Clipping depends on a gradient's
    norm alone and the noise on none, so the opposite vector adds the opposite. The opposite of an
    input-space canary's gradient belongs to no known record, and scores do not say what they are
    of.
    """
    if isinstance(data, CanaryScores):
        return False
    rounds = data.facts.rounds
    if isinstance(data, LinearTranscript):
        return True
    return data.facts.contribution is None and (rounds is None or rounds.signed)


def _above_claim(claim: PrivacyClaim, implied: float) -> tuple[bool, str]:
    """Whether this epsilon is above the claimed one, and a sentence about it."""
    if not implied > (1.0 + TOLERANCE) * claim.epsilon:
        return False, ""
    return True, f" It implies epsilon {implied:.3g} where {claim.epsilon:g} is claimed."


def _may_be_gaussian(rows: NDArray[np.float64]) -> bool:
    """Whether rows of single values, each by its own scale, are not far from a Gaussian."""
    rows = rows[np.ptp(rows, axis=1) > 0.0] if rows.shape[1] >= _FEWEST_FOR_SHAPE else rows[:0]
    if len(rows) == 0:
        return True
    _, skewness_p, _, kurtosis_p = normality.average_shape(rows)
    return min(skewness_p, kurtosis_p) >= SUSPICIOUS


def known(run: NoisyRun) -> str:
    """Checks of the noise need to tell it from the gradients of other records."""
    return "" if run.known else "a known background, to tell noise from other records"


def orthogonal(run: NoisyRun) -> str:
    """Checks of independent coordinates need canaries that share no direction."""
    if run.exact:
        return ""
    return "a known background and canaries that are orthogonal by construction"


def noise(run: NoisyRun) -> str:
    """Checks of how noise is distributed need some."""
    return "" if run.noise.square else "noise"


def unit_sums(context: Context) -> str:
    """Checks of single canaries need their sums in units in which steps are alike."""
    return "" if context.by_canary is not None else "per-canary sums in units of the declared noise"


single_values = (known, orthogonal, noise)
"""What it takes to read single values as noise."""


@dataclass(frozen=True)
class Context:
    """The transcript of a run whose steps have independent noise, and what it is compared with."""

    transcript: Transcript
    claim: PrivacyClaim | None

    unit = "step"
    noticed = NOTICED
    undermines = Assumption.SUBSAMPLED_GAUSSIAN_STEPS

    @property
    def facts(self) -> RunFacts:
        """What is known about the run."""
        return self.transcript.facts

    @property
    def known(self) -> bool:
        """Whether observations without an included canary are noise and nothing else."""
        return self.facts.background == "known"

    @property
    def exact(self) -> bool:
        """Whether they are also noise of directions that share nothing with included ones."""
        return self.known and self.transcript.gram.size == 0

    @property
    def dependent(self) -> str:
        """What is missing to take the noises of steps for independent."""
        return "" if self.known else "a known background: steps share the gradients of records"

    @property
    def sampled_by_recorder(self) -> bool:
        """Whether the recorder drew who is included, and not the training's own sampler."""
        return self.facts.sampling == "own coin"

    @functools.cached_property
    def others(self) -> NDArray[np.float64]:
        """Observations without an included canary, by step."""
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
        """Count, sum and sum of squares of each canary's observations where it is not included.

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
        """Sums of this many squares, zero where they are rounding errors and no noise.

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
    def claimed_scale(self) -> float | None:
        """The claimed noise multiplier, where all steps have one."""
        claimed = self.claimed_noise
        same = claimed is not None and (claimed == claimed[0]).all()
        return float(claimed[0]) if same and claimed is not None else None

    @property
    def relative(self) -> Spread | None:
        """The noise in units of what is claimed, which may change from step to step."""
        claimed = self.claimed_noise
        if claimed is None or not claimed.all():
            return None
        return Spread(self.noise.freedom, float((self.squares / claimed**2).sum()))

    def breach_of_noise(self, most: float) -> tuple[bool, str]:
        """Whether the noise of all steps violates the claim; it is measured over the whole run."""
        return self.breach()

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
        """Whether steps with the noise that was measured, composed, violate the claim.

        Args:
            signal: What a record adds to the sum of a step at least, in clip norms.
            noise: The noise multiplier at most, of the first step where they follow a schedule; as
                measured over the whole run if not given, or as claimed where other records hide it.
            rate: How often at least; as accounted for if not given.
            steps: In how many steps; as accounted for if not given.

        Returns:
            Whether the claim is exceeded by more than the tolerance, and a sentence about it. Where
            there is no claim, or no rate to compose with, any part not as claimed violates it.
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
        # Whatever a file says: what fewer steps leak is a lower bound.
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
        """Whether steps with these ratios, composed, violate the claim, and a sentence about it."""
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
        return _above_claim(self.claim, implied)

    def epsilon_by_sensitivity(self, sensitivity: float) -> tuple[float, float] | None:
        """The epsilon of the claimed steps, for records of one clip norm and of this sensitivity.

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

    def place(self, row: int) -> str:
        """A step by its number."""
        return f"{row + 1}"

    def coordinates(self, first: int, second: int) -> str:
        """The tensors of two columns of the rows."""
        tensors = sorted({*self.quiet[1][[first, second]].tolist()})
        names = [self.tensor_name(index) for index in tensors]
        return f", both in {names[0]}," if len(names) == 1 else f", in {' and '.join(names)},"

    @property
    def rows(self) -> NDArray[np.float64]:
        """The values of `quiet`."""
        return self.quiet[0]

    @functools.cached_property
    def quiet(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Single values without an included canary, one row a step, and each column's tensor.

        They are those of kept held-out canaries and of watched coordinates, in units in which steps
        are declared to be alike. Where there are very many watched coordinates, the first few of
        every tensor are taken: those of equal tensors still match.
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
    def scaled_rows(self) -> NDArray[np.float64] | None:
        """The same values, each tensor's in units of its own scale; None where one has no noise."""
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
        """The step of an even lattice that all of them lie on, 0 if there is none."""
        return lattice_step(self.absolute)

    @property
    def spacing_in_deviations(self) -> float:
        """Spacing of that lattice in standard deviations of the noise, where it is the widest."""
        if self.lattice == 0.0:
            return 0.0
        unit = self.transcript.steps.clip_norm * self.schedule
        return self.lattice / (float(unit.min()) * self.even.scale)


@dataclass(frozen=True)
class CorrelatedRun:
    """The transcript of a mechanism with correlated noise, and the claim it is compared with."""

    transcript: LinearTranscript
    claim: PrivacyClaim | None

    unit = "node"
    noticed = _NOTICED_OF_NODES
    undermines = Assumption.GAUSSIAN_SCORES
    exact = False

    @property
    def facts(self) -> RunFacts:
        """What is known about the run."""
        return self.transcript.facts

    @property
    def known(self) -> bool:
        """Whether what held-out canaries show is noise and nothing else."""
        return self.facts.background == "known"

    @property
    def unclaimed(self) -> str:
        """What is missing to compare the noise with a claim."""
        return "" if self.claimed else "a claimed noise_multiplier to compare with"

    @property
    def apart(self) -> str:
        """What is missing to see the noise of a node by itself."""
        if self.transcript.plan.independent:
            return ""
        return "nodes, or prefixes of trees that are not filled up"

    @property
    def dependent(self) -> str:
        """What is missing to take the noises of nodes for independent."""
        return known(self) or self.apart

    @property
    def rows(self) -> NDArray[np.float64]:
        """Noise of kept held-out canaries, one row a node."""
        return self.transcript.kept_values

    @property
    def scaled_rows(self) -> NDArray[np.float64] | None:
        """The rows that vary; None where they are too few."""
        rows = self.rows[np.ptp(self.rows, axis=1) > 0.0]
        return rows if len(rows) >= _FEWEST_NODES else None

    @property
    def relative(self) -> Spread | None:
        """The noise in units of the claimed noise of one node."""
        if not self.claimed:
            return None
        return Spread(self.noise.freedom, self.noise.square / self.claimed**2)

    @property
    def claimed_scale(self) -> float | None:
        """The claimed noise of one node."""
        return self.claimed

    def breach_of_noise(self, most: float) -> tuple[bool, str]:
        """Whether a record in nodes with at most this noise violates the claim."""
        if self.claim is None:
            return True, ""
        return self.breach(self.transcript.largest_information / most)

    def place(self, row: int) -> str:
        """A node or a row of the strategy by its indices."""
        pieces = self.transcript.pieces
        if isinstance(self.transcript.plan, StrategyPlan):
            return f"row {pieces.index[row]} of the strategy"
        return f"tree {pieces.tree[row]}, level {pieces.level[row]}, index {pieces.index[row]}"

    def coordinates(self, first: int, second: int) -> str:
        """Nothing: nodes do not record the tensors of coordinates."""
        return ""

    @property
    def claimed(self) -> float | None:
        """The claimed noise of one node, in clip norms."""
        claimed = self.claim.noise_multiplier if self.claim is not None else None
        return claimed or self.transcript.facts.noise_multiplier or None

    @property
    def absent(self) -> int:
        """Observations of one node."""
        return int(np.count_nonzero(~self.transcript.member))

    @property
    def noise(self) -> Spread:
        """The noise of all nodes together."""
        scale, count = self.transcript.measured_noise()
        return Spread(float(count), count * scale**2)

    def most_noise(self) -> float:
        """The noise of a node at most, taken over all of them."""
        most = self.noise.interval(INTERVAL_ERROR)[1]
        return max(most, self.claimed or 0.0)

    def breach(self, shift: float) -> tuple[bool, str]:
        """Whether a record that moves its score this far violates the claim, in a sentence."""
        if self.claim is None:
            return False, ""
        if self.claim.adjacency == "replace":
            shift *= 2.0
        epsilon = float(gaussian.gdp_epsilon(self.claim.delta, shift))
        return _above_claim(self.claim, epsilon)

    def breach_of_piece(self, piece: int, scale: float) -> tuple[bool, str]:
        """The same of a piece whose noise is at most ``scale``, all others having their noise."""
        pieces, largest = self.transcript.pieces, self.transcript.largest_information
        signal, gain = 1.0, largest**2
        if pieces.signal is not None and pieces.gain is not None:
            signal, gain = float(pieces.signal[piece]), float(pieces.gain[piece])
        if scale <= 0.0:
            return self.breach(math.inf if signal > 0.0 else 0.0)
        # A hypotenuse, since squares of such ratios may be beyond all numbers.
        rest = math.sqrt(max(gain - signal**2, 0.0)) / self.most_noise()
        return self.breach(math.hypot(rest, signal / scale))


NoisyRun = Context | CorrelatedRun
"""A run, by the noise of its steps or of its nodes or rows: what both have, checks share."""


def noise_transcript(transcript: Transcript) -> Transcript:
    """The transcript that checks of the noise read: of watched coordinates, where these are needed.

    Along the gradients of examples, and wherever the background is unknown, other records hide the
    noise. Watched coordinates may be free of them all the same: what a step released there, less
    the sum that the noise was added to. They are read like held-out canaries.
    """
    facts, values = transcript.facts, transcript.watch_values
    if facts.background == "known" or facts.watch_background != "known" or values.shape[1] < 2:
        return transcript
    tensors, sizes = np.unique(transcript.watch_tensor, return_counts=True)
    places = DiracCanaries(
        present=0, absent=values.shape[1], tensors=tuple(sizes.tolist()), seed=facts.seed or 0
    )
    # Canaries lie at all of these coordinates, and the coordinates come tensor by tensor.
    columns = np.argsort(transcript.watch_tensor, kind="stable")[places.coordinates]
    recorder = Recorder(places, sampling_rate=1.0)
    for row, clip_norm, noise in zip(
        values, transcript.steps.clip_norm, transcript.steps.noise_multiplier, strict=True
    ):
        recorder.sample()
        recorder.observe(
            row[columns] * clip_norm,
            background=0.0,
            clip_norm=float(clip_norm),
            noise_multiplier=None if np.isnan(noise) else float(noise),
        )
    names = facts.tensors
    seen = tuple(names[index] if index < len(names) else f"tensor {index}" for index in tensors)
    return recorder.transcript().with_facts(
        replace(facts, background="known", sampling="own coin", tensors=seen)
    )
