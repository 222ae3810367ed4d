"""Canaries as examples: gradients far above the clip norm, sent through the user's own clipping."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from askgauss.canaries import DiracCanaries
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.integrations.jax.parameter_tree import ParameterTree
from askgauss.recording.injection import Seam

__all__ = ["CanaryLoss", "PlantedRows"]

# A canary's gradient before clipping, in clip norms.
_FAR = 10.0


@jax.tree_util.register_pytree_node_class
class CanaryRows:
    """Stands where a batch stands: the canary of each row, -1 in rows that hold none."""

    def __init__(self, canary: Any) -> None:
        self.canary = canary

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.canary,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> CanaryRows:
        return cls(*children)


class CanaryLoss:
    """A loss that is the user's for his batches, and linear in one parameter for a canary's row."""

    def __init__(self, function: Callable[..., Any], seam: Seam, clip_norm: float) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._places = _Places(seam, clip_norm)
        self.met = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's function; canary rows among the arguments go through it too."""
        rows = [item for item in (*args, *kwargs.values()) if isinstance(item, CanaryRows)]
        if not rows:
            return self._function(*args, **kwargs)
        self.met = True
        return self._places.loss(jax.tree.leaves(args[0]), jnp.ravel(rows[0].canary)[0])

    @property
    def arguments(self) -> int:
        """How many arguments the loss needs, the parameters among them."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [
            item
            for item in inspect.signature(self._function).parameters.values()
            if item.kind in kinds and item.default is inspect.Parameter.empty
        ]
        return len(needed)


class _Places:
    """Which parameter each canary is the gradient of."""

    def __init__(self, seam: Seam, clip_norm: float) -> None:
        if not isinstance(seam.canaries, DiracCanaries):
            raise UnsupportedError(
                "Expected DiracCanaries to send through clipping, got "
                f"{type(seam.canaries).__name__}: one coordinate a canary is what a row holds."
            )
        edges, coordinates = seam.layout.edges, seam.canaries.coordinates
        self.tensor = np.searchsorted(edges, coordinates, side="right") - 1
        self.place = coordinates - edges[self.tensor]
        self.height = _FAR * clip_norm

    def loss(self, leaves: list[Any], canary: Any) -> Any:
        tensor, place = jnp.asarray(self.tensor)[canary], jnp.asarray(self.place)[canary]
        total = jnp.zeros(())
        for index, leaf in enumerate(leaves):
            value = leaf.reshape(-1)[jnp.where(tensor == index, place, 0)]
            total = total + jnp.where(tensor == index, value, 0.0).astype(jnp.float32)
        return jnp.where(canary >= 0, self.height * total, 0.0)


class PlantedRows:
    """The rows of a step: as many as any step plants, the rest empty.

    Args:
        seam: Where the canaries lie.
        clip_norm: The clip norm.
        planted: Who is planted, one row a step and one column a present canary.
    """

    def __init__(self, seam: Seam, clip_norm: float, planted: NDArray[np.bool_]) -> None:
        self._places = _Places(seam, clip_norm)
        self._present = np.flatnonzero(seam.canaries.member)
        self.count = int(planted.sum(axis=1).max(initial=0))

    def canary(self, drawn: Any) -> Any:
        """The canary of each row, -1 in empty ones."""
        (places,) = jnp.nonzero(drawn, size=self.count, fill_value=self._present.size)
        return jnp.append(jnp.asarray(self._present), -1)[places]

    def examples(self, leaves: tuple[Any, ...], drawn: Any) -> list[Any]:
        """The rows as gradients by example, to append to those of a batch."""
        canary = self.canary(drawn)
        tensor = jnp.asarray(self._places.tensor)[canary]
        place = jnp.asarray(self._places.place)[canary]
        rows = []
        for index, leaf in enumerate(leaves):
            flat = jnp.zeros((self.count, int(np.prod(leaf.shape[1:]))), leaf.dtype)
            height = jnp.where((tensor == index) & (canary >= 0), self._places.height, 0.0)
            places = jnp.where(tensor == index, place, 0)
            flat = flat.at[jnp.arange(self.count), places].add(height.astype(leaf.dtype))
            rows.append(flat.reshape(self.count, *leaf.shape[1:]))
        return rows

    def sums(
        self,
        clipped_grad: Callable[..., Any],
        loss: CanaryLoss,
        leaves: tuple[Any, ...],
        tree: ParameterTree,
        drawn: Any,
    ) -> tuple[Any, ...]:
        """What the user's own clipping makes of the rows."""
        if not self.count:
            return tuple(jnp.zeros_like(leaf) for leaf in leaves)
        canary = self.canary(drawn)
        # The gradient is the same wherever it is taken.
        params = tree.rebuilt([jnp.zeros_like(leaf) for leaf in leaves])
        others = [CanaryRows(canary)] * (loss.arguments - 1)
        total = clipped_grad(params, *others, is_padding_example=canary < 0)
        if not loss.met:
            raise InvalidArgumentError(
                "Expected clipped_grad to be made of the audit's loss: "
                "jax_privacy.clipped_grad(audit.loss(loss), ...)."
            )
        # Losses and norms by example come behind the sum.
        total = total if tree.alike(total) else total[0]
        return tuple(
            more.astype(leaf.dtype)
            for more, leaf in zip(jax.tree.leaves(total), leaves, strict=True)
        )
