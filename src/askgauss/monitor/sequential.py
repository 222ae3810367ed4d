"""Group-sequential lower bounds on epsilon: exact at geometrically spaced looks, valid together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from askgauss import accounting
from askgauss.exceptions import FileFormatError
from askgauss.monitor.feed import Projection
from askgauss.sampling import EveryStep, Scheme
from askgauss.stats.betting import look_share
from askgauss.stats.limits import clopper_pearson_lower, clopper_pearson_upper
from askgauss.stats.rounding import FEWEST_SHOWN
from askgauss.stats.shift import ShiftTest

__all__ = ["Looks", "Sums"]

# Shares of the error: the rate is measured far more sharply than the noise, so it needs little;
# where the end is planned, half is for the look there.
_RATE_SHARE = 0.2
_END_SHARE = 0.5
_SUMS = 6
# Signal-to-noise ratio, sampling rate and steps of what is composed.
Composition = tuple[float, float, int]
# Signal-to-noise ratio and sampling rate, both at least or both at most.
Limit = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sums:
    """Planted and other observations of all steps up to one, in clip norms."""

    step: int = 0
    planted: int = 0
    planted_total: float = 0.0
    planted_square: float = 0.0
    others: int = 0
    total: float = 0.0
    square: float = 0.0

    def test(self) -> ShiftTest | None:
        """The exact test of the signal-to-noise ratio, where there is anything to test."""
        if self.planted < 2 or self.others < 2:
            return None
        planted, others = (
            (count, total / count, max(square - total * total / count, 0.0))
            for count, total, square in (
                (self.planted, self.planted_total, self.planted_square),
                (self.others, self.total, self.square),
            )
        )
        return ShiftTest(present=planted, absent=others)


class Looks:
    """Looks at steps 1, 2, 4, ... and at the planned end; each has its share of the error.

    Args:
        planned: The planned number of steps, where known.
        error: How often any of the bounds may be above the truth.
        delta: Where epsilon is stated.
        rate: The sampling rate where the recorder sampled, else None: then it is bounded.
        present: Number of present canaries.
        scheme: How the recorder samples, where that is not Poisson sampling.
    """

    def __init__(
        self,
        *,
        planned: int | None,
        error: float,
        delta: float,
        rate: float | None,
        present: int,
        scheme: Scheme | None = None,
    ) -> None:
        self._planned, self._error, self._delta = planned, error, delta
        self._rate, self._present = rate if scheme is None else scheme.share, present
        self._scheme = scheme
        self.sums = [0.0] * _SUMS
        self.taken: list[Sums] = []
        # Composing takes some hundredths of a second: it is done when asked for, and once. While a
        # run trains, one at a time on a small grid takes its place.
        self._exact: dict[Composition, float] = {}
        self._coarse: dict[Composition, float] = {}
        self._most: dict[Composition, float] = {}
        self._least: dict[tuple[Sums, float], Limit] = {}
        self._ends_of: dict[Sums, tuple[Composition, ...]] = {}

    def add(self, step: int, sums: tuple[float, ...]) -> None:
        """The sums of one more step, in the order of `Sums`; look if it is time."""
        self.sums = [old + new for old, new in zip(self.sums, sums, strict=True)]
        if step & (step - 1) == 0 or step == self._planned:
            planted, total, square, others, other_total, other_square = self.sums
            self.taken.append(
                Sums(step, round(planted), total, square, round(others), other_total, other_square)
            )

    def load(self, sums: tuple[float, ...], taken: tuple[Sums, ...]) -> None:
        """Go on from the sums and looks of a checkpoint.

        Raises:
            FileFormatError: There are not as many sums as there should be.
        """
        if len(sums) != _SUMS:
            raise FileFormatError(f"Expected {_SUMS} sums, got {len(sums)}.")
        self.sums, self.taken = list(sums), list(taken)

    def error_at(self, step: int, error: float | None = None) -> float:
        """The error a look at this step may spend, of so much for all looks together."""
        error = self._error if error is None else error
        if step == self._planned:
            return _END_SHARE * error
        share = 1.0 if self._planned is None else 1.0 - _END_SHARE
        return share * look_share(step.bit_length()) * error

    def above(
        self, look: Sums, epsilon: float, error: float, *, quickly: bool = False
    ) -> float | None:
        """The bound of a look, where it is above this epsilon; of all looks at this error together.

        Composing takes some hundredths of a second, and is left out where a quick upper bound says
        that it would come to nothing.

        Args:
            look: The look.
            epsilon: What is claimed.
            error: Error of all looks together.
            quickly: Whether a training waits. The bound is then a lower one.
        """
        if not self.may_exceed(look, epsilon, error):
            return None
        composition = (*self._at_least(look, self.error_at(look.step, error)), look.step)
        bound = self._quickly(composition) if quickly else self._epsilon(composition)
        return bound if bound > epsilon else None

    def may_exceed(self, look: Sums, epsilon: float, error: float) -> bool:
        """Whether the bound of a look could be above this epsilon, by a quick upper bound on it."""
        composition = (*self._at_least(look, self.error_at(look.step, error)), look.step)
        if composition not in self._most:
            self._most[composition] = self._at_most(*composition)
        return self._most[composition] > epsilon

    def _at_most(self, signal: float, rate: float, steps: int) -> float:
        """Epsilon of so many steps at most."""
        if signal == 0.0 or rate == 0.0:
            return 0.0
        if self._delta == 0.0:
            return math.inf
        if self._scheme is not None:
            # No scheme has a record in more than every step.
            return EveryStep().epsilon(
                noise_multiplier=1.0 / signal, steps=steps, delta=self._delta
            )
        return accounting.quick_upper(signal, rate, steps, self._delta)

    def compose(self) -> None:
        """Compose the bounds of all looks so far."""
        self.bounds()
        for public in (False, True):
            self.projection(public=public)

    def advance(self) -> bool:
        """Measure or compose one number, quickly, that others may see; whether there was one."""
        public = self._public()
        for look in reversed(public):
            if self._composed_once(self._bound_at(look)):
                return True
        # A coarse bound of another scheme may be far below, and is no estimate of the end.
        if not public or self._planned is None or not self._close:
            return False
        if public[-1] not in self._ends_of:
            return bool(self._projected(public[-1]))
        return any(map(self._composed_once, self._projected(public[-1])))

    def _composed_once(self, composition: Composition) -> bool:
        """Compose this quickly, unless that was done."""
        if self._known(composition) is not None:
            return False
        self._coarse[composition] = self._quickly(composition)
        return True

    @property
    def _close(self) -> bool:
        """Whether the coarse bound is close to the exact one."""
        return self._scheme is None or self._scheme.every_step

    def bounds(self, *, public: bool = False, composed: bool = False) -> list[tuple[int, float]]:
        """Step and bound of every look; each is about the steps up to it.

        Args:
            public: Only of those that others than the run's owner may see.
            composed: Only of those that were composed before.
        """
        found = []
        for look in self._public() if public else self.taken:
            if composed and (look, self.error_at(look.step)) not in self._least:
                continue
            composition = self._bound_at(look)
            bound = self._known(composition) if composed else self._epsilon(composition)
            if bound is not None:
                found.append((look.step, bound))
        return found

    def best(self, *, public: bool = False, composed: bool = False) -> tuple[float, int] | None:
        """The largest bound so far and its step: more steps never leak less."""
        bounds = self.bounds(public=public, composed=composed)
        return max(((bound, step) for step, bound in bounds), default=None)

    def _public(self) -> list[Sums]:
        """Looks whose bounds those outside may see: no two of them differ by a handful."""
        public: list[Sums] = []
        for look in self.taken:
            rest = 0 if self._planned is None else self._planned - look.step
            to_come = rest * look.planted / look.step
            if look.planted >= FEWEST_SHOWN and not (rest > 0 and to_come < FEWEST_SHOWN):
                public.append(look)
        return public

    def _bound_at(self, look: Sums) -> Composition:
        return (*self._at_least(look, self.error_at(look.step)), look.step)

    def projection(self, *, public: bool = False, composed: bool = False) -> Projection | None:
        """Epsilon at the planned end if the run goes on as up to the last look."""
        looks = self._public() if public else self.taken
        if composed:
            looks = [look for look in looks if look in self._ends_of]
        for look in reversed(looks):
            ends = [
                self._known(composition) if composed else self._epsilon(composition)
                for composition in self._projected(look)
            ]
            if self._planned is None or not ends:
                return None
            low, middle, high = ends
            if low is not None and middle is not None and high is not None:
                return Projection(
                    step=look.step, steps=self._planned, low=low, epsilon=middle, high=high
                )
        return None

    def _projected(self, look: Sums) -> tuple[Composition, ...]:
        """Least, likely and most at the planned end; empty where it cannot be said."""
        test = look.test()
        if self._planned is None or test is None:
            return ()
        if look not in self._ends_of:
            error = 0.5 * self.error_at(look.step)
            low, high = self._measured(look, error), self._measured(look, error, most=True)
            seen = look.planted / (self._present * look.step)
            middle = test.lower(0.5), seen if self._rate is None else self._rate
            self._ends_of[look] = tuple((*pair, self._planned) for pair in (low, middle, high))
        return self._ends_of[look]

    def _at_least(self, look: Sums, error: float) -> Limit:
        """Signal-to-noise ratio and rate, both at least, at this error; measured once."""
        if (look, error) not in self._least:
            self._least[look, error] = self._measured(look, error)
        return self._least[look, error]

    def _measured(self, look: Sums, error: float, *, most: bool = False) -> Limit:
        """Signal-to-noise ratio and rate, both at least or both at most, at this error."""
        test = look.test()
        if test is None:
            return (math.inf, 1.0) if most else (0.0, 0.0)
        rate = self._rate
        if rate is None:
            limit = clopper_pearson_upper if most else clopper_pearson_lower
            rate = limit(look.planted, self._present * look.step, _RATE_SHARE * error)
            error *= 1.0 - _RATE_SHARE
        return test.lower(1.0 - error if most else error), rate

    def _known(self, composition: Composition) -> float | None:
        return self._exact.get(composition, self._coarse.get(composition))

    def _epsilon(self, composition: Composition) -> float:
        if composition not in self._exact:
            self._exact[composition] = self._composed(*composition)
        return self._exact[composition]

    def _quickly(self, composition: Composition) -> float:
        return self._composed(*composition, quickly=True)

    def _composed(self, signal: float, rate: float, steps: int, *, quickly: bool = False) -> float:
        if signal == 0.0 or rate == 0.0:
            return 0.0
        if self._delta == 0.0:
            return math.inf
        if self._scheme is not None:
            scheme = self._scheme
            bound = scheme.coarse_epsilon_lower if quickly else scheme.epsilon_lower
            return bound(noise_multiplier=1.0 / signal, steps=steps, delta=self._delta)
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal,
            sampling_rate=rate,
            steps=steps,
            delta=self._delta,
            grid=accounting.SMALL if quickly else accounting.FINE,
        )
