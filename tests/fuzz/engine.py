"""Give readers damaged files, and judge what they make of them."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from askgauss.exceptions import AskGaussError
from tests.fuzz import mutations
from tests.fuzz.subjects import Subject, is_json

# An input that keeps a reader busy for longer has found something; busy, and not waiting its turn.
SECONDS = 60


class TooSlowError(Exception):
    """A reader did not come back."""


@dataclass
class Outcome:
    """What became of the inputs of one subject."""

    name: str
    single: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return sum(self.counts.values())

    def __str__(self) -> str:
        shown = ", ".join(f"{self.counts[key]} {key}" for key in sorted(self.counts))
        return f"{self.name:28} {self.inputs:7} inputs: {shown}"


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise where something takes too long, on systems that can."""
    if not hasattr(signal, "SIGPROF"):
        yield
        return

    def stop(*_: Any) -> None:
        raise TooSlowError(f"after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def mutated(subject: Subject, number: int) -> tuple[bytes, bool]:
    """An input by its number, and whether its checksums and digests may be in order."""
    seed = [number, *subject.name.encode()]
    generator = np.random.default_rng(seed)
    if subject.forgeries and generator.random() < 0.4:
        forgery = subject.forgeries[generator.integers(len(subject.forgeries))]
        return forgery(subject.content, generator), True
    if is_json(subject) and generator.random() < 0.4:
        return mutations.edit_json(subject.content, generator), False
    content = subject.content
    for _ in range(1 if generator.random() < 0.7 else int(generator.integers(2, 5))):
        content = mutations.DAMAGE[generator.integers(len(mutations.DAMAGE))](content, generator)
        if not content:
            break
    return content, False


def judge(subject: Subject, truth: Any, content: bytes, forged: bool, outcome: Outcome) -> None:
    """Read one input; anything but a typed error or a right answer is a failure."""
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = subject.read(content)
    except AskGaussError:
        outcome.counts["refused"] += 1
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        outcome.counts["raw exceptions"] += 1
        last = traceback.format_exc(limit=-8)
        outcome.failures.append(f"{subject.name}: {type(error).__name__}: {error}\n{last}")
    else:
        if answer == truth:
            outcome.counts["same answer"] += 1
        elif forged or not subject.protected:
            outcome.counts["another answer"] += 1
        else:
            outcome.counts["believed"] += 1
            outcome.failures.append(f"{subject.name}: damage was taken for content")


def fuzz(subject: Subject, numbers: range, *, keep: Any = None, note: Any = None) -> Outcome:
    """Judge inputs by their numbers.

    Args:
        subject: What is read.
        numbers: Which inputs.
        keep: Told each number before its input is read.
        note: Told each failure as it occurs.
    """
    outcome, truth = Outcome(subject.name), _truth(subject)
    for number in numbers:
        content, forged = mutated(subject, number)
        if keep is not None:
            keep(str(number))
        before = len(outcome.failures)
        judge(subject, truth, content, forged, outcome)
        if len(outcome.failures) > before:
            outcome.failures[-1] = f"[{number}] {outcome.failures[-1]}"
            if note is not None:
                note(outcome.failures[-1])
    return outcome


def every_byte(subject: Subject, changes: int, *, note: Any = None) -> Outcome:
    """Judge a file with each of its bytes changed in turn, in so many ways."""
    outcome, truth = Outcome(f"{subject.name}, every byte", single=True), _truth(subject)
    for place in range(len(subject.content)):
        # A bit, then all of them, then the other bits.
        bits = [1 << (place + 3 * turn) % 8 for turn in range(8)]
        ways = [bits[0], 0xFF, *bits[1:]]
        for way in ways[:changes]:
            content = bytearray(subject.content)
            content[place] ^= way
            before = len(outcome.failures)
            judge(subject, truth, bytes(content), False, outcome)
            if len(outcome.failures) > before:
                outcome.failures[-1] = f"[byte {place} ^ {way}] {outcome.failures[-1]}"
                if note is not None:
                    note(outcome.failures[-1])
    return outcome


def _truth(subject: Subject) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return subject.read(subject.content)


def limit_memory(more: int) -> None:
    """Let this process map so much more memory than it has, on systems that can."""
    with suppress(ImportError):
        import resource

        with open("/proc/self/statm") as stream:  # noqa: PTH123
            used = int(stream.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def peak_memory() -> float:
    """Largest resident size so far, in GB; nan where the system does not say."""
    try:
        import resource
    except ImportError:
        return float("nan")
    scale = 1.0 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9
