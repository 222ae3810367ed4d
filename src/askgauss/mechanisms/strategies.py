"""Buffered linear Toeplitz strategies (BLT, arXiv 2404.16706), without ever writing a matrix.

The first column of the strategy is ``1``, ``sum(scale)``, ``sum(scale * decay)``,
``sum(scale * decay**2)`` and so on, with a ``decay`` and a ``scale`` for each buffer. What the past
adds to a step is then a weighted sum of a few buffers, each a fading sum of earlier noise: memory
is one array a buffer, however many steps there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.matrix import MatrixMechanism, MatrixNoise, largest_choice
from askgauss.mechanisms.strategy import Draw, NoiseStream, Strategy, factorization

__all__ = ["BandedStrategy", "BufferedNoise", "BufferedToeplitz"]

# Up to here the matrix is written out where columns of one record overlap.
_WRITTEN_OUT = 2048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BandedStrategy(Strategy):
    """A banded lower-triangular strategy, and who takes part in it how often.

    Memory is that of its bands, and one array a band while noise is made or a run is read.

    Attributes:
        columns: Shape (steps, bands); row ``t`` is column ``t`` of the strategy from its diagonal
            downwards. What falls off the matrix at the bottom is ignored.
        participations: Most steps one record enters.
        min_separation: Least distance between two of them; 1 allows neighbouring steps.

    Examples:
        >>> strategy = BandedStrategy.toeplitz([0.8, 0.6], 10_000)
        >>> round(strategy.sensitivity(), 6), strategy.row(2)[1].tolist()
        (1.0, [0.6, 0.8])
    """

    kind: ClassVar[str] = "banded"

    columns: NDArray[np.float64]
    participations: int = 1
    min_separation: int = 1

    def __post_init__(self) -> None:
        _validate.integer(1, participations=self.participations, min_separation=self.min_separation)
        columns = np.asarray(self.columns)
        if (
            columns.dtype.kind not in "biuf"
            or columns.ndim != 2
            or not 1 <= columns.shape[1] <= columns.shape[0]
        ):
            raise _validate.fail(
                "columns", columns.shape, "to have shape (steps, bands) with bands <= steps"
            )
        if not np.isfinite(columns).all():
            raise _validate.fail("columns", "nan or infinity", "to be finite")
        # What is so small that its inverse overflows is zero, too.
        useless = np.flatnonzero(np.abs(columns[:, 0]) < np.finfo(np.float64).tiny)
        if useless.size:
            raise _validate.fail(
                "columns", f"0 in row {useless[0]}", "to have no zero on the diagonal"
            )
        if columns.base is None:
            columns = columns.astype(np.float64)
            columns.flags.writeable = False
        object.__setattr__(self, "columns", columns)

    @classmethod
    def toeplitz(
        cls,
        coefficients: ArrayLike,
        steps: int,
        *,
        participations: int = 1,
        min_separation: int = 1,
    ) -> BandedStrategy:
        """All columns alike: the first one from the top; what is missing is zero."""
        _validate.integer(1, steps=steps)
        column = np.array(coefficients, dtype=np.float64)
        if column.ndim != 1 or not 1 <= column.size <= steps:
            raise _validate.fail(
                "coefficients", column.shape, f"to be a vector of 1 to {steps} numbers"
            )
        return cls(
            columns=np.broadcast_to(column, (steps, column.size)),
            participations=participations,
            min_separation=min_separation,
        )

    @classmethod
    def from_jax_privacy(
        cls, steps: int, bands: int, *, participations: int = 1, min_separation: int = 1
    ) -> BandedStrategy:
        """The strategy of least mean squared prefix error, with columns of norm one.

        Needs the ``jax`` extra; the optimisation is jax-privacy's.
        """
        _validate.integer(1, steps=steps, bands=bands)
        columns = np.array(factorization("banded").optimize(steps, bands=bands).params, np.float64)
        columns /= np.sqrt(_column_squares(columns))[:, None]
        return cls(columns=columns, participations=participations, min_separation=min_separation)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.columns.shape[0])

    @property
    def bands(self) -> int:
        """Diagonals from the main one down."""
        return int(self.columns.shape[1])

    @property
    def remembers(self) -> int:
        """One array less than there are bands."""
        return self.bands - 1

    def row(self, step: int) -> tuple[int, NDArray[np.float64]]:
        """A row within its bands."""
        first = max(0, step - self.bands + 1)
        column = np.arange(first, step + 1)
        return first, self.columns[column, step - column]

    def apply(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The strategy times the first rows, band by band."""
        steps = len(rows)
        total = np.zeros_like(rows)
        for band in range(min(self.bands, steps)):
            total[band:] += self.columns[: steps - band, band, None] * rows[: steps - band]
        return total

    def norms(self, steps: int) -> NDArray[np.float64]:
        """Norms of the columns of so many steps."""
        return np.sqrt(_column_squares(self.columns[:steps]))

    def numbers(self) -> tuple[NDArray[np.float64], ...]:
        """The bands."""
        return (self.columns,)

    def sensitivity(self) -> float:
        """How far one record can move the noisy rows, in units of the clip norm.

        Returns:
            The l2 sensitivity; exact for one participation and where no two columns that a record
            may enter overlap. Where they do, as `MatrixMechanism.sensitivity`.

        Raises:
            UnsupportedError: Columns overlap, and the matrix would be too large to write out.
        """
        separation = min(self.min_separation, self.steps)
        count = min(self.participations, -(-self.steps // separation))
        squares = _column_squares(self.columns)
        if count == 1:
            return math.sqrt(float(squares.max()))
        if self.bands <= separation:
            return math.sqrt(float(largest_choice(squares[None, :], count, separation)[0]))
        if self.steps > _WRITTEN_OUT:
            raise UnsupportedError(
                f"With {self.bands} bands and a separation of {separation} the columns of one "
                f"record overlap, which is worked out up to {_WRITTEN_OUT:,} steps. Take no more "
                "bands than the separation, or a BufferedToeplitz."
            )
        return self.written_out().sensitivity()

    def written_out(self) -> MatrixMechanism:
        """The same as a matrix."""
        return MatrixMechanism(
            strategy=MatrixMechanism.banded(self.columns).strategy,
            participations=self.participations,
            min_separation=self.min_separation,
        )

    def stream(self, draw: Draw) -> MatrixNoise:
        """The correlated noise ``inverse(strategy) @ draws``, one step after another."""
        return MatrixNoise(draw, self)


def _column_squares(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of the columns, without what falls off the matrix."""
    steps, bands = columns.shape
    squares = np.zeros(steps)
    for band in range(min(bands, steps)):
        squares[: steps - band] += columns[: steps - band, band] ** 2
    return squares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferedToeplitz(Strategy):
    """A buffered linear Toeplitz strategy, and who takes part in it how often.

    Attributes:
        decay: How much of each buffer is left after a step, in [0, 1].
        scale: How much of each buffer a step takes, at least 0 and at most 1 together; the first
            column of the strategy then never grows, which makes the sensitivity exact.
        steps: Number of steps.
        participations: Most steps one record enters.
        min_separation: Least distance between two of them; 1 allows neighbouring steps.

    Examples:
        >>> strategy = BufferedToeplitz(decay=[0.9, 0.5], scale=[0.2, 0.3], steps=10_000)
        >>> strategy.coefficients()[:4].round(4).tolist()
        [1.0, 0.5, 0.33, 0.237]
        >>> round(strategy.sensitivity(), 4)
        1.2445
    """

    kind: ClassVar[str] = "buffered"

    decay: NDArray[np.float64]
    scale: NDArray[np.float64]
    steps: int
    participations: int = 1
    min_separation: int = 1

    def __post_init__(self) -> None:
        _validate.integer(
            1,
            steps=self.steps,
            participations=self.participations,
            min_separation=self.min_separation,
        )
        for name in ("decay", "scale"):
            object.__setattr__(self, name, _fractions(name, getattr(self, name)))
        if self.decay.shape != self.scale.shape:
            raise _validate.fail(
                "scale", self.scale.shape, f"to have shape {self.decay.shape}, one a buffer"
            )
        if self.scale.sum() > 1.0:
            raise _validate.fail("scale", self.scale, "to add up to at most 1")

    @classmethod
    def from_jax_privacy(
        cls,
        steps: int,
        *,
        buffers: int = 2,
        participations: int = 1,
        min_separation: int = 1,
    ) -> BufferedToeplitz:
        """The strategy of least maximal prefix error for this participation.

        Needs the ``jax`` extra; the optimisation is jax-privacy's and may take a minute.
        """
        _validate.integer(1, steps=steps, buffers=buffers)
        _validate.integer(1, participations=participations, min_separation=min_separation)
        found = factorization("buffered_toeplitz").optimize(
            n=steps,
            min_sep=min_separation,
            max_participations=participations,
            min_buffers=buffers,
            max_buffers=buffers,
        )
        return cls(
            decay=np.asarray(found.buf_decay, dtype=np.float64),
            scale=np.asarray(found.output_scale, dtype=np.float64),
            steps=steps,
            participations=participations,
            min_separation=min_separation,
        )

    def coefficients(self) -> NDArray[np.float64]:
        """The first column of the strategy; `MatrixMechanism.toeplitz` writes the matrix out."""
        tail = self.decay ** np.arange(self.steps - 1)[:, None] @ self.scale
        return np.append(1.0, tail)

    @property
    def bands(self) -> int:
        """As many as steps: the past never quite fades."""
        return self.steps

    @property
    def remembers(self) -> int:
        """One array a buffer."""
        return int(self.decay.size)

    def held(self, step: int) -> int:
        """All of them, from the first step on."""
        return self.remembers if step else 0

    def row(self, step: int) -> tuple[int, NDArray[np.float64]]:
        """A whole row: it never ends."""
        tail = self.decay ** np.arange(step)[:, None] @ self.scale
        return 0, np.append(tail[::-1], 1.0)

    def mix(
        self, step: int, value: NDArray[np.float64], held: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """A row of the strategy, of the steps so far, from its buffers."""
        if not held:
            held.extend(np.zeros_like(value) for _ in self.decay)
        mixed = value.copy()
        for decay, scale, buffer in zip(self.decay, self.scale, held, strict=True):
            mixed += scale * buffer
            buffer *= decay
            buffer += value
        return mixed

    def numbers(self) -> tuple[NDArray[np.float64], ...]:
        """Decay and scale of the buffers."""
        return self.decay, self.scale

    def sensitivity(self) -> float:
        """How far one record can move the noisy rows, in units of the clip norm.

        Returns:
            The l2 sensitivity, exact: with coefficients that never grow, entering as early, as
            often and as soon again as allowed is the worst (arXiv 2405.13763).

        Assumes:
            A record adds a vector of norm at most the clip norm to each step it enters, or nothing
            to any in the neighbouring data.
        """
        column = self.coefficients()
        moved = column.copy()
        starts = range(self.min_separation, self.steps, self.min_separation)
        for start in starts[: self.participations - 1]:
            moved[start:] += column[:-start]
        return float(np.linalg.norm(moved))

    def stream(self, draw: Draw) -> BufferedNoise:
        """The correlated noise ``inverse(strategy) @ draws``, one step after another."""
        return BufferedNoise(draw, self)


class BufferedNoise(NoiseStream):
    """Correlated noise, one step after another, with memory for one array a buffer.

    The noise of a step is its draw less what the buffers say the earlier steps put there; the
    buffers then fade and take it in. This solves for the inverse of the strategy row by row.

    Args:
        draw: Fresh independent noise, see :data:`askgauss.mechanisms.strategy.Draw`;
            already scaled to noise multiplier times clip norm.
        mechanism: The strategy.

    Examples:
        >>> from askgauss.mechanisms.strategy import numpy_draw
        >>> strategy = BufferedToeplitz(decay=[0.9, 0.5], scale=[0.2, 0.3], steps=1_000)
        >>> noise = strategy.stream(numpy_draw(np.random.default_rng(0), 3))
        >>> for _ in range(1_000):
        ...     step = noise.next()
        >>> step.shape, noise.buffers
        ((3,), 3)
    """

    _HELD = "buffers"

    def __init__(self, draw: Draw, mechanism: BufferedToeplitz) -> None:
        self._terms = list(zip(mechanism.decay.tolist(), mechanism.scale.tolist(), strict=True))
        plan = {"steps": mechanism.steps, "decay": mechanism.decay, "scale": mechanism.scale}
        super().__init__(draw, steps=mechanism.steps, plan=plan)

    def _advance(self) -> Any:
        noise = self._fresh(self._held)
        if self._held:
            terms = list(zip(self._terms, self._held, strict=True))
            for (_, scale), buffer in terms:
                noise -= buffer * scale
            for (decay, _), buffer in terms:
                buffer *= decay
                buffer += noise
        else:
            self._held = [noise * 1 for _ in self._terms]
        self._fresh.spare.append(noise)
        return noise

    def _expected(self, step: int) -> int:
        return len(self._terms) if step else 0


def _fractions(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A read-only copy of numbers in [0, 1]."""
    vector = np.array(values)
    if vector.ndim != 1 or not vector.size or vector.dtype.kind not in "iuf":
        raise _validate.fail(name, values, "to be a vector of numbers, one a buffer")
    vector = vector.astype(np.float64)
    if not ((vector >= 0.0) & (vector <= 1.0)).all():
        raise _validate.fail(name, values, "to be in [0, 1]")
    vector.flags.writeable = False
    return vector
