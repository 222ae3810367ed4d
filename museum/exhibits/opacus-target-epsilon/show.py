"""Ask for an epsilon, and claim it."""

from __future__ import annotations

from museum.opacus_runs import DELTA, table, train
from museum.outcomes import Outcome, main

import askgauss as ag


def show(variant: str) -> Outcome:
    run = train(table(), target=1.0, present=700, absent=2000)
    rate = 1 / len(run.loader)
    true = ag.accounting.dpsgd_epsilon(
        noise_multiplier=float(run.optimizer.noise_multiplier),
        sampling_rate=rate,
        steps=round(5 / rate),
        delta=DELTA,
    )
    return run.outcome(epsilon=1.0, true=true)


main(show)
