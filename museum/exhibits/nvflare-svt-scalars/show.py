"""Filter an update of a few numbers, one of them without dimensions."""

from __future__ import annotations

import logging
import math

import numpy as np
from museum.outcomes import Outcome, main, of_mechanism
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

import askgauss as ag
from askgauss.mechanism_audit import from_function


def show(variant: str) -> Outcome:
    logging.disable(logging.CRITICAL)
    shape = () if variant == "broken" else (1,)
    spent = []

    def release(update: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        np.random.seed(int(rng.integers(2**31)))  # noqa: NPY002  (the filter draws from it)
        given = {"layer": update[1:].copy(), "scale": np.reshape(update[0], shape)}
        filtering = SVTPrivacy(fraction=0.5, epsilon=0.5, noise_var=0.5, gamma=1.0, tau=0.5)
        dxo = DXO(DataKind.WEIGHT_DIFF, data=given)
        sent = filtering.process_dxo(dxo, Shareable(), FLContext()).data
        spent.append(filtering.get_privacy_spent())
        return np.append(sent["layer"], sent["scale"])

    update = np.array([0.8, 0.4, -0.2, 0.1])
    release(update, np.random.default_rng(0))
    result = ag.audit_mechanism(
        from_function(release),
        update,
        np.array([-0.8, 0.4, -0.2, 0.1]),
        claim=ag.PrivacyClaim(epsilon=spent[0], delta=0.0),
        max_samples=4_000,
    )
    return of_mechanism(result, true=math.inf if variant == "broken" else None)


main(show)
