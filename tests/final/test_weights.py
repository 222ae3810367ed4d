"""Two snapshots of a run: as good as its summed scores, and never more than it leaks."""

from __future__ import annotations

import math

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.exceptions import InvalidArgumentError
from askgauss.final import (
    every_so_often,
    joined_snapshots,
    least_updated,
    sgd_filter,
    weight_scores,
)

DELTA = 1e-5


def trained(filter_options, *, steps=400, rate=0.1, noise=1.5, seed=0, present=400, absent=1200):
    """A run with a background that is known: its canaries, snapshots, filter and transcript."""
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=2500, seed=seed)
    recorder = ag.Recorder(canaries, sampling_rate=rate, noise_multiplier=noise)
    generator = np.random.default_rng(seed)
    rates = np.full(steps, 0.2)
    before = generator.normal(size=2500)
    weights, velocity = before.copy(), np.zeros(2500)
    momentum = filter_options.get("momentum", 0.0)
    for step in range(steps):
        released = generator.normal(0.0, noise, 2500)
        canaries.plant(released, recorder.sample(), 1.0)
        recorder.observe(canaries.project(released), background=0.0)
        velocity = momentum * velocity + released / 50.0
        weights = weights - rates[step] * velocity
    linear = sgd_filter(rates, divisor=50.0, **filter_options)
    return canaries, before, weights, linear, recorder.transcript()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}], ids=str)
def test_two_snapshots_are_within_two_percent_of_the_summed_scores(options):
    canaries, before, after, linear, transcript = trained(options)
    scores = weight_scores(
        before,
        after,
        canaries,
        filter=linear,
        clip_norm=1.0,
        sampling_rate=0.1,
        background=[0.0] * 1600,
    )
    bounds = [
        ag.audit(item, delta=DELTA, auditor=ag.GaussianShift()).epsilon_lower
        for item in (scores, transcript.scores())
    ]
    assert bounds[0] == pytest.approx(bounds[1], rel=0.02)
    if not options:
        # The very same sums, in other units and with the rounding of the weights.
        assert scores.score == pytest.approx(transcript.scores().score, abs=1e-9)


def test_with_a_snapshot_at_the_drop_a_steep_schedule_is_within_two_percent_as_well():
    steps, noise, rate = 400, 1.5, 0.1
    rates = 0.2 * np.where(np.arange(steps) < 200, 1.0, 0.05)
    canaries = ag.DiracCanaries(present=400, absent=1200, dimension=2500, seed=0)
    recorder = ag.Recorder(canaries, sampling_rate=rate, noise_multiplier=noise)
    generator = np.random.default_rng(0)
    before = generator.normal(size=2500)
    weights, velocity, kept = before.copy(), np.zeros(2500), []
    for step in range(steps):
        released = generator.normal(0.0, noise, 2500)
        canaries.plant(released, recorder.sample(), 1.0)
        recorder.observe(canaries.project(released), background=0.0)
        velocity = 0.9 * velocity + released / 50.0
        weights = weights - rates[step] * velocity
        if step + 1 in (200, 400):
            kept.append(weights.astype(np.float32))
    filters = [sgd_filter(rates[:end], divisor=50.0, momentum=0.9) for end in (200, 400)]
    summed = ag.audit(
        recorder.transcript().scores(), delta=DELTA, auditor=ag.GaussianShift()
    ).epsilon_lower
    bounds = []
    for chosen in (slice(1, 2), slice(0, 2)):
        linear, after = joined_snapshots(filters[chosen], kept[chosen])
        scores = weight_scores(
            before,
            after,
            canaries,
            filter=linear,
            clip_norm=1.0,
            sampling_rate=rate,
            background=[0.0] * 1600,
        )
        result = ag.audit(scores, delta=DELTA, auditor=ag.GaussianShift())
        bounds.append(result.epsilon_lower)
    assert bounds[0] < 0.8 * summed
    assert bounds[1] == pytest.approx(summed, rel=0.02)


def test_findings_compare_the_noise_and_the_contribution_as_they_do_in_one_step():
    canaries, before, after, linear, _ = trained({"momentum": 0.9})
    given = {"filter": linear, "clip_norm": 1.0, "sampling_rate": 0.1, "background": [0.0] * 1600}
    claim = ag.PrivacyClaim(epsilon=60.0, delta=DELTA, noise_multiplier=1.5, sampling_rate=0.1)
    sound = ag.audit(
        weight_scores(before, after, canaries, noise_multiplier=1.5, **given), claim=claim
    )
    assert sound.verdict is not ag.Verdict.VIOLATION
    assert sound.verdict is not ag.Verdict.INVALID
    twice = ag.PrivacyClaim(epsilon=3.0, delta=DELTA, noise_multiplier=3.0, sampling_rate=0.1)
    broken = ag.audit(
        weight_scores(before, after, canaries, noise_multiplier=3.0, **given), claim=twice
    )
    assert broken.verdict is ag.Verdict.VIOLATION


@pytest.mark.calibration
@pytest.mark.parametrize("name", ["cosine", "halves", "loud"])
def test_the_bound_of_uneven_steps_holds_as_often_as_it_says(name):
    """130 audits at confidence .95; a correct one fails with probability 1e-4: more than 17."""
    steps, rate, noise, present, absent = 400, 0.03, 1.0, 150, 600
    rates = {
        "cosine": 0.5 * (1.0 + np.cos(np.pi * np.arange(steps) / steps)),
        "halves": 0.5 ** (np.arange(steps) / 150),
        "loud": np.where(np.arange(steps) % 50 == 0, 3.0, 1.0),
    }[name]
    linear = sgd_filter(rates)
    assert linear.effective_steps > 100
    truth = linear.epsilon_at(delta=DELTA, noise_multiplier=noise, sampling_rate=rate)
    generator = np.random.default_rng(1)
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=0)
    auditor, above, bounds = ag.GaussianShift(), 0, []
    for number in range(130):
        sums = noise * linear.length * generator.normal(size=canaries.size)
        coins = generator.random((present, steps)) < rate
        sums[canaries.member] += coins @ linear.weights
        after = np.zeros(canaries.size)
        after[canaries.coordinates] = -sums
        scores = weight_scores(
            np.zeros(canaries.size),
            after,
            canaries,
            filter=linear,
            clip_norm=1.0,
            sampling_rate=rate,
            background=np.zeros(canaries.size),
        )
        evidence = auditor.gather(scores, delta=DELTA, confidence=0.95)
        # The bound is above the truth if and only if the truth is rejected, which is quicker.
        rejected = auditor.rejects(evidence, epsilon=truth, delta=DELTA, error=0.05)
        above += rejected
        if number < 10:
            bounds.append(auditor.epsilon_lower(evidence, delta=DELTA, confidence=0.95))
            assert (bounds[-1] > truth) == rejected
    assert above <= 17
    assert np.mean(bounds) > 0.6 * truth


@pytest.mark.calibration
@pytest.mark.parametrize("steps", [5, 30])
def test_power_of_few_uneven_steps_is_that_of_what_snapshots_show(steps, tmp_path):
    """200 audits of a run at three times its claim: found within 10 points of what is printed.

    Two hundred deviate by at most 3.6 points: a correct one fails in fewer than 1 of 100.
    """
    rate, noise, present, absent = 0.3, 0.8, 150, 450
    linear = sgd_filter(0.5 * (1.0 + np.cos(np.pi * np.arange(steps) / steps)))
    spent = accounting.dpsgd_epsilon(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=DELTA
    )
    auditor = ag.GaussianShift()
    canaries = ag.DiracCanaries(present=present, absent=absent, dimension=present + absent, seed=0)
    generator, found, nothing = np.random.default_rng(3), 0, np.zeros(canaries.size)
    for _ in range(200):
        sums = noise * linear.length * generator.normal(size=canaries.size)
        included = generator.random((present, steps)) < rate
        sums[canaries.member] += included @ linear.weights
        after = np.zeros(canaries.size)
        after[canaries.coordinates] = -sums
        scores = weight_scores(
            *(nothing, after, canaries),
            filter=linear,
            clip_norm=1.0,
            sampling_rate=rate,
            background=nothing,
        )
        evidence = auditor.gather(scores, delta=DELTA, confidence=0.95)
        found += auditor.rejects(evidence, epsilon=spent / 3.0, delta=DELTA, error=0.001)
    scores.save(tmp_path / "scores.npz")
    assert ag.CanaryScores.load(tmp_path / "scores.npz").metadata == scores.metadata
    printed = auditor.power(
        evidence, epsilon=spent / 3.0, true_epsilon=spent, delta=DELTA, error=0.001
    )
    assert found / 200 == pytest.approx(printed, abs=0.1)


@pytest.mark.parametrize("every", [1, 4])
def test_canaries_of_the_hidden_state(every):
    """Planted every few steps and seen in the last weights only: two Gaussians, exactly."""
    steps, noise = 80, 4.0
    planted = every_so_often(steps, every=every)
    linear = sgd_filter([0.1] * steps)
    canaries = ag.DiracCanaries(present=400, absent=1600, dimension=2000, seed=0)
    generator = np.random.default_rng(2)
    weights = np.zeros(2000)
    for step in range(steps):
        released = generator.normal(0.0, noise, 2000)
        if step in planted:
            canaries.plant(released, np.flatnonzero(canaries.member), 1.0)
        weights -= 0.1 * released
    scores = weight_scores(np.zeros(2000), weights, canaries, filter=linear, clip_norm=1.0)
    carried = linear.shift(noise_multiplier=noise, planted=planted)
    assert carried == pytest.approx(planted.size / math.sqrt(steps) / noise)
    # Noise between two canaries hides: only a canary in every step tells all there is.
    assert carried <= math.sqrt(planted.size) / noise * (1.0 + 1e-12)
    result = ag.audit(scores, delta=DELTA)
    truth = float(ag.gaussian.epsilon(DELTA, 0.0, 1.0, carried, 1.0))
    assert 0.5 * truth < result.epsilon_lower < truth
    assert result.gdp().lower < carried < result.gdp().interval[1]


def test_steps_of_the_hidden_state_end_with_the_last():
    for steps in (1, 7, 100):
        for every in (1, 2, 5, 7, 200):
            planted = every_so_often(steps, every=every)
            assert planted[-1] == steps - 1
            assert (np.diff(planted) == every).all()
            assert planted.min() < every


def test_least_updated_coordinates():
    before = np.zeros(6)
    after = np.array([3.0, -0.1, 0.0, -5.0, 0.2, 1.0])
    assert least_updated(before, after, 3).tolist() == [1, 2, 4]
    for bad in (0, 7):
        with pytest.raises(InvalidArgumentError, match="count"):
            least_updated(before, after, bad)
    with pytest.raises(InvalidArgumentError, match="one length"):
        least_updated(before, after[:3], 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"before": np.zeros(7)}, "8 entries"),
        ({"after": np.full(8, np.nan)}, "after"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"background": [0.0]}, "background to hold 8"),
        ({"after": np.zeros((2, 4))}, "after"),
    ],
)
def test_bad_input_is_named(changes, message):
    given = {
        "before": np.zeros(8),
        "after": np.arange(8.0),
        "canaries": ag.DiracCanaries(present=4, absent=4, dimension=8, seed=0),
        "filter": sgd_filter([0.1]),
        "clip_norm": 1.0,
    }
    with pytest.raises(InvalidArgumentError, match=message):
        weight_scores(**given | changes)
