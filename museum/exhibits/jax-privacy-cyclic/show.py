"""Take turns, and account for the mean rate."""

from __future__ import annotations

from dataclasses import replace

import jax_privacy
from jax_privacy import batch_selection
from museum.jax_runs import DELTA, KEY, canaries, gradients, outcome, params
from museum.outcomes import Outcome, main

import askgauss as ag
from askgauss.integrations.jax import Audit
from askgauss.sampling import CyclicPoisson, Poisson

STEPS, RATE, CYCLE, NOISE = 400, 0.2, 4, 0.9


def show(variant: str) -> Outcome:
    turns = CYCLE if variant == "broken" else 1
    selection = batch_selection.CyclicPoissonSampling(
        sampling_prob=RATE if turns > 1 else RATE / CYCLE, iterations=STEPS, cycle_length=turns
    )
    audit = Audit(
        params(),
        sampling=selection,
        noise_multiplier=NOISE,
        strategy=[1.0] if turns > 1 else None,
        steps=STEPS,
        canaries=canaries(),
    )
    law = Poisson(rate=RATE / CYCLE)
    epsilon = law.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)
    claim = ag.PrivacyClaim(epsilon=epsilon, delta=DELTA, noise_multiplier=NOISE, sampling=law)
    noise = jax_privacy.noise_addition.gaussian_privatizer(stddev=NOISE, prng_key=KEY)
    found = outcome(audit, noise, gradients(), steps=STEPS, claim=claim)
    turn = CyclicPoisson(rate=RATE, cycle=CYCLE)
    true = turn.epsilon(noise_multiplier=NOISE, steps=STEPS, delta=DELTA)
    return replace(found, true=true) if variant == "broken" else found


main(show)
