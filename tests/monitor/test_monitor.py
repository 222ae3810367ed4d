"""The monitor on a recorder: what it sees, what it does not, and how it goes on."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    AskGaussWarning,
    FileFormatError,
    InvalidArgumentError,
    PrivacyAlarm,
    RecordingError,
)
from askgauss.files import codec
from askgauss.monitor import Alarm, Monitor, ObservedStep, read_feed
from askgauss.monitor.eprocess import CONTRIBUTION, CORRELATION, NOISE, ODDS
from askgauss.monitor.simulate_run import RunFault
from tests.monitor.runs import watched

SIGMA = 2.0
UNSEEN = {"weights": "nothing compares them with what was released"}


def claim(**changes):
    given = {"epsilon": 8.0, "delta": 1e-5, "noise_multiplier": SIGMA, "steps": 64} | changes
    return ag.PrivacyClaim(**given)


def loop(
    monitor,
    steps,
    *,
    seed=1,
    noise=SIGMA,
    tensors=None,
    background=0.0,
    recorder=None,
    planter=None,
    repeat=False,
    contribution=1.0,
    present=40,
    declared=None,
):
    """A loop of one's own with 400 canaries; each of the options may be wrong on purpose."""
    canaries = ag.DiracCanaries(
        present=present, absent=400 - present, tensors=tensors or (2000,), seed=3
    )
    rate = None if planter else 0.2
    if recorder is None:
        recorder = ag.Recorder(canaries, sampling_rate=rate, monitor=monitor)
    generator = np.random.default_rng(seed)
    fixed = generator.normal(size=400)
    scale = np.asarray(noise)[canaries.tensor] if np.ndim(noise) else noise
    for _ in range(steps):
        planted = planter(generator, canaries) if planter else recorder.sample()
        values = scale * (fixed if repeat else generator.normal(size=400))
        values[planted] += contribution
        recorder.observe(
            values,
            background=background,
            planted=planted if planter else None,
            noise_multiplier=declared,
        )
    return recorder


def quiet(**changes):
    return Monitor(claim=claim(**changes), on_alarm=lambda alarm: None)


def poisson(rate):
    def plant(generator, canaries):
        present = np.flatnonzero(canaries.member)
        return present[generator.random(present.size) < rate]

    return plant


def test_a_clean_run_is_quiet_and_bounded():
    monitor = quiet()
    loop(monitor, 64)
    assert monitor.alarm is None
    assert monitor.steps == 64
    assert set(monitor.evidence) == {"noise", "contribution", "repeated noise", "all"}
    assert monitor.untested == UNSEEN | {"sampling rate": "the recorder's own coin plants"}
    assert 0.0 < monitor.bound < ag_epsilon(noise=SIGMA, steps=64)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"noise": 1.2}, "noise"),
        ({"noise": 0.0}, "noise"),
        ({"contribution": 4.0}, "contribution"),
        ({"repeat": True}, "repeated noise"),
        ({"noise": [SIGMA, SIGMA, 0.6 * SIGMA], "tensors": (800, 800, 400)}, "noise"),
    ],
    ids=["less noise", "no noise", "contribution", "repeated", "one tensor"],
)
def test_an_alarm_names_its_cause(fault, cause):
    monitor = quiet()
    loop(monitor, 40, **fault)
    alarm = monitor.alarm
    assert alarm is not None
    assert alarm.cause == cause
    assert alarm.evidence >= 3.0
    assert alarm.summary
    assert f"Step {alarm.step}" in str(alarm)


def test_an_alarm_says_which_tensor_and_what_it_would_leak():
    monitor = quiet(steps=500)
    loop(monitor, 60, noise=[SIGMA, 0.5 * SIGMA], tensors=(1900, 100))
    assert "in tensor 1" in monitor.alarm.summary
    even = quiet(steps=500)
    loop(even, 60, noise=0.5 * SIGMA)
    exact = ag_epsilon(noise=0.5 * SIGMA, steps=500)
    assert even.alarm.epsilon == pytest.approx(exact, rel=0.2)


def ag_epsilon(*, noise, steps, rate=0.2):
    from askgauss import accounting

    return accounting.dpsgd_epsilon(
        noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=1e-5
    )


def test_a_late_fault_is_measured_from_where_it_began():
    """After 30 clean steps a fifth less noise: what is said is of the steps since."""
    alarms = {}
    for noise in (0.8, 0.9):
        monitor = quiet()
        recorder = loop(monitor, 30)
        loop(monitor, 34, seed=2, noise=noise * SIGMA, recorder=recorder)
        alarms[noise] = monitor.alarm
        assert alarms[noise].step > 30
        measured = float(alarms[noise].summary.split(" is ")[1].split()[0])
        # Up to where the alarm comes there is little to measure; by chance it looks a bit worse.
        assert measured == pytest.approx(noise, abs=0.1)
    # What the rest of the run would leak is by the noise that it has now.
    whole, half = (ag_epsilon(noise=share * SIGMA, steps=64) for share in (1.0, 0.7))
    assert whole < alarms[0.8].epsilon < half


def test_the_rate_is_watched_where_the_training_samples():
    monitor = quiet(sampling_rate=0.2)
    loop(monitor, 60, planter=poisson(0.4))
    assert monitor.alarm.cause == "sampling rate"
    assert "0.2 is claimed" in monitor.alarm.summary
    clean = quiet(sampling_rate=0.2)
    loop(clean, 60, planter=poisson(0.2))
    assert clean.alarm is None
    assert clean.untested == UNSEEN
    silent = quiet()
    loop(silent, 2, planter=poisson(0.2))
    assert silent.untested == UNSEEN | {"sampling rate": "no sampling rate is claimed"}


def test_with_an_unknown_background_only_too_little_in_all_is_seen():
    monitor = quiet()
    loop(monitor, 30, background=None, noise=0.8 * SIGMA)
    assert monitor.alarm.cause == "noise"
    assert set(monitor.untested) == {
        "contribution",
        "sampling rate",
        "repeated noise",
        "weights",
    }
    assert monitor.bound is None
    assert monitor.projection() is None


def test_a_schedule_is_watched_in_units_of_each_step():
    """Noise as declared, which falls to a quarter; against the first declaration it would alarm."""
    monitor = quiet(noise_multiplier=None, steps=None)
    recorder = None
    for number, noise in enumerate((4.0, 2.0, 1.0)):
        recorder = loop(monitor, 20, noise=noise, declared=noise, recorder=recorder, seed=number)
    assert monitor.alarm is None
    loop(monitor, 20, noise=0.8, declared=1.0, recorder=recorder, seed=9)
    assert monitor.alarm.cause == "noise"
    assert monitor.alarm.step > 60
    assert monitor.alarm.epsilon is None  # no single noise multiplier to go on with


def test_without_a_declared_noise_the_claim_says_what_it_needs():
    from askgauss import accounting

    needed = accounting.dpsgd_noise_multiplier(epsilon=8.0, delta=1e-5, sampling_rate=0.2, steps=64)
    enough, too_little = (quiet(noise_multiplier=None) for _ in range(2))
    loop(enough, 64, noise=needed)
    loop(too_little, 64, noise=0.9 * needed)
    assert enough.alarm is None
    assert too_little.alarm.cause == "noise"


def test_nothing_to_watch_is_said():
    monitor = Monitor(claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    with pytest.warns(AskGaussWarning, match="watch"):
        loop(monitor, 1, background=None)
    assert monitor.evidence == {}


def test_examples_are_watched_for_their_rate_only():
    inputs, labels = np.zeros((40, 3)), np.zeros(40, dtype=int)
    canaries = ag.ExampleCanaries(inputs=inputs, labels=labels, present=20, seed=0)
    monitor = quiet(sampling_rate=0.1)
    recorder = ag.Recorder(canaries, monitor=monitor)
    present = np.flatnonzero(canaries.member)
    for _ in range(20):
        recorder.observe(np.zeros(40), planted=present[:10])
    assert monitor.alarm.cause == "sampling rate"
    assert "not independent" in monitor.untested["noise"]


def test_raise_warn_and_call():
    with pytest.raises(PrivacyAlarm, match="noise") as caught:
        loop(Monitor(claim=claim()), 5, noise=0.5)
    assert isinstance(caught.value.alarm, Alarm)
    assert caught.value.alarm.step == 1
    with pytest.warns(AskGaussWarning, match="Step 1"):
        loop(Monitor(claim=claim(), on_alarm="warn"), 1, noise=0.5)
    told = []
    loop(Monitor(claim=claim(), on_alarm=told.append), 5, noise=0.5)
    assert len(told) == 1


def test_a_step_that_alarms_is_recorded_and_the_run_may_go_on():
    recorder = ag.Recorder(
        canaries := ag.DiracCanaries(present=40, absent=360, dimension=2000, seed=3),
        sampling_rate=0.2,
        monitor=Monitor(claim=claim()),
    )
    recorder.sample()
    with pytest.raises(PrivacyAlarm):
        recorder.observe(np.zeros(400), background=0.0)
    assert recorder.steps == 1
    recorder.sample()
    recorder.observe(np.zeros(400), background=0.0)
    assert recorder.transcript().number_of_steps == 2
    assert canaries.size == 400


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_alarms_and_is_left_out(value):
    monitor = quiet()
    recorder = loop(monitor, 3)
    before = monitor.evidence
    recorder.sample()
    recorder.observe(np.full(400, value), background=0.0)
    assert monitor.alarm.cause == "finite values"
    assert monitor.alarm.evidence == math.inf
    assert monitor.alarm.epsilon is None
    assert monitor.evidence == before
    loop(monitor, 3, recorder=recorder)
    assert monitor.steps == 7


def test_weights_that_are_not_what_was_released_alarm_at_once():
    monitor = Monitor(claim=claim())
    loop(monitor, 1)
    assert "weights" in monitor.untested
    monitor.check_weights(1e-7, 1e-6)
    assert "weights" not in monitor.untested
    assert monitor.alarm is None
    with pytest.raises(PrivacyAlarm, match="weights"):
        monitor.check_weights(0.1, 1e-6)
    other = quiet()
    loop(other, 1)
    other.check_weights(math.nan, 1e-6)
    assert other.alarm.cause == "weights"


def oracle(steps, *, size, present, claimed_noise, rate):
    """The joint e-process by plain loops over beginnings, alternatives and observations."""
    parts = []
    logs = [
        [-m * math.log(r) - s * (r**-2 - 1) / 2 for r in NOISE]
        for m, s in ((size - step["k"], step["others"] / claimed_noise**2) for step in steps)
    ]
    parts.append(np.array(logs))
    logs = []
    for step in steps:
        above = [(x - 1) / claimed_noise for x in step["planted"]]
        logs.append([sum(s * x - (s * x) ** 2 / 2 for x in above) for s in CONTRIBUTION])
    parts.append(np.array(logs))
    logs = []
    for step in steps:
        row = []
        for f in ODDS:
            other = f * rate / (1 - rate + f * rate)
            row.append(
                step["k"] * math.log(other / rate)
                + (present - step["k"]) * math.log((1 - other) / (1 - rate))
            )
        logs.append(row)
    parts.append(np.array(logs))
    total = 0.0
    for table in parts:
        for column in table.T:
            for start in range(1, len(steps) + 1):
                share = 1 / (start * (start + 1))
                total += share * math.exp(column[start - 1 :].sum()) / table.shape[1]
    return math.log10((total + len(parts) / (len(steps) + 1)) / len(parts))


def test_against_plain_loops():
    canaries = ag.DiracCanaries(present=30, absent=50, dimension=80, seed=0)
    monitor = Monitor(claim=claim(sampling_rate=0.3), on_alarm=lambda alarm: None)
    # Without kept canaries there are three parts left.
    monitor.attach(canaries, np.zeros(0, dtype=np.int64), sampling=None)
    generator = np.random.default_rng(0)
    steps = []
    for _ in range(6):
        count = int(generator.binomial(30, 0.35))
        planted = generator.normal(1.2, 1.9, count)
        others = generator.normal(0, 1.9, 80 - count)
        steps.append({"k": count, "planted": planted, "others": float(others @ others)})
        monitor.observe(
            ObservedStep(
                planted=np.array([count]),
                planted_total=np.array([planted.sum()]),
                planted_square=np.array([planted @ planted]),
                total=np.array([others.sum()]),
                square=np.array([others @ others]),
                kept=np.zeros(0),
                noise_multiplier=None,
                known=True,
                own_coin=False,
            )
        )
    slow = oracle(steps, size=80, present=30, claimed_noise=SIGMA, rate=0.3)
    assert monitor.evidence["all"] == pytest.approx(slow, rel=1e-6)


def test_likeness_against_plain_loops():
    """Only absent canaries are kept, and only repeated noise can be watched."""
    canaries = ag.DiracCanaries(present=0, absent=40, dimension=40, seed=0)
    monitor = Monitor(claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5), on_alarm=lambda alarm: None)
    monitor.attach(canaries, np.arange(40), sampling=None)
    rows = np.random.default_rng(1).normal(0, 3.0, (7, 40))
    rows[5] += 0.4 * rows[2]
    scaled = rows * math.sqrt(40) / np.linalg.norm(rows, axis=1, keepdims=True)
    logs = np.zeros((7, 2 * CORRELATION.size))
    for number, row in enumerate(rows, start=1):
        # The first step, and the last one for every power of two that divides it.
        levels = {}
        for earlier in range(2, number):
            levels[(earlier & -earlier)] = earlier
        compared = [1, *levels.values()]
        products = {step: scaled[number - 1] * scaled[step - 1] for step in range(1, number)}
        for index, slope in enumerate(CORRELATION):
            if number > 1:
                each = {
                    step: sum(slope * x - (slope * x) ** 2 / 2 for x in product)
                    for step, product in products.items()
                }
                logs[number - 1, index] = each[number - 1]
                values = [math.exp(each[step]) for step in compared]
                logs[number - 1, CORRELATION.size + index] = math.log(np.mean(values))
        monitor.observe(
            ObservedStep(
                planted=np.array([0]),
                planted_total=np.array([0.0]),
                planted_square=np.array([0.0]),
                total=np.array([row.sum()]),
                square=np.array([row @ row]),
                kept=row,
                noise_multiplier=None,
                known=True,
                own_coin=True,
            )
        )
    total = 0.0
    for column in logs.T:
        for start in range(1, 8):
            total += math.exp(column[start - 1 :].sum()) / (start * (start + 1)) / logs.shape[1]
    assert set(monitor.evidence) == {"repeated noise", "all"}
    assert monitor.evidence["all"] == pytest.approx(math.log10(total + 1 / 8), rel=1e-6)


def _uneven(generator, size):
    """Three times the noise in every second coordinate, a hundred times in a few."""
    scale = np.where(np.arange(size) % 2, 3.0, 1.0)
    scale[::40] = 100.0
    return scale * generator.normal(0, SIGMA, size)


def _heavy(generator, size):
    """At least the claim, and with tails that have no mean."""
    return (1.0 + np.abs(generator.standard_cauchy(size))) * generator.normal(0, SIGMA, size)


def _lattice(generator, size):
    return np.round(generator.normal(0, SIGMA, size) * 8.0) / 8.0


def _loud_steps(generator, size):
    return generator.choice([1.0, 6.0]) * generator.normal(0, SIGMA, size)


@pytest.mark.parametrize("noise", [_uneven, _heavy, _lattice, _loud_steps])
def test_more_noise_of_any_kind_is_no_alarm(noise):
    """At an error of 0.05, so a correct monitor fails one of these with probability .002 at most:
    more than 4 alarms of 20 runs."""
    alarms = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        canaries = ag.DiracCanaries(present=50, absent=150, dimension=200, seed=seed)
        monitor = Monitor(claim=claim(), error=0.05, on_alarm=lambda alarm: None)
        recorder = ag.Recorder(canaries, sampling_rate=0.2, monitor=monitor)
        for _ in range(100):
            planted = recorder.sample()
            values = noise(generator, canaries.size)
            values[planted] += 1.0
            recorder.observe(values, background=0.0)
        alarms += monitor.alarm is not None
    assert alarms <= 4


@pytest.mark.parametrize("period", [1, 2, 7, 60])
def test_noise_that_comes_back_is_seen_whatever_its_age(period):
    monitor = watched(
        np.random.default_rng(period), steps=3 * period + 70, fault=RunFault(period=period)
    )
    assert monitor.alarm.cause == "repeated noise"
    assert monitor.alarm.epsilon == math.inf


def test_noise_replayed_after_a_restart_is_seen():
    """The run goes on from step 100, where the generator stood at step 80."""
    canaries = ag.DiracCanaries(present=10, absent=390, dimension=2000, seed=3)
    monitor = quiet(steps=None)
    recorder = ag.Recorder(canaries, sampling_rate=0.2, monitor=monitor)
    noise = np.random.default_rng(0).normal(0, SIGMA, (100, 400))
    for row in [*range(100), *range(80, 100)]:
        values = noise[row].copy()
        values[recorder.sample()] += 1.0
        recorder.observe(values, background=0.0)
        if monitor.alarm is not None:
            break
    assert monitor.alarm.cause == "repeated noise"
    assert monitor.alarm.step > 100


def test_later_steps_may_wait_but_not_what_is_plain_to_see():
    """Whoever asks gets the evidence of every step; the alarm itself comes a few steps later."""
    told = []
    monitor = Monitor(claim=claim(), on_alarm=told.append)
    recorder = loop(monitor, 40)
    loop(monitor, 1, recorder=recorder, noise=0.5)  # at once
    assert told[0].step == 41
    told.clear()
    monitor = Monitor(claim=claim(), on_alarm=told.append)
    recorder = loop(monitor, 40)
    loop(monitor, 2, recorder=recorder, repeat=True, seed=5)
    assert told == []
    assert monitor.steps == 42
    loop(monitor, 6, recorder=recorder, seed=6)
    assert told[0].step == 42
    assert told[0].cause == "repeated noise"
    asked = Monitor(claim=claim(), on_alarm=lambda alarm: None)
    recorder = loop(asked, 40)
    loop(asked, 2, recorder=recorder, repeat=True, seed=5)
    assert asked.alarm.step == 42
    assert asked.evidence["repeated noise"] > 3.0


def test_going_on_after_a_restart_changes_nothing(tmp_path):
    whole, first, second = quiet(), quiet(), quiet()
    loop(whole, 20)
    canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3)
    generator = np.random.default_rng(1)
    generator.normal(size=400)
    recorder = ag.Recorder(canaries, sampling_rate=0.2, monitor=first)
    for number in range(20):
        if number == 11:
            recorder.save(tmp_path / "state.npz")
            recorder = ag.Recorder(canaries, sampling_rate=0.2, monitor=second)
            recorder.load(tmp_path / "state.npz")
        planted = recorder.sample()
        values = SIGMA * generator.normal(size=400)
        values[planted] += 1.0
        recorder.observe(values, background=0.0)
    assert second.evidence == whole.evidence
    assert codec.to_plain(second.course()) == codec.to_plain(whole.course())
    assert second.bound == whole.bound
    assert second.state_dict() == whole.state_dict()


def test_an_alarm_survives_a_restart_and_is_not_told_twice(tmp_path):
    told = []
    recorder = loop(Monitor(claim=claim(), on_alarm=told.append), 3, noise=0.5)
    recorder.save(tmp_path / "state.npz")
    again = Monitor(claim=claim(), on_alarm=told.append)
    canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3)
    resumed = ag.Recorder(canaries, sampling_rate=0.2, monitor=again)
    resumed.load(tmp_path / "state.npz")
    assert again.alarm.step == 1
    loop(again, 2, noise=0.5, recorder=resumed)
    assert len(told) == 1


def test_a_checkpoint_of_another_claim_or_without_the_monitor_is_refused(tmp_path):
    recorder = loop(quiet(), 3)
    recorder.save(tmp_path / "state.npz")
    canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3)
    with pytest.raises(RecordingError, match="monitor"):
        ag.Recorder(canaries, sampling_rate=0.2).load(tmp_path / "state.npz")
    for monitor in (quiet(epsilon=4.0), Monitor(claim=claim(), error=0.1)):
        other = ag.Recorder(canaries, sampling_rate=0.2, monitor=monitor)
        with pytest.raises(RecordingError, match="checkpoint of this monitor"):
            other.load(tmp_path / "state.npz")
        assert monitor.steps == 0
    plain = loop(None, 3)
    plain.save(tmp_path / "plain.npz")
    late = quiet()
    joined = ag.Recorder(canaries, sampling_rate=0.2, monitor=late)
    joined.load(tmp_path / "plain.npz")
    loop(late, 2, recorder=joined)
    assert (joined.steps, late.steps) == (5, 2)


def test_a_damaged_state_is_refused_and_changes_nothing():
    monitor = quiet()
    loop(monitor, 3)
    state = monitor.state_dict()
    for name, value in (
        ("bets", None),
        ("bets", {**state["bets"], "wealth": [0.0]}),
        ("bets", {**state["bets"], "rows": [[1.0]]}),
        ("tally", [[1.0]]),
        ("sums", [1.0]),
        ("course", {**state["course"], "stride": 0}),
        ("steps", "three"),
    ):
        other = quiet()
        canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3)
        ag.Recorder(canaries, sampling_rate=0.2, monitor=other)
        with pytest.raises(FileFormatError):
            other.load_state_dict({**state, name: value})
        assert other.steps == 0
        assert other.evidence == {}


def test_one_monitor_watches_one_run():
    monitor = quiet()
    loop(monitor, 1)
    with pytest.raises(RecordingError, match="of its own"):
        loop(monitor, 1)
    step = ObservedStep(*[np.zeros(1)] * 6, None, True, True)
    with pytest.raises(RecordingError, match="recorder"):
        quiet().observe(step)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claim": 8.0}, "claim "),
        ({"error": 0.0}, "error in"),
        ({"error": 0.6}, "error in"),
        ({"on_alarm": "stop"}, "on_alarm to be one of raise, warn"),
        ({"confidence": 1.0}, "confidence in"),
        ({"seconds": 0}, "seconds > 0"),
        ({"log": "wandb"}, "log "),
        ({"claim": None, "delta": 0.0}, "delta"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Monitor(**{"claim": claim()} | options)


def test_true_is_a_monitor_that_holds_a_run_to_what_it_declares():
    canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3)
    options = {"sampling_rate": 0.2, "noise_multiplier": SIGMA}
    clean = ag.Recorder(canaries, monitor=True, **options)
    loop(None, 40, recorder=clean)
    assert clean.monitor.alarm is None
    assert clean.monitor.claim is None
    assert clean.monitor.bound > 0.0
    assert clean.monitor.projection() is None  # nobody said where the run ends
    with pytest.raises(PrivacyAlarm, match="noise"):
        loop(None, 3, recorder=ag.Recorder(canaries, monitor=True, **options), noise=SIGMA / 2)
    assert ag.Recorder(canaries, monitor=False, **options).monitor is None
    with pytest.raises(InvalidArgumentError, match="monitor"):
        ag.Recorder(canaries, monitor="yes", **options)


def test_whoever_saw_a_breach_can_tell_the_monitor():
    monitor = quiet()
    loop(monitor, 3)
    monitor.breach("closure", "Gradients were computed again after the noise.")
    assert monitor.alarm.cause == "closure"
    assert monitor.alarm.evidence == math.inf
    monitor.breach("weights", "They moved.")
    assert monitor.alarm.cause == "closure"  # the first one stays
    loud = Monitor(claim=claim())
    loop(loud, 1)
    with pytest.raises(PrivacyAlarm, match="Step 1: closure"):
        loud.breach("closure", "Again.")


def test_loggers_get_the_same_numbers(tmp_path):
    told = []
    monitor = Monitor(
        claim=claim(),
        on_alarm=lambda alarm: None,
        seconds=1e-9,
        folder=tmp_path,
        log=lambda numbers, step: told.append((step, numbers)),
    )
    loop(monitor, 16)
    monitor.close()
    # Not in steps with a look, such as 1, 2 and 4: those have done enough.
    steps = [step for step, _ in told]
    assert steps[-1] == 16
    assert {*steps[:-1]} <= {*range(3, 16)} - {4, 8}
    assert {13, 14, 15} & {*steps[:-1]}
    numbers = told[-1][1]
    feed = read_feed(tmp_path)
    assert numbers == feed.numbers()
    assert numbers["askgauss/epsilon_spent"] == pytest.approx(feed.spent)
    assert numbers["askgauss/epsilon_lower"] == feed.bound[0]
    assert numbers["askgauss/evidence_all"] == feed.evidence["all"]
    low, high = (numbers[f"askgauss/epsilon_at_end_{end}"] for end in ("low", "high"))
    assert low <= numbers["askgauss/epsilon_at_end"] <= high
    assert numbers["askgauss/alarm"] == 0.0
    loop(None, 1, noise=0.1, recorder=_recorder_of(monitor))
    assert told[-1][1]["askgauss/alarm"] == 1.0


def _recorder_of(monitor):
    """A second recorder for a monitor, with the state of its first run."""
    state = monitor.state_dict()
    other = ag.Recorder(
        ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=3),
        sampling_rate=0.2,
        monitor=Monitor(claim=claim(), on_alarm=lambda alarm: None, seconds=1e-9, log=monitor._log),
    )
    other.monitor.load_state_dict(state)
    return other


def test_a_result_shows_the_course_and_survives_its_json():
    from askgauss.figures.run_figures import BoundByStep, with_course
    from askgauss.figures.style import NothingToDrawError

    monitor = quiet()
    recorder = loop(monitor, 20)
    result = ag.audit(recorder.transcript(), claim=claim(steps=20))
    with pytest.raises(NothingToDrawError, match="nobody watched"):
        BoundByStep.from_result(result)
    assert 'id="course"' not in result.to_html()
    shown = with_course(result, monitor.feed("finished"))
    assert shown.verdict is result.verdict
    assert shown.findings == result.findings
    again = ag.AuditResult.from_json(shown.to_json())
    assert again.to_dict() == shown.to_dict()
    assert 'id="course"' in again.to_html()
    assert "There was no alarm." in shown.to_html()
    assert BoundByStep.from_result(again).feed.course.step == monitor.course().step
    broken = replace(shown, watched=replace(shown.watched, error=7.0))
    with pytest.raises(FileFormatError, match="error"):
        ag.AuditResult.from_json(broken.to_json())


def test_an_alarm_is_among_the_findings_and_in_the_report():
    from askgauss.figures.run_figures import BoundByStep, with_course

    monitor = quiet()
    recorder = loop(monitor, 3, noise=SIGMA / 2)
    result = with_course(
        ag.audit(recorder.transcript(), claim=claim(steps=3)), monitor.feed("failed")
    )
    assert result.findings[-1].check == "monitor"
    assert "Step 1: noise" in result.findings[-1].summary
    assert BoundByStep.from_result(result).feed.alarm.step == 1
    page = result.to_html()
    assert "alarm at step 1" in page
    assert "Step 1: noise" in page


def test_a_claim_of_delta_zero_has_no_bound_that_is_finite_and_no_error():
    monitor = quiet(delta=0.0)
    loop(monitor, 4)
    assert monitor.bound == 0.0 or monitor.bound is None


def test_the_course_stays_short_and_keeps_its_peaks():
    monitor = watched(np.random.default_rng(0), steps=1200, to_the_end=True, planned=None)
    course = monitor.course()
    assert 128 <= len(course.step) <= 257
    assert course.step[-1] == 1200
    assert list(course.step) == sorted(course.step)
    assert course.noise[:-1] == pytest.approx(np.ones(len(course.noise) - 1), abs=0.03)
    bounds = np.array(course.bound)
    assert (np.diff(bounds[np.isfinite(bounds)]) >= 0.0).all()


def test_looks_share_the_error():
    from askgauss.monitor.sequential import Looks

    for planned in (None, 1000, 1024):
        looks = Looks(planned=planned, error=0.05, delta=1e-5, rate=0.1, present=10)
        for step in range(1, 5000):
            looks.add(step, (0, 0, 0, 0, 0, 0))
        steps = [look.step for look in looks.taken]
        assert set(steps) == {2**power for power in range(13)} | ({planned} - {None})
        assert sum(looks.error_at(step) for step in steps) < 0.05


def test_the_bound_is_nearly_that_of_one_look():
    """The recorder's own audit at the end, which looks once, against the monitor's."""
    canaries = ag.DiracCanaries(present=100, absent=900, dimension=1000, seed=0)
    monitor = quiet(steps=300)
    recorder = ag.Recorder(canaries, sampling_rate=0.3, monitor=monitor)
    generator = np.random.default_rng(0)
    for _ in range(300):
        planted = recorder.sample()
        values = generator.normal(0, SIGMA, 1000)
        values[planted] += 1.0
        recorder.observe(values, background=0.0)
    once = ag.audit(recorder.transcript(), delta=1e-5, diagnostics=False).epsilon_lower
    assert 0.97 * once < monitor.bound <= once * (1.0 + 1e-9)
    projection = monitor.projection()
    truth = ag_epsilon(noise=SIGMA, steps=300, rate=0.3)
    assert projection.low < truth < projection.high
    assert projection.low < projection.epsilon < projection.high


@pytest.mark.calibration
def test_the_bound_holds_at_all_looks_at_once():
    """Of 100 runs at most 5 %, and chance, ever have a look above the truth."""
    wrong = 0
    for seed in range(100):
        monitor = watched(
            np.random.default_rng([5, seed]),
            steps=64,
            planned=64,
            present=40,
            absent=100,
            to_the_end=True,
            own_coin=True,
        )
        looks = monitor._looks
        wrong += any(
            look.test() is not None and look.test().lower(looks.error_at(look.step)) > 1 / 2.576
            for look in looks.taken
        )
    assert wrong <= 5 + 3 * math.sqrt(4.75)


@pytest.mark.calibration
def test_alarms_of_clean_runs_are_rare():
    """At an error of a tenth: 50 runs of 150 steps, judged at every step."""
    peaks = [
        max(
            watched(
                np.random.default_rng([6, seed]), steps=150, present=20, absent=60, to_the_end=True
            )
            .course()
            .evidence
        )
        for seed in range(50)
    ]
    assert sum(peak >= 1.0 for peak in peaks) <= 5 + 3 * math.sqrt(4.5)


def test_the_feed_is_written_and_holds_aggregates_only(tmp_path):
    monitor = Monitor(claim=claim(), folder=tmp_path / "run", seconds=1e-9, on_alarm="warn")
    canaries = ag.DiracCanaries(present=40, absent=360, tensors=(2000,), seed=987654321)
    recorder = ag.Recorder(canaries, sampling_rate=0.2, monitor=monitor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(monitor, 10, recorder=recorder)
    text = (tmp_path / "run" / "watch.json").read_text()
    feed = read_feed(tmp_path / "run")
    assert feed.steps == 10
    assert feed.status == "running"
    assert feed.declared == ((SIGMA, 10),)
    # Of some eight plantings a step, thirty share a point.
    assert feed.course.step == (3, 7)
    assert "987654321" not in text

    def longest(value):
        if isinstance(value, dict):
            return max(map(longest, value.values()), default=0)
        if isinstance(value, list):
            return max([len(value), *map(longest, value)])
        return 0

    assert longest(json.loads(text)) <= 10  # as many as there were steps: nothing by canary
    monitor.close()
    assert read_feed(tmp_path / "run").status == "finished"
    assert codec.to_plain(read_feed(tmp_path / "run")) == codec.to_plain(
        read_feed(tmp_path / "run" / "watch.json")
    )


def test_a_feed_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    monitor = Monitor(claim=claim(), folder=tmp_path / "run", seconds=1e-9)
    with pytest.warns(AskGaussWarning, match="written"):
        loop(monitor, 15)
    assert monitor.steps == 15


def test_an_alarm_tells_no_finer_than_the_noise_it_measures():
    """Of a tensor with few canaries in it, or of few plantings, the exact number is their own."""

    def told(**broken):
        monitor = Monitor(claim=claim(), on_alarm=lambda alarm: None)
        loop(monitor, 60, **broken)
        return monitor.alarm.cause, monitor.alarm.summary, monitor.alarm.epsilon

    # Numbers that differ by a hundredth, where the error is some tenths: one sentence for both.
    few = [told(tensors=(1990, 10), noise=[SIGMA, scale]) for scale in (0.02, 0.0201)]
    assert few[0][0] == "noise"
    assert " in tensor 1 " in few[0][1]
    assert few[0] == few[1]
    added = [told(contribution=much) for much in (4.0, 4.02)]
    assert added[0][0] == "contribution"
    assert added[0] == added[1]
