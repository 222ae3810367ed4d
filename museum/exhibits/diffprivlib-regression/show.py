"""Fit one feature, with and without the one record that is large in it."""

from __future__ import annotations

import warnings

import numpy as np
from diffprivlib.models import LinearRegression
from museum.outcomes import Outcome, main, of_mechanism

import askgauss as ag
from askgauss.mechanism_audit import from_function

EPSILON = 1.0


def show(variant: str) -> Outcome:
    bounds = (0.0, 1.0) if variant == "broken" else (-1.0, 1.0)

    def release(records: np.ndarray, rng: np.random.Generator) -> float:
        warnings.simplefilter("ignore")
        model = LinearRegression(
            epsilon=EPSILON,
            bounds_X=bounds,
            bounds_y=(0.0, 1.0),
            fit_intercept=False,
            random_state=int(rng.integers(2**31)),
        )
        return float(model.fit(records[:, :1], records[:, 1]).coef_[0])

    # Fifty records near zero, and one that is not.
    without = np.column_stack((np.full(50, 0.02), np.full(50, 0.5)))
    result = ag.audit_mechanism(
        from_function(release),
        np.vstack((without, [[1.0, 0.5]])),
        without,
        claim=ag.PrivacyClaim(epsilon=EPSILON, delta=0.0),
        max_samples=2_000,
    )
    return of_mechanism(result)


main(show)
