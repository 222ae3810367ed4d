"""Kill runs where they touch files, start them again, and compare what comes out.

A run is a child of this process, so that a hundred of them cost no hundred starts of Python. It
kills itself (SIGKILL: nothing is tidied up) at one of the moments when it opens, moves, cuts or
removes a file in its folder, before that happens; the moment is drawn from all there are.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.kills.runs import RUNS, RefusedError, Restarted

_EVENTS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.scandir"}
_DONE, _REFUSED, _FAILED = 0, 7, 9


@dataclass
class Outcome:
    """What became of one kind of run."""

    kills: int = 0
    lives: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def _watch_files(folder: Path, kill_at: int) -> list[int]:
    """Count what happens to files from here on, and die at one of these moments."""
    seen, place = [0], str(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not str(arguments[0]).startswith(place):
            return
        seen[0] += 1
        if seen[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def start(run: Restarted, folder: Path, kill_at: int = 0) -> tuple[int, int]:
    """Run in a child; its exit code (negative if killed), and how often it touched a file."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code, seen = _FAILED, [0]
        try:
            seen = _watch_files(folder, kill_at)
            run.run(folder)
            code = _DONE
        except RefusedError:
            code = _REFUSED
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os.write(write, str(seen[0]).encode())
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as stream:
        touched = stream.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), int(touched or 0)


def kill_again_and_again(name: str, kills: int, seed: int) -> Outcome:
    """Lives of one kind of run, each killed up to three times, until there were so many kills."""
    run, outcome = RUNS[name], Outcome()
    generator = np.random.default_rng([seed, *name.encode()])
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place).resolve() / "whole"
        whole.mkdir()
        code, moments = start(run, whole)
        if code != _DONE or moments < 5:
            outcome.failures.append(f"{name}: it does not run: {code}, {moments} moments")
            return outcome
        truth = run.said(whole)
        life = 0
        while outcome.kills < kills:
            life += 1
            folder = Path(place).resolve() / f"life {life}"
            folder.mkdir()
            code = _live(run, folder, outcome, generator, moments, kills)
            verdict = _judge(run, folder, code, truth)
            outcome.lives[verdict] += 1
            if verdict not in ("as if never killed", "refused"):
                outcome.failures.append(f"{name}, life {life}: {verdict}")
    return outcome


def _live(
    run: Restarted,
    folder: Path,
    outcome: Outcome,
    generator: np.random.Generator,
    moments: int,
    kills: int,
) -> int:
    """One life: killed up to three times, then left to end."""
    for _ in range(int(generator.integers(1, 4))):
        if outcome.kills == kills:
            break
        code, _ = start(run, folder, int(generator.integers(1, moments + 1)))
        if code != -signal.SIGKILL:
            return code
        outcome.kills += 1
    return start(run, folder)[0]


def _judge(run: Restarted, folder: Path, code: int, truth: Any) -> str:
    if code == _REFUSED:
        return "refused" if run.may_refuse else "refused what belongs together"
    if code != _DONE:
        return f"ended with {code}"
    try:
        return "as if never killed" if run.said(folder) == truth else "another answer"
    except RefusedError:
        return "refused" if run.may_refuse else "refused what belongs together"
