"""A monitor in an Opacus run: one argument, and a broken run stops in its first steps."""

from __future__ import annotations

import pytest

import askgauss as ag
from askgauss.evidence.verification import verify
from askgauss.exceptions import InvalidArgumentError, PrivacyAlarm
from askgauss.integrations.opacus import CanaryAudit
from askgauss.monitor import read_feed
from tests.integrations.runs import PARAMETERS, make_run

CANARIES = {"present": 10, "absent": 180}


def claim(**changes):
    return ag.PrivacyClaim(
        **{"epsilon": 20.0, "delta": 1e-5, "noise_multiplier": 1.0, "steps": 16} | changes
    )


def attached(run, monitor, **options):
    canaries = ag.DiracCanaries(**CANARIES, tensors=_sizes(run), seed=0)
    return CanaryAudit(
        run.optimizer, canaries=canaries, data_loader=run.loader, monitor=monitor, **options
    )


def _sizes(run):
    return tuple(item.numel() for item in run.model.parameters())


def test_a_sound_run_is_quiet_and_its_course_is_kept(tmp_path):
    run = make_run()
    monitor = ag.Monitor(claim=claim(), folder=tmp_path)
    with attached(run, monitor) as audit:
        run.train(epochs=2)
    assert audit.monitor is monitor
    assert monitor.alarm is None
    assert monitor.steps == audit.steps == 16
    assert monitor.bound is not None
    feed = read_feed(tmp_path)
    assert (feed.status, feed.steps, feed.sampling_rate) == ("finished", 16, 0.125)
    assert sum(_sizes(run)) == PARAMETERS


def test_true_watches_and_the_result_shows_the_course():
    from askgauss.figures.run_figures import BoundByStep

    run = make_run()
    with attached(run, True) as audit:
        run.train(epochs=6)
    assert audit.monitor.alarm is None
    assert {"noise", "contribution", "repeated noise"} <= audit.monitor.evidence.keys()
    result = audit.result(claim=claim(steps=48))
    assert BoundByStep.from_result(result).claimed == 20.0
    # A point has thirty plantings.
    assert 8 < BoundByStep.from_result(result).feed.course.step[-1] <= audit.steps == 48
    assert 'id="course"' in result.to_html()


def test_the_planned_steps_reach_the_monitor():
    run = make_run()
    with attached(run, True, planned_steps=24) as audit:
        run.train(epochs=2)
    assert audit.monitor.planned == 24
    assert audit.monitor.feed().planned == 24
    result = audit.result(claim=claim(steps=None))
    found = next(item for item in result.findings if item.check == "stopping")
    assert "16 steps where 24 were planned" in found.summary
    assert result.confidence > 0.99999
    assert verify(result, audit.transcript()).holds


def test_a_broken_run_stops_before_its_weights_move(tmp_path):
    run = make_run(noise_multiplier=0.5)  # and the claim says 1
    before = run.weights()
    monitor = ag.Monitor(claim=claim(), folder=tmp_path)
    with pytest.raises(PrivacyAlarm, match="noise"), attached(run, monitor) as audit:
        run.train()
    assert monitor.alarm.step == 1
    assert audit.steps == 1
    assert (run.weights() == before).all()
    assert read_feed(tmp_path).status == "failed"


def _train_with_other_gradients(run, first):
    """From a step on, gradients without noise take the place of those that were read."""
    steps = []

    def again(*_):
        steps.append(1)
        if len(steps) >= first:
            for parameter in run.optimizer.params:
                parameter.grad = parameter.summed_grad.view_as(parameter) / 32.0

    hook = run.optimizer.original_optimizer.register_step_pre_hook(again)
    try:
        run.train()
    finally:
        hook.remove()


def test_weights_that_move_otherwise_end_the_run_in_the_next_step(tmp_path):
    run = make_run()
    monitor = ag.Monitor(claim=claim(), folder=tmp_path)
    with pytest.raises(PrivacyAlarm, match="weights"), attached(run, monitor) as audit:
        _train_with_other_gradients(run, 1)
    assert monitor.alarm.cause == "weights"
    assert monitor.alarm.step == audit.steps == 2
    assert "the gradient was replaced" in monitor.alarm.summary
    assert read_feed(tmp_path).alarm == monitor.alarm


def test_weights_that_are_compared_are_not_called_untested():
    run = make_run()
    with attached(run, True) as audit:
        run.train()
    assert audit.monitor.alarm is None
    assert "weights" not in audit.monitor.untested


def test_a_wrong_move_in_the_very_last_step_alarms_as_the_context_is_left():
    run = make_run()
    with pytest.raises(PrivacyAlarm, match="weights"), attached(run, True) as audit:
        _train_with_other_gradients(run, 8)
    assert audit.steps == 8


def test_whoever_catches_the_alarm_may_go_on():
    run = make_run(noise_multiplier=0.5)
    monitor = ag.Monitor(claim=claim())
    with attached(run, monitor) as audit:
        with pytest.raises(PrivacyAlarm):
            run.train()
        run.train()
    assert audit.steps == 1 + 8
    assert "without a step" not in " ".join(audit.transcript().facts.notes)


def test_noise_from_a_generator_that_is_seeded_anew():
    import torch

    run = make_run()
    monitor = ag.Monitor(claim=claim(), on_alarm="raise")
    step = run.optimizer.add_noise

    def seeded():
        torch.manual_seed(5)
        step()

    run.optimizer.add_noise = seeded
    with pytest.raises(PrivacyAlarm, match="repeated noise"), attached(run, monitor):
        run.train(epochs=2)
    assert monitor.alarm.step == 2


def test_the_evidence_goes_on_after_a_restart(tmp_path):
    path = tmp_path / "audit.npz"
    run = make_run()
    with attached(run, ag.Monitor(claim=claim()), checkpoint=path) as audit:
        run.train()
    again = ag.Monitor(claim=claim())
    attached(make_run(), again, checkpoint=path)
    assert again.steps == 8
    assert again.evidence == audit.monitor.evidence
    third = ag.Monitor(claim=claim())
    other = attached(make_run(), third)
    other.load_state_dict(audit.state_dict())
    assert third.evidence == audit.monitor.evidence


def test_what_is_no_monitor_is_refused():
    with pytest.raises(InvalidArgumentError, match="Monitor\\(claim="):
        attached(make_run(), "yes")
