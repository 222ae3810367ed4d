"""Where canaries meet a framework: planted in, and read from, any nesting of arrays.

The seam knows no framework. A tree is any nesting of dictionaries, lists, tuples, named tuples and
dataclasses whose leaves are arrays of numpy, torch or JAX; `plant` and `read` are pure functions of
it, so that they can stand inside ``jax.jit`` as well as in a loop.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import BlockCanaries, PlacedCanaries
from askgauss.exceptions import InvalidArgumentError

__all__ = ["Layout", "Seam", "leaves"]

_NOWHERE = np.zeros(0, dtype=np.int64)


class Layout:
    """Where the canaries lie in a list of tensors, laid out once for fast access.

    Args:
        sizes: Numbers of entries of the tensors, in the order of the canaries' flat vector.
        canaries: Who is planted where.

    Attributes:
        read_places: For every tensor that holds any, its index and the positions to read in it.
        columns: Where each canary's coordinates come in what was read.
        watch_columns: Where the watched coordinates come in it.
        plant_places: As ``read_places``, of the present canaries alone.
        ranks: Where a present canary's coordinates come among all that may be planted; -1 where
            it is absent.
    """

    def __init__(self, sizes: NDArray[np.int64], canaries: PlacedCanaries) -> None:
        self.edges = np.concatenate([[0], np.cumsum(sizes)])
        # One coordinate a canary, or one row of them.
        self.owned = canaries.coordinates
        self.signs = canaries.signs if isinstance(canaries, BlockCanaries) else None
        columns, self.read_places = self._lay_out(
            np.concatenate([self.owned.ravel(), canaries.watch])
        )
        self.columns = columns[: self.owned.size].reshape(self.owned.shape)
        self.watch_columns = columns[self.owned.size :]
        present = np.flatnonzero(canaries.member)
        ranks, self.plant_places = self._lay_out(self.owned[present].ravel())
        self.ranks = np.full(self.owned.shape, -1)
        self.ranks[present] = ranks.reshape(self.owned[present].shape)
        self.plantable = int(ranks.size)

    def _lay_out(
        self, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[tuple[int, NDArray[np.int64]]]]:
        """Flat coordinates sorted by tensor: the rank of each, and the tensors' positions."""
        order = np.argsort(places)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(order.size)
        bounds = np.searchsorted(places[order], self.edges)
        return ranks, [
            (index, places[order[start:stop]] - self.edges[index])
            for index, (start, stop) in enumerate(itertools.pairwise(bounds))
            if stop > start
        ]

    @property
    def width(self) -> int:
        """Number of coordinates of one canary."""
        return 1 if self.signs is None else int(self.signs.shape[1])

    def along(self, values: Any) -> Any:
        """What was read, as a flat array, says about each canary."""
        if self.signs is None:
            return values[self.columns]
        return (values[self.columns] * self.signs).sum(axis=1) / np.sqrt(self.width)

    def watched(self, values: Any) -> Any:
        """What was read, as a flat array, at the watched coordinates."""
        return values[self.watch_columns]


class Seam:
    """Canaries in a tree of arrays: a pair of pure functions, `plant` and `read`.

    Args:
        tree: The arrays canaries are planted in, such as a model's parameters or their gradient.
            Only shapes are kept of it.
        canaries: Makes the canaries, given the sizes of the leaves in order; such as
            ``lambda sizes: DiracCanaries(present=100, absent=900, tensors=sizes, seed=0)``. Those
            over one flat vector of all leaves will do.

    Raises:
        InvalidArgumentError: The tree holds no floating-point array, or something that is none.

    Examples:
        >>> import numpy as np, askgauss as ag
        >>> gradient = {"layer": {"bias": np.zeros(5), "weight": np.zeros((5, 4))}}
        >>> seam = Seam(gradient, lambda sizes: ag.DiracCanaries(
        ...     present=3, absent=3, tensors=sizes, seed=0))
        >>> seam.names
        ('layer.bias', 'layer.weight')
        >>> planted = seam.plant(gradient, seam.canaries.member, clip_norm=2.0)
        >>> float(sum(leaf.sum() for _, leaf in leaves(planted)))
        6.0
        >>> seam.along(seam.read(planted))[seam.canaries.member]
        array([2., 2., 2.])
    """

    def __init__(self, tree: Any, canaries: Callable[[tuple[int, ...]], PlacedCanaries]) -> None:
        found = list(leaves(tree))
        if not found:
            raise InvalidArgumentError(
                f"Expected tree to hold arrays, got {type(tree).__name__} without any. Pass the "
                "parameters, or their gradient."
            )
        self.names = tuple(name for name, _ in found)
        self._shapes = tuple(tuple(leaf.shape) for _, leaf in found)
        for name, leaf in found:
            if not _floating(leaf):
                raise InvalidArgumentError(
                    f"Expected every leaf to hold floating-point numbers, got {leaf.dtype} in "
                    f"{name}. Leave out what is not trained."
                )
        sizes = tuple(int(np.prod(shape)) for shape in self._shapes)
        self.canaries = canaries(sizes)
        if self.canaries.tensor_sizes not in (sizes, (sum(sizes),)):
            raise InvalidArgumentError(
                f"Expected canaries for tensors of sizes {sizes}, got "
                f"{self.canaries.tensor_sizes}. Make them from the sizes they are handed."
            )
        self.layout = Layout(np.array(sizes, dtype=np.int64), self.canaries)
        self._places = dict(self.layout.read_places)
        # Which canary, and which of its coordinates, goes to each place that may be planted.
        owner = np.zeros(self.layout.plantable, dtype=np.int64)
        sign = np.ones(self.layout.plantable)
        present = np.flatnonzero(self.canaries.member)
        ranks = self.layout.ranks[present].reshape(present.size, self.layout.width)
        owner[ranks] = present[:, None]
        if self.layout.signs is not None:
            sign[ranks] = self.layout.signs[present]
        self._owner, self._height = owner, sign / np.sqrt(self.layout.width)

    def plant(self, tree: Any, mask: Any, *, clip_norm: float = 1.0) -> Any:
        """The tree with canaries added; what was given is left as it was.

        Args:
            tree: Arrays of the shapes the seam was made for.
            mask: One entry a canary, true where it is planted now; those of absent canaries do
                not count. It may be traced by JAX.
            clip_norm: Norm of one planted canary.
        """
        held = self._checked(tree)
        heights = mask[self._owner] * (clip_norm * self._height)
        start = 0
        for index, places in self.layout.plant_places:
            part = heights[start : start + places.size]
            held[index] = _added(held[index], places, part)
            start += places.size
        rest = iter(held)
        return _rebuilt(tree, rest)

    def read(self, tree: Any) -> Any:
        """What the tree holds at every canary's and every watched coordinate, as one flat array.

        It stays on the device of the leaves; `along` and `watched` tell it apart.
        """
        held = self._checked(tree)
        return _joined([_taken(held[index], places) for index, places in self.layout.read_places])

    def read_leaf(self, index: int, leaf: Any) -> Any:
        """What one leaf holds there: its part of `read`, where leaves come one at a time."""
        return _taken(leaf, self._places.get(index, _NOWHERE))

    @staticmethod
    def joined(parts: list[Any]) -> Any:
        """What `read_leaf` gave of every leaf, in their order, as `read` gives it."""
        return _joined(parts)

    def along(self, values: Any) -> Any:
        """What was read says about each canary."""
        return self.layout.along(values)

    def watched(self, values: Any) -> Any:
        """What was read at the coordinates that are never planted."""
        return self.layout.watched(values)

    def _checked(self, tree: Any) -> list[Any]:
        found = list(leaves(tree))
        names = tuple(name for name, _ in found)
        shapes = tuple(tuple(leaf.shape) for _, leaf in found)
        if names != self.names or shapes != self._shapes:
            raise InvalidArgumentError(_difference(self.names, self._shapes, names, shapes))
        return [leaf for _, leaf in found]


def _difference(
    names: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    other_names: tuple[str, ...],
    other_shapes: tuple[tuple[int, ...], ...],
) -> str:
    """What is not as it was, in words."""
    expected, got = (
        dict(zip(names, shapes, strict=True)),
        dict(zip(other_names, other_shapes, strict=True)),
    )
    name = next(
        (item for item in (*names, *other_names) if expected.get(item) != got.get(item)), names[0]
    )
    return (
        f"Expected the tree to keep its shape: {name} was {expected.get(name, 'not there')} when "
        f"the seam was made, and is {got.get(name, 'not there')} now. Make a new audit for another "
        "model."
    )


# --- trees ---------------------------------------------------------------------------------------


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every array in a tree with the path to it; None counts as an empty branch.

    Keys of dictionaries go in their order when sorted, as JAX has them.
    """
    if tree is None:
        return
    children = _children(tree)
    if children is not None:
        for key, child in children:
            yield from leaves(child, f"{name}.{key}" if name else key)
    elif hasattr(tree, "shape") and hasattr(tree, "dtype"):
        yield name or "all", tree
    else:
        raise InvalidArgumentError(
            f"Expected arrays at the ends of the tree, got {type(tree).__name__} at "
            f"{name or 'its root'}."
        )


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    if isinstance(tree, Mapping):
        return [(str(key), tree[key]) for key in sorted(tree, key=str)]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return [(name, getattr(tree, name)) for name in tree._fields]
    if isinstance(tree, (list, tuple)):
        return [(str(index), child) for index, child in enumerate(tree)]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(item.name, getattr(tree, item.name)) for item in dataclasses.fields(tree)]
    return None


def _rebuilt(tree: Any, rest: Iterator[Any]) -> Any:
    """A tree of the same structure with other leaves, taken in order."""
    if tree is None:
        return None
    children = _children(tree)
    if children is None:
        return next(rest)
    made = {key: _rebuilt(child, rest) for key, child in children}
    if isinstance(tree, Mapping):
        ordered = {key: made[str(key)] for key in tree}
        return ordered if type(tree) is dict else type(tree)(ordered)  # type: ignore[call-arg]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(**made)
    if isinstance(tree, (list, tuple)):
        return type(tree)(made.values())
    return dataclasses.replace(tree, **made)


# --- arrays of three frameworks ------------------------------------------------------------------


def _floating(leaf: Any) -> bool:
    return "float" in str(leaf.dtype)


def _is_torch(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] == "torch"


def _by_axis(leaf: Any, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.unravel_index(places, leaf.shape))


def _taken(leaf: Any, places: NDArray[np.int64]) -> Any:
    if _is_torch(leaf):
        import torch

        return leaf.detach().take(torch.from_numpy(places).to(leaf.device))
    # By the leaf's own axes: flat, an array that is spread over devices would be gathered first.
    return leaf[_by_axis(leaf, places)] if leaf.ndim > 1 else leaf.reshape(-1)[places]


def _added(leaf: Any, places: NDArray[np.int64], values: Any) -> Any:
    if _is_torch(leaf):
        import torch

        amount = torch.as_tensor(values).to(leaf.device, leaf.dtype)
        index = torch.from_numpy(places).to(leaf.device)
        return leaf.detach().clone().put_(index, amount, accumulate=True)
    if hasattr(leaf, "at"):
        more = values.astype(leaf.dtype)
        # A number by itself has no axis to count along.
        return leaf.at[_by_axis(leaf, places)].add(more) if leaf.ndim else leaf + more[0]
    changed = np.array(leaf)
    # Distinct coordinates: nothing is lost by adding them together.
    changed.reshape(-1)[places] += np.asarray(values, dtype=changed.dtype)
    return changed


def _joined(parts: list[Any]) -> Any:
    if _is_torch(parts[0]):
        import torch

        first = parts[0].device
        wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else None
        return torch.cat([part.to(first, wide or torch.float32) for part in parts])
    if hasattr(parts[0], "at"):
        import jax.numpy as jnp

        return jnp.concatenate(parts)
    return np.concatenate(parts)
