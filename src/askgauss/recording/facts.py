"""What is known about a run beside what it released, as frozen dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.files.codec import SIGNED, Facts, number
from askgauss.recording.commitment import Commitment
from askgauss.recording.noise_sample import NoiseRowFacts, ReuseFacts
from askgauss.sampling import DrawnBatches, Poisson, Scheme

__all__ = [
    "DIVISOR_SPACING",
    "ClipCountFacts",
    "GainFacts",
    "HonestFacts",
    "MixingFacts",
    "ParticipationFacts",
    "ProbeFacts",
    "ProbeReading",
    "RoundFacts",
    "RowFacts",
    "RunFacts",
    "SeedProbe",
    "SettingFacts",
    "StepFacts",
    "WeightFacts",
    "noise_of_both",
]


def noise_of_both(noise_multiplier: float, deviation: float) -> float:
    """The noise multiplier of gradients and count in one; a record moves the latter by a half."""
    if noise_multiplier <= 0.0 or deviation <= 0.0:
        return 0.0
    return float((noise_multiplier**-2 + (2.0 * deviation) ** -2) ** -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCountFacts(Facts):
    """What was seen of the noisy count that moves the clip norm.

    Attributes:
        releases: How often a noisy count was used.
        shown: How often it moved the clip norm within its limits, so that the norm tells it.
        read: How often its noise could be read.
        square: Sum of squares of that noise, in units of its stated deviation.
        deviation: The largest deviation stated for it, in records.
        noise_multiplier: The largest noise multiplier that gradients and count have together, as
            stated.
    """

    releases: int = 0
    shown: int = 0
    read: int = 0
    square: float = 0.0
    deviation: float = 0.0
    noise_multiplier: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GainFacts(Facts):
    """What a step made of the clean sum, seen along that sum itself.

    Noise is as large in this direction as in any other. A noisy sum that is divided by another
    number in every step has a part of the clean sum there as well.

    Attributes:
        steps: Steps with a clean sum.
        gain: What the clean sum was multiplied by, on average.
        along: Root mean square of what was released along the clean sum less that, in clip norms.
        norm: Root mean square of the norm of the clean sum, in clip norms.
    """

    steps: int = 0
    gain: float = number(1.0, low=-_validate.LARGEST, high=_validate.LARGEST)
    along: float = number(0.0, high=_validate.LARGEST)
    norm: float = number(0.0, high=_validate.LARGEST)

    @classmethod
    def of(cls, along: NDArray[np.float64], norm: NDArray[np.float64]) -> GainFacts | None:
        """The facts of a run; None where fewer than two steps had a clean sum.

        Args:
            along: What each step released beyond the clean sum, along it, in clip norms.
            norm: Norm of the clean sum of each step, in clip norms.
        """
        use = np.isfinite(along) & np.isfinite(norm) & (norm > 0.0)
        along, norm = along[use], norm[use]
        if norm.size < 2:
            return None
        more = float(along @ norm) / float(norm @ norm)
        left = along - more * norm
        return cls(
            steps=norm.size,
            gain=1.0 + more,
            along=math.sqrt(float(left @ left) / (norm.size - 1)),
            norm=math.sqrt(float(norm @ norm) / norm.size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingFacts(Facts):
    """Where records of a batch met before they were clipped.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        forward: Steps whose forward pass was repeated with other records replaced.
        inputs: Steps whose inputs were compared with the batch of the loader.
        loss: Steps whose loss was differentiated twice.
        forward_first: The first step in which an output depended on other records.
        state_first: The first step in which the forward pass wrote a statistic of the batch to the
            model, which later outputs depend on.
        inputs_first: The first step in which a row of the input was made of two records.
        loss_first: The first step in which the gradient of one output depended on other outputs.
        weights_first: The first step in which class weights followed the counts in the batch.
        forward_unseen: Why the forward pass of a step was not looked at; empty where all were.
        inputs_unseen: Why the inputs were not.
        loss_unseen: Why the loss was not.
    """

    forward: int = 0
    inputs: int = 0
    loss: int = 0
    forward_first: int = 0
    state_first: int = 0
    inputs_first: int = 0
    loss_first: int = 0
    weights_first: int = 0
    forward_unseen: str = ""
    inputs_unseen: str = ""
    loss_unseen: str = ""

    @property
    def mixed(self) -> bool:
        """Whether records met anywhere."""
        return any(getattr(self, item.name) for item in fields(self) if item.name.endswith("first"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading(Facts):
    """What one client adds to the released sum of a probe.

    Attributes:
        added: In clip norms, on a grid as wide as its error.
        error: Standard error of that, by the noise next to it.
        noise: Noise multiplier of the same release: a sum that is scaled up with its noise, such
            as one over fewer survivors, is no fault.
        values: Entries from which that noise was measured.
    """

    added: float = number(low=SIGNED)
    error: float = 0.0
    noise: float = 0.0
    values: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts(Facts):
    """What a copy of the aggregator did with updates that no correct client may upset it with.

    Numbers are None where the probe could not be made; an outcome is ``"finite"``, ``"nan"``, or
    the name of what was raised.

    Attributes:
        unchecked: Why nothing was probed; empty where it was.
        clients: Clients of one probe.
        with_nan: What came of an update with one nan.
        zero: What came of an update of zeros.
        heavy: What a client adds that reports a million times what others do.
        heavy_refused: Name of what was raised instead; empty where nothing was.
        clipped: What a client adds whose update is above the clip norm: the most of all that were
            tried.
        clipped_size: The norm of that update, in clip norms.
        clipped_way: How it was made, in words.
        clipped_tried: Number of updates that were tried.
        overflowed: How the update was made that the release is not finite after; empty where it
            always is.
        counted: What the client adds that counts most, where all send as much.
        spread: Noise of a round of four times as many clients over that of a round, on the sum.
        spread_error: Standard error of that ratio.
        norm_if_above: The next clip norm over this one, every update being far above it.
        norm_if_below: The same, every update being far below.
    """

    unchecked: str = ""
    clients: int = 0
    with_nan: str = ""
    zero: str = ""
    heavy: ProbeReading | None = None
    heavy_refused: str = ""
    clipped: ProbeReading | None = None
    clipped_size: float = 0.0
    clipped_way: str = ""
    clipped_tried: int = 0
    overflowed: str = ""
    counted: ProbeReading | None = None
    spread: float | None = None
    spread_error: float = 0.0
    norm_if_above: float | None = None
    norm_if_below: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipationFacts(Facts):
    """How often clients took part, where rounds say who did.

    Attributes:
        clients: Clients that were named.
        most: Most rounds that one of them entered.
        closest: Least distance between two rounds of one of them; 0 where none entered twice.
        limit: Most rounds that were accounted for; None where nothing limits them.
        separation: Least distance that was accounted for.
        moved: How far the client that moves the mechanism most moves its nodes or rows, in clip
            norms, of those beyond the limits; 0 where none is.
    """

    clients: int = 0
    most: int = 0
    closest: int = 0
    limit: int | None = None
    separation: int = 1
    moved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestFacts(Facts):
    """What honest clients add to the sums, along their own updates.

    Attributes:
        rounds: Rounds in which it was read.
        groups: Groups of clients that were told apart.
        group: The group that adds most, in words.
        added: What a client of this group adds, in clip norms, on a grid as wide as its error.
        error: Standard error of that.
    """

    rounds: int = 0
    groups: int = 0
    group: str = ""
    added: float = number(0.0, low=SIGNED)
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts(Facts):
    """What was seen of the clients of all rounds, beside what was released.

    Attributes:
        fewest: Honest clients of the smallest round.
        most: Honest clients of the largest round.
        heaviest: The largest weight that an honest client reported, over the mean weight of its
            round; canaries report the largest one of their round.
        reported: What canaries would add on average, were clients weighted as they report.
        adaptive: Whether the clip norm may change from round to round.
        next_norms: The clip norm after each round over the one before it; empty where it is fixed.
        unreleased: Rounds that released nothing.
        probes: What odd updates did.
        participation: How often clients took part; None where rounds do not say who did.
        signed: Whether canaries sent updates of either sign, as many as chance has it.
        honest: What honest clients add; None where it was not read.
    """

    fewest: int = 0
    most: int = 0
    heaviest: float = 1.0
    reported: float = 1.0
    adaptive: bool = False
    next_norms: tuple[float, ...] = number((), low=_validate.SMALLEST, high=_validate.LARGEST)
    unreleased: int = 0
    probes: ProbeFacts = ProbeFacts()
    participation: ParticipationFacts | None = None
    signed: bool = False
    honest: HonestFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts(Facts):
    """Rows of per-sample gradients in every step, compared with the records drawn for it.

    Steps count from 1, and are 0 where there is none.

    Attributes:
        unseen: Why rows and draws could not be compared; empty where they were.
        steps: Private steps.
        compared: Those whose rows and draws were both seen.
        identified: Those whose input was also recognised as the batch that the loader yielded.
        more: Steps with more rows than records drawn.
        more_first: The first of them.
        multiple: Rows of each record, where every such step has the same whole multiple of its
            records and their number varies; 0 otherwise.
        extra_least: The fewest rows that such a step had beyond its records.
        extra_most: The most.
        more_rows: Rows of these steps together.
        more_drawn: Records drawn for them.
        fewer: Steps with fewer rows than records drawn.
        fewer_first: The first of them.
        fewer_rows: Rows of these steps together.
        fewer_drawn: Records drawn for them.
        doubled: Steps with as many rows as records, of which some records had several.
        doubled_first: The first of them.
        strays: Steps with a row that was drawn for an earlier step, and not for this one.
        strays_first: The first of them.
        unused: Batches that no step used although a later one of the same pass was used, or the
            model was called with them as with those that were used.
        unused_empty: Those of them that held no record.
        unused_first: The step before which the first of them was left out.
        skipped: Batches of whole passes that the model was called with and no step used, where
            every other pass was used whole: a schedule does that, and depends on no record.
        even: Whether equally many were left out before every step, which depends on no record.
        undrawn: Steps while the loader had not been drawn from since the audit was attached.
        other: What the batches of other loaders were drawn by, where one was used.
        foreign: Steps whose rows are those of another loader's batch.
        foreign_first: The first of them.
        again: Steps without a draw of their own, after the loader had been drawn from.
        again_first: The first of them.
        missed: Steps on batches that were drawn before the audit was attached.
    """

    unseen: str = ""
    steps: int = 0
    compared: int = 0
    identified: int = 0
    more: int = 0
    more_first: int = 0
    multiple: int = 0
    extra_least: int = 0
    extra_most: int = 0
    more_rows: int = 0
    more_drawn: int = 0
    fewer: int = 0
    fewer_first: int = 0
    fewer_rows: int = 0
    fewer_drawn: int = 0
    doubled: int = 0
    doubled_first: int = 0
    strays: int = 0
    strays_first: int = 0
    unused: int = 0
    unused_empty: int = 0
    unused_first: int = 0
    skipped: int = 0
    even: bool = False
    undrawn: int = 0
    other: str = ""
    foreign: int = 0
    foreign_first: int = 0
    again: int = 0
    again_first: int = 0
    missed: int = 0

    @property
    def never_drawn(self) -> bool:
        """Whether the loader was not drawn from in any of several steps."""
        return 1 < self.undrawn == self.steps

    @property
    def dropped(self) -> int:
        """Batches left out in a way that may depend on the records."""
        return 0 if self.even else self.unused

    @property
    def clean(self) -> bool:
        """Whether every step that was seen trained on the records drawn for it, once each."""
        rows = self.more, self.fewer, self.doubled, self.strays
        faults = (*rows, self.dropped, self.foreign, self.again)
        return not self.unseen and not any(faults) and not self.never_drawn


# Turns that no pattern foretells, from which on a setting does not follow the step number alone,
# and their share of all changes: a value that follows the batch turns at two changes of three.
_TURNS = 6
_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFacts(Facts):
    """How one setting moved over the steps of a run.

    Attributes:
        name: The setting.
        steps: Steps in which it was read.
        changes: Steps in which it was another one than in the step before.
        turns: Changes that went up where the one before went down, or the reverse, and that the
            pattern of earlier changes did not foretell.
        first: The step of the first change; 0 if there is none.
        scheduler: Class of the scheduler that sets it, where one was found.
        declared: Changes that were declared to depend on released values alone, or that a
            scheduler of torch made that depends on the step number alone.
        adapted: Whether the optimizer adapts it, from a noisy count that is tested by itself.
    """

    name: str
    steps: int = 0
    changes: int = 0
    turns: int = 0
    first: int = 0
    scheduler: str = ""
    declared: int = 0
    adapted: bool = False

    @property
    def erratic(self) -> bool:
        """Whether it moved up and down as no schedule does."""
        return not self.adapted and self.turns >= _TURNS and self.turns > _SHARE * self.changes


# Divisors that differ by this share are the same but for rounding.
DIVISOR_SPACING = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts(Facts):
    """What was found in the steps that were looked at, and in what was looked at in all of them.

    Norms are in clip norms. Steps count from 1, and are 0 where there is none.

    Attributes:
        share: The share of steps that were to be looked at, beside the first.
        unchecked: Why records could not be looked at; empty where they were.
        recomputed: Whether the records' gradients were computed again, as for ghost clipping.
        steps: Steps looked at.
        records: Records whose contribution was computed.
        precision: Number format of the records' gradients, where it is coarser than float32;
            empty where it is not.
        coarseness: How far above the clip norm norms in that format may let a record, in clip
            norms.
        clipped: Those whose gradient was longer than the clip norm, so that clipping had to act.
        largest: The largest contribution of a record after clipping.
        largest_step: The step it was in.
        largest_tensor: The tensor that most of it was in.
        off: The largest distance of a sum from that of its records.
        off_allowed: How far rounding may have put that sum.
        off_step: The step it was in.
        off_tensor: The tensor that most of it was in.
        norm_off: The largest error of a norm that ghost clipping computed, as a share of the norm
            of the whole gradient; negative where it computed too little.
        norm_step: The step it was in.
        norm_tensor: The tensor it was in.
        divided: Steps whose divisor was measured.
        least_divisor: The smallest of them, in units of the stated one.
        most_divisor: The largest.
        divisor_step: The step in which it first was another one.
        uneven: Steps whose gradient was not divided by one number.
        divisor_spacing: How far apart rounding alone may put two divisors.
        covered: Steps in which the noise of every trained tensor was looked at.
        uncovered: Trained tensors, or parts of them, that got no noise.
        uncovered_step: The step in which that first was so.
    """

    share: float = 0.0
    unchecked: str = ""
    recomputed: bool = False
    steps: int = 0
    records: int = 0
    precision: str = ""
    coarseness: float = 0.0
    clipped: int = 0
    largest: float = 0.0
    largest_step: int = 0
    largest_tensor: str = ""
    off: float = 0.0
    off_allowed: float = 0.0
    off_step: int = 0
    off_tensor: str = ""
    norm_off: float = number(0.0, low=SIGNED)
    norm_step: int = 0
    norm_tensor: str = ""
    divided: int = 0
    least_divisor: float = number(1.0, low=SIGNED)
    most_divisor: float = number(1.0, low=SIGNED)
    divisor_step: int = 0
    uneven: int = 0
    divisor_spacing: float = DIVISOR_SPACING
    covered: int = 0
    uncovered: tuple[str, ...] = ()
    uncovered_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts(Facts):
    """How the weights of a run moved, compared with what each step released.

    Attributes:
        optimizer: The class of the optimizer that moved them.
        unchecked: Why moves could not be compared; empty where they were.
        unseen: Whether the weights themselves were never seen.
        places: Coordinates compared in every step.
        steps: Steps compared.
        otherwise: Steps in which a weight moved otherwise than by the release.
        regraded: Of those, steps whose gradient was changed after it had been read.
        scaled: Of those, steps in which all of the gradient was multiplied by one number.
        factor: That number, in the first of them.
        first: The first step with another move, from 1; 0 if none.
        tensor: The tensor it was largest in.
        excess: That largest difference, in units of the move that the release explains.
        closures: Steps whose closure reached the optimizer that moves the weights.
        between: How often weights had changed since the step before.
        between_first: The step before which they first had; 0 if never.
        between_tensor: A tensor they had changed in.
        loaded: How often a state was loaded into the optimizer that neither the releases nor a
            checkpoint of this run explain.
        loaded_first: The step before which that first happened; 0 if never.
        loaded_excess: The most by which the weights' move in the step after differs from the one
            that the releases explain, in units of that.
        declared: How often a change between steps was declared to be postprocessing.
        declare: The call that does so.
        bare: Trained tensors in which no canary lies, since they began to train later.
        bare_moved: Those of them that moved.
        tensors: Tensors with coordinates that are compared.
        unmoved: Those in which none of them ever moved.
        unreached: Those in which none of them ever had a gradient of a record: the clipped sum
            before canaries and noise was zero there in every step.
    """

    optimizer: str = ""
    unchecked: str = ""
    unseen: bool = False
    places: int = 0
    steps: int = 0
    otherwise: int = 0
    regraded: int = 0
    scaled: int = 0
    factor: float = number(1.0, low=SIGNED)
    first: int = 0
    tensor: str = ""
    excess: float = 0.0
    closures: int = 0
    between: int = 0
    between_first: int = 0
    between_tensor: str = ""
    loaded: int = 0
    loaded_first: int = 0
    loaded_excess: float = 0.0
    declared: int = 0
    declare: str = "audit.postprocessing()"
    bare: tuple[str, ...] = ()
    bare_moved: tuple[str, ...] = ()
    tensors: int = 0
    unmoved: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProbe(Facts):
    """What came of trying likely seeds on the first released noise.

    Attributes:
        tried: Number of seeds; 0 where there was too little noise to compare.
        ways: Ways to draw noise from a seed that were tried.
        found: The seed and the way that give this noise; empty if none does.
        seeded: Whether noise comes from a generator of the process that was given a seed, which may
            lie many draws before the noise.
    """

    tried: int
    ways: tuple[str, ...] = ()
    found: str = field(default="", repr=False)
    seeded: bool = False


# More than any run has.
_MOST = 1 << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts(Facts):
    """What is known about the run a transcript came from.

    Attributes:
        sampling_rate: Probability that a present canary is planted in a step.
        scheme: How records are drawn, where it was declared as a scheme.
        sampling: Who decided: the recorder's own coin, or the user's sampler.
        poisson: Whether the canaries' inclusions are independent between steps and records.
        poisson_declared: Whether that is the user's word, and not what the audit did or saw.
        loader_poisson: Whether the training's own loader samples by Poisson; None where it was
            not seen.
        background: Whether the other records' clean sum was subtracted.
        fair_coins: Whether every canary was made present by a fair coin of its own.
        noise_multiplier: The noise multiplier the run says it used.
        skipped_steps: Noisy steps that went by and were not observed, as was asked.
        accounted_steps: Steps the run's accountant counted.
        accounted_sampling_rate: Sampling rate the run's accountant used.
        accounted_scheme: How records are drawn by what the run's accountant assumes.
        found_scheme: How they are drawn by what the batches show, where that is another scheme
            than the one that was declared.
        accounted: All that the run's accountant has counted, before the audit too: noise
            multiplier, sampling rate and number of each kind of steps.
        accounted_epsilon: The epsilon that accountant itself says, at the delta of the claim.
        epsilon_reads: Delta, epsilon and steps accounted for, whenever epsilon was read.
        outside: Parameters of the model that could train and that the optimizer does not have;
            None where nobody looked.
        outside_moved: Those of them that changed while the audit watched.
        watch_background: Whether watched coordinates are noise alone; None: as the background is.
        unnoised_steps: Optimizer steps taken without the mechanism adding noise.
        tensors: Names of the tensors, in the order of the tensor indices.
        exercised: Parts of the training the canaries went through, by the names in
            `askgauss.checks.scope`.
        precision: Names of the number formats met.
        records: Records the training draws its batches from, where that was said.
        batches: The training's batches, held against the scheme.
        plantings: The canaries of the user's sampler, held against it.
        places: How many canaries of this kind the model has room for, where that is known.
        seed: Root of the canaries' random choices.
        contribution: Mean norm of a canary's own clipped gradient over the observed steps, in clip
            norms; None where canaries are planted with the whole clip norm.
        seed_probe: Whether the first noise is one that a likely seed gives; None where not tried.
        weights: How the weights moved, compared with what was released; None where nobody looked.
        witness: What was found in steps that were looked at exactly; None where nobody looked.
        rounds: What was seen of the clients of federated rounds; None where there are none.
        rows: Rows that the steps trained on, compared with the records drawn for them; None where
            nobody looked.
        mixing: Whether records met before they were clipped; None where nobody looked.
        clip_count: What was seen of the count by which the clip norm was adapted; None where it
            was not.
        unit: What one canary stands for: an example, or a user whose examples are clipped together.
        reuse: Whether any noise was used again; None where not all of it was seen.
        noise_rows: What was seen of the noise of single rows of a strategy; None where there are
            none.
        settings: How clip norm, noise multiplier, learning rate and expected batch size moved from
            step to step; empty where nobody looked.
        gain: What steps made of the clean sum, where it and what was released were seen whole; None
            where they were not.
        frozen: Name, first step and number of steps of tensors that were frozen while the audit
            watched them; their canaries were left out.
        ended: Why the recording ended before the training did; empty where it did not.
        watched: Whether a monitor showed the run while it trained, which may have ended it.
        planned_steps: Steps that a run that was watched was to take, as said before it; None where
            nobody said.
        turns: Steps of the training that a recorded step stands for: records take turns in them.
        notes: Anything a reader of the report should know.
        run: The identity of the run, drawn when it was begun: checkpoints, step store, scores and
            result of one run share it. No part of what is compared.
        commitment: What was fixed before the first step, and what opens it; None if nothing was.
        resumed: Steps of the training after which it went on from a checkpoint, where nobody said
            by ``step=`` that the model was at the same one. No part of what is compared: a run that
            is resumed rightly is the run that was never stopped.
    """

    sampling_rate: float | None = number(None, high=1.0)
    scheme: Scheme | None = None
    sampling: Literal["own coin", "user's sampler"] = "own coin"
    poisson: bool = True
    poisson_declared: bool = False
    loader_poisson: bool | None = None
    background: Literal["known", "unknown"] = "known"
    fair_coins: bool = False
    noise_multiplier: float | None = number(
        None, low=_validate.SMALLEST, high=_validate.LARGEST, zero=True
    )
    skipped_steps: int = number(high=1e7)
    accounted_steps: int | None = number(None, high=1e9)
    accounted_sampling_rate: float | None = number(None, high=1.0)
    accounted_scheme: Scheme | None = None
    found_scheme: Scheme | None = None
    accounted: tuple[tuple[float, float, int], ...] = ()
    accounted_epsilon: float | None = None
    epsilon_reads: tuple[tuple[float, float, int], ...] = ()
    outside: tuple[str, ...] | None = None
    outside_moved: tuple[str, ...] = ()
    watch_background: Literal["known", "unknown"] | None = None
    unnoised_steps: int = number(high=1e9)
    tensors: tuple[str, ...] = ()
    exercised: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    records: int | None = None
    batches: DrawnBatches | None = None
    plantings: DrawnBatches | None = None
    places: int | None = number(None, high=_MOST)
    seed: int | None = field(default=None, repr=False)
    contribution: float | None = number(
        None, low=_validate.SMALLEST, high=_validate.LARGEST, zero=True
    )
    seed_probe: SeedProbe | None = None
    weights: WeightFacts | None = None
    witness: StepFacts | None = None
    rounds: RoundFacts | None = None
    clip_count: ClipCountFacts | None = None
    rows: RowFacts | None = None
    mixing: MixingFacts | None = None
    unit: Literal["example", "user"] = "example"
    reuse: ReuseFacts | None = None
    noise_rows: NoiseRowFacts | None = None
    settings: tuple[SettingFacts, ...] = ()
    gain: GainFacts | None = None
    frozen: tuple[tuple[str, int, int], ...] = ()
    ended: str = ""
    watched: bool = False
    planned_steps: int | None = number(None, low=1, high=_MOST)
    turns: int = number(1, low=1, high=_MOST)
    notes: tuple[str, ...] = ()
    run: str | None = field(default=None, compare=False)
    commitment: Commitment | None = field(default=None, compare=False)
    resumed: tuple[int, ...] = field(default=(), compare=False)

    @property
    def drawn_by(self) -> Scheme | None:
        """How canaries are drawn; None where nobody said."""
        if self.scheme is None and self.poisson and self.sampling_rate:
            return Poisson(rate=self.sampling_rate)
        return self.scheme

    @property
    def known_background(self) -> bool:
        """Whether what other records drew says nothing of a canary's draws."""
        return self.poisson if self.scheme is None else self.scheme.known_background

    @property
    def own_law(self) -> Scheme | None:
        """How the recorder's own coin draws each canary by itself; None where it drew none."""
        if self.sampling != "own coin":
            return None
        if self.scheme is not None:
            return self.scheme.record_by_record()
        return Poisson(rate=self.sampling_rate) if self.sampling_rate else None
