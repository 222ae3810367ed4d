"""JAX Privacy."""

# %% [markdown]
# # Audit a JAX Privacy run
#
# A linear classifier of the digits with jax_privacy's clipping and noise. `Audit.wrap` takes the optax transformation that
# adds noise and returns one that also inserts canaries and records what is released. It runs under `jit`.
# **Threat model:** white-box, every noisy gradient.

# %%
import secrets
import warnings

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import noise_addition
from sklearn.datasets import load_digits

import askgauss as ag
from askgauss.integrations.jax import Audit
from askgauss.sampling import Poisson

warnings.simplefilter("ignore")
features, labels = load_digits(return_X_y=True)
features = jnp.asarray(features / 16, jnp.float32)
records, rate, steps, sigma = len(labels), 0.2, 200, 2.0


def loss(params, inputs, targets):
    logits = inputs @ params["weights"] + params["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def run(noise_scale=1.0):
    params = {"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    gradient = jax_privacy.clipped_grad(
        loss, l2_clip_norm=1.0, batch_argnums=(1, 2), return_values=False
    )
    privatizer = noise_addition.gaussian_privatizer(
        stddev=noise_scale * sigma, prng_key=jax.random.key(secrets.randbits(32))
    )
    audit = Audit(
        params, sampling=Poisson(rate=rate), clip_norm=1.0, noise_multiplier=sigma, steps=steps
    )
    privatizer = audit.wrap(privatizer)
    state = privatizer.init(params)
    chance = np.random.default_rng(secrets.randbits(64))

    @jax.jit
    def step(params, state, inputs, targets, padding):
        clipped = gradient(params, inputs, targets, is_padding_example=padding)
        noisy, state = privatizer.update(clipped, state)
        return jax.tree.map(lambda p, g: p - 2.0 * g / (rate * records), params, noisy), state

    size = int(1.5 * rate * records)
    for _ in range(steps):
        chosen = np.flatnonzero(chance.random(records) < rate)[:size]
        padding = np.arange(size) >= len(chosen)
        chosen = np.pad(chosen, (0, size - len(chosen)))
        params, state = step(
            params, state, features[chosen], jnp.asarray(labels)[chosen], jnp.asarray(padding)
        )
    return audit, state


# %% [markdown]
# ## A correct run

# %%
epsilon = ag.accounting.dpsgd_epsilon(
    noise_multiplier=sigma, sampling_rate=rate, steps=steps, delta=1e-5
)
claim = ag.PrivacyClaim(epsilon=epsilon, delta=1e-5)
audit, state = run()
print(audit.result(state, claim=claim))

# %% [markdown]
# ## Noise at 70 % of what is claimed

# %%
audit, state = run(noise_scale=0.7)
print(audit.result(state, claim=claim))
