"""Faults: each changes one part of the mechanism, is named by its finding, and no other run is.

The whole table, 100 runs a fault, is ``make faults``.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from tests.faults import runs
from tests.faults.runs import Size

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.exceptions import InvalidArgumentError
from askgauss.results import Status, Verdict
from askgauss.simulation import (
    FAULTS,
    INVISIBLE,
    TREE_FAULTS,
    Fault,
    simulate_dpftrl,
    simulate_dpsgd,
)
from askgauss.simulation.mechanism import DPSGDMechanism, Gradients, SimulatedRun, per_record

SMALL = Size(present=150, absent=150, steps=120)
SETTING = {
    "steps": 60,
    "sampling_rate": 0.2,
    "noise_multiplier": 1.0,
    "present": 40,
    "absent": 40,
    "seed": 5,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_is_named_with_its_verdict(fault):
    result = runs.audited(fault, seed=12, size=SMALL)
    assert fault.finding in runs.found(result)
    assert runs.names(result, fault), result.reason
    # A third of the canaries, a third of the steps: too few for CONSISTENT, enough for the rest.
    consistent = fault.verdict is Verdict.CONSISTENT
    assert result.verdict in (
        (fault.verdict, Verdict.INCONCLUSIVE) if consistent else (fault.verdict,)
    )


@pytest.mark.parametrize("fault", TREE_FAULTS.values(), ids=TREE_FAULTS)
def test_every_tree_fault_is_named_with_its_verdict(fault):
    result = runs.audited_tree(fault, seed=3)
    assert fault.finding in runs.found(result)
    assert runs.names(result, fault), result.reason
    assert result.verdict is fault.verdict


@pytest.mark.parametrize("canaries", ["own coin", "data path", "spread"])
def test_a_run_without_a_fault_is_not_flagged(canaries):
    """Over seeds, fails with probability at most .0005: the findings' share of the gate error."""
    run = runs.simulated(None, seed=12, size=SMALL, canaries=canaries)
    findings = diagnose(run, claim=runs.claim_of(None, SMALL))
    assert [item for item in findings if item.status in (Status.FAIL, Status.WARN)] == []


def test_names_and_parts():
    parts = {item.name for item in fields(DPSGDMechanism)}
    assert len(FAULTS) >= 25
    for name, fault in FAULTS.items():
        assert name == fault.name == name.lower().replace(" ", "-").replace("_", "-")
        assert fault.part in parts
        broken = fault.apply(DPSGDMechanism())
        changed = [
            item for item in parts if getattr(broken, item) != getattr(DPSGDMechanism(), item)
        ]
        assert changed == [fault.part]
    assert {fault.part for fault in FAULTS.values()} == parts
    assert not {item.name for item in INVISIBLE} & set(FAULTS)


def test_clipping_and_sampling_are_not_met_by_canaries_with_a_coin_of_their_own():
    for name in ("clipping-off", "per-microbatch-clipping", "sampling-rate-doubled"):
        blind = simulate_dpsgd(**SETTING, fault=name, canaries="own coin")
        clean = simulate_dpsgd(**SETTING)
        np.testing.assert_array_equal(blind.canaries.total, clean.canaries.total)


def test_spread_clipping_is_not_met_by_single_coordinates():
    blind = simulate_dpsgd(**SETTING, fault="per-layer-clipping", canaries="data path")
    clean = simulate_dpsgd(**SETTING, canaries="data path")
    np.testing.assert_allclose(blind.canaries.total, clean.canaries.total, rtol=1e-12)


def test_the_data_path_is_the_sum_of_clipped_records_and_noise():
    """Against a dense computation, one row a record."""
    canaries = ag.BlockCanaries(present=6, absent=4, tensors=(30, 30), block=4, seed=1)
    run = SimulatedRun.begin(
        canaries, steps=1, sampling_rate=1.0, noise_multiplier=0.0, clip_norm=2.0
    )
    rows = np.zeros((6, 60))
    members = np.flatnonzero(canaries.member)
    for row, index in zip(rows, members, strict=True):
        row[canaries.coordinates[index]] = canaries.signs[index] * 3.0
    dense = np.minimum(1.0, 2.0 / np.linalg.norm(rows, axis=1))[:, None] * rows
    sparse = Gradients(canaries.coordinates[members], canaries.signs[members] * 3.0)
    released = DPSGDMechanism()._release(run, per_record(run, sparse))
    np.testing.assert_allclose(released, dense.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        canaries.project(released), np.where(canaries.member, 2.0, 0.0), atol=1e-12
    )


def test_ranks_and_accumulation_add_up_to_the_same_sum():
    clean = simulate_dpsgd(**SETTING | {"noise_multiplier": 0.0}, canaries="data path")
    for name in ("noise-per-rank", "noise-split-over-accumulation"):
        parts = simulate_dpsgd(
            **SETTING | {"noise_multiplier": 0.0}, fault=name, canaries="data path"
        )
        np.testing.assert_allclose(parts.canaries.total, clean.canaries.total, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("noise-75", 0.75**2),
        ("noise-per-rank", 4.0),
        ("noise-divided-by-ranks", 0.25),
        ("noise-split-over-accumulation", 0.25),
        ("noise-at-every-accumulation-step", 4.0),
        ("sigma-without-clip-norm", 0.25),
        ("uniform-noise", 1.0),
        ("laplace-noise", 1.0),
        ("bf16-noise", 1.0),
    ],
)
def test_variance_of_the_noise(name, ratio):
    """Of 48,000 observations at 6 standard errors, kurtosis up to 3: fails with 2e-9."""
    run = simulate_dpsgd(**SETTING | {"absent": 800}, fault=name)
    squares = run.canaries.square[~run.member]
    assert squares.sum() / (800 * 60) == pytest.approx(ratio, rel=6 * np.sqrt(5 / 48_000))


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        ("clipping-off", 100.0),
        ("duplicated-example", 2.0),
        ("per-layer-clipping", 2.0),
    ],
)
def test_what_a_record_adds(name, mean):
    run = simulate_dpsgd(**SETTING | {"noise_multiplier": 0.0}, fault=name)
    planted = run.canaries.planted[run.member]
    np.testing.assert_allclose(run.canaries.planted_total[run.member], mean * planted, rtol=1e-9)


def test_batches():
    def kept(name):
        run = simulate_dpsgd(**SETTING | {"present": 100, "absent": 2, "steps": 40}, fault=name)
        return run.kept_planted[:, run.member[run.kept]]

    shuffled = kept("shuffle-for-poisson").reshape(8, 5, 100)
    assert (shuffled.sum(axis=1) == 1).all()
    assert (shuffled[0] != shuffled[1]).any()
    fixed = kept("same-batches-every-epoch").reshape(8, 5, 100)
    assert (fixed == fixed[0]).all()
    together = kept("one-coin-for-four-records").reshape(40, 25, 4)
    assert (together == together[:, :, :1]).all()
    assert 0.1 < together.mean() < 0.3


def test_steps_of_empty_batches():
    few = SETTING | {"sampling_rate": 0.01, "steps": 400}
    skipped = simulate_dpsgd(**few, fault="skipped-empty-batches")
    assert skipped.steps.planted.sum(axis=1).min() == 1
    assert skipped.number_of_steps == skipped.facts.accounted_steps < 200
    silent = simulate_dpsgd(**few, fault="no-noise-on-empty-batches")
    empty = silent.steps.planted.sum(axis=1) == 0
    np.testing.assert_array_equal(empty, silent.steps.square.sum(axis=1) == 0.0)


def test_steps_that_are_not_accounted_for():
    run = simulate_dpsgd(**SETTING, fault="more-steps-than-accounted")
    assert (run.number_of_steps, run.facts.accounted_steps) == (75, 60)


def test_a_fault_of_ones_own():
    mine = replace(FAULTS["half-noise"], name="mine", broken=lambda run: 7.0 * np.ones(112))
    run = simulate_dpsgd(**SETTING, fault=mine)
    np.testing.assert_allclose(run.canaries.square[~run.member], 49.0 * 60)
    assert isinstance(mine, Fault)


def test_names_that_do_not_exist():
    with pytest.raises(InvalidArgumentError, match=r"fault .*no-noise, half-noise"):
        simulate_dpsgd(**SETTING, fault="quiet")
    with pytest.raises(InvalidArgumentError, match=r"fault .*tree-half-noise"):
        simulate_dpftrl(
            steps=4, noise_multiplier=1.0, present=5, absent=5, seed=0, fault="half-noise"
        )
    with pytest.raises(InvalidArgumentError, match=r"canaries .*own coin"):
        simulate_dpsgd(**SETTING, canaries="loss")
