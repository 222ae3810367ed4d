"""One method of one object, replaced for a while and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["StandIn"]


class StandIn:
    """Stands in for a method of an object; who wrapped it meanwhile keeps it, and it passes on.

    Args:
        owner: The object.
        name: The method.
        call: Called instead, with the method it stands in for and its arguments.
    """

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name, self._call = owner, name, call
        self._previous = vars(owner).get(name)
        self.original: Callable[..., Any] = getattr(owner, name)
        self._active = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the owner's callers reach."""
        if not self._active:
            return self.original(*arguments, **options)
        return self._call(self.original, *arguments, **options)

    def put(self) -> None:
        """Take the method's place."""
        self._active = True
        setattr(self._owner, self._name, self.__call__)

    def remove(self) -> bool:
        """Put the method back, if it is not back; whether nobody had wrapped it since."""
        self._active = False
        now = vars(self._owner).get(self._name)
        if now == self.__call__:
            if self._previous is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._previous)
            return True
        return now is self._previous
