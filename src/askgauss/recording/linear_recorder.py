"""Recorders of correlated noise: matched-filter scores, computed while the run trains.

Each release is taken apart into pieces of independent noise (`askgauss.mechanisms.decorrelate`),
nodes of a tree or rows of a strategy matrix, which are added to the scores of the canaries whose
leaves they cover. Memory is one number a canary and level of the tree, band or buffer, and a few
numbers a piece.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import PlacedCanaries, Stream, random_stream
from askgauss.exceptions import FileFormatError, RecordingError, UnsupportedError
from askgauss.files.schema import Field
from askgauss.mechanisms.decorrelate import (
    Piece,
    Reader,
    RowReader,
    plan_of,
    reader,
    released_nodes,
)
from askgauss.mechanisms.plans import Plan, TreePlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.recording.noise_sample import RowNoise
from askgauss.recording.recorder import Recorder
from askgauss.recording.released_steps import InRounds
from askgauss.recording.run_recorder import (
    Background,
    Progress,
    Rows,
    RunRecorder,
    numbers,
    saved_array,
    saved_canaries,
)
from askgauss.recording.transcript import (
    DUST,
    LinearTranscript,
    PieceSums,
    Transcript,
    check_linear_arrays,
    without_dust,
)
from askgauss.sampling import Scheme
from askgauss.sampling.inclusion import Inclusion

__all__ = ["LinearRecorder", "SampledRecorder"]

# Absent canaries of which every piece is kept: so many, but fewer where trees are large.
_MOST_KEPT = 256
_FEWEST_KEPT = 32
_KEPT_NUMBERS = 1 << 22
# A strategy has one piece a step, and may have very many: of those fewer numbers say enough.
_KEPT_OF_ROWS = 1 << 20
# A covariance of the rows' noise needs so many times as many kept canaries as rows.
_TIMES_ROWS = 2
# Before the names of the arrays of a recorder that another one stands in front of.
_INNER = "recorder."

Release = Literal["rows", "steps", "prefixes"]


class _PlannedRecorder(RunRecorder):
    """A recorder of as many steps as were planned, with a reader that takes releases apart."""

    _canary_kind = PlacedCanaries

    def __init__(
        self,
        canaries: PlacedCanaries,
        mechanism: TreePlan | Strategy,
        *,
        clip_norm: float,
        noise_multiplier: float | None,
        release: Release,
    ) -> None:
        super().__init__(canaries, clip_norm=clip_norm, noise_multiplier=noise_multiplier)
        self._canaries = canaries
        self._mechanism = mechanism
        self._plan: Plan
        self._reader: Reader
        if isinstance(mechanism, Strategy):
            self._plan = plan_of(mechanism, release)
            self._reader = RowReader(self._plan, mechanism)
        else:
            self._plan, self._reader = mechanism, reader(mechanism)
        self._step = 0
        self._asked = False
        self._noise = self._no_noise()

    def _no_noise(self) -> RowNoise:
        canaries = self._canaries
        return RowNoise(canaries.coordinates, canaries.member, self._noise_multiplier)

    @property
    def steps(self) -> int:
        """Number of steps observed so far."""
        return self._step

    @property
    def plan(self) -> Plan:
        """The mechanism."""
        return self._plan

    def _check_next(self, step: int | None) -> None:
        self._check_whole()
        self.check_step(step, self._step)
        if self._step >= self._plan.steps:
            raise RecordingError(
                f"The mechanism was planned and accounted for {self._plan.steps} steps, and all "
                "were observed. Plan for more steps before training."
            )

    def _values(
        self, released: ArrayLike, background: ArrayLike | None, step: int | None
    ) -> tuple[NDArray[np.float64], Background]:
        """What a step released without its background, once all of it has been checked."""
        self._check_next(step)
        if not self._asked:
            raise RecordingError(
                "observe() came before sample(): ask which canaries enter this step first."
            )
        known = self._check_background(background)
        shape: tuple[int, ...] = (self._canaries.size,)
        if isinstance(self._plan, TreePlan) and self._plan.release == "nodes":
            shape = (len(released_nodes(self._plan, self._step)), *shape)
        noisy = numbers("released", released, shape)
        clean = 0.0 if background is None else numbers("background", background, shape)
        # Infinite gradients make nan here. They are recorded, and the scores then refuse them.
        with np.errstate(all="ignore"):
            return np.subtract(noisy, clean, dtype=np.float64), known

    def _observed(self, known: Background) -> None:
        """The step has been added, all of it."""
        self._background, self._asked = known, False
        self._step += 1
        self._whole = True

    def _settings(self) -> dict[str, Any]:
        return {
            "fingerprint": self._canaries.fingerprint(),
            "plan": self._plan,
            "clip_norm": self._clip_norm,
        }

    def _saved(self, **more: Any) -> dict[str, Any]:
        """What checkpoints of both recorders hold."""
        open_values = enumerate(self._reader.open_values())
        state: dict[str, Any] = {f"open.{index}": array.copy() for index, array in open_values}
        return {**state, **self._noise.arrays(), "state": self._progress(asked=self._asked, **more)}

    def _read_open(self, state: dict[str, Any], progress: Progress) -> list[NDArray[np.float64]]:
        """What the reader remembers in a checkpoint."""
        if progress.step > self._plan.steps:
            raise FileFormatError(f"Expected step up to {self._plan.steps}, got {progress.step}.")
        number = self._reader.remembered(progress.step)
        size = self._canaries.size
        return [saved_array(state, f"open.{i}", np.float64, (size,)) for i in range(number)]

    def _read_noise(self, state: dict[str, Any]) -> RowNoise:
        noise = self._no_noise()
        noise.load(state)
        return noise

    def _resume(self, progress: Progress) -> None:
        super()._resume(progress)
        self._step, self._asked = progress.step, progress.asked


class LinearRecorder(_PlannedRecorder):
    """Records a run with correlated noise step by step, whatever framework runs it.

    Every canary, present or absent, has leaves of its own, drawn at random. A step is: ask
    `sample` which canaries enter it, add them to the clean sum of the leaf, let the mechanism
    release, and hand what it released to `observe`.

    Args:
        canaries: The canaries.
        plan: The mechanism: a `TreePlan`, which says what the audit sees of a tree; or a strategy
            (`BandedStrategy`, `BufferedToeplitz`, a lower-triangular `MatrixMechanism`).
        clip_norm: Norm of one included canary.
        noise_multiplier: The noise of one node, or of one row of the strategy, that the run claims,
            in clip norms.
        release: Of a strategy, what the audit sees: its noisy ``rows``, the noisy ``steps`` that
            are decoded from them (as in jax_privacy), or the ``prefixes`` of those.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        UnsupportedError: The plan's releases cannot be filtered.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> from askgauss.mechanisms.strategy import numpy_draw
        >>> from askgauss.mechanisms.tree import TreeNoise
        >>> canaries = ag.DiracCanaries(present=20, absent=20, dimension=100, seed=0)
        >>> plan = TreePlan(steps=8, estimator="honaker", release="prefixes")
        >>> recorder = LinearRecorder(canaries, plan)
        >>> noise = TreeNoise(numpy_draw(np.random.default_rng(1), 100), steps=8,
        ...                   estimator="honaker")
        >>> clean = np.zeros(100)
        >>> for _ in range(8):
        ...     canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        ...     recorder.observe(canaries.project(clean + noise.next()), background=np.zeros(40))
        >>> recorder.transcript()
        LinearTranscript(steps=8, release='prefixes', present=20, absent=20, background='known')
    """

    _checkpoint_kind = "askgauss-linear-recorder"
    _checkpoint_schema = 3

    def __init__(
        self,
        canaries: PlacedCanaries,
        plan: TreePlan | Strategy,
        *,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Release = "steps",
    ) -> None:
        _check_mechanism("plan", plan, (TreePlan, Strategy), "to be a TreePlan or a strategy")
        super().__init__(
            canaries,
            plan,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            release=release,
        )
        self._leaves = _random_leaves(canaries, self._plan)
        # Entries into leaves, one a canary and participation, in the order of the leaves.
        order = np.argsort(self._leaves, axis=None, kind="stable")
        self._leaf = self._leaves.ravel()[order]
        self._owner = order // self._leaves.shape[1]
        self._starts = np.searchsorted(self._leaf, np.arange(plan.steps + 1))
        self._absent = np.flatnonzero(~canaries.member)
        chosen = random_stream(canaries.root_seed, Stream.KEPT).permutation(self._absent)
        strategy = isinstance(plan, Strategy)
        kept = (_KEPT_OF_ROWS if strategy else _KEPT_NUMBERS // 2) // plan.steps
        # The absent canaries of which every piece is kept.
        self._kept = np.sort(chosen[: min(max(kept, _FEWEST_KEPT), _MOST_KEPT)])
        self._sums = {name: np.zeros(canaries.size) for name in ("score", "gain", "square")}
        self._sums["leaf_gain"] = np.zeros(plan.steps)
        # Of every piece: tree, level, index, strongest leaf and number of included canaries; sum
        # and sum of squares over absent canaries, signal, and sum of squares over included ones.
        self._places = Rows.empty(np.int64, 5)
        self._pieces = Rows.empty(np.float64, 4)
        self._kept_values = Rows.empty(np.float64, self._kept.size)
        self._cosines: NDArray[np.float64] | None = None

    @classmethod
    def sampled(
        cls,
        canaries: PlacedCanaries,
        strategy: Strategy,
        *,
        sampling: Scheme,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Release = "steps",
    ) -> SampledRecorder:
        """A recorder for records that are sampled, as in BandMF; see `SampledRecorder`."""
        return SampledRecorder(
            canaries,
            strategy,
            sampling=sampling,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            release=release,
        )

    def sample(self, *, step: int | None = None) -> NDArray[np.int64]:
        """Indices of the canaries to include in this step: the present ones with a leaf here.

        Args:
            step: Steps done so far by your own count, 0 for the first; checked when given, so that
                a run is not resumed from checkpoints of two moments.

        Raises:
            RecordingError: All planned steps have been observed, or the recorder is at another one.
        """
        self._check_next(step)
        self._asked = True
        entered = self._owner[self._starts[self._step] : self._starts[self._step + 1]]
        return np.asarray(entered[self._canaries.member[entered]], dtype=np.int64)

    def observe(
        self,
        released: ArrayLike,
        *,
        background: ArrayLike | None = None,
        cosines: ArrayLike | None = None,
        step: int | None = None,
    ) -> None:
        """Record what one step released; of a step that raises, nothing is recorded.

        Args:
            released: Along each canary, the noisy prefix, step or row; or, where nodes of a tree
                are released, one row for each node of `released_nodes`.
            background: The same without noise and without any canary; None where unknown.
            cosines: Two rows: the cosine of each canary with the whole released prefix, and with
                its change in this step.
            step: Steps done before this one by your own count, as for `sample`.

        Raises:
            InvalidArgumentError: An argument has the wrong shape or type.
            RecordingError: The step does not fit the ones before it, or the plan.
        """
        values, known = self._values(released, background, step)
        size = self._canaries.size
        angles = None if cosines is None else numbers("cosines", cosines, (2, size))
        if self._step and (angles is None) != (self._cosines is None):
            raise RecordingError("Expected cosines in every step or in none.")
        with np.errstate(all="ignore"):
            values /= self._clip_norm
            self._whole = False
            for piece in self._reader.read(self._step, values):
                self._add(piece)
            if angles is not None:
                if self._cosines is None:
                    self._cosines = np.array(angles, dtype=np.float64)
                np.maximum(self._cosines, angles, out=self._cosines)
        self._observed(known)

    def _add(self, piece: Piece) -> None:
        stop = piece.first + piece.signal.size
        entries = slice(self._starts[piece.first], self._starts[stop])
        signal = piece.signal[self._leaf[entries] - piece.first]
        weights = np.bincount(self._owner[entries], signal, self._canaries.size)
        self._sums["score"] += weights * piece.value
        noise = piece.value / piece.spread
        planted = np.zeros(0)
        if self._reader.gram is None:
            self._sums["gain"] += weights * weights
            self._sums["leaf_gain"][piece.first : stop] += piece.signal**2
            # What a present canary adds is known: without it, its values are noise as well.
            inside = np.flatnonzero(self._canaries.member & (weights != 0.0))
            planted = noise[inside] - weights[inside]
            noise[inside] = planted
            self._sums["square"] += noise * noise
            self._noise.add(noise)
        # Nodes of the empty leaves that fill up a tree cover no leaf.
        strength = np.abs(piece.signal) if piece.signal.size else np.zeros(1)
        strongest = int(np.argmax(strength))
        leaf = min(piece.first + strongest, self._plan.steps - 1)
        absent = noise[self._absent]
        self._places.append((*piece.node, leaf, planted.size))
        self._pieces.append((absent.sum(), absent @ absent, strength[strongest], planted @ planted))
        self._kept_values.append(noise[self._kept])

    def transcript(self) -> LinearTranscript:
        """The transcript of the steps observed so far.

        Of a run that stopped early, the mechanism is the tree up to there, and canaries whose
        leaves never came have no score.

        Raises:
            RecordingError: No canary has entered yet, or the filter needs all releases.
        """
        self._check_whole()
        if self._reader.offline and self._step < self._plan.steps:
            raise RecordingError(
                f"Expected all {self._plan.steps} steps, got {self._step}: the filter of these "
                "releases needs every one of them."
            )
        return self._recorded()

    def _recorded(self) -> LinearTranscript:
        """What is there so far, whether or not the filter is complete."""
        gain, leaf_gain = self._sums["gain"], self._sums["leaf_gain"]
        if (gram := self._reader.gram) is not None:
            gain = gram[self._leaves[:, :, None], self._leaves[:, None, :]].sum(axis=(1, 2))
            leaf_gain = np.diagonal(gram)
        gain = without_dust(gain, DUST)
        information = np.sqrt(gain)
        entered = gain > 0.0
        score = np.divide(self._sums["score"], information, out=np.zeros_like(gain), where=entered)
        cosine, round_cosine = (None, None) if self._cosines is None else self._cosines.copy()
        largest = self._largest_information(gain, leaf_gain)
        leaf_square, leaf_column = self._leaf_noise() or (None, None)
        known = self._background == "known"
        return LinearTranscript(
            member=self._canaries.member,
            leaves=self._leaves.copy(),
            score=score,
            information=information,
            largest_information=largest,
            pieces=self._piece_sums(leaf_gain),
            kept=self._kept.copy(),
            kept_values=self._kept_values.rows(),
            cosine=cosine,
            round_cosine=round_cosine,
            noise_square=self._noise_square(),
            leaf_square=leaf_square,
            leaf_gain=leaf_column,
            plan=self._plan,
            number_of_steps=self._step,
            clip_norm=self._clip_norm,
            carried_shift=min(largest / self._sensitivity(self._plan.steps), 1.0),
            facts=replace(
                self._common_facts(self._canaries),
                poisson=False,
                reuse=self._noise.reuse if known else None,
            ),
        )

    def _piece_sums(self, leaf_gain: NDArray[np.float64]) -> PieceSums:
        tree, level, index, leaf, planted = self._places.view().T.copy()
        total, square, signal, planted_square = self._pieces.view().T.copy()
        # Filters of whole prefixes are no signals.
        known = self._reader.gram is None
        return PieceSums(
            tree=tree,
            level=level,
            index=index,
            total=total,
            square=square,
            signal=signal if known else None,
            gain=leaf_gain[leaf] if known else None,
            planted=planted if known else None,
            planted_square=planted_square if known else None,
        )

    def _noise_square(self) -> NDArray[np.float64] | None:
        square = self._sums["square"]
        whole = self._reader.gram is None and not np.isnan(square).all()
        return square.copy() if whole else None

    def _leaf_noise(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The noise that a record in each leaf meets, by the covariance that the rows show.

        With rows ``y`` of covariance ``S`` a record moves them along its column ``a``, and is told
        from noise by ``a' inverse(S) a``. Over ``n`` samples of ``T`` rows the norm of ``a`` over
        that estimate is the sum of ``n - T + 1`` squares, whatever ``S`` is (Wishart).
        """
        rows = self.steps
        if not isinstance(self._mechanism, Strategy) or self._background != "known":
            return None
        if self._kept.size < _TIMES_ROWS * rows:
            return None
        values = self._kept_values.view()
        if not np.isfinite(values).all():
            return None
        columns = np.zeros((rows, rows))
        for step in range(rows):
            first, row = self._mechanism.row(step)
            columns[step, first : step + 1] = row
        try:
            root = np.linalg.cholesky(values @ values.T)
        except np.linalg.LinAlgError:  # rows without noise, which other checks report
            return None
        gain = np.square(columns).sum(axis=0)
        with np.errstate(all="ignore"):
            found = gain / np.square(np.linalg.solve(root, columns)).sum(axis=0)
        # Likewise, where there is hardly any.
        return (found, gain) if np.isfinite(found).all() else None

    def _sensitivity(self, steps: int) -> float:
        """How far a record can move all the nodes of so many steps."""
        if isinstance(self._mechanism, TreePlan):
            return replace(self._mechanism, steps=steps).sensitivity()
        return self._mechanism.sensitivity()

    def _largest_information(
        self, gain: NDArray[np.float64], leaf_gain: NDArray[np.float64]
    ) -> float:
        """The most presence can move the score of any record; never more than that.

        For several participations and online prefixes the worst way to participate is not known:
        the worst of the canaries' own is used instead, so that the bound can only be too low.
        """
        if self._plan.participations == 1:
            return math.sqrt(leaf_gain.max())
        plan = self._mechanism
        all_of_it = isinstance(plan, TreePlan) and (
            plan.release == "nodes" or plan.estimator == "full"
        )
        if self._step and all_of_it:
            # Least squares over all nodes loses nothing that they say about a leaf.
            return self._sensitivity(self._step)
        return math.sqrt(gain.max())

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: arrays, and plain values under ``"state"``."""
        self._check_whole()
        state: dict[str, Any] = {f"sums.{name}": item.copy() for name, item in self._sums.items()}
        state |= {"places": self._places.rows(), "pieces": self._pieces.rows()}
        state["kept_values"] = self._kept_values.rows()
        if self._cosines is not None:
            state["cosines"] = self._cosines.copy()
        return {**state, **self._saved()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken.

        Raises:
            FileFormatError: The state is not one of a recorder, or parts of it are missing.
            RecordingError: The state belongs to other canaries or another mechanism. The recorder
                stays as it was.
        """
        progress = self._read_progress(state)
        size, steps = self._canaries.size, self._plan.steps
        places = saved_array(state, "places", np.int64, (None, 5))
        count = len(places)
        if isinstance(self._mechanism, Strategy) and count != progress.step:
            raise FileFormatError(
                f"Expected the rows of {progress.step} steps in the checkpoint, got {count}. Load "
                "an older checkpoint."
            )
        Field(np.int64, (count,), low=0, high=steps, open=True).check("places", places[:, 3])
        most = _validate.LARGEST**2
        sums = {}
        for name, old in self._sums.items():
            sums[name] = saved_array(state, f"sums.{name}", np.float64, old.shape)
            if "gain" in name:
                Field(np.float64, old.shape, low=0.0, high=most, finite=True).check(
                    f"sums.{name}", sums[name]
                )
        found = {
            "_sums": sums,
            "_places": Rows(places),
            "_pieces": Rows(saved_array(state, "pieces", np.float64, (count, 4))),
            "_kept_values": Rows(
                saved_array(state, "kept_values", np.float64, (count, self._kept.size))
            ),
            "_cosines": saved_array(state, "cosines", np.float64, (2, size))
            if "cosines" in state
            else None,
            "_noise": self._read_noise(state),
        }
        open_values = self._read_open(state, progress)
        # Another recorder first: a checkpoint whose transcript would be refused changes nothing.
        other = copy.copy(self)
        vars(other).update(found)
        other._resume(progress)
        # Before any canary has entered there is no transcript yet.
        if progress.step and (self._reader.gram is not None or sums["gain"].any()):
            check_linear_arrays(other._recorded().arrays(), self._plan)
        self._reader.resume(progress.step, open_values)
        vars(self).update(vars(other))


class SampledRecorder(_PlannedRecorder):
    """Records a run with correlated noise and sampling: BandMF with cyclic Poisson sampling.

    Records take turns in as many groups as the strategy has bands, or more, and are sampled in the
    steps of their group. What such a step adds has faded from the noisy rows before the record's
    next: the matched filter of each turn is one step of DP-SGD with Poisson sampling and
    independent noise. So a round of turns is one step of a `Recorder`, and transcript, bound and
    findings are those of DP-SGD.

    Make it with `LinearRecorder.sampled`, and use it like a `LinearRecorder`. Memory is an array a
    band and what a `Recorder` of the rounds takes.

    Args:
        canaries: The canaries; each gets a random group.
        strategy: No more bands than the cycle is long.
        sampling: ``CyclicPoisson``, or ``Poisson`` where the strategy has a single band.
        clip_norm: Norm of one included canary.
        noise_multiplier: The noise of one row of the strategy that the run claims, in clip norms.
        release: What the audit sees, as for `LinearRecorder`.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        UnsupportedError: It is not known what such a run leaks.

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
    _checkpoint_schema = 2

    def __init__(
        self,
        canaries: PlacedCanaries,
        strategy: Strategy,
        *,
        sampling: Scheme,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Release = "steps",
    ) -> None:
        _check_mechanism("strategy", strategy, (Strategy,), "to be a strategy")
        if (cyclic := sampling.cyclic) is None:
            raise UnsupportedError(
                f"Expected CyclicPoisson sampling with correlated noise, got {sampling!r}: what "
                "other schemes add to privacy is not known. Where records enter known steps, "
                "make a LinearRecorder of a strategy that says how often."
            )
        super().__init__(
            canaries,
            strategy,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            release=release,
        )
        self._sampling = sampling
        self._rounds = InRounds(canaries, strategy, cyclic)
        self._filter = self._rounds.filter(self._rounds.groups)
        claimed = None if noise_multiplier is None else noise_multiplier / self._rounds.norm
        self._recorder = Recorder(
            canaries,
            sampling=self._rounds.sampling,
            clip_norm=clip_norm,
            noise_multiplier=claimed,
        )
        self._run = self._recorder.run
        # Which canaries are drawn for a round is known before the round before it is over.
        self._draws = Inclusion(canaries, self._rounds.sampling, None)
        self._drawn = np.zeros(0, dtype=np.int64)
        # Steps and canaries that the rows to come still hold.
        self._entered = np.zeros((2, 0), dtype=np.int64)

    def sample(self, *, step: int | None = None) -> NDArray[np.int64]:
        """Indices of the canaries to include in this step: those of its group that were drawn.

        Args:
            step: As for `LinearRecorder.sample`.

        Raises:
            RecordingError: All planned steps have been observed, or the recorder is at another one.
        """
        self._check_next(step)
        turn, phase = divmod(self._step, self._rounds.cycle)
        if phase == 0 and not self._asked:
            last = turn >= self._rounds.count
            self._drawn = self._drawn[:0] if last else self._draws.draw()
        self._asked = True
        return self._entering()

    def _entering(self) -> NDArray[np.int64]:
        phase = self._step % self._rounds.cycle
        return np.asarray(self._drawn[self._rounds.groups[self._drawn] == phase])

    def observe(
        self, released: ArrayLike, *, background: ArrayLike | None = None, step: int | None = None
    ) -> None:
        """Record what one step released; of a step that raises, nothing is recorded.

        Args:
            released: Along each canary, the noisy step, prefix or row.
            background: The same without noise and without any canary; None where unknown.
            step: As for `LinearRecorder.observe`.

        Raises:
            InvalidArgumentError: An argument has the wrong shape or type.
            RecordingError: The step does not fit the ones before it, or the plan.
        """
        values, known = self._values(released, background, step)
        with np.errstate(all="ignore"):
            self._whole = False
            for piece in self._reader.read(self._step, values):
                if known == "known":
                    self._noise.add(self._noise_of(piece))
                for ended in self._filter.add(self._step, piece.value):
                    self._recorder.sample()
                    self._recorder.observe(ended, background=0.0 if known == "known" else None)
        self._observed(known)

    def _noise_of(self, piece: Piece) -> NDArray[np.float64]:
        """A row in clip norms, less what the canaries of its steps add to it."""
        entered = self._entering()
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
        facts = replace(
            recorded.facts,
            skipped_steps=self._rounds.accounted(self._step) - self._recorder.steps,
            turns=self._rounds.turns,
            noise_rows=self._noise.facts if self._noise.facts.rows else None,
            reuse=self._noise.reuse,
            notes=(self._rounds.note,),
            resumed=self._resumed,
        )
        return recorded.with_facts(facts)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "sampling": self._sampling}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: arrays, and plain values under ``"state"``."""
        self._check_whole()
        inner = self._recorder.state_dict()
        plain = inner.pop("state")
        state: dict[str, Any] = {f"{_INNER}{name}": item for name, item in inner.items()}
        state |= {"rounds": self._filter.sums.copy(), "entering": self._drawn.copy()}
        state["entered"] = self._entered.copy()
        return {**state, **self._saved(generator=self._draws.generator_state, recorder=plain)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken.

        Raises:
            FileFormatError: The state is not one of a recorder, or parts of it are missing.
            RecordingError: The state belongs to other canaries or another mechanism. The recorder
                stays as it was.
        """
        progress = self._read_progress(state)
        open_values = self._read_open(state, progress)
        entering = saved_canaries(state, "entering", self._canaries)
        sums = saved_array(state, "rounds", np.float64, (2, self._canaries.size))
        over = self._filter.over(progress.step)
        saved_array(state, f"{_INNER}rows.clip_norm", np.float64, (over,))
        entered = saved_array(state, "entered", np.int64, (2, None))
        present = np.flatnonzero(self._canaries.member)
        inside = (entered[0] >= 0) & (entered[0] < progress.step) & np.isin(entered[1], present)
        if not inside.all():
            raise FileFormatError("Expected entered to hold steps and canaries. Load an older one.")
        draws = Inclusion(self._canaries, self._rounds.sampling, None)
        draws.resume(over, progress.generator, {}, over)
        noise = self._read_noise(state)
        inner = {
            name.removeprefix(_INNER): item
            for name, item in state.items()
            if name.startswith(_INNER)
        }
        self._recorder.load_state_dict({**inner, "state": progress.recorder})
        self._reader.resume(progress.step, open_values)
        self._noise, self._entered = noise, entered
        self._filter.sums, self._drawn, self._draws = sums, entering, draws
        self._resume(progress)


def _check_mechanism(name: str, given: object, kinds: tuple[type, ...], expected: str) -> None:
    if not isinstance(given, kinds):
        hint = "Make one of askgauss.mechanisms: BandedStrategy.toeplitz([1.0, 0.5], steps)."
        raise _validate.fail(name, given, expected, hint)


def _random_leaves(canaries: PlacedCanaries, plan: Plan) -> NDArray[np.int64]:
    """The leaves of every canary, uniform over all ways to enter as often as accounted for."""
    generator = random_stream(canaries.root_seed, Stream.PLANTING)
    gap = min(plan.min_separation, plan.steps) - 1
    count = min(plan.participations, -(-plan.steps // (gap + 1)))
    # Take the leaves that must stay free out, choose among the rest, and put them back.
    slots = plan.steps - (count - 1) * gap
    if count == 1:
        return generator.integers(slots, size=(canaries.size, 1))
    chosen = [np.sort(generator.choice(slots, count, replace=False)) for _ in range(canaries.size)]
    return np.array(chosen, dtype=np.int64) + gap * np.arange(count)
