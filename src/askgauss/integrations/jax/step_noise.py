"""The noise of JAX steps: sampled to find noise used again, and compared with likely seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from askgauss.checks.noise_reuse import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.recording.facts import SeedProbe
from askgauss.recording.noise_sample import CENTRE, WIDTH, NoiseSample, ReuseFacts

__all__ = ["SampledLeaves", "probe_seeds"]


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


# Numbers drawn at once, and for one seed at most.
_AT_ONCE = 1 << 22
_MOST_DRAWN = 1 << 20
# Numbers for one seed with which the ways of loops are tried as well, of which there are many.
_FEW_DRAWN = 1 << 13

Key = Any


def _itself(key: Key, index: int, count: int) -> Key:
    return key


def _split(key: Key, index: int, count: int) -> Key:
    return jax.random.split(key, count)[index]


def _split_behind(key: Key, index: int, count: int) -> Key:
    return jax.random.split(key, count + 1)[1 + index]


def _by_number(key: Key, index: int, count: int) -> Key:
    return jax.random.fold_in(key, index)


def _carried(key: Key, index: int, count: int) -> Key:
    for _ in range(index):
        key = jax.random.split(key)[0]
    return jax.random.split(key)[1]


def _dense_privatizer(key: Key, index: int, count: int) -> Key:
    return jax.random.fold_in(jax.random.split(key, count)[index], 0)


def _child(number: int) -> Callable[[Key], Key]:
    return lambda key: jax.random.split(key)[number]


def _folded(number: int) -> Callable[[Key], Key]:
    return lambda key: jax.random.fold_in(key, number)


# From the key of the run to that of the first step.
_OF_STEP: tuple[tuple[str, Callable[[Key], Key]], ...] = (
    ("", lambda key: key),
    ("folded with the step", _folded(0)),
    ("folded with the step, counted from one", _folded(1)),
    ("split", _child(1)),
    ("split, the first half", _child(0)),
    ("split before training and in every step", lambda key: _child(1)(_child(0)(key))),
    ("split, then folded with the step", lambda key: _folded(0)(_child(1)(key))),
    ("split, the first half folded with the step", lambda key: _folded(0)(_child(0)(key))),
)
# From the key of a step to that of a tensor.
_OF_TENSOR: tuple[tuple[str, Callable[[Key, int, int], Key]], ...] = (
    ("the same for every tensor", _itself),
    ("split between tensors", _split),
    ("folded with the number of the tensor", _by_number),
    ("split for one tensor after the other", _carried),
    ("split between the next step and the tensors", _split_behind),
)
# What is known by the name of a library.
_NAMED: tuple[tuple[str, Callable[[Key, int, int], Key]], ...] = (
    (
        "as jax_privacy's privatizers split it",
        lambda key, index, count: _split(_child(1)(key), index, count),
    ),
    ("as jax_privacy's dense privatizer splits it", _dense_privatizer),
    ("as optax's differentially_private_aggregate splits it", _split_behind),
    ("as optax.tree.random_like splits it", _split),
    ("folded with the number of the tensor", _by_number),
    ("the same for every tensor", _itself),
)


def _ways(many: bool) -> Iterator[tuple[str, Callable[[Key, int, int], Key]]]:
    """Ways from a key to that of a tensor: those of libraries, and then those of loops."""
    for name, derive in _NAMED:
        yield f"jax.random.key: {name}", derive
    for step, of_step in _OF_STEP if many else ():
        for tensor, of_tensor in _OF_TENSOR:
            if step or of_tensor is _carried:
                yield (
                    f"jax.random.key: {', '.join(filter(None, (step, tensor)))}",
                    _both(of_step, of_tensor),
                )


def _both(
    of_step: Callable[[Key], Key], of_tensor: Callable[[Key, int, int], Key]
) -> Callable[[Key, int, int], Key]:
    return lambda key, index, count: of_tensor(of_step(key), index, count)


def probe_seeds(
    noise: NDArray[np.float64],
    tensor: NDArray[np.int64],
    place: NDArray[np.int64],
    *,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[Any],
    own: Sequence[int | None],
) -> SeedProbe:
    """Try the likely seeds on the first noise.

    Args:
        noise: The noise of the first step, at
        tensor: this tensor and
        place: this position of it, one each.
        shapes: Shapes of all tensors.
        dtypes: Number formats of all tensors.
        own: Seeds that the run uses for something else.
    """
    sizes = np.array([int(np.prod(shape)) for shape in shapes])
    counts = np.bincount(tensor, minlength=sizes.size)
    # The smallest tensors with enough readings together: what is drawn is thrown away.
    chosen: list[int] = []
    for index in np.argsort(sizes, kind="stable"):
        if counts[index] and counts[chosen].sum() < FEWEST:
            chosen.append(int(index))
    if counts[chosen].sum() < FEWEST or sizes[chosen].sum() > _MOST_DRAWN:
        return SeedProbe(tried=0)
    parts = [np.flatnonzero(tensor == index) for index in chosen]
    order = np.concatenate(parts)
    seeds = likely_seeds(own)
    seeds = np.unique(seeds % 2**32)
    leaves = [
        (index, shapes[index], dtypes[index], place[part])
        for index, part in zip(chosen, parts, strict=True)
    ]
    return try_seeds(noise[order], _candidates(leaves, len(shapes), seeds, noise.size))


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _draw(keys: Any, places: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """What each key gives at some places of a tensor."""
    return jax.vmap(lambda key: jax.random.normal(key, shape, dtype).reshape(-1)[places])(keys)


def _candidates(
    leaves: Sequence[tuple[int, tuple[int, ...], Any, NDArray[np.int64]]],
    count: int,
    seeds: NDArray[np.int64],
    size: int,
) -> Iterator[Candidates]:
    drawn = sum(int(np.prod(shape)) for _, shape, _, _ in leaves)
    at_once = max(1, min(seeds.size, _AT_ONCE // drawn))

    # Equal parts, so that one program serves all: seeds are repeated to fill up the last.
    filled = np.resize(seeds, -(-seeds.size // at_once) * at_once).astype(np.uint32)
    roots = jax.vmap(jax.random.key)(filled)
    # With keys that can be split in parallel, to split is to fold.
    known: set[bytes] = set()
    for way, derive in _ways(many=drawn <= _FEW_DRAWN):
        # Not compiled together with the draws, which all ways and all audits share.
        keys = [
            jax.vmap(lambda key, index=index, derive=derive: derive(key, index, count))(roots)
            for index, _, _, _ in leaves
        ]
        name = b"".join(np.asarray(jax.random.key_data(item[0])).tobytes() for item in keys)
        if name in known:
            continue
        known.add(name)
        rows = [
            np.concatenate(
                [
                    np.asarray(_draw(of_leaf[start : start + at_once], places, shape, dtype), float)
                    for of_leaf, (_, shape, dtype, places) in zip(keys, leaves, strict=True)
                ],
                axis=1,
            )
            for start in range(0, filled.size, at_once)
        ]
        yield way, seeds, np.concatenate(rows)[: seeds.size]
    if len(leaves) == 1:
        yield from numpy_candidates(leaves[0][3], seeds)
