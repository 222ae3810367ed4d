"""Claims never below, audits never above, against exact small cases and dp-accounting itself."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from askgauss import accounting
from askgauss.accounting import (
    dpsgd_delta,
    dpsgd_epsilon,
    dpsgd_epsilon_lower,
    dpsgd_noise_multiplier,
    dpsgd_signal_to_noise,
    dpsgd_tradeoff,
    history_epsilon,
)
from askgauss.exceptions import InvalidArgumentError
from askgauss.stats import composition
from askgauss.stats import gaussian as ag_gaussian

# ------------------------------------------------------------------ exact oracles for few steps


def step_losses(x, signal, rate):
    return np.log((1 - rate) + rate * np.exp(signal * x - signal**2 / 2))


def cut(level, signal, rate):
    """The outcome at which a step's loss is ``level``; minus infinity if all losses are above."""
    ratio = (np.exp(level) - (1 - rate)) / rate
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(ratio, 0.0)) / signal + signal / 2


def one_step_delta(level, signal, rate, direction):
    """Hockey-stick divergence of one step at any real level, in closed form."""
    if direction == "remove":  # present over absent: outcomes above the cut
        x = cut(level, signal, rate)
        present = (1 - rate) * ndtr(-x) + rate * ndtr(signal - x)
        return present - np.exp(level) * ndtr(-x)
    x = cut(-level, signal, rate)  # absent over present: outcomes below it
    present = (1 - rate) * ndtr(x) + rate * ndtr(x - signal)
    return ndtr(x) - np.exp(level) * present


def two_step_delta(level, first, second, direction):
    """Two steps of (signal, rate): the second in closed form, the first by quadrature."""
    signal, rate = first
    x = np.linspace(-12.0, signal + 12.0, 20_001)
    absent = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    losses = step_losses(x, signal, rate)
    if direction == "remove":
        density = absent * np.exp(losses)
    else:
        density, losses = absent, -losses
    values = density * one_step_delta(level - losses, *second, direction)
    return float(np.trapezoid(values, x))


def root(delta_at, delta):
    """Smallest epsilon >= 0 with delta_at(epsilon) <= delta, by bisection."""
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def exact_epsilon(settings, delta):
    """Epsilon of one or two steps, the larger direction."""
    if len(settings) == 1:
        curves = [
            lambda e, d=d: float(one_step_delta(e, *settings[0], d)) for d in ("remove", "add")
        ]
    else:
        curves = [lambda e, d=d: two_step_delta(e, *settings, d) for d in ("remove", "add")]
    return max(root(curve, delta) for curve in curves)


@functools.cache
def fine_epsilon(noise_multiplier, rate, steps, delta, interval):
    """dp-accounting at a grid of our choosing: an upper bound close to the truth."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = pld.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=interval
    )
    return step.self_compose(steps).get_epsilon_for_delta(delta)


ONE_STEP = [
    (0.05, 0.9, 1e-3),
    (0.5, 0.3, 1e-5),
    (1.0, 0.5, 1e-5),
    (1.0, 0.999, 1e-5),
    (2.0, 0.01, 1e-5),
    (3.0, 0.01, 1e-8),
    (5.0, 1e-4, 1e-5),
    (8.0, 0.3, 1e-2),
    (12.0, 0.5, 0.2),
]


@pytest.mark.parametrize(("signal", "rate", "delta"), ONE_STEP)
def test_one_step_lies_between_the_bounds(signal, rate, delta):
    exact = exact_epsilon([(signal, rate)], delta)
    lower = dpsgd_epsilon_lower(signal_to_noise=signal, sampling_rate=rate, steps=1, delta=delta)
    upper = dpsgd_epsilon(noise_multiplier=1 / signal, sampling_rate=rate, steps=1, delta=delta)
    assert exact > 0.0
    assert lower <= exact * (1 + 1e-9)
    assert upper >= exact * (1 - 1e-9)
    assert lower > exact * (1 - 3e-4)
    assert upper < exact * (1 + 3e-4)


def test_one_step_whose_losses_spread_over_many_scales():
    exact = exact_epsilon([(1.5, 2e-6)], 4e-9)
    lower = dpsgd_epsilon_lower(signal_to_noise=1.5, sampling_rate=2e-6, steps=1, delta=4e-9)
    assert exact * (1 - 2e-3) < lower <= exact


@pytest.mark.parametrize(
    ("signal", "rate", "delta"),
    [(0.3, 0.5, 1e-5), (1.0, 0.1, 1e-5), (1.5, 0.8, 1e-6), (3.0, 0.01, 1e-4), (4.0, 0.5, 1e-1)],
)
def test_two_steps_lie_between_the_bounds(signal, rate, delta):
    exact = exact_epsilon([(signal, rate)] * 2, delta)
    lower = dpsgd_epsilon_lower(signal_to_noise=signal, sampling_rate=rate, steps=2, delta=delta)
    upper = dpsgd_epsilon(noise_multiplier=1 / signal, sampling_rate=rate, steps=2, delta=delta)
    assert exact > 0.0
    assert lower <= exact * (1 + 1e-7)
    assert upper >= exact * (1 - 1e-7)
    assert lower > exact * (1 - 3e-4)
    assert upper < exact * (1 + 3e-4)


RUNS = [
    # noise multiplier, sampling rate, steps, delta, grid of the reference
    (2.6245, 1 / 12, 2500, 1e-5, 1e-4),
    (15.0, 0.08, 2500, 1e-5, 5e-5),
    (1.0, 0.01, 1000, 1e-6, 2e-4),
    (0.5, 0.08, 300, 1e-5, 1e-3),
    (1.0, 0.5, 50, 1e-3, 1e-3),
    (3.0, 0.001, 10_000, 1e-5, 4e-6),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "interval"), RUNS)
def test_whole_runs_agree_with_a_fine_grid_of_dp_accounting(noise, rate, steps, delta, interval):
    run = {"sampling_rate": rate, "steps": steps, "delta": delta}
    fine = fine_epsilon(noise, rate, steps, delta, interval)
    lower = dpsgd_epsilon_lower(signal_to_noise=1 / noise, **run)
    upper = dpsgd_epsilon(noise_multiplier=noise, **run)
    assert lower <= fine
    assert lower > fine * (1 - 2e-4)
    assert abs(upper / fine - 1) < 2e-4
    assert lower < upper


def test_reference_numbers():
    values = {
        (1 / 12, 2500): 7.9698,
        (4096 / 50_000, 2500): 7.808,
        (1 / 12, 2508): 7.985,
    }
    for (rate, steps), value in values.items():
        run = {"sampling_rate": rate, "steps": steps, "delta": 1e-5}
        assert dpsgd_epsilon(noise_multiplier=2.6245, **run) == pytest.approx(value, abs=1e-3)
        lower = dpsgd_epsilon_lower(signal_to_noise=1 / 2.6245, **run)
        assert lower == pytest.approx(value, abs=1e-3)


def test_renyi_accounting_is_looser():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.PoissonSampledDpEvent(0.08192, dp_accounting.GaussianDpEvent(2.6245))
    renyi = RdpAccountant().compose(event, 2500).get_epsilon(1e-5)
    ours = dpsgd_epsilon(noise_multiplier=2.6245, sampling_rate=0.08192, steps=2500, delta=1e-5)
    assert renyi == pytest.approx(8.416, abs=2e-3)
    assert ours < renyi


def test_full_batches_are_the_gaussian_mechanism():
    table = {0.1: 0.3407, 1.0: 4.3772, 5.0: 33.1037, 30.0: 577.012}
    for mu, epsilon in table.items():
        run = {"sampling_rate": 1.0, "steps": 25, "delta": 1e-5}
        upper = dpsgd_epsilon(noise_multiplier=5 / mu, **run)
        assert upper == pytest.approx(epsilon, rel=1e-4)
        assert dpsgd_epsilon_lower(signal_to_noise=mu / 5, **run) == pytest.approx(upper, rel=1e-12)
    # The general method approaches the closed form.
    near = dpsgd_epsilon_lower(signal_to_noise=0.2, sampling_rate=1 - 1e-9, steps=25, delta=1e-5)
    assert 4.3772 * (1 - 1e-4) < near < 4.37718


# ----------------------------------------------------------------------- the merged step itself


@pytest.mark.parametrize(
    ("signal", "rate"),
    [(1e-4, 0.5), (0.38, 0.08), (1.0, 1e-4), (2.0, 0.9), (5.0, 0.01), (10.0, 0.3), (40.0, 0.1)],
)
def test_merging_never_reveals(signal, rate):
    """At every level the merged step has the smaller divergence, and by little."""
    interval = min(composition.loss_deviation(signal, rate) / 20, 0.1)
    origin, indices, mass = composition.merged_step(signal, rate, interval)
    losses = origin + interval * indices
    assert np.all(mass >= 0.0)
    assert mass.sum() == pytest.approx(1.0, abs=1e-14)
    # The groups of the other world, told by the ratios, are all of it.
    assert mass @ np.exp(-losses) == pytest.approx(1.0, abs=1e-12)
    levels = np.linspace(losses.min(), min(losses.max(), 30.0), 400)
    merged = [mass @ -np.expm1(np.minimum(level - losses, 0.0)) for level in levels]
    gaps = one_step_delta(levels, signal, rate, "remove") - np.array(merged)
    assert np.min(gaps) >= -1e-13
    assert np.max(gaps) < 0.02 * one_step_delta(0.0, signal, rate, "remove") + 1e-13


def test_gathering_keeps_the_ratio_of_every_group():
    rng = np.random.default_rng(0)
    targets = np.cumsum(rng.uniform(0.01, 0.2, 50))
    inner = targets[:-1] + rng.uniform(0.05, 0.95, 49) * np.diff(targets)
    losses = [targets[0], *inner, targets[-1] + 0.05]
    masses = rng.exponential(size=51)
    groups, sums, rest = composition.gather(targets.tolist(), losses, masses.tolist())
    assert sum(sums) + rest == pytest.approx(masses.sum())
    # Absent mass is present mass times e^-loss; it is conserved group by group, hence below it.
    absent = np.array(sums) @ np.exp(-targets[groups])
    assert 0.0 < absent <= masses @ np.exp(-np.array(losses))
    # Each prefix of groups is made of a prefix of cells, so it has no smaller a mean of e^-loss.
    cells, ratios = np.cumsum(masses), np.cumsum(masses * np.exp(-np.array(losses)))
    for count in range(1, len(groups)):
        mass = sum(sums[:count])
        mine = np.array(sums[:count]) @ np.exp(-targets[groups[:count]])
        assert mine == pytest.approx(np.interp(mass, np.append(0, cells), np.append(0, ratios)))


def test_self_convolution_is_convolution():
    rng = np.random.default_rng(1)
    indices = np.unique(rng.integers(-40, 90, 30))
    mass = rng.dirichlet(np.ones(indices.size))
    single = np.zeros(130)
    single[indices + 40] = mass
    direct = functools.reduce(np.convolve, [single] * 7)
    first, composed = composition.self_convolve(indices, mass, 7)
    for offset, probability in enumerate(direct):
        position = offset - 7 * 40 - first
        found = composed[position] if 0 <= position < composed.size else 0.0
        assert found == pytest.approx(probability, abs=1e-14)


def test_hockey_stick_inverse():
    losses = -1.0 + 0.25 * np.arange(20)
    mass = np.random.default_rng(2).dirichlet(np.ones(20))

    def delta_at(epsilon):
        return float(mass @ np.maximum(0.0, 1 - np.exp(epsilon - losses)))

    for delta in (1e-3, 0.05, 0.3, 0.9):
        found = composition.hockey_stick_epsilon(-1.0, 0.25, mass, delta, 1)
        assert found == pytest.approx(root(delta_at, delta), abs=1e-9)


def test_rounding_allowance_exceeds_the_rounding():
    """Against the same power in extended precision."""
    from scipy.fft import irfft, rfft

    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no extended precision on this machine")
    _, every, masses = composition.merged_step(0.38, 0.08, 7e-4)
    for steps in (10, 1000, 20_000):
        first, composed = composition.self_convolve(every, masses, steps)
        kept = masses > 1e-18 / steps
        indices, mass = every[kept], masses[kept]
        size = composed.size
        single = np.bincount(indices % size, weights=mass, minlength=size).astype(np.longdouble)
        precise = np.roll(irfft(rfft(single) ** steps, size), -(first % size))
        assert np.abs(precise - composed).sum() < composition.rounding_error(steps)


# ------------------------------------------------------------------------------------- extremes


def test_no_noise_and_no_signal():
    run = {"sampling_rate": 0.01, "steps": 10}
    assert dpsgd_epsilon(noise_multiplier=0.0, delta=1e-5, **run) == math.inf
    assert dpsgd_epsilon_lower(signal_to_noise=math.inf, delta=1e-5, **run) == math.inf
    sampled = 1 - 0.99**10
    assert dpsgd_delta(noise_multiplier=0.0, epsilon=3.0, **run) == pytest.approx(sampled)
    assert dpsgd_epsilon_lower(signal_to_noise=math.inf, delta=sampled + 1e-9, **run) == 0.0
    assert dpsgd_epsilon_lower(signal_to_noise=0.0, delta=1e-5, **run) == 0.0
    assert dpsgd_epsilon_lower(signal_to_noise=1e-12, delta=1e-5, **run) == 0.0
    assert history_epsilon([(1.0, 0.1, 5), (0.0, 0.1, 1)], 1e-5) == math.inf


def test_leaks_without_limit_are_reported_without_limit():
    run = {"sampling_rate": 0.08, "steps": 500, "delta": 1e-5}
    signals = [1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e5]
    lower = [dpsgd_epsilon_lower(signal_to_noise=s, **run) for s in signals]
    assert all(a < b < math.inf for a, b in itertools.pairwise(lower))
    for signal, bound in zip(signals[:4], lower, strict=False):
        upper = dpsgd_epsilon(noise_multiplier=1 / signal, **run)
        assert 0.9 * upper < bound <= upper


def test_the_cruder_bound_is_a_bound():
    for signal, rate, steps, share in [
        (8.0, 0.3, 1, 0.2),
        (20.0, 0.01, 1000, 0.5),
        (90.0, 0.1, 50, 0.9),
    ]:
        crude = composition.threshold_epsilon(signal, rate, steps, 1e-5)
        good = dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=rate, steps=steps, delta=1e-5
        )
        assert share * good < crude < good


def test_bounds_grow_with_signal_rate_and_steps():
    base = {"signal_to_noise": 0.5, "sampling_rate": 0.05, "steps": 400, "delta": 1e-5}
    start = dpsgd_epsilon_lower(**base)
    for change in ({"signal_to_noise": 0.505}, {"sampling_rate": 0.0505}, {"steps": 404}):
        assert dpsgd_epsilon_lower(**(base | change)) > start
    assert dpsgd_epsilon_lower(**(base | {"delta": 1.1e-5})) < start


def test_tiny_deltas_lower_the_bound_and_refuse_the_claim():
    run = {"sampling_rate": 0.05, "steps": 100}
    tiny = dpsgd_epsilon_lower(signal_to_noise=1.0, delta=1e-30, **run)
    assert 0.0 < tiny < fine_epsilon(1.0, 0.05, 100, 1e-12, 1e-3)
    with pytest.raises(InvalidArgumentError, match="delta"):
        dpsgd_epsilon(noise_multiplier=1.0, delta=1e-30, **run)


# ------------------------------------------------------------------- inverses, histories, curves


def test_calibrated_noise_multipliers():
    # To the two decimals usually quoted, and against a grid far finer than the function's own.
    for epsilon, noise in {2.0: 8.23, 8.0: 2.58}.items():
        run = {"sampling_rate": 4096 / 50_000, "steps": 2500, "delta": 1e-5}
        found = dpsgd_noise_multiplier(epsilon=epsilon, **run)
        assert found == pytest.approx(noise, abs=5e-3)
        claimed = dpsgd_epsilon(noise_multiplier=found, **run)
        assert epsilon * (1 - 1e-6) < claimed <= epsilon
        assert fine_epsilon(found, 4096 / 50_000, 2500, 1e-5, 1e-4) == pytest.approx(
            epsilon, rel=2e-4
        )
        signal = dpsgd_signal_to_noise(epsilon=epsilon, **run)
        assert epsilon < dpsgd_epsilon_lower(signal_to_noise=signal, **run) < epsilon * (1 + 1e-6)
        assert 1 / found < signal < 1 / found * (1 + 2e-4)
    # The multiplier often quoted for epsilon 1 is a little more private than that.
    quoted = dpsgd_epsilon(
        noise_multiplier=15.3718, sampling_rate=4096 / 50_000, steps=2500, delta=1e-5
    )
    assert quoted == pytest.approx(0.997, abs=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    [(0.01, 0.5, 3), (1.0, 0.01, 5), (500.0, 0.1, 100), (3.0, 1.0, 9)],
)
def test_inverses_stay_on_their_sides(epsilon, rate, steps):
    run = {"sampling_rate": rate, "steps": steps, "delta": 1e-5}
    noise = dpsgd_noise_multiplier(epsilon=epsilon, **run)
    claimed = dpsgd_epsilon(noise_multiplier=noise, **run)
    assert epsilon * (1 - 1e-4) < claimed <= epsilon
    signal = dpsgd_signal_to_noise(epsilon=epsilon, **run)
    assert dpsgd_epsilon_lower(signal_to_noise=signal, **run) > epsilon
    assert dpsgd_epsilon_lower(signal_to_noise=signal * (1 - 1e-4), **run) < epsilon


def test_a_claim_that_only_a_certain_leak_breaks():
    # Delta is just below the probability of being sampled at all.
    run = {"sampling_rate": 0.01, "steps": 3, "delta": (1 - 0.99**3) * (1 - 1e-9)}
    signal = dpsgd_signal_to_noise(epsilon=1.0, **run)
    assert 10.0 < signal < math.inf
    assert dpsgd_epsilon_lower(signal_to_noise=signal, **run) > 1.0


def test_a_record_that_is_hardly_ever_sampled_needs_no_noise():
    run = {"epsilon": 1.0, "delta": 1e-3, "sampling_rate": 1e-5, "steps": 100}
    assert dpsgd_signal_to_noise(**run) == math.inf
    assert dpsgd_noise_multiplier(**run) == 0.0


def test_delta_and_epsilon_are_inverse():
    run = {"noise_multiplier": 2.0, "sampling_rate": 0.05, "steps": 500}
    epsilon = dpsgd_epsilon(delta=1e-6, **run)
    assert dpsgd_delta(epsilon=epsilon, **run) == pytest.approx(1e-6, rel=1e-4)
    assert dpsgd_delta(epsilon=0.0, **run) > dpsgd_delta(epsilon=1.0, **run)


def test_history():
    whole = dpsgd_epsilon(noise_multiplier=1.5, sampling_rate=0.02, steps=300, delta=1e-5)
    parts = [(1.5, 0.02, 100), (1.5, 0.02, 150), (1.5, 0.02, 50)]
    assert history_epsilon(parts, 1e-5) == whole
    assert history_epsilon([], 1e-5) == 0.0
    # Two different steps against quadrature, one of them on the full batch.
    for settings in ([(1.0, 0.3), (0.5, 0.6)], [(1.0, 0.3), (0.7, 1.0)]):
        exact = exact_epsilon(settings, 1e-4)
        history = [(1 / signal, rate, 1) for signal, rate in settings]
        assert exact * (1 - 1e-7) <= history_epsilon(history, 1e-4) < exact * (1 + 1e-3)
        assert history_epsilon(history[::-1], 1e-4) == history_epsilon(history, 1e-4)
    # All full batches: one Gaussian mechanism.
    mu = math.sqrt(3 / 2.0**2 + 5 / 1.5**2)
    single = dpsgd_epsilon(noise_multiplier=1 / mu, sampling_rate=1.0, steps=1, delta=1e-5)
    assert history_epsilon([(2.0, 1.0, 3), (1.5, 1.0, 5)], 1e-5) == pytest.approx(single)


def test_tradeoff_reference_numbers():
    curve = dpsgd_tradeoff(noise_multiplier=2.6245, sampling_rate=1 / 12, steps=2500)
    table = {0.001: 1.0392e-6, 0.01: 3.488e-5, 0.1: 1.717e-3, 0.5: 0.050857, 0.9: 0.36207}
    for power, alpha in table.items():
        assert curve.inverse_blow_up(power) == pytest.approx(alpha, rel=2e-3)
    assert curve.epsilon_at(1e-5) == pytest.approx(7.9694, abs=1e-3)


def test_tradeoff_lies_below_the_exact_curve_of_one_step():
    signal, rate = 1.5, 0.3
    curve = dpsgd_tradeoff(noise_multiplier=1 / signal, sampling_rate=rate, steps=1)
    alpha = np.concatenate((np.geomspace(1e-9, 0.1, 50), np.linspace(0.1, 0.99, 90)))
    # The two directions by their likelihood ratio tests: present above a cut, or absent below it.
    x = -ndtri(alpha)
    remove = (1 - rate) * ndtr(x) + rate * ndtr(x - signal)
    cuts = np.linspace(-9, 9 + signal, 200_001)
    positives = (1 - rate) * ndtr(cuts) + rate * ndtr(cuts - signal)
    add = np.interp(alpha, positives, ndtr(-cuts))
    assert np.all(curve.beta_at(alpha) <= np.minimum(remove, add) + 1e-9)
    # What (epsilon, delta) guarantees can express: the convex hull of the two.
    levels = np.linspace(0.0, 12.0, 4001)
    deltas = np.maximum(*(one_step_delta(levels, signal, rate, d) for d in ("remove", "add")))
    lines = [1 - deltas - np.exp(levels) * a for a in alpha]
    mirrors = [np.exp(-levels) * (1 - deltas - a) for a in alpha]
    hull = np.maximum(np.max(lines, axis=1), np.max(mirrors, axis=1))
    assert np.all(curve.beta_at(alpha) <= hull + 1e-6)
    assert np.max(hull - curve.beta_at(alpha)) < 1e-4


def test_tradeoff_of_nothing_is_chance():
    curve = dpsgd_tradeoff(noise_multiplier=1e9, sampling_rate=0.1, steps=1)
    assert curve.beta_at(0.3) == pytest.approx(0.7, abs=1e-8)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (dpsgd_epsilon, {"noise_multiplier": -1.0}, "noise_multiplier"),
        (dpsgd_epsilon, {"sampling_rate": 0.0}, "sampling_rate"),
        (dpsgd_epsilon, {"sampling_rate": 1.1}, "sampling_rate"),
        (dpsgd_epsilon, {"steps": 0}, "steps"),
        (dpsgd_epsilon, {"steps": 2.5}, "steps"),
        (dpsgd_epsilon, {"delta": 0.0}, "delta"),
        (dpsgd_epsilon_lower, {"signal_to_noise": math.nan}, "signal_to_noise"),
        (dpsgd_epsilon_lower, {"signal_to_noise": -1.0}, "signal_to_noise"),
        (dpsgd_noise_multiplier, {"epsilon": 0.0}, "epsilon"),
        (dpsgd_signal_to_noise, {"epsilon": math.inf}, "epsilon"),
    ],
)
def test_arguments_are_checked(function, arguments, name):
    good = {"sampling_rate": 0.1, "steps": 10, "delta": 1e-5}
    own = {
        dpsgd_epsilon: {"noise_multiplier": 1.0},
        dpsgd_epsilon_lower: {"signal_to_noise": 1.0},
        dpsgd_noise_multiplier: {"epsilon": 1.0},
        dpsgd_signal_to_noise: {"epsilon": 1.0},
    }
    with pytest.raises(InvalidArgumentError, match=name):
        function(**(good | own[function] | arguments))


class TestSchedules:
    def test_steps_that_are_alike_compose_as_before(self):
        ratios = np.full(50, 0.8)
        run = {"sampling_rate": 0.1, "delta": 1e-5}
        expected = accounting.dpsgd_epsilon_lower(signal_to_noise=0.8, steps=50, **run)
        found = accounting.schedule_epsilon_lower(signal_to_noise=ratios, **run)
        assert found == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(
        ("noise", "tight"),
        [
            (np.repeat([5.0, 1.0], [10, 90]), 0.998),
            (np.geomspace(4.0, 1.0, 30), 0.99),
            (np.geomspace(10.0, 1.0, 100), 0.99),
            (np.repeat([0.3, 2.0], [2, 40]), 0.99),
        ],
    )
    def test_is_below_the_accountants_and_near_it(self, noise, tight):
        above = accounting.history_epsilon([(float(x), 0.1, 1) for x in noise], 1e-5)
        below = accounting.schedule_epsilon_lower(
            signal_to_noise=1.0 / noise, sampling_rate=0.1, delta=1e-5
        )
        assert tight * above < below <= above

    def test_levels_round_down_and_lose_no_step(self):
        ratios = np.random.default_rng(0).uniform(0.1, 2.0, 500)
        levels = accounting.schedule_levels(ratios)
        assert len(levels) <= 64
        rounded = np.repeat(*(np.array(part) for part in zip(*levels, strict=True)))
        assert rounded.size == 500
        assert (rounded <= np.sort(ratios) + 1e-12).all()
        assert (rounded > 0.8 * np.sort(ratios)).mean() > 0.9

    def test_the_factor_is_where_the_claim_breaks(self):
        run = {
            "signal_to_noise": 1.0 / np.repeat([3.0, 1.0], [20, 40]),
            "sampling_rate": 0.1,
            "delta": 1e-5,
        }
        factor = accounting.schedule_factor(epsilon=4.0, **run)
        for change, breaks in ((1.0, True), (1.0 - 1e-4, False)):
            scaled = run | {"signal_to_noise": change * factor * run["signal_to_noise"]}
            assert (accounting.schedule_epsilon_lower(**scaled) > 4.0) is breaks

    def test_every_record_in_every_step_is_exact(self):
        ratios = np.array([0.3, 0.4, 1.2])
        found = accounting.schedule_epsilon_lower(
            signal_to_noise=ratios, sampling_rate=1.0, delta=1e-5
        )
        assert found == pytest.approx(ag_gaussian.gdp_epsilon(1e-5, 1.3), rel=1e-9)

    @pytest.mark.parametrize("rate", [1e-300, 1e-17, 1e-10])
    def test_records_that_are_hardly_ever_drawn_cost_next_to_nothing(self, rate):
        found = accounting.dpsgd_epsilon(
            noise_multiplier=1.0, sampling_rate=rate, steps=100, delta=1e-5
        )
        assert 0.0 <= found < 1e-3

    def test_steps_of_next_to_no_signal_add_nothing(self):
        run = {"sampling_rate": 0.5, "delta": 1e-5}
        loud = np.array([0.6, 0.6, 0.3])
        expected = accounting.schedule_epsilon_lower(signal_to_noise=loud, **run)
        for quiet in (0.0, 6e-301, 1e-12):
            found = accounting.schedule_epsilon_lower(signal_to_noise=np.append(loud, quiet), **run)
            assert found == pytest.approx(expected, rel=1e-3)
