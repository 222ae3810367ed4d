"""What a strategy is, and what every one can do, however it is written down.

A strategy ``C`` is a lower-triangular matrix, one column a step. Step ``t`` adds ``x[t]``; row
``t`` of the strategy mixes the steps up to it and meets one fresh draw of noise. Released are those
rows, or the steps decoded from them, ``x + inverse(C) @ draws``. Mixing the released steps again
gives the rows back, ``C @ x + draws``, one draw each, in which a record that enters step ``s`` adds
column ``s``: what an audit reads.

It is held as its bands (`BandedStrategy`), as a few buffers (`BufferedToeplitz`) or as the matrix
(`MatrixMechanism`); `strategy_of` of `askgauss.mechanisms.decorrelate` reads all that
people write for one.
"""

from __future__ import annotations

import abc
import hashlib
import importlib
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from askgauss import _validate
from askgauss.exceptions import FileFormatError, MissingExtraError, RecordingError
from askgauss.stats import gaussian

__all__ = [
    "CheckedDraw",
    "Draw",
    "GaussianMechanism",
    "NoiseStream",
    "Strategy",
    "factorization",
    "numpy_draw",
]

Draw = Callable[[Any], Any]
"""Fresh independent noise: ``draw(out)`` fills and returns ``out``, or a new array if None."""

_SCHEMA = 1


def numpy_draw(
    generator: np.random.Generator,
    shape: int | tuple[int, ...],
    *,
    scale: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> Draw:
    """Gaussian draws from a numpy generator, written into the buffer that is handed in.

    Args:
        generator: Where the randomness comes from.
        shape: Shape of one draw.
        scale: Standard deviation of a draw: noise multiplier times clip norm.
        dtype: float32 or float64.

    Returns:
        The ``draw`` that a :class:`NoiseStream` asks for. With torch, write it as
        ``lambda out: (torch.empty(shape) if out is None else out).normal_(0, scale)``.

    Examples:
        >>> draw = numpy_draw(np.random.default_rng(0), 3, scale=2.0)
        >>> noise = draw(None)
        >>> draw(noise) is noise
        True
    """
    _validate.positive(scale=scale, hint="Without noise nothing is private.")
    kind: Any = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise _validate.fail("dtype", kind, "to be float32 or float64")
    size = shape if isinstance(shape, tuple) else (shape,)

    def draw(out: Any) -> Any:
        target = np.empty(size, kind) if out is None else out
        noise = generator.standard_normal(size, dtype=kind, out=target)
        if scale != 1.0:
            noise *= scale
        return noise

    return draw


class CheckedDraw:
    """A ``draw`` that gets its buffers back and is held to its word.

    A buffer handed out twice, noise of another shape (which would broadcast) or a first draw that
    is zero or nan would make the noise smaller than accounted for, and nothing later would show it.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.reset(None)

    def reset(self, shape: tuple[int, ...] | None) -> None:
        """Forget the buffers; later draws must have this shape."""
        self.spare: list[Any] = []
        self._shape = shape
        self._tried = False

    def __call__(self, held: Sequence[Any]) -> Any:
        """Fresh noise in an array that is none of those ``held``."""
        noise = self._draw(self.spare.pop() if self.spare else None)
        if any(noise is other for other in (*held, *self.spare)):
            raise RecordingError(
                "draw returned an array that is still in use, so two draws would share their "
                "noise. Return the array handed in, or a new one."
            )
        shape = tuple(noise.shape)
        if self._shape not in (None, shape):
            raise RecordingError(f"Expected draws of shape {self._shape}, got {shape}.")
        if not self._tried:
            if 0 not in shape and not (noise != 0).any():
                raise RecordingError(
                    "The first draw is all zeros: without noise nothing is private. Check the "
                    "scale of draw."
                )
            if not (noise == noise).all():
                raise RecordingError("The first draw has nan. Check the scale of draw.")
        self._shape, self._tried = shape, True
        return noise


class NoiseStream(abc.ABC):
    """Noise for a planned number of steps, in order, that can be saved and resumed.

    The arrays may come from any library that adds in place: nothing but ``+=``, ``-=`` and ``*``
    touches them. A subclass says in `_advance` what the next step makes of the arrays held.
    """

    _HELD: ClassVar[str]
    """What a saved state calls the arrays held."""

    def __init__(self, draw: Draw, *, steps: int, plan: Mapping[str, Any]) -> None:
        self._fresh = CheckedDraw(draw)
        self._steps = int(steps)
        self._plan = dict(plan)
        self._held: list[Any] = []
        self._step = 0
        # False while a step is being made: a draw that fails there leaves noise nobody knows.
        self._intact = True

    @abc.abstractmethod
    def _advance(self) -> Any:
        """The noise of step number ``_step``; a copy of it is handed out."""

    @abc.abstractmethod
    def _expected(self, step: int) -> int:
        """How many arrays are held after so many steps."""

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self._step

    @property
    def remaining(self) -> int:
        """Steps still to come."""
        return self._steps - self._step

    @property
    def buffers(self) -> int:
        """Arrays held at present, those waiting to be used again included."""
        return len(self._held) + len(self._fresh.spare)

    def next(self, leaf: int | None = None) -> Any:
        """The noise of the next step.

        Args:
            leaf: The step the caller believes it is at, counted from 0; checked when given.

        Returns:
            A new array, the caller's to keep or change.

        Raises:
            RecordingError: More steps than planned, a step skipped or repeated, a draw that failed
                or returned unusable noise.
        """
        if not self._intact:
            raise RecordingError(
                "An earlier draw failed half way, so the noise so far is no longer known. Load the "
                f"last state into a new {type(self).__name__}."
            )
        if self.remaining <= 0:
            raise RecordingError(
                f"The noise was planned and accounted for {self._step} steps, and all were used. "
                "Plan for more steps before training."
            )
        if leaf is not None and leaf != self._step:
            raise RecordingError(
                f"Expected leaf {self._step} next, got {leaf!r}. Every step is one leaf, in order; "
                "give an empty batch a leaf of its own."
            )
        self._intact = False
        noise = self._advance()
        self._step += 1
        self._intact = True
        # A product and not a copy(): the one spelling that numpy and torch share.
        return noise * 1

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, as plain values and a list of arrays.

        The state of the generator behind ``draw`` is the caller's to save: a resumed run that draws
        the same noise again is not private.
        """
        if not self._intact:
            raise RecordingError("An earlier draw failed half way: there is no state to save.")
        held = [noise * 1 for noise in self._held]
        return {"schema": _SCHEMA, **self._plan, "step": self._step, self._HELD: held}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, with the same plan.

        Raises:
            FileFormatError: The state is incomplete or of a newer schema.
            RecordingError: The state belongs to another plan, or does not fit its step.
        """
        missing = {"schema", "step", self._HELD, *self._plan} - set(state)
        if missing:
            raise FileFormatError(f"The state lacks {', '.join(sorted(missing))}.")
        if state["schema"] != _SCHEMA:
            raise FileFormatError(
                f"The state has schema {state['schema']!r}; this version reads {_SCHEMA}. "
                "Update askgauss."
            )
        for name, planned in self._plan.items():
            if not np.array_equal(state[name], planned):
                raise RecordingError(
                    f"The state was saved with another {name}, {reprlib.repr(state[name])}, where "
                    f"this one has {reprlib.repr(planned)}. Noise of one plan cannot continue "
                    "another."
                )
        step, held = state["step"], list(state[self._HELD])
        _validate.integer(0, step=step)
        expected = self._expected(step)
        shapes = {tuple(noise.shape) for noise in held}
        if len(held) != expected or step > self._steps or len(shapes) > 1:
            raise RecordingError(
                f"Expected {expected} arrays of one shape for step {step} of {self._steps}, got "
                f"{len(held)} of shapes {sorted(shapes)}."
            )
        self._held = [noise * 1 for noise in held]
        self._fresh.reset(shapes.pop() if shapes else None)
        self._step = int(step)
        self._intact = True


Array = NDArray[np.float64]

_COLUMNS_AT_ONCE = 256


class GaussianMechanism(abc.ABC):
    """Anything that adds independent Gaussian noise to rows of bounded sensitivity."""

    __slots__ = ()

    @abc.abstractmethod
    def sensitivity(self) -> float:
        """How far one record can move the noisy rows, in units of the clip norm."""

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """The noise of one row, in clip norms, that gives (epsilon, delta)-DP.

        Examples:
            >>> from askgauss.mechanisms.matrix import MatrixMechanism
            >>> round(MatrixMechanism.identity(1).noise_multiplier(epsilon=1.0, delta=1e-5), 4)
            3.7306
        """
        _validate.positive(epsilon=epsilon)
        _validate.probability(delta=delta)
        return self.sensitivity() / gaussian.gdp_mu(epsilon, delta)

    def epsilon(self, *, noise_multiplier: float, delta: float) -> float:
        """The epsilon at ``delta``; the inverse of :meth:`noise_multiplier`."""
        _validate.positive(
            noise_multiplier=noise_multiplier, hint="Without noise the mechanism is not private."
        )
        _validate.probability(delta=delta)
        return gaussian.gdp_epsilon(delta=delta, mu=self.sensitivity() / noise_multiplier)


class Strategy(GaussianMechanism):
    """A square lower-triangular strategy, whose rows get independent Gaussian noise.

    Attributes:
        kind: What it is called in a plan.
        steps: Number of steps.
        participations: Most steps one record enters.
        min_separation: Least distance between two of them.
    """

    __slots__ = ()
    kind: ClassVar[str]

    steps: Any
    participations: Any
    min_separation: Any

    @abc.abstractmethod
    def row(self, step: int) -> tuple[int, Array]:
        """The first column of a row that may not be zero, and the row from there to its diagonal.

        Raises:
            UnsupportedError: The strategy is not square and lower-triangular.
        """

    @property
    @abc.abstractmethod
    def bands(self) -> int:
        """Diagonals from the main one down to the last that is not zero."""

    @property
    @abc.abstractmethod
    def remembers(self) -> int:
        """Arrays that have to be held from one step to the next, at most."""

    def held(self, step: int) -> int:
        """How many of them there are after so many steps."""
        return min(step, self.remembers)

    def mix(self, step: int, value: Array, held: list[Array]) -> Array:
        """A row of the strategy, of the steps so far.

        Args:
            step: Which row.
            value: What was released in this step.
            held: What is remembered; it is brought up to date.
        """
        _, row = self.row(step)
        mixed: Array = row[-1] * value
        for weight, earlier in zip(row[-2::-1], reversed(held), strict=False):
            if weight:
                mixed += weight * earlier
        held.append(value)
        if len(held) > self.remembers:
            held.pop(0)
        return mixed

    def apply(self, rows: Array) -> Array:
        """The strategy times the first rows, as many as there are."""
        held: list[Array] = []
        mixed = [self.mix(step, row, held) for step, row in enumerate(rows)]
        return np.array(mixed).reshape(rows.shape)

    def norms(self, steps: int) -> Array:
        """Norms of the columns of so many steps."""
        norms = []
        for start in range(0, steps, _COLUMNS_AT_ONCE):
            chosen = np.arange(start, min(start + _COLUMNS_AT_ONCE, steps))
            units = np.zeros((steps, chosen.size))
            units[chosen, np.arange(chosen.size)] = 1.0
            norms.append(np.linalg.norm(self.apply(units), axis=0))
        return np.concatenate(norms)

    @abc.abstractmethod
    def stream(self, draw: Draw) -> NoiseStream:
        """The noise of one step after another."""

    @abc.abstractmethod
    def numbers(self) -> tuple[Array, ...]:
        """The numbers that say what it is."""

    def digest(self) -> str:
        """A short name of those numbers."""
        sha = hashlib.sha256(f"{self.kind} {self.steps}".encode())
        for array in self.numbers():
            sha.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        return sha.hexdigest()[:32]


def factorization(module: str) -> Any:
    """A module of ``jax_privacy.matrix_factorization``, when it is installed."""
    try:
        return importlib.import_module(f"jax_privacy.matrix_factorization.{module}")
    except ImportError as error:
        raise MissingExtraError(
            "This factorisation needs jax-privacy: pip install askgauss[jax]."
        ) from error
