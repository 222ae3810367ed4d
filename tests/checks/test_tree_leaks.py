"""Trees that leak in one place, or whose noises have something in common, never end CONSISTENT."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

import askgauss as ag
from askgauss.checks.correlation import node_correlations
from askgauss.checks.tails import oddest_variance
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate.tree_pieces import released_nodes
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.linear_recorder import LinearRecorder
from askgauss.results import Status
from askgauss.simulation import simulate_dpftrl
from askgauss.simulation.simulated_runs import node_noise, run_tree

STEPS, COORDINATES = 128, 800
CLAIM = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)


def audited(change, *, seed=0, steps=STEPS, claim=CLAIM, **options):
    """An audit of a tree whose node noise goes through ``change(draw, tree, level, index)``."""
    canaries = ag.DiracCanaries(present=400, absent=400, dimension=COORDINATES, seed=seed)
    good = node_noise(seed, canaries.size)
    accounted = {name: options[name] for name in ("restart_every",) if name in options}
    sigma = TreePlan(steps=steps, **accounted).noise_multiplier(epsilon=4.0, delta=1e-5)
    plan = TreePlan(steps=steps, **options)
    transcript = run_tree(plan, canaries, lambda *node: change(good, *node), noise_multiplier=sigma)
    return ag.audit(transcript, claim=claim)


def failed(result):
    return {item.check for item in result.findings if item.status is Status.FAIL}


def scaled(factor, wanted):
    return lambda draw, *node: draw(*node) * (factor if wanted(*node) else 1.0)


def at_coordinates(factor, places):
    def change(draw, *node):
        noise = draw(*node).copy()
        noise[places] *= factor
        return noise

    return change


def mixed(weight, other):
    """Part of the noise of every leaf comes from another node."""

    def change(draw, number, level, index):
        if level or (number, *other(level, index)) == (number, level, index):
            return draw(number, level, index)
        rest = math.sqrt(1.0 - weight**2)
        return rest * draw(number, level, index) + weight * draw(number, *other(level, index))

    return change


def minus_the_sum(draw, number, level, index):
    if (level, index) != (0, STEPS - 1):
        return draw(number, level, index)
    return -sum(draw(number, 0, leaf) for leaf in range(STEPS - 1)) / math.sqrt(STEPS - 1)


def part_of_a_node(draw, number, level, index):
    noise = draw(number, level, index).copy()
    if (level, index) == (0, 50):
        noise[::10] = 0.0
    return noise


def laplace(draw, *node):
    share = special.ndtr(draw(*node))
    tail = np.log(2.0 * np.minimum(share, 1.0 - share))
    return np.where(share < 0.5, tail, -tail) / math.sqrt(2.0)


def copied_coordinates(draw, *node):
    noise = draw(*node).copy()
    noise[400:] = noise[:400]
    return noise


LEAKS = {
    "a leaf with a hundredth of its noise": (scaled(0.01, lambda *n: n == (0, 0, 77)), "by node"),
    "a leaf with a third of its noise": (scaled(0.33, lambda *n: n == (0, 0, 77)), "by node"),
    "an inner node with half of its noise": (scaled(0.5, lambda *n: n == (0, 3, 5)), "by node"),
    "the last leaf without noise": (scaled(0.0, lambda *n: n == (0, 0, 127)), "nodes without"),
    "a level with nine tenths": (scaled(0.9, lambda *n: n[1] == 0), "by level"),
    "nodes by turns": (
        lambda draw, *n: draw(*n) * (0.9 if n[2] % 2 else math.sqrt(1.19)),
        "by node",
    ),
    "a coordinate without noise": (at_coordinates(0.0, 13), "by coordinate"),
    "a tensor with eight tenths": (at_coordinates(0.8, slice(0, 200)), "by coordinate"),
    "a tenth of a leaf without noise": (part_of_a_node, "values without"),
    "a leaf has its parent's noise": (
        lambda draw, *n: draw(n[0], 1, n[2] >> 1) if n[1] == 0 else draw(*n),
        "repeated",
    ),
    "a fifth of the parent's noise": (mixed(0.2, lambda lv, i: (1, i >> 1)), "related"),
    "a sign is turned": (
        lambda draw, *n: -draw(0, 0, n[2] - 1) if n[1] == 0 and n[2] % 2 else draw(*n),
        "repeated",
    ),
    "leaves follow each other": (mixed(0.1, lambda lv, i: (0, max(i - 1, 0))), "related"),
    "the last noise takes all others off": (minus_the_sum, "related"),
    "one noise for two halves": (copied_coordinates, "shared"),
    "another law": (laplace, "shape"),
}


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_of_a_tree(name):
    change, check = LEAKS[name]
    result = audited(change)
    assert result.verdict in (ag.Verdict.VIOLATION, ag.Verdict.INVALID)
    assert any(check in item for item in failed(result)), failed(result)


def test_counters_that_overlap():
    """Each node takes the second half of the numbers of the one before it as its first."""
    plan, half = TreePlan(steps=512), COORDINATES // 2
    order = [node for step in range(plan.steps) for node in released_nodes(plan, step)]
    before = {**dict(zip(order[1:], order, strict=False)), order[0]: (1, 0, 0)}

    def overlapping(draw, *node):
        return np.concatenate([draw(*before[node])[:half], draw(*node)[:half]])

    result = audited(overlapping, steps=plan.steps)
    assert result.verdict is ag.Verdict.VIOLATION
    assert failed(result) == {"noise reused at other coordinates", "noise of related nodes"}


@pytest.mark.parametrize("share", [1.0, -1.0, 0.3])
def test_noise_after_a_restart(share):
    rest = math.sqrt(1.0 - share**2)

    def change(draw, number, level, index):
        fresh = draw(number, level, index)
        return fresh if number == 0 else share * draw(number - 1, level, index) + rest * fresh

    if abs(share) == 1.0:
        change = lambda draw, number, *node: share**number * draw(0, *node)  # noqa: E731
    result = audited(change, restart_every=32)
    assert result.verdict in (ag.Verdict.VIOLATION, ag.Verdict.INVALID)
    assert "noise after restarts" in failed(result)


@pytest.mark.parametrize(
    "options",
    [
        {"release": "prefixes", "estimator": "plain"},
        {"release": "prefixes", "estimator": "honaker"},
        {"release": "prefixes", "estimator": "full"},
        {"release": "prefixes", "restart_every": 24},
    ],
    ids=str,
)
def test_a_quiet_leaf_shows_in_prefixes(options):
    result = audited(scaled(0.01, lambda *n: n == (0, 0, 4)), steps=48, **options)
    assert "noise by node" in failed(result)
    assert result.verdict in (ag.Verdict.VIOLATION, ag.Verdict.INVALID)


def test_a_node_implies_what_its_records_leak():
    """By hand: seven nodes as they should be, and one with a hundredth of the noise."""
    result = audited(scaled(0.01, lambda *n: n == (0, 0, 77)))
    found = next(item for item in result.findings if item.check == "noise by node")
    sigma = TreePlan(steps=STEPS).noise_multiplier(epsilon=4.0, delta=1e-5)
    true = ag.gaussian.gdp_epsilon(1e-5, math.sqrt(7.0 + 1e4) / sigma)
    assert found.interval[0] < 0.01 * sigma < found.interval[1]
    said = float(found.summary.split("implies epsilon ")[1].split(" ")[0])
    assert 0.5 * true < said <= true
    assert "tree 0, level 0, index 77" in found.summary


def test_records_that_count_twice_are_seen():
    canaries = ag.DiracCanaries(present=200, absent=200, dimension=400, seed=0)
    plan = TreePlan(steps=16, release="prefixes", estimator="honaker")
    sigma = TreePlan(steps=16).noise_multiplier(epsilon=4.0, delta=1e-5)
    recorder = LinearRecorder(canaries, plan, noise_multiplier=sigma)
    noise = tree.TreeNoise(
        tree.numpy_draw(np.random.default_rng(1), 400), steps=16, estimator="honaker"
    )
    clean = np.zeros(400)
    for _ in range(16):
        canaries.plant(clean, recorder.sample(), clip_norm=2.0)
        recorder.observe(canaries.project(clean + sigma * noise.next()), background=np.zeros(400))
    result = ag.audit(recorder.transcript(), claim=CLAIM)
    assert {"contribution"} <= failed(result)
    found = next(item for item in result.findings if item.check == "contribution")
    assert found.interval[0] < 2.0 < found.interval[1]


def test_noise_is_asked_for_where_canaries_are():
    """A release that is noisy everywhere but where something was added to it."""
    canaries = ag.DiracCanaries(present=100, absent=200, dimension=300, seed=0)
    recorder = LinearRecorder(canaries, TreePlan(steps=1), noise_multiplier=1.0)
    row = np.random.default_rng(0).normal(size=300)
    row[recorder.sample()] = 1.0
    recorder.observe(row[None, :], background=np.zeros((1, 300)))
    result = ag.audit(recorder.transcript(), claim=CLAIM)
    assert "noise where planted" in failed(result)
    assert result.verdict is ag.Verdict.VIOLATION


def test_numbers_of_numpy_may_be_claimed():
    transcript = simulate_dpftrl(steps=64, noise_multiplier=1.0, present=50, absent=50, seed=0)
    claim = ag.PrivacyClaim(epsilon=np.float64(2.0), delta=np.float64(1e-5), steps=8)
    assert ag.audit(transcript, claim=claim).verdict is ag.Verdict.VIOLATION


# --- the statistics --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2.0, None])
@pytest.mark.parametrize("less", [False, True])
def test_the_oddest_variance_by_brute_force(scale, less):
    generator = np.random.default_rng(0)
    groups = [generator.normal(0.0, 2.0, size) for size in (5, 9, 30, 2)]
    square = np.array([(group**2).sum() for group in groups])
    freedom = np.array([float(group.size) for group in groups])
    p_values = []
    for index in range(4):
        if scale is not None:
            law, statistic = stats.chi2(freedom[index]), square[index] / scale**2
        else:
            rest = freedom.sum() - freedom[index]
            law = stats.f(freedom[index], rest)
            statistic = (square[index] / freedom[index]) / ((square.sum() - square[index]) / rest)
        below = law.cdf(statistic)
        p_values.append(below if less else 2.0 * min(below, law.sf(statistic)))
    worst, p_value = oddest_variance(square, freedom, scale, less=less)
    assert worst == int(np.argmin(p_values))
    assert p_value == pytest.approx(min(1.0, 4 * min(p_values)), rel=1e-9)


@pytest.mark.calibration
def test_ties_of_independent_nodes_are_uniform_enough():
    """1,000 trees without ties: each kind is below .01 in at most 26 (once in 100,000 seeds)."""
    template = simulate_dpftrl(steps=16, noise_multiplier=1.0, present=4, absent=40, seed=0)
    generator = np.random.default_rng(0)
    shape = template.kept_values.shape
    below: dict[str, int] = {}
    for _ in range(1000):
        pieces = replace(template.pieces, total=generator.normal(size=shape[0]))
        for tie in node_correlations(pieces, generator.normal(size=shape)):
            # Of sums over all coordinates, the worst distance speaks.
            kind = tie.between.split(",")[0]
            below[kind] = below.get(kind, 0) + (tie.p_value < 0.01)
    assert len(below) == 7
    assert max(below.values()) <= 26


@pytest.mark.calibration
def test_correct_trees_of_few_canaries_keep_the_gate_error():
    """102 audits at a gate error of .01: 8 alarms or more happen once in 20,000 seeds at most."""
    alarms = 0
    for seed in range(34):
        for present, absent in ((3, 2), (20, 40), (60, 60)):
            transcript = simulate_dpftrl(
                steps=16, noise_multiplier=8.0, present=present, absent=absent, seed=1000 + seed
            )
            claim = ag.PrivacyClaim(epsilon=8.0, delta=1e-5)
            alarms += bool(failed(ag.audit(transcript, claim=claim, gate_error=0.01)))
    assert alarms <= 7


def test_leaves_that_have_the_noise_of_the_one_before_shifted_by_one():
    """Where nodes are released it is found; prefixes hide it, and the result says so."""

    def shifted(draw, number, level, index):
        if level or not index % 2:
            return draw(number, level, index)
        return np.roll(draw(number, 0, index - 1), 1)

    result = audited(shifted)
    assert result.verdict is ag.Verdict.VIOLATION
    assert failed(result) == {"noise reused at other coordinates"}
    hidden = audited(shifted, release="prefixes", estimator="honaker")
    found = next(f for f in hidden.findings if f.check == "noise reused at other coordinates")
    assert found.status is Status.NOT_RUN
    assert "released nodes" in found.summary
