"""A private JAX run as small as can be: fixed gradients, noise, and nothing else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy

import askgauss as ag
from askgauss.integrations.jax import Audit
from askgauss.sampling import Poisson

STEPS, RATE, NOISE = 120, 0.2, 2.0
# Nobody would try it.
KEY = 1_871_236_554
SHAPES = {"bias": (60,), "weight": (60, 40)}
SIZES = [60, 2400]


def params() -> dict[str, Any]:
    return {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def gradient(seed: int = 0) -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(seed), len(SHAPES))
    return {
        name: 5.0 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }


def canaries(present: int = 200, absent: int = 500, seed: int = 3) -> ag.DiracCanaries:
    return ag.DiracCanaries(present=present, absent=absent, tensors=SIZES, seed=seed)


def gaussian(noise: float = NOISE, key: int = KEY) -> Any:
    return jax_privacy.noise_addition.gaussian_privatizer(stddev=noise, prng_key=key)


def make(**changes: Any) -> Audit:
    settings: dict[str, Any] = {
        "sampling": Poisson(rate=RATE),
        "clip_norm": 1.0,
        "noise_multiplier": NOISE,
        "steps": STEPS,
        "canaries": canaries(),
    }
    return Audit(params(), **(settings | changes))


def scanned(transformation: Any, steps: int = STEPS, updates: Any = None) -> tuple[Any, Any]:
    """Everything that was released, and the last state."""
    given = gradient() if updates is None else updates

    def step(state: Any, _: None) -> tuple[Any, Any]:
        released, state = transformation.update(given, state)
        return state, released

    def whole() -> tuple[Any, Any]:
        return jax.lax.scan(step, transformation.init(params()), None, length=steps)

    state, released = jax.jit(whole)()
    return released, state


def claim(noise: float = NOISE, rate: float = RATE, steps: int = STEPS) -> ag.PrivacyClaim:
    from askgauss.accounting import dpsgd_epsilon

    epsilon = dpsgd_epsilon(noise_multiplier=noise, sampling_rate=rate, steps=steps, delta=1e-5)
    return ag.PrivacyClaim(
        epsilon=epsilon, delta=1e-5, noise_multiplier=noise, sampling_rate=rate, steps=steps
    )
