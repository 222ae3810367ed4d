"""Parameters that ranks share out: planted and read on the rank that holds a coordinate."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import askgauss as ag
from askgauss import accounting
from askgauss.results import Status
from tests.integrations.ranks import ran

DELTA = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ran("sharded_worker.py", tmp_path_factory.mktemp("sharded"), 2)


def transcript(folder, name, rank=0):
    return ag.Transcript.load(folder / f"{name}-{rank}.npz")


def facts(folder, rank=0):
    return json.loads((folder / f"facts-{rank}.json").read_text())


def judged(folder, name):
    """The result against what the run's own accountant counted."""
    recorded = transcript(folder, name)
    epsilon = accounting.history_epsilon(recorded.facts.accounted, DELTA)
    return ag.audit(recorded, claim=ag.PrivacyClaim(epsilon=epsilon, delta=DELTA))


def failed(result):
    return {item.check: item for item in result.findings if item.status is Status.FAIL}


@pytest.mark.parametrize("name", ["exact", "exact-sum", "by-parameter-exact"])
def test_without_noise_a_planted_canary_is_worth_one(folder, name):
    sums = transcript(folder, name).canaries
    assert sums.planted.sum() > 100
    np.testing.assert_allclose(sums.total, sums.planted, atol=2e-4)


@pytest.mark.parametrize("name", ["exact", "sound", "by-parameter"])
def test_all_ranks_hold_the_same_transcript(folder, name):
    first, second = (transcript(folder, name, rank) for rank in range(2))
    for key, array in first.arrays().items():
        np.testing.assert_array_equal(array, second.arrays()[key], err_msg=key)
    weights = first.facts.weights
    assert not weights.unchecked
    assert weights.steps == first.number_of_steps
    assert weights.otherwise == weights.between == 0


def test_a_rank_s_part_of_a_tensor_has_a_name(folder):
    names = transcript(folder, "sound").facts.tensors
    assert names[:2] == ("0:0.weight(81, 10) on rank 0", "0:0.weight(81, 10) on rank 1")
    assert len(names) == 8


@pytest.mark.parametrize("name", ["sound", "by-parameter"])
def test_noise_has_the_law_of_one_process(folder, name):
    """Off by five standard errors once in two million seeds."""
    recorded = transcript(folder, name)
    squares = recorded.canaries.square[~recorded.member]
    count = squares.size * recorded.number_of_steps
    stated = recorded.steps.noise_multiplier[0]
    assert squares.sum() / count == pytest.approx(stated**2, rel=5 * math.sqrt(2 / count))
    plantings = recorded.canaries.planted.sum()
    worth = recorded.canaries.planted_total.sum() / plantings
    assert worth == pytest.approx(1.0, abs=5 * stated / math.sqrt(plantings))


def test_a_sound_run_is_consistent(folder):
    """At a gate error of one in a thousand, of which this seed is none."""
    result = judged(folder, "sound")
    assert result.verdict is ag.Verdict.CONSISTENT
    assert result.epsilon_lower >= 0.8 * result.claim.epsilon
    assert judged(folder, "by-parameter").verdict is ag.Verdict.CONSISTENT


def test_half_of_the_noise_is_found(folder):
    result = judged(folder, "half")
    assert result.verdict is ag.Verdict.VIOLATION
    assert "noise scale" in failed(result)


def test_noise_that_is_added_twice_is_named(folder):
    result = judged(folder, "twice")
    scale = next(item for item in result.findings if item.check == "noise scale")
    assert scale.status is Status.WARN
    assert "2 times the claim" in scale.summary


def test_a_rank_without_noise_is_named(folder):
    result = judged(folder, "silent")
    assert result.verdict is ag.Verdict.VIOLATION
    summary = failed(result)["noise by tensor"].summary
    assert "on rank 1 is released without noise" in summary


def test_gradients_that_are_summed_where_noise_is_for_an_average_are_named(folder):
    """A record then adds as many clip norms as there are ranks."""
    result = judged(folder, "summed")
    assert result.verdict is ag.Verdict.VIOLATION
    assert failed(result)["contribution"].measured == pytest.approx(2.0, rel=0.1)


def test_with_nothing_planted_the_weights_are_the_same_bits(folder):
    assert all(facts(folder, rank)["untouched"] for rank in range(2))


def test_all_ranks_resume_and_a_second_audit_is_refused(folder):
    first, second = (facts(folder, rank) for rank in range(2))
    assert first["resumed"] == second["resumed"] == [4, 8]
    assert first["weights"] == second["weights"]
    assert "got one that has an audit" in first["second"]


def test_what_cannot_be_planted_in_is_refused_by_name(folder):
    seen = facts(folder)
    assert seen["mesh"].startswith("UnsupportedError")
    assert "a mesh of 2" in seen["mesh"]
    assert seen["rows"].startswith("UnsupportedError")


def test_a_rank_may_hold_nothing_of_a_tensor(tmp_path):
    """Four rows on three ranks: two, two, none."""
    place = ran("sharded_worker.py", tmp_path, 3)
    recorded = transcript(place, "exact")
    names = recorded.facts.tensors
    assert sum("1.weight" in name or "2.weight" in name for name in names) == 2
    np.testing.assert_allclose(recorded.canaries.total, recorded.canaries.planted, atol=2e-4)
    np.testing.assert_array_equal(
        recorded.canaries.total, transcript(place, "exact", rank=2).canaries.total
    )


def test_what_is_looked_at_where_parameters_are_shared_out(folder):
    """Noise, divisor and weights; no records, no rows and no batches."""
    for name in ("sound", "by-parameter"):
        facts = transcript(folder, name).facts
        assert facts.witness.records == 0
        assert facts.rows.unseen
        assert facts.batches is None
        assert facts.weights.steps == facts.rows.steps > 0
        # Where noise is added inside the backward pass, nothing but the weights.
        inside = name == "by-parameter"
        assert (facts.witness.covered == 0) is inside
        assert (facts.witness.divided == 0) is inside
