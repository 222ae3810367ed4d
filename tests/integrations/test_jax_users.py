"""User-level DP-SGD with jax_privacy: users are drawn, and each user's gradient is clipped."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy.batch_selection import CyclicPoissonSampling, UserSelectionStrategy

import askgauss as ag
from askgauss.accounting import dpsgd_epsilon
from askgauss.integrations.jax import Audit
from tests.integrations.jax_runs import KEY

USERS, EACH, WIDTH, STEPS, RATE, NOISE, DELTA = 80, 3, 60, 60, 0.25, 1.0, 1e-5


def loss(params, features, target):
    """Of the examples of one user together."""
    return jnp.mean((features @ params["weight"] - target) ** 2)


def trained(noise):
    """A run whose noise has this multiplier, and which claims that of NOISE."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(USERS * EACH, WIDTH)).astype(np.float32)
    target = rng.normal(size=(USERS * EACH, 20)).astype(np.float32)
    params = {"weight": jnp.zeros((WIDTH, 20))}
    drawn = CyclicPoissonSampling(sampling_prob=RATE, iterations=STEPS)
    strategy = UserSelectionStrategy(drawn, examples_per_user_per_batch=2)
    clipped = jax_privacy.clipped_grad(
        loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False
    )
    audit = Audit(
        params,
        sampling=strategy,
        noise_multiplier=NOISE,
        steps=STEPS,
        canaries=ag.DiracCanaries(present=120, absent=500, tensors=[WIDTH * 20], seed=1),
    )
    privatizer = audit.wrap(
        jax_privacy.noise_addition.gaussian_privatizer(stddev=noise, prng_key=KEY)
    )
    state = privatizer.init(params)
    users = np.repeat(np.arange(USERS), EACH)
    step = jax.jit(lambda total, state: privatizer.update(total, state))
    for indices in strategy.batch_iterator(users, rng):
        noisy, state = step(clipped(params, features[indices], target[indices]), state)
        params = jax.tree.map(lambda old, new: old - 0.01 * new, params, noisy)
    epsilon = dpsgd_epsilon(noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS, delta=DELTA)
    claim = ag.PrivacyClaim(
        epsilon=epsilon,
        delta=DELTA,
        noise_multiplier=NOISE,
        sampling_rate=RATE,
        steps=STEPS,
        unit="user",
    )
    return audit.result(state, claim=claim)


def test_a_user_is_one_record_of_the_strategy_below():
    """Calls a correct run broken once in a thousand seeds, of which this is none."""
    result = trained(NOISE)
    assert result.verdict is ag.Verdict.CONSISTENT, str(result)
    assert result.epsilon_lower > 0.85 * result.claim.epsilon


def test_half_of_the_noise_is_found():
    result = trained(0.5 * NOISE)
    assert result.verdict is ag.Verdict.VIOLATION
    assert "noise scale" in {item.check for item in result.findings if item.status.value == "fail"}
