"""Banded strategies (BandMF, arXiv 2306.08153), held as their bands: no matrix is written out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.matrix import MatrixMechanism, MatrixNoise, largest_choice
from askgauss.mechanisms.noise_streams import Draw
from askgauss.mechanisms.strategy import Strategy, factorization

__all__ = ["BandedStrategy"]

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
