"""A run that goes on is the run that stopped, at the same step, and the only one that does."""

from __future__ import annotations

import copy
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

import askgauss as ag
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.results import Status
from tests import forks
from tests.integrations.pair_worker import EVERY, REFUSED, STEPS
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def worker(folder, order, kill_at=-1):
    script = Path(__file__).with_name("pair_worker.py")
    return forks.ran(script, str(folder), order, str(kill_at))


def kill_between_saves(folder, order, kill_at):
    """Kill a run between its two saves, start it again, and hold what comes out against the rule.

    Either it is refused, naming both totals or the weights; or, where no audit was saved yet, a new
    one begins, and says how many of the steps that were accounted for it saw.
    """
    died = worker(folder, order, kill_at)
    assert died.returncode == -signal.SIGKILL, died.stderr
    again = worker(folder, order)
    if again.returncode == REFUSED:
        assert "not of the same step" in again.stdout
        assert "written together" in again.stdout
        return "refused"
    assert again.returncode == 0, again.stderr
    transcript = ag.Transcript.load(folder / "transcript.npz")
    assert (order, kill_at) == ("model first", EVERY)
    assert (transcript.number_of_steps, transcript.facts.accounted_steps) == (STEPS - EVERY, STEPS)
    return "began anew"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
@pytest.mark.parametrize(
    ("order", "kill_at"), [("model first", 6), ("audit first", 9), ("audit first", 3)]
)
def test_killed_between_the_two_saves(tmp_path, order, kill_at):
    assert kill_between_saves(tmp_path, order, kill_at) == "refused"


def two_steps_apart(tmp_path, audit_ahead):
    """A run whose model and audit were saved an epoch apart, as it is when started again."""
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    states = []
    with audit:
        for _ in range(2):
            run.train()
            states.append(
                copy.deepcopy(
                    {
                        "model": run.model.state_dict(),
                        "accountant": dict(run.engine.accountant.state_dict()),
                        "audit": audit.state_dict(),
                    }
                )
            )
    fresh = make_run()
    model, recorded = (states[0], states[1]) if audit_ahead else (states[1], states[0])
    fresh.model.load_state_dict(model["model"])
    return fresh, model, recorded


@pytest.mark.parametrize("audit_ahead", [False, True])
@pytest.mark.parametrize("restored", ["before", "after", "never"])
def test_model_and_audit_an_epoch_apart_are_refused(tmp_path, audit_ahead, restored):
    run, model, recorded = two_steps_apart(tmp_path, audit_ahead)
    if restored == "before":
        run.engine.accountant.load_state_dict(model["accountant"])
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    audit.load_state_dict(recorded["audit"])
    before = run.weights().clone()
    totals = (16, 8) if audit_ahead else (8, 16)
    counted = 0 if restored == "never" else totals[1]

    def go_on():
        with audit:
            if restored == "after":
                run.engine.accountant.load_state_dict(model["accountant"])
            run.train()

    message = rf"with the {totals[0]} steps .* after {totals[0]} observed .* with {counted}\."
    with pytest.raises(RecordingError, match=message):
        go_on()
    assert torch.equal(before, run.weights())  # refused before anything moved


def test_weights_of_another_step_are_refused_even_if_totals_agree():
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train()
        state = audit.state_dict()
    resumed = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    resumed.load_state_dict(state)
    good = copy.deepcopy(run.model.state_dict())
    with torch.no_grad():
        run.model.load_state_dict({name: item + 0.01 for name, item in good.items()})
    for _ in range(2):  # trying again does not make it right
        with resumed, pytest.raises(RecordingError, match="the weights that the audit's"):
            run.train()
    run.model.load_state_dict(good)
    run.optimizer.zero_grad()
    with resumed:
        run.train()
    assert resumed.steps == resumed.transcript().facts.accounted_steps == 16


def test_two_live_copies_are_refused(tmp_path):
    first, second = make_run(), make_run()
    place = {"checkpoint": tmp_path / "audit.npz", "seed": 0}
    audit = CanaryAudit(first.optimizer, data_loader=first.loader, **place)
    copied = CanaryAudit(second.optimizer, data_loader=second.loader, **place)
    with audit:
        first.train()
        with pytest.raises(RecordingError, match="belong to no live run"):
            copied.__enter__()
        audit.save()
        with pytest.raises(RecordingError, match="belong to no live run"):
            CanaryAudit(second.optimizer, data_loader=second.loader, **place)
    # The first is done: its checkpoint may be gone on from.
    assert CanaryAudit(first.optimizer, data_loader=first.loader, **place).steps == 8


def test_a_store_has_one_writer(tmp_path):
    first, second = make_run(), make_run()
    place = {"observation": Observation(store=tmp_path / "steps"), "seed": 0}
    live = CanaryAudit(first.optimizer, data_loader=first.loader, **place)
    with live, pytest.raises(RecordingError, match="belong to no live run"):
        CanaryAudit(second.optimizer, data_loader=second.loader, **place)


def write_weights(run):
    """Training that nobody clips, noises or accounts for."""
    with torch.no_grad():
        for item in run.model.parameters():
            item.add_(0.01)


def finding(result, check):
    return next(item for item in result.findings if item.check == check)


CLAIM = ag.PrivacyClaim(epsilon=50.0, delta=1e-5)


@pytest.mark.parametrize("way", ["left and entered again", "optimizer loaded"])
def test_weights_written_beside_a_restart_are_noticed(way):
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    with audit:
        run.train()
        if way == "optimizer loaded":
            write_weights(run)
            run.optimizer.load_state_dict(run.optimizer.state_dict())
            run.train()
    if way == "left and entered again":
        write_weights(run)
        with audit:
            run.train()
    result = audit.result(claim=CLAIM)
    assert result.verdict is ag.Verdict.INVALID
    assert "before step 9" in finding(result, "weights between steps").summary


def test_leaving_entering_and_loading_an_optimizer_are_no_changes_of_weights():
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    for _ in range(2):
        with audit:
            run.train()
            run.optimizer.load_state_dict(run.optimizer.state_dict())
            run.train()
    result = audit.result(claim=CLAIM)
    assert finding(result, "weights between steps").status is Status.PASS
    assert finding(result, "weights moved by the release").status is Status.PASS


def test_an_accountant_set_back_below_the_restart_is_still_compared():
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    with audit:
        run.train()
        old = copy.deepcopy(dict(run.engine.accountant.state_dict()))
        run.train()
        state = audit.state_dict()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    audit.load_state_dict(state)
    with audit:
        run.train()
        run.engine.accountant.load_state_dict(old)
    facts = audit.transcript().facts
    assert (audit.steps, facts.accounted_steps) == (24, 8)
    result = audit.result(claim=CLAIM)
    assert "24 steps were released and 8 accounted for" in finding(result, "step count").summary
    assert any("history was replaced" in note for note in result.notes)


def test_steps_that_the_audit_did_not_see_earn_no_green():
    """A new audit of a run that goes on speaks of what it saw, and not of the whole claim."""
    run = make_run(noise_multiplier=4.0)
    run.train()
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model, seed=0) as audit:
        run.train(2)
    result = audit.result(claim=CLAIM)
    assert result.verdict is not ag.Verdict.CONSISTENT
    assert "16 steps were recorded of 24 that were accounted for" in str(
        finding(result, "step count").summary
    )
    (steps,) = (part for part in result.scope if part.name == "steps")
    assert (steps.status, steps.met) == ("not tested", True)
    assert "whole run" in steps.how_to_test
    assert ag.AuditResult.from_json(result.to_json()) == result


def test_a_state_that_is_kept_stays_as_it_was():
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    with audit:
        run.train()
        kept = copy.deepcopy(run.model.state_dict()), audit.state_dict()
        accountant = copy.deepcopy(dict(run.engine.accountant.state_dict()))
        run.train()
    again = make_run()
    again.model.load_state_dict(kept[0])
    again.engine.accountant.load_state_dict(accountant)
    resumed = CanaryAudit(again.optimizer, data_loader=again.loader, seed=0)
    resumed.load_state_dict(kept[1])
    assert resumed.steps == 8


def test_the_first_noise_of_every_process_is_tried():
    run = make_run(seed=7)
    run.optimizer.generator = torch.Generator().manual_seed(0x9E3779B9)
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    with audit:
        run.train()
        state = audit.state_dict()
    run.optimizer.generator = torch.Generator().manual_seed(42)
    resumed = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
    resumed.load_state_dict(state)
    with resumed:
        run.train()
    assert "manual_seed(42)" in resumed.transcript().facts.seed_probe.found
    assert resumed.result(claim=CLAIM).verdict is ag.Verdict.VIOLATION


def second_copy(folder, kind, name):
    """Another process goes on with an audit, and says how far it came or why not."""
    script = Path(__file__).with_name("copy_worker.py")
    done = forks.ran(script, str(folder), kind, name)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def keep_model(run, folder):
    state = {
        "model": run.model.state_dict(),
        "accountant": dict(run.engine.accountant.state_dict()),
    }
    torch.save(state, folder / "model.pt")


def test_a_live_checkpoint_is_refused_however_it_is_asked_for(tmp_path):
    run = make_run()
    path, aside = tmp_path / "audit.npz", tmp_path / "aside.npz"
    (tmp_path / "link.npz").symlink_to(path)
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path)
    with audit:
        run.train()
        audit.save()
        audit.save(aside)
        keep_model(run, tmp_path)
        before = path.read_bytes(), aside.read_bytes()
        assert "no live run" in second_copy(tmp_path, "load", "audit.npz")
        assert "no live run" in second_copy(tmp_path, "checkpoint", "link.npz")
        assert "no live run" in second_copy(tmp_path, "checkpoint", "aside.npz")
        assert (path.read_bytes(), aside.read_bytes()) == before
        run.train()
    assert CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path).steps == 16


def test_an_audit_that_is_entered_again_notices_what_went_on_meanwhile(tmp_path):
    run = make_run()
    path = tmp_path / "audit.npz"
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, checkpoint=path)
    with audit:
        run.train()
    keep_model(run, tmp_path)
    assert second_copy(tmp_path, "checkpoint", "audit.npz") == "16"
    for _ in range(2):
        with pytest.raises(RecordingError, match="as this run left it"):
            audit.__enter__()
    with pytest.raises(RecordingError, match="as this run left it"):
        audit.save()


def test_a_store_is_entered_again(tmp_path):
    run = make_run()
    place = {
        "observation": Observation(store=tmp_path / "steps"),
        "checkpoint": tmp_path / "audit.npz",
        "seed": 0,
    }
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, **place)
    for _ in range(2):
        with audit:
            run.train()
            audit.save()
    assert audit.transcript().number_of_steps == 16


if __name__ == "__main__":
    # More of them: python -m tests.integrations.test_opacus_restarts 50
    import collections
    import tempfile

    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(int(sys.argv[1])):
        order = random.choice(["model first", "audit first"])
        kill_at = random.randrange(EVERY, STEPS + 1, EVERY)
        with tempfile.TemporaryDirectory() as place:
            outcomes[f"{order}: {kill_between_saves(Path(place), order, kill_at)}"] += 1
    print(dict(outcomes))
