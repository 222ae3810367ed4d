"""The recorder of correlated noise: matched-filter scores, computed as the releases go by.

Each release is taken apart into pieces of independent noise
(`askgauss.mechanisms.decorrelate`), which are added to the scores of the canaries whose
leaves they cover: nodes of a tree, rows of a strategy matrix. Memory is one number a canary and
level of the tree, band or buffer, and a few numbers a piece.
"""

from __future__ import annotations

import copy
import math
import secrets
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import PlacedCanaries, Stream, random_stream
from askgauss.exceptions import FileFormatError, RecordingError
from askgauss.files import codec
from askgauss.files.schema import Field
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import (
    NodeSums,
    Piece,
    Reader,
    RowReader,
    drawn_nodes,
    plan_of,
    reader,
    released_nodes,
)
from askgauss.mechanisms.plans import Plan, StrategyPlan, TreePlan
from askgauss.mechanisms.strategy import Strategy
from askgauss.recording.facts import RowNoise
from askgauss.recording.run_recorder import PlannedRecorder, numbers, saved_numbers
from askgauss.recording.sampled_recorder import SampledRecorder
from askgauss.recording.transcript import (
    DUST,
    LinearFacts,
    LinearTranscript,
    PieceSums,
    without_dust,
)
from askgauss.sampling import Scheme

__all__ = ["LinearRecorder", "NodeSums", "drawn_nodes", "released_nodes"]

# Absent canaries of which every piece is kept: so many, but fewer where trees are large.
_MOST_KEPT = 256
_FEWEST_KEPT = 32
_KEPT_NUMBERS = 1 << 22
# A strategy has one piece a step, and may have very many: of those fewer numbers say enough.
_KEPT_OF_ROWS = 1 << 20
# A covariance of the rows' noise needs so many times as many kept canaries as rows.
_TIMES_ROWS = 2
# Numbers of a piece in a checkpoint.
_COLUMNS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint."""

    fingerprint: str
    plan: StrategyPlan | TreePlan
    clip_norm: float
    step: int
    asked: bool
    background: Literal["known", "unknown"] | None
    open: int
    run: str | None = None
    resumed: tuple[int, ...] = ()


class LinearRecorder(PlannedRecorder):
    """Records a run with correlated noise step by step, whatever framework runs it.

    Every canary, present or absent, has leaves of its own, drawn at random. A step is: ask
    `sample` which canaries enter it, add them to the clean sum of the leaf, let the mechanism
    release, and hand what it released to `observe`.

    Args:
        canaries: Who is planted where.
        plan: The mechanism: a `TreePlan`, which says what the audit sees of a tree; or a strategy
            (`BandedStrategy`, `BufferedToeplitz`, a lower-triangular `MatrixMechanism`).
        clip_norm: Norm of one planted canary.
        noise_multiplier: The noise of one node, or of one row of the strategy, that the run claims,
            in clip norms.
        release: Of a strategy, what the audit sees: its noisy ``rows``, the noisy ``steps`` that
            are decoded from them (as in jax_privacy), or the ``prefixes`` of those.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        UnsupportedError: The plan's releases cannot be filtered.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> from askgauss.mechanisms.tree import TreeNoise
        >>> from askgauss.mechanisms.strategy import numpy_draw
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
    _checkpoint_schema = 2

    def __init__(
        self,
        canaries: PlacedCanaries,
        plan: TreePlan | Strategy,
        *,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Literal["rows", "steps", "prefixes"] = "steps",
    ) -> None:
        if not isinstance(canaries, PlacedCanaries):
            raise _validate.fail(
                "canaries", canaries, "to be canaries", "Make them with DiracCanaries()."
            )
        given: Any = plan
        if not isinstance(given, (TreePlan, Strategy)):
            hint = "Make one of askgauss.mechanisms: BandedStrategy.toeplitz([1.0, 0.5], steps)."
            raise _validate.fail("plan", plan, "to be a TreePlan or a strategy", hint)
        _validate.magnitude(clip_norm=clip_norm)
        if noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
        super().__init__()
        self._canaries = canaries
        self._mechanism = plan
        self._plan: Plan
        self._reader: Reader
        if isinstance(plan, Strategy):
            self._plan = plan_of(plan, release)
            self._reader = RowReader(self._plan, plan)
            kept = _KEPT_OF_ROWS // plan.steps
        else:
            self._plan, self._reader = plan, reader(plan)
            kept = _KEPT_NUMBERS // (2 * plan.steps)
        self._clip_norm = float(clip_norm)
        self._noise_multiplier = None if noise_multiplier is None else float(noise_multiplier)
        self._leaves = _random_leaves(canaries, self._plan)
        # Entries into leaves, one a canary and participation, in the order of the leaves.
        order = np.argsort(self._leaves, axis=None, kind="stable")
        self._leaf = self._leaves.ravel()[order]
        self._owner = order // self._leaves.shape[1]
        self._starts = np.searchsorted(self._leaf, np.arange(plan.steps + 1))
        self._absent = np.flatnonzero(~canaries.member)
        chosen = random_stream(canaries.root_seed, Stream.KEPT).permutation(self._absent)
        # The absent canaries of which every piece is kept.
        self._kept = np.sort(chosen[: min(max(kept, _FEWEST_KEPT), _MOST_KEPT)])
        self._run = secrets.token_hex(16)
        self._sums = {name: np.zeros(canaries.size) for name in ("score", "gain", "square")}
        self._sums["leaf_gain"] = np.zeros(plan.steps)
        self._pieces: list[tuple[float, ...]] = []
        self._kept_values: list[NDArray[np.float64]] = []
        self._cosines: NDArray[np.float64] | None = None
        self._rows = RowNoise(canaries.coordinates, canaries.member, self._noise_multiplier)

    @classmethod
    def sampled(
        cls,
        canaries: PlacedCanaries,
        strategy: Strategy,
        *,
        sampling: Scheme,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        release: Literal["rows", "steps", "prefixes"] = "steps",
    ) -> SampledRecorder:
        """A recorder for records that join their steps by coins, as in BandMF.

        Args:
            canaries: Who is planted where.
            strategy: A strategy with no more bands than the cycle is long.
            sampling: ``CyclicPoisson(rate=..., cycle=...)``; a record may join one step in so many.
            clip_norm: Norm of one planted canary.
            noise_multiplier: The noise of one row of the strategy that the run claims, in clip
                norms.
            release: As for `LinearRecorder`.

        Returns:
            A recorder that is used in the same way, and whose transcript is that of DP-SGD.
        """
        return SampledRecorder(
            canaries,
            strategy,
            sampling=sampling,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            release=release,
        )

    @property
    def run(self) -> str:
        """The identity of the run, drawn when it is begun and kept through checkpoints."""
        return self._run

    @property
    def plan(self) -> Plan:
        """The mechanism."""
        return self._plan

    def sample(self, *, step: int | None = None) -> NDArray[np.int64]:
        """Indices of the canaries to plant in this step: the present ones with a leaf here.

        Args:
            step: Steps done so far by your own count, 0 for the first; checked when given, so that
                a run does not go on from checkpoints of two moments.

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
        known = self._check_observed(background, step)
        size = self._canaries.size
        shape: tuple[int, ...] = (size,)
        if isinstance(self._plan, TreePlan) and self._plan.release == "nodes":
            shape = (len(released_nodes(self._plan, self._step)), size)
        noisy = numbers("released", released, shape)
        clean = 0.0 if background is None else numbers("background", background, shape)
        angles = None if cosines is None else numbers("cosines", cosines, (2, size))
        if self._step and (angles is None) != (self._cosines is None):
            raise RecordingError("Expected cosines in every step or in none.")
        # Infinite gradients make nan here. They are recorded, and the scores then refuse them.
        with np.errstate(all="ignore"):
            values = np.subtract(noisy, clean, dtype=np.float64)
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
            self._rows.add(noise)
        # Nodes of the empty leaves that fill up a tree cover nobody.
        strength = np.abs(piece.signal) if piece.signal.size else np.zeros(1)
        strongest = int(np.argmax(strength))
        absent = noise[self._absent]
        self._pieces.append(
            (
                *piece.node,
                float(absent.sum()),
                float(absent @ absent),
                float(strength[strongest]),
                min(piece.first + strongest, self._plan.steps - 1),
                planted.size,
                float(planted @ planted),
            )
        )
        self._kept_values.append(noise[self._kept])

    def transcript(self) -> LinearTranscript:
        """The transcript of the steps observed so far.

        Of a run that stopped early, the mechanism is the tree up to there, and canaries whose
        leaves never came have no score.

        Raises:
            RecordingError: No canary has entered yet, or the releases mean nothing before all are
                there.
        """
        self._check_whole()
        if self._reader.offline and self._step < self._plan.steps:
            raise RecordingError(
                f"Expected all {self._plan.steps} steps, got {self._step}: the filter of these "
                "releases needs every one of them."
            )
        return self._recorded()

    def _recorded(self) -> LinearTranscript:
        """What is there so far, whether or not it means anything yet."""
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
        leaf_noise = self._leaf_noise()
        return LinearTranscript(
            member=self._canaries.member,
            leaves=self._leaves.copy(),
            score=score,
            information=information,
            largest_information=largest,
            pieces=self._piece_sums(leaf_gain),
            kept=self._kept.copy(),
            kept_values=np.array(self._kept_values).reshape(-1, self._kept.size),
            cosine=cosine,
            round_cosine=round_cosine,
            noise_square=self._noise_square(),
            leaf_square=None if leaf_noise is None else leaf_noise[0],
            leaf_gain=None if leaf_noise is None else leaf_noise[1],
            plan=self._plan,
            facts=LinearFacts(
                steps=self._step,
                clip_norm=self._clip_norm,
                noise_multiplier=self._noise_multiplier,
                background=self._background or "unknown",
                fair_coins=self._canaries.fair_coins,
                tensors=tuple(
                    f"tensor {index}" for index in range(len(self._canaries.tensor_sizes))
                ),
                seed=self._canaries.root_seed,
                carried_shift=min(largest / self._sensitivity(self._plan.steps), 1.0),
                run=self._run,
                reuse=self._rows.reuse if self._background == "known" else None,
                resumed=self._resumed,
            ),
        )

    def _piece_sums(self, leaf_gain: NDArray[np.float64]) -> PieceSums:
        rows = np.array(self._pieces, np.float64).reshape(-1, _COLUMNS)
        tree_number, level, index = rows[:, :3].astype(np.int64).T.copy()
        signal, leaf, planted, planted_square = rows[:, 5:].T.copy()
        # Filters of whole prefixes are no signals.
        known = self._reader.gram is None
        return PieceSums(
            tree=tree_number,
            level=level,
            index=index,
            total=rows[:, 3].copy(),
            square=rows[:, 4].copy(),
            signal=signal if known else None,
            gain=leaf_gain[leaf.astype(np.int64)] if known else None,
            planted=planted.astype(np.int64) if known else None,
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
        rows = self._step
        if not isinstance(self._mechanism, Strategy) or self._background != "known":
            return None
        if self._kept.size < _TIMES_ROWS * rows:
            return None
        values = np.array(self._kept_values).reshape(rows, self._kept.size)
        if not np.isfinite(values).all():
            return None
        columns = np.zeros((rows, rows))
        for step in range(rows):
            first, row = self._mechanism.row(step)
            columns[step, first : step + 1] = row
        try:
            root = np.linalg.cholesky(values @ values.T)
        except np.linalg.LinAlgError:  # rows without noise, which other numbers tell
            return None
        gain = np.square(columns).sum(axis=0)
        with np.errstate(all="ignore"):
            found = gain / np.square(np.linalg.solve(root, columns)).sum(axis=0)
        # Likewise, where there is hardly any.
        return (found, gain) if np.isfinite(found).all() else None

    def _sensitivity(self, steps: int) -> float:
        """How far a record can move all the nodes of so many steps."""
        if isinstance(self._mechanism, Strategy):
            return self._mechanism.sensitivity()
        return tree.sensitivity(
            steps,
            participations=self._mechanism.participations,
            min_separation=self._mechanism.min_separation,
            restart_every=self._mechanism.restart_every,
            completion=self._mechanism.completion,
        )

    def _largest_information(
        self, gain: NDArray[np.float64], leaf_gain: NDArray[np.float64]
    ) -> float:
        """The most presence can move the score of any record; never more than that.

        For several participations and online prefixes the worst way to participate is not known:
        the worst of the canaries' own stands in, so that the bound can only be too low.
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
        """Everything needed to go on: arrays, and plain values under ``"state"``."""
        self._check_whole()
        state: dict[str, Any] = {f"sums.{name}": item.copy() for name, item in self._sums.items()}
        state |= self._rows.arrays()
        state["pieces"] = np.array(self._pieces, np.float64).reshape(-1, _COLUMNS)
        state["kept_values"] = np.array(self._kept_values).reshape(-1, self._kept.size)
        if self._cosines is not None:
            state["cosines"] = self._cosines.copy()
        open_values = self._reader.open_values()
        state |= {f"open.{index}": array.copy() for index, array in enumerate(open_values)}
        state["state"] = codec.to_plain(
            _Progress(
                fingerprint=self._canaries.fingerprint(),
                plan=self._plan,
                clip_norm=self._clip_norm,
                step=self._step,
                asked=self._asked,
                background=self._background,
                open=len(open_values),
                run=self._run,
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
        self._check_progress(
            progress,
            fingerprint=self._canaries.fingerprint(),
            plan=self._plan,
            clip_norm=self._clip_norm,
        )
        size = self._canaries.size
        given = state.get("pieces")
        count = len(given) if isinstance(given, np.ndarray) and given.ndim else 0
        pieces = saved_numbers(state, "pieces", (count, _COLUMNS))
        sums = {
            name: saved_numbers(state, f"sums.{name}", old.shape)
            for name, old in self._sums.items()
        }
        open_values = [
            saved_numbers(state, f"open.{index}", (size,)) for index in range(progress.open)
        ]
        kept_values = saved_numbers(state, "kept_values", (count, self._kept.size))
        cosines = saved_numbers(state, "cosines", (2, size)) if "cosines" in state else None
        rows = RowNoise(self._canaries.coordinates, self._canaries.member, self._noise_multiplier)
        rows.load(state)
        found = copy.copy(self)
        found._rows = rows
        found._run = progress.run or self._run
        found._sums, found._cosines, found._kept_values = sums, cosines, list(kept_values)
        found._pieces = [tuple(row) for row in pieces.tolist()]
        found._go_on(progress)
        found._check_recorded(pieces)
        self._reader.resume(progress.step, open_values)
        vars(self).update(vars(found))

    def _check_recorded(self, pieces: NDArray[np.float64]) -> None:
        """Refuse a checkpoint whose transcript would be refused."""
        # Places of nodes, leaves and counts are whole numbers kept among the floats.
        steps, size = self._plan.steps, self._canaries.size
        limits = {0: (0, steps), 1: (-1, 64), 2: (0, steps), 6: (0, steps - 1), 7: (0, size)}
        for column, (low, high) in limits.items():
            found = pieces[:, column]
            if not np.all((found >= low) & (found <= high) & (found % 1.0 == 0.0)):
                raise FileFormatError(
                    f"Expected column {column} of pieces of the checkpoint to be whole numbers in "
                    f"[{low}, {high}], got others. Load an older checkpoint."
                )
        for name in ("gain", "leaf_gain"):
            most = _validate.LARGEST**2
            field = Field(np.float64, self._sums[name].shape, low=0.0, high=most, finite=True)
            field.check(f"sums.{name}", self._sums[name])
        if isinstance(self._mechanism, Strategy) and len(pieces) != self._step:
            raise FileFormatError(
                f"Expected pieces of the checkpoint to be the rows of {self._step} steps, got "
                f"{len(pieces)}. Load an older checkpoint."
            )
        if self._step and self._background is None:
            raise FileFormatError("Expected the checkpoint to say whether background was known.")
        # Before anybody has entered there is no transcript yet.
        if self._step and (self._reader.gram is not None or self._sums["gain"].any()):
            self._recorded().check()


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
