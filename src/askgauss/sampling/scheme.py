"""Replace-one neighbours: a record that sends one update, against one that sends its opposite."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp

from askgauss import _validate, accounting
from askgauss.exceptions import UnsupportedError
from askgauss.files import codec
from askgauss.stats.gaussian import gdp_epsilon
from askgauss.stats.limits import binomial_weights, close_bracket

if TYPE_CHECKING:
    from askgauss.sampling.batch_testing import SchemeSums, SchemeTest
    from askgauss.sampling.independent import CyclicPoisson

__all__ = ["Integers", "Limits", "Mask", "ReplaceOne", "Scheme", "replaced_sum_epsilon"]

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
# P[fewer] and P[at most] of a count, for each step.
Limits = tuple[NDArray[np.float64], NDArray[np.float64]]


class Scheme(ABC):
    """A way to draw batches of records.

    Subclasses are frozen dataclasses of their parameters. What other modules need to know of a
    scheme is a property or a method here, so that none of them asks for its class.

    Attributes:
        tag: Name in files.
        independent: Whether each record is drawn independently of the others.
        fixed_batch: Whether a batch has one size, so that one record more or less in the data
            changes which others are drawn.
    """

    tag: ClassVar[str]
    independent: ClassVar[bool] = False
    fixed_batch: ClassVar[bool] = False

    @property
    @abstractmethod
    def share(self) -> float:
        """The share of steps that draw one record, in the long run."""

    @property
    def poisson_rate(self) -> float | None:
        """The rate, where this is Poisson sampling; None for any other scheme."""
        return None

    @property
    def every_step(self) -> bool:
        """Whether every record is in every batch."""
        return False

    @property
    def cyclic(self) -> CyclicPoisson | None:
        """The same as cyclic Poisson sampling; None where it is not such a scheme."""
        return None

    @property
    def known_background(self) -> bool:
        """Whether the draws of other records are independent of the canary's draws.

        Then what they add may be subtracted from what was released; otherwise it must stay in.
        """
        return self.independent

    @property
    def period(self) -> int | None:
        """Steps after which the scheme starts over."""
        return None

    def record_by_record(self) -> Scheme:
        """A scheme under which one record is drawn alike, and records are independent.

        It draws the canaries that are not records of the training's sampler.
        """
        return self

    def poisson_steps(self, steps: int) -> int | None:
        """The most steps that may draw one record, independently and at one rate.

        None where a record is not drawn so.
        """
        return None

    def at_rate(self, rate: float) -> Scheme:
        """What one record meets if these steps draw it at this rate."""
        raise UnsupportedError(f"{self} draws no record by coins of one rate.")

    def draws_within(self, steps: int) -> tuple[int, int]:
        """The fewest and the most of so many steps, from the first, that draw one record."""
        return 0, steps

    def count_p_value(self, drawn: int, *, records: int, steps: int) -> float:
        """Of the number of draws in all, over records drawn independently, two-sided.

        Only schemes with independent records have such a distribution; 1 for all others.
        """
        return 1.0

    # ---------------------------------------------------------------------- leak, from below

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """Epsilon of the canary's neighbouring datasets over a run, larger direction, from below.

        Args:
            noise_multiplier: Noise deviation over the canary's contribution; 0 without noise,
                infinite where nothing was seen of the canary. In an audit: its upper confidence
                limit.
            steps: Number of steps.
            delta: Delta, in (0, 1).

        Returns:
            A lower bound on the epsilon of any claim that covers this run.

        Assumes:
            Batches drawn by this scheme; Gaussian noise, independent between steps.
        """
        _validate.within(0.0, math.inf, closed="both", noise_multiplier=noise_multiplier)
        _validate.count(steps=steps)
        _validate.probability(delta=delta)
        if noise_multiplier == math.inf:
            return 0.0
        signal = 1.0 / noise_multiplier if noise_multiplier > 0.0 else math.inf
        return self._epsilon_at(float(signal), int(steps), float(delta))

    def coarse_epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """A lower bound on `epsilon_lower` in some milliseconds, for use during training.

        By default that of the sum of all whole periods: a record that is in k of n steps at least
        moves it by k contributions, where its noise is that of n steps.

        Args:
            noise_multiplier: As in `epsilon_lower`, above 0.
            steps: Number of steps.
            delta: Delta, in (0, 1).
        """
        whole = steps - steps % (self.period or 1)
        if not whole:
            return 0.0
        fewest = self.draws_within(whole)[0]
        return gdp_epsilon(delta, fewest / (noise_multiplier * math.sqrt(whole)))

    def signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """The contribution over the noise deviation at which a run violates a claim.

        Args:
            epsilon: Claimed epsilon, above 0.
            delta: Claimed delta, in (0, 1).
            steps: Number of steps.

        Returns:
            The ratio at which `epsilon_lower` passes ``epsilon``, to four digits and rounded up.
            Infinite where nothing contradicts the claim.
        """
        return _violating_signal(self._epsilon_at, self.share, epsilon, delta, steps, 1e-5)

    def quick_epsilon(self, *, signal_to_noise: float, steps: int, delta: float) -> float:
        """`epsilon_lower`, to two digits where that is quicker: for power, not for bounds."""
        noise = 1.0 / signal_to_noise if signal_to_noise > 0.0 else math.inf
        return self.epsilon_lower(noise_multiplier=noise, steps=steps, delta=delta)

    def quick_signal_to_noise(self, *, epsilon: float, delta: float, steps: int) -> float:
        """`signal_to_noise` to two digits: for power, not for bounds."""
        return _violating_signal(self._quick_epsilon_at, self.share, epsilon, delta, steps, 5e-3)

    @abstractmethod
    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        """`epsilon_lower` by the signal-to-noise ratio, which may be infinite."""

    def _quick_epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        """The same to a few parts in a thousand: for power, not for bounds."""
        return self._epsilon_at(signal, steps, delta)

    # ----------------------------------------------------------------- accounting, from above

    def epsilon(self, *, noise_multiplier: float, steps: int, delta: float) -> float:
        """The epsilon an accountant claims for a run, from above.

        Args:
            noise_multiplier: Noise deviation over clipping norm; 0 or above.
            steps: Number of steps.
            delta: Delta, in (0, 1).

        Returns:
            An upper bound on epsilon.

        Raises:
            UnsupportedError: No accountant gives a rigorous upper bound for this scheme.
        """
        raise UnsupportedError(
            f"No accountant bounds {self} from above with certainty. Compare with "
            "epsilon_lower(), or train with Poisson sampling, which has one."
        )

    # ----------------------------------------------------------------------------- simulation

    @abstractmethod
    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """Batches of record indices, one a step.

        Args:
            rng: Source of randomness.
            records: Number of records.
            steps: Number of steps.
        """

    # --------------------------------------------------------------- tests of drawn batches

    def test(
        self, batches: Sequence[ArrayLike] | Mask, *, records: int | None = None
    ) -> tuple[SchemeTest, ...]:
        """Whether batches were drawn by this scheme.

        Args:
            batches: The record indices of each step; or a boolean matrix, steps by records, which
                may show a part of the records only: the canaries, say.
            records: Number of records in all. Needed for index lists; without it a matrix says
                nothing of how large batches were.

        Returns:
            Tests with p-values. Each is below any level with at most that probability if batches
            were drawn by this scheme, so Holm's procedure may combine them.
        """
        from askgauss.sampling.batch_testing import SchemeSums

        if isinstance(batches, np.ndarray) and batches.dtype == np.bool_:
            if batches.ndim != 2:
                hint = "Pass one row a step and one column a record."
                raise _validate.fail("batches", batches.shape, "to be two-dimensional", hint)
            sums = SchemeSums(self, records=records, seen=batches.shape[1])
            for row in batches:
                sums.add_inclusions(row)
        else:
            sums = SchemeSums(self, records=records)
            for batch in batches:
                sums.add(batch)
        return sums.tests()

    def pool(self, past: SchemeSums) -> Mask:
        """Records of which the next step draws, any as likely as any other given their number."""
        return np.ones(past.seen, dtype=np.bool_)

    def allowed(self, past: SchemeSums) -> Mask:
        """Records that the next step may draw at all."""
        return self.pool(past)

    def required(self, past: SchemeSums) -> Mask | None:
        """Records that the next step must draw."""
        return None

    def inclusion_probability(self, past: SchemeSums) -> float | None:
        """That of each record of the pool, where they join independently."""
        return None

    def size_breaks(self, sizes: Integers) -> Mask:
        """Steps whose batch has a size that the scheme never gives."""
        return np.zeros(sizes.size, dtype=np.bool_)

    def size_limits(self, past: SchemeSums) -> Limits | None:
        """For each step P[fewer] and P[at most] as many of the pool as were drawn, if known."""
        rates = past.probabilities
        if np.isnan(rates).any():
            return None
        from scipy.stats import binom

        below, upto = (binom.cdf(past.drawn - less, past.pools, rates) for less in (1, 0))
        return below, upto

    # ---------------------------------------------------------------------------------- files

    def to_plain(self) -> dict[str, Any]:
        """JSON values, with a tag that says which scheme it is."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        return {"scheme": self.tag, **codec.to_plain(values)}

    @staticmethod
    def from_plain(value: Any, where: str = "sampling") -> Scheme:
        """The scheme that `to_plain` wrote.

        Raises:
            FileFormatError: It is not a scheme, or not one that this version knows.
        """
        from askgauss.sampling.registry import from_plain

        return from_plain(value, where)


def _violating_signal(
    epsilon_at: Callable[[float, int, float], float],
    share: float,
    epsilon: float,
    delta: float,
    steps: int,
    precision: float,
) -> float:
    """The ratio at which a run's epsilon passes a claim, rounded up."""
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    _validate.integer(1, steps=steps)
    if epsilon_at(math.inf, int(steps), float(delta)) <= epsilon:
        return math.inf

    @cache
    def excess(signal: float) -> float:
        return epsilon_at(signal, int(steps), float(delta)) - epsilon

    # Near where Poisson sampling of as many records violates the claim, or far from it.
    start = accounting.quick_signal_to_noise(
        epsilon=epsilon, delta=delta, sampling_rate=share, steps=steps
    )
    low = high = start if 0.0 < start < math.inf else 1.0
    factor = 1.1
    while (at_low := excess(low)) > 0.0:
        low, high, factor = low / factor, low, factor**2
    while (at_high := excess(high)) <= 0.0:
        # An epsilon that is cut off where floating point ends never gets there.
        if high > _validate.LARGEST:
            return math.inf
        low, high, at_low, factor = high, high * factor, at_high, factor**2
    root, tolerance = low, precision * low
    # An end that meets the claim exactly is the root: a bracket has to have two sides.
    if at_low < 0.0:
        root = close_bracket(lambda x: -excess(x), low, -at_low, high, -at_high, tolerance)
    while excess(root) <= 0.0:
        root *= 1.0 + precision
    return root


def hypergeometric_limits(
    values: Integers,
    population: Integers | int,
    marked: Integers | int,
    drawn: Integers | int,
) -> Limits:
    """P[fewer] and P[at most] marked ones in draws without replacement."""
    from scipy.stats import hypergeom

    return (
        hypergeom.cdf(values - 1, population, marked, drawn),
        hypergeom.cdf(values, population, marked, drawn),
    )


def check_draw(records: int, steps: int) -> None:
    """Arguments of a simulation."""
    _validate.count(records=records)
    _validate.integer(1, steps=steps)  # of any number: they are drawn one by one


# Counts are left out whose probabilities add up to 2 exp(-this) at most.
_DEPTH = 46.0
# More signal than this is read from the sum of all steps alone.
_LOUDEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceOne(Scheme):
    """What one record shows under a scheme where its neighbour has another one in its place.

    The update of norm 1 turns into its opposite, so that a step which draws the record moves by
    two: twice as far as where it is left out. Under Poisson sampling the run is the composition of
    such steps; under other schemes the bound is that of leaving the record out, which is a
    replacement by an update of zeros, and lower than it could be.

    Args:
        of: How the record is drawn.

    Examples:
        >>> from askgauss.sampling import EveryStep
        >>> replaced = ReplaceOne(of=EveryStep())
        >>> twice = EveryStep().epsilon_lower(noise_multiplier=2, steps=4, delta=1e-5)
        >>> replaced.epsilon_lower(noise_multiplier=4, steps=4, delta=1e-5) == twice
        True
    """

    tag: ClassVar[str] = "replace-one"

    of: Scheme

    def __str__(self) -> str:
        return f"{self.of}, records replaced"

    @property
    def share(self) -> float:
        """That of the scheme."""
        return self.of.share

    @property
    def shown(self) -> bool:
        """Whether the bound is that of a replaced record, not the lower one of leaving it out."""
        return self.of.every_step or self.of.poisson_rate is not None

    def _epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return self._composed(signal, steps, delta, quick=False)

    def _quick_epsilon_at(self, signal: float, steps: int, delta: float) -> float:
        return self._composed(signal, steps, delta, quick=True)

    def _composed(self, signal: float, steps: int, delta: float, *, quick: bool) -> float:
        rate, replaced = self.of.poisson_rate, 0.0
        if rate is None or rate == 1.0:
            return self.of._epsilon_at((2.0 if self.shown else 1.0) * signal, steps, delta)
        if 0.0 < signal < _LOUDEST:
            replaced = accounting.replaced_epsilon_lower(
                signal_to_noise=signal, sampling_rate=rate, steps=steps, delta=delta, quick=quick
            )
        # Beyond one grid, the sum of all steps still shows a replaced record; or one left out.
        if replaced == 0.0:
            replaced = replaced_sum_epsilon(signal, rate, steps, delta)
        return replaced if quick else max(replaced, self.of._epsilon_at(signal, steps, delta))

    def draw(self, rng: np.random.Generator, records: int, steps: int) -> Iterator[Integers]:
        """As the scheme does."""
        return self.of.draw(rng, records, steps)


def replaced_sum_epsilon(signal: float, rate: float, steps: int, delta: float) -> float:
    """Epsilon of the sum of all steps, of a Poisson sampled record against its opposite.

    Given ``k`` draws the sum has mean ``k`` or ``-k``. Its likelihood ratio grows with the sum, so
    that the best test is one threshold.
    """
    if signal == math.inf:
        return math.inf if -math.expm1(steps * math.log1p(-rate)) > delta else 0.0
    counts, logs = binomial_weights(steps, rate, _DEPTH)
    means = counts * signal / math.sqrt(steps)
    # What was left out could all be on the wrong side.
    lost = 2.0 * math.exp(-_DEPTH)

    def at(threshold: float) -> tuple[float, float]:
        """The loss at a threshold, and the delta that the test shows there."""
        here = logsumexp(logs - 0.5 * (threshold - means) ** 2)
        opposite = logsumexp(logs - 0.5 * (threshold + means) ** 2)
        loss = float(here - opposite)
        power = float(np.exp(logsumexp(logs + log_ndtr(means - threshold))))
        false = float(np.exp(logsumexp(logs + log_ndtr(-means - threshold)))) + lost
        return loss, power - math.exp(min(loss, 700.0)) * false

    low, high = 0.0, float(means.max()) + 40.0
    if at(low)[1] < delta:
        return 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if at(middle)[1] >= delta else (low, middle)
    return max(at(low)[0], 0.0)
