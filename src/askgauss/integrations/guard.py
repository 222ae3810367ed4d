"""What goes wrong in an audit ends the recording, and never the training."""

from __future__ import annotations

import warnings
from types import TracebackType

from askgauss.exceptions import AskGaussError, AskGaussWarning, PrivacyAlarm

__all__ = ["CAUGHT", "Guard"]

# What can go wrong in our own code, in torch, or on a disk; interrupts and alarms go on their way.
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


class Guard:
    """A context around everything that an audit does inside a training step.

    Args:
        active: Whether to catch. Where several ranks call each other, an error has to reach all of
            them: a rank that stopped answering would leave the others waiting.

    Attributes:
        reason: Why the recording ended; empty while it goes on.
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
        """Record no more."""
        if not self.reason:
            self.reason = reason
            warnings.warn(
                f"The audit ended its recording, and the training goes on: {reason}",
                AskGaussWarning,
                stacklevel=3,
            )
