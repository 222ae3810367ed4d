"""Train with the Gaussian accountant, and read epsilon once, after the last step."""

from __future__ import annotations

from museum.opacus_runs import DELTA, MANY, table, train
from museum.outcomes import Outcome, main

import askgauss as ag


def show(variant: str) -> Outcome:
    run = train(table(), accountant="gdp" if variant == "broken" else "rdp", **MANY)
    rate = 1 / len(run.loader)
    true = ag.accounting.dpsgd_epsilon(
        noise_multiplier=1.0, sampling_rate=rate, steps=round(5 / rate), delta=DELTA
    )
    return run.outcome(true=true)


main(show)
