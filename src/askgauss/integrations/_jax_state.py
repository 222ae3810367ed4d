"""What an audited transformation carries from step to step, and how the host gets at it."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import InvalidArgumentError, RecordingError

__all__ = ["AuditState", "Readings", "checked_privatizer"]

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


class Readings:
    """Rows of what steps released: on the device while it trains, and taken from it in blocks.

    Args:
        steps: Steps to read.
        width: Numbers a step.
        buffer: Rows on the device; as many as steps if not given.
        name: What tells this audit from another.

    Raises:
        InvalidArgumentError: They would take too much memory.
    """

    def __init__(self, steps: int, width: int, buffer: int | None, name: bytes) -> None:
        self.steps = steps
        self._width = width
        self._rows = min(steps, steps if buffer is None else int(buffer))
        if buffer is None and 4 * self._rows * width > _MOST_BYTES:
            raise InvalidArgumentError(
                f"Expected readings of at most {_MOST_BYTES >> 20} MB on the device, got "
                f"{4 * self._rows * width >> 20} MB for {steps:,} steps of {width:,} places. "
                "Give buffer= and call drain(state) at least once in so many steps, or take fewer "
                "canaries."
            )
        self._tag = np.frombuffer(hashlib.sha256(name).digest()[:8], dtype=np.uint32)
        self._drained: list[NDArray[np.float32]] = []

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
        place = jnp.where(state.step < self.steps, state.step % self._rows, self._rows)
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
                f"{last:,}. Make a new Audit for another run."
            )
        if last - held > self._rows:
            raise RecordingError(
                f"Steps {held + 1:,} to {last - self._rows:,} were overwritten before they were "
                f"drained. Call drain(state) at least once in {self._rows:,} steps, or give a "
                "larger buffer."
            )
        return np.asarray(state.readings)[np.arange(held, last) % self._rows]

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
