"""Samplers that others wrote, read by the schemes that stand for them."""

from __future__ import annotations

import numpy as np
import pytest

from askgauss.sampling import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    MinSeparation,
    Poisson,
    TruncatedPoisson,
)
from tests.sampling.schemes import smallest

selection = pytest.importorskip("jax_privacy.batch_selection")

RECORDS, STEPS = 600, 240
PAIRS = [
    (Poisson(rate=0.05), {"name": "CyclicPoissonSampling", "sampling_prob": 0.05}),
    (
        CyclicPoisson(rate=0.2, cycle=4),
        {"name": "CyclicPoissonSampling", "sampling_prob": 0.2, "cycle_length": 4},
    ),
    (
        TruncatedPoisson(rate=0.05, cap=34, records=RECORDS),
        {"name": "CyclicPoissonSampling", "sampling_prob": 0.05, "truncated_batch_size": 34},
    ),
    (BallsInBins(bins=20, redrawn=False), {"name": "BallsInBinsSampling", "cycle_length": 20}),
    (FixedSize(batch=30, records=RECORDS), {"name": "FixedBatchSampling", "batch_size": 30}),
    (
        MinSeparation(separation=4, rate=0.06),
        {"name": "BMinSepSampling", "sampling_prob": 0.06, "min_sep": 4},
    ),
    (
        MinSeparation(separation=4, rate=0.06, warm_start=False),
        {"name": "BMinSepSampling", "sampling_prob": 0.06, "min_sep": 4, "warm_start": False},
    ),
]


def batches_of(options, seed):
    options = dict(options)
    sampler = getattr(selection, options.pop("name"))(iterations=STEPS, **options)
    return [np.asarray(batch) for batch in sampler.batch_iterator(RECORDS, rng=seed)]


@pytest.mark.parametrize(("scheme", "options"), PAIRS, ids=lambda item: str(item)[:60])
def test_the_scheme_that_stands_for_it_is_accepted(scheme, options):
    for seed in range(3):
        tests = scheme.test(batches_of(options, seed), records=RECORDS)
        assert smallest(tests) > 1e-3, tests


def test_others_are_refused():
    cyclic = batches_of(PAIRS[1][1], 0)
    assert smallest(Poisson(rate=0.05).test(cyclic, records=RECORDS)) < 1e-6
    kept = batches_of(PAIRS[3][1], 0)
    assert smallest(BallsInBins(bins=20).test(kept, records=RECORDS)) < 1e-6
