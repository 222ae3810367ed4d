"""Linear mechanisms: a strategy matrix, Gaussian noise, and a decoder.

Row ``t`` of ``x`` is what step ``t`` adds. The mechanism computes ``strategy @ x + noise`` and
releases it, or releases ``decoder @ (strategy @ x + noise)`` and nothing else. DP-SGD without
amplification, tree aggregation and the banded and Toeplitz factorisations of DP-FTRL are all of
this kind (arXiv 2202.08312, 2306.08153). Noise is counted in units of the clip norm.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.strategy import Draw, NoiseStream, Strategy
from askgauss.mechanisms.tree import Estimator, check_participation, node_sums, prefixes

__all__ = ["MatchedFilter", "MatrixMechanism", "MatrixNoise", "largest_choice"]

# Patterns times squared participations that are tried one by one before a bound takes over.
_ENUMERATED = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatchedFilter:
    """The best linear score of each canary, scaled so that its noise is that of one draw.

    Attributes:
        weights: One row a canary, one column a released row.
        shift: What a present canary of norm one adds to its score. A score is
            ``N(shift * clip_norm * present, sigma**2)``, so ``shift`` over the noise multiplier is
            the ``mu`` of Gaussian differential privacy that it carries.
    """

    weights: NDArray[np.float64]
    shift: NDArray[np.float64]

    def score(self, released: ArrayLike) -> NDArray[np.float64]:
        """The score of every canary.

        Args:
            released: One row for each released row, one column a canary: the release along the
                canary's direction, with everybody else's share taken off where it is known.

        Returns:
            One score a canary.
        """
        released = np.asarray(released, dtype=np.float64)
        if released.shape != self.weights.shape[::-1]:
            raise _validate.fail(
                "released", released.shape, f"to have shape {self.weights.shape[::-1]}"
            )
        return np.asarray(np.einsum("co,oc->c", self.weights, released))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixMechanism(Strategy):
    """A linear mechanism with Gaussian noise, and who takes part in it how often.

    Attributes:
        strategy: The matrix ``C`` that meets the noise, one column a step.
        decoder: The matrix ``B`` that turns noisy strategy rows into what is released; None
            releases the rows themselves.
        participations: Most steps one record enters.
        min_separation: Least distance between two of them; 1 allows neighbouring steps.

    Examples:
        >>> mechanism = MatrixMechanism.tree(128, estimator="honaker")
        >>> round(mechanism.sensitivity() ** 2, 6)
        8.0
        >>> round(float(mechanism.information().mean()), 3)
        2.471
        >>> from dataclasses import replace
        >>> replace(MatrixMechanism.identity(10), participations=4).sensitivity()
        2.0
    """

    kind: ClassVar[str] = "dense"

    strategy: NDArray[np.float64]
    decoder: NDArray[np.float64] | None = None
    participations: int = 1
    min_separation: int = 1
    _bands: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        _validate.integer(1, participations=self.participations, min_separation=self.min_separation)
        strategy = _matrix("strategy", self.strategy)
        if not strategy.any():
            raise _validate.fail(
                "strategy", "zeros", "to be a strategy", "It asks for no noise and answers nothing."
            )
        object.__setattr__(self, "strategy", strategy)
        # Asked in every step, and slow to count.
        object.__setattr__(self, "_bands", self._count_bands())
        if self.decoder is not None:
            decoder = _matrix("decoder", self.decoder)
            if decoder.shape[1] != strategy.shape[0]:
                raise _validate.fail(
                    "decoder",
                    decoder.shape,
                    f"to have {strategy.shape[0]} columns, one for each row of strategy",
                )
            object.__setattr__(self, "decoder", decoder)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return int(self.strategy.shape[1])

    @property
    def bands(self) -> int:
        """Diagonals of the strategy from the main one down to the last that is not zero."""
        return self._bands

    def _count_bands(self) -> int:
        rows, columns = np.nonzero(self.strategy)
        return int(max((rows - columns).max(initial=0), 0)) + 1

    @property
    def remembers(self) -> int:
        """One array less than there are bands."""
        return self.bands - 1

    def row(self, step: int) -> tuple[int, NDArray[np.float64]]:
        """A row within its bands.

        Raises:
            UnsupportedError: The strategy is not square and lower-triangular.
        """
        if step == 0 and not self._is_lower_triangular:
            raise UnsupportedError(
                "Streaming needs a square lower-triangular strategy: a step may depend on the past "
                "only. Trees stream with askgauss.mechanisms.tree.TreeNoise."
            )
        first = max(0, step - self.bands + 1)
        return first, self.strategy[step, first : step + 1]

    def apply(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The strategy times the first rows."""
        steps = len(rows)
        return np.asarray(self.strategy[:steps, :steps] @ rows)

    def numbers(self) -> tuple[NDArray[np.float64], ...]:
        """The matrix."""
        return (self.strategy,)

    # --- constructors ---

    @classmethod
    def identity(cls, steps: int) -> MatrixMechanism:
        """Independent noise at every step: DP-SGD without amplification by sampling."""
        _validate.integer(1, steps=steps)
        return cls(strategy=np.eye(steps))

    @classmethod
    def tree(cls, steps: int, *, estimator: Estimator | None = None) -> MatrixMechanism:
        """Binary-tree aggregation.

        Args:
            steps: Leaves of the tree.
            estimator: How prefixes are put together when only prefixes are released; None releases
                every complete node.

        Returns:
            The mechanism; rows of the strategy are the nodes level by level, leaves first.
        """
        _validate.integer(1, steps=steps)
        nodes = node_sums(np.eye(steps))
        strategy = np.concatenate(nodes)
        if estimator is None:
            return cls(strategy=strategy)
        ends = np.cumsum([len(level) for level in nodes])[:-1]
        units = np.split(np.eye(len(strategy)), ends)
        return cls(strategy=strategy, decoder=prefixes(units, estimator))

    @classmethod
    def toeplitz(cls, coefficients: ArrayLike, steps: int) -> MatrixMechanism:
        """A lower-triangular Toeplitz strategy.

        Args:
            coefficients: The first column from the top; what is missing is zero.
            steps: Size of the matrix.

        Examples:
            >>> MatrixMechanism.toeplitz([1.0, 0.5], 3).strategy.tolist()
            [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
        """
        _validate.integer(1, steps=steps)
        column = np.asarray(coefficients, dtype=np.float64)
        if column.ndim != 1 or not 1 <= column.size <= steps:
            raise _validate.fail(
                "coefficients", column.shape, f"to be a vector of 1 to {steps} numbers"
            )
        return cls.banded(np.broadcast_to(column, (steps, column.size)))

    @classmethod
    def banded(cls, columns: ArrayLike) -> MatrixMechanism:
        """A banded lower-triangular strategy.

        Args:
            columns: Shape (steps, bands); row ``t`` is column ``t`` of the strategy from its
                diagonal downwards. What falls off the matrix at the bottom is ignored.

        Examples:
            >>> MatrixMechanism.banded([[1.0, 0.5], [2.0, 9.0]]).strategy.tolist()
            [[1.0, 0.0], [0.5, 2.0]]
        """
        columns = np.asarray(columns, dtype=np.float64)
        if columns.ndim != 2 or not 1 <= columns.shape[1] <= columns.shape[0]:
            raise _validate.fail(
                "columns", columns.shape, "to have shape (steps, bands) with bands <= steps"
            )
        steps, bands = columns.shape
        strategy = np.zeros((steps, steps))
        for band in range(bands):
            column = np.arange(steps - band)
            strategy[column + band, column] = columns[column, band]
        return cls(strategy=strategy)

    # --- privacy ---

    def sensitivity(self) -> float:
        """How far one record can move the noisy rows, in units of the clip norm.

        Returns:
            The l2 sensitivity. Exact for one participation; for several it is exact when no two
            columns that one record can enter have a negative product and, besides, the ways to
            participate are few enough to try, or the strategy is banded within the separation, or
            it is Toeplitz with non-negative coefficients that do not grow (arXiv 2405.13763).
            Otherwise an upper bound, somewhat below that of arXiv 2306.08153.

        Assumes:
            A record adds a vector of norm at most the clip norm to each step it enters, or nothing
            to any in the neighbouring data.
        """
        separation = min(self.min_separation, self.steps)
        count = min(self.participations, -(-self.steps // separation))
        if count == 1:
            return float(np.linalg.norm(self.strategy, axis=0).max())
        if self._is_decaying_toeplitz():
            entered = separation * np.arange(count)
            return float(np.linalg.norm(self.strategy[:, entered].sum(axis=1)))
        if self._is_lower_triangular and self.bands <= separation:
            # Columns that one record can enter do not meet.
            squares = np.sum(self.strategy**2, axis=0)
            return math.sqrt(largest_choice(squares[None, :], count, separation)[0])
        # Vectors of norm one in unlike directions: products of columns count by their size.
        products = np.abs(self.strategy.T @ self.strategy)
        ways = [(size, self.steps - (size - 1) * (separation - 1)) for size in range(1, count + 1)]
        work = itertools.accumulate(math.comb(slots, size) * size**2 for size, slots in ways)
        if all(total <= _ENUMERATED for total in work):
            # Fewer participations can weigh more: two that leave no room for a third.
            return math.sqrt(
                max(_heaviest(products, size, slots, separation) for size, slots in ways)
            )
        # Each row as if it chose its own partners: an upper bound.
        apart = np.abs(np.subtract.outer(np.arange(self.steps), np.arange(self.steps)))
        products[(apart > 0) & (apart < separation)] = 0.0
        rows = largest_choice(products, count, separation)
        return math.sqrt(largest_choice(rows[None, :], count, separation)[0])

    # --- what a canary can see ---

    def information(self) -> NDArray[np.float64]:
        """The ``mu`` a canary at each step carries, times the noise multiplier.

        Returns:
            One number a step: the norm of its column of the strategy, after a projection onto what
            the decoder lets through.
        """
        return np.asarray(np.linalg.norm(self._visible(self.strategy)[1], axis=0))

    def matched_filter(self, leaves: ArrayLike | None = None) -> MatchedFilter:
        """The most powerful score of canaries that enter given steps.

        Args:
            leaves: One step for each canary, or one row of steps for each; every step once when
                left out.

        Returns:
            Weights and shift of each canary.

        Raises:
            UnsupportedError: Nothing released depends on one of the canaries.
        """
        signal = self.strategy @ self._entries(leaves)
        weights, visible = self._visible(signal)
        shift = np.linalg.norm(visible, axis=0)
        blind = np.flatnonzero(shift <= 1e-9 * np.linalg.norm(signal, axis=0))
        if blind.size:
            raise UnsupportedError(
                f"Nothing released depends on canary {blind[0]} ({blind.size} such in all): "
                "there is no score. Plant canaries at steps the release covers."
            )
        return MatchedFilter(weights=(weights / shift).T, shift=shift)

    def stream(self, draw: Draw) -> MatrixNoise:
        """The correlated noise ``inverse(strategy) @ draws``, one step after another."""
        return MatrixNoise(draw, self)

    @property
    def _is_lower_triangular(self) -> bool:
        rows, columns = self.strategy.shape
        return rows == columns and not np.triu(self.strategy, 1).any()

    def _is_decaying_toeplitz(self) -> bool:
        column = self.strategy[:, 0]
        if len(column) != self.steps or column.min() < 0.0 or np.any(np.diff(column) > 0.0):
            return False
        return np.array_equal(self.strategy, MatrixMechanism.toeplitz(column, self.steps).strategy)

    def _entries(self, leaves: ArrayLike | None) -> NDArray[np.float64]:
        """One column a canary, with a one at each step it enters."""
        if leaves is None:
            return np.eye(self.steps)
        entered = np.asarray(leaves)
        if entered.dtype.kind not in "iu" or entered.ndim not in (1, 2) or not entered.size:
            raise _validate.fail("leaves", leaves, "to be whole numbers, one or one row a canary")
        entered = entered.reshape(len(entered), -1)
        for row in entered if entered.shape[1] > 1 else ():
            check_participation(
                row,
                steps=self.steps,
                participations=self.participations,
                min_separation=self.min_separation,
            )
        if entered.min() < 0 or entered.max() >= self.steps:
            raise _validate.fail("leaves", leaves, f"in [0, {self.steps})")
        entries = np.zeros((self.steps, len(entered)))
        np.add.at(entries, (entered.T, np.arange(len(entered))), 1.0)
        return entries

    def _visible(
        self, signal: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Filter weights on what is released, and the part of each signal they reach.

        For a decoder ``B = U S V'`` the best weights are ``inverse(B') @ signal = U S^-1 V'
        signal`` and their noise has the norm of ``V' signal``; directions that the decoder drops
        (singular value zero) carry nothing.
        """
        if self.decoder is None:
            return signal, signal
        left, size, right = np.linalg.svd(self.decoder, full_matrices=False)
        kept = size > size[0] * max(self.decoder.shape) * np.finfo(np.float64).eps
        visible = right[kept] @ signal
        return left[:, kept] @ (visible / size[kept, None]), visible


class MatrixNoise(NoiseStream):
    """Correlated noise, one step after another, with memory for one array a band.

    A draw is the sum over steps of strategy row times noise, so the noise of a step is its draw,
    less what the last ``bands - 1`` steps already put there, over the diagonal. Prefixes of the
    released steps then carry ``prefix @ inverse(strategy) @ draws``.

    Args:
        draw: Fresh independent noise, see :data:`askgauss.mechanisms.strategy.Draw`;
            already scaled to noise multiplier times clip norm.
        mechanism: Square, lower-triangular and without zeros on the diagonal.

    Examples:
        >>> from askgauss.mechanisms.strategy import numpy_draw
        >>> draw = numpy_draw(np.random.default_rng(0), 3)
        >>> noise = MatrixMechanism.toeplitz([1.0, 0.5], 4).stream(draw)
        >>> noise.next().shape, noise.remaining
        ((3,), 3)
    """

    _HELD = "recent"

    def __init__(self, draw: Draw, mechanism: Strategy) -> None:
        mechanism.row(0)
        (numbers,) = mechanism.numbers()
        if isinstance(mechanism, MatrixMechanism):
            # What is so small that its inverse overflows is zero, too.
            useless = np.flatnonzero(np.abs(np.diagonal(numbers)) < np.finfo(np.float64).tiny)
            if useless.size:
                first = int(useless[0])
                raise _validate.fail(
                    "strategy",
                    f"{numbers[first, first]:g} at ({first}, {first})",
                    "to have no zero on the diagonal",
                )
        self._mechanism = mechanism
        super().__init__(draw, steps=mechanism.steps, plan={"strategy": numbers})

    def _advance(self) -> Any:
        _, row = self._mechanism.row(self._step)
        noise = self._fresh(self._held)
        for weight, earlier in zip(row[-2::-1], reversed(self._held), strict=False):
            if weight:
                noise -= earlier * float(weight)
        noise *= float(1.0 / row[-1])
        self._held.append(noise)
        if len(self._held) > self._mechanism.remembers:
            self._fresh.spare.append(self._held.pop(0))
        return noise

    def _expected(self, step: int) -> int:
        return self._mechanism.held(step)


def _matrix(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A read-only copy, so that a frozen mechanism stays what it was checked to be."""
    try:
        matrix = np.array(values)
    except ValueError as error:
        raise _validate.fail(name, "rows of unequal length", "to be a matrix") from error
    if matrix.dtype.kind not in "biuf":
        raise _validate.fail(name, matrix.dtype, "to be a matrix of real numbers")
    matrix = matrix.astype(np.float64, copy=False)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise _validate.fail(name, matrix.shape, "to be a matrix with at least one row and column")
    if not np.isfinite(matrix).all():
        raise _validate.fail(name, "nan or infinity", "to be finite")
    matrix.flags.writeable = False
    return matrix


def _heaviest(products: NDArray[np.float64], size: int, slots: int, separation: int) -> float:
    """The largest sum of products over all ways to enter ``size`` steps, one by one."""
    chosen = np.array(list(itertools.combinations(range(slots), size)))
    entered = chosen + (separation - 1) * np.arange(size)
    return float(products[entered[:, :, None], entered[:, None, :]].sum(axis=(1, 2)).max())


def largest_choice(rows: NDArray[np.float64], count: int, separation: int) -> NDArray[np.float64]:
    """For each row, the largest sum of ``count`` entries at least ``separation`` apart."""
    steps = rows.shape[1]
    best = np.zeros((len(rows), steps + separation))
    for _ in range(count):
        taken = rows + best[:, separation:]
        best[:, :steps] = np.maximum.accumulate(taken[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]
