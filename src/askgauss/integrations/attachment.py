"""What an audit changes in a training while it is attached, and how each change is undone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, overload

from askgauss.integrations.patched_method import StandIn

__all__ = ["Attachment", "Leaving"]


class Attachment(contextlib.ExitStack):
    """Every change is registered with its undo before it is made, and undone in reverse order.

    An interrupt may come at any line. Before a change, its undo has nothing to do; after it, the
    undo is there. Every undo runs, whatever the others raise.
    """

    def undo(self, call: Callable[[], object]) -> None:
        """Register an undo, before its change is made.

        It runs twice, so that one of the two is whole if an interrupt ends the other. It must do
        nothing where there is nothing to undo.
        """
        self.callback(call)
        self.callback(call)

    def hook(self, register: Callable[[Any], Any], call: Callable[..., Any]) -> None:
        """Register a hook with a torch object."""
        hook = _Hook(call)
        self.undo(hook.remove)
        hook.handle = register(hook)

    def stand_in(self, stand_in: StandIn) -> None:
        """Let something stand in for a method."""
        self.undo(stand_in.remove)
        stand_in.put()


class _Hook:
    """A hook that calls nothing once it is removed, even where its owner still has it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call: Callable[..., Any] | None = call
        self.handle: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return None if self._call is None else self._call(*arguments, **options)

    def remove(self) -> None:
        self._call = None
        if self.handle is not None:
            self.handle.remove()


class _Attached(Protocol):
    _attachment: Attachment


class Leaving:
    """``__exit__`` of an object with an `Attachment`: the attachment's own.

    A ``with`` statement looks it up as it begins. So no line of ours comes between the end of the
    block and the attachment, in which an interrupt would leave everything attached.
    """

    @overload
    def __get__(self, owner: None, kind: type) -> Callable[..., None]: ...
    @overload
    def __get__(self, owner: _Attached, kind: type) -> Callable[..., None]: ...
    def __get__(self, owner: _Attached | None, kind: type) -> Callable[..., Any]:
        # Whoever asks the class, as ExitStack does, hands the object over later.
        return _leave if owner is None else owner._attachment.__exit__


def _leave(owner: _Attached, *reason: Any) -> Any:
    return owner._attachment.__exit__(*reason)
