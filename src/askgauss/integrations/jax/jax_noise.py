"""All noise of a JAX step, sampled by content inside the compiled step and compared on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from askgauss.recording.noise_sample import CENTRE, WIDTH, NoiseSample, ReuseFacts

__all__ = ["SampledLeaves"]

# Windows of a whole run, and the fewest and most of a step.
_WINDOWS = 1 << 16
_FEWEST, _MOST = 16, 512
# Tensors whose first window is kept.
_LEADS = 64
# Values of a step that are looked at: of larger models the beginning and end of every tensor.
_LOOKED_AT = 1 << 20
# Windows of one tensor and step from which it follows which sizes were all kept.
_ALL_KEPT = 16
_COLUMNS = WIDTH + 1
_SIDE = WIDTH // 2


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What is kept of a tensor: its first window or not, and others, of a part at either end."""

    index: int
    shape: tuple[int, ...]
    lead: bool
    windows: int
    rows: int

    @property
    def kept(self) -> int:
        return int(self.lead) + self.windows

    @property
    def whole(self) -> bool:
        return not self.shape or 2 * self.rows >= self.shape[0]

    @property
    def looked_at(self) -> int:
        size = int(np.prod(self.shape))
        return size if self.whole else 2 * self.rows * (size // self.shape[0])


class SampledLeaves:
    """Windows of all noise, of a fixed number in each step.

    In a compiled step the number of values cannot depend on them. So of every tensor the values
    nearest in size to one are kept: noise that is used again has the same ones.

    Args:
        shapes: Shapes of the tensors.
        dtypes: Their number formats; shorter ones than float32 have equal values by chance.
        steps: Steps of the run.
        deviation: What is stated for the noise.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[Any],
        steps: int,
        deviation: float,
    ) -> None:
        self._deviation = deviation
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self._total = sum(self._sizes)
        fit = [
            (index, shape)
            for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
            if int(np.prod(shape)) >= WIDTH and np.dtype(dtype).itemsize >= 4
        ]
        budget = min(max(_WINDOWS // steps, _FEWEST), _MOST)
        leads = {
            fit[at][0] for at in np.linspace(0, len(fit) - 1, min(_LEADS, len(fit))).astype(int)
        }
        part = min(1.0, _LOOKED_AT / max(self._total, 1))
        leaves = []
        for index, shape in fit:
            size = int(np.prod(shape))
            row = size // shape[0]
            rows = shape[0] if part == 1.0 else max(1, -(-WIDTH // row), int(part * shape[0] / 2))
            leaf = _Leaf(index, shape, index in leads, 0, rows)
            windows = min(round(budget * size / self._total), leaf.looked_at - 2 * WIDTH)
            leaves.append(_Leaf(index, shape, index in leads, max(windows, 0), rows))
        self._leaves = tuple(leaf for leaf in leaves if leaf.kept)

    @property
    def width(self) -> int:
        """Numbers that a step keeps."""
        return _COLUMNS * sum(leaf.kept for leaf in self._leaves)

    def read(self, noise: Sequence[Any]) -> Any:
        """The windows of a step, and where they are, as one flat array."""
        parts = [self._windows(leaf, noise[leaf.index]) for leaf in self._leaves]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, jnp.float32)

    def _windows(self, leaf: _Leaf, noise: Any) -> Any:
        values = noise.astype(jnp.float32)
        if not leaf.whole:
            values = jnp.concatenate([values[: leaf.rows], values[-leaf.rows :]])
        sizes = jnp.abs(values.reshape(-1))
        middle = jnp.full((int(leaf.lead),), _SIDE)
        if leaf.windows:
            off = jnp.abs(sizes[_SIDE : sizes.size - _SIDE] - CENTRE * self._deviation)
            found = jax.lax.top_k(-off, leaf.windows)[1] + _SIDE
            middle = jnp.concatenate([middle, found])
        windows = sizes[middle[:, None] + jnp.arange(-_SIDE, _SIDE + 1)]
        return jnp.concatenate([windows, middle[:, None].astype(jnp.float32)], axis=1).reshape(-1)

    def facts(self, rows: NDArray[np.float64]) -> ReuseFacts | None:
        """What the windows of all steps show; None where none were kept."""
        if not self.width or not len(rows):
            return None
        sample = NoiseSample(self._sizes, self._total)
        leads = np.concatenate([np.arange(leaf.kept) < leaf.lead for leaf in self._leaves])
        tensor = np.concatenate([np.full(leaf.kept, leaf.index) for leaf in self._leaves])
        order = np.argsort(~leads, kind="stable")
        leads, tensor = leads[order], tensor[order]
        begin = np.cumsum([0, *self._sizes])[tensor]
        kept = rows.reshape(len(rows), -1, _COLUMNS)[:, order]
        sample.calibrate((kept[:, :, 0] / self._deviation).ravel())
        within, looked_at = sample.half, sum(leaf.looked_at for leaf in self._leaves)
        for step, windows in enumerate(kept):
            sizes = windows[:, :WIDTH] / self._deviation
            if sample.scale is not None:
                off = np.abs(sizes[:, _SIDE] / sample.scale - CENTRE)
                for leaf in self._leaves:
                    if leaf.windows >= _ALL_KEPT:
                        within = min(within, float(off[(tensor == leaf.index) & ~leads].max()))
            sample.saw(looked_at)
            place = begin + windows[:, WIDTH].astype(np.int64)
            sample.add(sizes, step=step, place=place, leads=int(leads.sum()))
        return sample.facts(within=min(within, sample.half))
