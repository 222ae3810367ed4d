"""The recorder of correlated noise whose records sample: BandMF with cyclic Poisson sampling.

Records take turns in as many groups as the strategy has bands, or more, and join the steps of their
group by coins. What such a step adds has faded from the noisy rows before the record's next: the
matched filter of each turn is one step of DP-SGD with Poisson sampling, with noise of its own. So a
round of turns is one step of a `Recorder`, and transcript, bound and findings are those of DP-SGD.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import Canaries, PlacedCanaries, Stream, random_stream
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.files import codec
from askgauss.mechanisms import decorrelate
from askgauss.mechanisms.decorrelate import Piece, RowReader, plan_of
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.recording.facts import RowNoise
from askgauss.recording.recorder import Recorder
from askgauss.recording.run_recorder import PlannedRecorder, numbers, saved_numbers
from askgauss.recording.transcript import Transcript
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson, Scheme
from askgauss.sampling.inclusion import Inclusion

__all__ = ["InRounds", "ReleasedSteps", "SampledRecorder", "released_steps"]

Floats = NDArray[np.float64]
Drawn = Iterator[NDArray[np.int64]]


class ReleasedSteps(abc.ABC):
    """How released steps and recorded ones belong together.

    Attributes:
        sampling: How the canaries of a recorded step are drawn.
        note: What a reader of the report should know about it; empty if nothing.
        turns: Released steps that a recorded one stands for, where records take turns in them.
        strategy: How noise is correlated between steps; None where it is not.
    """

    sampling: Scheme
    note: str = ""
    turns: int = 1
    strategy: Strategy | None = None

    @abc.abstractmethod
    def recorded(self, steps: int) -> int:
        """How many steps are recorded of so many released ones."""

    def accounted(self, steps: int) -> int:
        """How many of them the mechanism of so many released steps has, by its accounting."""
        return self.recorded(steps)

    @abc.abstractmethod
    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        """Which canaries are planted in each released step, one row a step.

        Args:
            drawn: The canaries that are drawn for each recorded step.
            steps: Number of released steps.
        """

    @abc.abstractmethod
    def along(self, rows: Floats) -> Floats:
        """What released rows, one column a canary, say in each recorded step."""

    @abc.abstractmethod
    def watched(self, rows: Floats) -> Floats:
        """The same of columns that nobody is planted in."""

    def noise(self, steps: int) -> float:
        """The noise of a recorded step over the mechanism's own noise multiplier."""
        return 1.0


class _AsReleased(ReleasedSteps):
    """Every step has noise of its own."""

    def __init__(self, canaries: Canaries, sampling: Scheme) -> None:
        self.sampling = sampling
        self._size = canaries.size

    def recorded(self, steps: int) -> int:
        return steps

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        mask = np.zeros((steps, self._size), dtype=np.bool_)
        for row, chosen in zip(mask, drawn, strict=False):
            row[chosen] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        return rows

    def watched(self, rows: Floats) -> Floats:
        return rows


class InRounds(ReleasedSteps):
    """Records take turns: one recorded step a round, in which every group had its turn.

    Args:
        canaries: Who is planted where.
        strategy: No more bands than there are groups.
        scheme: How records are drawn.

    Attributes:
        cycle: Number of groups.
        count: Rounds in which every record is protected the least, the only ones to be recorded.
        groups: The group of each canary.
        norm: The largest norm of a column of the strategy.

    Raises:
        InvalidArgumentError: There is no whole round.
        UnsupportedError: Columns of one record meet, or nobody knows the groups.
    """

    def __init__(self, canaries: Canaries, strategy: Strategy, scheme: CyclicPoisson) -> None:
        if scheme.groups == "secret":
            raise UnsupportedError(
                f"Expected groups that are known, as accountants assume, got {scheme!r}."
            )
        if strategy.bands > scheme.cycle:
            raise UnsupportedError(
                f"Expected records to come back after {strategy.bands} steps at the earliest, as "
                f"many as the strategy has bands, got sampling={scheme!r}. What sampling adds to "
                "privacy is not known otherwise: take a longer cycle, or fewer bands."
            )
        steps = strategy.steps
        self.sampling = Poisson(rate=scheme.rate)
        self.strategy = self._strategy = strategy
        self.cycle = scheme.cycle
        self.turns = scheme.cycle
        self.norm = float(strategy.norms(steps).max())
        self.count = decorrelate.full_rounds(strategy, steps=steps, cycle=scheme.cycle)
        if self.count < 1:
            raise InvalidArgumentError(
                f"Expected steps to hold a whole round of {scheme.cycle} steps and the strategy's "
                f"{strategy.bands} bands after it, got {steps}. Plan for more steps."
            )
        generator = random_stream(canaries.root_seed, Stream.SAMPLER)
        self.groups = generator.integers(scheme.cycle, size=canaries.size)
        self._own = self.filter(self.groups)
        self.note = (
            f"records take turns in {scheme.cycle} groups: a step here is a round of as many "
            "steps of the training, filtered for what a record in one of them adds."
        )

    def filter(self, groups: NDArray[np.int64]) -> decorrelate.RoundFilter:
        """A filter for columns whose records may enter the steps of these groups."""
        return decorrelate.RoundFilter(
            self._strategy, groups=groups, cycle=self.cycle, norm=self.norm, count=self.count
        )

    def recorded(self, steps: int) -> int:
        """Rounds that are over after so many steps."""
        return self._own.over(steps)

    def accounted(self, steps: int) -> int:
        """Rounds that were begun: all of them were accounted for."""
        return -(-steps // self.cycle)

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        """Every canary of a round enters the step of its group."""
        mask = np.zeros((steps, self.groups.size), dtype=np.bool_)
        for turn in range(self.count):
            chosen = next(drawn)
            mask[self.groups[chosen] + turn * self.cycle, chosen] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        """One row a round."""
        return self._filtered(rows, self.groups)

    def watched(self, rows: Floats) -> Floats:
        """One row a round, of columns that are put in groups by turns."""
        return self._filtered(rows, np.arange(rows.shape[1]) % self.cycle)

    def _filtered(self, rows: Floats, groups: NDArray[np.int64]) -> Floats:
        return decorrelate.rounds(
            rows,
            self._strategy,
            groups=groups,
            cycle=self.cycle,
            norm=self.norm,
            count=self.count,
        )


class _Evened(ReleasedSteps):
    """Records enter known steps for sure: what they add is spread evenly over all steps."""

    def __init__(self, canaries: Canaries, strategy: Strategy, cycle: int, steps: int) -> None:
        self.sampling = EveryStep()
        self.strategy = self._strategy = strategy
        self._cycle = cycle
        self._first, self._norm = decorrelate.heaviest_entry(strategy, steps=steps, cycle=cycle)
        self._size = canaries.size
        self.note = (
            f"every canary enters step {self._first + 1:,}"
            + (f" and every {cycle:,} from there" if cycle < steps else "")
            + ", as the record that is protected least; what it adds was spread evenly over all "
            "steps, whose noise is that of the strategy's rows."
        )

    def recorded(self, steps: int) -> int:
        return steps if steps > self._first else 0

    def planted(self, drawn: Drawn, steps: int) -> NDArray[np.bool_]:
        mask = np.zeros((steps, self._size), dtype=np.bool_)
        mask[self._first :: self._cycle, next(drawn)] = True
        return mask

    def along(self, rows: Floats) -> Floats:
        return self._turned(rows)

    def watched(self, rows: Floats) -> Floats:
        return self._turned(rows)

    def _turned(self, rows: Floats) -> Floats:
        entered = np.arange(self._first, len(rows), self._cycle)
        turned = decorrelate.evened(rows, self._strategy, entered=entered)
        return turned / self._height(len(rows))

    def _height(self, steps: int) -> float:
        """What a record of norm one adds to every recorded step."""
        entered = np.zeros((steps, 1))
        entered[self._first :: self._cycle] = 1.0
        return float(np.linalg.norm(self._strategy.apply(entered)) / np.sqrt(steps))

    def noise(self, steps: int) -> float:
        return self._norm / self._height(steps)


def released_steps(
    canaries: Canaries, scheme: Scheme, strategy: object | None, steps: int
) -> ReleasedSteps:
    """How to record a run of this scheme and this strategy.

    Raises:
        UnsupportedError: Nobody knows what such a run leaks.
    """
    if strategy is None:
        return _AsReleased(canaries, scheme)
    mixed = decorrelate.strategy_of(strategy, steps)
    if scheme.every_step:
        return _Evened(canaries, mixed, 1, steps)
    if (cyclic := scheme.cyclic) is not None:
        if cyclic.rate == 1.0 and cyclic.groups == "known" and mixed.bands > 1:
            return _Evened(canaries, mixed, cyclic.cycle, steps)
        return InRounds(canaries, mixed, cyclic)
    raise UnsupportedError(
        f"Correlated noise can be audited with CyclicPoisson and EveryStep sampling, got {scheme}."
    )


_RECORDER = "recorder."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint."""

    plan: StrategyPlan
    sampling: Scheme
    step: int
    asked: bool
    background: Literal["known", "unknown"] | None
    open: int
    coin: dict[str, Any]
    recorder: dict[str, Any]
    resumed: tuple[int, ...] = ()


class SampledRecorder(PlannedRecorder):
    """Records a run with correlated noise and sampling, whatever framework runs it.

    Make it with `LinearRecorder.sampled`, and use it like a `LinearRecorder`: ask `sample` who
    enters a step, add them to its clean sum, and hand what was released to `observe`. Memory is an
    array a band and what a `Recorder` of the rounds takes.

    Args:
        canaries: Who is planted where; each gets a group, by chance.
        strategy: No more bands than the cycle is long.
        sampling: ``CyclicPoisson``, or ``Poisson`` where the strategy has a single band.
        clip_norm: Norm of one planted canary.
        noise_multiplier: The noise of one row of the strategy that the run claims, in clip norms.
        release: What the audit sees, as for `LinearRecorder`.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        UnsupportedError: Nobody knows what such a run leaks.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> from askgauss.sampling import CyclicPoisson
        >>> from askgauss.mechanisms.strategies import BandedStrategy
        >>> from askgauss.mechanisms.strategy import numpy_draw
        >>> strategy = BandedStrategy.toeplitz([1.0, 0.5], 40)
        >>> canaries = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)
        >>> recorder = ag.LinearRecorder.sampled(
        ...     canaries, strategy, sampling=CyclicPoisson(rate=0.5, cycle=2))
        >>> noise = strategy.stream(numpy_draw(np.random.default_rng(1), 100))
        >>> for _ in range(40):
        ...     clean = np.zeros(100)
        ...     canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        ...     recorder.observe(canaries.project(clean + noise.next()), background=np.zeros(40))
        >>> recorder.transcript()
        Transcript(steps=19, present=20, absent=20, background='known')
    """

    _checkpoint_kind = "askgauss-sampled-recorder"
    _checkpoint_schema = 1

    def __init__(
        self,
        canaries: PlacedCanaries,
        strategy: Strategy,
        *,
        sampling: Scheme,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Literal["rows", "steps", "prefixes"] = "steps",
    ) -> None:
        given: Any = strategy
        if not isinstance(given, Strategy):
            hint = "Make one of askgauss.mechanisms: BandedStrategy.toeplitz([1.0, 0.5], steps)."
            raise _validate.fail("strategy", strategy, "to be a strategy", hint)
        super().__init__()
        self._sampling = sampling
        if (cyclic := sampling.cyclic) is None:
            raise UnsupportedError(
                f"Expected CyclicPoisson sampling with correlated noise, got {sampling!r}: what "
                "other schemes add to privacy is not known. Where records enter known steps, "
                "make a LinearRecorder of a strategy that says how often."
            )
        self._plan: StrategyPlan = plan_of(strategy, release)
        self._rounds = InRounds(canaries, strategy, cyclic)
        self._reader = RowReader(self._plan, strategy)
        self._filter = self._rounds.filter(self._rounds.groups)
        _validate.magnitude(clip_norm=clip_norm)
        if noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
            noise_multiplier = float(noise_multiplier) / self._rounds.norm
        self._canaries = canaries
        self._clip_norm, self._claimed = float(clip_norm), noise_multiplier
        self._rows = self._no_rows()
        self._recorder = Recorder(
            canaries,
            sampling=self._rounds.sampling,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
        )
        # Who is drawn for a round is known before the round before it is over.
        self._coins = Inclusion(canaries, self._rounds.sampling, None)
        self._drawn = np.zeros(0, dtype=np.int64)
        # Steps and canaries that the rows to come still hold.
        self._entered = np.zeros((2, 0), dtype=np.int64)

    def _no_rows(self) -> RowNoise:
        # The claim of a round, of which a row's noise is as many times larger as its norm.
        claimed = None if self._claimed is None else self._claimed * self._rounds.norm
        return RowNoise(self._canaries.coordinates, self._canaries.member, claimed)

    @property
    def run(self) -> str:
        """The identity of the run, drawn when it is begun and kept through checkpoints."""
        return self._recorder.run

    @property
    def plan(self) -> StrategyPlan:
        """The mechanism."""
        return self._plan

    def sample(self, *, step: int | None = None) -> NDArray[np.int64]:
        """Indices of the canaries to plant in this step: those of its group whose coin says so.

        Args:
            step: Steps done so far by your own count, 0 for the first; checked when given, so that
                a run does not go on from checkpoints of two moments.

        Raises:
            RecordingError: All planned steps have been observed, or the recorder is at another one.
        """
        self._check_next(step)
        turn, phase = divmod(self._step, self._rounds.cycle)
        if phase == 0 and not self._asked:
            last = turn >= self._rounds.count
            self._drawn = self._drawn[:0] if last else self._coins.draw()
        self._asked = True
        entering: NDArray[np.int64] = self._drawn[self._rounds.groups[self._drawn] == phase]
        return entering

    def observe(
        self,
        released: ArrayLike,
        *,
        background: ArrayLike | None = None,
        step: int | None = None,
    ) -> None:
        """Record what one step released; of a step that raises, nothing is recorded.

        Args:
            released: Along each canary, the noisy step, prefix or row.
            background: The same without noise and without any canary; None where unknown.
            step: Steps done before this one by your own count, as for `sample`.

        Raises:
            InvalidArgumentError: An argument has the wrong shape or type.
            RecordingError: The step does not fit the ones before it, or the plan.
        """
        known = self._check_observed(background, step)
        shape = (self._canaries.size,)
        noisy = numbers("released", released, shape)
        clean = 0.0 if background is None else numbers("background", background, shape)
        # Infinite gradients make nan here. They are recorded, and the transcript says so.
        with np.errstate(all="ignore"):
            values = np.subtract(noisy, clean, dtype=np.float64)
            self._whole = False
            for piece in self._reader.read(self._step, values):
                if known == "known":
                    self._rows.add(self._noise(piece))
                for ended in self._filter.add(self._step, piece.value):
                    self._recorder.sample()
                    self._recorder.observe(ended, background=0.0 if known == "known" else None)
        self._observed(known)

    def _noise(self, piece: Piece) -> NDArray[np.float64]:
        """A row in clip norms, less what the canaries of its steps add to it."""
        phase = self._step % self._rounds.cycle
        entered = self._drawn[self._rounds.groups[self._drawn] == phase]
        entries = np.stack([np.full(entered.size, self._step), entered])
        kept = self._entered[:, self._entered[0] >= piece.first]
        self._entered = np.concatenate([kept, entries], axis=1)
        steps, owners = self._entered
        noise = piece.value / self._clip_norm
        added = piece.signal[steps - piece.first]
        return np.asarray(noise - np.bincount(owners, added, self._canaries.size))

    def transcript(self) -> Transcript:
        """The transcript of the rounds that are over, one step each.

        Raises:
            RecordingError: No round is over yet.
        """
        self._check_whole()
        if not self._recorder.steps:
            raise RecordingError(
                f"Expected a whole round of {self._rounds.cycle} steps and the strategy's bands "
                f"after it, got {self._step} steps. Train for longer."
            )
        recorded = self._recorder.transcript()
        missing = self._rounds.accounted(self._step) - self._recorder.steps
        facts = replace(
            recorded.facts,
            skipped_steps=missing,
            turns=self._rounds.turns,
            noise_rows=self._rows.facts if self._rows.facts.rows else None,
            reuse=self._rows.reuse,
            notes=(self._rounds.note,),
            resumed=self._resumed,
        )
        return recorded.with_facts(facts)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: arrays, and plain values under ``"state"``."""
        self._check_whole()
        inner = self._recorder.state_dict()
        plain = inner.pop("state")
        state: dict[str, Any] = {f"{_RECORDER}{name}": item for name, item in inner.items()}
        open_values = self._reader.open_values()
        state |= {f"open.{index}": array.copy() for index, array in enumerate(open_values)}
        state |= {"rounds": self._filter.sums.copy(), "entering": self._drawn.copy()}
        state |= {"entered": self._entered.copy()} | self._rows.arrays()
        state["state"] = codec.to_plain(
            _Progress(
                plan=self._plan,
                sampling=self._sampling,
                step=self._step,
                asked=self._asked,
                background=self._background,
                open=len(open_values),
                coin=self._coins.generator_state,
                recorder=plain,
                resumed=self._resumed,
            )
        )
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            FileFormatError: The state is not one of a recorder, or parts of it are missing.
            RecordingError: The state belongs to other canaries or another mechanism. The recorder
                stays as it was.
        """
        progress: _Progress = codec.from_plain(_Progress, state.get("state"), "state")
        self._check_progress(progress, plan=self._plan, sampling=self._sampling)
        size, entering = self._canaries.size, state.get("entering")
        if not isinstance(entering, np.ndarray) or not (
            entering.dtype == np.int64
            and np.isin(entering, np.flatnonzero(self._canaries.member)).all()
        ):
            raise FileFormatError("Expected entering to name present canaries. Load an older one.")
        open_values = [
            saved_numbers(state, f"open.{index}", (size,)) for index in range(progress.open)
        ]
        sums = saved_numbers(state, "rounds", (2, size))
        over = self._filter.over(progress.step)
        coins = Inclusion(self._canaries, self._rounds.sampling, None)
        coins.resume(over, progress.coin)
        inner = {
            name.removeprefix(_RECORDER): item
            for name, item in state.items()
            if name.startswith(_RECORDER)
        }
        rows = inner.get("rows.clip_norm")
        if not isinstance(rows, np.ndarray) or len(rows) != over:
            raise FileFormatError(f"Expected {over} rounds after step {progress.step}.")
        entered = state.get("entered")
        if not isinstance(entered, np.ndarray) or not (
            entered.dtype == np.int64
            and entered.shape[:1] == (2,)
            and entered.ndim == 2
            and ((entered[0] >= 0) & (entered[0] < progress.step)).all()
            and np.isin(entered[1], np.flatnonzero(self._canaries.member)).all()
        ):
            raise FileFormatError("Expected entered to hold steps and canaries. Load an older one.")
        rows_of_noise = self._no_rows()
        rows_of_noise.load(state)
        self._recorder.load_state_dict({**inner, "state": progress.recorder})
        self._reader.resume(progress.step, open_values)
        self._rows, self._entered = rows_of_noise, entered.copy()
        self._filter.sums, self._drawn, self._coins = sums, entering.copy(), coins
        self._go_on(progress)
