"""Train a layer over sequences with ghost clipping."""

from __future__ import annotations

from museum.opacus_runs import sequences, train
from museum.outcomes import Outcome, main


def show(variant: str) -> Outcome:
    return train(sequences(), batch=50, clip=0.01, ghost=True).outcome()


main(show)
