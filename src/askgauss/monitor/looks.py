"""A bound on epsilon that holds at every look: an exact bound at geometric steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from askgauss import accounting
from askgauss._rounded import FEWEST_TOLD
from askgauss.exceptions import FileFormatError
from askgauss.monitor.feed import Projection
from askgauss.sampling import EveryStep, Scheme
from askgauss.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from askgauss.stats.e_process import look_share
from askgauss.stats.shift import ShiftTest

__all__ = ["Looks", "Sums"]

# Shares of the error: the rate is measured far more sharply than the noise, so it needs little;
# where the end is planned, half is for the look there.
_RATE_SHARE = 0.2
_END_SHARE = 0.5
_SUMS = 6
# Renyi orders of a quick upper bound on epsilon, which says when nothing need be composed.
_ORDERS = np.array([*range(2, 33), 40, 48, 64, 96, 128, 256], dtype=np.float64)


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
        rate: The planting rate where the recorder's own coin set it, else None: then it is bounded.
        present: Number of present canaries.
        scheme: How the recorder plants, where that is not by Poisson coins.
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
        # Composing takes some hundredths of a second, so it is done when asked for, and once.
        self._bounds: dict[Sums, float] = {}
        self._ends_of: dict[Sums, Projection | None] = {}

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

    def above(self, look: Sums, epsilon: float, error: float) -> float | None:
        """The bound of a look, where it is above this epsilon; of all looks at this error together.

        Composing takes some hundredths of a second, and is left out where a quick upper bound says
        that it would come to nothing.
        """
        signal, rate = self._ends(look, self.error_at(look.step, error))[0]
        if self._at_most(signal, rate, look.step) <= epsilon:
            return None
        bound = self._composed(signal, rate, look.step)
        return bound if bound > epsilon else None

    def slow(self) -> bool:
        """Whether composing takes long: of no simple scheme is there a quick bound."""
        return not (self._scheme is None or isinstance(self._scheme, EveryStep))

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
        return quick_upper(signal, rate, steps, self._delta)

    def compose(self) -> None:
        """Compose the bounds of all looks so far."""
        self.bounds()
        for told in (False, True):
            self.projection(told=told)

    def bounds(self, *, told: bool = False, composed: bool = False) -> list[tuple[int, float]]:
        """Step and bound of every look; each is about the steps up to it.

        Args:
            told: Only of those that others than the run's owner may see.
            composed: Only of those that were composed before.
        """
        found = []
        for look in self._told() if told else self.taken:
            if look not in self._bounds and not composed:
                self._bounds[look] = self._bound_at(look)
            if look in self._bounds:
                found.append((look.step, self._bounds[look]))
        return found

    def best(self, *, told: bool = False, composed: bool = False) -> tuple[float, int] | None:
        """The largest bound so far and its step: more steps never leak less."""
        bounds = self.bounds(told=told, composed=composed)
        return max(((bound, step) for step, bound in bounds), default=None)

    def _told(self) -> list[Sums]:
        """Looks whose bounds those outside may see: no two of them differ by a handful."""
        told: list[Sums] = []
        for look in self.taken:
            rest = 0 if self._planned is None else self._planned - look.step
            to_come = rest * look.planted / look.step
            if look.planted >= FEWEST_TOLD and not (rest > 0 and to_come < FEWEST_TOLD):
                told.append(look)
        return told

    def _bound_at(self, look: Sums) -> float:
        signal, rate = self._ends(look, self.error_at(look.step))[0]
        return self._composed(signal, rate, look.step)

    def projection(self, *, told: bool = False, composed: bool = False) -> Projection | None:
        """Epsilon at the planned end if the run goes on as up to the last look."""
        looks = self._told() if told else self.taken
        if composed:
            looks = [look for look in looks if look in self._ends_of]
        if not looks:
            return None
        if looks[-1] not in self._ends_of:
            self._ends_of[looks[-1]] = self._projected(looks[-1])
        return self._ends_of[looks[-1]]

    def _projected(self, look: Sums) -> Projection | None:
        test = look.test()
        if self._planned is None or test is None:
            return None
        low, high = self._ends(look, 0.5 * self.error_at(look.step))
        seen = look.planted / (self._present * look.step)
        middle = test.lower(0.5), seen if self._rate is None else self._rate
        ends = [self._composed(*pair, self._planned) for pair in (low, middle, high)]
        return Projection(
            step=look.step, steps=self._planned, low=ends[0], epsilon=ends[1], high=ends[2]
        )

    def _ends(self, look: Sums, error: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Signal-to-noise ratio and rate: both at least, and both at most, at this error each."""
        test = look.test()
        if test is None:
            return (0.0, 0.0), (math.inf, 1.0)
        low_rate = high_rate = self._rate
        if low_rate is None or high_rate is None:
            opportunities = self._present * look.step
            low_rate = clopper_pearson_lower(look.planted, opportunities, _RATE_SHARE * error)
            high_rate = clopper_pearson_upper(look.planted, opportunities, _RATE_SHARE * error)
            error *= 1.0 - _RATE_SHARE
        return (test.lower(error), low_rate), (test.lower(1.0 - error), high_rate)

    def _composed(self, signal: float, rate: float, steps: int) -> float:
        if signal == 0.0 or rate == 0.0:
            return 0.0
        if self._delta == 0.0:
            return math.inf
        if self._scheme is not None:
            return self._scheme.epsilon_lower(
                noise_multiplier=1.0 / signal, steps=steps, delta=self._delta
            )
        return accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=rate, steps=steps, delta=self._delta
        )


def quick_upper(signal: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon of Poisson-sampled Gaussian steps at most, by their Renyi divergence.

    Some 20 % above what composing gives, in less than a millisecond.

    Args:
        signal: What a record adds, in deviations of the noise.
        rate: How often it is drawn.
        steps: Number of steps.
        delta: Where epsilon is stated.

    Examples:
        >>> f"{quick_upper(1.0, 0.01, 1000, 1e-5):.2f}"
        '2.11'
    """
    taken = np.arange(_ORDERS[-1] + 1.0)
    order = _ORDERS[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(order > taken, (order - taken) * math.log1p(-min(rate, 1.0 - 1e-12)), 0.0)
        terms = (
            gammaln(order + 1.0)
            - gammaln(taken + 1.0)
            - gammaln(order - taken + 1.0)
            + taken * math.log(rate)
            + kept
            + 0.5 * taken * (taken - 1.0) * signal**2
        )
    renyi = logsumexp(np.where(taken <= order, terms, -np.inf), axis=1) / (_ORDERS - 1.0)
    epsilon = steps * renyi + np.log1p(-1.0 / _ORDERS) - math.log(delta) / (_ORDERS - 1.0)
    return max(float((epsilon - np.log(_ORDERS) / (_ORDERS - 1.0)).min()), 0.0)
