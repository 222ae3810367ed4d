"""Two processes, one audit: the first plants, all subtract the same background and agree."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.integrations.opacus import CanaryAudit
from askgauss.results import Status
from tests import forks
from tests.integrations.ranks import ran
from tests.integrations.runs import SIZES, make_run

RANKS = 2
SIGMA = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that two ranks wrote."""
    return ran("ddp_worker.py", tmp_path_factory.mktemp("ddp"), RANKS)


def transcript(folder, name, rank=0):
    return ag.Transcript.load(folder / f"{name}-{rank}.npz")


def facts(folder, rank):
    return json.loads((folder / f"facts-{rank}.json").read_text())


@pytest.mark.parametrize("name", ["exact", "exact-rows", "exact-sum", "exact-ghost"])
def test_without_noise_a_planted_canary_is_worth_one(folder, name):
    sums = transcript(folder, name).canaries
    assert sums.planted.sum() > 100
    np.testing.assert_allclose(sums.total, sums.planted, atol=2e-4)


@pytest.mark.parametrize("name", ["exact", "noisy", "every-rank"])
def test_all_ranks_hold_the_same_transcript(folder, name):
    first, second = (transcript(folder, name, rank) for rank in range(RANKS))
    for key, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[key], err_msg=key)
    # Every rank looks at the records it has itself, and they tell each other.
    assert first.facts.witness.steps >= 1
    assert first.facts.witness.divided == first.number_of_steps
    assert first.facts.weights.otherwise == first.facts.weights.between == 0
    # The first rank draws the noise, looks for its seed and whether any of it was used before.
    first, second = (replace(item.facts, seed_probe=None, reuse=None) for item in (first, second))
    assert first == second


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("unclipped", "record contributions", "of rank 1"),
        ("summed", "divisor", "0.5 to 0.5 times"),
        ("noisy", None, ""),
    ],
)
def test_a_fault_of_any_rank_is_named_by_all_of_them(folder, name, check, words):
    claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
    for rank in range(RANKS):
        result = ag.audit(transcript(folder, name, rank), claim=claim)
        failed = {item.check: item for item in result.findings if item.status is Status.FAIL}
        exact = {"record contributions", "sum of records", "noise coverage", "divisor"}
        assert failed.keys() & exact == ({check} if check else set())
        if check:
            assert words in failed[check].summary


@pytest.mark.parametrize(("name", "copies"), [("noisy", 1), ("every-rank", RANKS)])
def test_noise_of_every_rank_shows_in_the_variance(folder, name, copies):
    """Off by five standard errors once in two million seeds; one and two differ by seventy."""
    recorded = transcript(folder, name)
    squares = recorded.canaries.square[~recorded.member]
    count = squares.size * recorded.number_of_steps
    assert count == 120 * 100
    expected = copies * SIGMA**2
    assert squares.sum() / count == pytest.approx(expected, rel=5 * math.sqrt(2 / count))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_bound_is_that_of_one_process(folder):
    """Each bound at 4.26 standard errors lies below the other's median estimate.

    Two equal runs differ by root two standard errors, so that fails once in 400 seeds.
    """
    run = make_run(noise_multiplier=SIGMA, batch_size=32)
    canaries = ag.DiracCanaries(present=60, absent=120, tensors=SIZES, seed=5)
    with CanaryAudit(run.optimizer, canaries=canaries, data_loader=run.loader) as audit:
        run.train(25)
    scores = [audit.transcript().scores(), transcript(folder, "noisy").scores()]
    assert scores[0].metadata == scores[1].metadata
    results = [
        ag.audit(item, delta=1e-5, auditor=ag.GaussianShift(), confidence=0.99999)
        for item in scores
    ]
    assert results[0].epsilon_lower < results[1].epsilon_point
    assert results[1].epsilon_lower < results[0].epsilon_point
    assert min(item.epsilon_lower for item in results) > 0.5


def test_ranks_draw_one_seed_and_refuse_two(folder):
    first, second = (facts(folder, rank) for rank in range(RANKS))
    assert first["seed"] == second["seed"]
    for side in (first, second):
        assert "Give all ranks the same canaries" in side["refused"]


def test_with_nothing_planted_the_weights_are_the_same_bits(folder):
    assert all(facts(folder, rank)["untouched"] for rank in range(RANKS))


def test_one_rank_writes_the_checkpoint_and_all_resume(folder):
    first, second = (facts(folder, rank) for rank in range(RANKS))
    assert first["resumed"] == second["resumed"] == [4, 8]
    assert first["weights"] == second["weights"]


ALONE = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
from askgauss.exceptions import RecordingError
from askgauss.integrations.opacus import ranks
from askgauss.integrations.opacus import CanaryAudit
from tests.integrations.ddp_worker import distributed_run
rank, meeting, attach = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ranks.PATIENCE = 2.0
torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
run = distributed_run(rank)
try:
    if rank == 0 or attach == "made":
        audit = CanaryAudit(run.optimizer, data_loader=run.loader, seed=0)
        if rank == 0:
            audit.__enter__()
except RecordingError as error:
    print(error)
torch.distributed.barrier()
"""


@pytest.mark.parametrize("attach", ["nowhere", "made"])
def test_an_audit_on_one_rank_only_says_so(tmp_path, attach):
    """Neither aborts nor waits for ever, whether the other rank makes no audit or enters none."""
    script, meeting = tmp_path / "alone.py", (tmp_path / "meeting").as_uri()
    script.write_text(ALONE)
    ranks = forks.ran_together(
        [(script, (str(rank), meeting, attach), {}) for rank in range(RANKS)]
    )
    assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]
    assert "waited 2 seconds for ranks [1]" in ranks[0].stdout
    assert "every rank, not on the first only" in ranks[0].stdout
