"""The noise of a tree, one prefix after another."""

from __future__ import annotations

from typing import Any

from askgauss import _validate
from askgauss.exceptions import UnsupportedError
from askgauss.mechanisms.noise_streams import Draw, NoiseStream
from askgauss.mechanisms.tree.estimates import node_weight
from askgauss.mechanisms.tree.shape import ESTIMATORS, Estimator, trailing_zeros, tree_length

__all__ = ["TreeNoise"]


class TreeNoise(NoiseStream):
    """The noise of one prefix after another, in memory logarithmic in the number of steps.

    Each step costs one draw (``plain``) or two on average (``honaker``).

    What is kept for each open node is the noise of the prefix that ends with it, not its own. A
    plain step is then one draw on top of the prefix before it; a Honaker merge averages two
    estimates of the same prefix, one through the parent's fresh draw and one through its children.
    There is nothing to subtract, so rounding does not build up over the run.

    Args:
        draw: Fresh noise of one node, see :data:`Draw` and :func:`numpy_draw`; already scaled to
            noise multiplier times clip norm.
        steps: Leaves in all, the number the privacy was accounted for.
        estimator: ``plain`` or ``honaker``; ``full`` needs the future, see :func:`prefixes`.
        restart_every: Start a new tree after so many leaves; finished trees stay in the noise.
        completion: Before a tree is left, fill it with empty leaves up to the next power of two
            and carry on from its root, which has less noise than a sum of several nodes. The nodes
            above the empty leaves are released too: account for them.

    Examples:
        >>> import numpy as np
        >>> from askgauss.mechanisms.noise_streams import numpy_draw
        >>> noise = TreeNoise(numpy_draw(np.random.default_rng(0), 2), steps=3)
        >>> first, second = noise.next(), noise.next()
        >>> first.shape, noise.step, noise.remaining
        ((2,), 2, 1)
    """

    _HELD = "stack"

    def __init__(
        self,
        draw: Draw,
        *,
        steps: int,
        estimator: Estimator = "plain",
        restart_every: int | None = None,
        completion: bool = False,
    ) -> None:
        self._period = tree_length(steps, restart_every, completion)
        _validate.one_of(ESTIMATORS, estimator=estimator)
        if estimator == "full":
            raise UnsupportedError(
                "The full estimator reads nodes of the future and cannot stream. Stream 'honaker', "
                "or keep the nodes (node_noise) and call prefixes(nodes, 'full') at the end."
            )
        plan = {
            "steps": int(steps),
            "estimator": str(estimator),
            "restart_every": None if restart_every is None else int(restart_every),
            "completion": bool(completion),
        }
        super().__init__(draw, steps=steps, plan=plan)

    def _advance(self) -> Any:
        count = self._step % self._period
        if self._step and not count:
            self._restart()
        self._push(count + 1)
        return self._held[-1]

    def _expected(self, step: int) -> int:
        finished = max(step - 1, 0) // self._period
        return (step - finished * self._period).bit_count() + (finished > 0)

    def _push(self, count: int) -> None:
        """Take in leaf number ``count`` of the present tree."""
        merges = trailing_zeros(count)
        if self._plan["estimator"] == "plain":
            self._drop(merges)
            self._held.append(self._above())
            return
        prefix = self._above()
        for level in range(1, merges + 1):
            self._drop(1)
            fresh = self._above(beside=prefix)
            fresh -= prefix
            fresh *= node_weight(level)
            fresh += prefix
            self._fresh.spare.append(prefix)
            prefix = fresh
        self._held.append(prefix)

    def _restart(self) -> None:
        """Keep the noise of the finished tree as the ground the next one stands on."""
        if self._plan["completion"] and self._period.bit_count() > 1:
            if self._plan["estimator"] == "plain":
                # The root is drawn at once: nothing else that the empty leaves complete is used.
                self._drop(self._period.bit_count())
                self._held.append(self._above())
            else:
                for count in range(self._period + 1, (1 << self._period.bit_length()) + 1):
                    self._push(count)
        ground = self._held.pop()
        self._drop(len(self._held))
        self._held.append(ground)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._fresh.spare.append(self._held.pop())

    def _above(self, beside: Any = None) -> Any:
        """A new draw on top of the prefix below it."""
        noise = self._fresh((*self._held, beside))
        if self._held:
            noise += self._held[-1]
        return noise
