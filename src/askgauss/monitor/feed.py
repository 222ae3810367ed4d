"""What a monitor publishes: alarms, the history of a run, and the file that others follow.

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
from askgauss.stats.rounding import FEWEST_SHOWN, digits, down, scale_on_grid, widened

__all__ = [
    "EVIDENCE_SHARE",
    "FEED_NAME",
    "MOST_DECLARED",
    "Alarm",
    "Course",
    "Feed",
    "History",
    "HistoryState",
    "Point",
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
# Different declared noise multipliers that are counted apart. Each takes a fraction of a second to
# compose, so that of a run that goes on only a few are.
MOST_DECLARED = 64
_MOST_COMPOSED = 8


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
        """Epsilon of the steps so far by an accountant, where their noise and rate are declared.

        While the run goes on, None where they have more than eight noise multipliers: it would be
        composed again at every look.
        """
        if self.status == "running" and len(self.declared) > _MOST_COMPOSED:
            return None
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
        if len(self.declared) > MOST_DECLARED:
            raise FileFormatError(
                f"Expected at most {MOST_DECLARED} declared noise multipliers, got "
                f"{len(self.declared)}."
            )

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


# Points before every second one is given up.
_POINTS = 256
_LOG_TEN = math.log(10.0)


@dataclass(slots=True)
class Point:
    """One point of the course: the last step of it, and what was seen since the one before."""

    step: int = 0
    evidence: float = -math.inf
    freedom: float = 0.0
    square: float = 0.0
    planted: float = 0.0

    def noise(self, values: float) -> float:
        """The scale of the noise, rounded to its standard error; nan if unknown.

        Args:
            values: Their expected number; the exact one would reveal how many canaries were
                included.
        """
        if not self.freedom:
            return math.nan
        return scale_on_grid(math.sqrt(self.square / self.freedom), values)

    def join(self, later: Point) -> Point:
        """One point for both."""
        return Point(
            later.step,
            max(self.evidence, later.evidence),
            self.freedom + later.freedom,
            self.square + later.square,
            self.planted + later.planted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """The plain values of a checkpoint."""

    points: tuple[Point, ...] = ()
    point: Point
    sums_before: tuple[float, float]
    stride: int


class History:
    """Collects steps into points, and joins pairs of points when there are too many."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._point = Point()
        self._stride = 1
        self._sums_before = (0.0, 0.0)

    def extend(
        self,
        step: int,
        evidence: float,
        noise_sums: tuple[float, float],
        *,
        planted: float = math.inf,
        at_once: bool = False,
    ) -> bool:
        """Add a step.

        Args:
            step: Its number.
            evidence: Logarithm of the joint e-process after it.
            noise_sums: Degrees of freedom and squares of the noise of all steps so far.
            planted: Inclusions of canaries in the step that the evidence weighed. What it moved by
                between two points is published; of a handful it would reveal single canaries.
            at_once: Whether the point ends here, whatever is in it.

        Returns:
            Whether a point ends here, which is when the course, and the evidence, may be published.
        """
        point = self._point
        point.step, point.evidence = step, max(point.evidence, evidence)
        point.planted += planted
        if not at_once and (step % self._stride or point.planted < FEWEST_SHOWN):
            return False
        freedom, square = noise_sums
        point.freedom, point.square = freedom - self._sums_before[0], square - self._sums_before[1]
        self._sums_before = noise_sums
        self._points.append(point)
        self._point = Point()
        if len(self._points) >= _POINTS:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [first.join(second) for first, second in pairs]
            self._stride *= 2
        return True

    def course(self, looks: list[tuple[int, float]], values: float) -> Course:
        """The course, with the bounds of these looks.

        Logs and results carry it to people who may not see the noise of a step: so its numbers are
        rounded to their standard errors.

        Args:
            looks: Step and bound of each.
            values: Values of the noise in a step, as many as are expected before the run.
        """
        points = self._points
        bounds = [
            down(max((bound for step, bound in looks if step <= point.step), default=math.nan))
            for point in points
        ]
        last = [point.step for point in points]
        steps = [now - before for now, before in zip(last, [0, *last], strict=False)]
        return Course(
            step=tuple(last),
            evidence=tuple(round(point.evidence / _LOG_TEN, 2) for point in points),
            noise=tuple(
                point.noise(values * count) for point, count in zip(points, steps, strict=True)
            ),
            bound=tuple(bounds),
        )

    def state(self) -> HistoryState:
        """Everything that changes from step to step."""
        return HistoryState(
            points=tuple(self._points),
            point=self._point,
            sums_before=self._sums_before,
            stride=self._stride,
        )

    @classmethod
    def of(cls, state: HistoryState) -> History:
        """Resume from a state.

        Raises:
            FileFormatError: It is not one of a course.
        """
        if state.stride < 1:
            raise FileFormatError("Expected the whole state of a monitor. Load another checkpoint.")
        keeper = cls()
        keeper._points, keeper._point = list(state.points), state.point
        keeper._sums_before, keeper._stride = state.sums_before, state.stride
        return keeper
