"""What is known about the run that a transcript came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from askgauss.exceptions import FileFormatError
from askgauss.files.sums import check_magnitude
from askgauss.recording.commitment import Commitment
from askgauss.recording.facts import (
    ClipCountFacts,
    GainFacts,
    MixingFacts,
    NoiseRowFacts,
    ReuseFacts,
    RoundFacts,
    RowFacts,
    SettingFacts,
    StepFacts,
    WeightFacts,
)
from askgauss.sampling import DrawnBatches, Poisson, Scheme

__all__ = ["RunFacts", "SeedProbe"]

# More than any run has; what is computed of so many takes seconds.
_MOST = {
    "skipped_steps": 10**7,
    "unnoised_steps": 10**9,
    "accounted_steps": 10**9,
    "places": 1 << 62,
    "planned_steps": 1 << 62,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedProbe:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
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

    sampling_rate: float | None = None
    scheme: Scheme | None = None
    sampling: Literal["own coin", "user's sampler"] = "own coin"
    poisson: bool = True
    poisson_declared: bool = False
    loader_poisson: bool | None = None
    background: Literal["known", "unknown"] = "known"
    fair_coins: bool = False
    noise_multiplier: float | None = None
    skipped_steps: int = 0
    accounted_steps: int | None = None
    accounted_sampling_rate: float | None = None
    accounted_scheme: Scheme | None = None
    found_scheme: Scheme | None = None
    accounted: tuple[tuple[float, float, int], ...] = ()
    accounted_epsilon: float | None = None
    epsilon_reads: tuple[tuple[float, float, int], ...] = ()
    outside: tuple[str, ...] | None = None
    outside_moved: tuple[str, ...] = ()
    watch_background: Literal["known", "unknown"] | None = None
    unnoised_steps: int = 0
    tensors: tuple[str, ...] = ()
    exercised: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    records: int | None = None
    batches: DrawnBatches | None = None
    plantings: DrawnBatches | None = None
    places: int | None = None
    seed: int | None = field(default=None, repr=False)
    contribution: float | None = None
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
    planned_steps: int | None = None
    turns: int = 1
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

    def check(self) -> None:
        """Refuse what no run is like, in facts that come from a file.

        Raises:
            FileFormatError: A number is out of its range, or what is said of the sampling
                contradicts itself.
        """
        for name in ("sampling_rate", "accounted_sampling_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0.0 <= rate <= 1.0:
                raise FileFormatError(f"Expected facts.{name} in [0, 1], got {rate}.")
        counts = ("skipped_steps", "accounted_steps", "unnoised_steps", "places", "seed")
        for name in ("noise_multiplier", "contribution"):
            check_magnitude(f"facts.{name}", getattr(self, name), zero=True)
        for name in counts:
            number = getattr(self, name)
            if number is not None and not number >= 0:
                raise FileFormatError(f"Expected facts.{name} >= 0, got {number}.")
        if any(step < 0 for step in self.resumed):
            raise FileFormatError(f"Expected facts.resumed >= 0, got {min(self.resumed)}.")
        for name, most in _MOST.items():
            number = getattr(self, name)
            if number is not None and number > most:
                raise FileFormatError(f"Expected facts.{name} <= {most:,}, got {number:.6g}.")
        if self.planned_steps is not None and self.planned_steps < 1:
            raise FileFormatError(f"Expected facts.planned_steps >= 1, got {self.planned_steps}.")
        if not 1 <= self.turns < 1 << 62:
            raise FileFormatError(f"Expected facts.turns >= 1, got {self.turns}.")
        for part in (
            *(self.weights, self.witness, self.rounds, self.clip_count),
            *(self.rows, self.mixing, self.reuse, self.noise_rows, self.gain, *self.settings),
        ):
            if part is not None:
                part.check()
        if self.commitment is not None:
            self.commitment.opened()
        for name in ("batches", "plantings"):
            drawn = getattr(self, name)
            if drawn is not None:
                drawn.check(f"facts.{name}")
        self._check_sampling()

    def _check_sampling(self) -> None:
        """The sampling is stated in several places, which the recorder fills from one scheme."""
        scheme, rate = self.scheme, self.sampling_rate
        for name in ("batches", "plantings"):
            drawn = getattr(self, name)
            if drawn is None or drawn.scheme == scheme:
                continue
            # Where only a rate was said, batches are held against the accountant's.
            if scheme is not None or drawn.scheme.poisson_rate is None:
                raise _contradiction(f"facts.{name}.scheme", drawn.scheme, scheme or "a rate alone")
        if scheme is None:
            return
        if rate is not None and not math.isclose(rate, scheme.share, rel_tol=1e-6):
            raise _contradiction("facts.sampling_rate", rate, f"{scheme}: {scheme.share:g}")
        if self.sampling == "own coin" and self.poisson != (scheme.poisson_rate is not None):
            raise _contradiction("facts.poisson", self.poisson, scheme)


def _contradiction(name: str, stated: object, declared: object) -> FileFormatError:
    return FileFormatError(
        f"Expected {name} to be that of the sampling it declares ({declared}), got {stated}: it "
        "was damaged or edited. Load the file that the run wrote."
    )
