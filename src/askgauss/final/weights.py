"""What a whole training makes of its released steps, where that is a known linear filter.

SGD, with momentum, Nesterov's or dampened, with weight decay and any schedule, is linear in the
gradients it is given, coordinate by coordinate:

    last snapshot = kept * first snapshot - sum over steps of weight_t * release_t.

So the difference of two snapshots is one known sum of the releases, and what two snapshots say
about a canary has an exact law: with Poisson sampling at rate q, clip norm 1 and noise multiplier
s, the sum of ``weight_t (B_t + s Z_t)`` with B_t a coin of q and Z_t a standard Gaussian.

Of two snapshots this sum is all there is. Of several, every sum of them is a filter too, and the
one nearest to equal weights says most of the steps together: for filters a_1, ..., a_k, the
projection of (1, ..., 1) on their span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from askgauss import _validate
from askgauss.canaries import BlockCanaries, DiracCanaries
from askgauss.exceptions import InvalidArgumentError
from askgauss.scores import CanaryScores, ScoreMetadata
from askgauss.stats.sampled_sum import StepWeights, sampled_sum_epsilon

__all__ = [
    "LinearFilter",
    "every_so_often",
    "finite_numbers",
    "joined_snapshots",
    "least_updated",
    "sgd_filter",
    "weight_scores",
]

Array = NDArray[np.float64]


def finite_numbers(name: str, given: ArrayLike) -> Array:
    """One finite number after the other.

    Raises:
        InvalidArgumentError: There is something else.
    """
    values = np.asarray(given)
    if values.dtype.kind not in "biuf" or values.ndim != 1 or not np.isfinite(values).all():
        raise InvalidArgumentError(
            f"Expected {name} to be one row of finite numbers, got shape {values.shape} and dtype "
            f"{values.dtype}. Flatten it, and find out where nan or infinity comes from."
        )
    return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearFilter:
    """How the last snapshot follows from the first one and the released sums of all steps.

    Attributes:
        weights: What is subtracted of each step's released sum.
        kept: The share of the first snapshot that is left in the last.

    Raises:
        InvalidArgumentError: There are no weights, or they are all 0, or not finite.
    """

    weights: Array
    kept: float = 1.0

    def __post_init__(self) -> None:
        weights = finite_numbers("weights", self.weights)
        if not weights.size or not weights.any():
            raise InvalidArgumentError(
                "Expected weights with one step at least that moves the model, got none. Give the "
                "learning rate of every step between the two snapshots."
            )
        weights = weights.copy()
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @property
    def length(self) -> float:
        """What unit noise in every step adds up to."""
        return float(np.linalg.norm(self.weights))

    @property
    def effective_steps(self) -> float:
        """Number of equal steps whose sum says as much; at most the number of steps."""
        return float(self.weights.sum() ** 2 / (self.weights @ self.weights))

    def shift(self, *, noise_multiplier: float, planted: ArrayLike | None = None) -> float:
        """Distance of the two Gaussians of a canary that is in these steps, in deviations.

        Args:
            noise_multiplier: Noise of every step.
            planted: Numbers of the steps, from 0; None for all.
        """
        _validate.magnitude(noise_multiplier=noise_multiplier)
        chosen = self.weights if planted is None else self.weights[np.asarray(planted)]
        return abs(float(chosen.sum())) / (noise_multiplier * self.length)

    def epsilon_at(
        self, *, delta: float, noise_multiplier: float, sampling_rate: float = 1.0
    ) -> float:
        """Epsilon that two snapshots carry about a canary: what a perfect audit of them reports.

        Exact where no weight is negative, as with SGD under any schedule; a lower bound otherwise.

        Args:
            delta: Where epsilon is stated.
            noise_multiplier: Noise of every step.
            sampling_rate: Probability that a canary is in a step.

        Examples:
            >>> flat = LinearFilter(weights=[1.0] * 4)
            >>> round(flat.epsilon_at(delta=1e-5, noise_multiplier=2.0), 3)  # GDP of mu 1
            4.377
        """
        _validate.probability(delta=delta)
        _validate.magnitude(noise_multiplier=noise_multiplier)
        _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
        # In deviations of the noise; a schedule may take some of it back, so both signs may occur.
        heights = self.weights / (self.length * noise_multiplier)
        heights = heights if heights.sum() >= 0.0 else -heights
        return sampled_sum_epsilon(heights, sampling_rate, delta)


def sgd_filter(
    learning_rates: Sequence[float] | ArrayLike,
    *,
    divisor: float | ArrayLike = 1.0,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> LinearFilter:
    """The filter of SGD, as PyTorch writes it, from its very first step on.

    The first snapshot is the one the run began with: what later ones move includes momentum of
    steps before them, which would be counted as leaked by the steps after.

    Args:
        learning_rates: The rate of every step up to the last snapshot.
        divisor: What a released sum is divided by before it is a gradient, such as the expected
            batch size: one number, or one a step.
        momentum: Momentum.
        dampening: Dampening of it.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: Weight decay that is added to the gradient.

    Raises:
        InvalidArgumentError: An argument is outside its range.

    Examples:
        >>> sgd_filter([0.5, 0.5], momentum=0.9).weights
        array([0.95, 0.5 ])
    """
    rates = finite_numbers("learning_rates", learning_rates)
    divisors = np.broadcast_to(np.asarray(divisor, dtype=np.float64), rates.shape)
    if not (np.isfinite(divisors).all() and (divisors > 0.0).all()):
        raise _validate.fail("divisor", divisor, "to be above 0", "Such as the expected batch.")
    _validate.within(0, 1, closed="left", momentum=momentum)
    _validate.within(0, 1, closed="left", dampening=dampening)
    _validate.non_negative(weight_decay=weight_decay)
    if nesterov and (momentum == 0.0 or dampening > 0.0):
        raise _validate.fail("nesterov", nesterov, "to be False without momentum or with dampening")
    weights = np.zeros(rates.size)
    # How the last weights answer to a step's weights and to its velocity; backwards in time.
    to_weights, to_velocity = 1.0, 0.0
    for step in range(rates.size - 1, -1, -1):
        rate = float(rates[step])
        # The very first velocity is the gradient itself.
        enters = 1.0 if step == 0 else 1.0 - dampening
        if momentum == 0.0:
            velocity, gradient = 0.0, -rate * to_weights
        elif nesterov:
            velocity = to_velocity - rate * momentum * to_weights
            gradient = enters * velocity - rate * to_weights
        else:
            velocity = to_velocity - rate * to_weights
            gradient = enters * velocity
        weights[step] = -gradient / divisors[step]
        to_weights += weight_decay * gradient
        to_velocity = momentum * velocity
    return LinearFilter(weights=weights, kept=to_weights)


def joined_snapshots(
    filters: Sequence[LinearFilter], snapshots: Sequence[ArrayLike]
) -> tuple[LinearFilter, Array]:
    """One filter, and the weights that belong to it, for several snapshots after the first.

    A schedule makes later steps small, and two snapshots then say little of them. One snapshot more
    at every drop of the learning rate brings them back: the sum of snapshots is taken that weighs
    all steps as evenly as can be.

    Args:
        filters: How each snapshot follows from the first and the releases, each from the very first
            step on: ``sgd_filter(learning_rates[:steps])``.
        snapshots: The snapshots, flat, in the same order.

    Returns:
        The filter of the sum, and the sum, to be given to `weight_scores` as ``filter`` and
        ``after``.

    Raises:
        InvalidArgumentError: There are none, or not as many of one as of the other, or their sizes
            differ.

    Examples:
        >>> rates = [1.0] * 50 + [0.1] * 50
        >>> filters = [sgd_filter(rates[:steps]) for steps in (50, 100)]
        >>> linear, _ = joined_snapshots(filters, [[0.0], [0.0]])
        >>> round(filters[-1].effective_steps, 1), round(linear.effective_steps, 1)
        (59.9, 100.0)
    """
    if not len(filters) or len(filters) != len(snapshots):
        raise InvalidArgumentError(
            f"Expected a snapshot for every filter, one at least, got {len(snapshots)} snapshots "
            f"and {len(filters)} filters."
        )
    weights = [finite_numbers("snapshots", snapshot) for snapshot in snapshots]
    if len({one.size for one in weights}) > 1:
        sizes = sorted({one.size for one in weights})
        raise InvalidArgumentError(f"Expected snapshots of one model, got {sizes} numbers.")
    steps = max(one.weights.size for one in filters)
    rows = np.array([np.pad(one.weights, (0, steps - one.weights.size)) for one in filters])
    # Rows of one length: snapshots that moved little are as good as others.
    lengths = np.linalg.norm(rows, axis=1)
    shares = np.linalg.lstsq(rows.T / lengths, np.ones(steps))[0] / lengths
    joined = LinearFilter(weights=shares @ rows, kept=float(shares @ [one.kept for one in filters]))
    return joined, np.asarray(shares @ np.array(weights))


_FEWEST_STEPS = 100


def weight_scores(
    before: ArrayLike,
    after: ArrayLike,
    canaries: DiracCanaries | BlockCanaries,
    *,
    filter: LinearFilter,
    clip_norm: float,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    background: ArrayLike | None = None,
) -> CanaryScores:
    """One score a canary from the weights before and after: its own sum of the released steps.

    Scaled such that the noise has its deviation in one step, ``clip_norm * noise_multiplier``, as
    in the scores of a transcript. They keep the weight of every step, so that bound and power are
    those of what the snapshots show, which is less than the steps themselves.

    Args:
        before: The first snapshot, flat.
        after: The last snapshot, flat.
        canaries: Who was planted where.
        filter: How the last snapshot follows from the first and the releases.
        clip_norm: Norm of a planted canary.
        sampling_rate: Probability that a present canary was planted in a step, by coins of its
            own; None where it was planted in steps that were fixed beforehand.
        noise_multiplier: The claimed noise multiplier, for the findings.
        background: What the other records' sums add up to along each canary, passed through the
            filter; None where it is unknown, as it is to whoever has only the weights.

    Raises:
        InvalidArgumentError: A snapshot has another size than the canaries' vector or is not
            finite, or an argument is outside its range.
    """
    _validate.magnitude(clip_norm=clip_norm)
    if sampling_rate is not None:
        _validate.within(0, 1, closed="right", sampling_rate=sampling_rate)
    if noise_multiplier is not None:
        _validate.magnitude(noise_multiplier=noise_multiplier)
    first, last = (
        np.asarray(canaries.project(finite_numbers(name, given)), dtype=np.float64)
        for name, given in (("before", before), ("after", after))
    )
    moved = filter.kept * first - last
    if background is not None:
        clean = finite_numbers("background", background)
        if clean.shape != moved.shape:
            raise InvalidArgumentError(
                f"Expected background to hold {moved.size} numbers, one a canary, got "
                f"{clean.size}. Project the sums with canaries.project."
            )
        moved = moved - clean
    sign = 1.0 if filter.weights.sum() >= 0.0 else -1.0
    weights = sign * filter.weights
    even = bool((weights == weights[0]).all())
    sampled = sampling_rate is not None and sampling_rate < 1.0
    equal_steps = weights.size if even else math.floor(filter.effective_steps)
    # Few equal steps are no good stand-in for uneven ones; checks of the scores use no other law.
    counted = sampled and (even or equal_steps >= _FEWEST_STEPS)
    weighted = None
    if sampled and not even:
        assert sampling_rate is not None
        weighted = StepWeights.of(weights, sampling_rate)
    return CanaryScores(
        score=sign * moved / filter.length,
        member=canaries.member,
        metadata=ScoreMetadata(
            steps=equal_steps if counted else None,
            sampling_rate=sampling_rate if counted else None,
            clip_norm=clip_norm if counted else None,
            noise_multiplier=noise_multiplier,
            weighted=weighted,
            background="unknown" if background is None else "known",
            fair_coins=canaries.fair_coins,
            noise="gaussian",
        ),
    )


def every_so_often(steps: int, *, every: int = 1) -> NDArray[np.int64]:
    """Numbers of the steps, from 0, in which a canary of the hidden state is planted.

    The last step is one of them: noise that comes after a canary only hides it.

    Args:
        steps: Number of steps of the run.
        every: Plant in one of so many.

    Examples:
        >>> every_so_often(10, every=4)
        array([1, 5, 9])
    """
    _validate.integer(1, steps=steps)
    _validate.integer(1, every=every)
    return np.arange((steps - 1) % every, steps, every, dtype=np.int64)


def least_updated(before: ArrayLike, after: ArrayLike, count: int) -> NDArray[np.int64]:
    """Coordinates that a rehearsal without noise moved least: there the background is smallest.

    Choose canaries among them: ``DiracCanaries(present=, absent=, dimension=count)`` on the vector
    ``weights[least_updated(...)]``. The rehearsal must not be the run that is audited.

    Args:
        before: Weights before the rehearsal, flat.
        after: Weights after it.
        count: How many coordinates.

    Returns:
        Their numbers, in order.
    """
    first = finite_numbers("before", before)
    last = finite_numbers("after", after)
    if first.shape != last.shape:
        raise InvalidArgumentError(
            f"Expected before and after of one length, got {first.size} and {last.size}."
        )
    _validate.integer(1, count=count)
    _validate.within(0, first.size, closed="right", count=count)
    moved = np.abs(last - first)
    return np.sort(np.argpartition(moved, count - 1)[:count]).astype(np.int64)
