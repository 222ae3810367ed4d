"""What a result says of the training's records, its clients and its noise: nothing of one of them.

The attacks are on the text as it is published: JSON, HTML, JUnit and what is printed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import askgauss as ag
from askgauss.checks.context import Context
from askgauss.checks.federated_rounds import FederatedRounds, client_weight, clip_norm_direction
from askgauss.checks.registry import made
from askgauss.checks.sampler import SAMPLER_CHECKS
from askgauss.checks.step_invariants import record_contributions
from askgauss.federated import AuditedAggregator
from askgauss.monitor.feed import History
from askgauss.recording.facts import ProbeFacts, ProbeReading, RoundFacts, StepFacts
from askgauss.replay import join
from askgauss.results import Status, Verdict
from askgauss.sampling import DrawnBatches, EveryStep, Poisson
from askgauss.sampling.batch_testing import SchemeSums
from tests.monitor.runs import watched

# ------------------------------------------------------------------- the noise of a real round

DIMENSION, CLIP, NOISE, CLIENTS = 2000, 0.5, 2.0, 20


class Server:
    """Clips, adds up and adds noise; remembers the noise of its last round."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)
        self.last = np.zeros(0)

    def draw(self):
        return self.generator.normal(0.0, NOISE * CLIP, DIMENSION)

    def __call__(self, updates, weights):
        clean = [np.nan_to_num(update) for update in updates]
        total = sum(u * CLIP / max(CLIP, float(np.linalg.norm(u))) for u in clean)
        self.last = self.draw()
        return (total + self.last) / len(updates)


class CountingServer(Server):
    """Has no generator to be found: its noise follows from a seed and the number of the round."""

    def __init__(self, seed):
        super().__init__(seed)
        self.seed, self.round = seed, 0

    def draw(self):
        self.round += 1
        return np.random.default_rng([*self.seed, self.round]).normal(0.0, NOISE * CLIP, DIMENSION)


class GlobalServer(Server):
    """Draws from numpy's own generator, which belongs to nobody."""

    def draw(self):
        return np.random.normal(0.0, NOISE * CLIP, DIMENSION)  # noqa: NPY002


class SystemServer(Server):
    """Draws from the operating system: no two probes have the same noise."""

    def draw(self):
        return np.random.default_rng().normal(0.0, NOISE * CLIP, DIMENSION)


SERVERS = [Server, CountingServer, GlobalServer, SystemServer]


def federated(server, rounds=2):
    """Findings of a run by name, and the noise of its first round at entry 0, in clip norms."""
    aggregate = AuditedAggregator(
        server,
        dimension=DIMENSION,
        present=20,
        absent=30,
        clip_norm=CLIP,
        noise_multiplier=NOISE,
        sampling=EveryStep(),
        seed=1,
    )
    updates = [np.full(DIMENSION, 1e-3)] * CLIENTS
    aggregate(updates, [10] * CLIENTS)
    noise = float(server.last[0]) / CLIP
    for _ in range(rounds - 1):
        aggregate(updates, [10] * CLIENTS)
    result = aggregate.result(claim=ag.PrivacyClaim(epsilon=33.0, delta=1e-5, unit="user"))
    return {item["check"]: item for item in json.loads(result.to_json())["findings"]}, noise


@pytest.mark.parametrize("kind", SERVERS)
def test_the_probe_of_weights_tells_nothing_of_the_first_round(kind):
    np.random.seed(3)  # noqa: NPY002
    told = [federated(kind([77, run])) for run in range(8)]
    found, noise = (
        np.array(list(column))
        for column in zip(*((run["client weight"]["measured"], x) for run, x in told), strict=True)
    )
    assert {run["client weight"]["status"] for run, _ in told} == {"pass"}
    if kind is SystemServer:
        # Probes have noise of their own. It is not that of the round, and stands on a grid as wide
        # as it is: a correlation above .98 by chance in fewer than 1 of 10,000 times.
        assert abs(np.corrcoef(found, noise)[0, 1]) < 0.98
        steps = (found - 1.0) / np.array([width(run["client weight"]) for run, _ in told])
        assert np.allclose(steps, np.rint(steps), atol=1e-2)
    else:
        assert np.abs(found - 1.0).max() < 1e-5
    for run, _ in told:
        # A million-fold weight is seen as sharply as the noise that is left allows.
        assert run["noise at the server"]["status"] == "pass"


def width(finding):
    low, high = finding["interval"]
    return (high - low) / (2.0 * 2.5758293035489004)


@pytest.mark.parametrize("kind", SERVERS[:3])
def test_probes_take_and_give_no_noise_of_the_run(kind):
    def first(probes):
        np.random.seed(5)  # noqa: NPY002
        server = kind([4, 4])
        aggregate = AuditedAggregator(
            server, dimension=DIMENSION, present=5, absent=5, clip_norm=CLIP, probes=probes, seed=1
        )
        aggregate([np.full(DIMENSION, 1e-3)] * CLIENTS, [1.0] * CLIENTS)
        return server.last

    np.testing.assert_array_equal(first(True), first(False))


class WatchedServer(Server):
    """Keeps the noise of all its copies, which a probe is not."""

    drawn: list[np.ndarray] = []

    def draw(self):
        self.drawn.append(super().draw())
        return self.drawn[-1]


def test_probes_have_other_coins_than_the_run():
    WatchedServer.drawn.clear()
    federated(WatchedServer(9), rounds=1)
    *probes, real = WatchedServer.drawn
    assert len(probes) >= 3
    # Correlations of 2,000 values: beyond .11 in fewer than 1 of 1,000,000.
    assert max(abs(np.corrcoef(probe, real)[0, 1]) for probe in probes) < 0.11
    np.testing.assert_array_equal(probes[0], probes[1])


@pytest.mark.parametrize(("weight", "status"), [(1.0, Status.PASS), (1.02, Status.PASS)])
def test_a_weight_on_its_grid_fails_only_beyond_it(weight, status):
    """By the least that it may be before it was put on the grid."""
    facts = RoundFacts(probes=ProbeFacts(clients=9, heavy=ProbeReading(added=weight, error=0.02)))
    found = client_weight(FederatedRounds(facts=facts, context=None))
    assert found.status is status
    assert found.p_value >= 0.3


def test_the_next_clip_norm_is_told_without_the_noise_of_its_count():
    def told(noise):
        facts = RoundFacts(
            adaptive=True,
            probes=ProbeFacts(norm_if_above=1.1 * math.exp(noise), norm_if_below=math.exp(noise)),
        )
        return clip_norm_direction(FederatedRounds(facts=facts, context=None))

    assert told(0.0) == told(0.0371)
    assert told(0.0).status is Status.PASS
    assert told(0.0).measured == 1.1


# --------------------------------------------------------------- a run with and without a record


def leaking(data, training):
    for batch in training.batches(rate=0.2):
        rows = data[batch]
        noise = training.generator().normal(size=3)
        training.release(rows.sum(0), noise=noise, clip_norm=9.0)
        training.public("salary total", float(rows[:, 0].sum()))


def sound(data, training):
    for batch in training.batches(rate=0.2):
        rows = data[batch] / np.maximum(1.0, np.linalg.norm(data[batch], axis=1))[:, None]
        noise = training.generator().normal(size=3)
        training.release(rows.sum(0), noise=noise, clip_norm=1.0)


@pytest.mark.parametrize(
    ("train", "verdict"), [(leaking, Verdict.VIOLATION), (sound, Verdict.CONSISTENT)]
)
def test_a_joined_replay_says_what_differed_and_not_how(train, verdict, tmp_path):
    data = np.random.default_rng(0).normal(size=(50, 3))
    data[17, 0] = 123456.0
    report = ag.replay(train, data, leave_out=17, steps=3)
    assert report.verdict is verdict
    run = ag.simulate_dpsgd(
        steps=50, sampling_rate=0.2, noise_multiplier=2.0, present=50, absent=50, seed=1
    )
    audited = ag.audit(run, claim=ag.PrivacyClaim(epsilon=80.0, delta=1e-5))
    joined = join(audited, report)
    found = [item for item in joined.findings if item.check.startswith("replay")]
    assert len(found) == len(report.findings)
    for item, private in zip(found, report.findings, strict=True):
        kept = ("check", "status", "consequence", "remedy")
        assert [getattr(item, name) for name in kept] == [getattr(private, name) for name in kept]
        assert (item.measured, item.interval) == (None, None)
        assert not re.search(r"\d", item.summary)
    joined.to_html(tmp_path / "result.html")
    joined.to_junit(tmp_path / "result.xml")
    written = (tmp_path / "result.html").read_text() + (tmp_path / "result.xml").read_text()
    for text in (joined.to_json(), str(joined), written):
        assert "12345" not in text
        assert not any(value in text for item in report.differences for value in item.values)
    if train is leaking:
        assert joined.verdict is Verdict.VIOLATION
        assert "salary total (public) differs" in str(joined)
        assert "leak under add-remove" in str(joined)


# ------------------------------------------------------------------------- records and batches


RUN = ag.simulate_dpsgd(
    steps=40, sampling_rate=0.1, noise_multiplier=1.0, present=20, absent=20, seed=0
)


def contributions(**facts):
    given = {"share": 1.0, "steps": 10, "largest": 0.9999999, "largest_step": 1}
    seen = replace(RUN.facts, witness=StepFacts(**(given | facts)))
    return record_contributions(Context(RUN.with_facts(seen), None))


def test_one_long_gradient_among_short_ones_is_not_told():
    """Neither by the text nor by the status: with a record and without it, the same is said."""
    without = contributions(records=288, clipped=0)
    assert without.status is Status.NOT_RUN
    for clipped in range(10):
        assert contributions(records=288, clipped=clipped) == without
        assert contributions(records=276, clipped=clipped) == without
    assert contributions(records=1, clipped=1) == without


@pytest.mark.parametrize(("records", "clipped"), [(288, 10), (288, 200), (2, 2), (7, 4)])
def test_clipping_that_acted_is_told_in_round_numbers(records, clipped):
    found = contributions(records=records, clipped=clipped)
    assert found.status is Status.PASS
    assert found.measured == 1.0
    for text in (found.summary, found.sees):
        assert str(records) not in text
        assert str(clipped) not in text.replace("10 steps", "")


def test_a_record_that_is_let_through_fails_however_few_are_long():
    found = contributions(records=288, clipped=1, largest=1.00236789)
    assert found.status is Status.WARN
    assert found.measured == 1.002
    assert contributions(records=288, clipped=1, largest=7.0).status is Status.FAIL


def batches(records, seed, rate=0.1, drawn_at=None, steps=40):
    sums = SchemeSums(Poisson(rate=rate), records=records)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        sums.add(np.flatnonzero(rng.random(records) < (drawn_at or rate)))
    return sums


def test_batches_do_not_tell_how_many_records_there_are():
    for records in (300, 299):
        sums = batches(records, seed=records)
        seen = replace(RUN.facts, batches=DrawnBatches.of(sums))
        found = list(made(SAMPLER_CHECKS, Context(RUN.with_facts(seen), None)))
        drawn = sums.drawn
        exact = {drawn.min(), drawn.max(), drawn.sum(), records}
        text = " ".join(item.summary for item in found)
        numbers = {float(number) for number in re.findall(r"\d[\d,]*\.?\d*(?<![.,])", text)}
        assert not {float(value) for value in exact} & numbers
        rate = next(item for item in found if item.check == "sampling rate")
        told = [rate.measured, *rate.interval]
        assert told == [float(f"{value:.3g}") for value in told]
        low, high = rate.interval
        assert low < drawn.sum() / (40 * records) < high


def test_batches_that_are_odd_say_what_is_odd_in_three_digits():
    sums = batches(30_000, seed=1, drawn_at=0.2)
    summaries = {test.name: test.summary for test in sums.tests()}
    assert re.search(
        r"batches show 5,990 records on average, from 5,870 to 6,130", summaries["mean batch"]
    )
    assert "2 times the inclusions that are expected" in summaries["rate"]


# ------------------------------------------------------------------------------- while it trains


def test_a_feed_has_no_more_than_three_digits_of_any_epsilon():
    monitor = watched(np.random.default_rng(4), steps=256, planned=512)
    feed = monitor.feed()
    told = [feed.bound[0], *(bound for bound in feed.course.bound if bound == bound)]
    ends = feed.projection
    told += [ends.epsilon, ends.low, ends.high]
    told += [x for name, x in feed.numbers().items() if re.search("epsilon_(lower|at)", name)]
    assert len(told) > 8
    assert told == [float(f"{value:.3g}") for value in told]
    # What is told is weaker than what is known, never stronger.
    exact = monitor.projection()
    assert feed.bound[0] <= monitor.bound < 1.01 * feed.bound[0]
    assert ends.low <= exact.low <= exact.high <= ends.high
    assert replace(ends, low=exact.low, high=exact.high, epsilon=exact.epsilon) == exact


def test_the_grid_of_the_noise_does_not_tell_how_many_were_planted():
    def grid(planted):
        keeper = History()
        freedom = square = 0.0
        for step in range(1, 9):
            freedom += 1000 - planted
            square += (1000 - planted) * (1.0 + 0.03 * step) ** 2
            keeper.extend(step, 0.0, (freedom, square))
        return keeper.course([], 950.0).noise

    assert grid(0) == grid(37) == grid(100)
