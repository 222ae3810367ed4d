"""Simulated DP-FTRL: the scores against explicit matrices, their law, the bounds, and faults."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import askgauss as ag
from askgauss.auditors import GaussianShift
from askgauss.exceptions import InvalidArgumentError, UnsupportedError
from askgauss.mechanisms import tree
from askgauss.mechanisms.decorrelate import released_nodes
from askgauss.mechanisms.matrix import MatrixMechanism
from askgauss.mechanisms.plans import TreePlan
from askgauss.simulation import simulate_dpftrl
from askgauss.simulation.simulated_runs import _prefix_noise, node_noise, run_tree
from askgauss.stats import gaussian

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)


# --- the score, against matrices written out ---

ESTIMATORS = ("plain", "honaker", "full")
TREES = [(None, False), (1, False), (3, False), (4, False), (6, False), (3, True), (5, True)]


def written_out(transcript, noise, noise_multiplier):
    """Score and information of every canary from the whole release at once."""
    plan, canaries = transcript.plan, transcript.member.size
    nodes = [node for step in range(plan.steps) for node in released_nodes(plan, step)]
    strategy = np.zeros((len(nodes), plan.steps))
    for row, (number, level, index) in enumerate(nodes):
        first = number * plan.period + (index << level)
        stop = min(first + (1 << level), (number + 1) * plan.period)
        strategy[row, first:stop] = 1.0
    entered = np.zeros((plan.steps, canaries))
    for canary, leaves in enumerate(transcript.leaves):
        entered[leaves, canary] += 1.0
    draws = noise_multiplier * np.array([noise(*node) for node in nodes])
    released = strategy @ (entered * transcript.member) + draws
    signal, covariance = strategy @ entered, np.eye(len(nodes))
    if plan.release == "prefixes":
        units = dict(zip(nodes, np.eye(len(nodes)), strict=True))
        decoder = np.array(list(_prefix_noise(plan, lambda *node: units[node])))
        np.testing.assert_allclose(decoder @ strategy, np.tri(plan.steps), atol=1e-9)
        released, signal, covariance = decoder @ released, decoder @ signal, decoder @ decoder.T
    weights = np.linalg.solve(covariance, signal)
    information = np.sqrt((weights * signal).sum(axis=0))
    return (weights * released).sum(axis=0) / information, information


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("release", ["nodes", "prefixes"])
def test_scores_are_the_matched_filter(release, estimator):
    for steps, (period, completion) in itertools.product((1, 2, 5, 8, 13), TREES):
        if estimator == "full" and completion:
            continue
        for participations in (1, 2):
            transcript = simulate_dpftrl(
                steps=steps,
                noise_multiplier=1.5,
                present=8,
                absent=9,
                seed=4,
                release=release,
                estimator=estimator,
                restart_every=period,
                completion=completion,
                participations=participations,
                min_separation=2,
            )
            score, information = written_out(transcript, node_noise(4, 17), 1.5)
            np.testing.assert_allclose(transcript.score, score, atol=1e-8)
            np.testing.assert_allclose(transcript.information, information, rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"release": "nodes"},
        {"release": "nodes", "restart_every": 3, "completion": True},
        *({"release": "prefixes", "estimator": estimator} for estimator in ESTIMATORS),
        *(
            {"release": "prefixes", "estimator": estimator, "restart_every": period}
            for estimator in ESTIMATORS
            for period in (3, 4)
        ),
        {"release": "prefixes", "restart_every": 4, "completion": True},
        {"release": "prefixes", "restart_every": 20, "completion": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [1, 8, 11])
def test_pieces_have_independent_noise_of_one_node(options, steps):
    """Every node draws in a canary of its own, so that pieces read as weights of the draws."""
    plan = TreePlan(steps=steps, **options)
    assert plan.independent
    canaries = ag.DiracCanaries(present=1, absent=32, dimension=33, seed=0)
    absent = np.flatnonzero(~canaries.member)
    columns = {}

    def noise(*node):
        drawn = np.zeros(33)
        drawn[absent[columns.setdefault(node, len(columns))]] = 1.0
        return drawn

    pieces = run_tree(plan, canaries, noise, noise_multiplier=1.0).kept_values
    assert len(columns) <= 32
    np.testing.assert_allclose(pieces @ pieces.T, np.eye(len(pieces)), atol=1e-12)


def test_filled_up_prefixes_are_not_taken_apart():
    plan = TreePlan(steps=8, restart_every=3, completion=True, release="prefixes")
    assert plan.fills_up
    assert not plan.independent
    # A tree that is never left is never filled up.
    assert not replace(plan, restart_every=8 + 1).fills_up


@pytest.mark.parametrize("estimator", [None, *ESTIMATORS])
@pytest.mark.parametrize("steps", [12, 128])
def test_information_is_that_of_the_matrix_mechanism(estimator, steps):
    mechanism = MatrixMechanism.tree(steps, estimator=estimator)
    transcript = simulate_dpftrl(
        steps=steps,
        noise_multiplier=1.0,
        present=400,
        absent=400,
        seed=0,
        release="nodes" if estimator is None else "prefixes",
        estimator=estimator or "plain",
    )
    information = mechanism.information()
    np.testing.assert_allclose(
        transcript.information, information[transcript.leaves[:, 0]], rtol=1e-9
    )
    assert transcript.largest_information == pytest.approx(information.max(), rel=1e-9)


@pytest.mark.parametrize(
    ("estimator", "lowest", "highest", "mean"),
    [("plain", 1.0, 2.828, 2.096), ("honaker", 1.725, 2.621, 2.471), ("full", 2.828, 2.828, 2.828)],
)
def test_known_information(estimator, lowest, highest, mean):
    """T = 128; the mean over 4,000 random leaves is within .05 of the mean over all."""
    found = simulate_dpftrl(
        steps=128,
        noise_multiplier=1.0,
        present=2000,
        absent=2000,
        seed=0,
        release="prefixes",
        estimator=estimator,
    ).information
    assert found.min() == pytest.approx(lowest, abs=1e-3)
    assert found.max() == pytest.approx(highest, abs=1e-3)
    assert found.mean() == pytest.approx(mean, abs=0.05)


def test_least_squares_prefixes_are_those_of_the_whole_tree():
    """Going down one path at a time gives what the passes over all nodes do."""
    for steps in (1, 6, 8, 11):
        noise = node_noise(0, 3)
        plan = TreePlan(steps=steps, estimator="full")
        streamed = np.array(list(_prefix_noise(plan, noise)))
        nodes = [
            np.array([noise(0, level, index) for index in range(steps >> level)])
            for level in range(tree.levels(steps))
        ]
        np.testing.assert_allclose(streamed, tree.prefixes(nodes, "full"), atol=1e-12)


def test_cosines_are_the_largest_over_the_run():
    steps, canaries = 11, ag.DiracCanaries(present=6, absent=7, dimension=13, seed=2)
    plan = TreePlan(steps=steps, estimator="honaker")
    noise = node_noise(5, 13)
    transcript = run_tree(plan, canaries, noise, noise_multiplier=0.7)
    leaves = np.zeros((steps, 13))
    leaves[transcript.leaves[:, 0], np.arange(13)] = canaries.member
    prefixes = np.cumsum(leaves, axis=0) + 0.7 * np.array(list(_prefix_noise(plan, noise)))
    changes = np.diff(prefixes, axis=0, prepend=0.0)
    for kind, vectors in (("cumulative", prefixes), ("round", changes)):
        cosines = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(transcript.cosines(kind).score, cosines.max(axis=0))


# --- the law of the scores ---

LAWS = [
    {"steps": 21},
    {"steps": 16, "release": "prefixes", "estimator": "plain"},
    {"steps": 21, "release": "prefixes", "estimator": "honaker"},
    {"steps": 8, "release": "prefixes", "estimator": "full"},
    {"steps": 10, "restart_every": 3, "completion": True},
    {"steps": 10, "release": "prefixes", "restart_every": 3, "completion": True},
    {"steps": 12, "participations": 3, "min_separation": 3},
]


@pytest.mark.parametrize("options", LAWS, ids=str)
def test_scores_have_exactly_their_law(options):
    """100,000 canaries against N(0, 1) and N(m_i / sigma, 1); fails for one seed in 700."""
    sigma = 1.7
    transcript = simulate_dpftrl(
        noise_multiplier=sigma, present=50_000, absent=50_000, seed=11, **options
    )
    standard = (transcript.score - transcript.member * transcript.information) / sigma
    for group in (standard[transcript.member], standard[~transcript.member]):
        assert stats.kstest(group, "norm").pvalue > 1e-4
    # Whatever the information: the noise of a score does not depend on it.
    order = np.argsort(transcript.information, kind="stable")
    for part in np.array_split(standard[order], 4):
        assert stats.kstest(part, "norm").pvalue > 1e-4
    # Pieces are scaled to the noise of one node.
    for level in np.unique(transcript.pieces.level):
        measured, count = transcript.measured_noise(transcript.pieces.level == level)
        independent = options.get("estimator") != "full" and level >= 0
        if independent:
            tail = stats.chi2.cdf(count * (measured / sigma) ** 2, count)
            assert 1e-4 < tail < 1 - 1e-4
        else:
            assert measured == pytest.approx(sigma, rel=0.02)


def test_scores_are_linear_in_the_noise():
    """What lets one run stand for every noise multiplier below."""
    options = {"steps": 13, "present": 20, "absent": 20, "seed": 8, "release": "prefixes"}
    one = simulate_dpftrl(noise_multiplier=1.0, **options)
    three = simulate_dpftrl(noise_multiplier=3.0, **options)
    np.testing.assert_allclose(three.score, rescaled(one, 3.0).score, atol=1e-10)


def rescaled(transcript, noise_multiplier):
    """The same run with another noise multiplier than one."""
    signal = transcript.member * transcript.information
    return replace(transcript, score=signal + noise_multiplier * (transcript.score - signal))


def sigma_of(epsilon, steps=128):
    return TreePlan(steps=steps).noise_multiplier(epsilon=epsilon, delta=DELTA)


def bound(data, auditor=None):
    return ag.audit(data, delta=DELTA, auditor=auditor, diagnostics=False).epsilon_lower


@pytest.mark.parametrize(
    ("release", "estimator", "promised"),
    [
        ("nodes", "plain", (0.78, 1.75, 3.70, 7.60)),
        ("prefixes", "plain", (0.70, 1.66, 3.60, 7.50)),
        ("prefixes", "honaker", (0.66, 1.55, 3.34, 6.88)),
    ],
)
def test_mean_bounds_are_as_tight_as_promised(release, estimator, promised):
    """T = 128, 2,500 present and as many absent canaries, 16 audits."""
    runs = [
        simulate_dpftrl(
            steps=128,
            noise_multiplier=1.0,
            present=2500,
            absent=2500,
            seed=seed,
            release=release,
            estimator=estimator,
        )
        for seed in range(16)
    ]
    for epsilon, least in zip(EPSILONS, promised, strict=True):
        bounds = [bound(rescaled(run, sigma_of(epsilon))) for run in runs]
        assert np.mean(bounds) >= least, epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bounds_are_above_the_largest_cosines(epsilon):
    """Above the same bound on cosines, and even above their estimate, which promises nothing."""
    run = simulate_dpftrl(
        steps=128, noise_multiplier=sigma_of(epsilon), present=2500, absent=2500, seed=0
    )
    ours = bound(run)
    for kind in ("cumulative", "round"):
        cosines = run.cosines(kind)
        present, absent = cosines.moments()
        estimate = gaussian.epsilon(
            DELTA,
            absent.mean,
            absent.standard_deviation,
            present.mean,
            present.standard_deviation,
        )
        assert ours > estimate
        assert ours > bound(cosines, GaussianShift())


def test_a_correct_run_is_consistent():
    for release in ("nodes", "prefixes"):
        run = simulate_dpftrl(
            steps=128,
            noise_multiplier=sigma_of(8.0),
            present=2500,
            absent=2500,
            seed=1,
            release=release,
        )
        result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA))
        assert result.verdict is ag.Verdict.CONSISTENT


def peak_memory(steps, canaries, estimator):
    tracemalloc.start()
    simulate_dpftrl(
        steps=steps,
        noise_multiplier=1.0,
        present=canaries // 2,
        absent=canaries // 2,
        seed=0,
        release="prefixes",
        estimator=estimator,
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_memory_grows_with_the_levels_of_the_tree_only(estimator, monkeypatch):
    """Four times the steps are two levels more: a few arrays, not another 192."""
    # Pairs of noise values that are compared at the end have a bound of their own.
    monkeypatch.setattr("askgauss.recording.noise_sample._MOST_PAIRS", 1 << 10)
    canaries = 3000
    few, many = (peak_memory(steps, canaries, estimator) for steps in (64, 256))
    kept = 2 * (256 - 64) * (256 + 44) * 8  # some canaries in full, and a few numbers a piece
    assert many - few < 2 * 8 * 8 * canaries + kept


# --- faults: what shows them ---


def faulty(plan, change, *, noise_multiplier, seed=0, present=1500, absent=1500, claimed=None):
    """A run whose node noise goes through ``change(noise, tree, level, index)``."""
    canaries = ag.DiracCanaries(
        present=present, absent=absent, dimension=present + absent, seed=seed
    )
    good = node_noise(seed, canaries.size)

    def noise(number, level, index):
        return change(good, number, level, index)

    return run_tree(plan, canaries, noise, noise_multiplier=noise_multiplier, claimed=claimed)


def unchanged(noise, number, level, index):
    return noise(number, level, index)


def reused_after_restart(noise, number, level, index):
    return noise(0, level, index)


def left_children_only(noise, number, level, index):
    drawn = noise(number, level, index)
    return drawn if index % 2 == 0 else np.zeros_like(drawn)


@pytest.mark.parametrize(
    ("release", "estimator"),
    [("nodes", "honaker"), ("prefixes", "honaker"), ("prefixes", "full")],
)
def test_noise_reused_after_a_restart_shows_between_the_trees(release, estimator):
    """The scores do not see it: each canary meets the noise of one tree only."""
    plan = TreePlan(steps=48, restart_every=16, release=release, estimator=estimator)
    sigma = TreePlan(steps=48, restart_every=16).noise_multiplier(epsilon=4.0, delta=DELTA)
    good = faulty(plan, unchanged, noise_multiplier=sigma)
    correlation, pairs = good.restart_correlation()
    assert abs(correlation) < 4.5 / math.sqrt(pairs)  # fails for 7 seeds in a million
    bad = faulty(plan, reused_after_restart, noise_multiplier=sigma)
    assert bad.restart_correlation()[0] == pytest.approx(1.0, abs=1e-9)
    assert bad.restart_correlation()[1] == pairs > 500
    assert bound(bad) < 4.0


def test_noise_for_left_children_only_shows_in_the_others():
    plan = TreePlan(steps=128)
    sigma = sigma_of(4.0)
    run = faulty(plan, left_children_only, noise_multiplier=sigma)
    odd = run.pieces.index % 2 == 1
    assert run.measured_noise(odd)[0] == 0.0
    left, count = run.measured_noise(~odd)
    assert left == pytest.approx(sigma, rel=4 / math.sqrt(count))
    # Every score was promised the noise of one node and has K / L of its variance.
    drawn = np.array([bin(127 - leaf).count("1") + 1 for leaf in run.leaves[:, 0]])
    for share in range(3, 8):
        noise = run.score[(drawn == share) & ~run.member]
        freedom = noise.size
        tail = stats.chi2.cdf((noise**2).sum() / (sigma**2 * share / 8), freedom)
        assert 1e-5 < tail < 1 - 1e-5
    assert bound(run) > 4.0
    good = faulty(plan, unchanged, noise_multiplier=sigma)
    assert good.measured_noise(good.pieces.index % 2 == 1)[0] == pytest.approx(sigma, rel=0.01)
    assert bound(good) < 4.0


def test_too_few_levels_show_in_noise_and_bound():
    """Noise for 4 levels where a record is in 8 nodes: half the variance it takes."""
    claimed = sigma_of(4.0)
    run = faulty(
        TreePlan(steps=128), unchanged, noise_multiplier=claimed * math.sqrt(4 / 8), claimed=claimed
    )
    measured, count = run.measured_noise()
    assert measured / run.facts.noise_multiplier == pytest.approx(
        math.sqrt(0.5), rel=4 / math.sqrt(2 * count)
    )
    result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=4.0, delta=DELTA))
    assert result.verdict is ag.Verdict.VIOLATION
    assert result.epsilon_lower > 5.0


def test_no_noise_is_an_unbounded_leak():
    run = simulate_dpftrl(steps=16, noise_multiplier=0.0, present=20, absent=20, seed=0)
    result = ag.audit(run, claim=ag.PrivacyClaim(epsilon=8.0, delta=DELTA))
    assert result.epsilon_lower == math.inf
    assert result.verdict is ag.Verdict.VIOLATION


# --- arguments ---


def test_the_seed_rules_everything():
    options = {"steps": 9, "noise_multiplier": 1.0, "present": 5, "absent": 6}
    one, again = (simulate_dpftrl(seed=3, **options) for _ in range(2))
    np.testing.assert_array_equal(one.score, again.score)
    other = simulate_dpftrl(seed=4, **options)
    assert not np.array_equal(one.leaves, other.leaves)
    assert not np.array_equal(one.score, other.score)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, InvalidArgumentError, "steps"),
        ({"noise_multiplier": -1.0}, InvalidArgumentError, "noise_multiplier"),
        ({"present": 0}, InvalidArgumentError, "present"),
        ({"absent": 1}, InvalidArgumentError, "absent"),
        ({"release": "gradients"}, InvalidArgumentError, "release"),
        ({"estimator": "magic"}, InvalidArgumentError, "estimator"),
        ({"completion": True}, InvalidArgumentError, "restart_every"),
        (
            {"steps": 5000, "release": "prefixes", "restart_every": 3, "completion": True},
            UnsupportedError,
            "Release nodes",
        ),
    ],
)
def test_arguments(options, error, message):
    settings = {"steps": 4, "noise_multiplier": 1.0, "present": 3, "absent": 3, "seed": 0}
    with pytest.raises(error, match=message):
        simulate_dpftrl(**{**settings, **options})
