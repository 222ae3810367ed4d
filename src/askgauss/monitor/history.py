"""The history of a run, kept in a few hundred points however long it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from askgauss.exceptions import FileFormatError
from askgauss.monitor.feed import Course
from askgauss.stats.rounding import FEWEST_SHOWN, down, scale_on_grid

__all__ = ["History", "HistoryState", "Point"]

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
