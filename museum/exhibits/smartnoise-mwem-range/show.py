"""Synthesise a column whose bounds are stated, with and without the one large value."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from museum.outcomes import Outcome, main, of_mechanism
from snsynth import Synthesizer
from snsynth.transform import BinTransformer

import askgauss as ag
from askgauss.mechanism_audit import from_function

EPSILON, DRAWN = 1.0, 20


def release(values: np.ndarray, _: np.random.Generator) -> list[float]:
    # MWEM takes no generator: it draws from global ones, and from OpenDP's.
    synthesizer = Synthesizer.create(
        "mwem", epsilon=EPSILON, iterations=2, q_count=8, mult_weights_iterations=3
    )
    bins = BinTransformer(bins=10, lower=0.0, upper=10.0)
    synthesizer.fit(pd.DataFrame({"stays": values}), transformer={"stays": bins})
    return sorted(synthesizer.sample(DRAWN)["stays"].astype(float))


def show(variant: str) -> Outcome:
    # In the twin a second record has the large value, in both tables.
    last = 2.0 if variant == "broken" else 9.0
    values = np.array([0.0] * 7 + [1.0] * 8 + [2.0] * 3 + [last, 9.0])
    result = ag.audit_mechanism(
        from_function(release),
        values,
        values[:-1],
        claim=ag.PrivacyClaim(epsilon=EPSILON, delta=0.0),
        max_samples=600,
    )
    return of_mechanism(result, true=math.inf if variant == "broken" else None)


main(show)
