"""Records as canaries in a JAX run: its own sampler, loss and clipping are what is audited.

Correct runs end in VIOLATION or INVALID with probability at most .001 each; seeds are fixed.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jax_privacy = pytest.importorskip("jax_privacy")

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax_privacy import batch_selection  # noqa: E402

import askgauss as ag  # noqa: E402
from askgauss.accounting import dpsgd_epsilon  # noqa: E402
from askgauss.canaries import ExampleCanaries  # noqa: E402
from askgauss.exceptions import (  # noqa: E402
    InvalidArgumentError,
    RecordingError,
    UnsupportedError,
)
from askgauss.integrations.jax import ExampleAudit  # noqa: E402
from askgauss.sampling import Poisson  # noqa: E402

FEATURES, CLASSES, RECORDS, RATE, NOISE, STEPS = 16, 4, 200, 0.2, 1.5, 60
KEY = 1_871_236_554
CALM = (ag.Verdict.CONSISTENT, ag.Verdict.INCONCLUSIVE)


def params():
    generator = np.random.default_rng(3)
    return {
        "first": jnp.asarray(generator.normal(0, 0.2, (FEATURES, 12)), jnp.float32),
        "second": jnp.asarray(generator.normal(0, 0.2, (12, CLASSES)), jnp.float32),
    }


def loss(weights, inputs, labels):
    logits = jnp.tanh(inputs @ weights["first"]) @ weights["second"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def clipping(clip_norm=1.0, **options):
    return jax_privacy.clipped_grad(loss, l2_clip_norm=clip_norm, batch_argnums=(1, 2), **options)


def examples(present=24, absent=24, seed=5, spread=2.0):
    generator = np.random.default_rng(seed)
    inputs = spread * generator.normal(size=(present + absent, FEATURES))
    return ExampleCanaries(
        inputs.astype(np.float32),
        generator.integers(CLASSES, size=present + absent),
        present=present,
        absent=absent,
        seed=seed,
    )


@functools.cache
def training_set(canaries):
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return canaries.joined(inputs, generator.integers(CLASSES, size=RECORDS))


def make(own, **changes):
    settings = {
        "canaries": own,
        "clipped_grad": clipping(),
        "sampling": Poisson(rate=RATE),
        "records": len(training_set(own)[0]),
        "noise_multiplier": NOISE,
        "steps": STEPS,
    }
    return ExampleAudit(params(), **(settings | changes))


def train(audit, *, noise=NOISE, clipped_grad=None, rate=RATE, steps=STEPS, drained=None):
    """An ordinary loop of jax_privacy; gives batches, weights and releases of every step too."""
    inputs, labels = training_set(audit.canaries)
    clipped_grad = clipped_grad or clipping()
    plain = jax_privacy.noise_addition.gaussian_privatizer(stddev=noise, prng_key=KEY)
    privatizer = audit.wrap(plain)

    @jax.jit
    def step(weights, state, batch):
        total = clipped_grad(weights, inputs[batch], labels[batch], is_padding_example=batch < 0)
        noisy, state = privatizer.update(total, state, weights, batch=batch)
        change = jax.tree.map(lambda weight, more: weight - 0.002 * more, weights, noisy)
        return change, state, noisy

    inputs, labels = jnp.asarray(inputs), jnp.asarray(labels)
    weights, state, seen = params(), privatizer.init(params()), []
    strategy = batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=steps)
    for indices in strategy.batch_iterator(len(inputs), rng=np.random.default_rng(8)):
        batch = batch_selection.pad_to_multiple_of(indices, 96)
        after, state, noisy = step(weights, state, batch)
        seen.append((indices, weights, noisy))
        weights = after
        if drained is not None and len(seen) % drained == 0:
            audit.drain(state)
    return state, seen


def claim():
    epsilon = dpsgd_epsilon(noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS, delta=1e-5)
    return ag.PrivacyClaim(
        epsilon=epsilon, delta=1e-5, noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS
    )


def failed(result):
    return {item.check for item in result.findings if item.status.value == "fail"}


@functools.cache
def correct():
    audit = make(examples())
    state, seen = train(audit)
    return audit, state, seen


def test_a_correct_run_is_cleared_and_everything_was_exercised():
    audit, state, _ = correct()
    result = audit.result(state, claim=claim())
    assert result.verdict in CALM, result.reason
    assert not failed(result)
    assert 0.1 * claim().epsilon < result.epsilon_lower < 1.05 * claim().epsilon
    parts = {part.name: part.status for part in result.scope}
    assert parts["sampler"] == parts["noise scale"] == "fine"
    assert "broken" not in parts.values()
    exercised = audit.transcript(state).facts.exercised
    assert {"sampler", "per-sample gradient", "clipping", "noise"} <= set(exercised)


def test_readings_are_those_of_the_definition():
    """One canary and one backward pass at a time."""
    audit, state, seen = correct()
    canaries, recorded = audit.canaries, audit.transcript(state)
    present = np.flatnonzero(canaries.member)
    planted = np.zeros(canaries.size)
    for indices, _, _ in seen:
        planted[present[indices[indices >= RECORDS] - RECORDS]] += 1
    assert np.array_equal(recorded.canaries.planted, planted)
    for step in (0, 7, STEPS - 1):
        _, weights, noisy = seen[step]
        released = np.concatenate([np.ravel(noisy[name]) for name in sorted(noisy)])
        for place, index in enumerate(recorded.kept[:6]):
            gradient = jax.grad(loss)(
                weights, canaries.inputs[index : index + 1], canaries.labels[index : index + 1]
            )
            own = np.concatenate([np.ravel(gradient[name]) for name in sorted(gradient)])
            along = float(own @ released) / np.linalg.norm(own)
            assert recorded.kept_values[step, place] == pytest.approx(along, abs=1e-4)
    # The noise is read by itself as well, and is what was claimed: 240 * 60 numbers.
    assert np.std(recorded.watch_values) == pytest.approx(NOISE, rel=0.04)


def test_the_training_is_left_alone():
    _, _, seen = correct()
    plain = jax_privacy.noise_addition.gaussian_privatizer(stddev=NOISE, prng_key=KEY)
    inputs, labels = training_set(correct()[0].canaries)
    batch = batch_selection.pad_to_multiple_of(seen[0][0], 96)
    total = clipping()(params(), inputs[batch], labels[batch], is_padding_example=batch < 0)
    noisy, _ = jax.jit(plain.update)(total, plain.init(params()))
    for name, value in noisy.items():
        assert np.allclose(value, seen[0][2][name], atol=1e-5)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"noise": 0.5 * NOISE}, "noise scale"),
        ({"noise": 0.0}, "noise scale"),
        ({"clipped_grad": clipping(4.0)}, "contribution"),
        ({"rate": 0.35}, "sampling rate"),
    ],
    ids=["half the noise", "no noise", "clipping at four times the norm", "larger batches"],
)
def test_faults_are_found(fault, check):
    audit = make(examples())
    state, _ = train(audit, **fault)
    result = audit.result(state, claim=claim())
    assert result.verdict is ag.Verdict.VIOLATION, result.reason
    assert check in failed(result)


def test_readings_are_drained_in_blocks_and_a_longer_run_says_so():
    audit = make(examples(), steps=20, buffer=6)
    state, _ = train(audit, steps=23, drained=5)
    short, whole = audit.transcript(state), correct()[0].transcript(correct()[1])
    assert np.allclose(short.kept_values, whole.kept_values[:20], atol=1e-5)
    assert (short.number_of_steps, short.facts.skipped_steps) == (20, 3)


def test_what_gradients_have_in_common_is_left_out():
    # Inputs that differ little from each other: without it the mean cosine is above .8.
    base = examples()
    alike = ExampleCanaries(
        (3.0 + 0.4 * base.inputs).astype(np.float32),
        np.zeros_like(base.labels),
        present=24,
        absent=24,
        seed=5,
    )
    audit = make(alike)
    state, _ = train(audit, steps=4)
    gram = audit.transcript(state).gram
    assert np.allclose(np.diagonal(gram), 1.0)
    size = len(gram)
    assert (gram.sum() - size) / (size * (size - 1)) < 0.3
    assert audit.transcript(state).facts.contribution < 0.9


def test_bad_input_is_refused_with_a_next_step():
    canaries = examples()
    audit = make(canaries)
    wrapped = audit.wrap(jax_privacy.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=1))
    state = wrapped.init(params())
    with pytest.raises(InvalidArgumentError, match="batch=indices"):
        wrapped.update(params(), state, params())
    with pytest.raises(InvalidArgumentError, match="params"):
        wrapped.update(params(), state, batch=np.arange(3))
    with pytest.raises(InvalidArgumentError, match=r"indices.*got shape"):
        wrapped.update(params(), state, params(), batch=np.zeros(3))
    with pytest.raises(RecordingError, match=r"steps.*got 0"):
        audit.result(state, delta=1e-5)
    with pytest.raises(InvalidArgumentError, match="Use Audit"):
        make(canaries, canaries=ag.DiracCanaries(count=20, dimension=256))
    with pytest.raises(InvalidArgumentError, match="records"):
        make(canaries, records=20)
    with pytest.raises(UnsupportedError, match="made without"):
        make(canaries, clipped_grad=clipping(microbatch_size=8))
    with pytest.raises(InvalidArgumentError, match="clip_norm"):
        make(canaries, clipped_grad=lambda *_: None)
    with pytest.raises(InvalidArgumentError, match="Wrap"):
        audit.wrap(optax.apply_updates)
    with pytest.raises(InvalidArgumentError, match="shape"):
        canaries.joined(np.zeros((5, 3)), np.zeros(5, int))
    with pytest.raises(InvalidArgumentError, match=r"label.*5"):
        canaries.joined(np.zeros((5, FEATURES)), np.zeros(4, int))
