"""The recorder of correlated noise whose records sample: BandMF with cyclic Poisson sampling.

Records take turns in as many groups as the strategy has bands, or more, and join the steps of their
group by coins. What such a step adds has faded from the noisy rows before the record's next: the
matched filter of each turn is one step of DP-SGD with Poisson sampling, with noise of its own. So a
round of turns is one step of a `Recorder`, and transcript, bound and findings are those of DP-SGD.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import PlacedCanaries
from askgauss.exceptions import FileFormatError, RecordingError, UnsupportedError
from askgauss.files import codec
from askgauss.mechanisms.decorrelate.strategy_rows import RowReader, plan_of
from askgauss.mechanisms.decorrelate.tree_pieces import Piece
from askgauss.mechanisms.plans import StrategyPlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.recording.facts.noise_rows import RowNoise
from askgauss.recording.planned_recorder import PlannedRecorder
from askgauss.recording.recorder import Recorder
from askgauss.recording.released_steps import InRounds
from askgauss.recording.step_rows import numbers, saved_numbers
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Scheme
from askgauss.sampling.inclusion import Inclusion

__all__ = ["SampledRecorder"]

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
        >>> from askgauss.mechanisms.banded import BandedStrategy
        >>> from askgauss.mechanisms.noise_streams import numpy_draw
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
