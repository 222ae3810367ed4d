"""The JAX integration on runs of jax_privacy and optax as they are.

Correct runs end in VIOLATION or INVALID with probability at most .001 each; seeds are fixed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import buffered_toeplitz

import askgauss as ag
from askgauss.exceptions import (
    FileFormatError,
    InvalidArgumentError,
    PrivacyAlarm,
    RecordingError,
    UnsupportedError,
)
from askgauss.figures.run_figures import BoundByStep
from askgauss.integrations.jax import Audit, claim_of
from askgauss.monitor.feed import read_feed
from askgauss.sampling import CyclicPoisson, EveryStep, Poisson
from tests.integrations import jax_runs as runs

CALM = (ag.Verdict.CONSISTENT, ag.Verdict.INCONCLUSIVE)


def failed(result: ag.AuditResult) -> set[str]:
    return {item.check for item in result.findings if item.status.value == "fail"}


# --- DP-SGD -----------------------------------------------------------------------------------


def test_nothing_planted_changes_no_bit():
    quiet = runs.make(canaries=runs.canaries(present=0))
    plain, _ = runs.scanned(runs.gaussian())
    audited, _ = runs.scanned(quiet.wrap(runs.gaussian()))
    # Present, but with a rate at which nobody is ever drawn.
    unlucky = runs.make(sampling=Poisson(rate=1e-12))
    undrawn, _ = runs.scanned(unlucky.wrap(runs.gaussian()))
    for name in runs.SHAPES:
        assert np.array_equal(plain[name], audited[name])
        assert np.array_equal(plain[name], undrawn[name])


def test_a_planted_canary_adds_its_norm_and_nothing_else():
    audit = runs.make(clip_norm=0.5)
    plain, _ = runs.scanned(runs.gaussian())
    audited, state = runs.scanned(audit.wrap(runs.gaussian()))
    added = np.concatenate(
        [np.asarray(audited[name] - plain[name]).reshape(runs.STEPS, -1) for name in plain], axis=1
    )
    at_canaries = added[:, audit.canaries.coordinates]
    planted = np.abs(at_canaries) > 0.25
    assert np.allclose(at_canaries, 0.5 * planted, atol=1e-5)
    assert not planted[:, ~audit.canaries.member].any()
    rest = np.delete(added, audit.canaries.coordinates, axis=1)
    assert np.array_equal(rest, np.zeros_like(rest))
    recorded = audit.transcript(state).canaries.planted
    assert np.array_equal(recorded, planted.sum(axis=0))


def test_the_bound_is_close_and_the_run_is_cleared():
    audit = runs.make(seed=None)
    _, state = runs.scanned(audit.wrap(runs.gaussian()))
    result = audit.result(state, claim=runs.claim())
    assert result.verdict in CALM, result.reason
    assert not failed(result)
    assert 0.85 * result.claim.epsilon < result.epsilon_lower < 1.05 * result.claim.epsilon
    findings = {item.check: item for item in result.findings}
    assert findings["predictable noise"].status.value == "pass"
    assert "declared, not verified" in str(audit.transcript(state).facts.notes)


def test_jit_by_step_inside_a_chain_with_donation_gives_the_same():
    audit = runs.make()
    optimizer = optax.chain(audit.wrap(runs.gaussian()), optax.sgd(0.1))
    weights, updates = runs.params(), runs.gradient()
    state = optimizer.init(weights)

    def step(weights, state):
        change, state = optimizer.update(updates, state, weights)
        return optax.apply_updates(weights, change), state

    step = jax.jit(step, donate_argnums=(0, 1))
    for _ in range(20):
        old = state
        weights, state = step(weights, state)
    _, scanned = runs.scanned(runs.make().wrap(runs.gaussian()), 20)
    one, other = audit.transcript(state), audit.transcript(scanned)
    assert np.allclose(one.canaries.total, other.canaries.total, atol=1e-4)
    with pytest.raises(InvalidArgumentError, match="donated"):
        audit.transcript(old)


def test_half_the_noise_is_found():
    audit = runs.make()
    _, state = runs.scanned(audit.wrap(runs.gaussian(0.5 * runs.NOISE)))
    result = audit.result(state, claim=runs.claim())
    assert result.verdict is ag.Verdict.VIOLATION
    assert "noise scale" in failed(result)


def test_readings_are_drained_in_blocks():
    audit, whole = runs.make(buffer=8), runs.make()
    both = [item.wrap(runs.gaussian()) for item in (audit, whole)]
    states = [item.init(runs.params()) for item in both]
    steps = [jax.jit(item.update) for item in both]
    for number in range(1, 22):
        states = [
            step(runs.gradient(), state)[1] for step, state in zip(steps, states, strict=True)
        ]
        if number % 7 == 0:
            assert audit.drain(states[0]) == number
    assert states[0].readings.shape[0] == 8 + 1  # and the last one of the drain before
    one, other = (
        item.transcript(state) for item, state in zip((audit, whole), states, strict=True)
    )
    assert np.array_equal(one.canaries.total, other.canaries.total)
    for _ in range(9):
        states[0] = steps[0](runs.gradient(), states[0])[1]
    with pytest.raises(RecordingError, match="22 to 22"):
        audit.transcript(states[0])


def advanced(wrapped, state, count):
    """The state of an audited transformation so many steps later."""
    step = jax.jit(wrapped.update)
    for _ in range(count):
        state = step(runs.gradient(), state)[1]
    return state


@pytest.mark.parametrize("buffer", [None, 16])
def test_a_state_of_another_branch_is_refused(buffer):
    """Steps 11 to 15 are drained, given up, and taken again without noise."""
    audit = runs.make(buffer=buffer)
    good, quiet = (audit.wrap(runs.gaussian(noise)) for noise in (runs.NOISE, 1e-6))
    checkpoint = advanced(good, good.init(runs.params()), 10)
    audit.drain(checkpoint)
    drained = advanced(good, checkpoint, 5)
    audit.drain(drained)
    other = advanced(good, advanced(quiet, checkpoint, 5), 5)
    for ask in (audit.drain, audit.transcript):
        with pytest.raises(RecordingError, match="step 11"):
            ask(other)
    with pytest.raises(RecordingError, match="drained"):
        audit.drain(checkpoint)
    assert audit.transcript(advanced(good, drained, 5)).number_of_steps == 20


@pytest.mark.parametrize("steps", [4, 5])
def test_a_branch_is_noticed_where_drains_fall_exactly_every_buffer_steps(tmp_path, steps):
    """Steps 6 to 10 are drained, given up, and taken again with other noise."""
    audit = runs.make(buffer=5)
    one, other = (audit.wrap(runs.gaussian(key=key)) for key in (runs.KEY, runs.KEY + 1))
    checkpoint = advanced(one, one.init(runs.params()), 5)
    audit.drain(checkpoint)
    drained = advanced(one, checkpoint, 5)
    audit.drain(drained)
    audit.save(tmp_path / "audit.npz")
    # The noise of the other branch: a generator that nobody put back.
    parted = advanced(other, checkpoint._replace(inner=other.init(runs.params()).inner), 5 + steps)
    restored = runs.make(buffer=5)
    restored.load(tmp_path / "audit.npz")
    for asked in (audit, restored):
        with pytest.raises(RecordingError, match="another branch"):
            asked.drain(parted)
    restored.drain(advanced(one, drained, 5))


def test_a_state_of_an_earlier_version_goes_on():
    """It has a row less: steps are found where it put them."""
    audit, whole = (runs.make(buffer=4) for _ in range(2))
    wrapped = audit.wrap(runs.gaussian())
    step = jax.jit(wrapped.update)
    state = wrapped.init(runs.params())
    states = [state._replace(readings=state.readings[:4]), state]
    for _ in range(10):
        states = [step(runs.gradient(), item)[1] for item in states]
        for item, state in zip((audit, whole), states, strict=True):
            item.drain(state)
    one, other = (
        item.transcript(state) for item, state in zip((audit, whole), states, strict=True)
    )
    assert np.array_equal(one.canaries.total, other.canaries.total)


@pytest.mark.parametrize("monitor", [None, True])
def test_what_was_drained_survives_a_restart(tmp_path, monitor):
    def advanced(audit, state, last):
        update = jax.jit(audit.wrap(runs.gaussian()).update)
        while int(state.step) < last:
            state = update(runs.gradient(), state)[1]
            if int(state.step) % 4 == 0:
                audit.drain(state)
        return state

    def made():
        return runs.make(buffer=8, monitor=monitor)

    whole, first, lost, second = (made() for _ in range(4))
    begun = whole.wrap(runs.gaussian()).init(runs.params())
    state = advanced(first, begun, 20)
    first.save(tmp_path / "audit.npz")
    with pytest.raises(RecordingError, match=r"1 to 16 .*audit\.load"):
        advanced(lost, state, 40)
    second.load(tmp_path / "audit.npz")
    ended, unbroken = advanced(second, state, 40), advanced(whole, begun, 40)
    one, other = second.transcript(ended), whole.transcript(unbroken)
    assert one.facts == other.facts
    assert one.facts.run == first.transcript(state).facts.run
    for name, array in one.arrays().items():
        assert np.array_equal(array, other.arrays()[name], equal_nan=True), name
    if monitor:
        assert second.monitor.steps == whole.monitor.steps == 40
        assert second.monitor.alarm is None

    with pytest.raises(RecordingError, match="other canaries"):
        runs.make(buffer=8, monitor=monitor, steps=41).load(tmp_path / "audit.npz")
    with pytest.raises(RecordingError, match="monitor="):
        runs.make(buffer=8, monitor=None if monitor else True).load(tmp_path / "audit.npz")
    with pytest.raises(FileFormatError, match="drained"):
        made().load_state_dict({**first.state_dict(), "drained": np.zeros(3, np.float32)})


def stepwise(audit, noise, steps=40, every=4):
    """A run that drains every few steps, up to the alarm if one comes."""
    wrapped = audit.wrap(runs.gaussian(noise))
    state, step = wrapped.init(runs.params()), jax.jit(wrapped.update)
    for number in range(1, steps + 1):
        _, state = step(runs.gradient(), state)
        if number % every == 0:
            audit.drain(state)
    return state


def test_a_monitor_ends_the_run_at_the_drain_after_the_fault():
    audit = runs.make(buffer=8, monitor=ag.Monitor(claim=runs.claim()))
    with pytest.raises(PrivacyAlarm, match=r"Step 1: .*epsilon"):
        stepwise(audit, 0.8 * runs.NOISE)
    alarm = audit.monitor.alarm
    assert (alarm.cause, alarm.step) == ("noise", 1)
    assert alarm.epsilon > runs.claim().epsilon
    # The block was taken over before the alarm was raised.
    assert audit.monitor.steps == 4


def test_a_monitored_clean_run_goes_through_and_its_result_shows_the_course():
    """An alarm has probability .001 here."""
    claim = runs.claim(steps=42)
    audit, plain = runs.make(buffer=8, steps=42, monitor=True), runs.make(steps=42)
    state = stepwise(audit, runs.NOISE, steps=42)
    result = audit.result(state, claim=claim)
    assert audit.monitor.alarm is None
    # The steps after the last drain as well, and once however often one asks.
    assert audit.monitor.steps == 42
    audit.result(state, claim=claim)
    assert audit.monitor.steps == 42
    assert BoundByStep.from_result(result).feed.course.step[-1] == 42
    # At the planned end a watched run has the bound of one that nobody watched; at no other.
    unwatched = plain.result(stepwise(plain, runs.NOISE, steps=42), claim=claim)
    assert result.epsilon_lower == unwatched.epsilon_lower
    early = runs.make(buffer=8, steps=50, monitor=True)
    ended = early.result(stepwise(early, runs.NOISE, steps=42), claim=runs.claim(steps=50))
    assert ended.epsilon_lower < result.epsilon_lower


def test_followers_are_told_of_the_end_when_it_has_come(tmp_path):
    """An alarm has probability .001 here."""

    def told() -> str:
        return read_feed(tmp_path).status

    audit = runs.make(steps=12, monitor=ag.Monitor(claim=runs.claim(), folder=tmp_path))
    wrapped = audit.wrap(runs.gaussian())
    state, step = wrapped.init(runs.params()), jax.jit(wrapped.update)
    for _ in range(8):
        _, state = step(runs.gradient(), state)
    half = audit.result(state, claim=runs.claim())
    assert not (tmp_path / "watch.json").exists() or told() == "running"
    assert half.watched.status == "running"
    for _ in range(4):
        _, state = step(runs.gradient(), state)
    whole = audit.result(state, claim=runs.claim())
    assert told() == whole.watched.status == "finished"


def test_an_alarm_in_steps_never_drained_is_in_the_result():
    audit = runs.make(monitor=True)
    _, state = runs.scanned(audit.wrap(runs.gaussian(0.8 * runs.NOISE)))
    result = audit.result(state, claim=runs.claim())
    assert "Step 1: noise" in next(x.summary for x in result.findings if x.check == "monitor")


def test_a_monitor_needs_noise_of_its_own_in_every_step():
    with pytest.raises(UnsupportedError, match="strategy="):
        runs.make(sampling=EveryStep(), strategy=[1.0, 0.5], monitor=True)


def test_a_longer_run_says_what_it_did_not_see():
    audit = runs.make(steps=30)
    released, state = runs.scanned(audit.wrap(runs.gaussian()), 50)
    plain, _ = runs.scanned(runs.gaussian(), 50)
    assert np.array_equal(released["weight"][30:], plain["weight"][30:])
    recorded = audit.transcript(state)
    assert recorded.number_of_steps == 30
    assert recorded.facts.skipped_steps == 20


# --- seeds ------------------------------------------------------------------------------------


def test_a_predictable_key_of_jax_privacy_is_found():
    audit = runs.make()
    _, state = runs.scanned(audit.wrap(runs.gaussian(key=42)), 20)
    result = audit.result(state, claim=runs.claim(steps=20))
    assert result.verdict is ag.Verdict.VIOLATION
    assert failed(result) == {"predictable noise"}
    assert "common seeds of jax.random.key, as jax_privacy's" in result.reason
    assert "jax.random.key(42)" in audit.transcript(state).facts.seed_probe.found
    assert "key(42)" not in result.to_json()


def in_loop(key_of):
    """Noise that a loop draws from the key of a step and a leaf."""

    def update(updates, step, params=None):
        leaves, tree = jax.tree.flatten(updates)
        noisy = [
            leaf + runs.NOISE * jax.random.normal(key_of(step, index, len(leaves)), leaf.shape)
            for index, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(tree, noisy), step + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


@pytest.mark.parametrize(
    "key_of",
    [
        lambda key, step, index, count: jax.random.split(jax.random.fold_in(key, step), count)[
            index
        ],
        lambda key, step, index, count: jax.random.fold_in(jax.random.fold_in(key, step), index),
        lambda key, step, index, count: jax.random.fold_in(
            jax.random.fold_in(jax.random.split(key)[1], step), index
        ),
    ],
    ids=["folded and split", "folded twice", "split before"],
)
@pytest.mark.parametrize("root", [7, runs.KEY])
def test_keys_of_loops_are_tried(root, key_of):
    audit = runs.make()
    noise = in_loop(functools.partial(key_of, jax.random.PRNGKey(root)))
    _, state = runs.scanned(audit.wrap(noise), 20)
    result = audit.result(state, claim=runs.claim(steps=20))
    assert failed(result) == ({"predictable noise"} if root == 7 else set())


# --- noise used again -------------------------------------------------------------------------

SECRET = jax.random.key(runs.KEY)


@pytest.mark.parametrize(
    "key_of",
    [
        lambda step, index, count: jax.random.fold_in(SECRET, step + index),
        lambda step, index, count: jax.random.fold_in(SECRET, step),
    ],
    ids=["step plus leaf", "one key for all tensors"],
)
def test_noise_of_another_tensor_is_found(key_of):
    audit = runs.make(steps=40)
    _, state = runs.scanned(audit.wrap(in_loop(key_of)), 40)
    result = audit.result(state, claim=runs.claim(steps=40))
    assert result.verdict is ag.Verdict.VIOLATION
    assert "noise reused at other coordinates" in result.reason


@pytest.mark.parametrize(
    "change", [lambda last: -last[::-1], lambda last: jnp.roll(last, 1)], ids=["reversed", "rolled"]
)
def test_noise_of_the_last_step_is_found(change):
    def init(params):
        return jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None):
        step, last = state

        def drawn(index, leaf):
            key = jax.random.fold_in(jax.random.fold_in(SECRET, step), index)
            fresh = jax.random.normal(key, leaf.shape)
            return jnp.where(step % 2 == 0, fresh, change(leaf.reshape(-1)).reshape(leaf.shape))

        leaves, tree = jax.tree.flatten(last)
        noise = jax.tree.unflatten(tree, [drawn(*item) for item in enumerate(leaves)])
        noisy = jax.tree.map(lambda leaf, more: leaf + runs.NOISE * more, updates, noise)
        return noisy, (step + 1, noise)

    audit = runs.make(steps=40)
    _, state = runs.scanned(audit.wrap(optax.GradientTransformation(init, update)), 40)
    result = audit.result(state, claim=runs.claim(steps=40))
    assert failed(result) == {"noise reused at other coordinates"}
    freshness = next(item for item in result.findings if item.check in failed(result))
    assert "in step 2 in" in freshness.summary


def test_noise_in_a_short_format_is_named_for_that_and_not_as_used_again():
    """Parameters are float32; the sum that is handed over, and so the noise, is not."""
    audit = runs.make()
    short = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), runs.gradient())
    _, state = runs.scanned(audit.wrap(runs.gaussian()), updates=short)
    result = audit.result(state, claim=runs.claim())
    assert audit.transcript(state).facts.reuse.kept == 0
    assert "noise precision" in failed(result)
    assert "noise reused at other coordinates" not in failed(result)


def test_a_state_that_has_no_room_keeps_no_noise_sample():
    audit = runs.make(steps=90_000)
    assert audit._sampled is None


@pytest.mark.parametrize("key", [None, runs.KEY])
def test_optax_without_a_key_is_found(key):
    audit = runs.make(canaries=runs.canaries(present=160, absent=400))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        aggregate = optax.contrib.differentially_private_aggregate(1.0, runs.NOISE, key=key)
    batch = {
        name: jax.random.normal(jax.random.key(1), (6, *shape))
        for name, shape in runs.SHAPES.items()
    }
    released, state = runs.scanned(audit.wrap(aggregate), 60, batch)
    result = audit.result(state, claim=runs.claim(steps=60))
    if key is None:
        assert failed(result) == {"predictable noise"}
        assert "jax.random.key, as optax's differentially_private_aggregate" in result.reason
    else:
        assert result.verdict in CALM, result.reason
    assert {part.name: part.status for part in result.scope}["clipping"] == "fine"
    # A mean over the user's own examples, however many canaries came with them.
    clipped, _ = optax.per_example_global_norm_clip(jax.tree.leaves(batch), 1.0)
    measured = np.mean([np.asarray(part) for part in released["weight"]], axis=0)
    off = measured - np.asarray(clipped[1]) / 6
    assert abs(float(off.mean())) < 0.02
    assert float(np.std(np.asarray(released["weight"]))) == pytest.approx(runs.NOISE / 6, rel=0.05)


# --- clipping ---------------------------------------------------------------------------------


def loss(weights, features, target):
    prediction = features @ weights["weight"].sum(axis=1) + weights["bias"].sum()
    return jnp.mean((prediction - target) ** 2)


@pytest.mark.parametrize("clip_norm", [1.0, 3.0])
def test_canaries_go_through_the_users_clipping(clip_norm):
    audit = runs.make(canaries=runs.canaries(present=60))
    clipped_grad = jax_privacy.clipped_grad(
        audit.loss(loss), l2_clip_norm=clip_norm, batch_argnums=(1, 2), return_values=True
    )
    transformation = audit.wrap(runs.gaussian(), clipped_grad=clipped_grad)
    features, target = jnp.ones((5, 60)) / 8, jnp.arange(5.0)

    def step(state, _):
        total, _ = clipped_grad(runs.params(), features, target)
        # The names that jax_privacy's own loops use.
        _, state = transformation.update(sum_of_clipped_grads=total, noise_state=state)
        return state, None

    state, _ = jax.lax.scan(step, transformation.init(runs.params()), None, length=runs.STEPS)
    result = audit.result(state, claim=runs.claim())
    parts = {part.name: part.status for part in result.scope}
    if clip_norm == 1.0:
        assert result.verdict in CALM, result.reason
        assert parts["clipping"] == "fine"
    else:
        assert "contribution" in failed(result)
        assert result.verdict is ag.Verdict.VIOLATION
        assert parts["clipping"] == "broken"


def test_a_loss_of_records_stays_as_it_was():
    audit = runs.make()
    features, target = jnp.ones((5, 60)), jnp.arange(5.0)
    own = audit.loss(loss)
    assert float(own(runs.params(), features, target)) == float(
        loss(runs.params(), features, target)
    )


def test_clipping_that_does_not_know_canaries_is_refused():
    audit = runs.make()
    with pytest.raises(InvalidArgumentError, match="loss"):
        audit.wrap(runs.gaussian(), clipped_grad=lambda *_: None)
    audit.loss(loss)
    stranger = audit.wrap(runs.gaussian(), clipped_grad=lambda weights, *_, **__: weights)
    with pytest.raises(InvalidArgumentError, match="clipped_grad"):
        stranger.update(runs.gradient(), stranger.init(runs.params()))
    blocks = ag.BlockCanaries(present=9, absent=9, tensors=runs.SIZES, block=4, seed=0)
    with pytest.raises(UnsupportedError, match="DiracCanaries"):
        runs.make(canaries=blocks).loss(loss)


# --- matrix mechanisms ------------------------------------------------------------------------


def config(**changes) -> BandMFExecutionPlanConfig:
    settings = {
        "iterations": 160,
        "strategy": np.array([1.0, 0.5, 0.3, 0.2]),
        "epsilon": 8.0,
        "delta": 1e-5,
        "sampling_prob": 0.3,
        "l2_clip_norm": 0.7,
        "rescale_to_unit_norm": False,
        "noise_seed": runs.KEY,
    }
    return BandMFExecutionPlanConfig(**(settings | changes))


@pytest.mark.parametrize("bands", [1, 4])
def test_a_plan_says_everything(bands):
    plan = config(strategy=np.array([1.0, 0.5, 0.3, 0.2])[:bands])
    audit = Audit.from_plan(runs.params(), plan, canaries=runs.canaries())
    transformation = audit.wrap(plan.plan.noise_addition_transform)
    _, state = runs.scanned(transformation, plan.iterations)
    claim = claim_of(plan.plan.dp_event, 1e-5)
    assert claim.epsilon == pytest.approx(8.0, rel=0.01)
    assert claim.steps == 160 // bands
    result = audit.result(state, claim=claim)
    assert result.verdict in CALM, result.reason
    assert not failed(result)
    assert 0.8 * claim.epsilon < result.epsilon_lower < 1.05 * claim.epsilon
    recorded = audit.transcript(state)
    assert recorded.number_of_steps + recorded.facts.skipped_steps == claim.steps


def test_normalised_columns_with_a_strategy_of_norm_below_one_are_found():
    small = np.array([1.0, 0.5, 0.3, 0.2])
    plan = config(strategy=0.8 * small / np.linalg.norm(small), column_normalize=True)
    audit = Audit.from_plan(runs.params(), plan, canaries=runs.canaries())
    _, state = runs.scanned(audit.wrap(plan.plan.noise_addition_transform), plan.iterations)
    result = audit.result(state, claim=claim_of(plan.plan.dp_event, 1e-5))
    assert result.verdict is ag.Verdict.VIOLATION
    scale = next(item for item in result.findings if item.check == "noise scale")
    assert scale.status.value == "fail"
    assert scale.measured / scale.claimed == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("kind", ["buffered, once", "buffered, many times", "dense"])
def test_strategies_without_sampling(kind):
    steps = 80
    cycle = 20 if kind == "buffered, many times" else steps
    if kind == "dense":
        random = np.random.default_rng(0).uniform(0.0, 0.1, (steps, steps))
        strategy = np.tril(random) + np.eye(steps)
        matrix = jnp.asarray(np.linalg.inv(strategy))
    else:
        strategy = buffered_toeplitz.BufferedToeplitz(
            buf_decay=jnp.array([0.9, 0.5]), output_scale=jnp.array([0.2, 0.3])
        )
        matrix = strategy.inverse_as_streaming_matrix()
    entered = np.zeros((steps, cycle))
    for first in range(cycle):
        entered[first::cycle, first] = 1.0
    full = strategy if kind == "dense" else np.asarray(strategy.materialize(steps))
    sensitivity = np.linalg.norm(full @ entered, axis=0).max()
    audit = runs.make(
        sampling=CyclicPoisson(rate=1.0, cycle=cycle),
        strategy=strategy,
        steps=steps,
        noise_multiplier=0.8,
        clip_norm=1.5,
        # One number a canary: the bound is as sharp as they are many.
        canaries=runs.canaries(present=600, absent=600),
    )
    noise = jax_privacy.noise_addition.matrix_factorization_privatizer(
        matrix, stddev=0.8 * 1.5 * sensitivity, prng_key=runs.KEY
    )
    _, state = runs.scanned(audit.wrap(noise), steps)
    epsilon = float(ag.gaussian.epsilon(1e-5, 0.0, 0.8, 1.0, 0.8))
    result = audit.result(state, claim=ag.PrivacyClaim(epsilon=epsilon, delta=1e-5))
    assert result.verdict in CALM, result.reason
    assert not failed(result)
    assert 0.8 * epsilon < result.epsilon_lower < 1.05 * epsilon


def test_correlated_noise_that_is_not_as_declared_is_noticed():
    audit = runs.make(sampling=CyclicPoisson(rate=0.3, cycle=4), strategy=[1.0, 0.9, 0.8])
    _, state = runs.scanned(audit.wrap(runs.gaussian(runs.NOISE * np.sqrt(2.45))))
    result = audit.result(state, claim=runs.claim(rate=0.3, steps=30))
    assert result.verdict in (ag.Verdict.INVALID, ag.Verdict.VIOLATION)


def test_full_batches():
    audit = runs.make(sampling=EveryStep(), noise_multiplier=8.0)
    _, state = runs.scanned(audit.wrap(runs.gaussian(8.0)))
    epsilon = float(ag.gaussian.epsilon(1e-5, 0.0, 8.0, np.sqrt(runs.STEPS), 8.0))
    result = audit.result(state, claim=ag.PrivacyClaim(epsilon=epsilon, delta=1e-5))
    assert result.verdict in CALM, result.reason
    assert 0.8 * epsilon < result.epsilon_lower < 1.05 * epsilon


# --- several devices --------------------------------------------------------------------------


def test_arrays_spread_over_devices():
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.jax_sharded"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "same on 2 devices" in done.stdout


# --- what is refused --------------------------------------------------------------------------


def test_steps_without_the_wrapped_transformation_are_counted_where_they_are_said():
    audit = runs.make()
    _, state = runs.scanned(audit.wrap(runs.gaussian()), 20)
    facts = audit.transcript(state, unseen_steps=5).facts
    assert facts.skipped_steps == 5
    assert "5 of 25 steps were taken without the audit." in facts.notes
    assert audit.transcript(state).facts.skipped_steps == 0
    with pytest.raises(InvalidArgumentError, match="unseen_steps"):
        audit.transcript(state, unseen_steps=-1)


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"weight": jnp.zeros((60, 41)), "bias": jnp.zeros(60)}, r"weight was \(60, 40\)"),
        ({"weight": jnp.zeros((60, 40))}, "it had 2 leaves"),
    ],
)
def test_a_tree_that_changes_is_refused(tree, match):
    transformation = runs.make().wrap(runs.gaussian())
    state = transformation.init(runs.params())
    with pytest.raises(InvalidArgumentError, match=match):
        jax.jit(transformation.update)(tree, state)


def test_bad_arguments_are_refused_with_a_next_step():
    with pytest.raises(InvalidArgumentError, match="int32 in step"):
        Audit({"step": jnp.zeros(3, jnp.int32), "w": jnp.zeros(99)}, sampling=Poisson(rate=0.1))
    with pytest.raises(InvalidArgumentError, match="fewer canaries"):
        Audit({"w": jnp.zeros(9)}, sampling=Poisson(rate=0.1), canaries=100)
    with pytest.raises(InvalidArgumentError, match="sampling"):
        Audit({"w": jnp.zeros(9)}, sampling=0.1)
    with pytest.raises(InvalidArgumentError, match="Wrap"):
        runs.make().wrap(optax.apply_updates)
    with pytest.raises(InvalidArgumentError, match="buffer="):
        runs.make(steps=10**6)
    with pytest.raises(UnsupportedError, match="bands"):
        runs.make(sampling=CyclicPoisson(rate=0.5, cycle=2), strategy=[1.0, 0.5, 0.2])


def test_states_that_are_not_the_runs_are_refused():
    audit = runs.make()
    transformation = audit.wrap(runs.gaussian())
    state = transformation.init(runs.params())
    with pytest.raises(RecordingError, match=r"steps.*got 0"):
        audit.result(state, delta=1e-5)
    with pytest.raises(InvalidArgumentError, match="init"):
        transformation.update(runs.gradient(), runs.gaussian().init(runs.params()))
    with pytest.raises(InvalidArgumentError, match=r"transformation.*got 0"):
        audit.result({"step": 1}, delta=1e-5)
    with pytest.raises(RecordingError, match="other canaries"):
        runs.make(canaries=runs.canaries(seed=4)).transcript(state)

    def leaking(state):
        audit.transcript(transformation.update(runs.gradient(), state)[1])

    with pytest.raises(InvalidArgumentError, match="being traced"):
        jax.jit(leaking)(state)


def test_a_plan_that_does_not_say_its_strategy_is_refused():
    with pytest.raises(InvalidArgumentError, match="BandMFExecutionPlanConfig"):
        Audit.from_plan(runs.params(), config().plan)
    with pytest.raises(InvalidArgumentError, match="execution plan"):
        Audit.from_plan(runs.params(), object())


def test_a_state_survives_its_process(tmp_path):
    audit = runs.make()
    transformation = audit.wrap(runs.gaussian())
    _, state = runs.scanned(transformation, 20)
    saved = [np.asarray(part) for part in (state.step, state.readings, state.planted, state.tag)]
    np.savez(tmp_path / "state.npz", *saved)
    with np.load(tmp_path / "state.npz") as file:
        step, readings, planted, tag = (file[name] for name in file.files)
    again = state._replace(step=step, readings=readings, planted=planted, tag=tag)
    one, other = audit.transcript(state), runs.make().transcript(again)
    assert np.array_equal(one.canaries.total, other.canaries.total)


def test_jax_missing_names_the_extra():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from askgauss.exceptions import MissingExtraError\n"
        "try:\n    import askgauss.integrations.jax\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert "askgauss[jax]" in done.stdout


def divided(inner, sizes, *, before=False):
    """A transformation that also divides by the size of the batch, times the expected size."""

    def init(given):
        return inner.init(given), jnp.zeros((), jnp.int32)

    def update(updates, state, params=None):
        inner_state, step = state
        factor = sizes.mean() / sizes[step]
        if before:
            updates = jax.tree.map(lambda leaf: leaf * factor, updates)
        released, inner_state = inner.update(updates, inner_state, params)
        if not before:
            released = jax.tree.map(lambda leaf: leaf * factor, released)
        return released, (inner_state, step + 1)

    return optax.GradientTransformation(init, update)


def batch_sizes(seed):
    drawn = np.random.default_rng(seed).binomial(320, runs.RATE, runs.STEPS)
    return jnp.asarray(drawn, dtype=jnp.float32)


@pytest.mark.parametrize("before", [False, True], ids=["after noise", "before noise"])
def test_a_division_by_the_size_of_the_batch_inside_the_transformation_is_named(before):
    for seed in (1, 2):
        audit = runs.make()
        wrapped = audit.wrap(divided(runs.gaussian(), batch_sizes(seed), before=before))
        result = audit.result(runs.scanned(wrapped)[1], claim=runs.claim())
        assert result.verdict in (ag.Verdict.INVALID, ag.Verdict.VIOLATION)
        assert result.reason.startswith("divisor by step")


def test_a_division_behind_the_transformation_is_not_tested_and_said_not_to_be():
    audit = runs.make()
    behind = divided(audit.wrap(runs.gaussian()), batch_sizes(1))
    result = audit.result(runs.scanned(behind)[1], claim=runs.claim())
    assert "divisor by step" not in failed(result)
    part = next(item for item in result.scope if item.name == "weights")
    assert part.status == "not tested"
    assert "division by the size of the batch" in part.how_to_test
    for output in (result.to_json(), result.to_html(), result.to_junit()):
        assert "such as a division by the size of the batch" in output
