"""Audit jax_privacy: a small transformer, with DP-SGD and with correlated noise (BandMF)."""

from __future__ import annotations

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import toeplitz

from askgauss.integrations.jax import Audit, claim_of

RECORDS, CONTEXT, LETTERS, WIDTH, STEPS, DELTA = 1200, 16, 20, 48, 200, 1e-5


def make_params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {
        "letters": (LETTERS, WIDTH),
        "places": (CONTEXT, WIDTH),
        "attention": (WIDTH, 3 * WIDTH),
        "hidden": (WIDTH, 2 * WIDTH),
        "output": (2 * WIDTH, WIDTH),
    }
    return {
        name: jnp.asarray(rng.normal(0, shape[0] ** -0.5, shape), jnp.float32)
        for name, shape in shapes.items()
    }


def loss(params: dict[str, Any], text: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next letter; text has one row an example."""
    here, following = text[:, :-1], text[:, 1:]
    stream = params["letters"][here] + params["places"][: here.shape[1]]
    query, key, value = jnp.split(stream @ params["attention"], 3, axis=-1)
    weights = query @ key.swapaxes(1, 2) / WIDTH**0.5
    past = jnp.tril(jnp.ones(weights.shape[1:], bool))
    stream = stream + jax.nn.softmax(jnp.where(past, weights, -1e9)) @ value
    stream = stream + jax.nn.gelu(stream @ params["hidden"]) @ params["output"]
    logits = stream @ params["letters"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, following).mean()


def make_text() -> np.ndarray:
    """Letters that walk up and down the alphabet in steps of their own."""
    rng = np.random.default_rng(1)
    start, stride = rng.integers(LETTERS, size=(2, RECORDS, 1))
    return (start + stride * np.arange(CONTEXT)) % LETTERS


def train(config: BandMFExecutionPlanConfig) -> None:
    plan, text, params = config.plan, make_text(), make_params()
    privatizer = plan.noise_addition_transform

    audit = Audit.from_plan(params, config)  # the audit: one line here,
    privatizer = audit.wrap(privatizer)  # one here, and one for the result

    clipped_grad = plan.clipped_grad(loss)
    optimizer = optax.adam(3e-3)
    noise_state, optimizer_state = privatizer.init(params), optimizer.init(params)

    @jax.jit
    def step(params: Any, noise_state: Any, optimizer_state: Any, batch: Any, padding: Any) -> Any:
        total = clipped_grad(params, batch, is_padding_example=padding)
        noisy, noise_state = privatizer.update(total, noise_state)
        change, optimizer_state = optimizer.update(noisy, optimizer_state)
        return optax.apply_updates(params, change), noise_state, optimizer_state

    for indices in plan.batch_selection_strategy.batch_iterator(RECORDS):
        padded = batch_selection.pad_to_multiple_of(indices, 64)
        params, noise_state, optimizer_state = step(
            params, noise_state, optimizer_state, text[padded], padded < 0
        )

    print(f"{len(config.strategy)} bands, {STEPS} steps, loss {float(loss(params, text)):.2f}:")
    print(audit.result(noise_state, claim=claim_of(plan.dp_event, DELTA)), end="\n\n")


def main() -> None:
    # Independent noise is a strategy of one band; with four, records take turns in four groups.
    for bands, rate, noise in ((1, 0.05, 0.85), (4, 0.2, 1.1)):
        train(
            BandMFExecutionPlanConfig(
                iterations=STEPS,
                strategy=toeplitz.optimal_max_error_strategy_coefs(bands),
                epsilon=None,
                delta=None,
                noise_multiplier=noise,
                sampling_prob=rate,
                noise_seed=secrets.randbits(31),
            )
        )


if __name__ == "__main__":
    main()
