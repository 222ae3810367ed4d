"""What a measured leak of DP-SGD amounts to, from below; and quickly, for the power of an audit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from askgauss import _validate
from askgauss.stats.composition import (
    LARGEST_FFT,
    WIDEST,
    convolve,
    hockey_stick_epsilon,
    loss_deviation,
    loss_range,
    merged_replaced_step,
    merged_step,
    replaced_deviation,
    replaced_range,
    rounding_error,
    self_convolve,
    threshold_epsilon,
)
from askgauss.stats.gaussian import gdp_epsilon, gdp_mu
from askgauss.stats.limits import close_bracket, level_bracket

__all__ = [
    "COARSE",
    "FINE",
    "SMALL",
    "LossGrid",
    "dpsgd_epsilon_lower",
    "dpsgd_signal_to_noise",
    "quick_signal_to_noise",
    "replaced_epsilon_lower",
    "schedule_epsilon_lower",
    "schedule_factor",
    "schedule_levels",
]

Array = NDArray[np.float64]
Schedule = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrid:
    """The grid on which privacy losses are composed: a lower bound on any, closer on a finer one.

    Attributes:
        resolution: Points per standard deviation of one step's privacy loss. The error is of second
            order.
        step_points: Where a step's own grid ends to be dense; as many as are useful if None.
        run_points: The longest grid of a run.
    """

    resolution: float
    step_points: int | None = None
    run_points: int = LARGEST_FFT


FINE = LossGrid(resolution=100.0)
# At most two parts in a thousand below the fine one where epsilon is above .1.
COARSE = LossGrid(resolution=12.0)
# A few parts in a thousand below where epsilon is between .1 and 30 and the rate .001 or above; at
# lower rates the bound may be 0.
SMALL = LossGrid(resolution=12.0, step_points=100, run_points=1 << 16)
# Signal that is not heard beside one a thousand million times as loud.
_INAUDIBLE = 1e-9
# More signal than this is taken for this, which leaks no more: its square is a number.
_LOUDEST = 1e140
# A rate between this and 1 is taken for this, which leaks less: beside 1 its rest is lost.
_OFTENEST = 1.0 - 1e-9
# Different steps that a schedule is rounded to, and the grid points per deviation of one: each
# costs time.
_SCHEDULE_LEVELS = 64
_SCHEDULE_RESOLUTION = 20.0
# Beyond this (epsilon is then in the tens of thousands) a cruder bound takes over.
_LONGEST_RANGE = 1e4


def check_run(sampling_rate: float, steps: int) -> None:
    """Refuse what is no run of Poisson-sampled steps."""
    _validate.within(0.0, 1.0, closed="right", sampling_rate=sampling_rate)
    _validate.count(steps=steps)


def ever_sampled(sampling_rate: float, steps: int) -> float:
    """Probability that a record is in any batch at all."""
    return -math.expm1(steps * _log1p(-sampling_rate))


def noiseless_epsilon(sampling_rate: float, steps: int, delta: float) -> float:
    """Without noise a record shows for certain once it is sampled, and not before."""
    return math.inf if delta < ever_sampled(sampling_rate, steps) else 0.0


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1.0 else -math.inf


def dpsgd_epsilon_lower(
    *,
    signal_to_noise: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    grid: LossGrid = FINE,
) -> float:
    """The epsilon that a signal-to-noise ratio amounts to over a DP-SGD run, from below.

    Each step is replaced by one that can be computed from it: its outcomes are merged into groups
    whose likelihood ratios lie on a grid, so that the sum over the run is a power in Fourier space.
    Merging can only hide, so the result is a lower bound whatever the grid; the fine one, a
    hundredth of a standard deviation of the privacy loss, costs some parts in 100 000 of epsilon.

    The grid is `FINE`, or a quicker one that takes some milliseconds: `COARSE` for the power of an
    audit, `SMALL` for a bound during training.

    Returns:
        A lower bound on epsilon, increasing in each argument but delta (up to its own error).

    Assumes:
        Poisson sampling and independent Gaussian noise in every step.

    Guarantee:
        Never above the true epsilon; rounding is paid for by raising delta by some 1e-15 a step.

    Examples:
        >>> run = {"sampling_rate": 0.08, "steps": 2500, "delta": 1e-5}
        >>> round(dpsgd_epsilon_lower(signal_to_noise=0.4, **run), 3)
        8.086
        >>> round(dpsgd_epsilon_lower(signal_to_noise=0.4, grid=SMALL, **run), 1)
        8.1
    """
    check_run(sampling_rate, steps)
    _validate.probability(delta=delta)
    if signal_to_noise != math.inf:
        _validate.non_negative(signal_to_noise=signal_to_noise)
    signal, rate = float(signal_to_noise), float(sampling_rate)
    return _epsilon_lower(signal, rate, int(steps), float(delta), grid)


def dpsgd_signal_to_noise(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The signal-to-noise ratio that contradicts a claimed epsilon.

    Returns:
        The C / sigma at which `dpsgd_epsilon_lower` passes ``epsilon``, to seven digits and rounded
        up, so that a run at or above it breaks the claim. Infinite if a record is sampled at all
        with probability ``delta`` or less: then nothing does.

    Examples:
        >>> dpsgd_signal_to_noise(epsilon=4.3772, delta=1e-5, sampling_rate=1.0, steps=1)
        1.00000...
    """
    check_run(sampling_rate, steps)
    _validate.within(0, _validate.LARGEST, closed="right", epsilon=epsilon)
    _validate.probability(delta=delta)
    return _signal_to_noise(float(epsilon), float(delta), float(sampling_rate), int(steps))


def schedule_epsilon_lower(
    *, signal_to_noise: NDArray[np.float64], sampling_rate: float, delta: float
) -> float:
    """Epsilon that steps which differ in their signal-to-noise ratio leak at least.

    Args:
        signal_to_noise: The ratio C / sigma of every step, each 0 or above and finite.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        delta: Delta, in (0, 1).

    Returns:
        A lower bound on epsilon; see `schedule_levels`.

    Examples:
        >>> ratios = np.array([0.5, 0.5, 0.5, 0.5])
        >>> schedule_epsilon_lower(signal_to_noise=ratios, sampling_rate=1.0, delta=1e-5)  # exact
        4.377178...
    """
    ratios = _checked(signal_to_noise)
    check_run(sampling_rate, ratios.size)
    _validate.probability(delta=delta)
    return _schedule_epsilon(schedule_levels(ratios), float(sampling_rate), float(delta))


def schedule_factor(
    *, epsilon: float, signal_to_noise: NDArray[np.float64], sampling_rate: float, delta: float
) -> float:
    """The factor on all ratios of a schedule at which it contradicts a claimed epsilon.

    To four digits and rounded up, so that a run at or above it breaks the claim; infinite where
    nothing does.
    """
    ratios = _checked(signal_to_noise)
    check_run(sampling_rate, ratios.size)
    _validate.within(0, _validate.LARGEST, closed="right", epsilon=epsilon)
    _validate.probability(delta=delta)
    return _schedule_factor(
        float(epsilon), schedule_levels(ratios), float(sampling_rate), float(delta)
    )


def _checked(signal_to_noise: ArrayLike) -> Array:
    ratios = np.asarray(signal_to_noise)
    if ratios.dtype.kind not in "iuf" or ratios.ndim != 1 or not np.all(ratios >= 0.0):
        raise _validate.fail("signal_to_noise", signal_to_noise, "to be numbers >= 0, one a step")
    return ratios.astype(np.float64, copy=False)


def schedule_levels(ratios: Array) -> Schedule:
    """Different signal-to-noise ratios and their numbers of steps; many are rounded down to a few.

    A smaller ratio leaks less, so that what is composed of these is a lower bound.
    """
    values, counts = np.unique(np.minimum(ratios, _LOUDEST), return_counts=True)
    if values.size > _SCHEDULE_LEVELS:
        # Equal steps of the 3/2th power: between equal shares of the leak and of the logarithm.
        scale = values**1.5
        edges = np.linspace(scale[0], scale[-1], _SCHEDULE_LEVELS)
        group = np.searchsorted(edges, scale * (1.0 + 1e-12), side="right") - 1
        lowest = np.minimum.reduceat(values, np.unique(group, return_index=True)[1])
        counts = np.bincount(np.unique(group, return_inverse=True)[1], counts).astype(np.int64)
        values = lowest
    return tuple((float(value), int(count)) for value, count in zip(values, counts, strict=True))


@lru_cache(maxsize=256)
def _schedule_epsilon(levels: Schedule, sampling_rate: float, delta: float) -> float:
    # Next to the loudest, steps of far less signal tell nothing; leaving them out is safe.
    least = _INAUDIBLE * max((ratio for ratio, _ in levels), default=0.0)
    levels = tuple((ratio, count) for ratio, count in levels if ratio > least)
    if len(levels) < 2:
        return _epsilon_lower(levels[0][0], sampling_rate, levels[0][1], delta) if levels else 0.0
    if sampling_rate == 1.0:
        return gdp_epsilon(delta, math.sqrt(sum(count * ratio**2 for ratio, count in levels)))
    steps = sum(count for _, count in levels)
    apart = sum(_step_distance(ratio, sampling_rate) * count for ratio, count in levels)
    if apart <= delta + rounding_error(steps):
        return 0.0
    sampling_rate = min(sampling_rate, _OFTENEST)
    # Where the run is too wide for one grid, the steps that leak most speak for it.
    loudest = levels[-1]
    if np.ptp(loss_range(loudest[0], sampling_rate)) > _LONGEST_RANGE:
        return _epsilon_lower(loudest[0], sampling_rate, loudest[1], delta)
    resolution = min(_SCHEDULE_RESOLUTION, max(5.0, 4e4 / math.sqrt(steps)))
    variance = sum(count * loss_deviation(ratio, sampling_rate) ** 2 for ratio, count in levels)
    interval = min(math.sqrt(variance / steps) / resolution, WIDEST)
    while interval <= WIDEST:
        merged = [merged_step(ratio, sampling_rate, interval) for ratio, _ in levels]
        parts = [(step[1], step[2], count) for step, (_, count) in zip(merged, levels, strict=True)]
        composed = convolve(parts)
        if composed is not None:
            first, masses = composed
            origin = sum(step[0] * count for step, (_, count) in zip(merged, levels, strict=True))
            return hockey_stick_epsilon(origin + interval * first, interval, masses, delta, steps)
        interval *= 4.0
    return _epsilon_lower(loudest[0], sampling_rate, loudest[1], delta)


@lru_cache(maxsize=64)
def _schedule_factor(epsilon: float, levels: Schedule, sampling_rate: float, delta: float) -> float:
    steps = sum(count for _, count in levels)
    if _nothing_shows(sampling_rate, steps, delta) or levels[-1][0] == 0.0:
        return math.inf

    def leak(factor: float) -> float:
        scaled = tuple((factor * ratio, count) for ratio, count in levels)
        return _schedule_epsilon(scaled, sampling_rate, delta)

    return level_bracket(leak, epsilon, 1.0, tolerance=1e-5)[1]


@lru_cache(maxsize=256)
def _signal_to_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    if _nothing_shows(sampling_rate, steps, delta):
        return math.inf
    start = _central_limit_signal(epsilon, delta, sampling_rate, steps)

    def leak(signal_to_noise: float) -> float:
        return _epsilon_lower(signal_to_noise, sampling_rate, steps, delta)

    return level_bracket(leak, epsilon, start)[1]


def quick_signal_to_noise(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The signal-to-noise ratio of a run whose epsilon is this: for power, not for bounds.

    Returns:
        The C / sigma at which `dpsgd_epsilon_lower` on the coarse grid is ``epsilon``, to a few
        parts in 10 000; infinite where no noise is needed to keep to it.

    Examples:
        >>> run = {"sampling_rate": 0.08, "steps": 2500, "delta": 1e-5}
        >>> round(quick_signal_to_noise(epsilon=8.086, **run), 2)
        0.4
    """
    check_run(sampling_rate, steps)
    _validate.within(0, _validate.LARGEST, closed="right", epsilon=epsilon)
    _validate.probability(delta=delta)
    return _quick_signal_to_noise(float(epsilon), float(delta), float(sampling_rate), int(steps))


@lru_cache(maxsize=1024)
def _quick_signal_to_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    if _nothing_shows(sampling_rate, steps, delta):
        return math.inf
    start = _central_limit_signal(epsilon, delta, sampling_rate, steps)
    if sampling_rate == 1.0:
        return start  # exact: nothing is sampled

    def margin(ratio: float) -> float:
        return epsilon - _epsilon_lower(start * ratio, sampling_rate, steps, delta, COARSE)

    # The central limit is a few percent off in ordinary runs, so a narrow bracket nearly always
    # holds, and the root is close to the straight line through its ends.
    low = high = 1.0
    at_low = at_high = margin(1.0)
    factor = 1.05
    while at_low <= 0.0:
        high, at_high = low, at_low
        low, factor = low / factor, factor**2
        at_low = margin(low)
    while at_high > 0.0:
        if start * high > _LOUDEST:
            return math.inf
        low, at_low = high, at_high
        high, factor = high * factor, factor**2
        at_high = margin(high)
    return start * close_bracket(margin, low, at_low, high, at_high, 1e-4)


def _nothing_shows(sampling_rate: float, steps: int, delta: float) -> bool:
    """Whether delta, with what rounding takes, covers all that the least noise could hide."""
    return noiseless_epsilon(sampling_rate, steps, delta + rounding_error(steps)) == 0.0


def _central_limit_signal(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The ratio by the central limit theorem, mu^2 = q^2 T (e^(1/s^2) - 1); exact at q = 1."""
    mu = gdp_mu(epsilon, delta)
    if sampling_rate == 1.0:
        return mu / math.sqrt(steps)
    return math.sqrt(math.log1p((mu / sampling_rate) ** 2 / steps))


@lru_cache(maxsize=2048)
def _epsilon_lower(
    signal: float, sampling_rate: float, steps: int, delta: float, grid: LossGrid = FINE
) -> float:
    if signal == math.inf:
        return noiseless_epsilon(sampling_rate, steps, delta)
    signal = min(signal, _LOUDEST)
    if sampling_rate == 1.0:
        return gdp_epsilon(delta, math.sqrt(steps) * signal)
    if _hidden(signal, sampling_rate, steps, delta):
        return 0.0
    return _composed_lower(signal, sampling_rate, steps, delta, grid)


def _step_distance(signal: float, sampling_rate: float) -> float:
    """Total variation of a step between neighbouring datasets."""
    return sampling_rate * (1.0 - 2.0 * float(ndtr(-signal / 2.0)))


def _hidden(signal: float, sampling_rate: float, steps: int, delta: float) -> bool:
    """Whether delta covers the total variation of the run: at most the sum over its steps."""
    return steps * _step_distance(signal, sampling_rate) <= delta + rounding_error(steps)


def _composed_lower(
    signal: float, sampling_rate: float, steps: int, delta: float, grid: LossGrid
) -> float:
    sampling_rate = min(sampling_rate, _OFTENEST)
    resolution = _resolution(grid, steps)
    if np.ptp(loss_range(signal, sampling_rate)) <= _LONGEST_RANGE:
        interval = min(loss_deviation(signal, sampling_rate) / resolution, WIDEST)
        while interval <= WIDEST:
            epsilon = _merged_epsilon(signal, sampling_rate, steps, delta, interval, grid)
            if epsilon is not None:
                return epsilon
            interval *= 4.0  # a coarser grid is as valid, and as good where losses spread this far
    return threshold_epsilon(signal, sampling_rate, steps, delta)


def _resolution(grid: LossGrid, steps: int) -> float:
    """Long runs have a wide distribution of losses and need, and get, fewer points a step."""
    return min(grid.resolution, max(5.0, 4e4 / math.sqrt(steps)))


@lru_cache(maxsize=1024)
def replaced_epsilon_lower(
    *, signal_to_noise: float, sampling_rate: float, steps: int, delta: float, quick: bool = False
) -> float:
    """Lower bound on the epsilon of a run in which a record is exchanged for its opposite.

    Args:
        signal_to_noise: Contribution of a record over the noise deviation, above 0 and finite.
        sampling_rate: Probability that a record joins a batch, in (0, 1).
        steps: Number of steps.
        delta: Delta, in (0, 1).
        quick: Whether a coarse grid will do: for power, not for bounds.

    Returns:
        Epsilon of replace-one neighbours, from below; 0 where losses spread too far for one grid.

    Examples:
        >>> round(replaced_epsilon_lower(
        ...     signal_to_noise=1.0, sampling_rate=0.1, steps=100, delta=1e-5), 1)
        10.5
    """
    low, high = replaced_range(signal_to_noise, sampling_rate)
    if high - low > _LONGEST_RANGE:
        return 0.0
    resolution = _resolution(COARSE if quick else FINE, steps)
    deviation = replaced_deviation(signal_to_noise, sampling_rate)
    interval = min(deviation / resolution, WIDEST)
    while 0.0 < interval <= WIDEST:
        merged = merged_replaced_step(signal_to_noise, sampling_rate, interval)
        epsilon = _composed_epsilon(merged, steps, delta, interval)
        if epsilon is not None:
            return epsilon
        interval *= 4.0
    return 0.0


def _merged_epsilon(
    signal: float, sampling_rate: float, steps: int, delta: float, interval: float, grid: LossGrid
) -> float | None:
    """Epsilon of a run of merged steps, present over absent; None if the grid is too long.

    One direction is enough for a lower bound, and this one was the larger in all of 1500 random
    settings.
    """
    dense = () if grid.step_points is None else (grid.step_points,)
    merged = merged_step(signal, sampling_rate, interval, *dense)
    return _composed_epsilon(merged, steps, delta, interval, grid.run_points)


def _composed_epsilon(
    merged: tuple[float, NDArray[np.int64], Array],
    steps: int,
    delta: float,
    interval: float,
    longest: int = LARGEST_FFT,
) -> float | None:
    loss, indices, mass = merged
    composed = self_convolve(indices, mass, steps, longest)
    if composed is None:
        return None
    first, masses = composed
    return hockey_stick_epsilon(steps * loss + interval * first, interval, masses, delta, steps)
