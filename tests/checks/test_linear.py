"""Checks of tree mechanisms: three broken trees are named, correct ones are not accused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import askgauss as ag
from askgauss.mechanisms.plans import TreePlan
from askgauss.recording.linear_recorder import LinearRecorder, released_nodes
from askgauss.results import Status
from askgauss.simulation import simulate_dpftrl
from askgauss.simulation.simulated_runs import node_noise, run_tree

CLAIM = ag.PrivacyClaim(epsilon=4.0, delta=1e-5)


def run(plan, change, noise_multiplier, claimed=None, seed=0):
    """A tree whose node noise goes through ``change(draw, tree, level, index)``."""
    canaries = ag.DiracCanaries(present=400, absent=400, dimension=800, seed=seed)
    good = node_noise(seed, canaries.size)
    return run_tree(
        plan,
        canaries,
        lambda number, level, index: change(good, number, level, index),
        noise_multiplier=noise_multiplier,
        claimed=claimed,
    )


def failed(result):
    return {item.check for item in result.findings if item.status is Status.FAIL}


def test_noise_reused_after_a_restart_is_named():
    sigma = TreePlan(steps=48, restart_every=16).noise_multiplier(epsilon=4.0, delta=1e-5)
    plan = TreePlan(steps=48, restart_every=16)
    broken = ag.audit(run(plan, lambda draw, _, *node: draw(0, *node), sigma), claim=CLAIM)
    assert "noise after restarts" in failed(broken)
    assert broken.verdict is ag.Verdict.VIOLATION
    assert broken.epsilon_lower < 4.0  # the scores alone do not see it


@pytest.mark.parametrize(
    "options",
    [
        {"estimator": "full"},
        {"estimator": "full", "restart_every": 16},
        {"restart_every": 16, "completion": True},
        {"restart_every": 48, "completion": True, "estimator": "honaker"},
    ],
    ids=str,
)
def test_prefixes_show_too_little_noise(options):
    plan = TreePlan(steps=48, release="prefixes", **options)
    accounted = {name: options[name] for name in options if name != "estimator"}
    sigma = TreePlan(steps=48, **accounted).noise_multiplier(epsilon=4.0, delta=1e-5)
    broken = run(plan, lambda draw, *node: draw(*node), 0.8 * sigma, claimed=sigma)
    assert "noise scale" in failed(ag.audit(broken, claim=CLAIM))


def test_steps_are_compared_with_what_was_accounted_for():
    sigma = TreePlan(steps=32).noise_multiplier(epsilon=4.0, delta=1e-5)
    transcript = simulate_dpftrl(steps=128, noise_multiplier=sigma, present=100, absent=100, seed=0)

    def step_count(data, **claimed):
        claim = ag.PrivacyClaim(epsilon=4.0, delta=1e-5, **claimed)
        return next(i for i in ag.audit(data, claim=claim).findings if i.check == "step count")

    assert step_count(transcript).status is Status.PASS
    assert step_count(transcript, steps=128).status is Status.PASS
    more = step_count(transcript, steps=32)
    assert (more.status, more.measured, more.claimed) == (Status.FAIL, 128.0, 32.0)
    implied = TreePlan(steps=128).epsilon(noise_multiplier=sigma, delta=1e-5)
    assert f"implies epsilon {implied:.3g} where 4 is claimed" in more.summary
    # With twice the noise the claim holds all the same.
    assert step_count(transcript, steps=32, noise_multiplier=2 * sigma).status is Status.WARN


def test_a_run_that_stopped_early_says_so():
    canaries = ag.DiracCanaries(present=100, absent=100, dimension=200, seed=0)
    plan = TreePlan(steps=64)
    recorder = LinearRecorder(canaries, plan, noise_multiplier=3.0)
    generator = np.random.default_rng(0)
    for step in range(16):
        recorder.sample()
        shape = (len(released_nodes(plan, step)), 200)
        recorder.observe(generator.normal(0.0, 3.0, shape), background=np.zeros(shape))
    transcript = recorder.transcript()
    result = ag.audit(transcript, claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5))
    found = next(item for item in result.findings if item.check == "step count")
    never = int(np.count_nonzero(transcript.leaves >= 16))
    assert found.status is Status.WARN
    said = f"16 steps were recorded of 64 that were accounted for. {never} canaries"
    assert said in found.summary


def test_noise_for_left_children_only_is_named():
    sigma = TreePlan(steps=128).noise_multiplier(epsilon=4.0, delta=1e-5)

    def left_only(draw, number, level, index):
        drawn = draw(number, level, index)
        return drawn if index % 2 == 0 else np.zeros_like(drawn)

    broken = ag.audit(run(TreePlan(steps=128), left_only, sigma), claim=CLAIM)
    assert "nodes without noise" in failed(broken)
    assert broken.verdict is ag.Verdict.VIOLATION


def test_too_few_levels_are_named():
    claimed = TreePlan(steps=128).noise_multiplier(epsilon=4.0, delta=1e-5)
    broken = ag.audit(
        run(
            TreePlan(steps=128),
            lambda draw, *node: draw(*node),
            claimed * math.sqrt(4 / 8),
            claimed=claimed,
        ),
        claim=CLAIM,
    )
    assert "noise scale" in failed(broken)
    assert broken.verdict is ag.Verdict.VIOLATION


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"release": "prefixes", "estimator": "plain"},
        {"release": "prefixes", "estimator": "honaker"},
        {"release": "prefixes", "estimator": "full"},
        {"restart_every": 32},
        {"restart_every": 32, "completion": True},
        {"restart_every": 32, "completion": True, "release": "prefixes"},
        {"restart_every": 16, "release": "prefixes", "estimator": "full"},
    ],
    ids=str,
)
def test_correct_trees_are_not_accused(options):
    """Five runs each; a correct one fails with probability at most .0005."""
    for seed in range(5):
        result = ag.audit(
            simulate_dpftrl(
                steps=64, noise_multiplier=6.0, present=100, absent=100, seed=seed, **options
            ),
            claim=ag.PrivacyClaim(epsilon=8.0, delta=1e-5),
        )
        assert failed(result) == set()


def test_checks_that_cannot_be_made_say_what_they_need():
    result = ag.audit(
        simulate_dpftrl(steps=8, noise_multiplier=3.0, present=20, absent=20, seed=0), delta=1e-5
    )
    skipped = {i.check: i.summary for i in result.findings if i.status is Status.NOT_RUN}
    assert "needs a tree that is restarted" in skipped["noise after restarts"]
    options = {"restart_every": 3, "completion": True, "release": "prefixes"}
    result = ag.audit(
        simulate_dpftrl(steps=8, noise_multiplier=3.0, present=20, absent=40, seed=0, **options),
        delta=1e-5,
    )
    skipped = {i.check: i.summary for i in result.findings if i.status is Status.NOT_RUN}
    for check in ("repeated noise", "noise scale", "noise after restarts"):
        assert "trees that are not filled up" in skipped[check]
