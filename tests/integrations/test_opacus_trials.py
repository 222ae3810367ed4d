"""Schedules and adaptive clipping, sound and with half of the noise; and releases nobody tried."""

from __future__ import annotations

import math

import numpy as np
import opacus
import pytest
from opacus.schedulers import StepGradClip

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus import opacus_versions as versions
from askgauss.results import Status
from tests.integrations import opacus_trials as trials
from tests.integrations.runs import make_run

DIFFERENT = [trial for trial in trials.TRIALS if trial.schedule or trial.clipping != "flat"]


@pytest.mark.parametrize("trial", DIFFERENT, ids=lambda trial: trial.name)
def test_steps_that_differ_are_composed(trial):
    """Seeds are fixed; of sound runs one in fifty has a bound below nine tenths of its claim."""
    sound, half = (trials.outcome(trial, half=half) for half in (False, True))
    assert sound.verdict == "CONSISTENT"
    assert sound.failed == ()
    assert sound.share >= trials.LEAST
    assert half.verdict == "VIOLATION"
    assert "noise scale" in half.failed


def test_every_trial_has_a_name_of_its_own():
    names = [trial.name for trial in trials.TRIALS]
    assert len(set(names)) == len(names)
    assert all(trial.offered for trial in trials.TRIALS)


def test_a_release_that_was_never_tried_is_said(monkeypatch):
    run = make_run()
    assert versions.untried() == ""
    monkeypatch.setattr(opacus, "__version__", "1.7.0")
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train()
    assert any("1.7.0" in note and "never tried" in note for note in audit.transcript().facts.notes)


def test_a_clip_schedule_that_jumps_is_recorded_by_step():
    run = make_run(noise_multiplier=1.0)
    schedule = StepGradClip(run.optimizer, step_size=1, gamma=0.1)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        for _ in range(3):
            run.train()
            schedule.step()
    recorded = audit.transcript()
    assert len(np.unique(recorded.steps.clip_norm)) == 3
    # In clip norms the noise is the same throughout: five standard errors.
    squares = recorded.canaries.square[~recorded.member]
    count = squares.size * recorded.number_of_steps
    assert squares.sum() / count == pytest.approx(1.0, rel=5 * math.sqrt(2 / count))


def adaptive(deviation: float = 1.0):
    return make_run(
        clipping="adaptive",
        batch_size=32,
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.01,
        unclipped_num_std=deviation,
    )


def found(audit, name):
    result = audit.result(claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    return next(item for item in result.findings if item.check == name)


def test_the_count_of_unclipped_records_has_its_noise():
    run = adaptive()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train(15)
    count = audit.transcript().facts.clip_count
    assert (count.releases, count.read, count.deviation) == (60, 60, 1.0)
    assert count.noise_multiplier == pytest.approx(1.0)
    assert 0 < count.shown <= 60
    # Five standard errors.
    assert count.square / 60 == pytest.approx(1.0, abs=5 * math.sqrt(2 / 60))
    assert found(audit, "noise of the clipping count").status is Status.PASS
    assert found(audit, "accounting of the clipping count").status is Status.PASS


@pytest.mark.parametrize("factor", [0.0, 0.25])
def test_a_count_with_less_noise_is_named(factor):
    run = adaptive()
    own = run.optimizer.add_noise

    def add_noise():
        stated = run.optimizer.unclipped_num_std
        exact = float(run.optimizer.unclipped_num)
        own()
        noise = run.optimizer.unclipped_num - exact
        run.optimizer.unclipped_num = exact + factor * noise
        assert run.optimizer.unclipped_num_std == stated

    run.optimizer.add_noise = add_noise
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train(15)
    assert found(audit, "noise of the clipping count").status is Status.FAIL


def test_an_accountant_that_leaves_out_the_count_is_named():
    """As releases before 1.6 do: it is told the multiplier of the gradients."""
    run = adaptive()
    told = versions.adaclip_gradient_noise(run.optimizer)

    def hook(optimizer):
        run.engine.accountant.step(noise_multiplier=told, sample_rate=0.25)

    run.optimizer.attach_step_hook(hook)
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, accountant=run.engine.accountant, seed=0
    ) as audit:
        run.train(15)
    accounting = found(audit, "accounting of the clipping count")
    assert accounting.status is not Status.PASS
    assert accounting.measured == pytest.approx(1.0)
    assert accounting.claimed == pytest.approx(told)


def test_the_count_goes_on_after_a_restart(tmp_path):
    path = tmp_path / "audit.npz"
    run = adaptive()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path):
        run.train(1)
    again = CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=path)
    with again:
        run.train(1)
    assert again.transcript().facts.clip_count.releases == 8


def test_two_audits_on_one_optimizer_are_refused():
    run = adaptive()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0):
        second = CanaryAudit(run.optimizer, data_loader=run.loader, seed=1)
        with pytest.raises(RecordingError, match="has an audit"):
            second.__enter__()


def test_a_schedule_goes_on_after_a_restart(tmp_path):
    """The clip norm at the restart is not the one that the run began with."""
    path = tmp_path / "audit.npz"
    run = make_run()
    schedule = StepGradClip(run.optimizer, step_size=1, gamma=0.5)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path):
        run.train()
    schedule.step()
    again = CanaryAudit(run.optimizer, data_loader=run.loader, checkpoint=path)
    with again:
        run.train()
    np.testing.assert_allclose(again.transcript().steps.clip_norm, np.repeat([1.0, 0.5], 8))
