"""Audit a JAX run: a wrapper around the transformation that adds the noise.

::

    from askgauss.integrations.jax import Audit

    audit = Audit(params, sampling=Poisson(rate=q), clip_norm=C, noise_multiplier=s, steps=T)
    privatizer = audit.wrap(privatizer)         # before privatizer.init(params)
    ...                                         # the loop as it was, under jit or scan
    print(audit.result(state, claim=claim))     # the state the last step returned

The wrapped transformation plants canaries in the clipped sum it is handed, lets the user's own add
its noise, and keeps what came out at the canaries in its state. All of that is pure and runs on the
device: nothing waits for the host before the result is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries, PlacedCanaries
from askgauss.checks.scope import AFTER_CLIPPING, BEFORE_CLIPPING
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import (
    InvalidArgumentError,
    MissingExtraError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.canary_choice import choose_canaries
from askgauss.monitor import Monitor, monitor_of
from askgauss.recording.facts import GainFacts, SeedProbe
from askgauss.recording.injection import Seam
from askgauss.recording.noise_sample import ReuseFacts, RowNoise
from askgauss.recording.recorder import Recorder
from askgauss.recording.released_steps import released_steps
from askgauss.recording.transcript import Transcript
from askgauss.sampling import Scheme

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as error:
    raise MissingExtraError(
        "askgauss.integrations.jax needs JAX and optax: pip install 'askgauss[jax]'."
    ) from error

from askgauss.integrations.jax.example_canaries import CanaryLoss, ExampleAudit, PlantedRows
from askgauss.integrations.jax.plan import claim_of, planned_run, scheme_of
from askgauss.integrations.jax.state import (
    AuditState,
    Readings,
    WrappedRun,
    checked_privatizer,
    named_as_in_jax_privacy,
)
from askgauss.integrations.jax.step_noise import SampledLeaves

__all__ = ["Audit", "AuditState", "ExampleAudit", "claim_of"]

_STEPS = 1024
_ABSENT = 1000
# Numbers of a step about the direction of the clean sum.
_ALONG = 2


class Audit(WrappedRun):
    """Canaries in the clipped sums of a JAX run, and what the run releases about them.

    Device memory is four bytes a step and place that is read, and one a step and present canary:
    1,000 steps of 2,000 canaries take 9 MB. A step that is jitted without donating its state copies
    them. Where that is too much, give ``buffer`` and call `drain` at least once in so many steps.
    What was drained is in no state any more: `save` it next to the state, and `load` it after a
    restart.

    Args:
        params: The parameters, or anything of their structure and shapes.
        sampling: How batches are drawn, as declared: a scheme of `askgauss.sampling`, or a batch
            selection strategy of jax_privacy.
        clip_norm: The most one record adds to the sum that is handed to the transformation:
            ``clipped_grad(...).sensitivity()``.
        noise_multiplier: The noise the run claims, over what one record can move what it is added
            to. With a strategy that is the clip norm times the strategy's sensitivity.
        strategy: How noise is correlated between steps, for matrix mechanisms: coefficients of a
            Toeplitz strategy, its columns or the whole matrix, or a buffered Toeplitz strategy.
        steps: Steps to audit. A run that takes more goes on without canaries, and the result says
            how many it did not see.
        canaries: How many, half of them present by fair coins; or canaries made by you over the
            sizes of the parameters; or None to leave it to the audit.
        records: About how many records the run trains on: a twentieth of them are canaries at most.
        background: Whether to subtract the other records' clean sum: ``"auto"`` does where the
            scheme allows it.
        buffer: Rows of readings on the device; as many as ``steps`` if not given.
        seed: Root of the audit's random choices; drawn if not given.
        monitor: Watches the steps of every `drain`, and may end the run there: a `Monitor`, or True
            to hold the run to what is declared here. It needs noise of its own in every step.

    Raises:
        InvalidArgumentError: An argument is wrong, or there is no room for the canaries.
        UnsupportedError: Nobody knows what such a run leaks.

    Examples:
        >>> import jax, jax.numpy as jnp, jax_privacy
        >>> from askgauss.sampling import Poisson
        >>> params = {"weight": jnp.zeros((40, 50)), "bias": jnp.zeros(50)}
        >>> audit = Audit(params, sampling=Poisson(rate=0.5), clip_norm=1.0, noise_multiplier=2.0,
        ...               steps=20, seed=0)
        >>> privatizer = audit.wrap(
        ...     jax_privacy.noise_addition.gaussian_privatizer(stddev=2.0, prng_key=7**20 % 2**31))
        >>> state = privatizer.init(params)
        >>> for _ in range(20):
        ...     noisy, state = jax.jit(privatizer.update)(params, state)
        >>> audit.transcript(state)
        Transcript(steps=20, present=128, absent=1000, background='known')
    """

    result_ends = True

    def __init__(
        self,
        params: Any,
        *,
        sampling: Scheme | Any,
        clip_norm: float = 1.0,
        noise_multiplier: float | None = None,
        strategy: Any = None,
        steps: int = _STEPS,
        canaries: int | DiracCanaries | BlockCanaries | None = None,
        records: int | None = None,
        background: Literal["auto", "known", "unknown"] = "auto",
        buffer: int | None = None,
        seed: int | None = None,
        monitor: Monitor | bool | None = None,
    ) -> None:
        if records is not None:
            _validate.integer(1, records=records)
        _validate.one_of(("auto", "known", "unknown"), background=background)
        super().__init__(
            params,
            sampling=scheme_of(sampling, records),
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            steps=steps,
            buffer=buffer,
            seed=seed,
        )
        self._users = type(sampling).__name__ == "UserSelectionStrategy"
        self._known = _known(background, self._sampling)
        self._seam = Seam(
            self._tree.stand_ins(),
            lambda sizes: choose_canaries(
                canaries,
                sizes=sizes,
                records=float("inf") if records is None else records,
                rows=False,
                spread=False,
                seed=seed,
                draw_seed=lambda: None,
                # Each takes four bytes a step on the device.
                absent=None if canaries is not None else min(_ABSENT, max(sum(sizes) // 2, 2)),
            ),
        )
        self._canaries: PlacedCanaries = self._seam.canaries
        # The clean sum is taken off where it may be; at places nobody is planted in, always.
        layout = self._seam.layout
        width = layout.columns.size + layout.watch_columns.size
        self._subtracted = np.full(width, self._known, dtype=np.bool_)
        self._subtracted[layout.watch_columns] = True
        self._released = released_steps(self._canaries, self._sampling, strategy, self._steps)
        self._present = np.flatnonzero(self._canaries.member)
        Readings.check(self._steps, width, buffer)
        self._width = width
        # Correlated noise is made of earlier noise, and says nothing before it is taken apart.
        self._sampled: SampledLeaves | None = None
        if strategy is None:
            sampled = SampledLeaves(
                self._tree.shapes,
                self._tree.dtypes,
                self._steps,
                self._clip_norm * (noise_multiplier or 1.0),
            )
            more = sampled.width + _ALONG
            if sampled.width and Readings.fits(self._steps, width + more, buffer):
                self._sampled = sampled
        self._planted = self._plan()
        self._readings = Readings(
            self._steps,
            width + (0 if self._sampled is None else self._sampled.width + _ALONG),
            buffer,
            self._canaries.fingerprint().encode() + np.packbits(self._planted).tobytes(),
        )
        self._loss: CanaryLoss | None = None
        self._exercised: tuple[str, ...] = AFTER_CLIPPING
        self._monitor = monitor_of(monitor)
        if self._monitor is not None and strategy is not None:
            raise UnsupportedError(
                "Expected no monitor with strategy=: it weighs steps as they come, and correlated "
                "noise is taken apart at the end. Leave out monitor=, and audit the transcript."
            )
        self._monitored = None if self._monitor is None else self._recorder(self._monitor)

    @classmethod
    def from_plan(
        cls,
        params: Any,
        plan: Any,
        *,
        strategy: Any = None,
        canaries: int | DiracCanaries | BlockCanaries | None = None,
        records: int | None = None,
        background: Literal["auto", "known", "unknown"] = "auto",
        buffer: int | None = None,
        seed: int | None = None,
        monitor: Monitor | bool | None = None,
    ) -> Audit:
        """The audit of a run that jax_privacy has planned.

        Sampling, clip norm, noise multiplier, strategy and steps are read from ``plan``, a
        ``BandMFExecutionPlanConfig`` or a ``DPExecutionPlan``. The latter does not say its
        strategy: where records take turns, give it. The other arguments are those of `Audit`.
        """
        return cls(
            params,
            **planned_run(plan, strategy=strategy, records=records),
            canaries=canaries,
            records=records,
            background=background,
            buffer=buffer,
            seed=seed,
            monitor=monitor,
        )

    # ------------------------------------------------------------------------------- planning

    def _recorder(self, monitor: Monitor | None = None) -> Recorder:
        noise = self._noise_multiplier
        if noise is not None:
            noise *= self._released.noise(self._steps)
        return Recorder(
            self._canaries,
            sampling=self._released.sampling,
            clip_norm=self._clip_norm,
            noise_multiplier=noise,
            monitor=monitor,
        )

    def _plan(self) -> NDArray[np.bool_]:
        """Who is planted in each step: what the recorder of the result will draw."""
        recorder = self._recorder()
        nothing = np.zeros(self._canaries.size)

        def drawn() -> Any:
            while True:
                yield recorder.sample()
                recorder.observe(nothing, background=0.0 if self._known else None)

        return self._released.planted(drawn(), self._steps)[:, self._present]

    # ------------------------------------------------------------------------ inside the step

    def wrap(self, privatizer: Any, *, clipped_grad: Callable[..., Any] | None = None) -> Any:
        """The transformation with canaries before it and readings after it.

        Args:
            privatizer: What adds the noise, an ``optax.GradientTransformation``: one of
                jax_privacy's privatizers, or optax's ``differentially_private_aggregate``, which
                is handed gradients by example and gets canaries as more of them.
            clipped_grad: The function that gives the clipped sum, made of `loss`: canaries go
                through it as examples of their own, and clipping is audited too.

        Returns:
            A transformation to put in its place; also inside ``optax.chain``.
        """
        takes_more = checked_privatizer(privatizer)
        rows = None
        if clipped_grad is not None:
            if self._loss is None:
                raise InvalidArgumentError(
                    "Expected clipped_grad to be made of the audit's loss, which nobody asked for: "
                    "jax_privacy.clipped_grad(audit.loss(loss), ...)."
                )
            rows = PlantedRows(self._seam, self._clip_norm, self._planted)
            self._exercised = BEFORE_CLIPPING

        def init(params: Any) -> AuditState:
            self._tree.leaves(params)
            return self._readings.first(privatizer.init(params), self._planted)

        @named_as_in_jax_privacy
        def update(updates: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, AuditState]:
            state = self._readings.checked(state)
            extra = extra if takes_more else {}
            leaves, batch = self._tree.leaves(updates)
            audited = state.step < self._steps
            drawn = state.planted[jnp.minimum(state.step, self._steps - 1)] & audited
            if batch is not None:
                released, inner, row = self._through_aggregate(
                    privatizer, leaves, batch, drawn, state.inner, params, extra
                )
            else:
                clean = self._read(leaves)
                if rows is not None and clipped_grad is not None and self._loss is not None:
                    added = rows.sums(clipped_grad, self._loss, leaves, self._tree, drawn)
                    leaves = tuple(leaf + more for leaf, more in zip(leaves, added, strict=True))
                elif self._present.size:
                    mask = jnp.zeros(self._canaries.size).at[self._present].set(drawn)
                    leaves = self._seam.plant(leaves, mask, clip_norm=self._clip_norm)
                planted = self._tree.rebuilt(leaves)
                released, inner = privatizer.update(planted, state.inner, params, **extra)
                noisy = self._tree.leaves(released)[0]
                row = self._read(noisy)
                row = row - jnp.where(self._subtracted, clean, 0.0)
                row = self._with_sample(row, noisy, leaves, _along(noisy, leaves))
            return released, self._readings.kept(state, row, inner)

        kind = optax.GradientTransformationExtraArgs if takes_more else optax.GradientTransformation
        return kind(init, update)

    def loss(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The loss, which canaries can also go through: see `wrap`.

        Args:
            function: The loss that is handed to ``clipped_grad``, parameters first.

        Returns:
            A function to hand to ``clipped_grad`` instead; of records it gives the same loss.
        """
        self._loss = CanaryLoss(function, self._seam, self._clip_norm)
        return self._loss

    def _through_aggregate(
        self,
        privatizer: Any,
        leaves: tuple[Any, ...],
        batch: int,
        drawn: Any,
        inner: Any,
        params: Any,
        extra: dict[str, Any],
    ) -> tuple[Any, Any, Any]:
        """Canaries as examples of their own before a transformation that clips and sums itself."""
        rows = PlantedRows(self._seam, self._clip_norm, self._planted)
        clipped, _ = optax.per_example_global_norm_clip(list(leaves), self._clip_norm)
        clean = self._read(tuple(clipped))
        total = batch + rows.count
        if rows.count:
            examples = rows.examples(leaves, drawn)
            leaves = tuple(
                jnp.concatenate([leaf, more]) for leaf, more in zip(leaves, examples, strict=True)
            )
        given = self._tree.rebuilt(leaves)
        released, inner = privatizer.update(given, inner, params, **extra)
        noisy = tuple(leaf * total for leaf in self._tree.leaves(released)[0])
        row = self._read(noisy)
        row = row - jnp.where(self._subtracted, clean, 0.0)
        row = self._with_sample(row, noisy, clipped)
        if total != batch:
            # A mean over more examples than the user has: his learning rate is for his own.
            released = jax.tree.map(lambda leaf: leaf * (total / batch), released)
        self._exercised = BEFORE_CLIPPING
        return released, inner, row

    def _with_sample(
        self, row: Any, noisy: Sequence[Any], clean: Sequence[Any], along: Any = None
    ) -> Any:
        """A row of readings, with a sample of all noise of the step behind it."""
        if self._sampled is None:
            return row
        # A sum released in a shorter format has equal values by chance: it is not compared.
        noise = [
            one - other if one.dtype.itemsize >= 4 else jnp.full(one.shape, jnp.nan)
            for one, other in zip(noisy, clean, strict=True)
        ]
        along = jnp.zeros(_ALONG) if along is None else along
        return jnp.concatenate([row, self._sampled.read(noise), along])

    def _read(self, leaves: tuple[Any, ...]) -> Any:
        return self._seam.read(tuple(leaf.astype(jnp.float32) for leaf in leaves))

    # ---------------------------------------------------------------------------- on the host

    def _monitor_rows(self, held: int, rows: NDArray[np.float32]) -> None:
        """Hand rows after the first ``held`` to the monitor; what it raises comes at the end."""
        recorder = self._monitored
        if recorder is None:
            return
        alarm: PrivacyAlarm | None = None
        for row in rows[recorder.steps - held :, : self._width].astype(np.float64):
            recorder.sample()
            try:
                recorder.observe(self._seam.along(row), background=0.0 if self._known else None)
            except PrivacyAlarm as raised:
                alarm = raised
        if alarm is not None:
            raise alarm

    def transcript(self, state: Any, *, unseen_steps: int = 0) -> Transcript:
        """What the run has released about the canaries so far.

        Args:
            state: The state the last step returned, or a tree that holds it.
            unseen_steps: Steps that the run has taken without the wrapped transformation: the
                result says how many.

        Raises:
            InvalidArgumentError: It is no such state, or was donated.
            RecordingError: No step was taken, or steps were overwritten.
        """
        _validate.integer(0, unseen_steps=unseen_steps)
        own = self._readings.found(state)
        rows = self._readings.all(own)
        values = rows[:, : self._width]
        steps = self._released.recorded(len(values))
        if steps == 0:
            raise RecordingError(
                f"Expected steps to audit, got {len(values)}, too few for one recorded step. Train "
                "for longer, and pass the state that the last step returned."
            )
        along = np.array([self._seam.along(row) for row in values])
        apart = self._rows_apart(along)
        watched = self._seam.watched(values.T).T
        first = self._first_noise(values[0])
        along, watched = self._released.along(along), self._released.watched(watched)
        recorder = self._recorder()
        for row, watch in zip(along, watched, strict=True):
            recorder.sample()
            recorder.observe(row, background=0.0 if self._known else None, watch=watch)
        recorded = recorder.transcript()
        taken = int(own.step) + unseen_steps
        facts = replace(
            self._described(recorded.facts),
            skipped_steps=self._released.accounted(taken) - steps,
            turns=self._released.turns,
            watched=self._monitor is not None,
            planned_steps=None if self._monitor is None else self._monitor.planned,
            exercised=self._exercised,
            unit="user" if self._users else "example",
            seed_probe=first,
            reuse=self._reused(rows) if apart is None else apart.reuse,
            noise_rows=None if apart is None else apart.facts,
            gain=self._gain(rows),
            notes=tuple(
                note
                for note in (
                    f"{self._sampling} (declared, not verified).",
                    self._released.note,
                    f"{unseen_steps:,} of {taken:,} steps were taken without the audit."
                    if unseen_steps
                    else "",
                )
                if note
            ),
        )
        return recorded.with_facts(facts)

    def _reused(self, rows: NDArray[np.float64]) -> ReuseFacts | None:
        sampled = self._sampled
        return None if sampled is None else sampled.facts(rows[:, self._width : -_ALONG])

    def _gain(self, rows: NDArray[np.float64]) -> GainFacts | None:
        if self._sampled is None:
            return None
        return GainFacts.of(*(rows[:, -_ALONG:].T / self._clip_norm))

    def _rows_apart(self, along: NDArray[np.float64]) -> RowNoise | None:
        """Correlated noise taken apart into the independent rows of its strategy."""
        strategy = self._released.strategy
        if strategy is None or not self._known:
            return None
        found = RowNoise(self._canaries.coordinates, self._canaries.member, self._noise_multiplier)
        noise = along / self._clip_norm
        noise[:, self._present] -= self._planted[: len(noise)]
        for row in strategy.apply(noise):
            found.add(row)
        return found

    def _first_noise(self, row: NDArray[np.float64]) -> SeedProbe:
        """Whether the first noise is one that a likely seed gives."""
        layout = self._seam.layout
        noise = row.copy()
        clean = self._subtracted.copy()
        if isinstance(self._canaries, BlockCanaries):
            clean[layout.columns.ravel()] = False
        else:
            planted = self._present[self._planted[0]]
            noise[layout.columns[planted]] -= self._clip_norm
        places = np.concatenate([part + layout.edges[index] for index, part in layout.read_places])
        tensor = np.searchsorted(layout.edges, places, side="right") - 1
        place = places - layout.edges[tensor]
        return self._seeds_tried(noise[clean], tensor[clean], place[clean])

    def _transcript_for(self, claim: PrivacyClaim | None, *state: Any) -> Transcript:
        # The result states the alarm; an error would hide the result.
        with contextlib.suppress(PrivacyAlarm):
            new = self._readings.new(self._readings.found(*state))
            self._monitor_rows(self._readings.held, new)
        return self.transcript(*state)

    def _goes_on(self, *state: Any) -> bool:
        return int(self._readings.found(*state).step) < self._steps

    @property
    def monitor(self) -> Monitor | None:
        """What watches the steps, if anything does."""
        return self._monitor

    @property
    def canaries(self) -> PlacedCanaries:
        """Who is planted where."""
        return self._canaries


def _along(noisy: Sequence[Any], clean: Sequence[Any]) -> Any:
    """What was released beyond the clean sum, along it, and the norm of that."""
    pairs = [
        (one.astype(jnp.float32) - other.astype(jnp.float32), other.astype(jnp.float32))
        for one, other in zip(noisy, clean, strict=True)
    ]
    norm = jnp.sqrt(sum((jnp.vdot(clean, clean) for _, clean in pairs), jnp.zeros(())))
    along = sum((jnp.vdot(more, clean) for more, clean in pairs), jnp.zeros(()))
    return jnp.stack([jnp.where(norm > 0.0, along / norm, 0.0), norm])


def _known(background: str, scheme: Scheme) -> bool:
    if background == "known" and not scheme.known_background:
        raise UnsupportedError(
            f"With {scheme}, what the other records draw gives the canary's draws away: their sum "
            "cannot be taken off. Use background='unknown'."
        )
    return background != "unknown" and scheme.known_background
