"""What findings tell of single canaries: no number, sentence or p-value is one canary's own noise.

The attack: every number of a result's findings, those in sentences and p-values turned back into
values included, is held against the exact noise of single canaries, alone and times the measured
scale of the noise. Many numbers lie near one of thousands of values by chance; how many, the same
numbers of another run tell.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri, stdtrit

import askgauss as ag
from askgauss.checks import diagnose
from askgauss.checks.tails import Spread
from askgauss.mechanisms import tree
from askgauss.mechanisms.banded import BandedStrategy
from askgauss.publish.disclosure import published
from askgauss.recording.facts.run_facts import SeedProbe
from askgauss.results import Status
from askgauss.stats.rounding import (
    round_cosine,
    round_deviations,
    round_p_value,
    significant,
)

CLAIM = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
# In deviations of the noise: what is told to half of one is this near to it once in 250 times.
NEAR = 1e-3
RUNS = 8
OF_ONE = (
    "noise by coordinate",
    "noise by node",
    "noise by tensor",
    "noise extremes",
    "shared noise",
    "single plantings",
)


def dpsgd(seed, tensors=(3000,)):
    """A DP-SGD run, and the statistics that are those of a single canary, exactly."""
    generator = np.random.default_rng(seed)
    canaries = ag.DiracCanaries(present=100, absent=300, tensors=tensors, seed=10**9 + seed)
    recorder = ag.Recorder(canaries, sampling_rate=0.3, clip_norm=1.0, noise_multiplier=1.5)
    rows, put = [], []
    for _ in range(40):
        noise, there = generator.normal(0.0, 1.5, 400), np.zeros(400, dtype=bool)
        there[recorder.sample()] = True
        recorder.observe(noise + there + 7.0, background=np.full(400, 7.0))
        rows.append(noise + there)
        put.append(there)
    seen, put = np.array(rows), np.array(put)
    others = [seen[~put[:, j], j] for j in range(400)]
    own = np.sqrt([float((values**2).mean()) for values in others])
    chosen = np.flatnonzero(np.bincount(canaries.tensor)[canaries.tensor] == 1)
    noise = np.where(put, np.nan, seen)
    exact = [
        # The extremes, which checks speak of, and not all of sixteen thousand values.
        np.nanmax(noise),
        np.nanmin(noise),
        seen[put].max(),
        seen[put].min(),
        own.min(),
        own.max(),
        *own[chosen],
    ]
    return recorder.transcript(), np.array(exact)


def dpftrl(seed):
    """A DP-FTRL run of one release: a canary's own deviation is its noise."""
    generator = np.random.default_rng(seed)
    strategy = BandedStrategy.toeplitz([0.8], 1)
    canaries = ag.DiracCanaries(present=3, absent=60, dimension=3000, seed=10**9 + seed)
    recorder = ag.LinearRecorder(canaries, strategy, noise_multiplier=2.0)
    noise = strategy.stream(tree.numpy_draw(generator, 3000, scale=2.0))
    total = np.zeros(3000)
    canaries.plant(total, recorder.sample(), clip_norm=1.0)
    released = total + noise.next()
    recorder.observe(canaries.project(released), background=np.zeros(63))
    own = np.abs(0.8 * canaries.project(released - total))
    return recorder.transcript(), np.array([own.min(), own.max()])


def per_tensor(seed):
    """A run with a tensor that a single canary lies in."""
    for place in itertools.count(1000 * seed):
        canaries = ag.DiracCanaries(
            present=100, absent=300, tensors=(2000, 2000, 10), seed=10**9 + place
        )
        if np.bincount(canaries.tensor, minlength=3)[2] == 1:
            return dpsgd(place, tensors=(2000, 2000, 10))
    raise AssertionError


KINDS = {"dpsgd": dpsgd, "dpftrl": dpftrl, "per tensor": per_tensor}


@functools.cache
def recorded(kind, seed):
    return KINDS[kind](seed)


@functools.cache
def audited(kind, seed):
    return ag.audit(recorded(kind, seed)[0], claim=CLAIM)


def told(result):
    """Every number that the findings tell, and what can be made of it."""
    findings = json.loads(result.to_json())["findings"]
    values, counts = [], (400, 16_000, 12_000, 100, 63, 3)
    for item in findings:
        text = f"{item['summary']} {item['remedy']} {item['sees']}"
        values += [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        values += [item["measured"], *(item["interval"] or ())]
        chance = item["p_value"]
        if chance is not None and 0.0 < chance < 1.0:
            # The value whose p-value this is: of one, and of the furthest of so many.
            values += [-float(ndtri(chance / part / many)) for many in counts for part in (1, 2, 4)]
            values += [-float(stdtrit(1e4, chance / part / 100.0)) for part in (2, 4)]
    values = np.array([float(value) for value in values if value not in (None, "inf", "nan")])
    values = values[np.isfinite(values)]
    scale = next(
        (float(item["measured"]) for item in findings if item["check"] == "noise scale"), 1.0
    )
    # Whole numbers are counts and names of steps; a grid's points are whole only by chance.
    values = values[values != np.rint(values)]
    return np.unique(np.concatenate([values, scale * values, 1.0 + scale * values]))


def hits(values, exact, unit):
    """How many of the exact statistics some number lies next to, of either sign."""
    distance = np.abs(np.abs(values)[:, None] - np.abs(exact)[None, :]).min(axis=0)
    return int(np.count_nonzero(distance < NEAR * unit))


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_is_one_canarys_own(kind):
    runs = [recorded(kind, seed) for seed in range(1, RUNS + 1)]
    numbers = [told(audited(kind, seed)) for seed in range(1, RUNS + 1)]
    unit = 1.5 if kind != "dpftrl" else 2.0
    own = sum(hits(numbers[i], runs[i][1], unit) for i in range(RUNS))
    foreign = np.mean(
        [
            sum(hits(numbers[(i + shift) % RUNS], runs[i][1], unit) for i in range(RUNS))
            for shift in range(1, RUNS)
        ]
    )
    # Chance gives as many as other runs' numbers do, with the spread of a Poisson number.
    assert own <= foreign + 3.0 * math.sqrt(foreign) + 1.0, (own, foreign)


@pytest.mark.parametrize("kind", ["dpsgd", "per tensor"])
def test_no_number_is_one_pairs_own(kind):
    for seed in (1, 2, 3):
        finding = named(audited(kind, seed))["shared noise"]
        # Of 40 steps, all that is told is on which side of three standard errors it lies.
        half = 3.0 / math.sqrt(40.0)
        sign = math.copysign(1.0, finding.measured)
        assert finding.measured == pytest.approx(0.5 * sign * (half + 0.95), abs=1e-4)
        assert f"correlates by {sign * half:+.2f} to {sign * 0.95:+.2f}" in finding.summary


def named(result):
    return {item.check: item for item in result.findings}


@pytest.mark.parametrize("kind", KINDS)
def test_a_canary_is_not_named_where_nothing_is_wrong(kind):
    assert not re.search(r"canary \d", audited(kind, 1).to_json())


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_stable(kind, tmp_path):
    result = audited(kind, 1)
    result.to_json(tmp_path / "result.json")
    again = ag.AuditResult.load(tmp_path / "result.json")
    assert again == result
    assert again.to_json() == result.to_json()
    assert published(again.findings) == again.findings
    assert again.next_step == result.next_step


@pytest.mark.parametrize("kind", KINDS)
def test_how_checks_end_does_not_change(kind):
    exact = diagnose(recorded(kind, 2)[0], claim=CLAIM)
    result = named(audited(kind, 2))
    for item in exact:
        assert result[item.check].status is item.status
        assert result[item.check].summary == item.summary
        if item.p_value is not None:
            assert item.p_value <= result[item.check].p_value <= max(10.0 * item.p_value, 1e-6)
        if item.check in OF_ONE and item.p_value:
            # A p-value of one value is that value.
            assert math.log10(result[item.check].p_value).is_integer()


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("half-noise", "noise scale"),
        ("same-noise-every-step", "repeated noise"),
        ("clipping-off", "contribution"),
    ],
)
def test_failures_still_read_as_failures(fault, check):
    run = ag.simulate_dpsgd(
        steps=50,
        sampling_rate=0.2,
        noise_multiplier=2.0,
        present=100,
        absent=100,
        seed=0,
        fault=fault,
    )
    finding = named(ag.audit(run, claim=CLAIM))[check]
    assert finding.status in (Status.FAIL, Status.WARN)
    assert finding.claimed is None or finding.measured != pytest.approx(finding.claimed, rel=1e-3)


def faulty(change):
    """A run whose noise is changed before it is released: rows of 40 steps and 400 canaries."""
    generator = np.random.default_rng(3)
    canaries = ag.DiracCanaries(present=100, absent=300, tensors=(2000, 2000), seed=5)
    recorder = ag.Recorder(canaries, sampling_rate=0.3, clip_norm=1.0, noise_multiplier=1.5)
    noise = generator.normal(0.0, 1.5, (40, 400))
    change(noise, canaries)
    for row in noise:
        planted = recorder.sample()
        row[planted] += 1.0
        recorder.observe(row, background=np.zeros(400))
    return ag.audit(recorder.transcript(), claim=replace(CLAIM, noise_multiplier=1.5))


def less_in_one(noise, _):
    noise[:, 7] *= 0.2


def less_in_a_tensor(noise, canaries):
    noise[:, canaries.tensor == 1] *= 0.6


def uneven(noise, _):
    noise *= np.random.default_rng(0).choice([0.8, 1.2], 400)


def one_far_out(noise, canaries):
    noise[3, np.flatnonzero(~canaries.member)[0]] = 40.0


def twice(noise, canaries):
    first, second = np.flatnonzero(~canaries.member).reshape(2, 150)
    noise[:, second] = noise[:, first]


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        (less_in_one, "noise by coordinate", r"has about 0\.[12]\d times the average"),
        (less_in_a_tensor, "noise by tensor", r"has (0\.[56]|1\.[67])\d* times the noise"),
        (uneven, "noise by coordinate", r"differ by \d"),
        (one_far_out, "noise extremes", r"and 2\d\.[05] standard deviations"),
        (twice, "shared noise", r"correlates by \+1\.00"),
    ],
)
def test_what_is_one_canarys_still_reads_as_failed(change, check, says):
    result = faulty(change)
    finding = named(result)[check]
    assert finding.status in (Status.FAIL, Status.WARN), finding
    assert re.search(says, finding.summary), finding.summary
    assert finding.p_value <= 1e-3


def test_a_lone_far_score_is_told_by_its_deviations():
    generator = np.random.default_rng(0)
    present, absent = generator.normal(1.0, 1.0, 300), generator.normal(0.0, 1.0, 300)
    absent[5] = 9.123456
    scores = ag.CanaryScores.from_groups(present=present, absent=absent, noise="gaussian")
    finding = named(ag.audit(scores, claim=CLAIM))["normality of absent scores"]
    assert finding.status is Status.FAIL
    assert re.search(r"most extreme lies about \d\.[05] standard deviations off", finding.summary)
    assert "one that extreme in at most" in finding.summary


@pytest.mark.parametrize(
    "p_value", [1.0, 0.7, 0.3, 0.0999, 0.1, 3e-5, 1.00001e-6, 1e-6, 1e-40, 0.0]
)
@pytest.mark.parametrize("of_one", [False, True])
def test_p_values_are_rounded_up_once(of_one, p_value):
    once = round_p_value(p_value, of_one=of_one)
    assert once >= p_value
    assert round_p_value(once, of_one=of_one) == once


def test_grids():
    assert significant(0.98996) == 0.99
    assert math.isnan(significant(math.nan))
    assert [round_deviations(value) for value in (4.2, -3.8, math.inf)] == [4.0, -4.0, math.inf]
    one = [Spread(1.0, value**2).rounded().scale for value in np.linspace(0.7, 1.5, 50)]
    assert len({round(value, 9) for value in one}) == 1
    assert Spread(5.0, 0.0).rounded().square == 0.0
    assert Spread(1e6, 1e6 * 0.9**2).rounded().scale == pytest.approx(0.9, rel=1e-3)
    assert round_cosine(0.999, 10) == (1.0, "+1.00")
    assert round_cosine(0.3, 100) == (0.0, "less than 0.3")
    assert round_cosine(-0.5, 100) == (pytest.approx(-0.6), "-0.30 to -0.90")
    assert round_cosine(0.512, 400, errors=1.0) == (pytest.approx(0.5), "+0.50")


def test_reprs_leave_the_seed_out():
    canaries = ag.DiracCanaries(present=3, absent=5, dimension=100, seed=987654321)
    recorder = ag.Recorder(canaries, sampling_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)
    recorder.sample()
    recorder.observe(np.ones(8), background=np.zeros(8))
    facts = recorder.transcript().facts
    facts = replace(facts, seed_probe=SeedProbe(tried=1, ways=("a",), found="key(987654321)"))
    assert facts.seed == 987654321
    for item in (canaries, facts):
        assert "987654321" not in repr(item)
    blocks = ag.BlockCanaries(count=10, tensors=(50, 50), block=4, seed=987654321)
    assert "987654321" not in repr(blocks)
