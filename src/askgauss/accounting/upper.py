"""What an accountant claims of DP-SGD, from above: privacy loss distributions of dp-accounting."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import bdtrc, gammaln, logsumexp, ndtr

from askgauss import _validate
from askgauss.accounting.lower import (
    check_run,
    dpsgd_signal_to_noise,
    ever_sampled,
    noiseless_epsilon,
)
from askgauss.stats.composition import (
    OUTSIDE,
    WIDEST,
    loss_deviation,
    loss_range,
    rounding_error,
)
from askgauss.stats.gaussian import gdp_delta, gdp_epsilon, gdp_mu
from askgauss.stats.limits import level_bracket
from askgauss.stats.tradeoff import TradeOff

__all__ = [
    "dpsgd_delta",
    "dpsgd_epsilon",
    "dpsgd_noise_multiplier",
    "dpsgd_tradeoff",
    "fixed_size_epsilon",
    "history_epsilon",
    "quick_upper",
    "truncated_epsilon",
]

History = tuple[tuple[float, float, int], ...]

# Grid points per standard deviation of one step's privacy loss. The error is of second order.
_CLAIM_RESOLUTION = 50.0
# dp-accounting builds and reads its grids in Python loops; this many points take about a second.
_CLAIM_POINTS = 1e5
# Of a whole run: its longest grids have some more deviations than these are in one.
_RUN_POINTS = 5e4
# Longer runs of sampled records would take minutes, and no training is as long.
_MOST_COMPOSED = 10**7
_MOST_TRUNCATED = 10**6
# Cells of this loss have an e^loss that is no number: so little noise needs no grid.
_COARSEST = 500.0
_RAREST = 1e-9
# More noise is taken for this, which hides less.
_LOUDEST_NOISE = 1e6
_LEAST_NOISE = 1e-2
# Smaller deltas are not told apart.
_RESOLUTION = 1e-12
# A trade-off curve is made of this many lines, none steeper than a float holds.
_PROFILE_POINTS = 2001
_STEEPEST = 700.0
# Renyi orders of the quick upper bound.
_ORDERS = np.array([*range(2, 33), 40, 48, 64, 96, 128, 256], dtype=np.float64)


def dpsgd_epsilon(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    """The epsilon an accountant claims for DP-SGD.

    Returns:
        An upper bound on epsilon, infinite without noise.

    Assumes:
        Poisson sampling, add/remove neighbours, independent Gaussian noise.

    Examples:
        >>> dpsgd_epsilon(noise_multiplier=1.0, sampling_rate=1.0, steps=1, delta=1e-5)  # exact
        4.377178...
    """
    check_run(sampling_rate, steps)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    _validate.probability(delta=delta)
    if noise_multiplier == 0.0:
        return noiseless_epsilon(sampling_rate, steps, delta)
    return history_epsilon([(noise_multiplier, sampling_rate, steps)], delta)


def dpsgd_delta(
    *, noise_multiplier: float, sampling_rate: float, steps: int, epsilon: float
) -> float:
    """The delta an accountant claims for DP-SGD.

    Returns:
        An upper bound on delta; below about 1e-12 it is only the resolution of the method.

    Examples:
        >>> dpsgd_delta(noise_multiplier=1.0, sampling_rate=1.0, steps=1, epsilon=1.0)  # exact
        0.126936...
    """
    check_run(sampling_rate, steps)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    _validate.non_negative(epsilon=epsilon)
    if noise_multiplier == 0.0:
        return ever_sampled(sampling_rate, steps)
    if sampling_rate == 1.0:
        return gdp_delta(float(epsilon), math.sqrt(steps) / noise_multiplier)
    segment = (float(noise_multiplier), float(sampling_rate), int(steps))
    apart = _total_variation((segment,))
    if apart <= _RESOLUTION:
        return apart
    loss = _composed((segment,))
    return min(1.0, float(loss.get_delta_for_epsilon(float(epsilon))) + rounding_error(steps))


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
        check_run(sampling_rate, steps)
        _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
        key = (float(noise_multiplier), float(sampling_rate))
        merged[key] = merged.get(key, 0) + int(steps)
    if any(noise == 0.0 for noise, _ in merged):
        return math.inf
    if all(rate == 1.0 for _, rate in merged):
        mu = math.sqrt(sum(steps / noise**2 for (noise, _), steps in merged.items()))
        return gdp_epsilon(float(delta), mu)
    segments = tuple((noise, rate, steps) for (noise, rate), steps in sorted(merged.items()))
    if _total_variation(segments) <= delta:
        return 0.0
    rounding = rounding_error(sum(merged.values()))
    if delta <= 2.0 * rounding:
        hint = "Below that, the rounding of the Fourier transform outweighs delta."
        raise _validate.fail("delta", delta, f"> {2.0 * rounding:.2g} for that many steps", hint)
    return float(_composed(segments).get_epsilon_for_delta(delta - rounding))


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
            + 0.5 * taken * (taken - 1.0) * min(signal, 1e140) ** 2
        )
    renyi = logsumexp(np.where(taken <= order, terms, -np.inf), axis=1) / (_ORDERS - 1.0)
    epsilon = steps * renyi + np.log1p(-1.0 / _ORDERS) - math.log(delta) / (_ORDERS - 1.0)
    return max(float((epsilon - np.log(_ORDERS) / (_ORDERS - 1.0)).min()), 0.0)


def dpsgd_noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """The noise multiplier with which DP-SGD may claim (epsilon, delta).

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
        if noiseless_epsilon(sampling_rate, steps, delta) == 0.0:
            return 0.0
        hint = "Rounding cannot tell the two apart."
        raise _validate.fail("delta", delta, "further below the chance to be sampled", hint)

    def claimed(signal_to_noise: float) -> float:
        return dpsgd_epsilon(
            noise_multiplier=1.0 / signal_to_noise,
            sampling_rate=sampling_rate,
            steps=steps,
            delta=delta,
        )

    return 1.0 / level_bracket(claimed, epsilon, signal)[0]


def dpsgd_tradeoff(*, noise_multiplier: float, sampling_rate: float, steps: int) -> TradeOff:
    """The trade-off curve an accountant claims for DP-SGD, the lower of both directions.

    Returns:
        A curve at or below the mechanism's: what contradicts it contradicts the mechanism.
        True positive rates below about 1e-11 are not resolved and cost nothing.

    Examples:
        >>> curve = dpsgd_tradeoff(noise_multiplier=2.0, sampling_rate=1.0, steps=4)  # exact
        >>> round(curve.inverse_blow_up(0.5), 4)
        0.1587
    """
    check_run(sampling_rate, steps)
    _validate.magnitude(noise_multiplier=noise_multiplier)
    if sampling_rate == 1.0:
        return TradeOff.gaussian(math.sqrt(steps) / noise_multiplier)
    return _tradeoff(float(noise_multiplier), float(sampling_rate), int(steps))


@lru_cache(maxsize=64)
def _tradeoff(noise_multiplier: float, sampling_rate: float, steps: int) -> TradeOff:
    loss = _composed(((noise_multiplier, sampling_rate, steps),))
    rounding = rounding_error(steps)
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
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    _validate.count(steps=steps)
    _validate.count(maximum=_validate.MOST_RECORDS, batch=batch)
    _validate.count(batch, maximum=_validate.MOST_RECORDS, records=records)
    _validate.probability(delta=delta)
    if noise_multiplier == 0.0:
        return math.inf
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    noise = min(noise_multiplier, _LOUDEST_NOISE)
    step = dp_accounting.SampledWithoutReplacementDpEvent(
        records, batch, dp_accounting.GaussianDpEvent(noise / 2.0)
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
    check_run(sampling_rate, steps)
    _validate.magnitude(noise_multiplier=noise_multiplier, zero=True)
    _validate.count(maximum=_validate.MOST_RECORDS, cap=cap, records=records)
    _validate.probability(delta=delta)
    if noise_multiplier == 0.0:
        return math.inf
    hint = "Beyond it, runs of capped batches are not composed."
    _validate.count(maximum=_MOST_TRUNCATED, hint=hint, steps=steps)
    _validate.within(_RAREST, 1, closed="both", hint=hint, sampling_rate=sampling_rate)
    most = _validate.LARGEST
    _validate.within(
        _LEAST_NOISE, most, closed="both", hint=hint, noise_multiplier=noise_multiplier
    )
    noise_multiplier = min(noise_multiplier, _LOUDEST_NOISE)
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = min(
        loss_deviation(1.0 / noise_multiplier, sampling_rate) / _CLAIM_RESOLUTION, WIDEST
    )
    width = float(np.ptp(loss_range(2.0 / noise_multiplier, sampling_rate)))
    step = pld.from_truncated_subsampled_gaussian_mechanism(
        records,
        sampling_rate,
        cap,
        noise_multiplier,
        value_discretization_interval=max(interval, width / _CLAIM_POINTS),
    )
    composed = step.self_compose(int(steps))
    return float(composed.get_epsilon_for_delta(delta - min(rounding_error(steps), 0.5 * delta)))


def _total_variation(history: History) -> float:
    """Distance of a run's two worlds, from above: at most the sum over its steps."""
    return sum(
        steps * rate * float(2.0 * ndtr(0.5 / noise) - 1.0) for noise, rate, steps in history
    )


class _HardlyAnyNoise:
    """What a run leaks at most whose noise is so small that no grid holds its losses.

    Given how often the record was drawn, k times, the run leaks what Gaussian noise on the root of
    k does; delta is convex, so over all k it is at most the mean. Here the k up to some number are
    taken for that number, and those above for a leak of everything.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Half of delta is for drawing the record more often than reckoned with."""
        share = 0.5 * delta / len(self._history)
        information = 0.0
        for noise, rate, steps in self._history:
            most = _most_drawn(steps, rate, share)
            information += most / noise / noise
        # Beside so large a loss what the noise adds may be less than the last digit.
        return gdp_epsilon(0.5 * delta, math.sqrt(information)) * (1.0 + _RESOLUTION)

    def get_delta_for_epsilon(self, epsilon: float | list[float]) -> Any:
        """What the noise hides is a number of draws; that there were more is the delta."""
        if isinstance(epsilon, list):
            return [self.get_delta_for_epsilon(level) for level in epsilon]
        hidden = gdp_mu(epsilon, _RESOLUTION) ** 2 / len(self._history)
        return min(
            1.0,
            _RESOLUTION
            + sum(
                _drawn_above(min(int(hidden * noise * noise), steps), steps, rate)
                for noise, rate, steps in self._history
            ),
        )


def _most_drawn(steps: int, rate: float, chance: float) -> int:
    """The smallest number that a record is drawn more often than with this chance at most."""
    return bisect.bisect_left(range(steps), -chance, key=lambda k: -_drawn_above(k, steps, rate))


def _drawn_above(number: int, steps: int, rate: float) -> float:
    """How likely a record is drawn more often than this, from above."""
    return 0.0 if number >= steps else float(bdtrc(number, steps, rate)) * (1.0 + _RESOLUTION)


@lru_cache(maxsize=8)
def _composed(history: History) -> Any:
    """dp-accounting's privacy loss distribution of a run, pessimistic, both directions."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    # Rarer records leak less; beside 1, dp-accounting cannot tell how much less.
    history = tuple((noise, max(rate, _RAREST), steps) for noise, rate, steps in history)
    total = sum(steps for _, _, steps in history)
    hint = "Longer runs are composed for sampling_rate=1 only, which is an upper bound."
    _validate.count(maximum=_MOST_COMPOSED, hint=hint, steps=total)
    widths = [float(np.ptp(loss_range(1.0 / noise, rate))) for noise, rate, _ in history]
    if not max(widths) / _CLAIM_POINTS < _COARSEST:
        return _HardlyAnyNoise(history)
    variance = sum(steps * loss_deviation(1.0 / noise, rate) ** 2 for noise, rate, steps in history)
    interval = min(math.sqrt(variance / total) / _CLAIM_RESOLUTION, WIDEST)
    interval = max(interval, max(widths) / _CLAIM_POINTS, math.sqrt(variance) / _RUN_POINTS)
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
        run = segment if run is None else run.compose(segment, tail_mass_truncation=OUTSIDE)
    return run
