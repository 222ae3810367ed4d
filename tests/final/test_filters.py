"""The filter of SGD against SGD itself, and the law of two snapshots against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special, stats

import askgauss as ag
from askgauss.exceptions import InvalidArgumentError
from askgauss.final import LinearFilter, joined_snapshots, sgd_filter
from askgauss.stats.sampled_sum import StepWeights

DELTA = 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.8, "nesterov": True},
        {"weight_decay": 0.3},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.2},
        {"momentum": 0.5, "dampening": 0.1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_the_filter_is_what_sgd_does(options):
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    rates = generator.uniform(0.01, 0.3, 12)
    divisors = generator.uniform(1.0, 5.0, 12)
    releases = generator.normal(size=(12, 6))
    first = generator.normal(size=6)
    weights = torch.nn.Parameter(torch.tensor(first, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=1.0, **options)
    for rate, divisor, release in zip(rates, divisors, releases, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weights.grad = torch.tensor(release / divisor)
        optimizer.step()
    found = sgd_filter(rates, divisor=divisors, **options)
    expected = found.kept * first - found.weights @ releases
    assert weights.detach().numpy() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_law_of_a_few_uneven_steps_by_brute_force():
    """Three steps: every set of steps is one Gaussian of a mixture."""
    weights, rate, noise = np.array([1.0, 0.4, 0.15]), 0.3, 0.6
    heights = weights / np.linalg.norm(weights) / noise
    mixture = []
    for coins in itertools.product((0, 1), repeat=3):
        chance = np.prod([rate if coin else 1.0 - rate for coin in coins])
        mixture.append((float(chance), float(np.dot(coins, heights))))

    def tail(x):
        return sum(chance * stats.norm.sf(x, shift) for chance, shift in mixture)

    def log_ratio(x):
        return math.log(
            sum(chance * math.exp(shift * x - shift**2 / 2) for chance, shift in mixture)
        )

    def delta(epsilon):
        # The ratio rises with x, so that each direction is one cut.
        cut = optimize.brentq(lambda x: log_ratio(x) - epsilon, -40, 40)
        above = tail(cut) - math.exp(epsilon) * stats.norm.sf(cut)
        lowest = log_ratio(-40.0)
        below = 0.0
        if -epsilon > lowest:
            cut = optimize.brentq(lambda x: log_ratio(x) + epsilon, -40, 40)
            below = stats.norm.cdf(cut) - math.exp(epsilon) * (1.0 - tail(cut))
        return max(above, below)

    slow = optimize.brentq(lambda epsilon: delta(epsilon) - DELTA, 0.1, 60.0)
    fast = LinearFilter(weights=weights).epsilon_at(
        delta=DELTA, noise_multiplier=noise, sampling_rate=rate
    )
    assert fast == pytest.approx(slow, rel=1e-4)


@pytest.mark.parametrize(
    ("steps", "rate", "noise"), [(2500, 0.08, 2.576), (100, 0.3, 2.0), (30, 0.05, 0.7)]
)
def test_equal_steps_have_the_law_of_a_summed_score(steps, rate, noise):
    law = ag.ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise, clip_norm=1.0)
    found = LinearFilter(weights=np.full(steps, 0.3)).epsilon_at(
        delta=DELTA, noise_multiplier=noise, sampling_rate=rate
    )
    assert found == pytest.approx(law.epsilon_at(delta=DELTA), rel=1e-4)


SCHEDULES = {
    "cosine": 0.5 * (1.0 + np.cos(np.pi * np.arange(400) / 400)),
    "halves": 0.5 ** (np.arange(400) // 40),
    "momentum": sgd_filter([0.1] * 400, momentum=0.99).weights,
    "one loud step": np.where(np.arange(400) == 7, 10.0, 1.0),
}


@pytest.mark.parametrize("rate", [0.01, 0.5])
@pytest.mark.parametrize("noise", [0.6, 4.0])
@pytest.mark.parametrize("name", SCHEDULES)
def test_an_audit_reads_the_law_that_the_filter_has(name, noise, rate):
    """Many weights are joined for an audit, which moves epsilon by next to nothing."""
    uneven = LinearFilter(weights=SCHEDULES[name])
    told = uneven.epsilon_at(delta=DELTA, noise_multiplier=noise, sampling_rate=rate)
    kept = StepWeights.of(uneven.weights, rate)
    shift = rate * float(uneven.weights.sum()) / (noise * uneven.length)
    assert kept.epsilon(shift, DELTA) == pytest.approx(told, rel=1e-4)
    assert kept.shift(told, DELTA) == pytest.approx(shift, rel=1e-4)
    assert kept.steps == 400
    assert kept.effective_steps == pytest.approx(uneven.effective_steps, rel=1e-3)


@pytest.mark.parametrize("mu", [5.0, 10.0, 30.0])
def test_large_epsilons_are_finite(mu):
    """A transform on a grid has no tails below 1e-16: epsilons from 24 on came out infinite."""
    flat = LinearFilter(weights=np.ones(9))
    found = flat.epsilon_at(delta=DELTA, noise_multiplier=3.0 / mu)
    assert found == pytest.approx(ag.gaussian.epsilon(DELTA, 0.0, 1.0, mu, 1.0), rel=1e-9)


@pytest.mark.parametrize(("steps", "rate", "noise"), [(2000, 0.1, 0.3), (1, 0.5, 0.2)])
def test_large_epsilons_of_sampled_steps(steps, rate, noise):
    law = ag.ScoreLaw(steps=steps, sampling_rate=rate, noise_multiplier=noise, clip_norm=1.0)
    found = LinearFilter(weights=np.ones(steps)).epsilon_at(
        delta=DELTA, noise_multiplier=noise, sampling_rate=rate
    )
    assert found == pytest.approx(law.epsilon_at(delta=DELTA), rel=1e-6)


def test_one_loud_step_against_the_sum_over_all_inclusions():
    """The slow way: every number of quiet inclusions, with and without the loud one."""
    noise, rate = 0.6, 0.5
    uneven = LinearFilter(weights=SCHEDULES["one loud step"])
    quiet = np.arange(400)
    logs = stats.binom.logpmf(quiet, 399, rate) + math.log(0.5)
    means = np.concatenate([quiet, quiet + 10.0]) / (noise * uneven.length)
    weights = np.concatenate([logs, logs])

    def ratio(cut):
        present = special.logsumexp(weights + special.log_ndtr(means - cut))
        if present <= math.log(DELTA):
            return -math.inf
        left = math.log1p(-DELTA * math.exp(-present))
        return present + left - special.log_ndtr(-cut)

    slow = max(ratio(cut) for cut in np.linspace(5.0, 25.0, 20_001))
    found = uneven.epsilon_at(delta=DELTA, noise_multiplier=noise, sampling_rate=rate)
    assert found == pytest.approx(slow, rel=1e-6)


def drops(steps=400):
    """A tenth from the middle on, and a hundredth in the last quarter."""
    return 0.3 * np.repeat([1.0, 0.1, 0.01], [steps // 2, steps // 4, steps // 4])


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}]
)
def test_joined_snapshots_are_the_sum_their_filter_says(options):
    """Against the weights of a plain loop, with the releases known."""
    generator = np.random.default_rng(0)
    rates, at = drops(80), (40, 60, 80)
    releases, first = generator.normal(size=(80, 7)), generator.normal(size=7)
    filters = [sgd_filter(rates[:steps], divisor=3.0, **options) for steps in at]
    snapshots = [
        one.kept * first - one.weights @ releases[:steps]
        for one, steps in zip(filters, at, strict=True)
    ]
    linear, after = joined_snapshots(filters, snapshots)
    assert after == pytest.approx(linear.kept * first - linear.weights @ releases, rel=1e-9)
    # No other sum of the three says more.
    rows = np.array([np.pad(one.weights, (0, 80 - one.weights.size)) for one in filters])
    for shares in generator.normal(size=(200, 3)):
        other = LinearFilter(weights=shares @ rows)
        assert other.effective_steps <= linear.effective_steps * (1.0 + 1e-9)


def test_a_snapshot_at_every_drop_brings_all_steps_back():
    rates = drops()
    last = sgd_filter(rates, momentum=0.9)
    linear, _ = joined_snapshots(
        [sgd_filter(rates[:steps], momentum=0.9) for steps in (200, 300, 400)], [[0.0]] * 3
    )
    assert last.effective_steps < 250
    assert linear.effective_steps > 0.97 * 400
    plain, _ = joined_snapshots([sgd_filter(rates[:steps]) for steps in (200, 300, 400)], [[0]] * 3)
    assert plain.weights == pytest.approx(np.ones(400))


def test_steps_that_undo_others_count_with_their_sign():
    back_and_forth = LinearFilter(weights=[1.0, -1.0, 1.0])
    assert back_and_forth.effective_steps == pytest.approx(1.0 / 3.0)
    assert back_and_forth.shift(noise_multiplier=1.0) == pytest.approx(1.0 / math.sqrt(3.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sgd_filter([]), "weights"),
        (lambda: sgd_filter([0.0, 0.0]), "weights"),
        (lambda: sgd_filter([math.nan]), "learning_rates"),
        (lambda: sgd_filter([0.1], momentum=1.0), "momentum"),
        (lambda: sgd_filter([0.1], nesterov=True), "nesterov"),
        (lambda: sgd_filter([0.1], divisor=0.0), "divisor"),
        (lambda: sgd_filter([0.1], weight_decay=-1.0), "weight_decay"),
        (lambda: sgd_filter([0.1]).epsilon_at(delta=2.0, noise_multiplier=1.0), "delta"),
        (lambda: sgd_filter([0.1]).shift(noise_multiplier=0.0), "noise_multiplier"),
        (lambda: joined_snapshots([], []), "one at least"),
        (lambda: joined_snapshots([sgd_filter([0.1])], []), "0 snapshots"),
        (lambda: joined_snapshots([sgd_filter([0.1])], [[math.nan]]), "snapshots"),
        (lambda: joined_snapshots([sgd_filter([0.1])] * 2, [[1.0], [1.0, 2.0]]), "one model"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()
