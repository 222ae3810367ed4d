"""Settings that move, coarse numbers, own clippers: named where they leak, and clean where not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise, LambdaNoise
from torch.optim import lr_scheduler

import askgauss as ag
from askgauss.checks.step_invariants import recording
from askgauss.exceptions import AskGaussWarning, FileFormatError
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.recording.facts import SettingCourse, SettingFacts
from askgauss.results import Status, Verdict
from tests.integrations.runs import SIZES, make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LOOSE = ag.PrivacyClaim(epsilon=1000.0, delta=1e-5)


def train(run, audit=None, *, epochs=5, before=None, after=None, dtype=None):
    """A loop that may set something between the backward pass and the step, or after it."""
    step = 0
    for _ in range(epochs):
        for features, target in run.loader:
            run.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
                loss = run.criterion(run.model(features), target)
            loss.backward()
            if before is not None:
                before(run.optimizer, step, loss, len(features), audit)
            run.optimizer.step()
            step += 1
            if after is not None:
                after()


def audited(run, **loop):
    canaries = ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3)
    with CanaryAudit(
        run.optimizer,
        canaries=canaries,
        data_loader=run.loader,
        model=run.model,
        observation=Observation(exact_share=loop.pop("exact_share", 0.02)),
        inject=loop.pop("inject", "auto"),
    ) as audit:
        train(run, audit, **loop)
    return audit


def judged(audit):
    """The result without the accountant's own epsilon, which takes long for changing noise."""
    return ag.audit(audit.transcript(), claim=LOOSE)


def failed(result):
    return [item.check for item in result.findings if item.status is Status.FAIL]


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


# --- settings -------------------------------------------------------------------------------------


def norms(optimizer):
    return torch.stack([g.flatten(1).norm(dim=1) for g in optimizer.grad_samples]).norm(dim=0)


def set_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate


def median(optimizer, step, loss, size, audit):
    if size:
        optimizer.max_grad_norm = float(norms(optimizer).median())


def rate_by_loss(optimizer, step, loss, size, audit):
    set_rate(optimizer, 0.1 * float(loss))


def rate_by_threshold(optimizer, step, loss, size, audit):
    set_rate(optimizer, 0.1 if float(loss) < 1.42 else 0.05)


def noise_by_loss(optimizer, step, loss, size, audit):
    optimizer.noise_multiplier = 1.0 + 0.1 * round(float(loss), 1)


def batch_size(optimizer, step, loss, size, audit):
    optimizer.expected_batch_size = max(size, 1)


@pytest.mark.parametrize(
    ("leak", "check", "said"),
    [
        (median, "clip norm schedule", "the clip norm changed in"),
        (rate_by_loss, "learning rate schedule", "the learning rate changed in"),
        (rate_by_threshold, "learning rate schedule", "up and down"),
        (noise_by_loss, "noise multiplier schedule", "the noise multiplier changed in"),
        (batch_size, "divisor", "expected_batch_size"),
    ],
)
def test_a_setting_taken_from_the_batch_is_named(leak, check, said):
    result = judged(audited(make_run(), before=leak))
    assert result.verdict is Verdict.INVALID
    assert failed(result) == [check]
    assert said in finding(result, check).summary
    assert check in str(result)


def warm_up(optimizer, step, loss, size, audit):
    set_rate(optimizer, 0.1 * min(1.0, (step + 1) / 10) * (1 + math.cos(math.pi * step / 40)))


def alternating(optimizer, step, loss, size, audit):
    set_rate(optimizer, 0.1 if step % 3 else 0.05)


def two_phases(optimizer, step, loss, size, audit):
    optimizer.noise_multiplier = 1.2 if step < 20 else 1.0
    optimizer.expected_batch_size = 16 if step < 20 else 17


@pytest.mark.parametrize("by_hand", [warm_up, alternating, two_phases])
def test_a_schedule_by_hand_is_taken_on_trust(by_hand):
    result = judged(audited(make_run(), before=by_hand))
    assert failed(result) == []
    assert any("not verified" in item.summary for item in result.findings)
    assert any("by hand" in note for note in result.notes)


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (lambda it: lr_scheduler.CosineAnnealingLR(it, 40), "learning rate schedule"),
        (lambda it: lr_scheduler.OneCycleLR(it, 0.2, total_steps=50), "learning rate schedule"),
        (
            lambda it: lr_scheduler.CyclicLR(it, 0.01, 0.1, step_size_up=1, mode="triangular2"),
            "learning rate schedule",
        ),
        (lambda it: lr_scheduler.LambdaLR(it, lambda n: 0.9**n), "learning rate schedule"),
        (lambda it: ExponentialNoise(it, gamma=0.99), "noise multiplier schedule"),
        (lambda it: LambdaNoise(it, noise_lambda=lambda n: 0.99**n), "noise multiplier schedule"),
        (lambda it: ExponentialGradClip(it, gamma=0.99), "clip norm schedule"),
    ],
)
def test_schedulers_are_known(make, check):
    run = make_run()
    scheduler = make(run.optimizer)
    result = judged(audited(run, after=scheduler.step))
    assert failed(result) == []
    found = finding(result, check)
    assert found.status is Status.PASS
    assert type(scheduler).__name__ in found.summary or "followed its schedule" in found.summary
    assert "not verified" not in found.summary


def test_a_metric_that_rules_the_rate_is_taken_on_trust():
    run = make_run()
    scheduler = lr_scheduler.ReduceLROnPlateau(run.optimizer, patience=2)
    result = audited(run, after=lambda: scheduler.step(1.0)).result(claim=LOOSE)
    assert "metric" in finding(result, "learning rate schedule").summary
    assert failed(result) == []


def test_adaptive_clipping_moves_its_own_norm():
    adaptive = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.01,
        "unclipped_num_std": 2.0,
    }
    result = audited(make_run(**adaptive)).result(claim=LOOSE)
    assert failed(result) == []
    assert "adapted by the optimizer" in finding(result, "clip norm schedule").summary


def test_what_is_computed_from_releases_is_declared():
    def by_released_norm(optimizer, step, loss, size, audit):
        seen = [item.grad for item in optimizer.params if item.grad is not None]
        with audit.postprocessing():
            set_rate(optimizer, 0.01 * (1.0 + math.sin(37.0 * step)) + 0.0 * len(seen))

    result = audited(make_run(), before=by_released_norm).result(claim=LOOSE)
    assert failed(result) == []
    assert "declared" in finding(result, "learning rate schedule").summary


def test_settings_go_on_after_a_restart(tmp_path):
    run = make_run()
    audit = audited(run, before=rate_by_loss, epochs=2)
    audit.save(tmp_path / "run.npz")
    again = CanaryAudit(
        run.optimizer, canaries=audit.canaries, data_loader=run.loader, model=run.model
    )
    again.load(tmp_path / "run.npz")
    before = next(item for item in again.transcript().facts.settings if item.name[0] == "l")
    with again:
        train(run, again, epochs=1, before=rate_by_loss)
    after = next(item for item in again.transcript().facts.settings if item.name[0] == "l")
    assert (before.steps, after.steps) == (16, 24)
    assert after.changes > before.changes > 10


def course(values):
    found = SettingCourse("learning rate")
    for step, value in enumerate(values, 1):
        found.note(float(value), step)
    return found.facts


def test_courses():
    chance = np.random.default_rng(0)
    steps = np.arange(200)
    smooth = (
        np.linspace(0.0, 1.0, 200),
        0.5 * (1.0 + np.cos(steps / 60.0)),
        np.repeat([0.1, 0.01, 0.001], [80, 60, 60]),
        np.tile([1.0, 2.0, 3.0, 2.0], 50),
        np.tile([0.1, 0.1, 0.2], 67),
        np.abs((steps % 20) - 10.0) * 0.99**steps,
        np.full(200, 0.3),
    )
    for values in smooth:
        assert not course(values).erratic
    for values in (
        chance.normal(1.0, 0.1, 200),
        2.0 - steps / 200.0 + chance.normal(0.0, 0.05, 200),
        np.where(chance.random(200) < 0.3, 0.1, 0.2),
        np.where(chance.random(200) < 0.5, steps / 200.0, 0.2),
    ):
        assert course(values).erratic
    with pytest.raises(FileFormatError, match="turns"):
        SettingFacts(name="learning rate", turns=-1).check()


# --- number formats -------------------------------------------------------------------------------


class Looser(DPOptimizer):
    def clip_and_accumulate(self):
        norm, self.max_grad_norm = self.max_grad_norm, 1.05 * self.max_grad_norm
        super().clip_and_accumulate()
        self.max_grad_norm = norm


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_coarse_gradients_are_clean_and_their_cost_is_said(mode, dtype):
    run = make_run(mode=mode, max_grad_norm=0.05)
    audit = audited(run, dtype=dtype, exact_share=1.0, epochs=2)
    facts = audit.transcript().facts.witness
    name = str(dtype).removeprefix("torch.")
    assert facts.precision == name
    assert facts.largest < 1.0 + facts.coarseness < 1.03
    result = audit.result(claim=LOOSE)
    assert failed(result) == []
    found = finding(result, "record contributions")
    assert found.status is Status.PASS
    assert name in found.summary
    assert "raises epsilon from" in found.summary


def test_a_loose_clip_norm_is_found_in_coarse_gradients_too():
    run = make_run(max_grad_norm=0.05)
    run.optimizer.__class__ = Looser
    audit = audited(run, dtype=torch.bfloat16, exact_share=1.0, epochs=2)
    found = finding(audit.result(claim=LOOSE), "record contributions")
    assert found.status is Status.FAIL
    assert audit.transcript().facts.witness.largest == pytest.approx(1.05, abs=0.012)


# --- clippers of one's own ------------------------------------------------------------------------


def own_clip(optimizer):
    factor = (optimizer.max_grad_norm / (norms(optimizer) + 1e-6)).clamp(max=1.0)
    return [torch.einsum("i,i...", factor, item.grad_sample) for item in optimizer.params]


class Assigning(DPOptimizer):
    """Right without virtual steps."""

    def clip_and_accumulate(self):
        for item, more in zip(self.params, own_clip(self), strict=True):
            item.summed_grad = more


class Counting(DPOptimizer):
    """Keeps counts, lists and tensors of the rows that it met, and trains by them."""

    def clip_and_accumulate(self):
        if "rows" not in vars(self):
            self.rows, self.longest, self.seen = 0, [], torch.zeros(1)
        self.rows += len(self.grad_samples[0])
        self.longest.append(len(self.grad_samples[0]))
        self.seen += len(self.grad_samples[0])
        super().clip_and_accumulate()

    def scale_grad(self):
        super().scale_grad()
        for item in self.params:
            item.grad *= 1.0 + 1e-6 * (self.rows + len(self.longest) + float(self.seen))


class Drawing(DPOptimizer):
    """Adds a little noise of its own while it clips."""

    def clip_and_accumulate(self):
        super().clip_and_accumulate()
        for item in self.params:
            item.summed_grad += 1e-3 * torch.randn(item.shape)


@pytest.mark.parametrize("kind", [Assigning, Counting, Drawing])
def test_own_clippers_train_as_without_an_audit(kind):
    """Canaries planted at a hundredth of a clip norm's own noise: weights stay near, not equal."""
    ends = []
    for present in (None, 0, 8):
        run = make_run(noise_multiplier=1e-3)
        run.optimizer.__class__ = kind
        torch.manual_seed(7)
        if present is None:
            train(run, epochs=2)
        else:
            canaries = ag.DiracCanaries(present=present, absent=40, tensors=SIZES, seed=3)
            with CanaryAudit(run.optimizer, canaries=canaries, data_loader=run.loader) as audit:
                train(run, audit, epochs=2)
        ends.append(run.weights())
        if kind is Counting:
            assert sum(run.optimizer.longest) == run.optimizer.rows == float(run.optimizer.seen)
    assert torch.equal(ends[0], ends[1])
    transcript = audit.transcript()
    sums = transcript.canaries
    assert sums.planted.sum() > 0
    # The sum with canaries is the sum of the records plus one clip norm for each planted one.
    np.testing.assert_allclose(sums.planted_total, sums.planted, atol=0.03)
    untouched = kind is Assigning
    assert ("clipping" in transcript.facts.exercised) == untouched
    assert any("keeps more than its sum" in note for note in transcript.facts.notes) != untouched


def test_what_goes_wrong_in_a_step_ends_the_recording_and_not_the_training(monkeypatch):
    plain, run = make_run(), make_run()
    torch.manual_seed(7)
    train(plain, epochs=2)
    torch.manual_seed(7)
    canaries = ag.DiracCanaries(present=0, absent=40, tensors=SIZES, seed=3)
    with CanaryAudit(run.optimizer, canaries=canaries, data_loader=run.loader) as audit:
        train(run, epochs=1)

        def full(*_, **__):
            raise OSError("no space left on device")

        monkeypatch.setattr(audit._steps.recorder, "observe", full)
        with pytest.warns(AskGaussWarning, match="no space left"):
            train(run, epochs=1)
    assert torch.equal(plain.weights(), run.weights())
    assert audit.steps == 8
    found = recording(audit.transcript().facts)
    assert found.status is Status.FAIL
    assert "no space left" in found.summary
