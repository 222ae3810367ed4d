"""DP-FTRL at the server: canary clients, trees with restarts, strategies, participation limits."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import FileFormatError, InvalidArgumentError, UnsupportedError
from askgauss.federated import AuditedAggregator, Server, simulate_federated
from askgauss.mechanisms.decorrelate import moved_by
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import TreePlan
from askgauss.mechanisms.strategies import BandedStrategy
from askgauss.recording.transcript import LinearTranscript
from askgauss.results import Status, Verdict

ROUNDS, EPSILON, DELTA = 64, 8.0, 1e-5
LIMITS = {"participations": 4, "min_separation": 16}
TREE = TreePlan(steps=ROUNDS, release="prefixes", restart_every=16, **LIMITS)
BANDED = BandedStrategy.toeplitz([1.0, 0.5, 0.35, 0.3], ROUNDS, **LIMITS)
NOISE = {
    "tree": TreePlan(steps=ROUNDS, restart_every=16, **LIMITS).noise_multiplier(
        epsilon=EPSILON, delta=DELTA
    ),
    "banded": BANDED.noise_multiplier(epsilon=EPSILON, delta=DELTA),
}
PLANS = {"tree": TREE, "banded": BANDED}
each_plan = pytest.mark.parametrize("name", PLANS)


def audit_of(name, *, fault=None, present=200, absent=600, seed=2, **options):
    run = simulate_federated(
        rounds=ROUNDS,
        clients=12,
        dimension=present + absent + 200,
        present=present,
        absent=absent,
        noise_multiplier=NOISE[name],
        plan=PLANS[name],
        fault=fault,
        seed=seed,
        **options,
    )
    assert isinstance(run, LinearTranscript)
    claim = ag.PrivacyClaim(
        epsilon=EPSILON, delta=DELTA, noise_multiplier=NOISE[name], steps=ROUNDS, unit="user"
    )
    return ag.audit(run, claim=claim)


def flagged(result):
    return {item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)}


@each_plan
def test_a_correct_server_is_consistent_and_the_bound_near_the_claim(name):
    # Called broken in one audit of 1,000; the seed is fixed.
    result = audit_of(name, present=1000, absent=1500)
    assert result.verdict is Verdict.CONSISTENT, str(result)
    assert 0.9 * EPSILON <= result.epsilon_lower <= EPSILON
    assert not flagged(result)
    ran = {item.check for item in result.findings if item.status is Status.PASS}
    assert {"participation", "sensitivity", "client weight", "nan update", "contribution"} <= ran


@each_plan
@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("half-server-noise", "noise scale"),
        ("eager-clients", "participation"),
        ("weighted-mean", "client weight"),
        ("no-clipping", "contribution"),
        ("nan-passes", "nan update"),
    ],
)
def test_faults_are_violations_and_named(name, fault, finding):
    result = audit_of(name, fault=fault)
    assert result.verdict is Verdict.VIOLATION
    assert finding in flagged(result)


def test_more_rounds_than_the_plan_has_are_refused():
    aggregate = AuditedAggregator(
        lambda updates, weights: sum(updates) / len(updates),
        dimension=100,
        present=5,
        absent=20,
        clip_norm=1.0,
        plan=BandedStrategy.toeplitz([1.0, 0.5], 2),
        seed=0,
    )
    for _ in range(2):
        aggregate([np.zeros(100)])
    with pytest.raises(ag.exceptions.RecordingError, match="2 steps"):
        aggregate([np.zeros(100)])


def test_a_state_that_is_refused_leaves_the_audit_as_it_was():
    def made():
        return AuditedAggregator(
            lambda updates, weights: sum(updates) / len(updates),
            dimension=100,
            present=5,
            absent=20,
            clip_norm=1.0,
            plan=BandedStrategy.toeplitz([1.0, 0.5], 4),
            seed=0,
        )

    further = made()
    for _ in range(2):
        further([np.zeros(100)])
    state = further.state_dict()
    del state["prefix"]
    fresh = made()
    with pytest.raises(FileFormatError, match="prefix"):
        fresh.load_state_dict(state)
    assert fresh.rounds == 0
    fresh([np.zeros(100)])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"sampling": ag.sampling.EveryStep()}, InvalidArgumentError),
        ({"monitor": True}, InvalidArgumentError),
        ({"clip_norm": lambda server: 1.0}, InvalidArgumentError),
        ({"plan": TreePlan(steps=4)}, UnsupportedError),
        ({"plan": "tree"}, InvalidArgumentError),
    ],
    ids=["scheme", "monitor", "moving norm", "nodes", "no plan"],
)
def test_what_does_not_go_with_a_plan_is_refused(wrong, error):
    options = {"dimension": 100, "present": 5, "absent": 20, "clip_norm": 1.0, "plan": BANDED}
    with pytest.raises(error):
        AuditedAggregator(Server(noise_multiplier=1.0), **(options | wrong))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "b"], "each of 3"),
        (["a", "a", "b"], "once in a round"),
        ([["a"], "b", "c"], "hashable"),
    ],
)
def test_names_of_clients_are_checked(names, says):
    aggregate = AuditedAggregator(
        Server(noise_multiplier=1.0), dimension=60, present=5, absent=20, clip_norm=1.0, seed=0
    )
    with pytest.raises(InvalidArgumentError, match=says):
        aggregate([np.zeros(60)] * 3, participants=names)
    aggregate([np.zeros(60)] * 3, participants=["a", "b", "c"])
    with pytest.raises(InvalidArgumentError, match="every round"):
        aggregate([np.zeros(60)] * 3)


def test_how_far_a_client_moves_is_that_of_the_whole_matrix():
    """Against matrices that are written out: every pair of steps, and all steps at once."""
    rng = np.random.default_rng(0)
    strategy = BandedStrategy(columns=0.2 + rng.random((8, 3)))
    written = strategy.written_out().strategy
    nodes = MatrixMechanism.tree(8).strategy
    for steps in [*((i, j) for i in range(8) for j in range(i + 1, 8)), tuple(range(8))]:
        entered = np.isin(np.arange(8), steps).astype(float)
        assert moved_by(strategy, steps) == pytest.approx(np.linalg.norm(written @ entered))
        assert moved_by(TreePlan(steps=8), steps) == pytest.approx(np.linalg.norm(nodes @ entered))
    assert moved_by(strategy, []) == 0.0
    with pytest.raises(InvalidArgumentError, match="step"):
        moved_by(strategy, [8])


def test_a_transcript_keeps_who_took_part(tmp_path):
    run = simulate_federated(
        rounds=8,
        clients=3,
        dimension=120,
        present=20,
        absent=60,
        noise_multiplier=2.0,
        plan=TreePlan(steps=8, release="prefixes", restart_every=4),
        fault="eager-clients",
    )
    run.save(tmp_path / "run.npz")
    again = LinearTranscript.load(tmp_path / "run.npz")
    assert again.facts.rounds == run.facts.rounds
    seen = again.facts.rounds.participation
    assert (seen.most, seen.closest, seen.limit, seen.clients) == (8, 1, 1, 3)
