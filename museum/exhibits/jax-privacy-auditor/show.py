"""Audit scores of which none depends on membership, many times."""

from __future__ import annotations

import numpy as np
from museum.jax_runs import DELTA
from museum.outcomes import Outcome, main, of_coverage

import askgauss as ag

AUDITS, CANARIES, SIGNIFICANCE = 60, 200, 0.05


def show(variant: str) -> Outcome:
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(AUDITS):
        present, absent = rng.normal(size=(2, CANARIES))
        above += bound(present, absent, variant) > 0.0
    return of_coverage(above, AUDITS, SIGNIFICANCE)


def bound(present: np.ndarray, absent: np.ndarray, variant: str) -> float:
    if variant == "mended":
        scores = ag.CanaryScores.from_groups(present=present, absent=absent)
        return ag.audit(
            scores, delta=DELTA, auditor=ag.GaussianDP(), diagnostics=False
        ).epsilon_lower
    from jax_privacy import auditing

    return float(auditing.CanaryScoreAuditor(present, absent).epsilon_from_gdp(SIGNIFICANCE, DELTA))


main(show)
