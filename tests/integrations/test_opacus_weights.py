"""What ships is what was audited: weights follow the release, or a finding says otherwise."""

from __future__ import annotations

import contextlib
import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import askgauss as ag
from askgauss.exceptions import FileFormatError
from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus.canary_audit import read_state
from askgauss.integrations.opacus.shadow import Shadow, acts_elementwise
from askgauss.recording.facts import WeightFacts
from askgauss.recording.facts.run_facts import RunFacts
from askgauss.recording.transcript import Transcript
from askgauss.results import Status, Verdict
from tests.integrations.runs import CLASSES, FEATURES, RECORDS, SIZES, make_run, observer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MOVED, BETWEEN = "weights moved by the release", "weights between steps"
LOOSE = ag.PrivacyClaim(epsilon=1000.0, delta=1e-5)


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def swapped(run, optimizer):
    """The run with another torch optimizer under the private one."""
    run.optimizer.original_optimizer = optimizer
    return run


def parameters(run):
    return [item for item in run.model.parameters() if item.requires_grad]


def audited(run, epochs=2, **options):
    options.setdefault("canaries", ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3))
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model, **options) as audit:
        run.train(epochs)
    return audit


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "groups": lambda p: torch.optim.SGD(
        [{"params": p[:1], "lr": 0.5}, {"params": p[1:], "momentum": 0.9}], lr=0.1
    ),
}


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_elementwise_optimizer_is_followed(name, mode):
    run = make_run(mode=mode)
    swapped(run, OPTIMIZERS[name](parameters(run)))
    facts = audited(run).transcript().facts.weights
    assert (facts.steps, facts.otherwise, facts.between, facts.unchecked) == (16, 0, 0, "")
    assert facts.places > 60


def test_the_shadow_ends_where_the_whole_optimizer_does():
    """The oracle: every coordinate by itself, against the whole vector, after 16 steps of Adam."""
    run = make_run()
    swapped(run, torch.optim.Adam(parameters(run), lr=0.01))
    audit = CanaryAudit(
        run.optimizer,
        data_loader=run.loader,
        canaries=ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3),
    )
    with audit:
        run.train(2)
        shadow = observer(audit, Shadow)
        ends = torch.cat([part.small.detach() for part in shadow._parts])
        real = shadow._places.read(shadow._parameters)
        torch.testing.assert_close(ends, real, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.StepLR(o, 3, 0.5),
        lambda o: lr_scheduler.OneCycleLR(o, 0.5, 40),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    ],
)
def test_schedules_are_followed(schedule):
    run = make_run()
    scheduler = schedule(run.optimizer)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        for _ in range(3):
            run.train()
            scheduler.step()
    facts = audit.transcript().facts.weights
    assert (facts.steps, facts.otherwise) == (24, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_followed(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(dtype)
    data = TensorDataset(torch.randn(RECORDS, FEATURES).to(dtype), torch.arange(RECORDS) % CLASSES)
    for name in ("momentum", "adam"):
        run = make_run(model=copy.deepcopy(model), data=data, noise_multiplier=2.0)
        swapped(run, OPTIMIZERS[name](parameters(run)))
        facts = audited(run).transcript().facts.weights
        assert (facts.steps, facts.otherwise) == (16, 0)


def test_mixed_precision_is_followed():
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        for features, target in run.loader:
            run.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = run.criterion(run.model(features), target)
            loss.backward()
            run.optimizer.step()
    facts = audit.transcript().facts.weights
    assert (facts.steps, facts.otherwise) == (8, 0)


@pytest.mark.parametrize("audit_first", [True, False])
def test_resumed_runs_are_followed_from_the_state_they_bring(audit_first, tmp_path):
    first = make_run()
    swapped(first, torch.optim.Adam(parameters(first), lr=0.01))
    audit = audited(first, checkpoint=tmp_path / "audit.npz")
    run = make_run(seed=1)
    swapped(run, torch.optim.Adam(parameters(run), lr=0.01))

    def restore():
        run.model.load_state_dict(first.model.state_dict())
        run.optimizer.load_state_dict(first.optimizer.state_dict())
        run.engine.accountant.history = list(first.engine.accountant.history)

    if not audit_first:
        restore()
    again = CanaryAudit(
        run.optimizer,
        canaries=audit.canaries,
        data_loader=run.loader,
        checkpoint=tmp_path / "audit.npz",
    )
    with again:
        if audit_first:
            restore()
        run.train(2)
    facts = again.transcript().facts.weights
    assert (facts.steps, facts.otherwise, facts.between) == (32, 0, 0)


class Foreign(torch.optim.Optimizer):
    """A class that torch does not have; with a norm, it does not treat coordinates apart."""

    def __init__(self, parameters, lr, trust=False):
        self.trust = trust
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for item in group["params"]:
                    if item.grad is not None:
                        state = self.state[item]
                        state["sum"] = 0.9 * state.get("sum", 0.0) + item.grad
                        size = item.norm() / item.grad.norm() if self.trust else 1.0
                        item.sub_(group["lr"] * size * state["sum"].sign())


def test_foreign_classes_are_followed_where_they_treat_coordinates_apart():
    run = make_run()
    swapped(run, Foreign(parameters(run), lr=0.01))
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    assert acts_elementwise(run.optimizer.original_optimizer) == ""
    assert torch.equal(torch.random.get_rng_state(), before)
    facts = audited(run).transcript().facts.weights
    assert (facts.steps, facts.otherwise, facts.optimizer) == (16, 0, "Foreign")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Foreign(p, lr=0.01, trust=True),
        lambda p: torch.optim.Adafactor(p, lr=0.01),
        lambda p: torch.optim.Muon([item for item in p if item.ndim == 2], lr=0.01),
    ],
)
def test_other_optimizers_are_said_not_to_be_checked(make):
    run = make_run()
    if "Muon" in repr(make.__code__.co_names):
        for item in parameters(run):
            item.requires_grad_(item.ndim == 2)
    swapped(run, make(parameters(run)))
    result = audited(run, canaries=None, seed=0).result(claim=LOOSE)
    found = finding(result, MOVED)
    assert found.status is Status.NOT_RUN
    assert type(run.optimizer.original_optimizer).__name__ in found.summary
    assert next(part for part in result.scope if part.name == "weights").status == "not tested"
    assert finding(result, BETWEEN).status is Status.PASS


# --- what is not as it should be ------------------------------------------------------------------


class HandsTheClosureOn:
    """Opacus 1.0: the closure reaches the wrapped optimizer, which computes gradients again."""

    def __init__(self, optimizer):
        def step(closure=None):
            if closure is not None:
                with torch.enable_grad():
                    closure()
            if optimizer.pre_step():
                return optimizer.original_optimizer.step(closure)
            return None

        optimizer.step = step


@pytest.mark.parametrize("handed_on", [True, False])
def test_a_closure_that_is_handed_on_is_named(handed_on):
    run = make_run()
    if handed_on:
        HandsTheClosureOn(run.optimizer)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model) as audit:
        for features, target in run.loader:

            def closure(features=features, target=target):
                run.optimizer.zero_grad()
                loss = run.criterion(run.model(features), target)
                loss.backward()
                return loss

            run.optimizer.step(closure)
    result = audit.result(claim=LOOSE)
    moved, closure = finding(result, MOVED), finding(result, "closure")
    if handed_on:
        assert result.verdict is Verdict.VIOLATION
        assert moved.status is closure.status is Status.FAIL
        assert "8 of 8 steps" in moved.summary
        assert "a closure computed the gradient again" in moved.summary
        assert next(part for part in result.scope if part.name == "weights").status == "broken"
    else:
        assert moved.status is closure.status is Status.PASS
        assert result.verdict is not Verdict.VIOLATION


def _another_optimizer(run):
    run.optimizer.original_optimizer = torch.optim.SGD(parameters(run), lr=0.1)
    run.train()


def _without_noise(run):
    plain = torch.optim.SGD(parameters(run), lr=0.1)
    for features, target in run.loader:
        run.optimizer.zero_grad()
        run.criterion(run.model(features), target).backward()
        plain.step()


def _averaged_weights(run):
    for item in parameters(run):
        item.data.mul_(0.9)


@pytest.mark.parametrize(
    "write", [None, _another_optimizer, _without_noise, _averaged_weights, "declared", "raised"]
)
def test_weights_that_change_after_the_last_step_are_named(write):
    """What is in the model when the audit is left is what ships."""
    run = make_run()
    with (
        contextlib.suppress(KeyboardInterrupt),
        CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model) as audit,
    ):
        run.train()
        if callable(write):
            write(run)
        if write == "declared":
            with audit.postprocessing():
                _averaged_weights(run)
        if write == "raised":
            _averaged_weights(run)
            raise KeyboardInterrupt
    result = audit.result(claim=LOOSE)
    between = finding(result, BETWEEN)
    if callable(write):
        assert between.status is Status.FAIL
        assert "first after the last step in" in between.summary
        assert result.verdict is Verdict.INVALID
    else:
        assert between.status is Status.PASS


@pytest.mark.parametrize("when", ["never", "in the step", "between", "declared"])
def test_weights_written_past_the_optimizer_are_named(when):
    run = make_run()
    weight = parameters(run)[2]
    leak = torch.full_like(weight, 1e-3)
    if when == "in the step":
        run.optimizer.original_optimizer.register_step_pre_hook(
            lambda *_: bool(weight.data.add_(leak) is None) or None
        )
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model) as audit:
        run.train()
        if when == "between":
            weight.data.add_(leak)
        if when == "declared":
            with audit.postprocessing():
                weight.data.clamp_(-0.05, 0.05)
        run.train()
    result = audit.result(claim=LOOSE)
    moved, between = finding(result, MOVED), finding(result, BETWEEN)
    assert moved.status is Status.PASS
    if when == "between":
        assert between.status is Status.FAIL
        assert result.verdict is Verdict.INVALID
        assert "first before step 9 in 2:2.weight" in between.summary
    elif when == "in the step":
        assert between.status is Status.FAIL  # written before the hook that reads
    else:
        assert between.status is Status.PASS
        assert ("1 changes were declared" in between.summary) == (when == "declared")


def test_weights_written_inside_the_step_are_a_breach():
    run = make_run()
    weight = parameters(run)[2]
    run.optimizer.original_optimizer.register_step_post_hook(lambda *_: weight.data.add_(1e-3))
    result = audited(run).result(claim=LOOSE)
    found = finding(result, MOVED)
    assert found.status is Status.FAIL
    assert result.verdict is Verdict.VIOLATION
    assert "16 of 16 steps" in found.summary
    assert "in 2:2.weight" in found.summary
    assert "other code wrote to them" in found.summary


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (lambda p: p.grad.mul_(0.5), Verdict.INVALID, "multiplied by 0.5"),
        (lambda p: p.grad.copy_(p.summed_grad / 16), Verdict.VIOLATION, "was replaced"),
    ],
)
def test_a_gradient_changed_after_it_was_read_is_named(change, verdict, words):
    """A second clip or a scaler is one factor for all; anything else may be the gradient bare."""
    run = make_run()
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model)
    with audit:
        run.optimizer.original_optimizer.register_step_pre_hook(
            lambda *_: any(change(item) is None for item in parameters(run)) or None
        )
        run.train()
    result = audit.result(claim=LOOSE)
    assert words in finding(result, MOVED).summary
    assert result.verdict is verdict


@pytest.mark.parametrize("thawed", [True, False])
def test_a_thawed_layer_is_named(thawed):
    run = make_run()
    run.model._module[0].requires_grad_(False)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model) as audit:
        run.train()
        if thawed:
            run.model._module[0].requires_grad_(True)
        run.train()
    result = audit.result(claim=LOOSE)
    found = finding(result, "trained parameters without canaries")
    assert (found.status is Status.FAIL) == thawed
    assert (result.verdict is Verdict.INVALID) == thawed
    if thawed:
        assert "2 tensors without canaries were trained" in found.summary


@pytest.mark.parametrize("how", ["written", "declared", "trained"])
def test_a_layer_outside_the_optimizer_that_changes_is_named(how):
    """Trained without noise it is a breach; a write to a frozen one is like any other write."""
    run = make_run()
    extra = nn.Linear(3, 3)
    run.model.add_module("extra", extra)
    extra.requires_grad_(False)
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, model=run.model) as audit:
        run.train()
        with audit.postprocessing() if how == "declared" else contextlib.nullcontext():
            extra.weight.data.mul_(100.0).round_().div_(100.0)
        extra.requires_grad_(how == "trained")
        run.train()
    result = audit.result(claim=LOOSE)
    found = finding(result, "parameters outside the optimizer")
    if how == "declared":
        assert found.status is Status.PASS
        return
    assert result.verdict is (Verdict.VIOLATION if how == "trained" else Verdict.INVALID)
    assert "extra.weight" in found.summary
    assert ("with audit.postprocessing():" in found.remedy) is (how == "written")


def test_facts_survive_the_file_and_bad_ones_are_refused(tmp_path):
    transcript = audited(make_run()).transcript()
    transcript.save(tmp_path / "t.npz")
    assert Transcript.load(tmp_path / "t.npz").facts.weights == transcript.facts.weights
    with pytest.raises(FileFormatError, match=r"facts\.weights"):
        RunFacts(weights=WeightFacts(steps=2, otherwise=3)).check()
    with pytest.raises(FileFormatError, match="between"):
        RunFacts(weights=WeightFacts(between=-1)).check()


def test_infinite_gradients_are_no_other_move():
    run = make_run()
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0) as audit:
        run.train()
        for item in parameters(run):
            item.register_hook(lambda gradient: gradient)
        weights = parameters(run)[0]
        features, target = next(iter(run.loader))
        run.optimizer.zero_grad()
        run.criterion(run.model(features * np.inf), target).backward()
        run.optimizer.step()
        assert torch.isnan(weights).any()
    facts = audit.transcript().facts.weights
    assert (facts.steps, facts.otherwise) == (9, 0)


NEVER = "weights that never train"


class Beside(nn.Module):
    """A network with a second branch, whose output counts as often as ``share`` says."""

    def __init__(self, share):
        super().__init__()
        self.share = share
        self.main, self.side = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, features):
        return self.main(features) + self.share * self.side(features)


def test_tensors_that_noise_alone_moves_are_named_and_their_twins_are_not():
    """As adapters that do not reach the output: their weights move, and no record moved them."""
    sizes = (FEATURES * CLASSES, CLASSES, FEATURES * CLASSES, CLASSES)
    for share, status in ((0.0, Status.WARN), (1.0, Status.PASS)):
        run = make_run(model=Beside(share))
        canaries = ag.DiracCanaries(present=8, absent=40, tensors=sizes, seed=3)
        audit = audited(run, canaries=canaries)
        found = finding(audit.result(claim=LOOSE), NEVER)
        assert found.status is status
        assert ("side" in found.summary) == (share == 0.0)
        assert len(audit.transcript().facts.weights.unreached) == (2 if share == 0.0 else 0)


def test_a_run_that_trains_nothing_is_invalid():
    run = make_run()
    swapped(run, torch.optim.SGD(parameters(run), lr=0.0))
    result = audited(run).result(claim=LOOSE)
    assert result.verdict is Verdict.INVALID
    assert "nothing was trained" in finding(result, NEVER).summary
    assert finding(audited(make_run()).result(claim=LOOSE), NEVER).status is Status.PASS


def test_what_moved_before_a_restart_is_not_forgotten():
    """Frozen by its learning rate after a restart, and trained before it."""
    first = make_run()
    begun = audited(first, epochs=1)
    state = begun.state_dict()
    again = make_run()
    again.model.load_state_dict(first.model.state_dict())
    again.engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    swapped(again, torch.optim.SGD(parameters(again), lr=0.0))
    options = {"canaries": ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3)}
    audit = CanaryAudit(again.optimizer, data_loader=again.loader, model=again.model, **options)
    audit.load_state_dict(state)
    with audit:
        again.train(1)
    facts = audit.transcript().facts.weights
    assert (facts.steps, facts.unmoved, facts.unreached) == (16, (), ())


LOADED = "loaded optimizer state"
BUFFERS = {
    "momentum": "momentum_buffer",
    "adam": "exp_avg",
    "adamw": "exp_avg",
    "rmsprop": "momentum_buffer",
}


def trained_with_loads(name, load, *, epochs=2):
    """Trains, and calls ``load(step, run, state)`` with a copy of the state before every step."""
    run = make_run()
    swapped(run, OPTIMIZERS[name](parameters(run)))
    canaries = ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3)
    audit = CanaryAudit(run.optimizer, data_loader=run.loader, canaries=canaries)
    step = 0
    with audit:
        for _ in range(epochs):
            for features, target in run.loader:
                step += 1
                run.optimizer.zero_grad()
                run.criterion(run.model(features), target).backward()
                load(step, run, audit)
                run.optimizer.step()
    return audit


def leaking(name, steps, factor=100.0):
    def load(step, run, _):
        if step in steps:
            state = copy.deepcopy(run.optimizer.state_dict())
            for kept, item in zip(state["state"].values(), parameters(run), strict=True):
                kept[BUFFERS[name]] = factor * item.grad_sample.mean(dim=0).detach()
            run.optimizer.load_state_dict(state)

    return load


@pytest.mark.parametrize("name", BUFFERS)
def test_clean_gradients_in_a_loaded_state_are_no_release(name):
    often = trained_with_loads(name, leaking(name, range(3, 17, 2))).result(claim=LOOSE)
    assert often.verdict is Verdict.VIOLATION
    assert finding(often, LOADED).status is Status.FAIL
    assert "before step 3 and 6 times more" in finding(often, LOADED).summary
    assert finding(often, MOVED).status is Status.PASS
    # One that changes the update by less than the update itself.
    once = trained_with_loads(name, leaking(name, [9], 0.01)).result(claim=LOOSE)
    assert once.verdict is Verdict.INVALID
    assert finding(once, LOADED).measured == 1


@pytest.mark.parametrize("name", BUFFERS)
def test_a_state_of_the_run_itself_may_be_loaded_again(name):
    kept = {}

    def load(step, run, audit):
        if step in (1, 5):
            kept[step] = copy.deepcopy(run.optimizer.state_dict())
        if step in (9, 10):
            # The present one, as a loader of checkpoints does, and then an earlier one.
            run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        if step in (12, 14):
            run.optimizer.load_state_dict(kept[5 if step == 12 else 1])
        if step == 15:
            with audit.postprocessing():
                leaking(name, [15])(step, run, audit)

    result = trained_with_loads(name, load).result(claim=LOOSE)
    assert finding(result, LOADED).status is Status.PASS
    assert finding(result, MOVED).status is Status.PASS


def test_a_state_may_be_loaded_before_the_first_step():
    result = trained_with_loads(
        "adam", lambda step, run, _: step == 1 and run.optimizer.load_state_dict(other_state())
    ).result(claim=LOOSE)
    assert finding(result, LOADED).status is Status.PASS


@functools.cache
def other_state():
    run = make_run(seed=4)
    swapped(run, OPTIMIZERS["adam"](parameters(run)))
    run.train()
    return run.optimizer.state_dict()


def test_a_state_changed_in_place_does_not_become_known_by_being_saved():
    def load(step, run, _):
        if step == 9:
            for item in parameters(run):
                kept = run.optimizer.original_optimizer.state[item]
                kept["exp_avg"].copy_(100 * item.grad_sample.mean(dim=0))
            run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))

    result = trained_with_loads("adam", load).result(claim=LOOSE)
    assert result.verdict is Verdict.VIOLATION
    assert finding(result, LOADED).status is Status.FAIL


@pytest.mark.parametrize("changed", [False, True])
def test_a_state_loaded_beside_a_restart_is_looked_at(changed, tmp_path):
    first = make_run()
    swapped(first, OPTIMIZERS["adam"](parameters(first)))
    audit = audited(first, checkpoint=tmp_path / "audit.npz")
    run = make_run(seed=1)
    swapped(run, OPTIMIZERS["adam"](parameters(run)))
    run.model.load_state_dict(first.model.state_dict())
    state = copy.deepcopy(first.optimizer.state_dict())
    if changed:
        state["state"][0]["exp_avg"] += 1.0
    run.optimizer.load_state_dict(state)
    run.engine.accountant.history = list(first.engine.accountant.history)
    again = audited(run, canaries=audit.canaries, checkpoint=tmp_path / "audit.npz")
    assert again.transcript().facts.weights.loaded == changed
    # Left, loaded and entered once more.
    if not changed:
        run.optimizer.load_state_dict(other_state())
    with again:
        run.train()
    assert again.transcript().facts.weights.loaded == 1


def _spoil_weights(run):
    for item in parameters(run):
        item.data += 0.5


def _spoil_state(run):
    for item in parameters(run):
        run.optimizer.original_optimizer.state[item]["exp_avg"].copy_(torch.full_like(item, 100.0))


@pytest.mark.parametrize("inside", [True, False], ids=["attached", "left"])
@pytest.mark.parametrize(
    ("spoil", "check"),
    [(_spoil_weights, "weights between steps"), (_spoil_state, LOADED), (None, None)],
    ids=["weights", "state", "nothing"],
)
def test_what_was_changed_before_a_save_is_found_after_the_restart(spoil, check, inside, tmp_path):
    """Between the last step and the checkpoint: the checkpoint must not make it known."""
    first = make_run()
    swapped(first, OPTIMIZERS["adam"](parameters(first)))
    audit = CanaryAudit(first.optimizer, data_loader=first.loader, canaries=200, seed=0)
    with audit:
        first.train()
        if spoil is not None:
            spoil(first)
        if inside:
            audit.save(tmp_path / "audit.npz", hold=False)
    if not inside:
        audit.save(tmp_path / "audit.npz", hold=False)
    run = make_run(seed=1)
    swapped(run, OPTIMIZERS["adam"](parameters(run)))
    run.model.load_state_dict(first.model.state_dict())
    run.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    run.engine.accountant.history = list(first.engine.accountant.history)
    again = CanaryAudit(run.optimizer, data_loader=run.loader, canaries=audit.canaries)
    again.load_state_dict(read_state(tmp_path / "audit.npz"))
    with again:
        run.train()
    result = again.result(claim=LOOSE)
    failed = [item.check for item in result.findings if item.status is Status.FAIL]
    assert failed == ([] if check is None else [check])
    assert (result.verdict is Verdict.INVALID) is (check is not None)


def test_weights_that_are_exchanged_for_a_save_and_put_back_are_not_found():
    """As where a callback saves averaged weights: the run goes on from its own."""
    run = make_run()
    swapped(run, OPTIMIZERS["adam"](parameters(run)))
    with CanaryAudit(run.optimizer, data_loader=run.loader, canaries=200, seed=0) as audit:
        run.train()
        kept = copy.deepcopy(run.model.state_dict())
        _spoil_weights(run)
        audit.state_dict()
        run.model.load_state_dict(kept)
        run.train()
    assert audit.transcript().facts.weights.between == 0


class Halving(torch.optim.SGD):
    """Its step calls that of its base class, and torch runs hooks at both."""

    def step(self, closure=None):
        for group in self.param_groups:
            for item in group["params"]:
                item.grad.mul_(0.5)
        return super().step(closure)


def test_an_optimizer_whose_step_calls_that_of_its_base_class_makes_one_step():
    for kind in (torch.optim.SGD, Halving):
        kind([torch.zeros(1, requires_grad=True)], lr=0.1)
    run = make_run()
    run.optimizer.original_optimizer.__class__ = Halving
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model, seed=0) as audit:
        run.train(2)
    assert audit.steps == 16
    result = audit.result(claim=ag.PrivacyClaim(epsilon=1000.0, delta=1e-5))
    assert [item.check for item in result.findings if item.status is Status.FAIL] == []
