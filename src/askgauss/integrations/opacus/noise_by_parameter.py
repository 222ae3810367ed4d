"""Where noise goes in inside the backward pass, one parameter after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from askgauss.integrations.patched_method import StandIn

__all__ = ["NoiseByParameter"]


class NoiseByParameter:
    """Stands in where an optimizer adds noise to each parameter as soon as its sum is whole.

    One rank adds noise; the others only divide.

    Args:
        optimizer: The private optimizer.
        parameters: Those that are audited, in order.
        arrived: Called with a parameter's index before its noise.
        noisy: Called with its index after its noise.
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: list[nn.Parameter],
        arrived: Callable[[int], None],
        noisy: Callable[[int], None],
    ) -> None:
        self._index = {id(item): index for index, item in enumerate(parameters)}
        self._arrived, self._after = arrived, noisy
        self._noisy: set[int] = set()
        self._stand_ins = [
            StandIn(optimizer, "_add_noise_parameter", self._add_noise),
            StandIn(optimizer, "_scale_grad_parameter", self._scale),
        ]

    def put(self) -> None:
        """Take the methods' places."""
        for item in self._stand_ins:
            item.put()

    def remove(self) -> bool:
        """Put the methods back; whether nobody had wrapped them since."""
        removed = [item.remove() for item in self._stand_ins]
        return all(removed)

    def _add_noise(self, original: Callable[..., None], parameter: nn.Parameter) -> None:
        self._arrive(parameter)
        self._noisy.add(id(parameter))
        original(parameter)
        index = self._index.get(id(parameter))
        if index is not None:
            self._after(index)

    def _scale(self, original: Callable[..., None], parameter: nn.Parameter) -> None:
        if id(parameter) in self._noisy:
            self._noisy.discard(id(parameter))
        else:
            self._arrive(parameter)
        original(parameter)

    def _arrive(self, parameter: nn.Parameter) -> None:
        index = self._index.get(id(parameter))
        if index is not None:
            self._arrived(index)
