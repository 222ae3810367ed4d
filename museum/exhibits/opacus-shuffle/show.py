"""Train with the user's own shuffling loader."""

from __future__ import annotations

from museum.opacus_runs import table, train
from museum.outcomes import Outcome, main


def show(variant: str) -> Outcome:
    return train(table(), noise=0.7, poisson=variant == "mended").outcome()


main(show)
