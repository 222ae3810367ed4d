"""From a seed to the noise of a tensor, the ways JAX's privacy libraries go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from askgauss.diagnostics.predictable import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.run_facts import SeedProbe

__all__ = ["probe_seeds"]

# Numbers drawn at once, and for one seed at most.
_AT_ONCE = 1 << 22
_MOST_DRAWN = 1 << 20

Key = Any


def _privatizer(key: Key, index: int, count: int) -> Key:
    return jax.random.split(jax.random.split(key)[1], count)[index]


def _dense_privatizer(key: Key, index: int, count: int) -> Key:
    return jax.random.fold_in(jax.random.split(key, count)[index], 0)


def _aggregate(key: Key, index: int, count: int) -> Key:
    return jax.random.split(key, count + 1)[1 + index]


def _random_like(key: Key, index: int, count: int) -> Key:
    return jax.random.split(key, count)[index]


def _by_number(key: Key, index: int, count: int) -> Key:
    return jax.random.fold_in(key, index)


def _itself(key: Key, index: int, count: int) -> Key:
    return key


_WAYS: tuple[tuple[str, Callable[[Key, int, int], Key]], ...] = (
    ("jax.random.key: as jax_privacy's privatizers split it", _privatizer),
    ("jax.random.key: as jax_privacy's dense privatizer splits it", _dense_privatizer),
    ("jax.random.key: as optax's differentially_private_aggregate splits it", _aggregate),
    ("jax.random.key: as optax.tree.random_like splits it", _random_like),
    ("jax.random.key: folded with the number of the tensor", _by_number),
    ("jax.random.key: the same for every tensor", _itself),
)


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
    for way, derive in _WAYS:
        # Not compiled together with the draws, which all ways and all audits share.
        keys = [
            jax.vmap(lambda key, index=index, derive=derive: derive(key, index, count))(roots)
            for index, _, _, _ in leaves
        ]
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
