"""The scheme that batches show: found where it is, and never in Poisson sampling."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import askgauss as ag
from askgauss.results import Status, Verdict
from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedSize,
    MinSeparation,
    Poisson,
    Shuffled,
    TruncatedPoisson,
)
from askgauss.sampling.registry import Recogniser

RECORDS = 160


def found(batches, records=RECORDS):
    recogniser = Recogniser(records)
    for batch in batches:
        recogniser.add(np.asarray(batch))
    return recogniser.found


def drawn(scheme, seed=0, steps=64, records=RECORDS):
    return scheme.draw(np.random.default_rng(seed), records, steps)


@pytest.mark.parametrize(
    "scheme",
    [
        Shuffled(batches=8),
        Shuffled(batches=7),
        Shuffled(batches=8, reshuffled=False),
        BallsInBins(bins=8),
        BallsInBins(bins=8, redrawn=False),
        FixedSize(batch=20, records=RECORDS),
    ],
    ids=str,
)
def test_a_scheme_without_coins_is_found(scheme):
    """Each of the fixed seeds is missed with probability 0.001 at most."""
    assert [found(drawn(scheme, seed)) for seed in range(6)] == [scheme] * 6


@pytest.mark.parametrize(("rate", "cycle"), [(0.5, 4), (0.2, 2), (0.9, 8)])
def test_a_cycle_is_found_with_a_rate_from_below(rate, cycle):
    """A rate above the truth has odds of 0.001 for each seed."""
    for seed in range(6):
        scheme = found(drawn(CyclicPoisson(rate=rate, cycle=cycle), seed))
        assert scheme == CyclicPoisson(rate=scheme.rate, cycle=cycle, groups="secret")
        assert 0.8 * rate < scheme.rate <= rate


@pytest.mark.parametrize("group", ["in turn", "in blocks"])
def test_groups_that_follow_from_the_index_are_known(group):
    chance = np.random.default_rng(1)
    own = np.arange(RECORDS) % 4 if group == "in turn" else np.arange(RECORDS) // 40
    batches = [
        np.flatnonzero((own == step % 4) & (chance.random(RECORDS) < 0.5)) for step in range(64)
    ]
    assert found(batches).groups == "known"
    in_order = [np.flatnonzero(own == step % 4) for step in range(64)]
    assert found(in_order) == CyclicPoisson(rate=1.0, cycle=4)


@pytest.mark.parametrize("rate", [0.002, 0.02, 0.125, 0.5, 0.9, 1.0])
def test_poisson_sampling_shows_no_other_scheme(rate):
    """Chance gives one less often than once in 1e15 runs."""
    for seed in range(50):
        assert found(drawn(Poisson(rate=rate), seed)) is None


@pytest.mark.parametrize(
    "scheme",
    [
        EveryStep(),
        MinSeparation(separation=3, rate=0.2),
        TruncatedPoisson(rate=0.125, cap=20, records=RECORDS),
    ],
    ids=str,
)
def test_other_schemes_are_left_alone(scheme):
    assert found(drawn(scheme)) is None


def test_nothing_is_kept_of_poisson_sampling():
    recogniser = Recogniser(RECORDS)
    for batch in drawn(Poisson(rate=0.125), steps=6):
        recogniser.add(batch)
    assert not recogniser._kept
    assert recogniser._sums is None


@pytest.mark.parametrize("late", [False, True])
def test_one_stray_record_ends_it(late):
    batches = list(drawn(CyclicPoisson(rate=0.5, cycle=4)))
    place = 60 if late else 5
    batches[place] = np.union1d(batches[place], batches[place - 1][:1])
    assert found(batches) is None


def test_epochs_that_had_begun_before_are_not_taken_for_fresh_draws():
    for seed in range(10):
        assert found(list(drawn(Shuffled(batches=8), seed))[3:]) is None


def test_few_records_show_nothing():
    assert found(drawn(Shuffled(batches=4), records=40), 40) is None


@pytest.mark.parametrize("cycle", [1, 4])
def test_a_recorder_that_is_shown_the_batches_names_what_it_finds(cycle):
    """Cycle 1 is what was declared: the clean twin."""
    canaries = ag.DiracCanaries(present=40, absent=200, dimension=4000, seed=0)
    recorder = ag.Recorder(
        canaries, sampling_rate=0.05, clip_norm=1.0, noise_multiplier=1.0, records=400
    )
    chance = np.random.default_rng(3)
    for step in range(200):
        planted = recorder.sample()
        noise = chance.normal(size=canaries.size)
        noise[planted] += 1.0
        group = np.arange(400)[step % cycle :: cycle]
        batch = group[chance.random(group.size) < 0.05 * cycle]
        recorder.observe(noise, background=0.0, batch=batch)
    transcript = recorder.transcript()
    claim = ag.PrivacyClaim(
        epsilon=1.001 * Poisson(rate=0.05).epsilon(noise_multiplier=1.0, steps=200, delta=1e-5),
        delta=1e-5,
        sampling_rate=0.05,
        steps=200,
        noise_multiplier=1.0,
    )
    result = ag.audit(transcript, claim=claim)
    told = [item for item in result.findings if item.check == "accounted sampling"]
    if cycle == 1:
        assert transcript.facts.found_scheme is None
        assert all(item.status is not Status.FAIL for item in told)
        assert result.verdict is not Verdict.VIOLATION
        return
    assert transcript.facts.found_scheme.cycle == 4
    assert told[0].measured > claim.epsilon
    assert result.verdict is Verdict.VIOLATION


def test_the_scheme_survives_the_file(tmp_path):
    simulated = ag.simulate_dpsgd(
        steps=20, sampling_rate=0.1, noise_multiplier=1.0, present=5, absent=5, seed=0
    )
    scheme = CyclicPoisson(rate=0.4, cycle=4)
    facts = dataclasses.replace(simulated.facts, found_scheme=scheme)
    simulated.with_facts(facts).save(tmp_path / "run.npz")
    assert ag.Transcript.load(tmp_path / "run.npz").facts.found_scheme == scheme
