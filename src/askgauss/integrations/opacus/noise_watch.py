"""The noise of a step by itself: what is released less the sum it was added to, at some places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from askgauss.canaries import DiracCanaries
from askgauss.exceptions import FileFormatError
from askgauss.integrations.opacus.coordinate_access import CanaryCoordinates

__all__ = ["NoiseWatch"]

_PLACES = 256
_FEWEST = 4
_NOISE = "examples.noise"


class NoiseWatch:
    """Random coordinates of the model, and the noise of every observed step there.

    Along an example's gradient the other records are not known; at a coordinate they are, since
    Opacus shows the clipped sum before it adds the noise.

    Args:
        tensors: The parameters, in order.
        seed: Root of the choice.
    """

    def __init__(self, tensors: Sequence[Tensor], seed: int) -> None:
        sizes = tuple(tensor.numel() for tensor in tensors)
        places = DiracCanaries(
            present=0, absent=max(2, min(_PLACES, sum(sizes) // 2)), tensors=sizes, seed=seed
        )
        self.coordinates = CanaryCoordinates(tensors, places)
        self.tensor = np.concatenate([places.tensor, places.watch_tensor])
        self._rows: list[NDArray[np.float64]] = []

    @staticmethod
    def fits(tensors: Sequence[Tensor]) -> bool:
        """Whether there is room to watch at all."""
        return sum(tensor.numel() for tensor in tensors) >= _FEWEST

    def add(self, noise: Tensor, clip_norm: float) -> None:
        """Keep the noise of a step, a flat reading on the host."""
        values = noise.numpy()
        read = [self.coordinates.along(values), self.coordinates.watched(values)]
        self._rows.append(np.concatenate(read).astype(np.float64) / clip_norm)

    @property
    def values(self) -> NDArray[np.float64]:
        """One row a step."""
        return np.array(self._rows).reshape(-1, self.tensor.size)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays to go on from."""
        return {_NOISE: self.values}

    def load(self, arrays: dict[str, Any], steps: int) -> bool:
        """Go on from `arrays`; whether they hold the noise of all steps, as early ones do not."""
        rows = arrays.get(_NOISE)
        if rows is None:
            self._rows = []
            return steps == 0
        if not isinstance(rows, np.ndarray) or rows.shape != (steps, self.tensor.size):
            raise FileFormatError(
                f"Expected {_NOISE} of shape {(steps, self.tensor.size)}, got another. Load an "
                "older checkpoint."
            )
        self._rows = list(rows.astype(np.float64))
        return True
