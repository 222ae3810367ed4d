"""Noise of an Opacus run that anybody can draw again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from askgauss.integrations.opacus import CanaryAudit
from askgauss.integrations.opacus.noise_watch import FirstNoise, probe_first_noise
from askgauss.results import Status
from tests.integrations.runs import make_run, observer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def found(run, generator=None, **options):
    if generator is not None:
        run.optimizer.generator = generator
    with CanaryAudit(run.optimizer, data_loader=run.loader, seed=0, **options) as audit:
        run.train(1)
    result = audit.result(delta=1e-5)
    seed = audit.transcript().facts.seed_probe.found
    # The transcript names the seed, and nothing that is published does.
    assert not seed or seed.partition(",")[0] not in result.to_json() + str(result)
    finding = next(item for item in result.findings if item.check == "predictable noise")
    return finding, seed


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("seed", [0, 42, 1337])
def test_a_generator_of_a_likely_seed_is_found(mode, seed):
    finding, named = found(make_run(mode=mode, seed=7), torch.Generator().manual_seed(seed))
    assert finding.status is Status.FAIL
    assert "common seeds of torch.manual_seed, as Opacus draws it" in finding.summary
    assert named == f"torch.manual_seed({seed}), as Opacus draws it"


def test_a_generator_that_nobody_seeded_is_found():
    finding, named = found(make_run(seed=7), torch.Generator())
    assert finding.status is Status.FAIL
    assert "torch.manual_seed(67280421310721)" in named


def test_the_seed_of_the_process_is_tried():
    run = make_run()
    torch.manual_seed(3_141_592)
    assert torch.initial_seed() == 3_141_592
    _, named = found(run, torch.Generator().manual_seed(3_141_592))
    assert "torch.manual_seed(3141592)" in named


def test_unguessable_noise_passes_and_says_what_was_tried():
    # Another seed resembles one of the thousand about once in 10^9 runs.
    finding, _ = found(make_run(seed=7), torch.Generator().manual_seed(0x9E3779B9))
    assert finding.status is Status.PASS
    assert "common seeds, tried in 5 ways" in finding.summary


def test_the_probe_is_kept_over_a_restart(tmp_path):
    run = make_run(seed=7)
    run.optimizer.generator = torch.Generator().manual_seed(5)
    with CanaryAudit(run.optimizer, seed=0, checkpoint=tmp_path / "audit.npz") as audit:
        run.train(1)
        audit.save()
        again = audit.state_dict()
    other = make_run(seed=7)
    with CanaryAudit(other.optimizer, seed=0) as resumed:
        resumed.load_state_dict(again)
        found = observer(resumed, FirstNoise).state()
        assert found == observer(audit, FirstNoise).state()
    assert found.found == "torch.manual_seed(5), as Opacus draws it"


@pytest.mark.parametrize("shapes", [(3, 20, 5), (4097,), (70,), (16,), (10_000, 4)])
def test_tensors_of_any_size_are_drawn_as_torch_draws_them(shapes):
    """Small ones come one by one, large ones in blocks; the beginning is what is compared."""
    generator = torch.Generator().manual_seed(11)
    parameters = []
    for size in shapes:
        item = nn.Parameter(torch.zeros(size))
        item.summed_grad = torch.randn(size, generator=torch.Generator().manual_seed(2**40))
        item.grad = item.summed_grad + torch.normal(0.0, 3.0, (size,), generator=generator)
        parameters.append(item)
    assert probe_first_noise(parameters).found == "torch.manual_seed(11), as Opacus draws it"


def test_noise_of_numpy_is_found_too():
    noise = np.random.default_rng(77).standard_normal(500)
    item = nn.Parameter(torch.zeros(500))
    item.summed_grad = torch.zeros(500)
    item.grad = torch.from_numpy(noise).float()
    assert probe_first_noise([item]).found == "numpy.random.default_rng(77)"


def test_a_seed_set_right_before_the_loop_is_found():
    run = make_run(seed=7)
    torch.manual_seed(42)
    finding, named = found(run)
    assert finding.status is Status.FAIL
    assert named == "torch.manual_seed(42), before the loader draws"


@pytest.mark.parametrize(
    ("again", "way"), [(0, "called again for every tensor"), (1, "plus the number of the tensor")]
)
def test_seeds_of_small_tensors_are_found(again, way):
    parameters = []
    for number in range(3):
        item = nn.Parameter(torch.zeros(10))
        item.summed_grad = torch.zeros(10)
        generator = torch.Generator().manual_seed(21 + again * number)
        item.grad = torch.normal(0.0, 3.0, (10,), generator=generator)
        parameters.append(item)
    assert probe_first_noise(parameters).found == f"torch.manual_seed(21), {way}"


def test_a_seed_at_the_top_of_the_script_is_not_followed_and_the_result_says_so():
    run, other = make_run(), make_run()
    torch.manual_seed(0)
    torch.randn(1000)
    finding, named = found(run)
    assert finding.status is Status.PASS
    assert not named
    assert "draws between the two cannot be followed" in finding.summary
    finding, _ = found(other, torch.Generator().manual_seed(0x9E3779B9))
    assert "cannot be followed" not in finding.summary
