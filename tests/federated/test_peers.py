"""What other methods estimate from the same rounds, against slow ways to say it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import NotDefinedError
from askgauss.federated import AuditedAggregator, Server
from askgauss.federated.readings import threshold_epsilon
from askgauss.sampling import EveryStep, Shuffled

ROUNDS, NOISE, DIMENSION, DELTA = 25, 4.0, 4000, 1e-5


def rounds_of(*, sampling=None, compare_peers=True):
    means = []

    class Kept(Server):
        def __call__(self, updates, weights):
            means.append(super().__call__(updates, weights))
            return means[-1]

    run = AuditedAggregator(
        Kept(noise_multiplier=NOISE, seed=1), dimension=DIMENSION, present=400, absent=800,
        clip_norm=1.0, noise_multiplier=NOISE, sampling=sampling, probes=False, seed=0,
        compare_peers=compare_peers,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        run([rng.normal(0.0, 0.005, DIMENSION) for _ in range(6)], [1.0] * 6)
    return run, np.array(means)


@pytest.fixture(scope="module")
def audited():
    return rounds_of()


def test_cosines_are_those_of_whole_vectors(audited):
    """Every canary's update, clipped and written out, against every mean."""
    run, means = audited
    final, largest = run._clients.peers.cosines()
    signs = run._clients._signs
    directions = np.zeros((run.canaries.size, DIMENSION))
    directions[np.arange(run.canaries.size), run.canaries.coordinates] = signs
    total = means.sum(axis=0)
    np.testing.assert_allclose(final.score, directions @ total / np.linalg.norm(total))
    by_round = directions @ means.T / np.linalg.norm(means, axis=1)
    np.testing.assert_allclose(largest.score, by_round.max(axis=1))


def test_estimates_stand_beside_the_bound(audited):
    run, _ = audited
    true = EveryStep().epsilon(noise_multiplier=NOISE, steps=ROUNDS, delta=DELTA)
    found = run.peer_estimates(delta=DELTA)
    bound = run.result(delta=DELTA).epsilon_lower
    # The deviation of 400 cosines is off by a few hundredths, and epsilon by far more, since both
    # deviations are free; an estimate within a half of the truth is all there is. Fixed seed.
    assert 0.5 * true < found.final_cosine < 1.5 * true
    # The largest of many rounds hides that a canary is in each of them.
    assert found.largest_cosine < true
    # Shares of canaries in one round show more epsilon than there is: it is no bound.
    assert found.by_round > true
    assert bound < true


def test_thresholds_are_tried_one_by_one():
    rng = np.random.default_rng(3)
    for delta in (0.0, 0.01):
        present, absent = rng.normal(1.0, 1.0, 30), rng.normal(0.0, 1.0, 50)
        best = 0.0
        for cut in np.concatenate([present, absent]):
            missed, false = np.mean(present < cut), np.mean(absent >= cut)
            for right, wrong in ((1 - delta - false, missed), (1 - delta - missed, false)):
                if wrong > 0.0 and right > 0.0:
                    best = max(best, math.log(right / wrong))
        assert threshold_epsilon(present, absent, delta) == pytest.approx(best)


def test_a_scheme_without_an_accountant_has_no_composed_estimate():
    run, _ = rounds_of(sampling=Shuffled(batches=5))
    assert run.peer_estimates(delta=DELTA).by_round is None


def test_peers_have_to_be_asked_for():
    run, _ = rounds_of(compare_peers=False)
    with pytest.raises(NotDefinedError, match="compare_peers=True"):
        run.peer_estimates(delta=DELTA)
    with pytest.raises(ag.exceptions.InvalidArgumentError, match="delta"):
        run.peer_estimates(delta=2.0)
