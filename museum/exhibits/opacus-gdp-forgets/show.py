"""Train with the Gaussian accountant and read epsilon after every epoch."""

from __future__ import annotations

from museum.opacus_runs import DELTA, MANY, table, train
from museum.outcomes import Outcome, main

import askgauss as ag


def show(variant: str) -> Outcome:
    said = []
    # Mended, the Gaussian accountant still understates: that is an exhibit of its own.
    run = train(
        table(),
        **MANY,
        accountant="gdp" if variant == "broken" else "rdp",
        after_epoch=lambda engine: said.append(float(engine.get_epsilon(DELTA))),
    )
    rate = 1 / len(run.loader)
    true = ag.accounting.dpsgd_epsilon(
        noise_multiplier=1.0, sampling_rate=rate, steps=round(5 / rate), delta=DELTA
    )
    return run.outcome(epsilon=said[-1], true=true)


main(show)
