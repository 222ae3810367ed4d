"""Alarms by the monitor's own bound, and results of runs that were ended by what it showed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.auditing import AuditedRun
from askgauss.checks.gate import error_share
from askgauss.evidence.verification import Standard, verify
from askgauss.monitor import run_monitor, sequential

NOISE, DELTA = 2.0, 1e-5


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No look is skipped because this machine is busy."""
    monkeypatch.setattr(run_monitor, "_LONGEST_LOOK", 1e3)


class Run(AuditedRun):
    """A run of simulated steps."""

    def __init__(self, *, rate=0.2, claimed_rate=0.2, steps=64, epsilon=None, planned=True, seed=1):
        if epsilon is None:
            epsilon = accounting.dpsgd_epsilon(
                noise_multiplier=NOISE, sampling_rate=claimed_rate, steps=steps, delta=DELTA
            )
        self.claim = ag.PrivacyClaim(
            epsilon=epsilon, delta=DELTA, noise_multiplier=NOISE, sampling_rate=claimed_rate,
            steps=steps if planned else None,
        )  # fmt: skip
        self._monitor = ag.Monitor(claim=self.claim, on_alarm=lambda alarm: None)
        canaries = ag.DiracCanaries(present=40, absent=160, dimension=200, seed=seed)
        self.recorder = ag.Recorder(
            canaries, sampling_rate=rate, noise_multiplier=NOISE, monitor=self._monitor
        )
        self.generator = np.random.default_rng(seed)

    @property
    def monitor(self):
        return self._monitor

    def transcript(self):
        return self.recorder.transcript()

    def train(self, steps):
        for _ in range(steps):
            planted = self.recorder.sample()
            values = self.generator.normal(0.0, NOISE, 200)
            values[planted] += 1.0
            self.recorder.observe(values, background=0.0)
        return self


@pytest.mark.parametrize(
    ("options", "steps", "cause"),
    [
        ({"epsilon": 1.0}, 64, "epsilon"),
        ({"rate": 0.6, "claimed_rate": 0.1}, 64, "epsilon"),
        ({"steps": 20, "rate": 0.1, "claimed_rate": 0.1}, 64, "steps"),
    ],
    ids=["claim", "rate", "steps"],
)
def test_a_bound_above_the_claim_is_an_alarm(options, steps, cause):
    run = Run(**options).train(steps)
    alarm = run.monitor.alarm
    assert alarm is not None
    assert alarm.cause == cause
    assert alarm.epsilon > run.claim.epsilon
    assert f"{run.claim.epsilon:g} is claimed" in alarm.summary


def _fail(*_, **__):
    raise AssertionError("A training waited for this.")


def _on(grid, replacement):
    """The lower bound, replaced on one grid."""
    bound = accounting.dpsgd_epsilon_lower

    def replaced(**run):
        return replacement() if run.get("grid", accounting.FINE) == grid else bound(**run)

    return replaced


def test_a_training_waits_for_nothing_slow(monkeypatch, tmp_path):
    run, logged = Run(epsilon=4.0), []
    monitor = run._monitor
    monitor._folder, monitor._log = tmp_path, lambda numbers, step: logged.append(numbers)
    monitor._seconds, monitor._began = 1e-9, -1e9
    with monkeypatch.context() as patched:
        for name in ("dpsgd_epsilon_lower", "history_epsilon", "dpsgd_epsilon"):
            slow = _on(accounting.FINE, _fail) if name == "dpsgd_epsilon_lower" else _fail
            patched.setattr(accounting, name, slow)
        run.train(62)
        # Those outside get bounds and what was spent at most, in milliseconds.
        assert logged[-1]["askgauss/epsilon_lower"] > 0.0
        assert "askgauss/epsilon_spent" not in logged[-1]
        assert logged[-1]["askgauss/epsilon_spent_at_most"] > 0.0
    monitor.close()
    assert logged[-1]["askgauss/epsilon_lower"] >= logged[-2]["askgauss/epsilon_lower"]
    assert "askgauss/epsilon_spent" in logged[-1]


def test_the_quick_bound_alarms_in_the_training_and_the_exact_one_when_asked(monkeypatch):
    run = Run(epsilon=1.0)
    with monkeypatch.context() as patched:
        patched.setattr(accounting, "dpsgd_epsilon_lower", _on(accounting.FINE, _fail))
        run.train(64)
        assert run._monitor._alarm.cause == "epsilon"
    run = Run(epsilon=1.0)
    small = _on(accounting.SMALL, lambda **_: 0.0)
    monkeypatch.setattr(accounting, "dpsgd_epsilon_lower", small)
    run.train(64)
    assert run._monitor._alarm is None
    assert run._monitor.alarm.cause == "epsilon"


def test_no_step_waits_for_two_slow_jobs(monkeypatch, tmp_path):
    """To compare a look with the claim, to compose a bound and to write each take milliseconds."""
    # Every look may exceed the claim by what is measured first, and none does.
    monkeypatch.setattr(sequential.Looks, "_at_most", lambda *_: np.inf)
    run, jobs = Run(epsilon=6.0), []
    monitor = run._monitor
    monitor._folder, monitor._seconds, monitor._began = tmp_path, 1e-9, -1e9
    for owner, name in (
        (sequential.Looks, "above"),
        (sequential.Looks, "advance"),
        (run_monitor, "write_feed"),
    ):
        original = getattr(owner, name)

        def counted(*arguments, _original=original, _name=name, **options):
            done = _original(*arguments, **options)
            # To see that there is nothing to compose takes no time.
            if _name != "advance" or done:
                jobs.append(_name)
            return done

        monkeypatch.setattr(owner, name, counted)
    seen = set()
    for _ in range(64):
        jobs.clear()
        run.train(1)
        assert len(jobs) <= 1
        seen |= {*jobs}
    assert seen == {"above", "advance", "write_feed"}


def test_looks_that_take_too_long_wait_for_the_end(monkeypatch):
    monkeypatch.setattr(run_monitor, "_LONGEST_LOOK", -1.0)
    run = Run(epsilon=1.0).train(64)
    assert run._monitor._alarm is None
    assert run._monitor.alarm.cause == "epsilon"


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.08, 0.9])
@pytest.mark.parametrize("steps", [1, 100, 5000])
def test_the_coarse_bound_is_just_below_what_composing_gives(rate, steps):
    for signal in (0.1, 0.5, 1.0, 2.0):
        run = {
            "signal_to_noise": signal, "sampling_rate": rate, "steps": steps, "delta": DELTA
        }  # fmt: skip
        exact = accounting.dpsgd_epsilon_lower(**run)
        coarse = accounting.dpsgd_epsilon_lower(**run, grid=accounting.SMALL)
        assert coarse <= exact * (1.0 + 1e-9)
        assert coarse >= 0.996 * exact or not 0.1 < exact < 30.0


def test_correct_runs_do_not_alarm_by_it():
    # One in 1,000 would; seeds are fixed.
    for seed in range(5):
        assert Run(seed=seed).train(64).monitor.alarm is None


def test_the_quick_bound_is_above_what_composing_gives():
    for signal, rate, steps in ((1.0, 0.01, 100), (3.0, 0.001, 16), (0.2, 0.5, 256), (1.0, 1.0, 4)):
        exact = accounting.dpsgd_epsilon_lower(
            signal_to_noise=signal, sampling_rate=rate, steps=steps, delta=DELTA
        )
        assert exact <= accounting.quick_upper(signal, rate, steps, DELTA)


def test_errors_at_all_steps_add_up_to_that_of_one_audit():
    for planned in (10, 1000):
        shares = sum(error_share(step, planned) for step in range(1, 200_000))
        assert 1.005 < shares <= 1.01


def test_a_run_that_was_ended_early_is_stated_with_less_error():
    early = Run().train(40)
    result = early.result(claim=early.claim)
    assert result.confidence > 0.99999
    assert result.gate_error < 1e-6
    transcript = early.transcript()
    unwatched = transcript.with_facts(replace(transcript.facts, watched=False, planned_steps=None))
    plain = ag.audit(unwatched, claim=early.claim)
    assert result.epsilon_lower < plain.epsilon_lower
    assert ag.audit(transcript, claim=early.claim).epsilon_lower == result.epsilon_lower
    assert "40 steps where 64 were planned" in finding(result).summary
    # Read from its file it is the same, and it is what its transcript gives.
    assert ag.AuditResult.from_json(result.to_json()).epsilon_lower == result.epsilon_lower


def test_a_run_that_was_ended_early_is_verified(tmp_path):
    early = Run().train(40)
    (tmp_path / "result.json").write_text(early.result(claim=early.claim).to_json())
    early.transcript().save(tmp_path / "transcript.npz")
    result = ag.AuditResult.from_json((tmp_path / "result.json").read_text())
    transcript = ag.Transcript.load(tmp_path / "transcript.npz")
    verified = verify(result, transcript)
    assert verified.holds
    assert "confidence 1 - 2" in str(verified)
    assert Standard().shortfalls(result) == ()
    # With the whole error, as if nobody had watched.
    facts = replace(transcript.facts, watched=False, planned_steps=None)
    forged = ag.audit(transcript.with_facts(facts), claim=early.claim)
    note = finding(result)
    for made_up in (
        forged,
        replace(forged, findings=(*forged.findings, note)),
        replace(forged, findings=(*forged.findings, replace(note, claimed=40.0))),
        ag.audit(transcript, claim=early.claim, confidence=0.9),
    ):
        assert not verify(made_up, transcript).holds
    # Less error than the run's own end asks for, which would hide a leak.
    whole = Run().train(64).transcript()
    assert verify(ag.audit(whole, claim=early.claim), whole).holds
    hidden = ag.audit(whole.with_facts(replace(whole.facts, planned_steps=100)), claim=early.claim)
    assert not verify(hidden, whole).holds


def test_what_was_planned_before_the_run_stays_planned():
    run = Run(planned=False)
    run.monitor.plan(64)
    result = run.train(40).result(claim=run.claim)
    assert "40 steps where 64 were planned" in finding(result).summary
    run.monitor.plan(40)
    assert run.monitor.planned == 64
    again = Run(planned=False)
    again.monitor.plan(40)
    again.recorder.load_state_dict(run.recorder.state_dict())
    assert again.monitor.planned == 64


def test_the_planned_end_and_no_plan_at_all():
    whole = Run().train(64)
    result = whole.result(claim=whole.claim)
    assert result.confidence == 0.95
    assert finding(result) is None
    unplanned = Run(planned=False).train(40)
    result = unplanned.result(claim=unplanned.claim)
    assert result.confidence == 0.95
    assert "what the monitor showed did not decide" in finding(result).summary


def finding(result):
    return next((item for item in result.findings if item.check == "stopping"), None)
