"""Adapt the clip norm by the noisy count of unclipped records."""

from __future__ import annotations

from museum.opacus_runs import DELTA, table, train
from museum.outcomes import Outcome, main

from askgauss.sampling import Poisson

RECORDS, BATCH, EPOCHS, NOISE = 2000, 20, 5, 1.0
ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    # A twentieth of a batch, as Andrew et al. 2021 advise.
    "unclipped_num_std": BATCH / 20,
}


def show(variant: str) -> Outcome:
    run = train(table(), batch=BATCH, epochs=EPOCHS, noise=NOISE, options=ADAPTIVE)
    law = Poisson(rate=BATCH / RECORDS)
    steps = EPOCHS * RECORDS // BATCH
    true = law.epsilon(noise_multiplier=NOISE, steps=steps, delta=DELTA)
    return run.outcome(true=true if variant == "broken" else None)


main(show)
