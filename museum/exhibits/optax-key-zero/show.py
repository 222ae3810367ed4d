"""Aggregate gradients by example with optax, without a key."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import optax
from museum.jax_runs import DELTA, KEY, canaries, gradients, outcome, params
from museum.outcomes import Outcome, main

import askgauss as ag
from askgauss.integrations.jax import Audit
from askgauss.sampling import Poisson

STEPS, RATE, NOISE = 60, 0.2, 2.0


def show(variant: str) -> Outcome:
    warnings.simplefilter("ignore")
    key = None if variant == "broken" else KEY
    aggregate = optax.contrib.differentially_private_aggregate(1.0, NOISE, key=key)
    audit = Audit(
        params(),
        sampling=Poisson(rate=RATE),
        noise_multiplier=NOISE,
        steps=STEPS,
        canaries=canaries(present=300, absent=1500),
    )
    epsilon = ag.accounting.dpsgd_epsilon(
        noise_multiplier=NOISE, sampling_rate=RATE, steps=STEPS, delta=DELTA
    )
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA)
    found = outcome(audit, aggregate, gradients(6), steps=STEPS, claim=claim)
    return replace(found, true=math.inf) if variant == "broken" else found


main(show)
