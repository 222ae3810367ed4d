"""Canary clients through aggregators, correct and broken."""

from __future__ import annotations

import numpy as np
import pytest

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.federated import (
    FEDERATED_FAULTS,
    AuditedAggregator,
    CanaryClients,
    Server,
    simulate_federated,
)
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.transcript import Transcript
from askgauss.results import Status, Verdict
from askgauss.sampling import EveryStep, FixedSize, Poisson

ROUNDS, NOISE, DELTA = 100, 2.0, 1e-5
DIMENSION = 400


def claimed(noise=NOISE, rounds=ROUNDS, **more):
    epsilon = EveryStep().epsilon(noise_multiplier=noise, steps=rounds, delta=DELTA)
    return ag.PrivacyClaim(
        epsilon=epsilon,
        delta=DELTA,
        noise_multiplier=noise,
        steps=rounds,
        sampling=EveryStep(),
        unit="user",
        **more,
    )


def flagged(result):
    return {item.check for item in result.findings if item.status in (Status.FAIL, Status.WARN)}


def audited(aggregate, **options):
    given = {"dimension": DIMENSION, "present": 20, "absent": 200, "clip_norm": 1.0, "seed": 0}
    return AuditedAggregator(aggregate, **(given | options))


def updates_of(rng, clients=12, scale=0.1):
    return [rng.normal(0, scale, DIMENSION) for _ in range(clients)]


class Mean:
    """A clipped mean without noise, by the weights that it is told to use."""

    def __init__(self, by_report=False, divide=None):
        self.by_report, self.divide = by_report, divide

    def __call__(self, updates, weights):
        shares = np.asarray(weights, float) if self.by_report else np.ones(len(updates))
        shares = shares / (self.divide or shares.sum())
        return sum(
            s * u / max(1.0, np.linalg.norm(u)) for s, u in zip(shares, updates, strict=True)
        )


class Noisy(Mean):
    """The same with noise on the sum; every fault is the caller's wish."""

    def __init__(self, noise, **options):
        super().__init__(**options)
        self.noise, self.rng = noise, np.random.default_rng(5)

    def __call__(self, updates, weights):
        mean = super().__call__(updates, weights)
        return mean + self.rng.normal(0.0, self.noise, DIMENSION) / len(updates)


# ------------------------------------------------------------------------------ while it runs


def rounds_of(aggregate, count=30, weights=None):
    rng = np.random.default_rng(2)
    for _ in range(count):
        aggregate(updates_of(rng), weights)
    return aggregate


@pytest.mark.parametrize(
    ("server", "weights", "cause"),
    [
        (lambda: Noisy(0.75 * NOISE), None, "noise"),
        (lambda: Noisy(NOISE, by_report=True), [1.0] * 11 + [30.0], "contribution"),
    ],
    ids=["less noise", "weights"],
)
def test_a_monitor_ends_a_broken_run_before_its_mean_is_handed_on(server, weights, cause):
    # A correct run alarms with probability .001; seeds are fixed.
    run = audited(server(), noise_multiplier=NOISE, probes=False, monitor=ag.Monitor())
    with pytest.raises(PrivacyAlarm) as raised:
        rounds_of(run, weights=weights)
    alarm = raised.value.alarm
    assert (alarm.cause, alarm.step) == (cause, run.rounds)
    assert alarm.epsilon > EveryStep().epsilon(noise_multiplier=NOISE, steps=alarm.step, delta=1e-5)
    # The round that alarmed is whole, and the result says it.
    found = {item.check: item for item in run.result(delta=1e-5).findings}
    assert cause in found["monitor"].summary
    rounds_of(run, 1, weights)


def test_a_monitored_correct_run_goes_through():
    run = audited(Noisy(NOISE), noise_multiplier=NOISE, probes=False, monitor=True)
    rounds_of(run, weights=[1.0] * 11 + [30.0])
    assert run.monitor.alarm is None
    assert run.monitor.steps == run.rounds == 30
    assert run.monitor.bound > 0.0
    assert run.monitor.numbers()["askgauss/alarm"] == 0.0


def test_the_round_that_settles_the_weighing_is_not_weighed():
    """The background that leaves least is chosen there: little noise is no wonder."""
    run = audited(Noisy(0.0), noise_multiplier=NOISE, probes=False, monitor=True)
    rng = np.random.default_rng(2)
    run(updates_of(rng), [1.0] * 11 + [30.0])
    assert run.monitor.steps == 1
    with pytest.raises(PrivacyAlarm, match="Step 2"):
        run(updates_of(rng), [1.0] * 11 + [30.0])


# ------------------------------------------------------------------ correct and broken servers


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_correct_server_is_consistent_and_the_bound_is_near_the_claim(adaptive):
    # A correct server is called broken in one audit of 1,000; the bound is below .90 of the claim
    # with a probability of .19 over seeds (python -m benchmarks.federated); this one is fixed.
    run = simulate_federated(rounds=ROUNDS, noise_multiplier=NOISE, adaptive=adaptive, seed=3)
    result = ag.audit(run, claim=claimed())
    assert result.verdict is Verdict.CONSISTENT, str(result)
    assert 0.9 * result.claim.epsilon <= result.epsilon_lower <= result.claim.epsilon
    assert not flagged(result)


@pytest.mark.parametrize("name", FEDERATED_FAULTS)
def test_every_fault_is_named(name):
    fault = FEDERATED_FAULTS[name]
    run = simulate_federated(
        rounds=40, clients=40, noise_multiplier=NOISE, fault=name, seed=1, dimension=1500
    )
    result = ag.audit(run, claim=claimed(rounds=40))
    assert fault.finding in flagged(result), str(result)


@pytest.mark.parametrize(
    "name",
    [
        "weighted-mean", "nan-passes", "zero-divides", "no-clipping", "half-server-noise",
        "near-unclipped", "half-precision-norm", "clipped-by-layer", "client-twice",
    ],
)  # fmt: skip
def test_what_breaks_the_claim_is_a_violation(name):
    run = simulate_federated(
        rounds=40, clients=40, noise_multiplier=NOISE, fault=name, seed=2, dimension=1500
    )
    assert ag.audit(run, claim=claimed(rounds=40)).verdict is Verdict.VIOLATION


def test_more_rounds_than_were_accounted_for():
    run = simulate_federated(rounds=40, clients=20, noise_multiplier=NOISE, seed=1, dimension=1500)
    result = ag.audit(run, claim=claimed(rounds=20))
    assert "step count" in flagged(result)
    assert result.verdict is Verdict.VIOLATION


def test_weights_are_seen_without_probes_too():
    # A plain function cannot be copied: what canaries add has to tell.
    server = FEDERATED_FAULTS["weighted-mean"].server(noise_multiplier=NOISE, seed=0)
    rng = np.random.default_rng(0)
    aggregate = audited(lambda updates, weights: server(updates, weights), noise_multiplier=NOISE)
    for _ in range(40):
        aggregate(updates_of(rng, clients=60), rng.integers(1, 300, 60))
    result = aggregate.result(claim=claimed(rounds=40))
    assert "client weight" in flagged(result)
    assert "nan update" not in {
        item.check for item in result.findings if item.status is not Status.NOT_RUN
    }


def test_capped_weights_with_noise_for_the_cap_are_consistent():
    cap, noise = 10.0, np.random.default_rng(5)

    def capped(updates, weights):
        shares = np.minimum(np.asarray(weights, float), cap)
        mean = sum(
            s * np.nan_to_num(u) / max(1.0, np.linalg.norm(np.nan_to_num(u)))
            for s, u in zip(shares, updates, strict=True)
        )
        return (mean + noise.normal(0, NOISE * cap, DIMENSION)) / shares.sum()

    rng = np.random.default_rng(1)
    aggregate = audited(
        capped,
        noise_multiplier=NOISE,
        divisor=lambda weights: np.minimum(weights, cap).sum() / cap,
        background=False,
    )
    for _ in range(40):
        aggregate(updates_of(rng, scale=0.001), rng.integers(1, 300, 12))
    result = aggregate.result(claim=claimed(rounds=40))
    assert result.verdict in (Verdict.CONSISTENT, Verdict.INCONCLUSIVE)
    assert result.epsilon_lower <= result.claim.epsilon


# ------------------------------------------------------------------------- what is read, exactly


@pytest.mark.parametrize("by_report", [False, True])
def test_without_noise_only_canaries_are_left(by_report):
    rng = np.random.default_rng(0)
    aggregate = audited(Mean(by_report), noise_multiplier=1.0, probes=False, canary_weight=7.0)
    for _ in range(3):
        weights = rng.integers(1, 300, 12)
        aggregate(updates_of(rng), weights)
    sums = aggregate.transcript().canaries
    member = aggregate.canaries.member
    share = 32 * 7.0 / (weights.sum() + 20 * 7.0) if by_report else 1.0
    last = aggregate.transcript().kept_values[-1]
    planted = aggregate.transcript().kept_planted[-1]
    np.testing.assert_allclose(last[planted], share, rtol=1e-12)
    np.testing.assert_allclose(last[~planted], 0.0, atol=1e-12)
    np.testing.assert_allclose(sums.total[~member], 0.0, atol=1e-12)


def test_a_sum_divided_by_a_constant_is_read_with_that_constant():
    rng = np.random.default_rng(0)
    aggregate = audited(Mean(divide=50.0), noise_multiplier=1.0, divisor=50.0, probes=False)
    aggregate(updates_of(rng, clients=7), [1] * 7)
    total = aggregate.transcript().canaries.total
    np.testing.assert_allclose(total, aggregate.canaries.member.astype(float), atol=1e-12)


def test_lists_of_arrays_are_read_like_one_array():
    rng = np.random.default_rng(0)
    flat = updates_of(rng)

    def split(update):
        return [update[:100].reshape(10, 10), update[100:].astype(np.float64)]

    def nested(updates, weights):
        joined = [np.concatenate([a.ravel(), b]) for a, b in updates]
        return split(Mean()(joined, weights))

    first = audited(Mean(), probes=False)
    second = audited(nested, probes=False)
    first(flat, [1] * 12)
    second([split(update) for update in flat], [1] * 12)
    np.testing.assert_allclose(
        first.transcript().canaries.total, second.transcript().canaries.total, atol=1e-12
    )


def test_updates_are_neither_copied_nor_changed():
    seen = []

    def aggregate(updates, weights):
        seen.extend(updates)
        return Mean()(updates, weights)

    given = updates_of(np.random.default_rng(0))
    before = [update.copy() for update in given]
    audited(aggregate)(given, [1] * 12)
    assert all(one is other for one, other in zip(given, seen, strict=False))
    np.testing.assert_array_equal(given, before)
    assert len(seen) == 12 + 20


def test_probes_leave_the_run_as_it_is():
    means = []
    for probes in (False, True):
        rng = np.random.default_rng(0)
        aggregate = audited(
            Server(noise_multiplier=1.0, adaptive=True, seed=4),
            clip_norm=lambda server: server.clip_norm,
            probes=probes,
        )
        means.append([aggregate(updates_of(rng), [1] * 12) for _ in range(3)])
    np.testing.assert_array_equal(means[0], means[1])


def test_a_transcript_keeps_what_was_seen_of_rounds(tmp_path):
    run = simulate_federated(
        rounds=5, clients=10, noise_multiplier=1.0, present=10, absent=90, dimension=300,
        adaptive=True,
    )  # fmt: skip
    run.save(tmp_path / "run.npz")
    again = Transcript.load(tmp_path / "run.npz")
    assert again.facts.rounds == run.facts.rounds
    assert len(again.facts.rounds.next_norms) == 5
    assert again.facts.rounds.probes.norm_if_above > 1.0


@pytest.mark.parametrize(
    ("scheme", "background"),
    [(FixedSize(batch=12, records=40), "unknown"), (Poisson(rate=0.5), "known")],
)
def test_schemes_decide_whether_honest_updates_are_taken_off(scheme, background):
    rng = np.random.default_rng(0)
    aggregate = audited(Server(noise_multiplier=1.0), noise_multiplier=1.0, sampling=scheme)
    for _ in range(30):
        aggregate(updates_of(rng), [1] * 12)
    assert aggregate.transcript().facts.background == background
    assert np.isfinite(aggregate.result(delta=1e-5).epsilon_lower)


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"unit": "example"}, "one example"),
        ({"unit": "user", "adjacency": "replace"}, "two clip norms"),
        ({"unit": "user", "sampling": FixedSize(batch=3, records=9)}, "zero-out"),
    ],
)
def test_unit_and_adjacency_are_spoken_of(claim, says):
    run = simulate_federated(
        rounds=5, clients=10, noise_multiplier=1.0, present=10, absent=90, dimension=300
    )
    result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=30, delta=1e-5, **claim))
    assert any(says in item.summary for item in result.findings)


# ------------------------------------------------------------------------------------ bad input


def test_an_aggregator_that_releases_nothing_or_raises_is_asked_again():
    answers = iter([None, RuntimeError("clients dropped out"), "fine"])

    def aggregate(updates, weights):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else Mean()(updates, weights)

    rng = np.random.default_rng(0)
    run = audited(aggregate, sampling=Poisson(rate=0.5))
    assert run(updates_of(rng), [1] * 12) is None
    with pytest.raises(RuntimeError, match="dropped out"):
        run(updates_of(rng), [1] * 12)
    run(updates_of(rng), [1] * 12)
    assert run.rounds == 1
    assert run.transcript().facts.rounds.unreleased == 1


@pytest.mark.parametrize(
    ("updates", "weights", "says"),
    [
        ([], [], "none"),
        ([np.zeros(DIMENSION), None], [1, 1], "dropped out"),
        ([np.zeros(DIMENSION), np.zeros(3)], [1, 1], "shapes"),
        ([np.zeros(7)], [1], "dimension=400"),
        ([np.zeros(DIMENSION)], [-5], "negative"),
        ([np.zeros(DIMENSION)], [np.nan], "finite"),
        ([np.zeros(DIMENSION)], [1, 2], "one number for each"),
        ([np.zeros(DIMENSION)], [0], "one is above 0|shape|above 0"),
        ([np.array(["a"] * DIMENSION)], [1], "numbers"),
    ],
)
def test_bad_rounds_are_refused(updates, weights, says):
    aggregate = audited(Mean(), canary_weight=0.0)
    with pytest.raises(InvalidArgumentError, match=says):
        aggregate(updates, weights)


def test_a_huge_reported_weight_is_passed_on():
    rng = np.random.default_rng(0)
    aggregate = audited(Mean(by_report=True), noise_multiplier=1.0)
    aggregate(updates_of(rng), [1] * 11 + [10**15])
    assert aggregate.transcript().facts.rounds.heaviest == pytest.approx(12.0)


def test_reading_comes_after_joining():
    clients = CanaryClients(
        dimension=100, present=5, absent=20, noise_multiplier=1.0, sampling=None, seed=0
    )
    with pytest.raises(RecordingError, match="join"):
        clients.read(np.zeros(100))


@pytest.mark.parametrize(
    "wrong",
    [{"clip_norm": 0.0}, {"noise_multiplier": -1.0}, {"divisor": 0.0}, {"canary_weight": -1.0}],
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        audited(Mean(), **wrong)


def test_a_later_round_may_have_no_honest_client():
    rng = np.random.default_rng(0)
    run = audited(Server(noise_multiplier=1.0), noise_multiplier=1.0)
    run(updates_of(rng), [1] * 12)
    run([], [])
    run(updates_of(rng), [1] * 12)
    assert run.rounds == 3
    assert run.transcript().facts.rounds.fewest == 0


# --- restarts -------------------------------------------------------------------------------------


class Silent(Noisy):
    """Skips every fifth round, and can be saved."""

    rounds = 0

    def __call__(self, updates, weights):
        self.rounds += 1
        return None if self.rounds % 5 == 0 else super().__call__(updates, weights)


TREE = TreePlan(steps=40, release="prefixes", participations=4, min_separation=4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampling": Poisson(rate=0.5), "monitor": True},
        {"plan": TREE, "present": 60},
    ],
    ids=["every round", "sampled and watched", "a tree"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_been_stopped(tmp_path, options):
    def made(server):
        return audited(server, noise_multiplier=4.0, **options)

    def train(aggregate, first, last):
        for number in range(first, last):
            rng = np.random.default_rng([3, number])
            names = [f"client {(number * 12 + client) % 60}" for client in range(12)]
            weights = rng.integers(1, 9, 12)
            aggregate(updates_of(rng), weights, participants=names)

    whole, server = made(Silent(4.0)), Silent(4.0)
    train(whole, 0, 30)
    aggregate, done = made(server), 0
    # Rounds 5 and 10 release nothing: a checkpoint after one of them holds who was drawn for it.
    for cut in (5, 12):
        train(aggregate, done, cut)
        aggregate.save(tmp_path / "audit.npz")
        released, aggregate, done = aggregate.rounds, made(server), cut
        aggregate.load(tmp_path / "audit.npz")
        assert aggregate.rounds == released
    train(aggregate, done, 30)
    one, other = aggregate.transcript(), whole.transcript()
    assert one.facts == other.facts
    assert one.facts.resumed == (4, 10)
    assert np.array_equal(one.scores().score, other.scores().score)
    if "monitor" in options:
        assert aggregate.monitor.steps == whole.monitor.steps == 24


def test_an_audit_of_another_round_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    aggregate = audited(Noisy(4.0), noise_multiplier=4.0)
    for number in range(3):
        aggregate(updates_of(rng), step=number)
    aggregate.save(tmp_path / "audit.npz")
    resumed = audited(Noisy(4.0), noise_multiplier=4.0)
    resumed.load(tmp_path / "audit.npz")
    with pytest.raises(RecordingError, match=r"step=3.* got 5"):
        resumed(updates_of(rng), step=5)
    resumed(updates_of(rng), step=3)
    # Who counts rounds along has said where the model was: nobody needs to ask.
    assert resumed.transcript().facts.resumed == ()
    with pytest.raises(RecordingError, match="fingerprint"):
        audited(Noisy(4.0), noise_multiplier=4.0, seed=1).load(tmp_path / "audit.npz")


def test_what_cannot_be_saved_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(UnsupportedError, match="compare_peers"):
        audited(Noisy(4.0), compare_peers=True).state_dict()
    aggregate = audited(Noisy(4.0))
    aggregate(updates_of(rng), participants=[("client", number) for number in range(12)])
    with pytest.raises(UnsupportedError, match="text"):
        aggregate.state_dict()
    state = audited(Noisy(4.0)).state_dict()
    with pytest.raises(FileFormatError, match="joined"):
        audited(Noisy(4.0)).load_state_dict({**state, "joined": np.arange(3.0)})
