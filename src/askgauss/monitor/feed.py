"""What a monitor publishes: alarms, the course of a run, and the file that others follow.

The file, ``watch.json``, holds aggregates only: nothing of a single canary, and no seed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from askgauss import __version__, accounting
from askgauss.claims import PrivacyClaim
from askgauss.exceptions import FileFormatError, InvalidArgumentError, UnsupportedError
from askgauss.files import atomic, codec
from askgauss.sampling import Scheme
from askgauss.stats.rounding import digits, widened

__all__ = [
    "EVIDENCE_SHARE",
    "FEED_NAME",
    "Alarm",
    "Course",
    "Feed",
    "Projection",
    "read_feed",
    "write_feed",
]

FEED_NAME = "watch.json"
_KIND = "askgauss-watch"
_SCHEMA = 2
# Of the error that a monitor may make, the part of its evidence; the rest is that of its looks.
EVIDENCE_SHARE = 0.9
# Far more than a feed of ours ever holds.
_LARGEST = 1 << 22


_STATUSES = ("running", "finished", "failed")
# The last second of the year 9999: no calendar has later ones.
_LAST_SECOND = 253_402_300_799.0
_LEAST = 1e-300
# What numbers of a run may be at all.
_RANGES = (
    ("error", _LEAST, 1.0 - 1e-9),
    ("confidence", 0.0, 1.0),
    ("delta", 0.0, 1.0),
    ("sampling_rate", 0.0, 1.0),
    ("steps", 0, 1 << 62),
    ("planned", 1, 1 << 62),
    ("begun_after", 0, 1 << 62),
    ("written", 0.0, _LAST_SECOND),
    ("elapsed", 0.0, _LAST_SECOND),
    ("every", 0.0, _LAST_SECOND),
)
# Causes whose epsilon is that of the steps so far, and in their words.
_SPENT = ("epsilon", "steps")


@dataclass(frozen=True, slots=True)
class Alarm:
    """Why a monitor stopped a run.

    Attributes:
        step: The step after which it came.
        cause: What is broken: ``"noise"``, ``"contribution"``, ``"sampling rate"``,
            ``"repeated noise"``, ``"epsilon"``, ``"steps"``, ``"weights"`` or
            ``"finite values"``.
        evidence: Decimal logarithm of the cause's e-process: of correct runs one in ten to this
            power ever gets so far. Infinite where a correct run cannot.
        epsilon: The epsilon at the planned end if the run went on as it does, as estimated;
            infinite where the noise cancels, None where it cannot be said. Of the causes
            ``"epsilon"`` and ``"steps"``, what the steps so far have spent at least.
        summary: What was measured, in a sentence.
    """

    step: int
    cause: str
    evidence: float
    epsilon: float | None
    summary: str = ""

    def rounded(self) -> Alarm:
        """The same, rounded for publication."""
        epsilon = None if self.epsilon is None else digits(self.epsilon)
        return replace(self, evidence=round(self.evidence, 2), epsilon=epsilon)

    def __str__(self) -> str:
        seen = "exact" if math.isinf(self.evidence) else f"evidence 10^{self.evidence:.1f}"
        implied = ""
        if self.epsilon is not None and self.cause not in _SPENT:
            implied = f" Going on like this ends at epsilon {self.epsilon:.3g}."
        return f"Step {self.step}: {self.cause} ({seen}). {self.summary}{implied}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Epsilon at the planned end, from what was measured so far.

    Attributes:
        step: Where it was measured: the last look.
        steps: The planned end.
        epsilon: The estimate.
        low: Its interval at the monitor's confidence, which holds at all looks at once.
        high: The other end.
    """

    step: int
    steps: int
    epsilon: float
    low: float
    high: float

    def rounded(self) -> Projection:
        """The same, rounded for publication."""
        low, high = widened((self.low, self.high))
        return replace(self, epsilon=digits(self.epsilon), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run went, thinned to a few hundred points.

    Attributes:
        step: Last step of each point.
        evidence: Decimal logarithm of the joint e-process there, the largest since the point
            before.
        noise: Noise since the point before, in units of what was declared; nan where unknown.
        bound: Lower bound on epsilon there, at the monitor's confidence at all steps at once; nan
            before there is one.
    """

    step: tuple[int, ...] = ()
    evidence: tuple[float, ...] = ()
    noise: tuple[float, ...] = ()
    bound: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What ``watch.json`` says.

    Attributes:
        claim: What the run claims; None where no claim was given.
        error: How often a correct run may alarm, ever.
        confidence: Confidence of the bound, at all steps at once.
        steps: Steps watched so far.
        planned: Steps there will be, where known.
        status: Whether the run goes on.
        written: When this was written, in seconds since 1970 by the writer's clock.
        elapsed: Seconds since the writer began, by a clock that does not jump.
        every: Seconds between writes, at least.
        begun_after: The step the writer began after.
        declared: Declared noise multipliers and the number of steps each was declared for.
        sampling_rate: The claimed sampling rate; 1 where every record is in every step.
        sampling: How batches are drawn, where that is not Poisson sampling.
        evidence: Decimal logarithm of each part's e-process, and of all together.
        untested: Parts that are not watched, and why.
        bound: Lower bound on epsilon so far, and the step it stems from.
        projection: Epsilon at the planned end.
        alarm: The first alarm.
        course: How the run went.
        version: The askgauss that wrote it.
        delta: Where epsilons are stated.
        private: Whether its numbers are of so few canaries that they reveal individuals.
    """

    claim: PrivacyClaim | None
    error: float
    confidence: float
    steps: int
    planned: int | None
    status: str
    written: float
    elapsed: float
    every: float = 5.0
    begun_after: int = 0
    declared: tuple[tuple[float, int], ...] = ()
    sampling_rate: float | None = None
    sampling: Scheme | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    untested: dict[str, str] = field(default_factory=dict)
    bound: tuple[float, int] | None = None
    projection: Projection | None = None
    alarm: Alarm | None = None
    course: Course = field(default_factory=Course)
    version: str = __version__
    delta: float
    private: bool = False

    @property
    def alarm_at(self) -> float:
        """Decimal logarithm of the evidence from which the monitor alarms."""
        return -math.log10(EVIDENCE_SHARE * self.error)

    @property
    def spent(self) -> float | None:
        """Epsilon of the steps so far by an accountant, where their noise and rate are declared."""
        if sum(count for _, count in self.declared) != self.steps or not self.declared:
            return None
        if self.sampling_rate is not None:
            return _spent_on(self.declared, self.sampling_rate, self.delta)
        if self.sampling is None or len(self.declared) > 1:
            return None
        ((noise, steps),) = self.declared
        return _spent_by(self.sampling, noise, steps, self.delta)

    def numbers(self) -> dict[str, float]:
        """Everything a logger can keep, by name; what is not known is left out.

        Where the feed is private, so is what was measured: a logger has other readers. What was
        spent takes up to seconds to compose: while the run trains, a quick upper bound stands for
        it.
        """
        running = self.status == "running"
        found: dict[str, float | None] = {
            "epsilon_spent": None if running else self.spent,
            "epsilon_spent_at_most": self._spent_at_most() if running else None,
            "evidence_for_alarm": self.alarm_at,
            "alarm": float(self.alarm is not None),
        }
        if not self.private:
            found |= self._measured()
        return {
            f"askgauss/{name}": value
            for name, value in found.items()
            if value is not None and math.isfinite(value)
        }

    def _spent_at_most(self) -> float | None:
        """What steps of one noise multiplier have spent, up to a fifth too much."""
        rate = self.sampling_rate
        if len(self.declared) != 1 or not rate or not self.delta:
            return None
        ((noise, steps),) = self.declared
        if steps != self.steps or not steps or not noise:
            return None
        return accounting.quick_upper(1.0 / noise, rate, steps, self.delta)

    def _measured(self) -> dict[str, float | None]:
        found: dict[str, float | None] = {
            "epsilon_lower": None if self.bound is None else self.bound[0],
            "noise": self.course.noise[-1] if self.course.noise else None,
        }
        if self.projection is not None:
            ends = self.projection
            found |= {
                "epsilon_at_end": ends.epsilon,
                "epsilon_at_end_low": ends.low,
                "epsilon_at_end_high": ends.high,
            }
        return found | {
            f"evidence_{name.replace(' ', '_')}": x for name, x in self.evidence.items()
        }

    def check(self) -> None:
        """Refuse numbers that no run can have.

        Raises:
            FileFormatError: There are such numbers.
        """
        course = self.course
        lengths = {len(course.step), len(course.evidence), len(course.noise), len(course.bound)}
        if len(lengths) != 1:
            raise FileFormatError("Expected all parts of course to be of one length.")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise FileFormatError(f"Expected {name} in [{low:g}, {high:g}], got {value}.")
        if self.begun_after > self.steps or self.status not in _STATUSES:
            raise FileFormatError(
                f"Expected begun_after <= steps and status one of {', '.join(_STATUSES)}, got "
                f"{self.begun_after} of {self.steps} and {self.status!r}."
            )
        if not all(0.0 <= noise < math.inf and count >= 0 for noise, count in self.declared):
            raise FileFormatError("Expected declared noise multipliers and counts >= 0.")

    @property
    def seconds_a_step(self) -> float | None:
        """The pace so far."""
        done = self.steps - self.begun_after
        return self.elapsed / done if done > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Time to the planned end at the pace so far."""
        pace = self.seconds_a_step
        if self.planned is None or pace is None or self.status != "running":
            return None
        return max(self.planned - self.steps, 0) * pace


def write_feed(folder: str | os.PathLike[str], feed: Feed) -> None:
    """Write ``watch.json``, whole or not at all; where it is private, for its owner only."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    text = codec.dumps(_KIND, _SCHEMA, codec.to_plain(feed), None)
    # A training waits, and the next feed replaces this one.
    atomic.write_text(path / FEED_NAME, text + "\n", private=feed.private, sync=False)


def read_feed(source: str | os.PathLike[str]) -> Feed:
    """What a run folder's ``watch.json``, or the file itself, says.

    Raises:
        FileNotFoundError: There is none.
        FileFormatError: It is corrupt, foreign, or of a newer schema.
    """
    path = Path(source)
    inside = path.is_dir()
    path = path / FEED_NAME if inside else path
    content = atomic.read_bytes(path, regular=inside)
    if len(content) > _LARGEST:
        raise FileFormatError(f"Expected {str(path)!r} below {_LARGEST} bytes: it is no feed.")
    try:
        feed: Feed = codec.from_plain(Feed, codec.loads(content, _KIND, _SCHEMA), "feed")
        feed.check()
    except FileFormatError as error:
        raise FileFormatError(f"Cannot read {str(path)!r}: {error}") from error
    return feed


@lru_cache(maxsize=256)
def _spent_on(declared: tuple[tuple[float, int], ...], rate: float, delta: float) -> float | None:
    try:
        return accounting.history_epsilon(
            ((noise, rate, count) for noise, count in declared), delta
        )
    except InvalidArgumentError:
        # A file may say anything; what no accountant takes has not been spent.
        return None


@lru_cache(maxsize=256)
def _spent_by(scheme: Scheme, noise: float, steps: int, delta: float) -> float | None:
    try:
        return scheme.epsilon(noise_multiplier=noise, steps=steps, delta=delta)
    except (InvalidArgumentError, UnsupportedError):
        # Of many schemes no accountant says what was spent.
        return None
