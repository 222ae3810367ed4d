"""What a strategy is, and what every one can do, however it is written down.

A strategy ``C`` is a lower-triangular matrix, one column a step. Step ``t`` adds ``x[t]``; row
``t`` of the strategy mixes the steps up to it and meets one fresh draw of noise. Released are those
rows, or the steps decoded from them, ``x + inverse(C) @ draws``. Mixing the released steps again
gives the rows back, ``C @ x + draws``, one draw each, in which a record that enters step ``s`` adds
column ``s``: what an audit reads.

It is held as its bands (`BandedStrategy`), as a few buffers (`BufferedToeplitz`) or as the matrix
(`MatrixMechanism`); `strategy_of` of `askgauss.mechanisms.decorrelate.strategy_rows` reads all that
people write for one.
"""

from __future__ import annotations

import abc
import hashlib
import importlib
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from askgauss import _validate
from askgauss.exceptions import MissingExtraError
from askgauss.mechanisms.noise_streams import Draw, NoiseStream
from askgauss.stats import gaussian

__all__ = ["Strategy", "factorization"]

Array = NDArray[np.float64]

_COLUMNS_AT_ONCE = 256


class Strategy(abc.ABC):
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
