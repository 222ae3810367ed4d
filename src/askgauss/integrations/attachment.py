"""What an audit changes in a training while it is attached, and how each change is undone."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, overload

from askgauss.exceptions import AskGaussError, AskGaussWarning, PrivacyAlarm

__all__ = ["CAUGHT", "Attachment", "Guard", "Leaving", "PatchedMethod", "SharedPatch"]

# What can go wrong in our own code, in torch, or on a disk; interrupts and alarms are passed on.
CAUGHT = (
    AskGaussError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class PatchedMethod:
    """Replaces a method of one object; a wrapper that is added meanwhile stays and passes on.

    Args:
        owner: The object.
        name: The method.
        call: Called instead, with the original method and its arguments.
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
        """Replace the method."""
        self._active = True
        setattr(self._owner, self._name, self.__call__)

    def remove(self) -> bool:
        """Restore the method, unless it is restored; whether nothing had wrapped it since."""
        self._active = False
        now = vars(self._owner).get(self._name)
        if now == self.__call__:
            if self._previous is None:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._previous)
            return True
        return now is self._previous


class SharedPatch:
    """Replaces a function of a class or module while anyone listens; then it is as it was.

    Args:
        owner: The class or module; one that has no such function is left alone.
        name: The function.
        call: Called instead, with the original function and its arguments.

    Attributes:
        listeners: Who listens, and for what object; weakly held.
    """

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._original = original = getattr(owner, name, None)
        self._previous = vars(owner).get(name)
        self.listeners: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

        def replaced(*arguments: Any, **options: Any) -> Any:
            return call(original, *arguments, **options)

        self._replaced = replaced if original is None else functools.wraps(original)(replaced)

    def add(self, key: Any, listener: Any = None) -> None:
        """Begin to listen."""
        if self._original is None:
            return
        first = not self.listeners
        self.listeners[key] = listener
        if first:
            setattr(self._owner, self._name, self._replaced)

    def remove(self, key: Any) -> None:
        """Stop."""
        self.listeners.pop(key, None)
        if self.listeners or vars(self._owner).get(self._name) is not self._replaced:
            return
        if self._previous is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._previous)


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

    def patch(self, method: PatchedMethod) -> None:
        """Replace a method."""
        self.undo(method.remove)
        method.put()


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
        # ExitStack looks it up on the class, and passes the object later.
        return _leave if owner is None else owner._attachment.__exit__


def _leave(owner: _Attached, *reason: Any) -> Any:
    return owner._attachment.__exit__(*reason)


class Guard:
    """A context around everything that an audit does inside a training step.

    What goes wrong in the audit ends the recording, and never the training.

    Args:
        active: Whether to catch. Where several ranks call each other, an error has to reach all of
            them: a rank that stopped answering would leave the others waiting.

    Attributes:
        reason: Why the recording ended; empty while it continues.
    """

    def __init__(self, *, active: bool = True) -> None:
        self._active = active
        self.reason = ""

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        caught = isinstance(error, CAUGHT) and not isinstance(error, PrivacyAlarm)
        if not caught or not self._active:
            return False
        said = str(error)
        self.end(said if isinstance(error, AskGaussError) else f"{type(error).__name__}: {said}")
        return True

    def end(self, reason: str) -> None:
        """End the recording."""
        if not self.reason:
            self.reason = reason
            warnings.warn(
                f"The audit ended its recording, and the training goes on: {reason}",
                AskGaussWarning,
                stacklevel=3,
            )
