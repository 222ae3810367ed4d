"""From a seed to the noise of a tensor, the ways JAX's privacy libraries go."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from askgauss.checks.predictable_noise import (
    FEWEST,
    Candidates,
    likely_seeds,
    numpy_candidates,
    try_seeds,
)
from askgauss.recording.facts import SeedProbe

__all__ = ["probe_seeds"]

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
