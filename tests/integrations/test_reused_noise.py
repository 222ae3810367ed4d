"""Opacus runs whose noise is used again, anywhere in the model."""

from __future__ import annotations

import pytest
from torch import nn

from askgauss.claims import PrivacyClaim
from askgauss.integrations.opacus import CanaryAudit
from askgauss.results import Status, Verdict
from tests.integrations.reused_noise import FAULTS, LARGE_FAULTS, reuse_noise
from tests.integrations.runs import make_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NAME = "noise reused at other coordinates"


def audited(fault=None, *, hidden=16, epochs=3, in_place=False, **options):
    model = nn.Sequential(
        nn.Linear(10, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 4)
    )
    run = make_run(model=model, seed=11, **options)
    if fault is not None:
        reuse_noise(run.optimizer, fault(), in_place=in_place)
    with CanaryAudit(run.optimizer, data_loader=run.loader, model=run.model) as audit:
        run.train(epochs)
    epsilon = run.engine.get_epsilon(1e-5)
    return audit.result(claim=PrivacyClaim(epsilon=epsilon, delta=1e-5))


def finding(result):
    return next(item for item in result.findings if item.check == NAME)


@pytest.mark.parametrize("name", FAULTS)
def test_noise_that_is_used_again_is_found_and_named_first(name):
    result = audited(FAULTS[name])
    assert result.verdict is Verdict.VIOLATION
    assert finding(result).status is Status.FAIL
    assert NAME in result.reason
    assert "noise of step" in finding(result).summary


@pytest.mark.parametrize("name", LARGE_FAULTS)
def test_values_in_another_order_are_found_in_larger_models(name):
    result = audited(LARGE_FAULTS[name], hidden=128)
    assert finding(result).status is Status.FAIL
    assert "pairs of equal noise values" in finding(result).summary


def test_noise_added_to_the_sum_itself_is_seen_too():
    result = audited(FAULTS["rolled by one"], in_place=True)
    assert finding(result).status is Status.FAIL


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_fresh_noise_passes_and_the_scope_says_what_was_compared(mode):
    result = audited(mode=mode)
    assert finding(result).status is Status.PASS
    assert "in 100 % of the model" in finding(result).summary
    freshness = next(part for part in result.scope if part.name == "noise freshness")
    assert "noise values reused anywhere in 100 % of the model" in freshness.smallest
