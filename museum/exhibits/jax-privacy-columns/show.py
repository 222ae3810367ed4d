"""Run the noise of a BandMF plan."""

from __future__ import annotations

import numpy as np
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from museum.jax_runs import DELTA, KEY, canaries, gradients, outcome, params
from museum.outcomes import Outcome, main

from askgauss.integrations.jax import Audit, claim_of


def show(variant: str) -> Outcome:
    strategy = np.array([1.0, 0.5, 0.3, 0.2])
    norm = 0.8 if variant == "broken" else 1.0
    config = BandMFExecutionPlanConfig(
        iterations=160,
        strategy=norm * strategy / np.linalg.norm(strategy),
        epsilon=8.0,
        delta=DELTA,
        sampling_prob=0.3,
        l2_clip_norm=0.7,
        rescale_to_unit_norm=False,
        column_normalize=True,
        noise_seed=KEY,
    )
    audit = Audit.from_plan(params(), config, canaries=canaries())
    claim = claim_of(config.plan.dp_event, DELTA)
    privatizer = config.plan.noise_addition_transform
    return outcome(audit, privatizer, gradients(), steps=config.iterations, claim=claim)


main(show)
