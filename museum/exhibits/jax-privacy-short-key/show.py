"""Leave the key to the library."""

from __future__ import annotations

import secrets

import jax
import jax_privacy
from museum.jax_runs import DELTA, canaries, gradients, outcome, params
from museum.outcomes import Outcome, main

import askgauss as ag
from askgauss.integrations.jax import Audit
from askgauss.sampling import Poisson

STEPS, RATE, NOISE = 120, 0.2, 2.0


def show(variant: str) -> Outcome:
    key = None if variant == "broken" else jax.random.key(secrets.randbits(63))
    law = Poisson(rate=RATE)
    audit = Audit(params(), sampling=law, noise_multiplier=NOISE, steps=STEPS, canaries=canaries())
    claim = ag.PrivacyClaim(
        epsilon=law.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA), delta=DELTA
    )
    noise = jax_privacy.noise_addition.gaussian_privatizer(stddev=NOISE, prng_key=key)
    return outcome(audit, noise, gradients(), steps=STEPS, claim=claim)


main(show)
