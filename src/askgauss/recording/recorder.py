"""The recorder: reads what each step released and reduces it to a transcript as it goes by."""

from __future__ import annotations

import os
import warnings
from dataclasses import fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import Canaries, Stream, random_stream
from askgauss.exceptions import (
    AskGaussWarning,
    FileFormatError,
    InvalidArgumentError,
    RecordingError,
)
from askgauss.monitor import Monitor, ObservedStep, monitor_of
from askgauss.recording.facts import RunFacts
from askgauss.recording.run_recorder import (
    Background,
    Progress,
    Rows,
    RunRecorder,
    by_tensor,
    halvings,
    numbers,
    saved_array,
    saved_canaries,
)
from askgauss.recording.step_store import StepWriter
from askgauss.recording.transcript import (
    SILENCE,
    CanarySums,
    StepSums,
    Transcript,
    check_transcript_arrays,
)
from askgauss.sampling import Scheme, assumed_poisson, scheme_of
from askgauss.sampling.inclusion import Inclusion

__all__ = ["Recorder"]

# Canaries every step of which is kept; of very long runs fewer, so that this many values are.
_KEPT = 256
_KEPT_VALUES = 1 << 24
_STEP_FIELDS = tuple(item.name for item in fields(StepSums))
_COUNTS = ("planted", "last_planted")
# Numbers of a step that are kept in one row together, since every row costs time.
_MARKS = (
    *("least", "most", "planted_least", "planted_most", "silent", "planted_silent"),
    *("carried", "batch_size"),
)


class Recorder(RunRecorder):
    """Records a run step by step, whatever framework runs it.

    A step is: ask `sample` which canaries to plant, add them to the clean sum, let the mechanism
    add its noise, then hand what it released to `observe`. A sampler of your own may choose
    instead; say then who was planted.

    Memory is a few numbers a canary and a few rows a step: every step is kept of 256 canaries, and
    of half as many whenever the run grows beyond 17 million such values.

    Args:
        canaries: Who is planted where.
        sampling: How the training draws its records, a scheme of `askgauss.sampling`. By the same
            law `sample` draws canaries; where your own sampler plants, what it drew is tested.
        sampling_rate: Short for ``sampling=Poisson(rate=...)`` where `sample` plants: the
            probability that a present canary is planted in a step. Needed unless your own sampler
            plants, in which case it stays None.
        clip_norm: Norm of one planted canary; `observe` may give another for its step.
        noise_multiplier: The noise multiplier the run claims, for the findings.
        poisson: Whether your own sampler draws every record by an independent coin in every step.
            Bounds that rest on it say that it was declared, and not seen. The recorder's own coin
            needs no word for it.
        records: Records the training draws its batches from, to compare batches with.
        unit: What one canary stands for: an example, or a user whose examples are clipped together.
        inserted: Where canaries enter a step: in the clipped sum, or as rows among the gradients of
            single records, longer than the clip norm, that the training clips. Then clipping is
            tested too.
        store: A file to keep every step in as well, for `StepStore`: 4 bytes a canary and step. It
            is whole on disk whenever a checkpoint or a transcript has been taken.
        monitor: Watches every step; its state is kept in the checkpoints. True for a plain one.

    Raises:
        InvalidArgumentError: An argument is out of its range.
        RecordingError: A live run writes to the store.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> canaries = ag.DiracCanaries(present=20, absent=20, dimension=1000, seed=0)
        >>> recorder = ag.Recorder(canaries, sampling_rate=0.5, clip_norm=1.0)
        >>> noise = np.random.default_rng(1)
        >>> for _ in range(10):
        ...     clean = np.zeros(1000)
        ...     background = canaries.project(clean)
        ...     canaries.plant(clean, recorder.sample(), clip_norm=1.0)
        ...     released = clean + noise.normal(0, 2.0, 1000)
        ...     recorder.observe(canaries.project(released), background=background)
        >>> recorder.transcript()
        Transcript(steps=10, present=20, absent=20, background='known')
    """

    _checkpoint_kind = "askgauss-recorder"
    _checkpoint_schema = 3

    def __init__(
        self,
        canaries: Canaries,
        *,
        sampling: Scheme | None = None,
        sampling_rate: float | None = None,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        poisson: bool = False,
        records: int | None = None,
        unit: Literal["example", "user"] = "example",
        inserted: Literal["before clipping", "after clipping"] = "after clipping",
        store: str | os.PathLike[str] | None = None,
        monitor: Monitor | bool | None = None,
    ) -> None:
        super().__init__(canaries, clip_norm=clip_norm, noise_multiplier=noise_multiplier)
        scheme = scheme_of(sampling, sampling_rate)
        _validate.one_of(("example", "user"), unit=unit)
        _validate.one_of(("before clipping", "after clipping"), inserted=inserted)
        if records is not None:
            _validate.count(maximum=_validate.MOST_RECORDS, records=records)
        if poisson and not assumed_poisson(scheme):
            raise InvalidArgumentError(
                f"Expected poisson=False, got True with sampling={scheme!r}. Say one of the two."
            )
        self._canaries = canaries
        self._planting = Inclusion(canaries, scheme, None if records is None else int(records))
        self._sampling_rate = None if scheme is None else scheme.share
        # A rate alone does not say how the user's own sampler draws.
        self._declared = sampling
        self._stands_for: Literal["example", "user"] = unit
        self._clipped = inserted == "before clipping"
        self._poisson = bool(poisson) or (sampling is not None and assumed_poisson(sampling))
        self._store = None if store is None else StepWriter(store, canaries)
        self._drawn: NDArray[np.int64] | None = None
        self._own_draws: bool | None = None
        self._watched: int | None = None
        # Whether steps were declared to differ in their noise, so that sums are in two units.
        self._varied = False
        size, kept = canaries.size, random_stream(canaries.root_seed, Stream.KEPT)
        self._kept_order = kept.permutation(size)[:_KEPT]
        self._kept = np.sort(self._kept_order)
        self._tensor = np.ascontiguousarray(canaries.tensor)
        self._tensors = tensors = int(self._tensor.max(initial=0)) + 1
        self._sums: dict[str, NDArray[Any]] = {
            item.name: np.zeros(size, dtype=np.int64 if item.name in _COUNTS else np.float64)
            for item in fields(CanarySums)
        }
        self._chunks = list(by_tensor(self._tensor))
        self._previous = np.zeros(size)
        self._spare = np.zeros(size)
        self._flags = np.zeros(size, dtype=np.bool_)
        self._rows = {
            "clip_norm": Rows.empty(np.float64),
            "noise_multiplier": Rows.empty(np.float64),
            "planted": Rows.empty(np.int64, tensors),
            "planted_total": Rows.empty(np.float64, tensors),
            "planted_square": Rows.empty(np.float64, tensors),
            "total": Rows.empty(np.float64, tensors),
            "square": Rows.empty(np.float64, tensors),
            "kept_values": Rows.empty(np.float64, self._kept.size),
            "kept_planted": Rows.empty(np.bool_, self._kept.size),
            "marks": Rows.empty(np.float64, len(_MARKS)),
            "gaps": Rows.empty(np.int64),
            "watch_values": Rows.empty(np.float64, 0),
        }
        self._monitor = monitor_of(monitor)
        # What is kept of a very long run thins out; what is watched does not.
        self._monitored = self._kept
        if self._monitor is not None:
            self._monitor.attach(canaries, self._monitored, sampling=scheme)

    @property
    def steps(self) -> int:
        """Number of steps observed so far."""
        return len(self._rows["clip_norm"])

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return self._monitor

    @property
    def kept(self) -> NDArray[np.int64]:
        """Indices of the canaries every step of which is kept."""
        return self._kept.copy()

    def _keep_fewer(self) -> None:
        """Let go of half of the kept canaries where the step to come would be one too many."""
        while self._kept.size > 1 and (self.steps + 1) * self._kept.size > _KEPT_VALUES:
            fewer = np.sort(self._kept_order[: list(halvings(self._kept.size))[1]])
            chosen = np.isin(self._kept, fewer)
            for name in ("kept_values", "kept_planted"):
                self._rows[name] = self._rows[name].columns(chosen)
            self._kept = fewer

    def sample(self, *, step: int | None = None) -> NDArray[np.int64]:
        """Indices of the canaries to plant in this step, each drawn by itself by the scheme's law.

        Args:
            step: Steps done so far by your own count, 0 for the first; checked when given, so that
                a run does not go on from checkpoints of two moments.

        Raises:
            RecordingError: The last sample has not been observed yet, your own sampler plants, or
                the recorder is at another step.
        """
        self._check_whole()
        self.check_step(step, self.steps)
        if self._sampling_rate is None:
            raise RecordingError(
                "Expected sampling_rate or sampling to be given to the Recorder before sample(); "
                "or let your own sampler choose and pass planted= to observe()."
            )
        if self._own_draws is False:
            raise RecordingError(
                "sample() came after steps that were given planted=: let your own sampler choose "
                "in every step, or in none."
            )
        if self._drawn is not None:
            raise RecordingError("sample() was called twice for one step: observe() it first.")
        self._drawn = self._planting.draw()
        return self._drawn.copy()

    def observe(
        self,
        noisy_sum: ArrayLike,
        *,
        background: ArrayLike | None = None,
        planted: ArrayLike | None = None,
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        watch: ArrayLike | None = None,
        batch_size: int | None = None,
        batch: ArrayLike | None = None,
        step: int | None = None,
    ) -> None:
        """Record what one step released; of a step that raises, nothing is recorded.

        Args:
            noisy_sum: The released sum along each canary (`canaries.project`).
            background: The clean sum there, before anything was planted, or 0 where it has been
                taken off already; None where unknown. Only where what other records drew says
                nothing of a canary's draws (`Scheme.known_background`): Poisson sampling, say.
            planted: Indices of the planted canaries, where your own sampler chose them.
            clip_norm: Norm of one planted canary in this step, if not the recorder's.
            noise_multiplier: Noise multiplier claimed for this step, if not the recorder's.
            watch: The released sum, less its clean value where that is known, at
                ``canaries.watch``.
            batch_size: Records in the batch of the training, as its sampler drew it.
            batch: Indices of those records, from 0 to ``records - 1``, to test how they are drawn.
            step: Steps done before this one by your own count, as for `sample`.

        Raises:
            InvalidArgumentError: An argument has the wrong shape, type or range.
            RecordingError: The step does not fit the ones before it.
            OSError: The store could not be written.
            PrivacyAlarm: The monitor alarms; the step has been recorded.
        """
        self._check_whole()
        self.check_step(step, self.steps)
        released = numbers("noisy_sum", noisy_sum, (self._canaries.size,))
        norm = self._clip_norm if clip_norm is None else clip_norm
        _validate.magnitude(clip_norm=norm)
        claimed = self._noise_multiplier if noise_multiplier is None else noise_multiplier
        if claimed is not None:
            _validate.magnitude(noise_multiplier=claimed, zero=True)
            self._check_relative(claimed)
        if batch_size is not None:
            _validate.integer(0, batch_size=batch_size)
        members = self._planting.checked_batch(batch, self.steps)
        if members is not None and batch_size not in (None, members.size):
            hint = "Leave it out: batch says it."
            raise _validate.fail("batch_size", batch_size, f"= {members.size}, as in batch", hint)
        if members is not None:
            batch_size = members.size
        known = self._check_background(background)
        scheme = self._planting.scheme
        if known == "known" and scheme is not None and not scheme.known_background:
            raise RecordingError(
                f"Expected no background with {scheme}: what other records drew says which steps "
                "drew a canary, so their sum has to stay in. Leave background out."
            )
        clean: Any = 0.0
        if not (background is None or (isinstance(background, (int, float)) and background == 0)):
            clean = numbers("background", background, (self._canaries.size,))
        indices = self._planted_indices(planted)
        watched = self._watch_row(watch)
        # Overflow and nan are kept as they come: the transcript says that it is not finite.
        with np.errstate(all="ignore"):
            values = np.subtract(released, clean, out=self._spare, dtype=np.float64)
            values /= norm
            self._whole = False
            self._flags[indices] = True
            self._append_to_store(values, known, planted is None)
            self._background, self._own_draws, self._drawn = known, planted is None, None
            if self._watched is None:
                self._watched = watched.size
                self._rows["watch_values"] = Rows.empty(np.float64, watched.size)
            self._keep_fewer()
            self._rows["clip_norm"].append(norm)
            self._rows["noise_multiplier"].append(np.nan if claimed is None else claimed)
            self._rows["watch_values"].append(watched / norm)
            self._rows["kept_values"].append(values[self._kept])
            self._rows["kept_planted"].append(self._flags[self._kept])
            seen = None if self._monitor is None else values[self._monitored]
            self._add(values, indices, batch_size)
            self._planting.add(self._flags, members, own=planted is None)
            self._flags[indices] = False
        self._previous, self._spare = values, self._previous
        self._whole = True
        if self._monitor is not None and seen is not None:
            self._monitor.observe(self._last_step(claimed, seen))

    def _check_relative(self, claimed: float) -> None:
        """Refuse noise so far from that of the first step that none of its squares is a number."""
        first = float(self._rows["noise_multiplier"].view()[0]) if self.steps else claimed
        if first > 0.0 and claimed > 0.0:
            low, high = _validate.SMALLEST * first, _validate.LARGEST * first
            if not low <= claimed <= high:
                expected = f"in [{low:g}, {high:g}], by the {first:g} of the first step"
                hint = "Leave noise_multiplier out of steps that are told to have next to none."
                raise _validate.fail("noise_multiplier", claimed, expected, hint)

    def _last_step(self, claimed: float | None, seen: NDArray[np.float64]) -> ObservedStep:
        """The step that was just recorded, for the monitor."""
        rows = self._rows
        return ObservedStep(
            planted=rows["planted"].last(),
            planted_total=rows["planted_total"].last(),
            planted_square=rows["planted_square"].last(),
            total=rows["total"].last(),
            square=rows["square"].last(),
            kept=seen,
            noise_multiplier=claimed,
            known=self._background == "known",
            own_coin=self._own_draws is True,
        )

    def _add(
        self, values: NDArray[np.float64], planted: NDArray[np.int64], batch_size: int | None
    ) -> None:
        """Add a step to the sums, and turn its values into what is left without the plantings.

        What is left is in units of the noise declared for the step, relative to that of the first.
        """
        sums, rows, tensors = self._sums, self._rows, self._tensors
        chosen = values[planted]
        squares = chosen * chosen
        strata = self._tensor[planted]
        rows["planted"].append(np.bincount(strata, minlength=tensors))
        rows["planted_total"].append(np.bincount(strata, chosen, tensors))
        rows["planted_square"].append(np.bincount(strata, squares, tensors))
        # The planted ones are set to zero, rather than taken off again later: nothing cancels.
        values[planted] = 0.0
        unit, quiet = self._unit()
        total, square = np.zeros(tensors), np.zeros(tensors)
        silent, along, length, least, most = 0, 0.0, 0.0, 0.0, 0.0
        for part, order, starts, groups in self._chunks:
            these, before = values[part], sums["other_total"][part]
            product = these * these
            if groups.size == 1:
                total[groups[0]] += np.add.reduce(these)
                square[groups[0]] += np.add.reduce(product)
            else:
                total[groups] += np.add.reduceat(these[order], starts)
                square[groups] += np.add.reduceat(product[order], starts)
            if self._varied:
                sums["total"][part] += these
                sums["square"][part] += product
                these /= unit
                np.multiply(these, these, out=product)
            silent += int(np.count_nonzero(product < quiet))
            sums["other_square"][part] += product
            along += float(before @ these)
            length += float(before @ before)
            before += these
            least = min(least, float(np.minimum.reduce(these)))
            most = max(most, float(np.maximum.reduce(these)))
            np.multiply(these, self._previous[part], out=product)
            sums["lag"][part] += product
        rows["total"].append(total)
        rows["square"].append(square)
        sums["planted"][planted] += 1
        for name, addend in (("total", chosen), ("square", squares)):
            sums[f"planted_{name}"][planted] += addend
            if self._varied:
                sums[name][planted] += addend
        chosen -= 1.0
        if self._varied:
            chosen /= unit
        nan, ends = np.nan, (np.nan, np.nan)
        if planted.size:
            # Nothing was added to these: they are as they were before the step.
            before = sums["other_total"][planted]
            length -= float(before @ before)
            ends = float(np.minimum.reduce(chosen)), float(np.maximum.reduce(chosen))
        near = silent - planted.size, np.count_nonzero(chosen * chosen < quiet)
        rows["marks"].append(
            (
                *(least, most, *ends),
                *(near if quiet > 0.0 else (nan, nan)),
                along / length**0.5 if length > 0.0 else nan,
                nan if batch_size is None else batch_size,
            )
        )
        self._add_gaps(planted)
        values[planted] = chosen
        sums["lag"][planted] += chosen * self._previous[planted]

    def _unit(self) -> tuple[float, float]:
        """The noise declared for this step relative to the first, and the square of silence."""
        declared = self._rows["noise_multiplier"].view()
        first, last = declared[0], declared[-1]
        if not (first > 0.0 and last > 0.0):
            return 1.0, 0.0
        if last != first and not self._varied:
            self._sums |= self._whole_sums()
            self._varied = True
        return float(last / first), float(SILENCE * first) ** 2

    def _whole_sums(self) -> dict[str, NDArray[np.float64]]:
        """Sums over all steps; while these are in one unit, they are put together when needed."""
        sums = self._sums
        return {
            name: sums[name].copy()
            if self._varied
            else sums[f"other_{name}"] + sums[f"planted_{name}"]
            for name in ("total", "square")
        }

    def _add_gaps(self, planted: NDArray[np.int64]) -> None:
        """Count after how many steps each planted canary came back; our own coin needs no look."""
        self._rows["gaps"].append(0)
        if self._own_draws is False:
            last = self._sums["last_planted"]
            again = last[planted]
            np.add.at(self._rows["gaps"].view(), self.steps - again[again > 0] - 1, 1)
            last[planted] = self.steps

    def _append_to_store(
        self, values: NDArray[np.float64], background: Background, own_draws: bool
    ) -> None:
        if self._store is None:
            return
        try:
            self._store.append(values, self._flags, lambda: self._facts(background, own_draws))
        except (OSError, RecordingError):
            # The writer took its row back, so only this step is missing.
            self._flags[:] = False
            self._whole = True
            raise

    def _complete_store(self, *, sync: bool = False) -> None:
        """Hand over what the store has pending; what else is recorded does not depend on it."""
        if self._store is None:
            return
        try:
            self._store.flush(seal=True, sync=sync)
        except OSError as error:
            warnings.warn(
                f"The step store could not be written ({error}): its last steps are missing until "
                "there is room and the recorder is saved again. Transcript and result are complete "
                "without it; a checkpoint saved now cannot be resumed with this store.",
                AskGaussWarning,
                stacklevel=4,
            )

    def _planted_indices(self, planted: ArrayLike | None) -> NDArray[np.int64]:
        if self._own_draws not in (None, planted is None):
            raise RecordingError(
                "Expected every step to be sampled the same way: by sample(), or by planted=."
            )
        if planted is None:
            if self._drawn is None:
                raise RecordingError(
                    "observe() came before sample(): ask which canaries to plant first, or say "
                    "with planted= which ones your own sampler chose."
                )
            return self._drawn
        if self._drawn is not None:
            raise RecordingError("Expected planted=None after sample(), got a choice of your own.")
        indices = np.asarray(planted)
        if indices.size == 0:
            return np.zeros(0, dtype=np.int64)
        if indices.dtype.kind not in "iu" or indices.ndim != 1:
            raise InvalidArgumentError(
                f"Expected planted to be indices of canaries, got dtype {indices.dtype} and shape "
                f"{indices.shape}. Pass numpy.flatnonzero() of a mask."
            )
        if indices.min() < 0 or indices.max() >= self._canaries.size:
            raise InvalidArgumentError(
                f"Expected planted in [0, {self._canaries.size}), got {indices.min()} to "
                f"{indices.max()}. Number the canaries as in canaries.member."
            )
        indices = indices.astype(np.int64)
        if np.unique(indices).size != indices.size:
            raise InvalidArgumentError(
                "Expected planted to name each canary once, got repeats. A canary planted twice in "
                "one step is two records: drop the repeats."
            )
        absent = indices[~self._canaries.member[indices]]
        if absent.size:
            raise InvalidArgumentError(
                f"Expected planted to name present canaries only, got {absent[0]}, which is "
                "absent. Plant only where canaries.member is True."
            )
        return indices

    def _watch_row(self, watch: ArrayLike | None) -> NDArray[Any]:
        row = np.zeros(0) if watch is None else np.asarray(watch)
        wanted = (self._canaries.watch.size,)
        if watch is not None and (row.dtype.kind not in "biuf" or row.shape != wanted):
            raise InvalidArgumentError(
                f"Expected watch to hold {wanted[0]} numbers, got shape {row.shape} and dtype "
                f"{row.dtype}. Read the released sum at canaries.watch."
            )
        if self._watched not in (None, row.size):
            raise RecordingError(
                f"Expected watch in every step or in none, got {row.size} numbers after steps with "
                f"{self._watched}."
            )
        return row

    def transcript(self) -> Transcript:
        """The transcript of the steps observed so far.

        Raises:
            RecordingError: No step has been observed.
        """
        self._check_whole()
        self._complete_store()
        rows = _by_name({name: item.rows() for name, item in self._rows.items()})
        watch = self._canaries.watch_tensor if self._watched else np.zeros(0, dtype=np.int64)
        return Transcript(
            member=self._canaries.member,
            tensor=self._tensor.copy(),
            canaries=CanarySums(
                **{name: array.copy() for name, array in self._sums.items()} | self._whole_sums()
            ),
            steps=StepSums(**{name: rows.pop(name) for name in _STEP_FIELDS}),
            kept=self._kept.copy(),
            watch_tensor=watch.copy(),
            facts=replace(
                self._facts(self._background, self._own_draws),
                batches=self._planting.batches,
                plantings=self._planting.plantings,
                found_scheme=self._planting.found,
                exercised=(
                    *(("sampler",) if self._planting.meets_the_sampler else ()),
                    *(("clipping",) if self._clipped else ()),
                ),
            ),
            **rows,
        )

    def _facts(self, background: Background | None, own_draws: bool | None) -> RunFacts:
        other = not assumed_poisson(self._planting.scheme)
        return replace(
            self._common_facts(self._canaries),
            sampling_rate=self._sampling_rate,
            scheme=self._declared,
            sampling="user's sampler" if own_draws is False else "own coin",
            poisson=self._poisson or (own_draws is not False and not other),
            poisson_declared=self._poisson and own_draws is False,
            background=background or "unknown",
            records=self._planting.records,
            unit=self._stands_for,
            places=self._canaries.places,
            watched=self._monitor is not None,
            planned_steps=None if self._monitor is None else self._monitor.planned,
        )

    def hold(self) -> None:
        """Keep others from the files of this run again, after `release`.

        Raises:
            RecordingError: Another process goes on with the run, or did meanwhile; or another
                recorder of this process holds the store.
        """
        super().hold()
        if self._store is not None:
            self._store.hold()

    def release(self) -> None:
        """Let other processes go on with the files of this run; to write one holds it again."""
        super().release()
        if self._store is not None:
            self._store.release()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on after a restart: arrays, and plain values under ``"state"``.

        What the store has pending is on disk when this returns, unless the disk is full: then a
        warning says so, and the checkpoint can be audited but not resumed.
        """
        self._check_whole()
        self._complete_store(sync=True)
        sums = {name: item.copy() for name, item in self._sums.items()} | self._whole_sums()
        state: dict[str, Any] = {f"sums.{name}": item for name, item in sums.items()}
        state |= {f"rows.{name}": item.rows() for name, item in self._rows.items()}
        state["previous"] = self._previous.copy()
        state |= self._planting.arrays()
        if self._drawn is not None:
            state["drawn"] = self._drawn.copy()
        state["state"] = self._progress(
            asked=self._drawn is not None,
            own_draws=self._own_draws,
            watched=self._watched,
            generator=self._planting.generator_state,
            stored=self._store is not None,
            stored_check=None if self._store is None else self._store.last_check,
            monitor=None if self._monitor is None else self._monitor.state_dict(),
        )
        return state

    def _settings(self) -> dict[str, Any]:
        return {
            "fingerprint": self._canaries.fingerprint(),
            "sampling_rate": self._sampling_rate,
            "clip_norm": self._clip_norm,
            "scheme": self._declared,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; the store is cut back to the steps it had then.

        Raises:
            FileFormatError: The state is not one of a recorder, or parts of it are missing.
            RecordingError: The state belongs to other canaries, another rate or another clip norm,
                or the store does not hold its steps. The recorder stays as it was.
        """
        progress = self._read_progress(state)
        steps, size = progress.step, self._canaries.size
        if progress.watched not in (None, 0, self._canaries.watch.size):
            raise FileFormatError(
                f"Expected state.watched to be 0 or {self._canaries.watch.size}, got "
                f"{progress.watched}."
            )
        sums = {
            name: saved_array(state, f"sums.{name}", old.dtype, (size,))
            for name, old in self._sums.items()
        }
        previous = saved_array(state, "previous", np.float64, (size,))
        drawn = saved_canaries(state, "drawn", self._canaries) if progress.asked else None
        # Of a long run fewer canaries are kept: the first ones of the same order.
        given: Any = state.get("rows.kept_values")
        width = np.shape(given)[-1:]
        count = next((n for n in halvings(self._kept_order.size) if (n,) == width), None)
        kept = np.sort(self._kept_order[:count])
        widths = {"watch_values": (progress.watched or 0,)}
        widths |= dict.fromkeys(("kept_values", "kept_planted"), (kept.size,))
        rows = {}
        for name, item in self._rows.items():
            like = item.view()
            shape = (steps, *widths.get(name, like.shape[1:]))
            rows[name] = saved_array(state, f"rows.{name}", like.dtype, shape)
        if steps:
            self._check_sums(sums, rows, kept, progress)
        planting = Inclusion(self._canaries, self._planting.scheme, self._planting.records)
        own = progress.own_draws is not False
        draws = (steps if own else 0) + (drawn is not None)
        planting.resume(draws, progress.generator, state, steps)
        if steps and progress.stored != (self._store is not None):
            raise RecordingError(
                "Expected store to be given to the Recorder exactly if the run began with one: a "
                "store holds every step of its run."
            )
        if progress.monitor is not None and self._monitor is None:
            raise RecordingError(
                "Expected monitor to be given to the Recorder, the run began with one: its "
                "evidence would be lost."
            )
        if self._monitor is not None and progress.monitor is not None:
            self._monitor.load_state_dict(progress.monitor)
        if self._store is not None:
            self._store.resume(steps, run=progress.run, check=progress.stored_check)
        self._resume(progress)
        self._kept = kept
        self._sums, self._previous, self._drawn = sums, previous, drawn
        self._planting = planting
        self._rows = {name: Rows(array) for name, array in rows.items()}
        declared = rows["noise_multiplier"]
        first = declared[0] if declared.size else 0.0
        self._varied = bool(first > 0.0 and (declared[declared > 0.0] != first).any())
        self._own_draws, self._watched = progress.own_draws, progress.watched
        self._flags[:] = False

    def _check_sums(
        self,
        sums: dict[str, NDArray[Any]],
        rows: dict[str, NDArray[Any]],
        kept: NDArray[np.int64],
        progress: Progress,
    ) -> None:
        """Refuse a checkpoint whose transcript would be refused."""
        if None in (progress.own_draws, progress.watched):
            raise FileFormatError("Expected the checkpoint to say how its steps were recorded.")
        watch = self._canaries.watch_tensor if progress.watched else np.zeros(0, dtype=np.int64)
        rows = _by_name(rows)
        arrays = {
            "member": self._canaries.member,
            "tensor": self._tensor,
            "kept": kept,
            "watch_tensor": watch,
            **{f"canaries.{name}": array for name, array in sums.items()},
            **{f"steps.{name}": rows[name] for name in _STEP_FIELDS},
            **{name: array for name, array in rows.items() if name not in _STEP_FIELDS},
        }
        check_transcript_arrays(arrays, tensors=len(self._canaries.tensor_sizes))


def _by_name(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rows with the numbers that are kept together each under its name."""
    others = {name: array for name, array in rows.items() if name != "marks"}
    return others | dict(zip(_MARKS, np.ascontiguousarray(rows["marks"].T), strict=True))
