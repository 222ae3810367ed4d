"""Train with closures, as Lightning's automatic optimisation does."""

from __future__ import annotations

import math

from museum.opacus_runs import MANY, table, train
from museum.outcomes import Outcome, main


def show(variant: str) -> Outcome:
    run = train(table(), step=lambda optimizer, gradients: optimizer.step(gradients), **MANY)
    return run.outcome(true=math.inf if variant == "broken" else None)


main(show)
