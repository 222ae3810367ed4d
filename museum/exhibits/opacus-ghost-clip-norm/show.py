"""Train with ghost clipping and a clip norm of a tenth; the canaries are records."""

from __future__ import annotations

import numpy as np
from museum.opacus_runs import table, train
from museum.outcomes import Outcome, main
from torch import nn

from askgauss.canaries import ExampleCanaries


def show(variant: str) -> Outcome:
    model, data = table()
    rng = np.random.default_rng(3)
    canaries = ExampleCanaries(
        3.0 * rng.normal(size=(80, 40)).astype(np.float32),
        rng.integers(2, size=80),
        present=40,
        absent=40,
        seed=5,
    )
    return train(
        (model, canaries.dataset(data)),
        ghost=True,
        clip=0.1,
        canaries=canaries,
        criterion=nn.CrossEntropyLoss(),
        seed=None,
    ).outcome()


main(show)
