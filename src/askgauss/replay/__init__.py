"""Paired replay: the same training on neighbouring datasets with the same randomness.

No statistics and no canaries: releases that differ where they may not, weights and buffers that
change without a release, values that go public without noise, decisions and errors that depend on
one record. One step often suffices. ``askgauss.replay(train, data, leave_out=17)`` is `replay`.
"""

import sys
import types
from typing import Any

from askgauss.replay.replay_recording import Replay
from askgauss.replay.replay_report import Difference, ReplayReport, join
from askgauss.replay.replay_running import replay

__all__ = ["Difference", "Replay", "ReplayReport", "join", "replay"]


class _CallableModule(types.ModuleType):
    """This module, which may be called: it bears the name of its one function."""

    def __call__(self, *arguments: Any, **named: Any) -> ReplayReport:
        return replay(*arguments, **named)


# Importing this package puts it where `askgauss.replay` the function is looked for.
sys.modules[__name__].__class__ = _CallableModule
