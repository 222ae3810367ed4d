"""JAX: a jitted step with the audit against the same without, in turn; bounds of twenty runs."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

import askgauss as ag
from askgauss.accounting import dpsgd_epsilon
from askgauss.integrations.jax import Audit, claim_of
from askgauss.sampling import CyclicPoisson, Poisson

EXAMPLE = Path(__file__).parents[1] / "examples" / "jax_transformer.py"
KEY = 1_871_236_554
RUNS, STEPS, DELTA, BATCH, TURNS = 20, 200, 1e-5, 64, 60


def rows() -> Iterator[tuple[str, str]]:
    """What was measured, a line each."""
    yield from overhead()
    yield from bounds()


def example() -> Any:
    """The small transformer of the examples."""
    spec = importlib.util.spec_from_file_location("jax_transformer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def overhead() -> Iterator[tuple[str, str]]:
    """Seconds of a step with canaries over those without."""
    model = example()
    params, batch = model.make_params(), jnp.asarray(model.make_text()[:BATCH])
    clipped_grad = jax_privacy.clipped_grad(model.loss, l2_clip_norm=1.0)
    optimizer = optax.adam(1e-3)
    for steps, donated in ((STEPS, False), (1000, False), (1000, True)):
        audit = Audit(params, sampling=Poisson(rate=0.05), noise_multiplier=1.0, steps=steps)
        plain = jax_privacy.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=KEY)
        trainings = []
        for privatizer in (plain, audit.wrap(plain)):

            def step(params: Any, noise: Any, state: Any, privatizer: Any = privatizer) -> Any:
                noisy, noise = privatizer.update(clipped_grad(params, batch), noise)
                change, state = optimizer.update(noisy, state)
                return optax.apply_updates(params, change), noise, state

            # Copies, since both privatizers carry one key, which donating to a step deletes.
            fresh = (params, privatizer.init(params), optimizer.init(params))
            carried = jax.tree.map(jnp.copy, fresh)
            jitted = jax.jit(step, donate_argnums=(1,) if donated else ())
            trainings.append([jitted, jax.block_until_ready(jitted(*carried))])
        ratios = []
        for turn in range(TURNS):
            seconds = [0.0, 0.0]
            for which in ((0, 1), (1, 0))[turn % 2]:
                jitted, carried = trainings[which]
                begun = time.perf_counter()
                trainings[which][1] = jax.block_until_ready(jitted(*carried))
                seconds[which] = time.perf_counter() - begun
            ratios.append(seconds[1] / seconds[0])
        name = f"step of {sum(leaf.size for leaf in params.values()):,} parameters, {audit}"
        how = "donated" if donated else "copied"
        yield f"{name[:58]}..., {how}", f"{statistics.median(ratios):.3f} times"


def bounds() -> Iterator[tuple[str, str]]:
    """The mean bound of twenty runs with noise of their own, over the claim."""
    params = {"weight": jnp.zeros((150, 150)), "bias": jnp.zeros(150)}
    noise, rate = 1.13, 0.1
    epsilon = dpsgd_epsilon(noise_multiplier=noise, sampling_rate=rate, steps=STEPS, delta=DELTA)
    audit = Audit(params, sampling=Poisson(rate=rate), noise_multiplier=noise, steps=STEPS, seed=0)
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(stddev=noise)
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)
    yield _mean("DP-SGD, Poisson sampling", audit, privatizer, params, claim)

    config = BandMFExecutionPlanConfig(
        iterations=STEPS,
        strategy=np.asarray(toeplitz.optimal_max_error_strategy_coefs(4)),
        epsilon=None,
        delta=None,
        noise_multiplier=1.13,
        sampling_prob=0.2,
    )
    audit = Audit.from_plan(params, config, seed=0)
    claim = claim_of(config.plan.dp_event, DELTA)
    yield _mean("BandMF, 4 bands", audit, config.plan.noise_addition_transform, params, claim)

    buffered = buffered_toeplitz.BufferedToeplitz(
        buf_decay=jnp.array([0.95, 0.5]), output_scale=jnp.array([0.15, 0.3])
    )
    matrix, cycle, noise = np.asarray(buffered.materialize(STEPS)), 50, 0.6
    sensitivity = float(np.linalg.norm(matrix[:, ::cycle].sum(axis=1)))
    audit = Audit(
        params,
        sampling=CyclicPoisson(rate=1.0, cycle=cycle),
        noise_multiplier=noise,
        strategy=buffered,
        steps=STEPS,
        seed=0,
    )
    privatizer = jax_privacy.noise_addition.matrix_factorization_privatizer(
        buffered.inverse_as_streaming_matrix(), stddev=noise * sensitivity
    )
    epsilon = float(ag.gaussian.epsilon(DELTA, 0.0, noise, 1.0, noise))
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)
    yield _mean("BLT, 2 buffers, 4 participations", audit, privatizer, params, claim)


def _mean(
    name: str, audit: Audit, privatizer: Any, params: Any, claim: ag.PrivacyClaim
) -> tuple[str, str]:
    wrapped = audit.wrap(privatizer)
    updates = jax.tree.map(jnp.ones_like, params)

    @jax.jit
    def run(key: Any) -> Any:
        state = wrapped.init(params)
        state = state._replace(inner=(key, *state.inner[1:]))

        def step(state: Any, _: None) -> Any:
            return wrapped.update(updates, state)[1], None

        return jax.lax.scan(step, state, None, length=STEPS)[0]

    results = [audit.result(run(jax.random.key(KEY + seed)), claim=claim) for seed in range(RUNS)]
    shares = [item.epsilon_lower / claim.epsilon for item in results]
    verdicts = sorted({item.verdict.value for item in results if item.verdict is not None})
    return (
        f"{name}, T={STEPS}, epsilon {claim.epsilon:.2f}: mean bound of {RUNS} runs",
        f"{statistics.mean(shares):.1%} of the claim ({min(shares):.1%} to {max(shares):.1%}), "
        f"{', '.join(verdicts)}",
    )
