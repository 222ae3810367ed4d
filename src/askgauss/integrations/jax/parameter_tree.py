"""The tree of a model's parameters: names, shapes, and whether another tree is like it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from askgauss.exceptions import InvalidArgumentError

__all__ = ["ParameterTree"]


class ParameterTree:
    """What is kept of a tree of parameters; values are not.

    Attributes:
        names: Where each leaf is.
        shapes: Its shape.
        dtypes: Its number format.

    Raises:
        InvalidArgumentError: A leaf does not hold floating-point numbers.
    """

    def __init__(self, params: Any) -> None:
        paths, structure = jax.tree_util.tree_flatten_with_path(params)
        self._structure: Any = structure
        self.names = tuple(
            jax.tree_util.keystr(path, simple=True, separator=".") or "all" for path, _ in paths
        )
        self.shapes = tuple(tuple(np.shape(leaf)) for _, leaf in paths)
        self.dtypes = tuple(jnp.result_type(leaf) for _, leaf in paths)
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            if not jnp.issubdtype(dtype, jnp.floating):
                raise InvalidArgumentError(
                    f"Expected params to hold floating-point arrays, got {dtype} in {name}. Leave "
                    "out what is not trained: optax.masked() the transformation, or split the tree."
                )

    def stand_ins(self) -> tuple[Any, ...]:
        """Arrays of the same shapes that take no memory: views of one zero."""
        return tuple(np.broadcast_to(np.zeros((), np.float32), shape) for shape in self.shapes)

    def rebuilt(self, leaves: Any) -> Any:
        """A tree of this structure."""
        return jax.tree.unflatten(self._structure, leaves)

    def alike(self, tree: Any) -> bool:
        """Whether a tree has this structure, whatever its shapes."""
        structure: Any = jax.tree.structure(tree)
        return bool(structure == self._structure)

    def leaves(self, tree: Any) -> tuple[tuple[Any, ...], int | None]:
        """The leaves of a tree of this structure and these shapes.

        Returns:
            The leaves; and how many examples there are, where each has an axis of them in front.

        Raises:
            InvalidArgumentError: The tree is another.
        """
        found, structure = jax.tree.flatten(tree)
        shapes = tuple(tuple(np.shape(leaf)) for leaf in found)
        if structure != self._structure:
            changed = f"it had {len(self.names)} leaves, {self._structure}, and is {structure} now"
        elif shapes == self.shapes:
            return tuple(found), None
        else:
            batches = {shape[:1] for shape in shapes}
            rest = tuple(shape[1:] for shape in shapes)
            if rest == self.shapes and len(batches) == 1 and batches != {()}:
                return tuple(found), int(batches.pop()[0])
            index = next(i for i, shape in enumerate(shapes) if shape != self.shapes[i])
            changed = f"{self.names[index]} was {self.shapes[index]}, and is {shapes[index]} now"
        raise InvalidArgumentError(
            f"Expected the tree of the parameters that the audit was made for: {changed}. Make a "
            "new Audit with the very tree that the transformation is handed."
        )
