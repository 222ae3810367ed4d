"""The state that an audited transformation carries, and what its audits do with it on the host."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.auditing import AuditedRun
from askgauss.canaries import Canaries
from askgauss.exceptions import FileFormatError, InvalidArgumentError, RecordingError
from askgauss.files import codec
from askgauss.files.checkpoint import Kept
from askgauss.integrations.jax.step_noise import probe_seeds
from askgauss.recording.facts import RunFacts, SeedProbe, WeightFacts
from askgauss.recording.recorder import Recorder
from askgauss.sampling import Scheme

__all__ = [
    "AuditState",
    "ParameterTree",
    "Readings",
    "WrappedRun",
    "checked_privatizer",
    "named_as_in_jax_privacy",
]


class ParameterTree:
    """What is kept of a tree of parameters; values are not.

    Attributes:
        names: Where each leaf is.
        shapes: Its shape.
        dtypes: Its number format.

    Raises:
        InvalidArgumentError: A leaf does not hold floating-point numbers.
    """

    def __init__(self, params: Any) -> None:
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        self._structure: Any = structure
        self.names = tuple(
            jax.tree_util.keystr(path, simple=True, separator=".") or "all" for path, _ in paths
        )
        self.shapes = tuple(tuple(np.shape(leaf)) for _, leaf in paths)
        self.dtypes = tuple(jnp.result_type(leaf) for _, leaf in paths)
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            if not jnp.issubdtype(dtype, jnp.floating):
                raise InvalidArgumentError(
                    f"Expected params to hold floating-point arrays, got {dtype} in {name}. Leave "
                    "out what is not trained: optax.masked() the transformation, or split the tree."
                )

    def stand_ins(self) -> tuple[Any, ...]:
        """Arrays of the same shapes that take no memory: views of one zero."""
        return tuple(np.broadcast_to(np.zeros((), np.float32), shape) for shape in self.shapes)

    def rebuilt(self, leaves: Any) -> Any:
        """A tree of this structure."""
        return jax.tree.unflatten(self._structure, leaves)

    def alike(self, tree: Any) -> bool:
        """Whether a tree has this structure, whatever its shapes."""
        structure: Any = jax.tree.structure(tree)
        return bool(structure == self._structure)

    def leaves(self, tree: Any) -> tuple[tuple[Any, ...], int | None]:
        """The leaves of a tree of this structure and these shapes.

        Returns:
            The leaves; and how many examples there are, where each has an axis of them in front.

        Raises:
            InvalidArgumentError: The tree is another.
        """
        found, structure = jax.tree.flatten(tree)
        shapes = tuple(tuple(np.shape(leaf)) for leaf in found)
        if structure != self._structure:
            changed = f"it had {len(self.names)} leaves, {self._structure}, and is {structure} now"
        elif shapes == self.shapes:
            return tuple(found), None
        else:
            batches = {shape[:1] for shape in shapes}
            rest = tuple(shape[1:] for shape in shapes)
            if rest == self.shapes and len(batches) == 1 and batches != {()}:
                return tuple(found), int(batches.pop()[0])
            index = next(i for i, shape in enumerate(shapes) if shape != self.shapes[i])
            changed = f"{self.names[index]} was {self.shapes[index]}, and is {shapes[index]} now"
        raise InvalidArgumentError(
            f"Expected the tree of the parameters that the audit was made for: {changed}. Make a "
            "new Audit with the very tree that the transformation is handed."
        )


# A transformation of gradients meets no weights.
_UNSEEN_WEIGHTS = WeightFacts(
    unchecked="what follows the wrapped transformation is not seen", unseen=True
)
# Device memory that readings may take without being asked for: a step without donation copies it.
_MOST_BYTES = 1 << 28


class AuditState(NamedTuple):
    """The state of an audited transformation.

    Attributes:
        inner: That of the user's transformation.
        step: Steps taken.
        readings: What was released at the canaries, one row a step.
        planted: Who is planted, one row a step and one column a present canary.
        tag: Tells one audit's states from another's.
        seen: What else is counted on the way; None where nothing is.
    """

    inner: Any
    step: Any
    readings: Any
    planted: Any
    tag: Any
    seen: Any = None


def checked_privatizer(privatizer: Any) -> bool:
    """Whether a transformation takes more arguments than any.

    Raises:
        InvalidArgumentError: It is no transformation.
    """
    if not (hasattr(privatizer, "init") and hasattr(privatizer, "update")):
        raise _validate.fail(
            "privatizer",
            type(privatizer).__name__,
            "to be an optax.GradientTransformation",
            "Wrap what adds the noise, not the optimizer behind it.",
        )
    return isinstance(privatizer, optax.GradientTransformationExtraArgs)


def named_as_in_jax_privacy(update: Callable[..., Any]) -> Callable[..., Any]:
    """An update whose first two arguments may have the names of jax_privacy's privatizers."""

    def renamed(
        updates: Any = None,
        state: Any = None,
        params: Any = None,
        *,
        sum_of_clipped_grads: Any = None,
        noise_state: Any = None,
        **extra: Any,
    ) -> Any:
        updates = sum_of_clipped_grads if updates is None else updates
        return update(updates, noise_state if state is None else state, params, **extra)

    return renamed


class Readings:
    """Rows of what steps released: on the device while it trains, and taken from it in blocks.

    Args:
        steps: Steps to read.
        width: Numbers a step.
        buffer: Rows on the device; as many as steps if not given.
        name: What distinguishes this audit from another.

    Raises:
        InvalidArgumentError: They would take too much memory.
    """

    def __init__(self, steps: int, width: int, buffer: int | None, name: bytes) -> None:
        self.check(steps, width, buffer)
        self.steps = steps
        self._width = width
        # Steps that may pass between two drains.
        self._buffer = min(steps, steps if buffer is None else int(buffer))
        # One more: of a state that is drained in time, the last row of the drain before is there.
        self._rows = min(steps, self._buffer + 1)
        self._tag = np.frombuffer(hashlib.sha256(name).digest()[:8], dtype=np.uint32)
        self._drained: list[NDArray[np.float32]] = []

    @staticmethod
    def check(steps: int, width: int, buffer: int | None) -> None:
        """Refuse what would take too much memory: at once, before a long run is planned."""
        if not Readings.fits(steps, width, buffer):
            raise InvalidArgumentError(
                f"Expected readings of at most {_MOST_BYTES >> 20} MB on the device, got "
                f"{4 * steps * width >> 20} MB for {steps:,} steps of {width:,} places. "
                "Give buffer= and call drain(state) at least once in so many steps, or take fewer "
                "canaries."
            )

    @staticmethod
    def fits(steps: int, width: int, buffer: int | None) -> bool:
        """Whether so many readings may be on the device."""
        return buffer is not None or 4 * steps * width <= _MOST_BYTES

    # ------------------------------------------------------------------------ inside the step

    def first(self, inner: Any, planted: Any, seen: Any = None) -> AuditState:
        """The state before the first step."""
        return AuditState(
            inner=inner,
            step=jnp.zeros((), jnp.int32),
            readings=jnp.zeros((self._rows, self._width), jnp.float32),
            planted=jnp.asarray(planted),
            tag=jnp.asarray(self._tag),
            seen=seen,
        )

    def kept(self, state: AuditState, row: Any, inner: Any) -> AuditState:
        """The state after a step that read this row."""
        rows = len(state.readings)
        place = jnp.where(state.step < self.steps, state.step % rows, rows)
        readings = state.readings.at[place].set(row, mode="drop")
        return state._replace(inner=inner, step=state.step + 1, readings=readings)

    @staticmethod
    def checked(state: Any) -> AuditState:
        """A state that a step was handed.

        Raises:
            InvalidArgumentError: It is of a transformation without audit.
        """
        if not isinstance(state, AuditState):
            raise InvalidArgumentError(
                f"Expected the state that the wrapped transformation's init gave, got "
                f"{type(state).__name__}. Call init after wrap."
            )
        return state

    # ---------------------------------------------------------------------------- on the host

    def found(self, state: Any) -> AuditState:
        """The audit's own state, in whatever holds it.

        Raises:
            InvalidArgumentError: There is none, or it is traced or was donated.
            RecordingError: It is of another audit.
        """

        def ours(node: Any) -> bool:
            return isinstance(node, AuditState)

        found = [node for node in jax.tree.leaves(state, is_leaf=ours) if ours(node)]
        if len(found) != 1:
            raise InvalidArgumentError(
                f"Expected state to hold that of one audited transformation, got {len(found)}. "
                "Pass what the last step of the wrapped transformation returned."
            )
        own: AuditState = found[0]
        parts = jax.tree.leaves((own.step, own.readings, own.planted, own.tag, own.seen))
        if any(isinstance(part, jax.core.Tracer) for part in parts):
            raise InvalidArgumentError(
                "Expected a state with values, got one that is being traced. Ask for the result "
                "outside of jit, scan and grad, with the state that they return."
            )
        if any(isinstance(part, jax.Array) and part.is_deleted() for part in parts):
            raise InvalidArgumentError(
                "Expected a state that is still there, got one that was donated to a later step. "
                "Pass the state that the last step returned."
            )
        if not np.array_equal(np.asarray(own.tag), self._tag):
            raise RecordingError(
                "Expected a state of this audit, got one with other canaries. Make the Audit as it "
                "was for the run: the same parameters, sampling, steps, canaries and seed."
            )
        return own

    @property
    def name(self) -> str:
        """What distinguishes this audit's readings from another's."""
        return self._tag.tobytes().hex()

    @property
    def nothing(self) -> NDArray[np.float32]:
        """No row."""
        return np.zeros((0, self._width), np.float32)

    @property
    def drained(self) -> NDArray[np.float32]:
        """The rows that have been taken to the host."""
        return np.concatenate([self.nothing, *self._drained])

    def restore(self, drained: Any) -> None:
        """Hold rows that were taken to the host before a restart, and only those.

        Raises:
            FileFormatError: They are no such rows.
        """
        if not (
            isinstance(drained, np.ndarray)
            and drained.dtype == np.float32
            and drained.shape[1:] == (self._width,)
            and len(drained) <= self.steps
        ):
            found = getattr(drained, "shape", None)
            raise FileFormatError(
                f"Expected drained to hold up to {self.steps:,} rows of {self._width:,} readings, "
                f"got shape {found}. Load an older checkpoint."
            )
        self._drained = [drained.copy()] if len(drained) else []

    @property
    def held(self) -> int:
        """Steps that have been taken to the host."""
        return sum(len(part) for part in self._drained)

    def new(self, state: AuditState) -> NDArray[np.float32]:
        """Rows that have not been taken to the host, in the order of the steps.

        Raises:
            RecordingError: Some were overwritten before that, or the state is of an earlier step.
        """
        held = self.held
        last = min(int(state.step), self.steps)
        if last < held:
            raise RecordingError(
                f"Expected a state of step {held:,} or later, which were drained, got one of step "
                f"{last:,}. Go on from the drained state, or make a new Audit for another run."
            )
        if last - held > self._buffer:
            raise RecordingError(
                f"Steps {held + 1:,} to {last - self._buffer:,} were overwritten, and this Audit "
                f"has not drained them. Call drain(state) at least once in {self._buffer:,} steps, "
                "or give a larger buffer. After a restart, load what was drained before it: "
                "audit.save(path) next to the state, and audit.load(path)."
            )
        readings = np.asarray(state.readings)
        self._check_branch(readings, last)
        return readings[np.arange(held, last) % len(readings)]

    def _check_branch(self, readings: NDArray[np.float32], last: int) -> None:
        """Refuse a state that does not come from the drained one, while its rows still show it."""
        first = max(0, last - len(readings))
        parts, start = [self.nothing], self.held
        for part in reversed(self._drained):
            if start <= first:
                break
            parts.append(part)
            start -= len(part)
        drained = np.concatenate(parts[::-1])[max(first - start, 0) :]
        there = readings[np.arange(first, first + len(drained)) % len(readings)]
        # To the last bit, so that nan is itself.
        other = (drained.view(np.uint32) != there.view(np.uint32)).any(axis=1)
        if other.any():
            raise RecordingError(
                "This state is of another branch: it parted from the drained one at or before step "
                f"{first + int(np.argmax(other)) + 1:,}. Begin a new audit, or go on from the "
                "drained state."
            )

    def drain(self, state: AuditState) -> NDArray[np.float32]:
        """Take the new rows to the host."""
        rows = self.new(state)
        if len(rows):
            self._drained.append(rows)
        return rows

    def all(self, state: AuditState) -> NDArray[np.float64]:
        """Every row so far; at least one.

        Raises:
            RecordingError: No step was taken.
        """
        values = np.concatenate([*self._drained, self.new(state)]).astype(np.float64)
        if not len(values):
            raise RecordingError(
                "Expected steps to audit, got 0. Train with the wrapped transformation, and "
                "pass the state its last step returned."
            )
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plain values of a checkpoint."""

    readings: str
    run: str
    monitored: dict[str, Any] | None = None


_MONITORED = "monitored."


class WrappedRun(Kept, AuditedRun[Any]):
    """What audits of a wrapped transformation share, whatever their canaries are.

    Readings are taken to the host in blocks. A state holds the last ``buffer`` steps; those before
    them are here alone: save both for a restart.
    """

    _checkpoint_kind = "askgauss-drained-readings"
    _checkpoint_schema = 2

    _readings: Readings
    _canaries: Canaries
    # The recorder that a monitor watches.
    _monitored: Recorder | None = None

    def __init__(
        self,
        params: Any,
        *,
        sampling: Scheme,
        clip_norm: float,
        noise_multiplier: float | None,
        steps: int,
        buffer: int | None,
        seed: int | None,
    ) -> None:
        _validate.integer(1, steps=steps)
        _validate.magnitude(clip_norm=clip_norm)
        if noise_multiplier is not None:
            _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
        if buffer is not None:
            _validate.integer(1, buffer=buffer)
        self._sampling, self._steps, self._seed = sampling, int(steps), seed
        self._clip_norm, self._noise_multiplier = float(clip_norm), noise_multiplier
        self._tree = ParameterTree(params)
        self._run = secrets.token_hex(16)

    def __repr__(self) -> str:
        present = int(np.count_nonzero(self._canaries.member))
        return (
            f"{type(self).__name__}(present={present}, absent={self._canaries.size - present}, "
            f"steps={self._steps}, sampling={self._sampling!r})"
        )

    def drain(self, state: Any) -> int:
        """Take what the state has read so far to the host, to make room for more.

        A monitor weighs these steps here.

        Args:
            state: The state the last step returned, or a tree that holds it.

        Returns:
            The number of steps that have been taken over.

        Raises:
            RecordingError: Steps were overwritten before they were drained, or the state does not
                come from the one that was drained last.
            PrivacyAlarm: The monitor alarms; everything has been taken over.
        """
        held = self._readings.held
        self._monitor_rows(held, self._readings.drain(self._readings.found(state)))
        return self._readings.held

    def _monitor_rows(self, held: int, rows: NDArray[np.float32]) -> None:
        """Hand rows after the first ``held`` to a monitor, where there is one."""

    def _described(self, facts: RunFacts) -> RunFacts:
        """Facts with what is known of any such run."""
        return replace(
            facts,
            run=self._run,
            watch_background="known",
            tensors=self._tree.names,
            precision=tuple(sorted({str(dtype) for dtype in self._tree.dtypes})),
            weights=_UNSEEN_WEIGHTS,
        )

    def _seeds_tried(
        self, noise: NDArray[np.float64], tensor: NDArray[np.int64], place: NDArray[np.int64]
    ) -> SeedProbe:
        """Whether the first noise, at these places of tensors, is one that a likely seed gives."""
        tree = self._tree
        return probe_seeds(
            noise, tensor, place, shapes=tree.shapes, dtypes=tree.dtypes, own=[self._seed]
        )

    def state_dict(self) -> dict[str, Any]:
        """What was drained, and what a monitor made of it; plain values under ``"state"``."""
        state: dict[str, Any] = {"drained": self._readings.drained}
        plain = None
        if self._monitored is not None:
            monitored = self._monitored.state_dict()
            plain = monitored.pop("state")
            state |= {f"{_MONITORED}{name}": item for name, item in monitored.items()}
        progress = _Progress(readings=self._readings.name, run=self._run, monitored=plain)
        state["state"] = codec.to_plain(progress)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume with what was drained before a restart, next to the state of the transformation.

        Raises:
            FileFormatError: The state is not one of an audit, or parts of it are missing.
            RecordingError: It is of another audit. This one stays as it was.
        """
        progress: _Progress = codec.from_plain(_Progress, state.get("state"), "state")
        if progress.readings != self._readings.name:
            raise RecordingError(
                "Expected what this audit drained, got that of one with other canaries. Make the "
                "Audit as it was for the run: the same parameters, sampling, steps, canaries and "
                "seed."
            )
        if (progress.monitored is None) != (self._monitored is None):
            raise RecordingError(
                "Expected monitor= to be given exactly if the run began with one: its evidence "
                "would be lost."
            )
        before = self._readings.drained
        self._readings.restore(state.get("drained"))
        if self._monitored is not None:
            monitored = {
                name.removeprefix(_MONITORED): item
                for name, item in state.items()
                if name.startswith(_MONITORED)
            }
            try:
                self._monitored.load_state_dict({**monitored, "state": progress.monitored})
            except (FileFormatError, RecordingError):
                self._readings.restore(before)
                raise
        self._run = progress.run
