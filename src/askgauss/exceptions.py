"""Everything askgauss raises on purpose, and its warnings.

::

    AskGaussError
    ├── InvalidArgumentError (also ValueError)   an argument is outside its range
    ├── ScoresError          (also ValueError)   the canary scores cannot be audited as they are
    │   └── ScoreDirectionError                  present canaries score below absent ones
    ├── FileFormatError      (also ValueError)   a file is corrupt, foreign or of a newer schema
    ├── NotDefinedError                          this method does not answer this question
    ├── UnsupportedError                         this cannot be audited the way it was asked
    ├── RecordingError                           a recorder was used out of order or lost its run
    ├── MechanismError                           a mechanism under audit failed to give its outputs
    ├── ReplayError                              a training cannot be replayed as it is
    │   └── NotDeterministicError                two runs on the same data differ
    ├── PrivacyAlarm                             a monitor found that the claim cannot be right
    └── MissingExtraError    (also ImportError)  an optional dependency is not installed

    AskGaussWarning          (UserWarning)
    └── UnprotectedFileWarning                   the digest that belongs beside a file is missing
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AskGaussError",
    "AskGaussWarning",
    "FileFormatError",
    "InvalidArgumentError",
    "MechanismError",
    "MissingExtraError",
    "NotDefinedError",
    "NotDeterministicError",
    "PrivacyAlarm",
    "RecordingError",
    "ReplayError",
    "ScoreDirectionError",
    "ScoresError",
    "UnprotectedFileWarning",
    "UnsupportedError",
]


class AskGaussError(Exception):
    """Base of every error askgauss raises on purpose."""


class InvalidArgumentError(AskGaussError, ValueError):
    """An argument is outside its range; the message names it, its value and the range."""


class ScoresError(AskGaussError, ValueError):
    """The canary scores cannot be audited as they are."""


class ScoreDirectionError(ScoresError):
    """Present canaries score below absent ones: the sign of the score is likely reversed."""


class FileFormatError(AskGaussError, ValueError):
    """A file is corrupt, foreign, or written by a newer askgauss."""


class NotDefinedError(AskGaussError):
    """The method does not define an answer to this question."""


class UnsupportedError(AskGaussError):
    """What was asked cannot be audited this way; the message says which way can."""


class RecordingError(AskGaussError):
    """A recorder was used out of order, or a checkpoint belongs to another run."""


class MechanismError(AskGaussError):
    """A mechanism under audit raised, or gave outputs that cannot be laid out as asked."""


class ReplayError(AskGaussError):
    """A training cannot be replayed on neighbouring data as it is; the message says why."""


class NotDeterministicError(ReplayError):
    """Two runs of a training on the same data and with the same coins differ."""


class PrivacyAlarm(AskGaussError):  # noqa: N818  (an alarm, where nothing failed but the run)
    """A monitor found that a run's claim cannot be right.

    Attributes:
        alarm: The `askgauss.monitor.Alarm`: step, cause, evidence and implied epsilon.
    """

    def __init__(self, message: str, alarm: Any = None) -> None:
        super().__init__(message)
        self.alarm = alarm


class MissingExtraError(AskGaussError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


class AskGaussWarning(UserWarning):
    """Something the user should know that does not stop the audit."""


class UnprotectedFileWarning(AskGaussWarning):
    """The SHA-256 that belongs beside a file is missing: damage to the file may go unnoticed."""
