"""What is wrong with an Opacus run leads its result, and what follows from it does not."""

from __future__ import annotations

import pytest
import torch

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from askgauss.results import Verdict
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def four_clip_norms(optimizer):
    clip = optimizer.clip_and_accumulate

    def clipped():
        norm, optimizer.max_grad_norm = optimizer.max_grad_norm, 4 * optimizer.max_grad_norm
        try:
            clip()
        finally:
            optimizer.max_grad_norm = norm

    optimizer.clip_and_accumulate = clipped


def last_layer_unclipped(optimizer):
    def clipped():
        *others, weight, bias = optimizer.params
        norms = torch.stack([item.grad_sample.flatten(1).norm(dim=1) for item in others], 1)
        factor = (optimizer.max_grad_norm / (norms.norm(dim=1) + 1e-6)).clamp(max=1.0)
        for item in optimizer.params:
            scale = torch.ones_like(factor) if item is weight or item is bias else factor
            total = torch.einsum("i,i...", scale, item.grad_sample)
            item.summed_grad = total if item.summed_grad is None else item.summed_grad + total

    optimizer.clip_and_accumulate = clipped


def one_value_a_tensor(optimizer):
    def noisy():
        for item in optimizer.params:
            noise = torch.normal(0.0, optimizer.noise_multiplier * optimizer.max_grad_norm, (1,))
            item.grad = (item.summed_grad + noise.expand_as(item.summed_grad)).view_as(item)

    optimizer.add_noise = noisy


def audited(change, epochs=4, **claim):
    torch.manual_seed(3)
    run = make_run()
    change(run.optimizer)
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model, seed=0) as audit:
        run.train(epochs)
    epsilon = run.engine.get_epsilon(1e-5)
    return audit.result(claim=ag.PrivacyClaim(epsilon=1.001 * epsilon, delta=1e-5, **claim))


@pytest.mark.parametrize(
    ("change", "lead", "says"),
    [
        (four_clip_norms, "record contributions: ", "Fix the clipping"),
        (last_layer_unclipped, "sum of records: ", "every layer is clipped"),
        (one_value_a_tensor, "shared noise: ", "Draw independent noise for every coordinate"),
    ],
)
def test_the_fault_is_named_first(change, lead, says):
    result = audited(change)
    assert result.verdict is Verdict.VIOLATION
    assert result.reason.startswith(lead), str(result)
    assert says in result.next_step
    assert "Probably caused by" not in result.next_step


def test_an_add_remove_epsilon_claimed_of_replaced_records_is_a_violation():
    result = audited(lambda optimizer: None, adjacency="replace")
    assert result.verdict is Verdict.VIOLATION
    assert result.reason.startswith("accounted epsilon: ")
    assert "two clip norms" in result.next_step


def test_steps_that_were_claimed_and_not_taken_are_spoken_of():
    result = audited(lambda optimizer: None, steps=200)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "planned_steps=" in result.next_step
    assert "steps=32" in result.next_step
    parts = {part.name: part.status for part in result.scope}
    assert parts["per-sample gradient"] == "fine"
