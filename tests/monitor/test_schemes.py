"""The monitor where batches are not drawn by Poisson coins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

import askgauss as ag
from askgauss.monitor import Monitor, read_feed, run_monitor
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Shuffled,
    TruncatedPoisson,
)

SIGMA, STEPS = 4.0, 48
KNOWN = [
    EveryStep(),
    CyclicPoisson(rate=0.4, cycle=4),
    MinSeparation(separation=4, rate=0.3),
    BallsInBins(bins=6),
]
UNKNOWN = [
    Shuffled(batches=6),
    FixedSize(batch=30, records=200),
    TruncatedPoisson(rate=0.2, cap=60, records=200),
]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No look is skipped because this machine is busy."""
    monkeypatch.setattr(run_monitor, "_LONGEST_LOOK", 1e3)


def watched(scheme, *, noise=SIGMA, contribution=1.0, repeat=False, seed=1, **options):
    """A run by this scheme, and what its monitor says of it."""
    given = {"on_alarm": lambda alarm: None} | options
    monitor = Monitor(**given)
    canaries = ag.DiracCanaries(present=40, absent=360, dimension=2000, seed=3)
    recorder = ag.Recorder(canaries, sampling=scheme, noise_multiplier=SIGMA, monitor=monitor)
    generator = np.random.default_rng(seed)
    others = generator.normal(0.0, 2.0, 400)
    fixed = generator.normal(0.0, noise, 400)
    for _ in range(STEPS):
        planted = recorder.sample()
        values = fixed.copy() if repeat else generator.normal(0.0, noise, 400)
        values[planted] += contribution
        if scheme.known_background:
            recorder.observe(values, background=0.0)
        else:
            recorder.observe(values + others)
    return monitor


@pytest.mark.parametrize("scheme", KNOWN, ids=lambda scheme: scheme.tag)
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"noise": 0.8 * SIGMA}, "noise"),
        ({"contribution": 8.0}, "contribution"),
        ({"repeat": True}, "repeated noise"),
    ],
    ids=["noise", "contribution", "repeated"],
)
def test_each_fault_is_named_with_its_step_and_its_end(scheme, fault, cause):
    claim = ag.PrivacyClaim(epsilon=30.0, delta=1e-5, noise_multiplier=SIGMA, steps=2 * STEPS)
    monitor = watched(scheme, claim=claim, **fault)
    alarm = monitor.alarm
    assert alarm is not None
    assert (alarm.cause, alarm.evidence >= 3.0) == (cause, True)
    assert 1 <= alarm.step <= STEPS
    # Correct, it ends at this; the one that alarmed leaks more.
    honest = scheme.epsilon_lower(noise_multiplier=SIGMA, steps=2 * STEPS, delta=1e-5)
    assert alarm.epsilon is not None
    assert alarm.epsilon > honest


@pytest.mark.parametrize("scheme", KNOWN, ids=lambda scheme: scheme.tag)
def test_a_clean_run_is_quiet_and_its_bound_is_the_schemes(scheme):
    """The bound exceeds the truth in one run of twenty at most; the seed is fixed."""
    monitor = watched(scheme, claim=ag.PrivacyClaim(epsilon=30.0, delta=1e-5, steps=STEPS))
    assert monitor.alarm is None
    truth = scheme.epsilon_lower(noise_multiplier=SIGMA, steps=STEPS, delta=1e-5)
    assert 0.0 < monitor.bound < truth
    projected = monitor.projection()
    assert projected.low < truth < projected.high


@pytest.mark.parametrize("scheme", KNOWN, ids=lambda scheme: scheme.tag)
def test_a_bound_above_the_claim_alarms_during_the_training(scheme):
    """By the coarse bound of the scheme: whoever asks for the alarm gets the exact one."""
    claim = ag.PrivacyClaim(epsilon=0.1, delta=1e-5, steps=STEPS)
    monitor = watched(scheme, claim=claim, noise=0.25, contribution=1.0)
    assert monitor._alarm is not None
    # Without a declared noise multiplier above the true one only the bound contradicts the claim.
    claim = ag.PrivacyClaim(epsilon=0.1, delta=1e-5, noise_multiplier=0.25, steps=STEPS)
    monitor = watched(scheme, claim=claim, noise=0.25)
    assert monitor._alarm is not None
    assert monitor._alarm.cause == "epsilon"


@pytest.mark.parametrize(
    ("scheme", "least"),
    [
        (EveryStep(), 1.0),
        (CyclicPoisson(rate=0.4, cycle=4), 0.99),
        (CyclicPoisson(rate=1.0, cycle=4, groups="secret"), 0.3),
        (MinSeparation(separation=4, rate=0.3), 0.92),
        (MinSeparation(separation=10, rate=0.05, warm_start=False), 0.92),
        (MinSeparation(separation=1, rate=0.1), 0.92),
        (BallsInBins(bins=6), 0.9),
        (BallsInBins(bins=6, redrawn=False), 0.9),
    ],
    ids=str,
)
def test_a_coarse_bound_of_a_scheme_is_below_its_bound(scheme, least):
    for noise in (0.3, 1.0, 2.0, 6.0):
        for steps in (1, 7, 60, 600):
            run = {"noise_multiplier": noise, "steps": steps, "delta": 1e-5}
            exact, coarse = scheme.epsilon_lower(**run), scheme.coarse_epsilon_lower(**run)
            # Both are found by a search, each to a millionth.
            assert 0.0 <= coarse <= exact * (1.0 + 1e-6)
            if steps == 600 and noise >= 2.0:
                assert coarse >= least * exact, (noise, coarse, exact)


@pytest.mark.parametrize("scheme", UNKNOWN, ids=lambda scheme: scheme.tag)
def test_where_others_give_the_canary_away_only_noise_is_watched(scheme):
    assert watched(scheme).alarm is None
    monitor = watched(scheme, noise=0.5 * SIGMA)
    assert monitor.alarm.cause == "noise"
    assert set(monitor.evidence) == {"noise", "all"}
    assert monitor.bound is None


def test_the_rate_of_another_scheme_is_not_watched_and_said():
    monitor = Monitor(on_alarm="raise")
    canaries = ag.DiracCanaries(present=40, absent=360, dimension=2000, seed=3)
    recorder = ag.Recorder(
        canaries, sampling=FixedSize(batch=30, records=200), noise_multiplier=1.0, monitor=monitor
    )
    recorder.observe(np.random.default_rng(0).normal(size=400), planted=[])
    assert monitor.untested["sampling rate"].startswith("only Poisson rates are")


def test_a_follower_reads_the_scheme_and_what_its_accountant_says(tmp_path):
    scheme = CyclicPoisson(rate=0.4, cycle=4)
    watched(scheme, folder=tmp_path, seconds=1e9).close()
    feed = read_feed(tmp_path)
    assert feed.sampling == scheme
    assert feed.spent == scheme.epsilon(noise_multiplier=SIGMA, steps=STEPS, delta=1e-5)
    watched(MinSeparation(separation=4, rate=0.3), folder=tmp_path, seconds=1e9).close()
    assert read_feed(tmp_path).spent is None


def test_delta_zero_has_an_infinite_bound_and_no_error():
    for scheme in (EveryStep(), None):
        canaries = ag.DiracCanaries(present=100, absent=900, dimension=2000, seed=3)
        monitor = Monitor(
            claim=ag.PrivacyClaim(epsilon=8.0, delta=0.0, noise_multiplier=1.0, steps=8),
            on_alarm=lambda alarm: None,
        )
        rate = {"sampling": scheme} if scheme else {"sampling_rate": 0.5}
        recorder = ag.Recorder(canaries, monitor=monitor, **rate)
        generator = np.random.default_rng(0)
        for _ in range(8):
            planted = recorder.sample()
            values = generator.normal(0.0, 0.8, 1000)
            values[planted] += 1.0
            recorder.observe(values, background=0.0)
        # At delta 0 Gaussian noise keeps no claim at all.
        assert monitor.bound == np.inf
        assert monitor.alarm.cause == "noise"
        assert monitor.alarm.epsilon is None


@pytest.mark.parametrize(
    "scheme", [EveryStep(), Shuffled(batches=6)], ids=lambda scheme: scheme.tag
)
def test_clean_runs_alarm_at_most_as_often_as_stated(scheme):
    """Through the recorder, judged at every step; more than allowed with probability 1e-4."""
    runs, error = 60, 0.1
    alarms = sum(watched(scheme, error=error, seed=seed).alarm is not None for seed in range(runs))
    assert alarms <= binom.isf(1e-4, runs, error)
