"""DataSynthesizer's description of a table, as a mechanism."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from DataSynthesizer.DataDescriber import DataDescriber

import askgauss as ag
from askgauss.mechanism_audit import from_function
from museum.outcomes import Outcome, of_mechanism

EPSILON = 1.0


def show_describer(*, seeded: bool, ranged: bool) -> Callable[[str], Outcome]:
    """Audit descriptions of ages, with and without the oldest.

    Args:
        seeded: Whether the broken run leaves the seed at its default.
        ranged: Whether the broken run is told the range of ages.
    """

    def show(variant: str) -> Outcome:
        mended = variant == "mended"
        ranges = {"numerical_attribute_ranges": {"age": [0, 120]}} if mended or ranged else {}

        def release(ages: np.ndarray, rng: np.random.Generator) -> list[Any]:
            describer = DataDescriber(histogram_bins=4)
            describer.describe_dataset_in_independent_attribute_mode(
                io.StringIO("age\n" + "\n".join(str(int(age)) for age in ages)),
                epsilon=EPSILON,
                attribute_to_datatype={"age": "Integer"},
                attribute_to_is_categorical={"age": False},
                attribute_to_is_candidate_key={"age": False},
                **ranges,
                **({} if seeded and not mended else {"seed": int(rng.integers(2**31))}),
            )
            described = describer.data_description["attribute_description"]["age"]
            return [described["min"], described["max"], *described["distribution_probabilities"]]

        ages = np.array([23, 31, 35, 38, 44, 47, 52, 58, 61, 97])
        result = ag.audit_mechanism(
            from_function(release),
            ages,
            np.where(ages == ages.max(), 40, ages),
            claim=ag.PrivacyClaim(epsilon=EPSILON, delta=0.0),
            max_samples=600,
        )
        return of_mechanism(result, true=None if mended else math.inf)

    return show
