"""Exact invariants of private steps: clean runs never alarm, each fault is named by its finding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn

import askgauss as ag
from askgauss.exceptions import FileFormatError, InvalidArgumentError
from askgauss.files import codec
from askgauss.integrations.opacus import CanaryAudit, Observation
from askgauss.recording.facts import RunFacts, StepFacts
from askgauss.recording.witness import due, resolve
from askgauss.results import Status, Verdict
from tests.integrations.runs import SIZES, make_run

EVERY_STEP, NO_STEP = Observation(exact_share=1.0), Observation(exact_share=0.0)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LOOSE = ag.PrivacyClaim(epsilon=1000.0, delta=1e-5)
CHECKS = ("record contributions", "sum of records", "ghost norms", "noise coverage", "divisor")


def audited(run, epochs=1, physical=None, **options):
    options.setdefault("canaries", ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3))
    options.setdefault("observation", EVERY_STEP)
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model, **options) as audit:
        run.train(epochs, physical)
    return audit


def finding(result, name):
    return next(item for item in result.findings if item.check == name)


def failed(result):
    return {item.check for item in result.findings if item.status is Status.FAIL} & set(CHECKS)


@pytest.mark.parametrize("physical", [None, 5])
@pytest.mark.parametrize("inject", ["sum", "sample"])
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_clean_runs_hold_every_invariant(mode, inject, physical):
    if mode == "ghost" and inject == "sample":
        inject = "sum"
    # So small a clip norm that every gradient is clipped.
    run = make_run(mode=mode, max_grad_norm=0.05)
    audit = audited(run, physical=physical, inject=inject)
    facts = audit.transcript().facts.witness
    assert facts.steps == facts.covered == facts.divided == 8
    assert facts.largest == pytest.approx(1.0, abs=1e-4)
    assert facts.clipped == facts.records > 15
    assert facts.off <= facts.off_allowed < 1e-3
    assert abs(facts.norm_off) < 1e-4
    assert facts.divisor_step == 0
    assert facts.uncovered == ()
    result = audit.result(claim=LOOSE)
    assert failed(result) == set()
    assert next(part for part in result.scope if part.name == "clipping").status == "fine"


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_clean_runs_by_layer_and_by_sum(reduction):
    run = make_run(
        max_grad_norm=[0.02, 0.03, 0.04, 0.05], clipping="per_layer", loss_reduction=reduction
    )
    canaries = ag.BlockCanaries(present=5, absent=8, tensors=SIZES, seed=3, block=8)
    audit = audited(run, canaries=canaries)
    facts = audit.transcript().facts.witness
    assert facts.largest == pytest.approx(1.0, abs=1e-3)
    assert failed(audit.result(claim=LOOSE)) == set()


def test_nothing_is_drawn_and_nothing_is_written():
    for mode in ("hooks", "ghost"):
        plain, looked = make_run(mode=mode), make_run(mode=mode)
        torch.manual_seed(7)
        plain.train(2)
        torch.manual_seed(7)
        nobody = ag.DiracCanaries(present=0, absent=40, tensors=SIZES, seed=3)
        audited(looked, 2, canaries=nobody)
        assert torch.equal(plain.weights(), looked.weights())
    backward = DPTensorFastGradientClipping.backward
    assert backward.__module__.startswith("opacus")
    assert "accumulate" not in vars(looked.optimizer)
    assert "get_clipping_coef" not in vars(looked.model)


def test_a_gentler_clipper_of_another_kind_holds_too():
    """Normalised gradients add less than the clip norm; the sum tells what each record added."""

    class Normalised(DPOptimizer):
        def clip_and_accumulate(self):
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in self.grad_samples]).norm(dim=0)
            factor = self.max_grad_norm / (norms + 0.1)
            for item in self.params:
                more = torch.einsum("i,i...", factor, item.grad_sample)
                item.summed_grad = more if item.summed_grad is None else item.summed_grad + more

    run = make_run(max_grad_norm=0.05)
    run.optimizer.__class__ = Normalised
    audit = audited(run)
    facts = audit.transcript().facts.witness
    assert 0.5 < facts.largest < 1.0
    assert failed(audit.result(claim=LOOSE)) == set()


# --- what is not as it should be ------------------------------------------------------------------


class RawSum(DPOptimizer):
    def clip_and_accumulate(self):
        for item in self.params:
            more = item.grad_sample.sum(dim=0)
            item.summed_grad = more if item.summed_grad is None else item.summed_grad + more


class LooseClip(DPOptimizer):
    def clip_and_accumulate(self):
        norm, self.max_grad_norm = self.max_grad_norm, 1.5 * self.max_grad_norm
        super().clip_and_accumulate()
        self.max_grad_norm = norm


class Twice(DPOptimizer):
    """What a batch adds is counted again with the next part of it."""

    def clip_and_accumulate(self):
        before = [item.summed_grad for item in self.params]
        before = [None if old is None else old.clone() for old in before]
        super().clip_and_accumulate()
        for item, old in zip(self.params, before, strict=True):
            if old is not None:
                item.summed_grad += old


class AddsSomething(DPOptimizer):
    def clip_and_accumulate(self):
        super().clip_and_accumulate()
        self.params[1].summed_grad += 0.5 * self.max_grad_norm


class GhostTwice(DPOptimizerFastGradientClipping):
    def accumulate(self):
        super().accumulate()
        super().accumulate()


@pytest.mark.parametrize(
    ("fault", "mode", "physical", "check", "verdict"),
    [
        (RawSum, "hooks", None, "record contributions", Verdict.VIOLATION),
        (RawSum, "functorch", 5, "record contributions", Verdict.VIOLATION),
        (LooseClip, "hooks", None, "record contributions", Verdict.VIOLATION),
        (Twice, "hooks", 5, "sum of records", Verdict.INVALID),
        (AddsSomething, "hooks", None, "sum of records", Verdict.INVALID),
        (GhostTwice, "ghost", None, "sum of records", Verdict.INVALID),
    ],
)
def test_what_is_wrong_with_the_sum_is_named(fault, mode, physical, check, verdict):
    run = make_run(mode=mode, max_grad_norm=0.05)
    run.optimizer.__class__ = fault
    result = audited(run, physical=physical, inject="sum").result(claim=LOOSE)
    assert check in failed(result)
    assert result.verdict is verdict
    found = finding(result, check)
    assert "step " in found.summary
    assert "mostly in" in found.summary
    assert next(part for part in result.scope if part.name == "clipping").status == "broken"
    if fault is LooseClip:
        assert found.measured == pytest.approx(1.5, abs=0.01)
    if fault is AddsSomething:
        assert found.measured == pytest.approx(0.5 * 16**0.5, rel=0.05)
        assert "1:0.bias" in found.summary


def test_a_clipper_replaced_after_the_audit_began_is_named():
    run = make_run(max_grad_norm=0.05)
    options = {"canaries": ag.DiracCanaries(present=8, absent=40, tensors=SIZES, seed=3)}
    with CanaryAudit(
        run.optimizer, data_loader=run.loader, inject="sum", observation=EVERY_STEP, **options
    ) as audit:
        run.optimizer.clip_and_accumulate = lambda: RawSum.clip_and_accumulate(run.optimizer)
        run.train()
    assert failed(audit.result(claim=LOOSE)) == {"record contributions"}


@pytest.mark.parametrize("share", [0.3, 3.0, 1.0])
def test_a_ghost_norm_that_is_wrong_in_one_layer_is_named(share, monkeypatch):
    samplers = GradSampleModuleFastGradientClipping.NORM_SAMPLERS
    right = samplers[nn.Linear]

    def wrong(layer, activations, backprops):
        found = right(layer, activations, backprops)
        factor = share if layer.out_features == 4 else 1.0
        return {item: norm * (factor if item.ndim == 2 else 1.0) for item, norm in found.items()}

    monkeypatch.setitem(samplers, nn.Linear, wrong)
    run = make_run(mode="ghost", max_grad_norm=0.05)
    result = audited(run).result(claim=LOOSE)
    found = finding(result, "ghost norms")
    if share == 1.0:
        assert failed(result) == set()
        return
    assert "2:2.weight" in found.summary
    assert found.status is (Status.FAIL if share < 1.0 else Status.WARN)
    # Too small a norm lets more through; too large a one only costs utility.
    assert ("record contributions" in failed(result)) == (share < 1.0)
    assert (result.verdict is Verdict.VIOLATION) == (share < 1.0)


def test_ghost_clipping_at_another_norm_than_the_noise_is_named():
    """Opacus 1.5 to 1.5.2 clipped at 1 whatever was asked."""
    run = make_run(mode="ghost", max_grad_norm=0.05)
    run.model.max_grad_norm = 1.0
    result = audited(run).result(claim=LOOSE)
    assert failed(result) == {"record contributions"}
    assert finding(result, "record contributions").measured > 2.0
    assert result.verdict is Verdict.VIOLATION


def test_a_divisor_that_follows_the_batch_is_named():
    class ByBatch(DPOptimizer):
        def scale_grad(self):
            for item in self.params:
                item.grad /= max(len(item.grad_sample), 1)

    run = make_run()
    run.optimizer.__class__ = ByBatch
    result = audited(run, observation=NO_STEP).result(claim=LOOSE)
    assert failed(result) == {"divisor"}
    found = finding(result, "divisor")
    assert found.measured > 1.2
    assert "times the stated number" in found.summary


@pytest.mark.parametrize("part", ["tensor", "half"])
def test_a_tensor_without_noise_is_named(part):
    class Leaves(DPOptimizer):
        def add_noise(self):
            super().add_noise()
            item = self.params[2]
            rows = len(item) if part == "tensor" else len(item) // 2
            item.grad[:rows] = item.summed_grad[:rows]

    run = make_run()
    run.optimizer.__class__ = Leaves
    result = audited(run).result(claim=LOOSE)
    assert "noise coverage" in failed(result)
    assert "2:2.weight" in finding(result, "noise coverage").summary
    assert result.verdict is Verdict.VIOLATION


def test_gradients_below_the_clip_norm_do_not_test_clipping():
    result = audited(make_run(max_grad_norm=1e3), inject="sum").result(claim=LOOSE)
    found = finding(result, "record contributions")
    assert found.status is Status.NOT_RUN
    assert "exceed the clip norm" in found.summary
    assert next(part for part in result.scope if part.name == "clipping").status == "not tested"


# --- the pieces -----------------------------------------------------------------------------------


def test_a_share_of_the_steps_is_looked_at():
    """400 coins of rate 0.1: outside 17 to 66 in fewer than 1 of 10,000 choices of the seed."""
    looks = [due(5, step, 0.1) for step in range(1, 401)]
    assert looks[0]
    assert 17 < sum(looks) < 66
    assert looks == [due(5, step, 0.1) for step in range(1, 401)]
    assert not any(due(5, step, 0.0) for step in range(1, 50))
    run = make_run()
    facts = audited(run, 4, observation=NO_STEP).transcript().facts.witness
    assert (facts.steps, facts.records, facts.divided) == (0, 0, 32)
    with pytest.raises(InvalidArgumentError, match="witness"):
        CanaryAudit(run.optimizer, data_loader=run.loader, observation=Observation(exact_share=1.5))


def test_sums_are_told_apart_by_least_squares():
    """Against the factors that were put in; twins of a record cannot be told apart."""
    rng = np.random.default_rng(0)
    rows, factors = rng.normal(size=(6, 40)), rng.uniform(0.1, 2.0, 6)
    rows[4] = 0.0
    extra = rng.normal(size=40)
    extra -= np.linalg.lstsq(rows.T, extra, rcond=None)[0] @ rows
    total = factors @ rows + extra
    found = resolve(rows @ rows.T, rows @ total, float(total @ total))
    factors[4] = 0.0
    np.testing.assert_allclose(found.factors, factors, atol=1e-9)
    assert found.rest == pytest.approx(np.linalg.norm(extra), rel=1e-6)
    rows[5] = rows[0]
    assert resolve(rows @ rows.T, rows @ total, float(total @ total)).factors.size == 0


def test_a_resumed_run_keeps_what_was_found(tmp_path):
    run = make_run(max_grad_norm=0.05)
    first = audited(run, checkpoint=tmp_path / "audit.npz")
    again = CanaryAudit(
        run.optimizer,
        canaries=first.canaries,
        data_loader=run.loader,
        observation=EVERY_STEP,
        checkpoint=tmp_path / "audit.npz",
    )
    with again:
        run.train()
    facts = again.transcript().facts.witness
    assert (facts.steps, facts.divided) == (16, 16)
    with pytest.raises(FileFormatError, match=r"facts\.witness"):
        codec.from_plain(RunFacts, codec.to_plain(RunFacts(witness=StepFacts(records=-1))), "facts")
