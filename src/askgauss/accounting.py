"""How private DP-SGD is: what an accountant claims, and what a measured leak amounts to.

The mechanism throughout is the Poisson-subsampled Gaussian under add/remove neighbours. In units of
the noise, one step shows of a canary one draw of

    absent   N(0, 1)
    present  (1 - q) N(0, 1) + q N(C / sigma, 1)        C / sigma = 1 / noise multiplier

and the run is ``steps`` independent draws. Its epsilon has no closed form, and the two sides of it
serve two purposes that are never interchanged:

* A *claim* must not be too low. `dpsgd_epsilon`, `dpsgd_delta`, `history_epsilon`,
  `dpsgd_noise_multiplier` and `dpsgd_tradeoff` come from dp-accounting's privacy loss distribution
  (connect the dots, Doroshenko et al., arXiv 2207.04380), which errs upwards.
* An *audit* must not be too high. `dpsgd_epsilon_lower` and `dpsgd_signal_to_noise` compose a step
  that can be computed from the true one, so leaks no more than it, and err downwards.

They are some parts in 10 000 apart at ordinary settings, and both exact at sampling rate 1. The
*power* of an audit needs neither side, only speed: `quick_epsilon` and `quick_signal_to_noise` are
the same composition on a coarser grid, right to two parts in a thousand, and decide nothing.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, log_ndtr, ndtr

from askgauss import _validate
from askgauss.stats.gaussian import gdp_delta, gdp_epsilon, gdp_mu
from askgauss.stats.search import close_bracket
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "dpsgd_delta",
    "dpsgd_epsilon",
    "dpsgd_epsilon_lower",
    "dpsgd_noise_multiplier",
    "dpsgd_signal_to_noise",
    "dpsgd_tradeoff",
    "fixed_size_epsilon",
    "history_epsilon",
    "quick_epsilon",
    "quick_signal_to_noise",
    "schedule_epsilon_lower",
    "schedule_factor",
    "schedule_levels",
    "truncated_epsilon",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
History = tuple[tuple[float, float, int], ...]
Schedule = tuple[tuple[float, int], ...]

# Grid points per standard deviation of one step's privacy loss. The error is of second order.
_CLAIM_RESOLUTION = 50.0
_AUDIT_RESOLUTION = 100.0
_RAREST = 1e-9
# Signal that is not heard beside one a thousand million times as loud.
_INAUDIBLE = 1e-9
# Different steps that a schedule is rounded to, and the grid points per deviation of one: each
# costs time.
_SCHEDULE_LEVELS = 64
_SCHEDULE_RESOLUTION = 20.0
_QUICK_RESOLUTION = 12.0
# dp-accounting builds and reads its grids in Python loops; this many points take about a second.
_CLAIM_POINTS = 1e5
# No grid gets coarser than this while it fits: in wider cells averages of e^loss say too little.
_WIDEST = 0.1
# Beyond these sizes (epsilon is then in the tens of thousands) a cruder bound takes over.
_LONGEST_RANGE = 1e4
_LARGEST_FFT = 1 << 21
# A trade-off curve is made of this many lines, none steeper than a float holds.
_PROFILE_POINTS = 2001
_STEEPEST = 700.0
# Mass that may fall outside the window of the Fourier transform.
_OUTSIDE = 1e-15
# Standard deviations of noise that are resolved; the rest is one cell on either side.
_TAIL = 9.0


def _rounding(steps: int) -> float:
    """Bound on the rounding error in delta of a distribution raised to a power by Fourier.

    In extended precision the sum of all errors came to 3e-16 a step or less.
    """
    return 1e-15 * (steps + 1000)


# --------------------------------------------------------------------------- claims, from above


def dpsgd_epsilon(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """The epsilon an accountant claims for DP-SGD.

    Args:
        noise_multiplier: Noise deviation over clipping norm; 0 or above.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Returns:
        An upper bound on epsilon, infinite without noise.

    Assumes:
        Poisson sampling, add/remove neighbours, independent Gaussian noise.

    Examples:
        >>> dpsgd_epsilon(noise_multiplier=1.0, sampling_rate=1.0, steps=1, delta=1e-5)  # exact
        4.377178...
    """
    _check_run(sampling_rate, steps)
    _validate.non_negative(noise_multiplier=noise_multiplier)
    _validate.probability(delta=delta)
    if noise_multiplier == 0.0:
        return _noiseless_epsilon(sampling_rate, steps, delta)
    return history_epsilon([(noise_multiplier, sampling_rate, steps)], delta)


def dpsgd_delta(
    *, noise_multiplier: float, sampling_rate: float, steps: int, epsilon: float
) -> float:
    """The delta an accountant claims for DP-SGD.

    Args:
        noise_multiplier: Noise deviation over clipping norm; 0 or above.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.
        epsilon: Epsilon, 0 or above.

    Returns:
        An upper bound on delta; below about 1e-12 it is only the resolution of the method.

    Examples:
        >>> dpsgd_delta(noise_multiplier=1.0, sampling_rate=1.0, steps=1, epsilon=1.0)  # exact
        0.126936...
    """
    _check_run(sampling_rate, steps)
    _validate.non_negative(noise_multiplier=noise_multiplier, epsilon=epsilon)
    if noise_multiplier == 0.0:
        return _ever_sampled(sampling_rate, steps)
    if sampling_rate == 1.0:
        return gdp_delta(float(epsilon), math.sqrt(steps) / noise_multiplier)
    loss = _composed(((float(noise_multiplier), float(sampling_rate), int(steps)),))
    return min(1.0, float(loss.get_delta_for_epsilon(float(epsilon))) + _rounding(steps))


def history_epsilon(history: Iterable[tuple[float, float, int]], delta: float) -> float:
    """The epsilon an accountant claims for DP-SGD whose settings changed on the way.

    Args:
        history: Segments (noise multiplier, sampling rate, steps), as an Opacus accountant keeps
            them in its ``history``.
        delta: Delta, in (0, 1).

    Returns:
        An upper bound on epsilon: 0 for an empty history, infinite if a segment has no noise.

    Examples:
        >>> history_epsilon([(2.0, 1.0, 1), (2.0, 1.0, 3)], delta=1e-5)  # exact: one of 1.0
        4.377178...
    """
    _validate.probability(delta=delta)
    merged: dict[tuple[float, float], int] = {}
    for noise_multiplier, sampling_rate, steps in history:
        _check_run(sampling_rate, steps)
        _validate.non_negative(noise_multiplier=noise_multiplier)
        key = (float(noise_multiplier), float(sampling_rate))
        merged[key] = merged.get(key, 0) + int(steps)
    if any(noise == 0.0 for noise, _ in merged):
        return math.inf
    if all(rate == 1.0 for _, rate in merged):
        mu = math.sqrt(sum(steps / noise**2 for (noise, _), steps in merged.items()))
        return gdp_epsilon(float(delta), mu)
    rounding = _rounding(sum(merged.values()))
    if delta <= 2.0 * rounding:
        hint = "Below that, the rounding of the Fourier transform outweighs delta."
        raise _validate.fail("delta", delta, f"> {2.0 * rounding:.2g} for that many steps", hint)
    segments = tuple((noise, rate, steps) for (noise, rate), steps in sorted(merged.items()))
    return float(_composed(segments).get_epsilon_for_delta(delta - rounding))


def dpsgd_noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The noise multiplier with which DP-SGD may claim (epsilon, delta).

    Args:
        epsilon: Epsilon to keep to, above 0.
        delta: Delta, in (0, 1).
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.

    Returns:
        The smallest such noise multiplier to seven digits, rounded up: `dpsgd_epsilon` of it is at
        most ``epsilon``. 0 if a record is sampled at all with probability ``delta`` or less.

    Examples:
        >>> dpsgd_noise_multiplier(epsilon=4.3772, delta=1e-5, sampling_rate=1.0, steps=1)
        0.99999...
    """
    signal = dpsgd_signal_to_noise(
        epsilon=epsilon, delta=delta, sampling_rate=sampling_rate, steps=steps
    )
    if signal == math.inf:
        return 0.0

    def claimed(signal_to_noise: float) -> float:
        return dpsgd_epsilon(
            noise_multiplier=1.0 / signal_to_noise,
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
        )

    return 1.0 / _bracket(claimed, epsilon, signal)[0]


def dpsgd_tradeoff(*, noise_multiplier: float, sampling_rate: float, steps: int) -> TradeOff:
    """The trade-off curve an accountant claims for DP-SGD, the lower of both directions.

    Args:
        noise_multiplier: Noise deviation over clipping norm, above 0.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.

    Returns:
        A curve at or below the mechanism's: what contradicts it contradicts the mechanism.
        True positive rates below about 1e-11 are not resolved and cost nothing.

    Examples:
        >>> curve = dpsgd_tradeoff(noise_multiplier=2.0, sampling_rate=1.0, steps=4)  # exact
        >>> round(curve.inverse_blow_up(0.5), 4)
        0.1587
    """
    _check_run(sampling_rate, steps)
    _validate.positive(noise_multiplier=noise_multiplier)
    if sampling_rate == 1.0:
        return TradeOff.gaussian(math.sqrt(steps) / noise_multiplier)
    return _tradeoff(float(noise_multiplier), float(sampling_rate), int(steps))


@lru_cache(maxsize=64)
def _tradeoff(noise_multiplier: float, sampling_rate: float, steps: int) -> TradeOff:
    loss = _composed(((noise_multiplier, sampling_rate, steps),))
    rounding = _rounding(steps)
    top = min(float(loss.get_epsilon_for_delta(rounding)), _STEEPEST)
    levels = np.unique(np.linspace(0.0, top, _PROFILE_POINTS))
    deltas = np.asarray(loss.get_delta_for_epsilon(levels.tolist()), dtype=np.float64)
    return TradeOff.from_profile(levels, np.clip(deltas + rounding, 0.0, 1.0))


def fixed_size_epsilon(
    *, noise_multiplier: float, batch: int, records: int, steps: int, delta: float
) -> float:
    """The epsilon an accountant claims for batches of a fixed size, under replace-one neighbours.

    By Renyi divergences (Wang, Balle and Kasiviswanathan, arXiv 1808.00087), which is loose.

    Args:
        noise_multiplier: Noise deviation over clipping norm; 0 or above.
        batch: Records in a batch, drawn without replacement, afresh in every step.
        records: Records in all.
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Returns:
        An upper bound on epsilon, infinite without noise. Replacing a record moves the sum by up to
        twice the clipping norm.
    """
    if noise_multiplier == 0.0:
        return math.inf
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    step = dp_accounting.SampledWithoutReplacementDpEvent(
        records, batch, dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)
    )
    return float(accountant.compose(step, int(steps)).get_epsilon(delta))


def truncated_epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    cap: int,
    records: int,
    steps: int,
    delta: float,
) -> float:
    """The epsilon an accountant claims for Poisson sampling with a largest batch.

    By the privacy loss distribution of arXiv 2508.15089, add-remove neighbours.

    Args:
        noise_multiplier: Noise deviation over clipping norm; 0 or above.
        sampling_rate: Probability that a record joins a batch before the cap, in (0, 1].
        cap: Largest batch; larger ones are cut at random.
        records: Records in all.
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Returns:
        An upper bound on epsilon, infinite without noise.
    """
    _check_run(sampling_rate, steps)
    if noise_multiplier == 0.0:
        return math.inf
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = min(
        _loss_deviation(1.0 / noise_multiplier, sampling_rate) / _CLAIM_RESOLUTION, _WIDEST
    )
    width = float(np.ptp(_loss_range(2.0 / noise_multiplier, sampling_rate)))
    step = pld.from_truncated_subsampled_gaussian_mechanism(
        records,
        sampling_rate,
        cap,
        noise_multiplier,
        value_discretization_interval=max(interval, width / _CLAIM_POINTS),
    )
    composed = step.self_compose(int(steps))
    return float(composed.get_epsilon_for_delta(delta - min(_rounding(steps), 0.5 * delta)))


def _check_run(sampling_rate: float, steps: int) -> None:
    _validate.within(0.0, 1.0, closed="right", sampling_rate=sampling_rate)
    _validate.integer(1, steps=steps)


def _ever_sampled(sampling_rate: float, steps: int) -> float:
    return -math.expm1(steps * _log1p(-sampling_rate))


def _noiseless_epsilon(sampling_rate: float, steps: int, delta: float) -> float:
    """Without noise a record shows for certain once it is sampled, and not before."""
    return math.inf if delta < _ever_sampled(sampling_rate, steps) else 0.0


def _log1p(x: float) -> float:
    return math.log1p(x) if x > -1.0 else -math.inf


@lru_cache(maxsize=8)
def _composed(history: History) -> Any:
    """dp-accounting's privacy loss distribution of a run, pessimistic, both directions."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Rarer records leak less; beside 1, dp-accounting cannot tell how much less.
    history = tuple((noise, max(rate, _RAREST), steps) for noise, rate, steps in history)
    total = sum(steps for _, _, steps in history)
    variance = sum(
        steps * _loss_deviation(1.0 / noise, rate) ** 2 for noise, rate, steps in history
    )
    widths = [float(np.ptp(_loss_range(1.0 / noise, rate))) for noise, rate, _ in history]
    interval = min(math.sqrt(variance / total) / _CLAIM_RESOLUTION, _WIDEST)
    interval = max(interval, max(widths) / _CLAIM_POINTS, math.sqrt(variance) / _CLAIM_POINTS)
    run = None
    for noise_multiplier, sampling_rate, steps in history:
        step = pld.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sampling_rate,
            value_discretization_interval=interval,
            use_connect_dots=True,
            pessimistic_estimate=True,
        )
        segment = step.self_compose(steps)
        run = segment if run is None else run.compose(segment, tail_mass_truncation=_OUTSIDE)
    return run


# ---------------------------------------------------------------------------- audits, from below


def dpsgd_epsilon_lower(
    *, signal_to_noise: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """The epsilon that a signal-to-noise ratio amounts to over a DP-SGD run, from below.

    Each step is replaced by one that can be computed from it: its outcomes are merged into groups
    whose likelihood ratios lie on a grid, so that the sum over the run is a power in Fourier space.
    Merging can only hide, so the result is a lower bound whatever the grid; the grid, a hundredth
    of a standard deviation of the privacy loss, costs some parts in 100 000 of epsilon.

    Args:
        signal_to_noise: Contribution of a record over the noise deviation, C / sigma; infinite
            where there is no noise.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.
        delta: Delta, in (0, 1).

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
    """
    _check_run(sampling_rate, steps)
    _validate.probability(delta=delta)
    if signal_to_noise != math.inf:
        _validate.non_negative(signal_to_noise=signal_to_noise)
    return _epsilon_lower(float(signal_to_noise), float(sampling_rate), int(steps), float(delta))


def dpsgd_signal_to_noise(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The signal-to-noise ratio that contradicts a claimed epsilon.

    Args:
        epsilon: Claimed epsilon, above 0.
        delta: Claimed delta, in (0, 1).
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.

    Returns:
        The C / sigma at which `dpsgd_epsilon_lower` passes ``epsilon``, to seven digits and rounded
        up, so that a run at or above it breaks the claim. Infinite if a record is sampled at all
        with probability ``delta`` or less: then nothing does.

    Examples:
        >>> dpsgd_signal_to_noise(epsilon=4.3772, delta=1e-5, sampling_rate=1.0, steps=1)
        1.00000...
    """
    _check_run(sampling_rate, steps)
    _validate.positive(epsilon=epsilon)
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
    ratios = np.asarray(signal_to_noise, dtype=np.float64)
    _check_run(sampling_rate, ratios.size)
    _validate.probability(delta=delta)
    _validate.non_negative(signal_to_noise=float(ratios.min()))
    return _schedule_epsilon(schedule_levels(ratios), float(sampling_rate), float(delta))


def schedule_factor(
    *, epsilon: float, signal_to_noise: NDArray[np.float64], sampling_rate: float, delta: float
) -> float:
    """The factor on all ratios of a schedule at which it contradicts a claimed epsilon.

    To four digits and rounded up, so that a run at or above it breaks the claim; infinite where
    nothing does.
    """
    ratios = np.asarray(signal_to_noise, dtype=np.float64)
    _check_run(sampling_rate, ratios.size)
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    return _schedule_factor(
        float(epsilon), schedule_levels(ratios), float(sampling_rate), float(delta)
    )


def schedule_levels(ratios: Array) -> Schedule:
    """Different signal-to-noise ratios and their numbers of steps; many are rounded down to a few.

    A smaller ratio leaks less, so that what is composed of these is a lower bound.
    """
    values, counts = np.unique(ratios, return_counts=True)
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
    # Where the run is too wide for one grid, the steps that leak most speak for it.
    loudest = levels[-1]
    resolution = min(_SCHEDULE_RESOLUTION, max(5.0, 4e4 / math.sqrt(steps)))
    variance = sum(count * _loss_deviation(ratio, sampling_rate) ** 2 for ratio, count in levels)
    interval = min(math.sqrt(variance / steps) / resolution, _WIDEST)
    if np.ptp(_loss_range(loudest[0], sampling_rate)) > _LONGEST_RANGE:
        return _epsilon_lower(loudest[0], sampling_rate, loudest[1], delta)
    while interval <= _WIDEST:
        merged = [_merged_step(ratio, sampling_rate, interval) for ratio, _ in levels]
        parts = [(step[1], step[2], count) for step, (_, count) in zip(merged, levels, strict=True)]
        composed = _convolve(parts)
        if composed is not None:
            first, masses = composed
            origin = sum(step[0] * count for step, (_, count) in zip(merged, levels, strict=True))
            return _hockey_stick_epsilon(origin + interval * first, interval, masses, delta, steps)
        interval *= 4.0
    return _epsilon_lower(loudest[0], sampling_rate, loudest[1], delta)


@lru_cache(maxsize=64)
def _schedule_factor(epsilon: float, levels: Schedule, sampling_rate: float, delta: float) -> float:
    steps = sum(count for _, count in levels)
    if _noiseless_epsilon(sampling_rate, steps, delta) == 0.0 or levels[-1][0] == 0.0:
        return math.inf

    def leak(factor: float) -> float:
        scaled = tuple((factor * ratio, count) for ratio, count in levels)
        return _schedule_epsilon(scaled, sampling_rate, delta)

    return _bracket(leak, epsilon, 1.0, tolerance=1e-5)[1]


@lru_cache(maxsize=256)
def _signal_to_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    if _noiseless_epsilon(sampling_rate, steps, delta) == 0.0:
        return math.inf
    start = _central_limit_signal(epsilon, delta, sampling_rate, steps)

    def leak(signal_to_noise: float) -> float:
        return _epsilon_lower(signal_to_noise, sampling_rate, steps, delta)

    return _bracket(leak, epsilon, start)[1]


def quick_epsilon(
    *, signal_to_noise: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """`dpsgd_epsilon_lower` on a coarse grid, in some milliseconds: for power, not for bounds.

    Args:
        signal_to_noise: Contribution of a record over the noise deviation, 0 or above.
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.
        delta: Delta, in (0, 1).

    Returns:
        Epsilon, at most two parts in a thousand below `dpsgd_epsilon_lower` where that is above .1.

    Examples:
        >>> run = {"sampling_rate": 0.08, "steps": 2500, "delta": 1e-5}
        >>> round(quick_epsilon(signal_to_noise=0.4, **run), 1)
        8.1
    """
    _check_run(sampling_rate, steps)
    _validate.probability(delta=delta)
    if signal_to_noise != math.inf:
        _validate.non_negative(signal_to_noise=signal_to_noise)
    return _quick_epsilon(float(signal_to_noise), float(sampling_rate), int(steps), float(delta))


def quick_signal_to_noise(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The signal-to-noise ratio of a run whose epsilon is this: for power, not for bounds.

    Args:
        epsilon: Epsilon of the run, above 0.
        delta: Delta, in (0, 1).
        sampling_rate: Probability that a record joins a batch, in (0, 1].
        steps: Number of steps.

    Returns:
        The C / sigma at which `quick_epsilon` is ``epsilon``, to a few parts in 10 000; infinite
        where no noise is needed to keep to it.

    Examples:
        >>> run = {"sampling_rate": 0.08, "steps": 2500, "delta": 1e-5}
        >>> round(quick_signal_to_noise(epsilon=8.086, **run), 2)
        0.4
    """
    _check_run(sampling_rate, steps)
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    return _quick_signal_to_noise(float(epsilon), float(delta), float(sampling_rate), int(steps))


@lru_cache(maxsize=1024)
def _quick_epsilon(signal: float, sampling_rate: float, steps: int, delta: float) -> float:
    if signal == math.inf or sampling_rate == 1.0:
        return _epsilon_lower(signal, sampling_rate, steps, delta)
    return _composed_lower(signal, sampling_rate, steps, delta, _QUICK_RESOLUTION)


@lru_cache(maxsize=1024)
def _quick_signal_to_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    if _noiseless_epsilon(sampling_rate, steps, delta) == 0.0:
        return math.inf
    start = _central_limit_signal(epsilon, delta, sampling_rate, steps)
    if sampling_rate == 1.0:
        return start  # exact: nothing is sampled

    def margin(ratio: float) -> float:
        return epsilon - _quick_epsilon(start * ratio, sampling_rate, steps, delta)

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
        low, at_low = high, at_high
        high, factor = high * factor, factor**2
        at_high = margin(high)
    return start * close_bracket(margin, low, at_low, high, at_high, 1e-4)


def _central_limit_signal(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """The ratio by the central limit theorem, mu^2 = q^2 T (e^(1/s^2) - 1); exact at q = 1."""
    mu = gdp_mu(epsilon, delta)
    if sampling_rate == 1.0:
        return mu / math.sqrt(steps)
    return math.sqrt(math.log1p((mu / sampling_rate) ** 2 / steps))


def _bracket(
    function: Callable[[float], float], level: float, start: float, tolerance: float = 1e-8
) -> tuple[float, float]:
    """Positive x and y, a few tolerances apart, with f(x) <= level < f(y), for an increasing f."""
    from scipy.optimize import brentq

    low, high, factor = start, start, 1.0 + 1e-4
    while function(low) > level:
        low, high, factor = low / factor, low, min(factor**4, 1e3)
    while function(high) <= level:
        low, high, factor = high, high * factor, min(factor**4, 1e3)
    fine = 0.1 * tolerance
    root = float(brentq(lambda x: function(x) - level, low, high, xtol=fine * low, rtol=fine))
    low = high = root
    while function(low) > level:
        low *= 1.0 - tolerance
    while function(high) <= level:
        high *= 1.0 + tolerance
    return low, high


@lru_cache(maxsize=1024)
def _epsilon_lower(signal: float, sampling_rate: float, steps: int, delta: float) -> float:
    if signal == math.inf:
        return _noiseless_epsilon(sampling_rate, steps, delta)
    if sampling_rate == 1.0:
        return gdp_epsilon(delta, math.sqrt(steps) * signal)
    # The total variation of the run is at most the sum over its steps.
    if steps * sampling_rate * (1.0 - 2.0 * float(ndtr(-signal / 2.0))) <= delta:
        return 0.0
    return _composed_lower(signal, sampling_rate, steps, delta, _AUDIT_RESOLUTION)


def _composed_lower(
    signal: float, sampling_rate: float, steps: int, delta: float, most: float
) -> float:
    # Long runs have a wide distribution of losses and need, and get, fewer points a step.
    resolution = min(most, max(5.0, 4e4 / math.sqrt(steps)))
    interval = min(_loss_deviation(signal, sampling_rate) / resolution, _WIDEST)
    if np.ptp(_loss_range(signal, sampling_rate)) <= _LONGEST_RANGE:
        while interval <= _WIDEST:
            epsilon = _merged_epsilon(signal, sampling_rate, steps, delta, interval)
            if epsilon is not None:
                return epsilon
            interval *= 4.0  # a coarser grid is as valid, and as good where losses spread this far
    return _threshold_epsilon(signal, sampling_rate, steps, delta)


def _merged_epsilon(
    signal: float, sampling_rate: float, steps: int, delta: float, interval: float
) -> float | None:
    """Epsilon of a run of merged steps, present over absent; None if the grid is too long.

    One direction is enough for a lower bound, and this one was the larger in all of 1500 random
    settings.
    """
    loss, indices, mass = _merged_step(signal, sampling_rate, interval)
    composed = _self_convolve(indices, mass, steps)
    if composed is None:
        return None
    first, masses = composed
    return _hockey_stick_epsilon(steps * loss + interval * first, interval, masses, delta, steps)


def _log_odds_loss(log_odds: Array, sampling_rate: float) -> Array:
    """log(1 - q + q e^x): the privacy loss of a step in which the Gaussians alone have loss x."""
    q = sampling_rate
    with np.errstate(divide="ignore"):
        far = np.logaddexp(np.log1p(-q), math.log(q) + log_odds)
    return np.where(log_odds < 1.0, np.log1p(q * np.expm1(np.minimum(log_odds, 1.0))), far)


def _loss_log_odds(loss: Array, sampling_rate: float) -> Array:
    """The inverse of `_log_odds_loss`."""
    q = sampling_rate
    far = loss - math.log(q) + np.log1p((q - 1.0) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss < 1.0, np.log1p(np.expm1(np.minimum(loss, 1.0)) / q), far)


def _loss_range(signal: float, sampling_rate: float) -> Array:
    """Smallest and largest privacy loss of a step, but for the outermost noise."""
    ends = signal * np.array([-_TAIL - signal / 2.0, _TAIL + signal / 2.0])
    return _log_odds_loss(ends, sampling_rate)


def _loss_deviation(signal: float, sampling_rate: float) -> float:
    """Standard deviation of the privacy loss of a step under "present"."""
    noise = np.linspace(-_TAIL, _TAIL, 1201)
    weight = np.exp(-0.5 * noise * noise)
    weights = np.concatenate(((1.0 - sampling_rate) * weight, sampling_rate * weight))
    shifts = np.concatenate((noise - signal / 2.0, noise + signal / 2.0))
    losses = _log_odds_loss(signal * shifts, sampling_rate)
    mean = np.average(losses, weights=weights)
    return math.sqrt(np.average((losses - mean) ** 2, weights=weights))


def _log_mass(edges: Array) -> Array:
    """Log of the standard normal mass between neighbouring edges, exact in both tails."""
    low, high = edges[:-1], edges[1:]
    low, high = np.where(low > 0.0, -high, low), np.where(low > 0.0, -low, high)
    log_high = log_ndtr(high)
    return np.asarray(log_high + np.log(-np.expm1(log_ndtr(low) - log_high)))


def _merged_step(
    signal: float, sampling_rate: float, interval: float
) -> tuple[float, Integers, Array]:
    """Merge the outcomes of a step into groups with likelihood ratios on a grid.

    Cells of outcomes between grid points are gathered upwards, the last one in part, until their
    joint ratio is exactly the next grid point. Any such merging is post-processing, so the merged
    step leaks no more than the true one; and as it keeps each group's ratio there is no drift,
    only the little that the spread within a group would have told.

    Returns:
        The lowest log likelihood ratio; how many intervals above it each group is; and the
        probability of each group if the canary is present.
    """
    q = sampling_rate

    def losses(edges: Array) -> tuple[Array, Array]:
        absent, planted = _log_mass(edges), _log_mass(edges - signal)
        mass = (1.0 - q) * np.exp(absent) + q * np.exp(planted)
        return _log_odds_loss(planted - absent, q), mass

    def edge(loss: Array) -> Array:
        return np.asarray(_loss_log_odds(loss, q) / signal + signal / 2.0)

    # The lowest cell is a group of its own. With much signal it holds nearly every outcome in
    # which the record was not sampled, and the grid starts at exactly its ratio.
    low, high = _loss_range(signal, q).tolist()
    first = edge(np.array([low + 0.5 * interval]))
    origin = float(losses(np.concatenate(([-np.inf], first)))[0][0])
    index = _grid(origin, high, interval)
    index = index[(index == 0) | (origin + interval * index > low + 0.75 * interval)]
    targets = origin + interval * index
    edges = np.concatenate(([-np.inf], first, edge(targets[1:]), [np.inf]))
    cell_loss, cell_mass = (values.tolist() for values in losses(edges))
    groups, masses, rest = _gather(targets.tolist(), cell_loss, cell_mass)
    masses[-1] += rest  # what is left over at the very top counts as the group below it
    return origin, index[groups], np.array(masses)


def _grid(origin: float, high: float, interval: float) -> Integers:
    """Grid points to use: dense around no loss, then ever sparser, up to a spacing of _WIDEST."""
    count = max(1, math.ceil((high - origin) / interval))
    center = min(max(0, round(-origin / interval)), count)
    dense, sparsest = 1000, max(1, int(_WIDEST / interval))

    def outwards(limit: int) -> Integers:
        growth = np.exp(np.arange(1, math.ceil(dense * math.log(sparsest)) + 1) / dense)
        between = (dense * growth).astype(np.int64)
        outer = np.arange(dense * sparsest, limit, sparsest)
        points = np.concatenate((np.arange(dense + 1), between, outer))
        return np.append(np.unique(points[points < limit]), limit)

    return np.concatenate((center - outwards(center)[::-1], center + outwards(count - center)[1:]))


def _gather(
    targets: list[float], losses: list[float], masses: list[float]
) -> tuple[list[int], list[float], float]:
    """Gather cells, in order of their loss, into groups with exactly the target losses.

    Cell 0 has the first target for its loss and is the first group; cell i > 0 lies between
    targets i - 1 and i; one more cell lies above all targets.

    Returns:
        The targets reached, the mass "present" of each group, and what is left above the last.
    """
    groups, sums = [0], [masses[0]]
    cell, rest = 1, masses[1]
    mass = weight = 0.0  # gathered so far, and what the target's loss would make of it
    for target in range(1, len(targets)):
        weight *= math.exp(targets[target] - targets[target - 1])
        while True:
            missing = weight - mass
            surplus = -rest * math.expm1(targets[target] - losses[cell])
            if surplus > missing:
                break
            mass += rest
            weight += rest * math.exp(targets[target] - losses[cell])
            cell += 1
            if cell == len(masses):
                return groups, sums, mass
            rest = masses[cell]
        if mass > 0.0:
            part = rest * missing / surplus
            groups.append(target)
            sums.append(mass + part)
            rest -= part
            mass = weight = 0.0
    return groups, sums, mass + rest + sum(masses[cell + 1 :])


def _self_convolve(index: Integers, mass: Array, steps: int) -> tuple[int, Array] | None:
    """Distribution of the sum of ``steps`` draws of an integer; see `_convolve`."""
    return _convolve([(index, mass, steps)])


def _convolve(parts: list[tuple[Integers, Array, int]]) -> tuple[int, Array] | None:
    """Distribution of the sum of integers, so many draws of each kind.

    Args:
        parts: Of each kind its values, their probabilities and the number of draws.

    Returns:
        The integer of the first entry, and the probabilities from there on; None if they would be
        too many.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    steps = sum(count for _, _, count in parts)
    centred, origin, drift = [], 0, 0.0
    for index, mass, count in parts:
        kept = mass > 1e-18 / steps  # leaving some out lowers the bound, by far less than rounding
        index, mass = index[kept], mass[kept]
        center = round(float(index @ mass))
        centred.append((index - center, mass, count))
        origin += count * center
        drift += count * float((index - center) @ mass)
    mirrored = [(-offsets, mass, count) for offsets, mass, count in centred]
    low = math.floor(drift - _reach(mirrored))
    high = math.ceil(drift + _reach(centred))
    if high - low >= _LARGEST_FFT:
        return None
    size = next_fast_len(high - low + 1, real=True)
    # Around the mean, the phases that the power multiplies are small where anything is left.
    spectrum: Any = 1.0
    for offsets, mass, count in centred:
        spectrum = spectrum * (
            rfft(np.bincount(offsets % size, weights=mass, minlength=size)) ** count
        )
    return origin + low, np.roll(irfft(spectrum, size), -low)


def _reach(parts: list[tuple[Integers, Array, int]]) -> float:
    """How far the sum may rise above its mean with probability _OUTSIDE, by Chernoff's bound."""
    centred = [(offsets - float(offsets @ mass), mass, count) for offsets, mass, count in parts]
    variance = sum(count * float(offsets**2 @ mass) for offsets, mass, count in centred)
    if variance == 0.0:
        return 0.0
    orders = 16.0 * 2.0 ** (-0.5 * np.arange(20)) / math.sqrt(variance)
    log_moments, furthest = np.zeros(orders.size), 0.0
    for offsets, mass, count in centred:
        top = float(offsets.max())
        moments = np.exp(np.outer(orders, offsets - top)) @ mass
        log_moments += count * (orders * top + np.log(moments))
        furthest += count * top
    return min(float(((log_moments - math.log(_OUTSIDE)) / orders).min()), furthest)


def _hockey_stick_epsilon(
    origin: float, interval: float, mass: Array, delta: float, steps: int
) -> float:
    """Smallest epsilon at which losses ``origin + interval * i`` leave delta, from below."""
    delta = delta + _rounding(steps)
    skipped = max(0, math.ceil(-origin / interval))  # negative losses
    origin, mass = origin + interval * skipped, mass[skipped:]
    decay = np.exp(-interval * np.arange(mass.size))

    def above(start: int) -> tuple[float, float]:
        """Mass from an entry on, "present" and, times e^loss there, "absent"."""
        tail = mass[start:]
        return float(tail.sum()), float(tail @ decay[: tail.size])

    def excess(start: int) -> float:
        present, absent = above(start)
        return delta - (present - absent)

    start = bisect.bisect_left(range(mass.size), 0.0, key=excess)
    present, absent = above(start)
    if present <= delta:
        return 0.0
    return max(0.0, origin + interval * start + math.log((present - delta) / absent))


def _threshold_epsilon(signal: float, sampling_rate: float, steps: int, delta: float) -> float:
    """A cruder bound for very large signals: only count the steps that stand out of the noise.

    "Stands out" is one bit of a step, so the count, a binomial, again leaks no more than the run.
    """
    counts = np.arange(1, steps + 1)
    epsilon = 0.0
    for cut in (signal - 2.0, signal / 2.0):  # a strong statement, and one that hardly ever fails
        log_absent = float(log_ndtr(-cut))
        present = (1.0 - sampling_rate) * math.exp(log_absent)
        present += sampling_rate * float(ndtr(signal - cut))
        yes = math.log(present) - log_absent
        no = math.log1p(-present) - float(log_ndtr(cut))
        reached = betainc(counts, steps - counts + 1.0, present)
        likely = reached > delta
        bounds = counts * yes + (steps - counts) * no
        bounds = bounds[likely] + np.log1p(-delta / reached[likely])
        epsilon = max(epsilon, float(np.max(bounds, initial=0.0)))
    return epsilon
